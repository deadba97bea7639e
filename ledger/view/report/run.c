/*
 * run.c - collects the data of a report about one run: summary, lists, named queries, facts.
 *
 * Most lists come directly from SQL statements: each row becomes an object whose members are the
 * columns.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json/result.h"
#include "ledger/internal.h"
#include "ledger/view/report/internal.h"

#include "base/invar_banned.h"

#define CHECKPOINTS 2000   /* maximum number of checkpoints: the newest */
enum { FACT_VALUES = 16 }; // maximum number of values of a fact over the segments

#define AS_TEXT(number) #number
#define LIMIT(number) " LIMIT " AS_TEXT(number)

/* ---- rows ------------------------------------------------------------------------------------ */

static invar_status take_members(void *payload, invar_sql_stmt *row)
{
    for (int i = 0; i < invar_sql_columns(row); i++)
        INVAR_TRY(
            invar_report_set(payload, invar_sql_column_name(row, i), invar_report_column(row, i)));
    return INVAR_OK;
}

static invar_status take_object(void *payload, invar_sql_stmt *row)
{
    json_t *object = json_object();

    INVAR_TRY(invar_report_append(payload, object));
    return take_members(object, row);
}

static invar_status take_value(void *payload, invar_sql_stmt *row)
{
    return invar_report_append(payload, invar_report_column(row, 0));
}

static invar_status take_count(void *payload, invar_sql_stmt *row)
{
    json_t *name = invar_report_column(row, 0);
    json_t *count = name ? invar_report_column(row, 1) : NULL;
    invar_status status = invar_report_set(payload, json_string_value(name), count);

    json_decref(name);
    return status;
}

static invar_status take_array(void *payload, invar_sql_stmt *row)
{
    json_t *array = json_array();

    INVAR_TRY(invar_report_append(payload, array));
    for (int i = 0; i < invar_sql_columns(row); i++)
        INVAR_TRY(invar_report_append(array, invar_report_column(row, i)));
    return INVAR_OK;
}

/* SQL: the segments of the run, with the times of their first and last entries. */
#define LIVES                                                                                      \
    "life AS (SELECT g.seg, g.after_step, b.ns AS began, (SELECT e.ns FROM entry e"                \
    "  WHERE e.run = g.run AND e.n < g.next ORDER BY e.n DESC LIMIT 1) AS ended"                   \
    " FROM (SELECT *, lead(entry, 1, 9223372036854775807) OVER (ORDER BY seg) AS next"             \
    "       FROM segment WHERE run = ?1) g JOIN entry b ON b.run = g.run AND b.n = g.entry)"

static const struct {
    const char *key, *text;
    invar_report_row_fn take;
    bool list; /* the member is a list; otherwise an object */
} parts[] = {
    {"model", invar_ledger_model_sql, take_members, false},
    {"again",
     "SELECT count(*) AS steps, coalesce(sum(differs), 0) AS differ,"
     " min(CASE WHEN differs THEN step END) AS first, coalesce(sum(other), 0) AS other,"
     " min(CASE WHEN other THEN step END) AS first_other"
     " FROM (SELECT step, count(DISTINCT root) > 1 AS differs,"
     "       count(DISTINCT root) = 1 AND count(DISTINCT content) > 1 AS other"
     "       FROM step WHERE run = ?1 GROUP BY step HAVING count(*) > 1)",
     take_members, false},
    {"levels", "SELECT level, count(*) FROM event WHERE run = ?1 GROUP BY level", take_count,
     false},
    {"segments",
     "WITH " LIVES " SELECT l.after_step AS after, l.began / 1000000 AS ms,"
     " l.ended / 1000000 AS \"end\", f.exit_code AS exit, f.reason AS reason,"
     " coalesce(" INVAR_LEDGER_STOPPED ", 0) AS stopped"
     " FROM life l LEFT JOIN finish f ON f.run = ?1 AND f.seg = l.seg ORDER BY l.seg",
     take_object, true},
    {"clock", // at the last step of each of at most 1000 stretches, without pauses between segments
     "WITH " LIVES ", lived AS (SELECT seg, began, total(max(ended - began, 0.0)) OVER"
     "  (ORDER BY seg ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM life),"
     " span AS (SELECT min(step) AS a, max(step) AS b FROM step WHERE run = ?1),"
     " done AS (SELECT s.step, l.before + (e.ns - l.began) AS ns, (s.step - a) * 1000 / (b - a + 1)"
     "  AS stretch FROM step s JOIN lived l USING(seg) JOIN span"
     "  JOIN entry e ON e.run = s.run AND e.n = s.entry WHERE s.run = ?1 AND s.seg ="
     "  (SELECT max(t.seg) FROM step t WHERE t.run = s.run AND t.step = s.step))"
     " SELECT max(step), CAST(ns / 1000000 AS INTEGER) FROM done GROUP BY stretch ORDER BY 1",
     take_array, true},
    {"checkpoints",
     "SELECT DISTINCT step FROM checkpoint WHERE run = ?1 AND state = 'complete'"
     " ORDER BY step DESC" LIMIT(CHECKPOINTS),
     take_value, true},
    {"events",
     "SELECT x.step AS step, e.ns / 1000000 AS ms, x.level AS level, x.kind AS kind,"
     " x.message AS message, x.data AS data"
     " FROM event x JOIN entry e ON e.run = x.run AND e.n = x.entry WHERE x.run = ?1"
     " ORDER BY CASE x.level WHEN 'error' THEN 0 WHEN 'warning' THEN 1 WHEN 'info' THEN 2"
     " ELSE 3 END, x.entry DESC, x.i DESC" LIMIT(INVAR_REPORT_EVENTS),
     take_object, true},
    {"slowest", // per stretch, at most 400, the rank that computed longest
     "WITH span AS (SELECT min(step) AS a, max(step) AS b FROM step WHERE run = ?1),"
     " part AS (SELECT (step - a) * 400 / (b - a + 1) AS stretch, min(step) AS x, max(step) AS y,"
     "  rank, total(computed_ns) AS computed FROM ranks, span WHERE run = ?1 GROUP BY 1, rank),"
     " place AS (SELECT x, y, rank, row_number() OVER"
     "  (PARTITION BY stretch ORDER BY computed DESC, rank) AS place FROM part)"
     " SELECT x AS \"from\", y AS \"to\", rank FROM place WHERE place = 1 ORDER BY x",
     take_object, true},
};

static const char origin[] = "SELECT parent, fork_step,"
                             " (SELECT count(*) FROM seal s WHERE s.run = r.run) AS seals"
                             " FROM run r WHERE run = ?1";

/* SQL: tokens of all samples; 0 for a pruned copy, which does not have all of them. */
static const char tokens[] =
    "SELECT CAST(total(tokens) AS INTEGER) AS tokens FROM samples WHERE run = ?1"
    " AND NOT EXISTS (SELECT 1 FROM pruned WHERE run = ?1)";

/* ---- named queries --------------------------------------------------------------------------- */

static json_t *json_of_value(const invar_ledger_value *value)
{
    switch (value->type) {
    case INVAR_LEDGER_TYPE_INT: return json_integer(value->integer);
    case INVAR_LEDGER_TYPE_REAL: return json_real(value->real);
    case INVAR_LEDGER_TYPE_TEXT: return invar_report_text(value->data, value->bytes);
    default: return json_null();
    }
}

static invar_status add_row_object(void *payload, const char *const *columns,
                                   const invar_ledger_value *values, int count)
{
    if (!values)
        return INVAR_OK; // the first call has the names of the columns only
    json_t *object = json_object();
    INVAR_TRY(invar_report_append(payload, object));
    for (int i = 0; i < count; i++)
        INVAR_TRY(invar_report_set(object, columns[i], json_of_value(&values[i])));
    return INVAR_OK;
}

/* Adds the rows of a named query as the list `key`. */
static invar_status add_query_rows(json_t *object, const char *key, const invar_report_run *run,
                                   const char *name, double factor, int64_t count)
{
    const invar_ledger_argument arguments[] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = run->run}},
        {"factor", {.type = INVAR_LEDGER_TYPE_REAL, .real = factor}},
        {"margin", {.type = INVAR_LEDGER_TYPE_REAL, .real = 0.1}},
        {"count", {.type = INVAR_LEDGER_TYPE_INT, .integer = count}},
    };
    invar_ledger_query query;
    json_t *answers;

    INVAR_TRY(invar_report_member(&answers, object, key, json_array()));
    INVAR_TRY(invar_ledger_query_find(&query, name));
    return invar_ledger_select(
        run->ledger,
        &(invar_ledger_select_request){.sql = query.sql,
                                       .arguments = arguments,
                                       .n_arguments = sizeof arguments / sizeof arguments[0],
                                       .row = add_row_object,
                                       .payload = answers});
}

/* ---- the run --------------------------------------------------------------------------------- */

#define SUMMARY                                                                                    \
    "{label text, uuid text, name text, kind text, running bool, first int, last int,"             \
    " identity hex32, chain hex32, content hex32, integrity hex32, created_ms int,"                \
    " updated_ms int}"

static invar_status read_summary(json_t **out, const invar_report_run *run,
                                 const invar_ledger_summary *summary)
{
    const char *label = run->label ? run->label : summary->name;
    char writer[INVAR_LEDGER_WRITER_SIZE] = "";
    invar_digest content;

    INVAR_TRY(invar_ledger_content_hash(&content, run->ledger, run->run));
    if (!summary->finished)
        INVAR_TRY(invar_ledger_writer(writer, invar_sql_path(run->ledger->sql)));
    *out = INVAR_RESULT(SUMMARY, invar_report_text(label, strlen(label)),
                        invar_report_text(summary->uuid, strlen(summary->uuid)),
                        invar_report_text(summary->name, strlen(summary->name)),
                        invar_report_text(summary->kind, strlen(summary->kind)), writer[0] != '\0',
                        summary->first_step, summary->last_step, &summary->identity,
                        &summary->chain, &content, &summary->integrity,
                        summary->created_ns / 1000000, summary->updated_ns / 1000000);
    return INVAR_OK; // the caller finds out whether there was memory
}

invar_status invar_report_add_run(json_t *runs, const invar_report_run *run, int64_t limit)
{
    json_t *object, *member;
    invar_ledger_summary summary;

    INVAR_TRY(invar_ledger_find_number(&summary, run->ledger, run->run));
    INVAR_TRY(read_summary(&object, run, &summary));
    INVAR_TRY(invar_report_append(runs, object));
    INVAR_TRY(invar_report_each(run, origin, take_members, object));
    INVAR_TRY(invar_report_each(run, tokens, take_members, object));
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        INVAR_TRY(invar_report_member(&member, object, parts[i].key,
                                      parts[i].list ? json_array() : json_object()));
        INVAR_TRY(invar_report_each(run, parts[i].text, parts[i].take, member));
    }
    INVAR_TRY(add_query_rows(object, "slow", run, "slow-steps", 1.5, INVAR_REPORT_SLOW_STEPS));
    INVAR_TRY(add_query_rows(object, "ranks", run, "slow-ranks", 0, 0));
    INVAR_TRY(add_query_rows(object, "nan", run, "nan-birth", 0, 1));
    INVAR_TRY(invar_report_member(&member, object, "series", json_array()));
    return invar_report_add_series(member, run, summary.first_step, summary.last_step, limit);
}

/* ---- facts ----------------------------------------------------------------------------------- */

typedef struct fact_table {
    json_t *scopes;
    size_t index, count; /* index of the run, and number of runs */
} fact_table;

/*
 * *out = the member whose name is in a column; `fresh` becomes the member if it is missing. Owns
 * `fresh`; *out is borrowed from the object.
 */
static invar_status member_of(json_t **out, json_t *object, invar_sql_stmt *row, int column,
                              json_t *fresh)
{
    json_t *name = invar_report_column(row, column);
    invar_status status = INVAR_OK;

    *out = json_object_get(object, json_string_value(name));
    if (*out)
        json_decref(fresh);
    else if (name)
        status = invar_report_member(out, object, json_string_value(name), fresh);
    else
        status = invar_report_set(object, NULL, fresh); // frees `fresh` and fails
    json_decref(name);
    return status;
}

/* Returns an array with a null for each run. */
static json_t *new_nulls(size_t count)
{
    json_t *array = json_array();

    for (size_t i = 0; i < count; i++)
        if (json_array_append_new(array, json_null()) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static invar_status take_fact(void *payload, invar_sql_stmt *row)
{
    const fact_table *t = payload;
    json_t *scope, *runs, *values;

    INVAR_TRY(member_of(&scope, t->scopes, row, 0, json_object()));
    INVAR_TRY(member_of(&runs, scope, row, 1, new_nulls(t->count)));
    values = json_array_get(runs, t->index);
    if (!json_is_array(values)) {
        values = json_array();
        if (!values || json_array_set_new(runs, t->index, values) != 0)
            return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the facts of the report");
    }
    json_t *value = invar_report_column(row, 2);
    size_t known = json_array_size(values);
    if (value && known > 0 &&
        (known == FACT_VALUES || json_equal(json_array_get(values, known - 1), value))) {
        json_decref(value);
        return INVAR_OK;
    }
    return invar_report_append(values, value);
}

invar_status invar_report_add_facts(json_t *facts, const invar_report_run *run, size_t index,
                                    size_t count)
{
    fact_table t = {.scopes = facts, .index = index, .count = count};

    return invar_report_each(run,
                             "SELECT 'identity', key, value, 0 FROM identity WHERE run = ?1"
                             " UNION ALL SELECT scope, key, value, seg FROM fact WHERE run = ?1"
                             " ORDER BY 1, 2, 4",
                             take_fact, &t);
}
