/*
 * rope.c - tests of the RoPE tables and rotation against plain loops, float64 and libm.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>

#include "kernels-deterministic/math/elementary_f64.h"
#include "tests/ops.h"

/* Parameters of Llama 3.1. */
static const invar_rope_table_args llama3 = {.theta = 500000.0,
                                             .scaling = INVAR_ROPE_LLAMA3,
                                             .factor = 8.0,
                                             .low_freq_factor = 1.0,
                                             .high_freq_factor = 4.0,
                                             .original_context = 8192.0};

static const invar_rope_table_args plain = {.theta = 10000.0};

/* Allocates the tables; free them with table_free. */
static invar_rope_table_args table_new(invar_rope_table_args a, int64_t positions, int64_t half)
{
    a.cosine = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, positions, half), 2);
    a.sine = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, positions, half), 2);
    return a;
}

static void table_free(invar_rope_table_args *a)
{
    invar_test_free(&a->cosine, &a->sine);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Scales one frequency, as _compute_llama3_parameters of transformers does, line by line. */
static double scaled_ref(const invar_rope_table_args *a, double inv_freq)
{
    double low_freq_wavelen = a->original_context / a->low_freq_factor;
    double high_freq_wavelen = a->original_context / a->high_freq_factor;
    double wavelen = 2 * 3.141592653589793 / inv_freq, smooth_factor;
    double inv_freq_llama = wavelen > low_freq_wavelen ? inv_freq / a->factor : inv_freq;

    if (a->scaling == INVAR_ROPE_DEFAULT)
        return inv_freq;
    smooth_factor = (a->original_context / wavelen - a->low_freq_factor) /
                    (a->high_freq_factor - a->low_freq_factor);
    if (!(wavelen < high_freq_wavelen) && !(wavelen > low_freq_wavelen))
        return (1 - smooth_factor) * inv_freq_llama / a->factor + smooth_factor * inv_freq_llama;
    return inv_freq_llama;
}

static void test_rope_table__bits_match_reference(void **state)
{
    enum { P = 300 };
    const invar_device *devices = *state;

    for (int i = 0; i < 8; i++) {
        int64_t half = INT64_C(1) << i / 2 * 2;
        invar_rope_table_args a = table_new(i % 2 ? llama3 : plain, P, half);
        invar_rope_table_args expected = table_new(a, P, half);

        assert_ok(invar_rope_table(&devices[i % INVAR_TEST_DEVICES], &a));
        for (int64_t j = 0; j < half; j++) {
            double exponent = -2.0 * (double)j / (double)(2 * half);
            double frequency = scaled_ref(&a, invar_pow_f64(a.theta, exponent));
            for (int64_t p = 0; p < P; p++) {
                double angle = (double)p * frequency;
                invar_test_set(&expected.cosine, p, j, (float)invar_cos_f64(angle));
                invar_test_set(&expected.sine, p, j, (float)invar_sin_f64(angle));
            }
        }
        invar_assert_bits_tensor(&a.cosine, &expected.cosine, "rope.table: cosine");
        invar_assert_bits_tensor(&a.sine, &expected.sine, "rope.table: sine");
        table_free(&a);
        table_free(&expected);
    }
}

/* Comparison with libm, an independent implementation, up to large positions. */
static void test_rope_table__accuracy_vs_libm(void **state)
{
    enum { HALF = 64 };
    int64_t positions = invar_test_count(2000, 131072);

    for (int s = 0; s < 2; s++) {
        invar_rope_table_args a = table_new(s ? llama3 : plain, positions, HALF);

        assert_ok(invar_rope_table(*state, &a));
        for (int64_t i = 0; i < HALF; i++) {
            double frequency = scaled_ref(&a, pow(a.theta, -2.0 * (double)i / (2 * HALF)));
            for (int64_t p = 0; p < positions; p++) {
                double angle = (double)p * frequency;
                // half an ulp of 1, plus an error of the frequency times a large position
                double bound = 0x1p-25 + 0x1p-51 * angle;
                assert_true(fabs((double)invar_test_get(&a.cosine, p, i) - cos(angle)) <= bound);
                assert_true(fabs((double)invar_test_get(&a.sine, p, i) - sin(angle)) <= bound);
            }
        }
        table_free(&a);
    }
}

/* Frequencies of Llama 3.1, from the formula in 60-digit decimal arithmetic. */
static void test_rope_table__llama3_bands(void **state)
{
    static const struct {
        int index;
        double frequency;
    } known[] = {
        {0, 1.0},
        {28, 3.21144599475259102e-3}, // last of the short waves, which are not scaled
        {29, 2.16657076350335861e-3},
        {34, 1.78507812767996419e-4},
        {35, 9.55621235396468302e-5}, // first of the long waves, which are scaled by the factor
        {63, 3.06892598891451109e-7},
    };
    invar_rope_table_args a = table_new(llama3, 2, 64);

    assert_ok(invar_rope_table(*state, &a));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        double sine = (double)invar_test_get(&a.sine, 1, known[i].index);
        assert_true(fabs(asin(sine) / known[i].frequency - 1.0) < 1e-6);
    }
    table_free(&a);
}

/* ---- rotation -------------------------------------------------------------------------------- */

enum { T = 50, H = 3, P = 100 };

typedef struct rotation {
    invar_rope_fwd_args args;
    invar_rope_table_args table;
} rotation;

static rotation rotation_new(const invar_device *dev, invar_dtype dtype, int64_t d)
{
    rotation r = {.table = table_new(plain, P, d / 2)};

    assert_ok(invar_rope_table(dev, &r.table));
    r.args.y = invar_test_strided(invar_tensor_3d(NULL, dtype, T, H, d), 3);
    r.args.x = invar_test_strided(invar_tensor_3d(NULL, dtype, T, H, d), 1);
    r.args.positions = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_I32, T));
    r.args.cosine = r.table.cosine;
    r.args.sine = r.table.sine;
    invar_test_fill_normal(&r.args.x, 1, 1.0f);
    invar_test_fill_index(&r.args.positions, 2, P);
    return r;
}

static void rotation_free(rotation *r)
{
    invar_test_free(&r->args.y, &r->args.x, &r->args.positions);
    table_free(&r->table);
}

static void rotate_ref(const invar_rope_fwd_args *a, bool backward)
{
    int64_t half = a->x.shape[2] / 2;

    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < H * half; i++) {
            int64_t j = i % half, col = i / half * 2 * half + j;
            int64_t position = ((int32_t *)a->positions.data)[t];
            float c = invar_test_get(&a->cosine, position, j);
            float s = invar_test_get(&a->sine, position, j);
            float x1 = invar_test_get(&a->x, t, col), x2 = invar_test_get(&a->x, t, col + half);
            float y1 = backward ? fmaf(x1, c, x2 * s) : fmaf(x1, c, -(x2 * s));
            float y2 = backward ? fmaf(x2, c, -(x1 * s)) : fmaf(x2, c, x1 * s);
            invar_test_set(&a->y, t, col, y1);
            invar_test_set(&a->y, t, col + half, y2);
        }
}

static invar_status rotate(const invar_device *dev, const invar_rope_fwd_args *a, bool backward)
{
    return backward ? invar_rope_bwd(dev, a) : invar_rope_fwd(dev, a);
}

static void test_rope__bits_match_reference(void **state)
{
    static const int64_t dims[] = {2, 64, 128, 300};

    for (int i = 0; i < 16; i++) {
        bool backward = i & 1;
        rotation got = rotation_new(*state, invar_test_storage[i >> 1 & 1], dims[i >> 2]);
        rotation expected = rotation_new(*state, invar_test_storage[i >> 1 & 1], dims[i >> 2]);

        assert_ok(rotate(*state, &got.args, backward));
        rotate_ref(&expected.args, backward);
        invar_assert_bits_tensor(&got.args.y, &expected.args.y, backward ? "rope.bwd" : "rope.fwd");
        // in place
        invar_test_free(&got.args.y);
        got.args.y = got.args.x;
        assert_ok(rotate(*state, &got.args, backward));
        invar_assert_bits_tensor(&got.args.x, &expected.args.y, "in place");
        got.args.y = (invar_tensor){0};
        rotation_free(&got);
        rotation_free(&expected);
    }
}

static void test_rope__accuracy_vs_f64(void **state)
{
    static const double rounding[2] = {0x1p-23, 0x1.01p-8};
    enum { D = 64, HALF = D / 2 };
    double *exact = malloc(T * H * D * sizeof *exact);

    for (int i = 0; i < 4; i++) {
        bool backward = i & 1;
        rotation r = rotation_new(*state, invar_test_storage[i >> 1], D);

        for (int64_t k = 0; k < T * H * HALF; k++) {
            int64_t t = k / (H * HALF), j = k % HALF, col = k / HALF % H * D + j;
            double angle = ((int32_t *)r.args.positions.data)[t] * pow(10000.0, -(double)j / HALF);
            double c = cos(angle), s = backward ? -sin(angle) : sin(angle);
            double x1 = (double)invar_test_get(&r.args.x, t, col);
            double x2 = (double)invar_test_get(&r.args.x, t, col + HALF);
            exact[t * H * D + col] = x1 * c - x2 * s;
            exact[t * H * D + col + HALF] = x2 * c + x1 * s;
        }
        assert_ok(rotate(*state, &r.args, backward));
        invar_assert_close(&r.args.y, exact, rounding[i >> 1], 0x1p-21, "rope");
        rotation_free(&r);
    }
    free(exact);
}

/* The rotation is linear, so its gradient is its transpose: dy . R x = R^T dy . x. */
static void test_rope__backward_is_the_transpose(void **state)
{
    enum { D = 64 };
    rotation fwd = rotation_new(*state, INVAR_DTYPE_F32, D),
             bwd = rotation_new(*state, INVAR_DTYPE_F32, D);
    double left = 0.0, right = 0.0;

    invar_test_fill_normal(&bwd.args.x, 5, 1.0f);
    assert_ok(invar_rope_fwd(*state, &fwd.args));
    assert_ok(invar_rope_bwd(*state, &bwd.args));
    for (int t = 0; t < T; t++)
        for (int i = 0; i < H * D; i++) {
            left += (double)invar_test_get(&bwd.args.x, t, i) *
                    (double)invar_test_get(&fwd.args.y, t, i);
            right += (double)invar_test_get(&bwd.args.y, t, i) *
                     (double)invar_test_get(&fwd.args.x, t, i);
        }
    assert_true(fabs(left) > 1.0 && fabs(left - right) < 1e-4);
    rotation_free(&fwd);
    rotation_free(&bwd);
}

/* ---- bad arguments --------------------------------------------------------------------------- */

static void test_rope_table__rejects_bad_arguments(void **state)
{
    invar_rope_table_args good = table_new(llama3, 4, 8), a;

#define REFUSED_WITH(change, text)                                                                 \
    do {                                                                                           \
        a = good;                                                                                  \
        a.change;                                                                                  \
        assert_invalid(invar_rope_table(*state, &a), text);                                        \
    } while (0)
    REFUSED_WITH(cosine.dtype = INVAR_DTYPE_BF16, "rope.table: cosine: type bf16");
    REFUSED_WITH(sine.shape[1] = 7, "rope.table: sine: extent 7");
    REFUSED_WITH(cosine.shape[0] = a.sine.shape[0] = 1 << 22, "rope.table: cosine: 4194304");
    REFUSED_WITH(theta = 0.5, "rope.table: theta: 0.5");
    REFUSED_WITH(theta = NAN, "rope.table: theta: nan");
    REFUSED_WITH(theta = INFINITY, "rope.table: theta: inf");
    REFUSED_WITH(scaling = (invar_rope_scaling)7, "rope.table: scaling: 7");
    REFUSED_WITH(factor = 0.5, "rope.table: factor: 0.5");
    REFUSED_WITH(low_freq_factor = 0.0, "rope.table: low_freq_factor: 0");
    REFUSED_WITH(high_freq_factor = 1.0, "rope.table: high_freq_factor: 1; expected more than");
    REFUSED_WITH(original_context = 0.0, "rope.table: original_context: 0");
    table_free(&good);
}

static void test_rope__rejects_bad_arguments(void **state)
{
    float data[64] = {0};
    uint16_t half[64] = {0};
    int32_t index[4] = {0, 1, 2, 3};
    invar_tensor x = invar_tensor_3d(data, INVAR_DTYPE_F32, 4, 2, 8), none = {0};
    invar_tensor x16 = invar_tensor_3d(half, INVAR_DTYPE_BF16, 4, 2, 8);
    invar_tensor odd = invar_tensor_3d(data, INVAR_DTYPE_F32, 4, 2, 7);
    invar_tensor positions = invar_tensor_1d(index, INVAR_DTYPE_I32, 4);
    invar_tensor c = invar_tensor_2d(data, INVAR_DTYPE_F32, 3, 4);
    invar_tensor wide = invar_tensor_2d(data, INVAR_DTYPE_F32, 4, 8);

#define FWD(...) invar_rope_fwd(*state, &(invar_rope_fwd_args){__VA_ARGS__})
#define BWD(...) invar_rope_bwd(*state, &(invar_rope_bwd_args){__VA_ARGS__})
    assert_invalid(FWD(none, x, positions, c, c), "rope.fwd: y is none but x is f32");
    assert_invalid(FWD(x16, x, positions, c, c), "rope.fwd: y is bf16 but x is f32");
    assert_invalid(FWD(odd, odd, positions, c, c), "rope.fwd: x: 7 values a head");
    assert_invalid(FWD(x, x, positions, c, c),
                   "rope.fwd: positions: value 3 in row 3; expected 0 to 2");
    assert_invalid(BWD(x, x, positions, c, c), "rope.bwd: positions: value 3");
    assert_invalid(BWD(x, x, positions, wide, wide),
                   "rope.bwd: cosine: extent 8 of index 1; expected 4");
    assert_invalid(BWD(x, x, positions, c, wide), "rope.bwd: sine: extent");
    assert_invalid(BWD(x, x, c, c, c), "rope.bwd: positions: type f32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope_table__bits_match_reference),
        cmocka_unit_test(test_rope_table__accuracy_vs_libm),
        cmocka_unit_test(test_rope_table__llama3_bands),
        cmocka_unit_test(test_rope__bits_match_reference),
        cmocka_unit_test(test_rope__accuracy_vs_f64),
        cmocka_unit_test(test_rope__backward_is_the_transpose),
        cmocka_unit_test(test_rope_table__rejects_bad_arguments),
        cmocka_unit_test(test_rope__rejects_bad_arguments),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
