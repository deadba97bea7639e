/*
 * linear_fused.c - tests that linear.fwd with a residual, several outputs or an activation has the
 * bits of the separate ops.
 *
 * Control: adding the residual to the unrounded product gives other bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/formats.h"

enum { T = 37, N = 256, K = 384, ATOM = 128, OTHER = 128 };

/* An input x, three linear layers, and their results by separate calls. */
typedef struct fixture {
    const char *name;
    invar_device dev;
    int32_t k_shards; /* logical shards of K, which has three atoms, so they differ in length */
    invar_tensor x;
    invar_linear_output layer[INVAR_LINEAR_MAX_PARTS]; /* the first two have N outputs */
    invar_tensor residual, sum, act;
} fixture;

static invar_tensor make_operand(const invar_device *dev, const invar_test_format *f,
                                 invar_dtype dtype, int64_t rows, bool weight, uint64_t seed)
{
    invar_tensor plain = invar_test_normal_2d(f->storage, rows, K, seed), q;

    q = invar_test_quantized(dev, &plain, dtype, weight);
    invar_test_free(&plain);
    return q;
}

static invar_tensor make_output(invar_dtype dtype, int64_t cols)
{
    return invar_test_strided(invar_tensor_2d(NULL, dtype, T, cols), 5);
}

/* Runs the layers, the addition and the activation by separate calls. */
static void run_separately(fixture *f)
{
    for (int i = 0; i < INVAR_LINEAR_MAX_PARTS; i++) {
        const invar_linear_output *l = &f->layer[i];
        assert_ok(invar_linear_fwd(&f->dev, &(invar_linear_fwd_args){.y = l->y,
                                                                     .x = f->x,
                                                                     .w = l->w,
                                                                     .bias = l->bias,
                                                                     .k_shards = f->k_shards,
                                                                     .k_atom = ATOM}));
    }
    assert_ok(
        invar_add(&f->dev, &(invar_add_args){.out = f->sum, .a = f->residual, .b = f->layer[0].y}));
    assert_ok(invar_swiglu_fwd(
        &f->dev,
        &(invar_swiglu_fwd_args){.y = f->act, .gate = f->layer[0].y, .up = f->layer[1].y}));
}

static void set_up(fixture *f, const invar_test_format *format, invar_numerics numerics,
                   invar_dtype out, int32_t k_shards)
{
    *f = (fixture){.name = format->name, .k_shards = k_shards};
    invar_test_device_init(&f->dev, numerics, INVAR_CPU_PATH_SIMD, 2);
    f->x = make_operand(&f->dev, format, format->x, T, false, 1);
    for (int i = 0; i < INVAR_LINEAR_MAX_PARTS; i++) {
        int64_t cols = i < 2 ? N : OTHER;
        f->layer[i].w = make_operand(&f->dev, format, format->w, cols, true, 2 + (uint64_t)i);
        f->layer[i].y = make_output(out, cols);
        if (i == 1)
            continue;
        f->layer[i].bias = invar_test_tensor(invar_tensor_1d(NULL, format->storage, cols));
        invar_test_fill_normal(&f->layer[i].bias, 8, 1.0f);
    }
    f->residual = make_output(out, N);
    invar_test_fill_normal(&f->residual, 9, 10.0f);
    f->sum = make_output(out, N);
    f->act = make_output(out, N);
    run_separately(f);
}

static void tear_down(fixture *f)
{
    for (int i = 0; i < INVAR_LINEAR_MAX_PARTS; i++)
        invar_test_free(&f->layer[i].w, &f->layer[i].y, &f->layer[i].bias);
    invar_test_free(&f->x, &f->residual, &f->sum, &f->act);
    invar_test_device_release(&f->dev);
}

/* Returns arguments for the first layer of the fixture and `more` further ones. */
static invar_linear_fwd_args fused_args(const fixture *f, int32_t more)
{
    invar_linear_fwd_args a = {.y = make_output(f->act.dtype, N),
                               .x = f->x,
                               .w = f->layer[0].w,
                               .bias = f->layer[0].bias,
                               .k_shards = f->k_shards,
                               .k_atom = ATOM,
                               .n_more = more};

    for (int32_t i = 0; i < more; i++) {
        a.more[i] = f->layer[i + 1];
        a.more[i].y = make_output(f->act.dtype, f->layer[i + 1].y.shape[1]);
    }
    return a;
}

static void free_fused_args(invar_linear_fwd_args *a)
{
    invar_test_free(&a->y, &a->more[0].y, &a->more[1].y, &a->act);
}

static void check_residual(fixture *f)
{
    invar_linear_fwd_args a = fused_args(f, 0);

    a.residual = f->residual;
    assert_ok(invar_linear_fwd(&f->dev, &a));
    invar_assert_bits_tensor(&a.y, &f->sum, f->name);
    free_fused_args(&a);
}

static void check_more(fixture *f)
{
    for (int32_t more = 1; more < INVAR_LINEAR_MAX_PARTS; more++) {
        invar_linear_fwd_args a = fused_args(f, more);
        assert_ok(invar_linear_fwd(&f->dev, &a));
        invar_assert_bits_tensor(&a.y, &f->layer[0].y, f->name);
        for (int32_t i = 0; i < more; i++)
            invar_assert_bits_tensor(&a.more[i].y, &f->layer[i + 1].y, f->name);
        free_fused_args(&a);
    }
}

static void check_act(fixture *f)
{
    invar_linear_fwd_args a = fused_args(f, 1), act_only;

    a.act = make_output(f->act.dtype, N);
    act_only = a;
    assert_ok(invar_linear_fwd(&f->dev, &a));
    invar_assert_bits_tensor(&a.act, &f->act, f->name);
    invar_assert_bits_tensor(&a.y, &f->layer[0].y, f->name);
    invar_assert_bits_tensor(&a.more[0].y, &f->layer[1].y, f->name);
    invar_test_fill(&a.act, 0.0f);
    act_only.y = act_only.more[0].y = (invar_tensor){0};
    assert_ok(invar_linear_fwd(&f->dev, &act_only));
    invar_assert_bits_tensor(&a.act, &f->act, f->name);
    free_fused_args(&a);
}

static void for_all(void (*check)(fixture *f))
{
    for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++)
        for (int i = 0; i < INVAR_TEST_FORMATS; i++)
            for (int out = 0; out < 2; out++) {
                fixture f;
                set_up(&f, &invar_test_formats[i], (invar_numerics)numerics,
                       out ? INVAR_DTYPE_F32 : INVAR_DTYPE_BF16, out == numerics ? 1 : 8);
                check(&f);
                tear_down(&f);
            }
}

static void test_fused__residual_is_add(void **state)
{
    (void)state;
    for_all(check_residual);
}

static void test_fused__more_outputs_are_more_calls(void **state)
{
    (void)state;
    for_all(check_more);
}

static void test_fused__act_is_swiglu(void **state)
{
    (void)state;
    for_all(check_act);
}

/* Control: the sum with the product in f32 differs, so the op rounds the product first. */
static void test_fused__rounds_before_the_residual(void **state)
{
    fixture f;
    invar_tensor exact;
    int64_t differ = 0;

    (void)state;
    set_up(&f, &invar_test_formats[1], INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 1);
    exact = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, T, N));
    assert_ok(invar_linear_fwd(
        &f.dev,
        &(invar_linear_fwd_args){
            .y = exact, .x = f.x, .w = f.layer[0].w, .bias = f.layer[0].bias, .k_shards = 1}));
    for (int64_t i = 0; i < T; i++)
        for (int64_t j = 0; j < N; j++) {
            invar_test_set(&f.layer[0].y, i, j,
                           invar_test_get(&f.residual, i, j) + invar_test_get(&exact, i, j));
            differ += invar_test_get(&f.layer[0].y, i, j) != invar_test_get(&f.sum, i, j);
        }
    assert_true(differ > 0);
    invar_test_free(&exact);
    tear_down(&f);
}

static void test_fused__rejects_bad_arguments(void **state)
{
    fixture f;
    invar_linear_fwd_args good, bad;

    (void)state;
    set_up(&f, &invar_test_formats[1], INVAR_NUMERICS_IEEE, INVAR_DTYPE_BF16, 1);
    good = fused_args(&f, 1);
    good.act = make_output(INVAR_DTYPE_BF16, N);
#define REFUSED(words) assert_fails(invar_linear_fwd(&f.dev, &bad), INVAR_E_INVALID, words)
    assert_ok(invar_linear_fwd(&f.dev, &good));
    bad = good, bad.n_more = 3;
    REFUSED("linear.fwd: n_more: 3; expected 0 to 2");
    bad = good, bad.n_more = 0;
    REFUSED("linear.fwd: act: needs two outputs; got 1");
    bad = good, bad.residual = f.residual;
    REFUSED("linear.fwd: residual: not with more outputs than one");
    bad = good, bad.y = (invar_tensor){0};
    REFUSED("linear.fwd: act: one of its two inputs is absent");
    bad = good, bad.act = (invar_tensor){0}, bad.more[0].y = (invar_tensor){0};
    REFUSED("linear.fwd: y: missing");
    bad = good, bad.more[0] = f.layer[2];
    REFUSED("linear.fwd: more[0].y: ");
    bad = good, bad.act.dtype = INVAR_DTYPE_F32;
    REFUSED("linear.fwd: act is f32 but y is bf16");
    bad = good, bad.act.data = bad.y.data;
    REFUSED("linear.fwd: y and act overlap");
    bad = good, bad.more[0].y.data = bad.y.data;
    REFUSED("linear.fwd: y and more[0].y overlap");
    bad = good, bad.act.data = bad.more[0].w.data;
    REFUSED("linear.fwd: act and more[0].w overlap");
    bad = fused_args(&f, 0), free_fused_args(&bad), bad.y = good.y, bad.residual = good.y;
    REFUSED("linear.fwd: y and residual overlap");
    bad.residual = f.residual, bad.residual.shape[1] = N - 1;
    REFUSED("linear.fwd: residual: extent 255");
#undef REFUSED
    free_fused_args(&good);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused__residual_is_add),
        cmocka_unit_test(test_fused__more_outputs_are_more_calls),
        cmocka_unit_test(test_fused__act_is_swiglu),
        cmocka_unit_test(test_fused__rounds_before_the_residual),
        cmocka_unit_test(test_fused__rejects_bad_arguments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
