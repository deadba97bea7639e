/*
 * replica_check.h - compares the ledger entry of a step between all ranks, before it is written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_REPLICA_CHECK_H
#define INVAR_ENGINE_RECORD_REPLICA_CHECK_H

#include "engine/record/recorder.h"

/*
 * Compares the entry `step` of all ranks. Returns INVAR_E_MISMATCH if a rank computed other results
 * than the majority; the message names the rank, its host and the first differing point. The ledger
 * then has the step with the digests of all ranks, for the query rank-desync, and an event.
 * Collective: all ranks of the layout must call it before the entry is written.
 */
invar_status invar_replica_check(invar_recorder *recorder, const invar_ledger_step *step,
                                 const invar_probe_result *points) INVAR_MUST_USE;

#endif
