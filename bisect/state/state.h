/*
 * state.h - durable state of one bisect: the case and the result of every trial.
 *     # invar bisect 1
 *     repo /home/me/project          the case: one line per field, several for a list
 *     good 1d9f...
 *     ...
 *     recipe-line seed = 1           the recipe text; later changes of the file have no effect
 *
 *     trial COMMIT TREE BINARY ATTEMPT ROLE VERDICT VALUE SOURCE DIVERGED_AT EXIT_CODE BUILD_MS
 *           RUN_MS LEDGER REASON     on one line
 *     until 7                        the step at which the ends diverge
 *     done                           the bisect is finished
 *
 * The file is bisects/ID/state in the workspace; ID is the hash of the first part, up to the empty
 * line. Lines are only appended, and each is synced before it counts. A last line that was cut off
 * by a kill is removed. Words are escaped: \\ \n \s (a blank) and \e (an empty word).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_STATE_STATE_H
#define INVAR_BISECT_STATE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/status.h"
#include "bisect/bisect.h"

/* A trial as the state file stores it. */
typedef struct invar_bisect_state_trial {
    invar_bisect_trial trial;
    char tree[INVAR_OID_SIZE];
    char binary[INVAR_DIGEST_HEX_SIZE]; /* digest of the program; empty if the case names no
                                           program */
    int64_t attempt;                    /* 0 for the first trial of a commit; 1 for the
                                           confirmation */
} invar_bisect_state_trial;

/* A state in memory. `what` borrows its strings and lists from the memory of the state. */
typedef struct invar_bisect_state {
    char id[INVAR_DIGEST_HEX_SIZE];
    char folder[INVAR_PATH_SIZE]; /* bisects/ID; empty if the state was read from a file */
    char path[INVAR_PATH_SIZE];
    int fd;                 /* locked descriptor for appending; -1 if the state is read-only */
    char *text;             /* first part of the file, cut into strings; owned */
    invar_bisect_case what; /* `recipe` is the path that the user gave */
    const char **lists;     /* storage for the lists of `what`; owned */
    char *recipe;           /* text of the recipe; NULL if the case runs a command; owned */
    invar_bisect_state_trial *trials; /* (count) in file order; moves when one is added */
    size_t count;
    int64_t capacity;
    int64_t until; /* step at which the ends diverge; -1 if it is unknown */
    bool finished;
} invar_bisect_state;

/*
 * Opens or creates the state of this case below `folder` (bisects/ of a workspace) for exclusive
 * use. `good` and `bad` of the case are object ids. Returns INVAR_E_BUSY if another process has it
 * open, and INVAR_E_CORRUPT if the file is damaged other than by a kill. Close *out with
 * invar_bisect_state_close.
 */
invar_status invar_bisect_state_open(invar_bisect_state **out, const char *folder,
                                     const invar_bisect_case *what) INVAR_MUST_USE;

/* Reads a state from any file, without a lock. The result cannot be appended to. */
invar_status invar_bisect_state_read(invar_bisect_state **out, const char *path) INVAR_MUST_USE;
void invar_bisect_state_close(invar_bisect_state *state); /* `state` may be NULL */

/* Returns the recorded trial of a commit, or NULL. It moves when a trial is added. */
const invar_bisect_state_trial *invar_bisect_state_find(const invar_bisect_state *state,
                                                        const char *commit, int64_t attempt);

/* Appends a trial. It is durable when the function returns. */
invar_status invar_bisect_state_add(invar_bisect_state *state,
                                    const invar_bisect_state_trial *trial) INVAR_MUST_USE;

/* Records the step at which the ends diverge. */
invar_status invar_bisect_state_set_until(invar_bisect_state *state, int64_t step) INVAR_MUST_USE;

/* Marks the bisect as finished. The state stays for reports. */
invar_status invar_bisect_state_finish(invar_bisect_state *state) INVAR_MUST_USE;

/* Copies trials and the diverging step from another state, as far as this one lacks them. */
invar_status invar_bisect_state_import(invar_bisect_state *state,
                                       const invar_bisect_state *from) INVAR_MUST_USE;

/* Removes all states below `folder`. Returns INVAR_E_BUSY if another process uses one of them. */
invar_status invar_bisect_state_remove_all(int64_t *count_out, const char *folder) INVAR_MUST_USE;

/*
 * Writes the path of the most recent state below `folder`. Returns INVAR_E_NOTFOUND if no state
 * exists.
 */
invar_status invar_bisect_state_newest(char out[INVAR_PATH_SIZE],
                                       const char *folder) INVAR_MUST_USE;

#endif
