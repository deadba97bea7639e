/*
 * token_blocks.cuh - sums over tokens: finding the token blocks, and adding their sums.
 *
 * Token blocks are those of docs/arithmetic.md, section 7: 128 tokens each, counted from the start
 * of their unit. The sum of a block depends on its own tokens alone, so blocks are summed in any
 * order, each into a row of its own, in scratch or a tensor. Then the rows of each unit are added
 * in ascending order, and the units are added to the result, ascending.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ROWS_TOKEN_BLOCKS_CUH
#define INVAR_KERNELS_CUDA_SM90_ROWS_TOKEN_BLOCKS_CUH

#include "kernels-deterministic/cuda/sm90/vector.cuh"

struct invar_token_blocks {
    const int64_t *start; /* (units + 1) token offsets */
    int64_t units, tokens;
    invar_op op;
    invar_cuda_fault *fault;
};

static inline invar_token_blocks invar_blocks_of_units(const invar_device *dev, invar_op op,
                                                       const invar_row_offsets *units,
                                                       int64_t tokens)
{
    return {units->offsets, units->count, tokens, op, invar_cuda_of(dev)->fault};
}

/* Returns scratch as rows for the sums of `blocks` token blocks. */
static inline invar_view<float> invar_block_rows(void *scratch, int64_t blocks, int64_t cols)
{
    return {(float *)scratch, blocks, cols, cols};
}

/*
 * Returns the number of token blocks, and calls on_unit(before, blocks, begin, end) for each
 * unit, by one of the threads: the blocks of earlier units, its own blocks, its tokens. All threads
 * of a block of `Threads` must call it. If an offset is invalid, it records a fault and returns 0.
 */
template <int Threads, typename OnUnit>
__device__ __forceinline__ int64_t invar_walk_units(const invar_token_blocks &b, OnUnit on_unit)
{
    int64_t next = 0;
    bool wrong = false;

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
        on_unit(before, blocks, begin, end);
        next += total;
    }
    return __syncthreads_or(wrong) ? 0 : next;
}

/* Finds the tokens of token block `number`; *count_out is 0 if there is no such block. */
template <int Threads>
__device__ __forceinline__ void invar_find_token_block(int64_t *first_out, int *count_out,
                                                       const invar_token_blocks &b, int64_t number)
{
    __shared__ int64_t first;
    __shared__ int count;

    if (threadIdx.x == 0)
        count = 0;
    int64_t blocks =
        invar_walk_units<Threads>(b, [&](int64_t before, int64_t own, int64_t begin, int64_t end) {
            if (number >= before && number < before + own) {
                first = begin + (number - before) * INVAR_TOKEN_BLOCK;
                count = (int)(end - first < INVAR_TOKEN_BLOCK ? end - first : INVAR_TOKEN_BLOCK);
            }
        });
    *first_out = first;
    *count_out = blocks > 0 ? count : 0;
}

#define INVAR_ADD_COLUMNS 32 // columns of a block of threads
#define INVAR_ADD_WARPS 8
#define INVAR_ADD_ROWS 128   // rows that are in shared memory at once
#define INVAR_ADD_STEP 16    // rows that are read at once
#define INVAR_ADD_WINDOW 512 // rows whose unit ends are known at once

/*
 * Returns the number of token blocks. Bit i of `ends` is set if a unit ends with block window + i.
 */
static __device__ __forceinline__ int64_t invar_find_unit_ends(unsigned ends[INVAR_ADD_WINDOW / 32],
                                                               const invar_token_blocks &b,
                                                               int64_t window)
{
    if (threadIdx.x < INVAR_ADD_WINDOW / 32)
        ends[threadIdx.x] = 0;
    __syncthreads();
    return invar_walk_units<32 * INVAR_ADD_WARPS>(
        b, [&](int64_t before, int64_t own, int64_t, int64_t) {
            int64_t last = before + own - 1 - window;
            if (own > 0 && last >= 0 && last < INVAR_ADD_WINDOW)
                atomicOr(&ends[last / 32], 1u << last % 32);
        });
}

/* out[c] += the sum over sums[.][c] of each unit, from +0. All warps load, the first one adds. */
static __global__ void __launch_bounds__(32 * INVAR_ADD_WARPS)
    invar_add_token_blocks(float *out, invar_view<float> sums, invar_token_blocks b)
{
    __shared__ float row[INVAR_ADD_ROWS][INVAR_ADD_COLUMNS];
    __shared__ unsigned ends[INVAR_ADD_WINDOW / 32];
    int warp = (int)threadIdx.x / 32, thread = (int)threadIdx.x % 32;
    int64_t col = (int64_t)blockIdx.x * INVAR_ADD_COLUMNS + thread;
    bool live = col < sums.cols;

    invar_grid_begin();
    float running = live ? out[col] : 0.0f, unit = 0.0f;
    int64_t count = invar_find_unit_ends(ends, b, 0);

    for (int64_t base = 0; base < count; base += INVAR_ADD_ROWS) {
        int64_t left = count - base;
        int at = (int)(base % INVAR_ADD_WINDOW);
        if (base > 0 && at == 0)
            (void)invar_find_unit_ends(ends, b, base);
#pragma unroll
        for (int i = 0; i < INVAR_ADD_ROWS; i += INVAR_ADD_WARPS) // x + -0 is x
            row[i + warp][thread] =
                live && i + warp < left ? sums.row(base + i + warp)[col] : -0.0f;
        __syncthreads();
        for (int i = 0; warp == 0 && i < INVAR_ADD_ROWS && i < left; i += INVAR_ADD_STEP) {
            unsigned end = ends[(at + i) / 32] >> (at + i) % 32 & ((1u << INVAR_ADD_STEP) - 1);
            float term[INVAR_ADD_STEP];
#pragma unroll
            for (int j = 0; j < INVAR_ADD_STEP; j++)
                term[j] = row[i + j][thread];
            if (end == 0) { // the usual case if units are long
#pragma unroll
                for (int j = 0; j < INVAR_ADD_STEP; j++)
                    unit = unit + term[j];
                continue;
            }
#pragma unroll
            for (int j = 0; j < INVAR_ADD_STEP; j++) {
                unit = unit + term[j];
                if (end >> j & 1) {
                    running = running + unit;
                    unit = 0.0f;
                }
            }
        }
        __syncthreads();
    }
    if (live && warp == 0 && count > 0)
        out[col] = running;
}

static inline invar_status invar_token_blocks_add(const invar_device *dev, invar_op op, float *out,
                                                  const invar_view<float> *sums,
                                                  const invar_token_blocks *b)
{
    dim3 grid(b->tokens > 0 ? (unsigned)invar_ceil_div(sums->cols, INVAR_ADD_COLUMNS) : 0);

    return invar_launch_early(dev, op, invar_add_token_blocks, grid, dim3(32 * INVAR_ADD_WARPS),
                              0)(out, *sums, *b);
}

#endif
