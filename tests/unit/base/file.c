/*
 * file.c - tests of reading and hashing files, atomic writes, output checks, paths and folders.
 *
 * A failed write leaves the old file, writes do not follow symbolic links, and interrupted system
 * calls are repeated. This program replaces fsync, so that tests can interrupt it and check which
 * files were synced, and readlink, so that a folder can move while its path is determined.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1  // syscall
#undef _FORTIFY_SOURCE // makes readlink an inline function, which cannot be replaced

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <signal.h>

#include "base/alloc.h"
#include "tests/support.h"

static char work[512];

static int interruptions; /* calls of fsync still to be interrupted; below 0, alarms counted */
static ino_t synced[64];  /* (n_synced) inodes of the files that were synced */
static size_t n_synced;

/* Replaces fsync of libc. */

int fsync(int fd)
{
    struct stat info;

    if (interruptions > 0) {
        interruptions--;
        errno = EINTR;
        return -1;
    }
    if (fstat(fd, &info) == 0 && n_synced < sizeof synced / sizeof *synced)
        synced[n_synced++] = info.st_ino;
    return (int)syscall(SYS_fsync, fd);
}

static bool was_synced(const char *path)
{
    struct stat info;

    assert_int_equal(stat(path, &info), 0);
    for (size_t i = 0; i < n_synced; i++)
        if (synced[i] == info.st_ino)
            return true;
    return false;
}

static const char *in_work(const char *name)
{
    static char path[16][1024];
    static int next;
    char *out = path[next++ % 16];

    snprintf(out, sizeof path[0], "%s/%s", work, name);
    return out;
}

static int moves; /* moves between "here" and "there" still to be made after a link is read */

/* Replaces readlink of libc: the folder that the link led to is moved before the path is used. */
ssize_t readlink(const char *path, char *out, size_t bytes)
{
    ssize_t length = (ssize_t)syscall(SYS_readlinkat, AT_FDCWD, path, out, bytes);

    if (moves > 0) {
        assert_int_equal(
            rename(in_work(moves % 2 ? "here" : "there"), in_work(moves % 2 ? "there" : "here")),
            0);
        moves--;
    }
    return length;
}

static int make_work(void **state)
{
    (void)state;
    snprintf(work, sizeof work, "%s/file-XXXXXX", INVAR_TEST_WORK);
    return mkdtemp(work) ? 0 : -1;
}

static int remove_work(void **state)
{
    (void)state;
    return invar_held_folder_remove(work) == INVAR_OK && !invar_path_exists(work) ? 0 : -1;
}

static void assert_content(const char *path, const char *expected, size_t bytes)
{
    char *got;
    size_t size;

    assert_ok(invar_file_read(&got, &size, path, 1 << 20));
    assert_int_equal(size, bytes);
    assert_memory_equal(got, expected, bytes);
    assert_int_equal(got[size], 0);
    invar_free(got);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void test_base_file__writes_and_reads_back(void **state)
{
    static const char bytes[] = "a\0b\n\xFF";
    const char *path = in_work("whole");

    (void)state;
    assert_ok(invar_file_write(path, bytes, sizeof bytes));
    assert_content(path, bytes, sizeof bytes);
    assert_ok(invar_file_write(path, "new", 3));
    assert_content(path, "new", 3);
    assert_ok(invar_file_write(path, NULL, 0));
    assert_content(path, "", 0);
    assert_false(invar_path_exists(in_work("whole.invar-tmp")));
}

static void test_base_file__output_replaces_its_own_kind_only(void **state)
{
    static const struct {
        const char *content;
        const char *mark;
        size_t mark_offset;
        bool replaceable;
    } cases[] = {{"", "kind", 0, true},         {"kind of file", "kind", 0, true},
                 {"ki", "kind", 0, true},       {"kin", "kind", 4, false},
                 {"0123kind", "kind", 4, true}, {"0123king", "kind", 4, false},
                 {"kinder", "king", 0, false},  {"anything", NULL, 0, true}};
    const char *path = in_work("output");

    (void)state;
    assert_ok(invar_path_check_output(path, "kind", 0)); // no file exists yet
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(invar_file_write(path, cases[i].content, strlen(cases[i].content)));
        if (cases[i].replaceable)
            assert_ok(invar_path_check_output(path, cases[i].mark, cases[i].mark_offset));
        else
            assert_fails(invar_path_check_output(path, cases[i].mark, cases[i].mark_offset),
                         INVAR_E_INVALID, "a file of another kind lies there");
    }
    assert_ok(invar_file_write(in_work("db"), "SQLite format 3\0...", 19));
    assert_fails(invar_path_check_output(in_work("db"), NULL, 0), INVAR_E_INVALID,
                 "a ledger or another database lies there");
}

/*
 * The path of an output must name a regular file or nothing. A write by the program itself replaces
 * a symbolic link, and does not follow it.
 */
static void test_base_file__output_replaces_regular_files_only(void **state)
{
    const char *link = in_work("good link"), *dangling_link = in_work("dangling link");
    const char *pipe = in_work("odd pipe"), *folder = in_work("odd folder");
    const char *socket = in_work("odd socket"), *target = in_work("led to");
    const struct {
        const char *path, *kind;
    } cases[] = {{link, "symbolic link, and is not replaced or followed"},
                 {dangling_link, "symbolic link, and is not replaced or followed"},
                 {"/dev/stdout", "symbolic link"},
                 {pipe, "pipe, and is not replaced"},
                 {socket, "socket, and is not replaced"},
                 {folder, "folder, and is not replaced"},
                 {"/dev/null", "device, and is not replaced"}};

    (void)state;
    assert_ok(invar_file_write(target, "mark", 4));
    assert_int_equal(symlink(target, link), 0);
    assert_int_equal(symlink(in_work("nowhere"), dangling_link), 0);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(mknod(socket, S_IFSOCK | 0600, 0), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(invar_path_check_output(cases[i].path, "mark", 0), INVAR_E_INVALID,
                     cases[i].kind);
    assert_ok(invar_path_check_output(target, "mark", 0));
    for (size_t i = 0; i < 2; i++) {
        assert_ok(invar_file_write(cases[i].path, "ours", 4));
        assert_ok(invar_path_check_output(cases[i].path, "ours", 0)); // a regular file now
    }
    assert_content(target, "mark", 4);
}

static void test_base_file__checks_outputs_in_a_run_folder(void **state)
{
    const char *run_folder = in_work("soon"), *inside = in_work("soon/trace"),
               *elsewhere = in_work("far/trace");

    (void)state;
    assert_fails(invar_path_check_writable(inside), INVAR_E_IO, "its folder does not exist");
    assert_ok(invar_path_check_writable_in(inside, run_folder));
    assert_fails(invar_path_check_writable_in(elsewhere, run_folder), INVAR_E_IO,
                 "its folder does not exist");
    assert_ok(invar_path_check_writable_in(in_work("beside"), run_folder));
    assert_int_equal(mkdir(run_folder, 0700), 0);
    assert_int_equal(mkdir(inside, 0700), 0);
    assert_fails(invar_path_check_writable_in(inside, run_folder), INVAR_E_INVALID, "is a folder");
}

static void test_base_file__checks_the_parents_of_a_folder(void **state)
{
    const char *file = in_work("taken"), *link = in_work("nowhere-else");
    char existing[INVAR_PATH_SIZE];

    (void)state;
    assert_ok(invar_file_write(file, "x", 1));
    assert_int_equal(symlink(in_work("nowhere"), link), 0);
    assert_ok(invar_path_check_folder(work));
    assert_ok(invar_path_check_folder(in_work("a/b/c")));
    assert_ok(invar_path_check_folder("x"));
    assert_fails(invar_path_check_folder(file), INVAR_E_IO, "taken is no folder");
    assert_fails(invar_path_check_folder(in_work("taken/b/c")), INVAR_E_IO, "taken is no folder");
    assert_fails(invar_path_check_creatable(in_work("taken/b")), INVAR_E_IO, "taken is no folder");
    assert_fails(invar_path_check_writable(in_work("taken/b")), INVAR_E_IO, "taken is no folder");
    assert_fails(invar_path_check_folder(in_work("nowhere-else/b")), INVAR_E_IO, "is no folder");
    assert_fails(invar_path_check_folder("/proc/x"), INVAR_E_IO, "/proc/x: cannot be written");
    assert_ok(invar_path_nearest_existing(existing, in_work("taken/b/c")));
    assert_string_equal(existing, file);
    assert_ok(invar_path_nearest_existing(existing, "none/of/these"));
    assert_string_equal(existing, ".");
}

static void test_base_file__rejects_large_and_irregular_files(void **state)
{
    const char *path = in_work("ten"), *pipe = in_work("pipe");
    char *got = work;
    size_t size = 7;

    (void)state;
    assert_ok(invar_file_write(path, "0123456789", 10));
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_fails(invar_file_read(&got, &size, path, 9), INVAR_E_INVALID,
                 "ten: the file has 10 bytes, 9 are allowed");
    assert_null(got);
    assert_int_equal(size, 0);
    assert_fails(invar_file_read(&got, &size, in_work("none"), 9), INVAR_E_NOTFOUND,
                 "none: cannot be opened: no such file");
    assert_fails(invar_file_read(&got, &size, work, 9), INVAR_E_INVALID, "a folder, not a file");
    assert_fails(invar_file_read(&got, &size, pipe, 9), INVAR_E_INVALID, "not a file");
    assert_ok(invar_file_read(&got, &size, path, 10));
    invar_free(got);
}

/* Adds the bytes of each chunk to *payload; fails if it is negative. */
static invar_status count_chunk(void *payload, const void *chunk, size_t bytes)
{
    int64_t *count = payload;

    if (*count < 0)
        return INVAR_FAIL(INVAR_E_STATE, 0, "not this one");
    *count += (int64_t)bytes;
    return chunk ? INVAR_OK : INVAR_FAIL(INVAR_E_STATE, 0, "no piece");
}

static void test_base_file__hashes_files_of_any_size(void **state)
{
    const size_t sizes[] = {0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (5 << 20) + 7};
    const char *path = in_work("hashed");
    char *data = malloc(sizes[5]);
    invar_digest expected, got;
    int64_t bytes = 7;

    (void)state;
    assert_non_null(data);
    for (size_t i = 0; i < sizes[5]; i++)
        data[i] = (char)invar_test_random(9, i / 4);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_ok(invar_file_write(path, data, sizes[i]));
        invar_hash_bytes(&expected, data, sizes[i]);
        assert_ok(invar_file_hash(&got, &bytes, path));
        assert_int_equal(bytes, sizes[i]);
        assert_true(invar_digest_equal(&got, &expected));
    }
    free(data);
    int fd = open(path, O_RDONLY);
    int64_t count = 0;
    assert_ok(invar_fd_hash(&got, &bytes, fd, path, count_chunk, &count));
    assert_int_equal(count, sizes[5]);
    assert_true(invar_digest_equal(&got, &expected));
    count = -1;
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_fails(invar_fd_hash(&got, &bytes, fd, path, count_chunk, &count), INVAR_E_STATE,
                 "not this one");
    close(fd);
    assert_fails(invar_file_hash(&got, &bytes, in_work("none")), INVAR_E_NOTFOUND,
                 "none: cannot be opened: no such file");
    assert_fails(invar_file_hash(&got, &bytes, work), INVAR_E_INVALID, "a folder, not a file");
    assert_int_equal(mkfifo(in_work("hashed pipe"), 0600), 0);
    assert_fails(invar_file_hash(&got, &bytes, in_work("hashed pipe")), INVAR_E_INVALID,
                 "not a file");
}

/* Reads a pipe into which another process writes `bytes` times an 'x'. */
static void assert_stream(size_t bytes, size_t max_bytes, invar_status expected)
{
    const char *path = in_work("stream");
    char *got;
    size_t size;
    pid_t child;
    int code;

    assert_int_equal(mkfifo(path, 0600), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        FILE *out = fopen(path, "w");
        for (size_t i = 0; i < bytes; i++)
            fputc('x', out);
        _exit(fclose(out) == 0 ? 0 : 1);
    }
    assert_int_equal(invar_file_read_stream(&got, &size, path, max_bytes), expected);
    if (expected == INVAR_OK) {
        assert_int_equal(size, bytes);
        assert_int_equal(strspn(got, "x"), bytes);
        invar_free(got);
    } else {
        assert_null(got);
        assert_non_null(strstr(invar_error_last()->message, "stream: more than the "));
        invar_error_clear();
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(unlink(path), 0);
}

static void test_base_file__reads_streams_up_to_a_limit(void **state)
{
    char *got;
    size_t size;

    (void)state;
    assert_ok(invar_file_write(in_work("plain"), "abc", 3));
    assert_ok(invar_file_read_stream(&got, &size, in_work("plain"), 3));
    assert_int_equal(size, 3);
    assert_string_equal(got, "abc");
    invar_free(got);
    assert_stream(0, 10, INVAR_OK);
    assert_stream(300000, 300000, INVAR_OK);
    assert_stream(300000, 299999, INVAR_E_INVALID);
    assert_fails(invar_file_read_stream(&got, &size, in_work("none"), 9), INVAR_E_NOTFOUND,
                 "none: cannot be opened");
    assert_fails(invar_file_read_stream(&got, &size, work, 9), INVAR_E_IO, "cannot be read");
}

static void test_base_file__a_failed_write_leaves_the_old_file(void **state)
{
    const char *path = in_work("kept"), *folder = in_work("folder");
    invar_file_writer *writer;

    (void)state;
    assert_ok(invar_file_write(path, "old", 3));
    assert_ok(invar_file_writer_open(&writer, path));
    assert_ok(invar_file_writer_put(writer, "half", 4));
    assert_true(invar_path_exists(in_work("kept.invar-tmp")));
    invar_file_writer_close(writer); // no commit
    invar_file_writer_close(NULL);
    assert_content(path, "old", 3);
    assert_false(invar_path_exists(in_work("kept.invar-tmp")));
    assert_ok(invar_held_folder_make(folder));
    assert_fails(invar_file_write(folder, "x", 1), INVAR_E_IO, "cannot be put in place");
    assert_false(invar_path_exists(in_work("folder.invar-tmp")));
    assert_fails(invar_file_write(in_work("none/file"), "x", 1), INVAR_E_NOTFOUND,
                 "none/file: cannot be made");
}

/* A limit on the size of files stands in for a full disk. */
static void test_base_file__a_full_disk_is_an_error(void **state)
{
    static char data[5000];
    const char *path = in_work("full");
    int result;
    pid_t child;

    (void)state;
    assert_ok(invar_file_write(path, "old", 3));
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit = {4096, 4096};
        invar_status status;

        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        status = invar_file_write(path, data, sizeof data);
        _exit(status == INVAR_E_IO && strstr(invar_error_last()->message, "cannot be written") ? 0
                                                                                               : 1);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    assert_content(path, "old", 3);
    assert_false(invar_path_exists(in_work("full.invar-tmp")));
}

static void test_base_file__a_link_in_place_of_the_partial_file_is_not_followed(void **state)
{
    const char *target = in_work("target"), *path = in_work("led");

    (void)state;
    assert_ok(invar_file_write(target, "mine", 4));
    assert_int_equal(symlink(target, in_work("led.invar-tmp")), 0);
    assert_ok(invar_file_write(path, "other", 5));
    assert_content(target, "mine", 4);
    assert_content(path, "other", 5);
}

/* ---- signals --------------------------------------------------------------------------------- */

static void test_base_file__syncs_again_after_a_signal(void **state)
{
    (void)state;
    interruptions = 3;
    assert_ok(invar_file_write(in_work("interrupted"), "whole", 5));
    assert_int_equal(interruptions, 0);
    assert_content(in_work("interrupted"), "whole", 5);
}

static void on_alarm(int number)
{
    (void)number;
    interruptions--;
}

/* Opening a pipe blocks until a writer opens it. A timer interrupts the open meanwhile. */
static void test_base_file__opens_again_after_a_signal(void **state)
{
    const struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval timer = {{0, 10000}, {0, 10000}}, off = {0};
    const char *path = in_work("late-pipe");
    pid_t child;
    char *got;
    size_t bytes;
    int result;

    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        FILE *end;

        usleep(200000);
        end = fopen(path, "w");
        _exit(end && fputs("late", end) >= 0 && fclose(end) == 0 ? 0 : 1);
    }
    interruptions = 0;
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &timer, NULL), 0);
    assert_ok(invar_file_read_stream(&got, &bytes, path, 100));
    assert_int_equal(setitimer(ITIMER_REAL, &off, NULL), 0);
    assert_true(interruptions < 0); // at least one alarm came
    interruptions = 0;
    assert_string_equal(got, "late");
    invar_free(got);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
}

/* ---- paths ----------------------------------------------------------------------------------- */

static void test_base_file__detects_two_names_of_one_folder(void **state)
{
    char folder[600], link[600], missing[600], slashes[610];

    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/one", work);
    (void)snprintf(link, sizeof link, "%s/one.link", work);
    (void)snprintf(missing, sizeof missing, "%s/gone", work);
    (void)snprintf(slashes, sizeof slashes, "%s//", missing);
    assert_ok(invar_held_folder_make(folder));
    assert_int_equal(symlink(folder, link), 0);
    assert_true(invar_path_same(folder, link));
    assert_false(invar_path_same(folder, work));
    assert_true(invar_path_same(missing, slashes));
    assert_false(invar_path_same(missing, folder));
    assert_int_equal(invar_path_length(slashes), strlen(missing));
    assert_int_equal(invar_path_length("///"), 1);
}

static void test_base_file__joins_paths(void **state)
{
    char out[8], longer[INVAR_PATH_SIZE + 8];

    (void)state;
    assert_ok(invar_path_join(out, sizeof out, "abc", "def"));
    assert_string_equal(out, "abc/def");
    assert_ok(invar_path_join(out, sizeof out, "abc/", "de"));
    assert_string_equal(out, "abc/de");
    assert_ok(invar_path_join(out, sizeof out, "/", "a"));
    assert_string_equal(out, "/a");
    assert_ok(invar_path_join(out, sizeof out, "", "a"));
    assert_string_equal(out, "a");
    assert_fails(invar_path_join(out, sizeof out, "abcd", "def"), INVAR_E_INVALID, "longer than");
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_fails(invar_file_write(longer, "", 0), INVAR_E_INVALID, "longer than 4095 bytes");
    assert_fails(invar_held_folder_make(longer), INVAR_E_INVALID, "longer than 4095 bytes");
}

static void test_base_file__escapes_paths_in_messages(void **state)
{
    char shown[INVAR_PATH_SHOWN_SIZE], path[INVAR_PATH_SHOWN_SIZE + 200];

    (void)state;
    invar_path_show(shown, "a\n\x1B[2Jb\xFF");
    assert_string_equal(shown, "a??[2Jb?");
    memset(path, 'x', sizeof path);
    path[900] = '\0';
    invar_path_show(shown, path);
    assert_string_equal(shown, path);
    path[900] = 'x';
    memcpy(path + sizeof path - 9, "/end.txt", 9);
    invar_path_show(shown, path);
    assert_memory_equal(shown, "...xxx", 6);
    assert_string_equal(shown + strlen(shown) - 8, "/end.txt");
}

/* ---- folders --------------------------------------------------------------------------------- */

/* If a relative path does not exist, the message has the absolute one too. */
static void test_base_file__reports_absolute_path_of_missing_files(void **state)
{
    char folder[INVAR_PATH_SIZE], expected[INVAR_PATH_SIZE + 64], hint[INVAR_PATH_HINT_SIZE];
    char long_path[INVAR_PATH_SIZE], *text;
    size_t bytes;

    (void)state;
    assert_non_null(getcwd(folder, sizeof folder));
    snprintf(expected, sizeof expected,
             "absent/x: cannot be opened: no such file or folder (%s/absent/x)", folder);
    assert_fails(invar_file_read(&text, &bytes, "absent/x", 10), INVAR_E_NOTFOUND, expected);
    assert_fails(invar_file_read(&text, &bytes, "/absent/x", 10), INVAR_E_NOTFOUND,
                 "/absent/x: cannot be opened: no such file or folder");
    assert_null(strchr(invar_error_last()->message, '('));
    assert_int_equal(chdir("/"), 0);
    invar_path_absolute_hint(hint, "a\nb");
    assert_int_equal(chdir(folder), 0);
    assert_string_equal(hint, " (/a?b)");
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    invar_path_absolute_hint(hint, long_path); // too long for an absolute path
    assert_string_equal(hint, "");
    long_path[2000] = '\0';
    invar_path_absolute_hint(hint, long_path);
    assert_in_range(strlen(hint), 200, INVAR_PATH_HINT_SIZE - 1);
}

static void test_base_file__makes_and_removes_folders(void **state)
{
    const char *outside = in_work("outside");

    (void)state;
    assert_ok(invar_held_folder_make(in_work("a/b//c/")));
    assert_ok(invar_held_folder_make(in_work("a/b/c")));
    assert_ok(invar_file_write(in_work("a/b/c/file"), "x", 1));
    assert_fails(invar_held_folder_make(in_work("a/b/c/file")), INVAR_E_IO, "is not a folder");
    assert_fails(invar_held_folder_make(in_work("a/b/c/file/d")), INVAR_E_IO, "file: it exists");
    assert_ok(invar_file_write(outside, "stays", 5));
    assert_int_equal(symlink(outside, in_work("a/link")), 0);
    assert_int_equal(symlink(work, in_work("a/b/up")), 0);
    assert_ok(invar_held_folder_sync(in_work("a")));
    assert_ok(invar_held_folder_remove(in_work("a")));
    assert_false(invar_path_exists(in_work("a")));
    assert_content(outside, "stays", 5);
    assert_ok(invar_held_folder_remove(in_work("a")));
    assert_fails(invar_held_folder_remove(outside), INVAR_E_INVALID, "is no folder");
    assert_fails(invar_held_folder_sync(in_work("a")), INVAR_E_NOTFOUND, "a: cannot be opened");
}

static void test_base_file__syncs_the_parents_of_a_new_folder(void **state)
{
    (void)state;
    n_synced = 0;
    assert_ok(invar_held_folder_make(in_work("new/folder/deep/")));
    assert_true(was_synced(work));
    assert_true(was_synced(in_work("new")));
    assert_true(was_synced(in_work("new/folder")));
    n_synced = 0;
    assert_ok(invar_held_folder_make(in_work("new/folder")));
    assert_int_equal(n_synced, 0); // all folders existed
}

static void test_base_file__finds_a_folder_that_was_moved(void **state)
{
    invar_held_folder held;

    (void)state;
    assert_fails(invar_held_folder_open(&held, in_work("held")), INVAR_E_NOTFOUND, "held");
    invar_held_folder_release(&held);
    assert_ok(invar_held_folder_make(in_work("held")));
    assert_ok(invar_held_folder_open(&held, in_work("held")));
    assert_ok(invar_held_folder_refresh(&held));
    assert_string_equal(held.path, in_work("held"));
    assert_int_equal(rename(in_work("held"), in_work("moved")), 0);
    assert_ok(invar_held_folder_make(in_work("held"))); // a new folder under the old name
    assert_ok(invar_held_folder_refresh(&held));
    assert_true(strlen(held.path) > 6 && strcmp(strrchr(held.path, '/'), "/moved") == 0);
    assert_ok(invar_held_folder_remove(in_work("moved")));
    assert_fails(invar_held_folder_refresh(&held), INVAR_E_STATE, "moved: the folder was removed");
    invar_held_folder_release(&held);
    invar_held_folder_release(&held);
}

/* The folder moves between the two calls by which its path is determined. */
static void test_base_file__finds_a_folder_that_moves_meanwhile(void **state)
{
    static const int counts[] = {2, 4, 50}; // an even number, so that the folder ends as "there"
    invar_held_folder held;

    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        assert_ok(invar_held_folder_make(in_work("here")));
        assert_ok(invar_held_folder_open(&held, in_work("here")));
        assert_int_equal(rename(in_work("here"), in_work("there")), 0);
        moves = counts[i];
        assert_ok(invar_held_folder_refresh(&held));
        assert_int_equal(moves, 0);
        assert_true(strlen(held.path) > 6 && strcmp(strrchr(held.path, '/'), "/there") == 0);
        invar_held_folder_release(&held);
        assert_ok(invar_held_folder_remove(in_work("there")));
    }
}

/* Renames a folder there and back until this process is killed; ends if a rename fails. */
static void keep_moving(atomic_int *renames, const char *first_path, const char *second_path)
{
    bool moved = false;

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        _exit(1);
    for (;;) {
        if (rename(moved ? second_path : first_path, moved ? first_path : second_path) != 0)
            _exit(1);
        moved = !moved;
        atomic_fetch_add(renames, 1);
    }
}

/*
 * Another process keeps renaming the folder while its path is determined. It counts its renames in
 * shared memory, and the test ends after a thousand of them.
 */
static void test_base_file__finds_a_folder_that_is_being_moved(void **state)
{
    char first_path[INVAR_PATH_SIZE], second_path[INVAR_PATH_SIZE];
    struct stat is, held_stat;
    atomic_int *renames =
        mmap(NULL, sizeof *renames, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    invar_held_folder held;
    int end = 0;
    pid_t mover;

    (void)state;
    assert_ptr_not_equal(renames, MAP_FAILED);
    (void)snprintf(first_path, sizeof first_path, "%s", in_work("here"));
    (void)snprintf(second_path, sizeof second_path, "%s", in_work("there"));
    assert_ok(invar_held_folder_make(first_path));
    assert_ok(invar_held_folder_open(&held, first_path));
    mover = fork();
    assert_true(mover >= 0);
    if (mover == 0)
        keep_moving(renames, first_path, second_path);
    for (int i = 0; i < 20000 || atomic_load(renames) < 1000; i++) {
        const char *name;
        assert_ok(invar_held_folder_refresh(&held));
        name = strrchr(held.path, '/');
        assert_true(name && (strcmp(name, "/here") == 0 || strcmp(name, "/there") == 0));
        if (i >= 20000) // a mover that failed makes no more renames
            assert_int_equal(waitpid(mover, &end, WNOHANG), 0);
    }
    assert_int_equal(kill(mover, SIGKILL), 0);
    assert_int_equal(waitpid(mover, &end, 0), mover);
    assert_true(WIFSIGNALED(end) && WTERMSIG(end) == SIGKILL); // every rename succeeded
    assert_ok(invar_held_folder_refresh(&held));
    assert_int_equal(stat(held.path, &is), 0);
    assert_int_equal(fstat(held.fd, &held_stat), 0);
    assert_true(is.st_ino == held_stat.st_ino && is.st_dev == held_stat.st_dev);
    invar_held_folder_release(&held);
    assert_int_equal(munmap(renames, sizeof *renames), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_file__writes_and_reads_back),
        cmocka_unit_test(test_base_file__output_replaces_its_own_kind_only),
        cmocka_unit_test(test_base_file__output_replaces_regular_files_only),
        cmocka_unit_test(test_base_file__checks_outputs_in_a_run_folder),
        cmocka_unit_test(test_base_file__checks_the_parents_of_a_folder),
        cmocka_unit_test(test_base_file__rejects_large_and_irregular_files),
        cmocka_unit_test(test_base_file__hashes_files_of_any_size),
        cmocka_unit_test(test_base_file__reads_streams_up_to_a_limit),
        cmocka_unit_test(test_base_file__a_failed_write_leaves_the_old_file),
        cmocka_unit_test(test_base_file__a_full_disk_is_an_error),
        cmocka_unit_test(test_base_file__a_link_in_place_of_the_partial_file_is_not_followed),
        cmocka_unit_test(test_base_file__syncs_again_after_a_signal),
        cmocka_unit_test(test_base_file__opens_again_after_a_signal),
        cmocka_unit_test(test_base_file__syncs_the_parents_of_a_new_folder),
        cmocka_unit_test(test_base_file__detects_two_names_of_one_folder),
        cmocka_unit_test(test_base_file__joins_paths),
        cmocka_unit_test(test_base_file__escapes_paths_in_messages),
        cmocka_unit_test(test_base_file__reports_absolute_path_of_missing_files),
        cmocka_unit_test(test_base_file__makes_and_removes_folders),
        cmocka_unit_test(test_base_file__finds_a_folder_that_was_moved),
        cmocka_unit_test(test_base_file__finds_a_folder_that_moves_meanwhile),
        cmocka_unit_test(test_base_file__finds_a_folder_that_is_being_moved),
    };

    return cmocka_run_group_tests(tests, make_work, remove_work);
}
