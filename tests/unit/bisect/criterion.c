/*
 * criterion.c - tests of bisect criteria: bounds on metrics, chains and points of a ledger.
 *
 * Three ledgers serve as trials: a healthy run, one with a spike of grad_norm, and one that
 * diverges at step 7. Each criterion must distinguish them, and only them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/criterion.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ledger.h"
#include "tests/support.h"

static char work_folder[400] = INVAR_TEST_WORK "/question-XXXXXX";
static char healthy[512], spiked[512], diverged[512];

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(work_folder));
    (void)snprintf(healthy, sizeof healthy, "%s/healthy.db", work_folder);
    (void)snprintf(spiked, sizeof spiked, "%s/spiked.db", work_folder);
    (void)snprintf(diverged, sizeof diverged, "%s/other.db", work_folder);
    assert_ok(invar_test_ledger_write(healthy, &(invar_test_ledger){.steps = 20}));
    assert_ok(invar_test_ledger_write(
        spiked, &(invar_test_ledger){.steps = 20, .faults = {{INVAR_TEST_SPIKE, .step = 12}}}));
    assert_ok(invar_test_ledger_write(
        diverged, &(invar_test_ledger){.steps = 30,
                                       .faults = {{INVAR_TEST_DIVERGES, .step = 7,
                                                   .point = "layer.1.mlp.out", .value = 1}}}));
    return 0;
}

/* ---- words ----------------------------------------------------------------------------------- */

static void test_question__parses_bounds(void **state)
{
    invar_criterion q;

    (void)state;
    assert_ok(invar_criterion_parse(&q, "grad_norm > 5"));
    assert_string_equal(q.metric, "grad_norm");
    assert_string_equal(q.op, ">");
    assert_true(q.bound == 5);
    assert_ok(invar_criterion_parse(&q, " train/loss<=-1e-3"));
    assert_string_equal(q.metric, "train/loss");
    assert_string_equal(q.op, "<=");
    assert_true(q.bound == -1e-3);
    assert_ok(invar_criterion_parse(&q, "max_logp_diff != 0"));
    assert_ok(invar_criterion_parse(&q, "loss == nan"));
    assert_true(q.bound != q.bound);
}

static void test_question__refuses_nonsense(void **state)
{
    static const char *const wrong[] = {"",         "loss",        "loss >",     "> 5",
                                        "loss = 5", "loss > five", "loss > 5 6", "loss >> 5",
                                        "loss 5",   "loss => 5"};
    invar_criterion q;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_fails(invar_criterion_parse(&q, wrong[i]), INVAR_E_INVALID, "expected METRIC OP");
}

static void test_question__tells_itself(void **state)
{
    char text[INVAR_CRITERION_TEXT];
    invar_criterion q;

    (void)state;
    assert_ok(invar_criterion_parse(&q, "grad_norm>5"));
    invar_criterion_describe(text, &q);
    assert_string_equal(text, "grad_norm > 5");
    assert_ok(invar_criterion_parse(&q, "grad_norm > 100"));
    invar_criterion_describe(text, &q);
    assert_string_equal(text, "grad_norm > 100");
    assert_ok(invar_criterion_parse(&q, "grad_norm > 0.1"));
    invar_criterion_describe(text, &q);
    assert_string_equal(text, "grad_norm > 0.1");
    q = (invar_criterion){.kind = INVAR_CRITERION_CHAIN, .until = 7, .layer = -1};
    invar_criterion_describe(text, &q);
    assert_string_equal(text, "chain up to step 7");
    q = (invar_criterion){.kind = INVAR_CRITERION_POINTS, .until = 3, .layer = 7};
    (void)snprintf(q.point_kind, sizeof q.point_kind, "grad");
    invar_criterion_describe(text, &q);
    assert_string_equal(text, "points layer 7 kind grad up to step 3");
}

/* ---- metrics --------------------------------------------------------------------------------- */

static const char *evaluate(const char *question, int64_t until, const char *ledger)
{
    static char value[INVAR_VALUE_SIZE];
    invar_criterion q;

    assert_ok(invar_criterion_parse(&q, question));
    q.until = until;
    assert_ok(invar_criterion_evaluate(value, &q, ledger));
    return value;
}

static void test_question__a_bound_holds_at_some_step(void **state)
{
    (void)state;
    assert_string_equal(evaluate("train/grad_norm > 20", -1, healthy), "no");
    assert_string_equal(evaluate("train/grad_norm > 20", -1, spiked), "yes");
    assert_string_equal(evaluate("train/grad_norm > 20", 12, spiked), "yes");
    assert_string_equal(evaluate("train/grad_norm > 20", 11, spiked), "no");
    assert_string_equal(evaluate("train/grad_norm == 25", -1, spiked), "yes");
    assert_string_equal(evaluate("train/grad_norm >= 25", -1, spiked), "yes");
    assert_string_equal(evaluate("train/grad_norm > 25", -1, spiked), "no");
    assert_string_equal(evaluate("train/logp_diff_max != 0", -1, healthy), "no");
}

static void test_question__a_metric_has_short_names(void **state)
{
    invar_criterion q;
    char value[INVAR_VALUE_SIZE];

    (void)state;
    assert_string_equal(evaluate("grad_norm > 20", -1, spiked), "yes");
    // Stands for train/logp_diff_max.
    assert_string_equal(evaluate("max_logp_diff != 0", -1, spiked), "no");
    assert_string_equal(evaluate("eval/gsm8k/reward < -5", -1, spiked), "no");
    assert_ok(invar_criterion_parse(&q, "grad_nrom > 20"));
    assert_fails(invar_criterion_evaluate(value, &q, spiked), INVAR_E_NOTFOUND,
                 "no metric 'grad_nrom'");
    assert_ok(invar_criterion_parse(&q, "max_logp_diff_diff > 20"));
    assert_fails(invar_criterion_evaluate(value, &q, spiked), INVAR_E_NOTFOUND, "no metric");
}

static void test_question__nan_is_no_number(void **state)
{
    char path[512];

    (void)state;
    (void)snprintf(path, sizeof path, "%s/nan.db", work_folder);
    assert_ok(invar_test_ledger_write(
        path,
        &(invar_test_ledger){.steps = 10,
                             .faults = {{INVAR_TEST_NAN, .step = 5, .point = "layer.1.mlp.out"}}}));
    assert_string_equal(evaluate("grad_norm == nan", -1, path), "yes");
    assert_string_equal(evaluate("grad_norm == nan", 4, path), "no");
    assert_string_equal(evaluate("grad_norm == nan", -1, healthy), "no");
    assert_string_equal(evaluate("grad_norm > 1e300", -1, path), "no");
    assert_string_equal(evaluate("grad_norm < -1e300", -1, path), "no");
}

static void test_question__is_settled_once_crossed(void **state)
{
    invar_criterion q;

    (void)state;
    assert_ok(invar_criterion_parse(&q, "grad_norm > 20"));
    assert_true(invar_criterion_is_decided(&q, spiked));
    assert_false(invar_criterion_is_decided(&q, healthy));
    assert_false(invar_criterion_is_decided(&q, "/nowhere/at/all.db"));
    q = (invar_criterion){.kind = INVAR_CRITERION_CHAIN, .until = -1};
    assert_false(invar_criterion_is_decided(&q, spiked));
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void evaluate_chain(char out[INVAR_VALUE_SIZE], const char *ledger, int64_t until)
{
    invar_criterion q = {.kind = INVAR_CRITERION_CHAIN, .until = until, .layer = -1};

    assert_true(invar_criterion_has_bits(&q));
    assert_ok(invar_criterion_evaluate(out, &q, ledger));
}

static void test_question__chains_part_at_a_step(void **state)
{
    char a[INVAR_VALUE_SIZE], b[INVAR_VALUE_SIZE];
    int64_t step, last[2];

    (void)state;
    assert_ok(invar_criterion_first_divergence(&step, last, healthy, diverged));
    assert_int_equal(step, 7);
    assert_int_equal(last[0], 19);
    assert_int_equal(last[1], 29);
    assert_ok(invar_criterion_first_divergence(&step, last, healthy, healthy));
    assert_int_equal(step, -1);
    for (int64_t until = 0; until < 20; until++) {
        evaluate_chain(a, healthy, until);
        evaluate_chain(b, diverged, until);
        assert_int_equal(strcmp(a, b) == 0, until < 7);
    }
    evaluate_chain(a, diverged, -1);
    evaluate_chain(b, diverged, 29);
    assert_string_equal(a, b);
}

static void evaluate_points(char out[INVAR_VALUE_SIZE], const char *ledger, int64_t layer,
                            const char *kind, const char *point, int64_t until)
{
    invar_criterion q = {.kind = INVAR_CRITERION_POINTS, .until = until, .layer = layer};

    (void)snprintf(q.point_kind, sizeof q.point_kind, "%s", kind);
    (void)snprintf(q.point, sizeof q.point, "%s", point);
    assert_ok(invar_criterion_evaluate(out, &q, ledger));
}

static void test_question__points_answer_for_themselves(void **state)
{
    char a[INVAR_VALUE_SIZE], b[INVAR_VALUE_SIZE];
    invar_criterion none = {.kind = INVAR_CRITERION_POINTS, .until = -1, .layer = 99};

    (void)state;
    evaluate_points(a, healthy, -1, "", "layer.1.mlp.out", 10);
    evaluate_points(b, diverged, -1, "", "layer.1.mlp.out", 10);
    assert_string_not_equal(a, b);
    evaluate_points(a, healthy, -1, "", "layer.1.mlp.out", 6);
    evaluate_points(b, diverged, -1, "", "layer.1.mlp.out", 6);
    assert_string_equal(a, b);
    evaluate_points(a, healthy, 0, "act", "", 7); // points of layer 0 precede the fault
    evaluate_points(b, diverged, 0, "act", "", 7);
    assert_string_equal(a, b);
    assert_fails(invar_criterion_evaluate(a, &none, healthy), INVAR_E_NOTFOUND, "no point");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_question__parses_bounds),
        cmocka_unit_test(test_question__refuses_nonsense),
        cmocka_unit_test(test_question__tells_itself),
        cmocka_unit_test(test_question__a_bound_holds_at_some_step),
        cmocka_unit_test(test_question__a_metric_has_short_names),
        cmocka_unit_test(test_question__nan_is_no_number),
        cmocka_unit_test(test_question__is_settled_once_crossed),
        cmocka_unit_test(test_question__chains_part_at_a_step),
        cmocka_unit_test(test_question__points_answer_for_themselves),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
