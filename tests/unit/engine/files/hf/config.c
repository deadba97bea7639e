/*
 * config.c - tests that config.json is copied with another dtype and without any other change.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/files/hf/hf.h"
#include "tests/support.h"

static void test_engine_hf_config__changes_the_type_alone(void **state)
{
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"{\"dtype\":\"float32\"}", "{\"dtype\":\"bfloat16\"}"},
        {"{\"a\": 1e-06, \"torch_dtype\" : null , \"b\":{\"dtype\":\"x\"}}\n",
         "{\"a\": 1e-06, \"torch_dtype\" : \"bfloat16\" , \"b\":{\"dtype\":\"x\"}}\n"},
        {" {\n  \"dtype\": \"auto\",\n  \"torch_dtype\": \"float16\"\n}",
         " {\n  \"dtype\": \"bfloat16\",\n  \"torch_dtype\": \"bfloat16\"\n}"},
        {"{\n  \"pad_token_id\": [1, \"}\\\"\"],\n  \"x\": \"dtype\"\n}\n",
         "{\n  \"torch_dtype\": \"bfloat16\",\n  \"pad_token_id\": [1, \"}\\\"\"],\n"
         "  \"x\": \"dtype\"\n}\n"},
        {"{\"x\\\\\":true,\"\\u00e9\":{}}",
         "{\"torch_dtype\": \"bfloat16\",\"x\\\\\":true,\"\\u00e9\":{}}"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes, length = strlen(cases[i].from);
        char *text;
        assert_ok(invar_hf_config(&text, &bytes, cases[i].from, length, INVAR_DTYPE_BF16));
        assert_string_equal(text, cases[i].to);
        assert_int_equal(bytes, strlen(text));
        invar_free(text);
    }
}

static void test_engine_hf_config__keeps_any_number_of_blanks(void **state)
{
    enum { BLANKS = 100000 };
    static char from[BLANKS + 16], to[2 * BLANKS + 64], blanks[BLANKS + 1];
    size_t bytes;
    char *text;

    (void)state;
    memset(blanks, '\n', BLANKS);
    (void)snprintf(from, sizeof from, "{%s\"a\":1}", blanks);
    (void)snprintf(to, sizeof to, "{%s\"torch_dtype\": \"float32\",%s\"a\":1}", blanks, blanks);
    assert_ok(invar_hf_config(&text, &bytes, from, strlen(from), INVAR_DTYPE_F32));
    assert_string_equal(text, to);
    assert_int_equal(bytes, strlen(to));
    invar_free(text);
}

static void test_engine_hf_config__refuses_what_it_cannot_keep(void **state)
{
    static const struct {
        const char *text, *message;
        invar_status code;
    } cases[] = {{"[1]", "not a JSON object", INVAR_E_INVALID},
                 {"{}", "not a JSON object", INVAR_E_INVALID},
                 {"{\"dtype\":1,}", "config.json", INVAR_E_INVALID},
                 {"{\"\\u0064type\":\"float32\"}", "spelt with escapes", INVAR_E_UNSUPPORTED}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes;
        char *text;
        assert_fails(
            invar_hf_config(&text, &bytes, cases[i].text, strlen(cases[i].text), INVAR_DTYPE_F32),
            cases[i].code, cases[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_hf_config__changes_the_type_alone),
        cmocka_unit_test(test_engine_hf_config__keeps_any_number_of_blanks),
        cmocka_unit_test(test_engine_hf_config__refuses_what_it_cannot_keep),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
