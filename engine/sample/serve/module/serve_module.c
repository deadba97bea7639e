/*
 * serve_module.c - HTTP server on libmicrohttpd, loaded by the engine as a module.
 *
 * The acceptor (acceptor.h) passes a connection to libmicrohttpd when the head of its request has
 * arrived. From then on the connection has a thread, so a handler may block. It is closed after one
 * response: bytes after a request are never read as another request.
 *
 * The acceptor's thread also ends connections that do not complete their request in time, however
 * slowly their bytes arrive, or do not read the last bytes of a stream. libmicrohttpd ends
 * connections that do not read a complete response; its timeout is off for streams, because it
 * would also run while a stream waits for its next bytes.
 *
 * If all connections are in use, a connection whose body is incomplete and that has not shown the
 * key of the server is ended for a new one, rejected requests first. Clients with the key keep
 * their connections. `lock` guards the list of connections and its counts.
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
#define FIRST_BYTES ((size_t)4096) // first size of the buffer of a body
// additional connections of the library and of heads; this file enforces the limit
#define SPARE_CONNECTIONS 64
#define OWN_FILES 64 // files that the process keeps open besides its connections

/* A connection, from the acceptor to its end. */
typedef struct client_connection {
    struct client_connection *next;
    int fd;
    ino_t inode;  /* inode of the socket; shows whether `fd` still is this socket */
    bool keyed;   /* the acceptor has seen the key of the server in the head */
    bool started; /* the library has accepted the connection and will report its end */
    int64_t arrival_ms;
    int64_t deadline_ms; /* time at which the request must be complete, or bytes must have been
                            read; 0 while a response is being prepared */
    bool refused;        /* the request was rejected */
    bool is_complete;    /* the request is complete */
    bool keyless;        /* the head was read and does not have the key of the server */
    bool ended;          /* the socket was shut down; the library will report the end */
} client_connection;

typedef struct server {
    struct MHD_Daemon *daemon;
    invar_serve_handler handler;
    size_t most_body;
    int64_t client_ms;
    unsigned connections;
    invar_acceptor *acceptor;
    pthread_mutex_t lock; /* guards the list and the counts */
    client_connection *client_connections;
    unsigned open;    /* connections that were passed to the library */
    unsigned keyless; /* the part of `open` without the key, on a server that has one */
} server;

/* A request while it is received. */
typedef struct pending_request {
    server *owner;
    invar_http_transaction exchange;
    char *body;
    size_t room;
    bool too_long;
    bool refused; /* the response is set; the body is read and dropped, so that the client reads the
                     response */
} pending_request;

/* ---- connections ----------------------------------------------------------------------------- */

/* Returns false if the file descriptor is closed. */
static bool find_inode(ino_t *out, int fd)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return false;
    *out = info.st_ino;
    return true;
}

/* Adds a connection before the library has it. Returns NULL if there is no memory. */
static client_connection *add_connection(server *s, int fd, bool keyed)
{
    client_connection *v = NULL;
    ino_t inode;

    if (!find_inode(&inode, fd) || INVAR_ALLOC(v, 1, "a connection") != INVAR_OK)
        return NULL;
    (void)pthread_mutex_lock(&s->lock);
    *v = (client_connection){.next = s->client_connections,
                             .fd = fd,
                             .inode = inode,
                             .keyed = keyed,
                             .arrival_ms = invar_acceptor_clock_ms()};
    v->deadline_ms = v->arrival_ms + s->client_ms;
    s->client_connections = v;
    s->open++;
    s->keyless += s->handler.knows && !keyed;
    (void)pthread_mutex_unlock(&s->lock);
    return v;
}

/* Removes a connection from the list and the counts. Caller holds `lock`. */
static void unlink_connection(server *s, client_connection **at)
{
    client_connection *v = *at;

    *at = v->next;
    s->open--;
    s->keyless -= s->handler.knows && !v->keyed;
    invar_free(v);
}

/* Removes a connection that has ended. `v` may be NULL. */
static void end_connection(server *s, const client_connection *v)
{
    client_connection **at = &s->client_connections;

    (void)pthread_mutex_lock(&s->lock);
    while (*at && *at != v)
        at = &(*at)->next;
    if (*at)
        unlink_connection(s, at);
    (void)pthread_mutex_unlock(&s->lock);
    invar_acceptor_wake(s->acceptor);
}

/*
 * Removes connections that the library has closed without a report: it accepts a connection in its
 * own thread, after MHD_add_connection has succeeded, and if it lacks memory there, it closes the
 * socket and calls nothing. The file descriptor of such a connection is closed or belongs to
 * another file. Caller holds `lock`.
 */
static void remove_lost_connections(server *s)
{
    client_connection **at = &s->client_connections;

    while (*at) {
        ino_t inode;

        if (!(*at)->started && (!find_inode(&inode, (*at)->fd) || inode != (*at)->inode))
            unlink_connection(s, at);
        else
            at = &(*at)->next;
    }
}

/*
 * Returns the connection that the library has accepted with this socket; NULL if it is not known.
 */
static client_connection *find_started(server *s, int fd)
{
    client_connection *v = NULL;
    ino_t inode;

    (void)pthread_mutex_lock(&s->lock);
    if (find_inode(&inode, fd))
        for (v = s->client_connections; v && (v->started || v->fd != fd || v->inode != inode);
             v = v->next) {
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
        end_connection(payload, *context);
}

/* Returns NULL if the connection is not in the list. */
static client_connection *find_connection(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info ? info->socket_context : NULL;
}

/* Restarts the time limit of the client, or stops it while the client waits for the response. */
static void set_due(server *s, struct MHD_Connection *connection, bool waits_for_reply)
{
    client_connection *v = find_connection(connection);

    if (!v)
        return;
    (void)pthread_mutex_lock(&s->lock);
    v->is_complete = v->is_complete || waits_for_reply;
    v->deadline_ms = waits_for_reply ? 0 : invar_acceptor_clock_ms() + s->client_ms;
    (void)pthread_mutex_unlock(&s->lock);
}

static void shut_connection(client_connection *v)
{
    (void)shutdown(v->fd, SHUT_RDWR);
    v->ended = true;
}

/* Ends connections whose time limit has passed. */
static void end_overdue_connections(void *payload)
{
    server *s = payload;
    int64_t now = invar_acceptor_clock_ms();

    (void)pthread_mutex_lock(&s->lock);
    remove_lost_connections(s);
    for (client_connection *v = s->client_connections; v; v = v->next)
        if (v->started && v->deadline_ms > 0 && v->deadline_ms < now && !v->ended)
            shut_connection(v);
    (void)pthread_mutex_unlock(&s->lock);
}

/*
 * Returns whether `a` is ended before `b`. Rejected requests come first, then the oldest. `b` may
 * be NULL.
 */
static bool ends_before(const client_connection *a, const client_connection *b)
{
    return !b || (a->refused != b->refused ? a->refused : a->arrival_ms < b->arrival_ms);
}

/*
 * Returns whether another connection may be passed to the library. On a server with a key, half of
 * the connections are reserved for clients with the key. If there is no room, ends a connection
 * without the key whose request is incomplete.
 */
static bool connection_has_room(void *payload, bool keyed)
{
    server *s = payload;
    client_connection *first = NULL;
    bool room, leaving = false;

    (void)pthread_mutex_lock(&s->lock);
    room = s->open < s->connections && (keyed || s->keyless < (s->connections + 1) / 2);
    for (client_connection *v = s->client_connections; v && !room; v = v->next) {
        leaving = leaving || v->ended;
        if (v->keyless && !v->is_complete && !v->ended && ends_before(v, first))
            first = v;
    }
    if (first && !leaving)
        shut_connection(first);
    (void)pthread_mutex_unlock(&s->lock);
    return room;
}

static bool is_valid_key(void *payload, const char *authorization)
{
    const server *s = payload;

    return s->handler.knows(s->handler.payload, authorization);
}

static void pass_to_library(void *payload, int fd, const invar_address *from, socklen_t bytes,
                            bool keyed)
{
    server *s = payload;
    const client_connection *v = add_connection(s, fd, keyed);

    if (!v)
        (void)close(fd);
    else if (MHD_add_connection(s->daemon, fd, &from->any, bytes) != MHD_YES)
        end_connection(s, v); // the library has closed the socket
}

static bool is_alive(const void *connection)
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

/* ---- responses ------------------------------------------------------------------------------- */

static ssize_t read_stream(void *payload, uint64_t position, char *out, size_t most)
{
    pending_request *q = payload;
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

static bool add_headers(struct MHD_Response *response, const invar_http_transaction *transaction)
{
    char seconds[16];

    (void)snprintf(seconds, sizeof seconds, "%d", transaction->retry_after);
    return MHD_add_response_header(response, "Content-Type", transaction->type) == MHD_YES &&
           MHD_add_response_header(response, "Connection", "close") == MHD_YES &&
           (!transaction->stream ||
            MHD_add_response_header(response, "Cache-Control", "no-cache") == MHD_YES) &&
           (!transaction->allow ||
            MHD_add_response_header(response, "Allow", transaction->allow) == MHD_YES) &&
           (transaction->retry_after == 0 ||
            MHD_add_response_header(response, "Retry-After", seconds) == MHD_YES);
}

static enum MHD_Result send_reply(pending_request *q, struct MHD_Connection *connection)
{
    invar_http_transaction *transaction = &q->exchange;
    enum MHD_Result result = MHD_NO;
    struct MHD_Response *response;

    response = transaction->stream
                   ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream,
                                                       q, NULL)
                   : MHD_create_response_from_buffer(transaction->reply_bytes, transaction->reply,
                                                     MHD_RESPMEM_PERSISTENT);
    (void)MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT,
                                    transaction->stream ? 0u
                                                        : (unsigned)(q->owner->client_ms / 1000));
    if (response && add_headers(response, transaction))
        result = MHD_queue_response(connection, (unsigned)transaction->status, response);
    if (response)
        MHD_destroy_response(response); // the library frees it when it was sent
    return result;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Allocates a request when its head has arrived. */
static pending_request *begin_request(server *s, struct MHD_Connection *connection, const char *url,
                                      const char *method)
{
    const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
    pending_request *q = NULL;

    if (INVAR_ALLOC(q, 1, "a request") != INVAR_OK)
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
        q->exchange.content_length =
            q->exchange.content_length > UINT64_MAX / 16
                ? UINT64_MAX / 16
                : 10 * q->exchange.content_length + (uint64_t)(*length - '0');
    return q;
}

static void set_refused(pending_request *q, bool refused)
{
    server *s = q->owner;
    client_connection *v =
        find_connection((struct MHD_Connection *)(uintptr_t)q->exchange.connection);

    q->refused = refused;
    (void)pthread_mutex_lock(&s->lock);
    if (v) {
        v->refused = refused;
        v->keyless = !q->exchange.keyed;
    }
    (void)pthread_mutex_unlock(&s->lock);
}

/*
 * Returns the capacity for a body of at least `bytes`: doubled until it suffices, up to the limit.
 */
static size_t body_capacity(const pending_request *q, size_t bytes)
{
    uint64_t announced = q->exchange.content_length;
    size_t most = announced > 0 ? (size_t)announced : q->owner->most_body;
    size_t room = q->room ? q->room : FIRST_BYTES;

    while (room <= bytes)
        room *= 2;
    return room <= most || bytes > most ? room : most + 1;
}

/*
 * Enlarges the buffer of the body. Returns false if there is no memory, or the handler has rejected
 * the request.
 */
static bool grow_body(pending_request *q, size_t room)
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
    if (INVAR_ALLOC(larger, room, "the body of a request") != INVAR_OK)
        return false;
    if (q->exchange.bytes > 0)
        memcpy(larger, q->body, q->exchange.bytes);
    invar_free(q->body);
    q->body = larger;
    q->room = room;
    return true;
}

/* Appends to the body. A body that is too long is read to its end, but not stored. */
static enum MHD_Result append_body(pending_request *q, const char *data, size_t bytes)
{
    invar_http_transaction *transaction = &q->exchange;
    size_t room;

    q->too_long = q->too_long || bytes > q->owner->most_body - transaction->bytes;
    if (q->too_long || q->refused)
        return MHD_YES;
    room = body_capacity(q, transaction->bytes + bytes);
    if (room > q->room && !grow_body(q, room))
        return q->refused ? MHD_YES : MHD_NO;
    memcpy(q->body + transaction->bytes, data, bytes);
    transaction->bytes += bytes;
    return MHD_YES;
}

/*
 * Lets the handler check the head. A rejection is sent after the body was read: a client that still
 * sends its body would not read the response.
 */
static enum MHD_Result on_head(pending_request *q, struct MHD_Connection *connection)
{
    server *s = q->owner;

    set_refused(q, !s->handler.admit(s->handler.payload, &q->exchange));
    if (q->refused && q->exchange.content_length > s->most_body) {
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
    pending_request *q = *context;

    (void)version;
    if (!q) {
        q = *context = begin_request(s, connection, url, method);
        if (!q)
            return MHD_NO;
        return on_head(q, connection);
    }
    if (*bytes > 0) {
        enum MHD_Result result = append_body(q, data, *bytes);
        *bytes = 0;
        return result;
    }
    set_due(s, connection, true);
    if (q->refused)
        return send_reply(q, connection);
    q->exchange.body = q->body ? q->body : "";
    if (q->too_long)
        q->exchange.content_length = UINT64_MAX; // makes `admit` reject the request
    if (!q->too_long || s->handler.admit(s->handler.payload, &q->exchange))
        s->handler.answer(s->handler.payload, &q->exchange);
    return send_reply(q, connection);
}

static void on_completed(void *payload, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode code)
{
    server *s = payload;
    pending_request *q = *context;

    (void)code;
    set_due(s, connection, false);
    if (!q)
        return;
    s->handler.release(s->handler.payload, &q->exchange);
    invar_free(q->body);
    invar_free(q);
    *context = NULL;
}

/* ---- creation -------------------------------------------------------------------------------- */

/* Returns false if `host` is not a numeric address. */
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

static unsigned min_unsigned(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Returns the number of connections that the limit of open files allows, at least 2. */
static unsigned max_connections(void)
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
                            settings->client_timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                            HEAD_BYTES, MHD_OPTION_THREAD_STACK_SIZE, STACK_BYTES,
                            MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
                            MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_END);
}

static void stop_accepting(void *payload)
{
    server *s = payload;

    invar_acceptor_shut(s->acceptor);
}

static void stop_server(void *payload)
{
    server *s = payload;

    if (s->acceptor)
        stop_accepting(s);
    if (s->daemon)
        MHD_stop_daemon(s->daemon);
    invar_acceptor_close(s->acceptor);
    (void)pthread_mutex_destroy(&s->lock);
    invar_free(s);
}

/* Starts the acceptor and the library. Returns false, with errno, if one of them does not start. */
static bool start_acceptor_and_daemon(server *s, const invar_serve_settings *settings,
                                      const invar_address *at, uint16_t *port_out)
{
    unsigned files = max_connections();
    invar_acceptor_options options = {.address = *at,
                                      .client_ms = s->client_ms,
                                      .payload = s,
                                      .knows = s->handler.knows ? is_valid_key : NULL,
                                      .has_room = connection_has_room,
                                      .pass = pass_to_library,
                                      .tick = end_overdue_connections};

    s->connections = min_unsigned(settings->connections, files / 2);
    options.max_connections =
        min_unsigned(s->connections + SPARE_CONNECTIONS, files - s->connections);

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

static void *start_server(const invar_serve_settings *settings, uint16_t *port_out,
                          char why[INVAR_SERVE_REASON_SIZE])
{
    server *s = NULL;
    invar_address at;

    if (!parse_host(&at, settings->host, settings->port)) {
        (void)snprintf(why, INVAR_SERVE_REASON_SIZE,
                       "it is no number of an address, as 127.0.0.1 is");
        return NULL;
    }
    if (INVAR_ALLOC(s, 1, "an HTTP server") != INVAR_OK) {
        (void)snprintf(why, INVAR_SERVE_REASON_SIZE, "there is no memory");
        return NULL;
    }
    memset(s, 0, sizeof *s);
    s->handler = settings->handler;
    s->most_body = settings->max_body_bytes;
    s->client_ms = (int64_t)settings->client_timeout_s * 1000;
    (void)pthread_mutex_init(&s->lock, NULL);
    if (!start_acceptor_and_daemon(s, settings, &at, port_out)) {
        (void)snprintf(why, INVAR_SERVE_REASON_SIZE, "%s",
                       errno ? strerror(errno) : "libmicrohttpd does not say why");
        stop_server(s);
        return NULL;
    }
    return s;
}

__attribute__((visibility("default"))) extern const invar_serve_table INVAR_SERVE_TABLE;
const invar_serve_table INVAR_SERVE_TABLE = {INVAR_SERVE_ABI, start_server, stop_accepting,
                                             stop_server, is_alive};
