/*
 * bf16_values.h - table of all non-negative bf16 values, for the oracle in nearest.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_KERNELS_DETERMINISTIC_MATH_BF16_VALUES_H
#define INVAR_TESTS_UNIT_KERNELS_DETERMINISTIC_MATH_BF16_VALUES_H

#include "tests/unit/kernels-deterministic/math/nearest.h"

enum { INFINITE_CODE = 0x7F80, BF16_NAN = 0x7FFF };

static double values[INFINITE_CODE + 1];
static const format bf16 = {values, INFINITE_CODE + 1};

/* Fills the table. Group setup of the test programs. */
static inline int fill_values(void **state)
{
    (void)state;
    for (int code = 0; code <= INFINITE_CODE; code++)
        values[code] = decode(code, 7, 127); // infinity counts as 2^128
    return 0;
}

#endif
