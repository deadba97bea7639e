/*
 * io_alloc.c - allocations of reward plug-ins, rollout files and traces fail one at a time.
 *
 * Each failure must return INVAR_E_NOMEM with a message and leave no block (faulty.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <unistd.h>

#include "engine/ext/plugin.h"
#include "engine/record/trace.h"
#include "engine/sample/rollout/file/rollout_file.h"
#include "tests/fault/faulty.h"
#include "tests/rollout_samples.h"
#include "tests/unit/engine/ext/samples.h"

static invar_rl_samples samples, rollout; /* made before allocations fail */
static char path[] = INVAR_TEST_WORK "/edges-alloc-XXXXXX";

/* ---- plug-ins -------------------------------------------------------------------------------- */

static invar_status request_rewards(invar_plugin *plugin, const invar_plugin_replies *stored)
{
    invar_reward_parts parts[6] = {{NULL, 0}};
    double reward[6];
    invar_status status;

    INVAR_TRY(invar_plugin_begin_step(plugin, 1, stored));
    status = invar_plugin_reward(plugin, samples.items, 6, reward, parts);
    for (int i = 0; i < 6; i++)
        invar_reward_parts_release(&parts[i]);
    return status;
}

/* Computes rewards with the plug-in, then with its stored replies instead of the plug-in. */
static invar_status exercise_plugin(const char *spec)
{
    invar_plugin_options options = {.name = "custom-rm",
                                    .spec = spec,
                                    .kinds = INVAR_PLUGIN_KIND_REWARD,
                                    .timeout = 60,
                                    .log_fd = -1};
    invar_plugin_replies stored = {NULL, 0};
    invar_plugin *plugin, *replay = NULL;
    invar_status status;

    INVAR_TRY(invar_plugin_open(&plugin, &options));
    status = request_rewards(plugin, NULL);
    stored = invar_plugin_get_replies(plugin);
    options.spec = NULL;
    if (status == INVAR_OK)
        status = invar_plugin_open(&replay, &options);
    if (status == INVAR_OK)
        status = request_rewards(replay, &stored);
    invar_plugin_close(plugin);
    invar_plugin_close(replay);
    return status;
}

static invar_status exercise_shared_object(void)
{
    return exercise_plugin(INVAR_TEST_WORK "/../plugins/reward.so");
}

static invar_status exercise_program(void)
{
    return exercise_plugin("sh -c 'read -r a; echo \"{\\\"invar\\\":1,\\\"name\\\":\\\"a\\\","
                           "\\\"kinds\\\":[\\\"reward\\\"]}\"; read -r a;"
                           "echo \"{\\\"id\\\":0,\\\"rewards\\\":[1,2,3,4,5,6]}\"; read -r a'");
}

static void test_io_alloc__plugins_survive_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(exercise_shared_object);
    fail_each_allocation(exercise_program);
}

/* ---- rollout files --------------------------------------------------------------------------- */

static invar_status exercise_write(void)
{
    invar_rollout_header header = rollout_header();

    return invar_rollout_file_write(path, &header, rollout.items, rollout.count);
}

static invar_status exercise_read(void)
{
    invar_rollout_file data;

    INVAR_TRY(invar_rollout_file_read(&data, path));
    invar_rollout_file_release(&data);
    return INVAR_OK;
}

static void test_io_alloc__rollout_files_survive_each_failure(void **state)
{
    (void)state;
    fail_each_allocation(exercise_write);
    fail_each_allocation(exercise_read);
}

/* ---- trace ----------------------------------------------------------------------------------- */

static invar_status exercise_trace(void)
{
    char names[40][8]; // more than the first block of timings holds
    invar_trace *trace;
    invar_status status;

    INVAR_TRY(invar_trace_open(&trace, path));
    for (int i = 0; i < 40; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        invar_trace_begin(trace, names[i]);
        invar_trace_end(trace);
    }
    status = invar_trace_check(trace);
    invar_trace_close(trace);
    return status;
}

static void test_io_alloc__trace_survives_each_failure(void **state)
{
    (void)state;
    assert_int_equal(unlink(path), 0); // a trace does not replace the rollout file at this path
    fail_each_allocation(exercise_trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_io_alloc__plugins_survive_each_failure),
        cmocka_unit_test(test_io_alloc__rollout_files_survive_each_failure),
        cmocka_unit_test(test_io_alloc__trace_survives_each_failure),
    };
    int rc;

    close(mkstemp(path));
    make_samples(&samples);
    make_rollout(&rollout, 2, 5);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    invar_rl_samples_reset(&samples);
    invar_rl_samples_reset(&rollout);
    unlink(path);
    return rc;
}
