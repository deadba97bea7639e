/*
 * acceptor.c - one thread that polls the listening socket and the connections without a head.
 *
 * The table belongs to the thread. The lock guards `shut`: no connection is passed on after
 * invar_acceptor_shut has returned.
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
#define DRAIN_BYTES ((size_t)1 << 20) // at most, of a request that is refused
#define ACCEPTS 64                    // in one round
#define BACKLOG 511
#define NO_ROOM "all connections are in use, try again later"

/* A connection whose head is not complete, or that waits for room. */
typedef struct pending {
    int fd;
    invar_address from;
    socklen_t from_bytes;
    int64_t number; /* of the connection, in the order of arrival */
    int64_t due;
    int64_t again; /* when its bytes are looked at again; 0: as soon as there are any */
    int64_t pause; /* milliseconds between two looks at a head that arrives in pieces */
    bool ready;    /* the head is complete */
    bool keyed;    /* the head has the key of the server */
} pending;

struct invar_acceptor {
    invar_acceptor_options options;
    int listener, event;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    bool shut, closing; /* under the lock */
    bool full;          /* no table or file for another connection: not before the next round */
    pending *table;     /* (options.most) the first `count` are used */
    size_t count;
    int64_t arrivals;
    struct pollfd *polls; /* (options.most + 2) */
    char head[HEAD_BYTES + 1];
};

int64_t invar_acceptor_clock_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- connections that end here --------------------------------------------------------------- */

static void drop(invar_acceptor *a, pending *p)
{
    (void)close(p->fd);
    *p = a->table[--a->count];
}

/*
 * Answers with an error and closes. What has arrived is read first: a socket that is closed with
 * bytes unread resets the connection, and the client loses the answer.
 */
static void refuse(invar_acceptor *a, pending *p, const char *status, const char *why)
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
    } while (bytes > 0 && drained < DRAIN_BYTES);
    (void)send(p->fd, reply, strlen(reply), MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(p->fd, SHUT_WR);
    drop(a, p);
}

/* ---- heads ----------------------------------------------------------------------------------- */

/* Whether bytes have arrived that belong to no request. */
static bool has_more(const pending *p, const invar_framing *f)
{
    int arrived = 0;

    return !f->chunked && ioctl(p->fd, FIONREAD, &arrived) == 0 &&
           (uint64_t)arrived > f->head + f->body;
}

/* The value is inside of a->head; the byte behind it belongs to the end of its line. */
static bool has_key(invar_acceptor *a, const invar_framing *f)
{
    if (!a->options.knows || !f->authorization)
        return false;
    a->head[(size_t)(f->authorization - a->head) + f->authorization_bytes] = '\0';
    return a->options.knows(a->options.payload, f->authorization);
}

/* Looks at the bytes of a connection, which may end the connection. */
static void look(invar_acceptor *a, pending *p, int64_t now)
{
    ssize_t bytes = recv(p->fd, a->head, sizeof a->head, MSG_PEEK | MSG_DONTWAIT);
    invar_framing f;

    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (bytes <= 0) {
        drop(a, p);
        return;
    }
    invar_framing_read(&f, a->head, (size_t)bytes);
    if (!f.wrong && f.head > 0 && has_more(p, &f))
        f.wrong = "there are bytes behind it";
    if (f.wrong || (f.head == 0 && (size_t)bytes > HEAD_BYTES)) {
        refuse(a, p, f.wrong ? "400 Bad Request" : "431 Request Header Fields Too Large",
               f.wrong ? f.wrong : "its head is too long");
        return;
    }
    p->ready = f.head > 0;
    p->keyed = p->ready && has_key(a, &f);
    p->pause = p->pause * 2 < INVAR_ACCEPTOR_TICK_MS ? p->pause * 2 : INVAR_ACCEPTOR_TICK_MS;
    p->again = now + p->pause;
}

/* ---- the oldest first ------------------------------------------------------------------------ */

typedef bool (*chooser)(const invar_acceptor *a, const pending *p);

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

/* Whether the connection may be dropped for another one. */
static bool is_idle(const invar_acceptor *a, const pending *p)
{
    return !p->ready || (a->options.knows && !p->keyed);
}

/* The oldest connection that is chosen, or NULL. *count_out, if it is not NULL, is their number. */
static pending *oldest(invar_acceptor *a, chooser chosen, size_t *count_out)
{
    pending *found = NULL;
    size_t count = 0;

    for (size_t i = 0; i < a->count; i++) {
        pending *p = &a->table[i];

        if (!chosen(a, p))
            continue;
        count++;
        if (!found || p->number < found->number)
            found = p;
    }
    if (count_out)
        *count_out = count;
    return found;
}

/* Passes the connection on if there is room. True: the connection has left the table. */
static bool pass(invar_acceptor *a, pending *p)
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

static void pass_ready(invar_acceptor *a)
{
    static const chooser order[] = {is_keyed, is_keyless};

    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        pending *p = oldest(a, order[i], NULL);

        while (p && pass(a, p))
            p = oldest(a, order[i], NULL);
    }
}

/* Looks at the bytes that have arrived. A row that leaves is replaced by the last row. */
static void look_at_all(invar_acceptor *a, int64_t now)
{
    for (size_t i = a->count; i > 0; i--) {
        pending *p = &a->table[i - 1];

        if (!p->ready && (p->again ? p->again <= now : a->polls[i + 1].revents != 0))
            look(a, p, now);
    }
}

static void end_overdue(invar_acceptor *a, int64_t now)
{
    for (size_t i = a->count; i > 0; i--) {
        pending *p = &a->table[i - 1];

        if (p->due <= now && p->ready)
            refuse(a, p, "503 Service Unavailable", NO_ROOM);
        else if (p->due <= now)
            drop(a, p);
    }
}

/* ---- new connections ------------------------------------------------------------------------- */

/*
 * Drops the oldest idle connection. If half of the table waits for room, no connection is dropped:
 * a client that has just connected would be the only one without a head, and lose its place at
 * once. A complete head without the key gets an answer.
 */
static bool drop_oldest(invar_acceptor *a)
{
    size_t idle;
    pending *p = oldest(a, is_idle, &idle);

    if (idle <= a->count / 2)
        return false;
    if (p->ready)
        refuse(a, p, "503 Service Unavailable", NO_ROOM);
    else
        drop(a, p);
    return true;
}

/* accept4 reports a lack of files even if no client waits, so the queue is asked first. */
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
    for (int i = 0; i < ACCEPTS && !a->full && client_waits(a); i++) {
        pending *p;

        a->full = a->count == a->options.most && !drop_oldest(a);
        if (a->full)
            return;
        p = &a->table[a->count];
        *p = (pending){.number = a->arrivals,
                       .due = now + a->options.client_ms,
                       .pause = 1,
                       .from_bytes = sizeof p->from};
        p->fd = accept4(a->listener, &p->from.any, &p->from_bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (p->fd >= 0) {
            a->count++;
            a->arrivals++;
        } else if (!lacks_resources(errno)) {
            return;
        } else {
            a->full = !drop_oldest(a); // the next round of this loop tries again
        }
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void shut_table(invar_acceptor *a)
{
    while (a->count > 0)
        drop(a, &a->table[0]);
    if (a->listener >= 0)
        (void)close(a->listener);
    a->listener = -1;
}

/* Waits for something to do. The polls of the table begin at index 2. */
static void wait_for_news(invar_acceptor *a)
{
    int64_t now = invar_acceptor_clock_ms(), timeout = INVAR_ACCEPTOR_TICK_MS;
    uint64_t unused;

    a->polls[0] = (struct pollfd){.fd = a->event, .events = POLLIN};
    a->polls[1] = (struct pollfd){.fd = a->full ? -1 : a->listener, .events = POLLIN};
    a->full = false;
    for (size_t i = 0; i < a->count; i++) {
        const pending *p = &a->table[i];
        bool waits = p->ready || p->again;

        a->polls[i + 2] = (struct pollfd){.fd = waits ? -1 : p->fd, .events = POLLIN};
        if (waits && !p->ready && p->again - now < timeout)
            timeout = p->again > now ? p->again - now : 0;
    }
    (void)poll(a->polls, (nfds_t)(a->count + 2), (int)timeout);
    if (a->polls[0].revents)
        (void)!read(a->event, &unused, sizeof unused);
}

static void *run(void *payload)
{
    invar_acceptor *a = payload;
    bool shut = false, closing = false;

    while (!closing) {
        int64_t now;

        wait_for_news(a);
        now = invar_acceptor_clock_ms();
        look_at_all(a, now);
        pass_ready(a);
        end_overdue(a, now);
        if (a->polls[1].revents && !shut)
            accept_some(a, now);
        a->options.tick(a->options.payload);
        (void)pthread_mutex_lock(&a->lock);
        shut = a->shut;
        closing = a->closing;
        (void)pthread_mutex_unlock(&a->lock);
        if (shut)
            shut_table(a);
    }
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool listen_at(invar_acceptor *a, uint16_t *port_out)
{
    invar_address at = a->options.at;
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

static void release(invar_acceptor *a)
{
    int error = errno;

    shut_table(a);
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
    if (invar_alloc((void **)&a, 1, sizeof *a, "an acceptor") != INVAR_OK)
        return NULL;
    memset(a, 0, sizeof *a);
    a->options = *options;
    a->listener = a->event = -1;
    (void)pthread_mutex_init(&a->lock, NULL);
    if (invar_alloc((void **)&a->table, options->most, sizeof *a->table, "connections") !=
            INVAR_OK ||
        invar_alloc((void **)&a->polls, (size_t)options->most + 2, sizeof *a->polls,
                    "connections") != INVAR_OK ||
        !listen_at(a, port_out) || (a->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        release(a);
        return NULL;
    }
    return a;
}

int invar_acceptor_start(invar_acceptor *a)
{
    int error = pthread_create(&a->thread, NULL, run, a);

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
        (void)shutdown(a->listener, SHUT_RDWR); // connections are refused from now on
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
    release(a);
}
