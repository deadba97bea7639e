/*
 * experts.c - grouped products and complete expert layers are bit-invariant.
 *
 * A row of an expert equals the dense layer with that expert's weights, for any number of rows of
 * this and the other experts. A token of a layer equals the token alone, for any order of the
 * tokens and any other tokens, forward and backward; weights get the gradients of their own
 * tokens, unit by unit. Controls that must differ: a chain in two halves, rows at another expert,
 * one unit instead of several, and a layer whose chains depend on the number of its tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/invariance/sweep.h"

#define F32 INVAR_DTYPE_F32
#define I32 INVAR_DTYPE_I32

enum { MAX_EXPERTS = 64 };

/* ---- grouped and dense products -------------------------------------------------------------- */

/* A pool of rows for each expert, and the results of the dense layer. */
typedef struct pools {
    invar_sweep *s;
    const invar_test_format *format;
    int64_t experts, max_rows, n, k;      /* `max_rows` rows in each pool */
    invar_tensor x, dy;                   /* (E * most, k), (E * most, n): before quantization */
    invar_tensor w;                       /* (E * n, k) */
    invar_tensor expected_y, expected_dx; /* on the heap */
    invar_tensor rows_x, rows_dy, y, dx;  /* operands and results of the current call */
} pools;

static pools pools_new(invar_sweep *s, const invar_test_format *format, int64_t experts,
                       int64_t max_rows, int64_t n, int64_t k)
{
    pools p = {.s = s, .format = format, .experts = experts, .max_rows = max_rows, .n = n, .k = k};
    invar_tensor plain = invar_sweep_normal(s, format->storage, experts * n, k, 1), xq, dyq;

    p.w = invar_sweep_quantized(s, &plain, format->w, true);
    p.x = invar_sweep_normal(s, format->storage, experts * max_rows, k, 2);
    p.dy = invar_sweep_normal(s, format->storage, experts * max_rows, n, 3);
    p.rows_x = invar_sweep_2d(s, format->storage, experts * max_rows, k);
    p.rows_dy = invar_sweep_2d(s, format->storage, experts * max_rows, n);
    p.y = invar_sweep_2d(s, F32, experts * max_rows, n);
    p.dx = invar_sweep_2d(s, F32, experts * max_rows, k);
    xq = invar_sweep_quantized(s, &p.x, format->x, false);
    dyq = invar_sweep_quantized(s, &p.dy, format->x, false);
    for (int64_t e = 0; e < experts; e++) {
        invar_tensor w = invar_tensor_rows(&p.w, e * n, n);
        invar_linear_fwd_args fwd = {.y = invar_tensor_rows(&p.y, e * max_rows, max_rows),
                                     .x = invar_tensor_rows(&xq, e * max_rows, max_rows),
                                     .w = w,
                                     .k_shards = 1};
        invar_linear_dx_args bwd = {.dx = invar_tensor_rows(&p.dx, e * max_rows, max_rows),
                                    .parts = {{invar_tensor_rows(&dyq, e * max_rows, max_rows), w}},
                                    .n_parts = 1,
                                    .k_shards = 1};

        invar_sweep_run(s, INVAR_OP_LINEAR_FWD, &fwd);
        invar_sweep_run(s, INVAR_OP_LINEAR_DX, &bwd);
    }
    p.expected_y = invar_sweep_download(s, &p.y);
    p.expected_dx = invar_sweep_download(s, &p.dx);
    return p;
}

/* Runs the first counts[e] rows of each pool in one grouped product. */
static void check_counts(pools *p, const int64_t *counts, const char *what)
{
    int64_t start[MAX_EXPERTS + 1] = {0};
    int mark = invar_sweep_mark(p->s);
    invar_moe_linear_fwd_args fwd = {.w = p->w, .k_shards = 1};
    invar_moe_linear_dx_args bwd = {.n_parts = 1, .k_shards = 1};
    invar_tensor x, dy;

    for (int64_t e = 0; e < p->experts; e++) {
        start[e + 1] = start[e] + counts[e];
        invar_sweep_copy_rows(p->s, &p->rows_x, start[e], &p->x, e * p->max_rows, counts[e]);
        invar_sweep_copy_rows(p->s, &p->rows_dy, start[e], &p->dy, e * p->max_rows, counts[e]);
    }
    x = invar_tensor_rows(&p->rows_x, 0, start[p->experts]);
    dy = invar_tensor_rows(&p->rows_dy, 0, start[p->experts]);
    fwd.experts = bwd.experts =
        (invar_row_offsets){invar_sweep_numbers(p->s, start, p->experts + 1), p->experts};
    fwd.x = invar_sweep_quantized(p->s, &x, p->format->x, false);
    fwd.y = invar_tensor_rows(&p->y, 0, start[p->experts]);
    bwd.parts[0] = (invar_linear_part){invar_sweep_quantized(p->s, &dy, p->format->x, false), p->w};
    bwd.dx = invar_tensor_rows(&p->dx, 0, start[p->experts]);
    invar_sweep_zero(p->s, &fwd.y);
    invar_sweep_zero(p->s, &bwd.dx);
    invar_sweep_run(p->s, INVAR_OP_MOE_LINEAR_FWD, &fwd);
    invar_sweep_run(p->s, INVAR_OP_MOE_LINEAR_DX, &bwd);
    for (int64_t e = 0; e < p->experts; e++) {
        invar_tensor y = invar_tensor_rows(&p->y, start[e], counts[e]);
        invar_tensor dx = invar_tensor_rows(&p->dx, start[e], counts[e]);

        invar_sweep_assert(p->s, &y, &p->expected_y, e * p->max_rows,
                           "%s y, %s, %d rows of expert %d", p->format->name, what, (int)counts[e],
                           (int)e);
        invar_sweep_assert(p->s, &dx, &p->expected_dx, e * p->max_rows,
                           "%s dx, %s, %d rows of expert %d", p->format->name, what, (int)counts[e],
                           (int)e);
    }
    invar_sweep_release(p->s, mark);
}

/* Numbers of rows of the experts, one of which has `n`. */
static int64_t count_of(const pools *p, int kind, int64_t e, int64_t n)
{
    switch (kind) {
    case 0: return 0;
    case 1: return 1;
    case 2: return n;
    case 3: return p->max_rows;
    case 4: return e % 2 ? p->max_rows : 0;
    default: return (int64_t)(invar_test_random(5, (uint64_t)(e + 64 * n)) % (uint32_t)p->max_rows);
    }
}

static void check_pools(invar_numerics numerics, const invar_test_format *format)
{
    static const int64_t edges[] = {0,  1,  2,  7,  8,  9,  15,  16,  17,  31,
                                    32, 33, 63, 64, 65, 96, 127, 128, 129, 160};
    static const char *const kinds[] = {"alone",      "others one",  "others as many",
                                        "others all", "others half", "others random"};
    invar_sweep *s = invar_sweep_begin(numerics);
    int mark = invar_sweep_mark(s);
    bool fast = numerics == INVAR_NUMERICS_SM90 && format->x != F32;
    int64_t side = invar_sweep_size(s, fast ? 512 : 128, 128);
    pools p = pools_new(s, format, invar_sweep_size(s, fast ? 32 : 8, 4),
                        invar_sweep_size(s, 160, 17), side, invar_sweep_size(s, 2 * side, 128));

    for (size_t i = 0; i < sizeof edges / sizeof *edges && edges[i] <= p.max_rows; i++)
        for (int kind = 0; kind < 6; kind++) {
            int64_t counts[MAX_EXPERTS];

            for (int64_t e = 0; e < p.experts; e++)
                counts[e] = count_of(&p, kind, e, edges[i]);
            counts[i % (size_t)p.experts] = edges[i];
            check_counts(&p, counts, kinds[kind]);
        }
    invar_test_free(&p.expected_y, &p.expected_dx);
    invar_sweep_release(s, mark);
}

static void test_experts__grouped_rows_are_dense_rows(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_TEST_FORMATS; i++)
        check_pools(INVAR_NUMERICS_SM90, &invar_test_formats[i]);
    check_pools(INVAR_NUMERICS_IEEE, &invar_test_formats[1]);
}

/* ---- gradients of weights -------------------------------------------------------------------- */

enum { UNITS = 5 };

/*
 * On a GPU: units of few and of many tokens; rows and columns that fill tiles or do not; added to
 * zeros, or overwriting memory.
 */
static const struct gradients {
    int64_t experts, tokens, less;
    bool fresh;
} gradients[] = {{32, 3000, 0, false}, {32, 3000, 5, true}, {32, 3000, 6, false},
                 {32, 3000, 7, true},  {4, 9000, 0, false}, {4, 9000, 7, true}};

/* The first columns; the columns after them must not change. */
static invar_tensor first_columns(invar_tensor t, int64_t cols)
{
    t.shape[1] = cols;
    return t;
}

/* Token t goes to one expert; rows are sorted by expert, tokens ascending in each. */
static void check_weight_gradients(invar_numerics numerics, const invar_test_format *format,
                                   const struct gradients *g)
{
    invar_sweep *s = invar_sweep_begin(numerics);
    bool fast = numerics == INVAR_NUMERICS_SM90 && format->x != F32;
    int64_t experts = invar_sweep_size(s, fast ? g->experts : 6, 4);
    int64_t tokens = invar_sweep_size(s, fast ? g->tokens : 400, 90);
    int64_t rows_of_dw = invar_sweep_size(s, fast ? 256 : 72, 40), n = rows_of_dw - g->less;
    int64_t stride = invar_sweep_size(s, 384, 24), k = stride - g->less;
    const int64_t unit[] = {0, 1, tokens / 3, tokens / 3 + 20, tokens - 7, tokens};
    int64_t start[MAX_EXPERTS + 1] = {0}, cut[MAX_EXPERTS][UNITS + 1], rows = 0;
    int mark = invar_sweep_mark(s);
    invar_moe_linear_dw_args grouped_product = {0};
    invar_tensor all = invar_sweep_2d(s, F32, experts * n, stride), expected;
    invar_tensor dw = invar_sweep_2d(s, F32, n, stride);
    int32_t *row_token = malloc((size_t)tokens * sizeof *row_token);

    assert_non_null(row_token);
    for (int64_t e = 0; e < experts; e++) {
        int u = 0;

        for (int64_t t = 0; t < tokens; t++) {
            for (; u < UNITS && unit[u] <= t; u++)
                cut[e][u] = rows - start[e];
            // the square gives different counts
            if ((int64_t)(invar_test_random(8, (uint64_t)t) % (uint32_t)(experts * experts)) /
                    experts * (t % 3 > 0) ==
                e)
                row_token[rows++] = (int32_t)t;
        }
        for (; u <= UNITS; u++)
            cut[e][u] = rows - start[e];
        start[e + 1] = rows;
    }
    grouped_product.dw = first_columns(all, k);
    grouped_product.dy =
        first_columns(invar_sweep_normal(s, format->storage, rows, rows_of_dw, 6), n);
    grouped_product.x = first_columns(invar_sweep_normal(s, format->storage, rows, stride, 7), k);
    grouped_product.fresh = g->fresh;
    grouped_product.row_token = invar_sweep_tensor(s, invar_tensor_1d(NULL, I32, rows));
    invar_sweep_upload(s, &grouped_product.row_token, row_token);
    grouped_product.experts =
        (invar_row_offsets){invar_sweep_numbers(s, start, experts + 1), experts};
    grouped_product.units = (invar_row_offsets){invar_sweep_numbers(s, unit, UNITS + 1), UNITS};
    invar_sweep_fill(s, &all, g->fresh ? 7.0f : 0.0f);
    invar_sweep_run(s, INVAR_OP_MOE_LINEAR_DW, &grouped_product);
    expected = invar_sweep_download(s, &all);
    for (int64_t e = 0; e < experts; e++) {
        int64_t count = start[e + 1] - start[e];
        invar_linear_dw_args dense = {.dw = first_columns(dw, k),
                                      .dy = invar_tensor_rows(&grouped_product.dy, start[e], count),
                                      .x = invar_tensor_rows(&grouped_product.x, start[e], count),
                                      .units = {invar_sweep_numbers(s, cut[e], UNITS + 1), UNITS},
                                      .fresh = g->fresh};

        invar_sweep_fill(s, &dw, g->fresh ? 7.0f : 0.0f);
        invar_sweep_run(s, INVAR_OP_LINEAR_DW, &dense);
        invar_sweep_assert(s, &dw, &expected, e * n, "%s dw of expert %d, %d rows", format->name,
                           (int)e, (int)count);
        // control: an expert whose rows belong to several units, computed as one unit
        if (e == 1) {
            const int64_t uncut[] = {0, count};
            assert_true(count > cut[e][3] && cut[e][3] > cut[e][1]);
            dense.units = (invar_row_offsets){invar_sweep_numbers(s, uncut, 2), 1};
            invar_sweep_fill(s, &dw, g->fresh ? 7.0f : 0.0f);
            invar_sweep_run(s, INVAR_OP_LINEAR_DW, &dense);
            assert_false(invar_sweep_equal(s, &dw, &expected, e * n));
        }
    }
    invar_test_free(&expected);
    free(row_token);
    invar_sweep_release(s, mark);
}

static void test_experts__weight_gradients_are_dense_ones(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_TEST_STORAGE_FORMATS; i++)
        for (int numerics = 0; numerics < INVAR_NUMERICS_COUNT; numerics++)
            for (size_t g = 0; g < sizeof gradients / sizeof *gradients; g++)
                check_weight_gradients((invar_numerics)numerics, &invar_test_formats[i],
                                       &gradients[g]);
}

/* ---- a layer --------------------------------------------------------------------------------- */

typedef struct layer {
    invar_sweep *s;
    const invar_test_format *format;
    int64_t width, hidden, experts, slots;
    int32_t k_shards; /* of every product: 1, or 2 half chains in a control */
    invar_moe_router router;
    invar_tensor router_weight, gate, up, down;
} layer;

/* Inputs and outputs of a token. */
enum { X, DOUT, SHARED, INPUTS };
enum { OUT, DX_EXPERTS, DX_ROUTER, WEIGHTS, IDS, RESULTS };

static const char *const names[RESULTS] = {"out", "dx", "dx of the router", "weights", "ids"};

typedef struct tokens {
    invar_tensor in[INPUTS], out[RESULTS];
} tokens;

static invar_tensor weight(invar_sweep *s, const invar_test_format *f, int64_t rows, int64_t cols,
                           uint64_t seed)
{
    invar_tensor plain = invar_sweep_2d(s, f->storage, rows, cols);

    invar_sweep_fill_normal(s, &plain, seed, 1.0f / sqrtf((float)cols));
    return invar_sweep_quantized(s, &plain, f->w, true);
}

static layer layer_new(invar_sweep *s, const invar_test_format *f, int64_t experts, int64_t slots)
{
    int64_t side = invar_sweep_size(s, 256, 128);
    layer l = {.s = s,
               .format = f,
               .width = side,
               .hidden = 128,
               .experts = experts,
               .slots = slots,
               .k_shards = 1,
               .router = {INVAR_MOE_SOFTMAX, 1, 1, 1, 1, 1e-6f, 1.5f}};

    l.router_weight = invar_sweep_normal(s, f->storage, experts, l.width, 1);
    l.gate = weight(s, f, experts * l.hidden, l.width, 2);
    l.up = weight(s, f, experts * l.hidden, l.width, 3);
    l.down = weight(s, f, experts * l.width, l.hidden, 4);
    return l;
}

static tokens tokens_new(const layer *l, int64_t count)
{
    invar_dtype storage = l->format->storage;
    tokens t;

    for (int i = 0; i < INPUTS; i++)
        t.in[i] = invar_sweep_2d(l->s, storage, count, l->width);
    for (int i = OUT; i <= DX_ROUTER; i++)
        t.out[i] = invar_sweep_2d(l->s, storage, count, l->width);
    t.out[WEIGHTS] = invar_sweep_2d(l->s, F32, count, l->slots);
    t.out[IDS] = invar_sweep_2d(l->s, I32, count, l->slots);
    return t;
}

static tokens tokens_rows(const tokens *t, int64_t first, int64_t count)
{
    tokens view;

    for (int i = 0; i < INPUTS; i++)
        view.in[i] = invar_tensor_rows(&t->in[i], first, count);
    for (int i = 0; i < RESULTS; i++)
        view.out[i] = invar_tensor_rows(&t->out[i], first, count);
    return view;
}

/* The rows in order of experts, and the operands of the products. */
typedef struct rows {
    invar_tensor row_token, slot_row, x, gate, up, act, y;
    invar_row_offsets experts;
} rows;

static void grouped_product(const layer *l, const rows *r, const invar_tensor *y,
                            const invar_tensor *x, const invar_tensor *w)
{
    invar_moe_linear_fwd_args args = {
        *y,          invar_sweep_quantized(l->s, x, l->format->x, false),
        *w,          r->experts,
        l->k_shards, x->shape[1] / 2};

    invar_sweep_run(l->s, INVAR_OP_MOE_LINEAR_FWD, &args);
}

static rows run_forward(const layer *l, const tokens *t, const invar_tensor *scores)
{
    invar_sweep *s = l->s;
    invar_dtype storage = l->format->storage;
    int64_t count = t->in[X].shape[0], all = count * l->slots;
    int64_t zeros[MAX_EXPERTS + 1] = {0};
    rows r = {.row_token = invar_sweep_tensor(s, invar_tensor_1d(NULL, I32, all)),
              .slot_row = invar_sweep_2d(s, I32, count, l->slots),
              .x = invar_sweep_2d(s, storage, all, l->width),
              .gate = invar_sweep_2d(s, storage, all, l->hidden),
              .up = invar_sweep_2d(s, storage, all, l->hidden),
              .act = invar_sweep_2d(s, storage, all, l->hidden),
              .y = invar_sweep_2d(s, storage, all, l->width),
              .experts = {invar_sweep_numbers(s, zeros, l->experts + 1), l->experts}};
    invar_tensor logits = invar_sweep_2d(s, F32, count, l->experts);
    invar_linear_fwd_args route = {.y = logits,
                                   .x = t->in[X],
                                   .w = l->router_weight,
                                   .k_shards = l->k_shards,
                                   .k_atom = l->width / 2};
    invar_moe_route_fwd_args choose = {.ids = t->out[IDS],
                                       .weights = t->out[WEIGHTS],
                                       .scores = *scores,
                                       .logits = logits,
                                       .router = l->router};
    invar_moe_plan_args plan = {r.row_token, r.slot_row, (int64_t *)r.experts.offsets, t->out[IDS],
                                l->experts};
    invar_moe_gather_fwd_args gather = {r.x, t->in[X], r.row_token};
    invar_swiglu_fwd_args swiglu = {.y = r.act, .gate = r.gate, .up = r.up};
    invar_moe_combine_fwd_args combine = {t->out[OUT], r.y, t->out[WEIGHTS], r.slot_row,
                                          t->in[SHARED]};

    invar_sweep_run(s, INVAR_OP_LINEAR_FWD, &route);
    invar_sweep_run(s, INVAR_OP_MOE_ROUTE_FWD, &choose);
    invar_sweep_run(s, INVAR_OP_MOE_PLAN, &plan);
    invar_sweep_run(s, INVAR_OP_MOE_GATHER_FWD, &gather);
    grouped_product(l, &r, &r.gate, &r.x, &l->gate);
    grouped_product(l, &r, &r.up, &r.x, &l->up);
    invar_sweep_run(s, INVAR_OP_SWIGLU_FWD, &swiglu);
    grouped_product(l, &r, &r.y, &r.act, &l->down);
    invar_sweep_run(s, INVAR_OP_MOE_COMBINE_FWD, &combine);
    return r;
}

/* Runs the forward, then the part of the backward that belongs to a token. */
static void run_layer(const layer *l, const tokens *t)
{
    invar_sweep *s = l->s;
    int mark = invar_sweep_mark(s);
    int64_t count = t->in[X].shape[0], all = count * l->slots;
    invar_dtype storage = l->format->storage;
    invar_tensor scores = invar_sweep_2d(s, F32, count, l->experts);
    rows r = run_forward(l, t, &scores);
    invar_tensor dy = invar_sweep_2d(s, storage, all, l->width);
    invar_tensor dweights = invar_sweep_2d(s, F32, count, l->slots);
    invar_tensor dact = invar_sweep_2d(s, storage, all, l->hidden);
    invar_tensor dgate = invar_sweep_2d(s, storage, all, l->hidden);
    invar_tensor dup = invar_sweep_2d(s, storage, all, l->hidden);
    invar_tensor dx = invar_sweep_2d(s, storage, all, l->width);
    invar_tensor dlogits = invar_sweep_2d(s, storage, count, l->experts);
    invar_moe_combine_bwd_args combine = {dy,  dweights,        t->in[DOUT],
                                          r.y, t->out[WEIGHTS], r.slot_row};
    invar_moe_linear_dx_args down = {.dx = dact,
                                     .n_parts = 1,
                                     .experts = r.experts,
                                     .k_shards = l->k_shards,
                                     .k_atom = {l->width / 2}};
    invar_swiglu_bwd_args swiglu = {
        .dgate = dgate, .dup = dup, .dy = dact, .gate = r.gate, .up = r.up};
    invar_moe_linear_dx_args both = {.dx = dx,
                                     .n_parts = 2,
                                     .experts = r.experts,
                                     .k_shards = l->k_shards,
                                     .k_atom = {l->hidden / 2, l->hidden / 2}};
    invar_moe_gather_bwd_args gather = {t->out[DX_EXPERTS], dx, r.slot_row};
    invar_moe_route_bwd_args route = {dlogits, dweights, t->out[IDS], scores, l->router};
    invar_linear_dx_args router = {.dx = t->out[DX_ROUTER],
                                   .parts = {{dlogits, l->router_weight}},
                                   .n_parts = 1,
                                   .k_shards = 1};

    invar_sweep_run(s, INVAR_OP_MOE_COMBINE_BWD, &combine);
    down.parts[0] =
        (invar_linear_part){invar_sweep_quantized(s, &dy, l->format->x, false), l->down};
    invar_sweep_run(s, INVAR_OP_MOE_LINEAR_DX, &down);
    invar_sweep_run(s, INVAR_OP_SWIGLU_BWD, &swiglu);
    both.parts[0] =
        (invar_linear_part){invar_sweep_quantized(s, &dgate, l->format->x, false), l->gate};
    both.parts[1] = (invar_linear_part){invar_sweep_quantized(s, &dup, l->format->x, false), l->up};
    invar_sweep_run(s, INVAR_OP_MOE_LINEAR_DX, &both);
    invar_sweep_run(s, INVAR_OP_MOE_GATHER_BWD, &gather);
    invar_sweep_run(s, INVAR_OP_MOE_ROUTE_BWD, &route);
    invar_sweep_run(s, INVAR_OP_LINEAR_DX, &router);
    invar_sweep_release(s, mark);
}

/*
 * Compares a result with rows of `expected` from `first` on. If `changed` is NULL, they must be
 * equal; otherwise sets changed[n] if they differ.
 */
static void compare_result(const layer *l, int n, const invar_tensor *got,
                           const invar_tensor *expected, int64_t first, const char *what,
                           bool *changed)
{
    if (!changed)
        invar_sweep_assert(l->s, got, expected, first, "%s, %s, %d experts, %d tokens: %s",
                           l->format->name, what, (int)l->experts, (int)got->shape[0], names[n]);
    else if (!invar_sweep_equal(l->s, got, expected, first))
        changed[n] = true;
}

/*
 * Places token order[i] of `all` at position i, and compares the results with those of the tokens
 * in `expected`.
 */
static void compare_order(const layer *l, const tokens *all, const invar_tensor *expected,
                          const int64_t *order, int64_t count, const char *what, bool *changed)
{
    int mark = invar_sweep_mark(l->s);
    tokens t = tokens_new(l, count);

    for (int64_t i = 0; i < count; i++)
        for (int n = 0; n < INPUTS; n++)
            invar_sweep_copy_rows(l->s, &t.in[n], i, &all->in[n], order[i], 1);
    run_layer(l, &t);
    for (int n = 0; n < RESULTS; n++) {
        invar_tensor ordered = invar_test_tensor(t.out[n]);

        for (int64_t i = 0; i < count; i++)
            invar_test_copy_rows(&ordered, i, &expected[n], order[i], 1);
        compare_result(l, n, &t.out[n], &ordered, 0, what, changed);
        invar_test_free(&ordered);
    }
    invar_sweep_release(l->s, mark);
}

static void compare_orders(const layer *l, const tokens *all, const invar_tensor *expected,
                           int64_t count, bool *changed)
{
    int64_t *order = malloc((size_t)count * sizeof *order), half = (count + 1) / 2;

    assert_non_null(order);
    for (int64_t i = 0; i < count; i++)
        order[i] = count - 1 - i;
    compare_order(l, all, expected, order, count, "reversed", changed);
    for (int64_t i = 0; i < count; i++)
        order[i] = i < half ? 2 * i : 2 * (i - half) + 1;
    compare_order(l, all, expected, order, count, "evens, then odds", changed);
    for (int64_t i = 0; i < count; i++) {
        int64_t j = invar_test_random(31, (uint64_t)i) % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    compare_order(l, all, expected, order, count, "shuffled", changed);
    compare_order(l, all, expected, order, half, "half of the shuffled", changed);
    for (int64_t i = 0; i < count; i++)
        order[i] = i % 2 ? 0 : i; // many copies of one token, so its experts get most rows
    compare_order(l, all, expected, order, count, "crowded", changed);
    free(order);
}

/* Compares each token alone, then chunks, with the whole batch. Overwrites the results of `all`. */
static void compare_chunks(const layer *l, const tokens *all, const invar_tensor *expected,
                           int64_t count, bool *changed)
{
    static const int64_t chunks[] = {1, 5, 16, 64};

    for (int c = 0; c < 4 && chunks[c] < count; c++)
        for (int64_t first = 0; first < count; first += chunks[c]) {
            int64_t left = count - first, some = left < chunks[c] ? left : chunks[c];
            tokens part = tokens_rows(all, first, some);

            for (int i = 0; i < RESULTS; i++)
                invar_sweep_zero(l->s, &part.out[i]);
            run_layer(l, &part);
            for (int i = 0; i < RESULTS; i++)
                compare_result(l, i, &part.out[i], &expected[i], first, "alone", changed);
        }
}

/* Makes a batch and runs the layer. The caller frees `expected`, the results, on the heap. */
static tokens expected_new(invar_tensor expected[RESULTS], const layer *l, int64_t count)
{
    tokens all = tokens_new(l, count);

    for (int i = 0; i < INPUTS; i++)
        invar_sweep_fill_normal(l->s, &all.in[i], 20 + (uint64_t)i, 1.0f);
    run_layer(l, &all);
    for (int i = 0; i < RESULTS; i++)
        expected[i] = invar_sweep_download(l->s, &all.out[i]);
    return all;
}

static void expected_free(invar_tensor expected[RESULTS])
{
    for (int i = 0; i < RESULTS; i++)
        invar_test_free(&expected[i]);
}

static void check_layer(const layer *l, int64_t count)
{
    int mark = invar_sweep_mark(l->s);
    invar_tensor expected[RESULTS];
    tokens all = expected_new(expected, l, count);

    compare_chunks(l, &all, expected, count, NULL);
    compare_orders(l, &all, expected, count, NULL);
    expected_free(expected);
    invar_sweep_release(l->s, mark);
}

/* Numbers of experts, slots and tokens of vLLM's tests, and a larger batch. */
static void test_experts__layer_bits_invariant_to_tokens(void **state)
{
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
    static const int64_t counts[] = {12, 73, 129, 257};

    (void)state;
    for (int i = 1; i < INVAR_TEST_FORMATS; i++)
        for (int many = 0; many < 2; many++) {
            int mark = invar_sweep_mark(s);
            layer l = layer_new(s, &invar_test_formats[i],
                                many ? invar_sweep_size(s, 64, 6) : invar_sweep_size(s, 40, 4),
                                many ? 4 : 1);

            for (int c = 0; c < invar_sweep_size(s, 4, 1); c++)
                check_layer(&l, counts[c]);
            invar_sweep_release(s, mark);
        }
}

/*
 * Control: chunks and orders that have other chains than the whole batch are seen in every result
 * but the ids, which only another router changes.
 */
static void test_experts__layer_that_depends_on_tokens_is_seen(void **state)
{
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
    int mark = invar_sweep_mark(s);
    layer l = layer_new(s, &invar_test_formats[0], 6, 4);
    const int64_t count = 12;
    invar_tensor expected[RESULTS];
    tokens all = expected_new(expected, &l, count);

    (void)state;
    for (int control = 0; control < 2; control++) {
        bool by_chunks[RESULTS] = {false}, by_order[RESULTS] = {false};

        l.k_shards = control ? 1 : 2;
        if (control)
            l.router_weight = invar_sweep_normal(s, l.format->storage, l.experts, l.width, 9);
        compare_chunks(&l, &all, expected, count, by_chunks);
        compare_orders(&l, &all, expected, count, by_order);
        for (int i = 0; i < RESULTS; i++)
            if ((control || i != IDS) && !(by_chunks[i] && by_order[i]))
                fail_msg("control %d: %s is equal", control, names[i]);
    }
    expected_free(expected);
    invar_sweep_release(s, mark);
}

/* ---- controls -------------------------------------------------------------------------------- */

/* Control: products in two half chains, and rows at another expert, must differ. */
static void test_experts__controls_are_seen(void **state)
{
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
    int mark = invar_sweep_mark(s);
    pools p = pools_new(s, &invar_test_formats[1], 2, 9, 128, 256);
    const int64_t start[] = {0, 8, 18}, right[] = {0, 9, 18};
    invar_moe_linear_fwd_args args = {
        .y = p.y, .x = p.x, .w = p.w, .experts = {invar_sweep_numbers(s, right, 3), 2}};

    (void)state;
    args.k_shards = 2; // two half chains
    args.k_atom = p.x.shape[1] / 2;
    invar_sweep_run(s, INVAR_OP_MOE_LINEAR_FWD, &args);
    assert_false(invar_sweep_equal(s, &p.y, &p.expected_y, 0));
    args.k_shards = 1;
    invar_sweep_run(s, INVAR_OP_MOE_LINEAR_FWD, &args);
    assert_true(invar_sweep_equal(s, &p.y, &p.expected_y, 0));
    args.experts.offsets = invar_sweep_numbers(s, start, 3);
    invar_sweep_run(s, INVAR_OP_MOE_LINEAR_FWD, &args);
    assert_false(invar_sweep_equal(s, &p.y, &p.expected_y, 0));
    invar_test_free(&p.expected_y, &p.expected_dx);
    invar_sweep_release(s, mark);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts__grouped_rows_are_dense_rows),
        cmocka_unit_test(test_experts__weight_gradients_are_dense_ones),
        cmocka_unit_test(test_experts__layer_bits_invariant_to_tokens),
        cmocka_unit_test(test_experts__layer_that_depends_on_tokens_is_seen),
        cmocka_unit_test(test_experts__controls_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, invar_sweep_report);
}
