/*
 * plugin_call.c - requests to plug-ins: their hash, and their line of JSON.
 *
 * One function per kind of request (kinds.def) names the fields in order, and a sink hashes or
 * writes them. The hash covers all inputs of a call except a hook's event, so a recorded reply is
 * used for the same request only; the factor of a hook is found by its call number alone. The order
 * of fields is part of the hash, and the hash is in ledgers: never change it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/plugin_call.h"

#include <string.h>

#include "base/invar_banned.h"

const char *invar_plugin_kind_name(uint32_t kind)
{
    switch (kind) {
#define INVAR_PLUGIN_KIND(ID, bit, name, ...)                                                      \
    case bit:                                                                                      \
        return name;
#include "engine/ext/kinds.def"
#undef INVAR_PLUGIN_KIND
    default: return NULL;
    }
}

const char *invar_plugin_hook_name(int hook)
{
    static const char *const names[] = {
        [INVAR_PLUGIN_AFTER_INIT] = "after_init",
        [INVAR_PLUGIN_BEFORE_LOGPROB] = "before_logprob",
        [INVAR_PLUGIN_BEFORE_TRAIN_STEP] = "before_train_step",
        [INVAR_PLUGIN_AFTER_ROLLOUT] = "after_rollout",
        [INVAR_PLUGIN_AFTER_EVAL] = "after_eval",
    };

    return names[hook];
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* Destination of the fields of a request; one of the two is set. */
typedef struct field_sink {
    invar_hasher *hasher;
    invar_json_text *text;
} field_sink;

static void hash_int(invar_hasher *hasher, int64_t value)
{
    invar_hasher_update(hasher, &value, sizeof value);
}

/* Hashes a field, or writes its key and returns true; its value must be written next then. */
static bool begin_field(field_sink to, const char *key, const void *data, size_t bytes)
{
    if (to.text)
        invar_json_text_key(to.text, key);
    else
        hash_int(to.hasher, data ? (int64_t)bytes : -1);
    if (!to.text && data)
        invar_hasher_update(to.hasher, data, bytes);
    return to.text;
}

/* Puts an integer, which is not written if the key is NULL. */
static void put_int(field_sink to, const char *key, int64_t value)
{
    if (to.hasher)
        hash_int(to.hasher, value);
    else if (key) {
        invar_json_text_put_int(to.text, key, value);
    }
}

static void put_text(field_sink to, const char *key, const char *value, size_t bytes)
{
    if (begin_field(to, key, value, bytes))
        invar_json_text_string(to.text, value, bytes);
}

static void put_string(field_sink to, const char *key, const char *value)
{
    put_text(to, key, value, strlen(value));
}

static void put_ids(field_sink to, const int32_t *ids, int64_t count)
{
    if (begin_field(to, "tokens", ids, (size_t)count * sizeof *ids))
        invar_json_text_ints(to.text, ids, count);
}

static void put_floats(field_sink to, const char *key, const float *values, int64_t count)
{
    if (begin_field(to, key, values, (size_t)count * sizeof *values))
        invar_json_text_f32s(to.text, values, count);
}

/* ---- kinds of requests ----------------------------------------------------------------------- */

/* Puts a sample; of a turn only the fields that both have are written, but all are hashed. */
static void put_sample(field_sink to, const invar_plugin_sample *s, bool turn)
{
    put_int(to, "index", s->index);
    put_int(to, "group", s->group);
    put_string(to, "prompt", s->prompt);
    put_text(to, "response", s->response, s->response_bytes);
    put_string(to, "label", s->label);
    if (begin_field(to, "metadata", s->metadata, strlen(s->metadata)))
        invar_json_text_value(to.text, s->metadata, strlen(s->metadata));
    put_string(to, "finish", s->finish);
    if (to.text && turn)
        return;
    put_int(to, "prompt_tokens", s->prompt_tokens);
    put_ids(to, s->tokens, s->n_tokens);
    if (begin_field(to, "reward", &s->reward, sizeof s->reward))
        invar_json_text_f64(to.text, s->reward);
}

static void put_turn(field_sink to, const invar_plugin_turn *t)
{
    put_sample(to, &t->sample, true);
    put_int(to, "turn", t->turn);
    put_int(to, "turns", t->turns);
    put_text(to, "text", t->text, t->text_bytes);
    put_int(to, NULL, t->first);
    if (to.text)
        put_ids(to, t->sample.tokens + t->first, t->sample.n_tokens - t->first);
    put_int(to, "room", t->room);
    put_int(to, NULL, t->last);
    if (!to.text)
        return;
    invar_json_text_put_bool(to.text, "last", t->last);
}

/* Writes a bracket; a hash has none. */
static void put_bracket(field_sink to, char bracket)
{
    if (to.text)
        (strchr("[{", bracket) ? invar_json_text_open : invar_json_text_close)(to.text, bracket);
}

static void put_samples(field_sink to, const invar_plugin_call *call)
{
    if (to.text)
        invar_json_text_key(to.text, "samples");
    put_bracket(to, '[');
    for (size_t i = 0; i < call->count; i++) {
        put_bracket(to, '{');
        if (call->turns)
            put_turn(to, &call->turns[i]);
        else
            put_sample(to, &call->samples[i], false);
        put_bracket(to, '}');
    }
    put_bracket(to, ']');
}

static void put_tokens(field_sink to, const invar_plugin_call *call)
{
    const invar_plugin_tokens *t = call->tokens;

    put_int(to, "sample", t->sample);
    put_int(to, NULL, t->count);
    put_floats(to, "logp", t->logp, t->count);
    put_floats(to, "old", t->old, t->count);
    put_floats(to, "rollout", t->rollout, t->count);
    put_floats(to, "ref", t->ref, t->count);
    put_floats(to, "advantage", t->advantage, t->count);
    if (begin_field(to, "mask", t->mask, (size_t)t->count))
        invar_json_text_bytes(to.text, t->mask, t->count);
}

static void put_event(field_sink to, const invar_plugin_call *call)
{
    if (call->samples)
        put_samples(to, call);
    if (to.hasher)
        return;
    put_string(to, "hook", invar_plugin_hook_name(call->event->hook));
    put_int(to, "rollout", call->event->rollout);
    put_string(to, "run", call->event->run);
    put_string(to, "folder", call->event->folder);
    if (call->event->set)
        put_string(to, "set", call->event->set);
}

static void put_buffer(field_sink to, const invar_plugin_call *call)
{
    const invar_plugin_buffer *b = call->buffer;

    put_samples(to, call);
    put_int(to, "rollout", b->rollout);
    put_int(to, "wanted", b->wanted);
    if (!begin_field(to, "since", b->since, call->count * sizeof *b->since))
        return;
    invar_json_text_open(to.text, '[');
    for (size_t i = 0; i < call->count; i++)
        invar_json_text_int(to.text, b->since[i]);
    invar_json_text_close(to.text, ']');
}

static void put_wanted(field_sink to, const invar_plugin_call *call)
{
    put_int(to, "rollout", call->prompt_request->rollout);
    put_int(to, "first", call->prompt_request->first);
    put_int(to, "count", call->prompt_request->count);
    put_int(to, "lines", call->prompt_request->lines);
}

static void put_request(field_sink to, const invar_plugin_call *call)
{
    switch (call->kind) {
#define INVAR_PLUGIN_KIND(ID, bit, name, asked, ...)                                               \
    case bit:                                                                                      \
        put_##asked(to, call);                                                                     \
        break;
#include "engine/ext/kinds.def"
#undef INVAR_PLUGIN_KIND
    }
}

/* ---- encodings ------------------------------------------------------------------------------- */

void invar_plugin_call_hash(invar_digest *out, const invar_plugin_call *call)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    hash_int(&hasher, call->kind);
    hash_int(&hasher, (int64_t)call->count);
    put_request((field_sink){.hasher = &hasher}, call);
    invar_hasher_final(out, &hasher);
}

void invar_plugin_call_write(invar_json_text *text, const invar_plugin_call *call)
{
    const field_sink to = {.text = text};

    invar_json_text_open(text, '{');
    put_int(to, "id", call->id);
    put_int(to, "step", call->step);
    put_string(to, "call", invar_plugin_kind_name(call->kind));
    put_request(to, call);
    invar_json_text_close(text, '}');
    invar_json_text_newline(text);
}

void invar_plugin_greet_write(invar_json_text *text, const char *plugin, uint32_t kinds)
{
    invar_json_text_open(text, '{');
    put_int((field_sink){.text = text}, "invar", INVAR_PLUGIN_ABI);
    put_string((field_sink){.text = text}, "plugin", plugin);
    invar_json_text_put_open(text, "kinds", '[');
    for (uint32_t kind = 1; kind <= kinds; kind <<= 1) {
        const char *name = invar_plugin_kind_name(kinds & kind);
        if (name)
            invar_json_text_string(text, name, strlen(name));
    }
    invar_json_text_close(text, ']');
    invar_json_text_close(text, '}');
    invar_json_text_newline(text);
}
