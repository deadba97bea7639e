/*
 * step_entry.h - builds and appends the ledger entry of a step: metrics, samples, digests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_STEP_ENTRY_H
#define INVAR_ENGINE_RECORD_STEP_ENTRY_H

#include "engine/record/recorder.h"

/*
 * Appends the entry in one transaction. The points must be defined in the ledger already. Returns
 * INVAR_E_MISMATCH if the ranks disagree. Collective: all ranks of the layout must call it.
 */
invar_status invar_step_entry_append(invar_recorder *recorder, const invar_step_report *step,
                                     const invar_probe_result *points) INVAR_MUST_USE;

#endif
