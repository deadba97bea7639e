/*
 * wrong_logprob.c - invar whose rollouts record one wrong log-prob.
 *
 * Changes the last token of the sample with the index INVAR_TEST_WRONG_LOGPROB or, if the variable
 * is not set, of a sample of rollout 3 that was suspended.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "tests/device/wrapped_rollout.h"

invar_status __wrap_invar_rollout_run(invar_rollout *rollout, invar_rl_sample *samples,
                                      int64_t count, const invar_sampling_params *sampling,
                                      progress_fn on_progress, void *payload)
{
    const char *index = getenv("INVAR_TEST_WRONG_LOGPROB");
    invar_status status =
        __real_invar_rollout_run(rollout, samples, count, sampling, on_progress, payload);

    for (int64_t i = 0; i < count && status == INVAR_OK; i++)
        if (index ? samples[i].index == strtol(index, NULL, 10)
                  : samples[i].suspend_at && samples[i].rollout == 3) {
            samples[i].logp[invar_rl_sample_response(&samples[i]) - 1] *= 1.0000002f;
            break;
        }
    return status;
}
