/*
 * regenerate.h - samples one recorded sample again by itself, bit for bit.
 *
 * A sample depends only on its coordinates, which the ledger stores with it, and on the recipe:
 * prompt, sampling, and arithmetic. It does not depend on other samples of its rollout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_REPLAY_REGENERATE_H
#define INVAR_ENGINE_RUN_REPLAY_REGENERATE_H

#include "engine/run/context/run_context.h"
#include "engine/sample/rollout/rng_coords.h"

/*
 * Appends the sample to the empty list *out. The context needs its data. Its weights become those
 * of the sample: the initial ones, or those of a checkpoint in the recipe's `load` or `save`.
 * Returns INVAR_E_NOTFOUND if prompt or weights are missing, INVAR_E_INVALID if the recipe has
 * another seed, and INVAR_E_UNSUPPORTED if the sample was not sampled for training, or if a plug-in
 * led it.
 */
invar_status invar_regenerate(invar_rl_samples *out, invar_run_context *session,
                              const invar_rng_coords *coords) INVAR_MUST_USE;

#endif
