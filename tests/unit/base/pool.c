/*
 * pool.c - tests of the thread pool. Most run without a pool and with 1, 2, 3 and 8 threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/pool.h"

#include <stdatomic.h>
#include <stdio.h>

#include "tests/support.h"

#define TASKS 1000
#define MAX_THREADS 8

typedef void (*pool_case)(invar_pool *pool);

static void with_every_pool(pool_case run)
{
    static const int threads[] = {1, 2, 3, MAX_THREADS};

    run(NULL);
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        invar_pool *pool;
        assert_ok(invar_pool_new(&pool, threads[i]));
        assert_int_equal(invar_pool_threads(pool), threads[i]);
        run(pool);
        invar_pool_free(pool);
    }
}

/* ---- each task runs once, and a worker runs one task at a time ------------------------------- */

typedef struct task_counts {
    _Atomic int runs[TASKS];
    _Atomic int inside[MAX_THREADS]; /* tasks that a worker is running now */
    _Atomic int collisions;          /* tasks of an invalid worker, or of one that was busy */
    int threads;
} task_counts;

static invar_status count_task(void *payload, int64_t task, int worker)
{
    task_counts *t = payload;

    if (worker < 0 || worker >= t->threads || atomic_fetch_add(&t->inside[worker], 1) != 0)
        atomic_fetch_add(&t->collisions, 1);
    atomic_fetch_add(&t->runs[task], 1);
    atomic_fetch_sub(&t->inside[worker], 1);
    return INVAR_OK;
}

static void each_task_once(invar_pool *pool)
{
    static const int64_t sizes[] = {0, 1, 2, 7, TASKS};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        task_counts t = {.threads = invar_pool_threads(pool)};
        assert_ok(invar_pool_run(pool, sizes[i], count_task, &t));
        for (int64_t task = 0; task < TASKS; task++)
            assert_int_equal(t.runs[task], task < sizes[i]);
        assert_int_equal(t.collisions, 0);
    }
}

static void test_base_pool__runs_each_task_once(void **state)
{
    (void)state;
    with_every_pool(each_task_once);
}

/* ---- runs do not overlap --------------------------------------------------------------------- */

static invar_status add_plain(void *payload, int64_t task, int worker)
{
    int64_t *cells = payload;

    (void)worker;
    cells[task] += task + 1; // not atomic: ThreadSanitizer reports a race if two runs overlap
    return INVAR_OK;
}

static void many_small_runs(invar_pool *pool)
{
    int64_t jobs = invar_test_count(1000, 50000), cells[18] = {0}, expected[18] = {0};

    for (int64_t i = 0; i < jobs; i++) {
        int64_t tasks = i % 19;
        assert_ok(invar_pool_run(pool, tasks, add_plain, cells));
        for (int64_t task = 0; task < tasks; task++)
            expected[task] += task + 1;
    }
    assert_memory_equal(cells, expected, sizeof cells);
}

static void test_base_pool__many_small_runs_do_not_overlap(void **state)
{
    (void)state;
    with_every_pool(many_small_runs);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* The task `first` and every third one after it fail. */
typedef struct failing_tasks {
    int64_t first;
    _Atomic int64_t runs; /* tasks that have run */
} failing_tasks;

static invar_status fail_from(void *payload, int64_t task, int worker)
{
    failing_tasks *f = payload;

    (void)worker;
    atomic_fetch_add(&f->runs, 1);
    if (task >= f->first && (task - f->first) % 3 == 0)
        return INVAR_FAIL(task == f->first ? INVAR_E_CORRUPT : INVAR_E_IO, (int)task,
                          "task %d failed", (int)task);
    return INVAR_OK;
}

static void lowest_failure(invar_pool *pool)
{
    for (int64_t first = 0; first < 60; first += 11) {
        failing_tasks f = {.first = first};
        char text[32];

        snprintf(text, sizeof text, "task %d failed", (int)first);
        invar_error_clear();
        assert_fails(invar_pool_run(pool, 100, fail_from, &f), INVAR_E_CORRUPT, text);
        assert_int_equal(invar_error_last()->native, first);
        assert_int_equal(f.runs, 100);
    }
}

static void test_base_pool__returns_the_lowest_failure(void **state)
{
    (void)state;
    with_every_pool(lowest_failure);
}

static void failure_is_not_kept(invar_pool *pool)
{
    failing_tasks f = {.first = 5};

    assert_fails(invar_pool_run(pool, 50, fail_from, &f), INVAR_E_CORRUPT, "task 5");
    f.first = 1000;
    assert_ok(invar_pool_run(pool, 50, fail_from, &f));
}

static void test_base_pool__next_run_succeeds_after_a_failure(void **state)
{
    (void)state;
    with_every_pool(failure_is_not_kept);
}

static void test_base_pool__rejects_impossible_thread_counts(void **state)
{
    static const int threads[] = {-1, 0, INVAR_POOL_MAX_THREADS + 1};

    (void)state;
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        invar_pool *pool = (invar_pool *)state;
        assert_fails(invar_pool_new(&pool, threads[i]), INVAR_E_INVALID, "threads; expected 1 to");
        assert_null(pool);
    }
    invar_pool_free(NULL);
}

static void test_base_pool__pools_are_independent(void **state)
{
    invar_pool *a, *b;
    int64_t cells[18] = {0};
    task_counts t = {.threads = 3};

    (void)state;
    assert_ok(invar_pool_new(&a, 2));
    assert_ok(invar_pool_new(&b, 3));
    assert_ok(invar_pool_run(a, 18, add_plain, cells));
    assert_ok(invar_pool_run(b, TASKS, count_task, &t));
    invar_pool_free(a);
    assert_ok(invar_pool_run(b, 18, add_plain, cells));
    invar_pool_free(b);
    assert_int_equal(cells[17], 36);
    assert_int_equal(t.collisions, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_pool__runs_each_task_once),
        cmocka_unit_test(test_base_pool__many_small_runs_do_not_overlap),
        cmocka_unit_test(test_base_pool__returns_the_lowest_failure),
        cmocka_unit_test(test_base_pool__next_run_succeeds_after_a_failure),
        cmocka_unit_test(test_base_pool__rejects_impossible_thread_counts),
        cmocka_unit_test(test_base_pool__pools_are_independent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
