/*
 * optimizer_norm.c - global gradient norm, clip factor and gradient digests.
 *
 * The norm is the square root of the sum of the squares of all logical shards in canonical order.
 * On one rank one op computes it. If ranks divide the model or its rows, each rank computes the
 * squares of what it holds; parts are gathered and reduced per logical shard, then over all of
 * them, in the same tree as on one rank. Invariant: the norm has the same bits in every layout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model/graph/op_runner.h"
#include "engine/model/shard/logical_shards.h"
#include "engine/model/shard/zero_partition.h"
#include "engine/train/optimizer.h"
#include "kernels-deterministic/math/clip.h"
#include "kernels-deterministic/math/reduce.h"

#include "base/invar_banned.h"

static invar_status run_grad_norm(invar_op_runner *runner, float *norm_out, float *clip_out,
                                  const invar_tensor *grads, int64_t count, float clip_grad,
                                  invar_digest *digests)
{
    return INVAR_CALL(runner, GRAD_NORM, grad_norm, .norm = norm_out, .clip = clip_out,
                      .grads = grads, .count = count, .max_norm = clip_grad, .digest = digests);
}

static invar_status grad_not_finite_error(const invar_param *p)
{
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "the gradient of %s is not finite or its square overflows: look at the step "
                      "with debug-determinism, or take a smaller lr",
                      p->name);
}

static invar_status norm_overflow_error(void)
{
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "the gradients' sum of squares overflows: take a smaller lr");
}

/* Fails and names the first parameter whose norm is not finite, or else reports an overflow. */
static invar_status find_non_finite_grad(invar_op_runner *runner, const invar_model *model,
                                         const invar_grads *grads)
{
    float norm, clip;

    for (int64_t i = 0; i < model->n_params; i++) {
        invar_status status =
            run_grad_norm(runner, &norm, &clip, &grads->tensors[i], 1, 0.0f, NULL);
        if (status == INVAR_E_STATE)
            return grad_not_finite_error(&model->params[i]);
        INVAR_TRY(status);
    }
    return norm_overflow_error();
}

/* Computes norm and clip from the squares of all logical shards, as the op does on one rank. */
static invar_status finish_norm(float *norm_out, float *clip_out, const invar_model *model,
                                const float *squares, int64_t count, float clip_grad)
{
    const float *next = squares;

    for (int64_t i = 0; i < model->n_params; i++)
        for (int64_t k = 0; k < invar_logical_shards_of(&model->params[i]); k++)
            if (!isfinite(*next++))
                return grad_not_finite_error(&model->params[i]);
    *norm_out = invar_sqrtf(invar_reduce_f32(squares, count));
    if (!isfinite(*norm_out))
        return norm_overflow_error();
    *clip_out = invar_norm_clip(*norm_out, clip_grad);
    return INVAR_OK;
}

/* Returns the number of parts of logical shards of a parameter (logical_shards.h) in the rows. */
static int64_t count_parts_in_rows(const invar_param *p, const invar_index_range *rows)
{
    invar_index_range pieces = invar_logical_shards_among(p, rows);
    int64_t parts = 0;

    for (int64_t k = pieces.first; k < pieces.first + pieces.count; k++)
        parts += invar_logical_shard_parts(NULL, p, NULL, k, rows);
    return parts;
}

/*
 * Sets counts[k] to the number of parts of the parameter's k-th local logical shard, over all
 * owners.
 */
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

/*
 * Reduces the parts of each logical shard that this rank contributes. `counts` is a buffer for one
 * number per shard.
 */
static void reduce_parts(float *squares, int64_t *counts, const invar_model *model,
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

/*
 * Gathers the squares of parts from their owners and reduces them to `squares`, one per contributed
 * logical shard.
 */
static invar_status gather_part_squares(float *squares, int64_t pieces, const invar_model *model,
                                        const float *local)
{
    int64_t *counts = NULL, *of_pieces = NULL, total = 0;
    float *parts = NULL;
    invar_status status;

    INVAR_TRY(invar_zero_partition_count(&counts, model, count_parts_in_rows));
    for (int64_t i = 0; i < model->layout->data.size * model->n_params; i++)
        total += counts[i];
    status = INVAR_ALLOC(parts, (size_t)total + 1, "squares of gradients");
    if (status == INVAR_OK)
        status = INVAR_ALLOC(of_pieces, (size_t)pieces + 1, "squares of gradients");
    if (status == INVAR_OK)
        status = invar_zero_partition_gather(parts, model, "squares of gradients", local,
                                             sizeof *local, counts);
    if (status == INVAR_OK)
        reduce_parts(squares, of_pieces, model, parts);
    invar_free(of_pieces);
    invar_free(parts);
    invar_free(counts);
    return status;
}

/*
 * Sums of squares: (n_local) of what this rank holds, (n_contributed) of the logical shards that
 * this rank contributes, (n_all) of all logical shards of the model.
 */
typedef struct square_sums {
    float *local, *contributed, *all;
    int64_t n_local, n_contributed, n_all;
} square_sums;

static invar_status alloc_squares(square_sums *out, const invar_model *model,
                                  const invar_grads *grads)
{
    *out = (square_sums){.n_local = grads->n_pieces};
    for (int64_t i = 0; i < model->n_params; i++) {
        const invar_param *p = &model->params[i];
        out->n_all += invar_logical_shards_of(p);
        out->n_contributed +=
            invar_logical_shards_is_contributor(model, p) ? invar_logical_shards_here(p) : 0;
    }
    INVAR_TRY(INVAR_ALLOC(out->all, (size_t)(out->n_all + out->n_contributed + out->n_local),
                          "squares of gradients"));
    out->contributed = out->all + out->n_all;
    out->local = out->contributed + out->n_contributed;
    return INVAR_OK;
}

static invar_status gather_squares(square_sums *s, invar_op_runner *runner,
                                   const invar_model *model, const invar_grads *grads)
{
    float norm, clip;
    invar_status status =
        INVAR_CALL(runner, GRAD_NORM, grad_norm, .norm = &norm, .clip = &clip,
                   .grads = grads->pieces, .count = s->n_local, .squares = s->local);

    if (status == INVAR_E_STATE) // finish_norm reports it on all ranks together
        invar_error_clear();
    else
        INVAR_TRY(status);
    if (invar_zero_partition_is_divided(model))
        INVAR_TRY(gather_part_squares(s->contributed, s->n_contributed, model, s->local));
    else
        s->contributed = s->local;
    return invar_logical_shards_gather(s->all, model, "squares of gradients", s->contributed,
                                       sizeof *s->contributed, NULL);
}

/*
 * Computes the norm of a divided model: each rank squares what it holds, and all of them add up all
 * squares.
 */
static invar_status compute_divided_norm(invar_op_runner *runner, float *norm_out, float *clip_out,
                                         const invar_model *model, const invar_grads *grads,
                                         float clip_grad)
{
    square_sums s;
    invar_status status;

    INVAR_TRY(alloc_squares(&s, model, grads));
    status = gather_squares(&s, runner, model, grads);
    if (status == INVAR_OK)
        status = finish_norm(norm_out, clip_out, model, s.all, s.n_all, clip_grad);
    invar_free(s.all);
    return status;
}

static invar_status compute_local_norm(invar_op_runner *runner, float *norm_out, float *clip_out,
                                       const invar_model *model, const invar_grads *grads,
                                       float clip_grad, invar_digest *digests)
{
    invar_status status = run_grad_norm(runner, norm_out, clip_out, grads->pieces, grads->n_pieces,
                                        clip_grad, digests);

    return status == INVAR_E_STATE ? find_non_finite_grad(runner, model, grads) : status;
}

invar_status invar_optimizer_norm(float *norm_out, float *clip_out, const invar_model *model,
                                  invar_grads *grads, bool digests, float clip_grad,
                                  const invar_device *dev)
{
    bool owned = invar_zero_partition_is_divided(model);
    bool cut = owned || invar_model_is_cut(model); // a digest combines those of all logical shards
    invar_op_runner runner;
    invar_status status;

    invar_op_runner_init(&runner, dev);
    status = owned || invar_model_is_divided(model)
                 ? compute_divided_norm(&runner, norm_out, clip_out, model, grads, clip_grad)
                 : compute_local_norm(&runner, norm_out, clip_out, model, grads, clip_grad,
                                      digests && !cut ? grads->digests : NULL);
    invar_op_runner_release(&runner);
    if (status == INVAR_OK && digests && cut)
        status = invar_model_digests(grads->digests, model, grads->tensors, dev);
    return status;
}
