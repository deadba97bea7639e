/*
 * acceptor.c - one thread that polls the listening socket and the connections without a complete
 * head.
 *
 * The table belongs to the thread. `lock` guards `shut` and `closing`, and is held while a
 * connection is passed on, so no connection is passed on after invar_acceptor_shut has returned.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // accept4

#include "engine/sample/serve/module/acceptor.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/sample/serve/module/framing.h"

#include "base/invar_banned.h"

#define HEAD_BYTES ((size_t)16 << 10)
// bytes that are read at most from a request that is rejected
#define MAX_DRAIN_BYTES ((size_t)1 << 20)
#define ACCEPTS_PER_ROUND 64 // connections that are accepted in one round
#define BACKLOG 511
#define NO_ROOM "all connections are in use, try again later"

/* A connection whose head is not complete, or that waits for room. */
typedef struct pending {
    int fd;
    invar_address from;
    socklen_t from_bytes;
    int64_t arrival_number; /* sequence number of the connection, in order of arrival */
    int64_t deadline_ms;
    int64_t next_read_ms;  /* time of the next read of an incomplete head; 0 to read as soon as
                              bytes arrive */
    int64_t read_delay_ms; /* milliseconds between two reads of a head that arrives in fragments;
                              doubles with each read */
    bool ready;            /* the head is complete */
    bool keyed;            /* the head has the key of the server */
} pending;

struct invar_acceptor {
    invar_acceptor_options options;
    int listener, event;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    bool shut, closing; /* guarded by `lock` */
    bool full;          /* there is no row or no file for another connection; try again in the next
                           round */
    pending *table;     /* (options.max_connections) the first `count` rows are in use */
    size_t count;
    int64_t arrivals;
    struct pollfd *polls; /* (options.max_connections + 2) wake-up, listener, then the table */
    char head[HEAD_BYTES + 1];
};

int64_t invar_acceptor_clock_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- connections that end here --------------------------------------------------------------- */

static void drop_connection(invar_acceptor *a, pending *p)
{
    (void)close(p->fd);
    *p = a->table[--a->count];
}

/*
 * Answers with an error and closes the connection. The bytes that have arrived are read first:
 * closing a socket with unread bytes resets the connection, and the client loses the answer.
 */
static void reject_connection(invar_acceptor *a, pending *p, const char *status, const char *why)
{
    char body[320], reply[640];
    size_t drained = 0;
    ssize_t bytes;

    (void)snprintf(body, sizeof body,
                   "{\"error\":{\"message\":\"the request is refused: %s\",\"type\":"
                   "\"invalid_request_error\",\"param\":null,\"code\":\"bad_request\"}}",
                   why);
    (void)snprintf(reply, sizeof reply,
                   "HTTP/1.1 %s\r\nConnection: close\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n\r\n%s",
                   status, strlen(body), body);
    do {
        bytes = recv(p->fd, a->head, sizeof a->head, MSG_DONTWAIT);
        drained += bytes > 0 ? (size_t)bytes : 0;
    } while (bytes > 0 && drained < MAX_DRAIN_BYTES);
    (void)send(p->fd, reply, strlen(reply), MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(p->fd, SHUT_WR);
    drop_connection(a, p);
}

/* ---- heads ----------------------------------------------------------------------------------- */

/* Returns whether bytes have arrived after the end of the request. */
static bool has_more(const pending *p, const invar_framing *f)
{
    int arrived = 0;

    return !f->chunked && ioctl(p->fd, FIONREAD, &arrived) == 0 &&
           (uint64_t)arrived > f->head_bytes + f->body_bytes;
}

/* Terminates the value inside of a->head; the byte after it belongs to the end of its line. */
static bool has_key(invar_acceptor *a, const invar_framing *f)
{
    if (!a->options.knows || !f->authorization)
        return false;
    a->head[(size_t)(f->authorization - a->head) + f->authorization_bytes] = '\0';
    return a->options.knows(a->options.payload, f->authorization);
}

/* Reads the head of a connection as far as it has arrived. May end the connection. */
static void read_head(invar_acceptor *a, pending *p, int64_t now)
{
    ssize_t bytes = recv(p->fd, a->head, sizeof a->head, MSG_PEEK | MSG_DONTWAIT);
    invar_framing f;

    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (bytes <= 0) {
        drop_connection(a, p);
        return;
    }
    invar_framing_read(&f, a->head, (size_t)bytes);
    if (!f.error && f.head_bytes > 0 && has_more(p, &f))
        f.error = "there are bytes behind it";
    if (f.error || (f.head_bytes == 0 && (size_t)bytes > HEAD_BYTES)) {
        reject_connection(a, p, f.error ? "400 Bad Request" : "431 Request Header Fields Too Large",
                          f.error ? f.error : "its head is too long");
        return;
    }
    p->ready = f.head_bytes > 0;
    p->keyed = p->ready && has_key(a, &f);
    p->read_delay_ms = p->read_delay_ms * 2 < INVAR_ACCEPTOR_TICK_MS ? p->read_delay_ms * 2
                                                                     : INVAR_ACCEPTOR_TICK_MS;
    p->next_read_ms = now + p->read_delay_ms;
}

/* ---- selection by age ------------------------------------------------------------------------ */

typedef bool (*connection_filter)(const invar_acceptor *a, const pending *p);

static bool is_keyed(const invar_acceptor *a, const pending *p)
{
    (void)a;
    return p->ready && p->keyed;
}

static bool is_keyless(const invar_acceptor *a, const pending *p)
{
    (void)a;
    return p->ready && !p->keyed;
}

/* Returns whether the connection may be dropped for another one. */
static bool is_idle(const invar_acceptor *a, const pending *p)
{
    return !p->ready || (a->options.knows && !p->keyed);
}

/*
 * Returns the oldest connection that `chosen` accepts, or NULL. *count_out, if count_out is not
 * NULL, is the number of these connections.
 */
static pending *find_oldest(invar_acceptor *a, connection_filter chosen, size_t *count_out)
{
    pending *found = NULL;
    size_t count = 0;

    for (size_t i = 0; i < a->count; i++) {
        pending *p = &a->table[i];

        if (!chosen(a, p))
            continue;
        count++;
        if (!found || p->arrival_number < found->arrival_number)
            found = p;
    }
    if (count_out)
        *count_out = count;
    return found;
}

/* Passes the connection on if there is room. Returns true if it has left the table. */
static bool pass_connection(invar_acceptor *a, pending *p)
{
    const invar_acceptor_options *o = &a->options;
    bool passed;

    (void)pthread_mutex_lock(&a->lock);
    passed = !a->shut && o->has_room(o->payload, p->keyed);
    if (passed)
        o->pass(o->payload, p->fd, &p->from, p->from_bytes, p->keyed);
    (void)pthread_mutex_unlock(&a->lock);
    if (passed)
        *p = a->table[--a->count];
    return passed;
}

static void pass_ready_connections(invar_acceptor *a)
{
    static const connection_filter order[] = {is_keyed, is_keyless};

    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        pending *p = find_oldest(a, order[i], NULL);

        while (p && pass_connection(a, p))
            p = find_oldest(a, order[i], NULL);
    }
}

/*
 * Reads the heads of connections with new bytes. Backwards, because a row that leaves is replaced
 * by the last row.
 */
static void read_heads(invar_acceptor *a, int64_t now)
{
    for (size_t i = a->count; i > 0; i--) {
        pending *p = &a->table[i - 1];

        if (!p->ready && (p->next_read_ms ? p->next_read_ms <= now : a->polls[i + 1].revents != 0))
            read_head(a, p, now);
    }
}

static void end_overdue_connections(invar_acceptor *a, int64_t now)
{
    for (size_t i = a->count; i > 0; i--) {
        pending *p = &a->table[i - 1];

        if (p->deadline_ms <= now && p->ready)
            reject_connection(a, p, "503 Service Unavailable", NO_ROOM);
        else if (p->deadline_ms <= now)
            drop_connection(a, p);
    }
}

/* ---- new connections ------------------------------------------------------------------------- */

/*
 * Drops the oldest idle connection. Returns false and drops none if at least half of the table
 * waits for room: a client that has just connected would be the only one without a head, and be
 * dropped at once. A connection with a complete head without the key gets an answer.
 */
static bool drop_oldest(invar_acceptor *a)
{
    size_t idle;
    pending *p = find_oldest(a, is_idle, &idle);

    if (idle <= a->count / 2)
        return false;
    if (p->ready)
        reject_connection(a, p, "503 Service Unavailable", NO_ROOM);
    else
        drop_connection(a, p);
    return true;
}

/*
 * Returns whether a client waits to be accepted. accept4 reports a lack of files even if no client
 * waits.
 */
static bool client_waits(const invar_acceptor *a)
{
    struct pollfd queue = {.fd = a->listener, .events = POLLIN};

    return poll(&queue, 1, 0) > 0;
}

static bool lacks_resources(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

static void accept_some(invar_acceptor *a, int64_t now)
{
    for (int i = 0; i < ACCEPTS_PER_ROUND && !a->full && client_waits(a); i++) {
        pending *p;

        a->full = a->count == a->options.max_connections && !drop_oldest(a);
        if (a->full)
            return;
        p = &a->table[a->count];
        *p = (pending){.arrival_number = a->arrivals,
                       .deadline_ms = now + a->options.client_ms,
                       .read_delay_ms = 1,
                       .from_bytes = sizeof p->from};
        p->fd = accept4(a->listener, &p->from.any, &p->from_bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (p->fd >= 0) {
            a->count++;
            a->arrivals++;
        } else if (!lacks_resources(errno)) {
            return;
        } else {
            a->full = !drop_oldest(a); // the next iteration tries again
        }
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void close_sockets(invar_acceptor *a)
{
    while (a->count > 0)
        drop_connection(a, &a->table[0]);
    if (a->listener >= 0)
        (void)close(a->listener);
    a->listener = -1;
}

/* Waits for an event. The connections of the table begin at index 2 of the polls. */
static void wait_for_events(invar_acceptor *a)
{
    int64_t now = invar_acceptor_clock_ms(), timeout = INVAR_ACCEPTOR_TICK_MS;
    uint64_t unused;

    a->polls[0] = (struct pollfd){.fd = a->event, .events = POLLIN};
    a->polls[1] = (struct pollfd){.fd = a->full ? -1 : a->listener, .events = POLLIN};
    a->full = false;
    for (size_t i = 0; i < a->count; i++) {
        const pending *p = &a->table[i];
        bool waits = p->ready || p->next_read_ms;

        a->polls[i + 2] = (struct pollfd){.fd = waits ? -1 : p->fd, .events = POLLIN};
        if (waits && !p->ready && p->next_read_ms - now < timeout)
            timeout = p->next_read_ms > now ? p->next_read_ms - now : 0;
    }
    (void)poll(a->polls, (nfds_t)(a->count + 2), (int)timeout);
    if (a->polls[0].revents)
        (void)!read(a->event, &unused, sizeof unused);
}

static void *acceptor_thread(void *payload)
{
    invar_acceptor *a = payload;
    bool shut = false, closing = false;

    while (!closing) {
        int64_t now;

        wait_for_events(a);
        now = invar_acceptor_clock_ms();
        read_heads(a, now);
        pass_ready_connections(a);
        end_overdue_connections(a, now);
        if (a->polls[1].revents && !shut)
            accept_some(a, now);
        a->options.tick(a->options.payload);
        (void)pthread_mutex_lock(&a->lock);
        shut = a->shut;
        closing = a->closing;
        (void)pthread_mutex_unlock(&a->lock);
        if (shut)
            close_sockets(a);
    }
    return NULL;
}

/* ---- creation -------------------------------------------------------------------------------- */

static bool open_listener(invar_acceptor *a, uint16_t *port_out)
{
    invar_address at = a->options.address;
    bool six = at.any.sa_family == AF_INET6;
    socklen_t bytes = six ? sizeof at.six : sizeof at.four;
    const int one = 1;

    a->listener = socket(at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (a->listener < 0 ||
        setsockopt(a->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        (six && setsockopt(a->listener, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) != 0) ||
        bind(a->listener, &at.any, bytes) != 0 || listen(a->listener, BACKLOG) != 0 ||
        getsockname(a->listener, &at.any, &bytes) != 0)
        return false;
    *port_out = ntohs(six ? at.six.sin6_port : at.four.sin_port);
    return true;
}

static void free_acceptor(invar_acceptor *a)
{
    int error = errno;

    close_sockets(a);
    if (a->event >= 0)
        (void)close(a->event);
    (void)pthread_mutex_destroy(&a->lock);
    invar_free(a->table);
    invar_free(a->polls);
    invar_free(a);
    errno = error;
}

invar_acceptor *invar_acceptor_open(uint16_t *port_out, const invar_acceptor_options *options)
{
    invar_acceptor *a = NULL;

    errno = ENOMEM;
    if (INVAR_ALLOC(a, 1, "an acceptor") != INVAR_OK)
        return NULL;
    memset(a, 0, sizeof *a);
    a->options = *options;
    a->listener = a->event = -1;
    (void)pthread_mutex_init(&a->lock, NULL);
    if (INVAR_ALLOC(a->table, options->max_connections, "connections") != INVAR_OK ||
        INVAR_ALLOC(a->polls, (size_t)options->max_connections + 2, "connections") != INVAR_OK ||
        !open_listener(a, port_out) || (a->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        free_acceptor(a);
        return NULL;
    }
    return a;
}

int invar_acceptor_start(invar_acceptor *a)
{
    int error = pthread_create(&a->thread, NULL, acceptor_thread, a);

    a->started = error == 0;
    return error;
}

void invar_acceptor_wake(invar_acceptor *a)
{
    const uint64_t one = 1;

    (void)!write(a->event, &one, sizeof one);
}

void invar_acceptor_shut(invar_acceptor *a)
{
    (void)pthread_mutex_lock(&a->lock);
    if (!a->shut)
        (void)shutdown(a->listener, SHUT_RDWR); // clients are rejected from now on
    a->shut = true;
    (void)pthread_mutex_unlock(&a->lock);
    invar_acceptor_wake(a);
}

void invar_acceptor_close(invar_acceptor *a)
{
    if (!a)
        return;
    invar_acceptor_shut(a);
    (void)pthread_mutex_lock(&a->lock);
    a->closing = true;
    (void)pthread_mutex_unlock(&a->lock);
    invar_acceptor_wake(a);
    if (a->started)
        (void)pthread_join(a->thread, NULL);
    free_acceptor(a);
}
