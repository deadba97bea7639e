/*
 * ledger.c - measures the cost of the ledger against plain SQLite. A program, not a test.
 *
 *     bench.ledger FOLDER [STEPS [LONG]]
 *
 * append: STEPS steps (2000) of 1000 digests and 60 metrics, one transaction each. The peer writes
 * the same blob and the same 60 numbers with bare prepared statements into two tables, in WAL mode
 * with synchronous = NORMAL: no hashes, no triggers, no entries.
 *
 * divergence: two runs of LONG steps (200000) that diverge in the middle. The peer joins their
 * steps and takes the first one whose roots differ, as a tracker without a chain has to do.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ledger/ledger.h"
#include "ledger/view/diff/diff.h"
#include "tests/bench/bench.h"

enum { POINTS = 1000, METRICS = 60, REPEATS = 21 };

static double bytes_of(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 ? (double)info.st_size : 0;
}

static void remove_database(char *path, size_t size, const char *folder, const char *name)
{
    static const char *const suffixes[] = {"-wal", "-shm", "-lock", ""};

    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        snprintf(path, size, "%s/%s%s", folder, name, suffixes[i]);
        unlink(path);
    }
}

/* ---- one workload for both sides ------------------------------------------------------------- */

typedef struct workload {
    invar_digest digests[POINTS];
    char names[METRICS][32];
    invar_ledger_metric metrics[METRICS];
} workload;

static void fill_workload(workload *l, int64_t step)
{
    for (int64_t i = 0; i < POINTS; i++) {
        int64_t coordinates[2] = {step, i};
        invar_hash_bytes(&l->digests[i], coordinates, sizeof coordinates);
    }
    for (int i = 0; i < METRICS; i++) {
        snprintf(l->names[i], sizeof l->names[i], "train/metric_%02d", i);
        l->metrics[i] = (invar_ledger_metric){l->names[i], (double)(step * METRICS + i) / 7};
    }
}

static void define_points(invar_ledger *ledger, size_t points)
{
    static invar_ledger_point list[POINTS];
    static char names[POINTS][32];

    for (size_t i = 0; i < points; i++) {
        snprintf(names[i], sizeof names[i], "layer.%zu.point.%zu", i / 10, i % 10);
        list[i] = (invar_ledger_point){.name = names[i],
                                       .phase = "forward",
                                       .layer = (int64_t)i / 10,
                                       .op = "linear.fwd.bf16",
                                       .kind = "act",
                                       .dtype = "bf16",
                                       .shards = 1};
    }
    DO(invar_ledger_define(ledger, list, points));
}

static invar_ledger *begin_run(const char *path)
{
    invar_ledger *ledger;

    DO(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    DO(invar_ledger_begin(ledger, &(invar_ledger_run){.name = "bench", .kind = "train"}));
    return ledger;
}

/* ---- append ---------------------------------------------------------------------------------- */

static double append_ours(const char *path, workload *l, int64_t steps)
{
    invar_ledger *ledger = begin_run(path);
    double elapsed = 0;

    define_points(ledger, POINTS);
    for (int64_t step = 0; step < steps; step++) {
        invar_ledger_step s = {
            .step = step, .digests = l->digests, .metrics = l->metrics, .n_metrics = METRICS};
        double start;
        fill_workload(l, step);
        start = now_ms();
        DO(invar_ledger_append(ledger, &s));
        elapsed += now_ms() - start;
    }
    DO(invar_ledger_finish(ledger, 0, "done"));
    invar_ledger_close(ledger);
    return elapsed / (double)steps;
}

static void exec_sql(sqlite3 *db, const char *text)
{
    if (sqlite3_exec(db, text, NULL, NULL, NULL) != SQLITE_OK) {
        fprintf(stderr, "bench.ledger: %s: %s\n", text, sqlite3_errmsg(db));
        exit(2);
    }
}

static void plain_step(sqlite3 *db, sqlite3_stmt *digest, sqlite3_stmt *metric, const workload *l,
                       int64_t step)
{
    exec_sql(db, "BEGIN IMMEDIATE");
    sqlite3_bind_int64(digest, 1, step);
    sqlite3_bind_blob(digest, 2, l->digests, sizeof l->digests, SQLITE_STATIC);
    sqlite3_step(digest);
    sqlite3_reset(digest);
    for (int i = 0; i < METRICS; i++) {
        int64_t bits;
        memcpy(&bits, &l->metrics[i].value, sizeof bits);
        sqlite3_bind_int64(metric, 1, step);
        sqlite3_bind_int64(metric, 2, i);
        sqlite3_bind_int64(metric, 3, bits);
        sqlite3_bind_double(metric, 4, l->metrics[i].value);
        sqlite3_step(metric);
        sqlite3_reset(metric);
    }
    exec_sql(db, "COMMIT");
}

static double append_plain(const char *path, workload *l, int64_t steps)
{
    sqlite3_stmt *digest, *metric;
    sqlite3 *db;
    double elapsed = 0;

    sqlite3_open(path, &db);
    exec_sql(db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
                 "CREATE TABLE digest(step INTEGER PRIMARY KEY, data BLOB) STRICT;"
                 "CREATE TABLE metric(step INTEGER, series INTEGER, bits INTEGER, value REAL,"
                 "  PRIMARY KEY(step, series)) STRICT, WITHOUT ROWID");
    sqlite3_prepare_v2(db, "INSERT INTO digest VALUES(?, ?)", -1, &digest, NULL);
    sqlite3_prepare_v2(db, "INSERT INTO metric VALUES(?, ?, ?, ?)", -1, &metric, NULL);
    for (int64_t step = 0; step < steps; step++) {
        double start;
        fill_workload(l, step);
        start = now_ms();
        plain_step(db, digest, metric, l, step);
        elapsed += now_ms() - start;
    }
    sqlite3_finalize(digest);
    sqlite3_finalize(metric);
    sqlite3_close(db);
    return elapsed / (double)steps;
}

static void bench_append(const char *folder, int64_t steps)
{
    static workload l;
    char ours[4096], plain[4096];
    double a, b;

    remove_database(ours, sizeof ours, folder, "append.db");
    remove_database(plain, sizeof plain, folder, "plain.db");
    a = append_ours(ours, &l, steps);
    b = append_plain(plain, &l, steps);
    printf("append      %8.3f ms a step   plain SQLite %8.3f ms   ratio %5.2f\n", a, b, b / a);
    printf("size        %8.0f bytes a step   plain SQLite %8.0f bytes\n",
           bytes_of(ours) / (double)steps, bytes_of(plain) / (double)steps);
}

/* ---- divergence ------------------------------------------------------------------------------ */

static void write_long(const char *path, int64_t steps, int64_t diverges_at)
{
    invar_ledger *ledger = begin_run(path);

    define_points(ledger, 1);
    for (int64_t step = 0; step < steps; step++) {
        int64_t coordinates[2] = {step, diverges_at >= 0 && step >= diverges_at};
        invar_digest digest;
        invar_hash_bytes(&digest, coordinates, sizeof coordinates);
        DO(invar_ledger_append(ledger, &(invar_ledger_step){.step = step, .digests = &digest}));
    }
    DO(invar_ledger_finish(ledger, 0, "done"));
    invar_ledger_close(ledger);
}

static double search_chains(invar_ledger *a, invar_ledger *b, int64_t expected, int64_t *lookups)
{
    double best = 1e9;

    for (int i = 0; i < REPEATS; i++) {
        double start = now_ms(), elapsed;
        invar_diff *diff;
        DO(invar_diff_runs(&diff, a, 1, b, 1));
        elapsed = now_ms() - start;
        best = elapsed < best ? elapsed : best;
        *lookups = diff->steps.lookups;
        if (diff->step != expected) {
            fprintf(stderr, "bench.ledger: found step %lld\n", (long long)diff->step);
            exit(1);
        }
        invar_diff_free(diff);
    }
    return best;
}

static double join_roots(const char *path_a, const char *path_b, int64_t expected)
{
    char attach[8300];
    sqlite3_stmt *stmt;
    sqlite3 *db;
    double start;

    sqlite3_open_v2(path_a, &db, SQLITE_OPEN_READONLY, NULL);
    snprintf(attach, sizeof attach, "ATTACH '%s' AS other", path_b);
    exec_sql(db, attach);
    start = now_ms();
    sqlite3_prepare_v2(db,
                       "SELECT a.step FROM main.step a JOIN other.step b USING(run, step, seg) "
                       "WHERE a.run = 1 AND a.root <> b.root ORDER BY a.step LIMIT 1",
                       -1, &stmt, NULL);
    if (sqlite3_step(stmt) != SQLITE_ROW || sqlite3_column_int64(stmt, 0) != expected) {
        fprintf(stderr, "bench.ledger: the join found something else\n");
        exit(1);
    }
    sqlite3_finalize(stmt);
    start = now_ms() - start;
    sqlite3_close(db);
    return start;
}

static void bench_divergence(const char *folder, int64_t steps)
{
    char path_a[4096], path_b[4096];
    invar_ledger *a, *b;
    int64_t lookups = 0;
    double chains, join;

    remove_database(path_a, sizeof path_a, folder, "a.db");
    remove_database(path_b, sizeof path_b, folder, "b.db");
    write_long(path_a, steps, -1);
    write_long(path_b, steps, steps / 2);
    DO(invar_ledger_open(&a, path_a, NULL));
    DO(invar_ledger_open(&b, path_b, NULL));
    chains = search_chains(a, b, steps / 2, &lookups);
    join = join_roots(path_a, path_b, steps / 2);
    printf("divergence  %8.3f ms in %lld steps, %lld look-ups   join of roots %8.3f ms   ratio "
           "%5.1f\n",
           chains, (long long)steps, (long long)lookups, join, join / chains);
    invar_ledger_close(a);
    invar_ledger_close(b);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: bench.ledger FOLDER [STEPS [LONG]]\n");
        return 129;
    }
    bench_append(argv[1], argc > 2 ? atoll(argv[2]) : 2000);
    bench_divergence(argv[1], argc > 3 ? atoll(argv[3]) : 200000);
    printf("ratio: the peer's time over ours; above 1 we are faster\n");
    return 0;
}
