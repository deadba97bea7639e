/*
 * peft.h - loads, merges and saves LoRA adapters as peft folders.
 *
 * A folder has adapter_config.json and adapter_model.safetensors. Names are those of peft for a
 * causal language model, with "base_model.model." before those of the layers. Experts are named as
 * in transformers 4, one module each. Values are f32; the padding of the rank is not in the files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_HF_PEFT_H
#define INVAR_ENGINE_FILES_HF_PEFT_H

#include "engine/model/model.h"

/* Reads rank, alpha, rsLoRA and target layers from the configuration of the folder. */
invar_status invar_peft_spec(invar_lora_spec *out, const char *dir) INVAR_MUST_USE;

/*
 * Loads adapters into a model. Rank, alpha, rsLoRA and tensors must be those of the model; settings
 * of peft that change the mathematics are rejected by name.
 */
invar_status invar_peft_load(invar_model *model, const char *dir,
                             const invar_device *dev) INVAR_MUST_USE;

/*
 * Adds adapters to the masters of a complete model of the same base and refreshes its weights: w +
 * s B A in double, rounded once. All tensors are in host memory. A merged model computes a
 * different expression than base and adapters, so results are not bit-equal.
 */
invar_status invar_peft_merge(invar_model *to, const invar_model *adapted,
                              const invar_device *dev) INVAR_MUST_USE;

/*
 * Writes the masters of the adapters. `masters` is (n_params) in host memory, or NULL for those of
 * the model. The folder is created if necessary. `base` is recorded as the base model, if not
 * empty. Equal adapters give equal bytes. Collective: all ranks of the layout must call it; rank 0
 * writes.
 */
invar_status invar_peft_save(const invar_model *model, const invar_tensor *masters, const char *dir,
                             const char *base) INVAR_MUST_USE;

#endif
