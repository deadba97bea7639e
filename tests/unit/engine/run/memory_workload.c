/*
 * memory_workload.c - a test of plans for many ranks: no rank needs more than the one that is
 * shown.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_workload.h"

#include "tests/run.h"

static const run_pair usual[] = {{"num-layers", "5"},
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

/* What all ranks need at most; *first: what the first one of a stage does. */
static size_t most_of_ranks(size_t *first, invar_memory_planning *v,
                            const invar_layout_sizes *sizes, int ranks)
{
    size_t most = 0;

    *first = 0;
    for (int r = 0; r < ranks; r++) {
        assert_ok(invar_memory_planning_plan_rank(v, sizes, ranks, r));
        most = v->plan.need > most ? v->plan.need : most;
        if (r % (ranks / sizes->pipeline) == 0 && v->plan.need > *first)
            *first = v->plan.need;
    }
    return most;
}

static size_t most_of_stages(invar_memory_planning *v, const invar_layout_sizes *sizes, int ranks)
{
    size_t most = 0;

    for (int s = 0; s<sizes->pipeline; s += sizes->pipeline> 1 ? sizes->pipeline - 1 : 1) {
        assert_ok(invar_memory_planning_plan_stage(v, sizes, ranks, s));
        most = v->plan.need > most ? v->plan.need : most;
        assert_int_equal(v->layout.data.rank, 0);
    }
    return most;
}

/* Where another rank than the first needs more, too. */
static int compare(int ranks, const run_pair *more)
{
    invar_recipe *recipe = run_recipe(run_below("most"), usual, more);
    invar_layout_sizes sizes;
    invar_memory_planning view;
    size_t most, first;

    assert_ok(invar_train_settings_sizes(&sizes, recipe));
    assert_ok(invar_memory_planning_open(&view, recipe, (size_t)1 << 40));
    most = most_of_ranks(&first, &view, &sizes, ranks);
    assert_int_equal(most_of_stages(&view, &sizes, ranks), most);
    invar_memory_planning_release(&view);
    invar_recipe_free(recipe);
    return most > first;
}

static void test_memory__no_rank_needs_more_than_is_shown(void **state)
{
    static const run_pair tensor[] = {{"tensor-model-parallel-size", "2"}, {NULL, NULL}};
    static const run_pair expert[] = {{"expert-model-parallel-size", "2"}, {NULL, NULL}};
    static const run_pair stages[] = {{"pipeline-model-parallel-size", "3"}, {NULL, NULL}};
    static const run_pair all[] = {
        {"pipeline-model-parallel-size", "2"}, {"tensor-model-parallel-size", "2"}, {NULL, NULL}};
    int others = 0;

    (void)state;
    others += compare(3, NULL);
    others += compare(9, NULL);
    others += compare(6, tensor);
    others += compare(6, expert);
    others += compare(9, stages);
    others += compare(12, all);
    assert_true(others > 0); // else the first ranks would do
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/run_memory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory__no_rank_needs_more_than_is_shown),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
