/*
 * remote_teacher.c - tests of the parser for responses of a teacher's HTTP server.
 *
 * Log-probs that a server prints with the shortest digits must be read back bit by bit. A response
 * for other tokens, from another model, or with a number that is not a log-prob is rejected.
 * Control: harmless deviations of other servers are accepted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/server/remote_teacher.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json/text.h"
#include "tests/support.h"

enum { COUNT = 5, FIRST = 2 };

/* Texts of the five token ids; the third is not UTF-8, the fourth is not a word. */
static const char *const texts[] = {"a", " bc", "\xff", "<|end|>", "7"};

static const char *text_of(size_t *bytes_out, const void *payload, int32_t token)
{
    (void)payload;
    *bytes_out = strlen(texts[token]);
    return texts[token];
}

static const invar_token_text_fn words = {text_of, NULL, COUNT};
static const int32_t tokens[COUNT] = {0, 1, 2, 3, 4};

/*
 * Parses a response with the given JSON lists of token texts and log-probs. `rest` is JSON appended
 * to the object; `print` is the fingerprint of earlier responses, NULL if there is none.
 */
static invar_status read_response(float *out, const char *tokens_text, const char *numbers,
                                  const char *rest, double temperature, const char *print)
{
    const invar_plugin_sample asked = {
        .tokens = tokens, .n_tokens = COUNT, .prompt_tokens = FIRST, .index = 12};
    const invar_logprob_expectation expected = {"opd-teacher-url", temperature, &words, print};
    char line[4096], fingerprint[INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE];

    (void)snprintf(line, sizeof line,
                   "{\"choices\":[{\"logprobs\":{\"tokens\":[%s],\"token_logprobs\":[%s]}}]%s}",
                   tokens_text, numbers, rest);
    return invar_remote_teacher_read(out, fingerprint, &expected, &asked, line, strlen(line));
}

/* Texts of all tokens as a server prints them. */
#define TOKENS "\"a\",\" bc\",\"?\",\"\",\"7\""

/* Floats over the whole exponent range are read back exactly. */
static void test_teacher__bits(void **state)
{
    float sent[COUNT - FIRST], got[COUNT - FIRST];

    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        invar_json_text text = {0};
        char numbers[512];
        for (int k = 0; k < COUNT - FIRST; k++) {
            uint32_t bits = 0x80000000u | (i * 3u + (uint32_t)k) * 35729u % 0x7f800000u;
            memcpy(&sent[k], &bits, sizeof bits); // finite and not above 0
            invar_json_text_f64(&text, (double)sent[k]);
        }
        assert_ok(text.status);
        (void)snprintf(numbers, sizeof numbers, "null,-1,%.*s", (int)text.bytes, text.data);
        invar_json_text_release(&text);
        assert_ok(read_response(got, TOKENS, numbers, "", 1, NULL));
        assert_memory_equal(got, sent, sizeof got);
    }
}

static void test_teacher__accepts_harmless_deviations(void **state)
{
    float out[COUNT - FIRST];

    (void)state;
    // integers, a log-prob rounded to above 0, a number instead of null for the first token
    assert_ok(read_response(out, TOKENS, "0,-2,-3,1e-7,-0.0", "", 1, NULL));
    assert_true(out[0] == -3.0f && out[1] == 1e-7f && out[2] == 0.0f && signbit(out[2]));
    // leading blanks are not compared, nor are tokens that are not words
    assert_ok(
        read_response(out, "\" a\",\"bc\",\"\\u0000\",\"x\",\"7\"", "null,-1,-1,-1,-1", "", 1, ""));
    assert_ok(read_response(out, TOKENS, "null,-1,-1,-1,-1", ",\"invar\":{}", 0.5, NULL));
    assert_ok(
        read_response(out, TOKENS, "null,-1,-1,-1,-1", ",\"system_fingerprint\":\"m\"", 1, "m"));
}

static void test_teacher__rejects(void **state)
{
    static const struct {
        const char *tokens, *numbers, *rest;
        double temperature;
        const char *print, *text;
    } cases[] = {
        {TOKENS, "null,-1,-1,-1", "", 1, NULL,
         "opd-teacher-url: the answer for sample 12: \"token_logprobs\" has 4 values, expected 5"},
        {TOKENS, "null,-1,-1,-1,-1,-1", "", 1, NULL, "has 6 values, expected 5"},
        {"\"a\"", "null,-1,-1,-1,-1", "", 1, NULL, "\"tokens\" has 1 values, expected 5"},
        {TOKENS, "null,-1,-1,null,-1", "", 1, NULL, "for token 3 is no log-probability"},
        {TOKENS, "null,-1,-1,\"-1\",-1", "", 1, NULL, "is no log-probability"},
        {TOKENS, "null,-1,-1e39,-1,-1", "", 1, NULL, "is no log-probability"},
        {TOKENS, "null,-1,-1,-1,0.5", "", 1, NULL, "is no log-probability"},
        {TOKENS, "null,-1,-1,-1,NaN", "", 1, NULL, "is not JSON"},
        {"\"a\",\" bd\",\"?\",\"\",\"7\"", "null,-1,-1,-1,-1", "", 1, NULL,
         "token 1 is \" bd\" there and \" bc\" here"},
        {"\"a\",\" bc\",\"?\",\"\",\"\"", "null,-1,-1,-1,-1", "", 1, NULL, "token 4 is \"\" there"},
        {"\"a\",1,\"?\",\"\",\"7\"", "null,-1,-1,-1,-1", "", 1, NULL, "has no text at 1"},
        {TOKENS, "null,-1,-1,-1,-1", "", 0.5, NULL, "rollout-temperature = 0.5: serve the teacher"},
        {TOKENS, "null,-1,-1,-1,-1", ",\"system_fingerprint\":\"m\"", 1, "n",
         "it comes from the model \"m\", those before from \"n\""},
        {TOKENS, "null,-1,-1,-1,-1", "", 1, "n", "from the model \"\""},
    };
    float out[COUNT - FIRST];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(read_response(out, cases[i].tokens, cases[i].numbers, cases[i].rest,
                                   cases[i].temperature, cases[i].print),
                     strstr(cases[i].text, "from the model") ? INVAR_E_STATE : INVAR_E_CORRUPT,
                     cases[i].text);
}

static void test_teacher__other_forms(void **state)
{
    static const char *const responses[] = {"",
                                            "[]",
                                            "7",
                                            "{}",
                                            "{\"choices\":{}}",
                                            "{\"choices\":[]}",
                                            "{\"choices\":[7]}",
                                            "{\"choices\":[{\"logprobs\":null}]}",
                                            "{\"choices\":[{\"logprobs\":[1]}]}",
                                            "{\"choices\":[{},{}]}",
                                            "{\"error\":{\"message\":\"no\"}}"};
    const invar_plugin_sample asked = {
        .tokens = tokens, .n_tokens = COUNT, .prompt_tokens = FIRST, .index = -1};
    const invar_logprob_expectation expected = {"opd-teacher-url", 1, &words, NULL};
    char print[INVAR_REMOTE_TEACHER_FINGERPRINT_SIZE];
    float out[COUNT - FIRST];

    (void)state;
    for (size_t i = 0; i < sizeof responses / sizeof *responses; i++)
        assert_fails(invar_remote_teacher_read(out, print, &expected, &asked, responses[i],
                                               strlen(responses[i])),
                     INVAR_E_CORRUPT, "opd-teacher-url: the first answer");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_teacher__bits),
        cmocka_unit_test(test_teacher__accepts_harmless_deviations),
        cmocka_unit_test(test_teacher__rejects),
        cmocka_unit_test(test_teacher__other_forms),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
