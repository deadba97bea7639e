/*
 * builtin_task.h - built-in tasks: prompts with one right answer, made from a seed, without any
 * file.
 *
 * Small on purpose: at most 32 tokens, answers of a few characters, so that a model of two layers
 * learns them from random weights in minutes on a CPU. What each asks for: docs/recipes.md.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_DATA_BUILTIN_TASK_H
#define INVAR_ENGINE_FILES_DATA_BUILTIN_TASK_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_BUILTIN_TASK_TEXT_SIZE 16 /* the longest prompt or answer, with its NUL */

typedef struct invar_builtin_task_item {
    char prompt[INVAR_BUILTIN_TASK_TEXT_SIZE];
    char answer[INVAR_BUILTIN_TASK_TEXT_SIZE];
} invar_builtin_task_item;

/* The name of the i-th task, NULL after the last. */
const char *invar_builtin_task_name(int i);

/* The alphabet of a task, for invar_tokenizer_alphabet; NULL when there is no such task. */
const char *invar_builtin_task_alphabet(const char *name);

/* Item i of the task with this seed: a pure function. INVAR_E_NOTFOUND names the tasks. */
invar_status invar_builtin_task_make(invar_builtin_task_item *out, const char *name, uint32_t seed,
                                     uint32_t i) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
