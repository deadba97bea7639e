/*
 * launch.h - the ranks of a run: one, threads of this process, or processes of mpirun or srun.
 *
 *     invar_launch_open(&launch, invar_launch_timeout(recipe), 0);
 *     status = invar_launch_train(&summary, &launch, recipe, &options);
 *     invar_launch_close(&launch);
 *
 * Processes are recognised by what their launcher puts into the environment. Of all ranks one talks
 * to people: invar_launch_has_rank0 while all goes well, invar_launch_reports_error after a
 * failure.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_LAUNCH_LAUNCH_H
#define INVAR_ENGINE_RUN_LAUNCH_LAUNCH_H

#include "engine/run/train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed, there is one rank and nothing to close. */
typedef struct invar_launch {
    invar_comm **comms; /* (count) of the ranks in this process; NULL: one rank in all */
    int count;
} invar_launch;

/*
 * Processes that a launcher says it has started together with this one; 0 or 1: none.
 * INVAR_E_INVALID: they do not know each other.
 */
invar_status invar_launch_processes(int64_t *out) INVAR_MUST_USE;

/* Seconds that a rank of this recipe's run waits for another. */
double invar_launch_timeout(const invar_recipe *recipe);

/*
 * `ranks` that are threads; 0 or 1: as the launcher says, and without one a single rank. Processes
 * wait so many seconds for each other. INVAR_E_UNSUPPORTED: there is no MPI for them.
 */
invar_status invar_launch_open(invar_launch *out, double seconds, int64_t ranks) INVAR_MUST_USE;

/* Before the program ends. Where another rank speaks it takes some seconds after a failure. */
void invar_launch_close(invar_launch *launch);

/* Is rank 0 here, which has the summary, the ledger and the console? */
bool invar_launch_has_rank0(const invar_launch *launch);

/* Is the failure told here? */
bool invar_launch_reports_error(const invar_launch *launch);

/*
 * The end of what ranks do: yields `status` with its record. One rank tells a failure, and first: a
 * launcher may end all as soon as one of them has ended. So that one closes later; all others, and
 * all ranks after a success, are closed.
 */
invar_status invar_launch_end(invar_launch *launch, invar_status status);

/*
 * What a rank does; `comm` is NULL where there is one, `threads` ranks share this process. Before
 * it fails it tells the others (invar_comm_abort), unless all of them fail alike.
 */
typedef invar_status (*invar_rank_main_fn)(void *payload, invar_comm *comm, int threads);

/* All ranks of this process, at the same time; rank 0's failure is returned if it has one. */
invar_status invar_launch_run(invar_launch *launch, invar_rank_main_fn work,
                              void *payload) INVAR_MUST_USE;

/* invar_train on all ranks of this process; *out and the options' functions are rank 0's. */
invar_status invar_launch_train(invar_train_summary *out, invar_launch *launch,
                                const invar_recipe *recipe,
                                const invar_train_options *options) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
