/*
 * checkout.c - tests of checking out commits: against git, with submodules, hostile trees, kills.
 *
 * Folders are compared with git checkout-index, which reads the tree into an empty work tree.
 * Untracked files stay, changed tracked files are restored, and no checkout writes outside of its
 * folder. After a kill at any moment, the next checkout must be complete.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bisect/git/repo.h"
#include "tests/repo.h"
#include "tests/support.h"

static int set_up(void **state)
{
    (void)state;
    invar_test_home_create("checkout");
    // Files that become folders and back, links, modes, unusual names, empty files, deep folders.
    invar_test_shell(
        invar_test_home,
        "git init -q r; cd r; git config core.quotePath false\n"
        "echo 1 >a; mkdir -p d/e/f; echo x >d/e/f/g; : >empty; printf '#!/bin/sh\\n' >run\n"
        "chmod +x run; ln -s a link; ln -s nowhere/at/all dangling; commit 0\n"
        "rm a; mkdir a; echo 2 >a/b; echo 3 >a/c; rm -r d; echo file >d; commit 1\n"
        "rm -r a d; ln -s d a; mkdir d; echo 4 >d/x; chmod -x run; commit 2\n"
        "rm link; mkdir link; echo 5 >link/in; echo - >\"$(printf 'odd \\t \\303\\244 \\377 "
        "\"*')\"\n"
        "echo dash >-dash; echo colon >:colon; printf 'crlf\\r\\n' >crlf; commit 3\n"
        "echo '* text=auto eol=crlf' >.gitattributes; echo '*.txt export-ignore' >>.gitattributes\n"
        "echo '$Id$' >id; echo t >t.txt; mkdir -p 1/2/3/4/5/6/7/8/9; echo n >1/2/3/4/5/6/7/8/9/n\n"
        "commit 4; git rm -rq .; echo only >only; commit 5; git rm -q only; commit 6\n"
        "for i in 0 1 2 3 4 5 6; do git tag c$i HEAD~$((6 - i)); done");
    return 0;
}

static invar_status check_out(invar_repo *repo, const char *revision, const char *folder)
{
    char id[INVAR_OID_SIZE];

    assert_ok(invar_repo_resolve(id, repo, revision));
    return invar_repo_checkout(repo, id, folder);
}

/* Compares the folder with a work tree that git checks out without attributes. */
static void assert_same(const char *repo, const char *revision, const char *folder)
{
    invar_test_shell(
        invar_test_home,
        "rm -rf want; git init -q want; cd want\n"
        "mkdir -p .git/info; echo '* -text -eol -ident -filter' >.git/info/attributes\n"
        "echo '%s/.git/objects' >.git/objects/info/alternates\n"
        "git read-tree \"$(git -C '%s' rev-parse '%s^{tree}')\"\n"
        "git checkout-index -q -a -f; rm -rf .git; cd ..\n"
        "diff -r --no-dereference want '%s'\n"
        "(cd want; find . -printf '%%y%%m %%p %%l\\n' | sort) >want.list\n"
        "(cd '%s'; find . -printf '%%y%%m %%p %%l\\n' | sort) >got.list\n"
        "cmp want.list got.list",
        repo, repo, revision, folder, folder);
}

static void test_repo_checkout__equals_git(void **state)
{
    invar_repo *repo = invar_test_repo_open(invar_test_home_path("r"));
    int64_t rounds = invar_test_count(14, 200);
    char revision[8];

    (void)state;
    for (int64_t i = 0; i < rounds; i++) {
        // First all commits in order, then random changes from one to another.
        int number = i < 7 ? (int)i : (int)(invar_test_random(1, (uint64_t)i) % 7);
        snprintf(revision, sizeof revision, "c%d", number);
        assert_ok(check_out(repo, revision, invar_test_home_path("out")));
        assert_same(invar_test_home_path("r"), revision, invar_test_home_path("out"));
    }
    invar_repo_close(repo);
    invar_test_shell(invar_test_home, "git clone -q --bare r bare");
    repo = invar_test_repo_open(invar_test_home_path("bare"));
    assert_ok(check_out(repo, "c4", invar_test_home_path("out")));
    assert_same(invar_test_home_path("r"), "c4", invar_test_home_path("out"));
    invar_repo_close(repo);
}

static void test_repo_checkout__leaves_alone_what_it_may(void **state)
{
    struct stat before, after;
    invar_repo *repo;

    (void)state;
    invar_test_shell(invar_test_home,
                     "git init -q keep; cd keep; mkdir src; echo 1 >src/a; echo 1 >src/b\n"
                     "mkdir gone; echo 1 >gone/x; commit one; echo 2 >src/b; rm -r gone\n"
                     "echo 1 >new; commit two");
    repo = invar_test_repo_open(invar_test_home_path("keep"));
    assert_ok(check_out(repo, "HEAD~1", invar_test_home_path("kept")));
    invar_test_shell(invar_test_home,
                     "cd kept; touch -d 2020-01-01 src; mkdir build; echo o >src/a.o\n"
                     "echo p >build/p; echo untracked >gone/y; echo in-the-way >new");
    assert_int_equal(stat(invar_test_home_path("kept/src/a"), &before), 0);
    assert_ok(check_out(repo, "HEAD", invar_test_home_path("kept")));
    assert_int_equal(stat(invar_test_home_path("kept/src/a"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(before.st_mtim.tv_sec, after.st_mtim.tv_sec);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    invar_test_shell(invar_test_home,
                     "cd kept; [ $(cat src/b) = 2 ]; [ $(cat src/a.o) = o ]; [ -e build/p ]\n"
                     "[ $(cat gone/y) = untracked ]; [ ! -e gone/x ]; [ $(cat new) = 1 ]");
    // A second checkout of the commit changes nothing, not even the record kept.tree.
    assert_int_equal(stat(invar_test_home_path("kept.tree"), &before), 0);
    assert_ok(check_out(repo, "HEAD", invar_test_home_path("kept")));
    assert_int_equal(stat(invar_test_home_path("kept.tree"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    // Changes of tracked files by a build are undone.
    invar_test_shell(invar_test_home, "cd kept; echo spoiled >src/a; rm src/b; chmod +x new");
    assert_ok(check_out(repo, "HEAD", invar_test_home_path("kept")));
    invar_test_shell(invar_test_home,
                     "cd kept; [ $(cat src/a) = 1 ]; [ $(cat src/b) = 2 ]; [ ! -x new ]");
    // A folder replaced a file, then a file replaced a folder.
    invar_test_shell(invar_test_home,
                     "cd kept; rm src/a; mkdir -p src/a/deep; echo 1 >src/a/deep/er");
    assert_ok(check_out(repo, "HEAD", invar_test_home_path("kept")));
    invar_test_shell(invar_test_home, "cd kept; [ $(cat src/a) = 1 ]; rm -r src; echo 1 >src");
    assert_ok(check_out(repo, "HEAD", invar_test_home_path("kept")));
    invar_test_shell(invar_test_home, "cd kept; [ $(cat src/a) = 1 ]; [ -e build/p ]");
    // A damaged or missing record kept.tree causes a complete checkout.
    invar_test_shell(invar_test_home, "sed -i s/src/srx/ kept.tree");
    assert_ok(check_out(repo, "HEAD", invar_test_home_path("kept")));
    assert_same(invar_test_home_path("keep"), "HEAD", invar_test_home_path("kept"));
    invar_test_shell(invar_test_home, "rm kept.tree; echo stray >kept/stray");
    assert_ok(check_out(repo, "HEAD", invar_test_home_path("kept")));
    assert_same(invar_test_home_path("keep"), "HEAD", invar_test_home_path("kept"));
    invar_repo_close(repo);
}

/* ---- hostile trees --------------------------------------------------------------------------- */

static void test_repo_checkout__never_leaves_its_folder(void **state)
{
    char before[INVAR_DIGEST_HEX_SIZE], after[INVAR_DIGEST_HEX_SIZE];
    invar_repo *repo;

    (void)state;
    invar_test_shell(invar_test_home,
                     "mkdir outside; echo safe >outside/x; git init -q evil; cd evil\n"
                     "ln -s ../outside a; commit link; git tag link; rm a; mkdir a\n"
                     "echo evil >a/x; echo evil >a/y; commit folder; git tag folder\n"
                     "git rm -rq a; commit none; git tag none");
    invar_test_fingerprint(before, invar_test_home_path("outside"));
    repo = invar_test_repo_open(invar_test_home_path("evil"));
    static const char *const order[] = {"link", "folder", "link", "none",
                                        "link", "folder", "none", "folder"};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        assert_ok(check_out(repo, order[i], invar_test_home_path("cage")));
        assert_same(invar_test_home_path("evil"), order[i], invar_test_home_path("cage"));
    }
    // A build replaces a tracked folder by a link.
    invar_test_shell(invar_test_home, "rm -r cage/a; ln -s ../outside cage/a");
    assert_ok(check_out(repo, "none", invar_test_home_path("cage")));
    invar_test_shell(invar_test_home, "rm -f cage/a");
    assert_ok(check_out(repo, "folder", invar_test_home_path("cage")));
    invar_test_shell(invar_test_home, "rm -r cage/a; ln -s ../outside cage/a");
    assert_ok(check_out(repo, "folder", invar_test_home_path("cage")));
    assert_same(invar_test_home_path("evil"), "folder", invar_test_home_path("cage"));
    // A build replaces a tracked file by a link.
    invar_test_shell(invar_test_home, "rm cage/a/x; ln -s ../../outside/x cage/a/x");
    assert_ok(check_out(repo, "folder", invar_test_home_path("cage")));
    assert_same(invar_test_home_path("evil"), "folder", invar_test_home_path("cage"));
    invar_test_fingerprint(after, invar_test_home_path("outside"));
    assert_string_equal(before, after);
    invar_repo_close(repo);
}

/* Tags a commit whose tree consists of raw entries; in `entries`, $b is a blob and $t a tree. */
static void tag_hostile_tree(const char *tag, const char *entries)
{
    invar_test_shell(invar_test_home_path("evil"),
                     "b=$(echo evil | git hash-object -w --stdin)\n"
                     "raw() { printf %%s \"$1\" | sed 's/../\\\\x&/g' | xargs -0 -I@ "
                     "bash -c \"printf '@'\"; }\n"
                     "t=$(printf '100644 x\\0' >f; raw $b >>f; "
                     "git hash-object -t tree --literally -w f)\n"
                     "{ %s; } >f; t=$(git hash-object -t tree --literally -w f); rm f\n"
                     "tick; git tag %s $(git commit-tree -m evil $t)",
                     entries, tag);
}

static void test_repo_checkout__refuses_evil_names(void **state)
{
    invar_repo *repo;

    (void)state;
    tag_hostile_tree("up", "printf '40000 ..\\0'; raw $t");
    tag_hostile_tree("dot", "printf '40000 .\\0'; raw $t");
    tag_hostile_tree("git", "printf '40000 .git\\0'; raw $t");
    tag_hostile_tree("Git", "printf '100644 .GiT\\0'; raw $b");
    tag_hostile_tree("slash", "printf '100644 ../escaped\\0'; raw $b");
    tag_hostile_tree("root", "printf '100644 /tmp/escaped\\0'; raw $b");
    tag_hostile_tree("both", "printf '100644 a\\0'; raw $b; printf '40000 a\\0'; raw $t");
    tag_hostile_tree("apart", "printf '100644 a\\0'; raw $b; printf '100644 a-\\0'; raw $b; "
                              "printf '40000 a\\0'; raw $t");
    tag_hostile_tree("twice", "printf '100644 a\\0'; raw $b; printf '100644 a\\0'; raw $b");
    tag_hostile_tree("fine", "printf '100644 a\\0'; raw $b; printf '40000 b\\0'; raw $t");
    repo = invar_test_repo_open(invar_test_home_path("evil"));
    static const char *const tags[] = {"up",   "dot",  "git",   "Git",  "slash",
                                       "root", "both", "apart", "twice"};
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        invar_status status = check_out(repo, tags[i], invar_test_home_path("cage"));
        if (status != INVAR_E_CORRUPT)
            fail_msg("%s: %s", tags[i], status ? invar_error_last()->message : "accepted");
    }
    assert_ok(check_out(repo, "fine", invar_test_home_path("cage")));
    invar_test_shell(invar_test_home,
                     "[ $(cat cage/b/x) = evil ]; [ ! -e escaped ]; [ ! -e cage/.git ]");
    // A tree of 4^20 folders in 21 objects.
    invar_test_shell(
        invar_test_home_path("evil"),
        "t=$(git rev-parse 'fine^{tree}'); for i in $(seq 20); do t=$(for n in a b c d\n"
        "do printf '040000 tree %%s\\t%%s\\n' $t $n; done | git mktree); done\n"
        "tick; git tag bomb $(git commit-tree -m bomb $t)");
    assert_fails(check_out(repo, "bomb", invar_test_home_path("cage")), INVAR_E_UNSUPPORTED,
                 "files");
    invar_repo_close(repo);
}

static void test_repo_checkout__spares_the_repository(void **state)
{
    invar_repo *repo = invar_test_repo_open(invar_test_home_path("keep"));

    (void)state;
    assert_fails(check_out(repo, "HEAD", invar_test_home_path("keep")), INVAR_E_INVALID,
                 "repository itself");
    assert_fails(check_out(repo, "HEAD", invar_test_home_path("keep/.git")), INVAR_E_INVALID,
                 "repository itself");
    assert_fails(check_out(repo, "HEAD", invar_test_home), INVAR_E_INVALID, "repository itself");
    invar_test_shell(invar_test_home, "ln -sf keep link");
    assert_fails(check_out(repo, "HEAD", invar_test_home_path("link")), INVAR_E_INVALID,
                 "repository itself");
    assert_fails(invar_repo_checkout(repo, "HEAD", invar_test_home_path("x")), INVAR_E_INVALID,
                 "no object id");
    invar_repo_close(repo);
}

/* ---- submodules ------------------------------------------------------------------------------ */

static void test_repo_checkout__takes_submodules_along(void **state)
{
    invar_repo *repo;

    (void)state;
    invar_test_shell(invar_test_home,
                     "git init -q inner; (cd inner; echo i1 >i; commit i1)\n"
                     "git init -q sub; (cd sub; echo s1 >s; git submodule -q add ../inner in\n"
                     "commit s1; echo s2 >s; commit s2)\n"
                     "git init -q top; cd top; echo t >t; commit t0; git tag t0\n"
                     "git submodule -q add ../sub libs/sub; git submodule -q update --init "
                     "--recursive; commit t1; git tag t1\n"
                     "(cd libs/sub; git checkout -q HEAD~1); commit t2; git tag t2\n"
                     "git mv libs/sub moved; commit t3; git tag t3\n"
                     "git rm -q moved; echo file >moved; commit t4; git tag t4");
    repo = invar_test_repo_open(invar_test_home_path("top"));
    static const char *const order[] = {"t1", "t2", "t3", "t4", "t0", "t3", "t1"};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        assert_ok(check_out(repo, order[i], invar_test_home_path("tops")));
        invar_test_shell(invar_test_home,
                         "rm -rf want; git clone -q top want; cd want; git checkout -q %s\n"
                         "git submodule -q update --init --recursive\n"
                         "find . -name .git -prune -exec rm -rf {} +\n"
                         "diff -r --no-dereference . ../tops",
                         order[i]);
    }
    invar_repo_close(repo);
    // Submodules that were not fetched.
    invar_test_shell(invar_test_home, "git clone -q top bare-top");
    repo = invar_test_repo_open(invar_test_home_path("bare-top"));
    assert_ok(check_out(repo, "t0", invar_test_home_path("tops2")));
    assert_fails(check_out(repo, "t1", invar_test_home_path("tops2")), INVAR_E_NOTFOUND,
                 "libs/sub");
    assert_fails(check_out(repo, "t1", invar_test_home_path("tops2")), INVAR_E_NOTFOUND,
                 "git submodule update");
    invar_repo_close(repo);
    // A submodule with a .git folder of its own, and a nested repository without .gitmodules.
    invar_test_shell(invar_test_home,
                     "git clone -q top old; cd old; git checkout -q t1\n"
                     "git clone -q --recursive ../sub libs/sub.new; rm -r libs/sub\n"
                     "mv libs/sub.new libs/sub; rm -rf .git/modules\n"
                     "git init -q ../wild; cd ../wild; git init -q w; (cd w; commit w)\n"
                     "git add w 2>/dev/null; echo f >f; commit wild");
    repo = invar_test_repo_open(invar_test_home_path("old"));
    assert_ok(check_out(repo, "t1", invar_test_home_path("tops3")));
    invar_test_shell(invar_test_home,
                     "cmp tops3/libs/sub/s tops/libs/sub/s; cmp tops3/libs/sub/in/i inner/i");
    invar_repo_close(repo);
    repo = invar_test_repo_open(invar_test_home_path("wild"));
    assert_ok(check_out(repo, "HEAD", invar_test_home_path("tamed")));
    invar_test_shell(invar_test_home,
                     "[ -d tamed/w ]; [ -z \"$(ls -A tamed/w)\" ]; [ -e tamed/f ]");
    invar_repo_close(repo);
}

/* ---- full disk and kills --------------------------------------------------------------------- */

static void test_repo_checkout__says_when_the_disk_refuses(void **state)
{
    struct rlimit old, small;
    invar_repo *repo;

    (void)state;
    invar_test_shell(invar_test_home,
                     "git init -q big; cd big; seq 100000 >numbers; echo 1 >small; commit b");
    repo = invar_test_repo_open(invar_test_home_path("big"));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 100000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    invar_status status = check_out(repo, "HEAD", invar_test_home_path("full"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_fails(status, INVAR_E_IO, "full/numbers: cannot be written");
    assert_false(invar_path_exists(invar_test_home_path("full.tree")));
    assert_ok(check_out(repo, "HEAD", invar_test_home_path("full")));
    assert_same(invar_test_home_path("big"), "HEAD", invar_test_home_path("full"));
    invar_test_shell(invar_test_home, "echo file >flat");
    assert_fails(check_out(repo, "HEAD", invar_test_home_path("flat/below")), INVAR_E_IO, "flat");
    assert_int_not_equal(check_out(repo, "HEAD", invar_test_home_path("flat")), INVAR_OK);
    invar_test_shell(invar_test_home, "[ $(cat flat) = file ]");
    invar_repo_close(repo);
}

static void test_repo_checkout__survives_kills(void **state)
{
    int64_t rounds = invar_test_count(8, 200);
    invar_repo *repo = invar_test_repo_open(invar_test_home_path("r"));
    int killed = 0;

    (void)state;
    invar_test_shell(invar_test_home, "rm -rf out out.tree");
    for (int64_t i = 0; i < rounds; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            char id[INVAR_OID_SIZE], revision[8];
            for (uint64_t k = 0;; k++) {
                snprintf(revision, sizeof revision, "c%d", (int)(k % 5));
                if (invar_repo_resolve(id, repo, revision) != INVAR_OK ||
                    invar_repo_checkout(repo, id, invar_test_home_path("out")) != INVAR_OK)
                    _exit(1);
            }
        }
        struct timespec pause = {0, 1000 * (long)(invar_test_random(2, (uint64_t)i) % 20000)};
        nanosleep(&pause, NULL);
        int end;
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &end, 0), child);
        assert_true(WIFSIGNALED(end));
        killed += !invar_path_exists(invar_test_home_path("out.tree"));
        assert_ok(check_out(repo, "c4", invar_test_home_path("out")));
        assert_same(invar_test_home_path("r"), "c4", invar_test_home_path("out"));
    }
    assert_true(killed > 0); // some kills interrupted a checkout
    invar_repo_close(repo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repo_checkout__equals_git),
        cmocka_unit_test(test_repo_checkout__leaves_alone_what_it_may),
        cmocka_unit_test(test_repo_checkout__never_leaves_its_folder),
        cmocka_unit_test(test_repo_checkout__refuses_evil_names),
        cmocka_unit_test(test_repo_checkout__spares_the_repository),
        cmocka_unit_test(test_repo_checkout__takes_submodules_along),
        cmocka_unit_test(test_repo_checkout__says_when_the_disk_refuses),
        cmocka_unit_test(test_repo_checkout__survives_kills),
    };

    return cmocka_run_group_tests(tests, set_up, invar_test_home_remove);
}
