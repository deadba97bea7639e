/*
 * locate.h - finds the run that a RUN argument names.
 *
 * Without a ledger, RUN is, and the first that fits is taken:
 *     @last       the run below runs/ that was begun last
 *     FOLDER      the only run of FOLDER/ledger.db
 *     FILE        the only run of a ledger
 *     FILE:WHICH  (or FOLDER:WHICH) one of several: its number, name, or first digits of its uuid
 *     DIGITS      4 or more: the run below runs/ whose uuid begins with them
 * With a ledger (--ledger FILE, else INVAR_LEDGER in the environment), RUN is a WHICH or @last.
 * "Below runs/" means runs/NAME/ledger.db in the current folder. Of several ledgers that hold the
 * run, the one with most entries is taken, and standard error says which.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_LEDGER_LOCATE_H
#define INVAR_CLI_LEDGER_LOCATE_H

#include "base/status.h"
#include "cli/command.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_LOCATE_PATH_SIZE 4096

/* A run, and the ledger that it is in, open for reading. Zeros are valid, and closed. */
typedef struct invar_located {
    char path[INVAR_LOCATE_PATH_SIZE];
    invar_ledger *ledger;
    invar_ledger_summary run;
} invar_located;

/* `ledger`: value of --ledger, NULL when not given. `word` NULL: the only run of that ledger. */
invar_status invar_locate_run(invar_located *out, const char *word,
                              const char *ledger) INVAR_MUST_USE;
void invar_located_close(invar_located *located);

/* The path of the ledger that `word` is (a file, a folder) or, as a RUN, lies in. */
invar_status invar_locate_ledger(char out[INVAR_LOCATE_PATH_SIZE], const char *word,
                                 const char *ledger) INVAR_MUST_USE;

/*
 * In a row about a checkpoint, the column `path` or `checkpoint` as it is now: the ledger has the
 * path that it was written to, and a run's folder may have been moved since. Unless the checkpoint
 * with the hash of the row is there, the longest end of the path that leads to it beside `ledger`
 * is taken; none: it stays. `buffer` holds it.
 */
void invar_locate_checkpoint(invar_ledger_value *values, char buffer[INVAR_LOCATE_PATH_SIZE],
                             const char *const *columns, int count, const char *ledger);

/* The ledger that --ledger or else the environment names; NULL: neither. */
const char *invar_locate_given(const char *ledger);

/* The ledger of a word that can only be a file or a folder. */
invar_status invar_locate_file(char out[INVAR_LOCATE_PATH_SIZE], const char *word) INVAR_MUST_USE;

/* Calls `take` for every FOLDER/NAME/ledger.db, in order of name; stops when it fails. */
invar_status invar_locate_below(const char *folder,
                                invar_status (*take)(void *payload, const char *path),
                                void *payload) INVAR_MUST_USE;

#define INVAR_LOCATE_RUNS "runs" /* the folder that RUN arguments are looked for in */

/* The option --ledger. */
invar_option invar_option_ledger(const char **value);

#ifdef __cplusplus
}
#endif
#endif
