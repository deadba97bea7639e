/*
 * repo.c - git repositories for tests, made by the real git.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // mkdtemp

#include "tests/repo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support.h"

#define SCRIPT_BYTES 65536

/* libgit2 1.5 leaks the result of every regular expression that it matches with PCRE2. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libpcre2\n";
}

static const char prelude[] =
    "set -e; umask 022; export LC_ALL=C TZ=UTC GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1\n"
    "export GIT_AUTHOR_NAME=Ann GIT_AUTHOR_EMAIL=ann@example.org\n"
    "export GIT_COMMITTER_NAME=Cem GIT_COMMITTER_EMAIL=cem@example.org\n"
    "unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE\n"
    "git() { command git -c protocol.file.allow=always -c init.defaultBranch=main "
    "-c gc.auto=0 -c advice.detachedHead=false \"$@\"; }\n"
    "tick() {\n"
    "  now=$(($(cat \"$CLOCK\" 2>/dev/null || echo 1700000000) + 60)); echo $now >\"$CLOCK\"\n"
    "  export GIT_AUTHOR_DATE=\"$now +0000\" GIT_COMMITTER_DATE=\"$now +0000\"\n"
    "}\n"
    "commit() { tick; git add -A; git commit -q --allow-empty -m \"$1\"; }\n"
    "object() { echo .git/objects/$(echo $1 | cut -c1-2)/$(echo $1 | cut -c3-); }\n"
    "[ ! -e \"$CLOCK\" ] || export GIT_AUTHOR_DATE=\"$(cat \"$CLOCK\") +0000\" "
    "GIT_COMMITTER_DATE=\"$(cat \"$CLOCK\") +0000\"\n";

void invar_test_folder(char out[INVAR_PATH_SIZE], const char *name)
{
    snprintf(out, INVAR_PATH_SIZE, "%s/%s-XXXXXX", INVAR_TEST_WORK, name);
    if (!mkdtemp(out))
        fail_msg("%s cannot be made", out);
}

static void run_script(char *out, size_t size, const char *folder, const char *script, va_list list)
{
    static char text[sizeof prelude + SCRIPT_BYTES];
    char clock[INVAR_PATH_SIZE];
    int pipes[2], state;
    size_t used = 0;
    ssize_t got;
    pid_t child;

    memcpy(text, prelude, sizeof prelude);
    assert_true(vsnprintf(text + sizeof prelude - 1, SCRIPT_BYTES, script, list) < SCRIPT_BYTES);
    snprintf(clock, sizeof clock, "%s/repo-clock-%d", INVAR_TEST_WORK, (int)getpid());
    assert_int_equal(pipe(pipes), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipes[1], 1);
        close(pipes[0]);
        close(pipes[1]);
        if (chdir(folder) != 0 || setenv("CLOCK", clock, 1) != 0)
            _exit(126);
        execl("/bin/sh", "sh", "-c", text, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    while ((got = read(pipes[0], out + used, size - 1 - used)) > 0)
        used += (size_t)got;
    close(pipes[0]);
    while (used > 0 && out[used - 1] == '\n')
        used--;
    out[used] = '\0';
    assert_int_equal(waitpid(child, &state, 0), child);
    if (state != 0)
        fail_msg("%s: the script ended with %d: %s\n%s", folder, state, text + sizeof prelude - 1,
                 out);
}

void invar_test_shell(const char *folder, const char *script, ...)
{
    static char out[4096];
    va_list list;

    va_start(list, script);
    run_script(out, sizeof out, folder, script, list);
    va_end(list);
}

void invar_test_shell_output(char *out, size_t size, const char *folder, const char *script, ...)
{
    va_list list;

    va_start(list, script);
    run_script(out, size, folder, script, list);
    va_end(list);
}

void invar_test_revision(char out[INVAR_OID_SIZE], const char *folder, const char *revision)
{
    invar_test_shell_output(out, INVAR_OID_SIZE, folder, "git rev-list -1 '%s' --", revision);
    assert_int_equal(strlen(out), INVAR_OID_SIZE - 1);
}

void invar_test_fingerprint(char out[INVAR_DIGEST_HEX_SIZE], const char *folder)
{
    invar_test_shell_output(out, INVAR_DIGEST_HEX_SIZE, folder,
                            "{ find . -print0 | sort -z | xargs -0 stat -c '%%n %%F %%a %%s %%y'\n"
                            "  find . -type f -print0 | sort -z | xargs -0 -r cksum\n"
                            "  find . -type l -print0 | sort -z | xargs -0 -r readlink\n"
                            "} | md5sum | cut -c1-32");
    assert_int_equal(strlen(out), INVAR_DIGEST_HEX_SIZE - 1);
}

void invar_test_sample_repo(const char *folder)
{
    invar_test_shell(folder, "git init -q r; cd r; mkdir d\n"
                             "for i in 1 2 3 4 5; do echo $i >d/f; commit c$i; done\n"
                             "git tag -a t3 -m tag HEAD~2; git tag light HEAD~1\n"
                             "git checkout -q -b side HEAD~2\n"
                             "for i in 6 7; do echo $i >g; commit s$i; done\n"
                             "git checkout -q main; git config uploadpack.allowfilter true\n"
                             "git config uploadpack.allowAnySHA1InWant true\n"
                             "git clone -q . ../clone; git worktree add -q ../linked side");
}

/* ---- the home of a test program -------------------------------------------------------------- */

char invar_test_home[INVAR_PATH_SIZE];

void invar_test_home_create(const char *name)
{
    invar_test_folder(invar_test_home, name);
    setenv("HOME", invar_test_home, 1);
    setenv("XDG_CONFIG_HOME", invar_test_home, 1);
}

int invar_test_home_remove(void **state)
{
    (void)state;
    return invar_held_folder_remove(invar_test_home) == INVAR_OK ? 0 : -1;
}

const char *invar_test_home_path(const char *name)
{
    static char path[16][2 * INVAR_PATH_SIZE];
    static int next;
    char *out = path[next++ % 16];

    snprintf(out, sizeof path[0], "%s/%s", invar_test_home, name);
    return out;
}

invar_repo *invar_test_repo_open(const char *path)
{
    invar_repo *repo;

    assert_ok(invar_repo_open(&repo, path));
    return repo;
}
