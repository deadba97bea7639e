/*
 * forward_wgmma.cu - forward of attention for training and prefill: bf16, sm90, head dim 64 or 128.
 *
 * Tiles have 128 query rows of one head and are aligned to the grid of key blocks, so that the
 * diagonal cuts only the last block of a tile. One persistent block per multiprocessor takes tiles
 * from a list, longest first. One warp loads queries, keys and values by bulk copies
 * (forward_tiles.cuh), and two warpgroups have 64 rows each. They take turns at issuing products,
 * so that one computes its softmax while the tensor cores work for the other. Scores and weights
 * stay in registers. All blocks go through one loop: code that exceeds the instruction cache costs
 * more than it saves.
 *
 * Numerics contract (rev 3): docs/arithmetic.md, section 8. Rows of other samples and positions
 * after the end are loaded with a tile and get a weight of +0, which changes nothing while they are
 * finite. Three warps search masked blocks for values that are not finite, and such a block is
 * summed row by row.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/attention/forward_tiles.cuh"
#include "kernels-deterministic/cuda/sm90/wgmma.cuh"

using namespace forward::tiles;

namespace
{

/* ---- computing ------------------------------------------------------------------------------- */

/*
 * Returns the number of the thread, read again at every call: otherwise what a tile's begin and end
 * compute from it would stay in registers throughout the tile.
 */
__device__ __forceinline__ unsigned thread_number()
{
    unsigned x;

    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

/*
 * Like invar_matrix, for swizzled runs: 8 rows are 1024 bytes apart, runs run_block apart. The
 * address is the same in all threads of a warp. A distance >> 4 may be added to the result.
 */
__device__ __forceinline__ uint64_t matrix(uint32_t address)
{
    uint32_t low = uniform(address) >> 4 | (uint32_t)run_block >> 4 << 16;
    uint32_t high = (uint32_t)INVAR_SWIZZLE_128 << 30 | 1024 >> 4;

    return (uint64_t)high << 32 | low;
}

/* Named barriers: turns of the two warpgroups, and the warps of one warpgroup. */
enum { TURN = 1, ALONE = 3 };

template <int DIM, bool WINDOW> struct computer {
    using layout = memory_layout<DIM>;

    const invar_attention_problem &p;
    const tensor_maps &maps;
    const launch_params &order;
    layout &memory;
    int group;          // warpgroup, 0 or 1
    unsigned tiles = 0; // number of earlier tiles
    // blocks whose scores are known; the values of the last one may not be summed yet
    unsigned blocks = 0;
    invar_attention_softmax softmax;
    bool halved;   // no row of the warpgroup sees the second half of the block
    float most[2]; // bounds of the thread's scores (invar_attention_calm)
    bool calm;     // the scores in flight raise no reference (invar_attention_calm)
    bool summed;   // o has sums of the span; if not, the next product starts from zeros
    bool stored;   // the results of the previous tile may still be in the memory of its queries
    float o[DIM / 2];

    /* Returns the first row of the thread's warp in the tile. */
    __device__ __forceinline__ int warp_row(unsigned thread) const
    {
        return 64 * group + (int)(thread % 128 / 32) * warp_rows;
    }

    /* Returns the thread's first row; its second one is 8 rows later. */
    __device__ __forceinline__ int row_of(unsigned thread) const
    {
        return warp_row(thread) + (int)(thread % 32 / 4);
    }

    __device__ __forceinline__ void release(uint64_t *empty)
    {
        if (threadIdx.x % 32 == 0)
            invar_barrier_arrive(empty);
    }

    /* ---- products ---- */

    /* Issues s = q k^T for the next block of keys. The caller must commit. */
    __device__ __forceinline__ void issue_scores(float (&s)[block_keys / 2], unsigned q_stage)
    {
        uint64_t q = matrix(invar_shared_address(memory.q[q_stage]) + 64 * group * run_bytes);
        uint64_t k = matrix(invar_shared_address(memory.k[stage(blocks)]));

#pragma unroll
        for (int d = 0; d < DIM; d += 16) {
            uint64_t step = (d / 64 * run_block + d % 64 * 2) >> 4;
            invar_product_bf16<block_keys, 0, 0>(s, q + step, k + step, d > 0);
        }
    }

    /* Issues o += p v for half of a block. The caller must commit. */
    __device__ __forceinline__ void issue_sums(const uint32_t (&a)[block_keys / 16][4], int half)
    {
        uint64_t v = matrix(invar_shared_address(memory.v[stage(blocks - 1)]));

#pragma unroll
        for (int i = 0; i < block_keys / 32; i++) {
            int g = half * (block_keys / 32) + i;
            invar_product_bf16_a<DIM, 1>(o, a[g], v + (g * 16 * run_bytes >> 4), g > 0 || summed);
        }
    }

    /* Stage and parity of block number n in its ring. */
    static __device__ __forceinline__ unsigned stage(unsigned n)
    {
        return n % layout::stages;
    }

    static __device__ __forceinline__ uint32_t parity(unsigned n)
    {
        return n / layout::stages % 2;
    }

    __device__ __forceinline__ void take_turn()
    {
        invar_named_barrier(TURN + group, 256);
    }

    __device__ __forceinline__ void pass_turn()
    {
        invar_named_arrive(TURN + (group ^ 1), 256);
    }

    /* Computes the scores of the next block; nothing else is in flight. */
    __device__ __forceinline__ void score(float (&s)[block_keys / 2], unsigned q_stage)
    {
        invar_barrier_wait(&memory.k_full[stage(blocks)], parity(blocks));
        take_turn();
        invar_product_fence();
        issue_scores(s, q_stage);
        invar_product_commit();
        pass_turn();
        invar_product_wait<0>();
        invar_product_hold(s);
        release(&memory.k_empty[stage(blocks)]);
        blocks++;
        calm = false;
        most[0] = most[1] = 0.0f;
    }

    /*
     * Sums a block with its weights `a` and computes the scores of the next one, which are checked
     * while the sums are in flight. `fresh` is set if the next block is the first of its span.
     */
    __device__ __forceinline__ void sum_and_score(float (&s)[block_keys / 2],
                                                  const uint32_t (&a)[block_keys / 16][4],
                                                  unsigned q_stage, bool fresh)
    {
        invar_barrier_wait(&memory.k_full[stage(blocks)], parity(blocks));
        invar_barrier_wait(&memory.v_full[stage(blocks - 1)], parity(blocks - 1));
        take_turn();
        invar_product_fence();
        issue_scores(s, q_stage);
        invar_product_commit();
        issue_sums(a, 0);
        invar_product_commit();
        if (!halved) {
            issue_sums(a, 1);
            invar_product_commit();
            pass_turn();
            invar_product_wait<2>();
        } else {
            pass_turn();
            invar_product_wait<1>();
        }
        invar_product_hold(s);
        release(&memory.k_empty[stage(blocks)]);
        calm = invar_attention_calm(most, softmax, s, p.form.c) && !fresh;
        invar_product_wait<0>();
        invar_product_hold(o);
        release(&memory.v_empty[stage(blocks - 1)]);
        blocks++;
        summed = true;
    }

    /* Sums a block; nothing else is in flight. */
    __device__ __forceinline__ void sum(const uint32_t (&a)[block_keys / 16][4])
    {
        invar_barrier_wait(&memory.v_full[stage(blocks - 1)], parity(blocks - 1));
        invar_product_fence();
        issue_sums(a, 0);
        invar_product_commit();
        if (!halved) {
            issue_sums(a, 1);
            invar_product_commit();
        }
        invar_product_wait<0>();
        invar_product_hold(o);
        release(&memory.v_empty[stage(blocks - 1)]);
    }

    /* Returns whether a value of the masked block is an infinity or a NaN. */
    __device__ __forceinline__ bool special()
    {
        const int *found = memory.special[stage(blocks - 1)];

        // the search of unmasked blocks is not awaited, so the previous round of the ring may not
        // be over, and the wait for this round's parity would pass too early; values are loaded
        // only after that round, so wait for them first
        invar_barrier_wait(&memory.v_full[stage(blocks - 1)], parity(blocks - 1));
        invar_barrier_wait(&memory.searched[stage(blocks - 1)], parity(blocks - 1));
        return uniform(found[0] | found[1] | found[2]) != 0;
    }

    /* Computes o += p v row by row, each row with the values that it sees. */
    __device__ __forceinline__ void sum_exact(const uint32_t (&a)[block_keys / 16][4], int tile,
                                              int b)
    {
        const char *v = memory.v[stage(blocks - 1)];
        unsigned lane = thread_number() % 32;
        int begin[2], end[2];

        ranges(begin, end, tile, b);
        if (!summed) {
#pragma unroll
            for (int i = 0; i < DIM / 2; i++)
                o[i] = 0.0f;
            summed = true;
        }

#pragma unroll 1
        for (int g = 0; g < block_keys / (halved ? 32 : 16); g++) {
            uint32_t weights[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                weights[j] = a[0][j];
#pragma unroll
                for (int other = 1; other < block_keys / 16; other++)
                    weights[j] = g == other ? a[other][j] : weights[j];
            }
#pragma unroll
            for (int i = 0; i < DIM / 8; i++) {
                float sum[4] = {o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]};
                uint32_t values[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint32_t pair[2];
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        unsigned key = 16 * g + 8 * half + 2 * (lane % 4) + j;
                        pair[j] = *(const uint16_t *)(v + i / 8 * run_block + key * run_bytes +
                                                      ((i ^ key) % 8) * 16 + lane / 4 * 2);
                    }
                    values[half] = pair[0] | pair[1] << 16;
                }
                invar_attention_step_exact(sum, weights, values, 16 * g, begin, end);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[4 * i + j] = sum[j];
            }
        }
        release(&memory.v_empty[stage(blocks - 1)]);
    }

    /* ---- softmax ---- */

    /* Computes which keys of block b the thread's rows see. */
    __device__ __forceinline__ void ranges(int (&begin)[2], int (&end)[2], int tile, int b) const
    {
        int row = row_of(thread_number());

#pragma unroll
        for (int i = 0; i < 2; i++) {
            int position = tile * tile_rows + row + 8 * i;
            int first = WINDOW ? invar_attention_first(p, position) : 0;
            invar_attention_clip(&begin[i], &end[i], first, position + 1, b * block_keys,
                                 block_keys);
        }
    }

    /*
     * Sets scores of s[BEGIN..BEGIN + 32) of keys that are not seen to -inf, in the block of the
     * tile's own rows.
     */
    template <int BEGIN>
    static __device__ __forceinline__ void mask_half(float (&s)[block_keys / 2], int end)
    {
#pragma unroll
        for (int i = BEGIN; i < BEGIN + block_keys / 4; i++) {
            int row = i / 2 % 2, at = i / 4 * 8 + i % 2;
            s[i] = at - 8 * row >= end ? -INFINITY : s[i];
        }
    }

    /* Sets scores of keys of masked block b that a row does not see to -inf: their p is +0. */
    __device__ __forceinline__ void mask_scores(float (&s)[block_keys / 2], bool (&seen)[2],
                                                int tile, int b)
    {
        if (WINDOW) {
            int begin[2], end[2];
            ranges(begin, end, tile, b);
            invar_attention_mask(s, begin, end);
            seen[0] = begin[0] < end[0];
            seen[1] = begin[1] < end[1];
            return;
        }
        unsigned thread = thread_number();
        int end = row_of(thread) + 1 - 2 * (int)(thread % 4);
        if (group == 0)
            mask_half<0>(s, end); // the second half is not used
        else
            mask_half<block_keys / 4>(s, end);
    }

    /* ---- blocks ---- */

    /* Finds the largest scores of the thread's rows in the block. */
    __device__ __forceinline__ void find_largest(const float (&s)[block_keys / 2])
    {
        if (halved) {
            float half[block_keys / 4];
#pragma unroll
            for (int i = 0; i < block_keys / 4; i++)
                half[i] = s[i];
            most[0] = invar_attention_largest(half, 0);
            most[1] = invar_attention_largest(half, 1);
        } else {
            most[0] = invar_attention_largest(s, 0);
            most[1] = invar_attention_largest(s, 1);
        }
    }

    /* Turns the scores of block b into weights. */
    __device__ __forceinline__ void compute_weights(uint32_t (&a)[block_keys / 16][4],
                                                    float (&s)[block_keys / 2], int tile, int b)
    {
        bool masked = is_masked_block<WINDOW>(p.form, tile, b), seen[2] = {true, true};

        halved = !WINDOW && masked && group == 0;
        if (masked)
            mask_scores(s, seen, tile, b);
        if (!calm) {
            if (masked || !invar_attention_gather(most))
                find_largest(s);
            invar_attention_rise(softmax, o, most, p.form.c, seen);
        }
        const float base[2] = {invar_attention_base(softmax.m[0], seen[0]),
                               invar_attention_base(softmax.m[1], seen[1])};
        invar_attention_weigh(softmax, a, s, p.form.c, base, halved);
    }

    /* ---- spans and tiles ---- */

    __device__ __forceinline__ void start_span()
    {
        invar_attention_start(softmax);
        summed = false;
    }

    /* Returns this thread's memory for merged spans: o, then m and l of its two rows. */
    __device__ __forceinline__ float *spans_at() const
    {
        return order.spans + (int64_t)blockIdx.x * 256 * span_floats<DIM>() +
               (thread_number() - 128);
    }

    /* Ends the span of keys [span0, stop) and merges it with the earlier ones. */
    __device__ __forceinline__ void close_span(int tile, int64_t span0, int64_t stop)
    {
        float alpha[2], beta[2], *old = spans_at(), *last = old + DIM / 2 * 256;
        invar_attention_total total;
        bool sees[2];

#pragma unroll
        for (int i = 0; i < 2; i++) {
            int position = tile * tile_rows + row_of(thread_number()) + 8 * i;
            int first = invar_attention_first(p, position);
            sees[i] = position >= span0 && first < stop;
            total.started[i] = first < span0;
            total.m[i] = total.started[i] ? last[i * 256] : -INFINITY;
            total.l[i] = total.started[i] ? last[(2 + i) * 256] : 0.0f;
        }
        invar_attention_merge(total, alpha, beta, softmax, sees);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            last[i * 256] = total.m[i];
            last[(2 + i) * 256] = total.l[i];
        }
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) {
            int r = i / 2 % 2;
            float before = total.started[r] ? old[i * 256] : 0.0f;
            float merged = total.started[r] ? invar_fmaf(o[i], beta[r], before * alpha[r]) : o[i];
            o[i] = sees[r] ? merged : before;
            old[i * 256] = o[i];
        }
    }

    /* Computes the divisors of the thread's rows; with spans, loads their merged m as well. */
    __device__ __forceinline__ void finish_rows(float (&l)[2])
    {
        l[0] = invar_attention_fold(softmax.l[0]);
        l[1] = invar_attention_fold(softmax.l[1]);
        if (order.spans) {
            const float *sums = spans_at() + DIM / 2 * 256; // m, then l, of the two rows
            softmax.m[0] = sums[0];
            softmax.m[1] = sums[256];
            l[0] = sums[2 * 256];
            l[1] = sums[3 * 256];
        }
    }

    /*
     * Stores lse2: the first of a row's four threads that of its first row, the second thread that
     * of the row 8 later.
     */
    __device__ __forceinline__ void store_lse2(const float (&l)[2], const tile_assignment &t,
                                               unsigned thread)
    {
        bool other = thread % 2 != 0;
        int position = t.entry.tile * tile_rows + row_of(thread) + (other ? 8 : 0);
        float x = invar_attention_lse2(other ? l[1] : l[0], other ? softmax.m[1] : softmax.m[0]);

        if (thread % 4 < 2 && position >= t.entry.before && position < t.entry.length)
            p.lse2[(int64_t)(t.entry.row0 + position) * p.lse2_stride + t.head] = x;
    }

    /* Computes w = o / l, rounded, for 16 numbers at a time, so that few take the slow path. */
    static __device__ __forceinline__ void divide(uint32_t (&w)[8], float (&o)[16],
                                                  const float (&l)[2])
    {
        if (__all_sync(0xFFFFFFFFu, invar_attention_quotients(w, o, l)))
            return;
        invar_attention_divide(o, l);
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i] = invar_bf16x2_bits(o[2 * i], o[2 * i + 1]);
    }

    /* Starts a bulk copy of a warp's results to o; all of them are rows of the sample. */
    __device__ __forceinline__ void copy_rows(const char *from, const tile_assignment &t, int first,
                                              unsigned lane)
    {
        invar_fence_async();
        __syncwarp();
        if (lane == 0) {
#pragma unroll
            for (int run = 0; run < layout::runs; run++)
                invar_copy_out(&maps.o, 0, t.entry.row0 + t.entry.tile * tile_rows + first,
                               t.head * layout::runs + run, from + run * run_block);
            invar_copy_commit();
        }
    }

    /* Writes a warp's results row by row, because some rows do not belong to the sample. */
    __device__ __forceinline__ void write_rows(const char *from, const tile_assignment &t,
                                               int first, unsigned lane)
    {
        uint16_t *to = (uint16_t *)p.o + (int64_t)t.entry.row0 * p.o_stride + t.head * DIM;

        __syncwarp();
#pragma unroll
        for (unsigned i = lane; i < warp_rows * DIM / 8; i += 32) {
            unsigned r = first + i / (DIM / 8), column = i % (DIM / 8);
            int position = t.entry.tile * tile_rows + (int)r;
            uint4 x = *(const uint4 *)(from + column / 8 * run_block + r * run_bytes +
                                       (column ^ r) % 8 * 16);
            if (position >= t.entry.before && position < t.entry.length)
                *(uint4 *)(to + position * p.o_stride + column * 8) = x;
        }
        invar_fence_async();
    }

    /*
     * Writes o / l through the memory of the queries to o. All warps must have finished using the
     * queries: they have taken a turn since, or met.
     */
    __device__ __forceinline__ void store(const tile_assignment t)
    {
        char *out = memory.q[tiles % 2];
        unsigned thread = thread_number(), lane = thread % 32;
        int first = uniform(warp_row(thread));
        // swizzled: 16 bytes number i of a row are at i ^ row % 8
        uint32_t at = row_of(thread) * run_bytes + lane / 4 * 16 + lane % 4 * 4;
        float l[2];

        finish_rows(l);
#pragma unroll
        for (int part = 0; part < DIM / 2; part += 16) {
            uint32_t w[8];
            float x[16];
#pragma unroll
            for (int i = 0; i < 16; i++)
                x[i] = o[part + i];
            divide(w, x, l);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                int column = part / 4 + i / 2;
                *(uint32_t *)(out + column / 8 * run_block + i % 2 * 8 * run_bytes +
                              (at ^ column % 8 * 16)) = w[i];
            }
        }
        int position = t.entry.tile * tile_rows + first;
        bool whole = position >= t.entry.before && position + warp_rows <= t.entry.length;
        // a vote, although all threads agree: products must not be in branches that could diverge
        if (__all_sync(0xFFFFFFFFu, whole))
            copy_rows(out + first * run_bytes, t, first, lane);
        else
            write_rows(out, t, first, lane);
        if (p.lse2)
            store_lse2(l, t, thread);
        stored = true;
    }

    /*
     * Waits until the results of the previous tile have been read, and releases the memory of its
     * queries.
     */
    __device__ __forceinline__ void free_queries()
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            invar_copy_wait_read<0>();
            invar_barrier_arrive(&memory.q_empty[(tiles - 1) % 2]);
        }
        stored = false;
    }

    /* Returns the last block of block b's span in the tile. */
    __device__ __forceinline__ int span_end(int tile, int b) const
    {
        if (!order.spans)
            return tile;
        int64_t stop = ((int64_t)b * block_keys / p.form.kv_span + 1) * p.form.kv_span;

        return stop / block_keys <= tile ? (int)(stop / block_keys) - 1 : tile;
    }

    /* Ends the span of which block b was the last, and merges it with the earlier ones. */
    __device__ __forceinline__ void end_span(int tile, int b)
    {
        if (!order.spans)
            return;
        int64_t span0 = (int64_t)b * block_keys / p.form.kv_span * p.form.kv_span;

        close_span(tile, span0, span0 + p.form.kv_span);
    }

    /*
     * Processes block after block, span after span, tile after tile; the next scores are always in
     * flight.
     */
    __device__ __forceinline__ void run()
    {
        uint32_t a[block_keys / 16][4];
        float s[block_keys / 2];
        const tile_assignment *t = &memory.order[0];
        int tile, b, last;

        if (group == 1)
            pass_turn();
        invar_barrier_wait(&memory.q_full[0], 0);
        if (t->head < 0)
            return;
        tile = t->entry.tile;
        b = WINDOW ? first_block(p.form, t->entry) : 0;
        last = span_end(tile, b);
        stored = false;
        start_span();
        score(s, 0);
#pragma unroll 1
        for (;;) {
            unsigned next = tiles; // tile whose queries the next scores use
            bool exact = false, more = true;

            compute_weights(a, s, tile, b);
            if (stored)
                free_queries();
            if (is_masked_block<WINDOW>(p.form, tile, b)) {
                exact = special();
                if (exact)
                    sum_exact(a, tile, b);
                if (b == tile) {
                    next++;
                    invar_barrier_wait(&memory.q_full[next % 2], next / 2 % 2);
                    more = uniform(memory.order[next % 2].head) >= 0;
                }
            }
            if (!more) {
                if (!exact)
                    sum(a);
                invar_named_barrier(ALONE + group, 128);
            } else if (!exact) {
                sum_and_score(s, a, next % 2, b == last);
            } else {
                score(s, next % 2);
            }
            if (b++ < last)
                continue;
            end_span(tile, last);
            if (last == tile) {
                store(*t);
                tiles = next;
                if (!more)
                    break;
                t = &memory.order[tiles % 2];
                tile = t->entry.tile;
                b = WINDOW ? first_block(p.form, t->entry) : 0;
            }
            last = span_end(tile, b);
            start_span();
        }
        free_queries();
    }
};

template <int DIM>
__device__ __forceinline__ void init(memory_layout<DIM> &memory, const tensor_maps &maps,
                                     bool zeros)
{
    constexpr int stages = memory_layout<DIM>::stages;

    if (threadIdx.x == 0) {
        invar_copy_prefetch(&maps.q);
        invar_copy_prefetch(&maps.k);
        invar_copy_prefetch(&maps.v);
        invar_copy_prefetch(&maps.o);
        for (int i = 0; i < 2; i++) {
            invar_barrier_init(&memory.q_full[i], 1);
            invar_barrier_init(&memory.q_empty[i], 8);
        }
        for (int i = 0; i < stages; i++) {
            invar_barrier_init(&memory.k_full[i], 1);
            invar_barrier_init(&memory.k_empty[i], 8);
            invar_barrier_init(&memory.v_full[i], 1);
            invar_barrier_init(&memory.v_empty[i], 8 + searchers);
            invar_barrier_init(&memory.searched[i], searchers);
        }
        invar_barrier_init_done();
    }
    // pages that no row sees are not loaded: the memory must hold finite values instead
    if (zeros) {
        for (int i = (int)threadIdx.x; i < (int)sizeof memory.v / 16; i += threads)
            ((uint4 *)memory.v)[i] = make_uint4(0, 0, 0, 0);
        invar_fence_async();
    }
    __syncthreads();
}

template <int DIM, bool WINDOW>
__global__ void __launch_bounds__(threads, 1)
    forward_wgmma(const __grid_constant__ tensor_maps maps,
                  const __grid_constant__ invar_attention_problem p,
                  const __grid_constant__ launch_params order)
{
    extern __shared__ __align__(1024) char shared[];
    memory_layout<DIM> &memory = *(memory_layout<DIM> *)shared;

    invar_grid_release();
    init(memory, maps, p.paged);
    invar_grid_wait();
    if (threadIdx.x < 128) {
        invar_registers_down<24>();
        if (threadIdx.x < 32)
            loader<DIM>{p, maps, order, memory, (int)threadIdx.x}.run();
        else
            searcher<DIM, WINDOW>{p, memory}.run();
    } else {
        invar_registers_up<240>();
        computer<DIM, WINDOW>{p, maps, order, memory, uniform((int)threadIdx.x / 128 - 1)}.run();
    }
}

/* ---- launch ---------------------------------------------------------------------------------- */

/*
 * Encodes the map of a tensor of rows; a box has box_rows rows and box_runs runs of 64 columns of a
 * head.
 */
invar_status map_rows(CUtensorMap *out, const void *data, int64_t rows, int64_t heads, int64_t dim,
                      int64_t stride, int box_rows, int64_t box_runs)
{
    invar_tensor_box box = {};

    box.data = data;
    box.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    box.rank = 3;
    box.extent[0] = box.box[0] = 64;
    box.extent[1] = (uint64_t)rows;
    box.extent[2] = (uint64_t)(heads * dim / 64);
    box.stride[1] = (uint64_t)stride * 2;
    box.stride[2] = run_bytes;
    box.box[1] = (uint32_t)box_rows;
    box.box[2] = (uint32_t)box_runs;
    box.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    return invar_tensor_map(out, &box);
}

/* Encodes the map of a cache; a box has one page, or as many rows of it as a block, and one run. */
invar_status map_pages(CUtensorMap *out, const void *data, const invar_attention_problem *p,
                       int64_t stride)
{
    invar_tensor_box box = {};

    box.data = data;
    box.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    box.rank = 4;
    box.extent[0] = box.box[0] = 64;
    box.extent[1] = (uint64_t)p->page_size;
    box.extent[2] = (uint64_t)(p->form.kv_heads * p->form.dim / 64);
    box.extent[3] = (uint64_t)p->n_pages;
    box.stride[1] = (uint64_t)(p->form.kv_heads * p->form.dim * 2);
    box.stride[2] = run_bytes;
    box.stride[3] = (uint64_t)stride * 2;
    box.box[1] = (uint32_t)(p->page_size < block_keys ? p->page_size : block_keys);
    box.box[2] = box.box[3] = 1;
    box.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    return invar_tensor_map(out, &box);
}

size_t plan_bytes(const invar_attention_problem *p)
{
    size_t bytes = sizeof(tile_plan) + sizeof(tile_entry) * (size_t)plan_slots(*p);

    return (bytes + 255) / 256 * 256;
}

/* Returns the number of heads whose keys and values fit into about half of the L2 cache. */
int section_of(const invar_attention_problem *p)
{
    int64_t positions = p->paged ? p->n_pages * p->page_size : p->n_rows;
    int64_t kv_heads = (INT64_C(24) << 20) / (positions * p->form.dim * 4);

    kv_heads = kv_heads < 1 ? 1 : kv_heads < p->form.kv_heads ? kv_heads : p->form.kv_heads;
    return (int)(kv_heads * p->form.group);
}

/* Launches the kernel early: it waits itself until the plan is complete. */
template <int DIM, bool WINDOW>
invar_status launch(const invar_device *dev, const tensor_maps &maps,
                    const invar_attention_problem *p, const launch_params &order)
{
    return invar_launch_early(dev, p->op, forward_wgmma<DIM, WINDOW>,
                              (unsigned)invar_cuda_of(dev)->multiprocessors, threads,
                              sizeof(memory_layout<DIM>))(maps, *p, order);
}

} // namespace

bool invar_attention_wgmma_supports(const invar_device *dev, const invar_attention_problem *p)
{
    int64_t size = p->page_size;

    if (p->dtype != INVAR_DTYPE_BF16 || dev->numerics != INVAR_NUMERICS_SM90 ||
        (p->form.dim != 64 && p->form.dim != 128) || p->n_rows > farthest ||
        p->n_rows / tile_rows * p->form.kv_heads * p->form.group > farthest ||
        !invar_tensor_map_takes(p->q, p->q_stride * 2) ||
        !invar_tensor_map_takes(p->k, p->k_stride * 2) ||
        !invar_tensor_map_takes(p->v, p->v_stride * 2) ||
        !invar_tensor_map_takes(p->o, p->o_stride * 2))
        return false;
    if (!p->paged)
        return true;
    // pages divide blocks of keys or blocks divide pages, and sequences have more than a few rows
    return ((size >= 8 && size <= block_keys && block_keys % size == 0) ||
            size % block_keys == 0) &&
           p->n_pages <= farthest && size <= farthest && p->n_rows >= 32 * p->rows.count;
}

size_t invar_attention_wgmma_workspace(const invar_device *dev, const invar_attention_problem *p)
{
    size_t spans = p->form.kv_span < INVAR_ATTENTION_FAR ? ((size_t)p->form.dim / 2 + 4) * 256 : 0;

    return plan_bytes(p) + spans * sizeof(float) * (size_t)invar_cuda_of(dev)->multiprocessors;
}

invar_status invar_attention_wgmma(const invar_device *dev, const invar_attention_problem *p,
                                   void *workspace)
{
    tensor_maps maps;
    launch_params order;
    int64_t dim = p->form.dim, kv_heads = p->form.kv_heads, heads = kv_heads * p->form.group;
    int64_t rows = p->n_rows, runs = dim / 64;

    order.plan = (tile_plan *)workspace;
    order.spans = p->form.kv_span < INVAR_ATTENTION_FAR
                      ? (float *)((char *)workspace + plan_bytes(p))
                      : nullptr;
    order.section = section_of(p);
    order.heads = (int)heads;
    INVAR_TRY(map_rows(&maps.q, p->q, rows, heads, dim, p->q_stride, tile_rows, runs));
    INVAR_TRY(map_rows(&maps.o, p->o, rows, heads, dim, p->o_stride, warp_rows, 1));
    if (p->paged) {
        INVAR_TRY(map_pages(&maps.k, p->k, p, p->k_stride));
        INVAR_TRY(map_pages(&maps.v, p->v, p, p->v_stride));
    } else {
        INVAR_TRY(map_rows(&maps.k, p->k, rows, kv_heads, dim, p->k_stride, block_keys, runs));
        INVAR_TRY(map_rows(&maps.v, p->v, rows, kv_heads, dim, p->v_stride, block_keys, runs));
    }
    INVAR_TRY(
        invar_launch_early(dev, p->op, plan_tiles, dim3(1), dim3(plan_threads), 0)(*p, order.plan));
    if (p->form.window < INVAR_ATTENTION_FAR)
        return p->form.dim == 64 ? launch<64, true>(dev, maps, p, order)
                                 : launch<128, true>(dev, maps, p, order);
    return p->form.dim == 64 ? launch<64, false>(dev, maps, p, order)
                             : launch<128, false>(dev, maps, p, order);
}
