/*
 * diff_replay.h - executes the diverging step of two runs again with every op recorded.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_DIFF_REPLAY_H
#define INVAR_CLI_RUN_DIFF_REPLAY_H

#include "ledger/view/diff/diff.h"

typedef struct invar_diff_replay {
    const char *ledgers[2];  /* paths of the ledgers of A and B */
    const char *programs[2]; /* programs that execute A and B; NULL for the running program */
    const char **flags;      /* recipe keys for both executions, NULL-terminated */
    const char *keep;        /* new or empty folder in which the new ledgers are kept; NULL to
                                remove them */
} invar_diff_replay;

/*
 * Executes the diverging step of `coarse`, the diff of two runs, again and returns the diff of the
 * executions in *out, which borrows texts from `coarse`. *out is NULL if no tensor differs. If the
 * first difference is in the sampled tokens, B runs once more with the samples of A. Returns
 * INVAR_E_MISMATCH if a program does not reproduce the recorded bits, INVAR_E_INVALID if a run
 * of `coarse` contradicts itself. The caller frees *out with invar_diff_free.
 */
invar_status invar_diff_replay_runs(invar_diff **out, const invar_diff *coarse,
                                    const invar_diff_replay *replay) INVAR_MUST_USE;

#endif
