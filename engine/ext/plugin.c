/*
 * plugin.c - dispatches calls to plug-ins, live or from recorded replies, and keeps the replies.
 *
 * Each call gets a number within its step and a hash of its request. If the ledger has the step,
 * the recorded reply of that number is parsed and the hash compared; otherwise the call goes to the
 * shared object, program or server. Every reply is checked by the same parser (reply_parse.c),
 * whatever its source. A program that dies may be restarted, if its files are unchanged.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/plugin.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/ext/line_process.h"
#include "engine/ext/plugin_call.h"
#include "engine/ext/plugin_command.h"
#include "engine/ext/server/remote_reward.h"
#include "engine/ext/shared_object.h"

#include "base/invar_banned.h"

#define NAME_BYTES 64

struct invar_plugin {
    char name[NAME_BYTES + 1];
    char title[INVAR_PLUGIN_TITLE_SIZE];
    bool hashed;
    invar_digest hash;           /* see invar_plugin_hash; valid if `hashed` */
    uint32_t kinds;              /* kinds required when opened */
    bool apart;                  /* another component calls it; replies are only recorded */
    invar_shared_object *object; /* At most one of these four is set. */
    invar_line_process *program;
    invar_http *server;
    invar_remote_teacher *teacher;
    int64_t step;
    int64_t calls; /* number of calls in this step */
    const invar_plugin_replies *stored;
    invar_ledger_plugin_reply *replies; /* (n_replies) with owned data */
    size_t n_replies, capacity;
    invar_json_text text;            /* request or reply line */
    int64_t restarts, most_restarts; /* restarts of the program so far; their limit */
    bool titled;                     /* copy of the option `identify_by_title` */
};

/* ---- open and close -------------------------------------------------------------------------- */

static invar_status handshake(uint32_t *kinds_out, invar_plugin *plugin)
{
    const char *line;
    size_t bytes;
    invar_status status;

    invar_plugin_greet_write(&plugin->text, plugin->name, plugin->kinds);
    INVAR_TRY(plugin->text.status);
    INVAR_TRY(invar_line_process_exchange(&line, &bytes, plugin->program, plugin->text.data,
                                          plugin->text.bytes));
    status = invar_plugin_greet_read(plugin->title, kinds_out, plugin->name, line, bytes);
    if (status != INVAR_OK)
        invar_line_process_kill(plugin->program);
    return status;
}

/*
 * Handshake of a program that was just started. A program that dies during it is not restarted: its
 * command, an import or a file is wrong, and a second start would hide that.
 */
static invar_status handshake_first(uint32_t *kinds_out, invar_plugin *plugin)
{
    static const char advice[] = "it had not greeted yet, and max-restarts does not apply before "
                                 "that: run the command by itself to see what is wrong";
    const char *command = invar_line_process_command(plugin->program);
    // show only the first two words of the command: others may be secrets
    size_t bytes = strcspn(command, " ");
    char quote[INVAR_TEXT_QUOTE_SIZE * 2], text[sizeof quote + 80];
    invar_status status = handshake(kinds_out, plugin);

    if (status == INVAR_OK)
        return INVAR_OK;
    if (plugin->most_restarts > 0 && invar_line_process_may_restart(plugin->program))
        status = invar_error_advise(status, status, advice);
    bytes += command[bytes] ? 1 + strcspn(command + bytes + 1, " ") : 0;
    invar_text_quote(quote, sizeof quote, command, bytes);
    (void)snprintf(text, sizeof text, "the program '%s' has to greet as docs/plugins.md says",
                   quote);
    return invar_error_advise(status, status, text);
}

static invar_status attach_server(invar_plugin *plugin, const invar_plugin_options *options)
{
    (void)snprintf(plugin->title, sizeof plugin->title, "server");
    return invar_remote_reward_open(&plugin->server, plugin->name, options->url, options->timeout);
}

/* Connects to a teacher. The model name that the server reports, if any, identifies the plug-in. */
static invar_status attach_teacher(invar_plugin *plugin, const invar_plugin_options *options)
{
    const char *print;

    INVAR_TRY(invar_remote_teacher_open(&plugin->teacher, options->teacher));
    print = invar_remote_teacher_fingerprint(plugin->teacher);
    plugin->hashed = print[0] != '\0';
    (void)snprintf(plugin->title, sizeof plugin->title, "%s", plugin->hashed ? print : "server");
    if (plugin->hashed)
        invar_hash_bytes(&plugin->hash, print, strlen(print));
    return INVAR_OK;
}

static invar_status attach_plugin(invar_plugin *plugin, const invar_plugin_options *options)
{
    uint32_t offered = 0, missing;

    INVAR_TRY(invar_plugin_argv_locate(plugin->name, options->spec));
    INVAR_TRY(invar_plugin_argv_hash(&plugin->hashed, &plugin->hash, plugin->name, options->spec));
    if (invar_plugin_argv_is_shared_object(options->spec)) {
        INVAR_TRY(invar_shared_object_open(&plugin->object, plugin->name, options->spec));
        memcpy(plugin->title, invar_shared_object_title(plugin->object), sizeof plugin->title);
        offered = invar_shared_object_kinds(plugin->object);
    } else {
        INVAR_TRY(invar_line_process_open(&plugin->program, plugin->name, options->spec,
                                          options->timeout, options->log_fd));
        INVAR_TRY(handshake_first(&offered, plugin));
    }
    if (options->identify_by_title)
        invar_hash_bytes(&plugin->hash, plugin->title, strlen(plugin->title));
    missing = options->kinds & ~offered;
    if (missing)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "plug-in %s: \"%s\" does not offer the kind \"%s\"",
                          plugin->name, plugin->title,
                          invar_plugin_kind_name(missing & (~missing + 1)));
    return INVAR_OK;
}

invar_status invar_plugin_open(invar_plugin **out, const invar_plugin_options *options)
{
    size_t bytes = options->name ? strlen(options->name) : 0;
    invar_plugin *plugin;
    invar_status status = INVAR_OK;

    *out = NULL;
    if (bytes == 0 || bytes > NAME_BYTES || options->kinds == 0 ||
        options->kinds > INVAR_PLUGIN_KINDS)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "a plug-in needs a name of 1 to %d bytes and at least one kind",
                          NAME_BYTES);
    INVAR_TRY(INVAR_ALLOC_ZEROED(plugin, 1, "a plug-in"));
    memcpy(plugin->name, options->name, bytes);
    plugin->kinds = options->kinds;
    plugin->apart = options->record_only && options->spec;
    plugin->step = -1;
    plugin->most_restarts = options->restarts;
    plugin->titled = options->identify_by_title;
    if (options->url)
        status = attach_server(plugin, options);
    else if (options->teacher)
        status = attach_teacher(plugin, options);
    else if (plugin->apart)
        status =
            invar_plugin_argv_hash(&plugin->hashed, &plugin->hash, plugin->name, options->spec);
    else if (options->spec)
        status = attach_plugin(plugin, options);
    if (status != INVAR_OK) {
        invar_plugin_close(plugin);
        return status;
    }
    *out = plugin;
    return INVAR_OK;
}

void invar_plugin_set_wait_callback(invar_plugin *plugin, void (*waits)(void *payload),
                                    void *payload)
{
    if (plugin && plugin->program)
        invar_line_process_set_wait_callback(plugin->program, waits, payload);
    if (plugin && plugin->server)
        invar_http_set_wait_callback(plugin->server, waits, payload);
    if (plugin && plugin->teacher)
        invar_remote_teacher_set_wait_callback(plugin->teacher, waits, payload);
}

static void clear_replies(invar_plugin *plugin)
{
    for (size_t i = 0; i < plugin->n_replies; i++)
        invar_free((void *)(uintptr_t)plugin->replies[i].data);
    plugin->n_replies = 0;
}

void invar_plugin_close(invar_plugin *plugin)
{
    if (!plugin)
        return;
    invar_shared_object_close(plugin->object);
    invar_line_process_close(plugin->program);
    invar_http_close(plugin->server);
    invar_remote_teacher_close(plugin->teacher);
    clear_replies(plugin);
    invar_free(plugin->replies);
    invar_json_text_release(&plugin->text);
    invar_free(plugin);
}

const char *invar_plugin_title(const invar_plugin *plugin)
{
    return plugin->title;
}

const char *invar_plugin_name(const invar_plugin *plugin)
{
    return plugin->name;
}

const invar_digest *invar_plugin_hash(const invar_plugin *plugin)
{
    return plugin->hashed ? &plugin->hash : NULL;
}

/* ---- steps and replies ----------------------------------------------------------------------- */

invar_status invar_plugin_begin_step(invar_plugin *plugin, int64_t step,
                                     const invar_plugin_replies *stored)
{
    clear_replies(plugin);
    plugin->step = step;
    plugin->calls = 0;
    plugin->stored = stored;
    if (!stored && !plugin->object && !plugin->program && !plugin->server && !plugin->teacher &&
        !plugin->apart)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "plug-in %s: step %" PRId64 " has no stored replies, and there is no "
                          "plug-in to ask",
                          plugin->name, step);
    return INVAR_OK;
}

invar_plugin_replies invar_plugin_get_replies(const invar_plugin *plugin)
{
    return (invar_plugin_replies){plugin->replies, plugin->n_replies};
}

/* Appends a reply; takes ownership of `data`, also after a failure. */
static invar_status store_reply(invar_plugin *plugin, const invar_plugin_call *call,
                                const invar_digest *request, char *data, size_t bytes)
{
    if (plugin->n_replies == plugin->capacity) {
        size_t capacity = plugin->capacity ? 2 * plugin->capacity : 16;
        void *grown = NULL;
        invar_status status = invar_alloc(&grown, capacity, sizeof *plugin->replies, "replies");
        if (status != INVAR_OK) {
            invar_free(data);
            return status;
        }
        if (plugin->n_replies)
            memcpy(grown, plugin->replies, plugin->n_replies * sizeof *plugin->replies);
        invar_free(plugin->replies);
        plugin->replies = grown;
        plugin->capacity = capacity;
    }
    plugin->replies[plugin->n_replies++] = (invar_ledger_plugin_reply){.plugin = plugin->name,
                                                                       .call = call->id,
                                                                       .request = *request,
                                                                       .data = data,
                                                                       .bytes = bytes};
    return INVAR_OK;
}

static invar_status store_copy(invar_plugin *plugin, const invar_plugin_call *call,
                               const invar_digest *request, const void *data, size_t bytes)
{
    void *copy = NULL;

    INVAR_TRY(invar_alloc(&copy, bytes, 1, "a reply"));
    memcpy(copy, data, bytes);
    return store_reply(plugin, call, request, copy, bytes);
}

/* Returns the recorded reply to this call; NULL if the ledger has no such reply. */
static const invar_ledger_plugin_reply *find_recorded(const invar_plugin *plugin,
                                                      const invar_plugin_call *call)
{
    for (size_t i = 0; plugin->stored && i < plugin->stored->count; i++)
        if (plugin->stored->items[i].call == call->id &&
            strcmp(plugin->stored->items[i].plugin, plugin->name) == 0)
            return &plugin->stored->items[i];
    return NULL;
}

static invar_status find_stored(const invar_ledger_plugin_reply **out, const invar_plugin *plugin,
                                const invar_plugin_call *call, const invar_digest *request)
{
    *out = find_recorded(plugin, call);
    if (!*out)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "plug-in %s: no reply to call %" PRId64 " of step %" PRId64 " is stored",
                          plugin->name, call->id, plugin->step);
    if (!invar_digest_equal(&(*out)->request, request))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "plug-in %s: call %" PRId64 " of step %" PRId64
                          " asks something else than the recorded one",
                          plugin->name, call->id, plugin->step);
    return INVAR_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static invar_status replay_reply(invar_plugin *plugin, const invar_plugin_call *call,
                                 const invar_digest *request)
{
    const invar_ledger_plugin_reply *reply;

    INVAR_TRY(find_stored(&reply, plugin, call, request));
    INVAR_TRY(invar_plugin_call_read(call, reply->data, reply->bytes, false));
    return store_copy(plugin, call, request, reply->data, reply->bytes);
}

/* Stores the reply of a live call. Hooks store only a factor, and only if none is recorded. */
static invar_status store_live_reply(invar_plugin *plugin, const invar_plugin_call *call,
                                     const invar_digest *request, const char *line, size_t bytes)
{
    if (call->kind == INVAR_PLUGIN_KIND_HOOK && (plugin->stored || *call->factor == 1.0))
        return INVAR_OK;
    return store_copy(plugin, call, request, line, bytes);
}

static invar_status call_object_hook(invar_plugin *plugin, const invar_plugin_call *call,
                                     const invar_digest *request)
{
    invar_json_text *line = &plugin->text;

    invar_json_text_reset(line);
    INVAR_TRY(invar_shared_object_call(plugin->object, call));
    INVAR_TRY(invar_shared_object_report(line, plugin->object, call));
    INVAR_TRY(invar_plugin_call_read(call, line->data, line->bytes, false));
    return store_live_reply(plugin, call, request, line->data, line->bytes);
}

/*
 * Calls the generate function; its answers are written as the JSON line that a program would send.
 */
static invar_status call_object_turns(invar_plugin *plugin, const invar_plugin_call *call,
                                      const invar_digest *request)
{
    invar_json_text *line = &plugin->text;

    invar_json_text_reset(line);
    INVAR_TRY(invar_shared_object_turns(line, plugin->object, call));
    INVAR_TRY(invar_plugin_call_read(call, line->data, line->bytes, false));
    return store_copy(plugin, call, request, line->data, line->bytes);
}

static invar_status call_object(invar_plugin *plugin, const invar_plugin_call *call,
                                const invar_digest *request)
{
    char *data;
    size_t bytes;

    if (call->kind == INVAR_PLUGIN_KIND_GENERATE)
        return call_object_turns(plugin, call, request);
    INVAR_TRY(invar_shared_object_call(plugin->object, call));
    INVAR_TRY(invar_plugin_call_pack(&data, &bytes, call));
    return store_reply(plugin, call, request, data, bytes);
}

/*
 * Returns true if a program that died may be restarted and get the same request. Not after the
 * first turn of a sample: the program may have kept state of earlier turns.
 */
static bool may_restart(const invar_plugin *plugin, const invar_plugin_call *call)
{
    for (size_t i = 0; call->turns && i < call->count; i++)
        if (call->turns[i].turn > 1)
            return false;
    return plugin->restarts < plugin->most_restarts &&
           invar_line_process_may_restart(plugin->program);
}

/* Restarts the program; fails if it is not the same program as at the start of the run. */
static invar_status restart_program(invar_plugin *plugin)
{
    char title[INVAR_PLUGIN_TITLE_SIZE];
    invar_json_text request = plugin->text;
    invar_digest hash = plugin->hash;
    uint32_t offered = 0;
    bool hashed = false;
    invar_status status = INVAR_OK;

    invar_error_clear();
    plugin->restarts++;
    memcpy(title, plugin->title, sizeof title);
    plugin->text = (invar_json_text){0}; // the handshake needs its own buffer
    if (!plugin->titled)
        status = invar_plugin_argv_hash(&hashed, &hash, plugin->name,
                                        invar_line_process_command(plugin->program));
    if (status == INVAR_OK)
        status = invar_line_process_restart(plugin->program);
    if (status == INVAR_OK)
        status = handshake(&offered, plugin);
    invar_json_text_release(&plugin->text);
    plugin->text = request;
    if (status != INVAR_OK || (strcmp(title, plugin->title) == 0 && !(plugin->kinds & ~offered) &&
                               memcmp(&hash, &plugin->hash, sizeof hash) == 0))
        return status;
    invar_line_process_kill(plugin->program);
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "plug-in %s: it died, and its files have changed since it was started; start "
                      "the run again to use the new ones",
                      plugin->name);
}

/* Sends the request in `text`; restarts a program that died. */
static invar_status exchange_line(const char **line_out, size_t *bytes_out, invar_plugin *plugin,
                                  const invar_plugin_call *call)
{
    const invar_json_text *text = &plugin->text;
    char died[1024];
    invar_status status =
        invar_line_process_exchange(line_out, bytes_out, plugin->program, text->data, text->bytes);

    while (status != INVAR_OK && may_restart(plugin, call)) {
        status = restart_program(plugin);
        if (status == INVAR_OK)
            status = invar_line_process_exchange(line_out, bytes_out, plugin->program, text->data,
                                                 text->bytes);
    }
    if (status == INVAR_OK || plugin->restarts == 0)
        return status;
    (void)snprintf(died, sizeof died, "%.1000s", invar_error_last()->message);
    return INVAR_FAIL(status, invar_error_last()->native,
                      "%s; it was started again %" PRId64 " times (max-restarts)", died,
                      plugin->restarts);
}

int64_t invar_plugin_restarts(const invar_plugin *plugin)
{
    return plugin->restarts;
}

static invar_status call_program(invar_plugin *plugin, const invar_plugin_call *call,
                                 const invar_digest *request)
{
    const char *line;
    size_t bytes;
    invar_status status;

    invar_json_text_reset(&plugin->text);
    invar_plugin_call_write(&plugin->text, call);
    INVAR_TRY(plugin->text.status);
    INVAR_TRY(exchange_line(&line, &bytes, plugin, call));
    status = invar_plugin_call_read(call, line, bytes, true);
    if (status != INVAR_OK) {
        invar_line_process_kill(plugin->program);
        return status;
    }
    return store_live_reply(plugin, call, request, line, bytes);
}

static invar_status call_server(invar_plugin *plugin, const invar_plugin_call *call,
                                const invar_digest *request)
{
    invar_json_text *line = &plugin->text;

    INVAR_TRY(invar_remote_reward_ask(line, plugin->server, call));
    INVAR_TRY(invar_plugin_call_read(call, line->data, line->bytes, false));
    return store_copy(plugin, call, request, line->data, line->bytes);
}

/* Calls a teacher. Only the numbers are kept: they are a small part of its answer. */
static invar_status call_teacher(invar_plugin *plugin, const invar_plugin_call *call,
                                 const invar_digest *request)
{
    invar_logprob_request *questions = NULL;
    invar_status status;
    size_t bytes;
    char *data;

    INVAR_TRY(INVAR_ALLOC(questions, call->count, "questions"));
    for (size_t i = 0; i < call->count; i++) {
        const invar_plugin_sample *s = &call->samples[i];
        questions[i] = (invar_logprob_request){.tokens = s->tokens,
                                               .count = s->n_tokens,
                                               .first = s->prompt_tokens,
                                               .index = s->index};
    }
    status = invar_remote_teacher_ask(call->logp, plugin->teacher, questions, call->count);
    invar_free(questions);
    INVAR_TRY(status);
    INVAR_TRY(invar_plugin_call_pack(&data, &bytes, call));
    return store_reply(plugin, call, request, data, bytes);
}

/* Replaces the factor of a hook by the recorded one; without a row the hook gave no factor. */
static invar_status replay_factor(invar_plugin *plugin, const invar_plugin_call *call,
                                  const invar_digest *request)
{
    const invar_ledger_plugin_reply *reply = find_recorded(plugin, call);
    invar_reward_parts again = {NULL, 0};
    invar_plugin_call then = *call;
    invar_status status;

    *call->factor = 1.0;
    if (!reply)
        return INVAR_OK;
    then.measures = &again;
    status = invar_plugin_call_read(&then, reply->data, reply->bytes, false);
    invar_reward_parts_release(&again);
    return status == INVAR_OK ? store_copy(plugin, call, request, reply->data, reply->bytes)
                              : status;
}

/* Notifies the plug-in of a hook; a recorded factor replaces its answer. */
static invar_status send_call(invar_plugin *plugin, const invar_plugin_call *call,
                              const invar_digest *request)
{
    if (plugin->object)
        INVAR_TRY(call_object_hook(plugin, call, request));
    else if (plugin->program)
        INVAR_TRY(call_program(plugin, call, request));
    return plugin->stored ? replay_factor(plugin, call, request) : INVAR_OK;
}

/* Completes the call with plug-in, step and number, and answers it, live or from the record. */
static invar_status dispatch_call(invar_plugin *plugin, invar_plugin_call *call)
{
    invar_digest request;

    if (!(plugin->kinds & call->kind))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "plug-in %s: it was not opened for the kind \"%s\"",
                          plugin->name, invar_plugin_kind_name(call->kind));
    call->plugin = plugin->name;
    // hooks may run before the first step begins
    call->step = call->event ? call->event->step : plugin->step;
    call->id = plugin->calls++;
    invar_plugin_call_hash(&request, call);
    if (call->kind == INVAR_PLUGIN_KIND_HOOK)
        return send_call(plugin, call, &request);
    if (plugin->stored)
        return replay_reply(plugin, call, &request);
    if (plugin->object)
        return call_object(plugin, call, &request);
    if (plugin->program)
        return call_program(plugin, call, &request);
    if (plugin->server)
        return call_server(plugin, call, &request);
    if (plugin->teacher)
        return call_teacher(plugin, call, &request);
    return INVAR_FAIL(INVAR_E_STATE, 0, "plug-in %s: a call before a step began", plugin->name);
}

/* ---- samples --------------------------------------------------------------------------------- */

static const char *text_or(const char *text, const char *otherwise)
{
    return text ? text : otherwise;
}

void invar_plugin_sample_view(invar_plugin_sample *out, const invar_rl_sample *s)
{
    *out = (invar_plugin_sample){
        .index = s->index,
        .group = s->group,
        .prompt = text_or(s->prompt_text, ""),
        .response = text_or(s->response, ""),
        .response_bytes = s->response ? s->response_bytes : 0,
        .label = text_or(s->label, ""),
        .metadata = text_or(s->metadata, "{}"),
        .finish = invar_finish_name(s->finish),
        .tokens = s->tokens,
        .prompt_tokens = s->prompt_tokens,
        .n_tokens = s->n_tokens,
        .reward = s->reward,
    };
}

/* Number of leading samples in the group of the first one. */
static int64_t group_size(const invar_rl_sample *samples, int64_t count)
{
    int64_t size = 1;

    while (size < count && samples[size].group == samples[0].group)
        size++;
    return size;
}

static invar_status make_sample_views(invar_plugin_sample **out, const invar_plugin *plugin,
                                      const invar_rl_sample *samples, int64_t count)
{
    if (count < 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "plug-in %s: a call without samples", plugin->name);
    INVAR_TRY(INVAR_ALLOC(*out, (size_t)count, "samples for a plug-in"));
    for (int64_t i = 0; i < count; i++)
        invar_plugin_sample_view(&(*out)[i], &samples[i]);
    return INVAR_OK;
}

invar_status invar_plugin_reward(invar_plugin *plugin, const invar_rl_sample *samples,
                                 int64_t count, double *reward_out, invar_reward_parts *parts_out)
{
    bool grouped = (plugin->kinds & INVAR_PLUGIN_KIND_GROUP_REWARD) != 0;
    invar_plugin_sample *shown = NULL;
    invar_status status = make_sample_views(&shown, plugin, samples, count);

    for (int64_t i = 0, n; i < count && status == INVAR_OK; i += n) {
        invar_plugin_call call = {.kind = grouped ? INVAR_PLUGIN_KIND_GROUP_REWARD
                                                  : INVAR_PLUGIN_KIND_REWARD};
        n = grouped ? group_size(samples + i, count - i) : count;
        call.samples = shown + i;
        call.count = (size_t)n;
        call.reward = reward_out + i;
        call.parts = parts_out + i;
        for (int64_t j = i; j < i + n; j++)
            if (!samples[j].has_plugin_reward)
                shown[j].reward = 0; // not known yet, whatever an earlier reward left there
        status = dispatch_call(plugin, &call);
    }
    invar_free(shown);
    return status;
}

/* Makes one call about all samples. */
static invar_status call_with_samples(invar_plugin *plugin, invar_plugin_call *call,
                                      const invar_rl_sample *samples, int64_t count)
{
    invar_plugin_sample *shown = NULL;
    invar_status status = make_sample_views(&shown, plugin, samples, count);

    call->samples = shown;
    call->count = (size_t)count;
    if (status == INVAR_OK)
        status = dispatch_call(plugin, call);
    call->samples = NULL;
    invar_free(shown);
    return status;
}

invar_status invar_plugin_filter(invar_plugin *plugin, const invar_rl_sample *samples,
                                 int64_t count, uint8_t *verdict_out)
{
    invar_plugin_call call = {.kind = INVAR_PLUGIN_KIND_FILTER, .verdict = verdict_out};
    invar_status status = call_with_samples(plugin, &call, samples, count);

    for (int64_t i = 0, n; i < count && status == INVAR_OK; i += n) {
        n = group_size(samples + i, count - i);
        if (memchr(verdict_out + i, INVAR_PLUGIN_DROP, (size_t)n))
            memset(verdict_out + i, INVAR_PLUGIN_DROP, (size_t)n);
    }
    return status;
}

static invar_status fail_mixed_group(const invar_plugin *plugin, const invar_rl_sample *s)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "plug-in %s: its verdict on sample %" PRId64
                      " is not that on the others of group %" PRId64,
                      plugin->name, s->index, s->group);
}

invar_status invar_plugin_filter_buffer(invar_plugin *plugin, const invar_plugin_buffer *buffer,
                                        const invar_rl_sample *samples, int64_t count,
                                        uint8_t *verdict_out)
{
    invar_plugin_call call = {
        .kind = INVAR_PLUGIN_KIND_BUFFER_FILTER, .buffer = buffer, .verdict = verdict_out};
    invar_status status = call_with_samples(plugin, &call, samples, count);

    for (int64_t i = 1; i < count && status == INVAR_OK; i++)
        if (samples[i].group == samples[i - 1].group && verdict_out[i] != verdict_out[i - 1])
            status = fail_mixed_group(plugin, &samples[i]);
    return status;
}

invar_status invar_plugin_prompts(invar_plugin *plugin, const invar_plugin_wanted *wanted,
                                  int64_t *lines_out)
{
    invar_plugin_call call = {
        .kind = INVAR_PLUGIN_KIND_PROMPTS, .prompt_request = wanted, .lines = lines_out};

    return dispatch_call(plugin, &call);
}

invar_status invar_plugin_score(float *logp_out, invar_plugin *plugin,
                                const invar_rl_sample *samples, int64_t count)
{
    invar_plugin_call call = {.kind = INVAR_PLUGIN_KIND_TEACHER, .logp = logp_out};

    return call_with_samples(plugin, &call, samples, count);
}

/* ---- turns ----------------------------------------------------------------------------------- */

invar_status invar_plugin_generate(invar_plugin *plugin, const invar_plugin_turn *turns,
                                   size_t count, invar_turn_action *next_out)
{
    invar_plugin_call call = {
        .kind = INVAR_PLUGIN_KIND_GENERATE, .turns = turns, .count = count, .next = next_out};

    return dispatch_call(plugin, &call);
}

invar_status invar_plugin_generate_read(const char *name, const char *reply, size_t bytes,
                                        size_t count, invar_turn_action *next_out)
{
    const invar_plugin_call call = {
        .plugin = name, .kind = INVAR_PLUGIN_KIND_GENERATE, .count = count, .next = next_out};

    return invar_plugin_call_read(&call, reply, bytes, false);
}

/* ---- recorded only --------------------------------------------------------------------------- */

invar_status invar_plugin_next_slot(invar_plugin_reply_slot *out, invar_plugin *plugin,
                                    const invar_rl_sample *sample)
{
    invar_plugin_sample shown;
    invar_plugin_call call = {.kind = plugin->kinds, .samples = &shown, .count = 1};
    const invar_ledger_plugin_reply *reply;

    invar_plugin_sample_view(&shown, sample);
    call.id = plugin->calls++;
    *out = (invar_plugin_reply_slot){.call = call.id};
    invar_plugin_call_hash(&out->request, &call);
    if (!plugin->stored)
        return INVAR_OK;
    INVAR_TRY(find_stored(&reply, plugin, &call, &out->request));
    out->data = reply->data;
    out->bytes = reply->bytes;
    return INVAR_OK;
}

invar_status invar_plugin_store_reply(invar_plugin *plugin, const invar_plugin_reply_slot *slot,
                                      const char *data, size_t bytes)
{
    const invar_plugin_call call = {.id = slot->call};

    return store_copy(plugin, &call, &slot->request, data, bytes);
}

/* ---- loss and hooks -------------------------------------------------------------------------- */

invar_status invar_plugin_loss(float *loss_out, float *dlogp_out, const invar_loss_sample *sample,
                               void *plugin)
{
    const invar_plugin_tokens tokens = {
        .sample = sample->sample,
        .count = sample->tokens,
        .logp = sample->logp,
        .old = sample->old_logp,
        .rollout = sample->rollout_logp,
        .ref = sample->ref_logp,
        .advantage = sample->advantage,
        .mask = sample->mask,
    };
    invar_plugin_call call = {
        .kind = INVAR_PLUGIN_KIND_LOSS, .tokens = &tokens, .dlogp = dlogp_out, .loss = loss_out};

    return dispatch_call(plugin, &call);
}

invar_status invar_plugin_hook(invar_plugin *plugin, const invar_plugin_event *event,
                               const invar_rl_sample *samples, int64_t count,
                               invar_reward_parts *measures_out, double *factor_out)
{
    invar_plugin_event told = *event;
    invar_plugin_call call = {.kind = INVAR_PLUGIN_KIND_HOOK,
                              .event = &told,
                              .measures = measures_out,
                              .factor = factor_out};
    invar_plugin_sample *shown = NULL;
    invar_status status;

    *factor_out = 1.0;
    if (event->hook < INVAR_PLUGIN_AFTER_INIT || event->hook > INVAR_PLUGIN_AFTER_EVAL)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "plug-in %s: there is no hook %d", plugin->name,
                          event->hook);
    if (samples)
        INVAR_TRY(make_sample_views(&shown, plugin, samples, count));
    told.samples = call.samples = shown;
    told.count = call.count = shown ? (size_t)count : 0;
    status = dispatch_call(plugin, &call);
    invar_free(shown);
    return status;
}
