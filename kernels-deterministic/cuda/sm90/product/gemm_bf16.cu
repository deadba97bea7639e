/*
 * gemm_bf16.cu - products of bf16 activations and weights on the tensor cores: linear.fwd and
 * linear.dx, dense and grouped by expert.
 *
 * Takes operands that bulk copies can read (16-byte rows). Weights lie with k contiguous (fwd) or
 * outermost (dx). The parts of dx follow one another in the ring of stages, so that they are one
 * chain; the end of each is filled up with zeros by the copies. Several matrices of weights may
 * share their activations: their tiles lie side by side.
 *
 * When a chain ends, its warpgroup's share of the tensor cores would be idle until the tile is
 * written. Two warpgroups do not end together; and large tiles in bf16 are written later.
 *
 * Shards, which begin at multiples of a stage, are chains one after the other. What waits for its
 * neighbour in their tree stays with the block: tiles are smaller, nothing goes through memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/product/epilogue.cuh"
#include "kernels-deterministic/cuda/sm90/product/gemm_bf16_rows.cuh"

#define ROWS_TREE_BYTES (128 * 128 * (int)sizeof(float)) /* of a tile, behind the table */

/* ---- roles ----------------------------------------------------------------------------------- */

__device__ __forceinline__ float rows_bias(const rows_output &to, int col)
{
    if (col >= to.cols)
        return 0.0f;
    return to.bias_dtype == INVAR_DTYPE_F32 ? invar_load((const float *)to.bias + col)
                                            : invar_load((const __nv_bfloat16 *)to.bias + col);
}

/* The columns of the accumulators begin at `col`. By whole warps, each of which reads it once. */
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

/* 16 bytes of a row, as far as they lie in it. */
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

    if (plan.output[tile.output].bias)
        rows_add_bias(acc, plan.output[tile.output], tile.col);
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
    int bytes = min(Tile::COLS, plan.output[0].cols - tile.col) * size;

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

/*
 * A tile whose results, in bf16, are written while the next one is multiplied. For one output
 * without a residual, chains that are long enough, and whole strips: 64 columns that begin at
 * multiples of 16 bytes.
 */
struct rows_late_tile : gemm_tile<2, 1, 256, 64, ROWS_TABLE_BYTES> {
    static constexpr bool LATE = true;
    static constexpr int STRIPS = COLS / GEMM_RUN;
};

/* A strip of a warp's 16 rows from `row` on, at column `col`. */
__device__ __forceinline__ void rows_write_strip(const rows_plan &plan, int row, int row_end,
                                                 int col, const gemm_rounded &strip,
                                                 uint8_t *staging)
{
    using Out = __nv_bfloat16;
    rows_lane to((Out *)plan.output[0].out, plan.output[0].stride, row, col);

    if (row >= row_end || col >= plan.output[0].cols)
        return;
    gemm_stage(staging, strip);
    gemm_staged_rows(staging, [&](int j, int down, int, uint4 value) {
        if (row + down < row_end)
            *to.at(0, j) = value;
    });
}

/*
 * As rows_multiply, but a tile is only rounded when its chain ends, and written strip by strip in
 * the next one, while the tensor cores are busy with a stage: they need not wait for the writing,
 * which takes as long as several stages.
 */
template <class Tile, int TB>
__device__ __forceinline__ void rows_multiply_late(const rows_plan &plan,
                                                   const gemm_shared<Tile> &shared,
                                                   gemm_cluster cluster, int warp)
{
    gemm_consumer me = {warp / 4, cluster.size};
    uint8_t *staging = shared.staging(warp);
    rows_walk<Tile> walk(plan, rows_table_of(shared), cluster);
    gemm_place<Tile> place;
    gemm_rounded kept[Tile::STRIPS];
    rows_tile tile, last = {};
    int own = me.number * 64 + warp % 4 * 16;
    bool full = false;
    auto write = [&](auto number) {
        constexpr int i = decltype(number)::VALUE;
        rows_write_strip(plan, last.row + own, last.row_end, last.col + i * GEMM_RUN, kept[i],
                         staging);
    };

    while (walk.next(tile)) {
        float acc[1][Tile::COLS / 2];
        gemm_chain<Tile, 0, TB>(acc, shared, place, plan.blocks[0], me, [&](int i, int) {
            gemm_each<Tile::STRIPS>([&](auto number) {
                if (full && i == decltype(number)::VALUE + 1)
                    write(number);
            });
        });
        if (plan.output[0].bias)
            rows_add_bias(acc[0], plan.output[0], tile.col);
        gemm_each<Tile::STRIPS>([&](auto number) {
            kept[decltype(number)::VALUE].set(acc[0] + 32 * decltype(number)::VALUE);
        });
        last = tile;
        full = true;
    }
    if (full)
        gemm_each<Tile::STRIPS>(write);
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
        if constexpr (Tile::LATE)
            rows_multiply_late<Tile, TB>(plan, shared, cluster, warp - 4);
        else
            rows_multiply<Tile, TB>(plan, shared, cluster, warp - 4);
    }
    // a block's memory must stand until the others have told it, and copied to it, their last
    invar_cluster_meet();
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

static gemm_choice rows_choose(const invar_product *p, int count, int multiprocessors)
{
    int64_t rows = invar_ceil_div(p->rows, p->groups), cols = 0;

    for (int i = 0; i < count; i++)
        cols += p[i].cols;
    if (p->shards > 1)
        return gemm_choose(p->groups, rows, cols, rows_tree_tiles, 1, multiprocessors);
    return gemm_choose(p->groups, rows, cols, rows_tiles,
                       (int)(sizeof rows_tiles / sizeof *rows_tiles), multiprocessors);
}

/* Whether tiles can be written late. */
static bool rows_writes_late(const invar_product *p)
{
    using Tile = rows_late_tile;
    int64_t k = 0;

    for (int32_t i = 0; i < p->parts; i++)
        k += p->k[i];
    return !p->residual && p->out_dtype == INVAR_DTYPE_BF16 && p->cols % GEMM_RUN == 0 &&
           k > Tile::STRIPS * Tile::K && rows_aligned(p, p->out, p->out_stride);
}

/* `count` products of one a. */
static invar_status rows_run(const invar_device *dev, const invar_product *p, int count)
{
    gemm_choice choice = rows_choose(p, count, invar_cuda_of(dev)->multiprocessors);
    auto run = [&](auto tile) {
        using Tile = decltype(tile);
        int64_t span = (int64_t)Tile::ROWS * choice.cluster;
        rows_plan plan = {};

        INVAR_TRY(rows_plan_of<Tile>(&plan, p, count, choice.cluster, Tile::COLS,
                                     Tile::COLS / choice.cluster));
        int64_t most = (invar_ceil_div(p->rows, span) + p->groups - 1) * plan.order.across;
        return gemm_launch<Tile>(
            dev, p->op, p->b[0].k_outer ? gemm_bf16_rows<Tile, 1> : gemm_bf16_rows<Tile, 0>, plan,
            most, choice.cluster);
    };

    if (p->shards > 1)
        return run(rows_tree_tile());
    if (count == 1 && choice.tile == 0 && rows_writes_late(p))
        return run(rows_late_tile());
    return rows_by_tile(choice.tile, run);
}

invar_status invar_gemm_bf16(const invar_device *dev, const invar_product *p)
{
    return rows_run(dev, p, 1);
}

bool invar_gemm_bf16_takes_set(const invar_device *dev, const invar_product_set *set)
{
    int64_t cols = 0;

    for (int i = 0; i < set->count; i++) {
        const invar_product *p = &set->product[i];
        if (!invar_gemm_bf16_takes(dev, p) || p->out_dtype != set->product[0].out_dtype ||
            p->shards != 1 || p->residual)
            return false;
        cols += p->cols;
    }
    return !set->act && gemm_extent_fits(cols);
}

invar_status invar_gemm_bf16_set(const invar_device *dev, const invar_product_set *set)
{
    return rows_run(dev, set->product, set->count);
}
