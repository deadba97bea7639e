/*
 * backward.cu - attention.bwd: gradients of attention over packed samples.
 *
 * Numerics contract (rev 3), docs/arithmetic.md section 8:
 *
 *   p   2^fma(s, c, -lse2), s as in the forward; for bf16 under sm90 by the special function unit,
 *       otherwise EXP2S
 *   ds  p * (dp - delta); dp is the chain over the head dim of d_o and v, and
 *       delta = REDUCE(d_o * o). Then p and ds are rounded to storage.
 *   dv  one chain over (query heads ascending, queries ascending) of p and d_o
 *   dk  one chain in the order of dv, of ds and q, then * scale
 *   dq  per block of keys one chain of ds and k from +0; blocks added descending; then * scale
 *
 * With spans, dk and dv have one chain per span of queries and dq one sum per span of keys, added
 * in ascending order. Products that the mask excludes are skipped.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/attention/backward_tensor.cuh"

template <typename T>
static backward::problem<T> problem_of(const invar_device *dev, const invar_attention_bwd_args *a)
{
    backward::problem<T> call;

    call.form = invar_cuda_attention_params_of(&a->q, a->k.shape[1], &a->shape);
    call.dq = invar_view_of<T>(&a->dq);
    call.dk = invar_view_of<T>(&a->dk);
    call.dv = invar_view_of<T>(&a->dv);
    call.d_o = invar_view_of<const T>(&a->d_o);
    call.o = invar_view_of<const T>(&a->o);
    call.q = invar_view_of<const T>(&a->q);
    call.k = invar_view_of<const T>(&a->k);
    call.v = invar_view_of<const T>(&a->v);
    call.lse2 = invar_view_of<const float>(&a->lse2);
    call.samples = a->samples;
    call.fault = invar_cuda_of(dev)->fault;
    call.head_shards = backward::whole_groups(a) ? 1 : a->head_shards;
    call.head_atom = a->head_atom;
    return call;
}

size_t invar_cuda_attention_bwd_workspace(const invar_device *dev,
                                          const invar_attention_bwd_args *args)
{
    size_t bytes = 0;

    if (!backward::tensor::supports(dev, args))
        return 0;
    if (args->q.shape[2] == 64)
        (void)backward::tensor::backward_workspace_of<64>(dev, args, NULL, &bytes);
    else
        (void)backward::tensor::backward_workspace_of<128>(dev, args, NULL, &bytes);
    return bytes;
}

invar_status invar_cuda_attention_bwd(const invar_device *dev, const invar_attention_bwd_args *args,
                                      void *workspace)
{
    using namespace backward;

    if (args->q.shape[0] == 0)
        return INVAR_OK;
    if (args->q.dtype == INVAR_DTYPE_F32)
        return generic::launch_backward<float, generic::fma_step<float>>(
            dev, problem_of<float>(dev, args), NULL);

    problem<__nv_bfloat16> call = problem_of<__nv_bfloat16>(dev, args);
    if (dev->numerics != INVAR_NUMERICS_SM90)
        return generic::launch_backward<__nv_bfloat16, generic::fma_step<__nv_bfloat16>>(dev, call,
                                                                                         NULL);
    if (!tensor::supports(dev, args))
        return generic::launch_backward<__nv_bfloat16, generic::tensor_step>(dev, call, NULL);
    return args->q.shape[2] == 64 ? tensor::launch_backward<64>(dev, args, call, workspace)
                                  : tensor::launch_backward<128>(dev, args, call, workspace);
}
