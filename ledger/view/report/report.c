/*
 * report.c - collects the data of a report and writes the page.
 *
 * templates/report.js shows the embedded data. Digests are hexadecimal, times are milliseconds
 * since 1970 unless named otherwise, and a number that may be any double is its IEEE pattern in 16
 * hexadecimal digits, so that it is not rounded and NaN keeps its payload:
 *
 *   {runs: [{label, uuid, name, kind, first, last, identity, chain, content, integrity, created_ms,
 *            updated_ms, parent, fork_step, seals,
 *            running                                        a process writes the ledger
 *            model: {family, layers, hidden_size, parameters, weights}    null if not recorded
 *            segments: [{after, ms, end, exit, reason, stopped}]    end: time of the last entry;
 *                                                           exit: null if killed or running
 *            tokens                                         tokens of all samples; 0 if unknown
 *            clock: [[step, ms]]                            computing time up to the step
 *            again: {steps, differ, first, other, first_other}  steps executed more than once;
 *                                                           other: equal bits, other content
 *            nan: [{step, point, ...}]                      the row of the query nan-birth, if any
 *            series: [{name, kind, count, odd, at, bits}]   kind: metric gauge evaluation time
 *            checkpoints: [step], levels: {level: count},
 *            events: [{step, ms, level, kind, message, data}],
 *            slow: [{step, phase, ms, median_ms}],
 *            ranks: [{rank, host, computing_s, ...}]        rows of the query slow-ranks
 *            slowest: [{from, to, rank}],                   rank with the longest computing time
 *            kept: {...}, samples: [...],                   see samples.c
 *            damaged: [{step, idx, why}]}],                 damaged kept samples, left out
 *    facts: {scope: {key: [[value] | null]}},               per run the values over its segments
 *    defaults: {key: value},                                default values of recipe keys
 *    without: "samples" | "share" | null,                   data that were left out (redact.c)
 *    pairs: [{b, verdict, self, twins, first, strip: [[from, to, state]], ...}]}    compare_runs.c
 *
 * A series has `count` values, of which `odd` are not finite. `at` has the steps of the remaining
 * points, each as the difference from the previous one; `bits` has their patterns in one text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/report/report.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/embedded.h"
#include "base/text.h"
#include "ledger/internal.h"
#include "ledger/view/page.h"
#include "ledger/view/report/internal.h"

#include "base/invar_banned.h"

enum { LEAST_POINTS = 60 }; // minimum limit of points per series, for any number of series

extern const invar_embedded invar_report_files[];

/* ---- values ---------------------------------------------------------------------------------- */

json_t *invar_report_text_within(const char *text, size_t bytes, size_t most)
{
    static const char broken[] = "\xEF\xBF\xBD", more[] = " \xE2\x80\xA6";
    size_t kept = bytes < most ? bytes : most, used = 0;
    char *copy;

    while (kept > 0 && kept < bytes && ((unsigned char)text[kept] & 0xC0) == 0x80)
        kept--;                                    // no character is split
    for (int i = 0; i < 2 && kept == bytes; i++) { // again, as the first failure may be memory
        json_t *plain = json_stringn(text, bytes);
        if (plain)
            return plain;
    }
    if (INVAR_ALLOC_SIZED(copy, kept + 1, strlen(broken) + strlen(more), "a text") != INVAR_OK)
        return NULL;
    for (size_t i = 0, step; i < kept; i += step) {
        size_t valid = invar_text_char(text + i, kept - i);
        bool control = (unsigned char)text[i] < 0x80;
        step = valid > 0 ? valid : 1;
        memcpy(copy + used, valid > 0 || control ? text + i : broken,
               valid > 0 || control ? step : strlen(broken));
        used += valid > 0 || control ? step : strlen(broken);
    }
    if (kept < bytes) {
        memcpy(copy + used, more, strlen(more));
        used += strlen(more);
    }
    json_t *value = json_stringn(copy, used);
    invar_free(copy);
    return value;
}

json_t *invar_report_text(const char *text, size_t bytes)
{
    size_t left;
    char *masked;

    if (invar_report_mask(&masked, &left, text, bytes) != INVAR_OK)
        return NULL;
    json_t *value = invar_report_text_within(masked ? masked : text, masked ? left : bytes,
                                             INVAR_REPORT_TEXT_BYTES);
    invar_free(masked);
    return value;
}

json_t *invar_report_column(invar_sql_stmt *row, int column)
{
    size_t bytes;
    const char *text;

    switch (invar_sql_type(row, column)) {
    case INVAR_LEDGER_TYPE_NULL: return json_null();
    case INVAR_LEDGER_TYPE_INT: return json_integer(invar_sql_int(row, column));
    default: text = invar_sql_text(row, column, &bytes); return invar_report_text(text, bytes);
    }
}

void invar_report_bits(char out[INVAR_REPORT_BITS_DIGITS + 1], uint64_t bits)
{
    snprintf(out, INVAR_REPORT_BITS_DIGITS + 1, "%016" PRIx64, bits);
}

/* ---- containers and rows --------------------------------------------------------------------- */

static invar_status check_made(int failed)
{
    return failed ? INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the data of the report") : INVAR_OK;
}

invar_status invar_report_set(json_t *object, const char *key, json_t *value)
{
    return check_made(json_object_set_new(object, key, value));
}

invar_status invar_report_member(json_t **out, json_t *object, const char *key, json_t *fresh)
{
    *out = fresh;
    return invar_report_set(object, key, fresh);
}

invar_status invar_report_append(json_t *array, json_t *value)
{
    return check_made(json_array_append_new(array, value));
}

invar_status invar_report_each(const invar_report_run *run, const char *text,
                               invar_report_row_fn take, void *payload)
{
    invar_sql_stmt *stmt;
    invar_status status = INVAR_SQL_QUERY(&stmt, run->ledger->sql, text, run->run);

    while (invar_sql_next(&status, stmt))
        status = take(payload, stmt);
    return invar_sql_end(stmt, status);
}

/* ---- the data of a page ---------------------------------------------------------------------- */

/* *out = the limit of points per series. All names of series in the ledgers are counted. */
static invar_status points_of_each(int64_t *out, const invar_report_run *runs, size_t count)
{
    int64_t series = 0, here;

    for (size_t i = 0; i < count; i++) {
        INVAR_TRY(invar_report_series_count(&here, &runs[i]));
        series += here;
    }
    *out = INVAR_REPORT_BUDGET / (series > 0 ? series : 1);
    if (*out > INVAR_REPORT_POINTS)
        *out = INVAR_REPORT_POINTS;
    if (*out < LEAST_POINTS)
        *out = LEAST_POINTS;
    return INVAR_OK;
}

static invar_status add_defaults(json_t *data, const invar_report_options *options)
{
    json_t *defaults;

    INVAR_TRY(invar_report_member(&defaults, data, "defaults", json_object()));
    for (size_t i = 0; i < options->n_defaults; i++) {
        const invar_ledger_pair *pair = &options->defaults[i];
        INVAR_TRY(invar_report_set(defaults, pair->key,
                                   invar_report_text(pair->value, strlen(pair->value))));
    }
    return INVAR_OK;
}

static invar_status collect_runs(json_t *data, const invar_report_run *runs, size_t count,
                                 const invar_report_options *options)
{
    bool samples = !options->no_samples && !options->redact;
    json_t *list, *facts, *pairs;
    int64_t limit;

    INVAR_TRY(invar_report_member(&list, data, "runs", json_array()));
    INVAR_TRY(invar_report_member(&facts, data, "facts", json_object()));
    INVAR_TRY(invar_report_member(&pairs, data, "pairs", json_array()));
    INVAR_TRY(points_of_each(&limit, runs, count));
    for (size_t i = 0; i < count; i++) {
        INVAR_TRY(invar_report_add_run(list, &runs[i], limit));
        INVAR_TRY(invar_report_add_facts(facts, &runs[i], i, count));
        INVAR_TRY(invar_report_add_samples(json_array_get(list, i), &runs[i], samples ? count : 0));
    }
    for (size_t i = 1; i < count; i++)
        INVAR_TRY(invar_report_add_pair(pairs, runs, i));
    return options->redact ? invar_report_redact(data) : INVAR_OK;
}

/*
 * Opens a snapshot of each ledger, recursively, and collects the data inside all of them. Runs of
 * the same ledger share its snapshot.
 */
static invar_status collect_in_snapshots(json_t *data, const invar_report_run *runs, size_t count,
                                         const invar_report_options *options, size_t index)
{
    bool began;

    if (index == count)
        return collect_runs(data, runs, count, options);
    INVAR_TRY(invar_ledger_snapshot(&began, runs[index].ledger));
    invar_status status = collect_in_snapshots(data, runs, count, options, index + 1);
    invar_ledger_snapshot_end(runs[index].ledger, began);
    return status;
}

static void report_damaged(const json_t *data, const invar_report_run *runs,
                           const invar_report_options *options)
{
    char line[INVAR_ERROR_MESSAGE_SIZE];
    json_t *run, *one;
    size_t i, k;

    json_array_foreach(json_object_get(data, "runs"), i, run)
    {
        json_array_foreach(json_object_get(run, "damaged"), k, one)
        {
            (void)snprintf(line, sizeof line,
                           "ledger %.1000s: what is kept of sample %" JSON_INTEGER_FORMAT
                           " of step %" JSON_INTEGER_FORMAT " %s",
                           invar_sql_path(runs[i].ledger->sql),
                           json_integer_value(json_object_get(one, "idx")),
                           json_integer_value(json_object_get(one, "step")),
                           json_string_value(json_object_get(one, "why")));
            options->damaged(options->payload, line);
        }
    }
}

static invar_status make_data(json_t *out, const invar_report_run *runs, size_t count,
                              const invar_report_options *options)
{
    if (count == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a report needs a run");
    INVAR_TRY(check_made(!out));
    INVAR_TRY(add_defaults(out, options));
    INVAR_TRY(invar_report_set(out, "without",
                               options->redact       ? json_string("share")
                               : options->no_samples ? json_string("samples")
                                                     : json_null()));
    INVAR_TRY(collect_in_snapshots(out, runs, count, options, 0));
    if (options->damaged)
        report_damaged(out, runs, options);
    return INVAR_OK;
}

invar_status invar_report_write(FILE *out, const invar_report_run *runs, size_t count,
                                const invar_report_options *options)
{
    json_t *data = json_object();
    invar_status status = make_data(data, runs, count, options);

    if (status == INVAR_OK)
        status = options->data_only
                     ? invar_page_write_data(out, data)
                     : invar_page_write(out, invar_report_files, data, options->live);
    json_decref(data);
    return status;
}
