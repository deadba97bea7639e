/*
 * fake_http.c - an HTTP client module without a network: the body of a call selects the response.
 *
 *     ok        "1.5"                          slow      "1.5", byte by byte, with waits
 *     later N   503 for the first N calls      dead      no response
 *     teapot    418 and a text                 long      2 MiB without an end
 *     none      200 without a body             broken    the client itself fails
 *     header    the header of the settings     count     "1.5", and resets the number of calls
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/ext/http/module/http_module.h"

static int calls_made;

static int send_response(invar_http_call *call, long status, const char *text)
{
    call->status = status;
    return call->on_data(call->payload, text, strlen(text));
}

static int send_long_response(invar_http_call *call)
{
    char block[4096];
    int stopped = 0;

    memset(block, 'x', sizeof block);
    for (int i = 0; i < 512 && !stopped; i++)
        stopped = call->on_data(call->payload, block, sizeof block);
    return stopped;
}

static int respond(invar_http_call *call, const invar_http_settings *settings)
{
    calls_made++;
    call->code = 0;
    call->status = 200;
    if (strncmp(call->body, "later ", 6) == 0)
        return calls_made <= atoi(call->body + 6) ? send_response(call, 503, "busy")
                                                  : send_response(call, 200, "2");
    if (strcmp(call->body, "teapot") == 0)
        return send_response(call, 418, "no tea\x1b\n");
    if (strcmp(call->body, "long") == 0)
        return send_long_response(call);
    if (strcmp(call->body, "none") == 0)
        return 0;
    if (strcmp(call->body, "header") == 0)
        return send_response(call, 200, settings->header ? settings->header : "");
    if (strcmp(call->body, "slow") == 0 && settings->waits)
        settings->waits(settings->payload);
    for (const char *c = "1.5"; *c; c++)
        if (call->on_data(call->payload, c, 1))
            return 1;
    return 0;
}

static int run_calls(invar_http_call *calls, size_t count, const invar_http_settings *settings)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(calls[i].body, "broken") == 0)
            return 5;
        if (strcmp(calls[i].body, "count") == 0)
            calls_made = 0;
        if (respond(&calls[i], settings))
            calls[i].code = 23; // CURLE_WRITE_ERROR
        if (strcmp(calls[i].body, "dead") == 0) {
            calls[i].code = 7;
            calls[i].status = 0;
            (void)snprintf(calls[i].why, sizeof calls[i].why, "nobody listens");
        }
    }
    return 0;
}

extern const invar_http_table INVAR_HTTP_TABLE;
__attribute__((visibility("default")))
const invar_http_table INVAR_HTTP_TABLE = {INVAR_HTTP_ABI, run_calls};
