/*
 * token_blocks.cuh - sums over tokens on the GPU: which blocks there are, and their addition.
 *
 * Blocks are those of docs/arithmetic.md, section 7: 128 tokens each, counted from the start of
 * their unit. A block's sum depends on its own tokens alone, so blocks are summed in any order,
 * each into its own row of scratch; then the rows are added to the result, ascending.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ROWS_TOKEN_BLOCKS_CUH
#define INVAR_KERNELS_CUDA_SM90_ROWS_TOKEN_BLOCKS_CUH

#include "kernels-deterministic/cuda/sm90/vector.cuh"

#define INVAR_TOKEN_BLOCK 128

struct invar_token_blocks {
    const int64_t *start; /* (units + 1) tokens */
    int64_t units, tokens;
    invar_op op;
    invar_cuda_fault *fault;
};

static inline invar_token_blocks invar_token_blocks_of(const invar_device *dev, invar_op op,
                                                       const invar_segments *units, int64_t tokens)
{
    return {units->start, units->count, tokens, op, invar_cuda_of(dev)->fault};
}

/* Blocks that there can be. */
static inline int64_t invar_token_blocks_most(const invar_segments *units, int64_t tokens)
{
    int64_t most = tokens / INVAR_TOKEN_BLOCK + units->count;

    return most < tokens ? most : tokens; // no block is empty
}

/*
 * The number of blocks, and the tokens of block `number`: *first_out and *count_out, 0 where there
 * is no such block. All threads of a block of Threads call. Segments that are wrong are reported,
 * and there are no blocks.
 */
template <int Threads>
__device__ __forceinline__ int64_t invar_find_token_block(int64_t *first_out, int *count_out,
                                                          const invar_token_blocks &b,
                                                          int64_t number)
{
    __shared__ int64_t first;
    __shared__ int count;
    int64_t next = 0;
    bool wrong = false;

    if (threadIdx.x == 0)
        count = 0;
    for (int64_t base = 0; base < b.units; base += Threads) {
        int64_t u = base + threadIdx.x, blocks = 0, total;
        int64_t begin = u < b.units ? b.start[u] : 0, end = u < b.units ? b.start[u + 1] : 0;
        bool bad = begin < 0 || end < begin || end > b.tokens || (u == 0 && begin != 0) ||
                   (u == b.units - 1 && end != b.tokens);
        if (bad)
            invar_report(b.fault, b.op, INVAR_CUDA_SEGMENTS, u);
        else
            blocks = invar_ceil_div(end - begin, INVAR_TOKEN_BLOCK);
        wrong = wrong || bad;
        int64_t before = next + invar_sum_before<Threads>(blocks, &total);
        if (number >= before && number < before + blocks) {
            first = begin + (number - before) * INVAR_TOKEN_BLOCK;
            count = (int)(end - first < INVAR_TOKEN_BLOCK ? end - first : INVAR_TOKEN_BLOCK);
        }
        next += total;
    }
    if (__syncthreads_or(wrong)) {
        *count_out = 0;
        return 0;
    }
    *first_out = first;
    *count_out = count;
    return next;
}

#define INVAR_ADD_COLUMNS 32 // of a block of threads
#define INVAR_ADD_WARPS 8
#define INVAR_ADD_ROWS 128 // that lie in shared memory at once
#define INVAR_ADD_STEP 16  // of them that are loaded at once

/* out[c] += sums[0][c], sums[1][c], ...: all warps fetch, the first one adds. */
static __global__ void __launch_bounds__(32 * INVAR_ADD_WARPS)
    invar_add_token_blocks(float *out, const float *sums, int64_t cols, invar_token_blocks b)
{
    __shared__ float row[INVAR_ADD_ROWS][INVAR_ADD_COLUMNS];
    int64_t none = 0;
    int ignored, warp = (int)threadIdx.x / 32, thread = (int)threadIdx.x % 32;

    invar_grid_begin();
    int64_t count = invar_find_token_block<32 * INVAR_ADD_WARPS>(&none, &ignored, b, -1);
    int64_t col = (int64_t)blockIdx.x * INVAR_ADD_COLUMNS + thread;
    bool live = col < cols && count > 0;
    float running = live ? out[col] : 0.0f;

    for (int64_t base = 0; base < count; base += INVAR_ADD_ROWS) {
        int64_t left = count - base;
#pragma unroll
        for (int i = 0; i < INVAR_ADD_ROWS; i += INVAR_ADD_WARPS) // x + -0 is x
            row[i + warp][thread] =
                live && i + warp < left ? sums[(base + i + warp) * cols + col] : -0.0f;
        __syncthreads();
        for (int i = 0; warp == 0 && i < INVAR_ADD_ROWS && i < left; i += INVAR_ADD_STEP) {
            float term[INVAR_ADD_STEP];
#pragma unroll
            for (int j = 0; j < INVAR_ADD_STEP; j++)
                term[j] = row[i + j][thread];
#pragma unroll
            for (int j = 0; j < INVAR_ADD_STEP; j++)
                running = running + term[j];
        }
        __syncthreads();
    }
    if (live && warp == 0)
        out[col] = running;
}

static inline invar_status invar_token_blocks_add(const invar_device *dev, invar_op op, float *out,
                                                  const float *sums, int64_t cols,
                                                  const invar_token_blocks *b)
{
    dim3 grid(b->tokens > 0 ? (unsigned)invar_ceil_div(cols, INVAR_ADD_COLUMNS) : 0);

    return invar_launch_early(dev, op, invar_add_token_blocks, grid, dim3(32 * INVAR_ADD_WARPS),
                              0)(out, sums, cols, *b);
}

#endif
