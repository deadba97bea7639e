/*
 * running_batch.h - the samples that a rollout is sampling now.
 *
 * The batch holds all samples of a run, or those that have joined a stream. Every sample is a
 * sequence of the scheduler. If several samples of a group share a prompt, the prompt is a sequence
 * of its own before them: all of them sample their first token from its last row, and reference its
 * pages. Private to engine/sample/rollout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_RUNNING_BATCH_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_RUNNING_BATCH_H

#include "engine/sample/rollout/draft/draft_model.h"
#include "engine/sample/rollout/draft/ngram.h"
#include "engine/sample/rollout/model_runner.h"
#include "engine/sample/rollout/sampler.h"

/* Decode state of one sample. */
typedef struct invar_decode_state {
    invar_rl_sample *sample;
    const invar_sampling_params *sampling;
    int64_t seq;            /* index of its sequence in the batch */
    int64_t limit;          /* largest number of prompt and response tokens in this run */
    int64_t capacity;       /* response tokens that the arrays of the sample can hold */
    int64_t n_draft_tokens; /* draft tokens in this pass */
    bool skip_draft_once;   /* a row with draft rows had logits that are not finite, and is computed
                               again without draft tokens */
    bool finished;          /* needs no more tokens in this run */
    invar_text_stream text; /* text of the response so far; kept if stop strings are set */
    /* n-gram table shared by all samples of one join call; NULL unless speculative-algorithm =
       ngram */
    invar_ngram_proposer *ngrams;
} invar_decode_state;

/*
 * Zero-initialize before use and set `rollout`, `sampling` and `forced_samples`. Release with
 * invar_running_batch_end, also after a failure.
 */
struct invar_running_batch {
    invar_rollout *rollout;
    const invar_sampling_params *sampling; /* used by all samples; NULL if each has its own */
    /* (count) samples whose tokens are appended instead of sampled ones; NULL if unused */
    const invar_rl_sample *forced_samples;
    invar_decode_state *states; /* (count) */
    int64_t count;
    int64_t capacity; /* samples that the arrays can hold */
    invar_seq *seqs;  /* (n_seqs) sequences: samples and shared prompts */
    int64_t n_seqs, seqs_capacity;
    invar_rollout_exec_options limits; /* resolved: no member has its default value */
    invar_draw *draws; /* (n_draws) draws of this pass, slice by slice, then those of fillers */
    int64_t n_draws, draws_capacity;
    invar_draft_model *draft;            /* draft model of the rollout; NULL if it drafts nothing */
    invar_draft_proposer proposer;       /* `propose` is NULL if nothing is drafted */
    invar_draft_request *draft_requests; /* (concurrency) */
    invar_model_runner runner;
    invar_sampler sampler;
    int64_t samples_done;            /* samples that finished or were suspended */
    int64_t tokens_done;             /* tokens sampled */
    invar_row_ownership *row_owners; /* NULL without hooks */
    uint32_t *draw_indexes;          /* (count) draw index of each sample; NULL without hooks */
};

/* ---- running_batch.c ------------------------------------------------------------------------- */

/* Starts a run with samples[0, count). Calls all of the functions below that set up a batch. */
invar_status invar_running_batch_begin(invar_running_batch *run, invar_rl_sample *samples,
                                       int64_t count) INVAR_MUST_USE;

/* Frees everything that the batch owns. The samples stay as they are. */
void invar_running_batch_end(invar_running_batch *run);

/* Grows the arrays to hold `count` samples in total. */
invar_status invar_running_batch_reserve(invar_running_batch *run, int64_t count) INVAR_MUST_USE;

/*
 * Appends samples[0, count), borrowed with `sampling`, to arrays with enough capacity. Returns
 * INVAR_E_INVALID if a sample cannot be sampled; the caller then discards the appended ones.
 */
invar_status invar_running_batch_add_samples(invar_running_batch *run, invar_rl_sample *samples,
                                             int64_t count,
                                             const invar_sampling_params *sampling) INVAR_MUST_USE;

/* Creates the n-gram table of the samples from `first` on, if drafts are proposed by n-grams. */
invar_status invar_running_batch_add_ngrams(invar_running_batch *run, int64_t first) INVAR_MUST_USE;

/* Releases the decode state of a sample; its entry stays in the array. */
void invar_running_batch_release_state(invar_decode_state *state);

/*
 * Appends sequences for the samples from `first` on, and for prompts that they share. Returns
 * INVAR_E_INVALID if the prompts of one group differ.
 */
invar_status invar_running_batch_add_seqs(invar_running_batch *run, int64_t first) INVAR_MUST_USE;

/* Selects the proposer of draft tokens. Requires a model runner. */
invar_status invar_running_batch_select_proposer(invar_running_batch *run) INVAR_MUST_USE;

/* Creates the model runner, for at most `sequences` sequences of at most `rows` rows. */
invar_status invar_running_batch_init_runner(invar_running_batch *run, int64_t sequences,
                                             int64_t rows) INVAR_MUST_USE;

/* Allocates the draws of any pass of `samples` samples. */
invar_status invar_running_batch_make_draws(invar_running_batch *run,
                                            int64_t samples) INVAR_MUST_USE;

/* Grows the arrays of a sample for more response tokens, doubling them up to its limit. */
invar_status invar_running_batch_grow_sample(invar_decode_state *state) INVAR_MUST_USE;

/* Returns the largest number of tokens that the sample may have, prompt included. */
int64_t invar_running_batch_limit(const invar_rollout *rollout,
                                  const invar_sampling_params *sampling,
                                  const invar_rl_sample *sample);

/* ---- rollout_run.c --------------------------------------------------------------------------- */

/* Runs one pass and appends the sampled tokens to their samples. */
invar_status invar_running_batch_step(invar_running_batch *run) INVAR_MUST_USE;

#endif
