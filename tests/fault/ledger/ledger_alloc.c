/*
 * ledger_alloc.c - every n-th allocation of the ledger, and of SQLite below it, fails.
 *
 * For each n a ledger runs through the scenario of ledger_scenario.h. The call that fails must
 * report that there is no memory, nothing acknowledged may be lost, every block must be freed, and
 * the ledger must end with the content of an undisturbed one. Control: more than half of the trials
 * must have failed a call.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <sqlite3.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "tests/fault/ledger/ledger_scenario.h"
#include "tests/no_sync.h"

/* ---- allocators that fail once --------------------------------------------------------------- */

typedef struct heap {
    int64_t n; /* number of the call that fails, from 1; 0 if none fails */
    int64_t calls;
    int64_t n_failed; /* calls that failed */
    int64_t live;     /* blocks allocated and not freed */
} heap;

static heap our_heap, sqlite_heap;

static bool should_fail(heap *h)
{
    bool fails;

    if (h->n == 0)
        return false;
    fails = ++h->calls == h->n;
    h->n_failed += fails;
    return fails;
}

static void arm_fault(heap *h, int64_t n)
{
    h->n = n;
    h->calls = h->n_failed = 0;
}

static void clear_fault(void)
{
    our_heap.n = sqlite_heap.n = 0;
}

static void *our_alloc(size_t bytes, void *payload)
{
    void *block = NULL;

    (void)payload;
    if (should_fail(&our_heap) || posix_memalign(&block, INVAR_ALIGN, bytes) != 0)
        return NULL;
    memset(block, 0xA5, bytes); // finds code that relies on zeroed memory
    our_heap.live++;
    return block;
}

static void our_free(void *block, void *payload)
{
    (void)payload;
    our_heap.live--;
    free(block);
}

static sqlite3_mem_methods system_memory;

static void *sqlite_alloc(int bytes)
{
    void *block = should_fail(&sqlite_heap) ? NULL : system_memory.xMalloc(bytes);

    sqlite_heap.live += block != NULL;
    return block;
}

static void sqlite_release(void *block)
{
    sqlite_heap.live -= block != NULL;
    system_memory.xFree(block);
}

static void *sqlite_resize(void *block, int bytes)
{
    return should_fail(&sqlite_heap) ? NULL : system_memory.xRealloc(block, bytes);
}

static void install(void)
{
    static const invar_allocator allocator = {our_alloc, our_free, NULL};
    sqlite3_mem_methods methods;

    assert_int_equal(sqlite3_config(SQLITE_CONFIG_GETMALLOC, &system_memory), SQLITE_OK);
    methods = system_memory;
    methods.xMalloc = sqlite_alloc;
    methods.xFree = sqlite_release;
    methods.xRealloc = sqlite_resize;
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_MALLOC, &methods), SQLITE_OK);
    // SQLite's own small heaps would hide most allocations from the one above
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0), SQLITE_OK);
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_PAGECACHE, NULL, 0, 0), SQLITE_OK);
    invar_allocator_set(&allocator);
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

static char folder[] = INVAR_TEST_WORK "/ledger_alloc-XXXXXX";
static char path[sizeof folder + 16];
static scenario_result expected;
static int64_t sqlite_kept_blocks; /* blocks that SQLite keeps for the life of the process */

static int set_up(void **state)
{
    scenario s;

    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/ledger.db", folder);
    install();
    scenario_init(&s, path);
    assert_ok(scenario_run(&s));
    expected = scenario_check_whole(&s);
    assert_int_equal(our_heap.live, 0);
    sqlite_kept_blocks = sqlite_heap.live;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    assert_int_equal(sqlite3_shutdown(), SQLITE_OK);
    assert_int_equal(sqlite_heap.live, 0);
    invar_allocator_set(NULL);
    return 0;
}

static void check_result(const scenario *s)
{
    scenario_result result = scenario_check_whole(s);

    assert_memory_equal(&result.content, &expected.content, sizeof expected.content);
    assert_int_equal(our_heap.live, 0);
    assert_int_equal(sqlite_heap.live, sqlite_kept_blocks);
}

static bool fail_and_recover(heap *h, int64_t n, int64_t *failed)
{
    scenario s;
    invar_status status;

    scenario_init(&s, path);
    arm_fault(h, n);
    invar_error_clear();
    status = scenario_run(&s);
    clear_fault();
    if (status != INVAR_OK) {
        assert_fails(status, INVAR_E_NOMEM, "no memory");
        (*failed)++;
    }
    assert_int_equal(our_heap.live, 0);
    assert_int_equal(sqlite_heap.live, sqlite_kept_blocks);
    scenario_recover(&s);
    check_result(&s);
    return h->n_failed > 0;
}

static bool fail_and_repeat(heap *h, int64_t n, int64_t *failed)
{
    scenario s;
    scenario_result result;

    scenario_init(&s, path);
    arm_fault(h, n);
    *failed += scenario_repeat(&s, clear_fault);
    clear_fault();
    result = scenario_check_whole(&s);
    assert_int_equal(result.entries, expected.entries);
    check_result(&s);
    return h->n_failed > 0;
}

/*
 * Calls `try` for ascending n, in steps from `least` to less than `least` + `range`, until the
 * scenario ends before the n-th allocation.
 */
static void sweep(heap *h, const char *name, int64_t least, int64_t range,
                  bool (*try)(heap *h, int64_t n, int64_t *failed))
{
    int64_t trials = 0, failed = 0, n = 1;

    while (try(h, n, &failed)) {
        n += least + n % range;
        trials++;
    }
    assert_true(failed > trials / 2);
    print_message("%s: %d of %d trials failed a call, of %d allocations\n", name, (int)failed,
                  (int)trials, (int)h->calls);
}

static void test_ledger_alloc__ours(void **state)
{
    (void)state;
    sweep(&our_heap, "invar_alloc", invar_test_count(20, 1), invar_test_count(37, 1),
          fail_and_recover);
}

static void test_ledger_alloc__ours_repeated(void **state)
{
    (void)state;
    sweep(&our_heap, "invar_alloc, repeated", invar_test_count(20, 1), invar_test_count(41, 1),
          fail_and_repeat);
}

/*
 * SQLite makes many allocations, most of them in the check of the schema, so the steps are large.
 */
static void test_ledger_alloc__sqlites(void **state)
{
    (void)state;
    sweep(&sqlite_heap, "SQLite", invar_test_count(8011, 1), invar_test_count(17011, 29),
          fail_and_recover);
}

static void test_ledger_alloc__sqlites_repeated(void **state)
{
    (void)state;
    sweep(&sqlite_heap, "SQLite, repeated", invar_test_count(10007, 1), invar_test_count(19001, 29),
          fail_and_repeat);
}

/* ---- an older version ------------------------------------------------------------------------ */

static char old[sizeof folder + 16];

static void copy_old(void)
{
    static char data[1 << 20];
    FILE *from = fopen(INVAR_TEST_DATA "/golden/ledger-1.db", "rb"), *to = fopen(old, "wb");
    size_t bytes;

    assert_true(from && to);
    bytes = fread(data, 1, sizeof data, from);
    assert_int_equal(fwrite(data, 1, bytes, to), bytes);
    assert_int_equal(fclose(from) + fclose(to), 0);
}

static invar_status use_old(const invar_ledger_options *options)
{
    invar_ledger_verify_result verdict;
    invar_ledger *ledger;
    invar_status status;

    INVAR_TRY(invar_ledger_open(&ledger, old, options));
    status = invar_ledger_verify(&verdict, ledger, NULL, NULL);
    invar_ledger_close(ledger);
    return status;
}

/* A ledger of format 1 is read, upgraded by a writer, and read again; the n-th allocation fails. */
static bool fail_and_use_old(heap *h, int64_t n, int64_t *failed)
{
    const invar_ledger_options write = {.write = true};
    invar_status status;

    copy_old();
    arm_fault(h, n);
    invar_error_clear();
    status = use_old(NULL);
    if (status == INVAR_OK)
        status = use_old(&write);
    if (status == INVAR_OK)
        status = use_old(NULL);
    clear_fault();
    if (status != INVAR_OK) {
        assert_fails(status, INVAR_E_NOMEM, "no memory");
        (*failed)++;
    }
    assert_int_equal(our_heap.live, 0);
    assert_int_equal(sqlite_heap.live, sqlite_kept_blocks);
    assert_ok(use_old(NULL)); // the upgrade happened or not, and either version must open
    assert_ok(use_old(&write));
    return h->n_failed > 0;
}

static void test_ledger_alloc__older_version(void **state)
{
    (void)state;
    (void)snprintf(old, sizeof old, "%s/old.db", folder);
    sweep(&our_heap, "invar_alloc, older version", invar_test_count(61, 1), invar_test_count(79, 1),
          fail_and_use_old);
    sweep(&sqlite_heap, "SQLite, older version", invar_test_count(30011, 1),
          invar_test_count(45007, 97), fail_and_use_old);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_alloc__ours),
        cmocka_unit_test(test_ledger_alloc__ours_repeated),
        cmocka_unit_test(test_ledger_alloc__sqlites),
        cmocka_unit_test(test_ledger_alloc__sqlites_repeated),
        cmocka_unit_test(test_ledger_alloc__older_version),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
