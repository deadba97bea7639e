/*
 * comm.c - tests of comm transfers: byte counts, rejected arguments, and a world of one rank.
 *
 * The expected byte counts are literals. The simulated rank gets addresses that no program may
 * access, so that a transport that read or wrote memory would crash.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "engine/ranks/comm/comm.h"
#include "tests/support.h"

static const size_t in_bytes[] = {10, 20, 0, 40}, out_bytes[] = {1, 20, 3, 4};

static void check_bytes(invar_comm_transfer transfer, int rank, uint64_t sent, uint64_t received)
{
    uint64_t s, r;

    transfer.phase = "count"; // without memory: the transfer is only counted, never executed
    assert_ok(invar_comm_transfer_bytes(&s, &r, &transfer, rank, 4));
    assert_int_equal(s, sent);
    assert_int_equal(r, received);
}

static void test_comm__counts_bytes_of_others(void **state)
{
    (void)state;
    check_bytes((invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV, .out_bytes = out_bytes}, 1, 60,
                8);
    check_bytes((invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV, .out_bytes = out_bytes}, 0, 3,
                27);
    check_bytes((invar_comm_transfer){.op = INVAR_COMM_ALLTOALLV,
                                      .in_bytes = in_bytes,
                                      .out_bytes = out_bytes},
                1, 50, 8);
    check_bytes((invar_comm_transfer){.op = INVAR_COMM_BROADCAST, .src_rank = 2, .from_bytes = 7},
                2, 21, 0);
    check_bytes((invar_comm_transfer){.op = INVAR_COMM_BROADCAST, .src_rank = 2, .from_bytes = 7},
                1, 0, 7);
    check_bytes((invar_comm_transfer){.op = INVAR_COMM_SENDRECV,
                                      .dst_rank = 0,
                                      .to_bytes = 5,
                                      .src_rank = 3,
                                      .from_bytes = 6},
                2, 5, 6);
    check_bytes((invar_comm_transfer){.op = INVAR_COMM_SENDRECV,
                                      .dst_rank = 2,
                                      .to_bytes = 5,
                                      .src_rank = 2,
                                      .from_bytes = 5},
                2, 0, 0);
    check_bytes((invar_comm_transfer){.op = INVAR_COMM_SENDRECV,
                                      .dst_rank = INVAR_COMM_NONE,
                                      .to_bytes = 5,
                                      .src_rank = 0,
                                      .from_bytes = 6},
                2, 0, 6);
    check_bytes((invar_comm_transfer){.op = INVAR_COMM_BARRIER}, 2, 0, 0);
}

static void check_rejected(invar_comm_transfer transfer, const char *text)
{
    uint64_t s, r;

    if (!transfer.phase)
        transfer.phase = "check";
    assert_fails(invar_comm_transfer_bytes(&s, &r, &transfer, 0, 4), INVAR_E_INVALID, text);
}

static void test_comm__refuses_invalid_transfers(void **state)
{
    static const size_t huge[] = {SIZE_MAX, 1, 0, 0};
    invar_comm_transfer barrier = {.op = INVAR_COMM_BARRIER, .phase = "check"}, none = barrier;
    invar_comm_transfer gather = {
        .op = INVAR_COMM_ALLGATHERV, .phase = "x", .out_bytes = out_bytes};
    invar_comm *comm;
    uint64_t s, r;

    (void)state;
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_OPS}, "no op or no phase");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_BARRIER, .phase = ""},
                   "no op or no phase");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_BARRIER, .timeout_s = -1},
                   "barrier in phase \"check\"");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_BARRIER, .timeout_s = (double)NAN},
                   "a deadline is 0");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV},
                   "numbers of bytes are missing");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_ALLTOALLV, .out_bytes = out_bytes},
                   "are missing");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_ALLTOALLV, .in_bytes = in_bytes},
                   "are missing");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_ALLTOALLV,
                                         .in_bytes = in_bytes,
                                         .out_bytes = out_bytes},
                   "gives itself another number");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV, .out_bytes = huge},
                   "more than memory");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_SENDRECV, .dst_rank = 4, .src_rank = 1},
                   "no such rank");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_SENDRECV, .dst_rank = -2, .src_rank = 1},
                   "no such rank");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_SENDRECV, .dst_rank = 1, .src_rank = 4},
                   "no such rank");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_SENDRECV, .dst_rank = 0, .src_rank = 1},
                   "from itself");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_SENDRECV, .to_bytes = 1},
                   "than it expects");
    check_rejected((invar_comm_transfer){.op = INVAR_COMM_BROADCAST, .src_rank = -1},
                   "no such rank");
    assert_ok(invar_comm_self(&comm));
    assert_fails(invar_comm_run(comm, &gather), INVAR_E_INVALID, "no memory");
    gather.in = &s;
    assert_fails(invar_comm_run(comm, &gather), INVAR_E_INVALID, "no memory");
    invar_comm_free(comm);
    assert_ok(invar_comm_transfer_bytes(&s, &r, &none, 3, 4));
    assert_fails(invar_comm_transfer_bytes(&s, &r, &barrier, 4, 4), INVAR_E_INVALID,
                 "no rank 4 of 4");
    assert_fails(invar_comm_transfer_bytes(&s, &r, &barrier, 0, 0), INVAR_E_INVALID,
                 "no rank 0 of 0");
}

static void test_comm__one_rank_copies_what_does_not_alias(void **state)
{
    const size_t bytes[] = {4};
    char in[] = "abcd", out[] = "....";
    invar_comm_transfer transfer = {.op = INVAR_COMM_ALLTOALLV,
                                    .phase = "alone",
                                    .in = in,
                                    .out = out,
                                    .in_bytes = bytes,
                                    .out_bytes = bytes};
    invar_comm_request *request;
    invar_comm *comm, *child;

    (void)state;
    assert_ok(invar_comm_self(&comm));
    assert_int_equal(invar_comm_rank(comm), 0);
    assert_int_equal(invar_comm_size(comm), 1);
    assert_true(invar_comm_host(comm, 0)[0] && invar_comm_reports_error(comm));
    assert_ok(invar_comm_run(comm, &transfer));
    assert_string_equal(out, "abcd");
    transfer.out = in;
    assert_ok(invar_comm_start(&request, comm, &transfer));
    assert_ok(invar_comm_wait(request));
    assert_string_equal(in, "abcd");
    transfer = (invar_comm_transfer){
        .op = INVAR_COMM_BROADCAST, .phase = "alone", .in = in, .from_bytes = 4};
    assert_ok(invar_comm_run(comm, &transfer)); // the root needs no output memory
    assert_int_equal(invar_comm_get_stats(comm, INVAR_COMM_ALLTOALLV).calls, 2);
    assert_int_equal(invar_comm_get_stats(comm, INVAR_COMM_ALLTOALLV).sent, 0);
    assert_int_equal(invar_comm_get_stats(comm, INVAR_COMM_BROADCAST).calls, 1);
    transfer.op = INVAR_COMM_SPLIT;
    assert_fails(invar_comm_run(comm, &transfer), INVAR_E_INVALID, "by invar_comm_split alone");
    assert_fails(invar_comm_start(&request, comm, &transfer), INVAR_E_INVALID, "invar_comm_split");
    assert_ok(invar_comm_split(&child, comm, -1, 0, "none", 0));
    assert_null(child);
    assert_ok(invar_comm_split(&child, comm, 3, 0, "one", 0));
    invar_comm_free(comm); // `child` is now the last handle of the world
    transfer.op = INVAR_COMM_BROADCAST;
    assert_ok(invar_comm_run(child, &transfer));
    invar_comm_abort(child, "enough");
    assert_fails(invar_comm_run(child, &transfer), INVAR_E_IO, "cannot go on: enough");
    assert_true(invar_comm_reports_error(child)); // it is the only rank
    assert_fails(invar_comm_start(&request, child, &transfer), INVAR_E_IO, "cannot go on: enough");
    invar_comm_free(child);
    invar_comm_free(NULL);
}

static void count_done(void *payload, const invar_comm_event *call)
{
    *(uint64_t *)payload += call->sent;
}

/* A simulated rank counts its transfers without accessing `in` and `out`, which are invalid. */
static void test_comm__simulated_ranks_only_count(void **state)
{
    size_t bytes[] = {10, 20, 30};
    invar_comm_transfer transfer = {.op = INVAR_COMM_ALLGATHERV,
                                    .phase = "plan",
                                    .timeout_s = 1,
                                    .in = (const void *)16,
                                    .out = (void *)4096,
                                    .out_bytes = bytes};
    invar_comm_request *request;
    uint64_t total_sent = 0;
    invar_comm *comm;

    (void)state;
    assert_fails(invar_comm_simulated(&comm, 3, 3), INVAR_E_INVALID, "no rank 3 of 3");
    assert_ok(invar_comm_simulated(&comm, 1, 3));
    assert_int_equal(invar_comm_rank(comm), 1);
    assert_int_equal(invar_comm_size(comm), 3);
    invar_comm_set_observer(comm, count_done, &total_sent);
    assert_ok(invar_comm_run(comm, &transfer));
    assert_ok(invar_comm_start(&request, comm, &transfer));
    assert_ok(invar_comm_wait(request));
    assert_int_equal(total_sent, 80);
    assert_int_equal(invar_comm_get_stats(comm, INVAR_COMM_ALLGATHERV).calls, 2);
    assert_int_equal(invar_comm_get_stats(comm, INVAR_COMM_ALLGATHERV).sent, 80);
    assert_int_equal(invar_comm_get_stats(comm, INVAR_COMM_ALLGATHERV).received, 80);
    transfer.in = NULL; // invalid arguments fail as they do in a real world
    assert_fails(invar_comm_run(comm, &transfer), INVAR_E_INVALID, "no memory");
    invar_comm_free(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm__counts_bytes_of_others),
        cmocka_unit_test(test_comm__refuses_invalid_transfers),
        cmocka_unit_test(test_comm__one_rank_copies_what_does_not_alias),
        cmocka_unit_test(test_comm__simulated_ranks_only_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
