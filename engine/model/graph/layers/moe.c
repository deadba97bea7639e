/*
 * moe.c - mixture-of-experts layer functions: routing, dispatch of rows to experts, combine.
 *
 * All ranks know the routing of all tokens and use the same order of rows by expert. Each rank
 * computes the rows of its experts in place; the others' rows are gathered afterwards, first
 * between context-parallel ranks, which divide the held experts, then between expert-parallel
 * ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/layers/context_parallel.h"
#include "engine/ranks/layout/layout.h"

#include "base/invar_banned.h"

/* ---- routing --------------------------------------------------------------------------------- */

static void route_backward(invar_builder *b, const void *noted)
{
    const invar_moe_routing *r = noted;
    invar_tensor d = invar_build_grad_buffer(b, &r->logits);

    INVAR_APPEND(b->graph, b->layer, MOE_ROUTE_BWD, moe_route_bwd, .dlogits = d,
                 .dweights = invar_build_grad_in(b, &r->weights), .ids = r->ids,
                 .scores = r->scores, .router = r->router);
    invar_build_grad_point(b, &r->logits, &d, "route", false);
    invar_build_grad_add(b, &r->logits, &d);
}

/* Returns the columns of this layer in an array (T, sparse layers * slots). */
static invar_tensor columns_of_layer(const invar_builder *b, const invar_tensor *all, int64_t slots)
{
    return invar_tensor_columns(all, b->sparse_layers * slots, slots);
}

/* Returns the range of experts that this rank holds, out of `experts`. */
static invar_index_range held_experts(const invar_builder *b, int64_t experts)
{
    return invar_layout_range_of(experts, b->model.experts, b->model.expert);
}

/*
 * Selects the experts that this rank computes. Context-parallel ranks hold the same experts and
 * divide them. `start` has the row offsets of all experts.
 */
static void select_computed_experts(invar_moe_routing *r, const invar_builder *b,
                                    const invar_tensor *start)
{
    int64_t experts = start->shape[0] - 1;
    invar_index_range here = held_experts(b, experts);
    invar_index_range own = invar_cp_columns(b, here.count);

    r->experts = (invar_row_offsets){start->data, experts};
    r->local_expert_offsets =
        (invar_row_offsets){(int64_t *)start->data + here.first + own.first, own.count};
    r->local_first = own.first;
    r->n_held = here.count;
    r->held_first = here.first;
}

/*
 * Gathers the rows of all experts after a product that each rank computed for its own. The axis of
 * context-parallel ranks comes first, so that each of them has all rows of the held experts.
 */
static void gather_rows(invar_builder *b, const invar_tensor *rows, const invar_moe_routing *routes)
{
    invar_index_range here = held_experts(b, routes->experts.count);
    invar_graph_transfer transfer = {
        .kind = INVAR_GRAPH_TRANSFER_EXPERTS, .full = *rows, .experts = routes->experts};

    if (b->rows.context) {
        transfer.axis = INVAR_GRAPH_TRANSFER_CONTEXT;
        transfer.first = here.first;
        transfer.count = here.count;
        invar_op_graph_transfer(b->graph, &transfer);
    }
    if (b->model.experts > 1) {
        transfer.axis = INVAR_GRAPH_TRANSFER_EXPERT;
        transfer.first = transfer.count = 0;
        invar_op_graph_transfer(b->graph, &transfer);
    }
}

/* Returns this rank's tokens of a tensor that has all tokens. */
static invar_tensor own_tokens(const invar_builder *b, const invar_tensor *all)
{
    return b->rows.context
               ? invar_tensor_rows(all, invar_row_partition_first(b->rows.context), b->rows.count)
               : *all;
}

/* Appends the order of rows by expert for the tokens of all ranks. */
static void plan_rows(invar_builder *b, invar_moe_routing *r)
{
    int64_t experts = r->scores.shape[1], slots = r->ids.shape[1], rows = b->rows.all_count * slots;
    invar_op_graph *p = b->graph;
    invar_tensor start = invar_op_graph_tensor(p, INVAR_DTYPE_I64, experts + 1, 0);

    r->row_token = invar_op_graph_tensor(p, INVAR_DTYPE_I32, rows, 0);
    r->slot_row = invar_op_graph_tensor(p, INVAR_DTYPE_I32, b->rows.all_count, slots);
    r->all_weights = invar_cp_gather(b, &r->weights);
    select_computed_experts(r, b, &start);
    INVAR_APPEND(p, b->layer, MOE_PLAN, moe_plan, .row_token = r->row_token,
                 .slot_row = r->slot_row, .expert_start = start.data,
                 .ids = invar_cp_gather(b, &r->ids), .experts = experts);
}

invar_moe_routing invar_graph_moe_route(invar_builder *b, invar_tensor logits, int64_t slots,
                                        const invar_moe_router *router)
{
    int64_t rows = logits.shape[0], experts = logits.shape[1];
    invar_op_graph *p = b->graph;
    invar_tensor chosen, replay = {0};
    invar_moe_routing r = {.weights = invar_op_graph_tensor(p, INVAR_DTYPE_F32, rows, slots),
                           .scores = invar_op_graph_tensor(p, INVAR_DTYPE_F32, rows, experts),
                           .logits = logits,
                           .router = *router};

    chosen = invar_tensor_present(&b->routing)
                 ? columns_of_layer(b, &b->routing, slots)
                 : invar_op_graph_tensor(p, INVAR_DTYPE_I32, rows, slots);
    if (invar_tensor_present(&b->replay))
        replay = columns_of_layer(b, &b->replay, slots);
    r.ids = invar_tensor_present(&replay) ? replay : chosen;
    INVAR_APPEND(p, b->layer, MOE_ROUTE_FWD, moe_route_fwd, .ids = chosen, .weights = r.weights,
                 .scores = r.scores, .logits = logits, .replay = replay, .router = *router);
    (void)invar_build_result(b, "route", r.ids);
    (void)invar_build_result(b, "route.weight", r.weights);
    plan_rows(b, &r);
    invar_build_reads(b, &logits);
    invar_build_record_backward(b, route_backward, &r, sizeof r);
    return r;
}

/* ---- dispatch and combine -------------------------------------------------------------------- */

typedef struct moved_rows {
    const char *name;
    invar_tensor y, x;
    invar_moe_routing routes;
} moved_rows;

static void dispatch_backward(invar_builder *b, const void *noted)
{
    const moved_rows *m = noted;
    invar_tensor d =
        invar_op_graph_tensor(b->graph, b->model.storage, b->rows.all_count, m->x.shape[1]);
    invar_tensor dout = invar_build_grad_in(b, &m->y);

    gather_rows(b, &dout, &m->routes);
    INVAR_APPEND(b->graph, b->layer, MOE_GATHER_BWD, moe_gather_bwd, .dx = d, .dout = dout,
                 .slot_row = m->routes.slot_row);
    d = own_tokens(b, &d);
    invar_build_grad_point(b, &m->x, &d, m->name, false);
    d = invar_build_own_rows(b, &d);
    invar_build_grad_add(b, &m->x, &d);
}

invar_tensor invar_graph_moe_dispatch(invar_builder *b, const char *name, invar_tensor x,
                                      const invar_moe_routing *routes)
{
    moved_rows m = {
        name,
        invar_op_graph_tensor(b->graph, b->model.storage, routes->row_token.shape[0], x.shape[1]),
        x, *routes};

    INVAR_APPEND(b->graph, b->layer, MOE_GATHER_FWD, moe_gather_fwd, .out = m.y,
                 .x = invar_cp_gather(b, &x), .row_token = routes->row_token);
    invar_build_slots(b, &m.y, routes);
    invar_build_reads(b, &x);
    invar_build_record_backward(b, dispatch_backward, &m, sizeof m);
    return invar_build_result(b, name, m.y);
}

static void combine_backward(invar_builder *b, const void *noted)
{
    const moved_rows *m = noted;
    const invar_tensor *weights = &m->routes.all_weights;
    invar_tensor own = invar_build_grad_in(b, &m->y), dout = invar_cp_gather(b, &own);
    invar_tensor d = invar_build_grad_buffer(b, &m->x);
    invar_tensor d_weights =
        invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, weights->shape[0], weights->shape[1]);

    INVAR_APPEND(b->graph, b->layer, MOE_COMBINE_BWD, moe_combine_bwd, .dy = d,
                 .dweights = d_weights, .dout = dout, .y = m->x, .weights = *weights,
                 .slot_row = m->routes.slot_row);
    d_weights = own_tokens(b, &d_weights);
    invar_build_grad_point(b, &m->x, &d, m->name, false);
    invar_build_grad_point(b, &m->routes.weights, &d_weights, m->name, false);
    invar_build_grad_add(b, &m->x, &d);
    invar_build_grad_add(b, &m->routes.weights, &d_weights);
}

invar_tensor invar_graph_moe_combine(invar_builder *b, const char *name, invar_tensor y,
                                     const invar_moe_routing *routes)
{
    invar_tensor all =
        invar_op_graph_tensor(b->graph, b->model.storage, b->rows.all_count, y.shape[1]);
    moved_rows m = {name, own_tokens(b, &all), y, *routes};

    gather_rows(b, &y, routes);
    INVAR_APPEND(b->graph, b->layer, MOE_COMBINE_FWD, moe_combine_fwd, .out = all, .y = y,
                 .weights = routes->all_weights, .slot_row = routes->slot_row);
    invar_build_reads(b, &y);
    invar_build_reads(b, &routes->weights);
    invar_build_record_backward(b, combine_backward, &m, sizeof m);
    return invar_build_result(b, name, m.y);
}
