/*
 * gpu_experts.c - invar bench --device cuda: ops of a mixture of experts.
 *
 * Products are compared with the ops of --peer, the other ops with a copy of the bytes that they
 * must read and write.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bench/gpu.h"

#include "base/invar_banned.h"

/* ---- routing --------------------------------------------------------------------------------- */

enum { ROUTED = 16384, EXPERTS = 128, CHOSEN = 8 };

static invar_status make_route(invar_moe_route_fwd_args *out, invar_gpu_bench *b)
{
    *out = (invar_moe_route_fwd_args){.router = {.scoring = INVAR_MOE_SOFTMAX,
                                                 .groups = 1,
                                                 .groups_kept = 1,
                                                 .group_score_top = 1,
                                                 .normalise = 1,
                                                 .scale = 1.0f}};
    INVAR_TRY(invar_gpu_bench_alloc(&out->ids, b, INVAR_DTYPE_I32, ROUTED, CHOSEN));
    INVAR_TRY(invar_gpu_bench_alloc(&out->weights, b, INVAR_DTYPE_F32, ROUTED, CHOSEN));
    INVAR_TRY(invar_gpu_bench_alloc(&out->scores, b, INVAR_DTYPE_F32, ROUTED, EXPERTS));
    return invar_gpu_bench_make(&out->logits, b, INVAR_DTYPE_F32, ROUTED, EXPERTS);
}

static invar_status bench_route(invar_gpu_bench *b)
{
    invar_moe_route_fwd_args a, part;
    invar_gpu_row_check s = {
        &part, 64, 4, 3, {&part.ids, &part.weights, &part.scores, &part.logits}};

    INVAR_TRY(make_route(&a, b));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_MOE_ROUTE_FWD, &a, "16384x128 8",
                                 8.0 * ROUTED * (EXPERTS + CHOSEN));
}

static invar_status bench_route_bwd(invar_gpu_bench *b)
{
    invar_moe_route_fwd_args f;
    invar_moe_route_bwd_args a = {0}, part;
    invar_gpu_row_check s = {
        &part, 64, 4, 1, {&part.dlogits, &part.dweights, &part.ids, &part.scores}};

    INVAR_TRY(make_route(&f, b));
    INVAR_TRY(invar_gpu_bench_run(&b->gpu, INVAR_OP_MOE_ROUTE_FWD, &f));
    a.ids = f.ids;
    a.scores = f.scores;
    a.router = f.router;
    INVAR_TRY(invar_gpu_bench_make(&a.dweights, b, INVAR_DTYPE_F32, ROUTED, CHOSEN));
    INVAR_TRY(invar_gpu_bench_alloc(&a.dlogits, b, INVAR_DTYPE_BF16, ROUTED, EXPERTS));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_MOE_ROUTE_BWD, &a, "16384x128 8",
                                 ROUTED * (6.0 * EXPERTS + 8.0 * CHOSEN));
}

/* ---- gather and combine ---------------------------------------------------------------------- */

enum { TOKENS = 4096, SLOTS = 4, ROWS = TOKENS * SLOTS, HIDDEN = 4096 };

/* Makes slots that name every row exactly once. */
static invar_status make_slots(invar_tensor *out, invar_gpu_bench *b)
{
    INVAR_TRY(invar_gpu_bench_indices(out, b, ROWS, ROWS, 1021));
    *out = invar_tensor_2d(out->data, INVAR_DTYPE_I32, TOKENS, SLOTS);
    return INVAR_OK;
}

static invar_status bench_gather(invar_gpu_bench *b)
{
    invar_moe_gather_fwd_args a = {0}, part;
    invar_gpu_row_check s = {&part, 2, 3, 1, {&part.out, &part.x, &part.row_token}};

    INVAR_TRY(invar_gpu_bench_alloc(&a.out, b, INVAR_DTYPE_BF16, ROWS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_make(&a.x, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_indices(&a.row_token, b, ROWS, TOKENS, 1021));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_MOE_GATHER_FWD, &a, "4096x4x4096",
                                 2.0 * ROWS * HIDDEN * 2);
}

/*
 * All rows are compared here and below, because a subset of tokens does not name each row exactly
 * once.
 */
static invar_status bench_gather_bwd(invar_gpu_bench *b)
{
    invar_moe_gather_bwd_args a = {0}, part;
    invar_gpu_row_check s = {&part, TOKENS, 3, 1, {&part.dx, &part.dout, &part.slot_row}};

    INVAR_TRY(invar_gpu_bench_alloc(&a.dx, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_make(&a.dout, b, INVAR_DTYPE_BF16, ROWS, HIDDEN));
    INVAR_TRY(make_slots(&a.slot_row, b));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_MOE_GATHER_BWD, &a, "4096x4x4096",
                                 2.0 * (ROWS + TOKENS) * HIDDEN);
}

static invar_status bench_combine(invar_gpu_bench *b)
{
    invar_moe_combine_fwd_args a = {0}, part;
    invar_gpu_row_check s = {
        &part, TOKENS, 4, 1, {&part.out, &part.y, &part.weights, &part.slot_row}};

    INVAR_TRY(invar_gpu_bench_alloc(&a.out, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_make(&a.y, b, INVAR_DTYPE_BF16, ROWS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_make(&a.weights, b, INVAR_DTYPE_F32, TOKENS, SLOTS));
    INVAR_TRY(make_slots(&a.slot_row, b));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_MOE_COMBINE_FWD, &a, "4096x4x4096",
                                 2.0 * (ROWS + TOKENS) * HIDDEN);
}

static invar_status bench_combine_bwd(invar_gpu_bench *b)
{
    invar_moe_combine_bwd_args a = {0}, part;
    invar_gpu_row_check s = {
        &part,
        ROWS,
        6,
        2,
        {&part.dy, &part.dweights, &part.dout, &part.y, &part.weights, &part.slot_row}};

    INVAR_TRY(invar_gpu_bench_alloc(&a.dy, b, INVAR_DTYPE_BF16, ROWS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_alloc(&a.dweights, b, INVAR_DTYPE_F32, TOKENS, SLOTS));
    INVAR_TRY(invar_gpu_bench_make(&a.dout, b, INVAR_DTYPE_BF16, TOKENS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_make(&a.y, b, INVAR_DTYPE_BF16, ROWS, HIDDEN));
    INVAR_TRY(invar_gpu_bench_make(&a.weights, b, INVAR_DTYPE_F32, TOKENS, SLOTS));
    INVAR_TRY(make_slots(&a.slot_row, b));
    part = a;
    return invar_gpu_bench_moves(b, &s, INVAR_OP_MOE_COMBINE_BWD, &a, "4096x4x4096",
                                 2.0 * (2 * ROWS + TOKENS) * HIDDEN);
}

/* ---- products -------------------------------------------------------------------------------- */

enum { EACH = 256, ALL = EXPERTS * EACH, FFN = 768, WIDTH = 2048, BATCH = 4096 };

/* Makes offsets with EACH rows per expert. */
static invar_status make_experts(invar_row_offsets *out, invar_gpu_bench *b)
{
    int64_t start[EXPERTS + 1];
    void *there;

    for (int i = 0; i <= EXPERTS; i++)
        start[i] = i * EACH;
    INVAR_TRY(invar_gpu_bench_array(&there, b, start, sizeof start));
    *out = (invar_row_offsets){there, EXPERTS};
    return INVAR_OK;
}

static invar_status compare_products(invar_gpu_bench *b, invar_op op, const char *type,
                                     const char *shape, const void *args)
{
    invar_gpu_compare_case row = {.op = op,
                                  .type = type,
                                  .shape = shape,
                                  .args = {args},
                                  .sets = 1,
                                  .work = 2.0 * ALL * FFN * WIDTH};

    INVAR_TRY(invar_gpu_bench_audit(&row, b));
    return invar_gpu_bench_time(b, &row);
}

#define GATE_SHAPE "E128 256x768x2048"
#define DOWN_SHAPE "E128 256x2048x768"

static invar_status linear_bf16(invar_gpu_bench *b)
{
    invar_moe_linear_fwd_args a = {.k_shards = 1};

    INVAR_TRY(make_experts(&a.experts, b));
    INVAR_TRY(invar_gpu_bench_alloc(&a.y, b, INVAR_DTYPE_BF16, ALL, FFN));
    INVAR_TRY(invar_gpu_bench_make(&a.x, b, INVAR_DTYPE_BF16, ALL, WIDTH));
    INVAR_TRY(invar_gpu_bench_make(&a.w, b, INVAR_DTYPE_BF16, EXPERTS * FFN, WIDTH));
    return compare_products(b, INVAR_OP_MOE_LINEAR_FWD, "bf16", GATE_SHAPE, &a);
}

static invar_status linear_fp8(invar_gpu_bench *b, int64_t out, int64_t in, const char *shape)
{
    invar_moe_linear_fwd_args a = {.k_shards = 1};

    INVAR_TRY(make_experts(&a.experts, b));
    INVAR_TRY(invar_gpu_bench_alloc(&a.y, b, INVAR_DTYPE_BF16, ALL, out));
    INVAR_TRY(invar_gpu_bench_quantized(&a.x, b, INVAR_DTYPE_FP8, 1, ALL, in));
    INVAR_TRY(
        invar_gpu_bench_quantized(&a.w, b, INVAR_DTYPE_FP8, INVAR_FP8_BLOCK, EXPERTS * out, in));
    return compare_products(b, INVAR_OP_MOE_LINEAR_FWD, "fp8", shape, &a);
}

static invar_status bench_linear(invar_gpu_bench *b)
{
    INVAR_TRY(invar_gpu_bench_end_row(b, linear_bf16(b)));
    INVAR_TRY(invar_gpu_bench_end_row(b, linear_fp8(b, FFN, WIDTH, GATE_SHAPE)));
    return linear_fp8(b, WIDTH, FFN, DOWN_SHAPE);
}

static invar_status bench_linear_dx(invar_gpu_bench *b)
{
    invar_moe_linear_dx_args a = {.n_parts = 1, .k_shards = 1};

    INVAR_TRY(make_experts(&a.experts, b));
    INVAR_TRY(invar_gpu_bench_alloc(&a.dx, b, INVAR_DTYPE_BF16, ALL, WIDTH));
    INVAR_TRY(invar_gpu_bench_make(&a.parts[0].dy, b, INVAR_DTYPE_BF16, ALL, FFN));
    INVAR_TRY(invar_gpu_bench_make(&a.parts[0].w, b, INVAR_DTYPE_BF16, EXPERTS * FFN, WIDTH));
    return compare_products(b, INVAR_OP_MOE_LINEAR_DX, "bf16", GATE_SHAPE, &a);
}

static invar_status bench_linear_dw(invar_gpu_bench *b)
{
    enum { UNITS = 8 };
    int64_t start[UNITS + 1];
    invar_moe_linear_dw_args a = {0};
    void *units;

    for (int i = 0; i <= UNITS; i++)
        start[i] = BATCH / UNITS * i;
    INVAR_TRY(invar_gpu_bench_array(&units, b, start, sizeof start));
    a.units = (invar_row_offsets){units, UNITS};
    INVAR_TRY(make_experts(&a.experts, b));
    INVAR_TRY(invar_gpu_bench_make(&a.dw, b, INVAR_DTYPE_F32, EXPERTS * FFN, WIDTH));
    INVAR_TRY(invar_gpu_bench_make(&a.dy, b, INVAR_DTYPE_BF16, ALL, FFN));
    INVAR_TRY(invar_gpu_bench_make(&a.x, b, INVAR_DTYPE_BF16, ALL, WIDTH));
    INVAR_TRY(invar_gpu_bench_indices(&a.row_token, b, ALL, BATCH, BATCH / EACH)); // ascending
    return compare_products(b, INVAR_OP_MOE_LINEAR_DW, "bf16", GATE_SHAPE, &a);
}

/* ---- list of benchmarks ---------------------------------------------------------------------- */

const invar_gpu_memory_bench invar_gpu_experts[] = {
    {INVAR_OP_MOE_ROUTE_FWD, bench_route},         {INVAR_OP_MOE_ROUTE_BWD, bench_route_bwd},
    {INVAR_OP_MOE_GATHER_FWD, bench_gather},       {INVAR_OP_MOE_GATHER_BWD, bench_gather_bwd},
    {INVAR_OP_MOE_LINEAR_FWD, bench_linear},       {INVAR_OP_MOE_LINEAR_DX, bench_linear_dx},
    {INVAR_OP_MOE_LINEAR_DW, bench_linear_dw},     {INVAR_OP_MOE_COMBINE_FWD, bench_combine},
    {INVAR_OP_MOE_COMBINE_BWD, bench_combine_bwd}, {INVAR_OP_COUNT, NULL},
};
