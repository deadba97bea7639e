/*
 * trial_job.h - runs one trial on the calling thread. Private to trial.c and trial_batch.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_TRIAL_JOB_H
#define INVAR_BISECT_TRIAL_JOB_H

#include "bisect/trial.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs the trial in a free worktree and fills job->result and job->stopped. Polls *stop. */
invar_status invar_trial_one(invar_trial_job *job, const invar_trial_context *context,
                             const volatile sig_atomic_t *stop) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
