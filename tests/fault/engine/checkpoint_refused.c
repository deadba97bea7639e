/*
 * checkpoint_refused.c - writing a checkpoint without space, permission or memory, or while files
 * vanish.
 *
 * Every failure must return an error with a reason and leave the previous checkpoint complete, and
 * the same call must succeed when the cause is gone. Each test runs twice: with a synchronous write
 * and with a writer thread.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE // declares unshare

#include <errno.h>
#include <jansson.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/file.h"
#include "tests/fault/engine/checkpoint_scenario.h"

enum { ROWS = 100 };

static char folder[] = INVAR_TEST_WORK "/checkpoint_refused-XXXXXX";
static char save[sizeof folder + 16]; /* folder of the current test's checkpoints; begins with
                                         the checkpoint of step 1 */
static ckpt_data data;
static bool in_thread; /* a thread writes the checkpoints */

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return invar_held_folder_remove(folder) == INVAR_OK ? 0 : -1;
}

static invar_status write_step(int64_t step)
{
    ckpt_make(&data, step, ROWS);
    return ckpt_write(NULL, save, &data, &(invar_checkpoint_options){.keep = 2}, in_thread);
}

static int new_save(void **state)
{
    static int number;

    (void)state;
    in_thread = false;
    snprintf(save, sizeof save, "%s/save%d", folder, number++);
    return write_step(1) == INVAR_OK ? 0 : -1;
}

static int new_save_in_thread(void **state)
{
    int rc = new_save(state);

    in_thread = true;
    return rc;
}

static int64_t check_latest(void)
{
    return ckpt_open_and_check(save, NULL, ROWS);
}

static bool save_has(const char *name)
{
    char path[600];

    snprintf(path, sizeof path, "%s/%s", save, name);
    return invar_path_exists(path);
}

/* Runs `body` in a child process and returns its exit code. */
static int in_child(int (*body)(void *), void *payload)
{
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0)
        _exit(body(payload));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* ---- space ----------------------------------------------------------------------------------- */

enum { WRITTEN = 0, REFUSED = 1, OTHER_ERROR = 2, SKIPPED = 77 };

/* Child: writes step 2 while no file can grow beyond the limit. */
static int write_with_limit(void *payload)
{
    struct rlimit limit = {*(rlim_t *)payload, RLIM_INFINITY};

    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return OTHER_ERROR;
    if (write_step(2) == INVAR_OK)
        return WRITTEN;
    return invar_error_last()->status == INVAR_E_IO && invar_error_last()->native == EFBIG
               ? REFUSED
               : OTHER_ERROR;
}

static void test_checkpoint_refused__files_that_cannot_grow(void **state)
{
    int n_refused = 0, n_written = 0;

    (void)state;
    // the largest file has 2 KiB of data and a header, so 4096 is above any file's size
    for (rlim_t limit = 0; limit < 4096; limit += (rlim_t)invar_test_count(101, 7)) {
        int rc = in_child(write_with_limit, &limit);
        assert_in_range(rc, WRITTEN, REFUSED);
        assert_int_equal(check_latest(), rc == WRITTEN ? 2 : n_written ? 2 : 1);
        assert_false(save_has("iter_0000002.tmp"));
        n_refused += rc == REFUSED;
        n_written += rc == WRITTEN;
    }
    assert_true(n_refused > 3);
    assert_true(n_written > 0);
}

/* Child: fills a private tmpfs of `payload` KiB with checkpoints until a write fails. */
static int write_to_full_disk(void *payload)
{
    char options[64], temporary[32];
    int n_refused = 0;

    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return SKIPPED;
    snprintf(options, sizeof options, "size=%dk", *(int *)payload);
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", save, "tmpfs", 0, options) != 0)
        return SKIPPED;
    for (int64_t step = 1; step < 40 && !n_refused; step++) {
        invar_status status;

        ckpt_make(&data, step, ROWS);
        status = ckpt_write(NULL, save, &data, NULL, in_thread);
        n_refused = status != INVAR_OK;
        if (n_refused && (status != INVAR_E_IO || invar_error_last()->native != ENOSPC))
            return OTHER_ERROR;
        if (n_refused && step > 1 && check_latest() != step - 1)
            return OTHER_ERROR;
        (void)snprintf(temporary, sizeof temporary, "iter_%07d.tmp", (int)step);
        if (save_has(temporary))
            return OTHER_ERROR;
    }
    return n_refused ? REFUSED : WRITTEN;
}

static void test_checkpoint_refused__a_full_disk(void **state)
{
    (void)state;
    for (int kib = 4; kib < 300; kib += (int)invar_test_count(40, 4)) {
        int rc = in_child(write_to_full_disk, &kib);
        if (rc == SKIPPED) {
            print_message("mounting is not allowed here\n");
            skip();
        }
        assert_int_equal(rc, REFUSED);
    }
}

/* ---- permission ------------------------------------------------------------------------------ */

static int write_as_nobody(void *payload)
{
    (void)payload;
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        return SKIPPED;
    if (write_step(2) == INVAR_OK)
        return WRITTEN;
    return invar_error_last()->status == INVAR_E_IO && invar_error_last()->native == EACCES
               ? REFUSED
               : OTHER_ERROR;
}

static void test_checkpoint_refused__a_folder_that_may_not_be_written(void **state)
{
    int rc;

    (void)state;
    assert_int_equal(chmod(save, 0555), 0);
    rc = in_child(write_as_nobody, NULL);
    assert_int_equal(chmod(save, 0777), 0);
    if (rc == SKIPPED)
        skip();
    assert_int_equal(rc, REFUSED);
    assert_int_equal(check_latest(), 1);
    assert_ok(write_step(2));
    assert_int_equal(check_latest(), 2);
}

static void test_checkpoint_refused__what_is_no_folder(void **state)
{
    char path[600];

    (void)state;
    snprintf(path, sizeof path, "%s/iter_0000001/state.json", save);
    ckpt_make(&data, 2, ROWS);
    assert_fails(ckpt_write(NULL, path, &data, NULL, in_thread), INVAR_E_IO, "not a folder");
    // The temporary name is taken by a file, which the writer did not make and must not remove.
    snprintf(path, sizeof path, "%s/iter_0000002.tmp", save);
    assert_ok(invar_file_write(path, "", 0));
    assert_fails(write_step(2), INVAR_E_INVALID, "iter_0000002.tmp");
    assert_int_equal(check_latest(), 1);
    assert_int_equal(unlink(path), 0);
    assert_ok(write_step(2));
    assert_int_equal(check_latest(), 2);
}

/* ---- files that vanish ----------------------------------------------------------------------- */

static void test_checkpoint_refused__files_that_vanish_while_it_is_written(void **state)
{
    char command[700];
    int64_t last_written = 1, n_refused = 0;

    (void)state;
    // The whole folder is moved away. Single files that vanish just before the final rename would
    // leave a damaged checkpoint, which only the reader finds.
    snprintf(command, sizeof command,
             "cd '%s' && while :; do mv iter_*.tmp ../gone && rm -rf ../gone; done 2>/dev/null",
             save);
    for (int64_t i = 0; i < invar_test_count(20, 500); i++) {
        pid_t child = fork();
        int status;
        assert_true(child >= 0);
        if (child == 0) {
            execl("/bin/sh", "sh", "-c", command, (char *)NULL);
            _exit(127);
        }
        usleep(invar_test_random(5, (uint64_t)i) % 5000);
        if (write_step(last_written + 1) == INVAR_OK)
            last_written++;
        else
            n_refused++;
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(check_latest(), last_written);
    }
    print_message("%d refused, %d written\n", (int)n_refused, (int)last_written - 1);
    assert_ok(write_step(last_written + 1));
    assert_int_equal(check_latest(), last_written + 1);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static struct {
    int64_t n; /* number of the call that fails, from 1; 0 if none fails */
    int64_t calls;
    int64_t live; /* blocks allocated and not freed */
} heap;

static void *heap_alloc(size_t bytes)
{
    void *block = NULL;

    if (heap.n > 0 && ++heap.calls == heap.n)
        return NULL;
    if (posix_memalign(&block, INVAR_ALIGN, bytes ? bytes : 1) != 0)
        return NULL;
    memset(block, 0xA5, bytes); // finds code that relies on zeroed memory
    heap.live++;
    return block;
}

static void heap_free(void *block)
{
    heap.live -= block != NULL;
    free(block);
}

static void *allocator_alloc(size_t bytes, void *payload)
{
    (void)payload;
    return heap_alloc(bytes);
}

static void allocator_free(void *block, void *payload)
{
    (void)payload;
    heap_free(block);
}

static invar_status read_all(void)
{
    static ckpt_data loaded;
    invar_checkpoint *c;
    invar_status status;
    size_t bytes;
    char *text = NULL;

    ckpt_make(&loaded, 1, ROWS);
    INVAR_TRY(invar_checkpoint_open(&c, save, NULL));
    status = invar_checkpoint_read_blob(&text, &bytes, c, "buffer.bin");
    invar_free(text);
    for (int64_t i = 0; i < CKPT_TENSORS && status == INVAR_OK; i++)
        status = invar_checkpoint_load(&loaded.tensors[i].tensor, c, loaded.tensors[i].set,
                                       loaded.tensors[i].name);
    invar_checkpoint_close(c);
    return status;
}

/*
 * Lets the n-th allocation of `body` fail, Invar's or jansson's, for n = 1, 2, ... until `body`
 * succeeds. Returns the number of failed runs.
 */
static int64_t fail_each_call(invar_status (*body)(void))
{
    int64_t n = 1, stride = invar_test_count(11, 1), failed = 0;
    invar_status status = INVAR_E_NOMEM;

    for (; status != INVAR_OK; n += stride) {
        heap.calls = 0;
        heap.n = n;
        status = body();
        failed += status != INVAR_OK;
        heap.n = 0;
        assert_int_equal(heap.live, 0);
        assert_true(status == INVAR_OK || strlen(invar_error_last()->message) > 8);
        assert_in_range(check_latest(), 1, 2);
    }
    return failed;
}

static invar_status write_second(void)
{
    return write_step(2);
}

static void test_checkpoint_refused__memory(void **state)
{
    static const invar_allocator failing = {allocator_alloc, allocator_free, NULL};
    int64_t writes, reads;

    (void)state;
    invar_allocator_set(&failing);
    json_set_alloc_funcs(heap_alloc, heap_free);
    writes = fail_each_call(write_second);
    reads = fail_each_call(read_all);
    invar_allocator_set(NULL);
    json_set_alloc_funcs(malloc, free);
    print_message("%d allocations of writing failed, %d of reading\n", (int)writes, (int)reads);
    assert_true(writes > 30);
    assert_true(reads > 30);
    assert_int_equal(check_latest(), 2);
}

#define TEST(name)                                                                                 \
    cmocka_unit_test_setup(test_checkpoint_refused__##name, new_save),                             \
        cmocka_unit_test_setup(test_checkpoint_refused__##name, new_save_in_thread)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(files_that_cannot_grow),
        TEST(a_full_disk),
        TEST(a_folder_that_may_not_be_written),
        TEST(what_is_no_folder),
        TEST(files_that_vanish_while_it_is_written),
        TEST(memory),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
