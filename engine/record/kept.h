/*
 * kept.h - samples that the ledger keeps with their text, for people to read.
 *
 * Of a step so many are kept as the recipe says (keep-samples), from the lowest reward to the
 * highest. What all steps keep is bounded: the more there is, the more steps are passed over, so
 * that a long run is dense at its beginning and has samples up to its end. Keeping them changes no
 * bit: they are outside of content, identity and chain.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_KEPT_H
#define INVAR_ENGINE_RECORD_KEPT_H

#include "engine/record/recorder.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_KEPT_LABEL_BYTES 4096           /* a longer label is cut */
#define INVAR_KEPT_BYTES ((uint64_t)64 << 20) /* of all steps of a run, as they are kept */

/* Of one step; zeroed, there is none. */
typedef struct invar_kept {
    invar_ledger_kept *items; /* (count) by sample; they own their data */
    size_t count;
    uint64_t bytes; /* of their data */
} invar_kept;

/* What to keep of the step; nothing where another rank writes. Release, also after a failure. */
invar_status invar_kept_make(invar_kept *out, const invar_recorder *recorder,
                             const invar_step *step) INVAR_MUST_USE;
void invar_kept_release(invar_kept *kept);

/* How many bytes the run has kept so far, by its ledger. */
invar_status invar_kept_measure(uint64_t *out, invar_ledger *ledger, int64_t run) INVAR_MUST_USE;

/* True for a step of which something is kept when there are so many bytes already. */
bool invar_kept_wants(int64_t step, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
