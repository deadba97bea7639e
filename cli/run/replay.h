/*
 * replay.h - what the verbs replay and pack share: a run, a scratch folder, lines for people.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_REPLAY_H
#define INVAR_CLI_RUN_REPLAY_H

#include "base/console/progress.h"
#include "cli/ledger/locate.h"
#include "engine/run/replay/replay.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A replay and all that it borrows from. Zeroed at first; close. */
typedef struct invar_replay_context {
    char scratch[INVAR_PATH_SIZE];
    bool kept; /* the scratch folder stays */
    char folder[INVAR_PATH_SIZE];
    invar_located located;
    invar_recorded_keys keys;
    invar_progress *progress;
    invar_replay replay;
} invar_replay_context;

/*
 * A scratch folder: `keep`, which is new or empty (otherwise INVAR_E_INVALID), or a fresh one. ""
 * when it fails. The second function removes one; a failure is told, no more.
 */
invar_status invar_replay_scratch(char out[INVAR_PATH_SIZE], const char *keep) INVAR_MUST_USE;
void invar_replay_scratch_remove(const char *scratch);

/*
 * A scratch folder, `keep` or one that goes with the scene, and in it the folder of the replay.
 * INVAR_E_INVALID: `keep` has something in it.
 */
invar_status invar_replay_context_open(invar_replay_context *scene,
                                       const char *keep) INVAR_MUST_USE;

/* The run that `word` names, and the keys of its `step` with `flags` over them. */
invar_status invar_replay_context_run(invar_replay_context *scene, const char *word,
                                      const invar_recipe *flags, int64_t step) INVAR_MUST_USE;

/* The same where run and keys are known: flags, and what *replay borrows. */
invar_status invar_replay_context_set(invar_replay_context *scene, const invar_recipe *flags,
                                      int64_t step) INVAR_MUST_USE;

/* The exit code: of the signal that stopped it, of a failure, or `code`. */
int invar_replay_exit(invar_status status, int code);

/* A failure to remove the scratch folder is told, no more. */
void invar_replay_context_close(invar_replay_context *scene);

#ifdef __cplusplus
}
#endif
#endif
