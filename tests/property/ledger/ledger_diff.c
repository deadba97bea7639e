/*
 * ledger_diff.c - the diff finds exactly the step and the point where a difference was put.
 *
 * Every place of a small run in turn; then runs of random length that were interrupted, resumed and
 * changed at random, where a scan from the first step to the last says what is right. Then runs
 * that differ in any one thing that a step or an evaluation records: they are identical exactly
 * when the hashes of their contents are equal. The number of look-ups is bounded; how long they
 * take is printed, and never decides.
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
#include "tests/support.h"

static char work[400] = INVAR_TEST_WORK "/ledger_diff-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(work));
    return 0;
}

/* A writer of a new file. A writer reads, too, and begins as many runs as one likes. */
static invar_ledger *open_write(const char *name)
{
    char path[512];
    invar_ledger *ledger;

    (void)snprintf(path, sizeof path, "%s/%s.db", work, name);
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    return ledger;
}

/* ---- every place ----------------------------------------------------------------------------- */

static void write_spec(invar_ledger *ledger, const invar_test_ledger *spec)
{
    assert_ok(invar_test_ledger_begin(ledger, spec));
    for (int64_t step = 0; step < spec->steps; step++)
        assert_ok(invar_test_ledger_step(ledger, spec, 0, step));
}

static void assert_place(const invar_diff *diff, int64_t step, const char *point)
{
    assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
    assert_int_equal(diff->step, step);
    assert_non_null(diff->culprit);
    assert_string_equal(diff->culprit->name, point);
    assert_int_equal(diff->n_points + (size_t)diff->points_equal, INVAR_TEST_LEDGER_POINTS);
    for (const invar_diff_point *p = diff->points; p < diff->points + diff->n_points; p++)
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
            assert_place(diff, step, point);
            invar_diff_free(diff);
        }
    }
    invar_ledger_close(ledger);
}

/* ---- random runs ----------------------------------------------------------------------------- */

enum { POINTS = 4, LIVES = 4 };

/* A run with up to four lives, whose bits change for good at a step, or for one life only. */
typedef struct plan {
    int64_t lives;
    int64_t from[LIVES], to[LIVES]; /* the steps [from, to) of each life */
    int64_t changed;                /* the first step with other bits; INT64_MAX: none */
    int64_t slip_life, slip_step;   /* a life that had other bits at a step; -1: none */
    int point;                      /* whose they are */
} plan;

typedef struct dice {
    uint64_t seed, n;
} dice;

/* In [0, below). */
static int64_t roll(dice *d, int64_t below)
{
    return (int64_t)(invar_test_random(d->seed, d->n++) % (uint64_t)below);
}

static plan random_plan(dice *d)
{
    plan p = {.changed = INT64_MAX, .slip_life = -1, .slip_step = -1};
    int64_t furthest;

    p.to[0] = 1 + roll(d, 40);
    p.lives = 1 + roll(d, LIVES);
    furthest = p.to[0];
    for (int64_t i = 1; i < p.lives; i++) {
        p.from[i] = roll(d, furthest + 1);
        p.to[i] = p.from[i] + 1 + roll(d, 20);
        furthest = p.to[i] > furthest ? p.to[i] : furthest;
    }
    if (roll(d, 2))
        p.changed = roll(d, furthest);
    if (p.lives > 1 && roll(d, 4) == 0) {
        p.slip_life = 1 + roll(d, p.lives - 1);
        p.slip_step = p.from[p.slip_life] + roll(d, p.to[p.slip_life] - p.from[p.slip_life]);
    }
    p.point = (int)roll(d, POINTS);
    return p;
}

static const int64_t shape[] = {1};

/* Four points in a row, each computed from the one before. */
static invar_status define(invar_ledger *ledger)
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

static invar_status append(invar_ledger *ledger, int64_t step, bool other, int point)
{
    invar_digest digests[POINTS];
    invar_ledger_step now = {.step = step, .weights_version = step, .digests = digests};

    for (int i = 0; i < POINTS; i++) {
        int64_t words[2] = {step, i};
        invar_hash_bytes(&digests[i], words, sizeof words);
        digests[i].bytes[0] ^= other && i >= point;
    }
    return invar_ledger_append(ledger, &now);
}

/* The run, or a segment of it that goes on with the step `from`. */
static void start_life(invar_ledger *ledger, int64_t run, int64_t life, int64_t from)
{
    invar_ledger_provenance bare = {.no_auto_facts = true};
    invar_ledger_run begun = {.name = "random", .kind = "train", .circumstances = bare};
    invar_ledger_summary summary;
    invar_digest chain = {{0}};
    char number[24];

    if (life == 0) {
        assert_ok(invar_ledger_begin(ledger, &begun));
        return;
    }
    (void)snprintf(number, sizeof number, "%" PRId64, run);
    assert_ok(invar_ledger_find(&summary, ledger, number));
    if (from > 0)
        assert_ok(invar_ledger_chain_at(&chain, ledger, run, from - 1));
    assert_ok(invar_ledger_resume(ledger, summary.uuid, from - 1, &chain, &bare));
}

static void live(invar_ledger *ledger, int64_t run, const plan *p, int64_t life)
{
    start_life(ledger, run, life, p->from[life]);
    assert_ok(define(ledger));
    for (int64_t step = p->from[life]; step < p->to[life]; step++) {
        bool slip = life == p->slip_life && step == p->slip_step;
        assert_ok(append(ledger, step, (step >= p->changed) != slip, p->point));
    }
}

static void write_plan(invar_ledger *ledger, int64_t run, const plan *p)
{
    for (int64_t i = 0; i < p->lives; i++)
        live(ledger, run, p, i);
}

/* True when a life before this one did the step. */
static bool done_before(const plan *p, int64_t life, int64_t step)
{
    for (int64_t i = 0; i < life; i++)
        if (step >= p->from[i] && step < p->to[i])
            return true;
    return false;
}

/* The step that the plan does twice with two results; -1: none. */
static int64_t contradiction(const plan *p)
{
    if (p->slip_life < 0)
        return -1;
    if (done_before(p, p->slip_life, p->slip_step))
        return p->slip_step;
    for (int64_t i = p->slip_life + 1; i < p->lives; i++)
        if (p->slip_step >= p->from[i] && p->slip_step < p->to[i])
            return p->slip_step;
    return -1;
}

static int64_t length(const plan *p)
{
    int64_t furthest = 0;

    for (int64_t i = 0; i < p->lives; i++)
        furthest = p->to[i] > furthest ? p->to[i] : furthest;
    return furthest;
}

/* The first step with different chains by looking at every one; -1: none. */
static int64_t scan(invar_ledger *ledger, int64_t a, int64_t b, int64_t steps)
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

/* How often each verdict came out: a generator that only makes equal runs tests nothing. */
typedef struct census {
    int self, different, identical;
} census;

static void check_pair(census *seen, invar_ledger *ledger, int64_t run, const plan *p,
                       const plan *q)
{
    int64_t common = length(p) < length(q) ? length(p) : length(q);
    int64_t self_a = contradiction(p), self_b = contradiction(q);
    invar_diff *diff;

    write_plan(ledger, run, p);
    write_plan(ledger, run + 1, q);
    assert_ok(invar_diff_runs(&diff, ledger, run, ledger, run + 1));
    if (self_a >= 0 || self_b >= 0) {
        seen->self++;
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
        assert_int_equal(diff->self_contradicting_side, self_a >= 0 ? 'A' : 'B');
        assert_int_equal(diff->step, self_a >= 0 ? self_a : self_b);
        assert_int_equal(diff->culprit->ord, self_a >= 0 ? p->point : q->point);
    } else {
        int64_t expected = scan(ledger, run, run + 1, common);
        seen->different += expected >= 0;
        seen->identical += expected < 0;
        assert_int_equal(diff->step, expected);
        assert_int_equal(diff->verdict, expected < 0 ? INVAR_DIFF_VERDICT_IDENTICAL
                                                     : INVAR_DIFF_VERDICT_DIFFERENT);
        assert_int_equal(diff->only_a, length(p) - common);
        assert_int_equal(diff->only_b, length(q) - common);
        assert_int_equal(diff->steps_compared, expected < 0 ? common : expected + 1);
        assert_true(diff->lookups <= (p->lives + q->lives) * (2 * log2_up(64) + 4));
    }
    invar_diff_free(diff);
}

static void test_ledger_diff__agrees_with_a_scan(void **state)
{
    enum { PAIRS = 50 }; // in a ledger: finding a run costs a look at each
    int64_t ledgers = invar_test_count(2, 60), pairs = ledgers * PAIRS;
    census seen = {0};

    (void)state;
    for (int64_t k = 0; k < ledgers; k++) {
        char name[32];
        (void)snprintf(name, sizeof name, "random%" PRId64, k);
        invar_ledger *ledger = open_write(name);
        for (int64_t i = 0; i < PAIRS; i++) {
            dice d = {.seed = (uint64_t)(900 + k * PAIRS + i)};
            plan p = random_plan(&d), q = random_plan(&d);
            check_pair(&seen, ledger, 1 + 2 * i, &p, &q);
        }
        invar_ledger_close(ledger);
    }
    assert_true(seen.self >= pairs / 20);
    assert_true(seen.different >= pairs / 10);
    assert_true(seen.identical >= pairs / 20);
}

/* ---- identical means equal contents ---------------------------------------------------------- */

/* What a run does otherwise than usual, at one step. */
typedef enum twist {
    TWIST_NONE,
    TWIST_POINT,
    TWIST_BATCH,
    TWIST_METRIC,
    TWIST_METRIC_MORE,
    TWIST_SAMPLE,
    TWIST_SAMPLE_LESS,
    TWIST_REPLY,
    TWIST_EVAL,
    TWIST_EVAL_MORE,
    TWIST_EVAL_LESS,
    TWISTS
} twist;

typedef struct story {
    int64_t lives;
    int64_t from[LIVES], to[LIVES]; /* the steps [from, to) of each life; the last ends the run */
    bool again[LIVES];              /* evaluates after a resume, before the first step */
    twist twist;
    int64_t step, life; /* where the twist is; in which life, -1: in all */
} story;

static story random_story(dice *d, int64_t steps)
{
    story s = {.lives = 1 + roll(d, LIVES), .twist = (twist)roll(d, TWISTS), .life = -1};

    for (int64_t i = 0, done = 0; i < s.lives; i++) {
        s.from[i] = i ? roll(d, done + 1) : 0;
        s.to[i] = i + 1 == s.lives ? steps : s.from[i] + roll(d, steps - s.from[i] + 1);
        s.again[i] = roll(d, 2);
        done = s.to[i] > done ? s.to[i] : done;
    }
    s.step = s.twist >= TWIST_EVAL ? roll(d, steps + 1) - 1 : roll(d, steps);
    if (roll(d, 3) == 0)
        s.life = roll(d, s.lives);
    return s;
}

static bool twisted(const story *s, twist what, int64_t life, int64_t step)
{
    return s->twist == what && s->step == step && (s->life < 0 || s->life == life);
}

/* What every life evaluates after: the start, each third step, the last one. */
static bool due(int64_t step, int64_t steps)
{
    return step % 3 == 2 || step == -1 || step == steps - 1;
}

static void evaluate(invar_ledger *ledger, const story *s, int64_t life, int64_t step,
                     int64_t steps)
{
    invar_ledger_metric result = {"reward", twisted(s, TWIST_EVAL, life, step) ? 0.5 : 0.25};

    if (due(step, steps) && !twisted(s, TWIST_EVAL_LESS, life, step))
        assert_ok(invar_ledger_add_evaluation(ledger, "a", &result, 1));
    if (twisted(s, TWIST_EVAL_MORE, life, step))
        assert_ok(invar_ledger_add_evaluation(ledger, "b", &result, 1));
}

static void tell_step(invar_ledger *ledger, const story *s, int64_t life, int64_t step)
{
    invar_digest digest;
    invar_ledger_metric metrics[] = {{"x", twisted(s, TWIST_METRIC, life, step)}, {"y", 1}};
    invar_ledger_sample samples[] = {
        {.rng = "0", .finish_reason = "stop", .completion_order = life},
        {.rng = "1", .finish_reason = "stop"}};
    invar_ledger_plugin_reply reply = {.plugin = "p", .data = "good", .bytes = 4};
    invar_ledger_step now = {
        .step = step,
        .digests = &digest,
        .metrics = metrics,
        .n_metrics = twisted(s, TWIST_METRIC_MORE, life, step) ? 2 : 1,
        .samples = samples,
        .n_samples = twisted(s, TWIST_SAMPLE_LESS, life, step) ? 1 : 2,
        .replies = &reply,
        .n_replies = 1,
    };

    invar_hash_bytes(&digest, &step, sizeof step);
    digest.bytes[0] ^= twisted(s, TWIST_POINT, life, step);
    now.batch.bytes[0] = twisted(s, TWIST_BATCH, life, step) ? 2 : 1; // zeros: not recorded
    samples[1].reward = twisted(s, TWIST_SAMPLE, life, step) ? -0.0 : 0.0;
    reply.data = twisted(s, TWIST_REPLY, life, step) ? "evil" : "good";
    assert_ok(invar_ledger_append(ledger, &now));
}

static void tell(invar_ledger *ledger, int64_t run, const story *s, int64_t steps)
{
    static const invar_ledger_point point = {.name = "p",
                                             .phase = "forward",
                                             .op = "linear",
                                             .kind = "act",
                                             .dtype = "f32",
                                             .shape = shape,
                                             .dims = 1,
                                             .shards = 1};

    for (int64_t life = 0; life < s->lives; life++) {
        start_life(ledger, run, life, s->from[life]);
        assert_ok(invar_ledger_define(ledger, &point, 1));
        if (life == 0 || s->again[life])
            evaluate(ledger, s, life, s->from[life] - 1, steps);
        for (int64_t step = s->from[life]; step < s->to[life]; step++) {
            tell_step(ledger, s, life, step);
            evaluate(ledger, s, life, step, steps);
        }
    }
}

/* True when a life has had a part in the twisted step: it did it, or evaluated after it. */
static bool takes_part(const story *s, int64_t life, int64_t steps)
{
    bool did = s->step >= s->from[life] && s->step < s->to[life];
    bool at_start = s->step == s->from[life] - 1 && (life == 0 || s->again[life]);

    return s->twist == TWIST_EVAL ? (did || at_start) && due(s->step, steps) : did;
}

/* Two lives of the story did the same in two ways; evaluating more or less is none. */
static bool contradicts_itself(const story *s, int64_t steps)
{
    int usual = 0, other = 0;

    if (s->twist == TWIST_NONE || s->twist > TWIST_EVAL)
        return false;
    for (int64_t life = 0; life < s->lives; life++) {
        if (takes_part(s, life, steps)) {
            usual += s->life >= 0 && s->life != life;
            other += s->life < 0 || s->life == life;
        }
    }
    return usual && other;
}

typedef struct tally {
    int self, identical, different[TWISTS];
} tally;

static void check_stories(tally *seen, invar_ledger *ledger, int64_t run, const story stories[2],
                          int64_t steps)
{
    bool self_a = contradicts_itself(&stories[0], steps);
    bool self_b = contradicts_itself(&stories[1], steps);
    invar_digest contents[2];
    invar_diff *diff;

    for (int i = 0; i < 2; i++) {
        tell(ledger, run + i, &stories[i], steps);
        assert_ok(invar_ledger_content_hash(&contents[i], ledger, run + i));
    }
    assert_ok(invar_diff_runs(&diff, ledger, run, ledger, run + 1));
    if (self_a || self_b) {
        seen->self++;
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_NONDETERMINISTIC);
        assert_int_equal(diff->self_contradicting_side, self_a ? 'A' : 'B');
        assert_int_equal(diff->step, stories[self_a ? 0 : 1].step);
    } else if (invar_digest_equal(&contents[0], &contents[1])) {
        seen->identical++;
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_IDENTICAL);
    } else {
        seen->different[stories[0].twist]++;
        assert_int_equal(diff->verdict, INVAR_DIFF_VERDICT_DIFFERENT);
        assert_true(diff->step == stories[0].step || diff->step == stories[1].step);
        assert_true(diff->n_points + diff->n_metrics + diff->n_samples > 0 ||
                    diff->replies_different > 0 || diff->same_batch == INVAR_TRISTATE_NO);
    }
    invar_diff_free(diff);
}

static void test_ledger_diff__identical_is_equal_content(void **state)
{
    enum { PAIRS = 50 };
    int64_t ledgers = invar_test_count(6, 80);
    tally seen = {0};

    (void)state;
    for (int64_t k = 0; k < ledgers; k++) {
        char name[32];
        (void)snprintf(name, sizeof name, "stories%" PRId64, k);
        invar_ledger *ledger = open_write(name);
        for (int64_t i = 0; i < PAIRS; i++) {
            dice d = {.seed = (uint64_t)(70000 + k * PAIRS + i)};
            int64_t steps = 1 + roll(&d, 7);
            story stories[2] = {random_story(&d, steps), random_story(&d, steps)};
            if (roll(&d, 2))
                stories[1].twist = TWIST_NONE;
            check_stories(&seen, ledger, 1 + 2 * i, stories, steps);
        }
        invar_ledger_close(ledger);
    }
    assert_true(seen.self >= 10);
    assert_true(seen.identical >= 10);
    for (int i = TWIST_POINT; i < TWISTS; i++)
        assert_true(seen.different[i] > 0);
}

/* ---- long runs ------------------------------------------------------------------------------- */

static double now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void time_diff(invar_ledger *ledger, int64_t run, int64_t steps, int64_t expected,
                      int64_t most)
{
    double start = now_ms(), took;
    invar_diff *diff;

    assert_ok(invar_diff_runs(&diff, ledger, 1, ledger, run));
    took = now_ms() - start;
    assert_int_equal(diff->step, expected);
    assert_true(diff->lookups <= most);
    print_message("%" PRId64 " steps, first difference at %" PRId64 ": %" PRId64
                  " look-ups, %.2f ms for the whole diff\n",
                  steps, diff->step, diff->lookups, took);
    invar_diff_free(diff);
}

static void test_ledger_diff__lookups_are_few(void **state)
{
    int64_t steps = invar_test_count(2000, 200000), run = 1;
    const int64_t places[] = {0, 1, steps / 3, steps - 2, steps - 1, INT64_MAX};
    plan good = {.lives = 1, .to = {steps}, .changed = INT64_MAX, .slip_life = -1};
    plan resumed = {.lives = 2, .from = {0, 5}, .to = {steps, steps}, .slip_life = -1};
    invar_ledger *ledger = open_write("long");

    (void)state;
    write_plan(ledger, run, &good);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        plan other = good;
        other.changed = places[i];
        write_plan(ledger, ++run, &other);
        time_diff(ledger, run, steps, places[i] == INT64_MAX ? -1 : places[i], log2_up(steps) + 3);
    }
    resumed.changed = steps / 2; // and all but five steps were done twice
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
