/*
 * memory_table.h - prints memory plans and checkpoint disk space as tables and JSON.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_MEMORY_TABLE_H
#define INVAR_CLI_MEMORY_TABLE_H

#include "base/json/result.h"
#include "engine/run/memory_plan/memory_plan.h"
#include "engine/run/memory_workload.h"
#include "engine/run/run_dir/disk.h"

/* Prints the memory plan as a table. */
invar_status invar_memory_table_show(const invar_memory_plan *plan) INVAR_MUST_USE;

/*
 * Prints which data a plan could not read, and otherwise what invar_admission_check_prompts finds
 * in the data of the run. `path` is the recipe file, or NULL.
 */
invar_status invar_memory_table_check_data(const invar_memory_planning *planning,
                                           const char *path) INVAR_MUST_USE;

/*
 * Computes the disk space of the checkpoints of a planned recipe. `path` is the recipe file, or
 * NULL.
 */
invar_status invar_memory_table_disk(invar_disk *out, const invar_memory_planning *planning,
                                     const char *path) INVAR_MUST_USE;

#define INVAR_MEMORY_ITEM "{name text, bytes int}"
#define INVAR_DISK_RESULT                                                                          \
    "{save text, checkpoint int, checkpoints int, by_time int, certain int, free int?, fits "      \
    "bool}?"

/* Prints the disk space as a table; nothing if there are no checkpoints. */
invar_status invar_disk_show(const invar_disk *disk) INVAR_MUST_USE;
json_t *invar_disk_json(const invar_disk *disk); /* returns null without checkpoints */

/* Returns the resident items as [{"name": ..., "bytes": ...}, ...], or NULL without memory. */
json_t *invar_memory_table_items(const invar_memory_plan *plan);

#endif
