/*
 * locate.h - finds the run that a RUN argument names.
 *
 * Without a ledger, the first matching form is used:
 *     @last       the run below runs/ that was started last
 *     FOLDER      the only run of FOLDER/ledger.db
 *     FILE        the only run of a ledger
 *     FILE:WHICH  (or FOLDER:WHICH) one of several runs: its number, name or uuid prefix
 *     DIGITS      at least 4 digits: the run below runs/ whose uuid begins with them
 *
 * With a ledger (--ledger FILE, or INVAR_LEDGER in the environment), RUN is a WHICH or @last.
 * "Below runs/" means runs/NAME/ledger.db in the current folder. If several ledgers contain the
 * run, the one with the most entries is used, and stderr names it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_LEDGER_LOCATE_H
#define INVAR_CLI_LEDGER_LOCATE_H

#include "base/status.h"
#include "ledger/ledger.h"

#define INVAR_LOCATE_PATH_SIZE 4096

/* A run and its ledger, open for reading. A zeroed struct is valid and closed. */
typedef struct invar_located {
    char path[INVAR_LOCATE_PATH_SIZE];
    invar_ledger *ledger;
    invar_ledger_summary run;
} invar_located;

/*
 * Locates and opens a run. `ledger` is the value of --ledger, or NULL. A NULL `word` means the only
 * run of that ledger. Close *out with invar_located_close.
 */
invar_status invar_locate_run(invar_located *out, const char *word,
                              const char *ledger) INVAR_MUST_USE;
void invar_located_close(invar_located *located);

/*
 * Locates and opens the ledger that `word` names directly (a file or folder) or that contains it as
 * a RUN; out->run is set only for a RUN. Close *out with invar_located_close.
 */
invar_status invar_locate_ledger(invar_located *out, const char *word,
                                 const char *ledger) INVAR_MUST_USE;

/*
 * Updates the column `path` or `checkpoint` of a row about a checkpoint. The ledger has the path at
 * the time of writing, and the run folder may have been moved since. If no checkpoint with the hash
 * of the row exists there, the longest tail of the path that leads to it from the folder of
 * `ledger` is used; otherwise the column is unchanged. `buffer` holds the new path.
 */
void invar_locate_checkpoint(invar_ledger_value *values, char buffer[INVAR_LOCATE_PATH_SIZE],
                             const char *const *columns, int count, const char *ledger);

/* Returns the ledger that --ledger or the environment names, or NULL. */
const char *invar_locate_given(const char *ledger);

/* Finds the ledger of a word that can only be a file or folder. */
invar_status invar_locate_file(char out[INVAR_LOCATE_PATH_SIZE], const char *word) INVAR_MUST_USE;

/* Calls `take` for every FOLDER/NAME/ledger.db, ordered by name, until it fails. */
invar_status invar_locate_below(const char *folder,
                                invar_status (*take)(void *payload, const char *path),
                                void *payload) INVAR_MUST_USE;

#define INVAR_LOCATE_RUNS "runs" /* folder in which RUN arguments are searched */

#endif
