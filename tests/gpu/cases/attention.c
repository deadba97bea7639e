/*
 * attention.c - random calls of attention, packed and paged, and of kv.write.
 *
 * The first seeds are edge shapes: one token, one block and one more token, windows and spans that
 * split blocks and tiles, head dims around those of the kernels, no token at all. All other seeds
 * draw all properties: lengths, heads, types, strides, windows, spans, pages, chunks. Some scores
 * are so large that nearly all weights underflow, just or by far. Values that a row does not see
 * may be infinite or NaN, in bf16 only: the bits of a NaN in f32 are not promised. Keys and pages
 * that no row sees are NaN and out of range.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels-deterministic/tensor_row.h"
#include "tests/gpu/cases/cases.h"

#define MAX_WORK (INT64_C(1) << 23) /* multiply-adds of one case, except for edge shapes */
#define MAX_SAMPLES 5

typedef struct form {
    int64_t dim;
    int64_t heads;
    int64_t kv_heads;
    int64_t window;
    int64_t kv_span;
    int64_t q_span;
    int64_t lengths[MAX_SAMPLES]; /* lengths of samples or sequences; 0 after the last one */
} form;

static const form edges[] = {
    {64, 1, 1, 0, 0, 0, {1}},
    {128, 2, 1, 0, 0, 0, {128}},
    {64, 4, 2, 0, 0, 0, {129, 1}},
    {128, 1, 1, 0, 0, 0, {257}},
    {64, 2, 2, 100, 0, 0, {300}},
    {128, 2, 1, 1, 0, 0, {130, 3}},
    {64, 2, 1, 0, 128, 128, {400}},
    {128, 1, 1, 200, 128, 128, {400}},
    {16, 8, 1, 0, 0, 0, {64, 33, 1, 2}},
    {256, 1, 1, 0, 64, 64, {130}},
    {192, 2, 2, 70, 0, 0, {65, 64}},
    {80, 1, 1, 0, 0, 0, {140}},
    {1, 3, 1, 0, 0, 0, {20, 5}},
    {40, 7, 1, 0, 128, 128, {150}},
    {64, 2, 1, 0, 0, 0, {0}},
    // more than two spans of keys, of queries, of both, in heads of the fast backward
    {64, 2, 1, 0, 256, 128, {700}},
    {128, 2, 2, 0, 256, 384, {900}},
    {64, 2, 1, 0, 0, 128, {400}},
    {64, 4, 2, 0, 128, 0, {520}},
    {128, 1, 1, 300, 256, 256, {650, 40, 257}},
    {64, 3, 1, 129, 384, 128, {800}},
    {128, 3, 1, 0, 128, 256, {385, 256, 513, 5}},
    {128, 2, 1, 0, 0, 256, {600, 300}},
};

enum { EDGES = sizeof edges / sizeof edges[0] };

/* State while a case is made. */
typedef struct case_builder {
    invar_case *c;
    invar_case_rng rng;
    form f;
    invar_dtype dtype;
    int64_t samples; /* some of them empty */
    int64_t tokens;
    int64_t gap; /* elements between rows */
    float scale; /* factor of queries and keys; at 500 scores come near 2^22, the end of the
                    domain */
    bool special;
    invar_attention_shape shape;
} case_builder;

/* ---- forms ----------------------------------------------------------------------------------- */

static void draw_lengths(case_builder *m)
{
    int64_t work = MAX_WORK;

    m->samples = 1 + invar_case_random(&m->rng, MAX_SAMPLES);
    for (int64_t i = 0; i < m->samples; i++) {
        int64_t most = INVAR_CASE_PICK(&m->rng, 1, 20, 140, 300), length;
        int64_t room = (int64_t)sqrt((double)work / (double)(m->f.dim * m->f.heads));
        length = invar_case_random(&m->rng, 8) == 0 ? 0 : 1 + invar_case_random(&m->rng, most);
        length = length < room ? length : room;
        work -= length * length * m->f.dim * m->f.heads;
        m->f.lengths[i] = length;
    }
}

static void draw_form(case_builder *m)
{
    form *f = &m->f;
    int64_t block;

    memset(f, 0, sizeof *f);
    f->dim = INVAR_CASE_PICK(&m->rng, 64, 128, 64, 128, 16, 32, 80, 96, 256, 24, 7, 144);
    f->kv_heads = INVAR_CASE_PICK(&m->rng, 1, 1, 2, 3);
    f->heads = f->kv_heads * INVAR_CASE_PICK(&m->rng, 1, 2, 3, 4, 8);
    block = invar_attention_block(f->dim);
    f->window = invar_case_random(&m->rng, 3) == 0 ? 1 + invar_case_random(&m->rng, 200) : 0;
    f->kv_span = invar_case_random(&m->rng, 2) ? block * INVAR_CASE_PICK(&m->rng, 1, 1, 2, 3) : 0;
    f->q_span = invar_case_random(&m->rng, 2) ? block * INVAR_CASE_PICK(&m->rng, 1, 1, 2, 3) : 0;
    draw_lengths(m);
}

static case_builder new_builder(invar_case *c, uint64_t seed)
{
    case_builder m = {.c = c, .rng = {seed << 8 | invar_case_stream(c->op)}};

    m.dtype = invar_case_random(&m.rng, 3) == 0 ? INVAR_DTYPE_F32 : INVAR_DTYPE_BF16;
    m.scale = 1.0f;
    if (seed < EDGES) {
        m.f = edges[seed];
        m.samples = 1;
        while (m.samples < MAX_SAMPLES && m.f.lengths[m.samples] > 0)
            m.samples++;
    } else {
        draw_form(&m);
        m.gap = invar_case_random(&m.rng, 2) ? INVAR_CASE_PICK(&m.rng, 8, 16, 1, 5) : 0;
        m.scale = (float)INVAR_CASE_PICK(&m.rng, 1, 1, 1, 1, 1, 10, 10, 500);
        m.special = m.dtype == INVAR_DTYPE_BF16 && invar_case_random(&m.rng, 4) == 0;
    }
    for (int64_t i = 0; i < m.samples; i++)
        m.tokens += m.f.lengths[i];
    m.shape = (invar_attention_shape){invar_case_random(&m.rng, 5) == 0 ? 0.25f : 0.0f, m.f.window,
                                      m.f.kv_span, m.f.q_span};
    snprintf(c->text, sizeof c->text,
             "%s, T %" PRId64 " in %" PRId64 ", heads %" PRId64 "/%" PRId64 ", D %" PRId64
             ", window %" PRId64 ", spans %" PRId64 " %" PRId64 ", gap %" PRId64 ", scale %g%s",
             invar_dtype_name(m.dtype), m.tokens, m.samples, m.f.heads, m.f.kv_heads, m.f.dim,
             m.f.window, m.shape.kv_span, m.shape.q_span, m.gap, (double)m.scale,
             m.special ? ", special" : "");
    return m;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static invar_row_offsets segments_of(case_builder *m, const int64_t *counts)
{
    int64_t *start = invar_case_alloc(m->c, (size_t)(m->samples + 1) * sizeof *start);

    start[0] = 0;
    for (int64_t i = 0; i < m->samples; i++)
        start[i + 1] = start[i] + counts[i];
    return (invar_row_offsets){start, m->samples};
}

static const int64_t *lengths_of(case_builder *m)
{
    int64_t *lengths = invar_case_alloc(m->c, (size_t)m->samples * sizeof *lengths);

    memcpy(lengths, m->f.lengths, (size_t)m->samples * sizeof *lengths);
    return lengths;
}

static invar_tensor heads_view(const case_builder *m, int64_t rows, int64_t heads)
{
    return invar_tensor_3d(NULL, m->dtype, rows, heads, m->f.dim);
}

static invar_tensor output(case_builder *m, int64_t rows, int64_t heads)
{
    return invar_case_tensor(m->c, heads_view(m, rows, heads), m->gap);
}

static invar_tensor input(case_builder *m, int64_t rows, int64_t heads, float scale)
{
    return invar_case_normal(m->c, heads_view(m, rows, heads), m->gap, &m->rng, scale);
}

/* Fills with values, some of them not finite, zero, huge or tiny. */
static invar_tensor values(case_builder *m, int64_t rows)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, 0x1p100f, -0x1p-130f};
    invar_tensor v = input(m, rows, m->f.kv_heads, 1.0f);

    for (int i = 0; m->special && rows > 0 && i < 4; i++) {
        int64_t row = invar_case_random(&m->rng, rows);
        int64_t col = invar_case_random(&m->rng, m->f.kv_heads * m->f.dim);
        int64_t which = invar_case_random(&m->rng, sizeof odd / sizeof odd[0]);
        invar_tensor_row_store(&v, row, col, 1, &odd[which]);
    }
    return v;
}

/* ---- packed ---------------------------------------------------------------------------------- */

static void fill_forward(case_builder *m, invar_attention_fwd_args *a, bool lse2)
{
    a->q = input(m, m->tokens, m->f.heads, m->scale);
    a->k = input(m, m->tokens, m->f.kv_heads, m->scale);
    a->v = values(m, m->tokens);
    a->o = output(m, m->tokens, m->f.heads);
    if (lse2)
        a->lse2 = invar_case_tensor(
            m->c, invar_tensor_2d(NULL, INVAR_DTYPE_F32, m->tokens, m->f.heads), m->gap);
    a->samples = segments_of(m, m->f.lengths);
    a->shape = m->shape;
}

static void make_forward(invar_case *c, uint64_t seed)
{
    case_builder m = new_builder(c, seed);

    fill_forward(&m, &c->args.attention_fwd, invar_case_random(&m.rng, 4) > 0);
}

/* Computes o and lse2 with the forward of the CPU. */
static void make_backward(invar_case *c, uint64_t seed)
{
    invar_device cpu = {.backend = invar_backend_cpu(), .numerics = c->numerics};
    invar_case forward = {.op = INVAR_OP_ATTENTION_FWD, .numerics = c->numerics};
    invar_attention_fwd_args *made = &forward.args.attention_fwd;
    invar_attention_bwd_args *a = &c->args.attention_bwd;
    bool cut = seed >= INVAR_CASE_SPLIT;
    case_builder m = new_builder(c, cut ? seed - INVAR_CASE_SPLIT : seed);

    fill_forward(&m, made, true);
    if (invar_case_run(&cpu, &forward) != INVAR_OK) {
        fprintf(stderr, "cases: %s\n", invar_error_last()->message);
        abort();
    }
    a->q = made->q;
    a->k = made->k;
    a->v = made->v;
    a->o = made->o;
    a->lse2 = made->lse2;
    a->samples = made->samples;
    a->shape = made->shape;
    a->d_o = input(&m, m.tokens, m.f.heads, 1.0f);
    a->dq = output(&m, m.tokens, m.f.heads);
    a->dk = output(&m, m.tokens, m.f.kv_heads);
    a->dv = output(&m, m.tokens, m.f.kv_heads);
    if (cut) {
        a->head_shards = (int32_t)INVAR_CASE_PICK(&m.rng, 2, 4, 8);
        a->head_atom = INVAR_CASE_PICK(&m.rng, 1, 1, 2);
    }
}

/* ---- paged ----------------------------------------------------------------------------------- */

/* Makes a cache of NaN, and pages in random order; page numbers after the end are invalid. */
static invar_kv_pages empty_cache(case_builder *m)
{
    int64_t size = INVAR_CASE_PICK(&m->rng, 1, 8, 16, 16, 24, 64, 128, 256), most = 0, count;
    invar_kv_pages cache;
    int32_t *order;

    for (int64_t i = 0; i < m->samples; i++)
        most = m->f.lengths[i] > most ? m->f.lengths[i] : most;
    most = (most + size - 1) / size + 1;
    count = most * m->samples + 1;
    cache.k = invar_case_tensor(
        m->c, invar_tensor_4d(NULL, m->dtype, count, size, m->f.kv_heads, m->f.dim), m->gap);
    cache.v = invar_case_tensor(
        m->c, invar_tensor_4d(NULL, m->dtype, count, size, m->f.kv_heads, m->f.dim), 2 * m->gap);
    cache.pages =
        invar_case_tensor(m->c, invar_tensor_2d(NULL, INVAR_DTYPE_I32, m->samples, most), m->gap);
    order = invar_case_alloc(m->c, (size_t)count * sizeof *order);
    for (int64_t i = 0; i < count; i++) {
        int64_t j = invar_case_random(&m->rng, i + 1);
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    for (int64_t s = 0; s < m->samples; s++)
        for (int64_t i = 0; i < most; i++)
            ((int32_t *)cache.pages.data)[s * cache.pages.row_stride + i] =
                i * size < m->f.lengths[s] ? order[s * most + i] : INT32_MAX;
    return cache;
}

/* Copies the row of position p of sequence s from t (T, HKV, D) to its slot. */
static void write_slot(const invar_kv_pages *cache, const invar_tensor *to, int64_t s, int64_t p,
                       const invar_tensor *t, int64_t row)
{
    int64_t element = invar_dtype_bits(t->dtype) / 8, count = invar_tensor_row_elements(t);
    int64_t size = to->shape[1];
    int32_t page = ((const int32_t *)cache->pages.data)[s * cache->pages.row_stride + p / size];

    memcpy((char *)to->data + (page * to->row_stride + p % size * count) * element,
           (const char *)t->data + row * t->row_stride * element, (size_t)(count * element));
}

/* Chooses how many of each sequence's last positions are rows of the call. */
static void draw_rows(case_builder *m, int64_t rows[MAX_SAMPLES])
{
    int64_t most = INVAR_CASE_PICK(&m->rng, 1, 1, 7, 64, 100, 1000);

    for (int64_t i = 0; i < m->samples; i++) {
        int64_t length = m->f.lengths[i];
        rows[i] = length < most ? length : most;
        if (invar_case_random(&m->rng, 6) == 0)
            rows[i] = invar_case_random(&m->rng, length + 1);
    }
}

static void make_paged(invar_case *c, uint64_t seed)
{
    invar_attention_paged_args *a = &c->args.attention_paged;
    case_builder m = new_builder(c, seed);
    int64_t rows[MAX_SAMPLES], row = 0;
    invar_tensor k = input(&m, m.tokens, m.f.kv_heads, m.scale), v = values(&m, m.tokens);

    draw_rows(&m, rows);
    a->cache = empty_cache(&m);
    for (int64_t s = 0; s < m.samples; s++)
        for (int64_t p = 0; p < m.f.lengths[s]; p++, row++) {
            // positions before the window of the first row are never read
            if (m.f.window > 0 && p + m.f.window <= m.f.lengths[s] - rows[s])
                continue;
            write_slot(&a->cache, &a->cache.k, s, p, &k, row);
            write_slot(&a->cache, &a->cache.v, s, p, &v, row);
        }
    a->rows = segments_of(&m, rows);
    a->lengths = lengths_of(&m);
    a->q = input(&m, a->rows.offsets[m.samples], m.f.heads, m.scale);
    a->o = output(&m, a->rows.offsets[m.samples], m.f.heads);
    a->shape = m.shape;
}

static void make_write(invar_case *c, uint64_t seed)
{
    invar_kv_write_args *a = &c->args.kv_write;
    case_builder m = new_builder(c, seed);
    int64_t rows[MAX_SAMPLES];

    draw_rows(&m, rows);
    a->cache = empty_cache(&m);
    a->rows = segments_of(&m, rows);
    a->lengths = lengths_of(&m);
    a->k = input(&m, a->rows.offsets[m.samples], m.f.kv_heads, 1.0f);
    a->v = values(&m, a->rows.offsets[m.samples]);
}

static void make_case(invar_case *c, uint64_t seed)
{
    switch (c->op) {
    case INVAR_OP_ATTENTION_FWD: make_forward(c, seed); return;
    case INVAR_OP_ATTENTION_BWD: make_backward(c, seed); return;
    case INVAR_OP_ATTENTION_PAGED: make_paged(c, seed); return;
    default: make_write(c, seed); return;
    }
}

const invar_case_family invar_cases_attention = {make_case, EDGES};
