/*
 * trial_batch.c - runs several trials at a time, each on a thread of its own.
 *
 * A thread must live as long as its child process, because the kernel kills the child when the
 * thread that started it exits (PR_SET_PDEATHSIG). The calling thread waits, passes on results as
 * they come, and stops trials that cannot change the search any more. batch.mutex guards `ended`
 * and `taken` of all workers; `stop` is atomic.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "bisect/trial.h"

#include "base/invar_banned.h"

#define LOOK_MS 50 /* interval at which the stop flag of the user is polled */

typedef struct trial_batch trial_batch;

typedef struct trial_worker {
    trial_batch *owner;
    invar_trial_job *job;
    pthread_t thread;
    volatile sig_atomic_t stop;
    bool started, ended, taken;
    invar_status status;
    invar_error error;
} trial_worker;

struct trial_batch {
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    const invar_trial_context *scene;
    trial_worker *workers;
    size_t count;
};

static void *run_worker(void *payload)
{
    trial_worker *w = payload;

    w->status = invar_trial_one(w->job, w->owner->scene, &w->stop);
    if (w->status != INVAR_OK)
        invar_error_take(&w->error);
    pthread_mutex_lock(&w->owner->mutex);
    w->ended = true;
    pthread_cond_signal(&w->owner->ended);
    pthread_mutex_unlock(&w->owner->mutex);
    return NULL;
}

/* Sets the stop flag of a worker, which its child process polls. */
static void stop_worker(trial_worker *w)
{
    __atomic_store_n(&w->stop, 1, __ATOMIC_RELAXED);
}

static void stop_all_workers(trial_batch *b)
{
    for (size_t i = 0; i < b->count; i++)
        stop_worker(&b->workers[i]);
}

/*
 * Waits for a worker that has ended and whose result was not passed on. Returns NULL if none is
 * left. The caller holds b->mutex.
 */
static trial_worker *wait_for_worker(trial_batch *b)
{
    for (;;) {
        struct timespec until;
        size_t left = 0;

        for (size_t i = 0; i < b->count; i++) {
            trial_worker *w = &b->workers[i];
            if (w->ended && !w->taken) {
                w->taken = true;
                return w;
            }
            left += w->started && !w->taken;
        }
        if (left == 0)
            return NULL;
        if (b->scene->stop && *b->scene->stop)
            stop_all_workers(b);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&b->ended, &b->mutex, &until);
    }
}

static invar_status start_workers(trial_batch *b, invar_trial_job *jobs)
{
    for (size_t i = 0; i < b->count; i++) {
        trial_worker *w = &b->workers[i];
        int rc;
        w->owner = b;
        w->job = &jobs[i];
        rc = pthread_create(&w->thread, NULL, run_worker, w);
        if (rc)
            return INVAR_FAIL(INVAR_E_NOMEM, rc, "no thread for a trial: %s; fewer --jobs may help",
                              strerror(rc));
        w->started = true;
    }
    return INVAR_OK;
}

/* Passes each result to `done`. The first failure stops the other workers. */
static invar_status collect_results(trial_batch *b, invar_status status,
                                    invar_status (*done)(void *payload, invar_trial_job *job),
                                    bool (*useful)(void *payload, const invar_trial_job *job),
                                    void *payload)
{
    pthread_mutex_lock(&b->mutex);
    if (status != INVAR_OK)
        stop_all_workers(b);
    for (trial_worker *w; (w = wait_for_worker(b));) {
        if (w->status != INVAR_OK && status == INVAR_OK) {
            invar_error_put(&w->error);
            status = w->status;
        }
        if (status == INVAR_OK && !w->job->stopped && done)
            status = done(payload, w->job);
        if (status != INVAR_OK)
            stop_all_workers(b);
        for (size_t i = 0; i < b->count && useful && status == INVAR_OK; i++)
            if (!b->workers[i].ended && !useful(payload, b->workers[i].job))
                stop_worker(&b->workers[i]);
    }
    pthread_mutex_unlock(&b->mutex);
    return status;
}

static void make_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

invar_status invar_trial_batch(invar_trial_job *jobs, size_t count,
                               const invar_trial_context *context,
                               invar_status (*done)(void *payload, invar_trial_job *job),
                               bool (*useful)(void *payload, const invar_trial_job *job),
                               void *payload)
{
    trial_batch b = {.scene = context, .count = count};
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_ZEROED(b.workers, count, "trials"));
    pthread_mutex_init(&b.mutex, NULL);
    make_condition(&b.ended);
    status = collect_results(&b, start_workers(&b, jobs), done, useful, payload);
    for (size_t i = 0; i < count; i++)
        if (b.workers[i].started)
            pthread_join(b.workers[i].thread, NULL);
    pthread_cond_destroy(&b.ended);
    pthread_mutex_destroy(&b.mutex);
    invar_free(b.workers);
    return status;
}
