/*
 * kept_samples.h - samples that the ledger keeps with their text, for people to read.
 *
 * The recipe says how many samples of a step are kept (keep-samples), from the lowest reward to the
 * highest. The bytes of all steps are bounded: as they fill up, more and more steps are skipped, so
 * a long run has many samples at its beginning and some up to its end. Keeping samples changes no
 * bit, since content, identity and chain do not cover them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_KEPT_SAMPLES_H
#define INVAR_ENGINE_RECORD_KEPT_SAMPLES_H

#include "engine/record/recorder.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_KEPT_SAMPLES_LABEL_BYTES 4096           /* a longer label is cut */
#define INVAR_KEPT_SAMPLES_BYTES ((uint64_t)64 << 20) /* limit for all steps of a run, compressed */

/* Kept samples of one step; zeroed for none. */
typedef struct invar_kept_samples {
    invar_ledger_kept_sample *items; /* (count) by sample; they own their data */
    size_t count;
    uint64_t bytes; /* total of items[i].bytes */
} invar_kept_samples;

/* Chooses and packs samples of the step, none on a rank without a ledger. Release *out with
   invar_kept_samples_release, also after a failure. */
invar_status invar_kept_samples_make(invar_kept_samples *out, const invar_recorder *recorder,
                                     const invar_step_report *step) INVAR_MUST_USE;
void invar_kept_samples_release(invar_kept_samples *kept);

/* How many bytes the run has kept so far, by its ledger. */
invar_status invar_kept_samples_measure(uint64_t *out, invar_ledger *ledger,
                                        int64_t run) INVAR_MUST_USE;

/* True if samples of this step are kept in a run that has kept `bytes` bytes before. */
bool invar_kept_samples_wants(int64_t step, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
