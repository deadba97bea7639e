/*
 * metrics_server.c - HTTP server on the loopback interface with one route, /metrics.
 *
 * It uses the HTTP module of the inference server (module/serve_module.h). Requests whose header
 * Host is not a loopback name are rejected, so that web pages cannot read the metrics by DNS
 * rebinding.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/metrics/metrics_server.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/sample/serve/metrics/prometheus.h"
#include "engine/sample/serve/server.h"

#include "base/invar_banned.h"

#define PLAIN "text/plain; charset=utf-8"

enum { CONNECTIONS = 8, CLIENT_SECONDS = 10 };

struct invar_metrics_server {
    const invar_serve_table *http;
    void *listener;
    uint16_t port;
    pthread_mutex_t lock;
    char *text; /* (bytes) guarded by `lock` */
    size_t bytes;
};

static void set_text_response(invar_http_transaction *transaction, int status, const char *type,
                              const char *text, size_t bytes)
{
    transaction->status = status;
    transaction->type = type;
    if (INVAR_ALLOC(transaction->reply, bytes + 1, "a reply") != INVAR_OK) {
        invar_error_clear();
        transaction->status = 503;
        return;
    }
    if (bytes)
        memcpy(transaction->reply, text, bytes);
    transaction->reply_bytes = bytes;
}

static bool check_request(void *payload, invar_http_transaction *transaction)
{
    const invar_metrics_server *s = payload;
    static const char none[] = "there is /metrics alone\n", other[] = "/metrics takes GET alone\n";

    if (!invar_server_host_is_loopback(transaction->host, s->port)) {
        char text[INVAR_SERVER_HOST_ERROR_SIZE];
        invar_server_host_error(text, s->port);
        set_text_response(transaction, 403, PLAIN, text, strlen(text));
        return false;
    }
    if (strcmp(transaction->path, "/metrics") != 0) {
        set_text_response(transaction, 404, PLAIN, none, sizeof none - 1);
        return false;
    }
    if (strcmp(transaction->method, "GET") != 0) {
        transaction->allow = "GET";
        set_text_response(transaction, 405, PLAIN, other, sizeof other - 1);
        return false;
    }
    return true;
}

static void answer_metrics(void *payload, invar_http_transaction *transaction)
{
    invar_metrics_server *s = payload;

    (void)pthread_mutex_lock(&s->lock);
    set_text_response(transaction, 200, INVAR_PROMETHEUS_TYPE, s->text, s->bytes);
    (void)pthread_mutex_unlock(&s->lock);
}

static invar_status start_listener(invar_metrics_server *s, int64_t port)
{
    const invar_serve_settings settings = {
        .port = (uint16_t)port,
        .connections = CONNECTIONS,
        .client_timeout_s = CLIENT_SECONDS,
        .handler = {.payload = s, .admit = check_request, .answer = answer_metrics}};
    char why[INVAR_SERVE_REASON_SIZE] = "";
    uint16_t at; // not used: s->port is set before requests arrive on other threads

    s->port = settings.port;
    s->listener = invar_server_start_loopback(s->http, &settings, &at, why);
    if (s->listener)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_IO, 0,
                      "cannot listen at 127.0.0.1, port %" PRId64 ": %s; give another port", port,
                      why);
}

invar_status invar_metrics_server_open(invar_metrics_server **out, int64_t port)
{
    const invar_serve_table *http;
    invar_metrics_server *s;
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_server_load(&http, NULL));
    INVAR_TRY(INVAR_ALLOC(s, 1, "a server of metrics"));
    *s = (invar_metrics_server){.http = http};
    (void)pthread_mutex_init(&s->lock, NULL);
    status = start_listener(s, port);
    if (status != INVAR_OK) {
        invar_metrics_server_close(s);
        return status;
    }
    *out = s;
    return INVAR_OK;
}

invar_status invar_metrics_server_set(invar_metrics_server *s, const char *text, size_t bytes)
{
    char *copy, *before;

    INVAR_TRY(INVAR_ALLOC(copy, bytes + 1, "metrics"));
    if (bytes)
        memcpy(copy, text, bytes);
    (void)pthread_mutex_lock(&s->lock);
    before = s->text;
    s->text = copy;
    s->bytes = bytes;
    (void)pthread_mutex_unlock(&s->lock);
    invar_free(before);
    return INVAR_OK;
}

void invar_metrics_server_close(invar_metrics_server *s)
{
    if (!s)
        return;
    if (s->listener) {
        s->http->stop_accepting(s->listener);
        s->http->stop(s->listener);
    }
    (void)pthread_mutex_destroy(&s->lock);
    invar_free(s->text);
    invar_free(s);
}
