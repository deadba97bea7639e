/*
 * corrected.h - differences that a replay of a record of version 0.1.0 must have.
 *
 * Version 0.1.0 recorded some metrics that were false (docs/changelog.md, 0.2.0). A later program
 * records other values for them, or none, so the content of such a step differs although all its
 * bits are the same. Any other difference of content is a difference.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_REPLAY_CORRECTED_H
#define INVAR_ENGINE_RUN_REPLAY_CORRECTED_H

#include "engine/run/replay/recorded_keys.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_CORRECTED_SIZE 320

/* SQL: whether version 0.1.0, which recorded no facts of the model, wrote the step `o`. */
#define INVAR_CORRECTED_OLD                                                                        \
    "NOT EXISTS (SELECT 1 FROM fact f WHERE f.run = o.run AND f.seg = o.seg AND "                  \
    "f.scope = '" INVAR_LEDGER_MODEL_SCOPE "')"

/*
 * Finds the first step of the newest segment that repeats a step of version 0.1.0 with another
 * content than the corrected metrics explain. *step_out is -1 if there is none; `what` names the
 * first row that differs, "metric train/loss". `keys` are those of the run.
 */
invar_status invar_corrected_check(int64_t *step_out, char what[INVAR_CORRECTED_SIZE],
                                   invar_ledger *ledger, int64_t run,
                                   const invar_recorded_keys *keys) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
