/*
 * reader.c - reads what a ledger holds: run summaries, chains, plug-in replies, the content hash.
 *
 * If a step was executed more than once, the newest segment that has it is read. The summary of a
 * run costs the same for any length, because it seeks to the ends of primary keys. The content hash
 * covers steps and evaluations up to an entry, so a seal stays true when the run continues.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "ledger/internal.h"
#include "ledger/seal.h"

#include "base/invar_banned.h"

/* ---- runs ------------------------------------------------------------------------------------ */

/* Aggregates are seeks to the ends of primary keys, so a summary costs the same for any length. */
static const char summaries[] =
    "SELECT r.run, r.uuid, r.name, r.kind, r.identity, "
    "  (SELECT ns FROM entry e WHERE e.run = r.run AND e.n = 0), l.ns, l.n + 1, "
    "  (SELECT max(seg) + 1 FROM segment g WHERE g.run = r.run), "
    "  coalesce((SELECT min(step) FROM step s WHERE s.run = r.run), -1), "
    "  coalesce((SELECT max(step) FROM step s WHERE s.run = r.run), -1), "
    "  (SELECT chain FROM step s WHERE s.run = r.run ORDER BY step DESC, seg DESC LIMIT 1), "
    "  l.chain, f.exit_code, " INVAR_LEDGER_STOPPED ", "
    "  coalesce(r.parent, ''), coalesce(r.fork_step, -1) "
    "FROM run r "
    "JOIN entry l ON l.run = r.run AND l.n = (SELECT max(n) FROM entry e WHERE e.run = r.run) "
    "LEFT JOIN finish f ON f.run = r.run "
    "  AND f.seg = (SELECT max(seg) FROM segment g WHERE g.run = r.run) "
    "ORDER BY r.run";

static void copy_text(char *out, size_t size, invar_sql_stmt *stmt, int column)
{
    size_t bytes;
    const char *text = invar_sql_text(stmt, column, &bytes);

    if (bytes > size - 1)
        bytes = size - 1;
    memcpy(out, text, bytes);
    out[bytes] = '\0';
}

static invar_status read_summary(invar_ledger_summary *out, invar_ledger *ledger,
                                 invar_sql_stmt *stmt)
{
    memset(out, 0, sizeof *out);
    out->run = invar_sql_int(stmt, 0);
    copy_text(out->uuid, sizeof out->uuid, stmt, 1);
    copy_text(out->name, sizeof out->name, stmt, 2);
    copy_text(out->kind, sizeof out->kind, stmt, 3);
    out->created_ns = invar_sql_int(stmt, 5);
    out->updated_ns = invar_sql_int(stmt, 6);
    out->entries = invar_sql_int(stmt, 7);
    out->segments = invar_sql_int(stmt, 8);
    out->first_step = invar_sql_int(stmt, 9);
    out->last_step = invar_sql_int(stmt, 10);
    out->finished = invar_sql_type(stmt, 13) == INVAR_LEDGER_TYPE_INT;
    out->exit_code = invar_sql_int(stmt, 13);
    out->stopped = out->finished && invar_sql_int(stmt, 14) != 0;
    copy_text(out->parent, sizeof out->parent, stmt, 15);
    out->fork_step = invar_sql_int(stmt, 16);
    if (!invar_sql_digest(&out->identity, stmt, 4) ||
        !invar_sql_digest(&out->integrity, stmt, 12) ||
        (out->last_step >= 0 && !invar_sql_digest(&out->chain, stmt, 11)))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "ledger %.1000s: run %" PRId64
                          " has a hash of a wrong size; invar ledger verify says more",
                          invar_sql_path(ledger->sql), out->run);
    return INVAR_OK;
}

invar_status invar_ledger_runs(invar_ledger *ledger,
                               invar_status (*take)(void *payload,
                                                    const invar_ledger_summary *summary),
                               void *payload)
{
    invar_ledger_summary summary;
    invar_sql_stmt *stmt;
    invar_status status = invar_sql_prepare(&stmt, ledger->sql, summaries);

    while (invar_sql_next(&status, stmt)) {
        status = read_summary(&summary, ledger, stmt);
        if (status == INVAR_OK)
            status = take(payload, &summary);
    }
    return invar_sql_end(stmt, status);
}

/* ---- finding a run --------------------------------------------------------------------------- */

typedef struct search {
    const char *which; /* number, name or uuid; NULL matches every run */
    invar_ledger_summary *found;
    int rank;    /* quality of the best match so far: 3 uuid or number, 2 name, 1 prefix, 0 none */
    int matches; /* number of runs that match as well as the best one */
} search;

enum { PREFIX_DIGITS = 4 };

static int rank_match(const char *which, const invar_ledger_summary *run)
{
    char number[24];

    snprintf(number, sizeof number, "%" PRId64, run->run);
    if (!which || strcmp(which, run->uuid) == 0 || strcmp(which, number) == 0)
        return 3;
    if (strcmp(which, run->name) == 0)
        return 2;
    return strlen(which) >= PREFIX_DIGITS && strncmp(which, run->uuid, strlen(which)) == 0;
}

static invar_status match_run(void *payload, const invar_ledger_summary *run)
{
    search *s = payload;
    int rank = rank_match(s->which, run);

    if (rank == 0 || rank < s->rank)
        return INVAR_OK;
    s->matches = rank > s->rank ? 1 : s->matches + 1;
    s->rank = rank;
    *s->found = *run;
    return INVAR_OK;
}

invar_status invar_ledger_find(invar_ledger_summary *out, invar_ledger *ledger, const char *which)
{
    search s = {.which = which, .found = out};
    char quote[INVAR_TEXT_QUOTE_SIZE];

    INVAR_TRY(invar_ledger_runs(ledger, match_run, &s));
    if (s.matches == 1)
        return INVAR_OK;
    if (!which && s.matches == 0)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "ledger %.1000s: it holds no run",
                          invar_sql_path(ledger->sql));
    if (!which)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "ledger %.1000s: it holds %d runs; say which",
                          invar_sql_path(ledger->sql), s.matches);
    invar_text_quote(quote, sizeof quote, which, strlen(which));
    if (s.matches == 0)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "ledger %.1000s: no run has the number, name or uuid \"%s\"",
                          invar_sql_path(ledger->sql), quote);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "ledger %.1000s: %d runs are \"%s\"; give more of the uuid",
                      invar_sql_path(ledger->sql), s.matches, quote);
}

invar_status invar_ledger_find_number(invar_ledger_summary *out, invar_ledger *ledger, int64_t run)
{
    char number[24];

    (void)snprintf(number, sizeof number, "%" PRId64, run);
    return invar_ledger_find(out, ledger, number);
}

/* ---- the model ------------------------------------------------------------------------------- */

/* SQL: a fact of the newest segment, or a key of the identity if no folder described the model. */
#define MODEL_FACT(fact, key)                                                                      \
    "coalesce((SELECT value FROM fact WHERE run = :run AND scope = '" INVAR_LEDGER_MODEL_SCOPE     \
    "' AND key = '" fact "' ORDER BY seg DESC LIMIT 1), "                                          \
    "(SELECT value FROM identity WHERE run = :run AND key = '" key "' AND NOT EXISTS "             \
    "(SELECT 1 FROM fact WHERE run = :run AND scope = 'free' AND key = 'hf-checkpoint' AND "       \
    "value <> '')))"
#define MODEL_FAMILY MODEL_FACT("family", "model-type") " AS family, "
#define MODEL_LAYERS "CAST(" MODEL_FACT("layers", "num-layers") " AS INTEGER) AS layers, "
#define MODEL_HIDDEN                                                                               \
    "CAST(" MODEL_FACT("hidden-size", "hidden-size") " AS INTEGER) AS hidden_size, "
#define MODEL_SIZE "CAST(" MODEL_FACT("parameters", "parameters") " AS INTEGER) AS parameters, "
#define MODEL_WEIGHTS                                                                              \
    "(SELECT value FROM identity WHERE run = :run AND key = '" INVAR_LEDGER_WEIGHTS "') AS "       \
    "weights"

const char invar_ledger_model_sql[] =
    "SELECT " MODEL_FAMILY MODEL_LAYERS MODEL_HIDDEN MODEL_SIZE MODEL_WEIGHTS;

/* ---- chains ---------------------------------------------------------------------------------- */

invar_status invar_ledger_chain_at(invar_digest *out, invar_ledger *ledger, int64_t run,
                                   int64_t step)
{
    invar_sql_stmt *stmt;
    invar_status status =
        INVAR_SQL_QUERY(&stmt, ledger->sql,
                        "SELECT chain, seg FROM step WHERE run = ?1 AND step = ?2 UNION ALL "
                        "SELECT chain, seg FROM segment WHERE run = ?1 AND seg = 0 AND "
                        "after_step = ?2 AND after_step >= 0 ORDER BY seg DESC LIMIT 1",
                        run, step);
    bool row = invar_sql_next(&status, stmt);

    if (status == INVAR_OK && !row)
        status =
            INVAR_FAIL(INVAR_E_NOTFOUND, 0, "ledger %.1000s: run %" PRId64 " has no step %" PRId64,
                       invar_sql_path(ledger->sql), run, step);
    else if (status == INVAR_OK && !invar_sql_digest(out, stmt, 0))
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "ledger %.1000s: step %" PRId64 " has no chain",
                            invar_sql_path(ledger->sql), step);
    return invar_sql_end(stmt, status);
}

/* ---- replies --------------------------------------------------------------------------------- */

static invar_status find_newest_segment(bool *found_out, int64_t *out, invar_ledger *ledger,
                                        int64_t run, int64_t step)
{
    invar_sql_stmt *stmt;
    invar_status status = INVAR_SQL_QUERY(
        &stmt, ledger->sql, "SELECT max(seg) FROM step WHERE run = ?1 AND step = ?2", run, step);

    *found_out = invar_sql_next(&status, stmt) && invar_sql_type(stmt, 0) == INVAR_LEDGER_TYPE_INT;
    *out = *found_out ? invar_sql_int(stmt, 0) : -1;
    return invar_sql_end(stmt, status);
}

/* Converts a row; fails if its values do not give its sum. */
static invar_status read_reply(invar_ledger_plugin_reply *out, const invar_ledger *ledger,
                               const invar_ledger_stored_row *row)
{
    enum { PLUGIN = 2, CALL, REQUEST, DATA };
    const invar_ledger_value *values = row->values;

    INVAR_TRY(invar_ledger_row_check(row, invar_sql_path(ledger->sql)));
    if (values[PLUGIN].type != INVAR_LEDGER_TYPE_TEXT ||
        values[CALL].type != INVAR_LEDGER_TYPE_INT ||
        values[REQUEST].type != INVAR_LEDGER_TYPE_BLOB ||
        values[REQUEST].bytes != sizeof out->request || values[DATA].type != INVAR_LEDGER_TYPE_BLOB)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "ledger %.1000s: a reply has columns of wrong types; verify the ledger",
                          invar_sql_path(ledger->sql));
    *out = (invar_ledger_plugin_reply){.plugin = values[PLUGIN].data,
                                       .call = values[CALL].integer,
                                       .data = values[DATA].data,
                                       .bytes = values[DATA].bytes};
    memcpy(&out->request, values[REQUEST].data, sizeof out->request);
    return INVAR_OK;
}

invar_status invar_ledger_replies(bool *found_out, invar_ledger *ledger, int64_t run, int64_t step,
                                  invar_ledger_take_reply take, void *payload)
{
    invar_ledger_stored_row row;
    invar_sql_stmt *select;
    invar_status status;
    int64_t seg;

    INVAR_TRY(find_newest_segment(found_out, &seg, ledger, run, step));
    if (!*found_out)
        return INVAR_OK;
    status =
        INVAR_LEDGER_ROW_SELECT(&select, ledger->sql, INVAR_LEDGER_TABLE_REPLY, run, step, seg);
    while (invar_ledger_row_next(&row, &status, select, INVAR_LEDGER_TABLE_REPLY)) {
        invar_ledger_plugin_reply reply;

        status = read_reply(&reply, ledger, &row);
        if (status == INVAR_OK)
            status = take(payload, &reply);
    }
    return invar_sql_end(select, status);
}

/* ---- content --------------------------------------------------------------------------------- */

/* Feeds all columns of all rows of the statement `text`, with ?1 = run and ?2 = entries. */
static invar_status hash_rows(invar_hasher *hasher, invar_ledger *ledger, int64_t run,
                              int64_t entries, const char *text)
{
    invar_sql_stmt *stmt;
    invar_status status = INVAR_SQL_QUERY(&stmt, ledger->sql, text, run, entries);

    while (invar_sql_next(&status, stmt))
        for (int i = 0; i < invar_sql_columns(stmt); i++) {
            invar_ledger_value value = invar_ledger_value_column(stmt, i);
            invar_ledger_value_hash(hasher, &value);
        }
    return invar_sql_end(stmt, status);
}

/* A step or evaluation is hashed as the newest segment below `entries` recorded it. */
invar_status invar_content_until(invar_digest *out, invar_ledger *ledger, int64_t run,
                                 int64_t entries)
{
    int64_t end = entries < 0 ? INT64_MAX : entries;
    invar_hasher hasher;
    invar_status status;
    bool began;

    invar_hasher_init(&hasher);
    INVAR_TRY(invar_ledger_snapshot(&began, ledger));
    status = hash_rows(&hasher, ledger, run, end,
                       "SELECT step, content FROM step s WHERE run = ?1 AND entry < ?2 AND seg = "
                       "(SELECT max(seg) FROM step t WHERE t.run = s.run AND t.step = s.step AND "
                       "t.entry < ?2) ORDER BY step");
    if (status == INVAR_OK)
        status = hash_rows(&hasher, ledger, run, end,
                           "SELECT e.step, e.dataset, n.name, e.value_bits FROM evaluation e "
                           "JOIN series n USING(series) WHERE run = ?1 AND entry < ?2 AND seg = "
                           "(SELECT max(seg) FROM evaluation f WHERE f.run = e.run AND f.step = "
                           "e.step AND f.dataset = e.dataset AND f.series = e.series AND f.entry < "
                           "?2) ORDER BY e.step, e.dataset, n.name");
    invar_ledger_snapshot_end(ledger, began);
    invar_hasher_final(out, &hasher);
    return status;
}

invar_status invar_ledger_content_hash(invar_digest *out, invar_ledger *ledger, int64_t run)
{
    return invar_content_until(out, ledger, run, -1);
}
