/*
 * gather_points.h - gathers the points that several ranks computed on rank 0.
 *
 * Each data-parallel rank computes its own units, one per round, and samples some sequences of the
 * rollout. Rank 0 adds the points of a round in the order of ranks, which is the order of units, so
 * they are the same as on one rank. Except for invar_gather_points_task, all functions are
 * collective; with one rank they do nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_GATHER_POINTS_H
#define INVAR_ENGINE_RECORD_GATHER_POINTS_H

#include "engine/record/recorder.h"

/*
 * Gathers the points of a rollout; call once before its first step. `world` includes the ranks that
 * only sample.
 */
invar_status invar_gather_points_rollout(invar_recorder *recorder,
                                         const invar_layout *world) INVAR_MUST_USE;

/* Gathers the points of a training round; call after every round that is recorded. */
invar_status invar_gather_points_learned(invar_recorder *recorder) INVAR_MUST_USE;

/*
 * Pipeline stages: invar_gather_points_task stores what this stage has shown since the last call as
 * points of `round`, locally. invar_gather_points_stages gathers the listings and tasks of all
 * stages at the end, and rank 0 defines the points and adds the tasks; it is collective.
 */
invar_status invar_gather_points_task(invar_recorder *recorder, int64_t round) INVAR_MUST_USE;
invar_status invar_gather_points_stages(invar_recorder *recorder) INVAR_MUST_USE;

#endif
