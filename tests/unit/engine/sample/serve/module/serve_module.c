/*
 * serve_module.c - tests of the connection count when the HTTP library silently rejects
 * connections.
 *
 * libmicrohttpd accepts a connection with MHD_YES and closes it later, without a notification, if
 * it has no memory for the connection's pool. The wrapped MHD_add_connection does the same.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/module/serve_module.h"

#include <arpa/inet.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/support.h"

extern const invar_serve_table INVAR_SERVE_TABLE;

static atomic_int n_rejects; /* number of further connections that the library rejects */

/* Returns 1 (MHD_YES) or 0 (MHD_NO). */
int __real_MHD_add_connection(void *daemon, int fd, const struct sockaddr *from, socklen_t bytes);
int __wrap_MHD_add_connection(void *daemon, int fd, const struct sockaddr *from, socklen_t bytes);

int __wrap_MHD_add_connection(void *daemon, int fd, const struct sockaddr *from, socklen_t bytes)
{
    if (atomic_fetch_sub(&n_rejects, 1) > 0)
        return close(fd) == 0;
    return __real_MHD_add_connection(daemon, fd, from, bytes);
}

static bool admit(void *payload, invar_http_transaction *e)
{
    (void)payload;
    (void)e;
    return true;
}

static void answer(void *payload, invar_http_transaction *e)
{
    (void)payload;
    assert_ok(INVAR_ALLOC(e->reply, 2, "test"));
    memcpy(e->reply, "ok", 2);
    e->reply_bytes = 2;
    e->status = 200;
    e->type = "text/plain";
}

static void release(void *payload, invar_http_transaction *e)
{
    (void)payload;
    invar_free(e->reply);
}

/* Sends a request. Returns the number of bytes of the reply; 0 if the connection was closed. */
static ssize_t send_request(uint16_t port)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval timeout = {.tv_sec = 10};
    char reply[512];
    ssize_t bytes;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(send(fd, request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
    bytes = recv(fd, reply, sizeof reply, 0);
    (void)close(fd);
    return bytes > 0 && memcmp(reply, "HTTP/1.1 200", 12) == 0 ? bytes : 0;
}

/* Rejects more connections than the server's limit; later ones must still be served. */
static void test_serve_module__rejected_connections_take_no_room(void **state)
{
    const invar_serve_settings settings = {
        .host = "127.0.0.1",
        .connections = 2,
        .max_body_bytes = 16,
        .client_timeout_s = 600,
        .handler = {.admit = admit, .answer = answer, .release = release}};
    char why[INVAR_SERVE_REASON_SIZE];
    uint16_t port = 0;
    void *server = INVAR_SERVE_TABLE.start(&settings, &port, why);

    (void)state;
    assert_non_null(server);
    atomic_store(&n_rejects, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(send_request(port), 0);
    for (int i = 0; i < 4; i++)
        assert_true(send_request(port) > 0);
    INVAR_SERVE_TABLE.stop_accepting(server);
    INVAR_SERVE_TABLE.stop(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serve_module__rejected_connections_take_no_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
