/*
 * skinny_mxfp8.cu - products with few rows, weights in mxfp8, x in bf16.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 3:
 *   weights are q * 2^E, exact in bf16; one accumulator per output, tensor-core steps of 16 in
 *   ascending k, + 0, bias in f32, one rounding; then the residual, rounded again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/gemm/skinny_codes.cuh"
#include "kernels-deterministic/math/mx.h"

/* ---- weights --------------------------------------------------------------------------------- */

template <int HALVES> struct mxfp8_codes {
    using lane = skinny_lane<MXFP8_PANELS, MXFP8_SCALES, HALVES>;
    uint4 step[HALVES][2];
    uint32_t scale[HALVES];
    uint32_t nan[HALVES] = {}; // bit 15 or 31 is set if a code so far is NaN

    /*
     * Returns the selector that takes byte 2 t to the low half and byte 2 t + 1 to the high half,
     * twice each.
     */
    static __device__ __forceinline__ uint32_t pick(uint32_t t)
    {
        return 2 * t * 0x11 | (2 * t + 1) * 0x1100;
    }

    __device__ __forceinline__ void load(const lane &at, uint32_t stage, int block)
    {
        constexpr int ROW = ROW_BYTES / 16; // 16-byte steps of a row

#pragma unroll
        for (int h = 0; h < HALVES; h++) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                step[h][i] =
                    load_codes(((at.code[h] + stage) ^ (uint32_t)((2 * block + i) % ROW) * 16) +
                               2 * block / ROW * at.panel);
            asm volatile("ld.shared.u8 %0, [%1];"
                         : "=r"(scale[h])
                         : "r"(at.scale[h] + stage + block));
        }
    }

    __device__ __forceinline__ void unpack_to(uint32_t (&a)[2][4], uint32_t pick, int)
    {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            // 2^(scale - 127); FF is NaN
            uint32_t bits = scale[h] == INVAR_E8M0_NAN ? 0x7FFFu : max(scale[h] << 7, 0x40u);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 &own = step[h][i];
                a[i][h] = unpack(__byte_perm(own.x, own.y, pick), bits * 0x10001u, nan[h]);
                a[i][h + 2] = unpack(__byte_perm(own.z, own.w, pick), bits * 0x10001u, nan[h]);
            }
        }
    }

    /* Makes every output of a feature NaN if one of its weights is NaN. */
    template <int TILES>
    static __device__ __forceinline__ void finish_sum(float (&acc)[TILES][4],
                                                      const mxfp8_codes (&codes)[2])
    {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            uint32_t all = codes[0].nan[h] | codes[1].nan[h];
            all |= __shfl_xor_sync(0xFFFFFFFFu, all, 1);
            all |= __shfl_xor_sync(0xFFFFFFFFu, all, 2);
#pragma unroll
            for (int i = 0; i < TILES * 2; i++)
                if (all & 0x80008000u)
                    acc[i / 2][2 * h + i % 2] = __uint_as_float(INVAR_NAN_BITS);
        }
    }

  private:
    /* Returns two weights, number times scale, from two codes, each of them twice in its half. */
    static __device__ __forceinline__ uint32_t unpack(uint32_t codes, uint32_t scales,
                                                      uint32_t &nan)
    {
        uint32_t y = (codes >> 4 & 0x07F007F0u) | (codes & 0x80008000u);

        nan |= (codes & 0x7F007F00u) + 0x01000100u;
        // the bits of a code are those of its number times 2^-120, also if it is subnormal
        asm("{.reg .b32 q;"
            "mul.rn.bf16x2 q, %1, %3;"
            "mul.rn.bf16x2 %0, q, %2;}"
            : "=r"(y)
            : "r"(y), "r"(scales), "r"(0x7B807B80u));
        return y;
    }
};

/* ---- kernel ---------------------------------------------------------------------------------- */

skinny_kernel invar_skinny_mxfp8(const skinny_plan *plan)
{
    return codes_kernel<MXFP8_PANELS, MXFP8_SCALES, mxfp8_codes>(plan);
}
