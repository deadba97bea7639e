/*
 * completion_request.c - parses and validates the JSON body of a completion or chat request.
 *
 * The fields and what each may be are listed in fields.def. A field that is not listed fails with
 * the nearest known name. While a field is read, ask->param names it, so that the error object of
 * the response can report it.
 *
 * The body is untrusted: every number has a range and every list a maximum length.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/completion_request.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/spelling.h"
#include "base/text.h"
#include "engine/sample/serve/chat_messages.h"

#include "base/invar_banned.h"

#define WHERE "the request"
#define MAX_TOKENS 16777216 /* limit of max_tokens and min_tokens, beyond any context */

/* ---- known fields ---------------------------------------------------------------------------- */

enum { TEXT = 1, CHAT = 2, BOTH = TEXT | CHAT };

typedef enum use { READ, FREE, ONLY } use;

typedef struct field {
    const char *name;
    int routes;
    use use;
    const char *neutral; /* JSON of the only accepted value, for ONLY fields */
} field;

static const field fields[] = {
#define INVAR_FIELD(name, routes, use, neutral) {name, routes, use, neutral},
#include "engine/sample/serve/fields.def"
#undef INVAR_FIELD
};

#define N_FIELDS (sizeof fields / sizeof *fields)

static int route_of(invar_completion_kind kind)
{
    return kind == INVAR_COMPLETION_REQUEST_CHAT ? CHAT : TEXT;
}

static const field *find_field(const char *name, int route)
{
    for (size_t i = 0; i < N_FIELDS; i++)
        if ((fields[i].routes & route) && strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static invar_status fail_unknown_field(const char *name, int route)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];
    invar_spelling spelling;

    invar_spelling_init(&spelling, name, strlen(name));
    for (size_t i = 0; i < N_FIELDS; i++)
        if (fields[i].routes & route)
            invar_spelling_offer(&spelling, fields[i].name);
    invar_text_quote(quoted, sizeof quoted, name, strlen(name));
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "'%s' is no field of this route%s; docs/serve.md lists them", quoted,
                      invar_spelling_hint(&spelling));
}

/* Fails unless the value of an unsupported field changes nothing. */
static invar_status check_neutral(const field *f, const json_t *value)
{
    json_t *neutral = NULL;
    bool same;

    if (json_is_null(value))
        return INVAR_OK;
    INVAR_TRY(invar_json_parse(&neutral, f->name, f->neutral, strlen(f->neutral)));
    same = json_is_number(neutral) && json_is_number(value)
               ? json_number_value(neutral) == json_number_value(value)
               : json_equal(neutral, value);
    json_decref(neutral);
    if (same)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%s is not offered by this server: leave it out, or give %s", f->name,
                      f->neutral);
}

static invar_status check_fields(invar_completion_request *request)
{
    int route = route_of(request->kind);
    const char *name;
    json_t *value;

    json_object_foreach(request->body, name, value)
    {
        const field *f = find_field(name, route);

        // the string belongs to the body
        request->param = strlen(name) < INVAR_TEXT_QUOTE_SIZE ? name : NULL;
        if (!f)
            return fail_unknown_field(name, route);
        if (f->use == ONLY)
            INVAR_TRY(check_neutral(f, value));
    }
    request->param = NULL;
    return INVAR_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Returns the value of the field, NULL if absent or null. Sets request->param to the field. */
static const json_t *get_field(invar_completion_request *request, const char *name)
{
    const field *f = find_field(name, route_of(request->kind));
    const json_t *value = f ? json_object_get(request->body, name) : NULL;

    request->param = f ? f->name : NULL;
    return json_is_null(value) ? NULL : value;
}

static invar_status read_int(int64_t *out, invar_completion_request *request, const char *name,
                             int64_t low, int64_t high)
{
    return get_field(request, name) ? invar_json_int(out, request->body, name, WHERE, low, high)
                                    : INVAR_OK;
}

static invar_status read_bool(bool *out, invar_completion_request *request, const char *name)
{
    return get_field(request, name) ? invar_json_bool(out, request->body, name, WHERE) : INVAR_OK;
}

static invar_status read_real(float *out, invar_completion_request *request, const char *name,
                              double low, double high)
{
    double value;

    if (!get_field(request, name))
        return INVAR_OK;
    INVAR_TRY(invar_json_real(&value, request->body, name, WHERE));
    if (!(value >= low && value <= high))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s is %g; expected %g to %g", name, value, low,
                          high);
    *out = (float)value;
    return INVAR_OK;
}

/* ---- sampling parameters --------------------------------------------------------------------- */

static invar_status read_lengths(invar_completion_request *request)
{
    invar_sampling_params *p = &request->sampling;
    // a completion with max_tokens = 0 is scored only
    int64_t least = request->kind == INVAR_COMPLETION_REQUEST_TEXT ? 0 : 1;
    int64_t most;

    if (p->max_response == 0)
        p->max_response = -1;
    INVAR_TRY(read_int(&p->max_response, request, "max_tokens", least, MAX_TOKENS));
    most = p->max_response;
    INVAR_TRY(read_int(&p->max_response, request, "max_completion_tokens", 1, MAX_TOKENS));
    if (get_field(request, "max_tokens") && get_field(request, "max_completion_tokens") &&
        p->max_response != most)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "max_completion_tokens is %" PRId64 ", max_tokens %" PRId64
                          ": give one of them",
                          p->max_response, most);
    request->length_param = get_field(request, "max_completion_tokens") ? "max_completion_tokens"
                            : get_field(request, "max_tokens")          ? "max_tokens"
                                                                        : NULL;
    INVAR_TRY(read_int(&p->min_response, request, "min_tokens", 0, MAX_TOKENS));
    if (p->max_response >= 0 && p->min_response > p->max_response)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "min_tokens is %" PRId64 ", more than max_tokens",
                          p->min_response);
    return INVAR_OK;
}

static invar_status read_temperature(invar_completion_request *request)
{
    double value = json_number_value(get_field(request, "temperature"));

    INVAR_TRY(read_real(&request->sampling.temperature, request, "temperature", 0, 100));
    if (value > 0 && value < INVAR_COMPLETION_REQUEST_MIN_TEMPERATURE)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "temperature is %g; expected 0, which takes the best token, or at least "
                          "%g",
                          value, INVAR_COMPLETION_REQUEST_MIN_TEMPERATURE);
    return INVAR_OK;
}

static invar_status read_sampling(invar_completion_request *request)
{
    invar_sampling_params *p = &request->sampling;
    int64_t top_k = p->top_k, seed = p->seed;

    INVAR_TRY(read_lengths(request));
    INVAR_TRY(read_temperature(request));
    INVAR_TRY(read_real(&p->top_p, request, "top_p", 1e-6, 1));
    INVAR_TRY(read_int(&top_k, request, "top_k", -1, 4194304));
    INVAR_TRY(read_real(&p->min_p, request, "min_p", 0, 1));
    INVAR_TRY(read_int(&seed, request, "seed", 0, UINT32_MAX));
    INVAR_TRY(read_bool(&p->skip_special, request, "skip_special_tokens"));
    p->top_k = top_k < 0 ? 0 : (int32_t)top_k;
    p->seed = (uint32_t)seed;
    return INVAR_OK;
}

/* Reads the stop strings: those of the server, then one string or a list from the request. */
static invar_status read_stops(invar_completion_request *request)
{
    const json_t *value = get_field(request, "stop");
    size_t count = json_is_array(value) ? json_array_size(value) : value ? 1 : 0;
    int64_t before = request->sampling.n_stop;

    if (count > INVAR_COMPLETION_REQUEST_MAX_STOPS)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "stop has %zu strings; at most %d are taken", count,
                          INVAR_COMPLETION_REQUEST_MAX_STOPS);
    INVAR_TRY(INVAR_ALLOC(request->stop, (size_t)before + count, "stops"));
    for (int64_t i = 0; i < before; i++)
        request->stop[i] = request->sampling.stop[i];
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;

        if (!json_is_string(item) || json_string_length(item) == 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "stop is no string and no list of strings that are not empty");
        request->stop[before + (int64_t)i] = json_string_value(item);
    }
    request->sampling.stop = request->stop;
    request->sampling.n_stop = before + (int64_t)count;
    return INVAR_OK;
}

/* Reads a list of token ids. Their upper bound is checked by prompt_encoder.c. */
static invar_status read_ids(int32_t *out, const json_t *list, const char *name)
{
    const json_t *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) > INT32_MAX)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: item %zu is no token", name, i);
        out[i] = (int32_t)json_integer_value(item);
    }
    return INVAR_OK;
}

static invar_status read_stop_ids(invar_completion_request *request)
{
    const json_t *value = get_field(request, "stop_token_ids");
    size_t count = value ? json_array_size(value) : 0,
           before = (size_t)request->sampling.n_stop_ids;

    if (value && (!json_is_array(value) || count > INVAR_COMPLETION_REQUEST_MAX_STOPS))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "stop_token_ids is no list of at most %d tokens",
                          INVAR_COMPLETION_REQUEST_MAX_STOPS);
    INVAR_TRY(INVAR_ALLOC(request->stop_ids, before + count, "stops"));
    if (before > 0)
        memcpy(request->stop_ids, request->sampling.stop_ids, before * sizeof *request->stop_ids);
    INVAR_TRY(read_ids(request->stop_ids + before, value, "stop_token_ids"));
    request->sampling.stop_ids = request->stop_ids;
    request->sampling.n_stop_ids = (int64_t)(before + count);
    return INVAR_OK;
}

/* ---- response options ------------------------------------------------------------------------ */

/*
 * Completions give the number of alternatives in `logprobs`; chats give a boolean, and the number
 * in `top_logprobs`.
 */
static invar_status read_logprobs(invar_completion_request *request)
{
    int64_t others = 0;

    if (request->kind == INVAR_COMPLETION_REQUEST_CHAT) {
        INVAR_TRY(read_bool(&request->logprobs, request, "logprobs"));
        INVAR_TRY(read_int(&others, request, "top_logprobs", 0, INT32_MAX));
    } else {
        INVAR_TRY(read_int(&others, request, "logprobs", 0, INT32_MAX));
        request->logprobs = get_field(request, "logprobs") != NULL;
    }
    if (others > 0)
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "%s is %" PRId64 ": only the log-probs of the tokens themselves are "
            "computed, no alternatives; give 0",
            request->kind == INVAR_COMPLETION_REQUEST_CHAT ? "top_logprobs" : "logprobs", others);
    return INVAR_OK;
}

static invar_status read_stream(invar_completion_request *request)
{
    const json_t *options;
    const char *name;
    json_t *value;

    INVAR_TRY(read_bool(&request->stream, request, "stream"));
    options = get_field(request, "stream_options");
    if (!options)
        return INVAR_OK;
    if (!json_is_object(options) || !request->stream)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "stream_options: %s",
                          request->stream ? "no object" : "it needs \"stream\": true");
    json_object_foreach((json_t *)(uintptr_t)options, name, value)
    {
        if (strcmp(name, "include_usage") == 0 && json_is_boolean(value))
            request->include_usage = json_is_true(value);
        else if (strcmp(name, "include_obfuscation") != 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "stream_options: only include_usage, true or false, is known");
    }
    return INVAR_OK;
}

static invar_status read_response_options(invar_completion_request *request)
{
    INVAR_TRY(read_int(&request->n, request, "n", 1, INVAR_COMPLETION_REQUEST_MAX_CHOICES));
    INVAR_TRY(read_logprobs(request));
    INVAR_TRY(read_bool(&request->echo, request, "echo"));
    INVAR_TRY(read_bool(&request->return_token_ids, request, "return_token_ids"));
    INVAR_TRY(read_stream(request));
    request->param = "max_tokens";
    if (request->sampling.max_response == 0 && !request->echo)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "max_tokens is 0: that needs \"echo\": true, or nothing is answered");
    return INVAR_OK;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static invar_status read_prompt_ids(invar_completion_prompt *out, const json_t *list)
{
    out->n_ids = (int64_t)json_array_size(list);
    INVAR_TRY(INVAR_ALLOC(out->ids, (size_t)out->n_ids, "a prompt"));
    return read_ids(out->ids, list, "prompt");
}

static invar_status add_prompt(invar_completion_request *request, const json_t *value)
{
    invar_completion_prompt *prompt = &request->prompts[request->n_prompts++];

    if (json_is_array(value) && json_array_size(value) > 0)
        return read_prompt_ids(prompt, value);
    if (!json_is_string(value))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "prompt is not one of: a string, a list of strings, a list of tokens, a "
                          "list of such lists");
    prompt->text = json_string_value(value);
    prompt->text_bytes = json_string_length(value);
    return INVAR_OK;
}

/* Reads the prompts: a string, a list of strings, a list of token ids, or a list of such lists. */
static invar_status read_prompts(invar_completion_request *request)
{
    const json_t *value = get_field(request, "prompt"), *item;
    bool several = json_is_array(value) && !json_is_integer(json_array_get(value, 0));
    size_t count = several ? json_array_size(value) : 1, i;

    if (!value)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "prompt is missing");
    if (count == 0 || count > INVAR_COMPLETION_REQUEST_MAX_CHOICES)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "prompt is a list of %zu; 1 to %d are taken", count,
                          INVAR_COMPLETION_REQUEST_MAX_CHOICES);
    INVAR_TRY(INVAR_ALLOC_ZEROED(request->prompts, count, "prompts"));
    if (!several)
        return add_prompt(request, value);
    json_array_foreach(value, i, item) INVAR_TRY(add_prompt(request, item));
    return INVAR_OK;
}

static invar_status read_chat(invar_completion_request *request)
{
    const json_t *messages = get_field(request, "messages"), *choice;

    INVAR_TRY(invar_chat_messages_read(&request->messages, messages, request->memory));
    request->tools = get_field(request, "tools");
    INVAR_TRY(invar_chat_messages_check_tools(request->tools));
    choice = get_field(request, "tool_choice");
    if (!choice || (json_is_string(choice) && strcmp(json_string_value(choice), "auto") == 0))
        return INVAR_OK;
    if (!json_is_string(choice) || strcmp(json_string_value(choice), "none") != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "tool_choice is neither \"auto\" nor \"none\": no call can be forced");
    request->tools = NULL;
    return INVAR_OK;
}

/* ---- request --------------------------------------------------------------------------------- */

static bool has_nul(const json_t *value)
{
    const json_t *item;
    const char *name;
    size_t i;

    if (json_is_string(value))
        return strlen(json_string_value(value)) < json_string_length(value);
    json_array_foreach(value, i, item) if (has_nul(item)) return true;
    json_object_foreach((json_t *)(uintptr_t)value, name, item) if (has_nul(item)) return true;
    return false;
}

/*
 * Prompts and messages are read by length and may contain NUL; any other string may not, because it
 * is used as a C string.
 */
static invar_status check_names(invar_completion_request *request)
{
    const json_t *value;
    const char *name;

    json_object_foreach(request->body, name, value)
    {
        if (strcmp(name, "prompt") == 0 || strcmp(name, "messages") == 0 || !has_nul(value))
            continue;
        request->param = name;
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: a text in it has the character NUL, \\u0000",
                          name);
    }
    return INVAR_OK;
}

invar_status invar_completion_request_read(invar_completion_request *request,
                                           invar_completion_kind kind, const char *body,
                                           size_t bytes, const invar_sampling_params *sampling,
                                           const invar_serve_memory *memory)
{
    *request =
        (invar_completion_request){.kind = kind, .memory = memory, .n = 1, .sampling = *sampling};
    INVAR_TRY(invar_json_parse_raw(&request->body, WHERE, body, bytes));
    if (!json_is_object(request->body))
        return INVAR_FAIL(INVAR_E_INVALID, 0, WHERE " is no JSON object");
    INVAR_TRY(check_fields(request));
    INVAR_TRY(check_names(request));
    if (get_field(request, "model"))
        INVAR_TRY(invar_json_string(&request->model, request->body, "model", WHERE));
    INVAR_TRY(read_sampling(request));
    INVAR_TRY(read_stops(request));
    INVAR_TRY(read_stop_ids(request));
    INVAR_TRY(read_response_options(request));
    INVAR_TRY(kind == INVAR_COMPLETION_REQUEST_CHAT ? read_chat(request) : read_prompts(request));
    request->param = "n";
    if (request->n_prompts * request->n > INVAR_COMPLETION_REQUEST_MAX_CHOICES)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%" PRId64 " choices for each of %" PRId64 " prompts; at most %d are "
                          "taken together",
                          request->n, request->n_prompts, INVAR_COMPLETION_REQUEST_MAX_CHOICES);
    request->param = NULL;
    return INVAR_OK;
}

void invar_completion_request_release(invar_completion_request *request)
{
    for (int64_t i = 0; i < request->n_prompts; i++)
        invar_free(request->prompts[i].ids);
    invar_free(request->prompts);
    invar_free(request->stop_ids);
    invar_free(request->stop);
    json_decref(request->messages);
    json_decref(request->body);
    memset(request, 0, sizeof *request);
}
