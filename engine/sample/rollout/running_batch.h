/*
 * running_batch.h - the samples that a rollout is working on: all of a run, or those that have
 * joined.
 *
 * Every sample is a job. Where several samples of a group share a prompt, the prompt is a job of
 * its own before them: its last row gives all of them their first token, and its pages are theirs.
 *
 * Only engine/sample/rollout includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_RUNNING_BATCH_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_RUNNING_BATCH_H

#include "engine/sample/rollout/draft/draft_model.h"
#include "engine/sample/rollout/draft/ngram.h"
#include "engine/sample/rollout/model_runner.h"
#include "engine/sample/rollout/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A sample on its way. */
typedef struct invar_decode_state {
    invar_rl_sample *sample;
    const invar_sampling_params *sampling;
    int64_t job;
    int64_t limit;          /* tokens in all, in this run */
    int64_t room;           /* response tokens that the arrays can take */
    int64_t n_draft_tokens; /* tokens behind its own, in this pass */
    bool skip_draft_once;   /* its next row has no guesses behind it */
    bool finished;          /* it needs no more tokens in this run */
    invar_text_stream text;
    /* that those are learned by which joined with it; NULL: nobody looks up */
    invar_ngram_proposer *ngrams;
} invar_decode_state;

/* Zeroed at first, but for its first three members. */
struct invar_running_batch {
    invar_rollout *rollout;
    const invar_sampling_params *sampling; /* of all samples; NULL: each has its own */
    const invar_rl_sample
        *forced_samples;         /* (count) their tokens are taken instead of those drawn; NULL */
    invar_decode_state *writers; /* (count) */
    int64_t count;
    int64_t room;    /* samples that the arrays can take */
    invar_seq *jobs; /* (n_jobs) */
    int64_t n_jobs;
    invar_rollout_exec_options limits; /* settled */
    invar_draw *draws; /* (n_draws) of this pass, turn by turn; then those of fillers */
    int64_t n_draws;
    invar_draft_model *draft;     /* the rollout's, where it guesses */
    invar_draft_proposer guesser; /* `make` NULL: nobody guesses */
    invar_draft_request *guesses; /* (sequences of a pass) */
    invar_model_runner feed;
    invar_sampler sampler;
    int64_t samples_done;
    int64_t tokens_done;
    invar_row_ownership *show; /* NULL: nobody looks */
    uint32_t *numbers;         /* (count) the draw of each sample, where somebody does */
};

/*
 * ---- running_batch.c
 * ---------------------------------------------------------------------------------
 */

/* All of a run with samples [0, count). `run` has its rollout and its sampling. */
invar_status invar_running_batch_begin(invar_running_batch *run, invar_rl_sample *samples,
                                       int64_t count) INVAR_MUST_USE;
void invar_running_batch_end(invar_running_batch *run);

/* Its parts, for samples that join later. Room for `count` samples in all. */
invar_status invar_running_batch_reserve(invar_running_batch *run, int64_t count) INVAR_MUST_USE;

/* Samples behind those that there are, in arrays that have room for them. */
invar_status invar_running_batch_add_samples(invar_running_batch *run, invar_rl_sample *samples,
                                             int64_t count,
                                             const invar_sampling_params *sampling) INVAR_MUST_USE;

/* Those from `first` on look up what to guess in each other, where guesses come from there. */
invar_status invar_running_batch_add_look_up(invar_running_batch *run,
                                             int64_t first) INVAR_MUST_USE;

/* The sample needs nothing any more but its place. */
void invar_running_batch_leave(invar_decode_state *writer);

/* Jobs of the samples from `first` on. */
invar_status invar_running_batch_add_jobs(invar_running_batch *run, int64_t first) INVAR_MUST_USE;

/* Who guesses; once there is a feed. */
invar_status invar_running_batch_begin_guessing(invar_running_batch *run) INVAR_MUST_USE;

/* Passes of so many sequences at most. */
invar_status invar_running_batch_begin_feed(invar_running_batch *run, int64_t sequences,
                                            int64_t rows) INVAR_MUST_USE;

/* Room for the draws of any pass, of so many samples. */
invar_status invar_running_batch_make_draws(invar_running_batch *run,
                                            int64_t samples) INVAR_MUST_USE;

/* Room for more response tokens: some at first, then twice as many, never beyond the limit. */
invar_status invar_running_batch_make_room(invar_decode_state *writer) INVAR_MUST_USE;

/* Tokens that the sample may ever have. */
int64_t invar_running_batch_limit(const invar_rollout *rollout,
                                  const invar_sampling_params *sampling,
                                  const invar_rl_sample *sample);

/* ---- rollout.c ------------------------------------------------------------------------------- */

/* One pass, and what is drawn from it. */
invar_status invar_running_batch_step(invar_running_batch *run) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
