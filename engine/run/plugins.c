/*
 * plugins.c - plug-ins at the beginning of a step: asked, or answered from the ledger.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/loop.h"

#include "base/invar_banned.h"

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
