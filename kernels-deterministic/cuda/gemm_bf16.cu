/*
 * gemm_bf16.cu - products of bf16 activations and weights on the tensor cores: linear.fwd and
 * linear.dx, dense and grouped by expert.
 *
 * Takes operands that bulk copies can read (16-byte rows) and one shard. Weights lie with k
 * contiguous (fwd) or outermost (dx). The parts of dx follow one another in the ring of stages, so
 * that they are one chain; the end of each is filled up with zeros by the copies.
 *
 * Blocks stay and take tile after tile. Which tiles there are, with experts, only the device knows:
 * each block makes the list of the experts' rows for itself, and clamps what it finds.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/gemm_bf16.cuh"

#define ROWS_MAX_GROUPS 1024
#define ROWS_TABLE_BYTES (2 * (ROWS_MAX_GROUPS + 1) * (int)sizeof(int32_t))

struct rows_plan {
    CUtensorMap a[INVAR_LINEAR_MAX_PARTS], b[INVAR_LINEAR_MAX_PARTS];
    int32_t blocks[INVAR_LINEAR_MAX_PARTS]; // stages of each part
    int32_t parts;
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
    bool wide; // rows of out begin at multiples of 16 bytes
};

/* ---- tiles ----------------------------------------------------------------------------------- */

/* In shared memory: the first row of each group, and the tiles before it; both (groups + 1). */
struct rows_table {
    int32_t *first, *before;
};

template <class Tile>
__device__ __forceinline__ rows_table rows_table_of(const gemm_shared<Tile> &shared)
{
    int32_t *table = (int32_t *)shared.extra();

    return {table, table + ROWS_MAX_GROUPS + 1};
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
        out.col = col * Tile::COLS;
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
        for (int part = 0; part < plan.parts; part++)
            for (int i = 0, count = plan.blocks[part]; i < count; i++)
                filler.fill(&maps[part], i * Tile::K, outer, matrix);
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
template <typename Out>
__device__ __forceinline__ void rows_put(const rows_plan &plan, int row, int col, uint4 value)
{
    Out *to = (Out *)plan.out + row * plan.out_stride + col;
    const uint32_t words[4] = {value.x, value.y, value.z, value.w};

#pragma unroll
    for (int i = 0; i < 16 / (int)sizeof(Out); i++)
        if (col + i < plan.cols) {
            if constexpr (sizeof(Out) == 4)
                *(uint32_t *)(to + i) = words[i];
            else
                *(uint16_t *)(to + i) = (uint16_t)(words[i / 2] >> (i % 2 * 16));
        }
}

/* A warp's 16 rows from `row` on. A chain never ends in -0: the tensor core has none. */
template <typename Out, int COUNT>
__device__ __forceinline__ void rows_write(const rows_plan &plan, const rows_tile &tile, int row,
                                           const float (&acc)[COUNT], uint8_t *staging)
{
    constexpr int WIDTH = GEMM_STAGING_ROW_BYTES / (int)sizeof(Out);
    int lane = (int)threadIdx.x % 32;
    bool whole = plan.wide && row + 16 <= tile.row_end;
    int64_t step = 4 * plan.out_stride * (int64_t)sizeof(Out);
    uint8_t *to = (uint8_t *)((Out *)plan.out + (row + lane / 8) * plan.out_stride + tile.col) +
                  lane % 8 * 16;

    if (row >= tile.row_end)
        return;
    gemm_each<2 * COUNT / WIDTH>([&](auto number) {
        constexpr int i = decltype(number)::VALUE;
        int col = tile.col + i * WIDTH;
        if (whole && col + WIDTH <= plan.cols)
            gemm_rows_of<Out>(staging, acc + i * WIDTH / 2, [&](int j, int, int, uint4 value) {
                *(uint4 *)(to + j * step + i * GEMM_STAGING_ROW_BYTES) = value;
            });
        else if (col < plan.cols)
            gemm_rows_of<Out>(
                staging, acc + i * WIDTH / 2, [&](int, int down, int byte, uint4 value) {
                    if (row + down < tile.row_end)
                        rows_put<Out>(plan, row + down, col + byte / (int)sizeof(Out), value);
                });
    });
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
    int blocks = 0;

    for (int part = 0; part < plan.parts; part++)
        blocks += plan.blocks[part];
    while (walk.next(tile)) {
        float acc[Tile::BLOCKS][Tile::COLS / 2];
        gemm_chain<Tile, 0, TB>(acc, shared, place, blocks, me, [](int) {});
        gemm_each<Tile::BLOCKS>([&](auto number) {
            constexpr int m = decltype(number)::VALUE;
            int row = tile.row + (me.number * Tile::BLOCKS + m) * 64 + warp % 4 * 16;
            if (plan.bias)
                rows_add_bias(acc[m], plan, tile.col);
            if (plan.out_dtype == INVAR_DTYPE_F32)
                rows_write<float>(plan, tile, row, acc[m], staging);
            else
                rows_write<__nv_bfloat16>(plan, tile, row, acc[m], staging);
        });
    }
}

template <class Tile, int TB>
static __global__ void __launch_bounds__(Tile::THREADS, 1)
    gemm_bf16_rows(const __grid_constant__ rows_plan plan)
{
    extern __shared__ uint8_t memory[];
    gemm_shared<Tile> shared(memory);
    gemm_cluster cluster = {(int)invar_cluster_rank(), plan.cluster};
    int warp = gemm_warp(), lane = (int)threadIdx.x % 32;

    if (warp == 1 && lane < plan.parts) {
        invar_copy_prefetch(&plan.a[lane]);
        invar_copy_prefetch(&plan.b[lane]);
    }
    gemm_open_ring(shared, cluster.size);
    invar_grid_release();
    invar_grid_wait();
    rows_make_table(plan, rows_table_of(shared));
    __syncthreads();
    invar_cluster_meet();
    if (warp < 4) {
        if constexpr (Tile::CONSUMERS == 2)
            invar_registers_down<40>();
        if (warp == 0 && invar_elect())
            rows_fill<Tile, 0, 0>(plan, shared, cluster);
        if (warp == 1 && invar_elect())
            rows_fill<Tile, 1, TB>(plan, shared, cluster);
        __syncwarp();
    } else {
        if constexpr (Tile::CONSUMERS == 2)
            invar_registers_up<232>();
        rows_multiply<Tile, TB>(plan, shared, cluster, warp - 4);
    }
    // a block's memory must stand until the others have told it, and copied to it, their last
    invar_cluster_meet();
}

/* ---- host ------------------------------------------------------------------------------------ */

bool invar_gemm_bf16_takes(const invar_device *dev, const invar_product *p)
{
    if (dev->numerics != INVAR_NUMERICS_SM90 || p->shards != 1 || p->groups > ROWS_MAX_GROUPS ||
        p->groups < 1 || (p->groups > 1 && !p->start) || !gemm_extent_fits(p->rows) ||
        !gemm_extent_fits(p->cols))
        return false;
    for (int32_t i = 0; i < p->parts; i++)
        if (!gemm_operand_fits(&p->a[i]) || !gemm_operand_fits(&p->b[i]) || p->a[i].k_outer ||
            p->b[i].k_outer != p->b[0].k_outer || !gemm_extent_fits(p->k[i]))
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

static gemm_choice rows_choose(const invar_product *p, int multiprocessors)
{
    return gemm_choose(p->groups, invar_ceil_div(p->rows, p->groups), p->cols, rows_tiles,
                       (int)(sizeof rows_tiles / sizeof *rows_tiles), multiprocessors);
}

template <class Tile>
static invar_status rows_plan_of(rows_plan *out, const invar_product *p, int cluster)
{
    int64_t span = (int64_t)Tile::ROWS * cluster, k = 0;
    int64_t out_bytes = invar_dtype_bits(p->out_dtype) / 8;

    for (int32_t i = 0; i < p->parts; i++) {
        gemm_operand_shape a = {p->k[i], p->rows, 1, p->rows, Tile::K, Tile::ROWS};
        gemm_operand_shape b = {p->k[i],          p->cols, p->groups,
                                p->group_rows[i], Tile::K, Tile::COLS / cluster};
        if (p->groups == 1) // nothing lies behind it
            b.matrix_rows = p->b[i].k_outer ? p->k[i] : p->cols;
        INVAR_TRY(gemm_operand_map(&out->a[i], &p->a[i], a));
        INVAR_TRY(gemm_operand_map(&out->b[i], &p->b[i], b));
        out->blocks[i] = (int32_t)invar_ceil_div(p->k[i], Tile::K);
        k += p->k[i];
    }
    out->parts = p->parts;
    out->rows = (int32_t)p->rows;
    out->cols = (int32_t)p->cols;
    // all rows where they stay in the L2 for as long as the columns pass
    out->order =
        gemm_order_of(invar_ceil_div(p->cols, Tile::COLS), p->rows * k * 2 <= ((int64_t)16 << 20)
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
    out->wide = invar_tensor_map_takes(p->out, p->out_stride * out_bytes);
    return INVAR_OK;
}

static invar_status rows_run(const invar_device *dev, const invar_product *p, gemm_choice choice)
{
    return rows_by_tile(choice.tile, [&](auto tile) {
        using Tile = decltype(tile);
        int64_t span = (int64_t)Tile::ROWS * choice.cluster;
        rows_plan plan = {};

        INVAR_TRY(rows_plan_of<Tile>(&plan, p, choice.cluster));
        int64_t most = (invar_ceil_div(p->rows, span) + p->groups - 1) * plan.order.across;
        return gemm_launch<Tile>(
            dev, p->op, p->b[0].k_outer ? gemm_bf16_rows<Tile, 1> : gemm_bf16_rows<Tile, 0>, plan,
            most, choice.cluster);
    });
}

invar_status invar_gemm_bf16(const invar_device *dev, const invar_product *p)
{
    return rows_run(dev, p, rows_choose(p, invar_cuda_of(dev)->multiprocessors));
}
