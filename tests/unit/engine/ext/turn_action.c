/*
 * turn_action.c - tests of plug-ins that generate turns: valid and invalid replies, two examples.
 *
 * Actions of shared objects become the same JSON line that a program sends, and must be read back
 * unchanged. The examples calculator.so and guess.py compute the expected texts. A stored reply
 * must answer without the program. Control: it must not answer a request that differs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/turn_action.h"

#include <stdio.h>
#include <string.h>

#include "engine/ext/plugin.h"
#include "engine/ext/plugin_call.h"
#include "tests/support.h"

#define CALCULATOR INVAR_TEST_WORK "/../plugins/calculator.so"
#define PROGRAM "python3 '" INVAR_TEST_DATA "/../engine/ext/example/guess.py'"

/* ---- replies --------------------------------------------------------------------------------- */

static invar_status read_reply(invar_turn_action *next, size_t count, const char *turns)
{
    const invar_plugin_call call = {
        .plugin = "leader", .kind = INVAR_PLUGIN_KIND_GENERATE, .count = count, .next = next};
    char line[4096];

    memset(next, 0, count * sizeof *next);
    (void)snprintf(line, sizeof line, "{\"id\":0,\"turns\":%s}", turns);
    return invar_plugin_call_read(&call, line, strlen(line), true);
}

static void test_ext_turn__valid_replies(void **state)
{
    invar_turn_action next[5];

    (void)state;
    assert_ok(read_reply(next, 5,
                         "[{\"insert\":\"a\\u00e4\",\"max_tokens\":7,\"stop\":[\"</a>\",\"b\"]},"
                         "{\"insert\":[3,0,2147483647]},"
                         "{\"end\":true},{\"end\":true,\"reward\":0.5,\"note\":\"well\"},"
                         "{\"end\":true,\"reward\":{\"right\":1,\"form\":true}}]"));
    assert_true(!next[0].end && next[0].text_bytes == 3 && next[0].max_tokens == 7);
    assert_true(next[0].stop->count == 2 && !next[1].stop);
    assert_string_equal(next[0].stop->strings[0], "</a>");
    assert_string_equal(next[0].stop->strings[1], "b");
    assert_memory_equal(next[0].text, "a\xc3\xa4", 4);
    assert_true(!next[1].end && !next[1].text && next[1].n_tokens == 3);
    assert_int_equal(next[1].tokens[2], 2147483647);
    assert_true(next[2].end && !next[2].rewarded);
    assert_true(next[3].end && next[3].rewarded && next[3].reward == 0.5);
    assert_true(next[4].rewarded && next[4].reward == 2.0 && next[4].parts.count == 2);
    for (int i = 0; i < 5; i++)
        invar_turn_action_release(&next[i]);
}

static void test_ext_turn__wrong_replies(void **state)
{
    static const struct {
        const char *turns, *error;
    } cases[] = {
        {"7", "the reply has no list \"turns\""},
        {"[]", "\"turns\" has 0 values, expected 1"},
        {"[{\"end\":true},{\"end\":true}]", "\"turns\" has 2 values, expected 1"},
        {"[{\"insert\":\"a\\u0000b\"}]", "has the character NUL"},
        {"[3]", "a turn needs \"insert\""},
        {"[{}]", "a turn needs \"insert\""},
        {"[{\"end\":false}]", "a turn needs \"insert\""},
        {"[{\"end\":1}]", "\"end\" is neither true nor false"},
        {"[{\"insert\":\"a\",\"end\":\"yes\"}]", "\"end\" is neither true nor false"},
        {"[{\"insert\":\"a\",\"reward\":1}]", "a \"reward\" without \"end\": true"},
        {"[{\"end\":true,\"insert\":\"a\"}]", "and not both"},
        {"[{\"insert\":7}]", "neither a text nor a list of token ids"},
        {"[{\"insert\":null}]", "neither a text nor a list of token ids"},
        {"[{\"insert\":[1,-1]}]", "\"insert\" has no token id at 1"},
        {"[{\"insert\":[2147483648]}]", "\"insert\" has no token id at 0"},
        {"[{\"insert\":[1.5]}]", "\"insert\" has no token id at 0"},
        {"[{\"insert\":\"a\",\"max_tokens\":0}]", "max_tokens"},
        {"[{\"insert\":\"a\",\"max_tokens\":16777217}]", "max_tokens"},
        {"[{\"insert\":\"a\",\"max_tokens\":\"9\"}]", "max_tokens"},
        {"[{\"insert\":\"a\",\"stop\":\"b\"}]", "\"stop\" is no list of at most 64 texts"},
        {"[{\"insert\":\"a\",\"stop\":[\"b\",\"\"]}]", "\"stop\" has no text at 1"},
        {"[{\"insert\":\"a\",\"stop\":[7]}]", "\"stop\" has no text at 0"},
        {"[{\"end\":true,\"reward\":\"1\"}]", "a reward is neither a number nor an object"},
        {"[{\"end\":true,\"reward\":null}]", "a reward is neither a number nor an object"},
        {"[{\"end\":true,\"reward\":{}}]", "a reward has no named part"},
        {"[{\"end\":true,\"reward\":{\"a\":1e308,\"b\":1e308}}]", "a reward is not finite"},
    };
    invar_turn_action next;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_fails(read_reply(&next, 1, cases[i].turns), INVAR_E_CORRUPT, cases[i].error);
        invar_assert_message("plug-in leader: ", __FILE__, __LINE__);
        invar_turn_action_release(&next);
    }
}

/* The line that is written for a shared object is read back as the actions that it returned. */
static void test_ext_turn__plain_answers_become_a_line(void **state)
{
    static const int32_t tokens[] = {4, 5};
    static const double parts[] = {0.1, -3.0};
    static const char *const names[] = {"right", "form", NULL};
    static const char *const stop[] = {"a", "\"", NULL};
    const invar_plugin_next input[] = {
        {.text = "\"x\"\n", .text_bytes = 4, .max_tokens = 3, .stop = stop},
        {.tokens = tokens, .n_tokens = 2},
        {.max_tokens = 0}, // inserts nothing and continues
        {.end = 1},
        {.end = 1, .rewarded = 1, .reward = 0.1},
        {.end = 1, .rewarded = 1, .reward = 7.0, .parts = parts},
    };
    enum { COUNT = sizeof input / sizeof *input };
    invar_turn_action next[COUNT];
    invar_json_text line = {0};

    (void)state;
    memset(next, 0, sizeof next);
    invar_turn_actions_write(&line, input, COUNT, names);
    assert_ok(line.status);
    assert_ok(invar_plugin_generate_read("leader", line.data, line.bytes, COUNT, next));
    assert_string_equal(next[0].text, "\"x\"\n");
    assert_true(next[0].stop->count == 2 && strcmp(next[0].stop->strings[1], "\"") == 0);
    assert_true(next[0].max_tokens == 3 && next[1].n_tokens == 2 && next[1].tokens[1] == 5);
    assert_true(!next[2].end && next[2].text_bytes == 0 && !next[2].tokens);
    assert_true(next[3].end && !next[3].rewarded);
    assert_true(next[4].rewarded && next[4].reward == 0.1 && next[4].parts.count == 0);
    assert_true(next[5].reward == 7.0 && next[5].parts.items[0].value == -3.0);
    for (int i = 0; i < COUNT; i++)
        invar_turn_action_release(&next[i]);
    invar_json_text_release(&line);
}

/* ---- plug-ins -------------------------------------------------------------------------------- */

static invar_plugin *open_plugin(const char *spec)
{
    const invar_plugin_options options = {.name = "leader",
                                          .spec = spec,
                                          .kinds = INVAR_PLUGIN_KIND_GENERATE,
                                          .timeout = 60,
                                          .log_fd = -1};
    invar_plugin *plugin;

    assert_ok(invar_plugin_open(&plugin, &options));
    assert_ok(invar_plugin_begin_step(plugin, 3, NULL));
    return plugin;
}

static invar_plugin_turn make_turn(const char *text, const char *label, bool last)
{
    static const int32_t tokens[] = {1, 2, 3};

    return (invar_plugin_turn){.sample = {.index = 8,
                                          .prompt = "?",
                                          .response = text,
                                          .response_bytes = strlen(text),
                                          .label = label,
                                          .metadata = "{}",
                                          .finish = "stop",
                                          .tokens = tokens,
                                          .prompt_tokens = 1,
                                          .n_tokens = 3},
                               .turn = 2,
                               .turns = 4,
                               .text = text,
                               .text_bytes = strlen(text),
                               .first = 2,
                               .room = 9,
                               .last = last};
}

static void test_ext_turn__the_calculator_computes(void **state)
{
    static const struct {
        const char *input, *result; /* text to insert; NULL if the sample ends */
    } cases[] = {
        {"is <calc>12*7</calc>", "<result>84</result>"},
        {"<calc>1 + 2*(3-5)/4</calc>", "<result>0</result>"},
        {"<calc>-0.25*-2</calc>", "<result>0.5</result>"},
        {"<calc>1</calc><calc>7/2</calc>", "<result>3.5</result>"},
        {"<calc></calc>", "<result>error</result>"},
        {"<calc>1/0</calc>", "<result>error</result>"},
        {"<calc>(1</calc>", "<result>error</result>"},
        {"<calc>1)</calc>", "<result>error</result>"},
        {"<calc>1..2</calc>", "<result>error</result>"},
        {"<calc>nan</calc>", "<result>error</result>"},
        {"<calc>((((((((((((((((((((((((((((((((((((1))))))))))))))))))))))))))))))))))))</calc>",
         "<result>error</result>"},
        {"</calc>", NULL},
        {"calc>1</calc>", NULL},
        {"<calc>1</calc>\n", "<result>1</result>"},
        {"<calc>1", NULL},
        {"", NULL},
    };
    invar_plugin *plugin = open_plugin(CALCULATOR);

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_plugin_turn turns[2] = {make_turn(cases[i].input, "", false),
                                      make_turn(cases[i].input, "", true)};
        invar_turn_action next[2] = {{.end = false}, {.end = false}};

        assert_ok(invar_plugin_generate(plugin, turns, 2, next));
        assert_true(next[0].end == !cases[i].result && next[1].end && !next[1].rewarded);
        if (cases[i].result)
            assert_string_equal(next[0].text, cases[i].result);
        invar_turn_action_release(&next[0]);
        invar_turn_action_release(&next[1]);
    }
    invar_plugin_close(plugin);
}

/* A stored reply answers the same request without the program, but not another request. */
static void test_ext_turn__replies_are_kept(void **state)
{
    invar_plugin *plugin = open_plugin(PROGRAM);
    invar_plugin_turn turns[] = {make_turn("3", "5", false), make_turn("7", "5", false),
                                 make_turn("5", "5", false), make_turn("4", "5", true)};
    invar_turn_action next[4], replayed[4];
    invar_plugin_replies replies;

    (void)state;
    memset(next, 0, sizeof next);
    memset(replayed, 0, sizeof replayed);
    assert_ok(invar_plugin_generate(plugin, turns, 4, next));
    assert_string_equal(next[0].text, ">");
    assert_string_equal(next[1].text, "<");
    assert_true(next[2].end && next[2].reward == 1.0 && next[3].end && next[3].reward == 0.0);
    replies = invar_plugin_get_replies(plugin);
    assert_int_equal(replies.count, 1);
    {
        const invar_plugin_options offline = {.name = "leader",
                                              .kinds = INVAR_PLUGIN_KIND_GENERATE};
        invar_plugin *stored;

        assert_ok(invar_plugin_open(&stored, &offline));
        assert_ok(invar_plugin_begin_step(stored, 3, &replies));
        assert_ok(invar_plugin_generate(stored, turns, 4, replayed));
        assert_string_equal(replayed[1].text, "<");
        for (int i = 0; i < 4; i++)
            invar_turn_action_release(&replayed[i]);
        assert_ok(invar_plugin_begin_step(stored, 3, &replies));
        turns[0].room--; // `room` is part of the request
        assert_fails(invar_plugin_generate(stored, turns, 4, replayed), INVAR_E_MISMATCH,
                     "asks something else than the recorded one");
        invar_plugin_close(stored);
    }
    for (int i = 0; i < 4; i++)
        invar_turn_action_release(&next[i]);
    invar_plugin_close(plugin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ext_turn__valid_replies),
        cmocka_unit_test(test_ext_turn__wrong_replies),
        cmocka_unit_test(test_ext_turn__plain_answers_become_a_line),
        cmocka_unit_test(test_ext_turn__the_calculator_computes),
        cmocka_unit_test(test_ext_turn__replies_are_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
