/*
 * linear.c - linear layers in the model's format: what is quantised, fused, and taken at once.
 *
 * fp32, bf16: operands as stored. fp8, mxfp8: activations and gradients are quantised for the
 * product; weight gradients take both as stored. int4: weights only. A residual and a gated
 * activation go with a product into one call, where it has them. With adapters the layers' own
 * weights are frozen.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/layout/layout.h"
#include "engine/program/verb/adapter.h"
#include "engine/program/verb/context.h"

#include "base/invar_banned.h"

/* ---- operands -------------------------------------------------------------------------------- */

static bool quantises(const invar_weight *w)
{
    return w->w.dtype == INVAR_DTYPE_FP8 || w->w.dtype == INVAR_DTYPE_MXFP8;
}

/* Room for what a product with w takes for x; absent: x itself. */
static invar_tensor room_for_codes(invar_builder *b, const invar_tensor *x, const invar_weight *w)
{
    if (!quantises(w))
        return (invar_tensor){0};
    return invar_program_room(b->program, w->w.dtype, x->shape[0], x->shape[1]);
}

/* Rows of slots have no point: their codes are in an order that is no sample's. */
static invar_tensor quantise(invar_builder *b, const invar_tensor *x, const invar_weight *w,
                             const char *name, bool gradient)
{
    invar_tensor q = room_for_codes(b, x, w);

    INVAR_APPEND(b->program, b->layer, QUANTISE, quantise, .q = q, .x = *x);
    invar_build_codes(b, name, gradient, &q);
    return q;
}

/* What a product with w takes for x. */
static invar_tensor operand(invar_builder *b, const invar_tensor *x, const invar_weight *w)
{
    invar_built_tensor *built = invar_build_of(b, x);
    bool slots = invar_tensor_present(&built->by_slot);
    invar_tensor q;

    if (!quantises(w))
        return *x;
    if (!invar_tensor_present(&built->codes)) {
        q = quantise(b, x, w, slots ? NULL : built->name, false);
        invar_build_of(b, x)->codes = q;
    }
    return invar_build_of(b, x)->codes;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Layers of one input. */
typedef struct linears {
    invar_tensor x;
    int32_t count;
    bool of_experts;
    const char *name[INVAR_MOST_OUTPUTS];
    invar_tensor y[INVAR_MOST_OUTPUTS];
    invar_tensor u[INVAR_MOST_OUTPUTS]; /* of adapters; absent: none */
    invar_weight w[INVAR_MOST_OUTPUTS], bias[INVAR_MOST_OUTPUTS];
    invar_segments experts;
    invar_tensor row_token;
} linears;

static size_t bytes_of(const invar_tensor *t, int64_t elements)
{
    return (size_t)elements * (size_t)invar_dtype_bits(t->dtype) / 8;
}

/*
 * Makes the rows of dw and the columns of dy longer by those of the next layer, if these lie behind
 * them. An element of the result is the same chain, and one large product is faster than two.
 */
static bool join(invar_tensor *dw, invar_tensor *dy, const invar_tensor *next_dw,
                 const invar_tensor *next_dy)
{
    if (next_dw->row_stride != dw->row_stride || next_dw->shape[1] != dw->shape[1] ||
        next_dy->row_stride != dy->row_stride ||
        (char *)next_dw->data != (char *)dw->data + bytes_of(dw, dw->shape[0] * dw->row_stride) ||
        (char *)next_dy->data != (char *)dy->data + bytes_of(dy, dy->shape[1]))
        return false;
    dw->shape[0] += next_dw->shape[0];
    dy->shape[1] += next_dy->shape[1];
    return true;
}

static bool learns(const linears *l)
{
    for (int32_t i = 0; i < l->count; i++)
        if (invar_tensor_present(&l->w[i].dw) || invar_adapter_is(&l->w[i]))
            return true;
    return false;
}

/* The rows that gradients of weights are sums over: all that ranks divide. */
static invar_tensor summed_rows(invar_builder *b, const linears *l)
{
    invar_tensor own;

    if (l->of_experts || !learns(l))
        return l->x;
    own = invar_build_value_rows(b, &l->x);
    return invar_context_gather(b, &own);
}

/* Of context-parallel ranks each makes the gradients of a share of the features. */
static void shared_gradients(invar_builder *b, const linears *l, const invar_tensor *d,
                             const invar_tensor *x)
{
    for (int32_t i = 0; i < l->count; i++) {
        invar_layout_share share = invar_context_columns(b, d[i].shape[1]);
        invar_tensor dy;
        if (!invar_tensor_present(&l->w[i].dw)) // frozen
            continue;
        dy = invar_context_spread(b, &d[i], b->all_rows, b->context->row);
        if (share.count == 0)
            continue;
        INVAR_APPEND(b->program, b->layer, LINEAR_DW, linear_dw,
                     .dw = invar_tensor_rows(&l->w[i].dw, share.first, share.count), .dy = dy,
                     .x = *x, .units = b->all_units);
        invar_program_fresh(b->program, offsetof(invar_linear_dw_args, fresh));
        if (invar_tensor_present(&l->bias[i].w))
            INVAR_APPEND(b->program, b->layer, TOKEN_SUM, token_sum,
                         .out = invar_tensor_1d((float *)l->bias[i].dw.data + share.first,
                                                INVAR_DTYPE_F32, share.count),
                         .x = dy, .units = b->all_units);
    }
}

static void weight_gradients(invar_builder *b, const linears *l, const invar_tensor *d,
                             const invar_tensor *x)
{
    for (int32_t i = 0, next; i < l->count; i = next) {
        invar_tensor dw = l->w[i].dw, dy = d[i];
        next = i + 1;
        if (!invar_tensor_present(&dw)) // frozen
            continue;
        while (next < l->count && join(&dw, &dy, &l->w[next].dw, &d[next]))
            next++;
        INVAR_APPEND(b->program, b->layer, LINEAR_DW, linear_dw, .dw = dw, .dy = dy, .x = *x,
                     .units = b->units);
        invar_program_fresh(b->program, offsetof(invar_linear_dw_args, fresh));
    }
    for (int32_t i = 0; i < l->count; i++)
        if (invar_tensor_present(&l->bias[i].dw))
            INVAR_APPEND(b->program, b->layer, TOKEN_SUM, token_sum, .out = l->bias[i].dw,
                         .x = d[i], .units = b->units);
}

static void expert_gradients(invar_builder *b, const linears *l, const invar_tensor *d)
{
    for (int32_t i = 0; i < l->count; i++) {
        if (!invar_tensor_present(&l->w[i].dw)) // frozen
            continue;
        INVAR_APPEND(b->program, b->layer, MOE_LINEAR_DW, moe_linear_dw, .dw = l->w[i].dw,
                     .dy = d[i], .x = l->x, .row_token = l->row_token, .experts = l->experts,
                     .units = b->all_units);
        invar_program_fresh(b->program, offsetof(invar_moe_linear_dw_args, fresh));
    }
}

/* ---- sums that ranks have parts of ----------------------------------------------------------- */

/*
 * Parts of a product's sum, each as large as all rows of the result. Either every rank gets all of
 * them and adds them, or each adds its own, and of a share of the rows those of all ranks; then the
 * sums are gathered: fewer bytes, but two moves. Of the residual stream, where ranks divide it,
 * they are not: a share is what a rank has of it.
 */
typedef struct divided {
    invar_tensor sums; /* f32: of this rank, or room for those of all */
    int64_t rows;      /* of one */
    int32_t parts;     /* of this rank */
    int32_t all, first;
    bool shared;
    bool stream; /* the result has this rank's rows of the stream */
} divided;

#define FEW_BYTES ((int64_t)1 << 18) /* of one part: then a move costs more than its bytes */

/* Of sums over `rows` rows, for the result y, which may have this rank's alone. */
static divided divide(invar_builder *b, int64_t rows, const invar_tensor *y, int32_t parts)
{
    int64_t cols = y->shape[1], bytes = rows * cols * (int64_t)sizeof(float);
    divided d = {.rows = rows,
                 .parts = parts,
                 .all = parts * b->tensors,
                 .first = parts * b->tensor,
                 .stream = y->shape[0] != rows,
                 .shared = y->shape[0] != rows || bytes > FEW_BYTES};

    d.sums =
        invar_program_room(b->program, INVAR_DTYPE_F32, (d.shared ? parts : d.all) * rows, cols);
    return d;
}

/* Where this rank's part number i goes. */
static invar_tensor part_room(const divided *d, int32_t i)
{
    return invar_tensor_rows(&d->sums, ((d->shared ? 0 : d->first) + i) * d->rows, d->rows);
}

static void fold(invar_builder *b, const invar_tensor *y, const invar_tensor *sums,
                 const invar_tensor *residual, int32_t shards)
{
    INVAR_APPEND(b->program, b->layer, SHARDS_FOLD, shards_fold, .y = *y, .x = *sums,
                 .residual = *residual, .shards = shards);
}

/* This rank's parts as one: a subtree of the tree over all. */
static invar_tensor one_part(invar_builder *b, const divided *d)
{
    static const invar_tensor none;
    invar_tensor sum;

    if (d->parts == 1)
        return d->sums;
    sum = invar_program_room(b->program, INVAR_DTYPE_F32, d->rows, d->sums.shape[1]);
    fold(b, &sum, &d->sums, &none, d->parts);
    return sum;
}

/* Of what all ranks have, this rank's rows, in `got`; shares begin at `start` (invar_move). */
static void exchange(invar_builder *b, const divided *d, const invar_tensor *got,
                     const int64_t *start)
{
    invar_tensor part = one_part(b, d);

    invar_program_move(
        b->program,
        &(invar_move){.kind = INVAR_MOVE_EXCHANGE, .whole = *got, .own = part, .start = start});
}

static void unite_stream(invar_builder *b, const divided *d, const invar_tensor *y,
                         const invar_tensor *residual)
{
    invar_tensor got = invar_build_stream_room(b, INVAR_DTYPE_F32, b->tensors, y->shape[1]);

    exchange(b, d, &got, b->stream->row);
    fold(b, y, &got, residual, b->tensors);
}

static void unite_shares(invar_builder *b, const divided *d, const invar_tensor *y,
                         const invar_tensor *residual)
{
    invar_layout_share own = invar_layout_share_of(d->rows, b->tensors, b->tensor);
    invar_tensor got =
        invar_program_room(b->program, INVAR_DTYPE_F32, b->tensors * own.count, y->shape[1]);
    invar_tensor rows = invar_tensor_rows(y, own.first, own.count), added = *residual;

    INVAR_CHECK(y->row_stride == y->shape[1]); // whole rows travel
    if (invar_tensor_present(residual))
        added = invar_tensor_rows(residual, own.first, own.count);
    exchange(b, d, &got, NULL);
    fold(b, &rows, &got, &added, b->tensors);
    invar_program_move(b->program, &(invar_move){.kind = INVAR_MOVE_SHARES, .whole = *y});
}

static void unite_all(invar_builder *b, const divided *d, const invar_tensor *y,
                      const invar_tensor *residual)
{
    invar_program_move(
        b->program,
        &(invar_move){.kind = INVAR_MOVE_PARTS, .whole = d->sums, .own = part_room(d, 0)});
    fold(b, y, &d->sums, residual, d->all);
}

/* y = what all parts make, with a residual if there is one; behind the call of this rank's last. */
static void unite(invar_builder *b, const divided *d, const invar_tensor *y,
                  const invar_tensor *residual)
{
    static const invar_tensor none;
    const invar_tensor *added = residual ? residual : &none;

    if (d->stream)
        unite_stream(b, d, y, added);
    else if (d->shared)
        unite_shares(b, d, y, added);
    else
        unite_all(b, d, y, added);
}

/* The columns, where the part is not all of them: a quantised tensor cannot be cut so. */
static invar_tensor some_columns(const invar_tensor *t, const invar_sum_part *part)
{
    bool whole = part->count == t->shape[1] || !invar_tensor_present(t); // there is no memory

    return whole ? *t : invar_tensor_columns(t, part->first, part->count);
}

static invar_tensor some_rows(const invar_tensor *t, const invar_sum_part *part)
{
    return part->count == t->shape[0] ? *t : invar_tensor_rows(t, part->first, part->count);
}

/* ---- the gradient of the input --------------------------------------------------------------- */

/* The chain of part `number` of this rank: of each layer its own outputs. */
static void chain_back(invar_builder *b, const linears *l, const invar_tensor *operands,
                       const invar_tensor *dx, const invar_sum_parts *parts, int32_t number)
{
    invar_linear_dx_args dense = {
        .dx = *dx, .n_parts = l->count, .k_shards = parts[0].part[number].shards};
    invar_moe_linear_dx_args grouped = {
        .dx = *dx, .n_parts = l->count, .experts = l->experts, .k_shards = dense.k_shards};

    for (int32_t i = 0; i < l->count; i++) {
        const invar_sum_part *part = &parts[i].part[number];
        invar_linear_part own = {some_columns(&operands[i], part), l->w[i].w};
        if (!l->of_experts)
            own.w = some_rows(&own.w, part);
        dense.parts[i] = grouped.parts[i] = own;
        dense.k_atom[i] = grouped.k_atom[i] = l->w[i].cut.atom;
    }
    if (l->of_experts)
        invar_program_call(b->program, INVAR_OP_MOE_LINEAR_DX, &grouped, b->layer);
    else
        invar_program_call(b->program, INVAR_OP_LINEAR_DX, &dense, b->layer);
}

/* Parts of the layers' sums: as many of each layer. */
static void divide_outputs(invar_sum_parts *out, const invar_builder *b, const linears *l)
{
    bool even = true;

    for (int32_t i = 0; i < l->count; i++) {
        out[i] = invar_build_sum_parts(b, l->w[i].whole, &l->w[i].cut);
        even = even && out[i].count == 1;
    }
    for (int32_t i = 0; i < l->count && !even; i++)
        out[i] = invar_build_single_shards(b, l->w[i].whole, &l->w[i].cut);
}

static void divided_input_gradient(invar_builder *b, const linears *l, const invar_tensor *operands,
                                   const invar_tensor *dx)
{
    invar_sum_parts parts[INVAR_MOST_OUTPUTS];
    divided d;

    divide_outputs(parts, b, l);
    d = divide(b, operands[0].shape[0], dx, parts[0].count);
    for (int32_t i = 0; i < parts[0].count; i++) {
        invar_tensor room = part_room(&d, i);
        chain_back(b, l, operands, &room, parts, i);
    }
    unite(b, &d, dx, NULL);
}

static void product_back(invar_builder *b, const linears *l, const invar_tensor *operands,
                         const invar_tensor *dx)
{
    int32_t shards = l->w[0].cut.columns ? 1 : l->w[0].cut.pieces;
    invar_sum_parts whole[INVAR_MOST_OUTPUTS];
    invar_tensor taken[INVAR_MOST_OUTPUTS];

    if (!l->w[0].cut.columns && invar_weight_divided(&l->w[0])) {
        divided_input_gradient(b, l, operands, dx);
        return;
    }
    for (int32_t i = 0; i < l->count; i++) {
        bool all = operands[i].shape[0] == dx->shape[0];
        whole[i] = (invar_sum_parts){1, {{0, operands[i].shape[1], shards}}};
        taken[i] = all ? operands[i] : invar_build_own_rows(b, &operands[i]);
    }
    chain_back(b, l, taken, dx, whole, 0);
}

void invar_build_input_gradient(invar_builder *b, const invar_tensor *dx, const invar_tensor *dy,
                                const invar_weight *w)
{
    linears one = {.count = 1, .w = {*w}};

    product_back(b, &one, dy, dx);
}

/* The gradients of A and B; yields du. */
static invar_tensor adapter_back(invar_builder *b, const linears *l, const invar_adapted *of,
                                 const invar_tensor *dy)
{
    const linears wide = {.count = 1,
                          .of_experts = l->of_experts,
                          .w = {invar_adapter_b(of->w)},
                          .experts = l->experts};
    int64_t rows = of->u.shape[0], cols = of->u.shape[1];
    invar_tensor low = invar_program_room(b->program, INVAR_DTYPE_F32, rows, cols);
    invar_tensor du = invar_program_room(b->program, b->storage, rows, cols);
    invar_tensor u = l->of_experts ? of->u : invar_context_gather(b, &of->u);

    invar_adapter_gradient(b, of, &of->w->adapter.db, dy, &u);
    product_back(b, &wide, dy, &low);
    invar_adapter_scale(b, of, &du, &low, true);
    invar_adapter_gradient(b, of, &of->w->adapter.da, &du, &of->x);
    return du;
}

/* The gradients of all adapters; the layers whose weights are their A, and what comes back. */
static linears adapters_back(invar_builder *b, const linears *l, const invar_tensor *d,
                             const invar_tensor *x, invar_tensor *du)
{
    linears narrow = {.of_experts = l->of_experts, .experts = l->experts};

    for (int32_t i = 0; i < l->count; i++) {
        const invar_adapted of = {.name = l->name[i],
                                  .w = &l->w[i],
                                  .x = *x,
                                  .u = l->u[i],
                                  .experts = l->of_experts ? &l->experts : NULL,
                                  .row_token = l->row_token};
        if (!invar_adapter_is(&l->w[i]))
            continue;
        du[narrow.count] = adapter_back(b, l, &of, &d[i]);
        narrow.w[narrow.count++] =
            (invar_weight){.w = l->w[i].adapter.a, .cut = {.pieces = 1}, .pieces = 1};
    }
    return narrow;
}

/* dx, with what comes back through adapters. */
static void adapted_product_back(invar_builder *b, const linears *l, const invar_tensor *operands,
                                 const linears *narrow, const invar_tensor *du,
                                 const invar_tensor *dx)
{
    static const invar_tensor none;
    int64_t rows = dx->shape[0];
    invar_tensor sums, part;

    if (narrow->count == 0) {
        product_back(b, l, operands, dx);
        return;
    }
    sums = invar_program_room(b->program, INVAR_DTYPE_F32, 2 * rows, dx->shape[1]);
    part = invar_tensor_rows(&sums, rows, rows);
    product_back(b, narrow, du, &part);
    part = invar_tensor_rows(&sums, 0, rows);
    product_back(b, l, operands, &part);
    invar_adapter_fold(b, dx, &sums, &none);
}

static void input_gradient(invar_builder *b, const linears *l, const invar_tensor *operands,
                           const linears *narrow, const invar_tensor *du)
{
    invar_tensor dx = invar_gradient_room(b, &l->x);

    adapted_product_back(b, l, operands, narrow, du, &dx);
    invar_gradient_show(b, &l->x, &dx, l->name[0], false);
    invar_gradient_give(b, &l->x, &dx);
}

/* `codes` of the gradients d, where the op before has made them; absent: made here. */
static void back(invar_builder *b, const linears *l, const invar_tensor *d,
                 const invar_tensor *codes)
{
    invar_tensor operands[INVAR_MOST_OUTPUTS], du[INVAR_MOST_OUTPUTS], x;
    linears narrow;

    for (int32_t i = 0; i < l->count; i++) {
        operands[i] = d[i];
        if (codes && invar_tensor_present(&codes[i]))
            operands[i] = codes[i];
        else if (quantises(&l->w[i]))
            operands[i] = quantise(b, &d[i], &l->w[i], l->of_experts ? NULL : l->name[i], true);
    }
    x = summed_rows(b, l);
    if (l->of_experts)
        expert_gradients(b, l, d);
    else
        (b->context ? shared_gradients : weight_gradients)(b, l, d, &x);
    narrow = adapters_back(b, l, d, &x, du);
    input_gradient(b, l, operands, &narrow, du);
}

static void linears_back(invar_builder *b, const void *noted)
{
    const linears *l = noted;
    invar_tensor d[INVAR_MOST_OUTPUTS];

    for (int32_t i = 0; i < l->count; i++)
        d[i] = invar_gradient_take(b, &l->y[i]);
    back(b, l, d, NULL);
}

/* ---- forward --------------------------------------------------------------------------------- */

static linears note_of(invar_tensor x, const invar_projection *outputs, int32_t count,
                       const invar_routes *routes)
{
    linears l = {.x = x, .count = count, .of_experts = routes != NULL};

    for (int32_t i = 0; i < count; i++) {
        l.name[i] = outputs[i].name;
        l.y[i] = outputs[i].y;
        l.u[i] = outputs[i].u;
        l.w[i] = outputs[i].w;
        l.bias[i] = outputs[i].bias;
    }
    if (routes) {
        l.experts = routes->own;
        l.row_token = routes->row_token;
    }
    return l;
}

/* Of the experts that the tensor has, those whose rows this rank multiplies. */
static void take_own(invar_tensor *of, const invar_routes *routes, bool all)
{
    int64_t each = of->shape[0] / (all ? routes->experts.count : routes->here);
    int64_t first = (all ? routes->begin : 0) + routes->first;

    if (invar_tensor_present(of))
        *of = invar_tensor_rows(of, first * each, routes->own.count * each);
}

/* Weights have the experts that are here, and so do adapters that are cut; others have all. */
static void take_experts(invar_projection *outputs, int32_t count, const invar_routes *routes)
{
    for (int32_t i = 0; routes && i < count; i++) {
        invar_weight *w = &outputs[i].w;
        take_own(&w->w, routes, false);
        take_own(&w->dw, routes, false);
        take_own(&w->adapter.a, routes, !w->cut.columns);
        take_own(&w->adapter.da, routes, !w->cut.columns);
        take_own(&w->adapter.b, routes, w->cut.columns);
        take_own(&w->adapter.db, routes, w->cut.columns);
    }
}

/* Rooms for the results, whose gradients are to lie side by side. */
static void make_rooms(invar_builder *b, const invar_tensor *x, invar_projection *outputs,
                       int32_t count, const invar_routes *routes)
{
    int32_t group = b->train && count > 1 && !routes ? invar_gradient_group(b, x->shape[0]) : 0;

    take_experts(outputs, count, routes);
    for (int32_t i = 0; i < count; i++) {
        int64_t cols = outputs[i].w.w.shape[0] / (routes ? routes->own.count : 1);
        outputs[i].y = invar_program_room(b->program, outputs[i].f32 ? INVAR_DTYPE_F32 : b->storage,
                                          x->shape[0], cols);
        outputs[i].u = invar_adapter_room(b, &outputs[i].w, x->shape[0]);
        invar_gradient_join(b, group, &outputs[i].y);
        if (routes)
            invar_build_slots(b, &outputs[i].y, routes);
    }
}

/* Of a product over the layer's inputs. */
static int32_t input_shards(const invar_weight *w)
{
    return w->cut.columns ? w->cut.pieces : 1;
}

static invar_linear_fwd_args arguments(const invar_tensor *x, const invar_projection *outputs,
                                       int32_t count)
{
    invar_linear_fwd_args args = {.y = outputs[0].y,
                                  .x = *x,
                                  .w = outputs[0].w.w,
                                  .bias = outputs[0].bias.w,
                                  .k_shards = input_shards(&outputs[0].w),
                                  .k_atom = outputs[0].w.cut.atom,
                                  .n_more = count - 1};

    for (int32_t i = 1; i < count; i++)
        args.more[i - 1] = (invar_linear_output){outputs[i].y, outputs[i].w.w, outputs[i].bias.w};
    return args;
}

/* y of the one output = residual + x w^T, of which this rank has some of x's columns. */
static void divided_product(invar_builder *b, const invar_tensor *taken,
                            const invar_projection *out, const invar_tensor *residual,
                            const invar_routes *routes)
{
    invar_sum_parts parts = invar_build_sum_parts(b, out->w.whole, &out->w.cut);
    divided d = divide(b, taken->shape[0], &out->y, parts.count);

    for (int32_t i = 0; i < parts.count; i++) {
        const invar_sum_part *part = &parts.part[i];
        invar_tensor y = part_room(&d, i), x = some_columns(taken, part);
        invar_tensor w = some_columns(&out->w.w, part);
        if (routes)
            INVAR_APPEND(b->program, b->layer, MOE_LINEAR_FWD, moe_linear_fwd, .y = y, .x = x,
                         .w = w, .experts = routes->own, .k_shards = part->shards,
                         .k_atom = out->w.cut.atom);
        else
            INVAR_APPEND(b->program, b->layer, LINEAR_FWD, linear_fwd, .y = y, .x = x, .w = w,
                         .k_shards = part->shards, .k_atom = out->w.cut.atom);
    }
    unite(b, &d, &out->y, residual);
}

/* Sums over what ranks divide. */
static bool sums_over_ranks(const invar_weight *w)
{
    return w->cut.columns && invar_weight_divided(w);
}

/* One product alone, whole or divided. */
static void single_product(invar_builder *b, const invar_tensor *taken, const invar_projection *out,
                           const invar_routes *routes)
{
    invar_linear_fwd_args args = arguments(taken, out, 1);

    if (sums_over_ranks(&out->w))
        divided_product(b, taken, out, NULL, routes);
    else if (routes)
        INVAR_APPEND(b->program, b->layer, MOE_LINEAR_FWD, moe_linear_fwd, .y = out->y, .x = *taken,
                     .w = out->w.w, .experts = routes->own, .k_shards = args.k_shards,
                     .k_atom = args.k_atom);
    else
        invar_program_call(b->program, INVAR_OP_LINEAR_FWD, &args, b->layer);
}

/* y of one layer with an adapter: both sums are kept as f32 and folded with one rounding. */
static void adapted_product(invar_builder *b, const invar_tensor *x, const invar_tensor *taken,
                            const invar_projection *out, const invar_tensor *residual,
                            const invar_routes *routes)
{
    const invar_adapted of = {.name = out->name,
                              .w = &out->w,
                              .x = *x,
                              .u = out->u,
                              .experts = routes ? &routes->own : NULL};
    int64_t rows = out->y.shape[0], cols = out->y.shape[1];
    invar_projection low = {.w = invar_adapter_a(&out->w)}, added = {.w = invar_adapter_b(&out->w)};
    invar_projection base = *out;
    invar_tensor sums, u = out->u;

    if (rows != x->shape[0]) // of the stream this rank has some; B is whole then
        u = invar_build_own_rows(b, &u);
    low.y = invar_program_room(b->program, INVAR_DTYPE_F32, x->shape[0], out->u.shape[1]);
    sums = invar_program_room(b->program, INVAR_DTYPE_F32, 2 * rows, cols);
    base.y = invar_tensor_rows(&sums, 0, rows);
    added.y = invar_tensor_rows(&sums, rows, rows);
    single_product(b, x, &low, routes);
    invar_adapter_scale(b, &of, &out->u, &low.y, false);
    single_product(b, &u, &added, routes);
    single_product(b, taken, &base, routes);
    invar_adapter_fold(b, &out->y, &sums, residual);
}

static bool any_adapter(const invar_projection *outputs, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (invar_adapter_is(&outputs[i].w))
            return true;
    return false;
}

/* One product of those that are not made at once. */
static void lone_product(invar_builder *b, const invar_tensor *x, const invar_tensor *taken,
                         const invar_projection *out, const invar_routes *routes)
{
    static const invar_tensor none;

    if (invar_adapter_is(&out->w))
        adapted_product(b, x, taken, out, &none, routes);
    else
        single_product(b, taken, out, routes);
}

/* The products alone; results are shown. */
static void products(invar_builder *b, const invar_tensor *x, const invar_projection *outputs,
                     int32_t count, const invar_routes *routes)
{
    invar_tensor taken = operand(b, x, &outputs[0].w);
    invar_linear_fwd_args args = arguments(&taken, outputs, count);
    bool at_once = !routes && !any_adapter(outputs, count) && !sums_over_ranks(&outputs[0].w);

    if (at_once)
        invar_program_call(b->program, INVAR_OP_LINEAR_FWD, &args, b->layer);
    for (int32_t i = 0; i < count; i++) {
        if (!at_once)
            lone_product(b, x, &taken, &outputs[i], routes);
        (void)invar_build_result(b, outputs[i].name, outputs[i].y);
    }
}

void invar_verb_linears(invar_builder *b, invar_tensor x, invar_projection *outputs, int32_t count,
                        const invar_routes *routes)
{
    linears l;

    make_rooms(b, &x, outputs, count, routes);
    products(b, &x, outputs, count, routes);
    invar_build_reads(b, &x);
    l = note_of(x, outputs, count, routes);
    invar_build_note(b, linears_back, &l, sizeof l);
}

/* ---- with a residual ------------------------------------------------------------------------- */

typedef struct added {
    linears l;
    invar_tensor residual;
} added;

static void added_back(invar_builder *b, const void *noted)
{
    const added *a = noted;
    invar_tensor d = invar_gradient_take(b, &a->l.y[0]);

    invar_gradient_give(b, &a->residual, &d);
    d = invar_build_all_rows(b, &d);
    back(b, &a->l, &d, NULL);
}

invar_tensor invar_verb_add_linear(invar_builder *b, const char *name, invar_tensor residual,
                                   invar_tensor x, const invar_weight *w)
{
    invar_projection out = {.name = name, .w = *w};
    invar_linear_fwd_args args;
    invar_tensor taken;
    added a;

    out.y = invar_build_stream_room(b, b->storage, 1, w->w.shape[0]);
    out.u = invar_adapter_room(b, w, x.shape[0]);
    taken = operand(b, &x, w);
    args = arguments(&taken, &out, 1);
    args.residual = residual;
    if (invar_adapter_is(w))
        adapted_product(b, &x, &taken, &out, &residual, NULL);
    else if (sums_over_ranks(w))
        divided_product(b, &taken, &out, &residual, NULL);
    else
        invar_program_call(b->program, INVAR_OP_LINEAR_FWD, &args, b->layer);
    invar_build_reads(b, &x);
    a = (added){note_of(x, &out, 1, NULL), residual};
    invar_build_note(b, added_back, &a, sizeof a);
    return invar_build_stream(b, name, out.y);
}

/* ---- with a gated activation ----------------------------------------------------------------- */

typedef struct gated {
    linears l; /* gate, up */
    invar_tensor act;
} gated;

static void gated_back(invar_builder *b, const void *noted)
{
    const gated *g = noted;
    const invar_tensor *gate = &g->l.y[0], *up = &g->l.y[1];
    invar_tensor dy = invar_gradient_take(b, &g->act);
    invar_tensor d[2], codes[2];

    for (int i = 0; i < 2; i++) {
        d[i] = invar_gradient_room(b, &g->l.y[i]);
        codes[i] = room_for_codes(b, &d[i], &g->l.w[i]);
    }
    INVAR_APPEND(b->program, b->layer, SWIGLU_BWD, swiglu_bwd, .dgate = d[0], .dup = d[1], .dy = dy,
                 .gate = *gate, .up = *up, .dgate_q = codes[0], .dup_q = codes[1]);
    for (int i = 0; i < 2; i++)
        invar_gradient_show(b, &g->l.y[i], &d[i], NULL, false);
    for (int i = 0; i < 2; i++)
        if (!g->l.of_experts && invar_tensor_present(&codes[i]))
            invar_build_codes(b, g->l.name[i], true, &codes[i]);
    back(b, &g->l, d, codes);
}

/* One call for all; without a backward the device keeps the two products to itself. */
static void activate_at_once(invar_builder *b, const gated *g, const invar_projection *gate_up)
{
    invar_linear_fwd_args args = arguments(&g->l.x, gate_up, 2);

    args.act = g->act;
    if (!b->train)
        args.y = args.more[0].y = (invar_tensor){0};
    invar_program_call(b->program, INVAR_OP_LINEAR_FWD, &args, b->layer);
    for (int i = 0; i < 2 && b->train; i++)
        (void)invar_build_result(b, gate_up[i].name, gate_up[i].y);
}

static void activate_alone(invar_builder *b, const gated *g, const invar_projection *gate_up,
                           const invar_routes *routes)
{
    invar_tensor codes = room_for_codes(b, &g->act, &gate_up[0].w);

    products(b, &g->l.x, gate_up, 2, routes);
    INVAR_APPEND(b->program, b->layer, SWIGLU_FWD, swiglu_fwd, .y = g->act, .gate = gate_up[0].y,
                 .up = gate_up[1].y, .y_q = codes);
    invar_build_of(b, &g->act)->codes = codes;
}

invar_tensor invar_verb_gated(invar_builder *b, const char *name, invar_tensor x,
                              invar_projection gate_up[2], const invar_routes *routes)
{
    gated g;

    make_rooms(b, &x, gate_up, 2, routes);
    g = (gated){note_of(x, gate_up, 2, routes),
                invar_program_room(b->program, b->storage, x.shape[0], gate_up[0].y.shape[1])};
    if (routes)
        invar_build_slots(b, &g.act, routes);
    if (routes || quantises(&gate_up[0].w) || any_adapter(gate_up, 2))
        activate_alone(b, &g, gate_up, routes);
    else
        activate_at_once(b, &g, gate_up);
    invar_build_reads(b, &x);
    invar_build_note(b, gated_back, &g, sizeof g);
    (void)invar_build_result(b, name, g.act);
    if (!routes && invar_tensor_present(&invar_build_of(b, &g.act)->codes))
        invar_build_codes(b, name, false, &invar_build_of(b, &g.act)->codes);
    return g.act;
}
