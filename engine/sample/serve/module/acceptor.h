/*
 * acceptor.h - accepts connections and passes them on when the head of their request is complete.
 *
 * A connection without a complete head costs a row of a table, not a thread. If the table is full
 * or the process has no more files, the oldest such connection is closed for a new one, so idle
 * connections cannot lock out others; if at least half of the table waits for room, new connections
 * wait instead. On a server with a key, connections whose complete head lacks the key are treated
 * like idle ones. Complete requests are passed on in the order in which their connections arrived,
 * those with the key first.
 *
 * The bytes of a head are only peeked at (MSG_PEEK): the HTTP server that takes the socket reads
 * them. A head whose framing is ambiguous (framing.h) is rejected here.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_MODULE_ACCEPTOR_H
#define INVAR_ENGINE_SAMPLE_SERVE_MODULE_ACCEPTOR_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

typedef struct invar_acceptor invar_acceptor;

typedef union invar_address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
} invar_address;

typedef struct invar_acceptor_options {
    invar_address address;
    unsigned max_connections; /* capacity of the table: connections that wait for their head or for
                            room */
    int64_t client_ms;        /* time that a client has to send its head and to be passed on, in
                          milliseconds */
    void *payload;
    /*
     * Returns whether a header Authorization has the key. NULL if the server has no key; then all
     * connections are equal. All callbacks are called by the acceptor's thread.
     */
    bool (*knows)(void *payload, const char *authorization);
    /* Returns whether a connection can be passed on now. `keyed` is set if its head has the key. */
    bool (*has_room)(void *payload, bool keyed);
    /* Takes the socket. The callee closes it. */
    void (*pass)(void *payload, int fd, const invar_address *from, socklen_t bytes, bool keyed);
    /* Called at least every INVAR_ACCEPTOR_TICK_MS milliseconds. */
    void (*tick)(void *payload);
} invar_acceptor_options;

#define INVAR_ACCEPTOR_TICK_MS 200

/* Listens. *port_out is the port. Returns NULL and sets errno if it cannot listen. */
invar_acceptor *invar_acceptor_open(uint16_t *port_out, const invar_acceptor_options *options);

/* Starts the thread that accepts connections. Returns 0 or an error number. */
int invar_acceptor_start(invar_acceptor *acceptor);

/* Makes the thread try again to pass connections on. Call when there may be room. Thread-safe. */
void invar_acceptor_wake(invar_acceptor *acceptor);

/* Stops accepting and passing on connections; `tick` is still called. Thread-safe. */
void invar_acceptor_shut(invar_acceptor *acceptor);

/* Ends the thread and frees the acceptor. `acceptor` may be NULL. */
void invar_acceptor_close(invar_acceptor *acceptor);

/* Returns the time of the monotonic clock in milliseconds. */
int64_t invar_acceptor_clock_ms(void);

#endif
