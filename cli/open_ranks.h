/*
 * open_ranks.h - opens the ranks of a launch with a time limit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_OPEN_RANKS_H
#define INVAR_CLI_OPEN_RANKS_H

#include "engine/run/launch/launch.h"

/*
 * Like invar_launch_open, with a limit of `seconds` for MPI too, which waits without limit for
 * processes that never call it. After the limit one process prints an error, and all exit with
 * INVAR_EXIT_TROUBLE. If `seconds` is 0 or less, or above 1e9, MPI has no limit.
 */
invar_status invar_open_ranks(invar_launch *out, double seconds, int64_t ranks) INVAR_MUST_USE;

/*
 * Call before printing an error that every process of a launcher may find. The first process
 * returns at once; the others sleep some seconds, and the launcher ends them when the first one has
 * exited.
 */
void invar_open_ranks_queue(void);

#endif
