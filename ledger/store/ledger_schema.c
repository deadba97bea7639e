/*
 * ledger_schema.c - upgrades a database to the schema of a version, and rejects what is not a
 * ledger.
 *
 * A database runs code when it is read: views and triggers. So all objects of a file must be those
 * of a new ledger, to the letter, before any other statement reads the file. Their hash shows this;
 * if it differs, a comparison with a new ledger names the object. A connection that reads a ledger
 * of an older version gets the missing tables and views as temporary, empty ones.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/store/ledger_schema.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "ledger/sha256.h"
#include "ledger/store/ledger_row.h"

#include "base/invar_banned.h"

/* ---- migration ------------------------------------------------------------------------------- */

static invar_status run_scripts(invar_sql *sql, int from, int version)
{
    char text[128];

    INVAR_TRY(invar_sql_exec(sql, "BEGIN IMMEDIATE"));
    for (int next = from; next < version; next++)
        INVAR_TRY(invar_sql_exec(sql, invar_ledger_schemas[next].text));
    snprintf(text, sizeof text, "PRAGMA application_id = %d; PRAGMA user_version = %d",
             INVAR_LEDGER_SCHEMA_APPLICATION, version);
    INVAR_TRY(invar_sql_exec(sql, text));
    return invar_sql_exec(sql, "COMMIT");
}

invar_status invar_ledger_schema_migrate(invar_sql *sql, int version)
{
    int64_t now;
    invar_status status;

    INVAR_TRY(invar_sql_query_int(&now, sql, "PRAGMA user_version", 0));
    if (now >= version)
        return INVAR_OK;
    status = run_scripts(sql, (int)now, version);
    return status == INVAR_OK ? INVAR_OK : invar_sql_roll_back(sql, status);
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

/* SHA-256 of the objects of a ledger of each version, which saves creating one to compare with. */
static const char *const known[INVAR_LEDGER_VERSION] = {
    "5611d36c137d09392cfe1d74f9e136a3f02cd951baafc2ead15bb79e466c8940",
    "bc354d8d3e08cb1112c2fb6a5b2ba9d96092ddb7e26e8f9619829d7075ef46e6",
    "0ca0130bd358d5b9d69f239f379ed3de2a7a4d5da1a15ec8a76f5146d6c4b2f3",
    "2649520bb4cbe1956f934e73a3b9b6f8313592cf92b98abc1c2400d1f74fe8ab",
    "4c133b30c0563ca96e933d4ba976d59bfa2bc18c7474a8d2e92a57deef349541",
};

static void feed_sha256(void *payload, const void *data, size_t bytes)
{
    invar_sha256_update(payload, data, bytes);
}

invar_status invar_ledger_schema_known(bool *out, invar_sql *sql, int version)
{
    uint8_t sum[INVAR_SHA256_BYTES];
    char hex[INVAR_SHA256_HEX_SIZE];
    invar_sql_stmt *stmt;
    invar_status status = invar_sql_prepare(&stmt, sql, objects);
    invar_sha256 sha;

    invar_sha256_init(&sha);
    while (invar_sql_next(&status, stmt))
        for (int i = 0; i < invar_sql_columns(stmt); i++) {
            invar_ledger_value value = invar_ledger_value_column(stmt, i);
            invar_ledger_value_feed(feed_sha256, &sha, &value);
        }
    invar_sql_free(stmt);
    invar_sha256_final(sum, &sha);
    invar_sha256_format(hex, sum);
    *out = strcmp(hex, known[version - 1]) == 0;
    return status;
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

/* Compares values with their types, because damage can turn a text into a blob. */
static bool objects_equal(invar_sql_stmt *ours, invar_sql_stmt *theirs)
{
    for (int i = 0; i < invar_sql_columns(ours); i++) {
        invar_ledger_value a = invar_ledger_value_column(ours, i);
        invar_ledger_value b = invar_ledger_value_column(theirs, i);
        if (a.type != b.type || a.bytes != b.bytes ||
            (a.bytes > 0 && memcmp(a.data, b.data, a.bytes) != 0))
            return false;
    }
    return true;
}

/* Compares both lists of objects, which are sorted by name; fails at the first difference. */
static invar_status compare_objects(invar_sql *sql, invar_sql_stmt *ours, invar_sql_stmt *theirs)
{
    bool more_ours = true, more_theirs = true;

    for (;;) {
        INVAR_TRY(invar_sql_step(&more_ours, ours));
        INVAR_TRY(invar_sql_step(&more_theirs, theirs));
        if (!more_ours && !more_theirs)
            return INVAR_OK;
        if (!more_theirs)
            return fail_object_differs(sql, "there is no", ours);
        if (!more_ours)
            return fail_object_differs(sql, "there is a foreign", theirs);
        if (!objects_equal(ours, theirs))
            return fail_object_differs(sql, "there is a changed or foreign", theirs);
    }
}

invar_status invar_ledger_schema_check(invar_sql *sql)
{
    invar_sql *fresh = NULL;
    invar_sql_stmt *ours = NULL, *theirs = NULL;
    invar_status status;
    bool equal;
    int version;

    INVAR_TRY(check_version(&version, sql));
    INVAR_TRY(invar_ledger_schema_known(&equal, sql, version));
    if (equal)
        return INVAR_OK;
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
    invar_sql_stmt *stmt;
    invar_status status;
    int64_t objects_before;

    INVAR_TRY(
        invar_sql_query_int(&objects_before, fresh, "SELECT max(rowid) FROM sqlite_schema", 0));
    INVAR_TRY(invar_ledger_schema_migrate(fresh, INVAR_LEDGER_VERSION));
    status = INVAR_SQL_QUERY(&stmt, fresh, later, objects_before);
    while (invar_sql_next(&status, stmt))
        status = invar_sql_create_temp(sql, invar_sql_text(stmt, 0, NULL));
    return invar_sql_end(stmt, status);
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
