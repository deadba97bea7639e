/*
 * fake_gpu_lost.c - the device is lost in the middle of a run, and the run is resumed.
 *
 * The fake GPU (tests/device/fake_gpu.h) fails either at once, so that every later call fails, or
 * late, like a failing kernel: the host sees the error when it waits for a result. Either way the
 * run must end with a clear error and without a leak, its ledger must verify, and the run, started
 * again, must reach the bits of an undisturbed one (run_scenario.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "tests/fault/engine/run_scenario.h"

static const run_pair grpo[] = {
    {"device", "cuda"},      {"threads", "1"},        {"num-steps-per-rollout", "2"},
    {"dtype", "bf16"},       {"eval-interval", "2"},  {"eval-prompt-data", "m task:max"},
    {"use-kl-loss", "true"}, {"kl-loss-coef", "0.1"}, {NULL, NULL}};

static const run_pair ppo[] = {{"device", "cuda"},
                               {"threads", "1"},
                               {"num-steps-per-rollout", "2"},
                               {"dtype", "fp32"},
                               {"advantage-estimator", "ppo"},
                               {"model-type", "qwen3_moe"},
                               {"num-experts", "2"},
                               {"moe-router-topk", "1"},
                               {"debug-determinism", "full"},
                               {NULL, NULL}};

static void lose_and_resume(invar_recipe *recipe, const run_digests *undisturbed, int64_t call,
                            bool late)
{
    invar_fake_gpu_counts counts;
    invar_status status;
    char disturbance[80];
    faulty f;

    (void)snprintf(disturbance, sizeof disturbance, "call %" PRId64 "%s", call,
                   late ? ", late" : "");
    invar_fake_gpu_begin(0);
    invar_fake_gpu_lose(call, late);
    status = scenario_disturbed(&f, recipe, 0);
    counts = invar_fake_gpu_counted();
    // a late loss in the last calls is never seen, because the run waits for no result after them
    if (status != (counts.lost ? INVAR_E_CUDA : INVAR_OK) || counts.live != 0 ||
        counts.opens != 0 || f.live != 0)
        fail_msg("%s: status %d, %d blocks of the device, %d of the host left: %s", disturbance,
                 (int)status, counts.live, (int)f.live, invar_error_last()->message);
    if (!late)
        assert_true(counts.lost);
    if (counts.lost)
        invar_assert_message("the device is lost", __FILE__, __LINE__);
    scenario_check_resume(recipe, undisturbed, disturbance);
}

static void sweep_calls(const run_pair *keys)
{
    invar_recipe *recipe = scenario_recipe(keys);
    run_digests undisturbed = scenario_whole(recipe);
    int64_t calls = invar_fake_gpu_counted().calls;
    int64_t stride = calls / invar_test_count(3, 200) + 1;

    assert_true(calls > 500);
    for (int64_t call = 1; call <= calls; call += stride) {
        lose_and_resume(recipe, &undisturbed, call, false);
        lose_and_resume(recipe, &undisturbed, call + stride / 2, true);
    }
    invar_recipe_free(recipe);
}

static void test_fake_gpu_lost__grpo_continues(void **state)
{
    (void)state;
    sweep_calls(grpo);
}

static void test_fake_gpu_lost__ppo_with_experts_continues(void **state)
{
    (void)state;
    sweep_calls(ppo);
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/far_lost");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fake_gpu_lost__grpo_continues),
        cmocka_unit_test(test_fake_gpu_lost__ppo_with_experts_continues),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
