/*
 * reply_parse.c - parses and checks the replies of plug-ins, which may be any bytes.
 *
 * Replies come from programs, shared objects, servers and ledgers. JSON and plain encodings
 * (plugin_call.h) fill the same buffers, and check_values applies the same checks to both: a value
 * that is not finite or out of range never reaches the loss.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "base/recipe/choices.h"
#include "base/text.h"
#include "engine/ext/line_process.h"
#include "engine/ext/plugin.h"
#include "engine/ext/plugin_call.h"

#include "base/invar_banned.h"

#define WHERE_SIZE 1024

static void format_where(char out[WHERE_SIZE], const char *plugin)
{
    snprintf(out, WHERE_SIZE, "plug-in %.1000s", plugin);
}

/* Parses a line of a program, which must be a JSON object. */
static invar_status parse_line(json_t **out, const char *where, const char *data, size_t bytes)
{
    char hint[INVAR_LINE_PROCESS_HINT_SIZE];
    invar_status status = invar_json_as_corrupt(invar_json_parse(out, where, data, bytes));

    if (status == INVAR_OK && json_is_object(*out))
        return INVAR_OK;
    invar_line_process_hint(hint, data, bytes);
    if (status != INVAR_OK)
        return INVAR_FAIL(status, 0, "%s%s", invar_error_last()->message, hint);
    json_decref(*out);
    *out = NULL;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: its line is no JSON object%s", where, hint);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

invar_status invar_plugin_list_read(const json_t **out, const json_t *reply, const char *key,
                                    size_t count, const char *where)
{
    const json_t *list = json_object_get(reply, key);

    if (!json_is_array(list))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: the reply has no list \"%s\"", where, key);
    if (json_array_size(list) != count)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"%s\" has %zu values, expected %zu", where, key,
                          json_array_size(list), count);
    *out = list;
    return INVAR_OK;
}

static invar_status read_number(double *out, const json_t *list, size_t i, const char *key,
                                const char *where)
{
    const json_t *value = json_array_get(list, i);

    if (!json_is_number(value))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"%s\" has no number at %zu", where, key, i);
    *out = json_number_value(value);
    return INVAR_OK;
}

/*
 * Parses an object of named parts. Its "total", if present, is the reward, otherwise the sum of the
 * parts is.
 */
static invar_status read_parts(double *out, invar_reward_parts *parts, json_t *object,
                               const char *where)
{
    const json_t *total = json_object_get(object, INVAR_PLUGIN_TOTAL), *value;
    const char *name;

    json_object_foreach(object, name, value)
    {
        bool truth = json_is_boolean(value);
        if (value == total || (!truth && !json_is_number(value)))
            continue; // texts and lists are explanations; they are kept with the reply
        INVAR_TRY(invar_reward_parts_add(parts, name, strlen(name),
                                         truth ? json_is_true(value) : json_number_value(value),
                                         where));
    }
    if (total && !json_is_number(total))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: the total of a reward is no number", where);
    if (parts->count == 0)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: a reward has no named part", where);
    *out = total ? json_number_value(total) : invar_reward_parts_sum(parts);
    return INVAR_OK;
}

invar_status invar_plugin_reward_read(double *out, invar_reward_parts *parts, json_t *value,
                                      const char *where)
{
    if (json_is_object(value))
        INVAR_TRY(read_parts(out, parts, value, where));
    else if (json_is_number(value))
        *out = json_number_value(value);
    else
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: a reward is neither a number nor an object of parts", where);
    if (!isfinite((float)*out)) // advantages are floats
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: a reward is not finite", where);
    return INVAR_OK;
}

static invar_status read_rewards(const invar_plugin_call *call, const json_t *reply,
                                 const char *where)
{
    const json_t *list;

    INVAR_TRY(invar_plugin_list_read(&list, reply, "rewards", call->count, where));
    for (size_t i = 0; i < call->count; i++) {
        json_t *value = json_array_get(list, i);
        if (json_is_object(value))
            INVAR_TRY(read_parts(&call->reward[i], &call->parts[i], value, where));
        else
            INVAR_TRY(read_number(&call->reward[i], list, i, "rewards", where));
    }
    return INVAR_OK;
}

enum { VERDICTS = 3 };

static invar_choices verdict_words(const invar_plugin_call *call)
{
    static const char *const filter[VERDICTS] = {[INVAR_PLUGIN_KEEP] = "keep",
                                                 [INVAR_PLUGIN_REMOVE] = "remove",
                                                 [INVAR_PLUGIN_DROP] = "drop"};
    static const char *const buffer[VERDICTS] = {
        [INVAR_PLUGIN_TAKE] = "take", [INVAR_PLUGIN_WAIT] = "wait", [INVAR_PLUGIN_DROP] = "drop"};

    return (invar_choices){call->buffer ? buffer : filter, VERDICTS};
}

static invar_status read_verdicts(const invar_plugin_call *call, const json_t *reply,
                                  const char *where)
{
    const invar_choices verdicts = verdict_words(call);
    char known[INVAR_CHOICES_TEXT_SIZE];
    const json_t *list;

    INVAR_TRY(invar_plugin_list_read(&list, reply, "verdicts", call->count, where));
    for (size_t i = 0; i < call->count; i++) {
        const char *word = json_string_value(json_array_get(list, i));
        const int verdict = word ? invar_choices_find(&verdicts, word, strlen(word)) : -1;
        if (verdict < 0) {
            invar_choices_text(known, sizeof known, &verdicts, ", ", " nor ");
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"verdicts\" has neither %s at %zu", where,
                              known, i);
        }
        call->verdict[i] = (uint8_t)verdict;
    }
    return INVAR_OK;
}

static invar_status read_lines(const invar_plugin_call *call, const json_t *reply,
                               const char *where)
{
    const json_t *list;

    INVAR_TRY(invar_plugin_list_read(&list, reply, "prompts", (size_t)call->prompt_request->count,
                                     where));
    for (size_t i = 0; i < (size_t)call->prompt_request->count; i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_integer(value))
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"prompts\" has no integer at %zu", where,
                              i);
        call->lines[i] = json_integer_value(value);
    }
    return INVAR_OK;
}

static invar_status read_floats(float *out, int64_t count, const json_t *reply, const char *key,
                                const char *where)
{
    const json_t *list;
    double value;

    INVAR_TRY(invar_plugin_list_read(&list, reply, key, (size_t)count, where));
    for (size_t i = 0; i < (size_t)count; i++) {
        INVAR_TRY(read_number(&value, list, i, key, where));
        out[i] = (float)value;
    }
    return INVAR_OK;
}

static invar_status read_loss(const invar_plugin_call *call, const json_t *reply, const char *where)
{
    INVAR_TRY(read_floats(call->dlogp, call->tokens->count, reply, "dlogp", where));
    return read_floats(call->loss, call->tokens->count, reply, "loss", where);
}

/*
 * Reads the optional {"loss_factor": NUMBER}, which only the hook before a training step may give.
 */
static invar_status read_factor(const invar_plugin_call *call, const json_t *reply,
                                const char *where)
{
    const json_t *value = json_object_get(reply, "loss_factor");

    if (!value)
        return INVAR_OK;
    if (call->event->hook != INVAR_PLUGIN_BEFORE_TRAIN_STEP)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"loss_factor\" is for before_train_step alone",
                          where);
    if (!json_is_number(value) || !isfinite((float)json_number_value(value)))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"loss_factor\" is no finite number", where);
    *call->factor = json_number_value(value);
    return INVAR_OK;
}

/* Reads the optional {"metrics": {"NAME": NUMBER}} of a hook, which become gauges of the step. */
static invar_status read_measures(const invar_plugin_call *call, const json_t *reply,
                                  const char *where)
{
    json_t *object = json_object_get(reply, "metrics"), *value;
    const char *name;

    if (object && !json_is_object(object))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"metrics\" is no object", where);
    if (json_object_size(object) > 0 && call->event->hook == INVAR_PLUGIN_AFTER_EVAL)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: \"metrics\" after an evaluation: they would belong to no step",
                          where);
    json_object_foreach(object, name, value)
    {
        if (!json_is_number(value))
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: a metric of \"metrics\" is no number",
                              where);
        INVAR_TRY(invar_reward_parts_add(call->measures, name, strlen(name),
                                         json_number_value(value), where));
    }
    return read_factor(call, reply, where);
}

/* Checks the parts that all replies have in common: the id of the request, and no error. */
static invar_status check_reply(const invar_plugin_call *call, const json_t *reply, bool live,
                                const char *where)
{
    char quote[INVAR_TEXT_QUOTE_SIZE * 3];
    const json_t *error;
    int64_t id;

    if (live) {
        INVAR_TRY(
            invar_json_as_corrupt(invar_json_int(&id, reply, "id", where, INT64_MIN, INT64_MAX)));
        if (id != call->id)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "%s: the reply has id %" PRId64 ", the request had %" PRId64, where,
                              id, call->id);
    }
    error = json_object_get(reply, "error");
    if (!error)
        return INVAR_OK;
    if (!json_is_string(error))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"error\" is no text", where);
    invar_text_quote(quote, sizeof quote, json_string_value(error), json_string_length(error));
    return INVAR_FAIL(INVAR_E_STATE, 0, "%s: it refuses: %s", where, quote);
}

static invar_status read_values(const invar_plugin_call *call, const json_t *reply,
                                const char *where)
{
    switch (call->kind) {
    case INVAR_PLUGIN_KIND_FILTER:
    case INVAR_PLUGIN_KIND_BUFFER_FILTER: return read_verdicts(call, reply, where);
    case INVAR_PLUGIN_KIND_PROMPTS: return read_lines(call, reply, where);
    case INVAR_PLUGIN_KIND_LOSS: return read_loss(call, reply, where);
    case INVAR_PLUGIN_KIND_HOOK: return read_measures(call, reply, where);
    case INVAR_PLUGIN_KIND_GENERATE:
        return invar_turn_actions_read(call->next, call->count, reply, where);
    case INVAR_PLUGIN_KIND_TEACHER:
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: a teacher's reply is stored as plain numbers",
                          where);
    default: return read_rewards(call, reply, where);
    }
}

static invar_status read_json(const invar_plugin_call *call, const char *data, size_t bytes,
                              bool live)
{
    char where[WHERE_SIZE];
    json_t *reply;
    invar_status status;

    format_where(where, call->plugin);
    INVAR_TRY(parse_line(&reply, where, data, bytes));
    status = check_reply(call, reply, live, where);
    if (status == INVAR_OK)
        status = read_values(call, reply, where);
    json_decref(reply);
    return status;
}

/* ---- plain values ---------------------------------------------------------------------------- */

/* One array of an answer. */
typedef struct answer_array {
    void *data;
    size_t bytes;
} answer_array;

enum { MAX_ARRAYS = 2 };

/* Number of log-probs of a teacher: one for each token of a response. */
static int64_t scored_tokens(const invar_plugin_call *call)
{
    int64_t count = 0;

    for (size_t i = 0; call->logp && i < call->count; i++)
        count += call->samples[i].n_tokens - call->samples[i].prompt_tokens;
    return count;
}

static int list_answer_arrays(answer_array out[MAX_ARRAYS], const invar_plugin_call *call)
{
    size_t tokens = call->tokens ? (size_t)call->tokens->count * sizeof(float) : 0;

    switch (call->kind) {
    case INVAR_PLUGIN_KIND_FILTER:
    case INVAR_PLUGIN_KIND_BUFFER_FILTER:
        out[0] = (answer_array){call->verdict, call->count};
        return 1;
    case INVAR_PLUGIN_KIND_PROMPTS:
        out[0] =
            (answer_array){call->lines, (size_t)call->prompt_request->count * sizeof *call->lines};
        return 1;
    case INVAR_PLUGIN_KIND_LOSS:
        out[0] = (answer_array){call->dlogp, tokens};
        out[1] = (answer_array){call->loss, tokens};
        return 2;
    case INVAR_PLUGIN_KIND_HOOK: return 0;
    case INVAR_PLUGIN_KIND_TEACHER:
        out[0] = (answer_array){call->logp, (size_t)scored_tokens(call) * sizeof *call->logp};
        return 1;
    default: out[0] = (answer_array){call->reward, call->count * sizeof(double)}; return 1;
    }
}

static invar_status fail_not_finite(const invar_plugin_call *call, const char *what, int64_t i)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "plug-in %.1000s: %s %" PRId64 " is not finite",
                      call->plugin, what, i);
}

static invar_status check_values(const invar_plugin_call *call)
{
    int64_t tokens = call->kind == INVAR_PLUGIN_KIND_LOSS ? call->tokens->count : 0;
    int64_t scored = scored_tokens(call);

    for (size_t i = 0; call->reward && i < call->count; i++) {
        if (!isfinite(call->reward[i]))
            return fail_not_finite(call, "the reward of sample", call->samples[i].index);
    }
    for (size_t i = 0; call->verdict && i < call->count; i++) {
        const invar_choices words = verdict_words(call);
        char known[INVAR_CHOICES_TEXT_SIZE];
        if (call->verdict[i] < VERDICTS)
            continue;
        invar_choices_text(known, sizeof known, &words, ", ", " or ");
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "plug-in %.1000s: the verdict on sample %" PRId64 " is %d, not %s",
                          call->plugin, call->samples[i].index, call->verdict[i], known);
    }
    for (int64_t i = 0; call->lines && i < call->prompt_request->count; i++)
        if (call->lines[i] < 0 || call->lines[i] >= call->prompt_request->lines)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "plug-in %.1000s: prompt %" PRId64 " is line %" PRId64
                              " of prompt-data, which has %" PRId64,
                              call->plugin, i, call->lines[i], call->prompt_request->lines);
    for (int64_t i = 0; i < tokens; i++) {
        if (!isfinite(call->dlogp[i]) || !isfinite(call->loss[i]))
            return fail_not_finite(call, "the loss or dlogp of token", i);
    }
    for (int64_t i = 0; i < scored; i++)
        if (!isfinite(call->logp[i]))
            return fail_not_finite(call, "the log-probability of token", i);
    return INVAR_OK;
}

static invar_status fail_size(const invar_plugin_call *call, size_t bytes, size_t expected)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "plug-in %.1000s: the stored reply to call %" PRId64
                      " has %zu bytes, not JSON and not %zu",
                      call->plugin, call->id, bytes, expected);
}

/*
 * Size of the encoded reward parts: for each reward their number and the parts; 0 if there are no
 * parts.
 */
static size_t named_bytes(const invar_plugin_call *call)
{
    size_t bytes = 0;

    for (size_t i = 0; call->parts && i < call->count; i++)
        bytes += (size_t)call->parts[i].count * sizeof(invar_reward_part);
    return bytes ? bytes + call->count * sizeof(int64_t) : 0;
}

static void write_named(char *at, const invar_plugin_call *call)
{
    for (size_t i = 0; i < call->count; i++) {
        const invar_reward_parts *parts = &call->parts[i];
        size_t bytes = (size_t)parts->count * sizeof *parts->items;
        memcpy(at, &parts->count, sizeof parts->count);
        if (bytes)
            memcpy(at + sizeof parts->count, parts->items, bytes);
        at += sizeof parts->count + bytes;
    }
}

static invar_status read_named(const invar_plugin_call *call, const char *at, size_t left)
{
    char where[WHERE_SIZE];
    invar_reward_part part;
    int64_t count;

    format_where(where, call->plugin);
    for (size_t i = 0; i < call->count; i++) {
        if (left < sizeof count)
            return fail_size(call, left, sizeof count);
        memcpy(&count, at, sizeof count);
        at += sizeof count;
        left -= sizeof count;
        if (count < 0 || count > INVAR_REWARD_PARTS || (size_t)count * sizeof part > left)
            return fail_size(call, left, INVAR_REWARD_PARTS * sizeof part);
        for (int64_t k = 0; k < count; k++, at += sizeof part, left -= sizeof part) {
            memcpy(&part, at, sizeof part);
            INVAR_TRY(invar_reward_parts_add(&call->parts[i], part.name,
                                             strnlen(part.name, sizeof part.name), part.value,
                                             where));
        }
    }
    return left ? fail_size(call, left, 0) : INVAR_OK;
}

static invar_status read_plain(const invar_plugin_call *call, const char *data, size_t bytes)
{
    answer_array parts[MAX_ARRAYS];
    int count = list_answer_arrays(parts, call);
    bool named = bytes > 0 && data[0] == 'p' && call->parts;
    size_t expected = 1;

    for (int i = 0; i < count; i++)
        expected += parts[i].bytes;
    if (named ? bytes < expected : bytes != expected || data[0] != 'b')
        return fail_size(call, bytes, expected);
    data++;
    for (int i = 0; i < count; data += parts[i++].bytes)
        memcpy(parts[i].data, data, parts[i].bytes);
    return named ? read_named(call, data, bytes - expected) : INVAR_OK;
}

invar_status invar_plugin_call_read(const invar_plugin_call *call, const char *data, size_t bytes,
                                    bool live)
{
    bool plain = bytes == 0 || data[0] == 'b' || data[0] == 'p';

    if (live || !plain || call->kind == INVAR_PLUGIN_KIND_GENERATE)
        INVAR_TRY(read_json(call, data, bytes, live));
    else
        INVAR_TRY(read_plain(call, data, bytes));
    return check_values(call);
}

invar_status invar_plugin_call_pack(char **out, size_t *bytes_out, const invar_plugin_call *call)
{
    answer_array parts[MAX_ARRAYS];
    int count = list_answer_arrays(parts, call);
    size_t bytes = 1, named = named_bytes(call);
    char *data, *at;

    INVAR_TRY(check_values(call));
    for (int i = 0; i < count; i++)
        bytes += parts[i].bytes;
    bytes += named;
    INVAR_TRY(INVAR_ALLOC(data, bytes, "a reply"));
    data[0] = named ? 'p' : 'b';
    at = data + 1;
    for (int i = 0; i < count; at += parts[i++].bytes)
        memcpy(at, parts[i].data, parts[i].bytes);
    if (named)
        write_named(at, call);
    *out = data;
    *bytes_out = bytes;
    return INVAR_OK;
}

/* ---- handshake ------------------------------------------------------------------------------- */

static invar_status read_kinds(uint32_t *out, const json_t *reply, const char *where)
{
    const json_t *list = json_object_get(reply, "kinds");

    *out = 0;
    if (!json_is_array(list))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: its first line has no list \"kinds\"", where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *word = json_string_value(json_array_get(list, i));
        for (uint32_t kind = 1; word && invar_plugin_kind_name(kind); kind <<= 1)
            *out |= strcmp(word, invar_plugin_kind_name(kind)) == 0 ? kind : 0;
    }
    return INVAR_OK;
}

static invar_status read_greeting(char title_out[INVAR_PLUGIN_TITLE_SIZE], uint32_t *kinds_out,
                                  const json_t *reply, const char *where)
{
    const char *title;
    int64_t version;

    INVAR_TRY(invar_json_as_corrupt(invar_json_int(&version, reply, "invar", where, 0, INT64_MAX)));
    if (version != INVAR_PLUGIN_ABI)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: it speaks version %" PRId64 " of the protocol, this engine %d",
                          where, version, INVAR_PLUGIN_ABI);
    INVAR_TRY(invar_json_as_corrupt(invar_json_string(&title, reply, "name", where)));
    invar_text_quote(title_out, INVAR_PLUGIN_TITLE_SIZE, title, strlen(title));
    return read_kinds(kinds_out, reply, where);
}

invar_status invar_plugin_greet_read(char title_out[INVAR_PLUGIN_TITLE_SIZE], uint32_t *kinds_out,
                                     const char *plugin, const char *data, size_t bytes)
{
    char where[WHERE_SIZE];
    json_t *reply;
    invar_status status;

    format_where(where, plugin);
    INVAR_TRY(parse_line(&reply, where, data, bytes));
    status = read_greeting(title_out, kinds_out, reply, where);
    json_decref(reply);
    return status;
}
