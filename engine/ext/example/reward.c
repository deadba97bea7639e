/*
 * reward.c - an example of a plug-in as a shared object: short and right is better.
 *
 *     custom-rm-path = build/plugins/reward.so
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "engine/ext/invar_plugin.h"

/* 1 for a response that contains the label, less 0.01 for each token. */
static double plugin_sample_evaluate(const invar_plugin_sample *sample)
{
    double right = strstr(sample->response, sample->label) ? 1.0 : 0.0;

    return right - 0.01 * (double)(sample->n_tokens - sample->prompt_tokens);
}

static int plugin_sample_reward(void *self, const invar_plugin_sample *samples, size_t count,
                                double *out, char *error)
{
    (void)self;
    for (size_t i = 0; i < count; i++) {
        if (samples[i].label[0] == '\0') {
            snprintf(error, INVAR_PLUGIN_ERROR_SIZE, "sample %lld has no label",
                     (long long)samples[i].index);
            return 1;
        }
        out[i] = plugin_sample_evaluate(&samples[i]);
    }
    return 0;
}

/* The same, but only the best of a group is rewarded; the first one where several are. */
static int group_reward(void *self, const invar_plugin_sample *samples, size_t count, double *out,
                        char *error)
{
    size_t best = 0;
    int rc = plugin_sample_reward(self, samples, count, out, error);

    for (size_t i = 1; i < count; i++)
        best = out[i] > out[best] ? i : best;
    for (size_t i = 0; i < count; i++)
        out[i] = i == best ? 1.0 : 0.0;
    return rc;
}

const invar_plugin_table invar_plugin_v1 = {
    INVAR_PLUGIN_HEAD("short-and-right"),
    .reward = plugin_sample_reward,
    .group_reward = group_reward,
};
