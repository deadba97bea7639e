/*
 * memory_workload.c - tests of memory plans for many ranks: no rank needs more than the planned
 * one.
 *
 * The plan of a stage is compared with the maximum over the plans of all ranks. Control: in some
 * layouts another rank than the first one of a stage has the maximum.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_workload.h"

#include "tests/run.h"
#include "tests/unit/engine/config/config_of.h"

static const run_pair base_recipe[] = {{"num-layers", "5"},
                                       {"hidden-size", "64"},
                                       {"ffn-hidden-size", "544"},
                                       {"num-attention-heads", "8"},
                                       {"num-query-groups", "4"},
                                       {"kv-channels", "128"},
                                       {"vocab-size", "1100"},
                                       {"rollout-batch-size", "16"},
                                       {"rollout-max-response-len", "5"},
                                       {"unit-count", "24"},
                                       {"logical-tp", "4"},
                                       {"logical-etp", "4"},
                                       {"model-type", "qwen3_moe"},
                                       {"num-experts", "6"},
                                       {"moe-router-topk", "2"},
                                       {"dtype", "bf16"},
                                       {NULL, NULL}};

/*
 * Returns the largest need of all ranks; *first is the largest need of the first ranks of stages.
 */
static size_t max_need_of_ranks(size_t *first, invar_memory_planning *v,
                                const invar_layout_sizes *sizes, int ranks)
{
    size_t max_need = 0;

    *first = 0;
    for (int r = 0; r < ranks; r++) {
        assert_ok(invar_memory_planning_plan_rank(v, sizes, ranks, r));
        max_need = v->plan.need > max_need ? v->plan.need : max_need;
        if (r % (ranks / sizes->pipeline) == 0 && v->plan.need > *first)
            *first = v->plan.need;
    }
    return max_need;
}

static size_t max_need_of_stages(invar_memory_planning *v, const invar_layout_sizes *sizes,
                                 int ranks)
{
    size_t max_need = 0;

    for (int s = 0; s<sizes->pipeline; s += sizes->pipeline> 1 ? sizes->pipeline - 1 : 1) {
        assert_ok(invar_memory_planning_plan_stage(v, sizes, ranks, s));
        max_need = v->plan.need > max_need ? v->plan.need : max_need;
        assert_int_equal(v->layout.data.rank, 0);
    }
    return max_need;
}

/* Compares both maxima. Returns 1 if the first ranks of the stages all need less, else 0. */
static int compare_needs(int ranks, const run_pair *overrides)
{
    invar_recipe *recipe = run_recipe(run_path("most"), base_recipe, overrides);
    invar_layout_sizes sizes;
    invar_memory_planning planning;
    size_t max_need, first;

    assert_ok(invar_train_settings_sizes(&sizes, config_of(recipe)));
    assert_ok(invar_memory_planning_open(&planning, config_of(recipe), (size_t)1 << 40));
    max_need = max_need_of_ranks(&first, &planning, &sizes, ranks);
    assert_int_equal(max_need_of_stages(&planning, &sizes, ranks), max_need);
    invar_memory_planning_release(&planning);
    invar_recipe_free(recipe);
    return max_need > first;
}

static void test_memory_workload__no_rank_needs_more_than_planned(void **state)
{
    static const run_pair tensor[] = {{"tensor-model-parallel-size", "2"}, {NULL, NULL}};
    static const run_pair expert[] = {{"expert-model-parallel-size", "2"}, {NULL, NULL}};
    static const run_pair stages[] = {{"pipeline-model-parallel-size", "3"}, {NULL, NULL}};
    static const run_pair all[] = {
        {"pipeline-model-parallel-size", "2"}, {"tensor-model-parallel-size", "2"}, {NULL, NULL}};
    int n_not_first = 0;

    (void)state;
    n_not_first += compare_needs(3, NULL);
    n_not_first += compare_needs(9, NULL);
    n_not_first += compare_needs(6, tensor);
    n_not_first += compare_needs(6, expert);
    n_not_first += compare_needs(9, stages);
    n_not_first += compare_needs(12, all);
    assert_true(n_not_first > 0); // else the plan of first ranks would be enough
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/run_digests");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_workload__no_rank_needs_more_than_planned),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
