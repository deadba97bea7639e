/*
 * skinny_int4.cu - products with few rows, weights in int4.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 3:
 *   weights are bf16(q * s); one accumulator per output, tensor-core steps of 16 in ascending k,
 *   + 0, bias in f32, one rounding; then the residual, rounded again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/gemm/skinny_codes.cuh"

/* ---- weights --------------------------------------------------------------------------------- */

/* Returns bf16(q * s) of two codes q + 8, in the low four bits of either half. */
__device__ __forceinline__ uint32_t unpack_two(uint32_t codes, uint32_t scales)
{
    uint32_t y;

    // 128 + (q + 8) has the code as its lowest bits; subtracting 136 is exact, q * s rounds once
    asm("{.reg .b32 q;"
        "lop3.b32 q, %1, 0x000F000F, 0x43004300, 0xEA;"
        "sub.rn.bf16x2 q, q, %3;"
        "mul.rn.bf16x2 %0, q, %2;}"
        : "=r"(y)
        : "r"(codes), "r"(scales), "r"(0x43084308u));
    return y;
}

/*
 * Returns weights 2 t and 2 t + 1 of the eight in `word`, for thread t of the quad. `pick` takes
 * byte t to the low half and, shifted down by a code, to the high half.
 */
__device__ __forceinline__ uint32_t unpack(uint32_t word, uint32_t pick, uint32_t scales)
{
    return unpack_two(__byte_perm(word, word >> 4, pick), scales);
}

template <int HALVES> struct int4_codes {
    using lane = skinny_lane<INT4_PANELS, INT4_SCALES, HALVES>;
    uint4 word[HALVES];
    uint32_t scale[HALVES]; // scales of this block and its neighbor

    static __device__ __forceinline__ uint32_t pick(uint32_t t)
    {
        return t | t << 4 | (t + 4) << 8 | (t + 4) << 12;
    }

    __device__ __forceinline__ void load(const lane &at, uint32_t stage, int block)
    {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            word[h] = load_codes((at.code[h] + stage) ^ (uint32_t)block * 16);
            asm volatile("ld.shared.b32 %0, [%1];"
                         : "=r"(scale[h])
                         : "r"(at.scale[h] + stage + block / 2 * 4));
        }
    }

    __device__ __forceinline__ void unpack_to(uint32_t (&a)[2][4], uint32_t pick, int block) const
    {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            uint32_t both = __byte_perm(scale[h], 0, block % 2 ? 0x3232 : 0x1010);
            a[0][h] = unpack(word[h].x, pick, both);
            a[0][h + 2] = unpack(word[h].y, pick, both);
            a[1][h] = unpack(word[h].z, pick, both);
            a[1][h + 2] = unpack(word[h].w, pick, both);
        }
    }

    template <int TILES>
    static __device__ __forceinline__ void finish_sum(float (&)[TILES][4], const int4_codes (&)[2])
    {
    }
};

/* ---- kernel ---------------------------------------------------------------------------------- */

skinny_kernel invar_skinny_int4(const skinny_plan *plan)
{
    return codes_kernel<INT4_PANELS, INT4_SCALES, int4_codes>(plan);
}
