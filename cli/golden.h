/*
 * golden.h - the chain of a run as reviewable text, and runs compared with it.
 *
 *     # invar golden 1
 *     # NAME: what it is
 *     identity 8f0c...
 *     0 5d1e...          step, chain
 *     1 90ab...
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_GOLDEN_H
#define INVAR_CLI_GOLDEN_H

#include <stdint.h>

#include "ledger/ledger.h"

typedef struct invar_golden_verdict {
    int64_t compared; /* steps */
    int64_t steps;    /* of the golden */
    int64_t first;    /* step that differs; -1: none */
    bool identity;    /* the same was asked for */
} invar_golden_verdict;

/* INVAR_E_NOTFOUND: no such file; INVAR_E_CORRUPT: not a golden. */
invar_status invar_golden_compare(invar_golden_verdict *out, const char *path, invar_ledger *ledger,
                                  int64_t run) INVAR_MUST_USE;

/* Writes the chain of a run, atomically. */
invar_status invar_golden_record(const char *path, invar_ledger *ledger,
                                 int64_t run) INVAR_MUST_USE;

#endif
