/*
 * far_lost.c - the device is lost in the middle of a run, at every kind of moment.
 *
 * At once, so that every call from then on fails, or noticed late, as a kernel's failure is: the
 * host finds out when it waits for a result. Either way the run ends with a clear error and without
 * a leak, its ledger verifies, nothing that the lost device made is in it; and the run, started
 * again in the same folder, ends with the chain of one that was never disturbed. The far backend
 * (tests/far.h) stands in for CUDA.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "tests/far.h"
#include "tests/fault/faulty.h"
#include "tests/run.h"

const invar_backend *invar_backend_cuda(void)
{
    return invar_far_backend();
}

static const run_pair grpo[] = {
    {"dtype", "bf16"},       {"eval-interval", "2"},  {"eval-prompt-data", "m task:max"},
    {"use-kl-loss", "true"}, {"kl-loss-coef", "0.1"}, {NULL, NULL}};

static const run_pair ppo[] = {
    {"dtype", "fp32"},    {"advantage-estimator", "ppo"}, {"model-type", "qwen3_moe"},
    {"num-experts", "2"}, {"moe-router-topk", "1"},       {"debug-determinism", "full"},
    {NULL, NULL}};

static char folder[256], checkpoints[300];

static void lose_and_go_on(const invar_recipe *recipe, const run_memory *whole, int64_t at,
                           bool late)
{
    faulty f = {.fail_at = 0};
    invar_allocator allocator = {faulty_alloc, faulty_free, &f};
    invar_far_counts counts;
    invar_status status;
    run_memory after;

    assert_ok(invar_folder_remove(folder));
    invar_far_begin(0);
    invar_far_lose(at, late);
    invar_error_clear();
    invar_allocator_set(&allocator);
    status = run_train(recipe);
    invar_allocator_set(NULL);
    counts = invar_far_counted();
    // the last calls give no result that anybody waits for
    if (status != (counts.lost ? INVAR_E_CUDA : INVAR_OK) || counts.live != 0 ||
        counts.opens != 0 || f.live != 0)
        fail_msg("call %" PRId64 "%s: status %d, %d blocks of the device, %d of the host left: %s",
                 at, late ? ", late" : "", (int)status, counts.live, (int)f.live,
                 invar_error_last()->message);
    if (!late)
        assert_true(counts.lost);
    if (counts.lost)
        invar_assert_message("the device is lost", __FILE__, __LINE__);
    (void)run_remember(&after, folder); // verifies
    invar_far_begin(0);
    assert_ok(run_train(recipe));
    assert_true(run_remember(&after, folder));
    if (!run_same(&after, whole))
        fail_msg("call %" PRId64 "%s: the run went on to other bits", at, late ? ", late" : "");
}

static void sweep(const run_pair *own)
{
    const run_pair places[] = {
        {"device", "cuda"},    {"threads", "1"},       {"save", checkpoints},
        {"load", checkpoints}, {"save-interval", "1"}, {"num-steps-per-rollout", "2"},
        {NULL, NULL}};
    invar_recipe *recipe = run_recipe(folder, own, places);
    int64_t calls, stride;
    run_memory whole;

    assert_ok(invar_folder_remove(folder));
    invar_far_begin(0);
    assert_ok(run_train(recipe));
    assert_true(run_remember(&whole, folder));
    calls = invar_far_counted().calls;
    assert_true(calls > 500);
    stride = calls / invar_test_count(10, 200) + 1;
    for (int64_t at = 1; at <= calls; at += stride) {
        lose_and_go_on(recipe, &whole, at, false);
        lose_and_go_on(recipe, &whole, at + stride / 2, true);
    }
    invar_recipe_free(recipe);
    assert_ok(invar_folder_remove(folder));
}

static void test_far_lost__grpo_goes_on(void **state)
{
    (void)state;
    sweep(grpo);
}

static void test_far_lost__ppo_with_experts_goes_on(void **state)
{
    (void)state;
    sweep(ppo);
}

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/far_lost.%ld", INVAR_TEST_WORK, (long)getpid());
    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_far_lost__grpo_goes_on),
        cmocka_unit_test(test_far_lost__ppo_with_experts_goes_on),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
