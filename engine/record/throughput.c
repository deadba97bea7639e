/*
 * throughput.c - throughput of a run: step time, tokens/s, FLOP/s, MFU and ETA.
 *
 * The steps of a rollout take different times, because the first one includes the sampling. The ETA
 * is therefore computed from complete rollouts, so that it does not jump from step to step.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/throughput.h"

#include <math.h>
#include <string.h>

#include "engine/record/recorder.h"
#include "engine/record/trace.h"
#include "engine/train/flop.h"

#include "base/invar_banned.h"

/* Dense bf16 peak of tensor cores from the data sheets; names as reported by the driver. */
static const struct {
    const char *name;
    double peak;
} known_devices[] = {
    {"NVIDIA H100 80GB HBM3", 989e12},
    {"NVIDIA H200", 989e12},
};

double invar_throughput_peak(const invar_device *dev, invar_format format)
{
    const char *name = dev->backend->model ? dev->backend->model(dev) : "";

    if (format != INVAR_FORMAT_BF16 || dev->numerics != INVAR_NUMERICS_SM90)
        return 0.0;
    for (size_t i = 0; i < sizeof known_devices / sizeof *known_devices; i++)
        if (strcmp(known_devices[i].name, name) == 0)
            return known_devices[i].peak;
    return 0.0;
}

void invar_throughput_begin(invar_throughput *throughput, const invar_throughput_options *options)
{
    *throughput =
        (invar_throughput){.options = *options, .tokens_per_s = NAN, .mfu = NAN, .eta = NAN};
    throughput->ends[throughput->count++] = invar_trace_clock();
}

/* Returns the end time of the step that is `steps` before the last one. */
static int64_t step_end_before(const invar_throughput *pace, int64_t steps)
{
    return pace->ends[(pace->count - 1 - steps) % INVAR_THROUGHPUT_STEPS];
}

static double seconds_since(const invar_throughput *pace, int64_t steps)
{
    return (double)(step_end_before(pace, 0) - step_end_before(pace, steps)) / 1e9;
}

/*
 * Estimates the seconds left from the last steps, in complete rollouts if enough steps are known.
 */
static double estimate_time_left(const invar_throughput *pace, int64_t step)
{
    const int64_t per = pace->options.per_rollout, left = pace->options.steps - step - 1;
    int64_t window =
        pace->count < INVAR_THROUGHPUT_STEPS ? pace->count - 1 : INVAR_THROUGHPUT_STEPS - 1;

    if (pace->options.steps == 0 || left < 0)
        return (double)NAN;
    if (window > per)
        window -= window % per;
    return seconds_since(pace, window) / (double)window * (double)left;
}

/* Returns the seconds of a phase of the step; 0 if it did not occur. */
static double phase_seconds(const char *phase, const invar_ledger_timing *timings, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(timings[i].phase, phase) == 0)
            return (double)timings[i].duration_ns / 1e9;
    return 0.0;
}

static double count_tokens(const invar_step_report *step)
{
    int64_t tokens = 0;

    for (int64_t i = step->first; i < step->first + step->count; i++)
        tokens += step->samples[i].n_tokens;
    return (double)tokens;
}

/* Returns the number of tokens of the rollout that the model sampled. */
static double count_sampled_tokens(const invar_step_report *step)
{
    const invar_token_arrays *f = step->flat;
    int64_t drawn = 0;

    for (int64_t t = 0; t < f->offsets[f->samples]; t++)
        drawn += f->sampled_mask[t] != 0;
    return (double)drawn;
}

static double count_flop(const invar_step_report *step)
{
    double flop = 0.0;

    for (int i = 0; i < step->n_learners; i++)
        flop += invar_flop_train(step->learners[i].learner->model, step->samples + step->first,
                                 step->count);
    return flop;
}

static double total_peak(const invar_throughput *pace)
{
    return pace->options.peak * (double)pace->options.devices;
}

/* Divides; NaN, which stands for unknown, if the divisor is not positive. */
static double divide_or_nan(double of, double by)
{
    return by > 0.0 ? of / by : (double)NAN;
}

double invar_throughput_mean_tokens_per_s(const invar_throughput *throughput)
{
    return divide_or_nan(throughput->tokens, throughput->seconds);
}

double invar_throughput_mean_mfu(const invar_throughput *throughput)
{
    return divide_or_nan(throughput->flop, throughput->train_seconds * total_peak(throughput));
}

/* Gauges of a step; unknown values are left out. */
typedef struct gauge_list {
    invar_ledger_metric *out;
    size_t count;
} gauge_list;

static void put_gauge(gauge_list *g, const char *name, double value)
{
    if (isfinite(value))
        g->out[g->count++] = (invar_ledger_metric){name, value};
}

/* Adds a step to the sums and computes its values. */
static void count_step(invar_throughput *pace, const invar_step_report *step, double train)
{
    double tokens = count_tokens(step), flop = count_flop(step), seconds;

    pace->ends[pace->count++ % INVAR_THROUGHPUT_STEPS] = invar_trace_clock();
    seconds = seconds_since(pace, 1);
    pace->tokens_per_s = divide_or_nan(tokens, seconds);
    pace->mfu = divide_or_nan(flop, train * total_peak(pace));
    pace->eta = estimate_time_left(pace, step->number);
    pace->seconds += seconds;
    pace->tokens += tokens;
    pace->train_seconds += train;
    pace->flop += flop;
}

size_t invar_throughput_step(invar_ledger_metric out[INVAR_THROUGHPUT_GAUGES],
                             invar_throughput *throughput, const invar_step_report *step,
                             const invar_ledger_timing *timings, size_t n_timings)
{
    const double rollout = phase_seconds("rollout", timings, n_timings);
    const double train = phase_seconds("train", timings, n_timings);
    gauge_list g = {out, 0};

    if (throughput->count == 0) // invar_throughput_begin was not called
        return 0;
    count_step(throughput, step, train);
    put_gauge(&g, "perf/step_time", seconds_since(throughput, 1));
    put_gauge(&g, "perf/tokens_per_s", throughput->tokens_per_s);
    put_gauge(&g, "perf/eta", throughput->eta);
    if (train > 0.0) {
        put_gauge(&g, "perf/train_time", train);
        put_gauge(&g, "perf/train_tok_per_s", count_tokens(step) / train);
        put_gauge(&g, "perf/train_tflops", count_flop(step) / train / 1e12);
        put_gauge(&g, "perf/train_mfu", throughput->mfu);
    }
    if (rollout > 0.0 && step->first == 0 && !step->supervised &&
        count_sampled_tokens(step) > 0.0) {
        put_gauge(&g, "perf/rollout_time", rollout);
        put_gauge(&g, "perf/rollout_tok_per_s", count_sampled_tokens(step) / rollout);
    }
    return g.count;
}
