/*
 * sort.h - sorting whose result depends on the items alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_SORT_H
#define INVAR_BASE_SORT_H

#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sorts pointers; stable: what compares as equal keeps its order. `compare` as for strcmp. */
invar_status invar_sort(const void **items, size_t count,
                        int (*compare)(const void *a, const void *b)) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
