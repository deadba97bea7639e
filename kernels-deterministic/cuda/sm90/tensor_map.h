/*
 * tensor_map.h - tensor maps: descriptions of tensors for the bulk copies of hopper.cuh.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_TENSOR_MAP_H
#define INVAR_KERNELS_CUDA_SM90_TENSOR_MAP_H

#include <cuda.h>

#include "kernels-deterministic/cuda/common/cuda.h"

#define INVAR_TENSOR_MAP_RANK 5

/*
 * Description of a tensor and of the box that one copy moves. Index 0 is the contiguous one.
 * Outside the extents a copy reads zeros and writes nothing.
 */
typedef struct invar_tensor_box {
    const void *data; /* aligned to 16 bytes */
    CUtensorMapDataType type;
    int rank;
    uint64_t extent[INVAR_TENSOR_MAP_RANK];
    uint64_t stride[INVAR_TENSOR_MAP_RANK]; /* bytes, multiples of 16; [0] is not used */
    uint32_t box[INVAR_TENSOR_MAP_RANK];    /* elements, at most 256 each */
    CUtensorMapSwizzle swizzle;
    bool streamed; /* the data is read only once: L2 fetches 128 bytes at a time instead of 256 */
} invar_tensor_box;

/*
 * Encodes a tensor map. Returns INVAR_E_CUDA if the driver rejects the box, and INVAR_E_UNSUPPORTED
 * if the driver cannot encode tensor maps.
 */
invar_status invar_tensor_map(CUtensorMap *out, const invar_tensor_box *box) INVAR_MUST_USE;

/*
 * Returns whether a tensor map can describe an address and a stride in bytes: both must be
 * multiples of 16.
 */
static inline bool invar_tensor_map_takes(const void *data, int64_t stride_bytes)
{
    return ((uintptr_t)data & 15) == 0 && (stride_bytes & 15) == 0;
}

#endif
