/*
 * ifeval.c - tests of the reward ifeval: a response that obeys and one that breaks each rule.
 *
 * Further tests: the fraction of obeyed rules, rejected metadata, and every failing allocation of
 * jansson.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rl/reward/reward.h"
#include "tests/support.h"

#define AT_LEAST "\"relation\":\"at least\""
#define LESS "\"relation\":\"less than\""

static invar_status compute_ifeval(invar_rl_sample *out, const char *response, const char *metadata)
{
    *out = (invar_rl_sample){.index = 7,
                             .response = (char *)(uintptr_t)response,
                             .response_bytes = strlen(response),
                             .data.label = "",
                             .data.metadata = metadata};
    return invar_reward_compute(out, INVAR_REWARD_IFEVAL, false, NULL);
}

static void check_rule(const char *name, const char *arguments, const char *response, bool expected)
{
    invar_rl_sample s;
    char metadata[512];

    (void)snprintf(metadata, sizeof metadata,
                   "{\"instruction_id_list\":[\"%s\"],\"kwargs\":[{%s}]}", name, arguments);
    assert_ok(compute_ifeval(&s, response, metadata));
    if (s.reward != (expected ? 1.0 : 0.0))
        fail_msg("%s: %s is %g", name, response, s.reward);
    invar_reward_parts_release(&s.parts);
}

static void test_ifeval__rules(void **state)
{
    static const struct {
        const char *name, *arguments, *good, *bad;
    } cases[] = {
        {"keywords:existence", "\"keywords\":[\"Red\",\"wine\"]", "WINE is red", "red"},
        {"keywords:forbidden_words", "\"forbidden_words\":[\"red\"]", "redder", "It is Red."},
        {"keywords:frequency", "\"keyword\":\"ab\",\"frequency\":2," AT_LEAST, "abAB", "xab"},
        {"keywords:frequency", "\"keyword\":\"aa\",\"frequency\":2," LESS, "aaa", "aaaa"},
        {"keywords:letter_frequency",
         "\"letter\":\"q\",\"let_frequency\":2,\"let_relation\":\"at least\"", "Qq", "q"},
        {"length_constraints:number_words", "\"num_words\":3," AT_LEAST, "one, two-3", "one two"},
        {"length_constraints:number_words", "\"num_words\":1," LESS, " ...", "a"},
        {"length_constraints:number_sentences", "\"num_sentences\":3," AT_LEAST, "One. Two?! And",
         "One... Two."},
        {"length_constraints:number_paragraphs", "\"num_paragraphs\":2", "a\n***\nb\n", "a\n***\n"},
        {"length_constraints:number_paragraphs", "\"num_paragraphs\":2", "***\na\nb\n***\nc\n***",
         "a\n***\n\n***\nb"},
        {"detectable_format:number_bullet_lists", "\"num_bullets\":2", "* a\n  - b\n**c**",
         "* a\n* b\n* c"},
        {"detectable_format:number_highlighted_sections", "\"num_highlights\":2", "*a* and **b**",
         "*a* and * *"},
        {"detectable_format:title", "", "<<A title>>\ntext", "<< >> <<a\nb>>"},
        {"detectable_format:json_format", "", "```json\n{\"a\":[1]}\n```", "{\"a\":}"},
        {"detectable_format:json_format", "", " [1,2] ", "so: [1,2]"},
        {"detectable_content:number_placeholders", "\"num_placeholders\":2", "[a] [b c]", "[a] []"},
        {"detectable_content:postscript", "\"postscript_marker\":\"P.S.\"", "x\np.s. y", "PS y"},
        {"change_case:english_capital", "", "A B 3!", "A b"},
        {"change_case:english_lowercase", "", "a b 3!", "123"},
        {"punctuation:no_comma", "", "a; b", "a, b"},
        {"startend:quotation", "", " \"a\"\n", "\""},
        {"startend:end_checker", "\"end_phrase\":\"Is that all?\"", "so: is THAT all?\" ",
         "is that all"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_rule(cases[i].name, cases[i].arguments, cases[i].good, true);
        check_rule(cases[i].name, cases[i].arguments, cases[i].bad, false);
    }
}

static void test_ifeval__share_and_parts(void **state)
{
    static const char metadata[] =
        "{\"instruction_id_list\":[\"punctuation:no_comma\",\"startend:quotation\","
        "\"change_case:english_lowercase\",\"detectable_format:title\"],"
        "\"kwargs\":[{},null,{},{\"num_words\":null}]}";
    invar_rl_sample s;

    (void)state;
    assert_ok(compute_ifeval(&s, "\"a <<b>>\"", metadata));
    assert_true(s.reward == 1.0);
    assert_true(invar_reward_parts_find(&s.parts, "strict")->value == 1.0);
    assert_ok(invar_reward_select_part(&s, "strict"));
    invar_reward_parts_release(&s.parts);
    assert_ok(compute_ifeval(&s, "a, <<b>>", metadata));
    assert_true(s.reward == 0.5);
    assert_true(invar_reward_parts_find(&s.parts, "strict")->value == 0.0);
    assert_true(invar_reward_parts_find(&s.parts, "loose")->value == 0.5);
    invar_reward_parts_release(&s.parts);
}

static void test_ifeval__wrong_metadata(void **state)
{
    static const struct {
        const char *metadata, *text;
    } cases[] = {
        {"{}", "metadata of sample 7: ifeval needs the lists"},
        {"{\"instruction_id_list\":[\"punctuation:no_comma\"],\"kwargs\":[]}", "equally long"},
        {"{\"instruction_id_list\":[\"language:response_language\"]}", "does not know the rule"},
        {"{\"instruction_id_list\":[7]}", "does not know the rule"},
        {"{\"instruction_id_list\":[\"keywords:existence\"]}", "needs \"keywords\", a list"},
        {"{\"instruction_id_list\":[\"keywords:existence\"],\"kwargs\":[{\"keywords\":[\"\"]}]}",
         "needs \"keywords\", a list"},
        {"{\"instruction_id_list\":[\"length_constraints:number_words\"],"
         "\"kwargs\":[{\"num_words\":-1}]}",
         "needs \"num_words\", a number from 0"},
        {"{\"instruction_id_list\":[\"length_constraints:number_words\"],"
         "\"kwargs\":[{\"num_words\":1,\"relation\":\"about\"}]}",
         "needs \"relation\", \"at least\" or"},
        {"{\"instruction_id_list\":[\"startend:end_checker\"],\"kwargs\":[null]}",
         "needs \"end_phrase\", a text"},
    };
    invar_rl_sample s;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_fails(compute_ifeval(&s, "a", cases[i].metadata), INVAR_E_INVALID, cases[i].text);
        invar_reward_parts_release(&s.parts);
    }
}

static int json_calls, json_fail_at; /* the allocation of jansson that fails, from 1; 0 for none */

static void *alloc_or_fail(size_t bytes)
{
    return ++json_calls == json_fail_at ? NULL : malloc(bytes);
}

/* Out of memory while a response is parsed is an error, not a response that is not JSON. */
static void test_ifeval__lack_of_memory(void **state)
{
    const char *metadata =
        "{\"instruction_id_list\":[\"detectable_format:json_format\"],\"kwargs\":[{}]}";
    invar_status status = INVAR_E_NOMEM;
    invar_rl_sample s;
    int failures = -1;

    (void)state;
    for (int n = 1; status == INVAR_E_NOMEM; n++, failures++) {
        json_calls = 0;
        json_fail_at = n;
        status = compute_ifeval(&s, "{\"a\": [1, {\"b\": \"c\"}]}", metadata);
        json_fail_at = 0;
        if (status != INVAR_OK)
            assert_int_equal(invar_error_last()->status, INVAR_E_NOMEM);
        invar_error_clear();
    }
    assert_int_equal(status, INVAR_OK);
    assert_true(s.reward == 1.0); // a 0 would be the reward of text that is not JSON
    invar_reward_parts_release(&s.parts);
    assert_true(failures > 10); // allocations for the metadata and for the response
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ifeval__rules),
        cmocka_unit_test(test_ifeval__share_and_parts),
        cmocka_unit_test(test_ifeval__wrong_metadata),
        cmocka_unit_test(test_ifeval__lack_of_memory),
    };

    json_set_alloc_funcs(alloc_or_fail, free); // must precede the first parse
    return cmocka_run_group_tests_name("ifeval", tests, NULL, NULL);
}
