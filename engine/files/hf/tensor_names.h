/*
 * tensor_names.h - names of parameters in a Hugging Face folder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_HF_TENSOR_NAMES_H
#define INVAR_ENGINE_FILES_HF_TENSOR_NAMES_H

#include "engine/model/model.h"

#define INVAR_HF_WEIGHTS "model.safetensors"
#define INVAR_HF_INDEX "model.safetensors.index.json"
#define INVAR_HF_NAME_SIZE (INVAR_PARAM_NAME_SIZE + 24)

/*
 * Name of the tensor of one expert of a stack; the parameter's own name if it is not a stack of
 * experts.
 */
void invar_hf_name(char out[INVAR_HF_NAME_SIZE], const invar_param *param, int64_t expert);

/*
 * Finds the parameter of a tensor by the tensor's name; *expert_out is its expert, 0 if there is no
 * stack of experts. Returns NULL if the model has no such parameter.
 */
invar_param *invar_hf_find(int64_t *expert_out, const invar_model *model, const char *name);

#endif
