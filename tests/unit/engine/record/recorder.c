/*
 * recorder.c - tests of the recorder: steps of given samples into a ledger, with and without
 * training.
 *
 * Results are read back with SQL. The chain must not depend on the detail level, the inputs of
 * points must name what was read, and a NaN must be found at the point where it was put in.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/recorder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/model.h"

enum { SAMPLES = 3 };

/* Fixture: samples with pseudo-random token arrays, and a recorder with a ledger. */
typedef struct recorder_fixture {
    const invar_device *dev;
    invar_rl_samples samples;
    invar_token_arrays flat;
    invar_recorder recorder;
    char path[400];
} recorder_fixture;

static char folder[256];

static void fill_normal(float *values, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; values && i < count; i++)
        values[i] = invar_test_normal(seed, (uint64_t)i, 1.0f);
}

static void open_fixture(recorder_fixture *s, const invar_device *dev, const char *name,
                         const invar_recorder_options *options)
{
    const invar_ledger_run run = {
        .name = "run", .kind = "train", .circumstances = {.no_auto_facts = true}};
    invar_recorder_options own = *options;

    own.dev = dev;
    memset(s, 0, sizeof *s);
    s->dev = dev;
    invar_test_samples(&s->samples, SAMPLES, 8, 64, 5);
    assert_ok(invar_token_arrays_make(
        &s->flat, &s->samples, &(invar_token_array_flags){.reference = true, .teacher = true}));
    fill_normal(s->flat.score_logp, s->flat.tokens, 1);
    fill_normal(s->flat.ref_logp, s->flat.tokens, 2);
    fill_normal(s->flat.teacher_logp, s->flat.tokens, 6);
    fill_normal(s->flat.train_logp, s->flat.tokens, 3);
    fill_normal(s->flat.advantage, s->flat.tokens, 4);
    fill_normal(s->flat.entropy, s->flat.tokens, 5);
    (void)snprintf(s->path, sizeof s->path, "%s/%s.db", folder, name);
    assert_ok(invar_recorder_open(&s->recorder, &own));
    assert_ok(
        invar_ledger_open(&s->recorder.ledger, s->path, &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_begin(s->recorder.ledger, &run));
}

static void close_fixture(recorder_fixture *s)
{
    invar_recorder_close(&s->recorder);
    invar_token_arrays_release(&s->flat);
    invar_rl_samples_reset(&s->samples);
}

/*
 * Returns the report of a step with samples [first, first + count). `start` gets their offsets and
 * must outlive the report.
 */
static invar_step_report step_of(const recorder_fixture *s, int64_t number, int64_t first,
                                 int64_t count, int64_t *start)
{
    invar_token_arrays_starts(start, &s->flat, first, count);
    return (invar_step_report){.number = number,
                               .samples = s->samples.items,
                               .flat = &s->flat,
                               .first = first,
                               .count = count,
                               .start = start,
                               .policy.own_weights = true,
                               .groups.filtered = 2,
                               .steps_per_rollout = 1};
}

static void record_step(recorder_fixture *s, const invar_step_report *step)
{
    assert_ok(invar_recorder_begin(&s->recorder, step, folder));
    assert_ok(invar_recorder_end(&s->recorder));
}

static invar_status store_number(void *payload, const char *const *columns,
                                 const invar_ledger_value *values, int count)
{
    (void)columns, (void)count;
    if (values)
        *(double *)payload =
            values[0].type == INVAR_LEDGER_TYPE_INT ? (double)values[0].integer : values[0].real;
    return INVAR_OK;
}

static double select_number(recorder_fixture *s, const char *sql)
{
    double number = -1.0;

    assert_ok(invar_ledger_select(
        s->recorder.ledger,
        &(invar_ledger_select_request){.sql = sql, .row = store_number, .payload = &number}));
    return number;
}

/*
 * A step without a learner records three points: tokens, log-probs, rewards. Metrics of the rollout
 * are recorded with its first step only.
 */
static void test_recorder__step_without_learner(void **state)
{
    int64_t start[SAMPLES + 1];
    invar_step_report step;
    recorder_fixture s;

    open_fixture(&s, *state, "alone", &(invar_recorder_options){.level = INVAR_PROBE_STEP});
    step = step_of(&s, 0, 0, 2, start);
    record_step(&s, &step);
    assert_int_equal(s.recorder.points, 3);
    step = step_of(&s, 1, 2, 1, start);
    record_step(&s, &step);
    assert_true(select_number(&s, "SELECT count(*) FROM sample WHERE step = 0") == 2.0);
    assert_true(select_number(&s, "SELECT count(*) FROM sample WHERE step = 1") == 1.0);
    assert_true(select_number(&s, "SELECT value FROM metrics WHERE step = 0 AND "
                                  "name = 'rollout/dynamic_filter/dropped'") == 2.0);
    assert_true(select_number(&s, "SELECT count(*) FROM metrics WHERE step = 1") == 0.0);
    close_fixture(&s);
}

/* Weight versions count optimizer steps, but the staleness metrics count rollouts. */
static void test_recorder__staleness_counts_rollouts(void **state)
{
    int64_t start[SAMPLES + 1];
    invar_step_report step;
    recorder_fixture s;

    open_fixture(&s, *state, "stale", &(invar_recorder_options){.level = INVAR_PROBE_STEP});
    for (int64_t i = 0; i < SAMPLES; i++)
        s.samples.items[i].weights.first = i == 0 ? 8 : 16;
    step = step_of(&s, 0, 0, SAMPLES, start);
    step.recorded_schedule = true;
    step.policy.version = 20;
    step.steps_per_rollout = 4;
    record_step(&s, &step);
    assert_true(
        select_number(&s, "SELECT value FROM metrics WHERE name = 'rollout/staleness/max'") == 3.0);
    assert_true(
        select_number(&s, "SELECT value FROM metrics WHERE name = 'rollout/staleness/mean'") ==
        (3.0 + (SAMPLES - 1)) / SAMPLES);
    close_fixture(&s);
}

/* ---- with a learner -------------------------------------------------------------------------- */

static invar_status fill_gradient(void *payload, int64_t first, int64_t count, const float *now,
                                  const float *entropy, float *dnow, float *dentropy)
{
    const recorder_fixture *s = payload;
    int64_t tokens = s->flat.offsets[first + count] - s->flat.offsets[first];

    (void)now, (void)entropy, (void)dentropy;
    fill_normal(dnow, tokens, (uint64_t)first);
    return INVAR_OK;
}

/* Returns the number of points like `name` without an input for which the SQL `kind` holds. */
static double count_without_input(recorder_fixture *s, const char *name, const char *kind)
{
    char sql[512];

    (void)snprintf(sql, sizeof sql,
                   "SELECT count(*) FROM point p WHERE p.name LIKE '%s' AND NOT EXISTS (SELECT 1 "
                   "FROM json_each(p.inputs) j JOIN point q ON q.manifest = p.manifest AND "
                   "q.ord = j.value WHERE %s)",
                   name, kind);
    return select_number(s, sql);
}

/* Parameter gradients have backward and other inputs; the loss has all arrays that it reads. */
static void check_inputs(recorder_fixture *s)
{
    static const char *const given[] = {"rollout.logp", "batch.reward", "score.logp",
                                        "teacher.logp", "ref.logp",     "batch.advantage",
                                        "train.logp"};
    char kind[64];

    assert_true(select_number(s, "SELECT count(*) FROM point WHERE name LIKE 'grad.%'") > 10.0);
    assert_true(count_without_input(s, "grad.%", "q.phase = 'backward'") == 0.0);
    assert_true(count_without_input(s, "grad.%", "q.phase <> 'backward'") == 0.0);
    assert_true(count_without_input(s, "grad.%.0.%q_norm%", "q.name = 'layer.0.dq'") == 0.0);
    assert_true(count_without_input(s, "grad.%.0.%k_proj%", "q.name = 'layer.0.dk.proj'") == 0.0);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        (void)snprintf(kind, sizeof kind, "q.name = '%s'", given[i]);
        assert_true(count_without_input(s, "head.dlogp", kind) == 0.0);
    }
}

/* Records two training steps. Returns the chain and sets the number of points of a step. */
static invar_digest record_two_steps(int64_t *points_out, const invar_device *dev, const char *name,
                                     int64_t level)
{
    const invar_trainer_options trainer_options = {.plan = {1, 1, 1, 0}, .temperature = 1.0f};
    const invar_learner_options options = {.dev = dev,
                                           .prefix = "",
                                           .schedule = {.lr = 0.01},
                                           .adamw = {0.9f, 0.98f, 1e-8f, 0.1f, 1.0f}};
    invar_model *model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_BF16, 11, dev);
    invar_trainer *trainer = NULL;
    invar_learner learner;
    int64_t start[SAMPLES + 1], last;
    invar_digest chain;
    recorder_fixture s;

    open_fixture(&s, dev, name, &(invar_recorder_options){.level = level});
    assert_ok(invar_trainer_new(&trainer, dev, &trainer_options));
    assert_ok(invar_learner_open(&learner, model, true, &options));
    for (int64_t number = 0; number < 2; number++) {
        const invar_trainer_loss loss = {.run = fill_gradient, .payload = &s};
        invar_trainer_result result = {.train_logp = s.flat.train_logp};
        invar_step_report step = step_of(&s, number, 0, SAMPLES, start);

        step.learners[0].learner = &learner;
        step.n_learners = 1;
        assert_ok(invar_recorder_begin(&s.recorder, &step, folder));
        invar_recorder_watch(&s.recorder, trainer, "");
        assert_ok(invar_learner_forward_backward(&learner, trainer, s.samples.items, SAMPLES, &loss,
                                                 &result));
        invar_recorder_watch(&s.recorder, trainer, NULL);
        assert_ok(invar_learner_step(&learner, number, false));
        assert_ok(invar_recorder_end(&s.recorder));
        assert_true(learner.grads->overwrite_next && learner.hashed);
    }
    assert_true(select_number(
                    &s, "SELECT value FROM metrics WHERE step = 1 AND name = 'train/grad_norm'") ==
                (double)learner.norm);
    if (level == INVAR_PROBE_FULL)
        check_inputs(&s);
    assert_ok(invar_ledger_chain(&last, &chain, s.recorder.ledger));
    assert_int_equal(last, 1);
    *points_out = s.recorder.points;
    invar_learner_close(&learner);
    invar_trainer_free(trainer);
    invar_model_free(model);
    close_fixture(&s);
    return chain;
}

static void test_recorder__levels_have_one_chain(void **state)
{
    const invar_device *devs = *state;
    int64_t points[3];
    invar_digest coarse = record_two_steps(&points[0], devs, "step", INVAR_PROBE_STEP);
    invar_digest point = record_two_steps(&points[1], devs, "point", INVAR_PROBE_POINT);
    invar_digest full = record_two_steps(&points[2], devs, "full", INVAR_PROBE_FULL);

    assert_true(points[0] < points[1] && points[1] < points[2]);
    assert_true(invar_digest_equal(&coarse, &point) && invar_digest_equal(&coarse, &full));
}

/* ---- values that are not finite -------------------------------------------------------------- */

/* Stores the row of the query nan-birth as "step point"; nothing if there is no row. */
static invar_status store_birth(void *payload, const char *const *columns,
                                const invar_ledger_value *values, int count)
{
    (void)columns, (void)count;
    if (values)
        (void)snprintf(payload, 200, "%d %s", (int)values[0].integer, (const char *)values[3].data);
    return INVAR_OK;
}

static void check_nan_birth(recorder_fixture *s, const char *expected)
{
    const invar_ledger_argument arguments[2] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = 1}},
        {"count", {.type = INVAR_LEDGER_TYPE_INT, .integer = 1}}};
    invar_ledger_query query;
    char found[200] = "";

    assert_ok(invar_ledger_query_find(&query, "nan-birth"));
    assert_ok(invar_ledger_select(s->recorder.ledger,
                                  &(invar_ledger_select_request){.sql = query.sql,
                                                                 .arguments = arguments,
                                                                 .n_arguments = 2,
                                                                 .row = store_birth,
                                                                 .payload = found}));
    assert_string_equal(found, expected);
}

static void test_recorder__finds_the_point_of_a_nan(void **state)
{
    int64_t start[SAMPLES + 1];
    invar_step_report step;
    recorder_fixture s;

    open_fixture(&s, *state, "nan", &(invar_recorder_options){.stats = true});
    step = step_of(&s, 0, 0, SAMPLES, start);
    record_step(&s, &step);
    check_nan_birth(&s, "");
    s.flat.rollout_logp[2] = NAN;
    step = step_of(&s, 1, 0, SAMPLES, start);
    record_step(&s, &step);
    check_nan_birth(&s, "1 rollout.logp");
    assert_true(select_number(&s, "SELECT nans FROM stat WHERE step = 1 AND ord = 1") == 1.0);
    // a failure outside of a step writes no event
    assert_int_equal(invar_recorder_fail(&s.recorder, 2, INVAR_E_STATE), INVAR_E_STATE);
    assert_true(select_number(&s, "SELECT count(*) FROM event") == 0.0);
    close_fixture(&s);
}

/* ---- lines and events ------------------------------------------------------------------------ */

static void store_line(void *payload, const char *line)
{
    (void)snprintf(payload, 32, "%s", line);
}

static void test_recorder__prints_lines_and_writes_events(void **state)
{
    char printed[32] = "";
    recorder_fixture s;

    open_fixture(&s, *state, "lines", &(invar_recorder_options){.level = INVAR_PROBE_STEP});
    invar_recorder_print(&s.recorder, "nobody listens");
    s.recorder.options.print_line = store_line;
    s.recorder.options.payload = printed;
    invar_recorder_print(&s.recorder, "heard");
    assert_string_equal(printed, "heard");
    assert_ok(invar_recorder_event(&s.recorder, 7, "warning", "test", "a line"));
    assert_true(select_number(&s, "SELECT step FROM event WHERE kind = 'test'") == 7.0);
    close_fixture(&s);
}

static int setup(void **state)
{
    (void)snprintf(folder, sizeof folder, "%s/recorder.%ld", INVAR_TEST_WORK, (long)getpid());
    return invar_test_devices_setup(state) || invar_held_folder_make(folder) != INVAR_OK;
}

static int teardown(void **state)
{
    return invar_test_devices_teardown(state) || invar_held_folder_remove(folder) != INVAR_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorder__step_without_learner),
        cmocka_unit_test(test_recorder__staleness_counts_rollouts),
        cmocka_unit_test(test_recorder__levels_have_one_chain),
        cmocka_unit_test(test_recorder__finds_the_point_of_a_nan),
        cmocka_unit_test(test_recorder__prints_lines_and_writes_events),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
