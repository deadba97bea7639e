/*
 * work.h - what each of several ranks did between two steps of the ledger: it computed, or waited.
 *
 *     invar_work_new(&work, layout, true);
 *     invar_work_begin(work, "train");  ...  invar_work_end(work);      may be nested
 *     invar_work_collect(&all, work);                                   a call of all ranks
 *
 * Every nanosecond is in one row: computing of the innermost phase, or the wait for a kind of move
 * in it. What happens between phases is the phase "other". Nothing here is part of a result. NULL
 * is silent: one rank has nobody to wait for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_WORK_H
#define INVAR_ENGINE_RECORD_WORK_H

#include "engine/layout/layout.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_work invar_work;

#define INVAR_WORK_DEPTH 16      /* of nested phases */
#define INVAR_WORK_ROWS 256      /* of a step; kinds beyond share the last */
#define INVAR_WORK_SLICES 4096   /* of a step; those beyond are left out */
#define INVAR_WORK_SHORT 1000000 /* nanoseconds: a shorter wait is no slice */
#define INVAR_WORK_PHASE_SIZE 24 /* of a phase with its NUL; what is longer is cut */

/* A stretch of time of one rank: a phase, or a wait in it. */
typedef struct invar_work_slice {
    int rank;
    const char *host;
    const char *phase, *move;      /* move "": the phase */
    int64_t start_ns, duration_ns; /* Unix time, by the clock of the rank's host */
    int64_t sent, received;
} invar_work_slice;

/* Of all ranks; on ranks other than 0 there is nothing. */
typedef struct invar_work_all {
    const invar_ledger_work *rows;
    size_t n_rows;
    const invar_work_slice *slices;
    size_t n_slices;
} invar_work_all;

/* Watches the moves of this rank; `slices`: stretches of time are wanted, too. */
invar_status invar_work_new(invar_work **out, const invar_layout *layout,
                            bool slices) INVAR_MUST_USE;
void invar_work_free(invar_work *work);

/* `phase` is borrowed until its end. */
void invar_work_begin(invar_work *work, const char *phase);
void invar_work_end(invar_work *work);

/*
 * What all ranks did since the last call, borrowed until the next one. The moves that tell rank 0
 * belong to what follows.
 */
invar_status invar_work_collect(invar_work_all *out, invar_work *work) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
