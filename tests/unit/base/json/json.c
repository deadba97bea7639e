/*
 * json.c - tests of the strict JSON reader: accepted values, rejected texts, limits, messages.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/json/json.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/support.h"

static json_t *parse_text(const char *text)
{
    json_t *value;

    assert_ok(invar_json_parse(&value, "f.json", text, strlen(text)));
    return value;
}

static void assert_rejected(const char *text, size_t bytes, const char *message)
{
    json_t *value;

    assert_fails(invar_json_parse(&value, "f.json", text, bytes), INVAR_E_INVALID, message);
    assert_null(value);
}

static void test_json__reads_members(void **state)
{
    json_t *value =
        parse_text("{\"i\": 7, \"r\": 1e-6, \"t\": true, \"s\": \"\\u00e4\", \"n\": null}");
    const char *text;
    int64_t integer;
    double real;
    bool flag;

    (void)state;
    assert_ok(invar_json_int(&integer, value, "i", "f.json", 7, 7));
    assert_int_equal(integer, 7);
    assert_ok(invar_json_real(&real, value, "r", "f.json"));
    assert_true(real == 1e-6);
    assert_ok(invar_json_real(&real, value, "i", "f.json"));
    assert_true(real == 7);
    assert_ok(invar_json_bool(&flag, value, "t", "f.json"));
    assert_true(flag);
    assert_ok(invar_json_string(&text, value, "s", "f.json"));
    assert_string_equal(text, "\xC3\xA4");
    assert_true(invar_json_has(value, "i"));
    assert_false(invar_json_has(value, "n"));
    assert_false(invar_json_has(value, "x"));
    assert_false(invar_json_has(NULL, "x"));
    json_decref(value);
}

static void test_json__names_file_and_key(void **state)
{
    json_t *value = parse_text("{\"i\": 7, \"r\": 1.5, \"s\": \"x\", \"n\": null}"),
           *list = parse_text("[]");
    const char *text;
    int64_t integer;
    double real;
    bool flag;

    (void)state;
    assert_fails(invar_json_int(&integer, value, "x", "f.json:3", 0, 9), INVAR_E_INVALID,
                 "f.json:3: \"x\" is missing");
    assert_fails(invar_json_int(&integer, value, "r", "f.json", 0, 9), INVAR_E_INVALID,
                 "f.json: \"r\" is not an integer");
    assert_fails(invar_json_int(&integer, value, "i", "f.json", 8, 9), INVAR_E_INVALID,
                 "f.json: \"i\" is 7, not in 8 to 9");
    assert_fails(invar_json_int(&integer, value, "i", "f.json", 1, 6), INVAR_E_INVALID, "is 7");
    assert_fails(invar_json_real(&real, value, "s", "f.json"), INVAR_E_INVALID,
                 "\"s\" is not a finite number");
    assert_fails(invar_json_bool(&flag, value, "i", "f.json"), INVAR_E_INVALID, "true or false");
    assert_fails(invar_json_string(&text, value, "n", "f.json"), INVAR_E_INVALID, "not a string");
    assert_fails(invar_json_string(&text, list, "n", "a\nb"), INVAR_E_INVALID,
                 "a?b: not a JSON object");
    json_decref(value);
    json_decref(list);
}

static void test_json__rejects_what_is_not_strict(void **state)
{
    static const char nul[] = "[\"a\0b\"]";
    static const char *const cases[][2] = {
        {"", "f.json: it is empty; expected JSON"},
        {" \n", "f.json: it is empty; expected JSON"},
        {"\xEF\xBB\xBF{}", "f.json: it begins with a byte order mark"},
        {"version https://git-lfs.github.com/spec/v1\n",
         "f.json: it is a pointer of git-lfs in the place of the file: run 'git lfs pull' in its"},
        {"[\"\\u0000\"]", "f.json: a text in it has the character NUL"},
        {"[1,\n]", "f.json: line 2, column 1 is not JSON"},
        {"{\"a\": 1,\n \"a\": 2}", "f.json: line 2, column 4 is not JSON: duplicate object key"},
        {"{} x", "end of file expected"},
        {"[1,]", "f.json: column 4 is not JSON"},
        {"{'a': 1}", "is not JSON"},
        {"[\"\xFF\"]", "unable to decode byte 0xff"},
        {"[\"\xC0\x80\"]", "unable to decode"},
        {"[\"\xED\xA0\x80\"]", "unable to decode"},
        {"[NaN]", "is not JSON"},
        {"[1e999]", "real number overflow"},
        {"{\"a\": 9223372036854775808,\n \"a\": 2}", "line 2, column 4 is not JSON: duplicate"},
        {"[09223372036854775808]", "is not JSON"},
        {"[01]", "is not JSON"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_rejected(cases[i][0], strlen(cases[i][0]), cases[i][1]);
    assert_rejected(nul, sizeof nul - 1, "is not JSON: control character 0x0");
}

/* Integers beyond int64 become doubles. Digits in strings and keys do not confuse the scanner. */
static void test_json__large_integers_are_numbers(void **state)
{
    static const char text[] =
        "{\"7\": [9223372036854775807, -9223372036854775808, 9223372036854775808, 1.5],"
        " \"\\\\\": {\"\\\"-8\": -9223372036854775809, \"e\": [[], {}, -0, \"5\", true]},"
        " \"model_max_length\": 1000000000000000019884624838656, \"vocab\" : 32000 }";
    json_t *tree = parse_text(text), *list = json_object_get(tree, "7"),
           *object = json_object_get(tree, "\\"), *large;
    const char *digits;
    int64_t integer;
    double real;
    size_t bytes;

    (void)state;
    assert_true(json_integer_value(json_array_get(list, 0)) == INT64_MAX);
    assert_true(json_integer_value(json_array_get(list, 1)) == INT64_MIN);
    assert_true(json_real_value(json_array_get(list, 2)) == 0x1p63);
    assert_true(json_real_value(json_array_get(list, 3)) == 1.5);
    assert_true(json_real_value(json_object_get(object, "\"-8")) == -0x1p63);
    assert_true(json_is_integer(json_array_get(json_object_get(object, "e"), 2)));
    assert_ok(invar_json_int(&integer, tree, "vocab", "f.json", 0, 32000));
    assert_ok(invar_json_real(&real, tree, "model_max_length", "f.json"));
    assert_true(real == 1e30);
    assert_fails(invar_json_int(&integer, tree, "model_max_length", "f.json", 0, 9),
                 INVAR_E_INVALID, "f.json: \"model_max_length\" is 1e+30, not in 0 to 9");

    assert_true(invar_json_digits(&digits, &bytes, tree, json_object_get(tree, "model_max_length"),
                                  text, sizeof text - 1));
    assert_int_equal(bytes, 31);
    assert_memory_equal(digits, "1000000000000000019884624838656", 31);
    assert_false(
        invar_json_digits(&digits, &bytes, tree, json_array_get(list, 3), text, sizeof text - 1));
    assert_int_equal(bytes, 3);
    assert_memory_equal(digits, "1.5", 3);
    json_decref(tree);

    large = parse_text("18446744073709551616");
    assert_true(json_real_value(large) == 0x1p64);
    json_decref(large);
}

/* Brackets and commas in strings count neither as depth nor as values. */
static void test_json__limits_depth_and_number(void **state)
{
    enum { MANY = 2 * INVAR_JSON_MAX_VALUES + 16 };
    char *text = malloc(MANY);
    json_t *value;

    (void)state;
    assert_non_null(text);
    memset(text, '[', INVAR_JSON_MAX_DEPTH + 1);
    memset(text + INVAR_JSON_MAX_DEPTH + 1, ']', INVAR_JSON_MAX_DEPTH + 1);
    assert_rejected(text, 2 * INVAR_JSON_MAX_DEPTH + 2, "nested deeper than 512");
    assert_ok(invar_json_parse(&value, "f.json", text + 1, (size_t)2 * INVAR_JSON_MAX_DEPTH));
    json_decref(value);
    text[0] = '[';
    for (size_t i = 1; i + 1 < MANY; i += 2)
        memcpy(text + i, "1,", 2);
    assert_rejected(text, MANY, "more than 4194304 values");
    memset(text, ',', MANY);
    memcpy(text, "[\"\\\"[[{", 7);
    memcpy(text + MANY - 2, "\"]", 2);
    assert_ok(invar_json_parse(&value, "f.json", text, MANY));
    json_decref(value);
    free(text);
}

static void test_json__writes_text(void **state)
{
    static const char given[] = "{\"b\" : null, \"a\": [1, 2.5, \"\\u00e9\"]}";
    static const char canonical[] = "{\"a\":[1,2.5,\"\u00e9\"],\"b\":null}";
    json_t *value;
    size_t bytes;
    char *text;

    (void)state;
    assert_ok(invar_json_parse(&value, "f.json", given, sizeof given - 1));
    assert_ok(invar_json_dump(&text, &bytes, value, JSON_COMPACT | JSON_SORT_KEYS, "a value"));
    assert_string_equal(text, canonical);
    assert_int_equal(bytes, sizeof canonical - 1);
    invar_free(text);
    json_decref(value);
    assert_fails(invar_json_dump(&text, &bytes, NULL, 0, "a value"), INVAR_E_NOMEM,
                 "no memory for a value");
    assert_null(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json__reads_members),
        cmocka_unit_test(test_json__names_file_and_key),
        cmocka_unit_test(test_json__rejects_what_is_not_strict),
        cmocka_unit_test(test_json__large_integers_are_numbers),
        cmocka_unit_test(test_json__limits_depth_and_number),
        cmocka_unit_test(test_json__writes_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
