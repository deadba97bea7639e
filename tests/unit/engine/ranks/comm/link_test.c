/*
 * link_test.c - tests of what invar doctor sends between ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/link_test.h"

#include <stdlib.h>

#include "engine/ranks/comm/comm_internal.h"
#include "tests/device/fake_gpu.h"
#include "tests/ranks.h"

enum { SIZE = 3, ODD = 2 };

/* The transport of threads, but the first byte that a rank gets in some call is another. */
static const invar_transport *threads;
static invar_comm_op spoiled;

static invar_status start(void *self, invar_comm_request *ticket)
{
    return threads->start(self, ticket);
}

static invar_status wait(void *self, invar_comm_request *ticket)
{
    invar_status status = threads->wait(self, ticket);

    for (int i = 0; i < ticket->count && status == INVAR_OK && ticket->op == spoiled; i++)
        if (ticket->messages[i].incoming && ticket->messages[i].bytes > 0) {
            ticket->messages[i].data[0] ^= 1;
            break;
        }
    return status;
}

static void beat(void *self)
{
    threads->send_heartbeat(self);
}

static invar_status hear(void *self)
{
    return threads->poll_failure(self);
}

static void tell(void *self, invar_comm_failure *failure)
{
    threads->send_failure(self, failure);
}

static void revive(void *self)
{
    threads->recover(self);
}

static void leave(void *self)
{
    threads->close(self);
}

static invar_status spoil(rank_run *run)
{
    static const invar_transport faulty = {start, wait, beat, hear, tell, revive, leave};
    invar_link_test *trials = run->payload;
    invar_comm *comm = run->comm;

    if (invar_comm_rank(comm) == ODD && spoiled < INVAR_COMM_OPS) {
        threads = comm->world->transport;
        comm->world->transport = &faulty;
    }
    return invar_link_test_run(&trials[invar_comm_rank(comm)], comm, 60.0);
}

static void try_all(invar_link_test trials[SIZE], int size, invar_comm_op op)
{
    rank_run runs[MAX_RANKS];

    spoiled = op;
    assert_ok(try_ranks(runs, size, 0, 0, spoil, trials));
    assert_ok(ranks_status(runs, size));
}

static void test_comm_trial__sound_bytes_and_rates(void **state)
{
    static const size_t sent[INVAR_COMM_RATES] = {
        0, 1 << 16, 1 << 20, 1 << 24, (1 << 16) / 3 * 2, (1 << 20) / 3 * 2, (1 << 24) / 3 * 2};
    invar_link_test trials[SIZE];

    (void)state;
    try_all(trials, SIZE, INVAR_COMM_OPS);
    for (int r = 0; r < SIZE; r++) {
        assert_true(trials[r].wrong == 0);
        for (int i = 0; i < INVAR_COMM_RATES; i++) {
            assert_true(trials[r].rates[i].bytes == sent[i]);
            assert_true(trials[r].rates[i].seconds > 0.0);
            assert_true(trials[r].rates[i].seconds == trials[0].rates[i].seconds);
        }
    }
}

/* A rank tells in which call a byte was wrong and whose it should have been; only that rank. */
static void test_comm_trial__wrong_bytes_are_found(void **state)
{
    static const struct {
        invar_comm_op op;
        uint64_t wrong;
        int from;
    } cases[] = {{INVAR_COMM_ALLGATHERV, 1, 0},
                 {INVAR_COMM_SENDRECV, 3, 1},
                 {INVAR_COMM_ALLTOALLV, 4, 1}}; // from rank 0 there is an empty piece first
    invar_link_test trials[SIZE];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        try_all(trials, SIZE, cases[i].op);
        assert_true(trials[0].wrong == 0 && trials[1].wrong == 0);
        assert_true(trials[ODD].wrong == cases[i].wrong);
        assert_int_equal(trials[ODD].op, cases[i].op);
        assert_int_equal(trials[ODD].src_rank, cases[i].from);
    }
}

/* ---- the memory of devices ------------------------------------------------------------------- */

static invar_status try_far(rank_run *run)
{
    const invar_comm_nccl_options options = {.module = INVAR_TEST_WORK "/plugin/fake_nccl.so"};
    invar_link_test *trials = run->payload;
    invar_device dev = {.backend = invar_far_backend()};
    invar_comm *far = NULL;
    invar_status status = invar_device_open(&dev);

    if (status == INVAR_OK)
        status = invar_comm_nccl(&far, run->comm, &options);
    if (status == INVAR_OK)
        status = invar_link_test_run_device(&trials[invar_comm_rank(run->comm)], run->comm, far,
                                            &dev, 60);
    invar_comm_free(far);
    invar_device_close(&dev);
    return status;
}

static void test_comm_trial__of_devices(void **state)
{
    invar_link_test trials[SIZE];
    rank_run runs[MAX_RANKS];

    (void)state;
    for (int flip = 0; flip < 2; flip++) {
        if (flip)
            setenv("INVAR_TEST_NCCL", "flip", 1);
        invar_far_begin(0);
        run_ranks(runs, SIZE, 0, 0, try_far, trials);
        unsetenv("INVAR_TEST_NCCL");
        assert_ok(ranks_status(runs, SIZE));
        for (int r = 0; r < SIZE; r++) {
            assert_true((trials[r].wrong > 0) == (flip > 0));
            assert_true(trials[r].rates[1].seconds > 0.0);
        }
        assert_int_equal(invar_far_counted().live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_trial__of_devices),
        cmocka_unit_test(test_comm_trial__sound_bytes_and_rates),
        cmocka_unit_test(test_comm_trial__wrong_bytes_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
