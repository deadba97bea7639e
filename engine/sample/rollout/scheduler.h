/*
 * scheduler.h - which rows of which sequences make up the next pass.
 *
 * Jobs are admitted in their order, as long as their number and the free pages allow; one that does
 * not fit holds up those behind it. A job is admitted with the pages of its known rows, and gets
 * further ones as it grows: most sequences end long before their limit. Where no page is left, the
 * last job that was admitted goes back to wait, and its rows, all of them known by then, are
 * computed again. The first job of all never gives way, so the schedule cannot come to a stand.
 *
 * A pass takes one row of every job whose known rows are through, and, in order, the next of the
 * known rows of the others, together at most a chunk. Where that is wanted, many known rows have
 * passes of their own, before the others.
 *
 * Rows ahead are rows of guesses behind the one row. They get pages that are free when all others
 * have theirs, and those that are cut give them back: no job waits or gives way because of them.
 *
 * A prompt shared by several samples is a job of its own, followed by theirs; its pages are kept
 * until the last of them has its own copy. No clock and no random number decides anything.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_SCHEDULER_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_SCHEDULER_H

#include "engine/sample/rollout/kv_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_seq_state {
    INVAR_SEQ_WAITING,
    INVAR_SEQ_ADMITTED, /* has its pages, waits for its prompt */
    INVAR_SEQ_READY,    /* has rows in the next pass */
    INVAR_SEQ_KEPT,     /* a shared prompt that is through */
    INVAR_SEQ_OVER
} invar_seq_state;

/* One sequence, or a prompt. */
typedef struct invar_seq {
    /* The caller's. */
    int64_t prefill;       /* rows known beforehand; of a sharing job those of its prompt; more */
                           /* where the job has given way */
    int64_t rows;          /* most rows that it may have; of a prompt: prefill */
    int64_t n_sharing;     /* jobs right behind it that share all its rows; 0: a sequence */
    int64_t sample;        /* what it belongs to, for messages and the caller */
    const int32_t *tokens; /* (rows) what the caller puts into the rows; not looked at here */
    /* The schedule's; zeroed at first. */
    invar_seq_state state;
    int64_t parent;      /* job of the shared prompt; -1: none */
    int64_t done;        /* rows that are in the cache or in the pass that was handed out last */
    int64_t n_recompute; /* rows from the first on that were in a pass before it gave way */
    int64_t n_pending_shares; /* children that have not come for the rows yet */
    int32_t *pages;           /* page of each page_size rows; room for those of all rows */
    int64_t n_pages;
    int64_t n_shared; /* of them, the first ones, shared */
} invar_seq;

/* The samples, from job->sample on, that its rows are for: one, or all that share the prompt. */
static inline int64_t invar_seq_samples(const invar_seq *job)
{
    return job->n_sharing > 0 ? job->n_sharing : 1;
}

/* Rows [first, first + count) of a job. */
typedef struct invar_seq_slice {
    int64_t job;
    int64_t first;
    int64_t count;
} invar_seq_slice;

typedef struct invar_scheduler {
    invar_kv_cache *cache; /* borrowed */
    invar_seq *jobs;       /* borrowed, (n_jobs) */
    int64_t n_jobs;
    int64_t concurrency;   /* jobs admitted at a time */
    int64_t chunk;         /* known rows in one pass */
    bool separate_prefill; /* passes of known rows alone, if they are many; false at first */
    int64_t lookahead;     /* rows behind the one row of a job, at most; 0 at first */
    int64_t next;          /* first job that waits */
    int64_t *active;       /* (n_active) ascending */
    int64_t n_active;
    invar_seq_slice *turns; /* of the last pass */
} invar_scheduler;

/*
 * The cache is reset. INVAR_E_INVALID names the first job that could never be admitted: it needs
 * more pages than there are.
 */
invar_status invar_scheduler_init(invar_scheduler *schedule, invar_kv_cache *cache, invar_seq *jobs,
                                  int64_t n_jobs, int64_t concurrency,
                                  int64_t chunk) INVAR_MUST_USE;
void invar_scheduler_release(invar_scheduler *schedule);

/*
 * The list is `jobs` from now on, borrowed likewise: the (n_jobs) that it was, then `more` new
 * ones. INVAR_E_INVALID as above: then it has none of these. Between passes.
 */
invar_status invar_scheduler_add(invar_scheduler *schedule, invar_seq *jobs,
                                 int64_t more) INVAR_MUST_USE;

/* Jobs that are over leave the list. places_out: (n_jobs) where each is now, or -1. Likewise. */
void invar_scheduler_compact(int64_t *places_out, invar_scheduler *schedule);

/*
 * The next pass, borrowed until the next call; no turns when all jobs are over. The caller knows
 * the next row of every job whose last turn it has had.
 */
invar_status invar_scheduler_next(const invar_seq_slice **out, int64_t *count_out,
                                  invar_scheduler *schedule) INVAR_MUST_USE;

/*
 * Of a turn of the last pass only the first `rows` rows count, of a job that is not over: the
 * others never were. Before the pass runs, and after it.
 */
void invar_scheduler_truncate(invar_scheduler *schedule, int64_t turn, int64_t rows);

/* Most rows of a pass of at most so many sequences and, of them, so many `known` rows. */
int64_t invar_scheduler_most_rows(int64_t known, int64_t sequences, int64_t ahead, bool apart);

/* A sequence needs no more rows; it may still be waiting. Prompts end by themselves. */
void invar_scheduler_finish(invar_scheduler *schedule, int64_t job);

/* The same for one that nobody wants any more; with the last of them goes their prompt. */
void invar_scheduler_cancel(invar_scheduler *schedule, int64_t job);

#ifdef __cplusplus
}
#endif
#endif
