/*
 * attention_forward_wgmma.cu - the forward of attention in bf16 under sm90, head dim 64 or 128, by
 * warpgroup products: training and prefill.
 *
 * Tiles of 128 query rows of one head, aligned to the grid of key blocks, so that only the last
 * block of a tile is cut by the diagonal. A persistent block per multiprocessor takes tiles from a
 * list, longest first: one thread brings queries, keys and values by bulk copies, two warpgroups
 * own 64 rows each. They take turns at issuing products, so that one computes its softmax while the
 * tensor cores work for the other. Scores and weights never leave registers.
 *
 * Numerics contract (rev 1): docs/arithmetic.md, section 8. Rows of other samples and positions
 * behind the end are loaded with a tile and meet a weight of +0, which changes nothing while they
 * are finite; a masked block is searched for values that are not, and then summed row by row.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/attention_forward.cuh"
#include "kernels-deterministic/cuda/tensor_map.h"

namespace
{

constexpr int tile_rows = 128;
constexpr int block_keys = 128;
constexpr int threads = 384;   // a warpgroup that loads, two that compute
constexpr int run_bytes = 128; // 64 elements: the width of a swizzled run
constexpr int run_block = tile_rows * run_bytes;
constexpr int64_t farthest = INT32_MAX - 2 * tile_rows; // rows and positions are 32 bits here

/* ---- the list of tiles ----------------------------------------------------------------------- */

/* 128 rows of a sequence, whatever the head. */
struct tile_entry {
    int sequence, row0, before, length; // as in invar_attention_sequence
    int tile;                           // positions from 128 tile on
};

struct tile_plan {
    int next;  // the first tile (and head) that nobody took
    int count; // of entries
    tile_entry entries[1];
};

constexpr int plan_threads = 1024;

__host__ __device__ int64_t plan_slots(const invar_attention_problem &p)
{
    return p.n_rows / tile_rows + 2 * p.rows.count;
}

/* Blocks of keys that the tile sees. */
__device__ __forceinline__ int first_block(const invar_attention_form &form, const tile_entry &e)
{
    int64_t position = (int64_t)tile_rows * e.tile;

    position = position > e.before ? position : e.before;
    return (int)(invar_attention_first_key(form, position) / block_keys);
}

/* The entry of a slot, and its weight; false: the slot is empty. Sequence s has the slots from
 * start[s] / 128 + 2 s on: rows that are not aligned to tiles touch up to two more of them. */
__device__ bool plan_slot(tile_entry *out, int *weight_out, const invar_attention_problem &p,
                          int64_t slot)
{
    int64_t low = 0, high = p.rows.count - 1;
    invar_attention_sequence s;

    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (p.rows.start[middle] / tile_rows + 2 * middle <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    if (!invar_attention_find(&s, p, low) || s.length > farthest)
        return false;
    int64_t index = slot - (p.rows.start[low] / tile_rows + 2 * low);
    int64_t tile = s.before / tile_rows + index;
    if (index < 0 || tile * tile_rows >= s.length || s.before == s.length)
        return false;
    *out = {(int)low, (int)s.row0, (int)s.before, (int)s.length, (int)tile};
    int weight = (int)tile - first_block(p.form, *out);
    *weight_out = weight < plan_threads ? weight : plan_threads - 1;
    return true;
}

/* One block: entries sorted by weight, the heaviest first. */
__global__ void __launch_bounds__(plan_threads)
    plan_tiles(const __grid_constant__ invar_attention_problem p, tile_plan *plan)
{
    __shared__ int place[plan_threads]; // of weight plan_threads - 1 - i: how many, then from where
    int64_t slots = plan_slots(p);
    int own = (int)threadIdx.x, weight;
    tile_entry entry;

    invar_grid_release();
    place[own] = 0;
    __syncthreads();
    for (int64_t slot = own; slot < slots; slot += plan_threads) {
        if (plan_slot(&entry, &weight, p, slot))
            atomicAdd(&place[plan_threads - 1 - weight], 1);
    }
    __syncthreads();
    int count = place[own], sum = count;
    for (int step = 1; step < plan_threads; step *= 2) {
        int other = own >= step ? place[own - step] : 0;
        __syncthreads();
        sum += other;
        place[own] = sum;
        __syncthreads();
    }
    if (own == plan_threads - 1) {
        plan->next = 0;
        plan->count = sum;
    }
    place[own] = sum - count;
    __syncthreads();
    for (int64_t slot = own; slot < slots; slot += plan_threads) {
        if (plan_slot(&entry, &weight, p, slot))
            plan->entries[atomicAdd(&place[plan_threads - 1 - weight], 1)] = entry;
    }
}

/* ---- shared memory --------------------------------------------------------------------------- */

/* What the loader tells the others with the queries of a tile. */
struct tile_order {
    tile_entry entry;
    int head; // -1: no more tiles
};

template <int DIM> struct memory_layout {
    static constexpr int stages = DIM == 64 ? 4 : 2;
    static constexpr int runs = DIM / 64;
    static constexpr int bytes = runs * run_block; // of a tile of queries, a block of keys

    char q[2][bytes]; // [run][row][64], swizzled; later the tile's results
    char k[stages][bytes];
    char v[stages][bytes];
    uint64_t q_full[2], q_empty[2];
    uint64_t k_full[stages], k_empty[stages], v_full[stages], v_empty[stages];
    tile_order order[2];
};

struct tensor_maps {
    CUtensorMap q, k, v;
};

/* What the kernel takes besides the problem. */
struct run_order {
    tile_plan *plan;
    float *spans; // of each block and thread, DIM / 2 floats; NULL: one span
    int section;  // heads whose keys stay in the L2 together
    int heads;
};

/* ---- loading --------------------------------------------------------------------------------- */

template <int DIM> struct loader {
    using layout = memory_layout<DIM>;

    const invar_attention_problem &p;
    const tensor_maps &maps;
    const run_order &order;
    layout &memory;
    invar_ring<layout::stages> at; // of keys and values alike
    invar_ring<2> q_at;

    /* Work number w: sections of heads, in each the tiles in order, in each the section's heads. */
    __device__ __forceinline__ bool find(tile_order *out, int w)
    {
        int count = order.plan->count, whole = count * order.section;
        int section = w / max(whole, 1), first = section * order.section;

        if (w >= count * order.heads)
            return false;
        int heads = min(order.section, order.heads - first), rest = w - section * whole;
        out->entry = order.plan->entries[rest / heads];
        out->head = first + rest % heads;
        return true;
    }

    __device__ __forceinline__ void load_packed(char *to, const CUtensorMap *map,
                                                const tile_order &t, int block, uint64_t *full)
    {
        invar_barrier_expect(full, layout::bytes);
        invar_copy_in(to, map, 0, t.entry.row0 + block * block_keys,
                      t.head / (int)p.form.group * layout::runs, full);
    }

    /* Pages of [begin, end), whole: what else they hold is masked. */
    __device__ __forceinline__ void load_paged(char *to, const CUtensorMap *map,
                                               const tile_order &t, int block, uint64_t *full)
    {
        int size = (int)p.page_size, box = min(size, block_keys);
        int key0 = block * block_keys, head = t.head / (int)p.form.group * layout::runs;
        int64_t top = max(t.entry.before, t.entry.tile * tile_rows);
        int begin = max(key0, (int)invar_attention_first_key(p.form, top)) / box;
        int end = min(key0 + block_keys, min(t.entry.length, (t.entry.tile + 1) * tile_rows));
        invar_attention_sequence s = {t.entry.sequence, 0, 0, 0};

        end = (end + box - 1) / box;
        invar_barrier_expect(full, (uint32_t)((end - begin) * layout::runs * box * run_bytes));
        for (int i = begin; i < end; i++) {
            int page = (int)invar_attention_page(p, s, i * box / size);
            for (int run = 0; run < layout::runs; run++)
                invar_copy_in(to + run * run_block + (i * box - key0) * run_bytes, map, 0,
                              i * box % size, head + run, page, full);
        }
    }

    __device__ __forceinline__ void load(char *to, const CUtensorMap *map, const tile_order &t,
                                         int block, uint64_t *full)
    {
        if (p.paged)
            load_paged(to, map, t, block, full);
        else
            load_packed(to, map, t, block, full);
    }

    __device__ __forceinline__ void run()
    {
        tile_order t;
        int w = atomicAdd(&order.plan->next, 1);

        while (find(&t, w)) {
            w = atomicAdd(&order.plan->next, 1);
            invar_barrier_wait(&memory.q_empty[q_at.stage], q_at.parity ^ 1);
            memory.order[q_at.stage] = t;
            invar_barrier_expect(&memory.q_full[q_at.stage], layout::bytes);
            invar_copy_in(memory.q[q_at.stage], &maps.q, 0, t.entry.row0 + t.entry.tile * tile_rows,
                          t.head * layout::runs, &memory.q_full[q_at.stage]);
            q_at.advance();
            for (int b = first_block(p.form, t.entry); b <= t.entry.tile; b++) {
                invar_barrier_wait(&memory.k_empty[at.stage], at.parity ^ 1);
                load(memory.k[at.stage], &maps.k, t, b, &memory.k_full[at.stage]);
                invar_barrier_wait(&memory.v_empty[at.stage], at.parity ^ 1);
                load(memory.v[at.stage], &maps.v, t, b, &memory.v_full[at.stage]);
                at.advance();
            }
        }
        invar_barrier_wait(&memory.q_empty[q_at.stage], q_at.parity ^ 1);
        memory.order[q_at.stage].head = -1;
        invar_barrier_arrive(&memory.q_full[q_at.stage]);
    }
};

/* ---- computing ------------------------------------------------------------------------------- */

/* True for all 128 threads where it is true for one. */
__device__ __forceinline__ bool any_of_warpgroup(int barrier, bool mine)
{
    int all;

    asm volatile("{.reg .pred mine, all;"
                 "setp.ne.s32 mine, %1, 0;"
                 "barrier.cta.red.or.pred.aligned all, %2, 128, mine;"
                 "selp.s32 %0, 1, 0, all;}"
                 : "=r"(all)
                 : "r"((int)mine), "r"(barrier)
                 : "memory");
    return all != 0;
}

/* Named barriers: turns of the two warpgroups, and each one alone. */
enum { TURN = 1, ALONE = 3 };

template <int DIM, bool WINDOW> struct computer {
    using layout = memory_layout<DIM>;

    const invar_attention_problem &p;
    const run_order &order;
    layout &memory;
    int group; // warpgroup: 0 or 1
    invar_ring<layout::stages> k_at, v_at;
    invar_ring<2> q_at;
    invar_attention_softmax softmax;
    invar_attention_total total;
    float o[DIM / 2];

    __device__ __forceinline__ int lane() const
    {
        return (int)threadIdx.x % 32;
    }

    /* In the tile: the thread's first row; the other is 8 below. */
    __device__ __forceinline__ int row() const
    {
        return 64 * group + (int)threadIdx.x % 128 / 32 * 16 + lane() / 4;
    }

    __device__ __forceinline__ void release(uint64_t *empty)
    {
        if (lane() == 0)
            invar_barrier_arrive(empty);
    }

    /* ---- products ---- */

    /* Issues s = q k^T for the first KEYS keys of the block; a commit must follow. */
    template <int KEYS> __device__ __forceinline__ void issue_scores(float (&s)[KEYS / 2])
    {
        uint64_t q =
            invar_matrix(memory.q[q_at.stage] + 64 * group * run_bytes, 0, 1024, INVAR_SWIZZLE_128);
        uint64_t k = invar_matrix(memory.k[k_at.stage], 0, 1024, INVAR_SWIZZLE_128);

#pragma unroll
        for (int d = 0; d < DIM; d += 16) {
            uint32_t offset = (uint32_t)(d / 64 * run_block + d % 64 * 2) >> 4;
            invar_product_bf16<KEYS, 0, 0>(s, q + offset, k + offset, d > 0);
        }
    }

    /* Issues o += p v for the first STEPS * 16 keys of the block; a commit must follow. */
    template <int STEPS> __device__ __forceinline__ void issue_sums(const uint32_t (&a)[STEPS][4])
    {
        uint64_t v = invar_matrix(memory.v[v_at.stage], run_block, 1024, INVAR_SWIZZLE_128);

#pragma unroll
        for (int g = 0; g < STEPS; g++)
            invar_product_bf16_a<DIM, 1>(o, a[g], v + (uint32_t)(g * 16 * run_bytes >> 4), 1);
    }

    __device__ __forceinline__ void release_keys()
    {
        release(&memory.k_empty[k_at.stage]);
        k_at.advance();
    }

    __device__ __forceinline__ void release_values()
    {
        release(&memory.v_empty[v_at.stage]);
        v_at.advance();
    }

    /* Scores of a block whose turn it is; nothing else is under way. */
    __device__ __forceinline__ void score_alone(float (&s)[block_keys / 2])
    {
        invar_barrier_wait(&memory.k_full[k_at.stage], k_at.parity);
        invar_named_barrier(TURN + group, 256);
        invar_product_fence();
        issue_scores<block_keys>(s);
        invar_product_commit();
        invar_named_arrive(TURN + (group ^ 1), 256);
        invar_product_wait<0>();
        invar_product_hold(s);
        release_keys();
    }

    /* The sums of a block, to their end; nothing else is under way. */
    template <int STEPS> __device__ __forceinline__ void sum_alone(const uint32_t (&a)[STEPS][4])
    {
        invar_product_fence();
        issue_sums(a);
        invar_product_commit();
        invar_product_wait<0>();
        invar_product_hold(o);
    }

    /* True where one of the first KEYS values of a block is an infinity or a NaN. */
    template <int KEYS> __device__ __forceinline__ bool special(int stage)
    {
        uint32_t found = 0;

#pragma unroll
        for (int run = 0; run < layout::runs; run++) {
            const uint4 *words = (const uint4 *)(memory.v[stage] + run * run_block);
#pragma unroll 4
            for (int i = (int)threadIdx.x % 128; i < KEYS * run_bytes / 16; i += 128) {
                uint4 x = words[i];
                found |= invar_attention_special(x.x) | invar_attention_special(x.y) |
                         invar_attention_special(x.z) | invar_attention_special(x.w);
            }
        }
        return any_of_warpgroup(ALONE + group, found != 0);
    }

    /* o += p v row by row, each with the values that it sees. */
    template <int STEPS>
    __device__ __forceinline__ void sum_exact(const uint32_t (&a)[STEPS][4], const int (&begin)[2],
                                              const int (&end)[2])
    {
        const char *v = memory.v[v_at.stage];

#pragma unroll 1
        for (int g = 0; g < STEPS; g++) {
            uint32_t weights[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                weights[j] = a[0][j];
#pragma unroll
                for (int other = 1; other < STEPS; other++)
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
                        int key = 16 * g + 8 * half + 2 * (lane() % 4) + j;
                        pair[j] = *(const uint16_t *)(v + i / 8 * run_block + key * run_bytes +
                                                      ((i ^ key) % 8) * 16 + lane() / 4 * 2);
                    }
                    values[half] = pair[0] | pair[1] << 16;
                }
                invar_attention_step_exact(sum, weights, values, 16 * g, begin, end);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[4 * i + j] = sum[j];
            }
        }
    }

    /* ---- softmax ---- */

    /* The keys of block b that the thread's rows see. */
    __device__ __forceinline__ void ranges(int (&begin)[2], int (&end)[2], const tile_entry &e,
                                           int b) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int64_t position = (int64_t)e.tile * tile_rows + row() + 8 * i;
            int64_t first = WINDOW ? invar_attention_first_key(p.form, position) : 0;
            invar_attention_clip(&begin[i], &end[i], first, position + 1, (int64_t)b * block_keys,
                                 block_keys);
        }
    }

    /* True where some row of the tile does not see all of block b because of the window. */
    __device__ __forceinline__ bool leads(const tile_entry &e, int b) const
    {
        int64_t last = (int64_t)(e.tile + 1) * tile_rows - 1;

        return WINDOW && (int64_t)b * block_keys < invar_attention_first_key(p.form, last);
    }

    /* Multiplication by 1 changes nothing: where a warp has no other factor, it is left out. */
    __device__ __forceinline__ void rescale(const float (&alpha)[2])
    {
        if (__any_sync(0xFFFFFFFFu, alpha[0] != 1.0f || alpha[1] != 1.0f))
            invar_attention_rescale(o, alpha);
    }

    /*
     * A sleep that never happens, sums of p being positive: without it the assembler moves the wait
     * that follows before the softmax, and the products under way have nothing to hide behind.
     */
    __device__ __forceinline__ void keep_before_wait() const
    {
        asm volatile("{.reg .pred never;"
                     "setp.lt.f32 never, %0, 0f00000000;"
                     "@never nanosleep.u32 0;}" ::"f"((softmax.l[0][0] + softmax.l[0][1]) +
                                                      (softmax.l[1][0] + softmax.l[1][1]))
                     : "memory");
    }

    /* ---- blocks ---- */

    /* A block that the window cuts; nothing is under way before or after. */
    __device__ __forceinline__ void take_cut(const tile_entry &e, int b)
    {
        float s[block_keys / 2], alpha[2];
        uint32_t a[block_keys / 16][4];
        int begin[2], end[2];

        score_alone(s);
        ranges(begin, end, e, b);
        const bool seen[2] = {begin[0] < end[0], begin[1] < end[1]};
        invar_attention_mask(s, begin, end);
        invar_attention_take(softmax, alpha, s, p.form.c, seen);
        rescale(alpha);
        invar_attention_round(a, s);
        invar_barrier_wait(&memory.v_full[v_at.stage], v_at.parity);
        if (special<block_keys>(v_at.stage))
            sum_exact(a, begin, end);
        else
            sum_alone(a);
        release_values();
    }

    /*
     * The block on the diagonal, of which the first KEYS keys are seen. PENDING: the sums of the
     * block before it (p in `a`) are still to be issued.
     */
    template <int KEYS, bool PENDING>
    __device__ __forceinline__ void take_diagonal(const tile_entry &e,
                                                  const uint32_t (&a)[block_keys / 16][4])
    {
        float s[KEYS / 2], alpha[2];
        uint32_t own[KEYS / 16][4];
        int begin[2], end[2];
        invar_ring<layout::stages> own_at = v_at;

        invar_barrier_wait(&memory.k_full[k_at.stage], k_at.parity);
        if (PENDING) {
            invar_barrier_wait(&memory.v_full[v_at.stage], v_at.parity);
            own_at.advance();
        }
        invar_named_barrier(TURN + group, 256);
        invar_product_fence();
        issue_scores<KEYS>(s);
        invar_product_commit();
        if (PENDING)
            issue_sums(a);
        invar_product_commit();
        invar_named_arrive(TURN + (group ^ 1), 256);
        invar_barrier_wait(&memory.v_full[own_at.stage], own_at.parity);
        bool exact = special<KEYS>(own_at.stage);
        invar_product_wait<1>();
        invar_product_hold(s);
        release_keys();

        ranges(begin, end, e, e.tile);
        const bool seen[2] = {true, true}; // every row sees itself
        invar_attention_mask(s, begin, end);
        invar_attention_take(softmax, alpha, s, p.form.c, seen);
        keep_before_wait();
        invar_product_wait<0>();
        invar_product_hold(o);
        if (PENDING)
            release_values();
        rescale(alpha);
        invar_attention_round(own, s);
        if (exact)
            sum_exact(own, begin, end);
        else
            sum_alone(own);
        release_values();
    }

    /* The upper rows see half of the block. */
    template <bool PENDING>
    __device__ __forceinline__ void take_diagonal(const tile_entry &e,
                                                  const uint32_t (&a)[block_keys / 16][4])
    {
        if (group == 0)
            take_diagonal<block_keys / 2, PENDING>(e, a);
        else
            take_diagonal<block_keys, PENDING>(e, a);
    }

    /* Blocks [first, stop), all seen whole; the sums of the last one are left to be issued. */
    __device__ __forceinline__ void take_whole(uint32_t (&a)[block_keys / 16][4], int first,
                                               int stop)
    {
        const bool seen[2] = {true, true};
        float s[block_keys / 2], alpha[2];

        score_alone(s);
        invar_attention_take(softmax, alpha, s, p.form.c, seen);
        rescale(alpha);
        invar_attention_round(a, s);
#pragma unroll 1
        for (int b = first + 1; b < stop; b++) {
            invar_barrier_wait(&memory.k_full[k_at.stage], k_at.parity);
            invar_barrier_wait(&memory.v_full[v_at.stage], v_at.parity);
            invar_named_barrier(TURN + group, 256);
            invar_product_fence();
            issue_scores<block_keys>(s);
            invar_product_commit();
            issue_sums(a);
            invar_product_commit();
            invar_named_arrive(TURN + (group ^ 1), 256);
            invar_product_wait<1>();
            invar_product_hold(s);
            release_keys();
            invar_attention_take(softmax, alpha, s, p.form.c, seen);
            keep_before_wait();
            invar_product_wait<0>();
            invar_product_hold(o);
            release_values();
            rescale(alpha);
            invar_attention_round(a, s);
        }
    }

    /* Blocks [first, last] of one span. */
    __device__ __forceinline__ void take_span(const tile_entry &e, int first, int last)
    {
        uint32_t a[block_keys / 16][4];
        int b = first, stop = last < e.tile ? last + 1 : last;

        for (; WINDOW && b < stop && leads(e, b); b++)
            take_cut(e, b);
        if (b < stop) {
            take_whole(a, b, stop);
            if (last == e.tile) {
                take_diagonal<true>(e, a);
            } else {
                invar_barrier_wait(&memory.v_full[v_at.stage], v_at.parity);
                sum_alone(a);
                release_values();
            }
        } else if (last == e.tile) {
            take_diagonal<false>(e, a);
        }
    }

    /* ---- spans and tiles ---- */

    __device__ __forceinline__ void start_span()
    {
        invar_attention_start(softmax);
#pragma unroll
        for (int i = 0; i < DIM / 2; i++)
            o[i] = 0.0f;
    }

    /* Ends the span of keys [span0, stop): o becomes the sum of all spans so far. */
    __device__ __forceinline__ void close_span(const tile_entry &e, int64_t span0, int64_t stop)
    {
        float alpha[2], beta[2],
            *old = order.spans + (int64_t)blockIdx.x * 256 * (DIM / 2) + ((int)threadIdx.x - 128);
        bool sees[2];

#pragma unroll
        for (int i = 0; i < 2; i++) {
            int64_t position = (int64_t)e.tile * tile_rows + row() + 8 * i;
            sees[i] = position >= span0 && invar_attention_first_key(p.form, position) < stop;
        }
        invar_attention_merge(total, alpha, beta, softmax, sees);
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) {
            int r = i / 2 % 2;
            float before = total.started[r] ? old[i * 256] : 0.0f;
            float merged = total.started[r] ? invar_fmaf(o[i], beta[r], before * alpha[r]) : o[i];
            o[i] = sees[r] ? merged : before;
            old[i * 256] = o[i];
        }
        total.started[0] |= sees[0];
        total.started[1] |= sees[1];
    }

    __device__ __forceinline__ void take_tile(const tile_entry &e)
    {
        int first = first_block(p.form, e);

        total.started[0] = total.started[1] = false;
        total.m[0] = total.m[1] = -INFINITY;
#pragma unroll 1
        while (first <= e.tile) {
            int64_t span0 = (int64_t)first * block_keys / p.form.span * p.form.span;
            int64_t stop = span0 + p.form.span;
            int last = stop / block_keys <= e.tile ? (int)(stop / block_keys) - 1 : e.tile;
            start_span();
            take_span(e, first, last);
            if (order.spans)
                close_span(e, span0, stop);
            first = last + 1;
        }
    }

    /* o / l through the memory of the queries, whose last use is over, to whole rows. */
    __device__ __forceinline__ void store(const tile_order &t)
    {
        char *out = memory.q[q_at.stage];
        float l[2];

        invar_named_barrier(ALONE + group, 128);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int r = row() + 8 * i, position = t.entry.tile * tile_rows + r;
            float m = order.spans ? total.m[i] : softmax.m[i];
            l[i] = order.spans ? total.l[i] : invar_attention_fold(softmax.l[i]);
            if (p.lse2 && lane() % 4 == 0 && position >= t.entry.before &&
                position < t.entry.length)
                p.lse2[(int64_t)(t.entry.row0 + position) * p.lse2_stride + t.head] =
                    invar_attention_lse2(l[i], m);
        }
        invar_attention_divide(o, l);
#pragma unroll
        for (int i = 0; i < DIM / 4; i++) {
            int r = row() + i % 2 * 8, column = i / 2;
            *(uint32_t *)(out + column / 8 * run_block + r * run_bytes + (column ^ r) % 8 * 16 +
                          lane() % 4 * 4) = invar_bf16x2_bits(o[2 * i], o[2 * i + 1]);
        }
        __syncwarp();
        int base = row() - lane() / 4;
#pragma unroll
        for (int i = lane(); i < 16 * DIM / 8; i += 32) {
            int r = base + i / (DIM / 8), column = i % (DIM / 8);
            int position = t.entry.tile * tile_rows + r;
            uint4 x = *(const uint4 *)(out + column / 8 * run_block + r * run_bytes +
                                       (column ^ r) % 8 * 16);
            if (position >= t.entry.before && position < t.entry.length)
                *(uint4 *)((uint16_t *)p.o + (int64_t)(t.entry.row0 + position) * p.o_stride +
                           t.head * DIM + column * 8) = x;
        }
        invar_fence_async();
        __syncwarp();
    }

    __device__ __forceinline__ void run()
    {
        if (group == 1)
            invar_named_arrive(TURN, 256);
        for (;;) {
            invar_barrier_wait(&memory.q_full[q_at.stage], q_at.parity);
            tile_order t = memory.order[q_at.stage];
            if (t.head < 0)
                break;
            take_tile(t.entry);
            store(t);
            release(&memory.q_empty[q_at.stage]);
            q_at.advance();
        }
    }
};

template <int DIM> __device__ __forceinline__ void init(memory_layout<DIM> &memory, bool zeros)
{
    constexpr int stages = memory_layout<DIM>::stages;

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            invar_barrier_init(&memory.q_full[i], 1);
            invar_barrier_init(&memory.q_empty[i], 8);
        }
        for (int i = 0; i < stages; i++) {
            invar_barrier_init(&memory.k_full[i], 1);
            invar_barrier_init(&memory.k_empty[i], 8);
            invar_barrier_init(&memory.v_full[i], 1);
            invar_barrier_init(&memory.v_empty[i], 8);
        }
        invar_barrier_init_done();
    }
    // pages that no row sees are not loaded: what stands in their place must be finite
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
                  const __grid_constant__ run_order order)
{
    extern __shared__ __align__(1024) char shared[];
    memory_layout<DIM> &memory = *(memory_layout<DIM> *)shared;

    init(memory, p.paged);
    invar_grid_wait();
    if (threadIdx.x < 128) {
        invar_registers_down<40>();
        if (threadIdx.x == 0)
            loader<DIM>{p, maps, order, memory}.run();
    } else {
        invar_registers_up<232>();
        computer<DIM, WINDOW>{p, order, memory, (int)threadIdx.x / 128 - 1}.run();
    }
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* Boxes of 64 columns and 128 rows, or a page, of all runs of a head, or one. */
invar_status map_rows(CUtensorMap *out, const void *data, int64_t rows, int64_t heads, int64_t dim,
                      int64_t stride)
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
    box.box[1] = tile_rows;
    box.box[2] = (uint32_t)(dim / 64);
    box.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    return invar_tensor_map(out, &box);
}

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

/* As many heads as have keys and values that fit into about half of the L2. */
int section_of(const invar_attention_problem *p)
{
    int64_t positions = p->paged ? p->n_pages * p->page_size : p->n_rows;
    int64_t kv_heads = (INT64_C(24) << 20) / (positions * p->form.dim * 4);

    kv_heads = kv_heads < 1 ? 1 : kv_heads < p->form.kv_heads ? kv_heads : p->form.kv_heads;
    return (int)(kv_heads * p->form.group);
}

/* The kernel may start while the plan is still being made: it waits for it itself. */
template <int DIM, bool WINDOW>
invar_status launch(const invar_device *dev, const tensor_maps &maps,
                    const invar_attention_problem *p, const run_order &order)
{
    const char *what = invar_op_name(p->op);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute early = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)invar_cuda_of(dev)->multiprocessors);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = sizeof(memory_layout<DIM>);
    config.stream = invar_cuda_of(dev)->stream;
    config.attrs = &early;
    config.numAttrs = 1;
    INVAR_CUDA_TRY(what, cudaFuncSetAttribute(forward_wgmma<DIM, WINDOW>,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              (int)config.dynamicSmemBytes));
    INVAR_CUDA_TRY(what, cudaLaunchKernelEx(&config, forward_wgmma<DIM, WINDOW>, maps, *p, order));
    return INVAR_OK;
}

} // namespace

bool invar_attention_wgmma_takes(const invar_device *dev, const invar_attention_problem *p)
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
    // whole pages in a block or whole blocks in a page, and more than a few rows to each sequence
    return ((size >= 8 && size <= block_keys && block_keys % size == 0) ||
            size % block_keys == 0) &&
           p->max_pages * size <= farthest && p->n_rows >= 32 * p->rows.count;
}

size_t invar_attention_wgmma_workspace(const invar_device *dev, const invar_attention_problem *p)
{
    size_t spans = p->form.span < INVAR_ATTENTION_FAR ? (size_t)p->form.dim / 2 * 256 : 0;

    return plan_bytes(p) + spans * sizeof(float) * (size_t)invar_cuda_of(dev)->multiprocessors;
}

invar_status invar_attention_wgmma(const invar_device *dev, const invar_attention_problem *p,
                                   void *workspace)
{
    tensor_maps maps;
    run_order order;
    int64_t heads = p->form.kv_heads * p->form.group;

    order.plan = (tile_plan *)workspace;
    order.spans =
        p->form.span < INVAR_ATTENTION_FAR ? (float *)((char *)workspace + plan_bytes(p)) : nullptr;
    order.section = section_of(p);
    order.heads = (int)heads;
    INVAR_TRY(map_rows(&maps.q, p->q, p->n_rows, heads, p->form.dim, p->q_stride));
    if (p->paged) {
        INVAR_TRY(map_pages(&maps.k, p->k, p, p->k_stride));
        INVAR_TRY(map_pages(&maps.v, p->v, p, p->v_stride));
    } else {
        INVAR_TRY(map_rows(&maps.k, p->k, p->n_rows, p->form.kv_heads, p->form.dim, p->k_stride));
        INVAR_TRY(map_rows(&maps.v, p->v, p->n_rows, p->form.kv_heads, p->form.dim, p->v_stride));
    }
    INVAR_TRY(invar_launch(dev, p->op, plan_tiles, dim3(1), dim3(plan_threads), 0)(*p, order.plan));
    if (p->form.window < INVAR_ATTENTION_FAR)
        return p->form.dim == 64 ? launch<64, true>(dev, maps, p, order)
                                 : launch<128, true>(dev, maps, p, order);
    return p->form.dim == 64 ? launch<64, false>(dev, maps, p, order)
                             : launch<128, false>(dev, maps, p, order);
}
