/*
 * http.c - tests of questions to a server: what is asked again, what is refused, and how.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/http/http.h"

#include <string.h>

#include "base/alloc.h"
#include "tests/support.h"

#define MODULE INVAR_TEST_WORK "/plugin/fake_http.so"

static invar_http *open_fake(int attempts)
{
    invar_http *http;

    assert_ok(invar_http_open(&http, &(invar_http_options){.name = "rm-url",
                                                           .url = "http://judge:1/x",
                                                           .timeout = 1,
                                                           .attempts = attempts,
                                                           .pause = 0.001,
                                                           .parallel = 2,
                                                           .most_bytes = 1 << 20,
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

static void test_http__answers(void **state)
{
    invar_http_exchange e[] = {{.body = "count"},   {.body = "later 4"}, {.body = "ok"},
                               {.body = "later 6"}, {.body = "slow"},    {.body = "none"}};
    const char *const expected[] = {"1.5", "2", "1.5", "2", "1.5", NULL};
    invar_http *http = open_fake(4);
    int waits = 0;

    (void)state;
    invar_http_watch(http, count_wait, &waits);
    assert_ok(post(http, e, 6));
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(e[i].reply_bytes, expected[i] ? strlen(expected[i]) : 0);
        if (expected[i])
            assert_string_equal(e[i].reply, expected[i]); // what a 503 had said is gone
    }
    assert_int_equal(waits, 1);
    assert_ok(invar_http_post(http, NULL, 0));
    release(e, 6);
    invar_http_close(http);
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
        invar_http_exchange e[] = {{.body = "ok"}, {.body = cases[i].body}};
        invar_http *http = open_fake(3);
        assert_fails(post(http, e, 2), cases[i].status, cases[i].text);
        release(e, 2);
        invar_http_close(http);
    }
}

static void test_http__wrong_addresses(void **state)
{
    static const char *const urls[] = {"",
                                       "judge:80",
                                       "ftp://judge/",
                                       "http://",
                                       "file:///etc/x",
                                       "http://a b/",
                                       "http://a/\r\nHost: b"};
    invar_http_options o = {.name = "rm-url", .attempts = 1, .parallel = 1, .module = MODULE};
    invar_http *http;

    (void)state;
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        o.url = urls[i];
        assert_fails(invar_http_open(&http, &o), INVAR_E_INVALID, "is no address");
        assert_null(http);
    }
    o.url = "https://judge";
    o.module = "/nowhere/invar-http.so";
    assert_fails(invar_http_open(&http, &o), INVAR_E_UNSUPPORTED, "servers are asked through it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http__answers),
        cmocka_unit_test(test_http__refusals),
        cmocka_unit_test(test_http__wrong_addresses),
    };

    return cmocka_run_group_tests_name("http", tests, NULL, NULL);
}
