/*
 * weights.h - selects the weights for commands that need a model: initial, from a run or a folder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_WEIGHTS_H
#define INVAR_CLI_RUN_WEIGHTS_H

#include "engine/config/config.h"
#include "engine/run/context/run_context.h"

/*
 * If `run` is given and `load` is not, sets `load` to the newest checkpoints of that run. Returns
 * INVAR_E_NOTFOUND if the run has none.
 */
invar_status invar_weights_choose(invar_config *config) INVAR_MUST_USE;

#define INVAR_WEIGHTS_FROM_SIZE (INVAR_PATH_SIZE + 32)

/*
 * Formats the origin of the session's weights: "runs/a/checkpoints/iter_0000003", or "the initial
 * ones (...)". Call it after invar_run_context_load_newest.
 */
void invar_weights_from(char out[INVAR_WEIGHTS_FROM_SIZE], const invar_run_context *session);

/*
 * Prints a hint to stderr if no weights were selected although the run of this recipe has trained
 * ones. `path` is the recipe file, or NULL.
 */
void invar_weights_hint(const invar_config *config, const char *path);

#endif
