/*
 * phase_arena.h - a device whose allocations in different phases have the same addresses.
 *
 * An arena is a device with the ops of its base device. Its allocations lie in one block while that
 * has space, else in memory of the base device. Several arenas may share a block if their phases
 * take turns: sampling, scoring and learning, none of which needs what another has left there.
 *
 *     invar_phase_arena_init(&arena, &dev, 0);         counting: the block is unlimited and unreal
 *       ... what will run, with the largest shapes     allocations are counted, nothing is computed
 *     arena.high_water                                 bytes that it needs
 *     invar_phase_arena_bind(&arena, memory, bytes);   real memory; ops are still not executed
 *       ... the same again                             every allocation gets its address
 *     invar_phase_arena_activate(&arena);              ops are executed
 *
 * Devices point to the arena, so it must not be moved. Not thread-safe: one thread at a time may
 * allocate and free.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_MEMORY_PLAN_PHASE_ARENA_H
#define INVAR_ENGINE_RUN_MEMORY_PLAN_PHASE_ARENA_H

#include "kernels-deterministic/device.h"

#define INVAR_PHASE_ARENA_MAX_BLOCKS 1024
#define INVAR_PHASE_ARENA_MAX_APART 7

typedef struct invar_phase_arena_block {
    size_t offset, bytes;
} invar_phase_arena_block;

typedef struct invar_phase_arena {
    invar_backend backend; /* backend of all devices of this arena */
    invar_device dev;      /* a device of this arena */
    invar_device base_dev; /* real device below the arena */
    char *base;            /* address of the block; of no memory while the arena counts */
    size_t bytes;          /* bytes of the block */
    /* (count) allocations, by address */
    invar_phase_arena_block blocks[INVAR_PHASE_ARENA_MAX_BLOCKS];
    int count;
    size_t allocated_bytes; /* bytes of these allocations */
    size_t peak_bytes;      /* largest allocated_bytes since invar_phase_arena_mark */
    size_t high_water;      /* largest end offset of an allocation so far */
    size_t host;            /* bytes of host memory that were requested while counting */
} invar_phase_arena;

/*
 * Makes a counting arena. `under` need not be open: only its ops are asked for their scratch.
 * Arenas with different numbers, from 0 to INVAR_PHASE_ARENA_MAX_APART, have different addresses.
 */
void invar_phase_arena_init(invar_phase_arena *arena, const invar_device *under, int number);

/* Binds the arena to memory of the base device, which must be open. The arena must be empty. */
void invar_phase_arena_bind(invar_phase_arena *arena, void *base, size_t bytes);

/* Ends the dry run: ops and copies are executed from now on. */
void invar_phase_arena_activate(invar_phase_arena *arena);

/* Restarts peak_bytes at the bytes that are allocated now. */
void invar_phase_arena_mark(invar_phase_arena *arena);

#endif
