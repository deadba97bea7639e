/*
 * experts.c - which rows go to which experts, and what comes back.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/layout/layout.h"
#include "engine/program/builder.h"

#include "base/invar_banned.h"

/* ---- routes ---------------------------------------------------------------------------------- */

static void route_back(invar_builder *b, const void *noted)
{
    const invar_routes *r = noted;
    invar_tensor d = invar_gradient_room(b, &r->logits);

    INVAR_APPEND(b->program, b->layer, MOE_ROUTE_BWD, moe_route_bwd, .dlogits = d,
                 .dweights = invar_gradient_take(b, &r->weights), .ids = r->ids,
                 .scores = r->scores, .router = r->router);
    invar_gradient_show(b, &r->logits, &d, "route", false);
    invar_gradient_give(b, &r->logits, &d);
}

/* The columns of this layer in an array (T, sparse layers * slots). */
static invar_tensor of_layer(const invar_builder *b, const invar_tensor *all, int64_t slots)
{
    return invar_tensor_columns(all, b->sparse_layers * slots, slots);
}

/* Those of this rank, of all whose rows begin at `start`. */
static invar_segments own_experts(const invar_builder *b, const invar_tensor *start)
{
    invar_layout_share own = invar_layout_share_of(start->shape[0] - 1, b->experts, b->expert);

    return (invar_segments){(int64_t *)start->data + own.first, own.count};
}

/* After a product that each rank has made for the rows of its experts: all rows. */
static void gather_rows(invar_builder *b, const invar_tensor *rows, const invar_routes *routes)
{
    if (b->experts > 1)
        invar_program_move(b->program, &(invar_move){.kind = INVAR_MOVE_EXPERTS,
                                                     .axis = INVAR_MOVE_EXPERT,
                                                     .whole = *rows,
                                                     .experts = routes->experts});
}

invar_routes invar_verb_route(invar_builder *b, invar_tensor logits, int64_t slots,
                              const invar_moe_router *router)
{
    int64_t rows = logits.shape[0], experts = logits.shape[1];
    invar_program *p = b->program;
    invar_tensor start = invar_program_room(p, INVAR_DTYPE_I64, experts + 1, 0);
    invar_tensor chosen, replay = {0};
    invar_routes r = {.weights = invar_program_room(p, INVAR_DTYPE_F32, rows, slots),
                      .scores = invar_program_room(p, INVAR_DTYPE_F32, rows, experts),
                      .row_token = invar_program_room(p, INVAR_DTYPE_I32, rows * slots, 0),
                      .slot_row = invar_program_room(p, INVAR_DTYPE_I32, rows, slots),
                      .experts = {start.data, experts},
                      .own = own_experts(b, &start),
                      .logits = logits,
                      .router = *router};

    chosen = invar_tensor_present(&b->routing)
                 ? of_layer(b, &b->routing, slots)
                 : invar_program_room(p, INVAR_DTYPE_I32, rows, slots);
    if (invar_tensor_present(&b->replay))
        replay = of_layer(b, &b->replay, slots);
    r.ids = invar_tensor_present(&replay) ? replay : chosen;
    INVAR_APPEND(p, b->layer, MOE_ROUTE_FWD, moe_route_fwd, .ids = chosen, .weights = r.weights,
                 .scores = r.scores, .logits = logits, .replay = replay, .router = *router);
    (void)invar_build_result(b, "route", r.ids);
    (void)invar_build_result(b, "route.weight", r.weights);
    INVAR_APPEND(p, b->layer, MOE_PLAN, moe_plan, .row_token = r.row_token, .slot_row = r.slot_row,
                 .expert_start = start.data, .ids = r.ids, .experts = experts);
    invar_build_reads(b, &logits);
    invar_build_note(b, route_back, &r, sizeof r);
    return r;
}

/* ---- rows there and back --------------------------------------------------------------------- */

typedef struct moved {
    const char *name;
    invar_tensor y, x;
    invar_routes routes;
} moved;

static void gather_back(invar_builder *b, const void *noted)
{
    const moved *m = noted;
    invar_tensor d = invar_program_room(b->program, b->storage, b->rows, m->x.shape[1]);
    invar_tensor dout = invar_gradient_take(b, &m->y);

    gather_rows(b, &dout, &m->routes);
    INVAR_APPEND(b->program, b->layer, MOE_GATHER_BWD, moe_gather_bwd, .dx = d, .dout = dout,
                 .slot_row = m->routes.slot_row);
    invar_gradient_show(b, &m->x, &d, m->name, false);
    d = invar_build_own_rows(b, &d);
    invar_gradient_give(b, &m->x, &d);
}

invar_tensor invar_verb_gather(invar_builder *b, const char *name, invar_tensor x,
                               const invar_routes *routes)
{
    moved m = {name,
               invar_program_room(b->program, b->storage, routes->row_token.shape[0], x.shape[1]),
               x, *routes};

    INVAR_APPEND(b->program, b->layer, MOE_GATHER_FWD, moe_gather_fwd, .out = m.y, .x = x,
                 .row_token = routes->row_token);
    invar_build_slots(b, &m.y, routes);
    invar_build_reads(b, &x);
    invar_build_note(b, gather_back, &m, sizeof m);
    return invar_build_result(b, name, m.y);
}

static void combine_back(invar_builder *b, const void *noted)
{
    const moved *m = noted;
    const invar_tensor *weights = &m->routes.weights;
    invar_tensor dout = invar_gradient_take(b, &m->y);
    invar_tensor d = invar_gradient_room(b, &m->x);
    invar_tensor d_weights =
        invar_program_room(b->program, INVAR_DTYPE_F32, weights->shape[0], weights->shape[1]);

    INVAR_APPEND(b->program, b->layer, MOE_COMBINE_BWD, moe_combine_bwd, .dy = d,
                 .dweights = d_weights, .dout = dout, .y = m->x, .weights = *weights,
                 .slot_row = m->routes.slot_row);
    invar_gradient_show(b, &m->x, &d, m->name, false);
    invar_gradient_show(b, weights, &d_weights, m->name, false);
    invar_gradient_give(b, &m->x, &d);
    invar_gradient_give(b, weights, &d_weights);
}

invar_tensor invar_verb_combine(invar_builder *b, const char *name, invar_tensor y,
                                const invar_routes *routes)
{
    moved m = {name, invar_program_room(b->program, b->storage, routes->ids.shape[0], y.shape[1]),
               y, *routes};

    gather_rows(b, &y, routes);
    INVAR_APPEND(b->program, b->layer, MOE_COMBINE_FWD, moe_combine_fwd, .out = m.y, .y = y,
                 .weights = routes->weights, .slot_row = routes->slot_row);
    invar_build_reads(b, &y);
    invar_build_reads(b, &routes->weights);
    invar_build_note(b, combine_back, &m, sizeof m);
    return invar_build_result(b, name, m.y);
}
