/*
 * traffic.c - a test of what ranks move in a run: the ledger's bytes are those of the plans.
 *
 * What is due is made of the same plans and functions of numbers that the run uses: units of a
 * step, exchanges of blocks, shares of samples. The sizes of samples come from the ledger.
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

enum { SAMPLES = 8, STEPS = 3, ROWS = 2000, MOST_RANKS = 9 };

/* Calls and bytes of one rank, or of several. */
typedef struct traffic {
    int64_t calls, sent, received;
} traffic;

/* A row of the ledger's table. */
typedef struct row {
    int64_t step, rank;
    char phase[32], move[64];
    traffic is;
} row;

static row rows[ROWS];
static int n_rows;

/* What a run is made of, and what is due may be made wrong by. */
typedef struct plan {
    int ranks;
    size_t grads[MOST_RANKS], weights[MOST_RANKS], moments[MOST_RANKS]; /* bytes of each rank's */
    bool masters; /* are something else than weights */
    bool experts;
    invar_batch_plan_options units;
    invar_rl_sample samples[STEPS][SAMPLES];
} plan;

/* ---- what was moved -------------------------------------------------------------------------- */

static invar_status take_row(void *payload, const char *const *columns,
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
                .is = {values[4].integer, values[5].integer, values[6].integer}};
    (void)snprintf(to->phase, sizeof to->phase, "%s", (const char *)values[2].data);
    (void)snprintf(to->move, sizeof to->move, "%s", (const char *)values[3].data);
    return INVAR_OK;
}

/* Of a step; rank -1: of all. */
static traffic moved(int64_t step, int rank, const char *phase, const char *move)
{
    traffic sum = {0};

    for (int i = 0; i < n_rows; i++) {
        const row *r = &rows[i];

        if (r->step != step || (rank >= 0 && r->rank != rank) || strcmp(r->phase, phase) != 0 ||
            strcmp(r->move, move) != 0)
            continue;
        sum.calls += r->is.calls;
        sum.sent += r->is.sent;
        sum.received += r->is.received;
    }
    return sum;
}

/* ---- what is due ----------------------------------------------------------------------------- */

static void add_move(traffic *to, invar_comm_transfer move, int rank, int size)
{
    uint64_t sent, received;

    move.phase = "plan";
    assert_ok(invar_comm_transfer_bytes(&sent, &received, &move, rank, size));
    to->calls++;
    to->sent += (int64_t)sent;
    to->received += (int64_t)received;
}

typedef void (*make_move)(invar_comm_transfer *out, invar_bucket_plan *exchange, int64_t piece);

/* All pieces of ranks' slices, as gather or collect move them. */
static traffic due_block(const plan *p, int rank, const size_t *bytes, make_move make)
{
    traffic due = {0};
    invar_comm_transfer move;
    invar_bucket_plan x;

    assert_ok(invar_bucket_plan_init(&x, bytes, INVAR_LAYOUT_BUCKET, p->ranks, rank));
    for (int64_t i = 0; i < x.n_buckets; i++) {
        make(&move, &x, i);
        add_move(&due, move, rank, p->ranks);
    }
    invar_bucket_plan_release(&x);
    return due;
}

/* A number a response token of the samples from first[r] to first[r + 1] of each rank. */
static void add_tokens(traffic *to, const plan *p, int64_t step, const int64_t *first, int rank)
{
    size_t bytes[16] = {0};

    for (int r = 0; r < p->ranks; r++)
        for (int64_t i = first[r]; i < first[r + 1]; i++)
            bytes[r] += (size_t)invar_rl_sample_response(&p->samples[step][i]) * sizeof(float);
    add_move(to, (invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV, .out_bytes = bytes}, rank,
             p->ranks);
}

static traffic due_scores(const plan *p, int64_t step, int rank)
{
    int64_t first[17] = {0};
    traffic due = {0};

    for (int r = 0; r < p->ranks; r++) {
        invar_index_range share = invar_layout_range_of(SAMPLES, p->ranks, r);
        first[r + 1] = share.first + share.count;
    }
    add_tokens(&due, p, step, first, rank);
    return due;
}

/* Units go round: as many at a time as there are ranks. */
static void due_units(traffic *tokens, traffic *grads, const plan *p, int64_t step, int rank)
{
    int64_t length[SAMPLES], first[17];
    invar_comm_transfer move;
    invar_batch_plan units;
    invar_bucket_plan x;

    for (int i = 0; i < SAMPLES; i++)
        length[i] = invar_micro_batch_rows(&p->samples[step][i]);
    assert_ok(invar_batch_plan_make(&units, length, SAMPLES, &p->units));
    assert_ok(invar_bucket_plan_init(&x, p->grads, INVAR_LAYOUT_BUCKET, p->ranks, rank));
    *tokens = *grads = (traffic){0};
    for (int64_t u = 0; u < units.units; u += p->ranks) {
        int64_t left = units.units - u;

        for (int r = 0; r <= p->ranks; r++)
            first[r] = units.unit_sample[r < left ? u + r : units.units];
        add_tokens(tokens, p, step, first, rank);
        for (int64_t i = 0; i < x.n_buckets; i++) {
            invar_bucket_plan_scatter(&move, &x, i, (int)(left < p->ranks ? left : p->ranks));
            add_move(grads, move, rank, p->ranks);
        }
    }
    invar_bucket_plan_release(&x);
    invar_batch_plan_release(&units);
}

static int differ(int64_t step, int rank, const char *phase, const char *move, traffic due)
{
    traffic is = moved(step, rank, phase, move);

    return is.calls != due.calls || is.sent != due.sent || is.received != due.received;
}

/* How many kinds of moves of all steps and ranks were not as they were due. */
static int differences(const plan *p)
{
    const traffic routes = {1, 16 * (p->ranks - 1), 16 * (p->ranks - 1)};
    int found = 0;

    for (int64_t step = 0; step < STEPS; step++)
        for (int r = 0; r < p->ranks; r++) {
            traffic m = due_block(p, r, p->moments, invar_bucket_plan_collect), tokens, grads;

            due_units(&tokens, &grads, p, step, r);
            found += differ(step, r, "score", "scores", due_scores(p, step, r));
            found += differ(step, r, "train", "log-probabilities", tokens);
            found += differ(step, r, "train", "entropies", tokens);
            found += differ(step, r, "train", "gradients of units", grads);
            found += differ(step, r, "train", "gradients", (traffic){0}); // nobody has all sums
            found += differ(step, r, "train", "weights",
                            due_block(p, r, p->weights, invar_bucket_plan_gather));
            found +=
                differ(step, r, "train", "choices of experts", p->experts ? routes : (traffic){0});
            // a checkpoint is saved after each step, and so before the next one
            found += differ(step, r, "save", "first moments", step ? m : (traffic){0});
            found += differ(step, r, "save", "second moments", step ? m : (traffic){0});
            found += differ(step, r, "save", "masters", step && p->masters ? m : (traffic){0});
        }
    return found;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static const run_pair usual[] = {{"num-rollout", "3"},
                                 {"rollout-batch-size", "4"},
                                 {"rollout-max-response-len", "5"},
                                 {"save-interval", "1"},
                                 {"hidden-size", "48"},
                                 {"ffn-hidden-size", "80"},
                                 {NULL, NULL}};

/* What each rank owns of the model of a session. */
static void plan_slices(plan *out, const invar_run_context *session, const invar_layout *layout)
{
    invar_model *model = NULL;
    invar_zero_ranges grads, weights, masters;

    assert_ok(invar_model_new(&model, &session->spec, session->format, layout, &session->dev));
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

static void plan_model(plan *out, const invar_recipe *recipe)
{
    const invar_layout_sizes whole = {
        .tensor = 1, .expert_tensor = 1, .pipeline = 1, .virtual_stages = 1, .expert = 1};
    invar_run_context session;
    invar_layout layout;

    assert_ok(invar_run_context_open(&session, recipe, 0));
    out->experts = invar_model_sparse_layers(session.actor) > 0;
    assert_ok(invar_layout_simulate(&layout, &whole, out->ranks, 0));
    if (out->ranks > 1)
        plan_slices(out, &session, &layout);
    invar_layout_release(&layout);
    invar_run_context_close(&session);
}

static void train(plan *out, const char *name, int ranks, const run_pair *more)
{
    invar_recipe *recipe = run_recipe(run_below(name), usual, more);
    invar_train_summary summary;
    invar_launch launch;

    *out = (plan){.ranks = ranks,
                  .units = {.unit_rows = invar_recipe_int(recipe, INVAR_KEY_UNIT_ROWS),
                            .unit_count = invar_recipe_int(recipe, INVAR_KEY_UNIT_COUNT)}};
    assert_ok(invar_launch_open(&launch, invar_launch_timeout(recipe), ranks));
    assert_ok(invar_launch_train(&summary, &launch, recipe, &(invar_train_options){.until = -1}));
    invar_launch_close(&launch);
    plan_model(out, recipe);
    invar_recipe_free(recipe);
    n_rows = 0;
    run_select(name, "SELECT step, rank, phase, move, calls, sent, received FROM work", take_row,
               NULL);
    run_lengths(out->samples[0], name, SAMPLES);
}

/* Whatever one sends another receives, in moves of any kind. */
static void assert_balanced(void)
{
    for (int i = 0; i < n_rows; i++) {
        traffic all = moved(rows[i].step, -1, rows[i].phase, rows[i].move);
        assert_int_equal(all.sent, all.received);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const run_pair few[] = {{"unit-count", "3"}, {NULL, NULL}};
static const run_pair experts[] = {{"model-type", "qwen3_moe"},
                                   {"num-experts", "3"},
                                   {"moe-router-topk", "2"},
                                   {"dtype", "bf16"},
                                   {NULL, NULL}};

static void test_traffic__is_what_was_planned(void **state)
{
    static const struct {
        const char *name;
        int ranks;
        const run_pair *more;
    } runs[] = {{"two", 2, NULL},
                {"three", 3, NULL},
                {"four", 4, few},
                {"five", 5, experts},
                {"more", 9, experts}}; // more ranks than units

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        static plan p;

        train(&p, runs[i].name, runs[i].ranks, runs[i].more);
        assert_int_equal(differences(&p), 0);
        assert_balanced();
    }
}

/* The control: a plan that is wrong in one thing is not what was moved. */
static void test_traffic__another_plan_is_seen(void **state)
{
    static plan right, wrong;

    (void)state;
    train(&right, "control", 3, few);
    assert_int_equal(differences(&right), 0);
    wrong = right;
    wrong.grads[1] += INVAR_TREE_LEAF_BYTES;
    assert_true(differences(&wrong) >= STEPS * 3);
    wrong = right;
    wrong.moments[2] -= sizeof(float);
    assert_true(differences(&wrong) >= STEPS);
    wrong = right;
    wrong.units.unit_count = 64;
    assert_true(differences(&wrong) >= STEPS * 3);
    wrong = right;
    wrong.samples[1][3].n_tokens++;
    assert_true(differences(&wrong) >= 3);
    for (int i = 0; i < n_rows; i++) // one byte of one call
        if (strcmp(rows[i].move, "weights") == 0 && rows[i].step == 1 && rows[i].rank == 2)
            rows[i].is.sent++;
    assert_int_equal(differences(&right), 1);
}

/* One rank has nobody to move anything to. */
static void test_traffic__of_one_rank_there_is_none(void **state)
{
    static plan p;

    (void)state;
    train(&p, "one", 1, NULL);
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
        cmocka_unit_test(test_traffic__is_what_was_planned),
        cmocka_unit_test(test_traffic__another_plan_is_seen),
        cmocka_unit_test(test_traffic__of_one_rank_there_is_none),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
