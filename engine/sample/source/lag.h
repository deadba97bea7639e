/*
 * lag.h - which weights draw which token, where rollouts begin before their turn.
 *
 * A rollout is trained on at the tick of its number, and begins `rollouts` ticks before that, or at
 * tick 0. At every tick weights of one version draw: those that as many rollouts were trained into.
 * Each sample gets `segment` tokens a tick, and at the tick of its rollout all that it still needs.
 * So versions are a function of the rollout's number and the token's place, never of a clock.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_LAG_H
#define INVAR_ENGINE_SAMPLE_SOURCE_LAG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_LAG_MAX 64

typedef struct invar_lag {
    int64_t rollouts; /* that are trained on between a rollout's begin and its own turn; 0: none */
    int64_t segment;  /* response tokens of a tick; 0: a response is drawn at its first tick */
} invar_lag;

/* The tick at which a rollout begins. */
int64_t invar_lag_begin(const invar_lag *lag, int64_t rollout);

/* Response tokens that a sample may have after `tick`; INT64_MAX: as many as it takes. */
int64_t invar_lag_goal(const invar_lag *lag, int64_t rollout, int64_t tick);

#ifdef __cplusplus
}
#endif
#endif
