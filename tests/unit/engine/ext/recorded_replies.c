/*
 * recorded_replies.c - tests of replies that go into a ledger and come out of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/recorded_replies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/support.h"
#include "tests/unit/engine/ext/samples.h"

#define UNRULY INVAR_TEST_WORK "/plugin/misbehaving.so"

static char folder[] = INVAR_TEST_WORK "/stored-XXXXXX";
static char path[sizeof folder + 32];

static invar_plugin *open_plugin(const char *spec)
{
    invar_plugin_options options = {.name = "custom-rm",
                                    .spec = spec,
                                    .kinds = INVAR_PLUGIN_KIND_REWARD | INVAR_PLUGIN_KIND_LOSS,
                                    .log_fd = -1};
    invar_plugin *plugin;

    assert_ok(invar_plugin_open(&plugin, &options));
    return plugin;
}

/* One reward for all, then a loss for each of three samples. */
static invar_status ask(double reward[6], float loss[3], invar_plugin *plugin)
{
    invar_loss_sample sample = loss_sample(NULL);
    invar_rl_samples samples;
    invar_status status;
    float dlogp[3];

    make_samples(&samples);
    status = invar_plugin_reward(plugin, samples.items, 6, reward, no_parts());
    for (int i = 0; i < 3 && status == INVAR_OK; i++) {
        sample.sample = i;
        status = invar_plugin_loss(loss, dlogp, &sample, plugin);
    }
    invar_rl_samples_reset(&samples);
    return status;
}

static void append(invar_ledger *ledger, int64_t step, const invar_plugin *plugin)
{
    invar_plugin_replies replies = {NULL, 0};
    invar_ledger_step entry = {.step = step, .weights_version = step};

    if (plugin)
        replies = invar_plugin_get_replies(plugin);
    entry.replies = replies.items;
    entry.n_replies = replies.count;
    assert_ok(invar_ledger_append(ledger, &entry));
}

static void test_ext_stored__a_step_comes_back_from_the_ledger(void **state)
{
    const invar_ledger_run run = {
        .name = "a", .kind = "train", .circumstances = {.no_auto_facts = true}};
    invar_plugin *live = open_plugin(UNRULY), *offline = open_plugin(NULL);
    invar_recorded_replies stored = {0};
    double reward[6], again[6];
    float loss[3], loss_again[3];
    invar_digest none = {{0}};
    invar_ledger *ledger;

    (void)state;
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_begin(ledger, &run));
    assert_ok(invar_ledger_define(ledger, NULL, 0));
    assert_ok(invar_plugin_begin_step(live, 0, NULL));
    assert_ok(ask(reward, loss, live));
    append(ledger, 0, live);
    append(ledger, 1, NULL);

    assert_ok(invar_recorded_replies_read(&stored, ledger, 1, 0));
    assert_int_equal(stored.replies.count, 4);
    assert_ok(invar_plugin_begin_step(offline, 0, invar_recorded_replies_get(&stored)));
    assert_ok(ask(again, loss_again, offline));
    assert_memory_equal(reward, again, sizeof reward);
    assert_memory_equal(loss, loss_again, sizeof loss);

    assert_ok(invar_recorded_replies_read(&stored, ledger, 1, 1)); // a step without replies
    assert_non_null(invar_recorded_replies_get(&stored));
    assert_int_equal(stored.replies.count, 0);
    assert_ok(invar_recorded_replies_read(&stored, ledger, 1, 2)); // no such step
    assert_null(invar_recorded_replies_get(&stored));
    assert_ok(invar_recorded_replies_read(&stored, ledger, 2, 0)); // no such run
    assert_null(invar_recorded_replies_get(&stored));
    invar_ledger_close(ledger);

    // a second life executes step 0 again; what it replied is what counts then
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.write = true}));
    assert_ok(invar_ledger_resume(ledger, NULL, -1, &none, &run.circumstances));
    assert_ok(invar_ledger_define(ledger, NULL, 0));
    assert_ok(invar_recorded_replies_read(&stored, ledger, 1, 0));
    assert_int_equal(stored.replies.count, 4); // of the first life
    assert_ok(invar_plugin_begin_step(live, 0, invar_recorded_replies_get(&stored)));
    assert_ok(ask(again, loss_again, live));
    append(ledger, 0, live);
    assert_ok(invar_recorded_replies_read(&stored, ledger, 1, 0));
    assert_int_equal(stored.replies.count, 4); // of the second, not of both
    invar_ledger_close(ledger);
    invar_recorded_replies_release(&stored);
    invar_plugin_close(live);
    invar_plugin_close(offline);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ext_stored__a_step_comes_back_from_the_ledger),
    };
    int rc;

    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/ledger.db", folder);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (invar_held_folder_remove(folder) != INVAR_OK)
        rc = 1;
    return rc;
}
