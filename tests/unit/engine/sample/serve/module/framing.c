/*
 * framing.c - tests of the framing of HTTP requests: end of the head, body size, ambiguous heads.
 *
 * Valid requests arrive byte by byte. Each rejected head could be read in two ways, which allows
 * request smuggling, or breaks the grammar of HTTP/1.1.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/module/framing.h"

#include <stdio.h>
#include <string.h>

#include "tests/support.h"

#define LINE "POST /v1/completions HTTP/1.1\r\nHost: localhost:80\r\n"

static void test_framing__finds_the_end_of_a_request(void **state)
{
    static const struct {
        const char *head;
        uint64_t body;
        bool chunked;
    } cases[] = {
        {LINE "\r\n", 0, false},
        {LINE "Content-Length: 12\r\n\r\n", 12, false},
        {LINE "content-length:\t0012 \r\n\r\n", 12, false},
        {LINE "Content-Length: 999999999999999999\r\n\r\n", 999999999999999999, false},
        {LINE "Transfer-Encoding: Chunked\r\n\r\n", 0, true},
        {LINE "X-Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 2, false},
        {"GET / HTTP/1.0\r\nX:\r\nY: \xC3\xA9 : b\r\n\r\n", 0, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char data[256];
        size_t head = strlen(cases[i].head);
        invar_framing f;

        (void)snprintf(data, sizeof data, "%sbody\n\n", cases[i].head);
        for (size_t bytes = 0; bytes <= strlen(data); bytes++) { // byte by byte, as it arrives
            invar_framing_read(&f, data, bytes);
            assert_null(f.error);
            assert_int_equal(f.head_bytes, bytes < head ? 0 : head);
        }
        assert_int_equal(f.body_bytes, cases[i].body);
        assert_int_equal(f.chunked, cases[i].chunked);
    }
}

#define WRONG(bytes, why)                                                                          \
    {                                                                                              \
        bytes, sizeof bytes - 1, why                                                               \
    }

static void test_framing__refuses_ambiguous_heads(void **state)
{
    static const struct {
        const char *data;
        size_t bytes;
        const char *why;
    } cases[] = {
        WRONG(LINE "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", "two headers Content-Length"),
        WRONG(LINE "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "and Content-Length"),
        WRONG(LINE "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", "and Content-Length"),
        WRONG(LINE "Transfer-Encoding: gzip, chunked\r\n\r\n", "not chunked alone"),
        WRONG(LINE "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
              "not chunked alone"),
        WRONG("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "not chunked alone"),
        WRONG(LINE "Content-Length: 5, 5\r\n\r\n", "no number"),
        WRONG(LINE "Content-Length: +5\r\n\r\n", "no number"),
        WRONG(LINE "Content-Length: 0x5\r\n\r\n", "no number"),
        WRONG(LINE "Content-Length:\r\n\r\n", "no number"),
        WRONG(LINE "Content-Length: 18446744073709551621\r\n\r\n", "no number"),
        WRONG(LINE "Content-Length : 5\r\n\r\n", "a blank in its name"),
        WRONG(LINE "X: a\r\n b\r\n\r\n", "two lines"),
        WRONG(LINE ": 5\r\n\r\n", "no name"),
        WRONG(LINE "X\r\n\r\n", "no name"),
        WRONG(LINE "X: a\0b\r\n\r\n", "NUL"),
        WRONG(LINE "X\0: ab\r\n\r\n", "NUL"),
        WRONG(LINE "X: a\rb\r\n\r\n", "control"),
        WRONG(LINE "X: a\n\r\n", "CR LF"),
        WRONG(LINE "\n", "CR LF"),
        WRONG(LINE "Host: other\r\n\r\n", "two headers Host"),
        WRONG("\r\nGET / HTTP/1.1\r\n\r\n", "first line"),
        WRONG("GET /\r\n\r\n", "first line"),
        WRONG("GET / HTTP/2.0\r\n\r\n", "first line"),
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_framing f;

        invar_framing_read(&f, cases[i].data, cases[i].bytes);
        assert_non_null(f.error);
        assert_non_null(strstr(f.error, cases[i].why));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_framing__finds_the_end_of_a_request),
        cmocka_unit_test(test_framing__refuses_ambiguous_heads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
