/*
 * chooser.c - a plug-in that chooses prompts, keeps young groups of the buffer, and reports
 * metrics.
 *
 * Behaves like tests/e2e/plugins/chooser.py, which is the same plug-in in Python.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/ext/invar_plugin.h"

static int prompts(void *self, const invar_plugin_wanted *wanted, int64_t *line, char *error)
{
    (void)self;
    (void)error;
    for (int64_t i = 0; i < wanted->count; i++)
        line[i] = (wanted->first + i) * 7 % wanted->lines;
    return 0;
}

static int filter(void *self, const invar_plugin_buffer *buffer, const invar_plugin_sample *samples,
                  size_t count, uint8_t *verdict, char *error)
{
    (void)self;
    (void)samples;
    (void)error;
    for (size_t i = 0; i < count; i++)
        verdict[i] = buffer->since[i] < buffer->rollout - 1 ? INVAR_PLUGIN_DROP : INVAR_PLUGIN_TAKE;
    return 0;
}

static int report(void *self, const invar_plugin_event *event, invar_plugin_report *out,
                  char *error)
{
    static const char *const names[] = {"reward", "samples"};
    static double values[2];

    (void)self;
    if (event->run && strcmp(event->run, "refused") == 0) {
        snprintf(error, INVAR_PLUGIN_ERROR_SIZE, "not this run");
        return 1;
    }
    if (event->hook == INVAR_PLUGIN_AFTER_EVAL &&
        (!event->set || strcmp(event->set, "held") != 0 || event->count == 0)) {
        snprintf(error, INVAR_PLUGIN_ERROR_SIZE, "an evaluation without a set");
        return 1;
    }
    if (event->hook == INVAR_PLUGIN_BEFORE_TRAIN_STEP)
        out->loss_factor = event->step == 7 ? (double)NAN : event->step % 2 ? 0.5 : 1.0;
    if (event->hook != INVAR_PLUGIN_AFTER_ROLLOUT)
        return 0;
    values[0] = 0.0;
    values[1] = (double)event->count;
    for (size_t i = 0; i < event->count; i++)
        values[0] += event->samples[i].reward / (double)event->count;
    out->names = names;
    out->values = values;
    out->count = 2;
    return 0;
}

const invar_plugin_table invar_plugin_v1 = {INVAR_PLUGIN_HEAD("chooser"), .report = report,
                                            .buffer_filter = filter, .prompts = prompts};
