/*
 * blame.c - invar blame: lists every commit that changed the bits of selected points.
 *
 * It is a bisect with all_changes along the first parents, and with a criterion over points instead
 * of the chain if any filter is given. Filter words are checked against the known kinds, phases and
 * ops before anything is built.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "bisect/view/bisect_report.h"
#include "cli/bisect/bisect.h"
#include "cli/recipe_flags.h"
#include "kernels-deterministic/device.h"

#include "base/invar_banned.h"

#define DEFAULT_UNTIL 3
#define KINDS "act, grad, param, opt, logits, logp, data" /* kinds of points */
#define PHASES "rollout, forward, backward, optimizer"
#define HOST_OPS "advantage, loss, reward" /* ops of points that the host computes */

typedef struct settings {
    invar_bisect_settings shared;
    invar_bisect_case what;
    const char *kind, *op, *phase, *point;
} settings;

static const invar_option *blame_options(settings *s)
{
    static invar_option list[11 + INVAR_BISECT_SHARED_OPTIONS];
    const invar_option own[] = {
        {"good", INVAR_OPTION_TEXT, &s->what.good, "REV", "the oldest revision to compare", 0, 0},
        {"bad", INVAR_OPTION_TEXT, &s->what.bad, "REV", "the newest revision (HEAD)", 0, 0},
        {"build", INVAR_OPTION_TEXT, &s->what.build, "CMD",
         "shell command that builds a tree (default: cmake, as for Invar)", 0, 0},
        {"program", INVAR_OPTION_TEXT, &s->what.program, "PATH",
         "program that the build makes; @NAME: inside the build folder (@invar)", 0, 0},
        {"layer", INVAR_OPTION_INT, &s->what.question.layer, "N", "only points of this layer", 0,
         INT64_MAX},
        {"kind", INVAR_OPTION_TEXT, &s->kind, "KIND", "only points of this kind: " KINDS, 0, 0},
        {"op", INVAR_OPTION_TEXT, &s->op, "OP", "only points of this op, such as linear.fwd", 0, 0},
        {"phase", INVAR_OPTION_TEXT, &s->phase, "PHASE", "only points of this phase: " PHASES, 0,
         0},
        {"point", INVAR_OPTION_TEXT, &s->point, "PATTERN",
         "only points whose name matches; % stands for any text", 0, 0},
        {"until", INVAR_OPTION_INT, &s->what.question.until, "STEP", "last step to compare (3)", 0,
         INT64_MAX}};

    memcpy(list, own, sizeof own);
    invar_bisect_options_shared(list + 10, &s->shared);
    list[10 + INVAR_BISECT_SHARED_OPTIONS] = (invar_option)INVAR_RECIPE_FLAGS_END;
    return list;
}

static invar_status copy_word(char out[INVAR_CRITERION_WORD], const char *word, const char *name)
{
    if (word && strlen(word) >= INVAR_CRITERION_WORD)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: the word is too long", name);
    (void)snprintf(out, INVAR_CRITERION_WORD, "%s", word ? word : "");
    return INVAR_OK;
}

static bool is_in_list(const char *list, const char *word)
{
    const char *item;
    size_t bytes;

    while (invar_text_item(&item, &bytes, &list, ','))
        if (strlen(word) == bytes && memcmp(word, item, bytes) == 0)
            return true;
    return false;
}

/* Checks a filter word now, because a misspelt one would be noticed only after all builds. */
static invar_status check_word(const char *option, const char *word, const char *list)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];

    if (!word || is_in_list(list, word))
        return INVAR_OK;
    invar_text_quote(quote, sizeof quote, word, strlen(word));
    return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: there is no %s '%s'; there are %s", option, option,
                      quote, list);
}

static invar_status check_op(const char *word)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];

    if (!word || is_in_list(HOST_OPS, word))
        return INVAR_OK;
    for (int i = 0; i < INVAR_OP_COUNT; i++)
        if (strcmp(invar_op_name((invar_op)i), word) == 0)
            return INVAR_OK;
    invar_text_quote(quote, sizeof quote, word, strlen(word));
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "--op: there is no op '%s'; 'invar selfcheck' lists those of this program, "
                      "and those of the host are %s",
                      quote, HOST_OPS);
}

static invar_status make_criterion(settings *s)
{
    invar_criterion *q = &s->what.question;
    bool any = q->layer < 0 && !s->kind && !s->op && !s->phase && !s->point;

    q->kind = any ? INVAR_CRITERION_CHAIN : INVAR_CRITERION_POINTS;
    INVAR_TRY(check_word("kind", s->kind, KINDS));
    INVAR_TRY(check_word("phase", s->phase, PHASES));
    INVAR_TRY(check_op(s->op));
    INVAR_TRY(copy_word(q->point_kind, s->kind, "kind"));
    INVAR_TRY(copy_word(q->point_op, s->op, "op"));
    INVAR_TRY(copy_word(q->phase, s->phase, "phase"));
    return copy_word(q->point, s->point, "point");
}

static int cmd_blame(int argc, char **argv)
{
    settings s = {.what = {.bad = "HEAD",
                           .first_parent = true,
                           .all_changes = true,
                           .question = {.layer = -1, .until = DEFAULT_UNTIL}}};
    const char **flags = NULL;
    invar_status status =
        invar_bisect_parse(&s.what, &s.shared, &flags, blame_options(&s), argc, argv, 1);
    int code;

    if (status == INVAR_OK && !s.what.good)
        status =
            INVAR_FAIL(INVAR_E_INVALID, 0, "--good REV is missing: where the changelog begins");
    if (status == INVAR_OK)
        status = make_criterion(&s);
    code = status == INVAR_OK ? invar_bisect_run_and_print(&s.what, &s.shared, NULL)
                              : invar_report_error();
    invar_free((void *)flags);
    return code;
}

static void blame_help(void)
{
    settings s;

    invar_help_text(
        "Lists every commit between two revisions that changed the bits of a recipe's run, or of\n"
        "selected points of it. It follows first parents, and looks into merges that brought a\n"
        "change. If the bits at both ends of a range are equal, it does not look inside the\n"
        "range: a change that was later reverted exactly is not listed.\n"
        "\n"
        "Exit codes are those of 'invar bisect'.\n");
    invar_options_help(blame_options(&s));
}

const invar_cli_command invar_cmd_blame = {.name = "blame",
                                           .summary = "list every commit that changed the bits",
                                           .run = cmd_blame,
                                           .help = blame_help,
                                           .result = invar_bisect_report_members,
                                           .arguments =
                                               "--good REV [--bad REV] RECIPE [--key value ...]"};
