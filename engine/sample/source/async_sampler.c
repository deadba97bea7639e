/*
 * async_sampler.c - thread that samples in-flight rollouts while its caller trains.
 *
 * The thread runs invar_generate_share with callbacks of this file, which count passes and check
 * two flags: `stop` cancels the work, `leave` suspends the samples. The waiting thread sends a
 * heartbeat whenever passes were counted. `lock` guards done, status and why; the flags and the
 * pass counter are relaxed atomics, because no other data depends on them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/async_sampler.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

#define INTERVAL_NS 100000000 // interval of progress checks while waiting

struct invar_async_sampler {
    invar_generate_args how;
    invar_rl_sample *samples;
    int64_t count;
    invar_verify_callback look;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;           /* guarded by `lock`, like status and why */
    invar_status status; /* result of the thread once `done` is set */
    invar_error why;     /* error record of the thread, if `status` is an error */
    _Atomic bool stop, leave;
    _Atomic int64_t passes; /* passes so far, of sampling and verification */
};

static invar_status report_progress(void *payload)
{
    invar_async_sampler *a = payload;

    atomic_fetch_add_explicit(&a->passes, 1, memory_order_relaxed);
    if (atomic_load_explicit(&a->stop, memory_order_relaxed))
        return INVAR_FAIL(INVAR_E_STATE, 0, "rollout: samples ahead are no longer wanted");
    return INVAR_OK;
}

static invar_status on_pass(void *payload, int64_t samples_done, int64_t tokens_done)
{
    (void)samples_done;
    (void)tokens_done;
    return report_progress(payload);
}

static bool is_suspend_requested(void *clock, int64_t samples_done)
{
    invar_async_sampler *a = clock;

    (void)samples_done;
    return atomic_load_explicit(&a->leave, memory_order_relaxed);
}

static invar_status sample_and_verify(invar_async_sampler *a)
{
    const invar_progress_callback between = {report_progress, a};

    INVAR_TRY(invar_generate_share(&a->how, a->samples, a->count));
    INVAR_TRY(report_progress(a));
    return a->look.verify ? a->look.verify(a->look.payload, a->samples, a->count, &between)
                          : INVAR_OK;
}

static void *thread_main(void *payload)
{
    invar_async_sampler *a = payload;
    invar_status status = sample_and_verify(a);

    pthread_mutex_lock(&a->lock);
    a->status = status;
    if (status != INVAR_OK)
        invar_error_take(&a->why);
    a->done = true;
    pthread_cond_signal(&a->ended);
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static void free_sampler(invar_async_sampler *a)
{
    pthread_cond_destroy(&a->ended);
    pthread_mutex_destroy(&a->lock);
    invar_free(a);
}

/* Initializes the lock and a condition with the monotonic clock, which ignores calendar changes. */
static void init_lock(invar_async_sampler *a)
{
    pthread_condattr_t monotonic;

    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&a->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

invar_status invar_async_sampler_begin(invar_async_sampler **out, const invar_generate_args *how,
                                       invar_rl_sample *samples, int64_t count,
                                       const invar_verify_callback *verify)
{
    invar_async_sampler *a;
    int rc;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(a, 1, "a thread that samples"));
    a->how = *how;
    a->how.tick = on_pass;
    a->how.payload = a;
    a->how.should_suspend = is_suspend_requested;
    a->how.suspend_payload = a;
    a->how.no_collectives = true;
    a->samples = samples;
    a->count = count;
    a->look = *verify;
    init_lock(a);
    rc = pthread_create(&a->thread, NULL, thread_main, a);
    if (rc != 0) {
        free_sampler(a);
        return INVAR_FAIL(INVAR_E_IO, rc,
                          "rollout-overlap: the thread that samples did not start: %s; set "
                          "rollout-overlap to false, or allow more threads",
                          strerror(rc));
    }
    *out = a;
    return INVAR_OK;
}

static invar_status put_status(const invar_async_sampler *a)
{
    if (a->status != INVAR_OK)
        invar_error_put(&a->why);
    return a->status;
}

invar_status invar_async_sampler_poll_error(invar_async_sampler *a)
{
    invar_status status;

    pthread_mutex_lock(&a->lock);
    status = a->done ? put_status(a) : INVAR_OK;
    pthread_mutex_unlock(&a->lock);
    return status;
}

void invar_async_sampler_suspend(invar_async_sampler *a)
{
    atomic_store_explicit(&a->leave, true, memory_order_relaxed);
}

/* Waits for the thread, and sends a heartbeat whenever it has finished another pass. */
static void wait_for_thread(invar_async_sampler *a)
{
    int64_t seen = 0, passes;
    struct timespec until;

    pthread_mutex_lock(&a->lock);
    while (!a->done) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += INTERVAL_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_cond_timedwait(&a->ended, &a->lock, &until) != ETIMEDOUT)
            continue;
        passes = atomic_load_explicit(&a->passes, memory_order_relaxed);
        if (passes != seen)
            invar_layout_heartbeat(a->how.layout);
        seen = passes;
    }
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
}

invar_status invar_async_sampler_join(invar_async_sampler *a)
{
    invar_status status;

    wait_for_thread(a);
    status = put_status(a);
    free_sampler(a);
    return status;
}

void invar_async_sampler_stop(invar_async_sampler *a)
{
    if (!a)
        return;
    atomic_store_explicit(&a->stop, true, memory_order_relaxed);
    wait_for_thread(a);
    free_sampler(a);
}
