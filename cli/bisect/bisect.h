/*
 * bisect.h - options shared by the commands bisect and blame, and running a bisect case.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BISECT_BISECT_H
#define INVAR_CLI_BISECT_BISECT_H

#include "bisect/bisect.h"
#include "cli/command.h"

/* Settings that do not affect the result: repository, folders, limits and output. */
typedef struct invar_bisect_settings {
    const char *repo, *work, *html;
    int64_t jobs;
    double timeout;
    bool json;
} invar_bisect_settings;

#define INVAR_BISECT_SHARED_OPTIONS 6

/* Returns the shared options, which write to *settings, and sets *settings to its defaults. */
void invar_bisect_options_shared(invar_option out[INVAR_BISECT_SHARED_OPTIONS],
                                 invar_bisect_settings *settings);

/*
 * Parses the options, the keys of the recipe and its path, of which `low` to 1 is given, and
 * completes the case with them and with the settings. The caller frees *flags_out, also after a
 * failure.
 */
invar_status invar_bisect_parse(invar_bisect_case *what, const invar_bisect_settings *settings,
                                const char ***flags_out, const invar_option *options, int argc,
                                char **argv, int low) INVAR_MUST_USE;

/*
 * Runs a case with progress on stderr, prints the result to stdout and stores it next to the state.
 * `log` is a state file to import, or NULL. Returns an exit code.
 */
int invar_bisect_run_and_print(const invar_bisect_case *what, const invar_bisect_settings *settings,
                               const char *log);

/* Computes the folder bisects/ in the workspace of the repository. */
invar_status invar_bisect_folder(char out[INVAR_PATH_SIZE],
                                 const invar_bisect_settings *settings) INVAR_MUST_USE;

/*
 * Splits a list "a,b,c" in place into a NULL-terminated array; *out is NULL if `text` is NULL. The
 * caller frees *out with invar_free; the words point into `text`.
 */
invar_status invar_bisect_list(const char ***out, char *text) INVAR_MUST_USE;

extern const invar_cli_command *const invar_bisect_verbs[]; /* log, view, resume-log and reset */

#endif
