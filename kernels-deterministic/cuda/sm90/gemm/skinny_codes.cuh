/*
 * skinny_codes.cuh - products with few rows whose weights are codes with a scale for each 32 k.
 *
 * Each warp unpacks up to 16 features into registers and multiplies them with all rows of x; up to
 * 8 features cost half the work. Steps of 16 in ascending k must stay one chain per element.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_GEMM_SKINNY_CODES_CUH
#define INVAR_KERNELS_CUDA_SM90_GEMM_SKINNY_CODES_CUH

#include "kernels-deterministic/cuda/sm90/gemm/skinny_block.cuh"
#include "kernels-deterministic/cuda/sm90/wgmma.cuh"

/*
 * Interface of a format, `Codes`: the weights of a block of 32 k of up to 8 HALVES features, as
 * they lie in shared memory:
 *   lane                    a skinny_lane
 *   pick(t)                 what thread t of a quad passes on to unpack_to
 *   load(lane, stage, i)    loads block i of the stage that is `stage` bytes after the first
 *   unpack_to(a, pick, i)   makes the operand of its two steps: weights 2 t, 2 t + 1 of each eight
 *   finish_sum(acc, codes)  applies to the sums what else the weights of a tile mean for them
 */

/* Addresses in the first stage of what a thread reads. */
template <int PANELS, int SCALES, int HALVES> struct skinny_lane {
    uint32_t x;            // row and chunk of 16 bytes that it reads for the warp
    uint32_t code[HALVES]; // row of its feature, swizzled
    uint32_t panel;        // distance from one panel of codes to the next
    uint32_t scale[HALVES];
    uint32_t pick;

    __device__ __forceinline__ skinny_lane(const skinny_plan &plan, const uint8_t *stage,
                                           uint32_t pick_)
        : pick(pick_)
    {
        int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        int features = plan.features / plan.warps; // features of a warp
        uint32_t codes = invar_shared_address(stage) + plan.panels * plan.x_rows * ROW_BYTES;

        x = invar_shared_address(stage) + lane % 8 * ROW_BYTES + ((lane / 8) ^ (lane % 8)) * 16;
        panel = (uint32_t)plan.features * ROW_BYTES;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            int own = lane / 4 + 8 * h;
            int row = warp * features + (own < features ? own : features - 1);
            code[h] = codes + row * ROW_BYTES + row % 8 * 16;
            scale[h] = codes + PANELS * panel + row * SCALES;
        }
    }
};

/* Loads 16 bytes of codes. */
__device__ __forceinline__ uint4 load_codes(uint32_t at)
{
    uint4 y;

    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(y.x), "=r"(y.y), "=r"(y.z), "=r"(y.w)
                 : "r"(at));
    return y;
}

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
__device__ __forceinline__ void store_codes(const skinny_job &job, const skinny_tile &tile,
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
                      finish_sum(job, output, acc[i / 4][i % 4], row, col));
    }
}

/*
 * Runs a multiplying warp. While it multiplies a block of 32 k, it unpacks the next one and reads
 * the one after that.
 */
template <class Codes, int TILES>
__device__ void multiply_alone(const skinny_job &job, const skinny_shared &shared)
{
    const skinny_plan &plan = job.plan;
    const typename Codes::lane lane(plan, shared.stage, Codes::pick(threadIdx.x % 4));
    const uint32_t x_panel = (uint32_t)plan.x_rows * ROW_BYTES;
    int stages = (int)invar_ceil_div(job.k, CODES_PANELS * PANEL);
    skinny_cursor at;

    each_tile(job, shared.first_chunk, [&](const skinny_tile &tile) {
        Codes codes[2];
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
            for (int i = 0; i < CODES_BLOCKS; i++) {
                if (i == CODES_BLOCKS - 2 && stage + 1 < stages) {
                    next = (uint32_t)(at.slot * plan.stage_bytes);
                    invar_barrier_wait(&shared.full[at.slot], at.parity);
                }
                codes[i % 2].load(lane, i + 2 < CODES_BLOCKS ? here : next, (i + 2) % CODES_BLOCKS);
                x[(i + 1) % 2].load(lane.x, i + 1 < CODES_BLOCKS ? here : next, x_panel,
                                    (i + 1) % CODES_BLOCKS);
                codes[(i + 1) % 2].unpack_to(a[(i + 1) % 2], lane.pick, i + 1);
#pragma unroll
                for (int step = 0; step < 2; step++)
#pragma unroll
                    for (int j = 0; j < TILES; j++)
                        invar_product_warp(acc[j], a[i % 2][step], x[i % 2].pair[j][step]);
            }
            release_slot(&shared.empty[slot]);
            here = next;
        }
        Codes::finish_sum(acc, codes);
        store_codes<TILES>(job, tile, acc);
    });
}

/* Returns the descriptor of a panel of x at this address. */
__device__ __forceinline__ uint64_t rows_at(uint32_t address)
{
    // rows of 128 bytes, swizzled; 1024 bytes from one group of eight rows to the next
    const uint32_t shape = 1024 / 16 | (uint32_t)INVAR_SWIZZLE_128 << 30;

    return (uint64_t)shape << 32 | address / 16;
}

/*
 * Like multiply_alone, by four warps together. While a block of 32 k is multiplied, they unpack the
 * next one.
 */
template <class Codes, int TILES>
__device__ void multiply_together(const skinny_job &job, const skinny_shared &shared)
{
    const skinny_plan &plan = job.plan;
    const typename Codes::lane lane(plan, shared.stage, Codes::pick(threadIdx.x % 4));
    const uint32_t x_panel = (uint32_t)plan.x_rows * ROW_BYTES;
    const uint32_t x0 = invar_shared_address(shared.stage);
    int stages = (int)invar_ceil_div(job.k, CODES_PANELS * PANEL);
    skinny_cursor at;

    each_tile(job, shared.first_chunk, [&](const skinny_tile &tile) {
        Codes codes[2];
        uint32_t a[2][2][4] = {}, here = (uint32_t)(at.slot * plan.stage_bytes);
        float acc[TILES * 4] = {};
        int before = at.slot;

        invar_barrier_wait(&shared.full[at.slot], at.parity);
        codes[0].load(lane, here, 0);
        codes[1].load(lane, here, 1);
        codes[0].unpack_to(a[0], lane.pick, 0);
        for (int stage = 0; stage < stages; stage++) {
            uint32_t next = here;
            int slot = at.slot;

            at.advance(plan.stages);
#pragma unroll
            for (int i = 0; i < CODES_BLOCKS; i++) {
                uint64_t x = rows_at(invar_uniform(x0 + here + i / 2 * x_panel + i % 2 * 64));
                invar_product_fence();
                invar_product_bf16_a<8 * TILES, 0>(acc, a[i % 2][0], x, 1);
                invar_product_bf16_a<8 * TILES, 0>(acc, a[i % 2][1], x + 2, 1);
                invar_product_commit();
                if (i == CODES_BLOCKS - 2 && stage + 1 < stages) {
                    next = (uint32_t)(at.slot * plan.stage_bytes);
                    invar_barrier_wait(&shared.full[at.slot], at.parity);
                }
                codes[i % 2].load(lane, i + 2 < CODES_BLOCKS ? here : next, (i + 2) % CODES_BLOCKS);
                // no product reads the registers to unpack into, or the previous stage
                invar_product_wait<1>();
                if (i == 0 && stage > 0)
                    release_slot(&shared.empty[before]);
                codes[(i + 1) % 2].unpack_to(a[(i + 1) % 2], lane.pick, i + 1);
            }
            before = slot;
            here = next;
        }
        invar_product_wait<0>();
        invar_product_hold(acc);
        release_slot(&shared.empty[before]);
        float(&sums)[TILES][4] = *(float(*)[TILES][4])acc;
        Codes::finish_sum(sums, codes);
        store_codes<TILES>(job, tile, sums);
    });
}

/*
 * Runs the faster of the two: from about 32 rows on it pays that x need not go through registers.
 */
template <int PANELS, int SCALES, class Codes, int TILES>
static __global__ void __launch_bounds__(288, 1)
    skinny_codes(const __grid_constant__ skinny_job job)
{
    run_block<PANELS, SCALES>(job, [&](const skinny_shared &shared) {
        if constexpr (TILES >= 4)
            multiply_together<Codes, TILES>(job, shared);
        else
            multiply_alone<Codes, TILES>(job, shared);
    });
}

template <int PANELS, int SCALES, class Codes> static skinny_kernel codes_for_rows(int x_rows)
{
    return x_rows <= 8    ? skinny_codes<PANELS, SCALES, Codes, 1>
           : x_rows <= 16 ? skinny_codes<PANELS, SCALES, Codes, 2>
           : x_rows <= 32 ? skinny_codes<PANELS, SCALES, Codes, 4>
                          : skinny_codes<PANELS, SCALES, Codes, 8>;
}

/* Returns the kernel of a format; `Codes` has the number of halves as its parameter. */
template <int PANELS, int SCALES, template <int> class Codes>
static skinny_kernel codes_kernel(const skinny_plan *plan)
{
    return plan->features / plan->warps > 8
               ? codes_for_rows<PANELS, SCALES, Codes<2>>(plan->x_rows)
               : codes_for_rows<PANELS, SCALES, Codes<1>>(plan->x_rows);
}

#endif
