/*
 * peft.h - adapters as the folders of peft: adapter_config.json, adapter_model.safetensors.
 *
 * Names are peft's for a causal language model, "base_model.model." before those of the layers.
 * Experts have the names of transformers 4, a module each. Values are f32; what fills up the rank
 * is not in the files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_HF_PEFT_H
#define INVAR_ENGINE_FILES_HF_PEFT_H

#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rank, alpha, rsLoRA and layers, as the folder's configuration says. */
invar_status invar_peft_spec(invar_lora_spec *out, const char *dir) INVAR_MUST_USE;

/*
 * Fills a model's adapters. Rank, alpha, rsLoRA and tensors must be those of the model; settings of
 * peft that change the mathematics are refused by name.
 */
invar_status invar_peft_load(invar_model *model, const char *dir,
                             const invar_device *dev) INVAR_MUST_USE;

/*
 * Adds adapters to the masters of a whole model of the same base and refreshes it: w + s B A in
 * double, rounded once. All is in the host's memory. A merged model computes another expression.
 */
invar_status invar_peft_merge(invar_model *to, const invar_model *adapted,
                              const invar_device *dev) INVAR_MUST_USE;

/*
 * Writes the adapters' masters (NULL: the model's; else (n_params) in the host's memory) into a
 * folder that is made if need be. `base` is what the configuration names as the base; "": nothing.
 * Equal adapters give equal bytes. A call of all ranks of the layout, of which rank 0 writes.
 */
invar_status invar_peft_save(const invar_model *model, const invar_tensor *masters, const char *dir,
                             const char *base) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
