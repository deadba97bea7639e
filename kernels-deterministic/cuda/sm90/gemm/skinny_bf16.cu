/*
 * skinny_bf16.cu - products with few rows, weights in bf16.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 3:
 *   one accumulator per output, tensor-core steps of 16 in ascending k, + 0, bias in f32, one
 *   rounding; then the residual, rounded again.
 *
 * Four warps multiply together. x is the operand of 64 rows, however many it has, because w is then
 * the operand whose extent, the features, comes in multiples of 8. If gated, a tile has features of
 * the gate and after them the same features of `up`, so that a thread has both and can write their
 * activation too.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/gemm/skinny_block.cuh"
#include "kernels-deterministic/cuda/sm90/wgmma.cuh"

/* ---- outputs --------------------------------------------------------------------------------- */

/* Stores columns col and, if `both`, col + 1. */
__device__ __forceinline__ void store_two(const skinny_rows_out &out, bool bf16, int row, int col,
                                          bool both, float y0, float y1)
{
    int64_t at = row * out.stride + col;

    if (!out.pairs || !both) {
        store_one(out, bf16, row, col, y0);
        if (both)
            store_one(out, bf16, row, col + 1, y1);
    } else if (bf16) {
        *(uint32_t *)((__nv_bfloat16 *)out.data + at) = invar_bf16x2_bits(y0, y1);
    } else {
        *(float2 *)((float *)out.data + at) = make_float2(y0, y1);
    }
}

/* Finishes and stores accumulators of columns col and col + 1, as far as they exist. */
__device__ __forceinline__ void finish_two(const skinny_job &job, const skinny_output &output,
                                           int row, int col, const float *acc)
{
    bool both = col + 1 < output.cols;

    if (col >= output.cols)
        return;
    float y0 = finish_sum(job, output, acc[0], row, col);
    float y1 = both ? finish_sum(job, output, acc[1], row, col + 1) : 0.0f;
    store_two(output.out, job.out_bf16, row, col, both, y0, y1);
}

/* Stores columns col and col + 1 of bf16, as rounded already. */
__device__ __forceinline__ void store_word(const skinny_rows_out &out, int row, int col, bool both,
                                           uint32_t word)
{
    uint16_t *to = (uint16_t *)out.data + row * out.stride + col;

    if (!out.data)
        return;
    if (both && out.pairs) {
        *(uint32_t *)to = word;
        return;
    }
    to[0] = (uint16_t)word;
    if (both)
        to[1] = (uint16_t)(word >> 16);
}

/*
 * Finishes and stores COUNT pairs of columns, 8 apart, of both matrices, and their activation, from
 * accumulators that are 4 apart. Eight at a time, so that their chains of arithmetic overlap.
 */
template <int COUNT>
__device__ __forceinline__ void finish_gated(const skinny_job &job, int row, int col0,
                                             const float *gate_acc, const float *up_acc)
{
    const skinny_output &gate = job.output[0], &up = job.output[1];

#pragma unroll
    for (int first = 0; first < COUNT; first += 4) {
        invar_run<__nv_bfloat16> g, u, act;
        g.clear();
        u.clear();
#pragma unroll
        for (int i = 0; i < 4 && first + i < COUNT; i++) {
            int at = 4 * (first + i), last = gate.cols - 1, col = col0 + 8 * (first + i);
            int left = min(col, last), right = min(col + 1, last);
            g.word[i] = invar_bf16x2_bits(finish_sum(job, gate, gate_acc[at], row, left),
                                          finish_sum(job, gate, gate_acc[at + 1], row, right));
            u.word[i] = invar_bf16x2_bits(finish_sum(job, up, up_acc[at], row, left),
                                          finish_sum(job, up, up_acc[at + 1], row, right));
        }
        act = invar_gated(g, u);
#pragma unroll
        for (int i = 0; i < 4 && first + i < COUNT; i++) {
            int col = col0 + 8 * (first + i);
            bool both = col + 1 < gate.cols;
            if (col >= gate.cols)
                continue;
            store_word(gate.out, row, col, both, g.word[i]);
            store_word(up.out, row, col, both, u.word[i]);
            store_word(job.act, row, col, both, act.word[i]);
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Returns the descriptor of a panel at `at`, an address in units of 16 bytes. */
__device__ __forceinline__ uint64_t panel_at(uint32_t at)
{
    // rows of 128 bytes, swizzled; 1024 bytes from one group of eight rows to the next
    const uint32_t shape = 1024 / 16 | (uint32_t)INVAR_SWIZZLE_128 << 30;

    return (uint64_t)shape << 32 | at;
}

/* Adds one step for N columns, by the powers of two that make up N, largest first. */
template <int N> __device__ __forceinline__ void step_bf16(float *acc, uint64_t x, uint64_t w)
{
    constexpr int LARGEST = N >= 128 ? 128 : N >= 64 ? 64 : N >= 32 ? 32 : N >= 16 ? 16 : 8;

    invar_product_bf16<LARGEST, 0, 0>(*(float(*)[LARGEST / 2]) acc, x, w, 1);
    if constexpr (N > LARGEST)
        step_bf16<N - LARGEST>(acc + LARGEST / 2, x, w + LARGEST * ROW_BYTES / 16);
}

template <int N>
__device__ __forceinline__ void store_bf16(const skinny_job &job, const skinny_tile &tile,
                                           const float (&acc)[N / 2])
{
    int thread = (int)threadIdx.x, lane = thread % 32;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = thread / 32 * 16 + lane / 4 + 8 * half;
        if (row >= tile.rows)
            continue;
        int col = tile.feature0 + 2 * (lane % 4);
        if (N % 16 == 0 && job.gated)
            finish_gated<N / 16>(job, tile.row0 + row, col, acc + 2 * half, acc + N / 4 + 2 * half);
        else
#pragma unroll
            for (int i = 0; i < N / 8; i++)
                finish_two(job, job.output[tile.output], tile.row0 + row, col + 8 * i,
                           acc + 4 * i + 2 * half);
    }
}

/* Starts the products of two panels; addresses in units of 16 bytes. */
template <int N>
__device__ __forceinline__ void start_bf16(float (&acc)[N / 2], uint32_t x_at, uint32_t w_at,
                                           uint32_t x_panel)
{
    uint64_t x[2] = {panel_at(invar_uniform(x_at)), panel_at(invar_uniform(x_at + x_panel))};
    uint64_t w = panel_at(invar_uniform(w_at));

    invar_product_fence();
#pragma unroll
    for (uint32_t s = 0; s < 2 * PANEL / 16; s++)
        step_bf16<N>(acc, x[s / 4] + s % 4 * 2, w + s / 4 * (N * ROW_BYTES / 16) + s % 4 * 2);
    invar_product_commit();
}

/* Runs the four warps that multiply. */
template <int N> __device__ void multiply_bf16(const skinny_job &job, const skinny_shared &shared)
{
    const skinny_plan &plan = job.plan;
    const uint32_t x_panel = (uint32_t)plan.x_rows * ROW_BYTES / 16, w_panel = N * ROW_BYTES / 16;
    uint32_t stage0 = invar_shared_address(shared.stage) / 16;
    int stages = (int)invar_ceil_div(job.k, plan.panels * PANEL);
    skinny_cursor at;
    float acc[N / 2];

    each_tile(job, shared.first_chunk, [&](const skinny_tile &tile) {
        int before = at.slot;
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[i] = 0.0f;
        for (int stage = 0; stage < stages; stage++) {
            uint32_t x_at = stage0 + (uint32_t)(at.slot * plan.stage_bytes / 16);
            uint32_t w_at = x_at + (uint32_t)plan.panels * x_panel;

            invar_barrier_wait(&shared.full[at.slot], at.parity);
            for (int p = 0; p < plan.panels; p += 2) {
                start_bf16<N>(acc, x_at, w_at, x_panel);
                x_at += 2 * x_panel;
                w_at += 2 * w_panel;
            }
            // wait until only products of this stage still run
            if (plan.panels == 4)
                invar_product_wait<2>();
            else
                invar_product_wait<1>();
            if (stage > 0)
                release_slot(&shared.empty[before]);
            before = at.slot;
            at.advance(plan.stages);
        }
        invar_product_wait<0>();
        invar_product_hold(acc);
        release_slot(&shared.empty[before]);
        store_bf16<N>(job, tile, acc);
    });
}

/* ---- kernel ---------------------------------------------------------------------------------- */

template <int N>
static __global__ void __launch_bounds__(160, 1) skinny_bf16(const __grid_constant__ skinny_job job)
{
    run_block<0, 0>(job, [&](const skinny_shared &shared) { multiply_bf16<N>(job, shared); });
}

skinny_kernel invar_skinny_bf16(const skinny_plan *plan)
{
    switch (plan->features) {
    case 8: return skinny_bf16<8>;
    case 16: return skinny_bf16<16>;
    case 24: return skinny_bf16<24>;
    case 32: return skinny_bf16<32>;
    case 40: return skinny_bf16<40>;
    case 48: return skinny_bf16<48>;
    case 56: return skinny_bf16<56>;
    case 64: return skinny_bf16<64>;
    case 80: return skinny_bf16<80>;
    case 96: return skinny_bf16<96>;
    case 112: return skinny_bf16<112>;
    case 128: return skinny_bf16<128>;
    }
    return NULL;
}
