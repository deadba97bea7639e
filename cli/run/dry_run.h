/*
 * dry_run.h - a run as far as it goes before it writes: what it would do, and whether it could.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_DRY_RUN_H
#define INVAR_CLI_RUN_DRY_RUN_H

#include "base/recipe/recipe.h"
#include "engine/run/launch/launch.h"

/*
 * Prints the keys, those that differ from their defaults first, the memory that is planned and the
 * identity, and reads data and weights for it. Nothing is written. The recipe is checked; `path` is
 * its file or NULL. Of several ranks each reads what it would have, all compare, and the memory is
 * that of the one that needs most.
 */
invar_status invar_dry_run(invar_launch *launch, const invar_recipe *recipe,
                           const char *path) INVAR_MUST_USE;

#endif
