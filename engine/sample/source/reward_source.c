/*
 * reward_source.c - selects the reward plug-in or rule of a recipe and computes rewards with it.
 *
 * rm-type names a built-in rule, or an external source that runs as a plug-in (a server at rm-url,
 * or the embedded math-verify script); custom-rm-path names a plug-in directly. A reward that a
 * plug-in has already given to a multi-turn or agent sample is never replaced.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/reward_source.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/minmax.h"
#include "engine/config/config.h"
#include "engine/ext/embedded_script.h"

#include "base/invar_banned.h"

/* *out = rule with this name in a recipe; INVAR_REWARD_NONE for an empty name. */
static invar_status parse_rule(invar_reward *out, bool *boxed_out, const char *word)
{
    *out = INVAR_REWARD_NONE;
    *boxed_out = false;
    return word[0] ? invar_reward_parse(out, boxed_out, word) : INVAR_OK;
}

bool invar_reward_source_is_plugin(const invar_config *config)
{
    invar_reward rule;
    bool boxed;
    invar_status status = parse_rule(&rule, &boxed, config->rm_type);

    INVAR_CHECK(status == INVAR_OK); // the recipe is checked
    return config->custom_rm_path[0] || invar_reward_is_external(rule);
}

/* Opens the embedded script that computes rewards with the Python package math-verify. */
static invar_status open_script(invar_plugin **out, invar_plugin_options *o)
{
    char *command;
    invar_status status;

    INVAR_TRY(invar_embedded_script_command(&command, "math_verify.py"));
    o->spec = command;
    o->identify_by_title = true;
    status = invar_plugin_open(out, o);
    invar_free(command);
    return status;
}

invar_status invar_reward_source_attach(invar_plugin **out, const invar_config *config, bool stored)
{
    const char *path = config->custom_rm_path;
    const char *url = config->rm_url;
    invar_plugin_options o = {.kinds = config->group_rm ? INVAR_PLUGIN_KIND_GROUP_REWARD
                                                        : INVAR_PLUGIN_KIND_REWARD,
                              .timeout = (double)config->plugin_timeout,
                              .restarts = config->max_restarts,
                              .log_fd = 2};

    *out = NULL;
    if (!invar_reward_source_is_plugin(config))
        return INVAR_OK;
    o.name = path[0] ? "custom-rm-path" : url[0] ? "rm-url" : "math_verify";
    if (stored)
        return invar_plugin_open(out, &o);
    o.spec = path[0] ? path : NULL;
    o.url = url[0] ? url : NULL;
    return path[0] || url[0] ? invar_plugin_open(out, &o) : open_script(out, &o);
}

invar_status invar_reward_source_read(invar_reward_source *out, const invar_config *config,
                                      invar_plugin *plugin, bool eval)
{
    const char *own = eval ? config->eval_rm_type : "";
    const char *rule = own[0] ? own : config->rm_type;
    const char *key = eval ? config->eval_reward_key : "";

    key = key[0] || own[0] ? key : config->reward_key;
    *out = (invar_reward_source){.key = key[0] ? key : NULL};
    INVAR_TRY(parse_rule(&out->reward, &out->boxed, rule));
    out->is_plugin =
        own[0] ? invar_reward_is_external(out->reward) : invar_reward_source_is_plugin(config);
    out->groups = out->is_plugin && config->group_rm;
    out->plugin = out->is_plugin ? plugin : NULL;
    return INVAR_OK;
}

invar_status invar_reward_source_has_reward(bool *out, const invar_reward_source *source,
                                            const invar_rl_sample *sample)
{
    *out = sample->has_plugin_reward || source->is_plugin;
    return *out ? INVAR_OK : invar_reward_has_function(out, source->reward, sample);
}

invar_status invar_reward_source_has_all_rewards(bool *out, const invar_reward_source *source,
                                                 const invar_rl_sample *samples, int64_t count)
{
    *out = true;
    for (int64_t i = 0; i < count && *out; i++)
        INVAR_TRY(invar_reward_source_has_reward(out, source, &samples[i]));
    return INVAR_OK;
}

/* Writes "FILE:LINE: " for a message; nothing for a built-in task. */
static void format_location(char *out, size_t size, const char *path, int64_t line)
{
    const char *slice = strstr(path, "@[");
    char file[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];

    out[0] = '\0';
    if (strncmp(path, "task:", 5) == 0)
        return;
    (void)snprintf(file, sizeof file, "%.*s", slice ? (int)(slice - path) : INT_MAX, path);
    invar_path_show(shown, file);
    (void)snprintf(out, size, "%s:%" PRId64 ": ", shown, line + 1);
}

static invar_status check_prompt(const invar_reward_source *judge, const invar_prompt *prompt,
                                 int64_t i, const invar_reward_source_reach *reach)
{
    const invar_rl_sample sample = {
        .index = i, .data.label = prompt->label, .data.metadata = prompt->metadata};
    char message[1024], place[INVAR_PATH_SHOWN_SIZE + 24];
    double reward;
    invar_status status = invar_reward_of(&reward, judge->reward, judge->boxed, &sample);

    if (status != INVAR_E_INVALID)
        return status;
    (void)snprintf(message, sizeof message, "%.1000s", invar_error_last()->message);
    format_location(place, sizeof place, reach->path, prompt->line);
    return INVAR_FAIL(status, 0, "%sprompt %" PRId64 " of %s%s: %s", place, i, reach->what,
                      strcmp(prompt->metadata, "{}") == 0 ? " has no metadata (metadata-key)" : "",
                      message);
}

static void print_warning(const invar_reward_source_reach *reach)
{
    char line[2500];

    (void)snprintf(line, sizeof line, "warning: the run fails if it reads this prompt: %.2400s",
                   invar_error_last()->message);
    invar_error_clear();
    reach->on_warning(reach->payload, line);
}

invar_status invar_reward_source_check_data(const invar_config *config, const invar_dataset *data,
                                            const invar_reward_source_reach *reach)
{
    const int64_t end = invar_min_i64(invar_dataset_size(data), reach->possible);
    invar_status status = INVAR_OK;
    invar_reward_source judge;
    int64_t i = 0;

    INVAR_TRY(invar_reward_source_read(&judge, config, NULL, reach->eval));
    if (judge.is_plugin || config->custom_generate_function_path[0] || config->custom_agent_path[0])
        return INVAR_OK;
    for (; i < end && status == INVAR_OK; i++)
        status = check_prompt(&judge, invar_dataset_prompt(data, i), i, reach);
    if (status != INVAR_E_INVALID || i <= reach->certain)
        return status;
    print_warning(reach);
    return INVAR_OK;
}

/* Moves rewards and parts of the plug-in into samples that have no plug-in reward yet. */
static void store_rewards(invar_rl_sample *samples, const double *rewards,
                          invar_reward_parts *parts, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (samples[i].has_plugin_reward)
            continue;
        samples[i].reward = rewards[i];
        invar_reward_parts_release(&samples[i].parts);
        samples[i].parts = parts[i];
        parts[i] = (invar_reward_parts){NULL, 0};
    }
}

static invar_status query_plugin(invar_plugin *plugin, invar_rl_sample *samples, int64_t count)
{
    invar_reward_parts *parts = NULL;
    double *rewards = NULL;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(rewards, (size_t)count, "rewards"));
    status = INVAR_ALLOC(parts, (size_t)count, "parts of rewards");
    if (status == INVAR_OK) {
        memset(parts, 0, (size_t)count * sizeof *parts);
        status = invar_plugin_reward(plugin, samples, count, rewards, parts);
        if (status == INVAR_OK)
            store_rewards(samples, rewards, parts, count);
        for (int64_t i = 0; i < count; i++)
            invar_reward_parts_release(&parts[i]);
    }
    invar_free(parts);
    invar_free(rewards);
    return status;
}

invar_status invar_reward_source_run(const invar_reward_source *source, invar_rl_sample *samples,
                                     int64_t count)
{
    if (source->plugin)
        INVAR_TRY(query_plugin(source->plugin, samples, count));
    for (int64_t i = 0; i < count; i++)
        if (!samples[i].has_plugin_reward)
            INVAR_TRY(source->plugin ? invar_reward_select_part(&samples[i], source->key)
                                     : invar_reward_compute(&samples[i], source->reward,
                                                            source->boxed, source->key));
    return INVAR_OK;
}
