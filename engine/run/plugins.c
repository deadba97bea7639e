/*
 * plugins.c - plug-ins at the beginning of a step: asked, or answered from the ledger.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/run/loop.h"

#include "base/invar_banned.h"

static invar_status tell_change(invar_loop *loop, const invar_plugin *plugin, int64_t step)
{
    char was[INVAR_DIGEST_HEX_SIZE], now[INVAR_DIGEST_HEX_SIZE], line[256];

    INVAR_TRY(invar_plugin_stored_maker(was, plugin, loop->ledger, loop->run_number, step));
    invar_digest_format(now, invar_plugin_hash(plugin));
    if (!was[0] || strcmp(was, now) == 0)
        return INVAR_OK;
    (void)snprintf(line, sizeof line,
                   "plug-in %s: its file has changed since step %" PRId64
                   ", hash %s, was %s; the run goes on with the new one",
                   invar_plugin_name(plugin), step, now, was);
    invar_loop_say(loop, line);
    return invar_loop_event(loop, "warning", "plugin", line);
}

invar_status invar_loop_compare_plugins(invar_loop *loop, int64_t step)
{
    for (int i = 0; i < INVAR_LOOP_PLUGINS; i++)
        if (loop->plugins[i] && invar_plugin_hash(loop->plugins[i]))
            INVAR_TRY(tell_change(loop, loop->plugins[i], step));
    return INVAR_OK;
}

invar_status invar_loop_begin_plugin(invar_loop *loop, int place)
{
    invar_plugin_stored *stored = &loop->stored[place];
    invar_plugin *plugin = loop->plugins[place];
    int64_t step = loop->place.step;

    if (!plugin)
        return INVAR_OK;
    invar_plugin_stored_release(stored);
    if (step <= loop->recorded)
        INVAR_TRY(invar_plugin_stored_read(stored, loop->ledger, loop->run_number, step));
    // a step without any reply took its samples from a file, or lost them in a shortened ledger
    if (stored->replies.count == 0 && !loop->options->replay)
        return invar_plugin_begin(plugin, step, NULL);
    INVAR_TRY(invar_plugin_stored_check(plugin, loop->ledger, loop->run_number, step));
    return invar_plugin_begin(plugin, step, &stored->replies);
}

invar_status invar_loop_free_plugin(invar_loop *loop, int place)
{
    invar_plugin *plugin = loop->plugins[place];

    return plugin ? invar_plugin_begin(plugin, loop->place.step, NULL) : INVAR_OK;
}
