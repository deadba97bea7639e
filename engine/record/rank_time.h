/*
 * rank_time.h - what each of several ranks did between two steps of the ledger: it computed, or
 * waited.
 *
 *     invar_rank_timer_new(&work, layout, true);
 *     invar_rank_timer_begin(work, "train");  ...  invar_rank_timer_end(work);      may be nested
 *     invar_rank_timer_collect(&all, work);                                   a call of all ranks
 *
 * Every nanosecond is in one row: computing of the innermost phase, or the wait for a kind of move
 * in it. What happens between phases is the phase "other". Nothing here is part of a result. NULL
 * is silent: one rank has nobody to wait for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_RANK_TIME_H
#define INVAR_ENGINE_RECORD_RANK_TIME_H

#include "engine/ranks/layout/layout.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_rank_timer invar_rank_timer;

#define INVAR_RANK_TIMER_DEPTH 16      /* of nested phases */
#define INVAR_RANK_TIMER_ROWS 256      /* of a step; kinds beyond share the last */
#define INVAR_RANK_TIMER_SLICES 4096   /* of a step; those beyond are left out */
#define INVAR_RANK_TIMER_SHORT 1000000 /* nanoseconds: a shorter wait is no slice */
#define INVAR_RANK_TIMER_PHASE_SIZE 24 /* of a phase with its NUL; what is longer is cut */

/* A stretch of time of one rank: a phase, or a wait in it. */
typedef struct invar_rank_interval {
    int rank;
    const char *host;
    const char *phase, *move;      /* move "": the phase */
    int64_t start_ns, duration_ns; /* Unix time, by the clock of the rank's host */
    int64_t sent, received;
} invar_rank_interval;

/* Of all ranks; on ranks other than 0 there is nothing. */
typedef struct invar_rank_times {
    const invar_ledger_rank_time *rows;
    size_t n_rows;
    const invar_rank_interval *slices;
    size_t n_slices;
} invar_rank_times;

/* Watches the moves of this rank; `slices`: stretches of time are wanted, too. */
invar_status invar_rank_timer_new(invar_rank_timer **out, const invar_layout *layout,
                                  bool slices) INVAR_MUST_USE;
void invar_rank_timer_free(invar_rank_timer *work);

/* `phase` is borrowed until its end. */
void invar_rank_timer_begin(invar_rank_timer *work, const char *phase);
void invar_rank_timer_end(invar_rank_timer *work);

/*
 * What all ranks did since the last call, borrowed until the next one. The moves that tell rank 0
 * belong to what follows.
 */
invar_status invar_rank_timer_collect(invar_rank_times *out, invar_rank_timer *work) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
