/*
 * forward_decode.cu - forward of attention for few rows per sequence (decoding): bf16, sm90.
 *
 * The kernel is limited by memory. Persistent blocks take jobs: tiles of up to 8 or 16 rows (query
 * heads that share a kv head, positions in order) with all of their keys or one span of them. Two
 * warps load queries and keys, and values, into a ring, ahead of the other warps and across tiles
 * (forward_jobs.cuh): boxes of a page by bulk copies if pages and blocks of keys divide each other,
 * else words of 16 bytes. Four warps share a block of keys: each has a quarter of the keys in the
 * scores and a quarter of the columns in the sums. Keys and columns are the rows of the products
 * and query rows their columns, so that few query rows cost little. If spans are computed in
 * parallel, merge_spans merges them in ascending order.
 *
 * Numerics contract (rev 3): docs/arithmetic.md, section 8. Exchanging the two operands of a step
 * changes no bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/attention/forward_jobs.cuh"

using namespace forward::jobs;

namespace
{

/* ---- computing: four warps ------------------------------------------------------------------- */

template <int DIM, int TILES, bool BOXES> struct worker {
    using shape = layout<DIM, TILES, BOXES>;
    static constexpr int block = shape::block;
    static constexpr int key_tiles = block / 64; // tiles of 16 keys that a warp has
    // tiles of 16 columns that a warp has
    static constexpr int column_tiles = DIM < 64 ? 1 : DIM / 64;

    const invar_attention_problem &p;
    shape &memory;
    invar_ring<shape::slots> at;
    invar_ring<shape::ahead> job_at;
    invar_attention_tile t;
    key_range keys;
    int last; // position of the last row
    // of rows 8 i + 2 (t % 4) + e: position, first key that it sees
    int position[TILES][2], first[TILES][2];
    float m[TILES][2];
    float l; // lane t % 8 of the sum of row t / 8
    uint32_t q[DIM / 16][TILES][2];
    float o[column_tiles][TILES][4], total[column_tiles][TILES][4];

    __device__ __forceinline__ int warp() const
    {
        return (int)threadIdx.x / 32;
    }

    __device__ __forceinline__ int lane() const
    {
        return (int)threadIdx.x % 32;
    }

    __device__ __forceinline__ int row_of(int tile, int e) const
    {
        return 8 * tile + 2 * (lane() % 4) + e;
    }

    /* Returns whether this thread t keeps a lane of a sum: lane t % 8 of row t / 8. */
    __device__ __forceinline__ bool sums_row() const
    {
        return (int)threadIdx.x < 8 * shape::rows;
    }

    /* Returns the first of the warp's columns; DIM or more if it has none. */
    __device__ __forceinline__ int first_column() const
    {
        return warp() * 16 * column_tiles;
    }

    __device__ __forceinline__ void release()
    {
        __syncwarp();
        if (lane() == 0)
            invar_barrier_arrive(&memory.empty[at.stage]);
        at.advance();
    }

    /* Takes the next job and its queries. Returns false if there is none. */
    __device__ __forceinline__ bool take_job(job *out)
    {
        invar_barrier_wait(&memory.ready[job_at.stage], job_at.parity);
        *out = memory.work[job_at.stage];
        if (out->tile.count == 0)
            return false;
#pragma unroll
        for (int d = 0; d < DIM; d += 32) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                uint32_t x[4];
                invar_load_matrices<false>(
                    x, &memory.q[job_at.stage][8 * i + lane() % 8][d + lane() / 8 * 8]);
                q[d / 16][i][0] = x[0];
                q[d / 16][i][1] = x[1];
                q[d / 16 + 1][i][0] = x[2];
                q[d / 16 + 1][i][1] = x[3];
            }
        }
        __syncwarp();
        if (lane() == 0)
            invar_barrier_arrive(&memory.consumed[job_at.stage]);
        job_at.advance();
        return true;
    }

    /* ---- one block of keys ---- */

    /*
     * Computes s, chains over the head dim with the warp's keys as rows; scores of keys that a row
     * does not see become -inf.
     */
    __device__ __forceinline__ void score(float (&s)[key_tiles][TILES][4], int key0)
    {
        const uint16_t *k = memory.slot[at.stage];
        int own = warp() * (block / 4);

#pragma unroll
        for (int i = 0; i < key_tiles * TILES * 4; i++)
            (&s[0][0][0])[i] = 0.0f;
#pragma unroll
        for (int d = 0; d < DIM; d += 16) {
#pragma unroll
            for (int j = 0; j < key_tiles; j++) {
                uint32_t a[4];
                invar_load_matrices<false>(
                    a, &k[shape::place(own + 16 * j + lane() % 16, d + lane() / 16 * 8)]);
#pragma unroll
                for (int i = 0; i < TILES; i++)
                    invar_product_warp(s[j][i], a, q[d / 16][i]);
            }
        }
#pragma unroll
        for (int j = 0; j < key_tiles; j++) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    int key = key0 + own + 16 * j + lane() / 4 + r / 2 * 8;
                    if (key < first[i][r % 2] || key > position[i][r % 2])
                        s[j][i][r] = -INFINITY;
                }
            }
        }
    }

    /*
     * Updates the references of all rows from the scores of all warps; the factors alpha go to
     * shared memory too.
     */
    __device__ __forceinline__ void raise_references(float (&base)[TILES][2],
                                                     float (&alpha)[TILES][2],
                                                     const float (&s)[key_tiles][TILES][4],
                                                     int key0)
    {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float top = -INFINITY;
#pragma unroll
                for (int j = 0; j < key_tiles; j++)
                    top = fmaxf(top, fmaxf(s[j][i][e], s[j][i][e + 2]));
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, step));
                if (lane() < 4)
                    memory.top[warp()][row_of(i, e)] = top;
            }
        }
        sync_workers();
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int row = row_of(i, e);
                bool seen = first[i][e] < key0 + block && position[i][e] >= key0;
                float top = fmaxf(fmaxf(memory.top[0][row], memory.top[1][row]),
                                  fmaxf(memory.top[2][row], memory.top[3][row]));
                float next = seen ? invar_softmax_reference(m[i][e], top * p.form.c) : m[i][e];
                base[i][e] = invar_attention_base(next, seen);
                alpha[i][e] = seen ? invar_attention_factor(m[i][e], next) : 1.0f;
                m[i][e] = next;
                if (threadIdx.x < 4)
                    memory.alpha[row] = alpha[i][e];
            }
        }
    }

    /* Writes p to shared memory, unrounded and rounded. */
    __device__ __forceinline__ void scores_to_probs(const float (&s)[key_tiles][TILES][4],
                                                    const float (&base)[TILES][2])
    {
#pragma unroll
        for (int j = 0; j < key_tiles; j++) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    int key = warp() * (block / 4) + 16 * j + lane() / 4 + r / 2 * 8;
                    int row = row_of(i, r % 2);
                    float x = invar_attention_weight(s[j][i][r], p.form.c, base[i][r % 2]);
                    memory.p[key][row] = x;
                    memory.weights[row][key] = invar_bf16_bits(x);
                }
            }
        }
    }

    __device__ __forceinline__ void sum_weights()
    {
        int lane8 = (int)threadIdx.x % INVAR_ATTENTION_LANES;
        int row = (int)threadIdx.x / INVAR_ATTENTION_LANES;

        if (!sums_row())
            return;
        l = l * memory.alpha[row];
#pragma unroll
        for (int j = 0; j < block; j += INVAR_ATTENTION_LANES)
            l = l + memory.p[j + lane8][row];
    }

    /* Returns the number of the block's keys up to the end of the last group of 32 that exists. */
    __device__ __forceinline__ int used_keys(int key0) const
    {
        return min(block, (keys.end - key0 + 31) / 32 * 32);
    }

    /*
     * Returns whether a value of the block is not finite while some row of the tile does not see
     * all of the block.
     */
    __device__ __forceinline__ bool needs_exact(int key0)
    {
        uint32_t special = 0;
        int all;

        if (t.position == last)
            return false;
        if (invar_attention_first(p, last) <= max(key0, keys.first) &&
            t.position + 1 >= min(key0 + block, keys.end))
            return false;
        for (int i = (int)threadIdx.x; i < used_keys(key0) * (DIM / 2); i += workers)
            special |= invar_attention_special(
                *(const uint32_t *)&memory
                     .slot[at.stage][shape::place(i / (DIM / 2), i % (DIM / 2) * 2)]);
        asm volatile("{.reg .pred mine, all;"
                     "setp.ne.u32 mine, %1, 0;"
                     "barrier.cta.red.or.pred.aligned all, 1, 128, mine;"
                     "selp.s32 %0, 1, 0, all;}"
                     : "=r"(all)
                     : "r"(special)
                     : "memory");
        return all != 0;
    }

    /*
     * Continues chains by one step of 16 keys, for 16 columns and 8 rows, when each row has its own
     * values: +0 replaces those that the row does not see.
     */
    __device__ __forceinline__ void step_exact(float (&sum)[4], const uint32_t (&a)[4],
                                               const uint32_t (&b)[2], int key, int tile)
    {
#pragma unroll 1
        for (int r = 0; r < 8; r++) {
            // any thread t with t % 4 = r / 2 has the row
            int from = __shfl_sync(0xFFFFFFFFu, r % 2 ? first[tile][1] : first[tile][0], r / 2);
            int to = __shfl_sync(0xFFFFFFFFu, r % 2 ? position[tile][1] : position[tile][0], r / 2);
            float own[4] = {sum[0], sum[1], sum[2], sum[3]};
            uint32_t seen[4];
#pragma unroll
            for (int half = 0; half < 4; half++) {
                int k = key + 2 * (lane() % 4) + half / 2 * 8;
                seen[half] = (k >= from && k <= to ? a[half] & 0x0000FFFFu : 0) |
                             (k + 1 >= from && k + 1 <= to ? a[half] & 0xFFFF0000u : 0);
            }
            invar_product_warp(own, seen, b);
            if (lane() % 4 == r / 2) {
                sum[0] = r % 2 ? sum[0] : own[0];
                sum[1] = r % 2 ? own[1] : sum[1];
                sum[2] = r % 2 ? sum[2] : own[2];
                sum[3] = r % 2 ? own[3] : sum[3];
            }
        }
    }

    /*
     * Continues the chains of o over the block's keys, with the warp's columns as rows. WHOLE means
     * that all keys of the block exist.
     */
    template <bool EXACT, bool WHOLE> __device__ __forceinline__ void sum_values(int key0)
    {
        const uint16_t *v = memory.slot[at.stage];
        int end = WHOLE ? block : used_keys(key0);

        if (first_column() >= DIM)
            return;
#pragma unroll(WHOLE ? block / 32 : 1)
        for (int g = 0; g < end; g += 32) {
            uint32_t b[TILES][4];
#pragma unroll
            for (int i = 0; i < TILES; i++)
                invar_load_matrices<false>(b[i],
                                           &memory.weights[8 * i + lane() % 8][g + lane() / 8 * 8]);
#pragma unroll
            for (int step = 0; step < 2; step++) {
#pragma unroll
                for (int j = 0; j < column_tiles; j++) {
                    uint32_t a[4];
                    invar_load_matrices<true>(
                        a, &v[shape::place(g + 16 * step + lane() % 8 + lane() / 16 * 8,
                                           first_column() + 16 * j + lane() / 8 % 2 * 8)]);
#pragma unroll
                    for (int i = 0; i < TILES; i++) {
                        const uint32_t own[2] = {b[i][2 * step], b[i][2 * step + 1]};
                        if (EXACT)
                            step_exact(o[j][i], a, own, key0 + g + 16 * step, i);
                        else
                            invar_product_warp(o[j][i], a, own);
                    }
                }
            }
        }
    }

    /*
     * Sets values outside of the keys to +0: boxes bring other rows of the page there, or nothing.
     */
    __device__ __forceinline__ void clear_outside(int key0)
    {
        int before = max(keys.first - key0, 0), end = keys.end - key0;
        int count = before + max(used_keys(key0) - end, 0);

        if (count == 0)
            return;
        for (int i = (int)threadIdx.x; i < count * (DIM / 8); i += workers) {
            int key = i / (DIM / 8);
            key = key < before ? key : end + key - before;
            *(uint4 *)&memory.slot[at.stage][shape::place(key, i % (DIM / 8) * 8)] =
                make_uint4(0, 0, 0, 0);
        }
        invar_fence_async(); // order these writes and the next copy into the slot
        sync_workers();
    }

    __device__ __forceinline__ void process_block(int key0)
    {
        float s[key_tiles][TILES][4], base[TILES][2], alpha[TILES][2];

        invar_barrier_wait(&memory.full[at.stage], at.parity);
        score(s, key0);
        release();
        raise_references(base, alpha, s, key0);
        scores_to_probs(s, base);
        sync_workers();
        sum_weights();
#pragma unroll
        for (int j = 0; j < column_tiles; j++) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
#pragma unroll
                for (int r = 0; r < 4; r++)
                    o[j][i][r] = o[j][i][r] * alpha[i][r % 2];
            }
        }
        invar_barrier_wait(&memory.full[at.stage], at.parity);
        if constexpr (BOXES)
            clear_outside(key0);
        if (needs_exact(key0))
            sum_values<true, false>(key0);
        else if (used_keys(key0) < block)
            sum_values<false, false>(key0);
        else
            sum_values<false, true>(key0);
        release();
    }

    /* ---- spans ---- */

    __device__ __forceinline__ void start_span()
    {
        l = 0.0f;
#pragma unroll
        for (int i = 0; i < TILES * 2; i++)
            (&m[0][0])[i] = -INFINITY;
#pragma unroll
        for (int i = 0; i < column_tiles * TILES * 4; i++)
            (&o[0][0][0])[i] = 0.0f;
    }

    /* Folds the lanes of a row by 4, 2, 1; thread 8 i gets the sum of row i. */
    __device__ __forceinline__ float fold() const
    {
        float sum = l;

        for (int half = INVAR_ATTENTION_LANES / 2; half > 0; half /= 2)
            sum = sum + __shfl_down_sync(0xFFFFFFFFu, sum, half);
        return sum;
    }

    /* Ends the span [span0, stop): merges it for rows that see one of its keys. */
    __device__ __forceinline__ void close_span(int64_t span0, int64_t stop)
    {
        float folded = fold();
        int sum_row = (int)threadIdx.x / INVAR_ATTENTION_LANES;

        sync_workers();
        if (threadIdx.x < 4) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int row = row_of(i, e);
                    float most = fmaxf(memory.m[row], m[i][e]);
                    memory.sees[row] = first[i][e] < stop && position[i][e] >= span0;
                    memory.alpha[row] = invar_attention_factor(memory.m[row], most);
                    memory.beta[row] = invar_attention_factor(m[i][e], most);
                    if (memory.sees[row])
                        memory.m[row] = memory.started[row] ? most : m[i][e];
                }
            }
        }
        sync_workers();
        if (sums_row() && threadIdx.x % INVAR_ATTENTION_LANES == 0 && memory.sees[sum_row])
            memory.l[sum_row] = memory.started[sum_row]
                                    ? invar_fmaf(folded, memory.beta[sum_row],
                                                 memory.l[sum_row] * memory.alpha[sum_row])
                                    : folded;
#pragma unroll
        for (int j = 0; j < column_tiles; j++) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    int row = row_of(i, r % 2);
                    float own = o[j][i][r], *old = &total[j][i][r];
                    if (memory.sees[row])
                        *old = memory.started[row]
                                   ? invar_fmaf(own, memory.beta[row], *old * memory.alpha[row])
                                   : own;
                }
            }
        }
        sync_workers();
        if (threadIdx.x < shape::rows)
            memory.started[threadIdx.x] |= memory.sees[threadIdx.x];
    }

    /* ---- the tile ---- */

    __device__ __forceinline__ void start()
    {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                position[i][e] = invar_attention_position(p, t, min(row_of(i, e), t.count - 1));
                first[i][e] = invar_attention_first(p, position[i][e]);
            }
        }
        if (threadIdx.x < shape::rows) {
            memory.m[threadIdx.x] = -INFINITY;
            memory.started[threadIdx.x] = false;
        }
        last = invar_attention_position(p, t, t.count - 1);
        start_span();
    }

    /*
     * Passes all results of the thread to `put`: put(row and head, row of the tile) returns a
     * function of column and value.
     */
    template <typename PUT> __device__ __forceinline__ void each_result(PUT put)
    {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int row = row_of(i, e);
                if (row >= t.count)
                    continue;
                auto put_row = put(row_and_head_of(p, t, row), row);
#pragma unroll
                for (int j = 0; j < column_tiles; j++) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        int column = first_column() + 16 * j + lane() / 4 + half * 8;
                        if (column < p.form.dim)
                            put_row(column, total[j][i][2 * half + e]);
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void store()
    {
        if (p.lse2 && (int)threadIdx.x < t.count) {
            row_and_head own = row_and_head_of(p, t, (int)threadIdx.x);
            p.lse2[own.row * p.lse2_stride + own.head] =
                invar_attention_lse2(memory.l[threadIdx.x], memory.m[threadIdx.x]);
        }
        each_result([&](row_and_head own, int row) {
            uint16_t *o_row = (uint16_t *)p.o + own.row * p.o_stride + own.head * p.form.dim;
            float sum = memory.l[row];
            return [=](int column, float x) { o_row[column] = invar_bf16_bits(x / sum + 0.0f); };
        });
    }

    /* Stores m, l and o of the job's span, for merge_spans. */
    __device__ __forceinline__ void store_part(const span_partials &to, int span)
    {
        int64_t heads = p.form.kv_heads * p.form.group, width = p.form.dim + 2;
        auto part = [&](row_and_head own) {
            return to.data + ((own.row * heads + own.head) * to.spans + span) * width;
        };

        if ((int)threadIdx.x < t.count) {
            float *at_row = part(row_and_head_of(p, t, (int)threadIdx.x));
            at_row[0] = memory.m[threadIdx.x];
            at_row[1] = memory.l[threadIdx.x];
        }
        each_result([&](row_and_head own, int) {
            float *at_row = part(own) + 2;
            return [=](int column, float x) { at_row[column] = x; };
        });
    }

    __device__ __forceinline__ void run(const job &work, const span_partials &to)
    {
        int64_t span = p.form.kv_span, span0 = work.keys.begin;

        t = work.tile;
        keys = work.keys;
        span0 = span0 < span ? 0 : span0 / span * span;
        start();
        for (int key0 = keys.begin; key0 < keys.end; key0 += block) {
            process_block(key0);
            if (key0 + block == span0 + span || key0 + block >= keys.end) {
                close_span(span0, span0 + span);
                start_span();
                span0 += span;
            }
        }
        if (to.data)
            store_part(to, work.span);
        else
            store();
    }
};

template <int DIM, int TILES, bool BOXES>
__global__ void __launch_bounds__(threads, 2 / TILES)
    forward_decode(const __grid_constant__ invar_attention_problem p,
                   const __grid_constant__ maps map, const __grid_constant__ span_partials to,
                   int64_t jobs)
{
    extern __shared__ __align__(1024) char shared[];
    using shape = layout<DIM, TILES, BOXES>;
    shape &memory = *(shape *)shared;

    if (threadIdx.x == 0) {
        for (int i = 0; i < shape::slots; i++) {
            invar_barrier_init(&memory.full[i], BOXES ? 1 : 32);
            invar_barrier_init(&memory.empty[i], 4);
        }
        for (int i = 0; i < shape::ahead; i++) {
            invar_barrier_init(&memory.ready[i], 32 + 1);
            invar_barrier_init(&memory.consumed[i], 4);
        }
        invar_barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x >= workers) {
        bool keys = threadIdx.x < workers + 32;
        load_source from = {keys ? p.k : p.v, keys ? &map.k : &map.v};
        if (BOXES && threadIdx.x % 32 == 0)
            invar_copy_prefetch(from.map);
        loader<DIM, TILES, BOXES> own = {p, to, jobs, memory, from, keys};
        own.run();
    } else {
        worker<DIM, TILES, BOXES> own = {p, memory};
        job work;
        while (own.take_job(&work))
            own.run(work, to);
    }
}

/* ---- merging spans --------------------------------------------------------------------------- */

/* Merges the spans that a row sees, in ascending order; one block for each row and head. */
__global__ void merge_spans(const __grid_constant__ invar_attention_problem p, span_partials from)
{
    int64_t heads = p.form.kv_heads * p.form.group, width = p.form.dim + 2;
    int64_t row = blockIdx.x / heads, head = blockIdx.x % heads, low = 0, high = p.rows.count - 1;
    const float *part = from.data + (int64_t)blockIdx.x * from.spans * width;
    invar_attention_sequence s;

    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (p.rows.offsets[middle] <= row)
            low = middle;
        else
            high = middle - 1;
    }
    if (!invar_attention_find(&s, p, low) || row < p.rows.offsets[low] ||
        row >= p.rows.offsets[low + 1])
        return;
    int position = (int)(row - s.row0);
    int span = (int)(invar_attention_first(p, position) / p.form.kv_span);
    int last = (int)(position / p.form.kv_span);
    int d = (int)threadIdx.x;
    bool live = d < p.form.dim;
    float m = part[span * width], l = part[span * width + 1];
    float o = live ? part[span * width + 2 + d] : 0.0f;

    for (span++; span <= last; span++) {
        const float *next = part + span * width;
        float most = fmaxf(m, next[0]);
        float alpha = invar_attention_factor(m, most), beta = invar_attention_factor(next[0], most);

        l = invar_fmaf(next[1], beta, l * alpha);
        if (live)
            o = invar_fmaf(next[2 + d], beta, o * alpha);
        m = most;
    }
    if (live)
        ((uint16_t *)p.o)[row * p.o_stride + head * p.form.dim + d] = invar_bf16_bits(o / l + 0.0f);
    if (p.lse2 && d == 0)
        p.lse2[row * p.lse2_stride + head] = invar_attention_lse2(l, m);
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* Largest workspace for spans that are computed in parallel, in bytes. */
constexpr int64_t most_part_bytes = INT64_C(256) << 20;

/*
 * Returns the number of spans that a row can see if they are computed in parallel, which is done
 * when nothing else fills the GPU; otherwise 1.
 */
int64_t spans_apart(const invar_device *dev, const invar_attention_problem *p)
{
    int64_t positions = p->paged ? p->max_pages * p->page_size : p->n_rows;
    int64_t spans = invar_ceil_div(positions, p->form.kv_span);
    int64_t heads = p->form.kv_heads * p->form.group;

    if (spans < 2 || spans > 65535 ||
        p->rows.count * p->form.kv_heads >= 2 * invar_cuda_of(dev)->multiprocessors ||
        p->n_rows * heads * spans * (p->form.dim + 2) * 4 > most_part_bytes)
        return 1;
    return spans;
}

/*
 * Returns whether blocks are copied as boxes: pages and blocks of keys divide each other, and a
 * thread of a loader has at most one box.
 */
template <int DIM> bool takes_boxes(const invar_attention_problem *p)
{
    constexpr int64_t block = layout<DIM, 1, true>::block, most = INT64_C(1) << 31;
    int64_t page = p->page_size * p->form.kv_heads * DIM;

    return p->paged && p->form.dim == DIM && p->page_size >= 8 &&
           (p->page_size % block == 0 || block % p->page_size == 0) && p->page_size < most &&
           p->n_pages < most && p->form.kv_heads < most && p->k_stride >= page &&
           p->v_stride >= page;
}

template <int DIM>
invar_status map_of(CUtensorMap *out, const invar_attention_problem *p, const void *data,
                    int64_t stride)
{
    constexpr int64_t block = layout<DIM, 1, true>::block;
    uint64_t heads = (uint64_t)p->form.kv_heads, page_size = (uint64_t)p->page_size;
    invar_tensor_box box = {data,
                            CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                            4,
                            {DIM, heads, page_size, (uint64_t)p->n_pages},
                            {0, DIM * 2, heads * DIM * 2, (uint64_t)stride * 2},
                            {64, 1, (uint32_t)(p->page_size < block ? p->page_size : block), 1},
                            CU_TENSOR_MAP_SWIZZLE_128B,
                            true};

    return invar_tensor_map(out, &box);
}

template <int DIM, int TILES, bool BOXES>
invar_status launch(const invar_device *dev, const invar_attention_problem *p,
                    const span_partials &to)
{
    using shape = layout<DIM, TILES, BOXES>;
    int64_t jobs = invar_attention_tiles(p, shape::rows) * to.spans;
    int64_t most = INT64_C(2) / TILES * invar_cuda_of(dev)->multiprocessors;
    maps map = {};

    if constexpr (BOXES) {
        INVAR_TRY(map_of<DIM>(&map.k, p, p->k, p->k_stride));
        INVAR_TRY(map_of<DIM>(&map.v, p, p->v, p->v_stride));
    }
    return invar_launch(dev, p->op, forward_decode<DIM, TILES, BOXES>,
                        dim3((unsigned)(jobs < most ? jobs : most)), dim3(threads),
                        sizeof(shape))(*p, map, to, jobs);
}

template <int DIM, bool BOXES>
invar_status launch(const invar_device *dev, const invar_attention_problem *p,
                    const span_partials &to)
{
    if (p->n_rows * p->form.group <= 8 * p->rows.count)
        return launch<DIM, 1, BOXES>(dev, p, to);
    return launch<DIM, 2, BOXES>(dev, p, to);
}

template <int DIM>
invar_status launch(const invar_device *dev, const invar_attention_problem *p,
                    const span_partials &to)
{
    if constexpr (DIM == 64 || DIM == 128) {
        if (takes_boxes<DIM>(p))
            return launch<DIM, true>(dev, p, to);
    }
    return launch<DIM, false>(dev, p, to);
}

} // namespace

/*
 * Query rows of a sequence that still count as few: nine positions of eight heads, five tiles of
 * 16.
 */
constexpr int64_t most_few = 72;

bool invar_attention_decode_supports(const invar_device *dev, const invar_attention_problem *p)
{
    int64_t few = p->paged && p->n_rows <= 9 * p->rows.count ? most_few : 16;

    return p->dtype == INVAR_DTYPE_BF16 && dev->numerics == INVAR_NUMERICS_SM90 &&
           (((uintptr_t)p->q | (uintptr_t)p->k | (uintptr_t)p->v) & 15) == 0 &&
           (p->q_stride | p->k_stride | p->v_stride | p->form.dim) % 8 == 0 &&
           p->n_rows * p->form.group <= few * p->rows.count;
}

size_t invar_attention_decode_workspace(const invar_device *dev, const invar_attention_problem *p)
{
    int64_t spans = spans_apart(dev, p);

    return spans < 2 ? 0
                     : (size_t)(p->n_rows * p->form.kv_heads * p->form.group * spans *
                                (p->form.dim + 2)) *
                           sizeof(float);
}

invar_status invar_attention_decode(const invar_device *dev, const invar_attention_problem *p,
                                    void *workspace)
{
    span_partials to = {nullptr, (int)spans_apart(dev, p)};
    int64_t dim = p->form.dim;

    if (to.spans > 1)
        to.data = (float *)workspace;
    INVAR_TRY(dim <= 32    ? launch<32>(dev, p, to)
              : dim <= 64  ? launch<64>(dev, p, to)
              : dim <= 128 ? launch<128>(dev, p, to)
                           : launch<256>(dev, p, to));
    if (to.spans < 2)
        return INVAR_OK;
    return invar_launch(dev, p->op, merge_spans,
                        dim3((unsigned)(p->n_rows * p->form.kv_heads * p->form.group)),
                        dim3((unsigned)invar_ceil_div(dim, 32) * 32), 0)(*p, to);
}
