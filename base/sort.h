/*
 * sort.h - sorting whose result depends on the items alone, and finding what is sorted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_SORT_H
#define INVAR_BASE_SORT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sorts pointers; stable: what compares as equal keeps its order. `compare` as for strcmp. */
invar_status invar_sort(const void **items, size_t count,
                        int (*compare)(const void *a, const void *b)) INVAR_MUST_USE;

/*
 * The row whose key is this one; -1: there is none. A row has `row` bytes, and `key_at` bytes from
 * its beginning an int64_t as its key; keys ascend.
 */
int64_t invar_binary_search(const void *rows, int64_t count, size_t row, size_t key_at,
                            int64_t key);

#ifdef __cplusplus
}
#endif
#endif
