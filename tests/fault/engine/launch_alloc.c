/*
 * launch_alloc.c - an allocation of a run on two ranks fails once; one rank resumes the run.
 *
 * Whichever rank it is, both ranks must end well before their deadline, with the message of the
 * rank that failed, and leave no block. One rank then resumes the run to the bits of an undisturbed
 * run on one rank (run_scenario.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/process/process.h"
#include "engine/run/launch/launch.h"
#include "tests/fault/engine/run_scenario.h"
#include "tests/unit/engine/config/config_of.h"

#define START 30 /* number of the first allocations, up to the start of both ranks */

static const run_pair grpo[] = {{"dtype", "fp32"},
                                {"threads", "1"},
                                {"eval-interval", "1"},
                                {"eval-prompt-data", "m task:max"},
                                {"model-type", "qwen3_moe"},
                                {"num-experts", "2"},
                                {"moe-router-topk", "1"},
                                {"distributed-timeout-minutes", "1"},
                                {NULL, NULL}};

static invar_status train_on_two(invar_recipe *recipe)
{
    invar_train_options options = {.until = -1};
    invar_train_summary summary;
    invar_launch launch;
    invar_status status;

    INVAR_TRY(invar_launch_open(&launch, invar_launch_timeout(config_of(recipe)), 2));
    status = invar_launch_train(&summary, &launch, config_of(recipe), &options);
    invar_launch_close(&launch);
    return status;
}

static void fail_and_resume(invar_recipe *recipe, const run_digests *undisturbed, faulty *f, int n)
{
    invar_allocator allocator = {faulty_alloc, faulty_free, f};
    invar_status status;
    int64_t start_ms;
    char disturbance[40];

    assert_ok(invar_held_folder_remove(run_path(SCENARIO_RUN)));
    *f = (faulty){.fail_at = n};
    invar_error_clear();
    invar_allocator_set(&allocator);
    start_ms = invar_process_clock_ms();
    status = train_on_two(recipe);
    invar_allocator_set(NULL);
    (void)snprintf(disturbance, sizeof disturbance, "allocation %d", n);
    if (invar_process_clock_ms() - start_ms > 30000)
        fail_msg("%s: a rank was not told, and waited for its deadline", disturbance);
    if (f->live != 0 || (status != INVAR_OK && status != INVAR_E_NOMEM && status != INVAR_E_IO))
        fail_msg("%s: status %d, %d blocks left: %s", disturbance, (int)status, (int)f->live,
                 invar_error_last()->message);
    if (status != INVAR_OK)
        invar_assert_message("no memory for", __FILE__, __LINE__);
    scenario_check_resume(recipe, undisturbed, disturbance);
}

static void test_launch_alloc__one_rank_goes_on_after_each_failure(void **state)
{
    invar_recipe *recipe = scenario_recipe(grpo);
    run_digests undisturbed = scenario_whole(recipe);
    int calls, stride;
    faulty f;

    (void)state;
    fail_and_resume(recipe, &undisturbed, &f, 0);
    calls = f.calls;
    stride = invar_test_full() ? 1 : calls / 6 + 1;
    for (int n = 1; n <= calls; n += n < START ? (int)invar_test_count(5, 1) : stride)
        fail_and_resume(recipe, &undisturbed, &f, n);
    invar_recipe_free(recipe);
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/launch_alloc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launch_alloc__one_rank_goes_on_after_each_failure)};

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
