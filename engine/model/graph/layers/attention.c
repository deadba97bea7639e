/*
 * attention.c - layer functions for rotary embedding with head norms, and for attention.
 *
 * Attention reads the rows of the pass (packed samples) or a paged KV cache (rollout, no backward).
 * With context parallelism, ranks trade their rows of all heads for all rows of some heads, attend,
 * and trade back. Sums over heads, such as the gradient of a head norm's weight, are chains over
 * logical shards that are folded over ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/graph/layers/context_parallel.h"

#include "base/invar_banned.h"

/* ---- head norm and rotary embedding ---------------------------------------------------------- */

typedef struct rope_record {
    int32_t count;
    invar_rope_input of[INVAR_ROPE_MAX_INPUTS];
    const char *x_name[INVAR_ROPE_MAX_INPUTS];
} rope_record;

static invar_rope_args rotation_of(const invar_builder *b)
{
    return (invar_rope_args){
        .positions = b->rows.positions, .cosine = b->model.cosine, .sine = b->model.sine};
}

static void rotate_in_place(invar_builder *b, invar_op op, const invar_tensor *t, int64_t heads)
{
    invar_tensor view = invar_build_heads(t, heads);
    invar_rope_fwd_args args = {view, view, b->rows.positions, b->model.cosine, b->model.sine};

    invar_op_graph_append(b->graph, op, &args, b->layer);
}

/* View of heads [first, first + count) of the rows. */
static invar_tensor heads_in(const invar_tensor *t, const invar_heads *heads, int64_t first,
                             int64_t count)
{
    int64_t dim = t->shape[1] / heads->count;
    invar_tensor columns = *t;

    if (count < heads->count && invar_tensor_present(t)) // an absent tensor has no columns
        columns = invar_tensor_columns(t, first * dim, count * dim);
    return invar_build_heads(&columns, count);
}

static invar_rmsnorm_bwd_args norm_backward_args(invar_builder *b, const invar_rope_input *t,
                                                 const invar_tensor *dx, const invar_tensor *dy,
                                                 const invar_sum_part *part)
{
    const invar_heads *h = &t->heads;

    return (invar_rmsnorm_bwd_args){.dx = heads_in(dx, h, part->first, part->count),
                                    .dy = heads_in(dy, h, part->first, part->count),
                                    .x = heads_in(&t->x, h, part->first, part->count),
                                    .weight = t->norm.w,
                                    .units = b->rows.units,
                                    .eps = b->model.norm_eps,
                                    .rotation = rotation_of(b),
                                    .head_shards = part->shards,
                                    .head_atom = h->split.atom};
}

/*
 * The weight's gradient is a sum over all heads, and over rows in token blocks: each rank computes
 * the sums of its heads and rows, and all of them are folded.
 */
static void append_divided_norm_backward(invar_builder *b, const invar_rope_input *t,
                                         const invar_tensor *dx, const invar_tensor *dy)
{
    invar_sum_parts parts = invar_build_sum_parts(b, t->heads.n_total, &t->heads.split);
    int64_t blocks = invar_token_blocks_max(&b->rows.units, b->rows.count),
            dim = t->norm.w.shape[0];
    int32_t all = parts.count * b->model.tensors, first = parts.count * b->model.tensor;
    invar_tensor sums = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, all * blocks, dim);
    invar_tensor folded = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, blocks, dim);
    invar_tensor own = invar_tensor_rows(&sums, first * blocks, blocks);

    for (int32_t i = 0; i < parts.count; i++) {
        invar_rmsnorm_bwd_args args = norm_backward_args(b, t, dx, dy, &parts.part[i]);
        args.block_sums = invar_tensor_rows(&sums, (first + i) * blocks, blocks);
        invar_op_graph_append(b->graph, INVAR_OP_RMSNORM_BWD, &args, b->layer);
    }
    invar_build_grad_point(b, &t->x, dx, t->name, false);
    if (b->model.tensors > 1)
        invar_op_graph_transfer(
            b->graph, &(invar_graph_transfer){
                          .kind = INVAR_GRAPH_TRANSFER_PARTS, .full = sums, .local = own});
    INVAR_APPEND(b->graph, b->layer, SHARDS_FOLD, shards_fold, .y = folded, .x = sums,
                 .shards = all);
    invar_cp_fold(b, &t->norm.dw, &folded);
}

static void append_norm_backward(invar_builder *b, const invar_rope_input *t,
                                 const invar_tensor *dx, const invar_tensor *dy)
{
    const invar_sum_part all = {0, t->heads.count, t->heads.n_shards};
    invar_rmsnorm_bwd_args args = norm_backward_args(b, t, dx, dy, &all);

    args.dweight = t->norm.dw;
    invar_op_graph_append(b->graph, INVAR_OP_RMSNORM_BWD, &args, b->layer);
    invar_build_grad_point(b, &t->x, dx, t->name, false);
}

static void rope_input_backward(invar_builder *b, const invar_rope_input *t)
{
    bool frozen = !invar_tensor_present(&t->norm.dw); // then no sum over heads
    bool divided = !frozen && (b->rows.context || t->heads.n_shards < t->heads.split.shards);
    invar_tensor dy = invar_build_grad_in(b, &t->y), dx = dy;

    if (!invar_tensor_present(&t->norm.w)) {
        rotate_in_place(b, INVAR_OP_ROPE_BWD, &dx, t->heads.count);
        invar_build_value_info(b, &t->x)->n_grads_received = 0; // another value in the same memory
        invar_build_grad_point(b, &t->x, &dx, t->name, false);
    } else {
        dx = invar_build_grad_buffer(b, &t->x);
        (divided ? append_divided_norm_backward : append_norm_backward)(b, t, &dx, &dy);
    }
    invar_build_grad_add(b, &t->x, &dx);
}

static void rope_backward(invar_builder *b, const void *noted)
{
    const rope_record *t = noted;

    for (int32_t i = 0; i < t->count; i++) {
        invar_build_rename(b, &t->of[i].x, t->x_name[i]);
        rope_input_backward(b, &t->of[i]);
    }
}

static void append_rope(invar_builder *b, invar_rope_input *t)
{
    if (!invar_tensor_present(&t->norm.w)) {
        t->y = t->x;
        rotate_in_place(b, INVAR_OP_ROPE_FWD, &t->x, t->heads.count);
    } else {
        t->y = invar_op_graph_tensor(b->graph, b->model.storage, t->x.shape[0], t->x.shape[1]);
        INVAR_APPEND(b->graph, b->layer, RMSNORM_FWD, rmsnorm_fwd,
                     .y = invar_build_heads(&t->y, t->heads.count),
                     .x = invar_build_heads(&t->x, t->heads.count), .weight = t->norm.w,
                     .eps = b->model.norm_eps, .rotation = rotation_of(b));
        invar_build_reads(b, &t->x);
    }
    (void)invar_build_result(b, t->name, t->y);
}

void invar_graph_rope(invar_builder *b, invar_rope_input *of, int32_t count)
{
    rope_record t = {.count = count};

    for (int32_t i = 0; i < count; i++) {
        t.x_name[i] = invar_build_value_info(b, &of[i].x)->name;
        append_rope(b, &of[i]);
        t.of[i] = of[i];
    }
    invar_build_record_backward(b, rope_backward, &t, sizeof t);
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct attention_record {
    invar_attention_inputs a;
    const char *name;
    invar_tensor o;
    /* all rows of this rank's heads if ranks divide rows; else equal to `a` */
    invar_attention_inputs all;
    invar_tensor all_o, lse2;
} attention_record;

static invar_attention_shape shape_of(const invar_builder *b, const invar_attention_inputs *a)
{
    return (invar_attention_shape){.window = a->window, .kv_span = b->kv_span, .q_span = b->q_span};
}

/*
 * Logical shards of the heads that this rank has with all rows; 1 if a group of heads would span
 * several.
 */
static int32_t head_shards(const invar_builder *b, const invar_heads *heads)
{
    int32_t ranks = b->model.tensors * (b->rows.context ? b->rows.context->size : 1);

    return invar_heads_shards(heads->n_total, &heads->split, ranks);
}

/* Appends attention.bwd; d[0], d[1], d[2] receive the gradients of q, k and v. */
static void append_attention_backward(invar_builder *b, const attention_record *n,
                                      const invar_tensor *d_o, const invar_tensor d[3])
{
    const invar_attention_inputs *a = &n->all;

    INVAR_APPEND(b->graph, b->layer, ATTENTION_BWD, attention_bwd,
                 .dq = invar_build_heads(&d[0], a->heads.count),
                 .dk = invar_build_heads(&d[1], a->kv_heads.count),
                 .dv = invar_build_heads(&d[2], a->kv_heads.count),
                 .d_o = invar_build_heads(d_o, a->heads.count),
                 .o = invar_build_heads(&n->all_o, a->heads.count), .lse2 = n->lse2,
                 .q = invar_build_heads(&a->q, a->heads.count),
                 .k = invar_build_heads(&a->k, a->kv_heads.count),
                 .v = invar_build_heads(&a->v, a->kv_heads.count), .samples = b->rows.samples,
                 .shape = shape_of(b, a), .head_shards = head_shards(b, &n->a.heads),
                 .head_atom = a->heads.split.atom); // valid: groups are complete on one rank
}

/* Computes the gradients for all rows of some heads; then each rank gets its rows of all heads. */
static void append_divided_attention_backward(invar_builder *b, const attention_record *n,
                                              const invar_tensor *d_o, const invar_tensor d[3])
{
    const invar_tensor *of[3] = {&n->all.q, &n->all.k, &n->all.v};
    invar_tensor all_d_o = invar_cp_spread(b, d_o, b->rows.all_count, b->rows.context->row), all[3];

    for (int i = 0; i < 3; i++)
        all[i] =
            invar_op_graph_tensor(b->graph, b->model.storage, b->rows.all_count, of[i]->shape[1]);
    append_attention_backward(b, n, &all_d_o, all);
    for (int i = 0; i < 3; i++)
        invar_cp_return(b, &d[i], &all[i]);
}

static void attention_backward(invar_builder *b, const void *noted)
{
    const attention_record *n = noted;
    invar_tensor d_o = invar_build_grad_in(b, &n->o);
    const invar_tensor *of[3] = {&n->a.q, &n->a.k, &n->a.v};
    invar_tensor d[3];

    for (int i = 0; i < 3; i++)
        d[i] = invar_build_grad_buffer(b, of[i]);
    (b->rows.context ? append_divided_attention_backward : append_attention_backward)(b, n, &d_o,
                                                                                      d);
    for (int i = 0; i < 3; i++)
        invar_build_grad_point(b, of[i], &d[i], n->name, false);
    for (int i = 0; i < 3; i++)
        invar_build_grad_add(b, of[i], &d[i]);
}

/* Appends the point of the cache rows that this pass wrote, as attention reads them. */
static void append_cache_point(invar_builder *b, const char *name, const invar_tensor *cache)
{
    invar_tensor slots = invar_tensor_2d(invar_op_graph_input(b->graph, INVAR_INPUT_SLOTS),
                                         INVAR_DTYPE_I32, b->rows.count, 1);

    invar_op_graph_point(
        b->graph, &(invar_graph_point){.name = name,
                                       .suffix = "cache",
                                       .layer = b->layer,
                                       .rows = invar_tensor_2d(cache->data, cache->dtype,
                                                               cache->shape[0] * cache->shape[1],
                                                               cache->shape[2] * cache->shape[3]),
                                       .by_slot = slots});
}

static void append_paged_attention(invar_builder *b, const attention_record *n)
{
    const invar_attention_inputs *a = &n->a;
    const invar_kv_pages *cache = &b->cache[b->layer];

    INVAR_APPEND(b->graph, b->layer, KV_WRITE, kv_write, .cache = *cache,
                 .k = invar_build_heads(&a->k, a->kv_heads.count),
                 .v = invar_build_heads(&a->v, a->kv_heads.count), .rows = b->rows.samples,
                 .lengths = b->lengths);
    append_cache_point(b, "k", &cache->k);
    append_cache_point(b, "v", &cache->v);
    INVAR_APPEND(b->graph, b->layer, ATTENTION_PAGED, attention_paged,
                 .o = invar_build_heads(&n->o, a->heads.count),
                 .q = invar_build_heads(&a->q, a->heads.count), .cache = *cache,
                 .rows = b->rows.samples, .lengths = b->lengths, .shape = shape_of(b, a));
}

/* Attention over the rows of the pass: all rows of this rank's heads. */
static void append_packed_attention(invar_builder *b, attention_record *n)
{
    const invar_attention_inputs *a = &n->all;

    n->lse2 = invar_op_graph_tensor(b->graph, INVAR_DTYPE_F32, b->rows.all_count, a->heads.count);
    INVAR_APPEND(b->graph, b->layer, ATTENTION_FWD, attention_fwd,
                 .o = invar_build_heads(&n->all_o, a->heads.count), .lse2 = n->lse2,
                 .q = invar_build_heads(&a->q, a->heads.count),
                 .k = invar_build_heads(&a->k, a->kv_heads.count),
                 .v = invar_build_heads(&a->v, a->kv_heads.count), .samples = b->rows.samples,
                 .shape = shape_of(b, a));
}

static void append_divided_attention(invar_builder *b, attention_record *n)
{
    const invar_tensor *of[3] = {&n->a.q, &n->a.k, &n->a.v};
    invar_tensor *all[3] = {&n->all.q, &n->all.k, &n->all.v};

    for (int i = 0; i < 3; i++)
        *all[i] = invar_cp_spread(b, of[i], b->rows.all_count, b->rows.context->row);
    n->all.heads.count /= b->rows.context->size;
    n->all.kv_heads.count /= b->rows.context->size;
    n->all_o =
        invar_op_graph_tensor(b->graph, b->model.storage, b->rows.all_count, n->all.q.shape[1]);
    append_packed_attention(b, n);
    invar_cp_return(b, &n->o, &n->all_o);
}

invar_tensor invar_graph_attention(invar_builder *b, const char *name,
                                   const invar_attention_inputs *a)
{
    attention_record n = {.a = *a, .all = *a, .name = name};

    n.o = n.all_o = invar_op_graph_tensor(b->graph, b->model.storage, a->q.shape[0], a->q.shape[1]);
    if (b->cache) {
        append_paged_attention(b, &n);
        return invar_build_result(b, name, n.o);
    }
    (b->rows.context ? append_divided_attention : append_packed_attention)(b, &n);
    invar_build_reads(b, &a->q);
    invar_build_reads(b, &a->k);
    invar_build_reads(b, &a->v);
    invar_build_record_backward(b, attention_backward, &n, sizeof n);
    return invar_build_result(b, name, n.o);
}
