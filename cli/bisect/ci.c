/*
 * ci.c - invar ci: records and checks goldens; bit-exact CI on the command line.
 *
 * Check runs the cases and prints a table, JSON, JUnit XML and GitHub annotations. The exit code is
 * that of the gravest verdict. If the variable CI is set, nothing is written: goldens are accepted
 * by people only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bisect/ci.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/progress.h"
#include "base/console/term.h"
#include "base/process/process.h"
#include "bisect/view/ci.h"
#include "cli/bisect/archive.h"
#include "cli/interactive.h"
#include "cli/ledger/ledger.h"
#include "cli/output.h"
#include "cli/safe_text.h"
#include "cli/text_table.h"

#include "base/invar_banned.h"

#define GENERATOR "invar " INVAR_VERSION ", ci"

/* ---- shared by the subcommands --------------------------------------------------------------- */

invar_option invar_option_cases(const char **value)
{
    return (invar_option){.name = "cases",
                          .type = INVAR_OPTION_TEXT,
                          .value = value,
                          .metavar = "DIR",
                          .help = "folder of recipes and goldens (recipes)"};
}

bool invar_ci_unattended(void)
{
    const char *ci = getenv("CI");

    return ci && *ci && strcmp(ci, "false") != 0;
}

invar_status invar_ci_attended(const char *what)
{
    if (invar_ci_unattended())
        return INVAR_FAIL(INVAR_E_STATE, 0, "%s writes, and CI is set: goldens are made by people",
                          what);
    return INVAR_OK;
}

static invar_status choose_all(invar_ci_case **out, size_t *count_out, const char *folder,
                               bool (*wanted)(const invar_ci_case *item))
{
    size_t count, kept = 0;

    INVAR_TRY(invar_ci_cases(out, &count, folder));
    for (size_t i = 0; i < count; i++)
        if (wanted(&(*out)[i]))
            (*out)[kept++] = (*out)[i];
    *count_out = kept;
    return INVAR_OK;
}

static const char *file_of(const invar_ci_case *item)
{
    const char *slash = strrchr(item->recipe, '/');

    return slash ? slash + 1 : item->recipe;
}

/* Replaces the names of cases from different folders by their paths if they are ambiguous. */
static invar_status make_names_unique(invar_ci_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        invar_ci_case *item = &cases[i];
        size_t k = 0, bytes = strlen(item->recipe) - strlen(".ini");

        while (k < count && (strcmp(file_of(&cases[k]), file_of(item)) != 0 ||
                             strcmp(cases[k].recipe, item->recipe) == 0))
            k++;
        if (k == count)
            continue;
        if (bytes >= sizeof item->name)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "two cases are called '%s', and the path of one is too long to tell "
                              "them apart: check them one by one",
                              item->name);
        memcpy(item->name, item->recipe, bytes);
        item->name[bytes] = '\0';
    }
    return INVAR_OK;
}

invar_status invar_ci_choose(invar_ci_case **out, size_t *count_out, const char *folder, int words,
                             char **argv, bool (*wanted)(const invar_ci_case *item))
{
    invar_status status = INVAR_OK;
    invar_ci_case *cases;

    *out = NULL;
    if (words == 0)
        return choose_all(out, count_out, folder, wanted);
    INVAR_TRY(INVAR_ALLOC(cases, (size_t)words, "cases"));
    for (int i = 0; i < words && status == INVAR_OK; i++)
        status = invar_ci_case_of(&cases[i], folder, argv[i]);
    if (status == INVAR_OK)
        status = make_names_unique(cases, (size_t)words);
    if (status != INVAR_OK) {
        invar_free(cases);
        return status;
    }
    *out = cases;
    *count_out = (size_t)words;
    return INVAR_OK;
}

/*
 * The text between verdict and headline ("same 4 of 4 steps", "changed from step 7", but "trouble:
 * there is no recipe" and "stopped"), the exit code, and how grave the verdict is.
 */
static const struct {
    const char *separator;
    int code, gravity;
} verdicts[] = {[INVAR_CI_SAME] = {" ", INVAR_EXIT_OK, 0},
                [INVAR_CI_NOTHING] = {": ", INVAR_EXIT_NOTHING, 1},
                [INVAR_CI_OBSOLETE] = {": ", INVAR_EXIT_GOLDEN, 2},
                [INVAR_CI_MISSING] = {": ", INVAR_EXIT_GOLDEN, 3},
                [INVAR_CI_CHANGED] = {" ", INVAR_EXIT_DIFFERENT, 4},
                [INVAR_CI_NONDETERMINISTIC] = {" ", INVAR_EXIT_NONDETERMINISTIC, 5},
                [INVAR_CI_TROUBLE] = {": ", INVAR_EXIT_TROUBLE, 6},
                [INVAR_CI_STOPPED] = {"", INVAR_EXIT_TROUBLE, 7}};

void invar_ci_show(const invar_ci_result *result)
{
    bool color = invar_term_has_color(stdout), same = result->verdict == INVAR_CI_SAME;
    char headline[INVAR_CI_LINE];

    invar_ci_headline(headline, result);
    invar_safe_text_print(stdout, result->item->name);
    printf(": %s%s%s%s%s\n",
           invar_term_escape(color, same ? INVAR_TERM_STYLE_GREEN : INVAR_TERM_STYLE_RED),
           invar_ci_verdict_name(result->verdict), invar_term_escape(color, INVAR_TERM_STYLE_PLAIN),
           verdicts[result->verdict].separator, headline);
    invar_ci_details(stdout, result, "  ");
}

/* ---- settings -------------------------------------------------------------------------------- */

typedef struct settings {
    const char *cases, *junit, *archive;
    bool no_write, json, force;
    invar_ci_options how;
} settings;

static const invar_option *ci_check_options(settings *s)
{
    static invar_option list[15];
    const invar_option own[] = {
        {"program", INVAR_OPTION_TEXT, &s->how.program, "PATH", "the invar to test (this one)", 0,
         0},
        {"steps", INVAR_OPTION_INT, &s->how.steps, "N", "compare only the first N steps (all)", 1,
         INT64_C(1) << 40},
        {"jobs", INVAR_OPTION_INT, &s->how.jobs, "N",
         "number of cases that run at the same time (1)", 1, 64},
        {"chaos", INVAR_OPTION_INT, &s->how.chaos, "[N]",
         "run each case N more times (4) with random threads, batches and environment; the bits "
         "must not change",
         0, 1000},
        {"chaos-seed", INVAR_OPTION_INT, &s->how.chaos_seed, "N",
         "seed of the random choices of --chaos (0)", 0, INT64_MAX},
        {"junit", INVAR_OPTION_TEXT, &s->junit, "FILE", "also write the result as JUnit XML", 0, 0},
        {"archive", INVAR_OPTION_TEXT, &s->archive, "LEDGER",
         "also append the result to this ledger file, for the queries ci-history and golden-drift",
         0, 0},
        {"no-write", INVAR_OPTION_FLAG, &s->no_write, NULL,
         "do not store changed bits as pending; the default when CI is set in the environment", 0,
         0},
        {"bisect", INVAR_OPTION_FLAG, &s->how.identity_is_result, NULL,
         "for 'git bisect run': exit code 125 when a revision cannot be judged", 0, 0},
        {"golden", INVAR_OPTION_TEXT, &s->how.golden, "FILE",
         "golden file to use instead of the case's own; for a single case", 0, 0},
        {"work", INVAR_OPTION_TEXT, &s->how.work, "DIR",
         "keep the runs in this folder (default: delete them)", 0, 0},
        {"timeout", INVAR_OPTION_REAL, &s->how.timeout, "S",
         "time limit of a run in seconds (3600); 0: none", 0, INT64_C(1) << 40},
        invar_option_cases(&s->cases),
        invar_option_json(&s->json),
        {0}};

    return memcpy(list, own, sizeof own);
}

static const invar_option *ci_record_options(settings *s)
{
    static invar_option list[6];
    const invar_option own[] = {
        {"program", INVAR_OPTION_TEXT, &s->how.program, "PATH",
         "the invar that runs the case (this one)", 0, 0},
        {"force", INVAR_OPTION_FLAG, &s->force, NULL, "replace an existing golden", 0, 0},
        {"work", INVAR_OPTION_TEXT, &s->how.work, "DIR",
         "keep the runs in this folder (default: delete them)", 0, 0},
        {"timeout", INVAR_OPTION_REAL, &s->how.timeout, "S",
         "time limit of a run in seconds (3600); 0: none", 0, INT64_C(1) << 40},
        invar_option_cases(&s->cases),
        {0}};

    return memcpy(list, own, sizeof own);
}

/* ---- progress -------------------------------------------------------------------------------- */

static void show_progress(void *payload, invar_ci_event event, const invar_ci_result *result,
                          int64_t done, int64_t total)
{
    invar_progress **progress = payload;
    char text[INVAR_CI_LINE];
    invar_progress_options o = {.stream = stderr, .title = "ci", .unit = "runs", .total = total};

    if (!*progress && invar_progress_new(progress, &o) != INVAR_OK) {
        invar_error_clear();
        return;
    }
    (void)snprintf(text, sizeof text, "%.100s %s", result->item->name,
                   event == INVAR_CI_ENDED ? invar_ci_verdict_name(result->verdict) : "");
    invar_progress_update(*progress, done, text);
}

/* Completes the options of the command line. */
static invar_ci_options make_options(const settings *s, invar_progress **progress)
{
    invar_ci_options o = s->how;

    o.generator = GENERATOR;
    // a pending golden belongs to the golden of the case itself
    o.write = !s->no_write && !o.golden && !invar_ci_unattended();
    o.stop = invar_interactive_catch_signals("stopping");
    o.event = show_progress;
    o.payload = progress;
    return o;
}

/* ---- results --------------------------------------------------------------------------------- */

/* Returns the exit code of the gravest verdict. */
static int exit_code(const invar_ci_result *results, size_t count)
{
    invar_ci_verdict gravest = count ? INVAR_CI_SAME : INVAR_CI_NOTHING;

    for (size_t i = 0; i < count; i++)
        if (verdicts[results[i].verdict].gravity > verdicts[gravest].gravity)
            gravest = results[i].verdict;
    return verdicts[gravest].code;
}

/* Maps an exit code for git bisect run: 0 good, 1 bad, 125 skip, 128 and above end the search. */
static int exit_code_for_git(const settings *s, int code)
{
    if (!s->how.identity_is_result || code == INVAR_EXIT_OK || code == INVAR_EXIT_DIFFERENT ||
        code == INVAR_EXIT_USAGE)
        return code;
    return invar_interactive_caught() ? invar_process_stop_code(invar_interactive_caught())
                                      : INVAR_EXIT_UNTESTABLE;
}

static invar_status print_table(const invar_ci_result *results, size_t count)
{
    invar_text_table grid = {.columns = 6};
    char seconds[32];

    invar_text_table_add(&grid, "ssssss", "case", "verdict", "steps", "runs", "seconds", "first");
    for (size_t i = 0; i < count; i++) {
        const invar_ci_result *r = &results[i];
        (void)snprintf(seconds, sizeof seconds, "%.1f", r->seconds);
        invar_text_table_add(&grid, "ssiin", r->item->name, invar_ci_verdict_name(r->verdict),
                             r->compared, (int64_t)r->runs, seconds);
        invar_text_table_add(&grid, r->first >= 0 ? "i" : "", r->first);
        invar_text_table_add(&grid, r->first >= 0 ? "" : "s", "");
    }
    return invar_text_table_show(&grid, stdout, INVAR_OK);
}

#define RESULT "{exit_code int, cases [" INVAR_CI_RESULT "]}"

static invar_status print_results(const settings *s, const invar_ci_result *results, size_t count,
                                  int code)
{
    if (s->json)
        return invar_json_write(stdout, INVAR_RESULT(RESULT, code, invar_ci_json(results, count)));
    for (size_t i = 0; i < count; i++)
        if (results[i].verdict != INVAR_CI_SAME || results[i].chaos)
            invar_ci_show(&results[i]);
    if (count == 0)
        printf("no case with a golden in %s: 'invar ci record CASE' makes one\n", s->cases);
    return count ? print_table(results, count) : INVAR_OK;
}

/*
 * Writes annotations, the job summary and JUnit XML, as far as requested by options or the
 * environment.
 */
static invar_status print_services(const settings *s, const invar_ci_result *results, size_t count)
{
    const char *actions = getenv("GITHUB_ACTIONS"), *summary = getenv("GITHUB_STEP_SUMMARY");
    invar_output file;
    FILE *stream;

    if (actions && strcmp(actions, "true") == 0)
        invar_ci_annotations(s->json ? stderr : stdout, results, count);
    if (summary && *summary) {
        stream = fopen(summary, "ae");
        if (stream)
            invar_ci_markdown(stream, results, count);
        if (!stream || fclose(stream) != 0)
            fprintf(stderr, "invar: the summary of the job could not be written\n");
    }
    if (!s->junit)
        return INVAR_OK;
    INVAR_TRY(invar_output_open(&file, s->junit, INVAR_CI_JUNIT_MARK));
    invar_ci_junit(file.stream, results, count);
    return invar_output_close(&file, INVAR_OK);
}

/* ---- check ----------------------------------------------------------------------------------- */

static bool has_golden(const invar_ci_case *item)
{
    return invar_path_exists(item->golden);
}

static invar_status check_cases(int *code_out, const settings *s, const invar_ci_case *cases,
                                size_t count)
{
    invar_progress *progress = NULL;
    invar_ci_options o = make_options(s, &progress);
    invar_ci_result *results;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(results, count, "results"));
    for (size_t i = 0; i < count; i++)
        results[i] = (invar_ci_result){.item = &cases[i]};
    status = count ? invar_ci_check(results, cases, count, &o) : INVAR_OK;
    invar_progress_free(progress);
    if (status == INVAR_OK) {
        *code_out = exit_code_for_git(s, exit_code(results, count));
        status = print_results(s, results, count, *code_out);
    }
    if (status == INVAR_OK)
        status = print_services(s, results, count);
    if (status == INVAR_OK && s->archive && count)
        status = invar_archive_ci(s->archive, results, count, *code_out);
    invar_ci_release(results, count);
    invar_free(results);
    return status;
}

static invar_status check_named_cases(int *code_out, const settings *s, int words, char **argv)
{
    invar_ci_case *cases;
    invar_status status;
    size_t count;

    if (s->how.golden && words != 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--golden FILE is of one case: name it");
    if (s->how.identity_is_result && !s->how.golden)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--bisect needs --golden FILE, a copy outside the tree that changes");
    if (s->how.golden && !invar_path_exists(s->how.golden))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--golden %.1000s: there is no such file",
                          s->how.golden);
    if (s->junit)
        INVAR_TRY(invar_output_check(s->junit, INVAR_CI_JUNIT_MARK));
    if (s->archive)
        INVAR_TRY(invar_archive_check(s->archive));
    INVAR_TRY(invar_ci_choose(&cases, &count, s->cases, words, argv, has_golden));
    status = check_cases(code_out, s, cases, count);
    invar_free(cases);
    return status;
}

/* Replaces "--chaos" without a number by "--chaos=4". */
static void complete_chaos_option(int argc, char **argv)
{
    static char usual[] = "--chaos=4";

    for (int i = 0; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--chaos") == 0 &&
            (*next == '\0' || strspn(next, "0123456789") < strlen(next)))
            argv[i] = usual;
    }
}

static int cmd_ci_check(int argc, char **argv)
{
    settings s = {.cases = "recipes", .how = {.jobs = 1, .timeout = 3600}};
    int words, code = INVAR_EXIT_OK;
    invar_status status;

    complete_chaos_option(argc, argv);
    status = invar_options_parse_words(&words, ci_check_options(&s), argc, argv, "CASE", 0, argc);
    if (status == INVAR_OK)
        status = check_named_cases(&code, &s, words, argv);
    return status == INVAR_OK ? code : exit_code_for_git(&s, invar_report_error());
}

static void ci_check_help(void)
{
    settings s;

    invar_help_text(
        "Runs each CASE and compares its bits with its golden file; without CASE, every recipe in\n"
        "--cases that has a golden. When bits differ, the case runs once more to rule out\n"
        "nondeterminism, and the answer names the first point that differs. The new bits are\n"
        "stored beside the golden as pending, for 'invar ci review', unless CI is set in the\n"
        "environment.\n"
        "\n"
        "Exit codes:\n"
        "  0    same\n"
        "  1    changed\n"
        "  2    could not finish\n"
        "  3    nondeterministic\n"
        "  4    golden missing or obsolete\n"
        "  6    nothing was compared\n"
        "  125  with --bisect, in place of 2, 3, 4 and 6\n");
    invar_options_help(ci_check_options(&s));
}

const invar_cli_command invar_cmd_ci_check = {.name = "check",
                                              .summary =
                                                  "run cases and compare them with their goldens",
                                              .run = cmd_ci_check,
                                              .help = ci_check_help,
                                              .result = RESULT,
                                              .arguments = "[CASE ...] [--option value ...]"};

/* ---- record ---------------------------------------------------------------------------------- */

static invar_status record_case(int *code_out, const settings *s, const char *word)
{
    invar_progress *progress = NULL;
    invar_ci_options o = make_options(s, &progress);
    invar_ci_result result;
    invar_ci_case item;
    invar_status status;

    INVAR_TRY(invar_ci_attended("record"));
    INVAR_TRY(invar_ci_case_of(&item, s->cases, word));
    if (has_golden(&item) && !s->force)
        return INVAR_FAIL(
            INVAR_E_STATE, 0,
            "%.1000s has a golden: 'invar ci check', 'review' and 'accept' change it; "
            "--force records it again",
            item.name);
    status = invar_ci_record(&result, &item, &o);
    invar_progress_free(progress);
    invar_ci_release(&result, 1); // the variations of the second run are not printed
    result.variations = NULL;
    INVAR_TRY(status);
    *code_out = exit_code(&result, 1);
    if (result.verdict != INVAR_CI_SAME) {
        invar_ci_show(&result);
        return INVAR_OK;
    }
    invar_safe_text_print(stdout, item.name);
    printf(": recorded, %" PRId64
           " steps; ran twice with different free keys: the same bits\n  next    git add ",
           result.steps);
    invar_text_print_shell_word(stdout, item.golden);
    putchar(' ');
    invar_text_print_shell_word(stdout, item.points);
    putchar('\n');
    return INVAR_OK;
}

static int cmd_ci_record(int argc, char **argv)
{
    settings s = {.cases = "recipes", .how = {.jobs = 1, .timeout = 3600}};
    int words, code = INVAR_EXIT_OK;
    invar_status status =
        invar_options_parse_words(&words, ci_record_options(&s), argc, argv, "CASE", 1, 1);

    if (status == INVAR_OK)
        status = record_case(&code, &s, argv[0]);
    return status == INVAR_OK ? code : invar_report_error();
}

static void ci_record_help(void)
{
    settings s;

    invar_help_text(
        "Runs a CASE twice, with different threads, batches and environment. If both runs have\n"
        "the same bits, writes NAME.golden and NAME.points beside the recipe.\n");
    invar_options_help(ci_record_options(&s));
}

const invar_cli_command invar_cmd_ci_record = {.name = "record",
                                               .summary = "record the golden of a case",
                                               .run = cmd_ci_record,
                                               .help = ci_record_help,
                                               .arguments = "CASE [--option value ...]"};

/* ---- the group ------------------------------------------------------------------------------- */

static const invar_cli_command *const subs[] = {&invar_cmd_ci_record, &invar_cmd_ci_check,
                                                &invar_cmd_ci_review, &invar_cmd_ci_accept,
                                                &invar_cmd_ci_status, NULL};

static void ci_help(void)
{
    invar_help_text(
        "\n"
        "A CASE is a recipe or its golden: a path, or a name in the folder --cases (recipes). The\n"
        "golden, NAME.golden, lies beside the recipe and is kept in git. One golden serves all\n"
        "hardware.");
}

const invar_cli_command invar_cmd_ci = {.name = "ci",
                                        .summary =
                                            "bit-exact CI: compare recipes with their golden files",
                                        .help = ci_help,
                                        .arguments = "VERB [CASE ...] [--option value ...]",
                                        .subcommands = subs};
