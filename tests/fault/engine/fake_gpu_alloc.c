/*
 * fake_gpu_alloc.c - allocations of device memory fail once, and the run is resumed.
 *
 * The run is on the fake GPU (tests/device/fake_gpu.h). The failure must return INVAR_E_NOMEM with
 * a message that does not blame the host's memory, and leave no block of either memory. Started
 * again, the run must reach the bits of an undisturbed one (run_scenario.h). All allocations fail
 * under full, else about five.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/fault/engine/run_scenario.h"

static const run_pair grpo[] = {{"device", "cuda"},
                                {"threads", "1"},
                                {"num-steps-per-rollout", "2"},
                                {"dtype", "bf16"},
                                {"eval-interval", "2"},
                                {"eval-prompt-data", "m task:max"},
                                {"use-kl-loss", "true"},
                                {"kl-loss-coef", "0.1"},
                                {"ref-update-interval", "1"},
                                {NULL, NULL}};

static const run_pair ppo[] = {{"device", "cuda"},
                               {"threads", "1"},
                               {"num-steps-per-rollout", "2"},
                               {"dtype", "fp32"},
                               {"advantage-estimator", "ppo"},
                               {"model-type", "qwen3_moe"},
                               {"num-experts", "2"},
                               {"moe-router-topk", "1"},
                               {"use-rollout-routing-replay", "true"},
                               {"recompute-granularity", "full"},
                               {"optimizer-cpu-offload", "true"},
                               {"debug-determinism", "full"},
                               {NULL, NULL}};

/* Lets the n-th allocation of device memory fail. Blocks of the heap are counted as well. */
static void fail_and_resume(invar_recipe *recipe, const run_digests *undisturbed, int n)
{
    invar_fake_gpu_counts counts;
    invar_status status;
    char disturbance[40];
    faulty f;

    (void)snprintf(disturbance, sizeof disturbance, "take %d", n);
    invar_fake_gpu_begin(n);
    status = scenario_disturbed(&f, recipe, 0);
    counts = invar_fake_gpu_counted();
    if (status != INVAR_E_NOMEM || counts.live != 0 || counts.opens != 0 || f.live != 0)
        fail_msg("%s: status %d, %d blocks of the device and %d of the host left: %s", disturbance,
                 (int)status, counts.live, (int)f.live, invar_error_last()->message);
    invar_assert_message("no memory for", __FILE__, __LINE__);
    assert_null(strstr(invar_error_last()->message, "the host's memory"));
    scenario_check_resume(recipe, undisturbed, disturbance);
}

static void sweep_allocs(const run_pair *keys)
{
    invar_recipe *recipe = scenario_recipe(keys);
    run_digests undisturbed = scenario_whole(recipe);
    int takes = invar_fake_gpu_counted().takes;
    int stride = invar_test_full() ? 1 : takes / 5 + 1;

    assert_true(takes > 20);
    for (int n = 1; n <= takes; n += stride)
        fail_and_resume(recipe, &undisturbed, n);
    invar_recipe_free(recipe);
}

static void test_fake_gpu_alloc__grpo_continues_after_each_failure(void **state)
{
    (void)state;
    sweep_allocs(grpo);
}

static void test_fake_gpu_alloc__ppo_with_experts_continues_after_each_failure(void **state)
{
    (void)state;
    sweep_allocs(ppo);
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/far_take");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fake_gpu_alloc__grpo_continues_after_each_failure),
        cmocka_unit_test(test_fake_gpu_alloc__ppo_with_experts_continues_after_each_failure),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
