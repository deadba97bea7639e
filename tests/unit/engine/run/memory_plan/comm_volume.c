/*
 * comm_volume.c - a test of plans of traffic: the bytes of a run's ledger are those of its plan.
 *
 * Ranks that are threads train; the plan goes through the same steps, whose samples' lengths come
 * from the ledger, without them. Only which rank has how many rows of experts is the run's to say:
 * of these the sum over ranks is compared.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_plan/comm_volume.h"

#include "engine/run/launch/launch.h"
#include "engine/run/memory_workload.h"
#include "tests/run.h"

enum { SAMPLES = 8, STEPS = 2, ROWS = 2000, MOST_RANKS = 8 };

typedef struct row {
    int64_t step, rank;
    char move[INVAR_COMM_PHASE_SIZE];
    int64_t calls, sent, received;
} row;

typedef struct scene {
    int ranks;
    invar_rl_sample samples[STEPS][SAMPLES];
    invar_comm_volume plan[STEPS][MOST_RANKS];
} scene;

static row rows[ROWS];
static int n_rows;

/* ---- what was moved -------------------------------------------------------------------------- */

static invar_status take_row(void *payload, const char *const *columns,
                             const invar_ledger_value *values, int count)
{
    row *to = &rows[n_rows];

    (void)payload;
    (void)columns;
    if (!values)
        return INVAR_OK;
    assert_int_equal(count, 6);
    assert_true(n_rows++ < ROWS);
    *to = (row){.step = values[0].integer,
                .rank = values[1].integer,
                .calls = values[3].integer,
                .sent = values[4].integer,
                .received = values[5].integer};
    (void)snprintf(to->move, sizeof to->move, "%s", (const char *)values[2].data);
    return INVAR_OK;
}

/* ---- runs and plans -------------------------------------------------------------------------- */

static const run_pair usual[] = {
    {"num-layers", "2"},          {"hidden-size", "32"},       {"ffn-hidden-size", "512"},
    {"num-attention-heads", "8"}, {"num-query-groups", "4"},   {"kv-channels", "128"},
    {"vocab-size", "1100"},       {"rollout-batch-size", "4"}, {"rollout-max-response-len", "5"},
    {"unit-count", "3"},          {"logical-tp", "4"},         {NULL, NULL}};
#define EXPERTS                                                                                    \
    {"model-type", "qwen3_moe"}, {"num-experts", "6"}, {"moe-router-topk", "2"},                   \
        {"dtype", "bf16"},                                                                         \
    {                                                                                              \
        "logical-etp", "4"                                                                         \
    }

static void run_ranks(scene *out, const char *name, const invar_recipe *recipe)
{
    invar_train_summary summary;
    invar_launch launch;

    assert_ok(invar_launch_open(&launch, invar_launch_timeout(recipe), out->ranks));
    assert_ok(invar_launch_train(&summary, &launch, recipe, &(invar_train_options){.until = -1}));
    invar_launch_close(&launch);
    n_rows = 0;
    run_select(name,
               "SELECT step, rank, move, calls, sent, received FROM work WHERE phase = 'train' "
               "AND move <> ''",
               take_row, NULL);
    run_lengths(out->samples[0], name, SAMPLES);
}

static void make_plans(scene *out, const invar_recipe *recipe)
{
    invar_layout_sizes sizes;
    invar_memory_planning view;

    assert_ok(invar_train_settings_sizes(&sizes, recipe));
    assert_ok(invar_memory_planning_open(&view, recipe, (size_t)1 << 40));
    for (int r = 0; r < out->ranks; r++) {
        assert_ok(invar_memory_planning_plan_rank(&view, &sizes, out->ranks, r));
        for (int s = 0; s < STEPS; s++)
            assert_ok(invar_comm_volume_make(&out->plan[s][r], &view.workload, &view.plan.choice,
                                             out->samples[s], SAMPLES));
    }
    invar_memory_planning_release(&view);
}

static void make_scene(scene *out, const char *name, int ranks, const run_pair *more)
{
    invar_recipe *recipe = run_recipe(run_below(name), usual, more);

    *out = (scene){.ranks = ranks};
    run_ranks(out, name, recipe);
    make_plans(out, recipe);
    invar_recipe_free(recipe);
}

/* ---- compared -------------------------------------------------------------------------------- */

/* By name, whatever the axis: the ledger has none. */
static row planned(const scene *s, int64_t step, int rank, const char *move)
{
    const invar_comm_volume *t = &s->plan[step][rank];
    row sum = {.step = step, .rank = rank};

    for (int i = 0; i < t->count; i++) {
        if (strcmp(t->moves[i].name, move) != 0)
            continue;
        sum.calls += (int64_t)t->moves[i].calls;
        sum.sent += (int64_t)t->moves[i].sent;
        sum.received += (int64_t)t->moves[i].received;
    }
    return sum;
}

static bool equal(const row *a, const row *b)
{
    return a->calls == b->calls && a->sent == b->sent && a->received == b->received;
}

/* Rows of the ledger that are not as planned, and bytes that were planned and not moved. */
static int differences(const scene *s)
{
    row experts = {.step = 0};
    uint64_t moved = 0, due = 0;
    int found = 0;

    for (int i = 0; i < n_rows; i++) {
        row plan = planned(s, rows[i].step, (int)rows[i].rank, rows[i].move);

        moved += (uint64_t)rows[i].sent;
        if (strcmp(rows[i].move, "rows of experts") == 0) {
            experts.calls += rows[i].calls - plan.calls;
            experts.sent += rows[i].sent - plan.sent;
            experts.received += rows[i].received - plan.received;
        } else {
            found += !equal(&rows[i], &plan);
        }
    }
    for (int step = 0; step < STEPS; step++)
        for (int r = 0; r < s->ranks; r++)
            for (int axis = 0; axis < INVAR_COMM_VOLUME_AXES; axis++)
                due += invar_comm_volume_sent(&s->plan[step][r], (invar_parallel_axis)axis);
    return found + !equal(&experts, &(row){.step = 0}) + (moved != due);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const run_pair tensor[] = {{"tensor-model-parallel-size", "2"}, {NULL, NULL}};
/* Sums so large that ranks add a share of the rows each. */
static const run_pair wide[] = {{"hidden-size", "2048"},
                                {"num-layers", "1"},
                                {"unit-count", "1"},
                                {"logical-tp", "2"},
                                {"tensor-model-parallel-size", "2"},
                                {NULL, NULL}};
/* Units of several blocks of tokens, whose rows can be divided. */
#define LONG_UNITS                                                                                 \
    {"tensor-model-parallel-size", "2"}, {"pipeline-model-parallel-size", "2"},                    \
        {"rollout-max-response-len", "80"}, {"unit-count", "2"},                                   \
    {                                                                                              \
        "max-position-embeddings", "128"                                                           \
    }
/* And those of samples. */
#define LONG                                                                                       \
    {"rollout-max-response-len", "80"}, {"unit-count", "2"},                                       \
    {                                                                                              \
        "max-position-embeddings", "128"                                                           \
    }
static const run_pair context[] = {LONG, {"context-parallel-size", "2"}, {NULL, NULL}};
static const run_pair context_tensor[] = {LONG,
                                          {"context-parallel-size", "2"},
                                          {"tensor-model-parallel-size", "2"},
                                          {"pipeline-model-parallel-size", "2"},
                                          {NULL, NULL}};
static const run_pair context_expert[] = {
    EXPERTS, LONG, {"context-parallel-size", "2"}, {NULL, NULL}};
static const run_pair context_experts[] = {EXPERTS,
                                           LONG,
                                           {"context-parallel-size", "2"},
                                           {"expert-model-parallel-size", "2"},
                                           {NULL, NULL}};
static const run_pair expert[] = {EXPERTS, {"expert-model-parallel-size", "2"}, {NULL, NULL}};
static const run_pair stages[] = {EXPERTS,
                                  {"num-layers", "4"},
                                  {"pipeline-model-parallel-size", "2"},
                                  {"num-virtual-stages-per-pipeline-rank", "2"},
                                  {NULL, NULL}};
static const run_pair tied[] = {
    {"tensor-model-parallel-size", "2"}, {"pipeline-model-parallel-size", "2"}, {NULL, NULL}};
static const run_pair all[] = {EXPERTS,
                               {"tensor-model-parallel-size", "2"},
                               {"expert-model-parallel-size", "2"},
                               {"expert-tensor-parallel-size", "2"},
                               {NULL, NULL}};

static void test_traffic__of_all_axes_is_what_was_planned(void **state)
{
    static const struct {
        const char *name;
        int ranks;
        const run_pair *more;
    } runs[] = {{"data", 3, NULL}, {"tensor", 2, tensor}, {"tensor-data", 4, tensor},
                {"wide", 2, wide}, {"expert", 2, expert}, {"stages", 2, stages},
                {"tied", 8, tied}, {"all", 8, all}};
    static scene s;

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        make_scene(&s, runs[i].name, runs[i].ranks, runs[i].more);
        assert_true(n_rows > 0);
        assert_int_equal(differences(&s), 0);
    }
}

/* The control: plans that are wrong in one thing are not what was moved. */
static void test_traffic__another_plan_is_seen(void **state)
{
    static const run_pair units[] = {
        {"tensor-model-parallel-size", "2"}, {"unit-count", "64"}, {NULL, NULL}};
    invar_recipe *recipe = run_recipe(run_below("control"), usual, tensor);
    invar_recipe *other = run_recipe(run_below("control"), usual, units);
    static scene s;

    (void)state;
    make_scene(&s, "control", 4, tensor);
    assert_int_equal(differences(&s), 0);
    rows[0].sent++;
    assert_true(differences(&s) > 0);
    rows[0].sent--;
    make_plans(&s, other);
    assert_true(differences(&s) > 0);
    s.samples[1][3].n_tokens++;
    make_plans(&s, recipe);
    assert_true(differences(&s) > 0);
    s.samples[1][3].n_tokens--;
    make_plans(&s, recipe);
    assert_int_equal(differences(&s), 0);
    invar_recipe_free(other);
    invar_recipe_free(recipe);
}

/* What one rank would multiply is what those do that divide the model. */
static void test_traffic__ranks_share_products(void **state)
{
    invar_recipe *recipe = run_recipe(run_below("products"), usual, NULL);
    static scene s;
    double both;

    (void)state;
    make_scene(&s, "products", 4, tensor);
    both = s.plan[0][0].flop + s.plan[0][1].flop;
    assert_int_equal(s.plan[0][0].rounds, 2);
    assert_true(s.plan[0][2].flop > 0.0);
    s.ranks = 2;
    make_plans(&s, recipe);
    assert_true(s.plan[0][0].flop == both);
    invar_recipe_free(recipe);
}

/* Ranks that divide rows add shares of sums, however small; what stages hand on is divided, too. */
static void test_traffic__of_divided_rows(void **state)
{
    static const run_pair divided[] = {LONG_UNITS, {"sequence-parallel", "true"}, {NULL, NULL}};
    static const run_pair whole[] = {LONG_UNITS, {NULL, NULL}};
    invar_recipe *undivided = run_recipe(run_below("divided"), usual, whole);
    static scene s;
    int64_t handed_on = 0;

    (void)state;
    make_scene(&s, "divided", 4, divided);
    assert_int_equal(differences(&s), 0);
    for (int r = 0; r < 2; r++) {
        assert_true(planned(&s, 0, r, "sums of a layer").sent > 0);
        assert_true(planned(&s, 0, r, "rows of a layer").sent > 0);
        handed_on += planned(&s, 0, r, "rows of a stage").sent;
    }
    make_plans(&s, undivided);
    assert_int_equal(planned(&s, 0, 0, "sums of a layer").sent, 0);
    assert_true(handed_on > 0);
    assert_int_equal(planned(&s, 0, 0, "rows of a stage").sent, handed_on);
    invar_recipe_free(undivided);
}

/* Bytes that the first of so many ranks needs to learn. */
static size_t learning_of(const invar_recipe *recipe, int ranks)
{
    invar_layout_sizes sizes;
    invar_memory_planning view;
    size_t bytes;

    assert_ok(invar_train_settings_sizes(&sizes, recipe));
    assert_ok(invar_memory_planning_open(&view, recipe, (size_t)1 << 40));
    assert_ok(invar_memory_planning_plan_rank(&view, &sizes, ranks, 0));
    bytes = view.plan.learning;
    invar_memory_planning_release(&view);
    return bytes;
}

/* Ranks that divide rows trade them for columns; what they compute is a share. */
static void test_traffic__of_contexts(void **state)
{
    static const run_pair whole[] = {LONG, {NULL, NULL}};
    invar_recipe *undivided = run_recipe(run_below("context"), usual, whole);
    static scene s;
    double flop;

    (void)state;
    make_scene(&s, "context", 2, context);
    assert_int_equal(differences(&s), 0);
    assert_true(planned(&s, 0, 1, "columns of a layer").sent > 0);
    assert_true(invar_comm_volume_sent(&s.plan[0][1], INVAR_COMM_VOLUME_CONTEXT) > 0);
    flop = s.plan[0][1].flop;
    s.ranks = 1;
    make_plans(&s, undivided);
    assert_true(s.plan[0][0].flop == 2.0 * flop);
    make_scene(&s, "context-tensor", 8, context_tensor);
    assert_int_equal(differences(&s), 0);
    make_scene(&s, "context-expert", 4, context_expert);
    assert_int_equal(differences(&s), 0);
    make_scene(&s, "context-experts", 8, context_experts);
    assert_int_equal(differences(&s), 0);
    assert_true(invar_comm_volume_sent(&s.plan[0][1], INVAR_COMM_VOLUME_EXPERT) > 0);
    invar_recipe_free(undivided);
}

/* A rank of two has room for half of the rows and a block. */
static void test_traffic__contexts_divide_memory(void **state)
{
    static const run_pair whole[] = {
        {"rollout-max-response-len", "2000"}, {"max-position-embeddings", "2048"}, {NULL, NULL}};
    static const run_pair half[] = {{"rollout-max-response-len", "2000"},
                                    {"max-position-embeddings", "2048"},
                                    {"context-parallel-size", "2"},
                                    {NULL, NULL}};
    invar_recipe *undivided = run_recipe(run_below("context"), usual, whole);
    invar_recipe *divided = run_recipe(run_below("context"), usual, half);

    (void)state;
    assert_true(4 * learning_of(divided, 2) < 3 * learning_of(undivided, 1));
    invar_recipe_free(undivided);
    invar_recipe_free(divided);
}

static void test_traffic__has_moves_of_every_kind(void **state)
{
    static const char *const names[] = {"parts of a layer", "sums of a layer"};
    static scene s;

    (void)state;
    make_scene(&s, "kinds", 2, wide);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(planned(&s, 0, 1, names[i]).sent > 0);
    assert_int_equal(planned(&s, 0, 1, "rows of experts").calls, 0);
}

/* Of each chunk of 256 ids more, three numbers a row, and no logits. */
static void test_traffic__logits_stay_with_their_ranks(void **state)
{
    static const run_pair large[] = {
        {"tensor-model-parallel-size", "2"}, {"vocab-size", "25600"}, {NULL, NULL}};
    invar_recipe *recipe = run_recipe(run_below("ids"), usual, tensor);
    invar_recipe *other = run_recipe(run_below("ids"), usual, large);
    static scene few, many;
    const int64_t more = 100 / 2 - 3; // chunks of a rank

    (void)state;
    few = (scene){.ranks = 2};
    for (int i = 0; i < STEPS * SAMPLES; i++)
        few.samples[i / SAMPLES][i % SAMPLES] =
            (invar_rl_sample){.n_tokens = 9, .prompt_tokens = 4};
    many = few;
    make_plans(&few, recipe);
    make_plans(&many, other);
    assert_int_equal(planned(&many, 0, 0, "parts of a layer").sent,
                     planned(&few, 0, 0, "parts of a layer").sent + SAMPLES * 5 * more * 3 * 4);
    invar_recipe_free(other);
    invar_recipe_free(recipe);
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/budget_traffic");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traffic__of_all_axes_is_what_was_planned),
        cmocka_unit_test(test_traffic__another_plan_is_seen),
        cmocka_unit_test(test_traffic__ranks_share_products),
        cmocka_unit_test(test_traffic__of_divided_rows),
        cmocka_unit_test(test_traffic__of_contexts),
        cmocka_unit_test(test_traffic__contexts_divide_memory),
        cmocka_unit_test(test_traffic__has_moves_of_every_kind),
        cmocka_unit_test(test_traffic__logits_stay_with_their_ranks),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
