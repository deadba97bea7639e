/*
 * support.h - what every test program shares.
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

/* True under the label `full`: whole sweeps instead of reduced ones. */
bool invar_test_full(void);

/* `reduced` under the label `default`, `whole` under `full`. */
int64_t invar_test_count(int64_t reduced, int64_t whole);

/* Fails the test with the error record's message unless `expr` is INVAR_OK. */
#define assert_ok(expr) invar_assert_status((expr), INVAR_OK, #expr, __FILE__, __LINE__)

/* Fails the test unless `expr` yields `code` and the message contains `text`. */
#define assert_fails(expr, code, text)                                                             \
    do {                                                                                           \
        invar_assert_status((expr), (code), #expr, __FILE__, __LINE__);                            \
        invar_assert_message((text), __FILE__, __LINE__);                                          \
    } while (0)

/*
 * What a message says of a program that does not start. TSan's vfork is a fork: there a child that
 * cannot become the program looks like one that ends with 127.
 */
#ifdef __SANITIZE_THREAD__
#define INVAR_TEST_CANNOT_START(text) "exit code 127"
#else
#define INVAR_TEST_CANNOT_START(text) "cannot start " text
#endif

void invar_assert_status(invar_status got, invar_status expected, const char *expr,
                         const char *file, int line);
void invar_assert_message(const char *text, const char *file, int line);

/* Equal bits, or a report: how many differ, the first index, both in hex, the distance in ulp. */
void invar_assert_bits_f32(const float *got, const float *expected, int64_t count,
                           const char *what);
void invar_assert_bits_u16(const uint16_t *got, const uint16_t *expected, int64_t count,
                           const char *what);

/* For negative controls: true when at least one word differs. */
bool invar_bits_differ(const void *a, const void *b, size_t bytes);

/* The n-th random word of a test stream; streams differ by seed. Philox underneath. */
uint32_t invar_test_random(uint64_t seed, uint64_t n);

/* The n-th standard-normal-like float (sum of uniforms), scaled by `scale`. */
float invar_test_normal(uint64_t seed, uint64_t n, float scale);

#endif
