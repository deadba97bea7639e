/*
 * throughput.c - how fast a run is.
 *
 * Steps of one rollout differ: the first has the time of the rollout. The recent pace is that of
 * whole rollouts, so that the ETA does not jump from step to step.
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

/* Dense products of bf16 on tensor cores, by the data sheets; names as the driver gives them. */
static const struct {
    const char *name;
    double peak;
} known[] = {
    {"NVIDIA H100 80GB HBM3", 989e12},
    {"NVIDIA H200", 989e12},
};

double invar_throughput_peak(const invar_device *dev, invar_format format)
{
    const char *name = dev->backend->model ? dev->backend->model(dev) : "";

    if (format != INVAR_FORMAT_BF16 || dev->numerics != INVAR_NUMERICS_SM90)
        return 0.0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            return known[i].peak;
    return 0.0;
}

void invar_throughput_begin(invar_throughput *pace, const invar_throughput_options *options)
{
    *pace = (invar_throughput){.options = *options, .tokens_per_s = NAN, .mfu = NAN, .eta = NAN};
    pace->ends[pace->count++] = invar_trace_clock();
}

/* The end of the step so many before the last one. */
static int64_t end_before(const invar_throughput *pace, int64_t steps)
{
    return pace->ends[(pace->count - 1 - steps) % INVAR_THROUGHPUT_STEPS];
}

static double seconds_since(const invar_throughput *pace, int64_t steps)
{
    return (double)(end_before(pace, 0) - end_before(pace, steps)) / 1e9;
}

/* Whole rollouts, where so many steps are remembered. */
static double time_left(const invar_throughput *pace, int64_t step)
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

/* Seconds of a phase of the step; 0: there was none. */
static double time_of(const char *phase, const invar_ledger_timing *timings, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(timings[i].phase, phase) == 0)
            return (double)timings[i].duration_ns / 1e9;
    return 0.0;
}

static double tokens_of(const invar_step_report *step)
{
    int64_t tokens = 0;

    for (int64_t i = step->first; i < step->first + step->count; i++)
        tokens += step->samples[i].n_tokens;
    return (double)tokens;
}

/* Tokens of the rollout that the model has drawn. */
static double drawn_of(const invar_step_report *step)
{
    const invar_token_arrays *f = step->flat;
    int64_t drawn = 0;

    for (int64_t t = 0; t < f->start[f->samples]; t++)
        drawn += f->sampled_mask[t] != 0;
    return (double)drawn;
}

static double flop_of(const invar_step_report *step)
{
    double flop = 0.0;

    for (int i = 0; i < step->n_learners; i++)
        flop += invar_flop_train(step->learners[i].learner->model, step->samples + step->first,
                                 step->count);
    return flop;
}

static double peak_of_all(const invar_throughput *pace)
{
    return pace->options.peak * (double)pace->options.devices;
}

/* What nobody can divide by is unknown. */
static double ratio(double of, double by)
{
    return by > 0.0 ? of / by : (double)NAN;
}

double invar_throughput_mean_tokens_per_s(const invar_throughput *pace)
{
    return ratio(pace->tokens, pace->seconds);
}

double invar_throughput_mean_mfu(const invar_throughput *pace)
{
    return ratio(pace->flop, pace->train_seconds * peak_of_all(pace));
}

/* Gauges under construction: what is unknown is left out. */
typedef struct gauges {
    invar_ledger_metric *out;
    size_t count;
} gauges;

static void gauges_put(gauges *g, const char *name, double value)
{
    if (isfinite(value))
        g->out[g->count++] = (invar_ledger_metric){name, value};
}

/* Sums over the steps; the numbers of this one. */
static void count_step(invar_throughput *pace, const invar_step_report *step, double train)
{
    double tokens = tokens_of(step), flop = flop_of(step), seconds;

    pace->ends[pace->count++ % INVAR_THROUGHPUT_STEPS] = invar_trace_clock();
    seconds = seconds_since(pace, 1);
    pace->tokens_per_s = ratio(tokens, seconds);
    pace->mfu = ratio(flop, train * peak_of_all(pace));
    pace->eta = time_left(pace, step->number);
    pace->seconds += seconds;
    pace->tokens += tokens;
    pace->train_seconds += train;
    pace->flop += flop;
}

size_t invar_throughput_step(invar_ledger_metric out[INVAR_THROUGHPUT_GAUGES],
                             invar_throughput *pace, const invar_step_report *step,
                             const invar_ledger_timing *timings, size_t n_timings)
{
    const double rollout = time_of("rollout", timings, n_timings);
    const double train = time_of("train", timings, n_timings);
    gauges g = {out, 0};

    if (pace->count == 0) // nobody has said that the run began: a replay
        return 0;
    count_step(pace, step, train);
    gauges_put(&g, "perf/step_time", seconds_since(pace, 1));
    gauges_put(&g, "perf/tokens_per_s", pace->tokens_per_s);
    gauges_put(&g, "perf/eta", pace->eta);
    if (train > 0.0) {
        gauges_put(&g, "perf/train_time", train);
        gauges_put(&g, "perf/train_tok_per_s", tokens_of(step) / train);
        gauges_put(&g, "perf/train_tflops", flop_of(step) / train / 1e12);
        gauges_put(&g, "perf/train_mfu", pace->mfu);
    }
    if (rollout > 0.0 && step->first == 0 && !step->supervised && drawn_of(step) > 0.0) {
        gauges_put(&g, "perf/rollout_time", rollout);
        gauges_put(&g, "perf/rollout_tok_per_s", drawn_of(step) / rollout);
    }
    return g.count;
}
