/*
 * evaluate.h - how good weights are: every evaluation set of a recipe, sampled and judged.
 *
 * The draws of an evaluation have a purpose of their own and the number of the coming rollout, so
 * they never repeat those of training and never move them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_EVALUATE_H
#define INVAR_ENGINE_RUN_EVALUATE_H

#include "engine/ranks/layout/layout.h"
#include "engine/run/memory_workload.h"
#include "engine/sample/agent/agent_runner.h"
#include "engine/sample/source/multi_turn.h"
#include "engine/sample/source/reward_source.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_evaluation {
    const invar_layout *layout; /* whose ranks evaluate together; NULL: one rank */
    const invar_run_context *session;
    invar_rollout *rollout;
    invar_plugin *plugin; /* that gives rewards; NULL: rules do, or another rank has it */
    invar_plugin *turns;  /* that leads samples; NULL: none does, or another rank has it */
    invar_agents *agents; /* that lead them; NULL: none do, or another rank has them */
    bool no_agents;       /* there are none to ask: sets that they would lead are left out */
    invar_digest weights; /* of the actor, as agents are told */
    int64_t number;       /* of the coming rollout */
    /* Told of each set: truncated ratio and response length; eval/NAME and pass@k if each sample
       has a reward. */
    invar_status (*take)(void *payload, const char *set, const invar_ledger_metric *results,
                         size_t count);
    /* Shown the samples of each set before; NULL: nobody looks. */
    invar_status (*look)(void *payload, const char *set, const invar_rl_samples *samples);
    void *payload;
} invar_evaluation;

/*
 * Before the others: what eval-config says. The file is read once, so that an edit during a run
 * changes nothing. INVAR_E_INVALID: a set asks for samples that the model cannot have.
 */
invar_status invar_evaluate_read_sets(invar_run_context *session) INVAR_MUST_USE;

/*
 * What of all sets takes most memory: samples of a prompt, the longest response, and ways of
 * sampling (seen->sampling). Reads no data.
 */
invar_status invar_evaluate_measure(invar_data_lengths *seen,
                                    const invar_run_context *session) INVAR_MUST_USE;

invar_status invar_evaluate(const invar_evaluation *evaluation) INVAR_MUST_USE;

/*
 * The digest of all sets, each with its name, and with its settings where eval-config has them:
 * what their results depend on beside the weights.
 */
invar_status invar_evaluate_hash(invar_digest *out, invar_data_lengths *seen,
                                 const invar_run_context *session) INVAR_MUST_USE;

/* invar_reward_source_check_data of each set, which is read for it. */
invar_status invar_evaluate_check(const invar_run_context *session,
                                  const invar_reward_source_reach *reach) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
