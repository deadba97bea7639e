/*
 * reward_source.h - who gives rewards: a plug-in, or a built-in rule.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_REWARD_SOURCE_H
#define INVAR_ENGINE_SAMPLE_SOURCE_REWARD_SOURCE_H

#include "base/recipe/recipe.h"
#include "engine/ext/plugin.h"
#include "engine/files/data/dataset.h"
#include "engine/rl/reward/reward.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_reward_source {
    invar_plugin *plugin; /* borrowed; NULL: the rule, or another rank has it */
    bool asks;            /* a plug-in gives rewards, */
    bool groups;          /* of whole groups */
    invar_reward reward;
    bool boxed;
    const char *key; /* of the part that is the reward; NULL: none. Borrowed from the recipe */
} invar_reward_source;

/* True when a plug-in gives the rewards of training: custom-rm-path, a server, a script. */
bool invar_reward_source_asks(const invar_recipe *recipe);

/*
 * That plug-in; NULL: none. `stored`: it is not started, its replies come from the ledger. The
 * caller owns *out (invar_plugin_close).
 */
invar_status invar_reward_source_attach(invar_plugin **out, const invar_recipe *recipe,
                                        bool stored) INVAR_MUST_USE;

/* The recipe's for training, or for evaluation, which may have a rule of its own. */
invar_status invar_reward_source_read(invar_reward_source *out, const invar_recipe *recipe,
                                      invar_plugin *plugin, bool eval) INVAR_MUST_USE;

/* True if the sample has or gets a reward: of its leader, of a plug-in or of a rule. */
invar_status invar_reward_source_reaches(bool *out, const invar_reward_source *judge,
                                         const invar_rl_sample *sample) INVAR_MUST_USE;

/* True if it reaches all of them. The rewards of others are 0, and nobody said so. */
invar_status invar_reward_source_reaches_all(bool *out, const invar_reward_source *judge,
                                             const invar_rl_sample *samples,
                                             int64_t count) INVAR_MUST_USE;

/* Prompts of a data set that a run will judge, as far as this is known before the run. */
typedef struct invar_reward_source_reach {
    const char *what; /* name of the data set */
    const char *path; /* of its file, as the recipe names it */
    bool eval;
    int64_t certain;  /* prompts before this one are judged for certain, */
    int64_t possible; /* and none from this one on */
    void (*say)(void *payload, const char *line);
    void *payload;
} invar_reward_source_reach;

/*
 * Returns INVAR_E_INVALID if the metadata of a prompt that is certain to be judged makes its rule
 * fail, whatever the response is. Of the other prompts the first one that fails costs a line.
 * Prompts of plug-ins and of leaders, who may give rewards, are not looked at.
 */
invar_status invar_reward_source_check_data(const invar_recipe *recipe, const invar_dataset *data,
                                            const invar_reward_source_reach *reach) INVAR_MUST_USE;

/* Sets the rewards of samples that have none yet, and their parts where they have some. */
invar_status invar_reward_source_run(const invar_reward_source *judge, invar_rl_sample *samples,
                                     int64_t count) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
