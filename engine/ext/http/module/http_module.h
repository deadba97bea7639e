/*
 * http_module.h - table of the HTTP functions that the engine needs, exported by a shared object.
 *
 * The module invar-http.so is compiled against libcurl and has no logic: http.c decides whether a
 * response is good and whether to retry.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_HTTP_MODULE_HTTP_MODULE_H
#define INVAR_ENGINE_EXT_HTTP_MODULE_HTTP_MODULE_H

#include <stddef.h>
#include <stdint.h>

#define INVAR_HTTP_ABI 2
#define INVAR_HTTP_TABLE invar_http_v2 /* symbol of the table */
#define INVAR_HTTP_REASON_SIZE 256

/* One POST of a JSON text. */
typedef struct invar_http_call {
    const char *body;
    size_t bytes;
    /* Receives the body of the response in pieces; a result other than 0 ends the call. */
    int (*on_data)(void *payload, const char *data, size_t bytes);
    void *payload;
    int code;                         /* 0, or the libcurl code of a failure */
    long status;                      /* HTTP status; 0 without a response */
    char why[INVAR_HTTP_REASON_SIZE]; /* message for `code`; empty after a success */
} invar_http_call;

typedef struct invar_http_settings {
    const char *url;
    const char *header; /* additional header line, "NAME: VALUE"; NULL if absent */
    long timeout_ms;    /* time limit of a call from start to end; 0 for no limit */
    size_t parallel;    /* concurrent calls, at least 1 */
    /* Called at least every second; may be NULL. */
    void (*waits)(void *payload);
    void *payload;
} invar_http_settings;

typedef struct invar_http_table {
    uint32_t abi;
    /*
     * Makes all calls, whatever the result of each. Returns 0, or a code if the library itself
     * failed.
     */
    int (*run)(invar_http_call *calls, size_t count, const invar_http_settings *settings);
} invar_http_table;

#endif
