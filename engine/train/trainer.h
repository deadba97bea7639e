/*
 * trainer.h - scores samples with a model, and computes the gradients of an optimizer step.
 *
 * Samples are packed into micro-batches by a plan, which changes no bit. Log-probs, entropies and
 * values are flat arrays over the response tokens of all samples, in order.
 *
 * If there is a layout, data-parallel ranks divide the samples and pipeline stages the layers. All
 * of these ranks must make the same calls with the same arguments, and each gets the complete
 * results, with the same bits as one rank alone. If a call fails on one rank, the caller must abort
 * the others (invar_comm_abort).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_TRAINER_H
#define INVAR_ENGINE_TRAIN_TRAINER_H

#include "engine/ranks/layout/layout.h"
#include "engine/train/batch_plan.h"
#include "engine/train/micro_batch.h"

typedef struct invar_trainer_options {
    invar_batch_plan_options plan;
    /* compute activations again in the backward pass, to save memory */
    bool recompute;
    int64_t head_rows; /* rows of logits computed at a time; 0 for no limit */
    /* sampling temperature; 0 stands for greedy sampling, with log-probs at temperature 1 */
    float temperature;
    /* the model that uses the routing of the rollout; NULL if no model does */
    const invar_model *replay;
    /* device whose memory scoring uses; NULL for the device of training */
    const invar_device *scoring;
    const invar_layout *layout; /* borrowed; NULL if there is one rank */
    /*
     * Called after each forward and each backward of a micro-batch, as a sign of progress; a
     * failure ends the call. NULL if it is not needed.
     */
    invar_status (*on_progress)(void *payload);
    void *payload;
} invar_trainer_options;

/*
 * Returns the default of head_rows: 256 MiB of logits, 12 GiB on a device with memory of its own.
 */
int64_t invar_trainer_head_rows(const invar_device *dev, const invar_model_spec *spec);

typedef struct invar_trainer invar_trainer;

/* Allocates the activation slots for training and scoring. Free with invar_trainer_free. */
invar_status invar_trainer_new(invar_trainer **out, const invar_device *dev,
                               const invar_trainer_options *options) INVAR_MUST_USE;
void invar_trainer_free(invar_trainer *trainer);

/* Allocates the scratch memory of all passes in advance (invar_pass_alloc_scratch). */
invar_status invar_trainer_alloc_scratch(invar_trainer *trainer) INVAR_MUST_USE;

/*
 * Dry run: the following calls use this plan instead of one made from the options, and this rank
 * runs all of it, without other ranks. The plan is borrowed; NULL ends the dry run.
 */
void invar_trainer_set_dry_run_plan(invar_trainer *trainer, const invar_batch_plan *plan);

/* Passes the activations that this rank computes in training to the hooks; NULL ends it. */
void invar_trainer_set_hooks(invar_trainer *trainer, const invar_forward_hooks *probe);

/*
 * Checks all matrix products and attention calls that this rank computes; the audit is borrowed,
 * NULL ends it.
 */
void invar_trainer_set_audit(invar_trainer *trainer, invar_audit *audit);

/*
 * Computes the log-probs of all response tokens, and their entropies unless `entropy_out` is NULL;
 * of a critic only its values at the positions that predict the response tokens.
 */
invar_status invar_trainer_score(invar_trainer *trainer, const invar_model *model,
                                 const invar_rl_sample *samples, int64_t count, float *out,
                                 float *entropy_out) INVAR_MUST_USE;

/*
 * Loss callback, called for each micro-batch in order. Computes the gradients with respect to
 * `now`, the log-probs (or values) of the samples [first, first + count), and with respect to their
 * entropies, if dentropy_out is not NULL. With several ranks, each evaluates the loss of all
 * samples, so that metrics that the callback accumulates are the same on all of them.
 */
typedef struct invar_trainer_loss {
    invar_status (*run)(void *payload, int64_t first, int64_t count, const float *now,
                        const float *entropy, float *dnow_out, float *dentropy_out);
    void *payload;
    bool entropy; /* the loss has a gradient with respect to entropies */
    /*
     * Rank 0 evaluates the loss, a plug-in, and broadcasts the gradients, so all ranks must call it
     * at the same time. Pipeline stages therefore evaluate it before training, with the log-probs
     * of an additional forward.
     */
    bool on_rank0;
} invar_trainer_loss;

/* Results of a step. The caller provides the arrays. */
typedef struct invar_trainer_result {
    float *train_logp; /* (tokens) log-probs or values of the training forward */
    float *entropy;    /* (tokens) entropies; NULL if not needed; not written for a critic */
    int64_t routes;    /* expert choices of this forward that were compared with recorded ones */
    int64_t routes_differ; /* compared choices that differ */
    /* number of micro-batches; with several ranks, of rounds */
    int64_t micro_batches;
} invar_trainer_result;

/*
 * Runs forward, loss and backward of one optimizer step and adds to `grads`, which are finalized at
 * the end. With several ranks the gradients must be zero, and each micro-batch is one unit; the
 * ranks compute one unit each in a round.
 */
invar_status invar_trainer_forward_backward(invar_trainer *trainer, const invar_model *model,
                                            const invar_rl_sample *samples, int64_t count,
                                            const invar_trainer_loss *loss, invar_grads *grads,
                                            invar_trainer_result *result) INVAR_MUST_USE;

/* Returns the number of response tokens of all samples. */
int64_t invar_trainer_tokens(const invar_rl_sample *samples, int64_t count);

#endif
