/*
 * tool_calls.c - tests of the parser of tool calls in a response.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/tool_calls.h"

#include <string.h>

#include "tests/support.h"

static void check_calls(const char *text, const char *before, const char *list)
{
    json_t *expected = list ? json_loads(list, 0, NULL) : NULL;
    invar_tool_calls calls;

    assert_ok(invar_tool_calls_read(&calls, text, strlen(text)));
    if (calls.text_bytes != strlen(before) || !calls.list != !list ||
        (list && !json_equal(calls.list, expected)))
        fail_msg("%s", text);
    invar_tool_calls_release(&calls);
    json_decref(expected);
}

static void test_tool_calls__are_found(void **state)
{
    (void)state;
    check_calls("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1}}</tool_call>", "",
                "[{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}]");
    check_calls(
        "I will.\n\n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>\n<tool_call> "
        "{\"arguments\":\"x\",\"name\":\"g\"} </tool_call>\n",
        "I will.", "[{\"name\":\"f\",\"arguments\":\"{}\"},{\"name\":\"g\",\"arguments\":\"x\"}]");
}

/* Malformed calls, and calls with text after them, stay text. */
static void test_tool_calls__malformed_calls_stay_text(void **state)
{
    static const char *const texts[] = {
        "",
        "no call",
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}",
        "<tool_call>{\"name\":\"f\"}</tool_call>",
        "<tool_call>{\"name\":7,\"arguments\":{}}</tool_call>",
        "<tool_call>[1]</tool_call>",
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> and more",
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call><tool_call>x</tool_call>",
        "<tool_call>{\"name\":\"f\",\"name\":\"g\",\"arguments\":{}}</tool_call>",
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_calls(texts[i], texts[i], NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tool_calls__are_found),
        cmocka_unit_test(test_tool_calls__malformed_calls_stay_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
