/*
 * recorded_replies.c - tests of plug-in replies that are appended to a ledger and read back.
 *
 * A plug-in without a program answers from the ledger and must give the same bits as the live one.
 * After a resume the replies of the last execution of a step count. Control: a step without replies
 * differs from a step, or a run, that does not exist.
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

#define OBJECT INVAR_TEST_WORK "/plugin/misbehaving.so"

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

enum { LOSSES = 3, TOKENS = 3 };

/* What the plug-in returned in the calls of a step. */
typedef struct step_results {
    double reward[6];
    float loss[LOSSES][TOKENS], dlogp[LOSSES][TOKENS];
} step_results;

/* Makes the four calls of a step: the rewards of six samples, then a loss for each of three. */
static invar_status call_all(step_results *out, invar_plugin *plugin)
{
    // the plug-in returns these as losses and derivatives, so that every call has its own
    static const float old[LOSSES + TOKENS] = {-0.3f, -16777217.0f, -0x1p-149f,
                                               -4.5f, -0x1.2p-3f,   -7.25f};
    static const float logp[LOSSES + TOKENS] = {-0.1f, -0x1.fffffep-3f, -1e-38f,
                                                -2.0f, -0x1.6p-9f,      -3.5f};
    invar_loss_sample sample = loss_sample(NULL);
    invar_rl_samples samples;
    invar_status status;

    memset(out, 0, sizeof *out);
    assert_int_equal(sample.tokens, TOKENS);
    make_samples(&samples);
    status = invar_plugin_reward(plugin, samples.items, 6, out->reward, no_parts());
    for (int i = 0; i < LOSSES && status == INVAR_OK; i++) {
        sample.sample = i;
        sample.old_logp = old + i;
        sample.logp = logp + i;
        status = invar_plugin_loss(out->loss[i], out->dlogp[i], &sample, plugin);
    }
    invar_rl_samples_reset(&samples);
    return status;
}

static void assert_results(const step_results *got, const step_results *expected)
{
    assert_memory_equal(got->reward, expected->reward, sizeof got->reward);
    assert_memory_equal(got->loss, expected->loss, sizeof got->loss);
    assert_memory_equal(got->dlogp, expected->dlogp, sizeof got->dlogp);
}

/* Control: the calls of a step have different results, and none is zero. */
static void assert_all_differ(const step_results *r)
{
    for (int i = 0; i < LOSSES; i++) {
        assert_true(r->loss[i][0] != 0.0f && r->dlogp[i][0] != 0.0f);
        for (int k = 0; k < i; k++) {
            assert_memory_not_equal(r->loss[i], r->loss[k], sizeof r->loss[i]);
            assert_memory_not_equal(r->dlogp[i], r->dlogp[k], sizeof r->dlogp[i]);
        }
    }
    for (int i = 0; i < 6; i++)
        assert_true(r->reward[i] == 100.0 + i);
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
    invar_plugin *live = open_plugin(OBJECT), *offline = open_plugin(NULL);
    invar_recorded_replies stored = {0};
    step_results results, again;
    invar_digest no_digest = {{0}};
    invar_ledger *ledger;

    (void)state;
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_begin(ledger, &run));
    assert_ok(invar_ledger_define(ledger, NULL, 0));
    assert_ok(invar_plugin_begin_step(live, 0, NULL));
    assert_ok(call_all(&results, live));
    assert_all_differ(&results);
    append(ledger, 0, live);
    append(ledger, 1, NULL);

    assert_ok(invar_recorded_replies_read(&stored, ledger, 1, 0));
    assert_int_equal(stored.replies.count, 4);
    assert_ok(invar_plugin_begin_step(offline, 0, &stored.replies));
    assert_ok(call_all(&again, offline));
    assert_results(&again, &results);

    assert_ok(invar_recorded_replies_read(&stored, ledger, 1, 1)); // a step without replies
    assert_true(stored.found);
    assert_int_equal(stored.replies.count, 0);
    assert_ok(invar_recorded_replies_read(&stored, ledger, 1, 2)); // no such step
    assert_false(stored.found);
    assert_ok(invar_recorded_replies_read(&stored, ledger, 2, 0)); // no such run
    assert_false(stored.found);
    invar_ledger_close(ledger);

    // a resumed run executes step 0 again; from then on its replies count
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.write = true}));
    assert_ok(invar_ledger_resume(ledger, NULL, -1, &no_digest, &run.circumstances));
    assert_ok(invar_ledger_define(ledger, NULL, 0));
    assert_ok(invar_recorded_replies_read(&stored, ledger, 1, 0));
    assert_int_equal(stored.replies.count, 4); // replies of the first execution
    assert_ok(invar_plugin_begin_step(live, 0, &stored.replies));
    assert_ok(call_all(&again, live));
    assert_results(&again, &results);
    append(ledger, 0, live);
    assert_ok(invar_recorded_replies_read(&stored, ledger, 1, 0));
    assert_int_equal(stored.replies.count, 4); // replies of the second execution only
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
