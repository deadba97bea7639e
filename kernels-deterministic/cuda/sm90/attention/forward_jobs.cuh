/*
 * forward_jobs.cuh - what goes before the products of forward_decode.cu: the
 * jobs, the memory of a block, and the two warps that bring queries and keys, and values, into it.
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
/* Two blocks with 8 rows fit on a multiprocessor, or one with 16. */
constexpr int ring_bytes(int tiles)
{
    return tiles == 1 ? 104 << 10 : 205 << 10;
}

/* The keys of a tile: all that its rows see, or those of one span. */
struct key_range {
    int first, end; // no row sees a key outside
    int begin;      // of the first block
};

/* One piece of work: a tile of rows and its keys. */
struct job {
    invar_attention_tile tile; // of no rows: there is no more work
    key_range keys;
    int span;
};

/*
 * Head dims up to DIM, TILES * 8 rows. A slot holds a block of keys or values row by row or, with
 * BOXES, box by box: boxes of 64 columns, swizzled by 128 bytes.
 */
template <int DIM, int TILES, bool BOXES> struct layout {
    static constexpr int rows = 8 * TILES;
    static constexpr int block = DIM > 128 ? 64 : 128;
    static constexpr int padded = DIM + 8; // 8 rows of 16 bytes fall on different banks
    static constexpr int pitch = BOXES ? DIM : padded;
    static constexpr int most = ring_bytes(TILES) / (block * pitch * 2);
    static constexpr int slots = most < 8 ? most : 8;
    static constexpr int ahead = BOXES ? 2 : 1; // jobs

    alignas(BOXES ? 1024 : 16) uint16_t slot[slots][block * pitch]; // keys, values, keys ...
    alignas(16) uint16_t q[ahead][rows][padded];
    alignas(16) uint16_t weights[rows][block + 8]; // p, rounded
    job work[ahead];
    float p[block][rows + 1];
    float top[4][rows]; // the largest score of each warp's keys
    // factors of what was summed before, of the span that ends; what the spans sum up to
    float alpha[rows], beta[rows], m[rows], l[rows];
    bool started[rows], sees[rows];
    uint64_t full[slots], empty[slots], ready[ahead], taken[ahead];

    /* Where a slot has a column of a key. */
    static __device__ __forceinline__ int place(int key, int column)
    {
        if constexpr (BOXES)
            return column / 64 * (block * 64) + key * 64 + ((column / 8 ^ key) & 7) * 8 +
                   column % 8;
        else
            return key * pitch + column;
    }
};

/* The cache as boxes: up to a block of keys of one page, 64 columns of one head. */
struct maps {
    CUtensorMap k, v;
};

/* Where results go while spans are apart: (row and head, span, DIM + 2): m, l, o. */
struct parts {
    float *at; // NULL: one block of the grid has all spans
    int spans;
};

__device__ __forceinline__ void sync_workers()
{
    invar_named_barrier(1, workers);
}

/* A row of a tile, among the rows of q and o. */
struct home {
    int64_t row;
    int head;
};

__device__ __forceinline__ home home_of(const invar_attention_problem &p,
                                        const invar_attention_tile &t, int r)
{
    unsigned group = (unsigned)p.form.group, at = (unsigned)(t.head + r), position = at / group;

    return {t.sequence.row0 + t.position + position,
            (int)(t.kv_head * group + at - position * group)};
}

/* Job `index`; false: there is nothing to do. By whole warps. */
template <int DIM, int TILES, bool BOXES>
__device__ __forceinline__ bool job_of(job *out, const invar_attention_problem &p, const parts &to,
                                       int64_t index)
{
    using shape = layout<DIM, TILES, BOXES>;
    key_range &keys = out->keys;

    out->span = (int)(index % to.spans);
    if (!invar_attention_tile_of(&out->tile, p, shape::rows, index / to.spans))
        return false;
    keys.first = invar_attention_first(p, out->tile.position);
    keys.end = invar_attention_position(p, out->tile, out->tile.count - 1) + 1;
    if (to.at) {
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

/* 16 bytes to shared memory without waiting; zeros where `there` is false. */
__device__ __forceinline__ void copy_word(void *to, const void *from, bool there)
{
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(invar_shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
        : "memory");
}

/* Arrives at the barrier as soon as what this thread has copied so far is there. */
__device__ __forceinline__ void copy_arrive(uint64_t *barrier)
{
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(invar_shared_address(barrier))
        : "memory");
}

/* What is brought to the slots of one of the two. */
struct source {
    const void *data;
    const CUtensorMap *map;
};

template <int DIM, int TILES, bool BOXES> struct loader {
    using shape = layout<DIM, TILES, BOXES>;
    static constexpr int words = DIM / 8;                // of a row
    static constexpr int runs = DIM < 64 ? 1 : DIM / 64; // of columns, a box each

    /* A block of keys of a job; with BOXES, where the thread's box of it is. */
    struct piece {
        job work;
        int64_t index;
        int key0;
        int page; // as the table has it: nobody has waited for it yet
        int inside;
    };

    const invar_attention_problem &p;
    const parts &to;
    int64_t jobs;
    shape &memory;
    source from;
    bool keys; // else values
    invar_ring<shape::slots> at;
    invar_ring<shape::ahead> job_at;

    __device__ __forceinline__ int lane() const
    {
        return (int)threadIdx.x % 32;
    }

    /* ---- jobs ---- */

    /* To the workers, with its queries; columns that are not there are zeros. */
    __device__ __forceinline__ void hand_over(const job &work)
    {
        invar_barrier_wait(&memory.taken[job_at.stage], job_at.parity ^ 1);
        if (lane() == 0)
            memory.work[job_at.stage] = work;
        for (int i = lane(); i < work.tile.count * words; i += 32) {
            int r = i / words, column = i % words * 8;
            bool there = column < p.form.dim;
            home own = home_of(p, work.tile, r);
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

    /* The first block of job x.index or of the next one that there is; false: none is left. */
    __device__ __forceinline__ bool begin(piece &x)
    {
        while (x.index < jobs && !job_of<DIM, TILES, BOXES>(&x.work, p, to, x.index))
            x.index += gridDim.x;
        x.key0 = x.work.keys.begin;
        return x.index < jobs;
    }

    __device__ __forceinline__ bool advance(piece &x)
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

    /* The first key of the thread's box. */
    __device__ __forceinline__ int box_key(const piece &x) const
    {
        return x.key0 + lane() / runs * box_rows();
    }

    __device__ __forceinline__ bool has_box(const piece &x) const
    {
        int key = box_key(x);

        return key < x.key0 + shape::block && key < x.work.keys.end &&
               key + box_rows() > x.work.keys.first;
    }

    __device__ __forceinline__ void look_up(piece &x)
    {
        unsigned key = (unsigned)box_key(x), size = (unsigned)p.page_size, number = key / size;

        x.inside = (int)(key - number * size);
        x.page = has_box(x) ? p.pages[x.work.tile.sequence.number * p.pages_stride + number] : 0;
    }

    __device__ __forceinline__ void copy_boxes(const piece &x)
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

    __device__ __forceinline__ void copy_words(const piece &x)
    {
        constexpr int each = shape::block / 32, together = 32 / words; // keys
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

    /* Every other slot, from the first or from the second one on. */
    __device__ __forceinline__ void run()
    {
        piece now;
        bool more;

        if (!keys)
            at.advance();
        now.index = blockIdx.x;
        more = begin(now);
        if (BOXES && more)
            look_up(now);
        while (more) {
            piece next = now;
            more = advance(next);
            if (BOXES && more)
                look_up(next); // on its way while this one is copied
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
