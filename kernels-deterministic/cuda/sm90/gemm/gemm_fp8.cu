/*
 * gemm_fp8.cu - products of e4m3 matrices on tensor cores, dense or grouped by expert.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 3, numerics sm90: per 128 of k a partial
 * chain of four steps from +0, which joins the sum by one fma with the rounded product of the two
 * scales, k ascending through all parts. Each part begins a block and may end with a short one,
 * which copies fill up with zeros. At the end -0 becomes +0, then the bias, one rounding; then the
 * residual, rounded again. An element depends on its row of a, its row of b and their scales:
 * tiles, clusters and the order of work are free.
 *
 * The kernel is persistent. Clusters of two blocks take units of two tiles that share the rows of a
 * or of b; the shared half is loaded once for both. In a block one thread copies stages of 128 of k
 * into a ring, two warps load scales, and two warpgroups consume both; one more warp stores their
 * results while they compute the next tile. Adding partial chains to sums must not leave the tensor
 * cores idle: in large tiles one consumer adds while the other multiplies, and has requested all
 * that its next product needs; in small tiles each consumer has registers for a second partial
 * chain, which runs meanwhile.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <algorithm>

#include "kernels-deterministic/cuda/sm90/gemm/epilogue.cuh"
#include "kernels-deterministic/cuda/sm90/gemm/gemm_fp8.cuh"
#include "kernels-deterministic/cuda/sm90/tensor_map.h"
#include "kernels-deterministic/cuda/sm90/wgmma.cuh"

/* ---- copies ---------------------------------------------------------------------------------- */

/* Copies a box of rows to `to`. If both blocks need them, each copies half of them to both. */
static __device__ __forceinline__ void copy_rows(uint8_t *to, const CUtensorMap *map, int k,
                                                 int row, int rows, bool both, int rank,
                                                 uint64_t *barrier)
{
    int half = rows / PAIR;

    if (both)
        invar_copy_in_all(to + rank * half * BLOCK_K, map, k, row + rank * half, barrier,
                          (1 << PAIR) - 1);
    else
        invar_copy_in(to, map, k, row, barrier);
}

/* Copies the stages of all tiles, by one thread. */
template <typename S>
static __device__ void copy_stages(const fp8_problem &p, shared_state<S> *shared, int rank)
{
    invar_ring<S::stages> at;
    int units = shared->first_unit[p.groups];

    for (int unit = (int)blockIdx.x / PAIR; unit < units; unit += (int)gridDim.x / PAIR) {
        tile_coord tile = find_tile<S>(p, shared, unit, rank);
        for (int i = 0; i < p.parts; i++) {
            const k_part &part = p.part[i];
            int b_row = tile.group * part.group_rows + tile.col;
            for (int block = 0; block < part.blocks; block++, at.advance()) {
                uint8_t *a = shared->stage[at.stage], *b = a + S::a_bytes;
                uint64_t *full = &shared->full[at.stage];

                invar_barrier_wait_cluster(&shared->empty[at.stage], at.parity ^ 1);
                if (i == 0 && block == 0)
                    shared->place[at.stage] = tile;
                invar_barrier_expect(full, S::stage_bytes);
                copy_rows(a, &part.a, block * BLOCK_K, tile.row, S::rows, !p.pair_rows, rank, full);
                copy_rows(b, &part.b, block * BLOCK_K, b_row, S::cols, p.pair_rows, rank, full);
            }
        }
    }
}

/* Starts loading the scales from `block` on, at most SCALE_RUN of them, to `to`. */
static __device__ __forceinline__ void load_scale_run(float *to, const float *from, int block,
                                                      int blocks)
{
    if (blocks % SCALE_RUN == 0 && ((uintptr_t)from & 15) == 0) {
        invar_load_async_16(to, from + block);
        return;
    }
#pragma unroll
    for (int i = 0; i < SCALE_RUN; i++)
        if (block + i < blocks)
            invar_load_async_4(to + i, from + block + i);
}

/* Loads the scales of all tiles by two warps, SCALE_RUN blocks of k at a time. */
template <typename S>
static __device__ void load_scales(const fp8_problem &p, shared_state<S> *shared, int rank)
{
    invar_ring<SCALE_SLOTS> at;
    int thread = (int)threadIdx.x - WARP, units = shared->first_unit[p.groups];

    for (int unit = (int)blockIdx.x / PAIR; unit < units; unit += (int)gridDim.x / PAIR) {
        tile_coord tile = find_tile<S>(p, shared, unit, rank);
        for (int i = 0; i < p.parts; i++) {
            const k_part &part = p.part[i];
            int64_t width = part.blocks;
            int band = tile.group * part.bands + min(tile.col, p.cols - 1) / INVAR_FP8_BLOCK;

            for (int block = 0; block < part.blocks; block += SCALE_RUN, at.advance()) {
                invar_barrier_wait(&shared->scale_empty[at.stage], at.parity ^ 1);
#pragma unroll
                for (int j = 0; j < S::rows / FEEDERS; j++) {
                    int row = thread + j * FEEDERS;
                    load_scale_run(shared->a_scale[at.stage][row],
                                   part.a_scale + min(tile.row + row, p.rows - 1) * width, block,
                                   part.blocks);
                }
                if (thread == 0)
                    load_scale_run(shared->b_scale[at.stage], part.b_scale + band * width, block,
                                   part.blocks);
                invar_load_async_arrive(&shared->scale_full[at.stage]);
            }
        }
    }
}

/* Returns whether the results go through `out` to the storing warp. */
template <typename T> static __device__ __forceinline__ bool has_storer(const fp8_problem &p)
{
    return sizeof(T) == sizeof(bf16) && p.vectors && !p.residual;
}

/* Stores the results of all tiles by one warp, while the consumers compute the next tile. */
template <typename S>
static __device__ void store_results(const fp8_problem &p, shared_state<S> *shared, int rank)
{
    constexpr int CHUNKS = S::cols * (int)sizeof(bf16) / 16, AT_ONCE = WARP / CHUNKS, BATCH = 4;
    int lane = (int)threadIdx.x % WARP, units = shared->first_unit[p.groups];
    int chunk = lane % CHUNKS, row_of_lane = lane / CHUNKS;
    uint32_t parity = 0;

    for (int unit = (int)blockIdx.x / PAIR; unit < units; unit += (int)gridDim.x / PAIR) {
        tile_coord tile = find_tile<S>(p, shared, unit, rank);
        bool mine = row_of_lane < AT_ONCE && tile.col + 8 * chunk < p.cols;
        for (int c = 0; c < CONSUMERS; c++) {
            int first = tile.row + c * S::own_rows, rows = min(S::own_rows, tile.end - first);
            bf16 *to = (bf16 *)p.out + (first + row_of_lane) * p.out_stride + tile.col + 8 * chunk;
            const uint8_t *from = shared->out[c][row_of_lane] + 16 * chunk;
            invar_barrier_wait(&shared->out_full[c], parity);
            for (int row = mine ? row_of_lane : rows; row < rows; row += BATCH * AT_ONCE) {
                uint4 value[BATCH];
#pragma unroll
                for (int i = 0; i < BATCH; i++)
                    value[i] = *(const uint4 *)(from + i * AT_ONCE * S::out_pitch);
#pragma unroll
                for (int i = 0; i < BATCH; i++) {
                    if (row + i * AT_ONCE < rows)
                        *(uint4 *)to = value[i];
                    to += AT_ONCE * p.out_stride;
                }
                from += BATCH * AT_ONCE * S::out_pitch;
            }
            __syncwarp();
            if (lane == 0)
                invar_barrier_arrive(&shared->out_empty[c]);
        }
        parity ^= 1;
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Consumer warpgroup: addresses of its stages, and its progress. */
template <typename S> struct consumer {
    shared_state<S> *shared;
    uint32_t a, b; /* addresses of the matrices of stage 0; a: the consumer's own rows */
    int number;
    int row; /* the thread's first row of a tile */
    invar_ring<S::stages> at;
    bool ready; /* the next stage is known to be full */
    invar_ring<SCALE_SLOTS> scales;
    int used;           /* blocks of the slot that have been used */
    int part, left;     /* current part of the chain, and its blocks that are left */
    uint32_t free_at;   /* empty[0] of the block to which the thread reports free stages; 0 if there
                           is none */
    uint32_t out_phase; /* parity of `out` */
};

/* Returns the offset of the matrices of a stage from those of stage 0, in units of 16 bytes. */
template <typename S> static __device__ __forceinline__ uint32_t stage_offset(int stage)
{
    return (uint32_t)stage * (S::stage_bytes / 16);
}

/* Starts the four steps of one product of the stage at this offset. */
template <typename S>
static __device__ __forceinline__ void
start_product(float (&partial)[S::values], const consumer<S> &me, uint32_t offset, int half)
{
    constexpr uint64_t FORM = (uint64_t)INVAR_SWIZZLE_128 << 62 | (uint64_t)(8 * BLOCK_K / 16)
                                                                      << 32;
    uint32_t a = me.a + offset + half * (HALF * BLOCK_K / 16), b = me.b + offset;

    invar_product_fence();
#pragma unroll
    for (int k = 0; k < BLOCK_K; k += STEP_K)
        invar_product_e4m3<S::cols>(partial, FORM | (a + k / 16), FORM | (b + k / 16), k > 0);
    invar_product_commit();
}

/* Scales of the thread's two rows in a product: rounded products of those of a and of b. */
template <typename S> struct row_scales {
    float value[2];

    __device__ __forceinline__ row_scales(const consumer<S> &me, int half)
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
            value[r] = me.shared->a_scale[me.scales.stage][me.row + half * HALF + 8 * r][me.used] *
                       me.shared->b_scale[me.scales.stage][me.used];
    }
};

/*
 * Waits for the scales before the first block that uses them. end_scales releases them after the
 * last one.
 */
template <typename S> static __device__ __forceinline__ void begin_scales(const consumer<S> &me)
{
    if (me.used == 0)
        invar_barrier_wait(&me.shared->scale_full[me.scales.stage], me.scales.parity);
}

template <typename S>
static __device__ __forceinline__ void end_scales(consumer<S> &me, const fp8_problem &p)
{
    me.used++;
    me.left--;
    if (me.used < SCALE_RUN && me.left > 0)
        return;
    if (threadIdx.x % WARP == 0)
        invar_barrier_arrive(&me.shared->scale_empty[me.scales.stage]);
    me.scales.advance();
    me.used = 0;
    if (me.left == 0) {
        me.part = me.part + 1 < p.parts ? me.part + 1 : 0;
        me.left = p.part[me.part].blocks;
    }
}

template <typename S>
static __device__ __forceinline__ void promote_partial(float (&acc)[S::values],
                                                       const float (&partial)[S::values],
                                                       const row_scales<S> &scale)
{
#pragma unroll
    for (int i = 0; i < S::values; i++)
        acc[i] = invar_fmaf(partial[i], scale.value[i / 2 % 2], acc[i]);
}

/* Reports that this warp has read the stage: both blocks of the cluster may copy into it. */
template <typename S>
static __device__ __forceinline__ void release_stage(const consumer<S> &me, int stage)
{
    if (me.free_at != 0)
        invar_barrier_free(me.free_at + (uint32_t)(stage * sizeof(uint64_t)));
}

/*
 * Computes one product after the other: this consumer adds while the other one multiplies. All that
 * a product waits for is requested before the sums of the previous one.
 */
template <typename S>
static __device__ __forceinline__ void consume_one(float (&acc)[S::halves][S::values],
                                                   float (&partial)[S::values], consumer<S> &me,
                                                   const fp8_problem &p)
{
    uint32_t offset = stage_offset<S>(me.at.stage);
#pragma unroll 2
    for (int block = 0; block < p.blocks; block++) {
        int stage = me.at.stage;
        uint32_t here = offset;

        if (!me.ready)
            invar_barrier_wait(&me.shared->full[stage], me.at.parity);
        begin_scales(me);
        me.at.advance();
        offset = me.at.stage == 0 ? 0 : offset + S::stage_bytes / 16;
#pragma unroll
        for (int half = 0; half < S::halves; half++) {
            row_scales<S> scale(me, half);
            start_product<S>(partial, me, here, half);
            if (half == S::halves - 1)
                end_scales(me, p);
            invar_product_wait<0>();
            invar_product_hold(partial);
            if (half == S::halves - 1) {
                release_stage(me, stage);
                me.ready = invar_barrier_over(&me.shared->full[me.at.stage], me.at.parity);
            }
            promote_partial<S>(acc[half], partial, scale);
        }
    }
}

/* Computes a product while the partial chain of the previous block is added. */
template <typename S>
static __device__ __forceinline__ void consume_ahead(float (&acc)[S::values],
                                                     float (&partial)[2][S::values],
                                                     consumer<S> &me, const fp8_problem &p)
{
    invar_ring<S::stages> oldest = me.at;
    int block = 0, blocks = p.blocks;

    auto start = [&](float(&into)[S::values]) {
        invar_barrier_wait(&me.shared->full[me.at.stage], me.at.parity);
        begin_scales(me);
        row_scales<S> scale(me, 0);
        start_product<S>(into, me, stage_offset<S>(me.at.stage), 0);
        end_scales(me, p);
        me.at.advance();
        return scale;
    };
    auto finish = [&](const auto &wait, float(&from)[S::values], const row_scales<S> &scale) {
        wait();
        invar_product_hold(from);
        release_stage(me, oldest.stage);
        oldest.advance();
        promote_partial<S>(acc, from, scale);
    };
    auto but_one = [] { invar_product_wait<1>(); };
    auto all = [] { invar_product_wait<0>(); };

    row_scales<S> even = start(partial[0]);
#pragma unroll 1
    for (; block + 2 < blocks; block += 2) {
        row_scales<S> odd = start(partial[1]);
        finish(but_one, partial[0], even);
        even = start(partial[0]);
        finish(but_one, partial[1], odd);
    }
    if (block + 1 < blocks) {
        row_scales<S> odd = start(partial[1]);
        finish(but_one, partial[0], even);
        finish(all, partial[1], odd);
    } else {
        finish(all, partial[0], even);
    }
    me.ready = false;
}

/* ---- results --------------------------------------------------------------------------------- */

static __device__ __forceinline__ float load_bias(const fp8_problem &p, int col)
{
    return p.bias_bf16 ? invar_load((const bf16 *)p.bias + col)
                       : invar_load((const float *)p.bias + col);
}

/* Turns -0 into +0, then adds the bias. */
template <typename S>
static __device__ __forceinline__ void finish_sums(const fp8_problem &p, const tile_coord &tile,
                                                   float (&acc)[S::halves][S::values])
{
    int col = tile.col + 2 * ((int)threadIdx.x % QUAD);

#pragma unroll
    for (int half = 0; half < S::halves; half++)
#pragma unroll
        for (int i = 0; i < S::values; i++)
            acc[half][i] += 0.0f;
    if (!p.bias)
        return;
#pragma unroll
    for (int i = 0; i < S::values / 4; i++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float bias = tile.col + 8 * i < p.cols ? load_bias(p, col + 8 * i + c) : 0.0f;
#pragma unroll
            for (int half = 0; half < S::halves; half++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    acc[half][4 * i + 2 * r + c] += bias;
        }
}

/* Prefetches the warp's rows of the residual, because memory is slow. */
template <typename S, typename T>
static __device__ __forceinline__ void ask_for_residual(const fp8_problem &p,
                                                        const tile_coord &tile, int row)
{
    constexpr int LINE = 128 / (int)sizeof(T);
    int lane = (int)threadIdx.x % WARP, at = row + lane / 16 * HALF + lane % 16;

    if (!p.residual || lane >= S::own_rows / 4 || at >= tile.end)
        return;
#pragma unroll 1
    for (int col = tile.col; col < min(tile.col + S::cols, p.cols); col += LINE)
        invar_fetch_to_cache((const T *)p.residual + at * p.residual_stride + col);
}

/* Stores any type and alignment straight from the sums; `row` is the thread's first row. */
template <typename S, typename T>
static __device__ __forceinline__ void store_each(const fp8_problem &p, const tile_coord &tile,
                                                  const float (&acc)[S::halves][S::values], int row)
{
    int quad = 2 * ((int)threadIdx.x % QUAD);

#pragma unroll
    for (int r = 0; r < 2 * S::halves; r++) {
        int64_t at = row + r / 2 * HALF + r % 2 * 8;
        if (at >= tile.end)
            continue;
        for (int i = 0; i < S::values / 4 && tile.col + 8 * i < p.cols; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                int col = tile.col + 8 * i + quad + c;
                float y = acc[r / 2][4 * i + 2 * (r % 2) + c];
                if (p.residual)
                    y = invar_with_residual((const T *)p.residual + at * p.residual_stride + col,
                                            y);
                invar_store((T *)p.out + at * p.out_stride + col, y);
            }
    }
}

/* Gathers bf16 rows in `out`. The storing warp stores them; with a residual, this warp does. */
template <typename S>
static __device__ __forceinline__ void store_rows(const fp8_problem &p, const tile_coord &tile,
                                                  const float (&acc)[S::halves][S::values],
                                                  consumer<S> &me, int warp_row)
{
    constexpr int CHUNKS = S::cols * (int)sizeof(bf16) / 16;
    int lane = (int)threadIdx.x % WARP, own = warp_row - me.number * S::own_rows;
    auto *out = me.shared->out[me.number] + own;

    if (!p.residual)
        invar_barrier_wait(&me.shared->out_empty[me.number], me.out_phase ^ 1);
    __syncwarp();
#pragma unroll
    for (int half = 0; half < S::halves; half++)
#pragma unroll
        for (int i = 0; i < S::values; i += 8) {
            uint32_t word[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                word[j] = invar_bf16x2_bits(acc[half][i + 2 * j], acc[half][i + 2 * j + 1]);
            invar_store_matrices(out[half * HALF + lane % 16] + lane / 16 * 16 + 4 * i, word);
        }
    __syncwarp();
    if (!p.residual) {
        if (lane == 0)
            invar_barrier_arrive(&me.shared->out_full[me.number]);
        me.out_phase ^= 1;
        return;
    }
#pragma unroll 4
    for (int i = lane; i < S::own_rows / 4 * CHUNKS; i += WARP) {
        int row = i / CHUNKS / 16 * HALF + i / CHUNKS % 16, col = i % CHUNKS * 8;
        int64_t at = tile.row + warp_row + row;
        if (at >= tile.end || tile.col + col >= p.cols)
            continue;
        const bf16 *residual = (const bf16 *)p.residual + at * p.residual_stride + tile.col + col;
        *(uint4 *)((bf16 *)p.out + at * p.out_stride + tile.col + col) = invar_with_residual(
            *(const uint4 *)residual, *(const uint4 *)(out[row] + 2 * col), (const bf16 *)nullptr);
    }
}

/* ---- kernel ---------------------------------------------------------------------------------- */

template <typename S, typename T>
static __device__ __forceinline__ void consume_units(const fp8_problem &p, shared_state<S> *shared)
{
    int number = (int)invar_uniform(threadIdx.x / WARPGROUP - 1);
    int thread = (int)threadIdx.x % WARPGROUP, units = shared->first_unit[p.groups];
    int warp_row = number * S::halves * HALF + thread / WARP * 16;
    consumer<S> me = {};

    me.shared = shared;
    me.b = invar_uniform((invar_shared_address(shared->stage[0]) + S::a_bytes) / 16);
    me.a = invar_uniform(invar_shared_address(shared->stage[0]) / 16 +
                         (uint32_t)(number * S::halves * HALF * BLOCK_K / 16));
    me.number = number;
    me.row = warp_row + thread % WARP / QUAD;
    me.left = p.part[0].blocks;
    if (thread % WARP < PAIR)
        me.free_at = invar_barrier_there(shared->empty, (uint32_t)(thread % WARP));
    float partial[S::buffers][S::values] = {};
    for (int unit = (int)blockIdx.x / PAIR; unit < units; unit += (int)gridDim.x / PAIR) {
        float acc[S::halves][S::values] = {};

        if (!me.ready)
            invar_barrier_wait(&shared->full[me.at.stage], me.at.parity);
        me.ready = true;
        tile_coord tile = shared->place[me.at.stage];
        ask_for_residual<S, T>(p, tile, tile.row + warp_row);
        if constexpr (S::buffers == 1)
            consume_one<S>(acc, partial[0], me, p);
        else
            consume_ahead<S>(acc[0], partial, me, p);
        finish_sums<S>(p, tile, acc);
        if (sizeof(T) == sizeof(bf16) && p.vectors)
            store_rows<S>(p, tile, acc, me, warp_row);
        else
            store_each<S, T>(p, tile, acc, tile.row + me.row);
    }
}

template <typename S, typename T>
static __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(THREADS, 1)
    gemm_fp8(const __grid_constant__ fp8_problem p)
{
    extern __shared__ uint8_t memory[];
    uint32_t address = invar_shared_address(memory);
    // the compiler keeps a value that it cannot know, and would compute a known one again and again
    address = invar_uniform((address + 1023u) & ~1023u);
    auto *shared = (shared_state<S> *)__cvta_shared_to_generic(address);
    int rank = (int)invar_cluster_rank();

    if (threadIdx.x == 0) {
        for (int i = 0; i < S::stages; i++) {
            invar_barrier_init(&shared->full[i], 1);
            invar_barrier_init(&shared->empty[i], PAIR * CONSUMERS * WARPGROUP / WARP);
        }
        for (int i = 0; i < SCALE_SLOTS; i++) {
            invar_barrier_init(&shared->scale_full[i], FEEDERS);
            invar_barrier_init(&shared->scale_empty[i], CONSUMERS * WARPGROUP / WARP);
        }
        for (int i = 0; i < CONSUMERS; i++) {
            invar_barrier_init(&shared->out_full[i], WARPGROUP / WARP);
            invar_barrier_init(&shared->out_empty[i], 1);
        }
        invar_barrier_init_done();
    }
    plan_units<S>(p, shared);
    invar_cluster_sync();

    if (threadIdx.x < WARPGROUP) {
        invar_registers_down<40>();
        if (threadIdx.x == 0)
            copy_stages<S>(p, shared, rank);
        else if (threadIdx.x >= WARP && threadIdx.x < WARP + FEEDERS)
            load_scales<S>(p, shared, rank);
        else if (threadIdx.x >= WARP + FEEDERS && has_storer<T>(p))
            store_results<S>(p, shared, rank);
        __syncwarp();
    } else {
        invar_registers_up<232>();
        consume_units<S, T>(p, shared);
    }
    // the other block may still copy into this one's memory, or signal its barriers
    invar_cluster_sync();
}

/* ---- launch ---------------------------------------------------------------------------------- */

static bool supports_operand(const invar_gemm_operand *o, int32_t scale_rows)
{
    return o->dtype == INVAR_DTYPE_FP8 && o->scale_rows == scale_rows && !o->k_outer &&
           invar_tensor_map_takes(o->data, o->stride);
}

bool invar_gemm_fp8_takes(const invar_device *dev, const invar_gemm *p)
{
    int64_t blocks = 0;

    if (dev->numerics != INVAR_NUMERICS_SM90 || p->shards != 1 || p->groups > MAX_GROUPS ||
        p->cols % STORED_COLS != 0)
        return false;
    for (int i = 0; i < p->parts; i++) {
        if (!supports_operand(&p->a[i], 1) || !supports_operand(&p->b[i], INVAR_FP8_BLOCK) ||
            p->k[i] <= 0 || p->groups * p->group_rows[i] + p->cols > INT32_MAX / 2)
            return false;
        blocks += invar_ceil_div(p->k[i], BLOCK_K);
    }
    // rows, columns and units are counted in 32 bits
    return blocks <= INT32_MAX / BLOCK_K && p->rows <= INT32_MAX / 2 && p->groups > 0 &&
           invar_ceil_div(p->rows, INVAR_FP8_BLOCK) * (p->cols / INVAR_FP8_BLOCK + 2) <=
               INT32_MAX / p->groups;
}

/* Encodes the map of a matrix with k contiguous, in boxes of `box` rows. */
static invar_status map_matrix(CUtensorMap *out, const invar_gemm_operand *o, int64_t k,
                               int64_t rows, int box)
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

/*
 * Returns the largest possible number of units: the host does not know how the rows are divided
 * among groups.
 */
template <typename S> static int64_t count_units(const invar_gemm *p, bool pair_rows)
{
    int64_t rows = S::rows * (pair_rows ? PAIR : 1), cols = S::cols * (pair_rows ? 1 : PAIR);

    return (invar_ceil_div(p->rows, rows) + p->groups - 1) * invar_ceil_div(p->cols, cols);
}

static invar_status fill_problem(fp8_problem *out, const invar_device *dev, const invar_gemm *p,
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
        k_part *part = &out->part[i];
        INVAR_TRY(map_matrix(&part->a, &p->a[i], p->k[i], p->rows, a_box));
        INVAR_TRY(map_matrix(&part->b, &p->b[i], p->k[i],
                             (p->groups - 1) * p->group_rows[i] + p->cols, b_box));
        part->a_scale = (const float *)p->a[i].scale;
        part->b_scale = (const float *)p->b[i].scale;
        part->blocks = (int32_t)invar_ceil_div(p->k[i], BLOCK_K);
        part->group_rows = (int32_t)p->group_rows[i];
        part->bands = (int32_t)invar_ceil_div(p->group_rows[i], INVAR_FP8_BLOCK);
        out->blocks += part->blocks;
    }
    return INVAR_OK;
}

template <typename S>
static invar_status launch_tiles(const invar_device *dev, const invar_gemm *p, bool pair_rows)
{
    constexpr size_t shared = 1024 + sizeof(shared_state<S>);
    static_assert(shared <= SHARED_BYTES, "what a block shares does not fit");
    int64_t pairs =
        std::min<int64_t>(count_units<S>(p, pair_rows), invar_cuda_of(dev)->multiprocessors / PAIR);
    fp8_problem problem;

    INVAR_TRY(fill_problem(&problem, dev, p, S::rows / (pair_rows ? 1 : PAIR),
                           S::cols / (pair_rows ? PAIR : 1)));
    problem.pair_rows = pair_rows;
    return invar_by_storage(p->out_dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return invar_launch(dev, p->op, gemm_fp8<S, T>, (unsigned)(PAIR * pairs), THREADS,
                            shared)(problem);
    });
}

/*
 * Returns whether the tiles of a unit lie below each other: an odd number of tile columns would
 * leave one block of a cluster idle.
 */
template <typename S> static bool choose_pair_rows(const invar_gemm *p)
{
    return invar_ceil_div(p->cols, S::cols) % 2 != 0 && p->rows > S::rows;
}

/* A choice of tiles; `cost` is the time of a unit relative to the others. */
struct tiling {
    int cost;
    int64_t (*units)(const invar_gemm *p);
    invar_status (*launch_tiles)(const invar_device *dev, const invar_gemm *p);
};

template <typename S> static constexpr tiling tiling_of(int cost)
{
    return {cost, [](const invar_gemm *p) { return count_units<S>(p, choose_pair_rows<S>(p)); },
            [](const invar_device *dev, const invar_gemm *p) {
                return launch_tiles<S>(dev, p, choose_pair_rows<S>(p));
            }};
}

static const tiling tilings[] = {
    tiling_of<tile_sizes<2, 128, 1>>(20),
    tiling_of<tile_sizes<1, 128, 2>>(11),
    tiling_of<tile_sizes<1, 64, 2>>(8),
};

invar_status invar_gemm_fp8(const invar_device *dev, const invar_gemm *p)
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
    return best->launch_tiles(dev, p);
}
