/*
 * parts.c - a plug-in whose rewards have parts; the label of the first sample selects a fault.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/ext/invar_plugin.h"

static int reward(void *self, const invar_plugin_sample *samples, size_t count, double *out,
                  char *error)
{
    (void)self;
    (void)error;
    for (size_t i = 0; i < count; i++)
        out[i] = (double)samples[i].index;
    return 0;
}

static const char *const names[] = {"length", "format", NULL};

static int parts(void *self, const invar_plugin_sample *samples, size_t count, double *part,
                 char *error)
{
    (void)self;
    if (strcmp(samples[0].label, "refuse") == 0) {
        snprintf(error, INVAR_PLUGIN_ERROR_SIZE, "no parts today");
        return 1;
    }
    for (size_t i = 0; i < 2 * count; i++)
        part[i] = i % 2 ? 0.5 : (double)samples[i / 2].n_tokens;
    if (strcmp(samples[0].label, "nan") == 0)
        part[1] = NAN;
    return 0;
}

const invar_plugin_table invar_plugin_v1 = {INVAR_PLUGIN_HEAD("parts"), .reward = reward,
                                            .part_names = names, .parts = parts};
