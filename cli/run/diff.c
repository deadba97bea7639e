/*
 * diff.c - invar diff: finds the first difference between the bits of two runs.
 *
 * Prints the result of ledger/view/diff as text, JSON or HTML. With --replay, both runs execute the
 * diverging step again with every op recorded (diff_replay.h). The exit code is the verdict of the
 * recorded runs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/diff/diff.h"

#include <string.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "cli/ledger/ledger.h"
#include "cli/output.h"
#include "cli/recipe_flags.h"
#include "cli/run/diff_replay.h"
#include "cli/run/replay.h"
#include "ledger/view/page.h"

#include "base/invar_banned.h"

typedef struct settings {
    const char *ledger;
    const char *html;
    bool json;
    bool replay;
    invar_diff_replay again;
} settings;

static settings asked;

static int exit_code(invar_diff_verdict verdict)
{
    switch (verdict) {
    case INVAR_DIFF_VERDICT_IDENTICAL: return INVAR_EXIT_OK;
    case INVAR_DIFF_VERDICT_DIFFERENT: return INVAR_EXIT_DIFFERENT;
    case INVAR_DIFF_VERDICT_NONDETERMINISTIC: return INVAR_EXIT_NONDETERMINISTIC;
    case INVAR_DIFF_VERDICT_NOTHING: return INVAR_EXIT_NOTHING;
    }
    return INVAR_EXIT_TROUBLE;
}

static invar_status print_diff(const invar_diff *diff, const settings *s, char **words)
{
    invar_output page;

    if (s->html) {
        INVAR_TRY(invar_output_open(&page, s->html, INVAR_PAGE_MARK("diff")));
        INVAR_TRY(invar_output_close(&page, invar_diff_html(page.stream, diff)));
        if (page.stream == stdout)
            return INVAR_OK;
    }
    if (s->json)
        return invar_diff_json(stdout, diff);
    INVAR_TRY(invar_diff_print(stdout, diff, invar_term_has_color(stdout)));
    if (!diff->diverged) { // otherwise the output has named the next command
        putchar('\n');
        invar_print_next(stdout, "ledger verify", words[0], s->ledger, NULL);
    }
    return INVAR_OK;
}

static invar_status replay_runs(invar_diff **out, const invar_diff *diff, const settings *s,
                                const char *path_a, const char *path_b)
{
#ifdef INVAR_BISECT
    invar_diff_replay again = s->again;

    again.ledgers[0] = path_a;
    again.ledgers[1] = path_b;
    return invar_diff_replay_runs(out, diff, &again);
#else
    (void)out, (void)diff, (void)s, (void)path_a, (void)path_b;
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "--replay: this program was built without bisect");
#endif
}

static invar_status compare_runs(int *code_out, const settings *s, char **words)
{
    invar_located a = {.ledger = NULL}, b = {.ledger = NULL};
    invar_diff *diff = NULL, *fine = NULL;
    invar_status status;

    if (s->html)
        INVAR_TRY(invar_output_check(s->html, INVAR_PAGE_MARK("diff")));
    status = invar_locate_run(&a, words[0], s->ledger);
    if (status == INVAR_OK)
        status = invar_locate_run(&b, words[1], s->ledger);
    if (status == INVAR_OK)
        status = invar_diff_runs(&diff, a.ledger, a.run.run, b.ledger, b.run.run);
    if (status == INVAR_OK && s->replay)
        status = replay_runs(&fine, diff, s, a.path, b.path);
    if (status == INVAR_OK) {
        *code_out = exit_code(diff->verdict);
        status = print_diff(fine ? fine : diff, s, words);
    }
    invar_diff_free(fine);
    invar_diff_free(diff);
    invar_located_close(&a);
    invar_located_close(&b);
    return status;
}

/*
 * Rejects options for the repeated runs without --replay, and a recording level that --replay sets
 * itself.
 */
static invar_status check_keys(const settings *s)
{
    static const char level[] = "--debug-determinism";

    if (!s->replay &&
        (s->again.programs[0] || s->again.programs[1] || s->again.keep || s->again.flags[0]))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--program-a, --program-b, --keep and keys are for --replay");
    for (const char **flag = s->again.flags; *flag; flag++)
        if (strncmp(*flag, level, strlen(level)) == 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "%s would be ignored: --replay records every op",
                              level);
    return INVAR_OK;
}

static const invar_option options[] = {
    {"html", INVAR_OPTION_TEXT, &asked.html, "FILE",
     "also write the result as one self-contained HTML page", 0, 0},
    INVAR_OPTION_LEDGER(&asked.ledger),
    INVAR_OPTION_JSON(&asked.json),
    {"replay", INVAR_OPTION_FLAG, &asked.replay, NULL,
     "execute the step again with every op recorded: names the op", 0, 0},
    {"program-a", INVAR_OPTION_TEXT, &asked.again.programs[0], "PATH",
     "invar that executes A again: the one that made it (this one)", 0, 0},
    {"program-b", INVAR_OPTION_TEXT, &asked.again.programs[1], "PATH", "the same for B", 0, 0},
    {"keep", INVAR_OPTION_TEXT, &asked.again.keep, "DIR",
     "keep the ledgers of --replay in this new folder", 0, 0},
    INVAR_RECIPE_FLAGS_END};

static int cmd_diff(int argc, char **argv)
{
    int words, code = INVAR_EXIT_TROUBLE;
    invar_status status = invar_recipe_flags_to_argv(&asked.again.flags, options, &argc, argv);

    if (status == INVAR_OK)
        status = invar_options_parse_words(&words, options, argc, argv, "A B, two runs", 2, 2);
    if (status == INVAR_OK)
        status = check_keys(&asked);
    if (status == INVAR_OK)
        status = compare_runs(&code, &asked, argv);
    invar_free((void *)asked.again.flags);
    return invar_replay_exit(status, code);
}

const invar_cli_command invar_cmd_diff = {
    .name = "diff",
    .summary = "find where two runs diverge: step, layer, tensor",
    .run = cmd_diff,
    .about =
        "Compares two runs. Shows the facts that differ (configuration, build, host), the first\n"
        "step at which the bits diverge, and in that step the first point whose inputs are equal\n"
        "and whose value is not.\n"
        "\n"
        "With --replay, that step of both runs is executed again with every op recorded, as\n"
        "'invar replay --level full' does, and the result is compared: it names the op, and of a\n"
        "fused op whether it differs from its parts. Each run needs the program that made it.\n"
        "Free recipe keys (--threads, --load, ...) are then options here, too.\n"
        "\n"
        "A and B are runs: a folder, a ledger, FILE:RUN, at least 4 digits of a uuid, or @last.\n"
        "\n"
        "Exit codes:\n"
        "  0    identical\n"
        "  1    different\n"
        "  2    could not be compared\n"
        "  3    nondeterministic: the same program and inputs gave two results\n"
        "  6    no step in common\n"
        "  125  --replay: a run cannot be executed here\n"
        "  129  wrong arguments; --replay: a program refuses to execute its run\n",
    .options = options,
    .result = invar_diff_members,
    .arguments = "A B [--option value ...]"};
