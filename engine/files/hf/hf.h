/*
 * hf.h - the weights of a model in a Hugging Face folder.
 *
 * Reading takes model.safetensors, or the shards of model.safetensors.index.json, which lie in the
 * same folder. Every parameter must be there once, with its shape; a tensor that is none of the
 * model's is refused. F32, BF16 and F16 become f32 exactly.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_HF_HF_H
#define INVAR_ENGINE_FILES_HF_HF_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/files/hf/aux_files.h"
#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True when the folder has weights that _load would try. */
bool invar_hf_has_weights(const char *dir);

/*
 * Returns INVAR_E_NOTFOUND if the folder does not exist. `key` is the name of the recipe key that
 * names the folder, "--fork" or "". The message of a value such as Qwen/Qwen3-0.6B, or of its
 * address on the Hugging Face Hub, names the command that downloads the model; that of the folder
 * of a run or of its checkpoints the command that lists runs.
 */
invar_status invar_hf_check_folder(const char *key, const char *dir) INVAR_MUST_USE;

/* The same of a folder that must have config.json; the message says what else a model needs. */
invar_status invar_hf_check_model(const char *key, const char *dir) INVAR_MUST_USE;

/* INVAR_E_NOTFOUND where it has none: what is missing, what lies there instead, what would do. */
invar_status invar_hf_check_weights(const char *dir) INVAR_MUST_USE;

/*
 * Fills the model. Beside a tied embedding, lm_head.weight may be there if it has the embedding's
 * bits. A critic takes the body of a language model, too: its head is zero where there is no
 * score.weight, and lm_head.weight is passed over. After a failure the model's values are
 * undefined. INVAR_E_NOTFOUND: no weights; INVAR_E_CORRUPT: what is wrong with which tensor.
 */
invar_status invar_hf_load(invar_model *model, const char *dir,
                           const invar_device *dev) INVAR_MUST_USE;

/*
 * The text of a config.json with the type of the weights that are written, INVAR_DTYPE_F32 or
 * INVAR_DTYPE_BF16, as the value of "dtype" and "torch_dtype"; "torch_dtype" is added if neither
 * exists. All other bytes are those of `text`, which ends with a NUL. The caller frees *out
 * (invar_free).
 */
invar_status invar_hf_config(char **out, size_t *bytes_out, const char *text, size_t bytes,
                             invar_dtype dtype) INVAR_MUST_USE;

/*
 * Writes config.json, `files` (NULL: none; a config.json among them is the one that
 * stays, and files->config is that of the source) and the
 * masters (NULL: the model's; else (n_params) in the host's memory), as INVAR_DTYPE_F32 or rounded
 * to INVAR_DTYPE_BF16, into a folder that is made if need be. More than `max_shard_bytes` (0: no
 * limit) of tensors become shards of at most that many bytes, and an index. Equal models give equal
 * bytes. Weights that are there already are removed first and new ones come last: killed halfway,
 * the folder has none. A call of all ranks of the model's layout, of which rank 0 writes.
 */
invar_status invar_hf_save(const invar_model *model, const invar_tensor *masters, const char *dir,
                           invar_dtype dtype, int64_t max_shard_bytes,
                           const invar_hf_files *files) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
