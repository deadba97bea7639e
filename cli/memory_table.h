/*
 * memory_table.h - the memory of a plan, kind by kind, and the disk.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_MEMORY_TABLE_H
#define INVAR_CLI_MEMORY_TABLE_H

#include <jansson.h>

#include "engine/run/memory_plan/memory_plan.h"
#include "engine/run/memory_workload.h"
#include "engine/run/run_dir/disk.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As a table. */
invar_status invar_memory_table_show(const invar_memory_plan *budget) INVAR_MUST_USE;

/*
 * Says which data a plan did not read, and what rules will say of the data of the run that `path`,
 * a file or NULL, describes: invar_admission_check_prompts.
 */
invar_status invar_memory_table_judge(const invar_memory_planning *view,
                                      const char *path) INVAR_MUST_USE;

/* The disk that the checkpoints of a planned recipe need; `path` is its file or NULL. */
invar_status invar_memory_table_disk(invar_disk *out, const invar_memory_planning *view,
                                     const char *path) INVAR_MUST_USE;

/* As a table; nothing if there are no checkpoints. */
invar_status invar_disk_show(const invar_disk *disk) INVAR_MUST_USE;
json_t *invar_disk_json(const invar_disk *disk); /* null without checkpoints */

/* What is resident, [{"name": ..., "bytes": ...}, ...]; NULL without memory. */
json_t *invar_memory_table_items(const invar_memory_plan *budget);

#ifdef __cplusplus
}
#endif
#endif
