/*
 * live_report_server.c - serves the live report of a run over loopback HTTP.
 *
 * Requests arrive on threads of the HTTP server. Each request opens the ledger for itself, so no
 * ledger handle is shared. The rendered page and its data are cached until the ledger has a new
 * entry, which makes further open pages cheap; `lock` guards both caches.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/ledger/live_report_server.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/ledger/report.h"
#include "engine/sample/serve/server.h"

#include "base/invar_banned.h"

enum { CONNECTIONS = 16, CLIENT_SECONDS = 30 };

#define TYPE_PAGE "text/html; charset=utf-8"
#define TYPE_JSON "application/json"
#define TYPE_TEXT "text/plain; charset=utf-8"

/* A rendered body, valid for a number of entries. */
typedef struct cached_body {
    char *text; /* allocated by open_memstream, so it is freed with free */
    size_t bytes;
    int64_t entries;
    bool running;
} cached_body;

struct invar_live_report_server {
    const invar_located *at;
    const invar_serve_table *http;
    void *listener;
    uint16_t port;
    pthread_mutex_t lock;
    cached_body page, data; /* guarded by `lock` */
};

/* ---- bodies ---------------------------------------------------------------------------------- */

/* Sends a copy of the text as the response body. */
static invar_status send_body(invar_http_transaction *transaction, int status, const char *type,
                              const char *text, size_t bytes)
{
    transaction->status = status;
    transaction->type = type;
    INVAR_TRY(INVAR_ALLOC(transaction->reply, bytes + 1, "a reply"));
    memcpy(transaction->reply, text, bytes);
    transaction->reply_bytes = bytes;
    return INVAR_OK;
}

/* Sends a short text, or an empty response if memory is missing. */
static void send_text(invar_http_transaction *transaction, int status, const char *text)
{
    if (send_body(transaction, status, TYPE_TEXT, text, strlen(text)) != INVAR_OK)
        invar_error_clear();
}

/* Renders the body again if the ledger has new entries or has gained or lost its writer. */
static invar_status refresh_body(cached_body *body, invar_ledger *ledger,
                                 const invar_ledger_summary *run, bool running, bool page)
{
    const invar_report_run shown = {.ledger = ledger, .run = run->run};
    cached_body fresh = {.entries = run->entries, .running = running};
    FILE *out;

    if (body->text && body->entries == run->entries && body->running == running)
        return INVAR_OK;
    out = open_memstream(&fresh.text, &fresh.bytes);
    if (!out)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the page");
    invar_status status = invar_report_live(out, &shown, 1, page);
    if (fclose(out) != 0 && status == INVAR_OK)
        status = INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the page");
    if (status != INVAR_OK) {
        free(fresh.text);
        return status;
    }
    free(body->text);
    *body = fresh;
    return INVAR_OK;
}

static invar_status answer_path(invar_http_transaction *transaction, invar_live_report_server *b,
                                invar_ledger *ledger)
{
    char writer[INVAR_LEDGER_WRITER_SIZE] = "", text[80];
    bool page = strcmp(transaction->path, "/") == 0;
    cached_body *body = page ? &b->page : &b->data;
    invar_ledger_summary run;

    INVAR_TRY(invar_ledger_find(&run, ledger, b->at->run.uuid));
    if (!run.finished)
        INVAR_TRY(invar_ledger_writer(writer, b->at->path));
    if (strcmp(transaction->path, "/state") == 0) {
        int bytes = snprintf(text, sizeof text, "{\"entries\": %" PRId64 ", \"over\": %s}",
                             run.entries, writer[0] ? "false" : "true");
        return send_body(transaction, 200, TYPE_JSON, text, (size_t)bytes);
    }
    (void)pthread_mutex_lock(&b->lock);
    invar_status status = refresh_body(body, ledger, &run, writer[0] != '\0', page);
    if (status == INVAR_OK)
        status = send_body(transaction, 200, page ? TYPE_PAGE : TYPE_JSON, body->text, body->bytes);
    (void)pthread_mutex_unlock(&b->lock);
    return status;
}

/* ---- callbacks of the HTTP server ------------------------------------------------------------ */

static bool admit_request(void *payload, invar_http_transaction *transaction)
{
    const invar_live_report_server *b = payload;
    const char *path = transaction->path;

    if (!invar_server_host_is_loopback(transaction->host, b->port)) {
        char text[INVAR_SERVER_HOST_ERROR_SIZE];
        invar_server_host_error(text, b->port);
        send_text(transaction, 403, text);
    } else if (strcmp(transaction->method, "GET") != 0) {
        transaction->allow = "GET";
        send_text(transaction, 405, "there is only GET here\n");
    } else if (strcmp(path, "/") != 0 && strcmp(path, "/state") != 0 &&
               strcmp(path, "/data") != 0) {
        send_text(transaction, 404, "there are /, /state and /data\n");
    } else {
        return true;
    }
    return false;
}

static void answer_request(void *payload, invar_http_transaction *transaction)
{
    invar_live_report_server *b = payload;
    invar_ledger *ledger = NULL;
    invar_status status = invar_ledger_open(&ledger, b->at->path, NULL);

    if (status == INVAR_OK)
        status = answer_path(transaction, b, ledger);
    if (status != INVAR_OK) {
        send_text(transaction, 500, invar_error_last()->message);
        invar_error_clear();
    }
    invar_ledger_close(ledger);
}

/* ---- open and close -------------------------------------------------------------------------- */

static invar_status start_listening(invar_live_report_server *b, int64_t port)
{
    const invar_serve_settings settings = {
        .port = (uint16_t)port,
        .connections = CONNECTIONS,
        .client_timeout_s = CLIENT_SECONDS,
        .handler = {.payload = b, .admit = admit_request, .answer = answer_request}};
    char why[INVAR_SERVE_REASON_SIZE] = "";

    b->listener = invar_server_start_loopback(b->http, &settings, &b->port, why);
    if (b->listener)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_IO, 0,
                      "--serve: cannot listen at 127.0.0.1, port %" PRId64
                      ": %s; --serve alone takes a port that is free",
                      port, why);
}

invar_status invar_live_report_server_open(invar_live_report_server **out, const invar_located *at,
                                           int64_t *port)
{
    const invar_serve_table *http;
    invar_live_report_server *b;

    *out = NULL;
    INVAR_TRY(invar_server_load(&http, NULL));
    INVAR_TRY(INVAR_ALLOC(b, 1, "a server of a page"));
    *b = (invar_live_report_server){.at = at, .http = http};
    (void)pthread_mutex_init(&b->lock, NULL);
    invar_status status = start_listening(b, *port);
    if (status != INVAR_OK) {
        invar_live_report_server_close(b);
        return status;
    }
    *port = b->port;
    *out = b;
    return INVAR_OK;
}

void invar_live_report_server_close(invar_live_report_server *b)
{
    if (!b)
        return;
    if (b->listener) {
        b->http->stop_accepting(b->listener);
        b->http->stop(b->listener);
    }
    (void)pthread_mutex_destroy(&b->lock);
    free(b->page.text);
    free(b->data.text);
    invar_free(b);
}
