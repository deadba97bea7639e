/*
 * criterion.c - parses, evaluates and describes the criterion of a bisect.
 *
 * A criterion is evaluated by SQL on the ledger of a run. Metrics are compared as binary64 bits
 * from the ledger, never as printed text. A metric may be given by its last part or by the same
 * words in another order; the name must then be unambiguous.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/criterion.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/minmax.h"
#include "base/number.h"
#include "base/text.h"
#include "bisect/workspace/workspace.h"

#include "base/invar_banned.h"

static const char *const ops[] = {"<=", ">=", "==", "!=", "<", ">"};

bool invar_criterion_has_bits(const invar_criterion *criterion)
{
    return criterion->kind == INVAR_CRITERION_CHAIN || criterion->kind == INVAR_CRITERION_POINTS;
}

/* ---- metrics with a bound -------------------------------------------------------------------- */

static const char *skip_blanks(const char *text)
{
    return text + strspn(text, " \t");
}

static invar_status fail_syntax(const char *text)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];

    invar_text_quote(quote, sizeof quote, text, strlen(text));
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%s: expected METRIC OP NUMBER, such as 'grad_norm > 5'; OP is < <= > >= == "
                      "or !=",
                      quote);
}

invar_status invar_criterion_parse(invar_criterion *out, const char *text)
{
    const char *name = skip_blanks(text), *rest = name + strcspn(name, " \t<>=!"), *bound;
    size_t bytes = (size_t)(rest - name);
    char *end;

    *out = (invar_criterion){.kind = INVAR_CRITERION_METRIC, .until = -1, .layer = -1};
    if (bytes == 0 || bytes >= sizeof out->metric)
        return fail_syntax(text);
    memcpy(out->metric, name, bytes);
    rest = skip_blanks(rest);
    for (size_t i = 0; i < sizeof ops / sizeof *ops && !out->op[0]; i++)
        if (strncmp(rest, ops[i], strlen(ops[i])) == 0)
            (void)snprintf(out->op, sizeof out->op, "%s", ops[i]);
    bound = skip_blanks(rest + strlen(out->op));
    out->bound = strtod(bound, &end);
    return !out->op[0] || end == bound || *skip_blanks(end) ? fail_syntax(text) : INVAR_OK;
}

/* NaN differs from every number, and equals a bound that is NaN. */
static bool bound_holds(const invar_criterion *q, double value)
{
    bool equal = value == q->bound || (value != value && q->bound != q->bound);

    switch (q->op[0]) {
    case '<': return value < q->bound || (q->op[1] && equal);
    case '>': return value > q->bound || (q->op[1] && equal);
    case '=': return equal;
    default: return !equal;
    }
}

/* ---- names of metrics ------------------------------------------------------------------------ */

/* Returns how often a word occurs in a name, whose words are joined by "_". */
static int count_word(const char *name, const char *word, size_t bytes)
{
    const char *item;
    size_t length;
    int count = 0;

    while (invar_text_item(&item, &length, &name, '_'))
        count += length == bytes && memcmp(item, word, bytes) == 0;
    return count;
}

/* Returns true if both names consist of the same words: logp_diff_max matches max_logp_diff. */
static bool same_words(const char *name, const char *asked)
{
    const char *rest = name, *word;
    size_t bytes;

    if (strlen(name) != strlen(asked))
        return false;
    while (invar_text_item(&word, &bytes, &rest, '_'))
        if (count_word(name, word, bytes) != count_word(asked, word, bytes))
            return false;
    return true;
}

typedef struct metric_match {
    const char *asked;
    int rank; /* quality of the match: 3 full name, 2 last part, 1 words of the last part, 0 no
                 match */
    int equals;
    char name[INVAR_LEDGER_NAME_BYTES + 1];
} metric_match;

static invar_status consider_metric(void *payload, const invar_ledger_value *values)
{
    metric_match *c = payload;
    const char *name, *last;
    int rank;

    name = values[0].data;
    last = strrchr(name, '/');
    last = last ? last + 1 : name;
    rank = strcmp(name, c->asked) == 0   ? 3
           : strcmp(last, c->asked) == 0 ? 2
           : same_words(last, c->asked)  ? 1
                                         : 0;
    c->equals = rank > c->rank ? 1 : c->equals + (rank && rank == c->rank);
    if (rank > c->rank) {
        c->rank = rank;
        (void)snprintf(c->name, sizeof c->name, "%s", name);
    }
    return INVAR_OK;
}

/* All named values of the timeline: metrics and evaluations. */
#define VALUES                                                                                     \
    "SELECT step, name, bits FROM metrics WHERE run = :run UNION ALL "                             \
    "SELECT e.step, " INVAR_LEDGER_EVALUATION(                                                     \
        "e", "n") ", e.value_bits FROM evaluation e "                                              \
                  "JOIN series n USING(series) WHERE e.run = :run"

static invar_status choose_metric(char out[INVAR_LEDGER_NAME_BYTES + 1], const invar_criterion *q,
                                  invar_ledger *ledger, const invar_ledger_argument *run)
{
    metric_match c = {.asked = q->metric};

    INVAR_TRY(invar_workspace_ledger_select(ledger,
                                            "SELECT DISTINCT name FROM (" VALUES ") ORDER BY name",
                                            run, 1, consider_metric, &c));
    if (c.rank == 0)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "the run has no metric '%s'", q->metric);
    if (c.equals > 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "'%s' can mean %d metrics, one is %s: give the whole name", q->metric,
                          c.equals, c.name);
    (void)snprintf(out, INVAR_LEDGER_NAME_BYTES + 1, "%s", c.name);
    return INVAR_OK;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

typedef struct metric_scan {
    const invar_criterion *question;
    bool crossed;
} metric_scan;

static invar_status check_metric_row(void *payload, const invar_ledger_value *values)
{
    metric_scan *c = payload;
    double value;

    memcpy(&value, &values[0].integer, sizeof value);
    c->crossed = c->crossed || bound_holds(c->question, value);
    return INVAR_OK;
}

static invar_ledger_argument int_argument(const char *name, int64_t value)
{
    return (invar_ledger_argument){.name = name,
                                   .value = {.type = INVAR_LEDGER_TYPE_INT, .integer = value}};
}

static invar_ledger_argument text_argument(const char *name, const char *value)
{
    return (invar_ledger_argument){
        .name = name,
        .value = {.type = INVAR_LEDGER_TYPE_TEXT, .data = value, .bytes = strlen(value)}};
}

static int64_t last_step(const invar_criterion *q)
{
    return q->until < 0 ? INT64_MAX : q->until;
}

static invar_status evaluate_metric(bool *out, const invar_criterion *q, invar_ledger *ledger,
                                    int64_t run)
{
    char name[INVAR_LEDGER_NAME_BYTES + 1] = "";
    metric_scan c = {.question = q};
    invar_ledger_argument arguments[] = {
        int_argument("run", run), int_argument("until", last_step(q)), text_argument("name", "")};

    INVAR_TRY(choose_metric(name, q, ledger, arguments));
    arguments[2] = text_argument("name", name);
    INVAR_TRY(invar_workspace_ledger_select(
        ledger, "SELECT bits FROM (" VALUES ") WHERE name = :name AND step <= :until", arguments, 3,
        check_metric_row, &c));
    *out = c.crossed;
    return INVAR_OK;
}

typedef struct points_hash {
    invar_hasher hasher;
    int64_t points;
} points_hash;

static invar_status hash_point_row(void *payload, const invar_ledger_value *values)
{
    points_hash *g = payload;

    for (int i = 0; i < 2; i++) { // columns name and digest
        uint64_t bytes = values[i].bytes;
        invar_hasher_update(&g->hasher, &bytes, sizeof bytes);
        invar_hasher_update(&g->hasher, values[i].data, values[i].bytes);
    }
    g->points++;
    return INVAR_OK;
}

static invar_status evaluate_points(char out[INVAR_VALUE_SIZE], const invar_criterion *q,
                                    invar_ledger *ledger, int64_t run)
{
    points_hash g = {.points = 0};
    invar_ledger_argument arguments[] = {
        int_argument("run", run),         int_argument("until", last_step(q)),
        int_argument("layer", q->layer),  text_argument("kind", q->point_kind),
        text_argument("op", q->point_op), text_argument("phase", q->phase),
        text_argument("point", q->point)};
    static const char sql[] =
        "SELECT d.name, d.hash FROM timeline t JOIN digests d USING(run, step, seg) "
        "WHERE t.run = :run AND t.step <= :until AND d.rank = 0 AND d.level = 0 "
        "AND (:layer < 0 OR d.layer = :layer) AND (:kind = '' OR d.kind = :kind) "
        "AND (:op = '' OR d.op = :op) AND (:phase = '' OR d.phase = :phase) "
        "AND (:point = '' OR d.name LIKE :point) ORDER BY t.step, d.name";
    invar_digest digest;

    invar_hasher_init(&g.hasher);
    INVAR_TRY(invar_workspace_ledger_select(ledger, sql, arguments, 7, hash_point_row, &g));
    if (g.points == 0)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "no point of the run matches what was asked for");
    invar_hasher_final(&digest, &g.hasher);
    invar_digest_format(out, &digest);
    return INVAR_OK;
}

static invar_status evaluate_run(char out[INVAR_VALUE_SIZE], const invar_criterion *q,
                                 invar_ledger *ledger, const invar_ledger_summary *run)
{
    invar_digest chain = run->chain;
    bool yes;

    if (run->last_step < 0)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "the run has no step");
    if (q->kind == INVAR_CRITERION_CHAIN) {
        if (q->until >= 0 && q->until < run->last_step)
            INVAR_TRY(invar_ledger_chain_at(&chain, ledger, run->run, q->until));
        invar_digest_format(out, &chain);
        return INVAR_OK;
    }
    if (q->kind == INVAR_CRITERION_POINTS)
        return evaluate_points(out, q, ledger, run->run);
    INVAR_TRY(evaluate_metric(&yes, q, ledger, run->run));
    (void)snprintf(out, INVAR_VALUE_SIZE, "%s", yes ? "yes" : "no");
    return INVAR_OK;
}

invar_status invar_criterion_evaluate(char out[INVAR_VALUE_SIZE], const invar_criterion *criterion,
                                      const char *ledger)
{
    invar_ledger *opened;
    invar_ledger_summary run;
    invar_status status = invar_workspace_ledger_open(&opened, &run, ledger);

    if (status == INVAR_OK)
        status = evaluate_run(out, criterion, opened, &run);
    invar_ledger_close(opened);
    return status;
}

bool invar_criterion_is_decided(const invar_criterion *criterion, const char *ledger)
{
    char value[INVAR_VALUE_SIZE] = "";

    // the file, the first step or the metric may not exist yet; the final evaluation reports errors
    if (criterion->kind == INVAR_CRITERION_METRIC &&
        invar_criterion_evaluate(value, criterion, ledger) != INVAR_OK)
        invar_error_clear();
    return strcmp(value, "yes") == 0;
}

/* ---- two runs -------------------------------------------------------------------------------- */

/*
 * Finds the first different chain by binary search: chains that differ once differ in all later
 * steps.
 */
static invar_status search_step(int64_t *out, invar_ledger *a, const invar_ledger_summary *run_a,
                                invar_ledger *b, const invar_ledger_summary *run_b)
{
    const int64_t end = invar_min_i64(run_a->last_step, run_b->last_step) + 1;
    int64_t low = 0, high = end;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        invar_digest x, y;
        INVAR_TRY(invar_ledger_chain_at(&x, a, run_a->run, middle));
        INVAR_TRY(invar_ledger_chain_at(&y, b, run_b->run, middle));
        if (invar_digest_equal(&x, &y))
            low = middle + 1;
        else
            high = middle;
    }
    *out = low == end ? -1 : low;
    return INVAR_OK;
}

invar_status invar_criterion_first_divergence(int64_t *out, int64_t last_out[2], const char *a,
                                              const char *b)
{
    invar_ledger *x = NULL, *y = NULL;
    invar_ledger_summary run_x, run_y;
    invar_status status = invar_workspace_ledger_open(&x, &run_x, a);

    if (status == INVAR_OK)
        status = invar_workspace_ledger_open(&y, &run_y, b);
    if (status == INVAR_OK)
        status = search_step(out, x, &run_x, y, &run_y);
    if (status == INVAR_OK) {
        last_out[0] = run_x.last_step;
        last_out[1] = run_y.last_step;
    }
    invar_ledger_close(x);
    invar_ledger_close(y);
    return status;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void describe_points(char out[INVAR_CRITERION_TEXT], const invar_criterion *q)
{
    char layer[32] = "";

    if (q->layer >= 0)
        (void)snprintf(layer, sizeof layer, " layer %" PRId64, q->layer);
    (void)snprintf(out, INVAR_CRITERION_TEXT, "points%s%s%.40s%s%.40s%s%.40s%s%.40s", layer,
                   q->point_kind[0] ? " kind " : "", q->point_kind, q->point_op[0] ? " op " : "",
                   q->point_op, q->phase[0] ? " phase " : "", q->phase,
                   q->point[0] ? " named " : "", q->point);
}

/* Writes the bound as a user would, if that is exact: 100 instead of 1e+02. */
static invar_status format_bound(char out[INVAR_NUMBER_SIZE], double bound)
{
    (void)snprintf(out, INVAR_NUMBER_SIZE, "%.15g", bound);
    return strtod(out, NULL) == bound ? INVAR_OK : invar_number_format(out, bound);
}

void invar_criterion_describe(char out[INVAR_CRITERION_TEXT], const invar_criterion *criterion)
{
    char bound[INVAR_NUMBER_SIZE] = "?", until[32] = "";
    size_t used;

    if (criterion->kind == INVAR_CRITERION_EXIT)
        (void)snprintf(out, INVAR_CRITERION_TEXT, "exit code of the command");
    else if (criterion->kind == INVAR_CRITERION_CHAIN)
        (void)snprintf(out, INVAR_CRITERION_TEXT, "chain");
    else if (criterion->kind == INVAR_CRITERION_POINTS)
        describe_points(out, criterion);
    else if (format_bound(bound, criterion->bound) == INVAR_OK)
        (void)snprintf(out, INVAR_CRITERION_TEXT, "%s %s %s", criterion->metric, criterion->op,
                       bound);
    used = strlen(out);
    if (criterion->until >= 0 && criterion->kind != INVAR_CRITERION_EXIT)
        (void)snprintf(until, sizeof until, " up to step %" PRId64, criterion->until);
    (void)snprintf(out + used, INVAR_CRITERION_TEXT - used, "%s", until);
}
