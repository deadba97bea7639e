/*
 * checkpoint_refused.c - the system refuses: no space, no permission, no memory, files that vanish.
 *
 * Every failure is an error with a reason, the checkpoint before it stays whole, and the same call
 * succeeds when the reason is gone. All of it in one call, and then with a thread that writes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE // unshare

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
static char save[sizeof folder + 16]; /* a new one for each test, with the checkpoint 1 */
static ckpt_data data;
static bool behind; /* a thread writes */

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
    return ckpt_write(NULL, save, &data, &(invar_checkpoint_options){.keep = 2}, behind);
}

static int new_save(void **state)
{
    static int number;

    (void)state;
    behind = false;
    snprintf(save, sizeof save, "%s/save%d", folder, number++);
    return write_step(1) == INVAR_OK ? 0 : -1;
}

static int new_save_behind(void **state)
{
    int rc = new_save(state);

    behind = true;
    return rc;
}

static int64_t latest(void)
{
    return ckpt_open_and_check(save, NULL, ROWS);
}

static bool there(const char *name)
{
    char path[600];

    snprintf(path, sizeof path, "%s/%s", save, name);
    return invar_path_exists(path);
}

/* Runs `body` in a child; 0 is success. */
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

enum { WRITTEN = 0, REFUSED = 1, ELSE = 2, SKIPPED = 77 };

/* Files of the process cannot grow beyond the limit. */
static int write_with_limit(void *payload)
{
    struct rlimit limit = {*(rlim_t *)payload, RLIM_INFINITY};

    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return ELSE;
    if (write_step(2) == INVAR_OK)
        return WRITTEN;
    return invar_error_last()->status == INVAR_E_IO && invar_error_last()->native == EFBIG ? REFUSED
                                                                                           : ELSE;
}

static void test_checkpoint_refused__files_that_cannot_grow(void **state)
{
    int refused = 0, written = 0;

    (void)state;
    // the largest file has 2 KiB of data and a header
    for (rlim_t limit = 0; limit < 4096; limit += (rlim_t)invar_test_count(101, 7)) {
        int rc = in_child(write_with_limit, &limit);
        assert_in_range(rc, WRITTEN, REFUSED);
        assert_int_equal(latest(), rc == WRITTEN ? 2 : written ? 2 : 1);
        assert_false(there("iter_0000002.tmp"));
        refused += rc == REFUSED;
        written += rc == WRITTEN;
    }
    assert_true(refused > 3);
    assert_true(written > 0);
}

/* A file system of its own, of `payload` KiB, that nobody else sees. */
static int write_to_full_disk(void *payload)
{
    char options[64];
    int refused = 0;

    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return SKIPPED;
    snprintf(options, sizeof options, "size=%dk", *(int *)payload);
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", save, "tmpfs", 0, options) != 0)
        return SKIPPED;
    for (int64_t step = 1; step < 40 && !refused; step++) {
        invar_status status;

        ckpt_make(&data, step, ROWS);
        status = ckpt_write(NULL, save, &data, NULL, behind);
        refused = status != INVAR_OK;
        if (refused && (status != INVAR_E_IO || invar_error_last()->native != ENOSPC))
            return ELSE;
        if (refused && step > 1 && latest() != step - 1)
            return ELSE;
        if (there("iter_0000040.tmp"))
            return ELSE;
    }
    return refused ? REFUSED : WRITTEN;
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
               : ELSE;
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
    assert_int_equal(latest(), 1);
    assert_ok(write_step(2));
    assert_int_equal(latest(), 2);
}

static void test_checkpoint_refused__what_is_no_folder(void **state)
{
    char path[600];

    (void)state;
    snprintf(path, sizeof path, "%s/iter_0000001/state.json", save);
    ckpt_make(&data, 2, ROWS);
    assert_fails(ckpt_write(NULL, path, &data, NULL, behind), INVAR_E_IO, "not a folder");
    // a file in the place of the new one: it is not ours to remove
    snprintf(path, sizeof path, "%s/iter_0000002.tmp", save);
    assert_ok(invar_file_write(path, "", 0));
    assert_fails(write_step(2), INVAR_E_INVALID, "iter_0000002.tmp");
    assert_int_equal(latest(), 1);
    assert_int_equal(unlink(path), 0);
    assert_ok(write_step(2));
    assert_int_equal(latest(), 2);
}

/* ---- files that vanish ----------------------------------------------------------------------- */

static void test_checkpoint_refused__files_that_vanish_while_it_is_written(void **state)
{
    char command[700];
    int64_t at = 1, refused = 0;

    (void)state;
    // the folder goes as a whole: single files that go in the moment before it gets its name leave
    // a damaged checkpoint, which the reader finds
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
        if (write_step(at + 1) == INVAR_OK)
            at++;
        else
            refused++;
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(latest(), at);
    }
    print_message("%d refused, %d written\n", (int)refused, (int)at - 1);
    assert_ok(write_step(at + 1));
    assert_int_equal(latest(), at + 1);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static struct {
    int64_t n; /* the call that fails, from 1; 0: none */
    int64_t calls;
    int64_t live; /* blocks */
} heap;

static void *take(size_t bytes)
{
    void *block = NULL;

    if (heap.n > 0 && ++heap.calls == heap.n)
        return NULL;
    if (posix_memalign(&block, INVAR_ALIGN, bytes ? bytes : 1) != 0)
        return NULL;
    memset(block, 0xA5, bytes); // nobody may rely on zeroed memory
    heap.live++;
    return block;
}

static void give(void *block)
{
    heap.live -= block != NULL;
    free(block);
}

static void *our_alloc(size_t bytes, void *payload)
{
    (void)payload;
    return take(bytes);
}

static void our_free(void *block, void *payload)
{
    (void)payload;
    give(block);
}

static invar_status read_all(void)
{
    static ckpt_data got;
    invar_checkpoint *c;
    invar_status status;
    size_t bytes;
    char *text = NULL;

    ckpt_make(&got, 1, ROWS);
    INVAR_TRY(invar_checkpoint_open(&c, save, NULL));
    status = invar_checkpoint_read_blob(&text, &bytes, c, "buffer.bin");
    invar_free(text);
    for (int64_t i = 0; i < CKPT_TENSORS && status == INVAR_OK; i++)
        status = invar_checkpoint_load(&got.tensors[i].tensor, c, got.tensors[i].set,
                                       got.tensors[i].name);
    invar_checkpoint_close(c);
    return status;
}

/* The n-th allocation of writing or reading fails, ours or jansson's. How many did. */
static int64_t fail_each(invar_status (*body)(void))
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
        assert_in_range(latest(), 1, 2);
    }
    return failed;
}

static invar_status write_second(void)
{
    return write_step(2);
}

static void test_checkpoint_refused__memory(void **state)
{
    static const invar_allocator failing = {our_alloc, our_free, NULL};
    int64_t writes, reads;

    (void)state;
    invar_allocator_set(&failing);
    json_set_alloc_funcs(take, give);
    writes = fail_each(write_second);
    reads = fail_each(read_all);
    invar_allocator_set(NULL);
    json_set_alloc_funcs(malloc, free);
    print_message("%d allocations of writing failed, %d of reading\n", (int)writes, (int)reads);
    assert_true(writes > 30);
    assert_true(reads > 30);
    assert_int_equal(latest(), 2);
}

#define TEST(name)                                                                                 \
    cmocka_unit_test_setup(test_checkpoint_refused__##name, new_save),                             \
        cmocka_unit_test_setup(test_checkpoint_refused__##name, new_save_behind)

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
