/*
 * generic.cuh - tiles of products of every type: loads, dot-steps and chains.
 *
 * A block of 256 threads goes through k in ascending order: global memory to registers, registers
 * to shared memory as the values of the chain, then the dot-step of the numerics:
 *   fma_step   ieee, or f32 operands: fmaf, each thread a rectangle of elements; fp8 with promotion
 *   mma_step   sm90, bf16 values (bf16, mxfp8, int4): mma.sync.m16n8k16
 *   e4m3_step  sm90, fp8: wgmma.m64n32k32, promoted every 128 of k
 * Elements after an end of k, rows or columns are zero on both sides, so that every product with
 * them is zero. A unit here is a run of 8 elements.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_GEMM_GENERIC_CUH
#define INVAR_KERNELS_CUDA_SM90_GEMM_GENERIC_CUH

#include "kernels-deterministic/cuda/common/kernel.cuh"
#include "kernels-deterministic/cuda/sm90/wgmma.cuh"
#include "kernels-deterministic/math/mx.h"

#define THREADS 256
// elements that are moved together, along the contiguous index; a scale covers all of them
#define UNIT 8

/* ---- loads from global memory ---------------------------------------------------------------- */

/* Storage of a type: a unit is COUNT numbers of type `number`. */
template <typename T, int UNIT_COUNT> struct kept_as {
    using number = T;
    static constexpr int COUNT = UNIT_COUNT, BYTES = COUNT * (int)sizeof(T);
};
template <invar_dtype TYPE> struct kept;
template <> struct kept<INVAR_DTYPE_F32> : kept_as<uint32_t, UNIT> {
};
template <> struct kept<INVAR_DTYPE_BF16> : kept_as<uint16_t, UNIT> {
};
template <> struct kept<INVAR_DTYPE_FP8> : kept_as<uint8_t, UNIT> {
};
template <> struct kept<INVAR_DTYPE_MXFP8> : kept_as<uint8_t, UNIT> {
};
template <> struct kept<INVAR_DTYPE_INT4> : kept_as<uint8_t, UNIT / 2> {
};

/*
 * One operand of a tile: rows [first, end) of the chain's row index. Element (r, k) has index 0
 * `origin` + r, or `origin` + k if k is outermost; its other index is the contiguous one.
 */
struct tile_operand {
    const void *data;
    const void *scale;
    int64_t stride;
    int64_t scales; /* scales of one value of index 0; for fp8 weights, of up to 128 values that
                       share them */
    int64_t origin;
    int64_t bands; /* bands of values of index 0 that share scales, before `origin`; fp8 weights
                      only */
    int64_t first;
    int64_t end;
};

/* Returns the address of an element that begins a unit. */
template <invar_dtype TYPE>
__device__ __forceinline__ const typename kept<TYPE>::number *element(const tile_operand &s,
                                                                      int64_t i0, int64_t i1)
{
    return (const typename kept<TYPE>::number *)s.data +
           (i0 * s.stride + i1) * kept<TYPE>::COUNT / UNIT;
}

/* A unit as it is stored. */
template <invar_dtype TYPE> struct unit {
    uint32_t word[kept<TYPE>::BYTES / 4];
    uint32_t scale;
};

/* Loads all numbers of a unit at once, or zeros. */
template <typename T, int COUNT>
__device__ __forceinline__ void fetch_whole(uint32_t *word, const T *at, bool there)
{
    constexpr int BYTES = COUNT * (int)sizeof(T);

    if constexpr (BYTES == 4)
        word[0] = there ? __ldg((const uint32_t *)at) : 0;
    if constexpr (BYTES == 8)
        *(uint2 *)word = there ? __ldg((const uint2 *)at) : make_uint2(0, 0);
    if constexpr (BYTES >= 16) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++)
            ((uint4 *)word)[i] = there ? __ldg((const uint4 *)at + i) : make_uint4(0, 0, 0, 0);
    }
}

/* Loads `valid` of the numbers of a unit one by one, and zeros for the rest. */
template <typename T, int COUNT>
__device__ __forceinline__ void fetch_single(uint32_t *word, const T *at, int valid)
{
    constexpr int PER_WORD = 4 / (int)sizeof(T);
    T number[COUNT];

#pragma unroll
    for (int i = 0; i < COUNT; i++)
        number[i] = i < valid ? __ldg(at + i) : (T)0;
#pragma unroll
    for (int i = 0; i < COUNT; i += PER_WORD) {
        word[i / PER_WORD] = 0;
#pragma unroll
        for (int j = 0; j < PER_WORD; j++)
            word[i / PER_WORD] |= (uint32_t)number[i + j] << j * (int)sizeof(T) * 8;
    }
}

/* Loads the first `valid` elements of the unit at (i0, i1); zeros if there are none. */
template <invar_dtype TYPE, bool QUICK>
__device__ __forceinline__ void load_unit(unit<TYPE> &u, const tile_operand &s, int64_t i0,
                                          int64_t i1, int valid)
{
    constexpr int COUNT = kept<TYPE>::COUNT;
    const auto *at = element<TYPE>(s, i0, i1);

    if constexpr (QUICK)
        fetch_whole<typename kept<TYPE>::number, COUNT>(u.word, at, valid > 0);
    else
        fetch_single<typename kept<TYPE>::number, COUNT>(u.word, at, valid * COUNT / UNIT);
    if constexpr (TYPE == INVAR_DTYPE_MXFP8)
        u.scale =
            valid > 0 ? __ldg((const uint8_t *)s.scale + i0 * s.scales + i1 / INVAR_MX_BLOCK) : 0;
    if constexpr (TYPE == INVAR_DTYPE_INT4)
        u.scale = valid > 0
                      ? __ldg((const uint16_t *)s.scale + i0 * s.scales + i1 / INVAR_INT4_BLOCK)
                      : 0;
}

/* Loads a unit by its position in the tile: (r, k .. k+7), or (r .. r+7, k) if k is outermost. */
template <invar_dtype TYPE, bool OUTER, bool QUICK>
__device__ __forceinline__ void load_unit_at(unit<TYPE> &u, const tile_operand &s, int r, int64_t k,
                                             int64_t k_end)
{
    int64_t row = s.first + r;
    int64_t left = OUTER ? (k < k_end ? s.end - row : 0) : (row < s.end ? k_end - k : 0);
    int valid = left < 0 ? 0 : left < UNIT ? (int)left : UNIT;

    load_unit<TYPE, QUICK>(u, s, s.origin + (OUTER ? k : row), OUTER ? row : k, valid);
}

/*
 * Returns whether the units of the tile at k are aligned and each is complete or missing, so that
 * fetch_whole can load them.
 */
template <invar_dtype TYPE, bool OUTER, int ROWS, int DEPTH>
__device__ __forceinline__ bool quick_at(const tile_operand &s, int64_t k, int64_t k_end)
{
    constexpr int BYTES = kept<TYPE>::BYTES, WIDTH = BYTES < 16 ? BYTES : 16;
    int64_t along = OUTER ? s.end - s.first : k_end - k;
    uintptr_t at =
        (uintptr_t)element<TYPE>(s, s.origin + (OUTER ? k : s.first), OUTER ? s.first : k);

    return (at | (uintptr_t)(s.stride * BYTES / UNIT)) % WIDTH == 0 &&
           (along % UNIT == 0 || along >= (OUTER ? ROWS : DEPTH));
}

/*
 * Returns the value of the code in the lowest four bits, from the lowest bits of 2^23 + code;
 * exact.
 */
__device__ __forceinline__ float int4_value(uint32_t codes)
{
    return __uint_as_float(0x4B000000u | (codes & 0xFu)) - (0x1p23f + 8.0f);
}

/* Returns the values as pairs of bf16, by the expressions of math/mx.h and math/int4.h. */
template <invar_dtype TYPE>
__device__ __forceinline__ void unit_bf16(uint32_t (&pair)[UNIT / 2], const unit<TYPE> &u)
{
    if constexpr (TYPE == INVAR_DTYPE_MXFP8) {
        float scale = invar_f32_from_e8m0((uint8_t)u.scale);
#pragma unroll
        for (int i = 0; i < UNIT / 2; i += 2) {
            float x[4];
            invar_e4m3_values(x, u.word[i / 2]);
#pragma unroll
            for (int j = 0; j < 2; j++) // the upper halves; the products are exact
                pair[i + j] = __byte_perm(__float_as_uint(x[2 * j] * scale),
                                          __float_as_uint(x[2 * j + 1] * scale), 0x7632);
        }
    } else if constexpr (TYPE == INVAR_DTYPE_INT4) {
        float scale = invar_f32_from_bf16((uint16_t)u.scale);
#pragma unroll
        for (int i = 0; i < UNIT / 2; i++)
            pair[i] = invar_bf16x2_bits(int4_value(u.word[0] >> 8 * i) * scale,
                                        int4_value(u.word[0] >> (8 * i + 4)) * scale);
    } else {
#pragma unroll
        for (int i = 0; i < UNIT / 2; i++)
            pair[i] = u.word[i];
    }
}

/* Returns the values as f32; those of fp8 without their scales. */
template <invar_dtype TYPE>
__device__ __forceinline__ void unit_f32(float (&value)[UNIT], const unit<TYPE> &u)
{
    if constexpr (TYPE == INVAR_DTYPE_F32) {
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            value[i] = __uint_as_float(u.word[i]);
    } else if constexpr (TYPE == INVAR_DTYPE_FP8) {
#pragma unroll
        for (int i = 0; i < UNIT; i += 4)
            invar_e4m3_values(*(float(*)[4])(value + i), u.word[i / 4]);
    } else {
        uint32_t pair[UNIT / 2];
        unit_bf16(pair, u);
#pragma unroll
        for (int i = 0; i < UNIT; i++)
            value[i] = __uint_as_float(i % 2 ? pair[i / 2] & 0xFFFF0000u : pair[i / 2] << 16);
    }
}

/*
 * Returns the scale of a block of 128 of k for one row of the left operand. scale_of_tile returns
 * that of the tile of the right one.
 */
__device__ __forceinline__ float scale_of_row(const tile_operand &a, int r, int64_t k)
{
    int64_t row = a.first + r;

    return row < a.end ? ((const float *)a.scale)[row * a.scales + k / INVAR_FP8_BLOCK] : 0.0f;
}

template <bool OUTER>
__device__ __forceinline__ float scale_of_tile(const tile_operand &b, int64_t k)
{
    int64_t i0 = OUTER ? k : b.first, i1 = OUTER ? b.first : k;

    return (
        (const float *)b.scale)[(b.bands + i0 / INVAR_FP8_BLOCK) * b.scales + i1 / INVAR_FP8_BLOCK];
}

/* ---- fmaf ------------------------------------------------------------------------------------ */

/*
 * Dot-step by fmaf. Shared memory is [k][row]. The threads form a rectangle; each has DOWN rows and
 * ACROSS columns, in runs of at most four. The small tile, for products that have too few of larger
 * ones, has half the rows, and most of its threads only load: reading shared memory is its limit,
 * and larger rectangles read less. PROMOTE is for fp8: a partial chain for every 128 of k.
 */
template <int TILE, bool PROMOTE> struct fma_step {
    static constexpr int ROWS = TILE < 64 ? 16 : TILE, COLS = TILE;
    static constexpr int DEPTH = TILE < 64 ? 128 : 2048 / TILE, BUFFERS = TILE < 64 ? 1 : 2;
    static constexpr int DOWN = TILE < 64 ? 4 : TILE / 16, ACROSS = TILE / 16;
    static constexpr int COUNT = DOWN * ACROSS, HIGH = ROWS / DOWN, WIDE = COLS / ACROSS;
    static constexpr bool ASYNC = false;

    /* Returns the distance from one k to the next. */
    static constexpr __host__ __device__ int pitch(int rows)
    {
        return rows + 4;
    }

    struct alignas(16) shared {
        float a[BUFFERS][DEPTH * pitch(ROWS)];
        float b[BUFFERS][DEPTH * pitch(COLS)];
    };
    struct chain {
        float acc[COUNT];
        float partial[PROMOTE ? COUNT : 1];
    };

    /*
     * Returns the position of the i-th unit. Lanes go along rows: the stores of a unit along k fall
     * into different banks.
     */
    template <int ROWS_, bool OUTER> __device__ static int2 place(int i)
    {
        return OUTER ? make_int2(i % (ROWS_ / UNIT) * UNIT, i / (ROWS_ / UNIT))
                     : make_int2(i % ROWS_, i / ROWS_ * UNIT);
    }

    template <int ROWS_, bool OUTER, invar_dtype TYPE>
    __device__ static void stash(float *to, int2 at, const unit<TYPE> &u)
    {
        float value[UNIT];

        unit_f32(value, u);
        if constexpr (OUTER) {
            float4 *row = (float4 *)(to + at.y * pitch(ROWS_) + at.x);
            row[0] = make_float4(value[0], value[1], value[2], value[3]);
            row[1] = make_float4(value[4], value[5], value[6], value[7]);
        } else {
#pragma unroll
            for (int i = 0; i < UNIT; i++)
                to[(at.y + i) * pitch(ROWS_) + at.x] = value[i];
        }
    }

    /* Returns the i-th of the COUNT_ rows (columns) of thread `thread` out of THREADS_. */
    template <int COUNT_, int THREADS_> __device__ static int index(int i, int thread)
    {
        constexpr int RUN = COUNT_ < 4 ? COUNT_ : 4;

        return i / RUN * THREADS_ * RUN + thread * RUN + i % RUN;
    }

    template <int COUNT_, int THREADS_>
    __device__ static void read(float (&value)[COUNT_], const float *line, int thread)
    {
#pragma unroll
        for (int i = 0; i < COUNT_; i += 4) {
            const float *at = line + index<COUNT_, THREADS_>(i, thread);
            if constexpr (COUNT_ >= 4)
                *(float4 *)(value + i) = *(const float4 *)at;
            else
                *(float2 *)(value + i) = *(const float2 *)at;
        }
    }

    template <bool A_OUTER, bool B_OUTER>
    __device__ static void run(chain &c, const shared &s, int buffer, const tile_operand &a,
                               const tile_operand &b, int64_t k, int64_t k_end)
    {
        float(&acc)[COUNT] = sum_of(c);
        int x = (int)threadIdx.x % WIDE, y = (int)threadIdx.x / WIDE;

        if (y >= HIGH)
            return;
        if constexpr (PROMOTE) {
            if (k % INVAR_FP8_BLOCK == 0) {
#pragma unroll
                for (int i = 0; i < COUNT; i++)
                    acc[i] = 0.0f;
            }
        }
#pragma unroll 16
        for (int step = 0; step < DEPTH; step++) {
            float left[DOWN], right[ACROSS];
            read<DOWN, HIGH>(left, s.a[buffer] + step * pitch(ROWS), y);
            read<ACROSS, WIDE>(right, s.b[buffer] + step * pitch(COLS), x);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                acc[i] = invar_fmaf(left[i / ACROSS], right[i % ACROSS], acc[i]);
        }
        if constexpr (PROMOTE) {
            if ((k + DEPTH) % INVAR_FP8_BLOCK == 0 || k + DEPTH >= k_end)
                promote<B_OUTER>(c, a, b, k);
        }
    }

    /* Returns the sums that the steps add to. */
    __device__ static float (&sum_of(chain &c))[COUNT]
    {
        if constexpr (PROMOTE)
            return c.partial;
        else
            return c.acc;
    }

    template <bool B_OUTER>
    __device__ static void promote(chain &c, const tile_operand &a, const tile_operand &b,
                                   int64_t k)
    {
        float right = scale_of_tile<B_OUTER>(b, k);

#pragma unroll
        for (int i = 0; i < DOWN; i++) {
            int row = index<DOWN, HIGH>(i, (int)threadIdx.x / WIDE);
            float scale = scale_of_row(a, row, k) * right;
#pragma unroll
            for (int j = i * ACROSS; j < (i + 1) * ACROSS; j++)
                c.acc[j] = invar_fmaf(c.partial[j], scale, c.acc[j]);
        }
    }

    /* Calls f(n, row, column) for the elements acc[n] of this thread. */
    template <typename F> __device__ static void each(F f)
    {
        int x = (int)threadIdx.x % WIDE, y = (int)threadIdx.x / WIDE;

#pragma unroll
        for (int i = 0; i < COUNT && y < HIGH; i++)
            f(i, index<DOWN, HIGH>(i / ACROSS, y), index<ACROSS, WIDE>(i % ACROSS, x));
    }
};

/* ---- mma.sync -------------------------------------------------------------------------------- */

/*
 * Dot-step by mma.sync. Shared memory is [row][k], or [k][row] if k is outermost in the operand.
 * The warps are arranged 2 x 4 on the tile.
 */
template <int TILE> struct mma_step {
    static constexpr int ROWS = TILE, COLS = TILE, DEPTH = TILE < 64 ? 256 : 4096 / TILE;
    static constexpr int BUFFERS = TILE < 64 ? 1 : 2;
    static constexpr int WARP_ROWS = TILE / 2, WARP_COLS = TILE / 4;
    static constexpr int DOWN = WARP_ROWS / 16, ACROSS = WARP_COLS / 8, COUNT = DOWN * ACROSS * 4;
    // 16 bytes more than a power of two: eight rows of a matrix lie in different banks
    static constexpr int INNER_PITCH = DEPTH + 8, INNER_SIZE = TILE * INNER_PITCH;
    static constexpr int OUTER_PITCH = TILE + 8, OUTER_SIZE = DEPTH * OUTER_PITCH;
    static constexpr int SIZE = INNER_SIZE > OUTER_SIZE ? INNER_SIZE : OUTER_SIZE;
    static constexpr bool ASYNC = false;

    struct alignas(16) shared {
        uint16_t a[BUFFERS][SIZE];
        uint16_t b[BUFFERS][SIZE];
    };
    struct chain {
        float acc[COUNT];
    };

    template <int ROWS_, bool OUTER> __device__ static int2 place(int i)
    {
        return OUTER ? make_int2(i % (ROWS_ / UNIT) * UNIT, i / (ROWS_ / UNIT))
                     : make_int2(i / (DEPTH / UNIT), i % (DEPTH / UNIT) * UNIT);
    }

    template <bool OUTER> __device__ static int offset(int r, int k)
    {
        return OUTER ? k * OUTER_PITCH + r : r * INNER_PITCH + k;
    }

    template <int ROWS_, bool OUTER, invar_dtype TYPE>
    __device__ static void stash(uint16_t *to, int2 at, const unit<TYPE> &u)
    {
        uint32_t pair[UNIT / 2];

        unit_bf16(pair, u);
        *(uint4 *)(to + offset<OUTER>(at.x, at.y)) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }

    template <bool A_OUTER, bool B_OUTER>
    __device__ static void run(chain &c, const shared &s, int buffer, const tile_operand &,
                               const tile_operand &, int64_t, int64_t)
    {
        int lane = (int)threadIdx.x % 32, low = lane % 8, mid = lane / 8 % 2 * 8,
            high = lane / 16 * 8;
        int row0 = (int)threadIdx.x / 128 * WARP_ROWS;
        int col0 = (int)threadIdx.x / 32 % 4 * WARP_COLS;

#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            uint32_t left[DOWN][4], right[ACROSS][2];
#pragma unroll
            for (int i = 0; i < DOWN; i++)
                // rows 0-7, 8-15 of k 0-7, then of k 8-15
                invar_load_matrices<A_OUTER>(
                    left[i],
                    s.a[buffer] + (A_OUTER ? offset<true>(row0 + 16 * i + mid, k + low + high)
                                           : offset<false>(row0 + 16 * i + low + mid, k + high)));
#pragma unroll
            for (int j = 0; j < ACROSS; j += 2) {
                // k 0-7, 8-15 of columns 0-7, then of columns 8-15; a single half is read twice
                int second = ACROSS > 1 ? high : 0;
                uint32_t both[4];
                invar_load_matrices<B_OUTER>(
                    both,
                    s.b[buffer] + (B_OUTER ? offset<true>(col0 + 8 * j + second, k + low + mid)
                                           : offset<false>(col0 + 8 * j + low + second, k + mid)));
#pragma unroll
                for (int n = 0; n < 2 && j + n < ACROSS; n++) {
                    right[j + n][0] = both[2 * n];
                    right[j + n][1] = both[2 * n + 1];
                }
            }
#pragma unroll
            for (int i = 0; i < DOWN; i++)
#pragma unroll
                for (int j = 0; j < ACROSS; j++)
                    invar_product_warp(*(float(*)[4])(c.acc + 4 * (i * ACROSS + j)), left[i],
                                       right[j]);
        }
    }

    template <typename F> __device__ static void each(F f)
    {
        int lane = (int)threadIdx.x % 32;
        int row0 = (int)threadIdx.x / 128 * WARP_ROWS + lane / 4;
        int col0 = (int)threadIdx.x / 32 % 4 * WARP_COLS + lane % 4 * 2;

#pragma unroll
        for (int i = 0; i < COUNT; i++)
            f(i, row0 + i / 4 / ACROSS * 16 + i % 4 / 2 * 8, col0 + i / 4 % ACROSS * 8 + i % 2);
    }
};

/* ---- wgmma of e4m3 --------------------------------------------------------------------------- */

/*
 * Dot-step by wgmma of e4m3. Shared memory is [row][k] of 128 bytes, swizzled; an operand with k
 * outermost is transposed when it is stored there. Each warpgroup has all 64 rows and 32 of the
 * columns.
 */
struct e4m3_step {
    static constexpr int ROWS = 64, COLS = 64, DEPTH = INVAR_FP8_BLOCK, BUFFERS = 2;
    static constexpr int GROUP_COLS = COLS / 2, COUNT = GROUP_COLS / 2;
    static constexpr bool ASYNC = true;

    struct alignas(1024) shared {
        uint8_t a[BUFFERS][ROWS * DEPTH];
        uint8_t b[BUFFERS][COLS * DEPTH];
    };
    struct chain {
        float acc[COUNT];
    };

    template <int ROWS_, bool OUTER> __device__ static int2 place(int i)
    {
        return OUTER ? make_int2(i / DEPTH * UNIT, i % DEPTH)
                     : make_int2(i / (DEPTH / UNIT), i % (DEPTH / UNIT) * UNIT);
    }

    __device__ static int offset(int r, int k)
    {
        return r * DEPTH + ((k / 16) ^ (r % 8)) * 16 + k % 16;
    }

    template <int ROWS_, bool OUTER, invar_dtype TYPE>
    __device__ static void stash(uint8_t *to, int2 at, const unit<TYPE> &u)
    {
        if constexpr (OUTER) {
#pragma unroll
            for (int i = 0; i < UNIT; i++)
                to[offset(at.x + i, at.y)] = (uint8_t)(u.word[i / 4] >> i % 4 * 8);
        } else {
            *(uint2 *)(to + offset(at.x, at.y)) = make_uint2(u.word[0], u.word[1]);
        }
    }

    template <bool A_OUTER, bool B_OUTER>
    __device__ static void run(chain &c, const shared &s, int buffer, const tile_operand &a,
                               const tile_operand &b, int64_t k, int64_t)
    {
        int group = (int)threadIdx.x / 128, row0 = (int)threadIdx.x % 128 / 32 * 16;
        const uint8_t *left = s.a[buffer], *right = s.b[buffer] + group * GROUP_COLS * DEPTH;
        float partial[COUNT], scale = scale_of_tile<B_OUTER>(b, k);
        float scales[2];

#pragma unroll
        for (int i = 0; i < 2; i++)
            scales[i] = scale_of_row(a, row0 + (int)threadIdx.x % 32 / 4 + 8 * i, k) * scale;
        invar_product_hold(partial);
        invar_product_fence();
#pragma unroll
        for (int step = 0; step < DEPTH; step += 32)
            invar_product_e4m3<GROUP_COLS>(
                partial, invar_matrix(left + step, 0, 1024, INVAR_SWIZZLE_128),
                invar_matrix(right + step, 0, 1024, INVAR_SWIZZLE_128), step > 0);
        invar_product_commit();
        invar_product_wait<0>();
        invar_product_hold(partial);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            c.acc[i] = invar_fmaf(partial[i], scales[i % 4 / 2], c.acc[i]);
    }

    template <typename F> __device__ static void each(F f)
    {
        int lane = (int)threadIdx.x % 32;
        int row0 = (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
        int col0 = (int)threadIdx.x / 128 * GROUP_COLS + lane % 4 * 2;

#pragma unroll
        for (int i = 0; i < COUNT; i++)
            f(i, row0 + i % 4 / 2 * 8, col0 + i / 4 * 8 + i % 2);
    }
};

/* ---- chains ---------------------------------------------------------------------------------- */

/* Share of a thread in the units of one operand. */
template <typename STEP, invar_dtype TYPE, int ROWS, bool OUTER> struct share {
    static constexpr int COUNT = ROWS * STEP::DEPTH / UNIT / THREADS;

    unit<TYPE> units[COUNT];

    __device__ static __forceinline__ int2 place(int i)
    {
        return STEP::template place<ROWS, OUTER>((int)threadIdx.x + i * THREADS);
    }

    template <bool QUICK>
    __device__ __forceinline__ void load_by(const tile_operand &s, int64_t k, int64_t k_end)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int2 at = place(i);
            load_unit_at<TYPE, OUTER, QUICK>(units[i], s, at.x, k + at.y, k_end);
        }
    }

    __device__ __forceinline__ void load(const tile_operand &s, int64_t k, int64_t k_end)
    {
        if (quick_at<TYPE, OUTER, ROWS, STEP::DEPTH>(s, k, k_end))
            load_by<true>(s, k, k_end);
        else
            load_by<false>(s, k, k_end);
    }

    template <typename T> __device__ __forceinline__ void stash(T *to) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            STEP::template stash<ROWS, OUTER, TYPE>(to, place(i), units[i]);
    }
};

/* Types of a pair of operands. */
template <invar_dtype A_TYPE, invar_dtype B_TYPE> struct types {
    static constexpr invar_dtype A = A_TYPE, B = B_TYPE;
};

/*
 * Continues the chains of a tile over [k, k_end). Called by the complete block; shared memory is
 * free afterwards.
 */
template <typename STEP, typename TYPES, bool A_OUTER, bool B_OUTER>
__device__ __forceinline__ void run_chain(typename STEP::chain &c, typename STEP::shared &s,
                                          const tile_operand &a, const tile_operand &b, int64_t k,
                                          int64_t k_end)
{
    share<STEP, TYPES::A, STEP::ROWS, A_OUTER> of_a;
    share<STEP, TYPES::B, STEP::COLS, B_OUTER> of_b;
    auto load = [&](int64_t at) {
        of_a.load(a, at, k_end);
        of_b.load(b, at, k_end);
    };
    auto stash = [&](int to) {
        of_a.stash(s.a[to]);
        of_b.stash(s.b[to]);
        if constexpr (STEP::ASYNC)
            invar_fence_async();
    };

    if (k >= k_end)
        return;
    load(k);
    stash(0);
    __syncthreads();
    for (int buffer = 0; k < k_end; k += STEP::DEPTH) {
        bool more = k + STEP::DEPTH < k_end;
        if (more)
            load(k + STEP::DEPTH);
        STEP::template run<A_OUTER, B_OUTER>(c, s, buffer, a, b, k, k_end);
        if constexpr (STEP::BUFFERS == 1)
            __syncthreads();
        else
            buffer ^= 1;
        if (more)
            stash(buffer);
        __syncthreads();
    }
}

template <int COUNT> __device__ __forceinline__ void set_zero(float (&acc)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        acc[i] = 0.0f;
}

#endif
