/*
 * longest.c - a test of the traffic of equal units: multiplied, it is what each of them moves.
 *
 * Steps of all kinds of layouts are planned twice: with turns that are multiplied, and unit by
 * unit. Some have a last turn or a last unit that is smaller.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_plan/comm_volume.h"
#include "engine/run/memory_workload.h"
#include "tests/run.h"

enum { MOST_SAMPLES = 64 };

static const run_pair usual[] = {{"num-layers", "4"},
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

/* The same kind of move, wherever it stands: with more turns others come first. */
static const invar_comm_volume_item *find(const invar_comm_volume *t,
                                          const invar_comm_volume_item *like)
{
    for (int i = 0; i < t->count; i++)
        if (t->moves[i].axis == like->axis && strcmp(t->moves[i].name, like->name) == 0)
            return &t->moves[i];
    return NULL;
}

static bool equal(const invar_comm_volume *a, const invar_comm_volume *b)
{
    bool same = a->count == b->count && a->flop == b->flop && a->rounds == b->rounds;

    for (int i = 0; same && i < a->count; i++) {
        const invar_comm_volume_item *x = &a->moves[i], *y = find(b, x);
        same = y && x->calls == y->calls && x->sent == y->sent && x->received == y->received;
    }
    return same;
}

/* The step of the longest samples, unit by unit, with so many samples less. */
static void make_whole(invar_comm_volume *out, const invar_memory_planning *v, int64_t less)
{
    int64_t longest = invar_memory_plan_longest(&v->workload),
            count = v->workload.step_samples - less;
    invar_rl_sample samples[MOST_SAMPLES];

    assert_true(count <= MOST_SAMPLES && v->workload.response < longest);
    for (int64_t i = 0; i < count; i++)
        samples[i] =
            (invar_rl_sample){.n_tokens = longest, .prompt_tokens = longest - v->workload.response};
    assert_ok(invar_comm_volume_make(out, &v->workload, &v->plan.choice, samples, count));
}

static void compare(int ranks, const run_pair *more)
{
    invar_recipe *recipe = run_recipe(run_below("longest"), usual, more);
    invar_layout_sizes sizes;
    invar_memory_planning view;
    invar_comm_volume fast, whole;

    assert_ok(invar_train_settings_sizes(&sizes, recipe));
    assert_ok(invar_memory_planning_open(&view, recipe, (size_t)1 << 40));
    for (int r = 0; r < ranks; r += ranks - 1) {
        assert_ok(invar_memory_planning_plan_rank(&view, &sizes, ranks, r));
        assert_ok(invar_comm_volume_make_longest(&fast, &view.workload, &view.plan.choice));
        make_whole(&whole, &view, 0);
        assert_true(fast.count > 0);
        assert_true(equal(&fast, &whole));
        make_whole(&whole, &view, 1); // the control
        assert_false(equal(&fast, &whole));
    }
    invar_memory_planning_release(&view);
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

static void test_longest__is_what_units_move_one_by_one(void **state)
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
    compare(2, NULL);
    compare(3, NULL); // 25 units, and one in the last turn
    compare(2, tensor);
    compare(8, tensor);
    compare(4, expert);
    compare(4, stages);
    compare(4, last); // more stages than units in flight
    compare(2, context);
    compare(4, rows);
    compare(8, all);
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/budget_longest");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_longest__is_what_units_move_one_by_one),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
