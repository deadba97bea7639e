/*
 * rollout.h - batched sampling: turns prompts into samples with tokens and log-probs.
 *
 * Execution uses a paged KV cache, continuous batching, chunked prefill, prefix sharing within a
 * group and speculative decoding. None of this changes a bit: a token depends on the weights, its
 * sequence, its random coordinates and the sampling params, and on nothing else. The order in which
 * sequences run depends on the order of the samples and on the free pages, never on a clock.
 *
 * A rollout object is not thread-safe. On a pipeline, all stages must make the same calls.
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

/* Sampling settings. They are semantic: a different value may change the sampled tokens. */
typedef struct invar_sampling_params {
    uint32_t seed;
    uint32_t purpose;        /* INVAR_PURPOSE_TRAIN or _EVAL: separates the random streams */
    float temperature;       /* 0 for greedy; log-probs are then at temperature 1 */
    int32_t top_k;           /* 0 to disable */
    float top_p;             /* 1 to disable */
    float min_p;             /* 0 to disable */
    int64_t max_response;    /* largest number of response tokens */
    int64_t max_context;     /* largest number of prompt and response tokens; 0 for the model's */
    int64_t min_response;    /* number of first response tokens for which stop ids are banned */
    const int32_t *stop_ids; /* (n_stop_ids) ids that end a response, the model's own included */
    int64_t n_stop_ids;
    const char *const *stop; /* (n_stop) stop strings */
    int64_t n_stop;
    bool skip_special; /* leave special tokens out of the response text */
} invar_sampling_params;

/* Returns true if `token` is one of sampling->stop_ids. */
bool invar_sampling_is_stop_id(const invar_sampling_params *sampling, int32_t token);

#define INVAR_PURPOSE_TRAIN 0
#define INVAR_PURPOSE_EVAL 1

/*
 * Speculative decoding: a proposer drafts tokens, and one pass of the model verifies several of
 * them (engine/sample/rollout/draft). A free setting. While hooks or an audit are active nothing is
 * drafted, because they must only see rows of the samples.
 */
typedef struct invar_speculation {
    invar_speculative_algorithm algorithm;
    int64_t tokens;                     /* drafted per pass, 1 to INVAR_SPECULATION_MAX */
    invar_ngram_proposer_window window; /* n-gram lengths, for algorithm ngram */
    const invar_model *model; /* draft model, for algorithm draft: unpartitioned, with the same
                                 vocabulary; borrowed */
} invar_speculation;

#define INVAR_SPECULATION_MAX 8

/* Returns the number of tokens drafted per pass; 0 without speculative decoding. */
static inline int64_t invar_speculation_tokens(const invar_speculation *s)
{
    return s->algorithm == INVAR_SPECULATIVE_ALGORITHM_NONE ? 0 : s->tokens;
}

#define INVAR_ROLLOUT_PAGE_SIZE 16 /* default of page_size */

/*
 * Execution settings. They are free: no value changes a bit. Defaults in parentheses are for
 * devices with memory of their own (GPUs).
 */
typedef struct invar_rollout_exec_options {
    int64_t concurrency;    /* largest number of running sequences; 0 for 64 (512) */
    int64_t prefill_chunk;  /* largest number of prefill rows in one pass; 0 for 512 (4096) */
    int64_t page_size;      /* positions per KV page; 0 for 16 */
    int64_t pages;          /* KV pages; 0 for enough to run `concurrency` sequences of the largest
                               length, within 1 GiB (a third of the free memory) */
    bool no_prefix_sharing; /* every sample prefills its own prompt */
    bool no_graphs;         /* decode passes launch op by op, without CUDA graphs */
    invar_speculation speculation;
} invar_rollout_exec_options;

typedef struct invar_rollout invar_rollout;

/*
 * Called with a payload after each pass, with the numbers of finished samples and sampled tokens.
 * Its error ends the run.
 */
typedef invar_status invar_rollout_tick(void *payload, int64_t samples_done, int64_t tokens_done);

/*
 * Creates a rollout object, which the caller frees with invar_rollout_free. The model and the
 * tokenizer are borrowed and must outlive it; `limits` is copied. Without a tokenizer (NULL),
 * samples get no text, and stop strings are rejected.
 */
invar_status invar_rollout_new(invar_rollout **out, const invar_model *model,
                               const invar_tokenizer *tokenizer, const invar_device *dev,
                               const invar_rollout_exec_options *limits) INVAR_MUST_USE;
void invar_rollout_free(invar_rollout *rollout);

/*
 * Checks sampling params against a model spec. Returns INVAR_E_INVALID if invar_rollout_run would
 * reject them for any sample. `tokenizer` may be NULL.
 */
invar_status invar_rollout_check(const invar_model_spec *spec, const invar_tokenizer *tokenizer,
                                 const invar_sampling_params *sampling) INVAR_MUST_USE;

/* Hooks that observe the values of a rollout. */
typedef struct invar_rollout_hooks {
    /* called with the values of each pass, then with `token` and `token.logp` of the sampler */
    invar_forward_hooks probe;
    /* called with probe.payload after every pass; owners of rows are invalid after it returns;
       not NULL if probe.on_value is set */
    invar_status (*on_pass_end)(void *payload);
} invar_rollout_hooks;

/* Sets the hooks of later runs; copies *hooks. NULL removes the hooks. */
void invar_rollout_set_hooks(invar_rollout *rollout, const invar_rollout_hooks *hooks);

/* Audits every matrix product and attention of later passes. `audit` is borrowed; NULL ends it. */
void invar_rollout_audit(invar_rollout *rollout, invar_audit *audit);

/*
 * Samples responses for samples[0, count). The caller sets coordinates, group and prompt tokens
 * (n_tokens = prompt_tokens); the run adds response tokens, log-probs, a mask of ones, routing,
 * text, finish and arrival. Samples of one group must have the same prompt; adjacent ones share its
 * prefill.
 *
 * A sample with a suspend_at stops there without text and finish, and a later run resumes it: the
 * current weights compute all its rows again, so its routing is entirely theirs, while log-probs
 * and mask of earlier tokens stay.
 *
 * `tick` is called after each pass with the number of finished samples and sampled tokens; it may
 * be NULL, and an error that it returns ends the run. If it calls invar_rollout_suspend, the run
 * succeeds, and unfinished samples are left as at a suspend_at, those without tokens as prompts.
 *
 * Returns INVAR_E_INVALID if a prompt leaves no space for a response or a sequence needs more pages
 * than the cache has, INVAR_E_STATE if logits are not finite. After a failure the samples can only
 * be released.
 */
invar_status invar_rollout_run(invar_rollout *rollout, invar_rl_sample *samples, int64_t count,
                               const invar_sampling_params *sampling, invar_rollout_tick *tick,
                               void *payload) INVAR_MUST_USE;

/* Suspends all unfinished samples after the current pass. Call it only from the tick of a run. */
void invar_rollout_suspend(invar_rollout *rollout);

/* ---- streams: samples that join and leave between passes ------------------------------------- */

/*
 * Opens a stream: until invar_rollout_close, samples of at most `context` tokens can be added at
 * any time between passes. No run, score or second stream is allowed meanwhile.
 */
invar_status invar_rollout_open_stream(invar_rollout *rollout, int64_t context) INVAR_MUST_USE;
void invar_rollout_close(invar_rollout *rollout);

/*
 * Adds samples[0, count) to the stream, prepared as for invar_rollout_run, one group or several.
 * Samples and sampling params are borrowed until all of them are finished or canceled; no other
 * call may use the same params object meanwhile. After a failure none of the samples has joined.
 */
invar_status invar_rollout_add(invar_rollout *rollout, invar_rl_sample *samples, int64_t count,
                               const invar_sampling_params *sampling) INVAR_MUST_USE;

/*
 * Cancels the unfinished ones of samples[0, count), which must be all samples of one call of
 * invar_rollout_add.
 */
void invar_rollout_cancel(invar_rollout *rollout, const invar_rl_sample *samples, int64_t count);

/*
 * Runs one pass of the stream: samples get tokens, and some finish. A sample whose logits are not
 * finite finishes with INVAR_FINISH_ABORT. A returned error concerns the stream, not one sample.
 */
invar_status invar_rollout_step(invar_rollout *rollout) INVAR_MUST_USE;

/*
 * Runs the passes and draws of sampling given[0, count) again, so that hooks can observe them, but
 * appends the tokens of the given samples instead of the drawn ones. The given samples do not
 * change.
 */
invar_status invar_rollout_teacher_force(invar_rollout *rollout, const invar_rl_sample *given,
                                         int64_t count, const invar_sampling_params *sampling,
                                         invar_rollout_tick *tick, void *payload) INVAR_MUST_USE;

/*
 * Computes log-probs of given sequences through the KV cache; their bits equal those of the
 * training forward. tokens[i] has n[i] tokens; logp_out[i] receives n[i] - 1 values. With a
 * prefill_chunk of 1 the sequences are decoded token by token.
 */
invar_status invar_rollout_score(invar_rollout *rollout, const int32_t *const *tokens,
                                 const int64_t *n, int64_t count, float temperature,
                                 float *const *logp_out) INVAR_MUST_USE;

/*
 * Returns `limits` with every default resolved, for `samples` samples of at most `rows` rows. The
 * default of `pages` is enough for all samples that run at a time, but at most `bytes` bytes, and
 * at most 1 GiB on devices that use host memory; it is always enough for one sample.
 */
invar_rollout_exec_options invar_rollout_resolve_options(const invar_rollout_exec_options *limits,
                                                         const invar_model *model,
                                                         const invar_device *dev, int64_t samples,
                                                         int64_t rows, int64_t bytes);

/* Returns the bytes of one KV page with resolved options, including that of a draft model. */
int64_t invar_rollout_page_bytes(const invar_rollout_exec_options *resolved,
                                 const invar_model *model);

/* Largest shapes that a rollout will be used with, for memory planning. */
typedef struct invar_rollout_max_shape {
    int64_t samples;     /* samples of one run */
    int64_t prompts;     /* distinct prompts of these samples */
    int64_t prompt_rows; /* rows of the longest prompt */
    bool resumed;        /* some samples start with a part of their response, whose rows are not
                            shared */
    int64_t rows;        /* rows of the longest sample: its tokens except the last */
} invar_rollout_max_shape;

/*
 * Allocates the memory of the largest passes and draws that can occur, and keeps what a rollout
 * keeps. The device must be a dry-run one (engine/run/memory_plan/phase_arena.h).
 */
invar_status invar_rollout_dry_run(invar_rollout *rollout, const invar_sampling_params *sampling,
                                   const invar_rollout_max_shape *max_shape) INVAR_MUST_USE;

/*
 * Sets sample->response to the text of the sampled response tokens; inserted tokens are left out.
 */
invar_status invar_rollout_decode(invar_rl_sample *sample, const invar_tokenizer *tokenizer,
                                  bool skip_special) INVAR_MUST_USE;

typedef struct invar_rollout_counters {
    int64_t prefilled;  /* rows computed for prompts */
    int64_t shared;     /* prompt rows not computed, because samples of a group share them */
    int64_t decoded;    /* rows computed after the known tokens, rows of drafts included */
    int64_t recomputed; /* rows computed again after a preemption */
    int64_t drafted;    /* draft tokens proposed */
    int64_t accepted;   /* draft tokens equal to the sampled ones */
    int64_t passes;
    int64_t max_pages_used; /* largest number of KV pages in use at a time */
} invar_rollout_counters;

/* Reads the counters of the last run, score or stream. They are never part of a result. */
void invar_rollout_get_counters(invar_rollout_counters *out, const invar_rollout *rollout);

#endif
