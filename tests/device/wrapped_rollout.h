/*
 * wrapped_rollout.h - declares invar_rollout_run as wrapped by -Wl,--wrap=invar_rollout_run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_DEVICE_WRAPPED_ROLLOUT_H
#define INVAR_TESTS_DEVICE_WRAPPED_ROLLOUT_H

#include "engine/sample/rollout/rollout.h"

typedef invar_status (*progress_fn)(void *payload, int64_t samples_done, int64_t tokens_done);

invar_status __real_invar_rollout_run(invar_rollout *rollout, invar_rl_sample *samples,
                                      int64_t count, const invar_sampling_params *sampling,
                                      progress_fn on_progress, void *payload);
invar_status __wrap_invar_rollout_run(invar_rollout *rollout, invar_rl_sample *samples,
                                      int64_t count, const invar_sampling_params *sampling,
                                      progress_fn on_progress, void *payload);

#endif
