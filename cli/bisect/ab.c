/*
 * ab.c - invar ab: compares two versions of a program, or two recipes, on the same seeds.
 *
 * Options and recipes are checked before anything is built. Two recipes without --a and --b are
 * compared with this program on both sides. The result is printed as text or JSON, and as a page
 * next to the experiment or in --html.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/ab/ab.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "base/process/argv0.h"
#include "bisect/view/ab.h"
#include "bisect/view/json.h"
#include "cli/bisect/bisect.h"
#include "cli/interactive.h"
#include "cli/output.h"
#include "cli/recipe_flags.h"
#include "cli/safe_text.h"
#include "engine/config/config.h"
#include "ledger/view/page.h"

#include "base/invar_banned.h"

typedef struct settings {
    invar_bisect_settings shared;
    invar_ab_case what;
} settings;

static const int exit_codes[] = {[INVAR_AB_IDENTICAL] = INVAR_EXIT_OK,
                                 [INVAR_AB_DIFFERENT] = INVAR_EXIT_DIFFERENT,
                                 [INVAR_AB_NONDETERMINISTIC] = INVAR_EXIT_NONDETERMINISTIC,
                                 [INVAR_AB_UNTESTABLE] = INVAR_EXIT_UNTESTABLE,
                                 [INVAR_AB_STOPPED] = INVAR_EXIT_TROUBLE};

/* ---- the result ------------------------------------------------------------------------------ */

/*
 * Writes the page to `html`, or next to the ledger of the experiment. *path_out is empty if there
 * is nothing to show.
 */
static invar_status write_page(char path_out[INVAR_PATH_SIZE], const invar_ab_result *answer,
                               const char *html)
{
    invar_output page;

    path_out[0] = '\0';
    if (!html && !answer->ledger[0])
        return INVAR_OK;
    if (html)
        (void)snprintf(path_out, INVAR_PATH_SIZE, "%s", html);
    else
        INVAR_TRY(invar_path_join(path_out, INVAR_PATH_SIZE, answer->folder, "report.html"));
    INVAR_TRY(html ? invar_output_open(&page, path_out, INVAR_PAGE_MARK("ab"))
                   : invar_output_replace(&page, path_out, NULL));
    return invar_output_close(&page, invar_ab_html(page.stream, answer));
}

static void print_path(const char *what, const char *path)
{
    printf("%-9s ", what);
    invar_safe_text_print(stdout, path);
    putchar('\n');
}

static void print_next(const invar_ab_result *answer)
{
    const invar_ab_effects *effects = &answer->effects;

    if (effects->count > effects->n_same) {
        printf("next: %s ledger query ab-effect --experiment %s --metric ", invar_argv0(),
               answer->id);
        invar_text_print_shell_word(stdout, effects->items->name);
        printf(" --step %" PRId64 " --ledger ", effects->items->step);
        invar_text_print_shell_word(stdout, answer->ledger);
        putchar('\n');
    }
    if (answer->divergence.known) {
        printf("next: %s diff ", invar_argv0());
        invar_text_print_shell_word(stdout, answer->divergence.ledger_before);
        putchar(' ');
        invar_text_print_shell_word(stdout, answer->divergence.ledger_after);
        putchar('\n');
    }
}

static invar_status print_result(const invar_ab_result *answer, const settings *s)
{
    char page[INVAR_PATH_SIZE];

    INVAR_TRY(write_page(page, answer, s->shared.html));
    if (strcmp(page, "-") == 0)
        return INVAR_OK;
    if (s->shared.json)
        return invar_view_write(stdout, invar_ab_object(answer));
    INVAR_TRY(invar_ab_print(stdout, answer, invar_term_has_color(stdout)));
    if (answer->ledger[0])
        print_path("ledger", answer->ledger);
    if (page[0])
        print_path("report", page);
    if (answer->ledger[0]) {
        putchar('\n');
        print_next(answer);
    }
    return INVAR_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

static const invar_option *ab_options(settings *s)
{
    static invar_option list[8 + INVAR_BISECT_SHARED_OPTIONS];
    const invar_option own[] = {
        {"a", INVAR_OPTION_TEXT, &s->what.sides[INVAR_AB_A], "WHAT",
         "side A: a revision, a folder or a program", 0, 0},
        {"b", INVAR_OPTION_TEXT, &s->what.sides[INVAR_AB_B], "WHAT",
         "side B: a revision, a folder or a program", 0, 0},
        {"seeds", INVAR_OPTION_INT, &s->what.seeds, "N",
         "number of seeds, counting up from the recipe's (3)", 1, INVAR_AB_SEEDS},
        {"steps", INVAR_OPTION_INT, &s->what.steps, "N",
         "number of steps in each run (all of the recipe)", 1, INT64_C(1) << 40},
        {"own-recipe", INVAR_OPTION_FLAG, &s->what.own_recipe, NULL,
         "RECIPE is a path inside each tree; each side runs its own version", 0, 0},
        {"build", INVAR_OPTION_TEXT, &s->what.build, "CMD",
         "shell command that builds a tree (default: cmake, as for Invar)", 0, 0},
        {"program", INVAR_OPTION_TEXT, &s->what.program, "PATH",
         "program that the build makes; @NAME: inside the build folder (@invar)", 0, 0}};

    memcpy(list, own, sizeof own);
    invar_bisect_options_shared(list + 7, &s->shared);
    list[7 + INVAR_BISECT_SHARED_OPTIONS] = (invar_option)INVAR_RECIPE_FLAGS_END;
    return list;
}

static invar_status check_settings(const settings *s, const char *path)
{
    if (!s->what.sides[INVAR_AB_A] || !s->what.sides[INVAR_AB_B])
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "both sides are needed: --a and --b, or two recipes without them");
    if (s->what.own_recipe && s->what.recipe_b)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--own-recipe: one recipe is in both trees; give one, or leave it out");
    if (s->what.own_recipe && path[0] == '/')
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--own-recipe: the recipe is named by its path in the trees");
    if (s->shared.html) // before anything is built
        return invar_output_check(s->shared.html, INVAR_PAGE_MARK("ab"));
    return INVAR_OK;
}

/* Checks a recipe before anything runs. */
static invar_status check_recipe(const char *path, const char *const *flags)
{
    const invar_option none = {.name = NULL};
    invar_config config = {.recipe = NULL};
    int words = 1;
    const char *found;
    invar_error why;
    invar_status status;
    char **list;

    while (flags[words - 1])
        words++;
    INVAR_TRY(INVAR_ALLOC(list, (size_t)words + 1, "flags"));
    list[0] = (char *)(uintptr_t)path;
    memcpy(list + 1, flags, (size_t)words * sizeof *list); // including the NULL
    status = invar_recipe_flags_recipe(&config, &found, &none, &words, list);
    invar_free(list);
    if (status == INVAR_OK)
        status = invar_config_check(&config);
    invar_recipe_free(config.recipe);
    if (status == INVAR_OK)
        return status;
    invar_error_take(&why);
    return INVAR_FAIL(status, 0, "%.1000s: %s", path, why.message);
}

/* Uses this program for both sides if two recipes and no sides are given. */
static invar_status fill_sides(settings *s, const char *const *flags)
{
    static char self[INVAR_PATH_SIZE] = "file:";
    const size_t prefix = strlen("file:");
    ssize_t length;

    if (!s->what.recipe_b || s->what.sides[INVAR_AB_A] || s->what.sides[INVAR_AB_B])
        return INVAR_OK;
    length = readlink("/proc/self/exe", self + prefix, sizeof self - prefix - 1);
    if (length <= 0)
        return INVAR_FAIL(INVAR_E_IO, errno,
                          "this program cannot be found: %s; name both sides with --a and --b",
                          strerror(errno));
    self[prefix + (size_t)length] = '\0';
    s->what.sides[INVAR_AB_A] = s->what.sides[INVAR_AB_B] = self;
    INVAR_TRY(check_recipe(s->what.recipe, flags));
    return check_recipe(s->what.recipe_b, flags);
}

/* Parses the command line. Words that are neither options nor keys are recipes. */
static invar_status parse_arguments(settings *s, const char ***flags_out, int argc, char **argv)
{
    int words;

    INVAR_TRY(invar_recipe_flags_to_argv(flags_out, ab_options(s), &argc, argv));
    INVAR_TRY(
        invar_options_parse_words(&words, ab_options(s), argc, argv, "one RECIPE or two", 1, 2));
    s->what.recipe = argv[0];
    s->what.recipe_b = words == 2 ? argv[1] : NULL;
    INVAR_TRY(fill_sides(s, *flags_out));
    s->what.flags = *flags_out;
    return check_settings(s, argv[0]);
}

/* Prints progress, with a prefix that distinguishes it from errors. */
static void print_progress(void *payload, const char *line)
{
    (void)payload;
    fputs("ab: ", stderr);
    invar_safe_text_print(stderr, line);
    fputc('\n', stderr);
}

static invar_status run_experiment(int *code_out, settings *s)
{
    const invar_ab_options how = {
        .work = s->shared.work,
        .jobs = s->shared.jobs,
        .threads = invar_default_threads(),
        .stop = invar_interactive_catch_signals("stopping; run the same command again to continue"),
        .say = print_progress};
    invar_ab_result *answer = NULL;
    invar_status status;

    s->what.repo = s->shared.repo;
    s->what.timeout = s->shared.timeout;
    INVAR_TRY(invar_ab_run(&answer, &s->what, &how));
    *code_out = exit_codes[answer->verdict];
    status = print_result(answer, s);
    invar_ab_result_free(answer);
    return status;
}

static int cmd_ab(int argc, char **argv)
{
    settings s = {.what = {.seeds = 3}};
    const char **flags = NULL;
    int code = INVAR_EXIT_TROUBLE;
    invar_status status = parse_arguments(&s, &flags, argc, argv);

    if (status == INVAR_OK)
        status = run_experiment(&code, &s);
    invar_free((void *)flags);
    return status == INVAR_OK ? code : invar_report_error();
}

static void ab_help(void)
{
    settings s;

    invar_help_text(
        "Runs a recipe with two versions of the program, on the same seeds, prompts and schedule.\n"
        "The answer is 'identical', or where the two diverge, down to the op, and how every\n"
        "metric changes, rewards and evaluations first.\n"
        "\n"
        "With two recipes, A runs the first and B the second, both by this program unless --a and\n"
        "--b say otherwise; the keys that differ are named. Seeds must be equal.\n"
        "\n"
        "A side is an executable file, a folder (a work tree with its uncommitted changes; it is\n"
        "only read) or a git revision. Write file:, dir: or rev: before it when the kind is\n"
        "unclear. Side A first runs twice, with different threads and micro-batches. If these two\n"
        "runs differ, A is nondeterministic and the experiment stops.\n"
        "\n"
        "If the experiment is interrupted, run the same command again to continue it.\n"
        "\n"
        "Exit codes:\n"
        "  0    identical\n"
        "  1    different\n"
        "  2    could not finish\n"
        "  3    a side is nondeterministic\n"
        "  125  a side cannot be built or run\n"
        "  129  wrong arguments, or no such revision\n");
    invar_options_help(ab_options(&s));
    invar_help_text(
        "\n"
        "Every recipe key is also an option: 'invar help train' lists them, 'invar help KEY'\n"
        "explains one.");
}

const invar_cli_command invar_cmd_ab = {
    .name = "ab",
    .summary = "compare two versions, or two recipes, on the same seeds",
    .run = cmd_ab,
    .help = ab_help,
    .result = invar_ab_members,
    .arguments = "[--a REV|DIR|FILE --b REV|DIR|FILE] RECIPE [RECIPE] [--option value ...] "
                 "[--key value ...]"};
