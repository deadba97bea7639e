/*
 * ledger_diff.c - the diff reports exactly the step and the point at which runs differ.
 *
 * Every step and point of a small run in turn; then runs of random length that were interrupted,
 * resumed and changed at random, compared with a scan from the first step to the last. Then runs
 * that differ in any one item that a step or an evaluation records: the diff must call them
 * identical exactly if their content digests are equal. The number of look-ups is bounded; their
 * time is only printed. Each random test checks that all verdicts occurred.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ledger/view/diff/diff.h"
#include "tests/ledger.h"
#include "tests/no_sync.h"
#include "tests/support.h"

static char work[400] = INVAR_TEST_WORK "/ledger_diff-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(work));
    return 0;
}

/* Opens a new ledger to write. A writer can also read, and can begin any number of runs. */
static invar_ledger *open_write(const char *name)
{
    char path[512];
    invar_ledger *ledger;

    (void)snprintf(path, sizeof path, "%s/%s.db", work, name);
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    return ledger;
}

/* ---- every step and point -------------------------------------------------------------------- */

static void write_spec(invar_ledger *ledger, const invar_test_ledger *spec)
{
    assert_ok(invar_test_ledger_begin(ledger, spec));
    for (int64_t step = 0; step < spec->steps; step++)
        assert_ok(invar_test_ledger_step(ledger, spec, 0, step));
}

static void assert_divergence(const invar_diff *diff, int64_t step, const char *point)
{
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
    assert_int_equal(diff->step, step);
    assert_non_null(diff->culprit);
    assert_string_equal(diff->culprit->name, point);
    assert_int_equal(diff->points.count + (size_t)diff->points.equal, INVAR_TEST_LEDGER_POINTS);
    for (const invar_diff_point *p = diff->points.items;
         p < diff->points.items + diff->points.count; p++)
        assert_int_equal(p->is_origin, p == diff->culprit);
}

static void test_ledger_diff__every_step_and_point(void **state)
{
    int64_t steps = invar_test_count(4, 25), run = 1;
    invar_ledger *ledger = open_write("every");
    invar_diff *diff;

    (void)state;
    write_spec(ledger, &(invar_test_ledger){.steps = steps});
    for (int64_t step = 0; step < steps; step++) {
        for (int64_t i = 0; i < INVAR_TEST_LEDGER_POINTS; i++) {
            const char *point = invar_test_ledger_point(i);
            invar_test_ledger spec = {.steps = steps};
            spec.faults[0] = (invar_test_fault){INVAR_TEST_DIVERGES, step, point, 0, 1};
            write_spec(ledger, &spec);
            assert_ok(invar_diff_runs(&diff, ledger, 1, ledger, ++run));
            assert_divergence(diff, step, point);
            invar_diff_free(diff);
        }
    }
    invar_ledger_close(ledger);
}

/* ---- random runs ----------------------------------------------------------------------------- */

enum { POINTS = 4, MAX_SEGMENTS = 4 };

/*
 * A run of up to four segments, whose digests change from a step on, or at one step of one segment.
 */
typedef struct run_plan {
    int64_t n_segments;
    int64_t from[MAX_SEGMENTS], to[MAX_SEGMENTS]; /* each segment has the steps [from, to) */
    int64_t changed; /* first step with other digests; INT64_MAX if there is none */
    int64_t changed_segment,
        changed_step; /* segment and step with other digests; -1 if there are none */
    int point;        /* first point with other digests */
} run_plan;

typedef struct random_stream {
    uint64_t seed, n;
} random_stream;

/* Returns a random number in [0, below). */
static int64_t random_below(random_stream *d, int64_t below)
{
    return (int64_t)(invar_test_random(d->seed, d->n++) % (uint64_t)below);
}

static run_plan random_plan(random_stream *d)
{
    run_plan p = {.changed = INT64_MAX, .changed_segment = -1, .changed_step = -1};
    int64_t n_steps;

    p.to[0] = 1 + random_below(d, 40);
    p.n_segments = 1 + random_below(d, MAX_SEGMENTS);
    n_steps = p.to[0];
    for (int64_t i = 1; i < p.n_segments; i++) {
        p.from[i] = random_below(d, n_steps + 1);
        p.to[i] = p.from[i] + 1 + random_below(d, 20);
        n_steps = p.to[i] > n_steps ? p.to[i] : n_steps;
    }
    if (random_below(d, 2))
        p.changed = random_below(d, n_steps);
    if (p.n_segments > 1 && random_below(d, 4) == 0) {
        p.changed_segment = 1 + random_below(d, p.n_segments - 1);
        p.changed_step = p.from[p.changed_segment] +
                         random_below(d, p.to[p.changed_segment] - p.from[p.changed_segment]);
    }
    p.point = (int)random_below(d, POINTS);
    return p;
}

static const int64_t shape[] = {1};

/* Defines four points, each with the previous one as input. */
static invar_status define_points(invar_ledger *ledger)
{
    static const int64_t inputs[] = {0, 1, 2};
    static const char *const names[POINTS] = {"p.0", "p.1", "p.2", "p.3"};
    invar_ledger_point points[POINTS];

    for (int i = 0; i < POINTS; i++)
        points[i] = (invar_ledger_point){.name = names[i],
                                         .phase = "forward",
                                         .layer = i,
                                         .op = "linear",
                                         .kind = "act",
                                         .dtype = "f32",
                                         .shape = shape,
                                         .dims = 1,
                                         .shards = 1,
                                         .inputs = i ? &inputs[i - 1] : NULL,
                                         .n_inputs = i > 0};
    return invar_ledger_define(ledger, points, POINTS);
}

static invar_status append_step(invar_ledger *ledger, int64_t step, bool altered, int point)
{
    invar_digest digests[POINTS];
    invar_ledger_step record = {.step = step, .weights_version = step, .digests = digests};

    for (int i = 0; i < POINTS; i++) {
        int64_t words[2] = {step, i};
        invar_hash_bytes(&digests[i], words, sizeof words);
        digests[i].bytes[0] ^= altered && i >= point;
    }
    return invar_ledger_append(ledger, &record);
}

/* Begins the run, or resumes it with a new segment at the step `from`. */
static void start_segment(invar_ledger *ledger, int64_t run, int64_t segment, int64_t from)
{
    invar_ledger_provenance provenance = {.no_auto_facts = true};
    invar_ledger_run run_options = {.name = "random", .kind = "train", .circumstances = provenance};
    invar_ledger_summary summary;
    invar_digest chain = {{0}};
    char number[24];

    if (segment == 0) {
        assert_ok(invar_ledger_begin(ledger, &run_options));
        return;
    }
    (void)snprintf(number, sizeof number, "%" PRId64, run);
    assert_ok(invar_ledger_find(&summary, ledger, number));
    if (from > 0)
        assert_ok(invar_ledger_chain_at(&chain, ledger, run, from - 1));
    assert_ok(invar_ledger_resume(ledger, summary.uuid, from - 1, &chain, &provenance));
}

static void write_segment(invar_ledger *ledger, int64_t run, const run_plan *p, int64_t segment)
{
    start_segment(ledger, run, segment, p->from[segment]);
    assert_ok(define_points(ledger));
    for (int64_t step = p->from[segment]; step < p->to[segment]; step++) {
        bool is_changed = segment == p->changed_segment && step == p->changed_step;
        assert_ok(append_step(ledger, step, (step >= p->changed) != is_changed, p->point));
    }
}

static void write_plan(invar_ledger *ledger, int64_t run, const run_plan *p)
{
    for (int64_t i = 0; i < p->n_segments; i++)
        write_segment(ledger, run, p, i);
}

/* Returns whether an earlier segment recorded the step. */
static bool is_recorded_before(const run_plan *p, int64_t segment, int64_t step)
{
    for (int64_t i = 0; i < segment; i++)
        if (step >= p->from[i] && step < p->to[i])
            return true;
    return false;
}

/* Returns the step that two segments record with different digests; -1 if there is none. */
static int64_t contradicting_step(const run_plan *p)
{
    if (p->changed_segment < 0)
        return -1;
    if (is_recorded_before(p, p->changed_segment, p->changed_step))
        return p->changed_step;
    for (int64_t i = p->changed_segment + 1; i < p->n_segments; i++)
        if (p->changed_step >= p->from[i] && p->changed_step < p->to[i])
            return p->changed_step;
    return -1;
}

static int64_t plan_length(const run_plan *p)
{
    int64_t n_steps = 0;

    for (int64_t i = 0; i < p->n_segments; i++)
        n_steps = p->to[i] > n_steps ? p->to[i] : n_steps;
    return n_steps;
}

/* Returns the first step with different chains by comparing all of them; -1 if there is none. */
static int64_t first_difference(invar_ledger *ledger, int64_t a, int64_t b, int64_t steps)
{
    for (int64_t step = 0; step < steps; step++) {
        invar_digest x, y;
        assert_ok(invar_ledger_chain_at(&x, ledger, a, step));
        assert_ok(invar_ledger_chain_at(&y, ledger, b, step));
        if (!invar_digest_equal(&x, &y))
            return step;
    }
    return -1;
}

static int64_t log2_up(int64_t n)
{
    int64_t bits = 0;

    while (((int64_t)1 << bits) < n)
        bits++;
    return bits;
}

/*
 * Number of times that each verdict occurred. A generator that only makes equal runs would test
 * nothing.
 */
typedef struct verdict_counts {
    int self, different, identical;
} verdict_counts;

static void check_pair(verdict_counts *counts, invar_ledger *ledger, int64_t run, const run_plan *p,
                       const run_plan *q)
{
    int64_t common = plan_length(p) < plan_length(q) ? plan_length(p) : plan_length(q);
    int64_t self_a = contradicting_step(p), self_b = contradicting_step(q);
    invar_diff *diff;

    write_plan(ledger, run, p);
    write_plan(ledger, run + 1, q);
    assert_ok(invar_diff_runs(&diff, ledger, run, ledger, run + 1));
    if (self_a >= 0 || self_b >= 0) {
        counts->self++;
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
        assert_int_equal(diff->self_contradicting_side, self_a >= 0 ? 'A' : 'B');
        assert_int_equal(diff->step, self_a >= 0 ? self_a : self_b);
        assert_int_equal(diff->culprit->ord, self_a >= 0 ? p->point : q->point);
    } else {
        int64_t expected = first_difference(ledger, run, run + 1, common);
        counts->different += expected >= 0;
        counts->identical += expected < 0;
        assert_int_equal(diff->step, expected);
        assert_int_equal(diff->verdict, expected < 0 ? INVAR_DIFF_VERDICT_IDENTICAL
                                                     : INVAR_DIFF_VERDICT_DIFFERENT);
        assert_int_equal(diff->steps.only_a, plan_length(p) - common);
        assert_int_equal(diff->steps.only_b, plan_length(q) - common);
        assert_int_equal(diff->steps.compared, expected < 0 ? common : expected + 1);
        assert_true(diff->steps.lookups <= (p->n_segments + q->n_segments) * (2 * log2_up(64) + 4));
    }
    invar_diff_free(diff);
}

static void test_ledger_diff__agrees_with_a_scan(void **state)
{
    enum {
        PAIRS = 50
    }; // per ledger, since finding a run takes time proportional to the number of
        // runs
    int64_t ledgers = invar_test_count(2, 60), pairs = ledgers * PAIRS;
    verdict_counts counts = {0};

    (void)state;
    for (int64_t k = 0; k < ledgers; k++) {
        char name[32];
        (void)snprintf(name, sizeof name, "random%" PRId64, k);
        invar_ledger *ledger = open_write(name);
        for (int64_t i = 0; i < PAIRS; i++) {
            random_stream d = {.seed = (uint64_t)(900 + k * PAIRS + i)};
            run_plan p = random_plan(&d), q = random_plan(&d);
            check_pair(&counts, ledger, 1 + 2 * i, &p, &q);
        }
        invar_ledger_close(ledger);
    }
    assert_true(counts.self >= pairs / 20);
    assert_true(counts.different >= pairs / 10);
    assert_true(counts.identical >= pairs / 20);
}

/* ---- identical means equal contents ---------------------------------------------------------- */

/* A difference in what a run records at one step. */
typedef enum change {
    CHANGE_NONE,
    CHANGE_POINT,
    CHANGE_BATCH,
    CHANGE_METRIC,
    CHANGE_METRIC_MORE,
    CHANGE_SAMPLE,
    CHANGE_SAMPLE_LESS,
    CHANGE_REPLY,
    CHANGE_EVAL,
    CHANGE_EVAL_MORE,
    CHANGE_EVAL_LESS,
    CHANGES
} change;

typedef struct history {
    int64_t n_segments;
    int64_t from[MAX_SEGMENTS],
        to[MAX_SEGMENTS]; /* each segment has the steps [from, to); the last one ends
                                       the run */
    bool evaluates_at_start[MAX_SEGMENTS]; /* evaluates after a resume, before the first step */
    change change;
    int64_t step, segment; /* the change is in this step, and in this segment or, if -1, in all */
} history;

static history random_history(random_stream *d, int64_t steps)
{
    history s = {.n_segments = 1 + random_below(d, MAX_SEGMENTS),
                 .change = (change)random_below(d, CHANGES),
                 .segment = -1};

    for (int64_t i = 0, done = 0; i < s.n_segments; i++) {
        s.from[i] = i ? random_below(d, done + 1) : 0;
        s.to[i] =
            i + 1 == s.n_segments ? steps : s.from[i] + random_below(d, steps - s.from[i] + 1);
        s.evaluates_at_start[i] = random_below(d, 2);
        done = s.to[i] > done ? s.to[i] : done;
    }
    s.step = s.change >= CHANGE_EVAL ? random_below(d, steps + 1) - 1 : random_below(d, steps);
    if (random_below(d, 3) == 0)
        s.segment = random_below(d, s.n_segments);
    return s;
}

static bool is_affected(const history *s, change what, int64_t segment, int64_t step)
{
    return s->change == what && s->step == step && (s->segment < 0 || s->segment == segment);
}

/*
 * Returns whether every segment evaluates after the step: the start, each third step, the last one.
 */
static bool is_evaluated(int64_t step, int64_t steps)
{
    return step % 3 == 2 || step == -1 || step == steps - 1;
}

static void evaluate(invar_ledger *ledger, const history *s, int64_t segment, int64_t step,
                     int64_t steps)
{
    invar_ledger_metric result = {"reward",
                                  is_affected(s, CHANGE_EVAL, segment, step) ? 0.5 : 0.25};

    if (is_evaluated(step, steps) && !is_affected(s, CHANGE_EVAL_LESS, segment, step))
        assert_ok(invar_ledger_add_evaluation(ledger, "a", &result, 1));
    if (is_affected(s, CHANGE_EVAL_MORE, segment, step))
        assert_ok(invar_ledger_add_evaluation(ledger, "b", &result, 1));
}

static void write_step(invar_ledger *ledger, const history *s, int64_t segment, int64_t step)
{
    invar_digest digest;
    invar_ledger_metric metrics[] = {{"x", is_affected(s, CHANGE_METRIC, segment, step)}, {"y", 1}};
    invar_ledger_sample samples[] = {
        {.rng = "0", .finish_reason = "stop", .completion_order = segment},
        {.rng = "1", .finish_reason = "stop"}};
    invar_ledger_plugin_reply reply = {.plugin = "p", .data = "good", .bytes = 4};
    invar_ledger_step record = {
        .step = step,
        .digests = &digest,
        .metrics = metrics,
        .n_metrics = is_affected(s, CHANGE_METRIC_MORE, segment, step) ? 2 : 1,
        .samples = samples,
        .n_samples = is_affected(s, CHANGE_SAMPLE_LESS, segment, step) ? 1 : 2,
        .replies = &reply,
        .n_replies = 1,
    };

    invar_hash_bytes(&digest, &step, sizeof step);
    digest.bytes[0] ^= is_affected(s, CHANGE_POINT, segment, step);
    record.batch.bytes[0] =
        is_affected(s, CHANGE_BATCH, segment, step) ? 2 : 1; // zeros mean not recorded
    samples[1].reward = is_affected(s, CHANGE_SAMPLE, segment, step) ? -0.0 : 0.0;
    reply.data = is_affected(s, CHANGE_REPLY, segment, step) ? "evil" : "good";
    assert_ok(invar_ledger_append(ledger, &record));
}

static void write_history(invar_ledger *ledger, int64_t run, const history *s, int64_t steps)
{
    static const invar_ledger_point point = {.name = "p",
                                             .phase = "forward",
                                             .op = "linear",
                                             .kind = "act",
                                             .dtype = "f32",
                                             .shape = shape,
                                             .dims = 1,
                                             .shards = 1};

    for (int64_t segment = 0; segment < s->n_segments; segment++) {
        start_segment(ledger, run, segment, s->from[segment]);
        assert_ok(invar_ledger_define(ledger, &point, 1));
        if (segment == 0 || s->evaluates_at_start[segment])
            evaluate(ledger, s, segment, s->from[segment] - 1, steps);
        for (int64_t step = s->from[segment]; step < s->to[segment]; step++) {
            write_step(ledger, s, segment, step);
            evaluate(ledger, s, segment, step, steps);
        }
    }
}

/*
 * Returns whether a segment recorded what the change affects: the step, or the evaluation after it.
 */
static bool records_change(const history *s, int64_t segment, int64_t steps)
{
    bool has_step = s->step >= s->from[segment] && s->step < s->to[segment];
    bool at_start =
        s->step == s->from[segment] - 1 && (segment == 0 || s->evaluates_at_start[segment]);

    return s->change == CHANGE_EVAL ? (has_step || at_start) && is_evaluated(s->step, steps)
                                    : has_step;
}

/*
 * Returns whether two segments recorded the same item with different values. One evaluation more or
 * less is no contradiction.
 */
static bool contradicts_itself(const history *s, int64_t steps)
{
    int n_usual = 0, altered = 0;

    if (s->change == CHANGE_NONE || s->change > CHANGE_EVAL)
        return false;
    for (int64_t segment = 0; segment < s->n_segments; segment++) {
        if (records_change(s, segment, steps)) {
            n_usual += s->segment >= 0 && s->segment != segment;
            altered += s->segment < 0 || s->segment == segment;
        }
    }
    return n_usual && altered;
}

typedef struct change_counts {
    int self, identical, different[CHANGES];
} change_counts;

static void check_histories(change_counts *counts, invar_ledger *ledger, int64_t run,
                            const history histories[2], int64_t steps)
{
    bool self_a = contradicts_itself(&histories[0], steps);
    bool self_b = contradicts_itself(&histories[1], steps);
    invar_digest contents[2];
    invar_diff *diff;

    for (int i = 0; i < 2; i++) {
        write_history(ledger, run + i, &histories[i], steps);
        assert_ok(invar_ledger_content_hash(&contents[i], ledger, run + i));
    }
    assert_ok(invar_diff_runs(&diff, ledger, run, ledger, run + 1));
    if (self_a || self_b) {
        counts->self++;
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
        assert_int_equal(diff->self_contradicting_side, self_a ? 'A' : 'B');
        assert_int_equal(diff->step, histories[self_a ? 0 : 1].step);
    } else if (invar_digest_equal(&contents[0], &contents[1])) {
        counts->identical++;
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_IDENTICAL);
    } else {
        counts->different[histories[0].change]++;
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_DIFFERENT);
        assert_true(diff->step == histories[0].step || diff->step == histories[1].step);
        assert_true(diff->points.count + diff->metrics.count + diff->samples.count > 0 ||
                    diff->replies.different > 0 || diff->same_batch == INVAR_TRISTATE_NO);
    }
    invar_diff_free(diff);
}

static void test_ledger_diff__identical_is_equal_content(void **state)
{
    enum { PAIRS = 50 };
    int64_t ledgers = invar_test_count(3, 80);
    change_counts counts = {0};

    (void)state;
    for (int64_t k = 0; k < ledgers; k++) {
        char name[32];
        (void)snprintf(name, sizeof name, "stories%" PRId64, k);
        invar_ledger *ledger = open_write(name);
        for (int64_t i = 0; i < PAIRS; i++) {
            random_stream d = {.seed = (uint64_t)(70000 + k * PAIRS + i)};
            int64_t steps = 1 + random_below(&d, 7);
            history histories[2] = {random_history(&d, steps), random_history(&d, steps)};
            if (random_below(&d, 2))
                histories[1].change = CHANGE_NONE;
            check_histories(&counts, ledger, 1 + 2 * i, histories, steps);
        }
        invar_ledger_close(ledger);
    }
    assert_true(counts.self >= 10);
    assert_true(counts.identical >= 10);
    for (int i = CHANGE_POINT; i < CHANGES; i++)
        assert_true(counts.different[i] > 0);
}

/* ---- long runs ------------------------------------------------------------------------------- */

static double now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void time_diff(invar_ledger *ledger, int64_t run, int64_t steps, int64_t expected,
                      int64_t max_lookups)
{
    double start = now_ms(), elapsed;
    invar_diff *diff;

    assert_ok(invar_diff_runs(&diff, ledger, 1, ledger, run));
    elapsed = now_ms() - start;
    assert_int_equal(diff->step, expected);
    assert_true(diff->steps.lookups <= max_lookups);
    print_message("%" PRId64 " steps, first difference at %" PRId64 ": %" PRId64
                  " look-ups, %.2f ms for the whole diff\n",
                  steps, diff->step, diff->steps.lookups, elapsed);
    invar_diff_free(diff);
}

static void test_ledger_diff__lookups_are_few(void **state)
{
    int64_t steps = invar_test_count(2000, 200000), run = 1;
    const int64_t first_differences[] = {0, 1, steps / 3, steps - 2, steps - 1, INT64_MAX};
    run_plan unchanged = {
        .n_segments = 1, .to = {steps}, .changed = INT64_MAX, .changed_segment = -1};
    run_plan resumed = {
        .n_segments = 2, .from = {0, 5}, .to = {steps, steps}, .changed_segment = -1};
    invar_ledger *ledger = open_write("long");

    (void)state;
    write_plan(ledger, run, &unchanged);
    for (size_t i = 0; i < sizeof first_differences / sizeof *first_differences; i++) {
        run_plan altered = unchanged;
        altered.changed = first_differences[i];
        write_plan(ledger, ++run, &altered);
        time_diff(ledger, run, steps, first_differences[i] == INT64_MAX ? -1 : first_differences[i],
                  log2_up(steps) + 3);
    }
    resumed.changed = steps / 2; // all but five steps are recorded twice
    write_plan(ledger, ++run, &resumed);
    time_diff(ledger, run, steps, steps / 2, 2 * log2_up(steps) + 6);
    invar_ledger_close(ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_diff__every_step_and_point),
        cmocka_unit_test(test_ledger_diff__agrees_with_a_scan),
        cmocka_unit_test(test_ledger_diff__identical_is_equal_content),
        cmocka_unit_test(test_ledger_diff__lookups_are_few),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
