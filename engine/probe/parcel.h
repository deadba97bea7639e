/*
 * parcel.h - bytes for another rank: put one after the other, and taken there in the same order.
 *
 * Ranks run the same program: a struct is the same bytes on all of them. Whatever is put begins at
 * a multiple of 8 bytes, so that it can be read where it lies.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_PROBE_PARCEL_H
#define INVAR_ENGINE_PROBE_PARCEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed, it is empty; release. */
typedef struct invar_parcel {
    char *data;
    size_t bytes, room;
} invar_parcel;

/* Room for `count` items at its end, which the caller fills before the next call. */
invar_status invar_parcel_add(void **out, invar_parcel *parcel, size_t count,
                              size_t size) INVAR_MUST_USE;
invar_status invar_parcel_put(invar_parcel *parcel, const void *items, size_t count,
                              size_t size) INVAR_MUST_USE;
void invar_parcel_release(invar_parcel *parcel);

/* What is left of one that has arrived. */
typedef struct invar_parcel_rest {
    const char *at;
    size_t bytes;
} invar_parcel_rest;

/* *out = the next items, where they lie. INVAR_E_CORRUPT: there are fewer. */
invar_status invar_parcel_take(const void **out, invar_parcel_rest *rest, int64_t count,
                               size_t size) INVAR_MUST_USE;

/* For those who find something in it that no rank puts there. */
invar_status invar_parcel_damaged(void) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
