/*
 * comm_volume.c - tests of the planned communication volume against the ledger of a run.
 *
 * Ranks that are threads train with every kind of parallelism. The plan simulates one rank at a
 * time, for steps with the sample lengths that the ledger has. Rows of experts depend on the
 * routing, so only their sum over all ranks is compared. Control: plans with other units or
 * lengths, and a row with one more byte, must differ.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_plan/comm_volume.h"

#include "engine/run/launch/launch.h"
#include "engine/run/memory_workload.h"
#include "tests/run.h"
#include "tests/unit/engine/config/config_of.h"

enum { SAMPLES = 8, STEPS = 2, ROWS = 2000, MAX_RANKS = 8 };

typedef struct row {
    int64_t step, rank;
    char move[INVAR_COMM_PHASE_SIZE];
    int64_t calls, sent, received;
} row;

typedef struct volume_fixture {
    int ranks;
    invar_rl_sample samples[STEPS][SAMPLES];
    invar_comm_volume plan[STEPS][MAX_RANKS];
} volume_fixture;

static row rows[ROWS];
static int n_rows;

/* ---- recorded transfers ---------------------------------------------------------------------- */

static invar_status store_row(void *payload, const char *const *columns,
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

static const run_pair base_recipe[] = {
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

static void train_ranks(volume_fixture *out, const char *name, invar_recipe *recipe)
{
    invar_train_summary summary;
    invar_launch launch;

    assert_ok(invar_launch_open(&launch, invar_launch_timeout(config_of(recipe)), out->ranks));
    assert_ok(invar_launch_train(&summary, &launch, config_of(recipe),
                                 &(invar_train_options){.until = -1}));
    invar_launch_close(&launch);
    n_rows = 0;
    run_select(name,
               "SELECT step, rank, move, calls, sent, received FROM work WHERE phase = 'train' "
               "AND move <> ''",
               store_row, NULL);
    run_lengths(out->samples[0], name, SAMPLES);
}

static void make_plans(volume_fixture *out, invar_recipe *recipe)
{
    invar_layout_sizes sizes;
    invar_memory_planning planning;

    assert_ok(invar_train_settings_sizes(&sizes, config_of(recipe)));
    assert_ok(invar_memory_planning_open(&planning, config_of(recipe), (size_t)1 << 40));
    for (int r = 0; r < out->ranks; r++) {
        assert_ok(invar_memory_planning_plan_rank(&planning, &sizes, out->ranks, r));
        for (int s = 0; s < STEPS; s++)
            assert_ok(invar_comm_volume_make(&out->plan[s][r], &planning.workload,
                                             &planning.plan.choice, out->samples[s], SAMPLES));
    }
    invar_memory_planning_release(&planning);
}

static void make_fixture(volume_fixture *out, const char *name, int ranks, const run_pair *more)
{
    invar_recipe *recipe = run_recipe(run_path(name), base_recipe, more);

    *out = (volume_fixture){.ranks = ranks};
    train_ranks(out, name, recipe);
    make_plans(out, recipe);
    invar_recipe_free(recipe);
}

/* ---- comparison ------------------------------------------------------------------------------ */

/* Returns the planned sum over all axes, because the ledger has names without axes. */
static row planned(const volume_fixture *s, int64_t step, int rank, const char *move)
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

static bool rows_equal(const row *a, const row *b)
{
    return a->calls == b->calls && a->sent == b->sent && a->received == b->received;
}

/* Returns the number of ledger rows that differ from the plan, plus 1 if total bytes differ. */
static int count_differences(const volume_fixture *s)
{
    row experts = {.step = 0};
    uint64_t ledger_bytes = 0, planned_bytes = 0;
    int found = 0;

    for (int i = 0; i < n_rows; i++) {
        row plan = planned(s, rows[i].step, (int)rows[i].rank, rows[i].move);

        ledger_bytes += (uint64_t)rows[i].sent;
        if (strcmp(rows[i].move, "rows of experts") == 0) {
            experts.calls += rows[i].calls - plan.calls;
            experts.sent += rows[i].sent - plan.sent;
            experts.received += rows[i].received - plan.received;
        } else {
            found += !rows_equal(&rows[i], &plan);
        }
    }
    for (int step = 0; step < STEPS; step++)
        for (int r = 0; r < s->ranks; r++)
            for (int axis = 0; axis < INVAR_COMM_VOLUME_AXES; axis++)
                planned_bytes +=
                    invar_comm_volume_sent(&s->plan[step][r], (invar_parallel_axis)axis);
    return found + !rows_equal(&experts, &(row){.step = 0}) + (ledger_bytes != planned_bytes);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const run_pair tensor[] = {{"tensor-model-parallel-size", "2"}, {NULL, NULL}};
/* Sums that are large enough for each rank to add a range of the rows. */
static const run_pair wide[] = {{"hidden-size", "2048"},
                                {"num-layers", "1"},
                                {"unit-count", "1"},
                                {"logical-tp", "2"},
                                {"tensor-model-parallel-size", "2"},
                                {NULL, NULL}};
/* Units of several token blocks, which sequence parallelism can divide. */
#define LONG_UNITS                                                                                 \
    {"tensor-model-parallel-size", "2"}, {"pipeline-model-parallel-size", "2"},                    \
        {"rollout-max-response-len", "80"}, {"unit-count", "2"},                                   \
    {                                                                                              \
        "max-position-embeddings", "128"                                                           \
    }
/* Samples of several token blocks, which context parallelism can divide. */
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

static void test_comm_volume__equals_the_ledger(void **state)
{
    static const struct {
        const char *name;
        int ranks;
        const run_pair *more;
    } runs[] = {{"data", 3, NULL}, {"tensor", 2, tensor}, {"tensor-data", 4, tensor},
                {"wide", 2, wide}, {"expert", 2, expert}, {"stages", 2, stages},
                {"tied", 8, tied}, {"all", 8, all}};
    static volume_fixture s;

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        // by default "tensor-data" is in another_plan_is_detected, and "wide" in has_partial_sums
        if (!invar_test_full() && (runs[i].more == tensor || runs[i].more == wide))
            continue;
        make_fixture(&s, runs[i].name, runs[i].ranks, runs[i].more);
        assert_true(n_rows > 0);
        assert_int_equal(count_differences(&s), 0);
    }
}

/* Control: plans with one difference do not agree with the ledger. */
static void test_comm_volume__another_plan_is_detected(void **state)
{
    static const run_pair units[] = {
        {"tensor-model-parallel-size", "2"}, {"unit-count", "64"}, {NULL, NULL}};
    invar_recipe *recipe = run_recipe(run_path("control"), base_recipe, tensor);
    invar_recipe *other = run_recipe(run_path("control"), base_recipe, units);
    static volume_fixture s;

    (void)state;
    make_fixture(&s, "control", 4, tensor);
    assert_int_equal(count_differences(&s), 0);
    rows[0].sent++;
    assert_true(count_differences(&s) > 0);
    rows[0].sent--;
    make_plans(&s, other);
    assert_true(count_differences(&s) > 0);
    s.samples[1][3].n_tokens++;
    make_plans(&s, recipe);
    assert_true(count_differences(&s) > 0);
    s.samples[1][3].n_tokens--;
    make_plans(&s, recipe);
    assert_int_equal(count_differences(&s), 0);
    invar_recipe_free(other);
    invar_recipe_free(recipe);
}

/* The FLOP of two tensor-parallel ranks sum to those of one undivided rank. */
static void test_comm_volume__flop_of_tensor_parallel_ranks(void **state)
{
    invar_recipe *ranked = run_recipe(run_path("products"), base_recipe, tensor);
    invar_recipe *recipe = run_recipe(run_path("products"), base_recipe, NULL);
    static volume_fixture s;
    double both;

    (void)state;
    s = (volume_fixture){.ranks = 4};
    for (int i = 0; i < STEPS * SAMPLES; i++)
        s.samples[i / SAMPLES][i % SAMPLES] =
            (invar_rl_sample){.n_tokens = 6 + i % 4, .prompt_tokens = 4};
    make_plans(&s, ranked);
    both = s.plan[0][0].flop + s.plan[0][1].flop;
    assert_int_equal(s.plan[0][0].rounds, 2);
    assert_true(s.plan[0][2].flop > 0.0);
    s.ranks = 2;
    make_plans(&s, recipe);
    assert_true(s.plan[0][0].flop == both);
    invar_recipe_free(ranked);
    invar_recipe_free(recipe);
}

/* Sequence parallelism: ranks add ranges of all sums, and rows between stages are divided. */
static void test_comm_volume__sequence_parallel(void **state)
{
    static const run_pair divided[] = {LONG_UNITS, {"sequence-parallel", "true"}, {NULL, NULL}};
    static const run_pair whole[] = {LONG_UNITS, {NULL, NULL}};
    invar_recipe *undivided = run_recipe(run_path("divided"), base_recipe, whole);
    static volume_fixture s;
    int64_t stage_bytes = 0;

    (void)state;
    make_fixture(&s, "divided", 4, divided);
    assert_int_equal(count_differences(&s), 0);
    for (int r = 0; r < 2; r++) {
        assert_true(planned(&s, 0, r, "sums of a layer").sent > 0);
        assert_true(planned(&s, 0, r, "rows of a layer").sent > 0);
        stage_bytes += planned(&s, 0, r, "rows of a stage").sent;
    }
    make_plans(&s, undivided);
    assert_int_equal(planned(&s, 0, 0, "sums of a layer").sent, 0);
    assert_true(stage_bytes > 0);
    assert_int_equal(planned(&s, 0, 0, "rows of a stage").sent, stage_bytes);
    invar_recipe_free(undivided);
}

/* Returns the bytes that the first of `ranks` ranks needs for training. */
static size_t training_bytes(invar_recipe *recipe, int ranks)
{
    invar_layout_sizes sizes;
    invar_memory_planning planning;
    size_t bytes;

    assert_ok(invar_train_settings_sizes(&sizes, config_of(recipe)));
    assert_ok(invar_memory_planning_open(&planning, config_of(recipe), (size_t)1 << 40));
    assert_ok(invar_memory_planning_plan_rank(&planning, &sizes, ranks, 0));
    bytes = planning.plan.learning;
    invar_memory_planning_release(&planning);
    return bytes;
}

/* Context parallelism: ranks exchange rows for columns and compute half of the FLOP each. */
static void test_comm_volume__context_parallel(void **state)
{
    static const run_pair whole[] = {LONG, {NULL, NULL}};
    invar_recipe *undivided = run_recipe(run_path("context"), base_recipe, whole);
    static volume_fixture s;
    double flop;

    (void)state;
    make_fixture(&s, "context", 2, context);
    assert_int_equal(count_differences(&s), 0);
    assert_true(planned(&s, 0, 1, "columns of a layer").sent > 0);
    assert_true(invar_comm_volume_sent(&s.plan[0][1], INVAR_COMM_VOLUME_CONTEXT) > 0);
    flop = s.plan[0][1].flop;
    s.ranks = 1;
    make_plans(&s, undivided);
    assert_true(s.plan[0][0].flop == 2.0 * flop);
    make_fixture(&s, "context-tensor", 8, context_tensor);
    assert_int_equal(count_differences(&s), 0);
    if (invar_test_full()) {
        make_fixture(&s, "context-expert", 4, context_expert);
        assert_int_equal(count_differences(&s), 0);
    }
    make_fixture(&s, "context-experts", (int)invar_test_count(4, 8), context_experts);
    assert_int_equal(count_differences(&s), 0);
    assert_true(invar_comm_volume_sent(&s.plan[0][1], INVAR_COMM_VOLUME_EXPERT) > 0);
    invar_recipe_free(undivided);
}

/* Context parallelism 2: a rank has memory for half of the rows and one token block. */
static void test_comm_volume__context_parallel_divides_memory(void **state)
{
    static const run_pair whole[] = {
        {"rollout-max-response-len", "2000"}, {"max-position-embeddings", "2048"}, {NULL, NULL}};
    static const run_pair half[] = {{"rollout-max-response-len", "2000"},
                                    {"max-position-embeddings", "2048"},
                                    {"context-parallel-size", "2"},
                                    {NULL, NULL}};
    invar_recipe *undivided = run_recipe(run_path("context"), base_recipe, whole);
    invar_recipe *divided = run_recipe(run_path("context"), base_recipe, half);

    (void)state;
    assert_true(4 * training_bytes(divided, 2) < 3 * training_bytes(undivided, 1));
    invar_recipe_free(undivided);
    invar_recipe_free(divided);
}

static void test_comm_volume__has_partial_sums(void **state)
{
    static const char *const names[] = {"parts of a layer", "sums of a layer"};
    static volume_fixture s;

    (void)state;
    make_fixture(&s, "kinds", 2, wide);
    assert_int_equal(count_differences(&s), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(planned(&s, 0, 1, names[i]).sent > 0);
    assert_int_equal(planned(&s, 0, 1, "rows of experts").calls, 0);
}

/* A larger vocabulary adds three numbers per row and vocabulary chunk of 256, but no logits. */
static void test_comm_volume__logits_are_not_sent(void **state)
{
    static const run_pair large[] = {
        {"tensor-model-parallel-size", "2"}, {"vocab-size", "25600"}, {NULL, NULL}};
    invar_recipe *recipe = run_recipe(run_path("ids"), base_recipe, tensor);
    invar_recipe *other = run_recipe(run_path("ids"), base_recipe, large);
    static volume_fixture small_vocab, large_vocab;
    const int64_t more = 100 / 2 - 3; // additional vocabulary chunks per rank

    (void)state;
    small_vocab = (volume_fixture){.ranks = 2};
    for (int i = 0; i < STEPS * SAMPLES; i++)
        small_vocab.samples[i / SAMPLES][i % SAMPLES] =
            (invar_rl_sample){.n_tokens = 9, .prompt_tokens = 4};
    large_vocab = small_vocab;
    make_plans(&small_vocab, recipe);
    make_plans(&large_vocab, other);
    assert_int_equal(planned(&large_vocab, 0, 0, "parts of a layer").sent,
                     planned(&small_vocab, 0, 0, "parts of a layer").sent +
                         SAMPLES * 5 * more * 3 * 4);
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
        cmocka_unit_test(test_comm_volume__equals_the_ledger),
        cmocka_unit_test(test_comm_volume__another_plan_is_detected),
        cmocka_unit_test(test_comm_volume__flop_of_tensor_parallel_ranks),
        cmocka_unit_test(test_comm_volume__sequence_parallel),
        cmocka_unit_test(test_comm_volume__context_parallel),
        cmocka_unit_test(test_comm_volume__context_parallel_divides_memory),
        cmocka_unit_test(test_comm_volume__has_partial_sums),
        cmocka_unit_test(test_comm_volume__logits_are_not_sent),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
