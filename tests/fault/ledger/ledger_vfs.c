/*
 * ledger_vfs.c - the disk fails at every n-th call of SQLite.
 *
 * A VFS between SQLite and the system counts calls and lets one of them fail, or that one and all
 * later ones: an I/O error, a full disk, a write of which only a half arrives. For each n a ledger
 * runs through the scenario of ledger_scenario.h. The call that fails must return INVAR_E_IO with
 * the path, nothing acknowledged may be lost, and the ledger must end with the content of an
 * undisturbed one. Control: every sweep must have failed a call, under `full` in more than half of
 * its trials.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <sqlite3.h>
#include <stdlib.h>

#include "tests/fault/ledger/ledger_scenario.h"

/* ---- the VFS --------------------------------------------------------------------------------- */

typedef enum fault_kind {
    FAULT_IO,   /* any call fails */
    FAULT_FULL, /* writes and new shared memory fail */
    FAULT_SHORT /* a write fails after its first half */
} fault_kind;

static struct {
    fault_kind kind;
    bool lasting;     /* all calls after the n-th fail, too */
    int64_t n;        /* number of the call that fails, from 1; 0 if none fails */
    int64_t calls;    /* calls that could have failed */
    int64_t n_failed; /* calls that failed */
    int64_t open;     /* open files */
} disk;

static void arm_fault(fault_kind kind, bool lasting, int64_t n)
{
    disk.kind = kind;
    disk.lasting = lasting;
    disk.n = n;
    disk.calls = disk.n_failed = 0;
}

static void clear_fault(void)
{
    disk.n = 0;
}

static bool should_fail(void)
{
    bool fails;

    if (disk.n == 0)
        return false;
    disk.calls++;
    fails = disk.lasting ? disk.calls >= disk.n : disk.calls == disk.n;
    disk.n_failed += fails;
    return fails;
}

/* Result of a call that needs no disk space: `code` if it must fail. */
static int io_fault(int code)
{
    return disk.kind == FAULT_IO && should_fail() ? code : SQLITE_OK;
}

typedef struct shim_file {
    sqlite3_file base;
    sqlite3_file *real; /* the system's file, in the memory after this struct */
} shim_file;

static sqlite3_file *real_file(sqlite3_file *file)
{
    return ((shim_file *)file)->real;
}

static int shim_close(sqlite3_file *file)
{
    disk.open--;
    return real_file(file)->pMethods->xClose(real_file(file));
}

static int shim_read(sqlite3_file *file, void *out, int bytes, sqlite3_int64 offset)
{
    if (io_fault(SQLITE_IOERR_READ))
        return SQLITE_IOERR_READ;
    return real_file(file)->pMethods->xRead(real_file(file), out, bytes, offset);
}

static int shim_write(sqlite3_file *file, const void *data, int bytes, sqlite3_int64 offset)
{
    sqlite3_file *real = real_file(file);

    if (!should_fail())
        return real->pMethods->xWrite(real, data, bytes, offset);
    if (disk.kind == FAULT_SHORT && bytes > 1)
        real->pMethods->xWrite(real, data, bytes / 2, offset);
    return disk.kind == FAULT_IO ? SQLITE_IOERR_WRITE : SQLITE_FULL;
}

static int shim_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    if (io_fault(SQLITE_IOERR_TRUNCATE))
        return SQLITE_IOERR_TRUNCATE;
    return real_file(file)->pMethods->xTruncate(real_file(file), size);
}

/*
 * Never reaches the disk: the test covers the death of a process, not of the machine, and fsync is
 * slow.
 */
static int shim_sync(sqlite3_file *file, int flags)
{
    (void)file, (void)flags;
    return io_fault(SQLITE_IOERR_FSYNC);
}

static int shim_size(sqlite3_file *file, sqlite3_int64 *out)
{
    if (io_fault(SQLITE_IOERR_FSTAT))
        return SQLITE_IOERR_FSTAT;
    return real_file(file)->pMethods->xFileSize(real_file(file), out);
}

/* Locks never fail: SQLite would take a failure for a second user, and wait. */
static int shim_lock(sqlite3_file *file, int level)
{
    return real_file(file)->pMethods->xLock(real_file(file), level);
}

static int shim_unlock(sqlite3_file *file, int level)
{
    return real_file(file)->pMethods->xUnlock(real_file(file), level);
}

static int shim_check_lock(sqlite3_file *file, int *out)
{
    return real_file(file)->pMethods->xCheckReservedLock(real_file(file), out);
}

static int shim_control(sqlite3_file *file, int op, void *arg)
{
    return real_file(file)->pMethods->xFileControl(real_file(file), op, arg);
}

static int shim_sector(sqlite3_file *file)
{
    return real_file(file)->pMethods->xSectorSize(real_file(file));
}

static int shim_traits(sqlite3_file *file)
{
    return real_file(file)->pMethods->xDeviceCharacteristics(real_file(file));
}

static int shim_shm_map(sqlite3_file *file, int page, int bytes, int extend, void volatile **out)
{
    if (disk.kind != FAULT_SHORT && extend && should_fail())
        return SQLITE_IOERR_SHMMAP;
    return real_file(file)->pMethods->xShmMap(real_file(file), page, bytes, extend, out);
}

static int shim_shm_lock(sqlite3_file *file, int offset, int n, int flags)
{
    return real_file(file)->pMethods->xShmLock(real_file(file), offset, n, flags);
}

static void shim_shm_barrier(sqlite3_file *file)
{
    real_file(file)->pMethods->xShmBarrier(real_file(file));
}

static int shim_shm_unmap(sqlite3_file *file, int delete)
{
    return real_file(file)->pMethods->xShmUnmap(real_file(file), delete);
}

static const sqlite3_io_methods methods = {
    .iVersion = 2, // version 2 has no memory maps
    .xClose = shim_close,
    .xRead = shim_read,
    .xWrite = shim_write,
    .xTruncate = shim_truncate,
    .xSync = shim_sync,
    .xFileSize = shim_size,
    .xLock = shim_lock,
    .xUnlock = shim_unlock,
    .xCheckReservedLock = shim_check_lock,
    .xFileControl = shim_control,
    .xSectorSize = shim_sector,
    .xDeviceCharacteristics = shim_traits,
    .xShmMap = shim_shm_map,
    .xShmLock = shim_shm_lock,
    .xShmBarrier = shim_shm_barrier,
    .xShmUnmap = shim_shm_unmap,
};

static sqlite3_vfs *system_vfs;

static int shim_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *out)
{
    shim_file *shim = (shim_file *)file;
    int rc;

    (void)vfs;
    shim->base.pMethods = NULL;
    if (io_fault(SQLITE_CANTOPEN))
        return SQLITE_CANTOPEN;
    shim->real = (sqlite3_file *)(shim + 1);
    rc = system_vfs->xOpen(system_vfs, name, shim->real, flags, out);
    if (rc == SQLITE_OK) {
        shim->base.pMethods = &methods;
        disk.open++;
    }
    return rc;
}

static int shim_delete(sqlite3_vfs *vfs, const char *name, int sync_folder)
{
    (void)vfs, (void)sync_folder;
    if (io_fault(SQLITE_IOERR_DELETE))
        return SQLITE_IOERR_DELETE;
    return system_vfs->xDelete(system_vfs, name, 0);
}

static int shim_access(sqlite3_vfs *vfs, const char *name, int flags, int *out)
{
    (void)vfs;
    if (io_fault(SQLITE_IOERR_ACCESS))
        return SQLITE_IOERR_ACCESS;
    return system_vfs->xAccess(system_vfs, name, flags, out);
}

static void install(void)
{
    static sqlite3_vfs shim;

    system_vfs = sqlite3_vfs_find(NULL);
    shim = *system_vfs;
    shim.szOsFile = (int)sizeof(shim_file) + system_vfs->szOsFile;
    shim.pNext = NULL;
    shim.zName = "shim";
    shim.xOpen = shim_open;
    shim.xDelete = shim_delete;
    shim.xAccess = shim_access;
    assert_int_equal(sqlite3_vfs_register(&shim, 1), SQLITE_OK);
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

static char folder[] = INVAR_TEST_WORK "/ledger_vfs-XXXXXX";
static scenario_result expected;

static const char *ledger_path(void)
{
    static char path[600];

    (void)snprintf(path, sizeof path, "%s/ledger.db", folder);
    return path;
}

static int set_up(void **state)
{
    scenario s;

    (void)state;
    assert_non_null(mkdtemp(folder));
    install();
    scenario_init(&s, ledger_path());
    assert_ok(scenario_run(&s));
    expected = scenario_check_whole(&s);
    return 0;
}

static void check_message(invar_status status)
{
    assert_int_equal(status, INVAR_E_IO);
    assert_int_equal(invar_error_last()->status, status);
    assert_non_null(strstr(invar_error_last()->message, folder));
}

static void check_result(const scenario *s)
{
    scenario_result result = scenario_check_whole(s);

    assert_memory_equal(&result.content, &expected.content, sizeof expected.content);
    assert_int_equal(disk.open, 0);
}

/*
 * The process ends with the failure, and the next one continues. Returns false if the scenario
 * ended before the n-th call.
 */
static bool fail_and_recover(fault_kind kind, bool lasting, int64_t n, int64_t *failed)
{
    scenario s;
    invar_status status;

    scenario_init(&s, ledger_path());
    arm_fault(kind, lasting, n);
    invar_error_clear();
    status = scenario_run(&s);
    clear_fault();
    if (status != INVAR_OK) {
        check_message(status);
        (*failed)++;
    }
    assert_int_equal(disk.open, 0);
    scenario_recover(&s);
    check_result(&s);
    return disk.n_failed > 0;
}

/*
 * Repeats a failed call on the same object; the failure must have left nothing behind. Returns
 * false if the scenario ended before the n-th call.
 */
static bool fail_and_repeat(fault_kind kind, bool lasting, int64_t n, int64_t *failed)
{
    scenario s;
    scenario_result result;

    scenario_init(&s, ledger_path());
    arm_fault(kind, lasting, n);
    *failed += scenario_repeat(&s, clear_fault);
    clear_fault();
    result = scenario_check_whole(&s);
    assert_int_equal(result.entries, expected.entries);
    check_result(&s);
    return disk.n_failed > 0;
}

typedef bool (*trial)(fault_kind kind, bool lasting, int64_t n, int64_t *failed);

/*
 * Calls `try` for ascending n until the scenario ends before the n-th call; every n under full, by
 * default in large steps, and each sweep at other places.
 */
static void sweep(fault_kind kind, const char *name, trial try)
{
    static int64_t sweeps;

    for (int lasting = 0; lasting < 2; lasting++) {
        int64_t trials = 0, failed = 0, n = invar_test_count(1 + 7 * sweeps++, 1);

        while (try(kind, lasting, n, &failed)) {
            n += invar_test_count(67 + n % 131, 1);
            trials++;
        }
        assert_true(failed > invar_test_count(0, trials / 2));
        print_message("%s, %s: %d of %d trials failed a call, of %d calls\n", name,
                      lasting ? "lasting" : "once", (int)failed, (int)trials, (int)disk.calls);
    }
}

static void test_ledger_vfs__io_error(void **state)
{
    (void)state;
    sweep(FAULT_IO, "I/O error", fail_and_recover);
}

static void test_ledger_vfs__full_disk(void **state)
{
    (void)state;
    sweep(FAULT_FULL, "full disk", fail_and_recover);
}

static void test_ledger_vfs__short_write(void **state)
{
    (void)state;
    sweep(FAULT_SHORT, "short write", fail_and_recover);
}

static void test_ledger_vfs__io_error_repeated(void **state)
{
    (void)state;
    sweep(FAULT_IO, "I/O error, repeated", fail_and_repeat);
}

static void test_ledger_vfs__full_disk_repeated(void **state)
{
    (void)state;
    sweep(FAULT_FULL, "full disk, repeated", fail_and_repeat);
}

static void test_ledger_vfs__short_write_repeated(void **state)
{
    (void)state;
    sweep(FAULT_SHORT, "short write, repeated", fail_and_repeat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_vfs__io_error),
        cmocka_unit_test(test_ledger_vfs__full_disk),
        cmocka_unit_test(test_ledger_vfs__short_write),
        cmocka_unit_test(test_ledger_vfs__io_error_repeated),
        cmocka_unit_test(test_ledger_vfs__full_disk_repeated),
        cmocka_unit_test(test_ledger_vfs__short_write_repeated),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
