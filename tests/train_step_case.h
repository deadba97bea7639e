/*
 * train_step_case.h - one training step, with scoring before it, on one rank or on several.
 *
 * The result of several ranks must equal the expected result of one rank.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_TRAIN_STEP_CASE_H
#define INVAR_TESTS_TRAIN_STEP_CASE_H

#include "engine/rl/loss.h"
#include "engine/train/trainer.h"
#include "tests/model.h"

enum { SAMPLES = 7, MOST = 256, METRICS = 48 };

/* Input of all ranks; not changed while they run. */
typedef struct train_step_case {
    invar_device near, far;
    bool has_far; /* some ranks may have their model on `far` */
    const invar_model *model;
    const invar_rl_samples *samples;
    invar_trainer_options options;
    invar_rl_options rl;
    invar_rl_batch batch;
    int64_t start[SAMPLES + 1], group[SAMPLES];
    uint8_t mask[MOST];
    float reward[SAMPLES], old[MOST], ref[MOST], advantage[MOST], values[MOST];
    size_t bucket;
    bool led;    /* rank 0 computes the loss for all ranks */
    int failing; /* rank whose loss fails; -1 if there is none */
    int only;    /* sample with gradients, all others have zeros; -1 if all have gradients */
    const struct outcome *expected;
} train_step_case;

/* Result of a step on one rank. */
typedef struct outcome {
    float scores[MOST], entropies[MOST];
    float now[MOST], entropy[MOST]; /* log-probs and entropies of the training forward */
    invar_loss_metric metrics[METRICS];
    size_t n_metrics;
    invar_trainer_result result;
    void *grads;
    size_t bytes;
} outcome;

/*
 * Initializes the case with the inputs of a loss. The model and the samples are borrowed and must
 * outlive the case.
 */
void train_step_case_init(train_step_case *l, const invar_model *model,
                          const invar_rl_samples *samples, const invar_device *dev);

/* Sets the chosen experts of the samples, mostly to others than the model chooses. */
void train_step_case_route(invar_rl_samples *samples, const invar_model *model);

/*
 * Runs the step of one rank on its partition of the model; `layout` is NULL for a single rank. The
 * caller frees out->grads.
 */
invar_status train_step_case_step(outcome *out, const train_step_case *l,
                                  const invar_layout *layout, const invar_model *model,
                                  const invar_device *dev);

/*
 * Compares the result with l->expected, that of one rank with the complete model. Returns
 * INVAR_E_MISMATCH if bits differ.
 */
invar_status train_step_case_compare(const outcome *is, const train_step_case *l,
                                     const invar_model *model, int rank);

#endif
