/*
 * serve_module.c - the table over the libmicrohttpd that this file is compiled with.
 *
 * The acceptor (acceptor.h) passes a connection to the library once the head of its request has
 * arrived. From then on the connection has a thread, so a handler may wait, and it is closed after
 * one reply: bytes behind a request are never read as another request.
 *
 * The acceptor's thread also ends connections that have not brought a complete request in time,
 * however slowly they drip, or not taken the last bytes of a stream. Connections that take nothing
 * of a complete reply are ended by the library, whose clock would also run while a stream waits for
 * its next bytes. If all connections are in use, a connection whose body is incomplete and that has
 * not shown the key of the server is ended for a new one, first a connection whose request is
 * refused already. Clients with the key keep their connections.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/module/serve_module.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/sample/serve/module/acceptor.h"

#include "base/invar_banned.h"

#define STREAM_BLOCK 16384
#define STACK_BYTES ((size_t)512 << 10)
#define HEAD_BYTES ((size_t)32 << 10)
#define FIRST_BYTES ((size_t)4096) // of the buffer of a body
#define SPARE_CONNECTIONS 64       // of the library, and for heads: connections are counted here
#define OWN_FILES 64               // that the process keeps open beside its connections

/* A connection, from its start to its end. */
typedef struct visitor {
    struct visitor *next;
    int fd;
    ino_t inode;  /* of the socket, which tells whether `fd` is still this one */
    bool keyed;   /* the acceptor has seen the key of the server in the head */
    bool started; /* the library has taken the connection, and will tell its end */
    int64_t since;
    int64_t due;  /* when its request must be there, or bytes be taken; 0: it waits for a reply */
    bool refused; /* the request brings no key, or is refused for another reason */
    bool asked;   /* the request is complete */
    bool keyless; /* the head has been read, and does not bring the key of the server */
    bool ended;   /* the connection was shut down and is about to leave */
} visitor;

typedef struct server {
    struct MHD_Daemon *daemon;
    invar_serve_handler handler;
    size_t most_body;
    int64_t client_ms;
    unsigned connections;
    invar_acceptor *acceptor;
    pthread_mutex_t lock; /* of the visitors */
    visitor *visitors;
    unsigned open;    /* connections that were passed to the library */
    unsigned keyless; /* of them, those without the key, on a server that asks for one */
} server;

/* A request on its way. */
typedef struct inquiry {
    server *owner;
    invar_http_transaction exchange;
    char *body;
    size_t room;
    bool too_long;
    bool refused; /* the reply is there; the body is read and dropped, so that the client gets it */
} inquiry;

/* ---- visitors -------------------------------------------------------------------------------- */

/* False if the file descriptor is closed. */
static bool find_inode(ino_t *out, int fd)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return false;
    *out = info.st_ino;
    return true;
}

/* Counts a connection, before the library has it. NULL: there is no memory. */
static visitor *server_enter(server *s, int fd, bool keyed)
{
    visitor *v = NULL;
    ino_t inode;

    if (!find_inode(&inode, fd) ||
        invar_alloc((void **)&v, 1, sizeof *v, "a connection") != INVAR_OK)
        return NULL;
    (void)pthread_mutex_lock(&s->lock);
    *v = (visitor){.next = s->visitors,
                   .fd = fd,
                   .inode = inode,
                   .keyed = keyed,
                   .since = invar_acceptor_clock_ms()};
    v->due = v->since + s->client_ms;
    s->visitors = v;
    s->open++;
    s->keyless += s->handler.knows && !keyed;
    (void)pthread_mutex_unlock(&s->lock);
    return v;
}

/* Removes a visitor from the list and the counts. Caller holds `lock`. */
static void remove_visitor(server *s, visitor **at)
{
    visitor *v = *at;

    *at = v->next;
    s->open--;
    s->keyless -= s->handler.knows && !v->keyed;
    invar_free(v);
}

/* The connection has ended. `v` may be NULL. */
static void server_exit(server *s, const visitor *v)
{
    visitor **at = &s->visitors;

    (void)pthread_mutex_lock(&s->lock);
    while (*at && *at != v)
        at = &(*at)->next;
    if (*at)
        remove_visitor(s, at);
    (void)pthread_mutex_unlock(&s->lock);
    invar_acceptor_wake(s->acceptor);
}

/*
 * libmicrohttpd takes a connection in its own thread, after MHD_add_connection has succeeded. If it
 * lacks memory there, it closes the socket and calls nothing. Such a connection is recognized by
 * its file descriptor, which is closed or belongs to another file. Caller holds `lock`.
 */
static void remove_rejected(server *s)
{
    visitor **at = &s->visitors;

    while (*at) {
        ino_t inode;

        if (!(*at)->started && (!find_inode(&inode, (*at)->fd) || inode != (*at)->inode))
            remove_visitor(s, at);
        else
            at = &(*at)->next;
    }
}

/* The library has taken the connection. NULL if nothing is known about it. */
static visitor *find_started(server *s, int fd)
{
    visitor *v = NULL;
    ino_t inode;

    (void)pthread_mutex_lock(&s->lock);
    if (find_inode(&inode, fd))
        for (v = s->visitors; v && (v->started || v->fd != fd || v->inode != inode); v = v->next) {
        }
    if (v)
        v->started = true;
    (void)pthread_mutex_unlock(&s->lock);
    return v;
}

static void on_connection(void *payload, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

    if (code == MHD_CONNECTION_NOTIFY_STARTED && info)
        *context = find_started(payload, info->connect_fd);
    else if (code == MHD_CONNECTION_NOTIFY_CLOSED)
        server_exit(payload, *context);
}

/* NULL if there was no memory for the visitor. */
static visitor *visitor_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info ? info->socket_context : NULL;
}

/* It waits for us; or we for it: for its next request, or until it has taken what is there. */
static void set_due(server *s, struct MHD_Connection *connection, bool waits_for_reply)
{
    visitor *v = visitor_of(connection);

    if (!v)
        return;
    (void)pthread_mutex_lock(&s->lock);
    v->asked = v->asked || waits_for_reply;
    v->due = waits_for_reply ? 0 : invar_acceptor_clock_ms() + s->client_ms;
    (void)pthread_mutex_unlock(&s->lock);
}

static void end(visitor *v)
{
    (void)shutdown(v->fd, SHUT_RDWR);
    v->ended = true;
}

/* Ends connections whose time is over. */
static void tick(void *payload)
{
    server *s = payload;
    int64_t now = invar_acceptor_clock_ms();

    (void)pthread_mutex_lock(&s->lock);
    remove_rejected(s);
    for (visitor *v = s->visitors; v; v = v->next)
        if (v->started && v->due > 0 && v->due < now && !v->ended)
            end(v);
    (void)pthread_mutex_unlock(&s->lock);
}

/* Whether `a` is ended before `b`, which may be NULL: a refused one first, then the older one. */
static bool goes_first(const visitor *a, const visitor *b)
{
    return !b || (a->refused != b->refused ? a->refused : a->since < b->since);
}

/*
 * On a server with a key, half of the connections are set aside for clients that bring it. If there
 * is no room, a connection without the key that still sends its request makes some.
 */
static bool has_room(void *payload, bool keyed)
{
    server *s = payload;
    visitor *first = NULL;
    bool room, leaving = false;

    (void)pthread_mutex_lock(&s->lock);
    room = s->open < s->connections && (keyed || s->keyless < (s->connections + 1) / 2);
    for (visitor *v = s->visitors; v && !room; v = v->next) {
        leaving = leaving || v->ended;
        if (v->keyless && !v->asked && !v->ended && goes_first(v, first))
            first = v;
    }
    if (first && !leaving)
        end(first);
    (void)pthread_mutex_unlock(&s->lock);
    return room;
}

static bool knows(void *payload, const char *authorization)
{
    const server *s = payload;

    return s->handler.knows(s->handler.payload, authorization);
}

static void pass(void *payload, int fd, const invar_address *from, socklen_t bytes, bool keyed)
{
    server *s = payload;
    const visitor *v = server_enter(s, fd, keyed);

    if (!v)
        (void)close(fd);
    else if (MHD_add_connection(s->daemon, fd, &from->any, bytes) != MHD_YES)
        server_exit(s, v); // the library has closed the socket
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

static bool add_headers(struct MHD_Response *response, const invar_http_transaction *e)
{
    char seconds[16];

    (void)snprintf(seconds, sizeof seconds, "%d", e->retry_after);
    return MHD_add_response_header(response, "Content-Type", e->type) == MHD_YES &&
           MHD_add_response_header(response, "Connection", "close") == MHD_YES &&
           (!e->stream ||
            MHD_add_response_header(response, "Cache-Control", "no-cache") == MHD_YES) &&
           (!e->allow || MHD_add_response_header(response, "Allow", e->allow) == MHD_YES) &&
           (e->retry_after == 0 ||
            MHD_add_response_header(response, "Retry-After", seconds) == MHD_YES);
}

static enum MHD_Result send_reply(inquiry *q, struct MHD_Connection *connection)
{
    invar_http_transaction *e = &q->exchange;
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
static inquiry *server_begin(server *s, struct MHD_Connection *connection, const char *url,
                             const char *method)
{
    const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
    inquiry *q = NULL;

    if (invar_alloc((void **)&q, 1, sizeof *q, "a request") != INVAR_OK)
        return NULL;
    memset(q, 0, sizeof *q);
    q->owner = s;
    q->exchange = (invar_http_transaction){
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

static void set_refused(inquiry *q, bool refused)
{
    server *s = q->owner;
    visitor *v = visitor_of((struct MHD_Connection *)(uintptr_t)q->exchange.connection);

    q->refused = refused;
    (void)pthread_mutex_lock(&s->lock);
    if (v) {
        v->refused = refused;
        v->keyless = !q->exchange.keyed;
    }
    (void)pthread_mutex_unlock(&s->lock);
}

/* Bytes of a buffer for a body of at least `bytes`: twice as large each time, up to the limit. */
static size_t room_for(const inquiry *q, size_t bytes)
{
    uint64_t announced = q->exchange.announced;
    size_t most = announced > 0 ? (size_t)announced : q->owner->most_body;
    size_t room = q->room ? q->room : FIRST_BYTES;

    while (room <= bytes)
        room *= 2;
    return room <= most || bytes > most ? room : most + 1;
}

/* False: there is no memory for the larger buffer, or the handler has refused the request. */
static bool grow(inquiry *q, size_t room)
{
    const invar_serve_handler *h = &q->owner->handler;
    char *larger = NULL;

    if (h->grow && !h->grow(h->payload, &q->exchange, q->room + room)) {
        set_refused(q, true);
        invar_free(q->body);
        q->body = NULL;
        q->room = 0;
        return false;
    }
    if (invar_alloc((void **)&larger, room, 1, "the body of a request") != INVAR_OK)
        return false;
    if (q->exchange.bytes > 0)
        memcpy(larger, q->body, q->exchange.bytes);
    invar_free(q->body);
    q->body = larger;
    q->room = room;
    return true;
}

/* Appends to the body; what is too long is counted and not kept. */
static enum MHD_Result inquiry_take(inquiry *q, const char *data, size_t bytes)
{
    invar_http_transaction *e = &q->exchange;
    size_t room;

    q->too_long = q->too_long || bytes > q->owner->most_body - e->bytes;
    if (q->too_long || q->refused)
        return MHD_YES;
    room = room_for(q, e->bytes + bytes);
    if (room > q->room && !grow(q, room))
        return q->refused ? MHD_YES : MHD_NO;
    memcpy(q->body + e->bytes, data, bytes);
    e->bytes += bytes;
    return MHD_YES;
}

/* A refusal is sent after the body: a client that still sends its body would not read the reply. */
static enum MHD_Result on_head(inquiry *q, struct MHD_Connection *connection)
{
    server *s = q->owner;

    set_refused(q, !s->handler.admit(s->handler.payload, &q->exchange));
    if (q->refused && q->exchange.announced > s->most_body) {
        set_due(s, connection, true);
        return send_reply(q, connection);
    }
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
        q = *context = server_begin(s, connection, url, method);
        if (!q)
            return MHD_NO;
        return on_head(q, connection);
    }
    if (*bytes > 0) {
        enum MHD_Result result = inquiry_take(q, data, *bytes);
        *bytes = 0;
        return result;
    }
    set_due(s, connection, true);
    if (q->refused)
        return send_reply(q, connection);
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

/* False: it is no number of an address. */
static bool parse_host(invar_address *out, const char *host, uint16_t port)
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

static unsigned smaller(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Connections that the limit of open files allows, at least 2. */
static unsigned most_connections(void)
{
    struct rlimit limit;
    rlim_t files;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > INT_MAX)
        return INT_MAX;
    files = limit.rlim_cur > 2 * OWN_FILES ? limit.rlim_cur - OWN_FILES : limit.rlim_cur / 2;
    return files > 2 ? (unsigned)files : 2;
}

static struct MHD_Daemon *start_daemon(server *s, const invar_serve_settings *settings)
{
    unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_ITC |
                     MHD_USE_NO_LISTEN_SOCKET;

    return MHD_start_daemon(flags, 0, NULL, NULL, on_request, s, MHD_OPTION_CONNECTION_LIMIT,
                            s->connections + SPARE_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
                            settings->client_seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                            HEAD_BYTES, MHD_OPTION_THREAD_STACK_SIZE, STACK_BYTES,
                            MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
                            MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_END);
}

static void close_door(void *payload)
{
    server *s = payload;

    invar_acceptor_shut(s->acceptor);
}

static void stop(void *payload)
{
    server *s = payload;

    if (s->acceptor)
        close_door(s);
    if (s->daemon)
        MHD_stop_daemon(s->daemon);
    invar_acceptor_close(s->acceptor);
    (void)pthread_mutex_destroy(&s->lock);
    invar_free(s);
}

/* False, with errno, if one of the parts does not start. */
static bool start_parts(server *s, const invar_serve_settings *settings, const invar_address *at,
                        uint16_t *port_out)
{
    unsigned files = most_connections();
    invar_acceptor_options options = {.at = *at,
                                      .client_ms = s->client_ms,
                                      .payload = s,
                                      .knows = s->handler.knows ? knows : NULL,
                                      .has_room = has_room,
                                      .pass = pass,
                                      .tick = tick};

    s->connections = smaller(settings->connections, files / 2);
    options.most = smaller(s->connections + SPARE_CONNECTIONS, files - s->connections);

    s->acceptor = invar_acceptor_open(port_out, &options);
    if (!s->acceptor)
        return false;
    errno = 0;
    s->daemon = start_daemon(s, settings);
    if (!s->daemon)
        return false;
    errno = invar_acceptor_start(s->acceptor);
    return errno == 0;
}

static void *serve_settings_start(const invar_serve_settings *settings, uint16_t *port_out,
                                  char why[INVAR_SERVE_WHY_SIZE])
{
    server *s = NULL;
    invar_address at;

    if (!parse_host(&at, settings->host, settings->port)) {
        (void)snprintf(why, INVAR_SERVE_WHY_SIZE, "it is no number of an address, as 127.0.0.1 is");
        return NULL;
    }
    if (invar_alloc((void **)&s, 1, sizeof *s, "an HTTP server") != INVAR_OK) {
        (void)snprintf(why, INVAR_SERVE_WHY_SIZE, "there is no memory");
        return NULL;
    }
    memset(s, 0, sizeof *s);
    s->handler = settings->handler;
    s->most_body = settings->most_body;
    s->client_ms = (int64_t)settings->client_seconds * 1000;
    (void)pthread_mutex_init(&s->lock, NULL);
    if (!start_parts(s, settings, &at, port_out)) {
        (void)snprintf(why, INVAR_SERVE_WHY_SIZE, "%s",
                       errno ? strerror(errno) : "libmicrohttpd does not say why");
        stop(s);
        return NULL;
    }
    return s;
}

__attribute__((visibility("default"))) extern const invar_serve_table INVAR_SERVE_TABLE;
const invar_serve_table INVAR_SERVE_TABLE = {INVAR_SERVE_ABI, serve_settings_start, close_door,
                                             stop, alive};
