/*
 * builtin_task.h - built-in synthetic tasks: prompts with one correct answer, made from a seed.
 *
 * The tasks are small: at most 32 tokens and answers of a few characters, so that a model of two
 * layers learns them from random weights in minutes on a CPU. docs/data.md describes them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_DATA_BUILTIN_TASK_H
#define INVAR_ENGINE_FILES_DATA_BUILTIN_TASK_H

#include <stdint.h>

#include "base/status.h"

#define INVAR_BUILTIN_TASK_TEXT_SIZE 16 /* longest prompt or answer, including the NUL */

typedef struct invar_builtin_task_item {
    char prompt[INVAR_BUILTIN_TASK_TEXT_SIZE];
    char answer[INVAR_BUILTIN_TASK_TEXT_SIZE];
} invar_builtin_task_item;

/* Name of the i-th task; NULL after the last one. */
const char *invar_builtin_task_name(int i);

/* Alphabet of a task, for invar_tokenizer_alphabet; NULL if the task does not exist. */
const char *invar_builtin_task_alphabet(const char *name);

/*
 * Makes item i of a task: a pure function of seed and i. Returns INVAR_E_NOTFOUND, with the names
 * of all tasks, if the task does not exist.
 */
invar_status invar_builtin_task_make(invar_builtin_task_item *out, const char *name, uint32_t seed,
                                     uint32_t i) INVAR_MUST_USE;

#endif
