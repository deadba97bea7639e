/*
 * data_lengths.c - finds the largest lengths in the data of a run.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/context/data_lengths.h"

#include "base/minmax.h"

#include "base/invar_banned.h"

void invar_data_lengths_add(invar_data_lengths *out, const invar_dataset *data, bool eval)
{
    int64_t size = data ? invar_dataset_size(data) : 0;
    int64_t *prompt = eval ? &out->eval : &out->prompt;

    if (eval)
        out->eval_prompts = invar_max_i64(out->eval_prompts, size);
    for (int64_t i = 0; i < size; i++) {
        const invar_prompt *p = invar_dataset_prompt(data, i);
        *prompt = invar_max_i64(*prompt, p->n_tokens);
        out->answer = invar_max_i64(out->answer, p->n_answer);
        out->total = invar_max_i64(out->total, p->n_tokens + p->n_answer);
    }
}
