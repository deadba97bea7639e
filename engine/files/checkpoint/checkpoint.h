/*
 * checkpoint.h - checkpoints: the state that a run needs to continue, in a folder, written
 * atomically.
 *
 *     SAVE/owner                                run that owns the folder; locked by its writer
 *     SAVE/latest_checkpointed_iteration.txt    "5": the newest complete checkpoint
 *     SAVE/iter_0000005.by-time                 empty; step 5 was saved by time, and may be removed
 *     SAVE/iter_0000005/                        state after step 5
 *         hashes.xxh            XXH3-128 of every other file, for `xxhsum -c`
 *         state.json            the numbers below; type, extents and tree hash of every tensor
 *         model.safetensors     a set of tensors; also model.exp_avg, model.exp_avg_sq, critic, ...
 *         config.json, ...      blobs, some in a folder of their own
 *
 * The hash of a checkpoint is the XXH3-128 of hashes.xxh. Order of a write: all files in
 * iter_X.tmp, synced; the ledger's intent; rename and sync; the ledger's completion; `latest`;
 * removal of old ones. If the process is killed or fails at any moment, either the previous or the
 * new state is readable. Leftovers are removed by the next write.
 *
 * The reader trusts nothing: every file is hashed when a checkpoint is opened, every tensor again
 * when it is loaded. docs/formats.md describes the files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_CHECKPOINT_CHECKPOINT_H
#define INVAR_ENGINE_FILES_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/status.h"
#include "engine/files/data/dataset.h"
#include "kernels-deterministic/device.h"
#include "kernels-deterministic/tensor.h"
#include "ledger/ledger.h"

#define INVAR_CHECKPOINT_VERSION 1    /* version of the format; newer ones are rejected */
#define INVAR_CHECKPOINT_WORD_SIZE 32 /* size of format, numerics and cursor names, with the NUL */
#define INVAR_CHECKPOINT_CURSORS 16
#define INVAR_CHECKPOINT_PATTERN_SIZE 4096 /* size of ranks or alphas per layer, with the NUL */
#define INVAR_CHECKPOINT_TARGETS_SIZE 96   /* size of the names of adapted layers, with the NUL */
#define INVAR_CHECKPOINT_NAME_BYTES 200    /* longest name of a set, a tensor or a blob */

/* State of the optimizer of one model, besides the moments. */
typedef struct invar_checkpoint_optimizer {
    int64_t steps;     /* number of steps done; position on the learning-rate schedule */
    float beta1_power; /* beta1 ^ steps, by repeated multiplication; stored bit by bit */
    float beta2_power;
} invar_checkpoint_optimizer;

typedef struct invar_checkpoint_cursor {
    char name[INVAR_CHECKPOINT_WORD_SIZE]; /* name of the data set: "train" */
    invar_data_cursor position;
} invar_checkpoint_cursor;

/* Facts that the set of adapters does not contain: how they were trained, and on which weights. */
typedef struct invar_checkpoint_adapters {
    int64_t rank; /* 0 if there are no adapters, or if an earlier version wrote the checkpoint */
    float alpha;
    bool rslora;
    char targets[INVAR_CHECKPOINT_TARGETS_SIZE]; /* "q_proj,v_proj" */
    char ranks[INVAR_CHECKPOINT_PATTERN_SIZE]; /* layers with other ranks; empty if all are equal */
    char alphas[INVAR_CHECKPOINT_PATTERN_SIZE];
    invar_digest base; /* digest of the frozen weights, in the format of the state */
} invar_checkpoint_adapters;

/* State of a run without its tensors. Zeroed except for a step is valid. */
typedef struct invar_checkpoint_state {
    int64_t step;       /* last step contained, from 0 */
    int64_t rollout;    /* index of the next rollout */
    int64_t weights;    /* version of the weights */
    int64_t samples;    /* index of the next sample of the run */
    int64_t groups;     /* index of the next group of the run */
    invar_digest chain; /* chain of the ledger at `step` */
    invar_digest identity;
    char uuid[INVAR_LEDGER_UUID_SIZE]; /* uuid of the run; empty if there is no run */
    char name[INVAR_LEDGER_NAME_BYTES + 1];
    char format[INVAR_CHECKPOINT_WORD_SIZE];   /* "bf16" */
    char numerics[INVAR_CHECKPOINT_WORD_SIZE]; /* "ieee" */
    invar_checkpoint_optimizer actor;
    invar_checkpoint_optimizer critic;
    invar_checkpoint_adapters adapters;
    invar_checkpoint_cursor cursors[INVAR_CHECKPOINT_CURSORS];
    int64_t n_cursors;
} invar_checkpoint_state;

/*
 * One tensor of a set; a set is a file, SET.safetensors. The tensors of a set must be adjacent. For
 * a parameter: its master is in "model", its moments in "model.exp_avg" and "model.exp_avg_sq".
 */
typedef struct invar_checkpoint_tensor {
    const char *set; /* [A-Za-z0-9._-] */
    const char *name;
    invar_tensor tensor;     /* f32, bf16, i32 or i64 */
    const invar_device *dev; /* device whose memory it is in; NULL for host memory */
} invar_checkpoint_tensor;

/* A file with arbitrary bytes: "config.json", "buffer.bin". */
typedef struct invar_checkpoint_blob {
    const char *name; /* NAME or FOLDER/NAME of [A-Za-z0-9._-], not that of another file */
    const void *data;
    size_t bytes;
} invar_checkpoint_blob;

/* Returns true if a blob may have this name. */
bool invar_checkpoint_blob_name(const char *name);

/* ---- owner and lock -------------------------------------------------------------------------- */

typedef struct invar_checkpoint_owner {
    char uuid[INVAR_LEDGER_UUID_SIZE]; /* empty for a checkpoint of no run, as made by convert */
    invar_digest identity;
} invar_checkpoint_owner;

/*
 * Reads the owner from the newest readable checkpoint of SAVE; *out is unchanged if none is
 * readable. *owned_out is true if SAVE has checkpoints. Does not read the file SAVE/owner.
 */
invar_status invar_checkpoint_owner_find(bool *owned_out, invar_checkpoint_owner *out,
                                         const char *save) INVAR_MUST_USE;

/*
 * Exclusive lock of one process on a folder of checkpoints. Zeroed means not locked; release with
 * invar_checkpoint_lock_release. The folder is found again if it is moved. On a file system without
 * locks only the owner protects the folder.
 */
typedef struct invar_checkpoint_lock {
    invar_held_folder folder;
    bool locked;
    int fd;                       /* file `owner`, locked */
    bool has_owner_file;          /* the file `owner` names a run */
    bool owned;                   /* the folder has an owner */
    invar_checkpoint_owner owner; /* valid if `owned` */
} invar_checkpoint_lock;

/*
 * Creates the folder if necessary, locks it, and reads its owner from the file `owner` or, if that
 * is empty, from the newest checkpoint. Returns INVAR_E_BUSY if another process holds the lock.
 */
invar_status invar_checkpoint_lock_acquire(invar_checkpoint_lock *lock,
                                           const char *save) INVAR_MUST_USE;

/* Writes the owner file, unless it exists already; durable. */
invar_status invar_checkpoint_lock_write_owner(invar_checkpoint_lock *lock,
                                               const invar_checkpoint_owner *owner) INVAR_MUST_USE;

/*
 * Call before each write. Updates lock->folder.path if the folder was moved. Returns INVAR_E_STATE
 * if the folder or its owner file was removed or replaced.
 */
invar_status invar_checkpoint_lock_refresh_path(invar_checkpoint_lock *lock) INVAR_MUST_USE;
void invar_checkpoint_lock_release(invar_checkpoint_lock *lock);

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct invar_checkpoint_content {
    const invar_checkpoint_state *state;
    const invar_checkpoint_tensor *tensors; /* (n_tensors) grouped by set */
    int64_t n_tensors;
    const invar_checkpoint_blob *blobs; /* (n_blobs) files besides the sets */
    int64_t n_blobs;
    /*
     * NULL if all tensors have data. Otherwise the tensors have no data, and the callback returns
     * the values of tensor `number`, once each and in order; *out stays valid until the next call.
     */
    invar_status (*fetch)(const void **out, void *payload, int64_t number);
    void *payload;
} invar_checkpoint_content;

/*
 * Number of checkpoints saved by time (the newest ones) that are kept while a run continues. `keep`
 * neither counts nor removes them. A checkpoint of the same step that was not saved by time stays
 * one of the others.
 */
#define INVAR_CHECKPOINT_KEPT_BY_TIME 2

typedef struct invar_checkpoint_options {
    invar_ledger *ledger; /* records intent and completion; NULL if there is no ledger */
    int64_t keep;         /* number of checkpoints to keep, this one included; 0 for all */
    bool by_time;         /* saved by the clock: see INVAR_CHECKPOINT_KEPT_BY_TIME */
    bool is_last; /* last checkpoint of its run: remove all older ones that were saved by time */
    invar_pool *pool; /* threads for hashing; NULL for the calling thread only */
    bool save_exists; /* SAVE exists and is locked; if it was moved meanwhile, do not create it
                        again */
} invar_checkpoint_options;

/*
 * Writes SAVE/iter_STEP, makes it the latest, and removes old checkpoints. A checkpoint of the same
 * step is replaced. After a failure the latest checkpoint is unchanged, and the call may be
 * repeated. Old checkpoints that cannot be removed are not a failure: the next write tries again.
 * `hash_out` may be NULL.
 */
invar_status invar_checkpoint_write(invar_digest *hash_out, const char *save,
                                    const invar_checkpoint_content *content,
                                    const invar_checkpoint_options *options) INVAR_MUST_USE;

/*
 * Computes the bytes of all files of a checkpoint with this content, with the code that writes
 * them. Tensors and blobs need no data.
 */
invar_status invar_checkpoint_measure(int64_t *bytes_out,
                                      const invar_checkpoint_content *content) INVAR_MUST_USE;

/*
 * Asynchronous writer: invar_checkpoint_write in two calls. invar_checkpoint_writer_begin starts a
 * thread, which copies the tensors and writes the files; invar_checkpoint_writer_finish waits for
 * it and publishes the checkpoint: ledger, rename, `latest`, removal of old ones. Without the
 * second call only iter_X.tmp exists, as if the writer had been killed.
 */
typedef struct invar_checkpoint_writer invar_checkpoint_writer;

/*
 * Creates a writer. `dev` is the device of all tensors in device memory, and must outlive the
 * writer; NULL if all tensors are in host memory.
 */
invar_status invar_checkpoint_writer_new(invar_checkpoint_writer **out,
                                         const invar_device *dev) INVAR_MUST_USE;

/*
 * Waits for the thread and frees the writer; NULL is ignored. A checkpoint that was not finished is
 * discarded.
 */
void invar_checkpoint_writer_free(invar_checkpoint_writer *writer);

/*
 * Begins a checkpoint. Strings, pool and ledger are borrowed until it is finished. `save` is read
 * by the two calls only: in between it may be changed to the path that the folder was moved to. The
 * values of the tensors must not change until invar_checkpoint_writer_await_copy returns;
 * everything else may change at once. content->fetch is not called. Returns INVAR_E_STATE if the
 * previous checkpoint was not finished. The buffer for the copies is kept for the next one.
 */
invar_status invar_checkpoint_writer_begin(invar_checkpoint_writer *writer, const char *save,
                                           const invar_checkpoint_content *content,
                                           const invar_checkpoint_options *options) INVAR_MUST_USE;

/*
 * Waits until the tensors are copied, or the copy has failed, which invar_checkpoint_writer_finish
 * reports. Returns at once if no copy is in progress.
 */
void invar_checkpoint_writer_await_copy(invar_checkpoint_writer *writer);

/* Returns true if a copy is in progress: invar_checkpoint_writer_await_copy would wait. */
bool invar_checkpoint_writer_copying(invar_checkpoint_writer *writer);

/*
 * Finishes the checkpoint that was begun; fails like invar_checkpoint_write. Does nothing if there
 * is no such checkpoint.
 */
invar_status invar_checkpoint_writer_finish(invar_digest *hash_out,
                                            invar_checkpoint_writer *writer) INVAR_MUST_USE;

/*
 * Path SAVE that the last checkpoint was begun in, or was published in; empty if none was begun.
 */
const char *invar_checkpoint_writer_save(const invar_checkpoint_writer *writer);

/* Returns true if a checkpoint was begun and its files are written or have failed. */
bool invar_checkpoint_writer_ready(const invar_checkpoint_writer *writer);

/*
 * Removes leftovers of a killed writer in SAVE; every write begins with this. The caller holds the
 * lock.
 */
invar_status invar_checkpoint_remove_leftovers(const char *save) INVAR_MUST_USE;

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct invar_checkpoint invar_checkpoint;

#define INVAR_CHECKPOINT_LATEST (-1)

/* Recipe keys that an error message may recommend; a mask. */
enum { INVAR_CHECKPOINT_CKPT_STEP = 1, INVAR_CHECKPOINT_SKIP_DAMAGED = 2 };

typedef struct invar_checkpoint_open_options {
    int64_t step; /* INVAR_CHECKPOINT_LATEST or a step */
    /* open the newest older checkpoint that is complete if the chosen one is damaged or missing */
    bool skip_damaged;
    /*
     * Called for each skipped checkpoint; may be NULL. `step` is INVAR_CHECKPOINT_LATEST if the
     * number of the latest one is unreadable; `why` is the error message.
     */
    void (*skipped)(void *payload, int64_t step, const char *why);
    void *payload;
    unsigned settings; /* mask of the keys to recommend; 0 for none */
} invar_checkpoint_open_options;

/*
 * Opens a checkpoint and verifies every file. Returns INVAR_E_NOTFOUND if there is no checkpoint,
 * or not the chosen one, INVAR_E_CORRUPT if it is damaged (the message names file and tensor) or if
 * the one that `latest` names is missing, and INVAR_E_UNSUPPORTED if its version is newer.
 * `options` may be NULL for the latest checkpoint without skipping.
 */
invar_status invar_checkpoint_open(invar_checkpoint **out, const char *save,
                                   const invar_checkpoint_open_options *options) INVAR_MUST_USE;

/*
 * Like invar_checkpoint_open, for a checkpoint given by its own folder, such as SAVE/iter_0000003
 * or a copy of it (invar_checkpoint_is_folder).
 */
invar_status invar_checkpoint_open_folder(invar_checkpoint **out,
                                          const char *folder) INVAR_MUST_USE;

/* Returns true if the folder is one checkpoint: it has hashes.xxh. */
bool invar_checkpoint_is_folder(const char *folder);

/* Returns true if the folder is the checkpoint with this hash; reads hashes.xxh only. */
bool invar_checkpoint_has_hash(const char *folder, const invar_digest *hash);

void invar_checkpoint_close(invar_checkpoint *checkpoint); /* NULL is ignored */

/* Getters; the results are borrowed until the checkpoint is closed. */
const invar_checkpoint_state *invar_checkpoint_state_of(const invar_checkpoint *checkpoint);
const char *invar_checkpoint_path(const invar_checkpoint *checkpoint);
void invar_checkpoint_hash(invar_digest *out, const invar_checkpoint *checkpoint);

/* Returns true if there are no tensors: the weights never changed, as with debug-rollout-only. */
bool invar_checkpoint_is_bare(const invar_checkpoint *checkpoint);

/* Returns true if the checkpoint has this set; the sets of moments are optional. */
bool invar_checkpoint_has_set(const invar_checkpoint *checkpoint, const char *set);

/*
 * Loads a tensor to host memory and verifies its digest. Returns INVAR_E_STATE if type or extents
 * differ, INVAR_E_NOTFOUND if it does not exist, and INVAR_E_CORRUPT if the file has changed since
 * it was opened: the content of `into` is then undefined.
 */
invar_status invar_checkpoint_load(invar_tensor *into, invar_checkpoint *checkpoint,
                                   const char *set, const char *name) INVAR_MUST_USE;

/*
 * Marks a tensor as loaded without reading it, because other ranks load it. Returns
 * INVAR_E_NOTFOUND if it does not exist.
 */
invar_status invar_checkpoint_skip_tensor(invar_checkpoint *checkpoint, const char *set,
                                          const char *name) INVAR_MUST_USE;

/* Returns INVAR_E_STATE, naming a tensor, if one of the set was neither loaded nor skipped. */
invar_status invar_checkpoint_check_all_loaded(const invar_checkpoint *checkpoint,
                                               const char *set) INVAR_MUST_USE;

/*
 * Reads a blob; *out has an additional NUL that is not counted. The caller frees *out with
 * invar_free.
 */
invar_status invar_checkpoint_read_blob(char **out, size_t *bytes_out,
                                        const invar_checkpoint *checkpoint,
                                        const char *blob) INVAR_MUST_USE;

/*
 * Writes the completion to the ledger if the process died between rename and completion; otherwise
 * does nothing. Call after the ledger was resumed from this checkpoint.
 */
invar_status invar_checkpoint_finish_pending(const invar_checkpoint *checkpoint,
                                             invar_ledger *ledger) INVAR_MUST_USE;

/*
 * Lists the steps of SAVE's checkpoint folders, ascending, damaged ones included. The caller frees
 * *out with invar_free.
 */
invar_status invar_checkpoint_list(int64_t **out, int64_t *count_out,
                                   const char *save) INVAR_MUST_USE;

/*
 * Counts the checkpoints of SAVE that were saved by time, and the others; both 0 if the folder does
 * not exist.
 */
invar_status invar_checkpoint_count(int64_t *by_time_out, int64_t *others_out,
                                    const char *save) INVAR_MUST_USE;

#define INVAR_CHECKPOINT_HINT_SIZE (INVAR_PATH_SHOWN_SIZE + 64)

/*
 * Writes the end of a message about a FOLDER without checkpoints: that it is the folder of a run,
 * which has them below; empty if it is not.
 */
void invar_checkpoint_hint(char out[INVAR_CHECKPOINT_HINT_SIZE], const char *folder);

/*
 * Reads SAVE/latest_checkpointed_iteration.txt. Returns INVAR_E_NOTFOUND if the file does not
 * exist.
 */
invar_status invar_checkpoint_latest(int64_t *step_out, const char *save) INVAR_MUST_USE;

#endif
