/*
 * snapshot.c - tests of copying a work tree with its uncommitted changes.
 *
 * The copied files are compared with the lists of git ls-files. The digest must change with each
 * change of content, and stay the same after changes of times or ignored files (control).
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

static int set_up(void **state)
{
    (void)state;
    invar_test_home_create("snapshot");
    // Has tracked, changed, deleted, untracked, ignored, and tracked though ignored files, and a
    // nested repository.
    invar_test_shell(
        invar_test_home,
        "git init -q r; cd r; printf '*.o\\n/build/\\nlogs/\\n' >.gitignore; mkdir src build logs\n"
        "echo 1 >src/a; echo 1 >src/b; echo 1 >gone; echo 1 >src/kept.o; echo 1 >logs/kept\n"
        "git add -f src/kept.o logs/kept; commit one; echo 2 >src/b; rm gone; echo new >src/new\n"
        "echo o >src/a.o; echo p >build/p; echo l >logs/l; ln -s src/a link; chmod +x src/new\n"
        "ln -s nowhere dangling; mkfifo pipe; mkdir hollow; echo odd >\"$(printf 'o\\n\\377')\"\n"
        "git init -q nested; cd nested; echo '*.tmp' >.gitignore; echo n >n.o; echo t >n.tmp");
    return 0;
}

static void take_snapshot(char hash[INVAR_OID_SIZE], const char *from, const char *folder)
{
    assert_ok(invar_repo_snapshot(hash, from, folder));
    assert_int_equal(strlen(hash), INVAR_DIGEST_HEX_SIZE - 1);
}

static void test_repo_snapshot__takes_what_git_would(void **state)
{
    char hash[INVAR_OID_SIZE], again[INVAR_OID_SIZE];

    (void)state;
    take_snapshot(hash, invar_test_home_path("r"), invar_test_home_path("copy"));
    // The list of git: existing tracked files, and untracked files that are not ignored.
    invar_test_shell(invar_test_home,
                     "cd r; { git ls-files -z -c -o --exclude-standard -- ':!nested'\n"
                     "git -C nested ls-files -z -c -o --exclude-standard | sed -z 's,^,nested/,'\n"
                     "} | sort -zu >../want\n"
                     "cd ../copy; { find . ! -type d -printf '%%P\\0'; printf 'gone\\0'; } | "
                     "sort -z | cmp - ../want");
    invar_test_shell(invar_test_home,
                     "cd copy; [ $(cat src/b) = 2 ]; [ -e src/kept.o ]; [ -e logs/kept ]\n"
                     "[ ! -e src/a.o ]; [ ! -e build ]; [ ! -e logs/l ]; [ ! -e gone ]\n"
                     "[ -x src/new ]; [ ! -x src/a ]; [ $(readlink link) = src/a ]\n"
                     "[ $(readlink dangling) = nowhere ]; [ ! -e pipe ]; [ ! -e .git ]\n"
                     "[ -e nested/n.o ]; [ ! -e nested/n.tmp ]; [ ! -e nested/.git ]\n"
                     "[ $(cat o*) = odd ]; [ ! -e hollow ]");
    take_snapshot(again, invar_test_home_path("r"), invar_test_home_path("copy"));
    assert_string_equal(hash, again);
    take_snapshot(again, invar_test_home_path("r"), invar_test_home_path("other"));
    assert_string_equal(hash, again);
    invar_test_shell(invar_test_home, "diff -r --no-dereference copy other");
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
    take_snapshot(before, invar_test_home_path("r"), invar_test_home_path("copy"));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        invar_test_shell(invar_test_home, "%s", changes[i]);
        take_snapshot(after, invar_test_home_path("r"), invar_test_home_path("copy"));
        assert_string_not_equal(before, after);
        memcpy(before, after, sizeof before);
    }
    // Control: times, ignored files and files in the copy do not matter.
    invar_test_shell(invar_test_home,
                     "touch -d 2001-01-01 r/src/*; echo x >r/build/x; echo y >copy/y");
    take_snapshot(after, invar_test_home_path("r"), invar_test_home_path("copy"));
    assert_string_equal(before, after);
    invar_test_shell(invar_test_home, "[ $(cat copy/y) = y ]");
}

static void test_repo_snapshot__is_incremental(void **state)
{
    struct stat before, after;
    char hash[INVAR_OID_SIZE];

    (void)state;
    take_snapshot(hash, invar_test_home_path("r"), invar_test_home_path("step"));
    assert_int_equal(stat(invar_test_home_path("step/src/a"), &before), 0);
    invar_test_shell(invar_test_home,
                     "echo 9 >r/src/b; rm r/src/newer; mkdir r/deep; echo d >r/deep/d\n"
                     "touch -d 2002-02-02 r/src/a");
    take_snapshot(hash, invar_test_home_path("r"), invar_test_home_path("step"));
    assert_int_equal(stat(invar_test_home_path("step/src/a"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    invar_test_shell(invar_test_home, "[ $(cat step/src/b) = 9 ]; [ ! -e step/src/newer ]\n"
                                      "[ -e step/deep/d ]; rm -r r/deep");
    take_snapshot(hash, invar_test_home_path("r"), invar_test_home_path("step"));
    assert_false(invar_path_exists(invar_test_home_path("step/deep")));
}

static void test_repo_snapshot__of_plain_folders(void **state)
{
    char hash[INVAR_OID_SIZE];

    (void)state;
    // `r/build` is ignored by its repository, so it is copied as a plain folder.
    invar_test_shell(invar_test_home,
                     "mkdir -p r/build/in; echo x >r/build/in/x.o; cd r/build\n"
                     "mkdir -p runs/one empty .git; touch runs/one/ledger.db runs/one/other\n"
                     "echo f >runs/f");
    take_snapshot(hash, invar_test_home_path("r/build"), invar_test_home_path("plain"));
    invar_test_shell(invar_test_home,
                     "cd plain; [ -e p ]; [ -e in/x.o ]; [ ! -e runs/one ]; [ -e runs/f ]\n"
                     "[ -d empty ]; [ ! -e .git ]");
    // A folder inside a repository follows the ignore rules of the repository.
    take_snapshot(hash, invar_test_home_path("r/src"), invar_test_home_path("part"));
    invar_test_shell(invar_test_home,
                     "cd part; [ -e a ]; [ -e kept.o ]; [ ! -e a.o ]; rm -r ../r/build/.git");
}

static void test_repo_snapshot__says_what_is_wrong(void **state)
{
    char hash[INVAR_OID_SIZE];

    (void)state;
    assert_fails(
        invar_repo_snapshot(hash, invar_test_home_path("nowhere"), invar_test_home_path("x")),
        INVAR_E_NOTFOUND, "nowhere");
    assert_fails(
        invar_repo_snapshot(hash, invar_test_home_path("r/src/a"), invar_test_home_path("x")),
        INVAR_E_NOTFOUND, "src/a");
    assert_fails(
        invar_repo_snapshot(hash, invar_test_home_path("r"), invar_test_home_path("r/copy")),
        INVAR_E_INVALID, "copy");
    assert_fails(
        invar_repo_snapshot(hash, invar_test_home_path("r"), invar_test_home_path("r/a/b/c")),
        INVAR_E_INVALID, "copy");
    assert_fails(invar_repo_snapshot(hash, invar_test_home_path("r"), invar_test_home_path("r")),
                 INVAR_E_INVALID, "copy");
    assert_fails(invar_repo_snapshot(hash, invar_test_home_path("r"), invar_test_home),
                 INVAR_E_INVALID, "copy");
    assert_fails(invar_repo_snapshot(hash, "/", invar_test_home_path("x")), INVAR_E_INVALID,
                 "copy");
    assert_false(invar_path_exists(invar_test_home_path("r/copy")));
    if (geteuid() != 0) {
        invar_test_shell(invar_test_home, "chmod 0 r/src/b");
        assert_fails(
            invar_repo_snapshot(hash, invar_test_home_path("r"), invar_test_home_path("x")),
            INVAR_E_IO, "src/b");
        invar_test_shell(invar_test_home, "chmod 644 r/src/b");
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

    return cmocka_run_group_tests(tests, set_up, invar_test_home_remove);
}
