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

const invar_cli_command *const invar_cmds[] = {
    &invar_cmd_train,
    &invar_cmd_plan,
    &invar_cmd_eval,
    &invar_cmd_generate,
    &invar_cmd_score,
    &invar_cmd_serve,
    &invar_cmd_convert,
    &invar_cmd_replay,
    &invar_cmd_pack,
    &invar_cmd_import_miles,
    &invar_cmd_ledger,
    &invar_cmd_diff,
    &invar_cmd_triage,
    &invar_cmd_bug_report,
#ifdef INVAR_BISECT
    &invar_cmd_bisect,
    &invar_cmd_blame,
    &invar_cmd_ab,
    &invar_cmd_ci,
#endif
    &invar_cmd_selfcheck,
    &invar_cmd_doctor,
    &invar_cmd_bench,
    &invar_cmd_version,
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
