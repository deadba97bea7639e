/*
 * throughput.h - how fast a run is: seconds, tokens and FLOPs of its steps, and how long it will
 * last.
 *
 *     invar_throughput_begin(&pace, &options);                           before the first rollout
 *     n = invar_throughput_step(gauges, &pace, step, timings, count);    at the end of each step
 *
 * All of it comes from the clock, so these are gauges: no part of a result, of the content hash or
 * of a chain. What is not known is left out: there is no MFU without a peak, and no peak of a
 * device that nobody has stated or that is not in the table of throughput.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_THROUGHPUT_H
#define INVAR_ENGINE_RECORD_THROUGHPUT_H

#include <stddef.h>
#include <stdint.h>

#include "engine/model/model.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

struct invar_step_report;

#define INVAR_THROUGHPUT_GAUGES 9 /* of a step, at most */
#define INVAR_THROUGHPUT_STEPS 64 /* that the recent pace is taken from, at most */

typedef struct invar_throughput_options {
    double peak;         /* FLOP/s of one device that trains; 0: unknown */
    int64_t devices;     /* that train */
    int64_t steps;       /* after which the run is over; 0: unknown */
    int64_t per_rollout; /* steps of a rollout, at least 1 */
} invar_throughput_options;

typedef struct invar_throughput {
    invar_throughput_options options;
    /* when the last steps ended, a ring; first: the beginning */
    int64_t ends[INVAR_THROUGHPUT_STEPS];
    int64_t count; /* of all that were put there */
    /* Of the last step; NaN: unknown */
    double tokens_per_s, mfu, eta;
    double seconds, tokens, train_seconds, flop; /* of all steps since the beginning */
} invar_throughput;

/* The peak in FLOP/s of a device in the number format of a run; 0: nobody knows it. */
double invar_throughput_peak(const invar_device *dev, invar_format format);

void invar_throughput_begin(invar_throughput *pace, const invar_throughput_options *options);

/* Of all steps together; NaN: unknown. */
double invar_throughput_mean_tokens_per_s(const invar_throughput *pace);
double invar_throughput_mean_mfu(const invar_throughput *pace);

/* Gauges of a step that ends now, with the timings that the ledger gets; returns how many. */
size_t invar_throughput_step(invar_ledger_metric out[INVAR_THROUGHPUT_GAUGES],
                             invar_throughput *pace, const struct invar_step_report *step,
                             const invar_ledger_timing *timings, size_t n_timings);

#ifdef __cplusplus
}
#endif
#endif
