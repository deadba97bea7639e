/*
 * repo.c - tests of reading git repositories: opening, revisions, descriptions, damage.
 *
 * The git program is the reference for object ids, line counts, patches and signatures. Reading
 * must not change any file of the repository, not even the times in its index; control: the
 * fingerprint detects a changed time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700

#include "bisect/git/repo.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/repo.h"
#include "tests/support.h"

static int set_up(void **state)
{
    (void)state;
    invar_test_home_create("repo");
    invar_test_sample_repo(invar_test_home);
    return 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

static void test_repo_open__takes_every_way_in(void **state)
{
    char id[INVAR_OID_SIZE], real[INVAR_PATH_SIZE];
    invar_repo *repo;

    (void)state;
    assert_non_null(realpath(invar_test_home_path("r"), real));
    setenv("GIT_DIR", "/nonexistent", 1); // must be ignored
    const char *paths[] = {"r", "r/", "r/d", "r/.git", "linked", "linked/.git"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        repo = invar_test_repo_open(invar_test_home_path(paths[i]));
        assert_string_equal(invar_repo_folder(repo), invar_test_home_path("r/.git"));
        assert_string_equal(invar_repo_work_tree(repo),
                            i < 4 ? invar_test_home_path("r") : invar_test_home_path("linked"));
        assert_ok(invar_repo_resolve(id, repo, "HEAD"));
        invar_repo_close(repo);
    }
    unsetenv("GIT_DIR");
    invar_test_shell(invar_test_home, "git clone -q --bare r bare.git");
    repo = invar_test_repo_open(invar_test_home_path("bare.git"));
    assert_null(invar_repo_work_tree(repo));
    assert_string_equal(invar_repo_folder(repo), invar_test_home_path("bare.git"));
    invar_repo_close(repo);
    invar_repo_close(NULL);
}

static void test_repo_open__says_what_is_wrong(void **state)
{
    invar_repo *repo;

    (void)state;
    assert_fails(invar_repo_open(&repo, invar_test_home_path("nowhere")), INVAR_E_NOTFOUND,
                 "no such file");
    assert_fails(invar_repo_open(&repo, "/"), INVAR_E_NOTFOUND, "no git repository");
    invar_test_shell(invar_test_home, "git init -q --object-format=sha256 s256");
    assert_fails(invar_repo_open(&repo, invar_test_home_path("s256")), INVAR_E_UNSUPPORTED,
                 "objectformat");
    invar_test_shell(invar_test_home,
                     "git init -q odd; cd odd; git config core.repositoryformatversion 1\n"
                     "git config extensions.refstorage reftable");
    assert_fails(invar_repo_open(&repo, invar_test_home_path("odd")), INVAR_E_UNSUPPORTED,
                 "refstorage");
    invar_test_shell(invar_test_home,
                     "git init -q v9; git -C v9 config core.repositoryformatversion 9");
    assert_fails(invar_repo_open(&repo, invar_test_home_path("v9")), INVAR_E_UNSUPPORTED,
                 "version");
    // Control: extensions that do not matter to a reader.
    invar_test_shell(invar_test_home,
                     "git init -q fine; cd fine; git config core.repositoryformatversion 1\n"
                     "git config extensions.worktreeConfig true\n"
                     "git config extensions.preciousObjects true\n"
                     "git config extensions.partialClone origin\n"
                     "printf '[extensions]\n\trelativeWorktrees = true\n' >>.git/config");
    invar_repo_close(invar_test_repo_open(invar_test_home_path("fine")));
}

static void test_repo_open__refuses_other_owners(void **state)
{
    invar_repo *repo;

    (void)state;
    if (geteuid() != 0) // only root can change the owner
        skip();
    invar_test_shell(invar_test_home, "git clone -q r theirs; chown -R 65534 theirs");
    assert_fails(invar_repo_open(&repo, invar_test_home_path("theirs")), INVAR_E_STATE,
                 "safe.directory");
}

/* ---- revisions ------------------------------------------------------------------------------- */

static void test_repo_resolve__means_what_git_means(void **state)
{
    static const char *const revisions[] = {"HEAD",
                                            "@",
                                            "@~1",
                                            "@^",
                                            "HEAD~3",
                                            "HEAD~4",
                                            "main",
                                            "side",
                                            "t3",
                                            "t3^0",
                                            "light",
                                            "light~1",
                                            "refs/heads/side",
                                            "heads/side",
                                            "t3^{commit}",
                                            "main^{/c2}",
                                            ":/c4",
                                            "HEAD@{0}",
                                            "t3-0-g0000000"};
    char got[INVAR_OID_SIZE], want[INVAR_OID_SIZE], shorter[INVAR_OID_SIZE];
    invar_repo *repo = invar_test_repo_open(invar_test_home_path("r"));

    (void)state;
    for (size_t i = 0; i + 1 < sizeof revisions / sizeof *revisions; i++) {
        invar_test_revision(want, invar_test_home_path("r"), revisions[i]);
        assert_ok(invar_repo_resolve(got, repo, revisions[i]));
        assert_string_equal(got, want);
        memcpy(shorter, want, 8);
        shorter[8] = '\0';
        assert_ok(invar_repo_resolve(got, repo, shorter));
        assert_string_equal(got, want);
    }
    invar_repo_close(repo);
    repo = invar_test_repo_open(invar_test_home_path("clone"));
    invar_test_revision(want, invar_test_home_path("r"), "main");
    assert_ok(invar_repo_resolve(got, repo, "@{upstream}"));
    assert_string_equal(got, want);
    invar_test_revision(want, invar_test_home_path("r"), "side");
    assert_ok(invar_repo_resolve(got, repo, "origin/side"));
    assert_string_equal(got, want);
    invar_repo_close(repo);
}

static void test_repo_resolve__refuses_what_is_no_commit(void **state)
{
    char got[INVAR_OID_SIZE], long_name[6000];
    invar_repo *repo = invar_test_repo_open(invar_test_home_path("r"));

    (void)state;
    assert_fails(invar_repo_resolve(got, repo, "xyz"), INVAR_E_NOTFOUND, "'xyz'");
    assert_fails(invar_repo_resolve(got, repo, "xyz"), INVAR_E_NOTFOUND, "/r: ");
    assert_fails(invar_repo_resolve(got, repo, "HEAD~5"), INVAR_E_NOTFOUND, "HEAD~5");
    assert_fails(invar_repo_resolve(got, repo, "deadbeef"), INVAR_E_NOTFOUND, "deadbeef");
    assert_fails(invar_repo_resolve(got, repo, "HEAD^{tree}"), INVAR_E_INVALID, "a tree");
    assert_fails(invar_repo_resolve(got, repo, "HEAD:d/f"), INVAR_E_INVALID, "a blob");
    assert_fails(invar_repo_resolve(got, repo, "main..side"), INVAR_E_INVALID, "one revision");
    assert_int_not_equal(invar_repo_resolve(got, repo, ""), INVAR_OK);
    assert_int_not_equal(invar_repo_resolve(got, repo, "a\nb\x1b[31m"), INVAR_OK);
    assert_null(strpbrk(invar_error_last()->message, "\n\x1b"));
    memset(long_name, '~', sizeof long_name - 1);
    long_name[0] = '@';
    long_name[sizeof long_name - 1] = '\0';
    assert_int_not_equal(invar_repo_resolve(got, repo, long_name), INVAR_OK);
    invar_repo_close(repo);
    invar_test_shell(invar_test_home, "git init -q empty");
    repo = invar_test_repo_open(invar_test_home_path("empty"));
    assert_fails(invar_repo_resolve(got, repo, "HEAD"), INVAR_E_NOTFOUND, "'HEAD'");
    invar_repo_close(repo);
}

static void test_repo_resolve__tells_of_ambiguous_ids(void **state)
{
    char prefix[INVAR_OID_SIZE], got[INVAR_OID_SIZE];
    invar_repo *repo;

    (void)state;
    // These 600 fixed blobs contain two ids with equal first four digits.
    invar_test_shell_output(prefix, sizeof prefix, invar_test_home,
                            "git init -q same; cd same\n"
                            "for i in $(seq 600); do echo $i; echo \"$i\" >f$i; done >/dev/null\n"
                            "git hash-object -w f* | cut -c1-4 | sort | uniq -d | head -n 1");
    assert_int_equal(strlen(prefix), 4);
    repo = invar_test_repo_open(invar_test_home_path("same"));
    assert_fails(invar_repo_resolve(got, repo, prefix), INVAR_E_INVALID, "more digits");
    invar_repo_close(repo);
}

/* ---- descriptions ---------------------------------------------------------------------------- */

static void assert_described(invar_repo *repo, const char *folder, const char *revision)
{
    char id[INVAR_OID_SIZE], want[4096], got[4096];
    invar_repo_commit commit;

    invar_test_revision(id, folder, revision);
    assert_ok(invar_repo_describe(&commit, repo, id));
    invar_test_shell_output(want, sizeof want, folder,
                            "git log -1 --format='%%H %%T %%P|%%an <%%ae>|%%ct|%%s' %s", id);
    size_t used = (size_t)snprintf(got, sizeof got, "%s %s", commit.id, commit.tree);
    for (size_t i = 0; i < commit.n_parents; i++)
        used += (size_t)snprintf(got + used, sizeof got - used, " %s", commit.parents[i]);
    snprintf(got + used, sizeof got - used, "%s|%s|%lld|%s", commit.n_parents ? "" : " ",
             commit.author, (long long)commit.when, commit.subject);
    assert_string_equal(got, want);
    // Numbers of files, insertions and deletions.
    invar_test_shell_output(want, sizeof want, folder,
                            "git diff --numstat -M $(git rev-parse -q --verify '%s^1' || "
                            "git hash-object -t tree /dev/null) %s | awk '{ f++; if ($1 != \"-\") "
                            "{ a += $1; r += $2 } } END { print f+0, a+0, r+0 }'",
                            id, id);
    snprintf(got, sizeof got, "%lld %lld %lld", (long long)commit.files, (long long)commit.added,
             (long long)commit.removed);
    assert_string_equal(got, want);
    invar_test_shell_output(want, sizeof want, folder,
                            "git diff --name-status -M $(git rev-parse -q --verify '%s^1' || "
                            "git hash-object -t tree /dev/null) %s | awk -F'\\t' '{ printf "
                            "\"%%s %%s;\", substr($1, 1, 1), $NF }'",
                            id, id);
    used = 0;
    got[0] = '\0';
    for (size_t i = 0; i < commit.n_shown; i++)
        used += (size_t)snprintf(got + used, sizeof got - used, "%c %s;", commit.shown[i].status,
                                 commit.shown[i].path);
    assert_memory_equal(got, want, strlen(got));
    assert_int_equal(commit.n_shown,
                     commit.files < INVAR_REPO_FILES ? commit.files : INVAR_REPO_FILES);
}

static void test_repo_describe__counts_as_git_does(void **state)
{
    invar_repo *repo;
    invar_repo_commit commit;
    char id[INVAR_OID_SIZE];

    (void)state;
    invar_test_shell(invar_test_home,
                     "git init -q d; cd d; seq 100 >long; seq 5 >short; ln -s short link\n"
                     "head -c 1000 /dev/zero >zeros; for i in $(seq 20); do echo $i >m$i; done\n"
                     "commit first; sed -i 3d long; git mv short renamed; rm link; echo x >link\n"
                     "chmod +x long; printf '\\0\\1' >zeros; commit 'all   kinds'\n"
                     "git rm -q m1; commit gone; git checkout -q -b b HEAD~1; echo 1 >n; commit n\n"
                     "git checkout -q main; tick; git merge -q -m merged b\n"
                     "printf 'odd\\033[31m name\\n\\nbody' | git commit -q --allow-empty -F -\n"
                     "git commit -q --allow-empty --allow-empty-message -m ''");
    repo = invar_test_repo_open(invar_test_home_path("d"));
    const char *revisions[] = {"main~4", "main~3", "b", "main~2", "main~5"};
    for (size_t i = 0; i < sizeof revisions / sizeof *revisions; i++)
        assert_described(repo, invar_test_home_path("d"), revisions[i]);
    assert_ok(invar_repo_resolve(id, repo, "main~1"));
    assert_ok(invar_repo_describe(&commit, repo, id));
    assert_string_equal(commit.subject, "odd?[31m name");
    assert_int_equal(commit.files, 0);
    assert_ok(invar_repo_resolve(id, repo, "main"));
    assert_ok(invar_repo_describe(&commit, repo, id));
    assert_string_equal(commit.subject, "");
    assert_ok(invar_repo_tree(commit.subject, repo, id));
    assert_string_equal(commit.subject, commit.tree);
    invar_repo_close(repo);
}

/* The patch has the lines of git show; a long one is truncated between lines. */
static void test_repo_patch__is_gits(void **state)
{
    char id[INVAR_OID_SIZE], subject[INVAR_REPO_TEXT], expected[4096], *patch;
    invar_repo *repo;
    bool cut;

    (void)state;
    invar_test_shell(invar_test_home,
                     "git init -q p; cd p; seq 30 >f; printf 'a\\tb\\n' >tab; commit one\n"
                     "sed -i 's/^15$/fifteen/' f; printf 'a\\033c\\n' >tab; commit 'two words'\n"
                     "seq 20000 >long; commit three");
    repo = invar_test_repo_open(invar_test_home_path("p"));
    assert_ok(invar_repo_resolve(id, repo, "main~1"));
    assert_ok(invar_repo_subject(subject, repo, id));
    assert_string_equal(subject, "two words");
    assert_ok(invar_repo_patch(&patch, &cut, repo, id));
    assert_false(cut);
    invar_test_shell_output(expected, sizeof expected, invar_test_home_path("p"),
                            "git show --format= main~1 | tr '\\t\\033' ' ?'");
    assert_memory_equal(patch, expected, strlen(expected));
    assert_string_equal(patch + strlen(expected), "\n");
    assert_non_null(strstr(patch, "\n-15\n+fifteen\n"));
    assert_non_null(strstr(patch, "\n-a b\n+a?c\n"));
    invar_free(patch);
    assert_ok(invar_repo_resolve(id, repo, "main"));
    assert_ok(invar_repo_patch(&patch, &cut, repo, id));
    assert_true(cut);
    assert_in_range(strlen(patch), INVAR_REPO_PATCH - 16, INVAR_REPO_PATCH);
    assert_int_equal(patch[strlen(patch) - 1], '\n');
    invar_free(patch);
    assert_fails(invar_repo_subject(subject, repo, "1234567812345678123456781234567812345678"),
                 INVAR_E_NOTFOUND, "");
    invar_repo_close(repo);
}

static void test_repo_signature__is_gits(void **state)
{
    char got[INVAR_REPO_TEXT];
    invar_repo *repo;

    (void)state;
    invar_test_shell(invar_test_home, "git clone -q r signed; git -C signed config user.name Nora\n"
                                      "git -C signed config user.email n@example.org");
    repo = invar_test_repo_open(invar_test_home_path("signed"));
    invar_repo_signature(got, repo);
    assert_string_equal(got, "Nora <n@example.org>");
    setenv("GIT_AUTHOR_NAME", "Olga", 1);
    invar_repo_signature(got, repo);
    assert_string_equal(got, "Olga <n@example.org>");
    unsetenv("GIT_AUTHOR_NAME");
    invar_repo_close(repo);
    invar_test_shell(invar_test_home, "git clone -q r unsigned");
    repo = invar_test_repo_open(invar_test_home_path("unsigned"));
    invar_repo_signature(got, repo);
    assert_string_equal(got, "unknown");
    invar_repo_close(repo);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void test_repo__of_damaged_ones(void **state)
{
    char id[INVAR_OID_SIZE], lost[INVAR_OID_SIZE];
    invar_repo_range range = {.bad = id};
    invar_history *history;
    invar_repo_commit commit;
    invar_repo *repo;

    (void)state;
    // First a missing blob, then a missing commit, then a damaged tree.
    invar_test_shell_output(lost, sizeof lost, invar_test_home,
                            "git clone -q --no-local r lost; cd lost; mv .git/objects/pack/* .\n"
                            "for p in *.pack; do git unpack-objects -q <$p; done; rm -f pack-*\n"
                            "h=$(git rev-parse HEAD:d/f); rm -f $(object $h); echo $h");
    repo = invar_test_repo_open(invar_test_home_path("lost"));
    assert_ok(invar_repo_resolve(id, repo, "HEAD"));
    assert_fails(invar_repo_checkout(repo, id, invar_test_home_path("lost-out")), INVAR_E_CORRUPT,
                 lost);
    assert_fails(invar_repo_checkout(repo, id, invar_test_home_path("lost-out")), INVAR_E_CORRUPT,
                 "git fsck");
    assert_ok(invar_repo_describe(&commit, repo, id));
    assert_ok(invar_repo_history(&history, repo, &range));
    invar_history_free(history);
    invar_repo_close(repo);
    invar_test_shell_output(lost, sizeof lost, invar_test_home,
                            "cd lost; h=$(git rev-parse HEAD~2); rm -f $(object $h); echo $h");
    repo = invar_test_repo_open(invar_test_home_path("lost"));
    assert_fails(invar_repo_history(&history, repo, &range), INVAR_E_CORRUPT, lost);
    // Commits that are missing before the good end do not matter.
    char good[INVAR_OID_SIZE];
    const char *goods[1] = {good};
    assert_ok(invar_repo_resolve(good, repo, "HEAD~1"));
    range.good = goods;
    range.n_good = 1;
    assert_ok(invar_repo_history(&history, repo, &range));
    assert_int_equal(history->count, 1);
    invar_history_free(history);
    invar_repo_close(repo);
    invar_test_shell(
        invar_test_home,
        "cd lost; f=$(object $(git rev-parse 'HEAD^{tree}')); chmod u+w $f; echo garbage >$f");
    repo = invar_test_repo_open(invar_test_home_path("lost"));
    assert_fails(invar_repo_checkout(repo, id, invar_test_home_path("lost-out")), INVAR_E_CORRUPT,
                 "git fsck");
    invar_repo_close(repo);
}

/* ---- unchanged repository, several threads --------------------------------------------------- */

static char shared_repo[2 * INVAR_PATH_SIZE];

static void *read_repository(void *folder)
{
    char id[INVAR_OID_SIZE], revision[32];
    invar_repo_commit commit;
    invar_repo *repo = NULL;
    invar_status status = invar_repo_open(&repo, shared_repo);

    for (int i = 0; status == INVAR_OK && i < 12; i++) {
        invar_repo_range range = {.bad = id};
        invar_history *history = NULL;
        snprintf(revision, sizeof revision, "%s~%d", i % 3 ? "main" : "side", i % 4);
        status = invar_repo_resolve(id, repo, revision);
        if (status == INVAR_OK)
            status = invar_repo_history(&history, repo, &range);
        if (status == INVAR_OK)
            status = invar_repo_describe(&commit, repo, id);
        if (status == INVAR_OK)
            status = invar_repo_checkout(repo, id, folder);
        invar_history_free(history);
    }
    invar_repo_close(repo);
    return status == INVAR_OK ? folder : NULL;
}

static void test_repo__leaves_the_repository_alone(void **state)
{
    enum { THREADS = 4 };
    char before[INVAR_DIGEST_HEX_SIZE], after[INVAR_DIGEST_HEX_SIZE];
    char folders[THREADS][2 * INVAR_PATH_SIZE], hash[INVAR_OID_SIZE];
    pthread_t threads[THREADS];
    void *result;

    (void)state;
    // The index has stale times, which git itself would refresh.
    invar_test_shell(invar_test_home, "touch -d 2020-01-01 r/d/f; echo dirty >r/dirty");
    invar_test_fingerprint(before, invar_test_home_path("r"));
    snprintf(shared_repo, sizeof shared_repo, "%s", invar_test_home_path("r"));
    for (int i = 0; i < THREADS; i++) {
        snprintf(folders[i], sizeof folders[i], "%s/thread%d", invar_test_home, i);
        assert_int_equal(pthread_create(&threads[i], NULL, read_repository, folders[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, folders[i]);
    }
    assert_ok(
        invar_repo_snapshot(hash, invar_test_home_path("r"), invar_test_home_path("snapshot")));
    invar_test_fingerprint(after, invar_test_home_path("r"));
    assert_string_equal(before, after);
    invar_test_shell(invar_test_home, "cmp thread0/d/f thread3/d/f; rm r/dirty; touch r/d/f");
    invar_test_fingerprint(after, invar_test_home_path("r"));
    assert_string_not_equal(before, after); // control: the fingerprint covers times
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repo_open__takes_every_way_in),
        cmocka_unit_test(test_repo_open__says_what_is_wrong),
        cmocka_unit_test(test_repo_open__refuses_other_owners),
        cmocka_unit_test(test_repo_resolve__means_what_git_means),
        cmocka_unit_test(test_repo_resolve__refuses_what_is_no_commit),
        cmocka_unit_test(test_repo_resolve__tells_of_ambiguous_ids),
        cmocka_unit_test(test_repo_describe__counts_as_git_does),
        cmocka_unit_test(test_repo_patch__is_gits),
        cmocka_unit_test(test_repo_signature__is_gits),
        cmocka_unit_test(test_repo__of_damaged_ones),
        cmocka_unit_test(test_repo__leaves_the_repository_alone),
    };

    return cmocka_run_group_tests(tests, set_up, invar_test_home_remove);
}
