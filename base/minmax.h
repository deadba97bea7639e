/*
 * minmax.h - minimum and maximum of two 64-bit integers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_MINMAX_H
#define INVAR_BASE_MINMAX_H

#include <stdint.h>

static inline int64_t invar_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t invar_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
