/*
 * server.c - requests and replies.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/server.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/process/module.h"
#include "engine/sample/serve/active_request.h"
#include "engine/sample/serve/metrics/prometheus.h"
#include "engine/sample/serve/metrics/server_metrics.h"

#include "base/invar_banned.h"

#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name
#define RETRY_SECONDS 1       // that a client is told to wait
#define MOST_VALUES 131072    // JSON values of a request, beside the tokens of one context
#define LARGE_BYTES (1 << 20) // of a block, or of a request
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
    int64_t busy;   /* requests that are answered just now */
    int64_t memory; /* bytes that the requests in flight have reserved */
    int64_t work;   /* bytes that they have reserved for a while, and give back before they end */
    pthread_cond_t given_back; /* some of these were */
    pthread_mutex_t queue;     /* who holds it is the only one that waits for them */
    bool closing;
    invar_server_metrics meter; /* under the lock */
};

/* ---- replies that are no choices ------------------------------------------------------------- */

/* The text becomes the body of the reply; a text that failed breaks the reply off. */
static void http_transaction_free(invar_http_transaction *e, int status, invar_json_text *text)
{
    e->status = text->status == INVAR_OK ? status : 500;
    e->type = TYPE_JSON;
    e->reply = text->data;
    e->reply_bytes = text->status == INVAR_OK ? text->bytes : 0;
}

static void http_transaction_fail(invar_http_transaction *e, int status,
                                  const invar_response_error *error)
{
    invar_json_text text = {0};

    invar_completion_response_put_error(&text, error);
    http_transaction_free(e, status, &text);
}

static void refuse_failed(invar_http_transaction *e, const invar_error *error, const char *param)
{
    int http;
    const invar_response_error told = invar_active_request_error(&http, error, param);

    e->retry_after = http == 429 || http == 503 ? RETRY_SECONDS : 0;
    http_transaction_fail(e, http, &told);
}

/* ---- memory of requests ---------------------------------------------------------------------- */

/*
 * Reserves memory for a request: until its release if it keeps it, otherwise until it is given
 * back. Waits for what others give back. Returns INVAR_E_BUSY if other requests keep too much
 * memory, and INVAR_E_INVALID if the request alone needs more than all may have.
 */
static invar_status reserve(invar_server *s, invar_http_transaction *e, uint64_t bytes, bool keep)
{
    int64_t most = s->options.memory > 0 ? s->options.memory : INT64_MAX;
    bool alone, fits;

    (void)pthread_mutex_lock(&s->queue);
    (void)pthread_mutex_lock(&s->lock);
    do {
        alone = bytes > (uint64_t)(most - e->memory);
        fits = bytes <= (uint64_t)(most - s->memory);
    } while (fits && bytes > (uint64_t)(most - s->memory - s->work) &&
             pthread_cond_wait(&s->given_back, &s->lock) == 0);
    if (fits) {
        s->memory += keep ? (int64_t)bytes : 0;
        e->memory += keep ? (int64_t)bytes : 0;
        s->work += keep ? 0 : (int64_t)bytes;
    }
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_mutex_unlock(&s->queue);
    if (fits)
        return INVAR_OK;
    if (alone)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "the request needs more memory than the server has for all requests, "
                          "%" PRId64 " bytes (--max-memory-bytes): send less in one request",
                          most);
    return INVAR_FAIL(INVAR_E_BUSY, 0,
                      "other requests have the memory that this one needs: try again later");
}

static void give_back(invar_server *s, invar_http_transaction *e)
{
    (void)pthread_mutex_lock(&s->lock);
    s->memory -= e->memory;
    e->memory = 0;
    (void)pthread_mutex_unlock(&s->lock);
}

/*
 * The C library keeps freed memory for later, glibc up to 64 MiB for each of many threads. A server
 * whose memory is limited gives it back: large blocks at once, small ones after a large request.
 */
static void keep_no_large_blocks(const invar_server *s)
{
#ifdef __GLIBC__
    if (s->options.memory > 0)
        (void)mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
#else
    (void)s;
#endif
}

static void keep_no_small_blocks(const invar_server *s, const invar_http_transaction *e)
{
#ifdef __GLIBC__
    if (s->options.memory > 0 && e->memory >= LARGE_BYTES)
        (void)malloc_trim(0);
#else
    (void)s;
    (void)e;
#endif
}

/* A request whose memory is counted. */
typedef struct account {
    invar_server *server;
    invar_http_transaction *exchange;
} account;

static invar_status reserve_for(void *payload, uint64_t bytes, bool keep)
{
    const account *a = payload;

    return reserve(a->server, a->exchange, bytes, keep);
}

static void give_back_for(void *payload, uint64_t bytes)
{
    invar_server *s = ((const account *)payload)->server;

    (void)pthread_mutex_lock(&s->lock);
    s->work -= (int64_t)bytes;
    (void)pthread_cond_signal(&s->given_back);
    (void)pthread_mutex_unlock(&s->lock);
}

/* Refuses a body whose parsing would take too much memory, before it is parsed. */
static invar_status reserve_parse(invar_server *s, invar_http_transaction *e,
                                  invar_completion_kind kind)
{
    uint64_t trees =
        kind == INVAR_COMPLETION_REQUEST_CHAT ? 2 : 1; // messages are copied, and changed
    size_t values = invar_json_count(e->body, e->bytes);
    size_t most = MOST_VALUES + (size_t)s->options.facts->context;

    if (values > most)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "the request has more than %zu JSON values: send prompts as text, or in "
                          "several requests",
                          most);
    return reserve(s, e, trees * invar_serve_memory_of_json(e->body, e->bytes), true);
}

/* ---- routes ---------------------------------------------------------------------------------- */

/* The key in a header Authorization, which may be NULL; NULL if there is none. */
static const char *key_of(const char *given)
{
    static const char scheme[] = "Bearer ";

    return given && strncmp(given, scheme, sizeof scheme - 1) == 0 ? given + sizeof scheme - 1
                                                                   : NULL;
}

static void end_talk(invar_server *s, invar_active_request *t)
{
    const invar_generation_request *ticket = invar_active_request_withdraw(t);

    if (ticket) {
        (void)pthread_mutex_lock(&s->lock);
        invar_server_metrics_ticket(&s->meter, ticket);
        (void)pthread_mutex_unlock(&s->lock);
    }
    invar_active_request_free(t);
}

static void answer_ask(invar_server *s, invar_http_transaction *e, invar_completion_kind kind)
{
    invar_active_request *t = NULL;
    account holder = {s, e};
    const invar_serve_memory memory = {&holder, reserve_for, give_back_for};
    invar_json_text text = {0};
    invar_status status = reserve_parse(s, e, kind);

    if (status == INVAR_OK)
        status = invar_active_request_new(&t, &s->options, s->http, e->connection);
    if (status == INVAR_OK)
        status = invar_active_request_begin(t, kind, key_of(e->authorization), e->body, e->bytes,
                                            &memory);
    if (status == INVAR_OK && invar_active_request_is_stream(t)) {
        e->status = 200;
        e->type = TYPE_EVENTS;
        e->stream = t;
        return;
    }
    if (status == INVAR_OK)
        status = invar_active_request_whole(&text, t);
    if (status == INVAR_OK) {
        http_transaction_free(e, 200, &text);
    } else {
        refuse_failed(e, invar_error_last(), t ? invar_active_request_param(t) : NULL);
        invar_json_text_release(&text);
    }
    if (t)
        end_talk(s, t);
}

static void answer_text(invar_server *s, invar_http_transaction *e)
{
    answer_ask(s, e, INVAR_COMPLETION_REQUEST_TEXT);
}

static void answer_chat(invar_server *s, invar_http_transaction *e)
{
    answer_ask(s, e, INVAR_COMPLETION_REQUEST_CHAT);
}

static void answer_models(invar_server *s, invar_http_transaction *e)
{
    invar_json_text text = {0};

    invar_completion_response_put_models(&text, s->options.facts);
    http_transaction_free(e, 200, &text);
}

static void answer_model(invar_server *s, invar_http_transaction *e)
{
    invar_json_text text = {0};

    if (strcmp(e->path + strlen(MODELS) + 1, s->options.facts->model) != 0) {
        http_transaction_fail(
            e, 404,
            &(invar_response_error){"there is no such model here; " MODELS " lists what there is",
                                    "invalid_request_error", "model", "model_not_found"});
        return;
    }
    invar_completion_response_put_model(&text, s->options.facts);
    http_transaction_free(e, 200, &text);
}

static void answer_health(invar_server *s, invar_http_transaction *e)
{
    invar_json_text text = {0};

    invar_json_text_open(&text, '{');
    invar_json_text_key(&text, "status");
    invar_json_text_string(&text, "ok", 2);
    invar_json_text_key(&text, "requests");
    invar_json_text_int(&text, invar_inference_engine_load(s->options.dispatch));
    invar_json_text_close(&text, '}');
    http_transaction_free(e, 200, &text);
}

static void answer_metrics(invar_server *s, invar_http_transaction *e);

typedef struct route {
    const char *path;
    const char *method;
    void (*answer)(invar_server *server, invar_http_transaction *exchange);
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

static void answer_metrics(invar_server *s, invar_http_transaction *e)
{
    const char *paths[ROUTES + 1];
    invar_json_text text = {0};

    for (int i = 0; i < ROUTES; i++)
        paths[i] = routes[i].path;
    paths[ROUTES] = "other";
    (void)pthread_mutex_lock(&s->lock);
    invar_server_metrics_write(&text, &s->meter, paths, ROUTES + 1, s->options.facts,
                               invar_inference_engine_load(s->options.dispatch));
    (void)pthread_mutex_unlock(&s->lock);
    http_transaction_free(e, 200, &text);
    e->type = INVAR_PROMETHEUS_TYPE;
}

/* ---- who may ask ----------------------------------------------------------------------------- */

/* Whether a header Host names this host and port; a header without a port names port 80. */
static bool is_at(const char *host, const char *name, uint16_t port)
{
    size_t length = strlen(name);
    char colon[8];

    (void)snprintf(colon, sizeof colon, ":%u", (unsigned)port);
    return strncasecmp(host, name, length) == 0 &&
           (strcmp(host + length, colon) == 0 || (port == 80 && !host[length]));
}

/*
 * A page in a browser can send requests to a loopback server that asks for no key, under a name of
 * its own that resolves to 127.0.0.1 (DNS rebinding). Its header Host shows that name.
 */
static bool asked_here(const invar_server *s, const invar_http_transaction *e)
{
    const invar_server_options *o = &s->options;

    return o->key || !invar_server_is_local(o->host) || invar_server_asked_here(e->host, s->port) ||
           (e->host && is_at(e->host, o->host, s->port));
}

/* In a time that does not tell how much of it is right. */
static bool same_key(const char *given, const char *key)
{
    size_t n = strlen(given), length = strlen(key);
    unsigned char differs = n != length;

    for (size_t i = 0; i < n; i++)
        differs |= (unsigned char)(given[i] ^ key[length ? i % length : 0]);
    return !differs;
}

static bool knows(void *payload, const char *authorization)
{
    const invar_server *s = payload;
    const invar_server_session_hooks *gate = &s->options.gate;
    const char *given = key_of(authorization);

    if (gate->knows)
        return given && gate->knows(gate->payload, given);
    return s->options.key && given && same_key(given, s->options.key);
}

static bool is_json(const char *type)
{
    size_t length = strlen(TYPE_JSON);

    return type && strncmp(type, TYPE_JSON, length) == 0 &&
           (type[length] == '\0' || type[length] == ';' || type[length] == ' ');
}

static bool asks_for_key(const invar_server *s)
{
    return s->options.gate.knows || s->options.key;
}

static bool may_ask(const invar_server *s, invar_http_transaction *e)
{
    const route *r = find_route(e->path);
    char why[INVAR_SERVER_NOT_HERE_SIZE];

    if (!asked_here(s, e)) {
        invar_server_not_here(why, s->port);
        why[strcspn(why, "\n")] = '\0';
        http_transaction_fail(
            e, 403,
            &(invar_response_error){why, "invalid_request_error", NULL, "host_not_allowed"});
        return false;
    }
    if (!r) {
        http_transaction_fail(
            e, 404,
            &(invar_response_error){"there is no such route; docs/serve.md lists them",
                                    "invalid_request_error", NULL, "not_found"});
        return false;
    }
    if (!r->open && asks_for_key(s) && !e->keyed) {
        http_transaction_fail(
            e, 401,
            &(invar_response_error){"the header 'Authorization: Bearer KEY' is missing, or its key "
                                    "is another one",
                                    "invalid_request_error", NULL, "invalid_api_key"});
        return false;
    }
    if (strcmp(e->method, r->method) != 0) {
        (void)snprintf(why, sizeof why, "%s takes %s alone", r->path, r->method);
        e->allow = r->method;
        http_transaction_fail(
            e, 405,
            &(invar_response_error){why, "invalid_request_error", NULL, "method_not_allowed"});
        return false;
    }
    if (e->announced > (uint64_t)s->options.most_body) {
        (void)snprintf(why, sizeof why, "the request has more than %" PRId64 " bytes",
                       s->options.most_body);
        http_transaction_fail(
            e, 413, &(invar_response_error){why, "invalid_request_error", NULL, "too_large"});
        return false;
    }
    if (strcmp(e->method, "POST") == 0 && !is_json(e->content_type)) {
        http_transaction_fail(
            e, 400,
            &(invar_response_error){"the header 'Content-Type: application/json' is missing",
                                    "invalid_request_error", NULL, "invalid_content_type"});
        return false;
    }
    return true;
}

/* ---- what the module calls ------------------------------------------------------------------- */

static void count_reply(invar_server *s, const invar_http_transaction *e)
{
    const route *r = find_route(e->path);

    (void)pthread_mutex_lock(&s->lock);
    invar_server_metrics_reply(&s->meter, r ? (int)(r - routes) : ROUTES, e->status);
    (void)pthread_mutex_unlock(&s->lock);
}

static bool http_transaction_admit(void *payload, invar_http_transaction *e)
{
    bool admitted;

    e->keyed = knows(payload, e->authorization);
    admitted = may_ask(payload, e);
    if (!admitted)
        count_reply(payload, e);
    return admitted;
}

/* Memory is reserved as the body arrives, so a client that sends nothing takes none from others. */
static bool grow(void *payload, invar_http_transaction *e, size_t bytes)
{
    invar_server *s = payload;

    if (reserve(s, e, (uint64_t)bytes - (uint64_t)e->memory, true) == INVAR_OK)
        return true;
    refuse_failed(e, invar_error_last(), NULL);
    invar_error_clear();
    count_reply(s, e);
    give_back(s, e);
    return false;
}

/* Counts the request; false: no more are answered. */
static bool begin_work(invar_server *s, invar_http_transaction *e)
{
    (void)pthread_mutex_lock(&s->lock);
    e->working = !s->closing;
    s->busy += e->working;
    (void)pthread_mutex_unlock(&s->lock);
    return e->working;
}

static void http_transaction_answer(void *payload, invar_http_transaction *e)
{
    invar_server *s = payload;

    if (begin_work(s, e)) {
        find_route(e->path)->answer(s, e);
        invar_error_clear();
    } else {
        e->retry_after = RETRY_SECONDS;
        http_transaction_fail(e, 503,
                              &(invar_response_error){"the server is about to end", "server_error",
                                                      NULL, "unavailable"});
    }
    count_reply(s, e);
}

static void http_transaction_release(void *payload, invar_http_transaction *e)
{
    invar_server *s = payload;

    if (e->stream)
        end_talk(s, e->stream);
    invar_free(e->reply);
    keep_no_small_blocks(s, e);
    give_back(s, e);
    (void)pthread_mutex_lock(&s->lock);
    s->busy -= e->working;
    (void)pthread_cond_broadcast(&s->idle);
    (void)pthread_mutex_unlock(&s->lock);
}

static int64_t next(void *payload, void *stream, char *out, size_t most)
{
    (void)payload;
    return invar_active_request_next(stream, out, most);
}

/* ---- life ------------------------------------------------------------------------------------ */

bool invar_server_is_local(const char *host)
{
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

bool invar_server_asked_here(const char *host, uint16_t port)
{
    static const char *const names[] = {"127.0.0.1", "localhost", "[::1]"};

    for (size_t i = 0; host && i < sizeof names / sizeof *names; i++)
        if (is_at(host, names[i], port))
            return true;
    return false;
}

void invar_server_not_here(char out[INVAR_SERVER_NOT_HERE_SIZE], uint16_t port)
{
    (void)snprintf(out, INVAR_SERVER_NOT_HERE_SIZE,
                   "ask for 127.0.0.1:%u or localhost:%u; with ssh -L use this port on both sides, "
                   "-L %u:127.0.0.1:%u\n",
                   (unsigned)port, (unsigned)port, (unsigned)port, (unsigned)port);
}

invar_status invar_server_load(const invar_serve_table **out, const char *file)
{
    const void *symbol;

    file = file ? file : INVAR_MODULE_SERVE;
    INVAR_TRY(invar_module_load(&symbol, file, TEXT(INVAR_SERVE_TABLE), false));
    *out = symbol;
    if ((*out)->abi != INVAR_SERVE_ABI)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%.1000s has version %u of the interface, this program %d: build both "
                          "together",
                          file, (*out)->abi, INVAR_SERVE_ABI);
    return INVAR_OK;
}

static invar_status server_start(invar_server *s)
{
    const invar_server_options *o = &s->options;
    const char *host = strcmp(o->host, "localhost") == 0 ? "127.0.0.1" : o->host;
    const invar_serve_settings settings = {.host = host,
                                           .port = (uint16_t)o->port,
                                           .connections = (unsigned)o->connections,
                                           .most_body = (size_t)o->most_body,
                                           .client_seconds = (unsigned)o->client_seconds,
                                           .handler = {.payload = s,
                                                       .knows = asks_for_key(s) ? knows : NULL,
                                                       .admit = http_transaction_admit,
                                                       .grow = grow,
                                                       .answer = http_transaction_answer,
                                                       .release = http_transaction_release,
                                                       .next = next}};
    char why[INVAR_SERVE_WHY_SIZE] = "";
    uint16_t port = 0;

    s->port = settings.port; // requests may arrive before the listener is returned
    s->listener = s->http->start(&settings, &port, why);
    if (s->port == 0)
        s->port = port;
    return s->listener ? INVAR_OK
                       : INVAR_FAIL(INVAR_E_IO, 0,
                                    "serve: cannot listen at host %.200s, port %" PRId64 ": %s",
                                    o->host, o->port, why);
}

static void free_reply(void *payload, invar_http_transaction *e)
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
    (void)pthread_mutex_init(&s->queue, NULL);
    (void)pthread_cond_init(&s->idle, NULL);
    (void)pthread_cond_init(&s->given_back, NULL);
    keep_no_large_blocks(s);
    status = server_start(s);
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
        s->http->stop_accepting(s->listener);
        (void)pthread_mutex_lock(&s->lock);
        s->closing = true;
        while (s->busy > 0)
            (void)pthread_cond_wait(&s->idle, &s->lock);
        (void)pthread_mutex_unlock(&s->lock);
        s->http->stop(s->listener);
    }
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_mutex_destroy(&s->queue);
    (void)pthread_cond_destroy(&s->idle);
    (void)pthread_cond_destroy(&s->given_back);
    invar_free(s);
}
