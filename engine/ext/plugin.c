/*
 * plugin.c - dispatches calls to plug-ins, live or from recorded replies, and keeps the replies.
 *
 * Each call gets a number within its step and a hash of its request. If the ledger has the step,
 * the recorded reply of that number is parsed and the hash compared; otherwise the call goes to the
 * back end (plugin_backend.h). Every reply is checked by the same parser (reply_parse.c), whatever
 * its source.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/plugin.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/ext/plugin_backend.h"
#include "engine/ext/plugin_command.h"

#include "base/invar_banned.h"

struct invar_plugin {
    invar_plugin_peer peer;
    bool apart; /* another component calls it; replies are only recorded */
    int64_t step;
    int64_t calls; /* number of calls in this step */
    const invar_plugin_replies *stored;
    invar_plugin_reply_list replies; /* to the calls of this step */
};

/* ---- open and close -------------------------------------------------------------------------- */

static const invar_plugin_backend *choose_backend(const invar_plugin_options *options)
{
    if (options->url)
        return options->teacher ? &invar_remote_teacher_backend : &invar_remote_reward_backend;
    if (!options->spec || options->record_only)
        return NULL;
    return invar_plugin_argv_is_shared_object(options->spec) ? &invar_shared_object_backend
                                                             : &invar_child_program_backend;
}

static invar_status attach_plugin(invar_plugin_peer *peer, const invar_plugin_options *options)
{
    uint32_t offered = 0, missing;

    if (options->spec && peer->backend)
        INVAR_TRY(invar_plugin_argv_locate(peer->name, options->spec));
    if (options->spec)
        INVAR_TRY(invar_plugin_argv_hash(&peer->hashed, &peer->hash, peer->name, options->spec));
    if (!peer->backend)
        return INVAR_OK;
    INVAR_TRY(peer->backend->open(peer, &offered, options));
    if (options->identify_by_title)
        invar_hash_bytes(&peer->hash, peer->title, strlen(peer->title));
    missing = options->kinds & ~offered;
    return missing ? INVAR_FAIL(INVAR_E_INVALID, 0,
                                "plug-in %s: \"%s\" does not offer the kind \"%s\"", peer->name,
                                peer->title, invar_plugin_kind_name(missing & (~missing + 1)))
                   : INVAR_OK;
}

invar_status invar_plugin_open(invar_plugin **out, const invar_plugin_options *options)
{
    size_t bytes = options->name ? strlen(options->name) : 0;
    invar_plugin *plugin;
    invar_status status;

    *out = NULL;
    if (bytes == 0 || bytes >= sizeof plugin->peer.name || options->kinds == 0 ||
        options->kinds > INVAR_PLUGIN_KINDS)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "a plug-in needs a name of 1 to %zu bytes and at least one kind",
                          sizeof plugin->peer.name - 1);
    INVAR_TRY(INVAR_ALLOC_ZEROED(plugin, 1, "a plug-in"));
    memcpy(plugin->peer.name, options->name, bytes);
    plugin->peer.backend = choose_backend(options);
    plugin->peer.kinds = options->kinds;
    plugin->peer.max_restarts = options->restarts;
    plugin->peer.identify_by_title = options->identify_by_title;
    plugin->apart = options->record_only && options->spec;
    plugin->step = -1;
    status = attach_plugin(&plugin->peer, options);
    if (status != INVAR_OK)
        invar_plugin_close(plugin);
    else
        *out = plugin;
    return status;
}

void invar_plugin_set_wait_callback(invar_plugin *plugin, void (*waits)(void *payload),
                                    void *payload)
{
    if (plugin && plugin->peer.backend && plugin->peer.backend->watch)
        plugin->peer.backend->watch(&plugin->peer, waits, payload);
}

void invar_plugin_close(invar_plugin *plugin)
{
    if (!plugin)
        return;
    if (plugin->peer.backend)
        plugin->peer.backend->close(&plugin->peer);
    invar_plugin_reply_list_clear(&plugin->replies);
    invar_free(plugin->replies.items);
    invar_json_text_release(&plugin->peer.text);
    invar_free(plugin);
}

const char *invar_plugin_title(const invar_plugin *plugin)
{
    return plugin->peer.title;
}

const char *invar_plugin_name(const invar_plugin *plugin)
{
    return plugin->peer.name;
}

const invar_digest *invar_plugin_hash(const invar_plugin *plugin)
{
    return plugin->peer.hashed ? &plugin->peer.hash : NULL;
}

int64_t invar_plugin_restarts(const invar_plugin *plugin)
{
    return plugin->peer.restarts;
}

/* ---- steps and replies ----------------------------------------------------------------------- */

/* A copy is one block: the data, then the name. */
invar_status invar_plugin_reply_list_add(void *payload, const invar_ledger_plugin_reply *reply)
{
    invar_plugin_reply_list *list = payload;
    size_t name = strlen(reply->plugin) + 1;
    char *block;

    INVAR_TRY(INVAR_GROW(list->items, list->capacity, list->count, list->count + 1, "replies"));
    INVAR_TRY(INVAR_ALLOC(block, reply->bytes + name, "a reply"));
    if (reply->bytes)
        memcpy(block, reply->data, reply->bytes);
    memcpy(block + reply->bytes, reply->plugin, name);
    list->items[list->count] = *reply;
    list->items[list->count].plugin = block + reply->bytes;
    list->items[list->count++].data = block;
    return INVAR_OK;
}

void invar_plugin_reply_list_clear(invar_plugin_reply_list *list)
{
    for (int64_t i = 0; i < list->count; i++)
        invar_free((void *)(uintptr_t)list->items[i].data);
    list->count = 0;
}

invar_status invar_plugin_begin_step(invar_plugin *plugin, int64_t step,
                                     const invar_plugin_replies *stored)
{
    invar_plugin_reply_list_clear(&plugin->replies);
    plugin->step = step;
    plugin->calls = 0;
    plugin->stored = stored;
    if (stored || plugin->peer.backend || plugin->apart)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "plug-in %s: step %" PRId64 " has no stored replies, and there is no plug-in "
                      "to ask",
                      plugin->peer.name, step);
}

invar_plugin_replies invar_plugin_get_replies(const invar_plugin *plugin)
{
    return (invar_plugin_replies){plugin->replies.items, (size_t)plugin->replies.count};
}

/* Returns the recorded reply to this call; NULL if the ledger has no such reply. */
static const invar_ledger_plugin_reply *find_recorded(const invar_plugin *plugin, int64_t call)
{
    for (size_t i = 0; plugin->stored && i < plugin->stored->count; i++)
        if (plugin->stored->items[i].call == call &&
            strcmp(plugin->stored->items[i].plugin, plugin->peer.name) == 0)
            return &plugin->stored->items[i];
    return NULL;
}

static invar_status find_stored(invar_plugin_reply_slot *slot, const invar_plugin *plugin)
{
    const invar_ledger_plugin_reply *reply = find_recorded(plugin, slot->call);

    if (!reply)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "plug-in %s: no reply to call %" PRId64 " of step %" PRId64 " is stored",
                          plugin->peer.name, slot->call, plugin->step);
    if (!invar_digest_equal(&reply->request, &slot->request))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "plug-in %s: call %" PRId64 " of step %" PRId64
                          " asks something else than the recorded one",
                          plugin->peer.name, slot->call, plugin->step);
    slot->data = reply->data;
    slot->bytes = reply->bytes;
    return INVAR_OK;
}

invar_status invar_plugin_next_slot(invar_plugin_reply_slot *out, invar_plugin *plugin,
                                    const invar_rl_sample *sample)
{
    invar_plugin_sample shown;
    const invar_plugin_call call = {.kind = plugin->peer.kinds, .samples = &shown, .count = 1};

    invar_plugin_sample_view(&shown, sample);
    *out = (invar_plugin_reply_slot){.call = plugin->calls++};
    invar_plugin_call_hash(&out->request, &call);
    return plugin->stored ? find_stored(out, plugin) : INVAR_OK;
}

invar_status invar_plugin_store_reply(invar_plugin *plugin, const invar_plugin_reply_slot *slot,
                                      const char *data, size_t bytes)
{
    return invar_plugin_reply_list_add(&plugin->replies,
                                       &(invar_ledger_plugin_reply){.plugin = plugin->peer.name,
                                                                    .call = slot->call,
                                                                    .request = slot->request,
                                                                    .data = data,
                                                                    .bytes = bytes});
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Replaces the factor of a hook by the recorded one; without a row the hook gave no factor. */
static invar_status replay_factor(invar_plugin *plugin, const invar_plugin_call *call,
                                  const invar_plugin_reply_slot *slot)
{
    const invar_ledger_plugin_reply *reply = find_recorded(plugin, call->id);
    invar_reward_parts again = {NULL, 0};
    invar_plugin_call then = *call;
    invar_status status;

    *call->factor = 1.0;
    if (!reply)
        return INVAR_OK;
    then.measures = &again;
    status = invar_plugin_call_read(&then, reply->data, reply->bytes, false);
    invar_reward_parts_release(&again);
    INVAR_TRY(status);
    return invar_plugin_store_reply(plugin, slot, reply->data, reply->bytes);
}

/* Completes the call with plug-in, step and number, and answers it, live or from the record. */
static invar_status dispatch_call(invar_plugin *plugin, invar_plugin_call *call)
{
    const bool hook = call->kind == INVAR_PLUGIN_KIND_HOOK;
    const invar_plugin_backend *backend = plugin->peer.backend;
    invar_plugin_reply_slot slot = {.call = plugin->calls};

    if (!(plugin->peer.kinds & call->kind))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "plug-in %s: it was not opened for the kind \"%s\"",
                          plugin->peer.name, invar_plugin_kind_name(call->kind));
    call->plugin = plugin->peer.name;
    // hooks may run before the first step begins
    call->step = call->event ? call->event->step : plugin->step;
    call->id = plugin->calls++;
    invar_plugin_call_hash(&slot.request, call);
    if (plugin->stored && !hook) {
        INVAR_TRY(find_stored(&slot, plugin));
        INVAR_TRY(invar_plugin_call_read(call, slot.data, slot.bytes, false));
        return invar_plugin_store_reply(plugin, &slot, slot.data, slot.bytes);
    }
    if (!backend && !hook)
        return INVAR_FAIL(INVAR_E_STATE, 0, "plug-in %s: a call before a step began",
                          plugin->peer.name);
    if (backend)
        INVAR_TRY(backend->ask(&plugin->peer, call));
    if (plugin->stored)
        return replay_factor(plugin, call, &slot);
    return hook && *call->factor == 1.0
               ? INVAR_OK
               : invar_plugin_store_reply(plugin, &slot, plugin->peer.text.data,
                                          plugin->peer.text.bytes);
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
        .prompt = text_or(s->data.prompt, ""),
        .response = text_or(s->response, ""),
        .response_bytes = s->response ? s->response_bytes : 0,
        .label = text_or(s->data.label, ""),
        .metadata = text_or(s->data.metadata, "{}"),
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
    int64_t size = count > 0;

    while (size < count && samples[size].group == samples[0].group)
        size++;
    return size;
}

static invar_status make_sample_views(invar_plugin_sample **out, const invar_plugin *plugin,
                                      const invar_rl_sample *samples, int64_t count)
{
    if (count < 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "plug-in %s: a call without samples",
                          plugin->peer.name);
    INVAR_TRY(INVAR_ALLOC(*out, (size_t)count, "samples for a plug-in"));
    for (int64_t i = 0; i < count; i++)
        invar_plugin_sample_view(&(*out)[i], &samples[i]);
    return INVAR_OK;
}

/* Makes one call about all samples. */
static invar_status call_with_samples(invar_plugin *plugin, invar_plugin_call *call,
                                      const invar_rl_sample *samples, int64_t count)
{
    invar_plugin_sample *shown = NULL;
    invar_status status = make_sample_views(&shown, plugin, samples, count);

    for (int64_t i = 0; i < count && call->reward && status == INVAR_OK; i++)
        if (!samples[i].has_plugin_reward)
            shown[i].reward = 0; // not known yet, whatever an earlier reward left there
    call->samples = shown;
    call->count = (size_t)count;
    if (status == INVAR_OK)
        status = dispatch_call(plugin, call);
    call->samples = NULL;
    invar_free(shown);
    return status;
}

invar_status invar_plugin_reward(invar_plugin *plugin, const invar_rl_sample *samples,
                                 int64_t count, double *reward_out, invar_reward_parts *parts_out)
{
    bool grouped = (plugin->peer.kinds & INVAR_PLUGIN_KIND_GROUP_REWARD) != 0;
    int64_t i = 0, n;

    do {
        invar_plugin_call call = {.kind = grouped ? INVAR_PLUGIN_KIND_GROUP_REWARD
                                                  : INVAR_PLUGIN_KIND_REWARD,
                                  .reward = reward_out + i,
                                  .parts = parts_out + i};

        n = grouped ? group_size(samples + i, count - i) : count;
        INVAR_TRY(call_with_samples(plugin, &call, samples + i, n));
        i += n;
    } while (i < count);
    return INVAR_OK;
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
                      plugin->peer.name, s->index, s->group);
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
        return INVAR_FAIL(INVAR_E_INVALID, 0, "plug-in %s: there is no hook %d", plugin->peer.name,
                          event->hook);
    if (samples)
        INVAR_TRY(make_sample_views(&shown, plugin, samples, count));
    told.samples = call.samples = shown;
    told.count = call.count = shown ? (size_t)count : 0;
    status = dispatch_call(plugin, &call);
    invar_free(shown);
    return status;
}
