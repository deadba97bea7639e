/*
 * logprob.c - tests of log-probs and entropy against a naive form of their expression, and float64.
 *
 * The naive form shares no code with the op except exp and log. Results that several ranks compute
 * from parts of the vocabulary have the bits of one rank. Controls: other vocabulary chunks, sums
 * by rank and another order of the parts give other bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/math/elementary.h"
#include "tests/ops.h"

enum { CONTRACT_CHUNK = 256 };

/* ---- arguments of forward and backward ------------------------------------------------------- */

typedef struct logprob_call {
    invar_logprob_fwd_args fwd;
    invar_logprob_bwd_args bwd;
} logprob_call;

static invar_tensor new_vector(invar_dtype dtype, int64_t n)
{
    return invar_test_tensor(invar_tensor_1d(NULL, dtype, n));
}

static logprob_call logprob_call_new(int64_t tokens, int64_t vocabulary, float temperature,
                                     float spread, invar_dtype dlogits)
{
    const invar_dtype f32 = INVAR_DTYPE_F32;
    logprob_call p = {0};

    p.fwd = (invar_logprob_fwd_args){
        .logp = new_vector(f32, tokens),
        .entropy = new_vector(f32, tokens),
        .max = new_vector(f32, tokens),
        .logsum = new_vector(f32, tokens),
        .logits = invar_test_strided(invar_tensor_2d(NULL, f32, tokens, vocabulary), 7),
        .targets = new_vector(INVAR_DTYPE_I32, tokens),
        .temperature = temperature};
    p.bwd = (invar_logprob_bwd_args){
        .dlogits = invar_test_strided(invar_tensor_2d(NULL, dlogits, tokens, vocabulary), 3),
        .dlogp = new_vector(f32, tokens),
        .dentropy = new_vector(f32, tokens),
        .entropy = p.fwd.entropy,
        .max = p.fwd.max,
        .logsum = p.fwd.logsum,
        .logits = p.fwd.logits,
        .targets = p.fwd.targets,
        .temperature = temperature};
    invar_test_fill_normal(&p.fwd.logits, 1, spread);
    invar_test_fill_index(&p.fwd.targets, 2, (int32_t)vocabulary);
    invar_test_fill_normal(&p.bwd.dlogp, 3, 1.0f);
    invar_test_fill_normal(&p.bwd.dentropy, 4, 1.0f);
    return p;
}

static void logprob_call_free(logprob_call *p)
{
    invar_test_free(&p->fwd.logp, &p->fwd.entropy, &p->fwd.max, &p->fwd.logsum, &p->fwd.logits,
                    &p->fwd.targets, &p->bwd.dlogits, &p->bwd.dlogp, &p->bwd.dentropy);
}

static const float *token_logits(const logprob_call *p, int64_t token)
{
    return (const float *)p->fwd.logits.data + token * p->fwd.logits.row_stride;
}

static int32_t token_target(const logprob_call *p, int64_t token)
{
    return ((const int32_t *)p->fwd.targets.data)[token];
}

/* ---- the naive form -------------------------------------------------------------------------- */

typedef struct token_result {
    float logp;
    float entropy;
    float max;
    float logsum;
} token_result;

static float largest_ref(const float *x, int64_t n)
{
    float largest = x[0];

    for (int64_t i = 1; i < n; i++)
        if (x[i] > largest || (x[i] == largest && !signbit(x[i]))) // +0 beats -0
            largest = x[i];
    return largest;
}

static token_result logprob_ref(const float *logits, int64_t vocabulary, int32_t target,
                                float temperature, int64_t chunk)
{
    int64_t chunks = (vocabulary + chunk - 1) / chunk;
    float *block = calloc((size_t)(3 * chunks + 2 * chunk), sizeof *block);
    float *m = block, *l = m + chunks, *a = l + chunks, *e = a + chunks, *d = e + chunk;
    float inverse = 1.0f / temperature, total, weighted;
    token_result r;

    for (int64_t c = 0; c < chunks; c++) {
        const float *row = logits + c * chunk;
        int64_t n = vocabulary - c * chunk < chunk ? vocabulary - c * chunk : chunk;
        for (int64_t i = 0; i < n; i++)
            e[i] = row[i] * inverse;
        m[c] = largest_ref(e, n);
        for (int64_t i = 0; i < n; i++) {
            float below = row[i] * inverse - m[c];
            e[i] = invar_exp(below);
            d[i] = e[i] * below;
        }
        l[c] = invar_test_reduce(e, n);
        a[c] = invar_test_reduce(d, n);
    }
    r.max = largest_ref(m, chunks);
    for (int64_t c = 0; c < chunks; c++) {
        float t = fmaf(l[c], m[c] - r.max, a[c]), factor = invar_exp(m[c] - r.max);
        a[c] = t * factor;
        l[c] = l[c] * factor;
    }
    total = invar_test_reduce(l, chunks);
    weighted = invar_test_reduce(a, chunks);
    r.logsum = invar_log(total);
    r.logp = (logits[target] * inverse - r.max) - r.logsum;
    r.entropy = r.logsum - weighted / total;
    free(block);
    return r;
}

static float dlogit_ref(const token_result *r, float logit, bool target, float temperature,
                        float dlogp, const float *dentropy)
{
    float inverse = 1.0f / temperature, lp = (logit * inverse - r->max) - r->logsum;
    float p = invar_exp(lp), g = fmaf(-p, dlogp, target ? dlogp : 0.0f);

    if (dentropy)
        g = fmaf(-*dentropy, p * (lp + r->entropy), g);
    return g * inverse;
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void check_forward(const logprob_call *p)
{
    int64_t tokens = p->fwd.logits.shape[0], vocabulary = p->fwd.logits.shape[1];

    for (int64_t t = 0; t < tokens; t++) {
        token_result r = logprob_ref(token_logits(p, t), vocabulary, token_target(p, t),
                                     p->fwd.temperature, CONTRACT_CHUNK);
        token_result got = {invar_test_get(&p->fwd.logp, t, 0), r.entropy,
                            invar_test_get(&p->fwd.max, t, 0),
                            invar_test_get(&p->fwd.logsum, t, 0)};
        if (invar_tensor_present(&p->fwd.entropy))
            got.entropy = invar_test_get(&p->fwd.entropy, t, 0);
        invar_assert_bits_f32(&got.logp, &r.logp, 4, "logp, entropy, max, logsum");
    }
}

static void check_backward(const logprob_call *p)
{
    const invar_logprob_bwd_args *b = &p->bwd;
    invar_tensor expected = invar_test_copy(&b->dlogits);
    bool with_entropy = invar_tensor_present(&b->dentropy);

    for (int64_t t = 0; t < b->logits.shape[0]; t++) {
        token_result r = {.entropy = invar_test_get(&p->fwd.entropy, t, 0),
                          .max = invar_test_get(&b->max, t, 0),
                          .logsum = invar_test_get(&b->logsum, t, 0)};
        float dentropy = with_entropy ? invar_test_get(&b->dentropy, t, 0) : 0.0f;
        for (int64_t v = 0; v < b->logits.shape[1]; v++)
            invar_test_set(&expected, t, v,
                           dlogit_ref(&r, token_logits(p, t)[v], v == token_target(p, t),
                                      b->temperature, invar_test_get(&b->dlogp, t, 0),
                                      with_entropy ? &dentropy : NULL));
    }
    invar_assert_bits_tensor(&b->dlogits, &expected, "dlogits");
    invar_test_free(&expected);
}

static void check_bits(const invar_device *dev, int64_t tokens, int64_t vocabulary,
                       float temperature, float spread)
{
    static const invar_dtype storage[] = {INVAR_DTYPE_F32, INVAR_DTYPE_BF16};

    for (int i = 0; i < 2; i++) {
        logprob_call p = logprob_call_new(tokens, vocabulary, temperature, spread, storage[i]);
        invar_tensor dentropy = p.bwd.dentropy;

        ((int32_t *)p.fwd.targets.data)[0] = 0;
        ((int32_t *)p.fwd.targets.data)[tokens - 1] = (int32_t)vocabulary - 1;
        assert_ok(invar_logprob_fwd(dev, &p.fwd));
        check_forward(&p);
        assert_ok(invar_logprob_bwd(dev, &p.bwd));
        check_backward(&p);
        p.bwd.dentropy = (invar_tensor){0};
        assert_ok(invar_logprob_bwd(dev, &p.bwd));
        check_backward(&p);
        p.bwd.dentropy = dentropy;
        logprob_call_free(&p);
    }
}

static void test_logprob__equals_the_expression(void **state)
{
    static const int64_t sizes[] = {1, 2, 3, 255, 256, 257, 511, 512, 513, 1000, 4096, 33000};
    static const float temperatures[] = {1.0f, 0.7f, 3.0f};
    static const float spreads[] = {3.0f, 0.0f, 1000.0f}; // typical; all equal; underflow
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int j = 0; j < 3; j++)
            check_bits(&dev, 3, sizes[i], temperatures[(i + (size_t)j) % 3], spreads[j]);
    check_bits(&dev, 2, 151936, 0.6f, 4.0f);
    if (invar_test_full())
        check_bits(&dev, 2, 4096 * 256 + 300, 1.0f, 4.0f); // REDUCE over the chunks has two levels
    invar_test_device_release(&dev);
}

static void test_logprob_fwd__entropy_is_optional(void **state)
{
    logprob_call p = logprob_call_new(4, 700, 0.9f, 3.0f, INVAR_DTYPE_F32);
    invar_tensor entropy = p.fwd.entropy;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    p.fwd.entropy = (invar_tensor){0};
    assert_ok(invar_logprob_fwd(&dev, &p.fwd));
    check_forward(&p);
    p.fwd.entropy = entropy;
    logprob_call_free(&p);
    invar_test_device_release(&dev);
}

/* dlogits may use the memory of the logits. */
static void test_logprob_bwd__works_in_place(void **state)
{
    logprob_call p = logprob_call_new(3, 1500, 0.9f, 3.0f, INVAR_DTYPE_F32);
    invar_logprob_bwd_args in_place = p.bwd;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_ok(invar_logprob_fwd(&dev, &p.fwd));
    assert_ok(invar_logprob_bwd(&dev, &p.bwd));
    in_place.dlogits = in_place.logits;
    assert_ok(invar_logprob_bwd(&dev, &in_place));
    invar_assert_bits_tensor(&in_place.dlogits, &p.bwd.dlogits, "in place");
    logprob_call_free(&p);
    invar_test_device_release(&dev);
}

/* Control: chunks of 128 tokens are another order of additions, with other bits. */
static void test_logprob_fwd__control_of_chunks(void **state)
{
    const int64_t tokens = 20, vocabulary = 5000;
    logprob_call p = logprob_call_new(tokens, vocabulary, 1.0f, 3.0f, INVAR_DTYPE_F32);
    int logps = 0, entropies = 0;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_ok(invar_logprob_fwd(&dev, &p.fwd));
    for (int64_t t = 0; t < tokens; t++) {
        token_result r =
            logprob_ref(token_logits(&p, t), vocabulary, token_target(&p, t), 1.0f, 128);
        logps += r.logp != invar_test_get(&p.fwd.logp, t, 0);
        entropies += r.entropy != invar_test_get(&p.fwd.entropy, t, 0);
    }
    assert_true(logps > 0 && entropies > 0);
    logprob_call_free(&p);
    invar_test_device_release(&dev);
}

/* ---- parts of a vocabulary ------------------------------------------------------------------- */

/* Returns the first token id of part p. */
static int64_t part_start(int64_t vocabulary, int32_t parts, int32_t p)
{
    int64_t chunks = (vocabulary + CONTRACT_CHUNK - 1) / CONTRACT_CHUNK;
    int64_t first = (p * chunks + parts - 1) / parts * CONTRACT_CHUNK;

    return first < vocabulary ? first : vocabulary;
}

/* Computes the sums of `parts` parts of the vocabulary, one per rank, and the arguments to join. */
static invar_logprob_join_args join_new(const invar_device *dev, const logprob_call *p,
                                        int32_t parts)
{
    const invar_logprob_fwd_args *f = &p->fwd;
    int64_t tokens = f->logits.shape[0], vocabulary = f->logits.shape[1];
    invar_tensor local_targets = new_vector(INVAR_DTYPE_I32, tokens);
    invar_logprob_join_args join = {
        .logp = new_vector(INVAR_DTYPE_F32, tokens),
        .entropy = new_vector(INVAR_DTYPE_F32, tokens),
        .max = new_vector(INVAR_DTYPE_F32, tokens),
        .logsum = new_vector(INVAR_DTYPE_F32, tokens),
        .sums = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, parts * tokens,
                                                   invar_logprob_sum_columns(vocabulary, parts)),
                                   2),
        .targets = f->targets,
        .vocabulary = vocabulary,
        .parts = parts,
        .temperature = f->temperature};

    for (int32_t r = 0; r < parts; r++) {
        int64_t first = part_start(vocabulary, parts, r);
        int64_t count = part_start(vocabulary, parts, r + 1) - first;
        for (int64_t t = 0; t < tokens; t++) {
            int64_t target = token_target(p, t) - first;
            ((int32_t *)local_targets.data)[t] =
                (int32_t)(target >= 0 && target < count ? target : count);
        }
        assert_ok(invar_logprob_sum(
            dev,
            &(invar_logprob_sum_args){.sums = invar_tensor_rows(&join.sums, r * tokens, tokens),
                                      .logits = invar_tensor_columns(&f->logits, first, count),
                                      .targets = local_targets,
                                      .temperature = f->temperature}));
    }
    invar_test_free(&local_targets);
    return join;
}

static void join_free(invar_logprob_join_args *join)
{
    invar_test_free(&join->logp, &join->entropy, &join->max, &join->logsum, &join->sums);
}

static void assert_joined(const logprob_call *p, const invar_logprob_join_args *join)
{
    invar_assert_bits_tensor(&join->logp, &p->fwd.logp, "logp of parts");
    invar_assert_bits_tensor(&join->entropy, &p->fwd.entropy, "entropy of parts");
    invar_assert_bits_tensor(&join->max, &p->fwd.max, "max of parts");
    invar_assert_bits_tensor(&join->logsum, &p->fwd.logsum, "logsum of parts");
}

/* The bits do not depend on the number of ranks, even if some ranks have no chunk. */
static void test_logprob_join__equals_one_rank(void **state)
{
    static const int64_t sizes[] = {1, 256, 257, 1000, 2816, 5000, 151936};
    static const int32_t ranks[] = {1, 2, 3, 4, 8, 16};
    const float temperatures[] = {1.0f, 0.7f};
    const int64_t tokens = 8;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 2);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        logprob_call p =
            logprob_call_new(tokens, sizes[i], temperatures[i % 2], 4.0f, INVAR_DTYPE_F32);

        for (int32_t t = 0; t < tokens; t++) // targets spread over the parts
            ((int32_t *)p.fwd.targets.data)[t] = (int32_t)(t * (sizes[i] - 1) / (tokens - 1));
        assert_ok(invar_logprob_fwd(&dev, &p.fwd));
        for (size_t j = 0; j < sizeof ranks / sizeof *ranks; j++) {
            invar_logprob_join_args join = join_new(&dev, &p, ranks[j]);
            assert_ok(invar_logprob_join(&dev, &join));
            assert_joined(&p, &join);
            join_free(&join);
        }
        logprob_call_free(&p);
    }
    invar_test_device_release(&dev);
}

/* A part without chunks has zeros, so that every value that is sent is defined. */
static void test_logprob_sum__fills_the_row(void **state)
{
    logprob_call p = logprob_call_new(2, 300, 1.0f, 4.0f, INVAR_DTYPE_F32);
    invar_logprob_join_args join;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    join = join_new(&dev, &p, 4); // two chunks, so parts 1 and 3 have none
    for (int64_t t = 0; t < 2; t++)
        for (int64_t i = 0; i < join.sums.shape[1]; i++) {
            assert_true(invar_test_get(&join.sums, 2 * 1 + t, i) == 0.0f);
            assert_true(invar_test_get(&join.sums, 2 * 3 + t, i) == 0.0f);
        }
    join_free(&join);
    logprob_call_free(&p);
    invar_test_device_release(&dev);
}

/* Control: reduces the chunks of each rank first, and then the ranks, as an all-reduce would. */
static float logsum_by_rank(const logprob_call *p, int64_t token, int32_t parts)
{
    int64_t vocabulary = p->fwd.logits.shape[1];
    float largest = largest_ref(token_logits(p, token), vocabulary), total = 0.0f;

    for (int32_t r = 0; r < parts; r++) {
        int64_t first = part_start(vocabulary, parts, r);
        int64_t count = part_start(vocabulary, parts, r + 1) - first;
        token_result part =
            logprob_ref(token_logits(p, token) + first, count, 0, 1.0f, CONTRACT_CHUNK);
        total += invar_exp(part.logsum + (part.max - largest));
    }
    return invar_log(total);
}

/* Controls: sums by rank, and parts in another order, give other bits. */
static void test_logprob_join__control_of_order(void **state)
{
    const int64_t tokens = 20, vocabulary = 8 * CONTRACT_CHUNK;
    logprob_call p = logprob_call_new(tokens, vocabulary, 1.0f, 3.0f, INVAR_DTYPE_F32);
    invar_logprob_join_args join;
    int by_rank = 0;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_ok(invar_logprob_fwd(&dev, &p.fwd));
    for (int64_t t = 0; t < tokens; t++)
        by_rank += logsum_by_rank(&p, t, 2) != invar_test_get(&p.fwd.logsum, t, 0);
    assert_true(by_rank > 0);

    join = join_new(&dev, &p, 4);
    for (int64_t t = tokens; t < 2 * tokens; t++) // exchanges the second part and the third
        for (int64_t i = 0; i < join.sums.shape[1] - 1; i++) {
            float first = invar_test_get(&join.sums, t, i);
            invar_test_set(&join.sums, t, i, invar_test_get(&join.sums, tokens + t, i));
            invar_test_set(&join.sums, tokens + t, i, first);
        }
    assert_ok(invar_logprob_join(&dev, &join));
    invar_assert_bits_tensor(&join.max, &p.fwd.max, "max"); // does not depend on the order
    assert_true(invar_tensors_differ(&join.logsum, &p.fwd.logsum));
    join_free(&join);
    logprob_call_free(&p);
    invar_test_device_release(&dev);
}

static void test_logprob_join__rejects_bad_arguments(void **state)
{
    logprob_call p = logprob_call_new(3, 600, 1.0f, 1.0f, INVAR_DTYPE_F32);
    invar_logprob_sum_args sum;
    invar_logprob_join_args join;
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    join = join_new(&dev, &p, 2);
    sum = (invar_logprob_sum_args){.sums = invar_tensor_rows(&join.sums, 0, 3),
                                   .logits = invar_tensor_columns(&p.fwd.logits, 0, 512),
                                   .targets = p.fwd.targets,
                                   .temperature = 1.0f};
    for (int t = 0; t < 3; t++)
        ((int32_t *)p.fwd.targets.data)[t] = 512 - t;
    assert_ok(invar_logprob_sum(&dev, &sum));
    assert_field_invalid(logprob_sum, sum, sums.shape[1], 6, "logprob.sum: sums: 6 columns");
    assert_field_invalid(logprob_sum, sum, sums.shape[1], 4, "logprob.sum: sums: 4 columns");
    assert_field_invalid(logprob_sum, sum, logits.shape[1], 511, "logprob.sum: targets");
    assert_field_invalid(logprob_sum, sum, temperature, 0.0f, "logprob.sum: temperature: 0");

    assert_ok(invar_logprob_join(&dev, &join));
    assert_field_invalid(logprob_join, join, vocabulary, 0, "logprob.join: vocabulary: 0");
    assert_field_invalid(logprob_join, join, vocabulary, 512, "logprob.join: targets");
    assert_field_invalid(logprob_join, join, vocabulary, 1100,
                         "logprob.join: sums: extent 7 of index 1; expected 10");
    assert_field_invalid(logprob_join, join, parts, 0, "logprob.join: parts: 0");
    assert_field_invalid(logprob_join, join, parts, 3,
                         "logprob.join: sums: extent 6 of index 0; expected 9");
    assert_field_invalid(logprob_join, join, max.shape[0], 2, "logprob.join: max: extent 2");
    assert_field_invalid(logprob_join, join, temperature, NAN, "logprob.join: temperature: ");
    join_free(&join);
    logprob_call_free(&p);
    invar_test_device_release(&dev);
}

/* ---- accuracy -------------------------------------------------------------------------------- */

typedef struct f64_result {
    double logp;
    double entropy;
} f64_result;

static f64_result logprob_f64(const double *z, int64_t vocabulary, int32_t target)
{
    double largest = -INFINITY, total = 0.0, weighted = 0.0;

    for (int64_t v = 0; v < vocabulary; v++)
        largest = fmax(largest, z[v]);
    for (int64_t v = 0; v < vocabulary; v++) {
        total += exp(z[v] - largest);
        weighted += exp(z[v] - largest) * (z[v] - largest);
    }
    return (f64_result){z[target] - largest - log(total), log(total) - weighted / total};
}

/* Returns the logits of one token in double, divided by the temperature. The caller frees them. */
static double *scaled_logits(const logprob_call *p, int64_t token)
{
    int64_t vocabulary = p->fwd.logits.shape[1];
    double *z = malloc((size_t)vocabulary * sizeof *z);

    assert_non_null(z);
    for (int64_t v = 0; v < vocabulary; v++)
        z[v] = (double)token_logits(p, token)[v] / (double)p->fwd.temperature;
    return z;
}

/* The error bounds include two roundings of z, about 1e-7 |z|. */
static void test_logprob__accuracy_vs_f64(void **state)
{
    static const int64_t sizes[] = {2, 1000, 151936};
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    for (int i = 0; i < 9; i++) {
        float temperature = i % 3 == 0 ? 1.0f : i % 3 == 1 ? 0.6f : 1.7f;
        int64_t vocabulary = sizes[i / 3];
        logprob_call p = logprob_call_new(3, vocabulary, temperature, 4.0f, INVAR_DTYPE_F32);

        assert_ok(invar_logprob_fwd(&dev, &p.fwd));
        assert_ok(invar_logprob_bwd(&dev, &p.bwd));
        for (int64_t t = 0; t < 3; t++) {
            double *z = scaled_logits(&p, t);
            f64_result r = logprob_f64(z, vocabulary, token_target(&p, t));
            double dlogp = (double)invar_test_get(&p.bwd.dlogp, t, 0);
            double dentropy = (double)invar_test_get(&p.bwd.dentropy, t, 0);
            double lse = z[token_target(&p, t)] - r.logp;

            assert_true(fabs((double)invar_test_get(&p.fwd.logp, t, 0) - r.logp) <= 5e-6);
            assert_true(fabs((double)invar_test_get(&p.fwd.entropy, t, 0) - r.entropy) <= 5e-6);
            for (int64_t v = 0; v < vocabulary; v++) {
                double lp = z[v] - lse, q = exp(lp);
                double g =
                    dlogp * ((v == token_target(&p, t)) - q) - dentropy * q * (lp + r.entropy);
                double got = (double)invar_test_get(&p.bwd.dlogits, t, v);
                assert_true(fabs(got - g / (double)temperature) <= 2e-6 + 1e-5 * q);
            }
            free(z);
        }
        logprob_call_free(&p);
    }
    invar_test_device_release(&dev);
}

static void test_logprob_bwd__matches_finite_differences(void **state)
{
    const int64_t tokens = invar_test_count(4, 50), vocabulary = 40;
    const float temperature = 0.8f;
    const double step = 1e-5;
    logprob_call p = logprob_call_new(tokens, vocabulary, temperature, 2.0f, INVAR_DTYPE_F32);
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_ok(invar_logprob_fwd(&dev, &p.fwd));
    assert_ok(invar_logprob_bwd(&dev, &p.bwd));
    for (int64_t t = 0; t < tokens; t++) {
        double *z = scaled_logits(&p, t), by = step / (double)temperature;
        for (int64_t v = 0; v < vocabulary; v++) {
            double before = z[v], slope;
            f64_result up, down;

            z[v] = before + by;
            up = logprob_f64(z, vocabulary, token_target(&p, t));
            z[v] = before - by;
            down = logprob_f64(z, vocabulary, token_target(&p, t));
            z[v] = before;
            slope = (double)invar_test_get(&p.bwd.dlogp, t, 0) * (up.logp - down.logp) +
                    (double)invar_test_get(&p.bwd.dentropy, t, 0) * (up.entropy - down.entropy);
            slope /= 2 * step;
            assert_true(fabs((double)invar_test_get(&p.bwd.dlogits, t, v) - slope) <= 4e-6);
        }
        free(z);
    }
    logprob_call_free(&p);
    invar_test_device_release(&dev);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void test_logprob__rejects_bad_arguments(void **state)
{
    logprob_call p = logprob_call_new(3, 10, 1.0f, 1.0f, INVAR_DTYPE_BF16);
    invar_device dev;

    (void)state;
    invar_test_device_init(&dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    assert_ok(invar_logprob_fwd(&dev, &p.fwd));
    assert_field_invalid(logprob_fwd, p.fwd, logits.dtype, INVAR_DTYPE_BF16,
                         "logprob.fwd: logits: type bf16");
    assert_field_invalid(logprob_fwd, p.fwd, logits.shape[1], 0, "logprob.fwd: vocabulary: 0");
    assert_field_invalid(logprob_fwd, p.fwd, logits.shape[0], 2, "logprob.fwd: targets: extent 3");
    assert_field_invalid(logprob_fwd, p.fwd, targets.dtype, INVAR_DTYPE_F32,
                         "logprob.fwd: targets: type f32");
    assert_field_invalid(logprob_fwd, p.fwd, logp.shape[0], 2, "logprob.fwd: logp: extent 2");
    assert_field_invalid(logprob_fwd, p.fwd, logp.dtype, INVAR_DTYPE_NONE,
                         "logprob.fwd: logp: missing");
    assert_field_invalid(logprob_fwd, p.fwd, entropy.shape[0], 4, "logprob.fwd: entropy: extent 4");
    assert_field_invalid(logprob_fwd, p.fwd, max.data, NULL, "logprob.fwd: max: no data");
    assert_field_invalid(logprob_fwd, p.fwd, logsum.dtype, INVAR_DTYPE_BF16,
                         "logprob.fwd: logsum: type bf16");
    assert_field_invalid(logprob_fwd, p.fwd, temperature, 0.0f, "logprob.fwd: temperature: 0");
    assert_field_invalid(logprob_fwd, p.fwd, temperature, -1.0f, "logprob.fwd: temperature: -1");
    assert_field_invalid(logprob_fwd, p.fwd, temperature, 1e-39f,
                         "logprob.fwd: temperature: 1e-39");
    assert_field_invalid(logprob_fwd, p.fwd, temperature, INFINITY,
                         "logprob.fwd: temperature: inf");
    assert_field_invalid(logprob_fwd, p.fwd, temperature, NAN, "logprob.fwd: temperature: ");

    assert_ok(invar_logprob_bwd(&dev, &p.bwd));
    assert_field_invalid(logprob_bwd, p.bwd, dlogits.dtype, INVAR_DTYPE_I32,
                         "logprob.bwd: dlogits: type i32");
    assert_field_invalid(logprob_bwd, p.bwd, dlogits.shape[1], 9, "logprob.bwd: dlogits: extent 9");
    assert_field_invalid(logprob_bwd, p.bwd, dlogp.shape[0], 2, "logprob.bwd: dlogp: extent 2");
    assert_field_invalid(logprob_bwd, p.bwd, dentropy.shape[0], 2,
                         "logprob.bwd: dentropy: extent 2");
    assert_field_invalid(logprob_bwd, p.bwd, entropy.dtype, INVAR_DTYPE_NONE,
                         "logprob.bwd: entropy: missing");
    assert_field_invalid(logprob_bwd, p.bwd, max.shape[0], 2, "logprob.bwd: max: extent 2");
    assert_field_invalid(logprob_bwd, p.bwd, logsum.rank, 2, "logprob.bwd: logsum: rank 2");
    assert_field_invalid(logprob_bwd, p.bwd, temperature, 0.0f, "logprob.bwd: temperature: 0");
    ((int32_t *)p.fwd.targets.data)[1] = 10;
    assert_field_invalid(logprob_fwd, p.fwd, temperature, 1.0f,
                         "logprob.fwd: targets: value 10 in row 1");
    ((int32_t *)p.fwd.targets.data)[1] = -1;
    assert_field_invalid(logprob_bwd, p.bwd, temperature, 1.0f,
                         "logprob.bwd: targets: value -1 in row 1");
    logprob_call_free(&p);
    invar_test_device_release(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logprob__equals_the_expression),
        cmocka_unit_test(test_logprob_fwd__entropy_is_optional),
        cmocka_unit_test(test_logprob_bwd__works_in_place),
        cmocka_unit_test(test_logprob_fwd__control_of_chunks),
        cmocka_unit_test(test_logprob_join__equals_one_rank),
        cmocka_unit_test(test_logprob_sum__fills_the_row),
        cmocka_unit_test(test_logprob_join__control_of_order),
        cmocka_unit_test(test_logprob_join__rejects_bad_arguments),
        cmocka_unit_test(test_logprob__accuracy_vs_f64),
        cmocka_unit_test(test_logprob_bwd__matches_finite_differences),
        cmocka_unit_test(test_logprob__rejects_bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
