/*
 * generic.cu - products of linear layers for every shape, stride, alignment and type.
 *
 * Numerics contract: docs/arithmetic.md, section 3. A block computes a tile of the output by the
 * steps of generic.cuh: all parts of a shard in order, the shards added by the tree, then bias and
 * residual; or, for gradients of weights, unit after unit. These kernels are slow, but support
 * every problem.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/gemm/epilogue.cuh"
#include "kernels-deterministic/cuda/sm90/gemm/gemm.h"
#include "kernels-deterministic/cuda/sm90/gemm/generic.cuh"
#include "kernels-deterministic/math/shards.h"

/* ---- products -------------------------------------------------------------------------------- */

/* Rows of one tile, all of one group; end = first if there are none. */
struct tile_rows {
    int64_t group;
    int64_t first;
    int64_t end;
};

/*
 * Finds the rows of a tile. Group g has the tiles from start[g] / height + g on, up to the begin of
 * the next group's: enough for its rows however they are spread, and found without adding up the
 * earlier groups.
 */
__device__ __forceinline__ tile_rows find_rows(const invar_gemm &p, int64_t tile, int height)
{
    __shared__ tile_rows found;
    auto start = [&](int64_t group) {
        int64_t row = p.start[group];
        return row < 0 ? 0 : row > p.rows ? p.rows : row;
    };

    if (!p.start)
        return {0, tile * height, p.rows};
    if (threadIdx.x == 0)
        found = {0, 0, 0};
    __syncthreads();
    for (int64_t g = threadIdx.x; g < p.groups; g += THREADS) {
        int64_t row = start(g), end = start(g + 1), before = tile - (row / height + g);
        if (before >= 0 && tile < end / height + g + 1 && row + before * height < end)
            found = {g, row + before * height, end};
    }
    __syncthreads();
    return found;
}

/* Returns the scales of a line of `extent` elements. */
template <invar_dtype TYPE> __device__ __forceinline__ int64_t scales_across(int64_t extent)
{
    return invar_ceil_div(extent, TYPE == INVAR_DTYPE_FP8     ? INVAR_FP8_BLOCK
                                  : TYPE == INVAR_DTYPE_MXFP8 ? INVAR_MX_BLOCK
                                                              : INVAR_INT4_BLOCK);
}

/* Continues the chains of a tile over a shard of a part. */
template <typename STEP, typename TYPES, bool B_OUTER>
__device__ __forceinline__ void run_part(typename STEP::chain &c, typename STEP::shared &s,
                                         const invar_gemm &p, const tile_rows &rows, int64_t col0,
                                         int part, int shard)
{
    const invar_gemm_operand &left = p.a[part], &right = p.b[part];
    int64_t k = p.k[part];
    int64_t first = invar_shard_start(k, p.atom[part], p.shards, shard);
    int64_t end = invar_shard_start(k, p.atom[part], p.shards, shard + 1);
    tile_operand a = {left.data, left.scale, left.stride, scales_across<TYPES::A>(k),
                      0,         0,          rows.first,  rows.end};
    tile_operand b = {right.data,
                      right.scale,
                      right.stride,
                      scales_across<TYPES::B>(B_OUTER ? p.cols : k),
                      rows.group * p.group_rows[part],
                      rows.group * invar_ceil_div(p.group_rows[part], INVAR_FP8_BLOCK),
                      col0,
                      p.cols};

    run_chain<STEP, TYPES, false, B_OUTER>(c, s, a, b, first, end);
}

/*
 * Adds a shard to the tree over shards, neighbors first, by a binary counter: left[n] is the sum of
 * 2^n shards that waits for its neighbor. After the last shard, `acc` is the sum of all.
 */
template <int LEVELS, int COUNT>
__device__ __forceinline__ void fold_shard(float (&acc)[COUNT], float (&left)[LEVELS][COUNT],
                                           int shard)
{
#pragma unroll
    for (int level = 0; level < LEVELS; level++) {
        bool waits = shard >> level & 1, joins = (shard + 1) % (1 << level) == 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (joins && waits)
                acc[i] = left[level][i] + acc[i];
            else if (joins)
                left[level][i] = acc[i];
    }
}

template <typename STEP, typename TYPES, bool B_OUTER>
__device__ __forceinline__ void run_shard(typename STEP::chain &c, typename STEP::shared &s,
                                          const invar_gemm &p, const tile_rows &rows, int64_t col0,
                                          int shard)
{
    using plain = types<INVAR_DTYPE_BF16, INVAR_DTYPE_BF16>;

    set_zero(c.acc);
    for (int part = 0; part < p.parts; part++) {
        // there may be other types among int4 parts
        if (TYPES::B == INVAR_DTYPE_INT4 && p.b[part].dtype != INVAR_DTYPE_INT4)
            run_part<STEP, plain, B_OUTER>(c, s, p, rows, col0, part, shard);
        else
            run_part<STEP, TYPES, B_OUTER>(c, s, p, rows, col0, part, shard);
    }
}

template <typename T>
__device__ __forceinline__ void store_one(T *out, const invar_gemm &p, int64_t row, int64_t col,
                                          float x)
{
    if (p.residual)
        x = invar_with_residual((const T *)p.residual + row * p.residual_stride + col, x);
    invar_store(out + row * p.out_stride + col, x);
}

template <typename STEP>
__device__ __forceinline__ void store_tile(const invar_gemm &p, const tile_rows &rows, int64_t col0,
                                           const float (&acc)[STEP::COUNT])
{
    STEP::each([&](int n, int i, int j) {
        int64_t row = rows.first + i, col = col0 + j;
        if (row >= rows.end || col >= p.cols)
            return;
        float x = acc[n] + 0.0f; // the end of a chain: -0 becomes +0
        if (p.bias && p.bias_dtype == INVAR_DTYPE_F32)
            x = x + invar_load((const float *)p.bias + col);
        else if (p.bias)
            x = x + invar_load((const __nv_bfloat16 *)p.bias + col);
        if (p.out_dtype == INVAR_DTYPE_F32)
            store_one((float *)p.out, p, row, col, x);
        else
            store_one((__nv_bfloat16 *)p.out, p, row, col, x);
    });
}

/*
 * Computes the tiles of a product. SHARDED adds accumulators for the tree; without it there is one
 * chain.
 */
template <typename STEP, typename TYPES, bool B_OUTER, bool SHARDED>
static __global__ __launch_bounds__(THREADS,
                                    2) void product_tiles(const __grid_constant__ invar_gemm p,
                                                          int64_t across)
{
    __shared__ typename STEP::shared s;
    tile_rows rows = find_rows(p, (int64_t)blockIdx.x / across, STEP::ROWS);
    int64_t col0 = (int64_t)blockIdx.x % across * STEP::COLS;
    typename STEP::chain c;

    if (rows.first >= rows.end)
        return;
    if constexpr (SHARDED) {
        constexpr int LEVELS = 3; // 2^3 = 8 shards
        static_assert(INVAR_LINEAR_MAX_SHARDS == 1 << LEVELS, "the tree over shards");
        float left[LEVELS][STEP::COUNT];
        for (int shard = 0; shard < p.shards; shard++) {
            run_shard<STEP, TYPES, B_OUTER>(c, s, p, rows, col0, shard);
            fold_shard(c.acc, left, shard);
        }
    } else {
        run_shard<STEP, TYPES, B_OUTER>(c, s, p, rows, col0, 0);
    }
    store_tile<STEP>(p, rows, col0, c.acc);
}

template <typename STEP, typename TYPES, bool SHARDED>
static invar_status launch_product(const invar_device *dev, const invar_gemm *p)
{
    int64_t across = invar_ceil_div(p->cols, STEP::COLS);
    int64_t down =
        p->start ? p->rows / STEP::ROWS + p->groups : invar_ceil_div(p->rows, STEP::ROWS);
    auto kernel = p->b[0].k_outer ? product_tiles<STEP, TYPES, true, SHARDED>
                                  : product_tiles<STEP, TYPES, false, SHARDED>;

    return invar_launch(dev, p->op, kernel, dim3((unsigned)(across * down)), dim3(THREADS),
                        0)(*p, across);
}

/*
 * Returns the largest tile of which a group fills half, if there are enough of them for most
 * multiprocessors.
 */
static int choose_tile(const invar_device *dev, int64_t rows, int64_t cols, int64_t groups)
{
    for (int tile = 128; tile > 32; tile /= 2)
        if (rows >= tile / 2 && cols >= tile / 2 &&
            groups * invar_ceil_div(rows, tile) * invar_ceil_div(cols, tile) >=
                invar_cuda_of(dev)->multiprocessors * 2 / 3)
            return tile;
    return 32;
}

/* Returns whether the chain is fmaf: f32 under every numerics, everything under ieee. */
static bool by_fma(const invar_device *dev, invar_dtype dtype)
{
    return dev->numerics == INVAR_NUMERICS_IEEE || dtype == INVAR_DTYPE_F32;
}

/* Launches the step of tile 128, 64 or 32; the first has no registers for the tree over shards. */
template <typename TYPES, typename S128, typename S64, typename S32>
static invar_status product_by_tile(const invar_device *dev, const invar_gemm *p)
{
    int tile = choose_tile(dev, p->rows / p->groups, p->cols, p->groups);

    if (tile == 128 && p->shards == 1)
        return launch_product<S128, TYPES, false>(dev, p);
    return tile >= 64 ? launch_product<S64, TYPES, true>(dev, p)
                      : launch_product<S32, TYPES, true>(dev, p);
}

template <typename TYPES>
static invar_status product_of(const invar_device *dev, const invar_gemm *p)
{
    if constexpr (TYPES::A != INVAR_DTYPE_F32)
        if (!by_fma(dev, TYPES::A))
            return product_by_tile<TYPES, mma_step<128>, mma_step<64>, mma_step<32>>(dev, p);
    if constexpr (TYPES::A == TYPES::B && TYPES::A != INVAR_DTYPE_MXFP8)
        return product_by_tile<TYPES, fma_step<128, false>, fma_step<64, false>,
                               fma_step<32, false>>(dev, p);
    else
        return launch_product<fma_step<64, false>, TYPES, true>(dev, p);
}

invar_status invar_gemm_generic_product(const invar_device *dev, const invar_gemm *p)
{
    using fp8 = types<INVAR_DTYPE_FP8, INVAR_DTYPE_FP8>;
    bool int4 = false;

    if (p->rows == 0 || p->cols == 0)
        return INVAR_OK;
    for (int part = 0; part < p->parts; part++) {
        INVAR_CHECK(!p->a[part].k_outer && p->b[part].k_outer == p->b[0].k_outer);
        int4 = int4 || p->b[part].dtype == INVAR_DTYPE_INT4;
    }
    if (int4)
        return product_of<types<INVAR_DTYPE_BF16, INVAR_DTYPE_INT4>>(dev, p);
    switch (p->a[0].dtype) {
    case INVAR_DTYPE_F32: return product_of<types<INVAR_DTYPE_F32, INVAR_DTYPE_F32>>(dev, p);
    case INVAR_DTYPE_BF16: return product_of<types<INVAR_DTYPE_BF16, INVAR_DTYPE_BF16>>(dev, p);
    case INVAR_DTYPE_MXFP8: return product_of<types<INVAR_DTYPE_MXFP8, INVAR_DTYPE_MXFP8>>(dev, p);
    default: break;
    }
    INVAR_CHECK(p->a[0].dtype == INVAR_DTYPE_FP8); // the last of the float types
    return by_fma(dev, INVAR_DTYPE_FP8) ? launch_product<fma_step<64, true>, fp8, true>(dev, p)
                                        : launch_product<e4m3_step, fp8, true>(dev, p);
}

/* ---- gradients of weights -------------------------------------------------------------------- */

/*
 * Returns x without telling the compiler: addresses computed from it are computed again for each
 * use, instead of many of them waiting in registers for the next round of a loop.
 */
__device__ __forceinline__ int64_t opaque_value(int64_t x)
{
    asm volatile("" : "+l"(x));
    return x;
}

template <typename STEP, invar_dtype TYPE>
static __global__ __launch_bounds__(THREADS,
                                    2) void weight_tiles(const __grid_constant__ invar_wgrad_gemm p,
                                                         int64_t across, int64_t down)
{
    __shared__ typename STEP::shared s;
    int64_t group = (int64_t)blockIdx.x / across / down;
    int64_t row0 = (int64_t)blockIdx.x / across % down * STEP::ROWS;
    int64_t col0 = (int64_t)blockIdx.x % across * STEP::COLS;
    tile_operand a = {p.a.data, nullptr, p.a.stride, 0, 0, 0, row0, p.rows};
    tile_operand b = {p.b.data, nullptr, p.b.stride, 0, 0, 0, col0, p.cols};
    const int64_t *cut = p.cut + group * (p.units + 1);
    typename STEP::chain c;
    // calls change(element, its number in the chains) for every element of out that this thread has
    auto each = [&](auto change) {
        float *out = p.out + opaque_value((group * p.rows + row0) * p.out_stride + col0);
        STEP::each([&](int n, int i, int j) {
            if (row0 + i < p.rows && col0 + j < p.cols)
                change(out[i * p.out_stride + j], n);
        });
    };

    if (p.fresh)
        each([](float &at, int) { at = 0.0f; });
    for (int64_t unit = 0; unit < p.units; unit++) {
        int64_t first = cut[unit] < 0 ? 0 : cut[unit];
        int64_t end = cut[unit + 1] > p.tokens ? p.tokens : cut[unit + 1];
        if (first >= end)
            continue; // an empty unit adds nothing, not even +0
        set_zero(c.acc);
        run_chain<STEP, types<TYPE, TYPE>, true, true>(c, s, a, b, first, end);
        each([&](float &at, int n) { at = at + (c.acc[n] + 0.0f); });
    }
}

template <typename STEP, invar_dtype TYPE>
static invar_status launch_weight(const invar_device *dev, const invar_wgrad_gemm *p)
{
    int64_t across = invar_ceil_div(p->cols, STEP::COLS),
            down = invar_ceil_div(p->rows, STEP::ROWS);

    return invar_launch(dev, p->op, weight_tiles<STEP, TYPE>,
                        dim3((unsigned)(across * down * p->groups)), dim3(THREADS),
                        0)(*p, across, down);
}

template <invar_dtype TYPE, typename S128, typename S64, typename S32>
static invar_status weight_by_tile(const invar_device *dev, const invar_wgrad_gemm *p)
{
    switch (choose_tile(dev, p->rows, p->cols, p->groups)) {
    case 128: return launch_weight<S128, TYPE>(dev, p);
    case 64: return launch_weight<S64, TYPE>(dev, p);
    default: return launch_weight<S32, TYPE>(dev, p);
    }
}

template <invar_dtype TYPE>
static invar_status weight_by_fma(const invar_device *dev, const invar_wgrad_gemm *p)
{
    return weight_by_tile<TYPE, fma_step<128, false>, fma_step<64, false>, fma_step<32, false>>(dev,
                                                                                                p);
}

invar_status invar_gemm_generic_weight_product(const invar_device *dev, const invar_wgrad_gemm *p)
{
    if (p->a.dtype == INVAR_DTYPE_F32)
        return weight_by_fma<INVAR_DTYPE_F32>(dev, p);
    INVAR_CHECK(p->a.dtype == INVAR_DTYPE_BF16);
    if (by_fma(dev, INVAR_DTYPE_BF16))
        return weight_by_fma<INVAR_DTYPE_BF16>(dev, p);
    return weight_by_tile<INVAR_DTYPE_BF16, mma_step<128>, mma_step<64>, mma_step<32>>(dev, p);
}
