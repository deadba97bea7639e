/*
 * step_run.h - runs tiles of step/tiles.h with the reference step and with the kernels.
 *
 * tile_reference computes each output with the integer reference step; tile_chain and
 * tile_e4m3_kernel use the code paths of the ops.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_STEP_RUN_H
#define INVAR_TESTS_STEP_RUN_H

#include "kernels-deterministic/math/fp8.h"
#include "kernels-deterministic/step/chain.h"
#include "kernels-deterministic/step/kernel.h"
#include "kernels-deterministic/step/simd.h"
#include "kernels-deterministic/step/step.h"
#include "kernels-deterministic/step/tiles.h"

typedef uint32_t tile_outputs[INVAR_TILE_ROWS][INVAR_TILE_COLS];

static inline void tile_reference(tile_outputs d, const invar_step_tile *t, invar_tile_form form)
{
    for (int i = 0; i < INVAR_TILE_ROWS; i++)
        for (int j = 0; j < INVAR_TILE_COLS; j++) {
            uint32_t c = t->c[i][j];
            for (int k = 0; k < t->k;
                 k += form == INVAR_TILE_BF16 ? INVAR_STEP_BF16 : INVAR_STEP_FP8) {
                uint8_t a[INVAR_STEP_FP8], b[INVAR_STEP_FP8];
                if (form == INVAR_TILE_BF16) {
                    c = invar_step_sm90_bf16_ref(c, &t->a[i][k], &t->b[j][k]);
                    continue;
                }
                for (int p = 0; p < INVAR_STEP_FP8; p++) {
                    a[p] = (uint8_t)t->a[i][k + p];
                    b[p] = (uint8_t)t->b[j][k + p];
                }
                c = invar_step_sm90_e4m3_ref(c, a, b);
            }
            d[i][j] = c;
        }
}

/*
 * Runs a bf16 tile as the ops do, as a chain over tensors. `workspace` has INVAR_CHAIN_WORKSPACE
 * bytes.
 */
static inline void tile_chain(tile_outputs d, invar_step_tile *t, invar_cpu_path path,
                              void *workspace)
{
    invar_device dev = {.numerics = INVAR_NUMERICS_SM90, .cpu_path = path};
    invar_tensor a = invar_tensor_2d(t->a, INVAR_DTYPE_BF16, INVAR_TILE_ROWS, t->k);
    invar_tensor b = invar_tensor_2d(t->b, INVAR_DTYPE_BF16, INVAR_TILE_COLS, t->k);
    invar_chain_tile tile = {{&a, INVAR_CHAIN_ROWS, 0, 0},
                             {&b, INVAR_CHAIN_ROWS, 0, 0},
                             INVAR_TILE_ROWS,
                             INVAR_TILE_COLS,
                             t->k};
    float acc[INVAR_TILE_ROWS][INVAR_TILE_COLS];

    a.row_stride = b.row_stride = INVAR_TILE_MAX_K;
    memcpy(acc, t->c, sizeof acc);
    invar_chain_run(&acc[0][0], INVAR_TILE_COLS, &dev, &tile, workspace);
    memcpy(d, acc, sizeof acc);
}

/*
 * Runs an e4m3 tile with the kernel itself: a chain of the ops starts at +0, but tiles have
 * accumulators.
 */
static inline void tile_e4m3_kernel(tile_outputs d, const invar_step_tile *t,
                                    const invar_kernel *kernel)
{
    float a[INVAR_KERNEL_MAX_ROWS * INVAR_TILE_MAX_K], b[INVAR_KERNEL_MAX_COLS * INVAR_TILE_MAX_K];
    int8_t a_exp[INVAR_KERNEL_MAX_ROWS * INVAR_TILE_MAX_K],
        b_exp[INVAR_KERNEL_MAX_COLS * INVAR_TILE_MAX_K];
    float acc[INVAR_KERNEL_MAX_ROWS * INVAR_KERNEL_MAX_COLS];
    int rows = kernel->rows, width = kernel->cols,
        cols = width < INVAR_TILE_COLS ? width : INVAR_TILE_COLS;

    for (int i0 = 0; i0 < INVAR_TILE_ROWS; i0 += rows)
        for (int j0 = 0; j0 < INVAR_TILE_COLS; j0 += cols) {
            uint64_t mode = 0;
            bool large = false; // only NaN is too large in e4m3

            for (int p = 0; p < t->k; p++) {
                for (int i = 0; i < rows; i++) {
                    float x = invar_f32_from_e4m3((uint8_t)t->a[i0 + i][p]);
                    a[p * rows + i] = x;
                    a_exp[p * rows + i] = (int8_t)invar_kernel_exponent(x, kernel->min_exp);
                    large |= x != x;
                }
                for (int j = 0; j < width; j++) {
                    float x = j < cols ? invar_f32_from_e4m3((uint8_t)t->b[j0 + j][p]) : 0.0f;
                    b[p * width + j] = x;
                    b_exp[p * width + j] = (int8_t)invar_kernel_exponent(x, kernel->min_exp);
                    large |= x != x;
                }
            }
            memset(acc, 0, sizeof acc);
            for (int i = 0; i < rows; i++)
                memcpy(acc + i * width, &t->c[i0 + i][j0], (size_t)cols * sizeof *acc);
            if (kernel->toward_zero)
                mode = invar_rounding_toward_zero();
            if (large)
                invar_kernel_reference(kernel, acc, width, a, b, t->k);
            else
                kernel->run(acc, width, a, a_exp, b, b_exp, t->k);
            if (kernel->toward_zero)
                invar_rounding_restore(mode);
            for (int i = 0; i < rows; i++)
                memcpy(&d[i0 + i][j0], acc + i * width, (size_t)cols * sizeof *acc);
        }
}

static inline void tile_product(tile_outputs d, invar_step_tile *t, invar_tile_form form,
                                invar_cpu_path path, void *workspace)
{
    if (form == INVAR_TILE_BF16)
        tile_chain(d, t, path, workspace);
    else
        tile_e4m3_kernel(d, t,
                         path == INVAR_CPU_PATH_SIMD ? &invar_kernels_widest()->sm90_e4m3
                                                     : &invar_kernels_portable.sm90_e4m3);
}

/* Adds outputs to an order-sensitive 64-bit hash, for recording what a GPU computed. */
static inline uint64_t tile_hash(uint64_t hash, const uint32_t *d /* (INVAR_TILE_OUTPUTS) */)
{
    for (int i = 0; i < INVAR_TILE_OUTPUTS; i++) {
        hash ^= d[i];
        hash *= UINT64_C(0x100000001B3);
        hash ^= hash >> 29;
    }
    return hash;
}

#endif
