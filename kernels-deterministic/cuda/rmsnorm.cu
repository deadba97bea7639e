/*
 * rmsnorm.cu - root mean square norm over the last index.
 *
 * Numerics contract (rev 1), docs/arithmetic.md, section 7; in f32 per token and head, D = last
 * extent:
 *   rstd    = 1 / sqrt(REDUCE(x*x) / D + eps)
 *   y       = (x * rstd) * w                                              rounded to storage
 *   xhat    = x * rstd,  g = dy * w,  mean = REDUCE(g * xhat) / D
 *   dx      = rstd * fma(-xhat, mean, g)                                  rounded to storage
 *   dweight = sum over tokens in the order of token_blocks.cuh; a token adds
 *             sum = fma(dy, xhat, sum), heads ascending
 *
 * Rows come through shared memory by bulk copies, some rows ahead of the warp that takes them, so
 * memory is read once although a row is looked at two or three times. Backward, a block of threads
 * has a block of tokens: some warps compute dx, row by row; others follow them and sum dweight, a
 * thread its columns. Rows that are not aligned or too long take a plain path.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/hopper.cuh"
#include "kernels-deterministic/cuda/token_blocks.cuh"
#include "kernels-deterministic/cuda/vector.cuh"

#define UNIT_BYTES 4096           // short rows are fetched some at once, up to so many bytes
#define SHARED_MOST (220 * 1024)  // of a block of threads
#define SHARED_SHARE (108 * 1024) // where two blocks should fit a multiprocessor

/* Rows of D values: the heads of all tokens. */
struct norm_shape {
    int64_t rows, heads, n;
    float eps;
};

template <typename T>
__device__ __forceinline__ T *row_of(const invar_view<T> &x, const norm_shape &shape, int64_t row)
{
    int64_t token = shape.heads == 1 ? row : invar_divide(row, shape.heads);

    return x.row(token) + (row - token * shape.heads) * shape.n;
}

__device__ __forceinline__ float inverse_rms(float sum, const norm_shape &shape)
{
    return 1.0f / invar_sqrtf(sum / (float)shape.n + shape.eps);
}

/* ---- rows in shared memory ------------------------------------------------------------------- */

/* Rows that are fetched together: `per` of them, of which a run of `inner` lies without gaps. */
struct norm_units {
    int64_t inner, per;
    int64_t each; /* units of a run */
};

/* The rows [first, first + count) of unit `number`, counted from a row where a run begins. */
__device__ __forceinline__ int64_t unit_rows(int *count_out, const norm_units &units,
                                             int64_t number, int64_t rows)
{
    int64_t run = units.each == 1 ? number : invar_divide(number, units.each);
    int64_t inside = (number - run * units.each) * units.per, first = run * units.inner + inside;
    int64_t left = units.inner - inside < rows - first ? units.inner - inside : rows - first;

    *count_out = (int)(left < units.per ? left : units.per);
    return first;
}

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
 * REDUCE over a row by a group of threads: load(x, first) puts the values of the run from column
 * `first` on into x. A group of 16 has at most one run a thread; the whole warp calls.
 */
template <int Group, typename F> __device__ __forceinline__ float reduce_runs(int n, F load)
{
    int own = (int)threadIdx.x % Group * INVAR_RUN;
    auto chunk = [&](int begin, int end) {
        float lane[INVAR_RUN] = {}, x[INVAR_RUN];
#pragma unroll 4
        for (int first = begin + own; first < end; first += Group * INVAR_RUN) {
            load(x, first);
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++)
                lane[i] = lane[i] + x[i];
        }
        return invar_fold_runs<Group>(lane);
    };

    if (Group < 32 || n <= INVAR_REDUCE_CHUNK)
        return chunk(0, n);
    // a few chunks: sum c is lane c of the level above, which thread c holds alone
    float lane[INVAR_RUN] = {};
    for (int c = 0; c * INVAR_REDUCE_CHUNK < n; c++) {
        int end = (c + 1) * INVAR_REDUCE_CHUNK;
        float sum = chunk(c * INVAR_REDUCE_CHUNK, end < n ? end : n);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            lane[i] = c == own + i ? 0.0f + sum : lane[i];
    }
    return invar_fold_runs<Group>(lane);
}

/* f(first) for each run of the thread in a row. */
template <int Group, typename F> __device__ __forceinline__ void for_runs(int n, F f)
{
#pragma unroll 2
    for (int first = (int)threadIdx.x % Group * INVAR_RUN; first < n; first += Group * INVAR_RUN)
        f(first);
}

template <int Group, typename T>
__device__ __forceinline__ float row_rstd(const T *x, const norm_shape &shape)
{
    return inverse_rms(reduce_runs<Group>((int)shape.n,
                                          [&](float value[INVAR_RUN], int first) {
                                              load_shared(value, x + first);
#pragma unroll
                                              for (int i = 0; i < INVAR_RUN; i++)
                                                  value[i] = value[i] * value[i];
                                          }),
                       shape);
}

/*
 * The weight as f32, in shared memory. Of 32 runs the first halves lie before the second ones, so
 * that the 32 threads that load a half at once do not meet in a bank.
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

/* By all threads; then they are in step. */
__device__ __forceinline__ void share_weight(float *to, const invar_mixed &weight, int64_t n)
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

#define FORWARD_WARPS 8 // at most
#define FORWARD_SLOTS 3

template <typename T> struct forward_rows {
    invar_view<T> y, x;
    invar_mixed weight;
    norm_shape shape;
    norm_units units;
    int64_t count; /* units */
    int slots;     /* units that a warp has under way */
};

/* The memory of a block: barriers, weight, slots of all warps. */
static __host__ __device__ __forceinline__ int64_t forward_head_bytes(int64_t n)
{
    return FORWARD_WARPS * FORWARD_SLOTS * (int64_t)sizeof(uint64_t) +
           weight_values(n) * (int64_t)sizeof(float);
}

template <int Group, typename T>
__device__ __forceinline__ void normalise_row(T *y, const T *x, const float *weight,
                                              const norm_shape &shape, bool live)
{
    float rstd = row_rstd<Group>(x, shape);

    for_runs<Group>(live ? (int)shape.n : 0, [&](int first) {
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

template <typename T, int Group>
static __global__ void __launch_bounds__(32 * FORWARD_WARPS, 2) stream_forward(forward_rows<T> f)
{
    extern __shared__ __align__(128) char memory[];
    int warp = (int)threadIdx.x / 32, thread = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    uint64_t *full = (uint64_t *)memory + warp * FORWARD_SLOTS;
    float *weight = (float *)((uint64_t *)memory + FORWARD_WARPS * FORWARD_SLOTS);
    int64_t slot_values = f.units.per * f.shape.n;
    T *slots = (T *)(memory + forward_head_bytes(f.shape.n)) + warp * f.slots * slot_values;
    int64_t unit = (int64_t)blockIdx.x * warps + warp, stride = (int64_t)gridDim.x * warps;
    auto fetch = [&](int slot, int64_t number) {
        int count;
        int64_t row = unit_rows(&count, f.units, number, f.shape.rows);
        uint32_t bytes = (uint32_t)(count * f.shape.n * sizeof(T));
        invar_barrier_expect(&full[slot], bytes);
        invar_copy_in_flat(slots + slot * slot_values, row_of(f.x, f.shape, row), bytes,
                           &full[slot]);
    };

    for (int s = 0; thread == 0 && s < f.slots; s++)
        invar_barrier_init(&full[s], 1);
    invar_barrier_init_done();
    __syncwarp();
    for (int s = 0; thread == 0 && s < f.slots; s++)
        if (unit + s * stride < f.count)
            fetch(s, unit + s * stride);
    share_weight(weight, f.weight, f.shape.n);
    for (int slot = 0, parity = 0; unit < f.count; unit += stride) {
        int count, part = thread / Group;
        int64_t row = unit_rows(&count, f.units, unit, f.shape.rows);
        T *to = row_of(f.y, f.shape, row);
        const T *from = slots + slot * slot_values;
        invar_barrier_wait(&full[slot], (uint32_t)parity);
        for (int i = 0; i < count; i += 32 / Group) {
            bool live = i + part < count;
            int64_t offset = (live ? i + part : i) * f.shape.n;
            normalise_row<Group>(to + offset, from + offset, weight, f.shape, live);
        }
        __syncwarp();
        if (thread == 0 && unit + f.slots * stride < f.count)
            fetch(slot, unit + f.slots * stride);
        slot = slot + 1 == f.slots ? 0 : slot + 1;
        parity ^= slot == 0;
    }
}

/* A warp for a row of any length and alignment, which is read twice. */
template <typename T>
static __global__ void __launch_bounds__(128, 8)
    plain_forward(invar_view<T> y, invar_view<T> x, invar_mixed weight, norm_shape shape)
{
    int64_t row = ((int64_t)blockIdx.x * 128 + threadIdx.x) / 32;
    int lane = (int)threadIdx.x % 32 * INVAR_RUN;
    invar_warp_sum squares;

    if (row >= shape.rows)
        return;
    const T *from = row_of(x, shape, row);
    T *to = row_of(y, shape, row);
    squares.start();
    for (int64_t base = 0; base < shape.n; base += INVAR_REDUCE_LANES) {
        invar_run<T> run;
        float square[INVAR_RUN];
        run.load_some(from + base + lane, shape.n - base - lane);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            square[i] = run.get(i) * run.get(i);
        squares.add(square);
    }
    float rstd = inverse_rms(squares.sum(), shape);
    for (int64_t base = 0; base < shape.n; base += INVAR_REDUCE_LANES) {
        invar_run<T> run;
        float w[INVAR_RUN], out[INVAR_RUN];
        run.load_some(from + base + lane, shape.n - base - lane);
        weight.load<INVAR_RUN, false>(w, 0, base + lane, shape.n);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            out[i] = run.get(i) * rstd * w[i];
        run.set(out);
        run.store_some(to + base + lane, shape.n - base - lane);
    }
}

/* ---- backward, with the weight's gradient ---------------------------------------------------- */

#define ROW_WARPS 8 // at most
#define COLUMN_WARPS 4
#define BACKWARD_WARPS (ROW_WARPS + COLUMN_WARPS + 1) // the last one fetches
#define COLUMN_THREADS (32 * COLUMN_WARPS)
#define MOST_SLOTS (2 * ROW_WARPS)

template <typename T> struct backward_rows {
    invar_view<T> dx, dy, x;
    invar_mixed weight;
    norm_shape shape;
    norm_units units;
    invar_token_blocks blocks;
    float *sums; /* (blocks, n) */
    int slots;   /* a multiple of row_warps */
    int row_warps;
};

/* A unit on its way: fetched by one thread, read by a row warp, then by the column warps. */
struct slot_barriers {
    uint64_t full, done, free;
};

/* A slot: x and dy of a unit, then rstd of its rows. */
template <typename T>
static __host__ __device__ int64_t slot_bytes(const norm_units &units, int64_t n)
{
    return 2 * units.per * n * (int64_t)sizeof(T) +
           invar_ceil_div(units.per * (int64_t)sizeof(float), 16) * 16;
}

template <typename T> struct backward_memory {
    slot_barriers *barriers;
    float *weight;
    char *slots;
    int64_t slot, part; /* bytes of a slot; values of x in it */

    __device__ __forceinline__ T *x(int number) const
    {
        return (T *)(slots + number * slot);
    }
    __device__ __forceinline__ T *dy(int number) const
    {
        return x(number) + part;
    }
    __device__ __forceinline__ float *rstd(int number) const
    {
        return (float *)(dy(number) + part);
    }
};

static __host__ __device__ __forceinline__ int64_t backward_head_bytes(int64_t n)
{
    return MOST_SLOTS * (int64_t)sizeof(slot_barriers) + weight_values(n) * (int64_t)sizeof(float);
}

/* dx of one row by a group of threads; yields rstd. */
template <int Group, typename T>
__device__ __forceinline__ float row_gradient(T *dx, const T *dy, const T *x, const float *weight,
                                              const norm_shape &shape, bool live)
{
    float rstd = row_rstd<Group>(x, shape);
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
    float sum = reduce_runs<Group>((int)shape.n, [&](float product[INVAR_RUN], int first) {
        float g[INVAR_RUN];
        load(product, g, first);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            product[i] = g[i] * product[i];
    });
    float mean = sum / (float)shape.n;
    for_runs<Group>(live ? (int)shape.n : 0, [&](int first) {
        float xhat[INVAR_RUN], g[INVAR_RUN];
        invar_run<T> out;
        load(xhat, g, first);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            g[i] = rstd * invar_fmaf(-xhat[i], mean, g[i]);
        out.set(g);
        out.store_whole(dx + first);
    });
    return rstd;
}

/* Width neighbouring values. */
template <int Width> __device__ __forceinline__ void load_columns(float x[Width], const float *p)
{
    if constexpr (Width == 4) {
        float4 four = *(const float4 *)p;
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
        x[0] = *p;
    }
}

template <int Width>
__device__ __forceinline__ void load_columns(float x[Width], const __nv_bfloat16 *p)
{
    if constexpr (Width == 4) {
        uint2 two = *(const uint2 *)p;
        x[0] = __uint_as_float(two.x << 16), x[1] = __uint_as_float(two.x & 0xFFFF0000u);
        x[2] = __uint_as_float(two.y << 16), x[3] = __uint_as_float(two.y & 0xFFFF0000u);
    } else {
        x[0] = invar_load(p);
    }
}

/* A column thread: its columns' sums over the rows of the block of tokens, unit by unit. */
template <typename T, int Width, int Pieces>
__device__ __forceinline__ void sum_columns(const backward_rows<T> &b,
                                            const backward_memory<T> &memory, int64_t block,
                                            int64_t rows, int64_t count)
{
    float sum[Pieces][Width] = {};
    int column = (int)threadIdx.x % COLUMN_THREADS * Width, slot = 0;
    uint32_t parity = 0;

    for (int64_t unit = 0; unit < count; unit++) {
        int in_unit;
        (void)unit_rows(&in_unit, b.units, unit, rows);
        invar_barrier_wait(&memory.barriers[slot].full, parity);
        invar_barrier_wait(&memory.barriers[slot].done, parity);
        for (int r = 0; r < in_unit; r++) {
            float rstd = memory.rstd(slot)[r];
#pragma unroll
            for (int p = 0; p < Pieces; p++) {
                int at = p * COLUMN_THREADS * Width + column;
                float x[Width], dy[Width];
                if (at >= b.shape.n)
                    continue;
                load_columns<Width>(x, memory.x(slot) + r * b.shape.n + at);
                load_columns<Width>(dy, memory.dy(slot) + r * b.shape.n + at);
#pragma unroll
                for (int i = 0; i < Width; i++)
                    sum[p][i] = invar_fmaf(dy[i], x[i] * rstd, sum[p][i]);
            }
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
        for (int i = 0; i < Width; i++) {
            int64_t at = p * COLUMN_THREADS * Width + column + i;
            if (at < b.shape.n)
                b.sums[block * b.shape.n + at] = sum[p][i];
        }
}

/*
 * A row warp: units warp, warp + row_warps, ... A slot always comes to the same warp, which so
 * waits for its phases one by one: of two that are further apart, a barrier does not tell which.
 */
template <typename T, int Group>
__device__ __forceinline__ void take_rows(const backward_rows<T> &b,
                                          const backward_memory<T> &memory, int warp,
                                          int64_t first_row, int64_t rows, int64_t count)
{
    int thread = (int)threadIdx.x % 32, part = thread / Group;

    for (int64_t unit = warp; unit < count; unit += b.row_warps) {
        int slot = (int)(unit % b.slots), in_unit;
        uint32_t parity = (uint32_t)(unit / b.slots) & 1;
        int64_t row = unit_rows(&in_unit, b.units, unit, rows);
        T *to = row_of(b.dx, b.shape, first_row + row);
        invar_barrier_wait(&memory.barriers[slot].full, parity);
        for (int r = 0; r < in_unit; r += 32 / Group) {
            bool live = r + part < in_unit;
            int mine = live ? r + part : r;
            float rstd = row_gradient<Group>(
                to + mine * b.shape.n, memory.dy(slot) + mine * b.shape.n,
                memory.x(slot) + mine * b.shape.n, memory.weight, b.shape, live);
            if (live && thread % Group == 0)
                memory.rstd(slot)[mine] = rstd;
        }
        __syncwarp();
        if (thread == 0)
            invar_barrier_arrive(&memory.barriers[slot].done);
    }
}

/* One thread: fetches unit after unit, as slots become free. */
template <typename T>
__device__ __forceinline__ void fetch_units(const backward_rows<T> &b,
                                            const backward_memory<T> &memory, int64_t first_row,
                                            int64_t rows, int64_t count)
{
    int slot = 0;
    uint32_t parity = 1; // passes while the slots are fresh

    for (int64_t unit = 0; unit < count; unit++) {
        int in_unit;
        int64_t row = first_row + unit_rows(&in_unit, b.units, unit, rows);
        uint32_t bytes = (uint32_t)(in_unit * b.shape.n * sizeof(T));
        slot_barriers *barriers = &memory.barriers[slot];
        invar_barrier_wait(&barriers->free, parity);
        invar_barrier_expect(&barriers->full, 2 * bytes);
        invar_copy_in_flat(memory.x(slot), row_of(b.x, b.shape, row), bytes, &barriers->full);
        invar_copy_in_flat(memory.dy(slot), row_of(b.dy, b.shape, row), bytes, &barriers->full);
        slot = slot + 1 == b.slots ? 0 : slot + 1;
        parity ^= slot == 0;
    }
}

/* A block of threads for a block of tokens; two of them on a multiprocessor, where they fit. */
template <typename T, int Group, int Width, int Pieces>
static __global__ void __launch_bounds__(32 * BACKWARD_WARPS, Pieces > 8 ? 1 : 2)
    stream_backward(backward_rows<T> b)
{
    extern __shared__ __align__(128) char shared[];
    int warp = (int)threadIdx.x / 32, tokens;
    int64_t token = 0;
    (void)invar_find_token_block<32 * BACKWARD_WARPS>(&token, &tokens, b.blocks, blockIdx.x);
    int64_t first_row = token * b.shape.heads, rows = tokens * b.shape.heads;
    // the last run may be cut: where all rows follow each other, a block is not a whole run
    int64_t count = invar_ceil_div(rows, b.units.inner) * b.units.each;
    if (b.units.inner >= rows)
        count = invar_ceil_div(rows, b.units.per);
    backward_memory<T> memory = {(slot_barriers *)shared,
                                 (float *)((slot_barriers *)shared + MOST_SLOTS),
                                 shared + backward_head_bytes(b.shape.n),
                                 slot_bytes<T>(b.units, b.shape.n), b.units.per * b.shape.n};

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
        sum_columns<T, Width, Pieces>(b, memory, blockIdx.x, rows, count);
    else if (warp < COLUMN_WARPS + b.row_warps)
        take_rows<T, Group>(b, memory, warp - COLUMN_WARPS, first_row, rows, count);
    else if (threadIdx.x == 32 * (BACKWARD_WARPS - 1))
        fetch_units(b, memory, first_row, rows, count);
}

/* ---- backward, plainly ----------------------------------------------------------------------- */

/* dx of a row of any length and alignment, by a warp; rstd_out is for dweight, NULL without it. */
template <typename T>
static __global__ void __launch_bounds__(128, 6)
    plain_backward(invar_view<T> dx, invar_view<T> dy, invar_view<T> x, invar_mixed weight,
                   float *rstd_out, norm_shape shape, bool aligned)
{
    int64_t row = ((int64_t)blockIdx.x * 128 + threadIdx.x) / 32;
    int lane = (int)threadIdx.x % 32 * INVAR_RUN;

    if (row >= shape.rows)
        return;
    const T *x_row = row_of(x, shape, row), *dy_row = row_of(dy, shape, row);
    T *to = row_of(dx, shape, row);
    // take(out, first) with out[i] = value(x, dy, w) for every run of the row
    auto for_row = [&](auto value, auto take) {
        for (int64_t first = lane; first - lane < shape.n; first += INVAR_REDUCE_LANES) {
            invar_run<T> x_run, dy_run;
            float w[INVAR_RUN], out[INVAR_RUN];
            x_run.load(x_row + first, shape.n - first, aligned);
            dy_run.load(dy_row + first, shape.n - first, aligned);
            weight.load<INVAR_RUN>(w, 0, first, shape.n - first, aligned);
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++)
                out[i] = value(x_run.get(i), dy_run.get(i), w[i]);
            take(out, first);
        }
    };
    invar_warp_sum sum;
    auto add = [&](const float out[INVAR_RUN], int64_t) { sum.add(out); };
    sum.start();
    for_row([](float x_i, float, float) { return x_i * x_i; }, add);
    float rstd = inverse_rms(sum.sum(), shape);
    sum.start();
    for_row([&](float x_i, float dy_i, float w_i) { return dy_i * w_i * (x_i * rstd); }, add);
    float mean = sum.sum() / (float)shape.n;
    for_row([&](float x_i, float dy_i,
                float w_i) { return rstd * invar_fmaf(-(x_i * rstd), mean, dy_i * w_i); },
            [&](const float out[INVAR_RUN], int64_t first) {
                invar_run<T> run;
                run.set(out);
                run.store(to + first, shape.n - first, aligned);
            });
    if (rstd_out && lane == 0)
        rstd_out[row] = rstd;
}

#define PLAIN_COLUMNS 128

/* The sums of a block of tokens; a thread has a column. */
template <typename T>
static __global__ void __launch_bounds__(PLAIN_COLUMNS)
    plain_weight_sums(float *sums, invar_view<T> dy, invar_view<T> x, const float *rstd,
                      invar_token_blocks blocks, norm_shape shape)
{
    int64_t token = 0, column = (int64_t)blockIdx.y * PLAIN_COLUMNS + threadIdx.x;
    int tokens;
    float sum = 0.0f;

    (void)invar_find_token_block<PLAIN_COLUMNS>(&token, &tokens, blocks, blockIdx.x);
    if (tokens == 0 || column >= shape.n)
        return;
    int64_t end = (token + tokens) * shape.heads;
#pragma unroll 4
    for (int64_t row = token * shape.heads; row < end; row++)
        sum = invar_fmaf(invar_load(row_of(dy, shape, row) + column),
                         invar_load(row_of(x, shape, row) + column) * rstd[row], sum);
    sums[blockIdx.x * shape.n + column] = sum;
}

/* ---- launches -------------------------------------------------------------------------------- */

static norm_shape shape_of(const invar_tensor *x, float eps)
{
    return {x->shape[0] * x->shape[1], x->shape[1], x->shape[2], eps};
}

/* Units of rows without gaps: of all rows where the tensors have none, else of a token's heads. */
static norm_units units_of(const invar_tensor *x, bool joined)
{
    int64_t row = x->shape[2] * invar_dtype_bits(x->dtype) / 8;
    int64_t inner = joined ? x->shape[0] * x->shape[1] : x->shape[1];
    int64_t per = UNIT_BYTES / row;

    per = per < 1 ? 1 : per > inner ? inner : per;
    return {inner, per, invar_ceil_div(inner, per)};
}

static invar_status check_length(invar_op op, const norm_shape *shape)
{
    if (shape->n > INVAR_WARP_SUM_MOST)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: rows of more than 2^24 values",
                          invar_op_name(op));
    return INVAR_OK;
}

/* f(Group) by the length of rows: half a warp has all of a short one. */
template <typename F> static invar_status by_group(int64_t n, F f)
{
    if (n <= 16 * INVAR_RUN)
        return f(std::integral_constant<int, 16>{});
    return f(std::integral_constant<int, 32>{});
}

size_t invar_cuda_rmsnorm_fwd_workspace(const invar_device *dev, const invar_rmsnorm_fwd_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cuda_rmsnorm_fwd(const invar_device *dev, const invar_rmsnorm_fwd_args *a,
                                    void *workspace)
{
    invar_op op = INVAR_OP_RMSNORM_FWD;
    norm_shape shape = shape_of(&a->x, a->eps);
    bool whole = invar_aligned({&a->y, &a->x, &a->weight}) && shape.n % INVAR_RUN == 0;

    (void)workspace;
    INVAR_TRY(check_length(op, &shape));
    if (shape.rows == 0)
        return INVAR_OK;
    return invar_by_storage(a->x.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        forward_rows<T> rows = {invar_view_of<T>(&a->y),
                                invar_view_of<T>(&a->x),
                                invar_mixed_of(&a->weight),
                                shape,
                                units_of(&a->x, invar_joined({&a->x, &a->y})),
                                0,
                                FORWARD_SLOTS};
        int warps = FORWARD_WARPS;
        auto room = [&] {
            return forward_head_bytes(shape.n) +
                   warps * rows.slots * rows.units.per * shape.n * (int64_t)sizeof(T);
        };
        for (; room() > SHARED_MOST && warps > 2; warps /= 2)
            if (rows.slots == FORWARD_SLOTS && warps == FORWARD_WARPS / 2)
                rows.slots--;
        int64_t bytes = room();
        rows.count = shape.rows / rows.units.inner * rows.units.each;
        if (!whole || bytes > SHARED_MOST) {
            dim3 grid((unsigned)invar_ceil_div(shape.rows, 4));
            return invar_launch(dev, op, plain_forward<T>, grid, dim3(128), 0)(rows.y, rows.x,
                                                                               rows.weight, shape);
        }
        int64_t blocks = invar_ceil_div(rows.count, warps);
        int64_t most = invar_cuda_of(dev)->multiprocessors * (bytes <= SHARED_SHARE ? 2 : 1);
        return by_group(shape.n, [&](auto group) {
            return invar_launch(dev, op, stream_forward<T, group.value>,
                                dim3((unsigned)(blocks < most ? blocks : most)),
                                dim3((unsigned)(32 * warps)), (size_t)bytes)(rows);
        });
    });
}

/* f(Width, Pieces): what of a row's columns a thread sums. */
template <typename F> static invar_status by_columns(int64_t n, F f)
{
    using one = std::integral_constant<int, 1>;
    using four = std::integral_constant<int, 4>;

    if (n <= COLUMN_THREADS)
        return f(one{}, one{});
    if (n <= 8 * COLUMN_THREADS)
        return f(four{}, std::integral_constant<int, 2>{});
    if (n <= 16 * COLUMN_THREADS)
        return f(four{}, four{});
    if (n <= 32 * COLUMN_THREADS)
        return f(four{}, std::integral_constant<int, 8>{});
    return f(four{}, std::integral_constant<int, 16>{});
}

#define MOST_COLUMNS (64 * COLUMN_THREADS)

/* Slots that fit into shared memory; fewer than 4 are not worth it. */
template <typename T> static int count_slots(const norm_shape *shape, const norm_units *units)
{
    int64_t each = slot_bytes<T>(*units, shape->n), head = backward_head_bytes(shape->n);
    int64_t slots = (SHARED_SHARE - head) / each;

    if (slots < 6)
        slots = (SHARED_MOST - head) / each;
    if (slots >= ROW_WARPS)
        return slots < MOST_SLOTS ? ROW_WARPS : MOST_SLOTS; // multiples of ROW_WARPS
    return slots < 4 ? 0 : (int)slots;
}

static size_t sums_bytes(const invar_rmsnorm_bwd_args *a)
{
    int64_t blocks = invar_token_blocks_most(&a->units, a->x.shape[0]);

    return ((size_t)(blocks * a->x.shape[2]) * sizeof(float) + 255) / 256 * 256;
}

size_t invar_cuda_rmsnorm_bwd_workspace(const invar_device *dev, const invar_rmsnorm_bwd_args *a)
{
    (void)dev;
    if (!invar_tensor_present(&a->dweight))
        return 0;
    return sums_bytes(a) + (size_t)(a->x.shape[0] * a->x.shape[1]) * sizeof(float);
}

template <typename T>
static invar_status launch_stream(const invar_device *dev, const invar_rmsnorm_bwd_args *a,
                                  const backward_rows<T> *rows)
{
    invar_op op = INVAR_OP_RMSNORM_BWD;
    int64_t n = rows->shape.n;
    size_t bytes = (size_t)(backward_head_bytes(n) + rows->slots * slot_bytes<T>(rows->units, n));
    dim3 grid((unsigned)invar_token_blocks_most(&a->units, a->x.shape[0]));

    return by_columns(n, [&](auto width, auto pieces) {
        return by_group(n, [&](auto group) {
            if constexpr (group.value == 32 || width.value == 1)
                return invar_launch(dev, op,
                                    stream_backward<T, group.value, width.value, pieces.value>,
                                    grid, dim3(32 * BACKWARD_WARPS), bytes)(*rows);
            return INVAR_OK; // short rows have one column a thread
        });
    });
}

template <typename T>
static invar_status launch_plain(const invar_device *dev, const invar_rmsnorm_bwd_args *a,
                                 const backward_rows<T> *rows, float *rstd)
{
    invar_op op = INVAR_OP_RMSNORM_BWD;
    bool aligned =
        invar_aligned({&a->dx, &a->dy, &a->x, &a->weight}) && rows->shape.n % INVAR_RUN == 0;
    dim3 grid((unsigned)invar_ceil_div(rows->shape.rows, 4));
    dim3 blocks((unsigned)invar_token_blocks_most(&a->units, a->x.shape[0]),
                (unsigned)invar_ceil_div(rows->shape.n, PLAIN_COLUMNS));

    INVAR_TRY(invar_launch(dev, op, plain_backward<T>, grid, dim3(128), 0)(
        rows->dx, rows->dy, rows->x, rows->weight, rstd, rows->shape, aligned));
    if (!rstd)
        return INVAR_OK;
    return invar_launch(dev, op, plain_weight_sums<T>, blocks, dim3(PLAIN_COLUMNS),
                        0)(rows->sums, rows->dy, rows->x, rstd, rows->blocks, rows->shape);
}

invar_status invar_cuda_rmsnorm_bwd(const invar_device *dev, const invar_rmsnorm_bwd_args *a,
                                    void *workspace)
{
    invar_op op = INVAR_OP_RMSNORM_BWD;
    norm_shape shape = shape_of(&a->x, a->eps);
    bool whole = invar_aligned({&a->dx, &a->dy, &a->x, &a->weight}) && shape.n % INVAR_RUN == 0;
    bool weight = invar_tensor_present(&a->dweight);
    float *sums = (float *)workspace;
    invar_token_blocks blocks = invar_token_blocks_of(dev, op, &a->units, a->x.shape[0]);

    INVAR_TRY(check_length(op, &shape));
    if (shape.rows == 0)
        return INVAR_OK;
    INVAR_TRY(invar_by_storage(a->x.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        backward_rows<T> rows = {invar_view_of<T>(&a->dx),
                                 invar_view_of<T>(&a->dy),
                                 invar_view_of<T>(&a->x),
                                 invar_mixed_of(&a->weight),
                                 shape,
                                 units_of(&a->x, invar_joined({&a->dx, &a->dy, &a->x})),
                                 blocks,
                                 sums,
                                 0,
                                 0};
        if (weight && whole && shape.n <= MOST_COLUMNS)
            rows.slots = count_slots<T>(&shape, &rows.units);
        rows.row_warps = rows.slots < ROW_WARPS ? rows.slots : ROW_WARPS;
        if (rows.slots > 0)
            return launch_stream(dev, a, &rows);
        return launch_plain(dev, a, &rows,
                            weight ? (float *)((char *)workspace + sums_bytes(a)) : nullptr);
    }));
    if (!weight)
        return INVAR_OK;
    return invar_token_blocks_add(dev, op, (float *)a->dweight.data, sums, shape.n, &blocks);
}
