/*
 * bisect.h - what the verbs bisect and blame share: a case from the command line, and its answer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BISECT_BISECT_H
#define INVAR_CLI_BISECT_BISECT_H

#include "bisect/bisect.h"
#include "cli/command.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where and how, beside what is asked. */
typedef struct invar_bisect_settings {
    const char *repo, *work, *html;
    int64_t jobs;
    double timeout;
    bool json;
} invar_bisect_settings;

#define INVAR_BISECT_SHARED_OPTIONS 6

/* The options that fill it. The struct gets its defaults, too. */
void invar_bisect_options_shared(invar_option out[INVAR_BISECT_SHARED_OPTIONS],
                                 invar_bisect_settings *settings);

/* Asks, shows progress on stderr and the answer on stdout, keeps it beside the state. */
int invar_bisect_run_and_print(const invar_bisect_case *what, const invar_bisect_settings *settings,
                               const char *log);

/* The folder bisects/ of the repository's workshop. */
invar_status invar_bisect_folder(char out[INVAR_PATH_SIZE],
                                 const invar_bisect_settings *settings) INVAR_MUST_USE;

/*
 * A list "a,b,c" in place as words, ended by NULL; NULL for NULL. The caller owns *out, which is
 * for invar_free, not the words.
 */
invar_status invar_bisect_list(const char ***out, char *text) INVAR_MUST_USE;

extern const invar_cli_command *const invar_bisect_verbs[]; /* log view resume-log reset */

#ifdef __cplusplus
}
#endif
#endif
