/*
 * listing.h - what a pass shows, by name: for a rank that did not compute it, but records it.
 *
 * Stages of a pipeline list the values of their layers, and the gradients of parameters that these
 * add to. Rank 0 puts the lists of all stages into the order that one rank would have shown them
 * in, and defines their points.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_PROBE_LISTING_H
#define INVAR_ENGINE_PROBE_LISTING_H

#include "engine/probe/parcel.h"
#include "engine/program/run.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_LISTED_OP 48

/* A value without its rows. */
typedef struct invar_listed {
    invar_value_name name;
    int64_t place; /* in the order of one rank */
    char op[INVAR_LISTED_OP];
    bool backward, stream;
    invar_value_name inputs[INVAR_WATCH_INPUTS];
    int n_inputs;
    invar_tensor rows; /* type and shape alone */
} invar_listed;

/*
 * Places go up with the layers, and on with the backward down again. A value of no layer is the
 * embedding's, before them, or where values of layers have been shown (`deep`) the head's.
 */
void invar_listed_of(invar_listed *out, const invar_forward_value *value, bool deep);

/* As it was shown, but for its rows; borrows from `listed`. */
invar_forward_value invar_listed_value(const invar_listed *listed);

/* Of a listed value that has arrived: INVAR_E_CORRUPT where it is none. */
invar_status invar_listed_check(const invar_listed *listed) INVAR_MUST_USE;

/* What the gradient with a number, of a learner's choice, is computed from. */
typedef struct invar_listed_sum {
    int64_t number;
    invar_value_name inputs[INVAR_WATCH_INPUTS];
    int n_inputs;
} invar_listed_sum;

/* Zeroed, it is empty; release. */
typedef struct invar_listing {
    invar_listed *values; /* (count) each name once, in order */
    int64_t count, room;
    invar_listed_sum *sums; /* (n_sums) each number once */
    int64_t n_sums, sums_room;
} invar_listing;

/* Empty again. */
void invar_listing_reset(invar_listing *listing);
void invar_listing_release(invar_listing *listing);

/* A value that is listed already stays as it is; of a gradient the last sum counts. */
invar_status invar_listing_add(invar_listing *listing,
                               const invar_forward_value *value) INVAR_MUST_USE;
invar_status invar_listing_add_sum(invar_listing *listing, int64_t number,
                                   const invar_forward_sum *sum) INVAR_MUST_USE;

/* All of it; and what another rank has packed, in its place among the values that are here. */
invar_status invar_listing_pack(invar_parcel *to, const invar_listing *listing) INVAR_MUST_USE;
invar_status invar_listing_unpack(invar_listing *listing, invar_parcel_rest *from) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
