/*
 * generate.h - generates samples and their rewards on all ranks of a run together.
 *
 * A sample depends only on the weights, its prompt and its random coordinates. So each engine (a
 * group of ranks that sample together) samples a range of the samples, whole groups if there are
 * enough, and afterwards every rank has all samples in order. Built-in reward rules run on every
 * rank. A reward plug-in is asked by rank 0, for all samples at once, as with one rank. Multi-turn
 * samples are driven by a plug-in (engine/sample/source/multi_turn.h); samples of agents are
 * sampled by rank 0.
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

/* Arguments shared by the functions of this file. Everything they point to is borrowed. */
struct invar_generate_args {
    const invar_layout *layout; /* NULL for one rank */
    invar_rollout *rollout;     /* NULL if this rank does not sample */
    invar_sampling_params sampling;
    invar_reward_source reward_source;
    invar_multi_turn turns; /* not enabled for single-turn samples */
    bool agents_lead;       /* agents drive the samples (custom-agent-path) */
    invar_agents *agents;   /* NULL without agents, and on ranks other than 0 */
    bool needs_reward;   /* every sample needs a reward, if a plug-in or agents drive the samples */
    bool evaluation;     /* the samples are not trained on */
    int64_t per_prompt;  /* samples of a group */
    bool no_collectives; /* the caller is the sampling thread: send no heartbeats to other ranks */
    /* called after each pass, as by invar_rollout_run, for the samples of this rank; once, with
       zeros, on a rank that samples none; or NULL */
    invar_rollout_tick *tick;
    void *payload;
    /* called after each pass; true suspends all samples (invar_rollout_suspend); or NULL */
    bool (*should_suspend)(void *clock, int64_t samples_done);
    void *suspend_payload; /* first argument of should_suspend */
};

/*
 * Samples this rank's share of samples[0, count), as invar_rollout_run does. If a plug-in or agents
 * drive the samples, it is collective: all samples finish on all ranks and get their rewards. After
 * a failure the samples can only be released.
 */
invar_status invar_generate_share(const invar_generate_args *how, invar_rl_sample *samples,
                                  int64_t count) INVAR_MUST_USE;

/* Gathers the shares of all ranks, so that every rank has all samples. Collective. */
invar_status invar_generate_gather(const invar_generate_args *how, invar_rl_sample *samples,
                                   int64_t count) INVAR_MUST_USE;

/* Sets the rewards of finished samples that have none from a plug-in. Collective. */
invar_status invar_generate_rewards(const invar_generate_args *how, invar_rl_sample *samples,
                                    int64_t count) INVAR_MUST_USE;

/* Runs share, gather and rewards for samples that shall finish. Collective. */
invar_status invar_generate(const invar_generate_args *how, invar_rl_sample *samples,
                            int64_t count) INVAR_MUST_USE;

/* ---- private to multi_turn.c ----------------------------------------------------------------- */

/* Samples and gathers one turn, without rewards. Collective. */
invar_status invar_generate_turn(const invar_generate_args *how, invar_rl_sample *samples,
                                 int64_t count) INVAR_MUST_USE;

/* Sets the rewards of samples that every rank has. Collective. */
invar_status invar_generate_all_rewards(const invar_generate_args *how, invar_rl_sample *samples,
                                        int64_t count) INVAR_MUST_USE;

/*
 * Returns true if the reward source must see sample i: one without a plug-in reward, or, if rewards
 * are computed per group, any sample of a group that has such a sample.
 */
bool invar_generate_needs_reward(const invar_generate_args *how, const invar_rl_sample *samples,
                                 int64_t count, int64_t i);

/*
 * Checks a sample that `leader`, the plug-in or agent that drives it, has not rewarded. Returns
 * INVAR_E_CORRUPT if neither the recipe nor the metadata of its prompt names a reward for it.
 */
invar_status invar_generate_check_has_reward(const invar_generate_args *how,
                                             const invar_rl_sample *sample,
                                             const char *leader) INVAR_MUST_USE;

#endif
