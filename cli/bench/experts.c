/*
 * experts.c - cases of invar bench for the ops of a mixture of experts.
 *
 * Tokens are routed by the routing ops themselves, so experts get different numbers of rows. The
 * sgemm peer of a product computes one matrix product per expert.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bench/cases.h"

#include "base/invar_banned.h"

enum {
    TOKENS = INVAR_CASE_TOKENS,
    WIDTH = INVAR_CASE_WIDTH,
    EXPERTS = 16,
    SLOTS = 4,
    EXPERT_ROWS = TOKENS * SLOTS,
    INNER = 512 /* hidden size of an expert */
};

static const invar_moe_router router = {.scoring = INVAR_MOE_SOFTMAX,
                                        .groups = 1,
                                        .groups_kept = 1,
                                        .group_score_top = 1,
                                        .normalise = 1,
                                        .scale = 1.0f};

static invar_moe_route_fwd_args make_route_args(invar_bench *b)
{
    return (invar_moe_route_fwd_args){
        .ids = invar_case_zero(b, INVAR_DTYPE_I32, TOKENS, SLOTS),
        .weights = invar_case_make(b, INVAR_DTYPE_F32, TOKENS, SLOTS),
        .scores = invar_case_make(b, INVAR_DTYPE_F32, TOKENS, EXPERTS),
        .logits = invar_case_make(b, INVAR_DTYPE_F32, TOKENS, EXPERTS),
        .router = router};
}

/* Routing of every token, and the rows sorted by expert. */
typedef struct expert_routing {
    invar_moe_route_fwd_args route;
    invar_moe_plan_args plan;
    int64_t start[EXPERTS + 1];
} expert_routing;

static invar_status make_routing(expert_routing *out, invar_bench *b)
{
    invar_tensor row_token = invar_case_zero(b, INVAR_DTYPE_I32, 1, EXPERT_ROWS);

    out->route = make_route_args(b);
    INVAR_TRY(invar_bench_prepare(b, INVAR_OP_MOE_ROUTE_FWD, &out->route));
    out->plan =
        (invar_moe_plan_args){.row_token = invar_case_1d(&row_token),
                              .slot_row = invar_case_zero(b, INVAR_DTYPE_I32, TOKENS, SLOTS),
                              .expert_start = out->start,
                              .ids = out->route.ids,
                              .experts = EXPERTS};
    return invar_bench_prepare(b, INVAR_OP_MOE_PLAN, &out->plan);
}

invar_status invar_bench_op_moe_route_fwd(invar_bench *b)
{
    invar_moe_route_fwd_args args = make_route_args(b);

    return invar_case_run(b, invar_case_decides(&args, INVAR_DTYPE_F32, TOKENS), TOKENS, EXPERTS,
                          SLOTS);
}

invar_status invar_bench_op_moe_route_bwd(invar_bench *b)
{
    invar_moe_route_fwd_args fwd = make_route_args(b);
    invar_moe_route_bwd_args args = {.dlogits =
                                         invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, EXPERTS),
                                     .dweights = invar_case_make(b, INVAR_DTYPE_F32, TOKENS, SLOTS),
                                     .ids = fwd.ids,
                                     .scores = fwd.scores,
                                     .router = router};

    INVAR_TRY(invar_bench_prepare(b, INVAR_OP_MOE_ROUTE_FWD, &fwd));
    return invar_case_run(b, invar_case_decides(&args, INVAR_DTYPE_BF16, TOKENS), TOKENS, EXPERTS,
                          SLOTS);
}

invar_status invar_bench_op_moe_plan(invar_bench *b)
{
    expert_routing d;

    INVAR_TRY(make_routing(&d, b));
    return invar_case_run(b, invar_case_decides(&d.plan, INVAR_DTYPE_I32, TOKENS), TOKENS, EXPERTS,
                          SLOTS);
}

invar_status invar_bench_op_moe_gather_fwd(invar_bench *b)
{
    invar_moe_gather_fwd_args args = {.out =
                                          invar_case_make(b, INVAR_DTYPE_BF16, EXPERT_ROWS, WIDTH),
                                      .x = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH)};
    expert_routing d;

    INVAR_TRY(make_routing(&d, b));
    args.row_token = d.plan.row_token;
    return invar_case_run(
        b, invar_case_moves(&args, INVAR_DTYPE_BF16, 2 * invar_case_bytes(&args.out)), TOKENS,
        SLOTS, WIDTH);
}

invar_status invar_bench_op_moe_gather_bwd(invar_bench *b)
{
    invar_moe_gather_bwd_args args = {.dx = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH),
                                      .dout =
                                          invar_case_make(b, INVAR_DTYPE_BF16, EXPERT_ROWS, WIDTH)};
    expert_routing d;

    INVAR_TRY(make_routing(&d, b));
    args.slot_row = d.plan.slot_row;
    return invar_case_run(
        b,
        invar_case_moves(&args, INVAR_DTYPE_BF16,
                         invar_case_bytes(&args.dx) + invar_case_bytes(&args.dout)),
        TOKENS, SLOTS, WIDTH);
}

static const int64_t expert_shape[] = {EXPERT_ROWS, INNER, WIDTH};

/* Returns the rows of one expert: a fixed number of its own (weights), or those routed to it. */
static invar_tensor weight_rows(const invar_tensor *t, int64_t expert, int64_t rows)
{
    return invar_tensor_rows(t, expert * rows, rows);
}

static invar_tensor routed_rows(const invar_tensor *t, const expert_routing *d, int64_t expert)
{
    return invar_tensor_rows(t, d->start[expert], d->start[expert + 1] - d->start[expert]);
}

invar_status invar_bench_op_moe_linear_fwd(invar_bench *b)
{
    expert_routing d;

    INVAR_TRY(make_routing(&d, b));
    for (int i = 0; i < 2; i++) {
        invar_dtype type = invar_case_types[i];
        invar_moe_linear_fwd_args args = {.y = invar_case_make(b, type, EXPERT_ROWS, INNER),
                                          .x = invar_case_make(b, type, EXPERT_ROWS, WIDTH),
                                          .w = invar_case_make(b, type, EXPERTS * INNER, WIDTH),
                                          .experts = {d.start, EXPERTS},
                                          .k_shards = 1};
        invar_bench_gemm products[EXPERTS];
        for (int64_t e = 0; e < EXPERTS; e++)
            products[e] = (invar_bench_gemm){.c = routed_rows(&args.y, &d, e),
                                             .a = routed_rows(&args.x, &d, e),
                                             .b = weight_rows(&args.w, e, INNER),
                                             .transpose_b = true};
        INVAR_TRY(invar_case_products(b, &args, type, expert_shape, EXPERTS, products));
    }
    return INVAR_OK;
}

invar_status invar_bench_op_moe_linear_dx(invar_bench *b)
{
    expert_routing d;

    INVAR_TRY(make_routing(&d, b));
    for (int i = 0; i < 2; i++) {
        invar_dtype type = invar_case_types[i];
        invar_linear_part part = {invar_case_make(b, type, EXPERT_ROWS, INNER),
                                  invar_case_make(b, type, EXPERTS * INNER, WIDTH)};
        invar_moe_linear_dx_args args = {.dx = invar_case_make(b, type, EXPERT_ROWS, WIDTH),
                                         .parts = {part},
                                         .n_parts = 1,
                                         .experts = {d.start, EXPERTS},
                                         .k_shards = 1};
        invar_bench_gemm products[EXPERTS];
        for (int64_t e = 0; e < EXPERTS; e++)
            products[e] = (invar_bench_gemm){.c = routed_rows(&args.dx, &d, e),
                                             .a = routed_rows(&part.dy, &d, e),
                                             .b = weight_rows(&part.w, e, INNER)};
        INVAR_TRY(invar_case_products(b, &args, type, expert_shape, EXPERTS, products));
    }
    return INVAR_OK;
}

invar_status invar_bench_op_moe_linear_dw(invar_bench *b)
{
    expert_routing d;

    INVAR_TRY(make_routing(&d, b));
    for (int i = 0; i < 2; i++) {
        invar_dtype type = invar_case_types[i];
        invar_moe_linear_dw_args args = {
            .dw = invar_case_zero(b, INVAR_DTYPE_F32, EXPERTS * INNER, WIDTH),
            .dy = invar_case_make(b, type, EXPERT_ROWS, INNER),
            .x = invar_case_make(b, type, EXPERT_ROWS, WIDTH),
            .row_token = d.plan.row_token,
            .experts = {d.start, EXPERTS},
            .units = invar_case_whole};
        invar_bench_gemm products[EXPERTS];
        for (int64_t e = 0; e < EXPERTS; e++)
            products[e] = (invar_bench_gemm){.c = weight_rows(&args.dw, e, INNER),
                                             .a = routed_rows(&args.dy, &d, e),
                                             .b = routed_rows(&args.x, &d, e),
                                             .transpose_a = true,
                                             .accumulate = true};
        INVAR_TRY(invar_case_products(b, &args, type, expert_shape, EXPERTS, products));
    }
    return INVAR_OK;
}

/* Runs a combine op, forward or backward; routing weights and slots are filled in here. */
static invar_status run_combine(invar_bench *b, void *args, invar_tensor *weights,
                                invar_tensor *slot_row, double bytes)
{
    expert_routing d;

    INVAR_TRY(make_routing(&d, b));
    *weights = d.route.weights;
    *slot_row = d.plan.slot_row;
    return invar_case_run(b, invar_case_moves(args, INVAR_DTYPE_BF16, bytes), TOKENS, SLOTS, WIDTH);
}

invar_status invar_bench_op_moe_combine_fwd(invar_bench *b)
{
    invar_moe_combine_fwd_args args = {
        .out = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH),
        .y = invar_case_make(b, INVAR_DTYPE_BF16, EXPERT_ROWS, WIDTH),
        .shared = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH)};

    return run_combine(b, &args, &args.weights, &args.slot_row,
                       2 * invar_case_bytes(&args.out) + invar_case_bytes(&args.y));
}

invar_status invar_bench_op_moe_combine_bwd(invar_bench *b)
{
    invar_moe_combine_bwd_args args = {
        .dy = invar_case_make(b, INVAR_DTYPE_BF16, EXPERT_ROWS, WIDTH),
        .dweights = invar_case_make(b, INVAR_DTYPE_F32, TOKENS, SLOTS),
        .dout = invar_case_make(b, INVAR_DTYPE_BF16, TOKENS, WIDTH),
        .y = invar_case_make(b, INVAR_DTYPE_BF16, EXPERT_ROWS, WIDTH)};

    return run_combine(b, &args, &args.weights, &args.slot_row,
                       2 * invar_case_bytes(&args.dy) + invar_case_bytes(&args.dout));
}
