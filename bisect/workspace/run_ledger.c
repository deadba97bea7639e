/*
 * run_ledger.c - opens the ledger of one run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/workspace/workspace.h"

#include "base/invar_banned.h"

invar_status invar_workspace_ledger_open(invar_ledger **out, invar_ledger_summary *run,
                                         const char *path)
{
    *out = NULL;
    INVAR_TRY(invar_ledger_open(out, path, NULL));
    return invar_ledger_find(run, *out, NULL);
}
