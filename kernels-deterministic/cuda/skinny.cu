/*
 * skinny.cu - products with few rows (decoding): as fast as the weights arrive.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 3:
 *   one accumulator per output, tensor-core steps of 16 in ascending k, + 0, bias in f32, one
 *   rounding; then the residual, rounded again. int4 weights are bf16(q * s) before they enter the
 *   step.
 *
 * A block has a warp that fetches and four or eight that multiply, with a ring of stages in shared
 * memory between them: some runs of 64 k of x and of the block's features of w. k is never cut, so
 * all the parallelism is in the features, and a tile is as many of them as gives every
 * multiprocessor the same share.
 *
 * bf16: four warps multiply together. x is the operand of 64 rows, however many it has: w is then
 *   the one whose extent, the features, comes in multiples of 8.
 * int4: each warp unpacks up to 16 features into registers and multiplies them with all rows of x;
 *   up to 8 of them cost half the work.
 *
 * Several matrices of weights may share x: each has tiles of its own, one after the other. Gated, a
 * tile has features of the gate and behind them the same ones of `up`, so that a thread has both of
 * them and can write their activation too.
 *
 * Of x only the rows that exist are in shared memory. A product reads on into what lies behind
 * them, and the outputs of those rows go nowhere: rows do not touch each other.
 *
 * The kernel may start while the one before it ends. Until that has ended it only asks for weights
 * to be brought into the cache, which changes nothing that anyone can see.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/epilogue.cuh"
#include "kernels-deterministic/cuda/hopper.cuh"
#include "kernels-deterministic/cuda/product.h"
#include "kernels-deterministic/cuda/tensor_map.h"

enum {
    MAX_ROWS = 64,
    MAX_GROUPS = 1024,
    MAX_GROUP_ROWS = 16, // on average
    MAX_EXTENT = 1 << 30,
    MAX_STAGES = 32,
    PANEL = 64,                           // k of bf16 in the 128 bytes of a swizzled row
    ROW_BYTES = 128,                      // of a panel: 64 values of bf16, 256 of int4
    PANEL_OVERRUN = MAX_ROWS * ROW_BYTES, // what a product may read behind the last panel
    INT4_PANELS = 4,                      // of x, to one of w
    INT4_BLOCKS = 8,                      // of 32 k in a stage
    SCALE_BYTES = 16,                     // of the 256 k of a feature
    HEAD_BYTES = 1024,                    // barriers, and the alignment of what follows
    RING_BYTES = 227 * 1024 - 2 * HEAD_BYTES - PANEL_OVERRUN,
    AHEAD_BYTES = 32 * 1024 // that a block asks for before its turn
};

/* How a product is cut. */
typedef struct skinny_plan {
    int features; // of a tile: of a block; gated, those of both matrices
    int warps;    // that multiply
    int x_rows;   // room in a panel, a multiple of 8
    int panels;   // of x in a stage
    int stages;
    int stage_bytes;
    int ahead; // stages of w to ask for before the previous kernel has ended
} skinny_plan;

/* Rows of memory that results go to. */
typedef struct skinny_rows_out {
    void *data; // NULL: nowhere
    int64_t stride;
    bool pairs; // two neighbours of a row can be stored at once
} skinny_rows_out;

/* A matrix of weights, and what becomes of its features. */
typedef struct skinny_output {
    CUtensorMap w;
    int64_t w_rows;
    int cols;
    int first_tile;
    skinny_rows_out out;
    bool bias_bf16;
    const void *bias;
    const uint8_t *scale; // of int4
    bool scale_wide;      // in pieces of 16 bytes, not of 4
} skinny_output;

/* What the kernel takes. */
typedef struct skinny_job {
    CUtensorMap x;
    skinny_output output[INVAR_LINEAR_MAX_PARTS];
    int outputs;
    int tiles; // of all outputs, where the product is dense
    skinny_plan plan;
    int rows, k;
    bool out_bf16;
    const void *residual; // of the only output
    int64_t residual_stride;
    bool gated; // two outputs and their activation
    skinny_rows_out act;
    const int64_t *start; // of the groups; NULL: dense
    int groups, group_rows;
} skinny_job;

/* ---- shared memory --------------------------------------------------------------------------- */

/* Barriers; the stages; what a product may overrun into, which holds the chunks of groups. */
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

/* A place in the ring. */
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

/* By each warp that multiplies, once none of its products reads the slot any more. */
__device__ __forceinline__ void release(uint64_t *empty)
{
    if ((threadIdx.x & 31) == 0)
        invar_barrier_arrive(empty);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/*
 * Rows [row0, row0 + rows) of x and out, features from feature0 on of an output; row w_row of its w
 * is the first.
 */
struct skinny_tile {
    int row0, rows, feature0, w_row, output;
};

__device__ __forceinline__ int group_rows(const skinny_job &job, int group)
{
    return (int)(job.start[group + 1] - job.start[group]);
}

/* first_chunk[g] = how many runs of x_rows rows the groups before g have. By one warp. */
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

/* Which output a tile of a dense product belongs to. */
__device__ __forceinline__ int find_output(const skinny_job &job, int tile)
{
    int output = 0;

#pragma unroll
    for (int i = 1; i < INVAR_LINEAR_MAX_PARTS; i++)
        output += i < job.outputs && !job.gated && tile >= job.output[i].first_tile;
    return output;
}

/* A tile by its number. Chunks of a group are neighbours: they read the same weights. */
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

/* f(tile) for every tile of this block. */
template <typename F>
__device__ __forceinline__ void each_tile(const skinny_job &job, const int *first_chunk, F f)
{
    int64_t tiles = count_tiles(job, first_chunk);

    for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x)
        f(find_tile(job, first_chunk, index));
}

/* ---- fetching -------------------------------------------------------------------------------- */

/* SIZE bytes: so many from global memory, and zeros behind them. */
template <int SIZE>
__device__ __forceinline__ void copy_later(void *to, const void *from, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(invar_shared_address(to)),
                 "l"(from), "n"(SIZE), "r"(bytes)
                 : "memory");
}

/*
 * The scales of a stage, by the warp: their rows need not be aligned as a bulk copy asks. Behind
 * the end of k they are zero, as x is there, whatever the codes are.
 */
__device__ __forceinline__ void fetch_scales(const skinny_job &job, const skinny_tile &tile, int k0,
                                             uint8_t *to, uint64_t *full)
{
    const skinny_output &output = job.output[tile.output];
    int64_t row_bytes = job.k / INVAR_INT4_BLOCK * 2;
    int first = k0 / INVAR_INT4_BLOCK * 2, bytes = (int)row_bytes - first;

    for (int i = (int)(threadIdx.x & 31); i < job.plan.features; i += 32) {
        int64_t row = (int64_t)tile.w_row + i;
        row = row < output.w_rows ? row : output.w_rows - 1; // of no feature: never looked at
        const uint8_t *from = output.scale + row * row_bytes + first;
        uint8_t *here = to + i * SCALE_BYTES;
        if (output.scale_wide)
            copy_later<SCALE_BYTES>(here, from, SCALE_BYTES);
        else
#pragma unroll
            for (int b = 0; b < SCALE_BYTES; b += 4)
                copy_later<4>(here + b, b < bytes ? from + b : from, b < bytes ? 4 : 0);
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(invar_shared_address(full))
                 : "memory");
}

/* Brings panels of w, as many as a copy has, into the second-level cache. */
__device__ __forceinline__ void fetch_to_cache(const CUtensorMap *w, int w_row, int panel)
{
    asm volatile(
        "cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"((uint64_t)w),
        "r"(0), "r"(w_row), "r"(panel)
        : "memory");
}

/* The first stages of w. */
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

/* The panels of a stage: one copy for all, or, gated, one for each panel of either matrix. */
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

/* The warp that fetches. Panels behind the end of k arrive as zeros. */
template <bool INT4> __device__ void fetch(const skinny_job &job, const skinny_shared &shared)
{
    const skinny_plan &plan = job.plan;
    int x_bytes = plan.panels * plan.x_rows * ROW_BYTES;
    int w_bytes = (INT4 ? 1 : plan.panels) * plan.features * ROW_BYTES;
    bool leader = invar_elect();
    skinny_cursor at;

    each_tile(job, shared.first_chunk, [&](const skinny_tile &tile) {
        for (int panel = 0; panel * PANEL < job.k; panel += plan.panels) {
            uint8_t *x = shared.stage + at.slot * plan.stage_bytes, *w = x + x_bytes;
            uint64_t *full = &shared.full[at.slot];

            invar_barrier_wait(&shared.empty[at.slot], at.parity ^ 1);
            if (leader) {
                invar_barrier_expect(full, (uint32_t)(x_bytes + w_bytes));
                if (INT4)
                    invar_copy_in(w, &job.output[tile.output].w, panel * PANEL / 2, tile.w_row,
                                  full);
                else
                    fetch_panels(job, tile, panel, w, full);
                invar_copy_in(x, &job.x, 0, tile.row0, panel, full);
            }
            if (INT4)
                fetch_scales(job, tile, panel * PANEL, w + w_bytes, full);
            at.advance(plan.stages);
        }
    });
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* From accumulator to what is stored, but for the last rounding. */
__device__ __forceinline__ float finish(const skinny_job &job, const skinny_output &output,
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

/* Columns col and, if `both`, col + 1. */
__device__ __forceinline__ void store_two(const skinny_rows_out &out, bool bf16, int row, int col,
                                          bool both, float y0, float y1)
{
    int64_t at = row * out.stride + col;

    if (!out.pairs || !both) {
        store_one(out, bf16, row, col, y0);
        if (both)
            store_one(out, bf16, row, col + 1, y1);
    } else if (bf16) {
        *(uint32_t *)((__nv_bfloat16 *)out.data + at) = invar_bf16x2_bits(y0, y1);
    } else {
        *(float2 *)((float *)out.data + at) = make_float2(y0, y1);
    }
}

/* Accumulators of columns col and col + 1, as far as they exist. */
__device__ __forceinline__ void finish_two(const skinny_job &job, const skinny_output &output,
                                           int row, int col, const float *acc)
{
    bool both = col + 1 < output.cols;

    if (col >= output.cols)
        return;
    float y0 = finish(job, output, acc[0], row, col);
    float y1 = both ? finish(job, output, acc[1], row, col + 1) : 0.0f;
    store_two(output.out, job.out_bf16, row, col, both, y0, y1);
}

/* Columns col and col + 1 of bf16, as stored. */
__device__ __forceinline__ void store_word(const skinny_rows_out &out, int row, int col, bool both,
                                           uint32_t word)
{
    uint16_t *to = (uint16_t *)out.data + row * out.stride + col;

    if (!out.data)
        return;
    if (both && out.pairs) {
        *(uint32_t *)to = word;
        return;
    }
    to[0] = (uint16_t)word;
    if (both)
        to[1] = (uint16_t)(word >> 16);
}

/*
 * COUNT pairs of columns, 8 apart, of both matrices, and their activation: from accumulators that
 * are 4 apart. Eight at a time, so that their chains of arithmetic overlap.
 */
template <int COUNT>
__device__ __forceinline__ void finish_gated(const skinny_job &job, int row, int col0,
                                             const float *gate_acc, const float *up_acc)
{
    const skinny_output &gate = job.output[0], &up = job.output[1];

#pragma unroll
    for (int first = 0; first < COUNT; first += 4) {
        invar_run<__nv_bfloat16> g, u, act;
        g.clear();
        u.clear();
#pragma unroll
        for (int i = 0; i < 4 && first + i < COUNT; i++) {
            int at = 4 * (first + i), last = gate.cols - 1, col = col0 + 8 * (first + i);
            int left = min(col, last), right = min(col + 1, last);
            g.word[i] = invar_bf16x2_bits(finish(job, gate, gate_acc[at], row, left),
                                          finish(job, gate, gate_acc[at + 1], row, right));
            u.word[i] = invar_bf16x2_bits(finish(job, up, up_acc[at], row, left),
                                          finish(job, up, up_acc[at + 1], row, right));
        }
        act = invar_gated(g, u);
#pragma unroll
        for (int i = 0; i < 4 && first + i < COUNT; i++) {
            int col = col0 + 8 * (first + i);
            bool both = col + 1 < gate.cols;
            if (col >= gate.cols)
                continue;
            store_word(gate.out, row, col, both, g.word[i]);
            store_word(up.out, row, col, both, u.word[i]);
            store_word(job.act, row, col, both, act.word[i]);
        }
    }
}

/* ---- bf16 ------------------------------------------------------------------------------------ */

/* The description of a panel, in which only the address counts: `at` is that, in units of 16. */
__device__ __forceinline__ uint64_t panel_at(uint32_t at)
{
    // rows of 128 bytes, swizzled; 1024 bytes from one eight of rows to the next
    const uint32_t shape = 1024 / 16 | (uint32_t)INVAR_SWIZZLE_128 << 30;

    return (uint64_t)shape << 32 | at;
}

/* One step for N columns: the powers of two that make up N, largest first. */
template <int N> __device__ __forceinline__ void step_bf16(float *acc, uint64_t x, uint64_t w)
{
    constexpr int LARGEST = N >= 128 ? 128 : N >= 64 ? 64 : N >= 32 ? 32 : N >= 16 ? 16 : 8;

    invar_product_bf16<LARGEST, 0, 0>(*(float(*)[LARGEST / 2]) acc, x, w, 1);
    if constexpr (N > LARGEST)
        step_bf16<N - LARGEST>(acc + LARGEST / 2, x, w + LARGEST * ROW_BYTES / 16);
}

template <int N>
__device__ __forceinline__ void store_bf16(const skinny_job &job, const skinny_tile &tile,
                                           const float (&acc)[N / 2])
{
    int thread = (int)threadIdx.x, lane = thread % 32;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = thread / 32 * 16 + lane / 4 + 8 * half;
        if (row >= tile.rows)
            continue;
        int col = tile.feature0 + 2 * (lane % 4);
        if (N % 16 == 0 && job.gated)
            finish_gated<N / 16>(job, tile.row0 + row, col, acc + 2 * half, acc + N / 4 + 2 * half);
        else
#pragma unroll
            for (int i = 0; i < N / 8; i++)
                finish_two(job, job.output[tile.output], tile.row0 + row, col + 8 * i,
                           acc + 4 * i + 2 * half);
    }
}

/* Starts the products of two panels; addresses in units of 16 bytes. */
template <int N>
__device__ __forceinline__ void start_bf16(float (&acc)[N / 2], uint32_t x_at, uint32_t w_at,
                                           uint32_t x_panel)
{
    uint64_t x[2] = {panel_at(invar_uniform(x_at)), panel_at(invar_uniform(x_at + x_panel))};
    uint64_t w = panel_at(invar_uniform(w_at));

    invar_product_fence();
#pragma unroll
    for (uint32_t s = 0; s < 2 * PANEL / 16; s++)
        step_bf16<N>(acc, x[s / 4] + s % 4 * 2, w + s / 4 * (N * ROW_BYTES / 16) + s % 4 * 2);
    invar_product_commit();
}

/* The four warps that multiply. */
template <int N> __device__ void multiply_bf16(const skinny_job &job, const skinny_shared &shared)
{
    const skinny_plan &plan = job.plan;
    const uint32_t x_panel = (uint32_t)plan.x_rows * ROW_BYTES / 16, w_panel = N * ROW_BYTES / 16;
    uint32_t stage0 = invar_shared_address(shared.stage) / 16;
    int stages = (int)invar_ceil_div(job.k, plan.panels * PANEL);
    skinny_cursor at;
    float acc[N / 2];

    each_tile(job, shared.first_chunk, [&](const skinny_tile &tile) {
        int before = at.slot;
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[i] = 0.0f;
        for (int stage = 0; stage < stages; stage++) {
            uint32_t x_at = stage0 + (uint32_t)(at.slot * plan.stage_bytes / 16);
            uint32_t w_at = x_at + (uint32_t)plan.panels * x_panel;

            invar_barrier_wait(&shared.full[at.slot], at.parity);
            for (int p = 0; p < plan.panels; p += 2) {
                start_bf16<N>(acc, x_at, w_at, x_panel);
                x_at += 2 * x_panel;
                w_at += 2 * w_panel;
            }
            // until only products of this stage still run
            if (plan.panels == 4)
                invar_product_wait<2>();
            else
                invar_product_wait<1>();
            if (stage > 0)
                release(&shared.empty[before]);
            before = at.slot;
            at.advance(plan.stages);
        }
        invar_product_wait<0>();
        invar_product_hold(acc);
        release(&shared.empty[before]);
        store_bf16<N>(job, tile, acc);
    });
}

/* ---- int4 ------------------------------------------------------------------------------------ */

/* bf16(q * s) of two codes q + 8, in the low four bits of either half. */
__device__ __forceinline__ uint32_t unpack_two(uint32_t codes, uint32_t scales)
{
    uint32_t y;

    // 128 + (q + 8) has the code as its lowest bits; taking off 136 is exact, q * s rounds once
    asm("{.reg .b32 q;"
        "lop3.b32 q, %1, 0x000F000F, 0x43004300, 0xEA;"
        "sub.rn.bf16x2 q, q, %3;"
        "mul.rn.bf16x2 %0, q, %2;}"
        : "=r"(y)
        : "r"(codes), "r"(scales), "r"(0x43084308u));
    return y;
}

/*
 * Weights 2 t, 2 t + 1 of the eight in `word`, for thread t of the quad: `pick` takes byte t to the
 * low half and, shifted down by a code, to the high half.
 */
__device__ __forceinline__ uint32_t unpack(uint32_t word, uint32_t pick, uint32_t scales)
{
    return unpack_two(__byte_perm(word, word >> 4, pick), scales);
}

/* Where a thread finds what it needs in the stages; addresses are those of the first one. */
template <int HALVES> struct skinny_lane {
    uint32_t x;            // row and chunk of 16 bytes that it reads for the warp
    uint32_t code[HALVES]; // of its feature's row, swizzled
    uint32_t scale[HALVES];
    uint32_t pick;

    __device__ __forceinline__ skinny_lane(const skinny_plan &plan, const uint8_t *stage)
    {
        int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        int features = plan.features / plan.warps; // of a warp
        uint32_t codes = invar_shared_address(stage) + plan.panels * plan.x_rows * ROW_BYTES;

        x = invar_shared_address(stage) + lane % 8 * ROW_BYTES + ((lane / 8) ^ (lane % 8)) * 16;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            int own = lane / 4 + 8 * h;
            int row = warp * features + (own < features ? own : features - 1);
            code[h] = codes + row * ROW_BYTES + row % 8 * 16;
            scale[h] = codes + plan.features * ROW_BYTES + row * SCALE_BYTES;
        }
        uint32_t t = (uint32_t)lane % 4;
        pick = t | t << 4 | (t + 4) << 8 | (t + 4) << 12;
    }
};

/* The weights of a block of 32 k, as they lie in shared memory. */
template <int HALVES> struct skinny_codes {
    uint4 word[HALVES];
    uint32_t scale[HALVES]; // of this block and its neighbour

    /* Block 0 to 7 of a stage, which lies so many bytes behind the first. */
    __device__ __forceinline__ void load(const skinny_lane<HALVES> &lane, uint32_t stage, int block)
    {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(word[h].x), "=r"(word[h].y), "=r"(word[h].z), "=r"(word[h].w)
                         : "r"((lane.code[h] + stage) ^ (uint32_t)block * 16));
            asm volatile("ld.shared.b32 %0, [%1];"
                         : "=r"(scale[h])
                         : "r"(lane.scale[h] + stage + block / 2 * 4));
        }
    }

    /* As the operand of its two steps. */
    __device__ __forceinline__ void unpack_to(uint32_t (&a)[2][4], uint32_t pick, int block) const
    {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            uint32_t both = __byte_perm(scale[h], 0, block % 2 ? 0x3232 : 0x1010);
            a[0][h] = unpack(word[h].x, pick, both);
            a[0][h + 2] = unpack(word[h].y, pick, both);
            a[1][h] = unpack(word[h].z, pick, both);
            a[1][h + 2] = unpack(word[h].w, pick, both);
        }
    }
};

/* TILES times 8 rows of x in a block of 32 k, two registers for each of its two steps. */
template <int TILES> struct skinny_rows {
    uint32_t pair[TILES][2][2];

    __device__ __forceinline__ void load(uint32_t lane, uint32_t stage, uint32_t x_panel, int block)
    {
        uint32_t at = ((lane + stage) ^ (uint32_t)(block % 2) * 64) + block / 2 * x_panel;
#pragma unroll
        for (int i = 0; i < TILES; i++)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(pair[i][0][0]), "=r"(pair[i][0][1]), "=r"(pair[i][1][0]),
                           "=r"(pair[i][1][1])
                         : "r"(at + i * 8 * ROW_BYTES));
    }
};

template <int TILES>
__device__ __forceinline__ void store_int4(const skinny_job &job, const skinny_tile &tile,
                                           const float (&acc)[TILES][4])
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int features = job.plan.features / job.plan.warps;
    const skinny_output &output = job.output[tile.output];

#pragma unroll
    for (int i = 0; i < TILES * 4; i++) {
        int own = lane / 4 + i % 4 / 2 * 8, below = i / 4 * 8 + 2 * (lane % 4) + i % 2;
        int row = tile.row0 + below, col = tile.feature0 + warp * features + own;
        if (own < features && below < tile.rows && col < output.cols)
            store_one(output.out, job.out_bf16, row, col,
                      finish(job, output, acc[i / 4][i % 4], row, col));
    }
}

/*
 * A warp that multiplies. While it multiplies a block of 32 k, it unpacks the next one and reads
 * the one behind that.
 */
template <int TILES, int HALVES>
__device__ void multiply_int4(const skinny_job &job, const skinny_shared &shared)
{
    const skinny_plan &plan = job.plan;
    const skinny_lane<HALVES> lane(plan, shared.stage);
    const uint32_t x_panel = (uint32_t)plan.x_rows * ROW_BYTES;
    int stages = (int)invar_ceil_div(job.k, INT4_PANELS * PANEL);
    skinny_cursor at;

    each_tile(job, shared.first_chunk, [&](const skinny_tile &tile) {
        skinny_codes<HALVES> codes[2];
        skinny_rows<TILES> x[2];
        uint32_t a[2][2][4] = {}, here = (uint32_t)(at.slot * plan.stage_bytes);
        float acc[TILES][4] = {};

        invar_barrier_wait(&shared.full[at.slot], at.parity);
        codes[0].load(lane, here, 0);
        codes[1].load(lane, here, 1);
        x[0].load(lane.x, here, x_panel, 0);
        codes[0].unpack_to(a[0], lane.pick, 0);
        for (int stage = 0; stage < stages; stage++) {
            uint32_t next = here;
            int slot = at.slot;

            at.advance(plan.stages);
#pragma unroll
            for (int i = 0; i < INT4_BLOCKS; i++) {
                if (i == INT4_BLOCKS - 2 && stage + 1 < stages) {
                    next = (uint32_t)(at.slot * plan.stage_bytes);
                    invar_barrier_wait(&shared.full[at.slot], at.parity);
                }
                codes[i % 2].load(lane, i + 2 < INT4_BLOCKS ? here : next, (i + 2) % INT4_BLOCKS);
                x[(i + 1) % 2].load(lane.x, i + 1 < INT4_BLOCKS ? here : next, x_panel,
                                    (i + 1) % INT4_BLOCKS);
                codes[(i + 1) % 2].unpack_to(a[(i + 1) % 2], lane.pick, i + 1);
#pragma unroll
                for (int step = 0; step < 2; step++)
#pragma unroll
                    for (int j = 0; j < TILES; j++)
                        invar_product_warp(acc[j], a[i % 2][step], x[i % 2].pair[j][step]);
            }
            release(&shared.empty[slot]);
            here = next;
        }
        store_int4<TILES>(job, tile, acc);
    });
}

/* ---- kernel ---------------------------------------------------------------------------------- */

/* Everything but the multiplication, which the last warp of the block leaves to the others. */
template <bool INT4, typename F>
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
            invar_barrier_init(&shared.full[i], INT4 ? 33 : 1); // int4: the lanes fetch scales
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
        fetch<INT4>(job, shared);
    else
        multiply(shared);
}

template <int N>
static __global__ void __launch_bounds__(160, 1) skinny_bf16(const __grid_constant__ skinny_job job)
{
    run_block<false>(job, [&](const skinny_shared &shared) { multiply_bf16<N>(job, shared); });
}

template <int TILES, int HALVES>
static __global__ void __launch_bounds__(288, 1) skinny_int4(const __grid_constant__ skinny_job job)
{
    run_block<true>(
        job, [&](const skinny_shared &shared) { multiply_int4<TILES, HALVES>(job, shared); });
}

typedef void (*skinny_kernel)(skinny_job);

static skinny_kernel kernel_bf16(int features)
{
    switch (features) {
    case 8: return skinny_bf16<8>;
    case 16: return skinny_bf16<16>;
    case 24: return skinny_bf16<24>;
    case 32: return skinny_bf16<32>;
    case 40: return skinny_bf16<40>;
    case 48: return skinny_bf16<48>;
    case 56: return skinny_bf16<56>;
    case 64: return skinny_bf16<64>;
    case 80: return skinny_bf16<80>;
    case 96: return skinny_bf16<96>;
    case 112: return skinny_bf16<112>;
    case 128: return skinny_bf16<128>;
    }
    return NULL;
}

template <int HALVES> static skinny_kernel kernel_int4(int x_rows)
{
    return x_rows <= 8    ? skinny_int4<1, HALVES>
           : x_rows <= 16 ? skinny_int4<2, HALVES>
           : x_rows <= 32 ? skinny_int4<4, HALVES>
                          : skinny_int4<8, HALVES>;
}

static skinny_kernel find_kernel(const skinny_plan *plan, bool int4)
{
    if (!int4)
        return kernel_bf16(plan->features);
    return plan->features / plan->warps > 8 ? kernel_int4<2>(plan->x_rows)
                                            : kernel_int4<1>(plan->x_rows);
}

/* ---- plan ------------------------------------------------------------------------------------ */

static int64_t round_up(int64_t n, int64_t to)
{
    return invar_ceil_div(n, to) * to;
}

/* Tiles of so many features, of all outputs. */
static int64_t tiles_of(const invar_product_set *set, int features)
{
    int64_t tiles = 0;

    if (set->act)
        return invar_ceil_div(set->product[0].cols, features / 2);
    for (int i = 0; i < set->count; i++)
        tiles += invar_ceil_div(set->product[i].cols, features);
    return tiles;
}

/* What the busiest multiprocessor has to do with tiles of so many features, in features. */
static int64_t busiest(const invar_product_set *set, int features, int blocks)
{
    enum { TILE_COST = 6 }; // of starting and ending one
    const invar_product *p = &set->product[0];
    int64_t groups = p->groups < p->rows ? p->groups : p->rows; // that can have rows
    int64_t tiles = tiles_of(set, features) * groups;

    return invar_ceil_div(tiles, blocks) * (features + TILE_COST);
}

/* The largest of the tiles that leave the busiest multiprocessor the least. */
static int choose_features(const invar_product_set *set, int blocks, const int *sizes, int count)
{
    int best = sizes[0];

    for (int i = 1; i < count; i++)
        if (busiest(set, sizes[i], blocks) <= busiest(set, best, blocks))
            best = sizes[i];
    return best;
}

/* Completes a plan whose cut is made. */
static void fill_ring(skinny_plan *plan, bool int4)
{
    enum { MANY_PANELS = 4, FEW_PANELS = 2, FEW_STAGES = 4 };
    int x_panel = plan->x_rows * ROW_BYTES, w_panel = plan->features * ROW_BYTES;

    if (int4) {
        int bytes = INT4_PANELS * x_panel + w_panel + plan->features * SCALE_BYTES;
        plan->panels = INT4_PANELS;
        plan->stage_bytes = (int)round_up(bytes, HEAD_BYTES);
    } else {
        bool fit = FEW_STAGES * MANY_PANELS * (x_panel + w_panel) <= RING_BYTES;
        plan->panels = fit ? MANY_PANELS : FEW_PANELS;
        plan->stage_bytes = plan->panels * (x_panel + w_panel);
    }
    plan->stages = RING_BYTES / plan->stage_bytes;
    plan->stages = plan->stages < MAX_STAGES ? plan->stages : MAX_STAGES;
}

/* Stages of w that a dense product asks for ahead. int4 gains nothing by it. */
static int stages_ahead(const skinny_plan *plan, const invar_product *p)
{
    int64_t stages = invar_ceil_div(p->k[0], plan->panels * PANEL);
    int64_t wanted = AHEAD_BYTES / (plan->panels * plan->features * ROW_BYTES);

    if (p->start || p->b[0].dtype == INVAR_DTYPE_INT4)
        return 0;
    return (int)(wanted < stages ? wanted : stages);
}

/* Rows of x that a stage has room for. A group with more of them reads its weights again. */
static int rows_of_stage(const invar_product *p)
{
    int64_t rows = p->rows;

    if (p->start && 2 * invar_ceil_div(rows, p->groups) < rows)
        rows = 2 * invar_ceil_div(rows, p->groups);
    return (int)round_up(rows < MAX_ROWS ? rows : (int64_t)MAX_ROWS, 8);
}

static skinny_plan make_plan(const invar_device *dev, const invar_product_set *set)
{
    static const int bf16_sizes[] = {8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128};
    static const int int4_sizes[] = {32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128};
    static const int gated_sizes[] = {16, 32, 48, 64, 80, 96, 112, 128};
    const invar_product *p = &set->product[0];
    bool int4 = p->b[0].dtype == INVAR_DTYPE_INT4;
    int blocks = invar_cuda_of(dev)->multiprocessors;
    skinny_plan plan = {};

    plan.x_rows = rows_of_stage(p);
    plan.features = set->act ? choose_features(set, blocks, gated_sizes, 8)
                    : int4   ? choose_features(set, blocks, int4_sizes, 13)
                             : choose_features(set, blocks, bf16_sizes, 12);
    plan.warps = int4 && plan.features > 32 ? 8 : 4;
    fill_ring(&plan, int4);
    plan.ahead = stages_ahead(&plan, p);
    return plan;
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* Panels are the third index: one copy fetches several. */
static invar_tensor_box panels_of(const invar_operand *x, int64_t rows, int64_t k, int box_rows,
                                  int box_panels)
{
    invar_tensor_box box = {};

    box.data = x->data;
    box.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    box.rank = 3;
    box.extent[0] = PANEL;
    box.extent[1] = (uint64_t)rows;
    box.extent[2] = (uint64_t)k / PANEL;
    box.stride[1] = (uint64_t)x->stride * 2;
    box.stride[2] = ROW_BYTES;
    box.box[0] = PANEL;
    box.box[1] = (uint32_t)box_rows;
    box.box[2] = (uint32_t)box_panels;
    box.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    return box;
}

static skinny_rows_out rows_out(const invar_product *p, void *data, int64_t stride)
{
    uintptr_t pair = p->out_dtype == INVAR_DTYPE_BF16 ? 4 : 8;

    return {data, stride, (uintptr_t)data % pair == 0 && stride % 2 == 0};
}

static invar_status make_output(skinny_output *output, const skinny_job *job,
                                const invar_product *p)
{
    const invar_operand *b = &p->b[0];
    const skinny_plan *plan = &job->plan;
    invar_tensor_box w;

    output->w_rows = p->start ? p->groups * p->group_rows[0] : p->cols;
    output->cols = (int)p->cols;
    output->out = rows_out(p, p->out, p->out_stride);
    output->bias = p->bias;
    output->bias_bf16 = p->bias_dtype == INVAR_DTYPE_BF16;
    output->scale = (const uint8_t *)b->scale;
    output->scale_wide = (uintptr_t)b->scale % 16 == 0 && p->k[0] % (16 * 16) == 0;
    w = panels_of(b, output->w_rows, p->k[0], job->gated ? plan->features / 2 : plan->features,
                  job->gated ? 1 : plan->panels);
    w.streamed = true;
    if (b->dtype == INVAR_DTYPE_INT4) {
        w.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
        w.rank = 2;
        w.extent[0] = (uint64_t)p->k[0] / 2;
        w.stride[1] = (uint64_t)b->stride / 2;
        w.box[0] = ROW_BYTES;
    }
    return invar_tensor_map(&output->w, &w);
}

static invar_status make_job(skinny_job *job, const invar_product_set *set, const skinny_plan *plan)
{
    const invar_product *p = &set->product[0];
    invar_tensor_box x = panels_of(&p->a[0], p->rows, p->k[0], plan->x_rows, plan->panels);

    *job = {};
    job->plan = *plan;
    job->outputs = set->count;
    job->rows = (int)p->rows;
    job->k = (int)p->k[0];
    job->out_bf16 = p->out_dtype == INVAR_DTYPE_BF16;
    job->residual = p->residual;
    job->residual_stride = p->residual_stride;
    job->gated = set->act != NULL;
    job->act = rows_out(p, set->act, set->act_stride);
    job->start = p->start;
    job->groups = (int)p->groups;
    job->group_rows = (int)p->group_rows[0];
    job->tiles = (int)tiles_of(set, plan->features);
    for (int i = 0, tiles = 0; i < set->count; i++) {
        job->output[i].first_tile = tiles;
        INVAR_TRY(make_output(&job->output[i], job, &set->product[i]));
        tiles += (int)invar_ceil_div(set->product[i].cols, plan->features);
    }
    return invar_tensor_map(&job->x, &x);
}

static invar_status launch(const invar_device *dev, const invar_product *p, const skinny_job *job)
{
    const skinny_plan *plan = &job->plan;
    skinny_kernel kernel = find_kernel(plan, p->b[0].dtype == INVAR_DTYPE_INT4);
    int blocks = invar_cuda_of(dev)->multiprocessors;
    size_t shared = 2 * HEAD_BYTES + (size_t)plan->stages * plan->stage_bytes + PANEL_OVERRUN;
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)(!p->start && job->tiles < blocks ? job->tiles : blocks));
    config.blockDim = dim3((unsigned)plan->warps * 32 + 32);
    config.dynamicSmemBytes = shared;
    config.stream = invar_cuda_of(dev)->stream;
    config.attrs = &early;
    config.numAttrs = 1;
    INVAR_CUDA_TRY(
        invar_op_name(p->op),
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    INVAR_CUDA_TRY(invar_op_name(p->op), cudaLaunchKernelEx(&config, kernel, *job));
    return INVAR_OK;
}

bool invar_skinny_takes(const invar_device *dev, const invar_product *p)
{
    const invar_operand *a = &p->a[0], *b = &p->b[0];
    bool int4 = b->dtype == INVAR_DTYPE_INT4;
    int64_t max_rows = p->start ? p->groups * MAX_GROUP_ROWS : (int64_t)MAX_ROWS;

    if (dev->numerics != INVAR_NUMERICS_SM90 || p->parts != 1 || p->shards != 1)
        return false;
    if (a->dtype != INVAR_DTYPE_BF16 || (b->dtype != INVAR_DTYPE_BF16 && !int4) || a->k_outer ||
        b->k_outer)
        return false;
    if (p->groups < 1 || p->groups > MAX_GROUPS || p->rows < 1 || p->rows > max_rows ||
        p->cols < 1 || p->cols > MAX_EXTENT / p->groups || p->k[0] < 1 || p->k[0] > MAX_EXTENT)
        return false;
    if (p->k[0] % PANEL != 0 || (int4 && (uintptr_t)b->scale % 4 != 0))
        return false;
    return invar_tensor_map_takes(a->data, a->stride * 2) &&
           invar_tensor_map_takes(b->data, int4 ? b->stride / 2 : b->stride * 2);
}

bool invar_skinny_takes_set(const invar_device *dev, const invar_product_set *set)
{
    const invar_product *first = &set->product[0];
    int64_t cols = 0;

    for (int i = 0; i < set->count; i++) {
        const invar_product *p = &set->product[i];
        if (!invar_skinny_takes(dev, p) || p->start || p->out_dtype != first->out_dtype ||
            p->b[0].dtype != first->b[0].dtype)
            return false;
        cols += p->cols;
    }
    return cols <= MAX_EXTENT && (!set->act || (first->b[0].dtype == INVAR_DTYPE_BF16 &&
                                                first->out_dtype == INVAR_DTYPE_BF16));
}

invar_status invar_skinny_set(const invar_device *dev, const invar_product_set *set)
{
    skinny_plan plan = make_plan(dev, set);
    skinny_job job;

    INVAR_TRY(make_job(&job, set, &plan));
    return launch(dev, &set->product[0], &job);
}

invar_status invar_skinny(const invar_device *dev, const invar_product *p)
{
    invar_product_set set = {};

    set.product[0] = *p;
    set.count = 1;
    return invar_skinny_set(dev, &set);
}
