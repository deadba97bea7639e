/*
 * step_entry.h - a step as an entry of the ledger: its metrics, its samples, its digests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_STEP_ENTRY_H
#define INVAR_ENGINE_RECORD_STEP_ENTRY_H

#include "engine/record/recorder.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One transaction; `points` are defined. */
invar_status invar_entry_append(invar_recorder *recorder, const invar_step_report *step,
                                const invar_probe_result *points) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
