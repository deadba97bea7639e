/*
 * backward_tensor.cuh - gradients of attention on tensor cores: bf16, sm90, head dim 64 or 128.
 *
 * A task is a block of 128 keys of one kv head. Its two consumer warpgroups hold dk and dv of 64
 * keys each in registers while they iterate over the query heads of the group, and for each head
 * over the tiles of 64 queries that see the block, ascending:
 *
 *   S^T = K Q^T   P^T = 2^(...)   dP^T = V dO^T   dS^T = P^T (dP^T - delta)
 *   dv += P^T dO   dk += dS^T Q   part of dq = dS K
 *
 * P^T goes from accumulators straight into the left side of its product. dS^T lies in shared
 * memory, for dq and dk, because no registers are left for it while P^T is in use. The warps of the
 * first warpgroup move tiles and sums (backward_load.cuh).
 *
 * The sum of dq of a tile lies in device memory, in the order of accumulators. Blocks add to it in
 * descending order, from the diagonal on, and each waits for the block before it, which `added`
 * counts. A block starts on its diagonal, so the block before it is ahead of it; and a block is
 * handed out only if the block before it is, or is sure to be (backward_plan.cuh), so no block
 * waits forever. The block that adds last writes dq.
 *
 * In samples longer than a span of keys, the last block of each span adds the span's sum of dq to
 * that of all earlier spans, also in device memory. In samples longer than a span of queries, each
 * thread adds its chains of dk and dv to those of earlier spans there, whenever a span ends.
 *
 * Excluded pairs have weight +0 and are multiplied all the same; rows of the next sample after a
 * sample's end are excluded pairs, too. This goes wrong only if a value is not finite, and then
 * leaves a NaN in the result. So any NaN raises a flag, and the generic kernel computes all again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ATTENTION_BACKWARD_TENSOR_CUH
#define INVAR_KERNELS_CUDA_SM90_ATTENTION_BACKWARD_TENSOR_CUH

#include "kernels-deterministic/cuda/sm90/attention/backward_load.cuh"
#include "kernels-deterministic/cuda/sm90/wgmma.cuh"

namespace backward
{
namespace tensor
{

/* ---- consumers ------------------------------------------------------------------------------- */

template <int D> struct consumer {
    using shared = typename form<D>::shared;
    static constexpr int SCORES = form<D>::SCORES;
    static constexpr int GRADIENTS = form<D>::GRADIENTS, PARTS = form<D>::PARTS;
    static constexpr int GROUPS = QUERIES / 16; /* steps of a tile along queries */

    shared &m;
    const kernel_args &a;
    int which;  /* consumer warpgroup, 0 or 1 */
    int thread; /* thread of the warpgroup */

    __device__ __forceinline__ int warp() const
    {
        return thread / 32;
    }

    __device__ __forceinline__ int lane() const
    {
        return thread % 32;
    }

    /* Returns the first row of this thread in accumulators; column() returns its first column. */
    __device__ __forceinline__ int row() const
    {
        return 16 * warp() + lane() / 4;
    }

    __device__ __forceinline__ int column() const
    {
        return 2 * (lane() % 4);
    }

    /* Arrives once for each warp. */
    __device__ __forceinline__ void release(uint64_t *barrier) const
    {
        __syncwarp();
        if (lane() == 0)
            invar_barrier_arrive(barrier);
    }

    /* acc = the chains over D of this warpgroup's 64 keys (of k or v) and a tile (of q or d_o). */
    __device__ __forceinline__ void dots(float (&acc)[SCORES], const unsigned char *keys,
                                         const unsigned char *tile) const
    {
        uint64_t left = invar_matrix(keys + which * 64 * ROW_BYTES, 0, 1024, INVAR_SWIZZLE_128);
        uint64_t right = invar_matrix(tile, 0, 1024, INVAR_SWIZZLE_128);

        invar_product_fence();
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            invar_product_bf16<QUERIES, 0, 0>(
                acc, left + (i / 4 * KEYS * ROW_BYTES + i % 4 * 32) / 16,
                right + (i / 4 * QUERIES * ROW_BYTES + i % 4 * 32) / 16, i > 0);
        invar_product_commit();
    }

    /* Continues the chains of 64 keys by D over a tile of queries, with weights in registers. */
    __device__ __forceinline__ void accumulate(float (&acc)[GRADIENTS],
                                               const uint32_t (&weights)[GROUPS][4],
                                               const unsigned char *tile, int add) const
    {
        uint64_t right = invar_matrix(tile, QUERIES * ROW_BYTES, 1024, INVAR_SWIZZLE_128);

        invar_product_fence();
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            invar_product_bf16_a<D, 1>(acc, weights[i], right + i * GROUP_BYTES / 16,
                                       i > 0 ? 1 : add);
        invar_product_commit();
    }

    /*
     * Continues the chains of 64 keys by D over a tile of queries, with weights in shared memory,
     * which all warps have written.
     */
    __device__ __forceinline__ void accumulate(float (&acc)[GRADIENTS],
                                               const unsigned char *weights,
                                               const unsigned char *tile, int add) const
    {
        uint64_t left = invar_matrix(weights + which * 64 * ROW_BYTES, 0, 1024, INVAR_SWIZZLE_128);
        uint64_t right = invar_matrix(tile, QUERIES * ROW_BYTES, 1024, INVAR_SWIZZLE_128);

        invar_product_fence();
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            invar_product_bf16<D, 0, 1>(acc, left + i * 32 / 16, right + i * GROUP_BYTES / 16,
                                        i > 0 ? 1 : add);
        invar_product_commit();
    }

    /* part = the chains over the block's keys: the tile's queries by half of the columns of dq. */
    __device__ __forceinline__ void query_part(float (&part)[PARTS], const unsigned char *ds) const
    {
        int half = D == 128 ? which * KEYS * ROW_BYTES : which * ROW_BYTES / 2;
        uint64_t left = invar_matrix(ds, 0, 1024, INVAR_SWIZZLE_128);
        uint64_t right = invar_matrix(m.k + half, 0, 1024, INVAR_SWIZZLE_128);

        invar_product_fence();
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++)
            invar_product_bf16<D / 2, 1, 1>(part, left + i * GROUP_BYTES / 16,
                                            right + i * GROUP_BYTES / 16, i > 0);
        invar_product_commit();
    }

    /*
     * Queries of a tile that a thread's keys row() and row() + 8 see, as [low, high) counted from
     * the thread's first query.
     */
    struct visible_queries {
        int low[2], high[2];

        __device__ __forceinline__ bool operator()(int i, int e) const
        {
            int query = 8 * i + e % 2;

            return query >= low[e / 2] && query < high[e / 2];
        }
    };

    __device__ __forceinline__ visible_queries visible_queries_of(const task &job, int tile) const
    {
        visible_queries s;

#pragma unroll
        for (int i = 0; i < 2; i++) {
            int key = job.block * KEYS + which * 64 + row() + 8 * i;
            int first = tile * QUERIES + column();
            int end = job.length - key < a.window ? job.length : key + a.window;
            s.low[i] = key - first;
            s.high[i] = end - first;
        }
        return s;
    }

    /* Returns whether a pair of the warpgroup's keys and the tile's queries is excluded. */
    __device__ __forceinline__ bool partial(const task &job, int tile) const
    {
        int key = job.block * KEYS + which * 64, query = tile * QUERIES;

        return query < key + 63 || query + QUERIES > job.length ||
               query + QUERIES - 1 - key >= a.window;
    }

    /*
     * -lse2 or delta of a thread's queries. The first two are loaded early, before the code waits.
     */
    struct row_stats {
        const float *rows;
        float2 first;

        __device__ __forceinline__ float2 operator[](int i) const
        {
            return i == 0 ? first : *(const float2 *)(rows + 8 * i);
        }
    };

    __device__ __forceinline__ row_stats row_stats_of(const float *rows) const
    {
        rows += column();
        return {rows, *(const float2 *)rows};
    }

    /* Sets the scores of excluded pairs to -inf: their p is +0, and their ds is a zero. */
    static __device__ __forceinline__ void exclude(float (&s)[SCORES], const visible_queries &seen)
    {
#pragma unroll
        for (int i = 0; i < QUERIES / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[4 * i + e] = seen(i, e) ? s[4 * i + e] : -INFINITY;
    }

    /* Turns scores into probabilities: f32 in s, rounded in p. */
    __device__ __forceinline__ void scores_to_probs(float (&s)[SCORES], uint32_t (&p)[GROUPS][4],
                                                    const row_stats &minus_lse2) const
    {
#pragma unroll
        for (int i = 0; i < QUERIES / 8; i++) {
            float2 lse2 = minus_lse2[i];
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[4 * i + e] =
                    invar_unit_ex2(invar_fmaf(s[4 * i + e], a.c, e % 2 ? lse2.y : lse2.x));
            p[i / 2][i % 2 * 2] = invar_bf16x2_bits(s[4 * i], s[4 * i + 1]);
            p[i / 2][i % 2 * 2 + 1] = invar_bf16x2_bits(s[4 * i + 2], s[4 * i + 3]);
        }
    }

    /* Computes ds = p (dp - delta), rounded. */
    static __device__ __forceinline__ void differentials(const float (&p)[SCORES],
                                                         const float (&dp)[SCORES],
                                                         uint32_t (&ds)[GROUPS][4],
                                                         const row_stats &deltas)
    {
#pragma unroll
        for (int i = 0; i < QUERIES / 8; i++) {
            float2 delta = deltas[i];
            float x[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[e] = p[4 * i + e] * (dp[4 * i + e] - (e % 2 ? delta.y : delta.x));
            ds[i / 2][i % 2 * 2] = invar_bf16x2_bits(x[0], x[1]);
            ds[i / 2][i % 2 * 2 + 1] = invar_bf16x2_bits(x[2], x[3]);
        }
    }

    /* Stores 16 rows by 16 columns from registers, in the order of a product's left side. */
    __device__ __forceinline__ void put_matrices(unsigned char *box, int row0, int chunk,
                                                 const uint32_t (&x)[4]) const
    {
        // lane l passes row l % 8 of matrix l / 8: rows 0-7, 8-15 of columns 0-7, then of 8-15
        int r = row0 + lane() % 16, at = chunk + lane() / 16;

        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         invar_shared_address(box + r * ROW_BYTES + (at ^ r % 8) * 16)),
                     "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                     : "memory");
    }

    __device__ __forceinline__ void put_differentials(unsigned char *to,
                                                      const uint32_t (&ds)[GROUPS][4]) const
    {
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
            put_matrices(to, which * 64 + 16 * warp(), i * 2, ds[i]);
        invar_fence_async();
    }

    /* A tile of queries of one head. */
    struct position {
        int query_head, tile;
        ring_position ring;
    };

    /* Selects field by field: a selection of whole structs would keep them in memory. */
    static __device__ __forceinline__ position choose(bool one, const position &x,
                                                      const position &y)
    {
        return {one ? x.query_head : y.query_head,
                one ? x.tile : y.tile,
                {one ? x.ring.count : y.ring.count}};
    }

    static __device__ __forceinline__ float4 four(const float *x)
    {
        return make_float4(x[0], x[1], x[2], x[3]);
    }

    static __device__ __forceinline__ void add_behind(const float4 &old, float *x)
    {
        x[0] = old.x + x[0];
        x[1] = old.y + x[1];
        x[2] = old.z + x[2];
        x[3] = old.w + x[3];
    }

    /*
     * Adds the part to the tile's sum in shared memory, or ends the span if the part is its last.
     */
    __device__ __forceinline__ void add_part(const task &job, const position &at,
                                             float (&part)[PARTS]) const
    {
        ring_position now = at.ring;
        float4 *sum = m.sum[now.stage()][which] + thread;
        accumulation_order in = accumulation_order_of(job, at.tile, a.window, a.table.key_span);

        invar_barrier_wait(&m.sum_ready[now.stage()][which], now.parity());
#pragma unroll
        for (int i = 0; i < PARTS / 4; i++)
            add_behind(in.first ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : sum[i * 128], part + 4 * i);
        if (in.last) {
            finish_span(job, at, in, part);
        } else {
#pragma unroll
            for (int i = 0; i < PARTS / 4; i++)
                sum[i * 128] = four(part + 4 * i);
            invar_fence_async();
        }
        release(&m.sum_added[now.stage()][which]);
    }

    /* Adds the sum of a span to that of earlier spans; writes dq if there are no more. */
    __device__ __forceinline__ void finish_span(const task &job, const position &at,
                                                const accumulation_order &in,
                                                float (&sum)[PARTS]) const
    {
        int64_t slot = at.query_head * (int64_t)a.table.slots + job.slot0 + at.tile;
        float4 *total = (float4 *)(a.table.totals + (2 * slot + which) * form<D>::HALF) + thread;

        if (!in.opens) {
#pragma unroll
            for (int i = 0; i < PARTS / 4; i++)
                add_behind(total[i * 128], sum + 4 * i);
        }
        if (in.closes) {
            write_queries(job, at, sum);
        } else {
#pragma unroll
            for (int i = 0; i < PARTS / 4; i++)
                total[i * 128] = four(sum + 4 * i);
        }
    }

    __device__ __forceinline__ void report_nan(bool found) const
    {
        if (found)
            a.table.state->not_finite = 1;
    }

    __device__ __forceinline__ void write_queries(const task &job, const position &at,
                                                  const float (&sum)[PARTS]) const
    {
        int query = at.tile * QUERIES + row();
        int first = at.query_head * D + which * (D / 2) + column();
        bool nan = false;

#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (query + 8 * half >= job.length)
                continue;
            bf16 *dq = a.dq.row((int64_t)job.row0 + query + 8 * half) + first;
#pragma unroll
            for (int i = 0; i < PARTS / 4; i++) {
                float x = sum[4 * i + 2 * half] * a.scale, y = sum[4 * i + 2 * half + 1] * a.scale;
                nan = nan || x != x || y != y;
                *(uint32_t *)(dq + 8 * i) = invar_bf16x2_bits(x, y);
            }
        }
        report_nan(nan);
    }

    /* Returns this thread's memory for dk or dv of earlier spans of queries. */
    __device__ __forceinline__ float4 *kept(int dv) const
    {
        return (float4 *)a.table.kept +
               (((int)blockIdx.x * 2 + which) * 2 + dv) * (GRADIENTS / 4 * 128) + thread;
    }

    /* Adds the sums of earlier spans to a finished chain. */
    static __device__ __forceinline__ void add_kept(float (&chain)[GRADIENTS], const float4 *before)
    {
#pragma unroll
        for (int i = 0; i < GRADIENTS / 4; i++)
            add_behind(before[i * 128], chain + 4 * i);
    }

    static __device__ __forceinline__ void keep(const float (&sum)[GRADIENTS], float4 *to)
    {
#pragma unroll
        for (int i = 0; i < GRADIENTS / 4; i++)
            to[i * 128] = four(sum + 4 * i);
    }

    /* Writes dk or dv of the warpgroup's keys, through its own rows of the ds buffers. */
    __device__ __forceinline__ void write_keys(const invar_view<bf16> &to, const task &job,
                                               const float (&sum)[GRADIENTS], float factor) const
    {
        int key0 = job.block * KEYS + which * 64;
        bool nan = false;

#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t x[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float low = (0.0f + sum[8 * i + 2 * e]) * factor;
                float high = (0.0f + sum[8 * i + 2 * e + 1]) * factor;
                nan = nan || low != low || high != high;
                x[e] = invar_bf16x2_bits(low, high);
            }
            put_matrices(m.ds[i / 4], which * 64 + 16 * warp(), i % 4 * 2, x);
        }
        report_nan(nan);
        meet();
        for (int i = thread; i < 64 * D / 8; i += 128) {
            int r = i / 8 % 64, chunk = i % 8, box = i / (64 * 8);
            if (key0 + r < job.length)
                *(uint4 *)(to.row((int64_t)job.row0 + key0 + r) + job.kv_head * D + box * BOX +
                           chunk * 8) = *(const uint4 *)(m.ds[box] + (which * 64 + r) * ROW_BYTES +
                                                         (chunk ^ r % 8) * 16);
        }
        meet();
    }

    /* dk and dv of a warpgroup's keys, and the scores of a tile. */
    struct registers {
        float dk[GRADIENTS], dv[GRADIENTS], s[SCORES];
    };

    /*
     * The two warpgroups take turns: while one issues products, the other computes. wait_turn waits
     * for this warpgroup's turn; after it, the other one's ds are in shared memory.
     */
    __device__ __forceinline__ void wait_turn() const
    {
        invar_named_barrier(1 + which, CONSUMERS);
    }

    __device__ __forceinline__ void pass_turn() const
    {
        invar_named_arrive(2 - which, CONSUMERS);
    }

    /* Waits for all warps of this warpgroup. */
    __device__ __forceinline__ void meet() const
    {
        invar_named_barrier(3 + which, 128);
    }

    /*
     * Processes one tile. At its end the scores of the next tile are in flight; after the last
     * tile, those of this tile again, because a step without them would be a second copy of all
     * these instructions, and the instruction cache is small.
     *
     * The first warpgroup is half a step ahead of the second: its part of dq is that of the
     * previous tile. A warp sees only the end of its own products, so it overwrites ds only when
     * all warps have read it. The products of dk and of the second warpgroup's dq that read it are
     * older than the last turn, where the warps met. The first warpgroup's dq reads the ds of a
     * tile in the next step, after its turn; ds_free counts the warps that have finished.
     */
    __device__ __forceinline__ void step(registers &r, const task &job, const position &here,
                                         const position &before, int add, bool begun,
                                         bool more) const
    {
        int stage = here.ring.stage();
        ring_position next = {here.ring.count + 1};
        float dp[SCORES], part[PARTS];
        uint32_t p[GROUPS][4], ds[GROUPS][4];
        row_stats minus_lse2 = row_stats_of(m.rows[stage][0]);

        invar_barrier_wait(&m.d_o_full[stage], here.ring.parity());
        dots(dp, m.v, m.d_o[stage]);
        // the branch also keeps the exponentials after all of the products above
        if (partial(job, here.tile))
            exclude(r.s, visible_queries_of(job, here.tile));
        scores_to_probs(r.s, p, minus_lse2);
        accumulate(r.dv, p, m.d_o[stage], add);
        row_stats delta = row_stats_of(m.rows[stage][1]);
        invar_product_wait<1>();
        invar_product_hold(dp);
        if (!more)
            release(&m.v_empty);
        if (which == 0)
            invar_barrier_wait(&m.ds_free, (here.ring.count & 1) ^ 1);
        differentials(r.s, dp, ds, delta);
        put_differentials(m.ds[stage], ds);

        wait_turn();
        accumulate(r.dk, m.ds[stage], m.q[stage], add);
        invar_product_wait<1>(); // dv is complete: part and scores need the registers of p
        invar_product_hold(r.dv);
        query_part(part, m.ds[which == 0 ? 1 - stage : stage]);
        if (more)
            invar_barrier_wait(&m.q_full[next.stage()], next.parity());
        dots(r.s, m.k, m.q[more ? next.stage() : stage]);
        invar_product_wait<1>();
        invar_product_hold(part);
        pass_turn();
        if (which == 0)
            release(&m.ds_free);
        if (which == 1 || begun)
            add_part(job, choose(which == 1, here, before), part);
        invar_product_wait<0>();
        invar_product_hold(r.s);
        invar_product_hold(r.dk);
        release(&m.tile_empty[stage]);
    }

    /*
     * Computes the part of dq that the first warpgroup has not computed yet; ds is free afterwards.
     */
    __device__ __forceinline__ void finish_queries(const task &job, const position &last) const
    {
        wait_turn();
        if (which == 0) {
            float part[PARTS];
            query_part(part, m.ds[last.ring.stage()]);
            invar_product_wait<0>();
            invar_product_hold(part);
            pass_turn();
            meet();
            add_part(job, last, part);
        }
    }

    /* Processes all tiles of one task. */
    __device__ __forceinline__ void run(const task &job, uint32_t tasks_before,
                                        ring_position &now) const
    {
        registers r;
        int tiles = (job.end - job.begin) * a.group, add = 0;
        bool begun = false, later = false; // not the first tile; not the first span of queries
        query_tile_iterator at(job, a);
        position here = {at.query_head, at.tile, now}, before = here;

        invar_barrier_wait(&m.k_full, tasks_before & 1);
        invar_barrier_wait(&m.q_full[now.stage()], now.parity());
        dots(r.s, m.k, m.q[now.stage()]);
        invar_barrier_wait(&m.v_full, tasks_before & 1);
        invar_product_wait<0>();
        invar_product_hold(r.s);
        if (which == 1)
            pass_turn();
        for (;; tiles--) {
            step(r, job, here, before, add, begun, tiles > 1);
            if (tiles == 1)
                break;
            begun = true;
            add = !at.advance(job, a);
            if (!add) {
                if (later) {
                    add_kept(r.dk, kept(0));
                    add_kept(r.dv, kept(1));
                }
                keep(r.dk, kept(0));
                keep(r.dv, kept(1));
                later = true;
            }
            before = here;
            here = {at.query_head, at.tile, {here.ring.count + 1}};
        }
        finish_queries(job, here);
        now.count = here.ring.count + 1;
        release(&m.k_empty);
        if (later) {
            add_kept(r.dk, kept(0));
            add_kept(r.dv, kept(1));
        }
        write_keys(a.dv, job, r.dv, 1.0f);
        write_keys(a.dk, job, r.dk, a.scale);
    }

    /*
     * Moves a task to uniform registers: if it stayed in shared memory, each step would wait for it
     * after products.
     */
    static __device__ __forceinline__ task uniform(const task &x)
    {
        task y = x;

        y.row0 = (int32_t)invar_uniform((uint32_t)x.row0);
        y.length = (int32_t)invar_uniform((uint32_t)x.length);
        y.block = (int32_t)invar_uniform((uint32_t)x.block);
        y.kv_head = (int32_t)invar_uniform((uint32_t)x.kv_head);
        y.slot0 = (int32_t)invar_uniform((uint32_t)x.slot0);
        y.begin = (int32_t)invar_uniform((uint32_t)x.begin);
        y.end = (int32_t)invar_uniform((uint32_t)x.end);
        y.low = (int32_t)invar_uniform((uint32_t)x.low);
        return y;
    }

    __device__ void consume()
    {
        ring_position tile_turn = {0};

        for (ring_position now = {0};; now.count++) {
            invar_barrier_wait(&m.task_full[now.stage()], now.parity());
            task job = uniform(m.tasks[now.stage()]);
            if (job.length == 0)
                return;
            run(job, now.count, tile_turn);
            invar_barrier_arrive(&m.task_empty[now.stage()]);
        }
    }
};

/* ---- the kernel ------------------------------------------------------------------------------ */

template <int D> __device__ void open_barriers(typename form<D>::shared &m)
{
    for (int i = 0; i < STAGES; i++) {
        invar_barrier_init(&m.task_full[i], 1);
        invar_barrier_init(&m.task_empty[i], 3 + CONSUMERS);
        invar_barrier_init(&m.q_full[i], 1);
        invar_barrier_init(&m.d_o_full[i], 1);
        invar_barrier_init(&m.tile_empty[i], CONSUMER_WARPS);
        for (int half = 0; half < 2; half++) {
            invar_barrier_init(&m.sum_ready[i][half], 1);
            invar_barrier_init(&m.sum_added[i][half], CONSUMER_WARPS / 2);
            invar_barrier_init(&m.sum_free[i][half], 1);
        }
    }
    invar_barrier_init(&m.k_full, 1);
    invar_barrier_init(&m.v_full, 1);
    invar_barrier_init(&m.k_empty, CONSUMER_WARPS);
    invar_barrier_init(&m.v_empty, CONSUMER_WARPS);
    invar_barrier_init(&m.ds_free, CONSUMER_WARPS / 2);
    invar_barrier_init_done();
}

template <int D>
__global__ void __launch_bounds__(THREADS, 1)
    attention_backward_tensor(const __grid_constant__ kernel_args a)
{
    extern __shared__ __align__(1024) unsigned char tensor_memory[];
    typename form<D>::shared &m = *(typename form<D>::shared *)tensor_memory;
    // a uniform value, so that the compiler knows that a warp does not diverge
    int group = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 128, 0);
    int thread = (int)threadIdx.x % 128;

    if (threadIdx.x == 0)
        open_barriers<D>(m);
    __syncthreads();
    if (group == 0) {
        invar_registers_down<24>();
        producer<D> p = {m, a};
        if (thread == 0)
            p.load_operands();
        else if (thread == 32)
            p.load_sums();
        else if (thread == 64 || thread == 96)
            p.store_sums(thread == 96);
    } else {
        invar_registers_up<240>();
        consumer<D> c = {m, a, group - 1, thread};
        c.consume();
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Returns whether the kernel supports the rows, heads and addresses, whatever the samples are. */
static bool supports(const invar_device *dev, const invar_attention_bwd_args *args)
{
    const invar_tensor *all[] = {&args->q,   &args->k,  &args->v,  &args->o,
                                 &args->d_o, &args->dq, &args->dk, &args->dv};
    int64_t dim = args->q.shape[2], rows = args->q.shape[0], most = INT64_C(1) << 30;

    if (dev->numerics != INVAR_NUMERICS_SM90 || args->q.dtype != INVAR_DTYPE_BF16 ||
        (dim != 64 && dim != 128) || !whole_groups(args))
        return false;
    // all numbers have 32 bits
    if (rows > most || args->samples.count > most || args->q.shape[1] > most ||
        (invar_attention_slots(rows, args->samples.count, 1, QUERIES) + 1) * args->q.shape[1] >
            most)
        return false;
    for (const invar_tensor *t : all)
        if (!invar_tensor_map_takes(t->data, t->row_stride * (int64_t)sizeof(bf16)))
            return false;
    return true;
}

/* Returns whether a sample may have two spans. */
static bool has_two_spans(int64_t rows, int64_t span)
{
    return span > 0 && span < rows;
}

/*
 * Returns the length of a span in units of `size`, or more than any sample has if nothing is cut.
 */
static int32_t span_of(int64_t rows, int64_t span, int size)
{
    return has_two_spans(rows, span) ? (int32_t)(span / size) : INT32_C(1) << 24;
}

/* Carves aligned arrays out of the workspace; from NULL, it only counts their bytes. */
struct workspace_carver {
    unsigned char *base;
    size_t used;

    template <typename T> T *carve(int64_t count)
    {
        T *at = base ? (T *)(base + used) : NULL;

        used += ((size_t)count * sizeof(T) + 255) / 256 * 256;
        return at;
    }
};

template <int D>
static backward_workspace backward_workspace_of(const invar_device *dev,
                                                const invar_attention_bwd_args *args,
                                                void *workspace, size_t *bytes_out)
{
    int64_t rows = args->q.shape[0], heads = args->q.shape[1], count = args->samples.count;
    int64_t slots = invar_attention_slots(rows, count, 1, QUERIES);
    int64_t blocks = invar_attention_slots(rows, count, 1, KEYS);
    workspace_carver piece = {(unsigned char *)workspace, 0};
    backward_workspace t = {};

    t.slots = (int32_t)slots;
    t.workers = invar_cuda_of(dev)->multiprocessors;
    t.key_span = span_of(rows, args->shape.kv_span, KEYS);
    t.query_span = span_of(rows, args->shape.q_span, QUERIES);
    t.state = piece.carve<head>(1);
    t.tasks = piece.carve<task>(blocks * args->k.shape[1]);
    t.added = piece.carve<int32_t>(heads * slots * 2);
    t.rows = piece.carve<float>(heads * slots * 2 * QUERIES);
    t.sums = piece.carve<float>(heads * slots * QUERIES * D);
    if (has_two_spans(rows, args->shape.kv_span))
        t.totals = piece.carve<float>(heads * slots * QUERIES * D);
    if (has_two_spans(rows, args->shape.q_span))
        t.kept = piece.carve<float>((int64_t)t.workers * 2 * KEYS * D);
    *bytes_out = piece.used;
    return t;
}

/* Encodes the map of a tensor (T, heads, D) with boxes of 64 columns. */
static invar_status map_of(CUtensorMap *out, const invar_tensor *t, int rows)
{
    invar_tensor_box box = {};

    box.data = t->data;
    box.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    box.rank = 2;
    box.extent[0] = (uint64_t)(t->shape[1] * t->shape[2]);
    box.extent[1] = (uint64_t)t->shape[0];
    box.stride[1] = (uint64_t)t->row_stride * sizeof(bf16);
    box.box[0] = BOX;
    box.box[1] = (uint32_t)rows;
    box.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    return invar_tensor_map(out, &box);
}

/* Launches all thread blocks together or not at all: the order of the last tasks relies on it. */
template <int D> static invar_status launch_together(const invar_device *dev, const kernel_args &a)
{
    const char *name = invar_op_name(INVAR_OP_ATTENTION_BWD);
    cudaLaunchAttribute together = {};
    cudaLaunchConfig_t config = {};

    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    config.gridDim = dim3((unsigned)a.table.workers);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = sizeof(typename form<D>::shared);
    config.stream = invar_cuda_of(dev)->stream;
    config.attrs = &together;
    config.numAttrs = 1;
    INVAR_CUDA_TRY(name, invar_cuda_allow_shared(invar_cuda_of(dev),
                                                 (const void *)attention_backward_tensor<D>));
    INVAR_CUDA_TRY(name, cudaLaunchKernelEx(&config, attention_backward_tensor<D>, a));
    return INVAR_OK;
}

template <int D>
static invar_status launch_backward(const invar_device *dev, const invar_attention_bwd_args *args,
                                    const problem<bf16> &call, void *workspace)
{
    int64_t heads = args->q.shape[1], most = INT64_C(1) << 30;
    size_t bytes;
    kernel_args a = {};

    a.table = backward_workspace_of<D>(dev, args, workspace, &bytes);
    INVAR_TRY(map_of(&a.map.q, &args->q, QUERIES));
    INVAR_TRY(map_of(&a.map.d_o, &args->d_o, QUERIES));
    INVAR_TRY(map_of(&a.map.k, &args->k, KEYS));
    INVAR_TRY(map_of(&a.map.v, &args->v, KEYS));
    a.dq = call.dq;
    a.dk = call.dk;
    a.dv = call.dv;
    a.scale = call.form.scale;
    a.c = call.form.c;
    a.group = (int32_t)call.form.group;
    a.window = (int32_t)(call.form.window < most ? call.form.window : most);
    INVAR_TRY(invar_launch(dev, INVAR_OP_ATTENTION_BWD, attention_backward_prepare<D>,
                           (unsigned)(1 + a.table.slots * heads), 256, 0)(call, a.table));
    INVAR_TRY(launch_together<D>(dev, a));
    return generic::launch_backward<bf16, generic::tensor_step>(dev, call,
                                                                &a.table.state->not_finite);
}

} // namespace tensor
} // namespace backward

#endif
