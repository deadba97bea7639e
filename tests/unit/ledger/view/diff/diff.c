/*
 * diff.c - tests of the diff of two runs: the verdict, and the first differing step and point.
 *
 * Runs with a planted fault must diverge at its step and point, with the verdict that identity and
 * program imply. Evaluations, resumed runs and repeated steps are compared as well. Control: equal,
 * shorter and resumed runs are identical.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/ledger/view/diff/pair.h"

/* ---- verdicts -------------------------------------------------------------------------------- */

static void test_diff__identical_runs(void **state)
{
    invar_test_ledger spec = {.steps = 23};
    invar_diff *diff = diff_interrupted(&spec, &spec);

    (void)state;
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_IDENTICAL);
    assert_headline(diff, "identical: 23 steps, 15 points a step");
    assert_int_equal(diff->step, -1);
    assert_int_equal(diff->facts.count, 0);
    assert_int_equal(diff->facts.equal, 28); // 22 usual facts, 5 of the identity, and the kind
    assert_int_equal(
        diff->changes.count + diff->points.count + diff->metrics.count + diff->samples.count, 0);
    assert_int_equal(diff->points.equal, INVAR_TEST_LEDGER_POINTS);
    assert_int_equal(diff->samples.equal, INVAR_TEST_LEDGER_SAMPLES);
    assert_true(diff->metrics.equal >= 20);
    assert_int_equal(diff->replies.equal, 1);
    assert_null(diff->culprit);
    assert_false(diff->same_inputs);
    invar_diff_free(diff);
}

static void test_diff__run_and_itself(void **state)
{
    const char *path = new_path();
    invar_ledger *ledger;
    invar_diff *diff;

    (void)state;
    assert_ok(invar_test_ledger_write(path, &(invar_test_ledger){.steps = 5}));
    ledger = open_read(path);
    assert_ok(invar_diff_runs(&diff, ledger, 1, ledger, 1));
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_IDENTICAL);
    invar_diff_free(diff);
    assert_fails(invar_diff_runs(&diff, ledger, 1, ledger, 7), INVAR_E_NOTFOUND, "no run 7");
    invar_ledger_close(ledger);
}

static void test_diff__two_runs_of_one_ledger(void **state)
{
    const char *path = new_path();
    invar_test_ledger bad = {
        .steps = 8,
        .name = "bad",
        .facts = other_program,
        .n_facts = 1,
        .faults = {{.kind = INVAR_TEST_DIVERGES, .step = 3, .point = "head.logits", .value = 1}}};
    invar_ledger *ledger;
    invar_diff *diff;

    (void)state;
    assert_ok(invar_test_ledger_add(path, &(invar_test_ledger){.steps = 8}));
    assert_ok(invar_test_ledger_add(path, &bad));
    ledger = open_read(path);
    assert_ok(invar_diff_runs(&diff, ledger, 1, ledger, 2));
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_DIFFERENT);
    assert_int_equal(diff->step, 3);
    assert_string_equal(diff->culprit->name, "head.logits");
    assert_string_equal(diff->b.name, "bad");
    invar_diff_free(diff);
    invar_ledger_close(ledger);
}

static void test_diff__first_divergent_point(void **state)
{
    invar_test_ledger a = {.steps = 40}, b = {.steps = 40, .facts = other_program, .n_facts = 1};
    invar_diff *diff;

    (void)state;
    b.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 17, "layer.1.mlp.out", 0, 1};
    diff = diff_specs(&a, &b);
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_DIFFERENT);
    assert_headline(diff, "different: first at step 17, point layer.1.mlp.out (forward, layer 1), "
                          "its inputs are equal");
    assert_int_equal(diff->steps.compared, 18);
    assert_true(diff->roots_differ);
    assert_int_equal(diff->same_batch, INVAR_TRISTATE_YES);
    assert_int_equal(diff->same_rng, INVAR_TRISTATE_YES);
    assert_int_equal(diff->same_weights, INVAR_TRISTATE_YES);
    assert_int_equal(diff->facts.count, 1);
    assert_string_equal(diff->facts.items[0].key, "binary");
    assert_string_equal(diff->facts.items[0].b, "ff");
    // The faulty point and all points computed from it differ.
    assert_int_equal(diff->points.count, 9);
    assert_int_equal(diff->points.equal, 6);
    assert_ptr_equal(diff->culprit, &diff->points.items[0]);
    assert_string_equal(diff->culprit->op, "swiglu");
    assert_string_equal(diff->culprit->shape, "[1024,64]");
    for (size_t i = 1; i < diff->points.count; i++)
        assert_false(diff->points.items[i].is_origin);
    assert_int_equal(diff->samples.count, 0); // samples were drawn before the divergence
    assert_true(diff->metrics.count > 0 && diff->metrics.equal > 0);
    invar_diff_free(diff);
}

static void test_diff__same_program_two_results(void **state)
{
    invar_test_ledger a = {.steps = 9}, b = {.steps = 9};
    invar_diff *diff;

    (void)state;
    b.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, 4, "rollout.tokens", 0, 1};
    diff = diff_specs(&a, &b);
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
    assert_true(diff->same_inputs && !diff->self_contradicting_side);
    assert_headline(diff, "nondeterministic: same identity and program, first at step 4, "
                          "point rollout.tokens (rollout), the first that differs");
    assert_int_equal(diff->samples.count, INVAR_TEST_LEDGER_SAMPLES);
    assert_int_equal(diff->samples.items[0].fields,
                     INVAR_DIFF_SAMPLE_WEIGHTS | INVAR_DIFF_SAMPLE_TOKENS |
                         INVAR_DIFF_SAMPLE_ROLLOUT | INVAR_DIFF_SAMPLE_TRAIN);
    invar_diff_free(diff);

    // A reward plug-in is not part of the identity, but another one explains other results.
    const invar_ledger_fact old_judge = {"plugin", "custom-rm-path", "aa"};
    const invar_ledger_fact new_judge = {"plugin", "custom-rm-path", "bb"};
    a.facts = &old_judge;
    b.facts = &new_judge;
    a.n_facts = b.n_facts = 1;
    diff = diff_specs(&a, &b);
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_DIFFERENT);
    assert_headline(diff, "different: another plug-in (custom-rm-path), first at step 4, "
                          "point rollout.tokens (rollout), the first that differs");
    invar_diff_free(diff);
    a.n_facts = 0;

    // Free keys do not explain other bits; another identity does.
    const invar_ledger_fact threads = {"free", "threads", "1"};
    b.facts = &threads;
    b.n_facts = 1;
    diff = diff_specs(&a, &b);
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
    invar_diff_free(diff);
    b.parent = "0123456789abcdef0123456789abcdef";
    diff = diff_specs(&a, &b);
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_DIFFERENT);
    assert_string_equal(diff->facts.items[0].key, "parent");
    invar_diff_free(diff);
    b.parent = NULL;
    b.seed = 1;
    diff = diff_specs(&a, &b);
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_DIFFERENT);
    assert_int_equal(diff->step, 0);
    assert_string_equal(diff->facts.items[0].scope, "identity");
    assert_string_equal(diff->facts.items[0].key, "seed");
    invar_diff_free(diff);
}

static void test_diff__prefix_of_a_run(void **state)
{
    invar_test_ledger a = {.steps = 30}, b = {.steps = 20, .killed = true};
    invar_diff *diff = diff_specs(&a, &b);

    (void)state;
    assert_headline(diff, "identical: 20 steps, 15 points a step; 10 more only in A");
    assert_int_equal(diff->steps.last, 19);
    invar_diff_free(diff);
}

static void test_diff__nothing_in_common(void **state)
{
    invar_test_ledger a = {.steps = 3}, b = {.steps = 0, .killed = true};
    invar_diff *diff = diff_specs(&a, &b);
    char *text;

    (void)state;
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NOTHING);
    assert_int_equal(diff->steps.only_a, 3);
    assert_int_equal(diff->facts.equal, 28);
    text = text_of(diff, print_plain);
    assert_has(text, "nothing: the runs have no step in common\n");
    assert_has(text, "compared: nothing\n");
    assert_null(strstr(text, "metrics:"));
    free(text);
    free(text_of(diff, invar_diff_html));
    invar_diff_free(diff);
}

/* ---- runs that were interrupted -------------------------------------------------------------- */

static void test_diff__resumed_run_is_the_same(void **state)
{
    invar_test_ledger whole = {.steps = 24}, resumed = {.steps = 24, .crash = 17, .resume = 9};
    invar_diff *diff = diff_interrupted(&whole, &resumed);

    (void)state;
    assert_headline(diff, "identical: 24 steps, 15 points a step");
    assert_int_equal(diff->b.segments, 2);
    assert_int_equal(diff->facts.count, 0);
    invar_diff_free(diff);
}

static void test_diff__run_that_contradicts_itself(void **state)
{
    invar_test_ledger whole = {.steps = 24}, resumed = {.steps = 24, .crash = 17, .resume = 9};
    invar_diff *diff;
    char next[INVAR_DIFF_NEXT_LINES][INVAR_DIFF_NEXT_SIZE], headline[INVAR_DIFF_HEADLINE_SIZE];

    (void)state;
    resumed.faults[0] = (invar_test_fault){INVAR_TEST_OVERLAP, 12, "loss.grad", 0, 1};
    diff = diff_interrupted(&whole, &resumed);
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
    assert_int_equal(diff->self_contradicting_side, 'B');
    assert_int_equal(diff->step, 12);
    assert_int_equal(diff->a.seg, 0);
    assert_int_equal(diff->b.seg, 1);
    invar_diff_headline(headline, diff);
    assert_has(headline, "nondeterministic: run test (");
    assert_has(headline, ") did step 12 twice with two results, "
                         "point loss.grad (backward), its inputs are equal");
    assert_int_equal(invar_diff_next(next, diff), 1);
    assert_has(next[0], " --step 12");
    invar_diff_free(diff);
    diff = diff_interrupted(&resumed, &whole);
    assert_int_equal(diff->self_contradicting_side, 'A');
    assert_int_equal(diff->step, 12);
    invar_diff_free(diff);
}

/* The diff of one step uses its newest execution and ignores all other steps. */
static void test_diff__one_step(void **state)
{
    invar_test_ledger whole = {.steps = 24}, resumed = {.steps = 24, .crash = 17, .resume = 9};
    const char *x = new_path(), *y = new_path();
    invar_ledger *a, *b;
    invar_diff *diff;

    (void)state;
    resumed.faults[0] = (invar_test_fault){INVAR_TEST_OVERLAP, 12, "loss.grad", 0, 1};
    assert_ok(invar_test_ledger_write(x, &whole));
    assert_ok(invar_test_ledger_write(y, &resumed));
    a = open_read(x);
    b = open_read(y);
    assert_ok(invar_diff_step(&diff, a, 1, b, 1, 12));
    assert_int_equal(diff->self_contradicting_side, 0);
    assert_int_equal(diff->step, 12);
    assert_int_equal(diff->b.seg, 1);
    assert_string_equal(diff->culprit->name, "loss.grad");
    invar_diff_free(diff);
    assert_ok(invar_diff_step(&diff, a, 1, b, 1, 11));
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_IDENTICAL);
    assert_headline(diff, "identical: 1 step, 15 points a step");
    invar_diff_free(diff);
    assert_fails(invar_diff_step(&diff, a, 1, b, 1, 24), INVAR_E_CORRUPT, "gap");
    invar_ledger_close(a);
    invar_ledger_close(b);
}

static void test_diff__facts_that_changed_on_the_way(void **state)
{
    const char *a = new_path(), *b = new_path();
    const invar_ledger_fact moved = {"host", "name", "node-2"};
    invar_test_ledger spec = {.steps = 6, .crash = 4};
    invar_ledger *ledger;
    invar_diff *diff;

    (void)state;
    assert_ok(invar_test_ledger_write(a, &(invar_test_ledger){.steps = 6}));
    assert_ok(invar_test_ledger_write(b, &(invar_test_ledger){.steps = 4, .killed = true}));
    assert_ok(invar_ledger_open(&ledger, b, &(invar_ledger_options){.write = true}));
    spec.facts = &moved;
    spec.n_facts = 1;
    assert_ok(invar_test_ledger_resume(ledger, &spec, 4));
    invar_ledger_close(ledger);
    diff = diff_files(a, b);
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_IDENTICAL);
    assert_int_equal(diff->facts.count, 1);
    assert_string_equal(diff->facts.items[0].a, "node-1");
    assert_string_equal(diff->facts.items[0].b, "node-1 (from segment 0), node-2 (from segment 1)");
    invar_diff_free(diff);
}

static void test_diff__two_programs_in_one_run(void **state)
{
    const char *path = new_path();
    invar_test_ledger spec = {.steps = 9, .killed = true};
    char headline[INVAR_DIFF_HEADLINE_SIZE];
    invar_ledger *ledger;
    invar_diff *diff;

    (void)state;
    assert_ok(invar_test_ledger_write(path, &spec));
    spec.facts = other_program;
    spec.n_facts = 1;
    spec.faults[0] = (invar_test_fault){INVAR_TEST_OVERLAP, 6, "embed.out", 0, 1};
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.write = true}));
    assert_ok(invar_test_ledger_resume(ledger, &spec, 5));
    for (int64_t step = 5; step < 9; step++)
        assert_ok(invar_test_ledger_step(ledger, &spec, 1, step));
    invar_ledger_close(ledger);
    diff = diff_files(path, path);
    // Two programs may give two results.
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_DIFFERENT);
    assert_int_equal(diff->self_contradicting_side, 'A');
    assert_int_equal(diff->step, 6);
    invar_diff_headline(headline, diff);
    assert_has(headline, "different: run test (");
    assert_has(headline, "did step 6 twice by two programs with two results");
    assert_int_equal(diff->facts.count, 1); // the fact that differs between the segments
    assert_string_equal(diff->facts.items[0].a, "00112233445566778899aabbccddeeff");
    assert_string_equal(diff->facts.items[0].b, "ff");
    invar_diff_free(diff);
}

/* Writes a run by `first`, then resumes it from step 5 by `second`. Returns its path. */
static const char *run_with_repeated_steps(const invar_test_ledger *first,
                                           const invar_test_ledger *second)
{
    const char *path = new_path();
    invar_ledger *ledger;

    assert_ok(invar_test_ledger_write(path, first));
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.write = true}));
    assert_ok(invar_test_ledger_resume(ledger, second, 5));
    for (int64_t step = 5; step < second->steps; step++)
        assert_ok(invar_test_ledger_step(ledger, second, 1, step));
    invar_ledger_close(ledger);
    return path;
}

static void test_diff__unknown_program_is_no_excuse(void **state)
{
    static const char *const forgeries[] = {
        "DELETE FROM fact WHERE key = 'binary' AND seg = 1",
        "DELETE FROM fact WHERE key = 'binary'",
    };
    invar_test_ledger spec = {.steps = 9, .killed = true}, other = spec;

    (void)state;
    other.faults[0] = (invar_test_fault){INVAR_TEST_OVERLAP, 6, "embed.out", 0, 1};
    for (size_t i = 0; i < COUNT(forgeries); i++) {
        const char *path = run_with_repeated_steps(&spec, &other);
        invar_diff *diff;
        tamper(path, forgeries[i]);
        diff = diff_files(path, path);
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
        assert_int_equal(diff->self_contradicting_side, 'A');
        invar_diff_free(diff);
    }
}

static void test_diff__repeated_step_with_other_numbers(void **state)
{
    static const struct {
        invar_test_fault fault;
        const char *headline;
    } cases[] = {
        {{INVAR_TEST_REWARD_SHIFT, 8, NULL, 0, 0.5}, "in 1 metric, 0 samples, 0 plug-in replies"},
        {{INVAR_TEST_ABORTED, 7, NULL, 2, 0}, "in 0 metrics, 1 sample, 0 plug-in replies"},
        {{INVAR_TEST_REPLY, 6, NULL, 0, 0}, "in 0 metrics, 0 samples, 1 plug-in reply"},
        {{INVAR_TEST_BATCH_REPEATED, 5, NULL, 1, 0}, "in what the step was given"},
    };
    invar_test_ledger spec = {.steps = 9, .killed = true};
    char headline[INVAR_DIFF_HEADLINE_SIZE], whole[512], other[512],
        next[INVAR_DIFF_NEXT_LINES][INVAR_DIFF_NEXT_SIZE];
    invar_diff *diff;

    (void)state;
    (void)snprintf(whole, sizeof whole, "%s", new_path());
    assert_ok(invar_test_ledger_write(whole, &spec));
    // Control: repeated with equal results.
    diff = diff_files(whole, run_with_repeated_steps(&spec, &spec));
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_IDENTICAL);
    invar_diff_free(diff);
    for (size_t i = 0; i < COUNT(cases); i++) {
        invar_test_ledger changed = spec;
        changed.faults[0] = cases[i].fault;
        (void)snprintf(other, sizeof other, "%s", run_with_repeated_steps(&spec, &changed));
        diff = diff_files(whole, other);
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
        assert_int_equal(diff->self_contradicting_side, 'B');
        assert_int_equal(diff->step, cases[i].fault.step);
        assert_int_equal(diff->a.seg, 0);
        assert_int_equal(diff->b.seg, 1);
        assert_false(diff->roots_differ || diff->evaluations);
        invar_diff_headline(headline, diff);
        assert_has(headline, "twice with two results, not in tensors but ");
        assert_has(headline, cases[i].headline);
        assert_int_equal(invar_diff_next(next, diff), 1);
        assert_has(next[0], "invar ledger show ");
        if (i == 0)
            assert_string_equal(diff->metrics.items[0].name, "rollout/raw_reward");
        invar_diff_free(diff);
    }
}

/* ---- differences outside of tensors ---------------------------------------------------------- */

static void test_diff__samples_without_tensors(void **state)
{
    invar_test_ledger a = {.steps = 12}, b = {.steps = 12, .facts = other_program, .n_facts = 1};
    invar_diff *diff;

    (void)state;
    b.faults[0] = (invar_test_fault){INVAR_TEST_LOGP_MISMATCH, 7, NULL, 3, 0.25};
    diff = diff_specs(&a, &b);
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_DIFFERENT);
    assert_int_equal(diff->step, 7);
    assert_false(diff->roots_differ);
    assert_int_equal(diff->points.count, 0);
    assert_int_equal(diff->samples.count, 1);
    assert_int_equal(diff->samples.items[0].idx, 3);
    assert_int_equal(diff->samples.items[0].fields,
                     INVAR_DIFF_SAMPLE_TRAIN | INVAR_DIFF_SAMPLE_GAP);
    assert_headline(diff, "different: first at step 7, not in tensors but in 5 metrics, 1 sample, "
                          "0 plug-in replies");
    invar_diff_free(diff);
}

static void test_diff__evaluation_without_tensors(void **state)
{
    invar_test_ledger a = {.steps = 25}, b = {.steps = 25, .facts = other_program, .n_facts = 1};
    invar_diff *diff;

    (void)state;
    b.faults[0] = (invar_test_fault){.kind = INVAR_TEST_EVAL_DROP, .step = 10};
    diff = diff_specs(&a, &b);
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_DIFFERENT);
    assert_int_equal(diff->step, 19);
    assert_int_equal(diff->metrics.count, 1);
    assert_string_equal(diff->metrics.items[0].name, "eval/gsm8k/reward");
    invar_diff_free(diff);
    for (int64_t step = 3; step < 24; step += 20) { // the earlier difference is reported
        b.faults[1] = (invar_test_fault){INVAR_TEST_LOGP_MISMATCH, step, NULL, 0, 0.25};
        diff = diff_specs(&a, &b);
        assert_int_equal(diff->step, step < 19 ? step : 19);
        invar_diff_free(diff);
    }
}

/* ---- evaluations ----------------------------------------------------------------------------- */

enum { MAX_EVALUATIONS = 4, EVALUATED_STEPS = 3 };

/* An evaluation in segment `seg`, after step `step`. */
typedef struct evaluation {
    int64_t seg, step;
    const char *dataset, *name;
    double value;
} evaluation;

/*
 * A run of three steps without points, with evaluations in order. Segment 1 resumes after the step
 * of its first evaluation.
 */
typedef struct evaluated_run {
    const evaluation *evals;
    const invar_ledger_fact *facts;
    size_t n_evals, n_facts;
} evaluated_run;

static void add_evaluations(invar_ledger *ledger, const evaluated_run *spec, int64_t seg,
                            int64_t step)
{
    for (const evaluation *m = spec->evals; m < spec->evals + spec->n_evals; m++)
        if (m->seg == seg && m->step == step)
            assert_ok(invar_ledger_add_evaluation(ledger, m->dataset,
                                                  &(invar_ledger_metric){m->name, m->value}, 1));
}

static void append_steps(invar_ledger *ledger, const evaluated_run *spec, int64_t seg,
                         int64_t after, int64_t last)
{
    assert_ok(invar_ledger_define(ledger, NULL, 0));
    add_evaluations(ledger, spec, seg, after);
    for (int64_t step = after + 1; step <= last; step++) {
        assert_ok(invar_ledger_append(ledger, &(invar_ledger_step){.step = step}));
        add_evaluations(ledger, spec, seg, step);
    }
}

static const char *write_evaluated_run(const evaluated_run *spec)
{
    const char *path = new_path();
    invar_ledger_provenance c = {
        .no_auto_facts = true, .facts = spec->facts, .n_facts = spec->n_facts};
    invar_digest chain = {{0}};
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_begin(
        ledger, &(invar_ledger_run){.name = "marked", .kind = "train", .circumstances = c}));
    append_steps(ledger, spec, 0, -1, EVALUATED_STEPS - 1);
    for (const evaluation *m = spec->evals; m < spec->evals + spec->n_evals; m++) {
        if (m->seg == 0)
            continue;
        if (m->step >= 0)
            assert_ok(invar_ledger_chain_at(&chain, ledger, 1, m->step));
        assert_ok(invar_ledger_resume(ledger, NULL, m->step, &chain, &c));
        append_steps(ledger, spec, 1, m->step, m->step);
        break;
    }
    invar_ledger_close(ledger);
    return path;
}

static const invar_ledger_fact program[] = {{"build", "binary", "aa"}};

static invar_diff *diff_evaluated_runs(const evaluated_run *a, const evaluated_run *b)
{
    const char *x = write_evaluated_run(a);

    return diff_files(x, write_evaluated_run(b));
}

#define EVALUATED(list)                                                                            \
    (evaluated_run)                                                                                \
    {                                                                                              \
        list, program, COUNT(list), 1                                                              \
    }

static void test_diff__evaluations(void **state)
{
    static const evaluation usual[] = {
        {0, -1, "d", "r", 1}, {0, 0, "d", "r", 2}, {0, 2, "d", "r", 3}};
    static const struct {
        evaluation evals[MAX_EVALUATIONS];
        size_t count;
        int64_t step;     /* first differing step; -2 if the runs are identical */
        bool contradicts; /* one evaluation has two results */
    } cases[] = {
        {{{0, -1, "d", "r", 1}, {0, 0, "d", "r", 2}, {0, 2, "d", "r", 3}}, 3, -2, false},
        {{{0, -1, "d", "r", 9}, {0, 0, "d", "r", 2}, {0, 2, "d", "r", 3}}, 3, -1, true},
        {{{0, -1, "d", "r", 1}, {0, 0, "d", "r", 9}, {0, 2, "d", "r", 3}}, 3, 0, true},
        {{{0, -1, "d", "r", 1}, {0, 0, "d", "r", 2}, {0, 2, "d", "r", 9}}, 3, 2, true},
        {{{0, 0, "d", "r", 2}, {0, 2, "d", "r", 3}}, 2, -1, false},
        {{{0, -1, "d", "r", 1}, {0, 2, "d", "r", 3}}, 2, 0, false},
        {{{0, -1, "d", "r", 1}, {0, 0, "d", "r", 2}}, 2, 2, false},
        {{{0, -1, "d", "r", 1}, {0, 0, "d", "q", 2}, {0, 2, "d", "r", 3}}, 3, 0, false},
        {{{0, -1, "d", "r", 1}, {0, 0, "e", "r", 2}, {0, 2, "d", "r", 3}}, 3, 0, false},
        {{{0, 0, "d", "r", 2}, {0, 2, "d", "r", 9}}, 2, 2, true}, // reported before the missing one
    };

    (void)state;
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        size_t k = i / 2;
        evaluated_run other = {cases[k].evals, program, cases[k].count, 1};
        invar_diff *diff = i % 2 ? diff_evaluated_runs(&other, &EVALUATED(usual))
                                 : diff_evaluated_runs(&EVALUATED(usual), &other);
        invar_diff_verdict expected = cases[k].step == -2    ? INVAR_DIFF_VERDICT_IDENTICAL
                                      : cases[k].contradicts ? INVAR_DIFF_VERDICT_NONDETERMINISTIC
                                                             : INVAR_DIFF_VERDICT_DIFFERENT;
        assert_int_equal(diff->verdict, expected);
        assert_int_equal(diff->diverged, cases[k].step != -2);
        assert_int_equal(diff->step, diff->diverged ? cases[k].step : -1);
        assert_int_equal(diff->evaluations, diff->diverged);
        assert_int_equal(diff->steps.compared, EVALUATED_STEPS);
        assert_true(diff->diverged ? diff->metrics.count > 0 : diff->metrics.equal == 1);
        assert_int_not_equal(diff->same_batch, INVAR_TRISTATE_NO);
        assert_int_not_equal(diff->same_rng, INVAR_TRISTATE_NO);
        assert_int_not_equal(diff->same_weights, INVAR_TRISTATE_NO);
        invar_diff_free(diff);
    }
}

static void test_diff__evaluation_names_are_not_doubled(void **state)
{
    static const evaluation one[] = {{0, 0, "sort", "eval/sort-pass@1", 0.5}};
    static const evaluation two[] = {{0, 0, "sort", "eval/sort-pass@1", 0.25}};
    invar_diff *diff = diff_evaluated_runs(&EVALUATED(one), &EVALUATED(two));

    (void)state;
    assert_int_equal(diff->metrics.count, 1);
    assert_string_equal(diff->metrics.items[0].name, "eval/sort-pass@1");
    invar_diff_free(diff);
}

static void test_diff__evaluation_before_any_step(void **state)
{
    static const evaluation one[] = {{0, -1, "gsm8k", "reward", 0.5}};
    static const evaluation two[] = {{0, -1, "gsm8k", "reward", 0.25}};
    invar_diff *diff = diff_evaluated_runs(&EVALUATED(one), &EVALUATED(two));
    char next[INVAR_DIFF_NEXT_LINES][INVAR_DIFF_NEXT_SIZE];
    char *text;

    (void)state;
    assert_headline(diff, "nondeterministic: same identity and program, "
                          "first at the start, before any step, in 1 result of evaluations");
    text = text_of(diff, print_plain);
    assert_has(text, "\nmetrics: 1 differ, 0 equal\n  eval/gsm8k/reward  0.5 ");
    assert_has(text, "\ncompared: 3 steps (0-2, by chains)");
    assert_null(strstr(text, "points: not in the ledger"));
    free(text);
    text = text_of(diff, invar_diff_json);
    assert_has(text, "\"name\": \"eval/gsm8k/reward\"");
    assert_has(text, "\"evaluations\": true");
    free(text);
    text = text_of(diff, invar_diff_html);
    assert_has(text, "\"name\":\"eval/gsm8k/reward\"");
    free(text);
    assert_int_equal(invar_diff_next(next, diff), 2);
    assert_null(strstr(next[0], "--step"));
    invar_diff_free(diff);
}

static void test_diff__evaluation_of_a_later_segment(void **state)
{
    static const evaluation at_once[] = {{0, 2, "d", "r", 1}}, later[] = {{1, 2, "d", "r", 1}};
    static const evaluation other[] = {{1, 2, "d", "r", 2}};
    invar_diff *diff = diff_evaluated_runs(&EVALUATED(at_once), &EVALUATED(later));

    (void)state;
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_IDENTICAL);
    assert_int_equal(diff->b.segments, 2);
    assert_int_equal(diff->metrics.equal, 1);
    invar_diff_free(diff);
    diff = diff_evaluated_runs(&EVALUATED(at_once), &EVALUATED(other));
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
    assert_true(diff->same_inputs);
    assert_int_equal(diff->step, 2);
    assert_int_equal(diff->metrics.count, 1);
    invar_diff_free(diff);
}

static void test_diff__evaluation_repeated(void **state)
{
    (void)state;
    for (int64_t step = -1; step < EVALUATED_STEPS; step++) {
        const evaluation same[] = {{0, step, "d", "r", 1}, {1, step, "d", "r", 1}};
        const evaluation other[] = {{0, step, "d", "r", 1}, {1, step, "d", "r", 2}};
        const evaluation more[] = {{0, step, "d", "r", 1}, {1, step, "d", "q", 2}};
        char headline[INVAR_DIFF_HEADLINE_SIZE];
        invar_diff *diff = diff_evaluated_runs(&EVALUATED(same), &EVALUATED(same));
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_IDENTICAL);
        invar_diff_free(diff);
        diff = diff_evaluated_runs(&EVALUATED(more), &EVALUATED(more));
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_IDENTICAL);
        invar_diff_free(diff);
        diff = diff_evaluated_runs(&EVALUATED(same), &EVALUATED(other));
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
        assert_int_equal(diff->self_contradicting_side, 'B');
        assert_int_equal(diff->step, step);
        assert_int_equal(diff->a.seg, 0);
        assert_int_equal(diff->b.seg, 1);
        assert_int_equal(diff->metrics.count, 1);
        assert_true(diff->metrics.items[0].a == 1 && diff->metrics.items[0].b == 2);
        invar_diff_headline(headline, diff);
        assert_has(headline, step < 0 ? ") evaluated its start twice with two results, in 1 result"
                                      : ") evaluated step ");
        free(text_of(diff, print_plain));
        free(text_of(diff, invar_diff_html));
        invar_diff_free(diff);
    }
}

static void test_diff__evaluations_of_one_name(void **state)
{
    static const evaluation a[] = {{0, 1, "x", "y/z", 1}, {0, 1, "x/y", "z", 2}};
    static const evaluation b[] = {{0, 1, "x/y", "z", 2}, {0, 1, "x", "y/z", 1}};
    static const evaluation c[] = {{0, 1, "x/y", "z", 1}, {0, 1, "x", "y/z", 2}};
    invar_diff *diff = diff_evaluated_runs(&EVALUATED(a), &EVALUATED(b));

    (void)state;
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_IDENTICAL);
    invar_diff_free(diff);
    diff = diff_evaluated_runs(&EVALUATED(a), &EVALUATED(c));
    assert_int_equal(diff->metrics.count, 2);
    assert_string_equal(diff->metrics.items[0].name, "eval/x/y/z");
    assert_string_equal(diff->metrics.items[1].name, "eval/x/y/z");
    invar_diff_free(diff);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diff__identical_runs),
        cmocka_unit_test(test_diff__run_and_itself),
        cmocka_unit_test(test_diff__two_runs_of_one_ledger),
        cmocka_unit_test(test_diff__first_divergent_point),
        cmocka_unit_test(test_diff__same_program_two_results),
        cmocka_unit_test(test_diff__prefix_of_a_run),
        cmocka_unit_test(test_diff__nothing_in_common),
        cmocka_unit_test(test_diff__resumed_run_is_the_same),
        cmocka_unit_test(test_diff__run_that_contradicts_itself),
        cmocka_unit_test(test_diff__one_step),
        cmocka_unit_test(test_diff__facts_that_changed_on_the_way),
        cmocka_unit_test(test_diff__two_programs_in_one_run),
        cmocka_unit_test(test_diff__unknown_program_is_no_excuse),
        cmocka_unit_test(test_diff__repeated_step_with_other_numbers),
        cmocka_unit_test(test_diff__samples_without_tensors),
        cmocka_unit_test(test_diff__evaluation_without_tensors),
        cmocka_unit_test(test_diff__evaluations),
        cmocka_unit_test(test_diff__evaluation_names_are_not_doubled),
        cmocka_unit_test(test_diff__evaluation_before_any_step),
        cmocka_unit_test(test_diff__evaluation_of_a_later_segment),
        cmocka_unit_test(test_diff__evaluation_repeated),
        cmocka_unit_test(test_diff__evaluations_of_one_name),
    };

    return cmocka_run_group_tests(tests, setup_shared, teardown_shared);
}
