/*
 * longest.c - tests of the communication volume of a step with the longest samples.
 *
 * invar_comm_volume_make_longest executes a few rounds of equal units and multiplies the rest. For
 * many layouts, some with a smaller last round or unit, the result must equal the plan that
 * executes every unit. Control: a step with one sample less.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_plan/comm_volume.h"
#include "engine/run/memory_workload.h"
#include "tests/run.h"
#include "tests/unit/engine/config/config_of.h"

enum { MAX_SAMPLES = 64 };

static const run_pair base_recipe[] = {{"num-layers", "4"},
                                       {"hidden-size", "32"},
                                       {"ffn-hidden-size", "512"},
                                       {"num-attention-heads", "8"},
                                       {"num-query-groups", "4"},
                                       {"kv-channels", "128"},
                                       {"vocab-size", "1100"},
                                       {"rollout-batch-size", "25"},
                                       {"rollout-max-response-len", "5"},
                                       {"unit-count", "24"},
                                       {"logical-tp", "4"},
                                       {"logical-etp", "4"},
                                       {"model-type", "qwen3_moe"},
                                       {"num-experts", "6"},
                                       {"moe-router-topk", "2"},
                                       {"dtype", "bf16"},
                                       {"micro-batch-size", "5"},
                                       {NULL, NULL}};

/* Returns the item of the same axis and name; the order of items depends on the rounds. */
static const invar_comm_volume_item *find_item(const invar_comm_volume *t,
                                               const invar_comm_volume_item *key)
{
    for (int i = 0; i < t->count; i++)
        if (t->moves[i].axis == key->axis && strcmp(t->moves[i].name, key->name) == 0)
            return &t->moves[i];
    return NULL;
}

static bool volumes_equal(const invar_comm_volume *a, const invar_comm_volume *b)
{
    bool same = a->count == b->count && a->flop == b->flop && a->rounds == b->rounds;

    for (int i = 0; same && i < a->count; i++) {
        const invar_comm_volume_item *x = &a->moves[i], *y = find_item(b, x);
        same = y && x->calls == y->calls && x->sent == y->sent && x->received == y->received;
    }
    return same;
}

/* Plans the step unit by unit, with `less` samples fewer than a full step. */
static void make_unit_by_unit(invar_comm_volume *out, const invar_memory_planning *v, int64_t less)
{
    int64_t longest = invar_memory_plan_longest(&v->workload),
            count = v->workload.step_samples - less;
    invar_rl_sample samples[MAX_SAMPLES];

    assert_true(count <= MAX_SAMPLES && v->workload.lengths.response < longest);
    for (int64_t i = 0; i < count; i++)
        samples[i] = (invar_rl_sample){.n_tokens = longest,
                                       .prompt_tokens = longest - v->workload.lengths.response};
    assert_ok(invar_comm_volume_make(out, &v->workload, &v->plan.choice, samples, count));
}

static void compare_volumes(int ranks, const run_pair *overrides)
{
    invar_recipe *recipe = run_recipe(run_path("longest"), base_recipe, overrides);
    invar_layout_sizes sizes;
    invar_memory_planning planning;
    invar_comm_volume fast, expected;

    assert_ok(invar_train_settings_sizes(&sizes, config_of(recipe)));
    assert_ok(invar_memory_planning_open(&planning, config_of(recipe), (size_t)1 << 40));
    for (int r = 0; r < ranks; r += ranks - 1) {
        assert_ok(invar_memory_planning_plan_rank(&planning, &sizes, ranks, r));
        assert_ok(invar_comm_volume_make_longest(&fast, &planning.workload, &planning.plan.choice));
        make_unit_by_unit(&expected, &planning, 0);
        assert_true(fast.count > 0);
        assert_true(volumes_equal(&fast, &expected));
        make_unit_by_unit(&expected, &planning, 1); // control: one sample less
        assert_false(volumes_equal(&fast, &expected));
    }
    invar_memory_planning_release(&planning);
    invar_recipe_free(recipe);
}

#define TENSOR                                                                                     \
    {                                                                                              \
        "tensor-model-parallel-size", "2"                                                          \
    }
#define STAGES                                                                                     \
    {                                                                                              \
        "pipeline-model-parallel-size", "2"                                                        \
    }
#define EXPERT                                                                                     \
    {                                                                                              \
        "expert-model-parallel-size", "2"                                                          \
    }
#define LONG                                                                                       \
    {"rollout-max-response-len", "80"},                                                            \
    {                                                                                              \
        "max-position-embeddings", "128"                                                           \
    }

static void test_longest__equals_the_plan_unit_by_unit(void **state)
{
    static const run_pair tensor[] = {TENSOR, {NULL, NULL}};
    static const run_pair expert[] = {EXPERT, {NULL, NULL}};
    static const run_pair stages[] = {
        STAGES, {"num-virtual-stages-per-pipeline-rank", "2"}, {NULL, NULL}};
    static const run_pair last[] = {{"pipeline-model-parallel-size", "4"}, {NULL, NULL}};
    static const run_pair context[] = {LONG, {"context-parallel-size", "2"}, {NULL, NULL}};
    static const run_pair all[] = {TENSOR, EXPERT, STAGES, {NULL, NULL}};
    static const run_pair rows[] = {
        LONG, TENSOR, {"sequence-parallel", "true"}, {"unit-count", "7"}, {NULL, NULL}};

    (void)state;
    compare_volumes(2, NULL);
    compare_volumes(3, NULL); // 25 units: the last round has one
    compare_volumes(2, tensor);
    compare_volumes(8, tensor);
    compare_volumes(4, expert);
    compare_volumes(4, stages);
    compare_volumes(4, last); // more stages than units in flight
    compare_volumes(2, context);
    compare_volumes(4, rows);
    compare_volumes(8, all);
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/budget_longest");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_longest__equals_the_plan_unit_by_unit),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
