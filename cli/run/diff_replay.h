/*
 * diff_replay.h - the step at which two runs part, executed again with every op recorded.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_DIFF_REPLAY_H
#define INVAR_CLI_RUN_DIFF_REPLAY_H

#include "ledger/view/diff/diff.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_diff_replay {
    const char *ledgers[2];  /* paths of those of A and B */
    const char *programs[2]; /* that execute A and B again; NULL: this one */
    const char **flags;      /* keys for both of them, ended by NULL */
    const char *keep;        /* a new or empty folder for their ledgers; NULL: they go */
} invar_diff_replay;

/*
 * From the diff of two runs that of their step executed again, which borrows texts from it; NULL
 * when no tensor differs. Where the first difference is in what was sampled, B is executed once
 * more with the samples of A: the op behind the tokens shows then. INVAR_E_MISMATCH: a program
 * gives other bits than were recorded, so that it says nothing about the run.
 */
invar_status invar_diff_replay_runs(invar_diff **out, const invar_diff *coarse,
                                    const invar_diff_replay *replay) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
