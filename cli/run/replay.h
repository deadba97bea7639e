/*
 * replay.h - context shared by the commands replay and pack: run, keys, scratch folder, progress.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_REPLAY_H
#define INVAR_CLI_RUN_REPLAY_H

#include "base/console/progress.h"
#include "cli/ledger/locate.h"
#include "engine/config/config.h"
#include "engine/run/replay/replay.h"

/*
 * A replay and everything that it borrows from. Zero-initialize before use. Release with
 * invar_replay_context_close, also after a failure.
 */
typedef struct invar_replay_context {
    char scratch[INVAR_PATH_SIZE];
    bool kept; /* the user keeps the scratch folder */
    char folder[INVAR_PATH_SIZE];
    invar_located located;
    invar_recorded_keys keys;
    invar_progress *progress;
    invar_replay replay;
} invar_replay_context;

/*
 * Creates a scratch folder: `keep`, which must be new or empty (otherwise INVAR_E_INVALID), or a
 * temporary one. `out` is empty after a failure.
 *
 * invar_replay_scratch_remove removes a scratch folder and reports a failure on stderr only.
 */
invar_status invar_replay_scratch(char out[INVAR_PATH_SIZE], const char *keep) INVAR_MUST_USE;
void invar_replay_scratch_remove(const char *scratch);

/*
 * Creates the scratch folder, `keep` or a temporary one that is removed on close, and in it the
 * folder of the replay. Returns INVAR_E_INVALID if `keep` is not empty.
 */
invar_status invar_replay_context_open(invar_replay_context *context,
                                       const char *keep) INVAR_MUST_USE;

/*
 * Locates the run that `word` names, reads the keys of its `step` and overrides them with `flags`.
 */
invar_status invar_replay_context_run(invar_replay_context *context, const char *word,
                                      const invar_config *flags, int64_t step) INVAR_MUST_USE;

/*
 * Like invar_replay_context_run, if run and keys are known already: applies the flags and fills
 * context->replay. Installs the handlers of invar_interactive_catch_signals.
 */
invar_status invar_replay_context_set(invar_replay_context *context, const invar_config *flags,
                                      int64_t step) INVAR_MUST_USE;

/*
 * Returns the exit code: that of the signal that stopped the command, that of a failure, or `code`.
 */
int invar_replay_exit(invar_status status, int code);

/* Releases the context. A failure to remove the scratch folder is reported on stderr only. */
void invar_replay_context_close(invar_replay_context *context);

#endif
