/*
 * gemm_bf16.cuh - bf16 products on tensor cores: tiles, operand ring, loop over k, staging of
 * results.
 *
 * A block holds one tile of the output at a time. Two of its warps copy the operands into a ring of
 * stages in shared memory, each with the barriers `full` and `empty`; the warpgroups after them
 * multiply, each some rows of the tile with all its columns. The blocks of a cluster take tiles
 * below one another, and each copies a share of b to all of them.
 *
 * Numerics contract: an element is one ascending chain of k16 steps in one accumulator, from +0.
 * Neither tile nor cluster nor stage appears in it. Zeros that fill up a stage change no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_GEMM_GEMM_BF16_CUH
#define INVAR_KERNELS_CUDA_SM90_GEMM_GEMM_BF16_CUH

#include "kernels-deterministic/cuda/common/kernel.cuh"
#include "kernels-deterministic/cuda/sm90/gemm/gemm.h"
#include "kernels-deterministic/cuda/sm90/tensor_map.h"
#include "kernels-deterministic/cuda/sm90/wgmma.cuh"

#include <utility>

#define GEMM_RUN 64 /* rows or columns that are contiguous if k is outermost: 128 bytes */
#define GEMM_STAGING_ROW_BYTES 128
#define GEMM_STAGING_BYTES (16 * GEMM_STAGING_ROW_BYTES) /* 16 rows, those of one warp */
#define GEMM_BARRIER_BYTES 256
#define GEMM_SHARED_BYTES (227 * 1024) /* shared memory that a block may have */
/* Shards begin at multiples of it, so that a stage never has two of them. */
#define GEMM_ATOM 64
#define GEMM_MAX_EXTENT ((int64_t)1 << 30)

/*
 * Sizes of a tile: BLOCKS times 64 rows for each of CONSUMERS warpgroups, and COLS columns. A stage
 * has K of k, 64 if an operand has k contiguous. EXTRA bytes of shared memory are for the kernel's
 * own use; each warp has STRIPS strips of staging memory.
 */
template <int CONSUMERS_, int BLOCKS_, int COLS_, int K_, int EXTRA_, int STRIPS_ = 1>
struct gemm_tile {
    static constexpr int CONSUMERS = CONSUMERS_;
    static constexpr int BLOCKS = BLOCKS_;
    static constexpr bool GATED = false; // true in gemm_bf16_gated.cu
    static constexpr bool LATE = false;  // true if gemm_bf16.cu writes the tile during the next one
    static constexpr bool TREE = false;  // true in gemm_bf16_tree.cu
    static constexpr int GROUPS = 1024;
    static constexpr int ACROSS = 1; // products side by side that make up its columns
    static constexpr int COLS = COLS_;
    static constexpr int K = K_;
    static constexpr int ROWS = 64 * CONSUMERS * BLOCKS;
    static constexpr int THREADS = 128 * (1 + CONSUMERS);
    static constexpr int RUN_BYTES = GEMM_RUN * K * 2; // bytes of 64 rows or columns in a stage
    static constexpr int A_BYTES = ROWS / GEMM_RUN * RUN_BYTES;
    static constexpr int STAGE_BYTES = A_BYTES + COLS / GEMM_RUN * RUN_BYTES;
    static constexpr int STRIPS = STRIPS_; // strips of staging memory for each warp
    static constexpr int STAGING = 4 * CONSUMERS * STRIPS * GEMM_STAGING_BYTES;
    // 1024 for the alignment
    static constexpr int SPARE = 1024 + STAGING + GEMM_BARRIER_BYTES + EXTRA_;
    static constexpr int FIT = (GEMM_SHARED_BYTES - SPARE) / STAGE_BYTES;
    static constexpr int STAGES = FIT < 8 ? FIT : 8;
    static constexpr size_t SHARED = (size_t)STAGES * STAGE_BYTES + SPARE;
};

/*
 * Number that gemm_each passes to f: f(m) is called with decltype(m)::VALUE = 0, 1, ..., so that
 * arrays indexed by it stay in registers.
 */
template <int I> struct gemm_number {
    static constexpr int VALUE = I;
};

template <typename F, int... I>
__device__ __forceinline__ void gemm_each(F f, std::integer_sequence<int, I...>)
{
    (f(gemm_number<I>()), ...);
}

template <int COUNT, typename F> __device__ __forceinline__ void gemm_each(F f)
{
    gemm_each(f, std::make_integer_sequence<int, COUNT>());
}

/* Returns the warp's number, in a way that tells the compiler that it is uniform. */
__device__ __forceinline__ int gemm_warp()
{
    return (int)invar_uniform(threadIdx.x / 32);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Division of numbers below 2^31 by one that is known before the launch. */
struct gemm_divider {
    uint32_t by, factor, shift;

    __device__ __forceinline__ int quotient(int n) const
    {
        return (int)((uint64_t)(uint32_t)n * factor >> shift);
    }
};

static inline gemm_divider gemm_divider_of(int64_t by)
{
    gemm_divider out = {(uint32_t)by, 0, 31};

    // rounding 2^shift / by up changes the product by less than 1 / by, and so no quotient
    while ((int64_t)1 << (out.shift - 31) < by)
        out.shift++;
    out.factor = (uint32_t)((((uint64_t)1 << out.shift) + out.by - 1) / out.by);
    return out;
}

/*
 * Order of the tiles of clusters in a matrix that has `across` of them side by side: bands of
 * `band` rows of tiles, column by column. Tiles that run at the same time then read few rows of a
 * and few columns of b, and both stay in the L2 cache.
 */
struct gemm_order {
    int across;
    gemm_divider band, band_tiles;

    /* Finds tile `n` of a matrix with `down` rows of tiles. */
    __device__ __forceinline__ void find(int n, int down, int &row, int &col) const
    {
        int above = band_tiles.quotient(n) * (int)band.by, height = min((int)band.by, down - above);

        n -= above * across;
        col = height == (int)band.by ? band.quotient(n) : n / height;
        row = above + n - col * height;
    }
};

static inline gemm_order gemm_order_of(int64_t across, int64_t band)
{
    return {(int)across, gemm_divider_of(band), gemm_divider_of(band * across)};
}

/* ---- shared memory --------------------------------------------------------------------------- */

template <class Tile> struct gemm_shared {
    uint8_t *base; // begin of the ring, aligned to 1024, the period of the swizzle

    __device__ __forceinline__ explicit gemm_shared(uint8_t *memory)
        : base(memory + (-invar_shared_address(memory) & 1023))
    {
    }
    __device__ __forceinline__ uint8_t *a(int stage) const
    {
        return base + stage * Tile::STAGE_BYTES;
    }
    __device__ __forceinline__ uint8_t *b(int stage) const
    {
        return a(stage) + Tile::A_BYTES;
    }
    __device__ __forceinline__ uint8_t *staging(int warp) const
    {
        return a(Tile::STAGES) + warp * GEMM_STAGING_BYTES;
    }
    __device__ __forceinline__ uint64_t *full(int stage) const
    {
        return (uint64_t *)(a(Tile::STAGES) + Tile::STAGING) + stage;
    }
    __device__ __forceinline__ uint64_t *empty(int stage) const
    {
        return full(Tile::STAGES) + stage;
    }
    __device__ __forceinline__ uint8_t *extra() const
    {
        return a(Tile::STAGES) + Tile::STAGING + GEMM_BARRIER_BYTES;
    }
};

/* Initializes the barriers of the ring. Called by all threads, before the cluster meets. */
template <class Tile>
__device__ __forceinline__ void gemm_open_ring(const gemm_shared<Tile> &shared, int cluster)
{
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < Tile::STAGES; stage++) {
            invar_barrier_init(shared.full(stage), 2); // one arrival for each operand
            invar_barrier_init(shared.empty(stage), (uint32_t)(4 * Tile::CONSUMERS * cluster));
        }
        invar_barrier_init_done();
    }
}

/* Position in the ring: a stage, and how often the ring has started over (modulo 2). */
template <class Tile> struct gemm_place {
    int stage = 0;
    uint32_t phase = 0;

    __device__ __forceinline__ void advance()
    {
        if (++stage == Tile::STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/* ---- copies ---------------------------------------------------------------------------------- */

/* Rank of the block among the blocks that share b, and their number. */
struct gemm_cluster {
    int rank, size;
};

/*
 * State of the one thread that copies an operand: a, or b if B is set. T means that k is outermost.
 * Every block of a cluster needs the same columns of b, and copies a share of them to all.
 */
template <class Tile, int B, int T> struct gemm_filler {
    static constexpr int COUNT = B ? Tile::COLS : Tile::ROWS;
    static constexpr int BYTES = B ? Tile::STAGE_BYTES - Tile::A_BYTES : Tile::A_BYTES;
    static constexpr int RUNS = COUNT / GEMM_RUN;

    gemm_shared<Tile> shared;
    gemm_place<Tile> place;
    // first row or column of the share in the tile; with k outermost, shares are runs
    int first;
    uint32_t runs;   // bit i: run i belongs to the share
    uint32_t blocks; // bit i: block i of the cluster receives it
    bool alone;

    __device__ __forceinline__ gemm_filler(const gemm_shared<Tile> &shared_, gemm_cluster cluster)
        : shared(shared_), runs(0)
    {
        int shares = B ? cluster.size : 1, mine = B ? cluster.rank : 0;

        first = mine * (COUNT / shares);
        for (int i = 0; i < RUNS; i++)
            runs |= (uint32_t)(i % shares == mine) << i;
        blocks = (1u << shares) - 1;
        alone = shares == 1;
    }

    __device__ __forceinline__ void copy(const CUtensorMap *map, int at, int x, int y, int z) const
    {
        uint8_t *to = (B ? shared.b(place.stage) : shared.a(place.stage)) + at * (Tile::K * 2);

        if (alone)
            invar_copy_in(to, map, x, y, z, shared.full(place.stage));
        else
            invar_copy_in_all(to, map, x, y, z, shared.full(place.stage), (uint16_t)blocks);
    }

    /* Fills the next stage, from `k` and from row (column) `outer` of matrix `matrix` on. */
    __device__ __forceinline__ void fill(const CUtensorMap *map, int k, int outer, int matrix)
    {
        invar_barrier_wait(shared.empty(place.stage), place.phase ^ 1);
        invar_barrier_expect(shared.full(place.stage), BYTES);
        if constexpr (T) {
#pragma unroll
            for (int i = 0; i < RUNS; i++)
                if (runs >> i & 1)
                    copy(map, i * GEMM_RUN, outer + i * GEMM_RUN, k, matrix);
        } else {
            copy(map, first, k, outer + first, matrix);
        }
        place.advance();
    }

    /*
     * Fills the next stage of b with halves from two matrices with k contiguous; boxes are as wide
     * as a half. In a cluster of two, each block copies one half.
     */
    __device__ __forceinline__ void fill_halves(const CUtensorMap *left, const CUtensorMap *right,
                                                int k, int outer)
    {
        static_assert(B && !T, "operand");
        invar_barrier_wait(shared.empty(place.stage), place.phase ^ 1);
        invar_barrier_expect(shared.full(place.stage), BYTES);
        if (first == 0)
            copy(left, 0, k, outer, 0);
        if (alone || first != 0)
            copy(right, COUNT / 2, k, outer, 0);
        place.advance();
    }
};

/* ---- the loop over k ------------------------------------------------------------------------- */

/* Consumer warpgroup: its number, and the blocks that wait for its stages. */
struct gemm_consumer {
    int number, cluster;
    int first = 0; // rank of the first of these blocks
};

template <class Tile>
__device__ __forceinline__ void gemm_release(const gemm_shared<Tile> &shared, int stage,
                                             gemm_consumer me)
{
    int lane = (int)threadIdx.x % 32;

    if (lane < me.cluster)
        invar_barrier_free_at(shared.empty(stage), (uint32_t)(me.first + lane));
}

/*
 * Returns the descriptor of the matrix `by` times 16 bytes later. Addresses stay below 2^18, so no
 * carry leaves their field.
 */
__device__ __forceinline__ uint64_t gemm_step(uint64_t matrix, uint32_t by)
{
    return (matrix & 0xFFFFFFFF00000000u) | ((uint32_t)matrix + by);
}

/*
 * Computes one chain from +0 over `blocks` >= 1 stages; before(i, stage) is called before the i-th
 * of them is multiplied. If two consumers ran in step, both would leave the tensor cores idle while
 * they write their results. So the second starts a little later: one writes while the other
 * multiplies.
 */
template <class Tile, int TA, int TB, typename F>
__device__ __forceinline__ void
gemm_chain(float (&acc)[Tile::BLOCKS * Tile::ACROSS][Tile::COLS / Tile::ACROSS / 2],
           const gemm_shared<Tile> &shared, gemm_place<Tile> &place, int blocks, gemm_consumer me,
           F before)
{
    constexpr int LAG = 2, WIDTH = Tile::COLS / Tile::ACROSS;
    constexpr int STAGE = Tile::STAGE_BYTES / 16, RUN = Tile::RUN_BYTES / 16;
    constexpr int A_STEP = TA ? 2048 / 16 : 32 / 16, B_STEP = TB ? 2048 / 16 : 32 / 16;
    bool lag = Tile::CONSUMERS == 2 && Tile::STAGES > LAG + 1 && blocks >= Tile::STAGES;
    uint64_t a0 = invar_matrix(shared.a(0), Tile::RUN_BYTES, 1024, INVAR_SWIZZLE_128);
    uint64_t b0 = invar_matrix(shared.b(0), Tile::RUN_BYTES, 1024, INVAR_SWIZZLE_128);
    uint32_t first = invar_uniform((uint32_t)(me.number * Tile::BLOCKS * RUN));
    int previous = 0;

    if (lag && me.number == 1)
        invar_named_barrier(1, 256);
#pragma unroll 1
    for (int i = 0; i < blocks; i++) {
        uint32_t at = invar_uniform((uint32_t)(place.stage * STAGE)), at_a = at + first;

        invar_barrier_wait(shared.full(place.stage), place.phase);
        before(i, place.stage);
        invar_product_fence();
#pragma unroll
        for (int k = 0; k < Tile::K / 16; k++)
            gemm_each<Tile::BLOCKS * Tile::ACROSS>([&](auto number) {
                constexpr int n = decltype(number)::VALUE, m = n / Tile::ACROSS;
                constexpr int RIGHT = n % Tile::ACROSS * (WIDTH / GEMM_RUN);
                invar_product_bf16<WIDTH, TA, TB>(
                    acc[n], gemm_step(a0, at_a + k * A_STEP + m * RUN),
                    gemm_step(b0, at + k * B_STEP + RIGHT * RUN), k > 0 || i > 0);
            });
        invar_product_commit();
        invar_product_wait<1>();
        if (i > 0)
            gemm_release(shared, previous, me);
        if (lag && me.number == 0 && i + 1 == LAG)
            invar_named_arrive(1, 256);
        previous = place.stage;
        place.advance();
    }
    invar_product_wait<0>();
    gemm_release(shared, previous, me);
    gemm_each<Tile::BLOCKS * Tile::ACROSS>(
        [&](auto n) { invar_product_hold(acc[decltype(n)::VALUE]); });
}

/* ---- staging of results ---------------------------------------------------------------------- */

/*
 * Returns the offset of a 16-byte chunk of a row in the staging memory; no two chunks of a phase
 * share a bank.
 */
__device__ __forceinline__ int gemm_staged(int row, int chunk)
{
    return row * GEMM_STAGING_ROW_BYTES + ((chunk ^ ((row & 3) << 1 | (row >> 2 & 1))) << 4);
}

/*
 * Stages 128 bytes of each of the warp's 16 rows, 32 columns of f32, from accumulators that begin
 * at acc[0] (layout of wgmma.cuh).
 */
__device__ __forceinline__ void gemm_stage(uint8_t *staging, const float *acc, const float *)
{
    int lane = (int)threadIdx.x % 32, row = lane / 4, pair = lane % 4;

#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(staging + gemm_staged(row + 8 * half, 2 * i + pair / 2) + 8 * (pair % 2)) =
                make_float2(acc[4 * i + 2 * half], acc[4 * i + 2 * half + 1]);
}

/* 64 columns rounded to bf16, in pairs. */
struct gemm_rounded {
    uint32_t pair[16];

    __device__ __forceinline__ void set(const float *acc)
    {
#pragma unroll
        for (int i = 0; i < 16; i++)
            pair[i] = invar_bf16x2_bits(acc[2 * i], acc[2 * i + 1]);
    }
};

/* Stages 64 columns of bf16 of each of the warp's 16 rows. */
__device__ __forceinline__ void gemm_stage(uint8_t *staging, const gemm_rounded &rounded)
{
    int lane = (int)threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        uint32_t at = invar_shared_address(staging) +
                      (uint32_t)gemm_staged(lane % 8 + 8 * (lane / 8 % 2), i + lane / 16);
        const uint32_t *p = rounded.pair + 2 * i;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                     "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3])
                     : "memory");
    }
}

__device__ __forceinline__ void gemm_stage(uint8_t *staging, const float *acc,
                                           const __nv_bfloat16 *)
{
    gemm_rounded rounded;

    rounded.set(acc);
    gemm_stage(staging, rounded);
}

/*
 * Reads staged rows: calls each(j, row, byte, value) for the four chunks of 16 bytes that the lane
 * has; chunk j lies `byte` bytes into row `row` of the 16. Called by whole warps.
 */
template <typename F> __device__ __forceinline__ void gemm_staged_rows(uint8_t *staging, F each)
{
    int lane = (int)threadIdx.x % 32;

    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int row = 4 * j + lane / 8, chunk = lane % 8;
        each(j, row, 16 * chunk, *(const uint4 *)(staging + gemm_staged(row, chunk)));
    }
    __syncwarp();
}

/* Stages accumulators and reads the staged rows. */
template <typename Out, typename F>
__device__ __forceinline__ void gemm_rows_of(uint8_t *staging, const float *acc, F each)
{
    gemm_stage(staging, acc, (const Out *)nullptr);
    gemm_staged_rows(staging, each);
}

/* ---- host ------------------------------------------------------------------------------------ */

/*
 * Boxes of an operand. `outer` counts what is not k; `matrices` follow one another, `matrix_rows`
 * values of index 0 apart. A box has `box_k` of k and, if k is contiguous, `box_outer` of the rest,
 * otherwise 64.
 */
struct gemm_operand_shape {
    int64_t k, outer, matrices, matrix_rows;
    int box_k, box_outer;
};

static inline invar_status gemm_operand_map(CUtensorMap *out, const invar_gemm_operand *o,
                                            const gemm_operand_shape &shape)
{
    invar_tensor_box box = {};
    uint64_t row_bytes = (uint64_t)o->stride * 2;

    box.data = o->data;
    box.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    box.rank = 3;
    box.extent[0] = (uint64_t)(o->k_outer ? shape.outer : shape.k);
    box.extent[1] = (uint64_t)(o->k_outer ? shape.k : shape.outer);
    box.extent[2] = (uint64_t)shape.matrices;
    box.stride[1] = row_bytes;
    box.stride[2] = row_bytes * (uint64_t)shape.matrix_rows;
    box.box[0] = (uint32_t)(o->k_outer ? GEMM_RUN : shape.box_k);
    box.box[1] = (uint32_t)(o->k_outer ? shape.box_k : shape.box_outer);
    box.box[2] = 1;
    box.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    return invar_tensor_map(out, &box);
}

static inline bool gemm_operand_fits(const invar_gemm_operand *o)
{
    return o->dtype == INVAR_DTYPE_BF16 && o->stride > 0 && o->stride < ((int64_t)1 << 38) &&
           invar_tensor_map_takes(o->data, o->stride * 2);
}

static inline bool gemm_extent_fits(int64_t n)
{
    return n > 0 && n <= GEMM_MAX_EXTENT;
}

/* Choice of a launch: number of the tile in the kernel's list, and blocks of a cluster. */
struct gemm_choice {
    int tile, cluster;
};

/*
 * A tile, and the cost of one of its elements: the smaller a tile, the more bytes move through
 * shared memory for an element. `alone` is the factor for blocks that share nothing. Both are
 * measured.
 */
struct gemm_tile_cost {
    int rows, cols;
    double element, alone;
};

/* Returns the time of `groups` products of `rows` x `cols`, up to a factor: rounds of tiles. */
static inline double gemm_cost(int64_t groups, int64_t rows, int64_t cols,
                               const gemm_tile_cost &tile, int cluster, int multiprocessors)
{
    int64_t span = (int64_t)tile.rows * cluster, padded = invar_ceil_div(rows, span) * span;
    int64_t tiles = groups * (padded / span) * invar_ceil_div(cols, tile.cols);
    int64_t rounds = invar_ceil_div(tiles, multiprocessors / cluster);
    double elements = (double)(rounds * tile.rows * tile.cols);

    // rows that do not exist cost no round, but copies
    return elements * tile.element * (cluster == 1 ? tile.alone : 1.0) *
           (0.5 + 0.5 * (double)padded / (double)rows);
}

/* Returns the cheapest of `count` tiles, in clusters of one or two. */
static inline gemm_choice gemm_choose(int64_t groups, int64_t rows, int64_t cols,
                                      const gemm_tile_cost *tiles, int count, int multiprocessors)
{
    gemm_choice best = {0, 1};
    double least = gemm_cost(groups, rows, cols, tiles[0], 1, multiprocessors);

    for (int tile = 0; tile < count; tile++)
        for (int cluster = 1; cluster <= 2; cluster++) {
            double cost = gemm_cost(groups, rows, cols, tiles[tile], cluster, multiprocessors);
            if (cost < least) {
                least = cost;
                best = {tile, cluster};
            }
        }
    return best;
}

/*
 * Launches `clusters` clusters. The kernel may begin while the previous one ends, and waits for
 * that itself.
 */
template <class Tile, typename Plan>
static invar_status gemm_launch_clusters(const invar_device *dev, invar_op op, void (*kernel)(Plan),
                                         const Plan &plan, int64_t clusters, int cluster)
{
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};

    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = (unsigned)cluster;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)(clusters * cluster));
    config.blockDim = dim3(Tile::THREADS);
    config.dynamicSmemBytes = Tile::SHARED;
    config.stream = invar_cuda_of(dev)->stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    INVAR_CUDA_TRY(invar_op_name(op),
                   invar_cuda_allow_shared(invar_cuda_of(dev), (const void *)kernel));
    INVAR_CUDA_TRY(invar_op_name(op), cudaLaunchKernelEx(&config, kernel, plan));
    return INVAR_OK;
}

/* Launches as many clusters as run at one time, or as there are tiles for. */
template <class Tile, typename Plan>
static invar_status gemm_launch(const invar_device *dev, invar_op op, void (*kernel)(Plan),
                                const Plan &plan, int64_t tiles, int cluster)
{
    int64_t most = invar_cuda_of(dev)->multiprocessors / cluster;

    return gemm_launch_clusters<Tile>(dev, op, kernel, plan, tiles < most ? tiles : most, cluster);
}

#endif
