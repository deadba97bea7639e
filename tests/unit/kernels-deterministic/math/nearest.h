/*
 * nearest.h - rounding to a small format by a search for the nearest value, as a test oracle.
 *
 * A format is the ascending list of its non-negative values in double; the index is the code. The
 * oracle returns the code of the nearest value, and of two equally near ones the even code. It
 * shares no code with the bit manipulation of the conversions.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_KERNELS_MATH_NEAREST_H
#define INVAR_TESTS_UNIT_KERNELS_MATH_NEAREST_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels-deterministic/math/portable.h"

typedef struct format {
    const double *value; /* (count) ascending; the last code also represents all larger values */
    int count;
} format;

/* True if `magnitude` rounds to a code above `code`. */
static inline bool rounds_higher(const format *f, int code, double magnitude)
{
    if (code + 1 >= f->count)
        return false;
    double middle = (f->value[code] + f->value[code + 1]) / 2.0; // exact
    return magnitude > middle || (magnitude == middle && code % 2 == 1);
}

/* Returns the code for `magnitude`. The search begins at `code`, which must not be too high. */
static inline int nearest_from(const format *f, int code, double magnitude)
{
    while (rounds_higher(f, code, magnitude))
        code++;
    return code;
}

static inline int nearest(const format *f, double magnitude)
{
    int low = 0, high = f->count - 1;

    while (low < high) {
        int middle = (low + high) / 2;
        if (rounds_higher(f, middle, magnitude))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Returns the value of a code with `fraction` fraction bits and exponent bias `bias`. */
static inline double decode(int code, int fraction, int bias)
{
    int exponent = code >> fraction;
    int significand = code & ((1 << fraction) - 1);

    if (exponent == 0)
        return ldexp(significand, 1 - bias - fraction);
    return ldexp(significand + (1 << fraction), exponent - bias - fraction);
}

/*
 * Counts the fp32 numbers, every step-th one of each sign, for which `convert` differs from the
 * nearest code with the sign bit `sign_bit` for negative inputs.
 */
static inline int64_t count_wrong_conversions(const format *f, uint32_t sign_bit, uint64_t step,
                                              uint32_t (*convert)(float))
{
    int64_t wrong = 0;
    int code = 0;

    for (uint64_t bits = 0; bits <= UINT32_C(0x7F800000); bits += step) {
        float x = invar_bits_f32((uint32_t)bits);
        code = nearest_from(f, code, (double)x);
        wrong += convert(x) != (uint32_t)code;
        wrong += convert(-x) != ((uint32_t)code | sign_bit);
    }
    return wrong;
}

/* Counts the NaNs, every step-th one of each sign, that `convert` does not map to `nan`. */
static inline int64_t count_wrong_nans(uint32_t nan, uint64_t step, uint32_t (*convert)(float))
{
    int64_t wrong = 0;

    for (uint64_t bits = UINT32_C(0x7F800001); bits <= UINT32_C(0x7FFFFFFF); bits += step) {
        wrong += convert(invar_bits_f32((uint32_t)bits)) != nan;
        wrong += convert(invar_bits_f32((uint32_t)bits | INVAR_SIGN_BIT)) != nan;
    }
    return wrong;
}

#endif
