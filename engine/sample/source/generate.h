/*
 * generate.h - samples that are generated and judged, by all ranks of a run together.
 *
 * A sample depends on the weights, its prompt and its coordinates alone. So each rank, or each
 * engine where only some ranks sample, generates neighbours, whole groups where there are enough,
 * and afterwards every rank has all samples in order. Rules give rewards where a sample was
 * generated; a plug-in is asked by rank 0, of all of them at once, as with one rank. Where a
 * plug-in leads samples turn by turn, engine/sample/source/multi_turn.h says how. Agents are rank
 * 0's, which generates all that they lead.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_GENERATE_H
#define INVAR_ENGINE_SAMPLE_SOURCE_GENERATE_H

#include "engine/ranks/layout/layout.h"
#include "engine/sample/agent/agent_runner.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/sample/source/multi_turn.h"
#include "engine/sample/source/reward_source.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Who does it, and how. All is borrowed. */
struct invar_generate_args {
    const invar_layout *layout; /* NULL: one rank */
    invar_rollout *rollout;     /* NULL: others sample */
    const invar_sampling_params *sampling;
    const invar_reward_source *judge;
    const invar_multi_turn
        *turns;           /* NULL: a sample is one turn, and nobody is asked what follows */
    bool agents_lead;     /* samples, by themselves */
    invar_agents *agents; /* who they are; NULL: there are none, or rank 0 has them */
    bool judged;          /* with agents: every sample needs a reward */
    bool evaluation;      /* nothing learns from the samples */
    int64_t per_prompt;   /* samples of a group */
    bool no_collectives;  /* a thread beside the rank's own: it talks to no other rank */
    /* As of invar_rollout_run, of this rank's samples. */
    invar_status (*tick)(void *payload, int64_t samples_done, int64_t tokens_done);
    void *payload;
    /* Asked after each pass: true leaves all samples where they are (invar_rollout_suspend). */
    bool (*should_suspend)(void *clock, int64_t samples_done); /* NULL: never */
    void *clock;
};

/*
 * Goes on with this rank's share of samples [0, count) as invar_rollout_run does. Samples that a
 * plug-in or agents lead end in it, on all ranks, which call it together, and have their rewards.
 * After a failure the samples are fit for release only.
 */
invar_status invar_generate_share(const invar_generate_args *how, invar_rl_sample *samples,
                                  int64_t count) INVAR_MUST_USE;

/* A call of all ranks: each has the shares of all, whenever they were generated. */
invar_status invar_generate_gather(const invar_generate_args *how, invar_rl_sample *samples,
                                   int64_t count) INVAR_MUST_USE;

/* A call of all ranks: rewards of samples that have ended, where they have none of a plug-in's. */
invar_status invar_generate_rewards(const invar_generate_args *how, invar_rl_sample *samples,
                                    int64_t count) INVAR_MUST_USE;

/* All of it, of samples that are to end. */
invar_status invar_generate(const invar_generate_args *how, invar_rl_sample *samples,
                            int64_t count) INVAR_MUST_USE;

/*
 * ---- for multi_turn.c
 * -----------------------------------------------------------------------------
 */

/* Calls of all ranks. Tokens without rewards; */
invar_status invar_generate_turn(const invar_generate_args *how, invar_rl_sample *samples,
                                 int64_t count) INVAR_MUST_USE;

/* rewards of samples that every rank has. */
invar_status invar_generate_judge(const invar_generate_args *how, invar_rl_sample *samples,
                                  int64_t count) INVAR_MUST_USE;

/* Is sample i asked about? One without a reward; who judges groups sees all of a group in which one
   has none. */
bool invar_generate_is_judged(const invar_generate_args *how, const invar_rl_sample *samples,
                              int64_t count, int64_t i);

/* Of a sample that its leader, a plug-in or an agent, has not rewarded: INVAR_E_CORRUPT where
   nobody does, neither the recipe nor the line of the data. */
invar_status invar_generate_check_judge(const invar_generate_args *how,
                                        const invar_rl_sample *sample,
                                        const char *leader) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
