/*
 * rows.c - verbs on rows alone: embedding, norm, residual.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/program/builder.h"

#include "base/invar_banned.h"

/* ---- embedding ------------------------------------------------------------------------------- */

typedef struct embedding {
    invar_tensor y, dtable, ids;
} embedding;

static void embed_back(invar_builder *b, const void *noted)
{
    const embedding *e = noted;

    INVAR_APPEND(b->program, b->layer, EMBEDDING_BWD, embedding_bwd, .dtable = e->dtable,
                 .dout = invar_gradient_take(b, &e->y), .ids = e->ids, .units = b->units);
}

/*
 * Every rank looks up what it has, for all rows; of the gathered rows those of the ranks that have
 * the ids are taken. Gradients of other ranks' ids go into rows behind the table.
 */
static void embed_divided(invar_builder *b, embedding *e, const invar_weight *table)
{
    int64_t cols = table->w.shape[1];
    invar_tensor found = invar_program_room(b->program, b->storage, b->tensors * b->rows, cols);
    invar_tensor own = invar_tensor_rows(&found, b->tensor * b->rows, b->rows);

    INVAR_APPEND(b->program, b->layer, EMBEDDING_FWD, embedding_fwd, .out = own, .table = table->w,
                 .ids = invar_build_array(b, INVAR_GIVEN_OWN_IDS, INVAR_DTYPE_I32, b->rows));
    invar_program_move(b->program,
                       &(invar_move){.kind = INVAR_MOVE_PARTS, .whole = found, .own = own});
    INVAR_APPEND(b->program, b->layer, EMBEDDING_FWD, embedding_fwd, .out = e->y, .table = found,
                 .ids = invar_build_array(b, INVAR_GIVEN_PICKED, INVAR_DTYPE_I32, b->rows));
    e->dtable.shape[0] += INVAR_SPARE_ROWS;
    if (b->train)
        e->ids = invar_build_array(b, INVAR_GIVEN_OWN_D_IDS, INVAR_DTYPE_I32, b->rows);
}

invar_tensor invar_verb_embed(invar_builder *b, const char *name, const invar_weight *table)
{
    embedding e = {invar_program_room(b->program, b->storage, b->rows, table->w.shape[1]),
                   table->dw, b->ids};

    if (invar_weight_divided(table))
        embed_divided(b, &e, table);
    else
        INVAR_APPEND(b->program, b->layer, EMBEDDING_FWD, embedding_fwd, .out = e.y,
                     .table = table->w, .ids = b->ids);
    invar_build_note(b, embed_back, &e, sizeof e);
    return invar_build_stream(b, name, e.y);
}

/* ---- norm ------------------------------------------------------------------------------------ */

typedef struct norm {
    const char *name;
    invar_tensor y, x;
    invar_weight weight;
} norm;

/* Adds to the gradient of the residual, if there is one, in the same call. */
static void norm_back(invar_builder *b, const void *noted)
{
    const norm *n = noted;
    invar_tensor dy = invar_gradient_take(b, &n->y), residual = invar_build_of(b, &n->x)->d, dx;
    invar_rmsnorm_bwd_args args = {.dweight = n->weight.dw,
                                   .dy = invar_build_heads(&dy, 1),
                                   .x = invar_build_heads(&n->x, 1),
                                   .weight = n->weight.w,
                                   .units = b->units,
                                   .eps = b->norm_eps};

    if (!invar_tensor_present(&residual)) {
        dx = invar_gradient_room(b, &n->x);
        args.dx = invar_build_heads(&dx, 1);
        invar_program_call(b->program, INVAR_OP_RMSNORM_BWD, &args, b->layer);
        invar_gradient_show(b, &n->x, &dx, n->name, false);
        invar_gradient_give(b, &n->x, &dx);
        return;
    }
    // in place, unless the same rows are still to be read as another value's gradient
    dx = invar_build_of(b, &residual)->held > 1 ? invar_gradient_room(b, &n->x) : residual;
    args.dx = invar_build_heads(&dx, 1);
    args.residual = invar_build_heads(&residual, 1);
    invar_program_call(b->program, INVAR_OP_RMSNORM_BWD, &args, b->layer);
    invar_gradient_show(b, &n->x, &dx, n->name, true);
    invar_gradient_set(b, &n->x, &dx);
}

invar_tensor invar_verb_norm(invar_builder *b, const char *name, invar_tensor x,
                             const invar_weight *weight)
{
    norm n = {name, invar_program_room(b->program, b->storage, x.shape[0], x.shape[1]), x, *weight};

    INVAR_APPEND(b->program, b->layer, RMSNORM_FWD, rmsnorm_fwd, .y = invar_build_heads(&n.y, 1),
                 .x = invar_build_heads(&x, 1), .weight = weight->w, .eps = b->norm_eps);
    invar_build_reads(b, &x);
    invar_build_note(b, norm_back, &n, sizeof n);
    return invar_build_result(b, name, n.y);
}

/* ---- residual -------------------------------------------------------------------------------- */

typedef struct addition {
    invar_tensor y, residual, x;
} addition;

static void add_back(invar_builder *b, const void *noted)
{
    const addition *a = noted;
    invar_tensor d = invar_gradient_take(b, &a->y);

    invar_gradient_give(b, &a->residual, &d);
    invar_gradient_give(b, &a->x, &d);
}

invar_tensor invar_verb_add(invar_builder *b, const char *name, invar_tensor residual,
                            invar_tensor x)
{
    addition a = {invar_program_room(b->program, b->storage, x.shape[0], x.shape[1]), residual, x};

    INVAR_APPEND(b->program, b->layer, ADD, add, .out = a.y, .a = residual, .b = x);
    invar_build_note(b, add_back, &a, sizeof a);
    return invar_build_stream(b, name, a.y);
}
