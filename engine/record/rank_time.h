/*
 * rank_time.h - measures how long each rank computed and how long it waited for transfers.
 *
 *     invar_rank_timer_new(&timer, layout, true);
 *     invar_rank_timer_begin(timer, "train");  ...  invar_rank_timer_end(timer);    may be nested
 *     invar_rank_timer_collect(&all, timer);                                  collective
 *
 * Each nanosecond between two steps of the ledger is in exactly one row: computing in the innermost
 * phase, or waiting there for one kind of transfer. Time outside of phases is in the phase "other".
 * No result depends on the timer. All functions except invar_rank_timer_new do nothing if `timer`
 * is NULL, as with one rank.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_RANK_TIME_H
#define INVAR_ENGINE_RECORD_RANK_TIME_H

#include "engine/ranks/layout/layout.h"
#include "ledger/ledger.h"

typedef struct invar_rank_timer invar_rank_timer;

#define INVAR_RANK_TIMER_DEPTH 16       /* largest number of nested phases */
#define INVAR_RANK_TIMER_ROWS 256       /* rows of a step; further kinds share the last row */
#define INVAR_RANK_TIMER_INTERVALS 4096 /* intervals of a step; later ones are left out */
#define INVAR_RANK_TIMER_SHORT 1000000  /* ns; shorter waits are no intervals */
#define INVAR_RANK_TIMER_PHASE_SIZE 24  /* bytes of a name with NUL; longer names are cut */

/* An interval of one rank: a phase, or a wait within it. */
typedef struct invar_rank_interval {
    int rank;
    const char *host;
    const char *phase, *transfer;  /* `transfer` is the kind of transfer, empty for a phase */
    int64_t start_ns, duration_ns; /* Unix time, by the clock of the rank's host */
    /* bytes of the transfer */
    int64_t sent, received;
} invar_rank_interval;

/* Times of all ranks; empty on ranks other than 0. */
typedef struct invar_rank_times {
    const invar_ledger_rank_time *rows;
    size_t n_rows;
    const invar_rank_interval *intervals;
    size_t n_intervals;
} invar_rank_times;

/*
 * Starts to measure, and observes the transfers of this rank's world. If `intervals` is set,
 * intervals are recorded too. Free with invar_rank_timer_free.
 */
invar_status invar_rank_timer_new(invar_rank_timer **out, const invar_layout *layout,
                                  bool intervals) INVAR_MUST_USE;
void invar_rank_timer_free(invar_rank_timer *timer);

/* Begins a phase; `phase` is borrowed until its end. invar_rank_timer_end ends the last one. */
void invar_rank_timer_begin(invar_rank_timer *timer, const char *phase);
void invar_rank_timer_end(invar_rank_timer *timer);

/*
 * Gathers the times of all ranks since the last call; they are borrowed until the next one. The
 * transfers of this call count for the next one. Collective: all ranks must call it.
 */
invar_status invar_rank_timer_collect(invar_rank_times *out,
                                      invar_rank_timer *timer) INVAR_MUST_USE;

#endif
