/*
 * workspace.c - tests of a workshop's folder, slots and programs: what is believed, and what a kill
 * leaves.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/bisect/workspace/workspace.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/child_pids.h"

static const char *const nowhere[] = {NULL};
static char disk_path[sizeof work + 16];

static char *build_file(const invar_revision_build *built)
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

/* ---- the folder ------------------------------------------------------------------------------ */

static void assert_place(const char *subject, const char *expected)
{
    invar_workspace *shop;
    struct stat info;

    assert_ok(invar_workspace_open(&shop, NULL, subject, (const char *const[]){repo_path, NULL}));
    assert_int_equal(strncmp(invar_workspace_folder(shop), expected, strlen(expected)), 0);
    assert_int_equal(strlen(invar_workspace_folder(shop)), strlen(expected) + 12);
    assert_int_equal(stat(invar_workspace_folder(shop), &info), 0);
    assert_int_equal(info.st_mode & 07777, 0700);
    invar_workspace_close(shop);
}

static void test_workshop__is_ours_alone(void **state)
{
    invar_workspace *shop;

    (void)state;
    assert_int_equal(mkdir(below(work, "shared"), 0700), 0);
    assert_int_equal(chmod(below(work, "shared"), 0777), 0);
    assert_fails(invar_workspace_open(&shop, below(work, "shared"), repo_path, nowhere),
                 INVAR_E_STATE, "chmod o-w");
    assert_int_equal(chmod(below(work, "shared"), 0770), 0); // a group is the user's own affair
    assert_ok(invar_workspace_open(&shop, below(work, "shared"), repo_path, nowhere));
    invar_workspace_close(shop);
    if (geteuid() != 0) // only root can give a folder away
        return;
    assert_int_equal(chown(below(work, "shared"), 65534, 65534), 0);
    assert_fails(invar_workspace_open(&shop, below(work, "shared"), repo_path, nowhere),
                 INVAR_E_STATE, "another user");
}

static void test_workshop__has_its_usual_place(void **state)
{
    invar_workspace *shop;
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
    assert_fails(invar_workspace_open(&shop, NULL, "/x/repo", nowhere), INVAR_E_INVALID,
                 "--work DIR");
    if (home)
        setenv("HOME", home, 1);
    free(home);
}

static void assert_refused(const char *folder)
{
    invar_workspace *shop;

    assert_fails(
        invar_workspace_open(&shop, folder, repo_path, (const char *const[]){repo_path, NULL}),
        INVAR_E_INVALID, "lies inside the repository");
    assert_null(shop);
}

static void test_workshop__is_never_inside_the_work_tree(void **state)
{
    char current[INVAR_PATH_SIZE];
    invar_workspace *shop;

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
    assert_fails(invar_workspace_open(&shop, below(work, "none/../x"), "x", nowhere), INVAR_E_IO,
                 "No such file");
    // beside it, with a name that begins as it does
    assert_ok(invar_workspace_open(&shop, below(work, "repo-not"), repo_path,
                                   (const char *const[]){repo_path, NULL}));
    invar_workspace_close(shop);
    assert_fails(invar_workspace_open(&shop, below(repo_path, "program"), "x", nowhere), INVAR_E_IO,
                 "program");
    assert_fails(invar_workspace_open(&shop, "/proc/none", "x", nowhere), INVAR_E_IO, "/proc");
}

static invar_status open_for(invar_workspace **out, const char *folder, const invar_repo *repo)
{
    const char *outside[] = {invar_repo_folder(repo), invar_repo_work_tree(repo), NULL};

    return invar_workspace_open(out, folder, outside[0], outside);
}

static void test_workshop__is_never_inside_a_repository(void **state)
{
    invar_workspace *shop;
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
        invar_workspace_close(shop);
        invar_repo_close(repo);
    }
    shell(NULL, repo_path, "git worktree remove ../linked; git branch -q -D linked");
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void test_workshop__slots_are_used_by_one(void **state)
{
    scene *s = *state;
    invar_worktree more[2], other;
    invar_workspace *shop;

    assert_int_equal(s->slot.number, 0);
    assert_ok(invar_worktree_acquire(&more[0], s->shop));
    assert_ok(
        invar_workspace_open(&shop, shop_path, repo_path, (const char *const[]){repo_path, NULL}));
    assert_ok(invar_worktree_acquire(&more[1], shop));
    assert_int_equal(more[0].number, 1);
    assert_int_equal(more[1].number, 2);
    invar_worktree_release(&more[0]);
    assert_ok(invar_worktree_acquire(&other, shop));
    assert_int_equal(other.number, 1);
    invar_worktree_release(&other);
    invar_worktree_release(&other); // twice is fine
    invar_worktree_release(&more[1]);
    invar_workspace_close(shop);
}

/* A process that has inherited the lock keeps it, when we have given the slot back. */
static void test_workshop__slot_is_busy_while_a_child_lives(void **state)
{
    scene *s = *state;
    pid_t child = fork();
    invar_worktree other;

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
    invar_worktree_release(&s->slot);
    assert_ok(invar_worktree_acquire(&other, s->shop));
    assert_int_equal(other.number, 1);
    invar_worktree_release(&other);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_ok(invar_worktree_acquire(&s->slot, s->shop));
    assert_int_equal(s->slot.number, 0);
}

/* ---- programs -------------------------------------------------------------------------------- */

static void test_workshop__program_is_built_once(void **state)
{
    scene *s = *state;
    invar_revision_build a = build(s, first, BUILD), b, c;
    char *text;

    assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
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
    invar_revision_build a;
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
    assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
    snprintf(expected, sizeof expected, "%s %s %s 2..\n", s->slot.source, s->slot.build, first);
    assert_contains(a.log, expected);
    assert_contains(build_file(&a), "\nflags = -O2 ?\nversion = 7\n");
}

static void test_workshop__failed_build_is_remembered(void **state)
{
    scene *s = *state;
    invar_revision_build a = build(s, first, COUNT "echo no such header; exit 2"), b;

    assert_int_equal(a.state, INVAR_REVISION_BUILD_FAILED);
    assert_string_equal(a.failure_reason, "exit code 2: no such header");
    assert_string_equal(a.path, "");
    assert_contains(a.log, "no such header\n");
    b = build(s, first, COUNT "echo no such header; exit 2");
    assert_true(b.cached);
    assert_int_equal(b.state, INVAR_REVISION_BUILD_FAILED);
    assert_string_equal(b.failure_reason, a.failure_reason);
    assert_int_equal(count_builds(), 1);

    a = build(s, first, COUNT "true");
    assert_int_equal(a.state, INVAR_REVISION_BUILD_FAILED);
    assert_string_equal(a.failure_reason,
                        "the build ended well, but there is no program @prog after it");
    a = build(s, first, "mkdir -p \"$INVAR_BUILD/prog\"");
    assert_int_equal(a.state, INVAR_REVISION_BUILD_FAILED);
}

static void test_workshop__interrupted_build_is_forgotten(void **state)
{
    scene *s = *state;
    invar_build_plan how = plain_build("sleep 1000");
    volatile sig_atomic_t stop = 1;
    invar_revision_build a;

    how.timeout = 0.2;
    for (int i = 0; i < 2; i++) {
        assert_ok(invar_workspace_program(&a, s->shop, &s->slot, s->repo, first, &how, NULL));
        assert_int_equal(a.state, INVAR_REVISION_BUILD_FAILED);
        assert_false(a.cached);
        assert_string_equal(a.failure_reason, "no end within 0.2 s");
    }
    assert_ok(invar_workspace_program(&a, s->shop, &s->slot, s->repo, first, &how, &stop));
    assert_int_equal(a.state, INVAR_REVISION_BUILD_STOPPED);
}

/* Neither an older build's failure nor its program is this one's. */
static void test_workshop__verdict_does_not_depend_on_the_slot(void **state)
{
    scene *s = *state;
    static const char once[] = "[ \"$(cat answer)\" = 2 ] || { " BUILD "; }";
    static const char stamped[] = "[ -e stamp ] || { " BUILD "; touch stamp; }";
    static const char command[] = "[ ! -e \"$INVAR_BUILD/stale\" ] && [ ! -e stale ] || exit 1; "
                                  "touch \"$INVAR_BUILD/stale\" stale; " BUILD;

    assert_int_equal(build(s, first, command).state, INVAR_REVISION_BUILD_READY);
    assert_int_equal(build(s, second, command).state, INVAR_REVISION_BUILD_READY);
    assert_int_equal(count_builds(), 2);
    assert_int_equal(build(s, first, once).state, INVAR_REVISION_BUILD_READY);
    assert_int_equal(build(s, second, once).state, INVAR_REVISION_BUILD_FAILED);
    assert_int_equal(build(s, first, stamped).state, INVAR_REVISION_BUILD_READY);
    assert_int_equal(build(s, second, stamped).state, INVAR_REVISION_BUILD_READY);
}

/* Its program may be a file of the tree, or lie behind a link. */
static void test_workshop__program_of_the_tree(void **state)
{
    scene *s = *state;
    invar_build_plan how = plain_build("chmod +x program; ln -sfn ../../../.. out");
    invar_revision_build a;

    how.program = "program";
    for (int i = 0; i < 2; i++) {
        assert_ok(invar_workspace_program(&a, s->shop, &s->slot, s->repo, i ? second : first, &how,
                                          NULL));
        assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
        assert_contains(a.path, i ? "# 2" : "# 1");
    }
    how.program = "out/kept";
    shell(NULL, work, "echo '#!/bin/sh' >kept; chmod +x kept");
    for (int i = 0; i < 2; i++) {
        assert_ok(invar_workspace_program(&a, s->shop, &s->slot, s->repo, i ? second : first, &how,
                                          NULL));
        assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
        assert_true(invar_path_exists(below(work, "kept")));
    }
}

static void test_workshop__program_without_a_name_stays_in_the_slot(void **state)
{
    scene *s = *state;
    invar_build_plan how = {.command = COUNT "echo made >made", .timeout = SLOW};
    invar_revision_build a;

    for (int i = 1; i <= 2; i++) {
        assert_ok(invar_workspace_program(&a, s->shop, &s->slot, s->repo, first, &how, NULL));
        assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
        assert_false(a.cached);
        assert_string_equal(a.path, "");
        assert_int_equal(count_builds(), i);
        assert_contains(below(s->slot.source, "made"), "made\n");
        assert_contains(below(s->slot.source, "answer"), "1\n");
    }
    how.command = NULL; // nothing to build, the tree alone
    assert_ok(invar_workspace_program(&a, s->shop, &s->slot, s->repo, second, &how, NULL));
    assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
    assert_contains(below(s->slot.source, "answer"), "2\n");
    how = plain_build(BUILD);
    how.program = "/bin/true";
    assert_fails(invar_workspace_program(&a, s->shop, &s->slot, s->repo, first, &how, NULL),
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
    invar_revision_build a = build(s, first, BUILD);
    char folder[INVAR_PATH_SIZE];

    snprintf(folder, sizeof folder, "%.*s", (int)(strlen(a.path) - 5), a.path);
    for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        shell(NULL, folder, damage[i]);
        a = build(s, first, BUILD);
        assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
        if (a.cached)
            fail_msg("believed after: %s", damage[i]);
        assert_true(build(s, first, BUILD).cached);
    }
}

static void test_workshop__folder_and_file_become_programs(void **state)
{
    scene *s = *state;
    invar_build_plan how = plain_build(BUILD);
    invar_revision_build a, b, c;

    assert_ok(invar_workspace_program_of_folder(&a, s->shop, &s->slot, repo_path, &how, NULL));
    assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
    assert_contains(build_file(&a), "dirty = unknown\n");
    assert_ok(invar_workspace_program_of_folder(&b, s->shop, &s->slot, repo_path, &how, NULL));
    assert_true(b.cached);
    shell(NULL, repo_path, "cp program keep; echo '# more' >>program");
    assert_ok(invar_workspace_program_of_folder(&c, s->shop, &s->slot, repo_path, &how, NULL));
    shell(NULL, repo_path, "mv keep program");
    assert_false(c.cached);
    assert_memory_not_equal(&a.binary, &c.binary, sizeof a.binary);
    assert_false(invar_path_exists(below(repo_path, "prog")));

    assert_ok(invar_workspace_program_of_file(&b, s->shop, c.path));
    assert_int_equal(b.state, INVAR_REVISION_BUILD_READY);
    assert_memory_equal(&b.binary, &c.binary, sizeof b.binary);
    assert_string_not_equal(b.path, c.path);
    assert_contains(build_file(&b), "dirty = unknown\n");
    assert_ok(invar_workspace_program_of_file(&b, s->shop, c.path));
    assert_true(b.cached);
    assert_fails(invar_workspace_program_of_file(&b, s->shop, "/etc/passwd"), INVAR_E_NOTFOUND,
                 "it is no program");
    assert_fails(invar_workspace_program_of_file(&b, s->shop, "/no/such"), INVAR_E_NOTFOUND,
                 "/no/such: cannot be read");
}

/* A program with another module is another program; the copy has it beside it. */
static void test_workshop__modules_belong_to_a_program(void **state)
{
    static const char *const make[] = {
        "mkdir -p bin lib/invar; printf '#!/bin/sh\\n' >bin/prog; chmod +x bin/prog",
        "echo one >bin/invar-cuda.so", "echo two >bin/invar-cuda.so",
        "mv bin/invar-cuda.so lib/invar", "echo other >bin/invar-other.so"};
    enum { TURNS = sizeof make / sizeof *make };
    char program[INVAR_PATH_SIZE], folder[INVAR_PATH_SIZE];
    scene *s = *state;
    invar_digest digest[TURNS], file;
    invar_revision_build built;

    (void)snprintf(program, sizeof program, "%s", below(repo_path, "bin/prog"));
    for (int i = 0; i < TURNS; i++) {
        shell(NULL, repo_path, make[i]);
        assert_ok(invar_workspace_hash_binary(&digest[i], program, true));
        assert_ok(invar_workspace_program_of_file(&built, s->shop, program));
        assert_memory_equal(&built.binary, &digest[i], sizeof digest[i]);
        snprintf(folder, sizeof folder, "%s", built.path);
        *strrchr(folder, '/') = '\0';
        assert_int_equal(invar_path_exists(below(folder, "invar-cuda.so")), i > 0);
        assert_false(invar_path_exists(below(folder, "invar-other.so")));
        assert_ok(invar_workspace_hash_binary(&file, built.path, true));
        assert_memory_equal(&file, &digest[i], sizeof file);
    }
    shell(NULL, repo_path, "rm -r bin lib");
    invar_hash_bytes(&file, "#!/bin/sh\n", 10);
    assert_memory_equal(&digest[0], &file, sizeof file); // without a module that of the file
    assert_memory_not_equal(&digest[0], &digest[1], sizeof file);
    assert_memory_not_equal(&digest[1], &digest[2], sizeof file);
    assert_memory_equal(&digest[2], &digest[3], sizeof file); // wherever it was found
    assert_memory_equal(&digest[3], &digest[4], sizeof file); // and nothing else
}

typedef struct racer {
    invar_workspace *shop;
    invar_revision_build built;
    invar_status status;
} racer;

static void *race(void *payload)
{
    racer *r = payload;
    invar_build_plan how = plain_build("sleep 0.2; " BUILD);
    invar_repo *repo = NULL;
    invar_worktree slot;

    r->status = invar_worktree_acquire(&slot, r->shop);
    if (r->status != INVAR_OK)
        return NULL;
    r->status = invar_repo_open(&repo, repo_path);
    if (r->status == INVAR_OK)
        r->status = invar_workspace_program(&r->built, r->shop, &slot, repo, first, &how, NULL);
    invar_repo_close(repo);
    invar_worktree_release(&slot);
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
        assert_int_equal(racers[i].built.state, INVAR_REVISION_BUILD_READY);
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
        if (invar_workspace_open(&s.shop, shop_path, repo_path,
                                 (const char *const[]){repo_path, NULL}) != INVAR_OK ||
            invar_repo_open(&s.repo, repo_path) != INVAR_OK ||
            invar_worktree_acquire(&s.slot, s.shop) != INVAR_OK)
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
    invar_revision_build a;
    pid_t user, tool, sh;
    invar_worktree other;

    setenv("TOOL", below(work, "tool"), 1);
    setenv("SHELL_PID", below(work, "shell"), 1);
    setenv("HANG", "yes", 1);
    invar_worktree_release(&s->slot);
    user = start_user(command);
    unsetenv("HANG");
    tool = invar_test_pid_in(below(work, "tool"));
    sh = invar_test_pid_in(below(work, "shell"));

    // a user that lives keeps its slot and its children
    assert_ok(invar_worktree_acquire(&other, s->shop));
    assert_int_equal(other.number, 1);
    invar_worktree_release(&other);
    assert_int_equal(kill(tool, 0), 0);
    assert_int_equal(kill(sh, 0), 0);

    kill(user, SIGKILL);
    assert_true(invar_test_dies(sh)); // by the kernel
    assert_true(invar_test_dies(user));
    assert_int_equal(kill(tool, 0), 0);
    assert_ok(invar_worktree_acquire(&s->slot, s->shop));
    assert_int_equal(s->slot.number, 0);
    assert_true(invar_test_dies(tool));
    assert_false(invar_path_exists(s->slot.build));
    assert_false(invar_path_exists(s->slot.source));
    waitpid(user, NULL, 0);
    a = build(s, first, command);
    assert_false(a.cached);
    assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
    assert_false(invar_path_exists(below(s->slot.build, "half")));
}
/* ---- a full disk ----------------------------------------------------------------------------- */

/* A disk of 20 MiB that a build or a run fills: never a verdict about the commit. */
static void test_workshop__full_disk_is_no_verdict(void **state)
{
    static const char fill[] = "head -c 30000000 /dev/zero >\"$INVAR_BUILD/fill\"";
    invar_build_plan how = plain_build(fill);
    invar_revision_build built;
    scene s = {0};

    (void)state;
    snprintf(disk_path, sizeof disk_path, "%s/disk", work);
    assert_ok(invar_held_folder_make(disk_path));
    if (mount("tmpfs", disk_path, "tmpfs", 0, "size=20m,mode=700") != 0) {
        print_message("no small disk can be had here: %s\n", strerror(errno));
        skip();
    }
    assert_ok(invar_workspace_open(&s.shop, disk_path, repo_path,
                                   (const char *const[]){repo_path, NULL}));
    assert_ok(invar_repo_open(&s.repo, repo_path));
    assert_ok(invar_worktree_acquire(&s.slot, s.shop));
    for (int i = 0; i < 3; i++) {
        how.command = i < 2 ? fill : "exit 1"; // also when it is another who has filled it
        assert_int_equal(
            invar_workspace_program(&built, s.shop, &s.slot, s.repo, first, &how, NULL),
            INVAR_E_IO);
        assert_int_equal(invar_error_last()->native, ENOSPC);
    }
    invar_worktree_release(&s.slot);
    invar_repo_close(s.repo);
    invar_workspace_close(s.shop);
}

static int leave_disk(void **state)
{
    (void)umount2(disk_path, MNT_DETACH);
    return clean_up(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workshop__is_ours_alone),
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
        TEST(modules_belong_to_a_program),
        TEST(two_may_make_the_same_program),
        TEST(killed_user_leaves_nothing_that_counts),
        TEST(program_of_the_tree),
        cmocka_unit_test(test_workshop__full_disk_is_no_verdict),
    };

    return cmocka_run_group_tests(tests, prepare, leave_disk);
}
