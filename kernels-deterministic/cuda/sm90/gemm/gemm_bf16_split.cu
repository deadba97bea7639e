/*
 * gemm_bf16_split.cu - linear.fwd with shards for few rows: bf16 on tensor cores.
 *
 * Few rows are few tiles. If one block computed all shards of a tile, most of the GPU would be
 * idle. So a cluster shares a tile: each of its blocks computes one shard, or several neighboring
 * ones, and leaves their sum in shared memory; then each block adds some rows of all blocks and
 * writes them. The order of additions is the tree of docs/arithmetic.md, section 3.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/gemm/gemm_bf16_rows.cuh"

struct split_tile : gemm_tile<1, 1, 64, GEMM_ATOM, 0, 0> {
    static constexpr int STAGES = 5, AT_ONCE = 2; // blocks on a multiprocessor
    // floats of a row of sums; rows that a warp writes at once share no bank
    static constexpr int LINE = COLS + 8;
    static constexpr int SUMS = ROWS * LINE * (int)sizeof(float);
    static constexpr size_t SHARED = (size_t)STAGES * STAGE_BYTES + SPARE + SUMS;
};

/* Shards of a block. */
struct split_shards {
    int first, count;
};

/* Loads from the same offset in the shared memory of block `rank`. */
__device__ __forceinline__ float4 split_load(const float *at, int rank)
{
    float4 out;

    asm volatile("{.reg .u32 there;"
                 "mapa.shared::cluster.u32 there, %4, %5;"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];}"
                 : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w)
                 : "r"(invar_shared_address(at)), "r"(rank)
                 : "memory");
    return out;
}

/* ---- roles ----------------------------------------------------------------------------------- */

/* Copies an operand, from row or column `outer` on. Called by one thread. */
template <int B>
__device__ __forceinline__ void split_fill(const rows_plan &plan,
                                           const gemm_shared<split_tile> &shared,
                                           split_shards shards, int outer)
{
    gemm_filler<split_tile, B, 0> filler(shared, {0, 1});

    for (int v = shards.first; v < shards.first + shards.count; v++)
        for (int i = 0; i < plan.stages[v].count; i++)
            filler.fill(B ? &plan.b[0] : &plan.a[0], plan.stages[v].first + i * split_tile::K,
                        outer, 0);
}

/* Computes the chains of the block's shards, adds neighbors first, and writes the sum to `sums`. */
__device__ __forceinline__ void split_multiply(const rows_plan &plan,
                                               const gemm_shared<split_tile> &shared,
                                               split_shards shards, int rank, int warp, float *sums)
{
    constexpr int COUNT = split_tile::COLS / 2, LEVELS = 2; // a block has four shards at most
    int lane = (int)threadIdx.x % 32;
    float *to = sums + (warp * 16 + lane / 4) * split_tile::LINE + 2 * (lane % 4);
    float acc[1][COUNT], waiting[LEVELS][COUNT];
    gemm_place<split_tile> place;

#pragma unroll 1
    for (int v = 0; v < shards.count; v++) {
        gemm_chain<split_tile, 0, 0>(acc, shared, place, plan.blocks[shards.first + v],
                                     {0, 1, rank}, [](int, int) {});
        bool carry = true;
#pragma unroll
        for (int level = 0; level < LEVELS; level++) {
            bool both = v >> level & 1;
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                if (carry && both)
                    acc[0][i] = waiting[level][i] + acc[0][i];
                else if (carry)
                    waiting[level][i] = acc[0][i];
            carry = carry && both;
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(to + 8 * half * split_tile::LINE + 2 * i) =
                make_float2(acc[0][i + 2 * half], acc[0][i + 2 * half + 1]);
}

/* x = the sums of all blocks, added by the tree; missing ones are +0, which changes no bit. */
__device__ __forceinline__ void split_fold(float (&x)[INVAR_RUN], const float *at, int blocks)
{
    constexpr int MOST = INVAR_LINEAR_MAX_SHARDS;
    float sum[MOST][INVAR_RUN];

#pragma unroll
    for (int v = 0; v < MOST; v++)
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i += 4) {
            float4 four = v < blocks ? split_load(at + i, v) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            sum[v][i] = four.x, sum[v][i + 1] = four.y;
            sum[v][i + 2] = four.z, sum[v][i + 3] = four.w;
        }
#pragma unroll
    for (int apart = 1; apart < MOST; apart *= 2)
#pragma unroll
        for (int v = 0; v < MOST; v += 2 * apart)
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++)
                sum[v][i] = sum[v][i] + sum[v + apart][i];
#pragma unroll
    for (int i = 0; i < INVAR_RUN; i++)
        x[i] = sum[0][i];
}

/*
 * Writes every plan.cluster-th row of the tile at (row, col), with bias and residual. Called by all
 * threads.
 */
template <typename Out>
__device__ __forceinline__ void split_write(const rows_plan &plan, int rank, int row, int col,
                                            const float *sums)
{
    using Tile = split_tile;
    constexpr int RUNS = Tile::COLS / INVAR_RUN;
    const rows_output &to = plan.output[0];

    for (int n = (int)threadIdx.x; n * plan.cluster < Tile::ROWS * RUNS; n += Tile::THREADS) {
        int down = n / RUNS * plan.cluster + rank, across = n % RUNS * INVAR_RUN;
        int at = col + across, left = to.cols - at;
        int64_t place = row + down;
        invar_run<Out> run, residual;
        float x[INVAR_RUN];
        if (row + down >= plan.rows || left <= 0)
            continue;
        split_fold(x, sums + down * Tile::LINE + across, plan.cluster);
#pragma unroll
        for (int i = 0; i < INVAR_RUN && to.bias; i++)
            x[i] = x[i] + rows_bias(to, at + i);
        run.set(x);
        if (plan.residual) {
            residual.load((const Out *)plan.residual + place * plan.residual_stride + at, left,
                          plan.wide);
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++)
                x[i] = residual.get(i) + run.get(i);
            run.set(x);
        }
        run.store((Out *)to.out + place * to.stride + at, left, plan.wide);
    }
}

static __global__ void __launch_bounds__(split_tile::THREADS, split_tile::AT_ONCE)
    gemm_bf16_split(const __grid_constant__ rows_plan plan)
{
    extern __shared__ uint8_t memory[];
    gemm_shared<split_tile> shared(memory);
    float *sums = (float *)shared.extra();
    int rank = (int)invar_cluster_rank(), warp = gemm_warp(), each = plan.shards / plan.cluster;
    int tile = (int)blockIdx.x / plan.cluster, down = rows_tiles_down(plan, plan.rows);
    int row = tile % down * split_tile::ROWS, col = tile / down * split_tile::COLS;
    split_shards shards = {rank * each, each};

    gemm_open_ring(shared, 1);
    invar_grid_release();
    invar_grid_wait();
    __syncthreads();
    if (warp == 0 && invar_elect())
        split_fill<0>(plan, shared, shards, row);
    if (warp == 1 && invar_elect())
        split_fill<1>(plan, shared, shards, col);
    if (warp >= 4)
        split_multiply(plan, shared, shards, rank, warp - 4, sums);
    __syncwarp();
    invar_cluster_sync();
    if (plan.out_dtype == INVAR_DTYPE_F32)
        split_write<float>(plan, rank, row, col, sums);
    else
        split_write<__nv_bfloat16>(plan, rank, row, col, sums);
    invar_cluster_sync(); // the other blocks read this block's memory until then
}

/* ---- host ------------------------------------------------------------------------------------ */

static int64_t split_tiles(const invar_gemm *p)
{
    return invar_ceil_div(p->rows, split_tile::ROWS) * invar_ceil_div(p->cols, split_tile::COLS);
}

/* Returns the blocks of a cluster: as many as there are multiprocessors for, at least two. */
static int split_cluster(const invar_device *dev, const invar_gemm *p)
{
    int cluster = p->shards;

    while (cluster > 2 && split_tiles(p) * cluster > invar_cuda_of(dev)->multiprocessors)
        cluster /= 2;
    return cluster;
}

bool invar_gemm_bf16_supports_split(const invar_device *dev, const invar_gemm *p)
{
    bool few = p->rows <= split_tile::ROWS || split_tiles(p) <= invar_cuda_of(dev)->multiprocessors;

    return p->shards > 1 && p->parts == 1 && !p->start && !p->b[0].k_outer && few &&
           invar_gemm_bf16_supports(dev, p);
}

invar_status invar_gemm_bf16_split(const invar_device *dev, const invar_gemm *p)
{
    int cluster = split_cluster(dev, p);
    rows_plan plan = {};

    INVAR_TRY(rows_plan_of<split_tile>(&plan, p, 1, 1, split_tile::COLS, split_tile::COLS));
    plan.cluster = cluster;
    return gemm_launch_clusters<split_tile>(dev, p->op, gemm_bf16_split, plan, split_tiles(p),
                                            cluster);
}
