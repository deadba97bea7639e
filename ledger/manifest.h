/*
 * manifest.h - finds and writes the rows of a manifest, for definition, copies and verification.
 * Private to ledger/.
 *
 * The hash of a manifest is XXH3-128 over the canonical values (ledger_row.h) of all its points in
 * order: ord, name, phase, layer, op, kind, level, dtype, shape, shards, replicated, inputs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_MANIFEST_H
#define INVAR_LEDGER_MANIFEST_H

#include "base/hash.h"
#include "base/status.h"
#include "ledger/store/sql.h"

#define INVAR_MANIFEST_POINT_COLUMNS 12 /* columns of a point without the number of the manifest */
#define INVAR_MANIFEST_POINT_NAMES                                                                 \
    "ord, name, phase, layer, op, kind, level, dtype, shape, shards, replicated, inputs"

/* Feeds one point to the hash of its manifest. `values` (INVAR_MANIFEST_POINT_COLUMNS). */
void invar_manifest_point_hash(invar_hasher *hasher, const invar_ledger_value *values);

/* *out = the number of the manifest with this hash; 0 if there is none. */
invar_status invar_manifest_find(int64_t *out, invar_sql *sql,
                                 const invar_digest *hash) INVAR_MUST_USE;

/* Adds a manifest of `points` points, without the points. *out = its number. */
invar_status invar_manifest_add(int64_t *out, invar_sql *sql, const invar_digest *hash,
                                int64_t points) INVAR_MUST_USE;

/* Prepares the INSERT of a point; the caller frees *out with invar_sql_free. */
invar_status invar_manifest_point_insert(invar_sql_stmt **out, invar_sql *sql) INVAR_MUST_USE;
/* Runs the INSERT for one point. `values` (INVAR_MANIFEST_POINT_COLUMNS). */
invar_status invar_manifest_point_write(invar_sql_stmt *insert, int64_t manifest,
                                        const invar_ledger_value *values) INVAR_MUST_USE;

#endif
