/*
 * op_revisions.h - the revisions of ops that computed recorded steps, beside those of this program.
 *
 * A run has the same bits only under one set of revisions (docs/arithmetic.md, section 11). So its
 * steps are neither continued nor executed again by a program that has others. The ledger has the
 * revisions of every segment, as facts. All ops count: which of them a run calls is not recorded.
 * Only an op that the recording program did not have cannot have computed anything.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_OP_REVISIONS_H
#define INVAR_ENGINE_RECORD_OP_REVISIONS_H

#include <stdbool.h>

#include "base/status.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The scope of the facts: key is an op's name, value its revision. */
#define INVAR_REVISIONS_SCOPE "op"

/* What is said where a segment has no such facts: another trainer made it, or somebody else. */
#define INVAR_REVISIONS_UNKNOWN                                                                    \
    "the ledger does not say which revisions of the ops computed these steps: bits may differ"

/*
 * INVAR_E_STATE: the steps `first` to `last` of the run's timeline were computed under other
 * revisions. The message names the ops, the commit that has them, and then `otherwise`: what else
 * can be done, "" or a part of a sentence. *known_out: whether the ledger has the revisions of all.
 */
invar_status invar_revisions_check(bool *known_out, invar_ledger *ledger,
                                   const invar_ledger_summary *run, int64_t first, int64_t last,
                                   const char *otherwise) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
