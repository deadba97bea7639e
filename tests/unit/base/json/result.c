/*
 * result.c - tests of results: objects and schemas from the text that describes their members.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/json/result.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

/* Checks a value as compact text, and releases it. */
static void assert_json(json_t *value, const char *expected)
{
    char *text = json_dumps(value, JSON_COMPACT);

    assert_non_null(text);
    assert_string_equal(text, expected);
    free(text);
    json_decref(value);
}

static void test_result__writes_members_in_order(void **state)
{
    const invar_digest digest = {{0}};
    const size_t bytes = 9;

    (void)state;
    assert_json(INVAR_RESULT("{a int, b real, c bool, d text (what, {it} is), e x|y, f hex32}", -1,
                             0.5, 1 == 1, "t", "x", &digest),
                "{\"a\":-1,\"b\":0.5,\"c\":true,\"d\":\"t\",\"e\":\"x\","
                "\"f\":\"00000000000000000000000000000000\"}");
    assert_json(INVAR_RESULT("{list [{x int, y int}], inner {x int}? (m), last int}", json_array(),
                             json_null(), bytes),
                "{\"list\":[],\"inner\":null,\"last\":9}");
}

static void test_result__writes_null_where_the_type_allows_it(void **state)
{
    const char *none = NULL;

    (void)state;
    assert_json(INVAR_RESULT("{a int?, b real?, c text?, d line?, e line?, f hex32?}", -1, NAN,
                             none, "", none, (const invar_digest *)NULL),
                "{\"a\":null,\"b\":null,\"c\":null,\"d\":null,\"e\":null,\"f\":null}");
    assert_json(INVAR_RESULT("{a int?, b text?, c~ {x int}, d~ text}", 0, "", json_null(), none),
                "{\"a\":0,\"b\":\"\"}");
}

static void test_result__writes_any_text(void **state)
{
    (void)state;
    assert_json(INVAR_RESULT("{a line, b text, c text}", "a\nb\xff", "a\nb", "a\nb\xff"),
                "{\"a\":\"a?b?\",\"b\":\"a\\nb\",\"c\":\"a\\\\x0ab\\\\xff\"}");
}

static void test_result__fails_for_missing_values(void **state)
{
    (void)state;
    assert_null(INVAR_RESULT("{a int, b text}", (json_t *)NULL, json_string("released")));
    assert_null(INVAR_RESULT("{a real}", INFINITY));
}

static void test_result__describes_members(void **state)
{
    (void)state;
    assert_json(invar_result_schema("{a int, b~ text? (may be null), c x|y?, * [real/text]}"),
                "{\"type\":\"object\",\"required\":[\"a\",\"c\"],\"properties\":{"
                "\"a\":{\"type\":\"integer\"},"
                "\"b\":{\"type\":[\"string\",\"null\"],\"description\":\"may be null\"},"
                "\"c\":{\"enum\":[\"x\",\"y\",null]}},"
                "\"additionalProperties\":{\"type\":\"array\","
                "\"items\":{\"type\":[\"number\",\"string\"]}}}");
    assert_json(invar_result_schema("[0xhex16; {a bool}?]"),
                "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"string\","
                "\"pattern\":\"^0x[0-9a-f]{16}$\"},{\"type\":[\"object\",\"null\"],"
                "\"required\":[\"a\"],\"properties\":{\"a\":{\"type\":\"boolean\"}}}]}}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_result__writes_members_in_order),
        cmocka_unit_test(test_result__writes_null_where_the_type_allows_it),
        cmocka_unit_test(test_result__writes_any_text),
        cmocka_unit_test(test_result__fails_for_missing_values),
        cmocka_unit_test(test_result__describes_members),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
