/*
 * link_test.h - checks that bytes arrive between ranks as they were sent, and measures the rate.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_COMM_LINK_TEST_H
#define INVAR_ENGINE_RANKS_COMM_LINK_TEST_H

#include "engine/ranks/comm/comm.h"
#include "kernels-deterministic/device.h"

/* Rate of one kind of call; equal on all ranks, measured by the clock of rank 0. */
typedef struct invar_link_rate {
    invar_comm_op op;
    size_t bytes;   /* bytes that a rank sends to other ranks per call */
    double seconds; /* seconds per call */
} invar_link_rate;

#define INVAR_COMM_RATES 7

typedef struct invar_link_test {
    invar_link_rate rates[INVAR_COMM_RATES];
    uint64_t wrong;   /* received bytes that differ from the bytes that were sent */
    invar_comm_op op; /* call of the first wrong byte */
    int src_rank; /* rank that should have sent it; `op` and `src_rank` are valid if wrong > 0 */
} invar_link_test;

/*
 * Tests host memory. Collective over at least two ranks; takes about a second. Wrong bytes are not
 * a failure: each rank counts its own. `seconds` is the timeout of a wait for another rank.
 */
invar_status invar_link_test_run(invar_link_test *out, invar_comm *comm,
                                 double seconds) INVAR_MUST_USE;

/*
 * Like invar_link_test_run, for device memory, which `device_comm` transfers; `comm` has the same
 * ranks. If `device_comm` is NULL, tests host memory.
 */
invar_status invar_link_test_run_device(invar_link_test *out, invar_comm *comm,
                                        invar_comm *device_comm, const invar_device *dev,
                                        double seconds) INVAR_MUST_USE;

#endif
