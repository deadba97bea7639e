/*
 * write_internal.h - three phases of writing a checkpoint: prepare, make files, publish. Private to
 * engine/files/checkpoint/.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_CHECKPOINT_WRITE_INTERNAL_H
#define INVAR_ENGINE_FILES_CHECKPOINT_WRITE_INTERNAL_H

#include "engine/files/checkpoint/format.h"
#include "engine/model/graph/host_staging.h"

/* State of one checkpoint during the three phases. */
typedef struct invar_checkpoint_write_state {
    /* own copy, because the caller's may change while a thread writes */
    char save[INVAR_PATH_SIZE];
    const invar_checkpoint_content *content;
    invar_checkpoint_options options;
    invar_checkpoint_index index;
    invar_checkpoint_files files;
    invar_host_window window;                /* window to tensors in device memory */
    char text[INVAR_CHECKPOINT_HASHES_SIZE]; /* text of hashes.xxh */
    char path[INVAR_PATH_SIZE];              /* iter_X */
    char partial[INVAR_PATH_SIZE];           /* iter_X.tmp */
    char old[INVAR_PATH_SIZE];               /* iter_X.old */
    invar_digest hash;
    int64_t bytes; /* bytes of all files */
} invar_checkpoint_write_state;

/* Releases the state. Call after prepare, also after a failure. */
void invar_checkpoint_write_state_release(invar_checkpoint_write_state *state);

/*
 * Checks and lists the content, and hashes tensors in device memory. `state` need not be
 * initialized.
 */
invar_status invar_checkpoint_prepare(invar_checkpoint_write_state *state, const char *save,
                                      const invar_checkpoint_content *content,
                                      const invar_checkpoint_options *options) INVAR_MUST_USE;

/*
 * Hashes tensors in host memory and writes iter_X.tmp. Any thread may call it if all tensors are in
 * host memory and there is no pool.
 */
invar_status invar_checkpoint_make_files(invar_checkpoint_write_state *state) INVAR_MUST_USE;

/*
 * Publishes the files: everything from the ledger's intent to the removal of old checkpoints.
 * `save` is the current path of the folder.
 */
invar_status invar_checkpoint_publish(invar_checkpoint_write_state *state,
                                      const char *save) INVAR_MUST_USE;

#endif
