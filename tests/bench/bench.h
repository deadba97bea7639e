/*
 * bench.h - shared by the benchmark programs: a clock, and an exit if a call fails.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_BENCH_BENCH_H
#define INVAR_TESTS_BENCH_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/status.h"

/* Ends the program unless the expression is INVAR_OK. */
#define DO(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != INVAR_OK)                                                                    \
            die(#expr);                                                                            \
    } while (0)

static inline void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, invar_error_last()->message);
    exit(2);
}

static inline double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

#endif
