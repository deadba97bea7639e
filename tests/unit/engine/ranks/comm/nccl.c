/*
 * nccl.c - tests of groups whose transfers are between GPU memories, with a fake NCCL module.
 *
 * Random exchanges must give the digest that the host transport of threads gives; the control is a
 * fake that flips one bit. Failures must end all ranks with the same message. The fake
 * (tests/plugin/fake_nccl.c) accepts any memory, so that no GPU is needed.
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

/* ---- received bytes -------------------------------------------------------------------------- */

static invar_status exchange_over_nccl(rank_run *run)
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
                run_ranks(runs, sizes[i], schedule, seed, exchange_over_nccl, NULL);
                assert_ok(ranks_status(runs, sizes[i]));
                for (int r = 0; r < sizes[i]; r++)
                    assert_true(runs[r].digest == digest);
            }
        }
}

/* Control: the exchange detects a bit that the transport changes. */
static void test_comm_nccl__a_changed_bit_is_found(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    setenv("INVAR_TEST_NCCL", "flip", 1);
    run_ranks(runs, 2, 0, 1, exchange_over_nccl, NULL);
    unsetenv("INVAR_TEST_NCCL");
    assert_true(runs[0].status != INVAR_OK && runs[1].status != INVAR_OK);
}

/* ---- failing together ------------------------------------------------------------------------ */

typedef invar_status (*scenario_fn)(invar_comm *comm, bool is_rank_2);

static invar_status gather(invar_comm *comm, const char *phase, size_t rank_bytes, double seconds)
{
    char in[64] = {0}, out[64 * MAX_RANKS];
    size_t bytes[MAX_RANKS];

    for (int i = 0; i < MAX_RANKS; i++)
        bytes[i] = rank_bytes;
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

static invar_status other_op(invar_comm *comm, bool is_rank_2)
{
    return is_rank_2 ? gather(comm, "weights", 8, SECONDS) : barrier(comm, "gradients");
}

static invar_status other_size(invar_comm *comm, bool is_rank_2)
{
    return gather(comm, "weights", is_rank_2 ? 24 : 16, SECONDS);
}

static invar_status leave_early(invar_comm *comm, bool is_rank_2)
{
    return is_rank_2 ? INVAR_OK : gather(comm, "weights", 16, SECONDS);
}

static invar_status hang_in_call(invar_comm *comm, bool is_rank_2)
{
    if (is_rank_2)
        nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
    return gather(comm, "weights", 16, 0.1);
}

/* Rank 2 times out; the other ranks, whose timeout is long, fail with it. */
static invar_status time_out_first(invar_comm *comm, bool is_rank_2)
{
    return gather(comm, "weights", 16, is_rank_2 ? 0.1 : SECONDS);
}

static invar_status gather_once(invar_comm *comm, bool is_rank_2)
{
    (void)is_rank_2;
    return gather(comm, "weights", 16, 0.2);
}

/* Transfers in flight fail when another one fails, and so do later calls. */
static invar_status start_several(invar_comm *comm, bool is_rank_2)
{
    size_t bytes[MAX_RANKS] = {8, 8, 8, 8};
    uint64_t in = 1, out[3][4];
    invar_comm_request *requests[3] = {NULL};
    invar_status status = INVAR_OK, waited;

    for (int i = 0; i < 3 && status == INVAR_OK; i++) {
        invar_comm_transfer transfer = {.op = INVAR_COMM_ALLGATHERV,
                                        .phase = is_rank_2 && i == 1 ? "step 4" : "step 5",
                                        .in = &in,
                                        .out = out[i],
                                        .out_bytes = bytes};

        status = invar_comm_start(&requests[i], comm, &transfer);
    }
    for (int i = 2; i >= 0; i--) { // the newest first, which completes after the oldest
        waited = requests[i] ? invar_comm_wait(requests[i]) : INVAR_OK;
        status = status == INVAR_OK ? waited : status;
    }
    return status == INVAR_OK ? status : gather(comm, "later", 16, SECONDS);
}

static invar_status run_scenario(rank_run *run)
{
    scenario_fn scenario = *(scenario_fn *)run->payload;
    invar_comm *comm;
    invar_status status;

    INVAR_TRY(invar_comm_nccl(&comm, run->comm, &options));
    status = scenario(comm, invar_comm_rank(run->comm) == 2);
    invar_comm_free(comm);
    return status;
}

/*
 * Checks that all ranks except `successful_rank` fail with the same message, which contains `text`.
 */
static void check_failure(scenario_fn scenario, int native, const char *text, int successful_rank)
{
    rank_run runs[MAX_RANKS];
    int first_failed = successful_rank == 0; // a rank that fails

    for (uint64_t schedule = 0; schedule < 3; schedule++) {
        run_ranks(runs, 4, schedule, 0, run_scenario, &scenario);
        for (int r = 0; r < 4; r++) {
            if (r == successful_rank)
                continue;
            assert_int_equal(runs[r].status, INVAR_E_IO);
            assert_int_equal(runs[r].error.native, native);
            assert_string_equal(runs[r].error.message, runs[first_failed].error.message);
            if (!strstr(runs[r].error.message, text))
                fail_msg("\"%s\" has no \"%s\"", runs[r].error.message, text);
        }
    }
}

static void test_comm_nccl__the_host_transport_names_the_rank(void **state)
{
    (void)state;
    check_failure(other_op, EPROTO, "allgatherv in phase \"weights\" and ", INVAR_COMM_NONE);
    check_failure(other_size, EPROTO, "and sends ", INVAR_COMM_NONE);
    check_failure(start_several, EPROTO, "\"step 4\"", INVAR_COMM_NONE);
    check_failure(leave_early, ECONNRESET, "rank 2 on ", 2);
    check_failure(hang_in_call, ETIMEDOUT, "rank 2 on ", INVAR_COMM_NONE);
}

static void test_comm_nccl__a_wait_for_bytes_ends(void **state)
{
    (void)state;
    setenv("INVAR_TEST_NCCL", "stall", 1);
    check_failure(gather_once, ETIMEDOUT,
                  "has waited 0.2 s for the bytes of allgatherv in phase "
                  "\"weights\", to which all ranks came",
                  INVAR_COMM_NONE);
    check_failure(time_out_first, ETIMEDOUT, "rank 2 on ", INVAR_COMM_NONE);
    setenv("INVAR_TEST_NCCL", "move", 1);
    check_failure(gather_once, ECONNABORTED,
                  "cannot move the memory of its GPU in phase \"weights\": code 7 of the fake; "
                  "look at its host and at the network, or choose distributed-backend = host",
                  INVAR_COMM_NONE);
    setenv("INVAR_TEST_NCCL", "open", 1);
    check_failure(gather_once, ECONNABORTED, "in phase \"start of NCCL\": code 5 of the fake",
                  INVAR_COMM_NONE);
    setenv("INVAR_TEST_NCCL", "id", 1);
    check_failure(gather_once, ECONNABORTED, "in phase \"start of NCCL\": code 4 of the fake",
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
        cmocka_unit_test(test_comm_nccl__the_host_transport_names_the_rank),
        cmocka_unit_test(test_comm_nccl__a_wait_for_bytes_ends),
        cmocka_unit_test(test_comm_nccl__says_what_is_wrong_with_the_module),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
