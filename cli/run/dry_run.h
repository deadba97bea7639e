/*
 * dry_run.h - executes a run up to the point where it would write: checks, memory and identity.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_DRY_RUN_H
#define INVAR_CLI_RUN_DRY_RUN_H

#include "engine/config/config.h"
#include "engine/run/launch/launch.h"

/*
 * Prints the keys, those that differ from their defaults first, the planned memory and the
 * identity; reads data and weights for it. Nothing is written. The recipe must be checked; `path`
 * is its file or NULL. Every rank reads its share and compares with the others; the memory is that
 * of the rank with the largest need. Collective over the ranks of the launch.
 */
invar_status invar_dry_run(invar_launch *launch, const invar_config *config,
                           const char *path) INVAR_MUST_USE;

#endif
