/*
 * learner.h - one trained model: gradients, optimizer, learning rate schedule and digests.
 *
 * Actor and critic are one learner each. A step is
 *
 *     invar_learner_forward_backward(learner, trainer, ...);   gradients and their norm
 *     invar_learner_step(learner, step, rest);                 AdamW
 *     invar_learner_record_points(learner, probe);             record the step
 *     invar_learner_end_step(learner, &result);                after the probe has finished
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

typedef struct invar_learner_options {
    const invar_device *dev; /* device of the model; borrowed */
    const char *prefix;      /* prefix of the point names: "" or "critic."; a constant */
    invar_lr_schedule schedule;
    invar_adamw_options adamw;
    /* bytes of moments uploaded to the device at a time; 0 if the moments stay on the device */
    size_t offload_chunk_bytes;
    bool no_hashing; /* no gradients or masters are hashed, because nothing is recorded */
} invar_learner_options;

/* Zero-initialized, it is empty. Close with invar_learner_close, also after a failure. */
typedef struct invar_learner {
    invar_learner_options options;
    invar_model *model; /* borrowed; NULL if there is no model */
    invar_grads *grads; /* gradients, zero between steps; NULL if the model is not trained */
    /* NULL if the model is not trained */
    invar_optimizer *optimizer;
    /*
     * (n_params) numbers of the weight points in the last recorded step; NULL if the model is not
     * trained
     */
    int64_t *weight_points;
    invar_digest hash; /* invar_model_hash of the model; valid if `hashed` */
    bool hashed;
    /*
     * digest of the compute weights on this rank in the last recorded step; set only if data-
     * parallel ranks divide the optimizer state
     */
    invar_digest weights_digest;
    /* gradient norm, clip factor and learning rate of the current step */
    float norm, clip, lr;
    bool stepped; /* the optimizer has run in the current step */
} invar_learner;

/*
 * Opens a learner. If `learns` is false, it has no gradients and no optimizer and is only good for
 * invar_learner_hash.
 */
invar_status invar_learner_open(invar_learner *out, invar_model *model, bool learns,
                                const invar_learner_options *options) INVAR_MUST_USE;
void invar_learner_close(invar_learner *learner);

/* Zeroes the moments and restarts the powers of beta. Does nothing if the model is not trained. */
invar_status invar_learner_reset(invar_learner *learner) INVAR_MUST_USE;

/*
 * Writes the digest of the current weights to *out. The digest is cached until the next step.
 * Collective: all ranks of the model's layout must call it.
 */
invar_status invar_learner_hash(invar_digest *out, invar_learner *learner) INVAR_MUST_USE;

/*
 * Runs forward, loss and backward over the samples, then computes the gradient norm and the clip.
 */
invar_status invar_learner_forward_backward(invar_learner *learner, invar_trainer *trainer,
                                            const invar_rl_sample *samples, int64_t count,
                                            const invar_trainer_loss *loss,
                                            invar_trainer_result *result) INVAR_MUST_USE;

/* Computes the learning rate of `step`, and runs the optimizer unless `rest` is set. */
invar_status invar_learner_step(invar_learner *learner, int64_t step, bool rest) INVAR_MUST_USE;

/* ---- recording ------------------------------------------------------------------------------- */

/*
 * Records the inputs of a gradient sum under the name that its point refers to. Call when an
 * observed backward has added to the gradients.
 */
invar_status invar_learner_record_grad_sum(const invar_learner *learner,
                                           const invar_point_namer *namer,
                                           const invar_observed_grad *sum) INVAR_MUST_USE;

/*
 * Defines and records the points of gradients, gradient norm and weights. At finer probe levels the
 * points also name their inputs.
 */
invar_status invar_learner_record_points(invar_learner *learner, invar_probe *probe) INVAR_MUST_USE;

/*
 * Ends the step: takes the hash of the weights from the recorded points, if `points` is not NULL,
 * and zeroes the gradients.
 */
invar_status invar_learner_end_step(invar_learner *learner,
                                    const invar_probe_result *points) INVAR_MUST_USE;

#endif
