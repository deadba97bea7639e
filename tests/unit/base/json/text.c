/*
 * text.c - tests of the writer of JSON text: commas, strings that parse back, rejected values.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/json/text.h"

#include <math.h>
#include <string.h>

#include "base/json/json.h"
#include "tests/support.h"

static void assert_text(invar_json_text *text, const char *expected)
{
    invar_assert_status(text->status, INVAR_OK, "text", __FILE__, __LINE__);
    assert_int_equal(text->bytes, strlen(expected));
    assert_memory_equal(text->data, expected, text->bytes);
    invar_json_text_reset(text);
}

static void test_json_text__inserts_commas(void **state)
{
    static const int32_t ints[3] = {1, -2, 3};
    static const float floats[2] = {0.1f, -0.0f};
    static const uint8_t bytes[2] = {0, 255};
    invar_digest digest = {{0xab}};
    invar_json_text text = {0};

    (void)state;
    invar_json_text_open(&text, '{');
    invar_json_text_key(&text, "a");
    invar_json_text_ints(&text, ints, 3);
    invar_json_text_key(&text, "b");
    invar_json_text_open(&text, '{');
    invar_json_text_close(&text, '}');
    invar_json_text_key(&text, "c");
    invar_json_text_f32s(&text, floats, 2);
    invar_json_text_key(&text, "d");
    invar_json_text_bytes(&text, bytes, 2);
    invar_json_text_key(&text, "e");
    invar_json_text_ints(&text, NULL, 7);
    invar_json_text_key(&text, "f");
    invar_json_text_open(&text, '[');
    invar_json_text_bool(&text, true);
    invar_json_text_bool(&text, false);
    invar_json_text_null(&text);
    invar_json_text_f64(&text, 1.0 / 3);
    invar_json_text_value(&text, "{\"x\":[]}", 8);
    invar_json_text_string(&text, "{", 1); // opens no object: it is in a string
    invar_json_text_string(&text, "", 0);
    invar_json_text_digest(&text, &digest);
    invar_json_text_close(&text, ']');
    invar_json_text_close(&text, '}');
    invar_json_text_newline(&text);
    invar_json_text_open(&text, '[');
    assert_text(&text, "{\"a\":[1,-2,3],\"b\":{},\"c\":[0.1,-0.0],\"d\":[0,255],\"e\":null,\"f\":["
                       "true,false,null,0.3333333333333333,{\"x\":[]},\"{\",\"\","
                       "\"ab000000000000000000000000000000\"]}\n[");
    invar_json_text_release(&text);
}

/* All ASCII characters parse back; other characters are written unescaped. */
static void test_json_text__strings_parse_back(void **state)
{
    invar_json_text text = {0};
    char ascii[128];
    json_t *read_back;

    (void)state;
    for (int i = 0; i < 128; i++)
        ascii[i] = (char)i;
    invar_json_text_string(&text, ascii, sizeof ascii);
    assert_ok(invar_json_parse_raw(&read_back, "text", text.data, text.bytes));
    assert_int_equal(json_string_length(read_back), sizeof ascii);
    assert_memory_equal(json_string_value(read_back), ascii, sizeof ascii);
    json_decref(read_back);
    assert_int_equal(invar_json_parse(&read_back, "text", text.data, text.bytes), INVAR_E_INVALID);
    for (size_t i = 0; i < text.bytes; i++)
        assert_true((unsigned char)text.data[i] >= 0x20); // one line
    invar_json_text_reset(&text);
    invar_json_text_string(&text, "\u00e9\u2028\U0001F600", 9);
    assert_text(&text, "\"\u00e9\u2028\U0001F600\"");
    invar_json_text_release(&text);
}

static void assert_rejected(const char *string, size_t bytes)
{
    invar_json_text text = {0};

    invar_json_text_string(&text, string, bytes);
    assert_fails(text.status, INVAR_E_INVALID, "not UTF-8");
    invar_json_text_int(&text, 1); // changes nothing
    assert_int_equal(text.status, INVAR_E_INVALID);
    invar_json_text_release(&text);
}

static void test_json_text__rejects_values_outside_json(void **state)
{
    invar_json_text text = {0};

    (void)state;
    assert_rejected("\xff", 1);
    assert_rejected("a\xc3", 2);            // truncated
    assert_rejected("\xc0\x80", 2);         // overlong
    assert_rejected("\xed\xa0\x80", 3);     // a surrogate
    assert_rejected("\xf4\x90\x80\x80", 4); // beyond U+10FFFF
    invar_json_text_f64(&text, NAN);
    assert_fails(text.status, INVAR_E_INVALID, "not finite");
    invar_json_text_reset(&text);
    invar_json_text_f32(&text, -INFINITY);
    assert_fails(text.status, INVAR_E_INVALID, "not finite");
    invar_json_text_reset(&text);
    invar_json_text_int(&text, INT64_MIN);
    assert_text(&text, "-9223372036854775808");
    invar_json_text_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_text__inserts_commas),
        cmocka_unit_test(test_json_text__strings_parse_back),
        cmocka_unit_test(test_json_text__rejects_values_outside_json),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
