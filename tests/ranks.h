/*
 * ranks.h - ranks that are threads of a test.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_RANKS_H
#define INVAR_TESTS_RANKS_H

#include <pthread.h>

#include "engine/ranks/comm/comm.h"
#include "tests/support.h"

#define MAX_RANKS 16

/*
 * One rank. `part` runs in a thread outside of cmocka, so it must return a failure instead of
 * asserting.
 */
typedef struct rank_run {
    invar_comm *comm;
    invar_status (*part)(struct rank_run *run);
    void *payload;
    uint64_t seed, digest; /* used by `part` */
    invar_status status;
    invar_error error;
    bool speaks;
    pthread_t thread;
} rank_run;

static inline void *rank_main(void *payload)
{
    rank_run *run = payload;

    invar_error_clear();
    run->status = run->part(run);
    run->speaks = invar_comm_reports_error(run->comm);
    invar_comm_free(run->comm);
    invar_error_take(&run->error);
    return NULL;
}

/*
 * Runs `part` of every rank in a thread; a rank leaves the group when it returns. Fails if the
 * ranks cannot be created.
 */
static inline invar_status try_ranks(rank_run runs[MAX_RANKS], int size, uint64_t schedule,
                                     uint64_t seed, invar_status (*part)(rank_run *run),
                                     void *payload)
{
    invar_comm *comms[MAX_RANKS];

    INVAR_TRY(invar_comm_threads(comms, size, schedule));
    for (int r = 0; r < size; r++) {
        runs[r] = (rank_run){.comm = comms[r], .part = part, .payload = payload, .seed = seed};
        assert_int_equal(pthread_create(&runs[r].thread, NULL, rank_main, &runs[r]), 0);
    }
    for (int r = 0; r < size; r++)
        assert_int_equal(pthread_join(runs[r].thread, NULL), 0);
    return INVAR_OK;
}

static inline void run_ranks(rank_run runs[MAX_RANKS], int size, uint64_t schedule, uint64_t seed,
                             invar_status (*part)(rank_run *run), void *payload)
{
    assert_ok(try_ranks(runs, size, schedule, seed, part, payload));
}

/*
 * Returns the status of the ranks and sets its error record; INVAR_E_NOMEM has priority over its
 * consequences on other ranks.
 */
static inline invar_status ranks_status(const rank_run runs[MAX_RANKS], int size)
{
    invar_status status = INVAR_OK;

    for (int r = 0; r < size && status != INVAR_E_NOMEM; r++)
        if (runs[r].status != INVAR_OK) {
            status = runs[r].status;
            invar_error_put(&runs[r].error);
        }
    return status;
}

#endif
