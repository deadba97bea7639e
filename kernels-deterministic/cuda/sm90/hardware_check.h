/*
 * hardware_check.h - what this GPU is, and whether its tensor cores compute the step of the
 * contract, and its special function unit what math/sfu.h says.
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

/* out[n] = the outputs of tile n as the tensor cores yield them, in bits; host memory. Waits. */
invar_status invar_hardware_check_tiles(uint32_t (*out)[INVAR_TILE_OUTPUTS],
                                        const invar_device *dev, invar_tile_form form,
                                        invar_mma_kind by, const invar_step_tile *tiles,
                                        size_t count) INVAR_MUST_USE;

/* The outputs of a tile by the integer reference. */
void invar_hardware_check_expected(uint32_t out[INVAR_TILE_OUTPUTS], const invar_step_tile *tile,
                                   invar_tile_form form);

/* `tiles` of every family and form, by every instruction, against the reference. */
invar_status invar_hardware_check_step(int64_t *outputs_out, int64_t *differences_out,
                                       const invar_device *dev, size_t tiles) INVAR_MUST_USE;

/*
 * ex2 and rcp of the special function unit against math/sfu.h: of all 2^32 arguments, or, unless
 * `all`, of all fractions of two exponents and of every 4099th argument.
 */
invar_status invar_hardware_check_unit(int64_t *results_out, int64_t *differences_out,
                                       const invar_device *dev, bool all) INVAR_MUST_USE;

/* Everything that invar_device_info has, measured now. */
invar_status invar_hardware_check_facts(const invar_device *dev,
                                        invar_device_info *out) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
