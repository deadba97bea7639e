/*
 * inference_engine.h - queue of generation requests, served by the thread that owns the model.
 *
 * A generation request is the work of one HTTP request: prompts that are scored, completed, or
 * both. Any thread submits one and waits for its tokens; the thread in invar_inference_engine_run
 * batches all requests continuously and publishes each new token. The tokens of a request are a
 * function of the weights, the prompt, the sampling parameters and the coordinates of the choice;
 * they do not depend on other requests or on the load.
 *
 * The lock of the engine guards the fields of a request that both sides use (see below).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_INFERENCE_ENGINE_H
#define INVAR_ENGINE_SAMPLE_SERVE_INFERENCE_ENGINE_H

#include <pthread.h>
#include <signal.h>

#include "engine/sample/rollout/rollout.h"

/* Tokens generated so far for one choice. */
typedef struct invar_generation_choice {
    int32_t *tokens; /* (count) */
    float *logp;     /* (count) */
    int64_t count, tokens_capacity, logp_capacity;
    invar_finish finish;
} invar_generation_choice;

typedef struct invar_generation_prompt {
    const int32_t *tokens; /* (count) borrowed */
    int64_t count;
    float *logp; /* (count - 1) log-probs of all tokens except the first; NULL unless they are
                    wanted */
} invar_generation_prompt;

typedef struct invar_generation_request {
    const invar_sampling_params *sampling; /* borrowed; max_response 0 if nothing is generated */
    invar_generation_prompt *prompts;      /* (n_prompts) */
    int64_t n_prompts;
    int64_t n;  /* choices of each prompt */
    bool score; /* log-probs of the prompts are wanted; cleared by the engine when computed */
    uint32_t rollout,
        draw_index; /* random coordinates: choice i of each prompt has (rollout, draw_index + i);
                       both 0 unless the caller sets them */
    pthread_cond_t progress_cond;

    /* Fields from here to `error` are guarded by the lock of the engine. */
    invar_generation_choice *choices; /* (n_prompts * n) */
    bool done;                        /* no more tokens follow: the request is complete or has
                                         failed */
    bool canceled;
    invar_error error; /* status INVAR_OK unless the request has failed */

    /* Fields from here on are private to the thread in invar_inference_engine_run. */
    struct invar_generation_request *next;
    invar_rl_sample *samples; /* (n_prompts * n) */
    int64_t n_unfinished;     /* choices that are not finished */
    bool score_alone;         /* score it alone: a batch that it was part of has failed */
} invar_generation_request;

/*
 * Allocates a request of `n_prompts` prompts with `n` choices each; the caller then sets prompts,
 * sampling and score. Release with invar_generation_request_release, also after a failure, but not
 * between submit and the end of the request.
 */
invar_status invar_generation_request_init(invar_generation_request *request, int64_t n_prompts,
                                           int64_t n) INVAR_MUST_USE;
void invar_generation_request_release(invar_generation_request *request);

typedef struct invar_inference_engine invar_inference_engine;

typedef struct invar_inference_engine_options {
    const invar_model *model; /* this and the other pointers are borrowed */
    const invar_tokenizer *tokenizer;
    const invar_device *dev;
    const invar_rollout_exec_options *limits;
    invar_rollout *rollout; /* Rollout that generates, between _begin and the end of
                                            _run. If it is set, requests cannot be scored, and
                                            model, tokenizer, dev and limits are not used. If it is
                                            NULL, the engine creates its own. */
    int64_t context;        /* tokens of the longest sequence, prompt and response
                                            together */
    int64_t max_requests;   /* largest number of requests at a time */
    invar_status (*on_progress)(
        void *payload); /* called after each pass, and regularly while the engine
                                            is idle; a failure ends _run. May be NULL. */
    void *payload;
} invar_inference_engine_options;

/* The caller frees *out with invar_inference_engine_free, after _run has returned. */
invar_status
invar_inference_engine_new(invar_inference_engine **out,
                           const invar_inference_engine_options *options) INVAR_MUST_USE;
void invar_inference_engine_free(invar_inference_engine *engine);

/* ---- called by any thread -------------------------------------------------------------------- */

/*
 * Queues a request; *request must stay in place until the request is done. Returns INVAR_E_BUSY if
 * max_requests are in progress, INVAR_E_STATE if the engine accepts none.
 */
invar_status invar_inference_engine_submit(invar_inference_engine *engine,
                                           invar_generation_request *request) INVAR_MUST_USE;

/*
 * Waits at most `ms` milliseconds until the choices have more than `known` tokens together, or the
 * request is done. Returns with the lock of the engine held, so that the caller may read the
 * request; call invar_inference_engine_unlock afterwards.
 */
void invar_inference_engine_wait(invar_inference_engine *engine, invar_generation_request *request,
                                 int64_t known, int64_t ms);
void invar_inference_engine_unlock(invar_inference_engine *engine);

/* Cancels the request, unless it is done, and waits until the engine no longer uses it. */
void invar_inference_engine_cancel(invar_inference_engine *engine,
                                   invar_generation_request *request);

/* Makes _run finish the requests in progress and return. Any thread may call it. */
void invar_inference_engine_stop(invar_inference_engine *engine);

/* Returns the number of requests that were submitted and are not done. */
int64_t invar_inference_engine_load(invar_inference_engine *engine);

/* ---- called by the thread that owns the model ------------------------------------------------ */

/*
 * Opens options.rollout for generation and accepts requests. Call it before each _run, but only if
 * options.rollout is set.
 */
invar_status invar_inference_engine_begin(invar_inference_engine *engine) INVAR_MUST_USE;

/*
 * Serves requests until *stop is not 0 (`stop` may be NULL) or _stop was called; then accepts no
 * more and finishes those in progress. Returns an error of the device, the model, the memory or
 * on_progress, never that of one request; all requests have then failed with it.
 */
invar_status invar_inference_engine_run(invar_inference_engine *engine,
                                        const volatile sig_atomic_t *stop) INVAR_MUST_USE;

#endif
