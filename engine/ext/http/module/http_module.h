/*
 * http_module.h - what the engine needs of an HTTP client, as a table that a shared object has.
 *
 * The module invar-http.so is compiled against libcurl and has no logic: whether an answer is good,
 * and whether to ask again, is decided in http.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_HTTP_MODULE_HTTP_MODULE_H
#define INVAR_ENGINE_EXT_HTTP_MODULE_HTTP_MODULE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_HTTP_ABI 2
#define INVAR_HTTP_TABLE invar_http_v2 /* the symbol of the table */
#define INVAR_HTTP_WHY_SIZE 256

/* One POST of a JSON text. */
typedef struct invar_http_call {
    const char *body;
    size_t bytes;
    /* Told of the answer's body, piece by piece; anything but 0 ends the call. */
    int (*take)(void *payload, const char *data, size_t bytes);
    void *payload;
    int code;    /* 0, or why there is no answer: one of libcurl's */
    long status; /* of HTTP; 0: there was no answer */
    char why[INVAR_HTTP_WHY_SIZE];
} invar_http_call;

typedef struct invar_http_settings {
    const char *url;
    const char *header; /* one more line of each call, "NAME: VALUE"; NULL: none */
    long timeout_ms;    /* of a call, from its start to its end; 0: no limit */
    size_t parallel;    /* calls at a time, at least 1 */
    /* Called at least every second; may be NULL. */
    void (*waits)(void *payload);
    void *payload;
} invar_http_settings;

typedef struct invar_http_table {
    uint32_t abi;
    /* Makes all calls, whatever becomes of each. 0, or a code: the library itself failed. */
    int (*run)(invar_http_call *calls, size_t count, const invar_http_settings *settings);
} invar_http_table;

#ifdef __cplusplus
}
#endif
#endif
