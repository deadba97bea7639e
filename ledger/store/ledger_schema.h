/*
 * ledger_schema.h - upgrades a database to the schema of a version, and rejects what is not a
 * ledger.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_STORE_LEDGER_SCHEMA_H
#define INVAR_LEDGER_STORE_LEDGER_SCHEMA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/embedded.h"
#include "base/status.h"
#include "ledger/store/sql.h"

#define INVAR_LEDGER_SCHEMA_APPLICATION 0x496E7672 /* "Invr": PRAGMA application_id */

/* The scripts of schema/, one per version: "1.sql", "2.sql", ... */
extern const invar_embedded invar_ledger_schemas[];

/*
 * Upgrades a database to the schema `version`: runs the missing scripts, all in one transaction.
 * An empty database has version 0.
 */
invar_status invar_ledger_schema_migrate(invar_sql *sql, int version) INVAR_MUST_USE;

/*
 * Checks that the database is a ledger with exactly the tables, views and triggers of its version.
 * Returns INVAR_E_CORRUPT if not, INVAR_E_UNSUPPORTED if its version is newer than this one.
 */
invar_status invar_ledger_schema_check(invar_sql *sql) INVAR_MUST_USE;

/*
 * *out = whether the hash of the database's tables, views and triggers is the recorded one of the
 * version, from 1.
 */
invar_status invar_ledger_schema_known(bool *out, invar_sql *sql, int version) INVAR_MUST_USE;

/*
 * Makes an older ledger readable with the statements of this version: creates the tables and views
 * that its version does not have, empty, for this connection only. Call after
 * invar_ledger_schema_check.
 */
invar_status invar_ledger_schema_complete(invar_sql *sql) INVAR_MUST_USE;

#endif
