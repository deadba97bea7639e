/*
 * seal.h - the hashes that pin a run, over its first entries. Inside ledger/ only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_SEAL_H
#define INVAR_LEDGER_SEAL_H

#include <stdint.h>

#include "ledger/internal.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_SEAL_BYTES 32

/* What pins the entries below `entries`. */
typedef struct invar_seal {
    int64_t entries;
    invar_digest content;
    invar_digest integrity; /* chain of the last of them */
    uint8_t sha256[INVAR_SEAL_BYTES];
} invar_seal;

/*
 * sha256 is over, in this order: the entries (n, kind, ns, rows, total, chain); the canonical bytes
 * (ledger_row.h) of the rows that belong to them, table after table, by key; the points of the
 * manifests that these rows name, by the manifests' hashes. INVAR_E_STATE: rows were left out of
 * this copy.
 */
invar_status invar_seal_compute(invar_seal *out, invar_ledger *ledger, int64_t run,
                                int64_t entries) INVAR_MUST_USE;

/* The chain of an entry. */
invar_status invar_seal_integrity(invar_digest *out, invar_ledger *ledger, int64_t run,
                                  int64_t entry) INVAR_MUST_USE;

/* The content hash of the run as it was when it had so many entries; -1: all. */
invar_status invar_content_until(invar_digest *out, invar_ledger *ledger, int64_t run,
                                 int64_t entries) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
