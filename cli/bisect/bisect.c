/*
 * bisect.c - invar bisect: parses the options and starts a search for the commit that changed the
 * result.
 *
 * Contradictory options are rejected before anything is built. The criterion is the chain for a
 * recipe, the exit code for --run, or a metric. run_bisect.c runs the case and prints the result;
 * subcommands.c has log, view, resume-log and reset.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bisect/bisect.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bisect/view/bisect_report.h"
#include "cli/recipe_flags.h"

#include "base/invar_banned.h"

typedef struct settings {
    invar_bisect_settings shared;
    invar_bisect_case what;
    const char *metric, *paths, *skip;
    bool chain;
} settings;

static const invar_option *bisect_options(settings *s)
{
    static invar_option list[14 + INVAR_BISECT_SHARED_OPTIONS];
    const invar_option own[] = {
        {"good", INVAR_OPTION_TEXT, &s->what.good, "REV", "a revision that behaves as it should", 0,
         0},
        {"bad", INVAR_OPTION_TEXT, &s->what.bad, "REV", "a revision that does not (HEAD)", 0, 0},
        {"run", INVAR_OPTION_TEXT, &s->what.run, "CMD",
         "shell command to test each revision with, instead of a recipe", 0, 0},
        {"build", INVAR_OPTION_TEXT, &s->what.build, "CMD",
         "shell command that builds each revision", 0, 0},
        {"program", INVAR_OPTION_TEXT, &s->what.program, "PATH",
         "program that the build makes; identical programs are run once", 0, 0},
        {"until", INVAR_OPTION_INT, &s->what.question.until, "STEP", "last step to compare", -1,
         INT64_MAX},
        {"golden", INVAR_OPTION_TEXT, &s->what.golden, "FILE",
         "golden file that the good end must match", 0, 0},
        {"metric", INVAR_OPTION_TEXT, &s->metric, "'M > X'",
         "a revision is bad if this holds at any step, such as 'grad_norm > 5'", 0, 0},
        {"chain", INVAR_OPTION_FLAG, &s->chain, NULL,
         "with --run: compare the ledger that CMD writes to $INVAR_RUN/ledger.db", 0, 0},
        {"first-parent", INVAR_OPTION_FLAG, &s->what.first_parent, NULL,
         "follow only the first parent of merges", 0, 0},
        {"paths", INVAR_OPTION_TEXT, &s->paths, "A,B", "test only commits that touch these paths",
         0, 0},
        {"skip", INVAR_OPTION_TEXT, &s->skip, "REV,REV", "never test these revisions", 0, 0},
        {"all-changes", INVAR_OPTION_FLAG, &s->what.all_changes, NULL,
         "find every commit that changed the result, not only the first", 0, 0}};

    memcpy(list, own, sizeof own);
    invar_bisect_options_shared(list + 13, &s->shared);
    list[13 + INVAR_BISECT_SHARED_OPTIONS] = (invar_option)INVAR_RECIPE_FLAGS_END;
    return list;
}

static invar_status make_criterion(settings *s)
{
    invar_criterion *out = &s->what.question;
    const int64_t until = out->until;

    if (s->metric && s->chain)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--metric and --chain: give one of them");
    *out = (invar_criterion){.layer = -1};
    if (s->metric)
        INVAR_TRY(invar_criterion_parse(out, s->metric));
    else
        out->kind = s->what.run && !s->chain ? INVAR_CRITERION_EXIT : INVAR_CRITERION_CHAIN;
    out->until = until;
    if (out->kind == INVAR_CRITERION_EXIT && until >= 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--until is about steps: it needs a recipe, --chain or --metric");
    return INVAR_OK;
}

static invar_status check_settings(const settings *s)
{
    const invar_bisect_case *what = &s->what;
    const char *recipe = what->recipe, *run = what->run;

    if (recipe && !what->good && !invar_path_exists(recipe))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "'%.1000s' is no recipe, and bisect has only the verbs log, view, "
                          "resume-log and reset",
                          recipe);
    if (!what->good)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--good REV, a revision that is as it should be, is missing");
    if (run && run[strspn(run, " \t\n")] == '\0')
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--run: the command is empty");
    if (recipe && run)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a recipe and --run: give one of them");
    if (!recipe && !run)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "what shall run? give a RECIPE or --run CMD");
    if (run && what->flags[0])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s is a key of a recipe: --run takes none",
                          what->flags[0]);
    if (what->golden && (s->metric || (run && !s->chain)))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--golden is about chains: it needs a recipe or --chain");
    if (what->all_changes && (s->paths || s->skip))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--all-changes follows every first parent: %s is for a search without it",
                          s->paths ? "--paths" : "--skip");
    if (what->program && !what->build && run)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--program names what --build makes: give both");
    return INVAR_OK;
}

static int run_case(settings *s)
{
    const char **paths = NULL, **skip = NULL;
    invar_status status = check_settings(s);
    int code;

    if (status == INVAR_OK)
        status = make_criterion(s);
    if (status == INVAR_OK)
        status = invar_bisect_list(&paths, (char *)s->paths);
    if (status == INVAR_OK)
        status = invar_bisect_list(&skip, (char *)s->skip);
    s->what.paths = paths;
    s->what.skip = skip;
    code = status == INVAR_OK ? invar_bisect_run_and_print(&s->what, &s->shared, NULL)
                              : invar_report_error();
    invar_free((void *)paths);
    invar_free((void *)skip);
    return code;
}

static int cmd_bisect(int argc, char **argv)
{
    settings s = {.what = {.bad = "HEAD", .question = {.until = -1}}};
    const char **flags = NULL;
    int code;

    if (invar_bisect_parse(&s.what, &s.shared, &flags, bisect_options(&s), argc, argv, 0) ==
        INVAR_OK)
        code = run_case(&s);
    else
        code = invar_report_error();
    invar_free((void *)flags);
    return code;
}

static void bisect_help(void)
{
    settings s;

    invar_help_text(
        "Finds the commit that changed the bits of a recipe, made a metric cross a bound, or made\n"
        "a command fail. Each revision is checked out, built and run in a separate folder; your\n"
        "repository, work tree and index are only read. If it is interrupted, run the same\n"
        "command again to continue. For a recipe the answer also names the step, the point and\n"
        "the op that changed.\n"
        "\n"
        "With RECIPE, each revision is built with cmake, or with --build, and recipe keys are\n"
        "options here too. With --run, anything can be tested: exit code 0 means good, 1 to 127\n"
        "bad, 125 cannot be tested, 128 or more ends the search. The command runs in the\n"
        "checked-out tree; its environment has INVAR_SOURCE, INVAR_BUILD, INVAR_RUN (an empty\n"
        "folder for its output), INVAR_COMMIT and INVAR_JOBS.\n"
        "\n"
        "Exit codes:\n"
        "  0    found\n"
        "  2    not found: no testable commit is left, both ends behave alike, or it was stopped\n"
        "  3    nondeterministic: one commit gave two results\n"
        "  125  the good or the bad end cannot be built or run\n"
        "  129  wrong arguments, or no such revision\n");
    invar_options_help(bisect_options(&s));
}

const invar_cli_command invar_cmd_bisect = {
    .name = "bisect",
    .summary = "find the commit that changed the bits, down to the op",
    .run = cmd_bisect,
    .help = bisect_help,
    .result = invar_bisect_report_members,
    .subcommands = invar_bisect_verbs,
    .arguments = "--good REV [--bad REV] RECIPE [--key value ...] | --run CMD"};
