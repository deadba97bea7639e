/*
 * gemm_bf16_wgrad.cu - gradients of weights in bf16 on tensor cores, dense and grouped by expert.
 *
 * Both operands have k, the tokens, outermost. A unit begins where the previous one ended, so its
 * stages begin there too, and tokens of the next unit in its last stage are overwritten with zeros
 * in both operands: the contract fills up a unit with zeros, and zero times another unit's infinity
 * is not zero.
 *
 * A tile keeps its running sums over all units in registers, and in shared memory if registers do
 * not suffice. out is read and written once; if it is fresh, it is not read and the sums begin at
 * +0. If units are short, that is most of the work: then out is copied to shared memory while the
 * previous tile is multiplied, and full lines are stored.
 *
 * A tile may be transposed: a and b change places, and its rows are columns of out. The products of
 * a step are the same, and so are the bits. Tiles are not square, and in one of the two ways more
 * of them fit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/gemm/gemm_bf16.cuh"

struct weight_plan {
    CUtensorMap a, b, sums; // sums: out, for tiles that prefetch it
    int32_t rows, cols, tokens;
    int32_t down, groups; // down: rows of tiles of clusters in a group
    gemm_order order;
    gemm_divider group_tiles;
    int32_t cluster;
    bool fresh;
    int64_t units;
    const int64_t *cut; // (groups, units + 1) token offsets of the units
    float *out;
    int64_t out_stride;
};

/* ---- tiles and units ------------------------------------------------------------------------- */

struct weight_tile {
    int row, col, group;
};

/* Finds the n-th tile of the block's cluster. Returns false after the last one. */
template <class Tile>
__device__ __forceinline__ bool weight_tile_at(const weight_plan &plan, gemm_cluster cluster, int n,
                                               weight_tile &out)
{
    int at = n * ((int)gridDim.x / cluster.size) + (int)blockIdx.x / cluster.size, row, col;

    out.group = plan.group_tiles.quotient(at);
    if (out.group >= plan.groups)
        return false;
    plan.order.find(at - out.group * (int)plan.group_tiles.by, plan.down, row, col);
    out.row = (row * cluster.size + cluster.rank) * Tile::ROWS;
    out.col = col * Tile::COLS;
    return true;
}

/*
 * Iterates over the units of a group that have tokens, in order. Offsets come checked; whatever
 * they hold, no token outside the operands is accessed.
 */
struct weight_units {
    const weight_plan &plan;
    const int64_t *cut;
    int64_t unit = 0;
    int begin, end;

    __device__ __forceinline__ weight_units(const weight_plan &plan_, int group)
        : plan(plan_), cut(plan_.cut + group * (plan_.units + 1)), begin(0), end(clamp(cut[0], 0))
    {
    }
    __device__ __forceinline__ int clamp(int64_t at, int low) const
    {
        return (int)(at < low ? low : at > plan.tokens ? plan.tokens : at);
    }
    __device__ __forceinline__ bool next()
    {
        do {
            if (unit == plan.units)
                return false;
            begin = end;
            end = clamp(cut[++unit], begin);
        } while (begin == end);
        return true;
    }
};

/* ---- roles ----------------------------------------------------------------------------------- */

/* Copies one operand of all tiles: a, or b if B is set. Called by one thread. */
template <class Tile, int B>
__device__ __forceinline__ void weight_fill(const weight_plan &plan,
                                            const gemm_shared<Tile> &shared, gemm_cluster cluster)
{
    const CUtensorMap *map = B ? &plan.b : &plan.a;
    gemm_filler<Tile, B, 1> filler(shared, cluster);
    weight_tile tile;

    for (int n = 0; weight_tile_at<Tile>(plan, cluster, n, tile); n++)
        for (weight_units units(plan, tile.group); units.next();)
#pragma unroll 1 // needs few registers
            for (int token = units.begin; token < units.end; token += Tile::K)
                filler.fill(map, token, B ? tile.col : tile.row, 0);
}

/*
 * Values of out of the next tile, copied to shared memory ahead of time: runs of 32 columns,
 * swizzled.
 */
template <class Tile> struct weight_sums_prefetch {
    static constexpr int COLS = 32, RUN_BYTES = Tile::ROWS * COLS * (int)sizeof(float);
    static constexpr int BYTES = Tile::COLS / COLS * RUN_BYTES;
    uint64_t *full, *empty;
    uint8_t *memory;

    __device__ __forceinline__ explicit weight_sums_prefetch(const gemm_shared<Tile> &shared)
        : full(shared.empty(Tile::STAGES)), empty(full + 1),
          memory(shared.extra() + (-invar_shared_address(shared.extra()) & 1023))
    {
    }
    __device__ __forceinline__ void open() const
    {
        invar_barrier_init(full, 1);
        invar_barrier_init(empty, 4 * Tile::CONSUMERS);
    }
    /* Copies the values of all tiles. Called by one thread. */
    __device__ __forceinline__ void fill(const weight_plan &plan, gemm_cluster cluster) const
    {
        weight_tile tile;

        for (int n = 0; weight_tile_at<Tile>(plan, cluster, n, tile); n++) {
            invar_barrier_wait(empty, (uint32_t)(n & 1) ^ 1);
            invar_barrier_expect(full, BYTES);
            for (int i = 0; i < Tile::COLS / COLS; i++)
                invar_copy_in(memory + i * RUN_BYTES, &plan.sums, tile.col + i * COLS, tile.row,
                              tile.group, full);
        }
    }
    /*
     * Reads a warp's sums of the n-th tile in the layout of accumulators. Called by multiplying
     * warps.
     */
    __device__ __forceinline__ void take(float (&sums)[Tile::COLS / 2], int warp, int n) const
    {
        int lane = (int)threadIdx.x % 32, row = warp * 16 + lane / 4;
        const uint8_t *first = memory + row * 128 + lane % 2 * 8;

        invar_barrier_wait(full, (uint32_t)(n & 1));
#pragma unroll
        for (int i = 0; i < Tile::COLS / 2; i += 2) {
            int col = 8 * (i / 4), chunk = (col % COLS / 4 + lane % 4 / 2) ^ (lane / 4 & 7);
            float2 x = *(const float2 *)(first + col / COLS * RUN_BYTES + i / 2 % 2 * 8 * 128 +
                                         chunk * 16);
            sums[i] = x.x;
            sums[i + 1] = x.y;
        }
        __syncwarp();
        if (lane == 0)
            invar_barrier_arrive(empty);
    }
};

/*
 * Writes zeros instead of the tokens from `count` on, into what this warpgroup reads of a stage:
 * its own part of a, and b, into which the other one writes the same zeros. Its products read every
 * zero before it releases the stage, so the next copy, which may be another block's, comes after
 * the writes: the order needs no release of writes to the cluster, which would take longer than a
 * stage.
 */
template <class Tile>
__device__ __forceinline__ void weight_cut_stage(const gemm_shared<Tile> &shared, int stage,
                                                 int consumer, int count)
{
    constexpr int RUNS = 1 + Tile::COLS / GEMM_RUN;
    uint8_t *a = shared.a(stage) + consumer * Tile::RUN_BYTES, *b = shared.b(stage);

    for (int i = count * 8 + (int)threadIdx.x % 128; i < Tile::K * 8; i += 128)
#pragma unroll
        for (int run = 0; run < RUNS; run++)
            *(uint4 *)((run == 0 ? a : b + (run - 1) * Tile::RUN_BYTES) + i * 16) =
                make_uint4(0, 0, 0, 0);
    invar_fence_async();
    invar_named_barrier(2 + consumer, 128);
}

/*
 * The 16 rows of out that a warp has of a tile; `row` and `col` are the lane's first position in
 * them.
 */
struct weight_rows {
    float *first;
    int64_t stride;
    int rows, cols; // rows and columns of out from there on

    __device__ __forceinline__ weight_rows(const weight_plan &plan, const weight_tile &tile,
                                           int warp, int row, int col)
        : stride(plan.out_stride), rows(plan.rows - tile.row - warp * 16 - row),
          cols(plan.cols - tile.col - col)
    {
        first = plan.out + (int64_t)tile.group * plan.rows * stride +
                (int64_t)(tile.row + warp * 16 + row) * stride + tile.col + col;
    }
    __device__ __forceinline__ float *at(int row, int col) const
    {
        return first + row * stride + col;
    }
    __device__ __forceinline__ int left(int row, int col) const
    {
        return row < rows ? cols - col : 0;
    }
};

/* Loads out from column `col` on, in the layout of accumulators. */
template <int COUNT>
__device__ __forceinline__ void weight_load(float (&sums)[COUNT], const weight_rows &out, int col)
{
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        int down = 8 * (i / 2 % 2), right = col + 8 * (i / 4);
        float2 x = make_float2(0.0f, 0.0f);
        if (out.left(down, right) >= 2)
            x = *(const float2 *)out.at(down, right);
        sums[i] = x.x;
        sums[i + 1] = x.y;
    }
    if (out.cols % 2 == 0)
        return;
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        int down = 8 * (i / 2 % 2), right = col + 8 * (i / 4);
        if (out.left(down, right) == 1)
            sums[i] = *out.at(down, right);
    }
}

template <int COUNT> __device__ __forceinline__ void weight_clear(float (&sums)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        sums[i] = 0.0f;
}

/* Stores sums from the layout of accumulators. Four lanes share 32 bytes of a row. */
template <int COUNT>
__device__ __forceinline__ void weight_store(const float (&sums)[COUNT], const weight_rows &out,
                                             int col)
{
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        int down = 8 * (i / 2 % 2), right = col + 8 * (i / 4), left = out.left(down, right);
        if (left >= 2)
            *(float2 *)out.at(down, right) = make_float2(sums[i], sums[i + 1]);
        if (left == 1)
            *out.at(down, right) = sums[i];
    }
}

/*
 * Like weight_store, but through the warp's staging memory: eight lanes share 128 bytes of a row.
 * `out` begins at the warp's first row and the tile's first column.
 */
template <int COUNT>
__device__ __forceinline__ void weight_store_staged(const float (&sums)[COUNT],
                                                    const weight_rows &out, uint8_t *staging)
{
#pragma unroll
    for (int first = 0; first < COUNT; first += 16)
        gemm_rows_of<float>(staging, sums + first, [&](int, int row, int byte, uint4 x) {
            int col = 2 * first + byte / 4, left = out.left(row, col);
            float *at = out.at(row, col);
            if (left >= 4) {
                *(uint4 *)at = x;
                return;
            }
            if (left > 0)
                at[0] = __uint_as_float(x.x);
            if (left > 1)
                at[1] = __uint_as_float(x.y);
            if (left > 2)
                at[2] = __uint_as_float(x.z);
        });
}

/*
 * Calls f(i, address in out) for each sums[i] of a thread in a transposed tile that exists in out.
 * Eight lanes share 32 bytes of a row of out.
 */
template <int COUNT, typename F>
__device__ __forceinline__ void weight_each_transposed(const weight_plan &plan,
                                                       const weight_tile &tile, int warp, F f)
{
    int lane = (int)threadIdx.x % 32;
    int row = tile.row + warp * 16 + lane / 4, col = tile.col + lane % 4 * 2;
    float *first = plan.out + ((int64_t)tile.group * plan.cols + col) * plan.out_stride + row;

#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int down = 8 * (i / 2 % 2), right = 8 * (i / 4) + i % 2;
        if (row + down < plan.rows && col + right < plan.cols)
            f(i, first + right * plan.out_stride + down);
    }
}

/* Sums of a thread in shared memory: four at a time, side by side with those of other threads. */
template <int COUNT> struct weight_spill {
    float4 *first;

    __device__ __forceinline__ weight_spill(uint8_t *memory)
        : first((float4 *)memory + (threadIdx.x - 128))
    {
    }
    __device__ __forceinline__ void put(const float (&sums)[COUNT]) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4)
            first[i / 4 * 256] = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
    }
    __device__ __forceinline__ void get(float (&sums)[COUNT]) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            float4 x = first[i / 4 * 256];
            sums[i] = x.x, sums[i + 1] = x.y, sums[i + 2] = x.z, sums[i + 3] = x.w;
        }
    }
    __device__ __forceinline__ void add(const float *acc) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            float4 x = first[i / 4 * 256];
            first[i / 4 * 256] =
                make_float4(x.x + acc[i], x.y + acc[i + 1], x.z + acc[i + 2], x.w + acc[i + 3]);
        }
    }
};

/* Adds all units of a tile; add(acc) adds one of them. */
template <class Tile, typename F>
__device__ __forceinline__ void weight_add_units(const weight_plan &plan, const weight_tile &tile,
                                                 const gemm_shared<Tile> &shared,
                                                 gemm_place<Tile> &place, gemm_consumer me, F add)
{
    float acc[1][Tile::COLS / 2];

    for (weight_units units(plan, tile.group); units.next();) {
        int count = units.end - units.begin, rest = count % Tile::K;
        int blocks = (count + Tile::K - 1) / Tile::K;
        gemm_chain<Tile, 1, 1>(acc, shared, place, blocks, me, [&](int i, int stage) {
            if (rest != 0 && i + 1 == blocks)
                weight_cut_stage(shared, stage, me.number, rest);
        });
        add(acc[0]);
    }
}

template <int COUNT>
__device__ __forceinline__ void weight_add(float (&sums)[COUNT], const float *acc)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        sums[i] = sums[i] + acc[i];
}

/* Computes a transposed tile. */
template <class Tile>
__device__ __forceinline__ void
weight_sums_transposed(const weight_plan &plan, const weight_tile &tile,
                       const gemm_shared<Tile> &shared, gemm_place<Tile> &place, int warp,
                       int cluster)
{
    float sums[Tile::COLS / 2] = {};

    if (!plan.fresh)
        weight_each_transposed<Tile::COLS / 2>(plan, tile, warp,
                                               [&](int i, const float *at) { sums[i] = *at; });
    weight_add_units(plan, tile, shared, place, {warp / 4, cluster},
                     [&](const float *acc) { weight_add(sums, acc); });
    weight_each_transposed<Tile::COLS / 2>(plan, tile, warp,
                                           [&](int i, float *at) { *at = sums[i]; });
}

/* Computes the n-th tile of the block. SPILLED of the sums are in shared memory. */
template <class Tile, int SPILLED>
__device__ __forceinline__ void weight_sums(const weight_plan &plan, const weight_tile &tile,
                                            const gemm_shared<Tile> &shared,
                                            gemm_place<Tile> &place, int warp, int cluster, int n)
{
    constexpr int KEPT = Tile::COLS / 2 - SPILLED;
    constexpr bool AHEAD = Tile::STRIPS > 0;
    int lane = (int)threadIdx.x % 32;
    float kept[KEPT], spilled[SPILLED > 0 ? SPILLED : 4];
    weight_spill<SPILLED> spill(shared.extra());

    if constexpr (AHEAD) {
        weight_clear(kept);
        if (!plan.fresh)
            weight_sums_prefetch<Tile>(shared).take(kept, warp, n);
    } else {
        weight_rows from(plan, tile, warp, lane / 4, lane % 4 * 2);
        if (plan.fresh)
            from.rows = 0; // no row is loaded, and the sums begin at +0
        if constexpr (SPILLED > 0) {
            weight_load(spilled, from, 2 * KEPT);
            spill.put(spilled);
        }
        weight_load(kept, from, 0);
    }
    weight_add_units(plan, tile, shared, place, {warp / 4, cluster}, [&](const float *acc) {
        weight_add(kept, acc);
        if constexpr (SPILLED > 0)
            spill.add(acc + KEPT);
    });
    if constexpr (AHEAD) {
        static_assert(SPILLED == 0, "all sums are in registers");
        weight_store_staged(kept, weight_rows(plan, tile, warp, 0, 0), shared.staging(warp));
    } else {
        asm volatile("" : "+r"(lane)); // addresses of the loads are not kept until here
        weight_rows to(plan, tile, warp, lane / 4, lane % 4 * 2);
        weight_store(kept, to, 0);
        if constexpr (SPILLED > 0) {
            spill.get(spilled);
            weight_store(spilled, to, 2 * KEPT);
        }
    }
}

template <class Tile, int SPILLED, bool TRANSPOSED>
static __global__ void __launch_bounds__(Tile::THREADS, 1)
    gemm_bf16_weight(const __grid_constant__ weight_plan plan)
{
    extern __shared__ uint8_t memory[];
    gemm_shared<Tile> shared(memory);
    gemm_cluster cluster = {(int)invar_cluster_rank(), plan.cluster};
    constexpr bool AHEAD = Tile::STRIPS > 0;
    int warp = gemm_warp();

    static_assert(Tile::BLOCKS == 1 && (SPILLED == 0 || Tile::CONSUMERS == 2), "tile");
    if (threadIdx.x == 32) {
        invar_copy_prefetch(&plan.a);
        invar_copy_prefetch(&plan.b);
    }
    if (AHEAD && threadIdx.x == 0)
        weight_sums_prefetch<Tile>(shared).open();
    gemm_open_ring(shared, cluster.size);
    invar_grid_release();
    invar_grid_wait();
    __syncthreads();
    invar_cluster_meet();
    if (warp < 4) {
        invar_registers_down<24>();
        if (warp == 0 && invar_elect())
            weight_fill<Tile, 0>(plan, shared, cluster);
        if (warp == 1 && invar_elect())
            weight_fill<Tile, 1>(plan, shared, cluster);
        if (AHEAD && warp == 2 && !plan.fresh && invar_elect())
            weight_sums_prefetch<Tile>(shared).fill(plan, cluster);
        __syncwarp();
    } else {
        invar_registers_up<(Tile::CONSUMERS == 3 ? 160 : 240)>();
        gemm_place<Tile> place;
        weight_tile tile;
        for (int n = 0; weight_tile_at<Tile>(plan, cluster, n, tile); n++)
            if constexpr (TRANSPOSED)
                weight_sums_transposed(plan, tile, shared, place, warp - 4, cluster.size);
            else
                weight_sums<Tile, SPILLED>(plan, tile, shared, place, warp - 4, cluster.size, n);
    }
    // other blocks may still signal this block's barriers and copy into its memory
    invar_cluster_meet();
}

/* ---- host ------------------------------------------------------------------------------------ */

bool invar_gemm_bf16_supports_weight(const invar_device *dev, const invar_wgrad_gemm *p)
{
    return dev->numerics == INVAR_NUMERICS_SM90 && gemm_operand_fits(&p->a) &&
           gemm_operand_fits(&p->b) && p->a.k_outer && p->b.k_outer && gemm_extent_fits(p->rows) &&
           gemm_extent_fits(p->cols) && gemm_extent_fits(p->tokens) &&
           gemm_extent_fits(p->groups) &&
           (p->rows / 128 + 2) * (p->cols / 128 + 2) <= GEMM_MAX_EXTENT / p->groups &&
           invar_tensor_map_takes(p->out, p->out_stride * (int64_t)sizeof(float));
}

static const gemm_tile_cost weight_tiles[] = {
    {128, 256, 1.0, 1.09},
    {128, 192, 1.005, 1.04},
    {128, 128, 1.05, 1.05},
};

static const gemm_tile_cost weight_transposed_tile = {128, 192, 1.01, 1.04};

/*
 * If units have few tokens, much of a stage would be zeros, which are copied nevertheless, and
 * access to out is a large part of the work. So stages are shorter, and tiles prefetch their sums.
 * This is the largest average number of tokens: above it, longer stages are as fast.
 */
#define WEIGHT_SHORT_UNIT 128

static const gemm_tile_cost weight_short_tiles[] = {
    {192, 128, 1.0, 1.0},
    {128, 192, 1.02, 1.02},
};

/*
 * Tokens of a group from which on a transposed tile's access to out, in small pieces, costs little.
 */
#define WEIGHT_TRANSPOSED_TOKENS 2048

/* Returns the problem as transposed tiles compute it. */
static invar_wgrad_gemm weight_transposed(const invar_wgrad_gemm *p)
{
    invar_wgrad_gemm out = *p;

    out.a = p->b;
    out.b = p->a;
    out.rows = p->cols;
    out.cols = p->rows;
    return out;
}

/* Encodes the map of out for weight_sums_prefetch. */
template <class Tile>
static invar_status weight_sums_map(CUtensorMap *out, const invar_wgrad_gemm *p)
{
    invar_tensor_box box = {};

    box.data = p->out;
    box.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    box.rank = 3;
    box.extent[0] = (uint64_t)p->cols;
    box.extent[1] = (uint64_t)p->rows;
    box.extent[2] = (uint64_t)p->groups;
    box.stride[1] = (uint64_t)p->out_stride * sizeof(float);
    box.stride[2] = box.stride[1] * (uint64_t)p->rows;
    box.box[0] = (uint32_t)weight_sums_prefetch<Tile>::COLS;
    box.box[1] = (uint32_t)Tile::ROWS;
    box.box[2] = 1;
    box.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    box.streamed = true;
    return invar_tensor_map(out, &box);
}

/*
 * Launches the tiles. SPILLED of the sums of a thread are in shared memory. TRANSPOSED means that p
 * is from weight_transposed. With STRIPS of staging memory for each warp, sums are prefetched and
 * stored through it.
 */
template <int CONSUMERS, int COLS, int K, int SPILLED, bool TRANSPOSED, int STRIPS = 0>
static invar_status weight_launch(const invar_device *dev, const invar_wgrad_gemm *p, int cluster)
{
    constexpr int WAITING = STRIPS > 0 ? 64 * CONSUMERS * COLS * (int)sizeof(float) + 1024 : 0;
    constexpr int EXTRA = SPILLED * 256 * (int)sizeof(float) + WAITING; // 1024 for the alignment
    using Tile = gemm_tile<CONSUMERS, 1, COLS, K, EXTRA, STRIPS>;
    weight_plan plan = {};

    INVAR_TRY(gemm_operand_map(&plan.a, &p->a, {p->tokens, p->rows, 1, p->tokens, K, 0}));
    INVAR_TRY(gemm_operand_map(&plan.b, &p->b, {p->tokens, p->cols, 1, p->tokens, K, 0}));
    if constexpr (STRIPS > 0)
        INVAR_TRY(weight_sums_map<Tile>(&plan.sums, p));
    plan.rows = (int32_t)p->rows;
    plan.cols = (int32_t)p->cols;
    plan.tokens = (int32_t)p->tokens;
    plan.down = (int32_t)invar_ceil_div(p->rows, Tile::ROWS * cluster);
    plan.order = gemm_order_of(invar_ceil_div(p->cols, Tile::COLS), 8);
    plan.group_tiles = gemm_divider_of((int64_t)plan.down * plan.order.across);
    plan.groups = (int32_t)p->groups;
    plan.cluster = cluster;
    plan.fresh = p->fresh;
    plan.units = p->units;
    plan.cut = p->cut;
    plan.out = p->out;
    plan.out_stride = p->out_stride;
    return gemm_launch<Tile>(dev, p->op, gemm_bf16_weight<Tile, SPILLED, TRANSPOSED>, plan,
                             (int64_t)plan.group_tiles.by * plan.groups, cluster);
}

/* Launches the tiles for short units, which experts have. Clusters would not be faster. */
static invar_status weight_short_units(const invar_device *dev, const invar_wgrad_gemm *p)
{
    int n = invar_cuda_of(dev)->multiprocessors;

    if (gemm_cost(p->groups, p->rows, p->cols, weight_short_tiles[0], 1, n) <=
        gemm_cost(p->groups, p->rows, p->cols, weight_short_tiles[1], 1, n))
        return weight_launch<3, 128, 32, 0, false, 1>(dev, p, 1);
    return weight_launch<2, 192, 32, 0, false, 1>(dev, p, 1);
}

invar_status invar_gemm_bf16_weight(const invar_device *dev, const invar_wgrad_gemm *p)
{
    constexpr int TILES = (int)(sizeof weight_tiles / sizeof *weight_tiles);
    int n = invar_cuda_of(dev)->multiprocessors;
    invar_wgrad_gemm transposed = weight_transposed(p);
    gemm_choice best = gemm_choose(p->groups, p->rows, p->cols, weight_tiles, TILES, n);
    gemm_choice other = gemm_choose(p->groups, p->cols, p->rows, &weight_transposed_tile, 1, n);

    if (p->groups > 1 && p->tokens / p->groups <= WEIGHT_SHORT_UNIT * p->units)
        return weight_short_units(dev, p);
    if (p->tokens / p->groups >= WEIGHT_TRANSPOSED_TOKENS &&
        gemm_cost(p->groups, p->cols, p->rows, weight_transposed_tile, other.cluster, n) <
            gemm_cost(p->groups, p->rows, p->cols, weight_tiles[best.tile], best.cluster, n))
        return weight_launch<2, 192, 64, 0, true>(dev, &transposed, other.cluster);
    switch (weight_tiles[best.tile].cols) {
    case 256: return weight_launch<2, 256, 64, 32, false>(dev, p, best.cluster);
    case 192: return weight_launch<2, 192, 64, 0, false>(dev, p, best.cluster);
    default: return weight_launch<2, 128, 64, 0, false>(dev, p, best.cluster);
    }
}
