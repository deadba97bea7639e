/*
 * sample.cuh - rows of logits for the sampling kernels: banned tokens, groups of tokens, row
 * splits.
 *
 * z = logit * (1/T); a banned token has the logit INVAR_SAMPLE_HIDDEN. Rows are read in groups of
 * four tokens, and results are keys or sums of integers, so the order of groups changes no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ROWS_SAMPLE_CUH
#define INVAR_KERNELS_CUDA_SM90_ROWS_SAMPLE_CUH

#include "kernels-deterministic/cuda/sm90/vector.cuh"
#include "kernels-deterministic/math/candidate_order.h"
#include "kernels-deterministic/math/restricted_domain.h"

__device__ __forceinline__ int warp_thread()
{
    return (int)threadIdx.x % 32;
}

__device__ __forceinline__ float value_of(uint32_t rank)
{
    return invar_order_value((uint64_t)rank << 32);
}

/* ---- banned tokens --------------------------------------------------------------------------- */

struct banned_tokens {
    const int32_t *ids; /* (count) */
    int64_t count;
    const int32_t *rows; /* (rows) not 0 if the row bans them; NULL if no row does */
    int64_t vocabulary;
    invar_cuda_fault *fault;
};

#define MARKS 32

/*
 * Banned tokens of one row. A token is compared with all banned ones, which are few, but only if
 * the mark of its group of four ids, modulo 1024, is set.
 */
struct banned_token_filter {
    const banned_tokens &tokens;
    uint32_t *marks; /* (MARKS) in shared memory */
    bool any;

    /* Prepares a row. All threads of the block must call it. */
    __device__ __forceinline__ void open(int64_t row)
    {
        any = tokens.rows && tokens.rows[row] != 0;
        if (!any)
            return;
        if (threadIdx.x < MARKS)
            marks[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < tokens.count; i += blockDim.x) {
            uint32_t group = (uint32_t)tokens.ids[i] / 4;
            if (tokens.ids[i] < 0 || tokens.ids[i] >= tokens.vocabulary)
                invar_report(tokens.fault, INVAR_OP_SAMPLE, INVAR_CUDA_INDEX, tokens.ids[i]);
            atomicOr(&marks[group / 32 % MARKS], 1u << group % 32);
        }
        __syncthreads();
    }

    __device__ __forceinline__ bool may_hide(uint32_t group) const
    {
        return any && (marks[group / 32 % MARKS] >> group % 32 & 1);
    }

    __device__ __forceinline__ bool hides(uint32_t id) const
    {
        for (int64_t i = 0; i < tokens.count; i++)
            if ((uint32_t)tokens.ids[i] == id)
                return true;
        return false;
    }
};

/* ---- rows ------------------------------------------------------------------------------------ */

/* Rows of logits and the temperature. */
struct logit_rows {
    invar_view<float> logits;
    banned_tokens hidden;
    float inverse; /* inverse of the temperature; 1 if that is 0 */
    bool aligned;
};

__device__ __forceinline__ float largest_of(const float x[4])
{
    return invar_max_nan(invar_max_nan(x[0], x[1]), invar_max_nan(x[2], x[3]));
}

/* Computes z of a group of four logits, of which `left` exist; -inf for the others. */
__device__ __forceinline__ void scale_group(float z[4], const invar_run<float, 4> &run,
                                            int64_t left, float inverse,
                                            const banned_token_filter &hidden, uint32_t group)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        z[i] = i < left ? run.get(i) * inverse : -INFINITY;
    if (hidden.may_hide(group)) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < left && hidden.hides(4 * group + (uint32_t)i))
                z[i] = INVAR_SAMPLE_HIDDEN * inverse;
    }
}

#define GROUPS 4 // groups of four tokens whose loads are in flight at once

/*
 * Calls look(z, group, left) for groups of four tokens from `begin` on, by a block of `Threads`
 * threads: GROUPS of them at once. The j-th has the number group + j * Threads and left(j) tokens,
 * at most four. Complete warps call it together, also after the end of the row, when no tokens are
 * left. look() returns a mask of groups that need more work, bit j for the j-th, and closer(group)
 * is called for them afterwards: the loop is short if they are few.
 */
template <int Threads, typename F, typename G>
__device__ __forceinline__ void for_groups(const logit_rows &rows, int64_t row,
                                           const banned_token_filter &hidden, int64_t begin,
                                           int64_t end, F look, G closer)
{
    constexpr int64_t step = GROUPS * Threads;
    const float *logits = rows.logits.row(row);
    int64_t whole = rows.logits.cols / 4 < end ? rows.logits.cols / 4 : end;
    // up to here all loads have 16 bytes
    int64_t middle = rows.aligned && whole > begin ? begin + (whole - begin) / step * step : begin;
    invar_run<float, 4> run[GROUPS];
    auto take = [&](const invar_run<float, 4> from[GROUPS], int64_t first, auto left_of) {
        uint32_t group = (uint32_t)first;
        auto left = [&](int j) { return left_of(group + (uint32_t)(j * Threads)); };
        float z[GROUPS][4];
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
            scale_group(z[j], from[j], left(j), rows.inverse, hidden,
                        group + (uint32_t)(j * Threads));
        for (unsigned close = look(z, group, left); close != 0; close &= close - 1)
            closer(group + (uint32_t)((__ffs(close) - 1) * Threads));
    };

    if (begin < middle) {
        invar_run<float, 4> next[GROUPS];
        auto load = [&](int64_t base) {
#pragma unroll
            for (int j = 0; j < GROUPS; j++)
                next[j].load_whole(logits + 4 * (base + threadIdx.x + j * Threads));
        };
        load(begin);
        for (int64_t base = begin; base < middle; base += step) {
#pragma unroll
            for (int j = 0; j < GROUPS; j++)
                run[j] = next[j];
            if (base + step < middle)
                load(base + step);
            take(run, base + threadIdx.x, [](uint32_t) { return INT64_C(4); });
        }
    }
    for (int64_t base = middle; base < end; base += step) {
        auto left = [&](uint32_t group) { return rows.logits.cols - INT64_C(4) * group; };
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            int64_t first = 4 * (base + threadIdx.x + j * Threads);
            run[j].load(logits + first, rows.logits.cols - first, rows.aligned);
        }
        take(run, base + threadIdx.x, left);
    }
}

/*
 * Split of a row: number of pieces, one for a block of threads, and groups of four tokens in each.
 */
struct row_split {
    int64_t count, groups;
};

static inline row_split pieces_of(const invar_device *dev, int64_t rows, int64_t vocabulary,
                                  int64_t threads)
{
    int64_t step = GROUPS * threads, groups = invar_ceil_div(vocabulary, 4);
    // the number that fits on the multiprocessors at once, four on each, but no more than have work
    int64_t count = (int64_t)invar_cuda_of(dev)->multiprocessors * 4 / rows;
    int64_t most = invar_ceil_div(groups, step);

    count = count < 1 ? 1 : count < most ? count : most;
    int64_t each = invar_ceil_div(groups, count * step) * step;
    return {invar_ceil_div(groups, each), each};
}

#endif
