/*
 * backward_generic.cuh - gradients of attention for any head dim, storage, numerics, window and
 * span.
 *
 * One kernel without a workspace. A task is a tile of 32 queries of one head (dq), or of 32 keys of
 * one kv head (dk, dv). It iterates over the other side in tiles of 32, whose probabilities it
 * computes again in shared memory; chains stay in registers. An excluded product never meets a
 * value that is not finite. Order of sums: for dq, spans of keys ascend and blocks of keys descend
 * in them; for dk and dv, spans, query heads and queries ascend.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ATTENTION_BACKWARD_GENERIC_CUH
#define INVAR_KERNELS_CUDA_SM90_ATTENTION_BACKWARD_GENERIC_CUH

#include "kernels-deterministic/cuda/sm90/attention/attention.cuh"
#include "kernels-deterministic/cuda/sm90/hopper.cuh"
#include "kernels-deterministic/cuda/sm90/sfu.cuh"
#include "kernels-deterministic/math/shards.h"

namespace backward
{

/* Arguments of a call, as kernels take them. */
template <typename T> struct problem {
    invar_cuda_attention_params form;
    invar_view<T> dq, dk, dv;
    invar_view<const T> d_o, o, q, k, v;
    invar_view<const float> lse2;
    invar_row_offsets samples;
    invar_cuda_fault *fault;
    int32_t head_shards; /* shards of query heads; 1 if the query heads of each kv head are in one
                            shard */
    int64_t head_atom;
};

/*
 * Returns whether the query heads of every kv head are in one shard: its sums are then those of one
 * shard.
 */
static inline bool whole_groups(const invar_attention_bwd_args *a)
{
    return invar_shard_whole_groups(a->q.shape[1], a->q.shape[1] / a->k.shape[1], a->head_atom,
                                    a->head_shards);
}

namespace generic
{

constexpr int TILE = 32;     /* queries, or keys, of a tile */
constexpr int THREADS = 256; /* 8 warps */
constexpr int RUNS = 8;      /* groups of 4 sums in a thread: 32 rows by up to 256 columns */
constexpr int LEVELS = 3;    /* levels below the root of the tree over 2^3 shards
                                (INVAR_LINEAR_MAX_SHARDS) */

/* Elements after a row in shared memory, so that rows begin in different banks. */
template <typename T> constexpr int PADDING = sizeof(T) == 2 ? 8 : 1;

/* Sums of a tile: 32 rows by the head dim, spread over the 256 threads by place() of the step. */
struct sums {
    float element[RUNS][4];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < RUNS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                element[i][e] = 0.0f;
    }

    /* Adds a finished chain, whose -0 becomes +0, or a sum. */
    __device__ __forceinline__ void add(const sums &chain)
    {
#pragma unroll
        for (int i = 0; i < RUNS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                element[i][e] = element[i][e] + (chain.element[i][e] + 0.0f);
    }
};

__device__ __forceinline__ int warp()
{
    return (int)threadIdx.x / 32;
}

__device__ __forceinline__ int lane()
{
    return (int)threadIdx.x % 32;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Dot-step of one product: f32 under every numerics, bf16 under ieee. */
template <typename T> struct fma_step {
    /* Returns the probability of a score that is given as an exponent of two. */
    static __device__ __forceinline__ float probability(float x)
    {
        return invar_attention_exp2s<sizeof(T) == 2>(x);
    }

    /* Returns the query and the key, within the tile, of score e of this thread. */
    static __device__ __forceinline__ int2 pair(int e)
    {
        return make_int2(4 * warp() + e, lane());
    }

    /* Returns row and column of sum (i, e). */
    static __device__ __forceinline__ int2 place(int i, int e)
    {
        return make_int2(4 * warp() + e, lane() + 32 * i);
    }

    /* score[e] = the chain of the rows of a and b that pair(e) returns. */
    static __device__ void dots(float (&score)[4], const T *a, const T *b, int depth, int pitch)
    {
#pragma unroll
        for (int e = 0; e < 4; e++)
            score[e] = 0.0f;
        for (int d = 0; d < depth; d++) {
            float key = invar_load(b + lane() * pitch + d);
#pragma unroll
            for (int e = 0; e < 4; e++)
                score[e] = invar_fmaf(invar_load(a + (4 * warp() + e) * pitch + d), key, score[e]);
        }
    }

    /*
     * Continues the chains over weights (32, TILE + padding) and values (TILE, pitch), skipping
     * pairs that are not seen(row, k).
     */
    template <typename F>
    static __device__ void sum(sums &to, const T *weights, const T *values, int dim, int pitch,
                               F seen)
    {
        for (int k = 0; k < TILE; k++) {
#pragma unroll
            for (int i = 0; i < RUNS; i++) {
                int column = lane() + 32 * i;
                if (column >= dim)
                    continue;
                float value = invar_load(values + k * pitch + column);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int row = 4 * warp() + e;
                    if (seen(row, k))
                        to.element[i][e] =
                            invar_fmaf(invar_load(weights + row * (TILE + PADDING<T>)+k), value,
                                       to.element[i][e]);
                }
            }
        }
    }
};

/*
 * Dot-step of 16 products of bf16: the tensor core, by warps, which are arranged 2 x 4 on a tile.
 */
struct tensor_step {
    using T = __nv_bfloat16;

    static __device__ __forceinline__ float probability(float x)
    {
        return invar_unit_ex2(x);
    }

    static __device__ __forceinline__ int2 pair(int e)
    {
        return make_int2(16 * (warp() % 2) + lane() / 4 + 8 * (e / 2),
                         8 * (warp() / 2) + 2 * (lane() % 4) + e % 2);
    }

    static __device__ __forceinline__ int2 place(int i, int e)
    {
        return make_int2(16 * (warp() % 2) + lane() / 4 + 8 * (e / 2),
                         8 * (warp() / 2 + 4 * i) + 2 * (lane() % 4) + e % 2);
    }

    /* Loads rows lane / 4 and + 8 of the 16 rows of this warp, columns from k on. */
    static __device__ __forceinline__ void left(uint32_t (&a)[4], const T *rows, int pitch, int k)
    {
        const T *at = rows + (16 * (warp() % 2) + lane() / 4) * pitch + k + 2 * (lane() % 4);

        a[0] = *(const uint32_t *)at;
        a[1] = *(const uint32_t *)(at + 8 * pitch);
        a[2] = *(const uint32_t *)(at + 8);
        a[3] = *(const uint32_t *)(at + 8 * pitch + 8);
    }

    static __device__ void dots(float (&score)[4], const T *a, const T *b, int depth, int pitch)
    {
        const T *right = b + (8 * (warp() / 2) + lane() / 4) * pitch + 2 * (lane() % 4);

#pragma unroll
        for (int e = 0; e < 4; e++)
            score[e] = 0.0f;
        for (int d = 0; d < depth; d += 16) {
            uint32_t x[4],
                y[2] = {*(const uint32_t *)(right + d), *(const uint32_t *)(right + d + 8)};
            left(x, a, pitch, d);
            invar_product_warp(score, x, y);
        }
    }

    template <typename F>
    static __device__ void sum(sums &to, const T *weights, const T *values, int dim, int pitch,
                               F seen)
    {
        int row0 = 16 * (warp() % 2);

        for (int k = 0; k < TILE; k += 16) {
            uint32_t a[4];
            bool whole = true;
            left(a, weights, TILE + PADDING<T>, k);
            for (int i = lane() / 16; i < 16; i += 2)
                whole = whole && seen(row0 + i, k + lane() % 16);
            whole = __all_sync(0xFFFFFFFFu, whole);
#pragma unroll
            for (int i = 0; i < RUNS; i++) {
                int column = 8 * (warp() / 2 + 4 * i);
                if (column >= dim)
                    continue;
                uint32_t b[2];
                load_columns(b, values + (k + lane() % 16) * pitch + column);
                uint32_t special = invar_attention_special(b[0]) | invar_attention_special(b[1]);
                if (whole || !__any_sync(0xFFFFFFFFu, special != 0))
                    invar_product_warp(to.element[i], a, b);
                else
                    row_by_row(to.element[i], a, b,
                               [&](int r, int j) { return seen(row0 + r, k + j); });
            }
        }
    }

  private:
    /* Loads 16 rows of 8 columns as the right side of a product; lane l passes row l % 16. */
    static __device__ __forceinline__ void load_columns(uint32_t (&b)[2], const T *row)
    {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(b[0]), "=r"(b[1])
                     : "r"(invar_shared_address(row))
                     : "memory");
    }

    /* Continues the chains row by row, with +0 instead of values that the row does not see. */
    template <typename F>
    static __device__ void row_by_row(float (&acc)[4], const uint32_t (&a)[4],
                                      const uint32_t (&b)[2], F seen)
    {
        for (int r = 0; r < 16; r++) {
            uint32_t own[2];
            float sum[4] = {acc[0], acc[1], acc[2], acc[3]};
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int j = 8 * half + 2 * (lane() % 4);
                own[half] = b[half] &
                            ((seen(r, j) ? 0x0000FFFFu : 0u) | (seen(r, j + 1) ? 0xFFFF0000u : 0u));
            }
            invar_product_warp(sum, a, own);
            if (lane() / 4 == r % 8) {
                acc[0] = r < 8 ? sum[0] : acc[0];
                acc[1] = r < 8 ? sum[1] : acc[1];
                acc[2] = r < 8 ? acc[2] : sum[2];
                acc[3] = r < 8 ? acc[3] : sum[3];
            }
        }
    }
};

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Shared memory of a block: rows of `pitch` elements, the head dim rounded up to full groups. */
template <typename T> struct scratch {
    T *q, *d_o, *k, *v;  /* (TILE, pitch) */
    T *p, *ds;           /* (TILE, TILE + PADDING) */
    float *lse2, *delta; /* (TILE) */

    static __host__ __device__ int depth(int64_t dim)
    {
        return (int)((dim + 15) / 16 * 16);
    }

    static __host__ __device__ int pitch(int64_t dim)
    {
        return depth(dim) + PADDING<T>;
    }

    static size_t bytes(int64_t dim)
    {
        return sizeof(T) * (4 * TILE * (size_t)pitch(dim) + 2 * TILE * (TILE + PADDING<T>)) +
               2 * TILE * sizeof(float);
    }

    __device__ scratch(unsigned char *memory, int64_t dim)
    {
        int rows = TILE * pitch(dim);

        q = (T *)memory;
        d_o = q + rows;
        k = d_o + rows;
        v = k + rows;
        p = v + rows;
        ds = p + TILE * (TILE + PADDING<T>);
        lse2 = (float *)(ds + TILE * (TILE + PADDING<T>));
        delta = lse2 + TILE;
    }
};

/* State of a task: the rows of its sample, and the tile of it that shared memory holds. */
template <typename T, typename STEP, bool SHARDS> struct worker {
    const problem<T> &call;
    scratch<T> w;
    int64_t row0, length; /* first row and length of the sample */
    int64_t query0, key0; /* positions of the tile */

    __device__ bool sees(int64_t query, int64_t key) const
    {
        return key <= query && query < length && key >= invar_attention_first_key(call.form, query);
    }

    /*
     * Loads rows of a head from a position on, with +0 after the sample's end and after the head
     * dim.
     */
    __device__ void load(T *to, const invar_view<const T> &from, int64_t position, int64_t head)
    {
        int64_t dim = call.form.dim;
        int depth = scratch<T>::depth(dim), pitch = scratch<T>::pitch(dim);

        for (int i = (int)threadIdx.x; i < TILE * depth; i += THREADS) {
            int r = i / depth, d = i % depth;
            bool real = position + r < length && d < dim;
            to[r * pitch + d] = real ? from.row(row0 + position + r)[head * dim + d] : (T)0.0f;
        }
    }

    __device__ void load_queries(int64_t position, int64_t head)
    {
        int64_t dim = call.form.dim, first = head * dim;

        query0 = position;
        __syncthreads();
        load(w.q, call.q, position, head);
        load(w.d_o, call.d_o, position, head);
        for (int r = warp(); r < TILE && position + r < length; r += THREADS / 32) {
            const T *d_o = call.d_o.row(row0 + position + r) + first;
            const T *o = call.o.row(row0 + position + r) + first;
            float delta = invar_reduce_warp(
                dim, [&](int64_t d) { return invar_load(d_o + d) * invar_load(o + d); });
            if (lane() == 0) {
                w.delta[r] = delta;
                w.lse2[r] = call.lse2.row(row0 + position + r)[head];
            }
        }
        __syncthreads();
    }

    __device__ void load_keys(int64_t position, int64_t head)
    {
        key0 = position;
        __syncthreads();
        load(w.k, call.k, position, head);
        load(w.v, call.v, position, head);
        __syncthreads();
    }

    /*
     * Computes p and ds of the tile, rounded. Rows of these weights are keys if BY_KEY, else
     * queries.
     */
    template <bool BY_KEY> __device__ void compute_p_and_ds()
    {
        int depth = scratch<T>::depth(call.form.dim), pitch = scratch<T>::pitch(call.form.dim);
        float s[4], dp[4];

        STEP::dots(s, w.q, w.k, depth, pitch);
        STEP::dots(dp, w.d_o, w.v, depth, pitch);
        __syncthreads();
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int2 at = STEP::pair(e);
            int to = BY_KEY ? at.y * (TILE + PADDING<T>)+at.x : at.x * (TILE + PADDING<T>)+at.y;
            float p = 0.0f, ds = 0.0f;
            if (sees(query0 + at.x, key0 + at.y)) {
                p = STEP::probability(invar_fmaf(s[e] + 0.0f, call.form.c, -w.lse2[at.x]));
                ds = p * ((dp[e] + 0.0f) - w.delta[at.x]);
            }
            invar_store(w.p + to, p);
            invar_store(w.ds + to, ds);
        }
        __syncthreads();
    }

    /* Stores the rows of a head from `position` on, up to the end of the sample. */
    __device__ void store(const invar_view<T> &to, int64_t position, int64_t head, const sums &sum,
                          float factor)
    {
        int64_t dim = call.form.dim;

#pragma unroll
        for (int i = 0; i < RUNS; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int2 at = STEP::place(i, e);
                if (position + at.x < length && at.y < dim)
                    invar_store(to.row(row0 + position + at.x) + head * dim + at.y,
                                sum.element[i][e] * factor);
            }
        }
    }

    /* part = the chain of one block of keys, [first, end). */
    __device__ void query_block(sums &part, int64_t first, int64_t end, int64_t head)
    {
        part.clear();
        for (int64_t key = first; key < end; key += TILE) {
            load_keys(key, head / call.form.group);
            compute_p_and_ds<false>();
            STEP::sum(part, w.ds, w.k, (int)call.form.dim, scratch<T>::pitch(call.form.dim),
                      [&](int q, int k) { return sees(query0 + q, key0 + k); });
        }
    }

    /* Computes dq of the tile of queries at `position`. */
    __device__ void queries(int64_t position, int64_t head)
    {
        const invar_cuda_attention_params &form = call.form;
        int64_t end = position + TILE < length ? position + TILE : length;
        int64_t first = invar_attention_first_key(form, position);
        sums total, span, part;

        load_queries(position, head);
        total.clear();
        for (int64_t span0 = first / form.kv_span * form.kv_span; span0 < end;
             span0 += form.kv_span) {
            int64_t low = first > span0 ? first / form.block * form.block : span0;
            int64_t stop = end - span0 < form.kv_span ? end : span0 + form.kv_span;
            span.clear();
            for (int64_t key = (stop - 1) / form.block * form.block; key >= low;
                 key -= form.block) {
                query_block(part, key, stop - key < form.block ? stop : key + form.block, head);
                span.add(part);
            }
            total.add(span);
        }
        store(call.dq, position, head, total, form.scale);
    }

    /*
     * Computes the chains of the tile's keys over the queries [begin, end) of the heads [head,
     * head_end).
     */
    __device__ void key_heads(sums &dk, sums &dv, int64_t begin, int64_t end, int64_t head,
                              int64_t head_end)
    {
        auto seen = [&](int k, int q) { return sees(query0 + q, key0 + k); };
        int dim = (int)call.form.dim, pitch = scratch<T>::pitch(dim);

        dk.clear();
        dv.clear();
        for (; head < head_end; head++) {
            for (int64_t position = begin; position < end; position += TILE) {
                load_queries(position, head);
                compute_p_and_ds<true>();
                STEP::sum(dk, w.ds, w.q, dim, pitch, seen);
                STEP::sum(dv, w.p, w.d_o, dim, pitch, seen);
            }
        }
    }

    /*
     * Computes the sums of one span of queries over all heads of the group: a chain for each shard
     * of heads, added by a tree.
     */
    __device__ void key_span(sums &dk, sums &dv, int64_t begin, int64_t end, int64_t kv_head)
    {
        int64_t head = kv_head * call.form.group, head_end = head + call.form.group;

        if constexpr (SHARDS)
            fold_shards(dk, dv, begin, end, head, head_end);
        else
            key_heads(dk, dv, begin, end, head, head_end);
    }

    /* Adds the shards by a binary counter; waiting sums lie in local memory. */
    __device__ void fold_shards(sums &dk, sums &dv, int64_t begin, int64_t end, int64_t head,
                                int64_t head_end)
    {
        int64_t heads = call.form.kv_heads * call.form.group;
        sums waiting[LEVELS][2];

        for (int32_t v = 0; v < call.head_shards; v++) {
            int64_t from = invar_shard_start(heads, call.head_atom, call.head_shards, v);
            int64_t to = invar_shard_start(heads, call.head_atom, call.head_shards, v + 1);
            int level = 0;
            key_heads(dk, dv, begin, end, from > head ? from : head, to < head_end ? to : head_end);
            for (; v >> level & 1; level++) {
                waiting[level][0].add(dk);
                waiting[level][1].add(dv);
                dk = waiting[level][0];
                dv = waiting[level][1];
            }
            if (v + 1 < call.head_shards) { // finished chains wait for the next ones
                waiting[level][0].clear();
                waiting[level][0].add(dk);
                waiting[level][1].clear();
                waiting[level][1].add(dv);
            }
        }
    }

    /* Computes dk and dv of the tile of keys at `position`. */
    __device__ void keys(int64_t position, int64_t kv_head)
    {
        const invar_cuda_attention_params &form = call.form;
        int64_t last = position + TILE < length ? position + TILE - 1 : length - 1;
        int64_t end = length - last < form.window ? length : last + form.window;
        sums total_dk, total_dv, dk, dv;

        load_keys(position, kv_head);
        total_dk.clear();
        total_dv.clear();
        for (int64_t span0 = position / form.q_span * form.q_span; span0 < end;
             span0 += form.q_span) {
            key_span(dk, dv, span0 > position ? span0 : position,
                     end - span0 < form.q_span ? end : span0 + form.q_span, kv_head);
            total_dk.add(dk);
            total_dv.add(dv);
        }
        store(call.dk, position, kv_head, total_dk, form.scale);
        store(call.dv, position, kv_head, total_dv, 1.0f);
    }
};

/* Checks all row offsets and records faults, by one block. */
template <typename T> __device__ void check_segments(const problem<T> &call)
{
    for (int64_t s = threadIdx.x; s < call.samples.count; s += blockDim.x)
        (void)invar_attention_segment(call.fault, INVAR_OP_ATTENTION_BWD, call.samples, call.q.rows,
                                      s);
}

/* Does nothing if `gate` is given and holds 0. */
template <typename T, typename STEP, bool SHARDS>
__global__ void __launch_bounds__(THREADS)
    attention_backward_generic(const __grid_constant__ problem<T> call, const int32_t *gate)
{
    extern __shared__ __align__(16) unsigned char generic_memory[];
    int64_t heads = call.form.kv_heads * call.form.group;
    int64_t slots = invar_attention_slots(call.q.rows, call.samples.count, 1, TILE);
    int64_t query_tasks = slots * heads, tasks = query_tasks + slots * call.form.kv_heads;

    if (gate && *gate == 0)
        return;
    if (blockIdx.x == 0)
        check_segments(call);
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        bool is_query = task < query_tasks;
        int64_t of = is_query ? heads : call.form.kv_heads,
                n = is_query ? task : task - query_tasks;
        int64_t first, sample = invar_attention_slot(&first, call.samples.offsets,
                                                     call.samples.count, 1, TILE, n / of);
        int64_t begin = call.samples.offsets[sample], end = call.samples.offsets[sample + 1];
        if (begin < 0 || end > call.q.rows || first < 0 || first >= end - begin)
            continue;
        worker<T, STEP, SHARDS> work = {
            call, {generic_memory, call.form.dim}, begin, end - begin, 0, 0};
        if (is_query)
            work.queries(first, n % of);
        else
            work.keys(first, n % of);
    }
}

template <typename T, typename STEP>
static invar_status launch_backward(const invar_device *dev, const problem<T> &call,
                                    const int32_t *gate)
{
    int64_t slots = invar_attention_slots(call.q.rows, call.samples.count, 1, TILE);
    int64_t tasks = slots * call.form.kv_heads * (call.form.group + 1);
    int64_t most = (int64_t)invar_cuda_of(dev)->multiprocessors * 4;

    auto kernel = call.head_shards > 1 ? attention_backward_generic<T, STEP, true>
                                       : attention_backward_generic<T, STEP, false>;
    return invar_launch(dev, INVAR_OP_ATTENTION_BWD, kernel,
                        (unsigned)(tasks < most ? tasks : most), THREADS,
                        scratch<T>::bytes(call.form.dim))(call, gate);
}

} // namespace generic
} // namespace backward

#endif
