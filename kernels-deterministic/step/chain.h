/*
 * chain.h - matrix products as independent chains.
 *
 * Every output element is one chain: an accumulator, then the dot-step over groups of operands in
 * ascending k. An element depends only on its row of A, its row of B and its start value; tiles,
 * threads and packing are free and never change a bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_STEP_CHAIN_H
#define INVAR_KERNELS_STEP_CHAIN_H

#include "kernels-deterministic/device.h"
#include "kernels-deterministic/tensor.h"

/* Position of element (row, k) of an operand in its tensor of rank 2. */
typedef enum invar_chain_layout {
    INVAR_CHAIN_ROWS,   /* tensor[row][k]: k is the last index */
    INVAR_CHAIN_COLUMNS /* tensor[k][row]: the tensor is used transposed */
} invar_chain_layout;

/*
 * A range of an operand: the rows from row0 and the k values from k0. The tensor has rank 2 and any
 * float type; mxfp8 and int4 count as their bf16 values, fp8 as e4m3 values with f32 scales.
 */
typedef struct invar_chain_operand {
    const invar_tensor *tensor;
    invar_chain_layout layout;
    int64_t row0;
    int64_t k0;
} invar_chain_operand;

/*
 * One tile: acc[i * ld + j] continues its chain over k values of row i of a and row j of b.
 *   - f32 operands: fmaf under all numerics.
 *   - bf16 (mxfp8, int4): the dot-step of the numerics. Groups start at the given k0, the last one
 *     is padded with zeros. A chain that a second call continues must be split at a multiple of
 *     INVAR_STEP_BF16.
 *   - fp8 with fp8: per 128 of k a partial chain from +0, then acc = fmaf(partial, sa * sb, acc);
 *     the last one may be shorter. k0 must be the start of a scale block of both operands.
 * m is at most INVAR_CHAIN_TILE_M, n at most INVAR_CHAIN_TILE_N.
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

/* Bytes of scratch per thread, for any tile. */
#define INVAR_CHAIN_WORKSPACE ((size_t)1 << 21)

/* Runs a tile on the calling thread. `workspace` is aligned to 64 bytes. */
void invar_chain_run(float *acc, int64_t ld, const invar_device *dev, const invar_chain_tile *tile,
                     void *workspace);

/* ---- whole products over the device's pool --------------------------------------------------- */

/* A tile of the output. */
typedef struct invar_chain_range {
    int64_t row0;
    int64_t rows;
    int64_t col0;
    int64_t cols;
} invar_chain_range;

#define INVAR_CHAIN_TILE_FLOATS ((int64_t)INVAR_CHAIN_TILE_M * INVAR_CHAIN_TILE_N)

/*
 * An output (m, n) that is split into tiles. `run` computes and stores one tile on a pool thread.
 * `acc` has `accumulators` tiles of f32 scratch, INVAR_CHAIN_TILE_FLOATS apart and undefined;
 * `workspace` is for invar_chain_run.
 */
typedef struct invar_chain_grid {
    int64_t m;
    int64_t n;
    int32_t accumulators;
    void (*run)(const void *payload, const invar_device *dev, const invar_chain_range *range,
                float *acc, void *workspace);
    const void *payload;
} invar_chain_grid;

/* Returns the bytes of workspace of invar_chain_grid_run. */
size_t invar_chain_grid_workspace(const invar_device *dev, int32_t accumulators);

/* Runs all tiles of the grid on the device's pool. */
invar_status invar_chain_grid_run(const invar_device *dev, const invar_chain_grid *grid,
                                  void *workspace) INVAR_MUST_USE;

/*
 * Chains of logical shards, added by the tree as they are computed: shard s is computed in the tile
 * that invar_chain_shard returns, and invar_chain_fold adds the subtrees of `count` values that it
 * completes. After the last shard the sum is in the first tile. invar_chain_tiles returns the
 * number of accumulators that this needs.
 */
int32_t invar_chain_tiles(int32_t shards);
float *invar_chain_shard(float *acc, int32_t shard);
void invar_chain_fold(float *acc, int32_t shard, int64_t count);

/* Ends chains: -0 becomes +0. */
void invar_chain_finish(float *acc, int64_t count);

#endif
