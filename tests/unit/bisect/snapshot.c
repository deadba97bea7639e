/*
 * snapshot.c - tests of copying a work tree as it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bisect/git/repo.h"
#include "tests/repo.h"
#include "tests/support.h"

static char work[INVAR_PATH_SIZE];

static const char *in(const char *name)
{
    static char path[16][2 * INVAR_PATH_SIZE];
    static int next;
    char *out = path[next++ % 16];

    snprintf(out, sizeof path[0], "%s/%s", work, name);
    return out;
}

static int set_up(void **state)
{
    (void)state;
    invar_test_folder(work, "snapshot");
    setenv("HOME", work, 1);
    setenv("XDG_CONFIG_HOME", work, 1);
    // tracked, changed, deleted, untracked, ignored, ignored but tracked, nested repositories
    invar_test_shell(
        work,
        "git init -q r; cd r; printf '*.o\\n/build/\\nlogs/\\n' >.gitignore; mkdir src build logs\n"
        "echo 1 >src/a; echo 1 >src/b; echo 1 >gone; echo 1 >src/kept.o; echo 1 >logs/kept\n"
        "git add -f src/kept.o logs/kept; commit one; echo 2 >src/b; rm gone; echo new >src/new\n"
        "echo o >src/a.o; echo p >build/p; echo l >logs/l; ln -s src/a link; chmod +x src/new\n"
        "ln -s nowhere dangling; mkfifo pipe; mkdir hollow; echo odd >\"$(printf 'o\\n\\377')\"\n"
        "git init -q nested; cd nested; echo '*.tmp' >.gitignore; echo n >n.o; echo t >n.tmp");
    return 0;
}

static int clean_up(void **state)
{
    (void)state;
    return invar_folder_remove(work) == INVAR_OK ? 0 : -1;
}

static void snap(char hash[INVAR_OID_SIZE], const char *from, const char *folder)
{
    assert_ok(invar_repo_snapshot(hash, from, folder));
    assert_int_equal(strlen(hash), INVAR_DIGEST_HEX_SIZE - 1);
}

static void test_repo_snapshot__takes_what_git_would(void **state)
{
    char hash[INVAR_OID_SIZE], again[INVAR_OID_SIZE];

    (void)state;
    snap(hash, in("r"), in("copy"));
    // git's own list: tracked and there, or untracked and not ignored
    invar_test_shell(work,
                     "cd r; { git ls-files -z -c -o --exclude-standard -- ':!nested'\n"
                     "git -C nested ls-files -z -c -o --exclude-standard | sed -z 's,^,nested/,'\n"
                     "} | sort -zu >../want\n"
                     "cd ../copy; { find . ! -type d -printf '%%P\\0'; printf 'gone\\0'; } | "
                     "sort -z | cmp - ../want");
    invar_test_shell(work, "cd copy; [ $(cat src/b) = 2 ]; [ -e src/kept.o ]; [ -e logs/kept ]\n"
                           "[ ! -e src/a.o ]; [ ! -e build ]; [ ! -e logs/l ]; [ ! -e gone ]\n"
                           "[ -x src/new ]; [ ! -x src/a ]; [ $(readlink link) = src/a ]\n"
                           "[ $(readlink dangling) = nowhere ]; [ ! -e pipe ]; [ ! -e .git ]\n"
                           "[ -e nested/n.o ]; [ ! -e nested/n.tmp ]; [ ! -e nested/.git ]\n"
                           "[ $(cat o*) = odd ]; [ ! -e hollow ]");
    snap(again, in("r"), in("copy"));
    assert_string_equal(hash, again);
    snap(again, in("r"), in("other"));
    assert_string_equal(hash, again);
    invar_test_shell(work, "diff -r --no-dereference copy other");
}

static void test_repo_snapshot__names_the_content(void **state)
{
    static const char *const changes[] = {"echo 3 >r/src/b",
                                          "chmod -x r/src/new",
                                          "mv r/src/new r/src/newer",
                                          "ln -sf src/b r/link",
                                          "rm r/dangling",
                                          "echo >r/empty",
                                          "rm r/link; cp r/src/b r/link"};
    char before[INVAR_OID_SIZE], after[INVAR_OID_SIZE];

    (void)state;
    snap(before, in("r"), in("copy"));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        invar_test_shell(work, "%s", changes[i]);
        snap(after, in("r"), in("copy"));
        assert_string_not_equal(before, after);
        memcpy(before, after, sizeof before);
    }
    // times, ignored files and what lies in the copy have no say
    invar_test_shell(work, "touch -d 2001-01-01 r/src/*; echo x >r/build/x; echo y >copy/y");
    snap(after, in("r"), in("copy"));
    assert_string_equal(before, after);
    invar_test_shell(work, "[ $(cat copy/y) = y ]");
}

static void test_repo_snapshot__is_incremental(void **state)
{
    struct stat before, after;
    char hash[INVAR_OID_SIZE];

    (void)state;
    snap(hash, in("r"), in("step"));
    assert_int_equal(stat(in("step/src/a"), &before), 0);
    invar_test_shell(work, "echo 9 >r/src/b; rm r/src/newer; mkdir r/deep; echo d >r/deep/d\n"
                           "touch -d 2002-02-02 r/src/a");
    snap(hash, in("r"), in("step"));
    assert_int_equal(stat(in("step/src/a"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    invar_test_shell(work, "[ $(cat step/src/b) = 9 ]; [ ! -e step/src/newer ]\n"
                           "[ -e step/deep/d ]; rm -r r/deep");
    snap(hash, in("r"), in("step"));
    assert_false(invar_path_exists(in("step/deep")));
}

static void test_repo_snapshot__of_plain_folders(void **state)
{
    char hash[INVAR_OID_SIZE];

    (void)state;
    // `r/build` is ignored by the repository above: it does not belong to it
    invar_test_shell(work, "mkdir -p r/build/in; echo x >r/build/in/x.o; cd r/build\n"
                           "mkdir -p runs/one empty .git; touch runs/one/ledger.db runs/one/other\n"
                           "echo f >runs/f");
    snap(hash, in("r/build"), in("plain"));
    invar_test_shell(work, "cd plain; [ -e p ]; [ -e in/x.o ]; [ ! -e runs/one ]; [ -e runs/f ]\n"
                           "[ -d empty ]; [ ! -e .git ]");
    // a folder of a repository goes by its rules
    snap(hash, in("r/src"), in("part"));
    invar_test_shell(work, "cd part; [ -e a ]; [ -e kept.o ]; [ ! -e a.o ]; rm -r ../r/build/.git");
}

static void test_repo_snapshot__says_what_is_wrong(void **state)
{
    char hash[INVAR_OID_SIZE];

    (void)state;
    assert_fails(invar_repo_snapshot(hash, in("nowhere"), in("x")), INVAR_E_NOTFOUND, "nowhere");
    assert_fails(invar_repo_snapshot(hash, in("r/src/a"), in("x")), INVAR_E_NOTFOUND, "src/a");
    assert_fails(invar_repo_snapshot(hash, in("r"), in("r/copy")), INVAR_E_INVALID, "copy");
    assert_fails(invar_repo_snapshot(hash, in("r"), in("r/a/b/c")), INVAR_E_INVALID, "copy");
    assert_fails(invar_repo_snapshot(hash, in("r"), in("r")), INVAR_E_INVALID, "copy");
    assert_fails(invar_repo_snapshot(hash, in("r"), work), INVAR_E_INVALID, "copy");
    assert_fails(invar_repo_snapshot(hash, "/", in("x")), INVAR_E_INVALID, "copy");
    assert_false(invar_path_exists(in("r/copy")));
    if (geteuid() != 0) {
        invar_test_shell(work, "chmod 0 r/src/b");
        assert_fails(invar_repo_snapshot(hash, in("r"), in("x")), INVAR_E_IO, "src/b");
        invar_test_shell(work, "chmod 644 r/src/b");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repo_snapshot__takes_what_git_would),
        cmocka_unit_test(test_repo_snapshot__names_the_content),
        cmocka_unit_test(test_repo_snapshot__is_incremental),
        cmocka_unit_test(test_repo_snapshot__of_plain_folders),
        cmocka_unit_test(test_repo_snapshot__says_what_is_wrong),
    };

    return cmocka_run_group_tests(tests, set_up, clean_up);
}
