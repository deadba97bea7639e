/*
 * head.c - random calls of log-probabilities, sampling, gradient norm, AdamW and hashes.
 *
 * The first seeds are edge shapes: no value, one value, vocabularies around the chunks of the
 * log-probabilities, lengths around the chunks of REDUCE, bytes around the input lengths that the
 * hash treats differently and around its leaves. All other seeds draw all properties. Logits often
 * repeat, so that ids decide.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels-deterministic/tensor_row.h"
#include "tests/gpu/cases/cases.h"

enum { EDGES = 24 };

/* State while a case is made. */
typedef struct case_builder {
    invar_case *c;
    invar_case_rng rng;
    bool edge;
    bool short_blocks; /* the last scale block may be short */
    uint64_t seed;
} case_builder;

static invar_tensor vector(case_builder *m, invar_dtype dtype, int64_t n, float scale)
{
    return invar_case_normal(m->c, invar_tensor_1d(NULL, dtype, n), 0, &m->rng, scale);
}

static invar_tensor empty_vector(case_builder *m, invar_dtype dtype, int64_t n)
{
    return invar_case_tensor(m->c, invar_tensor_1d(NULL, dtype, n), 0);
}

/* ---- rows of logits -------------------------------------------------------------------------- */

static const int64_t row_edges[EDGES][2] = {
    {0, 5},    {1, 1},    {3, 2},   {2, 255},  {2, 256},    {2, 257},     {1, 511},  {1, 4096},
    {1, 4097}, {2, 7000}, {1, 511}, {5, 1000}, {3, 151936}, {1, 1100000}, {9, 3},    {40, 64},
    {2, 8192}, {1, 8193}, {4, 100}, {1, 2048}, {2, 2047},   {1, 300},     {300, 33}, {1, 40000},
};

/* Makes logits (T, V) f32 with gaps after rows; some values repeat. */
static invar_tensor logits(case_builder *m)
{
    int64_t tokens = 1 + invar_case_random(&m->rng, 12), gap = INVAR_CASE_PICK(&m->rng, 0, 0, 8, 3);
    int64_t vocabulary =
        1 + invar_case_random(&m->rng, INVAR_CASE_PICK(&m->rng, 20, 600, 5000, 20000));
    float scale = (float[]){1.0f, 6.0f, 40.0f}[invar_case_random(&m->rng, 3)];
    bool coarse = invar_case_random(&m->rng, 2);
    invar_tensor t;

    if (m->edge) {
        tokens = row_edges[m->seed][0];
        vocabulary = row_edges[m->seed][1];
        gap = 0;
    }
    t = invar_case_normal(m->c, invar_tensor_2d(NULL, INVAR_DTYPE_F32, tokens, vocabulary), gap,
                          &m->rng, scale);
    for (int64_t i = 0; coarse && i < tokens; i++) {
        float *row = (float *)t.data + i * t.row_stride;
        for (int64_t v = 0; v < vocabulary; v++)
            row[v] = floorf(row[v] * 8.0f) * 0.125f;
    }
    snprintf(m->c->text, sizeof m->c->text,
             "T %" PRId64 ", V %" PRId64 ", gap %" PRId64 ", scale %g%s", tokens, vocabulary, gap,
             (double)scale, coarse ? ", coarse" : "");
    return t;
}

static float temperature(case_builder *m)
{
    return (float[]){1.0f, 0.7f, 2.0f, 0.05f}[invar_case_random(&m->rng, 4)];
}

static void make_logprob_fwd(case_builder *m)
{
    invar_logprob_fwd_args *a = &m->c->args.logprob_fwd;
    int64_t tokens;

    a->logits = logits(m);
    tokens = a->logits.shape[0];
    a->targets = invar_case_index(m->c, invar_tensor_1d(NULL, INVAR_DTYPE_I32, tokens), 0, &m->rng,
                                  a->logits.shape[1]);
    a->temperature = temperature(m);
    a->logp = empty_vector(m, INVAR_DTYPE_F32, tokens);
    a->max = empty_vector(m, INVAR_DTYPE_F32, tokens);
    a->logsum = empty_vector(m, INVAR_DTYPE_F32, tokens);
    if (invar_case_random(&m->rng, 3) != 0)
        a->entropy = empty_vector(m, INVAR_DTYPE_F32, tokens);
}

/* Makes a `max` near the largest z of each row, so that no probability overflows. */
static invar_tensor largest(case_builder *m, const invar_tensor *t, float inverse)
{
    invar_tensor max = vector(m, INVAR_DTYPE_F32, t->shape[0], 1.0f);

    for (int64_t i = 0; i < t->shape[0]; i++) {
        const float *row = (const float *)t->data + i * t->row_stride;
        float most = row[0];
        for (int64_t v = 1; v < t->shape[1]; v++)
            most = row[v] > most ? row[v] : most;
        ((float *)max.data)[i] += most * inverse;
    }
    return max;
}

/* Makes max and logsum of the size that a forward returns; they need not be those of the logits. */
static void make_logprob_bwd(case_builder *m)
{
    invar_logprob_bwd_args *a = &m->c->args.logprob_bwd;
    int64_t tokens;
    bool bf16 = invar_case_random(&m->rng, 2);

    a->logits = logits(m);
    tokens = a->logits.shape[0];
    a->targets = invar_case_index(m->c, invar_tensor_1d(NULL, INVAR_DTYPE_I32, tokens), 0, &m->rng,
                                  a->logits.shape[1]);
    a->temperature = temperature(m);
    a->dlogp = vector(m, INVAR_DTYPE_F32, tokens, 1.0f);
    a->max = largest(m, &a->logits, 1.0f / a->temperature);
    a->logsum = vector(m, INVAR_DTYPE_F32, tokens, 4.0f);
    if (invar_case_random(&m->rng, 2)) {
        a->dentropy = vector(m, INVAR_DTYPE_F32, tokens, 0.1f);
        a->entropy = vector(m, INVAR_DTYPE_F32, tokens, 3.0f);
    }
    if (!bf16 && invar_case_random(&m->rng, 2))
        a->dlogits = a->logits;
    else
        a->dlogits =
            invar_case_tensor(m->c,
                              invar_tensor_2d(NULL, bf16 ? INVAR_DTYPE_BF16 : INVAR_DTYPE_F32,
                                              tokens, a->logits.shape[1]),
                              INVAR_CASE_PICK(&m->rng, 0, 8, 5));
}

/* Makes sums with more columns than chunks need; some targets belong to other parts. */
static void make_logprob_sum(case_builder *m)
{
    invar_logprob_sum_args *a = &m->c->args.logprob_sum;
    int64_t tokens, room = INVAR_CASE_PICK(&m->rng, 0, 0, 3, 6);

    a->logits = logits(m);
    tokens = a->logits.shape[0];
    a->targets = invar_case_index(m->c, invar_tensor_1d(NULL, INVAR_DTYPE_I32, tokens), 0, &m->rng,
                                  a->logits.shape[1] + 1);
    a->temperature = temperature(m);
    room += invar_logprob_sum_columns(a->logits.shape[1], 1);
    a->sums = invar_case_tensor(m->c, invar_tensor_2d(NULL, INVAR_DTYPE_F32, tokens, room),
                                INVAR_CASE_PICK(&m->rng, 0, 5));
}

/* Fills sums that no logits have: only their order matters. */
static void make_logprob_join(case_builder *m)
{
    invar_logprob_join_args *a = &m->c->args.logprob_join;
    int64_t tokens = 1 + invar_case_random(&m->rng, 12);

    a->vocabulary = 1 + invar_case_random(&m->rng, INVAR_CASE_PICK(&m->rng, 20, 5000, 200000));
    a->parts = (int32_t)INVAR_CASE_PICK(&m->rng, 1, 2, 3, 4, 8);
    if (m->edge) {
        tokens = row_edges[m->seed][0];
        a->vocabulary = row_edges[m->seed][1];
    }
    a->sums = invar_case_normal(m->c,
                                invar_tensor_2d(NULL, INVAR_DTYPE_F32, a->parts * tokens,
                                                invar_logprob_sum_columns(a->vocabulary, a->parts)),
                                INVAR_CASE_PICK(&m->rng, 0, 5), &m->rng, 4.0f);
    for (int64_t i = 0; i < a->sums.shape[0]; i++) {
        float *row = (float *)a->sums.data + i * a->sums.row_stride;
        for (int64_t c = 0; 3 * c + 1 < a->sums.shape[1]; c++)
            row[3 * c + 1] = 1.0f + fabsf(row[3 * c + 1]); // a sum with exp(0)
    }
    a->targets = invar_case_index(m->c, invar_tensor_1d(NULL, INVAR_DTYPE_I32, tokens), 0, &m->rng,
                                  a->vocabulary);
    a->temperature = temperature(m);
    a->logp = empty_vector(m, INVAR_DTYPE_F32, tokens);
    a->max = empty_vector(m, INVAR_DTYPE_F32, tokens);
    a->logsum = empty_vector(m, INVAR_DTYPE_F32, tokens);
    if (invar_case_random(&m->rng, 3) != 0)
        a->entropy = empty_vector(m, INVAR_DTYPE_F32, tokens);
    snprintf(m->c->text, sizeof m->c->text, "T %" PRId64 ", V %" PRId64 ", %d parts", tokens,
             a->vocabulary, (int)a->parts);
}

static void make_sample(case_builder *m)
{
    invar_sample_args *a = &m->c->args.sample;
    invar_sample_coords *coords;
    int64_t tokens;
    size_t used;

    a->logits = logits(m);
    tokens = a->logits.shape[0];
    coords = invar_case_alloc(m->c, (size_t)tokens * sizeof *coords);
    for (int64_t i = 0; i < tokens; i++)
        coords[i] = (invar_sample_coords){(uint32_t)invar_case_random(&m->rng, INT64_C(1) << 32),
                                          (uint32_t)invar_case_random(&m->rng, 1000),
                                          (uint32_t)invar_case_random(&m->rng, 1000)};
    a->coords = coords;
    a->tokens = empty_vector(m, INVAR_DTYPE_I32, tokens);
    a->seed = (uint32_t)invar_case_random(&m->rng, INT64_C(1) << 32);
    a->purpose = (uint32_t)invar_case_random(&m->rng, 2);
    a->temperature = invar_case_random(&m->rng, 6) == 0 ? 0.0f : temperature(m);
    a->top_k = (int32_t)INVAR_CASE_PICK(&m->rng, 0, 0, 0, 1, 5, 50, 300, 4096, 5000, INT32_MAX);
    a->top_p = (float[]){1.0f, 1.0f, 0.9f, 0.5f, 0.001f, 0x1p-40f}[invar_case_random(&m->rng, 6)];
    a->min_p = (float[]){0.0f, 0.0f, 0.05f, 1.0f}[invar_case_random(&m->rng, 4)];
    if (invar_case_random(&m->rng, 2)) {
        int64_t count = INVAR_CASE_PICK(&m->rng, 0, 1, 2, 5, 40, 300);
        a->hidden = invar_case_index(m->c, invar_tensor_1d(NULL, INVAR_DTYPE_I32, count), 0,
                                     &m->rng, a->logits.shape[1]);
        a->hides =
            invar_case_index(m->c, invar_tensor_1d(NULL, INVAR_DTYPE_I32, tokens), 0, &m->rng, 3);
    }
    if (a->temperature > 0.0f && invar_case_random(&m->rng, 8) == 0)
        a->temperature = 1e6f; // nearly equal probabilities
    used = strlen(m->c->text);
    snprintf(m->c->text + used, sizeof m->c->text - used, ", T %g, k %d, p %g, min %g, hidden %d",
             (double)a->temperature, a->top_k, (double)a->top_p, (double)a->min_p,
             (int)a->hidden.shape[0]);
}

/* ---- optimizer ------------------------------------------------------------------------------- */

static const int64_t lengths[EDGES] = {0,    1,    2,    3,    255,  256,   257,    4095,
                                       4096, 4097, 8191, 8192, 8193, 12288, 100000, 5,
                                       16,   64,   1023, 1024, 1025, 40960, 65536,  7};

static int64_t length(case_builder *m)
{
    return invar_case_random(&m->rng, 2) ? lengths[invar_case_random(&m->rng, EDGES)]
                                         : invar_case_random(&m->rng, 30000);
}

/*
 * Makes consecutive slices of one block: most are aligned to an element only, or, as gradients in
 * training, to 64 bytes.
 */
static void make_grad_norm(case_builder *m)
{
    invar_grad_norm_args *a = &m->c->args.grad_norm;
    int64_t count = m->edge ? (int64_t)m->seed * 5 : invar_case_random(&m->rng, 40), total = 0;
    invar_tensor *grads = invar_case_alloc(m->c, (size_t)count * sizeof *grads), all;
    float scale = (float[]){1.0f, 1e-3f, 1e12f, 1e-20f}[invar_case_random(&m->rng, 4)];
    bool hashed = invar_case_random(&m->rng, 2), whole = invar_case_random(&m->rng, 2);
    int64_t unit = whole ? 16 : 1;

    for (int64_t i = 0; i < count; i++) {
        int64_t n = m->edge && i == 0 ? lengths[m->seed] : length(m);
        n += whole && n == 0; // empty tensors are hashed separately
        bool square = n % 8 == 0 && invar_case_random(&m->rng, 2);
        grads[i] = square ? invar_tensor_2d(NULL, INVAR_DTYPE_F32, 8, n / 8)
                          : invar_tensor_1d(NULL, INVAR_DTYPE_F32, n);
        total += (n + unit - 1) / unit * unit;
    }
    all = vector(m, INVAR_DTYPE_F32, total, scale);
    for (int64_t i = 0, at = 0; i < count; i++) {
        grads[i].data = (float *)all.data + at;
        at += (grads[i].shape[0] * invar_tensor_row_elements(&grads[i]) + unit - 1) / unit * unit;
    }
    a->grads = grads;
    a->count = count;
    a->max_norm = (float[]){0.0f, 1.0f, 1e9f}[invar_case_random(&m->rng, 3)];
    a->norm = invar_case_alloc(m->c, sizeof *a->norm);
    a->clip = invar_case_alloc(m->c, sizeof *a->clip);
    if (hashed)
        a->digest = invar_case_alloc(m->c, (size_t)count * sizeof *a->digest);
    snprintf(m->c->text, sizeof m->c->text,
             "%" PRId64 " tensors, %" PRId64 " elements, scale %g, %s, %s", count, total,
             (double)scale, hashed ? "hashed" : "not hashed", whole ? "aligned" : "anywhere");
}

/*
 * Makes n elements, at an address that is aligned to an element only if `shift` is an odd number.
 */
static invar_tensor slice(case_builder *m, invar_dtype dtype, int64_t n, int64_t shift, float scale)
{
    invar_tensor t =
        scale > 0.0f ? vector(m, dtype, n + shift, scale) : empty_vector(m, dtype, n + shift);

    t.data = (char *)t.data + shift * invar_dtype_bits(dtype) / 8;
    t.shape[0] = n;
    return t;
}

/*
 * Splits into up to six tensors with digests; most end at a leaf, or at least at a word of 16
 * bytes.
 */
static void cut_masters(case_builder *m, invar_adamw_args *a, int64_t n)
{
    int64_t unit = INVAR_CASE_PICK(&m->rng, 4096, 4096, 4, 1), *end;

    end = invar_case_alloc(m->c, 6 * sizeof *end);
    memset(end, 0, 6 * sizeof *end);
    for (int64_t at = 0; at < n;) {
        at += unit * (1 + invar_case_random(&m->rng, n / unit + 1));
        end[a->tensors] = a->tensors == 5 || at > n ? n : at;
        at = end[a->tensors++];
    }
    a->end = end;
    a->digest = invar_case_alloc(m->c, (size_t)a->tensors * sizeof *a->digest);
}

static void make_adamw(case_builder *m)
{
    invar_adamw_args *a = &m->c->args.adamw;
    int64_t n = m->edge ? lengths[m->seed] : length(m),
            shift = INVAR_CASE_PICK(&m->rng, 0, 0, 1, 8);

    a->master = slice(m, INVAR_DTYPE_F32, n, shift, 1.0f);
    a->m = slice(m, INVAR_DTYPE_F32, n, shift, 1e-2f);
    a->v = slice(m, INVAR_DTYPE_F32, n, shift, 1e-3f);
    a->grad = slice(m, INVAR_DTYPE_F32, n, shift, 1e-2f);
    for (int64_t i = 0; i < n; i++)
        ((float *)a->v.data)[i] = fabsf(((float *)a->v.data)[i]);
    switch (invar_case_random(&m->rng, 3)) {
    case 0: a->weight = slice(m, INVAR_DTYPE_BF16, n, shift, 0.0f); break;
    case 1: a->weight = slice(m, INVAR_DTYPE_F32, n, shift, 0.0f); break;
    default: break;
    }
    a->clip = invar_case_random(&m->rng, 2) ? 1.0f : 0.37f;
    a->lr = 1e-3f;
    a->beta1 = 0.9f;
    a->beta2 = invar_case_random(&m->rng, 2) ? 0.95f : 0.999f;
    a->eps = 1e-8f;
    a->weight_decay = invar_case_random(&m->rng, 2) ? 0.1f : 0.0f;
    a->beta1_power = invar_case_random(&m->rng, 2) ? 0.9f : 0.0f;
    a->beta2_power = invar_case_random(&m->rng, 2) ? a->beta2 : 0.5f;
    if (n > 0 && invar_case_random(&m->rng, 2))
        cut_masters(m, a, n);
    snprintf(m->c->text, sizeof m->c->text,
             "%" PRId64 " elements, shift %" PRId64 ", weight %s, %" PRId64 " hashed tensors", n,
             shift, invar_dtype_name(a->weight.dtype), a->tensors);
}

/* ---- hash ------------------------------------------------------------------------------------ */

/* Sizes in bytes: each kind of short input, ends of blocks and leaves, levels of the tree. */
static const int64_t hash_edges[EDGES] = {
    0,    2,    4,    8,     10,    16,    18,   128,   130,   240,     242,      256,
    1024, 1026, 1088, 16382, 16384, 16386, 2048, 32768, 16624, 1048576, 16777216, 16793600};

/* Makes a tensor of any type and gap from random bytes. `edge` is the number of bytes in a row. */
static invar_tensor make_hashed(case_builder *m, int64_t edge, int32_t shards)
{
    invar_dtype dtype =
        (invar_dtype)INVAR_CASE_PICK(&m->rng, INVAR_DTYPE_BF16, INVAR_DTYPE_F32, INVAR_DTYPE_BF16,
                                     INVAR_DTYPE_FP8, INVAR_DTYPE_MXFP8, INVAR_DTYPE_INT4);
    int64_t rows = 1 + invar_case_random(&m->rng, INVAR_CASE_PICK(&m->rng, 1, 7, 100, 600));
    int64_t cols = 1 + invar_case_random(&m->rng, INVAR_CASE_PICK(&m->rng, 4, 100, 3000));
    int64_t gap = INVAR_CASE_PICK(&m->rng, 0, 0, 8, 16, 1, 7),
            block = invar_dtype_scale_block(dtype);

    if (edge >= 0)
        return invar_case_normal(m->c, invar_tensor_1d(NULL, INVAR_DTYPE_BF16, edge / 2), 0,
                                 &m->rng, 1.0f);
    if (block > 0) {
        bool square = dtype == INVAR_DTYPE_FP8 && shards <= 2 && invar_case_random(&m->rng, 2);
        bool whole = !m->short_blocks || dtype == INVAR_DTYPE_INT4;
        invar_tensor view =
            invar_tensor_quantized(NULL, NULL, dtype, square ? 128 : 1, square ? 256 : rows,
                                   whole ? (cols + block - 1) / block * block : cols);
        if (square && !whole && shards == 1) {
            view.shape[0] = rows;
            view.scale_period = (int32_t)INVAR_CASE_PICK(&m->rng, 0, 0, 1, 40, 130);
        }
        return invar_case_quantized(m->c, view, &m->rng, 1.0f);
    }
    if (invar_case_random(&m->rng, 2))
        return invar_case_normal(m->c, invar_tensor_2d(NULL, dtype, rows, cols), gap, &m->rng,
                                 1.0f);
    return invar_case_normal(m->c, invar_tensor_1d(NULL, dtype, rows * cols), 0, &m->rng, 1.0f);
}

/* Makes a few tensors, or enough small ones that they are hashed in several parts. */
static void make_hash_tree(case_builder *m)
{
    invar_hash_tree_args *a = &m->c->args.hash_tree;
    bool many = !m->edge && invar_case_random(&m->rng, 10) == 0;
    int64_t count = many      ? 100 + invar_case_random(&m->rng, 200)
                    : m->edge ? 1
                              : INVAR_CASE_PICK(&m->rng, 1, 1, 2, 3, 5);
    invar_tensor *x = invar_case_alloc(m->c, (size_t)count * sizeof *x), all;

    a->shards = m->edge || many ? 1 : (int32_t)INVAR_CASE_PICK(&m->rng, 1, 1, 2, 4, 64, 1024);
    a->digest = invar_case_alloc(m->c, (size_t)count * sizeof *a->digest);
    if (many)
        all = invar_case_normal(m->c, invar_tensor_1d(NULL, INVAR_DTYPE_F32, 65536), 0, &m->rng,
                                1.0f);
    for (int64_t i = 0; i < count; i++)
        if (many) {
            int64_t first = invar_case_random(&m->rng, 60000);
            x[i] = invar_tensor_1d((float *)all.data + first, INVAR_DTYPE_F32,
                                   invar_case_random(&m->rng, 65536 - first));
        } else {
            x[i] = make_hashed(m, m->edge ? hash_edges[m->seed] : -1, a->shards);
        }
    a->x = x;
    a->count = count;
    snprintf(m->c->text, sizeof m->c->text,
             "%" PRId64 " tensors, the first %s, %" PRId64 " x %" PRId64 ", stride %" PRId64
             ", %d shards",
             count, invar_dtype_name(x->dtype), x->shape[0], invar_tensor_row_elements(x),
             x->row_stride, a->shards);
}

/*
 * Makes rows in samples, some of them empty, like activations. `edge` is the number of bytes in one
 * row.
 */
static void make_hash_leaves(case_builder *m)
{
    invar_hash_leaves_args *a = &m->c->args.hash_leaves;
    int64_t samples = m->edge ? 1 : INVAR_CASE_PICK(&m->rng, 1, 2, 3, 16, 100, 3000);

    // this number of shards excludes types whose rows share scales
    a->x = make_hashed(m, m->edge ? hash_edges[m->seed] : -1, INT32_MAX);
    a->samples = invar_case_segments(m->c, a->x.shape[0], samples, true, &m->rng);
    a->leaves = invar_hash_leaf_count(&a->x, &a->samples);
    a->digest = invar_case_alloc(m->c, (size_t)a->leaves * sizeof *a->digest);
    snprintf(m->c->text, sizeof m->c->text,
             "%s, %" PRId64 " x %" PRId64 ", stride %" PRId64 ", %" PRId64 " samples, %" PRId64
             " leaves",
             invar_dtype_name(a->x.dtype), a->x.shape[0], invar_tensor_row_elements(&a->x),
             a->x.row_stride, samples, a->leaves);
}

/* ---- tensors of tensor-parallel ranks -------------------------------------------------------- */

#define MOST_PIECES 20

/* Makes f32 or bf16 rows that split into 4 parts, with or without a gap between them. */
static invar_tensor matrix(case_builder *m, invar_dtype dtype)
{
    int64_t rows = 4 * (1 + invar_case_random(&m->rng, INVAR_CASE_PICK(&m->rng, 1, 20, 90)));
    int64_t cols = 1 + invar_case_random(&m->rng, INVAR_CASE_PICK(&m->rng, 4, 100, 1500));
    bool even = invar_case_random(&m->rng, 2); // 16 bytes, or any number

    return invar_case_normal(
        m->c, invar_tensor_2d(NULL, dtype, rows, even ? (cols + 15) / 16 * 16 : cols),
        INVAR_CASE_PICK(&m->rng, 0, 8, 64, 1, 7), &m->rng, 1.0f);
}

static void make_norm_of_shards(case_builder *m)
{
    invar_grad_norm_args *a = &m->c->args.grad_norm;
    int64_t count = 1 + invar_case_random(&m->rng, MOST_PIECES);
    invar_tensor *grads = invar_case_alloc(m->c, (size_t)count * sizeof *grads);
    bool hashed = invar_case_random(&m->rng, 2);

    for (int64_t i = 0; i < count; i++)
        grads[i] = matrix(m, INVAR_DTYPE_F32);
    a->grads = grads;
    a->count = count;
    a->max_norm = 1.0f;
    a->norm = invar_case_alloc(m->c, sizeof *a->norm);
    a->clip = invar_case_alloc(m->c, sizeof *a->clip);
    if (hashed)
        a->digest = invar_case_alloc(m->c, (size_t)count * sizeof *a->digest);
    if (m->seed >= INVAR_CASE_SHARDS)
        a->squares = invar_case_alloc(m->c, (size_t)count * sizeof *a->squares);
    snprintf(m->c->text, sizeof m->c->text, "%" PRId64 " tensors with gaps%s", count,
             a->squares ? ", squares" : "");
}

static void make_tree_of_shards(case_builder *m)
{
    static const invar_logical_split cuts[] = {
        {8, 0, 16, 1}, {8, 1, 16, 1},  {1, 0, 0, 4}, {4, 1, 128, 4}, {4, 0, 3, 2},  {8, 0, 5, 4},
        {2, 1, 17, 1}, {8, 1, 200, 2}, {2, 0, 1, 1}, {8, 1, 64, 1},  {4, 0, 128, 1}};
    invar_hash_tree_args *a = &m->c->args.hash_tree;
    int64_t count = 1 + invar_case_random(&m->rng, 5);
    invar_tensor *x = invar_case_alloc(m->c, (size_t)count * sizeof *x);

    for (int64_t i = 0; i < count; i++)
        x[i] = matrix(m, invar_case_random(&m->rng, 2) ? INVAR_DTYPE_F32 : INVAR_DTYPE_BF16);
    a->x = x;
    a->count = count;
    a->shards = 1;
    a->cuts = cuts + invar_case_random(&m->rng, (int64_t)(sizeof cuts / sizeof *cuts) - count + 1);
    a->digest = invar_case_alloc(m->c, (size_t)count * sizeof *a->digest);
    snprintf(m->c->text, sizeof m->c->text, "%" PRId64 " tensors, the first in %d pieces", count,
             a->cuts[0].shards);
}

/* ---- the family ------------------------------------------------------------------------------ */

static void make_case(invar_case *c, uint64_t seed)
{
    case_builder m = {.c = c,
                      .rng = {seed << 8 | invar_case_stream(c->op)},
                      .edge = seed < EDGES,
                      .short_blocks = seed >= INVAR_CASE_SHORT && seed < INVAR_CASE_SPLIT,
                      .seed = seed};

    switch (c->op) {
    case INVAR_OP_LOGPROB_FWD: make_logprob_fwd(&m); return;
    case INVAR_OP_LOGPROB_BWD: make_logprob_bwd(&m); return;
    case INVAR_OP_LOGPROB_SUM: make_logprob_sum(&m); return;
    case INVAR_OP_LOGPROB_JOIN: make_logprob_join(&m); return;
    case INVAR_OP_SAMPLE: make_sample(&m); return;
    case INVAR_OP_GRAD_NORM:
        (seed >= INVAR_CASE_SPLIT ? make_norm_of_shards : make_grad_norm)(&m);
        return;
    case INVAR_OP_ADAMW: make_adamw(&m); return;
    case INVAR_OP_HASH_TREE:
        (seed >= INVAR_CASE_SPLIT ? make_tree_of_shards : make_hash_tree)(&m);
        return;
    default: break;
    }
    INVAR_CHECK(c->op == INVAR_OP_HASH_LEAVES); // the last of the family
    make_hash_leaves(&m);
}

const invar_case_family invar_cases_head = {make_case, EDGES};
