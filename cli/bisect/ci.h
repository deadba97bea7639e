/*
 * ci.h - subcommands of `invar ci`, and functions that they share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BISECT_CI_H
#define INVAR_CLI_BISECT_CI_H

#include "bisect/ci/ci.h"
#include "cli/command.h"

extern const invar_cli_command invar_cmd_ci_record;
extern const invar_cli_command invar_cmd_ci_check;
extern const invar_cli_command invar_cmd_ci_review;
extern const invar_cli_command invar_cmd_ci_accept;
extern const invar_cli_command invar_cmd_ci_status;

/* Returns the option --cases DIR, whose default is "recipes". */
invar_option invar_option_cases(const char **value);

/* Returns true if the variable CI is set and neither empty nor "false". Nothing is written then. */
bool invar_ci_unattended(void);

/* Returns INVAR_E_STATE if invar_ci_unattended; `what` is the subcommand that would write. */
invar_status invar_ci_attended(const char *what) INVAR_MUST_USE;

/*
 * Lists the cases that the words name; without words, all cases of the folder for which `wanted`
 * returns true. The caller frees *out with invar_free.
 */
invar_status invar_ci_choose(invar_ci_case **out, size_t *count_out, const char *folder, int words,
                             char **argv, bool (*wanted)(const invar_ci_case *item)) INVAR_MUST_USE;

/* Prints the verdict of a result and its details. */
void invar_ci_show(const invar_ci_result *result);

#endif
