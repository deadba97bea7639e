/*
 * http_module.c - table of functions over the libcurl that this file is compiled with.
 *
 * Only HTTP and HTTPS are allowed, and redirects are not followed: rewards come from the server
 * that the recipe names. A response whose length is unknown is rejected, because it may be
 * truncated.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/http/module/http_module.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/invar_banned.h"

#define PATIENCE_MS 1000 /* limit of one wait for any of the calls */

static CURLcode started = CURLE_FAILED_INIT;

static void init_curl(void)
{
    started = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static size_t pass_data(char *data, size_t size, size_t count, void *payload)
{
    const invar_http_call *call = payload;

    return call->on_data(call->payload, data, size * count) == 0 ? size * count : 0;
}

/* Starts a call; returns false if libcurl is out of memory. */
static bool start_call(CURLM *multi, invar_http_call *call, const invar_http_settings *settings,
                       struct curl_slist *headers)
{
    CURL *easy = curl_easy_init();
    bool good;

    call->code = 0;
    call->status = 0;
    call->why[0] = '\0';
    good = easy && !curl_easy_setopt(easy, CURLOPT_URL, settings->url) &&
           !curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") &&
           !curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) &&
           !curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, settings->timeout_ms) &&
           !curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->bytes) &&
           !curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call->body) &&
           !curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers) &&
           !curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, pass_data) &&
           !curl_easy_setopt(easy, CURLOPT_WRITEDATA, call) &&
           !curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call->why) &&
           !curl_easy_setopt(easy, CURLOPT_PRIVATE, call) && !curl_multi_add_handle(multi, easy);
    if (!good)
        curl_easy_cleanup(easy);
    return good;
}

_Static_assert(INVAR_HTTP_REASON_SIZE >= CURL_ERROR_SIZE, "libcurl writes as much");

/* Returns true if the response says where it ends. HTTP/2 and later frame every response. */
static bool is_delimited(CURL *easy)
{
    static const char chunked[] = "chunked";
    struct curl_header *encoding;
    curl_off_t length = -1;
    size_t bytes;
    long version = 0;

    (void)curl_easy_getinfo(easy, CURLINFO_HTTP_VERSION, &version);
    (void)curl_easy_getinfo(easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    if (version >= CURL_HTTP_VERSION_2_0 || length >= 0)
        return true;
    if (curl_easy_header(easy, "Transfer-Encoding", 0, CURLH_HEADER, -1, &encoding) != CURLHE_OK)
        return false;
    bytes = strlen(encoding->value);
    return bytes >= sizeof chunked - 1 &&
           strcasecmp(encoding->value + bytes - (sizeof chunked - 1), chunked) == 0;
}

/*
 * Rejects a response that ends with its connection, because it may be truncated: "0.12" of "0.125"
 * is a number, too.
 */
static CURLcode check_end(CURL *easy, invar_http_call *call)
{
    if (call->status < 200 || call->status > 299 || is_delimited(easy))
        return CURLE_OK;
    (void)snprintf(call->why, sizeof call->why, "no Content-Length, no chunks: it may be cut");
    return CURLE_PARTIAL_FILE;
}

static void finish_call(CURLM *multi, CURL *easy, CURLcode code)
{
    invar_http_call *call = NULL;

    (void)curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&call);
    (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &call->status);
    code = code ? code : check_end(easy, call);
    call->code = (int)code;
    if (code && !call->why[0])
        (void)snprintf(call->why, sizeof call->why, "%s", curl_easy_strerror(code));
    (void)curl_multi_remove_handle(multi, easy);
    curl_easy_cleanup(easy);
}

/* Finishes the calls that have ended; returns their number. */
static size_t finish_some(CURLM *multi)
{
    size_t count = 0;
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(multi, &left)))
        if (message->msg == CURLMSG_DONE) {
            finish_call(multi, message->easy_handle, message->data.result);
            count++;
        }
    return count;
}

static int drive_calls(CURLM *multi, invar_http_call *calls, size_t count,
                       const invar_http_settings *settings, struct curl_slist *headers)
{
    size_t begun = 0, ended = 0;
    int running = 0, code = 0;

    while (ended < count && !code) {
        while (begun < count && begun - ended < settings->parallel && !code)
            code = start_call(multi, &calls[begun++], settings, headers) ? 0 : CURLM_OUT_OF_MEMORY;
        code = code ? code : (int)curl_multi_perform(multi, &running);
        ended += finish_some(multi);
        if (ended == count || code)
            break;
        code = (int)curl_multi_poll(multi, NULL, 0, PATIENCE_MS, NULL);
        if (settings->waits)
            settings->waits(settings->payload);
    }
    return code;
}

/* Makes the header lines of every call; returns NULL if out of memory. */
static struct curl_slist *make_headers(const char *own)
{
    // no "100 Continue" round trip before the body
    const char *const lines[] = {"Content-Type: application/json", "Expect:", own};
    struct curl_slist *headers = NULL;

    for (size_t i = 0; i < sizeof lines / sizeof *lines && lines[i]; i++) {
        struct curl_slist *longer = curl_slist_append(headers, lines[i]);
        if (!longer) {
            curl_slist_free_all(headers);
            return NULL;
        }
        headers = longer;
    }
    return headers;
}

static int run_calls(invar_http_call *calls, size_t count, const invar_http_settings *settings)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct curl_slist *headers;
    CURLM *multi;
    int code = CURLM_OUT_OF_MEMORY;

    pthread_once(&once, init_curl);
    if (started)
        return (int)started;
    multi = curl_multi_init();
    headers = make_headers(settings->header);
    if (multi && headers)
        code = drive_calls(multi, calls, count, settings, headers);
    curl_slist_free_all(headers);
    (void)curl_multi_cleanup(multi);
    return code;
}

__attribute__((visibility("default"))) extern const invar_http_table INVAR_HTTP_TABLE;
const invar_http_table INVAR_HTTP_TABLE = {INVAR_HTTP_ABI, run_calls};
