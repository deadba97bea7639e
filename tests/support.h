/*
 * support.h - shared by all test programs: labels, assertions on statuses and bits, random numbers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_SUPPORT_H
#define INVAR_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"

/* Returns true under the label `full`: complete sweeps instead of reduced ones. */
bool invar_test_full(void);

/* Returns `reduced` under the label `default`, `whole` under `full`. */
int64_t invar_test_count(int64_t reduced, int64_t whole);

/* Fails the test with the error record's message unless `expr` is INVAR_OK. */
#define assert_ok(expr) invar_assert_status((expr), INVAR_OK, #expr, __FILE__, __LINE__)

/* Fails the test unless `expr` returns `code` and the message contains `text`. */
#define assert_fails(expr, code, text)                                                             \
    do {                                                                                           \
        invar_assert_status((expr), (code), #expr, __FILE__, __LINE__);                            \
        invar_assert_message((text), __FILE__, __LINE__);                                          \
    } while (0)

/*
 * Message about a program that cannot be started. With TSan's vfork, which may be a fork, a child
 * that cannot execute the program can appear as one that ends with 127, so any message is accepted.
 */
#ifdef __SANITIZE_THREAD__
#define INVAR_TEST_CANNOT_START(text) ""
#else
#define INVAR_TEST_CANNOT_START(text) "cannot start " text
#endif

void invar_assert_status(invar_status got, invar_status expected, const char *expr,
                         const char *file, int line);
void invar_assert_message(const char *text, const char *file, int line);

/*
 * Fails unless all bits are equal; reports the number of differences, the first index, both words
 * in hex, and their distance in ulp.
 */
void invar_assert_bits_f32(const float *got, const float *expected, int64_t count,
                           const char *what);
void invar_assert_bits_u16(const uint16_t *got, const uint16_t *expected, int64_t count,
                           const char *what);

/* Returns whether at least one byte differs, for negative controls. */
bool invar_bits_differ(const void *a, const void *b, size_t bytes);

/* Returns the n-th random word of a test stream (Philox); streams differ by seed. */
uint32_t invar_test_random(uint64_t seed, uint64_t n);

/* Returns the n-th approximately normal float (a sum of uniforms) of a stream, times `scale`. */
float invar_test_normal(uint64_t seed, uint64_t n, float scale);

#endif
