/*
 * merge.h - combines runs of several ledgers into one, for queries over all of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_LEDGER_MERGE_H
#define INVAR_CLI_LEDGER_MERGE_H

#include "base/status.h"
#include "cli/ledger/locate.h"

/*
 * Returns a ledger that contains all runs, and the number of each run in it. If all runs are in the
 * same file, *out is the ledger of runs[0] and *owned_out is NULL. Otherwise the runs are copied,
 * unverified, into an unlinked temporary file below $TMPDIR (or /tmp); the caller closes
 * *owned_out, also after a failure.
 */
invar_status invar_merge(invar_ledger **out, invar_ledger **owned_out, const invar_located *runs,
                         int count, int64_t *numbers) INVAR_MUST_USE;

#endif
