/*
 * chain.h - products of matrices as independent chains.
 *
 * Every output element is one chain: an accumulator, then the dot-step over groups of operands in
 * ascending k. An element depends on its own row of A, its own row of B and its start value, on
 * nothing else; tiles, threads and packing are free.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_STEP_CHAIN_H
#define INVAR_KERNELS_STEP_CHAIN_H

#include "kernels-deterministic/device.h"
#include "kernels-deterministic/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How element (row, k) of an operand is found in its tensor of two indices. */
typedef enum invar_chain_layout {
    INVAR_CHAIN_ROWS,   /* tensor[row][k]: k runs along the last index */
    INVAR_CHAIN_COLUMNS /* tensor[k][row]: the tensor is used transposed */
} invar_chain_layout;

/*
 * A piece of an operand: `rows` rows from row0 on, `k` values from k0 on. tensor has rank 2 and any
 * float type; mxfp8 and int4 stand for their bf16 values, fp8 for e4m3 values with f32 scales.
 */
typedef struct invar_chain_operand {
    const invar_tensor *tensor;
    invar_chain_layout layout;
    int64_t row0;
    int64_t k0;
} invar_chain_operand;

/*
 * One tile: acc[i * ld + j] continues its chain over k values of row i of a and row j of b.
 *   - f32 operands: fmaf under every numerics.
 *   - bf16 (mxfp8, int4): the dot-step of the numerics; groups start at the given k0, the last one
 *     is padded with zeros. A chain that is continued by a second call must be cut at a multiple of
 *     INVAR_STEP_BF16.
 *   - fp8 with fp8: per 128 of k a partial chain from +0, then acc = fmaf(partial, sa * sb, acc);
 *     the last one may be of fewer. k0 begins a scale block of either operand.
 * m and n are at most INVAR_CHAIN_TILE_M and INVAR_CHAIN_TILE_N.
 */
typedef struct invar_chain_tile {
    invar_chain_operand a;
    invar_chain_operand b;
    int64_t m;
    int64_t n;
    int64_t k;
} invar_chain_tile;

#define INVAR_CHAIN_TILE_M 240
#define INVAR_CHAIN_TILE_N 256

/* Scratch of one thread, whatever the tile. */
#define INVAR_CHAIN_WORKSPACE ((size_t)1 << 21)

/* Runs on the calling thread. `workspace` is aligned to 64 bytes. */
void invar_chain_run(float *acc, int64_t ld, const invar_device *dev, const invar_chain_tile *tile,
                     void *workspace);

/* ---- whole products over the device's pool --------------------------------------------------- */

typedef struct invar_chain_range {
    int64_t row0;
    int64_t rows;
    int64_t col0;
    int64_t cols;
} invar_chain_range;

#define INVAR_CHAIN_TILE_FLOATS ((int64_t)INVAR_CHAIN_TILE_M * INVAR_CHAIN_TILE_N)

/*
 * The output (m, n) cut into tiles. `run` computes and stores one of them on a pool thread, with
 * `accumulators` tiles of f32 scratch, INVAR_CHAIN_TILE_FLOATS apart and undefined at first, and
 * with the workspace that invar_chain_run wants.
 */
typedef struct invar_chain_grid {
    int64_t m;
    int64_t n;
    int32_t accumulators;
    void (*run)(const void *payload, const invar_device *dev, const invar_chain_range *range,
                float *acc, void *workspace);
    const void *payload;
} invar_chain_grid;

size_t invar_chain_grid_workspace(const invar_device *dev, int32_t accumulators);

invar_status invar_chain_grid_run(const invar_device *dev, const invar_chain_grid *grid,
                                  void *workspace) INVAR_MUST_USE;

/*
 * The chains of shards, folded by the tree as they come: shard s is computed in the tile that
 * invar_chain_shard names, and invar_chain_fold adds the subtrees of `count` values that it
 * completes. Behind the last shard the sum is in the first tile.
 */
int32_t invar_chain_tiles(int32_t shards); /* accumulators that this needs */
float *invar_chain_shard(float *acc, int32_t shard);
void invar_chain_fold(float *acc, int32_t shard, int64_t count);

/* The end of a chain: -0 becomes +0. */
void invar_chain_finish(float *acc, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
