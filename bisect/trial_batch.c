/*
 * trial_batch.c - several trials at a time, each on a thread of its own.
 *
 * A thread lives as long as its child, because the kernel ends a child with the thread that started
 * it. The calling thread waits, hands over results as they come, and ends trials that nobody needs
 * any more.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "bisect/trial.h"
#include "bisect/trial_job.h"

#include "base/invar_banned.h"

#define LOOK_MS 50 /* how often the user's wish to stop is looked at */

typedef struct batch batch;

typedef struct worker {
    batch *owner;
    invar_trial_job *job;
    pthread_t thread;
    volatile sig_atomic_t stop;
    bool started, ended, taken;
    invar_status status;
    invar_error error;
} worker;

struct batch {
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    const invar_trial_context *scene;
    worker *workers;
    size_t count;
};

static void *work(void *payload)
{
    worker *w = payload;

    w->status = invar_trial_one(w->job, w->owner->scene, &w->stop);
    if (w->status != INVAR_OK)
        invar_error_take(&w->error);
    pthread_mutex_lock(&w->owner->mutex);
    w->ended = true;
    pthread_cond_signal(&w->owner->ended);
    pthread_mutex_unlock(&w->owner->mutex);
    return NULL;
}

/* Its child looks at the flag while it waits. */
static void stop_one(worker *w)
{
    __atomic_store_n(&w->stop, 1, __ATOMIC_RELAXED);
}

static void stop_all(batch *b)
{
    for (size_t i = 0; i < b->count; i++)
        stop_one(&b->workers[i]);
}

/* The next one that has ended and was not handed over; NULL: all were. */
static worker *wait_for_one(batch *b)
{
    for (;;) {
        struct timespec until;
        size_t left = 0;

        for (size_t i = 0; i < b->count; i++) {
            worker *w = &b->workers[i];
            if (w->ended && !w->taken) {
                w->taken = true;
                return w;
            }
            left += w->started && !w->taken;
        }
        if (left == 0)
            return NULL;
        if (b->scene->stop && *b->scene->stop)
            stop_all(b);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&b->ended, &b->mutex, &until);
    }
}

static invar_status batch_start(batch *b, invar_trial_job *jobs)
{
    for (size_t i = 0; i < b->count; i++) {
        worker *w = &b->workers[i];
        int rc;
        w->owner = b;
        w->job = &jobs[i];
        rc = pthread_create(&w->thread, NULL, work, w);
        if (rc)
            return INVAR_FAIL(INVAR_E_NOMEM, rc, "no thread for a trial: %s; fewer --jobs may help",
                              strerror(rc));
        w->started = true;
    }
    return INVAR_OK;
}

/* Hands over each result; the first failure ends the others. */
static invar_status batch_collect(batch *b, invar_status status,
                                  invar_status (*done)(void *payload, invar_trial_job *job),
                                  bool (*useful)(void *payload, const invar_trial_job *job),
                                  void *payload)
{
    pthread_mutex_lock(&b->mutex);
    if (status != INVAR_OK)
        stop_all(b);
    for (worker *w; (w = wait_for_one(b));) {
        if (w->status != INVAR_OK && status == INVAR_OK) {
            invar_error_put(&w->error);
            status = w->status;
        }
        if (status == INVAR_OK && !w->job->stopped && done)
            status = done(payload, w->job);
        if (status != INVAR_OK)
            stop_all(b);
        for (size_t i = 0; i < b->count && useful && status == INVAR_OK; i++)
            if (!b->workers[i].ended && !useful(payload, b->workers[i].job))
                stop_one(&b->workers[i]);
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
                               const invar_trial_context *scene,
                               invar_status (*done)(void *payload, invar_trial_job *job),
                               bool (*useful)(void *payload, const invar_trial_job *job),
                               void *payload)
{
    batch b = {.scene = scene, .count = count};
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&b.workers, count, sizeof *b.workers, "trials"));
    memset(b.workers, 0, count * sizeof *b.workers);
    pthread_mutex_init(&b.mutex, NULL);
    make_condition(&b.ended);
    status = batch_collect(&b, batch_start(&b, jobs), done, useful, payload);
    for (size_t i = 0; i < count; i++)
        if (b.workers[i].started)
            pthread_join(b.workers[i].thread, NULL);
    pthread_cond_destroy(&b.ended);
    pthread_mutex_destroy(&b.mutex);
    invar_free(b.workers);
    return status;
}
