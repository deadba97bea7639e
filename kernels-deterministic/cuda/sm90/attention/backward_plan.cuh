/*
 * backward_plan.cuh - task list, workspace and row statistics of backward_tensor.cuh.
 *
 * attention_backward_prepare runs before the kernel: its first block lists the tasks, the others
 * compute -lse2 and delta of all rows, tile by tile. Order of the sums of dq (accumulation_order):
 * spans of keys ascend, and within a span blocks descend; each block waits for its predecessor.
 * The bits do not depend on the order of the task list, but the kernel ends only because of it
 * (planner).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ATTENTION_BACKWARD_PLAN_CUH
#define INVAR_KERNELS_CUDA_SM90_ATTENTION_BACKWARD_PLAN_CUH

#include "kernels-deterministic/cuda/sm90/attention/backward_generic.cuh"

namespace backward
{
namespace tensor
{

using bf16 = __nv_bfloat16;

constexpr int KEYS = 128;                   /* keys of a block */
constexpr int QUERIES = 64;                 /* queries of a tile */
constexpr int BOX = 64;                     /* columns of a box, the unit of tiles in shared memory:
                                               rows of 128 bytes */
constexpr int ROW_BYTES = BOX * 2;          /* bytes of a row of a box */
constexpr int GROUP_BYTES = 16 * ROW_BYTES; /* bytes of 16 rows of a box, one step along rows */
constexpr int STAGES = 2;
constexpr int CONSUMERS = 256, THREADS = 128 + CONSUMERS;
constexpr int CONSUMER_WARPS = CONSUMERS / 32;

/* Task: one block of keys of one kv head. A length of 0 means that there are no more tasks. */
struct alignas(16) task {
    int32_t row0, length; /* first row and length of the sample */
    int32_t block, kv_head;
    int32_t slot0;      /* slot of the sample's first tile of queries */
    int32_t begin, end; /* tiles of queries that see the block */
    int32_t low;        /* first block of the block's span of keys */
};

/* Queue from which thread blocks take tasks. */
struct head {
    int32_t next_task; /* index of the next task to hand out */
    int32_t tasks;
    int32_t last;       /* a thread block that takes this task or a later one takes no other */
    int32_t not_finite; /* 1 if a result is NaN: the generic kernel then computes all of them
                           again */
};

/* Arrays in the workspace. */
struct backward_workspace {
    head *state;
    task *tasks;
    int32_t *added;               /* (heads, slots, 2) blocks that have added to each half of the
                                     columns */
    float *rows;                  /* (heads, slots, 2, QUERIES) -lse2, then delta */
    float *sums;                  /* (heads, slots, QUERIES * D) sums of dq in a span of keys */
    float *totals;                /* (heads, slots, QUERIES * D) sums of dq of earlier spans; NULL
                                     if no sample has two spans of keys */
    float *kept;                  /* (workers, 2, 2, KEYS / 2 * D) dk and dv of earlier spans, for
                                     each warpgroup; NULL if no sample has two spans of queries */
    int32_t slots;                /* tiles of queries, including empty ones */
    int32_t workers;              /* thread blocks that take tasks */
    int32_t key_span, query_span; /* blocks of a span of keys, tiles of a span of queries */
};

struct maps {
    CUtensorMap q, d_o, k, v;
};

template <int D> struct form {
    static constexpr int KV_BYTES = KEYS * D * 2, Q_BYTES = QUERIES * D * 2;
    static constexpr int HALF = QUERIES * D / 2; /* floats of half of a tile of dq, by columns: the
                                                    half of one warpgroup */
    static constexpr int SCORES = QUERIES / 2;   /* scores of a thread: 64 keys by QUERIES */
    static constexpr int GRADIENTS = D / 2;      /* values of dk or dv of a thread: 64 keys by D */
    static constexpr int PARTS = D / 4;          /* values of dq of a thread: QUERIES by half of
                                                    D */

    struct alignas(1024) shared {
        unsigned char k[KV_BYTES], v[KV_BYTES];                 /* boxes of (KEYS, 64) */
        unsigned char q[STAGES][Q_BYTES], d_o[STAGES][Q_BYTES]; /* boxes of (QUERIES, 64) */
        unsigned char ds[STAGES][KEYS * QUERIES * 2];           /* boxes of (KEYS, 64 queries) */
        float4 sum[STAGES][2][HALF / 4];                        /* (PARTS / 4, thread) sums of dq of
                                                                   each warpgroup */
        float rows[STAGES][2][QUERIES];                         /* -lse2, delta */
        task tasks[STAGES];
        uint64_t task_full[STAGES], task_empty[STAGES];
        uint64_t k_full, v_full, k_empty, v_empty, ds_free;
        uint64_t q_full[STAGES], d_o_full[STAGES], tile_empty[STAGES];
        uint64_t sum_ready[STAGES][2], sum_added[STAGES][2], sum_free[STAGES][2];
    };
};

/* ---- the order of the sums of dq ------------------------------------------------------------- */

/*
 * Position of a task's block among the blocks that add to the sum of a tile. Spans ascend, and
 * within a span blocks descend. The first block that adds is on the diagonal, the last one has the
 * first key that the tile's first query sees.
 */
struct accumulation_order {
    int before;         /* number of blocks that add before it */
    bool first, last;   /* the block is the first, the last one of its span */
    bool opens, closes; /* the block's span is the first, the last one of the tile */
};

__device__ __forceinline__ accumulation_order accumulation_order_of(const task &job, int tile,
                                                                    int window, int key_span)
{
    int first_key = tile * QUERIES - window + 1, lowest = first_key > 0 ? first_key / KEYS : 0;
    int diagonal = tile * QUERIES / KEYS, end = job.low + key_span;
    int high = diagonal < end ? diagonal : end - 1, low = lowest > job.low ? lowest : job.low;

    return {low - lowest + high - job.block, job.block == high, job.block == low, lowest >= job.low,
            diagonal < end};
}

__device__ __forceinline__ int32_t read_added(const int32_t *added)
{
    int32_t n;

    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(n) : "l"(added) : "memory");
    return n;
}

__device__ __forceinline__ void raise_added(int32_t *added)
{
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(added) : "memory");
}

/* Orders copies of the bulk engine and the counter `added`. */
__device__ __forceinline__ void fence_copies()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* ---- preparation ----------------------------------------------------------------------------- */

/*
 * Returns the REDUCE of LANES * 8 products, 8 in each of LANES neighboring threads. Halves of the
 * sum are folded across threads, each of which keeps one half of its values. Every thread gets the
 * sum.
 */
template <int LANES> __device__ __forceinline__ float fold_products(float (&x)[8])
{
    int held = 8;

#pragma unroll
    for (int half = LANES / 2; half > 0; half /= 2) {
        bool upper = (threadIdx.x & (unsigned)half) != 0;
        if (held > 1) {
            held /= 2;
#pragma unroll
            for (int i = 0; i < held; i++) {
                float given = upper ? x[i] : x[i + held], kept = upper ? x[i + held] : x[i];
                x[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, half);
            }
        } else {
            x[0] = x[0] + __shfl_xor_sync(0xFFFFFFFFu, x[0], half);
        }
    }
#pragma unroll
    for (int half = LANES / 2; half > LANES / 16; half /= 2)
        x[0] = x[0] + __shfl_xor_sync(0xFFFFFFFFu, x[0], half);
    return x[0];
}

/*
 * Computes -lse2 and delta of one tile of queries of one head, and clears the counters of the tile.
 */
template <int D>
__device__ void prepare_rows(const problem<bf16> &call, const backward_workspace &t, int64_t slot,
                             int head)
{
    constexpr int LANES = D / 8, PER_PASS = 256 / LANES;
    int64_t first, sample = invar_attention_slot(&first, call.samples.offsets, call.samples.count,
                                                 1, QUERIES, slot);
    int64_t row0 = call.samples.offsets[sample] + first, end = call.samples.offsets[sample + 1];
    float *rows = t.rows + (head * (int64_t)t.slots + slot) * 2 * QUERIES;
    int part = (int)threadIdx.x % LANES * 8;
    bool good = call.samples.offsets[sample] >= 0 && first >= 0 && end <= call.q.rows;

    if (threadIdx.x == 0)
        *(int2 *)(t.added + 2 * (head * (int64_t)t.slots + slot)) = make_int2(0, 0);
#pragma unroll
    for (int r0 = 0; r0 < QUERIES; r0 += PER_PASS) {
        int r = r0 + (int)threadIdx.x / LANES;
        int64_t row = row0 + r;
        bool real = good && row < end;
        uint4 zero = {}, x = real ? *(const uint4 *)(call.d_o.row(row) + head * D + part) : zero;
        uint4 y = real ? *(const uint4 *)(call.o.row(row) + head * D + part) : zero;
        uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
        float products[8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            products[2 * i] = 0.0f + __uint_as_float(a[i] << 16) * __uint_as_float(b[i] << 16);
            products[2 * i + 1] =
                0.0f + __uint_as_float(a[i] & 0xFFFF0000u) * __uint_as_float(b[i] & 0xFFFF0000u);
        }
        float delta = fold_products<LANES>(products);
        if (part == 0) {
            rows[r] = real ? -call.lse2.row(row)[head] : 0.0f;
            rows[QUERIES + r] = delta;
        }
    }
}

/* Returns the sum of `x` over the lower threads; *all = the sum over all 256 threads. */
__device__ __forceinline__ int sum_before(int x, int *all)
{
    __shared__ int sums[2][256];
    int n = (int)threadIdx.x, from = 0;

    sums[0][n] = x;
    __syncthreads();
    for (int step = 1; step < 256; step *= 2) {
        sums[1 - from][n] = sums[from][n] + (n >= step ? sums[from][n - step] : 0);
        from = 1 - from;
        __syncthreads();
    }
    *all = sums[from][255];
    return sums[from][n] - x;
}

/*
 * Lists the tasks. The order changes no bit, but the kernel must be able to end: a block waits for
 * the block above it in its span, and the first block of a span for the previous span. So the spans
 * of a sample ascend, the blocks of a head in a span descend, and no task waits for a later one.
 * All heads of a span come before the next span, whose tasks then rarely wait.
 *
 * Samples go from long to short. But the tasks of a head get longer, which would leave the longest
 * ones for the end. So the last heads of the last span are listed side by side and turn around
 * halfway: first the shorter half of their tasks, ascending in length, then the longer half,
 * descending. Tasks of the longer half wait for later ones. This is safe because there are no more
 * of them than thread blocks, and a thread block takes only one (head.last): each is taken while
 * others wait for it. Turning around earlier would leave shorter tasks for the end, but those are
 * the ones for which a long task of many query heads soon waits.
 */
struct planner {
    const problem<bf16> &call;
    const backward_workspace &t;
    int32_t *place; /* (256) index of the next task of each kind, in blocks */

    /* Returns the kind of a sample. Kinds are listed in order of descending numbers of blocks. */
    static __device__ __forceinline__ int kind(int blocks)
    {
        return blocks < 255 ? 255 - blocks : 0;
    }

    __device__ int blocks_of(int64_t s) const
    {
        return (int)((call.samples.offsets[s + 1] - call.samples.offsets[s] + KEYS - 1) / KEYS);
    }

    __device__ task task_of(int64_t s, int kv_head, int block, int low) const
    {
        int64_t start = call.samples.offsets[s], length = call.samples.offsets[s + 1] - start;
        // the last query that sees the block's last key
        int64_t last = (int64_t)block * KEYS + KEYS - 2 + call.form.window;
        task job = {};

        job.row0 = (int32_t)start;
        job.length = (int32_t)length;
        job.block = block;
        job.kv_head = kv_head;
        job.slot0 = (int32_t)(start / QUERIES + s);
        job.begin = block * KEYS / QUERIES;
        job.end = (int32_t)((last < length - 1 ? last : length - 1) / QUERIES) + 1;
        job.low = low;
        return job;
    }

    /* Returns the blocks of a span of keys of a sample; its last span may have fewer. */
    __device__ int span_of(int blocks) const
    {
        return blocks < t.key_span ? blocks : t.key_span;
    }

    /*
     * Lists the tasks of a sample, by one warp. Tasks from `turned` on belong to the `heads` heads
     * that turn around.
     */
    __device__ void list(int64_t s, int turned, int heads) const
    {
        int blocks = blocks_of(s), kv_heads = (int)call.form.kv_heads, at = 0;
        int lane = (int)threadIdx.x % 32, span = span_of(blocks);

        if (lane == 0)
            at = atomicAdd(&place[kind(blocks)], blocks);
        at = __shfl_sync(0xFFFFFFFFu, at, 0);
        for (int i = lane; i < blocks * kv_heads; i += 32) {
            int low = i / (span * kv_heads) * span, own = i - low * kv_heads;
            int count = blocks - low < span ? blocks - low : span;
            int block = count - 1 - own % count, n = at * kv_heads + i;
            if (n >= turned) {
                int half = count / 2,
                    row = block >= half ? count - 1 - block : count - half + block;
                n = turned + row * heads + (n - turned) / count;
            }
            t.tasks[n] = task_of(s, own / count, low + block, low);
        }
    }

    /* Lists all tasks, by a block of 256 threads. Lists none if a row offset is invalid. */
    __device__ void run()
    {
        __shared__ int32_t last_kind;
        int thread = (int)threadIdx.x, kv_heads = (int)call.form.kv_heads, total;
        bool good = true;

        for (int64_t s = thread; s < call.samples.count; s += 256)
            good = invar_attention_segment(call.fault, INVAR_OP_ATTENTION_BWD, call.samples,
                                           call.q.rows, s) &&
                   good;
        place[thread] = 0;
        last_kind = 0;
        good = __syncthreads_and(good);
        if (thread == 0)
            *t.state = head{};
        if (!good)
            return;

        for (int64_t s = thread; s < call.samples.count; s += 256)
            atomicAdd(&place[kind(blocks_of(s))], blocks_of(s));
        __syncthreads();
        int own = place[thread];
        if (own > 0)
            atomicMax(&last_kind, thread);
        int before = sum_before(own, &total);
        place[thread] = before;
        __syncthreads();

        int blocks = 255 - last_kind, tasks = total * kv_heads, heads = 0;
        int low = (blocks - 1) / span_of(blocks) * span_of(blocks), count = blocks - low;
        if (last_kind > 0 && count > 1) {
            int samples = low > 0 ? 1 : (total - place[last_kind]) / blocks;
            heads = samples * kv_heads;
            heads = t.workers / (count / 2) < heads ? t.workers / (count / 2) : heads;
        }
        __syncthreads();
        for (int64_t s = thread / 32; s < call.samples.count; s += 8)
            list(s, tasks - heads * count, heads);
        if (thread == 0) {
            t.state->tasks = tasks;
            t.state->last = tasks - heads * (count / 2);
        }
    }
};

template <int D>
__global__ void __launch_bounds__(256)
    attention_backward_prepare(const __grid_constant__ problem<bf16> call,
                               const __grid_constant__ backward_workspace t)
{
    int heads = (int)(call.form.kv_heads * call.form.group);

    if (blockIdx.x == 0) {
        __shared__ int32_t place[256];
        planner p = {call, t, place};
        p.run();
        return;
    }
    prepare_rows<D>(call, t, (blockIdx.x - 1) / heads, (int)((blockIdx.x - 1) % heads));
}

} // namespace tensor
} // namespace backward

#endif
