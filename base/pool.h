/*
 * pool.h - thread pool for jobs of independent tasks, whose results do not depend on the threads.
 *
 * A job is n tasks, numbered 0..n-1. It is unspecified which thread runs which task, and when, so a
 * task may write only memory that no other task reads or writes. A pool runs one job at a time; the
 * calling thread takes part. A task must not start a job on its own pool.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_POOL_H
#define INVAR_BASE_POOL_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_pool invar_pool;

/*
 * Runs a task. `worker` is in [0, invar_pool_threads): no two tasks run with the same value at the
 * same time, so it can select scratch memory.
 */
typedef invar_status (*invar_pool_task)(void *payload, int64_t task, int worker);

#define INVAR_POOL_MAX_THREADS 1024

/*
 * Creates a pool of `threads` threads, from 1 to INVAR_POOL_MAX_THREADS, which include the caller
 * of invar_pool_run. The caller frees *out with invar_pool_free.
 */
invar_status invar_pool_new(invar_pool **out, int threads) INVAR_MUST_USE;

/* Ends the threads and frees the pool; `pool` may be NULL. No job may be running. */
void invar_pool_free(invar_pool *pool);

/* Returns the number of threads; 1 for a NULL pool, which runs everything on the calling thread. */
int invar_pool_threads(const invar_pool *pool);

/*
 * Runs all tasks and waits for them. If tasks fail, the others still run, and the failure of the
 * lowest task number is returned with its error record, independently of the number of threads.
 */
INVAR_EXPORT invar_status invar_pool_run(invar_pool *pool, int64_t tasks, invar_pool_task run,
                                         void *payload) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
