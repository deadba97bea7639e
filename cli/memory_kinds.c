/*
 * memory_kinds.c - the memory of a plan, kind by kind.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/memory_kinds.h"

#include <stdio.h>

#include "cli/grid.h"

#include "base/invar_banned.h"

static invar_status add_line(invar_grid *table, const char *name, size_t bytes, const char *note)
{
    char cell[32];

    (void)snprintf(cell, sizeof cell, "%.1f", (double)bytes / (double)((size_t)1 << 20));
    INVAR_TRY(invar_grid_string(table, name));
    INVAR_TRY(invar_grid_number(table, cell));
    return invar_grid_string(table, note);
}

static invar_status fill(invar_grid *t, const invar_budget *b)
{
    char cache[64] = "";

    INVAR_TRY(invar_grid_string(t, "memory"));
    INVAR_TRY(invar_grid_string(t, "MiB"));
    INVAR_TRY(invar_grid_string(t, ""));
    for (int i = 0; i < b->n_items; i++)
        INVAR_TRY(add_line(t, b->items[i].name, b->items[i].bytes, ""));
    if (b->host > 0)
        INVAR_TRY(add_line(t, "on the host", b->host, "not counted"));
    INVAR_TRY(add_line(t, "resident", b->resident, "for the whole run"));
    if (b->cache > 0)
        (void)snprintf(cache, sizeof cache, "KV cache %.1f", (double)b->cache / (1 << 20));
    if (b->sampling > 0)
        INVAR_TRY(add_line(t, "sampling", b->sampling, cache));
    if (b->checking > 0)
        INVAR_TRY(add_line(t, "checking", b->checking, "of what was sampled ahead"));
    if (b->scoring > 0)
        INVAR_TRY(add_line(t, "scoring", b->scoring, ""));
    if (b->learning > 0)
        INVAR_TRY(add_line(t, "learning", b->learning, ""));
    INVAR_TRY(add_line(t, "block", b->block,
                       b->beside ? "sampling beside training: the largest of each"
                                 : "these in turn: the largest"));
    INVAR_TRY(add_line(t, "around", b->around, "norm, AdamW, hashes"));
    if (b->loading > 0)
        INVAR_TRY(add_line(t, "loading", b->loading, "before: the teacher with its masters"));
    INVAR_TRY(add_line(t, "need", b->need,
                       b->need == b->loading ? "loading" : "resident, block and around"));
    INVAR_TRY(add_line(t, "available", b->available, ""));
    return add_line(t, "usable", b->usable, "1/64 is left for the driver");
}

invar_status invar_memory_show(const invar_budget *b)
{
    invar_grid *table = NULL;
    invar_status status = invar_grid_new(&table, 3);

    if (status == INVAR_OK)
        status = fill(table, b);
    if (status == INVAR_OK)
        status = invar_grid_show(table, stdout);
    invar_grid_free(table);
    return status;
}

json_t *invar_memory_items(const invar_budget *b)
{
    json_t *list = json_array();

    for (int i = 0; i < b->n_items && list; i++)
        (void)json_array_append_new(list, json_pack("{s:s, s:I}", "name", b->items[i].name, "bytes",
                                                    (json_int_t)b->items[i].bytes));
    return list;
}
