/*
 * lr_schedule.h - learning rate of an optimizer step: warm-up, constant, linear or cosine decay.
 *
 * The schedules are those of Megatron-LM, counted in optimizer steps. With step the number of steps
 * already made, W the warm-up and D the decay:
 *
 *     step <= W, W > 0   init + (lr - init) * step / W
 *     constant           lr
 *     step > D           min_lr
 *     linear             min_lr + (lr - min_lr) * (1 - r),                r = (step - W) / (D - W)
 *     cosine             min_lr + (lr - min_lr) * (0.5 * (cos(pi * r) + 1))
 *
 * The first step of a warm-up therefore has the rate `init`. Formulas are evaluated from left to
 * right in double with invar_cos_f64, multiplication before division, and rounded once to float at
 * the end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_LR_SCHEDULE_H
#define INVAR_ENGINE_TRAIN_LR_SCHEDULE_H

#include <stdint.h>

#include "engine/config/choices.h"

typedef struct invar_lr_schedule {
    invar_decay style;
    double lr;
    double min_lr;
    /* rate of the first warm-up step */
    double warmup_init;
    int64_t warmup_steps;
    /* warm-up included; greater than warmup_steps unless the style is constant */
    int64_t decay_steps;
} invar_lr_schedule;

/* Returns the learning rate after `step` steps have been made. */
float invar_lr_schedule_at(const invar_lr_schedule *schedule, int64_t step);

#endif
