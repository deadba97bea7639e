/*
 * plugin_call.c - names of the kinds of calls, and hashes and JSON of a plug-in request.
 *
 * The hash covers all inputs of a call except a hook's event, so a recorded reply is used for the
 * same request only; the factor of a hook is found by its call number alone. The order of fields
 * here is part of the hash, and the hash is in ledgers: never change it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/plugin_call.h"

#include <string.h>

#include "engine/ext/plugin_kinds.h"

#include "base/invar_banned.h"

/* ---- names ----------------------------------------------------------------------------------- */

const char *invar_plugin_kind_name(uint32_t kind)
{
    switch (kind) {
    case INVAR_PLUGIN_KIND_REWARD: return "reward";
    case INVAR_PLUGIN_KIND_GROUP_REWARD: return "group_reward";
    case INVAR_PLUGIN_KIND_FILTER: return "filter";
    case INVAR_PLUGIN_KIND_LOSS: return "loss";
    case INVAR_PLUGIN_KIND_HOOK: return "hook";
    case INVAR_PLUGIN_KIND_GENERATE: return "generate";
    case INVAR_PLUGIN_KIND_TEACHER: return "teacher";
    case INVAR_PLUGIN_KIND_BUFFER_FILTER: return "buffer_filter";
    case INVAR_PLUGIN_KIND_PROMPTS: return "prompts";
    case INVAR_PLUGIN_KIND_AGENT: return "agent";
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

/* ---- hash ------------------------------------------------------------------------------------ */

static void hash_int(invar_hasher *hasher, int64_t value)
{
    invar_hasher_update(hasher, &value, sizeof value);
}

static void hash_block(invar_hasher *hasher, const void *data, size_t bytes)
{
    hash_int(hasher, data ? (int64_t)bytes : -1);
    if (data)
        invar_hasher_update(hasher, data, bytes);
}

static void hash_sample(invar_hasher *hasher, const invar_plugin_sample *s)
{
    hash_int(hasher, s->index);
    hash_int(hasher, s->group);
    hash_block(hasher, s->prompt, strlen(s->prompt));
    hash_block(hasher, s->response, s->response_bytes);
    hash_block(hasher, s->label, strlen(s->label));
    hash_block(hasher, s->metadata, strlen(s->metadata));
    hash_block(hasher, s->finish, strlen(s->finish));
    hash_int(hasher, s->prompt_tokens);
    hash_block(hasher, s->tokens, (size_t)s->n_tokens * sizeof *s->tokens);
    hash_block(hasher, &s->reward, sizeof s->reward);
}

static void hash_turn(invar_hasher *hasher, const invar_plugin_turn *t)
{
    hash_sample(hasher, &t->sample);
    hash_int(hasher, t->turn);
    hash_int(hasher, t->turns);
    hash_block(hasher, t->text, t->text_bytes);
    hash_int(hasher, t->first);
    hash_int(hasher, t->room);
    hash_int(hasher, t->last);
}

static void hash_tokens(invar_hasher *hasher, const invar_plugin_tokens *t)
{
    const float *const arrays[] = {t->logp, t->old, t->rollout, t->ref, t->advantage};

    hash_int(hasher, t->sample);
    hash_int(hasher, t->count);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        hash_block(hasher, arrays[i], (size_t)t->count * sizeof(float));
    hash_block(hasher, t->mask, (size_t)t->count);
}

static void hash_buffer(invar_hasher *hasher, const invar_plugin_buffer *b, size_t count)
{
    hash_int(hasher, b->rollout);
    hash_int(hasher, b->wanted);
    hash_block(hasher, b->since, count * sizeof *b->since);
}

static void hash_wanted(invar_hasher *hasher, const invar_plugin_wanted *w)
{
    hash_int(hasher, w->rollout);
    hash_int(hasher, w->first);
    hash_int(hasher, w->count);
    hash_int(hasher, w->lines);
}

void invar_plugin_call_hash(invar_digest *out, const invar_plugin_call *call)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    hash_int(&hasher, call->kind);
    hash_int(&hasher, (int64_t)call->count);
    for (size_t i = 0; call->samples && i < call->count; i++)
        hash_sample(&hasher, &call->samples[i]);
    for (size_t i = 0; call->turns && i < call->count; i++)
        hash_turn(&hasher, &call->turns[i]);
    if (call->tokens)
        hash_tokens(&hasher, call->tokens);
    if (call->buffer)
        hash_buffer(&hasher, call->buffer, call->count);
    if (call->prompt_request)
        hash_wanted(&hasher, call->prompt_request);
    invar_hasher_final(out, &hasher);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void write_int(invar_json_text *text, const char *key, int64_t value)
{
    invar_json_text_key(text, key);
    invar_json_text_int(text, value);
}

static void write_string(invar_json_text *text, const char *key, const char *value)
{
    invar_json_text_key(text, key);
    invar_json_text_string(text, value, strlen(value));
}

/* Writes the fields that samples and turns have in common. */
static void write_head(invar_json_text *text, const invar_plugin_sample *s)
{
    write_int(text, "index", s->index);
    write_int(text, "group", s->group);
    write_string(text, "prompt", s->prompt);
    invar_json_text_key(text, "response");
    invar_json_text_string(text, s->response, s->response_bytes);
    write_string(text, "label", s->label);
    invar_json_text_key(text, "metadata");
    invar_json_text_value(text, s->metadata, strlen(s->metadata));
    write_string(text, "finish", s->finish);
}

static void write_sample(invar_json_text *text, const invar_plugin_sample *s)
{
    invar_json_text_open(text, '{');
    write_head(text, s);
    write_int(text, "prompt_tokens", s->prompt_tokens);
    invar_json_text_key(text, "tokens");
    invar_json_text_ints(text, s->tokens, s->n_tokens);
    invar_json_text_key(text, "reward");
    invar_json_text_f64(text, s->reward);
    invar_json_text_close(text, '}');
}

static void write_turn(invar_json_text *text, const invar_plugin_turn *t)
{
    invar_json_text_open(text, '{');
    write_head(text, &t->sample);
    write_int(text, "turn", t->turn);
    write_int(text, "turns", t->turns);
    invar_json_text_key(text, "text");
    invar_json_text_string(text, t->text, t->text_bytes);
    invar_json_text_key(text, "tokens");
    invar_json_text_ints(text, t->sample.tokens + t->first, t->sample.n_tokens - t->first);
    write_int(text, "room", t->room);
    invar_json_text_key(text, "last");
    invar_json_text_bool(text, t->last);
    invar_json_text_close(text, '}');
}

static void write_floats(invar_json_text *text, const char *key, const float *values, int64_t count)
{
    invar_json_text_key(text, key);
    invar_json_text_f32s(text, values, count);
}

static void write_tokens(invar_json_text *text, const invar_plugin_tokens *t)
{
    write_int(text, "sample", t->sample);
    write_floats(text, "logp", t->logp, t->count);
    write_floats(text, "old", t->old, t->count);
    write_floats(text, "rollout", t->rollout, t->count);
    write_floats(text, "ref", t->ref, t->count);
    write_floats(text, "advantage", t->advantage, t->count);
    invar_json_text_key(text, "mask");
    invar_json_text_bytes(text, t->mask, t->count);
}

static void write_event(invar_json_text *text, const invar_plugin_event *event)
{
    write_string(text, "hook", invar_plugin_hook_name(event->hook));
    write_int(text, "rollout", event->rollout);
    write_string(text, "run", event->run);
    write_string(text, "folder", event->folder);
    if (event->set)
        write_string(text, "set", event->set);
}

static void write_buffer(invar_json_text *text, const invar_plugin_buffer *b, size_t count)
{
    write_int(text, "rollout", b->rollout);
    write_int(text, "wanted", b->wanted);
    invar_json_text_key(text, "since");
    invar_json_text_open(text, '[');
    for (size_t i = 0; i < count; i++)
        invar_json_text_int(text, b->since[i]);
    invar_json_text_close(text, ']');
}

static void write_wanted(invar_json_text *text, const invar_plugin_wanted *w)
{
    write_int(text, "rollout", w->rollout);
    write_int(text, "first", w->first);
    write_int(text, "count", w->count);
    write_int(text, "lines", w->lines);
}

void invar_plugin_call_write(invar_json_text *text, const invar_plugin_call *call)
{
    invar_json_text_open(text, '{');
    write_int(text, "id", call->id);
    write_int(text, "step", call->step);
    write_string(text, "call", invar_plugin_kind_name(call->kind));
    if (call->samples || call->turns) {
        invar_json_text_key(text, "samples");
        invar_json_text_open(text, '[');
        for (size_t i = 0; call->samples && i < call->count; i++)
            write_sample(text, &call->samples[i]);
        for (size_t i = 0; call->turns && i < call->count; i++)
            write_turn(text, &call->turns[i]);
        invar_json_text_close(text, ']');
    }
    if (call->tokens)
        write_tokens(text, call->tokens);
    if (call->event)
        write_event(text, call->event);
    if (call->buffer)
        write_buffer(text, call->buffer, call->count);
    if (call->prompt_request)
        write_wanted(text, call->prompt_request);
    invar_json_text_close(text, '}');
    invar_json_text_newline(text);
}

void invar_plugin_greet_write(invar_json_text *text, const char *plugin, uint32_t kinds)
{
    invar_json_text_open(text, '{');
    write_int(text, "invar", INVAR_PLUGIN_ABI);
    write_string(text, "plugin", plugin);
    invar_json_text_key(text, "kinds");
    invar_json_text_open(text, '[');
    for (uint32_t kind = 1; kind <= kinds; kind <<= 1) {
        const char *name = invar_plugin_kind_name(kinds & kind);
        if (name)
            invar_json_text_string(text, name, strlen(name));
    }
    invar_json_text_close(text, ']');
    invar_json_text_close(text, '}');
    invar_json_text_newline(text);
}
