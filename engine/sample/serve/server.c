/*
 * server.c - routes of the HTTP server, from the parsed HTTP request to the response.
 *
 * Threads of the HTTP module call into this file. Each one checks host, API key, route and size of
 * a request, reserves memory for it, submits it to the inference engine through active_request.h,
 * waits for its tokens and writes the response or stream.
 *
 * `lock` guards the number of requests in progress, the shutdown flag and the metrics.
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
#define RETRY_SECONDS 1 // value of the header Retry-After
// limit of JSON values in a request, not counting the tokens of one context
#define MAX_VALUES 131072
#define LARGE_BYTES (1 << 20) // size from which a memory block, or a request, is large
#define TYPE_JSON "application/json"
#define TYPE_EVENTS "text/event-stream"
#define MODELS "/v1/models"

struct invar_server {
    invar_server_options options;
    const invar_serve_table *http;
    void *listener;
    uint16_t port;
    pthread_mutex_t lock;
    pthread_cond_t idle_cond;
    int64_t n_answering; /* requests that are being answered */
    invar_memory_budget memory;
    bool closing;
    invar_server_metrics metrics; /* guarded by `lock` */
};

/* ---- responses without choices --------------------------------------------------------------- */

/*
 * Makes `text` the body of the response. If the text has failed, the body is empty and the status
 * 500.
 */
static void set_json_response(invar_http_transaction *transaction, int status,
                              invar_json_text *text)
{
    transaction->status = text->status == INVAR_OK ? status : 500;
    transaction->type = TYPE_JSON;
    transaction->reply = text->data;
    transaction->reply_bytes = text->status == INVAR_OK ? text->bytes : 0;
}

static void set_error_response(invar_http_transaction *transaction, int status,
                               const invar_response_error *error)
{
    invar_json_text text = {0};

    invar_completion_response_put_error(&text, error);
    set_json_response(transaction, status, &text);
}

static void set_failure_response(invar_http_transaction *transaction, const invar_error *error,
                                 const char *param)
{
    int http;
    const invar_response_error told = invar_active_request_error(&http, error, param);

    transaction->retry_after = http == 429 || http == 503 ? RETRY_SECONDS : 0;
    set_error_response(transaction, http, &told);
}

/* ---- memory of requests ---------------------------------------------------------------------- */

/* Returns the memory of the request of a transaction. */
static invar_serve_memory memory_of(invar_server *s, invar_http_transaction *transaction)
{
    return (invar_serve_memory){&s->memory, &transaction->memory};
}

/*
 * The C library caches freed memory, glibc up to 64 MiB for each of many threads. If memory is
 * limited, it is returned to the system: large blocks at once, small ones after a large request.
 */
static void unmap_large_blocks(const invar_server *s)
{
#ifdef __GLIBC__
    if (s->options.max_memory_bytes > 0)
        (void)mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
#else
    (void)s;
#endif
}

static void trim_small_blocks(const invar_server *s, const invar_http_transaction *transaction)
{
#ifdef __GLIBC__
    if (s->options.max_memory_bytes > 0 && transaction->memory >= LARGE_BYTES)
        (void)malloc_trim(0);
#else
    (void)s;
    (void)transaction;
#endif
}

/* Rejects a body that would take too much memory to parse, before it is parsed. */
static invar_status reserve_parse_memory(const invar_server *s, const invar_serve_memory *memory,
                                         const invar_http_transaction *transaction,
                                         invar_completion_kind kind)
{
    // messages are copied, and the copy is converted
    uint64_t trees = kind == INVAR_COMPLETION_REQUEST_CHAT ? 2 : 1;
    size_t values = invar_json_count(transaction->body, transaction->bytes);
    size_t most = MAX_VALUES + (size_t)s->options.server_info->context;

    if (values > most)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "the request has more than %zu JSON values: send prompts as text, or in "
                          "several requests",
                          most);
    return invar_serve_memory_reserve(
        memory, trees * invar_serve_memory_of_json(transaction->body, transaction->bytes), true);
}

/* ---- routes ---------------------------------------------------------------------------------- */

/* Returns the key of a header Authorization, which may be NULL; NULL if it has none. */
static const char *bearer_key(const char *given)
{
    static const char scheme[] = "Bearer ";

    return given && strncmp(given, scheme, sizeof scheme - 1) == 0 ? given + sizeof scheme - 1
                                                                   : NULL;
}

static void end_active_request(invar_server *s, invar_active_request *t)
{
    const invar_generation_request *generation = invar_active_request_cancel(t);

    if (generation) {
        (void)pthread_mutex_lock(&s->lock);
        invar_server_metrics_add_request(&s->metrics, generation);
        (void)pthread_mutex_unlock(&s->lock);
    }
    invar_active_request_free(t);
}

static void answer_completion(invar_server *s, invar_http_transaction *transaction,
                              invar_completion_kind kind)
{
    invar_active_request *t = NULL;
    const invar_serve_memory memory = memory_of(s, transaction);
    invar_json_text text = {0};
    invar_status status = reserve_parse_memory(s, &memory, transaction, kind);

    if (status == INVAR_OK)
        status = invar_active_request_new(&t, &s->options, s->http, transaction->connection);
    if (status == INVAR_OK)
        status = invar_active_request_begin(t, kind, bearer_key(transaction->authorization),
                                            transaction->body, transaction->bytes, &memory);
    if (status == INVAR_OK && t->completion.stream) {
        transaction->status = 200;
        transaction->type = TYPE_EVENTS;
        transaction->stream = t;
        return;
    }
    if (status == INVAR_OK)
        status = invar_active_request_write_response(&text, t);
    if (status == INVAR_OK) {
        set_json_response(transaction, 200, &text);
    } else {
        set_failure_response(transaction, invar_error_last(), t ? t->completion.param : NULL);
        invar_json_text_release(&text);
    }
    if (t)
        end_active_request(s, t);
}

static void answer_text(invar_server *s, invar_http_transaction *transaction)
{
    answer_completion(s, transaction, INVAR_COMPLETION_REQUEST_TEXT);
}

static void answer_chat(invar_server *s, invar_http_transaction *transaction)
{
    answer_completion(s, transaction, INVAR_COMPLETION_REQUEST_CHAT);
}

static void answer_models(invar_server *s, invar_http_transaction *transaction)
{
    invar_json_text text = {0};

    invar_completion_response_put_models(&text, s->options.server_info);
    set_json_response(transaction, 200, &text);
}

static void answer_model(invar_server *s, invar_http_transaction *transaction)
{
    invar_json_text text = {0};

    if (strcmp(transaction->path + strlen(MODELS) + 1, s->options.server_info->model) != 0) {
        set_error_response(
            transaction, 404,
            &(invar_response_error){"there is no such model here; " MODELS " lists what there is",
                                    "invalid_request_error", "model", "model_not_found"});
        return;
    }
    invar_completion_response_put_model(&text, s->options.server_info);
    set_json_response(transaction, 200, &text);
}

static void answer_health(invar_server *s, invar_http_transaction *transaction)
{
    invar_json_text text = {0};

    invar_json_text_open(&text, '{');
    invar_json_text_key(&text, "status");
    invar_json_text_string(&text, "ok", 2);
    invar_json_text_put_int(&text, "requests", invar_inference_engine_load(s->options.engine));
    invar_json_text_close(&text, '}');
    set_json_response(transaction, 200, &text);
}

static void answer_metrics(invar_server *s, invar_http_transaction *transaction);

typedef struct route {
    const char *path;
    const char *method;
    void (*answer)(invar_server *server, invar_http_transaction *exchange);
    bool is_public; /* needs no API key */
    bool is_prefix; /* the path may continue after `path` */
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
        if (routes[i].is_prefix ? strncmp(path, routes[i].path, strlen(routes[i].path)) == 0
                                : strcmp(path, routes[i].path) == 0)
            return &routes[i];
    return NULL;
}

static void answer_metrics(invar_server *s, invar_http_transaction *transaction)
{
    const char *paths[ROUTES + 1];
    invar_json_text text = {0};

    for (int i = 0; i < ROUTES; i++)
        paths[i] = routes[i].path;
    paths[ROUTES] = "other";
    (void)pthread_mutex_lock(&s->lock);
    invar_server_metrics_write(&text, &s->metrics, paths, ROUTES + 1, s->options.server_info,
                               invar_inference_engine_load(s->options.engine));
    (void)pthread_mutex_unlock(&s->lock);
    set_json_response(transaction, 200, &text);
    transaction->type = INVAR_PROMETHEUS_TYPE;
}

/* ---- checks of a request --------------------------------------------------------------------- */

/* Returns whether a header Host names this host and port; a header without a port means port 80. */
static bool host_matches(const char *host, const char *name, uint16_t port)
{
    size_t length = strlen(name);
    char colon[8];

    (void)snprintf(colon, sizeof colon, ":%u", (unsigned)port);
    return strncasecmp(host, name, length) == 0 &&
           (strcmp(host + length, colon) == 0 || (port == 80 && !host[length]));
}

/* Returns whether `host` is a loopback address, which no other machine can reach. */
static bool is_local(const char *host)
{
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

/*
 * A page in a browser can send requests to a loopback server that asks for no key, under a name of
 * its own that resolves to 127.0.0.1 (DNS rebinding). Its header Host shows that name.
 */
static bool host_is_allowed(const invar_server *s, const invar_http_transaction *transaction)
{
    const invar_server_options *o = &s->options;

    return o->key || !is_local(o->host) ||
           invar_server_host_is_loopback(transaction->host, s->port) ||
           (transaction->host && host_matches(transaction->host, o->host, s->port));
}

/* Compares two keys in a time that does not reveal how many characters agree. */
static bool keys_equal(const char *given, const char *key)
{
    size_t n = strlen(given), length = strlen(key);
    unsigned char differs = n != length;

    for (size_t i = 0; i < n; i++)
        differs |= (unsigned char)(given[i] ^ key[length ? i % length : 0]);
    return !differs;
}

static bool is_valid_key(void *payload, const char *authorization)
{
    const invar_server *s = payload;
    const invar_server_session_hooks *gate = &s->options.session_hooks;
    const char *given = bearer_key(authorization);

    if (gate->is_session_key)
        return given && gate->is_session_key(gate->payload, given);
    return s->options.key && given && keys_equal(given, s->options.key);
}

static bool is_json(const char *type)
{
    size_t length = strlen(TYPE_JSON);

    return type && strncmp(type, TYPE_JSON, length) == 0 &&
           (type[length] == '\0' || type[length] == ';' || type[length] == ' ');
}

static bool needs_key(const invar_server *s)
{
    return s->options.session_hooks.is_session_key || s->options.key;
}

/* Sets the response to a request that is not valid. Returns false. */
static bool reject_request(invar_http_transaction *transaction, int status, const char *message,
                           const char *code)
{
    set_error_response(transaction, status,
                       &(invar_response_error){message, "invalid_request_error", NULL, code});
    return false;
}

static bool check_request(const invar_server *s, invar_http_transaction *transaction)
{
    const route *r = find_route(transaction->path);
    char why[INVAR_SERVER_HOST_ERROR_SIZE];

    if (!host_is_allowed(s, transaction)) {
        invar_server_host_error(why, s->port);
        why[strcspn(why, "\n")] = '\0';
        return reject_request(transaction, 403, why, "host_not_allowed");
    }
    if (!r) {
        return reject_request(transaction, 404, "there is no such route; docs/serve.md lists them",
                              "not_found");
    }
    if (!r->is_public && needs_key(s) && !transaction->keyed)
        return reject_request(transaction, 401,
                              "the header 'Authorization: Bearer KEY' is missing, or its key "
                              "is another one",
                              "invalid_api_key");
    if (strcmp(transaction->method, r->method) != 0) {
        (void)snprintf(why, sizeof why, "%s takes %s alone", r->path, r->method);
        transaction->allow = r->method;
        return reject_request(transaction, 405, why, "method_not_allowed");
    }
    if (transaction->content_length > (uint64_t)s->options.max_body_bytes) {
        (void)snprintf(why, sizeof why, "the request has more than %" PRId64 " bytes",
                       s->options.max_body_bytes);
        return reject_request(transaction, 413, why, "too_large");
    }
    if (strcmp(transaction->method, "POST") == 0 && !is_json(transaction->content_type))
        return reject_request(transaction, 400,
                              "the header 'Content-Type: application/json' is missing",
                              "invalid_content_type");
    return true;
}

/* ---- callbacks of the HTTP module ------------------------------------------------------------ */

static void count_response(invar_server *s, const invar_http_transaction *transaction)
{
    const route *r = find_route(transaction->path);

    (void)pthread_mutex_lock(&s->lock);
    invar_server_metrics_add_response(&s->metrics, r ? (int)(r - routes) : ROUTES,
                                      transaction->status);
    (void)pthread_mutex_unlock(&s->lock);
}

static bool admit_request(void *payload, invar_http_transaction *transaction)
{
    bool admitted;

    transaction->keyed = is_valid_key(payload, transaction->authorization);
    admitted = check_request(payload, transaction);
    if (!admitted)
        count_response(payload, transaction);
    return admitted;
}

/* Memory is reserved as the body arrives, so a client that sends nothing takes none from others. */
static bool reserve_body(void *payload, invar_http_transaction *transaction, size_t bytes)
{
    const invar_serve_memory memory = memory_of(payload, transaction);

    if (invar_serve_memory_reserve(&memory, (uint64_t)bytes - (uint64_t)transaction->memory,
                                   true) == INVAR_OK)
        return true;
    set_failure_response(transaction, invar_error_last(), NULL);
    invar_error_clear();
    count_response(payload, transaction);
    invar_serve_memory_release(&memory);
    return false;
}

/* Counts the request as being answered. Returns false if the server is closing. */
static bool begin_answer(invar_server *s, invar_http_transaction *transaction)
{
    (void)pthread_mutex_lock(&s->lock);
    transaction->working = !s->closing;
    s->n_answering += transaction->working;
    (void)pthread_mutex_unlock(&s->lock);
    return transaction->working;
}

static void answer_request(void *payload, invar_http_transaction *transaction)
{
    invar_server *s = payload;

    if (begin_answer(s, transaction)) {
        find_route(transaction->path)->answer(s, transaction);
        invar_error_clear();
    } else {
        transaction->retry_after = RETRY_SECONDS;
        set_error_response(transaction, 503,
                           &(invar_response_error){"the server is about to end", "server_error",
                                                   NULL, "unavailable"});
    }
    count_response(s, transaction);
}

static void end_request(void *payload, invar_http_transaction *transaction)
{
    const invar_serve_memory memory = memory_of(payload, transaction);
    invar_server *s = payload;

    if (transaction->stream)
        end_active_request(s, transaction->stream);
    invar_free(transaction->reply);
    trim_small_blocks(s, transaction);
    invar_serve_memory_release(&memory);
    (void)pthread_mutex_lock(&s->lock);
    s->n_answering -= transaction->working;
    (void)pthread_cond_broadcast(&s->idle_cond);
    (void)pthread_mutex_unlock(&s->lock);
}

static int64_t next_stream_bytes(void *payload, void *stream, char *out, size_t most)
{
    (void)payload;
    return invar_active_request_read_stream(stream, out, most);
}

/* ---- creation -------------------------------------------------------------------------------- */

bool invar_server_host_is_loopback(const char *host, uint16_t port)
{
    static const char *const names[] = {"127.0.0.1", "localhost", "[::1]"};

    for (size_t i = 0; host && i < sizeof names / sizeof *names; i++)
        if (host_matches(host, names[i], port))
            return true;
    return false;
}

void invar_server_host_error(char out[INVAR_SERVER_HOST_ERROR_SIZE], uint16_t port)
{
    (void)snprintf(out, INVAR_SERVER_HOST_ERROR_SIZE,
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

static invar_status start_listener(invar_server *s)
{
    const invar_server_options *o = &s->options;
    const char *host = strcmp(o->host, "localhost") == 0 ? "127.0.0.1" : o->host;
    const invar_serve_settings settings = {.host = host,
                                           .port = (uint16_t)o->port,
                                           .connections = (unsigned)o->connections,
                                           .max_body_bytes = (size_t)o->max_body_bytes,
                                           .client_timeout_s = (unsigned)o->client_timeout_s,
                                           .handler = {.payload = s,
                                                       .knows = needs_key(s) ? is_valid_key : NULL,
                                                       .admit = admit_request,
                                                       .grow = reserve_body,
                                                       .answer = answer_request,
                                                       .release = end_request,
                                                       .next = next_stream_bytes}};
    char why[INVAR_SERVE_REASON_SIZE] = "";
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

static void free_response_body(void *payload, invar_http_transaction *transaction)
{
    (void)payload;
    invar_free(transaction->reply);
}

/* Fails: no response of this listener is a stream. */
static int64_t fail_stream(void *payload, void *stream, char *out, size_t most)
{
    (void)payload;
    (void)stream;
    (void)out;
    (void)most;
    return -1;
}

void *invar_server_start_loopback(const invar_serve_table *http,
                                  const invar_serve_settings *settings, uint16_t *port_out,
                                  char *why)
{
    invar_serve_settings here = *settings;

    here.host = "127.0.0.1";
    here.handler.release = free_response_body;
    here.handler.next = fail_stream;
    return http->start(&here, port_out, why);
}

invar_status invar_server_open(invar_server **out, const invar_server_options *options)
{
    const invar_serve_table *http;
    invar_server *s = NULL;
    invar_status status;

    if (!is_local(options->host) && !options->key)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "serve: other machines reach host %.200s: give --api-key-file FILE, or "
                          "the key in INVAR_API_KEY",
                          options->host);
    INVAR_TRY(invar_server_load(&http, options->module));
    INVAR_TRY(INVAR_ALLOC_ZEROED(s, 1, "a server"));
    s->options = *options;
    s->http = http;
    (void)pthread_mutex_init(&s->lock, NULL);
    invar_memory_budget_init(&s->memory, options->max_memory_bytes);
    (void)pthread_cond_init(&s->idle_cond, NULL);
    unmap_large_blocks(s);
    status = start_listener(s);
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
        while (s->n_answering > 0)
            (void)pthread_cond_wait(&s->idle_cond, &s->lock);
        (void)pthread_mutex_unlock(&s->lock);
        s->http->stop(s->listener);
    }
    (void)pthread_mutex_destroy(&s->lock);
    invar_memory_budget_destroy(&s->memory);
    (void)pthread_cond_destroy(&s->idle_cond);
    invar_free(s);
}
