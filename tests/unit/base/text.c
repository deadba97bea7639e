/*
 * text.c - tests of UTF-8 over every code point, quoting, shell words and redacted URLs.
 *
 * An encoder after RFC 3629 in this file is the reference.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

/* Encodes a code point as in RFC 3629, surrogates included. Returns the number of bytes. */
static size_t encode(char out[4], uint32_t point)
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    for (size_t length = 2; length <= 4; length++)
        if (point < 1u << (5 * length + 1) || length == 4) {
            for (size_t i = length - 1; i > 0; i--, point >>= 6)
                out[i] = (char)(0x80 | (point & 0x3F));
            out[0] = (char)((0xF00u >> length & 0xFF) | point);
            return length;
        }
    return 0;
}

static bool is_control(uint32_t point)
{
    return point < 0x20 || (point >= 0x7F && point < 0xA0) || point == 0x200E || point == 0x200F ||
           (point >= 0x2028 && point <= 0x202E) || (point >= 0x2066 && point <= 0x2069);
}

static void test_text__every_code_point(void **state)
{
    char bytes[4];

    (void)state;
    for (uint32_t point = 0; point < 0x110000; point++) {
        size_t length = encode(bytes, point);
        bool valid = point < 0xD800 || point > 0xDFFF, printable = valid && !is_control(point);
        uint32_t read = point + 1;
        if (invar_text_utf8(&read, bytes, length) != (valid ? length : 0) || read != point + !valid)
            fail_msg("U+%04X, read as U+%04X", point, read);
        if (invar_text_char(bytes, length) != (printable ? length : 0))
            fail_msg("U+%04X", point);
        if (length > 1 && invar_text_char(bytes, length - 1) != 0)
            fail_msg("U+%04X, cut", point);
    }
}

static void test_text__rejects_invalid_utf8(void **state)
{
    static const char *const cases[] = {"\x80",
                                        "\xC0\x80",
                                        "\xC1\xBF",
                                        "\xE0\x80\x80",
                                        "\xF0\x80\x80\x80",
                                        "\xF4\x90\x80\x80",
                                        "\xF8\x88\x80\x80",
                                        "\xFF",
                                        "\xC3(",
                                        "\xED\xA0\x80"};

    uint32_t point;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(invar_text_char(cases[i], strlen(cases[i])), 0);
        assert_int_equal(invar_text_utf8(&point, cases[i], strlen(cases[i])), 0);
    }
}

static void assert_quote(const char *text, size_t size, const char *expected)
{
    char out[64];

    memset(out, '!', sizeof out);
    invar_text_quote(out, size, text, strlen(text));
    assert_string_equal(out, expected);
}

static void test_text__quotes_text(void **state)
{
    (void)state;
    assert_quote("plain", 48, "plain");
    assert_quote("\x1b[2J\n", 48, "?[2J?");
    assert_quote("a\u202Eb", 48, "a???b"); // one '?' per byte of an unprintable character
    assert_quote("gr\u00FCn", 48, "gr\u00FCn");
    assert_quote("0123456789", 8, "0123...");
    assert_quote("012\u20AC456789", 8, "012..."); // a character is not cut
}

static void assert_word(const char *word, const char *expected)
{
    char *text;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    assert_non_null(stream);
    invar_text_print_shell_word(stream, word);
    fclose(stream);
    assert_string_equal(text, expected);
    free(text);
}

static void test_text__words_for_a_shell(void **state)
{
    (void)state;
    assert_word("runs/a-1/ledger.db:7", "runs/a-1/ledger.db:7");
    assert_word("", "''");
    assert_word("two words", "'two words'");
    assert_word("it's", "'it'\\''s'");
    assert_word("$(reboot)", "'$(reboot)'");
    assert_word("\033[31m'", "'\\x1b[31m'\\'''");
}

static void test_text__joins_texts(void **state)
{
    const char *const texts[] = {"ab", "", "cde"};
    char out[8] = "xxxxxxx";

    (void)state;
    assert_true(invar_text_join(out, 6, texts, 3));
    assert_string_equal(out, "abcde");
    assert_int_equal(out[6], 'x');
    assert_false(invar_text_join(out, 5, texts, 3));
    assert_string_equal(out, "abcd");
    assert_true(invar_text_join(out, 1, texts + 1, 1));
    assert_string_equal(out, "");
    assert_false(invar_text_join(out, 1, texts, 1));
    assert_string_equal(out, "");
}

static void test_text__has_suffix(void **state)
{
    (void)state;
    assert_true(invar_text_has_suffix("model.safetensors", ".safetensors"));
    assert_true(invar_text_has_suffix(".ini", ".ini"));
    assert_true(invar_text_has_suffix("", ""));
    assert_false(invar_text_has_suffix("ini", ".ini"));
    assert_false(invar_text_has_suffix("a.ini.new", ".ini"));
}

/* Values after '?' and '#' may be secrets and are redacted. Redacting twice changes nothing. */
static void test_text__redacts_urls(void **state)
{
    static const char *const cases[][2] = {
        {"http://a/b", "http://a/b"},
        {"http://a?k=1", "http://a?k=..."},
        {"http://a/?key=s3cret&model=m&", "http://a/?key=...&model=...&..."},
        {"https://a/b?s3cret", "https://a/b?..."},
        {"https://a/b?x=1=2#s3cret", "https://a/b?x=...#..."},
        {"", ""},
    };
    char shown[INVAR_TEXT_URL_SIZE], again[INVAR_TEXT_URL_SIZE];
    char longest[INVAR_TEXT_URL_SIZE];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_text_redact_url(shown, sizeof shown, cases[i][0]);
        assert_string_equal(shown, cases[i][1]);
        invar_text_redact_url(again, sizeof again, shown);
        assert_string_equal(again, shown);
    }
    for (size_t from = 0; from < sizeof longest; from += 97) { // a path, '?', only separators
        memset(longest, 'a', sizeof longest);
        memset(longest + from, '&', sizeof longest - from);
        longest[from] = '?';
        longest[sizeof longest - 1] = '\0';
        invar_text_redact_url(shown, sizeof shown, longest);
        assert_true(strlen(shown) < sizeof shown);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text__every_code_point),
        cmocka_unit_test(test_text__rejects_invalid_utf8),
        cmocka_unit_test(test_text__quotes_text),
        cmocka_unit_test(test_text__words_for_a_shell),
        cmocka_unit_test(test_text__joins_texts),
        cmocka_unit_test(test_text__has_suffix),
        cmocka_unit_test(test_text__redacts_urls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
