/*
 * comm.c - tests of moves: what they count, what is refused, and one rank alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "engine/ranks/comm/comm.h"
#include "tests/support.h"

static const size_t in_bytes[] = {10, 20, 0, 40}, out_bytes[] = {1, 20, 3, 4};

static void counts(invar_comm_transfer move, int rank, uint64_t sent, uint64_t received)
{
    uint64_t s, r;

    move.phase = "count"; // and no memory: nobody makes it
    assert_ok(invar_comm_transfer_bytes(&s, &r, &move, rank, 4));
    assert_int_equal(s, sent);
    assert_int_equal(r, received);
}

static void test_comm__counts_bytes_of_others(void **state)
{
    (void)state;
    counts((invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV, .out_bytes = out_bytes}, 1, 60, 8);
    counts((invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV, .out_bytes = out_bytes}, 0, 3, 27);
    counts((invar_comm_transfer){.op = INVAR_COMM_ALLTOALLV,
                                 .in_bytes = in_bytes,
                                 .out_bytes = out_bytes},
           1, 50, 8);
    counts((invar_comm_transfer){.op = INVAR_COMM_BROADCAST, .src_rank = 2, .from_bytes = 7}, 2, 21,
           0);
    counts((invar_comm_transfer){.op = INVAR_COMM_BROADCAST, .src_rank = 2, .from_bytes = 7}, 1, 0,
           7);
    counts((invar_comm_transfer){.op = INVAR_COMM_SENDRECV,
                                 .dst_rank = 0,
                                 .to_bytes = 5,
                                 .src_rank = 3,
                                 .from_bytes = 6},
           2, 5, 6);
    counts((invar_comm_transfer){.op = INVAR_COMM_SENDRECV,
                                 .dst_rank = 2,
                                 .to_bytes = 5,
                                 .src_rank = 2,
                                 .from_bytes = 5},
           2, 0, 0);
    counts((invar_comm_transfer){.op = INVAR_COMM_SENDRECV,
                                 .dst_rank = INVAR_COMM_NONE,
                                 .to_bytes = 5,
                                 .src_rank = 0,
                                 .from_bytes = 6},
           2, 0, 6);
    counts((invar_comm_transfer){.op = INVAR_COMM_BARRIER}, 2, 0, 0);
}

static void refuses(invar_comm_transfer move, const char *text)
{
    uint64_t s, r;

    if (!move.phase)
        move.phase = "check";
    assert_fails(invar_comm_transfer_bytes(&s, &r, &move, 0, 4), INVAR_E_INVALID, text);
}

static void test_comm__refuses_what_is_no_move(void **state)
{
    static const size_t huge[] = {SIZE_MAX, 1, 0, 0};
    invar_comm_transfer barrier = {.op = INVAR_COMM_BARRIER, .phase = "check"}, none = barrier;
    invar_comm_transfer gather = {
        .op = INVAR_COMM_ALLGATHERV, .phase = "x", .out_bytes = out_bytes};
    invar_comm *comm;
    uint64_t s, r;

    (void)state;
    refuses((invar_comm_transfer){.op = INVAR_COMM_OPS}, "no op or no phase");
    refuses((invar_comm_transfer){.op = INVAR_COMM_BARRIER, .phase = ""}, "no op or no phase");
    refuses((invar_comm_transfer){.op = INVAR_COMM_BARRIER, .timeout_s = -1},
            "barrier in phase \"check\"");
    refuses((invar_comm_transfer){.op = INVAR_COMM_BARRIER, .timeout_s = (double)NAN},
            "a deadline is 0");
    refuses((invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV}, "numbers of bytes are missing");
    refuses((invar_comm_transfer){.op = INVAR_COMM_ALLTOALLV, .out_bytes = out_bytes},
            "are missing");
    refuses((invar_comm_transfer){.op = INVAR_COMM_ALLTOALLV, .in_bytes = in_bytes}, "are missing");
    refuses((invar_comm_transfer){.op = INVAR_COMM_ALLTOALLV,
                                  .in_bytes = in_bytes,
                                  .out_bytes = out_bytes},
            "gives itself another number");
    refuses((invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV, .out_bytes = huge},
            "more than memory");
    refuses((invar_comm_transfer){.op = INVAR_COMM_SENDRECV, .dst_rank = 4, .src_rank = 1},
            "no such rank");
    refuses((invar_comm_transfer){.op = INVAR_COMM_SENDRECV, .dst_rank = -2, .src_rank = 1},
            "no such rank");
    refuses((invar_comm_transfer){.op = INVAR_COMM_SENDRECV, .dst_rank = 1, .src_rank = 4},
            "no such rank");
    refuses((invar_comm_transfer){.op = INVAR_COMM_SENDRECV, .dst_rank = 0, .src_rank = 1},
            "from itself");
    refuses((invar_comm_transfer){.op = INVAR_COMM_SENDRECV, .to_bytes = 1}, "than it expects");
    refuses((invar_comm_transfer){.op = INVAR_COMM_BROADCAST, .src_rank = -1}, "no such rank");
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
    invar_comm_transfer move = {.op = INVAR_COMM_ALLTOALLV,
                                .phase = "alone",
                                .in = in,
                                .out = out,
                                .in_bytes = bytes,
                                .out_bytes = bytes};
    invar_comm_request *ticket;
    invar_comm *comm, *child;

    (void)state;
    assert_ok(invar_comm_self(&comm));
    assert_int_equal(invar_comm_rank(comm), 0);
    assert_int_equal(invar_comm_size(comm), 1);
    assert_true(invar_comm_host(comm, 0)[0] && invar_comm_reports_error(comm));
    assert_ok(invar_comm_run(comm, &move));
    assert_string_equal(out, "abcd");
    move.out = in;
    assert_ok(invar_comm_start(&ticket, comm, &move));
    assert_ok(invar_comm_wait(ticket));
    assert_string_equal(in, "abcd");
    move = (invar_comm_transfer){
        .op = INVAR_COMM_BROADCAST, .phase = "alone", .in = in, .from_bytes = 4};
    assert_ok(invar_comm_run(comm, &move)); // the root needs no place for it
    assert_int_equal(invar_comm_get_stats(comm, INVAR_COMM_ALLTOALLV).calls, 2);
    assert_int_equal(invar_comm_get_stats(comm, INVAR_COMM_ALLTOALLV).sent, 0);
    assert_int_equal(invar_comm_get_stats(comm, INVAR_COMM_BROADCAST).calls, 1);
    move.op = INVAR_COMM_SPLIT;
    assert_fails(invar_comm_run(comm, &move), INVAR_E_INVALID, "by invar_comm_split alone");
    assert_fails(invar_comm_start(&ticket, comm, &move), INVAR_E_INVALID, "invar_comm_split");
    assert_ok(invar_comm_split(&child, comm, -1, 0, "none", 0));
    assert_null(child);
    assert_ok(invar_comm_split(&child, comm, 3, 0, "one", 0));
    invar_comm_free(comm); // the last handle ends the world
    move.op = INVAR_COMM_BROADCAST;
    assert_ok(invar_comm_run(child, &move));
    invar_comm_abort(child, "enough");
    assert_fails(invar_comm_run(child, &move), INVAR_E_IO, "cannot go on: enough");
    assert_true(invar_comm_reports_error(child)); // there is nobody else
    assert_fails(invar_comm_start(&ticket, child, &move), INVAR_E_IO, "cannot go on: enough");
    invar_comm_free(child);
    invar_comm_free(NULL);
}

static void count_done(void *payload, const invar_comm_event *call)
{
    *(uint64_t *)payload += call->sent;
}

/* Addresses are those of nobody: whoever read or wrote there would fail. */
static void test_comm__of_imagined_ranks_counts_only(void **state)
{
    size_t bytes[] = {10, 20, 30};
    invar_comm_transfer move = {.op = INVAR_COMM_ALLGATHERV,
                                .phase = "plan",
                                .timeout_s = 1,
                                .in = (const void *)16,
                                .out = (void *)4096,
                                .out_bytes = bytes};
    invar_comm_request *ticket;
    uint64_t seen = 0;
    invar_comm *comm;

    (void)state;
    assert_fails(invar_comm_simulated(&comm, 3, 3), INVAR_E_INVALID, "no rank 3 of 3");
    assert_ok(invar_comm_simulated(&comm, 1, 3));
    assert_int_equal(invar_comm_rank(comm), 1);
    assert_int_equal(invar_comm_size(comm), 3);
    invar_comm_set_observer(comm, count_done, &seen);
    assert_ok(invar_comm_run(comm, &move));
    assert_ok(invar_comm_start(&ticket, comm, &move));
    assert_ok(invar_comm_wait(ticket));
    assert_int_equal(seen, 80);
    assert_int_equal(invar_comm_get_stats(comm, INVAR_COMM_ALLGATHERV).calls, 2);
    assert_int_equal(invar_comm_get_stats(comm, INVAR_COMM_ALLGATHERV).sent, 80);
    assert_int_equal(invar_comm_get_stats(comm, INVAR_COMM_ALLGATHERV).received, 80);
    move.in = NULL; // what is no call of a run is none here
    assert_fails(invar_comm_run(comm, &move), INVAR_E_INVALID, "no memory");
    invar_comm_free(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm__counts_bytes_of_others),
        cmocka_unit_test(test_comm__refuses_what_is_no_move),
        cmocka_unit_test(test_comm__one_rank_copies_what_does_not_alias),
        cmocka_unit_test(test_comm__of_imagined_ranks_counts_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
