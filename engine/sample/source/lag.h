/*
 * lag.h - declared asynchronous schedule: which weight version samples which token.
 *
 * Rollout r is trained on at tick r and begins at tick max(0, r - rollouts). At tick v the weights
 * after v trained rollouts sample. Each sample gets `segment` tokens per tick, and at the tick of
 * its rollout all tokens that it still needs. So the version that samples a token is a function of
 * rollout and token position, and never of a clock.
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
    int64_t rollouts; /* ticks by which a rollout begins early; 0 for synchronous sampling */
    int64_t segment;  /* response tokens per tick; 0 to sample a response in its first tick */
} invar_lag;

/* Returns the tick at which a rollout begins. */
int64_t invar_lag_begin(const invar_lag *lag, int64_t rollout);

/*
 * Returns the number of response tokens that a sample may have after `tick`; INT64_MAX for no
 * limit.
 */
int64_t invar_lag_goal(const invar_lag *lag, int64_t rollout, int64_t tick);

#ifdef __cplusplus
}
#endif
#endif
