/*
 * throughput.c - tests of the speed metrics of a step: values, missing values, peaks and the ETA.
 *
 * Steps take no time: the test moves the recorded ends of earlier steps into the past. Expected
 * values are computed from the durations, the tokens and invar_flop_train.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/throughput.h"

#include <math.h>
#include <string.h>

#include "engine/record/recorder.h"
#include "engine/train/flop.h"
#include "tests/model.h"

enum { SAMPLES = 4 };
#define SECOND INT64_C(1000000000)

typedef struct throughput_fixture {
    invar_device dev;
    invar_model *model;
    invar_learner learner;
    invar_rl_samples samples;
    invar_token_arrays flat;
    invar_step_report step;
    invar_throughput pace;
    invar_ledger_metric gauges[INVAR_THROUGHPUT_GAUGES];
    size_t n_gauges;
} throughput_fixture;

static void open_fixture(throughput_fixture *s, const invar_throughput_options *options)
{
    memset(s, 0, sizeof *s);
    invar_test_device_init(&s->dev, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1);
    s->model = invar_test_model_new(INVAR_TEST_MODEL_DENSE, INVAR_FORMAT_FP32, 1, &s->dev);
    s->learner.model = s->model;
    invar_test_samples(&s->samples, SAMPLES, 8, s->model->spec.vocab, 5);
    assert_ok(invar_token_arrays_make(&s->flat, &s->samples, &(invar_token_array_flags){0}));
    s->step = (invar_step_report){.samples = s->samples.items,
                                  .flat = &s->flat,
                                  .count = SAMPLES,
                                  .learners = {{&s->learner, NULL}},
                                  .n_learners = 1};
    invar_throughput_begin(&s->pace, options);
}

static void close_fixture(throughput_fixture *s)
{
    invar_token_arrays_release(&s->flat);
    invar_rl_samples_reset(&s->samples);
    invar_model_free(s->model);
    invar_test_device_release(&s->dev);
}

/* Ends a step that took `seconds`, with its phases. */
static void end_step(throughput_fixture *s, int64_t number, double seconds, double rollout,
                     double train)
{
    const invar_ledger_timing timings[] = {{"rollout", 0, (int64_t)(rollout * 1e9)},
                                           {"score", 0, SECOND},
                                           {"train", 0, (int64_t)(train * 1e9)}};

    s->step.number = number;
    // shifts the ends of earlier steps instead of waiting
    for (int i = 0; i < INVAR_THROUGHPUT_STEPS; i++)
        s->pace.ends[i] -= (int64_t)(seconds * 1e9);
    s->n_gauges = invar_throughput_step(s->gauges, &s->pace, &s->step, timings, 3);
}

/* Returns the value of a gauge, NaN if there is none. */
static double gauge(const throughput_fixture *s, const char *name)
{
    for (size_t i = 0; i < s->n_gauges; i++)
        if (strcmp(s->gauges[i].name, name) == 0)
            return s->gauges[i].value;
    return (double)NAN;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-3 * fabs(b) + 0.05; // the real clock advances, too
}

static void test_throughput__values_of_a_step(void **state)
{
    throughput_fixture s;
    double tokens = 0.0, response_tokens = 0.0, flop;

    (void)state;
    open_fixture(
        &s, &(invar_throughput_options){.peak = 1e6, .devices = 2, .steps = 11, .per_rollout = 1});
    for (int i = 0; i < SAMPLES; i++) {
        tokens += (double)s.samples.items[i].n_tokens;
        response_tokens += (double)invar_rl_sample_response(&s.samples.items[i]);
    }
    flop = invar_flop_train(s.model, s.samples.items, SAMPLES);
    end_step(&s, 0, 100.0, 10.0, 20.0);
    assert_int_equal(s.n_gauges, INVAR_THROUGHPUT_GAUGES);
    assert_true(is_near(gauge(&s, "perf/step_time"), 100.0));
    assert_true(is_near(gauge(&s, "perf/tokens_per_s"), tokens / 100.0));
    assert_true(is_near(gauge(&s, "perf/eta"), 1000.0));
    assert_true(gauge(&s, "perf/train_time") == 20.0);
    assert_true(gauge(&s, "perf/train_tok_per_s") == tokens / 20.0);
    assert_true(gauge(&s, "perf/train_tflops") == flop / 20.0 / 1e12);
    assert_true(gauge(&s, "perf/train_mfu") == flop / (20.0 * 2e6));
    assert_true(gauge(&s, "perf/rollout_time") == 10.0);
    assert_true(gauge(&s, "perf/rollout_tok_per_s") == response_tokens / 10.0);
    assert_true(s.pace.mfu == gauge(&s, "perf/train_mfu"));
    // means over both steps
    end_step(&s, 1, 300.0, 10.0, 60.0);
    assert_true(is_near(invar_throughput_mean_tokens_per_s(&s.pace), tokens / 200.0));
    assert_true(invar_throughput_mean_mfu(&s.pace) == 2.0 * flop / (80.0 * 2e6));
    close_fixture(&s);
}

static void test_throughput__unknown_values_are_missing(void **state)
{
    throughput_fixture s;

    (void)state;
    open_fixture(&s, &(invar_throughput_options){.devices = 1, .per_rollout = 1});
    end_step(&s, 0, 1.0, 0.5, 0.25);
    assert_true(isnan(gauge(&s, "perf/train_mfu"))); // no peak
    assert_true(isnan(s.pace.mfu) && isnan(invar_throughput_mean_mfu(&s.pace)));
    assert_true(isnan(gauge(&s, "perf/eta"))); // no end
    assert_true(!isnan(gauge(&s, "perf/train_tflops")));
    s.step.supervised = true; // SFT: responses come from the data, nothing is sampled
    end_step(&s, 0, 1.0, 0.5, 0.25);
    assert_true(isnan(gauge(&s, "perf/rollout_time")));
    assert_true(isnan(gauge(&s, "perf/rollout_tok_per_s")));
    assert_true(!isnan(gauge(&s, "perf/train_tok_per_s")));
    s.step.supervised = false;
    s.step.first = 1; // not the first step of its rollout
    s.step.count = SAMPLES - 1;
    end_step(&s, 1, 1.0, 0.5, 0.25);
    assert_true(isnan(gauge(&s, "perf/rollout_time")));
    s.step.n_learners = 0; // no training
    end_step(&s, 2, 1.0, 0.5, 0.0);
    assert_true(isnan(gauge(&s, "perf/train_time")) && isnan(gauge(&s, "perf/train_tflops")));
    s.pace = (invar_throughput){0}; // a replay
    end_step(&s, 3, 1.0, 0.5, 0.25);
    assert_int_equal(s.n_gauges, 0);
    s.dev.numerics = INVAR_NUMERICS_SM90;
    assert_true(invar_throughput_peak(&s.dev, INVAR_FORMAT_BF16) ==
                0.0); // the peak of a CPU is not known
    close_fixture(&s);
}

static const char *model_name;

static const char *model_of(const invar_device *dev)
{
    (void)dev;
    return model_name;
}

static void test_throughput__knows_peaks_by_name_and_format(void **state)
{
    const invar_backend gpu = {.model = model_of};
    invar_device dev = {.backend = &gpu, .numerics = INVAR_NUMERICS_SM90};

    (void)state;
    model_name = "NVIDIA H200";
    assert_true(invar_throughput_peak(&dev, INVAR_FORMAT_BF16) == 989e12);
    assert_true(invar_throughput_peak(&dev, INVAR_FORMAT_FP8) == 0.0);
    assert_true(invar_throughput_peak(&dev, INVAR_FORMAT_FP32) == 0.0);
    model_name = "NVIDIA H100 PCIe"; // slower than the SXM card, and not in the table
    assert_true(invar_throughput_peak(&dev, INVAR_FORMAT_BF16) == 0.0);
    model_name = "NVIDIA H200";
    dev.numerics = INVAR_NUMERICS_IEEE; // without tensor cores
    assert_true(invar_throughput_peak(&dev, INVAR_FORMAT_BF16) == 0.0);
}

/* The ETA with a slow first step in each rollout; later all steps are ten times faster. */
static void test_throughput__eta_uses_recent_rollouts(void **state)
{
    const int64_t sizes[] = {1, 3, 4, 200};
    throughput_fixture s;

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t per = sizes[i];
        int64_t step = 0, steps = 1000 * per;
        const double first = 90.0, other = 1.0, rollout_s = first + (double)(per - 1) * other;

        open_fixture(&s,
                     &(invar_throughput_options){.devices = 1, .steps = steps, .per_rollout = per});
        for (; step < 10 * per; step++) {
            end_step(&s, step, step % per ? other : first, 0.0, 0.1);
            if (per < INVAR_THROUGHPUT_STEPS && step + 1 >= per)
                assert_true(is_near(gauge(&s, "perf/eta"),
                                    rollout_s * (double)(steps - step - 1) / (double)per));
        }
        for (; step < 200 * per; step++)
            end_step(&s, step, (step % per ? other : first) / 10.0, 0.0, 0.1);
        if (per < INVAR_THROUGHPUT_STEPS)
            assert_true(is_near(gauge(&s, "perf/eta"), rollout_s / 10.0 * 800.0));
        end_step(&s, steps - 1, 1.0, 0.0, 0.1);
        assert_true(gauge(&s, "perf/eta") == 0.0);
        close_fixture(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_throughput__values_of_a_step),
        cmocka_unit_test(test_throughput__unknown_values_are_missing),
        cmocka_unit_test(test_throughput__knows_peaks_by_name_and_format),
        cmocka_unit_test(test_throughput__eta_uses_recent_rollouts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
