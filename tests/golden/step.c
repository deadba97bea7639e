/*
 * step.c - the dot-step of numerics sm90 against recorded outputs of an H200.
 *
 * tests/golden/step_vectors.bin has inputs and outputs of the hardware, written by
 * tests/gpu/tensorcore.c. The reference and the kernels (SIMD and portable) must equal every
 * output. The test golden.step_sums does the same with hashes, for many more tiles. Negative
 * control: a step with any other constant differs from the hardware.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/step_run.h"
#include "tests/support.h"

static void *workspace;

static int set_up(void **state)
{
    (void)state;
    return invar_alloc(&workspace, 1, INVAR_CHAIN_WORKSPACE, "workspace") != INVAR_OK;
}

static int tear_down(void **state)
{
    (void)state;
    invar_free(workspace);
    return 0;
}

static void check_tile(invar_step_tile *t, invar_tile_form form, const uint32_t *hardware,
                       const char *what)
{
    tile_outputs d;

    tile_reference(d, t, form);
    invar_assert_bits_f32((const void *)d, (const void *)hardware, INVAR_TILE_OUTPUTS, what);
    for (int path = 0; path < 2; path++) {
        tile_product(d, t, form, (invar_cpu_path)path, workspace);
        invar_assert_bits_f32((const void *)d, (const void *)hardware, INVAR_TILE_OUTPUTS, what);
    }
}

static void read_exactly(void *data, size_t size, FILE *f)
{
    assert_int_equal(fread(data, size, 1, f), 1);
}

static void test_step__equals_recorded_hardware(void **state)
{
    FILE *f = fopen(INVAR_TEST_DATA "/golden/step_vectors.bin", "rb");
    uint8_t head[4];
    int tiles = 0;

    (void)state;
    assert_non_null(f);
    while (fread(head, sizeof head, 1, f) == 1) {
        invar_tile_form form = (invar_tile_form)head[0];
        invar_step_tile t;
        tile_outputs d;

        assert_true(head[0] < INVAR_TILE_FORMS && head[1] < INVAR_TILE_FAMILIES &&
                    head[2] <= INVAR_TILE_MAX_K);
        memset(&t, 0, sizeof t);
        t.k = head[2];
        for (int i = 0; i < INVAR_TILE_ROWS; i++)
            for (int p = 0; p < t.k; p++)
                read_exactly(&t.a[i][p], form == INVAR_TILE_BF16 ? 2 : 1, f);
        for (int j = 0; j < INVAR_TILE_COLS; j++)
            for (int p = 0; p < t.k; p++)
                read_exactly(&t.b[j][p], form == INVAR_TILE_BF16 ? 2 : 1, f);
        read_exactly(t.c, sizeof t.c, f);
        read_exactly(d, sizeof d, f);
        check_tile(&t, form, &d[0][0], invar_tile_family_names[head[1]]);
        tiles++;
    }
    fclose(f);
    assert_int_equal(tiles, INVAR_TILE_FORMS * INVAR_TILE_FAMILIES * 40);
}

/*
 * The constants of a dot-step, for a model of it in double arithmetic; finite bf16 only. Every
 * aligned term and their sum are integers below 2^53, so the arithmetic is exact.
 */
typedef struct rule {
    const char *name;
    int fraction, floor, group;
} rule;

static double model_round(double sum, int exponent)
{
    int x = 0;
    double value = ldexp(sum, exponent), ulp;

    if (sum == 0.0)
        return 0.0;
    frexp(value, &x); // value = f * 2^x, 1/2 <= |f| < 1
    if (x - 1 >= 128)
        return value < 0 ? -HUGE_VAL : HUGE_VAL;
    ulp = ldexp(1.0, (x - 1 > -126 ? x - 1 : -126) - 23);
    return trunc(value / ulp) * ulp;
}

static double bf16_value(uint16_t bits, int *exponent)
{
    uint32_t word = (uint32_t)bits << 16;
    int field = bits >> 7 & 0xFF;
    float value;

    memcpy(&value, &word, sizeof value);
    *exponent = field == 0 ? -126 : field - 127;
    return (double)value;
}

static double model_step(double c, const uint16_t *a, const uint16_t *b, const rule *r)
{
    double products[INVAR_STEP_BF16], sum;
    int largest = r->floor, c_exponent;

    for (int p = 0; p < r->group; p++) {
        int ea, eb;
        products[p] = bf16_value(a[p], &ea) * bf16_value(b[p], &eb);
        if (products[p] != 0.0 && ea + eb > largest)
            largest = ea + eb;
    }
    if (c != 0.0) {
        frexp(c, &c_exponent);
        c_exponent = c_exponent - 1 > -126 ? c_exponent - 1 : -126;
        largest = c_exponent > largest ? c_exponent : largest;
    }
    sum = trunc(ldexp(c, r->fraction - largest));
    for (int p = 0; p < r->group; p++)
        sum += trunc(ldexp(products[p], r->fraction - largest));
    return model_round(sum, largest - r->fraction);
}

/* Counts the outputs that a rule gets wrong, over one-step tiles of finite values. */
static int count_wrong(const rule *r)
{
    static const int finite[] = {0, 1, 2, 3, 4, 6, 7, 9, 10};
    int wrong = 0;

    for (size_t f = 0; f < sizeof finite / sizeof *finite; f++)
        for (uint64_t n = 0; n < 40; n++) {
            invar_step_tile t;
            tile_outputs d;
            invar_tile_make(&t, INVAR_TILE_BF16, finite[f], n);
            tile_reference(d, &t, INVAR_TILE_BF16); // equals the hardware, by the first test
            for (int i = 0; i < INVAR_TILE_ROWS; i++)
                for (int j = 0; j < INVAR_TILE_COLS; j++) {
                    float c, expected;
                    double actual;
                    memcpy(&c, &t.c[i][j], sizeof c);
                    memcpy(&expected, &d[i][j], sizeof expected);
                    actual = (double)c;
                    for (int p = 0; p < INVAR_STEP_BF16; p += r->group)
                        actual = model_step(actual, &t.a[i][p], &t.b[j][p], r);
                    wrong += actual != (double)expected;
                }
        }
    return wrong;
}

/* The constants of the step give the outputs of the hardware, and no other tested constants do. */
static void test_step__hardware_settles_the_constants(void **state)
{
    static const rule ours = {"F 25, floor -133, groups of 16", 25, -133, 16};
    static const rule others[] = {
        {"F 24", 24, -133, 16},       {"F 26", 26, -133, 16},       {"floor -126", 25, -126, 16},
        {"floor -132", 25, -132, 16}, {"floor -134", 25, -134, 16}, {"no floor", 25, -1000, 16},
        {"groups of 8", 25, -133, 8},
    };

    (void)state;
    assert_int_equal(count_wrong(&ours), 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (count_wrong(&others[i]) == 0)
            fail_msg("%s: not told apart from the hardware", others[i].name);
}

static uint16_t power_of_two(int exponent)
{
    return (uint16_t)((exponent + 127) << 7);
}

/*
 * Zeros are multiplied by 2^0 to 2^127, and the other products are near the smallest exponent that
 * the SIMD kernels cover: the product of a zero must not contribute an exponent.
 */
static void test_step__zeros_beside_large_and_tiny(void **state)
{
    (void)state;
    for (int large = 0; large < 128; large++) {
        invar_step_tile t = {.k = INVAR_STEP_BF16};
        tile_outputs d;

        for (int p = 0; p < t.k; p++) {
            bool zero = p % 4 == 0;
            for (int i = 0; i < INVAR_TILE_ROWS; i++)
                t.a[i][p] = (uint16_t)(zero ? 0 : power_of_two(-56 - i) | 0x40 | (p & 1) << 15);
            for (int j = 0; j < INVAR_TILE_COLS; j++)
                t.b[j][p] = zero ? power_of_two(large) : (uint16_t)(power_of_two(-35 - j) | 5 * p);
        }
        tile_reference(d, &t, INVAR_TILE_BF16);
        check_tile(&t, INVAR_TILE_BF16, &d[0][0], "zeros beside large and tiny operands");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step__equals_recorded_hardware),
        cmocka_unit_test(test_step__hardware_settles_the_constants),
        cmocka_unit_test(test_step__zeros_beside_large_and_tiny),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
