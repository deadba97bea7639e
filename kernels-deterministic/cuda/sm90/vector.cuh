/*
 * vector.cuh - runs of elements, the unit that a thread moves at once, and REDUCE over them.
 *
 * A run is moved 16 bytes at a time if every run of its tensor is aligned, which the host knows,
 * and element by element otherwise or if a row ends inside it. Both give the same values. Sums keep
 * the order of REDUCE (docs/arithmetic.md, section 4), in which thread t of a warp holds lanes 8t
 * .. 8t+7.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_VECTOR_CUH
#define INVAR_KERNELS_CUDA_SM90_VECTOR_CUH

#include <initializer_list>
#include <type_traits>

#include "kernels-deterministic/cuda/common/kernel.cuh"
#include "kernels-deterministic/cuda/sm90/hopper.cuh"

/* ---- runs ------------------------------------------------------------------------------------ */

/* Elements of a run: 16 bytes of bf16 or 32 bytes of f32, and 1/32 of REDUCE's lanes. */
#define INVAR_RUN 8

/* Loads and stores in one access each, which the compiler may split if they are written in C++. */
__device__ __forceinline__ void invar_load_16(uint32_t word[4], const uint32_t *p)
{
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "l"(p));
}

__device__ __forceinline__ void invar_load_8(uint32_t word[2], const uint32_t *p)
{
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(p));
}

__device__ __forceinline__ void invar_store_16(uint32_t *p, const uint32_t word[4])
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(word[0]), "r"(word[1]),
                 "r"(word[2]), "r"(word[3])
                 : "memory");
}

__device__ __forceinline__ void invar_store_8(uint32_t *p, const uint32_t word[2])
{
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(word[0]), "r"(word[1])
                 : "memory");
}

/*
 * N elements as stored. Indices must be constants of unrolled loops, so that all stays in
 * registers.
 */
template <typename T, int N = INVAR_RUN> struct invar_run {
    static constexpr int words = N * (int)sizeof(T) / 4;
    uint32_t word[words];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < words; i++)
            word[i] = 0;
    }

    __device__ __forceinline__ float get(int i) const
    {
        if constexpr (sizeof(T) == 4)
            return __uint_as_float(word[i]);
        else
            return __uint_as_float(i & 1 ? word[i / 2] & 0xFFFF0000u : word[i / 2] << 16);
    }

    /* Sets the elements to `x`, rounded to storage. */
    __device__ __forceinline__ void set(const float x[N])
    {
#pragma unroll
        for (int i = 0; i < words; i++) {
            if constexpr (sizeof(T) == 4)
                word[i] = __float_as_uint(x[i]);
            else
                word[i] = invar_bf16x2_bits(x[2 * i], x[2 * i + 1]);
        }
    }

    /* Loads the first `count` elements at p, at most N; the others become zero. */
    __device__ __forceinline__ void load(const T *p, int64_t count, bool aligned)
    {
        if (aligned && count >= N)
            load_whole(p);
        else
            load_some(p, count);
    }

    __device__ __forceinline__ void store(T *p, int64_t count, bool aligned) const
    {
        if (aligned && count >= N)
            store_whole(p);
        else
            store_some(p, count);
    }

    /*
     * Loads the run from column `first` of a row of `cols` columns, with zeros after its end.
     * `Whole` means that runs are aligned and no row ends inside one.
     */
    template <bool Whole>
    __device__ __forceinline__ void load(const T *row, int64_t first, int64_t cols)
    {
        if (!Whole)
            load_some(row + first, cols - first);
        else if (first < cols)
            load_whole(row + first);
        else
            clear();
    }

    template <bool Whole>
    __device__ __forceinline__ void store(T *row, int64_t first, int64_t cols) const
    {
        if (!Whole)
            store_some(row + first, cols - first);
        else if (first < cols)
            store_whole(row + first);
    }

    __device__ __forceinline__ void load_some(const T *p, int64_t count)
    {
        clear();
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i >= count)
                continue;
            if constexpr (sizeof(T) == 4)
                word[i] = ((const uint32_t *)p)[i];
            else
                word[i / 2] |= (uint32_t)((const uint16_t *)p)[i] << 16 * (i & 1);
        }
    }

    __device__ __forceinline__ void store_some(T *p, int64_t count) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i >= count)
                continue;
            if constexpr (sizeof(T) == 4)
                ((uint32_t *)p)[i] = word[i];
            else
                ((uint16_t *)p)[i] = (uint16_t)(word[i / 2] >> 16 * (i & 1));
        }
    }

    __device__ __forceinline__ void load_whole(const T *p)
    {
        const uint32_t *from = (const uint32_t *)p;

        if constexpr (words % 4 == 0) {
#pragma unroll
            for (int i = 0; i < words; i += 4)
                invar_load_16(word + i, from + i);
        } else {
            static_assert(words == 2, "a run is 8 bytes or a multiple of 16");
            invar_load_8(word, from);
        }
    }

    __device__ __forceinline__ void store_whole(T *p) const
    {
        uint32_t *to = (uint32_t *)p;

        if constexpr (words % 4 == 0) {
#pragma unroll
            for (int i = 0; i < words; i += 4)
                invar_store_16(to + i, word + i);
        } else {
            invar_store_8(to, word);
        }
    }
};

/* Returns whether every row of every present tensor begins at a multiple of 16 bytes. */
static inline bool invar_aligned(std::initializer_list<const invar_tensor *> tensors)
{
    for (const invar_tensor *t : tensors) {
        int64_t element = invar_dtype_bits(t->dtype) / 8;
        if (!invar_tensor_present(t))
            continue;
        bool rows = t->rank > 1 && t->shape[0] > 1; // a vector is one row
        if ((uintptr_t)t->data % 16 != 0 || (rows && t->row_stride * element % 16 != 0))
            return false;
    }
    return true;
}

/*
 * Calls f with std::true_type or std::false_type, to choose a kernel by a flag: [&](auto flag) {
 * ... kernel<flag.value> ... }
 */
template <typename F> static invar_status invar_by_flag(bool flag, F f)
{
    return flag ? f(std::true_type{}) : f(std::false_type{});
}

/* ---- rows as f32 ----------------------------------------------------------------------------- */

/*
 * Loads and stores runs of rows of one storage type as f32; the parameters are those of invar_run.
 */
template <typename T> struct invar_typed {
    T *data;
    int64_t stride;

    template <int N, bool Whole>
    __device__ __forceinline__ void load(float x[N], int64_t row, int64_t first, int64_t cols) const
    {
        invar_run<T, N> run;
        run.template load<Whole>(data + row * stride, first, cols);
        unpack<N>(x, run);
    }

    template <int N>
    __device__ __forceinline__ void load(float x[N], int64_t row, int64_t first, int64_t count,
                                         bool aligned) const
    {
        invar_run<T, N> run;
        run.load(data + row * stride + first, count, aligned);
        unpack<N>(x, run);
    }

    template <int N, bool Whole>
    __device__ __forceinline__ void store(const float x[N], int64_t row, int64_t first,
                                          int64_t cols) const
    {
        invar_run<T, N> run;
        run.set(x);
        run.template store<Whole>(data + row * stride, first, cols);
    }

    template <int N>
    __device__ __forceinline__ void store(const float x[N], int64_t row, int64_t first,
                                          int64_t count, bool aligned) const
    {
        invar_run<T, N> run;
        run.set(x);
        run.store(data + row * stride + first, count, aligned);
    }

    __device__ __forceinline__ void put(float x, int64_t row, int64_t at) const
    {
        invar_store(data + row * stride + at, x);
    }

    template <int N>
    static __device__ __forceinline__ void unpack(float x[N], const invar_run<T, N> &run)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = run.get(i);
    }
};

/* Like invar_typed, for a storage type that is checked at run time: one branch for all threads. */
struct invar_any_float_rows {
    void *data; /* NULL if the tensor is absent */
    int64_t stride;
    bool bf16;

    template <typename F> __device__ __forceinline__ void with_type(F f) const
    {
        if (bf16)
            f(invar_typed<__nv_bfloat16>{(__nv_bfloat16 *)data, stride});
        else
            f(invar_typed<float>{(float *)data, stride});
    }

    template <int N, bool Whole>
    __device__ __forceinline__ void load(float x[N], int64_t row, int64_t first, int64_t cols) const
    {
        with_type([&](auto rows) { rows.template load<N, Whole>(x, row, first, cols); });
    }

    template <int N>
    __device__ __forceinline__ void load(float x[N], int64_t row, int64_t first, int64_t count,
                                         bool aligned) const
    {
        with_type([&](auto rows) { rows.template load<N>(x, row, first, count, aligned); });
    }

    template <int N, bool Whole>
    __device__ __forceinline__ void store(const float x[N], int64_t row, int64_t first,
                                          int64_t cols) const
    {
        with_type([&](auto rows) { rows.template store<N, Whole>(x, row, first, cols); });
    }

    template <int N>
    __device__ __forceinline__ void store(const float x[N], int64_t row, int64_t first,
                                          int64_t count, bool aligned) const
    {
        with_type([&](auto rows) { rows.template store<N>(x, row, first, count, aligned); });
    }

    __device__ __forceinline__ void put(float x, int64_t row, int64_t at) const
    {
        with_type([&](auto rows) { rows.put(x, row, at); });
    }
};

static inline invar_any_float_rows invar_any_float_rows_of(const invar_tensor *t)
{
    return {invar_tensor_present(t) ? t->data : nullptr, t->row_stride,
            t->dtype == INVAR_DTYPE_BF16};
}

/* ---- indices --------------------------------------------------------------------------------- */

/*
 * Rejects indices into a tensor without rows: none is in range, and a guard has no row 0 to use
 * instead.
 */
static inline invar_status invar_indexable(invar_op op, int64_t indices, int64_t bound)
{
    if (indices > 0 && bound == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: indices into a tensor without rows",
                          invar_op_name(op));
    return INVAR_OK;
}

/* Returns a / b, by a 32-bit division if both fit. */
__device__ __forceinline__ int64_t invar_divide(int64_t a, int64_t b)
{
    if (((a | b) >> 32) == 0)
        return (uint32_t)a / (uint32_t)b;
    return a / b;
}

/* ---- sums over threads ----------------------------------------------------------------------- */

/* Returns the sum over the lower threads of a block of `Threads`; *total_out = the sum over all. */
template <int Threads, typename Integer>
__device__ __forceinline__ Integer invar_sum_before(Integer value, Integer *total_out)
{
    __shared__ Integer warp_sum[Threads / 32];
    int thread = (int)threadIdx.x, warp = thread / 32;
    Integer up_to = value, before = 0, total = 0;

    for (int step = 1; step < 32; step *= 2) {
        Integer left = __shfl_up_sync(0xFFFFFFFFu, up_to, step);
        if (thread % 32 >= step)
            up_to += left;
    }
    if (thread % 32 == 31)
        warp_sum[warp] = up_to;
    __syncthreads();
    for (int w = 0; w < Threads / 32; w++) {
        before += w < warp ? warp_sum[w] : 0;
        total += warp_sum[w];
    }
    __syncthreads();
    *total_out = total;
    return before + up_to - value;
}

/* ---- maxima over threads --------------------------------------------------------------------- */

/*
 * Maps the bits of a float to an integer of the same order, the canonical NaN above all, and back.
 */
__device__ __forceinline__ int invar_in_order(int bits)
{
    return bits ^ (bits >> 31 & 0x7FFFFFFF);
}

/*
 * Returns the maximum over the warp, which is the same in every order. A NaN must be the canonical
 * one.
 */
__device__ __forceinline__ float invar_largest_of_warp(float x)
{
    int largest = __reduce_max_sync(0xFFFFFFFFu, invar_in_order(__float_as_int(x)));

    return __int_as_float(invar_in_order(largest));
}

/* Returns the maximum over a block of `Threads` threads; `shared` holds Threads / 32 floats. */
template <int Threads>
__device__ __forceinline__ float invar_largest_of_block(float x, float *shared)
{
    x = invar_largest_of_warp(x);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < Threads / 32; w++)
        x = invar_max_nan(x, shared[w]);
    __syncthreads();
    return x;
}

/* ---- element-wise work ----------------------------------------------------------------------- */

/*
 * Calls f(row, first, count) for the run from column `first`; `count` is the number of columns that
 * are left in the row.
 */
template <typename F>
static __global__ void __launch_bounds__(256) invar_map_kernel(F f, int64_t rows, int64_t cols)
{
    int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * F::width;

    invar_grid_begin();
    if (first >= cols)
        return;
    for (int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; row < rows;
         row += (int64_t)gridDim.y * blockDim.y)
        f(row, first, cols - first);
}

/*
 * Applies f to every run of F::width columns of every row. `joined` means that no tensor has gaps
 * between its rows (invar_joined); all rows are then treated as one.
 */
template <typename F>
static invar_status invar_map(const invar_device *dev, invar_op op, int64_t rows, int64_t cols,
                              bool joined, F f)
{
    const int64_t most = 256;

    if (joined) {
        cols *= rows;
        rows = rows > 0 ? 1 : 0;
    }
    int64_t runs = invar_ceil_div(cols, F::width), across = 1;
    while (across < most && across < runs)
        across *= 2;
    int64_t down = invar_ceil_div(rows, most / across);
    dim3 grid((unsigned)invar_ceil_div(runs, across), invar_grid_rows(down));
    dim3 threads((unsigned)across, (unsigned)(most / across));
    return invar_launch_early(dev, op, invar_map_kernel<F>, grid, threads, 0)(f, rows, cols);
}

/* Returns whether the rows of all present tensors follow each other without gaps. */
static inline bool invar_joined(std::initializer_list<const invar_tensor *> tensors)
{
    for (const invar_tensor *t : tensors)
        if (invar_tensor_present(t) && t->shape[0] > 1 &&
            t->row_stride != invar_tensor_row_elements(t))
            return false;
    return true;
}

/* ---- REDUCE over runs ------------------------------------------------------------------------ */

/*
 * Folds the lanes of REDUCE that a group of `Group` neighboring threads holds; thread t has the
 * lanes 8t .. 8t+7, and lanes from 8 * Group on are +0. All threads of the warp must call it, and
 * each gets its group's sum. a + b is b + a, so either partner of an exchange may keep either half
 * of the lanes.
 */
template <int Group> __device__ __forceinline__ float invar_fold_runs(float lane[INVAR_RUN])
{
    static_assert(Group >= 4, "more than two lanes of a run would stay in a thread");
    int thread = (int)(threadIdx.x & 31u);

#pragma unroll
    for (int half = Group / 2, kept = INVAR_RUN / 2; half > 0; half /= 2, kept /= 2) {
        bool upper = (thread & half) != 0;
        if (kept == 0)
            lane[0] = lane[0] + __shfl_xor_sync(0xFFFFFFFFu, lane[0], half);
#pragma unroll
        for (int i = 0; i < kept; i++) {
            float sent = upper ? lane[i] : lane[i + kept];
            float own = upper ? lane[i + kept] : lane[i];
            lane[i] = own + __shfl_xor_sync(0xFFFFFFFFu, sent, half);
        }
    }
    // the lanes of one run are now in threads that differ in the three highest bits; in a group of
    // four, each thread has two of them
    constexpr int left = Group < INVAR_RUN ? INVAR_RUN / Group : 1;
#pragma unroll
    for (int half = Group / 2; half > Group / 16; half /= 2)
#pragma unroll
        for (int i = 0; i < left; i++)
            lane[i] = lane[i] + __shfl_xor_sync(0xFFFFFFFFu, lane[i], half);
    return left == 2 ? lane[0] + lane[1] : lane[0];
}

/*
 * REDUCE of a row by one warp, 256 columns at a time: start(), then add() for each 256 columns in
 * ascending order, then sum(). Two levels suffice for rows of up to 2^24 columns.
 */
struct invar_warp_sum {
    float lane[INVAR_RUN];
    float upper[INVAR_RUN]; /* lanes of the upper level: the sum of chunk c goes to lane c mod
                               256 */
    int chunks, rows;       /* finished chunks; groups of 256 columns in the current chunk */

    __device__ __forceinline__ void start()
    {
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            lane[i] = upper[i] = 0.0f;
        chunks = rows = 0;
    }

    /* Adds the values of this thread's lanes 8t .. 8t+7, which are +0 after the end of the row. */
    __device__ __forceinline__ void add(const float x[INVAR_RUN])
    {
        if (rows == INVAR_REDUCE_CHUNK / INVAR_REDUCE_LANES)
            end_chunk();
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            lane[i] = lane[i] + x[i];
        rows++;
    }

    __device__ __forceinline__ void end_chunk()
    {
        float sum = invar_fold_runs<32>(lane);
        int at = chunks % INVAR_REDUCE_LANES - (int)(threadIdx.x & 31u) * INVAR_RUN;
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++) {
            if (at == i)
                upper[i] = upper[i] + sum;
            lane[i] = 0.0f;
        }
        chunks++;
        rows = 0;
    }

    __device__ __forceinline__ float sum()
    {
        if (chunks == 0)
            return invar_fold_runs<32>(lane);
        end_chunk();
        return invar_fold_runs<32>(upper);
    }
};

#define INVAR_WARP_SUM_MAX (INT64_C(1) << 24)

/* Like invar_reduce_warp, for up to 2^24 values. */
template <typename F> __device__ __forceinline__ float invar_reduce_warp_long(int64_t n, F value)
{
    float upper[8] = {};
    int thread = (int)(threadIdx.x & 31u);

    if (n <= INVAR_REDUCE_CHUNK)
        return invar_reduce_warp(n, value);
    for (int64_t first = 0; first < n; first += INVAR_REDUCE_CHUNK) {
        int64_t count = n - first < INVAR_REDUCE_CHUNK ? n - first : INVAR_REDUCE_CHUNK;
        int lane = (int)(first / INVAR_REDUCE_CHUNK % INVAR_REDUCE_LANES);
        float sum = invar_reduce_warp(count, [&](int64_t i) { return value(first + i); });
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (thread + 32 * k == lane)
                upper[k] = upper[k] + sum;
    }
    return invar_fold_warp(upper);
}

#endif
