/*
 * triage.c - diagnoses a run: runs the triage rules on it and collects their findings.
 *
 * A rule is a named query with further lines in its head (triage.h). Each rule runs with its
 * default parameters. A rule whose data are missing is reported as skipped, with the reason, and
 * never as a rule that found nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/triage/triage.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "ledger/internal.h"

#include "base/invar_banned.h"

/* ---- a rule ---------------------------------------------------------------------------------- */

/* Reads a line of a rule's head, which every rule must have. */
static void read_line(char out[INVAR_LEDGER_QUERY_LINE], const char *sql, const char *mark)
{
    INVAR_CHECK(invar_ledger_query_line(out, sql, mark));
}

/* Returns the default value of a parameter; for :run the number of the run. */
static invar_ledger_value default_value(const invar_ledger_query_param *param, int64_t run)
{
    if (param->type == 'n')
        return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_REAL,
                                    .real = strtod(param->fallback, NULL)};
    return (invar_ledger_value){.type = INVAR_LEDGER_TYPE_INT,
                                .integer =
                                    param->type == 'r' ? run : strtoll(param->fallback, NULL, 10)};
}

/*
 * Keeps the first row as the finding, with its own next command if it has one; counts the others.
 */
static invar_status take_row(void *payload, const char *const *columns,
                             const invar_ledger_value *values, int count)
{
    invar_triage_finding *f = payload;

    (void)columns;
    if (!values || f->steps++ > 0)
        return INVAR_OK;
    f->step = values[0].integer;
    invar_text_quote(f->evidence, sizeof f->evidence, values[1].data, values[1].bytes);
    if (count > 2)
        invar_text_quote(f->next_command, sizeof f->next_command, values[2].data, values[2].bytes);
    return INVAR_OK;
}

/*
 * Runs a rule. *data_out = whether the ledger has the data that the rule reads; if not, *idle gets
 * the rule and the reason.
 */
static invar_status run_rule(invar_triage_finding *out, bool *data_out,
                             invar_triage_skipped_rule *idle, invar_ledger *ledger, int64_t run)
{
    invar_ledger_argument arguments[INVAR_LEDGER_QUERY_PARAMS];
    const invar_ledger_query *rule = &out->rule;

    for (int i = 0; i < rule->n_params; i++)
        arguments[i] =
            (invar_ledger_argument){rule->params[i].name, default_value(&rule->params[i], run)};
    INVAR_TRY(invar_ledger_select(
        ledger, &(invar_ledger_select_request){.sql = rule->sql,
                                               .arguments = arguments,
                                               .n_arguments = (size_t)rule->n_params,
                                               .row = take_row,
                                               .payload = out}));
    idle->rule = *rule;
    return invar_ledger_query_has_data(data_out, idle->why, ledger, rule, arguments);
}

const char *invar_triage_cause(char cause_out[INVAR_LEDGER_QUERY_LINE],
                               char check_out[INVAR_LEDGER_QUERY_LINE], const char *from)
{
    const char *at = invar_ledger_query_line(cause_out, from, "cause");

    if (at) {
        at = invar_ledger_query_line(check_out, at, "check");
        INVAR_CHECK(at);
    }
    return at;
}

/* ---- all rules ------------------------------------------------------------------------------- */

/* Moves the last finding to its position by step; the earlier ones are sorted. */
static void sort_last(invar_triage *t)
{
    for (int i = t->count - 1; i > 0 && t->found[i].step < t->found[i - 1].step; i--) {
        invar_triage_finding later = t->found[i - 1];

        t->found[i - 1] = t->found[i];
        t->found[i] = later;
    }
}

static invar_status add_rule_result(invar_triage *out, invar_ledger *ledger, int64_t run)
{
    invar_triage_finding *f = &out->found[out->count];
    bool data;

    INVAR_CHECK(out->rules < INVAR_TRIAGE_RULES - 1);
    f->number = out->rules++;
    read_line(f->explanation, f->rule.sql, "means");
    read_line(f->next_command, f->rule.sql, "next");
    f->steps = 0;
    INVAR_TRY(run_rule(f, &data, &out->idle[out->n_idle], ledger, run));
    if (f->steps > 0) {
        out->count++;
        sort_last(out);
    } else if (!data) {
        out->n_idle++;
    }
    return INVAR_OK;
}

invar_status invar_triage_run(invar_triage *out, invar_ledger *ledger, int64_t run, bool written)
{
    char of[INVAR_LEDGER_QUERY_LINE];

    *out = (invar_triage){.count = 0};
    for (int i = 0; i < invar_ledger_query_count(); i++) {
        const invar_ledger_query *rule = &out->found[out->count].rule;

        INVAR_TRY(invar_ledger_query_at(&out->found[out->count].rule, i));
        if (strncmp(rule->name, INVAR_TRIAGE_PREFIX, strlen(INVAR_TRIAGE_PREFIX)) == 0 &&
            !(written && invar_ledger_query_line(of, rule->sql, "of")))
            INVAR_TRY(add_rule_result(out, ledger, run));
    }
    return INVAR_OK;
}
