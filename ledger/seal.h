/*
 * seal.h - computes the hashes that pin the first entries of a run. Private to ledger/.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_SEAL_H
#define INVAR_LEDGER_SEAL_H

#include <stdint.h>

#include "ledger/internal.h"

#define INVAR_SEAL_BYTES 32

/* Hashes over the entries [0, entries) of a run. */
typedef struct invar_seal {
    int64_t entries;
    invar_digest content;             /* content hash of the run when it had these entries */
    invar_digest integrity;           /* chain of the last of these entries */
    uint8_t sha256[INVAR_SEAL_BYTES]; /* SHA-256 over all their rows */
} invar_seal;

/*
 * Computes the seal of the first `entries` entries of a run. sha256 covers, in this order: the
 * entries (n, kind, ns, rows, total, chain); the canonical bytes (ledger_row.h) of their rows,
 * table after table, by key; the points of the manifests that these rows name, by the hash of the
 * manifest.
 *
 * Returns INVAR_E_STATE if rows were left out of this copy, INVAR_E_CORRUPT if an entry is missing.
 */
invar_status invar_seal_compute(invar_seal *out, invar_ledger *ledger, int64_t run,
                                int64_t entries) INVAR_MUST_USE;

/* *out = the chain of an entry. Returns INVAR_E_CORRUPT if the run has no such entry. */
invar_status invar_seal_integrity(invar_digest *out, invar_ledger *ledger, int64_t run,
                                  int64_t entry) INVAR_MUST_USE;

/* *out = the content hash of the run when it had `entries` entries; -1 for all entries. */
invar_status invar_content_until(invar_digest *out, invar_ledger *ledger, int64_t run,
                                 int64_t entries) INVAR_MUST_USE;

#endif
