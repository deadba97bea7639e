/*
 * sort.h - stable sort and binary search, whose results depend on the items alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_SORT_H
#define INVAR_BASE_SORT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/*
 * Sorts an array of pointers. Stable: equal items keep their order. `compare` receives two of the
 * pointers and returns a value like strcmp. Returns INVAR_E_NOMEM for lack of memory.
 */
invar_status invar_sort(const void **items, size_t count,
                        int (*compare)(const void *a, const void *b)) INVAR_MUST_USE;

/* Like invar_sort, for an array of `count` items of `size` bytes, which are moved. */
invar_status invar_sort_items(void *items, size_t count, size_t size,
                              int (*compare)(const void *a, const void *b)) INVAR_MUST_USE;

/*
 * Returns the index of the row with this key; -1 if no row has it. A row has `row` bytes, with an
 * int64_t key at offset `key_at`; rows are ascending by key.
 */
int64_t invar_binary_search(const void *rows, int64_t count, size_t row, size_t key_at,
                            int64_t key);

#endif
