/*
 * range.c - tests of the commits between good and bad, and of shallow and partial clones.
 *
 * The git program is the reference: sets of commits and merge bases of sample and generated
 * histories are compared with git rev-list and git merge-base. Incomplete clones must fail with a
 * command that repairs them; the tests execute the command and repeat the call.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700

#include "bisect/git/repo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"
#include "tests/repo.h"
#include "tests/support.h"

static int set_up(void **state)
{
    (void)state;
    invar_test_home_create("range");
    invar_test_sample_repo(invar_test_home);
    return 0;
}

/* ---- ranges against git ---------------------------------------------------------------------- */

#define TEXT_BYTES (1 << 20)
static char git_output[TEXT_BYTES];

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void sort_ids(char (*ids)[INVAR_OID_SIZE], size_t count)
{
    char(*sorted)[INVAR_OID_SIZE] = malloc((count + 1) * sizeof *sorted);
    const void **order = malloc((count + 1) * sizeof *order);

    for (size_t i = 0; i < count; i++)
        order[i] = ids[i];
    assert_ok(invar_sort(order, count, by_text));
    for (size_t i = 0; i < count; i++)
        memcpy(sorted[i], order[i], sizeof *sorted);
    memcpy(ids, sorted, count * sizeof *sorted);
    free(order);
    free(sorted);
}

/* Reads the ids at the beginnings of the lines of `git_output`, at most `max_count`. */
static size_t parse_ids(char (*out)[INVAR_OID_SIZE], size_t max_count)
{
    size_t count = 0;

    for (char *at = git_output; *at && count < max_count; count++) {
        snprintf(out[count], INVAR_OID_SIZE, "%.40s", at);
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
    return count;
}

/* Compares order, links and last commit of a history with git rev-list --parents. */
static void assert_links(const invar_history *history, const char *bad, bool first_parent)
{
    if (history->count)
        assert_string_equal(history->commits[history->count - 1].id, bad);
    for (int32_t i = 0; i < history->count; i++) {
        const invar_history_commit *commit = &history->commits[i];
        const char *line = strstr(git_output, commit->id);
        while (line && line != git_output && line[-1] != '\n') // the id is a parent there
            line = strstr(line + 1, commit->id);
        assert_non_null(line);
        assert_int_equal(invar_history_find(history, commit->id), i);
        int32_t seen = 0;
        const char *end = first_parent && line[40] == ' ' ? line + 81 : line + strcspn(line, "\n");
        for (line += 40; line < end; line += 41) {
            char parent[INVAR_OID_SIZE];
            snprintf(parent, sizeof parent, "%.40s", line + 1);
            int32_t index = invar_history_find(history, parent);
            if (index < 0)
                continue;
            assert_true(index < i);
            // A commit that does not touch the given paths keeps only a parent with equal paths.
            if (!commit->relevant &&
                (seen == commit->n_parents || history->parents[commit->parent + seen] != index))
                continue;
            assert_true(seen < commit->n_parents);
            assert_int_equal(history->parents[commit->parent + seen], index);
            seen++;
        }
        assert_int_equal(seen, commit->n_parents);
    }
}

typedef struct range_case {
    const char *folder, *bad;
    const char *good[3];
    bool first_parent;
    const char *path;
} range_case;

/* Compares a range with git rev-list and returns the number of relevant commits. */
static int32_t assert_range(invar_repo *repo, const range_case *q)
{
    static char want[20000][INVAR_OID_SIZE], got[20000][INVAR_OID_SIZE];
    char bad[INVAR_OID_SIZE], good[3][INVAR_OID_SIZE], words[256];
    const char *goods[3];
    invar_repo_range range = {.bad = bad, .good = goods, .first_parent = q->first_parent};
    invar_history *history;
    int32_t relevant = 0;
    size_t used;

    assert_ok(invar_repo_resolve(bad, repo, q->bad));
    used = (size_t)snprintf(words, sizeof words, "%s %s", q->first_parent ? "--first-parent" : "",
                            bad);
    for (; range.n_good < 3 && q->good[range.n_good]; range.n_good++) {
        goods[range.n_good] = good[range.n_good];
        assert_ok(invar_repo_resolve(good[range.n_good], repo, q->good[range.n_good]));
        used += (size_t)snprintf(words + used, sizeof words - used, " ^%s", good[range.n_good]);
    }
    if (q->path) {
        range.paths = &q->path;
        range.n_paths = 1;
    }
    // Git simplifies a merge with a parent outside the range only when it does not yet know that
    // it is outside, which depends on dates, or when it was named; so all such parents are named.
    invar_test_shell_output(git_output, sizeof git_output, q->folder,
                            q->first_parent
                                ? "last=$(git rev-list %s | tail -n 1)\n"
                                  "outside=$(git rev-list -1 $last^1 2>/dev/null | sed 's/^/^/')\n"
                                  "git rev-list --bisect-all %s $outside -- %s"
                                : "outside=$(git rev-list --boundary %s | sed -n 's/^-/^/p')\n"
                                  "git rev-list --bisect-all %s $outside -- %s",
                            words, words, q->path ? q->path : "");
    size_t expected = parse_ids(want, 20000);
    if (q->path && expected == 0) {
        invar_test_shell_output(git_output, sizeof git_output, q->folder, "git rev-list %s", words);
        if (git_output[0])
            assert_fails(invar_repo_history(&history, repo, &range), INVAR_E_NOTFOUND, "paths");
        return 0;
    }
    assert_ok(invar_repo_history(&history, repo, &range));
    for (int32_t i = 0; i < history->count; i++)
        if (history->commits[i].relevant)
            memcpy(got[relevant++], history->commits[i].id, INVAR_OID_SIZE);
    sort_ids(want, expected);
    sort_ids(got, (size_t)relevant);
    if ((size_t)relevant != expected || memcmp(got, want, expected * sizeof got[0]) != 0)
        fail_msg("%s: git rev-list %s -- %s: %d commits here, %zu there", q->folder, words,
                 q->path ? q->path : "", (int)relevant, expected);
    invar_test_shell_output(git_output, sizeof git_output, q->folder, "git rev-list --parents %s",
                            words);
    assert_links(history, bad, q->first_parent);
    invar_history_free(history);
    return relevant;
}

static void test_repo_history__equals_git(void **state)
{
    invar_repo *repo = invar_test_repo_open(invar_test_home_path("r"));
    const char *r = invar_test_home_path("r");

    (void)state;
    assert_int_equal(assert_range(repo, &(range_case){r, "main", {"main~3"}, false, NULL}), 3);
    assert_int_equal(assert_range(repo, &(range_case){r, "main", {NULL}, false, NULL}), 5);
    assert_int_equal(assert_range(repo, &(range_case){r, "side", {"main"}, false, NULL}), 2);
    assert_int_equal(assert_range(repo, &(range_case){r, "main", {"main"}, false, NULL}), 0);
    assert_int_equal(assert_range(repo, &(range_case){r, "main~2", {"main"}, false, NULL}), 0);
    assert_int_equal(assert_range(repo, &(range_case){r, "side", {NULL}, false, "d"}), 3);
    assert_int_equal(assert_range(repo, &(range_case){r, "side", {"t3"}, false, "g"}), 2);
    assert_int_equal(assert_range(repo, &(range_case){r, "side", {NULL}, false, "d/f"}), 3);
    assert_int_equal(assert_range(repo, &(range_case){r, "main", {NULL}, false, "."}), 5);
    invar_repo_close(repo);
}

static void test_repo_history__takes_paths_as_people_write_them(void **state)
{
    char bad[INVAR_OID_SIZE];
    const char *paths[2] = {"./d//f/", "nothing"};
    invar_repo_range range = {.bad = bad, .paths = paths, .n_paths = 2};
    invar_history *history;
    invar_repo *repo = invar_test_repo_open(invar_test_home_path("r"));

    (void)state;
    assert_ok(invar_repo_resolve(bad, repo, "side"));
    assert_ok(invar_repo_history(&history, repo, &range));
    int32_t relevant = 0;
    for (int32_t i = 0; i < history->count; i++)
        relevant += history->commits[i].relevant;
    assert_int_equal(history->count, 5);
    assert_int_equal(relevant, 3);
    invar_history_free(history);
    paths[1] = "../r/d";
    assert_fails(invar_repo_history(&history, repo, &range), INVAR_E_INVALID, "'..'");
    paths[1] = "/d";
    assert_fails(invar_repo_history(&history, repo, &range), INVAR_E_INVALID, "relative");
    range.n_paths = 0;
    range.bad = "0123";
    assert_fails(invar_repo_history(&history, repo, &range), INVAR_E_INVALID, "no object id");
    range.bad = "0123456789012345678901234567890123456789";
    assert_fails(invar_repo_history(&history, repo, &range), INVAR_E_NOTFOUND, "no commit 0123");
    assert_null(history);
    invar_repo_close(repo);
}

/* ---- generated histories --------------------------------------------------------------------- */

#define MAX_COMMITS 400
#define FILES 4

typedef struct generated {
    int count, n_parents[MAX_COMMITS], parents[MAX_COMMITS][3];
    uint8_t file[MAX_COMMITS][FILES]; /* content of each file; 0 if it does not exist */
} generated;

static uint32_t random_below(uint64_t seed, uint64_t *n, uint32_t below)
{
    return invar_test_random(seed, (*n)++) % below;
}

/* Generates a random graph; it may have merges, octopus merges, criss-crosses and several roots. */
static void generate_graph(generated *g, uint64_t seed, int count)
{
    uint64_t n = 0;
    uint32_t merges = random_below(seed, &n, 4), roots = random_below(seed, &n, 3),
             width = 1 + random_below(seed, &n, 12);

    memset(g, 0, sizeof *g);
    g->count = count;
    for (int i = 0; i < count; i++) {
        int max_count = i == 0 || (roots == 2 && random_below(seed, &n, 40) == 0) ? 0 : 1;
        if (max_count && i > 2 && merges && random_below(seed, &n, 6) < merges)
            max_count += 1 + (int)random_below(seed, &n, 2);
        for (int j = 0; j < max_count; j++) {
            int back = 1 + (int)random_below(seed, &n, width);
            int parent = back > i ? i - 1 : i - back;
            bool twice = false;
            for (int k = 0; k < g->n_parents[i]; k++)
                twice = twice || g->parents[i][k] == parent;
            if (!twice)
                g->parents[i][g->n_parents[i]++] = parent;
        }
        for (int f = 0; f < FILES; f++) {
            int from = g->n_parents[i] ? (int)random_below(seed, &n, (uint32_t)g->n_parents[i]) : 0;
            g->file[i][f] = g->n_parents[i] ? g->file[g->parents[i][from]][f] : 0;
        }
        // Half of the merges have the files of one parent; other commits change at most one file.
        if (g->n_parents[i] > 1 && random_below(seed, &n, 2)) {
            int from = (int)random_below(seed, &n, (uint32_t)g->n_parents[i]);
            memcpy(g->file[i], g->file[g->parents[i][from]], FILES);
        } else if (g->n_parents[i] < 2) {
            g->file[i][random_below(seed, &n, FILES)] = (uint8_t)random_below(seed, &n, 3);
        }
    }
}

static void write_stream(const generated *g, bool skewed, uint64_t seed, const char *path)
{
    FILE *out = fopen(path, "w");

    assert_non_null(out);
    for (int i = 0; i < g->count; i++) {
        int64_t when = 1700000000 + 60 * i;
        if (skewed)
            when = 1700000000 + invar_test_random(seed, 1000000 + (uint64_t)i) % 1000000;
        fprintf(out, "commit refs/heads/all\nmark :%d\ncommitter C <c@d> %lld +0000\ndata 2\nc\n\n",
                i + 1, (long long)when);
        for (int j = 0; j < g->n_parents[i]; j++)
            fprintf(out, "%s :%d\n", j ? "merge" : "from", g->parents[i][j] + 1);
        fprintf(out, "deleteall\nM 644 inline z/number\ndata <<E\n%d\nE\n\n", i);
        for (int f = 0; f < FILES; f++)
            if (g->file[i][f])
                fprintf(out, "M 644 inline p%d/f\ndata <<E\n%d\nE\n\n", f, g->file[i][f]);
        // Without the second reset, the next root would get this commit as its parent.
        fprintf(out, "reset refs/tags/c%d\nfrom :%d\n\nreset refs/heads/all\n\n", i, i + 1);
    }
    assert_int_equal(fclose(out), 0);
}

static void compare_bases(invar_repo *repo, const char *folder, const char *a, const char *b)
{
    char ids[2][INVAR_OID_SIZE], got[INVAR_REPO_BASES][INVAR_OID_SIZE];
    char want[64][INVAR_OID_SIZE];
    bool above;
    size_t count;

    assert_ok(invar_repo_resolve(ids[0], repo, a));
    assert_ok(invar_repo_resolve(ids[1], repo, b));
    invar_test_shell_output(git_output, sizeof git_output, folder,
                            "git merge-base --all %s %s || true", a, b);
    size_t expected = parse_ids(want, 64);
    assert_ok(invar_repo_merge_bases(got, &count, repo, ids[0], ids[1]));
    sort_ids(want, expected);
    assert_int_equal(count, expected < INVAR_REPO_BASES ? expected : INVAR_REPO_BASES);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(got[i], want[i]);
    invar_test_shell_output(git_output, sizeof git_output, folder,
                            "git merge-base --is-ancestor %s %s && echo yes || echo no", a, b);
    assert_ok(invar_repo_is_ancestor(&above, repo, ids[0], ids[1]));
    assert_string_equal(above ? "yes" : "no", git_output);
}

static void test_repo_history__equals_git_on_generated_graphs(void **state)
{
    static generated g;
    static const char *const paths[] = {NULL, "p0", "p1/f", "p3"};
    int64_t rounds = invar_test_count(6, 120);
    int32_t commits = 0, filtered = 0;

    (void)state;
    for (int64_t round = 0; round < rounds; round++) {
        uint64_t seed = (uint64_t)round, n = 5000000;
        bool skewed = round % 5 == 4;
        int count = 5 + (int)random_below(seed, &n, 60);
        int bad = count - 1, good = (int)random_below(seed, &n, (uint32_t)count);
        char names[3][16];
        generate_graph(&g, seed, count);
        write_stream(&g, skewed, seed, invar_test_home_path("stream"));
        invar_test_shell(invar_test_home,
                         "rm -rf g; git init -q g; cd g; git fast-import --quiet <../stream");
        invar_repo *repo = invar_test_repo_open(invar_test_home_path("g"));
        snprintf(names[0], sizeof names[0], "c%d", bad);
        snprintf(names[1], sizeof names[1], "c%d", good);
        snprintf(names[2], sizeof names[2], "c%d", (int)random_below(seed, &n, (uint32_t)count));
        for (int k = 0; k < 4; k++) {
            range_case q = {
                invar_test_home_path("g"), names[0], {names[1]}, (round + k) % 3 == 0, paths[k]};
            int32_t got = assert_range(repo, &q);
            commits += got;
            filtered += q.path ? got : 0;
        }
        range_case whole = {invar_test_home_path("g"), names[0], {NULL}, false, paths[round % 4]};
        assert_range(repo, &whole);
        range_case two = {invar_test_home_path("g"), names[0], {names[1], names[2]}, false, NULL};
        assert_range(repo, &two);
        compare_bases(repo, invar_test_home_path("g"), names[0], names[1]);
        compare_bases(repo, invar_test_home_path("g"), names[2], names[1]);
        invar_repo_close(repo);
    }
    assert_true(commits > 20 && filtered > 5); // the generated ranges were not all empty
}

static void test_repo_history__is_fast_on_long_ones(void **state)
{
    int64_t count = invar_test_count(5000, 100000);
    char bad[INVAR_OID_SIZE], good[INVAR_OID_SIZE];
    const char *goods[1] = {good}, *paths[1] = {"p"};
    invar_repo_range range = {.bad = bad, .good = goods, .n_good = 1};
    invar_history *history;
    FILE *out = fopen(invar_test_home_path("stream"), "w");

    (void)state;
    for (int64_t i = 1; i <= count; i++) {
        fprintf(out, "commit refs/heads/main\nmark :%lld\ncommitter C <c@d> %lld +0000\ndata 0\n",
                (long long)i, (long long)(1600000000 + i));
        if (i > 9 && i % 7 == 0)
            fprintf(out, "from :%lld\nmerge :%lld\n", (long long)i - 1, (long long)i - 5);
        if (i % 10 == 1)
            fprintf(out, "M 644 inline p\ndata <<E\n%lld\nE\n\n", (long long)i);
    }
    assert_int_equal(fclose(out), 0);
    invar_test_shell(invar_test_home, "rm -rf long; git init -q long; cd long; "
                                      "git fast-import --quiet <../stream");
    invar_repo *repo = invar_test_repo_open(invar_test_home_path("long"));
    assert_ok(invar_repo_resolve(bad, repo, "main"));
    assert_ok(invar_repo_resolve(good, repo, "main~100"));
    assert_ok(invar_repo_history(&history, repo, &range));
    assert_int_equal(history->count, 100);
    invar_history_free(history);
    range.n_good = 0;
    range.paths = paths;
    range.n_paths = 1;
    assert_ok(invar_repo_history(&history, repo, &range));
    assert_int_equal(history->count, count);
    invar_history_free(history);
    invar_repo_close(repo);
}

/* ---- incomplete clones ----------------------------------------------------------------------- */

static void test_repo_history__of_shallow_clones(void **state)
{
    char id[INVAR_OID_SIZE], other[INVAR_OID_SIZE];
    char bases[INVAR_REPO_BASES][INVAR_OID_SIZE];
    invar_repo_range range = {.bad = id};
    invar_history *history;
    invar_repo *repo;
    size_t count;
    bool above;

    (void)state;
    invar_test_shell(invar_test_home,
                     "git clone -q --depth 3 --no-tags --no-single-branch file://$PWD/r shallow");
    repo = invar_test_repo_open(invar_test_home_path("shallow"));
    // Control: complete ranges work.
    range_case q = {invar_test_home_path("shallow"), "HEAD", {"HEAD~1"}, false, NULL};
    assert_int_equal(assert_range(repo, &q), 1);
    q.good[0] = "HEAD~2"; // the oldest fetched commit as the good end
    assert_int_equal(assert_range(repo, &q), 2);
    assert_ok(invar_repo_resolve(id, repo, "HEAD"));
    assert_ok(invar_repo_resolve(other, repo, "HEAD~2"));
    assert_ok(invar_repo_is_ancestor(&above, repo, other, id));
    assert_true(above);
    assert_ok(invar_repo_is_ancestor(&above, repo, id, other));
    assert_false(above);
    // Incomplete ranges fail with a remedy.
    assert_fails(invar_repo_history(&history, repo, &range), INVAR_E_STATE, "--unshallow");
    assert_fails(invar_repo_resolve(other, repo, "HEAD~3"), INVAR_E_NOTFOUND, "--unshallow");
    invar_repo_close(repo);
    invar_test_shell(invar_test_home,
                     "git clone -q --depth 1 --no-tags --no-single-branch file://$PWD/r shallow1");
    repo = invar_test_repo_open(invar_test_home_path("shallow1"));
    assert_ok(invar_repo_resolve(other, repo, "origin/side"));
    assert_fails(invar_repo_merge_bases(bases, &count, repo, id, other), INVAR_E_STATE,
                 "--unshallow");
    assert_fails(invar_repo_is_ancestor(&above, repo, other, id), INVAR_E_STATE, "--unshallow");
    invar_repo_commit commit;
    assert_ok(invar_repo_describe(&commit, repo, id));
    assert_string_equal(commit.subject, "c5");
    invar_repo_close(repo);
    // The suggested command repairs the clone.
    invar_test_shell(invar_test_home, "git -C shallow fetch -q --unshallow");
    repo = invar_test_repo_open(invar_test_home_path("shallow"));
    assert_ok(invar_repo_history(&history, repo, &range));
    assert_int_equal(history->count, 5);
    invar_history_free(history);
    invar_repo_close(repo);
}

static void test_repo__of_partial_clones(void **state)
{
    char id[INVAR_OID_SIZE], blob[INVAR_OID_SIZE];
    invar_repo_commit commit;
    invar_repo *repo;

    (void)state;
    invar_test_shell(invar_test_home,
                     "git clone -q --filter=blob:none --no-checkout file://$PWD/r partial");
    repo = invar_test_repo_open(invar_test_home_path("partial"));
    range_case q = {invar_test_home_path("partial"), "HEAD", {"HEAD~3"}, false, "d"};
    assert_int_equal(assert_range(repo, &q), 3);
    assert_ok(invar_repo_resolve(id, repo, "HEAD"));
    assert_ok(invar_repo_describe(&commit, repo, id)); // names of files, but no line counts
    assert_int_equal(commit.files, 1);
    assert_string_equal(commit.shown[0].path, "d/f");
    assert_int_equal(commit.shown[0].added, -1);
    invar_test_shell_output(blob, sizeof blob, invar_test_home_path("r"), "git rev-parse HEAD:d/f");
    assert_fails(invar_repo_checkout(repo, id, invar_test_home_path("partial-out")), INVAR_E_STATE,
                 blob);
    assert_fails(invar_repo_checkout(repo, id, invar_test_home_path("partial-out")), INVAR_E_STATE,
                 "--refetch");
    invar_repo_close(repo);
    // The suggested command repairs the clone.
    invar_test_shell(invar_test_home, "git -C partial fetch -q --refetch --no-filter 2>/dev/null");
    repo = invar_test_repo_open(invar_test_home_path("partial"));
    assert_ok(invar_repo_checkout(repo, id, invar_test_home_path("partial-out")));
    invar_test_shell(invar_test_home, "cmp partial-out/d/f r/d/f");
    invar_repo_close(repo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repo_history__equals_git),
        cmocka_unit_test(test_repo_history__takes_paths_as_people_write_them),
        cmocka_unit_test(test_repo_history__equals_git_on_generated_graphs),
        cmocka_unit_test(test_repo_history__is_fast_on_long_ones),
        cmocka_unit_test(test_repo_history__of_shallow_clones),
        cmocka_unit_test(test_repo__of_partial_clones),
    };

    return cmocka_run_group_tests(tests, set_up, invar_test_home_remove);
}
