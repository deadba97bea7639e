/*
 * corrected.h - tells expected from real differences when a record of version 0.1.0 is replayed.
 *
 * Version 0.1.0 recorded some metrics that were false (docs/changelog.md, 0.2.0). A later program
 * records other values for them, or none, so the content of such a step differs although all its
 * bits are the same. Any other difference of content is a real difference.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_REPLAY_CORRECTED_H
#define INVAR_ENGINE_RUN_REPLAY_CORRECTED_H

#include "engine/run/replay/recorded_keys.h"

#define INVAR_CORRECTED_SIZE 320

/* SQL condition: version 0.1.0, which recorded no facts about the model, wrote the step `o`. */
#define INVAR_CORRECTED_OLD                                                                        \
    "NOT EXISTS (SELECT 1 FROM fact f WHERE f.run = o.run AND f.seg = o.seg AND "                  \
    "f.scope = '" INVAR_LEDGER_MODEL_SCOPE "')"

/*
 * Finds the first step of the newest segment that repeats a step of version 0.1.0 with a difference
 * in content that the corrected metrics do not explain. *step_out is -1 if all are explained;
 * `what` names the first row that differs, such as "metric train/loss". `keys` are those of the
 * run.
 */
invar_status invar_corrected_check(int64_t *step_out, char what[INVAR_CORRECTED_SIZE],
                                   invar_ledger *ledger, int64_t run,
                                   const invar_recorded_keys *keys) INVAR_MUST_USE;

#endif
