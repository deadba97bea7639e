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
static const uint8_t known[INVAR_LEDGER_VERSION][INVAR_SHA256_BYTES] = {
    {0x56, 0x11, 0xd3, 0x6c, 0x13, 0x7d, 0x09, 0x39, 0x2c, 0xfe, 0x1d,
     0x74, 0xf9, 0xe1, 0x36, 0xa3, 0xf0, 0x2c, 0xd9, 0x51, 0xba, 0xaf,
     0xc2, 0xea, 0xd1, 0x5b, 0xb7, 0x9e, 0x46, 0x6c, 0x89, 0x40},
    {0xbc, 0x35, 0x4d, 0x8d, 0x3e, 0x08, 0xcb, 0x11, 0x12, 0xc2, 0xfb,
     0x6a, 0x5b, 0x2b, 0xa9, 0xd9, 0x60, 0x92, 0xdd, 0xb7, 0xe2, 0x6e,
     0x8f, 0x96, 0x19, 0x82, 0x9d, 0x70, 0x75, 0xef, 0x46, 0xe6},
    {0x0c, 0xa0, 0x13, 0x0b, 0xd3, 0x58, 0xd5, 0xb9, 0xd6, 0x9f, 0x23,
     0x9f, 0x37, 0x9e, 0xd3, 0xde, 0x2a, 0x7a, 0x4d, 0x5d, 0xa1, 0xa1,
     0x5e, 0xc8, 0xa7, 0x6f, 0x51, 0x46, 0xd6, 0xc4, 0xb2, 0xf3},
    {0x26, 0x49, 0x52, 0x0b, 0xb4, 0xcb, 0xe1, 0x95, 0x6f, 0x93, 0x4e,
     0x73, 0xa3, 0xb9, 0xb6, 0xf8, 0x31, 0x35, 0x92, 0xcf, 0x92, 0xb9,
     0x8a, 0xbc, 0x1c, 0x24, 0x00, 0xd1, 0xf7, 0x4f, 0xe8, 0xab},
    {0x4c, 0x13, 0x3b, 0x30, 0xc0, 0x56, 0x3c, 0xa9, 0x6e, 0x93, 0x3d,
     0x4b, 0xa9, 0x76, 0xd5, 0x9b, 0xfa, 0x2b, 0xc1, 0x8c, 0x74, 0x74,
     0xa8, 0xd2, 0xe9, 0x2a, 0x57, 0xde, 0xef, 0x34, 0x95, 0x41},
};

static void feed_sha256(void *payload, const void *data, size_t bytes)
{
    invar_sha256_update(payload, data, bytes);
}

invar_status invar_ledger_schema_known(bool *out, invar_sql *sql, int version)
{
    uint8_t sum[INVAR_SHA256_BYTES];
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
    *out = memcmp(sum, known[version - 1], sizeof sum) == 0;
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
