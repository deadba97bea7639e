/*
 * memory_kinds.h - the memory of a plan, kind by kind.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_MEMORY_KINDS_H
#define INVAR_CLI_MEMORY_KINDS_H

#include <jansson.h>

#include "engine/budget/budget.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As a table. */
invar_status invar_memory_show(const invar_budget *budget) INVAR_MUST_USE;

/* What is resident, [{"name": ..., "bytes": ...}, ...]; NULL without memory. */
json_t *invar_memory_items(const invar_budget *budget);

#ifdef __cplusplus
}
#endif
#endif
