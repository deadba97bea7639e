/*
 * gather_points.h - points that several ranks have computed: they become rank 0's, as if it had
 * been one.
 *
 * Every rank computes units of its own, one a round, and samples some sequences of the rollout.
 * Rank 0 takes the units of a round in their order, which is that of ranks. Calls of all ranks; of
 * one alone nothing happens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_GATHER_POINTS_H
#define INVAR_ENGINE_RECORD_GATHER_POINTS_H

#include "engine/record/recorder.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Once a rollout, before its first step; `world` has those that only sample, too. */
invar_status invar_gather_points_rollout(invar_recorder *recorder,
                                         const invar_layout *world) INVAR_MUST_USE;

/* After every round of learning that is watched. */
invar_status invar_gather_points_learned(invar_recorder *recorder) INVAR_MUST_USE;

/*
 * Of a stage of a pipeline: what it has shown since the last time is of this round, which stays
 * here. When all tasks are done, rank 0 takes those of all stages: a call of all ranks.
 */
invar_status invar_gather_points_task(invar_recorder *recorder, int64_t round) INVAR_MUST_USE;
invar_status invar_gather_points_stages(invar_recorder *recorder) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
