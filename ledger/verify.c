/*
 * verify.c - verifies a ledger: computes rows, entries, steps, manifests and seals again.
 *
 * One pass over each table. The sum of every row is computed from its values and added to the
 * account of the entry that the row belongs to. At the end each account must equal its entry, so a
 * row that is missing, foreign or moved is found as well as one that changed. Problems are counted,
 * and the first is described.
 *
 * Memory: 24 bytes per entry.
 *
 * Invariants: all (docs/ledger.md)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "ledger/internal.h"
#include "ledger/manifest.h"
#include "ledger/seal.h"

#include "base/invar_banned.h"

enum { PROGRESS_ROWS = 8192, COMPLAINTS = 10 };

/* Count and sum of the rows that belong to one entry. */
typedef struct account {
    int64_t rows;
    uint64_t total; /* sum of their sums, modulo 2^64 */
    bool pruned;    /* some of the rows were left out of this copy */
} account;

typedef struct audit {
    invar_ledger *ledger;
    invar_ledger_verify_result *verdict;
    void (*progress)(void *payload, int64_t done, int64_t total);
    void *payload;
    int64_t total_rows;
    int64_t complaints;  /* complaints of PRAGMA integrity_check about the structure of the file */
    char structure[200]; /* the first of these complaints */

    /* The run that is being verified. */
    int64_t run;
    account *accounts; /* (entries) */
    int64_t entries;
    bool pruned; /* rows of the run were left out of this copy */
} audit;

/* ---- findings -------------------------------------------------------------------------------- */

static void report_problem(audit *a, const char *format, ...) INVAR_PRINTF(2, 3);

static void report_problem(audit *a, const char *format, ...)
{
    va_list arguments;

    if (a->verdict->problems++ > 0)
        return;
    va_start(arguments, format);
    vsnprintf(a->verdict->first_problem, sizeof a->verdict->first_problem, format, arguments);
    va_end(arguments);
}

static void report_row_problem(audit *a, const invar_ledger_stored_row *row, const char *what)
{
    char name[256];

    invar_ledger_row_describe(name, sizeof name, row->table, row->values);
    report_problem(a, "run %" PRId64 ": %s: %s", a->run, name, what);
}

/* Runs a statement with ?1 = run and hands each row to `take`. */
static invar_status for_each_row(audit *a, const char *text,
                                 void (*take)(audit *, invar_sql_stmt *))
{
    invar_sql_stmt *stmt;
    invar_status status = INVAR_SQL_QUERY(&stmt, a->ledger->sql, text, a->run);

    while (invar_sql_next(&status, stmt))
        take(a, stmt);
    return invar_sql_end(stmt, status);
}

/* ---- manifests ------------------------------------------------------------------------------- */

static invar_status check_manifest(audit *a, invar_sql_stmt *points, int64_t manifest,
                                   const invar_digest *hash, int64_t count)
{
    invar_ledger_value values[INVAR_MANIFEST_POINT_COLUMNS];
    invar_hasher hasher;
    invar_digest digest;
    int64_t found = 0;
    invar_status status = INVAR_SQL_BIND(points, manifest);

    invar_hasher_init(&hasher);
    for (; invar_sql_next(&status, points); found++) {
        for (int i = 0; i < INVAR_MANIFEST_POINT_COLUMNS; i++)
            values[i] = invar_ledger_value_column(points, i);
        invar_manifest_point_hash(&hasher, values);
    }
    invar_hasher_final(&digest, &hasher);
    if (status == INVAR_OK && (found != count || !invar_digest_equal(&digest, hash)))
        report_problem(
            a, "manifest %" PRId64 ": its %" PRId64 " points are not those that it was hashed from",
            manifest, found);
    return status;
}

static invar_status check_manifests(audit *a)
{
    invar_sql_stmt *manifests, *points = NULL;
    invar_digest hash;
    invar_status status = invar_sql_prepare(&manifests, a->ledger->sql,
                                            "SELECT manifest, hash, points FROM manifest");

    if (status == INVAR_OK)
        status = invar_sql_prepare(&points, a->ledger->sql,
                                   "SELECT " INVAR_MANIFEST_POINT_NAMES
                                   " FROM point WHERE manifest = ?1 "
                                   "ORDER BY ord");
    while (invar_sql_next(&status, manifests)) {
        if (!invar_sql_digest(&hash, manifests, 1))
            memset(&hash, 0, sizeof hash);
        status = check_manifest(a, points, invar_sql_int(manifests, 0), &hash,
                                invar_sql_int(manifests, 2));
    }
    invar_sql_free(points);
    return invar_sql_end(manifests, status);
}

/* ---- entries --------------------------------------------------------------------------------- */

/* Adds the rows that were left out of this copy to the account of their entry. */
static void count_pruned(audit *a, invar_sql_stmt *stmt)
{
    int64_t entry = invar_sql_int(stmt, 0), rows = invar_sql_int(stmt, 1);

    // only entries of steps have rows that a copy may leave out
    if (entry < 0 || entry >= a->entries || rows < 1 || invar_sql_int(stmt, 3) == 0) {
        report_problem(
            a, "run %" PRId64 ": pruned (entry %" PRId64 "): no step's rows can be missing there",
            a->run, entry);
        return;
    }
    a->pruned = true;
    a->verdict->pruned += rows;
    a->accounts[entry].rows += rows;
    a->accounts[entry].total += (uint64_t)invar_sql_int(stmt, 2);
    a->accounts[entry].pruned = true;
}

static void count_row(audit *a, const invar_ledger_stored_row *row)
{
    int64_t sum = invar_ledger_row_sum(row->table, row->values);

    if (sum != row->sum)
        report_row_problem(a, row, "its values do not give its sum");
    else if (!row->readable_copies_agree)
        report_row_problem(a, row, "what is there to be read is not what the bits say");
    if (row->entry < 0 || row->entry >= a->entries) {
        report_row_problem(a, row, "it belongs to no entry");
        return;
    }
    a->accounts[row->entry].rows++;
    a->accounts[row->entry].total += (uint64_t)sum;
    if (++a->verdict->rows % PROGRESS_ROWS == 0 && a->progress)
        a->progress(a->payload, a->verdict->rows, a->total_rows);
}

static invar_status check_table(audit *a, invar_ledger_table table)
{
    invar_ledger_stored_row found;
    invar_sql_stmt *stmt;
    invar_status status = INVAR_LEDGER_ROW_SELECT(&stmt, a->ledger->sql, table, a->run);

    while (invar_ledger_row_next(&found, &status, stmt, table)) {
        const invar_ledger_value *key = &found.values[0], *data = &found.values[3];
        invar_digest hash;

        count_row(a, &found);
        if (table != INVAR_LEDGER_TABLE_OBJECT)
            continue;
        invar_hash_bytes(&hash, data->data, data->bytes);
        if (key->bytes != sizeof hash.bytes ||
            memcmp(key->data, hash.bytes, sizeof hash.bytes) != 0)
            report_row_problem(a, &found, "its data do not give its hash");
    }
    return invar_sql_end(stmt, status);
}

/* Compares every account with its entry, and checks the chain over the entries. */
static invar_status close_accounts(audit *a)
{
    invar_digest chain = {{0}}, stored = {{0}};
    invar_sql_stmt *stmt;
    invar_status status = INVAR_SQL_QUERY(
        &stmt, a->ledger->sql,
        "SELECT n, kind, ns, rows, total, chain FROM entry WHERE run = ?1 ORDER BY n", a->run);

    for (int64_t n = 0; invar_sql_next(&status, stmt); n++) {
        invar_ledger_value kind = invar_ledger_value_column(stmt, 1);
        bool whole = invar_sql_digest(&stored, stmt, 5);
        invar_ledger_entry_chain(&chain, invar_sql_int(stmt, 0), &kind, invar_sql_int(stmt, 2),
                                 invar_sql_int(stmt, 3), invar_sql_int(stmt, 4));
        if (invar_sql_int(stmt, 0) != n)
            report_problem(a, "run %" PRId64 ": entry %" PRId64 " is missing", a->run, n);
        else if (!whole || !invar_digest_equal(&stored, &chain))
            report_problem(a,
                           "run %" PRId64 ": entry (n %" PRId64
                           "): its chain does not follow from the one "
                           "before and its values",
                           a->run, n);
        else if (n < a->entries && (a->accounts[n].rows != invar_sql_int(stmt, 3) ||
                                    a->accounts[n].total != (uint64_t)invar_sql_int(stmt, 4)))
            report_problem(a,
                           "run %" PRId64 ": entry (n %" PRId64 "): it wrote %" PRId64
                           " rows, which are not the %" PRId64 " that are here",
                           a->run, n, invar_sql_int(stmt, 3), a->accounts[n].rows);
        chain = stored; // continue from the stored chain, so that one damage is reported once
        a->verdict->entries++;
    }
    return invar_sql_end(stmt, status);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static const char step_rows[] =
    "SELECT s.seg, s.step, s.root, s.chain, g.after_step, g.chain, "
    "  (SELECT chain FROM step p WHERE p.run = s.run AND p.step = s.step - 1 AND p.seg = s.seg) "
    "FROM step s LEFT JOIN segment g USING(run, seg) WHERE s.run = ?1";

/*
 * Checks that the chain of a step follows from the previous one: that of the segment's previous
 * step, or that of the step which the segment builds on.
 */
static void check_chain(audit *a, invar_sql_stmt *stmt)
{
    int64_t seg = invar_sql_int(stmt, 0), step = invar_sql_int(stmt, 1);
    bool first = step > INT64_MIN && step - 1 == invar_sql_int(stmt, 4);
    invar_digest root, chain, before;

    a->verdict->steps++;
    if (!invar_sql_digest(&root, stmt, 2) || !invar_sql_digest(&chain, stmt, 3) ||
        !invar_sql_digest(&before, stmt, first ? 5 : 6)) {
        report_problem(a,
                       "run %" PRId64 ": step (step %" PRId64 ", seg %" PRId64
                       "): the step before it is "
                       "missing",
                       a->run, step, seg);
        return;
    }
    invar_digest_chain(&before, &root);
    if (!invar_digest_equal(&before, &chain))
        report_problem(a,
                       "run %" PRId64 ": step (step %" PRId64 ", seg %" PRId64
                       "): its chain does not "
                       "follow from the one before and its root",
                       a->run, step, seg);
}

/*
 * Checks that a segment builds on a step that an earlier segment executed, or on the step of the
 * parent that the run begins after.
 */
static void check_segment(audit *a, invar_sql_stmt *stmt)
{
    static const invar_digest zero = {{0}};
    invar_digest chain;

    if (!invar_sql_digest(&chain, stmt, 1) ||
        (invar_sql_int(stmt, 2) < 0 ? !invar_digest_equal(&chain, &zero)
                                    : invar_sql_int(stmt, 3) == 0))
        report_problem(
            a, "run %" PRId64 ": segment (seg %" PRId64 "): it builds on a step that nobody made",
            a->run, invar_sql_int(stmt, 0));
}

static void check_checkpoint(audit *a, invar_sql_stmt *stmt)
{
    if (invar_sql_int(stmt, 0) >= 0 && invar_sql_int(stmt, 1) == 0)
        report_problem(
            a, "run %" PRId64 ": checkpoint (step %" PRId64 "): no step has the chain that it has",
            a->run, invar_sql_int(stmt, 0));
}

/* Checks that the root of each step follows from its digests of level 0. */
static invar_status check_roots(audit *a)
{
    invar_sql_stmt *digests, *levels = NULL;
    invar_status status =
        INVAR_SQL_QUERY(&digests, a->ledger->sql,
                        "SELECT d.step, d.seg, d.manifest, d.data, s.root, m.points FROM digest d "
                        "JOIN step s USING(run, step, seg) JOIN manifest m USING(manifest) "
                        "WHERE d.run = ?1 AND d.rank = 0 ORDER BY d.step, d.seg",
                        a->run);

    if (status == INVAR_OK)
        status = invar_sql_prepare(&levels, a->ledger->sql,
                                   "SELECT ord FROM point WHERE manifest = ?1 AND level = 0 "
                                   "ORDER BY ord");
    while (invar_sql_next(&status, digests)) {
        size_t bytes;
        const uint8_t *data = invar_sql_blob(digests, 3, &bytes);
        int64_t points = (int64_t)(bytes / sizeof(invar_digest));
        bool whole = bytes % sizeof(invar_digest) == 0 && points == invar_sql_int(digests, 5);
        invar_hasher hasher;
        invar_digest root, stored;
        invar_hasher_init(&hasher);
        status = INVAR_SQL_BIND(levels, invar_sql_int(digests, 2));
        while (whole && invar_sql_next(&status, levels)) {
            int64_t ord = invar_sql_int(levels, 0);
            if (ord >= 0 && ord < points)
                invar_hasher_update(&hasher, data + ord * 16, 16);
        }
        invar_hasher_final(&root, &hasher);
        if (status == INVAR_OK &&
            (!invar_sql_digest(&stored, digests, 4) || !invar_digest_equal(&root, &stored)))
            report_problem(a,
                           "run %" PRId64 ": digest (step %" PRId64 ", seg %" PRId64
                           ", rank 0): it does "
                           "not give the step's root",
                           a->run, invar_sql_int(digests, 0), invar_sql_int(digests, 1));
    }
    invar_sql_free(levels);
    return invar_sql_end(digests, status);
}

/* ---- content --------------------------------------------------------------------------------- */

static invar_status hash_step_rows(invar_hasher *hasher, audit *a, invar_sql_stmt *select,
                                   invar_ledger_table table, const invar_ledger_stored_row *step)
{
    invar_ledger_stored_row found;
    invar_status status =
        INVAR_SQL_BIND(select, a->run, step->values[0].integer, step->values[1].integer);

    while (invar_ledger_row_next(&found, &status, select, table))
        invar_ledger_row_content(hasher, table, found.values);
    return status;
}

static invar_status check_content(audit *a, invar_sql_stmt *steps, invar_sql_stmt *const *selects)
{
    invar_ledger_stored_row step;
    invar_status status = INVAR_OK;

    while (invar_ledger_row_next(&step, &status, steps, INVAR_LEDGER_TABLE_STEP)) {
        invar_hasher hasher;
        invar_digest content;
        if (step.entry >= 0 && step.entry < a->entries && a->accounts[step.entry].pruned)
            continue;
        invar_hasher_init(&hasher);
        invar_ledger_row_content(&hasher, INVAR_LEDGER_TABLE_STEP, step.values);
        for (int i = 0; i < INVAR_CONTENT_TABLES; i++)
            INVAR_TRY(hash_step_rows(&hasher, a, selects[i], invar_content_tables[i], &step));
        invar_hasher_final(&content, &hasher);
        if (step.values[8].bytes != sizeof content.bytes ||
            memcmp(step.values[8].data, content.bytes, sizeof content.bytes) != 0)
            report_row_problem(a, &step,
                               "its metrics, samples and replies do not give its content");
    }
    return status;
}

static invar_status check_contents(audit *a)
{
    invar_sql_stmt *steps, *selects[INVAR_CONTENT_TABLES] = {NULL};
    invar_status status =
        INVAR_LEDGER_ROW_SELECT(&steps, a->ledger->sql, INVAR_LEDGER_TABLE_STEP, a->run);

    for (int i = 0; i < INVAR_CONTENT_TABLES && status == INVAR_OK; i++)
        status = INVAR_LEDGER_ROW_SELECT(&selects[i], a->ledger->sql, invar_content_tables[i],
                                         a->run, 0, 0);
    if (status == INVAR_OK)
        status = check_content(a, steps, selects);
    for (int i = 0; i < INVAR_CONTENT_TABLES; i++)
        invar_sql_free(selects[i]);
    return invar_sql_end(steps, status);
}

/* ---- identity and seals ---------------------------------------------------------------------- */

static invar_status check_identity(audit *a)
{
    invar_sql_stmt *stmt;
    invar_hasher hasher;
    invar_digest hash, stored;
    bool whole = false;
    invar_status status =
        INVAR_SQL_QUERY(&stmt, a->ledger->sql,
                        "SELECT r.identity, i.key, i.value FROM run r LEFT JOIN identity i "
                        "USING(run) WHERE r.run = ?1 ORDER BY i.key",
                        a->run);

    invar_hasher_init(&hasher);
    while (invar_sql_next(&status, stmt)) {
        whole = invar_sql_digest(&stored, stmt, 0);
        for (int i = 1; i <= 2 && invar_sql_type(stmt, 1) != INVAR_LEDGER_TYPE_NULL; i++) {
            invar_ledger_value value = invar_ledger_value_column(stmt, i);
            invar_ledger_value_hash(&hasher, &value);
        }
    }
    invar_sql_free(stmt);
    invar_hasher_final(&hash, &hasher);
    if (status == INVAR_OK && (!whole || !invar_digest_equal(&hash, &stored)))
        report_problem(a, "run %" PRId64 ": run: its identity is not the hash of its keys", a->run);
    return status;
}

static invar_status check_seal(audit *a, invar_sql_stmt *stmt)
{
    int64_t entries = invar_sql_int(stmt, 0);
    invar_digest content, integrity;
    invar_status status;
    invar_seal seal;
    bool missing;
    size_t bytes;
    const void *sha256 = invar_sql_blob(stmt, 3, &bytes);

    if (a->pruned) {
        a->verdict->seals_pruned++;
        return INVAR_OK;
    }
    if (entries < 1 || entries > a->entries || !invar_sql_digest(&content, stmt, 1) ||
        !invar_sql_digest(&integrity, stmt, 2) || bytes != INVAR_SEAL_BYTES) {
        report_problem(a, "run %" PRId64 ": seal (entry %" PRId64 "): it is damaged", a->run,
                       entries);
        return INVAR_OK;
    }
    status = invar_seal_compute(&seal, a->ledger, a->run, entries);
    // a missing entry or a wrong `pruned` is a finding; only failures of SQLite have a native code
    missing =
        status == INVAR_E_STATE || (status == INVAR_E_CORRUPT && invar_error_last()->native == 0);
    if (missing)
        invar_error_clear();
    else
        INVAR_TRY(status);
    if (missing || !invar_digest_equal(&content, &seal.content) ||
        !invar_digest_equal(&integrity, &seal.integrity) ||
        memcmp(sha256, seal.sha256, INVAR_SEAL_BYTES) != 0)
        report_problem(a,
                       "run %" PRId64 ": seal (entry %" PRId64
                       "): the entries before it are not those that "
                       "it sealed",
                       a->run, entries);
    else
        a->verdict->seals++;
    return INVAR_OK;
}

static invar_status check_seals(audit *a)
{
    invar_sql_stmt *stmt;
    invar_status status = INVAR_SQL_QUERY(
        &stmt, a->ledger->sql,
        "SELECT entry, content, integrity, sha256 FROM seal WHERE run = ?1 ORDER BY entry", a->run);

    while (invar_sql_next(&status, stmt))
        status = check_seal(a, stmt);
    return invar_sql_end(stmt, status);
}

/* ---- runs and the file ----------------------------------------------------------------------- */

static invar_status verify_run_rows(audit *a)
{
    INVAR_TRY(
        for_each_row(a,
                     "SELECT entry, rows, total, EXISTS(SELECT 1 FROM step s WHERE s.run = p.run "
                     "AND s.entry = p.entry) FROM pruned p WHERE run = ?1",
                     count_pruned));
    for (int table = 0; table < INVAR_LEDGER_TABLE_COUNT; table++)
        INVAR_TRY(check_table(a, (invar_ledger_table)table));
    INVAR_TRY(close_accounts(a));
    INVAR_TRY(check_identity(a));
    INVAR_TRY(for_each_row(
        a,
        "SELECT seg, chain, after_step, EXISTS(SELECT 1 FROM step s WHERE s.run = g.run "
        "AND s.step = g.after_step AND s.seg < g.seg AND s.chain = g.chain) OR "
        "EXISTS(SELECT 1 FROM segment f JOIN run r USING(run) WHERE f.run = g.run AND "
        "f.seg = 0 AND f.after_step = g.after_step AND f.chain = g.chain AND "
        "r.fork_step = f.after_step) FROM segment g WHERE run = ?1",
        check_segment));
    INVAR_TRY(for_each_row(a, step_rows, check_chain));
    INVAR_TRY(
        for_each_row(a,
                     "SELECT step, EXISTS(SELECT 1 FROM step s WHERE s.run = c.run AND s.step = "
                     "c.step AND s.seg <= c.seg AND s.chain = c.chain) OR EXISTS(SELECT 1 FROM "
                     "segment f WHERE f.run = c.run AND f.seg = 0 AND f.after_step = c.step AND "
                     "f.chain = c.chain) FROM checkpoint c WHERE run = ?1",
                     check_checkpoint));
    INVAR_TRY(check_roots(a));
    INVAR_TRY(check_contents(a));
    return check_seals(a);
}

static invar_status verify_run(audit *a)
{
    invar_status status;

    INVAR_TRY(invar_sql_query_int(&a->entries, a->ledger->sql,
                                  "SELECT count(*) FROM entry WHERE run = ?1", a->run));
    INVAR_TRY(INVAR_ALLOC_ZEROED(a->accounts, (size_t)a->entries, "the entries"));
    a->pruned = false;
    status = verify_run_rows(a);
    invar_free(a->accounts);
    a->accounts = NULL;
    a->verdict->runs++;
    return status;
}

/* Reports rows of runs that do not exist; the verification of each run does not read them. */
static invar_status check_orphans(audit *a)
{
    char text[256];
    int64_t orphans;

    for (int table = 0; table < INVAR_LEDGER_TABLE_COUNT + 2; table++) {
        const char *name = table < INVAR_LEDGER_TABLE_COUNT
                               ? invar_ledger_table_get((invar_ledger_table)table)->name
                           : table == INVAR_LEDGER_TABLE_COUNT ? "entry"
                                                               : "pruned";
        snprintf(text, sizeof text,
                 "SELECT count(*) FROM %s WHERE run NOT IN (SELECT run FROM run)", name);
        INVAR_TRY(invar_sql_query_int(&orphans, a->ledger->sql, text, 0));
        if (orphans > 0)
            report_problem(a, "%s: %" PRId64 " rows belong to no run", name, orphans);
    }
    INVAR_TRY(invar_sql_query_int(&orphans, a->ledger->sql,
                                  "SELECT count(*) FROM point WHERE manifest NOT IN (SELECT "
                                  "manifest FROM manifest)",
                                  0));
    if (orphans > 0)
        report_problem(a, "point: %" PRId64 " rows belong to no manifest", orphans);
    return INVAR_OK;
}

/* Reports names without a value: the rows that referred to them may have been changed. */
static invar_status check_series(audit *a)
{
    int64_t unused;

    INVAR_TRY(invar_sql_query_int(&unused, a->ledger->sql,
                                  "SELECT count(*) FROM series WHERE series NOT IN (SELECT series "
                                  "FROM metric UNION SELECT series FROM gauge UNION SELECT series "
                                  "FROM reward_part UNION SELECT series "
                                  "FROM evaluation)",
                                  0));
    if (unused > 0)
        report_problem(a, "series: %" PRId64 " names belong to no value", unused);
    return INVAR_OK;
}

/* Counts the complaints of PRAGMA integrity_check, one per line, and keeps the first. */
static void add_structure_complaints(audit *a, invar_sql_stmt *stmt)
{
    size_t bytes;
    const char *text = invar_sql_text(stmt, 0, &bytes);

    if (strcmp(text, "ok") == 0)
        return;
    if (a->complaints++ == 0)
        invar_text_quote(a->structure, sizeof a->structure, text, bytes);
    for (; *text; text++)
        a->complaints += *text == '\n';
}

static invar_status verify_file(audit *a)
{
    invar_sql_stmt *runs;
    invar_status status;

    // checked first, because in a damaged tree of pages a query may return rows without end;
    // reported last, because other findings name the row
    INVAR_TRY(for_each_row(a, "PRAGMA integrity_check(10)", add_structure_complaints));
    if (a->complaints >= COMPLAINTS) {
        report_problem(a, "the file's structure: %s", a->structure);
        return INVAR_OK;
    }
    INVAR_TRY(invar_sql_query_int(&a->total_rows, a->ledger->sql,
                                  "SELECT coalesce(sum(rows), 0) FROM entry", 0));
    INVAR_TRY(check_manifests(a));
    status = invar_sql_prepare(&runs, a->ledger->sql, "SELECT run FROM run ORDER BY run");
    while (invar_sql_next(&status, runs)) {
        a->run = invar_sql_int(runs, 0);
        status = verify_run(a);
    }
    INVAR_TRY(invar_sql_end(runs, status));
    INVAR_TRY(check_orphans(a));
    INVAR_TRY(check_series(a));
    if (a->complaints > 0)
        report_problem(a, "the file's structure: %s", a->structure);
    return INVAR_OK;
}

invar_status invar_ledger_verify(invar_ledger_verify_result *out, invar_ledger *ledger,
                                 void (*progress)(void *payload, int64_t done, int64_t total),
                                 void *payload)
{
    audit a = {.ledger = ledger, .verdict = out, .progress = progress, .payload = payload};
    invar_status status;
    bool began;

    memset(out, 0, sizeof *out);
    INVAR_TRY(invar_ledger_snapshot(&began, ledger));
    status = verify_file(&a);
    invar_ledger_snapshot_end(ledger, began);
    if (status == INVAR_E_CORRUPT)
        report_problem(&a, "run %" PRId64 ": the file cannot be read on: %s", a.run,
                       invar_error_last()->message);
    if (progress && status == INVAR_OK)
        progress(payload, out->rows, out->rows);
    return status;
}
