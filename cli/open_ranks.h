/*
 * open_ranks.h - the ranks of a launch, in bounded time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_OPEN_RANKS_H
#define INVAR_CLI_OPEN_RANKS_H

#include "engine/run/launch/launch.h"

/*
 * invar_launch_open. MPI waits for processes that never call it, and cannot be told to give up:
 * where that takes longer than `seconds`, one process says so, and all end with INVAR_EXIT_TROUBLE.
 */
invar_status invar_open_ranks(invar_launch *out, double seconds, int64_t ranks) INVAR_MUST_USE;

/*
 * Before a failure is printed that all processes of a launcher may have found, each for itself. The
 * first goes on at once; when it ends, the launcher ends the others, which wait some seconds.
 */
void invar_open_ranks_queue(void);

#endif
