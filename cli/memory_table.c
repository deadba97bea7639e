/*
 * memory_table.c - prints the memory plan of a recipe as a table, and the disk space of its
 * checkpoints.
 *
 * The same numbers are available as JSON. memory_plan.h and disk.h compute them; nothing is decided
 * here.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/memory_table.h"

#include <inttypes.h>
#include <stdio.h>

#include "cli/interactive.h"
#include "cli/text_table.h"
#include "engine/config/config.h"
#include "engine/run/admission.h"
#include "engine/run/run_dir/paths.h"

#include "base/invar_banned.h"

static void add_row(invar_text_table *table, const char *name, size_t bytes, const char *note)
{
    char cell[32];

    (void)snprintf(cell, sizeof cell, "%.1f", (double)bytes / (double)((size_t)1 << 20));
    invar_text_table_add(table, "sns", name, cell, note);
}

invar_status invar_memory_table_show(const invar_memory_plan *b)
{
    invar_text_table table = {.columns = 3}, *t = &table;
    char cache[64] = "";

    invar_text_table_add(t, "sss", "memory", "MiB", "");
    for (int i = 0; i < b->n_items; i++)
        add_row(t, b->items[i].name, b->items[i].bytes, "");
    if (b->host > 0)
        add_row(t, "on the host", b->host, "not counted");
    add_row(t, "resident", b->resident, "for the whole run");
    if (b->cache > 0)
        (void)snprintf(cache, sizeof cache, "KV cache %.1f", (double)b->cache / (1 << 20));
    if (b->sampling > 0)
        add_row(t, "sampling", b->sampling, cache);
    if (b->verify_bytes > 0)
        add_row(t, "checking", b->verify_bytes, "of what was sampled ahead");
    if (b->scoring > 0)
        add_row(t, "scoring", b->scoring, "");
    if (b->learning > 0)
        add_row(t, "learning", b->learning, "");
    add_row(t, "block", b->block,
            b->sampler_bytes ? "sampling beside training: the largest of each"
                             : "these in turn: the largest");
    add_row(t, "around", b->outside_block_bytes, "norm, AdamW, hashes");
    if (b->load_peak_bytes > 0)
        add_row(t, "loading", b->load_peak_bytes, "before: the teacher with its masters");
    add_row(t, "need", b->need,
            b->need == b->load_peak_bytes ? "loading" : "resident, block and around");
    add_row(t, "available", b->available, "");
    add_row(t, "usable", b->usable, "1/64 is left for the driver");
    return invar_text_table_show(t, stdout, INVAR_OK);
}

static json_t *item_json(const void *item)
{
    const invar_memory_plan_item *i = item;

    return INVAR_RESULT(INVAR_MEMORY_ITEM, i->name, i->bytes);
}

json_t *invar_memory_table_items(const invar_memory_plan *b)
{
    return invar_result_list(b->items, (size_t)b->n_items, sizeof *b->items, item_json);
}

/* ---- the data -------------------------------------------------------------------------------- */

invar_status invar_memory_table_check_data(const invar_memory_planning *planning, const char *path)
{
    const invar_run_context *s = &planning->session;
    invar_train_settings settings;
    invar_admission_prompts prompts = {
        .session = s, .settings = &settings, .say = invar_interactive_print};
    invar_run_paths at;

    if (planning->unread[0]) {
        invar_interactive_print(NULL, planning->unread);
        return INVAR_OK;
    }
    INVAR_TRY(invar_run_paths_find(&at, s->config, path));
    invar_train_settings_read(&settings, s->config, s->data ? invar_dataset_size(s->data) : 0, -1,
                              false);
    prompts.forked = invar_path_exists(at.ledger);
    return invar_admission_check_prompts(&prompts);
}

/* ---- the disk -------------------------------------------------------------------------------- */

invar_status invar_memory_table_disk(invar_disk *out, const invar_memory_planning *planning,
                                     const char *path)
{
    const invar_config *c = planning->session.config;
    invar_hf_files files = {.count = 0};
    invar_disk_inputs inputs = {.session = &planning->session,
                                .settings = &planning->settings,
                                .files = &files,
                                .bare = planning->session.config->debug_rollout_only};
    invar_run_paths at;
    invar_status status = INVAR_OK;

    INVAR_TRY(invar_run_paths_find(&at, c, path));
    inputs.save = at.save;
    if (c->hf_checkpoint[0])
        status = invar_hf_files_read(&files, c->hf_checkpoint, c->chat_template_path);
    if (status == INVAR_OK)
        status = invar_disk_plan(out, &inputs);
    invar_hf_files_release(&files);
    return status;
}

invar_status invar_disk_show(const invar_disk *d)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    invar_text_table table = {.columns = 3}, *t = &table;
    invar_status status;
    char note[96];

    if (!d->save[0])
        return INVAR_OK;
    invar_text_table_add(t, "sss", "disk", "MiB", "");
    add_row(t, "a checkpoint", (size_t)d->checkpoint, "");
    (void)snprintf(note, sizeof note, "%" PRId64 " at one time, %" PRId64 " of them by time",
                   d->max_checkpoints, d->by_time);
    add_row(t, "checkpoints", (size_t)invar_disk_bytes(d, d->max_checkpoints), note);
    if (d->free >= 0)
        add_row(t, "free", (size_t)d->free,
                !invar_disk_fits(d, d->n_required)    ? "too little: the run would be refused"
                : !invar_disk_fits(d, d->n_remaining) ? "too little for all of them"
                                                      : "");
    putchar('\n');
    status = invar_text_table_show(t, stdout, INVAR_OK);
    invar_path_show(shown, d->save);
    printf("in %s, without ledger, rollout files and exports\n", shown);
    return status;
}

json_t *invar_disk_json(const invar_disk *d)
{
    if (!d->save[0])
        return json_null();
    return INVAR_RESULT(INVAR_DISK_RESULT, d->save, d->checkpoint, d->max_checkpoints, d->by_time,
                        invar_disk_bytes(d, d->n_remaining), d->free,
                        invar_disk_fits(d, d->n_required));
}
