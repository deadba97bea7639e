/*
 * replica_check.h - every rank makes each entry of the ledger; are they the same?
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_REPLICA_CHECK_H
#define INVAR_ENGINE_RECORD_REPLICA_CHECK_H

#include "engine/record/recorder.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A call of all ranks, before the entry `step` is written. INVAR_E_MISMATCH names a rank that
 * computed something else than most, its host and the first point that differs: then the ledger has
 * the step with the digests of all ranks, so that the query rank-desync finds it, and an event.
 */
invar_status invar_replicas_compare(invar_recorder *recorder, const invar_ledger_step *step,
                                    const invar_probe_result *points) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
