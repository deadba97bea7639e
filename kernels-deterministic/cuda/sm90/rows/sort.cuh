/*
 * sort.cuh - stable radix sort of positions by keys in device memory.
 *
 * Digits have 9 bits, the lowest comes first. For each digit, tiles of 1024 or 4096 positions are
 * counted; then each tile adds the counts of all tiles, which gives the destinations of its own
 * positions. Everything is integers, so the result does not depend on the order of threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ROWS_SORT_CUH
#define INVAR_KERNELS_CUDA_SM90_ROWS_SORT_CUH

#include "kernels-deterministic/cuda/sm90/vector.cuh"

#define INVAR_SORT_BITS 9
#define INVAR_SORT_BINS (1 << INVAR_SORT_BITS)
#define INVAR_SORT_THREADS 256
#define INVAR_SORT_WARPS (INVAR_SORT_THREADS / 32)
#define INVAR_SORT_FEW 4 /* items of a thread for short lists: more tiles run at once */
#define INVAR_SORT_MANY 16
#define INVAR_SORT_SHORT (INT64_C(1) << 18)

/* A position and its key. */
struct invar_sort_entry {
    int32_t key;
    int32_t position;
};

/* Source of the entries that an earlier pass has written. */
struct invar_sort_entries {
    const invar_sort_entry *entries;

    __device__ __forceinline__ invar_sort_entry operator()(int64_t i) const
    {
        return entries[i];
    }
};

/*
 * Returns the position in the list of a thread's item. The items of a warp are neighbors, and
 * ascend with `item`.
 */
template <int Items> __device__ __forceinline__ int64_t invar_sort_place(int item)
{
    int warp = (int)threadIdx.x / 32, thread = (int)threadIdx.x % 32;

    return ((int64_t)blockIdx.x * INVAR_SORT_WARPS + warp) * Items * 32 + item * 32 + thread;
}

__device__ __forceinline__ int invar_sort_digit(int32_t key, int shift)
{
    return key >> shift & (INVAR_SORT_BINS - 1);
}

/* Counts the digits of every tile: counts[tile][digit]. */
template <int Items, typename Source>
static __global__ void __launch_bounds__(INVAR_SORT_THREADS)
    invar_sort_count(int32_t *counts, Source source, int64_t n, int shift)
{
    __shared__ int32_t bins[INVAR_SORT_BINS];

    invar_grid_begin();
    for (int bin = (int)threadIdx.x; bin < INVAR_SORT_BINS; bin += INVAR_SORT_THREADS)
        bins[bin] = 0;
    __syncthreads();
    for (int item = 0; item < Items; item++) {
        int64_t i = invar_sort_place<Items>(item);
        if (i < n)
            atomicAdd(&bins[invar_sort_digit(source(i).key, shift)], 1);
    }
    __syncthreads();
    for (int bin = (int)threadIdx.x; bin < INVAR_SORT_BINS; bin += INVAR_SORT_THREADS)
        counts[(int64_t)blockIdx.x * INVAR_SORT_BINS + bin] = bins[bin];
}

/*
 * Computes the first destination of this tile's entries of each digit: after all lower digits, and
 * after this digit's entries of earlier tiles. A thread has two neighboring digits.
 */
__device__ __forceinline__ void invar_sort_begin(int32_t begin[INVAR_SORT_BINS],
                                                 const int32_t *counts)
{
    int thread = (int)threadIdx.x;
    int2 all = make_int2(0, 0), before = make_int2(0, 0);

#pragma unroll 8
    for (unsigned tile = 0; tile < gridDim.x; tile++) {
        int2 here = ((const int2 *)(counts + (int64_t)tile * INVAR_SORT_BINS))[thread];
        all.x += here.x, all.y += here.y;
        if (tile < blockIdx.x)
            before.x += here.x, before.y += here.y;
    }
    int32_t total, lower = invar_sum_before<INVAR_SORT_THREADS>(all.x + all.y, &total);
    begin[2 * thread] = lower + before.x;
    begin[2 * thread + 1] = lower + all.x + before.y;
}

/*
 * Moves the entries of each tile to their destinations. Ranks the items of each warp among those of
 * the same digit, in order, while taken[w][digit] counts them; taken then becomes the first
 * destination of the warp's items of a digit.
 */
template <int Items, typename Source>
static __global__ void __launch_bounds__(INVAR_SORT_THREADS)
    invar_sort_scatter(invar_sort_entry *out, const int32_t *counts, Source source, int64_t n,
                       int shift)
{
    __shared__ int32_t taken[INVAR_SORT_WARPS][INVAR_SORT_BINS];
    __shared__ int32_t begin[INVAR_SORT_BINS];
    int warp = (int)threadIdx.x / 32, thread = (int)threadIdx.x % 32;
    invar_sort_entry entry[Items];
    int32_t rank[Items];

    for (int bin = thread; bin < INVAR_SORT_BINS; bin += 32)
        taken[warp][bin] = 0;
    invar_grid_begin();
    invar_sort_begin(begin, counts);
    __syncwarp();
#pragma unroll
    for (int item = 0; item < Items; item++) {
        int64_t i = invar_sort_place<Items>(item);
        bool live = i < n;
        entry[item] = live ? source(i) : invar_sort_entry{0, 0};
        int digit = live ? invar_sort_digit(entry[item].key, shift) : INVAR_SORT_BINS;
        unsigned peers = __match_any_sync(0xFFFFFFFFu, digit);
        int32_t earlier = live ? taken[warp][digit] : 0;
        rank[item] = earlier + __popc(peers & ((1u << thread) - 1));
        __syncwarp();
        if (live && peers >> thread == 1) // the last thread of them
            taken[warp][digit] = rank[item] + 1;
        __syncwarp();
    }
    __syncthreads();
    for (int bin = (int)threadIdx.x; bin < INVAR_SORT_BINS; bin += INVAR_SORT_THREADS) {
        int32_t next = begin[bin];
        for (int w = 0; w < INVAR_SORT_WARPS; w++) {
            int32_t here = taken[w][bin];
            taken[w][bin] = next;
            next += here;
        }
    }
    __syncthreads();
#pragma unroll
    for (int item = 0; item < Items; item++) {
        if (invar_sort_place<Items>(item) < n) {
            int digit = invar_sort_digit(entry[item].key, shift);
            out[taken[warp][digit] + rank[item]] = entry[item];
        }
    }
}

static inline int64_t invar_sort_tile(int64_t n)
{
    return INVAR_SORT_THREADS * (n < INVAR_SORT_SHORT ? INVAR_SORT_FEW : INVAR_SORT_MANY);
}

/* Returns the bytes of scratch for n positions: two lists of entries, and the counts. */
static inline size_t invar_sort_bytes(int64_t n)
{
    size_t tile = (size_t)invar_sort_tile(n), tiles = ((size_t)n + tile - 1) / tile;

    return tiles * (2 * tile * sizeof(invar_sort_entry) + INVAR_SORT_BINS * sizeof(int32_t));
}

/* Sorts by one digit. */
template <typename Source>
static invar_status invar_sort_pass(const invar_device *dev, invar_op op, invar_sort_entry *to,
                                    int32_t *counts, Source source, int64_t n, int shift)
{
    dim3 grid((unsigned)invar_ceil_div(n, invar_sort_tile(n))), threads(INVAR_SORT_THREADS);

    return invar_by_flag(n < INVAR_SORT_SHORT, [&](auto few) {
        constexpr int items = few.value ? INVAR_SORT_FEW : INVAR_SORT_MANY;
        INVAR_TRY(invar_launch_early(dev, op, invar_sort_count<items, Source>, grid, threads,
                                     0)(counts, source, n, shift));
        return invar_launch_early(dev, op, invar_sort_scatter<items, Source>, grid, threads,
                                  0)(to, counts, source, n, shift);
    });
}

/*
 * *sorted = the entries source(0) .. source(n - 1), sorted by key; entries with equal keys keep
 * their order. Keys are in [0, bound), and n < 2^31. *sorted points into `scratch`, which has
 * invar_sort_bytes(n) bytes.
 */
template <typename Source>
static invar_status invar_sort(const invar_sort_entry **sorted, const invar_device *dev,
                               invar_op op, Source source, int64_t n, int64_t bound, void *scratch)
{
    int64_t room = invar_ceil_div(n, invar_sort_tile(n)) * invar_sort_tile(n);
    invar_sort_entry *lists[2] = {(invar_sort_entry *)scratch, (invar_sort_entry *)scratch + room};
    int32_t *counts = (int32_t *)(lists[1] + room);
    int pass = 1;

    INVAR_TRY(invar_sort_pass(dev, op, lists[0], counts, source, n, 0));
    for (; (bound - 1) >> (pass * INVAR_SORT_BITS) > 0; pass++) {
        invar_sort_entries from = {lists[(pass + 1) % 2]};
        INVAR_TRY(
            invar_sort_pass(dev, op, lists[pass % 2], counts, from, n, pass * INVAR_SORT_BITS));
    }
    *sorted = lists[(pass + 1) % 2];
    return INVAR_OK;
}

#endif
