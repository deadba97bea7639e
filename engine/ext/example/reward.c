/*
 * reward.c - example of a reward in a shared object: short, correct responses are better.
 *
 *     custom-rm-path = build/plugins/reward.so
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "engine/ext/invar_plugin.h"

/* Returns 1 for a response that contains the label, less 0.01 for each token. */
static double evaluate_sample(const invar_plugin_sample *sample)
{
    double right = strstr(sample->response, sample->label) ? 1.0 : 0.0;

    return right - 0.01 * (double)(sample->n_tokens - sample->prompt_tokens);
}

static int reward_samples(void *self, const invar_plugin_sample *samples, size_t count, double *out,
                          char *error)
{
    (void)self;
    for (size_t i = 0; i < count; i++) {
        if (samples[i].label[0] == '\0') {
            snprintf(error, INVAR_PLUGIN_ERROR_SIZE, "sample %lld has no label",
                     (long long)samples[i].index);
            return 1;
        }
        out[i] = evaluate_sample(&samples[i]);
    }
    return 0;
}

/* Rewards only the best sample of a group; the first one if several are equally good. */
static int group_reward(void *self, const invar_plugin_sample *samples, size_t count, double *out,
                        char *error)
{
    size_t best = 0;
    int rc = reward_samples(self, samples, count, out, error);

    for (size_t i = 1; i < count; i++)
        best = out[i] > out[best] ? i : best;
    for (size_t i = 0; i < count; i++)
        out[i] = i == best ? 1.0 : 0.0;
    return rc;
}

const invar_plugin_table invar_plugin_v1 = {
    INVAR_PLUGIN_HEAD("short-and-right"),
    .reward = reward_samples,
    .group_reward = group_reward,
};
