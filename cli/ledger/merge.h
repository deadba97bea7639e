/*
 * merge.h - runs of several ledgers brought into one, for questions about them together.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_LEDGER_MERGE_H
#define INVAR_CLI_LEDGER_MERGE_H

#include "base/status.h"
#include "cli/ledger/locate.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A ledger with these runs, and each one's number there. When they are in one file anyway, it is
 * that one: *out belongs to runs[0]. Otherwise they are copied, unverified, into a file below
 * $TMPDIR (else /tmp) whose name is removed before; *owned_out is to be closed, also on failure.
 */
invar_status invar_merge(invar_ledger **out, invar_ledger **owned_out, const invar_located *runs,
                         int count, int64_t *numbers) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
