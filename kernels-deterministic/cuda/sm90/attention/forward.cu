/*
 * forward.cu - attention.fwd and attention.paged: builds the problem and chooses the kernel.
 *
 * Both ops are one problem: the query rows of a sequence are its last positions, which are all of
 * them in a packed sample, and keys lie in rows or in pages. So prefill in any chunks and decoding
 * in any batch give the bits of the training forward.
 *
 * Numerics contract (rev 3): docs/arithmetic.md, section 8. The choice of the kernel changes no
 * bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/attention/forward.cuh"

namespace
{

/* ---- problems -------------------------------------------------------------------------------- */

void set_queries(invar_attention_problem *p, const invar_device *dev, invar_op op,
                 const invar_tensor *o, const invar_tensor *q)
{
    p->op = op;
    p->fault = invar_cuda_of(dev)->fault;
    p->dtype = q->dtype;
    p->o = o->data;
    p->q = q->data;
    p->o_stride = o->row_stride;
    p->q_stride = q->row_stride;
    p->n_rows = q->shape[0];
}

void set_keys(invar_attention_problem *p, const invar_tensor *k, const invar_tensor *v)
{
    p->k = k->data;
    p->v = v->data;
    p->k_stride = k->row_stride;
    p->v_stride = v->row_stride;
}

invar_attention_problem packed_problem(const invar_device *dev, const invar_attention_fwd_args *a)
{
    invar_attention_problem p = {};

    set_queries(&p, dev, INVAR_OP_ATTENTION_FWD, &a->o, &a->q);
    set_keys(&p, &a->k, &a->v);
    p.form = invar_cuda_attention_params_of(&a->q, a->k.shape[1], &a->shape);
    p.rows = a->samples;
    if (invar_tensor_present(&a->lse2)) {
        p.lse2 = (float *)a->lse2.data;
        p.lse2_stride = a->lse2.row_stride;
    }
    return p;
}

invar_attention_problem paged_problem(const invar_device *dev, const invar_attention_paged_args *a)
{
    invar_attention_problem p = {};

    set_queries(&p, dev, INVAR_OP_ATTENTION_PAGED, &a->o, &a->q);
    set_keys(&p, &a->cache.k, &a->cache.v);
    p.form = invar_cuda_attention_params_of(&a->q, a->cache.k.shape[2], &a->shape);
    p.rows = a->rows;
    p.lengths = a->lengths;
    p.paged = true;
    p.pages = (const int32_t *)a->cache.pages.data;
    p.pages_stride = a->cache.pages.row_stride;
    p.page_size = a->cache.k.shape[1];
    p.n_pages = a->cache.k.shape[0];
    p.max_pages = a->cache.pages.shape[1];
    return p;
}

size_t workspace_bytes(const invar_device *dev, const invar_attention_problem *p)
{
    if (invar_attention_decode_supports(dev, p))
        return invar_attention_decode_workspace(dev, p);
    return invar_attention_wgmma_supports(dev, p) ? invar_attention_wgmma_workspace(dev, p) : 0;
}

invar_status launch_kernel(const invar_device *dev, const invar_attention_problem *p,
                           void *workspace)
{
    if (p->n_rows == 0)
        return INVAR_OK;
    if (invar_attention_decode_supports(dev, p))
        return invar_attention_decode(dev, p, workspace);
    if (invar_attention_wgmma_supports(dev, p))
        return invar_attention_wgmma(dev, p, workspace);
    if (invar_attention_mma_supports(dev, p))
        return invar_attention_mma(dev, p);
    return invar_attention_fma(dev, p);
}

} // namespace

/* ---- entries --------------------------------------------------------------------------------- */

size_t invar_cuda_attention_fwd_workspace(const invar_device *dev,
                                          const invar_attention_fwd_args *args)
{
    invar_attention_problem p = packed_problem(dev, args);

    return workspace_bytes(dev, &p);
}

invar_status invar_cuda_attention_fwd(const invar_device *dev, const invar_attention_fwd_args *args,
                                      void *workspace)
{
    invar_attention_problem p = packed_problem(dev, args);

    return launch_kernel(dev, &p, workspace);
}

size_t invar_cuda_attention_paged_workspace(const invar_device *dev,
                                            const invar_attention_paged_args *args)
{
    invar_attention_problem p = paged_problem(dev, args);

    return workspace_bytes(dev, &p);
}

invar_status invar_cuda_attention_paged(const invar_device *dev,
                                        const invar_attention_paged_args *args, void *workspace)
{
    invar_attention_problem p = paged_problem(dev, args);

    return launch_kernel(dev, &p, workspace);
}
