/*
 * ledger_schema.h - brings a file to the schema of this version, and refuses what is not a ledger.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_STORE_LEDGER_SCHEMA_H
#define INVAR_LEDGER_STORE_LEDGER_SCHEMA_H

#include <stdint.h>

#include "base/embedded.h"
#include "base/status.h"
#include "ledger/store/sql.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_LEDGER_SCHEMA_APPLICATION 0x496E7672 /* "Invr": PRAGMA application_id */

/* One script a version, "1.sql" first. */
extern const invar_embedded invar_ledger_schemas[];

/*
 * Runs the scripts that take a database from the version it has to `version`, each in one
 * transaction. An empty database has version 0.
 */
invar_status invar_ledger_schema_migrate(invar_sql *sql, int version) INVAR_MUST_USE;

/*
 * Fails unless the database is a ledger with exactly the tables, views and triggers of its version,
 * which is this one or an older one.
 */
invar_status invar_ledger_schema_check(invar_sql *sql) INVAR_MUST_USE;

/*
 * For a reader of a file that was checked: tables and views that its version does not have are
 * there for this connection, and empty.
 */
invar_status invar_ledger_schema_complete(invar_sql *sql) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
