/*
 * state.h - the state of one bisect: what is asked, and what every trial answered.
 *
 *     # invar bisect 1
 *     repo /home/me/project          what is asked: one line a field, several of a list
 *     good 1d9f...
 *     ...
 *     recipe-line seed = 1           the recipe itself: a later change of the file changes nothing
 *
 *     trial COMMIT TREE BINARY ATTEMPT ROLE VERDICT VALUE VIA PARTED EXIT BUILD_MS RUN_MS ...
 *     until 7                        the step at which the ends part
 *     done                           the answer was given
 *
 * One file, bisects/ID/state in the workshop; ID is the hash of the first part. Lines are only ever
 * appended, each synced before it counts. A last line that was cut off by a kill is removed. Words
 * are escaped: \\ \n \s (a blank) and \e (an empty word).
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

#ifdef __cplusplus
extern "C" {
#endif

/* A trial as the state keeps it. */
typedef struct invar_bisect_state_trial {
    invar_bisect_trial trial;
    char tree[INVAR_OID_SIZE];
    char binary[INVAR_DIGEST_HEX_SIZE]; /* "": no program is named */
    int64_t attempt;                    /* 0: the first; 1: the confirmation */
} invar_bisect_state_trial;

typedef struct invar_bisect_state invar_bisect_state;

/*
 * The state of this case below `folder` (bisects/ of a workshop), made when it is not there, for
 * this process alone: INVAR_E_BUSY when another has it. `good` and `bad` of the case are ids.
 * INVAR_E_CORRUPT: the file is damaged in another way than by a kill.
 */
invar_status invar_bisect_state_open(invar_bisect_state **out, const char *folder,
                                     const invar_bisect_case *what) INVAR_MUST_USE;

/* The same from a file, to read; `path` may be any copy of a state. */
invar_status invar_bisect_state_read(invar_bisect_state **out, const char *path) INVAR_MUST_USE;
void invar_bisect_state_close(invar_bisect_state *state); /* NULL is allowed */

const char *invar_bisect_state_id(const invar_bisect_state *state);
const char *
invar_bisect_state_folder(const invar_bisect_state *state); /* bisects/ID; "" of a file */

/* What is asked, as the file says. Borrowed. `recipe` is the name that the user gave. */
const invar_bisect_case *invar_bisect_state_case(const invar_bisect_state *state);

/* The recipe's text; NULL: there is none. */
const char *invar_bisect_state_recipe(const invar_bisect_state *state);

/* The trials so far, in order. */
const invar_bisect_state_trial *invar_bisect_state_trials(size_t *count_out,
                                                          const invar_bisect_state *state);

/* Appends; durable when it returns. */
invar_status invar_bisect_state_add(invar_bisect_state *state,
                                    const invar_bisect_state_trial *trial) INVAR_MUST_USE;

/* The step at which the ends part; -1: not known (yet). */
int64_t invar_bisect_state_until(const invar_bisect_state *state);
invar_status invar_bisect_state_set_until(invar_bisect_state *state, int64_t step) INVAR_MUST_USE;

/* The answer has been given; the state is kept for views. */
invar_status invar_bisect_state_finish(invar_bisect_state *state) INVAR_MUST_USE;
bool invar_bisect_state_finished(const invar_bisect_state *state);

/* Takes over the trials and the step of another state that this one does not have. */
invar_status invar_bisect_state_import(invar_bisect_state *state,
                                       const invar_bisect_state *from) INVAR_MUST_USE;

/* Removes all states below `folder`. INVAR_E_BUSY: one of them is at work. */
invar_status invar_bisect_state_remove_all(int64_t *count_out, const char *folder) INVAR_MUST_USE;

/* The path of the newest state below `folder`; INVAR_E_NOTFOUND: there is none. */
invar_status invar_bisect_state_newest(char out[INVAR_PATH_SIZE],
                                       const char *folder) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
