/*
 * learner.c - forward, backward and optimizer step of one trained model.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/learner.h"

#include "base/alloc.h"

#include "base/invar_banned.h"

invar_status invar_learner_open(invar_learner *out, invar_model *model, bool learns,
                                const invar_learner_options *options)
{
    *out = (invar_learner){.options = *options, .model = model};
    if (!learns)
        return INVAR_OK;
    INVAR_TRY(invar_grads_new(&out->grads, model));
    INVAR_TRY(invar_optimizer_new(&out->optimizer, model, options->offload_chunk_bytes));
    return INVAR_ALLOC(out->weight_points, (size_t)model->n_params, "the points of weights");
}

void invar_learner_close(invar_learner *learner)
{
    invar_grads_free(learner->grads);
    invar_optimizer_free(learner->optimizer);
    invar_free(learner->weight_points);
    *learner = (invar_learner){0};
}

invar_status invar_learner_reset(invar_learner *learner)
{
    return learner->optimizer ? invar_optimizer_reset(learner->optimizer) : INVAR_OK;
}

invar_status invar_learner_hash(invar_digest *out, invar_learner *learner)
{
    if (!learner->hashed)
        INVAR_TRY(invar_model_hash(&learner->hash, learner->model, learner->options.dev));
    learner->hashed = true;
    *out = learner->hash;
    return INVAR_OK;
}

invar_status invar_learner_forward_backward(invar_learner *learner, invar_trainer *trainer,
                                            const invar_rl_sample *samples, int64_t count,
                                            const invar_trainer_loss *loss,
                                            invar_trainer_result *result)
{
    learner->stepped = false;
    INVAR_TRY(invar_trainer_forward_backward(trainer, learner->model, samples, count, loss,
                                             learner->grads, result));
    return invar_optimizer_norm(&learner->norm, &learner->clip, learner->model, learner->grads,
                                !learner->options.no_hashing, learner->options.adamw.clip_grad,
                                learner->options.dev);
}

invar_status invar_learner_step(invar_learner *learner, int64_t step, bool rest)
{
    learner->lr = invar_lr_schedule_at(&learner->options.schedule, step);
    if (rest)
        return INVAR_OK;
    learner->stepped = true;
    learner->hashed = false;
    return invar_optimizer_step(learner->optimizer, learner->model, learner->grads, learner->clip,
                                learner->lr, !learner->options.no_hashing, &learner->options.adamw,
                                learner->options.dev);
}

/* Computes what invar_model_hash would return: each weight point covers a complete master. */
static void hash_weight_points(invar_learner *learner, const invar_probe_result *points)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    for (int64_t i = 0; i < learner->model->n_params; i++)
        invar_hasher_update(&hasher, points->digests[learner->weight_points[i]].bytes,
                            sizeof(invar_digest));
    invar_hasher_final(&learner->hash, &hasher);
    learner->hashed = true;
}

invar_status invar_learner_end_step(invar_learner *learner, const invar_probe_result *points)
{
    if (points)
        hash_weight_points(learner, points);
    return invar_grads_zero(learner->grads);
}
