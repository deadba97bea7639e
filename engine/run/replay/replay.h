/*
 * replay.h - executes recorded steps again and compares them with what was recorded.
 *
 * The run continues from its newest checkpoint before the steps, or from its start, in a copy of
 * its ledger: the executed steps are a new segment there, next to the recorded ones. Plug-ins are
 * not started; the ledger has their replies. The run's own folder is only read.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_REPLAY_REPLAY_H
#define INVAR_ENGINE_RUN_REPLAY_REPLAY_H

#include "engine/run/replay/corrected.h"
#include "engine/run/replay/recorded_keys.h"
#include "engine/run/train.h"

typedef struct invar_replay {
    invar_ledger *ledger; /* open for reading */
    const invar_ledger_summary *run;
    const invar_recorded_keys *keys;
    const char *folder;                /* empty folder for the copy of the ledger */
    int64_t first_step, step;          /* first and last step to execute again */
    const char *save;                  /* folder for a checkpoint after `step`, or NULL */
    const volatile sig_atomic_t *stop; /* nonzero to end in order; may be NULL */
    void (*progress)(void *payload, const invar_train_progress *progress); /* may be NULL */
    void (*say)(void *payload, const char *line); /* prints a line for the user; may be NULL */
    void *payload;
} invar_replay;

typedef struct invar_replay_result {
    int64_t checkpoint_step; /* step of the checkpoint that it started from; -1 if from the start */
    int64_t first;           /* first executed step; complete rollouts are executed */
    int64_t last;            /* last executed step, or -1 */
    int64_t compared;        /* number of executed steps that were recorded */
    int64_t differs;         /* first step that differs, or -1 */
    int64_t corrected;       /* steps of version 0.1.0 with the same bits and other content */
    char what[INVAR_CORRECTED_SIZE]; /* first row of `differs` that no correction explains, or "" */
    invar_digest chain;              /* chain at `last`, as executed now */
    char ledger[INVAR_PATH_SIZE];    /* path of the copy, with both executions of the steps */
} invar_replay_result;

/*
 * Executes the steps again. A step with other bits is a result, not an error. Returns
 * INVAR_E_MISMATCH if log-probs differ or a plug-in would get another request than the recorded
 * one, and INVAR_E_STATE if `stop` ended the run early or the steps were computed under other op
 * revisions (engine/record/op_revisions.h); the latter is found before anything is copied.
 */
invar_status invar_replay_run(invar_replay_result *out, const invar_replay *replay) INVAR_MUST_USE;

/*
 * *step_out = step of the newest checkpoint in `folder` that contains no step after `before`, is
 * complete, has optimizer moments, and lies on the run's timeline; -1 without one. Reports skipped
 * checkpoints to `say`.
 */
invar_status invar_replay_checkpoint(int64_t *step_out, const invar_replay *replay,
                                     const char *folder, int64_t before) INVAR_MUST_USE;

/*
 * *rollout_out = number of the rollout to which `step` belongs, *first_out = the first step of that
 * rollout.
 */
invar_status invar_replay_rollout(int64_t *first_out, int64_t *rollout_out,
                                  const invar_recorded_keys *keys, int64_t step) INVAR_MUST_USE;

/* Copies the run, without other runs of the ledger, to a new file. */
invar_status invar_replay_copy(const invar_replay *replay, const char *path) INVAR_MUST_USE;

#endif
