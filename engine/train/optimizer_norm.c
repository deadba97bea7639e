/*
 * optimizer_norm.c - the global norm of gradients, and their digests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/op_runner.h"
#include "engine/model/logical_shards.h"
#include "engine/model/shard/zero_partition.h"
#include "engine/train/optimizer.h"
#include "kernels-deterministic/math/clip.h"
#include "kernels-deterministic/math/reduce.h"

#include "base/invar_banned.h"

static invar_status norm_of(invar_op_runner *caller, float *norm_out, float *clip_out,
                            const invar_tensor *grads, int64_t count, float clip_grad,
                            invar_digest *digests)
{
    return INVAR_CALL(caller, GRAD_NORM, grad_norm, .norm = norm_out, .clip = clip_out,
                      .grads = grads, .count = count, .max_norm = clip_grad, .digest = digests);
}

static invar_status not_finite(const invar_param *p)
{
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "the gradient of %s is not finite or its square overflows: look at the step "
                      "with debug-determinism, or take a smaller lr",
                      p->name);
}

static invar_status overflow(void)
{
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "the gradients' sum of squares overflows: take a smaller lr");
}

/* The norm is no number: the first parameter whose own is none either, by name. */
static invar_status op_runner_blame(invar_op_runner *caller, const invar_model *model,
                                    const invar_grads *grads)
{
    float norm, clip;

    for (int64_t i = 0; i < model->n_params; i++) {
        invar_status status = norm_of(caller, &norm, &clip, &grads->tensors[i], 1, 0.0f, NULL);
        if (status == INVAR_E_STATE)
            return not_finite(&model->params[i]);
        INVAR_TRY(status);
    }
    return overflow();
}

/* What the op makes of the squares of all tensors. */
static invar_status finish_norm(float *norm_out, float *clip_out, const invar_model *model,
                                const float *squares, int64_t count, float clip_grad)
{
    const float *next = squares;

    for (int64_t i = 0; i < model->n_params; i++)
        for (int64_t k = 0; k < invar_logical_shards_of(&model->params[i]); k++)
            if (!isfinite(*next++))
                return not_finite(&model->params[i]);
    *norm_out = invar_sqrtf(invar_reduce_f32(squares, count));
    if (!isfinite(*norm_out))
        return overflow();
    *clip_out = invar_norm_clip(*norm_out, clip_grad);
    return INVAR_OK;
}

/* Parts of a parameter's pieces (logical_shards.h) among rows. */
static int64_t parts_among(const invar_param *p, const invar_index_range *rows)
{
    invar_index_range pieces = invar_logical_shards_among(p, rows);
    int64_t parts = 0;

    for (int64_t k = pieces.first; k < pieces.first + pieces.count; k++)
        parts += invar_logical_shard_parts(NULL, p, NULL, k, rows);
    return parts;
}

/* counts = parts of each piece of a parameter, whoever owns them. */
static void count_parts(int64_t *counts, const invar_model *model, int64_t param)
{
    const invar_param *p = &model->params[param];

    memset(counts, 0, (size_t)invar_logical_shards_here(p) * sizeof *counts);
    for (int r = 0; r < model->layout->data.size; r++) {
        invar_index_range rows = invar_zero_partition_rows(model, param, r);
        invar_index_range pieces = invar_logical_shards_among(p, &rows);
        for (int64_t k = pieces.first; k < pieces.first + pieces.count; k++)
            counts[k] += invar_logical_shard_parts(NULL, p, NULL, k, &rows);
    }
}

/* What REDUCE makes of the parts of each piece that this rank gives; room for as many counts. */
static void fold_parts(float *squares, int64_t *counts, const invar_model *model,
                       const float *parts)
{
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        if (!invar_logical_shards_is_contributor(model, p))
            continue;
        count_parts(counts, model, i);
        for (int64_t k = 0; k < invar_logical_shards_here(p); k++) {
            *squares++ = invar_reduce_f32(parts, counts[k]);
            parts += counts[k];
        }
    }
}

/* The squares of pieces from those of their parts, of which each owner has its own. */
static invar_status gather_parts(float *squares, int64_t pieces, const invar_model *model,
                                 const float *own)
{
    int64_t *counts = NULL, *of_pieces = NULL, total = 0;
    float *parts = NULL;
    invar_status status;

    INVAR_TRY(invar_zero_partition_count(&counts, model, parts_among));
    for (int64_t i = 0; i < model->layout->data.size * model->n_params; i++)
        total += counts[i];
    status = invar_alloc((void **)&parts, (size_t)total + 1, sizeof *parts, "squares of gradients");
    if (status == INVAR_OK)
        status = invar_alloc((void **)&of_pieces, (size_t)pieces + 1, sizeof *of_pieces,
                             "squares of gradients");
    if (status == INVAR_OK)
        status = invar_zero_partition_gather(parts, model, "squares of gradients", own, sizeof *own,
                                             counts);
    if (status == INVAR_OK)
        fold_parts(squares, of_pieces, model, parts);
    invar_free(of_pieces);
    invar_free(parts);
    invar_free(counts);
    return status;
}

/* Squares: of what this rank has, of the pieces that it gives, of all pieces of the model. */
typedef struct sums {
    float *own, *given, *all;
    int64_t n_own, n_given, n_all;
} sums;

static invar_status make_room(sums *out, const invar_model *model, const invar_grads *grads)
{
    *out = (sums){.n_own = grads->n_pieces};
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        out->n_all += invar_logical_shards_of(p);
        out->n_given +=
            invar_logical_shards_is_contributor(model, p) ? invar_logical_shards_here(p) : 0;
    }
    INVAR_TRY(invar_alloc((void **)&out->all, (size_t)(out->n_all + out->n_given + out->n_own),
                          sizeof *out->all, "squares of gradients"));
    out->given = out->all + out->n_all;
    out->own = out->given + out->n_given;
    return INVAR_OK;
}

static invar_status square_all(sums *s, invar_op_runner *caller, const invar_model *model,
                               const invar_grads *grads)
{
    float norm, clip;
    invar_status status = INVAR_CALL(caller, GRAD_NORM, grad_norm, .norm = &norm, .clip = &clip,
                                     .grads = grads->pieces, .count = s->n_own, .squares = s->own);

    if (status == INVAR_E_STATE) // all ranks find it together
        invar_error_clear();
    else
        INVAR_TRY(status);
    if (invar_zero_partition_divide(model))
        INVAR_TRY(gather_parts(s->given, s->n_given, model, s->own));
    else
        s->given = s->own;
    return invar_logical_shards_gather(s->all, model, "squares of gradients", s->given,
                                       sizeof *s->given, NULL);
}

/* Of what ranks divide: each squares what it gives or owns, and all add it up. */
static invar_status norm_of_all(invar_op_runner *caller, float *norm_out, float *clip_out,
                                const invar_model *model, const invar_grads *grads, float clip_grad)
{
    sums s;
    invar_status status;

    INVAR_TRY(make_room(&s, model, grads));
    status = square_all(&s, caller, model, grads);
    if (status == INVAR_OK)
        status = finish_norm(norm_out, clip_out, model, s.all, s.n_all, clip_grad);
    invar_free(s.all);
    return status;
}

static invar_status norm_here(invar_op_runner *caller, float *norm_out, float *clip_out,
                              const invar_model *model, const invar_grads *grads, float clip_grad,
                              invar_digest *digests)
{
    invar_status status =
        norm_of(caller, norm_out, clip_out, grads->pieces, grads->n_pieces, clip_grad, digests);

    return status == INVAR_E_STATE ? op_runner_blame(caller, model, grads) : status;
}

invar_status invar_optimizer_norm(float *norm_out, float *clip_out, const invar_model *model,
                                  invar_grads *grads, bool digests, float clip_grad,
                                  const invar_device *dev)
{
    bool owned = invar_zero_partition_divide(model);
    bool cut = owned || invar_model_is_cut(model); // a digest is of all pieces
    invar_op_runner caller;
    invar_status status;

    invar_op_runner_init(&caller, dev);
    status = owned || invar_model_is_divided(model)
                 ? norm_of_all(&caller, norm_out, clip_out, model, grads, clip_grad)
                 : norm_here(&caller, norm_out, clip_out, model, grads, clip_grad,
                             digests && !cut ? grads->digests : NULL);
    invar_op_runner_release(&caller);
    if (status == INVAR_OK && digests && cut)
        status = invar_model_digests(grads->digests, model, grads->tensors, dev);
    return status;
}
