/*
 * hopper.cuh - instructions of sm_90a that C++ does not offer: barriers, bulk copies, registers.
 *
 * Barriers lie in shared memory and count arrivals of threads and bytes of bulk copies. A phase of
 * a barrier has a parity, which alternates; in a ring of stages the parity changes whenever the
 * ring starts over (invar_ring). Matrix products of a warpgroup are in wgmma.cuh.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_HOPPER_CUH
#define INVAR_KERNELS_CUDA_SM90_HOPPER_CUH

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

__device__ __forceinline__ uint32_t invar_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers in shared memory --------------------------------------------------------------- */

__device__ __forceinline__ void invar_barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(invar_shared_address(barrier)),
                 "r"(arrivals));
}

/*
 * Makes initialized barriers visible. Call it after the initializations, then __syncthreads or a
 * cluster barrier, before other threads use them.
 */
__device__ __forceinline__ void invar_barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void invar_barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(invar_shared_address(barrier))
                 : "memory");
}

/* Returns the cluster address of the barrier at the same offset in block `rank` of the cluster. */
__device__ __forceinline__ uint32_t invar_barrier_there(uint64_t *barrier, uint32_t rank)
{
    uint32_t there;

    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there)
                 : "r"(invar_shared_address(barrier)), "r"(rank));
    return there;
}

/*
 * Arrives at the barrier with this cluster address. Makes no writes of this thread visible. That is
 * enough, and much cheaper, if finished products have only read the memory that the barrier guards.
 */
__device__ __forceinline__ void invar_barrier_free(uint32_t there)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}

__device__ __forceinline__ void invar_barrier_free_at(uint64_t *barrier, uint32_t rank)
{
    invar_barrier_free(invar_barrier_there(barrier, rank));
}

/* Arrives, and announces `bytes` bytes of bulk copies. */
__device__ __forceinline__ void invar_barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     invar_shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

/* Waits until the phase of this parity has completed; parity 1 passes on a new barrier. */
__device__ __forceinline__ void invar_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{.reg .pred over;"
                 "again:"
                 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;"
                 "@!over bra again;}" ::"r"(invar_shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* Returns whether the phase of this parity has completed. */
__device__ __forceinline__ bool invar_barrier_over(uint64_t *barrier, uint32_t parity)
{
    uint32_t over;

    asm volatile("{.reg .pred p;"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;"
                 "selp.u32 %0, 1, 0, p;}"
                 : "=r"(over)
                 : "r"(invar_shared_address(barrier)), "r"(parity)
                 : "memory");
    return over != 0;
}

/*
 * Like invar_barrier_wait, but also makes visible what other blocks of the cluster wrote before
 * they arrived.
 */
__device__ __forceinline__ void invar_barrier_wait_cluster(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{.reg .pred over;"
                 "again:"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 over, [%0], %1;"
                 "@!over bra again;}" ::"r"(invar_shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* Position in a ring of stages, and the parity of its phase. */
template <int STAGES> struct invar_ring {
    int stage = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void advance()
    {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* Waits for `threads` threads at barrier number `id` (1..15) of the block. */
__device__ __forceinline__ void invar_named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Arrives at barrier number `id` of the block without waiting. */
__device__ __forceinline__ void invar_named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Makes this thread's writes to shared memory visible to later bulk copies and products. */
__device__ __forceinline__ void invar_fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/*
 * Returns true in one thread of the warp, always the same one. All threads of the warp must call
 * it.
 */
__device__ __forceinline__ bool invar_elect()
{
    uint32_t mine;

    asm volatile("{.reg .pred p;"
                 "elect.sync _|p, 0xFFFFFFFF;"
                 "selp.u32 %0, 1, 0, p;}"
                 : "=r"(mine));
    return mine != 0;
}

/*
 * Returns `x`, which is the same in all threads of the warp, in a way that tells the compiler so.
 */
__device__ __forceinline__ uint32_t invar_uniform(uint32_t x)
{
    return __reduce_or_sync(0xFFFFFFFFu, x);
}

__device__ __forceinline__ uint32_t invar_cluster_rank()
{
    uint32_t rank;

    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Waits for all threads of the cluster and makes their writes visible. */
__device__ __forceinline__ void invar_cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/*
 * Waits for all threads of the cluster. Orders no memory, and is cheaper than invar_cluster_sync.
 */
__device__ __forceinline__ void invar_cluster_meet()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}

/*
 * Waits until the previous kernel of the stream has ended. A kernel of invar_launch_early may begin
 * while it still runs, and must call this before it touches global memory.
 */
__device__ __forceinline__ void invar_grid_wait()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/*
 * Lets the next kernel of the stream begin as soon as the GPU has room, if it was launched by
 * invar_launch_early.
 */
__device__ __forceinline__ void invar_grid_release()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Calls invar_grid_release and invar_grid_wait, for kernels that start by touching memory. */
__device__ __forceinline__ void invar_grid_begin()
{
    invar_grid_release();
    invar_grid_wait();
}

/* ---- bulk tensor copies ---------------------------------------------------------------------- */

__device__ __forceinline__ void invar_copy_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"((uint64_t)map) : "memory");
}

/*
 * Copies a box to shared memory and completes on `barrier`; x is the contiguous index. Called by
 * one thread.
 */
__device__ __forceinline__ void invar_copy_in(void *to, const CUtensorMap *map, int x, int y,
                                              uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(invar_shared_address(to)),
                 "l"((uint64_t)map), "r"(x), "r"(y), "r"(invar_shared_address(barrier))
                 : "memory");
}

__device__ __forceinline__ void invar_copy_in(void *to, const CUtensorMap *map, int x, int y, int z,
                                              uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(invar_shared_address(to)),
                 "l"((uint64_t)map), "r"(x), "r"(y), "r"(z), "r"(invar_shared_address(barrier))
                 : "memory");
}

__device__ __forceinline__ void invar_copy_in(void *to, const CUtensorMap *map, int x, int y, int z,
                                              int w, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(invar_shared_address(to)),
                 "l"((uint64_t)map), "r"(x), "r"(y), "r"(z), "r"(w),
                 "r"(invar_shared_address(barrier))
                 : "memory");
}

/*
 * Copies a box to the same offset in every block of `mask`, and completes on the barrier of each
 * block.
 */
__device__ __forceinline__ void invar_copy_in_all(void *to, const CUtensorMap *map, int x, int y,
                                                  uint64_t *barrier, uint16_t mask)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(invar_shared_address(to)),
        "l"((uint64_t)map), "r"(x), "r"(y), "r"(invar_shared_address(barrier)), "h"(mask)
        : "memory");
}

__device__ __forceinline__ void invar_copy_in_all(void *to, const CUtensorMap *map, int x, int y,
                                                  int z, uint64_t *barrier, uint16_t mask)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(invar_shared_address(to)),
        "l"((uint64_t)map), "r"(x), "r"(y), "r"(z), "r"(invar_shared_address(barrier)), "h"(mask)
        : "memory");
}

/*
 * Copies a box from shared memory. Call invar_copy_commit afterwards, and wait before the memory is
 * written again.
 */
__device__ __forceinline__ void invar_copy_out(const CUtensorMap *map, int x, int y, int z,
                                               const void *from)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
            (uint64_t)map),
        "r"(x), "r"(y), "r"(z), "r"(invar_shared_address(from))
        : "memory");
}

__device__ __forceinline__ void invar_copy_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until shared memory is still being read by at most PENDING groups of this thread. */
template <int PENDING> __device__ __forceinline__ void invar_copy_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/* Waits until at most PENDING groups of this thread have not been written. */
template <int PENDING> __device__ __forceinline__ void invar_copy_wait()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

/*
 * Copies consecutive bytes to shared memory: a multiple of 16, both addresses aligned to 16. Called
 * by one thread.
 */
__device__ __forceinline__ void invar_copy_in_flat(void *to, const void *from, uint32_t bytes,
                                                   uint64_t *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(invar_shared_address(to)),
                 "l"((uint64_t)__cvta_generic_to_global(from)), "r"(bytes),
                 "r"(invar_shared_address(barrier))
                 : "memory");
}

/* Prefetches consecutive bytes into the L2 cache, for later loads. Called by one thread. */
__device__ __forceinline__ void invar_copy_ahead_flat(const void *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/*
 * Copies consecutive bytes from shared memory. Call invar_copy_commit afterwards, and wait before
 * the memory is written again.
 */
__device__ __forceinline__ void invar_copy_out_flat(void *to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     (uint64_t)__cvta_generic_to_global(to)),
                 "r"(invar_shared_address(from)), "r"(bytes)
                 : "memory");
}

/*
 * Asynchronous copies of this thread to shared memory: 4 bytes, or 16 aligned bytes.
 * invar_load_async_arrive arrives at the barrier when all of them have completed.
 */
__device__ __forceinline__ void invar_load_async_4(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(invar_shared_address(to)),
                 "l"(from)
                 : "memory");
}

__device__ __forceinline__ void invar_load_async_16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(invar_shared_address(to)),
                 "l"(from)
                 : "memory");
}

__device__ __forceinline__ void invar_load_async_arrive(uint64_t *barrier)
{
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(invar_shared_address(barrier))
        : "memory");
}

/* ---- matrix products of a warp --------------------------------------------------------------- */

/* Loads four 8 x 8 matrices of bf16 from shared memory; lane l passes row l % 8 of matrix l / 8. */
template <bool TRANSPOSED>
__device__ __forceinline__ void invar_load_matrices(uint32_t (&m)[4], const void *row)
{
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(invar_shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(invar_shared_address(row))
                     : "memory");
}

/*
 * Stores four 8 x 8 matrices of 16 bits to shared memory; lane l passes row l % 8 of matrix l / 8.
 */
__device__ __forceinline__ void invar_store_matrices(void *row, const uint32_t (&m)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     invar_shared_address(row)),
                 "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
}

/*
 * acc (16 x 8) += A B^T by one warp, with the step of docs/arithmetic.md, section 2. The layout is
 * that of wgmma.cuh, for one warp.
 */
__device__ __forceinline__ void invar_product_warp(float (&acc)[4], const uint32_t (&a)[4],
                                                   const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* ---- registers ------------------------------------------------------------------------------- */

/* Shrink or grow the registers of each thread of the warpgroup to COUNT, a multiple of 8. */
template <int COUNT> __device__ __forceinline__ void invar_registers_down()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void invar_registers_up()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

#endif
