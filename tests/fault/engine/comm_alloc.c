/*
 * comm_alloc.c - allocations of engine/ranks/comm fail one at a time, on one of the ranks.
 *
 * The rank whose allocation fails returns INVAR_E_NOMEM and leaves. The other ranks must return
 * from their calls and leave, too, and no rank leaks a block (faulty.h). The variants are threads,
 * the link test, a single rank, and groups over a fake MPI and a fake NCCL.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/link_test.h"
#include "tests/fault/faulty.h"
#include "tests/ranks.h"

#define RANKS 3

static invar_status overlap_gathers(rank_run *run)
{
    static const size_t bytes[RANKS] = {8, 8, 8};
    uint64_t in = 7, out[RANKS];
    invar_comm_transfer transfer = {
        .op = INVAR_COMM_ALLGATHERV, .phase = "fault", .in = &in, .out = out, .out_bytes = bytes};
    invar_comm_request *first, *second;
    invar_comm *comm = run->comm, *child;
    invar_status status;

    INVAR_TRY(invar_comm_split(&child, comm, 0, 0, "split", 0));
    status = invar_comm_start(&first, child, &transfer);
    if (status == INVAR_OK) {
        invar_status wait_status;
        invar_error error;

        status = invar_comm_start(&second, child, &transfer);
        if (status == INVAR_OK)
            status = invar_comm_wait(second);
        else // abort before the wait, because the other ranks wait for `second`
            invar_comm_abort(comm, invar_error_last()->message);
        error = *invar_error_last();
        wait_status = invar_comm_wait(first);
        if (status != INVAR_OK)
            invar_error_put(&error);
        else
            status = wait_status;
    }
    invar_comm_free(child);
    return status;
}

static invar_status exercise_threads(void)
{
    rank_run runs[MAX_RANKS];

    INVAR_TRY(try_ranks(runs, RANKS, 1, 0, overlap_gathers, NULL));
    return ranks_status(runs, RANKS);
}

static invar_status test_links(rank_run *run)
{
    invar_link_test exercise_link_test;

    return invar_link_test_run(&exercise_link_test, run->comm, 0);
}

static invar_status exercise_link_test(void)
{
    rank_run runs[MAX_RANKS];

    INVAR_TRY(try_ranks(runs, RANKS, 0, 0, test_links, NULL));
    return ranks_status(runs, RANKS);
}

static invar_status exercise_self(void)
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

/* Opens a group over fake MPI, which may be initialized any number of times in one process. */
static invar_status exercise_mpi(void)
{
    invar_comm_mpi_options options = {.module = INVAR_TEST_WORK "/plugin/fake_mpi.so"};
    invar_comm *comm;

    INVAR_TRY(invar_comm_mpi(&comm, &options));
    invar_comm_free(comm);
    return INVAR_OK;
}

/* Opens a group over fake NCCL and splits it; the split makes an NCCL group as well. */
static invar_status split_nccl(rank_run *run)
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

static invar_status exercise_nccl(void)
{
    rank_run runs[MAX_RANKS];

    INVAR_TRY(try_ranks(runs, RANKS, 0, 0, split_nccl, NULL));
    return ranks_status(runs, RANKS);
}

static void test_comm_alloc__threads(void **state)
{
    (void)state;
    fail_each_allocation(exercise_threads);
}

static void test_comm_alloc__trial(void **state)
{
    (void)state;
    fail_each_allocation(exercise_link_test);
}

static void test_comm_alloc__self(void **state)
{
    (void)state;
    fail_each_allocation(exercise_self);
}

static void test_comm_alloc__mpi(void **state)
{
    (void)state;
    fail_each_allocation(exercise_mpi);
}

static void test_comm_alloc__nccl(void **state)
{
    (void)state;
    fail_each_allocation(exercise_nccl);
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
