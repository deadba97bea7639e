/*
 * train.c - invar train: runs a training from a recipe and reports its result.
 *
 * Options and output paths are checked before the run, because a mistake must not show after hours:
 * golden files are read, output folders are tested, and the identity is compared before the first
 * step. Rank 0 alone prints, writes the report and compares with the golden. The exit code is the
 * verdict of the golden or the signal that stopped the run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/train.h"
#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/console/progress.h"
#include "base/console/term.h"
#include "base/number.h"
#include "base/process/argv0.h"
#include "base/process/process.h"
#include "cli/interactive.h"
#include "cli/ledger/ledger.h"
#include "cli/ledger/report.h"
#include "cli/ledger/row_output.h"
#include "cli/open_ranks.h"
#include "cli/output.h"
#include "cli/recipe_flags.h"
#include "cli/run/dry_run.h"
#include "cli/safe_text.h"
#include "engine/config/choices.h"
#include "engine/config/config.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/run/admission.h"
#include "engine/run/launch/launch.h"
#include "engine/run/run_dir/paths.h"
#include "ledger/view/golden/golden.h"
#include "ledger/view/page.h"

#include "base/invar_banned.h"

#define REPORT "report.html"
#define GENERATOR "invar " INVAR_VERSION ", train"

typedef struct settings {
    const char *golden;
    const char *record;
    int64_t ranks;
    bool json;
    bool dry;
    bool no_report;
    invar_train_options run; /* options of the run itself */
} settings;

static settings asked = {.ranks = 1, .run = {.until = -1, .fork_step = INVAR_CHECKPOINT_LATEST}};

/* ---- progress -------------------------------------------------------------------------------- */

typedef struct train_screen {
    const settings *set;
    invar_progress *progress;
    const invar_golden *golden; /* golden to compare with or to replace, or NULL */
    char last[128];
} train_screen;

/*
 * Called before the first step, so that a mismatch with the golden is reported before hours of
 * work.
 */
static invar_status compare_identity(void *payload, const invar_digest *identity)
{
    const train_screen *s = payload;
    char shown[INVAR_PATH_SHOWN_SIZE];

    if (!s->golden || invar_digest_equal(&s->golden->identity, identity))
        return INVAR_OK;
    if (s->set->record) {
        invar_path_show(shown, s->set->record);
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "golden %s: it is of a run that was asked for something else, and is not "
                          "replaced; remove it, or give another name",
                          shown);
    }
    invar_interactive_print(NULL,
                            "the golden is of a run that was asked for something else: a semantic "
                            "key, the data, the model or its weights differ");
    return INVAR_OK;
}

/* Formats " 12.3k tok/s MFU 41.2%"; unknown values are left out. */
static void format_pace(char *out, size_t size, const invar_train_progress *p)
{
    const bool many = p->tokens_per_s >= 1000.0;
    int used = 0;

    out[0] = '\0';
    if (isfinite(p->tokens_per_s))
        used = snprintf(out, size, "  %.*f%s tok/s", many ? 1 : 0,
                        many ? p->tokens_per_s / 1000.0 : p->tokens_per_s, many ? "k" : "");
    if (isfinite(p->mfu))
        (void)snprintf(out + used, size - (size_t)used, "  MFU %.1f%%", 100.0 * p->mfu);
}

static void show_progress(void *payload, const invar_train_progress *p)
{
    train_screen *s = payload;
    char text[256], result[48], pace[64], norm[INVAR_NUMBER_SIZE];
    char diff[48] = "  logp not compared";

    if (!s->progress) {
        invar_progress_options o = {.stream = stderr,
                                    .title = "train",
                                    .unit = "rollouts",
                                    .first = p->rollout,
                                    .total = p->rollouts};
        if (invar_progress_new(&s->progress, &o) != INVAR_OK) {
            invar_error_clear();
            return;
        }
    }
    if (p->compared)
        (void)snprintf(diff, sizeof diff, "  logp diff %g", p->logp_diff_max);
    if (p->measured) {
        format_pace(pace, sizeof pace, p);
        invar_number_round(norm, p->grad_norm, 3);
        invar_train_format_result(result, sizeof result, p);
        (void)snprintf(s->last, sizeof s->last, "%slen %.1f  |g| %s%s%s", result, p->response_len,
                       norm, p->supervised ? "" : diff, pace);
        invar_progress_expect(s->progress, p->eta);
    }
    if (p->measured)
        (void)snprintf(text, sizeof text, "%s", s->last);
    else if (p->samples > 0)
        (void)snprintf(text, sizeof text, "%s  (sampling %" PRId64 "/%" PRId64 ")", s->last,
                       p->samples_done, p->samples);
    else
        (void)snprintf(text, sizeof text, "%s  (other ranks sample)", s->last);
    invar_progress_update(s->progress, p->rollout + (p->measured ? 1 : 0), text);
}

/* ---- results --------------------------------------------------------------------------------- */

static invar_status write_report(char path[INVAR_PATH_SIZE], const invar_train_summary *run,
                                 invar_ledger *ledger, const invar_ledger_summary *found)
{
    invar_report_run shown = {.ledger = ledger, .run = found->run};
    invar_output page;
    int64_t damaged; // damaged runs do not fail this command

    INVAR_TRY(invar_path_join(path, INVAR_PATH_SIZE, run->folder, REPORT));
    INVAR_TRY(invar_output_replace(&page, path, INVAR_PAGE_MARK("report")));
    return invar_output_close(&page, invar_report_page(page.stream, &damaged, &shown, 1));
}

/* Result of the comparison with a golden. */
typedef struct golden_result {
    const char *word; /* NULL if nothing was compared */
    invar_golden_comparison v;
    int64_t further;                   /* steps of the run beyond those of the golden */
    char place[INVAR_GOLDEN_HEADLINE]; /* location of the first difference; empty if unknown or
                                          equal */
} golden_result;

/* Locates the difference with the points next to the golden, if there are any. */
static invar_status locate_difference(golden_result *out, const char *path,
                                      const invar_golden *golden, invar_ledger *ledger, int64_t run)
{
    invar_golden_points *was, *is = NULL;
    invar_golden_divergence place;
    invar_status status;

    INVAR_TRY(invar_golden_points_beside(&was, golden, path));
    if (!was)
        return INVAR_OK;
    status = invar_golden_points_of_run(&is, ledger, run);
    if (status == INVAR_OK)
        status = invar_golden_localize(&place, was, is, out->v.first);
    if (status == INVAR_OK)
        invar_golden_divergence_describe(out->place, &place, out->v.first);
    invar_golden_points_free(was);
    invar_golden_points_free(is);
    return status;
}

static invar_status compare_golden(golden_result *out, const settings *s,
                                   const invar_golden *golden, invar_ledger *ledger, int64_t run)
{
    invar_golden *is;

    INVAR_TRY(invar_golden_from_run(&is, ledger, run, GENERATOR));
    invar_golden_compare(&out->v, golden, is);
    out->further = is->n_steps > golden->n_steps ? is->n_steps - golden->n_steps : 0;
    invar_golden_free(is);
    out->v.ops_differ = 0; // the names of the ops were freed with the golden
    if (out->v.verdict == INVAR_GOLDEN_CHANGED)
        INVAR_TRY(locate_difference(out, s->golden, golden, ledger, run));
    return INVAR_OK;
}

static invar_status check_golden(golden_result *out, int *code_out, const settings *s,
                                 const invar_golden *golden, invar_ledger *ledger,
                                 const invar_ledger_summary *run)
{
    static const struct {
        const char *word;
        int code;
    } answers[] = {
        [INVAR_GOLDEN_SAME] = {"identical", INVAR_EXIT_OK},
        [INVAR_GOLDEN_CHANGED] = {"different", INVAR_EXIT_DIFFERENT},
        [INVAR_GOLDEN_NOTHING] = {"nothing", INVAR_EXIT_NOTHING},
    };

    *out = (golden_result){0};
    if (s->record && !run->stopped) // a stopped run is incomplete, so no golden is recorded
        return invar_golden_record(s->record, ledger, run->run, GENERATOR);
    if (!golden)
        return INVAR_OK;
    INVAR_TRY(compare_golden(out, s, golden, ledger, run->run));
    out->word = answers[out->v.verdict].word;
    *code_out = answers[out->v.verdict].code;
    if (*code_out == INVAR_EXIT_DIFFERENT && !out->v.same_identity)
        *code_out = INVAR_EXIT_GOLDEN;
    return INVAR_OK;
}

static void print_comparison(const golden_result *c, const char *path, bool stopped)
{
    bool color = invar_term_has_color(stdout), same = strcmp(c->word, "identical") == 0;

    printf("golden    %s%s%s",
           invar_term_escape(color, same ? INVAR_TERM_STYLE_GREEN : INVAR_TERM_STYLE_RED), c->word,
           invar_term_escape(color, INVAR_TERM_STYLE_PLAIN));
    if (strcmp(c->word, "different") == 0)
        printf(" from step %" PRId64 " on%s", c->v.first,
               c->v.same_identity ? "" : "; it is of a run that was asked for something else");
    else if (same)
        printf("%s, %" PRId64 " of %" PRId64 " steps", stopped ? " so far" : "", c->v.compared,
               c->v.steps);
    if (same && c->further)
        printf("; %" PRId64 " further step%s of the run %s not compared", c->further,
               invar_text_plural(c->further), c->further == 1 ? "was" : "were");
    fputs(": ", stdout);
    invar_safe_text_print(stdout, path);
    putchar('\n');
    if (c->place[0])
        printf("          %s\n", c->place);
    if (same && !c->v.same_identity)
        puts("          its identity is another: a key, the data or a library changed, no bit of "
             "the chain did");
}

static void print_next_diff(const char *word)
{
    printf("  %s diff ", invar_argv0());
    invar_text_print_shell_word(stdout, word);
    putchar(' ');
    invar_text_print_shell_word(stdout, word);
    putchar('\n');
}

static void print_next_command(const char *verb, const char *word, const char *rest)
{
    printf("  %s %s ", invar_argv0(), verb);
    invar_text_print_shell_word(stdout, word);
    puts(rest);
}

/*
 * Prints the next commands. `report` is the page that was written; if it is empty, the command that
 * writes it is listed.
 */
static void print_next_commands(const invar_train_summary *run, const char *report)
{
    char usual[INVAR_PATH_SIZE], page[INVAR_PATH_SIZE], again[64];
    const char *word = run->folder;

    if (run->last_step < 0)
        return; // the ledger has no steps to show
    if (invar_path_join(usual, sizeof usual, run->folder, "ledger.db") != INVAR_OK)
        invar_error_clear();
    else if (strcmp(usual, run->ledger) != 0)
        word = run->ledger;
    puts("\nnext:");
    if (run->other_content)
        print_next_diff(word);
    print_next_command("ledger show", word, "");
    // worst-tokens finds nothing without a difference
    print_next_command(run->worst_diff > 0.0 ? "ledger query worst-tokens --run"
                                             : "ledger query metric-summary --run",
                       word, "");
    (void)snprintf(again, sizeof again, " --step %" PRId64 " --threads 1", run->forked_after + 1);
    print_next_command("replay", word, again);
    if (report[0])
        return;
    if (invar_path_join(page, sizeof page, run->folder, REPORT) != INVAR_OK) {
        invar_error_clear();
        return;
    }
    printf("  %s ledger report ", invar_argv0());
    invar_text_print_shell_word(stdout, word);
    fputs(" --out ", stdout);
    invar_text_print_shell_word(stdout, page);
    putchar('\n');
}

static const char *signal_name(int number)
{
    return number == SIGINT    ? "SIGINT"
           : number == SIGHUP  ? "SIGHUP"
           : number == SIGXFSZ ? "SIGXFSZ, a limit of file sizes"
                               : "SIGTERM";
}

static void print_compared(const invar_train_summary *run)
{
    if (run->steps == 0 || run->supervised)
        return;
    printf("log-probs ");
    if (run->compared)
        printf("largest difference between rollout and training: %g", run->worst_diff);
    if (run->compared && run->compared < run->steps)
        printf("; %" PRId64 " of %" PRId64 " steps ", run->steps - run->compared, run->steps);
    if (run->compared < run->steps)
        printf("not compared%s",
               run->off_policy ? ": another policy had sampled the rollouts" : "");
    putchar('\n');
}

static void print_run(const invar_train_summary *run, const char *report, const char *content)
{
    bool rewarded = isfinite(run->first_reward) && isfinite(run->last_reward);
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, &run->chain);
    printf("run       %s (%s)\n", run->folder, run->name);
    printf("steps     %" PRId64 " executed, the last is %" PRId64, run->steps, run->last_step);
    if (run->stopped)
        printf("; stopped by %s%s", signal_name(run->stopped),
               run->saves ? "; start it again to continue" : "; nothing is saved (save = none)");
    putchar('\n');
    if (rewarded || isfinite(run->last_loss))
        printf("%-9s %.3f at first, %.3f at last\n", rewarded ? "reward" : "loss",
               rewarded ? run->first_reward : run->first_loss,
               rewarded ? run->last_reward : run->last_loss);
    print_compared(run);
    printf("chain     %s\n", hex);
    printf("content   %s\n", content);
    if (run->other_content)
        printf("warning   %" PRId64 " step%s executed again: the same bits, but other metrics, "
               "samples or replies than before\n",
               run->other_content, invar_text_plural(run->other_content));
    if (report[0])
        printf("report    %s\n", report);
}

#define GOLDEN                                                                                     \
    "{verdict identical|different|nothing, compared int, steps int,"                               \
    " first_difference int (the first step that differs; -1: none does)}"
#define RESULT                                                                                     \
    "{folder text, uuid text, steps int (executed by this call), last_step int (-1: there is"      \
    " none), resumed_after int (step of the checkpoint; -1: from the start),"                      \
    " first_reward real? (null: no step was executed, or nobody gave rewards), last_reward real?," \
    " first_loss real? (the actor's; null: no step was executed, or none learned),"                \
    " last_loss real?, tokens_per_second real? (tokens of all samples by the time of all steps;"   \
    " null: no step was executed), mfu real? (FLOPs of training by its time and the peak of the"   \
    " devices; null: unknown), worst_diff real? (largest difference of log-probs between rollout"  \
    " and training; null: none was compared), compared bool, other_content int (steps executed"    \
    " again with the recorded bits and other metrics, samples or replies), chain hex32,"           \
    " content hex32, stopped bool (by a signal), golden~ " GOLDEN " (with --golden)}"

static invar_status print_json(const invar_train_summary *run, const char *content,
                               const golden_result *c)
{
    json_t *golden = c->word ? INVAR_RESULT(GOLDEN, c->word, c->v.compared, c->v.steps, c->v.first)
                             : json_null();

    return invar_json_write(
        stdout, INVAR_RESULT(RESULT, run->folder, run->uuid, run->steps, run->last_step,
                             run->resumed_after, run->first_reward, run->last_reward,
                             run->first_loss, run->last_loss, run->tokens_per_s, run->mfu,
                             run->compared ? run->worst_diff : NAN, run->compared > 0,
                             run->other_content, &run->chain, content, run->stopped != 0, golden));
}

static invar_status print_results(const settings *s, const invar_train_summary *run,
                                  const char *report, const invar_digest *digest,
                                  const golden_result *c)
{
    char content[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(content, digest);
    if (s->json)
        return print_json(run, content, c);
    print_run(run, report, content);
    if (c->word)
        print_comparison(c, s->golden, run->stopped);
    if (s->record && run->stopped)
        puts("golden    not recorded: the run was stopped");
    print_next_commands(run, report);
    return INVAR_OK;
}

static invar_status report_run(int *code_out, const settings *s, const invar_golden *golden,
                               const invar_train_summary *run)
{
    char report[INVAR_PATH_SIZE] = "";
    invar_ledger_summary found;
    invar_ledger *ledger = NULL;
    invar_digest content;
    golden_result c;
    invar_status status;

    INVAR_TRY(invar_ledger_open(&ledger, run->ledger, &(invar_ledger_options){0}));
    status = invar_ledger_find(&found, ledger, run->uuid);
    if (status == INVAR_OK)
        status = invar_ledger_content_hash(&content, ledger, found.run);
    if (status == INVAR_OK && !s->no_report && !run->finished)
        status = write_report(report, run, ledger, &found);
    if (status == INVAR_OK)
        status = check_golden(&c, code_out, s, golden, ledger, &found);
    if (status == INVAR_OK)
        status = print_results(s, run, report, &content, &c);
    invar_ledger_close(ledger);
    if (status == INVAR_OK && run->stopped)
        *code_out = invar_process_stop_code(run->stopped);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Reads the golden before the run, so that an unusable file is reported at once. */
static invar_status read_golden(invar_golden **out, const settings *s)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    const char *path = s->golden ? s->golden : s->record;

    *out = NULL;
    if (s->golden && s->record)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--golden and --record-golden: give one of them");
    if (!path)
        return INVAR_OK;
    if (s->golden && invar_path_exists(path))
        return invar_golden_read(out, path);
    invar_path_show(shown, path);
    if (s->golden)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "golden %s: there is no such file; --record-golden writes one", shown);
    INVAR_TRY(invar_golden_check_output(path));
    // an unreadable golden belongs to no run and may be replaced
    if (invar_golden_read(out, path) != INVAR_OK)
        invar_error_clear();
    return INVAR_OK;
}

/*
 * Rejects goldens for a schedule that depends on the clock, which `ab`, `bisect` and `ci` reject
 * too.
 */
static invar_status check_clock(const invar_config *config, const settings *s)
{
    const invar_rollout_schedule schedule = config->rollout_schedule;

    if ((!s->golden && !s->record) || schedule != INVAR_ROLLOUT_SCHEDULE_RECORDED ||
        config->rollout_record[0])
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%s: with rollout-schedule = recorded a golden is of one record: set "
                      "rollout-record = RUN",
                      s->golden ? "--golden" : "--record-golden");
}

/* Finds the folders of the run and checks that a report may be written there. */
static invar_status find_folders(invar_run_paths *out, const invar_config *config, const char *path,
                                 const settings *s)
{
    char report[INVAR_PATH_SIZE];

    INVAR_TRY(invar_run_paths_find(out, config, path));
    if (s->no_report || s->run.fresh) // with --fresh the existing folder is renamed
        return INVAR_OK;
    INVAR_TRY(invar_path_join(report, sizeof report, out->run, REPORT));
    return invar_path_check_output(report, INVAR_PAGE_MARK("report"), 0);
}

static const invar_option options[] = {
    {"golden", INVAR_OPTION_TEXT, &asked.golden, "FILE", "compare the chain with this golden file",
     0, 0},
    {"record-golden", INVAR_OPTION_TEXT, &asked.record, "FILE",
     "write the chain of this run as a golden file", 0, 0},
    {"until", INVAR_OPTION_INT, &asked.run.until, "STEP",
     "stop after the rollout that contains this step", -1, INT64_MAX},
    {"no-report", INVAR_OPTION_FLAG, &asked.no_report, NULL, "do not write report.html", 0, 0},
    {"fresh", INVAR_OPTION_FLAG, &asked.run.fresh, NULL,
     "start over; an existing run is renamed to NAME.1, NAME.2, ...", 0, 0},
    {"ranks", INVAR_OPTION_INT, &asked.ranks, "N",
     "divide the work among N threads that are ranks (default 1); "
     "for processes use mpirun or srun",
     1, 1024},
    {"fork", INVAR_OPTION_TEXT, &asked.run.fork, "RUN",
     "begin a new run from a checkpoint of this run folder: weights, "
     "optimizer, place in the data; keys may differ",
     0, 0},
    {"fork-step", INVAR_OPTION_INT, &asked.run.fork_step, "STEP",
     "of which step the checkpoint is (the newest)", 0, INT64_MAX},
    {"dry-run", INVAR_OPTION_FLAG, &asked.dry, NULL,
     "show the keys, the memory and the identity, and write "
     "nothing",
     0, 0},
    INVAR_OPTION_JSON(&asked.json),
    INVAR_RECIPE_FLAGS_END};

/* Reads the recipe and the options, and checks that they go together. */
static invar_status read_command(settings *s, invar_config *config, const char **path_out, int argc,
                                 char **argv)
{
    INVAR_TRY(invar_recipe_flags_recipe(config, path_out, options, &argc, argv));
    if (!s->run.fork && s->run.fork_step != INVAR_CHECKPOINT_LATEST)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--fork-step would be ignored: it needs --fork");
    if (s->run.fork && (s->golden || s->record))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--fork: a golden begins with step 0, which a fork does not have: leave "
                          "out %s",
                          s->golden ? "--golden" : "--record-golden");
    if (s->dry &&
        (s->golden || s->record || s->run.fork || s->json || s->run.fresh || s->run.until >= 0))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--dry-run goes with a recipe, its keys and --ranks alone");
    INVAR_TRY(invar_admission_check(&(invar_admission){.config = config}));
    return check_clock(config, s);
}

/* Catches the signals that end the training; rank 0 says what follows. */
static const volatile sig_atomic_t *catch_signals(const invar_run_paths *at, bool leads)
{
    return invar_interactive_catch_signals(
        !leads        ? NULL
        : at->save[0] ? "stopping after the current rollout, with a checkpoint"
                      : "stopping after the current rollout, without a checkpoint (save = none)");
}

static int cmd_train(int argc, char **argv)
{
    settings *s = &asked;
    train_screen shown = {.set = s};
    invar_launch launch = {.count = 1};
    invar_config config = {.recipe = NULL};
    invar_train_summary run;
    invar_golden *golden = NULL;
    invar_run_paths at;
    int code = INVAR_EXIT_OK;
    bool missing = false, leads;
    invar_status status = read_command(s, &config, &s->run.recipe_path, argc, argv);

    s->run.progress = show_progress;
    s->run.identified = compare_identity;
    s->run.say = invar_interactive_print;
    if (status == INVAR_OK) {
        status = read_golden(&golden, s);
        missing = status == INVAR_E_NOTFOUND || status == INVAR_E_UNSUPPORTED;
    }
    if (status == INVAR_OK)
        status = find_folders(&at, &config, s->run.recipe_path, s);
    if (status == INVAR_OK)
        status = invar_open_ranks(&launch, invar_launch_timeout(&config), s->ranks);
    if (status == INVAR_OK && s->dry)
        status = invar_launch_end(&launch, invar_dry_run(&launch, &config, s->run.recipe_path));
    else if (status == INVAR_OK) {
        shown.golden = golden;
        leads = invar_launch_has_rank0(&launch);
        s->run.payload = &shown;
        s->run.stop = catch_signals(&at, leads);
        status = invar_launch_train(&run, &launch, &config, &s->run);
        invar_progress_free(shown.progress);
        if (status != INVAR_OK)
            invar_interactive_release(); // a signal of the launcher may now end this rank at once
        status = invar_launch_end(&launch, status);
        // other ranks exit with code 0, because a launcher would end all ranks otherwise
        if (status == INVAR_OK && leads)
            status = report_run(&code, s, s->golden ? golden : NULL, &run);
    }
    invar_golden_free(golden);
    invar_recipe_free(config.recipe);
    if (status == INVAR_OK)
        return code;
    if (!launch.comms) // without communication every rank reports the error
        invar_open_ranks_queue();
    code = invar_report_error();
    invar_launch_close(&launch);
    return missing                                 ? INVAR_EXIT_GOLDEN
           : invar_interactive_caught() == SIGXFSZ ? invar_process_stop_code(SIGXFSZ)
                                                   : code;
}

static void train_help(void)
{
    invar_help_text(
        "\n"
        "Every recipe key is also an option. A semantic key may change the bits of a run, a free\n"
        "one must not; 'semantic if set' counts only where it differs from its default. More is "
        "in\n"
        "docs/recipes.md and docs/keys.md.");
    invar_recipe_flags_help();
}

const invar_cli_command invar_cmd_train = {
    .name = "train",
    .summary = "train a model as a recipe says",
    .run = cmd_train,
    .about =
        "Runs a recipe: rollout, rewards, advantages, optimizer steps, hashes, ledger,\n"
        "checkpoints. The run has its own folder, runs/NAME, with ledger, checkpoints and\n"
        "report.html.\n"
        "\n"
        "Run the same command again to resume from the last checkpoint, with the same bits as an\n"
        "uninterrupted run; --fresh starts over. Ctrl-C stops after the current rollout and saves\n"
        "a checkpoint; a second Ctrl-C stops at once.\n"
        "\n"
        "To go on with other hyper-parameters, fork: --fork runs/OLD --name NEW begins a new run\n"
        "that knows its parent and leaves it as it is.\n"
        "\n"
        "Several ranks share the work with --ranks N (threads), mpirun -n N or srun --mpi=pmix -n "
        "N\n"
        "(processes), with the same bits as one. More is in docs/scale-out.md.\n"
        "\n"
        "Exit codes:\n"
        "  0    done\n"
        "  1    log-probabilities of rollout and training, ranks, a step that is executed again,\n"
        "       or the golden differ\n"
        "  2    could not finish\n"
        "  4    golden missing, or of another version, or of another recipe and different\n"
        "  6    nothing was compared\n"
        "  125  no such device here\n"
        "  130  stopped by SIGINT (Ctrl-C) and saved\n"
        "  143  stopped by SIGTERM or SIGHUP and saved\n"
        "  153  stopped by a limit on file sizes\n",
    .options = options,
    .help = train_help,
    .result = RESULT,
    .arguments = "RECIPE [--key value ...]",
    .multi_process = true};
