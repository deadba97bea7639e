/*
 * step.c - the dot-step of numerics sm90 against what an H200 produced.
 *
 * tests/golden/step_vectors.bin holds inputs and outputs of the hardware, step_hashes.txt the hash
 * of its outputs over tiles that are made anew here (tests/step_tiles.h); both were written by
 * tests/gpu/tensorcore.cu. The reference and the production path (SIMD and portable) must agree
 * with the hardware on every output.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels-deterministic/math/fp8.h"
#include "kernels-deterministic/step/chain.h"
#include "kernels-deterministic/step/kernel.h"
#include "kernels-deterministic/step/simd.h"
#include "kernels-deterministic/step/step.h"
#include "tests/step_tiles.h"
#include "tests/support.h"

typedef uint32_t outputs[TILE_ROWS][TILE_COLS];

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

static void run_reference(outputs d, const step_tile *t, tile_form form)
{
    for (int i = 0; i < TILE_ROWS; i++)
        for (int j = 0; j < TILE_COLS; j++) {
            uint32_t c = t->c[i][j];
            for (int k = 0; k < t->k; k += form == TILE_BF16 ? INVAR_STEP_BF16 : INVAR_STEP_FP8) {
                uint8_t a[INVAR_STEP_FP8], b[INVAR_STEP_FP8];
                if (form == TILE_BF16) {
                    c = invar_step_sm90_bf16_ref(c, &t->a[i][k], &t->b[j][k]);
                    continue;
                }
                for (int p = 0; p < INVAR_STEP_FP8; p++) {
                    a[p] = (uint8_t)t->a[i][k + p];
                    b[p] = (uint8_t)t->b[j][k + p];
                }
                c = invar_step_sm90_e4m3_ref(c, a, b);
            }
            d[i][j] = c;
        }
}

/* The way of the ops: a chain over bf16 tensors. */
static void run_chain(outputs d, step_tile *t, invar_cpu_path path)
{
    invar_device dev = {.numerics = INVAR_NUMERICS_SM90, .cpu_path = path};
    invar_tensor a = invar_tensor_2d(t->a, INVAR_DTYPE_BF16, TILE_ROWS, t->k);
    invar_tensor b = invar_tensor_2d(t->b, INVAR_DTYPE_BF16, TILE_COLS, t->k);
    invar_chain_tile tile = {
        {&a, INVAR_CHAIN_ROWS, 0, 0}, {&b, INVAR_CHAIN_ROWS, 0, 0}, TILE_ROWS, TILE_COLS, t->k};
    float acc[TILE_ROWS][TILE_COLS];

    a.row_stride = b.row_stride = TILE_MAX_K;
    memcpy(acc, t->c, sizeof acc);
    invar_chain_run(&acc[0][0], TILE_COLS, &dev, &tile, workspace);
    memcpy(d, acc, sizeof acc);
}

/* An e4m3 chain of the ops starts at +0, so tiles with an accumulator go to the kernel itself. */
static void run_e4m3_kernel(outputs d, const step_tile *t, const invar_kernel *kernel)
{
    for (int i0 = 0; i0 < TILE_ROWS; i0 += kernel->rows) {
        float a[INVAR_KERNEL_MAX_ROWS * TILE_MAX_K], b[INVAR_KERNEL_MAX_COLS * TILE_MAX_K] = {0};
        int16_t a_exp[INVAR_KERNEL_MAX_ROWS * TILE_MAX_K];
        int16_t b_exp[INVAR_KERNEL_MAX_COLS * TILE_MAX_K];
        float acc[INVAR_KERNEL_MAX_ROWS * INVAR_KERNEL_MAX_COLS];
        int cols = kernel->cols < TILE_COLS ? kernel->cols : TILE_COLS;
        uint64_t mode;

        for (int j0 = 0; j0 < TILE_COLS; j0 += cols) {
            memset(acc, 0, sizeof acc);
            for (int p = 0; p < t->k; p++) {
                for (int i = 0; i < kernel->rows; i++) {
                    int at = p * kernel->rows + i;
                    a[at] = invar_f32_from_e4m3((uint8_t)t->a[i0 + i][p]);
                    a_exp[at] = invar_kernel_exponent(a[at], kernel->min_exp, INVAR_KERNEL_BIAS_A);
                }
                for (int j = 0; j < kernel->cols; j++) {
                    int at = p * kernel->cols + j;
                    b[at] = j < cols ? invar_f32_from_e4m3((uint8_t)t->b[j0 + j][p]) : 0.0f;
                    b_exp[at] = invar_kernel_exponent(b[at], kernel->min_exp, INVAR_KERNEL_BIAS_B);
                }
            }
            for (int i = 0; i < kernel->rows; i++)
                memcpy(acc + i * kernel->cols, &t->c[i0 + i][j0], (size_t)cols * sizeof *acc);
            mode = kernel->toward_zero ? invar_rounding_toward_zero() : 0;
            kernel->run(acc, kernel->cols, a, a_exp, b, b_exp, t->k);
            if (kernel->toward_zero)
                invar_rounding_restore(mode);
            for (int i = 0; i < kernel->rows; i++)
                memcpy(&d[i0 + i][j0], acc + i * kernel->cols, (size_t)cols * sizeof *acc);
        }
    }
}

static void check_tile(step_tile *t, tile_form form, const uint32_t *hardware, const char *what)
{
    outputs d;

    run_reference(d, t, form);
    if (hardware)
        invar_assert_bits_f32((const float *)d, (const void *)hardware, TILE_OUTPUTS, what);
    for (int path = 0; path < 2; path++) {
        outputs e;
        if (form == TILE_BF16)
            run_chain(e, t, (invar_cpu_path)path);
        else
            run_e4m3_kernel(e, t,
                            path == INVAR_CPU_PATH_SIMD ? &invar_kernel_sm90_e4m3_simd
                                                        : &invar_kernel_sm90_e4m3_portable);
        invar_assert_bits_f32((const float *)e, (const float *)d, TILE_OUTPUTS, what);
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
        tile_form form = (tile_form)head[0];
        step_tile t;
        outputs d;

        assert_true(head[0] < TILE_FORMS && head[1] < TILE_FAMILIES && head[2] <= TILE_MAX_K);
        memset(&t, 0, sizeof t);
        t.k = head[2];
        for (int i = 0; i < TILE_ROWS; i++)
            for (int p = 0; p < t.k; p++)
                read_exactly(&t.a[i][p], form == TILE_BF16 ? 2 : 1, f);
        for (int j = 0; j < TILE_COLS; j++)
            for (int p = 0; p < t.k; p++)
                read_exactly(&t.b[j][p], form == TILE_BF16 ? 2 : 1, f);
        read_exactly(t.c, sizeof t.c, f);
        read_exactly(d, sizeof d, f);
        check_tile(&t, form, &d[0][0], tile_family_names[head[1]]);
        tiles++;
    }
    fclose(f);
    assert_int_equal(tiles, TILE_FORMS * TILE_FAMILIES * 40);
}

/*
 * The step once more, in doubles and with its constants as parameters; finite bf16 only. Every
 * aligned term and their sum are integers below 2^53, so double arithmetic is exact.
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

/* Outputs of the recorded hardware that a rule gets wrong, over one-step tiles of finite values. */
static int count_wrong(const rule *r)
{
    static const int finite[] = {0, 1, 2, 3, 4, 6, 7, 9, 10};
    int wrong = 0;

    for (size_t f = 0; f < sizeof finite / sizeof *finite; f++)
        for (uint64_t n = 0; n < 40; n++) {
            step_tile t;
            outputs d;
            tile_make(&t, TILE_BF16, finite[f], n);
            run_reference(d, &t, TILE_BF16); // equal to the hardware: the first test says so
            for (int i = 0; i < TILE_ROWS; i++)
                for (int j = 0; j < TILE_COLS; j++) {
                    float c, expected;
                    double got;
                    memcpy(&c, &t.c[i][j], sizeof c);
                    memcpy(&expected, &d[i][j], sizeof expected);
                    got = (double)c;
                    for (int p = 0; p < INVAR_STEP_BF16; p += r->group)
                        got = model_step(got, &t.a[i][p], &t.b[j][p], r);
                    wrong += got != (double)expected;
                }
        }
    return wrong;
}

/* The constants of the step are what the hardware says they are, and no others. */
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

static void test_step__equals_hardware_hashes(void **state)
{
    FILE *f = fopen(INVAR_TEST_DATA "/golden/step_hashes.txt", "r");
    char form_name[8], family_name[16];
    uint64_t count, recorded;
    int lines = 0;

    (void)state;
    assert_non_null(f);
    while (fscanf(f, "%7s %15s %" SCNu64 " %" SCNx64, form_name, family_name, &count, &recorded) ==
           4) {
        tile_form form = strcmp(form_name, "bf16") == 0 ? TILE_BF16 : TILE_E4M3;
        int family = 0;
        uint64_t hash = 0;

        lines++;
        if (count > 2048 && !invar_test_full())
            continue;
        while (strcmp(tile_family_names[family], family_name) != 0)
            assert_true(++family < TILE_FAMILIES);
        for (uint64_t n = 0; n < count; n++) {
            step_tile t;
            outputs d;
            tile_make(&t, form, family, n);
            run_reference(d, &t, form);
            hash = tile_hash(hash, &d[0][0]);
            // the other paths on a part of them: all under full
            if (n < (uint64_t)invar_test_count(256, 65536))
                check_tile(&t, form, NULL, family_name);
        }
        if (hash != recorded)
            fail_msg("%s %s: hash %016" PRIx64 ", the hardware has %016" PRIx64, form_name,
                     family_name, hash, recorded);
    }
    fclose(f);
    assert_int_equal(lines, TILE_FORMS * TILE_FAMILIES * 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step__equals_recorded_hardware),
        cmocka_unit_test(test_step__hardware_settles_the_constants),
        cmocka_unit_test(test_step__equals_hardware_hashes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
