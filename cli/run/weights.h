/*
 * weights.h - whose weights a verb over a model takes: those of a run, of a folder, or the initial.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RUN_WEIGHTS_H
#define INVAR_CLI_RUN_WEIGHTS_H

#include "engine/run/context/run_context.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Where `run` says whose weights are meant, and `load` nothing: the newest that this run saved
 * become the recipe's `load`. INVAR_E_NOTFOUND: it has none.
 */
invar_status invar_weights_choose(invar_recipe *recipe) INVAR_MUST_USE;

#define INVAR_WEIGHTS_FROM_SIZE (INVAR_PATH_SIZE + 32)

/* Whose the session's are, after load_newest: "runs/a/checkpoints/iter_0000003". */
void invar_weights_from(char out[INVAR_WEIGHTS_FROM_SIZE], const invar_run_context *session);

/*
 * A line on stderr where nobody named weights and the run of this recipe has trained ones, which
 * may have been meant. `path` is the recipe's; NULL: it has none.
 */
void invar_weights_hint(const invar_recipe *recipe, const char *path);

#ifdef __cplusplus
}
#endif
#endif
