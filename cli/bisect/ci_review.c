/*
 * ci_review.c - invar ci review, accept and status: shows and accepts changed bits.
 *
 * Review asks about each pending golden on a terminal. Everything that writes is refused if the
 * variable CI is set. Status reads the goldens without running anything.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "base/text.h"
#include "bisect/view/ci.h"
#include "cli/bisect/ci.h"
#include "cli/interactive.h"
#include "cli/ledger/ledger.h"
#include "cli/safe_text.h"
#include "cli/text_table.h"

#include "base/invar_banned.h"

typedef struct settings {
    const char *cases, *reason, *reject;
    bool json;
} settings;

/* ---- review ---------------------------------------------------------------------------------- */

static invar_status accept_with_reason(const invar_ci_case *item)
{
    char reason[512];

    if (!invar_interactive_ask(reason, sizeof reason, stdout, "reason: "))
        return INVAR_OK;
    if (invar_ci_accept(item, reason) == INVAR_OK) {
        puts("accepted");
        return INVAR_OK;
    }
    if (invar_error_last()->status != INVAR_E_INVALID)
        return invar_error_last()->status;
    (void)invar_report_error(); // without a reason the golden stays pending
    invar_error_clear();
    return INVAR_OK;
}

/* Asks until there is a valid answer. *more_out is false at the end of the input. */
static invar_status ask_decision(bool *more_out, const invar_ci_case *item)
{
    char answer[16];

    *more_out = true;
    for (;;) {
        if (!invar_interactive_ask(answer, sizeof answer, stdout, "[a]ccept, [r]eject, [s]kip: ")) {
            *more_out = false;
            return INVAR_OK;
        }
        switch (answer[0]) {
        case 'a': return accept_with_reason(item);
        case 'r': INVAR_TRY(invar_ci_reject(item)); return puts("rejected"), INVAR_OK;
        case 's': return INVAR_OK;
        default: break;
        }
    }
}

static invar_status review_case(bool *more_out, const invar_ci_case *item, bool ask)
{
    invar_ci_result result;

    INVAR_TRY(invar_ci_review(&result, item));
    if (ask)
        result.pending = false; // the question names the possible actions
    invar_ci_show(&result);
    return ask ? ask_decision(more_out, item) : INVAR_OK;
}

static invar_status review_json(const invar_ci_case *cases, size_t count)
{
    invar_ci_result *results;
    invar_status status = INVAR_OK;

    INVAR_TRY(INVAR_ALLOC(results, count, "results"));
    for (size_t i = 0; i < count && status == INVAR_OK; i++)
        status = invar_ci_review(&results[i], &cases[i]);
    if (status == INVAR_OK)
        status = invar_json_write(stdout, invar_ci_json(results, count));
    invar_free(results);
    return status;
}

static invar_status review_all(const settings *s, const invar_ci_case *cases, size_t count)
{
    bool ask = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !invar_ci_unattended();
    bool more = true;

    if (s->json)
        return review_json(cases, count);
    for (size_t i = 0; i < count && more; i++)
        INVAR_TRY(review_case(&more, &cases[i], ask));
    if (count == 0)
        printf("nothing is pending in %s; a case elsewhere is named by its path\n", s->cases);
    return INVAR_OK;
}

static invar_status reject_case(const settings *s)
{
    invar_ci_case item;

    INVAR_TRY(invar_ci_attended("review --reject"));
    INVAR_TRY(invar_ci_case_of(&item, s->cases, s->reject));
    INVAR_TRY(invar_ci_reject(&item));
    invar_safe_text_print(stdout, item.name);
    puts(": rejected");
    return INVAR_OK;
}

static const invar_option *ci_review_options(settings *s)
{
    static invar_option list[4];
    const invar_option own[4] = {{"reject", INVAR_OPTION_TEXT, &s->reject, "CASE",
                                  "reject the pending bits of CASE: delete them", 0, 0},
                                 invar_option_cases(&s->cases),
                                 invar_option_json(&s->json)};

    return memcpy(list, own, sizeof own);
}

static int cmd_ci_review(int argc, char **argv)
{
    settings s = {.cases = "recipes"};
    invar_ci_case *cases = NULL;
    size_t count;
    int words;
    invar_status status =
        invar_options_parse_words(&words, ci_review_options(&s), argc, argv, "CASE", 0, argc);

    if (status == INVAR_OK && s.reject && words)
        status = INVAR_FAIL(INVAR_E_INVALID, 0, "--reject CASE: one case, and no other words");
    if (status == INVAR_OK && s.reject)
        return invar_exit(reject_case(&s));
    if (status == INVAR_OK)
        status = invar_ci_choose(&cases, &count, s.cases, words, argv, invar_ci_pending);
    if (status == INVAR_OK)
        status = review_all(&s, cases, count);
    invar_free(cases);
    return invar_exit(status);
}

static void ci_review_help(void)
{
    settings s;

    invar_help_text(
        "Shows pending changes, case by case: the first step and point that differ, ops with a\n"
        "new revision, and the loss. On a terminal it asks what to do: a accepts (and asks for a\n"
        "reason), r rejects, s skips.\n");
    invar_options_help(ci_review_options(&s));
}

const invar_cli_command invar_cmd_ci_review = {.name = "review",
                                               .summary =
                                                   "show pending changes, accept or reject them",
                                               .run = cmd_ci_review,
                                               .help = ci_review_help,
                                               .result = "[" INVAR_CI_RESULT "]",
                                               .arguments = "[CASE ...] [--reject CASE]"};

/* ---- accept ---------------------------------------------------------------------------------- */

static const invar_option *ci_accept_options(settings *s)
{
    static invar_option list[3];
    const invar_option own[3] = {{"reason", INVAR_OPTION_TEXT, &s->reason, "TEXT",
                                  "why the bits changed; stored in the golden", 0, 0},
                                 invar_option_cases(&s->cases)};

    return memcpy(list, own, sizeof own);
}

static invar_status accept_case(const settings *s, const char *word)
{
    invar_ci_case item;

    INVAR_TRY(invar_ci_attended("accept"));
    INVAR_TRY(invar_ci_case_of(&item, s->cases, word));
    INVAR_TRY(invar_ci_accept(&item, s->reason ? s->reason : ""));
    invar_safe_text_print(stdout, item.name);
    fputs(": accepted; commit ", stdout);
    invar_text_print_shell_word(stdout, item.golden);
    fputs(" and ", stdout);
    invar_text_print_shell_word(stdout, item.points);
    putchar('\n');
    return INVAR_OK;
}

static int cmd_ci_accept(int argc, char **argv)
{
    settings s = {.cases = "recipes"};
    int words;
    invar_status status =
        invar_options_parse_words(&words, ci_accept_options(&s), argc, argv, "CASE", 1, 1);

    return invar_exit(status == INVAR_OK ? accept_case(&s, argv[0]) : status);
}

static void ci_accept_help(void)
{
    settings s;

    invar_help_text(
        "Makes the pending bits of a CASE its new golden and adds a line of history to it: who,\n"
        "at which commit, why. Refused when CI is set in the environment.\n");
    invar_options_help(ci_accept_options(&s));
}

const invar_cli_command invar_cmd_ci_accept = {.name = "accept",
                                               .summary = "make pending bits the new golden",
                                               .run = cmd_ci_accept,
                                               .help = ci_accept_help,
                                               .arguments = "CASE --reason TEXT"};

/* ---- status ---------------------------------------------------------------------------------- */

/* Properties of a case that are known without running it. */
typedef struct golden_status {
    const char *golden; /* "good", "missing", "obsolete" or "damaged" */
    int64_t steps, ops, accepted;
    char identity[INVAR_DIGEST_HEX_SIZE];
    bool points;
} golden_status;

static golden_status read_golden_status(const invar_ci_case *item)
{
    golden_status out = {.golden = "good"};
    invar_golden_points *points;
    invar_golden *golden;
    invar_status status = invar_golden_read(&golden, item->golden);

    invar_error_clear();
    if (status != INVAR_OK) {
        out.golden = status == INVAR_E_NOTFOUND      ? "missing"
                     : status == INVAR_E_UNSUPPORTED ? "obsolete"
                                                     : "damaged";
        return out;
    }
    if (!invar_path_exists(item->recipe))
        out.golden = "obsolete"; // the recipe was removed
    out.steps = golden->n_steps;
    out.ops = (int64_t)golden->n_ops;
    out.accepted = (int64_t)golden->n_accepted;
    invar_digest_format(out.identity, &golden->identity);
    if (invar_golden_points_beside(&points, golden, item->golden) != INVAR_OK)
        invar_error_clear();
    out.points = points;
    invar_golden_points_free(points);
    invar_golden_free(golden);
    return out;
}

static invar_status status_table(const invar_ci_case *cases, size_t count)
{
    invar_text_table grid = {.columns = 8};

    invar_text_table_add(&grid, "ssssssss", "case", "golden", "steps", "identity", "ops",
                         "accepted", "points", "pending");
    for (size_t i = 0; i < count; i++) {
        golden_status s = read_golden_status(&cases[i]);
        s.identity[12] = '\0';
        invar_text_table_add(&grid, "ssisiiss", cases[i].name, s.golden, s.steps, s.identity, s.ops,
                             s.accepted, s.points ? "yes" : "no",
                             invar_ci_pending(&cases[i]) ? "pending" : "");
    }
    return invar_text_table_show(&grid, stdout, INVAR_OK);
}

#define STATUS                                                                                     \
    "{case text, golden text, steps int, identity text?, ops int, accepted int, points bool,"      \
    " pending bool}"

static json_t *status_json(const void *item)
{
    golden_status s = read_golden_status(item);

    return INVAR_RESULT(STATUS, ((const invar_ci_case *)item)->name, s.golden, s.steps,
                        s.identity[0] ? s.identity : NULL, s.ops, s.accepted, s.points,
                        invar_ci_pending(item));
}

static const invar_option *ci_status_options(settings *s)
{
    static invar_option list[3];
    const invar_option own[3] = {invar_option_cases(&s->cases), invar_option_json(&s->json)};

    return memcpy(list, own, sizeof own);
}

static int cmd_ci_status(int argc, char **argv)
{
    settings s = {.cases = "recipes"};
    invar_ci_case *cases = NULL;
    size_t count;
    invar_status status = invar_options_parse(ci_status_options(&s), argc, argv);

    if (status == INVAR_OK)
        status = invar_ci_cases(&cases, &count, s.cases);
    if (status == INVAR_OK)
        status = s.json ? invar_json_write(
                              stdout, invar_result_list(cases, count, sizeof *cases, status_json))
                        : status_table(cases, count);
    invar_free(cases);
    return invar_exit(status);
}

static void ci_status_help(void)
{
    settings s;

    invar_help_text(
        "Lists the recipes of a folder and their goldens: number of steps, identity, op\n"
        "revisions, number of accepted changes, whether a .points file can localise a difference,\n"
        "and what is pending.\n");
    invar_options_help(ci_status_options(&s));
}

const invar_cli_command invar_cmd_ci_status = {.name = "status",
                                               .summary = "list cases, goldens and pending changes",
                                               .run = cmd_ci_status,
                                               .help = ci_status_help,
                                               .result = "[" STATUS "]",
                                               .arguments = "[--cases DIR]"};
