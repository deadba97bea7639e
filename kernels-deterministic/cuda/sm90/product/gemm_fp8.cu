/*
 * gemm_fp8.cu - products of e4m3 matrices on the tensor cores, dense or grouped.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 3, numerics sm90: per 128 of k a partial
 * chain of four steps from +0, which joins the sum by one fma with the rounded product of the two
 * scales, k ascending through all parts, each of which begins a block and may end with a short
 * one (copies fill it up with zeros); at the end -0 becomes +0, then the bias, one rounding;
 * then the residual, rounded again.
 * An element depends on its row of a, its row of b and their scales: tiles, clusters and the order
 * of work are free.
 *
 * A persistent kernel. Pairs of blocks (clusters) take units of two tiles that share the rows of a
 * or of b; the shared half is loaded once for both. In a block one thread copies stages of 128 of k
 * into a ring, and two warpgroups consume them. Adding partial chains to sums must not leave the
 * tensor cores idle: in large tiles the consumers multiply in turns and add while the other one
 * multiplies; in small tiles each has room for a second partial chain, which runs meanwhile.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <algorithm>

#include "kernels-deterministic/cuda/sm90/product/epilogue.cuh"
#include "kernels-deterministic/cuda/sm90/product/product.h"
#include "kernels-deterministic/cuda/sm90/tensor_map.h"
#include "kernels-deterministic/cuda/sm90/wgmma.cuh"

/* ---- sizes ----------------------------------------------------------------------------------- */

#define BLOCK_K INVAR_FP8_BLOCK // of a stage: one scale block, one swizzled row of 128 bytes
#define STEP_K 32
#define HALF 64 // rows of one warpgroup product
#define PAIR 2  // blocks of a cluster
#define CONSUMERS 2
#define WARPGROUP 128
#define THREADS ((1 + CONSUMERS) * WARPGROUP)
#define MAX_GROUPS 1024
#define MAX_STAGES 8
#define STAGES_BYTES (200 * 1024) // of shared memory, at most
#define BAND 8 // units of rows that are walked together, so that they share columns in the L2
#define QUAD 4 // threads that share rows of a product
#define STORED_COLS (8 * QUAD) // that are stored together

/* Tiles of COLS columns; a consumer has HALVES products of 64 rows and BUFFERS for results. */
template <int HALVES, int COLS, int BUFFERS> struct tile_sizes {
    static constexpr int halves = HALVES, cols = COLS, buffers = BUFFERS;
    static constexpr int rows = CONSUMERS * HALVES * HALF;
    static constexpr int values = HALF * COLS / WARPGROUP; /* of a product, in a thread */
    static constexpr int a_bytes = rows * BLOCK_K;
    static constexpr int stage_bytes = a_bytes + COLS * BLOCK_K;
    static constexpr int stages = std::min(MAX_STAGES, STAGES_BYTES / stage_bytes);
};

/* ---- the problem, as the kernel takes it ----------------------------------------------------- */

struct part_of_chain {
    CUtensorMap a, b;
    const float *a_scale, *b_scale;
    int32_t blocks;     /* of k */
    int32_t first;      /* of them, in the whole chain */
    int32_t group_rows; /* of b */
    int32_t bands;      /* of a group's rows that share scales */
};

struct fp8_problem {
    part_of_chain part[INVAR_LINEAR_MAX_PARTS];
    int32_t parts;
    int32_t blocks; /* of the whole chain */
    int32_t rows, cols;
    void *out;
    int64_t out_stride;
    const void *bias;
    bool bias_bf16;
    const void *residual;
    int64_t residual_stride;
    bool vectors;   /* rows of out and residual begin at multiples of 16 bytes */
    bool pair_rows; /* the tiles of a unit lie below each other and share b; else a */
    int32_t groups;
    const int64_t *start;
    invar_cuda_fault *fault;
    invar_op op;
};

/* ---- units of work --------------------------------------------------------------------------- */

struct shared_state {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    int32_t first_unit[MAX_GROUPS + 1];
    int32_t first_row[MAX_GROUPS], end_row[MAX_GROUPS];
};

template <typename S> static __device__ __forceinline__ int unit_rows(const fp8_problem &p)
{
    return S::rows * (p.pair_rows ? PAIR : 1);
}

template <typename S> static __device__ __forceinline__ int units_across(const fp8_problem &p)
{
    int cols = S::cols * (p.pair_rows ? 1 : PAIR);

    return (p.cols + cols - 1) / cols;
}

/* The rows of each group, none for one whose rows would be out of bounds, and its first unit. */
template <typename S> static __device__ void plan_units(const fp8_problem &p, shared_state *state)
{
    for (int g = (int)threadIdx.x; g < p.groups; g += THREADS) {
        int64_t first = p.start ? p.start[g] : 0, end = p.start ? p.start[g + 1] : p.rows;
        bool good = first >= 0 && first <= end && end <= p.rows && (g > 0 || first == 0) &&
                    (g + 1 < p.groups || end == p.rows);
        if (!good) {
            invar_report(p.fault, p.op, INVAR_CUDA_SEGMENTS, g);
            first = end = 0;
        }
        state->first_row[g] = (int32_t)first;
        state->end_row[g] = (int32_t)end;
        state->first_unit[g] =
            (int32_t)invar_ceil_div(end - first, unit_rows<S>(p)) * units_across<S>(p);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        int lane = (int)threadIdx.x, before = 0;
        for (int g = lane; g - lane < p.groups; g += 32) {
            int units = g < p.groups ? state->first_unit[g] : 0, sum = units;
            for (int distance = 1; distance < 32; distance *= 2) {
                int other = __shfl_up_sync(0xFFFFFFFFu, sum, distance);
                sum += lane >= distance ? other : 0;
            }
            if (g < p.groups)
                state->first_unit[g] = before + sum - units;
            before += __shfl_sync(0xFFFFFFFFu, sum, 31);
        }
        if (lane == 0)
            state->first_unit[p.groups] = before;
    }
    __syncthreads();
}

/* This block's tile of a unit. */
struct tile_place {
    int group;
    int row, end; /* first row, first row behind the group */
    int col;
};

template <typename S>
static __device__ __forceinline__ tile_place find_tile(const fp8_problem &p,
                                                       const shared_state *state, int unit,
                                                       int rank)
{
    int low = 0, high = p.groups - 1, across = units_across<S>(p);

    // the last group that begins at or before the unit; empty groups have no unit
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (state->first_unit[middle] <= unit)
            low = middle;
        else
            high = middle - 1;
    }
    int place = unit - state->first_unit[low];
    int down = (state->first_unit[low + 1] - state->first_unit[low]) / across;
    int band = place / (BAND * across), rest = place - band * (BAND * across);
    int height = min(BAND, down - band * BAND);
    int i = band * BAND + rest % height, j = rest / height;

    if (p.pair_rows)
        i = PAIR * i + rank;
    else
        j = PAIR * j + rank;
    return {low, state->first_row[low] + i * S::rows, state->end_row[low], j * S::cols};
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Rows [row, row + rows) to `to`, in two boxes; where both blocks need them, each copies one. */
static __device__ __forceinline__ void copy_rows(uint8_t *to, const CUtensorMap *map, int k,
                                                 int row, int rows, bool both, int rank,
                                                 uint64_t *barrier)
{
    int box = rows / 2;

    if (both) {
        invar_copy_in_all(to + rank * box * BLOCK_K, map, k, row + rank * box, barrier,
                          (1 << PAIR) - 1);
        return;
    }
    invar_copy_in(to, map, k, row, barrier);
    invar_copy_in(to + box * BLOCK_K, map, k, row + box, barrier);
}

template <typename S>
static __device__ void produce(const fp8_problem &p, shared_state *state, uint8_t *stages, int rank)
{
    invar_ring<S::stages> at;
    int units = state->first_unit[p.groups];

    for (int unit = (int)blockIdx.x / PAIR; unit < units; unit += (int)gridDim.x / PAIR) {
        tile_place tile = find_tile<S>(p, state, unit, rank);
        for (int i = 0; i < p.parts; i++) {
            const part_of_chain &part = p.part[i];
            int b_row = tile.group * part.group_rows + tile.col;
            for (int block = 0; block < part.blocks; block++, at.advance()) {
                uint8_t *a = stages + at.stage * S::stage_bytes, *b = a + S::a_bytes;
                uint64_t *full = &state->full[at.stage];

                invar_barrier_wait_cluster(&state->empty[at.stage], at.parity ^ 1);
                invar_barrier_expect(full, S::stage_bytes);
                copy_rows(a, &part.a, block * BLOCK_K, tile.row, S::rows, !p.pair_rows, rank, full);
                copy_rows(b, &part.b, block * BLOCK_K, b_row, S::cols, p.pair_rows, rank, full);
            }
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* What a consumer works on. */
struct consumer_task {
    const fp8_problem &p;
    const tile_place &tile;
    shared_state *state;
    const uint8_t *stages;
    int number; /* of the consumer */
    int row;    /* the thread's first */
};

/*
 * The scales of a thread's rows, for four blocks of k at a time: each thread of a quad loads those
 * of one block, a round ahead, and shuffles hand them out.
 */
template <typename S> struct scale_feed {
    static constexpr int rows = 2 * S::halves;
    const consumer_task &task;
    float now[rows], next_a[rows], next_b;

    __device__ __forceinline__ explicit scale_feed(const consumer_task &t) : task(t)
    {
        load(0);
    }

    __device__ __forceinline__ void load(int block)
    {
        const fp8_problem &p = task.p;
        int at = min(block + (int)threadIdx.x % QUAD, p.blocks - 1), i = p.parts - 1;

        while (at < p.part[i].first)
            i--;
        const part_of_chain &part = p.part[i];
        int band = task.tile.group * part.bands + min(task.tile.col, p.cols - 1) / INVAR_FP8_BLOCK;
        int64_t width = part.blocks;
        at -= part.first;
        next_b = part.b_scale[band * width + at];
#pragma unroll
        for (int r = 0; r < rows; r++) {
            int row = min(task.row + r / 2 * HALF + r % 2 * 8, p.rows - 1);
            next_a[r] = part.a_scale[row * width + at];
        }
    }

    /* Before the scales of a block are asked for; blocks ascend. */
    __device__ __forceinline__ void begin(int block)
    {
        if (block % QUAD != 0)
            return;
#pragma unroll
        for (int r = 0; r < rows; r++)
            now[r] = next_a[r] * next_b;
        load(block + QUAD);
    }

    /* Of the thread's two rows in a product. */
    __device__ __forceinline__ void get(float (&scale)[2], int half, int block) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
            scale[r] = __shfl_sync(0xFFFFFFFFu, now[2 * half + r], block % QUAD, QUAD);
    }
};

/* Starts the four steps of one product. */
template <typename S>
static __device__ __forceinline__ void multiply(float (&partial)[S::values],
                                                const consumer_task &task, int stage, int half)
{
    const uint8_t *rows = task.stages + stage * S::stage_bytes;
    uint64_t a = invar_matrix(rows + (task.number * S::halves + half) * HALF * BLOCK_K, 0,
                              8 * BLOCK_K, INVAR_SWIZZLE_128);
    uint64_t b = invar_matrix(rows + S::a_bytes, 0, 8 * BLOCK_K, INVAR_SWIZZLE_128);

    invar_product_fence();
#pragma unroll
    for (int k = 0; k < BLOCK_K; k += STEP_K)
        invar_product_e4m3<S::cols>(partial, a + k / 16, b + k / 16, k > 0);
    invar_product_commit();
}

template <int COUNT>
static __device__ __forceinline__ void promote(float (&acc)[COUNT], const float (&partial)[COUNT],
                                               const float (&scale)[2])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        acc[i] = invar_fmaf(partial[i], scale[i / 2 % 2], acc[i]);
}

/* This warp has read the stage: both blocks of the pair may copy into it. */
static __device__ __forceinline__ void give_back(const consumer_task &task, int stage)
{
    uint32_t lane = threadIdx.x % 32;

    if (lane < PAIR)
        invar_barrier_free_at(&task.state->empty[stage], lane);
}

/* Consumer i multiplies when barrier 1 + i lets it, and adds while the other one multiplies. */
template <typename S>
static __device__ __forceinline__ void
consume_in_turns(float (&acc)[S::halves][S::values], float (&partial)[S::values],
                 const consumer_task &task, invar_ring<S::stages> &at)
{
    scale_feed<S> scales(task);

    for (int block = 0; block < task.p.blocks; block++, at.advance()) {
        scales.begin(block);
        invar_barrier_wait(&task.state->full[at.stage], at.parity);
#pragma unroll
        for (int half = 0; half < S::halves; half++) {
            float scale[2];

            scales.get(scale, half, block);
            invar_named_barrier(1 + task.number, CONSUMERS * WARPGROUP);
            multiply<S>(partial, task, at.stage, half);
            invar_named_arrive(2 - task.number, CONSUMERS * WARPGROUP);
            invar_product_wait<0>();
            invar_product_hold(partial);
            if (half == S::halves - 1)
                give_back(task, at.stage);
            promote(acc[half], partial, scale);
        }
    }
}

/* The product of the next block runs while that of the one before is added. */
template <typename S>
static __device__ __forceinline__ void
consume_ahead(float (&acc)[S::values], float (&partial)[2][S::values], const consumer_task &task,
              invar_ring<S::stages> &at)
{
    scale_feed<S> scales(task);
    invar_ring<S::stages> oldest = at;
    int block = 0, blocks = task.p.blocks;

    auto start = [&](float(&into)[S::values]) {
        invar_barrier_wait(&task.state->full[at.stage], at.parity);
        multiply<S>(into, task, at.stage, 0);
        at.advance();
    };
    auto finish = [&](const auto &wait, float(&from)[S::values], int which) {
        float scale[2];

        scales.begin(which);
        scales.get(scale, 0, which);
        wait();
        invar_product_hold(from);
        give_back(task, oldest.stage);
        oldest.advance();
        promote(acc, from, scale);
    };
    auto but_one = [] { invar_product_wait<1>(); };
    auto all = [] { invar_product_wait<0>(); };

    start(partial[0]);
#pragma unroll 1
    for (; block + 2 < blocks; block += 2) {
        start(partial[1]);
        finish(but_one, partial[0], block);
        start(partial[0]);
        finish(but_one, partial[1], block + 1);
    }
    if (block + 1 < blocks) {
        start(partial[1]);
        finish(but_one, partial[0], block);
        finish(all, partial[1], block + 1);
    } else {
        finish(all, partial[0], block);
    }
}

/* ---- results --------------------------------------------------------------------------------- */

/* word[i] of thread j of a quad becomes word[j] of thread i. */
static __device__ __forceinline__ void transpose_quad(uint32_t (&word)[QUAD])
{
#pragma unroll
    for (int distance = 1; distance < QUAD; distance *= 2) {
        bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
        for (int i = 0; i < QUAD; i++) {
            if (i & distance)
                continue;
            uint32_t given = upper ? word[i] : word[i + distance];
            uint32_t taken = __shfl_xor_sync(0xFFFFFFFFu, given, distance);
            if (upper)
                word[i] = taken;
            else
                word[i + distance] = taken;
        }
    }
}

/* What a thread moves of 32 columns of a row: 8 of them, 16 bytes or 8 at a time. */
template <typename T> struct row_share {
    static constexpr int PIECE = sizeof(T) == 2 ? 8 : 2, PIECES = 8 / PIECE;
    invar_run<T, PIECE> run[PIECES];

    static __device__ __forceinline__ int column(int piece)
    {
        return 8 * piece + PIECE * ((int)threadIdx.x % QUAD);
    }
    __device__ __forceinline__ void load(const T *row, bool vectors)
    {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            run[i].load(row + column(i), PIECE, vectors);
    }
    __device__ __forceinline__ void store(T *row, bool vectors) const
    {
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            run[i].store(row + column(i), PIECE, vectors);
    }
    /* residual + this, as `add` has it. */
    __device__ __forceinline__ void add(const row_share &residual)
    {
        float sum[PIECE];
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
#pragma unroll
            for (int j = 0; j < PIECE; j++)
                sum[j] = residual.run[i].get(j) + run[i].get(j);
            run[i].set(sum);
        }
    }
};

/* From products, of which value(i, r) is column 8 i + 2 (t % 4) + r of the 32. */
template <typename F>
static __device__ __forceinline__ void take_share(row_share<__nv_bfloat16> &share, F value)
{
#pragma unroll
    for (int i = 0; i < QUAD; i++)
        share.run[0].word[i] = invar_bf16x2_bits(value(i, 0), value(i, 1));
    transpose_quad(share.run[0].word);
}

template <typename F>
static __device__ __forceinline__ void take_share(row_share<float> &share, F value)
{
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        float both[2] = {value(i, 0), value(i, 1)};
        share.run[i].set(both);
    }
}

static __device__ __forceinline__ float load_bias(const fp8_problem &p, int col)
{
    if (!p.bias)
        return 0.0f;
    return p.bias_bf16 ? invar_load((const __nv_bfloat16 *)p.bias + col)
                       : invar_load((const float *)p.bias + col);
}

/* Asks for what the thread will need of the residual: what lies in memory takes a while. */
template <typename S, typename T>
static __device__ __forceinline__ void ask_for_residual(const fp8_problem &p,
                                                        const tile_place &tile, int row)
{
    constexpr int LINE = 128 / (int)sizeof(T);

    if (!p.residual || tile.col >= p.cols)
        return;
#pragma unroll
    for (int r = 0; r < 2 * S::halves; r++) {
        int at = row + r / 2 * HALF + r % 2 * 8;
        for (int col = (int)threadIdx.x % QUAD * LINE; col < S::cols; col += QUAD * LINE)
            if (at < tile.end && tile.col + col < p.cols)
                invar_fetch_to_cache((const T *)p.residual + at * p.residual_stride + tile.col +
                                     col);
    }
}

template <typename S, typename T>
static __device__ __forceinline__ void store_tile(const fp8_problem &p, const tile_place &tile,
                                                  float (&acc)[S::halves][S::values], int row)
{
    int col = tile.col + 2 * ((int)threadIdx.x % QUAD);

#pragma unroll
    for (int first = 0; first < S::cols / 8; first += QUAD) {
        if (tile.col + 8 * first >= p.cols)
            return;
        row_share<T> share, residual[2];
        float bias[QUAD][2];
        auto line = [&](auto *data, int64_t stride, int r) {
            return data + (row + r / 2 * HALF + r % 2 * 8) * stride + tile.col + 8 * first;
        };
        auto inside = [&](int r) { return row + r / 2 * HALF + r % 2 * 8 < tile.end; };
#pragma unroll
        for (int i = 0; i < QUAD; i++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                bias[i][r] = load_bias(p, col + 8 * (first + i) + r);
#pragma unroll
        for (int r = 0; r < 2 * S::halves; r++) {
            if (r % 2 == 0 && p.residual && inside(r))
                residual[0].load(line((const T *)p.residual, p.residual_stride, r), p.vectors);
            if (r % 2 == 0 && p.residual && inside(r + 1))
                residual[1].load(line((const T *)p.residual, p.residual_stride, r + 1), p.vectors);
            take_share(share, [&](int i, int c) {
                float sum = acc[r / 2][4 * (first + i) + 2 * (r % 2) + c] + 0.0f;
                // without a bias the zero changes nothing: the sum is no longer -0
                return sum + bias[i][c];
            });
            if (!inside(r))
                continue;
            if (p.residual)
                share.add(residual[r % 2]);
            share.store(line((T *)p.out, p.out_stride, r), p.vectors);
        }
    }
}

/* ---- kernel ---------------------------------------------------------------------------------- */

template <typename S, typename T>
static __device__ __forceinline__ void consume_units(const fp8_problem &p, shared_state *state,
                                                     const uint8_t *stages, int rank)
{
    int number = (int)invar_uniform(threadIdx.x / WARPGROUP - 1);
    int thread = (int)threadIdx.x % WARPGROUP, units = state->first_unit[p.groups];
    float partial[S::buffers][S::values] = {};
    invar_ring<S::stages> at;

    if (S::buffers == 1 && number == 1) // the first turn is consumer 0's
        invar_named_arrive(1, CONSUMERS * WARPGROUP);
    for (int unit = (int)blockIdx.x / PAIR; unit < units; unit += (int)gridDim.x / PAIR) {
        tile_place tile = find_tile<S>(p, state, unit, rank);
        int row = tile.row + number * S::halves * HALF + thread / 32 * 16 + thread % 32 / QUAD;
        consumer_task task = {p, tile, state, stages, number, row};
        float acc[S::halves][S::values] = {};
        ask_for_residual<S, T>(p, tile, row);
        if constexpr (S::buffers == 1)
            consume_in_turns<S>(acc, partial[0], task, at);
        else
            consume_ahead<S>(acc[0], partial, task, at);
        store_tile<S, T>(p, tile, acc, row);
    }
    if (S::buffers == 1 && number == 0) // takes the turn that nobody uses
        invar_named_barrier(1, CONSUMERS * WARPGROUP);
}

template <typename S, typename T>
static __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(THREADS, 1)
    gemm_fp8(const __grid_constant__ fp8_problem p)
{
    extern __shared__ uint8_t memory[];
    uint8_t *stages = memory + (-invar_shared_address(memory) & 1023u);
    auto *state = (shared_state *)(stages + S::stages * S::stage_bytes);
    int rank = (int)invar_cluster_rank();

    if (threadIdx.x == 0) {
        for (int i = 0; i < S::stages; i++) {
            invar_barrier_init(&state->full[i], 1);
            invar_barrier_init(&state->empty[i], PAIR * CONSUMERS * WARPGROUP / 32);
        }
        invar_barrier_init_done();
    }
    plan_units<S>(p, state);
    invar_cluster_sync();

    if (threadIdx.x < WARPGROUP) {
        invar_registers_down<40>();
        if (threadIdx.x == 0)
            produce<S>(p, state, stages, rank);
        __syncwarp();
    } else {
        invar_registers_up<232>();
        consume_units<S, T>(p, state, stages, rank);
    }
    // the other block may still copy into this one's memory, or tell its barriers
    invar_cluster_sync();
}

/* ---- launch ---------------------------------------------------------------------------------- */

static bool takes_operand(const invar_operand *o, int32_t scale_rows)
{
    return o->dtype == INVAR_DTYPE_FP8 && o->scale_rows == scale_rows && !o->k_outer &&
           invar_tensor_map_takes(o->data, o->stride);
}

bool invar_gemm_fp8_takes(const invar_device *dev, const invar_product *p)
{
    int64_t blocks = 0;

    if (dev->numerics != INVAR_NUMERICS_SM90 || p->shards != 1 || p->groups > MAX_GROUPS ||
        p->cols % STORED_COLS != 0)
        return false;
    for (int i = 0; i < p->parts; i++) {
        if (!takes_operand(&p->a[i], 1) || !takes_operand(&p->b[i], INVAR_FP8_BLOCK) ||
            p->k[i] <= 0 || p->groups * p->group_rows[i] + p->cols > INT32_MAX / 2)
            return false;
        blocks += invar_ceil_div(p->k[i], BLOCK_K);
    }
    // rows, columns and units are counted in 32 bits
    return blocks <= INT32_MAX / BLOCK_K && p->rows <= INT32_MAX / 2 && p->groups > 0 &&
           invar_ceil_div(p->rows, INVAR_FP8_BLOCK) * (p->cols / INVAR_FP8_BLOCK + 2) <=
               INT32_MAX / p->groups;
}

/* A matrix with k contiguous, in boxes of `box` rows. */
static invar_status map_matrix(CUtensorMap *out, const invar_operand *o, int64_t k, int64_t rows,
                               int box)
{
    invar_tensor_box description = {};

    description.data = o->data;
    description.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    description.rank = 2;
    description.extent[0] = (uint64_t)k;
    description.extent[1] = (uint64_t)rows;
    description.stride[1] = (uint64_t)o->stride;
    description.box[0] = BLOCK_K;
    description.box[1] = (uint32_t)box;
    description.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    return invar_tensor_map(out, &description);
}

/* Units of two tiles, at most: the host does not know how the rows are divided among groups. */
template <typename S> static int64_t count_units(const invar_product *p, bool pair_rows)
{
    int64_t rows = S::rows * (pair_rows ? PAIR : 1), cols = S::cols * (pair_rows ? 1 : PAIR);

    return (invar_ceil_div(p->rows, rows) + p->groups - 1) * invar_ceil_div(p->cols, cols);
}

static invar_status describe(fp8_problem *out, const invar_device *dev, const invar_product *p,
                             int a_box, int b_box)
{
    int64_t out_bytes = invar_dtype_bits(p->out_dtype) / 8;

    *out = {};
    out->parts = p->parts;
    out->rows = (int32_t)p->rows;
    out->cols = (int32_t)p->cols;
    out->out = p->out;
    out->out_stride = p->out_stride;
    out->bias = p->bias;
    out->bias_bf16 = p->bias_dtype == INVAR_DTYPE_BF16;
    out->residual = p->residual;
    out->residual_stride = p->residual_stride;
    out->vectors =
        invar_tensor_map_takes(p->out, p->out_stride * out_bytes) &&
        (!p->residual || invar_tensor_map_takes(p->residual, p->residual_stride * out_bytes));
    out->groups = (int32_t)p->groups;
    out->start = p->start;
    out->fault = invar_cuda_of(dev)->fault;
    out->op = p->op;
    for (int i = 0; i < p->parts; i++) {
        part_of_chain *part = &out->part[i];
        INVAR_TRY(map_matrix(&part->a, &p->a[i], p->k[i], p->rows, a_box));
        INVAR_TRY(map_matrix(&part->b, &p->b[i], p->k[i],
                             (p->groups - 1) * p->group_rows[i] + p->cols, b_box));
        part->a_scale = (const float *)p->a[i].scale;
        part->b_scale = (const float *)p->b[i].scale;
        part->blocks = (int32_t)invar_ceil_div(p->k[i], BLOCK_K);
        part->first = out->blocks;
        part->group_rows = (int32_t)p->group_rows[i];
        part->bands = (int32_t)invar_ceil_div(p->group_rows[i], INVAR_FP8_BLOCK);
        out->blocks += part->blocks;
    }
    return INVAR_OK;
}

template <typename S>
static invar_status launch(const invar_device *dev, const invar_product *p, bool pair_rows)
{
    size_t shared = 1024 + S::stages * S::stage_bytes + sizeof(shared_state);
    int64_t pairs =
        std::min<int64_t>(count_units<S>(p, pair_rows), invar_cuda_of(dev)->multiprocessors / PAIR);
    fp8_problem problem;

    INVAR_TRY(describe(&problem, dev, p, S::rows / 2, S::cols / 2));
    problem.pair_rows = pair_rows;
    return invar_by_storage(p->out_dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return invar_launch(dev, p->op, gemm_fp8<S, T>, (unsigned)(PAIR * pairs), THREADS,
                            shared)(problem);
    });
}

/* An odd number of columns of tiles would leave one block of a pair idle. */
template <typename S> static bool choose_pair_rows(const invar_product *p)
{
    return invar_ceil_div(p->cols, S::cols) % 2 != 0 && p->rows > S::rows;
}

/* A choice of tiles: `cost` is what a unit takes, relative to the others. */
struct tiling {
    int cost;
    int64_t (*units)(const invar_product *p);
    invar_status (*launch)(const invar_device *dev, const invar_product *p);
};

template <typename S> static constexpr tiling tiling_of(int cost)
{
    return {cost, [](const invar_product *p) { return count_units<S>(p, choose_pair_rows<S>(p)); },
            [](const invar_device *dev, const invar_product *p) {
                return launch<S>(dev, p, choose_pair_rows<S>(p));
            }};
}

static const tiling tilings[] = {
    tiling_of<tile_sizes<2, 128, 1>>(20),
    tiling_of<tile_sizes<1, 128, 2>>(11),
    tiling_of<tile_sizes<1, 64, 2>>(8),
};

invar_status invar_gemm_fp8(const invar_device *dev, const invar_product *p)
{
    int64_t least = INT64_MAX, at_once = invar_cuda_of(dev)->multiprocessors / PAIR;
    const tiling *best = &tilings[0];

    if (p->rows == 0 || p->cols == 0)
        return INVAR_OK;
    for (const tiling &t : tilings) {
        int64_t cost = invar_ceil_div(t.units(p), at_once) * t.cost;
        if (cost < least) {
            least = cost;
            best = &t;
        }
    }
    return best->launch(dev, p);
}
