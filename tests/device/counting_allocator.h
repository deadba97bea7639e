/*
 * counting_allocator.h - device memory on the heap, counted and limited, for tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_DEVICE_COUNTING_ALLOCATOR_H
#define INVAR_TESTS_DEVICE_COUNTING_ALLOCATOR_H

#include <string.h>

#include "base/alloc.h"
#include "kernels-deterministic/device.h"

/* Bytes allocated now, their maximum, and the limit. */
static struct {
    size_t taken, most, limit;
    int64_t takes;
} invar_counting_allocator = {.limit = SIZE_MAX};

static inline invar_status invar_counting_allocator_alloc(const invar_device *dev, void **out,
                                                          size_t bytes, const char *what)
{
    char *block = NULL;

    (void)dev;
    invar_counting_allocator.takes++;
    if (bytes > invar_counting_allocator.limit ||
        invar_counting_allocator.taken > invar_counting_allocator.limit - bytes)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "%s: the test has no more memory", what);
    INVAR_TRY(INVAR_ALLOC(block, bytes + INVAR_ALIGN, what));
    memcpy(block, &bytes, sizeof bytes);
    invar_counting_allocator.taken += bytes;
    if (invar_counting_allocator.taken > invar_counting_allocator.most)
        invar_counting_allocator.most = invar_counting_allocator.taken;
    *out = block + INVAR_ALIGN;
    return INVAR_OK;
}

static inline void invar_counting_allocator_free(const invar_device *dev, void *block)
{
    size_t bytes;

    (void)dev;
    if (!block)
        return;
    memcpy(&bytes, (char *)block - INVAR_ALIGN, sizeof bytes);
    invar_counting_allocator.taken -= bytes;
    invar_free((char *)block - INVAR_ALIGN);
}

#endif
