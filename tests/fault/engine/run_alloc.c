/*
 * run_alloc.c - every allocation of a whole training run fails once, and the run goes on.
 *
 * After the failure: a clear error, no block left; and the run goes on, as run_scenario.h has it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/fault/engine/run_scenario.h"

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

/* On the far backend: what is written by a thread, and moments that visit the device. */
static const run_pair behind[] = {{"dtype", "bf16"},
                                  {"threads", "1"},
                                  {"device", "cuda"},
                                  {"debug-stats", "true"},
                                  {"optimizer-cpu-offload", "true"},
                                  {NULL, NULL}};

/* Adapters of a frozen base, and a reference beside it. */
static const run_pair lora[] = {
    {"dtype", "bf16"},       {"threads", "1"},        {"device", "cuda"}, {"lora-rank", "3"},
    {"use-kl-loss", "true"}, {"kl-loss-coef", "0.1"}, {NULL, NULL}};

/* Several turns, led by a plug-in, with experts, whose routing is kept. */
static const run_pair turns[] = {
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

/* Samples that a thread draws while a step trains, on a device with memory of its own. */
static const run_pair beside[] = {{"dtype", "bf16"},
                                  {"threads", "2"},
                                  {"device", "cuda"},
                                  {"rollout-lag", "1"},
                                  {"rollout-segment-tokens", "2"},
                                  {"rollout-overlap", "true"},
                                  {NULL, NULL}};

static void fail_and_go_on(const invar_recipe *recipe, const run_memory *whole, faulty *f, int n)
{
    invar_status status = scenario_disturbed(f, recipe, n);
    char what[40];

    (void)snprintf(what, sizeof what, "allocation %d", n);
    if (f->live != 0 || (status != INVAR_OK && status != INVAR_E_NOMEM))
        fail_msg("%s: status %d, %d blocks left: %s", what, (int)status, (int)f->live,
                 invar_error_last()->message);
    if (status != INVAR_OK)
        invar_assert_message("no memory for", __FILE__, __LINE__);
    if (INVAR_RECIPE_ENUM(invar_device_kind, recipe, INVAR_KEY_DEVICE) !=
        INVAR_DEVICE_CPU) { // it is never the device's memory
        assert_null(strstr(invar_error_last()->message, "lower "));
        assert_null(strstr(invar_error_last()->message, "too large"));
    }
    scenario_go_on(recipe, whole, what);
}

static void sweep(const run_pair *own)
{
    invar_recipe *recipe = scenario_recipe(own);
    run_memory whole = scenario_whole(recipe), other;
    faulty f;
    int calls, stride;

    assert_true(whole.last >= 1);
    fail_and_go_on(recipe, &whole, &f, 0); // none fails: memory that is not zero changes nothing
    calls = f.calls;
    stride = invar_test_full() ? 1 : calls / 6 + 1;
    for (int n = 1; n <= calls; n += stride)
        fail_and_go_on(recipe, &whole, &f, n);
    // the comparison can fail: another seed has another chain
    assert_ok(invar_recipe_set(recipe, "seed", "4321", "test"));
    other = scenario_whole(recipe);
    assert_false(invar_digest_equal(&other.chain, &whole.chain));
    invar_recipe_free(recipe);
}

static void test_run_alloc__grpo_goes_on_after_each_failure(void **state)
{
    (void)state;
    sweep(grpo);
}

static void test_run_alloc__ppo_with_experts_goes_on_after_each_failure(void **state)
{
    (void)state;
    sweep(ppo);
}

static void test_run_alloc__a_device_with_its_own_memory_goes_on_after_each_failure(void **state)
{
    (void)state;
    sweep(behind);
}

static void test_run_alloc__adapters_go_on_after_each_failure(void **state)
{
    (void)state;
    sweep(lora);
}

static void test_run_alloc__turns_go_on_after_each_failure(void **state)
{
    (void)state;
    sweep(turns);
}

static void test_run_alloc__samples_ahead_go_on_after_each_failure(void **state)
{
    (void)state;
    sweep(beside);
}

/* Own rollouts are made again, compared and followed, foreign ones are hashed and scored. */
static void test_run_alloc__rollouts_from_files_go_on_after_each_failure(void **state)
{
    const run_pair write[] = {{"dtype", "fp32"},
                              {"threads", "1"},
                              {"save-debug-rollout-data", run_below("files/{rollout_id}")},
                              {NULL, NULL}};
    const run_pair own[] = {{"dtype", "fp32"},
                            {"threads", "1"},
                            {"debug-determinism", "full"},
                            {"load-debug-rollout-data", run_below("files/{rollout_id}")},
                            {NULL, NULL}};
    const run_pair foreign[] = {{"dtype", "fp32"},
                                {"threads", "1"},
                                {"load-debug-rollout-data", run_below("files/{rollout_id}")},
                                {"use-tis", "true"},
                                {NULL, NULL}};

    (void)state;
    assert_ok(run_with("writer", write, NULL));
    sweep(own);
    sweep(foreign);
}

/* Whoever is told about a run: a failure there ends it at its beginning, or is a line. */
static void test_run_alloc__dashboards_go_on_after_each_failure(void **state)
{
    char board[400], file[400];
    const run_pair told[] = {
        {"dtype", "fp32"},         {"threads", "1"}, {"tensorboard-dir", board},
        {"prometheus-file", file}, {"sink", "cat"},  {NULL, NULL}};

    (void)state;
    (void)snprintf(board, sizeof board, "%s/board", run_below(SCENARIO_RUN));
    (void)snprintf(file, sizeof file, "%s/run.prom", run_below(SCENARIO_RUN));
    sweep(told);
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
