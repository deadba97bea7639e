/*
 * phase_arena.h - one piece of a device's memory, in which those who work at different times lie at
 * the same addresses.
 *
 * A stage looks like the device that it was made from, with the same ops. What is taken from it
 * lies in its piece as long as that has room, else in the device's own memory. Several stages may
 * have one piece: sampling, scoring and learning, none of which needs what another left there.
 *
 *   invar_phase_arena_init(&stage, &dev, 0);             dry, its piece has no end and no memory:
 *     ... what will run, with the largest shapes ...   takes are counted, nothing is computed
 *     stage.top                                        bytes that it needs
 *     invar_phase_arena_bind(&stage, memory, bytes);        now it has memory; still dry
 *     ... the same again ...                           everything is in its place
 *     invar_phase_arena_activate(&stage);                        ops run
 *
 * Devices point to the stage, which stays where it is. One thread at a time takes and gives.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_MEMORY_PLAN_PHASE_ARENA_H
#define INVAR_ENGINE_RUN_MEMORY_PLAN_PHASE_ARENA_H

#include "kernels-deterministic/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_PHASE_ARENA_MAX_BLOCKS 1024
#define INVAR_PHASE_ARENA_MAX_APART 7

typedef struct invar_phase_arena_block {
    size_t offset, bytes;
} invar_phase_arena_block;

typedef struct invar_phase_arena {
    invar_backend backend; /* of the devices that this stage is */
    invar_device dev;      /* such a device */
    invar_device base_dev; /* whose ops and whose memory these are */
    char *base;
    size_t bytes;
    /* (count) that are taken, by address */
    invar_phase_arena_block blocks[INVAR_PHASE_ARENA_MAX_BLOCKS];
    int count;
    size_t overflow_bytes; /* bytes of these, */
    size_t peak_bytes;     /* and the most that were taken at a time since invar_phase_arena_mark */
    size_t high_water;     /* the largest end of a block so far */
    size_t host;           /* bytes of the host's memory that a dry stage was asked for */
} invar_phase_arena;

/*
 * Dry. `under` need not be open: nothing but its ops' needs of scratch is asked for. Stages with
 * other numbers, from 0 to INVAR_PHASE_ARENA_MAX_APART, have other addresses.
 */
void invar_phase_arena_init(invar_phase_arena *stage, const invar_device *under, int number);

/* A piece of `under`, which is open; nothing may be taken. */
void invar_phase_arena_bind(invar_phase_arena *stage, void *base, size_t bytes);

/* From now on ops run and copies are made. */
void invar_phase_arena_activate(invar_phase_arena *stage);

/* Counts `most` anew, from what is taken now. */
void invar_phase_arena_mark(invar_phase_arena *stage);

#ifdef __cplusplus
}
#endif
#endif
