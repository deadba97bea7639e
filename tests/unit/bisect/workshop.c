/*
 * workshop.c - tests of slots, programs and runs: what is believed, and what a kill leaves.
 *
 * Builds are shell scripts in small repositories. The program that they make is a script, too: it
 * calls this test program, which then plays `invar train` (see play).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // memmem

#include "bisect/workshop/workshop.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "bisect/workshop/user.h"
#include "ledger/ledger.h"
#include "tests/ledger.h"
#include "tests/pids.h"
#include "tests/support.h"

#define SLOW 60.0 /* seconds: far beyond what anything here needs */

static const char *const nowhere[] = {NULL};
static char work[] = INVAR_TEST_WORK "/workshop-XXXXXX";
static char repo_path[sizeof work + 16], shop_path[sizeof work + 16];
static char recipe_path[sizeof work + 16], disk_path[sizeof work + 16];
static char first[INVAR_OID_SIZE], second[INVAR_OID_SIZE], same_tree[INVAR_OID_SIZE];

/* ---- the program under test ------------------------------------------------------------------ */

static volatile sig_atomic_t ended;

static void on_term(int number)
{
    (void)number;
    ended = 1;
}

static const char *value_of(int argc, char **argv, const char *flag)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], flag) == 0)
            return argv[i + 1];
    }
    return NULL;
}

/* A step every 20 ms until it is told to end, as invar train does; `last`: step 2 is the last. */
static int play_forever(const char *path, bool last)
{
    invar_test_ledger spec = {.steps = 100000};
    static const struct timespec nap = {0, 20000000};
    invar_ledger *ledger;

    signal(SIGTERM, on_term);
    if (invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}) != INVAR_OK ||
        invar_test_ledger_begin(ledger, &spec) != INVAR_OK)
        return 2;
    for (int64_t step = 0; !ended; step++) {
        if (step == 2 && last)
            raise(SIGTERM);
        if (invar_test_ledger_step(ledger, &spec, 0, step) != INVAR_OK)
            return 2;
        nanosleep(&nap, NULL);
    }
    ended = invar_ledger_finish(ledger, 0, "stopped") == INVAR_OK;
    invar_ledger_close(ledger);
    return ended ? 0 : 2;
}

/* PROGRAM train RECIPE --run FOLDER ...: the flag --play says what to do. */
static int play(int argc, char **argv)
{
    const char *folder = value_of(argc, argv, "--run"), *mode = value_of(argc, argv, "--play");
    char path[4096];

    mode = mode ? mode : "steps";
    for (int i = 1; i < argc; i++)
        printf("[%s]", argv[i]);
    printf("\nenvironment %s %s\n", getenv("INVAR_LEDGER") ? "dirty" : "clean",
           getenv("EXTRA") ? getenv("EXTRA") : "none");
    fflush(stdout);
    if (!folder)
        return 129;
    snprintf(path, sizeof path, "%s/ledger.db", folder);
    if (strcmp(mode, "forever") == 0)
        return play_forever(path, false);
    if (strcmp(mode, "signalled") == 0)
        return play_forever(path, true);
    if (strcmp(mode, "silent") == 0)
        return 0;
    if (strcmp(mode, "refuse") == 0) {
        fputs("key = 1: unknown\n", stderr);
        return 129;
    }
    if (invar_test_ledger_write(path, &(invar_test_ledger){.steps = 3}) != INVAR_OK)
        return 2;
    if (strcmp(mode, "crash") == 0)
        abort();
    return strcmp(mode, "differs") == 0;
}

/* ---- helpers --------------------------------------------------------------------------------- */

/* Runs a script in `folder`, which must go well; its last word to `out` where there is one. */
static void shell(char out[INVAR_OID_SIZE], const char *folder, const char *script)
{
    static const char *const environment[] = {"GIT_CONFIG_GLOBAL=/dev/null",
                                              "GIT_CONFIG_NOSYSTEM=1",
                                              "GIT_AUTHOR_NAME=A Thor",
                                              "GIT_AUTHOR_EMAIL=a@example.org",
                                              "GIT_COMMITTER_NAME=A Thor",
                                              "GIT_COMMITTER_EMAIL=a@example.org",
                                              "GIT_AUTHOR_DATE=1700000000 +0000",
                                              "GIT_COMMITTER_DATE=1700000000 +0000",
                                              NULL};
    const char *words[] = {"sh", "-ec", script, NULL};
    invar_child_result r;

    assert_ok(invar_child_run(&r, &(invar_child_request){.words = words,
                                                         .folder = folder,
                                                         .environment = environment,
                                                         .lock = -1,
                                                         .timeout = SLOW}));
    if (r.end != INVAR_CHILD_EXITED || r.code != 0)
        fail_msg("%s: %s", script, r.last_words);
    if (out)
        snprintf(out, INVAR_OID_SIZE, "%.40s", r.last_words);
}

static char *text_of(const char *path)
{
    size_t bytes;
    char *text;

    assert_ok(invar_file_read(&text, &bytes, path, 16u << 20));
    return text;
}

static void assert_contains(const char *path, const char *what)
{
    char *text = text_of(path);

    if (!strstr(text, what))
        fail_msg("%s has no \"%s\":\n%s", path, what, text);
    invar_free(text);
}

static char *below(const char *folder, const char *name)
{
    static char path[4][INVAR_PATH_SIZE];
    static int at;

    at = (at + 1) % 4;
    assert_ok(invar_path_join(path[at], INVAR_PATH_SIZE, folder, name));
    return path[at];
}

static char *build_file(const invar_built *built)
{
    static char path[INVAR_PATH_SIZE + 8];

    snprintf(path, sizeof path, "%s.build", built->path);
    return path;
}

/* How often a build ran: each adds a line. */
static int count_builds(void)
{
    char *text;
    int lines = 0;

    if (!invar_path_exists(below(work, "builds")))
        return 0;
    text = text_of(below(work, "builds"));
    for (const char *at = text; *at; at++)
        lines += *at == '\n';
    invar_free(text);
    return lines;
}

typedef struct scene {
    invar_workshop *shop;
    invar_repo *repo;
    invar_slot slot;
} scene;

static int begin(void **state)
{
    static scene s;

    s = (scene){.slot.lock = -1};
    if (invar_folder_remove(shop_path) != INVAR_OK)
        return 1;
    unlink(below(work, "builds"));
    assert_ok(
        invar_workshop_open(&s.shop, shop_path, repo_path, (const char *const[]){repo_path, NULL}));
    assert_ok(invar_repo_open(&s.repo, repo_path));
    assert_ok(invar_slot_take(&s.slot, s.shop));
    *state = &s;
    return 0;
}

static int end(void **state)
{
    scene *s = *state;

    invar_slot_give(&s->slot);
    invar_repo_close(s->repo);
    invar_workshop_close(s->shop);
    return 0;
}

#define COUNT "echo x >>\"$BUILDS\"; "
#define BUILD                                                                                      \
    COUNT "echo building; cp program \"$INVAR_BUILD/prog\"; chmod +x \"$INVAR_BUILD/prog\""

static invar_build_plan plain_build(const char *command)
{
    return (invar_build_plan){
        .command = command, .program = "@prog", .timeout = SLOW, .threads = 2};
}

static invar_built build(scene *s, const char *commit, const char *command)
{
    invar_build_plan how = plain_build(command);
    invar_built built;

    assert_ok(invar_workshop_program(&built, s->shop, &s->slot, s->repo, commit, &how, NULL));
    return built;
}

/* ---- the folder ------------------------------------------------------------------------------ */

static void assert_place(const char *subject, const char *expected)
{
    invar_workshop *shop;
    struct stat info;

    assert_ok(invar_workshop_open(&shop, NULL, subject, (const char *const[]){repo_path, NULL}));
    assert_int_equal(strncmp(invar_workshop_folder(shop), expected, strlen(expected)), 0);
    assert_int_equal(strlen(invar_workshop_folder(shop)), strlen(expected) + 12);
    assert_int_equal(stat(invar_workshop_folder(shop), &info), 0);
    assert_int_equal(info.st_mode & 07777, 0700);
    invar_workshop_close(shop);
}

static void test_workshop__has_its_usual_place(void **state)
{
    invar_workshop *shop;
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL, place[INVAR_PATH_SIZE];

    (void)state;
    setenv("XDG_CACHE_HOME", below(work, "cache"), 1);
    snprintf(place, sizeof place, "%s/cache/invar/some_repo-", work);
    assert_place("/x/some repo/.git", place);
    assert_place("/x/some repo/", place);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", work, 1);
    snprintf(place, sizeof place, "%s/.cache/invar/_-", work);
    assert_place("/x/.", place); // no name that hides or climbs
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "", 1);
    assert_fails(invar_workshop_open(&shop, NULL, "/x/repo", nowhere), INVAR_E_INVALID,
                 "--work DIR");
    if (home)
        setenv("HOME", home, 1);
    free(home);
}

static void assert_refused(const char *folder)
{
    invar_workshop *shop;

    assert_fails(
        invar_workshop_open(&shop, folder, repo_path, (const char *const[]){repo_path, NULL}),
        INVAR_E_INVALID, "lies inside the repository");
    assert_null(shop);
}

static void test_workshop__is_never_inside_the_work_tree(void **state)
{
    char current[INVAR_PATH_SIZE];
    invar_workshop *shop;

    (void)state;
    assert_non_null(getcwd(current, sizeof current));
    assert_int_equal(symlink(repo_path, below(work, "link")), 0);
    assert_refused(repo_path);
    assert_refused(below(repo_path, "a/b/c"));
    assert_refused(below(work, "link/a"));
    assert_int_equal(chdir(repo_path), 0);
    assert_refused("here");
    assert_refused(".");
    assert_int_equal(chdir(current), 0);
    assert_false(invar_path_exists(below(repo_path, "a")));
    assert_false(invar_path_exists(below(repo_path, "here")));
    assert_fails(invar_workshop_open(&shop, below(work, "none/../x"), "x", nowhere), INVAR_E_IO,
                 "No such file");
    // beside it, with a name that begins as it does
    assert_ok(invar_workshop_open(&shop, below(work, "repo-not"), repo_path,
                                  (const char *const[]){repo_path, NULL}));
    invar_workshop_close(shop);
    assert_fails(invar_workshop_open(&shop, below(repo_path, "program"), "x", nowhere), INVAR_E_IO,
                 "program");
    assert_fails(invar_workshop_open(&shop, "/proc/none", "x", nowhere), INVAR_E_IO, "/proc");
}

static invar_status open_for(invar_workshop **out, const char *folder, const invar_repo *repo)
{
    const char *outside[] = {invar_repo_folder(repo), invar_repo_work_tree(repo), NULL};

    return invar_workshop_open(out, folder, outside[0], outside);
}

static void test_workshop__is_never_inside_a_repository(void **state)
{
    invar_workshop *shop;
    invar_repo *repo;

    (void)state;
    shell(NULL, work, "git clone -q --bare repo bare.git; git -C repo worktree add -q ../linked");
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"repo", "bare.git", "linked"};
        assert_ok(invar_repo_open(&repo, below(work, names[i])));
        assert_fails(open_for(&shop, below(below(work, names[i]), "x"), repo), INVAR_E_INVALID,
                     "lies inside the repository");
        if (i != 1)
            assert_fails(open_for(&shop, below(repo_path, ".git/x"), repo), INVAR_E_INVALID,
                         "lies inside the repository");
        assert_ok(open_for(&shop, below(work, "bare"), repo));
        invar_workshop_close(shop);
        invar_repo_close(repo);
    }
    shell(NULL, repo_path, "git worktree remove ../linked; git branch -q -D linked");
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void test_workshop__slots_are_used_by_one(void **state)
{
    scene *s = *state;
    invar_slot more[2], other;
    invar_workshop *shop;

    assert_int_equal(s->slot.number, 0);
    assert_ok(invar_slot_take(&more[0], s->shop));
    assert_ok(
        invar_workshop_open(&shop, shop_path, repo_path, (const char *const[]){repo_path, NULL}));
    assert_ok(invar_slot_take(&more[1], shop));
    assert_int_equal(more[0].number, 1);
    assert_int_equal(more[1].number, 2);
    invar_slot_give(&more[0]);
    assert_ok(invar_slot_take(&other, shop));
    assert_int_equal(other.number, 1);
    invar_slot_give(&other);
    invar_slot_give(&other); // twice is fine
    invar_slot_give(&more[1]);
    invar_workshop_close(shop);
}

/* A process that has inherited the lock keeps it, when we have given the slot back. */
static void test_workshop__slot_is_busy_while_a_child_lives(void **state)
{
    scene *s = *state;
    pid_t child = fork();
    invar_slot other;

    if (child == 0) {
        execlp("sleep", "sleep", "1000", (char *)NULL); // the lock is closed by exec: not this one
        _exit(127);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    child = fork();
    if (child == 0) {
        pause(); // this one has it
        _exit(0);
    }
    invar_slot_give(&s->slot);
    assert_ok(invar_slot_take(&other, s->shop));
    assert_int_equal(other.number, 1);
    invar_slot_give(&other);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_ok(invar_slot_take(&s->slot, s->shop));
    assert_int_equal(s->slot.number, 0);
}

/* ---- programs -------------------------------------------------------------------------------- */

static void test_workshop__program_is_built_once(void **state)
{
    scene *s = *state;
    invar_built a = build(s, first, BUILD), b, c;
    char *text;

    assert_int_equal(a.state, INVAR_PROGRAM_READY);
    assert_false(a.cached);
    assert_int_equal(access(a.path, X_OK), 0);
    assert_contains(a.log, "building\n");
    text = text_of(build_file(&a));
    assert_non_null(strstr(text, "\n[build]\ncommit = "));
    assert_non_null(strstr(text, first));
    assert_non_null(
        strstr(text, "\nauthor = A Thor <a@example.org>\nsubject = first\ndirty = clean\n"));
    assert_non_null(strstr(text, "\ncommit-time = 1700000000\n"));
    invar_free(text);

    b = build(s, first, BUILD);
    assert_true(b.cached);
    assert_string_equal(b.path, a.path);
    assert_true(b.seconds == a.seconds);
    assert_memory_equal(&a.binary, &b.binary, sizeof a.binary);
    assert_int_equal(count_builds(), 1);
    b = build(s, same_tree, BUILD); // another commit with that tree
    assert_true(b.cached);
    c = build(s, second, BUILD);
    assert_false(c.cached);
    assert_int_equal(count_builds(), 2);
    assert_memory_not_equal(&a.binary, &c.binary, sizeof a.binary);
    c = build(s, first, BUILD "; true"); // another command, the same program
    assert_false(c.cached);
    assert_memory_equal(&a.binary, &c.binary, sizeof a.binary);
}

static void test_workshop__build_knows_where_it_is(void **state)
{
    scene *s = *state;
    invar_built a;
    char expected[3 * INVAR_PATH_SIZE];

    setenv("INVAR_LEDGER", "x", 1);
    setenv("GIT_DIR", "/none", 1);
    a = build(
        s, first,
        "echo \"$INVAR_SOURCE $INVAR_BUILD $INVAR_COMMIT $INVAR_JOBS.$INVAR_LEDGER$GIT_DIR.\"; "
        "[ \"$INVAR_SOURCE\" = \"$(pwd)\" ]; git rev-parse --git-dir && exit 9; " BUILD
        "; printf 'flags = -O2 \\001\\ncommit = lie\\nversion = 7\\n' "
        ">\"$INVAR_BUILD/prog.build\"");
    unsetenv("INVAR_LEDGER");
    unsetenv("GIT_DIR");
    assert_int_equal(a.state, INVAR_PROGRAM_READY);
    snprintf(expected, sizeof expected, "%s %s %s 2..\n", s->slot.source, s->slot.build, first);
    assert_contains(a.log, expected);
    assert_contains(build_file(&a), "\nflags = -O2 ?\nversion = 7\n");
}

static void test_workshop__failed_build_is_remembered(void **state)
{
    scene *s = *state;
    invar_built a = build(s, first, COUNT "echo no such header; exit 2"), b;

    assert_int_equal(a.state, INVAR_PROGRAM_FAILED);
    assert_string_equal(a.story, "exit code 2: no such header");
    assert_string_equal(a.path, "");
    assert_contains(a.log, "no such header\n");
    b = build(s, first, COUNT "echo no such header; exit 2");
    assert_true(b.cached);
    assert_int_equal(b.state, INVAR_PROGRAM_FAILED);
    assert_string_equal(b.story, a.story);
    assert_int_equal(count_builds(), 1);

    a = build(s, first, COUNT "true");
    assert_int_equal(a.state, INVAR_PROGRAM_FAILED);
    assert_string_equal(a.story, "the build ended well, but there is no program @prog after it");
    a = build(s, first, "mkdir -p \"$INVAR_BUILD/prog\"");
    assert_int_equal(a.state, INVAR_PROGRAM_FAILED);
}

static void test_workshop__interrupted_build_is_forgotten(void **state)
{
    scene *s = *state;
    invar_build_plan how = plain_build("sleep 1000");
    volatile sig_atomic_t stop = 1;
    invar_built a;

    how.timeout = 0.2;
    for (int i = 0; i < 2; i++) {
        assert_ok(invar_workshop_program(&a, s->shop, &s->slot, s->repo, first, &how, NULL));
        assert_int_equal(a.state, INVAR_PROGRAM_FAILED);
        assert_false(a.cached);
        assert_string_equal(a.story, "no end within 0.2 s");
    }
    assert_ok(invar_workshop_program(&a, s->shop, &s->slot, s->repo, first, &how, &stop));
    assert_int_equal(a.state, INVAR_PROGRAM_STOPPED);
}

/* Neither an older build's failure nor its program is this one's. */
static void test_workshop__verdict_does_not_depend_on_the_slot(void **state)
{
    scene *s = *state;
    static const char once[] = "[ \"$(cat answer)\" = 2 ] || { " BUILD "; }";
    static const char stamped[] = "[ -e stamp ] || { " BUILD "; touch stamp; }";
    static const char command[] = "[ ! -e \"$INVAR_BUILD/stale\" ] && [ ! -e stale ] || exit 1; "
                                  "touch \"$INVAR_BUILD/stale\" stale; " BUILD;

    assert_int_equal(build(s, first, command).state, INVAR_PROGRAM_READY);
    assert_int_equal(build(s, second, command).state, INVAR_PROGRAM_READY);
    assert_int_equal(count_builds(), 2);
    assert_int_equal(build(s, first, once).state, INVAR_PROGRAM_READY);
    assert_int_equal(build(s, second, once).state, INVAR_PROGRAM_FAILED);
    assert_int_equal(build(s, first, stamped).state, INVAR_PROGRAM_READY);
    assert_int_equal(build(s, second, stamped).state, INVAR_PROGRAM_READY);
}

/* Its program may be a file of the tree, or lie behind a link. */
static void test_workshop__program_of_the_tree(void **state)
{
    scene *s = *state;
    invar_build_plan how = plain_build("chmod +x program; ln -sfn ../../../.. out");
    invar_built a;

    how.program = "program";
    for (int i = 0; i < 2; i++) {
        assert_ok(
            invar_workshop_program(&a, s->shop, &s->slot, s->repo, i ? second : first, &how, NULL));
        assert_int_equal(a.state, INVAR_PROGRAM_READY);
        assert_contains(a.path, i ? "# 2" : "# 1");
    }
    how.program = "out/kept";
    shell(NULL, work, "echo '#!/bin/sh' >kept; chmod +x kept");
    for (int i = 0; i < 2; i++) {
        assert_ok(
            invar_workshop_program(&a, s->shop, &s->slot, s->repo, i ? second : first, &how, NULL));
        assert_int_equal(a.state, INVAR_PROGRAM_READY);
        assert_true(invar_path_exists(below(work, "kept")));
    }
}

static void test_workshop__program_without_a_name_stays_in_the_slot(void **state)
{
    scene *s = *state;
    invar_build_plan how = {.command = COUNT "echo made >made", .timeout = SLOW};
    invar_built a;

    for (int i = 1; i <= 2; i++) {
        assert_ok(invar_workshop_program(&a, s->shop, &s->slot, s->repo, first, &how, NULL));
        assert_int_equal(a.state, INVAR_PROGRAM_READY);
        assert_false(a.cached);
        assert_string_equal(a.path, "");
        assert_int_equal(count_builds(), i);
        assert_contains(below(s->slot.source, "made"), "made\n");
        assert_contains(below(s->slot.source, "answer"), "1\n");
    }
    how.command = NULL; // nothing to build, the tree alone
    assert_ok(invar_workshop_program(&a, s->shop, &s->slot, s->repo, second, &how, NULL));
    assert_int_equal(a.state, INVAR_PROGRAM_READY);
    assert_contains(below(s->slot.source, "answer"), "2\n");
    how = plain_build(BUILD);
    how.program = "/bin/true";
    assert_fails(invar_workshop_program(&a, s->shop, &s->slot, s->repo, first, &how, NULL),
                 INVAR_E_INVALID, "relative to the tree");
}

static void test_workshop__damaged_cache_is_not_believed(void **state)
{
    scene *s = *state;
    static const char *const damage[] = {"echo x >>prog",
                                         "rm prog",
                                         "chmod -x prog",
                                         "echo >verdict",
                                         "rm verdict",
                                         "echo 'more = 1' >>verdict",
                                         "sed -i s/ready/maybe/ verdict",
                                         "sed -i /seconds/d verdict",
                                         "head -c 20 verdict >v; mv v verdict",
                                         "rm verdict; mkdir verdict"};
    invar_built a = build(s, first, BUILD);
    char folder[INVAR_PATH_SIZE];

    snprintf(folder, sizeof folder, "%.*s", (int)(strlen(a.path) - 5), a.path);
    for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        shell(NULL, folder, damage[i]);
        a = build(s, first, BUILD);
        assert_int_equal(a.state, INVAR_PROGRAM_READY);
        if (a.cached)
            fail_msg("believed after: %s", damage[i]);
        assert_true(build(s, first, BUILD).cached);
    }
}

static void test_workshop__folder_and_file_become_programs(void **state)
{
    scene *s = *state;
    invar_build_plan how = plain_build(BUILD);
    invar_built a, b, c;

    assert_ok(invar_workshop_program_of_folder(&a, s->shop, &s->slot, repo_path, &how, NULL));
    assert_int_equal(a.state, INVAR_PROGRAM_READY);
    assert_contains(build_file(&a), "dirty = unknown\n");
    assert_ok(invar_workshop_program_of_folder(&b, s->shop, &s->slot, repo_path, &how, NULL));
    assert_true(b.cached);
    shell(NULL, repo_path, "cp program keep; echo '# more' >>program");
    assert_ok(invar_workshop_program_of_folder(&c, s->shop, &s->slot, repo_path, &how, NULL));
    shell(NULL, repo_path, "mv keep program");
    assert_false(c.cached);
    assert_memory_not_equal(&a.binary, &c.binary, sizeof a.binary);
    assert_false(invar_path_exists(below(repo_path, "prog")));

    assert_ok(invar_workshop_program_of_file(&b, s->shop, c.path));
    assert_int_equal(b.state, INVAR_PROGRAM_READY);
    assert_memory_equal(&b.binary, &c.binary, sizeof b.binary);
    assert_string_not_equal(b.path, c.path);
    assert_contains(build_file(&b), "dirty = unknown\n");
    assert_ok(invar_workshop_program_of_file(&b, s->shop, c.path));
    assert_true(b.cached);
    assert_fails(invar_workshop_program_of_file(&b, s->shop, "/etc/passwd"), INVAR_E_NOTFOUND,
                 "it is no program");
    assert_fails(invar_workshop_program_of_file(&b, s->shop, "/no/such"), INVAR_E_NOTFOUND,
                 "/no/such: cannot be read");
}

typedef struct racer {
    invar_workshop *shop;
    invar_built built;
    invar_status status;
} racer;

static void *race(void *payload)
{
    racer *r = payload;
    invar_build_plan how = plain_build("sleep 0.2; " BUILD);
    invar_repo *repo = NULL;
    invar_slot slot;

    r->status = invar_slot_take(&slot, r->shop);
    if (r->status != INVAR_OK)
        return NULL;
    r->status = invar_repo_open(&repo, repo_path);
    if (r->status == INVAR_OK)
        r->status = invar_workshop_program(&r->built, r->shop, &slot, repo, first, &how, NULL);
    invar_repo_close(repo);
    invar_slot_give(&slot);
    return NULL;
}

static void test_workshop__two_may_make_the_same_program(void **state)
{
    scene *s = *state;
    racer racers[4];
    pthread_t threads[4];

    for (int i = 0; i < 4; i++) {
        racers[i].shop = s->shop;
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(racers[i].status, INVAR_OK);
        assert_int_equal(racers[i].built.state, INVAR_PROGRAM_READY);
        assert_string_equal(racers[i].built.path, racers[0].built.path);
    }
}

/* ---- kills ----------------------------------------------------------------------------------- */

/* Another process takes a slot and builds something that does not end; returns when it is at it. */
static pid_t start_user(const char *command)
{
    pid_t user;

    unlink(below(work, "tool"));
    unlink(below(work, "shell"));
    user = fork();
    if (user == 0) {
        scene s = {0};
        if (invar_workshop_open(&s.shop, shop_path, repo_path,
                                (const char *const[]){repo_path, NULL}) != INVAR_OK ||
            invar_repo_open(&s.repo, repo_path) != INVAR_OK ||
            invar_slot_take(&s.slot, s.shop) != INVAR_OK)
            _exit(1);
        build(&s, first, command);
        _exit(0);
    }
    invar_test_pid_in(below(work, "tool"));
    invar_test_pid_in(below(work, "shell"));
    return user;
}

static void test_workshop__killed_user_leaves_nothing_that_counts(void **state)
{
    scene *s = *state;
    static const char command[] =
        BUILD "; [ -z \"$HANG\" ] && exit 0; echo half >\"$INVAR_BUILD/half\"; echo half >half; "
              "setsid sh -c 'echo $$ >\"$TOOL\"; while :; do sleep 0.01; done' & "
              "echo $$ >\"$SHELL_PID\"; while :; do sleep 0.01; done";
    invar_built a;
    pid_t user, tool, sh;
    invar_slot other;

    setenv("TOOL", below(work, "tool"), 1);
    setenv("SHELL_PID", below(work, "shell"), 1);
    setenv("HANG", "yes", 1);
    invar_slot_give(&s->slot);
    user = start_user(command);
    unsetenv("HANG");
    tool = invar_test_pid_in(below(work, "tool"));
    sh = invar_test_pid_in(below(work, "shell"));

    // a user that lives keeps its slot and its children
    assert_ok(invar_slot_take(&other, s->shop));
    assert_int_equal(other.number, 1);
    invar_slot_give(&other);
    assert_int_equal(kill(tool, 0), 0);
    assert_int_equal(kill(sh, 0), 0);

    kill(user, SIGKILL);
    assert_true(invar_test_dies(sh)); // by the kernel
    assert_true(invar_test_dies(user));
    assert_int_equal(kill(tool, 0), 0);
    assert_ok(invar_slot_take(&s->slot, s->shop));
    assert_int_equal(s->slot.number, 0);
    assert_true(invar_test_dies(tool));
    assert_false(invar_path_exists(s->slot.build));
    assert_false(invar_path_exists(s->slot.source));
    waitpid(user, NULL, 0);
    a = build(s, first, command);
    assert_false(a.cached);
    assert_int_equal(a.state, INVAR_PROGRAM_READY);
    assert_false(invar_path_exists(below(s->slot.build, "half")));
}

/* ---- runs ------------------------------------------------------------------------------------ */

static invar_run_request request_for(const invar_built *built, const char *const *flags)
{
    return (invar_run_request){.program = built->path,
                               .binary = built->binary,
                               .recipe = recipe_path,
                               .flags = flags,
                               .until = -1,
                               .timeout = SLOW};
}

static invar_ran run(scene *s, const invar_run_request *request)
{
    invar_ran ran;

    assert_ok(invar_workshop_run(&ran, s->shop, s->slot.lock, request));
    return ran;
}

static invar_ran run_mode(scene *s, const invar_built *built, const char *mode)
{
    const char *flags[] = {"--play", mode, NULL};
    invar_run_request request = request_for(built, flags);

    return run(s, &request);
}

static int64_t last_step(const char *path)
{
    invar_ledger_summary summary;
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_find(&summary, ledger, NULL));
    invar_ledger_close(ledger);
    return summary.last_step;
}

static void test_workshop__run_is_made_once(void **state)
{
    static const char *const flags[] = {"--lr", "1e-3", NULL};
    static const char *const environment[] = {"EXTRA=yes", NULL};
    scene *s = *state;
    invar_built built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, flags);
    char expected[3 * INVAR_PATH_SIZE];
    invar_ran a, b;

    setenv("INVAR_LEDGER", "x", 1);
    a = run(s, &request);
    unsetenv("INVAR_LEDGER");
    assert_int_equal(a.state, INVAR_RUN_DONE);
    assert_false(a.cached);
    assert_false(a.enough);
    assert_int_equal(a.exit_code, 0);
    assert_int_equal(last_step(a.ledger), 2);
    snprintf(expected, sizeof expected, "[train][%s/recipe.ini][--run][%s/runs/", work, shop_path);
    assert_contains(below(a.folder, "run.log"), expected);
    assert_contains(below(a.folder, "run.log"),
                    "[--save][][--load][][--no-report][--lr][1e-3]\nenvironment clean none\n");
    b = run(s, &request);
    assert_true(b.cached);
    assert_int_equal(b.state, INVAR_RUN_DONE);
    assert_string_equal(b.ledger, a.ledger);
    assert_true(b.seconds == a.seconds && b.peak_bytes == a.peak_bytes);

    // whatever may change the result makes it another run
    request.until = 5;
    b = run(s, &request);
    assert_false(b.cached);
    assert_contains(below(b.folder, "run.log"), "[--no-report][--until][5][--lr]");
    request.until = -1;
    request.name = "again";
    assert_false(run(s, &request).cached);
    request.environment = environment;
    b = run(s, &request);
    assert_false(b.cached);
    assert_contains(below(b.folder, "run.log"), "environment clean yes\n");
    request.prefix = "env  EXTRA=prefix ";
    b = run(s, &request);
    assert_false(b.cached);
    assert_contains(below(b.folder, "run.log"), "environment clean prefix\n");
    request.flags = flags + 2;
    assert_false(run(s, &request).cached);
    assert_true(run(s, &request).cached);
    request.anew = true;
    assert_false(run(s, &request).cached);
    request.anew = false;
    assert_true(run(s, &request).cached);
    assert_ok(invar_file_write(recipe_path, "[ckpt]\n# more\n", 14));
    assert_false(run(s, &request).cached);
}

/* A recipe's checkpoints are turned off, with all that would be refused without them. */
static void test_workshop__run_stays_in_its_folder(void **state)
{
    static const char recipe[] = "[ckpt]\nsave = runs/x\nsave-interval = 20\nkeep-checkpoints=3\n"
                                 "# trace = no\n[engine]\ndebug-dump-dir   = x\n";
    static const char *const flags[] = {"--load", "here", NULL};
    scene *s = *state;
    invar_built built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, flags);
    invar_ran a;

    assert_ok(invar_file_write(recipe_path, recipe, sizeof recipe - 1));
    a = run(s, &request);
    assert_contains(below(a.folder, "run.log"),
                    "[--save][][--save-interval][0][--keep-checkpoints][0][--debug-dump-dir][]"
                    "[--no-report][--load][here]\n");
}

/* A recipe's data is part of what is run. */
static void test_workshop__run_is_made_anew_when_its_files_change(void **state)
{
    static const char format[] = "[rollout]\nprompt-data = %s/data.jsonl@[0:9]\nname = none\n"
                                 "eval-prompt-data = x %s/folder,y\nsave = %s/saved\n";
    scene *s = *state;
    invar_built built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, NULL);
    char recipe[4 * sizeof work + sizeof format];

    snprintf(recipe, sizeof recipe, format, work, work, work);
    assert_ok(invar_file_write(recipe_path, recipe, strlen(recipe)));
    shell(NULL, work, "echo 1 >data.jsonl; mkdir folder saved; echo 1 >folder/weights");
    assert_false(run(s, &request).cached);
    assert_true(run(s, &request).cached);
    shell(NULL, work, "echo 12 >data.jsonl");
    assert_false(run(s, &request).cached);
    assert_true(run(s, &request).cached);
    shell(NULL, work, "echo 12 >folder/weights");
    assert_false(run(s, &request).cached);
    shell(NULL, work, "echo 1 >folder/more");
    assert_false(run(s, &request).cached);
    shell(NULL, work, "rm -r folder");
    assert_false(run(s, &request).cached);
    shell(NULL, work, "echo 1 >saved/checkpoint"); // which no run reads
    assert_true(run(s, &request).cached);
    assert_ok(invar_file_write(recipe_path, "[ckpt]\n", 7));
}

/* Log-probs that differ need not end a run; what the user says of it counts. */
static void test_workshop__mismatch_is_recorded(void **state)
{
    static const char *const flags[] = {"--on-mismatch=stop", NULL};
    scene *s = *state;
    invar_built built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, NULL);
    invar_ran a;

    assert_false(run(s, &request).cached);
    request.record_mismatch = true;
    a = run(s, &request);
    assert_false(a.cached);
    assert_contains(below(a.folder, "run.log"), "[--no-report][--on-mismatch][record]\n");
    request.flags = flags;
    assert_contains(below(run(s, &request).folder, "run.log"),
                    "[--no-report][--on-mismatch=stop]\n");
}

static void test_workshop__run_that_differs_is_a_result(void **state)
{
    scene *s = *state;
    invar_built built = build(s, first, BUILD);
    invar_ran a = run_mode(s, &built, "differs");

    assert_int_equal(a.state, INVAR_RUN_DONE);
    assert_int_equal(a.exit_code, 1);
    assert_non_null(strstr(a.story, "exit code 1"));
    a = run_mode(s, &built, "differs");
    assert_true(a.cached);
    assert_int_equal(a.exit_code, 1);
}

static void test_workshop__failed_run_is_made_again(void **state)
{
    static const char *const modes[] = {"crash", "refuse", "silent"};
    static const char *const stories[] = {"killed by signal 6, SIGABRT", "exit code 129: key = 1",
                                          "it ended well, but left no ledger"};
    scene *s = *state;
    invar_built built = build(s, first, BUILD), missing = built;

    for (int i = 0; i < 3; i++) {
        for (int time_of = 0; time_of < 2; time_of++) {
            invar_ran a = run_mode(s, &built, modes[i]);
            assert_int_equal(a.state, INVAR_RUN_FAILED);
            assert_false(a.cached);
            assert_non_null(strstr(a.story, stories[i]));
            assert_contains(below(a.folder, "run.log"), "[train]");
        }
    }
    snprintf(missing.path, sizeof missing.path, "%s/none", work);
    assert_int_equal(run_mode(s, &missing, "steps").state, INVAR_RUN_FAILED);
}

static void test_workshop__endless_run_ends(void **state)
{
    static const char *const flags[] = {"--play", "forever", NULL};
    volatile sig_atomic_t stop = 1;
    scene *s = *state;
    invar_built built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, flags);
    invar_ran a;

    request.timeout = 0.5;
    a = run(s, &request);
    assert_int_equal(a.state, INVAR_RUN_FAILED);
    assert_non_null(strstr(a.story, "no end within 0.5 s"));
    request.stop = &stop;
    a = run(s, &request);
    assert_int_equal(a.state, INVAR_RUN_STOPPED);
    request.timeout = SLOW;
    assert_int_equal(run(s, &request).state, INVAR_RUN_STOPPED);
}

typedef struct watcher {
    int64_t steps[64];
    int calls;
    int64_t enough;
} watcher;

static bool watch(void *payload, const char *ledger)
{
    watcher *w = payload;

    assert_true(w->calls < 64);
    w->steps[w->calls] = last_step(ledger);
    return w->steps[w->calls++] >= w->enough;
}

static void test_workshop__run_ends_when_enough_was_seen(void **state)
{
    static const char *const flags[] = {"--play", "forever", NULL};
    watcher w = {.enough = 8};
    scene *s = *state;
    invar_built built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, flags);
    invar_ran a;

    request.watch = watch;
    request.payload = &w;
    a = run(s, &request);
    assert_int_equal(a.state, INVAR_RUN_DONE);
    assert_true(a.enough);
    assert_int_equal(a.exit_code, 0); // it ended in order
    assert_true(last_step(a.ledger) >= 8);
    for (int i = 1; i < w.calls; i++)
        assert_true(w.steps[i] >= w.steps[i - 1]); // it may have grown since it was looked at
    assert_true(w.steps[w.calls - 1] >= 8);
    w.calls = 0;
    a = run(s, &request);
    assert_true(a.cached && a.enough);
    assert_int_equal(w.calls, 1); // asked whether it is enough

    // for another aim it is too short
    w = (watcher){.enough = 30};
    a = run(s, &request);
    assert_false(a.cached);
    assert_true(last_step(a.ledger) >= 30);
    w = (watcher){.enough = 4};
    assert_true(run(s, &request).cached);
    request.watch = NULL;
    request.timeout = 0.5; // whoever wants all of it makes it anew, here without end
    assert_int_equal(run(s, &request).state, INVAR_RUN_FAILED);
    request.watch = watch;
    request.timeout = SLOW;

    // one that ends by itself is looked at once more, whole
    request.flags = NULL;
    a = run(s, &request);
    assert_int_equal(a.state, INVAR_RUN_DONE);
    assert_false(a.enough);
    assert_true(w.calls > 0);
    assert_int_equal(w.steps[w.calls - 1], 2);
}

/* It ends in order and with 0 then, but it is not whole: nobody may take it for that. */
static void test_workshop__run_that_another_stops_is_none(void **state)
{
    static const char *const flags[] = {"--play", "signalled", NULL};
    scene *s = *state;
    invar_built built = build(s, first, BUILD);
    invar_run_request request = request_for(&built, flags);
    invar_ran a;

    for (int i = 0; i < 2; i++) {
        assert_fails(invar_workshop_run(&a, s->shop, s->slot.lock, &request), INVAR_E_STATE,
                     "after step 2 by a signal");
    }
}

static void test_workshop__unfinished_run_is_not_believed(void **state)
{
    static const char *const damage[] = {"rm outcome",
                                         ": >outcome",
                                         "sed -i '$d' outcome",
                                         "echo 'x = 1' >>outcome",
                                         "sed -i s/exit-code/exit/ outcome",
                                         "rm ledger.db"};
    scene *s = *state;
    invar_built built = build(s, first, BUILD);
    invar_ran a = run_mode(s, &built, "steps");
    invar_workshop *shop;
    char left[INVAR_PATH_SIZE + 64], used[INVAR_PATH_SIZE + 64], self[INVAR_USER_SIZE];

    for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        shell(NULL, a.folder, damage[i]);
        a = run_mode(s, &built, "steps");
        if (a.cached)
            fail_msg("believed after: %s", damage[i]);
        assert_true(run_mode(s, &built, "steps").cached);
    }
    // what a dead user was making goes; what a living one is, stays
    snprintf(left, sizeof left, "%s.%08x-%016x-00000000.tmp", a.folder, 0x3ffffff, 1);
    invar_user_self(self);
    snprintf(used, sizeof used, "%s.%s-00000000.tmp", a.folder, self);
    assert_ok(invar_folder_make(below(left, "x")));
    assert_ok(invar_folder_make(used));
    assert_ok(
        invar_workshop_open(&shop, shop_path, repo_path, (const char *const[]){repo_path, NULL}));
    invar_workshop_close(shop);
    assert_false(invar_path_exists(left));
    assert_true(invar_path_exists(used));
    assert_true(invar_path_exists(a.folder));
}

/* ---- a full disk ----------------------------------------------------------------------------- */

/* A disk of 20 MiB that a build or a run fills: never a verdict about the commit. */
static void test_workshop__full_disk_is_no_verdict(void **state)
{
    static const char fill[] = "head -c 30000000 /dev/zero >\"$INVAR_BUILD/fill\"";
    invar_build_plan how = plain_build(fill);
    invar_built built;
    scene s = {0};

    (void)state;
    assert_ok(invar_folder_make(disk_path));
    if (mount("tmpfs", disk_path, "tmpfs", 0, "size=20m") != 0) {
        print_message("no small disk can be had here: %s\n", strerror(errno));
        skip();
    }
    assert_ok(
        invar_workshop_open(&s.shop, disk_path, repo_path, (const char *const[]){repo_path, NULL}));
    assert_ok(invar_repo_open(&s.repo, repo_path));
    assert_ok(invar_slot_take(&s.slot, s.shop));
    for (int i = 0; i < 3; i++) {
        how.command = i < 2 ? fill : "exit 1"; // also when it is another who has filled it
        assert_int_equal(invar_workshop_program(&built, s.shop, &s.slot, s.repo, first, &how, NULL),
                         INVAR_E_IO);
        assert_int_equal(invar_error_last()->native, ENOSPC);
    }
    invar_slot_give(&s.slot);
    invar_repo_close(s.repo);
    invar_workshop_close(s.shop);
}

static void make_repository(const char *self)
{
    char script[INVAR_PATH_SIZE * 2];

    assert_ok(invar_folder_make(repo_path));
    snprintf(script, sizeof script,
             "git init -q -b main .\n"
             "printf '#!/bin/sh\\n# 1\\nexec \"%s\" \"$@\"\\n' >program; echo 1 >answer\n"
             "git add . && git commit -q -m first && git rev-parse HEAD",
             self);
    shell(first, repo_path, script);
    shell(second, repo_path,
          "sed -i 's/# 1/# 2/' program; echo 2 >answer\n"
          "git add . && git commit -q -m second && git rev-parse HEAD");
    shell(same_tree, repo_path,
          "git revert --no-edit -n HEAD >/dev/null; "
          "git commit -q -m revert && git rev-parse HEAD");
}

static int prepare(void **state)
{
    char self[INVAR_PATH_SIZE] = "";

    (void)state;
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 1;
    make_repository(self);
    setenv("BUILDS", below(work, "builds"), 1);
    return invar_file_write(recipe_path, "[ckpt]\n", 7) != INVAR_OK;
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_workshop__##name, begin, end)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workshop__has_its_usual_place),
        cmocka_unit_test(test_workshop__is_never_inside_the_work_tree),
        cmocka_unit_test(test_workshop__is_never_inside_a_repository),
        TEST(slots_are_used_by_one),
        TEST(slot_is_busy_while_a_child_lives),
        TEST(program_is_built_once),
        TEST(build_knows_where_it_is),
        TEST(failed_build_is_remembered),
        TEST(interrupted_build_is_forgotten),
        TEST(verdict_does_not_depend_on_the_slot),
        TEST(program_without_a_name_stays_in_the_slot),
        TEST(damaged_cache_is_not_believed),
        TEST(folder_and_file_become_programs),
        TEST(two_may_make_the_same_program),
        TEST(killed_user_leaves_nothing_that_counts),
        TEST(run_is_made_once),
        TEST(run_is_made_anew_when_its_files_change),
        TEST(mismatch_is_recorded),
        TEST(run_that_another_stops_is_none),
        TEST(program_of_the_tree),
        TEST(run_stays_in_its_folder),
        TEST(run_that_differs_is_a_result),
        TEST(failed_run_is_made_again),
        TEST(endless_run_ends),
        TEST(run_ends_when_enough_was_seen),
        TEST(unfinished_run_is_not_believed),
        cmocka_unit_test(test_workshop__full_disk_is_no_verdict),
    };
    int rc;

    if (argc > 2 && strcmp(argv[1], "train") == 0)
        _exit(play(argc, argv)); // a sanitizer's look for leaks would take seconds each time
    if (!mkdtemp(work))
        return 1;
    snprintf(repo_path, sizeof repo_path, "%s/repo", work);
    snprintf(shop_path, sizeof shop_path, "%s/shop", work);
    snprintf(disk_path, sizeof disk_path, "%s/disk", work);
    snprintf(recipe_path, sizeof recipe_path, "%s/recipe.ini", work);
    rc = cmocka_run_group_tests(tests, prepare, NULL);
    (void)umount2(disk_path, MNT_DETACH);
    return invar_folder_remove(work) == INVAR_OK ? rc : 1;
}
