/*
 * remote_teacher.c - requests log-probs from a teacher over HTTP, and checks the responses.
 *
 * A teacher with another tokenizer or a server without echo would give plausible but wrong numbers,
 * so the texts of tokens are compared, and a first request covers token ids from 0 to the last.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/server/remote_teacher.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "base/text.h"
#include "engine/ext/http/http.h"
#include "engine/ext/plugin_backend.h"

#include "base/invar_banned.h"

#define PROBE_TOKENS 8 /* tokens of the first request */
#define WHERE_SIZE 160

/* Response size: text, number and offset for each token, and fields that some servers add. */
#define FIXED_BYTES ((size_t)1 << 16)
#define TOKEN_BYTES ((size_t)1 << 10)

/* Sums in other programs may round a log-prob to slightly above 0. */
#define MAX_LOGP 1e-3

typedef struct remote_teacher {
    const char *name;
    invar_remote_teacher_options options;
    invar_http *server;
    bool met; /* there was a response, which set `print` */
    char print[INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE];
} remote_teacher;

/* ---- responses ------------------------------------------------------------------------------- */

static bool is_word(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        char low = (char)(text[i] | 0x20);
        if (!(low >= 'a' && low <= 'z') && !(text[i] >= '0' && text[i] <= '9'))
            return false;
    }
    return bytes > 0;
}

static void trim_blanks(const char **text, size_t *bytes)
{
    for (; *bytes && **text == ' '; (*bytes)--)
        ++*text;
}

/*
 * Compares token texts. Only texts of letters and digits are compared, without leading blanks:
 * servers differ in how they show other texts.
 */
static bool same_word(const invar_token_text_fn *words, int32_t token, const json_t *there)
{
    const char *theirs = json_string_value(there);
    size_t bytes, theirs_bytes = json_string_length(there);
    const char *ours = words->text(&bytes, words->payload, token);

    trim_blanks(&ours, &bytes);
    if (!is_word(ours, bytes))
        return true;
    trim_blanks(&theirs, &theirs_bytes);
    return bytes == theirs_bytes && memcmp(ours, theirs, bytes) == 0;
}

static invar_status check_words(const invar_logprob_expectation *e, const invar_plugin_sample *q,
                                const json_t *tokens, const char *where)
{
    char ours[INVAR_TEXT_QUOTE_SIZE], theirs[INVAR_TEXT_QUOTE_SIZE];
    const char *text;
    size_t bytes;

    for (int64_t i = 0; i < q->n_tokens; i++) {
        const json_t *there = json_array_get(tokens, (size_t)i);
        if (!json_is_string(there))
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "%s: \"tokens\" has no text at %" PRId64 ": it is not OpenAI's form",
                              where, i);
        if (same_word(e->words, q->tokens[i], there))
            continue;
        text = e->words->text(&bytes, e->words->payload, q->tokens[i]);
        invar_text_quote(ours, sizeof ours, text, bytes);
        invar_text_quote(theirs, sizeof theirs, json_string_value(there),
                         json_string_length(there));
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: token %" PRId32 " is \"%s\" there and \"%s\" here: serve a teacher "
                          "with the model's tokenizer",
                          where, q->tokens[i], theirs, ours);
    }
    return INVAR_OK;
}

static invar_status read_numbers(float *out, const invar_plugin_sample *q, const json_t *logps,
                                 const char *where)
{
    for (int64_t i = q->prompt_tokens; i < q->n_tokens; i++) {
        const json_t *value = json_array_get(logps, (size_t)i);
        double number = json_number_value(value);

        if (!json_is_number(value) || !isfinite((float)number) || number > MAX_LOGP)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                              "%s: what it gives for token %" PRId64 " is no log-probability, a "
                              "finite number of at most 0",
                              where, i);
        out[i - q->prompt_tokens] = (float)number;
    }
    return INVAR_OK;
}

/*
 * Finds a list with one value per token. Servers that do not echo, or that generate tokens, return
 * another number.
 */
static invar_status find_list(const json_t **out, const json_t *logprobs, const char *key,
                              const invar_plugin_sample *q, const char *where)
{
    *out = json_object_get(logprobs, key);
    if (json_is_array(*out) && (int64_t)json_array_size(*out) == q->n_tokens)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%s: \"%s\" has %zu values, expected %" PRId64
                      ": the server must know echo with logprobs, and max_tokens = 0",
                      where, key, json_array_size(*out), q->n_tokens);
}

/*
 * Checks the temperature. A response of `invar serve` was made with the requested one; other
 * servers may always use 1.
 */
static invar_status check_temperature(double temperature, const json_t *answer, const char *where)
{
    if (temperature == 1.0 || json_is_object(json_object_get(answer, "invar")))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%s: only invar serve is known to score at rollout-temperature = %g: serve "
                      "the teacher with it, or train at 1",
                      where, temperature);
}

static void read_print(char out[INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE], const json_t *answer)
{
    const json_t *print = json_object_get(answer, "system_fingerprint");

    out[0] = '\0';
    if (json_is_string(print))
        invar_text_quote(out, INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE, json_string_value(print),
                         json_string_length(print));
}

static invar_status read_answer(float *out, char print_out[INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE],
                                const invar_logprob_expectation *e, const invar_plugin_sample *q,
                                const json_t *answer, const char *where)
{
    const json_t *choices = json_object_get(answer, "choices"), *logprobs, *tokens, *logps;

    if (json_array_size(choices) != 1)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"choices\" has %zu values, expected 1", where,
                          json_array_size(choices));
    logprobs = json_object_get(json_array_get(choices, 0), "logprobs");
    INVAR_TRY(find_list(&tokens, logprobs, "tokens", q, where));
    INVAR_TRY(find_list(&logps, logprobs, "token_logprobs", q, where));
    INVAR_TRY(check_words(e, q, tokens, where));
    INVAR_TRY(check_temperature(e->temperature, answer, where));
    INVAR_TRY(read_numbers(out, q, logps, where));
    read_print(print_out, answer);
    if (e->fingerprint && strcmp(e->fingerprint, print_out) != 0)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%s: it comes from the model \"%s\", those before from \"%s\": a run has "
                          "one teacher",
                          where, print_out, e->fingerprint);
    return INVAR_OK;
}

invar_status invar_remote_teacher_read(float *logp_out,
                                       char print_out[INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE],
                                       const invar_logprob_expectation *e,
                                       const invar_plugin_sample *q, const char *text, size_t bytes)
{
    char where[WHERE_SIZE], quoted[INVAR_TEXT_QUOTE_SIZE];
    invar_status status;
    json_t *answer;

    if (q->index < 0)
        (void)snprintf(where, sizeof where, "%.64s: the first answer", e->name);
    else
        (void)snprintf(where, sizeof where, "%.64s: the answer for sample %" PRId64, e->name,
                       q->index);
    if (invar_json_parse_raw(&answer, where, text, bytes) != INVAR_OK) {
        invar_text_quote(quoted, sizeof quoted, text, bytes);
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s is not JSON: \"%s\"", where, quoted);
    }
    status = read_answer(logp_out, print_out, e, q, answer, where);
    json_decref(answer);
    return status;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Requests that are being answered. */
typedef struct logprob_batch {
    remote_teacher *teacher;
    const invar_plugin_sample *samples;
    float *out; /* destination of the next response */
} logprob_batch;

static size_t write_question(invar_json_text *text, size_t i, void *payload)
{
    const logprob_batch *l = payload;
    const invar_remote_teacher_options *o = &l->teacher->options;

    invar_json_text_open(text, '{');
    if (o->model[0]) {
        invar_json_text_put_string(text, "model", o->model);
    }
    invar_json_text_put_open(text, "prompt", '[');
    invar_json_text_ints(text, l->samples[i].tokens, l->samples[i].n_tokens);
    invar_json_text_close(text, ']');
    invar_json_text_put_int(text, "max_tokens", 0);
    invar_json_text_put_bool(text, "echo", true);
    invar_json_text_put_int(text, "logprobs", 0);
    invar_json_text_put_f64(text, "temperature", o->temperature);
    invar_json_text_close(text, '}');
    return FIXED_BYTES + TOKEN_BYTES * (size_t)l->samples[i].n_tokens;
}

static invar_status read_response(size_t i, const char *answer, size_t bytes, void *payload)
{
    logprob_batch *l = payload;
    remote_teacher *t = l->teacher;
    const invar_plugin_sample *s = &l->samples[i];
    const invar_logprob_expectation expected = {.name = t->name,
                                                .temperature = t->options.temperature,
                                                .words = &t->options.words,
                                                .fingerprint = t->met ? t->print : NULL};
    char print[INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE];

    INVAR_TRY(invar_remote_teacher_read(l->out, print, &expected, s, answer, bytes));
    l->out += s->n_tokens - s->prompt_tokens;
    t->met = true;
    memcpy(t->print, print, sizeof print);
    return INVAR_OK;
}

/* Requests the log-probs of the responses of samples, which logp_out gets concatenated. */
static invar_status request_logprobs(float *logp_out, remote_teacher *teacher,
                                     const invar_plugin_sample *samples, size_t count)
{
    logprob_batch l = {teacher, samples, logp_out};

    return invar_http_batch_run(teacher->server, &(invar_http_batch){.count = count,
                                                                     .write = write_question,
                                                                     .read = read_response,
                                                                     .payload = &l});
}

/* ---- back end -------------------------------------------------------------------------------- */

/*
 * Sends the first request, with token ids from 0 to the last: a smaller vocabulary rejects them,
 * another tokenizer has other texts. An unsuitable server is found before anything is sampled.
 */
static invar_status probe_server(remote_teacher *teacher)
{
    int32_t tokens[PROBE_TOKENS];
    float logp[PROBE_TOKENS];
    const invar_plugin_sample sample = {
        .tokens = tokens, .n_tokens = PROBE_TOKENS, .prompt_tokens = 1, .index = -1};

    for (int i = 0; i < PROBE_TOKENS; i++)
        tokens[i] = (int32_t)((teacher->options.words.count - 1) * i / (PROBE_TOKENS - 1));
    return request_logprobs(logp, teacher, &sample, 1);
}

/* Connects to a teacher. The model name that the server reports, if any, identifies the plug-in. */
static invar_status open_teacher(invar_plugin_peer *peer, uint32_t *offered_out,
                                 const invar_plugin_options *options)
{
    const invar_http_options o = {.name = peer->name,
                                  .url = options->url,
                                  .route = "/completions",
                                  .timeout = options->timeout,
                                  .attempts = INVAR_HTTP_BATCH_ATTEMPTS,
                                  .retry_delay_s = INVAR_HTTP_BATCH_PAUSE,
                                  .max_concurrency = INVAR_HTTP_BATCH_PARALLEL,
                                  .api_key = options->teacher->key};
    remote_teacher *t;

    INVAR_CHECK(options->teacher->words.count > 0);
    *offered_out = INVAR_PLUGIN_KIND_TEACHER;
    INVAR_TRY(INVAR_ALLOC_ZEROED(t, 1, "a teacher"));
    peer->self = t;
    t->name = peer->name;
    t->options = *options->teacher;
    INVAR_TRY(invar_http_open(&t->server, &o));
    INVAR_TRY(probe_server(t));
    peer->hashed = t->print[0] != '\0';
    (void)snprintf(peer->title, sizeof peer->title, "%s", peer->hashed ? t->print : "server");
    if (peer->hashed)
        invar_hash_bytes(&peer->hash, t->print, strlen(t->print));
    return INVAR_OK;
}

/* Calls a teacher. Only the numbers are kept: they are a small part of its answer. */
static invar_status ask_teacher(invar_plugin_peer *peer, const invar_plugin_call *call)
{
    INVAR_TRY(request_logprobs(call->logp, peer->self, call->samples, call->count));
    return invar_plugin_call_pack(&peer->text, call);
}

static void watch_teacher(invar_plugin_peer *peer, void (*waits)(void *payload), void *payload)
{
    invar_http_set_wait_callback(((remote_teacher *)peer->self)->server, waits, payload);
}

static void close_teacher(invar_plugin_peer *peer)
{
    remote_teacher *t = peer->self;

    if (t)
        invar_http_close(t->server);
    invar_free(t);
}

const invar_plugin_backend invar_remote_teacher_backend = {open_teacher, ask_teacher, watch_teacher,
                                                           close_teacher};
