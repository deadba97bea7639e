/*
 * pool.h - a thread pool whose partition never affects bits.
 *
 * A job is n independent tasks, numbered 0..n-1. Which thread runs which task, and when, is left
 * open; therefore a task may write only what no other task reads or writes. Jobs run one at a time,
 * from one thread; the calling thread works too. A task must not start a job on its own pool.
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

/* One task. `worker` is in [0, invar_pool_threads): index of scratch that no other thread uses. */
typedef invar_status (*invar_pool_task)(void *payload, int64_t task, int worker);

#define INVAR_POOL_MAX_THREADS 1024

/* `threads` >= 1 counts the caller. */
invar_status invar_pool_new(invar_pool **out, int threads) INVAR_MUST_USE;
void invar_pool_free(invar_pool *pool);

/* 1 for a NULL pool, which runs everything on the calling thread. */
int invar_pool_threads(const invar_pool *pool);

/*
 * Runs every task and waits. When tasks fail, the others still run, and the failure of the lowest
 * task number is returned with its error record: the same failure whatever the thread count.
 */
INVAR_EXPORT invar_status invar_pool_run(invar_pool *pool, int64_t tasks, invar_pool_task run,
                                         void *payload) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
