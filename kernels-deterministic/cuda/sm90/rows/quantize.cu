/*
 * quantize.cu - quantize and dequantize: fp8, mxfp8, int4.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 7; amax = the largest magnitude of a scale
 * block, the last of which in a row or a column may be short:
 *   fp8    blocks 1x128 or 128x128: s = max(amax, 2^-96) / 448, q = e4m3(x / s); back: q * s
 *   mxfp8  blocks 1x32: s = the smallest power of two with 448 s >= amax; q = e4m3(x / s), rounded
 *          once; back: q * s, exact in bf16
 *   int4   blocks 1x32: s = bf16(max(amax / 7, 2^-24)), q = clamp(rne(x / s), -7, 7); back:
 *          bf16(q * s)
 * A block depends on its own values alone. Memory is read and written once: the values of a block
 * stay in registers between its amax and its codes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/hopper.cuh"
#include "kernels-deterministic/cuda/sm90/rows/quantize.cuh"

#define THREADS 256

/* ---- memory ---------------------------------------------------------------------------------- */

/* Values of an access of 16 bytes. */
template <typename T> static constexpr int vector_of = 16 / (int)sizeof(T);

static __device__ __forceinline__ void unpack_values(float (&x)[4], const uint4 &raw, const float *)
{
    x[0] = __uint_as_float(raw.x), x[1] = __uint_as_float(raw.y);
    x[2] = __uint_as_float(raw.z), x[3] = __uint_as_float(raw.w);
}

static __device__ __forceinline__ void unpack_values(float (&x)[8], const uint4 &raw,
                                                     const __nv_bfloat16 *)
{
    uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(word[i] << 16);
        x[2 * i + 1] = __uint_as_float(word[i] & 0xFFFF0000u);
    }
}

static __device__ __forceinline__ uint4 pack_values(const float (&x)[4], const float *)
{
    return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                      __float_as_uint(x[3]));
}

static __device__ __forceinline__ uint4 pack_values(const float (&x)[8], const __nv_bfloat16 *)
{
    return make_uint4(invar_bf16x2_bits(x[0], x[1]), invar_bf16x2_bits(x[2], x[3]),
                      invar_bf16x2_bits(x[4], x[5]), invar_bf16x2_bits(x[6], x[7]));
}

/* Loads the first `there` values of an access. put_vector stores them. */
template <bool ALIGNED, typename T>
static __device__ __forceinline__ uint4 get_vector(const T *from, int there)
{
    uint32_t word[4];

    get_bytes<16, ALIGNED>(word, (const uint8_t *)from, there * (int)sizeof(T));
    return make_uint4(word[0], word[1], word[2], word[3]);
}

template <bool ALIGNED, typename T>
static __device__ __forceinline__ void put_vector(T *to, const uint4 &raw, int there)
{
    uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};

    put_bytes<16, ALIGNED>((uint8_t *)to, word, there * (int)sizeof(T));
}

/* Returns how many of the VECTOR values from `first` on lie before `end`. */
template <int VECTOR>
static __device__ __forceinline__ int values_before(int64_t end, int64_t first)
{
    return end - first < VECTOR ? (end > first ? (int)(end - first) : 0) : VECTOR;
}

/* Returns the largest of `amax` and the magnitudes of x; NaN if one is NaN. */
template <int COUNT>
static __device__ __forceinline__ float max_magnitude(float amax, const float (&x)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        amax = invar_max_nan(amax, fabsf(x[i]));
    return amax;
}

/* ---- blocks of one row ----------------------------------------------------------------------- */

/*
 * Position of a thread: `values` values of a scale block, in accesses of 16 bytes that lie side by
 * side in the threads of the block. Threads after the last block repeat it and store nothing.
 */
template <typename F, typename T> struct thread_place {
    // more values share the work on a scale; with fewer, accesses lie closer together
    static constexpr int values = F::block > 32 ? 32 : 2 * vector_of<T>;
    static constexpr int lanes = F::block / values, accesses = values / vector_of<T>;

    int64_t row, block;
    int64_t col, end;
    int lane;
    bool inside;

    __device__ __forceinline__ thread_place(int64_t rows, int64_t cols)
    {
        int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
        int64_t across = invar_ceil_div(cols, F::block), blocks = rows * across;

        lane = (int)(threadIdx.x % lanes);
        block = thread / lanes;
        inside = block < blocks;
        block = inside ? block : blocks - 1;
        row = block < across ? 0 : block / across;
        col = (block - row * across) * F::block + lane * vector_of<T>;
        end = cols;
    }
    __device__ __forceinline__ int64_t access(int i) const
    {
        return col + i * lanes * vector_of<T>;
    }
    __device__ __forceinline__ int there(int i) const
    {
        return values_before<vector_of<T>>(end, access(i));
    }
};

/* Rows that share scales: invar_tensor_band_index and invar_tensor_band, for the device. */
struct row_bands {
    int64_t rows; /* rows of the tensor */
    int64_t height, period, each /* bands of a period */;

    __device__ __forceinline__ int64_t of(int64_t row) const
    {
        return height == 1 ? row : row / period * each + row % period / height;
    }
    __device__ __forceinline__ int64_t first(int64_t band) const
    {
        return band / each * period + band % each * height;
    }
    __device__ __forceinline__ int64_t end(int64_t band) const
    {
        int64_t all = min(rows, (band / each + 1) * period);

        return min(all, first(band) + height);
    }
};

static row_bands bands_of(const invar_tensor *q)
{
    int64_t rows = q->shape[0], period = q->scale_period ? q->scale_period : rows;

    return {rows, q->scale_rows, period, invar_ceil_div(period, q->scale_rows)};
}

template <typename F, typename T, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS)
    quantize_rows(invar_view<const T> from, codes_view<F> to)
{
    thread_place<F, T> place(from.rows, from.cols);
    constexpr int vector = vector_of<T>, accesses = place.accesses;
    uint4 raw[accesses];
    float x[accesses][vector], amax = 0.0f;

    invar_grid_begin();
#pragma unroll
    for (int i = 0; i < accesses; i++)
        raw[i] = get_vector<ALIGNED>(from.row(place.row) + place.access(i), place.there(i));
#pragma unroll
    for (int i = 0; i < accesses; i++) {
        unpack_values(x[i], raw[i], (const T *)nullptr);
        amax = max_magnitude(amax, x[i]);
    }
#pragma unroll
    for (int half = place.lanes / 2; half > 0; half /= 2)
        amax = invar_max_nan(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, half));
    if (!place.inside)
        return;

    auto scale = F::scale(amax);
    if (place.lane == 0)
        to.scale[place.block] = scale;
    F::encode(scale, [&](auto four) {
#pragma unroll
        for (int i = 0; i < accesses; i++)
            put_codes<F, ALIGNED>(to.at(place.row, place.access(i)), x[i], four, place.there(i));
    });
}

template <typename F, typename T, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS)
    dequantize_rows(invar_view<T> to, codes_view<F> from, row_bands bands)
{
    thread_place<F, T> place(to.rows, to.cols);
    constexpr int vector = vector_of<T>, accesses = place.accesses;
    constexpr int bytes = vector * F::bits / 8;
    int64_t across = invar_ceil_div(to.cols, F::block), block = place.block;
    uint32_t word[accesses][2];

    invar_grid_begin();
    if (!place.inside)
        return;
    block += (bands.of(place.row) - place.row) * across;
    auto scale = from.scale[block];
#pragma unroll
    for (int i = 0; i < accesses; i++)
        get_bytes<bytes, ALIGNED>(word[i], from.at(place.row, place.access(i)),
                                  place.there(i) * F::bits / 8);
#pragma unroll
    for (int i = 0; i < accesses; i++) {
        float x[vector];
#pragma unroll
        for (int j = 0; j < vector; j += 4)
            F::values(*(float(*)[4])(x + j), word[i][j * F::bits / 32] >> (j * F::bits % 32),
                      scale);
        put_vector<ALIGNED>(to.row(place.row) + place.access(i), pack_values(x, (const T *)nullptr),
                            place.there(i));
    }
}

/* ---- blocks of 128 rows ---------------------------------------------------------------------- */

/*
 * Quantizes blocks of 128 x 128, a block of threads for each: each thread has the same columns of
 * several rows.
 */
template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS)
    quantize_squares(invar_view<const T> from, codes_view<fp8_format> to, row_bands bands)
{
    constexpr int side = INVAR_FP8_BLOCK, vector = vector_of<T>, across = side / vector;
    constexpr int step = THREADS / across, accesses = side / step;
    __shared__ float warp_amax[THREADS / 32];
    int64_t squares = invar_ceil_div(from.cols, side), square = blockIdx.x, band = square / squares;
    int64_t row = bands.first(band) + threadIdx.x / across, end = bands.end(band);
    int64_t col = square % squares * side + threadIdx.x % across * vector;
    int columns = values_before<vector>(from.cols, col);
    uint4 raw[accesses];
    float amax = 0.0f;

    invar_grid_begin();
#pragma unroll
    for (int i = 0; i < accesses; i++)
        raw[i] =
            get_vector<ALIGNED>(from.row(row + i * step) + col, row + i * step < end ? columns : 0);
#pragma unroll
    for (int i = 0; i < accesses; i++) {
        float x[vector];
        unpack_values(x, raw[i], (const T *)nullptr);
        amax = max_magnitude(amax, x);
    }
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        amax = invar_max_nan(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, half));
    if (threadIdx.x % 32 == 0)
        warp_amax[threadIdx.x / 32] = amax;
    __syncthreads();
    amax = max_magnitude(amax, warp_amax);

    float scale = fp8_format::scale(amax);
    if (threadIdx.x == 0)
        to.scale[square] = scale;
    fp8_format::encode(scale, [&](auto four) {
#pragma unroll
        for (int i = 0; i < accesses; i++) {
            float x[vector];
            unpack_values(x, raw[i], (const T *)nullptr);
            put_codes<fp8_format, ALIGNED>(to.at(row + i * step, col), x, four,
                                           row + i * step < end ? columns : 0);
        }
    });
}

/* ---- bf16 ------------------------------------------------------------------------------------ */

#define ROUNDED 8 // values of a thread

/* Rounds rows to bf16: runs of a row, one row after the other. */
static __global__ void __launch_bounds__(THREADS)
    round_rows(invar_view<__nv_bfloat16> to, invar_view<const float> from, bool aligned)
{
    int64_t runs = invar_ceil_div(to.cols, ROUNDED);
    int64_t run = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = run / runs;
    int64_t first = run % runs * ROUNDED, count = to.cols - first;
    invar_run<float, ROUNDED / 2> wide[2];
    invar_run<__nv_bfloat16, ROUNDED> narrow;
    float x[ROUNDED];

    invar_grid_begin();
    if (row >= to.rows)
        return;
#pragma unroll
    for (int i = 0; i < 2; i++)
        wide[i].load(from.row(row) + first + i * ROUNDED / 2, count - i * ROUNDED / 2, aligned);
#pragma unroll
    for (int i = 0; i < ROUNDED; i++)
        x[i] = wide[i / (ROUNDED / 2)].get(i % (ROUNDED / 2));
    narrow.set(x);
    narrow.store(to.row(row) + first, count, aligned);
}

/* ---- ops ------------------------------------------------------------------------------------- */

/*
 * Returns whether every access of a thread is at a multiple of its size, and is complete or
 * missing.
 */
static bool aligned(const invar_tensor *x, const invar_tensor *q)
{
    uintptr_t x_stride = (uintptr_t)(x->row_stride * (invar_dtype_bits(x->dtype) / 8));
    uintptr_t q_stride = (uintptr_t)(q->row_stride * invar_dtype_bits(q->dtype) / 8);

    return (((uintptr_t)x->data | x_stride) & 15) == 0 &&
           (((uintptr_t)q->data | q_stride) & 7) == 0 &&
           x->shape[1] * invar_dtype_bits(x->dtype) % 128 == 0;
}

/* Calls f(format, storage, aligned) with null pointers of the types and a constant. */
template <typename F>
static invar_status by_types(const invar_tensor *x, const invar_tensor *q, F f)
{
    return invar_by_storage(x->dtype, [&](auto *storage) {
        auto by_format = [&](auto *format) {
            return aligned(x, q) ? f(format, storage, std::true_type())
                                 : f(format, storage, std::false_type());
        };
        switch (q->dtype) {
        case INVAR_DTYPE_FP8: return by_format((fp8_format *)nullptr);
        case INVAR_DTYPE_MXFP8: return by_format((mxfp8_format *)nullptr);
        default:
            INVAR_CHECK(q->dtype == INVAR_DTYPE_INT4);
            return by_format((int4_format *)nullptr);
        }
    });
}

template <typename F, typename T> static unsigned row_grid(const invar_tensor *x)
{
    return (unsigned)invar_ceil_div(
        x->shape[0] * invar_ceil_div(x->shape[1], F::block) * thread_place<F, T>::lanes, THREADS);
}

INVAR_NO_WORKSPACE(cuda, quantize)

invar_status invar_cuda_quantize(const invar_device *dev, const invar_quantize_args *a,
                                 void *workspace)
{
    (void)workspace;
    if (a->q.dtype == INVAR_DTYPE_BF16)
        return invar_launch_early(
            dev, INVAR_OP_QUANTIZE, round_rows,
            (unsigned)invar_ceil_div(a->q.shape[0] * invar_ceil_div(a->q.shape[1], ROUNDED),
                                     THREADS),
            THREADS, 0)(invar_view_of<__nv_bfloat16>(&a->q), invar_view_of<const float>(&a->x),
                        invar_aligned({&a->q, &a->x}));
    return by_types(&a->x, &a->q, [&](auto *format, auto *storage, auto aligned) {
        using F = std::remove_pointer_t<decltype(format)>;
        using T = std::remove_pointer_t<decltype(storage)>;
        auto x = invar_view_of<const T>(&a->x);
        if constexpr (std::is_same_v<F, fp8_format>)
            if (a->q.scale_rows == INVAR_FP8_BLOCK)
                return invar_launch_early(
                    dev, INVAR_OP_QUANTIZE, quantize_squares<T, decltype(aligned)::value>,
                    (unsigned)(invar_tensor_bands(&a->q) * invar_tensor_scale_blocks(&a->q)),
                    THREADS, 0)(x, codes_of<F>(&a->q), bands_of(&a->q));
        return invar_launch_early(dev, INVAR_OP_QUANTIZE,
                                  quantize_rows<F, T, decltype(aligned)::value>,
                                  row_grid<F, T>(&a->x), THREADS, 0)(x, codes_of<F>(&a->q));
    });
}

INVAR_NO_WORKSPACE(cuda, dequantize)

invar_status invar_cuda_dequantize(const invar_device *dev, const invar_dequantize_args *a,
                                   void *workspace)
{
    (void)workspace;
    return by_types(&a->x, &a->q, [&](auto *format, auto *storage, auto aligned) {
        using F = std::remove_pointer_t<decltype(format)>;
        using T = std::remove_pointer_t<decltype(storage)>;
        return invar_launch_early(dev, INVAR_OP_DEQUANTIZE,
                                  dequantize_rows<F, T, decltype(aligned)::value>,
                                  row_grid<F, T>(&a->x), THREADS,
                                  0)(invar_view_of<T>(&a->x), codes_of<F>(&a->q), bands_of(&a->q));
    });
}
