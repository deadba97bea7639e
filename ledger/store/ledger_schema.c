/*
 * ledger_schema.c - upgrades a database to the schema of a version, and rejects what is not a
 * ledger.
 *
 * A database runs code when it is read: views and triggers. So every object of a file is compared,
 * to the letter, with those of a new ledger before any other statement reads the file. A connection
 * that reads a ledger of an older version gets the missing tables and views as temporary, empty
 * ones.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/store/ledger_schema.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/text.h"
#include "ledger/store/ledger_row.h"

#include "base/invar_banned.h"

/* ---- migration ------------------------------------------------------------------------------- */

static invar_status run_script(invar_sql *sql, const invar_embedded *script, int version)
{
    char text[128];

    INVAR_TRY(invar_sql_exec(sql, "BEGIN IMMEDIATE"));
    INVAR_TRY(invar_sql_exec(sql, script->text));
    snprintf(text, sizeof text, "PRAGMA application_id = %d; PRAGMA user_version = %d",
             INVAR_LEDGER_SCHEMA_APPLICATION, version);
    INVAR_TRY(invar_sql_exec(sql, text));
    return invar_sql_exec(sql, "COMMIT");
}

invar_status invar_ledger_schema_migrate(invar_sql *sql, int version)
{
    int64_t now;

    INVAR_TRY(invar_sql_query_int(&now, sql, "PRAGMA user_version", 0));
    for (int next = (int)now + 1; next <= version; next++) {
        invar_status status = run_script(sql, &invar_ledger_schemas[next - 1], next);
        if (status != INVAR_OK)
            return invar_sql_roll_back(sql, status);
    }
    return INVAR_OK;
}

/* Creates an empty ledger of a version in memory. The caller closes *out with invar_sql_close. */
static invar_status make_fresh(invar_sql **out, int version)
{
    invar_status status;

    INVAR_TRY(invar_sql_open(out, "", INVAR_SQL_MODE_CREATE));
    status = invar_ledger_schema_migrate(*out, version);
    if (status != INVAR_OK) {
        invar_sql_close(*out);
        *out = NULL;
    }
    return status;
}

/* ---- is it a ledger? ------------------------------------------------------------------------- */

static invar_status check_version(int *out, invar_sql *sql)
{
    int64_t application, version;

    INVAR_TRY(invar_sql_query_int(&application, sql, "PRAGMA application_id", 0));
    INVAR_TRY(invar_sql_query_int(&version, sql, "PRAGMA user_version", 0));
    if (application != INVAR_LEDGER_SCHEMA_APPLICATION)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%.1000s: an SQLite file of another program, not a ledger",
                          invar_sql_path(sql));
    if (version > INVAR_LEDGER_VERSION)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "ledger %.1000s: its schema has version %" PRId64
                          ", this program knows %d: use a newer invar",
                          invar_sql_path(sql), version, INVAR_LEDGER_VERSION);
    if (version < 1)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "ledger %.1000s: its schema has version %" PRId64 ", which never was",
                          invar_sql_path(sql), version);
    *out = (int)version;
    return INVAR_OK;
}

/* SQL: all objects of the schema except the tables of ANALYZE. */
static const char objects[] =
    "SELECT type, name, tbl_name, sql FROM sqlite_schema"
    " WHERE NOT (type = 'table' AND name GLOB 'sqlite_stat[1-4]') ORDER BY name, type";

/* Hashes values with their types, because damage can turn a text into a blob. */
static void hash_object(invar_hasher *hasher, invar_sql_stmt *stmt)
{
    for (int i = 0; i < invar_sql_columns(stmt); i++) {
        invar_ledger_value value = invar_ledger_value_column(stmt, i);
        invar_ledger_value_hash(hasher, &value);
    }
}

static invar_status fail_object_differs(invar_sql *sql, const char *what, invar_sql_stmt *stmt)
{
    char name[INVAR_TEXT_QUOTE_SIZE];
    size_t bytes;
    const char *text = invar_sql_text(stmt, 1, &bytes);

    invar_text_quote(name, sizeof name, text, bytes);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "ledger %.1000s: %s \"%s\" in its schema; it was not written by invar alone",
                      invar_sql_path(sql), what, name);
}

/* Compares both lists of objects, which are sorted by name; fails at the first difference. */
static invar_status compare_objects(invar_sql *sql, invar_sql_stmt *ours, invar_sql_stmt *theirs)
{
    bool more_ours = true, more_theirs = true;

    for (;;) {
        invar_hasher a, b;
        invar_digest x, y;
        INVAR_TRY(invar_sql_step(&more_ours, ours));
        INVAR_TRY(invar_sql_step(&more_theirs, theirs));
        if (!more_ours && !more_theirs)
            return INVAR_OK;
        if (!more_theirs)
            return fail_object_differs(sql, "there is no", ours);
        if (!more_ours)
            return fail_object_differs(sql, "there is a foreign", theirs);
        invar_hasher_init(&a);
        invar_hasher_init(&b);
        hash_object(&a, ours);
        hash_object(&b, theirs);
        invar_hasher_final(&x, &a);
        invar_hasher_final(&y, &b);
        if (!invar_digest_equal(&x, &y))
            return fail_object_differs(sql, "there is a changed or foreign", theirs);
    }
}

invar_status invar_ledger_schema_check(invar_sql *sql)
{
    invar_sql *fresh = NULL;
    invar_sql_stmt *ours = NULL, *theirs = NULL;
    invar_status status;
    int version;

    INVAR_TRY(check_version(&version, sql));
    INVAR_TRY(make_fresh(&fresh, version));
    status = invar_sql_prepare(&ours, fresh, objects);
    if (status == INVAR_OK)
        status = invar_sql_prepare(&theirs, sql, objects);
    if (status == INVAR_OK)
        status = compare_objects(sql, ours, theirs);
    invar_sql_free(ours);
    invar_sql_free(theirs);
    invar_sql_close(fresh);
    return status;
}

/* ---- older versions -------------------------------------------------------------------------- */

/* SQL: CREATE TEMP statements for the objects of a schema that were added after row ?1. */
static const char later[] = "SELECT 'CREATE TEMP' || substr(sql, length('CREATE') + 1)"
                            " FROM sqlite_schema WHERE rowid > ?1 AND type IN ('table', 'view')"
                            " ORDER BY rowid";

static invar_status add_newer_objects(invar_sql *sql, invar_sql *fresh)
{
    invar_sql_stmt *stmt = NULL;
    invar_status status;
    int64_t objects_before;
    size_t bytes;
    bool row = true;

    INVAR_TRY(
        invar_sql_query_int(&objects_before, fresh, "SELECT max(rowid) FROM sqlite_schema", 0));
    INVAR_TRY(invar_ledger_schema_migrate(fresh, INVAR_LEDGER_VERSION));
    INVAR_TRY(invar_sql_prepare(&stmt, fresh, later));
    status = invar_sql_bind_int(stmt, 1, objects_before);
    while (status == INVAR_OK && row) {
        status = invar_sql_step(&row, stmt);
        if (status == INVAR_OK && row)
            status = invar_sql_create_temp(sql, invar_sql_text(stmt, 0, &bytes));
    }
    invar_sql_free(stmt);
    return status;
}

invar_status invar_ledger_schema_complete(invar_sql *sql)
{
    invar_sql *fresh = NULL;
    invar_status status;
    int version;

    INVAR_TRY(check_version(&version, sql));
    if (version == INVAR_LEDGER_VERSION)
        return INVAR_OK;
    INVAR_TRY(make_fresh(&fresh, version));
    status = add_newer_objects(sql, fresh);
    invar_sql_close(fresh);
    return status;
}
