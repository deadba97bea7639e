/*
 * run_alloc.c - allocations of a complete training run fail one at a time, and the run is resumed.
 *
 * After the failure: a clear error, no block left; and the run, started again, must reach the bits
 * of an undisturbed one (run_scenario.h). All allocations fail under full, else one of each run, at
 * another place in each. Control: another seed gives another chain.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/fault/engine/run_scenario.h"
#include "tests/unit/engine/config/config_of.h"

static const run_pair grpo[] = {{"dtype", "fp32"},
                                {"threads", "2"},
                                {"eval-interval", "2"},
                                {"eval-prompt-data", "m task:max"},
                                {"use-kl-loss", "true"},
                                {"kl-loss-coef", "0.1"},
                                {"ref-update-interval", "1"},
                                {"num-steps-per-rollout", "2"},
                                {"rollout-stop", "[\"zzz\"]"},
                                {NULL, NULL}};

static const run_pair ppo[] = {{"dtype", "bf16"},
                               {"threads", "1"},
                               {"advantage-estimator", "ppo"},
                               {"model-type", "qwen3_moe"},
                               {"num-experts", "2"},
                               {"moe-router-topk", "1"},
                               {"use-rollout-routing-replay", "true"},
                               {"recompute-granularity", "full"},
                               {"debug-determinism", "full"},
                               {"debug-stats", "true"},
                               {"audit", "8"},
                               {NULL, NULL}};

/* On the fake GPU: checkpoints that a thread writes, and optimizer moments in host memory. */
static const run_pair fake_gpu[] = {{"dtype", "bf16"},
                                    {"threads", "1"},
                                    {"device", "cuda"},
                                    {"debug-stats", "true"},
                                    {"optimizer-cpu-offload", "true"},
                                    {NULL, NULL}};

/* LoRA adapters of a frozen base, with a reference model. */
static const run_pair lora[] = {
    {"dtype", "bf16"},       {"threads", "1"},        {"device", "cuda"}, {"lora-rank", "3"},
    {"use-kl-loss", "true"}, {"kl-loss-coef", "0.1"}, {NULL, NULL}};

/* Multi-turn samples that a plug-in drives, with experts, whose routing is recorded. */
static const run_pair multi_turn[] = {
    {"dtype", "bf16"},
    {"threads", "1"},
    {"prompt-data", "task:guess"},
    {"rollout-max-response-len", "9"},
    {"rollout-max-turns", "3"},
    {"rollout-max-turn-len", "1"},
    {"custom-generate-function-path", INVAR_TEST_WORK "/plugin/turns.so"},
    {"model-type", "qwen3_moe"},
    {"num-experts", "2"},
    {"moe-router-topk", "1"},
    {"use-rollout-routing-replay", "true"},
    {NULL, NULL}};

/* Asynchronous sampling: a thread samples while a step trains, on a device with its own memory. */
static const run_pair asynchronous[] = {{"dtype", "bf16"},
                                        {"threads", "2"},
                                        {"device", "cuda"},
                                        {"rollout-lag", "1"},
                                        {"rollout-segment-tokens", "2"},
                                        {"rollout-overlap", "true"},
                                        {NULL, NULL}};

static void fail_and_resume(invar_recipe *recipe, const run_digests *undisturbed, faulty *f, int n)
{
    invar_status status = scenario_disturbed(f, recipe, n);
    char disturbance[40];

    (void)snprintf(disturbance, sizeof disturbance, "allocation %d", n);
    if (f->live != 0 || (status != INVAR_OK && status != INVAR_E_NOMEM))
        fail_msg("%s: status %d, %d blocks left: %s", disturbance, (int)status, (int)f->live,
                 invar_error_last()->message);
    if (status != INVAR_OK)
        invar_assert_message("no memory for", __FILE__, __LINE__);
    // The message must not blame the device's memory.
    if (config_of(recipe)->device != INVAR_DEVICE_CPU) {
        assert_null(strstr(invar_error_last()->message, "lower "));
        assert_null(strstr(invar_error_last()->message, "too large"));
    }
    scenario_check_resume(recipe, undisturbed, disturbance);
}

static int sweeps; /* number of finished sweeps, which shifts the places of the failures */

static void sweep_allocs(const run_pair *own)
{
    invar_recipe *recipe = scenario_recipe(own);
    run_digests undisturbed = scenario_whole(recipe), other;
    faulty f;
    int calls, stride;

    assert_true(undisturbed.last >= 1);
    // Control: no allocation fails, and heap memory that is not zero changes no bits.
    fail_and_resume(recipe, &undisturbed, &f, 0);
    calls = f.calls;
    stride = invar_test_full() ? 1 : calls;
    for (int n = 1 + (int)((int64_t)stride * (sweeps % 9) / 9); n <= calls; n += stride)
        fail_and_resume(recipe, &undisturbed, &f, n);
    // Control: the comparison can fail, because another seed has another chain.
    if (sweeps++ == 0 || invar_test_full()) {
        assert_ok(invar_recipe_set(recipe, "seed", "4321", "test"));
        other = scenario_whole(recipe);
        assert_false(invar_digest_equal(&other.chain, &undisturbed.chain));
    }
    invar_recipe_free(recipe);
}

static void test_run_alloc__grpo_goes_on_after_each_failure(void **state)
{
    (void)state;
    sweep_allocs(grpo);
}

static void test_run_alloc__ppo_with_experts_goes_on_after_each_failure(void **state)
{
    (void)state;
    sweep_allocs(ppo);
}

static void test_run_alloc__a_device_with_its_own_memory_goes_on_after_each_failure(void **state)
{
    (void)state;
    sweep_allocs(fake_gpu);
}

static void test_run_alloc__adapters_go_on_after_each_failure(void **state)
{
    (void)state;
    sweep_allocs(lora);
}

static void test_run_alloc__turns_go_on_after_each_failure(void **state)
{
    (void)state;
    sweep_allocs(multi_turn);
}

static void test_run_alloc__samples_ahead_go_on_after_each_failure(void **state)
{
    (void)state;
    sweep_allocs(asynchronous);
}

/*
 * Rollouts from files: those of the same run are sampled again, compared and trained on; those of
 * another recipe (`foreign`) are hashed and scored.
 */
static void test_run_alloc__rollouts_from_files_go_on_after_each_failure(void **state)
{
    const run_pair write[] = {{"dtype", "fp32"},
                              {"threads", "1"},
                              {"save-debug-rollout-data", run_path("files/{rollout_id}")},
                              {NULL, NULL}};
    const run_pair own[] = {{"dtype", "fp32"},
                            {"threads", "1"},
                            {"debug-determinism", "full"},
                            {"load-debug-rollout-data", run_path("files/{rollout_id}")},
                            {NULL, NULL}};
    const run_pair foreign[] = {{"dtype", "fp32"},
                                {"threads", "1"},
                                {"load-debug-rollout-data", run_path("files/{rollout_id}")},
                                {"use-tis", "true"},
                                {NULL, NULL}};

    (void)state;
    assert_ok(run_train_pairs("writer", write, NULL));
    sweep_allocs(own);
    sweep_allocs(foreign);
}

/* Dashboards: a failure there ends the run at its start, or is a warning. */
static void test_run_alloc__dashboards_go_on_after_each_failure(void **state)
{
    char board[400], file[400];
    const run_pair dashboards[] = {
        {"dtype", "fp32"},         {"threads", "1"}, {"tensorboard-dir", board},
        {"prometheus-file", file}, {"sink", "cat"},  {NULL, NULL}};

    (void)state;
    (void)snprintf(board, sizeof board, "%s/board", run_path(SCENARIO_RUN));
    (void)snprintf(file, sizeof file, "%s/run.prom", run_path(SCENARIO_RUN));
    sweep_allocs(dashboards);
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/run_alloc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_alloc__grpo_goes_on_after_each_failure),
        cmocka_unit_test(test_run_alloc__ppo_with_experts_goes_on_after_each_failure),
        cmocka_unit_test(test_run_alloc__a_device_with_its_own_memory_goes_on_after_each_failure),
        cmocka_unit_test(test_run_alloc__adapters_go_on_after_each_failure),
        cmocka_unit_test(test_run_alloc__turns_go_on_after_each_failure),
        cmocka_unit_test(test_run_alloc__samples_ahead_go_on_after_each_failure),
        cmocka_unit_test(test_run_alloc__rollouts_from_files_go_on_after_each_failure),
        cmocka_unit_test(test_run_alloc__dashboards_go_on_after_each_failure),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
