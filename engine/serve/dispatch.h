/*
 * dispatch.h - tickets from many threads, worked off by the one that has the model.
 *
 * A ticket is the work of one request: prompts that are scored, completed, or both. Any thread
 * hands one in and waits for news of it; the thread in `run` takes it up, runs it beside all
 * others, and tells of every token. What a ticket gets does not depend on the others: its tokens
 * are a function of the weights, its prompt, its sampling and the number of the choice.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SERVE_DISPATCH_H
#define INVAR_ENGINE_SERVE_DISPATCH_H

#include <pthread.h>
#include <signal.h>

#include "engine/rollout/rollout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tokens that a choice has so far. */
typedef struct invar_ticket_choice {
    int32_t *tokens; /* (count) */
    float *logp;     /* (count) */
    int64_t count, room;
    invar_finish finish;
} invar_ticket_choice;

typedef struct invar_ticket_prompt {
    const int32_t *tokens; /* (count) borrowed */
    int64_t count;
    float *logp; /* (count - 1) of the tokens behind the first, where they are wanted */
} invar_ticket_prompt;

typedef struct invar_ticket {
    const invar_sampling *sampling; /* borrowed; max_response 0: nothing is generated */
    invar_ticket_prompt *prompts;   /* (n_prompts) */
    int64_t n_prompts;
    int64_t n;  /* choices of each */
    bool score; /* log-probs of the prompts are wanted */
    uint32_t rollout,
        draw; /* coordinates: choice i of a prompt is (rollout, draw + i); 0 at first */
    pthread_cond_t news;

    /* Under the lock of the dispatch: */
    invar_ticket_choice *choices; /* (n_prompts * n) */
    bool done;                    /* no more news: all is there, or it has failed */
    bool withdrawn;
    invar_error error; /* status INVAR_OK: none */

    /* The worker's: */
    struct invar_ticket *next;
    invar_rl_sample *samples; /* (n_prompts * n) */
    int64_t left;             /* choices that are not finished */
    bool alone;               /* it is scored beside no other: one of them was wrong */
} invar_ticket;

/*
 * Room for `n_prompts` prompts of n choices; the caller sets the prompts, sampling and score.
 * Released also after a failure, but not while it is handed in.
 */
invar_status invar_ticket_init(invar_ticket *ticket, int64_t n_prompts, int64_t n) INVAR_MUST_USE;
void invar_ticket_release(invar_ticket *ticket);

typedef struct invar_dispatch invar_dispatch;

typedef struct invar_dispatch_options {
    const invar_model *model; /* borrowed, as all of them */
    const invar_tokenizer *tokenizer;
    const invar_device *dev;
    const invar_rollout_limits *limits;
    invar_rollout *rollout; /* that generates, from `begin` to the end of `run`; nothing is scored
                               then, and the four above are not looked at. NULL: one of its own */
    int64_t context;        /* tokens of the longest sequence */
    int64_t most;           /* tickets at a time */
    invar_status (*tick)(void *payload); /* told after each pass, and while it waits; may be NULL */
    void *payload;
} invar_dispatch_options;

invar_status invar_dispatch_new(invar_dispatch **out,
                                const invar_dispatch_options *options) INVAR_MUST_USE;
void invar_dispatch_free(invar_dispatch *dispatch);

/* ---- any thread ------------------------------------------------------------------------------ */

/* INVAR_E_BUSY: there are too many. INVAR_E_STATE: no more are taken. */
invar_status invar_dispatch_submit(invar_dispatch *dispatch, invar_ticket *ticket) INVAR_MUST_USE;

/*
 * Waits for news beyond what is known: `known` tokens of all choices together, or the end. At most
 * `ms`. The lock is held when it returns, so the ticket may be read; unlock then.
 */
void invar_dispatch_wait(invar_dispatch *dispatch, invar_ticket *ticket, int64_t known, int64_t ms);
void invar_dispatch_unlock(invar_dispatch *dispatch);

/* Nobody wants it any more, or it is done. Afterwards the ticket is the caller's alone. */
void invar_dispatch_withdraw(invar_dispatch *dispatch, invar_ticket *ticket);

/* The coming end of `run`, as *stop says it, from another thread. */
void invar_dispatch_stop(invar_dispatch *dispatch);

/* Tickets that are handed in and not done. */
int64_t invar_dispatch_load(invar_dispatch *dispatch);

/* ---- the thread that has the model ----------------------------------------------------------- */

/* Before each `run` with a rollout of somebody else: it is taken, and so are tickets. */
invar_status invar_dispatch_begin(invar_dispatch *dispatch) INVAR_MUST_USE;

/*
 * Works until *stop is not 0 (NULL: until _stop); then no more tickets are taken, and those that
 * are there are finished. An error is one of the device, the model or the memory, or that of
 * `tick`, never of one ticket: all tickets have failed with it.
 */
invar_status invar_dispatch_run(invar_dispatch *dispatch,
                                const volatile sig_atomic_t *stop) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
