/*
 * verify.c - invar ledger verify and seal: checks that a ledger is unchanged, and prints seals.
 *
 * Verify recomputes all hashes and prints content and integrity of every run; with --seal it also
 * compares the run with an earlier seal. The seal is checked first, because a malformed line should
 * fail before a long verification.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "base/console/progress.h"
#include "base/text.h"
#include "cli/ledger/ledger.h"
#include "cli/safe_text.h"
#include "cli/text_table.h"

#include "base/invar_banned.h"

static struct {
    const char *ledger;
    const char *seal;
    bool json;
    bool store;
} given;

/* ---- progress -------------------------------------------------------------------------------- */

/* Shows progress. Nothing is shown if the first call is also the last one. */
static void show_progress(void *payload, int64_t done, int64_t total)
{
    invar_progress **progress = payload;
    const invar_progress_options how = {
        .stream = stderr, .title = "verify", .unit = "rows", .first = done, .total = total};

    if (!*progress && done < total && invar_progress_new(progress, &how) != INVAR_OK)
        invar_error_clear();
    invar_progress_update(*progress, done, NULL);
}

/* ---- hashes of every run --------------------------------------------------------------------- */

#define HASHES "{uuid text, name text, content hex32, integrity hex32}"
#define RESULT                                                                                     \
    "{ledger text, clean bool, runs_checked int, entries int, rows int, steps int, pruned int,"    \
    " seals int, seals_pruned int, bad int, first text? (the first thing that is wrong),"          \
    " seal text?, runs [" HASHES "]}"

typedef struct hash_output {
    invar_ledger *ledger;
    invar_text_table table;
    json_t *array; /* instead of the table */
} hash_output;

static invar_status add_hashes(void *payload, const invar_ledger_summary *run)
{
    hash_output *h = payload;
    char content_hex[INVAR_DIGEST_HEX_SIZE], integrity_hex[INVAR_DIGEST_HEX_SIZE];
    invar_digest content;

    INVAR_TRY(invar_ledger_content_hash(&content, h->ledger, run->run));
    invar_digest_format(content_hex, &content);
    invar_digest_format(integrity_hex, &run->integrity);
    if (h->array)
        return json_array_append_new(h->array, INVAR_RESULT(HASHES, run->uuid, run->name, &content,
                                                            &run->integrity)) == 0
                   ? INVAR_OK
                   : INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the hashes");
    invar_text_table_text(&h->table, run->uuid, strnlen(run->uuid, 8));
    invar_text_table_add(&h->table, "sss", run->name, content_hex, integrity_hex);
    return h->table.status;
}

/* ---- output ---------------------------------------------------------------------------------- */

static void print_verdict(const invar_ledger_verify_result *v, const char *path)
{
    invar_safe_text_print(stdout, path);
    printf(": %s\n", v->problems > 0 ? "CORRUPT"
                     : v->runs == 0  ? "no run in it, so nothing was checked"
                                     : "clean");
    printf("checked: %" PRId64 " run%s, %" PRId64 " entr%s, %" PRId64 " row%s, %" PRId64
           " step%s, %" PRId64 " seal%s\n",
           v->runs, invar_text_plural(v->runs), v->entries, v->entries == 1 ? "y" : "ies", v->rows,
           invar_text_plural(v->rows), v->steps, invar_text_plural(v->steps), v->seals,
           invar_text_plural(v->seals));
    if (v->pruned > 0 || v->seals_pruned > 0)
        printf("left out when this copy was made: %" PRId64 " row%s, so %" PRId64
               " seal%s cannot be checked here\n",
               v->pruned, invar_text_plural(v->pruned), v->seals_pruned,
               invar_text_plural(v->seals_pruned));
    if (v->problems > 0) {
        printf("findings: %" PRId64 "; the first: ", v->problems);
        invar_safe_text_print(stdout, v->first_problem);
        putchar('\n');
    }
}

static invar_status write_json(const invar_ledger_verify_result *v, invar_ledger *ledger,
                               const char *path, const char *seal)
{
    hash_output h = {.ledger = ledger, .array = json_array()};
    json_t *out = INVAR_RESULT(RESULT, path, v->problems == 0, v->runs, v->entries, v->rows,
                               v->steps, v->pruned, v->seals, v->seals_pruned, v->problems,
                               v->problems > 0 ? v->first_problem : NULL, seal, h.array);
    invar_status status = INVAR_OK;

    if (out && v->problems == 0)
        status = invar_ledger_runs(ledger, add_hashes, &h);
    if (status == INVAR_OK)
        return invar_json_write(stdout, out);
    json_decref(out);
    return status;
}

/* Returns the seal line, read from standard input if it is "-". */
static invar_status read_seal(const char **out, char buffer[INVAR_LEDGER_SEAL_SIZE],
                              const char *line)
{
    *out = line;
    if (!line || strcmp(line, "-") != 0)
        return INVAR_OK;
    if (!fgets(buffer, INVAR_LEDGER_SEAL_SIZE, stdin))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--seal -: no line on standard input");
    buffer[strcspn(buffer, "\r\n")] = '\0';
    *out = buffer;
    return INVAR_OK;
}

static invar_status print_result(const invar_ledger_verify_result *v, invar_ledger *ledger,
                                 const char *path, const char *seal)
{
    hash_output h = {.ledger = ledger, .table = {.columns = 4}};

    if (given.json)
        return write_json(v, ledger, path, seal);
    print_verdict(v, path);
    if (seal)
        printf("seal: %s\n", seal);
    if (v->problems > 0 || v->runs == 0)
        return INVAR_OK;
    invar_text_table_add(&h.table, "ssss", "run", "name", "content", "integrity");
    INVAR_TRY(invar_text_table_show(&h.table, stdout, invar_ledger_runs(ledger, add_hashes, &h)));
    putchar('\n');
    invar_print_next(stdout, v->runs == 1 && !seal ? "ledger seal" : "ledger ls", path, NULL, NULL);
    return INVAR_OK;
}

/*
 * Verifies all rows. Returns INVAR_E_CORRUPT if there are findings. *code becomes NOTHING if the
 * ledger has no run.
 */
static invar_status check_rows(int *code, invar_ledger *ledger, const char *path, const char *seal)
{
    invar_ledger_verify_result verdict;
    invar_progress *progress = NULL;
    invar_status status = invar_ledger_verify(&verdict, ledger, show_progress, &progress);

    invar_progress_free(progress);
    if (status != INVAR_OK && status != INVAR_E_CORRUPT)
        return status;
    INVAR_TRY(print_result(&verdict, ledger, path, seal));
    if (verdict.problems > 0)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%.1000s is damaged: %.1000s", path,
                          verdict.first_problem);
    if (*code == INVAR_EXIT_OK && verdict.runs == 0)
        *code = INVAR_EXIT_NOTHING;
    return INVAR_OK;
}

/* Checks the seal and returns the result as text. A failure is printed at once. */
static const char *check_seal(int *code_out, invar_ledger *ledger, const char *line)
{
    *code_out = invar_exit(invar_ledger_seal_check(ledger, line));
    switch (*code_out) {
    case INVAR_EXIT_OK: return "as sealed";
    case INVAR_EXIT_DIFFERENT: return "different";
    default: return "cannot be checked";
    }
}

/* Checks the seal before the rows, so that a malformed line fails before the long verification. */
static int check_ledger(invar_ledger *ledger, const char *path)
{
    char buffer[INVAR_LEDGER_SEAL_SIZE];
    const char *line, *seal = NULL;
    int code = INVAR_EXIT_OK;

    if (read_seal(&line, buffer, given.seal) != INVAR_OK)
        return invar_report_error();
    if (line)
        seal = check_seal(&code, ledger, line);
    if (code == INVAR_EXIT_USAGE)
        return code;
    return check_rows(&code, ledger, path, seal) == INVAR_OK ? code : invar_report_error();
}

static int cmd_ledger_verify(int argc, char **argv)
{
    invar_located at;
    int code;

    (void)argc;
    if (invar_locate_ledger(&at, argv[0], given.ledger) != INVAR_OK)
        return invar_report_error();
    code = check_ledger(at.ledger, at.path);
    invar_located_close(&at);
    return code;
}

static const invar_option verify_options[] = {
    {.name = "seal",
     .type = INVAR_OPTION_TEXT,
     .value = &given.seal,
     .metavar = "LINE",
     .help = "also compare with a line that `ledger seal` printed; - reads standard input"},
    INVAR_OPTION_LEDGER(&given.ledger),
    INVAR_OPTION_JSON(&given.json),
    {0},
};

const invar_cli_command invar_cmd_ledger_verify = {
    .name = "verify",
    .summary = "check that no bit of a ledger has changed",
    .run = cmd_ledger_verify,
    .about =
        "Recomputes every hash in a ledger: of rows, of entries and their chain, of steps and of\n"
        "seals. Prints two hashes for each run: 'content' is equal for runs that computed the\n"
        "same bits, 'integrity' covers every row.\n"
        "\n"
        "Exit codes:\n"
        "  0    clean\n"
        "  1    clean, but not what the seal says\n"
        "  2    damaged, not a ledger, or a copy without old detail, whose seal cannot be checked\n"
        "  6    the ledger has no run\n",
    .options = verify_options,
    .words = "RUN",
    .max_words = 1,
    .result = RESULT,
    .arguments = "RUN|FILE [--option value ...]"};

/* ---- seal ------------------------------------------------------------------------------------ */

static invar_status make_seal(char out[INVAR_LEDGER_SEAL_SIZE], const char *word)
{
    invar_located at;
    invar_status status;

    INVAR_TRY(invar_locate_run(&at, word, given.ledger));
    status = INVAR_OK;
    if (given.store) {
        // an open reader would prevent the writer from truncating the write-ahead log
        invar_located_close(&at);
        status = invar_ledger_open(&at.ledger, at.path,
                                   &(invar_ledger_options){.write = true, .writer = "seal"});
    }
    if (status == INVAR_OK)
        status = invar_ledger_seal(out, at.ledger, at.run.run);
    invar_located_close(&at);
    return status;
}

static int cmd_ledger_seal(int argc, char **argv)
{
    char line[INVAR_LEDGER_SEAL_SIZE], seal[INVAR_LEDGER_SEAL_SIZE + 16];

    (void)argc;
    if (make_seal(line, argv[0]) != INVAR_OK)
        return invar_report_error();
    puts(line);
    fprintf(stderr, "to keep it with the commit: git notes --ref=invar add -m '%s'\n", line);
    (void)snprintf(seal, sizeof seal, "--seal '%s'", line);
    invar_print_next(stderr, "ledger verify", argv[0], given.ledger, seal);
    return INVAR_EXIT_OK;
}

static const invar_option seal_options[] = {
    {.name = "store",
     .value = &given.store,
     .help = "also store the seal in the ledger; refused while a run writes it"},
    INVAR_OPTION_LEDGER(&given.ledger),
    {0},
};

const invar_cli_command invar_cmd_ledger_seal = {
    .name = "seal",
    .summary = "print one line that reveals any later change of a run",
    .run = cmd_ledger_seal,
    .about =
        "Prints one line with a SHA-256 that pins the current state of the run. Keep it outside\n"
        "the ledger, for example in a git note: it then reveals any later change, even a forged\n"
        "one. Continuing the run does not invalidate it.\n",
    .options = seal_options,
    .words = "RUN",
    .max_words = 1,
    .arguments = "RUN [--option value ...]"};
