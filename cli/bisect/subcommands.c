/*
 * subcommands.c - invar bisect log, view, resume-log and reset: commands on stored bisects.
 *
 * They work on the newest bisect in the workspace of a repository. A log may come from another
 * machine and contains commands, so resume-log prints everything that would be executed and asks
 * first.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/text.h"
#include "bisect/state/state.h"
#include "bisect/view/bisect_report.h"
#include "cli/bisect/bisect.h"
#include "cli/interactive.h"
#include "cli/ledger/ledger.h"
#include "cli/output.h"
#include "cli/safe_text.h"
#include "ledger/view/page.h"

#include "base/invar_banned.h"

#define MAX_BYTES (64u << 20)

typedef struct settings {
    invar_bisect_settings shared;
    bool git, all, yes;
} settings;

/* Returns the shared options that `names` lists, after `own` unless that has no name. */
static const invar_option *choose_options(settings *s, const char *names, invar_option own)
{
    static invar_option list[INVAR_BISECT_SHARED_OPTIONS + 2];
    invar_option shared[INVAR_BISECT_SHARED_OPTIONS];
    const char *name;
    size_t bytes;
    int count = 0;

    invar_bisect_options_shared(shared, &s->shared);
    if (own.name)
        list[count++] = own;
    while (invar_text_item(&name, &bytes, &names, ' '))
        for (int i = 0; i < INVAR_BISECT_SHARED_OPTIONS; i++)
            if (strncmp(shared[i].name, name, bytes) == 0)
                list[count++] = shared[i];
    list[count] = (invar_option){0};
    return list;
}

/* Computes the path of a file of the newest bisect: "state" or a form of the result. */
static invar_status newest_file(char out[INVAR_PATH_SIZE], const settings *s, const char *name)
{
    char folder[INVAR_PATH_SIZE];
    size_t bytes;

    INVAR_TRY(invar_bisect_folder(folder, &s->shared));
    INVAR_TRY(invar_bisect_state_newest(out, folder));
    bytes = (size_t)(strrchr(out, '/') + 1 - out);
    if (bytes + strlen(name) >= INVAR_PATH_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the path of the bisect is too long");
    memcpy(out + bytes, name, strlen(name) + 1);
    return INVAR_OK;
}

static invar_status copy_file(FILE *out, const char *path)
{
    size_t bytes;
    char *text;

    INVAR_TRY(invar_file_read(&text, &bytes, path, MAX_BYTES));
    (void)fwrite(text, 1, bytes, out); // main checks stdout for errors
    invar_free(text);
    return INVAR_OK;
}

/* ---- log ------------------------------------------------------------------------------------- */

/* Prints the trials in the format of git bisect replay. The verdict "third" counts as bad there. */
static void print_git(const invar_bisect_state *state)
{
    const invar_bisect_case *what = &state->what;

    printf("git bisect start%s '%s' '%s'", what->first_parent ? " '--first-parent'" : "", what->bad,
           what->good);
    for (const char *const *path = what->paths; path && *path; path++) {
        fputs(path == what->paths ? " -- " : " ", stdout);
        invar_text_print_shell_word(stdout, *path);
    }
    putchar('\n');
    for (size_t i = 0; i < state->count; i++) {
        const invar_bisect_trial *t = &state->trials[i].trial;
        const char *word = t->verdict[0] == 'g' ? "good" : t->verdict[0] == 's' ? "skip" : "bad";
        if (strcmp(t->role, "search") == 0)
            printf("# %s: %s\ngit bisect %s %s\n", t->role, t->verdict, word, t->commit);
    }
}

static const invar_option *bisect_log_options(settings *s)
{
    return choose_options(s, "repo work",
                          (invar_option){"git", INVAR_OPTION_FLAG, &s->git, NULL,
                                         "print the log in the format of 'git bisect replay'", 0,
                                         0});
}

static invar_status print_log(const settings *s)
{
    char path[INVAR_PATH_SIZE];
    invar_bisect_state *state;

    INVAR_TRY(newest_file(path, s, "state"));
    if (!s->git)
        return copy_file(stdout, path);
    INVAR_TRY(invar_bisect_state_read(&state, path));
    print_git(state);
    invar_bisect_state_close(state);
    return INVAR_OK;
}

static int cmd_bisect_log(int argc, char **argv)
{
    settings s = {.git = false};
    invar_status status = invar_options_parse(bisect_log_options(&s), argc, argv);

    return invar_exit(status == INVAR_OK ? print_log(&s) : status);
}

static void bisect_log_help(void)
{
    settings s;

    invar_help_text(
        "Prints the question of the repository's latest bisect and the result of each trial.\n"
        "'invar bisect resume-log' continues from this output on another machine.\n");
    invar_options_help(bisect_log_options(&s));
}

static const invar_cli_command bisect_log_command = {
    .name = "log",
    .summary = "print the question and the result of every trial",
    .run = cmd_bisect_log,
    .help = bisect_log_help,
    .arguments = "[--git]"};

/* ---- view ------------------------------------------------------------------------------------ */

static const invar_option *bisect_view_options(settings *s)
{
    return choose_options(s, "repo work html json", (invar_option){0});
}

/* Fails if the bisect has no result yet. */
static invar_status check_result_exists(const char *path)
{
    if (invar_path_exists(path))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                      "the newest bisect has no answer yet: run its command again to continue; "
                      "invar bisect log shows how far it is");
}

static invar_status print_view(const settings *s)
{
    char path[INVAR_PATH_SIZE];
    invar_output page;

    if (s->shared.html) {
        INVAR_TRY(newest_file(path, s, "answer.html"));
        INVAR_TRY(check_result_exists(path));
        INVAR_TRY(invar_output_open(&page, s->shared.html, INVAR_PAGE_MARK("answer")));
        INVAR_TRY(invar_output_close(&page, copy_file(page.stream, path)));
        if (page.stream == stdout)
            return INVAR_OK;
    }
    INVAR_TRY(newest_file(path, s, s->shared.json ? "answer.json" : "answer.txt"));
    INVAR_TRY(check_result_exists(path));
    return copy_file(stdout, path);
}

static int cmd_bisect_view(int argc, char **argv)
{
    settings s = {.git = false};
    invar_status status = invar_options_parse(bisect_view_options(&s), argc, argv);

    return invar_exit(status == INVAR_OK ? print_view(&s) : status);
}

static void bisect_view_help(void)
{
    settings s;

    invar_help_text("Shows the result of the repository's latest bisect again. Runs nothing.\n");
    invar_options_help(bisect_view_options(&s));
}

static const invar_cli_command bisect_view_command = {
    .name = "view",
    .summary = "show the result of the latest bisect again",
    .run = cmd_bisect_view,
    .help = bisect_view_help,
    .result = invar_bisect_report_members,
    .arguments = "[--json] [--html FILE]"};

/* ---- resume-log ------------------------------------------------------------------------------ */

static const invar_option *bisect_resume_log_options(settings *s)
{
    return choose_options(s, "repo work jobs html json",
                          (invar_option){"yes", INVAR_OPTION_FLAG, &s->yes, NULL,
                                         "run the commands of the log without asking", 0, 0});
}

/* Prints a text, each line below the other; nothing if it is NULL. */
static void show_text(const char *name, const char *text)
{
    while (text && *text) {
        size_t bytes = strcspn(text, "\n");
        fprintf(stderr, "  %-11s", name);
        invar_safe_text_print_bytes(stderr, text, bytes);
        fputc('\n', stderr);
        text += bytes + (text[bytes] == '\n');
        name = "";
    }
}

/*
 * Prints everything in a log that decides what is executed, including the recipe, which may name
 * plug-ins.
 */
static void show_commands(const invar_bisect_case *what)
{
    fputs("this log runs, as you and on this machine:\n", stderr);
    show_text("repository", what->repo);
    show_text("build", what->build || what->run ? what->build : "with cmake, as Invar is");
    show_text("run", what->run);
    show_text("recipe", what->recipe_text);
    for (const char *const *flag = what->flags; flag && *flag; flag++)
        show_text("flag", *flag);
}

/*
 * Asks for permission, because a log may come from elsewhere and its commands run with all rights
 * of the user.
 */
static invar_status ask_permission(const settings *s, const invar_bisect_case *what,
                                   const char *path)
{
    char answer[16], shown[INVAR_PATH_SHOWN_SIZE];

    show_commands(what);
    if (s->yes)
        return INVAR_OK;
    invar_path_show(shown, path);
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: nothing was run: read the commands above, then give --yes", shown);
    if (invar_interactive_ask(answer, sizeof answer, stderr, "run them? [y/N] ") &&
        (answer[0] == 'y' || answer[0] == 'Y'))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_STATE, 0, "%s: nothing was run", shown);
}

static int resume_from_log(const settings *s, const char *path)
{
    invar_bisect_state *state;
    invar_bisect_case what;
    int code;

    if (invar_bisect_state_read(&state, path) != INVAR_OK)
        return invar_report_error();
    what = state->what;
    what.recipe_text = state->recipe;
    if (s->shared.repo)
        what.repo = s->shared.repo;
    code = ask_permission(s, &what, path) == INVAR_OK
               ? invar_bisect_run_and_print(&what, &s->shared, path)
               : invar_report_error();
    invar_bisect_state_close(state);
    return code;
}

static int cmd_bisect_resume_log(int argc, char **argv)
{
    settings s = {.git = false};
    const invar_option *list = bisect_resume_log_options(&s);
    int words;

    s.shared.repo = NULL; // NULL keeps the repository of the log
    if (invar_options_parse_words(&words, list, argc, argv, "FILE, what invar bisect log printed",
                                  1, 1) != INVAR_OK)
        return invar_report_error();
    return resume_from_log(&s, argv[0]);
}

static void bisect_resume_log_help(void)
{
    settings s;

    invar_help_text(
        "Continues a bisect from a log that 'invar bisect log' printed. Trials in the log are not\n"
        "run again. If the repository is at another path here, name it with --repo.\n"
        "\n"
        "The log contains shell commands and a recipe, which will run as you. They are shown\n"
        "first and you are asked to confirm. --yes skips the question; without a terminal and\n"
        "without --yes nothing runs.\n");
    invar_options_help(bisect_resume_log_options(&s));
}

static const invar_cli_command bisect_resume_log_command = {
    .name = "resume-log",
    .summary = "continue from a log, here or on another machine",
    .run = cmd_bisect_resume_log,
    .help = bisect_resume_log_help,
    .result = invar_bisect_report_members,
    .arguments = "FILE [--yes] [--repo DIR]"};

/* ---- reset ----------------------------------------------------------------------------------- */

static const invar_option *bisect_reset_options(settings *s)
{
    return choose_options(s, "repo work",
                          (invar_option){"all", INVAR_OPTION_FLAG, &s->all, NULL,
                                         "also delete built programs, runs and checkouts", 0, 0});
}

static invar_status remove_bisects(const settings *s)
{
    static const char *const rest[] = {"programs", "runs", "slots", "samples"};
    char folder[INVAR_PATH_SIZE], path[INVAR_PATH_SIZE];
    int64_t count;

    INVAR_TRY(invar_bisect_folder(folder, &s->shared));
    INVAR_TRY(invar_bisect_state_remove_all(&count, folder));
    *strrchr(folder, '/') = '\0';
    for (size_t i = 0; s->all && i < sizeof rest / sizeof *rest; i++) {
        INVAR_TRY(invar_path_join(path, sizeof path, folder, rest[i]));
        INVAR_TRY(invar_held_folder_remove(path));
    }
    printf("removed %" PRId64 " bisect%s%s from ", count, invar_text_plural(count),
           s->all ? ", all programs, runs and checkouts" : "");
    invar_safe_text_print(stdout, folder);
    putchar('\n');
    return INVAR_OK;
}

static int cmd_bisect_reset(int argc, char **argv)
{
    settings s = {.git = false};
    invar_status status = invar_options_parse(bisect_reset_options(&s), argc, argv);

    return invar_exit(status == INVAR_OK ? remove_bisects(&s) : status);
}

static void bisect_reset_help(void)
{
    settings s;

    invar_help_text(
        "Deletes the records of all bisects of the repository. Built programs and finished runs\n"
        "stay cached, so that the next bisect is quick; --all deletes them too.\n");
    invar_options_help(bisect_reset_options(&s));
}

static const invar_cli_command bisect_reset_command = {.name = "reset",
                                                       .summary =
                                                           "delete the bisects of a repository",
                                                       .run = cmd_bisect_reset,
                                                       .help = bisect_reset_help,
                                                       .arguments = "[--all]"};

const invar_cli_command *const invar_bisect_verbs[] = {&bisect_log_command, &bisect_view_command,
                                                       &bisect_resume_log_command,
                                                       &bisect_reset_command, NULL};
