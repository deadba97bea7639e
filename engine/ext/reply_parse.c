/*
 * reply_parse.c - parses and checks the replies of plug-ins, which may be any bytes.
 *
 * Replies come from programs, shared objects, servers and ledgers. JSON and plain encodings
 * (plugin_call.h) fill the same lists, which list_answers names, and check_value applies the same
 * checks to both: a value that is not finite or out of range never reaches the loss.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/recipe/choices.h"
#include "base/text.h"
#include "engine/ext/line_process.h"
#include "engine/ext/plugin_call.h"

#include "base/invar_banned.h"

#define WHERE_SIZE 1024
#define FAIL(...) INVAR_FAIL(INVAR_E_CORRUPT, 0, __VA_ARGS__)

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
    return FAIL("%s: its line is no JSON object%s", where, hint);
}

/* ---- values of an answer --------------------------------------------------------------------- */

typedef enum value_type { REWARD, VERDICT, PROMPT, LOSS, LOGP } value_type;

/* One list of an answer: a member of the reply, and the buffer of the call for its values. */
typedef struct answer_list {
    const char *key;
    value_type type;
    void *data;
    size_t count, size; /* number of values, bytes of one */
} answer_list;

enum { MAX_LISTS = 2, VERDICTS = 3 };

/* Number of log-probs of a teacher: one for each token of a response. */
static size_t scored_tokens(const invar_plugin_call *call)
{
    int64_t count = 0;

    for (size_t i = 0; call->logp && i < call->count; i++)
        count += call->samples[i].n_tokens - call->samples[i].prompt_tokens;
    return (size_t)count;
}

/* Finds the lists for which the call has buffers. Unused ones have no values. */
static void list_answers(answer_list out[MAX_LISTS], const invar_plugin_call *call)
{
    const size_t lines = call->lines ? (size_t)call->prompt_request->count : 0;
    const size_t tokens = call->tokens ? (size_t)call->tokens->count : 0;
    const answer_list all[] = {
        {"rewards", REWARD, call->reward, call->count, sizeof *call->reward},
        {"verdicts", VERDICT, call->verdict, call->count, sizeof *call->verdict},
        {"prompts", PROMPT, call->lines, lines, sizeof *call->lines},
        {"dlogp", LOSS, call->dlogp, tokens, sizeof *call->dlogp},
        {"loss", LOSS, call->loss, tokens, sizeof *call->loss},
        {"logp", LOGP, call->logp, scored_tokens(call), sizeof *call->logp},
    };
    int count = 0;

    memset(out, 0, MAX_LISTS * sizeof *out);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].data)
            out[count++] = all[i];
}

static invar_choices verdict_words(const invar_plugin_call *call)
{
    static const char *const filter[VERDICTS] = {[INVAR_PLUGIN_KEEP] = "keep",
                                                 [INVAR_PLUGIN_REMOVE] = "remove",
                                                 [INVAR_PLUGIN_DROP] = "drop"};
    static const char *const buffer[VERDICTS] = {
        [INVAR_PLUGIN_TAKE] = "take", [INVAR_PLUGIN_WAIT] = "wait", [INVAR_PLUGIN_DROP] = "drop"};

    return (invar_choices){call->buffer ? buffer : filter, VERDICTS};
}

static invar_status check_value(const invar_plugin_call *call, const answer_list *list, size_t i)
{
    static const char *const names[] = {[REWARD] = "reward of sample",
                                        [LOSS] = "loss or dlogp of token",
                                        [LOGP] = "log-probability of token"};
    const int64_t number = call->samples && list->type < LOSS ? call->samples[i].index : (int64_t)i;
    char known[INVAR_CHOICES_TEXT_SIZE];

    if (list->type == VERDICT) {
        const invar_choices words = verdict_words(call);
        const int verdict = ((const uint8_t *)list->data)[i];
        if (verdict < VERDICTS)
            return INVAR_OK;
        invar_choices_text(known, sizeof known, &words, ", ", " or ");
        return FAIL("plug-in %.1000s: the verdict on sample %" PRId64 " is %d, not %s",
                    call->plugin, number, verdict, known);
    }
    if (list->type == PROMPT) {
        const int64_t line = call->lines[i], lines = call->prompt_request->lines;
        return line >= 0 && line < lines
                   ? INVAR_OK
                   : FAIL("plug-in %.1000s: prompt %" PRId64 " is line %" PRId64
                          " of prompt-data, which has %" PRId64,
                          call->plugin, number, line, lines);
    }
    if (list->type == REWARD ? isfinite(call->reward[i]) : isfinite(((const float *)list->data)[i]))
        return INVAR_OK;
    return FAIL("plug-in %.1000s: the %s %" PRId64 " is not finite", call->plugin,
                names[list->type], number);
}

static invar_status check_values(const invar_plugin_call *call, const answer_list lists[MAX_LISTS])
{
    for (size_t i = 0; i < lists[0].count; i++)
        for (int k = 0; k < MAX_LISTS && i < lists[k].count; k++)
            INVAR_TRY(check_value(call, &lists[k], i));
    return INVAR_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

invar_status invar_plugin_list_read(const json_t **out, const json_t *reply, const char *key,
                                    size_t count, const char *where)
{
    *out = json_object_get(reply, key);
    if (!json_is_array(*out))
        return FAIL("%s: the reply has no list \"%s\"", where, key);
    if (json_array_size(*out) != count)
        return FAIL("%s: \"%s\" has %zu values, expected %zu", where, key, json_array_size(*out),
                    count);
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
        return FAIL("%s: the total of a reward is no number", where);
    if (parts->count == 0)
        return FAIL("%s: a reward has no named part", where);
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
        return FAIL("%s: a reward is neither a number nor an object of parts", where);
    return isfinite((float)*out) ? INVAR_OK // advantages are floats
                                 : FAIL("%s: a reward is not finite", where);
}

/* Parses value i of a list. */
static invar_status read_value(const invar_plugin_call *call, const answer_list *list, size_t i,
                               json_t *value, const char *where)
{
    const invar_choices verdicts = verdict_words(call);
    const char *word = json_string_value(value);
    char known[INVAR_CHOICES_TEXT_SIZE];
    int verdict;

    if (list->type == REWARD && json_is_object(value))
        return read_parts(&call->reward[i], &call->parts[i], value, where);
    if (list->type == VERDICT) {
        verdict = word ? invar_choices_find(&verdicts, word, strlen(word)) : -1;
        call->verdict[i] = (uint8_t)verdict;
        if (verdict >= 0)
            return INVAR_OK;
        invar_choices_text(known, sizeof known, &verdicts, ", ", " nor ");
        return FAIL("%s: \"%s\" has neither %s at %zu", where, list->key, known, i);
    }
    if (list->type == PROMPT ? !json_is_integer(value) : !json_is_number(value))
        return FAIL("%s: \"%s\" has no %s at %zu", where, list->key,
                    list->type == PROMPT ? "integer" : "number", i);
    if (list->type == PROMPT)
        call->lines[i] = json_integer_value(value);
    else if (list->type == REWARD)
        call->reward[i] = json_number_value(value);
    else
        ((float *)list->data)[i] = (float)json_number_value(value);
    return INVAR_OK;
}

static invar_status read_lists(const invar_plugin_call *call, const json_t *reply,
                               const char *where)
{
    answer_list lists[MAX_LISTS];
    const json_t *values;

    list_answers(lists, call);
    for (int k = 0; k < MAX_LISTS && lists[k].key; k++) {
        INVAR_TRY(invar_plugin_list_read(&values, reply, lists[k].key, lists[k].count, where));
        for (size_t i = 0; i < lists[k].count; i++)
            INVAR_TRY(read_value(call, &lists[k], i, json_array_get(values, i), where));
    }
    return INVAR_OK;
}

static invar_status read_actions(const invar_plugin_call *call, const json_t *reply,
                                 const char *where)
{
    return invar_turn_actions_read(call->next, call->count, reply, where);
}

static invar_status read_plain(const invar_plugin_call *call, const json_t *reply,
                               const char *where)
{
    (void)call;
    (void)reply;
    return FAIL("%s: a teacher's reply is stored as plain numbers", where);
}

/*
 * Reads the answer of a hook. {"metrics": {"NAME": NUMBER}} become gauges of the step, and only the
 * hook before a training step may give {"loss_factor": NUMBER}.
 */
static invar_status read_metrics(const invar_plugin_call *call, const json_t *reply,
                                 const char *where)
{
    json_t *object = json_object_get(reply, "metrics"), *value;
    const json_t *factor = json_object_get(reply, "loss_factor");
    const char *name;

    if (object && !json_is_object(object))
        return FAIL("%s: \"metrics\" is no object", where);
    if (json_object_size(object) > 0 && call->event->hook == INVAR_PLUGIN_AFTER_EVAL)
        return FAIL("%s: \"metrics\" after an evaluation: they would belong to no step", where);
    json_object_foreach(object, name, value)
    {
        if (!json_is_number(value))
            return FAIL("%s: a metric of \"metrics\" is no number", where);
        INVAR_TRY(invar_reward_parts_add(call->measures, name, strlen(name),
                                         json_number_value(value), where));
    }
    if (!factor)
        return INVAR_OK;
    if (call->event->hook != INVAR_PLUGIN_BEFORE_TRAIN_STEP)
        return FAIL("%s: \"loss_factor\" is for before_train_step alone", where);
    if (!json_is_number(factor) || !isfinite((float)json_number_value(factor)))
        return FAIL("%s: \"loss_factor\" is no finite number", where);
    *call->factor = json_number_value(factor);
    return INVAR_OK;
}

/* Checks the parts that all replies have in common: the id of the request, and no error. */
static invar_status check_reply(const invar_plugin_call *call, const json_t *reply, bool live,
                                const char *where)
{
    const json_t *error = json_object_get(reply, "error");
    char quote[INVAR_TEXT_QUOTE_SIZE * 3];
    int64_t id = call->id;

    if (live)
        INVAR_TRY(
            invar_json_as_corrupt(invar_json_int(&id, reply, "id", where, INT64_MIN, INT64_MAX)));
    if (id != call->id)
        return FAIL("%s: the reply has id %" PRId64 ", the request had %" PRId64, where, id,
                    call->id);
    if (!error)
        return INVAR_OK;
    if (!json_is_string(error))
        return FAIL("%s: \"error\" is no text", where);
    invar_text_quote(quote, sizeof quote, json_string_value(error), json_string_length(error));
    return INVAR_FAIL(INVAR_E_STATE, 0, "%s: it refuses: %s", where, quote);
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
    switch (status == INVAR_OK ? call->kind : 0) {
#define INVAR_PLUGIN_KIND(ID, bit, name, asked, answered, ...)                                     \
    case bit:                                                                                      \
        status = read_##answered(call, reply, where);                                              \
        break;
#include "engine/ext/kinds.def"
#undef INVAR_PLUGIN_KIND
    }
    json_decref(reply);
    return status;
}

/* ---- plain values ---------------------------------------------------------------------------- */

static invar_status fail_size(const invar_plugin_call *call, size_t bytes, size_t expected)
{
    return FAIL("plug-in %.1000s: the stored reply to call %" PRId64
                " has %zu bytes, not JSON and not %zu",
                call->plugin, call->id, bytes, expected);
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

static invar_status read_bytes(const invar_plugin_call *call, const answer_list lists[MAX_LISTS],
                               const char *data, size_t bytes)
{
    bool named = bytes > 0 && data[0] == 'p' && call->parts;
    size_t expected = 1;

    for (int k = 0; k < MAX_LISTS; k++)
        expected += lists[k].count * lists[k].size;
    if (named ? bytes < expected : bytes != expected || data[0] != 'b')
        return fail_size(call, bytes, expected);
    data++;
    for (int k = 0; k < MAX_LISTS && lists[k].data; data += lists[k].count * lists[k].size, k++)
        memcpy(lists[k].data, data, lists[k].count * lists[k].size);
    return named ? read_named(call, data, bytes - expected) : INVAR_OK;
}

invar_status invar_plugin_call_read(const invar_plugin_call *call, const char *data, size_t bytes,
                                    bool live)
{
    bool plain = bytes == 0 || data[0] == 'b' || data[0] == 'p';
    answer_list lists[MAX_LISTS];

    list_answers(lists, call);
    if (live || !plain || call->kind == INVAR_PLUGIN_KIND_GENERATE)
        INVAR_TRY(read_json(call, data, bytes, live));
    else
        INVAR_TRY(read_bytes(call, lists, data, bytes));
    return check_values(call, lists);
}

invar_status invar_plugin_call_read_text(const invar_plugin_call *call, const invar_json_text *text,
                                         bool live)
{
    return text->status != INVAR_OK ? text->status
                                    : invar_plugin_call_read(call, text->data, text->bytes, live);
}

invar_status invar_plugin_call_pack(invar_json_text *out, const invar_plugin_call *call)
{
    answer_list lists[MAX_LISTS];
    int64_t named = 0;

    list_answers(lists, call);
    INVAR_TRY(check_values(call, lists));
    for (size_t i = 0; call->parts && i < call->count; i++)
        named += call->parts[i].count;
    invar_json_text_reset(out);
    invar_json_text_append(out, named ? "p" : "b", 1);
    for (int k = 0; k < MAX_LISTS; k++)
        invar_json_text_append(out, lists[k].data, lists[k].count * lists[k].size);
    for (size_t i = 0; named && i < call->count; i++) {
        const invar_reward_parts *parts = &call->parts[i];
        invar_json_text_append(out, (const char *)&parts->count, sizeof parts->count);
        invar_json_text_append(out, (const char *)parts->items,
                               (size_t)parts->count * sizeof *parts->items);
    }
    return out->status;
}

/* ---- handshake ------------------------------------------------------------------------------- */

static invar_status read_greeting(char title_out[INVAR_PLUGIN_TITLE_SIZE], uint32_t *kinds_out,
                                  const json_t *reply, const char *where)
{
    const json_t *list = json_object_get(reply, "kinds");
    const char *title;
    int64_t version;

    INVAR_TRY(invar_json_as_corrupt(invar_json_int(&version, reply, "invar", where, 0, INT64_MAX)));
    if (version != INVAR_PLUGIN_ABI)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: it speaks version %" PRId64 " of the protocol, this engine %d",
                          where, version, INVAR_PLUGIN_ABI);
    INVAR_TRY(invar_json_as_corrupt(invar_json_string(&title, reply, "name", where)));
    invar_text_quote(title_out, INVAR_PLUGIN_TITLE_SIZE, title, strlen(title));
    *kinds_out = 0;
    if (!json_is_array(list))
        return FAIL("%s: its first line has no list \"kinds\"", where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *word = json_string_value(json_array_get(list, i));
        for (uint32_t kind = 1; word && invar_plugin_kind_name(kind); kind <<= 1)
            *kinds_out |= strcmp(word, invar_plugin_kind_name(kind)) == 0 ? kind : 0;
    }
    return INVAR_OK;
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
