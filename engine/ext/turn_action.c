/*
 * turn_action.c - JSON of the actions of a plug-in after a turn.
 *
 * An action has either "insert" (with optional "stop" and "max_tokens") or "end" (with an optional
 * "reward"). The rules are strict, because an action that is misread changes the sample silently.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/turn_action.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "engine/ext/plugin_call.h"

#include "base/invar_banned.h"

#define MAX_STOPS 64
#define MAX_TOKENS 16777216 /* longest response that a recipe can ask for */

void invar_turn_action_release(invar_turn_action *next)
{
    invar_reward_parts_release(&next->parts);
    invar_free(next->text);
    invar_free(next->tokens);
    invar_free(next->stop);
    *next = (invar_turn_action){.end = false};
}

/* ---- reading --------------------------------------------------------------------------------- */

static invar_status read_text(invar_turn_action *out, const json_t *value)
{
    out->text_bytes = json_string_length(value);
    INVAR_TRY(INVAR_ALLOC(out->text, out->text_bytes + 1, "text that is inserted"));
    memcpy(out->text, json_string_value(value), out->text_bytes + 1);
    return INVAR_OK;
}

static invar_status read_tokens(invar_turn_action *out, const json_t *list, const char *where)
{
    size_t count = json_array_size(list);

    INVAR_TRY(INVAR_ALLOC(out->tokens, count + 1, "tokens that are inserted"));
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        json_int_t id = json_integer_value(value);

        if (!json_is_integer(value) || id < 0 || id > INT32_MAX)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"insert\" has no token id at %zu", where,
                              i);
        out->tokens[i] = (int32_t)id;
    }
    out->n_tokens = (int64_t)count;
    return INVAR_OK;
}

/* Checks stop strings. An empty one would never end a turn. */
static invar_status check_stop(const json_t *list, const char *where)
{
    if (!json_is_array(list) || json_array_size(list) > MAX_STOPS)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"stop\" is no list of at most %d texts", where,
                          MAX_STOPS);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_string_length(json_array_get(list, i)) == 0)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"stop\" has no text at %zu", where, i);
    return INVAR_OK;
}

static invar_status read_stop(invar_turn_action *out, const json_t *list, const char *where)
{
    size_t count = json_array_size(list), bytes = sizeof *out->stop + count * sizeof(char *);
    char *at;

    INVAR_TRY(check_stop(list, where));
    for (size_t i = 0; i < count; i++)
        bytes += json_string_length(json_array_get(list, i)) + 1;
    INVAR_TRY(INVAR_ALLOC_SIZED(out->stop, bytes, 1, "strings that end a turn"));
    out->stop->count = (int64_t)count;
    out->stop->strings = (const char **)(out->stop + 1);
    at = (char *)(out->stop->strings + count);
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);

        out->stop->strings[i] = at;
        memcpy(at, json_string_value(value), json_string_length(value) + 1);
        at += json_string_length(value) + 1;
    }
    return INVAR_OK;
}

static invar_status read_insertion(invar_turn_action *out, const json_t *object, const char *where)
{
    const json_t *value = json_object_get(object, "insert"),
                 *stop = json_object_get(object, "stop");

    if (stop)
        INVAR_TRY(read_stop(out, stop, where));
    if (json_object_get(object, "max_tokens"))
        INVAR_TRY(invar_json_as_corrupt(
            invar_json_int(&out->max_tokens, object, "max_tokens", where, 1, MAX_TOKENS)));
    if (json_is_string(value))
        return read_text(out, value);
    if (json_is_array(value))
        return read_tokens(out, value, where);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%s: \"insert\" is neither a text nor a list of token ids", where);
}

static invar_status read_end(invar_turn_action *out, const json_t *object, const char *where)
{
    json_t *reward = json_object_get(object, "reward");

    out->end = true;
    out->rewarded = reward != NULL;
    return reward ? invar_plugin_reward_read(&out->reward, &out->parts, reward, where) : INVAR_OK;
}

static invar_status read_next(invar_turn_action *out, const json_t *object, const char *where)
{
    const json_t *end = json_object_get(object, "end");
    bool ends = json_is_true(end), goes_on = json_object_get(object, "insert") != NULL;

    if (end && !json_is_boolean(end))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"end\" is neither true nor false", where);
    if (!ends && json_object_get(object, "reward"))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: a \"reward\" without \"end\": true", where);
    if (ends == goes_on)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: a turn needs \"insert\" to continue or \"end\": true, and not both",
                          where);
    return ends ? read_end(out, object, where) : read_insertion(out, object, where);
}

invar_status invar_turn_actions_read(invar_turn_action *out, size_t count, const json_t *reply,
                                     const char *where)
{
    const json_t *list;

    INVAR_TRY(invar_plugin_list_read(&list, reply, "turns", count, where));
    for (size_t i = 0; i < count; i++)
        INVAR_TRY(read_next(&out[i], json_array_get(list, i), where));
    return INVAR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_reward(invar_json_text *text, const invar_plugin_next *next,
                         const char *const *names)
{
    invar_json_text_key(text, "reward");
    if (!next->parts || !names) {
        invar_json_text_f64(text, next->reward);
        return;
    }
    invar_json_text_open(text, '{');
    for (size_t i = 0; names[i]; i++) {
        invar_json_text_put_f64(text, names[i], next->parts[i]);
    }
    invar_json_text_put_f64(text, INVAR_PLUGIN_TOTAL, next->reward);
    invar_json_text_close(text, '}');
}

static void write_insertion(invar_json_text *text, const invar_plugin_next *next)
{
    invar_json_text_key(text, "insert");
    if (next->text)
        invar_json_text_string(text, next->text, next->text_bytes);
    else if (next->n_tokens > 0)
        invar_json_text_ints(text, next->tokens, next->n_tokens);
    else
        invar_json_text_string(text, "", 0);
    if (next->max_tokens != 0) {
        invar_json_text_put_int(text, "max_tokens", next->max_tokens);
    }
    if (!next->stop)
        return;
    invar_json_text_put_open(text, "stop", '[');
    for (size_t i = 0; next->stop[i]; i++)
        invar_json_text_string(text, next->stop[i], strlen(next->stop[i]));
    invar_json_text_close(text, ']');
}

void invar_turn_actions_write(invar_json_text *text, const invar_plugin_next *next, size_t count,
                              const char *const *names)
{
    invar_json_text_open(text, '{');
    invar_json_text_put_open(text, "turns", '[');
    for (size_t i = 0; i < count; i++) {
        invar_json_text_open(text, '{');
        if (next[i].end) {
            invar_json_text_put_bool(text, "end", true);
        }
        if (next[i].end && next[i].rewarded)
            write_reward(text, &next[i], names);
        if (!next[i].end)
            write_insertion(text, &next[i]);
        invar_json_text_close(text, '}');
    }
    invar_json_text_close(text, ']');
    invar_json_text_close(text, '}');
}
