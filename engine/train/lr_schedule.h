/*
 * lr_schedule.h - the learning rate of an optimizer step.
 *
 * Megatron-LM's schedules, counted in optimizer steps. With step the number of steps already made,
 * W the warm-up and D the decay:
 *
 *     step <= W, W > 0   init + (lr - init) * step / W
 *     constant           lr
 *     step > D           min_lr
 *     linear             min_lr + (lr - min_lr) * (1 - r),                r = (step - W) / (D - W)
 *     cosine             min_lr + (lr - min_lr) * (0.5 * (cos(pi * r) + 1))
 *
 * So the first step of a warm-up has `init`. Evaluated from left to right in double with
 * invar_cos_f64, multiplication before division, rounded once to float at the end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_LR_SCHEDULE_H
#define INVAR_ENGINE_TRAIN_LR_SCHEDULE_H

#include <stdint.h>

#include "engine/config/choices.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_lr_schedule {
    invar_decay style;
    double lr;
    double min_lr;
    double warmup_init;
    int64_t warmup_steps;
    int64_t decay_steps; /* the warm-up included; above it unless the style is constant */
} invar_lr_schedule;

float invar_lr_schedule_at(const invar_lr_schedule *schedule, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
