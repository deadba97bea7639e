/*
 * judge.c - rewards of samples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/source/judge.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/config/config.h"

#include "base/invar_banned.h"

invar_status invar_judge_attach(invar_plugin **out, const invar_recipe *recipe, bool stored)
{
    const char *path = invar_recipe_string(recipe, INVAR_KEY_CUSTOM_RM_PATH);
    bool groups = invar_recipe_bool(recipe, INVAR_KEY_GROUP_RM);
    invar_plugin_options o = {.name = "custom-rm-path",
                              .spec = stored ? NULL : path,
                              .kinds = groups ? INVAR_PLUGIN_KIND_GROUP_REWARD
                                              : INVAR_PLUGIN_KIND_REWARD,
                              .timeout = (double)invar_recipe_int(recipe, INVAR_KEY_PLUGIN_TIMEOUT),
                              .log_fd = 2};

    *out = NULL;
    return path[0] ? invar_plugin_open(out, &o) : INVAR_OK;
}

invar_status invar_judge_read(invar_judge *out, const invar_recipe *recipe, invar_plugin *plugin,
                              bool eval)
{
    const char *own = eval ? invar_recipe_string(recipe, INVAR_KEY_EVAL_RM_TYPE) : "";
    const char *rule = own[0] ? own : invar_recipe_string(recipe, INVAR_KEY_RM_TYPE);
    const char *key = eval ? invar_recipe_string(recipe, INVAR_KEY_EVAL_REWARD_KEY) : "";

    key = key[0] || own[0] ? key : invar_recipe_string(recipe, INVAR_KEY_REWARD_KEY);
    *out =
        (invar_judge){.plugin = own[0] ? NULL : plugin,
                      .asks = !own[0] && invar_recipe_string(recipe, INVAR_KEY_CUSTOM_RM_PATH)[0],
                      .key = key[0] ? key : NULL};
    return rule[0] ? invar_reward_parse(&out->reward, &out->boxed, rule) : INVAR_OK;
}

/* Moves what the plug-in said into the samples. */
static void take(invar_rl_sample *samples, const double *rewards, invar_reward_parts *parts,
                 int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        samples[i].reward = rewards[i];
        invar_reward_parts_release(&samples[i].parts);
        samples[i].parts = parts[i];
        parts[i] = (invar_reward_parts){NULL, 0};
    }
}

static invar_status ask(invar_plugin *plugin, invar_rl_sample *samples, int64_t count)
{
    invar_reward_parts *parts = NULL;
    double *rewards = NULL;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&rewards, (size_t)count, sizeof *rewards, "rewards"));
    status = invar_alloc((void **)&parts, (size_t)count, sizeof *parts, "parts of rewards");
    if (status == INVAR_OK) {
        memset(parts, 0, (size_t)count * sizeof *parts);
        status = invar_plugin_reward(plugin, samples, count, rewards, parts);
        if (status == INVAR_OK)
            take(samples, rewards, parts, count);
        for (int64_t i = 0; i < count; i++)
            invar_reward_parts_release(&parts[i]);
    }
    invar_free(parts);
    invar_free(rewards);
    return status;
}

invar_status invar_judge_run(const invar_judge *judge, invar_rl_sample *samples, int64_t count)
{
    if (judge->plugin)
        INVAR_TRY(ask(judge->plugin, samples, count));
    for (int64_t i = 0; i < count; i++)
        INVAR_TRY(judge->plugin
                      ? invar_reward_pick(&samples[i], judge->key)
                      : invar_reward_judge(&samples[i], judge->reward, judge->boxed, judge->key));
    return INVAR_OK;
}
