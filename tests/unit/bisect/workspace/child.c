/*
 * child.c - tests of invar_child_run with children that misbehave.
 *
 * Children crash, hang, ignore SIGTERM, write gigabytes, leave processes behind or cannot be
 * started; one test kills the parent. The result must describe the end, the log stays bounded, and
 * no process of the child remains. Control: a bystander process survives the cleanup.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // O_PATH and the like

#include "bisect/workspace/child.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/process/process.h"
#include "bisect/workspace/process_tag.h"
#include "tests/child_pids.h"
#include "tests/support.h"

#define LONG_TIMEOUT 60.0 /* seconds; longer than any child of these tests needs */

static char work_folder[] = INVAR_TEST_WORK "/child-XXXXXX";
static char log_path[sizeof work_folder + 16];

/* ---- helpers --------------------------------------------------------------------------------- */

/* Runs `script` with the other settings of the request. */
static invar_child_result run_train_pairs(invar_child_request request, const char *script)
{
    const char *words[] = {"sh", "-c", script, NULL};
    invar_child_result result;

    request.words = words;
    request.lock = request.lock ? request.lock : -1;
    assert_ok(invar_child_run(&result, &request));
    return result;
}

static invar_child_result run_script(const char *script)
{
    return run_train_pairs((invar_child_request){.log = log_path, .timeout = LONG_TIMEOUT}, script);
}

/* Returns the log. The caller frees it with invar_free. */
static char *read_log(size_t *bytes_out)
{
    size_t bytes;
    char *text;

    assert_ok(invar_file_read(&text, &bytes, log_path, 16u << 20));
    if (bytes_out)
        *bytes_out = bytes;
    return text;
}

static void assert_log(const char *expected)
{
    char *text = read_log(NULL);

    assert_string_equal(text, expected);
    invar_free(text);
}

/* Waits for a script to write a process id to a file of the work folder, and returns it. */
static pid_t read_pid(const char *name)
{
    char path[sizeof work_folder + 32];

    snprintf(path, sizeof path, "%s/%s", work_folder, name);
    return invar_test_read_pid(path);
}

static void assert_no_child(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

/* ---- children that end normally -------------------------------------------------------------- */

static void test_child__tells_how_it_ended(void **state)
{
    char reason[INVAR_CHILD_REASON_SIZE];
    invar_child_result r = run_script("echo out; echo err >&2; printf '  \\n\\n'; exit 3");

    (void)state;
    assert_int_equal(r.end, INVAR_CHILD_EXITED);
    assert_int_equal(r.code, 3);
    assert_false(r.killed);
    assert_int_equal(r.output_bytes, 12);
    assert_true(r.peak_bytes > 100000);
    assert_log("out\nerr\n  \n\n");
    invar_child_describe(reason, &r, 0);
    assert_string_equal(reason, "exit code 3: err");

    r = run_script("kill -SEGV $$");
    assert_int_equal(r.end, INVAR_CHILD_SIGNALLED);
    assert_int_equal(r.code, SIGSEGV);
    invar_child_describe(reason, &r, 0);
    assert_string_equal(reason, "killed by signal 11, SIGSEGV");

    r = run_script("true");
    assert_int_equal(r.code, 0);
    assert_string_equal(r.last_words, "");
    assert_log("");
    assert_no_child();
}

static void test_child__last_words_are_harmless(void **state)
{
    invar_child_result r = run_script("printf 'one\\nbar 50%%\\rbar\\033[31m \\377 end\\r\\n'");

    (void)state;
    assert_string_equal(r.last_words, "bar?[31m ? end");
    // A long message keeps its beginning and its end, so the path stays readable.
    r = run_script("printf 'no file: /%0700d/end: No such file or directory\\n' 0");
    assert_non_null(strstr(r.last_words, "0/end: No such file or directory"));
    assert_memory_equal(r.last_words, "no file: /0", 11);
    r = run_script("head -c 5000 /dev/zero | tr '\\000' x");
    assert_int_equal(strlen(r.last_words), INVAR_CHILD_WORDS_SIZE - 1);
}

static void test_child__has_the_environment_and_folder_that_were_asked_for(void **state)
{
    static const char *const environment[] = {"CHILD_A=1", "CHILD_B",    "CHILD_P*",
                                              "CHILD_A=2", "CHILD_PX=x", NULL};
    invar_child_result r;

    (void)state;
    setenv("CHILD_B", "b", 1);
    setenv("CHILD_PA", "p", 1);
    setenv("CHILD_C", "c", 1);
    r = run_train_pairs(
        (invar_child_request){
            .log = log_path, .folder = "/", .environment = environment, .timeout = LONG_TIMEOUT},
        "echo $CHILD_A,$CHILD_B,$CHILD_PA,$CHILD_PX,$CHILD_C; pwd; cat; "
        "env | grep -c '^CHILD_A='; env | grep -c '^INVAR_CHILD='");
    assert_int_equal(r.code, 0);
    assert_log("2,,,x,c\n/\n1\n1\n");
    assert_string_equal(getenv("CHILD_B"), "b"); // the parent's environment is unchanged
}

static void test_child__inherits_no_signals_and_no_descriptors(void **state)
{
    int open_one = open("/dev/null", O_RDONLY); // a descriptor that exec does not close
    sigset_t some, before;
    invar_child_result r;
    int lock;

    (void)state;
    lock = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    sigprocmask(SIG_BLOCK, &some, &before);
    r = run_train_pairs(
        (invar_child_request){.log = log_path, .lock = lock, .timeout = LONG_TIMEOUT},
        "grep -E '^Sig(Blk|Ign)' /proc/self/status | cut -f2 | sort -u; "
        "ls -l /proc/self/fd | grep -c -E ' (0 -> /dev/null|1 -> pipe:.*|2 -> pipe:.*)$'; "
        "ls -l /proc/self/fd | grep -c /dev/zero; "
        "ls /proc/self/fd | wc -l; " // 0, 1, 2, the lock and the listed folder
        "[ $$ = $(cut -d' ' -f5 /proc/$$/stat) ] && echo leader");
    sigprocmask(SIG_SETMASK, &before, NULL);
    signal(SIGPIPE, SIG_DFL);
    close(lock);
    close(open_one);
    assert_int_equal(r.code, 0);
    assert_log("0000000000000000\n3\n1\n5\nleader\n");
}

/* Returns whether a process may turn the randomization of its addresses off; tried in a child. */
static bool can_fix_addresses(void)
{
    pid_t child = fork();
    int end;

    assert_true(child >= 0);
    if (child == 0) {
        int now = personality(0xffffffff);
        _exit(now == -1 || personality((unsigned long)now | ADDR_NO_RANDOMIZE) == -1);
    }
    assert_int_equal(waitpid(child, &end, 0), child);
    assert_true(WIFEXITED(end));
    return WEXITSTATUS(end) == 0;
}

/*
 * Two runs with same_addresses have equal addresses; the test is skipped if this process may not
 * turn the randomization off. Control: a run without it has others.
 */
static void test_child__can_have_the_same_addresses(void **state)
{
    char *text[3];

    (void)state;
    if (!can_fix_addresses())
        skip();
    for (int i = 0; i < 3; i++) {
        run_train_pairs((invar_child_request){.log = log_path,
                                              .timeout = LONG_TIMEOUT,
                                              .same_addresses = i < 2},
                        "grep stack /proc/self/maps");
        text[i] = read_log(NULL);
    }
    assert_true(text[0][0] != '\0');
    assert_string_equal(text[0], text[1]);
    if (!(personality(0xffffffff) & ADDR_NO_RANDOMIZE)) // set by some sanitizers
        assert_string_not_equal(text[0], text[2]);
    for (int i = 0; i < 3; i++)
        invar_free(text[i]);
}

/* ---- children that cannot be started --------------------------------------------------------- */

static void test_child__missing_program_is_a_result(void **state)
{
    const char *words[] = {"/no/such/program", NULL};
    char deep[200] = "", reason[INVAR_CHILD_REASON_SIZE];
    invar_child_result r;

    (void)state;
    assert_ok(invar_child_run(&r, &(invar_child_request){.words = words, .lock = -1}));
    assert_int_equal(r.end, INVAR_CHILD_MISSING);
    assert_int_equal(r.code, ENOENT);
    invar_child_describe(reason, &r, 0);
    assert_string_equal(reason, "cannot be run: /no/such/program: No such file or directory");
    (void)memset(deep, 'd', sizeof deep - 1);
    deep[0] = '/';
    words[0] = deep;
    assert_ok(invar_child_run(&r, &(invar_child_request){.words = words, .lock = -1}));
    assert_memory_equal(r.last_words, deep, sizeof deep - 1);
    words[0] = "invar-no-such-program-in-the-path";
    assert_ok(invar_child_run(&r, &(invar_child_request){.words = words, .lock = -1}));
    assert_int_equal(r.end, INVAR_CHILD_MISSING);
    words[0] = "/etc/passwd";
    assert_ok(invar_child_run(&r, &(invar_child_request){.words = words, .lock = -1}));
    assert_int_equal(r.end, INVAR_CHILD_MISSING);
    assert_int_equal(r.code, EACCES);
    words[0] = "true";
    assert_fails(
        invar_child_run(&r, &(invar_child_request){.words = words, .lock = -1, .folder = "/no"}),
        INVAR_E_IO, "/no: nothing can be run there");
    assert_no_child();
}

static void test_child__log_that_cannot_be_written_is_an_error(void **state)
{
    const char *words[] = {"sh", "-c", "echo $$ >\"$OUT\"; yes", NULL};
    char out[sizeof work_folder + 32], missing[sizeof work_folder + 32];
    const char *environment[] = {out, NULL};
    invar_child_request request = {.words = words,
                                   .log = "/dev/full",
                                   .lock = -1,
                                   .environment = environment,
                                   .timeout = LONG_TIMEOUT};
    invar_child_result r;

    (void)state;
    snprintf(out, sizeof out, "OUT=%s/full", work_folder);
    assert_fails(invar_child_run(&r, &request), INVAR_E_IO,
                 "/dev/full: the log cannot be written: No space left on device");
    assert_true(invar_test_wait_exit(read_pid("full")));
    snprintf(missing, sizeof missing, "%s/none/log", work_folder);
    request.log = missing;
    assert_fails(invar_child_run(&r, &request), INVAR_E_IO, "the log cannot be written");
    assert_no_child();
}

/* ---- much output ----------------------------------------------------------------------------- */

static void assert_kept(const char *script, size_t total)
{
    const size_t half = INVAR_CHILD_LOG_BYTES / 2;
    invar_child_result r = run_script(script);
    char line[96] = "";
    size_t bytes, extra = 0;
    char *text = read_log(&bytes);

    assert_int_equal(r.code, 0);
    assert_int_equal(r.output_bytes, (int64_t)total);
    if (total > 2 * half)
        extra = (size_t)snprintf(line, sizeof line, "\n[%zu bytes are left out here]\n",
                                 total - 2 * half);
    assert_int_equal(bytes, total > 2 * half ? 2 * half + extra : total);
    for (size_t i = 0; i < bytes; i++) { // the script repeats ten digits
        size_t at = i < half || !extra ? i : i < half + extra ? 0 : i - extra + total - 2 * half;
        char expected = i >= half && i < half + extra ? line[i - half] : (char)('0' + at % 10);
        if (text[i] != expected)
            fail_msg("byte %zu of %zu is %d, not %d", i, bytes, text[i], expected);
    }
    invar_free(text);
}

#define DIGITS(total) "yes 0123456789 | tr -d '\\n' | head -c " #total

static void test_child__long_output_keeps_both_ends(void **state)
{
    (void)state;
    assert_kept(DIGITS(1048575), 1048575);
    assert_kept(DIGITS(1048576), 1048576);
    assert_kept(DIGITS(1048577), 1048577);
    assert_kept(DIGITS(2097151), 2097151);
    assert_kept(DIGITS(2097152), 2097152);
    assert_kept(DIGITS(2097153), 2097153);
    assert_kept(DIGITS(3500000), 3500000);
}

static void test_child__garbage_without_end_is_bounded(void **state)
{
    const int64_t total = invar_test_count(100000000, 1000000000);
    char script[128];
    invar_child_result r;
    struct stat info;

    (void)state;
    snprintf(script, sizeof script, "head -c %lld /dev/urandom; echo; echo the end",
             (long long)total);
    r = run_script(script);
    assert_int_equal(r.code, 0);
    assert_int_equal(r.output_bytes, total + 9);
    assert_string_equal(r.last_words, "the end");
    assert_int_equal(stat(log_path, &info), 0);
    assert_true(info.st_size < INVAR_CHILD_LOG_BYTES + 100);
    // The timeout also ends a child that never stops writing.
    r = run_train_pairs((invar_child_request){.log = log_path, .timeout = 0.3}, "yes");
    assert_int_equal(r.end, INVAR_CHILD_TIMED_OUT);
    assert_true(r.seconds < 30);
}

/* ---- children that do not end ---------------------------------------------------------------- */

static void test_child__ends_in_time(void **state)
{
    char reason[INVAR_CHILD_REASON_SIZE];
    invar_child_result r = run_train_pairs((invar_child_request){.log = log_path, .timeout = 0.2},
                                           "echo waiting; exec sleep 1000");

    (void)state;
    assert_int_equal(r.end, INVAR_CHILD_TIMED_OUT);
    assert_int_equal(r.code, 128 + SIGTERM);
    assert_true(r.seconds >= 0.2 && r.seconds < 30);
    invar_child_describe(reason, &r, 0.2);
    assert_string_equal(reason, "no end within 0.2 s: waiting");

    // A child that cleans up on SIGTERM has kill_grace_s for it, and so have its own children.
    r = run_train_pairs(
        (invar_child_request){.log = log_path, .timeout = 0.3, .kill_grace_s = LONG_TIMEOUT},
        "sh -c 'trap \"sleep 0.2; echo clean; exit 4\" TERM; while :; do sleep 0.01; done'");
    assert_int_equal(r.end, INVAR_CHILD_TIMED_OUT);
    assert_false(r.killed);
    assert_string_equal(r.last_words, "clean");

    r = run_train_pairs((invar_child_request){.log = log_path, .timeout = 0.1, .kill_grace_s = 0.1},
                        "trap '' TERM; while :; do sleep 0.01; done");
    assert_int_equal(r.end, INVAR_CHILD_TIMED_OUT);
    assert_true(r.killed);
    assert_int_equal(r.code, 128 + SIGKILL);
    assert_no_child();
}

static void test_child__stops_when_told(void **state)
{
    volatile sig_atomic_t stop = 1;
    invar_child_result r = run_train_pairs((invar_child_request){.stop = &stop}, "sleep 1000");

    (void)state;
    assert_int_equal(r.end, INVAR_CHILD_STOPPED);
    stop = 0;
    r = run_train_pairs((invar_child_request){.stop = &stop}, "exit 5");
    assert_int_equal(r.end, INVAR_CHILD_EXITED);
    assert_int_equal(r.code, 5);
}

typedef struct call_counter {
    int calls, enough;
} call_counter;

static bool count_calls(void *payload)
{
    call_counter *w = payload;

    return ++w->calls == w->enough;
}

static void test_child__ends_when_enough_was_seen(void **state)
{
    call_counter w = {.enough = 3};
    invar_child_request request = {
        .should_stop = count_calls, .payload = &w, .kill_grace_s = LONG_TIMEOUT};
    invar_child_result r =
        run_train_pairs(request, "trap 'exit 0' TERM; while :; do sleep 0.01; done");

    (void)state;
    assert_int_equal(r.end, INVAR_CHILD_ENDED_EARLY);
    assert_int_equal(r.code, 0);
    assert_int_equal(w.calls, 4); // the fourth call follows the end of the child
    w = (call_counter){.enough = -1};
    // Closes its output, but continues.
    r = run_train_pairs(request, "exec >/dev/null 2>&1; sleep 0.2; exit 7");
    assert_int_equal(r.end, INVAR_CHILD_EXITED);
    assert_int_equal(r.code, 7);
    assert_true(w.calls > 1);
}

/* ---- processes that children leave behind ---------------------------------------------------- */

static void test_child__leaves_nothing_behind(void **state)
{
    char script[512];
    invar_child_result r;

    (void)state;
    // Two processes with the output open: one in the child's process group, one in its own session.
    snprintf(script, sizeof script,
             "sleep 1000 & echo $! >%s/same; setsid sh -c 'echo $$ >%s/other; exec sleep 1000' & "
             "while [ ! -s %s/other ]; do :; done; echo done",
             work_folder, work_folder, work_folder);
    r = run_script(script);
    assert_int_equal(r.end, INVAR_CHILD_EXITED);
    assert_true(r.seconds < 30);
    assert_log("done\n");
    assert_true(invar_test_wait_exit(read_pid("same")));
    assert_true(invar_test_wait_exit(read_pid("other")));

    // A job in a session of its own, as some build tools start it, when the timeout ends the child.
    snprintf(script, sizeof script,
             "setsid sh -c 'echo $$ >%s/job; exec sleep 1000' >/dev/null 2>&1 & "
             "while [ ! -s %s/job ]; do :; done; sleep 1000",
             work_folder, work_folder);
    r = run_train_pairs((invar_child_request){.timeout = 1}, script);
    assert_int_equal(r.end, INVAR_CHILD_TIMED_OUT);
    assert_true(invar_test_wait_exit(read_pid("job")));
    assert_no_child();
}

/*
 * If the parent is killed, the kernel kills the child, and a sweep kills the child's processes.
 */
static void test_child__does_not_outlive_us(void **state)
{
    char script[512], name[INVAR_PROCESS_TAG_SIZE], other[INVAR_PROCESS_TAG_SIZE];
    pid_t user, child, orphan, bystander;

    (void)state;
    snprintf(script, sizeof script,
             "setsid sh -c 'echo $$ >%s/orphan; exec sleep 1000' & echo $$ >%s/child; wait",
             work_folder, work_folder);
    user = fork();
    if (user == 0) {
        run_script(script);
        _exit(0);
    }
    bystander = fork();
    if (bystander == 0) {
        execlp("sleep", "sleep", "1000", (char *)NULL);
        _exit(127);
    }
    child = read_pid("child");
    orphan = read_pid("orphan");
    invar_process_tag_self(name);
    assert_true(invar_process_tag_lives(name));
    invar_process_tag_self(other);
    other[24] = other[24] == '0' ? '1' : '0'; // same pid, other start time
    assert_false(invar_process_tag_lives(other));
    assert_false(invar_process_tag_lives("garbage"));
    assert_false(invar_process_tag_lives(""));

    snprintf(other, sizeof other, "%08x", (unsigned)user);
    memcpy(name, other, 8);
    kill(user, SIGKILL);
    assert_true(invar_test_wait_exit(child));
    assert_true(invar_test_wait_exit(user)); // not reaped yet, so it is a zombie
    assert_int_equal(kill(orphan, 0), 0);
    invar_process_tag_sweep("garbage");
    invar_process_tag_sweep("");
    assert_int_equal(kill(orphan, 0), 0);
    snprintf(script, sizeof script, "/proc/%d/environ", (int)orphan);
    {
        char *text, *mark;
        size_t bytes;
        assert_ok(invar_file_read_stream(&text, &bytes, script, 1u << 20));
        for (mark = text; mark < text + bytes && strncmp(mark, "INVAR_CHILD=", 12) != 0;)
            mark += strlen(mark) + 1;
        assert_true(mark < text + bytes);
        snprintf(name, sizeof name, "%s", mark + 12);
        invar_free(text);
    }
    assert_false(invar_process_tag_lives(name));
    invar_process_tag_sweep(name);
    assert_true(invar_test_wait_exit(orphan));
    assert_int_equal(kill(bystander, 0), 0); // processes of others are not killed
    kill(bystander, SIGKILL);
    waitpid(user, NULL, 0);
    waitpid(bystander, NULL, 0);
    assert_no_child();
}

/* ---- several threads ------------------------------------------------------------------------- */

static void *run_several(void *payload)
{
    int *bad = payload;

    for (int i = 0; i < 10; i++) {
        char script[64];
        const char *words[] = {"sh", "-c", script, NULL};
        invar_child_result r;
        snprintf(script, sizeof script, "echo %d; exit %d", i, i);
        if (invar_child_run(
                &r, &(invar_child_request){.words = words, .lock = -1, .timeout = LONG_TIMEOUT}) !=
                INVAR_OK ||
            r.end != INVAR_CHILD_EXITED || r.code != i || r.last_words[0] != '0' + i)
            ++*bad;
    }
    return NULL;
}

static void test_child__threads_have_their_own(void **state)
{
    pthread_t threads[6];
    int bad[6] = {0};

    (void)state;
    for (int i = 0; i < 6; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_several, &bad[i]), 0);
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(bad[i], 0);
    }
    assert_no_child();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_child__tells_how_it_ended),
        cmocka_unit_test(test_child__last_words_are_harmless),
        cmocka_unit_test(test_child__has_the_environment_and_folder_that_were_asked_for),
        cmocka_unit_test(test_child__inherits_no_signals_and_no_descriptors),
        cmocka_unit_test(test_child__can_have_the_same_addresses),
        cmocka_unit_test(test_child__missing_program_is_a_result),
        cmocka_unit_test(test_child__log_that_cannot_be_written_is_an_error),
        cmocka_unit_test(test_child__long_output_keeps_both_ends),
        cmocka_unit_test(test_child__garbage_without_end_is_bounded),
        cmocka_unit_test(test_child__ends_in_time),
        cmocka_unit_test(test_child__stops_when_told),
        cmocka_unit_test(test_child__ends_when_enough_was_seen),
        cmocka_unit_test(test_child__leaves_nothing_behind),
        cmocka_unit_test(test_child__does_not_outlive_us),
        cmocka_unit_test(test_child__threads_have_their_own),
    };
    int rc;

    if (!mkdtemp(work_folder))
        return 1;
    snprintf(log_path, sizeof log_path, "%s/log", work_folder);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    return invar_held_folder_remove(work_folder) == INVAR_OK ? rc : 1;
}
