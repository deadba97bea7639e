/*
 * swiglu.cu - the gated activation.
 *
 * Numerics contract (rev 1), docs/arithmetic.md, section 7; in f32, each line rounded to storage
 * once:
 *   y     = silu(gate) * up
 *   dup   = dy * silu(gate)
 *   dgate = (dy * up) * silu'(gate)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/vector.cuh"
#include "kernels-deterministic/math/narrow.h"

/* Whether the short forms of math/narrow.h do for all values of the run. */
template <typename T> __device__ __forceinline__ bool all_near(const invar_run<T> &run)
{
    bool near = true;

#pragma unroll
    for (int i = 0; i < INVAR_RUN; i++)
        near = near & (invar_abs_f32(run.get(i)) <= INVAR_NEAR);
    return near;
}

template <typename T> struct forward_runs {
    static constexpr int width = INVAR_RUN;
    invar_view<T> y, gate, up;
    bool aligned;

    __device__ __forceinline__ void operator()(int64_t row, int64_t first, int64_t count) const
    {
        invar_run<T> g, u;
        float out[width];

        g.load(gate.row(row) + first, count, aligned);
        u.load(up.row(row) + first, count, aligned);
        if (all_near(g)) {
#pragma unroll
            for (int i = 0; i < width; i++)
                out[i] = invar_silu_near(g.get(i), invar_sigmoid_near(g.get(i))) * u.get(i);
        } else {
#pragma unroll
            for (int i = 0; i < width; i++)
                out[i] = invar_silu(g.get(i)) * u.get(i);
        }
        g.set(out);
        g.store(y.row(row) + first, count, aligned);
    }
};

size_t invar_cuda_swiglu_fwd_workspace(const invar_device *dev, const invar_swiglu_fwd_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cuda_swiglu_fwd(const invar_device *dev, const invar_swiglu_fwd_args *a,
                                   void *workspace)
{
    (void)workspace;
    return invar_by_storage(a->y.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        forward_runs<T> forward = {invar_view_of<T>(&a->y), invar_view_of<T>(&a->gate),
                                   invar_view_of<T>(&a->up),
                                   invar_aligned({&a->y, &a->gate, &a->up})};
        return invar_map(dev, INVAR_OP_SWIGLU_FWD, a->y.shape[0], a->y.shape[1],
                         invar_joined({&a->y, &a->gate, &a->up}), forward);
    });
}

/* Everything is read before the first result is written: the results may lie on the inputs. */
template <typename T> struct backward_runs {
    static constexpr int width = INVAR_RUN;
    invar_view<T> dgate, dup, dy, gate, up;
    bool aligned;

    __device__ __forceinline__ void operator()(int64_t row, int64_t first, int64_t count) const
    {
        invar_run<T> d, g, u;
        float out_gate[width], out_up[width];

        d.load(dy.row(row) + first, count, aligned);
        g.load(gate.row(row) + first, count, aligned);
        u.load(up.row(row) + first, count, aligned);
        if (all_near(g)) {
#pragma unroll
            for (int i = 0; i < width; i++) {
                invar_sigmoid_parts parts = invar_sigmoid_near(g.get(i));
                out_gate[i] = d.get(i) * u.get(i) * invar_silu_grad_near(g.get(i), parts);
                out_up[i] = d.get(i) * invar_silu_near(g.get(i), parts);
            }
        } else {
#pragma unroll
            for (int i = 0; i < width; i++) {
                out_gate[i] = d.get(i) * u.get(i) * invar_silu_grad(g.get(i));
                out_up[i] = d.get(i) * invar_silu(g.get(i));
            }
        }
        g.set(out_gate);
        u.set(out_up);
        g.store(dgate.row(row) + first, count, aligned);
        u.store(dup.row(row) + first, count, aligned);
    }
};

size_t invar_cuda_swiglu_bwd_workspace(const invar_device *dev, const invar_swiglu_bwd_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cuda_swiglu_bwd(const invar_device *dev, const invar_swiglu_bwd_args *a,
                                   void *workspace)
{
    (void)workspace;
    return invar_by_storage(a->dy.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        backward_runs<T> backward = {invar_view_of<T>(&a->dgate),
                                     invar_view_of<T>(&a->dup),
                                     invar_view_of<T>(&a->dy),
                                     invar_view_of<T>(&a->gate),
                                     invar_view_of<T>(&a->up),
                                     invar_aligned({&a->dgate, &a->dup, &a->dy, &a->gate, &a->up})};
        return invar_map(dev, INVAR_OP_SWIGLU_BWD, a->dy.shape[0], a->dy.shape[1],
                         invar_joined({&a->dgate, &a->dup, &a->dy, &a->gate, &a->up}), backward);
    });
}
