/*
 * experts.c - cases of invar bench for the ops of a mixture of experts.
 *
 * Every expert has as many rows, so that all sizes are known before the router runs; uneven experts
 * are measured in whole models. Slots name the rows in a scattered order, each row once. The router
 * itself chooses experts for moe.plan and the gradient of the weights.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bench/bench.h"

#include "base/invar_banned.h"

#define F32 INVAR_DTYPE_F32
#define BF16 INVAR_DTYPE_BF16

enum { STEP = 1021 }; /* no divisor of a number of slots, so that each row is named once */

/* ---- routing --------------------------------------------------------------------------------- */

/* Runs a case of the router: on a GPU the bytes count, on a CPU the tokens. */
static invar_status run_routing(invar_bench *b, const void *args, invar_dtype type)
{
    const invar_bench_sizes *z = b->sizes;
    const int64_t *shape = INVAR_BENCH_SHAPE(z->routed, z->experts, z->chosen);

    if (b->local)
        return invar_bench_case_moves(b, args, type, shape);
    return invar_bench_case_works(b, args, type, shape, INVAR_BENCH_UNIT_TOKEN, (double)z->routed);
}

static invar_moe_route_fwd_args make_route(invar_bench *b)
{
    const invar_bench_sizes *z = b->sizes;

    return (invar_moe_route_fwd_args){
        .ids = invar_bench_zero(b, INVAR_DTYPE_I32, z->routed, z->chosen),
        .weights = invar_bench_make(b, F32, z->routed, z->chosen),
        .scores = invar_bench_make(b, F32, z->routed, z->experts),
        .logits = invar_bench_make(b, F32, z->routed, z->experts),
        .router = {.scoring = INVAR_MOE_SOFTMAX,
                   .groups = 1,
                   .groups_kept = 1,
                   .group_score_top = 1,
                   .normalise = 1,
                   .scale = 1.0f}};
}

invar_status invar_bench_op_moe_route_fwd(invar_bench *b)
{
    invar_moe_route_fwd_args args = make_route(b);

    return run_routing(b, &args, F32);
}

invar_status invar_bench_op_moe_route_bwd(invar_bench *b)
{
    invar_moe_route_fwd_args fwd = make_route(b);
    invar_moe_route_bwd_args args = {
        .dlogits = invar_bench_make(b, BF16, b->sizes->routed, b->sizes->experts),
        .dweights = invar_bench_make(b, F32, b->sizes->routed, b->sizes->chosen),
        .ids = fwd.ids,
        .scores = fwd.scores,
        .router = fwd.router};

    invar_bench_prepare(b, INVAR_OP_MOE_ROUTE_FWD, &fwd);
    return run_routing(b, &args, BF16);
}

invar_status invar_bench_op_moe_plan(invar_bench *b)
{
    const invar_bench_sizes *z = b->sizes;
    invar_moe_route_fwd_args fwd = make_route(b);
    invar_moe_plan_args args = {
        .row_token = invar_bench_indices(b, z->routed * z->chosen, 1, z->routed, 1),
        .slot_row = invar_bench_zero(b, INVAR_DTYPE_I32, z->routed, z->chosen),
        .expert_start = invar_bench_alloc(b, (size_t)(z->experts + 1) * sizeof(int64_t)),
        .ids = fwd.ids,
        .experts = z->experts};

    invar_bench_prepare(b, INVAR_OP_MOE_ROUTE_FWD, &fwd);
    return run_routing(b, &args, INVAR_DTYPE_I32);
}

/* ---- gather and combine ---------------------------------------------------------------------- */

static invar_tensor token_rows(invar_bench *b)
{
    return invar_bench_make(b, BF16, b->sizes->moe_tokens, b->sizes->moe_hidden);
}

static invar_tensor slot_rows(invar_bench *b)
{
    return invar_bench_make(b, BF16, b->sizes->moe_tokens * b->sizes->slots, b->sizes->moe_hidden);
}

static invar_tensor slot_weights(invar_bench *b)
{
    return invar_bench_make(b, F32, b->sizes->moe_tokens, b->sizes->slots);
}

static invar_tensor slots(invar_bench *b)
{
    const invar_bench_sizes *z = b->sizes;

    return invar_bench_indices(b, z->moe_tokens, z->slots, z->moe_tokens * z->slots, STEP);
}

#define MOE_SHAPE(z) INVAR_BENCH_SHAPE((z)->moe_tokens, (z)->slots, (z)->moe_hidden)

invar_status invar_bench_op_moe_gather_fwd(invar_bench *b)
{
    const invar_bench_sizes *z = b->sizes;
    int64_t rows = z->moe_tokens * z->slots;
    invar_moe_gather_fwd_args args = {.out = slot_rows(b),
                                      .x = token_rows(b),
                                      .row_token =
                                          invar_bench_indices(b, rows, 1, z->moe_tokens, STEP)};

    return invar_bench_case_works(b, &args, BF16, MOE_SHAPE(z), INVAR_BENCH_UNIT_BYTE,
                                  4.0 * (double)(rows * z->moe_hidden));
}

invar_status invar_bench_op_moe_gather_bwd(invar_bench *b)
{
    invar_moe_gather_bwd_args args = {
        .dx = token_rows(b), .dout = slot_rows(b), .slot_row = slots(b)};

    return invar_bench_case_moves(b, &args, BF16, MOE_SHAPE(b->sizes));
}

invar_status invar_bench_op_moe_combine_fwd(invar_bench *b)
{
    invar_moe_combine_fwd_args args = {
        .out = token_rows(b), .y = slot_rows(b), .weights = slot_weights(b), .slot_row = slots(b)};

    return invar_bench_case_moves(b, &args, BF16, MOE_SHAPE(b->sizes));
}

invar_status invar_bench_op_moe_combine_bwd(invar_bench *b)
{
    invar_moe_combine_bwd_args args = {.dy = slot_rows(b),
                                       .dweights = slot_weights(b),
                                       .dout = token_rows(b),
                                       .y = slot_rows(b),
                                       .weights = slot_weights(b),
                                       .slot_row = slots(b)};

    return invar_bench_case_moves(b, &args, BF16, MOE_SHAPE(b->sizes));
}

/* ---- products -------------------------------------------------------------------------------- */

static int64_t all_rows(const invar_bench *b)
{
    return b->sizes->experts * b->sizes->expert_rows;
}

static invar_row_offsets experts(invar_bench *b)
{
    return invar_bench_offsets(b, all_rows(b), b->sizes->experts);
}

static invar_status run_products(invar_bench *b, const void *args, invar_dtype type, int64_t out,
                                 int64_t in)
{
    int64_t rows = all_rows(b);

    return invar_bench_case_works(b, args, type,
                                  INVAR_BENCH_SHAPE(rows, out, in, b->sizes->experts),
                                  INVAR_BENCH_UNIT_MAC, (double)rows * (double)out * (double)in);
}

static invar_status linear_fwd(invar_bench *b, invar_dtype type, int64_t out, int64_t in)
{
    invar_moe_linear_fwd_args args = {
        .y = invar_bench_make(b, type == F32 ? F32 : BF16, all_rows(b), out),
        .x = invar_bench_quantized(b, type, false, all_rows(b), in),
        .w = invar_bench_quantized(b, type, true, b->sizes->experts * out, in),
        .experts = experts(b),
        .k_shards = 1};

    return run_products(b, &args, type, out, in);
}

/* A CPU has rows in f32 and bf16; a GPU in bf16, and forward in fp8. */
static const invar_dtype types[] = {F32, BF16};

invar_status invar_bench_op_moe_linear_fwd(invar_bench *b)
{
    int64_t inner = b->sizes->inner, width = b->sizes->width;

    for (int i = b->local; i < 2; i++)
        INVAR_TRY(linear_fwd(b, types[i], inner, width));
    if (!b->local)
        return INVAR_OK;
    INVAR_TRY(linear_fwd(b, INVAR_DTYPE_FP8, inner, width));
    return linear_fwd(b, INVAR_DTYPE_FP8, width, inner);
}

invar_status invar_bench_op_moe_linear_dx(invar_bench *b)
{
    int64_t inner = b->sizes->inner, width = b->sizes->width;

    for (int i = b->local; i < 2; i++) {
        invar_moe_linear_dx_args args = {
            .dx = invar_bench_make(b, types[i], all_rows(b), width),
            .parts = {{invar_bench_make(b, types[i], all_rows(b), inner),
                       invar_bench_make(b, types[i], b->sizes->experts * inner, width)}},
            .n_parts = 1,
            .experts = experts(b),
            .k_shards = 1};
        INVAR_TRY(run_products(b, &args, types[i], inner, width));
    }
    return INVAR_OK;
}

invar_status invar_bench_op_moe_linear_dw(invar_bench *b)
{
    const invar_bench_sizes *z = b->sizes;
    int64_t tokens = all_rows(b) / z->dw_slots;

    for (int i = b->local; i < 2; i++) {
        invar_moe_linear_dw_args args = {
            .dw = invar_bench_make(b, F32, z->experts * z->inner, z->width),
            .dy = invar_bench_make(b, types[i], all_rows(b), z->inner),
            .x = invar_bench_make(b, types[i], all_rows(b), z->width),
            // ascending within an expert
            .row_token = invar_bench_indices(b, all_rows(b), 1, tokens, tokens / z->expert_rows),
            .experts = experts(b),
            .units = invar_bench_offsets(b, tokens, z->units)};
        INVAR_TRY(run_products(b, &args, types[i], z->inner, z->width));
    }
    return INVAR_OK;
}
