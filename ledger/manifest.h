/*
 * manifest.h - the rows of a manifest, for defining, copying and verifying. Inside ledger/ only.
 *
 * A manifest's hash is XXH3-128 over the canonical values (ledger_row.h) of all its points in
 * order: ord, name, phase, layer, op, kind, level, dtype, shape, shards, replicated, inputs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_MANIFEST_H
#define INVAR_LEDGER_MANIFEST_H

#include "base/hash.h"
#include "base/status.h"
#include "ledger/store/sql.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_MANIFEST_POINT_COLUMNS 12 /* without the manifest's number */
#define INVAR_MANIFEST_POINT_NAMES                                                                 \
    "ord, name, phase, layer, op, kind, level, dtype, shape, shards, replicated, inputs"

/* Feeds one point to the manifest's hash. */
void invar_manifest_point_hash(invar_hasher *hasher, const invar_ledger_value *values);

/* *out: the number of the manifest with this hash; 0: there is none. */
invar_status invar_manifest_find(int64_t *out, invar_sql *sql,
                                 const invar_digest *hash) INVAR_MUST_USE;

/* *out: the number of the new manifest. */
invar_status invar_manifest_add(int64_t *out, invar_sql *sql, const invar_digest *hash,
                                int64_t points) INVAR_MUST_USE;

invar_status invar_manifest_point_insert(invar_sql_stmt **out, invar_sql *sql) INVAR_MUST_USE;
invar_status invar_manifest_point_write(invar_sql_stmt *insert, int64_t manifest,
                                        const invar_ledger_value *values) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
