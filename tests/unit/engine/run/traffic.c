/*
 * traffic.c - tests of the bytes between ranks: the ledger's counts are those of the plans.
 *
 * Training runs with ranks that are threads record calls and bytes per transfer. The expected
 * counts are computed from the plans that a run uses (units, buckets, ranges) and from the sample
 * lengths in the ledger. Controls: a plan with one wrong number and a row with one more byte must
 * be detected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/shard/zero_partition.h"
#include "engine/ranks/layout/bucket_plan.h"
#include "engine/run/context/run_context.h"
#include "engine/run/launch/launch.h"
#include "engine/train/batch_plan.h"
#include "engine/train/micro_batch.h"
#include "tests/run.h"
#include "tests/unit/engine/config/config_of.h"

enum { SAMPLES = 8, STEPS = 3, ROWS = 2000, MAX_RANKS = 9 };

/* Calls and bytes of one rank, or sums over ranks. */
typedef struct traffic {
    int64_t calls, sent, received;
} traffic;

/* A row of the ledger's table "work". */
typedef struct row {
    int64_t step, rank;
    char phase[32], transfer[64];
    traffic counts;
} row;

static row rows[ROWS];
static int n_rows;

/* Everything from which the expected counts are computed; the controls change one number. */
typedef struct plan {
    int ranks;
    size_t grads[MAX_RANKS], weights[MAX_RANKS], moments[MAX_RANKS]; /* bytes of each rank */
    bool masters; /* there are masters apart from the weights */
    bool experts; /* the model has experts, whose routes are gathered */
    invar_batch_plan_options units;
    invar_rl_sample samples[STEPS][SAMPLES];
} plan;

/* ---- recorded transfers ---------------------------------------------------------------------- */

static invar_status store_row(void *payload, const char *const *columns,
                              const invar_ledger_value *values, int count)
{
    row *to = &rows[n_rows];

    (void)payload;
    (void)columns;
    if (!values)
        return INVAR_OK;
    assert_int_equal(count, 7);
    assert_true(n_rows++ < ROWS);
    *to = (row){.step = values[0].integer,
                .rank = values[1].integer,
                .counts = {values[4].integer, values[5].integer, values[6].integer}};
    (void)snprintf(to->phase, sizeof to->phase, "%s", (const char *)values[2].data);
    (void)snprintf(to->transfer, sizeof to->transfer, "%s", (const char *)values[3].data);
    return INVAR_OK;
}

/* Returns the sum over the recorded transfers of a step by one rank, or by all ranks if -1. */
static traffic recorded(int64_t step, int rank, const char *phase, const char *transfer)
{
    traffic sum = {0};

    for (int i = 0; i < n_rows; i++) {
        const row *r = &rows[i];

        if (r->step != step || (rank >= 0 && r->rank != rank) || strcmp(r->phase, phase) != 0 ||
            strcmp(r->transfer, transfer) != 0)
            continue;
        sum.calls += r->counts.calls;
        sum.sent += r->counts.sent;
        sum.received += r->counts.received;
    }
    return sum;
}

/* ---- expected transfers ---------------------------------------------------------------------- */

static void add_transfer(traffic *to, invar_comm_transfer transfer, int rank, int size)
{
    uint64_t sent, received;

    transfer.phase = "plan";
    assert_ok(invar_comm_transfer_bytes(&sent, &received, &transfer, rank, size));
    to->calls++;
    to->sent += (int64_t)sent;
    to->received += (int64_t)received;
}

typedef void (*make_transfer_fn)(invar_comm_transfer *out, invar_bucket_plan *exchange,
                                 int64_t piece);

/* Returns the transfers of all buckets of the ranks' zero ranges with a gather or a collect. */
static traffic expected_buckets(const plan *p, int rank, const size_t *bytes, make_transfer_fn make)
{
    traffic expected = {0};
    invar_comm_transfer transfer;
    invar_bucket_plan x;

    assert_ok(invar_bucket_plan_init(&x, bytes, INVAR_LAYOUT_BUCKET, p->ranks, rank));
    for (int64_t i = 0; i < x.n_buckets; i++) {
        make(&transfer, &x, i);
        add_transfer(&expected, transfer, rank, p->ranks);
    }
    invar_bucket_plan_release(&x);
    return expected;
}

/* Adds a gather in which rank r sends a float per response token of [first[r], first[r + 1]). */
static void add_tokens(traffic *to, const plan *p, int64_t step, const int64_t *first, int rank)
{
    size_t bytes[16] = {0};

    for (int r = 0; r < p->ranks; r++)
        for (int64_t i = first[r]; i < first[r + 1]; i++)
            bytes[r] += (size_t)invar_rl_sample_response(&p->samples[step][i]) * sizeof(float);
    add_transfer(to, (invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV, .out_bytes = bytes}, rank,
                 p->ranks);
}

static traffic expected_scores(const plan *p, int64_t step, int rank)
{
    int64_t first[17] = {0};
    traffic expected = {0};

    for (int r = 0; r < p->ranks; r++) {
        invar_index_range range = invar_layout_range_of(SAMPLES, p->ranks, r);
        first[r + 1] = range.first + range.count;
    }
    add_tokens(&expected, p, step, first, rank);
    return expected;
}

/* Computes the transfers of the rounds of units: in each round every rank has one unit. */
static void expected_units(traffic *tokens, traffic *grads, const plan *p, int64_t step, int rank)
{
    int64_t length[SAMPLES], first[17];
    invar_comm_transfer transfer;
    invar_batch_plan units;
    invar_bucket_plan x;

    for (int i = 0; i < SAMPLES; i++)
        length[i] = invar_micro_batch_rows(&p->samples[step][i]);
    assert_ok(invar_batch_plan_make(&units, length, SAMPLES, &p->units));
    assert_ok(invar_bucket_plan_init(&x, p->grads, INVAR_LAYOUT_BUCKET, p->ranks, rank));
    *tokens = *grads = (traffic){0};
    for (int64_t u = 0; u < units.units; u += p->ranks) {
        int64_t n_left = units.units - u;

        for (int r = 0; r <= p->ranks; r++)
            first[r] = units.unit_sample[r < n_left ? u + r : units.units];
        add_tokens(tokens, p, step, first, rank);
        for (int64_t i = 0; i < x.n_buckets; i++) {
            invar_bucket_plan_scatter(&transfer, &x, i,
                                      (int)(n_left < p->ranks ? n_left : p->ranks));
            add_transfer(grads, transfer, rank, p->ranks);
        }
    }
    invar_bucket_plan_release(&x);
    invar_batch_plan_release(&units);
}

static int differ(int64_t step, int rank, const char *phase, const char *transfer, traffic expected)
{
    traffic counts = recorded(step, rank, phase, transfer);

    return counts.calls != expected.calls || counts.sent != expected.sent ||
           counts.received != expected.received;
}

/* Returns the number of kinds of transfers, over all steps and ranks, with unexpected counts. */
static int count_differences(const plan *p)
{
    const traffic routes = {1, 16 * (p->ranks - 1), 16 * (p->ranks - 1)};
    int found = 0;

    for (int64_t step = 0; step < STEPS; step++)
        for (int r = 0; r < p->ranks; r++) {
            traffic m = expected_buckets(p, r, p->moments, invar_bucket_plan_collect), tokens,
                    grads;

            expected_units(&tokens, &grads, p, step, r);
            found += differ(step, r, "score", "scores", expected_scores(p, step, r));
            found += differ(step, r, "train", "log-probabilities", tokens);
            found += differ(step, r, "train", "entropies", tokens);
            found += differ(step, r, "train", "gradients of units", grads);
            found += differ(step, r, "train", "gradients", (traffic){0}); // no rank has all sums
            found += differ(step, r, "train", "weights",
                            expected_buckets(p, r, p->weights, invar_bucket_plan_gather));
            found +=
                differ(step, r, "train", "choices of experts", p->experts ? routes : (traffic){0});
            // a checkpoint is saved after each step, so that its transfers count for the next one
            found += differ(step, r, "save", "first moments", step ? m : (traffic){0});
            found += differ(step, r, "save", "second moments", step ? m : (traffic){0});
            found += differ(step, r, "save", "masters", step && p->masters ? m : (traffic){0});
        }
    return found;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static const run_pair base_recipe[] = {{"num-rollout", "3"},
                                       {"rollout-batch-size", "4"},
                                       {"rollout-max-response-len", "5"},
                                       {"save-interval", "1"},
                                       {"hidden-size", "48"},
                                       {"ffn-hidden-size", "80"},
                                       {NULL, NULL}};

/* Sets the bytes of each rank's zero ranges. */
static void plan_zero_ranges(plan *out, const invar_run_context *context,
                             const invar_layout *layout)
{
    invar_model *model = NULL;
    invar_zero_ranges grads, weights, masters;

    assert_ok(invar_model_new(&model, &context->spec, context->format, layout, &context->dev));
    assert_ok(invar_zero_ranges_grads(&grads, model, 0));
    assert_ok(invar_zero_ranges_weights(&weights, model));
    assert_ok(invar_zero_ranges_masters(&masters, model));
    memcpy(out->weights, weights.bytes, (size_t)out->ranks * sizeof *weights.bytes);
    out->masters = model->format != INVAR_FORMAT_FP32;
    memcpy(out->grads, grads.bytes, (size_t)out->ranks * sizeof *grads.bytes);
    memcpy(out->moments, masters.bytes, (size_t)out->ranks * sizeof *masters.bytes);
    invar_zero_ranges_release(&weights);
    invar_zero_ranges_release(&masters);
    invar_zero_ranges_release(&grads);
    invar_model_free(model);
}

static void plan_model(plan *out, invar_recipe *recipe)
{
    const invar_layout_sizes undivided = {
        .tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .expert = 1};
    invar_run_context context;
    invar_layout layout;

    assert_ok(invar_run_context_open(&context, config_of(recipe), 0));
    out->experts = invar_model_sparse_layers(context.models.actor) > 0;
    assert_ok(invar_layout_simulate(&layout, &undivided, out->ranks, 0));
    if (out->ranks > 1)
        plan_zero_ranges(out, &context, &layout);
    invar_layout_release(&layout);
    invar_run_context_close(&context);
}

static void train_and_read(plan *out, const char *name, int ranks, const run_pair *overrides)
{
    invar_recipe *recipe = run_recipe(run_path(name), base_recipe, overrides);
    invar_train_summary summary;
    invar_launch launch;

    *out = (plan){.ranks = ranks,
                  .units = {.unit_rows = config_of(recipe)->unit_rows,
                            .unit_count = config_of(recipe)->unit_count}};
    assert_ok(invar_launch_open(&launch, invar_launch_timeout(config_of(recipe)), ranks));
    assert_ok(invar_launch_train(&summary, &launch, config_of(recipe),
                                 &(invar_train_options){.until = -1}));
    invar_launch_close(&launch);
    plan_model(out, recipe);
    invar_recipe_free(recipe);
    n_rows = 0;
    run_select(name, "SELECT step, rank, phase, move, calls, sent, received FROM work", store_row,
               NULL);
    run_lengths(out->samples[0], name, SAMPLES);
}

/* All ranks together send as many bytes as they receive, for each transfer. */
static void assert_balanced(void)
{
    for (int i = 0; i < n_rows; i++) {
        traffic all = recorded(rows[i].step, -1, rows[i].phase, rows[i].transfer);
        assert_int_equal(all.sent, all.received);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const run_pair three_units[] = {{"unit-count", "3"}, {NULL, NULL}};
static const run_pair experts[] = {{"model-type", "qwen3_moe"},
                                   {"num-experts", "3"},
                                   {"moe-router-topk", "2"},
                                   {"dtype", "bf16"},
                                   {NULL, NULL}};

static void test_traffic__equals_the_plan(void **state)
{
    static const struct {
        const char *name;
        int ranks;
        const run_pair *overrides;
    } runs[] = {{"two", 2, NULL},
                {"three", 3, NULL},
                {"four", 4, three_units},
                {"five", 5, experts},
                {"more", 9, experts}}; // more ranks than units

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        static plan p;

        train_and_read(&p, runs[i].name, runs[i].ranks, runs[i].overrides);
        assert_int_equal(count_differences(&p), 0);
        assert_balanced();
    }
}

/* Control: a plan with one wrong number, or one more recorded byte, is detected. */
static void test_traffic__another_plan_is_detected(void **state)
{
    static plan right, wrong;

    (void)state;
    train_and_read(&right, "control", 3, three_units);
    assert_int_equal(count_differences(&right), 0);
    wrong = right;
    wrong.grads[1] += INVAR_TREE_LEAF_BYTES;
    assert_true(count_differences(&wrong) >= STEPS * 3);
    wrong = right;
    wrong.moments[2] -= sizeof(float);
    assert_true(count_differences(&wrong) >= STEPS);
    wrong = right;
    wrong.units.unit_count = 64;
    assert_true(count_differences(&wrong) >= STEPS * 3);
    wrong = right;
    wrong.samples[1][3].n_tokens++;
    assert_true(count_differences(&wrong) >= 3);
    for (int i = 0; i < n_rows; i++) // one byte of one call
        if (strcmp(rows[i].transfer, "weights") == 0 && rows[i].step == 1 && rows[i].rank == 2)
            rows[i].counts.sent++;
    assert_int_equal(count_differences(&right), 1);
}

/* A single rank transfers nothing. */
static void test_traffic__one_rank_has_none(void **state)
{
    static plan p;

    (void)state;
    train_and_read(&p, "one", 1, NULL);
    assert_int_equal(n_rows, 0);
}

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/traffic");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traffic__equals_the_plan),
        cmocka_unit_test(test_traffic__another_plan_is_detected),
        cmocka_unit_test(test_traffic__one_rank_has_none),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
