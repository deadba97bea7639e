/*
 * cases_moe.c - mixture of experts against the routers and blocks of transformers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/oracle/ops/cases.h"

static invar_moe_router load_router(const invar_oracle_run *r)
{
    return (invar_moe_router){
        .scoring = invar_oracle_number(r, "sigmoid") != 0.0 ? INVAR_MOE_SIGMOID : INVAR_MOE_SOFTMAX,
        .groups = (int32_t)invar_oracle_number(r, "groups"),
        .groups_kept = (int32_t)invar_oracle_number(r, "groups_kept"),
        .group_score_top = (int32_t)invar_oracle_number(r, "group_score_top"),
        .normalise = (int32_t)invar_oracle_number(r, "normalise"),
        .normalise_eps = (float)invar_oracle_number(r, "normalise_eps"),
        .scale = (float)invar_oracle_number(r, "scale")};
}

static invar_tensor integers(invar_oracle_run *r, int64_t rows, int64_t cols)
{
    return invar_oracle_output(r, invar_tensor_2d(NULL, INVAR_DTYPE_I32, rows, cols));
}

static invar_tensor floats(invar_oracle_run *r, int64_t rows, int64_t cols)
{
    return invar_oracle_output(r, invar_tensor_2d(NULL, INVAR_DTYPE_F32, rows, cols));
}

/* Routes `logits` to `slots` experts each, with the expert bias if the case has one. */
static invar_moe_route_fwd_args route(invar_oracle_run *r, const invar_tensor *logits,
                                      int64_t slots, const invar_tensor *replay)
{
    int64_t tokens = logits->shape[0];
    invar_moe_route_fwd_args args = {.ids = integers(r, tokens, slots),
                                     .weights = floats(r, tokens, slots),
                                     .scores = floats(r, tokens, logits->shape[1]),
                                     .logits = *logits,
                                     .router = load_router(r)};

    if (invar_oracle_has(r, "bias"))
        args.bias = invar_oracle_input(r, "bias");
    if (replay)
        args.replay = *replay;
    assert_ok(invar_moe_route_fwd(&r->dev, &args));
    return args;
}

static invar_tensor route_back(invar_oracle_run *r, const invar_tensor *dweights,
                               const invar_tensor *ids, const invar_tensor *scores)
{
    invar_tensor dlogits = invar_oracle_storage(r, scores->shape[0], scores->shape[1]);

    assert_ok(invar_moe_route_bwd(&r->dev, &(invar_moe_route_bwd_args){.dlogits = dlogits,
                                                                       .dweights = *dweights,
                                                                       .ids = *ids,
                                                                       .scores = *scores,
                                                                       .router = load_router(r)}));
    return dlogits;
}

void invar_oracle_route(invar_oracle_run *r)
{
    invar_tensor logits = invar_oracle_input(r, "logits"), replay = invar_oracle_input(r, "replay");
    invar_tensor dweights = invar_oracle_input(r, "dweights"), dlogits;
    invar_moe_route_fwd_args out = route(r, &logits, replay.shape[1], NULL);

    invar_oracle_expect_equal(r, "ids", &out.ids);
    invar_oracle_expect(r, "moe.route.fwd", "weights", &out.weights, INVAR_ORACLE_IN_F32);
    invar_oracle_expect(r, "moe.route.fwd", "scores", &out.scores, INVAR_ORACLE_IN_F32);
    dlogits = route_back(r, &dweights, &out.ids, &out.scores);
    invar_oracle_expect(r, "moe.route.bwd", "dlogits", &dlogits, INVAR_ORACLE_ROUNDED);

    out = route(r, &logits, replay.shape[1], &replay);
    // the ids that it would have chosen without the replay
    invar_oracle_expect_equal(r, "ids", &out.ids);
    invar_oracle_expect(r, "moe.route.fwd", "replay.weights", &out.weights, INVAR_ORACLE_IN_F32);
    dlogits = route_back(r, &dweights, &replay, &out.scores);
    invar_oracle_expect(r, "moe.route.bwd", "replay.dlogits", &dlogits, INVAR_ORACLE_ROUNDED);
}

/* ---- permutation, grouped linear, combination ------------------------------------------------ */

typedef struct moe_plan {
    invar_tensor row_token, slot_row;
    int64_t start[17];
    invar_row_offsets experts;
} moe_plan;

static void make_plan(moe_plan *p, invar_oracle_run *r, const invar_tensor *ids, int64_t experts)
{
    int64_t rows = ids->shape[0] * ids->shape[1];

    assert_true(experts < (int64_t)(sizeof p->start / sizeof *p->start));
    p->row_token = invar_oracle_output(r, invar_tensor_1d(NULL, INVAR_DTYPE_I32, rows));
    p->slot_row = invar_oracle_output_like(r, ids);
    p->experts = (invar_row_offsets){p->start, experts};
    assert_ok(invar_moe_plan(&r->dev, &(invar_moe_plan_args){.row_token = p->row_token,
                                                             .slot_row = p->slot_row,
                                                             .expert_start = p->start,
                                                             .ids = *ids,
                                                             .experts = experts}));
}

static void gather(invar_oracle_run *r, const moe_plan *p)
{
    invar_tensor x = invar_oracle_input(r, "x"), dout = invar_oracle_input(r, "dgathered_given");
    invar_tensor out = invar_oracle_output_like(r, &dout), dx = invar_oracle_output_like(r, &x);

    assert_ok(invar_moe_gather_fwd(&r->dev, &(invar_moe_gather_fwd_args){out, x, p->row_token}));
    invar_oracle_expect_equal(r, "gathered", &out);
    assert_ok(invar_moe_gather_bwd(&r->dev, &(invar_moe_gather_bwd_args){dx, dout, p->slot_row}));
    invar_oracle_expect(r, "moe.gather.bwd", "dx", &dx, INVAR_ORACLE_ROUNDED);
}

static void grouped_linear(invar_oracle_run *r, const moe_plan *p)
{
    invar_tensor x = invar_oracle_input(r, "gathered"), w = invar_oracle_input(r, "w");
    invar_tensor dy = invar_oracle_input(r, "dy"), y = invar_oracle_output_like(r, &dy);
    invar_tensor dx = invar_oracle_output_like(r, &x), dw = invar_oracle_sum(r, &w);

    assert_ok(
        invar_moe_linear_fwd(&r->dev, &(invar_moe_linear_fwd_args){.y = y,
                                                                   .x = x,
                                                                   .w = w,
                                                                   .experts = p->experts,
                                                                   .k_shards = 2,
                                                                   .k_atom = x.shape[1] / 2}));
    invar_oracle_expect(r, "moe.linear.fwd", "y", &y, INVAR_ORACLE_ROUNDED);
    assert_ok(invar_moe_linear_dx(
        &r->dev,
        &(invar_moe_linear_dx_args){
            .dx = dx, .parts = {{dy, w}}, .n_parts = 1, .experts = p->experts, .k_shards = 1}));
    invar_oracle_expect(r, "moe.linear.dx", "dgathered", &dx, INVAR_ORACLE_ROUNDED);
    assert_ok(invar_moe_linear_dw(
        &r->dev, &(invar_moe_linear_dw_args){.dw = dw,
                                             .dy = dy,
                                             .x = x,
                                             .row_token = p->row_token,
                                             .experts = p->experts,
                                             .units = invar_oracle_row_offsets(r, "units")}));
    invar_oracle_expect(r, "moe.linear.dw", "dw", &dw, INVAR_ORACLE_IN_F32);
}

static void combine(invar_oracle_run *r, const moe_plan *p)
{
    invar_tensor y = invar_oracle_input(r, "y_given"), weights = invar_oracle_input(r, "weights");
    invar_tensor dout = invar_oracle_input(r, "dout"), out = invar_oracle_output_like(r, &dout);
    invar_tensor dy = invar_oracle_output_like(r, &y),
                 dweights = invar_oracle_output_like(r, &weights);
    invar_moe_combine_fwd_args fwd = {
        .out = out, .y = y, .weights = weights, .slot_row = p->slot_row};

    assert_ok(invar_moe_combine_fwd(&r->dev, &fwd));
    invar_oracle_expect(r, "moe.combine.fwd", "out", &out, INVAR_ORACLE_ROUNDED);
    fwd.shared = invar_oracle_input(r, "shared");
    assert_ok(invar_moe_combine_fwd(&r->dev, &fwd));
    invar_oracle_expect(r, "moe.combine.fwd", "out_with_shared", &out, INVAR_ORACLE_ROUNDED);
    assert_ok(
        invar_moe_combine_bwd(&r->dev, &(invar_moe_combine_bwd_args){.dy = dy,
                                                                     .dweights = dweights,
                                                                     .dout = dout,
                                                                     .y = y,
                                                                     .weights = weights,
                                                                     .slot_row = p->slot_row}));
    invar_oracle_expect(r, "moe.combine.bwd", "dy_given", &dy, INVAR_ORACLE_ROUNDED);
    invar_oracle_expect(r, "moe.combine.bwd", "dweights", &dweights, INVAR_ORACLE_IN_F32);
}

void invar_oracle_moe_ops(invar_oracle_run *r)
{
    invar_tensor ids = invar_oracle_input(r, "ids");
    moe_plan p;

    make_plan(&p, r, &ids, (int64_t)invar_oracle_number(r, "experts"));
    invar_oracle_expect_equal(r, "row_token", &p.row_token);
    invar_oracle_expect_equal(r, "slot_row", &p.slot_row);
    invar_oracle_expect_bits(r, "expert_start", p.start,
                             (size_t)(p.experts.count + 1) * sizeof *p.start);
    gather(r, &p);
    grouped_linear(r, &p);
    combine(r, &p);
}

/* ---- complete blocks ------------------------------------------------------------------------- */

/* Computes one of the linear layers (gate, up or down) of all experts. */
static invar_tensor expert_linear(invar_oracle_run *r, const moe_plan *p, const invar_tensor *x,
                                  const invar_tensor *w)
{
    invar_tensor y = invar_oracle_storage(r, x->shape[0], w->shape[0] / p->experts.count);

    assert_ok(invar_moe_linear_fwd(
        &r->dev, &(invar_moe_linear_fwd_args){
                     .y = y, .x = *x, .w = *w, .experts = p->experts, .k_shards = 1}));
    return y;
}

static invar_tensor expert_dx(invar_oracle_run *r, const moe_plan *p,
                              const invar_linear_part *parts, int32_t n_parts)
{
    invar_moe_linear_dx_args args = {.n_parts = n_parts, .experts = p->experts, .k_shards = 1};

    args.dx = invar_oracle_storage(r, parts[0].dy.shape[0], parts[0].w.shape[1]);
    memcpy(args.parts, parts, (size_t)n_parts * sizeof *parts);
    assert_ok(invar_moe_linear_dx(&r->dev, &args));
    return args.dx;
}

static void expect_expert_dw(invar_oracle_run *r, const char *name, const moe_plan *p,
                             const invar_tensor *dy, const invar_tensor *x, const invar_tensor *w)
{
    invar_tensor dw = invar_oracle_sum(r, w);

    assert_ok(invar_moe_linear_dw(
        &r->dev, &(invar_moe_linear_dw_args){.dw = dw,
                                             .dy = *dy,
                                             .x = *x,
                                             .row_token = p->row_token,
                                             .experts = p->experts,
                                             .units = invar_oracle_row_offsets(r, "units")}));
    invar_oracle_expect(r, r->name, name, &dw, INVAR_ORACLE_BLOCK);
}

/* Values of the forward that the backward of a block needs. */
typedef struct moe_block {
    invar_tensor x, wrouter, wgate, wup, wdown;
    invar_moe_route_fwd_args routing;
    moe_plan moe_plan;
    invar_tensor rows, gate, up, act, y; /* rows sorted by expert */
    invar_oracle_mlp shared;
} moe_block;

static void block_forward(moe_block *b, invar_oracle_run *r)
{
    const invar_oracle_tensor *ids = invar_oracle_fixture(r, "ids");
    invar_tensor out, logits;
    invar_moe_combine_fwd_args args;

    *b = (moe_block){.x = invar_oracle_input(r, "x"),
                     .wrouter = invar_oracle_input(r, "wrouter"),
                     .wgate = invar_oracle_input(r, "wgate"),
                     .wup = invar_oracle_input(r, "wup"),
                     .wdown = invar_oracle_input(r, "wdown")};
    logits = floats(r, b->x.shape[0], b->wrouter.shape[0]);
    assert_ok(invar_linear_fwd(
        &r->dev, &(invar_linear_fwd_args){.y = logits, .x = b->x, .w = b->wrouter, .k_shards = 1}));
    b->routing = route(r, &logits, ids->shape[1], NULL);
    invar_oracle_expect_equal(r, "ids", &b->routing.ids);
    make_plan(&b->moe_plan, r, &b->routing.ids, logits.shape[1]);
    b->rows = invar_oracle_storage(r, b->moe_plan.row_token.shape[0], b->x.shape[1]);
    assert_ok(invar_moe_gather_fwd(
        &r->dev, &(invar_moe_gather_fwd_args){b->rows, b->x, b->moe_plan.row_token}));
    b->gate = expert_linear(r, &b->moe_plan, &b->rows, &b->wgate);
    b->up = expert_linear(r, &b->moe_plan, &b->rows, &b->wup);
    b->act = invar_oracle_output_like(r, &b->gate);
    assert_ok(invar_swiglu_fwd(
        &r->dev, &(invar_swiglu_fwd_args){.y = b->act, .gate = b->gate, .up = b->up}));
    b->y = expert_linear(r, &b->moe_plan, &b->act, &b->wdown);
    out = invar_oracle_output_like(r, &b->x);
    args = (invar_moe_combine_fwd_args){
        .out = out, .y = b->y, .weights = b->routing.weights, .slot_row = b->moe_plan.slot_row};
    if (invar_oracle_has(r, "wgate_shared")) {
        invar_oracle_mlp_forward(&b->shared, r, &b->x, "_shared");
        args.shared = b->shared.y;
    }
    assert_ok(invar_moe_combine_fwd(&r->dev, &args));
    invar_oracle_expect(r, r->name, "y", &out, INVAR_ORACLE_BLOCK);
}

/* Returns the gradient of the permuted rows and compares the gradients of the weights. */
static invar_tensor experts_backward(const moe_block *b, invar_oracle_run *r,
                                     const invar_tensor *dy)
{
    invar_tensor dact, dgate = invar_oracle_output_like(r, &b->gate),
                       dup = invar_oracle_output_like(r, &b->up);

    expect_expert_dw(r, "dwdown", &b->moe_plan, dy, &b->act, &b->wdown);
    dact = expert_dx(r, &b->moe_plan, &(invar_linear_part){*dy, b->wdown}, 1);
    assert_ok(invar_swiglu_bwd(
        &r->dev, &(invar_swiglu_bwd_args){
                     .dgate = dgate, .dup = dup, .dy = dact, .gate = b->gate, .up = b->up}));
    expect_expert_dw(r, "dwgate", &b->moe_plan, &dgate, &b->rows, &b->wgate);
    expect_expert_dw(r, "dwup", &b->moe_plan, &dup, &b->rows, &b->wup);
    return expert_dx(r, &b->moe_plan, (invar_linear_part[]){{dgate, b->wgate}, {dup, b->wup}}, 2);
}

static void block_backward(const moe_block *b, invar_oracle_run *r)
{
    invar_row_offsets units = invar_oracle_row_offsets(r, "units");
    invar_tensor dout = invar_oracle_input(r, "dy"), dy = invar_oracle_output_like(r, &b->y);
    invar_tensor dweights = invar_oracle_output_like(r, &b->routing.weights), drows, dlogits, part;
    invar_tensor dx = invar_oracle_output_like(r, &b->x);

    assert_ok(invar_moe_combine_bwd(
        &r->dev, &(invar_moe_combine_bwd_args){.dy = dy,
                                               .dweights = dweights,
                                               .dout = dout,
                                               .y = b->y,
                                               .weights = b->routing.weights,
                                               .slot_row = b->moe_plan.slot_row}));
    drows = experts_backward(b, r, &dy);
    assert_ok(invar_moe_gather_bwd(&r->dev,
                                   &(invar_moe_gather_bwd_args){dx, drows, b->moe_plan.slot_row}));
    dlogits = route_back(r, &dweights, &b->routing.ids, &b->routing.scores);
    invar_oracle_expect_dw(r, "dwrouter", &dlogits, &b->x, &b->wrouter, units);
    part = invar_oracle_dx(r, &(invar_linear_part){dlogits, b->wrouter}, 1);
    assert_ok(invar_add(&r->dev, &(invar_add_args){dx, dx, part}));
    if (invar_tensor_present(&b->shared.y)) {
        part = invar_oracle_mlp_backward(&b->shared, r, &dout, units, "_shared");
        assert_ok(invar_add(&r->dev, &(invar_add_args){dx, dx, part}));
    }
    invar_oracle_expect(r, r->name, "dx", &dx, INVAR_ORACLE_BLOCK);
}

void invar_oracle_moe_block(invar_oracle_run *r)
{
    moe_block b;

    block_forward(&b, r);
    block_backward(&b, r);
}
