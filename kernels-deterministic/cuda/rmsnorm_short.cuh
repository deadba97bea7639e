/*
 * rmsnorm_short.cuh - norms of rows of up to 1024 values, which lie in registers.
 *
 * A group of 4, 8, 16 or 32 threads has a row: thread t the runs at columns 8 (t + Group k), k < 4.
 * So the threads of a warp are always busy with 32 values each, and what a row costs beside them,
 * its sums over threads and its divisions, is shared by all rows of the warp.
 *
 * With the weight's gradient a block of threads has a block of tokens. Row warps fetch rows into a
 * ring in shared memory, some ahead, and compute dx; column warps follow them and sum dweight, a
 * thread its columns. A round is a row of every group; each takes a slot of the ring.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_RMSNORM_SHORT_CUH
#define INVAR_KERNELS_CUDA_RMSNORM_SHORT_CUH

#include "kernels-deterministic/cuda/hopper.cuh"
#include "kernels-deterministic/cuda/rmsnorm.cuh"
#include "kernels-deterministic/cuda/token_blocks.cuh"

#define SHORT_RUNS 4 // of a thread
#define SHORT_VALUES (SHORT_RUNS * INVAR_RUN)
#define SHORT_MOST (32 * SHORT_VALUES) // values of a row
#define SHORT_THREADS 128
#define SHORT_HEADS                                                                                \
    (1 << 20) // of a token at most: rows of a block of tokens are counted in 32 bits

/*
 * The column of the thread's run k. Of a group of four, every other row has its runs in another
 * order, because two such rows lie on the same banks; no sum below notices.
 */
template <int Group> __device__ __forceinline__ int short_column(int k)
{
    int other = Group == 4 ? (int)threadIdx.x / Group % 2 : 0;

    return ((int)threadIdx.x % Group + (k % 2 ^ other) * Group + k / 2 * 2 * Group) * INVAR_RUN;
}

/*
 * REDUCE over the values value(k, i) of a row; the whole warp calls. The lanes of 256 columns are
 * summed in ascending order, those of fewer columns folded by halves: k with k + 2 first. Lanes
 * start at +0 in the contract; it is enough to add it last, because all that it changes is the sign
 * of a zero.
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

template <typename T, int Group>
__device__ __forceinline__ float short_rstd(const invar_run<T> (&x)[SHORT_RUNS],
                                            const norm_shape &shape)
{
    return inverse_rms(short_sum<Group>([&](int k, int i) { return x[k].get(i) * x[k].get(i); }),
                       shape);
}

/* The runs of a row in global memory; zeros behind its end. */
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

/* Makes the compiler forget what it knows of the values: it then unpacks them again when asked. */
template <typename T> __device__ __forceinline__ void short_forget(invar_run<T> (&run)[SHORT_RUNS])
{
#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++)
#pragma unroll
        for (int i = 0; i < invar_run<T>::words; i++)
            asm volatile("" : "+r"(run[k].word[i]));
}

/* ---- rotation -------------------------------------------------------------------------------- */

/* Of rows that are as wide as their group: the runs k and k + 2 of a thread are pairs. */
struct short_rotation {
    invar_view<float> cosine, sine;
    const int32_t *positions;
    int64_t heads; /* of a token; norm_shape has 1 where the rows of all tokens have no gaps */
    float sign;    /* of the angle: +1 forward, -1 backward */
    invar_op op;
    invar_cuda_fault *fault;

    /* The position of a row's token; 0 where there is no such row. */
    __device__ __forceinline__ int64_t position(int64_t row, bool live) const
    {
        if (!live)
            return 0;
        return invar_guard(fault, op, positions[invar_divide(row, heads)], cosine.rows);
    }
};

template <int Group> struct short_angles {
    invar_run<float> cosine[SHORT_RUNS / 2], sine[SHORT_RUNS / 2];

    __device__ __forceinline__ void load(const short_rotation &r, int64_t position)
    {
#pragma unroll
        for (int k = 0; k < SHORT_RUNS / 2; k++) {
            cosine[k].load_whole(r.cosine.row(position) + short_column<Group>(k));
            sine[k].load_whole(r.sine.row(position) + short_column<Group>(k));
        }
    }

    template <typename T>
    __device__ __forceinline__ void turn(invar_run<T> (&run)[SHORT_RUNS], float sign) const
    {
#pragma unroll
        for (int k = 0; k < SHORT_RUNS / 2; k++) {
            float y1[INVAR_RUN], y2[INVAR_RUN];
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++) {
                float x1 = run[k].get(i), x2 = run[k + 2].get(i);
                float c = cosine[k].get(i), s = sign * sine[k].get(i);
                y1[i] = invar_fmaf(x1, c, -(x2 * s));
                y2[i] = invar_fmaf(x2, c, x1 * s);
            }
            run[k].set(y1);
            run[k + 2].set(y2);
        }
    }
};

/* ---- forward --------------------------------------------------------------------------------- */

/* y may be x: a row is read before it is written. W: the weight's type. */
template <typename T, typename W, int Group, bool Turn>
static __global__ void __launch_bounds__(SHORT_THREADS, sizeof(W) == 4 ? 5
                                                        : Turn         ? 6
                                                                       : 8)
    short_forward(invar_view<T> y, invar_view<T> x, const W *weight, norm_shape shape,
                  short_rotation rotation)
{
    int64_t row = ((int64_t)blockIdx.x * SHORT_THREADS + threadIdx.x) / Group;
    int64_t n = row < shape.rows ? shape.n : 0; // all threads take part in the sums
    int64_t position = 0;
    invar_run<T> run[SHORT_RUNS];
    invar_run<W> w[SHORT_RUNS];

    invar_grid_begin();
    if (Turn)
        position = rotation.position(row, n > 0);
    short_load<Group>(run, row_of(x, shape, row), n);
    short_angles<Group> angles;
    if (Turn)
        angles.load(rotation, position);
    else
        short_load<Group>(w, weight, n);
    float rstd = short_rstd<T, Group>(run, shape);
    if (Turn) { // registers are scarce
        short_forget(run);
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
        angles.turn(run, rotation.sign);
    short_store<Group>(row_of(y, shape, row), run, n);
}

/* ---- backward -------------------------------------------------------------------------------- */

/*
 * dx of a row, into dy; load_weight(w, k) has the weights of run k. xhat is made twice: registers
 * are scarcer than instructions.
 */
template <int Group, typename T, typename F>
__device__ __forceinline__ void short_gradient(invar_run<T> (&dy)[SHORT_RUNS],
                                               invar_run<T> (&x)[SHORT_RUNS], float rstd,
                                               const norm_shape &shape, F load_weight)
{
    float g[SHORT_RUNS][INVAR_RUN];

#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++) {
        float w[INVAR_RUN];
        load_weight(w, k);
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            g[k][i] = dy[k].get(i) * w[i];
    }
    float sum = short_sum<Group>([&](int k, int i) { return g[k][i] * (x[k].get(i) * rstd); });
    float mean = sum / (float)shape.n;
    short_forget(x);
#pragma unroll
    for (int k = 0; k < SHORT_RUNS; k++) {
        float out[INVAR_RUN];
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            out[i] = rstd * invar_fmaf(-(x[k].get(i) * rstd), mean, g[k][i]);
        dy[k].set(out);
    }
}

/* Without the weight's gradient, or a rotation. */
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
    norm_place place = place_of(shape, row);
    short_load<Group>(x_run, row_at(x, place), n);
    short_load<Group>(dy_run, row_at(dy, place), n);
    short_load<Group>(w_run, weight, n);
    float rstd = short_rstd<T, Group>(x_run, shape);
    short_gradient<Group>(dy_run, x_run, rstd, shape, [&](float w[INVAR_RUN], int k) {
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            w[i] = w_run[k].get(i);
    });
    short_store<Group>(row_at(dx, place), dy_run, n);
}

/* ---- backward, with the weight's gradient ---------------------------------------------------- */

#define SHORT_COLUMN_WARPS 4
#define SHORT_SLOTS 3 // of the ring: one is fetched, one at the row warps, one at the column warps

template <typename T> struct short_sums {
    invar_view<T> dx, dy, x;
    invar_view<T> residual; /* data NULL: none */
    invar_mixed weight;
    norm_shape shape;
    int64_t heads; /* of a token; shape.heads is 1 where the rows of all tokens have no gaps */
    short_rotation rotation;
    invar_token_blocks blocks;
    float *sums; /* (blocks, n) */
};

/* Shared memory; rows are padded to the width of a group. */
template <typename T, int Group> struct short_memory {
    static constexpr int row_warps = sizeof(T) == 2 ? 16 : 8;
    static constexpr int threads = 32 * (row_warps + SHORT_COLUMN_WARPS);
    static constexpr int rows = row_warps * 32 / Group; /* of a round */
    static constexpr int width = Group * SHORT_VALUES;
    static constexpr int runs = Group * SHORT_RUNS;

    float4 weight[2][runs]; /* the halves of runs, so that threads do not meet in a bank */
    float rstd[SHORT_SLOTS][rows];
    uint64_t done[SHORT_SLOTS], free[SHORT_SLOTS]; /* the row warps have, the column warps have */
    alignas(16) T x[SHORT_SLOTS][rows][width], dy[SHORT_SLOTS][rows][width];

    __device__ __forceinline__ void load_weight(float w[INVAR_RUN], int run) const
    {
        float4 low = weight[0][run], high = weight[1][run];

        w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w;
        w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
    }

    /* By all threads, which then wait for each other. */
    __device__ __forceinline__ void init_barriers()
    {
        if (threadIdx.x < SHORT_SLOTS) {
            invar_barrier_init(&done[threadIdx.x], row_warps);
            invar_barrier_init(&free[threadIdx.x], SHORT_COLUMN_WARPS);
        }
        invar_barrier_init_done();
    }

    /* By all threads; zeros behind the end of the row. */
    __device__ __forceinline__ void share_weight(const invar_mixed &from, int64_t n)
    {
        for (int run = (int)threadIdx.x; run < runs; run += threads) {
            float w[INVAR_RUN];
            from.load<INVAR_RUN, true>(w, 0, run * INVAR_RUN, n);
            weight[0][run] = make_float4(w[0], w[1], w[2], w[3]);
            weight[1][run] = make_float4(w[4], w[5], w[6], w[7]);
        }
    }
};

/* This warp has done its part of a slot. */
__device__ __forceinline__ void short_arrive(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        invar_barrier_arrive(barrier);
}

/* A slot of the ring, and the parity of its phase. */
using short_ring = invar_ring<SHORT_SLOTS>;

/* Copies of this thread that run while it goes on, in groups. */
__device__ __forceinline__ void short_copy_16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(invar_shared_address(to)),
                 "l"(from)
                 : "memory");
}

__device__ __forceinline__ void short_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all but the last `Pending` groups have landed. */
template <int Pending> __device__ __forceinline__ void short_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

template <typename T> __device__ __forceinline__ void short_copy_run(T *to, const T *from)
{
#pragma unroll
    for (int byte = 0; byte < INVAR_RUN * (int)sizeof(T); byte += 16)
        short_copy_16((char *)to + byte, (const char *)from + byte);
}

template <typename T>
__device__ __forceinline__ void short_load_shared(invar_run<T> *run, const T *p)
{
#pragma unroll
    for (int i = 0; i < invar_run<T>::words; i += 4) {
        uint4 four = ((const uint4 *)p)[i / 4];
        run->word[i] = four.x, run->word[i + 1] = four.y;
        run->word[i + 2] = four.z, run->word[i + 3] = four.w;
    }
}

template <typename T>
__device__ __forceinline__ void short_store_shared(T *p, const invar_run<T> &run)
{
#pragma unroll
    for (int i = 0; i < invar_run<T>::words; i += 4)
        ((uint4 *)p)[i / 4] =
            make_uint4(run.word[i], run.word[i + 1], run.word[i + 2], run.word[i + 3]);
}

/* run = round(run + other) */
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

/*
 * A row thread: dx of its group's row of each round. It reads of the ring what it fetched itself;
 * with a rotation it puts dy back as the column warps need it.
 */
template <typename T, int Group, bool Turn>
__device__ __forceinline__ void
short_take_rows(const short_sums<T> &b, short_memory<T, Group> &memory, int64_t first_row, int rows)
{
    using M = short_memory<T, Group>;
    int mine = ((int)threadIdx.x - 32 * SHORT_COLUMN_WARPS) / Group, n = (int)b.shape.n;
    auto row_in = [&](int base) { return first_row + base + mine; };
    auto width_at = [&](int base) { return base + mine < rows ? n : 0; };
    auto fetch = [&](int base, int slot) {
        norm_place place = place_of(b.shape, row_in(base));
        const T *x = row_at(b.x, place), *dy = row_at(b.dy, place);
#pragma unroll
        for (int k = 0; k < SHORT_RUNS; k++) {
            int column = short_column<Group>(k);
            if (column < width_at(base)) {
                short_copy_run(&memory.x[slot][mine][column], x + column);
                short_copy_run(&memory.dy[slot][mine][column], dy + column);
            }
        }
        short_copy_commit();
    };
    auto load = [&](invar_run<T>(&run)[SHORT_RUNS], const T *row, int width) {
#pragma unroll
        for (int k = 0; k < SHORT_RUNS; k++) {
            run[k].clear();
            if (short_column<Group>(k) < width)
                short_load_shared(&run[k], row + short_column<Group>(k));
        }
    };
    short_ring here, next;
    int64_t position = Turn ? b.rotation.position(row_in(0), width_at(0) > 0) : 0;

    fetch(0, 0);
    next.advance();
    for (int base = 0; base < rows; base += M::rows) {
        int width = width_at(base); // 0: no row, but all threads take part in the sums
        invar_run<T> x[SHORT_RUNS], dy[SHORT_RUNS];
        short_angles<Group> angles;
        invar_barrier_wait(&memory.free[next.stage], next.parity ^ 1); // passes while it is fresh
        fetch(base + M::rows, next.stage);
        if (Turn) {
            angles.load(b.rotation, position);
            position = b.rotation.position(row_in(base + M::rows), width_at(base + M::rows) > 0);
        }
        short_copy_wait<1>();
        load(x, memory.x[here.stage][mine], width);
        float rstd = short_rstd<T, Group>(x, b.shape);
        load(dy, memory.dy[here.stage][mine], width);
        if (Turn) {
            angles.turn(dy, b.rotation.sign);
#pragma unroll
            for (int k = 0; k < SHORT_RUNS; k++)
                short_store_shared(&memory.dy[here.stage][mine][short_column<Group>(k)], dy[k]);
        }
        if (threadIdx.x % Group == 0)
            memory.rstd[here.stage][mine] = rstd;
        short_arrive(&memory.done[here.stage]);
        short_gradient<Group>(dy, x, rstd, b.shape, [&](float w[INVAR_RUN], int k) {
            memory.load_weight(w, short_column<Group>(k) / INVAR_RUN);
        });
        norm_place place = place_of(b.shape, row_in(base));
        if (b.residual.data) {
            short_load<Group>(x, row_at(b.residual, place), width);
            short_add(dy, x);
        }
        short_store<Group>(row_at(b.dx, place), dy, width);
        here = next;
        next.advance();
    }
}

/* A column thread: the sums of its columns over the rows of the block of tokens. */
template <typename T, int Group>
__device__ __forceinline__ void short_sum_columns(const short_sums<T> &b,
                                                  short_memory<T, Group> &memory, int rows)
{
    using M = short_memory<T, Group>;
    constexpr int width = M::width / (32 * SHORT_COLUMN_WARPS), batch = width > 2 ? 4 : 16;
    int column = (int)threadIdx.x * width;
    short_ring here;
    float sum[width] = {};
    // `Count` rows from r on: their loads first
    auto add = [&](int r, auto count) {
        float x[count.value][width], dy[count.value][width], rstd[count.value];
#pragma unroll
        for (int j = 0; j < count.value; j++) {
            load_columns<width>(x[j], &memory.x[here.stage][r + j][column]);
            load_columns<width>(dy[j], &memory.dy[here.stage][r + j][column]);
            rstd[j] = memory.rstd[here.stage][r + j];
        }
#pragma unroll
        for (int j = 0; j < count.value; j++)
#pragma unroll
            for (int i = 0; i < width; i++)
                sum[i] = invar_fmaf(dy[j][i], x[j][i] * rstd[j], sum[i]);
    };

    for (int base = 0; base < rows; base += M::rows) {
        int count = rows - base < M::rows ? rows - base : M::rows, r = 0;
        invar_barrier_wait(&memory.done[here.stage], here.parity);
        for (; r + batch <= count; r += batch)
            add(r, std::integral_constant<int, batch>{});
        for (; r < count; r++)
            add(r, std::integral_constant<int, 1>{});
        short_arrive(&memory.free[here.stage]);
        here.advance();
    }
#pragma unroll
    for (int i = 0; i < width; i++)
        if (column + i < b.shape.n)
            b.sums[blockIdx.x * b.shape.n + column + i] = sum[i];
}

/* A block of threads for a block of tokens. */
template <typename T, int Group, bool Turn>
static __global__ void __launch_bounds__(short_memory<T, Group>::threads, 1)
    short_backward_sums(short_sums<T> b)
{
    extern __shared__ __align__(128) char shared[];
    short_memory<T, Group> &memory = *(short_memory<T, Group> *)shared;
    int64_t token = 0;
    int tokens;

    invar_grid_begin();
    memory.init_barriers();
    memory.share_weight(b.weight, b.shape.n);
    // and all are in step
    (void)invar_find_token_block<short_memory<T, Group>::threads>(&token, &tokens, b.blocks,
                                                                  blockIdx.x);
    int64_t first_row = token * b.heads;
    int rows = (int)(tokens * b.heads);
    if (rows == 0)
        return;
    if (threadIdx.x < 32 * SHORT_COLUMN_WARPS)
        short_sum_columns<T, Group>(b, memory, rows);
    else
        short_take_rows<T, Group, Turn>(b, memory, first_row, rows);
}

#endif
