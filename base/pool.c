/*
 * pool.c - thread pool for jobs of independent tasks.
 *
 * One mutex, two condition variables and an atomic task counter. Workers sleep between jobs. A job
 * has a seat for each task beyond the caller's first, and at most one per worker; a worker takes
 * part by taking a seat. The caller waits only for the workers that took a seat, not for those that
 * are still waking up, so a job that is done before a worker wakes costs little more than its
 * tasks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

typedef struct job {
    invar_pool_task run;
    void *payload;
    int64_t tasks;
    _Atomic int64_t next; /* first task that was not taken yet */
} job;

/* A worker thread, and the index by which its tasks know it. */
typedef struct pool_worker {
    invar_pool *pool;
    int index; /* number of the worker, from 1; the thread that runs a job is worker 0 */
    pthread_t handle;
} pool_worker;

struct invar_pool {
    int threads;
    int started;          /* number of worker threads; threads - 1 if the pool is complete */
    pool_worker *workers; /* (threads - 1) */
    pthread_mutex_t lock; /* protects all fields below, except current.next */
    pthread_cond_t wake;  /* a job arrived, or the pool closes */
    pthread_cond_t done;  /* the last worker left its seat */
    int64_t seats;        /* free seats of the current job; 0 between jobs */
    int busy;             /* number of workers that have a seat in the current job */
    bool running;         /* a job is in progress */
    bool closing;         /* workers must end */
    job current;
    int64_t failed_task; /* lowest failed task of the current job; -1 if no task failed */
    invar_error failure; /* error record of failed_task */
};

static void note_failure(invar_pool *pool, int64_t task)
{
    invar_error error;

    invar_error_take(&error);
    pthread_mutex_lock(&pool->lock);
    if (pool->failed_task < 0 || task < pool->failed_task) {
        pool->failed_task = task;
        pool->failure = error;
    }
    pthread_mutex_unlock(&pool->lock);
}

static void run_tasks(invar_pool *pool, int worker)
{
    job *j = &pool->current;

    for (;;) {
        int64_t task = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (task >= j->tasks)
            return;
        if (j->run(j->payload, task, worker) != INVAR_OK)
            note_failure(pool, task);
    }
}

static void *worker_main(void *payload)
{
    const pool_worker *self = payload;
    invar_pool *pool = self->pool;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->closing && pool->seats == 0)
            pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->closing)
            break;
        pool->seats--;
        pool->busy++;
        pthread_mutex_unlock(&pool->lock);
        run_tasks(pool, self->index);
        pthread_mutex_lock(&pool->lock);
        if (--pool->busy == 0)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static invar_status start_worker(invar_pool *pool, int index)
{
    pool_worker *self = &pool->workers[index - 1];
    int rc;

    *self = (pool_worker){.pool = pool, .index = index};
    rc = pthread_create(&self->handle, NULL, worker_main, self);
    if (rc != 0)
        return INVAR_FAIL(INVAR_E_IO, rc, "thread pool: thread %d did not start: %s", index,
                          strerror(rc));
    pool->started++;
    return INVAR_OK;
}

invar_status invar_pool_new(invar_pool **out, int threads)
{
    invar_pool *pool;
    invar_status status;

    *out = NULL;
    if (threads < 1 || threads > INVAR_POOL_MAX_THREADS)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "thread pool: %d threads; expected 1 to %d", threads,
                          INVAR_POOL_MAX_THREADS);
    INVAR_TRY(INVAR_ALLOC_ZEROED(pool, 1, "thread pool"));
    pool->threads = threads;
    status = INVAR_ALLOC(pool->workers, (size_t)threads, "thread pool");
    if (status != INVAR_OK) {
        invar_free(pool);
        return status;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (int i = 1; i < threads && status == INVAR_OK; i++)
        status = start_worker(pool, i);
    if (status == INVAR_OK)
        *out = pool;
    else
        invar_pool_free(pool);
    return status;
}

void invar_pool_free(invar_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i].handle, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    invar_free(pool->workers);
    invar_free(pool);
}

int invar_pool_threads(const invar_pool *pool)
{
    return pool ? pool->threads : 1;
}

static invar_status run_alone(int64_t tasks, invar_pool_task run, void *payload)
{
    invar_error first;
    bool failed = false;

    for (int64_t task = 0; task < tasks; task++) {
        if (run(payload, task, 0) != INVAR_OK && !failed) {
            invar_error_take(&first);
            failed = true;
        }
    }
    if (!failed)
        return INVAR_OK;
    invar_error_put(&first);
    return first.status;
}

invar_status invar_pool_run(invar_pool *pool, int64_t tasks, invar_pool_task run, void *payload)
{
    int64_t seats;

    if (!pool || pool->threads == 1 || tasks <= 1)
        return run_alone(tasks, run, payload);

    pthread_mutex_lock(&pool->lock);
    INVAR_CHECK(!pool->running); // a second job, or a job that was started by a task
    pool->running = true;
    pool->current.run = run;
    pool->current.payload = payload;
    pool->current.tasks = tasks;
    atomic_store_explicit(&pool->current.next, 0, memory_order_relaxed);
    pool->failed_task = -1;
    seats = tasks - 1 < pool->threads - 1 ? tasks - 1 : pool->threads - 1;
    pool->seats = seats;
    for (int64_t i = 0; i < seats; i++)
        pthread_cond_signal(&pool->wake);
    pthread_mutex_unlock(&pool->lock);

    run_tasks(pool, 0);

    pthread_mutex_lock(&pool->lock);
    pool->seats = 0; // all tasks are taken: no more workers are needed
    while (pool->busy > 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    pool->running = false;
    pthread_mutex_unlock(&pool->lock);
    if (pool->failed_task < 0)
        return INVAR_OK;
    invar_error_put(&pool->failure);
    return pool->failure.status;
}
