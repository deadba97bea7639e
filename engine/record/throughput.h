/*
 * throughput.h - throughput of a run: step time, tokens/s, FLOP/s, MFU and ETA.
 *
 *     invar_throughput_begin(&throughput, &options);                   before the first rollout
 *     n = invar_throughput_step(gauges, &throughput, step, timings, count);    after each step
 *
 * All values are gauges, since they come from the clock: they are part of no result, content digest
 * or chain. Unknown values are left out: there is no MFU without a peak, and no peak of a device
 * that is neither set in the recipe nor in the table of throughput.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_THROUGHPUT_H
#define INVAR_ENGINE_RECORD_THROUGHPUT_H

#include <stddef.h>
#include <stdint.h>

#include "engine/model/model.h"
#include "ledger/ledger.h"

struct invar_step_report;

#define INVAR_THROUGHPUT_GAUGES 9 /* largest number of gauges of a step */
#define INVAR_THROUGHPUT_STEPS 64 /* end times that are kept; the ETA uses one step less */

typedef struct invar_throughput_options {
    double peak;         /* FLOP/s of one training device; 0 if unknown */
    int64_t devices;     /* number of training devices */
    int64_t steps;       /* steps of the complete run; 0 if unknown */
    int64_t per_rollout; /* steps of a rollout, at least 1 */
} invar_throughput_options;

typedef struct invar_throughput {
    invar_throughput_options options;
    /*
     * end times of the last steps, in ns of invar_trace_clock: a ring buffer, which has the time of
     * invar_throughput_begin as its first value
     */
    int64_t ends[INVAR_THROUGHPUT_STEPS];
    int64_t count; /* number of end times that were recorded; 0 if nothing is measured */
    /*
     * values of the last step, of all devices together; NaN if unknown. `mfu` is a fraction of the
     * peak, `eta` is in seconds.
     */
    double tokens_per_s, mfu, eta;
    double seconds, tokens, train_seconds, flop; /* sums since invar_throughput_begin */
} invar_throughput;

/* Returns the peak in FLOP/s of a device in the number format of a run; 0 if unknown. */
double invar_throughput_peak(const invar_device *dev, invar_format format);

/* Starts to measure; call before the first rollout. */
void invar_throughput_begin(invar_throughput *throughput, const invar_throughput_options *options);

/* Return the mean over all steps since invar_throughput_begin; NaN if unknown. */
double invar_throughput_mean_tokens_per_s(const invar_throughput *throughput);
double invar_throughput_mean_mfu(const invar_throughput *throughput);

/*
 * Ends a step now, writes its gauges and returns their number. `timings` are those of the ledger
 * entry. Returns 0 if invar_throughput_begin was not called.
 */
size_t invar_throughput_step(invar_ledger_metric out[INVAR_THROUGHPUT_GAUGES],
                             invar_throughput *throughput, const struct invar_step_report *step,
                             const invar_ledger_timing *timings, size_t n_timings);

#endif
