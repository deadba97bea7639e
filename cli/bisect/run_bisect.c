/*
 * run_bisect.c - runs a bisect case with progress on stderr, prints its result and stores it.
 *
 * The result is stored in every form in the folder of the bisect (answer.txt, .json, .html, .db),
 * where `invar bisect view` finds it. It is printed first, so that a file that cannot be written
 * hides nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "base/text.h"
#include "bisect/view/bisect_report.h"
#include "bisect/workspace/workspace.h"
#include "cli/bisect/archive.h"
#include "cli/bisect/bisect.h"
#include "cli/interactive.h"
#include "cli/output.h"
#include "cli/recipe_flags.h"
#include "cli/safe_text.h"
#include "ledger/view/page.h"

#include "base/invar_banned.h"

#define DEFAULT_TIMEOUT 3600

void invar_bisect_options_shared(invar_option out[INVAR_BISECT_SHARED_OPTIONS],
                                 invar_bisect_settings *s)
{
    const invar_option list[INVAR_BISECT_SHARED_OPTIONS] = {
        {"repo", INVAR_OPTION_TEXT, &s->repo, "DIR", "the git repository (.)", 0, 0},
        {"jobs", INVAR_OPTION_INT, &s->jobs, "N", "number of trials that run at the same time (1)",
         1, INVAR_SEARCH_JOBS},
        {"timeout", INVAR_OPTION_REAL, &s->timeout, "S",
         "time limit of a build or a run in seconds (3600); 0: none", 0, INT64_C(1) << 40},
        {"work", INVAR_OPTION_TEXT, &s->work, "DIR",
         "folder for checkouts, programs and runs (~/.cache/invar/NAME)", 0, 0},
        {"html", INVAR_OPTION_TEXT, &s->html, "FILE", "also write the result as an HTML page", 0,
         0},
        {"json", INVAR_OPTION_FLAG, &s->json, NULL, "print the result as JSON", 0, 0}};

    *s = (invar_bisect_settings){.repo = ".", .jobs = 1, .timeout = DEFAULT_TIMEOUT};
    memcpy(out, list, sizeof list);
}

invar_status invar_bisect_parse(invar_bisect_case *what, const invar_bisect_settings *settings,
                                const char ***flags_out, const invar_option *options, int argc,
                                char **argv, int low)
{
    int words;

    INVAR_TRY(invar_recipe_flags_to_argv(flags_out, options, &argc, argv));
    INVAR_TRY(invar_options_parse_words(&words, options, argc, argv, "RECIPE", low, 1));
    what->recipe = words ? argv[0] : NULL;
    what->flags = *flags_out;
    what->repo = settings->repo;
    what->timeout = settings->timeout;
    return INVAR_OK;
}

invar_status invar_bisect_list(const char ***out, char *text)
{
    size_t count = 0;

    *out = NULL;
    if (!text)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(*out, strlen(text) + 2, "a list"));
    while (*text) {
        char *comma = strchr(text, ',');
        if (comma)
            *comma = '\0';
        if (*text)
            (*out)[count++] = text;
        text = comma ? comma + 1 : text + strlen(text);
    }
    (*out)[count] = NULL;
    return INVAR_OK;
}

/* ---- progress -------------------------------------------------------------------------------- */

typedef struct progress_screen {
    bool live, color;
} progress_screen;

static invar_term_style style_of(const char *verdict)
{
    switch (verdict[0]) {
    case 'g': return INVAR_TERM_STYLE_GREEN;
    case 's': return INVAR_TERM_STYLE_YELLOW;
    default: return INVAR_TERM_STYLE_RED;
    }
}

static void print_trial(const progress_screen *s, const invar_bisect_trial *t)
{
    fprintf(stderr, "bisect: %.12s %s%-5s%s %s", t->commit,
            invar_term_escape(s->color, style_of(t->verdict)), t->verdict,
            invar_term_escape(s->color, INVAR_TERM_STYLE_PLAIN), t->role);
    if (t->build_s > 0)
        fprintf(stderr, ", built in %.1f s", t->build_s);
    if (strcmp(t->source, "tree") == 0)
        fputs(", same tree as before", stderr);
    else if (strcmp(t->source, "program") == 0)
        fputs(", same program as before", stderr);
    else if (t->run_s > 0)
        fprintf(stderr, ", ran %.1f s", t->run_s);
    if (!t->value[0] && t->failure_reason[0]) {
        fputs("; ", stderr);
        invar_safe_text_print(stderr, t->failure_reason);
    }
    fputc('\n', stderr);
}

static void show_trial(void *payload, bool ended, const invar_bisect_trial *trial, int64_t left,
                       int64_t more)
{
    const progress_screen *s = payload;
    char line[128];

    if (s->live)
        fputs("\r\033[K", stderr);
    if (more > 0)
        (void)snprintf(line, sizeof line,
                       "bisect: testing %.12s, %" PRId64 " suspect%s, about %" PRId64
                       " more trial%s",
                       trial->commit, left, invar_text_plural(left), more, invar_text_plural(more));
    else
        (void)snprintf(line, sizeof line, "bisect: testing %.12s, %s", trial->commit, trial->role);
    if (ended)
        print_trial(s, trial);
    else if (s->live) // truncated, because a wrapped line cannot be erased
        fprintf(stderr, "%.*s", invar_term_width(stderr) - 1, line);
    fflush(stderr);
}

/* ---- results --------------------------------------------------------------------------------- */

static int exit_code(const invar_bisect_result *a)
{
    switch (a->verdict) {
    case INVAR_BISECT_FOUND:
    case INVAR_BISECT_CHANGES: return INVAR_EXIT_OK;
    case INVAR_BISECT_NONDETERMINISTIC: return INVAR_EXIT_NONDETERMINISTIC;
    case INVAR_BISECT_UNTESTABLE: return INVAR_EXIT_UNTESTABLE;
    default: return INVAR_EXIT_TROUBLE;
    }
}

static invar_status print_plain(FILE *out, const invar_bisect_result *answer)
{
    return invar_bisect_report_print(out, answer, false);
}

/* Stores the result in every form next to the state, for `invar bisect view`. */
static invar_status store_result(const invar_bisect_result *a)
{
    const struct {
        const char *name;
        invar_status (*write)(FILE *out, const invar_bisect_result *answer);
    } forms[] = {{"answer.txt", print_plain},
                 {"answer.json", invar_bisect_report_json},
                 {"answer.html", invar_bisect_report_html}};

    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char path[INVAR_PATH_SIZE];
        invar_output page;
        INVAR_TRY(invar_path_join(path, sizeof path, a->folder, forms[i].name));
        INVAR_TRY(invar_output_replace(&page, path, NULL));
        INVAR_TRY(invar_output_close(&page, forms[i].write(page.stream, a)));
    }
    return INVAR_OK;
}

static invar_status print_and_store_result(const invar_bisect_result *a,
                                           const invar_bisect_settings *s)
{
    invar_output page;

    // printed first, so that a file that cannot be written hides nothing
    if (!s->html || strcmp(s->html, "-") != 0)
        INVAR_TRY(s->json ? invar_bisect_report_json(stdout, a)
                          : invar_bisect_report_print(stdout, a, invar_term_has_color(stdout)));
    INVAR_TRY(store_result(a));
    INVAR_TRY(invar_archive_answer(a, exit_code(a)));
    if (!s->html)
        return INVAR_OK;
    INVAR_TRY(invar_output_open(&page, s->html, INVAR_PAGE_MARK("answer")));
    return invar_output_close(&page, invar_bisect_report_html(page.stream, a));
}

int invar_bisect_run_and_print(const invar_bisect_case *what, const invar_bisect_settings *settings,
                               const char *log)
{
    progress_screen s = {.live = invar_term_live(stderr), .color = invar_term_has_color(stderr)};
    invar_bisect_options options = {
        .work = settings->work,
        .log = log,
        .jobs = settings->jobs,
        .threads = invar_default_threads(),
        .stop = invar_interactive_catch_signals("stopping; run the same command again to continue"),
        .event = show_trial,
        .payload = &s};
    invar_bisect_result *answer = NULL;
    invar_status status =
        settings->html ? invar_output_check(settings->html, INVAR_PAGE_MARK("answer")) : INVAR_OK;
    int code;

    if (status == INVAR_OK)
        status = invar_bisect_run(&answer, what, &options);
    if (s.live)
        fputs("\r\033[K", stderr);
    if (status == INVAR_OK)
        status = print_and_store_result(answer, settings);
    code = status == INVAR_OK ? exit_code(answer) : invar_report_error();
    invar_bisect_result_free(answer);
    return code;
}

invar_status invar_bisect_folder(char out[INVAR_PATH_SIZE], const invar_bisect_settings *settings)
{
    invar_workspace *workspace = NULL;
    invar_repo *repo = NULL;
    invar_status status = invar_repo_open(&repo, settings->repo);

    if (status == INVAR_OK)
        status = invar_workspace_open(
            &workspace, settings->work, invar_repo_folder(repo),
            (const char *const[]){invar_repo_folder(repo), invar_repo_work_tree(repo), NULL});
    if (status == INVAR_OK)
        status =
            invar_path_join(out, INVAR_PATH_SIZE, invar_workspace_folder(workspace), "bisects");
    invar_workspace_close(workspace);
    invar_repo_close(repo);
    return status;
}
