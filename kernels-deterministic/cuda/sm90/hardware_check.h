/*
 * hardware_check.h - compares a GPU with the contract's step and math/sfu.h, and measures it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_HARDWARE_CHECK_H
#define INVAR_KERNELS_CUDA_SM90_HARDWARE_CHECK_H

#include "kernels-deterministic/device.h"
#include "kernels-deterministic/step/tiles.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_mma_kind {
    INVAR_HARDWARE_CHECK_WARPGROUP, /* wgmma */
    INVAR_HARDWARE_CHECK_WARP       /* mma.sync; bf16 only */
} invar_mma_kind;

/*
 * Computes `count` tiles on the tensor cores and writes the bits of tile n to out[n], in host
 * memory. Waits for the GPU.
 */
invar_status invar_hardware_check_tiles(uint32_t (*out)[INVAR_TILE_OUTPUTS],
                                        const invar_device *dev, invar_tile_form form,
                                        invar_mma_kind by, const invar_step_tile *tiles,
                                        size_t count) INVAR_MUST_USE;

/* Computes the outputs of a tile by the integer reference. */
void invar_hardware_check_expected(uint32_t out[INVAR_TILE_OUTPUTS], const invar_step_tile *tile,
                                   invar_tile_form form);

/*
 * Compares `tiles` tiles of every family and form, computed by every instruction, with the
 * reference. Counts the outputs and the differences.
 */
invar_status invar_hardware_check_step(int64_t *outputs_out, int64_t *differences_out,
                                       const invar_device *dev, size_t tiles) INVAR_MUST_USE;

/*
 * Compares ex2 and rcp of the special function unit with math/sfu.h and counts the results and the
 * differences. Checks all 2^32 arguments if `all` is set, else all fractions of two exponents and
 * every 4099th argument.
 */
invar_status invar_hardware_check_unit(int64_t *results_out, int64_t *differences_out,
                                       const invar_device *dev, bool all) INVAR_MUST_USE;

/* Fills in all fields of invar_device_info, measured now. */
invar_status invar_hardware_check_facts(const invar_device *dev,
                                        invar_device_info *out) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
