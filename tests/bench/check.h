/*
 * check.h - compares a part of the result of an op on a GPU with the CPU's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_BENCH_CHECK_H
#define INVAR_TESTS_BENCH_CHECK_H

#include "cli/bench/bench.h"

/* Numbers of compared elements. */
typedef struct invar_bench_comparison {
    int64_t compared, different;
} invar_bench_comparison;

/* Runs the op of a case once on the GPU and a part of it on the CPU, and compares the bits. */
invar_status invar_bench_check(invar_bench_comparison *out, const invar_bench_case *c,
                               const invar_device *dev) INVAR_MUST_USE;

#endif
