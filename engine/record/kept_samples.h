/*
 * kept_samples.h - samples that the ledger keeps with their text, for reports.
 *
 * The key keep-samples sets how many samples of a step are kept, evenly from the lowest reward to
 * the highest. The bytes of all steps are bounded: as they fill up, more and more steps are
 * skipped, so that a long run has many samples at its beginning and some up to its end. Kept
 * samples are covered by no digest (content, identity, chain), so keeping them changes no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_KEPT_SAMPLES_H
#define INVAR_ENGINE_RECORD_KEPT_SAMPLES_H

#include "engine/record/recorder.h"

#define INVAR_KEPT_SAMPLES_LABEL_BYTES 4096           /* longer labels are truncated */
#define INVAR_KEPT_SAMPLES_BYTES ((uint64_t)64 << 20) /* limit for all steps of a run, compressed */

/* Kept samples of one step; zero-initialized, it is empty. */
typedef struct invar_kept_samples {
    invar_ledger_kept_sample *items; /* (count) in the order of samples; each owns its data */
    size_t count;
    uint64_t bytes; /* total of items[i].bytes */
} invar_kept_samples;

/*
 * Chooses and compresses samples of the step; none on a rank without a ledger. Release *out with
 * invar_kept_samples_release, also after a failure.
 */
invar_status invar_kept_samples_make(invar_kept_samples *out, const invar_recorder *recorder,
                                     const invar_step_report *step) INVAR_MUST_USE;
void invar_kept_samples_release(invar_kept_samples *kept);

/* Writes the bytes that the run has kept so far, according to its ledger, to *out. */
invar_status invar_kept_samples_measure(uint64_t *out, invar_ledger *ledger,
                                        int64_t run) INVAR_MUST_USE;

/* Returns true if samples of this step are kept in a run that has kept `bytes` bytes so far. */
bool invar_kept_samples_wants(int64_t step, uint64_t bytes);

#endif
