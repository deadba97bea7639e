/*
 * link_test.c - tests of the link test with which invar doctor checks and times transfers.
 *
 * Three ranks are threads. A correct transport must yield no wrong bytes and plausible rates. The
 * negative control changes one byte that rank 2 receives in a given op, on the host by a wrapped
 * transport and on the fake GPU by the fake NCCL: the test must report it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/link_test.h"

#include <stdlib.h>

#include "engine/ranks/comm/comm_internal.h"
#include "tests/device/fake_gpu.h"
#include "tests/ranks.h"

enum { SIZE = 3, FAULTY_RANK = 2 };

/*
 * A faulty transport: that of threads, except that the first byte that a rank receives in the op
 * `faulty_op` is changed.
 */
static const invar_transport *thread_transport;
static invar_comm_op faulty_op;

static invar_status start_transfer(void *self, invar_comm_request *request)
{
    return thread_transport->start(self, request);
}

static invar_status wait_and_flip(void *self, invar_comm_request *request)
{
    invar_status status = thread_transport->wait(self, request);

    for (int i = 0; i < request->count && status == INVAR_OK && request->op == faulty_op; i++)
        if (request->messages[i].incoming && request->messages[i].bytes > 0) {
            request->messages[i].data[0] ^= 1;
            break;
        }
    return status;
}

static void send_heartbeat_to(void *self)
{
    thread_transport->send_heartbeat(self);
}

static invar_status poll_failure_of(void *self)
{
    return thread_transport->poll_failure(self);
}

static void send_failure_to(void *self, invar_comm_failure *failure)
{
    thread_transport->send_failure(self, failure);
}

static void recover_world(void *self)
{
    thread_transport->recover(self);
}

static void close_world(void *self)
{
    thread_transport->close(self);
}

static invar_status run_link_test(rank_run *run)
{
    static const invar_transport faulty = {start_transfer,  wait_and_flip,   send_heartbeat_to,
                                           poll_failure_of, send_failure_to, recover_world,
                                           close_world};
    invar_link_test *results = run->payload;
    invar_comm *comm = run->comm;

    if (invar_comm_rank(comm) == FAULTY_RANK && faulty_op < INVAR_COMM_OPS) {
        thread_transport = comm->world->transport;
        comm->world->transport = &faulty;
    }
    return invar_link_test_run(&results[invar_comm_rank(comm)], comm, 60.0);
}

static void run_all_ranks(invar_link_test results[SIZE], int size, invar_comm_op op)
{
    rank_run runs[MAX_RANKS];

    faulty_op = op;
    assert_ok(try_ranks(runs, size, 0, 0, run_link_test, results));
    assert_ok(ranks_status(runs, size));
}

static void test_link_test__sound_bytes_and_rates(void **state)
{
    static const size_t sent[INVAR_COMM_RATES] = {
        0, 1 << 16, 1 << 20, 1 << 24, (1 << 16) / 3 * 2, (1 << 20) / 3 * 2, (1 << 24) / 3 * 2};
    invar_link_test results[SIZE];

    (void)state;
    run_all_ranks(results, SIZE, INVAR_COMM_OPS);
    for (int r = 0; r < SIZE; r++) {
        assert_true(results[r].wrong == 0);
        for (int i = 0; i < INVAR_COMM_RATES; i++) {
            assert_true(results[r].rates[i].bytes == sent[i]);
            assert_true(results[r].rates[i].seconds > 0.0);
            assert_true(results[r].rates[i].seconds == results[0].rates[i].seconds);
        }
    }
}

/* Only the rank that received a wrong byte reports it, with the op and the sending rank. */
static void test_link_test__wrong_bytes_are_found(void **state)
{
    static const struct {
        invar_comm_op op;
        uint64_t wrong;
        int from;
    } cases[] = {{INVAR_COMM_ALLGATHERV, 1, 0},
                 {INVAR_COMM_SENDRECV, 3, 1},
                 {INVAR_COMM_ALLTOALLV, 4, 1}}; // the message from rank 0 is empty
    invar_link_test results[SIZE];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_all_ranks(results, SIZE, cases[i].op);
        assert_true(results[0].wrong == 0 && results[1].wrong == 0);
        assert_true(results[FAULTY_RANK].wrong == cases[i].wrong);
        assert_int_equal(results[FAULTY_RANK].op, cases[i].op);
        assert_int_equal(results[FAULTY_RANK].src_rank, cases[i].from);
    }
}

/* ---- device memory --------------------------------------------------------------------------- */

static invar_status run_device_link_test(rank_run *run)
{
    const invar_comm_nccl_options options = {.module = INVAR_TEST_WORK "/plugin/fake_nccl.so"};
    invar_link_test *results = run->payload;
    invar_device dev = {.backend = invar_fake_gpu_backend()};
    invar_comm *device_comm = NULL;
    invar_status status = invar_device_open(&dev);

    if (status == INVAR_OK)
        status = invar_comm_nccl(&device_comm, run->comm, &options);
    if (status == INVAR_OK)
        status = invar_link_test_run_device(&results[invar_comm_rank(run->comm)], run->comm,
                                            device_comm, &dev, 60);
    invar_comm_free(device_comm);
    invar_device_close(&dev);
    return status;
}

static void test_link_test__device_memory(void **state)
{
    invar_link_test results[SIZE];
    rank_run runs[MAX_RANKS];

    (void)state;
    for (int flip = 0; flip < 2; flip++) {
        if (flip)
            setenv("INVAR_TEST_NCCL", "flip", 1);
        invar_fake_gpu_begin(0);
        run_ranks(runs, SIZE, 0, 0, run_device_link_test, results);
        unsetenv("INVAR_TEST_NCCL");
        assert_ok(ranks_status(runs, SIZE));
        for (int r = 0; r < SIZE; r++) {
            assert_true((results[r].wrong > 0) == (flip > 0));
            assert_true(results[r].rates[1].seconds > 0.0);
        }
        assert_int_equal(invar_fake_gpu_counted().live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link_test__device_memory),
        cmocka_unit_test(test_link_test__sound_bytes_and_rates),
        cmocka_unit_test(test_link_test__wrong_bytes_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
