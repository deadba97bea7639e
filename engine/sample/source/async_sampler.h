/*
 * async_sampler.h - samples that a thread of their own draws while its caller trains.
 *
 * The thread has the rollout, its device and the samples until it is joined; nobody else touches
 * them. It neither talks to other ranks nor to people: whoever waits for it tells other ranks that
 * it gets on. What it draws does not depend on when it does, unless it is told to leave it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_SOURCE_ASYNC_SAMPLER_H
#define INVAR_ENGINE_SAMPLE_SOURCE_ASYNC_SAMPLER_H

#include "engine/sample/source/generate.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_async_sampler invar_async_sampler;

/* Whoever works long says between two pieces of it that it gets on: other ranks go on waiting. It
   fails where the work is no longer wanted. */
typedef struct invar_progress_callback {
    invar_status (*run)(void *payload);
    void *payload;
} invar_progress_callback;

/* Who looks at what was drawn before its weights change; `look` NULL: nobody. */
typedef struct invar_verify_callback {
    invar_status (*look)(void *payload, const invar_rl_sample *samples, int64_t count,
                         const invar_progress_callback *tick);
    void *payload;
} invar_verify_callback;

/*
 * This rank's share of samples [0, count) gets its tokens, and is looked at, by the same thread.
 * `how` is copied, all that it leads to is borrowed, and so are the samples.
 */
invar_status invar_async_sampler_begin(invar_async_sampler **out, const invar_generate_args *how,
                                       invar_rl_sample *samples, int64_t count,
                                       const invar_verify_callback *look) INVAR_MUST_USE;

/* The failure of a thread that has failed by now. */
invar_status invar_async_sampler_glance(invar_async_sampler *ahead) INVAR_MUST_USE;

/* Asks it to leave its samples where they are after the pass that it is in (invar_rollout_suspend):
   the clock has decided how many tokens they have. Then it is to be joined. */
void invar_async_sampler_suspend(invar_async_sampler *ahead);

/* Waits for the thread; its failure is the caller's. */
invar_status invar_async_sampler_join(invar_async_sampler *ahead) INVAR_MUST_USE;

/* Ends it as soon as it can; its samples are fit for release only. NULL: nothing happens. */
void invar_async_sampler_stop(invar_async_sampler *ahead);

#ifdef __cplusplus
}
#endif
#endif
