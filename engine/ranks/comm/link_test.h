/*
 * link_test.h - whether bytes arrive between ranks as they were sent, and how fast.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_COMM_LINK_TEST_H
#define INVAR_ENGINE_RANKS_COMM_LINK_TEST_H

#include "engine/ranks/comm/comm.h"
#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A call that was made for a while; the same on all ranks, by the clock of rank 0. */
typedef struct invar_link_rate {
    invar_comm_op op;
    size_t bytes;   /* that a rank sends to others in one call */
    double seconds; /* that one call takes */
} invar_link_rate;

#define INVAR_COMM_RATES 7

typedef struct invar_link_test {
    invar_link_rate rates[INVAR_COMM_RATES];
    uint64_t wrong;   /* bytes that this rank got, and nobody had sent */
    invar_comm_op op; /* of the first of them */
    int src_rank;     /* who should have sent it */
} invar_link_test;

/*
 * A call of all ranks, at least two, which takes about a second. Wrong bytes are no failure: each
 * rank counts its own. A rank waits at most so many seconds for another.
 */
invar_status invar_link_test_run(invar_link_test *out, invar_comm *comm,
                                 double seconds) INVAR_MUST_USE;

/* The same in the memory of the ranks' devices, which `far` moves; `comm` has the same ranks. */
invar_status invar_link_test_run_device(invar_link_test *out, invar_comm *comm, invar_comm *far,
                                        const invar_device *dev, double seconds) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
