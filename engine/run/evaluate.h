/*
 * evaluate.h - evaluates the actor on every evaluation set of a recipe.
 *
 * Random draws of an evaluation have their own purpose and the number of the coming rollout, so
 * they never repeat those of training and never influence them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_EVALUATE_H
#define INVAR_ENGINE_RUN_EVALUATE_H

#include "engine/ranks/layout/layout.h"
#include "engine/run/context/run_context.h"
#include "engine/sample/agent/agent_runner.h"
#include "engine/sample/source/multi_turn.h"
#include "engine/sample/source/reward_source.h"

typedef struct invar_evaluation {
    const invar_layout *layout; /* layout of the ranks that evaluate together; NULL for one rank */
    const invar_run_context *session;
    invar_rollout *rollout;
    invar_plugin *plugin; /* plug-in that computes rewards; NULL if rules do, or if another
                             rank has it */
    invar_plugin *turns;  /* plug-in that leads multi-turn samples; NULL if unused, or if
                             another rank has it */
    invar_agents *agents; /* agents that lead samples; NULL if unused, or if another rank has
                             them */
    bool no_agents;       /* agents cannot be called: skip the sets that they would lead */
    invar_digest weights; /* digest of the actor's weights, passed to agents */
    int64_t number;       /* number of the coming rollout */
    /* Called with the results of each set: truncated ratio and response length; eval/NAME and
       pass@k if every sample has a reward. */
    invar_status (*take)(void *payload, const char *set, const invar_ledger_metric *results,
                         size_t count);
    /* Called with the samples of each set, before `take`; may be NULL. */
    invar_status (*look)(void *payload, const char *set, const invar_rl_samples *samples);
    void *payload;
} invar_evaluation;

/*
 * Reads eval-config into the session. Call before the other functions. The file is read once, so
 * that an edit during a run changes nothing. Returns INVAR_E_INVALID if a set asks for samples that
 * the model cannot have.
 */
invar_status invar_evaluate_read_sets(invar_run_context *session) INVAR_MUST_USE;

/*
 * Sets the largest values over all sets that memory depends on: samples per prompt, response length
 * and sampling parameters (seen->sampling). Reads no data.
 */
invar_status invar_evaluate_measure(invar_data_lengths *seen,
                                    const invar_run_context *session) INVAR_MUST_USE;

/* Samples and rewards every set, and reports each through `take`. Collective. */
invar_status invar_evaluate(const invar_evaluation *evaluation) INVAR_MUST_USE;

/*
 * *out = digest of all sets with their names, and with their settings if eval-config has them: what
 * their results depend on besides the weights. Also measures the lengths of their data.
 */
invar_status invar_evaluate_hash(invar_digest *out, invar_data_lengths *seen,
                                 const invar_run_context *session) INVAR_MUST_USE;

/* Calls invar_reward_source_check_data for each set; reads the sets. */
invar_status invar_evaluate_check(const invar_run_context *session,
                                  const invar_reward_source_reach *reach) INVAR_MUST_USE;

#endif
