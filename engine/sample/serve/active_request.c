/*
 * active_request.c - a request for choices while it is worked on: read, let in, waited for, replied
 * to.
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

#define LOOK_MS 200 // between two looks whether the client is still there

struct invar_active_request {
    const invar_server_options *options;
    const invar_serve_table *http;
    const void *connection;
    invar_completion_request ask;
    invar_generation_request ticket;
    invar_completion_response reply;
    bool has_ticket, submitted;
    void *visit;          /* of the gate, which has let the ticket in; NULL: none */
    int64_t due;          /* when it takes too long; 0: never */
    invar_json_text text; /* of a stream: events that are on their way */
    size_t sent;
};

/* ---- failures -------------------------------------------------------------------------------- */

/* How a failure is told: status of HTTP, type, code. */
typedef struct verdict {
    invar_status status;
    int http;
    const char *type, *code;
} verdict;

static const verdict verdicts[] = {
    {INVAR_E_INVALID, 400, "invalid_request_error", "invalid_value"},
    {INVAR_E_NOTFOUND, 404, "invalid_request_error", "model_not_found"},
    {INVAR_E_BUSY, 429, "rate_limit_error", "too_many_requests"},
    {INVAR_E_STATE, 503, "server_error", "unavailable"},
};

static const verdict *verdict_of(invar_status status)
{
    static const verdict other = {INVAR_OK, 500, "server_error", "internal_error"};

    for (size_t i = 0; i < sizeof verdicts / sizeof *verdicts; i++)
        if (verdicts[i].status == status)
            return &verdicts[i];
    return &other;
}

/* A message of ours may quote what was sent: all of it is UTF-8 by then. */
invar_response_error invar_active_request_error(int *http_out, const invar_error *error,
                                                const char *param)
{
    const verdict *v = verdict_of(error->status);

    *http_out = v->http;
    return (invar_response_error){error->message, v->type, param, v->code};
}

/* ---- requests -------------------------------------------------------------------------------- */

static void end_visit(invar_active_request *t)
{
    if (t->visit)
        t->options->gate.leave(t->visit);
    t->visit = NULL;
}

static invar_status check_model(const invar_active_request *t)
{
    const char *served = t->options->facts->model;
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    if (!t->ask.model || strcmp(t->ask.model, served) == 0)
        return INVAR_OK;
    invar_text_quote(quoted, sizeof quoted, t->ask.model, strlen(t->ask.model));
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "there is no model '%s' here; the one that is served "
                      "is '%s'",
                      quoted, served);
}

static invar_status make_ticket(invar_active_request *t)
{
    t->has_ticket = true;
    INVAR_TRY(invar_generation_request_init(&t->ticket, t->ask.n_prompts, t->ask.n));
    t->ticket.sampling = &t->ask.sampling;
    t->ticket.score = t->ask.echo && t->ask.logprobs;
    for (int64_t i = 0; i < t->ask.n_prompts; i++) {
        t->ticket.prompts[i].tokens = t->ask.prompts[i].ids;
        t->ticket.prompts[i].count = t->ask.prompts[i].n_ids;
    }
    return INVAR_OK;
}

/* The session that it belongs to may refuse it, or know its reply. */
static invar_status pass_gate(invar_active_request *t, const char *key)
{
    const invar_server_session_hooks *gate = &t->options->gate;

    if (!gate->begin)
        return INVAR_OK;
    t->ask.param = NULL;
    return gate->begin(&t->visit, gate->payload, key, &t->ask, &t->ticket);
}

/* What holds where the request says nothing. */
static invar_status active_request_finalize(invar_sampling_params *out,
                                            const invar_active_request *t, const char *key)
{
    const invar_server_session_hooks *gate = &t->options->gate;

    if (gate->settings)
        return gate->settings(out, gate->payload, key);
    *out = *t->options->sampling;
    return INVAR_OK;
}

static invar_status active_request_submit(invar_active_request *t, invar_completion_kind kind,
                                          const char *key, const char *body, size_t bytes,
                                          const invar_serve_memory *memory)
{
    const invar_server_options *o = t->options;
    invar_sampling_params sampling;

    INVAR_TRY(active_request_finalize(&sampling, t, key));
    INVAR_TRY(invar_completion_request_read(&t->ask, kind, body, bytes, &sampling, memory));
    t->ask.param = "model";
    INVAR_TRY(check_model(t));
    INVAR_TRY(invar_prompt_encoder_make(o->prompter, &t->ask));
    INVAR_TRY(make_ticket(t));
    INVAR_TRY(pass_gate(t, key));
    INVAR_TRY(
        invar_completion_response_init(&t->reply, &t->ask, &t->ticket, o->facts, o->tokenizer));
    if (!t->ticket.done) {
        INVAR_TRY(invar_inference_engine_submit(o->dispatch, &t->ticket));
        t->submitted = true;
    }
    t->due = o->seconds ? invar_process_clock_ms() + 1000 * o->seconds : 0;
    return INVAR_OK;
}

/* The next news of its ticket; *done_out: all is there. */
static invar_status listen_on(bool *done_out, invar_active_request *t)
{
    const invar_server_options *o = t->options;
    int64_t known = t->reply.known;
    invar_status status = INVAR_OK;

    *done_out = false;
    while (status == INVAR_OK && !*done_out && t->reply.known == known) {
        invar_inference_engine_wait(o->dispatch, &t->ticket, known, LOOK_MS);
        *done_out = t->ticket.done;
        if (t->ticket.done && t->ticket.error.status != INVAR_OK) {
            invar_error_put(&t->ticket.error);
            status = t->ticket.error.status;
        } else {
            status = invar_completion_response_copy(&t->reply);
        }
        invar_inference_engine_unlock(o->dispatch);
        if (status == INVAR_OK && !*done_out && !t->http->alive(t->connection))
            status = INVAR_FAIL(INVAR_E_IO, 0, "the client has gone");
        if (status == INVAR_OK && !*done_out && t->due && invar_process_clock_ms() > t->due)
            status = INVAR_FAIL(INVAR_E_STATE, 0,
                                "the request has taken longer than %" PRId64 " s, the server's "
                                "limit: ask for fewer tokens",
                                o->seconds);
    }
    return status;
}

static invar_status wait_whole(invar_active_request *t)
{
    bool done = false;

    while (!done)
        INVAR_TRY(listen_on(&done, t));
    return INVAR_OK;
}

/* What a session gets is kept before the first byte of it is sent. */
static invar_status keep_reply(invar_active_request *t)
{
    if (t->visit && t->submitted) {
        INVAR_TRY(wait_whole(t));
        INVAR_TRY(t->options->gate.keep(t->visit, &t->ticket));
    }
    end_visit(t);
    return INVAR_OK;
}

invar_status invar_active_request_begin(invar_active_request *t, invar_completion_kind kind,
                                        const char *key, const char *body, size_t bytes,
                                        const invar_serve_memory *memory)
{
    INVAR_TRY(active_request_submit(t, kind, key, body, bytes, memory));
    t->ask.memory = NULL; // nothing more is read
    return keep_reply(t);
}

bool invar_active_request_is_stream(const invar_active_request *t)
{
    return t->ask.stream;
}

const char *invar_active_request_param(const invar_active_request *t)
{
    return t->ask.param;
}

invar_status invar_active_request_whole(invar_json_text *out, invar_active_request *t)
{
    INVAR_TRY(wait_whole(t));
    return invar_completion_response_whole(out, &t->reply);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* The next events; a failure is one of them, and the last. */
static void active_request_fill(invar_active_request *t)
{
    bool done;
    invar_status status;

    invar_json_text_reset(&t->text);
    t->sent = 0;
    status = listen_on(&done, t);
    if (status == INVAR_OK)
        status = invar_completion_response_events(&t->text, &t->reply, done);
    if (status != INVAR_OK) {
        int http;
        const invar_response_error told =
            invar_active_request_error(&http, invar_error_last(), NULL);
        invar_json_text event = {0};

        invar_completion_response_put_error(&event, &told);
        invar_json_text_reset(&t->text);
        invar_json_text_append(&t->text, "data: ", 6);
        invar_json_text_append(&t->text, event.data, event.status == INVAR_OK ? event.bytes : 0);
        invar_json_text_append(&t->text, "\n\n", 2);
        invar_json_text_release(&event);
        t->reply.finished = true;
    }
}

int64_t invar_active_request_next(invar_active_request *t, char *out, size_t most)
{
    size_t bytes;

    while (t->sent == t->text.bytes && !t->reply.finished)
        active_request_fill(t);
    if (t->text.status != INVAR_OK)
        return -1;
    bytes = t->text.bytes - t->sent < most ? t->text.bytes - t->sent : most;
    memcpy(out, t->text.data + t->sent, bytes);
    t->sent += bytes;
    return (int64_t)bytes;
}

/* ---- life ------------------------------------------------------------------------------------ */

invar_status invar_active_request_new(invar_active_request **out,
                                      const invar_server_options *options,
                                      const invar_serve_table *http, const void *connection)
{
    INVAR_TRY(invar_alloc((void **)out, 1, sizeof **out, "a request"));
    memset(*out, 0, sizeof **out);
    (*out)->options = options;
    (*out)->http = http;
    (*out)->connection = connection;
    return INVAR_OK;
}

const invar_generation_request *invar_active_request_withdraw(invar_active_request *t)
{
    if (!t->submitted)
        return NULL;
    invar_inference_engine_cancel(t->options->dispatch, &t->ticket);
    return &t->ticket;
}

void invar_active_request_free(invar_active_request *t)
{
    if (!t)
        return;
    end_visit(t);
    invar_completion_response_release(&t->reply);
    if (t->has_ticket)
        invar_generation_request_release(&t->ticket);
    invar_completion_request_release(&t->ask);
    invar_json_text_release(&t->text);
    invar_free(t);
}
