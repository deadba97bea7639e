/*
 * gemm_fp8.cuh - tiles of gemm_fp8.cu: sizes, shared memory, and units of work.
 *
 * A unit of work is two tiles, one for each block of a cluster, that share the rows of a or of b.
 * Units are numbered group by group and in bands of rows, so that clusters that run at the same
 * time share columns in the L2 cache. Which tile computes an element changes no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_GEMM_GEMM_FP8_CUH
#define INVAR_KERNELS_CUDA_SM90_GEMM_GEMM_FP8_CUH

#include <algorithm>

#include "kernels-deterministic/cuda/sm90/gemm/gemm.h"
#include "kernels-deterministic/cuda/sm90/vector.cuh"

/* ---- sizes ----------------------------------------------------------------------------------- */

#define BLOCK_K INVAR_FP8_BLOCK // k of a stage: one scale block, one swizzled row of 128 bytes
#define STEP_K 32
#define HALF 64 // rows of one warpgroup product
#define PAIR 2  // blocks of a cluster
#define CONSUMERS 2
#define WARPGROUP 128
#define WARP 32
#define THREADS ((1 + CONSUMERS) * WARPGROUP)
#define FEEDERS 64    // threads that load scales
#define SCALE_SLOTS 2 // runs of scales that are in shared memory at once
#define SCALE_RUN 4   // blocks of k whose scales are loaded together: 16 bytes
#define MAX_GROUPS 1024
#define MAX_STAGES 8
#define SHARED_BYTES (227 * 1024) // shared memory that a block may have
// rows of units that are computed together, so that they share columns in the L2 cache
#define BAND 8
#define QUAD 4         // threads that share rows of a product
#define STORED_COLS 32 // columns come in multiples of these

using bf16 = __nv_bfloat16;

/*
 * Rows of a tile, from `row` on and before `end`, the end of the group; its first column; its
 * group.
 */
struct tile_coord {
    int32_t row, end, col, group;
};

/*
 * Sizes of a tile with COLS columns. A consumer has HALVES products of 64 rows, and registers for
 * BUFFERS partial chains.
 */
template <int HALVES, int COLS, int BUFFERS> struct tile_sizes {
    static constexpr int halves = HALVES, cols = COLS, buffers = BUFFERS;
    static constexpr int rows = CONSUMERS * HALVES * HALF;
    static constexpr int values = HALF * COLS / WARPGROUP; /* values of a product in a thread */
    static constexpr int a_bytes = rows * BLOCK_K;
    static constexpr int stage_bytes = a_bytes + COLS * BLOCK_K;
    static constexpr int own_rows = HALVES * HALF; /* rows of a consumer */
    /* bytes of a row; rows begin in different banks */
    static constexpr int out_pitch = COLS * (int)sizeof(bf16) + 16;
    static constexpr int out_bytes = rows * out_pitch;
    static constexpr int scale_bytes = (rows + 1) * SCALE_RUN * (int)sizeof(float);
    static constexpr int other_bytes = out_bytes + SCALE_SLOTS * scale_bytes + 6 * 1024;
    static constexpr int stages = std::min(MAX_STAGES, (SHARED_BYTES - other_bytes) / stage_bytes);
};

/* Shared memory of a block, at a multiple of 1024 bytes. */
template <typename S> struct shared_state {
    uint8_t stage[S::stages][S::stage_bytes]; /* rows of a, then of b */
    float a_scale[SCALE_SLOTS][S::rows][SCALE_RUN], b_scale[SCALE_SLOTS][SCALE_RUN];
    uint8_t out[CONSUMERS][S::own_rows][S::out_pitch]; /* results that the storing warp has not
                                                          stored yet */
    tile_coord place[S::stages];                       /* tile that begins with the stage */
    uint64_t full[S::stages], empty[S::stages];
    uint64_t scale_full[SCALE_SLOTS], scale_empty[SCALE_SLOTS];
    uint64_t out_full[CONSUMERS], out_empty[CONSUMERS];
    int32_t first_unit[MAX_GROUPS + 1];
};

/* ---- the problem, as the kernel takes it ----------------------------------------------------- */

struct k_part {
    CUtensorMap a, b;
    const float *a_scale, *b_scale;
    int32_t blocks;     /* blocks of k */
    int32_t group_rows; /* rows of b of a group */
    int32_t bands;      /* bands of a group's rows that share scales */
};

struct fp8_problem {
    k_part part[INVAR_LINEAR_MAX_PARTS];
    int32_t parts;
    int32_t blocks; /* blocks of k of the full chain */
    int32_t rows, cols;
    void *out;
    int64_t out_stride;
    const void *bias;
    bool bias_bf16;
    const void *residual;
    int64_t residual_stride;
    bool vectors;   /* rows of out and residual begin at multiples of 16 bytes */
    bool pair_rows; /* the tiles of a unit lie below each other and share b; otherwise they share
                       a */
    int32_t groups;
    const int64_t *start;
    invar_cuda_fault *fault;
    invar_op op;
};

/* ---- units of work --------------------------------------------------------------------------- */

template <typename S> static __device__ __forceinline__ int unit_rows(const fp8_problem &p)
{
    return S::rows * (p.pair_rows ? PAIR : 1);
}

template <typename S> static __device__ __forceinline__ int units_across(const fp8_problem &p)
{
    int cols = S::cols * (p.pair_rows ? 1 : PAIR);

    return (p.cols + cols - 1) / cols;
}

/*
 * Finds the first unit of each group. A group whose rows are out of bounds has none, and a fault is
 * recorded.
 */
template <typename S>
static __device__ void plan_units(const fp8_problem &p, shared_state<S> *shared)
{
    for (int g = (int)threadIdx.x; g < p.groups; g += THREADS) {
        int64_t first = p.start ? p.start[g] : 0, end = p.start ? p.start[g + 1] : p.rows;
        bool good = first >= 0 && first <= end && end <= p.rows;
        if (!good) {
            invar_report(p.fault, p.op, INVAR_CUDA_SEGMENTS, g);
            first = end = 0;
        }
        shared->first_unit[g] =
            (int32_t)invar_ceil_div(end - first, unit_rows<S>(p)) * units_across<S>(p);
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        int lane = (int)threadIdx.x, before = 0;
        for (int g = lane; g - lane < p.groups; g += WARP) {
            int units = g < p.groups ? shared->first_unit[g] : 0, sum = units;
            for (int distance = 1; distance < WARP; distance *= 2) {
                int other = __shfl_up_sync(0xFFFFFFFFu, sum, distance);
                sum += lane >= distance ? other : 0;
            }
            if (g < p.groups)
                shared->first_unit[g] = before + sum - units;
            before += __shfl_sync(0xFFFFFFFFu, sum, WARP - 1);
        }
        if (lane == 0)
            shared->first_unit[p.groups] = before;
    }
    __syncthreads();
}

/* Returns this block's tile of a unit. */
template <typename S>
static __device__ __forceinline__ tile_coord find_tile(const fp8_problem &p,
                                                       const shared_state<S> *shared, int unit,
                                                       int rank)
{
    int low = 0, high = p.groups - 1, across = units_across<S>(p);

    // the last group that begins at or before the unit; empty groups have no unit
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (shared->first_unit[middle] <= unit)
            low = middle;
        else
            high = middle - 1;
    }
    int place = unit - shared->first_unit[low];
    int down = (shared->first_unit[low + 1] - shared->first_unit[low]) / across;
    int band = place / (BAND * across), rest = place - band * (BAND * across);
    int height = min(BAND, down - band * BAND);
    int i = band * BAND + rest % height, j = rest / height;
    int first = p.start ? (int)p.start[low] : 0, end = p.start ? (int)p.start[low + 1] : p.rows;

    if (p.pair_rows)
        i = PAIR * i + rank;
    else
        j = PAIR * j + rank;
    return {first + i * S::rows, end, j * S::cols, low};
}

#endif
