/*
 * tensor_map.h - descriptions of tensors for the bulk copies of hopper.cuh.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_TENSOR_MAP_H
#define INVAR_KERNELS_CUDA_SM90_TENSOR_MAP_H

#include <cuda.h>

#include "kernels-deterministic/cuda/common/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_TENSOR_MAP_RANK 5

/* Index 0 is the contiguous one. Outside the extents a copy reads zeros and writes nothing. */
typedef struct invar_tensor_box {
    const void *data; /* aligned to 16 bytes */
    CUtensorMapDataType type;
    int rank;
    uint64_t extent[INVAR_TENSOR_MAP_RANK];
    uint64_t stride[INVAR_TENSOR_MAP_RANK]; /* bytes, multiples of 16; [0] is not looked at */
    uint32_t box[INVAR_TENSOR_MAP_RANK];    /* elements, at most 256 each */
    CUtensorMapSwizzle swizzle;
    bool streamed; /* read once: memory is asked for 128 bytes at a time, not for 256 */
} invar_tensor_box;

/* INVAR_E_CUDA where the driver refuses the box. */
invar_status invar_tensor_map(CUtensorMap *out, const invar_tensor_box *box) INVAR_MUST_USE;

/* True where address and stride (in bytes) can be described at all. */
static inline bool invar_tensor_map_takes(const void *data, int64_t stride_bytes)
{
    return ((uintptr_t)data & 15) == 0 && (stride_bytes & 15) == 0;
}

#ifdef __cplusplus
}
#endif
#endif
