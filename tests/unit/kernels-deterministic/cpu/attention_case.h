/*
 * attention_case.h - packs of samples for the tests of attention, and calls of the ops on them.
 *
 * The values of a sample depend on its seed alone, so the results of equal samples in different
 * packs can be compared. All tensors have gaps between their rows, filled with NaN.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_KERNELS_CPU_ATTENTION_CASE_H
#define INVAR_TESTS_UNIT_KERNELS_CPU_ATTENTION_CASE_H

#include <stdio.h>
#include <string.h>

#include "tests/ops.h"

#define ATTENTION_MAX_SAMPLES 16
#define ATTENTION_GAP 3

typedef struct attention_form {
    invar_numerics numerics;
    invar_dtype dtype;
    int64_t heads;
    int64_t kv_heads;
    int64_t dim;
    invar_attention_shape shape;
} attention_form;

typedef struct attention_pack {
    attention_form form;
    int64_t start[ATTENTION_MAX_SAMPLES + 1];
    int64_t count;
    int32_t head_shards; /* logical shards of heads in the backward; 0 or 1 if there are none */
    int64_t head_atom;
    invar_tensor q, k, v, d_o;        /* inputs */
    invar_tensor o, lse2, dq, dk, dv; /* results */
} attention_pack;

static inline attention_pack attention_pack_new(const attention_form *form, int64_t count,
                                                const int64_t *lengths)
{
    attention_pack p = {.form = *form, .count = count};
    invar_tensor rows, kv_rows;

    assert_in_range(count, 1, ATTENTION_MAX_SAMPLES);
    for (int64_t i = 0; i < count; i++)
        p.start[i + 1] = p.start[i] + lengths[i];
    rows = invar_tensor_3d(NULL, form->dtype, p.start[count], form->heads, form->dim);
    kv_rows = invar_tensor_3d(NULL, form->dtype, p.start[count], form->kv_heads, form->dim);
    p.q = invar_test_strided(rows, ATTENTION_GAP);
    p.d_o = invar_test_strided(rows, ATTENTION_GAP);
    p.o = invar_test_strided(rows, ATTENTION_GAP);
    p.dq = invar_test_strided(rows, ATTENTION_GAP);
    p.k = invar_test_strided(kv_rows, ATTENTION_GAP);
    p.v = invar_test_strided(kv_rows, ATTENTION_GAP);
    p.dk = invar_test_strided(kv_rows, ATTENTION_GAP);
    p.dv = invar_test_strided(kv_rows, ATTENTION_GAP);
    p.lse2 = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, p.start[count], form->heads),
                                ATTENTION_GAP);
    return p;
}

static inline void attention_pack_free(attention_pack *p)
{
    invar_test_free(&p->q, &p->k, &p->v, &p->d_o, &p->o, &p->lse2, &p->dq, &p->dk, &p->dv);
}

/* Returns the rows of one sample. */
static inline invar_tensor attention_rows(const attention_pack *p, const invar_tensor *t,
                                          int64_t sample)
{
    return invar_tensor_rows(t, p->start[sample], p->start[sample + 1] - p->start[sample]);
}

/* Fills the inputs of a sample by its seed. Scores spread over several powers of two. */
static inline void attention_fill(const attention_pack *p, int64_t sample, uint64_t seed)
{
    invar_tensor q = attention_rows(p, &p->q, sample), k = attention_rows(p, &p->k, sample);
    invar_tensor v = attention_rows(p, &p->v, sample), d_o = attention_rows(p, &p->d_o, sample);

    invar_test_fill_normal(&q, 4 * seed, 1.5f);
    invar_test_fill_normal(&k, 4 * seed + 1, 1.5f);
    invar_test_fill_normal(&v, 4 * seed + 2, 1.0f);
    invar_test_fill_normal(&d_o, 4 * seed + 3, 1.0f);
}

/* Sets all inputs of a sample to one value: NaN, infinite or huge. */
static inline void attention_fill_constant(const attention_pack *p, int64_t sample, float value)
{
    const invar_tensor *inputs[] = {&p->q, &p->k, &p->v, &p->d_o};

    for (int i = 0; i < 4; i++) {
        invar_tensor rows = attention_rows(p, inputs[i], sample);
        invar_test_fill(&rows, value);
    }
}

/* Returns a pack of one sample. */
static inline attention_pack attention_sample(const attention_form *form, int64_t length,
                                              uint64_t seed)
{
    attention_pack p = attention_pack_new(form, 1, &length);

    attention_fill(&p, 0, seed);
    return p;
}

static inline invar_attention_fwd_args attention_fwd_args(const attention_pack *p)
{
    invar_attention_fwd_args args = {.o = p->o,
                                     .lse2 = p->lse2,
                                     .q = p->q,
                                     .k = p->k,
                                     .v = p->v,
                                     .samples = {p->start, p->count},
                                     .shape = p->form.shape};
    return args;
}

static inline invar_attention_bwd_args attention_bwd_args(const attention_pack *p)
{
    invar_attention_bwd_args args = {.dq = p->dq,
                                     .dk = p->dk,
                                     .dv = p->dv,
                                     .d_o = p->d_o,
                                     .o = p->o,
                                     .lse2 = p->lse2,
                                     .q = p->q,
                                     .k = p->k,
                                     .v = p->v,
                                     .samples = {p->start, p->count},
                                     .shape = p->form.shape,
                                     .head_shards = p->head_shards,
                                     .head_atom = p->head_atom};
    return args;
}

static inline void attention_forward(const invar_device *dev, const attention_pack *p)
{
    invar_attention_fwd_args args = attention_fwd_args(p);

    assert_ok(invar_attention_fwd(dev, &args));
}

static inline void attention_backward(const invar_device *dev, const attention_pack *p)
{
    invar_attention_bwd_args args = attention_bwd_args(p);

    assert_ok(invar_attention_bwd(dev, &args));
}

static inline void attention_run(const invar_device *dev, const attention_pack *p)
{
    attention_forward(dev, p);
    attention_backward(dev, p);
}

/* Asserts that the first `rows` rows of two samples have equal bits in o and lse2. */
static inline void assert_forward_bits(const attention_pack *a, int64_t i, const attention_pack *b,
                                       int64_t j, int64_t rows, const char *what)
{
    const invar_tensor *got[] = {&a->o, &a->lse2}, *expected[] = {&b->o, &b->lse2};
    static const char *const names[] = {"o", "lse2"};
    char text[160];

    for (int n = 0; n < 2; n++) {
        invar_tensor x = invar_tensor_rows(got[n], a->start[i], rows);
        invar_tensor y = invar_tensor_rows(expected[n], b->start[j], rows);

        snprintf(text, sizeof text, "%s: %s", what, names[n]);
        invar_assert_bits_tensor(&x, &y, text);
    }
}

/* Asserts that two samples have equal bits in all gradients. */
static inline void assert_backward_bits(const attention_pack *a, int64_t i, const attention_pack *b,
                                        int64_t j, const char *what)
{
    const invar_tensor *got[] = {&a->dq, &a->dk, &a->dv}, *expected[] = {&b->dq, &b->dk, &b->dv};
    static const char *const names[] = {"dq", "dk", "dv"};
    char text[160];

    for (int n = 0; n < 3; n++) {
        invar_tensor x = attention_rows(a, got[n], i), y = attention_rows(b, expected[n], j);

        snprintf(text, sizeof text, "%s: %s", what, names[n]);
        invar_assert_bits_tensor(&x, &y, text);
    }
}

#endif
