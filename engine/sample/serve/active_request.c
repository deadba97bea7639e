/*
 * active_request.c - one completion or chat request: parse, encode, submit, wait, write the
 * response.
 *
 * Each request has a thread of the HTTP server, which waits here for the tokens that the inference
 * engine generates. Between waits it checks that the client is still connected and that the time
 * limit of the server has not passed. The response of an agent session is recorded by the session
 * hooks before its first byte is sent, so a session can be repeated from the record.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/active_request.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/process/process.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define ALIVE_CHECK_MS 200 // longest wait before the connection of the client is checked

/* ---- failures -------------------------------------------------------------------------------- */

/* HTTP status, type and code of the error object for a status. */
typedef struct http_error {
    invar_status status;
    int http;
    const char *type, *code;
} http_error;

static const http_error http_errors[] = {
    {INVAR_E_INVALID, 400, "invalid_request_error", "invalid_value"},
    {INVAR_E_NOTFOUND, 404, "invalid_request_error", "model_not_found"},
    {INVAR_E_BUSY, 429, "rate_limit_error", "too_many_requests"},
    {INVAR_E_STATE, 503, "server_error", "unavailable"},
};

static const http_error *find_http_error(invar_status status)
{
    static const http_error other = {INVAR_OK, 500, "server_error", "internal_error"};

    for (size_t i = 0; i < sizeof http_errors / sizeof *http_errors; i++)
        if (http_errors[i].status == status)
            return &http_errors[i];
    return &other;
}

/* The message may quote the request, which was checked to be UTF-8 when it was parsed. */
invar_response_error invar_active_request_error(int *http_out, const invar_error *error,
                                                const char *param)
{
    const http_error *v = find_http_error(error->status);

    *http_out = v->http;
    return (invar_response_error){error->message, v->type, param, v->code};
}

/* ---- requests -------------------------------------------------------------------------------- */

static void end_session_request(invar_active_request *t)
{
    if (t->session_request)
        t->options->session_hooks.end(t->session_request);
    t->session_request = NULL;
}

static invar_status check_model(const invar_active_request *t)
{
    const char *served = t->options->server_info->model;
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    if (!t->completion.model || strcmp(t->completion.model, served) == 0)
        return INVAR_OK;
    invar_text_quote(quoted, sizeof quoted, t->completion.model, strlen(t->completion.model));
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "there is no model '%s' here; the one that is served "
                      "is '%s'",
                      quoted, served);
}

static invar_status init_generation(invar_active_request *t)
{
    t->has_generation = true;
    INVAR_TRY(
        invar_generation_request_init(&t->generation, t->completion.n_prompts, t->completion.n));
    t->generation.sampling = &t->completion.sampling;
    t->generation.score = t->completion.echo && t->completion.logprobs;
    for (int64_t i = 0; i < t->completion.n_prompts; i++) {
        t->generation.prompts[i].tokens = t->completion.prompts[i].ids;
        t->generation.prompts[i].count = t->completion.prompts[i].n_ids;
    }
    return INVAR_OK;
}

/* Lets the session hooks reject the request, or complete it with a recorded response. */
static invar_status begin_session_request(invar_active_request *t, const char *key)
{
    const invar_server_session_hooks *gate = &t->options->session_hooks;

    if (!gate->begin)
        return INVAR_OK;
    t->completion.param = NULL;
    return gate->begin(&t->session_request, gate->payload, key, &t->completion, &t->generation);
}

/* Sampling parameters that apply unless the request sets them: the session's or the server's. */
static invar_status default_sampling(invar_sampling_params *out, const invar_active_request *t,
                                     const char *key)
{
    const invar_server_session_hooks *gate = &t->options->session_hooks;

    if (gate->get_sampling)
        return gate->get_sampling(out, gate->payload, key);
    *out = *t->options->sampling;
    return INVAR_OK;
}

static invar_status submit_request(invar_active_request *t, invar_completion_kind kind,
                                   const char *key, const char *body, size_t bytes,
                                   const invar_serve_memory *memory)
{
    const invar_server_options *o = t->options;
    invar_sampling_params sampling;

    INVAR_TRY(default_sampling(&sampling, t, key));
    INVAR_TRY(invar_completion_request_read(&t->completion, kind, body, bytes, &sampling, memory));
    t->completion.param = "model";
    INVAR_TRY(check_model(t));
    INVAR_TRY(invar_prompt_encoder_make(o->prompt_encoder, &t->completion));
    INVAR_TRY(init_generation(t));
    INVAR_TRY(begin_session_request(t, key));
    INVAR_TRY(invar_completion_response_init(&t->response, &t->completion, &t->generation,
                                             o->server_info, o->tokenizer));
    if (!t->generation.done) {
        INVAR_TRY(invar_inference_engine_submit(o->engine, &t->generation));
        t->submitted = true;
    }
    t->deadline_ms =
        o->request_timeout_s ? invar_process_clock_ms() + 1000 * o->request_timeout_s : 0;
    return INVAR_OK;
}

/*
 * Waits for new tokens and copies them. *done_out reports whether the request is complete. Fails
 * with the error of the request, if the client has disconnected, or at the time limit.
 */
static invar_status wait_for_progress(bool *done_out, invar_active_request *t)
{
    const invar_server_options *o = t->options;
    int64_t known = t->response.n_tokens;
    invar_status status = INVAR_OK;

    *done_out = false;
    while (status == INVAR_OK && !*done_out && t->response.n_tokens == known) {
        invar_inference_engine_wait(o->engine, &t->generation, known, ALIVE_CHECK_MS);
        *done_out = t->generation.done;
        if (t->generation.done && t->generation.error.status != INVAR_OK) {
            invar_error_put(&t->generation.error);
            status = t->generation.error.status;
        } else {
            status = invar_completion_response_copy(&t->response);
        }
        invar_inference_engine_unlock(o->engine);
        if (status == INVAR_OK && !*done_out && !t->http->alive(t->connection))
            status = INVAR_FAIL(INVAR_E_IO, 0, "the client has gone");
        if (status == INVAR_OK && !*done_out && t->deadline_ms &&
            invar_process_clock_ms() > t->deadline_ms)
            status = INVAR_FAIL(INVAR_E_STATE, 0,
                                "the request has taken longer than %" PRId64 " s, the server's "
                                "limit: ask for fewer tokens",
                                o->request_timeout_s);
    }
    return status;
}

static invar_status wait_until_done(invar_active_request *t)
{
    bool done = false;

    while (!done)
        INVAR_TRY(wait_for_progress(&done, t));
    return INVAR_OK;
}

/* Records the complete response of an agent session before its first byte is sent. */
static invar_status record_session_response(invar_active_request *t)
{
    if (t->session_request && t->submitted) {
        INVAR_TRY(wait_until_done(t));
        INVAR_TRY(t->options->session_hooks.record(t->session_request, &t->generation));
    }
    end_session_request(t);
    return INVAR_OK;
}

invar_status invar_active_request_begin(invar_active_request *t, invar_completion_kind kind,
                                        const char *key, const char *body, size_t bytes,
                                        const invar_serve_memory *memory)
{
    INVAR_TRY(submit_request(t, kind, key, body, bytes, memory));
    t->completion.memory = NULL; // borrowed until here; nothing more is reserved
    return record_session_response(t);
}

invar_status invar_active_request_write_response(invar_json_text *out, invar_active_request *t)
{
    INVAR_TRY(wait_until_done(t));
    return invar_completion_response_write(out, &t->response);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Writes the next events. A failure becomes the last event. */
static void fill_events(invar_active_request *t)
{
    bool done;
    invar_status status;

    invar_json_text_reset(&t->text);
    t->sent = 0;
    status = wait_for_progress(&done, t);
    if (status == INVAR_OK)
        status = invar_completion_response_events(&t->text, &t->response, done);
    if (status != INVAR_OK) {
        int http;
        const invar_response_error object =
            invar_active_request_error(&http, invar_error_last(), NULL);

        invar_json_text_reset(&t->text);
        invar_completion_response_error_event(&t->text, &object);
        t->response.finished = true;
    }
}

int64_t invar_active_request_read_stream(invar_active_request *t, char *out, size_t capacity)
{
    size_t bytes;

    while (t->sent == t->text.bytes && !t->response.finished)
        fill_events(t);
    if (t->text.status != INVAR_OK)
        return -1;
    bytes = t->text.bytes - t->sent < capacity ? t->text.bytes - t->sent : capacity;
    memcpy(out, t->text.data + t->sent, bytes);
    t->sent += bytes;
    return (int64_t)bytes;
}

/* ---- creation -------------------------------------------------------------------------------- */

invar_status invar_active_request_new(invar_active_request **out,
                                      const invar_server_options *options,
                                      const invar_serve_table *http, const void *connection)
{
    INVAR_TRY(INVAR_ALLOC_ZEROED(*out, 1, "a request"));
    (*out)->options = options;
    (*out)->http = http;
    (*out)->connection = connection;
    return INVAR_OK;
}

const invar_generation_request *invar_active_request_cancel(invar_active_request *t)
{
    if (!t->submitted)
        return NULL;
    invar_inference_engine_cancel(t->options->engine, &t->generation);
    return &t->generation;
}

void invar_active_request_free(invar_active_request *t)
{
    if (!t)
        return;
    end_session_request(t);
    invar_completion_response_release(&t->response);
    if (t->has_generation)
        invar_generation_request_release(&t->generation);
    invar_completion_request_release(&t->completion);
    invar_json_text_release(&t->text);
    invar_free(t);
}
