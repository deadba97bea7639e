/*
 * gemm_bf16_rows.cuh - linear.fwd and linear.dx in bf16: plan, tile iterator, copying warps,
 * epilogue.
 *
 * Shared by the kernels of dense products, products grouped by expert, several outputs, gated
 * outputs and shards. Blocks are persistent and take tile after tile. With experts, only the device
 * knows which tiles exist: each block makes the list of the experts' rows for itself, and clamps
 * the offsets that it reads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_GEMM_GEMM_BF16_ROWS_CUH
#define INVAR_KERNELS_CUDA_SM90_GEMM_GEMM_BF16_ROWS_CUH

#include "kernels-deterministic/cuda/sm90/gemm/epilogue.cuh"
#include "kernels-deterministic/cuda/sm90/gemm/gemm_bf16.cuh"
#include "kernels-deterministic/math/shards.h"

#define ROWS_MAX_GROUPS 1024
#define ROWS_TABLE_BYTES (2 * (ROWS_MAX_GROUPS + 2) * (int)sizeof(int32_t)) // a multiple of 16

/* Stages that follow one another, from `first` of a part's k on. */
struct rows_stages {
    int32_t part, first, count;
};

/*
 * Destination of results; its tiles begin at column `first` of the tiles of all outputs, side by
 * side.
 */
struct rows_output {
    void *out;
    int64_t stride;
    const void *bias;
    invar_dtype bias_dtype;
    int32_t cols, first;
};

struct rows_plan {
    // b: one for each part, or output
    CUtensorMap a[INVAR_LINEAR_MAX_PARTS], b[INVAR_LINEAR_MAX_PARTS];
    int32_t parts, outputs; // one of the two is 1
    // stages of the chains, shard by shard
    rows_stages stages[INVAR_LINEAR_MAX_SHARDS * INVAR_LINEAR_MAX_PARTS];
    int32_t n_stages;
    int32_t blocks[INVAR_LINEAR_MAX_SHARDS]; // number of stages of each shard
    int32_t shards;
    int32_t rows;
    gemm_order order;
    int32_t span_shift; // log2 of the rows of a tile of a cluster
    int32_t cluster;
    int32_t groups;
    const int64_t *start; // (groups + 1); NULL if there is one group
    // if gated: gate and up, which share tiles and may be NULL
    rows_output output[INVAR_LINEAR_MAX_PARTS];
    invar_dtype out_dtype;
    const void *residual; // added to the only output; NULL if there is none
    int64_t residual_stride;
    void *act; // activation, if gated
    int64_t act_stride;
    bool wide; // all rows of outputs and residual begin at multiples of 16 bytes
};

/* Columns of out in a tile. */
template <class Tile>
static constexpr int rows_tile_cols = Tile::GATED ? Tile::COLS / 2 : Tile::COLS;

/* ---- tiles ----------------------------------------------------------------------------------- */

/*
 * Tables in shared memory, both (groups + 1): first row of each group, and number of tiles before
 * it.
 */
struct rows_table {
    int32_t *first, *before;
};

template <class Tile>
__device__ __forceinline__ rows_table rows_table_of(const gemm_shared<Tile> &shared)
{
    int32_t *table = (int32_t *)shared.extra();

    return {table, table + Tile::GROUPS + 1};
}

/*
 * Returns the first row of a group. Row offsets come checked; whatever they hold, no row outside
 * the matrix is accessed.
 */
__device__ __forceinline__ int32_t rows_start(const rows_plan &plan, int g)
{
    int64_t at = plan.start[g];

    return (int32_t)(at < 0 ? 0 : at > plan.rows ? plan.rows : at);
}

__device__ __forceinline__ int rows_tiles_down(const rows_plan &plan, int rows)
{
    return (rows + (1 << plan.span_shift) - 1) >> plan.span_shift;
}

/* Returns the inclusive scan over a warp. */
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

/*
 * Makes the tables. Called by all threads, which meet afterwards. Starts that descend are raised,
 * so that groups never overlap.
 */
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

/*
 * Tile of a block, of a group and an output. Its rows begin at `row` and end before row_end, the
 * end of the group.
 */
struct rows_tile {
    int row, row_end, col, group, output;
};

/* Iterates over the tiles of one cluster in their order; every role of a block has an iterator. */
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

    /* Returns whether there is another tile. */
    __device__ __forceinline__ bool more() const
    {
        return tile < table.before[plan.groups];
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
        out.output = 0;
        if constexpr (!Tile::GATED && !Tile::TREE)
#pragma unroll
            for (int i = 1; i < INVAR_LINEAR_MAX_PARTS; i++)
                out.output += i < plan.outputs && col >= plan.output[i].first;
        out.col = (col - plan.output[out.output].first) * rows_tile_cols<Tile>;
        out.group = group;
        tile += (int)gridDim.x / cluster.size;
        return true;
    }
};

/* ---- roles ----------------------------------------------------------------------------------- */

/* Copies one operand of all tiles: a, or b if B is set. Called by one thread. */
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
        int first = B ? tile.output : 0;
        for (int n = 0; n < plan.n_stages; n++) {
            rows_stages stages = plan.stages[n];
            for (int i = 0; i < stages.count; i++) {
                int k = stages.first + i * Tile::K;
                if constexpr (B && Tile::GATED)
                    filler.fill_halves(&plan.b[0], &plan.b[1], k, outer);
                else
                    filler.fill(&maps[first + stages.part], k, outer, matrix);
            }
        }
    }
}

/* Begins the kernel: barriers, the wait for the previous kernel, tables. Called by all threads. */
template <class Tile>
__device__ __forceinline__ void rows_begin(const rows_plan &plan, const gemm_shared<Tile> &shared)
{
    int lane = (int)threadIdx.x % 32;

    if (gemm_warp() == 1 && lane < INVAR_LINEAR_MAX_PARTS) {
        if (lane < plan.parts)
            invar_copy_prefetch(&plan.a[lane]);
        if (lane < plan.parts || lane < plan.outputs)
            invar_copy_prefetch(&plan.b[lane]);
    }
    gemm_open_ring(shared, plan.cluster);
    invar_grid_release();
    invar_grid_wait();
    rows_make_table(plan, rows_table_of(shared));
    __syncthreads();
    invar_cluster_meet();
}

/* Runs the copying warps. */
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

/* ---- epilogue -------------------------------------------------------------------------------- */

/* Returns the bias of one column, 0 after the last one. */
__device__ __forceinline__ float rows_bias(const rows_output &to, int col)
{
    if (col >= to.cols)
        return 0.0f;
    return to.bias_dtype == INVAR_DTYPE_F32 ? invar_load((const float *)to.bias + col)
                                            : invar_load((const __nv_bfloat16 *)to.bias + col);
}

/*
 * Adds the bias to accumulators whose columns begin at `col`. Called by whole warps, each of which
 * reads the bias once.
 */
template <int COUNT>
__device__ __forceinline__ void rows_add_bias(float (&acc)[COUNT], const rows_output &to, int col)
{
    int lane = (int)threadIdx.x % 32;
    float held[COUNT / 16];

#pragma unroll
    for (int i = 0; i < COUNT / 16; i++)
        held[i] = rows_bias(to, col + 32 * i + lane);
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float bias = __shfl_sync(0xFFFFFFFFu, held[i / 16], 2 * i % 32 + lane % 4 * 2 + j);
            acc[i + j] = acc[i + j] + bias;
            acc[i + 2 + j] = acc[i + 2 + j] + bias;
        }
}

/* Stores 16 bytes of a row, with the residual added, as far as they lie in it. */
template <typename Out, bool RESIDUAL>
__device__ __forceinline__ void rows_put(const rows_plan &plan, const rows_output &to, int row,
                                         int col, uint4 value)
{
    constexpr int COUNT = 16 / (int)sizeof(Out);
    invar_run<Out, COUNT> run = {{value.x, value.y, value.z, value.w}}, residual;

    if constexpr (RESIDUAL) {
        float sum[COUNT];
        residual.load_some((const Out *)plan.residual + row * plan.residual_stride + col,
                           to.cols - col);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            sum[i] = residual.get(i) + run.get(i);
        run.set(sum);
    }
    run.store_some((Out *)to.out + row * to.stride + col, to.cols - col);
}

/* Addresses of a lane in a matrix of rows, of which it moves 16 bytes of every fourth row. */
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
    /* Returns the j-th address in strip i. */
    __device__ __forceinline__ uint4 *at(int i, int j) const
    {
        return (uint4 *)(first + j * step + i * GEMM_STAGING_ROW_BYTES);
    }
};

/*
 * Writes a warp's 16 rows from `row` on, in strips as wide as the staging memory. A chain never
 * ends in -0: the tensor core does not return it. The residual of a strip is in flight while the
 * previous strip is written.
 */
template <typename Out, bool RESIDUAL, int COUNT>
__device__ __forceinline__ void rows_write(const rows_plan &plan, const rows_tile &tile, int row,
                                           const float (&acc)[COUNT], uint8_t *staging)
{
    constexpr int WIDTH = GEMM_STAGING_ROW_BYTES / (int)sizeof(Out), STRIPS = 2 * COUNT / WIDTH;
    const rows_output &output = plan.output[tile.output];
    bool whole = plan.wide && row + 16 <= tile.row_end;
    rows_lane to((Out *)output.out, output.stride, row, tile.col);
    rows_lane from((Out *)plan.residual, plan.residual_stride, row, tile.col);
    uint4 held[2][4];
    auto fits = [&](int i) { return whole && tile.col + (i + 1) * WIDTH <= output.cols; };
    auto hold = [&](auto number) {
        constexpr int i = decltype(number)::VALUE;
        if constexpr (RESIDUAL && i < STRIPS) {
            if (fits(i))
#pragma unroll
                for (int j = 0; j < 4; j++)
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
        else if (col < output.cols)
            gemm_rows_of<Out>(staging, acc + i * WIDTH / 2,
                              [&](int, int down, int byte, uint4 value) {
                                  if (row + down < tile.row_end)
                                      rows_put<Out, RESIDUAL>(plan, output, row + down,
                                                              col + byte / (int)sizeof(Out), value);
                              });
    });
}

/*
 * Adds the bias and writes the rows in out's type. A residual is possible only if weights lie with
 * k contiguous.
 */
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

    if (plan.output[tile.output].bias)
        rows_add_bias(acc, plan.output[tile.output], tile.col);
    if (plan.out_dtype == INVAR_DTYPE_F32)
        write((float *)nullptr);
    else
        write((__nv_bfloat16 *)nullptr);
}

/* Prefetches the residual of a warp's 16 rows, because memory is slow. */
template <class Tile>
__device__ __forceinline__ void rows_prefetch_residual(const rows_plan &plan, const rows_tile &tile,
                                                       int row)
{
    int lane = (int)threadIdx.x % 32, size = plan.out_dtype == INVAR_DTYPE_F32 ? 4 : 2;
    int64_t first = (row + lane / 2) * plan.residual_stride + tile.col;
    int bytes = min(Tile::COLS, plan.output[0].cols - tile.col) * size;

    for (int at = lane % 2 * 128; row + lane / 2 < tile.row_end && at < bytes; at += 256)
        invar_fetch_to_cache((const uint8_t *)plan.residual + first * size + at);
}

/* ---- host ------------------------------------------------------------------------------------ */

/* Returns whether all rows begin at multiples of 16 bytes, or there are none. */
static inline bool rows_aligned(const invar_gemm *p, const void *data, int64_t stride)
{
    return !data || invar_tensor_map_takes(data, stride * (invar_dtype_bits(p->out_dtype) / 8));
}

/* Lists the stages of k of each chain. An empty shard has one stage of the zeros after k. */
static inline void rows_list_stages(rows_plan *out, const invar_gemm *p, int k)
{
    out->shards = p->shards;
    for (int32_t v = 0; v < p->shards; v++) {
        for (int32_t part = 0; part < p->parts; part++) {
            int64_t first = invar_shard_start(p->k[part], p->atom[part], p->shards, v);
            int64_t end = invar_shard_start(p->k[part], p->atom[part], p->shards, v + 1);
            int32_t count = (int32_t)invar_ceil_div(end - first, k);
            if (out->blocks[v] == 0 && count == 0 && part == p->parts - 1) {
                first = p->k[part];
                count = 1;
            }
            out->stages[out->n_stages++] = {part, (int32_t)first, count};
            out->blocks[v] += count;
        }
    }
}

/* Adds an output whose tiles begin after `first` other ones, side by side. */
static inline void rows_add_output(rows_plan *out, const invar_gemm *p, int64_t first)
{
    out->output[out->outputs++] = {p->out,        p->out_stride,    p->bias,
                                   p->bias_dtype, (int32_t)p->cols, (int32_t)first};
    out->wide = out->wide && rows_aligned(p, p->out, p->out_stride);
}

/* Encodes the map of operand b, with `box` of its columns in a box. */
template <class Tile>
static invar_status rows_map_b(CUtensorMap *out, const invar_gemm *p, int part, int box)
{
    gemm_operand_shape b = {p->k[part], p->cols, p->groups, p->group_rows[part], Tile::K, box};

    if (p->groups == 1) // no matrix follows
        b.matrix_rows = p->b[part].k_outer ? p->k[part] : p->cols;
    return gemm_operand_map(out, &p->b[part], b);
}

/*
 * Makes the plan of `count` products of one a, side by side. A tile has `width` columns of out;
 * boxes of b have `box` columns.
 */
template <class Tile>
static invar_status rows_plan_of(rows_plan *out, const invar_gemm *p, int count, int cluster,
                                 int width, int box)
{
    int64_t span = (int64_t)Tile::ROWS * cluster, k = 0, across = 0;

    for (int32_t i = 0; i < p->parts; i++) {
        gemm_operand_shape a = {p->k[i], p->rows, 1, p->rows, Tile::K, Tile::ROWS};
        INVAR_TRY(gemm_operand_map(&out->a[i], &p->a[i], a));
        INVAR_TRY(rows_map_b<Tile>(&out->b[i], p, i, box));
        k += p->k[i];
    }
    rows_list_stages(out, p, Tile::K);
    out->parts = p->parts;
    out->wide = rows_aligned(p, p->residual, p->residual_stride);
    for (int i = 0; i < count; i++) {
        if (i > 0)
            INVAR_TRY(rows_map_b<Tile>(&out->b[i], &p[i], 0, box));
        rows_add_output(out, &p[i], across);
        across += invar_ceil_div(p[i].cols, width);
    }
    out->rows = (int32_t)p->rows;
    // all rows, if they stay in the L2 cache while the columns pass
    out->order =
        gemm_order_of(across, p->rows * k * 2 <= ((int64_t)16 << 20) ? invar_ceil_div(p->rows, span)
                                                                     : invar_ceil_div(2048, span));
    while ((int64_t)1 << out->span_shift < span)
        out->span_shift++;
    out->cluster = cluster;
    out->groups = (int32_t)p->groups;
    out->start = p->start;
    out->out_dtype = p->out_dtype;
    out->residual = p->residual;
    out->residual_stride = p->residual_stride;
    return INVAR_OK;
}

#endif
