/*
 * scheduler.h - continuous batching: selects the rows of the next pass, with preemption by
 * recompute.
 *
 * Sequences are admitted first come, first served, while `concurrency` and the free KV pages allow
 * it; a sequence that does not fit blocks the ones behind it. A sequence gets pages for its known
 * rows when it is admitted, and more as it grows. If no page is free, the sequence admitted last is
 * preempted: it returns to the queue, and its rows are prefilled again later. The oldest sequence
 * is never preempted, so the scheduler always makes progress.
 *
 * A pass has one row of every decoding sequence, and, in order, at most `chunk` prefill rows of the
 * others. With separate_prefill, many prefill rows get a pass of their own, before the decode rows.
 * Draft rows (speculative decoding) follow the regular row of a sequence. They only get pages that
 * are left over, so no sequence waits or is preempted because of them.
 *
 * A prompt shared by several samples is a sequence of its own, followed by theirs; its pages are
 * kept until the last of them has joined, or until they are needed to make progress. Decisions
 * depend on neither a clock nor a random number.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_SCHEDULER_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_SCHEDULER_H

#include "engine/sample/rollout/kv_cache.h"

typedef enum invar_seq_state {
    INVAR_SEQ_WAITING,
    INVAR_SEQ_ADMITTED,    /* has its pages and waits for its shared prompt */
    INVAR_SEQ_RUNNING,     /* prefills or decodes; not necessarily in every pass */
    INVAR_SEQ_PREFIX_KEPT, /* shared prompt whose rows are computed and whose pages are kept */
    INVAR_SEQ_FINISHED     /* finished or canceled, without pages */
} invar_seq_state;

/* One sequence, or the shared prompt of several. The first five members are set by the caller. */
typedef struct invar_seq {
    int64_t prefill;          /* rows known before decoding; >= 1; grows when it is preempted */
    int64_t rows;             /* largest number of rows; equal to `prefill` for a shared prompt */
    int64_t n_sharing;        /* number of following sequences that share all rows of this prompt;
                                 0 if this is not a shared prompt */
    int64_t sample;           /* index of the (first) sample, for the caller and messages */
    const int32_t *tokens;    /* (rows) token ids, for the caller; the scheduler never reads them */
    invar_seq_state state;    /* private to the scheduler, zero-initialized, as all members below */
    int64_t parent;           /* index of the shared prompt; -1 without one */
    int64_t done;             /* rows in the cache or in the last returned pass */
    int64_t n_recompute;      /* rows [0, n_recompute) were computed before a preemption and are
                                 computed again */
    int64_t n_pending_shares; /* sharing sequences that have not joined this prompt yet */
    int32_t *pages;           /* (n_pages) page table, with capacity for `rows` rows; owned */
    int64_t n_pages;
    int64_t n_shared; /* number of first pages in `pages` that are the shared prompt's */
} invar_seq;

/* Returns the number of samples, from seq->sample on, that the rows of a sequence belong to. */
static inline int64_t invar_seq_samples(const invar_seq *seq)
{
    return seq->n_sharing > 0 ? seq->n_sharing : 1;
}

/* Rows [first, first + count) of sequence `seq`, an index, in a pass. */
typedef struct invar_seq_slice {
    int64_t seq;
    int64_t first;
    int64_t count;
} invar_seq_slice;

typedef struct invar_scheduler {
    invar_kv_cache *cache; /* borrowed */
    invar_seq *seqs;       /* borrowed, (n_seqs) */
    int64_t n_seqs;
    int64_t concurrency;   /* largest number of admitted sequences */
    int64_t chunk;         /* largest number of prefill rows in one pass */
    bool separate_prefill; /* give many prefill rows a pass of their own; the caller may set it */
    int64_t lookahead;     /* largest number of draft rows per sequence; the caller may set it */
    int64_t next;          /* index of the first waiting sequence */
    int64_t *active;       /* (n_active) indexes of admitted sequences, ascending */
    int64_t n_active;
    invar_seq_slice *slices; /* slices of the last pass; capacity `concurrency` */
} invar_scheduler;

/*
 * Initializes the scheduler with its first sequences and resets the cache. `cache` and `seqs` are
 * borrowed. Returns INVAR_E_INVALID if a sequence needs more pages than the cache has; the message
 * names its sample. Release with invar_scheduler_release, also after a failure.
 */
invar_status invar_scheduler_init(invar_scheduler *scheduler, invar_kv_cache *cache,
                                  invar_seq *seqs, int64_t n_seqs, int64_t concurrency,
                                  int64_t chunk) INVAR_MUST_USE;
void invar_scheduler_release(invar_scheduler *scheduler);

/*
 * Replaces the list by `seqs`, borrowed: the n_seqs current sequences, then `more` new ones. Call
 * it between passes. Returns INVAR_E_INVALID and adds none if a new sequence needs more pages than
 * the cache has.
 */
invar_status invar_scheduler_add(invar_scheduler *scheduler, invar_seq *seqs,
                                 int64_t more) INVAR_MUST_USE;

/*
 * Removes finished sequences from the list. places_out (n_seqs) receives the new index of each
 * sequence, -1 for removed ones. Call it between passes.
 */
void invar_scheduler_compact(int64_t *places_out, invar_scheduler *scheduler);

/*
 * Returns the slices of the next pass, borrowed until the next call; none if all sequences are
 * over. The caller must know the next token of every sequence whose prefill is complete.
 */
invar_status invar_scheduler_next(const invar_seq_slice **out, int64_t *count_out,
                                  invar_scheduler *scheduler) INVAR_MUST_USE;

/*
 * Keeps only the first `rows` rows of slice `slice` of the last pass, as for rejected draft tokens.
 * The sequence must not be finished. May be called before and after the pass runs.
 */
void invar_scheduler_truncate(invar_scheduler *scheduler, int64_t slice, int64_t rows);

/*
 * Returns the largest number of rows of a pass with at most `known` prefill rows and `sequences`
 * sequences, each with `n_draft_rows` draft rows. `separate_prefill` is the scheduler's setting.
 */
int64_t invar_scheduler_max_rows(int64_t known, int64_t sequences, int64_t n_draft_rows,
                                 bool separate_prefill);

/*
 * Ends a sequence, which may still be waiting, and frees its pages. Shared prompts end themselves.
 */
void invar_scheduler_finish(invar_scheduler *scheduler, int64_t seq);

/* Like invar_scheduler_finish, but also ends the shared prompt if this was its last sequence. */
void invar_scheduler_cancel(invar_scheduler *scheduler, int64_t seq);

#endif
