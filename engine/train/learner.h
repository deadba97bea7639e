/*
 * learner.h - a model that learns: its gradients, its optimizer, its schedule, and their digests.
 *
 * An actor and a critic are two of them. A step is
 *
 *     invar_learner_forward_backward(learner, trainer, ...);    gradients and their norm
 *     invar_learner_step(learner, rest);                     AdamW
 *     invar_learner_points(learner, probe);                  where the step is recorded
 *     invar_learner_end_step(learner, &result);                when the probe has finished
 *
 * A step that is not recorded ends with invar_learner_end_step(learner, NULL).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_LEARNER_H
#define INVAR_ENGINE_TRAIN_LEARNER_H

#include "engine/model/probe/point_names.h"
#include "engine/train/lr_schedule.h"
#include "engine/train/optimizer.h"
#include "engine/train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_learner_options {
    const invar_device *dev; /* the model's; borrowed */
    const char *prefix;      /* of its points: "" or "critic."; a constant */
    invar_lr_schedule schedule;
    invar_adamw_options adamw;
    size_t piece;    /* of the moments that visit the device; 0: they are there for good */
    bool no_hashing; /* nothing of it is recorded: neither gradients nor masters are hashed */
} invar_learner_options;

/* Zeroed, it is none. */
typedef struct invar_learner {
    invar_learner_options options;
    invar_model *model; /* borrowed; NULL: there is none */
    invar_grads *grads; /* zero between steps; NULL, like the next two: it does not learn */
    invar_optimizer *optimizer;
    int64_t *weights;  /* (n_params) the points of its weights in the last step recorded */
    invar_digest hash; /* invar_model_hash of the model, where `hashed` */
    bool hashed;
    /* of what ops read of its weights here, in the last step recorded */
    invar_digest weights_digest;
    /* The current step: */
    float norm, clip, lr;
    bool stepped; /* AdamW has run */
} invar_learner;

/* `learns` false: a model that only computes, for invar_learner_hash. */
invar_status invar_learner_open(invar_learner *out, invar_model *model, bool learns,
                                const invar_learner_options *options) INVAR_MUST_USE;
void invar_learner_close(invar_learner *learner);

/* Moments and powers as at the start. */
invar_status invar_learner_reset(invar_learner *learner) INVAR_MUST_USE;

/*
 * The digest of the weights of now; after a step that was recorded it is known already. A call of
 * all ranks of the model's layout.
 */
invar_status invar_learner_hash(invar_digest *out, invar_learner *learner) INVAR_MUST_USE;

/* Forward, loss, backward of the samples; the norm and the clip. */
invar_status invar_learner_forward_backward(invar_learner *learner, invar_trainer *trainer,
                                            const invar_rl_sample *samples, int64_t count,
                                            const invar_trainer_loss *loss,
                                            invar_trainer_result *result) INVAR_MUST_USE;

/* The learning rate of `step`, and, unless the weights rest, the step. */
invar_status invar_learner_step(invar_learner *learner, int64_t step, bool rest) INVAR_MUST_USE;

/* ---- what is recorded of it ------------------------------------------------------------------ */

/* A backward that is watched has added to its gradients: their points will say what they read. */
invar_status invar_learner_sum(const invar_learner *learner, const invar_point_namer *view,
                               const invar_observed_grad *sum) INVAR_MUST_USE;

/*
 * Points of gradients, of their norm, of weights, with their values. Where finer points are
 * recorded they name what they are computed from.
 */
invar_status invar_learner_points(invar_learner *learner, invar_probe *probe) INVAR_MUST_USE;

/* The hash of the weights out of their points, and gradients of zero. */
invar_status invar_learner_end_step(invar_learner *learner,
                                    const invar_probe_result *points) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
