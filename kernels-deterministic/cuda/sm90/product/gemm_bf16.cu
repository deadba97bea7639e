/*
 * gemm_bf16.cu - products of bf16 activations and weights on the tensor cores: linear.fwd and
 * linear.dx, dense and grouped by expert.
 *
 * Takes operands that bulk copies can read (16-byte rows). Weights lie with k contiguous (fwd) or
 * outermost (dx). The parts of dx follow one another in the ring of stages, so that they are one
 * chain; the end of each is filled up with zeros by the copies.
 *
 * Shards, which begin at multiples of a stage, are chains one after the other. What waits for its
 * neighbour in their tree stays with the block: tiles are smaller, nothing goes through memory.
 *
 * Gated: a tile has columns of the gate in its left half and the same ones of `up` in its right
 * half, so that one warp gets both of them and can write their activation too.
 *
 * Blocks stay and take tile after tile. Which tiles there are, with experts, only the device knows:
 * each block makes the list of the experts' rows for itself, and clamps what it finds.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/product/epilogue.cuh"
#include "kernels-deterministic/cuda/sm90/product/gemm_bf16.cuh"
#include "kernels-deterministic/math/shards.h"

#define ROWS_MAX_GROUPS 1024
#define ROWS_TABLE_BYTES (2 * (ROWS_MAX_GROUPS + 2) * (int)sizeof(int32_t)) // multiples of 16
#define ROWS_TREE_BYTES (128 * 128 * (int)sizeof(float)) /* of a tile, behind the table */
#define GATED_TABLE_BYTES 16                             /* of one group */
#define GATED_HEAD_BYTES 256                             /* and barriers */

/* Stages that follow one another: from `first` of a part's k on. */
struct rows_stages {
    int32_t part, first, count;
};

struct rows_plan {
    CUtensorMap a[INVAR_LINEAR_MAX_PARTS], b[INVAR_LINEAR_MAX_PARTS];
    int32_t parts;
    rows_stages stages[INVAR_LINEAR_MAX_SHARDS * INVAR_LINEAR_MAX_PARTS]; // shard by shard
    int32_t n_stages;
    int32_t blocks[INVAR_LINEAR_MAX_SHARDS]; // stages of each shard
    int32_t shards;
    int32_t rows, cols;
    gemm_order order;
    int32_t span_shift; // rows of a tile of a cluster: a power of two
    int32_t cluster;
    int32_t groups;
    const int64_t *start; // (groups + 1), NULL: one group
    void *out;
    int64_t out_stride;
    const void *bias;
    invar_dtype out_dtype, bias_dtype;
    const void *residual;
    int64_t residual_stride;
    // gated: b[0] goes to out and b[1] to up, where these are not NULL
    void *up, *act;
    int64_t up_stride, act_stride;
    bool wide; // all rows of outputs and residual begin at multiples of 16 bytes
};

/* Columns of out that a tile has. */
template <class Tile>
static constexpr int rows_tile_cols = Tile::GATED ? Tile::COLS / 2 : Tile::COLS;

/* ---- tiles ----------------------------------------------------------------------------------- */

/* In shared memory: the first row of each group, and the tiles before it; both (groups + 1). */
struct rows_table {
    int32_t *first, *before;
};

template <class Tile>
__device__ __forceinline__ rows_table rows_table_of(const gemm_shared<Tile> &shared)
{
    int32_t *table = (int32_t *)shared.extra();

    return {table, table + Tile::GROUPS + 1};
}

/* Segments come checked; whatever they hold, no row outside the matrix is touched. */
__device__ __forceinline__ int32_t rows_start(const rows_plan &plan, int g)
{
    int64_t at = plan.start[g];

    return (int32_t)(at < 0 ? 0 : at > plan.rows ? plan.rows : at);
}

__device__ __forceinline__ int rows_tiles_down(const rows_plan &plan, int rows)
{
    return (rows + (1 << plan.span_shift) - 1) >> plan.span_shift;
}

/* The inclusive scan of a warp. */
template <typename F> __device__ __forceinline__ int32_t rows_scan(int32_t x, F combine)
{
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        int32_t below = __shfl_up_sync(0xFFFFFFFFu, x, by);
        if ((int)threadIdx.x % 32 >= by)
            x = combine(x, below);
    }
    return x;
}

/* By all threads, until they meet. Starts that fall are lifted: groups never overlap. */
__device__ __forceinline__ void rows_make_table(const rows_plan &plan, rows_table table)
{
    int lane = (int)threadIdx.x;

    if (!plan.start) {
        if (lane == 0) {
            table.first[0] = table.before[0] = 0;
            table.first[1] = plan.rows;
            table.before[1] = rows_tiles_down(plan, plan.rows) * plan.order.across;
        }
        return;
    }
    for (int g = lane; g <= plan.groups; g += (int)blockDim.x)
        table.first[g] = rows_start(plan, g);
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    for (int g = lane, top = 0; g - lane <= plan.groups; g += 32) {
        int first = rows_scan(g <= plan.groups ? max(table.first[g], top) : 0,
                              [](int x, int y) { return max(x, y); });
        if (g <= plan.groups)
            table.first[g] = first;
        top = __shfl_sync(0xFFFFFFFFu, first, 31);
    }
    __syncwarp();
    table.before[0] = 0;
    for (int g = lane, before = 0; g - lane < plan.groups; g += 32) {
        int rows = g < plan.groups ? table.first[g + 1] - table.first[g] : 0;
        int after = before + rows_scan(rows_tiles_down(plan, rows) * plan.order.across,
                                       [](int x, int y) { return x + y; });
        if (g < plan.groups)
            table.before[g + 1] = after;
        before = __shfl_sync(0xFFFFFFFFu, after, 31);
    }
}

/* What a block has to do: rows [row, row_end), as many as a tile has, of a group. */
struct rows_tile {
    int row, row_end, col, group;
};

/* The tiles of one cluster in their order; every role of a block walks them for itself. */
template <class Tile> struct rows_walk {
    const rows_plan &plan;
    rows_table table;
    gemm_cluster cluster;
    int tile, group = 0;

    __device__ __forceinline__ rows_walk(const rows_plan &plan_, rows_table table_,
                                         gemm_cluster cluster_)
        : plan(plan_), table(table_), cluster(cluster_), tile((int)blockIdx.x / cluster_.size)
    {
    }

    __device__ __forceinline__ bool next(rows_tile &out)
    {
        while (group < plan.groups && tile >= table.before[group + 1])
            group++;
        if (group == plan.groups)
            return false;

        int first = table.first[group], row, col;
        out.row_end = table.first[group + 1];
        plan.order.find(tile - table.before[group], rows_tiles_down(plan, out.row_end - first), row,
                        col);
        out.row = first + (row << plan.span_shift) + cluster.rank * Tile::ROWS;
        out.col = col * rows_tile_cols<Tile>;
        out.group = group;
        tile += (int)gridDim.x / cluster.size;
        return true;
    }
};

/* ---- roles ----------------------------------------------------------------------------------- */

/* Copies one operand of all tiles: a, or b where B is set. One thread. */
template <class Tile, int B, int T>
__device__ __forceinline__ void rows_fill(const rows_plan &plan, const gemm_shared<Tile> &shared,
                                          gemm_cluster cluster)
{
    const CUtensorMap *maps = B ? plan.b : plan.a;
    rows_walk<Tile> walk(plan, rows_table_of(shared), cluster);
    gemm_filler<Tile, B, T> filler(shared, cluster);
    rows_tile tile;

    while (walk.next(tile)) {
        int outer = B ? tile.col : tile.row, matrix = B ? tile.group : 0;
        for (int n = 0; n < plan.n_stages; n++) {
            rows_stages stages = plan.stages[n];
            for (int i = 0; i < stages.count; i++) {
                int k = stages.first + i * Tile::K;
                if constexpr (B && Tile::GATED)
                    filler.fill_halves(&plan.b[0], &plan.b[1], k, outer);
                else
                    filler.fill(&maps[stages.part], k, outer, matrix);
            }
        }
    }
}

__device__ __forceinline__ float rows_bias(const rows_plan &plan, int col)
{
    if (col >= plan.cols)
        return 0.0f;
    return plan.bias_dtype == INVAR_DTYPE_F32 ? invar_load((const float *)plan.bias + col)
                                              : invar_load((const __nv_bfloat16 *)plan.bias + col);
}

/* The columns of the accumulators begin at `col`. By whole warps, each of which reads it once. */
template <int COUNT>
__device__ __forceinline__ void rows_add_bias(float (&acc)[COUNT], const rows_plan &plan, int col)
{
    int lane = (int)threadIdx.x % 32;
    float held[COUNT / 16];

#pragma unroll
    for (int i = 0; i < COUNT / 16; i++)
        held[i] = rows_bias(plan, col + 32 * i + lane);
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float bias = __shfl_sync(0xFFFFFFFFu, held[i / 16], 2 * i % 32 + lane % 4 * 2 + j);
            acc[i + j] = acc[i + j] + bias;
            acc[i + 2 + j] = acc[i + 2 + j] + bias;
        }
}

/* 16 bytes of a row, as far as they lie in it. */
template <typename Out, bool RESIDUAL>
__device__ __forceinline__ void rows_put(const rows_plan &plan, int row, int col, uint4 value)
{
    constexpr int COUNT = 16 / (int)sizeof(Out);
    invar_run<Out, COUNT> run = {{value.x, value.y, value.z, value.w}}, residual;

    if constexpr (RESIDUAL) {
        float sum[COUNT];
        residual.load_some((const Out *)plan.residual + row * plan.residual_stride + col,
                           plan.cols - col);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            sum[i] = residual.get(i) + run.get(i);
        run.set(sum);
    }
    run.store_some((Out *)plan.out + row * plan.out_stride + col, plan.cols - col);
}

/* The bytes of a lane in a matrix of rows, of which it moves 16 of every fourth. */
struct rows_lane {
    uint8_t *first;
    int64_t step;

    template <typename T>
    __device__ __forceinline__ rows_lane(T *data, int64_t stride, int row, int col)
        : first((uint8_t *)(data + (row + (int)threadIdx.x % 32 / 8) * stride + col) +
                (int)threadIdx.x % 8 * 16),
          step(4 * stride * (int64_t)sizeof(T))
    {
    }
    /* The j-th of strip i. */
    __device__ __forceinline__ uint4 *at(int i, int j) const
    {
        return (uint4 *)(first + j * step + i * GEMM_STAGING_ROW_BYTES);
    }
};

/*
 * A warp's 16 rows from `row` on, in strips as wide as the staging memory. A chain never ends in
 * -0: the tensor core has none. The residual of a strip is on its way while the one before it is
 * written.
 */
template <typename Out, bool RESIDUAL, int COUNT>
__device__ __forceinline__ void rows_write(const rows_plan &plan, const rows_tile &tile, int row,
                                           const float (&acc)[COUNT], uint8_t *staging)
{
    constexpr int WIDTH = GEMM_STAGING_ROW_BYTES / (int)sizeof(Out), STRIPS = 2 * COUNT / WIDTH;
    bool whole = plan.wide && row + 16 <= tile.row_end;
    rows_lane to((Out *)plan.out, plan.out_stride, row, tile.col);
    rows_lane from((Out *)plan.residual, plan.residual_stride, row, tile.col);
    uint4 held[2][4];
    auto fits = [&](int i) { return whole && tile.col + (i + 1) * WIDTH <= plan.cols; };
    auto hold = [&](auto number) {
        constexpr int i = decltype(number)::VALUE;
        if constexpr (RESIDUAL && i < STRIPS) {
#pragma unroll
            for (int j = 0; fits(i) && j < 4; j++)
                held[i % 2][j] = *from.at(i, j);
        }
    };

    if (row >= tile.row_end)
        return;
    hold(gemm_number<0>());
    gemm_each<STRIPS>([&](auto number) {
        constexpr int i = decltype(number)::VALUE;
        int col = tile.col + i * WIDTH;
        hold(gemm_number<i + 1>());
        if (fits(i))
            gemm_rows_of<Out>(staging, acc + i * WIDTH / 2, [&](int j, int, int, uint4 value) {
                if constexpr (RESIDUAL)
                    value = invar_with_residual(held[i % 2][j], value, (const Out *)nullptr);
                *to.at(i, j) = value;
            });
        else if (col < plan.cols)
            gemm_rows_of<Out>(staging, acc + i * WIDTH / 2,
                              [&](int, int down, int byte, uint4 value) {
                                  if (row + down < tile.row_end)
                                      rows_put<Out, RESIDUAL>(plan, row + down,
                                                              col + byte / (int)sizeof(Out), value);
                              });
    });
}

/* As out's type says; the residual is for products of weights that lie with k contiguous. */
template <int TB, int COUNT>
__device__ __forceinline__ void rows_finish(const rows_plan &plan, const rows_tile &tile, int row,
                                            float (&acc)[COUNT], uint8_t *staging)
{
    auto write = [&](auto *type) {
        using Out = std::remove_pointer_t<decltype(type)>;
        if (!TB && plan.residual)
            rows_write<Out, !TB>(plan, tile, row, acc, staging);
        else
            rows_write<Out, false>(plan, tile, row, acc, staging);
    };

    if (plan.bias)
        rows_add_bias(acc, plan, tile.col);
    if (plan.out_dtype == INVAR_DTYPE_F32)
        write((float *)nullptr);
    else
        write((__nv_bfloat16 *)nullptr);
}

/* Asks for the residual of a warp's 16 rows: what lies in memory takes a while. */
template <class Tile>
__device__ __forceinline__ void rows_ask(const rows_plan &plan, const rows_tile &tile, int row)
{
    int lane = (int)threadIdx.x % 32, size = plan.out_dtype == INVAR_DTYPE_F32 ? 4 : 2;
    int64_t first = (row + lane / 2) * plan.residual_stride + tile.col;
    int bytes = min(Tile::COLS, plan.cols - tile.col) * size;

    for (int at = lane % 2 * 128; row + lane / 2 < tile.row_end && at < bytes; at += 256)
        invar_fetch_to_cache((const uint8_t *)plan.residual + first * size + at);
}

/* A tile of a product with shards. */
struct rows_tree_tile : gemm_tile<2, 1, 128, 64, ROWS_TABLE_BYTES + ROWS_TREE_BYTES> {
    static constexpr bool TREE = true;
};

/*
 * Sums of shards that wait for their neighbours in the tree, as the bits of a counter: of one shard
 * and of two in registers, of four in shared memory.
 */
template <class Tile> struct rows_tree {
    static constexpr int COUNT = Tile::COLS / 2;
    float one[COUNT], two[COUNT];
    float4 *four; // this thread's, each 256 behind the one before

    __device__ __forceinline__ explicit rows_tree(const gemm_shared<Tile> &shared)
        : four((float4 *)(shared.extra() + ROWS_TABLE_BYTES) + (int)threadIdx.x - 128)
    {
        static_assert(Tile::CONSUMERS == 2 && ROWS_TABLE_BYTES % 16 == 0, "threads, alignment");
    }

    /* acc becomes the sum of all that ends with shard v. */
    __device__ __forceinline__ void add(float (&acc)[COUNT], int v)
    {
        if (v & 1)
            each([&](int i) { acc[i] = one[i] + acc[i]; });
        else
            each([&](int i) { one[i] = acc[i]; });
        if ((v & 3) == 3)
            each([&](int i) { acc[i] = two[i] + acc[i]; });
        else if ((v & 3) == 1)
            each([&](int i) { two[i] = acc[i]; });
        if ((v & 7) == 3)
            fours([&](float4 &held,
                      float *sum) { held = make_float4(sum[0], sum[1], sum[2], sum[3]); },
                  acc);
        else if ((v & 7) == 7)
            fours(
                [&](float4 &held, float *sum) {
                    sum[0] = held.x + sum[0];
                    sum[1] = held.y + sum[1];
                    sum[2] = held.z + sum[2];
                    sum[3] = held.w + sum[3];
                },
                acc);
    }

  private:
    template <typename F> __device__ __forceinline__ void each(F f)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            f(i);
    }
    template <typename F> __device__ __forceinline__ void fours(F f, float (&acc)[COUNT])
    {
#pragma unroll
        for (int i = 0; i < COUNT / 4; i++)
            f(four[256 * i], acc + 4 * i);
    }
};

/* All shards of a tile, each a chain of its own; one without values is +0. */
template <class Tile, int TB>
__device__ __forceinline__ void rows_chains(float (&acc)[Tile::BLOCKS][Tile::COLS / 2],
                                            const rows_plan &plan, const gemm_shared<Tile> &shared,
                                            gemm_place<Tile> &place, gemm_consumer me)
{
    rows_tree<Tile> tree(shared);

#pragma unroll 1
    for (int v = 0; v < plan.shards; v++) {
        if (plan.blocks[v] > 0)
            gemm_chain<Tile, 0, TB>(acc, shared, place, plan.blocks[v], me, [](int, int) {});
        else
            gemm_each<Tile::COLS / 2>([&](auto i) { acc[0][decltype(i)::VALUE] = 0.0f; });
        tree.add(acc[0], v);
    }
}

template <class Tile, int TB>
__device__ __forceinline__ void rows_multiply(const rows_plan &plan,
                                              const gemm_shared<Tile> &shared, gemm_cluster cluster,
                                              int warp)
{
    gemm_consumer me = {warp / 4, cluster.size};
    uint8_t *staging = shared.staging(warp);
    rows_walk<Tile> walk(plan, rows_table_of(shared), cluster);
    gemm_place<Tile> place;
    rows_tile tile;

    while (walk.next(tile)) {
        float acc[Tile::BLOCKS][Tile::COLS / 2];
        int row = tile.row + me.number * Tile::BLOCKS * 64 + warp % 4 * 16;
        for (int m = 0; !TB && plan.residual && m < Tile::BLOCKS; m++)
            rows_ask<Tile>(plan, tile, row + 64 * m);
        if constexpr (Tile::TREE)
            rows_chains<Tile, TB>(acc, plan, shared, place, me);
        else
            gemm_chain<Tile, 0, TB>(acc, shared, place, plan.blocks[0], me, [](int, int) {});
        gemm_each<Tile::BLOCKS>([&](auto number) {
            constexpr int m = decltype(number)::VALUE;
            rows_finish<TB>(plan, tile, row + 64 * m, acc[m], staging);
        });
    }
}

/* What all threads do first. */
template <class Tile>
__device__ __forceinline__ void rows_begin(const rows_plan &plan, const gemm_shared<Tile> &shared)
{
    int lane = (int)threadIdx.x % 32;

    if (gemm_warp() == 1 && lane < INVAR_LINEAR_MAX_PARTS) {
        if (lane < plan.parts)
            invar_copy_prefetch(&plan.a[lane]);
        if (lane < (Tile::GATED ? 2 : plan.parts))
            invar_copy_prefetch(&plan.b[lane]);
    }
    gemm_open_ring(shared, plan.cluster);
    invar_grid_release();
    invar_grid_wait();
    rows_make_table(plan, rows_table_of(shared));
    __syncthreads();
    invar_cluster_meet();
}

/* The warps that copy. */
template <class Tile, int TB>
__device__ __forceinline__ void rows_produce(const rows_plan &plan, const gemm_shared<Tile> &shared,
                                             gemm_cluster cluster)
{
    if (gemm_warp() == 0 && invar_elect())
        rows_fill<Tile, 0, 0>(plan, shared, cluster);
    if (gemm_warp() == 1 && invar_elect())
        rows_fill<Tile, 1, TB>(plan, shared, cluster);
    __syncwarp();
}

template <class Tile, int TB>
static __global__ void __launch_bounds__(Tile::THREADS, 1)
    gemm_bf16_rows(const __grid_constant__ rows_plan plan)
{
    extern __shared__ uint8_t memory[];
    gemm_shared<Tile> shared(memory);
    gemm_cluster cluster = {(int)invar_cluster_rank(), plan.cluster};
    int warp = gemm_warp();

    rows_begin(plan, shared);
    if (warp < 4) {
        if constexpr (Tile::CONSUMERS == 2)
            invar_registers_down<Tile::TREE ? 24 : 40>();
        rows_produce<Tile, TB>(plan, shared, cluster);
    } else {
        if constexpr (Tile::CONSUMERS == 2)
            invar_registers_up<Tile::TREE ? 240 : 232>();
        rows_multiply<Tile, TB>(plan, shared, cluster, warp - 4);
    }
    // a block's memory must stand until the others have told it, and copied to it, their last
    invar_cluster_meet();
}

/* ---- gated ----------------------------------------------------------------------------------- */

/*
 * A product whose results go on: the warps that multiply leave them, rounded, in shared memory and
 * take the next tile, while more warps go on with them and write everything. They do so in strips
 * of 64 columns: all that a warp leaves at one time, and the whole tile in so many times.
 */
template <int CONSUMERS_, int ACROSS_>
struct gated_tile
    : gemm_tile<CONSUMERS_, 1, 128 * ACROSS_, 64,
                GATED_HEAD_BYTES + (ACROSS_ == 2 ? 4 * (int)INVAR_GATE_ENTRIES : 0), 2> {
    static constexpr bool GATED = true;
    static constexpr int GROUPS = 1;
    static constexpr int ACROSS = ACROSS_, TIMES = ACROSS_;
    static constexpr int THREADS = 128 * (2 + CONSUMERS_);
    // of silu, where there is room for it and tiles are large
    static constexpr bool TABLE = ACROSS_ == 2;

    /* Where the n-th strip that is left lies in a tile: gate and up by turns. */
    static __device__ constexpr int source(int n)
    {
        return n / 2 + n % 2 * ACROSS;
    }
};

/*
 * Behind the ring: what the warps that multiply have left, for whom they have, and a table of silu.
 */
template <class Tile> struct gated_shared {
    gemm_shared<Tile> ring;

    __device__ __forceinline__ explicit gated_shared(const gemm_shared<Tile> &shared) : ring(shared)
    {
    }
    __device__ __forceinline__ uint64_t *ready(int warp) const
    {
        return (uint64_t *)(ring.extra() + GATED_TABLE_BYTES) + warp;
    }
    __device__ __forceinline__ uint64_t *taken(int warp) const
    {
        return ready(4 * Tile::CONSUMERS + warp);
    }
    /* 16 rows and 64 columns, the i-th of a warp. */
    __device__ __forceinline__ uint8_t *strip(int warp, int i) const
    {
        return ring.staging(warp * Tile::STRIPS + i);
    }
    __device__ __forceinline__ float *table() const
    {
        return (float *)(ring.extra() + GATED_HEAD_BYTES);
    }

    /* By all threads, before they meet. */
    __device__ __forceinline__ void open() const
    {
        constexpr int BARRIERS = 8 * Tile::CONSUMERS;

        static_assert(GATED_TABLE_BYTES + 8 * BARRIERS <= GATED_HEAD_BYTES, "barriers");
        for (int i = 0; i < BARRIERS && threadIdx.x == 0; i++)
            invar_barrier_init(ready(i), 1);
    }
};

__device__ __forceinline__ void gated_arrive(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        invar_barrier_arrive(barrier);
}

/*
 * The warps that multiply. What of a tile is not left at once is kept, rounded, while the next one
 * is multiplied: shared memory need not hold a whole tile.
 */
template <class Tile, int TB>
__device__ __forceinline__ void gated_multiply(const rows_plan &plan,
                                               const gemm_shared<Tile> &shared,
                                               gemm_cluster cluster, int warp)
{
    constexpr int KEPT = (Tile::TIMES - 1) * Tile::STRIPS;
    gemm_consumer me = {warp / 4, cluster.size};
    gated_shared<Tile> left(shared);
    rows_walk<Tile> walk(plan, rows_table_of(shared), cluster);
    gemm_place<Tile> place;
    rows_tile tile;
    gemm_rounded kept[KEPT ? KEPT : 1];
    int blocks = plan.blocks[0];
    uint32_t phase = 1;
    bool full = false;
    auto leave = [&](auto stage) {
        invar_barrier_wait(left.taken(warp), phase);
        gemm_each<Tile::STRIPS>([&](auto i) { stage(i, left.strip(warp, decltype(i)::VALUE)); });
        gated_arrive(left.ready(warp));
        phase ^= 1;
    };
    auto leave_kept = [&](auto time) {
        leave([&](auto i, uint8_t *to) {
            gemm_stage(to, kept[decltype(time)::VALUE * Tile::STRIPS + decltype(i)::VALUE]);
        });
    };

    while (walk.next(tile)) {
        constexpr int WIDTH = Tile::COLS / Tile::ACROSS, EACH = WIDTH / GEMM_RUN;
        float acc[Tile::ACROSS][WIDTH / 2];
        auto strip = [&](int source) { return acc[source / EACH] + 32 * (source % EACH); };
        gemm_chain<Tile, 0, TB>(acc, shared, place, blocks, me, [&](int i, int) {
            gemm_each<Tile::TIMES - 1>([&](auto time) {
                if (full && i == blocks * (decltype(time)::VALUE + 1) / Tile::TIMES)
                    leave_kept(time);
            });
        });
        leave([&](auto i, uint8_t *to) {
            gemm_stage(to, strip(Tile::source(decltype(i)::VALUE)), (const __nv_bfloat16 *)nullptr);
        });
        gemm_each<KEPT>([&](auto i) {
            kept[decltype(i)::VALUE].set(strip(Tile::source(decltype(i)::VALUE + Tile::STRIPS)));
        });
        full = true;
    }
    if (full)
        gemm_each<Tile::TIMES - 1>(leave_kept);
}

/* A run in shared memory. */
__device__ __forceinline__ invar_bf16_run gated_run(const uint8_t *at)
{
    uint4 run = *(const uint4 *)at;

    return {{run.x, run.y, run.z, run.w}};
}

/* 16 bytes of a row from `col` on, as far as they exist; `data` NULL: nowhere. */
__device__ __forceinline__ void gated_put(const rows_plan &plan, void *data, int64_t stride,
                                          int row, int col, const invar_bf16_run &run)
{
    if (data)
        run.store((__nv_bfloat16 *)data + row * stride + col, plan.cols - col, plan.wide);
}

/* What warp `from` has left of gate and up, from `row` and `col` on. */
template <class Tile>
__device__ __forceinline__ void gated_write(const rows_plan &plan, const rows_tile &tile, int row,
                                            int col, const gated_shared<Tile> &left, int from)
{
    int lane = (int)threadIdx.x % 32, chunk = lane % 8;

    col += chunk * INVAR_RUN;
#pragma unroll 2
    for (int n = 0; n < 4; n++) {
        int down = 4 * n + lane / 8, at = gemm_staged(down, chunk);
        invar_bf16_run gate = gated_run(left.strip(from, 0) + at);
        invar_bf16_run up = gated_run(left.strip(from, 1) + at), act;
        if constexpr (Tile::TABLE)
            act = invar_gated(gate, up, left.table());
        else
            act = invar_gated(gate, up);
        if (row + down >= tile.row_end || col >= plan.cols)
            continue;
        gated_put(plan, plan.out, plan.out_stride, row + down, col, gate);
        gated_put(plan, plan.up, plan.up_stride, row + down, col, up);
        gated_put(plan, plan.act, plan.act_stride, row + down, col, act);
    }
}

/* The warps that finish: each what one warp of every consumer has left. */
template <class Tile>
__device__ __forceinline__ void gated_finish(const rows_plan &plan, const gemm_shared<Tile> &shared,
                                             gemm_cluster cluster, int warp)
{
    gated_shared<Tile> left(shared);
    rows_walk<Tile> walk(plan, rows_table_of(shared), cluster);
    uint32_t phase = 0;
    rows_tile tile;

    while (walk.next(tile))
#pragma unroll 1
        for (int time = 0; time < Tile::TIMES; time++, phase ^= 1)
#pragma unroll 1
            for (int from = warp; from < 4 * Tile::CONSUMERS; from += 4) {
                invar_barrier_wait(left.ready(from), phase);
                gated_write(plan, tile, tile.row + from * 16, tile.col + time * GEMM_RUN, left,
                            from);
                gated_arrive(left.taken(from));
            }
}

template <class Tile>
static __global__ void __launch_bounds__(Tile::THREADS, 1)
    gemm_bf16_gated(const __grid_constant__ rows_plan plan)
{
    extern __shared__ uint8_t memory[];
    gemm_shared<Tile> shared(memory);
    gated_shared<Tile> left(shared);
    gemm_cluster cluster = {(int)invar_cluster_rank(), plan.cluster};
    int warp = gemm_warp();

    left.open();
    if constexpr (Tile::TABLE)
        invar_make_gates(
            left.table(), [](float g) { return invar_silu(g); }, Tile::THREADS);
    rows_begin(plan, shared); // after which all threads see barriers and table
    if (warp < 4) {
        if constexpr (Tile::CONSUMERS == 2)
            invar_registers_down<32>();
        rows_produce<Tile, 0>(plan, shared, cluster);
    } else if (warp < 4 + 4 * Tile::CONSUMERS) {
        if constexpr (Tile::CONSUMERS == 2)
            invar_registers_up<184>();
        gated_multiply<Tile, 0>(plan, shared, cluster, warp - 4);
    } else {
        if constexpr (Tile::CONSUMERS == 2)
            invar_registers_down<112>();
        gated_finish(plan, shared, cluster, warp - 4 - 4 * Tile::CONSUMERS);
    }
    invar_cluster_meet(); // as in gemm_bf16_rows
}

/* ---- host ------------------------------------------------------------------------------------ */

bool invar_gemm_bf16_takes(const invar_device *dev, const invar_product *p)
{
    if (dev->numerics != INVAR_NUMERICS_SM90 || p->groups > ROWS_MAX_GROUPS || p->groups < 1 ||
        (p->groups > 1 && !p->start) || (p->residual && p->b[0].k_outer) ||
        !gemm_extent_fits(p->rows) || !gemm_extent_fits(p->cols))
        return false;
    for (int32_t i = 0; i < p->parts; i++)
        if (!gemm_operand_fits(&p->a[i]) || !gemm_operand_fits(&p->b[i]) || p->a[i].k_outer ||
            p->b[i].k_outer != p->b[0].k_outer || !gemm_extent_fits(p->k[i]) ||
            (p->shards > 1 && p->atom[i] % rows_tree_tile::K != 0))
            return false;
    // tiles are counted in 32 bits, at 64 rows and columns each
    return (p->rows / 64 + p->groups + 1) * (p->cols / 64 + 1) <= GEMM_MAX_EXTENT;
}

template <int CONSUMERS, int BLOCKS, int COLS>
using rows_gemm_tile = gemm_tile<CONSUMERS, BLOCKS, COLS, 64, ROWS_TABLE_BYTES>;

/* Calls f with the tile of this number; they are listed in rows_tiles. */
template <typename F> static invar_status rows_by_tile(int number, F f)
{
    switch (number) {
    case 0: return f(rows_gemm_tile<2, 1, 256>());
    case 1: return f(rows_gemm_tile<2, 2, 128>());
    case 2: return f(rows_gemm_tile<2, 1, 192>());
    case 3: return f(rows_gemm_tile<2, 1, 128>());
    case 4: return f(rows_gemm_tile<1, 1, 128>());
    default: return f(rows_gemm_tile<1, 1, 64>());
    }
}

static const gemm_tile_cost rows_tiles[] = {
    {128, 256, 1.0, 1.02},  {256, 128, 1.02, 1.02}, {128, 192, 1.01, 1.04},
    {128, 128, 1.04, 1.12}, {64, 128, 1.32, 1.15},  {64, 64, 2.07, 1.07},
};

static const gemm_tile_cost rows_tree_tiles[] = {{128, 128, 1.0, 1.08}};

static gemm_choice rows_choose(const invar_product *p, int multiprocessors)
{
    int64_t rows = invar_ceil_div(p->rows, p->groups);

    if (p->shards > 1)
        return gemm_choose(p->groups, rows, p->cols, rows_tree_tiles, 1, multiprocessors);
    return gemm_choose(p->groups, rows, p->cols, rows_tiles,
                       (int)(sizeof rows_tiles / sizeof *rows_tiles), multiprocessors);
}

/* Whether all rows begin at multiples of 16 bytes, if there are any. */
static bool rows_aligned(const invar_product *p, const void *data, int64_t stride)
{
    return !data || invar_tensor_map_takes(data, stride * (invar_dtype_bits(p->out_dtype) / 8));
}

/* Which stages of K values make up the chains. */
static void rows_list_stages(rows_plan *out, const invar_product *p, int k)
{
    out->shards = p->shards;
    for (int32_t v = 0; v < p->shards; v++)
        for (int32_t part = 0; part < p->parts; part++) {
            int64_t first = invar_shard_start(p->k[part], p->atom[part], p->shards, v);
            int64_t end = invar_shard_start(p->k[part], p->atom[part], p->shards, v + 1);
            int32_t count = (int32_t)invar_ceil_div(end - first, k);
            out->stages[out->n_stages++] = {part, (int32_t)first, count};
            out->blocks[v] += count;
        }
}

/* A tile has `width` columns of out, and the boxes of b `box` of its own. */
template <class Tile>
static invar_status rows_plan_of(rows_plan *out, const invar_product *p, int cluster, int width,
                                 int box)
{
    int64_t span = (int64_t)Tile::ROWS * cluster, k = 0;

    for (int32_t i = 0; i < p->parts; i++) {
        gemm_operand_shape a = {p->k[i], p->rows, 1, p->rows, Tile::K, Tile::ROWS};
        gemm_operand_shape b = {p->k[i], p->cols, p->groups, p->group_rows[i], Tile::K, box};
        if (p->groups == 1) // nothing lies behind it
            b.matrix_rows = p->b[i].k_outer ? p->k[i] : p->cols;
        INVAR_TRY(gemm_operand_map(&out->a[i], &p->a[i], a));
        INVAR_TRY(gemm_operand_map(&out->b[i], &p->b[i], b));
        k += p->k[i];
    }
    rows_list_stages(out, p, Tile::K);
    out->parts = p->parts;
    out->rows = (int32_t)p->rows;
    out->cols = (int32_t)p->cols;
    // all rows where they stay in the L2 for as long as the columns pass
    out->order =
        gemm_order_of(invar_ceil_div(p->cols, width), p->rows * k * 2 <= ((int64_t)16 << 20)
                                                          ? invar_ceil_div(p->rows, span)
                                                          : invar_ceil_div(2048, span));
    while ((int64_t)1 << out->span_shift < span)
        out->span_shift++;
    out->cluster = cluster;
    out->groups = (int32_t)p->groups;
    out->start = p->start;
    out->out = p->out;
    out->out_stride = p->out_stride;
    out->out_dtype = p->out_dtype;
    out->bias = p->bias;
    out->bias_dtype = p->bias_dtype;
    out->residual = p->residual;
    out->residual_stride = p->residual_stride;
    out->wide =
        rows_aligned(p, p->out, p->out_stride) && rows_aligned(p, p->residual, p->residual_stride);
    return INVAR_OK;
}

static invar_status rows_run(const invar_device *dev, const invar_product *p, gemm_choice choice)
{
    auto run = [&](auto tile) {
        using Tile = decltype(tile);
        int64_t span = (int64_t)Tile::ROWS * choice.cluster;
        rows_plan plan = {};

        INVAR_TRY(
            rows_plan_of<Tile>(&plan, p, choice.cluster, Tile::COLS, Tile::COLS / choice.cluster));
        int64_t most = (invar_ceil_div(p->rows, span) + p->groups - 1) * plan.order.across;
        return gemm_launch<Tile>(
            dev, p->op, p->b[0].k_outer ? gemm_bf16_rows<Tile, 1> : gemm_bf16_rows<Tile, 0>, plan,
            most, choice.cluster);
    };

    return p->shards > 1 ? run(rows_tree_tile()) : rows_by_tile(choice.tile, run);
}

invar_status invar_gemm_bf16(const invar_device *dev, const invar_product *p)
{
    return rows_run(dev, p, rows_choose(p, invar_cuda_of(dev)->multiprocessors));
}

bool invar_gemm_bf16_takes_gated(const invar_device *dev, const invar_product_set *set)
{
    const invar_product *gate = &set->product[0], *up = &set->product[1];

    return set->act && gate->shards == 1 && gate->out_dtype == INVAR_DTYPE_BF16 &&
           up->out_dtype == INVAR_DTYPE_BF16 && !gate->bias && !up->bias && !gate->start &&
           !gate->b[0].k_outer && invar_gemm_bf16_takes(dev, gate) &&
           invar_gemm_bf16_takes(dev, up);
}

template <typename F> static invar_status gated_by_tile(int number, F f)
{
    switch (number) {
    case 0: return f(gated_tile<2, 2>());
    case 1: return f(gated_tile<2, 1>());
    default: return f(gated_tile<1, 1>());
    }
}

static const gemm_tile_cost gated_tiles[] = {
    {128, 256, 1.0, 1.02}, {128, 128, 1.04, 1.12}, {64, 128, 1.32, 1.15}};

invar_status invar_gemm_bf16_gated(const invar_device *dev, const invar_product_set *set)
{
    const invar_product *gate = &set->product[0], *up = &set->product[1];
    gemm_choice choice = gemm_choose(1, gate->rows, 2 * gate->cols, gated_tiles,
                                     (int)(sizeof gated_tiles / sizeof *gated_tiles),
                                     invar_cuda_of(dev)->multiprocessors);

    return gated_by_tile(choice.tile, [&](auto tile) {
        using Tile = decltype(tile);
        gemm_operand_shape b = {up->k[0], up->cols, 1, up->cols, Tile::K, Tile::COLS / 2};
        rows_plan plan = {};

        INVAR_TRY(rows_plan_of<Tile>(&plan, gate, choice.cluster, Tile::COLS / 2, Tile::COLS / 2));
        INVAR_TRY(gemm_operand_map(&plan.b[1], &up->b[0], b));
        plan.up = up->out;
        plan.up_stride = up->out_stride;
        plan.act = set->act;
        plan.act_stride = set->act_stride;
        plan.wide = plan.wide && rows_aligned(up, up->out, up->out_stride) &&
                    rows_aligned(up, set->act, set->act_stride);
        int64_t down = invar_ceil_div(gate->rows, (int64_t)Tile::ROWS * choice.cluster);
        return gemm_launch<Tile>(dev, gate->op, gemm_bf16_gated<Tile>, plan,
                                 down * plan.order.across, choice.cluster);
    });
}
