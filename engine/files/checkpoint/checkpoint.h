/*
 * checkpoint.h - all that a run needs to go on, in a folder that is whole or not there.
 *
 *     SAVE/owner                                the run that they belong to; locked while it writes
 *     SAVE/latest_checkpointed_iteration.txt    "5": the newest complete one
 *     SAVE/iter_0000005.by-time                 empty; step 5 was saved by time, and may be removed
 *     SAVE/iter_0000005/                        after step 5
 *         hashes.xxh            XXH3-128 of every other file, for `xxhsum -c`
 *         state.json            the numbers below; type, extents and tree hash of every tensor
 *         model.safetensors     a set of tensors; also model.exp_avg, model.exp_avg_sq, critic, ...
 *         config.json, ...      blobs, some in a folder of their own
 *
 * The hash of a checkpoint is the XXH3-128 of hashes.xxh. Writing: all files in iter_X.tmp, synced;
 * the ledger's intent; rename, sync; the ledger's completion; the file `latest`; removal of old
 * ones. Killed or failed at any moment, the state before or the state after is readable. What was
 * left behind goes with the next write.
 *
 * Reading trusts nothing: every file is hashed when it is opened, every tensor again when it is
 * copied. docs/formats.md describes the files.
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

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_CHECKPOINT_VERSION 1    /* of the format; no newer one is read */
#define INVAR_CHECKPOINT_WORD_SIZE 32 /* of format, numerics and cursor names, with the NUL */
#define INVAR_CHECKPOINT_CURSORS 16
#define INVAR_CHECKPOINT_PATTERN_SIZE 4096 /* of ranks or alphas of some layers, with the NUL */
#define INVAR_CHECKPOINT_TARGETS_SIZE 96   /* of names of layers with adapters, with the NUL */
#define INVAR_CHECKPOINT_NAME_BYTES 200    /* of a set, a tensor or a blob */

/* The optimizer of one model. */
typedef struct invar_checkpoint_optimizer {
    int64_t steps;     /* done: where the learning rate is on its schedule */
    float beta1_power; /* beta1 ^ steps, by repeated products; its bits are kept */
    float beta2_power;
} invar_checkpoint_optimizer;

typedef struct invar_checkpoint_cursor {
    char name[INVAR_CHECKPOINT_WORD_SIZE]; /* of the data set: "train" */
    invar_data_cursor position;
} invar_checkpoint_cursor;

/* What the set of adapters alone does not say: how they were trained, and on which weights. */
typedef struct invar_checkpoint_adapters {
    int64_t rank; /* 0: there are none, or an earlier version wrote them */
    float alpha;
    bool rslora;
    char targets[INVAR_CHECKPOINT_TARGETS_SIZE]; /* "q_proj,v_proj" */
    char ranks[INVAR_CHECKPOINT_PATTERN_SIZE];   /* where the rank is another; "": nowhere */
    char alphas[INVAR_CHECKPOINT_PATTERN_SIZE];
    invar_digest base; /* of the frozen weights, in the state's format */
} invar_checkpoint_adapters;

/* Plain numbers; a zeroed struct with a step is valid. */
typedef struct invar_checkpoint_state {
    int64_t step;       /* the last one that it contains; from 0 */
    int64_t rollout;    /* the next one's number */
    int64_t weights;    /* version of the weights */
    int64_t samples;    /* index of the next sample of the run */
    int64_t groups;     /* number of the next group of the run */
    invar_digest chain; /* of the ledger at `step` */
    invar_digest identity;
    char uuid[INVAR_LEDGER_UUID_SIZE]; /* of the run; "": none */
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
 * One tensor of a set; a set is a file, SET.safetensors. The tensors of a set stand together. Of
 * a parameter: its master in "model", its moments in "model.exp_avg" and "model.exp_avg_sq".
 */
typedef struct invar_checkpoint_tensor {
    const char *set; /* [A-Za-z0-9._-] */
    const char *name;
    invar_tensor tensor;     /* f32, bf16, i32 or i64 */
    const invar_device *dev; /* whose memory it is in; NULL: the host's */
} invar_checkpoint_tensor;

/* Bytes under a file's name: "config.json", "buffer.bin". */
typedef struct invar_checkpoint_blob {
    const char *name; /* [A-Za-z0-9._-], not that of another file; or such a folder, '/', name */
    const void *data;
    size_t bytes;
} invar_checkpoint_blob;

/* True when a blob may have the name. */
bool invar_checkpoint_blob_name(const char *name);

/* ---- whose they are -------------------------------------------------------------------------- */

typedef struct invar_checkpoint_owner {
    char uuid[INVAR_LEDGER_UUID_SIZE]; /* "": of no run, as convert makes them */
    invar_digest identity;
} invar_checkpoint_owner;

/*
 * Reads the owner from the newest readable checkpoint of SAVE; *owned_out: SAVE has checkpoints.
 * The file SAVE/owner is not read.
 */
invar_status invar_checkpoint_owner_find(bool *owned_out, invar_checkpoint_owner *out,
                                         const char *save) INVAR_MUST_USE;

/*
 * The right of one process to write into a folder. Zeroed, it is none; release. It is found again
 * where the folder is moved.
 */
typedef struct invar_checkpoint_lock {
    invar_held_folder folder;
    bool locked;
    int fd;                       /* of the file `owner`, locked */
    bool has_owner_file;          /* which says who it is */
    bool owned;                   /* there is an owner */
    invar_checkpoint_owner owner; /* where there is one */
} invar_checkpoint_lock;

/*
 * Makes the folder where it is not there, locks it, and looks whose it is: what `owner` says, or,
 * of a folder without it, the newest checkpoint. INVAR_E_BUSY: another process writes there.
 */
invar_status invar_checkpoint_lock_acquire(invar_checkpoint_lock *claim,
                                           const char *save) INVAR_MUST_USE;

/* Writes the owner, where none is written yet; durable. */
invar_status invar_checkpoint_lock_write_owner(invar_checkpoint_lock *claim,
                                               const invar_checkpoint_owner *owner) INVAR_MUST_USE;

/*
 * Before each write: claim->folder.path leads to the folder that was claimed. INVAR_E_STATE: it, or
 * its owner, was removed or replaced.
 */
invar_status invar_checkpoint_lock_refresh_path(invar_checkpoint_lock *claim) INVAR_MUST_USE;
void invar_checkpoint_lock_release(invar_checkpoint_lock *claim);

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct invar_checkpoint_content {
    const invar_checkpoint_state *state;
    const invar_checkpoint_tensor *tensors; /* (n_tensors) */
    int64_t n_tensors;
    const invar_checkpoint_blob *blobs; /* (n_blobs) */
    int64_t n_blobs;
    /*
     * NULL: all tensors are there. Else it brings the values of tensor `number`, each once and in
     * their order, and they have no data; *out stays until the next one.
     */
    invar_status (*fetch)(const void **out, void *payload, int64_t number);
    void *payload;
} invar_checkpoint_content;

/*
 * Number of checkpoints saved by time that stay while a run goes on: the newest ones. `keep`
 * neither counts nor removes them. A checkpoint of the same step that was not saved by time stays
 * one of the others.
 */
#define INVAR_CHECKPOINT_KEPT_BY_TIME 2

typedef struct invar_checkpoint_options {
    invar_ledger *ledger; /* gets intent and completion; NULL: none */
    int64_t keep;         /* this one and older ones, that many together; 0: all */
    bool by_time;         /* saved by the clock: see INVAR_CHECKPOINT_KEPT_BY_TIME */
    bool ends;            /* nothing follows it in its run: no older one saved by time stays */
    invar_pool *pool;     /* for hashing; NULL: the calling thread */
    bool claimed;         /* SAVE is there; where it is not it was moved, and is not made again */
} invar_checkpoint_options;

/*
 * Writes SAVE/iter_STEP, makes it the latest, removes what `keep` leaves out. An earlier
 * checkpoint of the same step is replaced. A failure leaves the latest checkpoint as it was; the
 * call may be repeated. Old ones that cannot be removed are no failure: the next write tries again.
 * *hash_out may be NULL.
 */
invar_status invar_checkpoint_write(invar_digest *hash_out, const char *save,
                                    const invar_checkpoint_content *content,
                                    const invar_checkpoint_options *options) INVAR_MUST_USE;

/*
 * Bytes of all files of a checkpoint with this content, by the code that writes them. Neither the
 * tensors nor the blobs need data.
 */
invar_status invar_checkpoint_measure(int64_t *bytes_out,
                                      const invar_checkpoint_content *content) INVAR_MUST_USE;

/*
 * The same in two calls, with a thread of its own behind them, so that the caller goes on in
 * between. The first starts the thread, which copies the tensors away and writes the files; the
 * second waits for them and does what makes them a checkpoint: the ledger, the names, `latest`, the
 * removal of old ones. Without it nothing but iter_X.tmp has appeared, as if the writer had been
 * killed.
 */
typedef struct invar_checkpoint_writer invar_checkpoint_writer;

/* `dev` is the device that tensors of a device are in, and outlives it; NULL: there are none. */
invar_status invar_checkpoint_writer_new(invar_checkpoint_writer **out,
                                         const invar_device *dev) INVAR_MUST_USE;

/* Waits for the thread; a checkpoint without its second call is given up. NULL is allowed. */
void invar_checkpoint_writer_free(invar_checkpoint_writer *writer);

/*
 * Strings, the pool and the ledger stay borrowed until the second call. `save` is read by the two
 * calls alone: in between it may be changed to where the folder was moved to. What the tensors hold
 * is not changed before await_copy has returned; all else may be changed at once. Nothing is
 * fetched. INVAR_E_STATE: the one before has not been finished. The room for the copies is kept.
 */
invar_status invar_checkpoint_begin(invar_checkpoint_writer *writer, const char *save,
                                    const invar_checkpoint_content *content,
                                    const invar_checkpoint_options *options) INVAR_MUST_USE;

/*
 * Until the tensors of the one that was begun are copied, or have failed to be, which the second
 * call tells; where there is none, or they are already, it returns at once.
 */
void invar_checkpoint_await_copy(invar_checkpoint_writer *writer);
bool invar_checkpoint_copying(invar_checkpoint_writer *writer); /* it would wait */

/* Fails as invar_checkpoint_write would have. Where nothing was begun nothing happens. */
invar_status invar_checkpoint_finish(invar_digest *hash_out,
                                     invar_checkpoint_writer *writer) INVAR_MUST_USE;

/* The folder that the last one was written to, as far as it came; "": none was begun. */
const char *invar_checkpoint_writer_save(const invar_checkpoint_writer *writer);

/* One was begun, and to finish it would not wait for files. */
bool invar_checkpoint_ready(const invar_checkpoint_writer *writer);

/*
 * Removes what a writer that was killed left in SAVE; every write begins with it. Only for the one
 * who may write there.
 */
invar_status invar_checkpoint_remove_leftovers(const char *save) INVAR_MUST_USE;

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct invar_checkpoint invar_checkpoint;

#define INVAR_CHECKPOINT_LATEST (-1)

/* What its user can set, which a message then advises. */
enum { INVAR_CHECKPOINT_CKPT_STEP = 1, INVAR_CHECKPOINT_SKIP_DAMAGED = 2 };

typedef struct invar_checkpoint_open_options {
    int64_t step; /* INVAR_CHECKPOINT_LATEST, or that of a folder */
    /* Take the newest older one that is whole, when the chosen one is not. */
    bool skip_damaged;
    /* Told of each one that is stepped over; may be NULL. `why` is the error's message. */
    void (*skipped)(void *payload, int64_t step, const char *why);
    void *payload;
    unsigned settings; /* 0: the message says only what is wrong */
} invar_checkpoint_open_options;

/*
 * Verifies every file. INVAR_E_NOTFOUND: there is no checkpoint at all, or none of that step;
 * INVAR_E_CORRUPT: it is damaged, in the message what and where; INVAR_E_UNSUPPORTED: of a newer
 * version. A NULL choice is the latest, nothing skipped.
 */
invar_status invar_checkpoint_open(invar_checkpoint **out, const char *save,
                                   const invar_checkpoint_open_options *choice) INVAR_MUST_USE;

/*
 * The same for one that is named by its own folder, such as SAVE/iter_0000003 or a copy of it, of
 * which invar_checkpoint_is_folder is true.
 */
invar_status invar_checkpoint_open_folder(invar_checkpoint **out,
                                          const char *folder) INVAR_MUST_USE;

/* True when the folder is one checkpoint: its hashes lie there. */
bool invar_checkpoint_is_folder(const char *folder);

/* True when the folder is the checkpoint that has this hash; its other files are not looked at. */
bool invar_checkpoint_has_hash(const char *folder, const invar_digest *hash);

void invar_checkpoint_close(invar_checkpoint *checkpoint); /* NULL is allowed */

/* Borrowed until close. */
const invar_checkpoint_state *invar_checkpoint_state_of(const invar_checkpoint *checkpoint);
const char *invar_checkpoint_path(const invar_checkpoint *checkpoint);
void invar_checkpoint_hash(invar_digest *out, const invar_checkpoint *checkpoint);

/* True if there are no tensors: weights that never changed, of a run with debug-rollout-only. */
bool invar_checkpoint_is_bare(const invar_checkpoint *checkpoint);

/* False for the moments of a checkpoint without them. */
bool invar_checkpoint_has_set(const invar_checkpoint *checkpoint, const char *set);

/*
 * Copies; INVAR_E_STATE when type or extents are others, INVAR_E_NOTFOUND without it,
 * INVAR_E_CORRUPT when the file has changed since it was opened: `into` then holds rubbish.
 */
invar_status invar_checkpoint_load(invar_tensor *into, invar_checkpoint *checkpoint,
                                   const char *set, const char *name) INVAR_MUST_USE;

/* One that other ranks load: it counts as asked for, and is not read. INVAR_E_NOTFOUND without. */
invar_status invar_checkpoint_skip_tensor(invar_checkpoint *checkpoint, const char *set,
                                          const char *name) INVAR_MUST_USE;

/* After loading a set: INVAR_E_STATE names a tensor of it that nobody asked for. */
invar_status invar_checkpoint_check_all_loaded(const invar_checkpoint *checkpoint,
                                               const char *set) INVAR_MUST_USE;

/* A blob, with a NUL after it that is not counted; the caller owns *out (invar_free). */
invar_status invar_checkpoint_read_blob(char **out, size_t *bytes_out,
                                        const invar_checkpoint *checkpoint,
                                        const char *blob) INVAR_MUST_USE;

/*
 * After the ledger was resumed behind this checkpoint: where the process died between the rename
 * and the completion, the completion is written now. Without such an intent nothing happens.
 */
invar_status invar_checkpoint_finish_pending(const invar_checkpoint *checkpoint,
                                             invar_ledger *ledger) INVAR_MUST_USE;

/* The steps of SAVE's folders, ascending, whole or not; the caller owns *out (invar_free). */
invar_status invar_checkpoint_list(int64_t **out, int64_t *count_out,
                                   const char *save) INVAR_MUST_USE;

/* Counts the checkpoints of SAVE that were saved by time, and the others; 0 without a folder. */
invar_status invar_checkpoint_count(int64_t *by_time_out, int64_t *others_out,
                                    const char *save) INVAR_MUST_USE;

#define INVAR_CHECKPOINT_HINT_SIZE (INVAR_PATH_SHOWN_SIZE + 64)

/* What a message adds where FOLDER has no checkpoint: that it is a run's, which has them; or "". */
void invar_checkpoint_hint(char out[INVAR_CHECKPOINT_HINT_SIZE], const char *folder);

/* What SAVE/latest_checkpointed_iteration.txt says; INVAR_E_NOTFOUND without that file. */
invar_status invar_checkpoint_latest(int64_t *step_out, const char *save) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
