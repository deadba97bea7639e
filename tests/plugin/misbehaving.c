/*
 * misbehaving.c - a plug-in that misbehaves; the label of the first sample selects the fault.
 *
 * It also changes the rounding mode when it is opened, and returns rewards, verdicts and losses
 * that the engine must check.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/ext/invar_plugin.h"

static int open_plugin(void **self, char *error)
{
    *self = malloc(8);
    memcpy(error, "unused", 7);
    fesetround(FE_UPWARD);
    return 0;
}

static void close_plugin(void *self)
{
    free(self);
}

static int reward(void *self, const invar_plugin_sample *samples, size_t count, double *out,
                  char *error)
{
    const char *label = samples[0].label;

    for (size_t i = 0; i < count; i++)
        out[i] = self ? (double)samples[i].index : -1.0;
    if (strcmp(label, "round") == 0)
        fesetround(FE_DOWNWARD);
    if (strcmp(label, "chdir") == 0)
        out[0] = chdir("/");
    if (strcmp(label, "exit") == 0)
        exit(0);
    if (strcmp(label, "nan") == 0)
        out[count - 1] = NAN;
    if (strcmp(label, "silent") == 0)
        return 7;
    if (strcmp(label, "unterminated") == 0) {
        memcpy(error, "because", 7);
        return 7;
    }
    if (strcmp(label, "refuse") == 0) {
        memset(error, 'x', INVAR_PLUGIN_ERROR_SIZE); // the text has no terminating NUL
        return 7;
    }
    return 0;
}

static int filter(void *self, const invar_plugin_sample *samples, size_t count, uint8_t *verdict,
                  char *error)
{
    (void)self;
    (void)error;
    for (size_t i = 0; i < count; i++)
        verdict[i] = (uint8_t)samples[i].reward;
    return 0;
}

static int loss(void *self, const invar_plugin_tokens *tokens, float *dlogp, float *out,
                char *error)
{
    (void)self;
    (void)error;
    for (int64_t i = 0; i < tokens->count; i++) {
        dlogp[i] = tokens->ref ? INFINITY : tokens->logp[i];
        out[i] = tokens->old[i];
    }
    return 0;
}

const invar_plugin_table invar_plugin_v1 = {
    INVAR_PLUGIN_HEAD("unruly"),
    .open = open_plugin,
    .close = close_plugin,
    .reward = reward,
    .filter = filter,
    .loss = loss,
};
