/*
 * sample_schedule.h - which weight version samples which token, and when training may start.
 *
 * Rollout r is trained on at tick r and begins at tick max(0, r - lag). At tick v the weights after
 * v trained rollouts sample. With the declared schedule, each sample gets `segment` tokens per
 * tick, and at the tick of its rollout all tokens that it still needs. So the version that samples
 * a token is a function of rollout and token position, and never of a clock. With a recorded
 * schedule the log decides (recorded_schedule.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_SAMPLE_SCHEDULE_H
#define INVAR_ENGINE_SAMPLE_SOURCE_SAMPLE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#define INVAR_LAG_MAX 64

/* When samples of later rollouts get tokens from the current weights. */
typedef enum invar_ahead_phase {
    INVAR_AHEAD_WITH_BATCH,  /* together with the samples of the current rollout */
    INVAR_AHEAD_AFTER_BATCH, /* in a phase of their own, before training */
    INVAR_AHEAD_ON_RANKS,    /* during training, on ranks that only sample */
    INVAR_AHEAD_IN_THREAD    /* during training, in a thread */
} invar_ahead_phase;

typedef struct invar_sample_schedule {
    int64_t lag;         /* ticks by which a rollout begins early; 0 for synchronous sampling */
    int64_t segment;     /* response tokens per tick; 0 to sample a response in its first tick */
    bool recorded;       /* rollout-schedule = recorded: groups are trained on as soon as they are
                          complete, or as a record says */
    int64_t max_delay;   /* rollouts by which a group may be late, with `recorded` */
    bool surplus;        /* groups beyond the batch are kept for the next rollout */
    bool inherited;      /* the run began with in-flight samples of another run */
    bool compares;       /* log-probs of sampling and scoring must be equal and are compared */
    bool sampler_scores; /* the sampler can score its own in-flight samples */
    invar_ahead_phase ahead;
} invar_sample_schedule;

/* True if samples of older weights are trained on. */
static inline bool invar_sample_schedule_off_policy(const invar_sample_schedule *s)
{
    return s->lag > 0 || s->surplus || s->inherited;
}

/* True if in-flight samples are scored before the weights change. */
static inline bool invar_sample_schedule_checks(const invar_sample_schedule *s)
{
    return s->compares && invar_sample_schedule_off_policy(s);
}

/* True if the sampler scores its own in-flight samples; else the trainer does. */
static inline bool invar_sample_schedule_sampler_checks(const invar_sample_schedule *s)
{
    return s->compares && s->lag > 0 && s->sampler_scores;
}

/* Returns the tick at which a rollout begins. */
int64_t invar_sample_schedule_begin(const invar_sample_schedule *schedule, int64_t rollout);

/*
 * Returns the number of response tokens that a sample may have after `tick`; INT64_MAX for no
 * limit.
 */
int64_t invar_sample_schedule_goal(const invar_sample_schedule *schedule, int64_t rollout,
                                   int64_t tick);

#endif
