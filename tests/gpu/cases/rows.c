/*
 * rows.c - random calls of the ops on rows: sums over tokens and shards, quantise, embedding, add,
 * norm, rope, activation.
 *
 * The first seeds are edge shapes: no element, one element, rows around the lengths at which
 * kernels change their method. All other seeds draw all properties: extents, types, gaps between
 * rows, addresses that are aligned to an element only, outputs in place. The values include zeros,
 * subnormal and large numbers; none is so large that a result is a NaN, whose bits are not promised
 * in f32. In bf16, in which they are, norms get rows whose squares overflow.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>

#include "kernels-deterministic/tensor_row.h"
#include "tests/gpu/cases/cases.h"

/* maximum of elements per tensor, except for edge shapes */
#define MAX_ELEMENTS (INT64_C(1) << 17)

typedef struct form {
    int64_t rows;
    int64_t heads;
    int64_t cols;
} form;

static const form edges[] = {
    {0, 1, 16},   {1, 1, 1},      {5, 0, 8},      {3, 1, 255},   {2, 1, 256},  {2, 1, 257},
    {129, 1, 64}, {128, 16, 128}, {2, 1, 4096},   {3, 1, 4104},  {2, 1, 8192}, {1, 1, 9000},
    {4, 3, 136},  {300, 1, 8},    {1, 1, 131072}, {257, 2, 128},
};

enum { EDGES = sizeof edges / sizeof edges[0] };

/* State while a case is made. */
typedef struct case_builder {
    invar_case *c;
    invar_case_rng rng;
    form f;
    invar_dtype dtype;
    int64_t gap;   /* elements between rows */
    int64_t shift; /* shift of addresses, in elements */
    bool special;
    bool short_blocks; /* the last scale block may be short */
    bool cut;          /* heads are split into shards */
    bool blocks;       /* block_sums instead of dweight */
    bool many_heads;   /* many short heads, aligned */
} case_builder;

static case_builder new_builder(invar_case *c, uint64_t seed)
{
    case_builder m = {.c = c,
                      .rng = {seed << 8 | invar_case_stream(c->op)},
                      .short_blocks = seed >= INVAR_CASE_SHORT && seed < INVAR_CASE_SPLIT,
                      .cut = seed >= INVAR_CASE_SPLIT,
                      .blocks = c->op == INVAR_OP_RMSNORM_BWD && seed >= INVAR_CASE_FUSED &&
                                seed < INVAR_CASE_ATOMS,
                      .many_heads = seed >= INVAR_CASE_SHARDS};

    seed -= m.cut            ? INVAR_CASE_SPLIT
            : m.short_blocks ? INVAR_CASE_SHORT
            : m.blocks       ? INVAR_CASE_FUSED
                             : 0;
    m.dtype = invar_case_random(&m.rng, 3) == 0 ? INVAR_DTYPE_F32 : INVAR_DTYPE_BF16;
    if (m.blocks) {
        m.cut = invar_case_random(&m.rng, 2);
        m.many_heads = seed >= EDGES && invar_case_random(&m.rng, 2);
    }
    if (m.many_heads) {
        m.f.heads = INVAR_CASE_PICK(&m.rng, 8, 16, 16, 11, 32);
        m.f.cols = INVAR_CASE_PICK(&m.rng, 64, 128, 128, 40, 256);
        m.f.rows = 1 + invar_case_random(&m.rng, INVAR_CASE_PICK(&m.rng, 3, 40, 140));
        m.gap = 8 * invar_case_random(&m.rng, 3);
        m.shift = 8 * invar_case_random(&m.rng, 2);
    } else if (seed < EDGES) {
        m.f = edges[seed];
    } else {
        m.f.heads = INVAR_CASE_PICK(&m.rng, 1, 1, 2, 3, 8);
        m.f.cols = INVAR_CASE_PICK(&m.rng, 1, 2, 7, 8, 24, 64, 100, 128, 250, 256, 264, 1000, 1024,
                                   2048, 3000, 4096, 4100, 5120, 10000);
        m.f.rows = 1 + invar_case_random(&m.rng, INVAR_CASE_PICK(&m.rng, 2, 20, 140, 700));
        while (m.f.rows > 1 && m.f.rows * m.f.heads * m.f.cols > MAX_ELEMENTS)
            m.f.rows /= 2;
        m.gap = invar_case_random(&m.rng, 2) ? INVAR_CASE_PICK(&m.rng, 8, 16, 64, 1, 5) : 0;
        m.shift = invar_case_random(&m.rng, 3) == 0 ? INVAR_CASE_PICK(&m.rng, 8, 4, 1, 3) : 0;
        m.special = invar_case_random(&m.rng, 3) == 0;
    }
    snprintf(c->text, sizeof c->text,
             "%s, %" PRId64 " x %" PRId64 " x %" PRId64 ", gap %" PRId64 ", shift %" PRId64 "%s",
             invar_dtype_name(m.dtype), m.f.rows, m.f.heads, m.f.cols, m.gap, m.shift,
             m.special ? ", special" : "");
    return m;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Makes a view in a buffer that begins m->shift elements earlier; rank 1 has no gaps. */
static invar_tensor shifted_view(case_builder *m, invar_tensor view, bool filled, float scale)
{
    bool vector = view.rank == 1;
    invar_tensor wide = vector ? invar_tensor_1d(NULL, view.dtype, view.shape[0] + m->shift)
                               : invar_tensor_2d(NULL, view.dtype, view.shape[0],
                                                 invar_tensor_row_elements(&view) + m->shift);
    int64_t gap = vector ? 0 : m->gap;

    wide = filled ? invar_case_normal(m->c, wide, gap, &m->rng, scale)
                  : invar_case_tensor(m->c, wide, gap);
    view.data = (char *)wide.data + m->shift * invar_dtype_bits(view.dtype) / 8;
    view.row_stride = wide.row_stride;
    return view;
}

/* Inserts a few special values: zeros, subnormal and large numbers. */
static void insert_special_values(case_builder *m, const invar_tensor *t)
{
    static const float values[] = {0.0f, -0.0f, 1e15f, -1e15f, 1e-41f, -1e-41f};
    int64_t cols = t->rank == 1 ? t->shape[0] : invar_tensor_row_elements(t);
    int64_t rows = t->rank == 1 ? 1 : t->shape[0];

    for (int i = 0; i < 12 && rows > 0 && cols > 0; i++) {
        int64_t row = invar_case_random(&m->rng, rows), col = invar_case_random(&m->rng, cols);
        invar_tensor_row_store(t, row, col, 1, &values[i % 6]);
    }
}

static invar_tensor input(case_builder *m, invar_tensor view, float scale)
{
    invar_tensor t = shifted_view(m, view, true, scale);

    if (m->special)
        insert_special_values(m, &t);
    return t;
}

static invar_tensor output(case_builder *m, invar_tensor view)
{
    return shifted_view(m, view, false, 0.0f);
}

static invar_tensor matrix(const case_builder *m)
{
    return invar_tensor_2d(NULL, m->dtype, m->f.rows, m->f.cols);
}

static invar_tensor heads(const case_builder *m)
{
    return invar_tensor_3d(NULL, m->dtype, m->f.rows, m->f.heads, m->f.cols);
}

static invar_tensor vector(invar_dtype dtype, int64_t n)
{
    return invar_tensor_1d(NULL, dtype, n);
}

static invar_row_offsets units(case_builder *m)
{
    int64_t many = INVAR_CASE_PICK(&m->rng, 5, 5, 5, 700),
            most = m->f.rows < many ? m->f.rows : many;
    int64_t count = 1 + invar_case_random(&m->rng, most);
    bool empty = m->f.rows == 0 || invar_case_random(&m->rng, 2);

    return invar_case_segments(m->c, m->f.rows, count, empty, &m->rng);
}

/* ---- sums over tokens ------------------------------------------------------------------------ */

static void make_token_sum(case_builder *m)
{
    invar_token_sum_args *a = &m->c->args.token_sum;

    a->x = input(m, matrix(m), 1.0f);
    a->out = input(m, vector(INVAR_DTYPE_F32, m->f.cols), 1.0f);
    a->units = units(m);
}

static invar_tensor blocks(const case_builder *m, const invar_row_offsets *of)
{
    return invar_tensor_2d(NULL, INVAR_DTYPE_F32, invar_token_blocks_max(of, m->f.rows), m->f.cols);
}

static void make_token_fold(case_builder *m)
{
    invar_token_fold_args *a = &m->c->args.token_fold;

    a->units = units(m);
    a->tokens = m->f.rows;
    a->sums = input(m, blocks(m, &a->units), 1.0f);
    a->out = input(m, vector(INVAR_DTYPE_F32, m->f.cols), 1.0f);
}

/* ---- low precision --------------------------------------------------------------------------- */

/*
 * Makes a quantized view without memory: complete blocks near the extents of the form, or short
 * ones.
 */
static invar_tensor quantized_view(case_builder *m)
{
    invar_dtype dtype =
        (invar_dtype)INVAR_CASE_PICK(&m->rng, INVAR_DTYPE_FP8, INVAR_DTYPE_MXFP8, INVAR_DTYPE_INT4);
    int64_t block = invar_dtype_scale_block(dtype);
    bool square = dtype == INVAR_DTYPE_FP8 && invar_case_random(&m->rng, 2);
    bool whole = !m->short_blocks || dtype == INVAR_DTYPE_INT4;
    int64_t rows = square && whole ? (m->f.rows + 127) / 128 * 128 : m->f.rows;
    invar_tensor view =
        invar_tensor_quantized(NULL, NULL, dtype, square ? INVAR_FP8_BLOCK : 1, rows,
                               whole ? (m->f.cols + block - 1) / block * block : m->f.cols);

    if (square && !whole) // sometimes weights of experts
        view.scale_period = (int32_t)INVAR_CASE_PICK(&m->rng, 0, 0, 1, 40, 128, 130, 300);
    return view;
}

static void make_quantize(case_builder *m)
{
    invar_quantize_args *a = &m->c->args.quantize;
    bool rounds = invar_case_random(&m->rng, 5) == 0;
    invar_tensor q =
        rounds ? invar_tensor_2d(NULL, INVAR_DTYPE_BF16, m->f.rows, m->f.cols) : quantized_view(m);
    float scale = (float[]){1.0f, 1e-30f, 1e6f}[invar_case_random(&m->rng, 3)];

    a->q = invar_case_tensor(m->c, q, m->gap);
    a->x =
        input(m, invar_tensor_2d(NULL, rounds ? INVAR_DTYPE_F32 : m->dtype, q.shape[0], q.shape[1]),
              scale);
}

static void make_dequantize(case_builder *m)
{
    invar_dequantize_args *a = &m->c->args.dequantize;
    invar_tensor q = quantized_view(m);

    a->q = invar_case_quantized(m->c, q, &m->rng, 1.0f);
    a->x = output(m, invar_tensor_2d(NULL, m->dtype, q.shape[0], q.shape[1]));
}

/* ---- embedding and addition ------------------------------------------------------------------ */

static void make_embedding_fwd(case_builder *m)
{
    invar_embedding_fwd_args *a = &m->c->args.embedding_fwd;
    int64_t ids = 1 + invar_case_random(&m->rng, 200);

    a->table = input(m, invar_tensor_2d(NULL, m->dtype, ids, m->f.cols), 1.0f);
    a->out = output(m, matrix(m));
    a->ids = invar_case_index(m->c, vector(INVAR_DTYPE_I32, m->f.rows), 0, &m->rng, ids);
}

static void make_embedding_bwd(case_builder *m)
{
    invar_embedding_bwd_args *a = &m->c->args.embedding_bwd;
    int64_t ids = INVAR_CASE_PICK(&m->rng, 1, 3, 40, 700),
            used = 1 + invar_case_random(&m->rng, ids);

    a->dtable = input(m, invar_tensor_2d(NULL, INVAR_DTYPE_F32, ids, m->f.cols), 1.0f);
    a->dout = input(m, matrix(m), 1.0f);
    a->ids = invar_case_index(m->c, vector(INVAR_DTYPE_I32, m->f.rows), 0, &m->rng, used);
    a->units = units(m);
}

static void make_add(case_builder *m)
{
    invar_add_args *a = &m->c->args.add;

    a->a = input(m, matrix(m), 1.0f);
    a->b = input(m, matrix(m), 1.0f);
    switch (invar_case_random(&m->rng, 3)) {
    case 0: a->out = a->a; break;
    case 1: a->out = a->b; break;
    default: a->out = output(m, matrix(m));
    }
}

static void make_scale(case_builder *m)
{
    invar_scale_args *a = &m->c->args.scale;
    invar_tensor x = input(m, invar_tensor_2d(NULL, INVAR_DTYPE_F32, m->f.rows, m->f.cols), 1.0f);

    a->x = x;
    a->y = m->dtype == INVAR_DTYPE_F32 && invar_case_random(&m->rng, 2) ? x : output(m, matrix(m));
    a->factor =
        (float)INVAR_CASE_PICK(&m->rng, 0, 1, 2, -3) / (float)INVAR_CASE_PICK(&m->rng, 1, 7, 8);
}

static void make_shards_fold(case_builder *m)
{
    invar_shards_fold_args *a = &m->c->args.shards_fold;

    a->shards = (int32_t)INVAR_CASE_PICK(&m->rng, 1, 2, 4, 8);
    a->x = input(m, invar_tensor_2d(NULL, INVAR_DTYPE_F32, a->shards * m->f.rows, m->f.cols), 1.0f);
    a->y = output(m, matrix(m));
    if (invar_case_random(&m->rng, 2)) {
        a->residual = input(m, matrix(m), 1.0f);
        a->y = invar_case_random(&m->rng, 2) ? a->residual : a->y;
    }
}

/* ---- norm, rotary embedding, activation ------------------------------------------------------ */

static invar_dtype weight_type(case_builder *m)
{
    return invar_case_random(&m->rng, 2) ? INVAR_DTYPE_F32 : m->dtype;
}

/* Half of the calls with an even head dim have a rotation. */
static invar_rope_args rotation(case_builder *m)
{
    int64_t positions = 1 + invar_case_random(&m->rng, 500);
    invar_tensor table = invar_tensor_2d(NULL, INVAR_DTYPE_F32, positions, m->f.cols / 2);

    if (m->f.cols % 2 != 0 || invar_case_random(&m->rng, 2))
        return (invar_rope_args){.positions = {0}};
    return (invar_rope_args){.positions = invar_case_index(m->c, vector(INVAR_DTYPE_I32, m->f.rows),
                                                           0, &m->rng, positions),
                             .cosine = shifted_view(m, table, true, 1.0f),
                             .sine = shifted_view(m, table, true, 1.0f)};
}

/* Some rows have squares that overflow, in bf16: their results are NaN. */
static void insert_overflowing_rows(case_builder *m, const invar_tensor *x)
{
    const float large = 0x1p65f;

    if (!m->special || m->dtype != INVAR_DTYPE_BF16)
        return;
    for (int i = 0; i < 3 && x->shape[0] > 0 && x->shape[1] > 0; i++) {
        int64_t column = invar_case_random(&m->rng, invar_tensor_row_elements(x));
        int64_t row = invar_case_random(&m->rng, x->shape[0]);
        invar_tensor_row_store(x, row, column, 1, &large);
    }
}

static void make_rmsnorm_fwd(case_builder *m)
{
    invar_rmsnorm_fwd_args *a = &m->c->args.rmsnorm_fwd;

    a->x = input(m, heads(m), 1.0f);
    a->y = invar_case_random(&m->rng, 2) ? a->x : output(m, heads(m));
    a->weight = input(m, vector(weight_type(m), m->f.cols), 1.0f);
    a->eps = invar_case_random(&m->rng, 2) ? 1e-6f : 1e-5f;
    a->rotation = rotation(m);
    insert_overflowing_rows(m, &a->x);
}

static void make_rmsnorm_bwd(case_builder *m)
{
    invar_rmsnorm_bwd_args *a = &m->c->args.rmsnorm_bwd;

    a->x = input(m, heads(m), 1.0f);
    a->dy = input(m, heads(m), 1.0f);
    a->dx = output(m, heads(m));
    a->weight = input(m, vector(weight_type(m), m->f.cols), 1.0f);
    a->eps = 1e-6f;
    a->units = units(m);
    if (m->blocks)
        a->block_sums = output(m, blocks(m, &a->units));
    else if (invar_case_random(&m->rng, 4) != 0)
        a->dweight = input(m, vector(INVAR_DTYPE_F32, m->f.cols), 1.0f);
    a->rotation = rotation(m);
    if (invar_case_random(&m->rng, 2)) {
        a->residual = input(m, heads(m), 1.0f);
        a->dx = invar_case_random(&m->rng, 2) ? a->residual : a->dx;
    }
    if (!invar_tensor_present(&a->dweight) && !m->blocks)
        insert_overflowing_rows(m, &a->x);
    if (m->cut) {
        a->head_shards = (int32_t)INVAR_CASE_PICK(&m->rng, 2, 4, 8);
        a->head_atom = INVAR_CASE_PICK(&m->rng, 1, 1, 2);
    }
}

static void make_rope_table(case_builder *m)
{
    invar_rope_table_args *a = &m->c->args.rope_table;
    int64_t half = INVAR_CASE_PICK(&m->rng, 64, 32, 48, 1, 5, 128);
    invar_tensor view = invar_tensor_2d(NULL, INVAR_DTYPE_F32, m->f.rows, half);

    a->cosine = output(m, view);
    a->sine = output(m, view);
    a->theta = (double)INVAR_CASE_PICK(&m->rng, 10000, 1000000, 500000, 1, 70000000000000);
    if (invar_case_random(&m->rng, 2)) {
        a->scaling = INVAR_ROPE_LLAMA3;
        a->factor = (double)INVAR_CASE_PICK(&m->rng, 8, 32, 1);
        a->low_freq_factor = 1.0;
        a->high_freq_factor = 4.0;
        a->original_context = (double)INVAR_CASE_PICK(&m->rng, 8192, 100);
    }
}

static void make_rope(case_builder *m, invar_rope_fwd_args *a)
{
    int64_t positions = 1 + invar_case_random(&m->rng, 500), half = (m->f.cols + 1) / 2;
    invar_tensor view = invar_tensor_3d(NULL, m->dtype, m->f.rows, m->f.heads, 2 * half);
    invar_tensor table = invar_tensor_2d(NULL, INVAR_DTYPE_F32, positions, half);

    a->x = input(m, view, 1.0f);
    a->y = invar_case_random(&m->rng, 2) ? a->x : output(m, view);
    a->cosine = input(m, table, 1.0f);
    a->sine = input(m, table, 1.0f);
    a->positions =
        invar_case_index(m->c, vector(INVAR_DTYPE_I32, m->f.rows), 0, &m->rng, positions);
}

/* Sometimes draws enough elements that a kernel prefers a table to arithmetic. */
static void make_large(case_builder *m)
{
    if (invar_case_random(&m->rng, 40) == 0)
        m->f = (form){1400, 1, m->short_blocks ? 3080 : 3072};
}

/* Sometimes draws a quantized format for the outputs. */
static invar_dtype codes_type(case_builder *m)
{
    invar_dtype type = (invar_dtype)INVAR_CASE_PICK(&m->rng, INVAR_DTYPE_FP8, INVAR_DTYPE_MXFP8,
                                                    INVAR_DTYPE_INT4, INVAR_DTYPE_NONE);
    bool whole = !m->short_blocks || type == INVAR_DTYPE_INT4;

    if (type == INVAR_DTYPE_NONE ||
        (whole && matrix(m).shape[1] % invar_dtype_scale_block(type) != 0))
        return INVAR_DTYPE_NONE;
    return type;
}

static invar_tensor codes(case_builder *m, invar_dtype type)
{
    invar_tensor view = matrix(m);

    if (type == INVAR_DTYPE_NONE)
        return (invar_tensor){0};
    view = invar_tensor_quantized(NULL, NULL, type, 1, view.shape[0], view.shape[1]);
    return invar_case_tensor(m->c, view, m->gap);
}

static void make_swiglu_fwd(case_builder *m)
{
    invar_swiglu_fwd_args *a = &m->c->args.swiglu_fwd;

    make_large(m);
    a->gate = input(m, matrix(m), invar_case_random(&m->rng, 3) ? 4.0f : 100.0f);
    a->up = input(m, matrix(m), 1.0f);
    switch (invar_case_random(&m->rng, 3)) {
    case 0: a->y = a->gate; break;
    case 1: a->y = a->up; break;
    default: a->y = output(m, matrix(m));
    }
    a->y_q = codes(m, codes_type(m));
}

static void make_swiglu_bwd(case_builder *m)
{
    invar_swiglu_bwd_args *a = &m->c->args.swiglu_bwd;
    invar_tensor in[3];
    int64_t first = invar_case_random(&m->rng, 3);
    invar_dtype type;

    make_large(m);
    for (int i = 0; i < 3; i++)
        in[i] = input(m, matrix(m), i == 1 ? 4.0f : 1.0f);
    a->dy = in[0];
    a->gate = in[1];
    a->up = in[2];
    a->dgate = invar_case_random(&m->rng, 2) ? in[first] : output(m, matrix(m));
    a->dup = invar_case_random(&m->rng, 2) ? in[(first + 1) % 3] : output(m, matrix(m));
    type = codes_type(m);
    a->dgate_q = codes(m, type);
    a->dup_q = codes(m, type);
}

/* ---- the family ------------------------------------------------------------------------------ */

static void make(invar_case *c, uint64_t seed)
{
    case_builder m = new_builder(c, seed);

    switch (c->op) {
    case INVAR_OP_TOKEN_SUM: make_token_sum(&m); return;
    case INVAR_OP_TOKEN_FOLD: make_token_fold(&m); return;
    case INVAR_OP_SHARDS_FOLD: make_shards_fold(&m); return;
    case INVAR_OP_QUANTIZE: make_quantize(&m); return;
    case INVAR_OP_DEQUANTIZE: make_dequantize(&m); return;
    case INVAR_OP_EMBEDDING_FWD: make_embedding_fwd(&m); return;
    case INVAR_OP_EMBEDDING_BWD: make_embedding_bwd(&m); return;
    case INVAR_OP_ADD: make_add(&m); return;
    case INVAR_OP_SCALE: make_scale(&m); return;
    case INVAR_OP_RMSNORM_FWD: make_rmsnorm_fwd(&m); return;
    case INVAR_OP_RMSNORM_BWD: make_rmsnorm_bwd(&m); return;
    case INVAR_OP_ROPE_TABLE: make_rope_table(&m); return;
    case INVAR_OP_ROPE_FWD: make_rope(&m, &c->args.rope_fwd); return;
    case INVAR_OP_ROPE_BWD: make_rope(&m, &c->args.rope_bwd); return;
    case INVAR_OP_SWIGLU_FWD: make_swiglu_fwd(&m); return;
    default: break;
    }
    INVAR_CHECK(c->op == INVAR_OP_SWIGLU_BWD); // the last of the family
    make_swiglu_bwd(&m);
}

const invar_case_family invar_cases_rows = {make, EDGES};
