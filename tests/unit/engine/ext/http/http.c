/*
 * http.c - tests of the HTTP client: retries, incomplete responses, limits, keys and URLs.
 *
 * Most tests use the module tests/plugin/fake_http.c, which has no network: the body of a request
 * selects the response. Two tests use the module with libcurl and a server process on the loopback
 * interface; they are skipped in builds without libcurl.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/http/http.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/support.h"

#define MODULE INVAR_TEST_WORK "/plugin/fake_http.so"
#define CLIENT INVAR_TEST_WORK "/../invar-http.so"

static invar_http *open_fake(int attempts)
{
    invar_http *http;

    assert_ok(invar_http_open(&http, &(invar_http_options){.name = "rm-url",
                                                           .url = "http://judge:1/x",
                                                           .timeout = 1,
                                                           .attempts = attempts,
                                                           .retry_delay_s = 0.001,
                                                           .max_concurrency = 2,
                                                           .max_response_bytes = 1 << 20,
                                                           .module = MODULE}));
    return http;
}

static invar_status post(invar_http *http, invar_http_exchange *exchanges, size_t count)
{
    for (size_t i = 0; i < count; i++)
        exchanges[i].bytes = strlen(exchanges[i].body);
    return invar_http_post(http, exchanges, count);
}

static void release(invar_http_exchange *exchanges, size_t count)
{
    for (size_t i = 0; i < count; i++)
        invar_free(exchanges[i].reply);
}

static void count_wait(void *payload)
{
    ++*(int *)payload;
}

static void test_http__responses(void **state)
{
    invar_http_exchange exchange[] = {{.body = "count"},   {.body = "later 4"}, {.body = "ok"},
                                      {.body = "later 6"}, {.body = "slow"},    {.body = "none"}};
    const char *const expected[] = {"1.5", "2", "1.5", "2", "1.5", NULL};
    invar_http *http = open_fake(4);
    int n_waits = 0;

    (void)state;
    invar_http_set_wait_callback(http, count_wait, &n_waits);
    assert_ok(post(http, exchange, 6));
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(exchange[i].reply_bytes, expected[i] ? strlen(expected[i]) : 0);
        if (expected[i])
            assert_string_equal(exchange[i].reply,
                                expected[i]); // not the body of an earlier 503
    }
    assert_int_equal(n_waits, 2); // during "slow", and in the delay before the second attempts
    assert_ok(invar_http_post(http, NULL, 0));
    release(exchange, 6);
    invar_http_close(http);
}

/* Accepts one connection and sends `text`, then `spaces` spaces, one every 20 ms. */
static void serve_slowly(int listener, const char *text, int spaces)
{
    char request[4096];
    int connection = accept(listener, NULL, NULL);

    if (recv(connection, request, sizeof request, 0) > 0)
        (void)send(connection, text, strlen(text), MSG_NOSIGNAL);
    for (int i = 0; i < spaces; i++) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        (void)send(connection, " ", 1, MSG_NOSIGNAL);
    }
    (void)close(connection);
}

/* Starts a process that serves one connection at *port_out; the caller waits for its end. */
static pid_t serve(int *port_out, const char *text, int spaces)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    pid_t pid;

    assert_true(listener >= 0 && bind(listener, (struct sockaddr *)&address, size) == 0);
    assert_true(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    assert_true(listen(listener, 1) == 0);
    *port_out = ntohs(address.sin_port);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        serve_slowly(listener, text, spaces);
        _exit(0);
    }
    (void)close(listener);
    return pid;
}

/*
 * Uses libcurl. A response without a length ends when the connection closes, so it may be cut, and
 * a cut number is still a number: such responses are rejected.
 */
static void test_http__refuses_an_answer_without_an_end(void **state)
{
    static const struct {
        const char *text;
        const char *error; /* expected message; NULL if the response is accepted */
    } cases[] = {
        {"HTTP/1.1 200 OK\r\n\r\n0.12", "no Content-Length, no chunks: it may be cut"},
        {"HTTP/1.0 200 OK\r\n\r\n0.12", "no Content-Length, no chunks: it may be cut"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n0.12", "no answer from"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n0.12", "no answer from"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n0.12\r\n", "no answer from"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n0.12", NULL},
        {"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n0.12", NULL},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n4\r\n0.12\r\n0\r\n\r\n", NULL},
    };

    (void)state;
    if (access(CLIENT, R_OK) != 0)
        skip(); // built without libcurl
    (void)unsetenv("http_proxy");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_http_exchange exchange = {.body = "{}"};
        char url[64];
        invar_http_options options = {.name = "rm-url",
                                      .url = url,
                                      .timeout = 60,
                                      .attempts = 1,
                                      .max_concurrency = 1,
                                      .max_response_bytes = 1 << 20,
                                      .module = CLIENT};
        invar_http *http;
        int port;
        pid_t server = serve(&port, cases[i].text, 0);

        (void)snprintf(url, sizeof url, "http://127.0.0.1:%d/", port);
        assert_ok(invar_http_open(&http, &options));
        if (cases[i].error) {
            assert_fails(post(http, &exchange, 1), INVAR_E_IO, cases[i].error);
        } else {
            assert_ok(post(http, &exchange, 1));
            assert_string_equal(exchange.reply, "0.12");
        }
        release(&exchange, 1);
        invar_http_close(http);
        (void)waitpid(server, NULL, 0);
    }
}

/* Uses libcurl. The wait callback runs during a response whose bytes arrive steadily, too. */
static void test_http__steady_answer(void **state)
{
    invar_http_exchange exchange = {.body = "{}"};
    char url[64];
    invar_http_options options = {.name = "rm-url",
                                  .url = url,
                                  .timeout = 60,
                                  .attempts = 1,
                                  .max_concurrency = 1,
                                  .max_response_bytes = 1 << 20,
                                  .module = CLIENT};
    invar_http *http;
    int n_waits = 0, port;
    pid_t server;

    (void)state;
    if (access(CLIENT, R_OK) != 0)
        skip(); // built without libcurl
    (void)unsetenv("http_proxy");
    server = serve(&port, "HTTP/1.1 200 OK\r\nContent-Length: 54\r\n\r\n1.25", 50);
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d/", port);
    assert_ok(invar_http_open(&http, &options));
    invar_http_set_wait_callback(http, count_wait, &n_waits);
    assert_ok(post(http, &exchange, 1));
    assert_memory_equal(exchange.reply, "1.25 ", 5);
    assert_true(n_waits >= 10); // 50 spaces, none of them more than a second after the last
    release(&exchange, 1);
    invar_http_close(http);
    (void)waitpid(server, NULL, 0);
}

static void test_http__refusals(void **state)
{
    static const struct {
        const char *body;
        invar_status status;
        const char *text;
    } cases[] = {
        {"dead", INVAR_E_IO, "rm-url: no answer from http://judge:1/x after 3 calls: nobody"},
        {"later 99999", INVAR_E_STATE, "answers with status 503: busy"},
        {"teapot", INVAR_E_STATE, "rm-url: http://judge:1/x answers with status 418: no tea??"},
        {"long", INVAR_E_CORRUPT, "is longer than 1048576 bytes"},
        {"broken", INVAR_E_IO, "the HTTP client failed (code 5)"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_http_exchange exchange[] = {{.body = "ok"}, {.body = cases[i].body}};
        invar_http *http = open_fake(3);
        assert_fails(post(http, exchange, 2), cases[i].status, cases[i].text);
        release(exchange, 2);
        invar_http_close(http);
    }
}

/* A request may have its own limit for the response; 0 for the limit of the client. */
static void test_http__limit_of_a_request(void **state)
{
    invar_http_exchange exchange[] = {{.body = "ok", .max_response_bytes = 3}, {.body = "ok"}};
    invar_http *http = open_fake(1);

    (void)state;
    assert_ok(post(http, exchange, 2));
    release(exchange, 2);
    exchange[0] = (invar_http_exchange){.body = "ok", .max_response_bytes = 2};
    assert_fails(post(http, exchange, 1), INVAR_E_CORRUPT, "is longer than 2 bytes");
    release(exchange, 1);
    invar_http_close(http);
}

static void test_http__keys(void **state)
{
    static const char *const invalid_keys[] = {"a b", "a\r\nX: y", "\xc3\xa4", "\t", "a\x7f"};
    invar_http_options options = {.name = "teacher",
                                  .url = "http://judge:1/x",
                                  .attempts = 1,
                                  .max_concurrency = 1,
                                  .max_response_bytes = 100,
                                  .api_key = "~k-!1",
                                  .module = MODULE};
    invar_http_exchange exchange = {.body = "header"};
    char key[4098];
    invar_http *http;

    (void)state;
    assert_ok(invar_http_open(&http, &options));
    assert_ok(post(http, &exchange, 1));
    assert_string_equal(exchange.reply, "Authorization: Bearer ~k-!1");
    release(&exchange, 1);
    invar_http_close(http);
    for (size_t i = 0; i < sizeof invalid_keys / sizeof *invalid_keys; i++) {
        options.api_key = invalid_keys[i];
        assert_fails(invar_http_open(&http, &options), INVAR_E_INVALID,
                     "teacher: the key for its server");
    }
    memset(key, 'k', sizeof key);
    key[sizeof key - 1] = '\0';
    options.api_key = key;
    assert_fails(invar_http_open(&http, &options), INVAR_E_INVALID, "more than 4096 characters");
    key[sizeof key - 2] = '\0';
    assert_ok(invar_http_open(&http, &options));
    invar_http_close(http);
}

static void test_http__wrong_addresses(void **state)
{
    static const char *const valid_urls[] = {"http://judge", "https://judge:65535?key=a:b",
                                             "http://[::1]:80/v1"};
    static const char *const invalid_urls[] = {"",
                                               "judge:80",
                                               "ftp://judge/",
                                               "http://",
                                               "http:///path",
                                               "http://:80/",
                                               "http://judge:http/",
                                               "http://judge:99999/",
                                               "http://[::1/",
                                               "file:///etc/x",
                                               "http://a b/",
                                               "http://a/\r\nHost: b"};
    invar_http_options options = {
        .name = "rm-url", .attempts = 1, .max_concurrency = 1, .module = MODULE};
    invar_http *http;

    (void)state;
    for (size_t i = 0; i < sizeof invalid_urls / sizeof *invalid_urls; i++) {
        options.url = invalid_urls[i];
        assert_fails(invar_http_open(&http, &options), INVAR_E_INVALID, "is no address");
        assert_null(http);
    }
    for (size_t i = 0; i < sizeof valid_urls / sizeof *valid_urls; i++)
        assert_true(invar_http_is_url(valid_urls[i]));
    options.url = "https://judge";
    options.module = "/nowhere/invar-http.so";
    assert_fails(invar_http_open(&http, &options), INVAR_E_UNSUPPORTED,
                 "the module /nowhere/invar-http.so does not exist");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http__responses),
        cmocka_unit_test(test_http__refuses_an_answer_without_an_end),
        cmocka_unit_test(test_http__steady_answer),
        cmocka_unit_test(test_http__refusals),
        cmocka_unit_test(test_http__limit_of_a_request),
        cmocka_unit_test(test_http__keys),
        cmocka_unit_test(test_http__wrong_addresses),
    };

    return cmocka_run_group_tests_name("http", tests, NULL, NULL);
}
