/*
 * comm_alloc.c - every allocation of engine/ranks/comm fails once, on one of the ranks.
 *
 * The rank whose allocation fails leaves; the others must come back from their calls and leave.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/link_test.h"
#include "tests/fault/faulty.h"
#include "tests/ranks.h"

#define RANKS 3

static invar_status part(rank_run *run)
{
    static const size_t bytes[RANKS] = {8, 8, 8};
    uint64_t in = 7, out[RANKS];
    invar_comm_transfer move = {
        .op = INVAR_COMM_ALLGATHERV, .phase = "fault", .in = &in, .out = out, .out_bytes = bytes};
    invar_comm_request *first, *second;
    invar_comm *comm = run->comm, *child;
    invar_status status;

    INVAR_TRY(invar_comm_split(&child, comm, 0, 0, "split", 0));
    status = invar_comm_start(&first, child, &move);
    if (status == INVAR_OK) {
        invar_status waited;
        invar_error error;

        status = invar_comm_start(&second, child, &move);
        if (status == INVAR_OK)
            status = invar_comm_wait(second);
        else // before the wait: the others wait for `second`
            invar_comm_abort(comm, invar_error_last()->message);
        error = *invar_error_last();
        waited = invar_comm_wait(first);
        if (status != INVAR_OK)
            invar_error_put(&error);
        else
            status = waited;
    }
    invar_comm_free(child);
    return status;
}

static invar_status threads(void)
{
    rank_run runs[MAX_RANKS];

    INVAR_TRY(try_ranks(runs, RANKS, 1, 0, part, NULL));
    return ranks_status(runs, RANKS);
}

static invar_status try_part(rank_run *run)
{
    invar_link_test trial;

    return invar_link_test_run(&trial, run->comm, 0);
}

static invar_status trial(void)
{
    rank_run runs[MAX_RANKS];

    INVAR_TRY(try_ranks(runs, RANKS, 0, 0, try_part, NULL));
    return ranks_status(runs, RANKS);
}

static invar_status alone(void)
{
    invar_comm *comm, *child;
    invar_status status;

    INVAR_TRY(invar_comm_self(&comm));
    status = invar_comm_split(&child, comm, 0, 0, "split", 0);
    if (status == INVAR_OK)
        invar_comm_free(child);
    invar_comm_free(comm);
    return status;
}

/* Of a module that opens as often as it is asked to. */
static invar_status processes(void)
{
    invar_comm_mpi_options options = {.module = INVAR_TEST_WORK "/plugin/fake_mpi.so"};
    invar_comm *comm;

    INVAR_TRY(invar_comm_mpi(&comm, &options));
    invar_comm_free(comm);
    return INVAR_OK;
}

/* What is split from it has a group of NCCL's, too. */
static invar_status nccl_part(rank_run *run)
{
    invar_comm_nccl_options options = {.module = INVAR_TEST_WORK "/plugin/fake_nccl.so"};
    invar_comm *comm, *child;
    invar_status status;

    INVAR_TRY(invar_comm_nccl(&comm, run->comm, &options));
    status = invar_comm_split(&child, comm, 0, 0, "split", 0);
    if (status == INVAR_OK)
        invar_comm_free(child);
    invar_comm_free(comm);
    return status;
}

static invar_status nccl(void)
{
    rank_run runs[MAX_RANKS];

    INVAR_TRY(try_ranks(runs, RANKS, 0, 0, nccl_part, NULL));
    return ranks_status(runs, RANKS);
}

static void test_comm_alloc__threads(void **state)
{
    (void)state;
    fail_each_allocation(threads);
}

static void test_comm_alloc__trial(void **state)
{
    (void)state;
    fail_each_allocation(trial);
}

static void test_comm_alloc__self(void **state)
{
    (void)state;
    fail_each_allocation(alone);
}

static void test_comm_alloc__mpi(void **state)
{
    (void)state;
    fail_each_allocation(processes);
}

static void test_comm_alloc__nccl(void **state)
{
    (void)state;
    fail_each_allocation(nccl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_alloc__threads), cmocka_unit_test(test_comm_alloc__trial),
        cmocka_unit_test(test_comm_alloc__self),    cmocka_unit_test(test_comm_alloc__mpi),
        cmocka_unit_test(test_comm_alloc__nccl),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
