/*
 * copy.c - copies runs from one ledger to another: import, and copies without old detail.
 *
 * Rows, sums, entries and chains are copied unchanged; only the numbers of run, series and manifest
 * are assigned again, and no hash covers them. So a copied run keeps its hashes, and verify proves
 * it. Rows that a copy leaves out are counted per entry in the table `pruned`, so an entry still
 * adds up. Each run is one transaction; the source is read in one snapshot.
 *
 * Invariants: L2, L3, L11 (docs/ledger.md)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "ledger/internal.h"
#include "ledger/manifest.h"
#include "ledger/seal.h"

#include "base/invar_banned.h"

/* The rows of an entry that the copy does not have. */
typedef struct leftover {
    int64_t rows;
    uint64_t total; /* sum of their sums, modulo 2^64 */
} leftover;

/* A copy of runs, and the run that is being copied. */
typedef struct transfer {
    invar_ledger *from, *to;
    int64_t only;                       /* number of the only run to copy; 0 to copy all */
    const invar_ledger_retention *keep; /* detail rows to keep; NULL keeps all */
    int64_t copied;                     /* number of runs copied or extended */

    invar_ledger_summary run; /* the run in `from` */
    int64_t number;           /* number of the run in `to` */
    int64_t first;            /* first entry to copy; `to` has the earlier ones */
    leftover *left;           /* (run.entries) rows left out of each entry */
    invar_sql_stmt *add_entry, *add_pruned;
} transfer;

/* Runs `text` on `from` with ?1 = run and hands each row to `take`. */
static invar_status for_each_row(transfer *t, const char *text,
                                 invar_status (*take)(transfer *, invar_sql_stmt *))
{
    invar_sql_stmt *stmt;
    invar_status status = INVAR_SQL_QUERY(&stmt, t->from->sql, text, t->run.run);

    while (invar_sql_next(&status, stmt))
        status = take(t, stmt);
    return invar_sql_end(stmt, status);
}

/* ---- manifests ------------------------------------------------------------------------------- */

static invar_status copy_points(transfer *t, int64_t manifest, int64_t number)
{
    invar_ledger_value values[INVAR_MANIFEST_POINT_COLUMNS];
    invar_sql_stmt *select, *insert = NULL;
    invar_status status = INVAR_SQL_QUERY(
        &select, t->from->sql,
        "SELECT " INVAR_MANIFEST_POINT_NAMES " FROM point WHERE manifest = ?1", manifest);

    if (status == INVAR_OK)
        status = invar_manifest_point_insert(&insert, t->to->sql);
    while (invar_sql_next(&status, select)) {
        for (int i = 0; i < INVAR_MANIFEST_POINT_COLUMNS; i++)
            values[i] = invar_ledger_value_column(select, i);
        status = invar_manifest_point_write(insert, number, values);
    }
    invar_sql_free(insert);
    return invar_sql_end(select, status);
}

static invar_status copy_manifest(transfer *t, invar_sql_stmt *stmt)
{
    invar_digest hash;
    int64_t number;

    if (!invar_sql_digest(&hash, stmt, 1))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "ledger %.1000s: a manifest has no hash",
                          invar_sql_path(t->from->sql));
    INVAR_TRY(invar_manifest_find(&number, t->to->sql, &hash));
    if (number != 0)
        return INVAR_OK;
    INVAR_TRY(invar_manifest_add(&number, t->to->sql, &hash, invar_sql_int(stmt, 2)));
    return copy_points(t, invar_sql_int(stmt, 0), number);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool is_left_out(const transfer *t, const invar_ledger_stored_row *row)
{
    int64_t step = row->values[0].integer;

    if (!t->keep || t->keep->last_steps < 0 || !invar_ledger_table_get(row->table)->detail ||
        step < 0 || step > t->run.last_step || t->run.last_step - step < t->keep->last_steps)
        return false;
    return t->keep->every_n_steps == 0 || step % t->keep->every_n_steps != 0;
}

static invar_status copy_series(transfer *t, const invar_ledger_stored_row *row)
{
    const invar_ledger_table_def *spec = invar_ledger_table_get(row->table);

    for (int i = 0; spec->column[i].name; i++)
        if (spec->column[i].flags & INVAR_COLUMN_SERIES) {
            if (row->values[i].type != INVAR_LEDGER_TYPE_TEXT)
                return INVAR_FAIL(
                    INVAR_E_CORRUPT, 0,
                    "ledger %.1000s: a value has no name; invar ledger verify names it",
                    invar_sql_path(t->from->sql));
            INVAR_TRY(invar_ledger_add_series(t->to, row->values[i].data));
        }
    return INVAR_OK;
}

static invar_status check_entry(const transfer *t, int64_t entry)
{
    if (entry >= 0 && entry < t->run.entries)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "ledger %.1000s: a row belongs to no entry; invar ledger "
                      "verify names it",
                      invar_sql_path(t->from->sql));
}

static invar_status copy_row(transfer *t, const invar_ledger_stored_row *row,
                             invar_sql_stmt *insert)
{
    INVAR_TRY(check_entry(t, row->entry));
    if (row->entry < t->first)
        return INVAR_OK;
    if (is_left_out(t, row)) {
        t->left[row->entry].rows++;
        t->left[row->entry].total += (uint64_t)row->sum;
        return INVAR_OK;
    }
    INVAR_TRY(copy_series(t, row));
    return invar_ledger_row_write(insert, row->table, t->number, row->values, row->sum);
}

static invar_status copy_table(transfer *t, invar_ledger_table table)
{
    invar_sql_stmt *select, *insert = NULL;
    invar_ledger_stored_row found;
    invar_status status = INVAR_LEDGER_ROW_SELECT(&select, t->from->sql, table, t->run.run);

    if (status == INVAR_OK)
        status = invar_ledger_row_insert(&insert, t->to->sql, table);
    while (invar_ledger_row_next(&found, &status, select, table))
        status = copy_row(t, &found, insert);
    invar_sql_free(insert);
    return invar_sql_end(select, status);
}

static invar_status copy_entry(transfer *t, invar_sql_stmt *stmt)
{
    if (invar_sql_int(stmt, 0) < t->first)
        return INVAR_OK;
    INVAR_TRY(invar_sql_bind(t->add_entry, 1, invar_ledger_value_int(t->number)));
    for (int i = 0; i < invar_sql_columns(stmt); i++)
        INVAR_TRY(invar_sql_bind(t->add_entry, i + 2, invar_ledger_value_column(stmt, i)));
    return invar_sql_run(t->add_entry);
}

/* Adds the rows that the source itself does not have. */
static invar_status count_pruned(transfer *t, invar_sql_stmt *stmt)
{
    int64_t entry = invar_sql_int(stmt, 0);

    INVAR_TRY(check_entry(t, entry));
    t->left[entry].rows += invar_sql_int(stmt, 1);
    t->left[entry].total += (uint64_t)invar_sql_int(stmt, 2);
    return INVAR_OK;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static invar_status copy_rows(transfer *t)
{
    INVAR_TRY(invar_sql_prepare(&t->add_entry, t->to->sql,
                                "INSERT INTO entry(run, n, kind, ns, rows, total, chain) "
                                "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)"));
    INVAR_TRY(invar_sql_prepare(&t->add_pruned, t->to->sql,
                                "INSERT INTO pruned(run, entry, rows, total) "
                                "VALUES(?1, ?2, ?3, ?4)"));
    INVAR_TRY(for_each_row(
        t,
        "SELECT manifest, hash, points FROM manifest WHERE manifest IN (SELECT manifest "
        "FROM digest WHERE run = ?1) ORDER BY manifest",
        copy_manifest));
    for (int table = 0; table < INVAR_LEDGER_TABLE_COUNT; table++)
        INVAR_TRY(copy_table(t, (invar_ledger_table)table));
    INVAR_TRY(for_each_row(t, "SELECT n, kind, ns, rows, total, chain FROM entry WHERE run = ?1",
                           copy_entry));
    INVAR_TRY(
        for_each_row(t, "SELECT entry, rows, total FROM pruned WHERE run = ?1", count_pruned));
    for (int64_t entry = t->first; entry < t->run.entries; entry++)
        if (t->left[entry].rows > 0) {
            INVAR_TRY(INVAR_SQL_BIND(t->add_pruned, t->number, entry, t->left[entry].rows,
                                     (int64_t)t->left[entry].total));
            INVAR_TRY(invar_sql_run(t->add_pruned));
        }
    return INVAR_OK;
}

/* Copies the run in one transaction of `to`. */
static invar_status copy_run(transfer *t)
{
    invar_status status;
    int64_t entries;

    // entries are counted, because a forged number must not make us allocate all memory
    INVAR_TRY(invar_sql_query_int(&entries, t->from->sql,
                                  "SELECT count(*) FROM entry WHERE run = ?1", t->run.run));
    if (entries != t->run.entries)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "ledger %.1000s: entries are missing; invar ledger verify says which",
                          invar_sql_path(t->from->sql));
    INVAR_TRY(INVAR_ALLOC_ZEROED(t->left, (size_t)t->run.entries, "the entries"));
    status = invar_sql_exec(t->to->sql, "BEGIN IMMEDIATE");
    if (status == INVAR_OK) {
        t->add_entry = t->add_pruned = NULL;
        status = copy_rows(t);
        invar_sql_free(t->add_entry);
        invar_sql_free(t->add_pruned);
        if (status == INVAR_OK)
            status = invar_sql_exec(t->to->sql, "COMMIT");
        if (status != INVAR_OK) {
            t->to->n_series = 0; // the rollback removed the names that this transaction added
            status = invar_sql_roll_back(t->to->sql, status);
        }
    }
    invar_free(t->left);
    return status;
}

/*
 * Sets the number of the run in `to` and the first entry to copy, which is run.entries if `to` has
 * all of them. Fails if `to` has a run with the same uuid and another history.
 */
static invar_status find_target(transfer *t)
{
    invar_ledger_summary there;
    invar_digest ours, theirs;
    invar_status status = invar_ledger_find(&there, t->to, t->run.uuid);

    if (status == INVAR_E_NOTFOUND) {
        invar_error_clear();
        INVAR_TRY(invar_sql_query_int(&t->number, t->to->sql, "SELECT max(run) FROM run", 0));
        t->number++;
        t->first = 0;
        return INVAR_OK;
    }
    INVAR_TRY(status);
    t->number = there.run;
    t->first = there.entries < t->run.entries ? there.entries : t->run.entries;
    INVAR_TRY(invar_seal_integrity(&ours, t->to, there.run, t->first - 1));
    INVAR_TRY(invar_seal_integrity(&theirs, t->from, t->run.run, t->first - 1));
    if (!invar_digest_equal(&ours, &theirs))
        return INVAR_FAIL(INVAR_E_MISMATCH, 0,
                          "ledger %.1000s: its run %.32s has another history than the one of that "
                          "uuid in %.1000s",
                          invar_sql_path(t->from->sql), t->run.uuid, invar_sql_path(t->to->sql));
    return INVAR_OK;
}

static invar_status copy_new_entries(void *payload, const invar_ledger_summary *run)
{
    transfer *t = payload;

    if (t->only != 0 && t->only != run->run)
        return INVAR_OK;
    t->run = *run;
    INVAR_TRY(find_target(t));
    if (t->first == run->entries)
        return INVAR_OK;
    if (t->number == t->to->position.run) // the position of the writer would become wrong
        return INVAR_FAIL(
            INVAR_E_STATE, 0,
            "ledger %.1000s: its run %.32s is being written and cannot be extended by "
            "%.1000s; close it first",
            invar_sql_path(t->to->sql), run->uuid, invar_sql_path(t->from->sql));
    INVAR_TRY(copy_run(t));
    t->copied++;
    return INVAR_OK;
}

/*
 * Verifies and copies in one snapshot of the source, so that exactly the verified rows are copied.
 */
static invar_status copy_runs(transfer *t, bool verified)
{
    invar_ledger_verify_result verdict;
    invar_status status = INVAR_OK;
    bool began;

    if (t->to->lock < 0)
        return INVAR_FAIL(INVAR_E_STATE, 0, "ledger %.1000s: it is open for reading only",
                          invar_sql_path(t->to->sql));
    INVAR_TRY(invar_ledger_snapshot(&began, t->from));
    if (verified)
        status = invar_ledger_verify(&verdict, t->from, NULL, NULL);
    if (status == INVAR_OK && verified && verdict.problems > 0)
        status =
            INVAR_FAIL(INVAR_E_CORRUPT, 0, "ledger %.1000s: it is damaged and not copied: %.1000s",
                       invar_sql_path(t->from->sql), verdict.first_problem);
    if (status == INVAR_OK)
        status = invar_ledger_runs(t->from, copy_new_entries, t);
    invar_ledger_snapshot_end(t->from, began);
    return status;
}

invar_status invar_ledger_import(int64_t *runs_out, invar_ledger *ledger, invar_ledger *from)
{
    transfer t = {.from = from, .to = ledger};

    *runs_out = 0;
    INVAR_TRY(copy_runs(&t, true));
    *runs_out = t.copied;
    return INVAR_OK;
}

invar_status invar_ledger_import_run(invar_ledger *ledger, invar_ledger *from, int64_t run)
{
    transfer t = {.from = from, .to = ledger, .only = run};

    return copy_runs(&t, false);
}

invar_status invar_ledger_copy_pruned(invar_ledger *ledger, invar_ledger *from,
                                      const invar_ledger_retention *keep)
{
    transfer t = {.from = from, .to = ledger, .keep = keep};

    return copy_runs(&t, true);
}
