/*
 * lr_schedule.c - learning rate of an optimizer step, in double and rounded once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/lr_schedule.h"

#include "kernels-deterministic/math/elementary_f64.h"

#include "base/invar_banned.h"

static double lr_in_double(const invar_lr_schedule *s, int64_t step)
{
    double ratio, share;

    if (s->warmup_steps > 0 && step <= s->warmup_steps)
        return s->warmup_init + (s->lr - s->warmup_init) * (double)step / (double)s->warmup_steps;
    if (s->style == INVAR_DECAY_CONSTANT)
        return s->lr;
    if (step > s->decay_steps)
        return s->min_lr;
    ratio = (double)(step - s->warmup_steps) / (double)(s->decay_steps - s->warmup_steps);
    share = s->style == INVAR_DECAY_LINEAR
                ? 1.0 - ratio
                : 0.5 * (invar_cos_f64(0x1.921fb54442d18p1 * ratio) + 1.0);
    return s->min_lr + (s->lr - s->min_lr) * share;
}

float invar_lr_schedule_at(const invar_lr_schedule *schedule, int64_t step)
{
    return (float)lr_in_double(schedule, step);
}
