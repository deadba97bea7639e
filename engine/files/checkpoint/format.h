/*
 * format.h - state.json and hashes.xxh of a checkpoint, and the names of its files and folders.
 * Private to engine/files/checkpoint/.
 *
 * The index (state.json) lists tensors and blobs; the file list (hashes.xxh) has the hash of every
 * file of the checkpoint except itself.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_CHECKPOINT_FORMAT_H
#define INVAR_ENGINE_FILES_CHECKPOINT_FORMAT_H

#include "base/file.h"
#include "base/json/json.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/files/safetensors.h"

/* ---- state.json ------------------------------------------------------------------------------ */

typedef struct invar_checkpoint_entry {
    const char *set;
    const char *name;
    invar_safetensors_type type;
    int32_t rank;
    int64_t shape[INVAR_MAX_RANK];
    invar_digest digest; /* tree hash, one shard */
    bool hashed;         /* writing: the digest was computed */
    bool loaded;         /* reading: the tensor was loaded or skipped */
} invar_checkpoint_entry;

typedef struct invar_checkpoint_set {
    const char *name;
    int64_t first, count; /* range of its entries */
} invar_checkpoint_set;

#define INVAR_CHECKPOINT_SETS 64
#define INVAR_CHECKPOINT_BLOBS 64

/*
 * Content of state.json. Strings are borrowed: from `json` after reading, from the content when
 * writing.
 */
typedef struct invar_checkpoint_index {
    invar_checkpoint_state state;
    invar_checkpoint_entry *entries; /* (n_entries) tensors, grouped by set */
    int64_t n_entries;
    invar_checkpoint_set sets[INVAR_CHECKPOINT_SETS];
    int64_t n_sets;
    const char *blobs[INVAR_CHECKPOINT_BLOBS];
    int64_t n_blobs;
    json_t *json;
} invar_checkpoint_index;

void invar_checkpoint_index_release(invar_checkpoint_index *index);

/*
 * Rejects, by name, values that a state.json must not contain, and finds the sets. `where` is used
 * in error messages only.
 */
invar_status invar_checkpoint_index_check(invar_checkpoint_index *index,
                                          const char *where) INVAR_MUST_USE;

/* Formats state.json. The caller frees *out with invar_free. */
invar_status invar_checkpoint_index_text(char **out, size_t *bytes_out,
                                         const invar_checkpoint_index *index) INVAR_MUST_USE;

/*
 * Parses and checks state.json. Returns INVAR_E_CORRUPT if it is invalid, and INVAR_E_UNSUPPORTED
 * for a newer version.
 */
invar_status invar_checkpoint_index_parse(invar_checkpoint_index *out, const char *where,
                                          const char *text, size_t bytes) INVAR_MUST_USE;

/* Converts a dtype to its type in files. Returns INVAR_E_UNSUPPORTED for quantized types. */
invar_status invar_checkpoint_type(invar_safetensors_type *out, const char *name,
                                   invar_dtype dtype) INVAR_MUST_USE;

/* ---- hashes.xxh ------------------------------------------------------------------------------ */

#define INVAR_CHECKPOINT_HASHES "hashes.xxh"
#define INVAR_CHECKPOINT_STATE "state.json"
#define INVAR_CHECKPOINT_FILE_SIZE (INVAR_CHECKPOINT_NAME_BYTES + 16)
#define INVAR_CHECKPOINT_FILES (INVAR_CHECKPOINT_SETS + INVAR_CHECKPOINT_BLOBS + 1)

typedef struct invar_checkpoint_file {
    char name[INVAR_CHECKPOINT_FILE_SIZE];
    invar_digest hash;
} invar_checkpoint_file;

typedef struct invar_checkpoint_files {
    invar_checkpoint_file files[INVAR_CHECKPOINT_FILES]; /* (count) sorted by name */
    int64_t count;
} invar_checkpoint_files;

/*
 * Lists the files of a checkpoint, without hashes. Returns INVAR_E_INVALID if a name is not unique.
 */
invar_status invar_checkpoint_files_list(invar_checkpoint_files *out,
                                         const invar_checkpoint_index *index) INVAR_MUST_USE;

#define INVAR_CHECKPOINT_HASHES_SIZE                                                               \
    (INVAR_CHECKPOINT_FILES * (INVAR_CHECKPOINT_FILE_SIZE + INVAR_DIGEST_HEX_SIZE + 4))

/* Formats hashes.xxh, one line per file; returns its size in bytes. */
size_t invar_checkpoint_files_text(char out[INVAR_CHECKPOINT_HASHES_SIZE],
                                   const invar_checkpoint_files *files);

/* Parses hashes.xxh; accepts the output of invar_checkpoint_files_text only. */
invar_status invar_checkpoint_files_parse(invar_checkpoint_files *out, const char *where,
                                          const char *text, size_t bytes) INVAR_MUST_USE;

const invar_checkpoint_file *invar_checkpoint_files_find(const invar_checkpoint_files *files,
                                                         const char *name);

/* ---- folders --------------------------------------------------------------------------------- */

/* Path of a step: SAVE/iter_0000005SUFFIX. */
invar_status invar_checkpoint_folder(char out[INVAR_PATH_SIZE], const char *save, int64_t step,
                                     const char *suffix) INVAR_MUST_USE;

/*
 * Sets or removes the mark of a checkpoint that was saved by time; durable. Call before the
 * checkpoint gets its name: a mark without a checkpoint is removed by the next writer.
 */
invar_status invar_checkpoint_mark(const char *save, int64_t step, bool by_time) INVAR_MUST_USE;
bool invar_checkpoint_is_marked(const char *save, int64_t step);

/*
 * Removes checkpoints up to `step`: all except the newest `keep` (0 for all), and of those saved by
 * time all except the newest `by_time`. The checkpoint of `step` itself stays.
 */
invar_status invar_checkpoint_prune(const char *save, int64_t step, int64_t keep,
                                    int64_t by_time) INVAR_MUST_USE;

invar_status invar_checkpoint_latest_write(const char *save, int64_t step) INVAR_MUST_USE;

#endif
