/*
 * gemm_bf16_tree.cu - linear.fwd and linear.dx with shards: bf16 on tensor cores.
 *
 * Dense and grouped by expert. The shards of a tile are chains one after the other, and the tensor
 * cores continue from one to the next: a chain that has ended is added to others while the next
 * one, in other registers, is in flight. A tile is written during the first chain of the next tile.
 * Sums that wait for their neighbor in the tree stay in registers, which is why tiles are small;
 * only the sum of four waits in shared memory. The order of additions is the tree of
 * docs/arithmetic.md, section 3.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/gemm/gemm_bf16_rows.cuh"

#define TREE_BYTES (128 * 128 * (int)sizeof(float)) // bytes of the sums of a tile, after the table

/* ---- chains ---------------------------------------------------------------------------------- */

struct tree_tile : gemm_tile<2, 1, 128, GEMM_ATOM, ROWS_TABLE_BYTES + TREE_BYTES> {
    static constexpr bool TREE = true;
    static constexpr int COUNT = COLS / 2; // sums of a thread
};

/* Consumer warpgroup, and its position in the ring. */
template <int TB> struct tree_consumer {
    using Tile = tree_tile;
    using sums = float[Tile::COUNT];
    gemm_shared<Tile> shared;
    gemm_consumer me;
    gemm_place<Tile> place;
    uint64_t a, b;

    __device__ __forceinline__ tree_consumer(const gemm_shared<Tile> &shared_, gemm_consumer me_)
        : shared(shared_), me(me_), a(invar_matrix(shared_.a(0) + me_.number * Tile::RUN_BYTES,
                                                   Tile::RUN_BYTES, 1024, INVAR_SWIZZLE_128)),
          b(invar_matrix(shared_.b(0), Tile::RUN_BYTES, 1024, INVAR_SWIZZLE_128))
    {
    }

    /*
     * Starts the next stage of a chain, its first one unless `add` is set. Afterwards the previous
     * stage has ended, which may be the last of another chain; `behind` is set if there is one.
     */
    __device__ __forceinline__ void stage(sums &acc, bool add, bool behind)
    {
        constexpr int B_STEP = TB ? 2048 / 16 : 32 / 16;
        uint32_t at = invar_uniform((uint32_t)(place.stage * (Tile::STAGE_BYTES / 16)));

        invar_barrier_wait(shared.full(place.stage), place.phase);
        invar_product_fence();
#pragma unroll
        for (int k = 0; k < Tile::K / 16; k++)
            invar_product_bf16<Tile::COLS, 0, TB>(acc, gemm_step(a, at + k * (32 / 16)),
                                                  gemm_step(b, at + k * B_STEP), k > 0 || add);
        invar_product_commit();
        invar_product_wait<1>();
        if (behind)
            release();
        place.advance();
    }

    /* Continues a chain of which `begun` stages have been started. */
    __device__ __forceinline__ void continue_chain(sums &acc, int begun, int blocks)
    {
#pragma unroll 1
        for (int i = begun; i < blocks; i++)
            stage(acc, true, true);
    }

    /*
     * Runs a chain; calls meanwhile() when the previous chain has ended and this one is in flight.
     */
    template <typename F>
    __device__ __forceinline__ void chain(sums &acc, int blocks, bool behind, F meanwhile)
    {
        stage(acc, false, behind);
        meanwhile();
        continue_chain(acc, 1, blocks);
    }

    /* Waits until the last chain has ended. */
    __device__ __forceinline__ void end()
    {
        invar_product_wait<0>();
        release();
    }

  private:
    /* Releases the previous stage. */
    __device__ __forceinline__ void release()
    {
        gemm_release(shared, (place.stage == 0 ? Tile::STAGES : place.stage) - 1, me);
    }
};

/* to = left + right; either may be `to`. */
template <int COUNT>
__device__ __forceinline__ void tree_add(float (&to)[COUNT], float (&left)[COUNT],
                                         float (&right)[COUNT])
{
    invar_product_hold(left);
    invar_product_hold(right);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        to[i] = left[i] + right[i];
}

/* Saves sums in shared memory: each float4 of a thread is 256 threads after the previous one. */
template <int COUNT>
__device__ __forceinline__ void tree_save(float4 *to, const float (&from)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT / 4; i++)
        to[256 * i] = make_float4(from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]);
}

/* to = left + to, with left in shared memory */
template <int COUNT>
__device__ __forceinline__ void tree_add(float (&to)[COUNT], const float4 *left)
{
#pragma unroll
    for (int i = 0; i < COUNT / 4; i++) {
        float4 held = left[256 * i];
        to[4 * i] = held.x + to[4 * i];
        to[4 * i + 1] = held.y + to[4 * i + 1];
        to[4 * i + 2] = held.z + to[4 * i + 2];
        to[4 * i + 3] = held.w + to[4 * i + 3];
    }
}

/* ---- roles ----------------------------------------------------------------------------------- */

/*
 * Multiplies the tiles of a consumer. Registers hold three chains: x, y and z. With eight shards,
 * the previous tile is z + x, plus the sum of its first four in shared memory; with fewer it is z.
 */
template <int TB>
__device__ __forceinline__ void tree_multiply(const rows_plan &plan,
                                              const gemm_shared<tree_tile> &shared,
                                              gemm_cluster cluster, int warp)
{
    using Tile = tree_tile;
    constexpr int HALF = Tile::COUNT / 2;
    tree_consumer<TB> on(shared, {warp / 4, cluster.size});
    rows_walk<Tile> walk(plan, rows_table_of(shared), cluster);
    uint8_t *staging = shared.staging(warp);
    float4 *four = (float4 *)(shared.extra() + ROWS_TABLE_BYTES) + (int)threadIdx.x - 128;
    const int32_t *blocks = plan.blocks;
    int own = warp * 16;
    rows_tile tile = {};
    bool full = false;
    float x[Tile::COUNT], y[Tile::COUNT], z[Tile::COUNT];
    auto sum = [&] {
        if (plan.shards < 8)
            return;
        tree_add(z, z, x);
        tree_add(z, four);
    };
    // fwd and dx share this code, though dx has no residual: the compiler needs fewer registers
    auto write = [&](auto number) {
        constexpr int N = decltype(number)::VALUE;
        rows_tile half = tile;
        half.col += N * Tile::COLS / 2;
        rows_finish<0>(plan, half, half.row + own, *(float(*)[HALF])(z + N * HALF), staging);
    };

    while (walk.more()) {
        on.stage(y, false, false);
        // the previous tile is written bit by bit, between stages that keep the tensor cores busy
        if (full)
            sum();
        if (blocks[0] > 1)
            on.stage(y, true, true);
        if (full)
            write(gemm_number<0>());
        if (blocks[0] > 2)
            on.stage(y, true, true);
        if (full)
            write(gemm_number<1>());
        on.continue_chain(y, 3, blocks[0]);
        full = walk.next(tile);
        if (!TB && plan.residual)
            rows_prefetch_residual<Tile>(plan, tile, tile.row + own);
        on.chain(x, blocks[1], true, [] {});
        if (plan.shards == 2) {
            on.end();
            tree_add(z, y, x);
            continue;
        }
        on.chain(z, blocks[2], true, [&] { tree_add(y, y, x); });
        on.chain(x, blocks[3], true, [] {});
        on.end();
        tree_add(x, z, x);
        if (plan.shards == 4) {
            tree_add(z, y, x);
            continue;
        }
        on.chain(z, blocks[4], false, [&] {
            tree_add(y, y, x);
            tree_save(four, y);
        });
        on.chain(y, blocks[5], true, [] {});
        on.chain(x, blocks[6], true, [&] { tree_add(z, z, y); });
        on.chain(y, blocks[7], true, [] {});
        on.end();
        tree_add(x, x, y);
    }
    if (full) {
        sum();
        write(gemm_number<0>());
        write(gemm_number<1>());
    }
}

template <int TB>
static __global__ void __launch_bounds__(tree_tile::THREADS, 1)
    gemm_bf16_tree(const __grid_constant__ rows_plan plan)
{
    extern __shared__ uint8_t memory[];
    gemm_shared<tree_tile> shared(memory);
    gemm_cluster cluster = {(int)invar_cluster_rank(), plan.cluster};
    int warp = gemm_warp();

    rows_begin(plan, shared);
    if (warp < 4) {
        invar_registers_down<24>();
        rows_produce<tree_tile, TB>(plan, shared, cluster);
    } else {
        invar_registers_up<240>();
        tree_multiply<TB>(plan, shared, cluster, warp - 4);
    }
    invar_cluster_meet(); // see the end of gemm_bf16_rows
}

/* ---- host ------------------------------------------------------------------------------------ */

static const gemm_tile_cost tree_tiles[] = {{128, 128, 1.0, 1.08}};

invar_status invar_gemm_bf16_tree(const invar_device *dev, const invar_gemm *p)
{
    using Tile = tree_tile;
    int64_t rows = invar_ceil_div(p->rows, p->groups);
    int cluster =
        gemm_choose(p->groups, rows, p->cols, tree_tiles, 1, invar_cuda_of(dev)->multiprocessors)
            .cluster;
    int64_t span = (int64_t)Tile::ROWS * cluster;
    rows_plan plan = {};

    INVAR_TRY(rows_plan_of<Tile>(&plan, p, 1, cluster, Tile::COLS, Tile::COLS / cluster));
    int64_t most = (invar_ceil_div(p->rows, span) + p->groups - 1) * plan.order.across;
    return gemm_launch<Tile>(dev, p->op, p->b[0].k_outer ? gemm_bf16_tree<1> : gemm_bf16_tree<0>,
                             plan, most, cluster);
}
