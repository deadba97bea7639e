/*
 * http.c - posts requests through the HTTP module, and repeats those that may succeed later.
 *
 * All requests run concurrently; the failed ones are sorted to the front and run again after a
 * delay. Errors name the server by its URL without the values of its query (invar_text_redact_url),
 * and never show the API key.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/http/http.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/process/module.h"
#include "base/text.h"
#include "engine/ext/http/module/http_module.h"

#include "base/invar_banned.h"

#define URL_BYTES 2000
#define ROUTE_BYTES 64
#define NAME_BYTES 64
#define KEY_BYTES 4096
#define BEARER "Authorization: Bearer "
#define MAX_TIMEOUT_S 1000000.0 /* seconds; keeps the arithmetic small */
#define DELAY_STEP_S 0.5        /* seconds of a delay between calls of the callback */
#define BATCH_SIZE 256          /* requests whose responses are in memory together */
#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name

struct invar_http {
    char name[NAME_BYTES + 1];
    char url[URL_BYTES + ROUTE_BYTES + 1];
    char shown[INVAR_TEXT_URL_SIZE];
    char header[sizeof BEARER + KEY_BYTES]; /* empty if there is no key */
    invar_http_options options;
    const invar_http_table *client;
    void (*waits)(void *payload);
    void *payload;
};

/* ---- open and close -------------------------------------------------------------------------- */

/* Returns true for HOST or HOST:PORT; the host may be an address in brackets, with colons. */
static bool is_host_port(const char *text, size_t bytes)
{
    const char *end = text + bytes, *port = end;
    long number = 0;

    while (port > text && port[-1] >= '0' && port[-1] <= '9')
        port--;
    if (port > text && port[-1] == ':' && port < end) {
        number = strtol(port, NULL, 10);
        end = port - 1;
    } else if (*text != '[' && memchr(text, ':', bytes)) {
        return false;
    }
    return end > text && number <= 65535 && (*text == '[') == (end[-1] == ']');
}

bool invar_http_is_url(const char *url)
{
    const char *host = strncmp(url, "http://", 7) == 0    ? url + 7
                       : strncmp(url, "https://", 8) == 0 ? url + 8
                                                          : NULL;

    return host && is_host_port(host, strcspn(host, "/?#")) && strlen(url) <= URL_BYTES &&
           !strpbrk(url, " \t\r\n");
}

static invar_status check_url(const char *name, const char *url)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    if (invar_http_is_url(url))
        return INVAR_OK;
    invar_text_quote(quoted, sizeof quoted, url, strcspn(url, "?#"));
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.80s = %s is no address; expected http://HOST:PORT/PATH or https://...",
                      name, quoted);
}

/* Checks that the key is one printable line. The message does not show it. */
static invar_status check_key(const char *name, const char *key)
{
    bool good = strlen(key) <= KEY_BYTES;

    for (const char *c = key; *c; c++)
        good = good && *c > ' ' && *c <= '~';
    return good ? INVAR_OK
                : INVAR_FAIL(INVAR_E_INVALID, 0,
                             "%.80s: the key for its server has a blank, or what is no printable "
                             "ASCII, or more than %d characters",
                             name, KEY_BYTES);
}

static invar_status load_module(const invar_http_table **out, const char *file)
{
    const void *symbol;

    INVAR_TRY(invar_module_load(&symbol, file, TEXT(INVAR_HTTP_TABLE), false));
    *out = symbol;
    if ((*out)->abi != INVAR_HTTP_ABI)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%.1000s has version %u of the interface, this program %d: build both "
                          "together",
                          file, (*out)->abi, INVAR_HTTP_ABI);
    return INVAR_OK;
}

invar_status invar_http_open(invar_http **out, const invar_http_options *options)
{
    const char *key = options->api_key ? options->api_key : "";
    const char *route = options->route ? options->route : "";
    const invar_http_table *client;
    invar_http *http;

    *out = NULL;
    INVAR_CHECK(strlen(options->name) <= NAME_BYTES && strlen(route) <= ROUTE_BYTES &&
                options->attempts > 0 && options->max_concurrency);
    INVAR_TRY(check_url(options->name, options->url));
    INVAR_TRY(check_key(options->name, key));
    INVAR_TRY(load_module(&client, options->module ? options->module : INVAR_MODULE_HTTP));
    INVAR_TRY(INVAR_ALLOC_ZEROED(http, 1, "a client of a server"));
    memcpy(http->name, options->name, strlen(options->name));
    (void)snprintf(http->url, sizeof http->url, "%s%s", options->url, route);
    invar_text_redact_url(http->shown, sizeof http->shown, http->url);
    if (key[0])
        (void)snprintf(http->header, sizeof http->header, "%s%s", BEARER, key);
    http->options = *options;
    http->client = client;
    *out = http;
    return INVAR_OK;
}

void invar_http_close(invar_http *http)
{
    invar_free(http);
}

void invar_http_set_wait_callback(invar_http *http, void (*waits)(void *payload), void *payload)
{
    http->waits = waits;
    http->payload = payload;
}

/* ---- responses ------------------------------------------------------------------------------- */

/* Appends to the response, and a NUL after it. */
static int append_response(void *payload, const char *data, size_t bytes)
{
    invar_http_exchange *e = payload;

    e->too_long = e->too_long || bytes > e->max_response_bytes - e->reply_bytes;
    return e->too_long || invar_alloc_append(&e->reply, &e->reply_bytes, &e->reply_capacity, data,
                                             bytes, "the answer of a server") != INVAR_OK;
}

static bool is_good(const invar_http_call *call)
{
    return call->code == 0 && call->status >= 200 && call->status < 300;
}

/*
 * Returns true if the call got no response or a status that means "later", as from a server that
 * starts or is busy.
 */
static bool may_repeat(const invar_http_call *call)
{
    static const long later[] = {408, 425, 429, 500, 502, 503, 504};
    const invar_http_exchange *e = call->payload;

    if (call->code)
        return !e->too_long;
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (call->status == later[i])
            return true;
    return false;
}

static invar_status report_failure(const invar_http *http, const invar_http_call *call)
{
    const invar_http_exchange *e = call->payload;
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    if (e->too_long)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: the answer of %s is longer than %zu bytes",
                          http->name, http->shown, e->max_response_bytes);
    if (call->code) {
        invar_text_quote(quoted, sizeof quoted, call->why, strlen(call->why));
        return INVAR_FAIL(INVAR_E_IO, call->code, "%s: no answer from %s after %d calls: %s",
                          http->name, http->shown, http->options.attempts, quoted);
    }
    invar_text_quote(quoted, sizeof quoted, e->reply ? e->reply : "", e->reply_bytes);
    return INVAR_FAIL(INVAR_E_STATE, (int)call->status, "%s: %s answers with status %ld: %s",
                      http->name, http->shown, call->status, quoted);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void sleep_for(const invar_http *http, double seconds)
{
    for (double left = seconds; left > 0; left -= DELAY_STEP_S) {
        double nap = left < DELAY_STEP_S ? left : DELAY_STEP_S;
        struct timespec span = {0, (long)(nap * 1e9)};
        (void)nanosleep(&span, NULL);
        if (http->waits)
            http->waits(http->payload);
    }
}

static invar_status run_calls(const invar_http *http, invar_http_call *calls, size_t count)
{
    double seconds = http->options.timeout < MAX_TIMEOUT_S ? http->options.timeout : MAX_TIMEOUT_S;
    const invar_http_settings settings = {.url = http->url,
                                          .header = http->header[0] ? http->header : NULL,
                                          .timeout_ms = (long)(seconds * 1000),
                                          .parallel = http->options.max_concurrency,
                                          .waits = http->waits,
                                          .payload = http->payload};
    int code = http->client->run(calls, count, &settings);

    return code ? INVAR_FAIL(INVAR_E_IO, code, "%s: the HTTP client failed (code %d)", http->name,
                             code)
                : INVAR_OK;
}

/* Moves the calls that must be repeated to the front. Fails if a call failed for good. */
static invar_status collect_retries(size_t *left_out, const invar_http *http,
                                    invar_http_call *calls, size_t count, bool last)
{
    size_t left = 0;

    for (size_t i = 0; i < count; i++) {
        invar_http_exchange *e = calls[i].payload;

        if (is_good(&calls[i]))
            continue;
        if (last || !may_repeat(&calls[i]))
            return report_failure(http, &calls[i]);
        e->reply_bytes = 0;
        calls[left++] = calls[i];
    }
    *left_out = left;
    return INVAR_OK;
}

static invar_status run_with_retries(invar_http *http, invar_http_call *calls, size_t count)
{
    double pause = http->options.retry_delay_s;

    for (int attempt = 1; count > 0; attempt++) {
        INVAR_TRY(run_calls(http, calls, count));
        INVAR_TRY(collect_retries(&count, http, calls, count, attempt == http->options.attempts));
        if (count == 0)
            break;
        sleep_for(http, pause);
        pause *= 2;
    }
    return INVAR_OK;
}

invar_status invar_http_post(invar_http *http, invar_http_exchange *exchanges, size_t count)
{
    invar_http_call *calls;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(calls, count + 1, "calls of a server"));
    for (size_t i = 0; i < count; i++) {
        invar_http_exchange *e = &exchanges[i];

        if (e->max_response_bytes == 0)
            e->max_response_bytes = http->options.max_response_bytes;
        calls[i] = (invar_http_call){
            .body = e->body, .bytes = e->bytes, .on_data = append_response, .payload = e};
    }
    status = run_with_retries(http, calls, count);
    invar_free(calls);
    return status;
}

/* ---- many requests --------------------------------------------------------------------------- */

static invar_status write_bodies(invar_json_text *text, invar_http_exchange *exchanges,
                                 const invar_http_batch *q, size_t first, size_t count)
{
    size_t at = 0;

    invar_json_text_reset(text);
    for (size_t i = 0; i < count; i++) {
        size_t before = text->bytes;

        exchanges[i] = (invar_http_exchange){0};
        exchanges[i].max_response_bytes = q->write(text, first + i, q->payload);
        invar_json_text_newline(text);
        exchanges[i].bytes = text->bytes - before;
    }
    INVAR_TRY(text->status);
    for (size_t i = 0; i < count; at += exchanges[i++].bytes)
        exchanges[i].body = text->data + at;
    return INVAR_OK;
}

invar_status invar_http_batch_run(invar_http *server, const invar_http_batch *q)
{
    invar_http_exchange exchanges[BATCH_SIZE];
    invar_json_text text = {0};
    invar_status status = INVAR_OK;

    for (size_t first = 0, count; first < q->count && status == INVAR_OK; first += count) {
        count = q->count - first < BATCH_SIZE ? q->count - first : BATCH_SIZE;
        status = write_bodies(&text, exchanges, q, first, count);
        if (status == INVAR_OK)
            status = invar_http_post(server, exchanges, count);
        for (size_t i = 0; i < count; i++) {
            const invar_http_exchange *e = &exchanges[i];
            if (status == INVAR_OK)
                status = q->read(first + i, e->reply ? e->reply : "", e->reply_bytes, q->payload);
            invar_free(e->reply);
        }
    }
    invar_json_text_release(&text);
    return status;
}
