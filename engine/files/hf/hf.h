/*
 * hf.h - loads and saves the weights of a model as a Hugging Face folder.
 *
 * The loader reads model.safetensors, or the shards listed in model.safetensors.index.json, which
 * must be in the same folder. Every parameter must exist once, with its shape; a tensor that does
 * not belong to the model is rejected, except the rotary frequencies of old files, which are
 * ignored. F32, BF16 and F16 are converted to f32 exactly.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_HF_HF_H
#define INVAR_ENGINE_FILES_HF_HF_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/files/hf/aux_files.h"
#include "engine/model/model.h"

/* Returns true if the folder has weights that invar_hf_load would try to load. */
bool invar_hf_has_weights(const char *dir);

/*
 * Returns INVAR_E_NOTFOUND if the folder does not exist. `key` is the recipe key that names the
 * folder, "--fork" or "". For a value such as Qwen/Qwen3-0.6B, or a URL of the Hugging Face Hub,
 * the message names the command that downloads the model; for the folder of a run or of its
 * checkpoints, the command that lists runs.
 */
invar_status invar_hf_check_folder(const char *key, const char *dir) INVAR_MUST_USE;

/*
 * Like invar_hf_check_folder, for a folder that must have a config.json; the message says which
 * other files a model needs.
 */
invar_status invar_hf_check_model(const char *key, const char *dir) INVAR_MUST_USE;

/*
 * Returns INVAR_E_NOTFOUND if the folder has no weights; the message names what is missing, what
 * exists instead, and a remedy.
 */
invar_status invar_hf_check_weights(const char *dir) INVAR_MUST_USE;

/*
 * Loads the weights into the model. With tied embeddings, lm_head.weight may exist if it is
 * bit-equal to the embedding. A critic accepts the body of a language model, too: its head is zero
 * if there is no score.weight, and lm_head.weight is ignored. Returns INVAR_E_NOTFOUND if there are
 * no weights, and INVAR_E_CORRUPT with the tensor in the message. After a failure the model's
 * values are undefined.
 */
invar_status invar_hf_load(invar_model *model, const char *dir,
                           const invar_device *dev) INVAR_MUST_USE;

/*
 * Rewrites a config.json for weights of type INVAR_DTYPE_F32 or INVAR_DTYPE_BF16: sets the values
 * of "dtype" and "torch_dtype", and adds "torch_dtype" if neither exists. All other bytes are those
 * of `text`, which must end with a NUL. The caller frees *out with invar_free.
 */
invar_status invar_hf_config(char **out, size_t *bytes_out, const char *text, size_t bytes,
                             invar_dtype dtype) INVAR_MUST_USE;

/*
 * Writes config.json, `files` and the masters as INVAR_DTYPE_F32, or rounded to INVAR_DTYPE_BF16.
 * `masters` is (n_params) in host memory, or NULL for those of the model. `files` may be NULL; a
 * config.json among them is written unchanged, and files->config is that of the source. The folder
 * is created if necessary. More than `max_shard_bytes` of tensors (0 for no limit) are split into
 * shards of at most that size, with an index. Equal models give equal bytes. Existing weights are
 * removed first and new ones written last, so a writer that is killed leaves a folder without
 * weights. Collective: all ranks of the model's layout must call it; rank 0 writes.
 */
invar_status invar_hf_save(const invar_model *model, const invar_tensor *masters, const char *dir,
                           invar_dtype dtype, int64_t max_shard_bytes,
                           const invar_hf_files *files) INVAR_MUST_USE;

#endif
