/*
 * train_options.h - options of a run, its progress and its summary.
 *
 * These types are below the training loop, which passes them on; train.h has the functions. An
 * option never changes a result: what does is in the recipe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_TRAIN_OPTIONS_H
#define INVAR_ENGINE_RUN_TRAIN_OPTIONS_H

#include <signal.h>
#include <stdbool.h>

#include "base/file.h"
#include "base/hash.h"
#include "engine/ranks/comm/comm.h"
#include "ledger/ledger.h"

/* key of the reference model in an identity, if the reference is a model of its own */
#define INVAR_TRAIN_REFERENCE "reference hash"

/* Progress of a run, for display only; never part of a result. */
typedef struct invar_train_progress {
    int64_t rollout, rollouts;                  /* rollouts done, and rollouts of the complete
                                                   run */
    int64_t step;                               /* optimizer steps done */
    const char *phase;                          /* "rollout" or "train" */
    int64_t samples_done, samples, tokens_done; /* progress of phase "rollout"; samples is 0 if
                                                   other ranks sample */
    bool measured;                              /* a step is complete: the fields below
                                                   describe it */
    bool compared;                              /* logp_diff_max is valid */
    bool supervised;                            /* answers of the data are learned: nothing was
                                                   sampled */
    double reward;                              /* mean reward; NaN if there are no rewards */
    double loss, grad_norm, logp_diff_max, response_len;
    double tokens_per_s, mfu, eta; /* throughput so far; NaN if unknown */
    const invar_digest *chain;
} invar_train_progress;

/*
 * Writes "reward 0.250  ", or the loss of a run without rewards; "" if nothing was learned, either.
 */
void invar_train_format_result(char *out, size_t size, const invar_train_progress *progress);

typedef struct invar_train_options {
    const char *recipe_path; /* names the run if the recipe does not */
    const char *kind;        /* kind of the run in the ledger; NULL for "train" */
    int64_t until;           /* end after the rollout of this step; -1 to end when the recipe
                                is done */
    bool fresh;              /* start over: an existing run folder is renamed */
    const char *fork;        /* folder of a run, or of its checkpoints, to fork from, or NULL */
    int64_t fork_step;       /* step of the checkpoint to fork from; INVAR_CHECKPOINT_LATEST for the
                                newest */
    bool replay;      /* execute recorded steps again: replies of plug-ins come from the ledger, no
                         plug-in is started, and nothing is evaluated */
    invar_comm *comm; /* communicator of this rank; all ranks call with the same recipe; NULL
                         for a single rank */
    int threads_for;  /* number of ranks that share the threads of this process; 0 for only
                         this one */
    int64_t (*clock_ms)(void *payload); /* clock for checkpoints by time; rank 0 calls it; NULL
                                           for the system clock */
    /* number of a received signal, or 0 if there was no signal: the run ends after the current
       rollout; may be NULL */
    const volatile sig_atomic_t *stop;
    void (*progress)(void *payload, const invar_train_progress *progress); /* may be NULL */
    /* Called with the identity before the run begins; a failure ends the run. May be NULL. */
    invar_status (*identified)(void *payload, const invar_digest *identity);
    void (*say)(void *payload, const char *line); /* prints a line for the user; may be NULL */
    void *payload;
} invar_train_options;

typedef struct invar_train_summary {
    char name[INVAR_LEDGER_NAME_BYTES + 1];
    char folder[INVAR_PATH_SIZE];
    char ledger[INVAR_PATH_SIZE];
    char uuid[INVAR_LEDGER_UUID_SIZE];
    int64_t resumed_after;            /* step of the loaded checkpoint; -1 if the run began at
                                         the start */
    int64_t forked_after;             /* step of the parent run that this run continues from;
                                         -1 if it is no fork */
    int64_t last_step;                /* last recorded step; -1 before the first one */
    invar_digest chain;               /* chain at last_step */
    int64_t steps;                    /* steps executed by this call */
    bool supervised;                  /* answers of the data are learned: nothing was sampled */
    double first_reward, last_reward; /* NaN if there are no rewards or no steps */
    double first_loss, last_loss;     /* loss of the actor; NaN if nothing was learned */
    double tokens_per_s, mfu;         /* mean over these steps; NaN if unknown */
    double worst_diff;                /* largest log-prob difference of all compared steps */
    int64_t compared; /* steps whose rollout log-probs were compared with scoring or training */
    int64_t other_content; /* steps executed again with the recorded bits but different content */
    bool off_policy;       /* a step was trained on samples of another policy */
    bool saves;            /* the run has a checkpoint folder */
    bool finished;         /* the run was done before this call, which wrote nothing */
    int stopped;           /* signal that ended the run early, or 0 */
} invar_train_summary;

#endif
