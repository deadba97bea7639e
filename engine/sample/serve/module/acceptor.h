/*
 * acceptor.h - a listening socket whose connections are passed on once the head of their request
 * has arrived and its framing is unambiguous.
 *
 * A connection that has sent no complete head costs a row of a table, no thread. If the table is
 * full or the process has no more files, the oldest such connection is closed for a new one, so
 * idle connections cannot keep others out. On a server with a key, complete heads without the key
 * are treated like idle connections. Complete requests are passed on in the order in which their
 * connections arrived, those with the key first. The bytes of a head are only peeked at: the HTTP
 * server that takes the socket reads them.
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

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_acceptor invar_acceptor;

typedef union invar_address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
} invar_address;

typedef struct invar_acceptor_options {
    invar_address at;
    unsigned most;     /* connections that wait for their head */
    int64_t client_ms; /* milliseconds that a client has to send its head */
    void *payload;
    /*
     * Whether a header Authorization has the key. NULL if the server asks for no key; then all
     * connections are equal. Called by the acceptor's thread, as all of these.
     */
    bool (*knows)(void *payload, const char *authorization);
    /* Whether a connection can be taken now; `keyed`: its head has the key. */
    bool (*has_room)(void *payload, bool keyed);
    /* Takes the socket, which the callee closes. */
    void (*pass)(void *payload, int fd, const invar_address *from, socklen_t bytes, bool keyed);
    /* Called at least every INVAR_ACCEPTOR_TICK_MS milliseconds. */
    void (*tick)(void *payload);
} invar_acceptor_options;

#define INVAR_ACCEPTOR_TICK_MS 200

/* Listens. Returns NULL, with errno, if it cannot. *port_out is the port that it listens at. */
invar_acceptor *invar_acceptor_open(uint16_t *port_out, const invar_acceptor_options *options);

/* Starts the thread that accepts. Returns 0, or an error number. */
int invar_acceptor_start(invar_acceptor *acceptor);

/* There may be room now. Any thread. */
void invar_acceptor_wake(invar_acceptor *acceptor);

/* Accepts and passes on no more connections; ticks continue. Any thread. */
void invar_acceptor_shut(invar_acceptor *acceptor);

/* Ends the thread. `acceptor` may be NULL. */
void invar_acceptor_close(invar_acceptor *acceptor);

/* Milliseconds of the monotonic clock. */
int64_t invar_acceptor_clock_ms(void);

#ifdef __cplusplus
}
#endif
#endif
