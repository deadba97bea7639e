/*
 * tensor_map.cu - encodes tensor maps with the driver's cuTensorMapEncodeTiled.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/tensor_map.h"

#include <cuda_runtime.h>

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/*
 * Returns the encoder of the loaded driver, NULL if it has none. The program does not link libcuda.
 */
static encode_function find_encode()
{
    cudaDriverEntryPointQueryResult found;
    void *function = NULL;

    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    return (encode_function)function;
}

invar_status invar_tensor_map(CUtensorMap *out, const invar_tensor_box *box)
{
    static const encode_function encode = find_encode();
    cuuint32_t ones[INVAR_TENSOR_MAP_RANK] = {1, 1, 1, 1, 1};
    CUresult code;

    if (!encode)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "the NVIDIA driver has no cuTensorMapEncodeTiled: install driver 525 or "
                          "later");
    code = encode(out, box->type, (cuuint32_t)box->rank, (void *)box->data, box->extent,
                  box->stride + 1, box->box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, box->swizzle,
                  box->streamed ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B
                                : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS)
        return INVAR_FAIL(INVAR_E_CUDA, (int)code,
                          "the NVIDIA driver refused a tensor map (type %d, rank %d, extents %llu "
                          "x %llu, box %u x %u): try a newer driver; if that one refuses it, too, "
                          "report this line",
                          (int)box->type, box->rank, (unsigned long long)box->extent[0],
                          (unsigned long long)(box->rank > 1 ? box->extent[1] : 1), box->box[0],
                          box->rank > 1 ? box->box[1] : 1);
    return INVAR_OK;
}
