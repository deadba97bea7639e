/*
 * shared_object.c - tests of plug-ins that are shared objects, and of replies from the ledger.
 *
 * The objects of tests/plugin misbehave on purpose: they change the rounding mode or the folder,
 * call exit, and return invalid values. The engine must restore its state and reject the values.
 * Stored replies must give the same bits as the calls did, and no other request may be answered
 * from them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/ext/plugin.h"
#include "tests/support.h"
#include "tests/unit/engine/ext/samples.h"

#define FOLDER INVAR_TEST_WORK "/plugin/"
#define EXAMPLES INVAR_TEST_WORK "/../plugins/"

static invar_status open_kinds(invar_plugin **out, const char *spec, uint32_t kinds)
{
    invar_plugin_options options = {
        .name = "custom-rm", .spec = spec, .kinds = kinds, .log_fd = -1};

    return invar_plugin_open(out, &options);
}

/* ---- opening --------------------------------------------------------------------------------- */

static void assert_open_fails(const char *spec, uint32_t kinds, invar_status code, const char *text)
{
    invar_plugin *plugin;

    assert_fails(open_kinds(&plugin, spec, kinds), code, text);
    assert_null(plugin);
    invar_assert_message("plug-in custom-rm: ", __FILE__, __LINE__);
}

static void test_ext_object__refuses_what_is_no_plugin(void **state)
{
    (void)state;
    assert_open_fails(FOLDER "absent.so", INVAR_PLUGIN_KIND_REWARD, INVAR_E_IO, "cannot load it");
    assert_open_fails("absent.so", INVAR_PLUGIN_KIND_REWARD, INVAR_E_IO,
                      "cannot load it: ./absent.so");
    assert_open_fails(FOLDER "not_a_plugin.so", INVAR_PLUGIN_KIND_REWARD, INVAR_E_INVALID,
                      "does not export the symbol invar_plugin_v1");
    assert_open_fails(FOLDER "old.so", INVAR_PLUGIN_KIND_REWARD, INVAR_E_UNSUPPORTED,
                      "built for version 2 of the interface, this engine has 1");
    assert_open_fails(EXAMPLES "reward.so", INVAR_PLUGIN_KIND_REWARD | INVAR_PLUGIN_KIND_LOSS,
                      INVAR_E_INVALID, "\"short-and-right\" does not offer the kind \"loss\"");
}

static void test_ext_object__reads_no_further_than_an_older_table(void **state)
{
    invar_rl_samples samples;
    invar_plugin *plugin;
    double reward[6];

    (void)state;
    make_samples(&samples);
    assert_ok(open_kinds(&plugin, FOLDER "short_table.so", INVAR_PLUGIN_KIND_REWARD));
    assert_string_equal(invar_plugin_title(plugin), "short");
    assert_ok(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()));
    assert_true(reward[5] == 0.5);
    invar_plugin_close(plugin);
    assert_open_fails(FOLDER "short_table.so", INVAR_PLUGIN_KIND_HOOK, INVAR_E_INVALID,
                      "does not offer");
    invar_rl_samples_reset(&samples);
}

static void test_ext_object__checks_its_options(void **state)
{
    invar_plugin_options options = {.name = "", .kinds = INVAR_PLUGIN_KIND_REWARD};
    invar_plugin *plugin;

    (void)state;
    assert_fails(invar_plugin_open(&plugin, &options), INVAR_E_INVALID, "a name of 1 to 64");
    options = (invar_plugin_options){.name = "a"};
    assert_fails(invar_plugin_open(&plugin, &options), INVAR_E_INVALID, "at least one kind");
    options.kinds = INVAR_PLUGIN_KIND_REWARD;
    options.spec = "";
    assert_fails(invar_plugin_open(&plugin, &options), INVAR_E_INVALID, "the command is empty");
    invar_plugin_close(NULL);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void test_ext_object__example_rewards(void **state)
{
    static const double per_sample[6] = {0.97, -0.02, 0.99, 0.97, -0.02, 0.99};
    static const double per_group[6] = {1, 0, 1, 0, 0, 1}; // the better sample of each group of two
    invar_rl_samples samples;
    invar_plugin *plugin;
    double reward[6];

    (void)state;
    make_samples(&samples);
    assert_ok(open_kinds(&plugin, EXAMPLES "reward.so", INVAR_PLUGIN_KIND_REWARD));
    assert_ok(invar_plugin_begin_step(plugin, 3, NULL));
    assert_ok(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()));
    for (int i = 0; i < 6; i++)
        assert_true(fabs(reward[i] - per_sample[i]) < 1e-12);
    assert_int_equal(invar_plugin_get_replies(plugin).count, 1);
    samples.items[4].data.label = "";
    assert_fails(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()), INVAR_E_STATE,
                 "plug-in custom-rm: it refuses: sample 104 has no label");
    invar_plugin_close(plugin);

    samples.items[4].data.label = "7";
    assert_ok(open_kinds(&plugin, EXAMPLES "reward.so", INVAR_PLUGIN_KIND_GROUP_REWARD));
    assert_ok(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()));
    for (int i = 0; i < 6; i++)
        assert_true(reward[i] == per_group[i]);
    assert_int_equal(invar_plugin_get_replies(plugin).count, 3);
    invar_plugin_close(plugin);
    invar_rl_samples_reset(&samples);
}

static void test_ext_object__rounding_is_put_back(void **state)
{
    invar_rl_samples samples;
    invar_plugin *plugin;
    double reward[6];

    (void)state;
    make_samples(&samples);
    assert_ok(open_kinds(&plugin, FOLDER "misbehaving.so", INVAR_PLUGIN_KIND_REWARD));
    assert_int_equal(fegetround(), FE_TONEAREST); // opening had set FE_UPWARD
    samples.items[0].data.label = "round";
    assert_ok(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()));
    assert_int_equal(fegetround(), FE_TONEAREST); // the call had set FE_DOWNWARD
    assert_true(reward[5] == 105);
    invar_plugin_close(plugin);
    invar_rl_samples_reset(&samples);
}

static void test_ext_object__folder_is_put_back(void **state)
{
    char before[4096], after[4096];
    invar_rl_samples samples;
    invar_plugin *plugin;
    double reward[6];

    (void)state;
    make_samples(&samples);
    assert_non_null(getcwd(before, sizeof before));
    assert_ok(open_kinds(&plugin, FOLDER "misbehaving.so", INVAR_PLUGIN_KIND_REWARD));
    samples.items[0].data.label = "chdir";
    assert_ok(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()));
    assert_true(reward[0] == 0); // the result of chdir in the plug-in: the folder was changed
    assert_non_null(getcwd(after, sizeof after));
    assert_string_equal(after, before);
    invar_plugin_close(plugin);
    invar_rl_samples_reset(&samples);
}

/* A plug-in that calls exit(0) must not end the run with the exit code of success. */
static void test_ext_object__exit_is_trouble(void **state)
{
    invar_rl_samples samples;
    invar_plugin *plugin;
    double reward[6];
    int exit_status;
    pid_t pid = fork();

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0) {
        make_samples(&samples);
        samples.items[0].data.label = "exit";
        assert_ok(open_kinds(&plugin, FOLDER "misbehaving.so", INVAR_PLUGIN_KIND_REWARD));
        assert_ok(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()));
        _exit(99);
    }
    assert_int_equal(waitpid(pid, &exit_status, 0), pid);
    assert_true(WIFEXITED(exit_status));
    assert_int_equal(WEXITSTATUS(exit_status), 2);
    // control: if no object is open, exit keeps its code
    pid = fork();
    if (pid == 0) {
        assert_ok(open_kinds(&plugin, FOLDER "misbehaving.so", INVAR_PLUGIN_KIND_REWARD));
        invar_plugin_close(plugin);
        exit(7);
    }
    assert_int_equal(waitpid(pid, &exit_status, 0), pid);
    assert_true(WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 7);
}

static void test_ext_object__refuses_wrong_answers(void **state)
{
    uint32_t kinds = INVAR_PLUGIN_KIND_REWARD | INVAR_PLUGIN_KIND_FILTER | INVAR_PLUGIN_KIND_LOSS;
    invar_loss_sample loss = loss_sample(NULL);
    invar_rl_samples samples;
    invar_plugin *plugin;
    uint8_t verdict[6];
    double reward[6];
    float dlogp[3], out[3];

    (void)state;
    make_samples(&samples);
    assert_ok(open_kinds(&plugin, FOLDER "misbehaving.so", kinds));
    samples.items[0].data.label = "nan";
    assert_fails(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()), INVAR_E_CORRUPT,
                 "the reward of sample 105 is not finite");
    samples.items[0].data.label = "silent";
    assert_fails(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()), INVAR_E_STATE,
                 "it refuses: it does not say why");
    samples.items[0].data.label = "refuse";
    assert_fails(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()), INVAR_E_STATE,
                 "it refuses: xxxx");
    samples.items[0].data.label = "unterminated"; // after a reason that has filled the buffer
    assert_int_equal(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()),
                     INVAR_E_STATE);
    assert_string_equal(invar_error_last()->message, "plug-in custom-rm: it refuses: because");
    samples.items[2].reward = 3;
    assert_fails(invar_plugin_filter(plugin, samples.items, 6, verdict), INVAR_E_CORRUPT,
                 "the verdict on sample 102 is 3");
    assert_ok(invar_plugin_loss(out, dlogp, &loss, plugin));
    invar_assert_bits_f32(dlogp, loss.logp, 3, "dlogp");
    invar_assert_bits_f32(out, loss.old_logp, 3, "loss");
    loss = loss_sample(loss.logp);
    assert_fails(invar_plugin_loss(out, dlogp, &loss, plugin), INVAR_E_CORRUPT,
                 "the loss or dlogp of token 0 is not finite");
    assert_fails(
        invar_plugin_hook(plugin, &(invar_plugin_event){.hook = 0}, NULL, 0, no_parts(), reward),
        INVAR_E_INVALID, "was not opened for the kind \"hook\"");
    assert_fails(invar_plugin_reward(plugin, samples.items, 0, reward, no_parts()), INVAR_E_INVALID,
                 "a call without samples");
    invar_plugin_close(plugin);
    invar_rl_samples_reset(&samples);
}

static void test_ext_object__one_drop_drops_the_group(void **state)
{
    static const uint8_t expected[6] = {0, 1, 2, 2, 0, 0};
    invar_rl_samples samples;
    invar_plugin *plugin;
    uint8_t verdict[6];

    (void)state;
    make_samples(&samples);
    samples.items[1].reward = INVAR_PLUGIN_REMOVE;
    samples.items[3].reward = INVAR_PLUGIN_DROP;
    assert_ok(open_kinds(&plugin, FOLDER "misbehaving.so", INVAR_PLUGIN_KIND_FILTER));
    assert_ok(invar_plugin_filter(plugin, samples.items, 6, verdict));
    assert_memory_equal(verdict, expected, 6);
    invar_plugin_close(plugin);
    invar_rl_samples_reset(&samples);
}

static void test_ext_object__example_loss(void **state)
{
    invar_loss_sample loss = loss_sample(NULL);
    invar_plugin *plugin;
    float dlogp[3], out[3];

    (void)state;
    assert_ok(open_kinds(&plugin, EXAMPLES "loss.so", INVAR_PLUGIN_KIND_LOSS));
    assert_ok(invar_plugin_loss(out, dlogp, &loss, plugin));
    for (int i = 0; i < 3; i++) {
        assert_true(dlogp[i] == -loss.advantage[i]);
        assert_true(out[i] == -(loss.advantage[i] * loss.logp[i]));
    }
    invar_plugin_close(plugin);
}

/* ---- stored replies -------------------------------------------------------------------------- */

/*
 * Copies the replies of the step, in the form in which the ledger returns them; valid until the
 * next call.
 */
static invar_plugin_replies store(const invar_plugin *plugin)
{
    static invar_ledger_plugin_reply items[8];
    static char bytes[8][256];
    invar_plugin_replies live = invar_plugin_get_replies(plugin);

    assert_true(live.count <= 8);
    for (size_t i = 0; i < live.count; i++) {
        assert_true(live.items[i].bytes <= sizeof bytes[i]);
        items[i] = live.items[i];
        memcpy(bytes[i], live.items[i].data, live.items[i].bytes);
        items[i].plugin = "custom-rm";
        items[i].data = bytes[i];
    }
    return (invar_plugin_replies){items, live.count};
}

/* Results of the calls of one step. */
typedef struct step_results {
    double reward[6];
    uint8_t verdict[6];
    float dlogp[3], loss[3];
} step_results;

/* Makes the calls of one step: two lists of rewards, a filter and a loss. */
static invar_status call_all(step_results *out, invar_plugin *plugin,
                             const invar_rl_samples *samples)
{
    invar_loss_sample loss = loss_sample(NULL);

    memset(out, 0, sizeof *out);
    INVAR_TRY(invar_plugin_reward(plugin, samples->items, 4, out->reward, no_parts()));
    INVAR_TRY(invar_plugin_reward(plugin, samples->items + 4, 2, out->reward + 4, no_parts()));
    INVAR_TRY(invar_plugin_filter(plugin, samples->items, 6, out->verdict));
    return invar_plugin_loss(out->loss, out->dlogp, &loss, plugin);
}

static void test_ext_object__stored_replies_answer_without_the_plugin(void **state)
{
    uint32_t kinds = INVAR_PLUGIN_KIND_REWARD | INVAR_PLUGIN_KIND_FILTER | INVAR_PLUGIN_KIND_LOSS;
    invar_plugin_replies stored, none = {NULL, 0}, kept;
    invar_rl_samples samples;
    step_results live, replayed;
    invar_plugin *plugin;

    (void)state;
    make_samples(&samples);
    assert_ok(open_kinds(&plugin, FOLDER "misbehaving.so", kinds));
    assert_ok(invar_plugin_begin_step(plugin, 3, NULL));
    assert_ok(call_all(&live, plugin, &samples));
    stored = store(plugin);
    assert_int_equal(stored.count, 4);
    for (size_t i = 0; i < stored.count; i++)
        assert_int_equal(stored.items[i].call, i);
    invar_plugin_close(plugin);

    assert_ok(open_kinds(&plugin, NULL, kinds));
    assert_string_equal(invar_plugin_title(plugin), "");
    assert_ok(invar_plugin_begin_step(plugin, 3, &stored));
    assert_ok(call_all(&replayed, plugin, &samples));
    assert_memory_equal(&live, &replayed, sizeof live);
    kept = invar_plugin_get_replies(plugin); // these rows go to the ledger again
    assert_int_equal(kept.count, stored.count);
    for (size_t i = 0; i < kept.count; i++) {
        assert_int_equal(kept.items[i].bytes, stored.items[i].bytes);
        assert_memory_equal(kept.items[i].data, stored.items[i].data, kept.items[i].bytes);
        assert_true(invar_digest_equal(&kept.items[i].request, &stored.items[i].request));
    }
    assert_fails(invar_plugin_begin_step(plugin, 4, NULL), INVAR_E_NOTFOUND,
                 "step 4 has no stored replies, and there is no plug-in to ask");
    assert_ok(invar_plugin_begin_step(plugin, 4, &none));
    assert_fails(call_all(&replayed, plugin, &samples), INVAR_E_NOTFOUND,
                 "no reply to call 0 of step 4 is stored");
    invar_plugin_close(plugin);
    invar_rl_samples_reset(&samples);
}

static void test_ext_object__stored_replies_are_checked(void **state)
{
    uint32_t kinds = INVAR_PLUGIN_KIND_REWARD;
    invar_rl_samples samples;
    invar_plugin_replies stored;
    invar_ledger_plugin_reply *item;
    invar_plugin *plugin;
    double reward[6], nan = NAN;

    (void)state;
    make_samples(&samples);
    assert_ok(open_kinds(&plugin, FOLDER "misbehaving.so", kinds));
    assert_ok(invar_plugin_begin_step(plugin, 3, NULL));
    assert_ok(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()));
    stored = store(plugin);
    item = (invar_ledger_plugin_reply *)(uintptr_t)stored.items;

    samples.items[5].response[0]++; // another request
    assert_ok(invar_plugin_begin_step(plugin, 3, &stored));
    assert_fails(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()),
                 INVAR_E_MISMATCH, "call 0 of step 3 asks something else than the recorded one");
    samples.items[5].response[0]--;

    item->bytes--;
    assert_ok(invar_plugin_begin_step(plugin, 3, &stored));
    assert_fails(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()), INVAR_E_CORRUPT,
                 "has 48 bytes, not JSON and not 49");
    item->bytes = 0;
    assert_ok(invar_plugin_begin_step(plugin, 3, &stored));
    assert_fails(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()), INVAR_E_CORRUPT,
                 "0 bytes");
    item->bytes = 49;
    memcpy((char *)(uintptr_t)item->data + 1, &nan, sizeof nan);
    assert_ok(invar_plugin_begin_step(plugin, 3, &stored));
    assert_fails(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()), INVAR_E_CORRUPT,
                 "sample 100 is not finite");
    item->plugin = "another";
    assert_ok(invar_plugin_begin_step(plugin, 3, &stored));
    assert_fails(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()),
                 INVAR_E_NOTFOUND, "no reply to call 0");
    // control: the plug-in still answers if nothing is stored
    assert_ok(invar_plugin_begin_step(plugin, 4, NULL));
    assert_ok(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()));
    invar_plugin_close(plugin);
    invar_rl_samples_reset(&samples);
}

/* Every field of a sample changes the digest of the request; change 0 leaves all as they are. */
static void test_ext_object__every_field_is_hashed(void **state)
{
    invar_digest seen[12];
    int n = 0;
    invar_plugin *plugin;
    double reward[1];

    (void)state;
    assert_ok(open_kinds(&plugin, FOLDER "misbehaving.so", INVAR_PLUGIN_KIND_REWARD));
    for (int change = 0; change < 11; change++) {
        invar_rl_samples samples;
        invar_rl_sample *s;

        make_samples(&samples);
        s = samples.items;
        s->index += change == 1;
        s->group += change == 2;
        s->data.prompt = change == 3 ? "2+2=" : s->data.prompt;
        s->response[0] = (char)(s->response[0] + (change == 4));
        s->data.label = change == 5 ? "8" : s->data.label;
        s->data.metadata = change == 6 ? "{\"a\":1}" : s->data.metadata;
        s->finish = change == 7 ? INVAR_FINISH_LENGTH : s->finish;
        s->tokens[1] += change == 8;
        s->prompt_tokens -= change == 9;
        s->n_tokens -= change == 10;
        assert_ok(invar_plugin_begin_step(plugin, change, NULL));
        assert_ok(invar_plugin_reward(plugin, s, 1, reward, no_parts()));
        seen[n++] = invar_plugin_get_replies(plugin).items[0].request;
        for (int i = 0; i < n - 1; i++)
            assert_false(invar_digest_equal(&seen[i], &seen[n - 1]));
        invar_rl_samples_reset(&samples);
    }
    invar_plugin_close(plugin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ext_object__refuses_what_is_no_plugin),
        cmocka_unit_test(test_ext_object__reads_no_further_than_an_older_table),
        cmocka_unit_test(test_ext_object__checks_its_options),
        cmocka_unit_test(test_ext_object__example_rewards),
        cmocka_unit_test(test_ext_object__rounding_is_put_back),
        cmocka_unit_test(test_ext_object__folder_is_put_back),
        cmocka_unit_test(test_ext_object__exit_is_trouble),
        cmocka_unit_test(test_ext_object__refuses_wrong_answers),
        cmocka_unit_test(test_ext_object__one_drop_drops_the_group),
        cmocka_unit_test(test_ext_object__example_loss),
        cmocka_unit_test(test_ext_object__stored_replies_answer_without_the_plugin),
        cmocka_unit_test(test_ext_object__stored_replies_are_checked),
        cmocka_unit_test(test_ext_object__every_field_is_hashed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
