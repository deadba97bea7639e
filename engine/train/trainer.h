/*
 * trainer.h - samples through a model, forward and back, micro-batch by micro-batch.
 *
 * The plan says which samples run together; it changes no bit. Log-probabilities and the like are
 * flat arrays over the response tokens of all samples, in order.
 *
 * With a layout the data-parallel ranks divide the samples. All of them make the same calls with
 * the same arguments, and each gets every result, as one rank would have it. When a call fails on
 * one rank, it is its caller who tells the others (invar_comm_abort).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_TRAINER_H
#define INVAR_ENGINE_TRAIN_TRAINER_H

#include "engine/ranks/layout/layout.h"
#include "engine/train/batch_plan.h"
#include "engine/train/micro_batch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_trainer_options {
    invar_batch_plan_options plan;
    bool recompute;
    int64_t head_rows;           /* rows of logits at a time; 0: no limit */
    float temperature;           /* 0, the best token, has log-probabilities at 1 */
    const invar_model *replay;   /* runs with the routing of the rollout; NULL: none does */
    const invar_device *scoring; /* where scoring has its memory; NULL: where learning has it */
    const invar_layout *layout;  /* borrowed; NULL: one rank */
    /* Behind each micro-batch: this rank gets on. Its failure ends the call. NULL: nobody asks. */
    invar_status (*tick)(void *payload);
    void *payload;
} invar_trainer_options;

/* head_rows where nobody says: 256 MiB of logits, on a far device 12 GiB. */
int64_t invar_trainer_head_rows(const invar_device *dev, const invar_model_spec *spec);

typedef struct invar_trainer invar_trainer;

invar_status invar_trainer_new(invar_trainer **out, const invar_device *dev,
                               const invar_trainer_options *options) INVAR_MUST_USE;
void invar_trainer_free(invar_trainer *trainer);

/* invar_pass_alloc_scratch of both passes. */
invar_status invar_trainer_settle(invar_trainer *trainer) INVAR_MUST_USE;

/*
 * The plan of the coming runs, in place of one by the options; borrowed, NULL ends it. This rank
 * runs all of it: no other one takes part.
 */
void invar_trainer_plan(invar_trainer *trainer, const invar_batch_plan *plan);

/* Shows activations of the coming runs, of what this rank computes; NULL ends it. */
void invar_trainer_probe(invar_trainer *trainer, const invar_forward_hooks *probe);

/* Of all products and attention, of those that this rank computes; borrowed, NULL ends it. */
void invar_trainer_audit(invar_trainer *trainer, invar_audit *audit);

/* Log-probabilities and, unless NULL, entropies of all responses. */
invar_status invar_trainer_score(invar_trainer *trainer, const invar_model *model,
                                 const invar_rl_sample *samples, int64_t count, float *logp_out,
                                 float *entropy_out) INVAR_MUST_USE;

/* A critic's values at the positions that predict the response tokens. */
invar_status invar_trainer_values(invar_trainer *trainer, const invar_model *critic,
                                  const invar_rl_sample *samples, int64_t count,
                                  float *values_out) INVAR_MUST_USE;

/*
 * Asked for each micro-batch, in order: gradients with respect to `now`, the log-probabilities (or
 * values) of the samples [first, first + count), and to their entropies, if any. Each of several
 * ranks asks for all samples, so that whatever is counted on the way is the same on all of them.
 */
typedef struct invar_trainer_loss {
    invar_status (*run)(void *payload, int64_t first, int64_t count, const float *now,
                        const float *entropy, float *dnow_out, float *dentropy_out);
    void *payload;
    bool entropy; /* it has a gradient with respect to entropies */
    /* Of log-probabilities, by one rank, which tells the world: all ranks ask at the same time.
       Stages of a pipeline ask before they learn, for the log-probabilities of one more forward. */
    bool led;
} invar_trainer_loss;

typedef struct invar_trainer_result {
    float *train_logp;     /* (tokens) log-probabilities or values of the training forward */
    float *entropy;        /* (tokens); NULL: not wanted, and never of a critic */
    int64_t routes;        /* experts: choices made again, */
    int64_t routes_differ; /* and how many of them were others than the recorded ones */
    int64_t micro_batches;
} invar_trainer_result;

/*
 * Forward, loss, backward of one optimizer step; adds to `grads`, which are joined at the end.
 * Several ranks want them zeroed. A micro-batch then is a round: as many units as there are ranks.
 */
invar_status invar_trainer_learn(invar_trainer *trainer, const invar_model *model,
                                 const invar_rl_sample *samples, int64_t count,
                                 const invar_trainer_loss *loss, invar_grads *grads,
                                 invar_trainer_result *result) INVAR_MUST_USE;

/* Response tokens of all samples. */
int64_t invar_trainer_tokens(const invar_rl_sample *samples, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
