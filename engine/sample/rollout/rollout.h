/*
 * rollout.h - generation: prompts in, samples out.
 *
 * A paged KV cache, continuous batching, chunked prefill, one prefill per group whose pages its
 * samples share. All of that is execution and changes no bit: a token depends on the weights, its
 * sequence, its coordinates and the sampling settings, on nothing else. Which sequence runs when is
 * decided by the order of samples and the free pages, never by a clock.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_ROLLOUT_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_ROLLOUT_H

#include "engine/config/choices.h"
#include "engine/model/forward.h"
#include "engine/rl/sample.h"
#include "engine/sample/rollout/draft/ngram.h"
#include "engine/text/tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Semantic. */
typedef struct invar_sampling_params {
    uint32_t seed;
    uint32_t purpose;  /* keeps training and evaluation apart; below INVAR_PHILOX_PURPOSES */
    float temperature; /* 0: the best token; log-probs are then at temperature 1 */
    int32_t top_k;
    float top_p;
    float min_p;
    int64_t max_response;    /* tokens */
    int64_t max_context;     /* prompt + response; 0: the model's */
    int64_t min_response;    /* the first tokens that are no end: their draws leave out stop ids */
    const int32_t *stop_ids; /* (n_stop_ids), the model's own ends included */
    int64_t n_stop_ids;
    const char *const *stop; /* (n_stop) strings */
    int64_t n_stop;
    bool skip_special; /* in the text of the response */
} invar_sampling_params;

/* True for a token of stop_ids. */
bool invar_sampling_is_stop_id(const invar_sampling_params *sampling, int32_t token);

#define INVAR_PURPOSE_TRAIN 0
#define INVAR_PURPOSE_EVAL 1

/*
 * Free: tokens are guessed, and the pass that draws them verifies them, several at a time
 * (engine/sample/rollout/draft). Where somebody watches or audits a rollout, nothing is guessed:
 * shown are rows that count.
 */
typedef struct invar_speculation {
    invar_speculative_algorithm algorithm;
    int64_t tokens;                     /* guessed at a time: 1 to INVAR_SPECULATION_MAX */
    invar_ngram_proposer_window window; /* of ngram */
    const invar_model *model; /* of draft: a whole one with the same vocabulary; borrowed */
} invar_speculation;

#define INVAR_SPECULATION_MAX 8

/* Tokens guessed at a time; 0: none. */
static inline int64_t invar_speculation_tokens(const invar_speculation *s)
{
    return s->algorithm == INVAR_SPECULATIVE_ALGORITHM_NONE ? 0 : s->tokens;
}

#define INVAR_ROLLOUT_PAGE_SIZE 16 /* where it is left open */

/* Free: no value of these changes a bit. In brackets: where the device's memory is far. */
typedef struct invar_rollout_exec_options {
    int64_t concurrency;    /* sequences at a time; 0: as the cache has room, at most 64 (512) */
    int64_t prefill_chunk;  /* rows of prefill in one pass; 0: 512 (4096) */
    int64_t page_size;      /* positions per page; 0: 16 */
    int64_t pages;          /* 0: for `concurrency` longest sequences, at most 1 GiB (a third of */
                            /* what is free) */
    bool no_prefix_sharing; /* every sample prefills its own prompt */
    bool no_graphs;         /* ops of decoding are launched one by one */
    invar_speculation speculation;
} invar_rollout_exec_options;

typedef struct invar_rollout invar_rollout;

/* Model and tokenizer are borrowed. Without a tokenizer: no text and no stop strings. */
invar_status invar_rollout_new(invar_rollout **out, const invar_model *model,
                               const invar_tokenizer *tokenizer, const invar_device *dev,
                               const invar_rollout_exec_options *limits) INVAR_MUST_USE;
void invar_rollout_free(invar_rollout *rollout);

/*
 * Fails if invar_rollout_generate would refuse the sampling for any samples of a model with this
 * spec. `tokenizer` may be NULL.
 */
invar_status invar_rollout_check(const invar_model_spec *spec, const invar_tokenizer *tokenizer,
                                 const invar_sampling_params *sampling) INVAR_MUST_USE;

/* Who looks at a rollout. */
typedef struct invar_rollout_hooks {
    /* Shown is what the passes compute, and `token` and `token.logp`, which the sampler draws. */
    invar_forward_hooks probe;
    invar_status (*settle)(void *payload); /* after every pass: owners are void afterwards */
} invar_rollout_hooks;

/* Shows activations of the coming runs; NULL ends it. */
void invar_rollout_watch(invar_rollout *rollout, const invar_rollout_hooks *watcher);

/* Of all products and attention; borrowed, NULL ends it. */
void invar_rollout_audit(invar_rollout *rollout, invar_audit *audit);

/*
 * Completes samples [0, count): each has its coordinates, prompt tokens (n_tokens =
 * prompt_tokens) and group set; gets response tokens, log-probs, mask of ones, routing, text,
 * finish and arrival. Samples of one group have the same prompt and share it when they are
 * neighbours. One with a `pause` is left there, without text and finish, and a later run goes on
 * with it: the weights of now compute all its rows anew, so its routing is theirs altogether;
 * log-probs and mask of the tokens that it has stay as they are.
 *
 * `tick` may be NULL: it is told after each pass how many samples and tokens are done, and may ask
 * for an end by returning an error. After a failure the samples are fit for release only. Where it
 * calls invar_rollout_suspend, the run ends well, and samples that are not done are left as at a
 * `pause`: with the tokens that they have, or, where they have none, as prompts.
 *
 * INVAR_E_INVALID where a prompt leaves no room, or a sequence needs more pages than there are;
 * INVAR_E_STATE where logits are not finite.
 */
invar_status invar_rollout_run(invar_rollout *rollout, invar_rl_sample *samples, int64_t count,
                               const invar_sampling_params *sampling,
                               invar_status (*tick)(void *payload, int64_t samples_done,
                                                    int64_t tokens_done),
                               void *payload) INVAR_MUST_USE;

/* From the tick of a run alone. */
void invar_rollout_suspend(invar_rollout *rollout);

/* ---- samples that join and leave ------------------------------------------------------------- */

/*
 * From now on samples of at most `context` tokens may be added, until `close`; meanwhile the
 * rollout does nothing else.
 */
invar_status invar_rollout_open_stream(invar_rollout *rollout, int64_t context) INVAR_MUST_USE;
void invar_rollout_close(invar_rollout *rollout);

/*
 * Samples [0, count) as for _run, one group or several, join. They and the sampling, which is
 * theirs alone, are borrowed until all of them are finished or dropped. After a failure none has
 * joined.
 */
invar_status invar_rollout_add(invar_rollout *rollout, invar_rl_sample *samples, int64_t count,
                               const invar_sampling_params *sampling) INVAR_MUST_USE;

/* Of samples [0, count), all that `add` was given at once, those that are not finished leave. */
void invar_rollout_cancel(invar_rollout *rollout, const invar_rl_sample *samples, int64_t count);

/*
 * One pass: samples get tokens, and some are finished. One whose logits are not finite is finished
 * as INVAR_FINISH_ABORT. An error is no sample's.
 */
invar_status invar_rollout_step(invar_rollout *rollout) INVAR_MUST_USE;

/*
 * Runs as if [0, count) were being sampled, for those who watch: the same passes and draws, but
 * behind each draw the next token is that of the given sample, which stays as it is.
 */
invar_status invar_rollout_teacher_force(invar_rollout *rollout, const invar_rl_sample *given,
                                         int64_t count, const invar_sampling_params *sampling,
                                         invar_status (*tick)(void *payload, int64_t samples_done,
                                                              int64_t tokens_done),
                                         void *payload) INVAR_MUST_USE;

/*
 * Log-probabilities of given sequences through the cache: the same bits as the training forward.
 * tokens[i] has n[i] tokens; logp_out[i] gets n[i] - 1 numbers. chunk 1 is decoding one by one.
 */
invar_status invar_rollout_score(invar_rollout *rollout, const int32_t *const *tokens,
                                 const int64_t *n, int64_t count, float temperature,
                                 float *const *logp_out) INVAR_MUST_USE;

/*
 * The limits with nothing left open, for `samples` of at most `rows` rows: pages for as many of
 * them as run at a time, within `bytes` and, where the device's memory is near, 1 GiB; at least for
 * one.
 */
invar_rollout_exec_options invar_rollout_resolve_options(const invar_rollout_exec_options *limits,
                                                         const invar_model *model,
                                                         const invar_device *dev, int64_t samples,
                                                         int64_t rows, int64_t bytes);

/* Bytes of a page of such limits, of a draft model's, too. */
int64_t invar_rollout_page_bytes(const invar_rollout_exec_options *settled,
                                 const invar_model *model);

/* The most that will be asked for. */
typedef struct invar_rollout_max_shape {
    int64_t samples;     /* of a run, */
    int64_t prompts;     /* and how many different prompts these have */
    int64_t prompt_rows; /* of the longest prompt */
    bool resumed;        /* some come with a part of their response, rows of their own */
    int64_t rows;        /* of the longest sample, without its last token */
} invar_rollout_max_shape;

/*
 * On a stage that is dry (engine/run/memory_plan/phase_arena.h): takes the memory of the largest
 * passes and draws that can occur, and keeps what a rollout keeps.
 */
invar_status invar_rollout_dry_run(invar_rollout *rollout, const invar_sampling_params *sampling,
                                   const invar_rollout_max_shape *most) INVAR_MUST_USE;

/* The text of what was drawn of its response, without what was inserted. */
invar_status invar_rollout_decode(invar_rl_sample *sample, const invar_tokenizer *tokenizer,
                                  bool skip_special) INVAR_MUST_USE;

typedef struct invar_rollout_counters {
    int64_t prefilled;  /* rows computed for prompts */
    int64_t shared;     /* rows of prompts that were not, because a group shares them */
    int64_t decoded;    /* rows computed one by one, guesses behind them included */
    int64_t recomputed; /* rows computed again, because their pages were needed by other samples */
    int64_t drafted;    /* tokens guessed, */
    int64_t accepted;   /* and those that were drawn then */
    int64_t passes;
    int64_t most_pages;
} invar_rollout_counters;

/* Of the last run or score; never part of a result. */
void invar_rollout_get_counters(invar_rollout_counters *out, const invar_rollout *rollout);

#ifdef __cplusplus
}
#endif
#endif
