/*
 * fused_parts.c - decomposes a fused call into the plain calls that define its bits.
 *
 * The table of op_fields.def gives the plain call: the fused call without its FUSED fields, with
 * all outputs redirected to side memory. Each op adds here the calls before and after it. Side
 * memory is allocated by counting, so a first run with NULL buffers yields the sizes.
 * docs/arithmetic.md has the expressions.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/fused_parts.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* The decomposition of one call under construction. */
typedef struct parts_builder {
    invar_fused_parts *out;
    invar_op op;
    const void *args;
    char *side, *host_side; /* side memory of the device and of the host; NULL to count bytes */
} parts_builder;

/* ---- side memory ----------------------------------------------------------------------------- */

static void *alloc_side(size_t *used, char *memory, size_t bytes)
{
    void *at = memory ? memory + *used : NULL;

    *used += invar_aligned(bytes);
    return at;
}

static void *alloc_bytes(parts_builder *t, size_t bytes, bool host)
{
    return host ? alloc_side(&t->out->host_bytes, t->host_side, bytes)
                : alloc_side(&t->out->bytes, t->side, bytes);
}

static size_t bytes_of(const invar_tensor *t)
{
    return (size_t)(t->shape[0] * t->row_stride * invar_dtype_bits(t->dtype)) / 8;
}

/* Allocates a contiguous tensor of the same type and shape in side memory. */
static invar_tensor alloc_like_in(parts_builder *t, const invar_tensor *like, bool host)
{
    invar_tensor side = *like;

    side.row_stride = invar_tensor_row_elements(like);
    side.data = alloc_bytes(t, bytes_of(&side), host);
    if (invar_dtype_scale_block(like->dtype) > 0)
        side.scale = alloc_bytes(t, invar_tensor_scale_bytes(like), host);
    return side;
}

static invar_tensor alloc_like(parts_builder *t, const invar_tensor *like)
{
    return alloc_like_in(t, like, false);
}

/* ---- calls and outputs ----------------------------------------------------------------------- */

static invar_op_args *add_call(parts_builder *t, invar_op op)
{
    invar_fused_part_call *part = &t->out->call[t->out->count++];

    INVAR_CHECK(t->out->count <= INVAR_FUSED_PARTS_MAX);
    memset(part, 0, sizeof *part);
    part->op = op;
    return &part->args;
}

/* The last added call writes the output that the fused call writes to `field` of its arguments. */
static void declare_output(parts_builder *t, const void *field, const invar_tensor *side, bool host)
{
    size_t offset = (size_t)((const char *)field - (const char *)t->args);
    invar_fused_part_output *o = t->out->output;

    while (o->field->offset != offset)
        INVAR_CHECK(++o < t->out->output + t->out->outputs);
    o->call = t->out->count - 1;
    o->host = host;
    o->reference = o->fused;
    o->reference.data = side->data;
    o->reference.scale = side->scale;
    o->reference.row_stride = invar_tensor_row_elements(&o->fused);
}

/* Lists the outputs of the fused call; which part writes each is not known yet. */
static void list_outputs(parts_builder *t)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, t->op);

    for (int i = 0; i < count && fields[i].role != INVAR_FIELD_IN; i++)
        if (invar_field_present(&fields[i], t->args)) {
            INVAR_CHECK(t->out->outputs < INVAR_FUSED_PARTS_MAX_OUTPUTS);
            t->out->output[t->out->outputs++] = (invar_fused_part_output){
                .field = &fields[i], .fused = invar_field_memory(&fields[i], t->args), .call = -1};
        }
}

/* Redirects an output of the plain call to side memory. `in` is the field in its arguments. */
static void redirect_output(parts_builder *t, const invar_field *field, void *in)
{
    invar_tensor like = invar_field_memory(field, t->args);
    invar_tensor side = alloc_like_in(t, &like, field->host);

    if (field->kind == INVAR_FIELD_TENSOR)
        memcpy(in, &side, sizeof side);
    else
        memcpy(in, &side.data, sizeof side.data);
    declare_output(t, invar_field_in(field, t->args), &side, field->host);
}

/* Returns whether a number counts fused fields, or elements of fused fields, and nothing else. */
static bool counts_fused(const invar_field *number, const invar_field *fields, int count)
{
    bool found = false;

    for (int i = 0; i < count; i++)
        if ((fields[i].array_count_offset && fields[i].array_count_offset == number->offset) ||
            (fields[i].count_at && fields[i].count_at == number->offset)) {
            found = true;
            if (!fields[i].fused)
                return false;
        }
    return found;
}

/* Adds the fused call without its fused fields, with its outputs in side memory. */
static invar_op_args *add_plain(parts_builder *t)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, t->op);
    invar_op_args *args = add_call(t, t->op);

    (void)invar_op_args_copy(args, t->op, t->args);
    for (int i = 0; i < count; i++) {
        char *in = (char *)args + fields[i].offset;
        if (fields[i].fused || counts_fused(&fields[i], fields, count))
            memset(in, 0, fields[i].bytes);
        else if (fields[i].role != INVAR_FIELD_IN && invar_field_present(&fields[i], t->args))
            redirect_output(t, &fields[i], in);
    }
    return args;
}

/* A view (T, H * D) of a tensor (T, H, D). */
static invar_tensor flatten_heads(const invar_tensor *t)
{
    invar_tensor rows = *t;

    rows.rank = 2;
    rows.shape[1] = invar_tensor_row_elements(t);
    rows.shape[2] = rows.shape[3] = 1;
    return rows;
}

/*
 * Adds `sum` = residual + rows, where `sum` is an output of the fused call and a part has written
 * `rows`.
 */
static void add_residual(parts_builder *t, const invar_tensor *sum, const invar_tensor *residual,
                         const invar_tensor *rows)
{
    invar_add_args *add = &add_call(t, INVAR_OP_ADD)->add;
    invar_tensor out = alloc_like(t, sum);

    *add = (invar_add_args){
        .out = flatten_heads(&out), .a = flatten_heads(residual), .b = flatten_heads(rows)};
    declare_output(t, sum, &out, false);
}

/* Adds the quantization of x to the output `codes` of the fused call. */
static void add_quantize(parts_builder *t, const invar_tensor *codes, const invar_tensor *x)
{
    invar_quantize_args *quantize = &add_call(t, INVAR_OP_QUANTIZE)->quantize;

    *quantize = (invar_quantize_args){.q = alloc_like(t, codes), .x = *x};
    declare_output(t, codes, &quantize->q, false);
}

/* Adds a rotation of x, with the shape of `like`. */
static invar_rope_fwd_args *add_rope(parts_builder *t, invar_op op, const invar_tensor *like,
                                     const invar_tensor *x, const invar_rope_args *r)
{
    invar_rope_fwd_args *rope = &add_call(t, op)->rope_fwd; // rope.bwd has the same struct

    *rope = (invar_rope_fwd_args){alloc_like(t, like), *x, r->positions, r->cosine, r->sine};
    return rope;
}

/* Adds the digests of a list of tensors as the output `digest` of the fused call. */
static void add_hashes(parts_builder *t, invar_digest *const *digest, const invar_tensor *x,
                       int64_t count)
{
    invar_hash_tree_args *hash = &add_call(t, INVAR_OP_HASH_TREE)->hash_tree;
    size_t bytes = (size_t)count * sizeof **digest;
    invar_tensor side = {.data = alloc_bytes(t, bytes, false)};

    *hash = (invar_hash_tree_args){.digest = side.data, .x = x, .count = count, .shards = 1};
    declare_output(t, digest, &side, false);
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* Returns a tensor with the shape of y. An output that is not stored has the activation's. */
static const invar_tensor *shape_of(const invar_tensor *y, const invar_linear_fwd_args *a)
{
    return invar_tensor_present(y) ? y : &a->act;
}

static void plan_linear_fwd(parts_builder *t)
{
    const invar_linear_fwd_args *a = t->args;
    invar_linear_fwd_args *first = &add_plain(t)->linear_fwd, *more = NULL;

    if (!invar_tensor_present(&a->y))
        first->y = alloc_like(t, shape_of(&a->y, a));
    for (int32_t i = 0; i < a->n_more; i++) {
        const invar_linear_output *o = &a->more[i];
        more = &add_call(t, INVAR_OP_LINEAR_FWD)->linear_fwd;
        *more = (invar_linear_fwd_args){.y = alloc_like(t, shape_of(&o->y, a)),
                                        .x = a->x,
                                        .w = o->w,
                                        .bias = o->bias,
                                        .k_shards = a->k_shards,
                                        .k_atom = a->k_atom};
        if (invar_tensor_present(&o->y))
            declare_output(t, &o->y, &more->y, false);
    }
    if (invar_tensor_present(&a->residual))
        add_residual(t, &a->y, &a->residual, &first->y);
    if (invar_tensor_present(&a->act)) {
        invar_swiglu_fwd_args *act = &add_call(t, INVAR_OP_SWIGLU_FWD)->swiglu_fwd;
        *act =
            (invar_swiglu_fwd_args){.y = alloc_like(t, &a->act), .gate = first->y, .up = more->y};
        declare_output(t, &a->act, &act->y, false);
    }
}

static void plan_shards_fold(parts_builder *t)
{
    const invar_shards_fold_args *a = t->args;

    add_residual(t, &a->y, &a->residual, &add_plain(t)->shards_fold.y);
}

static void plan_rmsnorm_fwd(parts_builder *t)
{
    const invar_rmsnorm_fwd_args *a = t->args;
    const invar_rmsnorm_fwd_args *norm = &add_plain(t)->rmsnorm_fwd;

    declare_output(t, &a->y, &add_rope(t, INVAR_OP_ROPE_FWD, &a->y, &norm->y, &a->rotation)->y,
                   false);
}

static void plan_rmsnorm_bwd(parts_builder *t)
{
    const invar_rmsnorm_bwd_args *a = t->args;
    invar_tensor dy = a->dy;
    invar_rmsnorm_bwd_args *norm;

    if (invar_tensor_present(&a->rotation.positions))
        dy = add_rope(t, INVAR_OP_ROPE_BWD, &a->dy, &a->dy, &a->rotation)->y;
    norm = &add_plain(t)->rmsnorm_bwd;
    norm->dy = dy;
    if (invar_tensor_present(&a->residual))
        add_residual(t, &a->dx, &a->residual, &norm->dx);
}

static void plan_swiglu_fwd(parts_builder *t)
{
    const invar_swiglu_fwd_args *a = t->args;

    add_quantize(t, &a->y_q, &add_plain(t)->swiglu_fwd.y);
}

static void plan_swiglu_bwd(parts_builder *t)
{
    const invar_swiglu_bwd_args *a = t->args;
    const invar_swiglu_bwd_args *plain = &add_plain(t)->swiglu_bwd;

    add_quantize(t, &a->dgate_q, &plain->dgate);
    add_quantize(t, &a->dup_q, &plain->dup);
}

static void plan_grad_norm(parts_builder *t)
{
    const invar_grad_norm_args *a = t->args;

    (void)add_plain(t);
    add_hashes(t, &a->digest, a->grads, a->count);
}

static void plan_adamw(parts_builder *t)
{
    const invar_adamw_args *a = t->args;
    const invar_tensor *master = &add_plain(t)->adamw.master;
    invar_tensor *list = alloc_bytes(t, (size_t)a->tensors * sizeof *list, true);

    for (int64_t i = 0, first = 0; list && i < a->tensors; first = a->end[i++])
        list[i] =
            invar_tensor_1d((float *)master->data + first, INVAR_DTYPE_F32, a->end[i] - first);
    add_hashes(t, &a->digest, list, a->tensors);
}

static void (*const plan_functions[INVAR_OP_COUNT])(parts_builder *t) = {
    [INVAR_OP_LINEAR_FWD] = plan_linear_fwd,   [INVAR_OP_SHARDS_FOLD] = plan_shards_fold,
    [INVAR_OP_RMSNORM_FWD] = plan_rmsnorm_fwd, [INVAR_OP_RMSNORM_BWD] = plan_rmsnorm_bwd,
    [INVAR_OP_SWIGLU_FWD] = plan_swiglu_fwd,   [INVAR_OP_SWIGLU_BWD] = plan_swiglu_bwd,
    [INVAR_OP_GRAD_NORM] = plan_grad_norm,     [INVAR_OP_ADAMW] = plan_adamw,
};

/* ---- interface ------------------------------------------------------------------------------- */

static bool is_fused(invar_op op, const void *args)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, op);

    for (int i = 0; i < count; i++)
        if (fields[i].fused && invar_field_present(&fields[i], args))
            return true;
    return false;
}

void invar_fused_parts_plan(invar_fused_parts *out, invar_op op, const void *args, void *side,
                            void *host_side)
{
    parts_builder t = {out, op, args, side, host_side};

    out->count = out->outputs = 0;
    out->bytes = out->host_bytes = 0;
    if (!is_fused(op, args))
        return;
    INVAR_CHECK(plan_functions[op]); // op_fields.def says that it has parts
    list_outputs(&t);
    plan_functions[op](&t);
    for (int i = 0; i < out->outputs; i++)
        INVAR_CHECK(out->output[i].call >= 0);
}

invar_status invar_fused_parts_copy_accumulators(const invar_device *dev,
                                                 const invar_fused_parts *parts)
{
    for (int i = 0; i < parts->outputs; i++) {
        const invar_fused_part_output *o = &parts->output[i];
        if (o->field->role != INVAR_FIELD_UPDATE)
            continue;
        INVAR_CHECK(o->fused.row_stride ==
                    o->reference.row_stride); // sums of fused calls are vectors
        INVAR_TRY(
            invar_device_copy(dev, o->reference.data, o->fused.data, bytes_of(&o->reference)));
    }
    return INVAR_OK;
}
