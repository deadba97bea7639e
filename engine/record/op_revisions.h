/*
 * op_revisions.h - compares the op revisions of recorded steps with those of this program.
 *
 * A run has the same bits only under one set of op revisions (docs/arithmetic.md, section 11), so a
 * program with other revisions must neither continue nor replay its steps. The ledger has the
 * revisions of every segment as facts. All ops count, because the ledger does not record which of
 * them a run calls; an op that the recording program did not have is ignored.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_OP_REVISIONS_H
#define INVAR_ENGINE_RECORD_OP_REVISIONS_H

#include <stdbool.h>

#include "base/status.h"
#include "ledger/ledger.h"

/* Scope of the facts: the key is an op name, the value its revision. */
#define INVAR_OP_REVISIONS_SCOPE "op"

/* Message for segments without such facts, which another program wrote. */
#define INVAR_OP_REVISIONS_UNKNOWN                                                                 \
    "the ledger does not say which revisions of the ops computed these steps: bits may differ"

/*
 * Compares the revisions of the steps `first` to `last` of the run's timeline. *known_out is false
 * if a segment has no revisions. Returns INVAR_E_STATE if a revision differs; the message names the
 * ops and the commit that has their revisions, followed by `otherwise`, an alternative as part of a
 * sentence, or "".
 */
invar_status invar_op_revisions_check(bool *known_out, invar_ledger *ledger,
                                      const invar_ledger_summary *run, int64_t first, int64_t last,
                                      const char *otherwise) INVAR_MUST_USE;

#endif
