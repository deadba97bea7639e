/*
 * write_internal.h - one checkpoint in the making, in the three parts that its writers are made of.
 * Inside checkpoint/ only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_CHECKPOINT_WRITE_INTERNAL_H
#define INVAR_ENGINE_FILES_CHECKPOINT_WRITE_INTERNAL_H

#include "engine/files/checkpoint/format.h"
#include "engine/model/graph/host_staging.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_checkpoint_write_state {
    char save[INVAR_PATH_SIZE]; /* its own: the caller's may change while a thread writes */
    const invar_checkpoint_content *content;
    invar_checkpoint_options options;
    invar_checkpoint_index index;
    invar_checkpoint_files files;
    invar_host_window window;                /* into the memory of far tensors */
    char text[INVAR_CHECKPOINT_HASHES_SIZE]; /* of hashes.xxh */
    char path[INVAR_PATH_SIZE];              /* iter_X */
    char partial[INVAR_PATH_SIZE];           /* iter_X.tmp */
    char old[INVAR_PATH_SIZE];               /* iter_X.old */
    invar_digest hash;
    int64_t bytes;
} invar_checkpoint_write_state;

/* After prepare, whatever came of it. */
void invar_checkpoint_write_state_release(invar_checkpoint_write_state *making);

/* Checks and lists; hashes what is far. `making` is uninitialised. */
invar_status invar_checkpoint_prepare(invar_checkpoint_write_state *making, const char *save,
                                      const invar_checkpoint_content *content,
                                      const invar_checkpoint_options *options) INVAR_MUST_USE;

/*
 * Hashes what is near, writes iter_X.tmp. Where nothing of `content` is far and there is no pool,
 * any thread may do it.
 */
invar_status invar_checkpoint_make_files(invar_checkpoint_write_state *making) INVAR_MUST_USE;

/* From the ledger's intent to the removal of old ones; `save` is where its folder is by now. */
invar_status invar_checkpoint_publish(invar_checkpoint_write_state *making,
                                      const char *save) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
