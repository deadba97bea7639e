/*
 * recorder.c - a recorder alone: a step of given samples into a ledger, with and without learning.
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

/* Samples with their numbers, and a ledger to write to. */
typedef struct scene {
    const invar_device *dev;
    invar_rl_samples samples;
    invar_token_arrays flat;
    invar_recorder recorder;
    char path[400];
} scene;

static char folder[256];

static void fill(float *values, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; values && i < count; i++)
        values[i] = invar_test_normal(seed, (uint64_t)i, 1.0f);
}

static void open_scene(scene *s, const invar_device *dev, const char *name,
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
    fill(s->flat.score_logp, s->flat.tokens, 1);
    fill(s->flat.ref_logp, s->flat.tokens, 2);
    fill(s->flat.teacher_logp, s->flat.tokens, 6);
    fill(s->flat.train_logp, s->flat.tokens, 3);
    fill(s->flat.advantage, s->flat.tokens, 4);
    fill(s->flat.entropy, s->flat.tokens, 5);
    (void)snprintf(s->path, sizeof s->path, "%s/%s.db", folder, name);
    assert_ok(invar_recorder_open(&s->recorder, &own));
    assert_ok(
        invar_ledger_open(&s->recorder.ledger, s->path, &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_begin(s->recorder.ledger, &run));
}

static void close_scene(scene *s)
{
    invar_recorder_close(&s->recorder);
    invar_token_arrays_release(&s->flat);
    invar_rl_samples_reset(&s->samples);
}

/* A step of samples [first, first + count); `start` is its own. */
static invar_step_report step_of(const scene *s, int64_t number, int64_t first, int64_t count,
                                 int64_t *start)
{
    invar_token_arrays_starts(start, &s->flat, first, count);
    return (invar_step_report){.number = number,
                               .samples = s->samples.items,
                               .flat = &s->flat,
                               .first = first,
                               .count = count,
                               .start = start,
                               .own_weights = true,
                               .filtered_groups = 2,
                               .steps_per_rollout = 1};
}

static void record(scene *s, const invar_step_report *step)
{
    assert_ok(invar_recorder_begin(&s->recorder, step, folder));
    assert_ok(invar_recorder_end(&s->recorder));
}

static invar_status take_number(void *payload, const char *const *columns,
                                const invar_ledger_value *values, int count)
{
    (void)columns, (void)count;
    if (values)
        *(double *)payload =
            values[0].type == INVAR_LEDGER_TYPE_INT ? (double)values[0].integer : values[0].real;
    return INVAR_OK;
}

static double asked(scene *s, const char *sql)
{
    double number = -1.0;

    assert_ok(invar_ledger_select(
        s->recorder.ledger,
        &(invar_ledger_select_request){.sql = sql, .row = take_number, .payload = &number}));
    return number;
}

/* Without learning: tokens, log-probabilities, rewards. The rollout's numbers are its first's. */
static void test_recorder__samples_alone(void **state)
{
    int64_t start[SAMPLES + 1];
    invar_step_report step;
    scene s;

    open_scene(&s, *state, "alone", &(invar_recorder_options){.level = INVAR_PROBE_STEP});
    step = step_of(&s, 0, 0, 2, start);
    record(&s, &step);
    assert_int_equal(s.recorder.points, 3);
    step = step_of(&s, 1, 2, 1, start);
    record(&s, &step);
    assert_true(asked(&s, "SELECT count(*) FROM sample WHERE step = 0") == 2.0);
    assert_true(asked(&s, "SELECT count(*) FROM sample WHERE step = 1") == 1.0);
    assert_true(asked(&s, "SELECT value FROM metrics WHERE step = 0 AND "
                          "name = 'rollout/dynamic_filter/dropped'") == 2.0);
    assert_true(asked(&s, "SELECT count(*) FROM metrics WHERE step = 1") == 0.0);
    close_scene(&s);
}

/* Each optimizer step makes a version of the weights; the metrics count rollouts. */
static void test_recorder__staleness_counts_rollouts(void **state)
{
    int64_t start[SAMPLES + 1];
    invar_step_report step;
    scene s;

    open_scene(&s, *state, "stale", &(invar_recorder_options){.level = INVAR_PROBE_STEP});
    for (int64_t i = 0; i < SAMPLES; i++)
        s.samples.items[i].first_version = i == 0 ? 8 : 16;
    step = step_of(&s, 0, 0, SAMPLES, start);
    step.recorded_schedule = true;
    step.weights = 20;
    step.steps_per_rollout = 4;
    record(&s, &step);
    assert_true(asked(&s, "SELECT value FROM metrics WHERE name = 'rollout/staleness/max'") == 3.0);
    assert_true(asked(&s, "SELECT value FROM metrics WHERE name = 'rollout/staleness/mean'") ==
                (3.0 + (SAMPLES - 1)) / SAMPLES);
    close_scene(&s);
}

/* ---- with a learner -------------------------------------------------------------------------- */

static invar_status push(void *payload, int64_t first, int64_t count, const float *now,
                         const float *entropy, float *dnow, float *dentropy)
{
    const scene *s = payload;
    int64_t tokens = s->flat.offsets[first + count] - s->flat.offsets[first];

    (void)now, (void)entropy, (void)dentropy;
    fill(dnow, tokens, (uint64_t)first);
    return INVAR_OK;
}

/* How many points of this name are not computed from points of this kind, too. */
static double without(scene *s, const char *name, const char *kind)
{
    char sql[512];

    (void)snprintf(sql, sizeof sql,
                   "SELECT count(*) FROM point p WHERE p.name LIKE '%s' AND NOT EXISTS (SELECT 1 "
                   "FROM json_each(p.inputs) j JOIN point q ON q.manifest = p.manifest AND "
                   "q.ord = j.value WHERE %s)",
                   name, kind);
    return asked(s, sql);
}

/* Every gradient of parameters names what the backward read, and the loss all that it is given. */
static void check_inputs(scene *s)
{
    static const char *const given[] = {"rollout.logp", "batch.reward", "score.logp",
                                        "teacher.logp", "ref.logp",     "batch.advantage",
                                        "train.logp"};
    char kind[64];

    assert_true(asked(s, "SELECT count(*) FROM point WHERE name LIKE 'grad.%'") > 10.0);
    assert_true(without(s, "grad.%", "q.phase = 'backward'") == 0.0);
    assert_true(without(s, "grad.%", "q.phase <> 'backward'") == 0.0);
    assert_true(without(s, "grad.%.0.%q_norm%", "q.name = 'layer.0.dq'") == 0.0);
    assert_true(without(s, "grad.%.0.%k_proj%", "q.name = 'layer.0.dk.proj'") == 0.0);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        (void)snprintf(kind, sizeof kind, "q.name = '%s'", given[i]);
        assert_true(without(s, "head.dlogp", kind) == 0.0);
    }
}

/* Two steps of a learner; the chain, and how many points an entry has. */
static invar_digest learned(int64_t *points_out, const invar_device *dev, const char *name,
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
    scene s;

    open_scene(&s, dev, name, &(invar_recorder_options){.level = level});
    assert_ok(invar_trainer_new(&trainer, dev, &trainer_options));
    assert_ok(invar_learner_open(&learner, model, true, &options));
    for (int64_t number = 0; number < 2; number++) {
        const invar_trainer_loss loss = {.run = push, .payload = &s};
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
    assert_true(
        asked(&s, "SELECT value FROM metrics WHERE step = 1 AND name = 'train/grad_norm'") ==
        (double)learner.norm);
    if (level == INVAR_PROBE_FULL)
        check_inputs(&s);
    assert_ok(invar_ledger_chain(&last, &chain, s.recorder.ledger));
    assert_int_equal(last, 1);
    *points_out = s.recorder.points;
    invar_learner_close(&learner);
    invar_trainer_free(trainer);
    invar_model_free(model);
    close_scene(&s);
    return chain;
}

static void test_recorder__levels_have_one_chain(void **state)
{
    const invar_device *devs = *state;
    int64_t points[3];
    invar_digest coarse = learned(&points[0], devs, "step", INVAR_PROBE_STEP);
    invar_digest point = learned(&points[1], devs, "point", INVAR_PROBE_POINT);
    invar_digest full = learned(&points[2], devs, "full", INVAR_PROBE_FULL);

    assert_true(points[0] < points[1] && points[1] < points[2]);
    assert_true(invar_digest_equal(&coarse, &point) && invar_digest_equal(&coarse, &full));
}

/* ---- what is not finite ---------------------------------------------------------------------- */

/* The answer of nan-birth: "step point", "" where there is none. */
static invar_status take_birth(void *payload, const char *const *columns,
                               const invar_ledger_value *values, int count)
{
    (void)columns, (void)count;
    if (values)
        (void)snprintf(payload, 200, "%d %s", (int)values[0].integer, (const char *)values[3].data);
    return INVAR_OK;
}

static void born(scene *s, const char *expected)
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
                                                                 .row = take_birth,
                                                                 .payload = found}));
    assert_string_equal(found, expected);
}

static void test_recorder__knows_where_a_nan_was_born(void **state)
{
    int64_t start[SAMPLES + 1];
    invar_step_report step;
    scene s;

    open_scene(&s, *state, "nan", &(invar_recorder_options){.stats = true});
    step = step_of(&s, 0, 0, SAMPLES, start);
    record(&s, &step);
    born(&s, "");
    s.flat.rollout_logp[2] = NAN;
    step = step_of(&s, 1, 0, SAMPLES, start);
    record(&s, &step);
    born(&s, "1 rollout.logp");
    assert_true(asked(&s, "SELECT nans FROM stat WHERE step = 1 AND ord = 1") == 1.0);
    // between steps there is nothing to tell
    assert_int_equal(invar_recorder_fail(&s.recorder, 2, INVAR_E_STATE), INVAR_E_STATE);
    assert_true(asked(&s, "SELECT count(*) FROM event") == 0.0);
    close_scene(&s);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void listen(void *payload, const char *line)
{
    (void)snprintf(payload, 32, "%s", line);
}

static void test_recorder__speaks_and_notes(void **state)
{
    char heard[32] = "";
    scene s;

    open_scene(&s, *state, "lines", &(invar_recorder_options){.level = INVAR_PROBE_STEP});
    invar_recorder_print(&s.recorder, "nobody listens");
    s.recorder.options.print_line = listen;
    s.recorder.options.payload = heard;
    invar_recorder_print(&s.recorder, "heard");
    assert_string_equal(heard, "heard");
    assert_ok(invar_recorder_event(&s.recorder, 7, "warning", "test", "a line"));
    assert_true(asked(&s, "SELECT step FROM event WHERE kind = 'test'") == 7.0);
    close_scene(&s);
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
        cmocka_unit_test(test_recorder__samples_alone),
        cmocka_unit_test(test_recorder__staleness_counts_rollouts),
        cmocka_unit_test(test_recorder__levels_have_one_chain),
        cmocka_unit_test(test_recorder__knows_where_a_nan_was_born),
        cmocka_unit_test(test_recorder__speaks_and_notes),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
