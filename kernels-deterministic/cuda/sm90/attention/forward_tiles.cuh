/*
 * forward_tiles.cuh - tile list, shared memory, loader and searcher warps of forward_wgmma.cu.
 *
 * plan_tiles lists the tiles of 128 rows, those with most keys first. In the kernel, one warp loads
 * queries, keys and values into rings by bulk copies, with barriers `full` and `empty` for each
 * stage. Three warps search the values of masked blocks for infinities and NaN, which must not meet
 * a row that does not see them; `searched` says that a stage has been searched.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ATTENTION_FORWARD_TILES_CUH
#define INVAR_KERNELS_CUDA_SM90_ATTENTION_FORWARD_TILES_CUH

#include "kernels-deterministic/cuda/sm90/attention/forward.cuh"
#include "kernels-deterministic/cuda/sm90/tensor_map.h"

namespace forward
{
namespace tiles
{

constexpr int tile_rows = 128;
constexpr int warp_rows = 16; // rows of a tile that a computing warp has
constexpr int block_keys = 128;
constexpr int threads = 384;   // one warpgroup loads, two compute
constexpr int searchers = 3;   // warps that search
constexpr int run_bytes = 128; // 64 elements: the width of a swizzled run
constexpr int run_block = tile_rows * run_bytes;
constexpr int64_t farthest = INVAR_ATTENTION_MAX; // limit of numbers that have 32 bits here

/*
 * Returns `x`, which is the same in all threads of the warp, in a way that tells the compiler so.
 */
template <typename T> __device__ __forceinline__ T uniform(T x)
{
    return __shfl_sync(0xFFFFFFFFu, x, 0);
}

/* ---- the list of tiles ----------------------------------------------------------------------- */

/* Tile of up to 128 rows of a sequence, for any head. */
struct tile_entry {
    int sequence, row0, before, length; // fields of invar_attention_sequence
    int tile;                           // positions from 128 * tile on
};

struct tile_plan {
    int next;  // tiles (of any head) that were taken after the first one of each block
    int count; // number of entries
    tile_entry entries[1];
};

constexpr int plan_threads = 1024;

__host__ __device__ int64_t plan_slots(const invar_attention_problem &p)
{
    return p.n_rows / tile_rows + 2 * p.rows.count;
}

/* Returns the first block of keys that the tile sees; the last one is that of its own rows. */
__device__ __forceinline__ int first_block(const invar_cuda_attention_params &form,
                                           const tile_entry &e)
{
    int position = max(tile_rows * e.tile, e.before);

    return (int)invar_attention_first_key(form, position) / block_keys;
}

/* Returns whether some row of the tile does not see all keys of block b. */
template <bool WINDOW>
__device__ __forceinline__ bool is_masked_block(const invar_cuda_attention_params &form, int tile,
                                                int b)
{
    return b == tile || (WINDOW && b * block_keys < (int)invar_attention_first_key(
                                                        form, (tile + 1) * tile_rows - 1));
}

/*
 * Finds the entry of a slot and its weight, which grows with the number of its blocks. Returns
 * false if the slot is empty. Sequence s has the slots from offsets[s] / 128 + 2 s on: rows that
 * are not aligned to tiles touch up to two more of them.
 */
__device__ bool plan_slot(tile_entry *out, int *weight_out, const invar_attention_problem &p,
                          int64_t slot)
{
    int64_t low = 0, high = p.rows.count - 1;
    invar_attention_sequence s;

    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (p.rows.offsets[middle] / tile_rows + 2 * middle <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    if (!invar_attention_find(&s, p, low))
        return false;
    int64_t index = slot - (p.rows.offsets[low] / tile_rows + 2 * low);
    int64_t tile = s.before / tile_rows + index;
    if (index < 0 || tile * tile_rows >= s.length || s.before == s.length)
        return false;
    *out = {(int)low, (int)s.row0, (int)s.before, (int)s.length, (int)tile};
    int weight = (int)tile - first_block(p.form, *out);
    *weight_out = weight < plan_threads ? weight : plan_threads - 1;
    return true;
}

/* Lists all entries by descending weight, by one block: a counting sort. */
__global__ void __launch_bounds__(plan_threads)
    plan_tiles(const __grid_constant__ invar_attention_problem p, tile_plan *plan)
{
    // entries of weight plan_threads - 1 - i, later the index of the next
    __shared__ int place[plan_threads];
    int64_t slots = plan_slots(p);
    int own = (int)threadIdx.x, weight, own_weight = 0;
    tile_entry entry, own_entry; // own_entry: entry of the first slot

    invar_grid_begin();
    bool taken = own < slots && plan_slot(&own_entry, &own_weight, p, own);
    place[own] = 0;
    __syncthreads();
    if (taken)
        atomicAdd(&place[plan_threads - 1 - own_weight], 1);
    for (int64_t slot = own + plan_threads; slot < slots; slot += plan_threads) {
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
    if (taken)
        plan->entries[atomicAdd(&place[plan_threads - 1 - own_weight], 1)] = own_entry;
    for (int64_t slot = own + plan_threads; slot < slots; slot += plan_threads) {
        if (plan_slot(&entry, &weight, p, slot))
            plan->entries[atomicAdd(&place[plan_threads - 1 - weight], 1)] = entry;
    }
}

/* ---- shared memory --------------------------------------------------------------------------- */

/* Assignment that the loader passes to the other warps with the queries of a tile. */
struct tile_assignment {
    tile_entry entry;
    int head; // -1 if there are no more tiles
};

template <int DIM> struct memory_layout {
    static constexpr int stages = DIM == 64 ? 4 : 2;
    static constexpr int runs = DIM / 64;
    // bytes of a tile of queries, or of a block of keys
    static constexpr int bytes = runs * run_block;

    char q[2][bytes]; // [run][row][64], swizzled; later the tile's results
    char k[stages][bytes];
    char v[stages][bytes];
    uint64_t q_full[2], q_empty[2];
    uint64_t k_full[stages], k_empty[stages], v_full[stages], v_empty[stages];
    uint64_t searched[stages];
    tile_assignment order[2];
    int special[stages][searchers]; // each searching warp: a value of the block is not finite
};

/* Returns the floats of a thread in the memory for merged spans. */
template <int DIM> __device__ constexpr int span_floats()
{
    return DIM / 2 + 4;
}

struct tensor_maps {
    CUtensorMap q, k, v;
    CUtensorMap o; // boxes have one run of a warp's rows
};

/* Arguments of the kernel besides the problem. */
struct launch_params {
    tile_plan *plan;
    // (blocks, span_floats, 256) merged spans of the computing threads; NULL if there is one span
    float *spans;
    int section; // heads whose keys stay in the L2 cache together
    int heads;
};

/* ---- loading --------------------------------------------------------------------------------- */

/* Loader warp. Lane 0 issues the copies, except those of pages, which the lanes share. */
template <int DIM> struct loader {
    using layout = memory_layout<DIM>;

    const invar_attention_problem &p;
    const tensor_maps &maps;
    const launch_params &order;
    layout &memory;
    int lane;
    invar_ring<layout::stages> at; // stage of keys and of values
    invar_ring<2> q_at;

    /*
     * Finds the work of number w: sections of heads, in each section the tiles in order, for each
     * tile the heads of the section. Returns false after the last one.
     */
    __device__ __forceinline__ bool find(tile_assignment *out, int w)
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

    /* Returns the number of the next work. Blocks have their first work by their own number. */
    __device__ __forceinline__ int next()
    {
        int w = lane == 0 ? atomicAdd(&order.plan->next, 1) : 0;

        return uniform(w) + (int)gridDim.x;
    }

    /*
     * Pages, or parts of a page, that a block of keys needs, [begin, end); `own_page` is the page
     * that this thread copies, -1 if there is none.
     */
    struct pages {
        int begin, end, own_page;
    };

    __device__ __forceinline__ int box() const
    {
        return min((int)p.page_size, block_keys);
    }

    __device__ __forceinline__ pages find_pages(const tile_assignment &t, int block) const
    {
        int key0 = block * block_keys, top = max(t.entry.before, t.entry.tile * tile_rows);
        int end = min(key0 + block_keys, min(t.entry.length, (t.entry.tile + 1) * tile_rows));
        invar_attention_sequence s = {t.entry.sequence, 0, 0, 0};
        pages x;

        x.begin = max(key0, invar_attention_first(p, top)) / box();
        x.end = (end + box() - 1) / box();
        x.own_page = x.begin + lane < x.end
                         ? (int)invar_attention_page(
                               p, s, (unsigned)((x.begin + lane) * box() / (int)p.page_size))
                         : -1;
        return x;
    }

    /* Loads the pages [begin, end) completely; other keys in them are masked. */
    __device__ __forceinline__ void load_paged(char *to, const CUtensorMap *map, int head,
                                               const pages &x, uint64_t *full)
    {
        int at_key = (x.begin + lane) * box();

        if (lane == 0)
            invar_barrier_expect(full,
                                 (uint32_t)((x.end - x.begin) * layout::runs * box() * run_bytes));
        if (x.own_page >= 0) {
            for (int run = 0; run < layout::runs; run++)
                invar_copy_in(to + run * run_block + at_key % block_keys * run_bytes, map, 0,
                              at_key % (int)p.page_size, head + run, x.own_page, full);
        }
    }

    __device__ __forceinline__ void load_packed(char *to, const CUtensorMap *map, int head, int row,
                                                uint64_t *full)
    {
        if (lane == 0) {
            invar_barrier_expect(full, layout::bytes);
            invar_copy_in(to, map, 0, row, head, full);
        }
    }

    __device__ __forceinline__ void load_block(const tile_assignment &t, int block)
    {
        int head = t.head / (int)p.form.group * layout::runs;
        int row = t.entry.row0 + block * block_keys;
        pages x = {0, 0, -1};

        if (p.paged)
            x = find_pages(t, block);
        invar_barrier_wait(&memory.k_empty[at.stage], at.parity ^ 1);
        if (p.paged)
            load_paged(memory.k[at.stage], &maps.k, head, x, &memory.k_full[at.stage]);
        else
            load_packed(memory.k[at.stage], &maps.k, head, row, &memory.k_full[at.stage]);
        invar_barrier_wait(&memory.v_empty[at.stage], at.parity ^ 1);
        if (p.paged)
            load_paged(memory.v[at.stage], &maps.v, head, x, &memory.v_full[at.stage]);
        else
            load_packed(memory.v[at.stage], &maps.v, head, row, &memory.v_full[at.stage]);
        at.advance();
    }

    __device__ __forceinline__ void run()
    {
        tile_assignment t;
        int w = (int)blockIdx.x;

        while (find(&t, w)) {
            w = next();
            invar_barrier_wait(&memory.q_empty[q_at.stage], q_at.parity ^ 1);
            if (lane == 0)
                memory.order[q_at.stage] = t;
            load_packed(memory.q[q_at.stage], &maps.q, t.head * layout::runs,
                        t.entry.row0 + t.entry.tile * tile_rows, &memory.q_full[q_at.stage]);
            q_at.advance();
            for (int b = first_block(p.form, t.entry); b <= t.entry.tile; b++)
                load_block(t, b);
        }
        invar_barrier_wait(&memory.q_empty[q_at.stage], q_at.parity ^ 1);
        if (lane == 0) {
            memory.order[q_at.stage].head = -1;
            invar_barrier_arrive(&memory.q_full[q_at.stage]);
        }
    }
};

/* ---- searching ------------------------------------------------------------------------------- */

/* Searcher warps: check the values of every masked block before they are summed. */
template <int DIM, bool WINDOW> struct searcher {
    using layout = memory_layout<DIM>;

    const invar_attention_problem &p;
    layout &memory;
    invar_ring<layout::stages> at;
    invar_ring<2> q_at;

    /* Returns whether a value of the slot, in the share of this warp, is an infinity or a NaN. */
    __device__ __forceinline__ bool special()
    {
        const uint4 *words = (const uint4 *)memory.v[at.stage];
        uint32_t found = 0;

#pragma unroll 2
        for (int i = (int)threadIdx.x - 32; i < layout::bytes / 16; i += 32 * searchers) {
            uint4 x = words[i];
            found |= invar_attention_special(x.x) | invar_attention_special(x.y) |
                     invar_attention_special(x.z) | invar_attention_special(x.w);
        }
        return __any_sync(0xFFFFFFFFu, found != 0);
    }

    __device__ __forceinline__ void run()
    {
        int warp = (int)threadIdx.x / 32 - 1;
        bool first = threadIdx.x % 32 == 0;

        for (;;) {
            invar_barrier_wait(&memory.q_full[q_at.stage], q_at.parity);
            tile_assignment t = memory.order[q_at.stage];
            if (t.head < 0)
                break;
            for (int b = first_block(p.form, t.entry); b <= t.entry.tile; b++) {
                invar_barrier_wait(&memory.v_full[at.stage], at.parity);
                bool found = is_masked_block<WINDOW>(p.form, t.entry.tile, b) && special();
                __syncwarp();
                if (first) {
                    memory.special[at.stage][warp] = found;
                    invar_barrier_arrive(&memory.searched[at.stage]);
                    invar_barrier_arrive(&memory.v_empty[at.stage]);
                }
                at.advance();
            }
            q_at.advance();
        }
    }
};

} // namespace tiles
} // namespace forward

#endif
