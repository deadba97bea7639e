/*
 * gemm_bf16_gated.cu - linear.fwd of gate and up with their activation: bf16 on tensor cores.
 *
 * A tile has columns of the gate in its left half and the same columns of `up` in its right half,
 * so that one warp gets both and their activation can be written too. The multiplying warps leave
 * rounded results in shared memory and continue with the next tile, while finishing warps compute
 * the activation and write everything. The barriers `ready` and `taken` belong to the strips that
 * one multiplying warp leaves.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/gemm/gemm_bf16_rows.cuh"

#define GATED_TABLE_BYTES 16 /* table of one group */
#define GATED_HEAD_BYTES 256 /* table and barriers */

/* ---- gated ----------------------------------------------------------------------------------- */

/*
 * Sizes of a tile whose results are finished by other warps. A multiplying warp leaves strips of 64
 * columns: STRIPS of them at one time, and all of a tile in TIMES times.
 */
template <int CONSUMERS_, int ACROSS_>
struct gated_tile
    : gemm_tile<CONSUMERS_, 1, 128 * ACROSS_, 64,
                GATED_HEAD_BYTES + (ACROSS_ == 2 ? 4 * (int)INVAR_GATE_ENTRIES : 0), 2> {
    static constexpr bool GATED = true;
    static constexpr int GROUPS = 1;
    static constexpr int ACROSS = ACROSS_, TIMES = ACROSS_;
    static constexpr int THREADS = 128 * (2 + CONSUMERS_);
    // silu by a table, if there is room for it and tiles are large
    static constexpr bool TABLE = ACROSS_ == 2;

    /* Returns the strip of a tile that is left as the n-th: gate and up alternate. */
    static __device__ constexpr int source(int n)
    {
        return n / 2 + n % 2 * ACROSS;
    }
};

/*
 * Shared memory after the ring: strips that multiplying warps have left, their barriers, a table of
 * silu.
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
    /* Returns the i-th strip of a warp, 16 rows and 64 columns. */
    __device__ __forceinline__ uint8_t *strip(int warp, int i) const
    {
        return ring.staging(warp * Tile::STRIPS + i);
    }
    __device__ __forceinline__ float *table() const
    {
        return (float *)(ring.extra() + GATED_HEAD_BYTES);
    }

    /* Initializes the barriers. Called by all threads, before they meet. */
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
 * Runs a multiplying warp. Strips that are not left at once are kept, rounded, while the next tile
 * is multiplied, so that shared memory need not hold all of a tile.
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

/* Loads a run from shared memory. */
__device__ __forceinline__ invar_bf16_run gated_run(const uint8_t *at)
{
    uint4 run = *(const uint4 *)at;

    return {{run.x, run.y, run.z, run.w}};
}

/* Stores 16 bytes of a row from `col` on, as far as they exist; nothing if `data` is NULL. */
__device__ __forceinline__ void gated_put(const rows_plan &plan, void *data, int64_t stride,
                                          int row, int col, const invar_bf16_run &run)
{
    if (data)
        run.store((__nv_bfloat16 *)data + row * stride + col, plan.output[0].cols - col, plan.wide);
}

/*
 * Writes the strips of gate and up that warp `from` has left, and their activation, from `row` and
 * `col` on.
 */
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
        if (row + down >= tile.row_end || col >= plan.output[0].cols)
            continue;
        gated_put(plan, plan.output[0].out, plan.output[0].stride, row + down, col, gate);
        gated_put(plan, plan.output[1].out, plan.output[1].stride, row + down, col, up);
        gated_put(plan, plan.act, plan.act_stride, row + down, col, act);
    }
}

/* Runs a finishing warp, which finishes the strips of one warp of every consumer. */
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
    rows_begin(plan, shared); // all threads see barriers and table afterwards
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
    invar_cluster_meet(); // see the end of gemm_bf16_rows
}

/* ---- host ------------------------------------------------------------------------------------ */

bool invar_gemm_bf16_supports_gated(const invar_device *dev, const invar_gemm_set *set)
{
    const invar_gemm *gate = &set->product[0], *up = &set->product[1];

    return set->act && gate->shards == 1 && gate->out_dtype == INVAR_DTYPE_BF16 &&
           up->out_dtype == INVAR_DTYPE_BF16 && !gate->bias && !up->bias && !gate->start &&
           !gate->b[0].k_outer && invar_gemm_bf16_supports(dev, gate) &&
           invar_gemm_bf16_supports(dev, up);
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

invar_status invar_gemm_bf16_gated(const invar_device *dev, const invar_gemm_set *set)
{
    const invar_gemm *gate = &set->product[0], *up = &set->product[1];
    gemm_choice choice = gemm_choose(1, gate->rows, 2 * gate->cols, gated_tiles,
                                     (int)(sizeof gated_tiles / sizeof *gated_tiles),
                                     invar_cuda_of(dev)->multiprocessors);

    return gated_by_tile(choice.tile, [&](auto tile) {
        using Tile = decltype(tile);
        constexpr int WIDTH = Tile::COLS / 2;
        rows_plan plan = {};

        INVAR_TRY(rows_plan_of<Tile>(&plan, gate, 1, choice.cluster, WIDTH, WIDTH));
        INVAR_TRY(rows_map_b<Tile>(&plan.b[1], up, 0, WIDTH));
        rows_add_output(&plan, up, 0);
        plan.act = set->act;
        plan.act_stride = set->act_stride;
        plan.wide = plan.wide && rows_aligned(up, set->act, set->act_stride);
        int64_t down = invar_ceil_div(gate->rows, (int64_t)Tile::ROWS * choice.cluster);
        return gemm_launch<Tile>(dev, gate->op, gemm_bf16_gated<Tile>, plan,
                                 down * plan.order.across, choice.cluster);
    });
}
