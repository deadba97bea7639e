/*
 * triage.c - invar triage: prints what may be wrong with a run, and the next command for each
 * finding.
 *
 * The rules are evaluated in ledger/triage. The words RUN, STEP and MODEL in their commands are
 * replaced by values of the run and quoted for a shell. Rules without data are listed separately,
 * so that they do not count as "no finding".
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/triage/triage.h"

#include <inttypes.h>
#include <string.h>

#include "base/console/term.h"
#include "base/process/argv0.h"
#include "base/text.h"
#include "cli/ledger/ledger.h"
#include "cli/safe_text.h"

#include "base/invar_banned.h"

typedef struct settings {
    const char *ledger;
    const char *run; /* RUN as typed */
    bool json;
    char model[INVAR_LOCATE_PATH_SIZE]; /* hf-checkpoint of the run; empty if it has none */
} settings;

static const char *rule_name(const invar_ledger_query *rule)
{
    return rule->name + strlen(INVAR_TRIAGE_PREFIX);
}

/* ---- commands -------------------------------------------------------------------------------- */

/* Prints RUN, and --ledger if given, quoted for a shell. */
static void print_run_words(FILE *out, const settings *s)
{
    invar_text_print_shell_word(out, s->run);
    if (!s->ledger)
        return;
    fputs(" --ledger ", out);
    invar_text_print_shell_word(out, s->ledger);
}

static bool has_prefix(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

/* Prints a command of a rule, with RUN, STEP and MODEL replaced. */
static void print_command(FILE *out, const char *command, int64_t step, const settings *s)
{
    static const char run[] = "RUN", step_word[] = "STEP", model[] = "MODEL";

    for (const char *at = command; *at;) {
        if (has_prefix(at, run)) {
            print_run_words(out, s);
            at += strlen(run);
        } else if (has_prefix(at, step_word)) {
            fprintf(out, "%" PRId64, step);
            at += strlen(step_word);
        } else if (s->model[0] && has_prefix(at, model)) {
            invar_text_print_shell_word(out, s->model);
            at += strlen(model);
        } else {
            fputc(*at++, out);
        }
    }
}

/* Reads the folder of the run's model. */
static invar_status find_model(settings *s, const invar_located *at)
{
    const char *model;
    json_t *row;

    INVAR_TRY(invar_run_row(&row, at->ledger, at->run.run,
                            "SELECT value FROM fact WHERE run = :run AND scope = 'free' "
                            "AND key = 'hf-checkpoint' ORDER BY seg DESC LIMIT 1"));
    model = json_string_value(json_object_get(row, "value")); // NULL without a row, or if no text
    if (model && strlen(model) < sizeof s->model)
        (void)snprintf(s->model, sizeof s->model, "%s", model);
    json_decref(row);
    return INVAR_OK;
}

/* ---- JSON output ----------------------------------------------------------------------------- */

#define CAUSE "{cause text, check text (the command that confirms or excludes it)}"
#define FINDING                                                                                    \
    "{rule text, question text, step int, steps int, evidence text,"                               \
    " means text (what the evidence may mean), query text, next text (the next command),"          \
    " causes [" CAUSE "]}"
#define RESULT                                                                                     \
    "{run text, name text, steps int, rules int,"                                                  \
    " without_data [text] (rules that had nothing to look at), findings [" FINDING "]}"

enum { COMMAND_SIZE = 2 * INVAR_LOCATE_PATH_SIZE + 256 };

static json_t *command_json(const char *command, int64_t step, const settings *s)
{
    char text[COMMAND_SIZE] = "";
    FILE *out = fmemopen(text, sizeof text, "w");

    if (!out)
        return NULL;
    print_command(out, command, step, s);
    return fclose(out) == 0 ? json_string(text) : NULL;
}

static json_t *causes_json(const invar_triage_finding *f, const settings *s)
{
    char cause[INVAR_LEDGER_QUERY_LINE], check[INVAR_LEDGER_QUERY_LINE];
    json_t *causes = json_array();

    for (const char *at = f->rule.sql; (at = invar_triage_cause(cause, check, at)) != NULL;)
        (void)json_array_append_new(causes,
                                    INVAR_RESULT(CAUSE, cause, command_json(check, f->step, s)));
    return causes;
}

static invar_status write_json(const invar_triage *t, const invar_ledger_summary *run,
                               const settings *s)
{
    json_t *findings = json_array(), *idle = json_array();

    for (const invar_triage_finding *f = t->found; f < t->found + t->count; f++)
        (void)json_array_append_new(
            findings, INVAR_RESULT(FINDING, rule_name(&f->rule), f->rule.question, f->step,
                                   f->steps, f->evidence, f->explanation, f->rule.name,
                                   command_json(f->next_command, f->step, s), causes_json(f, s)));
    for (int i = 0; i < t->n_idle; i++)
        (void)json_array_append_new(idle, json_string(rule_name(&t->idle[i].rule)));
    return invar_json_write(stdout, INVAR_RESULT(RESULT, run->uuid, run->name, invar_run_steps(run),
                                                 t->rules, idle, findings));
}

/* ---- text output ----------------------------------------------------------------------------- */

static void print_causes(const invar_triage_finding *f, const settings *s)
{
    char cause[INVAR_LEDGER_QUERY_LINE], check[INVAR_LEDGER_QUERY_LINE];
    const char *at = f->rule.sql;

    while ((at = invar_triage_cause(cause, check, at)) != NULL) {
        printf("  cause?     %s\n             %s ", cause, invar_argv0());
        print_command(stdout, check, f->step, s);
        putchar('\n');
    }
}

static void print_finding(const invar_triage_finding *f, const settings *s, bool color)
{
    printf("\n%s%s%s: %s\n", color ? "\033[1;33m" : "", rule_name(&f->rule), color ? "\033[0m" : "",
           f->rule.question);
    printf("  step %-5" PRId64 " %s\n", f->step, f->evidence);
    if (f->steps > 1)
        printf("  steps      %" PRId64 " show it\n", f->steps);
    printf("  may mean   %s\n", f->explanation);
    print_causes(f, s);
    printf("  all of it  %s ledger query %s --run ", invar_argv0(), f->rule.name);
    print_run_words(stdout, s);
    printf("\n  next       %s ", invar_argv0());
    print_command(stdout, f->next_command, f->step, s);
    putchar('\n');
}

static void print_text(const invar_triage *t, const invar_ledger_summary *run, const settings *s)
{
    bool color = invar_term_has_color(stdout);

    printf("%.8s %s: %" PRId64 " steps, %d rules, %d of them had data, ", run->uuid, run->name,
           invar_run_steps(run), t->rules, t->rules - t->n_idle);
    if (t->count == 0)
        puts("no finding");
    else
        printf("%d finding%s\n", t->count, t->count == 1 ? "" : "s");
    for (int i = 0; i < t->n_idle; i++)
        printf("%s  %-17s needs %s\n", i == 0 ? "without data:\n" : "", rule_name(&t->idle[i].rule),
               t->idle[i].why);
    for (int i = 0; i < t->count; i++)
        print_finding(&t->found[i], s, color);
    if (t->count == 0) {
        putchar('\n');
        invar_print_next(stdout, "ledger show", s->run, s->ledger, NULL);
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

static invar_status run_triage(int *code_out, settings *s)
{
    char writer[INVAR_LEDGER_WRITER_SIZE] = "";
    invar_located at = {.ledger = NULL};
    invar_triage found;
    invar_status status = invar_locate_run(&at, s->run, s->ledger);

    if (status == INVAR_OK)
        status = invar_ledger_writer(writer, at.path);
    if (status == INVAR_OK)
        status = invar_triage_run(&found, at.ledger, at.run.run, writer[0] != '\0');
    if (status == INVAR_OK)
        status = find_model(s, &at);
    if (status == INVAR_OK && s->json)
        status = write_json(&found, &at.run, s);
    else if (status == INVAR_OK)
        print_text(&found, &at.run, s);
    if (status == INVAR_OK)
        *code_out = found.count                     ? INVAR_EXIT_DIFFERENT
                    : invar_run_steps(&at.run) == 0 ? INVAR_EXIT_NOTHING
                                                    : INVAR_EXIT_OK;
    invar_located_close(&at);
    return status;
}

static settings given;

static const invar_option options[] = {
    INVAR_OPTION_LEDGER(&given.ledger), INVAR_OPTION_JSON(&given.json), {0}};

static int cmd_triage(int argc, char **argv)
{
    int code = INVAR_EXIT_OK;

    (void)argc;
    given.run = argv[0];
    return run_triage(&code, &given) == INVAR_OK ? code : invar_report_error();
}

const invar_cli_command invar_cmd_triage = {
    .name = "triage",
    .summary = "find what is wrong with a run, with evidence and the next command",
    .run = cmd_triage,
    .about =
        "Looks at a run's ledger for what goes wrong most often: a reference that is another "
        "model, log-probs that differ, gradients that vanish or jump, a reward that collapses, "
        "groups without a signal, lengths that run away, a model that is unsure of its own "
        "samples, entropy that "
        "collapses, NaN, samples that are too old, phases that become slow, an end by a "
        "failure, no end at all.\n"
        "\n"
        "Each finding has the step that shows it first, the evidence, what it usually means, the "
        "query that shows all of it, and the command that comes next. The query's parameters are "
        "the rule's limits. A run that trains tells the same findings as warnings.\n"
        "\n"
        "Exit codes:\n"
        "  0    no finding\n"
        "  1    findings\n"
        "  2    the ledger could not be read\n"
        "  6    the run has no step yet\n",
    .options = options,
    .words = "RUN",
    .min_words = 1,
    .max_words = 1,
    .result = RESULT,
    .arguments = "RUN [--json]",
};
