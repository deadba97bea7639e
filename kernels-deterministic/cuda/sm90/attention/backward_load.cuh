/*
 * backward_load.cuh - producer warps of backward_tensor.cuh, which move tiles and sums of dq.
 *
 * One thread of each warp works: the first hands out tasks and loads q, d_o, k and v to shared
 * memory, the second loads sums of dq, the other two store one half of them each. A block may add
 * to a sum only after all blocks before it (accumulation_order): `added` in device memory counts
 * them, and the second thread waits for it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ATTENTION_BACKWARD_LOAD_CUH
#define INVAR_KERNELS_CUDA_SM90_ATTENTION_BACKWARD_LOAD_CUH

#include "kernels-deterministic/cuda/sm90/attention/backward_plan.cuh"
#include "kernels-deterministic/cuda/sm90/tensor_map.h"

namespace backward
{
namespace tensor
{

/* Position in a ring of STAGES stages, counted in steps. */
struct ring_position {
    uint32_t count;

    __device__ __forceinline__ int stage() const
    {
        return (int)(count % STAGES);
    }

    __device__ __forceinline__ uint32_t parity() const
    {
        return count / STAGES % 2;
    }
};

/* Arguments of the kernel. */
struct kernel_args {
    maps map;
    backward_workspace table;
    invar_view<bf16> dq, dk, dv;
    float scale, c;
    int32_t group, window;
};

/*
 * Iterates over the tiles of a task in the order of its chains: spans of queries ascending, in each
 * span the query heads of the group, for each head the tiles that see the block.
 */
struct query_tile_iterator {
    int query_head, tile;
    int begin, end; /* tiles of the span */

    __device__ __forceinline__ query_tile_iterator(const task &job, const kernel_args &a)
        : query_head(job.kv_head * a.group), tile(job.begin), begin(job.begin)
    {
        set_end(job, (job.begin / a.table.query_span + 1) * a.table.query_span);
    }

    /*
     * Advances to the next tile. Returns true if the tile was the last of its span. After the last
     * tile of the task, `tile` is job.end.
     */
    __device__ __forceinline__ bool advance(const task &job, const kernel_args &a)
    {
        if (++tile < end)
            return false;
        tile = begin;
        if (++query_head < (job.kv_head + 1) * a.group)
            return false;
        query_head = job.kv_head * a.group;
        tile = begin = end;
        set_end(job, end + a.table.query_span);
        return true;
    }

  private:
    __device__ __forceinline__ void set_end(const task &job, int span_end)
    {
        end = span_end < job.end ? span_end : job.end;
    }
};

template <int D> struct producer {
    using shared = typename form<D>::shared;

    static constexpr int HALF_BYTES = form<D>::HALF * (int)sizeof(float);

    shared &m;
    const kernel_args &a;

    /* Calls f(task, query head, tile, ring position) for all tiles of all tasks. */
    template <typename F> __device__ void each_tile(F f)
    {
        ring_position tile_turn = {0};

        for (ring_position now = {0};; now.count++) {
            invar_barrier_wait(&m.task_full[now.stage()], now.parity());
            task job = m.tasks[now.stage()];
            invar_barrier_arrive(&m.task_empty[now.stage()]);
            if (job.length == 0)
                return;
#pragma unroll 1
            for (query_tile_iterator at(job, a); at.tile < job.end;
                 at.advance(job, a), tile_turn.count++)
                f(job, at.query_head, at.tile, tile_turn);
        }
    }

    __device__ int64_t slot(const task &job, int query_head, int tile) const
    {
        return query_head * (int64_t)a.table.slots + job.slot0 + tile;
    }

    template <int ROWS>
    __device__ void load_boxes(unsigned char *to, const CUtensorMap *map, int column, int row,
                               uint64_t *barrier)
    {
#pragma unroll
        for (int i = 0; i < D / BOX; i++)
            invar_copy_in(to + i * ROWS * ROW_BYTES, map, column + i * BOX, row, barrier);
    }

    __device__ void load_keys(const task &job, uint32_t tasks_before)
    {
        int row = job.row0 + job.block * KEYS, column = job.kv_head * D;

        invar_barrier_wait(&m.v_empty, (tasks_before & 1) ^ 1);
        invar_barrier_expect(&m.v_full, form<D>::KV_BYTES);
        load_boxes<KEYS>(m.v, &a.map.v, column, row, &m.v_full);
        invar_barrier_wait(&m.k_empty, (tasks_before & 1) ^ 1);
        invar_barrier_expect(&m.k_full, form<D>::KV_BYTES);
        load_boxes<KEYS>(m.k, &a.map.k, column, row, &m.k_full);
    }

    __device__ void load_queries(const task &job, int query_head, int tile, ring_position now)
    {
        int stage = now.stage(), row = job.row0 + tile * QUERIES, column = query_head * D;
        constexpr int BYTES = 2 * QUERIES * (int)sizeof(float);

        invar_barrier_wait(&m.tile_empty[stage], now.parity() ^ 1);
        invar_barrier_expect(&m.q_full[stage], form<D>::Q_BYTES + BYTES);
        load_boxes<QUERIES>(m.q[stage], &a.map.q, column, row, &m.q_full[stage]);
        invar_copy_in_flat(m.rows[stage], a.table.rows + slot(job, query_head, tile) * 2 * QUERIES,
                           BYTES, &m.q_full[stage]);
        invar_barrier_expect(&m.d_o_full[stage], form<D>::Q_BYTES);
        load_boxes<QUERIES>(m.d_o[stage], &a.map.d_o, column, row, &m.d_o_full[stage]);
    }

    /*
     * Hands out tasks and loads their operands, in the order in which the previous task releases
     * their memory: the first tile, v, k.
     */
    __device__ void load_operands()
    {
        ring_position tile_turn = {0};
        int32_t tasks = a.table.state->tasks, last = a.table.state->last, next_task = -1;

        for (ring_position now = {0};; now.count++) {
            invar_barrier_wait(&m.task_empty[now.stage()], now.parity() ^ 1);
            next_task = next_task < last ? atomicAdd(&a.table.state->next_task, 1) : tasks;
            task job = next_task < tasks ? a.table.tasks[next_task] : task{};
            m.tasks[now.stage()] = job;
            invar_barrier_arrive(&m.task_full[now.stage()]);
            if (job.length == 0)
                return;
            uint32_t first = tile_turn.count;
#pragma unroll 1
            for (query_tile_iterator at(job, a); at.tile < job.end;
                 at.advance(job, a), tile_turn.count++) {
                load_queries(job, at.query_head, at.tile, tile_turn);
                if (tile_turn.count == first)
                    load_keys(job, now.count);
            }
        }
    }

    /*
     * Loads the sums of dq of each tile, after the preceding block has added to them. The half of
     * the second warpgroup comes first, because that warpgroup is the first to use it.
     */
    __device__ void load_sums()
    {
        each_tile([&](const task &job, int query_head, int tile, ring_position now) {
            int stage = now.stage();
            accumulation_order in = accumulation_order_of(job, tile, a.window, a.table.key_span);

            for (int half = 1; half >= 0; half--) {
                int64_t at = 2 * slot(job, query_head, tile) + half;
                invar_barrier_wait(&m.sum_free[stage][half], now.parity() ^ 1);
                if (in.before > 0)
                    while (read_added(a.table.added + at) < in.before) {
                    }
                if (in.first) {
                    invar_barrier_arrive(&m.sum_ready[stage][half]);
                    continue;
                }
                fence_copies();
                invar_barrier_expect(&m.sum_ready[stage][half], HALF_BYTES);
                invar_copy_in_flat(m.sum[stage][half], a.table.sums + at * form<D>::HALF,
                                   HALF_BYTES, &m.sum_ready[stage][half]);
            }
        });
    }

    /*
     * Stores one half of each sum and lets the next block add. The last block of a span has stored
     * the sum itself.
     */
    __device__ void store_sums(int half)
    {
        each_tile([&](const task &job, int query_head, int tile, ring_position now) {
            int stage = now.stage();
            int64_t at = 2 * slot(job, query_head, tile) + half;
            accumulation_order in = accumulation_order_of(job, tile, a.window, a.table.key_span);

            invar_barrier_wait(&m.sum_added[stage][half], now.parity());
            if (in.last) {
                invar_barrier_arrive(&m.sum_free[stage][half]);
                if (!in.closes)
                    raise_added(a.table.added + at);
                return;
            }
            invar_copy_out_flat(a.table.sums + at * form<D>::HALF, m.sum[stage][half], HALF_BYTES);
            invar_copy_commit();
            invar_copy_wait_read<0>();
            invar_barrier_arrive(&m.sum_free[stage][half]);
            invar_copy_wait<0>();
            fence_copies();
            raise_added(a.table.added + at);
        });
    }
};

} // namespace tensor
} // namespace backward

#endif
