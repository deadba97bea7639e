/*
 * inference_engine.h - tickets from many threads, worked off by the one that has the model.
 *
 * A ticket is the work of one request: prompts that are scored, completed, or both. Any thread
 * hands one in and waits for news of it; the thread in `run` takes it up, runs it beside all
 * others, and tells of every token. What a ticket gets does not depend on the others: its tokens
 * are a function of the weights, its prompt, its sampling and the number of the choice.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SERVE_INFERENCE_ENGINE_H
#define INVAR_ENGINE_SAMPLE_SERVE_INFERENCE_ENGINE_H

#include <pthread.h>
#include <signal.h>

#include "engine/sample/rollout/rollout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tokens that a choice has so far. */
typedef struct invar_generation_choice {
    int32_t *tokens; /* (count) */
    float *logp;     /* (count) */
    int64_t count, room;
    invar_finish finish;
} invar_generation_choice;

typedef struct invar_generation_prompt {
    const int32_t *tokens; /* (count) borrowed */
    int64_t count;
    float *logp; /* (count - 1) of the tokens behind the first, where they are wanted */
} invar_generation_prompt;

typedef struct invar_generation_request {
    const invar_sampling_params *sampling; /* borrowed; max_response 0: nothing is generated */
    invar_generation_prompt *prompts;      /* (n_prompts) */
    int64_t n_prompts;
    int64_t n;  /* choices of each */
    bool score; /* log-probs of the prompts are wanted */
    uint32_t rollout,
        draw; /* coordinates: choice i of a prompt is (rollout, draw + i); 0 at first */
    pthread_cond_t progress_cond;

    /* Under the lock of the dispatch: */
    invar_generation_choice *choices; /* (n_prompts * n) */
    bool done;                        /* no more news: all is there, or it has failed */
    bool canceled;
    invar_error error; /* status INVAR_OK: none */

    /* The worker's: */
    struct invar_generation_request *next;
    invar_rl_sample *samples; /* (n_prompts * n) */
    int64_t left;             /* choices that are not finished */
    bool score_alone;         /* it is scored beside no other: one of them was wrong */
} invar_generation_request;

/*
 * Room for `n_prompts` prompts of n choices; the caller sets the prompts, sampling and score.
 * Released also after a failure, but not while it is handed in.
 */
invar_status invar_generation_request_init(invar_generation_request *ticket, int64_t n_prompts,
                                           int64_t n) INVAR_MUST_USE;
void invar_generation_request_release(invar_generation_request *ticket);

typedef struct invar_inference_engine invar_inference_engine;

typedef struct invar_inference_engine_options {
    const invar_model *model; /* borrowed, as all of them */
    const invar_tokenizer *tokenizer;
    const invar_device *dev;
    const invar_rollout_exec_options *limits;
    invar_rollout *rollout; /* that generates, from `begin` to the end of `run`; nothing is scored
                               then, and the four above are not looked at. NULL: one of its own */
    int64_t context;        /* tokens of the longest sequence */
    int64_t max_requests;   /* tickets at a time */
    invar_status (*tick)(void *payload); /* told after each pass, and while it waits; may be NULL */
    void *payload;
} invar_inference_engine_options;

invar_status
invar_inference_engine_new(invar_inference_engine **out,
                           const invar_inference_engine_options *options) INVAR_MUST_USE;
void invar_inference_engine_free(invar_inference_engine *dispatch);

/* ---- any thread ------------------------------------------------------------------------------ */

/* INVAR_E_BUSY: there are too many. INVAR_E_STATE: no more are taken. */
invar_status invar_inference_engine_submit(invar_inference_engine *dispatch,
                                           invar_generation_request *ticket) INVAR_MUST_USE;

/*
 * Waits for news beyond what is known: `known` tokens of all choices together, or the end. At most
 * `ms`. The lock is held when it returns, so the ticket may be read; unlock then.
 */
void invar_inference_engine_wait(invar_inference_engine *dispatch, invar_generation_request *ticket,
                                 int64_t known, int64_t ms);
void invar_inference_engine_unlock(invar_inference_engine *dispatch);

/* Nobody wants it any more, or it is done. Afterwards the ticket is the caller's alone. */
void invar_inference_engine_cancel(invar_inference_engine *dispatch,
                                   invar_generation_request *ticket);

/* The coming end of `run`, as *stop says it, from another thread. */
void invar_inference_engine_stop(invar_inference_engine *dispatch);

/* Tickets that are handed in and not done. */
int64_t invar_inference_engine_load(invar_inference_engine *dispatch);

/* ---- the thread that has the model ----------------------------------------------------------- */

/* Before each `run` with a rollout of somebody else: it is taken, and so are tickets. */
invar_status invar_inference_engine_begin(invar_inference_engine *dispatch) INVAR_MUST_USE;

/*
 * Works until *stop is not 0 (NULL: until _stop); then no more tickets are taken, and those that
 * are there are finished. An error is one of the device, the model or the memory, or that of
 * `tick`, never of one ticket: all tickets have failed with it.
 */
invar_status invar_inference_engine_run(invar_inference_engine *dispatch,
                                        const volatile sig_atomic_t *stop) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
