/*
 * commands.c - list of the commands of this build and of all exit codes. Common commands come
 * first, because help prints the list in this order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/command.h"

#include <signal.h>
#include <stddef.h>

#include "base/invar_banned.h"

const invar_cli_command *const invar_verbs[] = {
#ifdef INVAR_LEDGER
    &invar_verb_train,
    &invar_verb_plan,
    &invar_verb_eval,
    &invar_verb_generate,
    &invar_verb_score,
    &invar_verb_serve,
    &invar_verb_convert,
    &invar_verb_replay,
    &invar_verb_pack,
    &invar_verb_import_miles,
    &invar_verb_ledger,
    &invar_verb_diff,
    &invar_verb_triage,
    &invar_verb_bug_report,
#endif
#ifdef INVAR_BISECT
    &invar_verb_bisect,
    &invar_verb_blame,
    &invar_verb_ab,
    &invar_verb_ci,
#endif
    &invar_verb_selfcheck,
    &invar_verb_doctor,
    &invar_verb_bench,
    &invar_verb_version,
    NULL,
};

const invar_exit_meaning invar_exit_codes[] = {
    {INVAR_EXIT_OK, "done, and nothing differs"},
    {INVAR_EXIT_DIFFERENT,
     "bits differ, or the answer is no: a run does not fit, there are findings"},
    {INVAR_EXIT_TROUBLE,
     "trouble: a file, a full disk or memory, a damaged ledger, a GPU that failed, a search that "
     "finds nothing"},
    {INVAR_EXIT_NONDETERMINISTIC,
     "nondeterministic: the same program, inputs and keys gave different bits"},
    {INVAR_EXIT_GOLDEN, "no golden, or one of another version or recipe"},
    {INVAR_EXIT_NOTHING, "nothing to compare or to verify"},
    {INVAR_EXIT_UNTESTABLE,
     "cannot be tried here: no CUDA in this build, no GPU, an old driver, a commit that does not "
     "build"},
    {INVAR_EXIT_USAGE, "wrong arguments, keys or input"},
    {128 + SIGINT, "stopped by SIGINT (Ctrl-C)"},
    {128 + SIGTERM, "stopped by SIGTERM or SIGHUP"},
    {128 + SIGXFSZ, "stopped by SIGXFSZ, a limit on file sizes"},
    {0, NULL},
};
