/*
 * disk.h - computes the disk space that the checkpoints of a run need, before its first step.
 *
 * A checkpoint is measured by the code that writes it, on models that only have shapes. Samples in
 * flight (rollout-lag), the ledger, rollout files and exports are not counted: their bytes depend
 * on what will be sampled.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_RUN_DIR_DISK_H
#define INVAR_ENGINE_RUN_RUN_DIR_DISK_H

#include "base/file.h"
#include "engine/files/hf/aux_files.h"
#include "engine/run/context/run_context.h"
#include "engine/run/train_settings.h"

typedef struct invar_disk {
    char save[INVAR_PATH_SIZE]; /* checkpoint folder; empty with `save = none` */
    int64_t checkpoint;         /* bytes of one checkpoint, exact up to INVAR_DISK_SLACK */
    int64_t max_checkpoints;    /* largest number of checkpoints at one time, with the one
                                   being written */
    int64_t by_time;            /* part of `max_checkpoints` that save-interval-minutes may add */
    int64_t n_remaining;        /* checkpoints that the run is sure to add to those in `save` */
    int64_t n_required;         /* part of `n_remaining` that must fit at one time */
    int64_t keep;               /* keep-checkpoints; 0 to keep all */
    int64_t had;                /* checkpoints by time that `save` has already */
    int64_t free;               /* free bytes in the file system of `save`; -1 if unknown */
} invar_disk;

#define INVAR_DISK_SLACK 512 /* bytes; numbers in state.json vary in their digits */

/*
 * Input of invar_disk_plan. `session` has its spec and its device. `files` may be NULL. If `bare`,
 * checkpoints have no weights. If `fresh`, checkpoints that `save` already has are ignored.
 */
typedef struct invar_disk_inputs {
    const invar_run_context *session;
    const invar_train_settings *settings;
    const invar_hf_files *files;
    const char *save;
    bool bare, fresh;
} invar_disk_inputs;

/*
 * Measures a checkpoint and counts those that the run will write. *out is zeroed, and out->free -1,
 * if the run saves no checkpoints.
 */
invar_status invar_disk_plan(invar_disk *out, const invar_disk_inputs *inputs) INVAR_MUST_USE;

#define INVAR_DISK_PARTS 3 /* largest number of models in a checkpoint */

/* One model with its optimizer as three sets of tensors. */
typedef struct invar_checkpoint_part {
    const char *masters, *m, *v; /* names of the three sets; the last two may be NULL */
    invar_model *model;
    invar_optimizer *optimizer; /* NULL if there are no moments */
} invar_checkpoint_part;

/*
 * Writes the models that a checkpoint can contain to `out`, without optimizers, and returns their
 * number. The actor is the first, and a critic the second.
 */
int invar_disk_parts(invar_checkpoint_part out[INVAR_DISK_PARTS], const invar_model_set *models,
                     const invar_config *config);

/* Returns the bytes of `count` checkpoints; INT64_MAX if the product overflows. */
int64_t invar_disk_bytes(const invar_disk *disk, int64_t count);

/*
 * True if the free bytes are enough for `count` checkpoints: `n_required` or `n_remaining`. Without
 * keep-checkpoints `n_required` is at most 1, since a user may move checkpoints away while the run
 * continues.
 */
bool invar_disk_fits(const invar_disk *disk, int64_t count);

#define INVAR_DISK_TEXT_SIZE 700

/* Writes the free bytes and the bytes of `count` checkpoints as text for messages. */
void invar_disk_describe(char out[INVAR_DISK_TEXT_SIZE], const invar_disk *disk, int64_t count);

/* True if one more checkpoint by time leaves space for those that the run is sure to add. */
bool invar_disk_has_room(const invar_disk *disk);

/* Returns INVAR_E_IO, with advice, unless `n_required` checkpoints fit. */
invar_status invar_disk_check(const invar_disk *disk) INVAR_MUST_USE;

#endif
