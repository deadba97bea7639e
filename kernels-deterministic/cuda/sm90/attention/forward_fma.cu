/*
 * forward_fma.cu - forward of attention by fused multiply-adds: f32, and bf16 under ieee; any
 * shape.
 *
 * 128 threads have 16 rows: query heads that share a kv head, positions in order. In the scores, a
 * thread has one key and all rows or half of them; in the softmax, a warp has 4 rows; in the sums,
 * a thread has one or two columns and some of the rows. Products that a row does not see are
 * skipped, so nothing can reach it.
 *
 * Numerics contract (rev 3): docs/arithmetic.md, section 8.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <type_traits>

#include "kernels-deterministic/cuda/sm90/attention/forward.cuh"

namespace
{

constexpr int threads = 128;
constexpr int tile_rows = 16;
constexpr int warp_rows = 4; // rows of a warp in the softmax

/* Shared memory for head dims up to DIM. */
template <int DIM> struct layout {
    static constexpr int block = DIM > 128 ? 64 : 128;
    static constexpr int score_rows = tile_rows * block / threads; // rows of a thread in the scores
    // columns that neighboring threads have
    static constexpr int columns = DIM < 128 ? DIM : 128;
    // columns of a thread in the sums
    static constexpr int thread_columns = DIM / columns;
    static constexpr int sum_rows = tile_rows * columns / threads;

    float q[tile_rows][DIM + 4];
    float x[block][DIM + 1];          // keys, then values
    float s[tile_rows][block + 4];    // scores, then p
    float p[block][tile_rows + 4];    // p, rounded to storage
    int64_t k_at[block], v_at[block]; // offset of each key; -1 if no row sees it
    uint16_t seen[block];             // bit mask of the rows that see each key
    // factors of earlier sums and of the span that ends, and the divisor of each row
    float alpha[tile_rows], beta[tile_rows], l[tile_rows];
    bool started[tile_rows], sees[tile_rows];
    int position[tile_rows], first[tile_rows]; // first: first key that the row sees
};

/* Softmax of a warp's four rows. Thread t holds lane t % 8 of row t / 8 of them. */
struct softmax_state {
    float m[warp_rows], total_m[warp_rows], total_l[warp_rows];
    bool started[warp_rows];
    float l;
};

template <typename T, int DIM> struct tile_run {
    using memory_type = layout<DIM>;
    static constexpr int block = memory_type::block;
    static constexpr int sum_rows = memory_type::sum_rows;
    static constexpr int thread_columns = memory_type::thread_columns;

    const invar_attention_problem &p;
    const invar_attention_tile &t;
    memory_type &memory;
    int first, end; // no row sees a key outside of [first, end)
    softmax_state state;
    float o[sum_rows][thread_columns], total[sum_rows][thread_columns];

    __device__ __forceinline__ int warp() const
    {
        return (int)threadIdx.x / 32;
    }

    __device__ __forceinline__ int lane() const
    {
        return (int)threadIdx.x % 32;
    }

    /* Returns the first row of this thread's sums; sum_column() returns their first column. */
    __device__ __forceinline__ int sum_row() const
    {
        return (int)threadIdx.x / memory_type::columns * sum_rows;
    }

    __device__ __forceinline__ int sum_column() const
    {
        return (int)threadIdx.x % memory_type::columns;
    }

    /* ---- loads ---- */

    __device__ __forceinline__ void load_queries()
    {
        int own = (int)threadIdx.x;
        if (own < tile_rows) {
            memory.position[own] = invar_attention_position(p, t, min(own, t.count - 1));
            memory.first[own] = invar_attention_first(p, memory.position[own]);
        }
        for (int i = (int)threadIdx.x; i < tile_rows * DIM; i += threads) {
            int row = i / DIM, column = i % DIM;
            float x = 0.0f;
            if (row < t.count && column < p.form.dim) {
                int64_t at = t.sequence.row0 + invar_attention_position(p, t, row);
                x = invar_load((const T *)p.q + at * p.q_stride +
                               invar_attention_head(p, t, row) * p.form.dim + column);
            }
            memory.q[row][column] = x;
        }
    }

    /* Finds the offsets of the keys of a block, and which rows see them. */
    __device__ __forceinline__ void locate(int key0)
    {
        for (int j = (int)threadIdx.x; j < block; j += threads) {
            int key = key0 + j;
            int64_t k_at = -1, v_at = -1;
            unsigned seen = 0;
            if (key >= first && key < end)
                invar_attention_key(&k_at, &v_at, p, t, key);
            for (int row = 0; row < t.count; row++) {
                bool visible = key <= memory.position[row] && key >= memory.first[row];
                seen |= (unsigned)visible << row;
            }
            memory.k_at[j] = k_at;
            memory.v_at[j] = v_at;
            memory.seen[j] = (uint16_t)seen;
        }
        __syncthreads();
    }

    /* Loads a block of keys or values, with +0 if no row sees the key, and after the head dim. */
    __device__ __forceinline__ void load_block(const void *from, const int64_t *at)
    {
        for (int i = (int)threadIdx.x; i < block * DIM; i += threads) {
            int row = i / DIM, column = i % DIM;
            float x = 0.0f;
            if (at[row] >= 0 && column < p.form.dim)
                x = invar_load((const T *)from + at[row] + column);
            memory.x[row][column] = x;
        }
        __syncthreads();
    }

    /* ---- one block ---- */

    __device__ __forceinline__ void score()
    {
        constexpr int rows = memory_type::score_rows;
        int key = (int)threadIdx.x % block, row0 = (int)threadIdx.x / block * rows;
        float acc[rows];

#pragma unroll
        for (int r = 0; r < rows; r++)
            acc[r] = 0.0f;
        for (int d = 0; d < p.form.dim; d += 4) {
            float k[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                k[j] = memory.x[key][d + j];
#pragma unroll
            for (int r = 0; r < rows; r++) {
                float4 q = *(const float4 *)&memory.q[row0 + r][d];
                acc[r] = invar_fmaf(q.x, k[0], acc[r]);
                acc[r] = invar_fmaf(q.y, k[1], acc[r]);
                acc[r] = invar_fmaf(q.z, k[2], acc[r]);
                acc[r] = invar_fmaf(q.w, k[3], acc[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < rows; r++) {
            bool visible = memory.seen[key] >> (row0 + r) & 1;
            memory.s[row0 + r][key] = visible ? acc[r] + 0.0f : -INFINITY;
        }
        __syncthreads();
    }

    /* Turns the scores of one of the warp's rows into p. Returns the factor of earlier sums. */
    __device__ __forceinline__ float row_to_probs(int index)
    {
        int row = warp() * warp_rows + index;
        constexpr bool narrow = !std::is_same<T, float>::value;
        float *s = memory.s[row], top = -INFINITY;
        bool any = false;

        for (int j = lane(); j < block; j += 32) {
            top = fmaxf(top, s[j]);
            any = any || (memory.seen[j] >> row & 1);
        }
        for (int half = 16; half > 0; half /= 2)
            top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, half));
        any = __any_sync(0xFFFFFFFFu, any);

        float m = any ? invar_softmax_reference(state.m[index], top * p.form.c) : state.m[index];
        float base = invar_attention_base(m, any);
        float alpha = any ? invar_attention_factor(state.m[index], m) : 1.0f;
        state.m[index] = m;
        for (int j = lane(); j < block; j += 32) {
            float x =
                narrow ? invar_exp2d_bf16(s[j], p.form.c, base) : invar_exp2d(s[j], p.form.c, base);
            s[j] = x;
            memory.p[j][row] = narrow ? invar_round_bf16(x) : x;
        }
        return alpha;
    }

    __device__ __forceinline__ void scores_to_probs()
    {
        int own = lane() / INVAR_ATTENTION_LANES;

#pragma unroll
        for (int index = 0; index < warp_rows; index++) {
            float alpha = row_to_probs(index);
            if (lane() == 0)
                memory.alpha[warp() * warp_rows + index] = alpha;
            if (own == index)
                state.l = state.l * alpha;
        }
        __syncwarp();
        for (int j = lane() % INVAR_ATTENTION_LANES; j < block; j += INVAR_ATTENTION_LANES)
            state.l = state.l + memory.s[warp() * warp_rows + own][j];
        __syncthreads();
    }

    __device__ __forceinline__ void sum_values(int keys)
    {
        int row0 = sum_row(), column = sum_column();

#pragma unroll
        for (int r = 0; r < sum_rows; r++) {
            float alpha = memory.alpha[row0 + r];
#pragma unroll
            for (int c = 0; c < thread_columns; c++)
                o[r][c] = o[r][c] * alpha;
        }
        for (int j = 0; j < keys; j++) {
            unsigned seen = (unsigned)memory.seen[j] >> row0;
            float v[thread_columns];
#pragma unroll
            for (int c = 0; c < thread_columns; c++)
                v[c] = memory.x[j][column + c * memory_type::columns];
#pragma unroll
            for (int r = 0; r < sum_rows; r++) {
                float weight = memory.p[j][row0 + r];
                bool visible = seen >> r & 1;
#pragma unroll
                for (int c = 0; c < thread_columns; c++)
                    o[r][c] = visible ? invar_fmaf(weight, v[c], o[r][c]) : o[r][c];
            }
        }
        __syncthreads();
    }

    /* ---- spans ---- */

    /* Folds the lanes of the warp's four rows by 4, 2, 1; thread 8 i gets the sum of row i. */
    __device__ __forceinline__ float fold()
    {
        float l = state.l;

        for (int half = INVAR_ATTENTION_LANES / 2; half > 0; half /= 2)
            l = l + __shfl_down_sync(0xFFFFFFFFu, l, half);
        return l;
    }

    __device__ __forceinline__ void close_span(int64_t span0)
    {
        float folded = fold();

#pragma unroll
        for (int index = 0; index < warp_rows; index++) {
            int row = warp() * warp_rows + index;
            float l = __shfl_sync(0xFFFFFFFFu, folded, INVAR_ATTENTION_LANES * index);
            bool sees = memory.position[row] >= span0 && memory.first[row] < span0 + p.form.kv_span;
            bool started = state.started[index];
            float m = fmaxf(state.total_m[index], state.m[index]);
            float alpha = invar_attention_factor(state.total_m[index], m);
            float beta = invar_attention_factor(state.m[index], m);

            if (lane() == 0) {
                memory.alpha[row] = alpha;
                memory.beta[row] = beta;
                memory.started[row] = started;
                memory.sees[row] = sees;
            }
            if (sees) {
                state.total_l[index] =
                    started ? invar_fmaf(l, beta, state.total_l[index] * alpha) : l;
                state.total_m[index] = started ? m : state.m[index];
                state.started[index] = true;
            }
            state.m[index] = -INFINITY;
        }
        state.l = 0.0f;
        __syncthreads();
#pragma unroll
        for (int r = 0; r < sum_rows; r++) {
            int row = sum_row() + r;
#pragma unroll
            for (int c = 0; c < thread_columns; c++) {
                float merged = memory.started[row] ? invar_fmaf(o[r][c], memory.beta[row],
                                                                total[r][c] * memory.alpha[row])
                                                   : o[r][c];
                total[r][c] = memory.sees[row] ? merged : total[r][c];
                o[r][c] = 0.0f;
            }
        }
        __syncthreads();
    }

    /* ---- the tile ---- */

    __device__ __forceinline__ void store()
    {
#pragma unroll
        for (int index = 0; index < warp_rows; index++) {
            int row = warp() * warp_rows + index;
            float l = state.total_l[index];
            if (lane() != 0 || row >= t.count)
                continue;
            memory.l[row] = l;
            if (p.lse2) {
                int64_t at = t.sequence.row0 + invar_attention_position(p, t, row);
                p.lse2[at * p.lse2_stride + invar_attention_head(p, t, row)] =
                    invar_attention_lse2(l, state.total_m[index]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < sum_rows; r++) {
            int row = sum_row() + r;
            if (row >= t.count)
                continue;
            int64_t at = t.sequence.row0 + invar_attention_position(p, t, row);
            T *to = (T *)p.o + at * p.o_stride + invar_attention_head(p, t, row) * p.form.dim;
#pragma unroll
            for (int c = 0; c < thread_columns; c++) {
                int column = sum_column() + c * memory_type::columns;
                if (column < p.form.dim)
                    invar_store(to + column, total[r][c] / memory.l[row] + 0.0f);
            }
        }
    }

    __device__ __forceinline__ void run()
    {
        load_queries();
        __syncthreads();
        state.l = 0.0f;
#pragma unroll
        for (int index = 0; index < warp_rows; index++) {
            state.m[index] = state.total_m[index] = -INFINITY;
            state.started[index] = false;
        }
#pragma unroll
        for (int r = 0; r < sum_rows; r++) {
#pragma unroll
            for (int c = 0; c < thread_columns; c++)
                o[r][c] = 0.0f;
        }
        for (int key0 = first / block * block; key0 < end; key0 += block) {
            int64_t span0 = key0 / p.form.kv_span * p.form.kv_span;

            locate(key0);
            load_block(p.k, memory.k_at);
            score();
            load_block(p.v, memory.v_at);
            scores_to_probs();
            sum_values(min(end - key0, block));
            if (key0 + block == span0 + p.form.kv_span || key0 + block >= end)
                close_span(span0);
        }
        store();
    }
};

template <typename T, int DIM>
__global__ void __launch_bounds__(threads)
    forward_fma(const __grid_constant__ invar_attention_problem p)
{
    extern __shared__ __align__(16) char shared[];
    invar_attention_tile t;

    if (!invar_attention_tile_of(&t, p, tile_rows, blockIdx.x))
        return;
    tile_run<T, DIM> tile = {p, t, *(layout<DIM> *)shared,
                             invar_attention_first(p, invar_attention_position(p, t, 0)),
                             invar_attention_position(p, t, t.count - 1) + 1};
    tile.run();
}

/* ---- launch ---------------------------------------------------------------------------------- */

template <typename T, int DIM>
invar_status launch(const invar_device *dev, const invar_attention_problem *p)
{
    return invar_launch(dev, p->op, forward_fma<T, DIM>,
                        dim3((unsigned)invar_attention_tiles(p, tile_rows)), dim3(threads),
                        sizeof(layout<DIM>))(*p);
}

} // namespace

invar_status invar_attention_fma(const invar_device *dev, const invar_attention_problem *p)
{
    return invar_by_storage(p->dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        if (p->form.dim <= 32)
            return launch<T, 32>(dev, p);
        if (p->form.dim <= 128)
            return launch<T, 128>(dev, p);
        return launch<T, 256>(dev, p);
    });
}
