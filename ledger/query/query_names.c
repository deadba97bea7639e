/*
 * query_names.c - checks whether the arguments of a named query name something that the ledger has.
 *
 * A query returns no rows both for a misspelled argument and for a question whose answer is
 * "none". For such a result, the values that the ledger has for a parameter are selected, and the
 * argument is looked up among them. If it is missing, the message lists the values and the nearest
 * one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/console/spelling.h"
#include "base/text.h"
#include "ledger/internal.h"

#include "base/invar_banned.h"

/* The values of each parameter. In their SQL :run is NULL if the query has no such parameter. */
static const struct known {
    const char *param;  /* name of the parameter */
    const char *values; /* SQL with one column, `value` */
    const char *all;    /* arguments of `invar ledger` that list all values; NULL if they are few */
} known[] = {
    {"metric", "SELECT DISTINCT name AS value FROM metrics WHERE run = coalesce(:run, run)",
     "query metric-summary RUN"},
    {"dataset", "SELECT DISTINCT dataset AS value FROM evaluation WHERE run = coalesce(:run, run)",
     "query eval-history RUN"},
    {"level", "SELECT DISTINCT level AS value FROM event WHERE run = coalesce(:run, run)", NULL},
    {"case",
     "SELECT value FROM fact WHERE scope = 'ci' AND key = 'case' UNION "
     "SELECT iif(json_valid(data), data ->> 'case', NULL) FROM event WHERE kind = 'ci-case'",
     NULL},
    {"experiment", "SELECT DISTINCT value FROM fact WHERE scope = 'ab' AND key = 'experiment'",
     NULL},
    {"point", "SELECT DISTINCT name AS value FROM point", "show RUN --step S"},
    {"step", "SELECT DISTINCT step AS value FROM timeline WHERE run = coalesce(:run, run)", NULL},
    {"prompt", "SELECT DISTINCT prompt AS value FROM samples WHERE run = coalesce(:run, run)",
     NULL},
    {"sample",
     "SELECT DISTINCT idx AS value FROM samples WHERE run = coalesce(:run, run) AND step = :step",
     NULL},
};

enum { LISTED = 160, SQL_BYTES = 512 }; // LISTED: about two lines of a terminal

typedef struct finding {
    bool fits;           /* the argument is one of the values */
    bool numbers;        /* the values are numbers: only smallest and largest are selected */
    bool pattern;        /* the argument may be a pattern with % */
    invar_spelling near; /* search for the value that is spelled most like the argument */
    char list[LISTED];   /* the first values, separated by commas */
    size_t used;         /* bytes of list, without the NUL */
    int64_t more;        /* number of values that do not fit into list */
} finding;

static void list_text(finding *f, const char *text)
{
    size_t bytes = strlen(text) + 2;

    if (f->more > 0 || f->used + bytes >= sizeof f->list) {
        f->more++;
        return;
    }
    f->used += (size_t)snprintf(f->list + f->used, sizeof f->list - f->used, "%s%s",
                                f->used ? ", " : "", text);
}

/*
 * Adds a row of look_up_argument to the finding: a value as text, and whether the argument matches
 * it.
 */
static invar_status add_value(void *payload, const char *const *columns,
                              const invar_ledger_value *values, int count)
{
    char quote[INVAR_SPELLING_SIZE];
    finding *f = payload;

    (void)columns, (void)count;
    if (!values || values[0].type != INVAR_LEDGER_TYPE_TEXT)
        return INVAR_OK;
    f->fits = f->fits || values[1].integer != 0;
    invar_text_quote(quote, sizeof quote, values[0].data, values[0].bytes); // values may be hostile
    invar_spelling_offer(&f->near, quote);
    list_text(f, quote);
    return INVAR_OK;
}

static const invar_ledger_argument *find_argument(const invar_ledger_query *query,
                                                  const invar_ledger_argument *arguments,
                                                  const char *name)
{
    static const invar_ledger_argument none = {.value = {.type = INVAR_LEDGER_TYPE_NULL}};

    for (int i = 0; i < query->n_params; i++)
        if (strcmp(query->params[i].name, name) == 0)
            return &arguments[i];
    return &none;
}

static invar_status look_up_argument(finding *out, invar_ledger *ledger, const struct known *kind,
                                     const invar_ledger_query *query,
                                     const invar_ledger_argument *arguments)
{
    const invar_ledger_argument given[] = {
        {"run", find_argument(query, arguments, "run")->value},
        {"step", find_argument(query, arguments, "step")->value},
        {"given", find_argument(query, arguments, kind->param)->value},
    };
    char sql[SQL_BYTES];
    int bytes = snprintf(
        sql, sizeof sql,
        out->numbers ? "SELECT min(value) || ' to ' || max(value), sum(value = :given) FROM (%s)"
        : out->pattern
            ? "SELECT value, iif(instr(:given, '%%'), value LIKE replace(:given, '_', '\\_') "
              "ESCAPE '\\', value = :given) FROM (%s) ORDER BY 1"
            : "SELECT value, value = :given FROM (%s) ORDER BY 1",
        kind->values);

    INVAR_CHECK(bytes > 0 && (size_t)bytes < sizeof sql);
    return invar_ledger_select(
        ledger,
        &(invar_ledger_select_request){
            .sql = sql, .arguments = given, .n_arguments = 3, .row = add_value, .payload = out});
}

static invar_status fail_unknown_value(finding *f, const char *option, const struct known *kind,
                                       const invar_ledger_value *given)
{
    char quote[INVAR_SPELLING_SIZE], more[128] = "";

    if (given->type == INVAR_LEDGER_TYPE_INT)
        (void)snprintf(quote, sizeof quote, "%" PRId64, given->integer);
    else
        invar_text_quote(quote, sizeof quote, given->data, given->bytes);
    if (f->more > 0)
        (void)snprintf(more, sizeof more, " and %" PRId64 " more%s%s%s", f->more,
                       kind->all ? "; 'invar ledger " : "", kind->all ? kind->all : "",
                       kind->all ? "' shows them" : "");
    return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: there is no %s '%s'%s; there %s %s%s", option,
                      kind->param, quote, invar_spelling_hint(&f->near), f->numbers ? "is" : "are",
                      f->used ? f->list : "none", more);
}

/* Checks argument i. The message names the option `option`. */
static invar_status check_param(invar_ledger *ledger, const char *option,
                                const invar_ledger_query *query,
                                const invar_ledger_argument *arguments, int i)
{
    const invar_ledger_query_param *param = &query->params[i];
    const invar_ledger_value *given = &arguments[i].value;
    // the default value cannot be misspelled
    bool fallback = param->optional && given->type == INVAR_LEDGER_TYPE_TEXT &&
                    given->bytes == strlen(param->fallback) &&
                    memcmp(given->data, param->fallback, given->bytes) == 0;
    finding f = {.numbers = given->type == INVAR_LEDGER_TYPE_INT,
                 .pattern = strcmp(param->fallback, "%") == 0};

    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        if (fallback || strcmp(known[k].param, param->name) != 0)
            continue;
        if (!f.numbers)
            invar_spelling_init(&f.near, given->data, given->bytes);
        INVAR_TRY(look_up_argument(&f, ledger, &known[k], query, arguments));
        if (!f.fits)
            return fail_unknown_value(&f, option, &known[k], given);
    }
    return INVAR_OK;
}

invar_status invar_ledger_query_check(invar_ledger *ledger, const invar_ledger_query *query,
                                      const invar_ledger_argument *arguments)
{
    for (int i = 0; i < query->n_params; i++)
        INVAR_TRY(check_param(ledger, query->params[i].name, query, arguments, i));
    return INVAR_OK;
}

invar_status invar_ledger_metric_check(invar_ledger *ledger, const char *option, int64_t run,
                                       const char *name, size_t bytes)
{
    const invar_ledger_query query = {
        .n_params = 2, .params = {{.name = "run", .type = 'r'}, {.name = "metric", .type = 't'}}};
    const invar_ledger_argument arguments[] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = run}},
        {"metric", {.type = INVAR_LEDGER_TYPE_TEXT, .data = name, .bytes = bytes}}};

    return check_param(ledger, option, &query, arguments, 1);
}
