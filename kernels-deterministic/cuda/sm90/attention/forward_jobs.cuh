/*
 * forward_jobs.cuh - jobs, shared memory and loader warps of forward_decode.cu.
 *
 * A job is a tile of rows with all of its keys, or with those of one span. One warp loads queries
 * and keys, another one loads values. Both fill the same ring, whose slots hold blocks of keys and
 * of values alternately. Each slot has the barriers `full` and `empty`, each job `ready` and
 * `consumed`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ATTENTION_FORWARD_JOBS_CUH
#define INVAR_KERNELS_CUDA_SM90_ATTENTION_FORWARD_JOBS_CUH

#include "kernels-deterministic/cuda/sm90/attention/forward.cuh"
#include "kernels-deterministic/cuda/sm90/tensor_map.h"

namespace forward
{
namespace jobs
{

constexpr int workers = 128; // threads that compute
constexpr int threads = 192;
/* Bytes of the ring: two blocks with 8 rows fit on a multiprocessor, or one with 16. */
constexpr int ring_bytes(int tiles)
{
    return tiles == 1 ? 104 << 10 : 205 << 10;
}

/* The keys of a tile: all that its rows see, or those of one span. */
struct key_range {
    int first, end; // no row sees a key outside of [first, end)
    int begin;      // first key of the first block
};

/* One job: a tile of rows and its keys. */
struct job {
    invar_attention_tile tile; // without rows, it means that there are no more jobs
    key_range keys;
    int span;
};

/*
 * Shared memory for head dims up to DIM and TILES * 8 rows. A slot holds a block of keys or values
 * row by row or, with BOXES, box by box: boxes of 64 columns, swizzled by 128 bytes.
 */
template <int DIM, int TILES, bool BOXES> struct layout {
    static constexpr int rows = 8 * TILES;
    static constexpr int block = DIM > 128 ? 64 : 128;
    static constexpr int padded = DIM + 8; // 8 rows of 16 bytes are in different banks
    static constexpr int pitch = BOXES ? DIM : padded;
    static constexpr int most = ring_bytes(TILES) / (block * pitch * 2);
    static constexpr int slots = most < 8 ? most : 8;
    static constexpr int ahead = BOXES ? 2 : 1; // jobs whose queries are loaded ahead

    alignas(BOXES ? 1024 : 16) uint16_t slot[slots][block * pitch]; // keys, values, keys, ...
    alignas(16) uint16_t q[ahead][rows][padded];
    alignas(16) uint16_t weights[rows][block + 8]; // p, rounded
    job work[ahead];
    float p[block][rows + 1];
    float top[4][rows]; // largest score of each warp's keys
    // factors of earlier sums and of the span that ends; reference and sum of the merged spans
    float alpha[rows], beta[rows], m[rows], l[rows];
    bool started[rows], sees[rows];
    uint64_t full[slots], empty[slots], ready[ahead], consumed[ahead];

    /* Returns the index in a slot of a column of a key. */
    static __device__ __forceinline__ int place(int key, int column)
    {
        if constexpr (BOXES)
            return column / 64 * (block * 64) + key * 64 + ((column / 8 ^ key) & 7) * 8 +
                   column % 8;
        else
            return key * pitch + column;
    }
};

/* Tensor maps of the cache. A box has up to a block of keys of one page, 64 columns of one head. */
struct maps {
    CUtensorMap k, v;
};

/* Results of spans that are computed in parallel: (row and head, span, DIM + 2), of m, l and o. */
struct span_partials {
    float *data; // NULL if one block of the grid has all spans
    int spans;
};

__device__ __forceinline__ void sync_workers()
{
    invar_named_barrier(1, workers);
}

/* Row and head, in q and o, of a row of a tile. */
struct row_and_head {
    int64_t row;
    int head;
};

__device__ __forceinline__ row_and_head row_and_head_of(const invar_attention_problem &p,
                                                        const invar_attention_tile &t, int r)
{
    unsigned group = (unsigned)p.form.group, at = (unsigned)(t.head + r), position = at / group;

    return {t.sequence.row0 + t.position + position,
            (int)(t.kv_head * group + at - position * group)};
}

/* Finds job `index`. Returns false if it has nothing to do. Called by whole warps. */
template <int DIM, int TILES, bool BOXES>
__device__ __forceinline__ bool job_of(job *out, const invar_attention_problem &p,
                                       const span_partials &to, int64_t index)
{
    using shape = layout<DIM, TILES, BOXES>;
    key_range &keys = out->keys;

    out->span = (int)(index % to.spans);
    if (!invar_attention_tile_of(&out->tile, p, shape::rows, index / to.spans))
        return false;
    keys.first = invar_attention_first(p, out->tile.position);
    keys.end = invar_attention_position(p, out->tile, out->tile.count - 1) + 1;
    if (to.data) {
        int64_t begin = out->span * p.form.kv_span, end = begin + p.form.kv_span;
        if (end <= keys.first || begin >= keys.end)
            return false;
        keys.first = max(keys.first, (int)begin);
        keys.end = end < keys.end ? (int)end : keys.end;
    }
    keys.begin = keys.first / shape::block * shape::block;
    return true;
}

/* ---- loading: a warp for queries and keys, one for values ------------------------------------ */

/* Copies 16 bytes to shared memory without waiting, or zeros if `there` is false. */
__device__ __forceinline__ void copy_word(void *to, const void *from, bool there)
{
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(invar_shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
        : "memory");
}

/* Arrives at the barrier as soon as all earlier copies of this thread are complete. */
__device__ __forceinline__ void copy_arrive(uint64_t *barrier)
{
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(invar_shared_address(barrier))
        : "memory");
}

/* Keys or values as a loader reads them. */
struct load_source {
    const void *data;
    const CUtensorMap *map;
};

template <int DIM, int TILES, bool BOXES> struct loader {
    using shape = layout<DIM, TILES, BOXES>;
    static constexpr int words = DIM / 8;                // words of 16 bytes in a row
    static constexpr int runs = DIM < 64 ? 1 : DIM / 64; // runs of columns in a row, one box each

    /* A block of keys of a job; with BOXES, also the box that this thread copies. */
    struct loaded_key_block {
        job work;
        int64_t index;
        int key0;
        int page; // number from the page table; still in flight until it is used
        int inside;
    };

    const invar_attention_problem &p;
    const span_partials &to;
    int64_t jobs;
    shape &memory;
    load_source from;
    bool keys; // loads queries and keys, not values
    invar_ring<shape::slots> at;
    invar_ring<shape::ahead> job_at;

    __device__ __forceinline__ int lane() const
    {
        return (int)threadIdx.x % 32;
    }

    /* ---- jobs ---- */

    /*
     * Passes a job to the computing warps with its queries; columns after the head dim are zeros.
     */
    __device__ __forceinline__ void hand_over(const job &work)
    {
        invar_barrier_wait(&memory.consumed[job_at.stage], job_at.parity ^ 1);
        if (lane() == 0)
            memory.work[job_at.stage] = work;
        for (int i = lane(); i < work.tile.count * words; i += 32) {
            int r = i / words, column = i % words * 8;
            bool there = column < p.form.dim;
            row_and_head own = row_and_head_of(p, work.tile, r);
            copy_word(&memory.q[job_at.stage][r][column],
                      (const uint16_t *)p.q + own.row * p.q_stride + own.head * p.form.dim +
                          (there ? column : 0),
                      there);
        }
        copy_arrive(&memory.ready[job_at.stage]);
        if (lane() == 0)
            invar_barrier_arrive(&memory.ready[job_at.stage]);
        job_at.advance();
    }

    /*
     * Finds the first block of job x.index, or of the next job that has work. Returns false if
     * there is none.
     */
    __device__ __forceinline__ bool begin(loaded_key_block &x)
    {
        while (x.index < jobs && !job_of<DIM, TILES, BOXES>(&x.work, p, to, x.index))
            x.index += gridDim.x;
        x.key0 = x.work.keys.begin;
        return x.index < jobs;
    }

    __device__ __forceinline__ bool advance(loaded_key_block &x)
    {
        x.key0 += shape::block;
        if (x.key0 < x.work.keys.end)
            return true;
        x.index += gridDim.x;
        return begin(x);
    }

    /* ---- boxes ---- */

    __device__ __forceinline__ int box_rows() const
    {
        return p.page_size < shape::block ? (int)p.page_size : shape::block;
    }

    /* Returns the first key of the thread's box. */
    __device__ __forceinline__ int box_key(const loaded_key_block &x) const
    {
        return x.key0 + lane() / runs * box_rows();
    }

    __device__ __forceinline__ bool has_box(const loaded_key_block &x) const
    {
        int key = box_key(x);

        return key < x.key0 + shape::block && key < x.work.keys.end &&
               key + box_rows() > x.work.keys.first;
    }

    __device__ __forceinline__ void look_up_page(loaded_key_block &x)
    {
        unsigned key = (unsigned)box_key(x), size = (unsigned)p.page_size, number = key / size;

        x.inside = (int)(key - number * size);
        x.page = has_box(x) ? p.pages[x.work.tile.sequence.number * p.pages_stride + number] : 0;
    }

    __device__ __forceinline__ void copy_boxes(const loaded_key_block &x)
    {
        int rows = box_rows(), run = lane() % runs;
        bool mine = has_box(x);
        int page = (int)invar_guard(p.fault, p.op, x.page, p.n_pages);
        unsigned boxes = __popc(__ballot_sync(0xFFFFFFFFu, mine));
        uint64_t *full = &memory.full[at.stage];

        invar_barrier_wait(&memory.empty[at.stage], at.parity ^ 1);
        if (lane() == 0)
            invar_barrier_expect(full, boxes * (unsigned)rows * 128);
        __syncwarp();
        if (mine)
            invar_copy_in(&memory.slot[at.stage][(run * shape::block + box_key(x) - x.key0) * 64],
                          from.map, 64 * run, x.work.tile.kv_head, x.inside, page, full);
    }

    /* ---- words ---- */

    __device__ __forceinline__ void copy_words(const loaded_key_block &x)
    {
        // keys that a thread locates, and that the warp copies at once
        constexpr int each = shape::block / 32, together = 32 / words;
        int own = lane() / words, column = lane() % words * 8;
        int64_t row[each];

#pragma unroll
        for (int j = 0; j < each; j++) {
            int key = x.key0 + 32 * j + lane();
            row[j] = -1;
            if (key >= x.work.keys.first && key < x.work.keys.end) {
                int64_t k_at, v_at;
                invar_attention_key(&k_at, &v_at, p, x.work.tile, key);
                row[j] = keys ? k_at : v_at;
            }
        }
        invar_barrier_wait(&memory.empty[at.stage], at.parity ^ 1);
#pragma unroll
        for (int j = 0; j < each; j++) {
#pragma unroll 8
            for (int i = 0; i < 32; i += together) {
                int64_t start = __shfl_sync(0xFFFFFFFFu, row[j], i + own);
                bool there = start >= 0 && column < p.form.dim;
                copy_word(&memory.slot[at.stage][shape::place(32 * j + i + own, column)],
                          (const uint16_t *)from.data + (there ? start + column : 0), there);
            }
        }
        copy_arrive(&memory.full[at.stage]);
    }

    /* ---- all ---- */

    /*
     * Fills every other slot, from the first one on with keys, from the second one on with values.
     */
    __device__ __forceinline__ void run()
    {
        loaded_key_block now;
        bool more;

        if (!keys)
            at.advance();
        now.index = blockIdx.x;
        more = begin(now);
        if (BOXES && more)
            look_up_page(now);
        while (more) {
            loaded_key_block next = now;
            more = advance(next);
            if (BOXES && more)
                look_up_page(next); // in flight while the current block is copied
            if constexpr (BOXES)
                copy_boxes(now);
            else
                copy_words(now);
            if (keys && now.key0 == now.work.keys.begin)
                hand_over(now.work);
            at.advance();
            at.advance();
            now = next;
        }
        now.work.tile.count = 0;
        if (keys)
            hand_over(now.work);
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
};

} // namespace jobs
} // namespace forward

#endif
