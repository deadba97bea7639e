/*
 * serve_module.c - the table over the libmicrohttpd that this file is compiled with.
 *
 * Every connection has a thread, so whoever answers may wait. A watchman ends connections that have
 * not brought a whole request in time, however slowly they drip, or not taken the last bytes of a
 * stream. Those that take nothing of a whole reply are ended by the library, whose clock would also
 * run while a stream waits for its next bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/serve/module/serve_module.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define STREAM_BLOCK 16384
#define STACK_BYTES ((size_t)512 << 10)
#define HEAD_BYTES ((size_t)32 << 10)
#define WATCH_MS 200

/* A connection, from its start to its end. */
typedef struct visitor {
    struct visitor *next;
    int fd;
    int64_t due; /* when its request must be there, or bytes be taken; 0: it waits for a reply */
} visitor;

typedef struct server {
    struct MHD_Daemon *daemon;
    invar_serve_handler handler;
    size_t most_body;
    int64_t client_ms;
    pthread_mutex_t lock; /* of the visitors */
    pthread_cond_t wake;
    visitor *visitors;
    bool closing;
    bool watched;
    pthread_t watchman;
    int door; /* the socket of a closed door; -1: it is the library's */
} server;

/* A request on its way. */
typedef struct inquiry {
    server *owner;
    invar_serve_exchange exchange;
    char *body;
    size_t room;
    bool too_long;
} inquiry;

static int64_t clock_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- visitors -------------------------------------------------------------------------------- */

static void enter(server *s, visitor **out, int fd)
{
    visitor *v = NULL;

    *out = NULL;
    if (invar_alloc((void **)&v, 1, sizeof *v, "a connection") != INVAR_OK)
        return; // nobody watches it
    (void)pthread_mutex_lock(&s->lock);
    *v = (visitor){.next = s->visitors, .fd = fd, .due = clock_ms() + s->client_ms};
    s->visitors = v;
    (void)pthread_mutex_unlock(&s->lock);
    *out = v;
}

static void leave(server *s, visitor *v)
{
    (void)pthread_mutex_lock(&s->lock);
    for (visitor **at = &s->visitors; *at; at = &(*at)->next)
        if (*at == v) {
            *at = v->next;
            break;
        }
    (void)pthread_mutex_unlock(&s->lock);
    invar_free(v);
}

static void on_connection(void *payload, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

    if (code == MHD_CONNECTION_NOTIFY_STARTED && info)
        enter(payload, (visitor **)context, info->connect_fd);
    else if (code == MHD_CONNECTION_NOTIFY_CLOSED && *context)
        leave(payload, *context);
}

/* It waits for us; or we for it: for its next request, or until it has taken what is there. */
static void set_due(server *s, struct MHD_Connection *connection, bool waits_for_reply)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    visitor *v = info ? info->socket_context : NULL;

    if (!v)
        return;
    (void)pthread_mutex_lock(&s->lock);
    v->due = waits_for_reply ? 0 : clock_ms() + s->client_ms;
    (void)pthread_mutex_unlock(&s->lock);
}

static void *watch(void *payload)
{
    server *s = payload;
    struct timespec until;

    (void)pthread_mutex_lock(&s->lock);
    while (!s->closing) {
        int64_t now = clock_ms();

        for (const visitor *v = s->visitors; v; v = v->next)
            if (v->due > 0 && v->due < now)
                (void)shutdown(v->fd, SHUT_RDWR);
        now += WATCH_MS;
        until = (struct timespec){(time_t)(now / 1000), (long)(now % 1000) * 1000000};
        (void)pthread_cond_timedwait(&s->wake, &s->lock, &until);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

static bool alive(const void *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        (struct MHD_Connection *)(uintptr_t)connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    char next;
    ssize_t bytes;

    if (!info)
        return false;
    errno = 0;
    bytes = recv(info->connect_fd, &next, 1, MSG_PEEK | MSG_DONTWAIT);
    return bytes > 0 || (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

/* ---- replies --------------------------------------------------------------------------------- */

static ssize_t read_stream(void *payload, uint64_t position, char *out, size_t most)
{
    inquiry *q = payload;
    struct MHD_Connection *connection = (struct MHD_Connection *)(uintptr_t)q->exchange.connection;
    int64_t bytes;

    (void)position;
    set_due(q->owner, connection, true);
    bytes = q->owner->handler.next(q->owner->handler.payload, q->exchange.stream, out, most);
    set_due(q->owner, connection, false);
    if (bytes > 0)
        return (ssize_t)bytes;
    return bytes == 0 ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

static bool add_headers(struct MHD_Response *response, const invar_serve_exchange *e)
{
    char seconds[16];

    (void)snprintf(seconds, sizeof seconds, "%d", e->retry_after);
    return MHD_add_response_header(response, "Content-Type", e->type) == MHD_YES &&
           (!e->stream ||
            MHD_add_response_header(response, "Cache-Control", "no-cache") == MHD_YES) &&
           (!e->allow || MHD_add_response_header(response, "Allow", e->allow) == MHD_YES) &&
           (e->retry_after == 0 ||
            MHD_add_response_header(response, "Retry-After", seconds) == MHD_YES);
}

static enum MHD_Result send_reply(inquiry *q, struct MHD_Connection *connection)
{
    invar_serve_exchange *e = &q->exchange;
    enum MHD_Result result = MHD_NO;
    struct MHD_Response *response;

    response = e->stream ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK,
                                                             read_stream, q, NULL)
                         : MHD_create_response_from_buffer(e->reply_bytes, e->reply,
                                                           MHD_RESPMEM_PERSISTENT);
    (void)MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT,
                                    e->stream ? 0u : (unsigned)(q->owner->client_ms / 1000));
    if (response && add_headers(response, e))
        result = MHD_queue_response(connection, (unsigned)e->status, response);
    if (response)
        MHD_destroy_response(response); // once it is sent
    return result;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The first of the calls for a request: its head is there. */
static inquiry *begin(server *s, struct MHD_Connection *connection, const char *url,
                      const char *method)
{
    const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
    inquiry *q = NULL;

    if (invar_alloc((void **)&q, 1, sizeof *q, "a request") != INVAR_OK)
        return NULL;
    memset(q, 0, sizeof *q);
    q->owner = s;
    q->exchange = (invar_serve_exchange){
        .method = method,
        .path = url,
        .host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host"),
        .authorization = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Authorization"),
        .content_type = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Type"),
        .connection = connection};
    for (; length && *length >= '0' && *length <= '9'; length++)
        q->exchange.announced = q->exchange.announced > UINT64_MAX / 16
                                    ? UINT64_MAX / 16
                                    : 10 * q->exchange.announced + (uint64_t)(*length - '0');
    return q;
}

/* Appends to the body; what is too long is counted and not kept. */
static enum MHD_Result take(inquiry *q, const char *data, size_t bytes)
{
    invar_serve_exchange *e = &q->exchange;
    size_t room = q->room ? q->room : 4096;
    char *larger = NULL;

    q->too_long = q->too_long || bytes > q->owner->most_body - e->bytes;
    if (q->too_long)
        return MHD_YES;
    while (room < e->bytes + bytes + 1)
        room *= 2;
    if (room > q->room) {
        if (invar_alloc((void **)&larger, room, 1, "the body of a request") != INVAR_OK)
            return MHD_NO;
        if (e->bytes > 0)
            memcpy(larger, q->body, e->bytes);
        invar_free(q->body);
        q->body = larger;
        q->room = room;
    }
    memcpy(q->body + e->bytes, data, bytes);
    e->bytes += bytes;
    return MHD_YES;
}

static enum MHD_Result on_request(void *payload, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *bytes, void **context)
{
    server *s = payload;
    inquiry *q = *context;

    (void)version;
    if (!q) {
        q = *context = begin(s, connection, url, method);
        if (!q)
            return MHD_NO;
        if (s->handler.admit(s->handler.payload, &q->exchange))
            return MHD_YES;
        set_due(s, connection, true);
        return send_reply(q, connection);
    }
    if (*bytes > 0) {
        enum MHD_Result result = take(q, data, *bytes);
        *bytes = 0;
        return result;
    }
    set_due(s, connection, true);
    q->exchange.body = q->body ? q->body : "";
    if (q->too_long)
        q->exchange.announced = UINT64_MAX; // who admits refuses it now
    if (!q->too_long || s->handler.admit(s->handler.payload, &q->exchange))
        s->handler.answer(s->handler.payload, &q->exchange);
    return send_reply(q, connection);
}

static void on_completed(void *payload, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode code)
{
    server *s = payload;
    inquiry *q = *context;

    (void)code;
    set_due(s, connection, false);
    if (!q)
        return;
    s->handler.release(s->handler.payload, &q->exchange);
    invar_free(q->body);
    invar_free(q);
    *context = NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

typedef union address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
} address;

/* False: it is no number of an address. */
static bool parse_host(address *out, const char *host, uint16_t port)
{
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, host, &out->four.sin_addr) == 1) {
        out->four.sin_family = AF_INET;
        out->four.sin_port = htons(port);
        return true;
    }
    if (inet_pton(AF_INET6, host, &out->six.sin6_addr) != 1)
        return false;
    out->six.sin6_family = AF_INET6;
    out->six.sin6_port = htons(port);
    return true;
}

static struct MHD_Daemon *open_door(server *s, const invar_serve_settings *settings,
                                    const address *at)
{
    unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_ITC |
                     (at->any.sa_family == AF_INET6 ? MHD_USE_IPv6 : 0);

    return MHD_start_daemon(
        flags, settings->port, NULL, NULL, on_request, s, MHD_OPTION_SOCK_ADDR, &at->any,
        MHD_OPTION_CONNECTION_LIMIT, settings->connections, MHD_OPTION_CONNECTION_TIMEOUT,
        settings->client_seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEAD_BYTES,
        MHD_OPTION_THREAD_STACK_SIZE, STACK_BYTES, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_END);
}

static void make_lock(server *s)
{
    pthread_condattr_t attributes;

    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&s->wake, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

static void stop(void *payload)
{
    server *s = payload;

    if (s->daemon)
        MHD_stop_daemon(s->daemon);
    if (s->door >= 0)
        (void)close(s->door);
    (void)pthread_mutex_lock(&s->lock);
    s->closing = true;
    (void)pthread_cond_broadcast(&s->wake);
    (void)pthread_mutex_unlock(&s->lock);
    if (s->watched)
        (void)pthread_join(s->watchman, NULL);
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_cond_destroy(&s->wake);
    invar_free(s);
}

static void *start(const invar_serve_settings *settings, uint16_t *port_out,
                   char why[INVAR_SERVE_WHY_SIZE])
{
    const union MHD_DaemonInfo *info;
    server *s = NULL;
    address at;

    if (!parse_host(&at, settings->host, settings->port)) {
        (void)snprintf(why, INVAR_SERVE_WHY_SIZE, "it is no number of an address, as 127.0.0.1 is");
        return NULL;
    }
    if (invar_alloc((void **)&s, 1, sizeof *s, "an HTTP server") != INVAR_OK) {
        (void)snprintf(why, INVAR_SERVE_WHY_SIZE, "there is no memory");
        return NULL;
    }
    memset(s, 0, sizeof *s);
    s->door = -1;
    s->handler = settings->handler;
    s->most_body = settings->most_body;
    s->client_ms = (int64_t)settings->client_seconds * 1000;
    make_lock(s);
    errno = 0;
    s->daemon = open_door(s, settings, &at);
    info = s->daemon ? MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT) : NULL;
    if (!info || pthread_create(&s->watchman, NULL, watch, s) != 0) {
        (void)snprintf(why, INVAR_SERVE_WHY_SIZE, "%s",
                       errno ? strerror(errno) : "libmicrohttpd does not say why");
        stop(s);
        return NULL;
    }
    s->watched = true;
    *port_out = info->port;
    return s;
}

static void close_door(void *payload)
{
    server *s = payload;

    s->door = MHD_quiesce_daemon(s->daemon);
    if (s->door >= 0)
        (void)shutdown(s->door, SHUT_RDWR);
}

__attribute__((visibility("default"))) extern const invar_serve_table INVAR_SERVE_TABLE;
const invar_serve_table INVAR_SERVE_TABLE = {INVAR_SERVE_ABI, start, close_door, stop, alive};
