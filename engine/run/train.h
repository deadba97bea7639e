/*
 * train.h - a training run: rollout, reward, advantage, train step, hash, ledger, checkpoint.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_TRAIN_H
#define INVAR_ENGINE_RUN_TRAIN_H

#include <signal.h>
#include <stdbool.h>

#include "base/file.h"
#include "base/recipe/recipe.h"
#include "engine/ranks/comm/comm.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The pair of an identity that a run has whose reference is a model of its own. */
#define INVAR_TRAIN_REFERENCE "reference hash"

/* What can be shown while it runs; never part of a result. */
typedef struct invar_train_progress {
    int64_t rollout, rollouts;                  /* done, of */
    int64_t step;                               /* done in all */
    const char *phase;                          /* "rollout", "train", ... */
    int64_t samples_done, samples, tokens_done; /* of the phase rollout; samples 0: others sample */
    bool measured;                              /* a step is done: the numbers below are its own */
    bool compared;                              /* logp_diff_max is one of them */
    bool supervised;                            /* answers are learned: nothing was sampled */
    double reward;                              /* NaN: nobody gave one, and loss is shown */
    double loss, grad_norm, logp_diff_max, response_len;
    double tokens_per_s, mfu, eta; /* of the pace; NaN: unknown */
    const invar_digest *chain;
} invar_train_progress;

/* "reward 0.250  ", or the loss of a run without rewards; "" if nothing was learned, either. */
void invar_train_format_result(char *out, size_t size, const invar_train_progress *progress);

typedef struct invar_train_options {
    const char *recipe_path; /* names the run where the recipe does not */
    const char *kind;        /* of the run in the ledger; NULL: "train" */
    int64_t until;           /* end after the rollout of this step; -1: when the recipe is done */
    bool fresh;              /* a run that is there already gets another name */
    const char *fork;  /* a run, or its checkpoints, that a new one goes on from; NULL: none */
    int64_t fork_step; /* of which checkpoint; INVAR_CHECKPOINT_LATEST: the newest */
    bool replay; /* recorded steps again: plug-ins are answered from the ledger and not started,
                    nothing is evaluated */
    invar_comm *comm; /* this rank's; all ranks call with the same recipe; NULL: there is one */
    int threads_for;  /* so many ranks share the threads of this process; 0: only this one */
    int64_t (*clock_ms)(void *payload); /* decides when checkpoints are saved by time; asked by rank
                                           0; NULL for the clock of the system */
    const volatile sig_atomic_t
        *stop; /* a signal's number: end in order after the current rollout; may be NULL */
    void (*progress)(void *payload, const invar_train_progress *progress); /* may be NULL */
    /* What the run is asked for, as soon as it is known and before it begins, which a failure
       prevents; may be NULL. */
    invar_status (*identified)(void *payload, const invar_digest *identity);
    void (*say)(void *payload, const char *line); /* a line for people; may be NULL */
    void *payload;
} invar_train_options;

typedef struct invar_train_summary {
    char name[INVAR_LEDGER_NAME_BYTES + 1];
    char folder[INVAR_PATH_SIZE];
    char ledger[INVAR_PATH_SIZE];
    char uuid[INVAR_LEDGER_UUID_SIZE];
    int64_t resumed_after;            /* step of the checkpoint; -1: from the start */
    int64_t forked_after;             /* step of the parent that the run goes on from; -1: none */
    int64_t last_step;                /* -1: none */
    invar_digest chain;               /* there */
    int64_t steps;                    /* executed by this call */
    bool supervised;                  /* answers are learned: nothing was sampled */
    double first_reward, last_reward; /* NaN if nobody gave rewards, or there are no steps */
    double first_loss, last_loss;     /* of the actor; NaN if nothing was learned */
    double tokens_per_s, mfu;         /* of these steps; NaN: unknown */
    double worst_diff;                /* largest log-prob difference of all steps compared */
    int64_t compared; /* steps: what they were trained on had the weights' log-probs, bit by bit */
    int64_t other_content; /* steps executed again with the recorded bits and another content */
    bool off_policy;       /* another policy had sampled what a step was trained on */
    bool saves;            /* it has a folder of checkpoints */
    bool finished;         /* all was done before this call, which wrote nothing */
    int stopped;           /* the signal that ended it before its time; 0: none did */
} invar_train_summary;

/*
 * The whole run. INVAR_E_MISMATCH: log-probabilities differed, or a checkpoint and the ledger
 * disagree. Whatever fails, the ledger holds every step that was done, and a run with checkpoints
 * goes on from the last one when it is started again.
 *
 * Of several ranks rank 0 writes all there is to write, and `out` of the others has no chain. A
 * failure of one ends all.
 */
invar_status invar_train(invar_train_summary *out, const invar_recipe *recipe,
                         const invar_train_options *options) INVAR_MUST_USE;

/* What this rank's run would be given. */
typedef struct invar_train_inputs {
    invar_digest identity, weights;
    invar_digest data; /* zero: there is no prompt-data */
    int threads;
    bool differ; /* the ranks have found together that one of them is another run */
} invar_train_inputs;

/*
 * As far as a run goes before it writes: reads data and weights, plans its memory, and compares
 * the ranks. INVAR_E_STATE with `differ` says on all of them which rank differs, and in what. Any
 * other failure of a rank ends all.
 */
invar_status invar_train_check(invar_train_inputs *out, const invar_recipe *recipe,
                               const invar_train_options *options) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
