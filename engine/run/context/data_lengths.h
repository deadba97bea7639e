/*
 * data_lengths.h - the largest lengths in the data of a run, for its memory plan.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_CONTEXT_DATA_LENGTHS_H
#define INVAR_ENGINE_RUN_CONTEXT_DATA_LENGTHS_H

#include "engine/files/data/dataset.h"
#include "engine/sample/rollout/rollout.h"

/* Largest lengths in the data, in tokens. If a field is 0, the recipe's bound is used. */
typedef struct invar_data_lengths {
    int64_t prompt;                 /* longest prompt of training */
    int64_t answer;                 /* longest answer of training and evaluation */
    int64_t total;                  /* longest prompt with its answer, of both, for SFT */
    bool evaluates;                 /* the run evaluates during training */
    int64_t eval;                   /* longest prompt of evaluation */
    int64_t eval_prompts;           /* number of prompts in the largest evaluation set */
    int64_t per_prompt;             /* largest number of samples per prompt of evaluation */
    int64_t response;               /* largest response length of evaluation */
    invar_sampling_params sampling; /* evaluation parameters that need most memory */
} invar_data_lengths;

/* Includes a data set of training or, if `eval`, of evaluation in *out. `data` may be NULL. */
void invar_data_lengths_add(invar_data_lengths *out, const invar_dataset *data, bool eval);

#endif
