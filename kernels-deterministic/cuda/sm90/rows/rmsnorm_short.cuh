/*
 * rmsnorm_short.cuh - rmsnorm of rows of up to 1024 values, which are held in registers.
 *
 * A group of 4, 8, 16 or 32 threads has a row: thread t has the runs at columns 8 (t + Group k), k
 * < 4. So every thread of a warp has 32 values, and the further cost of a row, its sums over
 * threads and its divisions, is shared by all rows of the warp.
 *
 * With dweight, a block of threads has a token block. One warp fetches rows into a ring in shared
 * memory, some ahead; teams of row warps take its slots in turn and compute dx; column warps follow
 * and sum dweight, a thread its columns. A slot has the barriers `full`, `done` and `free`. With
 * shards of heads, a thread has a sum for each of them, and takes a row of every shard at a time.
 * Sums of dweight are over ascending rows, and REDUCE keeps its lanes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ROWS_RMSNORM_SHORT_CUH
#define INVAR_KERNELS_CUDA_SM90_ROWS_RMSNORM_SHORT_CUH

#include "kernels-deterministic/cuda/sm90/hopper.cuh"
#include "kernels-deterministic/cuda/sm90/rows/rmsnorm.cuh"
#include "kernels-deterministic/cuda/sm90/rows/token_blocks.cuh"

#define SHORT_RUNS 4 // runs of a thread
#define SHORT_VALUES (SHORT_RUNS * INVAR_RUN)
#define SHORT_MOST (32 * SHORT_VALUES) // largest number of values of a row
#define SHORT_THREADS 128
// heads of a token at most: rows of a token block are counted in 32 bits
#define SHORT_HEADS (1 << 20)

/*
 * Returns the column of the thread's run k. In a group of four, every other row has its runs in
 * another order, because two such rows share banks; no sum below depends on it.
 */
template <int Group> __device__ __forceinline__ int short_column(int k)
{
    int other = Group == 4 ? (int)threadIdx.x / Group % 2 : 0;

    return ((int)threadIdx.x % Group + (k % 2 ^ other) * Group + k / 2 * 2 * Group) * INVAR_RUN;
}

/*
 * Returns the REDUCE over the values value(k, i) of a row; all threads of the warp must call it.
 * Lanes of 256 columns are summed in ascending order, those of fewer columns folded by halves: k
 * with k + 2 first. In the contract lanes start at +0; adding it last suffices, because it changes
 * only the sign of a zero.
 */
template <int Group, typename F> __device__ __forceinline__ float short_sum(F value)
{
    float lane[INVAR_RUN];

#pragma unroll
    for (int i = 0; i < INVAR_RUN; i++) {
        if (Group == 32)
            lane[i] = value(0, i) + value(1, i) + value(2, i) + value(3, i);
        else
            lane[i] = (value(0, i) + value(2, i)) + (value(1, i) + value(3, i));
    }
    return 0.0f + invar_fold_runs<Group>(lane);
}

template <int Group, typename F>
__device__ __forceinline__ float short_rstd(F x, const norm_shape &shape)
{
    return inverse_rms(short_sum<Group>([&](int k, int i) { return x(k, i) * x(k, i); }), shape);
}

/* Loads the runs of a row from global memory, with zeros after its end. */
template <int Group, typename T>
__device__ __forceinline__ void short_load(invar_run<T> (&run)[SHORT_RUNS], const T *row, int64_t n)
{
#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++)
        run[k].template load<true>(row, short_column<Group>(k), n);
}

template <int Group, typename T>
__device__ __forceinline__ void short_store(T *row, const invar_run<T> (&run)[SHORT_RUNS],
                                            int64_t n)
{
#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++)
        run[k].template store<true>(row, short_column<Group>(k), n);
}

/*
 * Hides from the compiler where a value comes from; otherwise it computes the value again, or keeps
 * what it is computed from.
 */
__device__ __forceinline__ void short_hide_origin(float &value)
{
    asm volatile("" : "+f"(value));
}

template <typename T>
__device__ __forceinline__ void short_hide_origin(invar_run<T> (&run)[SHORT_RUNS])
{
#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++)
#pragma unroll
        for (int i = 0; i < invar_run<T>::words; i++)
            asm volatile("" : "+r"(run[k].word[i]));
}

/* ---- rotation -------------------------------------------------------------------------------- */

/*
 * Rotary embedding of rows that are as wide as their group: the runs k and k + 2 of a thread are
 * pairs.
 */
struct short_norm_rope {
    invar_view<float> cosine, sine;
    const int32_t *positions;
    int64_t heads; /* heads of a token; norm_shape has 1 if the rows of all tokens have no gaps */
    invar_op op;
    invar_cuda_fault *fault;

    /* Returns the row of the tables for a position; records a fault if it is out of range. */
    __device__ __forceinline__ int64_t row_of(int32_t position) const
    {
        return invar_guard(fault, op, position, cosine.rows);
    }

    /* Returns the row of the tables for a row's token; 0 if there is no such row. */
    __device__ __forceinline__ int64_t row_of_token(int64_t row, bool live) const
    {
        return live ? row_of(positions[invar_divide(row, heads)]) : 0;
    }
};

template <int Group> struct short_angles {
    invar_run<float> cosine[SHORT_RUNS / 2], sine[SHORT_RUNS / 2];

    __device__ __forceinline__ void load(const short_norm_rope &r, int64_t position)
    {
#pragma unroll
        for (int k = 0; k < SHORT_RUNS / 2; k++) {
            cosine[k].load_whole(r.cosine.row(position) + short_column<Group>(k));
            sine[k].load_whole(r.sine.row(position) + short_column<Group>(k));
        }
    }

    /* Rotates a row; `Back` rotates by the angles with the other sign. */
    template <bool Back, typename T>
    __device__ __forceinline__ void turn(invar_run<T> (&run)[SHORT_RUNS]) const
    {
#pragma unroll
        for (int k = 0; k < SHORT_RUNS / 2; k++) {
            float y1[INVAR_RUN], y2[INVAR_RUN];
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++) {
                float x1 = run[k].get(i), x2 = run[k + 2].get(i);
                float c = cosine[k].get(i), s = Back ? -sine[k].get(i) : sine[k].get(i);
                y1[i] = invar_fmaf(x1, c, -(x2 * s));
                y2[i] = invar_fmaf(x2, c, x1 * s);
            }
            run[k].set(y1);
            run[k + 2].set(y2);
        }
    }
};

/* ---- forward --------------------------------------------------------------------------------- */

/*
 * Normalizes rows, a group of threads for each. y may be x, because a row is read before it is
 * written. W is the weight's type.
 */
template <typename T, typename W, int Group, bool Turn>
static __global__ void __launch_bounds__(SHORT_THREADS, sizeof(W) == 4 ? 5
                                                        : Turn         ? 6
                                                                       : 8)
    short_forward(invar_view<T> y, invar_view<T> x, const W *weight, norm_shape shape,
                  short_norm_rope rotation)
{
    int64_t row = ((int64_t)blockIdx.x * SHORT_THREADS + threadIdx.x) / Group;
    int64_t n = row < shape.rows ? shape.n : 0; // all threads take part in the sums
    int64_t position = 0;
    invar_run<T> run[SHORT_RUNS];
    invar_run<W> w[SHORT_RUNS];

    invar_grid_begin();
    if (Turn)
        position = rotation.row_of_token(row, n > 0);
    short_load<Group>(run, row_of(x, shape, row), n);
    short_angles<Group> angles;
    if (Turn)
        angles.load(rotation, position);
    else
        short_load<Group>(w, weight, n);
    float rstd = short_rstd<Group>([&](int k, int i) { return run[k].get(i); }, shape);
    if (Turn) { // loaded late, because registers are scarce
        short_hide_origin(run);
        short_load<Group>(w, weight, n);
    }
#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++) {
        float out[INVAR_RUN];
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            out[i] = run[k].get(i) * rstd * w[k].get(i);
        run[k].set(out);
    }
    if (Turn)
        angles.template turn<false>(run);
    short_store<Group>(row_of(y, shape, row), run, n);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Returns the values of a row as f32. */
template <typename T>
__device__ __forceinline__ void short_unpack(float (&value)[SHORT_RUNS][INVAR_RUN],
                                             const invar_run<T> (&run)[SHORT_RUNS])
{
#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++)
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            value[k][i] = run[k].get(i);
}

/* Computes dx of a row, into dy; load_weight(w, k) loads the weights of run k. */
template <int Group, typename T, typename F>
__device__ __forceinline__ void short_gradient(invar_run<T> (&dy)[SHORT_RUNS],
                                               const float (&x)[SHORT_RUNS][INVAR_RUN], float rstd,
                                               const norm_shape &shape, F load_weight)
{
    float g[SHORT_RUNS][INVAR_RUN], xhat[SHORT_RUNS][INVAR_RUN];

#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++) {
        float w[INVAR_RUN];
        load_weight(w, k);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++) {
            g[k][i] = dy[k].get(i) * w[i];
            xhat[k][i] = x[k][i] * rstd;
            short_hide_origin(xhat[k][i]);
        }
    }
    float mean =
        mean_of(short_sum<Group>([&](int k, int i) { return g[k][i] * xhat[k][i]; }), shape);
#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++) {
        float out[INVAR_RUN];
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            out[i] = rstd * invar_fmaf(-xhat[k][i], mean, g[k][i]);
        dy[k].set(out);
    }
}

/* Computes dx without dweight and without a rotation. */
template <typename T, typename W, int Group>
static __global__ void __launch_bounds__(SHORT_THREADS, 4)
    short_backward(invar_view<T> dx, invar_view<T> dy, invar_view<T> x, const W *weight,
                   norm_shape shape)
{
    int64_t row = ((int64_t)blockIdx.x * SHORT_THREADS + threadIdx.x) / Group;
    int64_t n = row < shape.rows ? shape.n : 0;
    invar_run<T> x_run[SHORT_RUNS], dy_run[SHORT_RUNS];
    invar_run<W> w_run[SHORT_RUNS];

    invar_grid_begin();
    norm_row_coord place = place_of(shape, row);
    short_load<Group>(x_run, row_at(x, place), n);
    short_load<Group>(dy_run, row_at(dy, place), n);
    short_load<Group>(w_run, weight, n);
    float x_value[SHORT_RUNS][INVAR_RUN];
    short_unpack(x_value, x_run);
    float rstd = short_rstd<Group>([&](int k, int i) { return x_value[k][i]; }, shape);
    short_gradient<Group>(dy_run, x_value, rstd, shape, [&](float w[INVAR_RUN], int k) {
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            w[i] = w_run[k].get(i);
    });
    short_store<Group>(row_at(dx, place), dy_run, n);
}

/* ---- backward, with the weight's gradient ---------------------------------------------------- */

#define SHORT_TEAMS 4 // teams of row warps; each has every fourth slot of the ring
// slots of a team: one is fetched, one with its warps, one with the column warps
#define SHORT_TURNS 3
#define SHORT_SLOTS (SHORT_TEAMS * SHORT_TURNS)
#define SHORT_SHARDED_GROUP 8 // rows of wider groups cannot have shards here

/*
 * Offsets of the shards in a token's heads; all of them have an end. `max_heads` is the largest
 * number of heads in one.
 */
struct short_shards {
    int32_t count, max_heads;
    int32_t start[INVAR_LINEAR_MAX_SHARDS + 1];
};

template <typename T> struct short_sums {
    invar_view<T> dx, dy, x;
    invar_view<T> residual; /* data is NULL if there is none */
    bool gapless;           /* the rows of x, and of dy, are contiguous */
    invar_any_float_rows weight;
    norm_shape shape;
    short_shards shards;
    short_norm_rope rotation;
    invar_token_blocks blocks;
    invar_view<float> sums; /* (token blocks, n) */
};

/* Shared memory: rows of n values, at most as many as a group has. */
template <typename T, int Group> struct short_memory {
    static constexpr int width = Group * SHORT_VALUES;
    static constexpr int runs = Group * SHORT_RUNS;
    static constexpr int column_warps = 2;
    static constexpr int row_warps = sizeof(T) == 2 ? 16 : 8;
    static constexpr int threads = 32 * (column_warps + row_warps + 1); /* the last warp fetches */
    static constexpr int rows = row_warps * 32 / Group / SHORT_TEAMS;   /* rows of a slot */

    float4 weight[2][runs]; /* the halves of runs, so that threads do not share a bank */
    alignas(16) float rstd[SHORT_SLOTS][rows];
    /* the rows are loaded; the row warps are done; the column warps are done */
    uint64_t full[SHORT_SLOTS], done[SHORT_SLOTS], free[SHORT_SLOTS];
    alignas(16) T x[SHORT_SLOTS][rows * width], dy[SHORT_SLOTS][rows * width];

    __device__ __forceinline__ void load_weight(float w[INVAR_RUN], int run) const
    {
        float4 low = weight[0][run], high = weight[1][run];

        w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w;
        w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
    }

    /* Initializes the barriers. Called by all threads, which then synchronize. */
    __device__ __forceinline__ void init_barriers()
    {
        if (threadIdx.x < SHORT_SLOTS) {
            invar_barrier_init(&full[threadIdx.x], 1);
            invar_barrier_init(&done[threadIdx.x], row_warps / SHORT_TEAMS);
            invar_barrier_init(&free[threadIdx.x], column_warps);
        }
        invar_barrier_init_done();
    }

    /* Loads the weight, with zeros after the end of the row. Called by the row threads. */
    __device__ __forceinline__ void share_weight(const invar_any_float_rows &from, int64_t n,
                                                 int thread)
    {
        for (int run = thread; run < runs; run += 32 * row_warps) {
            float w[INVAR_RUN];
            from.load<INVAR_RUN, true>(w, 0, run * INVAR_RUN, n);
            weight[0][run] = make_float4(w[0], w[1], w[2], w[3]);
            weight[1][run] = make_float4(w[4], w[5], w[6], w[7]);
        }
        invar_named_barrier(1, 32 * row_warps);
    }
};

/* Arrives for this warp, which has done its part of a slot. */
__device__ __forceinline__ void short_arrive(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        invar_barrier_arrive(barrier);
}

/*
 * Runs the fetching warp: loads the rows of each slot, as many at once as are contiguous in memory.
 */
template <typename T, int Group>
__device__ __forceinline__ void short_fetch_rows(const short_sums<T> &b,
                                                 short_memory<T, Group> &memory,
                                                 int64_t first_token, int rows)
{
    using M = short_memory<T, Group>;
    int thread = (int)threadIdx.x % 32, heads = (int)b.shape.heads, n = (int)b.shape.n;
    invar_ring<SHORT_SLOTS> slot;

    for (int base = 0; base < rows; base += M::rows, slot.advance()) {
        int end = rows - base < M::rows ? rows : base + M::rows, token = base / heads;
        auto fetch = [&](int token, int from, int to) {
            uint32_t bytes = (uint32_t)((to - from) * n) * (uint32_t)sizeof(T);
            norm_row_coord place = {first_token + token, (int64_t)(from - token * heads) * n};
            int at = (from - base) * n;
            invar_copy_in_flat(&memory.x[slot.stage][at], row_at(b.x, place), bytes,
                               &memory.full[slot.stage]);
            invar_copy_in_flat(&memory.dy[slot.stage][at], row_at(b.dy, place), bytes,
                               &memory.full[slot.stage]);
        };
        auto look_ahead = [&](int token, int from, int to) {
            norm_row_coord place = {first_token + token, (int64_t)(from - token * heads) * n};
            invar_copy_ahead_flat(row_at(b.residual, place),
                                  (uint32_t)((to - from) * n) * (uint32_t)sizeof(T));
        };
        auto for_tokens = [&](auto f) {
            for (int t = token + thread; t * heads < end; t += 32)
                f(t, t * heads < base ? base : t * heads,
                  (t + 1) * heads < end ? (t + 1) * heads : end);
        };
        // passes while the slot is new
        invar_barrier_wait(&memory.free[slot.stage], slot.parity ^ 1);
        invar_fence_async(); // the row warps may have written into the slot
        if (thread == 0)
            invar_barrier_expect(&memory.full[slot.stage],
                                 (uint32_t)((end - base) * n * 2) * (uint32_t)sizeof(T));
        __syncwarp();
        if (!b.gapless)
            for_tokens(fetch);
        else if (thread == 0)
            fetch(token, base, end);
        if (b.residual.data)
            for_tokens(look_ahead);
    }
}

/* run = round(other + run) */
template <typename T>
__device__ __forceinline__ void short_add(invar_run<T> (&run)[SHORT_RUNS],
                                          const invar_run<T> (&other)[SHORT_RUNS])
{
#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++) {
        float sum[INVAR_RUN];
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            sum[i] = other[k].get(i) + run[k].get(i);
        run[k].set(sum);
    }
}

template <int Group, typename T>
__device__ __forceinline__ void short_load_shared(invar_run<T> (&run)[SHORT_RUNS], const T *row,
                                                  int n)
{
#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++) {
        run[k].clear();
        if (short_column<Group>(k) >= n)
            continue;
#pragma unroll
        for (int i = 0; i < invar_run<T>::words; i += 4) {
            uint4 four = ((const uint4 *)(row + short_column<Group>(k)))[i / 4];
            run[k].word[i] = four.x, run[k].word[i + 1] = four.y;
            run[k].word[i + 2] = four.z, run[k].word[i + 3] = four.w;
        }
    }
}

template <int Group, typename T>
__device__ __forceinline__ void short_store_shared(T *row, const invar_run<T> (&run)[SHORT_RUNS])
{
#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++)
#pragma unroll
        for (int i = 0; i < invar_run<T>::words; i += 4)
            ((uint4 *)(row + short_column<Group>(k)))[i / 4] = make_uint4(
                run[k].word[i], run[k].word[i + 1], run[k].word[i + 2], run[k].word[i + 3]);
}

/* Row of a thread, from slot to slot. */
struct short_row_coord {
    int64_t token;
    int head;

    __device__ __forceinline__ void advance(int tokens, int rest, int heads)
    {
        token += tokens;
        head += rest;
        if (head >= heads) {
            head -= heads;
            token++;
        }
    }
};

/*
 * Runs a row thread: computes dx of its group's row in each slot of its team. With a rotation it
 * writes dy back as the column warps need it.
 */
template <typename T, int Group, bool Turn>
__device__ __forceinline__ void short_take_rows(const short_sums<T> &b,
                                                short_memory<T, Group> &memory, int thread,
                                                int64_t first_token, int rows)
{
    using M = short_memory<T, Group>;
    constexpr int step = SHORT_TEAMS * M::rows;
    int team = thread / Group / M::rows, mine = thread / Group % M::rows;
    int n = (int)b.shape.n, heads = (int)b.shape.heads, first = team * M::rows;
    int tokens = step / heads, rest = step % heads;
    short_row_coord place = {first_token + (first + mine) / heads, (first + mine) % heads};
    auto position_of = [&](int base) {
        return Turn && base + mine < rows ? b.rotation.positions[place.token] : 0;
    };
    int32_t position = position_of(first);
    invar_ring<SHORT_TURNS> turn;

    for (int base = first; base < rows; base += step, turn.advance()) {
        // 0 without a row: all threads take part in the sums
        int width = base + mine < rows ? n : 0;
        int slot = turn.stage * SHORT_TEAMS + team;
        norm_row_coord own = {place.token, (int64_t)place.head * n};
        T *x_row = &memory.x[slot][mine * n], *dy_row = &memory.dy[slot][mine * n];
        invar_run<T> x_run[SHORT_RUNS], dy[SHORT_RUNS];
        float x[SHORT_RUNS][INVAR_RUN];
        short_angles<Group> angles;
        if (Turn)
            angles.load(b.rotation, b.rotation.row_of(position));
        place.advance(tokens, rest, heads);
        position = position_of(base + step);
        invar_barrier_wait(&memory.full[slot], turn.parity);
        short_load_shared<Group>(x_run, x_row, width);
        short_unpack(x, x_run);
        float rstd = short_rstd<Group>([&](int k, int i) { return x[k][i]; }, b.shape);
        short_load_shared<Group>(dy, dy_row, width);
        if (Turn) {
            angles.template turn<true>(dy);
            short_store_shared<Group>(dy_row, dy);
        }
        if (threadIdx.x % Group == 0)
            memory.rstd[slot][mine] = rstd;
        short_arrive(&memory.done[slot]);
        short_gradient<Group>(dy, x, rstd, b.shape, [&](float w[INVAR_RUN], int k) {
            memory.load_weight(w, short_column<Group>(k) / INVAR_RUN);
        });
        if (b.residual.data) {
            short_load<Group>(x_run, row_at(b.residual, own), width);
            short_add(dy, x_run);
        }
        short_store<Group>(row_at(b.dx, own), dy, width);
    }
}

/* Runs a column thread: sums its columns over the rows of the token block. */
template <typename T, int Group>
__device__ __forceinline__ void short_sum_columns(const short_sums<T> &b,
                                                  short_memory<T, Group> &memory, int rows)
{
    using M = short_memory<T, Group>;
    constexpr int threads = 32 * M::column_warps, columns = M::width / threads;
    constexpr int width = columns < INVAR_RUN ? columns : INVAR_RUN, pieces = columns / width;
    constexpr int batch = 32 / columns; // rows whose loads precede the sums
    int n = (int)b.shape.n;
    invar_ring<SHORT_SLOTS> here;
    float sum[pieces][width] = {};
    auto column_of = [&](int piece) { return (piece * threads + (int)threadIdx.x) * width; };
    auto add = [&](int r, auto count) {
#pragma unroll
        for (int p = 0; p < pieces; p++) {
            float x[count.value][width], dy[count.value][width], rstd[count.value];
            if (column_of(p) >= n)
                continue;
#pragma unroll
            for (int j = 0; j < count.value; j++) {
                int at = (r + j) * n + column_of(p);
                load_columns<width>(x[j], &memory.x[here.stage][at]);
                load_columns<width>(dy[j], &memory.dy[here.stage][at]);
                rstd[j] = memory.rstd[here.stage][r + j];
            }
#pragma unroll
            for (int j = 0; j < count.value; j++)
#pragma unroll
                for (int i = 0; i < width; i++)
                    sum[p][i] = invar_fmaf(dy[j][i], x[j][i] * rstd[j], sum[p][i]);
        }
    };

    for (int base = 0; base < rows; base += M::rows, here.advance()) {
        int count = rows - base < M::rows ? rows - base : M::rows, r = 0;
        invar_barrier_wait(&memory.full[here.stage], here.parity);
        invar_barrier_wait(&memory.done[here.stage], here.parity);
        for (; r + batch <= count; r += batch)
            add(r, std::integral_constant<int, batch>{});
#pragma unroll 1
        for (; r < count; r++)
            add(r, std::integral_constant<int, 1>{});
        short_arrive(&memory.free[here.stage]);
    }
#pragma unroll
    for (int p = 0; p < pieces; p++)
#pragma unroll
        for (int i = 0; i < width; i++)
            if (column_of(p) + i < n)
                b.sums.row(blockIdx.x)[column_of(p) + i] = sum[p][i];
}

/*
 * Like short_sum_columns, with shards of heads. A token that begins in one slot and ends in another
 * is summed in both.
 */
template <typename T, int Group>
__device__ __forceinline__ void short_sum_shards(const short_sums<T> &b,
                                                 short_memory<T, Group> &memory, int rows)
{
    using M = short_memory<T, Group>;
    constexpr int MOST = INVAR_LINEAR_MAX_SHARDS, width = M::width / (32 * M::column_warps);
    int n = (int)b.shape.n, heads = (int)b.shape.heads, column = (int)threadIdx.x * width;
    invar_ring<SHORT_SLOTS> here;
    float sum[MOST][width] = {};
    // adds head j of each shard, of the token whose heads begin at row `first` of the slot
    auto add = [&](int first, int count, int j) {
        float x[MOST][width], dy[MOST][width], rstd[MOST];
        bool there[MOST];
#pragma unroll
        for (int v = 0; v < MOST; v++) {
            int head = b.shards.start[v] + j, r = first + head;
            there[v] = head < b.shards.start[v + 1] && r >= 0 && r < count;
            if (there[v]) {
                load_columns<width>(x[v], &memory.x[here.stage][r * n + column]);
                load_columns<width>(dy[v], &memory.dy[here.stage][r * n + column]);
                rstd[v] = memory.rstd[here.stage][r];
            }
        }
#pragma unroll
        for (int v = 0; v < MOST; v++)
#pragma unroll
            for (int i = 0; i < width; i++)
                if (there[v])
                    sum[v][i] = invar_fmaf(dy[v][i], x[v][i] * rstd[v], sum[v][i]);
    };

    for (int base = 0, token = 0; base < rows; base += M::rows, here.advance()) {
        int count = rows - base < M::rows ? rows - base : M::rows;
        invar_barrier_wait(&memory.full[here.stage], here.parity);
        invar_barrier_wait(&memory.done[here.stage], here.parity);
        for (; column < n && token < base + count; token += heads) {
            for (int j = 0; j < b.shards.max_heads; j++)
                add(token - base, count, j);
            if (token + heads > base + count)
                break; // the token continues in the next slot
        }
        short_arrive(&memory.free[here.stage]);
    }
    if (column >= n)
        return;
#pragma unroll
    for (int apart = 1; apart < MOST; apart *= 2)
#pragma unroll
        for (int v = 0; v < MOST; v += 2 * apart)
#pragma unroll
            for (int i = 0; i < width; i++)
                if (apart < b.shards.count)
                    sum[v][i] = sum[v][i] + sum[v + apart][i];
#pragma unroll
    for (int i = 0; i < width; i++)
        if (column + i < n)
            b.sums.row(blockIdx.x)[column + i] = sum[0][i];
}

/* Computes dx and the sums of a token block, by a block of threads. */
template <typename T, int Group, bool Turn>
static __global__ void __launch_bounds__(short_memory<T, Group>::threads, 1)
    short_backward_sums(short_sums<T> b)
{
    using M = short_memory<T, Group>;
    extern __shared__ __align__(128) char shared[];
    M &memory = *(M *)shared;
    int64_t token = 0;
    int tokens, row_thread = (int)threadIdx.x - 32 * M::column_warps;

    invar_grid_begin();
    memory.init_barriers();
    // all threads synchronize here
    invar_find_token_block<M::threads>(&token, &tokens, b.blocks, blockIdx.x);
    int rows = (int)(tokens * b.shape.heads);
    if (rows == 0)
        return;
    if (row_thread < 0) {
        if constexpr (Group <= SHORT_SHARDED_GROUP)
            if (b.shards.count > 1)
                return short_sum_shards(b, memory, rows);
        short_sum_columns(b, memory, rows);
    } else if (row_thread < 32 * M::row_warps) {
        memory.share_weight(b.weight, b.shape.n, row_thread);
        short_take_rows<T, Group, Turn>(b, memory, row_thread, token, rows);
    } else {
        short_fetch_rows<T, Group>(b, memory, token, rows);
    }
}

#endif
