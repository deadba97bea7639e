/*
 * optimizer_adamw.c - tests of AdamW against a plain loop and against 200 steps in float64.
 *
 * Digests of the master weights are compared with the op hash.tree. Control: a flipped bit changes
 * the digest of its tensor only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <float.h>
#include <math.h>

#include "tests/ops.h"

enum { N = 20000, NORMALS = 65521 };

/* Returns the n-th of NORMALS standard normal values, which repeat. */
static float normal_at(int64_t n)
{
    static float normal[NORMALS];

    for (uint64_t i = 0; i < NORMALS && normal[NORMALS - 1] == 0.0f; i++)
        normal[i] = invar_test_normal(1, i, 1.0f);
    return normal[n % NORMALS];
}

static invar_adamw_args adamw_new(invar_dtype weight, int64_t n)
{
    invar_tensor view = invar_tensor_1d(NULL, INVAR_DTYPE_F32, n);
    invar_adamw_args a = {.master = invar_test_tensor(view),
                          .m = invar_test_tensor(view),
                          .v = invar_test_tensor(view),
                          .grad = invar_test_tensor(view),
                          .clip = 0.75f,
                          .lr = 1e-3f,
                          .beta1 = 0.9f,
                          .beta2 = 0.999f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .beta1_power = 1.0f,
                          .beta2_power = 1.0f};

    if (weight != INVAR_DTYPE_NONE)
        a.weight = invar_test_tensor(invar_tensor_1d(NULL, weight, n));
    for (int64_t i = 0; i < n; i++)
        ((float *)a.master.data)[i] = normal_at(i) * 0.02f;
    invar_test_fill(&a.m, 0.0f);
    invar_test_fill(&a.v, 0.0f);
    return a;
}

static void adamw_free(invar_adamw_args *a)
{
    invar_test_free(&a->weight, &a->master, &a->m, &a->v, &a->grad);
}

/* Sets the powers of beta and the gradient of the next step. Gradients differ in magnitude. */
static void next_step(invar_adamw_args *a, int step)
{
    a->beta1_power *= a->beta1;
    a->beta2_power *= a->beta2;
    for (int64_t i = 0; i < a->grad.shape[0]; i++)
        ((float *)a->grad.data)[i] = normal_at(step * 7919 + i) / (float)(1 + i % 50) + 0.01f;
}

static void adamw_ref(const invar_adamw_args *a)
{
    float *p = a->master.data, *m = a->m.data, *v = a->v.data;

    for (int64_t i = 0; i < a->master.shape[0]; i++) {
        float g = invar_test_get(&a->grad, 0, i) * a->clip;
        float rest1 = 1.0f - a->beta1, rest2 = 1.0f - a->beta2;
        float m_hat, v_hat, u;
        m[i] = fmaf(a->beta1, m[i], rest1 * g);
        v[i] = fmaf(a->beta2, v[i], rest2 * (g * g));
        m_hat = m[i] / (1.0f - a->beta1_power);
        v_hat = v[i] / (1.0f - a->beta2_power);
        u = m_hat / (sqrtf(v_hat) + a->eps);
        p[i] = fmaf(-a->lr, fmaf(a->weight_decay, p[i], u), p[i]);
        if (invar_tensor_present(&a->weight))
            invar_test_set(&a->weight, 0, i, p[i]);
    }
}

static void assert_same(const invar_adamw_args *got, const invar_adamw_args *expected)
{
    invar_assert_bits_tensor(&got->m, &expected->m, "adamw: m");
    invar_assert_bits_tensor(&got->v, &expected->v, "adamw: v");
    invar_assert_bits_tensor(&got->master, &expected->master, "adamw: master");
    if (invar_tensor_present(&got->weight))
        invar_assert_bits_tensor(&got->weight, &expected->weight, "adamw: weight");
}

static void test_adamw__bits_match_reference(void **state)
{
    static const invar_dtype weights[] = {INVAR_DTYPE_NONE, INVAR_DTYPE_F32, INVAR_DTYPE_BF16};
    const invar_device *devices = *state;

    for (int w = 0; w < 3; w++) {
        invar_adamw_args got = adamw_new(weights[w], N), expected = adamw_new(weights[w], N);

        for (int step = 1; step <= 8; step++) {
            next_step(&got, step);
            next_step(&expected, step);
            assert_ok(invar_adamw(&devices[step % INVAR_TEST_DEVICES], &got));
            adamw_ref(&expected);
            assert_same(&got, &expected);
        }
        adamw_free(&got);
        adamw_free(&expected);
    }
}

/* Elements [first, end) of every tensor. */
static invar_adamw_args slice_args(const invar_adamw_args *a, int64_t first, int64_t end)
{
    invar_adamw_args s = *a;

    s.weight = invar_tensor_rows(&a->weight, first, end - first);
    s.master = invar_tensor_rows(&a->master, first, end - first);
    s.m = invar_tensor_rows(&a->m, first, end - first);
    s.v = invar_tensor_rows(&a->v, first, end - first);
    s.grad = invar_tensor_rows(&a->grad, first, end - first);
    return s;
}

static void test_adamw__bits_invariant_to_splitting(void **state)
{
    static const int64_t cuts[] = {0, 1, 2, 63, 511, 512, 1025, 9000, N};
    invar_adamw_args unsplit = adamw_new(INVAR_DTYPE_BF16, N),
                     split = adamw_new(INVAR_DTYPE_BF16, N);

    for (int step = 1; step <= 3; step++) {
        next_step(&unsplit, step);
        next_step(&split, step);
        assert_ok(invar_adamw(*state, &unsplit));
        for (size_t i = 0; i + 1 < sizeof cuts / sizeof *cuts; i++) {
            invar_adamw_args part = slice_args(&split, cuts[i], cuts[i + 1]);
            assert_ok(invar_adamw(*state, &part));
        }
        assert_same(&split, &unsplit);
    }
    adamw_free(&unsplit);
    adamw_free(&split);
}

/* Parameters and moments in double, updated from the f32 gradients and settings. */
typedef struct f64_state {
    double p[N], m[N], v[N];
} f64_state;

static void f64_step(f64_state *d, const invar_adamw_args *a, int step)
{
    double b1 = (double)a->beta1, b2 = (double)a->beta2;

    for (int i = 0; i < N; i++) {
        double g = (double)invar_test_get(&a->grad, 0, i) * (double)a->clip;
        d->m[i] = b1 * d->m[i] + (1 - b1) * g;
        d->v[i] = b2 * d->v[i] + (1 - b2) * g * g;
        d->p[i] -= (double)a->lr * ((double)a->weight_decay * d->p[i] +
                                    d->m[i] / (1 - pow(b1, step)) /
                                        (sqrt(d->v[i] / (1 - pow(b2, step))) + (double)a->eps));
    }
}

static void test_adamw__accuracy_vs_f64_over_200_steps(void **state)
{
    static f64_state d;
    invar_adamw_args a = adamw_new(INVAR_DTYPE_BF16, N);

    for (int i = 0; i < N; i++)
        d.p[i] = (double)invar_test_get(&a.master, 0, i);
    for (int step = 1; step <= 200; step++) {
        next_step(&a, step);
        assert_ok(invar_adamw(*state, &a));
        f64_step(&d, &a, step);
    }
    invar_assert_close(&a.m, d.m, 1e-6, 1e-7, "m");
    invar_assert_close(&a.v, d.v, 1e-5, 0.0, "v");
    // a parameter is rounded 200 times; an update is about lr = 1e-3
    invar_assert_close(&a.master, d.p, 0.0, 4e-7, "master");
    invar_assert_close(&a.weight, d.p, 0x1.01p-8, 4e-7, "weight");
    adamw_free(&a);
}

/* Without gradients, a step is weight decay alone, and nothing is divided by zero. */
static void test_adamw__zero_gradient(void **state)
{
    invar_adamw_args a = adamw_new(INVAR_DTYPE_F32, N);

    next_step(&a, 1);
    invar_test_fill(&a.grad, 0.0f);
    assert_ok(invar_adamw(*state, &a));
    for (int i = 0; i < N; i++) {
        float p = invar_test_normal(1, (uint64_t)i, 0.02f);
        assert_true(invar_test_get(&a.master, 0, i) == fmaf(-1e-3f, 0.1f * p, p));
    }
    adamw_free(&a);
}

/* Ends of the tensors in the flat parameter array, around leaves of 4096 elements. */
typedef struct hashed_tensors {
    int64_t count;
    int64_t end[6];
} hashed_tensors;

static const hashed_tensors hashed[] = {
    {1, {4096}},
    {1, {4096 * 1025 + 5}}, // two levels in the tree of digests
    {5, {4096, 3 * 4096, 3 * 4096 + 4, 4 * 4096 + 64, 4 * 4096 + 1024}},
    {4,
     {4096 + 60, 2 * 4096 + 120, 3 * 4096 + 184, 20000}}, // last leaves of up to 240 bytes and more
    {6, {1, 4098, 4099, 9001, 9001 + 2 * 4096, 30001}},   // not aligned to 16 bytes
};

static void check_hashed(void **state, const hashed_tensors *list, invar_dtype weight)
{
    const invar_device *devices = *state;
    int64_t n = list->end[list->count - 1];

    for (int d = 0; d < (n < 1 << 20 || invar_test_full() ? INVAR_TEST_DEVICES : 1); d++) {
        invar_adamw_args got = adamw_new(weight, n), expected = adamw_new(weight, n);
        invar_digest digests[6], others[6], master_digest;

        got.digest = digests;
        got.end = list->end;
        got.tensors = list->count;
        for (int step = 1; step <= (n < 1 << 20 ? 2 : 1); step++) {
            next_step(&got, step);
            next_step(&expected, step);
            assert_ok(invar_adamw(&devices[d], &got));
            assert_ok(invar_adamw(&devices[d], &expected));
            assert_same(&got, &expected);
            for (int64_t i = 0, begin = 0; i < list->count; begin = list->end[i++]) {
                invar_tensor x = invar_tensor_rows(&expected.master, begin, list->end[i] - begin);
                assert_ok(invar_hash_tree(&devices[d],
                                          &(invar_hash_tree_args){&master_digest, &x, 1, 1, NULL}));
                assert_memory_equal(&digests[i], &master_digest, sizeof master_digest);
            }
        }
        // control: a flipped bit in the last element changes the digest of its tensor only
        expected.digest = others;
        expected.end = list->end;
        expected.tensors = list->count;
        ((uint32_t *)got.master.data)[n - 1] ^= UINT32_C(1) << 20;
        assert_ok(invar_adamw(&devices[d], &got));
        assert_ok(invar_adamw(&devices[d], &expected));
        for (int64_t i = 0; i < list->count; i++)
            assert_int_equal(invar_digest_equal(&digests[i], &others[i]), i + 1 < list->count);
        adamw_free(&got);
        adamw_free(&expected);
    }
}

static void test_adamw__digests_match_hash_tree(void **state)
{
    for (size_t i = 0; i < sizeof hashed / sizeof *hashed; i++)
        check_hashed(state, &hashed[i], i % 2 == 0 ? INVAR_DTYPE_BF16 : INVAR_DTYPE_NONE);
}

static void test_adamw__rejects_bad_arguments(void **state)
{
    invar_adamw_args good = adamw_new(INVAR_DTYPE_BF16, 8), a;
    const int64_t ends[] = {3, 8, 8, 9};
    invar_digest digests[4];

    next_step(&good, 1);
#define REFUSED_WITH(change, text)                                                                 \
    do {                                                                                           \
        a = good;                                                                                  \
        a.change;                                                                                  \
        assert_invalid(invar_adamw(*state, &a), text);                                             \
    } while (0)
    REFUSED_WITH(master.dtype = INVAR_DTYPE_BF16, "adamw: master: type bf16");
    REFUSED_WITH(m.shape[0] = 7, "adamw: m: extent 7 of index 0; expected 8");
    REFUSED_WITH(v.dtype = INVAR_DTYPE_NONE, "adamw: v is none");
    REFUSED_WITH(grad.dtype = INVAR_DTYPE_BF16, "adamw: grad is bf16 but master is f32");
    REFUSED_WITH(weight.shape[0] = 9, "adamw: weight: extent 9");
    REFUSED_WITH(weight.dtype = INVAR_DTYPE_I32, "adamw: weight: type i32");
    REFUSED_WITH(clip = 1.5f, "adamw: clip: 1.5");
    REFUSED_WITH(clip = NAN, "adamw: clip: nan");
    REFUSED_WITH(lr = -1.0f, "adamw: lr: -1");
    REFUSED_WITH(lr = INFINITY, "adamw: lr: inf");
    REFUSED_WITH(beta1 = 1.0f, "adamw: beta1: 1");
    REFUSED_WITH(beta2 = -0.5f, "adamw: beta2: -0.5");
    REFUSED_WITH(eps = 0.0f, "adamw: eps: 0");
    REFUSED_WITH(weight_decay = -0.5f, "adamw: weight_decay: -0.5");
    REFUSED_WITH(beta1_power = 1.0f, "adamw: beta1_power: 1");
    REFUSED_WITH(beta2_power = NAN, "adamw: beta2_power: nan");
    REFUSED_WITH(tensors = 1, "adamw: tensors: 1; digest and end come with them");
    good.digest = digests;
    REFUSED_WITH(tensors = 0, "adamw: tensors: 0; digest and end");
    good.end = ends;
    REFUSED_WITH(tensors = -1, "adamw: tensors: -1");
    REFUSED_WITH(tensors = 1, "adamw: end: the last tensor ends at 3 of 8");
    REFUSED_WITH(tensors = 3, "adamw: end: tensor 2 ends at 8 of 8 elements, the one before at 8");
    REFUSED_WITH(tensors = 4, "adamw: end: tensor 2 ends at 8 of 8 elements, the one before at 8");
    good.tensors = 2;
    assert_ok(invar_adamw(*state, &good));
    REFUSED_WITH(master.shape[0] = 7, "adamw: m: extent 8");
    REFUSED_WITH(digest = good.master.data, "adamw: master and digest overlap");
    REFUSED_WITH(digest = good.grad.data, "adamw: digest and grad overlap");
    adamw_free(&good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw__bits_match_reference),
        cmocka_unit_test(test_adamw__bits_invariant_to_splitting),
        cmocka_unit_test(test_adamw__accuracy_vs_f64_over_200_steps),
        cmocka_unit_test(test_adamw__zero_gradient),
        cmocka_unit_test(test_adamw__digests_match_hash_tree),
        cmocka_unit_test(test_adamw__rejects_bad_arguments),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
