/*
 * short_table.c - a plug-in whose table ends before the field `filter`; the rest must not be read.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/invar_plugin.h"

static int constant_reward(void *self, const invar_plugin_sample *samples, size_t count,
                           double *reward, char *error)
{
    (void)self;
    (void)samples;
    (void)error;
    for (size_t i = 0; i < count; i++)
        reward[i] = 0.5;
    return 0;
}

static int failing_hook(void *self, const invar_plugin_event *event, char *error)
{
    (void)self;
    (void)event;
    (void)error;
    return 1;
}

const invar_plugin_table invar_plugin_v1 = {INVAR_PLUGIN_ABI, offsetof(invar_plugin_table, filter),
                                            .name = "short", .reward = constant_reward,
                                            .hook = failing_hook};
