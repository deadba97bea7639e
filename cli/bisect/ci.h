/*
 * ci.h - the verbs `invar ci ...` and what they share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BISECT_CI_H
#define INVAR_CLI_BISECT_CI_H

#include "bisect/ci/ci.h"
#include "cli/command.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const invar_cli_command invar_verb_ci_record;
extern const invar_cli_command invar_verb_ci_check;
extern const invar_cli_command invar_verb_ci_review;
extern const invar_cli_command invar_verb_ci_accept;
extern const invar_cli_command invar_verb_ci_status;

/* The option --cases DIR, which is "recipes" where nobody says otherwise. */
invar_option invar_option_cases(const char **value);

/* True in CI: the variable CI is set, and neither empty nor "false". Nothing is written then. */
bool invar_ci_unattended(void);

/* INVAR_E_STATE in CI; `what` is the verb that would write. */
invar_status invar_ci_attended(const char *what) INVAR_MUST_USE;

/*
 * The cases that the words name; without a word all of the folder for which `wanted` holds.
 * The caller owns *out (invar_free).
 */
invar_status invar_ci_choose(invar_ci_case **out, size_t *count_out, const char *folder, int words,
                             char **argv, bool (*wanted)(const invar_ci_case *item)) INVAR_MUST_USE;

/* A verdict as it is shown, and what there is to say about it. */
void invar_ci_show(const invar_ci_result *result);

#ifdef __cplusplus
}
#endif
#endif
