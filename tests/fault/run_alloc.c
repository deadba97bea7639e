/*
 * run_alloc.c - every allocation of a whole training run fails once, and the run goes on.
 *
 * After the failure: a clear error, no block left, a ledger that verifies; and the run, started
 * again in the same folder, ends with the chain and the content of one that was never disturbed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/far.h"
#include "tests/fault/faulty.h"
#include "tests/run.h"

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
                               {"audit", "8"},
                               {NULL, NULL}};

/* On the far backend: what is written by a thread, and moments that visit the device. */
static const run_pair behind[] = {{"dtype", "bf16"},
                                  {"threads", "1"},
                                  {"device", "cuda"},
                                  {"optimizer-cpu-offload", "true"},
                                  {NULL, NULL}};

const invar_backend *invar_backend_cuda(void)
{
    return invar_far_backend();
}

static char folder[256], checkpoints[300], rollouts[300];

static invar_recipe *recipe_of(const run_pair *own)
{
    const run_pair places[] = {{"save", checkpoints},
                               {"load", checkpoints},
                               {"save-interval", "1"},
                               {"save-debug-rollout-data", rollouts},
                               {NULL, NULL}};

    return run_recipe(folder, own, places);
}

static void fail_and_go_on(const invar_recipe *recipe, const run_memory *whole, faulty *f, int n)
{
    invar_allocator allocator = {faulty_alloc, faulty_free, f};
    invar_status status;
    run_memory after;

    assert_ok(invar_folder_remove(folder));
    *f = (faulty){.fail_at = n};
    invar_error_clear();
    invar_allocator_set(&allocator);
    status = run_train(recipe);
    invar_allocator_set(NULL);
    if (f->live != 0 || (status != INVAR_OK && status != INVAR_E_NOMEM))
        fail_msg("allocation %d: status %d, %d blocks left: %s", n, (int)status, (int)f->live,
                 invar_error_last()->message);
    if (status != INVAR_OK)
        invar_assert_message("no memory for", __FILE__, __LINE__);
    (void)run_remember(&after, folder);
    assert_ok(run_train(recipe));
    assert_true(run_remember(&after, folder));
    if (!run_same(&after, whole))
        fail_msg("allocation %d: the run went on to other bits", n);
}

static void sweep(const run_pair *own)
{
    invar_recipe *recipe = recipe_of(own);
    run_memory whole, other;
    faulty f;
    int calls, stride;

    assert_ok(invar_folder_remove(folder));
    assert_ok(run_train(recipe));
    assert_true(run_remember(&whole, folder));
    assert_true(whole.last >= 1);
    fail_and_go_on(recipe, &whole, &f, 0); // none fails: memory that is not zero changes nothing
    calls = f.calls;
    stride = invar_test_full() ? 1 : calls / 6 + 1;
    for (int n = 1; n <= calls; n += stride)
        fail_and_go_on(recipe, &whole, &f, n);
    // the comparison can fail: another seed has another chain
    assert_ok(invar_folder_remove(folder));
    assert_ok(invar_recipe_set(recipe, "seed", "4321", "test"));
    assert_ok(run_train(recipe));
    assert_true(run_remember(&other, folder));
    assert_false(invar_digest_equal(&other.chain, &whole.chain));
    invar_recipe_free(recipe);
    assert_ok(invar_folder_remove(folder));
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

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/run_alloc.%ld", INVAR_TEST_WORK, (long)getpid());
    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", folder);
    (void)snprintf(rollouts, sizeof rollouts, "%s/{rollout_id}.jsonl", folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_alloc__grpo_goes_on_after_each_failure),
        cmocka_unit_test(test_run_alloc__ppo_with_experts_goes_on_after_each_failure),
        cmocka_unit_test(test_run_alloc__a_device_with_its_own_memory_goes_on_after_each_failure),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
