/*
 * skinny_int4.cu - the products with few rows whose weights are int4.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 3:
 *   weights are bf16(q * s); one accumulator per output, tensor-core steps of 16 in ascending k,
 *   + 0, bias in f32, one rounding; then the residual, rounded again.
 *
 * Each warp unpacks up to 16 features into registers and multiplies them with all rows of x; up to
 * 8 of them cost half the work.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/product/skinny_block.cuh"

/* ---- products -------------------------------------------------------------------------------- */

/* bf16(q * s) of two codes q + 8, in the low four bits of either half. */
__device__ __forceinline__ uint32_t unpack_two(uint32_t codes, uint32_t scales)
{
    uint32_t y;

    // 128 + (q + 8) has the code as its lowest bits; taking off 136 is exact, q * s rounds once
    asm("{.reg .b32 q;"
        "lop3.b32 q, %1, 0x000F000F, 0x43004300, 0xEA;"
        "sub.rn.bf16x2 q, q, %3;"
        "mul.rn.bf16x2 %0, q, %2;}"
        : "=r"(y)
        : "r"(codes), "r"(scales), "r"(0x43084308u));
    return y;
}

/*
 * Weights 2 t, 2 t + 1 of the eight in `word`, for thread t of the quad: `pick` takes byte t to the
 * low half and, shifted down by a code, to the high half.
 */
__device__ __forceinline__ uint32_t unpack(uint32_t word, uint32_t pick, uint32_t scales)
{
    return unpack_two(__byte_perm(word, word >> 4, pick), scales);
}

/* Where a thread finds what it needs in the stages; addresses are those of the first one. */
template <int HALVES> struct skinny_lane {
    uint32_t x;            // row and chunk of 16 bytes that it reads for the warp
    uint32_t code[HALVES]; // of its feature's row, swizzled
    uint32_t scale[HALVES];
    uint32_t pick;

    __device__ __forceinline__ skinny_lane(const skinny_plan &plan, const uint8_t *stage)
    {
        int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        int features = plan.features / plan.warps; // of a warp
        uint32_t codes = invar_shared_address(stage) + plan.panels * plan.x_rows * ROW_BYTES;

        x = invar_shared_address(stage) + lane % 8 * ROW_BYTES + ((lane / 8) ^ (lane % 8)) * 16;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            int own = lane / 4 + 8 * h;
            int row = warp * features + (own < features ? own : features - 1);
            code[h] = codes + row * ROW_BYTES + row % 8 * 16;
            scale[h] = codes + plan.features * ROW_BYTES + row * SCALE_BYTES;
        }
        uint32_t t = (uint32_t)lane % 4;
        pick = t | t << 4 | (t + 4) << 8 | (t + 4) << 12;
    }
};

/* The weights of a block of 32 k, as they lie in shared memory. */
template <int HALVES> struct skinny_codes {
    uint4 word[HALVES];
    uint32_t scale[HALVES]; // of this block and its neighbour

    /* Block 0 to 7 of a stage, which lies so many bytes behind the first. */
    __device__ __forceinline__ void load(const skinny_lane<HALVES> &lane, uint32_t stage, int block)
    {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(word[h].x), "=r"(word[h].y), "=r"(word[h].z), "=r"(word[h].w)
                         : "r"((lane.code[h] + stage) ^ (uint32_t)block * 16));
            asm volatile("ld.shared.b32 %0, [%1];"
                         : "=r"(scale[h])
                         : "r"(lane.scale[h] + stage + block / 2 * 4));
        }
    }

    /* As the operand of its two steps. */
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
};

/* TILES times 8 rows of x in a block of 32 k, two registers for each of its two steps. */
template <int TILES> struct skinny_rows {
    uint32_t pair[TILES][2][2];

    __device__ __forceinline__ void load(uint32_t lane, uint32_t stage, uint32_t x_panel, int block)
    {
        uint32_t at = ((lane + stage) ^ (uint32_t)(block % 2) * 64) + block / 2 * x_panel;
#pragma unroll
        for (int i = 0; i < TILES; i++)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(pair[i][0][0]), "=r"(pair[i][0][1]), "=r"(pair[i][1][0]),
                           "=r"(pair[i][1][1])
                         : "r"(at + i * 8 * ROW_BYTES));
    }
};

template <int TILES>
__device__ __forceinline__ void store_int4(const skinny_job &job, const skinny_tile &tile,
                                           const float (&acc)[TILES][4])
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int features = job.plan.features / job.plan.warps;
    const skinny_output &output = job.output[tile.output];

#pragma unroll
    for (int i = 0; i < TILES * 4; i++) {
        int own = lane / 4 + i % 4 / 2 * 8, below = i / 4 * 8 + 2 * (lane % 4) + i % 2;
        int row = tile.row0 + below, col = tile.feature0 + warp * features + own;
        if (own < features && below < tile.rows && col < output.cols)
            store_one(output.out, job.out_bf16, row, col,
                      finish(job, output, acc[i / 4][i % 4], row, col));
    }
}

/*
 * A warp that multiplies. While it multiplies a block of 32 k, it unpacks the next one and reads
 * the one behind that.
 */
template <int TILES, int HALVES>
__device__ void multiply_int4(const skinny_job &job, const skinny_shared &shared)
{
    const skinny_plan &plan = job.plan;
    const skinny_lane<HALVES> lane(plan, shared.stage);
    const uint32_t x_panel = (uint32_t)plan.x_rows * ROW_BYTES;
    int stages = (int)invar_ceil_div(job.k, INT4_PANELS * PANEL);
    skinny_cursor at;

    each_tile(job, shared.first_chunk, [&](const skinny_tile &tile) {
        skinny_codes<HALVES> codes[2];
        skinny_rows<TILES> x[2];
        uint32_t a[2][2][4] = {}, here = (uint32_t)(at.slot * plan.stage_bytes);
        float acc[TILES][4] = {};

        invar_barrier_wait(&shared.full[at.slot], at.parity);
        codes[0].load(lane, here, 0);
        codes[1].load(lane, here, 1);
        x[0].load(lane.x, here, x_panel, 0);
        codes[0].unpack_to(a[0], lane.pick, 0);
        for (int stage = 0; stage < stages; stage++) {
            uint32_t next = here;
            int slot = at.slot;

            at.advance(plan.stages);
#pragma unroll
            for (int i = 0; i < INT4_BLOCKS; i++) {
                if (i == INT4_BLOCKS - 2 && stage + 1 < stages) {
                    next = (uint32_t)(at.slot * plan.stage_bytes);
                    invar_barrier_wait(&shared.full[at.slot], at.parity);
                }
                codes[i % 2].load(lane, i + 2 < INT4_BLOCKS ? here : next, (i + 2) % INT4_BLOCKS);
                x[(i + 1) % 2].load(lane.x, i + 1 < INT4_BLOCKS ? here : next, x_panel,
                                    (i + 1) % INT4_BLOCKS);
                codes[(i + 1) % 2].unpack_to(a[(i + 1) % 2], lane.pick, i + 1);
#pragma unroll
                for (int step = 0; step < 2; step++)
#pragma unroll
                    for (int j = 0; j < TILES; j++)
                        invar_product_warp(acc[j], a[i % 2][step], x[i % 2].pair[j][step]);
            }
            release(&shared.empty[slot]);
            here = next;
        }
        store_int4<TILES>(job, tile, acc);
    });
}

/* ---- kernel ---------------------------------------------------------------------------------- */

template <int TILES, int HALVES>
static __global__ void __launch_bounds__(288, 1) skinny_int4(const __grid_constant__ skinny_job job)
{
    run_block<true>(
        job, [&](const skinny_shared &shared) { multiply_int4<TILES, HALVES>(job, shared); });
}

template <int HALVES> static skinny_kernel kernel_int4(int x_rows)
{
    return x_rows <= 8    ? skinny_int4<1, HALVES>
           : x_rows <= 16 ? skinny_int4<2, HALVES>
           : x_rows <= 32 ? skinny_int4<4, HALVES>
                          : skinny_int4<8, HALVES>;
}

skinny_kernel invar_skinny_int4(const skinny_plan *plan)
{
    return plan->features / plan->warps > 8 ? kernel_int4<2>(plan->x_rows)
                                            : kernel_int4<1>(plan->x_rows);
}
