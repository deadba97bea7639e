/*
 * trial_batch.c - runs several trials at a time, each on a thread of its own.
 *
 * A thread must live as long as its child process, because the kernel kills the child when the
 * thread that started it exits (PR_SET_PDEATHSIG). The calling thread joins the threads as they
 * end, passes on their results, and stops trials that cannot change the search any more. A thread
 * writes its own worker only, which the calling thread reads after the join; `stop` is atomic.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // pthread_tryjoin_np

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "bisect/trial.h"

#include "base/invar_banned.h"

#define LOOK_NS 5000000 /* interval at which threads and the stop flag of the user are polled */

typedef struct trial_worker {
    const invar_trial_context *context;
    invar_trial_job *job;
    pthread_t thread;
    bool running; /* the thread was started and is not joined yet */
    volatile sig_atomic_t stop;
    invar_status status;
    invar_error error;
} trial_worker;

typedef struct trial_batch {
    trial_worker *workers;
    size_t count;
} trial_batch;

static void *run_worker(void *payload)
{
    trial_worker *w = payload;

    w->status = invar_trial_one(w->job, w->context, &w->stop);
    if (w->status != INVAR_OK)
        invar_error_take(&w->error);
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

/* Waits for a worker and joins it. Returns NULL if none is running. */
static trial_worker *wait_for_worker(trial_batch *b)
{
    static const struct timespec nap = {0, LOOK_NS};

    for (;; (void)nanosleep(&nap, NULL)) {
        const volatile sig_atomic_t *stop = b->workers->context->stop;
        bool any = false;
        for (size_t i = 0; i < b->count; i++) {
            trial_worker *w = &b->workers[i];
            if (w->running && pthread_tryjoin_np(w->thread, NULL) == 0) {
                w->running = false;
                return w;
            }
            any = any || w->running;
        }
        if (!any)
            return NULL;
        if (stop && *stop)
            stop_all_workers(b);
    }
}

static invar_status start_workers(trial_batch *b, const invar_trial_context *context,
                                  invar_trial_job *jobs)
{
    for (size_t i = 0; i < b->count; i++) {
        trial_worker *w = &b->workers[i];
        int rc;
        w->context = context;
        w->job = &jobs[i];
        rc = pthread_create(&w->thread, NULL, run_worker, w);
        if (rc)
            return INVAR_FAIL(INVAR_E_NOMEM, rc, "no thread for a trial: %s; fewer --jobs may help",
                              strerror(rc));
        w->running = true;
    }
    return INVAR_OK;
}

invar_status invar_trial_batch(invar_trial_job *jobs, size_t count,
                               const invar_trial_context *context,
                               invar_status (*done)(void *payload, invar_trial_job *job),
                               bool (*useful)(void *payload, const invar_trial_job *job),
                               void *payload)
{
    trial_batch b = {.count = count};
    invar_status status;

    INVAR_TRY(INVAR_ALLOC_ZEROED(b.workers, count, "trials"));
    status = start_workers(&b, context, jobs);
    if (status != INVAR_OK)
        stop_all_workers(&b);
    for (trial_worker *w; count > 0 && (w = wait_for_worker(&b));) {
        if (w->status != INVAR_OK && status == INVAR_OK) {
            invar_error_put(&w->error);
            status = w->status;
        }
        if (status == INVAR_OK && !w->job->stopped && done)
            status = done(payload, w->job);
        if (status != INVAR_OK) // the first failure stops the other workers
            stop_all_workers(&b);
        for (size_t i = 0; i < b.count && useful && status == INVAR_OK; i++)
            if (b.workers[i].running && !useful(payload, b.workers[i].job))
                stop_worker(&b.workers[i]);
    }
    invar_free(b.workers);
    return status;
}
