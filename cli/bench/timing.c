/*
 * timing.c - times calls in turn, burst by burst.
 *
 * A burst is a number of calls that are queued without synchronization and timed from idle to idle,
 * so that the resolution of the clock does not matter; on a GPU, short calls are captured as one
 * graph, so that launch overhead does not count. All calls that are compared run in turn and see
 * the same clock of a machine that warms up. The result is the median over the bursts.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <time.h>

#include "base/alloc.h"
#include "base/process/process.h"
#include "cli/bench/bench.h"

#include "base/invar_banned.h"

enum { WARM_ROUNDS = 2, FEW_ROUNDS = 3 };
#define SHORT 8e-5 /* calls shorter than this (seconds) may be limited by the launch */
#define SLOW 0.15  /* calls longer than this average out disturbances themselves */

double invar_bench_now(void)
{
    return 1e-9 * (double)invar_process_clock_ns(CLOCK_MONOTONIC);
}

/* Sums four random bytes, which is approximately normal. */
float invar_bench_noise(uint64_t *state)
{
    uint64_t s = *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);

    return (float)((int)(s >> 56) + (int)(s >> 48 & 0xFF) + (int)(s >> 40 & 0xFF) +
                   (int)(s >> 32 & 0xFF) - 510) *
           0x1p-8f;
}

double invar_bench_median(double *times, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        double t = times[i];
        int64_t at = i;
        for (; at > 0 && times[at - 1] > t; at--)
            times[at] = times[at - 1];
        times[at] = t;
    }
    return times[count / 2];
}

/* ---- scratch --------------------------------------------------------------------------------- */

invar_status invar_bench_begin_scratch(invar_device *dev, invar_op op, const void *args)
{
    size_t bytes;

    dev->scratch = NULL;
    INVAR_TRY(invar_op_workspace(&bytes, dev, op, args));
    INVAR_TRY(invar_device_arena(&dev->scratch, dev, "scratch of a benchmark"));
    INVAR_TRY(invar_arena_plan_scratch(dev->scratch, bytes + INVAR_ALIGN));
    return invar_arena_reserve(dev->scratch);
}

invar_status invar_bench_run_once(const invar_device *dev, invar_op op, const void *args)
{
    invar_device own = *dev;
    invar_status status = invar_bench_begin_scratch(&own, op, args);

    if (status == INVAR_OK)
        status = invar_op_run(&own, op, args);
    invar_arena_free(own.scratch);
    return status;
}

/* ---- bursts ---------------------------------------------------------------------------------- */

static invar_status queue_calls(const invar_device *dev, invar_op op, const invar_bench_runner *r)
{
    for (int64_t i = 0; i < r->calls; i++) {
        const void *args = r->args[i % r->sets];
        INVAR_TRY(r->run ? r->run(dev, args, NULL) : invar_op_run(dev, op, args));
    }
    return INVAR_OK;
}

/* Times one burst; *out is the seconds per call. */
static invar_status time_burst(double *out, const invar_device *dev, invar_op op,
                               const invar_bench_runner *r)
{
    double begin;

    INVAR_TRY(invar_device_synchronize(dev));
    begin = invar_bench_now();
    INVAR_TRY(r->graph ? dev->backend->graphs.launch(dev, r->graph) : queue_calls(dev, op, r));
    INVAR_TRY(invar_device_synchronize(dev));
    *out = (invar_bench_now() - begin) / (double)r->calls;
    return INVAR_OK;
}

/* Chooses the number of calls per burst, and captures them as a graph if they are short. */
static invar_status prepare_runner(invar_bench_runner *r, const invar_device *dev, invar_op op,
                                   double burst, bool graphs)
{
    invar_status status;

    r->calls = 1;
    INVAR_TRY(time_burst(&r->seconds, dev, op, r)); // it loads code and chooses algorithms
    if (r->seconds < SLOW) {
        r->calls = 3;
        INVAR_TRY(time_burst(&r->seconds, dev, op, r));
    }
    r->calls = (int64_t)(burst / (r->seconds + 1e-9)) + 1;
    if (!graphs || !dev->backend->graphs.begin || r->seconds > SHORT)
        return INVAR_OK;
    INVAR_TRY(dev->backend->graphs.begin(dev));
    status = queue_calls(dev, op, r);
    if (status == INVAR_OK)
        return dev->backend->graphs.end(&r->graph, dev);
    (void)dev->backend->graphs.end(NULL, dev);
    return status;
}

static invar_status run_rounds(invar_bench_runner *runners, int count, const invar_device *dev,
                               invar_op op, double burst, bool graphs)
{
    int rounds = INVAR_BENCH_ROUNDS, warm = WARM_ROUNDS;

    for (int i = 0; i < count; i++) {
        INVAR_TRY(prepare_runner(&runners[i], dev, op, burst, graphs));
        if (runners[i].seconds >= SLOW && !invar_device_is_local(dev)) {
            rounds = FEW_ROUNDS;
            warm = 0;
        }
    }
    for (int round = -warm; round < rounds; round++)
        for (int i = 0; i < count; i++)
            INVAR_TRY(time_burst(&runners[i].times[round < 0 ? 0 : round], dev, op, &runners[i]));
    for (int i = 0; i < count; i++)
        runners[i].seconds = invar_bench_median(runners[i].times, rounds);
    return INVAR_OK;
}

invar_status invar_bench_measure(invar_bench_runner *runners, int count, const invar_device *dev,
                                 invar_op op, double burst, bool graphs)
{
    invar_status status = run_rounds(runners, count, dev, op, burst, graphs);

    for (int i = 0; i < count; i++)
        if (runners[i].graph)
            dev->backend->graphs.free(dev, runners[i].graph);
    return status;
}
