/*
 * faulty.h - an allocator that fails one chosen allocation, and a sweep over all allocations.
 *
 * fail_each_allocation runs a scenario with the first allocation failing, then with the second, and
 * so on until the scenario succeeds. Blocks are filled with 0xA5, so code that relies on zeroed
 * memory fails as well.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_FAULT_FAULTY_H
#define INVAR_TESTS_FAULT_FAULTY_H

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

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

/*
 * Runs the scenario with the n-th allocation failing, for n = 1, 2, ... until it succeeds. Each
 * failed run must return INVAR_E_NOMEM with a message, and no run may leave a block allocated.
 */
static inline void fail_each_allocation(invar_status (*run)(void))
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
            assert_int_equal(status, INVAR_E_NOMEM);
            assert_int_equal(invar_error_last()->status, INVAR_E_NOMEM);
            assert_non_null(strstr(invar_error_last()->message, "no memory for"));
        }
    }
    // The scenario succeeded with as many allocations as had failed once each.
    assert_int_equal(f.calls, failures);
    assert_true(failures > 0);
    invar_allocator_set(NULL);
}

#endif
