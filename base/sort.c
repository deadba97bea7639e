/*
 * sort.c - bottom-up merge sort, and binary search.
 *
 * The sort is stable and moves pointers only; items of an array are moved once, when their order is
 * known. Its only failure is a lack of memory for a second list.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/sort.h"

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

typedef int (*comparison)(const void *a, const void *b);

static bool is_sorted(const void *const *items, size_t count, comparison compare)
{
    for (size_t i = 1; i < count; i++)
        if (compare(items[i - 1], items[i]) > 0)
            return false;
    return true;
}

/* Merges [first, middle) and [middle, end) of `from` into [first, end) of `to`. */
static void merge_runs(const void **to, const void *const *from, size_t first, size_t middle,
                       size_t end, comparison compare)
{
    size_t left = first, right = middle;

    for (size_t i = first; i < end; i++) {
        bool take_left = right == end || (left < middle && compare(from[left], from[right]) <= 0);
        to[i] = take_left ? from[left++] : from[right++];
    }
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

invar_status invar_sort(const void **items, size_t count, comparison compare)
{
    const void **from = items, **to, **swap;
    void *block;

    if (is_sorted(items, count, compare))
        return INVAR_OK;
    INVAR_TRY(invar_alloc(&block, count, sizeof *items, "sorting"));
    to = block;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t first = 0; first < count; first += 2 * width)
            merge_runs(to, from, first, min_size(first + width, count),
                       min_size(first + 2 * width, count), compare);
        swap = from;
        from = to;
        to = swap;
    }
    if (from != items)
        memcpy(items, from, count * sizeof *items);
    invar_free(block);
    return INVAR_OK;
}

invar_status invar_sort_items(void *items, size_t count, size_t size, comparison compare)
{
    const void **order = NULL;
    char *sorted = NULL;
    invar_status status = INVAR_ALLOC(order, count, "sorting");

    for (size_t i = 0; status == INVAR_OK && i < count; i++)
        order[i] = (char *)items + i * size;
    if (status == INVAR_OK)
        status = invar_sort(order, count, compare);
    if (status == INVAR_OK)
        status = INVAR_ALLOC_SIZED(sorted, count, size, "sorting");
    for (size_t i = 0; status == INVAR_OK && i < count; i++)
        memcpy(sorted + i * size, order[i], size);
    if (status == INVAR_OK && count > 0)
        memcpy(items, sorted, count * size);
    invar_free(sorted);
    invar_free(order);
    return status;
}

int64_t invar_binary_search(const void *rows, int64_t count, size_t row, size_t key_at, int64_t key)
{
    int64_t low = 0, high = count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2, found;

        memcpy(&found, (const char *)rows + (size_t)middle * row + key_at, sizeof found);
        if (found == key)
            return middle;
        if (found < key)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}
