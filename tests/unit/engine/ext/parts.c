/*
 * parts.c - tests of rewards with named parts, and of metrics that hooks return.
 *
 * The reward is the total if a reply has one, and otherwise the sum of the parts in the order of
 * their names, so that the order in a reply cannot change its bits. Shared objects and stored
 * replies must give the same parts; a stored reply that is cut at any byte is rejected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/ext/plugin.h"
#include "engine/ext/plugin_call.h"
#include "tests/support.h"
#include "tests/unit/engine/ext/samples.h"

#define OBJECT INVAR_TEST_WORK "/plugin/parts.so"

enum { SAMPLES = 6 };

static void release(invar_reward_parts *parts, int count)
{
    for (int i = 0; i < count; i++)
        invar_reward_parts_release(&parts[i]);
}

/* ---- replies of programs --------------------------------------------------------------------- */

static invar_status read_reply(double *reward, invar_reward_parts *parts, const char *rewards)
{
    static const invar_plugin_sample sample = {.index = 3};
    const invar_plugin_call call = {.plugin = "judge",
                                    .kind = INVAR_PLUGIN_KIND_REWARD,
                                    .samples = &sample,
                                    .count = 1,
                                    .reward = reward,
                                    .parts = parts};
    char line[4096];

    (void)snprintf(line, sizeof line, "{\"id\":0,\"rewards\":[%s]}", rewards);
    return invar_plugin_call_read(&call, line, strlen(line), true);
}

static void test_ext_parts__sum_or_total(void **state)
{
    static const struct {
        const char *text;
        double reward;
        int64_t parts;
    } cases[] = {
        {"0.25", 0.25, 0},
        {"{\"right\": 1, \"format\": 0.5}", 1.5, 2},
        {"{\"right\": 1, \"format\": 0.5, \"total\": -3}", -3, 2},
        {"{\"only\": -0.125}", -0.125, 1},
        {"{\"score\": -1.0, \"acc\": false, \"pred\": \"72\", \"why\": [\"no\"]}", -1, 2},
        {"{\"acc\": true}", 1, 1},
        // (1e16 + -1e16) + 1 in the order of the names; the sum is 0 in the order of the reply
        {"{\"a\": 1e16, \"z\": 1, \"m\": -1e16}", 1, 3},
        {"{\"z\": 1, \"a\": 1e16, \"m\": -1e16}", 1, 3},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_reward_parts parts = {NULL, 0};
        double reward = NAN;

        assert_ok(read_reply(&reward, &parts, cases[i].text));
        assert_true(reward == cases[i].reward);
        assert_int_equal(parts.count, cases[i].parts);
        for (int64_t k = 1; k < parts.count; k++)
            assert_true(strcmp(parts.items[k - 1].name, parts.items[k].name) < 0);
        invar_reward_parts_release(&parts);
    }
}

static void test_ext_parts__wrong_replies(void **state)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"{}", "a reward has no named part"},
        {"{\"total\": 1}", "a reward has no named part"},
        {"{\"a\": \"1\"}", "a reward has no named part"},
        {"{\"a\": 1, \"total\": true}", "the total of a reward is no number"},
        {"{\"a b\": 1}", "\"a b\" cannot name a part of a reward"},
        {"{\"\": 1}", "cannot name a part"},
        {"{\"a/b\": 1}", "cannot name a part"},
        {"{\"0123456789012345678901234567890123456789012345678\": 1}", "use 1 to 47 letters"},
        {"{\"a\": 1e308, \"b\": 1e308}", "the reward of sample 3 is not finite"},
        {"[1]", "has no number at 0"},
        {"null", "has no number at 0"},
    };
    char many[2048] = "{";
    double reward;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_reward_parts parts = {NULL, 0};
        assert_fails(read_reply(&reward, &parts, cases[i].text), INVAR_E_CORRUPT, cases[i].error);
        invar_reward_parts_release(&parts);
    }
    for (int i = 0; i <= INVAR_REWARD_PARTS; i++) {
        invar_reward_parts parts = {NULL, 0};
        size_t used = strlen(many);
        (void)snprintf(many + used, sizeof many - used, "%s\"p%d\": 1}", i ? "," : "", i);
        if (i < INVAR_REWARD_PARTS)
            assert_ok(read_reply(&reward, &parts, many));
        else
            assert_fails(read_reply(&reward, &parts, many), INVAR_E_CORRUPT, "more than 32");
        many[strlen(many) - 1] = '\0';
        invar_reward_parts_release(&parts);
    }
}

/* ---- metrics of hooks ------------------------------------------------------------------------ */

static double factor; /* factor of the loss that the hook returned; 1 if it returned none */

static invar_status read_hook(invar_reward_parts *measures, const char *reply)
{
    const invar_plugin_event event = {.hook = INVAR_PLUGIN_BEFORE_TRAIN_STEP};
    const invar_plugin_call call = {.plugin = "hooks",
                                    .kind = INVAR_PLUGIN_KIND_HOOK,
                                    .event = &event,
                                    .measures = measures,
                                    .factor = &factor};

    factor = 1.0;
    return invar_plugin_call_read(&call, reply, strlen(reply), true);
}

static void test_ext_parts__hooks_measure(void **state)
{
    static const struct {
        const char *text, *error;
    } invalid[] = {
        {"{\"id\":0,\"metrics\":7}", "plug-in hooks: \"metrics\" is no object"},
        {"{\"id\":0,\"metrics\":{\"a\":\"1\"}}", "a metric of \"metrics\" is no number"},
        {"{\"id\":0,\"metrics\":{\"a/b\":1}}", "cannot name a part"},
        {"{\"id\":0,\"metrics\":{\"a\":1e999}}", "is not JSON"},
        {"{\"id\":0,\"loss_factor\":\"1\"}", "\"loss_factor\" is no finite number"},
        {"{\"id\":0,\"loss_factor\":1e39}", "\"loss_factor\" is no finite number"},
    };
    invar_reward_parts measures = {NULL, 0};

    (void)state;
    assert_ok(read_hook(&measures, "{\"id\":0}"));
    assert_int_equal(measures.count, 0);
    assert_ok(read_hook(&measures, "{\"id\":0,\"metrics\":{\"lag\":2,\"a.b\":-0.5}}"));
    assert_int_equal(measures.count, 2);
    assert_true(invar_reward_parts_find(&measures, "lag")->value == 2 && factor == 1);
    invar_reward_parts_release(&measures);
    assert_ok(read_hook(&measures, "{\"id\":0,\"loss_factor\":0.25}"));
    assert_true(factor == 0.25);
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        invar_reward_parts_release(&measures);
        assert_fails(read_hook(&measures, invalid[i].text), INVAR_E_CORRUPT, invalid[i].error);
    }
    invar_reward_parts_release(&measures);
}

/* ---- shared objects -------------------------------------------------------------------------- */

static invar_plugin *open_object(void)
{
    const invar_plugin_options options = {
        .name = "judge", .spec = OBJECT, .kinds = INVAR_PLUGIN_KIND_REWARD, .log_fd = -1};
    invar_plugin *plugin;

    assert_ok(invar_plugin_open(&plugin, &options));
    return plugin;
}

static void check_parts(const invar_rl_samples *samples, const double *reward,
                        const invar_reward_parts *parts)
{
    for (int i = 0; i < SAMPLES; i++) {
        const invar_reward_part *length = invar_reward_parts_find(&parts[i], "length");
        assert_true(reward[i] ==
                    (double)samples->items[i].index); // the total of the plug-in, not the sum
        assert_int_equal(parts[i].count, 2);
        assert_true(length && length->value == (double)samples->items[i].n_tokens);
        assert_true(invar_reward_parts_find(&parts[i], "format")->value == 0.5);
        assert_null(invar_reward_parts_find(&parts[i], "forma"));
    }
}

static void test_ext_parts__object_and_stored(void **state)
{
    invar_reward_parts live[SAMPLES] = {{NULL, 0}}, replayed[SAMPLES] = {{NULL, 0}};
    invar_plugin *plugin = open_object(), *offline = open_object();
    invar_plugin_replies stored;
    invar_ledger_plugin_reply cut;
    invar_rl_samples samples;
    double reward[SAMPLES];

    (void)state;
    make_samples(&samples);
    assert_ok(invar_plugin_begin_step(plugin, 1, NULL));
    assert_ok(invar_plugin_reward(plugin, samples.items, SAMPLES, reward, live));
    check_parts(&samples, reward, live);
    stored = invar_plugin_get_replies(plugin);
    assert_int_equal(stored.count, 1);
    assert_ok(invar_plugin_begin_step(offline, 1, &stored));
    memset(reward, 0, sizeof reward);
    assert_ok(invar_plugin_reward(offline, samples.items, SAMPLES, reward, replayed));
    check_parts(&samples, reward, replayed);
    release(replayed, SAMPLES);
    cut = stored.items[0];
    stored.items = &cut;
    while (--cut.bytes > 1) { // cuts the stored reply at every byte
        assert_ok(invar_plugin_begin_step(offline, 1, &stored));
        assert_int_equal(invar_plugin_reward(offline, samples.items, SAMPLES, reward, replayed),
                         INVAR_E_CORRUPT);
        release(replayed, SAMPLES);
    }
    release(live, SAMPLES);
    invar_plugin_close(plugin);
    invar_plugin_close(offline);
    invar_rl_samples_reset(&samples);
}

static void test_ext_parts__object_refuses(void **state)
{
    invar_reward_parts parts[SAMPLES] = {{NULL, 0}};
    invar_plugin *plugin = open_object();
    invar_rl_samples samples;
    double reward[SAMPLES];

    (void)state;
    make_samples(&samples);
    samples.items[0].data.label = "refuse";
    assert_fails(invar_plugin_reward(plugin, samples.items, SAMPLES, reward, parts), INVAR_E_STATE,
                 "it refuses: no parts today");
    samples.items[0].data.label = "nan";
    assert_fails(invar_plugin_reward(plugin, samples.items, SAMPLES, reward, parts),
                 INVAR_E_CORRUPT, "the part \"format\" of a reward is not finite");
    release(parts, SAMPLES);
    invar_plugin_close(plugin);
    invar_rl_samples_reset(&samples);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ext_parts__sum_or_total),
        cmocka_unit_test(test_ext_parts__wrong_replies),
        cmocka_unit_test(test_ext_parts__hooks_measure),
        cmocka_unit_test(test_ext_parts__object_and_stored),
        cmocka_unit_test(test_ext_parts__object_refuses),
    };

    return cmocka_run_group_tests_name("ext.parts", tests, NULL, NULL);
}
