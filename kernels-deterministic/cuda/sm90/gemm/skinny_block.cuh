/*
 * skinny_block.cuh - thread block of a product with few rows: all but the multiplication.
 *
 * One warp fetches, four or eight multiply, with a ring of stages in shared memory between them,
 * each with the barriers `full` and `empty`. A stage has some runs of 64 k of x and of the block's
 * features of w. Only the rows of x that exist are in shared memory: a product also reads the
 * memory after them, and outputs of those rows are not stored, since rows do not affect each other.
 *
 * The kernel may start while the previous one ends. Until that has ended it only prefetches weights
 * into the cache, which has no visible effect.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_GEMM_SKINNY_BLOCK_CUH
#define INVAR_KERNELS_CUDA_SM90_GEMM_SKINNY_BLOCK_CUH

#include "kernels-deterministic/cuda/sm90/gemm/epilogue.cuh"
#include "kernels-deterministic/cuda/sm90/gemm/skinny.cuh"
#include "kernels-deterministic/cuda/sm90/hopper.cuh"

/* ---- shared memory --------------------------------------------------------------------------- */

/* Barriers; stages; memory into which a product may overrun, which holds the chunks of groups. */
struct skinny_shared {
    uint64_t *full, *empty;
    uint8_t *stage;
    int *first_chunk;

    __device__ __forceinline__ skinny_shared(uint8_t *base, const skinny_plan &plan)
    {
        base += -invar_shared_address(base) & (HEAD_BYTES - 1);
        full = (uint64_t *)base;
        empty = full + MAX_STAGES;
        stage = base + HEAD_BYTES;
        first_chunk = (int *)(stage + plan.stages * plan.stage_bytes);
    }
};

/* Position in the ring. */
struct skinny_cursor {
    int slot = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void advance(int stages)
    {
        slot++;
        if (slot == stages) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* Releases a slot. Called by each multiplying warp, once none of its products reads the slot. */
__device__ __forceinline__ void release_slot(uint64_t *empty)
{
    if ((threadIdx.x & 31) == 0)
        invar_barrier_arrive(empty);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/*
 * Tile: rows [row0, row0 + rows) of x and out, features from feature0 on of an output; w_row is the
 * row of its w that has the first feature.
 */
struct skinny_tile {
    int row0, rows, feature0, w_row, output;
};

__device__ __forceinline__ int group_rows(const skinny_job &job, int group)
{
    return (int)(job.start[group + 1] - job.start[group]);
}

/*
 * first_chunk[g] = number of chunks of x_rows rows that the groups before g have. Called by one
 * warp.
 */
static __device__ void count_chunks(const skinny_job &job, int *first_chunk)
{
    int lane = (int)(threadIdx.x & 31), before = 0;

    for (int group0 = 0; group0 < job.groups; group0 += 32) {
        int group = group0 + lane, own = 0;
        if (group < job.groups)
            own = (int)invar_ceil_div(group_rows(job, group), job.plan.x_rows);
        int sum = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
            sum += lane >= step ? other : 0;
        }
        if (group < job.groups)
            first_chunk[group] = before + sum - own;
        before += __shfl_sync(0xFFFFFFFFu, sum, 31);
    }
    if (lane == 0)
        first_chunk[job.groups] = before;
}

__device__ __forceinline__ int64_t count_tiles(const skinny_job &job, const int *first_chunk)
{
    int64_t across = invar_ceil_div(job.output[0].cols, job.plan.features);

    return job.start ? across * first_chunk[job.groups] : job.tiles;
}

/* Returns the output of a tile of a dense product. */
__device__ __forceinline__ int find_output(const skinny_job &job, int tile)
{
    int output = 0;

#pragma unroll
    for (int i = 1; i < INVAR_LINEAR_MAX_PARTS; i++)
        output += i < job.outputs && !job.gated && tile >= job.output[i].first_tile;
    return output;
}

/*
 * Returns a tile by its number. Chunks of a group are neighbors, because they read the same
 * weights.
 */
static __device__ skinny_tile find_tile(const skinny_job &job, const int *first_chunk,
                                        int64_t index)
{
    if (!job.start) {
        int output = find_output(job, (int)index);
        int width = job.gated ? job.plan.features / 2 : job.plan.features;
        int feature0 = ((int)index - job.output[output].first_tile) * width;
        return {0, job.rows, feature0, feature0, output};
    }
    int across = (int)invar_ceil_div(job.output[0].cols, job.plan.features);
    int low = 0, high = job.groups; // the group is one of low .. high - 1
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if ((int64_t)first_chunk[middle] * across <= index)
            low = middle;
        else
            high = middle;
    }
    int chunks = first_chunk[low + 1] - first_chunk[low];
    int64_t inside = index - (int64_t)first_chunk[low] * across;
    int skipped = (int)(inside % chunks) * job.plan.x_rows;
    int rows = group_rows(job, low) - skipped;
    int feature0 = (int)(inside / chunks) * job.plan.features;

    return {(int)job.start[low] + skipped, rows < job.plan.x_rows ? rows : job.plan.x_rows,
            feature0, low * job.group_rows + feature0, 0};
}

/* Calls f(tile) for every tile of this block. */
template <typename F>
__device__ __forceinline__ void each_tile(const skinny_job &job, const int *first_chunk, F f)
{
    int64_t tiles = count_tiles(job, first_chunk);

    for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x)
        f(find_tile(job, first_chunk, index));
}

/* ---- fetching -------------------------------------------------------------------------------- */

/* Starts copying SIZE bytes: `bytes` from global memory, then zeros. */
template <int SIZE>
__device__ __forceinline__ void copy_later(void *to, const void *from, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(invar_shared_address(to)),
                 "l"(from), "n"(SIZE), "r"(bytes)
                 : "memory");
}

/*
 * Fetches the scales of a stage, SIZE bytes for a feature, by the warp: their rows need not have
 * the alignment of bulk copies. After the end of k they are zero, as x is there, whatever the codes
 * are.
 */
template <int SIZE>
__device__ __forceinline__ void fetch_scales(const skinny_job &job, const skinny_tile &tile, int k0,
                                             uint8_t *to, uint64_t *full)
{
    const skinny_output &output = job.output[tile.output];
    constexpr int EACH = SIZE / CODES_BLOCKS, BLOCK = CODES_PANELS * PANEL / CODES_BLOCKS;
    int64_t row_bytes = job.k / BLOCK * EACH;
    int first = k0 / BLOCK * EACH, bytes = (int)row_bytes - first;

    for (int i = (int)(threadIdx.x & 31); i < job.plan.features; i += 32) {
        int64_t row = (int64_t)tile.w_row + i;
        // belongs to no feature, and is not used
        row = row < output.w_rows ? row : output.w_rows - 1;
        const uint8_t *from = output.scale + row * row_bytes + first;
        uint8_t *here = to + i * SIZE;
        if (output.scale_wide)
            copy_later<SIZE>(here, from, SIZE);
        else
#pragma unroll
            for (int b = 0; b < SIZE; b += 4)
                copy_later<4>(here + b, b < bytes ? from + b : from, b < bytes ? 4 : 0);
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(invar_shared_address(full))
                 : "memory");
}

/* Prefetches the panels of w that one copy has into the L2 cache. */
__device__ __forceinline__ void fetch_to_cache(const CUtensorMap *w, int w_row, int panel)
{
    asm volatile(
        "cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"((uint64_t)w),
        "r"(0), "r"(w_row), "r"(panel)
        : "memory");
}

/* Prefetches the first stages of w. */
__device__ __forceinline__ void fetch_ahead(const skinny_job &job)
{
    if (job.plan.ahead == 0 || (int)blockIdx.x >= job.tiles)
        return;
    skinny_tile tile = find_tile(job, NULL, blockIdx.x);
    for (int i = 0; i < job.plan.ahead * job.plan.panels; i += job.gated ? 1 : job.plan.panels) {
        fetch_to_cache(&job.output[tile.output].w, tile.w_row, i);
        if (job.gated)
            fetch_to_cache(&job.output[1].w, tile.w_row, i);
    }
}

/*
 * Copies the panels of a stage: one copy for all or, if gated, one for each panel of either matrix.
 */
__device__ __forceinline__ void fetch_panels(const skinny_job &job, const skinny_tile &tile,
                                             int panel, uint8_t *to, uint64_t *full)
{
    int half = job.plan.features / 2 * ROW_BYTES;

    if (!job.gated) {
        invar_copy_in(to, &job.output[tile.output].w, 0, tile.w_row, panel, full);
        return;
    }
    for (int i = 0; i < 2 * job.plan.panels; i++)
        invar_copy_in(to + i * half, &job.output[i % 2].w, 0, tile.w_row, panel + i / 2, full);
}

/*
 * Runs the fetching warp. Panels after the end of k arrive as zeros. If weights are codes, a
 * feature has PANELS panels and SCALES bytes of scales in a stage; both are 0 for bf16.
 */
template <int PANELS, int SCALES>
__device__ void fetch_stages(const skinny_job &job, const skinny_shared &shared)
{
    const skinny_plan &plan = job.plan;
    int x_bytes = plan.panels * plan.x_rows * ROW_BYTES;
    int panel_bytes = plan.features * ROW_BYTES;
    int w_bytes = (SCALES > 0 ? PANELS : plan.panels) * panel_bytes;
    bool leader = invar_elect();
    skinny_cursor at;

    each_tile(job, shared.first_chunk, [&](const skinny_tile &tile) {
        for (int panel = 0; panel * PANEL < job.k; panel += plan.panels) {
            uint8_t *x = shared.stage + at.slot * plan.stage_bytes, *w = x + x_bytes;
            uint64_t *full = &shared.full[at.slot];

            invar_barrier_wait(&shared.empty[at.slot], at.parity ^ 1);
            if (leader) {
                invar_barrier_expect(full, (uint32_t)(x_bytes + w_bytes));
                if (SCALES > 0)
#pragma unroll
                    for (int i = 0; i < PANELS; i++)
                        invar_copy_in(w + i * panel_bytes, &job.output[tile.output].w,
                                      panel * (PANELS * ROW_BYTES / CODES_PANELS) + i * ROW_BYTES,
                                      tile.w_row, full);
                else
                    fetch_panels(job, tile, panel, w, full);
                invar_copy_in(x, &job.x, 0, tile.row0, panel, full);
            }
            if constexpr (SCALES > 0)
                fetch_scales<SCALES>(job, tile, panel * PANEL, w + w_bytes, full);
            at.advance(plan.stages);
        }
    });
}

/* ---- outputs -------------------------------------------------------------------------------- */

/* Returns the value to store, not yet rounded to the type of out, from an accumulator. */
__device__ __forceinline__ float finish_sum(const skinny_job &job, const skinny_output &output,
                                            float acc, int row, int col)
{
    int64_t at = row * job.residual_stride + col;
    float y = acc + 0.0f;

    if (output.bias)
        y = y + (output.bias_bf16 ? invar_load((const __nv_bfloat16 *)output.bias + col)
                                  : invar_load((const float *)output.bias + col));
    if (!job.residual)
        return y;
    return job.out_bf16 ? invar_with_residual((const __nv_bfloat16 *)job.residual + at, y)
                        : invar_with_residual((const float *)job.residual + at, y);
}

__device__ __forceinline__ void store_one(const skinny_rows_out &out, bool bf16, int row, int col,
                                          float y)
{
    int64_t at = row * out.stride + col;

    if (bf16)
        invar_store((__nv_bfloat16 *)out.data + at, y);
    else
        invar_store((float *)out.data + at, y);
}

/* ---- block ----------------------------------------------------------------------------------- */

/* Runs all but the multiplication: the last warp of the block fetches, the others call multiply. */
template <int PANELS, int SCALES, typename F>
__device__ __forceinline__ void run_block(const skinny_job &job, F multiply)
{
    extern __shared__ uint8_t memory[];
    const skinny_plan &plan = job.plan;
    skinny_shared shared(memory, plan);
    int warp = (int)invar_uniform(threadIdx.x / 32), fetcher = plan.warps;

    invar_grid_release();
    if (warp == fetcher && invar_elect()) {
        invar_copy_prefetch(&job.x);
        for (int i = 0; i < job.outputs; i++)
            invar_copy_prefetch(&job.output[i].w);
        for (int i = 0; i < plan.stages; i++) {
            invar_barrier_init(&shared.full[i], SCALES > 0 ? 33 : 1); // all lanes fetch scales
            invar_barrier_init(&shared.empty[i], (uint32_t)plan.warps);
        }
        invar_barrier_init_done();
        fetch_ahead(job);
    }
    invar_grid_wait();
    if (warp == fetcher && job.start)
        count_chunks(job, shared.first_chunk);
    __syncthreads();
    if (warp == fetcher)
        fetch_stages<PANELS, SCALES>(job, shared);
    else
        multiply(shared);
}

#endif
