/*
 * support.c - shared by all test programs: labels, assertions on statuses and bits, random numbers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/support.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/math/philox.h"

bool invar_test_full(void)
{
    const char *value = getenv("INVAR_TEST_FULL");
    return value && strcmp(value, "1") == 0;
}

int64_t invar_test_count(int64_t reduced, int64_t whole)
{
    return invar_test_full() ? whole : reduced;
}

void invar_assert_status(invar_status got, invar_status expected, const char *expr,
                         const char *file, int line)
{
    if (got == expected)
        return;
    print_error("%s: %s, expected %s: %s\n", expr, invar_status_name(got),
                invar_status_name(expected), invar_error_last()->message);
    _fail(file, line);
}

void invar_assert_message(const char *text, const char *file, int line)
{
    if (strstr(invar_error_last()->message, text))
        return;
    print_error("message \"%s\" does not contain \"%s\"\n", invar_error_last()->message, text);
    _fail(file, line);
}

/* Maps bits to an integer that counts representable values: a difference is a distance in ulp. */
static int64_t ordinal(uint32_t bits, uint32_t sign)
{
    return bits & sign ? -(int64_t)(bits & (sign - 1)) : (int64_t)bits;
}

static void report_bits(const char *what, int64_t different, int64_t count, int64_t index,
                        uint32_t got, uint32_t expected, uint32_t sign)
{
    fail_msg("%s: %" PRId64 " of %" PRId64 " words differ; first at %" PRId64 ": got %08" PRIx32
             ", expected %08" PRIx32 " (%" PRId64 " ulp)",
             what, different, count, index, got, expected,
             ordinal(got, sign) - ordinal(expected, sign));
}

void invar_assert_bits_f32(const float *got, const float *expected, int64_t count, const char *what)
{
    int64_t different = 0, first = -1;
    uint32_t a = 0, b = 0;

    for (int64_t i = 0; i < count; i++) {
        if (memcmp(&got[i], &expected[i], sizeof(float)) != 0 && different++ == 0)
            first = i;
    }
    if (different == 0)
        return;
    memcpy(&a, &got[first], sizeof a);
    memcpy(&b, &expected[first], sizeof b);
    report_bits(what, different, count, first, a, b, UINT32_C(0x80000000));
}

void invar_assert_bits_u16(const uint16_t *got, const uint16_t *expected, int64_t count,
                           const char *what)
{
    int64_t different = 0, first = -1;

    for (int64_t i = 0; i < count; i++) {
        if (got[i] != expected[i] && different++ == 0)
            first = i;
    }
    if (different != 0)
        report_bits(what, different, count, first, got[first], expected[first], 0x8000);
}

bool invar_bits_differ(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) != 0;
}

uint32_t invar_test_random(uint64_t seed, uint64_t n)
{
    uint32_t counter[4] = {(uint32_t)(n >> 2), (uint32_t)(n >> 34), 0, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];

    invar_philox4x32(out, counter, key);
    return out[n & 3];
}

float invar_test_normal(uint64_t seed, uint64_t n, float scale)
{
    float sum = 0.0f;

    for (uint64_t i = 0; i < 4; i++)
        sum += (float)(invar_test_random(seed, 4 * n + i) >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.7320508f * scale; // four uniforms have variance 1/3
}
