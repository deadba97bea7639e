/*
 * query.c - invar ledger query and sql: runs named queries, and any SQL that only reads.
 *
 * Queries over runs in several ledgers work on a merged temporary ledger (merge.h). Every query may
 * have a time limit, enforced by SQLite between instructions and by SIGALRM for instructions that
 * never end. An empty result distinguishes between "nothing found" and "the data was never
 * recorded".
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/time.h>
#include <unistd.h>

#include "cli/ledger/ledger.h"
#include "cli/ledger/merge.h"
#include "cli/text_table.h"
#include "ledger/view/texts/texts.h"

#include "base/invar_banned.h"

typedef struct settings {
    const char *ledger;
    bool json;
    bool csv;
    bool exact;
    int64_t limit_ms;
} settings;

/* ---- time limit ------------------------------------------------------------------------------ */

/*
 * The library checks the clock between SQLite's instructions, but one instruction may be a function
 * over millions of bytes, such as instr(). Only the end of the process stops such a call. That is
 * safe at any moment, because the process only reads and its temporary ledger is unlinked.
 */
enum { GRACE_MS = 1000 }; // additional time for the library, which ends the query cleanly

// message of the handler, formatted beforehand because a handler must not format
static char timeout_message[128];

static void handle_timeout(int number)
{
    (void)number;
    // a failed write cannot be reported
    (void)!write(STDERR_FILENO, timeout_message, strlen(timeout_message));
    _exit(INVAR_EXIT_TROUBLE);
}

static void set_timer(int64_t ms)
{
    const struct itimerval once = {.it_value = {ms / 1000, ms % 1000 * 1000}};

    setitimer(ITIMER_REAL, &once, NULL);
}

static invar_status select_in_time(invar_ledger *ledger, const invar_ledger_select_request *request)
{
    const struct sigaction action = {.sa_handler = handle_timeout};
    invar_status status;

    if (request->limit_ms > 0) {
        snprintf(timeout_message, sizeof timeout_message,
                 "invar: the time limit of %" PRId64
                 " ms was reached; ask for less, or allow more with --limit-ms N\n",
                 request->limit_ms);
        sigaction(SIGALRM, &action, NULL);
        set_timer(request->limit_ms + GRACE_MS);
    }
    status = invar_ledger_select(ledger, request);
    set_timer(0);
    return status;
}

/* ---- running a query ------------------------------------------------------------------------- */

enum { MAX_COLUMNS = 32 }; // of a named query

/*
 * Receives the rows of a query. For a named query over one run, paths of checkpoints are updated.
 */
typedef struct row_sink {
    invar_row_writer *rows;
    const char *ledger; /* ledger of that run, or NULL */
} row_sink;

static invar_status write_row(void *payload, const char *const *columns,
                              const invar_ledger_value *values, int count)
{
    char place[INVAR_LOCATE_PATH_SIZE];
    invar_ledger_value copy[MAX_COLUMNS];
    const row_sink *s = payload;

    if (values && s->ledger) {
        INVAR_CHECK(count <= MAX_COLUMNS);
        memcpy(copy, values, (size_t)count * sizeof *copy);
        invar_locate_checkpoint(copy, place, columns, count, s->ledger);
        values = copy;
    }
    return invar_row_writer_take(s->rows, columns, values, count);
}

static bool is_text_output(const settings *s)
{
    return !s->json && !s->csv;
}

/* Runs a query and prints the result. `query` and `lacks` are NULL for a query without a name. */
static invar_status run_and_print(char *lacks, invar_ledger *ledger,
                                  invar_ledger_select_request *request,
                                  const invar_ledger_query *query, const char *run_ledger,
                                  const settings *s)
{
    char why[INVAR_LEDGER_QUERY_LINE];
    row_sink out = {.ledger = run_ledger};
    bool data = true;
    invar_row_writer_format format;
    invar_status status;

    INVAR_TRY(invar_row_writer_choose(&format, s->json, s->csv, s->exact));
    INVAR_TRY(invar_row_writer_new(&out.rows, stdout, format));
    request->row = write_row;
    request->payload = &out;
    request->limit_ms = s->limit_ms;
    status = select_in_time(ledger, request);
    if (status == INVAR_OK && query && invar_row_writer_count(out.rows) == 0) {
        // nothing to look at, wrong arguments, or nothing found
        status = invar_ledger_query_has_data(&data, why, ledger, query, request->arguments);
        if (status == INVAR_OK && !data)
            memcpy(lacks, why, sizeof why);
        else if (status == INVAR_OK)
            status = invar_ledger_query_check(ledger, query, request->arguments);
    }
    if (status == INVAR_OK && !(query && lacks[0] && is_text_output(s)))
        status = invar_row_writer_end(out.rows);
    invar_row_writer_free(out.rows);
    return status;
}

#define LIMIT_OPTION(variable, text)                                                               \
    {                                                                                              \
        .name = "limit-ms", .type = INVAR_OPTION_INT, .value = (variable), .metavar = "N",         \
        .help = (text), .high = INT32_MAX                                                          \
    }

/* ---- list of named queries ------------------------------------------------------------------- */

static const char *type_name(char type)
{
    switch (type) {
    case 'r': return "RUN";
    case 'i': return "INTEGER";
    case 'n': return "NUMBER";
    default: return "TEXT";
    }
}

/* Formats "--run RUN [--count INTEGER]". */
static void format_params(char *out, size_t size, const invar_ledger_query *query)
{
    size_t used = 0;

    out[0] = '\0';
    for (int i = 0; i < query->n_params && used < size; i++) {
        const invar_ledger_query_param *p = &query->params[i];
        used += (size_t)snprintf(out + used, size - used, "%s%s--%s %s%s%s%s", i > 0 ? " " : "",
                                 p->optional ? "[" : "", p->name, type_name(p->type),
                                 p->optional ? "=" : "", p->fallback, p->optional ? "]" : "");
    }
}

static invar_status add_query(invar_text_table *table, int index)
{
    invar_ledger_query query;
    char params[512];

    INVAR_TRY(invar_ledger_query_at(&query, index));
    format_params(params, sizeof params, &query);
    invar_text_table_add(table, "sss", query.name, query.question, params);
    return table->status;
}

static invar_status print_queries(void)
{
    invar_text_table table = {.columns = 3};
    invar_status status = INVAR_OK;

    invar_text_table_add(&table, "sss", "query", "question", "parameters");
    for (int i = 0; i < invar_ledger_query_count() && status == INVAR_OK; i++)
        status = add_query(&table, i);
    INVAR_TRY(invar_text_table_show(&table, stdout, status));
    putchar('\n');
    invar_print_next(stdout, "ledger ls", NULL, NULL, NULL);
    return INVAR_OK;
}

#define PARAMETER "{name text, type text, optional bool, default text?}"
#define QUERY "{name text, question text, parameters [" PARAMETER "], sql text}"
#define RESULT                                                                                     \
    "[{* text/real?} (a row: values by column; blobs are hexadecimal digits); " QUERY              \
    " (a named query, without a name)]"

static json_t *param_json(const void *item)
{
    const invar_ledger_query_param *p = item;

    return INVAR_RESULT(PARAMETER, p->name, type_name(p->type), p->optional,
                        p->optional ? p->fallback : NULL);
}

static invar_status write_queries(void)
{
    json_t *list = json_array();
    invar_ledger_query query;
    invar_status status = INVAR_OK;

    for (int i = 0; i < invar_ledger_query_count() && status == INVAR_OK; i++) {
        status = invar_ledger_query_at(&query, i);
        if (status == INVAR_OK &&
            json_array_append_new(
                list, INVAR_RESULT(QUERY, query.name, query.question,
                                   invar_result_list(query.params, (size_t)query.n_params,
                                                     sizeof *query.params, param_json),
                                   query.sql)) != 0)
            status = INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the list of queries");
    }
    if (status == INVAR_OK)
        return invar_json_write(stdout, list);
    json_decref(list);
    return status;
}

/* ---- a named query --------------------------------------------------------------------------- */

typedef struct question {
    invar_ledger_query query;
    const char *texts[INVAR_LEDGER_QUERY_PARAMS]; /* values as typed; NULL if not given */
    invar_ledger_argument arguments[INVAR_LEDGER_QUERY_PARAMS];
    invar_located runs[INVAR_LEDGER_QUERY_PARAMS]; /* values of type 'r', in order */
    int n_runs;
    char lacks[INVAR_LEDGER_QUERY_LINE]; /* the data that the ledger lacks for the query; empty if
                                            it has all */
} question;

static int count_runs(const invar_ledger_query *query)
{
    int count = 0;

    for (int i = 0; i < query->n_params; i++)
        count += query->params[i].type == 'r';
    return count;
}

/*
 * Assigns the words after the name to run parameters without an option, in order. A query without
 * run parameters takes the word as its ledger.
 */
static invar_status take_words(const char **ledger_out, question *q, int words, char **argv)
{
    int used = 0;

    *ledger_out = NULL;
    for (int i = 0; i < q->query.n_params && used < words; i++)
        if (q->query.params[i].type == 'r' && !q->texts[i])
            q->texts[i] = argv[used++];
    if (used < words && count_runs(&q->query) == 0)
        *ledger_out = argv[used++];
    return used == words
               ? INVAR_OK
               : INVAR_FAIL(INVAR_E_INVALID, 0, "unexpected argument '%.100s'", argv[used]);
}

/*
 * Checks a number. A count, recognized by its positive default, is at least 1; other integers are
 * at least 0, as in the ledger. A bound without a default may be infinite, but not NaN.
 */
static invar_status check_range(const invar_ledger_query_param *param,
                                const invar_ledger_value *value, const char *text)
{
    bool counts = param->optional && strtod(param->fallback, NULL) > 0;

    if (param->type == 'i' && value->integer < counts)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: %s; expected %d or more", param->name, text,
                          counts);
    if (param->type == 'n' &&
        (isnan(value->real) || (counts && (isinf(value->real) || value->real < 0))))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: %s; expected a number%s", param->name, text,
                          counts ? " of 0 or more" : "");
    return INVAR_OK;
}

static invar_status convert_argument(invar_ledger_value *out, const invar_ledger_query_param *param,
                                     const char *text)
{
    char *end = NULL;

    errno = 0;
    switch (param->type) {
    case 'i':
        *out =
            (invar_ledger_value){.type = INVAR_LEDGER_TYPE_INT, .integer = strtoll(text, &end, 10)};
        break;
    case 'n':
        *out = (invar_ledger_value){.type = INVAR_LEDGER_TYPE_REAL, .real = strtod(text, &end)};
        break;
    default:
        *out = (invar_ledger_value){
            .type = INVAR_LEDGER_TYPE_TEXT, .data = text, .bytes = strlen(text)};
        return INVAR_OK;
    }
    if (end == text || *end != '\0' ||
        (errno == ERANGE && (param->type == 'i' || isinf(out->real))))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: '%.60s' is not %s", param->name, text,
                          param->type == 'i' ? "a whole number" : "a number");
    return check_range(param, out, text);
}

/*
 * Converts the values of all parameters and opens the runs. The numbers of the runs are set later,
 * when all are in one ledger.
 */
static invar_status read_arguments(question *q, const settings *s)
{
    bool only_run = invar_locate_given(s->ledger) && count_runs(&q->query) == 1;

    for (int i = 0; i < q->query.n_params; i++) {
        const invar_ledger_query_param *p = &q->query.params[i];
        const char *text = q->texts[i] ? q->texts[i] : p->optional ? p->fallback : NULL;
        q->arguments[i].name = p->name;
        if (!text && !(p->type == 'r' && only_run))
            return INVAR_FAIL(INVAR_E_INVALID, 0, "query %s needs --%s %s", q->query.name, p->name,
                              type_name(p->type));
        if (p->type != 'r') {
            INVAR_TRY(convert_argument(&q->arguments[i].value, p, text));
            continue;
        }
        INVAR_TRY(invar_locate_run(&q->runs[q->n_runs], text, s->ledger));
        q->n_runs++;
    }
    return INVAR_OK;
}

static invar_status run_with_numbers(invar_ledger *ledger, question *q, const int64_t *numbers,
                                     const settings *s)
{
    for (int i = 0, run = 0; i < q->query.n_params; i++)
        if (q->query.params[i].type == 'r')
            q->arguments[i].value =
                (invar_ledger_value){.type = INVAR_LEDGER_TYPE_INT, .integer = numbers[run++]};
    return run_and_print(q->lacks, ledger,
                         &(invar_ledger_select_request){.sql = q->query.sql,
                                                        .arguments = q->arguments,
                                                        .n_arguments = (size_t)q->query.n_params},
                         &q->query, q->n_runs == 1 ? q->runs[0].path : NULL, s);
}

static invar_status query_runs(question *q, const settings *s)
{
    int64_t numbers[INVAR_LEDGER_QUERY_PARAMS];
    invar_ledger *ledger, *owned;
    invar_status status;

    status = invar_merge(&ledger, &owned, q->runs, q->n_runs, numbers);
    if (status == INVAR_OK)
        status = run_with_numbers(ledger, q, numbers, s);
    invar_ledger_close(owned);
    return status;
}

static invar_status query_ledger(question *q, const char *word, const settings *s)
{
    invar_located at;
    invar_status status;

    INVAR_TRY(invar_locate_ledger(&at, word, s->ledger));
    status = run_with_numbers(at.ledger, q, NULL, s);
    invar_located_close(&at);
    return status;
}

static const invar_option *ledger_query_options(settings *s, question *q)
{
    static invar_option list[INVAR_LEDGER_QUERY_PARAMS + 6];
    int count = 0;

    for (; q && count < q->query.n_params; count++)
        list[count] = (invar_option){.name = q->query.params[count].name,
                                     .type = INVAR_OPTION_TEXT,
                                     .value = &q->texts[count],
                                     .metavar = type_name(q->query.params[count].type)};
    list[count++] = invar_option_ledger(&s->ledger);
    list[count++] = (invar_option)LIMIT_OPTION(&s->limit_ms, "time limit in milliseconds (none)");
    list[count++] = invar_option_json(&s->json);
    list[count++] = (invar_option)INVAR_OPTION_CSV(&s->csv);
    list[count++] = invar_option_exact(&s->exact);
    list[count] = (invar_option){0};
    return list;
}

static void print_next(const question *q, const settings *s)
{
    int i = 0;

    while (i < q->query.n_params && q->query.params[i].type != 'r')
        i++;
    if (i < q->query.n_params)
        invar_print_next(stderr, "ledger show", q->texts[i], s->ledger, NULL);
    else
        invar_print_next(stderr, "ledger query", NULL, NULL, NULL);
}

static invar_status run_query(question *q, int argc, char **argv)
{
    settings s = {0};
    const char *ledger;
    int words;

    // unknown names are errors of the user
    if (invar_ledger_query_find(&q->query, argv[0]) != INVAR_OK)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s", invar_error_last()->message);
    INVAR_TRY(invar_options_parse_words(&words, ledger_query_options(&s, q), argc - 1, argv + 1,
                                        "RUN", 0, argc));
    INVAR_TRY(take_words(&ledger, q, words, argv + 1));
    INVAR_TRY(read_arguments(q, &s));
    INVAR_TRY(q->n_runs > 0 ? query_runs(q, &s) : query_ledger(q, ledger, &s));
    if (q->lacks[0])
        fprintf(stderr, "invar: query %s has nothing to look at: %s\n", q->query.name, q->lacks);
    else if (is_text_output(&s))
        print_next(q, &s);
    return INVAR_OK;
}

static int list_queries(int argc, char **argv)
{
    settings s = {0};

    if (invar_options_parse(ledger_query_options(&s, NULL), argc, argv) != INVAR_OK)
        return invar_report_error();
    if (s.csv) {
        fputs("invar: the list of queries is a table or --json, not --csv\n", stderr);
        return INVAR_EXIT_USAGE;
    }
    return invar_exit(s.json ? write_queries() : print_queries());
}

static int cmd_ledger_query(int argc, char **argv)
{
    question q = {.n_runs = 0};
    invar_status status;

    if (argc == 0 || argv[0][0] == '-')
        return list_queries(argc, argv);
    status = run_query(&q, argc, argv);
    for (int i = 0; i < q.n_runs; i++)
        invar_located_close(&q.runs[i]);
    return status == INVAR_OK && q.lacks[0] ? INVAR_EXIT_NOTHING : invar_exit(status);
}

static void ledger_query_help(void)
{
    settings s;

    invar_help_text(
        "Runs a named query. Without NAME, lists all queries and their parameters. Each parameter\n"
        "is an option of the same name; runs may also be given as plain arguments, in order. A\n"
        "query that is not about one run covers all runs of a ledger, given as an argument or\n"
        "with --ledger. Runs in different ledgers are first merged in a private temporary "
        "folder.\n"
        "A parameter whose default is % is a pattern: % in it stands for any text.\n"
        "\n"
        "Exit codes:\n"
        "  0    the answer is there\n"
        "  6    the ledger has nothing that the query could look at; a line says what is "
        "missing\n");
    invar_options_help(ledger_query_options(&s, NULL));
}

static const char *name_at(int index)
{
    static invar_ledger_query query;

    if (invar_ledger_query_at(&query, index) == INVAR_OK)
        return query.name;
    invar_error_clear();
    return NULL;
}

const invar_cli_command invar_cmd_ledger_query = {
    .name = "query",
    .summary = "run a named query",
    .run = cmd_ledger_query,
    .help = ledger_query_help,
    .result = RESULT,
    .arguments = "[NAME [RUN ...] [--PARAMETER value ...]] [--option value ...]",
    .first_argument_word = name_at};

/* ---- any SQL --------------------------------------------------------------------------------- */

static settings given = {.limit_ms = 10000};

static const invar_option sql_options[] = {
    INVAR_OPTION_LEDGER(&given.ledger),
    LIMIT_OPTION(&given.limit_ms, "time limit in milliseconds (10000); 0: none"),
    INVAR_OPTION_JSON(&given.json),
    INVAR_OPTION_CSV(&given.csv),
    INVAR_OPTION_EXACT(&given.exact),
    {0},
};

static invar_status run_statement(const char *text, const char *word, const settings *s)
{
    invar_located at;
    invar_status status;

    INVAR_TRY(invar_locate_ledger(&at, word, s->ledger));
    status = invar_texts_add(at.ledger);
    if (status == INVAR_OK)
        status = run_and_print(NULL, at.ledger, &(invar_ledger_select_request){.sql = text}, NULL,
                               NULL, s);
    invar_located_close(&at);
    if (status == INVAR_OK && is_text_output(s))
        invar_print_next(stderr, "ledger query", NULL, NULL, NULL);
    return status;
}

static bool is_statement(const char *word)
{
    word += strspn(word, " \t\n");
    return strncasecmp(word, "select", 6) == 0 || strncasecmp(word, "with", 4) == 0 ||
           strncasecmp(word, "values", 6) == 0;
}

static int cmd_ledger_sql(int argc, char **argv)
{
    if (argc == 2 && is_statement(argv[1]) && !is_statement(argv[0]))
        return invar_exit(INVAR_FAIL(INVAR_E_INVALID, 0,
                                     "'%.1000s' stands where the statement belongs: invar ledger "
                                     "sql \"SELECT ...\" %.1000s",
                                     argv[0], argv[0]));
    return invar_exit(run_statement(argv[0], argv[1], &given));
}

const invar_cli_command invar_cmd_ledger_sql = {
    .name = "sql",
    .summary = "run any SQL query that only reads",
    .run = cmd_ledger_sql,
    .about =
        "Runs one SQL statement that only reads, on the ledger that contains RUN or on --ledger.\n"
        "It cannot write, attach other files or load extensions, and it has a time limit.\n"
        "docs/ledger.md explains the tables and views. Examples:\n"
        "\n"
        "    SELECT step, value FROM metrics WHERE run = 1 AND name = 'train/grad_norm'\n"
        "    SELECT step, reward, response, label FROM sample_texts ORDER BY reward DESC LIMIT "
        "5\n",
    .options = sql_options,
    .words = "\"SELECT ...\"",
    .min_words = 1,
    .max_words = 2,
    .result = RESULT,
    .arguments = "\"SELECT ...\" [RUN|FILE] [--option value ...]"};
