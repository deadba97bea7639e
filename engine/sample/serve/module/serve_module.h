/*
 * serve_module.h - what the engine needs of an HTTP server, as a table that a shared object has.
 *
 * The module invar-serve.so is compiled against libmicrohttpd and knows HTTP alone: connections,
 * headers, bodies within their limits, clients that are slow or gone. What a request means is
 * decided in server.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_MODULE_SERVE_MODULE_H
#define INVAR_ENGINE_SAMPLE_SERVE_MODULE_SERVE_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_SERVE_ABI 5
#define INVAR_SERVE_TABLE invar_serve_v1 /* the symbol of the table */
#define INVAR_SERVE_WHY_SIZE 256

/* One request and its reply. */
typedef struct invar_http_transaction {
    const char *method;        /* borrowed, as all of the request */
    const char *path;          /* without what follows a '?' */
    const char *host;          /* this header, */
    const char *authorization; /* this one, */
    const char *content_type;  /* and this one; NULL: not there */
    uint64_t announced;        /* bytes of the body that a header promises; 0: it does not say */
    const char *body;
    size_t bytes;
    const void *connection; /* for `alive` */

    int status;        /* the reply's, 200 to 599 */
    const char *type;  /* its Content-Type; not copied */
    int retry_after;   /* seconds, as a header; 0: none */
    const char *allow; /* methods that are, as a header; not copied; NULL: none */
    char *reply;       /* its body; NULL: it has a stream */
    size_t reply_bytes;
    void *stream;   /* NULL: it has a body */
    bool keyed;     /* set by `admit`: the request brings the key that the server asks for */
    bool working;   /* private to the handler; false at first */
    int64_t memory; /* bytes reserved for the request; private to the handler; 0 at first */
} invar_http_transaction;

/* Whoever answers. All of it is called by many threads at once, and may take its time. */
typedef struct invar_serve_handler {
    void *payload;
    /*
     * Whether a header Authorization, as the client has sent it, has the key of the server. Clients
     * with the key are served before others, who get half of the connections at most. NULL if the
     * server asks for no key.
     */
    bool (*knows)(void *payload, const char *authorization);
    /* The head of a request is there. False: the reply is, too, and no body is read. */
    bool (*admit)(void *payload, invar_http_transaction *exchange);
    /* The body needs `bytes` of memory in all while its buffer grows. False: the reply is set, and
       the body is dropped. NULL if the body may have any memory. */
    bool (*grow)(void *payload, invar_http_transaction *exchange, size_t bytes);
    /* The whole request is there: sets the reply. */
    void (*answer)(void *payload, invar_http_transaction *exchange);
    /* The reply is sent, or nobody waits for one: frees its body or its stream. */
    void (*release)(void *payload, invar_http_transaction *exchange);
    /* The next bytes of a stream, `most` at most; 0: there are no more; -1: it breaks off. */
    int64_t (*next)(void *payload, void *stream, char *out, size_t most);
} invar_serve_handler;

typedef struct invar_serve_settings {
    const char *host; /* a number: 127.0.0.1, ::1, 0.0.0.0 */
    uint16_t port;    /* 0: any that is free */
    unsigned connections;
    size_t most_body;        /* bytes */
    unsigned client_seconds; /* for a client to send a request, and to take the next of a reply */
    invar_serve_handler handler;
} invar_serve_settings;

typedef struct invar_serve_table {
    uint32_t abi;
    /* NULL, and why, where it does not start. *port_out is the one that it listens at. */
    void *(*start)(const invar_serve_settings *settings, uint16_t *port_out,
                   char why[INVAR_SERVE_WHY_SIZE]);
    /* Accepts no more connections. */
    void (*stop_accepting)(void *server);
    /* Waits for all replies, or breaks them off by their next read. */
    void (*stop)(void *server);
    /* Does somebody still wait for the reply? */
    bool (*alive)(const void *connection);
} invar_serve_table;

#ifdef __cplusplus
}
#endif
#endif
