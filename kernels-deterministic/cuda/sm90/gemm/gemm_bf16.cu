/*
 * gemm_bf16.cu - bf16 products on tensor cores: linear.fwd and linear.dx, dense and grouped by
 * expert.
 *
 * Operands must be readable by bulk copies (16-byte rows). Weights lie with k contiguous (fwd) or
 * outermost (dx). The parts of dx follow one another in the ring of stages, so that they are one
 * chain; copies fill up the end of each part with zeros. Several matrices of weights may share
 * their activations: their tiles lie side by side.
 *
 * When a chain ends, its warpgroup's share of the tensor cores would be idle until the tile is
 * written. So two warpgroups do not end together, and large tiles in bf16 are written later.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/gemm/gemm_bf16_rows.cuh"

/* ---- roles ----------------------------------------------------------------------------------- */

/*
 * A tile whose results, in bf16, are written while the next one is multiplied. It is for one output
 * without a residual, chains that are long enough, and full strips: 64 columns that begin at
 * multiples of 16 bytes.
 */
struct rows_late_tile : gemm_tile<2, 1, 256, 64, ROWS_TABLE_BYTES> {
    static constexpr bool LATE = true;
    static constexpr int STRIPS = COLS / GEMM_RUN;
};

/* Writes a strip of a warp's 16 rows, from `row` and `col` on. */
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
 * Like rows_multiply, but a tile is only rounded when its chain ends. It is written strip by strip
 * during the next tile, while the tensor cores are busy with a stage, because writing takes as long
 * as several stages.
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
            rows_prefetch_residual<Tile>(plan, tile, row + 64 * m);
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
            invar_registers_down<40>();
        rows_produce<Tile, TB>(plan, shared, cluster);
    } else {
        if constexpr (Tile::CONSUMERS == 2)
            invar_registers_up<232>();
        if constexpr (Tile::LATE)
            rows_multiply_late<Tile, TB>(plan, shared, cluster, warp - 4);
        else
            rows_multiply<Tile, TB>(plan, shared, cluster, warp - 4);
    }
    // other blocks may still signal this block's barriers and copy into its memory
    invar_cluster_meet();
}

/* ---- host ------------------------------------------------------------------------------------ */

bool invar_gemm_bf16_supports(const invar_device *dev, const invar_gemm *p)
{
    if (dev->numerics != INVAR_NUMERICS_SM90 || p->groups > ROWS_MAX_GROUPS || p->groups < 1 ||
        (p->groups > 1 && !p->start) || (p->residual && p->b[0].k_outer) ||
        !gemm_extent_fits(p->rows) || !gemm_extent_fits(p->cols))
        return false;
    for (int32_t i = 0; i < p->parts; i++)
        if (!gemm_operand_fits(&p->a[i]) || !gemm_operand_fits(&p->b[i]) || p->a[i].k_outer ||
            p->b[i].k_outer != p->b[0].k_outer || !gemm_extent_fits(p->k[i]) ||
            (p->shards > 1 && p->atom[i] % GEMM_ATOM != 0))
            return false;
    // tiles are counted in 32 bits, at 64 rows and columns each
    return (p->rows / 64 + p->groups + 1) * (p->cols / 64 + 1) <= GEMM_MAX_EXTENT;
}

template <int CONSUMERS, int BLOCKS, int COLS>
using rows_gemm_tile = gemm_tile<CONSUMERS, BLOCKS, COLS, 64, ROWS_TABLE_BYTES>;

/* Calls f with the tile of this number; rows_tiles lists their costs. */
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

static gemm_choice rows_choose(const invar_gemm *p, int count, int multiprocessors)
{
    int64_t rows = invar_ceil_div(p->rows, p->groups), cols = 0;

    for (int i = 0; i < count; i++)
        cols += p[i].cols;
    return gemm_choose(p->groups, rows, cols, rows_tiles,
                       (int)(sizeof rows_tiles / sizeof *rows_tiles), multiprocessors);
}

/* Returns whether tiles can be written late. */
static bool rows_writes_late(const invar_gemm *p)
{
    using Tile = rows_late_tile;
    int64_t k = 0;

    for (int32_t i = 0; i < p->parts; i++)
        k += p->k[i];
    return !p->residual && p->out_dtype == INVAR_DTYPE_BF16 && p->cols % GEMM_RUN == 0 &&
           k > Tile::STRIPS * Tile::K && rows_aligned(p, p->out, p->out_stride);
}

/* Runs `count` products of one a. */
static invar_status rows_run(const invar_device *dev, const invar_gemm *p, int count)
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

    if (count == 1 && choice.tile == 0 && rows_writes_late(p))
        return run(rows_late_tile());
    return rows_by_tile(choice.tile, run);
}

invar_status invar_gemm_bf16(const invar_device *dev, const invar_gemm *p)
{
    return p->shards > 1 ? invar_gemm_bf16_tree(dev, p) : rows_run(dev, p, 1);
}

bool invar_gemm_bf16_supports_set(const invar_device *dev, const invar_gemm_set *set)
{
    int64_t cols = 0;

    for (int i = 0; i < set->count; i++) {
        const invar_gemm *p = &set->product[i];
        if (!invar_gemm_bf16_supports(dev, p) || p->out_dtype != set->product[0].out_dtype ||
            p->shards != 1 || p->residual)
            return false;
        cols += p->cols;
    }
    return !set->act && gemm_extent_fits(cols);
}

invar_status invar_gemm_bf16_set(const invar_device *dev, const invar_gemm_set *set)
{
    return rows_run(dev, set->product, set->count);
}
