/*
 * reward_source.h - computes the rewards of samples, by a plug-in or by a built-in rule.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_REWARD_SOURCE_H
#define INVAR_ENGINE_SAMPLE_SOURCE_REWARD_SOURCE_H

#include "engine/config/config.h"
#include "engine/ext/plugin.h"
#include "engine/files/data/dataset.h"
#include "engine/rl/reward/reward.h"

/* Source of the rewards of a run: a plug-in or a built-in rule. */
typedef struct invar_reward_source {
    invar_plugin *plugin; /* borrowed; NULL for a rule, and on ranks that do not run the plug-in */
    bool is_plugin;       /* a plug-in computes the rewards */
    bool groups;          /* the plug-in gets complete groups */
    invar_reward reward;  /* built-in rule, unless metadata.rm_type of a sample names another */
    bool boxed;           /* the rule reads the last \boxed{} of the response */
    const char *key;      /* name of the reward part that becomes the reward; NULL if no part does;
                             borrowed from the recipe */
} invar_reward_source;

/* Returns true if training rewards come from a plug-in: custom-rm-path, a server or a script. */
bool invar_reward_source_is_plugin(const invar_config *config);

/*
 * Opens the reward plug-in that the recipe names; *out = NULL if it names none. With `stored` the
 * plug-in is not started, because its replies come from the ledger. The caller closes *out with
 * invar_plugin_close.
 */
invar_status invar_reward_source_attach(invar_plugin **out, const invar_config *config,
                                        bool stored) INVAR_MUST_USE;

/*
 * Reads the reward source of training, or with `eval` that of evaluation, which may have other
 * keys.
 */
invar_status invar_reward_source_read(invar_reward_source *out, const invar_config *config,
                                      invar_plugin *plugin, bool eval) INVAR_MUST_USE;

/* *out = true if the sample has a plug-in reward, or gets a reward from a plug-in or a rule. */
invar_status invar_reward_source_has_reward(bool *out, const invar_reward_source *source,
                                            const invar_rl_sample *sample) INVAR_MUST_USE;

/*
 * *out = true if every sample has or gets a reward. Samples without one have the default reward 0.
 */
invar_status invar_reward_source_has_all_rewards(bool *out, const invar_reward_source *source,
                                                 const invar_rl_sample *samples,
                                                 int64_t count) INVAR_MUST_USE;

/* Prompts of a data set that a run will use, as far as this is known before the run. */
typedef struct invar_reward_source_reach {
    const char *what; /* name of the data set, for messages */
    const char *path; /* path of the data set, as the recipe names it */
    bool eval;        /* it is a data set of evaluation */
    int64_t certain;  /* prompts [0, certain) are used in any case */
    int64_t possible; /* prompts from here on are never used */
    void (*on_warning)(void *payload, const char *line); /* prints a warning */
    void *payload;
} invar_reward_source_reach;

/*
 * Checks prompts against the reward rule before a run. Returns INVAR_E_INVALID if the metadata of a
 * prompt in [0, certain) makes its rule fail for any response; prints a warning for the first such
 * prompt in [certain, possible). Checks nothing if a plug-in or agent may give the rewards.
 */
invar_status invar_reward_source_check_data(const invar_config *config, const invar_dataset *data,
                                            const invar_reward_source_reach *reach) INVAR_MUST_USE;

/* Sets reward and reward parts of all samples without a plug-in reward. */
invar_status invar_reward_source_run(const invar_reward_source *source, invar_rl_sample *samples,
                                     int64_t count) INVAR_MUST_USE;

#endif
