/*
 * serve_module.h - interface of the HTTP module: a table of functions in a shared object.
 *
 * The module invar-serve.so is compiled against libmicrohttpd. It handles HTTP only: connections,
 * headers, body limits, slow and disconnected clients. The meaning of a request is decided in
 * server.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_MODULE_SERVE_MODULE_H
#define INVAR_ENGINE_SAMPLE_SERVE_MODULE_SERVE_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INVAR_SERVE_ABI 5
#define INVAR_SERVE_TABLE invar_serve_v1 /* symbol of the table */
#define INVAR_SERVE_REASON_SIZE 256

/* An HTTP request and the response to it. */
typedef struct invar_http_transaction {
    const char *method;        /* request method; all strings of the request are borrowed */
    const char *path;          /* path without the query, which begins with '?' */
    const char *host;          /* header Host; NULL if absent */
    const char *authorization; /* header Authorization; NULL if absent */
    const char *content_type;  /* header Content-Type; NULL if absent */
    uint64_t content_length;   /* bytes of the body, from the header Content-Length; 0 if absent */
    const char *body;
    size_t bytes;
    const void *connection; /* argument of `alive` */

    int status;        /* HTTP status of the response, 200 to 599 */
    const char *type;  /* header Content-Type of the response; not copied */
    int retry_after;   /* header Retry-After in seconds; 0 for no header */
    const char *allow; /* header Allow; not copied; NULL for no header */
    char *reply;       /* (reply_bytes) body of the response; NULL if it has a stream */
    size_t reply_bytes;
    void *stream;   /* argument of `next`; NULL if the response has a body */
    bool keyed;     /* set by `admit`: the request has the key of the server */
    bool working;   /* private to the handler; initially false */
    int64_t memory; /* bytes reserved for the request; private to the handler; initially 0 */
} invar_http_transaction;

/* Callbacks that answer requests. Called by many threads at once; they may block. */
typedef struct invar_serve_handler {
    void *payload;
    /*
     * Returns whether a header Authorization, as the client has sent it, has the key of the server.
     * Clients with the key are served first; the others get at most half of the connections. NULL
     * if the server has no key.
     */
    bool (*knows)(void *payload, const char *authorization);
    /*
     * Called when the head of a request has arrived, and again, with content_length UINT64_MAX, if
     * the body was longer than max_body_bytes. Returns false after setting a response; the body is
     * then dropped.
     */
    bool (*admit)(void *payload, invar_http_transaction *exchange);
    /*
     * Called before the buffer of the body grows; `bytes` is the size of the old and the new buffer
     * together. Returns false after setting a response; the body is then dropped. NULL if the
     * memory of bodies is not limited.
     */
    bool (*grow)(void *payload, invar_http_transaction *exchange, size_t bytes);
    /* Called when the request is complete. Sets the response. */
    void (*answer)(void *payload, invar_http_transaction *exchange);
    /*
     * Called when the response was sent, or the client has disconnected, possibly before `answer`.
     * Frees the body of the response or the stream, if there is one.
     */
    void (*release)(void *payload, invar_http_transaction *exchange);
    /*
     * Writes up to `most` bytes of a stream to `out` and returns their number; 0 at the end, -1 to
     * break the stream off.
     */
    int64_t (*next)(void *payload, void *stream, char *out, size_t most);
} invar_serve_handler;

typedef struct invar_serve_settings {
    const char *host;          /* numeric address: 127.0.0.1, ::1, 0.0.0.0 */
    uint16_t port;             /* 0 for any free port */
    unsigned connections;      /* largest number of connections at a time; fewer if the process may
                                  not open as many files */
    size_t max_body_bytes;     /* limit of a request body, in bytes */
    unsigned client_timeout_s; /* time limit for a client to send its request and to read the next
                                bytes of a response, in seconds */
    invar_serve_handler handler;
} invar_serve_settings;

typedef struct invar_serve_table {
    uint32_t abi;
    /*
     * Starts a server. *port_out is the port that it listens on. Returns NULL, with the reason in
     * `why`, if it cannot start.
     */
    void *(*start)(const invar_serve_settings *settings, uint16_t *port_out,
                   char why[INVAR_SERVE_REASON_SIZE]);
    /* Stops accepting connections. */
    void (*stop_accepting)(void *server);
    /* Waits until all responses are sent or broken off at their next read, and frees the server. */
    void (*stop)(void *server);
    /* Returns whether the client is still connected. */
    bool (*alive)(const void *connection);
} invar_serve_table;

#endif
