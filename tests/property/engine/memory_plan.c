/*
 * memory_plan.c - runs allocate the device memory that was planned for them, and no more.
 *
 * Complete runs of several models and formats, on a device in host memory that counts allocations
 * and on the fake GPU: the maximum may not exceed the plan, and the plan may not exceed it by more
 * than 5 percent. With any limit of the memory, a run is either rejected before it allocates or
 * creates anything, or it ends with the same chain as with all other limits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/run/memory_workload.h"
#include "tests/device/counting_allocator.h"
#include "tests/device/fake_gpu.h"
#include "tests/run.h"
#include "tests/unit/engine/config/config_of.h"

/* ---- a device in host memory with a limit ---------------------------------------------------- */

static bool use_fake_gpu; /* device `cuda` is the fake GPU, not the counting one */

static size_t free_bytes_below_limit(const invar_device *dev)
{
    (void)dev;
    return invar_counting_allocator.limit - invar_counting_allocator.taken;
}

const invar_backend *invar_backend_cuda(void)
{
    static invar_backend table;

    if (use_fake_gpu)
        return invar_fake_gpu_backend();
    table = *invar_backend_cpu();
    table.memory.alloc = invar_counting_allocator_alloc;
    table.memory.free = invar_counting_allocator_free;
    table.memory.free_bytes = free_bytes_below_limit;
    return &table;
}

static void reset_device(size_t limit)
{
    invar_fake_gpu_begin(0);
    invar_fake_gpu_limit(limit);
    memset(&invar_counting_allocator, 0, sizeof invar_counting_allocator);
    invar_counting_allocator.limit = limit;
}

static size_t max_allocated(void)
{
    return use_fake_gpu ? invar_fake_gpu_counted().most : invar_counting_allocator.most;
}

static int64_t takes(void)
{
    return use_fake_gpu ? invar_fake_gpu_counted().takes : invar_counting_allocator.takes;
}

/* ---- planned and taken ----------------------------------------------------------------------- */

#define PLENTY ((size_t)1 << 33)

static const run_pair wide[] = {{"hidden-size", "128"},
                                {"num-attention-heads", "2"},
                                {"num-query-groups", "2"},
                                {"kv-channels", "64"},
                                {"ffn-hidden-size", "128"},
                                {"max-position-embeddings", "64"},
                                {"rollout-max-response-len", "24"},
                                {NULL, NULL}};

static const run_pair dense[] = {{"device", "cuda"},
                                 {"threads", "1"},
                                 {"use-kl-loss", "true"},
                                 {"kl-loss-coef", "0.1"},
                                 {"micro-batch-size", "2"},
                                 {"eval-interval", "1"},
                                 {"eval-prompt-data", "m task:max"},
                                 {"eval-max-response-len", "30"},
                                 {"speculative-algorithm", "ngram"},
                                 {"speculative-num-draft-tokens", "3"},
                                 {NULL, NULL}};

static const run_pair experts[] = {{"device", "cuda"},
                                   {"threads", "1"},
                                   {"model-type", "qwen3_moe"},
                                   {"num-experts", "3"},
                                   {"moe-router-topk", "2"},
                                   {"moe-ffn-hidden-size", "128"},
                                   {"use-rollout-routing-replay", "true"},
                                   {"recompute-granularity", "full"},
                                   {"entropy-coef", "0.01"},
                                   {"optimizer-cpu-offload", "true"},
                                   {"debug-determinism", "full"},
                                   {NULL, NULL}};

static const run_pair critic[] = {{"device", "cuda"},
                                  {"threads", "2"},
                                  {"advantage-estimator", "ppo"},
                                  {"use-dynamic-batch-size", "true"},
                                  {"max-tokens-per-gpu", "50"},
                                  {"log-probs-chunk-size", "7"},
                                  {"debug-determinism", "point"},
                                  {NULL, NULL}};

static const run_pair *const recipes[] = {dense, experts, critic};

static invar_recipe *recipe_of(const run_pair *pairs, const char *dtype, const char *name)
{
    run_pair all[64] = {{"dtype", dtype}};
    int count = 1;

    for (const run_pair *p = wide; p->key; p++)
        all[count++] = *p;
    for (const run_pair *p = pairs; p->key; p++)
        all[count++] = *p;
    all[count] = (run_pair){NULL, NULL};
    return run_recipe(run_path(name), all, NULL);
}

static void compare_with_plan(const run_pair *pairs, const char *dtype)
{
    static int number;
    char name[32];
    invar_memory_planning plan;
    invar_recipe *recipe;

    (void)snprintf(name, sizeof name, "run%d", number++);
    recipe = recipe_of(pairs, dtype, name);
    reset_device(PLENTY);
    assert_ok(invar_memory_planning_open(&plan, config_of(recipe), 0));
    assert_ok(invar_memory_plan_make(&plan.plan, &plan.workload, plan.available));
    assert_int_equal(takes(), 0); // planning allocates nothing
    assert_ok(run_train(recipe));
    if (max_allocated() > plan.plan.need || (double)plan.plan.need > 1.05 * (double)max_allocated())
        fail_msg("%s %s: %zu bytes were planned, %zu were taken", name, dtype, plan.plan.need,
                 max_allocated());
    invar_memory_planning_release(&plan);
    invar_recipe_free(recipe);
}

static void test_memory_plan__runs_allocate_what_was_planned(void **state)
{
    (void)state;
    for (int device = 0; device < 2; device++) {
        use_fake_gpu = device == 1;
        for (size_t k = 0; k < sizeof recipes / sizeof *recipes; k++)
            compare_with_plan(recipes[k], "bf16");
        compare_with_plan(dense, "fp32");
        for (int f = 0; f < 3; f++)
            compare_with_plan(experts, (const char *const[]){"fp8", "mxfp8", "int4"}[f]);
    }
}

/* ---- limits ---------------------------------------------------------------------------------- */

static const run_pair tight[] = {{"device", "cuda"},
                                 {"threads", "1"},
                                 {"rollout-batch-size", "8"},
                                 {"n-samples-per-prompt", "4"},
                                 {"num-rollout", "1"},
                                 {"use-dynamic-batch-size", "true"},
                                 {"max-tokens-per-gpu", "1000"},
                                 {"eval-interval", "1"},
                                 {"eval-prompt-data", "m task:max"},
                                 {NULL, NULL}};

/*
 * Trains with `limit` bytes. Returns false if the run was rejected. Otherwise checks the chain
 * against *chain if *known, and stores it.
 */
static bool run_with_limit(size_t limit, invar_digest *chain, bool *known)
{
    static int number;
    char name[32];
    run_digests digests;
    invar_recipe *recipe;
    invar_status status;

    (void)snprintf(name, sizeof name, "limit%d", number++);
    recipe = recipe_of(tight, "bf16", name);
    reset_device(limit);
    status = run_train(recipe);
    invar_recipe_free(recipe);
    if (status != INVAR_OK) {
        invar_assert_status(status, INVAR_E_NOMEM, "a run in little memory", __FILE__, __LINE__);
        invar_assert_message("the run does not fit: it needs", __FILE__, __LINE__);
        assert_int_equal(takes(), 0);
        assert_false(invar_path_exists(run_path(name))); // the run folder was not created
        return false;
    }
    assert_true(max_allocated() <= limit);
    digests = run_digests_of(name);
    assert_true(!*known || invar_digest_equal(chain, &digests.chain));
    *chain = digests.chain;
    *known = true;
    return true;
}

static void test_memory_plan__any_limit_rejects_or_changes_no_bit(void **state)
{
    invar_digest chain;
    bool known = false;

    (void)state;
    for (int device = 0; device < 2; device++) {
        int n_rejected = 0, n_succeeded = 0;
        invar_memory_planning plan;
        invar_recipe *recipe;
        size_t most, step;

        use_fake_gpu = device == 1;
        recipe = recipe_of(tight, "bf16", "planned");
        reset_device(PLENTY);
        assert_ok(invar_memory_planning_open(&plan, config_of(recipe), 0));
        assert_ok(invar_memory_plan_make(&plan.plan, &plan.workload, plan.available));
        most = plan.plan.need + plan.plan.need / 32;
        invar_memory_planning_release(&plan);
        invar_recipe_free(recipe);
        step = most / (size_t)invar_test_count(12, 100);
        for (size_t limit = most; limit > step; limit -= step) {
            bool succeeded = run_with_limit(limit, &chain, &known);
            assert_true(!succeeded || n_rejected == 0); // less memory is rejected too
            n_succeeded += succeeded;
            n_rejected += !succeeded;
        }
        assert_true(n_succeeded >= 3 && n_rejected >= 1);
    }
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/memory_plan");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_plan__runs_allocate_what_was_planned),
        cmocka_unit_test(test_memory_plan__any_limit_rejects_or_changes_no_bit),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
