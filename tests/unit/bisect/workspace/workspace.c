/*
 * workspace.c - tests of a bisect workspace: its folder, worktrees, cached programs, and kills.
 *
 * A program is built once per tree and command; damaged cache entries are built again. A worktree
 * belongs to one user until it and its children have ended. A user that is killed in a build must
 * leave neither processes nor files that later builds could see. A full disk is never a verdict.
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

static const char *const no_folders[] = {NULL};
static char disk_path[sizeof work_folder + 16];

static char *build_file(const invar_revision_build *built)
{
    static char path[INVAR_PATH_SIZE + 8];

    snprintf(path, sizeof path, "%s.build", built->path);
    return path;
}

/* Returns the number of builds so far; each appends a line to a file. */
static int count_builds(void)
{
    char *text;
    int lines = 0;

    if (!invar_path_exists(path_in(work_folder, "builds")))
        return 0;
    text = read_text(path_in(work_folder, "builds"));
    for (const char *at = text; *at; at++)
        lines += *at == '\n';
    invar_free(text);
    return lines;
}

/* ---- the folder ------------------------------------------------------------------------------ */

static void assert_default_folder(const char *subject, const char *expected)
{
    invar_workspace *workspace;
    struct stat info;

    assert_ok(
        invar_workspace_open(&workspace, NULL, subject, (const char *const[]){repo_path, NULL}));
    assert_int_equal(strncmp(invar_workspace_folder(workspace), expected, strlen(expected)), 0);
    assert_int_equal(strlen(invar_workspace_folder(workspace)), strlen(expected) + 12);
    assert_int_equal(stat(invar_workspace_folder(workspace), &info), 0);
    assert_int_equal(info.st_mode & 07777, 0700);
    invar_workspace_close(workspace);
}

static void test_workshop__is_ours_alone(void **state)
{
    invar_workspace *workspace;

    (void)state;
    assert_int_equal(mkdir(path_in(work_folder, "shared"), 0700), 0);
    assert_int_equal(chmod(path_in(work_folder, "shared"), 0777), 0);
    assert_fails(
        invar_workspace_open(&workspace, path_in(work_folder, "shared"), repo_path, no_folders),
        INVAR_E_STATE, "chmod o-w");
    // Group permissions are the user's decision.
    assert_int_equal(chmod(path_in(work_folder, "shared"), 0770), 0);
    assert_ok(
        invar_workspace_open(&workspace, path_in(work_folder, "shared"), repo_path, no_folders));
    invar_workspace_close(workspace);
    if (geteuid() != 0) // only root can give a folder away
        return;
    assert_int_equal(chown(path_in(work_folder, "shared"), 65534, 65534), 0);
    assert_fails(
        invar_workspace_open(&workspace, path_in(work_folder, "shared"), repo_path, no_folders),
        INVAR_E_STATE, "another user");
}

static void test_workshop__has_its_usual_place(void **state)
{
    invar_workspace *workspace;
    char *old_home = getenv("HOME") ? strdup(getenv("HOME")) : NULL,
         expected_folder[INVAR_PATH_SIZE];

    (void)state;
    setenv("XDG_CACHE_HOME", path_in(work_folder, "cache"), 1);
    snprintf(expected_folder, sizeof expected_folder, "%s/cache/invar/some_repo-", work_folder);
    assert_default_folder("/x/some repo/.git", expected_folder);
    assert_default_folder("/x/some repo/", expected_folder);
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", work_folder, 1);
    snprintf(expected_folder, sizeof expected_folder, "%s/.cache/invar/_-", work_folder);
    assert_default_folder("/x/.", expected_folder); // the name must not become "." or ".."
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "", 1);
    assert_fails(invar_workspace_open(&workspace, NULL, "/x/repo", no_folders), INVAR_E_INVALID,
                 "--work DIR");
    if (old_home)
        setenv("HOME", old_home, 1);
    free(old_home);
}

static void assert_rejected(const char *folder)
{
    invar_workspace *workspace;

    assert_fails(
        invar_workspace_open(&workspace, folder, repo_path, (const char *const[]){repo_path, NULL}),
        INVAR_E_INVALID, "lies inside the repository");
    assert_null(workspace);
}

static void test_workshop__is_never_inside_the_work_tree(void **state)
{
    char current[INVAR_PATH_SIZE];
    invar_workspace *workspace;

    (void)state;
    assert_non_null(getcwd(current, sizeof current));
    assert_int_equal(symlink(repo_path, path_in(work_folder, "link")), 0);
    assert_rejected(repo_path);
    assert_rejected(path_in(repo_path, "a/b/c"));
    assert_rejected(path_in(work_folder, "link/a"));
    assert_int_equal(chdir(repo_path), 0);
    assert_rejected("here");
    assert_rejected(".");
    assert_int_equal(chdir(current), 0);
    assert_false(invar_path_exists(path_in(repo_path, "a")));
    assert_false(invar_path_exists(path_in(repo_path, "here")));
    assert_fails(
        invar_workspace_open(&workspace, path_in(work_folder, "none/../x"), "x", no_folders),
        INVAR_E_IO, "No such file");
    // Control: a folder next to the repository whose name has the same prefix.
    assert_ok(invar_workspace_open(&workspace, path_in(work_folder, "repo-not"), repo_path,
                                   (const char *const[]){repo_path, NULL}));
    invar_workspace_close(workspace);
    assert_fails(invar_workspace_open(&workspace, path_in(repo_path, "program"), "x", no_folders),
                 INVAR_E_IO, "program");
    assert_fails(invar_workspace_open(&workspace, "/proc/none", "x", no_folders), INVAR_E_IO,
                 "/proc");
}

static invar_status open_for(invar_workspace **out, const char *folder, const invar_repo *repo)
{
    const char *outside[] = {invar_repo_folder(repo), invar_repo_work_tree(repo), NULL};

    return invar_workspace_open(out, folder, outside[0], outside);
}

static void test_workshop__is_never_inside_a_repository(void **state)
{
    invar_workspace *workspace;
    invar_repo *repo;

    (void)state;
    run_script(NULL, work_folder,
               "git clone -q --bare repo bare.git; git -C repo worktree add -q ../linked");
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"repo", "bare.git", "linked"};
        assert_ok(invar_repo_open(&repo, path_in(work_folder, names[i])));
        assert_fails(open_for(&workspace, path_in(path_in(work_folder, names[i]), "x"), repo),
                     INVAR_E_INVALID, "lies inside the repository");
        if (i != 1)
            assert_fails(open_for(&workspace, path_in(repo_path, ".git/x"), repo), INVAR_E_INVALID,
                         "lies inside the repository");
        assert_ok(open_for(&workspace, path_in(work_folder, "bare"), repo));
        invar_workspace_close(workspace);
        invar_repo_close(repo);
    }
    run_script(NULL, repo_path, "git worktree remove ../linked; git branch -q -D linked");
}

/* ---- worktrees ------------------------------------------------------------------------------- */

static void test_workshop__slots_are_used_by_one(void **state)
{
    fixture *s = *state;
    invar_worktree more[2], other;
    invar_workspace *workspace;

    assert_int_equal(s->worktree.number, 0);
    assert_ok(invar_worktree_acquire(&more[0], s->workspace));
    assert_ok(invar_workspace_open(&workspace, workspace_path, repo_path,
                                   (const char *const[]){repo_path, NULL}));
    assert_ok(invar_worktree_acquire(&more[1], workspace));
    assert_int_equal(more[0].number, 1);
    assert_int_equal(more[1].number, 2);
    invar_worktree_release(&more[0]);
    assert_ok(invar_worktree_acquire(&other, workspace));
    assert_int_equal(other.number, 1);
    invar_worktree_release(&other);
    invar_worktree_release(&other); // releasing twice is allowed
    invar_worktree_release(&more[1]);
    invar_workspace_close(workspace);
}

/* A child that inherited the lock keeps the worktree busy, even if the parent released it. */
static void test_workshop__slot_is_busy_while_a_child_lives(void **state)
{
    fixture *s = *state;
    pid_t child = fork();
    invar_worktree other;

    if (child == 0) {
        execlp("sleep", "sleep", "1000", (char *)NULL); // control: exec closes the lock
        _exit(127);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    child = fork();
    if (child == 0) {
        pause(); // this child holds the lock
        _exit(0);
    }
    invar_worktree_release(&s->worktree);
    assert_ok(invar_worktree_acquire(&other, s->workspace));
    assert_int_equal(other.number, 1);
    invar_worktree_release(&other);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_ok(invar_worktree_acquire(&s->worktree, s->workspace));
    assert_int_equal(s->worktree.number, 0);
}

/* ---- programs -------------------------------------------------------------------------------- */

static void test_workshop__program_is_built_once(void **state)
{
    fixture *s = *state;
    invar_revision_build a = build(s, first, BUILD), b, c;
    char *text;

    assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
    assert_false(a.cached);
    assert_int_equal(access(a.path, X_OK), 0);
    assert_contains(a.log, "building\n");
    text = read_text(build_file(&a));
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
    b = build(s, same_tree, BUILD); // another commit with the same tree
    assert_true(b.cached);
    c = build(s, second, BUILD);
    assert_false(c.cached);
    assert_int_equal(count_builds(), 2);
    assert_memory_not_equal(&a.binary, &c.binary, sizeof a.binary);
    c = build(s, first, BUILD "; true"); // another command gives the same program
    assert_false(c.cached);
    assert_memory_equal(&a.binary, &c.binary, sizeof a.binary);
}

static void test_workshop__build_knows_where_it_is(void **state)
{
    fixture *s = *state;
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
    snprintf(expected, sizeof expected, "%s %s %s 2..\n", s->worktree.source, s->worktree.build,
             first);
    assert_contains(a.log, expected);
    assert_contains(build_file(&a), "\nflags = -O2 ?\nversion = 7\n");
}

static void test_workshop__failed_build_is_remembered(void **state)
{
    fixture *s = *state;
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
    fixture *s = *state;
    invar_build_plan plan = plain_build("sleep 1000");
    volatile sig_atomic_t stop = 1;
    invar_revision_build a;

    plan.timeout = 0.2;
    for (int i = 0; i < 2; i++) {
        assert_ok(
            invar_workspace_program(&a, s->workspace, &s->worktree, s->repo, first, &plan, NULL));
        assert_int_equal(a.state, INVAR_REVISION_BUILD_FAILED);
        assert_false(a.cached);
        assert_string_equal(a.failure_reason, "no end within 0.2 s");
    }
    assert_ok(
        invar_workspace_program(&a, s->workspace, &s->worktree, s->repo, first, &plan, &stop));
    assert_int_equal(a.state, INVAR_REVISION_BUILD_STOPPED);
}

/* Files of an earlier build in the worktree must not change the result of the next one. */
static void test_workshop__verdict_does_not_depend_on_the_slot(void **state)
{
    fixture *s = *state;
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

/* The program may be a file of the tree, or be reached through a symbolic link. */
static void test_workshop__program_of_the_tree(void **state)
{
    fixture *s = *state;
    invar_build_plan plan = plain_build("chmod +x program; ln -sfn ../../../.. out");
    invar_revision_build a;

    plan.program = "program";
    for (int i = 0; i < 2; i++) {
        assert_ok(invar_workspace_program(&a, s->workspace, &s->worktree, s->repo,
                                          i ? second : first, &plan, NULL));
        assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
        assert_contains(a.path, i ? "# 2" : "# 1");
    }
    plan.program = "out/kept";
    run_script(NULL, work_folder, "echo '#!/bin/sh' >kept; chmod +x kept");
    for (int i = 0; i < 2; i++) {
        assert_ok(invar_workspace_program(&a, s->workspace, &s->worktree, s->repo,
                                          i ? second : first, &plan, NULL));
        assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
        assert_true(invar_path_exists(path_in(work_folder, "kept")));
    }
}

static void test_workshop__program_without_a_name_stays_in_the_slot(void **state)
{
    fixture *s = *state;
    invar_build_plan plan = {.command = COUNT "echo made >made", .timeout = LONG_TIMEOUT};
    invar_revision_build a;

    for (int i = 1; i <= 2; i++) {
        assert_ok(
            invar_workspace_program(&a, s->workspace, &s->worktree, s->repo, first, &plan, NULL));
        assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
        assert_false(a.cached);
        assert_string_equal(a.path, "");
        assert_int_equal(count_builds(), i);
        assert_contains(path_in(s->worktree.source, "made"), "made\n");
        assert_contains(path_in(s->worktree.source, "answer"), "1\n");
    }
    plan.command = NULL; // no build, only the checked-out tree
    assert_ok(
        invar_workspace_program(&a, s->workspace, &s->worktree, s->repo, second, &plan, NULL));
    assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
    assert_contains(path_in(s->worktree.source, "answer"), "2\n");
    plan = plain_build(BUILD);
    plan.program = "/bin/true";
    assert_fails(
        invar_workspace_program(&a, s->workspace, &s->worktree, s->repo, first, &plan, NULL),
        INVAR_E_INVALID, "relative to the tree");
}

static void test_workshop__damaged_cache_is_not_believed(void **state)
{
    fixture *s = *state;
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
        run_script(NULL, folder, damage[i]);
        a = build(s, first, BUILD);
        assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
        if (a.cached)
            fail_msg("believed after: %s", damage[i]);
        assert_true(build(s, first, BUILD).cached);
    }
}

static void test_workshop__folder_and_file_become_programs(void **state)
{
    fixture *s = *state;
    invar_build_plan plan = plain_build(BUILD);
    invar_revision_build a, b, c;

    assert_ok(
        invar_workspace_program_of_folder(&a, s->workspace, &s->worktree, repo_path, &plan, NULL));
    assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
    assert_contains(build_file(&a), "dirty = unknown\n");
    assert_ok(
        invar_workspace_program_of_folder(&b, s->workspace, &s->worktree, repo_path, &plan, NULL));
    assert_true(b.cached);
    run_script(NULL, repo_path, "cp program keep; echo '# more' >>program");
    assert_ok(
        invar_workspace_program_of_folder(&c, s->workspace, &s->worktree, repo_path, &plan, NULL));
    run_script(NULL, repo_path, "mv keep program");
    assert_false(c.cached);
    assert_memory_not_equal(&a.binary, &c.binary, sizeof a.binary);
    assert_false(invar_path_exists(path_in(repo_path, "prog")));

    assert_ok(invar_workspace_program_of_file(&b, s->workspace, c.path));
    assert_int_equal(b.state, INVAR_REVISION_BUILD_READY);
    assert_memory_equal(&b.binary, &c.binary, sizeof b.binary);
    assert_string_not_equal(b.path, c.path);
    assert_contains(build_file(&b), "dirty = unknown\n");
    assert_ok(invar_workspace_program_of_file(&b, s->workspace, c.path));
    assert_true(b.cached);
    assert_fails(invar_workspace_program_of_file(&b, s->workspace, "/etc/passwd"), INVAR_E_NOTFOUND,
                 "it is no program");
    assert_fails(invar_workspace_program_of_file(&b, s->workspace, "/no/such"), INVAR_E_NOTFOUND,
                 "/no/such: cannot be read");
}

/* The digest of a program covers its CUDA module, which is copied next to it. */
static void test_workshop__modules_belong_to_a_program(void **state)
{
    static const char *const scripts[] = {
        "mkdir -p bin lib/invar; printf '#!/bin/sh\\n' >bin/prog; chmod +x bin/prog",
        "echo one >bin/invar-cuda.so", "echo two >bin/invar-cuda.so",
        "mv bin/invar-cuda.so lib/invar", "echo other >bin/invar-other.so"};
    enum { N_VARIANTS = sizeof scripts / sizeof *scripts };
    char program[INVAR_PATH_SIZE], folder[INVAR_PATH_SIZE];
    fixture *s = *state;
    invar_digest digest[N_VARIANTS], file;
    invar_revision_build built;

    (void)snprintf(program, sizeof program, "%s", path_in(repo_path, "bin/prog"));
    for (int i = 0; i < N_VARIANTS; i++) {
        run_script(NULL, repo_path, scripts[i]);
        assert_ok(invar_workspace_hash_binary(&digest[i], program, true));
        assert_ok(invar_workspace_program_of_file(&built, s->workspace, program));
        assert_memory_equal(&built.binary, &digest[i], sizeof digest[i]);
        snprintf(folder, sizeof folder, "%s", built.path);
        *strrchr(folder, '/') = '\0';
        assert_int_equal(invar_path_exists(path_in(folder, "invar-cuda.so")), i > 0);
        assert_false(invar_path_exists(path_in(folder, "invar-other.so")));
        assert_ok(invar_workspace_hash_binary(&file, built.path, true));
        assert_memory_equal(&file, &digest[i], sizeof file);
    }
    run_script(NULL, repo_path, "rm -r bin lib");
    invar_hash_bytes(&file, "#!/bin/sh\n", 10);
    // The digest of the file if there is no module.
    assert_memory_equal(&digest[0], &file, sizeof file);
    assert_memory_not_equal(&digest[0], &digest[1], sizeof file);
    assert_memory_not_equal(&digest[1], &digest[2], sizeof file);
    assert_memory_equal(&digest[2], &digest[3], sizeof file); // independent of the module's folder
    assert_memory_equal(&digest[3], &digest[4], sizeof file); // other modules do not count
}

typedef struct thread_build {
    invar_workspace *workspace;
    invar_revision_build built;
    invar_status status;
} thread_build;

static void *build_in_thread(void *payload)
{
    thread_build *r = payload;
    invar_build_plan plan = plain_build("sleep 0.2; " BUILD);
    invar_repo *repo = NULL;
    invar_worktree worktree;

    r->status = invar_worktree_acquire(&worktree, r->workspace);
    if (r->status != INVAR_OK)
        return NULL;
    r->status = invar_repo_open(&repo, repo_path);
    if (r->status == INVAR_OK)
        r->status =
            invar_workspace_program(&r->built, r->workspace, &worktree, repo, first, &plan, NULL);
    invar_repo_close(repo);
    invar_worktree_release(&worktree);
    return NULL;
}

static void test_workshop__two_may_make_the_same_program(void **state)
{
    fixture *s = *state;
    thread_build builds[4];
    pthread_t threads[4];

    for (int i = 0; i < 4; i++) {
        builds[i].workspace = s->workspace;
        assert_int_equal(pthread_create(&threads[i], NULL, build_in_thread, &builds[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(builds[i].status, INVAR_OK);
        assert_int_equal(builds[i].built.state, INVAR_REVISION_BUILD_READY);
        assert_string_equal(builds[i].built.path, builds[0].built.path);
    }
}

/* ---- kills ----------------------------------------------------------------------------------- */

/*
 * Starts a process that acquires a worktree and builds `command`, and returns when the build runs.
 */
static pid_t start_building_process(const char *command)
{
    pid_t user;

    unlink(path_in(work_folder, "tool"));
    unlink(path_in(work_folder, "shell"));
    user = fork();
    if (user == 0) {
        fixture s = {0};
        if (invar_workspace_open(&s.workspace, workspace_path, repo_path,
                                 (const char *const[]){repo_path, NULL}) != INVAR_OK ||
            invar_repo_open(&s.repo, repo_path) != INVAR_OK ||
            invar_worktree_acquire(&s.worktree, s.workspace) != INVAR_OK)
            _exit(1);
        build(&s, first, command);
        _exit(0);
    }
    invar_test_read_pid(path_in(work_folder, "tool"));
    invar_test_read_pid(path_in(work_folder, "shell"));
    return user;
}

static void test_workshop__killed_user_leaves_nothing_that_counts(void **state)
{
    fixture *s = *state;
    static const char command[] =
        BUILD "; [ -z \"$HANG\" ] && exit 0; echo half >\"$INVAR_BUILD/half\"; echo half >half; "
              "setsid sh -c 'echo $$ >\"$TOOL\"; while :; do sleep 0.01; done' & "
              "echo $$ >\"$SHELL_PID\"; while :; do sleep 0.01; done";
    invar_revision_build a;
    pid_t user, tool, sh;
    invar_worktree other;

    setenv("TOOL", path_in(work_folder, "tool"), 1);
    setenv("SHELL_PID", path_in(work_folder, "shell"), 1);
    setenv("HANG", "yes", 1);
    invar_worktree_release(&s->worktree);
    user = start_building_process(command);
    unsetenv("HANG");
    tool = invar_test_read_pid(path_in(work_folder, "tool"));
    sh = invar_test_read_pid(path_in(work_folder, "shell"));

    // A living user keeps its worktree and its children.
    assert_ok(invar_worktree_acquire(&other, s->workspace));
    assert_int_equal(other.number, 1);
    invar_worktree_release(&other);
    assert_int_equal(kill(tool, 0), 0);
    assert_int_equal(kill(sh, 0), 0);

    kill(user, SIGKILL);
    assert_true(invar_test_wait_exit(sh)); // killed by the kernel with its parent
    assert_true(invar_test_wait_exit(user));
    assert_int_equal(kill(tool, 0), 0);
    assert_ok(invar_worktree_acquire(&s->worktree, s->workspace));
    assert_int_equal(s->worktree.number, 0);
    assert_true(invar_test_wait_exit(tool));
    assert_false(invar_path_exists(s->worktree.build));
    assert_false(invar_path_exists(s->worktree.source));
    waitpid(user, NULL, 0);
    a = build(s, first, command);
    assert_false(a.cached);
    assert_int_equal(a.state, INVAR_REVISION_BUILD_READY);
    assert_false(invar_path_exists(path_in(s->worktree.build, "half")));
}
/* ---- a full disk ----------------------------------------------------------------------------- */

/* A build that fills a disk of 20 MiB gives an I/O error, never a verdict about the commit. */
static void test_workshop__full_disk_is_no_verdict(void **state)
{
    static const char fill[] = "head -c 30000000 /dev/zero >\"$INVAR_BUILD/fill\"";
    invar_build_plan plan = plain_build(fill);
    invar_revision_build built;
    fixture s = {0};

    (void)state;
    snprintf(disk_path, sizeof disk_path, "%s/disk", work_folder);
    assert_ok(invar_held_folder_make(disk_path));
    if (mount("tmpfs", disk_path, "tmpfs", 0, "size=20m,mode=700") != 0) {
        print_message("no small disk can be had here: %s\n", strerror(errno));
        skip();
    }
    assert_ok(invar_workspace_open(&s.workspace, disk_path, repo_path,
                                   (const char *const[]){repo_path, NULL}));
    assert_ok(invar_repo_open(&s.repo, repo_path));
    assert_ok(invar_worktree_acquire(&s.worktree, s.workspace));
    for (int i = 0; i < 3; i++) {
        // The third build fails on the disk that is full already.
        plan.command = i < 2 ? fill : "exit 1";
        assert_int_equal(
            invar_workspace_program(&built, s.workspace, &s.worktree, s.repo, first, &plan, NULL),
            INVAR_E_IO);
        assert_int_equal(invar_error_last()->native, ENOSPC);
    }
    invar_worktree_release(&s.worktree);
    invar_repo_close(s.repo);
    invar_workspace_close(s.workspace);
}

static int unmount_disk(void **state)
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

    return cmocka_run_group_tests(tests, setup_repository, unmount_disk);
}
