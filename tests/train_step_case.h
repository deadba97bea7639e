/*
 * train_step_case.h - a step of learning with scores before it, and what it came to: by one rank or
 * by one of several, which must come to the same.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_TRAIN_STEP_CASE_H
#define INVAR_TESTS_TRAIN_STEP_CASE_H

#include "engine/rl/loss.h"
#include "engine/train/trainer.h"
#include "tests/model.h"

enum { SAMPLES = 7, MOST = 256, METRICS = 48 };

/* What ranks share; nobody changes it while they run. */
typedef struct lesson {
    invar_device near, far;
    bool has_far; /* a rank may have its model there */
    const invar_model *model;
    const invar_rl_samples *samples;
    invar_trainer_options options;
    invar_rl_options rl;
    invar_rl_batch batch;
    int64_t start[SAMPLES + 1], group[SAMPLES];
    uint8_t mask[MOST];
    float reward[SAMPLES], old[MOST], ref[MOST], advantage[MOST], values[MOST];
    size_t bucket;
    bool led;    /* one rank computes the loss for all */
    int failing; /* the rank whose loss fails; -1: none */
    int only;    /* sample with gradients, those of others are zeros; -1: all have some */
    const struct outcome *expected;
} lesson;

typedef struct outcome {
    float scores[MOST], entropies[MOST];
    float now[MOST], entropy[MOST]; /* of training */
    invar_loss_metric metrics[METRICS];
    size_t n_metrics;
    invar_trainer_result result;
    void *grads;
    size_t bytes;
} outcome;

/* Samples and what a loss needs besides; the model and they are borrowed. */
void lesson_init(lesson *l, const invar_model *model, const invar_rl_samples *samples,
                 const invar_device *dev);

/* Samples say which experts were chosen, others than the model's choice for the most part. */
void lesson_route(invar_rl_samples *samples, const invar_model *model);

/* One rank's, with its part of the model; layout NULL: the only one. free(out->grads). */
invar_status lesson_step(outcome *out, const lesson *l, const invar_layout *layout,
                         const invar_model *model, const invar_device *dev);

/* INVAR_E_MISMATCH: other bits than one rank came to with all of the model, l->expected. */
invar_status lesson_compare(const outcome *is, const lesson *l, const invar_model *model, int rank);

#endif
