/*
 * safe_text.c - tests of escaping, widths, wrapping and times for terminals.
 *
 * Escaping is checked on all pairs of bytes: no control character and no invalid UTF-8 gets out.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/safe_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "tests/support.h"

static void assert_escaped(const char *text, const char *expected)
{
    char out[256];
    size_t length = invar_text_escape(out, sizeof out, text, strlen(text));

    assert_string_equal(out, expected);
    assert_int_equal(length, strlen(expected));
}

static void test_safe_text__escapes_control_characters(void **state)
{
    char out[64];

    (void)state;
    assert_escaped("plain", "plain");
    assert_escaped("", "");
    assert_escaped("\033[31m", "\\x1b[31m");
    assert_escaped("a\r\n\tb\x7f", "a\\x0d\\x0a\\x09b\\x7f");
    assert_escaped("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
    assert_escaped("\xc2\x9b[31m", "\\xc2\\x9b[31m");                    // CSI in 8 bits
    assert_escaped("\xff\xc0\xaf\xe2\x82", "\\xff\\xc0\\xaf\\xe2\\x82"); // not UTF-8
    assert_escaped("\xed\xa0\x80", "\\xed\\xa0\\x80");                   // half of a surrogate pair
    invar_text_escape(out, sizeof out, "a\0b", 3);
    assert_string_equal(out, "a\\x00b");
}

/* All pairs of bytes: the result has no control character and is UTF-8. */
static void test_safe_text__escapes_all_pairs_of_bytes(void **state)
{
    (void)state;
    for (int first = 0; first < 256; first++)
        for (int second = 0; second < 256; second++) {
            char text[2] = {(char)first, (char)second}, out[16];
            size_t length = invar_text_escape(out, sizeof out, text, 2);
            assert_true(length >= 2 && length <= 8);
            for (size_t i = 0; i < length; i++)
                assert_true((unsigned char)out[i] >= 0x20 && out[i] != 0x7f);
            // a first byte above ASCII begins a valid two-byte character, not a C1 control
            if ((out[0] & 0x80) != 0)
                assert_true(first >= 0xc2 && first < 0xe0 && !(first == 0xc2 && second < 0xa0));
        }
}

static void test_safe_text__omits_characters_that_do_not_fit(void **state)
{
    char out[6];

    (void)state;
    assert_int_equal(invar_text_escape(out, sizeof out, "ab\033", 3), 2);
    assert_string_equal(out, "ab");
    assert_int_equal(invar_text_escape(out, sizeof out, "a\033b", 3), 5);
    assert_string_equal(out, "a\\x1b");
}

static void test_safe_text__width_counts_characters(void **state)
{
    (void)state;
    assert_int_equal(invar_safe_text_width("a\xc3\xa4\xf0\x9f\x98\x80", 7), 3);
    assert_int_equal(invar_safe_text_width("", 0), 0);
}

static void assert_time(int64_t ns, const char *expected)
{
    char out[INVAR_SAFE_TEXT_TIME_SIZE];

    invar_safe_text_time(out, ns);
    assert_string_equal(out, expected);
}

static void assert_span(int64_t seconds, const char *expected)
{
    char out[INVAR_SAFE_TEXT_TIME_SIZE];

    invar_safe_text_span(out, seconds * 1000000000);
    assert_string_equal(out, expected);
}

static void test_safe_text__formats_times(void **state)
{
    (void)state;
    assert_time(0, "1970-01-01T00:00:00Z");
    assert_time(-1, "1969-12-31T23:59:59Z");
    assert_time(INT64_C(1709210096999999999), "2024-02-29T12:34:56Z");
    assert_time(INT64_MAX, "2262-04-11T23:47:16Z");
    assert_time(INT64_MIN, "1677-09-21T00:12:43Z");
    assert_span(-5, "0s");
    assert_span(119, "119s");
    assert_span(120, "2m");
    assert_span(7199, "119m");
    assert_span(7200, "2h");
    assert_span(48 * 3600, "2d");
}

static void assert_wrapped(int width, const char *expected)
{
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    assert_non_null(stream);
    fputs("  --x ", stream);
    invar_safe_text_wrap_to(stream, "as many w\xc3\xb6rds as fit", 6, width);
    fclose(stream);
    assert_string_equal(text, expected);
    free(text);
}

static void test_safe_text__wraps_at_words(void **state)
{
    (void)state;
    assert_wrapped(0, "  --x as many w\xc3\xb6rds as fit\n");
    assert_wrapped(80, "  --x as many w\xc3\xb6rds as fit\n");
    assert_wrapped(19, "  --x as many w\xc3\xb6rds\n      as fit\n");
    assert_wrapped(18, "  --x as many\n      w\xc3\xb6rds as fit\n");
    assert_wrapped(1, "  --x as\n      many\n      w\xc3\xb6rds\n      as\n      fit\n");
}

static void test_safe_text__wraps_after_a_choice(void **state)
{
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    (void)state;
    assert_non_null(stream);
    invar_safe_text_wrap_to(stream, "one|two|three (default one)", 0, 9);
    fclose(stream);
    assert_string_equal(text, "one|two|\nthree\n(default\none)\n");
    free(text);
}

static void assert_filled(const char *paragraphs, int width, const char *expected)
{
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    assert_non_null(stream);
    invar_safe_text_fill_to(stream, paragraphs, width);
    fclose(stream);
    assert_string_equal(text, expected);
    free(text);
}

static void test_safe_text__fills_paragraphs(void **state)
{
    static const char two[] = "One of\ntwo lines.\n\nAnother:\n  SELECT a\nand on\n";

    (void)state;
    assert_filled("", 20, "\n");
    assert_filled("word", 20, "word\n");
    assert_filled("\nword", 20, "\nword\n");
    assert_filled(two, 0, "One of\ntwo lines.\n\nAnother:\n  SELECT a\nand on\n\n");
    assert_filled(two, 40, "One of two lines.\n\nAnother:\n  SELECT a\nand on\n\n");
    assert_filled(two, 9, "One of\ntwo\nlines.\n\nAnother:\n  SELECT\n  a\nand on\n\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safe_text__escapes_control_characters),
        cmocka_unit_test(test_safe_text__escapes_all_pairs_of_bytes),
        cmocka_unit_test(test_safe_text__omits_characters_that_do_not_fit),
        cmocka_unit_test(test_safe_text__width_counts_characters),
        cmocka_unit_test(test_safe_text__formats_times),
        cmocka_unit_test(test_safe_text__wraps_at_words),
        cmocka_unit_test(test_safe_text__wraps_after_a_choice),
        cmocka_unit_test(test_safe_text__fills_paragraphs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
