/*
 * replica_check.c - tests of the replica check, which finds ranks that computed different bits.
 *
 * Three ranks are threads; one of them has a different digest, metric or weight digest. All ranks
 * must fail with one message that names the rank and the point. Control: equal ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/replica_check.h"
#include <unistd.h>

#include "ledger/ledger.h"
#include "tests/unit/engine/ranks/comm/exchange.h"

enum { RANKS = 3, POINTS = 3 };

/* The injected difference. */
typedef struct fault {
    int rank,
        point; /* rank that differs, -1 for none; first differing point, POINTS for the metric,
                        POINTS + 1 for the weights */
    const char *path;
} fault;

static const invar_ledger_point points[POINTS] = {
    {.name = "batch.tokens",
     .phase = "rollout",
     .layer = -1,
     .op = "sample",
     .kind = "data",
     .dtype = "i32",
     .shards = 1},
    {.name = "grad.embed",
     .phase = "backward",
     .layer = -1,
     .op = "sum",
     .kind = "grad",
     .dtype = "f32",
     .shards = 1},
    {.name = "weight.embed",
     .phase = "optimizer",
     .layer = -1,
     .op = "adamw",
     .kind = "param",
     .dtype = "f32",
     .shards = 1},
};

static invar_status open_ledger(invar_recorder *r, const char *path)
{
    const invar_ledger_pair pair = {"seed", "1"};
    const invar_ledger_run run = {.name = "run",
                                  .kind = "train",
                                  .identity = &pair,
                                  .n_identity = 1,
                                  .circumstances = {.no_auto_facts = true}};

    INVAR_TRY(invar_ledger_open(&r->ledger, path, &(invar_ledger_options){.create = true}));
    INVAR_TRY(invar_ledger_begin(r->ledger, &run));
    return invar_ledger_define(r->ledger, points, POINTS);
}

static invar_status make_step(rank_run *run)
{
    const fault *f = run->payload;
    int rank = invar_comm_rank(run->comm);
    bool differs = rank == f->rank;
    invar_recorder r = {.last_recorded_step = -1};
    invar_digest digests[POINTS];
    invar_ledger_metric metric = {"train/loss", differs && f->point == POINTS ? 2.0 : 1.0};
    invar_probe_result result = {.points = points, .digests = digests, .count = POINTS};
    invar_ledger_step step = {.step = 0, .digests = digests, .metrics = &metric, .n_metrics = 1};
    invar_learner learner = {.stepped = true};
    invar_step_report report = {.learners = {{.learner = &learner}}, .n_learners = 1};
    invar_layout layout;
    invar_status status = INVAR_OK;

    invar_layout_init(&layout, run->comm, SECONDS);
    r.options.layout = &layout;
    r.step = &report;
    invar_hash_bytes(&learner.weights_digest, differs && f->point > POINTS ? "bad" : "good", 3);
    for (int i = 0; i < POINTS; i++)
        invar_hash_bytes(&digests[i], differs && i >= f->point ? "bad" : "good", 3);
    if (rank == 0)
        status = open_ledger(&r, f->path);
    if (status == INVAR_OK)
        status = invar_replica_check(&r, &step, &result);
    run->digest = r.ranks_diverged;
    invar_ledger_close(r.ledger);
    return status;
}

static invar_status count_rows(void *payload, const char *const *columns,
                               const invar_ledger_value *values, int count)
{
    int64_t *out = payload;

    (void)columns;
    (void)count;
    if (values)
        out[0] = values[0].integer;
    return INVAR_OK;
}

static int64_t number(const char *path, const char *sql)
{
    int64_t out = -1;
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_select(
        ledger, &(invar_ledger_select_request){.sql = sql, .row = count_rows, .payload = &out}));
    invar_ledger_close(ledger);
    return out;
}

static void run_replicas(rank_run runs[MAX_RANKS], fault *f, uint64_t schedule)
{
    f->path = INVAR_TEST_WORK "/replicas.db";
    (void)unlink(f->path);
    (void)unlink(INVAR_TEST_WORK "/replicas.db-wal");
    (void)unlink(INVAR_TEST_WORK "/replicas.db-shm");
    run_ranks(runs, RANKS, schedule, 0, make_step, f);
}

static void test_replica_check__equal_ranks_write_nothing(void **state)
{
    rank_run runs[MAX_RANKS];
    fault none = {.rank = -1};

    (void)state;
    run_replicas(runs, &none, 1);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(runs[r].status, INVAR_OK);
    assert_int_equal(number(none.path, "SELECT count(*) FROM step"), 0);
}

static void test_replica_check__names_the_differing_rank_and_point(void **state)
{
    static const char *const what[] = {"batch.tokens", "grad.embed", "weight.embed", "its metrics",
                                       "its weights as ops read them"};

    (void)state;
    for (int rank = 0; rank < RANKS; rank++)
        for (int point = 0; point <= POINTS + 1; point++) {
            fault f = {rank, point, NULL};
            rank_run runs[MAX_RANKS];
            char text[200];

            run_replicas(runs, &f, (uint64_t)point);
            (void)snprintf(text, sizeof text, "step 0: rank %d on ", rank);
            for (int r = 0; r < RANKS; r++) {
                assert_int_equal(runs[r].status, INVAR_E_MISMATCH);
                assert_true(runs[r].digest);
                assert_non_null(strstr(runs[r].error.message, text));
                assert_non_null(strstr(runs[r].error.message, what[point]));
                assert_string_equal(runs[r].error.message, runs[0].error.message);
            }
            assert_int_equal(number(f.path, "SELECT count(*) FROM event WHERE kind = "
                                            "'rank-desync' AND level = 'error' AND step = 0"),
                             1);
            // rows that the query rank-desync finds: one per point and rank that differs from rank
            // 0
            assert_int_equal(number(f.path, "SELECT count(*) FROM digest x JOIN digest z USING "
                                            "(run, step, seg) JOIN point p ON p.manifest = "
                                            "x.manifest WHERE p.replicated = 1 AND z.rank = 0 AND "
                                            "x.rank > 0 AND substr(x.data, 1 + 16 * p.ord, 16) <> "
                                            "substr(z.data, 1 + 16 * p.ord, 16)"),
                             point > POINTS ? 0 : (POINTS - point) * (rank == 0 ? 2 : 1));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replica_check__equal_ranks_write_nothing),
        cmocka_unit_test(test_replica_check__names_the_differing_rank_and_point),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
