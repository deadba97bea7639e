/*
 * far_take.c - every request for the device's memory fails once, and the run goes on.
 *
 * After the failure: a clear error, nothing of the device's memory left, a ledger that verifies;
 * and the run, started again in the same folder, ends with the chain of one that was never
 * disturbed. The far backend (tests/far.h) stands in for CUDA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/far.h"
#include "tests/fault/faulty.h"
#include "tests/run.h"

const invar_backend *invar_backend_cuda(void)
{
    return invar_far_backend();
}

static const run_pair grpo[] = {{"dtype", "bf16"},
                                {"eval-interval", "2"},
                                {"eval-prompt-data", "m task:max"},
                                {"use-kl-loss", "true"},
                                {"kl-loss-coef", "0.1"},
                                {"ref-update-interval", "1"},
                                {NULL, NULL}};

static const run_pair ppo[] = {{"dtype", "fp32"},
                               {"advantage-estimator", "ppo"},
                               {"model-type", "qwen3_moe"},
                               {"num-experts", "2"},
                               {"moe-router-topk", "1"},
                               {"use-rollout-routing-replay", "true"},
                               {"recompute-granularity", "full"},
                               {"optimizer-cpu-offload", "true"},
                               {"debug-determinism", "full"},
                               {NULL, NULL}};

static char folder[256], checkpoints[300];

/* With the n-th take failing, on heap blocks that are counted, too. */
static void fail_and_go_on(const invar_recipe *recipe, const run_memory *whole, int n)
{
    faulty f = {.fail_at = 0};
    invar_allocator allocator = {faulty_alloc, faulty_free, &f};
    invar_status status;
    run_memory after;

    assert_ok(invar_folder_remove(folder));
    invar_far_begin(n);
    invar_error_clear();
    invar_allocator_set(&allocator);
    status = run_train(recipe);
    invar_allocator_set(NULL);
    if (status != INVAR_E_NOMEM || invar_far_counted().live != 0 ||
        invar_far_counted().opens != 0 || f.live != 0)
        fail_msg("take %d: status %d, %d blocks of the device and %d of the host left: %s", n,
                 (int)status, invar_far_counted().live, (int)f.live, invar_error_last()->message);
    invar_assert_message("no memory for", __FILE__, __LINE__);
    (void)run_remember(&after, folder);
    invar_far_begin(0);
    assert_ok(run_train(recipe));
    assert_true(run_remember(&after, folder));
    if (!run_same(&after, whole))
        fail_msg("take %d: the run went on to other bits", n);
}

static void sweep(const run_pair *own)
{
    const run_pair places[] = {
        {"device", "cuda"},    {"threads", "1"},       {"save", checkpoints},
        {"load", checkpoints}, {"save-interval", "1"}, {"num-steps-per-rollout", "2"},
        {NULL, NULL}};
    invar_recipe *recipe = run_recipe(folder, own, places);
    run_memory whole;
    int takes, stride;

    assert_ok(invar_folder_remove(folder));
    invar_far_begin(0);
    assert_ok(run_train(recipe));
    assert_true(run_remember(&whole, folder));
    takes = invar_far_counted().takes;
    assert_true(takes > 20);
    stride = invar_test_full() ? 1 : takes / 12 + 1;
    for (int n = 1; n <= takes; n += stride)
        fail_and_go_on(recipe, &whole, n);
    invar_recipe_free(recipe);
    assert_ok(invar_folder_remove(folder));
}

static void test_far_take__grpo_goes_on_after_each_failure(void **state)
{
    (void)state;
    sweep(grpo);
}

static void test_far_take__ppo_with_experts_goes_on_after_each_failure(void **state)
{
    (void)state;
    sweep(ppo);
}

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/far_take.%ld", INVAR_TEST_WORK, (long)getpid());
    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_far_take__grpo_goes_on_after_each_failure),
        cmocka_unit_test(test_far_take__ppo_with_experts_goes_on_after_each_failure),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
