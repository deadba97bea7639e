/*
 * ab.c - tests of A/B experiments: paired effects, sides, recipe values, headlines.
 *
 * Expected sums are exact values, computed with Python's fractions and rounded once. Effects of a
 * ledger are also compared with its named query ab-effect. Control: equal metrics have no effect.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "bisect/ab/ab_effect.h"
#include "bisect/ab/ab_internal.h"
#include "bisect/view/ab.h"
#include "tests/ledger.h"
#include "tests/support.h"

static char work_folder[400] = INVAR_TEST_WORK "/ab-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(work_folder));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return invar_held_folder_remove(work_folder) != INVAR_OK;
}

static const char *path_in(const char *name)
{
    static char paths[8][512];
    static int next;
    char *out = paths[next++ % 8];

    (void)snprintf(out, sizeof paths[0], "%s/%s", work_folder, name);
    return out;
}

/* Asserts that `got` is within a few units in the last place of the exact value. */
static void assert_near(double got, double exact)
{
    if (!(fabs(got - exact) <= 4e-15 * fabs(exact)))
        fail_msg("%.17g, expected %.17g", got, exact);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void test_ab_sum__is_what_fractions_say(void **state)
{
    static const double a[] = {2.7441197115523996, 3.511431512516514,  2.7739038352168954,
                               2.6849315776688147, 2.0699818096772327, 2.7866980525787963,
                               4.111917380986321};
    static const double b[] = {2.8813637167901804, 3.832495236183414,  2.8585746535164227,
                               2.813362468052942,  2.1355798078057524, 2.2968792949852133,
                               4.378492671615742};
    invar_ab_sum sum;

    (void)state;
    invar_ab_sum_pairs(&sum, a, b, 7);
    assert_int_equal(sum.pairs, 7);
    assert_near(sum.mean_a, 2.954711982885282);
    assert_near(sum.mean_b, 3.028106835564238);
    assert_near(sum.mean, 0.07339485267895617);
    assert_near(sum.error, 0.10037569191242587);
    assert_int_equal(sum.higher, 6);
    assert_int_equal(sum.lower, 1);
    assert_int_equal(sum.equal, 0);
}

/* Pairs are subtracted before they are summed, so a large common part loses no digits. */
static void test_ab_sum__large_common_part(void **state)
{
    static const double a[] = {1e16, 1e16 + 2, 1e16 + 4, 1e16 + 6};
    static const double b[] = {1e16, 1e16 + 4, 1e16 + 8, 1e16 + 6};
    invar_ab_sum sum;

    (void)state;
    invar_ab_sum_pairs(&sum, a, b, 4);
    assert_true(sum.mean == 1.5);
    assert_near(sum.error, 0.9574271077563381);
    assert_int_equal(sum.higher, 2);
    assert_int_equal(sum.lower, 0);
    assert_int_equal(sum.equal, 2);
}

static void test_ab_sum__few_pairs(void **state)
{
    static const double a[] = {1, 2}, b[] = {1.5, 2.5};
    invar_ab_sum sum;

    (void)state;
    invar_ab_sum_pairs(&sum, a, b, 0);
    assert_int_equal(sum.pairs, 0);
    assert_true(isnan(sum.mean) && isnan(sum.error) && isnan(sum.mean_a) && isnan(sum.mean_b));
    invar_ab_sum_pairs(&sum, a, b, 1);
    assert_int_equal(sum.pairs, 1);
    assert_true(sum.mean == 0.5 && isnan(sum.error));
    invar_ab_sum_pairs(&sum, a, b, 2);
    assert_true(sum.mean == 0.5 && sum.error == 0);
}

static void test_ab_sum__what_is_not_finite_is_left_out(void **state)
{
    static const double a[] = {1, NAN, 3, INFINITY, -1e308, 5},
                        b[] = {2, 2, NAN, INFINITY, 1e308, 3};
    invar_ab_sum sum;

    (void)state;
    invar_ab_sum_pairs(&sum, a, b, 6);
    assert_int_equal(sum.pairs, 2);
    assert_true(sum.mean_a == 3 && sum.mean_b == 2.5 && sum.mean == -0.5 && sum.error == 1.5);
    assert_int_equal(sum.higher, 1);
    assert_int_equal(sum.lower, 1);
}

/* ---- effects from a ledger ------------------------------------------------------------------- */

enum { SEEDS = 3, STEPS = 25 };

static double noise(int seed, int64_t step)
{
    return (double)invar_test_random(5, (uint64_t)(seed * 1000 + step)) / 4294967296.0;
}

static const double shift[SEEDS] = {0.5, 0.25, 0.75};

/* Writes the metrics of a step of side a (0) or b (1) and returns their number. */
static size_t metrics_of(invar_ledger_metric *out, int seed, int side, int64_t step)
{
    double value = noise(seed, step);
    size_t n = 0;

    out[n++] = (invar_ledger_metric){"same", value};
    out[n++] = (invar_ledger_metric){"constant", side ? 2 : 1};
    out[n++] = (invar_ledger_metric){"shifted", side ? shift[seed] : 0};
    out[n++] = (invar_ledger_metric){"early", side && step == 3 ? 7 : value};
    out[n++] = (invar_ledger_metric){"zeros", side ? -0.0 : 0.0};
    out[n++] = (invar_ledger_metric){"broken", side && seed == 1 && step == 24 ? NAN : 1};
    if (side == 0)
        out[n++] = (invar_ledger_metric){"gone", value};
    if (step < 10)
        out[n++] = (invar_ledger_metric){"begun", side ? 3 : 1};
    out[n++] = (invar_ledger_metric){"rising", side ? (double)step : 0};
    return n;
}

static void write_run(invar_ledger *ledger, int seed, int side, int64_t steps)
{
    const invar_ledger_point point = {.name = "p",
                                      .phase = "forward",
                                      .layer = -1,
                                      .op = "op",
                                      .kind = "act",
                                      .dtype = "f32",
                                      .shards = 1};
    const invar_ledger_run run = {
        .name = side ? "b" : "a", .kind = "ab", .circumstances = {.no_auto_facts = true}};
    invar_ledger_metric metrics[16];
    invar_digest digest = {{1}};

    assert_ok(invar_ledger_begin(ledger, &run));
    assert_ok(invar_ledger_define(ledger, &point, 1));
    for (int64_t i = 0; i < steps; i++) {
        invar_ledger_step step = {.step = i, .digests = &digest, .metrics = metrics};
        step.n_metrics = metrics_of(metrics, seed, side, i);
        assert_ok(invar_ledger_append(ledger, &step));
        if (i == 19) {
            const invar_ledger_metric result = {"reward", side ? 0.5 : 0.25};
            assert_ok(invar_ledger_add_evaluation(ledger, "gsm8k", &result, 1));
        }
    }
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
}

/* Writes a ledger with runs 1 and 2 (seed 0, sides a and b), 3 and 4 ... and reads its effects. */
static void effects_of(invar_ab_effects *out, const char *name, int64_t steps_b)
{
    const char *path = path_in(name);
    invar_ledger *ledger;
    int64_t a[SEEDS], b[SEEDS];

    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    for (int i = 0; i < SEEDS; i++) {
        write_run(ledger, i, 0, STEPS);
        write_run(ledger, i, 1, steps_b);
        a[i] = 2 * i + 1;
        b[i] = 2 * i + 2;
    }
    assert_ok(invar_ab_effects_read(out, ledger, a, b, SEEDS));
    invar_ledger_close(ledger);
}

static const invar_ab_effect *find_effect(const invar_ab_effects *effects, const char *name)
{
    for (size_t i = 0; i < effects->count; i++)
        if (strcmp(effects->items[i].name, name) == 0)
            return &effects->items[i];
    fail_msg("no effect on %s", name);
    return NULL;
}

static void test_ab_effects__metrics(void **state)
{
    invar_ab_effects effects;
    const invar_ab_effect *e;

    (void)state;
    effects_of(&effects, "metrics.db", STEPS);
    assert_int_equal(effects.count, 10);
    assert_int_equal(effects.n_same, 1);
    assert_int_equal(effects.first, 0);
    assert_int_equal(effects.last, 24);
    assert_int_equal(effects.tail_first, 22); // a tenth of 25 steps, rounded up
    e = find_effect(&effects, "shifted");
    assert_int_equal(e->step, 24);
    assert_true(e->last.mean == 0.5 && e->tail.mean == 0.5);
    assert_near(e->last.error, 0.14433756729740643); // 0.25 / sqrt(3)
    assert_int_equal(e->last.higher, 3);
    e = find_effect(&effects, "constant");
    assert_true(e->last.mean == 1 && e->last.error == 0);
    e = find_effect(&effects, "rising"); // the tail is the mean of steps 22, 23 and 24
    assert_true(e->last.mean == 24 && e->tail.mean == 23 && e->tail.mean_a == 0);
    e = find_effect(&effects, "eval/gsm8k/reward");
    assert_int_equal(e->step, 19);
    assert_true(e->last.mean == 0.25);
    assert_int_equal(e->tail.pairs, 0); // no evaluation in the tail
    invar_ab_effects_release(&effects);
}

static void test_ab_effects__odd_metrics(void **state)
{
    invar_ab_effects effects;
    const invar_ab_effect *e;

    (void)state;
    effects_of(&effects, "odd.db", STEPS);
    e = find_effect(&effects, "early"); // equal in the last step only
    assert_false(e->same);
    assert_int_equal(e->last.equal, 3);
    assert_true(e->last.mean == 0);
    e = find_effect(&effects, "zeros"); // other bits, equal numbers
    assert_false(e->same);
    assert_int_equal(e->last.equal, 3);
    // A NaN excludes its seed from the last step, and its step from the tail.
    e = find_effect(&effects, "broken");
    assert_int_equal(e->n_unusable, 1);
    assert_int_equal(e->last.pairs, 2);
    assert_int_equal(e->tail.pairs, 3);
    assert_true(e->last.mean == 0 && e->tail.mean == 0);
    e = find_effect(&effects, "gone");
    assert_false(e->same);
    assert_true(e->step == INVAR_AB_NO_STEP);
    assert_int_equal(e->n_unusable, SEEDS * STEPS);
    assert_int_equal(e->last.pairs, 0);
    e = find_effect(&effects, "begun");
    assert_int_equal(e->step, 9);
    assert_true(e->last.mean == 2);
    assert_int_equal(e->tail.pairs, 0);
    invar_ab_effects_release(&effects);
}

static void test_ab_effects__order(void **state)
{
    static const char *const order[] = {"eval/gsm8k/reward", "begun", "constant", "rising",
                                        "shifted"};
    invar_ab_effects effects;

    (void)state;
    effects_of(&effects, "order.db", STEPS);
    // Pinned metrics come first, then metrics without variance, by name.
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        assert_string_equal(effects.items[i].name, order[i]);
        assert_int_equal(effects.items[i].pinned, i == 0);
    }
    assert_string_equal(effects.items[effects.count - 2].name, "gone"); // has no pair
    assert_string_equal(effects.items[effects.count - 1].name, "same");
    invar_ab_effects_release(&effects);
}

/* Only the steps that both runs have are compared. */
static void test_ab_effects__common_steps(void **state)
{
    invar_ab_effects effects;

    (void)state;
    effects_of(&effects, "short.db", 5);
    assert_int_equal(effects.last, 4);
    assert_int_equal(effects.tail_first, 4);
    assert_int_equal(find_effect(&effects, "rising")->step, 4);
    assert_true(find_effect(&effects, "rising")->last.mean == 4);
    invar_ab_effects_release(&effects);
}

/* A row of the named query ab-effect. */
typedef struct query_row {
    double mean, variance;
    int64_t pairs, higher, lower;
} query_row;

static invar_status read_query_row(void *payload, const char *const *columns,
                                   const invar_ledger_value *values, int count)
{
    query_row *out = payload;

    (void)columns;
    assert_int_equal(count, 8);
    if (values)
        *out = (query_row){values[3].real, values[4].real, values[0].integer, values[5].integer,
                           values[6].integer};
    return INVAR_OK;
}

static void test_ab_effects__agree_with_the_query(void **state)
{
    const invar_ledger_argument arguments[] = {
        {"experiment", {.type = INVAR_LEDGER_TYPE_TEXT, .data = "lr", .bytes = 2}},
        {"metric", {.type = INVAR_LEDGER_TYPE_TEXT, .data = "rollout/raw_reward", .bytes = 18}},
        {"step", {.type = INVAR_LEDGER_TYPE_INT, .integer = 19}}};
    const int64_t a[] = {1, 3, 5, 7}, b[] = {2, 4, 6, 8};
    const char *path = path_in("query.db");
    const invar_ab_effect *e;
    invar_ab_effects effects;
    invar_ledger_query query;
    invar_ledger_select_request request;
    invar_ledger *ledger;
    query_row found = {0};

    (void)state;
    assert_ok(invar_test_ledger_ab(path, 20, true));
    assert_ok(invar_ledger_query_find(&query, "ab-effect"));
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    request = (invar_ledger_select_request){.sql = query.sql,
                                            .arguments = arguments,
                                            .n_arguments = 3,
                                            .row = read_query_row,
                                            .payload = &found};
    assert_ok(invar_ledger_select(ledger, &request));
    assert_ok(invar_ab_effects_read(&effects, ledger, a, b, 4));
    invar_ledger_close(ledger);
    e = find_effect(&effects, "rollout/raw_reward");
    assert_int_equal(e->step, 19);
    assert_int_equal(found.pairs, 4);
    assert_int_equal(e->last.pairs, found.pairs);
    assert_int_equal(e->last.higher, found.higher);
    assert_int_equal(e->last.lower, found.lower);
    assert_near(e->last.mean, found.mean);
    assert_near(e->last.error * e->last.error * 4, found.variance);
    assert_true(e->last.mean == 0.0625);
    invar_ab_effects_release(&effects);
}

/* ---- sides ----------------------------------------------------------------------------------- */

static void test_ab_side__what_it_is(void **state)
{
    const char *program = path_in("program"), *text = path_in("text");
    invar_ab_side side = {.kind = INVAR_AB_FILE};
    char prefixed[600];

    (void)state;
    assert_ok(invar_file_write(program, "x", 1));
    assert_ok(invar_file_write(text, "x", 1));
    assert_int_equal(chmod(program, 0755), 0);
    assert_ok(invar_ab_side_read(&side, work_folder));
    assert_int_equal(side.kind, INVAR_AB_FOLDER);
    assert_ok(invar_ab_side_read(&side, program));
    assert_int_equal(side.kind, INVAR_AB_FILE);
    assert_ok(invar_ab_side_read(&side, text)); // not executable, so it is taken as a revision
    assert_int_equal(side.kind, INVAR_AB_COMMIT);
    assert_ok(invar_ab_side_read(&side, "HEAD~2"));
    assert_int_equal(side.kind, INVAR_AB_COMMIT);
    (void)snprintf(prefixed, sizeof prefixed, "rev:%s", program);
    assert_ok(invar_ab_side_read(&side, prefixed));
    assert_int_equal(side.kind, INVAR_AB_COMMIT);
    assert_string_equal(side.given, program);
    (void)snprintf(prefixed, sizeof prefixed, "file:%s", text);
    assert_fails(invar_ab_side_read(&side, prefixed), INVAR_E_INVALID, "not executable");
    (void)snprintf(prefixed, sizeof prefixed, "dir:%s", text);
    assert_fails(invar_ab_side_read(&side, prefixed), INVAR_E_INVALID, "no folder");
    assert_fails(invar_ab_side_read(&side, "file:/nowhere"), INVAR_E_INVALID, "no file");
    assert_fails(invar_ab_side_read(&side, "rev:"), INVAR_E_INVALID, "named by");
}

static void test_ab_side__values(void **state)
{
    static const char recipe[] = "# seed = 1\n[model]\nseed = 7\nname=x = y\r\n; threads = 3\n"
                                 "micro-batch-size =  4 \nlast = end";
    static const char *const flags[] = {"--seed=9", "--use-tis", "--lr", "0.5", NULL};
    char out[64];
    int64_t number;

    (void)state;
    assert_true(invar_workspace_value_copy(out, sizeof out, NULL, recipe, "seed"));
    assert_string_equal(out, "7");
    assert_true(invar_workspace_value_copy(out, sizeof out, flags, recipe, "seed"));
    assert_string_equal(out, "9");
    assert_true(invar_workspace_value_copy(out, sizeof out, flags, recipe, "lr"));
    assert_string_equal(out, "0.5");
    assert_true(invar_workspace_value_copy(out, sizeof out, NULL, recipe, "name"));
    assert_string_equal(out, "x = y");
    assert_true(invar_workspace_value_copy(out, sizeof out, NULL, recipe, "last"));
    assert_string_equal(out, "end");
    assert_false(invar_workspace_value_copy(out, sizeof out, flags, recipe, "threads"));
    assert_false(invar_workspace_value_copy(out, sizeof out, flags, recipe, "see"));
    assert_false(invar_workspace_value_copy(out, 3, NULL, recipe, "name"));
    assert_ok(invar_ab_number(&number, NULL, recipe, "micro-batch-size", 1));
    assert_int_equal(number, 4);
    assert_ok(invar_ab_number(&number, NULL, recipe, "rollout-seed", 42));
    assert_int_equal(number, 42);
    assert_fails(invar_ab_number(&number, NULL, recipe, "name", 1), INVAR_E_INVALID,
                 "whole number");
    assert_fails(invar_ab_number(&number, NULL, "seed = -1", "seed", 1), INVAR_E_INVALID, "seed");
    assert_fails(invar_ab_number(&number, NULL, "seed = 99999999999999999999", "seed", 1),
                 INVAR_E_INVALID, "seed");
}

/* ---- headlines ------------------------------------------------------------------------------- */

static void test_ab_headline__verdicts(void **state)
{
    static invar_ab_result ab_result;
    static invar_ab_pair pairs[2];
    char line[INVAR_AB_LINE];

    (void)state;
    ab_result.pairs = pairs;
    ab_result.n_pairs = 2;
    pairs[0].steps = pairs[1].steps = 40;
    invar_ab_headline(line, &ab_result);
    assert_string_equal(line, "identical: 2 seeds, 40 steps each");
    ab_result.verdict = INVAR_AB_DIFFERENT;
    ab_result.n_different = 2;
    pairs[0].only[INVAR_AB_B] = 3;
    invar_ab_headline(line, &ab_result);
    assert_non_null(strstr(line, "A has 0 more and B 3"));
    ab_result.divergence = (invar_divergence){
        .known = true, .step = 7, .layer = 0, .point = "p", .op = "o", .before = "0", .after = "1"};
    invar_ab_headline(line, &ab_result);
    assert_non_null(strstr(line, "different: from step 7, point p"));
    assert_non_null(strstr(line, "in 2 of 2 seeds"));
    ab_result.verdict = INVAR_AB_UNTESTABLE;
    ab_result.side = INVAR_AB_B;
    (void)snprintf(ab_result.failure_reason, sizeof ab_result.failure_reason,
                   "exit code 2: no rule");
    invar_ab_headline(line, &ab_result);
    assert_string_equal(line, "untestable: B: exit code 2: no rule");
    ab_result.verdict = INVAR_AB_NONDETERMINISTIC;
    ab_result.side = INVAR_AB_A;
    ab_result.aa_checks[0] =
        (invar_aa_check){.ran = true, .seed = 5, .varied_keys = "x", .headline = "h"};
    invar_ab_headline(line, &ab_result);
    assert_string_equal(line, "nondeterministic: A against itself, seed 5, again with x: h");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ab_sum__is_what_fractions_say),
        cmocka_unit_test(test_ab_sum__large_common_part),
        cmocka_unit_test(test_ab_sum__few_pairs),
        cmocka_unit_test(test_ab_sum__what_is_not_finite_is_left_out),
        cmocka_unit_test(test_ab_effects__metrics),
        cmocka_unit_test(test_ab_effects__odd_metrics),
        cmocka_unit_test(test_ab_effects__order),
        cmocka_unit_test(test_ab_effects__common_steps),
        cmocka_unit_test(test_ab_effects__agree_with_the_query),
        cmocka_unit_test(test_ab_side__what_it_is),
        cmocka_unit_test(test_ab_side__values),
        cmocka_unit_test(test_ab_headline__verdicts),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
