/*
 * gather.cuh - copies of rows that an index tensor selects.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ROWS_GATHER_CUH
#define INVAR_KERNELS_CUDA_SM90_ROWS_GATHER_CUH

#include "kernels-deterministic/cuda/sm90/vector.cuh"

// rows of a thread: their indices, then their values are in flight at once
#define INVAR_GATHER_ROWS 4

/*
 * Copies out[row] = from[index[row]], bit for bit. A run counts as `width` columns of a group of
 * INVAR_GATHER_ROWS rows.
 */
template <typename T> struct invar_gather {
    static constexpr int width = INVAR_RUN;
    invar_view<T> out, from;
    const int32_t *index;
    invar_cuda_fault *fault;
    invar_op op;
    bool aligned;

    __device__ __forceinline__ void operator()(int64_t group, int64_t first, int64_t count) const
    {
        int64_t row = group * INVAR_GATHER_ROWS;
        int32_t source[INVAR_GATHER_ROWS];
        invar_run<T> run[INVAR_GATHER_ROWS];

#pragma unroll
        for (int i = 0; i < INVAR_GATHER_ROWS; i++)
            source[i] = row + i < out.rows ? index[row + i] : 0;
#pragma unroll
        for (int i = 0; i < INVAR_GATHER_ROWS; i++)
            source[i] = (int32_t)invar_guard(fault, op, source[i], from.rows);
#pragma unroll
        for (int i = 0; i < INVAR_GATHER_ROWS; i++)
            run[i].load(from.row(source[i]) + first, count, aligned);
#pragma unroll
        for (int i = 0; i < INVAR_GATHER_ROWS; i++)
            run[i].store(out.row(row + i) + first, row + i < out.rows ? count : 0, aligned);
    }
};

/*
 * Copies the rows of `from` that `index` selects. An index that is out of range is recorded as a
 * fault.
 */
static inline invar_status invar_gather_rows(const invar_device *dev, invar_op op,
                                             const invar_tensor *out, const invar_tensor *from,
                                             const invar_tensor *index)
{
    INVAR_TRY(invar_indexable(op, out->shape[0], from->shape[0]));
    return invar_by_storage(out->dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        invar_gather<T> gather = {invar_view_of<T>(out),
                                  invar_view_of<T>(from),
                                  (const int32_t *)index->data,
                                  invar_cuda_of(dev)->fault,
                                  op,
                                  invar_aligned({out, from})};
        return invar_map(dev, op, invar_ceil_div(out->shape[0], INVAR_GATHER_ROWS), out->shape[1],
                         false, gather);
    });
}

#endif
