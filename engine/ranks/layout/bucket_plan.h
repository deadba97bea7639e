/*
 * bucket_plan.h - how a block that every rank has one of becomes slices, and slices a block again.
 *
 * Each rank owns a slice, so many bytes. In a scatter every giver sends each rank the slice of its
 * block that is that rank's: an owner gets as many as there are givers, in the order of ranks, and
 * adds them itself. In a gather every rank sends its slice to all; slices that are collected go to
 * rank 0. They travel piece by piece, so that what lies between the ranks has a bound.
 *
 * This is the plan alone: moves as plain data, made by whoever runs them and by whoever wants to
 * know what they cost.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_LAYOUT_BUCKET_PLAN_H
#define INVAR_ENGINE_RANKS_LAYOUT_BUCKET_PLAN_H

#include "engine/ranks/layout/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_bucket_plan {
    size_t *owned_bytes; /* (size) bytes of each rank's */
    size_t longest;      /* of them */
    size_t bucket_bytes; /* most bytes of a slice that travel at a time */
    int size, rank;
    int64_t pieces;                  /* of the longest slice */
    size_t *send_bytes, *recv_bytes; /* (size) of the move made last */
} invar_bucket_plan;

/*
 * Of slices of so many bytes (size). Pieces are whole leaves, the `size` of them that a rank sends
 * at a time fit `bucket` where it has room for a leaf each. Release.
 */
invar_status invar_bucket_plan_init(invar_bucket_plan *out, const size_t *bytes, size_t bucket,
                                    int size, int rank) INVAR_MUST_USE;
void invar_bucket_plan_release(invar_bucket_plan *exchange);

/* Bytes that a rank gives or gets at a time, at most. */
size_t invar_bucket_plan_room(const invar_bucket_plan *exchange);

/* A piece of the slice of `rank`, by its place in the slice. */
invar_byte_range invar_bucket_plan_piece(const invar_bucket_plan *exchange, int rank,
                                         int64_t piece);

/*
 * The moves of a piece: the ranks below `givers` have a block to give. Their arrays are the
 * exchange's and change with the next one; phase, deadline, `in` and `out` are the caller's to set.
 */
void invar_bucket_plan_scatter(invar_comm_transfer *out, invar_bucket_plan *exchange, int64_t piece,
                               int givers);
void invar_bucket_plan_gather(invar_comm_transfer *out, invar_bucket_plan *exchange, int64_t piece);
void invar_bucket_plan_collect(invar_comm_transfer *out, invar_bucket_plan *exchange,
                               int64_t piece);

#ifdef __cplusplus
}
#endif
#endif
