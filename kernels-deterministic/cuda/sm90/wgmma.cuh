/*
 * wgmma.cuh - matrix products of a warpgroup (sm_90a).
 *
 * The instructions are CUTLASS's, which has a type for each width and form; the kernels select them
 * by their numbers. Nothing else of CUTLASS is used: barriers, bulk copies and cluster calls are in
 * hopper.cuh (docs/adr/0010-cuda.md gives the reasons).
 *
 * Accumulator layout of a product (64 x N, f32): thread t of the 128 holds, in acc[4 i + r], row 16
 * (t / 32) + t % 32 / 4 + 8 (r / 2), column 8 i + 2 (t % 4) + r % 2.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_WGMMA_CUH
#define INVAR_KERNELS_CUDA_SM90_WGMMA_CUH

#include <cute/arch/mma_sm90_gmma.hpp>

#include <cstdint>
#include <utility>

#include "kernels-deterministic/cuda/sm90/hopper.cuh"

/*
 * Descriptor of a matrix in shared memory; offsets are in bytes. Layout 1 swizzles by 128 bytes:
 * rows have 128 bytes, and 8 of them form a block of 1024. If K is contiguous, `stride` is 1024,
 * `leading` is unused, and a step along k adds its bytes to the address. If K is outermost
 * (transposed), `stride` is the distance of 8 rows of k (1024), and `leading` is the distance of
 * two runs of 64 elements along m or n.
 */
enum { INVAR_SWIZZLE_NONE = 0, INVAR_SWIZZLE_128 = 1 };

__device__ __forceinline__ uint64_t invar_matrix(const void *at, uint32_t leading, uint32_t stride,
                                                 int swizzle)
{
    uint64_t address = (invar_shared_address(at) & 0x3FFFF) >> 4;

    return address | (uint64_t)((leading & 0x3FFFF) >> 4) << 16 |
           (uint64_t)((stride & 0x3FFFF) >> 4) << 32 | (uint64_t)swizzle << 62;
}

/* Call before the first product after registers of accumulators or of A were written. */
__device__ __forceinline__ void invar_product_fence()
{
    cute::warpgroup_arrive();
}

__device__ __forceinline__ void invar_product_commit()
{
    cute::warpgroup_commit_batch();
}

/*
 * Waits until at most PENDING groups run. Accumulators of finished groups may be read afterwards.
 */
template <int PENDING> __device__ __forceinline__ void invar_product_wait()
{
    cute::warpgroup_wait<PENDING>();
}

/* Keeps the compiler from moving uses of the accumulators across this call. */
template <int COUNT> __device__ __forceinline__ void invar_product_hold(float (&acc)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        cute::warpgroup_fence_operand(acc[i]);
}

/* Instructions with N columns; _a has A in registers. */
template <int N> struct invar_product_of;

#define INVAR_PRODUCT_OF(N)                                                                        \
    template <> struct invar_product_of<N> {                                                       \
        template <int TA, int TB>                                                                  \
        using bf16 =                                                                               \
            cute::SM90::GMMA::MMA_64x##N##x16_F32BF16BF16_SS<(cute::SM90::GMMA::Major)TA,          \
                                                             (cute::SM90::GMMA::Major)TB>;         \
        template <int TB>                                                                          \
        using bf16_a =                                                                             \
            cute::SM90::GMMA::MMA_64x##N##x16_F32BF16BF16_RS<cute::SM90::GMMA::Major::K,           \
                                                             (cute::SM90::GMMA::Major)TB>;         \
        using e4m3 = cute::SM90::GMMA::MMA_64x##N##x32_F32E4M3E4M3_SS_TN<>;                        \
        using e4m3_a = cute::SM90::GMMA::MMA_64x##N##x32_F32E4M3E4M3_RS_TN<>;                      \
    };
INVAR_PRODUCT_OF(8)
INVAR_PRODUCT_OF(16)
INVAR_PRODUCT_OF(32)
INVAR_PRODUCT_OF(64)
INVAR_PRODUCT_OF(128)
INVAR_PRODUCT_OF(192)
INVAR_PRODUCT_OF(256)
#undef INVAR_PRODUCT_OF

template <class INSTRUCTION, int... I, class... OPERANDS>
__device__ __forceinline__ void invar_product_run(std::integer_sequence<int, I...>,
                                                  float (&acc)[sizeof...(I)], int add,
                                                  OPERANDS... operands)
{
    INSTRUCTION::fma(operands..., acc[I]..., (cute::SM90::GMMA::ScaleOut)add);
}

/*
 * acc (64 x N) += A B^T, one step of the contract for each element: 16 products of bf16 or 32 of
 * e4m3. add = 0 starts from +0 instead of acc. TA and TB are set if A or B has K outermost; in e4m3
 * K is contiguous in both.
 */
template <int N, int TA, int TB>
__device__ __forceinline__ void invar_product_bf16(float (&acc)[N / 2], uint64_t a, uint64_t b,
                                                   int add)
{
    invar_product_run<typename invar_product_of<N>::template bf16<TA, TB>>(
        std::make_integer_sequence<int, N / 2>(), acc, add, a, b);
}

template <int N>
__device__ __forceinline__ void invar_product_e4m3(float (&acc)[N / 2], uint64_t a, uint64_t b,
                                                   int add)
{
    invar_product_run<typename invar_product_of<N>::e4m3>(std::make_integer_sequence<int, N / 2>(),
                                                          acc, add, a, b);
}

/*
 * Products with A in registers: four words, rows t % 32 / 4 and + 8, bytes 4 (t % 4) and + 16 of k.
 */
template <int N, int TB>
__device__ __forceinline__ void invar_product_bf16_a(float (&acc)[N / 2], const uint32_t (&a)[4],
                                                     uint64_t b, int add)
{
    invar_product_run<typename invar_product_of<N>::template bf16_a<TB>>(
        std::make_integer_sequence<int, N / 2>(), acc, add, a[0], a[1], a[2], a[3], b);
}

template <int N>
__device__ __forceinline__ void invar_product_e4m3_a(float (&acc)[N / 2], const uint32_t (&a)[4],
                                                     uint64_t b, int add)
{
    invar_product_run<typename invar_product_of<N>::e4m3_a>(
        std::make_integer_sequence<int, N / 2>(), acc, add, a[0], a[1], a[2], a[3], b);
}

#endif
