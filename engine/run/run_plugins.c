/*
 * run_plugins.c - attaches the plug-ins of a run and begins their steps.
 *
 * At the beginning of a step, a plug-in gets the recorded replies if the ledger has the step
 * already, or if the run is a replay. Agents can get their sessions from the ledger of another run
 * (agent-record). Hooks are called again in a step that the ledger has, but their recorded replies
 * count.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/run_plugins.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "engine/config/config.h"
#include "engine/ext/plugin_command.h"
#include "engine/sample/agent/agent_server.h"
#include "engine/sample/source/recorded_schedule.h"
#include "engine/sample/source/reward_source.h"

#include "base/invar_banned.h"

#define TEACHER_KEY_VARIABLE "INVAR_TEACHER_API_KEY"

static const uint32_t kinds[INVAR_PLUGINS] = {
#define INVAR_PLUGIN_ROLE(ID, key, field, kind) [INVAR_RUN_PLUGINS_##ID] = INVAR_PLUGIN_KIND_##kind,
#include "engine/ext/kinds.def"
#undef INVAR_PLUGIN_ROLE
};

/* Returns the key that names the plug-in of a role, and its value. */
static invar_config_text text_of(const invar_config *c, int role)
{
    const invar_config_text texts[INVAR_PLUGINS] = {
#define INVAR_PLUGIN_ROLE(ID, key, field, kind)                                                    \
    [INVAR_RUN_PLUGINS_##ID] = {INVAR_KEY_##key, c->field},
#include "engine/ext/kinds.def"
#undef INVAR_PLUGIN_ROLE
    };

    return texts[role];
}

/* ---- agents of another run ------------------------------------------------------------------- */

typedef struct recorded {
    const char *spec; /* agent-path of this run */
    bool has_agents;  /* the recorded run had agents */
} recorded;

static invar_status take_spec(void *payload, const char *const *columns,
                              const invar_ledger_value *values, int count)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];
    recorded *r = payload;

    (void)columns;
    if (!values)
        return INVAR_OK;
    INVAR_CHECK(count == 1);
    r->has_agents = true;
    if (values[0].type == INVAR_LEDGER_TYPE_TEXT && values[0].bytes == strlen(r->spec) &&
        memcmp(values[0].data, r->spec, values[0].bytes) == 0)
        return INVAR_OK;
    if (values[0].type != INVAR_LEDGER_TYPE_TEXT)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the ledger has a key that is no text: verify it");
    invar_text_quote(quoted, sizeof quoted, values[0].data, values[0].bytes);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "agent-record: its sessions are another agent's: there " INVAR_AGENT_NAME
                      " is '%s'; set the same, or give the record of a run with this one",
                      quoted);
}

/* Fails unless the recorded run had the agents that the recipe names. */
static invar_status check_record(const invar_run_plugins *plugins, const char *spec)
{
    const invar_ledger_argument run = {
        "run", {.type = INVAR_LEDGER_TYPE_INT, .integer = plugins->record_run}};
    recorded r = {.spec = spec};

    INVAR_TRY(invar_ledger_select(
        plugins->record, &(invar_ledger_select_request){
                             .sql = "SELECT value FROM identity WHERE run = :run AND key = "
                                    "'" INVAR_AGENT_NAME "'",
                             .arguments = &run,
                             .n_arguments = 1,
                             .row = take_spec,
                             .payload = &r}));
    if (!r.has_agents)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "agent-record: no agent led that run: it has no " INVAR_AGENT_NAME
                          "; give the record of one that has it");
    return INVAR_OK;
}

/* Opens agent-record: a ledger, or the folder of a run that has one. */
static invar_status open_record(invar_run_plugins *out, const char *path, const char *spec)
{
    char inside[INVAR_PATH_SIZE];
    invar_ledger_summary summary;

    INVAR_TRY(invar_path_join(inside, sizeof inside, path, "ledger.db"));
    INVAR_TRY(invar_ledger_open(&out->record, invar_path_exists(inside) ? inside : path,
                                &(invar_ledger_options){0}));
    INVAR_TRY(invar_ledger_find(&summary, out->record, NULL));
    out->record_run = summary.run;
    return check_record(out, spec);
}

/* ---- attaching ------------------------------------------------------------------------------- */

static const char *token_text(size_t *bytes_out, const void *tokenizer, int32_t token)
{
    return invar_tokenizer_bytes(bytes_out, tokenizer, token);
}

/*
 * Attaches the plug-in of a role, if the recipe names one. Agents are only recorded and replayed
 * here; engine/sample/agent starts them.
 */
static invar_status attach_role(invar_run_plugins *plugins, int role, const invar_config *c,
                                const invar_tokenizer *tokenizer)
{
    const bool agents = role == INVAR_RUN_PLUGINS_AGENTS;
    const invar_config_text plugin = text_of(c, role);
    const invar_remote_teacher_options teacher = {
        .model = c->opd_teacher_name,
        .key = getenv(TEACHER_KEY_VARIABLE),
        .temperature = (double)(float)c->rollout_temperature,
        .words = {token_text, tokenizer, invar_tokenizer_size(tokenizer)}};
    invar_plugin_options o = {.name = invar_config_schema()->keys[plugin.key].name,
                              .kinds = kinds[role],
                              .timeout = (double)c->plugin_timeout,
                              .restarts = c->max_restarts,
                              .record_only = agents,
                              .log_fd = 2};

    if (role == INVAR_RUN_PLUGINS_REWARD)
        return invar_reward_source_attach(&plugins->by_role[role], c, plugins->replay);
    if (!plugin.text[0])
        return INVAR_OK;
    if (agents && c->agent_record[0] && !plugins->replay)
        INVAR_TRY(open_record(plugins, c->agent_record, plugin.text));
    if (role == INVAR_RUN_PLUGINS_TEACHER && !plugins->replay) {
        o.url = plugin.text;
        o.teacher = &teacher;
    } else if (!plugins->replay && !(agents && c->agent_record[0])) {
        o.spec = plugin.text;
    }
    return invar_plugin_open(&plugins->by_role[role], &o);
}

invar_status invar_run_plugins_open(invar_run_plugins *out, const invar_config *c,
                                    const invar_tokenizer *tokenizer, bool replay)
{
    *out = (invar_run_plugins){.replay = replay};
    for (int i = 0; i < INVAR_PLUGINS; i++)
        INVAR_TRY(attach_role(out, i, c, tokenizer));
    return INVAR_OK;
}

invar_status invar_run_plugins_locate(const invar_config *config)
{
    const bool replaced = config->agent_record[0] != '\0';

    for (int i = 0; i < INVAR_PLUGINS; i++) {
        const invar_config_text plugin = text_of(config, i);

        if (i != INVAR_RUN_PLUGINS_TEACHER && plugin.text[0] &&
            !(replaced && i == INVAR_RUN_PLUGINS_AGENTS))
            INVAR_TRY(invar_plugin_argv_locate(invar_config_schema()->keys[plugin.key].name,
                                               plugin.text));
    }
    return INVAR_OK;
}

void invar_run_plugins_close(invar_run_plugins *plugins)
{
    for (int i = 0; i < INVAR_PLUGINS; i++)
        invar_plugin_close(plugins->by_role[i]);
    for (int i = 0; i < INVAR_PLUGINS; i++)
        invar_recorded_replies_release(&plugins->stored[i]);
    invar_run_plugins_clear_metrics(plugins);
    invar_ledger_close(plugins->record);
    *plugins = (invar_run_plugins){0};
}

/*
 * Compares the plug-in with the one that executed `step`. A changed teacher is an error; any other
 * change is reported.
 */
static invar_status report_change(const invar_plugin *plugin, const invar_plugin *teacher,
                                  invar_recorder *recorder, int64_t step)
{
    char was[INVAR_DIGEST_HEX_SIZE], now[INVAR_DIGEST_HEX_SIZE], line[256];

    INVAR_TRY(
        invar_recorded_replies_plugin_hash(was, plugin, recorder->ledger, recorder->run, step));
    invar_digest_format(now, invar_plugin_hash(plugin));
    if (!was[0] || strcmp(was, now) == 0)
        return INVAR_OK;
    if (plugin == teacher)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "plug-in %s: the server has another model than at step %" PRId64
                          ", hash %s, was %s: a run has one teacher; serve that one again, or fork "
                          "the run",
                          invar_plugin_name(plugin), step, now, was);
    (void)snprintf(line, sizeof line,
                   "plug-in %s: it has changed since step %" PRId64
                   ", hash %s, was %s; the run continues with the new one",
                   invar_plugin_name(plugin), step, now, was);
    invar_recorder_print(recorder, "%s", line);
    return invar_recorder_event(recorder, step + 1, "warning", "plugin", line);
}

invar_status invar_run_plugins_compare(const invar_run_plugins *plugins, invar_recorder *recorder,
                                       int64_t step)
{
    for (int i = 0; i < INVAR_PLUGINS; i++)
        if (plugins->by_role[i] && invar_plugin_hash(plugins->by_role[i]))
            INVAR_TRY(report_change(plugins->by_role[i],
                                    plugins->by_role[INVAR_RUN_PLUGINS_TEACHER], recorder, step));
    return INVAR_OK;
}

invar_status invar_run_plugins_report_restarts(invar_run_plugins *plugins, invar_recorder *recorder,
                                               int64_t step)
{
    for (int i = 0; i < INVAR_PLUGINS; i++) {
        int64_t now = plugins->by_role[i] ? invar_plugin_restarts(plugins->by_role[i]) : 0;
        char line[160];

        if (now == plugins->restarts[i])
            continue;
        (void)snprintf(line, sizeof line,
                       "plug-in %s: it died and was started again %" PRId64 " times, %" PRId64
                       " times since the start of the program (max-restarts)",
                       invar_plugin_name(plugins->by_role[i]), now - plugins->restarts[i], now);
        plugins->restarts[i] = now;
        invar_recorder_print(recorder, "%s", line);
        INVAR_TRY(invar_recorder_event(recorder, step, "warning", "plugin-restart", line));
    }
    return INVAR_OK;
}

static bool has_reply(const invar_plugin_replies *replies, const invar_plugin *plugin)
{
    for (size_t i = 0; i < replies->count; i++)
        if (strcmp(replies->items[i].plugin, invar_plugin_name(plugin)) == 0)
            return true;
    return false;
}

/*
 * Begins a step of a hook. It is called again in a step that the ledger has, but its recorded reply
 * counts.
 */
static invar_status begin_hook(const invar_run_plugins *plugins, int place,
                               const invar_recorder *recorder, int64_t step)
{
    const invar_plugin_replies *replies = &plugins->stored[place].replies;
    invar_plugin *plugin = plugins->by_role[place];

    if (step > recorder->last_recorded_step && !plugins->replay)
        return invar_plugin_begin_step(plugin, step, NULL);
    if (has_reply(replies, plugin))
        INVAR_TRY(invar_recorded_replies_check(plugin, recorder->ledger, recorder->run, step));
    else if (place == INVAR_RUN_PLUGINS_HOOKS + INVAR_PLUGIN_BEFORE_TRAIN_STEP)
        INVAR_TRY(
            invar_recorded_replies_check_factor(plugin, recorder->ledger, recorder->run, step));
    return invar_plugin_begin_step(plugin, step, replies);
}

/* Begins a step of agents with the sessions in another run's ledger. */
static invar_status begin_recorded(const invar_run_plugins *plugins, invar_recorded_replies *stored,
                                   invar_plugin *plugin, int64_t step)
{
    INVAR_TRY(invar_recorded_replies_read(stored, plugins->record, plugins->record_run, step));
    if (stored->replies.count == 0)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "agent-record: it has no sessions of step %" PRId64
                          ": the run ended before, or the ledger is a shortened copy",
                          step);
    return invar_plugin_begin_step(plugin, step, &stored->replies);
}

invar_status invar_run_plugins_begin(invar_run_plugins *plugins, int role,
                                     const invar_recorder *recorder, int64_t step)
{
    invar_recorded_replies *stored = &plugins->stored[role];
    invar_plugin *plugin = plugins->by_role[role];

    if (!plugin)
        return INVAR_OK;
    invar_recorded_replies_release(stored);
    if (role == INVAR_RUN_PLUGINS_AGENTS && plugins->record)
        return begin_recorded(plugins, stored, plugin, step);
    if (step <= recorder->last_recorded_step)
        INVAR_TRY(invar_recorded_replies_read(stored, recorder->ledger, recorder->run, step));
    if (role >= INVAR_RUN_PLUGINS_HOOKS)
        return begin_hook(plugins, role, recorder, step);
    // a step without any reply took its samples from a file, or lost them in a shortened ledger
    if (stored->replies.count == 0 && !plugins->replay)
        return invar_plugin_begin_step(plugin, step, NULL);
    INVAR_TRY(invar_recorded_replies_check(plugin, recorder->ledger, recorder->run, step));
    return invar_plugin_begin_step(plugin, step, &stored->replies);
}

invar_status invar_run_plugins_hook(invar_run_plugins *plugins, const invar_plugin_event *event,
                                    const invar_rl_samples *samples)
{
    invar_plugin *plugin = plugins->by_role[INVAR_RUN_PLUGINS_HOOKS + event->hook];
    invar_hook_metrics *measures = &plugins->measures[event->hook];

    measures->hook = invar_plugin_hook_name(event->hook);
    invar_reward_parts_release(&measures->named);
    plugins->factor = 1.0;
    if (!plugin)
        return INVAR_OK;
    return invar_plugin_hook(plugin, event, samples ? samples->items : NULL,
                             samples ? samples->count : 0, &measures->named, &plugins->factor);
}

void invar_run_plugins_clear_metrics(invar_run_plugins *plugins)
{
    for (int i = 0; i < INVAR_PLUGINS - INVAR_RUN_PLUGINS_HOOKS; i++)
        invar_reward_parts_release(&plugins->measures[i].named);
}

invar_status invar_run_plugins_replies(invar_ledger_plugin_reply **out, size_t *count_out,
                                       const invar_run_plugins *plugins,
                                       const invar_json_text *tick, bool first)
{
    invar_plugin_replies parts[INVAR_PLUGINS] = {{NULL, 0}};
    size_t count = 0;

    *out = NULL;
    *count_out = 0;
    for (int i = 0; i < INVAR_PLUGINS; i++)
        if (plugins->by_role[i] && (first || i >= INVAR_RUN_PLUGINS_LOSS)) {
            parts[i] = invar_plugin_get_replies(plugins->by_role[i]);
            count += parts[i].count;
        }
    if (count == 0 && tick->bytes == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(*out, count + 1, "replies of plug-ins"));
    for (int i = 0; i < INVAR_PLUGINS; i++)
        for (size_t j = 0; j < parts[i].count; j++)
            (*out)[(*count_out)++] = parts[i].items[j];
    if (tick->bytes > 0)
        (*out)[(*count_out)++] = (invar_ledger_plugin_reply){
            .plugin = INVAR_RECORDED_SCHEDULE_REPLY, .data = tick->data, .bytes = tick->bytes};
    return INVAR_OK;
}
