/*
 * attention_expression.h - the expression of attention, written naively, as a reference for tests.
 *
 * Each sum is one scalar loop without tiles. The only code shared with the op is the reference of
 * the dot-step and the elementary functions. A twist is a negative control: it changes one order of
 * summation, the reference of a row's softmax, or its exponential.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_KERNELS_CPU_ATTENTION_EXPRESSION_H
#define INVAR_TESTS_UNIT_KERNELS_CPU_ATTENTION_EXPRESSION_H

#include <math.h>
#include <stdlib.h>

#include "kernels-deterministic/math/bf16.h"
#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/sfu.h"
#include "kernels-deterministic/step/step.h"
#include "tests/unit/kernels-deterministic/cpu/attention_case.h"

/* Combinations of type and numerics that tests iterate over. */
static const struct {
    invar_dtype dtype;
    invar_numerics numerics;
} attention_kinds[] = {
    {INVAR_DTYPE_BF16, INVAR_NUMERICS_SM90},
    {INVAR_DTYPE_BF16, INVAR_NUMERICS_IEEE},
    {INVAR_DTYPE_F32, INVAR_NUMERICS_IEEE},
    {INVAR_DTYPE_F32, INVAR_NUMERICS_SM90},
};

typedef enum attention_twist {
    TWIST_NONE,
    TWIST_BLOCKS_DESCENDING, /* forward: key blocks from the last to the first */
    TWIST_BLOCK_HALVED,      /* forward: key blocks of half the size */
    TWIST_BLOCKS_SHIFTED,    /* forward: blocks counted from 41 keys before the sample */
    TWIST_ONE_LANE,          /* forward: the row sum in one lane instead of eight */
    TWIST_OTHER_POLYNOMIAL,  /* both: the polynomial of the other storage type */
    TWIST_DQ_ASCENDING,      /* backward: dq adds key blocks from the first to the last */
    TWIST_HEADS_DESCENDING,  /* backward: dk, dv take the query heads from the last to the first */
    TWIST_RISES_EARLY,       /* forward: the reference rises by more than 7, not 8 */
    TWIST_RISES_LATE,        /* forward: the reference rises by more than 9 */
    TWIST_SFU,               /* both: always weights by the special function unit */
    TWIST_POLYNOMIAL,        /* both: always weights by the polynomial of the storage type */
    TWIST_COUNT
} attention_twist;

/* One sample with its results, all values in f32. */
typedef struct expression {
    const attention_form *form;
    attention_twist twist;
    int64_t length;
    int64_t group;
    int64_t block;
    int64_t kv_span, q_span;
    int32_t head_shards;
    int64_t head_atom;
    float scale;
    float c;
    float *q, *k, *v, *d_o;         /* (L, H, D) */
    float *o, *lse2, *dq, *dk, *dv; /* (L, H, D), lse2 (L, HQ) */
    float *p, *ds;                  /* (HQ, L, L) used by the backward */
} expression;

static inline float *expression_load(const attention_pack *pack, const invar_tensor *t, int64_t i)
{
    invar_tensor rows = attention_rows(pack, t, i);
    int64_t cols = invar_tensor_row_elements(t);
    float *x = malloc((size_t)(rows.shape[0] * cols) * sizeof *x + 1);

    assert_non_null(x);
    for (int64_t r = 0; r < rows.shape[0]; r++)
        for (int64_t j = 0; j < cols; j++)
            x[r * cols + j] = invar_test_get(&rows, r, j);
    return x;
}

static inline void expression_store(const attention_pack *pack, const invar_tensor *t, int64_t i,
                                    const float *x)
{
    invar_tensor rows = attention_rows(pack, t, i);
    int64_t cols = invar_tensor_row_elements(t);

    for (int64_t r = 0; r < rows.shape[0]; r++)
        for (int64_t j = 0; j < cols; j++)
            invar_test_set(&rows, r, j, x[r * cols + j]);
}

static inline expression expression_init(const attention_pack *pack, int64_t i,
                                         attention_twist twist)
{
    const attention_form *form = &pack->form;
    int64_t length = pack->start[i + 1] - pack->start[i];
    float scale = form->shape.scale;
    expression e = {.form = form,
                    .twist = twist,
                    .length = length,
                    .head_shards = pack->head_shards,
                    .head_atom = pack->head_atom};

    if (scale == 0.0f)
        scale = (float)(1.0 / sqrt((double)form->dim));
    e.group = form->heads / form->kv_heads;
    e.block = form->dim > 128 ? 64 : 128;
    if (twist == TWIST_BLOCK_HALVED)
        e.block /= 2;
    e.kv_span = form->shape.kv_span > 0 ? form->shape.kv_span : INT64_C(1) << 40;
    e.q_span = form->shape.q_span > 0 ? form->shape.q_span : INT64_C(1) << 40;
    e.scale = scale;
    e.c = (float)((double)scale * 1.4426950408889634);
    e.q = expression_load(pack, &pack->q, i);
    e.k = expression_load(pack, &pack->k, i);
    e.v = expression_load(pack, &pack->v, i);
    e.d_o = expression_load(pack, &pack->d_o, i);
    e.o = expression_load(pack, &pack->o, i);
    e.lse2 = expression_load(pack, &pack->lse2, i);
    e.dq = expression_load(pack, &pack->dq, i);
    e.dk = expression_load(pack, &pack->dk, i);
    e.dv = expression_load(pack, &pack->dv, i);
    return e;
}

static inline void expression_release(expression *e)
{
    float *all[] = {e->q, e->k, e->v, e->d_o, e->o, e->lse2, e->dq, e->dk, e->dv, e->p, e->ds};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static inline float expression_round(const expression *e, float x)
{
    return e->form->dtype == INVAR_DTYPE_BF16 ? invar_round_bf16(x) : x;
}

/* Returns whether weights use the shorter polynomial for bf16. */
static inline bool expression_uses_bf16_polynomial(const expression *e)
{
    return (e->form->dtype == INVAR_DTYPE_BF16) != (e->twist == TWIST_OTHER_POLYNOMIAL);
}

/* Returns whether weights use the special function unit. */
static inline bool expression_uses_sfu(const expression *e)
{
    return e->twist == TWIST_SFU ||
           (e->form->dtype == INVAR_DTYPE_BF16 && e->form->numerics == INVAR_NUMERICS_SM90 &&
            e->twist != TWIST_POLYNOMIAL && e->twist != TWIST_OTHER_POLYNOMIAL);
}

/* The chain over a[k], b[k] for k < n; products outside [begin, end) are skipped. */
static inline float expression_chain(const expression *e, float acc, const float *a, int64_t a_step,
                                     const float *b, int64_t b_step, int64_t n, int64_t begin,
                                     int64_t end)
{
    if (e->form->dtype == INVAR_DTYPE_F32 || e->form->numerics == INVAR_NUMERICS_IEEE) {
        for (int64_t k = begin; k < end; k++)
            acc = fmaf(a[k * a_step], b[k * b_step], acc);
        return acc;
    }
    for (int64_t first = 0; first < n; first += INVAR_STEP_BF16) {
        uint16_t x[INVAR_STEP_BF16] = {0}, y[INVAR_STEP_BF16] = {0};

        for (int64_t k = first; k < first + INVAR_STEP_BF16 && k < n; k++) {
            if (k >= begin && k < end) {
                x[k - first] = invar_bf16_from_f32(a[k * a_step]);
                y[k - first] = invar_bf16_from_f32(b[k * b_step]);
            }
        }
        acc = invar_bits_f32(invar_step_sm90_bf16_ref(invar_f32_bits(acc), x, y));
    }
    return acc;
}

static inline bool expression_sees(const expression *e, int64_t i, int64_t j)
{
    return j <= i && (e->form->shape.window == 0 || j > i - e->form->shape.window);
}

/* Finds the keys [*begin, *end) of [first, last) that query i sees; false if there is none. */
static inline bool expression_visible(const expression *e, int64_t i, int64_t first, int64_t last,
                                      int64_t *begin, int64_t *end)
{
    *begin = first;
    while (*begin < last && !expression_sees(e, i, *begin))
        ++*begin;
    *end = *begin;
    while (*end < last && expression_sees(e, i, *end))
        ++*end;
    return *begin < *end;
}

static inline float expression_score(const expression *e, int64_t i, int64_t h, int64_t j)
{
    int64_t dim = e->form->dim;
    const float *q = e->q + (i * e->form->heads + h) * dim;
    const float *k = e->k + (j * e->form->kv_heads + h / e->group) * dim;

    return expression_chain(e, 0.0f, q, 1, k, 1, dim, 0, dim) + 0.0f;
}

/* ---- forward --------------------------------------------------------------------------------- */

typedef struct expression_state {
    float m;
    float l[8];
    float o[INVAR_ATTENTION_MAX_DIM];
} expression_state;

/* Returns the weight of a score in a row with the reference m. */
static inline float expression_weight(const expression *e, float s, float m)
{
    if (expression_uses_sfu(e))
        return invar_sfu_ex2(fmaf(s, e->c, -m));
    return expression_uses_bf16_polynomial(e) ? invar_exp2d_bf16(s, e->c, m)
                                              : invar_exp2d(s, e->c, m);
}

static inline void expression_block(const expression *e, expression_state *state, int64_t i,
                                    int64_t h, int64_t first, int64_t last, int64_t begin,
                                    int64_t end)
{
    const attention_form *f = e->form;
    float s[INVAR_ATTENTION_BLOCK], p[INVAR_ATTENTION_BLOCK] = {0};
    float slack = e->twist == TWIST_RISES_EARLY ? 7.0f : e->twist == TWIST_RISES_LATE ? 9.0f : 8.0f;
    float top = -INFINITY, m, alpha;

    for (int64_t j = begin; j < end; j++) {
        s[j - first] = expression_score(e, i, h, j);
        top = s[j - first] > top ? s[j - first] : top;
    }
    m = top * e->c <= state->m + slack ? state->m : ceilf(top * e->c);
    alpha = invar_exp2s(state->m - m);
    for (int lane = 0; lane < 8; lane++)
        state->l[lane] *= alpha;
    for (int64_t j = begin; j < end; j++) {
        float x = expression_weight(e, s[j - first], m);

        state->l[e->twist == TWIST_ONE_LANE ? 0 : j % 8] += x;
        p[j - first] = expression_round(e, x);
    }
    for (int64_t d = 0; d < f->dim; d++)
        state->o[d] = expression_chain(
            e, state->o[d] * alpha, p, 1, e->v + (first * f->kv_heads + h / e->group) * f->dim + d,
            f->kv_heads * f->dim, last - first, begin - first, end - first);
    state->m = m;
}

static inline void expression_row(const expression *e, int64_t i, int64_t h)
{
    int64_t dim = e->form->dim, shift = e->twist == TWIST_BLOCKS_SHIFTED ? 41 : 0;
    int64_t blocks = (e->length + shift + e->block - 1) / e->block;
    float m = -INFINITY, l = 0.0f, o[INVAR_ATTENTION_MAX_DIM] = {0};
    bool started = false;

    for (int64_t span0 = 0; span0 < e->length; span0 += e->kv_span) {
        expression_state state = {.m = -INFINITY};
        bool seen = false;
        float total, top, alpha, beta;

        for (int64_t n = 0; n < blocks; n++) {
            int64_t b = e->twist == TWIST_BLOCKS_DESCENDING ? blocks - 1 - n : n;
            int64_t first = b * e->block - shift, last = first + e->block, begin, end;

            first = first > span0 ? first : span0;
            last = last < span0 + e->kv_span ? last : span0 + e->kv_span;
            last = last < e->length ? last : e->length;
            if (first < last && expression_visible(e, i, first, last, &begin, &end)) {
                expression_block(e, &state, i, h, first, last, begin, end);
                seen = true;
            }
        }
        if (!seen)
            continue;
        for (int half = 4; half > 0; half /= 2)
            for (int lane = 0; lane < half; lane++)
                state.l[lane] += state.l[lane + half];
        total = state.l[0];
        top = state.m > m ? state.m : m;
        alpha = invar_exp2s(m - top);
        beta = invar_exp2s(state.m - top);
        for (int64_t d = 0; d < dim; d++)
            o[d] = started ? fmaf(state.o[d], beta, o[d] * alpha) : state.o[d];
        l = started ? fmaf(total, beta, l * alpha) : total;
        m = top;
        started = true;
    }
    for (int64_t d = 0; d < dim; d++)
        e->o[(i * e->form->heads + h) * dim + d] = expression_round(e, o[d] / l + 0.0f);
    e->lse2[i * e->form->heads + h] = fmaf(invar_log(l), invar_bits_f32(0x3FB8AA3B), m);
}

/* Fills o and lse2 of one sample. */
static inline void expression_forward(const attention_pack *pack, int64_t sample,
                                      attention_twist twist)
{
    expression e = expression_init(pack, sample, twist);

    for (int64_t i = 0; i < e.length; i++)
        for (int64_t h = 0; h < e.form->heads; h++)
            expression_row(&e, i, h);
    expression_store(pack, &pack->o, sample, e.o);
    expression_store(pack, &pack->lse2, sample, e.lse2);
    expression_release(&e);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Returns 2^x, the probability of a score relative to lse2. */
static inline float expression_probability(const expression *e, float x)
{
    if (expression_uses_sfu(e))
        return invar_sfu_ex2(x);
    return expression_uses_bf16_polynomial(e) ? invar_exp2s_bf16(x) : invar_exp2s(x);
}

/* Computes p and ds, rounded to the storage type, of query i in head h. */
static inline void expression_probabilities(const expression *e, int64_t i, int64_t h)
{
    int64_t dim = e->form->dim, at = i * e->form->heads + h;
    const float *d_o = e->d_o + at * dim;
    float x[INVAR_ATTENTION_MAX_DIM] = {0}, delta;

    for (int64_t d = 0; d < dim; d++)
        x[d] = d_o[d] * e->o[at * dim + d];
    delta = invar_test_reduce(x, dim);
    for (int64_t j = 0; j <= i; j++) {
        const float *v = e->v + (j * e->form->kv_heads + h / e->group) * dim;
        float exponent, p, dp;

        if (!expression_sees(e, i, j))
            continue;
        exponent = fmaf(expression_score(e, i, h, j), e->c, -e->lse2[at]);
        p = expression_probability(e, exponent);
        dp = expression_chain(e, 0.0f, d_o, 1, v, 1, dim, 0, dim) + 0.0f;
        e->p[(h * e->length + i) * e->length + j] = expression_round(e, p);
        e->ds[(h * e->length + i) * e->length + j] = expression_round(e, p * (dp - delta));
    }
}

static inline void expression_query_gradient(const expression *e, int64_t i, int64_t h)
{
    int64_t dim = e->form->dim, kv_row = e->form->kv_heads * dim;
    int64_t blocks = (e->length + e->block - 1) / e->block, begin, end;
    const float *ds = e->ds + (h * e->length + i) * e->length;
    const float *k = e->k + h / e->group * dim;

    for (int64_t d = 0; d < dim; d++) {
        float total = 0.0f;

        for (int64_t span0 = 0; span0 < e->length; span0 += e->kv_span) {
            float sum = 0.0f;

            for (int64_t n = 0; n < blocks; n++) {
                int64_t b = e->twist == TWIST_DQ_ASCENDING ? n : blocks - 1 - n;
                int64_t first = b * e->block, last = first + e->block;

                last = last < e->length ? last : e->length;
                if (first / e->kv_span == span0 / e->kv_span &&
                    expression_visible(e, i, first, last, &begin, &end))
                    sum += expression_chain(e, 0.0f, ds + first, 1, k + first * kv_row + d, kv_row,
                                            last - first, begin - first, end - first) +
                           0.0f;
            }
            total += sum;
        }
        e->dq[(i * e->form->heads + h) * dim + d] = expression_round(e, total * e->scale);
    }
}

/* Returns whether a query head is in a logical shard: atom a of n is in shard floor(a V / n). */
static inline bool expression_in_shard(const expression *e, int64_t h, int32_t shard)
{
    int64_t atoms;

    if (e->head_shards <= 1)
        return true;
    atoms = (e->form->heads + e->head_atom - 1) / e->head_atom;
    return h / e->head_atom * e->head_shards / atoms == shard;
}

/* Sums one element of dk or dv over the heads of a shard and the queries of a span. */
static inline float expression_shard_sum(const expression *e, const float *weights, const float *x,
                                         int64_t j, int64_t g, int64_t d, int64_t span0, int64_t n,
                                         int64_t begin, int64_t end, int32_t shard)
{
    int64_t row = e->form->heads * e->form->dim;
    float sum = 0.0f;

    for (int64_t a = 0; a < e->group; a++) {
        int64_t h = g * e->group + (e->twist == TWIST_HEADS_DESCENDING ? e->group - 1 - a : a);

        if (expression_in_shard(e, h, shard))
            sum = expression_chain(e, sum, weights + (h * e->length + span0) * e->length + j,
                                   e->length, x + span0 * row + h * e->form->dim + d, row, n, begin,
                                   end);
    }
    return sum + 0.0f;
}

/* Sums one element of dk or dv: `weights` (HQ, L, L) times `x` (L, HQ, D). */
static inline float expression_key_sum(const expression *e, const float *weights, const float *x,
                                       int64_t j, int64_t g, int64_t d)
{
    int32_t shards = e->head_shards > 1 ? e->head_shards : 1;
    float total = 0.0f;

    for (int64_t span0 = 0; span0 < e->length; span0 += e->q_span) {
        int64_t n = e->length - span0 < e->q_span ? e->length - span0 : e->q_span, begin, end;
        float shard[INVAR_LINEAR_MAX_SHARDS];

        for (begin = 0; begin < n && !expression_sees(e, span0 + begin, j);)
            begin++;
        for (end = begin; end < n && expression_sees(e, span0 + end, j);)
            end++;
        for (int32_t v = 0; v < shards; v++)
            shard[v] = expression_shard_sum(e, weights, x, j, g, d, span0, n, begin, end, v);
        for (int32_t apart = 1; apart < shards; apart *= 2) // adjacent shards first
            for (int32_t v = 0; v < shards; v += 2 * apart)
                shard[v] = shard[v] + shard[v + apart];
        total += shard[0];
    }
    return total;
}

/* Fills dq, dk and dv of one sample from its o and lse2. */
static inline void expression_backward(const attention_pack *pack, int64_t sample,
                                       attention_twist twist)
{
    expression e = expression_init(pack, sample, twist);
    int64_t dim = e.form->dim, pairs = e.form->heads * e.length * e.length;

    e.p = calloc((size_t)pairs + 1, sizeof *e.p);
    e.ds = calloc((size_t)pairs + 1, sizeof *e.ds);
    assert_non_null(e.p);
    assert_non_null(e.ds);
    for (int64_t i = 0; i < e.length; i++)
        for (int64_t h = 0; h < e.form->heads; h++)
            expression_probabilities(&e, i, h);
    for (int64_t i = 0; i < e.length; i++)
        for (int64_t h = 0; h < e.form->heads; h++)
            expression_query_gradient(&e, i, h);
    for (int64_t j = 0; j < e.length; j++)
        for (int64_t g = 0; g < e.form->kv_heads; g++)
            for (int64_t d = 0; d < dim; d++) {
                int64_t at = (j * e.form->kv_heads + g) * dim + d;
                float dk = expression_key_sum(&e, e.ds, e.q, j, g, d) * e.scale;

                e.dk[at] = expression_round(&e, dk);
                e.dv[at] = expression_round(&e, expression_key_sum(&e, e.p, e.d_o, j, g, d));
            }
    expression_store(pack, &pack->dq, sample, e.dq);
    expression_store(pack, &pack->dk, sample, e.dk);
    expression_store(pack, &pack->dv, sample, e.dv);
    expression_release(&e);
}

#endif
