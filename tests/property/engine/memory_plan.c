/*
 * memory_plan.c - whole runs take the memory that was planned for them, no more; and whatever a
 * device has, a run is refused before it begins or goes through, with one chain.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/run/memory_workload.h"
#include "tests/device/counting_allocator.h"
#include "tests/device/fake_gpu.h"
#include "tests/run.h"

/* ---- a near device with a limit -------------------------------------------------------------- */

static bool far; /* which device is cuda */

static size_t room(const invar_device *dev)
{
    (void)dev;
    return invar_counted.limit - invar_counted.taken;
}

const invar_backend *invar_backend_cuda(void)
{
    static invar_backend table;

    if (far)
        return invar_far_backend();
    table = *invar_backend_cpu();
    table.memory.alloc = invar_counted_take;
    table.memory.free = invar_counted_give;
    table.memory.free_bytes = room;
    return &table;
}

static void begin(size_t limit)
{
    invar_far_begin(0);
    invar_far_limit(limit);
    memset(&invar_counted, 0, sizeof invar_counted);
    invar_counted.limit = limit;
}

static size_t most_taken(void)
{
    return far ? invar_far_counted().most : invar_counted.most;
}

static int64_t takes(void)
{
    return far ? invar_far_counted().takes : invar_counted.takes;
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

static const run_pair *const kinds[] = {dense, experts, critic};

static invar_recipe *recipe_of(const run_pair *kind, const char *dtype, const char *name)
{
    run_pair all[64] = {{"dtype", dtype}};
    int count = 1;

    for (const run_pair *p = wide; p->key; p++)
        all[count++] = *p;
    for (const run_pair *p = kind; p->key; p++)
        all[count++] = *p;
    all[count] = (run_pair){NULL, NULL};
    return run_recipe(run_below(name), all, NULL);
}

static void compare(const run_pair *kind, const char *dtype)
{
    static int number;
    char name[32];
    invar_memory_planning plan;
    invar_recipe *recipe;

    (void)snprintf(name, sizeof name, "run%d", number++);
    recipe = recipe_of(kind, dtype, name);
    begin(PLENTY);
    assert_ok(invar_memory_planning_run(&plan, recipe, 0));
    assert_int_equal(takes(), 0); // a plan takes nothing
    assert_ok(run_train(recipe));
    if (most_taken() > plan.plan.need || (double)plan.plan.need > 1.05 * (double)most_taken())
        fail_msg("%s %s: %zu bytes were planned, %zu were taken", name, dtype, plan.plan.need,
                 most_taken());
    invar_memory_planning_release(&plan);
    invar_recipe_free(recipe);
}

static void test_memory_plan__runs_take_what_was_planned(void **state)
{
    (void)state;
    for (int device = 0; device < 2; device++) {
        far = device == 1;
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            compare(kinds[k], "bf16");
        compare(dense, "fp32");
        for (int f = 0; f < 3; f++)
            compare(experts, (const char *const[]){"fp8", "mxfp8", "int4"}[f]);
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

/* A run with so much memory; true: it went through, to `chain` where that is known. */
static bool fits_in(size_t limit, invar_digest *chain, bool *known)
{
    static int number;
    char name[32];
    run_memory found;
    invar_recipe *recipe;
    invar_status status;

    (void)snprintf(name, sizeof name, "limit%d", number++);
    recipe = recipe_of(tight, "bf16", name);
    begin(limit);
    status = run_train(recipe);
    invar_recipe_free(recipe);
    if (status != INVAR_OK) {
        invar_assert_status(status, INVAR_E_NOMEM, "a run in little memory", __FILE__, __LINE__);
        invar_assert_message("the run does not fit: it needs", __FILE__, __LINE__);
        assert_int_equal(takes(), 0);
        assert_false(invar_path_exists(run_below(name))); // not even begun
        return false;
    }
    assert_true(most_taken() <= limit);
    found = run_memory_of(name);
    assert_true(!*known || invar_digest_equal(chain, &found.chain));
    *chain = found.chain;
    *known = true;
    return true;
}

static void test_memory_plan__any_limit_is_refused_or_kept(void **state)
{
    invar_digest chain;
    bool known = false;

    (void)state;
    for (int device = 0; device < 2; device++) {
        int refused = 0, kept = 0;
        invar_memory_planning plan;
        invar_recipe *recipe;
        size_t most, step;

        far = device == 1;
        recipe = recipe_of(tight, "bf16", "planned");
        begin(PLENTY);
        assert_ok(invar_memory_planning_run(&plan, recipe, 0));
        most = plan.plan.need + plan.plan.need / 32;
        invar_memory_planning_release(&plan);
        invar_recipe_free(recipe);
        step = most / (size_t)invar_test_count(12, 100);
        for (size_t limit = most; limit > step; limit -= step) {
            bool went = fits_in(limit, &chain, &known);
            assert_true(!went || refused == 0); // less memory never helps
            kept += went;
            refused += !went;
        }
        assert_true(kept >= 3 && refused >= 1);
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
        cmocka_unit_test(test_memory_plan__runs_take_what_was_planned),
        cmocka_unit_test(test_memory_plan__any_limit_is_refused_or_kept),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
