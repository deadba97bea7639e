/*
 * regenerate.h - one recorded sample, made again alone, bit for bit.
 *
 * What a sample depends on are its coordinates, which the ledger keeps with it, and the recipe:
 * prompt, sampling, and how products are computed. What was sampled beside it is no part of it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_REPLAY_REGENERATE_H
#define INVAR_ENGINE_RUN_REPLAY_REGENERATE_H

#include "engine/run/context/run_context.h"
#include "engine/sample/rollout/rng_coords.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The sample into an empty list. The session has its data; its weights become those of the sample:
 * the initial ones, or those of a checkpoint in the recipe's `load` or `save`. INVAR_E_NOTFOUND:
 * the prompt or the weights are not there; INVAR_E_INVALID: the recipe has another seed;
 * INVAR_E_UNSUPPORTED: it was not sampled for training, or a plug-in led it.
 */
invar_status invar_regenerate(invar_rl_samples *out, invar_run_context *session,
                              const invar_rng_coords *coords) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
