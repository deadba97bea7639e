/*
 * server.c - requests and replies.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/serve/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/process/module.h"
#include "base/process/process.h"
#include "base/text.h"
#include "engine/serve/meter.h"
#include "engine/serve/prometheus.h"
#include "engine/serve/reply.h"

#include "base/invar_banned.h"

#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name
#define LOOK_MS 200     // between two looks whether the client is still there
#define RETRY_SECONDS 1 // that a client is told to wait
#define TYPE_JSON "application/json"
#define TYPE_EVENTS "text/event-stream"
#define MODELS "/v1/models"

struct invar_server {
    invar_server_options options;
    const invar_serve_table *http;
    void *listener;
    uint16_t port;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    int64_t busy; /* requests that are answered just now */
    bool closing;
    invar_serve_meter meter; /* under the lock */
};

/* A request that is worked on, and its reply. */
typedef struct talk {
    invar_server *server;
    const void *connection;
    invar_ask ask;
    invar_ticket ticket;
    invar_reply reply;
    bool has_ticket, submitted;
    void *visit;          /* of the gate, which has let the ticket in; NULL: none */
    int64_t due;          /* when it takes too long; 0: never */
    invar_json_text text; /* of a stream: events that are on their way */
    size_t sent;
} talk;

/* ---- replies that are no choices ------------------------------------------------------------- */

/* The text becomes the body of the reply; a text that failed breaks the reply off. */
static void give(invar_serve_exchange *e, int status, invar_json_text *text)
{
    e->status = text->status == INVAR_OK ? status : 500;
    e->type = TYPE_JSON;
    e->reply = text->data;
    e->reply_bytes = text->status == INVAR_OK ? text->bytes : 0;
}

static void refuse(invar_serve_exchange *e, int status, const invar_reply_error *error)
{
    invar_json_text text = {0};

    invar_reply_put_error(&text, error);
    give(e, status, &text);
}

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
static invar_reply_error error_of(const invar_error *error, const char *param)
{
    const verdict *v = verdict_of(error->status);

    return (invar_reply_error){error->message, v->type, param, v->code};
}

static void refuse_failed(invar_serve_exchange *e, const invar_error *error, const char *param)
{
    const invar_reply_error told = error_of(error, param);
    const verdict *v = verdict_of(error->status);

    e->retry_after = v->http == 429 || v->http == 503 ? RETRY_SECONDS : 0;
    refuse(e, v->http, &told);
}

/* ---- a talk ---------------------------------------------------------------------------------- */

static void end_visit(talk *t)
{
    if (t->visit)
        t->server->options.gate.leave(t->visit);
    t->visit = NULL;
}

static void end_talk(talk *t)
{
    if (t->submitted) {
        invar_dispatch_withdraw(t->server->options.dispatch, &t->ticket);
        (void)pthread_mutex_lock(&t->server->lock);
        invar_serve_meter_ticket(&t->server->meter, &t->ticket);
        (void)pthread_mutex_unlock(&t->server->lock);
    }
    end_visit(t);
    invar_reply_release(&t->reply);
    if (t->has_ticket)
        invar_ticket_release(&t->ticket);
    invar_ask_release(&t->ask);
    invar_json_text_release(&t->text);
    invar_free(t);
}

static invar_status check_model(const talk *t)
{
    const char *served = t->server->options.facts->model;
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    if (!t->ask.model || strcmp(t->ask.model, served) == 0)
        return INVAR_OK;
    invar_text_quote(quoted, sizeof quoted, t->ask.model, strlen(t->ask.model));
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "there is no model '%s' here; the one that is served "
                      "is '%s'",
                      quoted, served);
}

static invar_status make_ticket(talk *t)
{
    t->has_ticket = true;
    INVAR_TRY(invar_ticket_init(&t->ticket, t->ask.n_prompts, t->ask.n));
    t->ticket.sampling = &t->ask.sampling;
    t->ticket.score = t->ask.echo && t->ask.logprobs;
    for (int64_t i = 0; i < t->ask.n_prompts; i++) {
        t->ticket.prompts[i].tokens = t->ask.prompts[i].ids;
        t->ticket.prompts[i].count = t->ask.prompts[i].n_ids;
    }
    return INVAR_OK;
}

/* The key that a request brings; NULL: none. */
static const char *key_of(const invar_serve_exchange *e)
{
    static const char scheme[] = "Bearer ";
    const char *given = e->authorization;

    return given && strncmp(given, scheme, sizeof scheme - 1) == 0 ? given + sizeof scheme - 1
                                                                   : NULL;
}

/* The session that it belongs to may refuse it, or know its reply. */
static invar_status pass_gate(talk *t, const invar_serve_exchange *e)
{
    const invar_server_gate *gate = &t->server->options.gate;

    if (!gate->begin)
        return INVAR_OK;
    t->ask.param = NULL;
    return gate->begin(&t->visit, gate->payload, key_of(e), &t->ask, &t->ticket);
}

/* What holds where the request says nothing. */
static invar_status settle(invar_sampling *out, const invar_server *s,
                           const invar_serve_exchange *e)
{
    const invar_server_gate *gate = &s->options.gate;

    if (gate->settings)
        return gate->settings(out, gate->payload, key_of(e));
    *out = *s->options.sampling;
    return INVAR_OK;
}

static invar_status begin_talk(talk *t, invar_ask_kind kind, const invar_serve_exchange *e)
{
    const invar_server_options *o = &t->server->options;
    invar_sampling sampling;

    INVAR_TRY(settle(&sampling, t->server, e));
    INVAR_TRY(invar_ask_read(&t->ask, kind, e->body, e->bytes, &sampling));
    t->ask.param = "model";
    INVAR_TRY(check_model(t));
    INVAR_TRY(invar_prompter_make(o->prompter, &t->ask));
    INVAR_TRY(make_ticket(t));
    INVAR_TRY(pass_gate(t, e));
    INVAR_TRY(invar_reply_init(&t->reply, &t->ask, &t->ticket, o->facts, o->tokenizer));
    if (!t->ticket.done) {
        INVAR_TRY(invar_dispatch_submit(o->dispatch, &t->ticket));
        t->submitted = true;
    }
    t->due = o->seconds ? invar_process_clock_ms() + 1000 * o->seconds : 0;
    return INVAR_OK;
}

/* The next news of its ticket; *done_out: all is there. */
static invar_status listen_on(bool *done_out, talk *t)
{
    const invar_server *s = t->server;
    int64_t known = t->reply.known;
    invar_status status = INVAR_OK;

    *done_out = false;
    while (status == INVAR_OK && !*done_out && t->reply.known == known) {
        invar_dispatch_wait(s->options.dispatch, &t->ticket, known, LOOK_MS);
        *done_out = t->ticket.done;
        if (t->ticket.done && t->ticket.error.status != INVAR_OK) {
            invar_error_put(&t->ticket.error);
            status = t->ticket.error.status;
        } else {
            status = invar_reply_copy(&t->reply);
        }
        invar_dispatch_unlock(s->options.dispatch);
        if (status == INVAR_OK && !*done_out && !s->http->alive(t->connection))
            status = INVAR_FAIL(INVAR_E_IO, 0, "the client has gone");
        if (status == INVAR_OK && !*done_out && t->due && invar_process_clock_ms() > t->due)
            status = INVAR_FAIL(INVAR_E_STATE, 0,
                                "the request has taken longer than %" PRId64 " s, the server's "
                                "limit: ask for fewer tokens",
                                s->options.seconds);
    }
    return status;
}

static invar_status wait_whole(talk *t)
{
    bool done = false;

    while (!done)
        INVAR_TRY(listen_on(&done, t));
    return INVAR_OK;
}

static invar_status finish_whole(talk *t)
{
    INVAR_TRY(wait_whole(t));
    return invar_reply_whole(&t->text, &t->reply);
}

/* What a session gets is kept before the first byte of it is sent. */
static invar_status keep_reply(talk *t)
{
    if (t->visit && t->submitted) {
        INVAR_TRY(wait_whole(t));
        INVAR_TRY(t->server->options.gate.keep(t->visit, &t->ticket));
    }
    end_visit(t);
    return INVAR_OK;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* The next events; a failure is one of them, and the last. */
static void fill(talk *t)
{
    bool done;
    invar_status status;

    invar_json_text_reset(&t->text);
    t->sent = 0;
    status = listen_on(&done, t);
    if (status == INVAR_OK)
        status = invar_reply_events(&t->text, &t->reply, done);
    if (status != INVAR_OK) {
        const invar_reply_error told = error_of(invar_error_last(), NULL);
        invar_json_text event = {0};

        invar_reply_put_error(&event, &told);
        invar_json_text_reset(&t->text);
        invar_json_text_append(&t->text, "data: ", 6);
        invar_json_text_append(&t->text, event.data, event.status == INVAR_OK ? event.bytes : 0);
        invar_json_text_append(&t->text, "\n\n", 2);
        invar_json_text_release(&event);
        t->reply.over = true;
    }
}

static int64_t next(void *payload, void *stream, char *out, size_t most)
{
    talk *t = stream;
    size_t bytes;

    (void)payload;
    while (t->sent == t->text.bytes && !t->reply.over)
        fill(t);
    if (t->text.status != INVAR_OK)
        return -1;
    bytes = t->text.bytes - t->sent < most ? t->text.bytes - t->sent : most;
    memcpy(out, t->text.data + t->sent, bytes);
    t->sent += bytes;
    return (int64_t)bytes;
}

/* ---- routes ---------------------------------------------------------------------------------- */

static void answer_ask(invar_server *s, invar_serve_exchange *e, invar_ask_kind kind)
{
    talk *t = NULL;
    invar_status status = invar_alloc((void **)&t, 1, sizeof *t, "a request");

    if (status == INVAR_OK) {
        memset(t, 0, sizeof *t);
        t->server = s;
        t->connection = e->connection;
        status = begin_talk(t, kind, e);
    }
    if (status == INVAR_OK)
        status = keep_reply(t);
    if (status == INVAR_OK && t->ask.stream) {
        e->status = 200;
        e->type = TYPE_EVENTS;
        e->stream = t;
        return;
    }
    if (status == INVAR_OK)
        status = finish_whole(t);
    if (status == INVAR_OK) {
        give(e, 200, &t->text);
        t->text = (invar_json_text){0};
    } else {
        refuse_failed(e, invar_error_last(), t ? t->ask.param : NULL);
    }
    if (t)
        end_talk(t);
}

static void answer_text(invar_server *s, invar_serve_exchange *e)
{
    answer_ask(s, e, INVAR_ASK_TEXT);
}

static void answer_chat(invar_server *s, invar_serve_exchange *e)
{
    answer_ask(s, e, INVAR_ASK_CHAT);
}

static void answer_models(invar_server *s, invar_serve_exchange *e)
{
    invar_json_text text = {0};

    invar_reply_put_models(&text, s->options.facts);
    give(e, 200, &text);
}

static void answer_model(invar_server *s, invar_serve_exchange *e)
{
    invar_json_text text = {0};

    if (strcmp(e->path + strlen(MODELS) + 1, s->options.facts->model) != 0) {
        refuse(e, 404,
               &(invar_reply_error){"there is no such model here; " MODELS " lists what there is",
                                    "invalid_request_error", "model", "model_not_found"});
        return;
    }
    invar_reply_put_model(&text, s->options.facts);
    give(e, 200, &text);
}

static void answer_health(invar_server *s, invar_serve_exchange *e)
{
    invar_json_text text = {0};

    invar_json_text_open(&text, '{');
    invar_json_text_key(&text, "status");
    invar_json_text_string(&text, "ok", 2);
    invar_json_text_key(&text, "requests");
    invar_json_text_int(&text, invar_dispatch_load(s->options.dispatch));
    invar_json_text_close(&text, '}');
    give(e, 200, &text);
}

static void answer_metrics(invar_server *s, invar_serve_exchange *e);

typedef struct route {
    const char *path;
    const char *method;
    void (*answer)(invar_server *server, invar_serve_exchange *exchange);
    bool open;   /* needs no key */
    bool prefix; /* more follows */
} route;

static const route routes[] = {
    {"/health", "GET", answer_health, true, false},
    {"/metrics", "GET", answer_metrics, false, false},
    {MODELS, "GET", answer_models, false, false},
    {MODELS "/", "GET", answer_model, false, true},
    {"/v1/completions", "POST", answer_text, false, false},
    {"/v1/chat/completions", "POST", answer_chat, false, false},
};

enum { ROUTES = sizeof routes / sizeof *routes };

static const route *find_route(const char *path)
{
    for (int i = 0; i < ROUTES; i++)
        if (routes[i].prefix ? strncmp(path, routes[i].path, strlen(routes[i].path)) == 0
                             : strcmp(path, routes[i].path) == 0)
            return &routes[i];
    return NULL;
}

static void answer_metrics(invar_server *s, invar_serve_exchange *e)
{
    const char *paths[ROUTES + 1];
    invar_json_text text = {0};

    for (int i = 0; i < ROUTES; i++)
        paths[i] = routes[i].path;
    paths[ROUTES] = "other";
    (void)pthread_mutex_lock(&s->lock);
    invar_serve_meter_write(&text, &s->meter, paths, ROUTES + 1, s->options.facts,
                            invar_dispatch_load(s->options.dispatch));
    (void)pthread_mutex_unlock(&s->lock);
    give(e, 200, &text);
    e->type = INVAR_PROMETHEUS_TYPE;
}

/* ---- who may ask ----------------------------------------------------------------------------- */

/* In a time that does not tell how much of it is right. */
static bool same_key(const char *given, const char *key)
{
    size_t n = strlen(given), length = strlen(key);
    unsigned char differs = n != length;

    for (size_t i = 0; i < n; i++)
        differs |= (unsigned char)(given[i] ^ key[length ? i % length : 0]);
    return !differs;
}

static bool has_key(const invar_server *s, const invar_serve_exchange *e)
{
    const invar_server_gate *gate = &s->options.gate;
    const char *given = key_of(e);

    if (gate->knows)
        return given && gate->knows(gate->payload, given);
    return !s->options.key || (given && same_key(given, s->options.key));
}

static bool is_json(const char *type)
{
    size_t length = strlen(TYPE_JSON);

    return type && strncmp(type, TYPE_JSON, length) == 0 &&
           (type[length] == '\0' || type[length] == ';' || type[length] == ' ');
}

static bool may_ask(const invar_server *s, invar_serve_exchange *e)
{
    const route *r = find_route(e->path);
    char why[160];

    if (!r) {
        refuse(e, 404,
               &(invar_reply_error){"there is no such route; docs/serve.md lists them",
                                    "invalid_request_error", NULL, "not_found"});
        return false;
    }
    if (!r->open && !has_key(s, e)) {
        refuse(e, 401,
               &(invar_reply_error){"the header 'Authorization: Bearer KEY' is missing, or its key "
                                    "is another one",
                                    "invalid_request_error", NULL, "invalid_api_key"});
        return false;
    }
    if (strcmp(e->method, r->method) != 0) {
        (void)snprintf(why, sizeof why, "%s takes %s alone", r->path, r->method);
        e->allow = r->method;
        refuse(e, 405,
               &(invar_reply_error){why, "invalid_request_error", NULL, "method_not_allowed"});
        return false;
    }
    if (e->announced > (uint64_t)s->options.most_body) {
        (void)snprintf(why, sizeof why, "the request has more than %" PRId64 " bytes",
                       s->options.most_body);
        refuse(e, 413, &(invar_reply_error){why, "invalid_request_error", NULL, "too_large"});
        return false;
    }
    if (strcmp(e->method, "POST") == 0 && !is_json(e->content_type)) {
        refuse(e, 400,
               &(invar_reply_error){"the header 'Content-Type: application/json' is missing",
                                    "invalid_request_error", NULL, "invalid_content_type"});
        return false;
    }
    return true;
}

/* ---- what the module calls ------------------------------------------------------------------- */

static void count_reply(invar_server *s, const invar_serve_exchange *e)
{
    const route *r = find_route(e->path);

    (void)pthread_mutex_lock(&s->lock);
    invar_serve_meter_reply(&s->meter, r ? (int)(r - routes) : ROUTES, e->status);
    (void)pthread_mutex_unlock(&s->lock);
}

static bool admit(void *payload, invar_serve_exchange *e)
{
    bool admitted = may_ask(payload, e);

    if (!admitted)
        count_reply(payload, e);
    return admitted;
}

/* Counts the request; false: no more are answered. */
static bool begin_work(invar_server *s, invar_serve_exchange *e)
{
    (void)pthread_mutex_lock(&s->lock);
    e->working = !s->closing;
    s->busy += e->working;
    (void)pthread_mutex_unlock(&s->lock);
    return e->working;
}

static void answer(void *payload, invar_serve_exchange *e)
{
    invar_server *s = payload;

    if (begin_work(s, e)) {
        find_route(e->path)->answer(s, e);
        invar_error_clear();
    } else {
        e->retry_after = RETRY_SECONDS;
        refuse(e, 503,
               &(invar_reply_error){"the server is about to end", "server_error", NULL,
                                    "unavailable"});
    }
    count_reply(s, e);
}

static void release(void *payload, invar_serve_exchange *e)
{
    invar_server *s = payload;

    if (e->stream)
        end_talk(e->stream);
    invar_free(e->reply);
    if (!e->working)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->busy--;
    (void)pthread_cond_broadcast(&s->idle);
    (void)pthread_mutex_unlock(&s->lock);
}

/* ---- life ------------------------------------------------------------------------------------ */

bool invar_server_is_local(const char *host)
{
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

bool invar_server_asked_here(const char *host, uint16_t port)
{
    static const char *const names[] = {"127.0.0.1", "localhost"};
    char here[32];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(here, sizeof here, "%s:%u", names[i], (unsigned)port);
        if (host && (strcmp(host, here) == 0 || (port == 80 && strcmp(host, names[i]) == 0)))
            return true;
    }
    return false;
}

invar_status invar_server_load(const invar_serve_table **out, const char *file)
{
    const void *symbol;

    file = file ? file : INVAR_MODULE_SERVE;
    INVAR_TRY(invar_error_advise(
        invar_module_load(&symbol, file, TEXT(INVAR_SERVE_TABLE), false), INVAR_E_UNSUPPORTED,
        "HTTP goes through it: install libmicrohttpd's headers (scripts/setup build), then "
        "build again"));
    *out = symbol;
    if ((*out)->abi != INVAR_SERVE_ABI)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%.1000s has version %u of the interface, this program %d: build both "
                          "together",
                          file, (*out)->abi, INVAR_SERVE_ABI);
    return INVAR_OK;
}

static invar_status start(invar_server *s)
{
    const invar_server_options *o = &s->options;
    const char *host = strcmp(o->host, "localhost") == 0 ? "127.0.0.1" : o->host;
    const invar_serve_settings settings = {
        .host = host,
        .port = (uint16_t)o->port,
        .connections = (unsigned)o->connections,
        .most_body = (size_t)o->most_body,
        .client_seconds = (unsigned)o->client_seconds,
        .handler = {
            .payload = s, .admit = admit, .answer = answer, .release = release, .next = next}};
    char why[INVAR_SERVE_WHY_SIZE] = "";

    s->listener = s->http->start(&settings, &s->port, why);
    return s->listener ? INVAR_OK
                       : INVAR_FAIL(INVAR_E_IO, 0,
                                    "serve: cannot listen at host %.200s, port %" PRId64 ": %s",
                                    o->host, o->port, why);
}

static void free_reply(void *payload, invar_serve_exchange *e)
{
    (void)payload;
    invar_free(e->reply);
}

/* No reply is a stream. */
static int64_t break_off(void *payload, void *stream, char *out, size_t most)
{
    (void)payload;
    (void)stream;
    (void)out;
    (void)most;
    return -1;
}

void *invar_server_start_here(const invar_serve_table *http, const invar_serve_settings *settings,
                              uint16_t *port_out, char *why)
{
    invar_serve_settings here = *settings;

    here.host = "127.0.0.1";
    here.handler.release = free_reply;
    here.handler.next = break_off;
    return http->start(&here, port_out, why);
}

invar_status invar_server_open(invar_server **out, const invar_server_options *options)
{
    const invar_serve_table *http;
    invar_server *s = NULL;
    invar_status status;

    if (!invar_server_is_local(options->host) && !options->key)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "serve: other machines reach host %.200s: give --api-key-file FILE, or "
                          "the key in INVAR_API_KEY",
                          options->host);
    INVAR_TRY(invar_server_load(&http, options->module));
    INVAR_TRY(invar_alloc((void **)&s, 1, sizeof *s, "a server"));
    memset(s, 0, sizeof *s);
    s->options = *options;
    s->http = http;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->idle, NULL);
    status = start(s);
    if (status != INVAR_OK) {
        invar_server_close(s);
        return status;
    }
    *out = s;
    return INVAR_OK;
}

int64_t invar_server_port(const invar_server *server)
{
    return server->port;
}

void invar_server_close(invar_server *s)
{
    if (!s)
        return;
    if (s->listener) {
        s->http->close_door(s->listener);
        (void)pthread_mutex_lock(&s->lock);
        s->closing = true;
        while (s->busy > 0)
            (void)pthread_cond_wait(&s->idle, &s->lock);
        (void)pthread_mutex_unlock(&s->lock);
        s->http->stop(s->listener);
    }
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_cond_destroy(&s->idle);
    invar_free(s);
}
