/*
 * replay.h - recorded steps executed again, and compared with what was recorded.
 *
 * The run goes on from its newest checkpoint before the steps, or from its start, in a copy of its
 * ledger: the steps are a new segment there, beside the recorded ones. Plug-ins are not started;
 * the ledger has what they replied. The run's own folder is only read.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_REPLAY_REPLAY_H
#define INVAR_ENGINE_RUN_REPLAY_REPLAY_H

#include "engine/run/replay/corrected.h"
#include "engine/run/replay/recorded_keys.h"
#include "engine/run/train.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_replay {
    invar_ledger *ledger; /* open for reading */
    const invar_ledger_summary *run;
    const invar_recorded_keys *keys;
    const char *folder;                /* is there, and empty: for the copy of the ledger */
    int64_t first_step, step;          /* the first and the last to execute again */
    const char *save;                  /* folder for a checkpoint after `step`; NULL: none */
    const volatile sig_atomic_t *stop; /* nonzero: end in order; may be NULL */
    void (*progress)(void *payload, const invar_train_progress *progress); /* may be NULL */
    void (*say)(void *payload, const char *line); /* a line for people; may be NULL */
    void *payload;
} invar_replay;

typedef struct invar_replay_result {
    int64_t checkpoint_step; /* step of the checkpoint that it went on from; -1: from the start */
    int64_t first;           /* steps executed again, whole rollouts */
    int64_t last;            /* -1: none */
    int64_t compared;        /* of them */
    int64_t differs;         /* the first that differs; -1: none */
    int64_t corrected;       /* steps of version 0.1.0 with the same bits and another content */
    char what[INVAR_CORRECTED_SIZE]; /* row of `differs` that no correction explains; or "" */
    invar_digest chain;              /* at `last`, as executed now */
    char ledger[INVAR_PATH_SIZE];    /* the copy, with both executions of the steps */
} invar_replay_result;

/*
 * INVAR_E_MISMATCH: log-probabilities differ, or a plug-in would be asked something else than what
 * was recorded; INVAR_E_STATE: `stop` came first, or the steps were computed under other revisions
 * of ops (engine/record/op_revisions.h), before anything is copied. Steps that are executed to
 * other bits are no failure, but a result.
 */
invar_status invar_replay_run(invar_replay_result *out, const invar_replay *replay) INVAR_MUST_USE;

/*
 * The newest checkpoint of the run in `folder` that contains no step after `before`, is whole and
 * lies on the run's timeline; -1: none. `say` is told of those that are stepped over.
 */
invar_status invar_replay_checkpoint(int64_t *step_out, const invar_replay *replay,
                                     const char *folder, int64_t before) INVAR_MUST_USE;

/* The first step of the rollout that `step` is of. */
invar_status invar_replay_rollout(int64_t *first_out, int64_t *rollout_out,
                                  const invar_recorded_keys *keys, int64_t step) INVAR_MUST_USE;

/* A copy of the run alone in a new file. */
invar_status invar_replay_copy(const invar_replay *replay, const char *path) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
