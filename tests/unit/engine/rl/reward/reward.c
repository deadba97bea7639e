/*
 * reward.c - tests of the built-in rewards with tables of responses, labels and expected rewards.
 *
 * Expected values of math, dapo and f1 are those of the graders that Miles uses. A trailing comment
 * "Miles:" gives the value of Miles in the cases in which this engine differs on purpose.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/reward/reward.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

typedef struct reward_case {
    const char *response;
    const char *label;
    double expected;
} reward_case;

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static double compute_reward(const char *type, const char *response, const char *label,
                             const char *metadata)
{
    invar_rl_sample sample = {.response = (char *)(uintptr_t)response,
                              .response_bytes = strlen(response),
                              .data.label = label,
                              .data.metadata = metadata};
    invar_reward reward;
    double value = -99;
    bool boxed;

    assert_ok(invar_reward_parse(&reward, &boxed, type));
    assert_ok(invar_reward_of(&value, reward, boxed, &sample));
    return value;
}

static void check_all(const char *type, const reward_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double reward = compute_reward(type, cases[i].response, cases[i].label, "{}");
        if (reward != cases[i].expected)
            fail_msg("%s: response %s, label %s: %.17g instead of %.17g", type, cases[i].response,
                     cases[i].label, reward, cases[i].expected);
    }
}

/* ---- math ------------------------------------------------------------------------------------ */

/* Puts each response into a \boxed{} before grading. */
static void check_math(const reward_case *cases, size_t count)
{
    char response[512];

    for (size_t i = 0; i < count; i++) {
        snprintf(response, sizeof response, "So \\boxed{1} or rather \\boxed{%s}.",
                 cases[i].response);
        check_all("math", &(reward_case){response, cases[i].label, cases[i].expected}, 1);
    }
}

static void test_rl_reward__math_as_text(void **state)
{
    static const reward_case cases[] = {
        {"42", "42", 1},
        {"41", "42", 0},
        {" 42 ", "42", 1},
        {"\\frac{1}{2}", "\\frac12", 1},
        {"\\dfrac{1}{2}", "1/2", 1},
        {"\\tfrac1{72}", "\\frac{1}{72}", 1},
        {"0.5", "\\frac{1}{2}", 1},
        {".5", "0.5", 1},
        {"\\sqrt3", "\\sqrt{3}", 1},
        {"2\\sqrt{3}", "2\\sqrt3", 1},
        {"\\left(1, 2\\right)", "(1,2)", 1},
        {"x=5", "5", 1},
        {"\\text{Monday}", "Monday", 1},
        {"\\text{(C)}", "(C)", 1},
        {"5\\text{ meters}", "5", 1},
        {"90^\\circ", "90", 1},
        {"90^{\\circ}", "90", 1},
        {"\\$5", "5", 1},
        {"50\\%", "50", 1},
        {"1\\!000", "1000", 1},
        {"\\frac{x+1}{2}", "\\frac{x + 1}{2}", 1},
        {"x^2+1", "x^{2}+1", 1},
        {"x^{2y}", "x^2y", 0}, // Miles: 1
        {"\\sqrt{3x}", "\\sqrt{3}x", 0},
        {"\\frac", "\\frac", 1},
        {"", "", 0},
    };

    (void)state;
    check_math(cases, COUNT(cases));
}

static void test_rl_reward__math_as_value(void **state)
{
    static const reward_case cases[] = {
        {"1,234", "1234", 1},
        {"1{,}234", "1234", 1},
        {"1,234,567", "1234567", 1},
        {"12,34", "1234", 0},
        {"42.0", "42", 1},
        {"42.", "42", 1},
        {"+7", "7", 1},
        {"0.25", "1/4", 1},
        {"\\frac{3}{12}", "\\frac{1}{4}", 0}, // fraction not reduced
        {"4/2", "2", 0},                      // an integer must be written as one
        {"7\\frac{3}{4}", "7.75", 1},
        {"7 3/4", "31/4", 1},
        {"-7\\frac{3}{4}", "-7.75", 1}, // Miles: 0
        {"-\\frac{1}{2}", "-0.5", 1},
        {"- 5", "-5", 1},
        {"3 million", "3*10^6", 1},
        {"12 cm", "12", 1},
        {"12\\text{ cm}^2", "12", 1},
        {"5 feet", "5 inches", 1}, // units are ignored
        {"(1, \\frac{1}{2})", "(1,0.5)", 1},
        {"(1,2]", "(1,2)", 0},
        {"[0,\\infty)", "[0, \\infty)", 1},
        {"(1,2,3)", "(1,2)", 0},
        {"(2,1)", "(1,2)", 0},
        {"1 and 2", "1,2", 1},
        {"Yes", "yes", 1},
        {"2^3", "8", 0},
        {"0.1+0.2", "0.3", 1}, // exact decimal arithmetic; Miles: 0
        {"x+1", "1+x", 0},     // no algebra; Miles: 1
        {"99999999999999999999/3", "33333333333333333333", 0},
        {"99999999999999999999", "99999999999999999999", 1},
    };

    (void)state;
    check_math(cases, COUNT(cases));
}

static void test_rl_reward__math_finds_the_box(void **state)
{
    static const reward_case cases[] = {
        {"The answer is 42", "42", 0},
        {"\\boxed{\\frac{1}{2}} is it", "\\frac12", 1},
        {"\\boxed{1} then \\boxed{2}", "2", 1},
        {"\\boxed{1} then \\boxed{2}", "1", 0},
        {"\\boxed{1} then \\boxed{2", "1", 0}, // the last one is not closed
        {"\\boxed 5", "5", 0},
        {"\\boxed", "5", 0},
        {"\\boxed{{{5}}}", "{{5}}", 1},
        {"\\boxed{5}", "\\boxed{5}", 1},
        {"\\boxed{5}", "so \\boxed{5}", 1},
        {"\\boxed{5}", "\\boxed{5", 0},
        {"\\boxed{5}", "", 0},
        {"", "5", 0},
    };
    char *deep = malloc(200001);

    (void)state;
    check_all("math", cases, COUNT(cases));
    check_all("boxed_math", cases, COUNT(cases));

    // answers above the length limit are wrong, not truncated
    assert_non_null(deep);
    memset(deep, '{', 200000);
    memcpy(deep, "\\boxed", 6);
    deep[200000] = '\0';
    assert_true(compute_reward("math", deep, deep + 7, "{}") == 0);
    memset(deep + 7, '7', 199993);
    deep[199999] = '}';
    assert_true(compute_reward("math", deep, "7", "{}") == 0);
    memset(deep, '(', 200000);
    memcpy(deep, "\\boxed{", 7);
    deep[2000] = '}';
    deep[2001] = '\0';
    assert_true(compute_reward("math", deep, "5", "{}") == 0);
    free(deep);
}

/* Only the text after #### in the last line that begins with it is the label. */
static void test_rl_reward__labels_of_gsm8k(void **state)
{
    static const char label[] = "48/2 = <<48/2=24>>24 clips in May.\n48+24 = 72 clips.\n#### 72";
    static const reward_case boxes[] = {
        {"\\boxed{72}", label, 1},
        {"\\boxed{24}", label, 0},
        {"\\boxed{1234}", "so many\n####1,234\n", 1},
        {"\\boxed{-5}", "#### -5", 1},
        {"\\boxed{5}", "#### 4\nno:\n#### 5", 1},
        {"\\boxed{5}", "it is #### 5", 0}, // not at the start of a line
        {"\\boxed{5}", "####", 0},
    };
    static const reward_case answers[] = {
        {"Answer: 72", label, 1}, {"Answer: 24", label, -1}, {"Answer: 1234", "a\n#### 1,234", 1}};

    (void)state;
    check_all("math", boxes, COUNT(boxes));
    check_all("dapo", answers, COUNT(answers));
    assert_true(compute_reward("exact", "72", label, "{}") == 0); // exact compares the full label
    assert_true(compute_reward("exact", label, label, "{}") == 1);
}

/* ---- dapo, f1 -------------------------------------------------------------------------------- */

static void test_rl_reward__dapo(void **state)
{
    static const reward_case cases[] = {
        {"Answer: 42", "42", 1},
        {"answer :  42  ", "42", 1},
        {"ANSWER:\n\n42", "42", 1},
        {"Answer: 41\nAnswer: 42", "42", 1},
        {"Answer: 42\nAnswer: 41", "42", -1},
        {"Answer: Answer: 42", "42", -1}, // a line has one answer
        {"Answer: $42$", "42", 1},
        {"Answer: $x = 42$", "42", 1},
        {"Answer: \\boxed{42}", "42", 1},
        {"Answer: \\text{42}", "42", 1},
        {"Answer: 1,234", "1234", 1},
        {"Answer: 42", "42.0", 1},
        {"Answer: 42.0", "42", -1},
        {"Answer: 42 km", "42", 1},
        {"Answer: \\frac12", "\\frac{1}{2}", 1},
        {"Answer: \\sqrt3", "\\sqrt{3}", 1},
        {"Answer:", "42", -1},
        {"Answer: \n", "42", -1},
        {"42", "42", -1},
        {"", "", -1},
        {"Answer: -3", "-3", 1},
        {"Answer: 5", "5e0", 1},
        {"Answer: 1e400", "1e400", 1}, // not finite: compared as text
    };
    char padded[400];

    (void)state;
    check_all("dapo", cases, COUNT(cases));
    // only the last 300 characters are searched
    memset(padded, ' ', sizeof padded);
    memcpy(padded, "Answer: 42\n", 11);
    padded[300] = '\0';
    assert_true(compute_reward("dapo", padded, "42", "{}") == 1);
    padded[300] = '.';
    padded[301] = '\0';
    assert_true(compute_reward("dapo", padded, "42", "{}") == -1);
}

static void test_rl_reward__f1(void **state)
{
    static const reward_case cases[] = {
        {"Paris", "paris", 1},
        {"The city of Paris.", "Paris", 2 * (1.0 / 3) * 1 / (1.0 / 3 + 1)},
        {"the cat sat", "a cat sat", 1},
        {"cat cat dog", "cat dog dog", 2 * (2.0 / 3) * (2.0 / 3) / (2.0 / 3 + 2.0 / 3)},
        {"yes", "yes", 1},
        {"yes it is", "yes", 0},
        {"no", "yes it is", 0},
        {"", "x", 0},
        {"x", "", 0},
        {"the", "the", 0},
        {"on-top", "ontop", 1},
        {"\xC3\xA9t\xC3\xA9", "\xC3\xA9t\xC3\xA9", 1},
    };

    (void)state;
    check_all("f1", cases, COUNT(cases));
    assert_true(compute_reward("boxed_f1", "I say \\boxed{the cat} now", "cat", "{}") == 1);
    assert_true(compute_reward("boxed_f1", "I say the cat", "cat", "{}") == 0);
}

/* ---- gpqa ------------------------------------------------------------------------------------ */

static void test_rl_reward__gpqa_letters(void **state)
{
    static const reward_case cases[] = {
        {"The answer is B", "B", 1},
        {"The answer is B.", "C", 0},
        {"Answer: **C**", "C", 1},
        {"answer is (d)", "D", 1},
        {"The answer is \\boxed{\\text{B}}", "B", 1},
        {"A is wrong. Option B looks fine. The answer is C, not option D.", "C", 1},
        {"Option A fails, so option D", "D", 1},
        {"B is the correct one", "B", 1},
        {"I think it must be C", "C", 1},
        {"<think>The answer is A</think> The answer is B", "B", 1},
        {"<think>The answer is A</think> no idea", "A", 0},
        {"The answer is a matter of taste: C", "C", 1},
        {"The answer is 5", "I", 0}, // Miles: 1, the i of "is"
        {"Answered by choice", "B", 0},
        {"nothing here", "A", 0},
        {"", "A", 0},
        {"The answer is Z", "Z", 1}, // not an option: the response is searched for the label's text
    };

    (void)state;
    check_all("gpqa", cases, COUNT(cases));
}

static void test_rl_reward__gpqa_metadata(void **state)
{
    static const char four[] = "{\"choices\":[\"red wine\",\"beer\",\"milk\",\"tea\"]}";

    (void)state;
    assert_true(compute_reward("gpqa", "answer: C", "Milk!", four) == 1);
    assert_true(compute_reward("gpqa", "answer: B", "milk", four) == 0);
    assert_true(compute_reward("gpqa", "I would drink red  wine", "A", four) == 1);
    assert_true(compute_reward("gpqa", "I would drink redwine", "A", four) == 0);
    assert_true(compute_reward("gpqa", "answer: E", "A", four) == 0); // E is not an option
    assert_true(compute_reward("gpqa", "answer: Y", "x", "{\"valid_letters\":[\"X\",\"Y\"]}") == 0);
    assert_true(compute_reward("gpqa", "answer: Y", "y", "{\"valid_letters\":\"xy\"}") == 1);
    assert_true(compute_reward("gpqa", "answer: B", "", "{\"correct_letter\":\" b \"}") == 1);
    assert_true(compute_reward("gpqa", "it is milk", "", "{\"correct_answer\":\"Milk\"}") == 1);
    assert_true(
        compute_reward("gpqa", "answer: B", "",
                       "{\"choices\":{\"A\":\"x\",\"B\":\"y\"},\"correct_letter\":\"B\"}") == 1);
}

/* ---- other rewards --------------------------------------------------------------------------- */

static void test_rl_reward__exact_and_overlap(void **state)
{
    static const reward_case exact[] = {
        {" 42\n", "42", 1}, {"42", "4 2", 0}, {"", "", 1}, {"", "x", 0}, {"X", "x", 0},
    };
    static const reward_case overlap[] = {
        {"abcd", "abcd", 1},  {"abxd", "abcd", 0.75},
        {"ab", "abcd", 0.5},  {"abcdef", "abcd", 1},
        {"xabcd", "abcd", 0}, {"", "abcd", 0},
        {"", "", 1},          {"\xC3\xA9z", "\xC3\xA9y", 0.5},
    };

    (void)state;
    check_all("exact", exact, COUNT(exact));
    check_all("overlap", overlap, COUNT(overlap));
}

/* Expected: Python's sha256((str(tokens) + response).encode()).digest()[0] % 2. */
static void test_rl_reward__deterministic_random(void **state)
{
    static const int expected[] = {1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0,
                                   1, 0, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0};
    int32_t tokens[3];
    invar_rl_sample sample = {.tokens = tokens, .data.label = "", .data.metadata = "{}"};
    double value;

    (void)state;
    for (int32_t i = 0; i < (int32_t)COUNT(expected); i++) {
        tokens[0] = i;
        tokens[1] = 151643 + i;
        tokens[2] = -i;
        sample.n_tokens = 3;
        sample.response = (char *)(uintptr_t) "caf\xC3\xA9\n";
        sample.response_bytes = 6;
        assert_ok(invar_reward_of(&value, INVAR_REWARD_DETERMINISTIC_RANDOM, false, &sample));
        assert_true(value == expected[i]);
    }
    sample.n_tokens = 0;
    sample.response = NULL;
    sample.response_bytes = 0;
    assert_ok(invar_reward_of(&value, INVAR_REWARD_DETERMINISTIC_RANDOM, false, &sample));
    assert_true(value == 1);
}

static void test_rl_reward__names(void **state)
{
    invar_reward reward;
    bool boxed;

    (void)state;
    for (int i = 0; i < INVAR_REWARD_COUNT; i++) {
        char name[64];
        snprintf(name, sizeof name, "boxed_%s", invar_reward_choices.words[i]);
        assert_ok(invar_reward_parse(&reward, &boxed, name));
        assert_true(boxed && reward == (invar_reward)i);
        assert_ok(invar_reward_parse(&reward, &boxed, name + 6));
        assert_true(!boxed && reward == (invar_reward)i);
    }
    assert_true(invar_reward_is_external(INVAR_REWARD_REMOTE_RM));
    assert_false(invar_reward_is_external(INVAR_REWARD_MATH));
    assert_fails(invar_reward_parse(&reward, &boxed, "maths"), INVAR_E_INVALID, "maths");
    assert_fails(invar_reward_parse(&reward, &boxed, "boxed_"), INVAR_E_INVALID,
                 "no reward; expected none, math");
    assert_fails(invar_reward_parse(&reward, &boxed, ""), INVAR_E_INVALID,
                 "no reward; expected none, math");
}

static void test_rl_reward__metadata_goes_first(void **state)
{
    invar_rl_sample sample = {.response = (char *)(uintptr_t) "Answer: 42",
                              .response_bytes = 10,
                              .data.label = "42",
                              .data.metadata = "{\"rm_type\":\"dapo\"}"};
    double value;

    (void)state;
    assert_true(compute_reward("exact", "Answer: 42", "42", "{\"rm_type\":\"dapo\"}") == 1);
    assert_true(compute_reward("exact", "Answer: 42", "42", "{\"x\":\"rm_type\"}") == 0);
    assert_true(compute_reward("exact", "42", "42", "{\"rm_type\":\"\"}") == 1);
    assert_true(compute_reward("exact", "x \\boxed{42}", "42", "{\"rm_type\":\"boxed_exact\"}") ==
                1);
    sample.data.metadata = "{\"rm_type\":\"nope\"}";
    assert_fails(invar_reward_of(&value, INVAR_REWARD_EXACT, false, &sample), INVAR_E_INVALID,
                 "nope");
    sample.data.metadata = "{\"rm_type\":";
    assert_int_not_equal(invar_reward_of(&value, INVAR_REWARD_EXACT, false, &sample), INVAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rl_reward__math_as_text),
        cmocka_unit_test(test_rl_reward__math_as_value),
        cmocka_unit_test(test_rl_reward__math_finds_the_box),
        cmocka_unit_test(test_rl_reward__labels_of_gsm8k),
        cmocka_unit_test(test_rl_reward__dapo),
        cmocka_unit_test(test_rl_reward__f1),
        cmocka_unit_test(test_rl_reward__gpqa_letters),
        cmocka_unit_test(test_rl_reward__gpqa_metadata),
        cmocka_unit_test(test_rl_reward__exact_and_overlap),
        cmocka_unit_test(test_rl_reward__deterministic_random),
        cmocka_unit_test(test_rl_reward__names),
        cmocka_unit_test(test_rl_reward__metadata_goes_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
