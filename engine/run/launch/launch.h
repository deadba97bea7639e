/*
 * launch.h - starts the ranks of a run: one, threads of this process, or processes of mpirun or
 * srun.
 *
 *     invar_launch_open(&launch, invar_launch_timeout(recipe), 0);
 *     status = invar_launch_train(&summary, &launch, recipe, &options);
 *     invar_launch_close(&launch);
 *
 * Processes are recognized by environment variables of their launcher. One rank alone prints for
 * the user: the one of invar_launch_has_rank0 while the run succeeds, the one of
 * invar_launch_reports_error after a failure.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_LAUNCH_LAUNCH_H
#define INVAR_ENGINE_RUN_LAUNCH_LAUNCH_H

#include "engine/config/config.h"
#include "engine/run/train.h"

/* Ranks of this process; zeroed for a single rank, which needs no close. */
typedef struct invar_launch {
    invar_comm **comms; /* (count) communicators of the ranks in this process; NULL for a
                           single rank */
    int count;
} invar_launch;

/*
 * *out = number of processes that a launcher has started together with this one; 0 or 1 without a
 * launcher. Returns INVAR_E_INVALID if they cannot communicate.
 */
invar_status invar_launch_processes(int64_t *out) INVAR_MUST_USE;

/* Returns the seconds that a rank waits for another, by the recipe. */
double invar_launch_timeout(const invar_config *config);

/*
 * Opens the communicators: `ranks` threads of this process or, if `ranks` is 0 or 1, the processes
 * that a launcher has started; a single rank without a launcher. Processes wait `seconds` for each
 * other. Returns INVAR_E_UNSUPPORTED if MPI is needed and missing.
 */
invar_status invar_launch_open(invar_launch *out, double seconds, int64_t ranks) INVAR_MUST_USE;

/*
 * Closes the communicators before the program ends. After a failure that another rank reports, this
 * takes some seconds.
 */
void invar_launch_close(invar_launch *launch);

/* True if rank 0 is in this process: it has the summary, the ledger and the console. */
bool invar_launch_has_rank0(const invar_launch *launch);

/*
 * Ends the ranks and returns `status` with its error. After a success, and on ranks that do not
 * report the failure, closes the communicators. The rank that reports it must print first and close
 * later: a launcher may end all ranks as soon as one of them has ended.
 */
invar_status invar_launch_end(invar_launch *launch, invar_status status);

/*
 * Function that every rank runs. `comm` is NULL for a single rank; `threads` ranks share this
 * process. If it fails, it must first abort the other ranks (invar_comm_abort), unless all fail
 * alike.
 */
typedef invar_status (*invar_rank_main_fn)(void *payload, invar_comm *comm, int threads);

/*
 * Runs all ranks of this process at the same time. Returns rank 0's failure if it has one, else the
 * first of another rank.
 */
invar_status invar_launch_run(invar_launch *launch, invar_rank_main_fn work,
                              void *payload) INVAR_MUST_USE;

/*
 * Runs invar_train on all ranks of this process. *out and the callbacks of the options are rank
 * 0's.
 */
invar_status invar_launch_train(invar_train_summary *out, invar_launch *launch,
                                const invar_config *config,
                                const invar_train_options *options) INVAR_MUST_USE;

#endif
