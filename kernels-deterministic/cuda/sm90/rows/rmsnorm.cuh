/*
 * rmsnorm.cuh - rows, means and loads from shared memory for the kernels of rmsnorm.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ROWS_RMSNORM_CUH
#define INVAR_KERNELS_CUDA_SM90_ROWS_RMSNORM_CUH

#include "kernels-deterministic/cuda/sm90/vector.cuh"

/* Rows of n values: the heads of all tokens. */
struct norm_shape {
    int64_t rows, heads, n;
    float eps;
    float inverse; /* 1 / n if that is exact, else 0 */
};

/* Position of a row, which is the same in all tensors. */
struct norm_row_coord {
    int64_t token, column;
};

__device__ __forceinline__ norm_row_coord place_of(const norm_shape &shape, int64_t row)
{
    int64_t token = shape.heads == 1 ? row : invar_divide(row, shape.heads);

    return {token, (row - token * shape.heads) * shape.n};
}

template <typename T>
__device__ __forceinline__ T *row_at(const invar_view<T> &x, const norm_row_coord &place)
{
    return x.row(place.token) + place.column;
}

template <typename T>
__device__ __forceinline__ T *row_of(const invar_view<T> &x, const norm_shape &shape, int64_t row)
{
    return row_at(x, place_of(shape, row));
}

/* Returns sum / n. A product with a power of two is the same number, rounded the same way. */
__device__ __forceinline__ float mean_of(float sum, const norm_shape &shape)
{
    return shape.inverse != 0.0f ? sum * shape.inverse : sum / (float)shape.n;
}

__device__ __forceinline__ float inverse_rms(float sum, const norm_shape &shape)
{
    return invar_inverse_rms(mean_of(sum, shape), shape.eps);
}

/* Loads Width neighboring values from shared memory. */
template <int Width> __device__ __forceinline__ void load_columns(float x[Width], const float *p)
{
    if constexpr (Width < 4) {
#pragma unroll
        for (int i = 0; i < Width; i++)
            x[i] = p[i];
    } else {
#pragma unroll
        for (int i = 0; i < Width; i += 4) {
            float4 four = *(const float4 *)(p + i);
            x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
        }
    }
}

template <int Width>
__device__ __forceinline__ void load_columns(float x[Width], const __nv_bfloat16 *p)
{
    using word_type =
        std::conditional_t<Width == 8, uint4, std::conditional_t<Width == 4, uint2, uint32_t>>;
    if constexpr (Width == 1) {
        x[0] = invar_load(p);
    } else {
        union {
            word_type all;
            uint32_t word[Width / 2];
        } from;
        from.all = *(const word_type *)p;
#pragma unroll
        for (int i = 0; i < Width; i++)
            x[i] = __uint_as_float(i & 1 ? from.word[i / 2] & 0xFFFF0000u : from.word[i / 2] << 16);
    }
}

#endif
