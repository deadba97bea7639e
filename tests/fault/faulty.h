/*
 * faulty.h - an allocator that fails one chosen allocation, and a sweep over all allocations.
 *
 * fail_each_allocation runs a scenario with one failing allocation, again and again. Under `full`
 * every allocation fails once. By default one of every call stack fails, the middle one if there
 * are several: all others, of a loop or of other ranks, fail in the same place. Blocks are filled
 * with 0xA5, so code that relies on zeroed memory fails as well.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FAULT_FAULTY_H
#define INVAR_TESTS_FAULT_FAULTY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

#include "base/alloc.h"
#include "tests/support.h"

typedef struct faulty {
    _Atomic int calls; /* allocations requested so far */
    _Atomic int live;  /* blocks allocated and not freed */
    int fail_at;       /* number of the call that fails, from 1; 0 or -1 if none fails */
} faulty;

static inline void *faulty_alloc(size_t bytes, void *payload)
{
    faulty *f = payload;
    void *block;

    if (atomic_fetch_add(&f->calls, 1) + 1 == f->fail_at)
        return NULL;
    if (posix_memalign(&block, INVAR_ALIGN, bytes) != 0)
        return NULL;
    memset(block, 0xA5, bytes); // finds code that relies on zeroed memory
    atomic_fetch_add(&f->live, 1);
    return block;
}

static inline void faulty_free(void *block, void *payload)
{
    faulty *f = payload;

    atomic_fetch_sub(&f->live, 1); // atomic, because the workers of a pool free blocks, too
    free(block);
}

/* Checks the result of a run in which one allocation failed. */
static inline void faulty_check_failure(const faulty *f, invar_status status)
{
    assert_int_equal(f->live, 0);
    assert_int_equal(status, INVAR_E_NOMEM);
    assert_int_equal(invar_error_last()->status, INVAR_E_NOMEM);
    assert_non_null(strstr(invar_error_last()->message, "no memory for"));
}

/*
 * Runs the scenario with the n-th allocation failing, for n = 1, 2, ... until it succeeds. Each
 * failed run must return INVAR_E_NOMEM with a message, and no run may leave a block allocated.
 */
static inline void fail_all_allocations(invar_status (*run)(void))
{
    faulty f;
    invar_allocator allocator = {faulty_alloc, faulty_free, &f};
    invar_status status = INVAR_E_NOMEM;
    int failures = 0;

    invar_allocator_set(&allocator);
    for (int n = 1; status != INVAR_OK; n++) {
        atomic_init(&f.calls, 0);
        atomic_init(&f.live, 0);
        f.fail_at = n;
        invar_error_clear();
        status = run();
        assert_int_equal(f.live, 0);
        if (status != INVAR_OK) {
            failures++;
            faulty_check_failure(&f, status);
        }
    }
    // The scenario succeeded with as many allocations as had failed once each.
    assert_int_equal(f.calls, failures);
    assert_true(failures > 0);
    invar_allocator_set(NULL);
}

/* ---- one allocation per call stack ----------------------------------------------------------- */

enum { FAULTY_STACKS = 4096 };

/* A call stack that allocates. */
typedef struct faulty_stack {
    uint64_t hash; /* of the return addresses up to the scenario or the start of its thread */
    int calls;     /* number of allocations */
} faulty_stack;

/* The allocator of fail_each_stack. While `fails` is false it counts the allocations per stack. */
typedef struct faulty_stacks {
    faulty counts;
    pthread_mutex_t mutex;
    faulty_stack stacks[FAULTY_STACKS];
    int n_stacks;
    bool fails;
    faulty_stack failing; /* the allocation number `calls` of this stack fails */
    int seen;             /* allocations of the failing stack so far */
} faulty_stacks;

/* Runs the scenario. The frame of this function is where the hashed stacks end. */
static inline invar_status faulty_run(invar_status (*run)(void))
{
    volatile invar_status status = run(); // volatile, so that the call is no jump

    return status;
}

/* Calls go through this pointer, so that no compiler inlines or copies the function. */
static invar_status (*volatile faulty_runner)(invar_status (*run)(void)) = faulty_run;

static inline _Unwind_Reason_Code faulty_hash_frame(struct _Unwind_Context *frame, void *payload)
{
    uint64_t *hash = payload;
    uintptr_t address = (uintptr_t)_Unwind_GetIP(frame);

    if ((uintptr_t)_Unwind_GetRegionStart(frame) == (uintptr_t)faulty_run)
        return _URC_END_OF_STACK;
    *hash = (*hash ^ address) * 0x100000001B3u;
    return _URC_NO_REASON;
}

/* Counts the allocation of a stack. Returns whether it is the one that fails. Holds the mutex. */
static inline bool faulty_count(faulty_stacks *f, uint64_t hash)
{
    int i = 0;

    if (f->fails)
        return hash == f->failing.hash && ++f->seen == f->failing.calls;
    while (i < f->n_stacks && f->stacks[i].hash != hash)
        i++;
    if (i == FAULTY_STACKS)
        return false; // fail_each_stack fails
    if (i == f->n_stacks)
        f->stacks[f->n_stacks++] = (faulty_stack){.hash = hash};
    f->stacks[i].calls++;
    return false;
}

static inline void *faulty_stacks_alloc(size_t bytes, void *payload)
{
    faulty_stacks *f = payload;
    uint64_t hash = 0;
    bool fails;

    (void)_Unwind_Backtrace(faulty_hash_frame, &hash);
    (void)pthread_mutex_lock(&f->mutex);
    fails = faulty_count(f, hash);
    (void)pthread_mutex_unlock(&f->mutex);
    return fails ? NULL : faulty_alloc(bytes, &f->counts);
}

static inline void faulty_stacks_free(void *block, void *payload)
{
    faulty_stacks *f = payload;

    faulty_free(block, &f->counts);
}

/* Runs the scenario with the middle allocation of every call stack failing. */
static inline void fail_each_stack(invar_status (*run)(void))
{
    static faulty_stacks f;
    invar_allocator allocator = {faulty_stacks_alloc, faulty_stacks_free, &f};

    f = (faulty_stacks){.counts = {.fail_at = -1}, .mutex = PTHREAD_MUTEX_INITIALIZER};
    invar_allocator_set(&allocator);
    assert_ok(faulty_runner(run));
    assert_int_equal(f.counts.live, 0);
    assert_true(f.n_stacks > 0 && f.n_stacks < FAULTY_STACKS);
    f.fails = true;
    for (int i = 0; i < f.n_stacks; i++) {
        f.failing = f.stacks[i];
        f.failing.calls = (f.stacks[i].calls + 1) / 2;
        f.seen = 0;
        invar_error_clear();
        faulty_check_failure(&f.counts, faulty_runner(run));
    }
    f.fails = false; // after the failures the scenario succeeds
    assert_ok(faulty_runner(run));
    assert_int_equal(f.counts.live, 0);
    invar_allocator_set(NULL);
}

/*
 * Runs the scenario again and again, each time with another failing allocation (see the top of the
 * file). Each failed run must return INVAR_E_NOMEM with a message, and no run may leave a block
 * allocated.
 */
static inline void fail_each_allocation(invar_status (*run)(void))
{
    if (invar_test_full())
        fail_all_allocations(run);
    else
        fail_each_stack(run);
}

#endif
