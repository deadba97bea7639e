/*
 * stage.h - one piece of a device's memory, in which those who work at different times lie at the
 * same addresses.
 *
 * A stage looks like the device that it was made from, with the same ops. What is taken from it
 * lies in its piece as long as that has room, else in the device's own memory. Several stages may
 * have one piece: sampling, scoring and learning, none of which needs what another left there.
 *
 *     invar_stage_init(&stage, &dev, 0);               dry, its piece has no end and no memory:
 *     ... what will run, with the largest shapes ...   takes are counted, nothing is computed
 *     stage.top                                        bytes that it needs
 *     invar_stage_place(&stage, memory, bytes);        now it has memory; still dry
 *     ... the same again ...                           everything is in its place
 *     invar_stage_open(&stage);                        ops run
 *
 * Devices point to the stage, which stays where it is. One thread at a time takes and gives.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_BUDGET_STAGE_H
#define INVAR_ENGINE_BUDGET_STAGE_H

#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_STAGE_MOST_BLOCKS 1024
#define INVAR_STAGE_MOST_APART 7

typedef struct invar_stage_block {
    size_t at, bytes;
} invar_stage_block;

typedef struct invar_stage {
    invar_backend backend; /* of the devices that this stage is */
    invar_device dev;      /* such a device */
    invar_device under;    /* whose ops and whose memory these are */
    char *base;
    size_t bytes;
    invar_stage_block blocks[INVAR_STAGE_MOST_BLOCKS]; /* (count) that are taken, by address */
    int count;
    size_t taken; /* bytes of these, */
    size_t most;  /* and the most that were taken at a time since invar_stage_mark */
    size_t top;   /* the largest end of a block so far */
    size_t host;  /* bytes of the host's memory that a dry stage was asked for */
} invar_stage;

/*
 * Dry. `under` need not be open: nothing but its ops' needs of scratch is asked for. Stages with
 * other numbers, from 0 to INVAR_STAGE_MOST_APART, have other addresses.
 */
void invar_stage_init(invar_stage *stage, const invar_device *under, int number);

/* A piece of `under`, which is open; nothing may be taken. */
void invar_stage_place(invar_stage *stage, void *base, size_t bytes);

/* From now on ops run and copies are made. */
void invar_stage_open(invar_stage *stage);

/* Counts `most` anew, from what is taken now. */
void invar_stage_mark(invar_stage *stage);

#ifdef __cplusplus
}
#endif
#endif
