/*
 * format.h - the two texts of a checkpoint and the names of its files. Inside
 * checkpoint/ only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_CHECKPOINT_FORMAT_H
#define INVAR_ENGINE_FILES_CHECKPOINT_FORMAT_H

#include "base/file.h"
#include "base/json/json.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/files/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what state.json says -------------------------------------------------------------------- */

typedef struct invar_checkpoint_entry {
    const char *set;
    const char *name;
    invar_safetensors_type type;
    int32_t rank;
    int64_t shape[INVAR_MAX_RANK];
    invar_digest digest; /* tree hash, one shard */
    bool hashed;         /* writing: the digest has been made */
    bool loaded;         /* reading: somebody loaded it */
} invar_checkpoint_entry;

typedef struct invar_checkpoint_set {
    const char *name;
    int64_t first, count; /* its entries */
} invar_checkpoint_set;

#define INVAR_CHECKPOINT_SETS 64
#define INVAR_CHECKPOINT_BLOBS 64

/* Texts are borrowed: from `json` after reading, from the content before writing. */
typedef struct invar_checkpoint_index {
    invar_checkpoint_state state;
    invar_checkpoint_entry *entries; /* (n_entries) */
    int64_t n_entries;
    invar_checkpoint_set sets[INVAR_CHECKPOINT_SETS];
    int64_t n_sets;
    const char *blobs[INVAR_CHECKPOINT_BLOBS];
    int64_t n_blobs;
    json_t *json;
} invar_checkpoint_index;

void invar_checkpoint_index_release(invar_checkpoint_index *index);

/* Refuses what no state.json can say, by name, and finds the sets. `where` is for messages. */
invar_status invar_checkpoint_index_check(invar_checkpoint_index *index,
                                          const char *where) INVAR_MUST_USE;

/* The caller owns *out (invar_free). */
invar_status invar_checkpoint_index_text(char **out, size_t *bytes_out,
                                         const invar_checkpoint_index *index) INVAR_MUST_USE;

/* Parses and checks; INVAR_E_CORRUPT, or INVAR_E_UNSUPPORTED for a newer version. */
invar_status invar_checkpoint_index_parse(invar_checkpoint_index *out, const char *where,
                                          const char *text, size_t bytes) INVAR_MUST_USE;

/* The type in a file; INVAR_E_UNSUPPORTED for the quantized ones. */
invar_status invar_checkpoint_type(invar_safetensors_type *out, const char *name,
                                   invar_dtype dtype) INVAR_MUST_USE;

/* ---- what hashes.xxh says -------------------------------------------------------------------- */

#define INVAR_CHECKPOINT_HASHES "hashes.xxh"
#define INVAR_CHECKPOINT_STATE "state.json"
#define INVAR_CHECKPOINT_FILE_SIZE (INVAR_CHECKPOINT_NAME_BYTES + 16)
#define INVAR_CHECKPOINT_FILES (INVAR_CHECKPOINT_SETS + INVAR_CHECKPOINT_BLOBS + 1)

typedef struct invar_checkpoint_file {
    char name[INVAR_CHECKPOINT_FILE_SIZE];
    invar_digest hash;
} invar_checkpoint_file;

typedef struct invar_checkpoint_files {
    invar_checkpoint_file files[INVAR_CHECKPOINT_FILES]; /* (count) in the order of names */
    int64_t count;
} invar_checkpoint_files;

/* The files that the index needs, without their hashes. INVAR_E_INVALID: a name comes twice. */
invar_status invar_checkpoint_files_list(invar_checkpoint_files *out,
                                         const invar_checkpoint_index *index) INVAR_MUST_USE;

#define INVAR_CHECKPOINT_HASHES_SIZE                                                               \
    (INVAR_CHECKPOINT_FILES * (INVAR_CHECKPOINT_FILE_SIZE + INVAR_DIGEST_HEX_SIZE + 4))

/* Yields the bytes of the text, one line a file. */
size_t invar_checkpoint_files_text(char out[INVAR_CHECKPOINT_HASHES_SIZE],
                                   const invar_checkpoint_files *files);

/* Accepts what the function above writes and nothing else. */
invar_status invar_checkpoint_files_parse(invar_checkpoint_files *out, const char *where,
                                          const char *text, size_t bytes) INVAR_MUST_USE;

const invar_checkpoint_file *invar_checkpoint_files_find(const invar_checkpoint_files *files,
                                                         const char *name);

/* ---- folders --------------------------------------------------------------------------------- */

/* SAVE/iter_0000005SUFFIX */
invar_status invar_checkpoint_folder(char out[INVAR_PATH_SIZE], const char *save, int64_t step,
                                     const char *suffix) INVAR_MUST_USE;

/*
 * Marks the checkpoint of a step as one saved by time, or as none; durable. Called before the
 * checkpoint gets its name: a mark without a checkpoint is removed by the next writer.
 */
invar_status invar_checkpoint_mark(const char *save, int64_t step, bool by_time) INVAR_MUST_USE;
bool invar_checkpoint_is_marked(const char *save, int64_t step);

/*
 * Removes checkpoints up to `step`: all but the newest `keep` (0 for all), and all by time but the
 * newest `by_time` of these. The checkpoint of `step` itself stays.
 */
invar_status invar_checkpoint_prune(const char *save, int64_t step, int64_t keep,
                                    int64_t by_time) INVAR_MUST_USE;

invar_status invar_checkpoint_latest_write(const char *save, int64_t step) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
