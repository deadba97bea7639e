/*
 * linear.c - random calls of the linear layers.
 *
 * The first seeds are edge shapes: single rows and columns, chains around the length of a step, a
 * long chain, empty extents, and complete tiles of the fast kernels. All other seeds draw all
 * properties: shapes (sometimes an edge shape again), layouts, pairs, shards, atoms, parts,
 * experts, units.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>

#include "kernels-deterministic/tensor_row.h"
#include "tests/gpu/cases/cases.h"

/* Maximum of multiply-adds per case. */
#define MAX_WORK (INT64_C(1) << 22)

/* A pair of types and its requirements for the extents. */
typedef struct pair {
    const char *name;
    invar_dtype x; /* type of x or dy */
    invar_dtype w;
    int64_t block;     /* columns of w, and of a quantized x, are multiples of this */
    int64_t rows;      /* rows of w are multiples of this */
    int64_t unit[2];   /* a chain may be split at multiples of this: forward, dx */
    int64_t length[2]; /* a chain is always a multiple of this: forward, dx */
} pair;

static const pair pairs[] = {
    {"f32", INVAR_DTYPE_F32, INVAR_DTYPE_F32, 1, 1, {1, 1}, {1, 1}},
    {"bf16", INVAR_DTYPE_BF16, INVAR_DTYPE_BF16, 1, 1, {16, 16}, {1, 1}},
    {"fp8", INVAR_DTYPE_FP8, INVAR_DTYPE_FP8, 128, 128, {128, 128}, {128, 128}},
    {"mxfp8", INVAR_DTYPE_MXFP8, INVAR_DTYPE_MXFP8, 32, 1, {32, 32}, {32, 32}},
    {"bf16/int4", INVAR_DTYPE_BF16, INVAR_DTYPE_INT4, 32, 1, {32, 16}, {32, 1}},
};

/* The pairs with short blocks, without shards, since shards are split between blocks. */
static const pair short_pairs[] = {
    {"fp8 short", INVAR_DTYPE_FP8, INVAR_DTYPE_FP8, 1, 1, {1, 1}, {1, 1}},
    {"mxfp8 short", INVAR_DTYPE_MXFP8, INVAR_DTYPE_MXFP8, 1, 1, {16, 16}, {1, 1}},
};

/* The output is (rows, cols); a chain has k values. */
typedef struct shape {
    int64_t rows, cols, k;
} shape;

/* Edge shape n is used with pair n modulo PAIRS. */
static const shape edges[] = {
    {1, 1, 1},       {128, 256, 64},  {256, 256, 128}, {64, 128, 256}, {128, 256, 64}, //
    {1, 1, 20000},   {1, 1, 17},      {1, 256, 512},   {33, 640, 72},  {1, 384, 16},   //
    {129, 257, 100}, {256, 256, 128}, {130, 65, 17},   {5, 0, 7},      {17, 33, 15},   //
    {0, 5, 7},       {16, 512, 128},  {3, 1, 40},      {1, 1, 16},     {16, 512, 128}, //
    {5, 7, 0},       {130, 65, 17},   {128, 128, 0},
};

enum { PAIRS = sizeof pairs / sizeof pairs[0], EDGES = sizeof edges / sizeof edges[0] };

/* State while a case is made. */
typedef struct case_builder {
    invar_case *c;
    invar_case_rng rng;
    const pair *types;
    bool edge;         /* contiguous, one shard (unless `atoms`), one part */
    bool atoms;        /* shards of any number of atoms; else of one atom each */
    bool short_blocks; /* the pair is one of short_pairs */
    bool few_rows;     /* few rows, in the layouts that kernels for them accept */
    bool sharded;      /* shapes that kernels for shards accept */
    float scale;       /* factor of the numbers */
} case_builder;

/* ---- tensors --------------------------------------------------------------------------------- */

/* Inserts some zeros, large and subnormal numbers; no product or sum of them overflows. */
static void insert_special_values(case_builder *m, const invar_tensor *t)
{
    static const float special_values[] = {0.0f,       -0.0f,     0x1p40f,
                                           -0x1.8p40f, 0x1p-130f, -0x1.8p-132f};
    int64_t count = t->shape[0] * t->shape[1];

    if (count == 0)
        return;
    for (int64_t i = 0; i < 1 + count / 64; i++) {
        // separate statements, because C does not define the order in which arguments are evaluated
        int64_t row = invar_case_random(&m->rng, t->shape[0]),
                col = invar_case_random(&m->rng, t->shape[1]);
        int64_t which =
            invar_case_random(&m->rng, sizeof special_values / sizeof special_values[0]);
        invar_tensor_row_store(t, row, col, 1, &special_values[which]);
    }
}

/*
 * Chooses a layout: contiguous, a column slice, or gaps between rows, which permit 16-byte accesses
 * or not.
 */
static invar_tensor storage(case_builder *m, invar_dtype dtype, int64_t rows, int64_t cols,
                            bool filled)
{
    int64_t first = 0, gap = 0;
    invar_tensor t;

    switch (m->edge ? 0 : invar_case_random(&m->rng, m->sharded ? 2 : 5)) {
    case 1: gap = 8 * (1 + invar_case_random(&m->rng, 3)); break;
    case 2: gap = 1 + invar_case_random(&m->rng, 6); break;
    case 3: first = 1 + invar_case_random(&m->rng, 9); break;
    default: break;
    }
    t = invar_tensor_2d(NULL, dtype, rows, first + cols);
    t = filled ? invar_case_normal(m->c, t, gap, &m->rng, m->scale)
               : invar_case_tensor(m->c, t, gap);
    t = invar_tensor_columns(&t, first, cols);
    if (filled && !m->edge && invar_case_random(&m->rng, 4) == 0)
        insert_special_values(m, &t);
    return t;
}

/* Returns a copy of a quantized tensor with a gap between its rows. */
static invar_tensor with_gap(case_builder *m, const invar_tensor *q, int64_t gap)
{
    invar_tensor t = invar_case_tensor(m->c, *q, gap);
    int64_t bits = invar_dtype_bits(q->dtype), row = q->shape[1] * bits / 8;

    for (int64_t i = 0; i < q->shape[0]; i++)
        for (int64_t j = 0; j < row; j++)
            ((uint8_t *)t.data)[i * t.row_stride * bits / 8 + j] =
                ((const uint8_t *)q->data)[i * q->row_stride * bits / 8 + j];
    t.scale = q->scale;
    return t;
}

static invar_tensor operand(case_builder *m, invar_tensor view)
{
    invar_tensor q;

    if (view.dtype == INVAR_DTYPE_F32 || view.dtype == INVAR_DTYPE_BF16)
        return storage(m, view.dtype, view.shape[0], view.shape[1], true);
    q = invar_case_quantized(m->c, view, &m->rng, m->scale);
    if (m->edge || invar_case_random(&m->rng, 3) > 0)
        return q;
    return with_gap(m, &q, INVAR_CASE_PICK(&m->rng, 2, 16, 128, 6));
}

static invar_tensor activations(case_builder *m, int64_t rows, int64_t cols)
{
    return operand(m, invar_tensor_quantized(NULL, NULL, m->types->x, 1, rows, cols));
}

/* Makes the weights of `experts` experts with `rows` rows each. */
static invar_tensor weights(case_builder *m, int64_t experts, int64_t rows, int64_t cols)
{
    bool fp8 = m->types->w == INVAR_DTYPE_FP8;
    invar_tensor view = invar_tensor_quantized(NULL, NULL, m->types->w, fp8 ? INVAR_FP8_BLOCK : 1,
                                               experts * rows, cols);

    if (fp8 && experts > 1)
        view.scale_period = (int32_t)rows;
    return operand(m, view);
}

static invar_dtype storage_type(case_builder *m)
{
    return invar_case_random(&m->rng, 2) ? INVAR_DTYPE_F32 : INVAR_DTYPE_BF16;
}

/* ---- extents --------------------------------------------------------------------------------- */

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static int64_t any_extent(case_builder *m)
{
    return invar_case_random(&m->rng, 3)
               ? 1 + invar_case_random(&m->rng, 150)
               : INVAR_CASE_PICK(&m->rng, 1, 2, 8, 16, 31, 64, 65, 128, 256, 257);
}

/* Returns `wanted`, limited so that the product stays within MAX_WORK, as a multiple of `unit`. */
static int64_t fit_chain(int64_t wanted, const shape *s, int64_t unit)
{
    int64_t most = MAX_WORK / (s->rows * s->cols > 0 ? s->rows * s->cols : 1);

    wanted = wanted < most ? wanted : most;
    return round_up(wanted > 0 ? wanted : 1, unit);
}

static int32_t any_shards(case_builder *m)
{
    if (m->atoms)
        return (int32_t)INVAR_CASE_PICK(&m->rng, 1, 2, 4, 8, 8);
    if (m->sharded)
        return (int32_t)INVAR_CASE_PICK(&m->rng, 2, 4, 8);
    return m->edge || m->short_blocks || m->few_rows
               ? 1
               : (int32_t)INVAR_CASE_PICK(&m->rng, 1, 1, 1, 1, 2, 4);
}

/* Draws the atom of a chain of k values that may be split at multiples of `unit`. */
static int64_t any_atom(case_builder *m, int64_t k, int32_t shards, int64_t unit)
{
    if (m->sharded)
        return INVAR_CASE_PICK(&m->rng, 64, 64, 128);
    return m->atoms ? unit * INVAR_CASE_PICK(&m->rng, 1, 1, 1, 2, 3, 8) : k / shards;
}

/*
 * Returns the number that the length of a chain must be a multiple of, for this number of shards.
 * `follows` is set if the chain continues with another part.
 */
static int64_t chain_multiple(const case_builder *m, int32_t shards, bool follows, int dx)
{
    const pair *types = m->types;

    if (follows || (shards > 1 && !m->atoms))
        return m->atoms ? types->unit[dx] : types->unit[dx] * shards;
    return types->length[dx];
}

/* Draws long chains, or shorter ones with more than 132 tiles of 128 x 128. */
static shape draw_sharded(case_builder *m, uint64_t seed)
{
    bool dense = m->c->op == INVAR_OP_LINEAR_FWD || m->c->op == INVAR_OP_LINEAR_DX;
    shape s;

    if (dense && seed % 64 == 3) {
        s.rows = 65 + invar_case_random(&m->rng, 4);
        s.cols = 17032;
        s.k = 64 * INVAR_CASE_PICK(&m->rng, 8, 12);
        return s;
    }
    s.rows = INVAR_CASE_PICK(&m->rng, 1, 8, 24, 64, 65, 130);
    s.cols = 1 + invar_case_random(&m->rng, INVAR_CASE_PICK(&m->rng, 40, 40, 200));
    if (m->c->op == INVAR_OP_LINEAR_DX || m->c->op == INVAR_OP_MOE_LINEAR_DX)
        s.cols = round_up(s.cols, 8); // rows of w are aligned
    s.k = 2048 + 16 * INVAR_CASE_PICK(&m->rng, 0, 0, 1, 5, 64, 128);
    return s;
}

/* Draws the extents of the output and the length of the chain by the seed. */
static shape draw_shape(case_builder *m, uint64_t seed, int64_t cols_unit)
{
    shape s;

    if (m->sharded)
        return draw_sharded(m, seed);
    if (m->few_rows) {
        s.rows = INVAR_CASE_PICK(&m->rng, 1, 2, 8, 13, 16, 24, 33, 64);
        s.cols = 1 + invar_case_random(&m->rng, INVAR_CASE_PICK(&m->rng, 40, 200, 200));
        s.k = 64 * INVAR_CASE_PICK(&m->rng, 1, 2, 3, 4, 6, 10);
        return s;
    }
    if (m->edge) {
        s = edges[seed % INVAR_CASE_SHORT < EDGES ? (int64_t)(seed % INVAR_CASE_SHORT)
                                                  : invar_case_random(&m->rng, EDGES)];
    } else {
        s.rows = any_extent(m);
        s.cols = any_extent(m);
        s.k = invar_case_random(&m->rng, 4)
                  ? 1 + invar_case_random(&m->rng, 300)
                  : INVAR_CASE_PICK(&m->rng, 1, 15, 16, 17, 64, 128, 512, 1111);
    }
    s.cols = round_up(s.cols, cols_unit);
    if (m->short_blocks && invar_case_random(&m->rng, 2)) { // extents of the fast kernels
        s.cols = round_up(s.cols, 32);
        s.k = round_up(s.k, 16);
    }
    return s;
}

static case_builder new_builder(invar_case *c, uint64_t seed, bool atoms)
{
    static const float scales[] = {1.0f, 1.0f, 1.0f, 1e-3f, 1e3f};
    // indices of the pairs that have kernels for few rows
    static const int few_pairs[] = {1, 3, 3, 4};
    enum { SEED_STRIDE = 37 }; // larger than every op of the family; keeps recorded digests valid
    case_builder m = {.c = c,
                      .rng = {seed * SEED_STRIDE + invar_case_stream(c->op)},
                      .atoms = atoms,
                      .short_blocks = seed >= INVAR_CASE_SHORT && seed < INVAR_CASE_SPLIT,
                      .few_rows = seed >= INVAR_CASE_FEW && seed < INVAR_CASE_SHARDS,
                      .sharded = seed >= INVAR_CASE_SHARDS};

    if (m.sharded) {
        m.edge = invar_case_random(&m.rng, 2);
        m.types = &pairs[1];
        m.scale = 1.0f;
        return m;
    }
    if (m.few_rows) {
        m.edge = invar_case_random(&m.rng, 4) > 0;
        m.types =
            &pairs[few_pairs[invar_case_random(&m.rng, sizeof few_pairs / sizeof few_pairs[0])]];
        m.scale = 1.0f;
        return m;
    }
    seed -= m.short_blocks ? INVAR_CASE_SHORT : 0;
    m.edge = seed < EDGES || invar_case_random(&m.rng, 5) == 0;
    if (m.short_blocks)
        m.types = &short_pairs[invar_case_random(&m.rng, 2)];
    else
        m.types = &pairs[seed < EDGES ? (int64_t)(seed % PAIRS) : invar_case_random(&m.rng, PAIRS)];
    m.scale = m.edge ? 1.0f : scales[invar_case_random(&m.rng, sizeof scales / sizeof scales[0])];
    return m;
}

/* ---- y --------------------------------------------------------------------------------------- */

/* Returns the length of the chain of y. */
static int64_t forward_chain(const case_builder *m, const shape *s, int32_t shards)
{
    if (m->edge || m->sharded)
        return round_up(s->k, m->types->length[0]);
    return fit_chain(s->k, s, chain_multiple(m, shards, false, 0));
}

static invar_tensor any_bias(case_builder *m, int64_t cols)
{
    if (invar_case_random(&m->rng, 2) == 0)
        return (invar_tensor){0};
    return invar_case_normal(m->c, invar_tensor_1d(NULL, storage_type(m), cols), 0, &m->rng,
                             m->scale);
}

/*
 * Makes one weight, or the scale of one block, NaN. The bits of the result are specified for sm90
 * only.
 */
static void insert_nan(case_builder *m, const invar_tensor *w)
{
    int64_t row, col, blocks = w->shape[1] / INVAR_MX_BLOCK;

    if (!m->few_rows || w->dtype != INVAR_DTYPE_MXFP8 || m->c->numerics != INVAR_NUMERICS_SM90 ||
        invar_case_random(&m->rng, 2) == 0)
        return;
    row = invar_case_random(&m->rng, w->shape[0]);
    col = invar_case_random(&m->rng, w->shape[1]);
    if (invar_case_random(&m->rng, 2))
        ((uint8_t *)w->data)[row * w->row_stride + col] = col % 2 ? 0x7F : 0xFF;
    else
        ((uint8_t *)w->scale)[row * blocks + col / INVAR_MX_BLOCK] = 0xFF;
}

static void make_forward(invar_case *c, uint64_t seed, bool atoms)
{
    invar_linear_fwd_args *a = &c->args.linear_fwd;
    case_builder m = new_builder(c, seed, atoms);
    shape s = draw_shape(&m, seed, m.types->rows);

    a->k_shards = any_shards(&m);
    s.k = forward_chain(&m, &s, a->k_shards);
    a->k_atom = any_atom(&m, s.k, a->k_shards, m.types->unit[0]);
    a->x = activations(&m, s.rows, s.k);
    a->w = weights(&m, 1, s.cols, s.k);
    insert_nan(&m, &a->w);
    a->y = storage(&m, storage_type(&m), s.rows, s.cols, false);
    a->bias = any_bias(&m, s.cols);
    snprintf(c->text, sizeof c->text,
             "%s, T %" PRId64 ", N %" PRId64 ", K %" PRId64 ", %d shards of %" PRId64 "s",
             m.types->name, s.rows, s.cols, s.k, a->k_shards, a->k_atom);
}

/* Makes another output of x. Sometimes the layers of one x have weights in different formats. */
static invar_linear_output make_output(case_builder *m, const shape *s, int64_t cols,
                                       invar_dtype dtype, bool stored)
{
    bool plain = m->types->w == INVAR_DTYPE_INT4 && invar_case_random(&m->rng, 4) == 0;
    invar_linear_output out = {.w = plain ? storage(m, INVAR_DTYPE_BF16, cols, s->k, true)
                                          : weights(m, 1, cols, s->k)};

    out.bias = any_bias(m, cols);
    if (stored)
        out.y = storage(m, dtype, s->rows, cols, false);
    return out;
}

/*
 * The first seeds have the edge shapes; all others draw all properties, like those of make_forward.
 */
static void make_fused(invar_case *c, uint64_t seed, bool atoms)
{
    static const char *const names[] = {"residual", "2 outputs", "3 outputs", "act", "act alone"};
    invar_linear_fwd_args *a = &c->args.linear_fwd;
    case_builder m = new_builder(c, seed, atoms);
    int64_t kind = invar_case_random(&m.rng, 5);
    shape s = draw_shape(&m, seed, m.types->rows);
    invar_dtype dtype = storage_type(&m);
    invar_linear_output first;

    a->k_shards = any_shards(&m);
    s.k = forward_chain(&m, &s, a->k_shards);
    a->k_atom = any_atom(&m, s.k, a->k_shards, m.types->unit[0]);
    a->x = activations(&m, s.rows, s.k);
    first = make_output(&m, &s, s.cols, dtype, kind < 4);
    a->y = first.y;
    a->w = first.w;
    a->bias = first.bias;
    a->n_more = kind == 0 ? 0 : kind == 2 ? 2 : 1;
    for (int32_t i = 0; i < a->n_more; i++) {
        int64_t cols = s.cols;
        invar_dtype type = dtype;
        if (kind < 3) {
            type = storage_type(&m);
            cols = round_up(any_extent(&m), m.types->rows);
        }
        a->more[i] = make_output(&m, &s, cols, type, kind < 4);
    }
    if (kind == 0)
        a->residual = storage(&m, dtype, s.rows, s.cols, true);
    if (kind > 2)
        a->act = storage(&m, dtype, s.rows, s.cols, false);
    snprintf(c->text, sizeof c->text,
             "%s, T %" PRId64 ", N %" PRId64 ", K %" PRId64 ", %d shards, %s", m.types->name,
             s.rows, s.cols, s.k, a->k_shards, names[kind]);
}

static void make_moe_forward(invar_case *c, uint64_t seed, bool atoms)
{
    invar_moe_linear_fwd_args *a = &c->args.moe_linear_fwd;
    case_builder m = new_builder(c, seed, atoms);
    int64_t experts = INVAR_CASE_PICK(&m.rng, 1, 2, 3, 5, 8, 13);
    shape s = draw_shape(&m, seed, m.types->rows);

    a->k_shards = any_shards(&m);
    s.k = forward_chain(&m, &s, a->k_shards);
    a->k_atom = any_atom(&m, s.k, a->k_shards, m.types->unit[0]);
    a->x = activations(&m, s.rows, s.k);
    a->w = weights(&m, experts, s.cols, s.k);
    a->y = storage(&m, storage_type(&m), s.rows, s.cols, false);
    a->experts = invar_case_segments(c, s.rows, experts, true, &m.rng);
    snprintf(c->text, sizeof c->text,
             "%s, P %" PRId64 ", N %" PRId64 ", K %" PRId64 ", %d shards, %" PRId64 " experts",
             m.types->name, s.rows, s.cols, s.k, a->k_shards, experts);
}

/* ---- dx -------------------------------------------------------------------------------------- */

/* Returns the length of part i of `count` parts, in this number of shards. */
static int64_t part_chain(case_builder *m, const shape *s, int32_t i, int32_t count, int32_t shards)
{
    if (m->edge)
        return round_up(s->k, m->types->length[1]);
    if (m->sharded)
        return i == 0 ? s->k : 16 * (1 + invar_case_random(&m->rng, 40));
    return fit_chain(1 + invar_case_random(&m->rng, s->k), s,
                     chain_multiple(m, shards, i + 1 < count, 1));
}

/*
 * Makes the parts of a chain of at most s->k values in total; `experts` is the number of experts in
 * each w.
 */
static int32_t make_parts(case_builder *m, invar_linear_part *parts, int64_t *atoms, const shape *s,
                          int32_t shards, int64_t experts)
{
    int32_t count = m->edge ? 1 : 1 + (int32_t)invar_case_random(&m->rng, INVAR_LINEAR_MAX_PARTS);
    const pair *types = m->types;

    for (int32_t i = 0; i < count; i++) {
        int64_t k = part_chain(m, s, i, count, shards);
        atoms[i] = any_atom(m, k, shards, types->unit[1]);
        parts[i].dy = activations(m, s->rows, k);
        // parts may have weights in different formats
        parts[i].w = types->w == INVAR_DTYPE_INT4 && count > 1 && invar_case_random(&m->rng, 3) == 0
                         ? storage(m, INVAR_DTYPE_BF16, experts * k, s->cols, true)
                         : weights(m, experts, k, s->cols);
    }
    return count;
}

static void make_input_grad(invar_case *c, uint64_t seed, bool atoms)
{
    invar_linear_dx_args *a = &c->args.linear_dx;
    case_builder m = new_builder(c, seed, atoms);
    shape s = draw_shape(&m, seed, m.types->block);

    a->k_shards = any_shards(&m);
    a->n_parts = make_parts(&m, a->parts, a->k_atom, &s, a->k_shards, 1);
    a->dx = storage(&m, storage_type(&m), s.rows, s.cols, false);
    snprintf(c->text, sizeof c->text,
             "%s, T %" PRId64 ", K %" PRId64 ", %d parts, the first of %" PRId64 ", %d shards",
             m.types->name, s.rows, s.cols, a->n_parts, a->parts[0].dy.shape[1], a->k_shards);
}

static void make_moe_input_grad(invar_case *c, uint64_t seed, bool atoms)
{
    invar_moe_linear_dx_args *a = &c->args.moe_linear_dx;
    case_builder m = new_builder(c, seed, atoms);
    int64_t experts = INVAR_CASE_PICK(&m.rng, 1, 2, 3, 5, 8);
    shape s = draw_shape(&m, seed, m.types->block);

    a->k_shards = any_shards(&m);
    a->n_parts = make_parts(&m, a->parts, a->k_atom, &s, a->k_shards, experts);
    a->dx = storage(&m, storage_type(&m), s.rows, s.cols, false);
    a->experts = invar_case_segments(c, s.rows, experts, true, &m.rng);
    snprintf(c->text, sizeof c->text,
             "%s, P %" PRId64 ", K %" PRId64 ", %d parts, the first of %" PRId64
             ", %d shards, %" PRId64 " experts",
             m.types->name, s.rows, s.cols, a->n_parts, a->parts[0].dy.shape[1], a->k_shards,
             experts);
}

/* ---- dw -------------------------------------------------------------------------------------- */

/* Makes units of any size over the tokens, some of them tiny or empty. */
static invar_row_offsets any_units(case_builder *m, int64_t tokens)
{
    return invar_case_segments(m->c, tokens, INVAR_CASE_PICK(&m->rng, 1, 1, 2, 3, 9, 40), true,
                               &m->rng);
}

/* Draws f32 or bf16 for any pair, since gradients of weights have no other types. */
static void draw_gradient(case_builder *m, invar_dtype *dtype_out, shape *s, uint64_t seed)
{
    *dtype_out = m->types->x == INVAR_DTYPE_F32 ? INVAR_DTYPE_F32 : INVAR_DTYPE_BF16;
    *s = draw_shape(m, seed, 1);
    s->k = m->edge ? s->k : fit_chain(s->k, s, 1);
}

static void make_weight_grad(invar_case *c, uint64_t seed, bool fresh)
{
    invar_linear_dw_args *a = &c->args.linear_dw;
    case_builder m = new_builder(c, seed, false);
    invar_dtype dtype;
    shape s;

    draw_gradient(&m, &dtype, &s, seed);
    a->dy = storage(&m, dtype, s.k, s.rows, true);
    a->x = storage(&m, dtype, s.k, s.cols, true);
    a->dw = storage(&m, INVAR_DTYPE_F32, s.rows, s.cols, !fresh);
    a->fresh = fresh;
    a->units = any_units(&m, s.k);
    snprintf(c->text, sizeof c->text,
             "%s, T %" PRId64 ", N %" PRId64 ", K %" PRId64 ", %" PRId64 " units",
             invar_dtype_name(dtype), s.k, s.rows, s.cols, a->units.count);
}

/* Fills the tokens of each expert, ascending; returns the number of tokens that this needs. */
static int64_t fill_tokens(case_builder *m, const invar_tensor *row_token,
                           const invar_row_offsets *experts)
{
    int32_t *token = row_token->data;
    int64_t tokens = 1;

    for (int64_t e = 0; e < experts->count; e++) {
        int64_t rows = experts->offsets[e + 1] - experts->offsets[e];
        tokens = rows > tokens ? rows : tokens;
    }
    tokens += invar_case_random(&m->rng, tokens + 1);
    for (int64_t e = 0; e < experts->count; e++) {
        int64_t next = 0;
        for (int64_t i = experts->offsets[e]; i < experts->offsets[e + 1]; i++) {
            int64_t spare = tokens - next - (experts->offsets[e + 1] - i);
            next += invar_case_random(&m->rng, (spare < 3 ? spare : 3) + 1);
            token[i] = (int32_t)next++;
        }
    }
    return tokens;
}

static void make_moe_weight_grad(invar_case *c, uint64_t seed, bool fresh)
{
    invar_moe_linear_dw_args *a = &c->args.moe_linear_dw;
    case_builder m = new_builder(c, seed, false);
    int64_t experts = INVAR_CASE_PICK(&m.rng, 1, 2, 3, 5, 8);
    invar_dtype dtype;
    shape s;

    draw_gradient(&m, &dtype, &s, seed);
    a->dy = storage(&m, dtype, s.k, s.rows, true);
    a->x = storage(&m, dtype, s.k, s.cols, true);
    a->dw = storage(&m, INVAR_DTYPE_F32, experts * s.rows, s.cols, !fresh);
    a->fresh = fresh;
    a->experts = invar_case_segments(c, s.k, experts, true, &m.rng);
    a->row_token = invar_case_tensor(c, invar_tensor_1d(NULL, INVAR_DTYPE_I32, s.k), 0);
    a->units = any_units(&m, fill_tokens(&m, &a->row_token, &a->experts));
    snprintf(c->text, sizeof c->text,
             "%s, P %" PRId64 ", N %" PRId64 ", K %" PRId64 ", %" PRId64 " units, %" PRId64
             " experts",
             invar_dtype_name(dtype), s.k, s.rows, s.cols, a->units.count, experts);
}

static void make_case(invar_case *c, uint64_t seed)
{
    bool atoms = seed >= INVAR_CASE_ATOMS && seed < INVAR_CASE_SHORT;
    bool more = seed >= INVAR_CASE_FUSED && seed < INVAR_CASE_ATOMS;
    bool few_rows = seed >= INVAR_CASE_FEW;

    seed -= atoms ? INVAR_CASE_ATOMS : more ? INVAR_CASE_FUSED : 0;
    switch (c->op) {
    case INVAR_OP_LINEAR_FWD:
        // half of the calls with atoms, few rows or long shards are fused
        if (more || ((atoms || few_rows) && seed % 2))
            make_fused(c, seed, atoms);
        else
            make_forward(c, seed, atoms);
        return;
    case INVAR_OP_LINEAR_DX: make_input_grad(c, seed, atoms); return;
    case INVAR_OP_LINEAR_DW: make_weight_grad(c, seed, more); return;
    case INVAR_OP_MOE_LINEAR_FWD: make_moe_forward(c, seed, atoms); return;
    case INVAR_OP_MOE_LINEAR_DX: make_moe_input_grad(c, seed, atoms); return;
    default: make_moe_weight_grad(c, seed, more); return;
    }
}

const invar_case_family invar_cases_linear = {make_case, EDGES};
