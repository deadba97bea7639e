/*
 * nccl.c - tests of groups whose memory is the GPUs', over a module in the place of NCCL's.
 *
 * Bytes must be those that threads get. The fake (tests/plugin/fake_nccl.c) takes any memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/engine/ranks/comm/exchange.h"

#define PLUGINS INVAR_TEST_WORK "/plugin/"
#define MODULE PLUGINS "fake_nccl.so"

static const invar_comm_nccl_options options = {.seconds = SECONDS, .module = MODULE};

/* ---- what arrives ---------------------------------------------------------------------------- */

static invar_status exchange_far(rank_run *run)
{
    invar_comm *comm;
    invar_status status;

    INVAR_TRY(invar_comm_nccl(&comm, run->comm, &options));
    status = exchange_run(&run->digest, comm, run->seed);
    invar_comm_free(comm);
    return status;
}

static void test_comm_nccl__bytes_are_those_of_threads(void **state)
{
    static const int sizes[] = {1, 2, 3, 5, 8};
    rank_run runs[MAX_RANKS];

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint64_t seed = 1; seed <= (uint64_t)invar_test_count(4, 40); seed++) {
            uint64_t digest = exchange_threads(sizes[i], 0, seed);

            for (uint64_t schedule = 0; schedule < 2; schedule++) {
                run_ranks(runs, sizes[i], schedule, seed, exchange_far, NULL);
                assert_ok(ranks_status(runs, sizes[i]));
                for (int r = 0; r < sizes[i]; r++)
                    assert_true(runs[r].digest == digest);
            }
        }
}

/* The control: a bit on the way is another, and found. */
static void test_comm_nccl__a_changed_bit_is_found(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    setenv("INVAR_TEST_NCCL", "flip", 1);
    run_ranks(runs, 2, 0, 1, exchange_far, NULL);
    unsetenv("INVAR_TEST_NCCL");
    assert_true(runs[0].status != INVAR_OK && runs[1].status != INVAR_OK);
}

/* ---- failing together ------------------------------------------------------------------------ */

typedef invar_status (*far_part)(invar_comm *comm, bool odd);

static invar_status gather(invar_comm *comm, const char *phase, size_t each, double seconds)
{
    char in[64] = {0}, out[64 * MAX_RANKS];
    size_t bytes[MAX_RANKS];

    for (int i = 0; i < MAX_RANKS; i++)
        bytes[i] = each;
    return invar_comm_run(comm, &(invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV,
                                                       .phase = phase,
                                                       .timeout_s = seconds,
                                                       .in = in,
                                                       .out = out,
                                                       .out_bytes = bytes});
}

static invar_status barrier(invar_comm *comm, const char *phase)
{
    return invar_comm_run(
        comm,
        &(invar_comm_transfer){.op = INVAR_COMM_BARRIER, .phase = phase, .timeout_s = SECONDS});
}

static invar_status other_op(invar_comm *comm, bool odd)
{
    return odd ? gather(comm, "weights", 8, SECONDS) : barrier(comm, "gradients");
}

static invar_status other_size(invar_comm *comm, bool odd)
{
    return gather(comm, "weights", odd ? 24 : 16, SECONDS);
}

static invar_status leaves(invar_comm *comm, bool odd)
{
    return odd ? INVAR_OK : gather(comm, "weights", 16, SECONDS);
}

static invar_status hangs(invar_comm *comm, bool odd)
{
    if (odd)
        nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
    return gather(comm, "weights", 16, 0.1);
}

/* One gives up; the others, who would wait for long, hear of it. */
static invar_status gives_up(invar_comm *comm, bool odd)
{
    return gather(comm, "weights", 16, odd ? 0.1 : SECONDS);
}

static invar_status moves(invar_comm *comm, bool odd)
{
    (void)odd;
    return gather(comm, "weights", 16, 0.2);
}

/* Calls that are under way when another fails fail, too; so do those after it. */
static invar_status several(invar_comm *comm, bool odd)
{
    size_t bytes[MAX_RANKS] = {8, 8, 8, 8};
    uint64_t in = 1, out[3][4];
    invar_comm_request *tickets[3] = {NULL};
    invar_status status = INVAR_OK, waited;

    for (int i = 0; i < 3 && status == INVAR_OK; i++) {
        invar_comm_transfer move = {.op = INVAR_COMM_ALLGATHERV,
                                    .phase = odd && i == 1 ? "step 4" : "step 5",
                                    .in = &in,
                                    .out = out[i],
                                    .out_bytes = bytes};

        status = invar_comm_start(&tickets[i], comm, &move);
    }
    for (int i = 2; i >= 0; i--) { // the newest first, which waits for the oldest
        waited = tickets[i] ? invar_comm_wait(tickets[i]) : INVAR_OK;
        status = status == INVAR_OK ? waited : status;
    }
    return status == INVAR_OK ? status : gather(comm, "later", 16, SECONDS);
}

static invar_status run_far(rank_run *run)
{
    far_part part = *(far_part *)run->payload;
    invar_comm *comm;
    invar_status status;

    INVAR_TRY(invar_comm_nccl(&comm, run->comm, &options));
    status = part(comm, invar_comm_rank(run->comm) == 2);
    invar_comm_free(comm);
    return status;
}

/* The same line on every rank that fails; `quiet` does not. */
static void fails_together(far_part part, int native, const char *text, int quiet)
{
    rank_run runs[MAX_RANKS];
    int said = quiet == 0;

    for (uint64_t schedule = 0; schedule < 3; schedule++) {
        run_ranks(runs, 4, schedule, 0, run_far, &part);
        for (int r = 0; r < 4; r++) {
            if (r == quiet)
                continue;
            assert_int_equal(runs[r].status, INVAR_E_IO);
            assert_int_equal(runs[r].error.native, native);
            assert_string_equal(runs[r].error.message, runs[said].error.message);
            if (!strstr(runs[r].error.message, text))
                fail_msg("\"%s\" has no \"%s\"", runs[r].error.message, text);
        }
    }
}

static void test_comm_nccl__the_hosts_transport_names_who_differs(void **state)
{
    (void)state;
    fails_together(other_op, EPROTO, "allgatherv in phase \"weights\" and ", INVAR_COMM_NONE);
    fails_together(other_size, EPROTO, "and sends ", INVAR_COMM_NONE);
    fails_together(several, EPROTO, "\"step 4\"", INVAR_COMM_NONE);
    fails_together(leaves, ECONNRESET, "rank 2 on ", 2);
    fails_together(hangs, ETIMEDOUT, "rank 2 on ", INVAR_COMM_NONE);
}

static void test_comm_nccl__a_wait_for_bytes_ends(void **state)
{
    (void)state;
    setenv("INVAR_TEST_NCCL", "stall", 1);
    fails_together(moves, ETIMEDOUT,
                   "has waited 0.2 s for the bytes of allgatherv in phase "
                   "\"weights\", to which all ranks came",
                   INVAR_COMM_NONE);
    fails_together(gives_up, ETIMEDOUT, "rank 2 on ", INVAR_COMM_NONE);
    setenv("INVAR_TEST_NCCL", "move", 1);
    fails_together(moves, ECONNABORTED,
                   "cannot move the memory of its GPU in phase \"weights\": code 7 of the fake; "
                   "look at its host and at the network, or choose distributed-backend = host",
                   INVAR_COMM_NONE);
    setenv("INVAR_TEST_NCCL", "open", 1);
    fails_together(moves, ECONNABORTED, "in phase \"start of NCCL\": code 5 of the fake",
                   INVAR_COMM_NONE);
    setenv("INVAR_TEST_NCCL", "id", 1);
    fails_together(moves, ECONNABORTED, "in phase \"start of NCCL\": code 4 of the fake",
                   INVAR_COMM_NONE);
    unsetenv("INVAR_TEST_NCCL");
}

/* ---- the module ------------------------------------------------------------------------------ */

static void test_comm_nccl__says_what_is_wrong_with_the_module(void **state)
{
    invar_comm_nccl_options bad = {.module = "/nowhere/invar-nccl.so"};
    invar_comm *host, *comm;
    int version;

    (void)state;
    assert_ok(invar_comm_self(&host));
    assert_fails(
        invar_comm_nccl(&comm, host, &bad), INVAR_E_UNSUPPORTED,
        "the module /nowhere/invar-nccl.so does not exist; or choose distributed-backend = host");
    assert_null(comm);
    bad.module = PLUGINS "old_nccl.so";
    assert_fails(
        invar_comm_nccl(&comm, host, &bad), INVAR_E_UNSUPPORTED,
        "old_nccl.so has version 99 of the interface, this program 1: build both together");
    invar_comm_free(host);
    assert_ok(invar_comm_nccl_version(&version, MODULE));
    assert_int_equal(version, 12304);
    setenv("INVAR_TEST_NCCL", "version", 1);
    assert_fails(invar_comm_nccl_version(&version, MODULE), INVAR_E_NCCL,
                 "NCCL does not say its version: code 3 of the fake");
    unsetenv("INVAR_TEST_NCCL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_nccl__bytes_are_those_of_threads),
        cmocka_unit_test(test_comm_nccl__a_changed_bit_is_found),
        cmocka_unit_test(test_comm_nccl__the_hosts_transport_names_who_differs),
        cmocka_unit_test(test_comm_nccl__a_wait_for_bytes_ends),
        cmocka_unit_test(test_comm_nccl__says_what_is_wrong_with_the_module),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
