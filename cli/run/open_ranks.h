/*
 * open_ranks.h - the ranks of a launch, in bounded time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_OPEN_RANKS_H
#define INVAR_CLI_RUN_OPEN_RANKS_H

#include "engine/launch/launch.h"

/*
 * invar_launch_open. MPI waits for processes that never call it, and cannot be told to give up:
 * where that takes longer than `seconds`, one process says so, and all end with INVAR_EXIT_TROUBLE.
 */
invar_status invar_open_ranks(invar_launch *out, double seconds, int64_t ranks) INVAR_MUST_USE;

#endif
