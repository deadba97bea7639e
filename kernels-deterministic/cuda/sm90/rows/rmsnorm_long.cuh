/*
 * rmsnorm_long.cuh - rmsnorm of rows of more than 1024 values, which are held in shared memory.
 *
 * Rows come through shared memory by bulk copies, some rows ahead of the warp that takes them, so
 * memory is read once although a row is used two or three times. Backward, a block of threads has a
 * token block: some warps compute dx, row by row; others follow them and sum dweight, a thread its
 * columns, over ascending rows. A slot has the barriers `full`, `done` and `free`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ROWS_RMSNORM_LONG_CUH
#define INVAR_KERNELS_CUDA_SM90_ROWS_RMSNORM_LONG_CUH

#include "kernels-deterministic/cuda/sm90/hopper.cuh"
#include "kernels-deterministic/cuda/sm90/rows/rmsnorm.cuh"
#include "kernels-deterministic/cuda/sm90/rows/token_blocks.cuh"

#define SHARED_MOST (220 * 1024)  // largest shared memory of a block of threads
#define SHARED_SHARE (108 * 1024) // largest one with which two blocks fit on a multiprocessor

/* ---- rows in shared memory ------------------------------------------------------------------- */

__device__ __forceinline__ void load_shared(float x[INVAR_RUN], const __nv_bfloat16 *p)
{
    uint4 four = *(const uint4 *)p;
    const uint32_t word[4] = {four.x, four.y, four.z, four.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(word[i] << 16);
        x[2 * i + 1] = __uint_as_float(word[i] & 0xFFFF0000u);
    }
}

__device__ __forceinline__ void load_shared(float x[INVAR_RUN], const float *p)
{
    float4 low = ((const float4 *)p)[0], high = ((const float4 *)p)[1];

    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

/*
 * Returns the REDUCE over a row, computed by a warp: load(x, first) loads the values of the run
 * from column `first` on.
 */
template <typename F> __device__ __forceinline__ float reduce_runs(int n, F load)
{
    int own = (int)threadIdx.x % 32 * INVAR_RUN;
    auto chunk = [&](int begin, int end) {
        float lane[INVAR_RUN] = {}, x[INVAR_RUN];
#pragma unroll 4
        for (int first = begin + own; first < end; first += INVAR_REDUCE_LANES) {
            load(x, first);
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++)
                lane[i] = lane[i] + x[i];
        }
        return invar_fold_runs<32>(lane);
    };

    if (n <= INVAR_REDUCE_CHUNK)
        return chunk(0, n);
    // few chunks: the sum of chunk c is lane c of the upper level, which is in one thread only
    float lane[INVAR_RUN] = {};
    for (int c = 0; c * INVAR_REDUCE_CHUNK < n; c++) {
        int end = (c + 1) * INVAR_REDUCE_CHUNK;
        float sum = chunk(c * INVAR_REDUCE_CHUNK, end < n ? end : n);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            lane[i] = c == own + i ? 0.0f + sum : lane[i];
    }
    return invar_fold_runs<32>(lane);
}

/* Calls f(first) for each run of the thread in a row, Ahead at a time. */
template <int Ahead = 2, typename F> __device__ __forceinline__ void for_runs(int n, F f)
{
#pragma unroll Ahead
    for (int first = (int)threadIdx.x % 32 * INVAR_RUN; first < n; first += INVAR_REDUCE_LANES)
        f(first);
}

template <typename T> __device__ __forceinline__ float row_rstd(const T *x, const norm_shape &shape)
{
    return inverse_rms(reduce_runs((int)shape.n,
                                   [&](float value[INVAR_RUN], int first) {
                                       load_shared(value, x + first);
#pragma unroll
                                       for (int i = 0; i < INVAR_RUN; i++)
                                           value[i] = value[i] * value[i];
                                   }),
                       shape);
}

/*
 * Returns the number of floats that the weight has in shared memory. Of 32 runs the first halves
 * precede the second ones, so that 32 threads that load a half at once do not share a bank.
 */
static __host__ __device__ __forceinline__ int64_t weight_values(int64_t n)
{
    return invar_ceil_div(n, INVAR_REDUCE_LANES) * INVAR_REDUCE_LANES;
}

__device__ __forceinline__ int weight_place(int first)
{
    int run = first / INVAR_RUN;

    return run / 32 * INVAR_REDUCE_LANES + run % 32 * (INVAR_RUN / 2);
}

__device__ __forceinline__ void load_weight(float w[INVAR_RUN], const float *weight, int first)
{
    const float4 *at = (const float4 *)(weight + weight_place(first));
    float4 low = at[0], high = at[INVAR_REDUCE_LANES / 8];

    w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w;
    w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
}

/* Loads the weight. Called by all threads, which are synchronized afterwards. */
__device__ __forceinline__ void share_weight(float *to, const invar_any_float_rows &weight,
                                             int64_t n)
{
    for (int first = (int)threadIdx.x * INVAR_RUN; first < n;
         first += (int)blockDim.x * INVAR_RUN) {
        float w[INVAR_RUN];
        weight.load<INVAR_RUN, true>(w, 0, first, n);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            to[weight_place(first) + i % 4 + i / 4 * (INVAR_REDUCE_LANES / 2)] = w[i];
    }
    __syncthreads();
}

/* ---- forward --------------------------------------------------------------------------------- */

#define FORWARD_WARPS 8 // warps at most
#define FORWARD_SLOTS 3

template <typename T> struct forward_rows {
    invar_view<T> y, x;
    invar_any_float_rows weight;
    norm_shape shape;
    int slots; /* rows of a warp that are in flight */
};

/*
 * Returns the bytes of barriers and weight in the memory of a block; the slots of all warps follow.
 */
static __host__ __device__ __forceinline__ int64_t forward_head_bytes(int64_t n)
{
    return FORWARD_WARPS * FORWARD_SLOTS * (int64_t)sizeof(uint64_t) +
           weight_values(n) * (int64_t)sizeof(float);
}

template <typename T>
__device__ __forceinline__ void normalize_row(T *y, const T *x, const float *weight,
                                              const norm_shape &shape)
{
    float rstd = row_rstd(x, shape);

    for_runs((int)shape.n, [&](int first) {
        float value[INVAR_RUN], w[INVAR_RUN];
        invar_run<T> out;
        load_shared(value, x + first);
        load_weight(w, weight, first);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            value[i] = value[i] * rstd * w[i];
        out.set(value);
        out.store_whole(y + first);
    });
}

template <typename T>
static __global__ void __launch_bounds__(32 * FORWARD_WARPS, 2) stream_forward(forward_rows<T> f)
{
    extern __shared__ __align__(128) char memory[];
    int warp = (int)threadIdx.x / 32, thread = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    uint64_t *full = (uint64_t *)memory + warp * FORWARD_SLOTS;
    float *weight = (float *)((uint64_t *)memory + FORWARD_WARPS * FORWARD_SLOTS);
    T *slots = (T *)(memory + forward_head_bytes(f.shape.n)) + warp * f.slots * f.shape.n;
    int64_t row = (int64_t)blockIdx.x * warps + warp, stride = (int64_t)gridDim.x * warps;
    auto fetch = [&](int slot, int64_t number) {
        uint32_t bytes = (uint32_t)(f.shape.n * sizeof(T));
        invar_barrier_expect(&full[slot], bytes);
        invar_copy_in_flat(slots + slot * f.shape.n, row_of(f.x, f.shape, number), bytes,
                           &full[slot]);
    };

    for (int s = 0; thread == 0 && s < f.slots; s++)
        invar_barrier_init(&full[s], 1);
    invar_barrier_init_done();
    __syncwarp();
    invar_grid_begin();
    for (int s = 0; thread == 0 && s < f.slots; s++)
        if (row + s * stride < f.shape.rows)
            fetch(s, row + s * stride);
    share_weight(weight, f.weight, f.shape.n);
    for (int slot = 0, parity = 0; row < f.shape.rows; row += stride) {
        invar_barrier_wait(&full[slot], (uint32_t)parity);
        normalize_row(row_of(f.y, f.shape, row), slots + slot * f.shape.n, weight, f.shape);
        __syncwarp();
        if (thread == 0 && row + f.slots * stride < f.shape.rows)
            fetch(slot, row + f.slots * stride);
        slot = slot + 1 == f.slots ? 0 : slot + 1;
        parity ^= slot == 0;
    }
}

/* ---- backward, with the weight's gradient ---------------------------------------------------- */

#define ROW_WARPS 8 // row warps at most
#define COLUMN_WARPS 4
#define BACKWARD_WARPS (ROW_WARPS + COLUMN_WARPS + 1) // the last one fetches
#define COLUMN_THREADS (32 * COLUMN_WARPS)
#define MOST_SLOTS (2 * ROW_WARPS)

template <typename T> struct backward_rows {
    invar_view<T> dx, dy, x;
    invar_view<T> residual; /* data is NULL if there is none */
    invar_any_float_rows weight;
    norm_shape shape;
    invar_token_blocks blocks;
    invar_view<float> sums; /* (token blocks, n) */
    int slots;              /* a multiple of row_warps */
    int row_warps;
};

/*
 * Barriers of a slot, whose row is loaded by one thread, read by a row warp, then by the column
 * warps.
 */
struct slot_barriers {
    uint64_t full, done, free;
};

/* Returns the bytes of a slot: x and dy of a row, then its rstd. */
template <typename T> static __host__ __device__ int64_t slot_bytes(int64_t n)
{
    return 2 * n * (int64_t)sizeof(T) + 16;
}

template <typename T> struct backward_memory {
    slot_barriers *barriers;
    float *weight;
    char *slots;
    int64_t n;

    __device__ __forceinline__ T *x(int number) const
    {
        return (T *)(slots + number * slot_bytes<T>(n));
    }
    __device__ __forceinline__ T *dy(int number) const
    {
        return x(number) + n;
    }
    __device__ __forceinline__ float *rstd(int number) const
    {
        return (float *)(dy(number) + n);
    }
};

static __host__ __device__ __forceinline__ int64_t backward_head_bytes(int64_t n)
{
    return MOST_SLOTS * (int64_t)sizeof(slot_barriers) + weight_values(n) * (int64_t)sizeof(float);
}

/* Computes dx of one row by a warp, and adds a residual unless it is NULL. Returns rstd. */
template <typename T>
__device__ __forceinline__ float row_gradient(T *dx, const T *dy, const T *x, const T *residual,
                                              const float *weight, const norm_shape &shape)
{
    float rstd = row_rstd(x, shape);
    auto load = [&](float xhat[INVAR_RUN], float g[INVAR_RUN], int first) {
        float w[INVAR_RUN];
        load_shared(xhat, x + first);
        load_shared(g, dy + first);
        load_weight(w, weight, first);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++) {
            xhat[i] = xhat[i] * rstd;
            g[i] = g[i] * w[i];
        }
    };
    float sum = reduce_runs((int)shape.n, [&](float product[INVAR_RUN], int first) {
        float g[INVAR_RUN];
        load(product, g, first);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            product[i] = g[i] * product[i];
    });
    float mean = mean_of(sum, shape);
    auto gradient = [&](invar_run<T> &out, int first) {
        float xhat[INVAR_RUN], g[INVAR_RUN];
        load(xhat, g, first);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            g[i] = rstd * invar_fmaf(-xhat[i], mean, g[i]);
        out.set(g);
    };
    if (residual)
        for_runs<4>((int)shape.n, [&](int first) {
            invar_run<T> out, other;
            float sum[INVAR_RUN];
            other.load_whole(residual + first);
            gradient(out, first);
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++)
                sum[i] = other.get(i) + out.get(i);
            out.set(sum);
            out.store_whole(dx + first);
        });
    else
        for_runs((int)shape.n, [&](int first) {
            invar_run<T> out;
            gradient(out, first);
            out.store_whole(dx + first);
        });
    return rstd;
}

#define WIDTH 4 // neighboring columns of a thread

/* Runs a column thread: sums its columns over the rows of the token block, row by row. */
template <typename T, int Pieces>
__device__ __forceinline__ void sum_columns(const backward_rows<T> &b,
                                            const backward_memory<T> &memory, int64_t block,
                                            int64_t rows)
{
    float sum[Pieces][WIDTH] = {};
    int column = (int)threadIdx.x % COLUMN_THREADS * WIDTH, slot = 0;
    uint32_t parity = 0;

    for (int64_t row = 0; row < rows; row++) {
        invar_barrier_wait(&memory.barriers[slot].full, parity);
        invar_barrier_wait(&memory.barriers[slot].done, parity);
        float rstd = *memory.rstd(slot);
#pragma unroll
        for (int p = 0; p < Pieces; p++) {
            int at = p * COLUMN_THREADS * WIDTH + column;
            float x[WIDTH], dy[WIDTH];
            if (at >= b.shape.n)
                continue;
            load_columns<WIDTH>(x, memory.x(slot) + at);
            load_columns<WIDTH>(dy, memory.dy(slot) + at);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                sum[p][i] = invar_fmaf(dy[i], x[i] * rstd, sum[p][i]);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            invar_barrier_arrive(&memory.barriers[slot].free);
        slot = slot + 1 == b.slots ? 0 : slot + 1;
        parity ^= slot == 0;
    }
#pragma unroll
    for (int p = 0; p < Pieces; p++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            int64_t at = p * COLUMN_THREADS * WIDTH + column + i;
            if (at < b.shape.n)
                b.sums.row(block)[at] = sum[p][i];
        }
}

/*
 * Runs a row warp: rows warp, warp + row_warps, ... A slot always belongs to the same warp, which
 * waits for its phases one by one, because a barrier cannot distinguish two phases that are further
 * apart.
 */
template <typename T>
__device__ __forceinline__ void take_rows(const backward_rows<T> &b,
                                          const backward_memory<T> &memory, int warp,
                                          int64_t first_row, int64_t rows)
{
    int thread = (int)threadIdx.x % 32;

    for (int64_t row = warp; row < rows; row += b.row_warps) {
        int slot = (int)(row % b.slots);
        uint32_t parity = (uint32_t)(row / b.slots) & 1;
        invar_barrier_wait(&memory.barriers[slot].full, parity);
        const T *residual =
            b.residual.data ? row_of(b.residual, b.shape, first_row + row) : nullptr;
        float rstd = row_gradient(row_of(b.dx, b.shape, first_row + row), memory.dy(slot),
                                  memory.x(slot), residual, memory.weight, b.shape);
        if (thread == 0)
            *memory.rstd(slot) = rstd;
        __syncwarp();
        if (thread == 0)
            invar_barrier_arrive(&memory.barriers[slot].done);
    }
}

/* Fetches row after row, as slots become free. Called by one thread. */
template <typename T>
__device__ __forceinline__ void fetch_rows(const backward_rows<T> &b,
                                           const backward_memory<T> &memory, int64_t first_row,
                                           int64_t rows)
{
    uint32_t bytes = (uint32_t)(b.shape.n * sizeof(T));
    uint32_t parity = 1; // passes while the slots are new
    int slot = 0;

    for (int64_t row = first_row; row < first_row + rows; row++) {
        slot_barriers *barriers = &memory.barriers[slot];
        invar_barrier_wait(&barriers->free, parity);
        invar_barrier_expect(&barriers->full, 2 * bytes);
        invar_copy_in_flat(memory.x(slot), row_of(b.x, b.shape, row), bytes, &barriers->full);
        invar_copy_in_flat(memory.dy(slot), row_of(b.dy, b.shape, row), bytes, &barriers->full);
        if (b.residual.data)
            invar_copy_ahead_flat(row_of(b.residual, b.shape, row), bytes);
        slot = slot + 1 == b.slots ? 0 : slot + 1;
        parity ^= slot == 0;
    }
}

/*
 * Computes dx and the sums of a token block, by a block of threads; two run on a multiprocessor if
 * they fit.
 */
template <typename T, int Pieces>
static __global__ void __launch_bounds__(32 * BACKWARD_WARPS, Pieces > 8 ? 1 : 2)
    stream_backward(backward_rows<T> b)
{
    extern __shared__ __align__(128) char shared[];
    int warp = (int)threadIdx.x / 32, tokens;
    int64_t token = 0;
    backward_memory<T> memory = {(slot_barriers *)shared,
                                 (float *)((slot_barriers *)shared + MOST_SLOTS),
                                 shared + backward_head_bytes(b.shape.n), b.shape.n};

    invar_grid_begin();
    invar_find_token_block<32 * BACKWARD_WARPS>(&token, &tokens, b.blocks, blockIdx.x);
    int64_t first_row = token * b.shape.heads, rows = tokens * b.shape.heads;
    if (threadIdx.x < (unsigned)b.slots) {
        invar_barrier_init(&memory.barriers[threadIdx.x].full, 1);
        invar_barrier_init(&memory.barriers[threadIdx.x].done, 1);
        invar_barrier_init(&memory.barriers[threadIdx.x].free, COLUMN_WARPS);
    }
    invar_barrier_init_done();
    share_weight(memory.weight, b.weight, b.shape.n);
    if (rows == 0)
        return;
    if (warp < COLUMN_WARPS)
        sum_columns<T, Pieces>(b, memory, blockIdx.x, rows);
    else if (warp < COLUMN_WARPS + b.row_warps)
        take_rows(b, memory, warp - COLUMN_WARPS, first_row, rows);
    else if (threadIdx.x == 32 * (BACKWARD_WARPS - 1))
        fetch_rows(b, memory, first_row, rows);
}

#endif
