/*
 * thread.c - tests of the transport between threads: received bytes and failures of all ranks.
 *
 * Random exchanges must have the same digest for every schedule of the adversary, which delays
 * messages and writes noise into `out` before a wait. If one rank makes another call, leaves,
 * aborts, hangs or halts, all ranks must fail with the same message, and one of them must report
 * it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/engine/ranks/comm/exchange.h"

/* ---- received bytes -------------------------------------------------------------------------- */

static void test_comm_thread__bytes_arrive_whatever_the_schedule(void **state)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 11};
    uint64_t last = 0;

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint64_t seed = 1; seed <= (uint64_t)invar_test_count(2, 40); seed++) {
            uint64_t digest = exchange_threads(sizes[i], 0, seed);

            assert_true(digest != last); // control: the digest depends on the bytes
            last = digest;
            for (uint64_t schedule = 1; schedule <= (uint64_t)invar_test_count(2, 10); schedule++)
                assert_true(exchange_threads(sizes[i], schedule, seed) == digest);
        }
}

static void test_comm_thread__one_rank_is_self(void **state)
{
    invar_comm *comm;
    uint64_t digest;

    (void)state;
    assert_ok(invar_comm_self(&comm));
    assert_ok(exchange_run(&digest, comm, 1));
    invar_comm_free(comm);
    assert_true(digest == exchange_threads(1, 0, 1));
}

/* Reads `out` between start and wait, when the adversary has filled it with noise. */
static invar_status read_early(rank_run *run)
{
    bool *early = run->payload;
    char in[64], out[64] = {0};
    int rank = invar_comm_rank(run->comm);
    invar_comm_transfer transfer = {.op = INVAR_COMM_SENDRECV,
                                    .phase = "early",
                                    .in = in,
                                    .out = out,
                                    .dst_rank = 1 - rank,
                                    .src_rank = 1 - rank,
                                    .to_bytes = sizeof in,
                                    .from_bytes = sizeof out};
    invar_comm_request *request;

    memset(in, 'x', sizeof in);
    INVAR_TRY(invar_comm_start(&request, run->comm, &transfer));
    early[rank] = out[0] != 0 && out[0] != 'x';
    INVAR_TRY(invar_comm_wait(request));
    return memcmp(in, out, sizeof in) ? INVAR_FAIL(INVAR_E_CORRUPT, 0, "wrong bytes") : INVAR_OK;
}

static void test_comm_thread__the_adversary_shows_early_reads(void **state)
{
    rank_run runs[MAX_RANKS];
    bool early[2];

    (void)state;
    run_ranks(runs, 2, 0, 0, read_early, early);
    assert_false(early[0] || early[1]);
    run_ranks(runs, 2, 3, 0, read_early, early);
    assert_true(early[0] && early[1]);
    assert_int_equal(runs[0].status, INVAR_OK);
    assert_int_equal(runs[1].status, INVAR_OK);
}

/* ---- failing together ------------------------------------------------------------------------ */

static invar_status barrier(invar_comm *comm, const char *phase, double seconds)
{
    return invar_comm_run(
        comm,
        &(invar_comm_transfer){.op = INVAR_COMM_BARRIER, .phase = phase, .timeout_s = seconds});
}

static invar_status gather(invar_comm *comm, const char *phase, size_t rank_bytes)
{
    char in[64] = {0}, out[64 * MAX_RANKS];
    size_t bytes[MAX_RANKS];

    for (int i = 0; i < MAX_RANKS; i++)
        bytes[i] = rank_bytes;
    return invar_comm_run(
        comm,
        &(invar_comm_transfer){
            .op = INVAR_COMM_ALLGATHERV, .phase = phase, .in = in, .out = out, .out_bytes = bytes});
}

/* Each scenario below has one rank, mostly rank 2, that behaves differently from the others. */
static invar_status other_op(rank_run *run)
{
    INVAR_TRY(barrier(run->comm, "begin", 0));
    if (invar_comm_rank(run->comm) == 2)
        return gather(run->comm, "weights", 8);
    return barrier(run->comm, "gradients", 0);
}

static invar_status other_size(rank_run *run)
{
    return gather(run->comm, "weights", invar_comm_rank(run->comm) == 2 ? 24 : 16);
}

static invar_status only_other_op(rank_run *run)
{
    if (invar_comm_rank(run->comm) == 2)
        return gather(run->comm, "weights", 0);
    return barrier(run->comm, "weights", 0);
}

static invar_status other_phase(rank_run *run)
{
    return barrier(run->comm, invar_comm_rank(run->comm) == 2 ? "step 4" : "step 5", 0);
}

static invar_status leave_early(rank_run *run)
{
    if (invar_comm_rank(run->comm) == 2)
        return INVAR_OK;
    return gather(run->comm, "weights", 16);
}

static invar_status abort_early(rank_run *run)
{
    if (invar_comm_rank(run->comm) == 2)
        invar_comm_abort(run->comm, "/run/ledger.db: no space left");
    return gather(run->comm, "weights", 16);
}

static invar_status hang_in_call(rank_run *run)
{
    if (invar_comm_rank(run->comm) == 2)
        nanosleep(&(struct timespec){.tv_nsec = 250000000}, NULL);
    return barrier(run->comm, "rollout", 0.1);
}

/* A failure within a group reaches ranks outside of it and requests in flight. */
static invar_status fail_in_group(rank_run *run)
{
    invar_comm *group;
    invar_comm_request *request;
    int rank = invar_comm_rank(run->comm);
    invar_comm_transfer transfer = {.op = INVAR_COMM_BARRIER, .phase = "all"};
    invar_status status, waited;

    INVAR_TRY(invar_comm_split(&group, run->comm, rank / 2, 0, "groups", 0));
    if (rank == 2) {
        status = gather(group, "weights", 8);
        invar_comm_free(group);
        return status;
    }
    INVAR_TRY(invar_comm_start(&request, run->comm, &transfer));
    status = barrier(group, "gradients", 0);
    waited = invar_comm_wait(request);
    invar_comm_free(group);
    return waited != INVAR_OK ? waited : status;
}

/*
 * Checks for many schedules that all ranks except `successful_rank` fail with the same message,
 * which contains `text`, and that exactly one rank reports it.
 */
static void check_failure(invar_status (*part)(rank_run *run), int native, const char *text,
                          int successful_rank)
{
    rank_run runs[MAX_RANKS];

    for (uint64_t schedule = 0; schedule < (uint64_t)invar_test_count(4, 100); schedule++) {
        int n_reports = 0, first_failed = successful_rank == 0 ? 1 : 0; // said: a rank that fails

        run_ranks(runs, 4, schedule, 0, part, NULL);
        for (int r = 0; r < 4; r++) {
            n_reports += runs[r].speaks;
            if (r == successful_rank)
                continue;
            assert_int_equal(runs[r].status, INVAR_E_IO);
            assert_int_equal(runs[r].error.native, native);
            assert_string_equal(runs[r].error.message, runs[first_failed].error.message);
            if (!strstr(runs[r].error.message, text))
                fail_msg("\"%s\" has no \"%s\"", runs[r].error.message, text);
        }
        assert_int_equal(n_reports, 1);
    }
}

static void test_comm_thread__another_call_is_named(void **state)
{
    (void)state;
    check_failure(other_op, EPROTO, " is out of step with rank ", INVAR_COMM_NONE);
    check_failure(other_op, EPROTO, "allgatherv in phase \"weights\" and ", INVAR_COMM_NONE);
    check_failure(other_op, EPROTO, "barrier in phase \"gradients\" and ", INVAR_COMM_NONE);
    check_failure(other_size, EPROTO, "and sends ", INVAR_COMM_NONE);
    check_failure(only_other_op, EPROTO, "allgatherv in phase \"weights\" and ", INVAR_COMM_NONE);
    check_failure(other_phase, EPROTO, "\"step 4\"", INVAR_COMM_NONE);
    check_failure(fail_in_group, EPROTO, "allgatherv in phase \"weights\" and ", INVAR_COMM_NONE);
}

static void test_comm_thread__who_leaves_or_aborts_is_named(void **state)
{
    char host[64] = "", text[128];

    (void)state;
    check_failure(leave_early, ECONNRESET, "rank 2 on ", 2);
    check_failure(leave_early, ECONNRESET, " has left the run in phase \"weights\"", 2);
    gethostname(host, sizeof host - 1);
    (void)snprintf(text, sizeof text, "rank 2 on %s cannot go on: /run/ledger.db: no space", host);
    check_failure(abort_early, ECONNABORTED, text, INVAR_COMM_NONE);
}

static void test_comm_thread__who_hangs_is_named(void **state)
{
    double from = (double)clock();

    (void)state;
    check_failure(hang_in_call, ETIMEDOUT, "rank 2 on ", INVAR_COMM_NONE);
    check_failure(hang_in_call, ETIMEDOUT, " did not come to barrier in phase \"rollout\"",
                  INVAR_COMM_NONE);
    assert_true(((double)clock() - from) / CLOCKS_PER_SEC < 2); // waiting uses no CPU time
}

#define TIMEOUT_S 0.5 /* timeout in seconds */

/*
 * Rank 2 computes for twice the timeout of the other ranks. Its payload is the number of heartbeats
 * that it sends meanwhile, at most 20.
 */
static invar_status work_long(rank_run *run)
{
    int n_heartbeats = *(const int *)run->payload, rank = invar_comm_rank(run->comm);
    invar_comm *pair;
    invar_status status;

    INVAR_TRY(invar_comm_split(&pair, run->comm, rank / 2, 0, "pairs", 0));
    for (int i = 0; i < 20 && rank == 2; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        if (i < n_heartbeats)
            invar_comm_heartbeat(run->comm, TIMEOUT_S);
    }
    status = barrier(pair, "rollout", TIMEOUT_S);
    if (status == INVAR_OK)
        status = barrier(run->comm, "samples", TIMEOUT_S);
    invar_comm_free(pair);
    return status;
}

static void test_comm_thread__slow_ranks_with_heartbeats_are_awaited(void **state)
{
    rank_run runs[MAX_RANKS];
    int all = 20, none = 0, first = 3;

    (void)state;
    run_ranks(runs, 4, 0, 0, work_long, &all);
    for (int r = 0; r < 4; r++)
        if (runs[r].status != INVAR_OK)
            fail_msg("rank %d: %s", r, runs[r].error.message);
    for (int i = 0; i < 2; i++) { // controls: no heartbeat, and none after the third
        run_ranks(runs, 4, 0, 0, work_long, i ? &first : &none);
        for (int r = 0; r < 4; r++)
            assert_int_equal(runs[r].error.native, ETIMEDOUT);
    }
}

/* Rank 0 leaves; then rank 1 must report the failure. */
static invar_status rank_0_leaves(rank_run *run)
{
    return invar_comm_rank(run->comm) ? gather(run->comm, "weights", 16) : INVAR_OK;
}

/* Rank 0 aborts and reports the reason itself; calls after the failure fail the same way. */
static invar_status rank_0_aborts(rank_run *run)
{
    invar_status status;

    if (invar_comm_rank(run->comm) == 0)
        invar_comm_abort(run->comm, "why not");
    status = gather(run->comm, "weights", 16);
    if (status == INVAR_OK)
        return status;
    return gather(run->comm, "later", 16);
}

static void test_comm_thread__exactly_one_rank_reports(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    run_ranks(runs, 3, 0, 0, rank_0_aborts, NULL);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(runs[r].status, INVAR_E_IO);
        assert_non_null(strstr(runs[r].error.message, " cannot go on: why not"));
        assert_int_equal(runs[r].speaks, r == 0);
    }
    run_ranks(runs, 3, 0, 0, rank_0_leaves, NULL);
    assert_true(runs[1].speaks && !runs[2].speaks);
}

/* ---- recoverable aborts ---------------------------------------------------------------------- */

/*
 * Rank 2 aborts recoverably while the others are in a call; then all ranks recover. Without a
 * payload they exchange bytes.
 */
static invar_status halt_and_recover(rank_run *run)
{
    invar_status status;

    if (invar_comm_recover(run->comm))
        return INVAR_FAIL(INVAR_E_STATE, 0, "revived without a failure");
    if (invar_comm_rank(run->comm) == 2)
        invar_comm_abort_recoverable(run->comm, "/run/ledger.db: no space left");
    status = gather(run->comm, "weights", 16);
    if (status != INVAR_E_IO || invar_error_last()->native != ECANCELED)
        return INVAR_FAIL(INVAR_E_STATE, 0, "no halt");
    if (!invar_comm_recover(run->comm))
        return INVAR_FAIL(INVAR_E_STATE, 0, "not revived");
    if (run->payload)
        return INVAR_OK;
    INVAR_TRY(exchange_run(&run->digest, run->comm, run->seed));
    return invar_comm_recover(run->comm) ? INVAR_FAIL(INVAR_E_STATE, 0, "revived without a failure")
                                         : INVAR_OK;
}

/* The recovered world aborts again, which no call recovers. */
static invar_status halt_twice(rank_run *run)
{
    invar_status status = halt_and_recover(run);

    if (status == INVAR_OK && invar_comm_rank(run->comm) == 1)
        invar_comm_abort_recoverable(run->comm, "again");
    if (status == INVAR_OK)
        status = barrier(run->comm, "end", 0);
    return invar_comm_recover(run->comm) ? INVAR_OK : status;
}

static void test_comm_thread__a_world_is_revived_once(void **state)
{
    rank_run runs[MAX_RANKS];
    bool twice = true;

    (void)state;
    for (uint64_t schedule = 0; schedule < (uint64_t)invar_test_count(4, 100); schedule++) {
        run_ranks(runs, 4, schedule, schedule, halt_and_recover, NULL);
        for (int r = 0; r < 4; r++) {
            if (runs[r].status != INVAR_OK)
                fail_msg("rank %d: %s", r, runs[r].error.message);
            assert_true(runs[r].digest == exchange_threads(4, 0, schedule));
        }
        run_ranks(runs, 4, schedule, schedule, halt_twice, &twice);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(runs[r].status, INVAR_E_IO);
            assert_non_null(strstr(runs[r].error.message, "rank 1 on "));
            assert_non_null(strstr(runs[r].error.message, " cannot go on: again"));
            assert_int_equal(runs[r].speaks, r == 0);
        }
    }
}

/*
 * Rank 2 aborts with the status of the payload, which cannot be recovered. The other ranks fail
 * with the same status if it has an exit code of its own, else with INVAR_E_IO.
 */
static invar_status abort_with_status(rank_run *run)
{
    invar_status status = *(const invar_status *)run->payload, found;

    if (invar_comm_rank(run->comm) == 2) {
        found = INVAR_FAIL(status, 0, "bits differ");
        invar_comm_abort(run->comm, invar_error_last()->message);
        return found;
    }
    found = gather(run->comm, "weights", 16);
    return invar_comm_recover(run->comm) ? INVAR_OK : found;
}

static void test_comm_thread__exit_codes_are_those_of_who_aborts(void **state)
{
    static const invar_status cases[][2] = {{INVAR_E_MISMATCH, INVAR_E_MISMATCH},
                                            {INVAR_E_INVALID, INVAR_E_INVALID},
                                            {INVAR_E_NOMEM, INVAR_E_IO},
                                            {INVAR_E_SQL, INVAR_E_IO}};
    rank_run runs[MAX_RANKS];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_status status = cases[i][0];
        run_ranks(runs, 4, i, 0, abort_with_status, &status);
        for (int r = 0; r < 4; r++)
            assert_int_equal(runs[r].status, cases[i][r != 2]);
    }
}

static void test_comm_thread__refuses_no_ranks(void **state)
{
    invar_comm *comm[1];

    (void)state;
    assert_fails(invar_comm_threads(comm, 0, 0), INVAR_E_INVALID, "0 ranks: there can be 1 to");
    assert_fails(invar_comm_threads(comm, INVAR_COMM_MAX_SIZE + 1, 0), INVAR_E_INVALID, "65537");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_thread__bytes_arrive_whatever_the_schedule),
        cmocka_unit_test(test_comm_thread__one_rank_is_self),
        cmocka_unit_test(test_comm_thread__the_adversary_shows_early_reads),
        cmocka_unit_test(test_comm_thread__another_call_is_named),
        cmocka_unit_test(test_comm_thread__who_leaves_or_aborts_is_named),
        cmocka_unit_test(test_comm_thread__who_hangs_is_named),
        cmocka_unit_test(test_comm_thread__slow_ranks_with_heartbeats_are_awaited),
        cmocka_unit_test(test_comm_thread__exactly_one_rank_reports),
        cmocka_unit_test(test_comm_thread__a_world_is_revived_once),
        cmocka_unit_test(test_comm_thread__exit_codes_are_those_of_who_aborts),
        cmocka_unit_test(test_comm_thread__refuses_no_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
