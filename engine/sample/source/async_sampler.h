/*
 * async_sampler.h - thread that samples in-flight rollouts while its caller trains.
 *
 * Until it is joined, the thread owns the rollout object, its device and the samples; no other
 * thread may use them. It neither communicates with other ranks nor prints; the thread that waits
 * for it sends the heartbeats. The sampled tokens do not depend on timing, only their number does
 * after invar_async_sampler_suspend.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_ASYNC_SAMPLER_H
#define INVAR_ENGINE_SAMPLE_SOURCE_ASYNC_SAMPLER_H

#include "engine/sample/source/generate.h"

typedef struct invar_async_sampler invar_async_sampler;

/*
 * Progress callback. A long computation calls it between units of work. It fails if the work was
 * canceled: stop and return its status.
 */
typedef struct invar_progress_callback {
    invar_status (*run)(void *payload);
    void *payload;
} invar_progress_callback;

/*
 * Verification callback for samples[0, count) that got tokens from the current weights, called
 * before these change. `verify` calls `tick` between units of work; NULL skips verification.
 */
typedef struct invar_verify_callback {
    invar_status (*verify)(void *payload, const invar_rl_sample *samples, int64_t count,
                           const invar_progress_callback *tick);
    void *payload;
} invar_verify_callback;

/*
 * Starts a thread that samples this rank's share of samples[0, count) and then calls `verify`.
 * `how` and `verify` are copied; what they point to and the samples are borrowed until the thread
 * is joined or stopped. *out is NULL after a failure.
 */
invar_status invar_async_sampler_begin(invar_async_sampler **out, const invar_generate_args *how,
                                       invar_rl_sample *samples, int64_t count,
                                       const invar_verify_callback *verify) INVAR_MUST_USE;

/* Returns the error of the sampling thread if it has failed already, else INVAR_OK. Never waits. */
invar_status invar_async_sampler_poll_error(invar_async_sampler *sampler) INVAR_MUST_USE;

/*
 * Requests that the thread suspends all its samples after the current pass (invar_rollout_suspend).
 * Then call invar_async_sampler_join. How many tokens the samples have depends on the clock.
 */
void invar_async_sampler_suspend(invar_async_sampler *sampler);

/* Waits for the sampling thread, frees it and returns its status. */
invar_status invar_async_sampler_join(invar_async_sampler *sampler) INVAR_MUST_USE;

/* Cancels and frees the thread. Its samples can only be released. `sampler` may be NULL. */
void invar_async_sampler_stop(invar_async_sampler *sampler);

#endif
