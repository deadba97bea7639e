/*
 * linear_dw.cu - linear.dw and moe.linear.dw: gradients of weights, dense and grouped by expert.
 *
 * Numerics contract (rev 1): docs/arithmetic.md, section 3, as in cpu/linear.c. The arguments
 * become an invar_wgrad_gemm (gemm.h) with the token offsets of the units in each group, which are
 * checked or computed on the device. Order of sums: units ascend, tokens ascend in a unit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/gemm/linear.cuh"

/* ---- units of experts ------------------------------------------------------------------------ */

/*
 * Returns the index of the first of the ascending tokens in [first, end) that is not below `token`.
 */
static __device__ int64_t first_not_below(const int32_t *tokens, int64_t first, int64_t end,
                                          int64_t token)
{
    while (first < end) {
        int64_t middle = first + (end - first) / 2;
        if (tokens[middle] < token)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/*
 * Returns whether tokens [first, end) ascend within [0, bound); records a fault if they do not. All
 * threads of the block must call it.
 */
static __device__ bool tokens_good(const int32_t *tokens, int64_t first, int64_t end, int64_t bound,
                                   invar_op op, invar_cuda_fault *fault)
{
    bool wrong = false;

    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
        bool outside = tokens[i] < 0 || tokens[i] >= bound;
        bool repeated = i > first && tokens[i] <= tokens[i - 1];
        if (outside || repeated)
            invar_report(fault, op, outside ? INVAR_CUDA_INDEX : INVAR_CUDA_REPEATED, tokens[i]);
        wrong = wrong || outside || repeated;
    }
    return !__syncthreads_or(wrong);
}

/*
 * Finds the offsets of the units within the rows of expert e, by block e. A dense layer uses the
 * unit offsets themselves.
 */
static __global__ void cut_experts(int64_t *cuts, const int32_t *tokens, int64_t rows,
                                   invar_row_offsets experts, invar_row_offsets units, invar_op op,
                                   invar_cuda_fault *fault)
{
    int64_t *cut = cuts + (int64_t)blockIdx.x * (units.count + 1);
    int64_t all = units.offsets[units.count], first = 0, end = 0;
    bool good = invar_segments_good(experts.offsets, experts.count, rows, op, fault, true);

    good = invar_segments_good(units.offsets, units.count, all, op, fault) && good;
    if (good) {
        first = experts.offsets[blockIdx.x];
        end = experts.offsets[blockIdx.x + 1];
        good = tokens_good(tokens, first, end, all, op, fault);
    }
    for (int64_t u = threadIdx.x; u <= units.count; u += THREADS)
        cut[u] = good ? first_not_below(tokens, first, end, units.offsets[u]) : 0;
}

/* ---- dw -------------------------------------------------------------------------------------- */

static size_t cuts_bytes(int64_t groups, int64_t units)
{
    return (size_t)(groups * (units + 1)) * sizeof(int64_t);
}

/* Returns the problem of one group without units; the caller adds the units and their offsets. */
static invar_wgrad_gemm weight_product(invar_op op, const invar_tensor *dw, const invar_tensor *dy,
                                       const invar_tensor *x, bool fresh)
{
    invar_wgrad_gemm p = {};

    p.op = op;
    p.rows = dy->shape[1];
    p.cols = x->shape[1];
    p.out = (float *)dw->data;
    p.out_stride = dw->row_stride;
    p.a = gemm_operand_of(dy, true);
    p.b = gemm_operand_of(x, true);
    p.tokens = dy->shape[0];
    p.groups = 1;
    p.fresh = fresh;
    return p;
}

/*
 * Returns whether there is nothing to compute. Without tokens nothing is added, and row offsets may
 * be missing too, because there are no units.
 */
static bool nothing_to_do(const invar_wgrad_gemm *p)
{
    return p->rows == 0 || p->cols == 0 || p->groups == 0 || (p->tokens == 0 && !p->fresh);
}

static invar_status add_gradients(const invar_device *dev, const invar_wgrad_gemm *p)
{
    return invar_gemm_bf16_supports_weight(dev, p) ? invar_gemm_bf16_weight(dev, p)
                                                   : invar_gemm_generic_weight_product(dev, p);
}

size_t invar_cuda_linear_dw_workspace(const invar_device *dev, const invar_linear_dw_args *a)
{
    (void)dev;
    return cuts_bytes(1, a->units.count);
}

invar_status invar_cuda_linear_dw(const invar_device *dev, const invar_linear_dw_args *a,
                                  void *workspace)
{
    invar_op op = INVAR_OP_LINEAR_DW;
    invar_wgrad_gemm p = weight_product(op, &a->dw, &a->dy, &a->x, a->fresh);

    if (nothing_to_do(&p))
        return INVAR_OK;
    if (p.tokens > 0) {
        p.units = a->units.count;
        p.cut = (int64_t *)workspace;
        INVAR_TRY(invar_launch(dev, op, copy_segments, dim3(1), dim3(THREADS),
                               0)((int64_t *)workspace, a->units.offsets, p.units, p.tokens, op,
                                  invar_cuda_of(dev)->fault, false));
    }
    return add_gradients(dev, &p);
}

size_t invar_cuda_moe_linear_dw_workspace(const invar_device *dev,
                                          const invar_moe_linear_dw_args *a)
{
    (void)dev;
    return cuts_bytes(a->experts.count, a->units.count);
}

invar_status invar_cuda_moe_linear_dw(const invar_device *dev, const invar_moe_linear_dw_args *a,
                                      void *workspace)
{
    invar_op op = INVAR_OP_MOE_LINEAR_DW;
    invar_wgrad_gemm p = weight_product(op, &a->dw, &a->dy, &a->x, a->fresh);

    p.groups = a->experts.count;
    if (nothing_to_do(&p))
        return INVAR_OK;
    if (p.tokens > 0) {
        if (a->units.count == 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%s: units: none, so that no row can have a token",
                              invar_op_name(op));
        p.units = a->units.count;
        p.cut = (int64_t *)workspace;
        INVAR_TRY(invar_launch(dev, op, cut_experts, dim3((unsigned)p.groups), dim3(THREADS),
                               0)((int64_t *)workspace, (const int32_t *)a->row_token.data,
                                  p.tokens, a->experts, a->units, op, invar_cuda_of(dev)->fault));
    }
    return add_gradients(dev, &p);
}
