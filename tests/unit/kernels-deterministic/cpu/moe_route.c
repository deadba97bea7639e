/*
 * moe_route.c - tests of the router against a naive form of its expression, and against float64.
 *
 * The naive form sorts all experts by float comparison; it shares no code with the op except exp
 * and sigmoid.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/math/elementary.h"
#include "tests/ops.h"

#define MAX_EXPERTS 256
#define MAX_SLOTS 8

/* ---- arguments of forward and backward ------------------------------------------------------- */

typedef struct route_args {
    invar_moe_route_fwd_args fwd;
    invar_moe_route_bwd_args bwd;
} route_args;

typedef struct route_case {
    int64_t experts;
    int64_t slots;
    invar_moe_router router;
    bool bias;
} route_case;

static const route_case cases[] = {
    {1, 1, {INVAR_MOE_SOFTMAX, 1, 1, 1, 1, 0.0f, 1.0f}, false},
    {2, 1, {INVAR_MOE_SIGMOID, 1, 1, 1, 0, 0.0f, 1.0f}, true},
    {8, 2, {INVAR_MOE_SOFTMAX, 1, 1, 1, 1, 0.0f, 1.0f}, false},    // Mixtral
    {60, 4, {INVAR_MOE_SOFTMAX, 1, 1, 1, 0, 0.0f, 1.0f}, false},   // Qwen2-MoE
    {128, 8, {INVAR_MOE_SOFTMAX, 1, 1, 1, 1, 0.0f, 1.0f}, true},   // Qwen3-MoE
    {160, 6, {INVAR_MOE_SOFTMAX, 8, 3, 1, 0, 0.0f, 16.0f}, false}, // DeepSeek-V2
    {256, 8, {INVAR_MOE_SIGMOID, 8, 4, 2, 1, 1e-20f, 2.5f}, true}, // DeepSeek-V3
    {256, 8, {INVAR_MOE_SOFTMAX, 16, 1, 2, 1, 1e-6f, 1.0f}, true},
    {8, 8, {INVAR_MOE_SIGMOID, 4, 4, 2, 1, 1e-20f, -1.0f}, false}, // every expert is chosen
    {6, 3, {INVAR_MOE_SIGMOID, 6, 3, 1, 1, 0.0f, 1.0f}, true},     // one expert per group
};
enum { CASES = sizeof cases / sizeof *cases };

static route_args route_args_new(const route_case *c, int64_t tokens, invar_dtype dlogits)
{
    const invar_dtype f32 = INVAR_DTYPE_F32, i32 = INVAR_DTYPE_I32;
    route_args r = {0};

    r.fwd.logits = invar_test_strided(invar_tensor_2d(NULL, f32, tokens, c->experts), 3);
    r.fwd.scores = invar_test_strided(invar_tensor_2d(NULL, f32, tokens, c->experts), 1);
    r.fwd.weights = invar_test_strided(invar_tensor_2d(NULL, f32, tokens, c->slots), 2);
    r.fwd.ids = invar_test_strided(invar_tensor_2d(NULL, i32, tokens, c->slots), 1);
    r.fwd.router = r.bwd.router = c->router;
    if (c->bias) {
        r.fwd.bias = invar_test_tensor(invar_tensor_1d(NULL, f32, c->experts));
        invar_test_fill_normal(&r.fwd.bias, 5, 0.1f);
    }
    r.bwd.dweights = invar_test_strided(invar_tensor_2d(NULL, f32, tokens, c->slots), 1);
    r.bwd.dlogits = invar_test_strided(invar_tensor_2d(NULL, dlogits, tokens, c->experts), 2);
    r.bwd.ids = r.fwd.ids;
    r.bwd.scores = r.fwd.scores;
    invar_test_fill_normal(&r.bwd.dweights, 6, 1.0f);
    return r;
}

static void route_args_free(route_args *r)
{
    invar_test_free(&r->fwd.logits, &r->fwd.scores, &r->fwd.weights, &r->fwd.ids, &r->fwd.bias,
                    &r->fwd.replay, &r->bwd.dweights, &r->bwd.dlogits);
}

/* Fills the logits: 0 typical, 1 with many ties, 2 large, 3 all equal in a row. */
static void fill_logits(const invar_tensor *logits, int kind)
{
    invar_test_fill_normal(logits, 7, kind == 2 ? 60.0f : 1.5f);
    for (int64_t t = 0; t < logits->shape[0]; t++)
        for (int64_t j = 0; j < logits->shape[1]; j++) {
            float z = invar_test_get(logits, t, j);
            if (kind == 1)
                invar_test_set(logits, t, j, floorf(z));
            else if (kind == 3)
                invar_test_set(logits, t, j, t % 2 ? 0.0f : -3.0f);
        }
}
enum { KINDS = 4 };

static int32_t id_at(const invar_tensor *ids, int64_t token, int64_t slot)
{
    return ((const int32_t *)ids->data)[token * ids->row_stride + slot];
}

/* ---- the naive form -------------------------------------------------------------------------- */

/* Sorts ids[0..n) by value in descending order; equal values by ascending id. */
static void sort_ref(int32_t *ids, const float *value, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t pos = i;
        int32_t id = ids[i];
        for (; pos > 0; pos--) {
            int32_t other = ids[pos - 1];
            if (value[other] > value[id] || (value[other] == value[id] && other < id))
                break;
            ids[pos] = other;
        }
        ids[pos] = id;
    }
}

static void scores_ref(float *scores, const float *z, int64_t experts, invar_moe_scoring scoring)
{
    float largest = z[0], sum;

    for (int64_t j = 0; j < experts; j++) {
        if (z[j] > largest)
            largest = z[j];
    }
    for (int64_t j = 0; j < experts; j++)
        scores[j] = scoring == INVAR_MOE_SIGMOID ? invar_sigmoid(z[j]) : invar_exp(z[j] - largest);
    if (scoring == INVAR_MOE_SIGMOID)
        return;
    sum = invar_test_reduce(scores, experts);
    for (int64_t j = 0; j < experts; j++)
        scores[j] = scores[j] / sum;
}

/* Writes the ids of the chosen experts, best first. */
static void choose_ref(int32_t *ids, const float *value, const route_case *c)
{
    const invar_moe_router *r = &c->router;
    int64_t size = c->experts / r->groups, left = 0;
    float group_value[MAX_EXPERTS];
    int32_t group[MAX_EXPERTS], member[MAX_EXPERTS], pool[MAX_EXPERTS];

    for (int32_t g = 0; g < r->groups; g++) {
        for (int64_t j = 0; j < size; j++)
            member[j] = (int32_t)(g * size + j);
        sort_ref(member, value, size);
        group_value[g] = value[member[0]];
        if (r->group_score_top == 2)
            group_value[g] = value[member[0]] + value[member[1]];
        group[g] = g;
    }
    sort_ref(group, group_value, r->groups);
    for (int32_t g = 0; g < r->groups_kept; g++)
        for (int64_t j = 0; j < size; j++)
            pool[left++] = (int32_t)(group[g] * size + j);
    sort_ref(pool, value, left);
    memcpy(ids, pool, (size_t)c->slots * sizeof *ids);
}

static void weights_ref(float *w, const float *scores, const int32_t *ids, const route_case *c)
{
    float sum = 0.0f;

    for (int64_t s = 0; s < c->slots; s++)
        sum = sum + scores[ids[s]];
    sum = sum + c->router.normalise_eps;
    for (int64_t s = 0; s < c->slots; s++) {
        w[s] = scores[ids[s]];
        if (c->router.normalise)
            w[s] = w[s] / sum;
        w[s] = w[s] * c->router.scale;
    }
}

static void dlogits_ref(float *dz, const float *scores, const int32_t *ids, const float *dw,
                        const route_case *c)
{
    float ds[MAX_EXPERTS] = {0}, sum = 0.0f, mean = 0.0f, inner = 0.0f;

    for (int64_t s = 0; s < c->slots; s++)
        sum = sum + scores[ids[s]];
    sum = sum + c->router.normalise_eps;
    for (int64_t s = 0; s < c->slots; s++)
        mean = fmaf(dw[s] * c->router.scale, scores[ids[s]] / sum, mean);
    for (int64_t s = 0; s < c->slots; s++) {
        ds[ids[s]] = dw[s] * c->router.scale;
        if (c->router.normalise)
            ds[ids[s]] = (ds[ids[s]] - mean) / sum;
        inner = fmaf(scores[ids[s]], ds[ids[s]], inner);
    }
    for (int64_t j = 0; j < c->experts; j++)
        dz[j] = c->router.scoring == INVAR_MOE_SOFTMAX ? scores[j] * (ds[j] - inner)
                                                       : ds[j] * (scores[j] * (1.0f - scores[j]));
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void check_token(const route_args *r, const route_case *c, int64_t t)
{
    float z[MAX_EXPERTS], scores[MAX_EXPERTS], value[MAX_EXPERTS], w[MAX_SLOTS], dw[MAX_SLOTS];
    float dz[MAX_EXPERTS];
    int32_t ids[MAX_SLOTS];

    for (int64_t j = 0; j < c->experts; j++)
        z[j] = invar_test_get(&r->fwd.logits, t, j);
    scores_ref(scores, z, c->experts, c->router.scoring);
    for (int64_t j = 0; j < c->experts; j++)
        value[j] = c->bias ? scores[j] + invar_test_get(&r->fwd.bias, j, 0) : scores[j];
    choose_ref(ids, value, c);
    weights_ref(w, scores, ids, c);
    for (int64_t s = 0; s < c->slots; s++) {
        assert_int_equal(id_at(&r->fwd.ids, t, s), ids[s]);
        dw[s] = invar_test_get(&r->bwd.dweights, t, s);
    }
    dlogits_ref(dz, scores, ids, dw, c);
    for (int64_t j = 0; j < c->experts; j++) {
        float got = invar_test_get(&r->bwd.dlogits, t, j);
        invar_test_set(&r->bwd.dlogits, t, j, dz[j]); // rounds to the type of dlogits
        dz[j] = invar_test_get(&r->bwd.dlogits, t, j);
        invar_assert_bits_f32(&got, &dz[j], 1, "dlogits");
    }
    invar_assert_bits_f32((float *)r->fwd.scores.data + t * r->fwd.scores.row_stride, scores,
                          c->experts, "scores");
    invar_assert_bits_f32((float *)r->fwd.weights.data + t * r->fwd.weights.row_stride, w, c->slots,
                          "weights");
}

static void test_moe_route__equals_the_expression(void **state)
{
    static const invar_dtype storage[] = {INVAR_DTYPE_F32, INVAR_DTYPE_BF16};
    int64_t tokens = invar_test_count(9, 200);
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int i = 0; i < CASES * KINDS * 2; i++) {
        const route_case *c = &cases[i / KINDS / 2];
        route_args r = route_args_new(c, tokens, storage[i % 2]);

        fill_logits(&r.fwd.logits, i / 2 % KINDS);
        assert_ok(invar_moe_route_fwd(&dev, &r.fwd));
        assert_ok(invar_moe_route_bwd(&dev, &r.bwd));
        for (int64_t t = 0; t < tokens; t++)
            check_token(&r, c, t);
        route_args_free(&r);
    }
    invar_test_device_release(&dev);
}

/* ---- hand-written cases ---------------------------------------------------------------------- */

/* Routes one token and compares the chosen experts. */
static void check_choice(const route_case *c, const float *logits, const float *bias,
                         const int32_t *expected)
{
    route_args r = route_args_new(c, 1, INVAR_DTYPE_F32);
    invar_device dev;

    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    memcpy(r.fwd.logits.data, logits, (size_t)c->experts * sizeof *logits);
    if (bias)
        memcpy(r.fwd.bias.data, bias, (size_t)c->experts * sizeof *bias);
    assert_ok(invar_moe_route_fwd(&dev, &r.fwd));
    assert_memory_equal(r.fwd.ids.data, expected, (size_t)c->slots * sizeof *expected);
    route_args_free(&r);
    invar_test_device_release(&dev);
}

static void test_moe_route_fwd__ties_go_to_the_lower_id(void **state)
{
    const route_case c = {8, 4, {INVAR_MOE_SOFTMAX, 1, 1, 1, 1, 0.0f, 1.0f}, false};
    const float equal[8] = {0}, pairs[8] = {1, 2, 1, 2, 1, 2, 1, 2}, zeros[8] = {-0.0f, 0.0f};

    (void)state;
    check_choice(&c, equal, NULL, (const int32_t[]){0, 1, 2, 3});
    check_choice(&c, pairs, NULL, (const int32_t[]){1, 3, 5, 7});
    check_choice(&c, zeros, NULL, (const int32_t[]){0, 1, 2, 3});
}

/* The choice depends on the bias alone, because all scores are 1/2. */
static void test_moe_route_fwd__groups_limit_the_choice(void **state)
{
    const float zero[8] = {0}, bias[8] = {9, 0, 6, 5, 7, 7, 1, 2}, tied[8] = {1, 3, 2, 2, 4, 0};
    route_case c = {8, 2, {INVAR_MOE_SIGMOID, 4, 1, 1, 1, 0.0f, 1.0f}, true};

    (void)state;
    check_choice(&c, zero, bias, (const int32_t[]){0, 1}); // group 0 has the best expert
    c.router.group_score_top = 2;
    check_choice(&c, zero, bias, (const int32_t[]){4, 5}); // group sums: 9, 11, 14, 3
    c.router.groups_kept = 2;
    check_choice(&c, zero, bias, (const int32_t[]){4, 5}); // groups 2 and 1, without expert 0
    c.slots = 4;
    check_choice(&c, zero, bias, (const int32_t[]){4, 5, 2, 3});
    c.slots = 2;
    c.router.groups_kept = 1;
    check_choice(&c, zero, tied,
                 (const int32_t[]){1, 0}); // group sums: 4, 4, 4, 0; the lowest group
    c.router.groups_kept = 2;
    check_choice(&c, zero, tied, (const int32_t[]){1, 2});
}

static void test_moe_route_fwd__bias_affects_the_choice_only(void **state)
{
    const route_case c = {4, 2, {INVAR_MOE_SIGMOID, 1, 1, 1, 0, 0.0f, 1.0f}, true};
    route_args r = route_args_new(&c, 1, INVAR_DTYPE_F32);
    const float bias[4] = {0, 0, 5, -INFINITY};
    float expected[2];
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    invar_test_fill_normal(&r.fwd.logits, 1, 1.0f);
    memcpy(r.fwd.bias.data, bias, sizeof bias);
    assert_ok(invar_moe_route_fwd(&dev, &r.fwd));
    assert_int_equal(id_at(&r.fwd.ids, 0, 0), 2);
    assert_int_not_equal(id_at(&r.fwd.ids, 0, 1), 3); // a bias of -inf excludes an expert
    for (int s = 0; s < 2; s++)
        expected[s] = invar_sigmoid(invar_test_get(&r.fwd.logits, 0, id_at(&r.fwd.ids, 0, s)));
    invar_assert_bits_f32(r.fwd.weights.data, expected, 2, "weights");
    route_args_free(&r);
    invar_test_device_release(&dev);
}

/* ---- replay ---------------------------------------------------------------------------------- */

static void test_moe_route_fwd__replay_of_its_own_choice_changes_nothing(void **state)
{
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int i = 0; i < CASES; i++) {
        route_args natural = route_args_new(&cases[i], 20, INVAR_DTYPE_F32);
        route_args replay = route_args_new(&cases[i], 20, INVAR_DTYPE_F32);

        fill_logits(&natural.fwd.logits, i % KINDS);
        fill_logits(&replay.fwd.logits, i % KINDS);
        assert_ok(invar_moe_route_fwd(&dev, &natural.fwd));
        replay.fwd.replay = invar_test_copy(&natural.fwd.ids);
        assert_ok(invar_moe_route_fwd(&dev, &replay.fwd));
        invar_assert_bits_tensor(&replay.fwd.weights, &natural.fwd.weights, "weights");
        invar_assert_bits_tensor(&replay.fwd.scores, &natural.fwd.scores, "scores");
        invar_assert_bits_tensor(&replay.fwd.ids, &natural.fwd.ids, "ids");
        route_args_free(&natural);
        route_args_free(&replay);
    }
    invar_test_device_release(&dev);
}

/* Weights are those of the replayed experts; ids remain those that the router would choose. */
static void test_moe_route_fwd__replay_determines_the_weights(void **state)
{
    const route_case *c = &cases[6];
    route_args natural = route_args_new(c, 20, INVAR_DTYPE_F32);
    route_args replay = route_args_new(c, 20, INVAR_DTYPE_F32);
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    fill_logits(&natural.fwd.logits, 0);
    fill_logits(&replay.fwd.logits, 0);
    replay.fwd.replay = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_I32, 20, c->slots));
    for (int64_t t = 0; t < 20; t++)
        for (int64_t s = 0; s < c->slots; s++)
            ((int32_t *)replay.fwd.replay.data)[t * c->slots + s] =
                (int32_t)((t * 37 + s * 11) % c->experts);
    assert_ok(invar_moe_route_fwd(&dev, &natural.fwd));
    assert_ok(invar_moe_route_fwd(&dev, &replay.fwd));
    invar_assert_bits_tensor(&replay.fwd.ids, &natural.fwd.ids, "ids");
    for (int64_t t = 0; t < 20; t++) {
        const float *scores =
            (const float *)natural.fwd.scores.data + t * natural.fwd.scores.row_stride;
        float w[MAX_SLOTS];
        weights_ref(w, scores, (const int32_t *)replay.fwd.replay.data + t * c->slots, c);
        invar_assert_bits_f32((float *)replay.fwd.weights.data + t * replay.fwd.weights.row_stride,
                              w, c->slots, "weights");
    }
    route_args_free(&natural);
    route_args_free(&replay);
    invar_test_device_release(&dev);
}

/* ---- accuracy -------------------------------------------------------------------------------- */

/* Computes the weights of the given experts in double. */
static void weights_f64(double *w, const double *z, const int32_t *ids, const route_case *c)
{
    double largest = -INFINITY, sum = 0.0, chosen = 0.0, scores[MAX_EXPERTS];

    for (int64_t j = 0; j < c->experts; j++)
        largest = fmax(largest, z[j]);
    for (int64_t j = 0; j < c->experts; j++) {
        bool softmax = c->router.scoring == INVAR_MOE_SOFTMAX;
        scores[j] = softmax ? exp(z[j] - largest) : 1.0 / (1.0 + exp(-z[j]));
        sum += scores[j];
    }
    for (int64_t j = 0; j < c->experts && c->router.scoring == INVAR_MOE_SOFTMAX; j++)
        scores[j] /= sum;
    for (int64_t s = 0; s < c->slots; s++)
        chosen += scores[ids[s]];
    for (int64_t s = 0; s < c->slots; s++)
        w[s] = scores[ids[s]] /
               (c->router.normalise ? chosen + (double)c->router.normalise_eps : 1) *
               (double)c->router.scale;
}

/* Compares weights with double, and gradients with finite differences of the double weights. */
static void test_moe_route__accuracy_vs_f64(void **state)
{
    const double step = 1e-5;
    int64_t tokens = invar_test_count(3, 40);
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int i = 0; i < CASES; i++) {
        const route_case *c = &cases[i];
        route_args r = route_args_new(c, tokens, INVAR_DTYPE_F32);
        double scale = fabs((double)c->router.scale);

        fill_logits(&r.fwd.logits, 0);
        assert_ok(invar_moe_route_fwd(&dev, &r.fwd));
        assert_ok(invar_moe_route_bwd(&dev, &r.bwd));
        for (int64_t t = 0; t < tokens; t++) {
            const int32_t *ids = (const int32_t *)r.fwd.ids.data + t * r.fwd.ids.row_stride;
            double z[MAX_EXPERTS], w[MAX_SLOTS], up[MAX_SLOTS], down[MAX_SLOTS];

            for (int64_t j = 0; j < c->experts; j++)
                z[j] = (double)invar_test_get(&r.fwd.logits, t, j);
            weights_f64(w, z, ids, c);
            for (int64_t s = 0; s < c->slots; s++) {
                double got = (double)invar_test_get(&r.fwd.weights, t, s);
                assert_true(fabs(got - w[s]) <= 1e-6 * fabs(w[s]));
            }
            for (int64_t j = 0; j < c->experts; j++) {
                double slope = 0.0, keep = z[j];
                z[j] = keep + step;
                weights_f64(up, z, ids, c);
                z[j] = keep - step;
                weights_f64(down, z, ids, c);
                z[j] = keep;
                for (int64_t s = 0; s < c->slots; s++)
                    slope += (double)invar_test_get(&r.bwd.dweights, t, s) * (up[s] - down[s]);
                slope /= 2 * step;
                assert_true(fabs((double)invar_test_get(&r.bwd.dlogits, t, j) - slope) <=
                            2e-6 * scale);
            }
        }
        route_args_free(&r);
    }
    invar_test_device_release(&dev);
}

/* A bias of type NONE is not read, even if its other fields are set. Control: a present bias. */
static void test_moe_route_fwd__absent_bias_is_not_read(void **state)
{
    const route_case c = {8, 2, {INVAR_MOE_SOFTMAX, 1, 1, 1, 1, 0.0f, 1.0f}, true};
    route_args r = route_args_new(&c, 3, INVAR_DTYPE_F32);
    invar_moe_route_fwd_args a = r.fwd;
    invar_tensor expected;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    fill_logits(&a.logits, 0);
    a.bias = (invar_tensor){0};
    assert_ok(invar_moe_route_fwd(&dev, &a));
    expected = invar_test_copy(&a.ids);
    a.bias.data = (float[]){0, 9, 0, 0, 0, 0, 9, 0}; // if read, it would choose experts 1 and 6
    assert_ok(invar_moe_route_fwd(&dev, &a));
    invar_assert_bits_tensor(&a.ids, &expected, "ids");
    a.bias = invar_tensor_1d(a.bias.data, INVAR_DTYPE_F32, 8);
    assert_ok(invar_moe_route_fwd(&dev, &a));
    assert_true(invar_tensors_differ(&a.ids, &expected));
    invar_test_free(&expected);
    route_args_free(&r);
    invar_test_device_release(&dev);
}

/* ---- errors ---------------------------------------------------------------------------------- */

#define REFUSED(field, value, text)                                                                \
    do {                                                                                           \
        invar_moe_route_fwd_args bad = r.fwd;                                                      \
        bad.field = value;                                                                         \
        assert_fails(invar_moe_route_fwd(&dev, &bad), INVAR_E_INVALID, "moe.route.fwd: " text);    \
    } while (0)

static void test_moe_route_fwd__rejects_bad_arguments(void **state)
{
    const route_case c = {8, 2, {INVAR_MOE_SOFTMAX, 4, 2, 2, 1, 0.0f, 1.0f}, true};
    route_args r = route_args_new(&c, 3, INVAR_DTYPE_F32);
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    fill_logits(&r.fwd.logits, 0);
    assert_ok(invar_moe_route_fwd(&dev, &r.fwd));
    REFUSED(logits.dtype, INVAR_DTYPE_BF16, "logits: type bf16");
    REFUSED(logits.shape[0], 4, "ids: extent 3 of index 0; expected 4");
    REFUSED(ids.dtype, INVAR_DTYPE_F32, "ids: type f32");
    REFUSED(ids.shape[1], 0, "slots: 0; expected 1 to 4");
    REFUSED(weights.shape[1], 1, "weights: extent 1");
    REFUSED(scores.shape[1], 7, "scores: extent 7");
    REFUSED(scores.data, NULL, "scores: no data");
    REFUSED(bias.shape[0], 7, "bias: extent 7");
    REFUSED(router.scoring, (invar_moe_scoring)9, "router.scoring: 9");
    REFUSED(router.groups, 0, "router.groups: 0; expected 1 to 8");
    REFUSED(router.groups, 9, "router.groups: 9; expected 1 to 8");
    REFUSED(router.groups, 3, "router.groups: 8 experts do not cut into 3 groups");
    REFUSED(router.groups_kept, 0, "router.groups_kept: 0; expected 1 to 4");
    REFUSED(router.groups_kept, 5, "router.groups_kept: 5; expected 1 to 4");
    REFUSED(router.group_score_top, 0, "router.group_score_top: 0; expected 1 to 2");
    REFUSED(router.group_score_top, 3, "router.group_score_top: 3; expected 1 to 2");
    REFUSED(router.groups, 8, "router.group_score_top: 2; expected 1 to 1");
    REFUSED(router.normalise, 2, "router.normalise: 2; expected 0 to 1");
    REFUSED(router.normalise_eps, -1.0f, "router.normalise_eps: -1");
    REFUSED(router.normalise_eps, NAN, "router.normalise_eps: ");
    REFUSED(router.scale, INFINITY, "router.scale: inf");
    r.fwd.replay = invar_test_copy(&r.fwd.ids);
    assert_ok(invar_moe_route_fwd(&dev, &r.fwd));
    REFUSED(replay.shape[1], 1, "replay: extent 1");
    ((int32_t *)r.fwd.replay.data)[3] = 8;
    REFUSED(router.scale, 1.0f, "replay: value 8 in row 1; expected 0 to 7");
    ((int32_t *)r.fwd.replay.data)[3] = ((int32_t *)r.fwd.replay.data)[2];
    REFUSED(router.scale, 1.0f, "replay: row 1 names expert ");
    r.fwd.logits.shape[1] = 0;
    REFUSED(router.scale, 1.0f, "experts: 0; expected 1 to ");
    route_args_free(&r);
    invar_test_device_release(&dev);
}
#undef REFUSED

#define REFUSED(field, value, text)                                                                \
    do {                                                                                           \
        invar_moe_route_bwd_args bad = r.bwd;                                                      \
        bad.field = value;                                                                         \
        assert_fails(invar_moe_route_bwd(&dev, &bad), INVAR_E_INVALID, "moe.route.bwd: " text);    \
    } while (0)

static void test_moe_route_bwd__rejects_bad_arguments(void **state)
{
    const route_case c = {8, 2, {INVAR_MOE_SIGMOID, 1, 1, 1, 1, 0.0f, 1.0f}, false};
    route_args r = route_args_new(&c, 3, INVAR_DTYPE_BF16);
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    fill_logits(&r.fwd.logits, 0);
    assert_ok(invar_moe_route_fwd(&dev, &r.fwd));
    assert_ok(invar_moe_route_bwd(&dev, &r.bwd));
    REFUSED(scores.dtype, INVAR_DTYPE_I32, "scores: type i32");
    REFUSED(dlogits.dtype, INVAR_DTYPE_I32, "dlogits: type i32");
    REFUSED(dlogits.shape[1], 7, "dlogits: extent 7");
    REFUSED(dweights.shape[0], 2, "dweights: extent 2");
    REFUSED(ids.shape[1], 9, "ids: row stride ");
    REFUSED(router.groups_kept, 2, "router.groups_kept: 2");
    ((int32_t *)r.bwd.ids.data)[0] = -1;
    REFUSED(router.scale, 1.0f, "ids: value -1 in row 0");
    ((int32_t *)r.bwd.ids.data)[0] = ((int32_t *)r.bwd.ids.data)[1];
    REFUSED(router.scale, 1.0f, "ids: row 0 names expert ");
    route_args_free(&r);
    invar_test_device_release(&dev);
}
#undef REFUSED

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moe_route__equals_the_expression),
        cmocka_unit_test(test_moe_route_fwd__ties_go_to_the_lower_id),
        cmocka_unit_test(test_moe_route_fwd__groups_limit_the_choice),
        cmocka_unit_test(test_moe_route_fwd__bias_affects_the_choice_only),
        cmocka_unit_test(test_moe_route_fwd__replay_of_its_own_choice_changes_nothing),
        cmocka_unit_test(test_moe_route_fwd__replay_determines_the_weights),
        cmocka_unit_test(test_moe_route__accuracy_vs_f64),
        cmocka_unit_test(test_moe_route_fwd__absent_bias_is_not_read),
        cmocka_unit_test(test_moe_route_fwd__rejects_bad_arguments),
        cmocka_unit_test(test_moe_route_bwd__rejects_bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
