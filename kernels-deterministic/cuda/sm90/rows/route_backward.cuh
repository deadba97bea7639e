/*
 * route_backward.cuh - moe.route.bwd: the backward of the router of a mixture of experts.
 *
 * moe.cu states the contract; sums over slots are in ascending order. With up to 256 experts and 32
 * slots, each thread of a token has one slot or none (route_few_backward); otherwise a warp has a
 * token and reads its slots from memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ROWS_ROUTE_BACKWARD_CUH
#define INVAR_KERNELS_CUDA_SM90_ROWS_ROUTE_BACKWARD_CUH

#include "kernels-deterministic/cuda/sm90/rows/route.cuh"

struct route_backward_args {
    invar_any_float_rows dlogits;
    invar_view<float> dweights, scores;
    invar_view<int32_t> ids;
    invar_moe_router router;
    bool aligned;
    invar_cuda_fault *fault;
};

static __global__ void __launch_bounds__(32 * WARPS) route_tokens_backward(route_backward_args r)
{
    int64_t token = warp_number(), experts = r.scores.cols, slots = r.ids.cols;

    if (token >= r.scores.rows)
        return;
    const float *scores = r.scores.row(token), *dweights = r.dweights.row(token);
    const int32_t *ids = r.ids.row(token);
    bool softmax = r.router.scoring == INVAR_MOE_SOFTMAX;
    check_choice(r.fault, INVAR_OP_MOE_ROUTE_BWD, ids, slots, experts);

    float total = divisor(scores, ids, slots, experts, r.router), share = 0.0f, mean = 0.0f;
    auto score_of = [&](int64_t s) { return scores[in_range(ids[s], experts)]; };
    auto scaled = [&](int64_t s) { return dweights[s] * r.router.scale; };
    if (r.router.normalise)
        for (int64_t s = 0; s < slots; s++) // every thread computes the same sum
            share = invar_fmaf(scaled(s), score_of(s) / total, share);
    auto dscore = [&](int64_t s) {
        return r.router.normalise ? (scaled(s) - share) / total : scaled(s);
    };
    if (softmax)
        for (int64_t s = 0; s < slots; s++)
            mean = invar_fmaf(score_of(s), dscore(s), mean);

    for (int64_t j = warp_thread(); j < experts; j += 32) {
        float rest = softmax ? scores[j] * (0.0f - mean) : 0.0f;
        r.dlogits.put(rest, token, j);
    }
    __syncwarp();
    for (int64_t s = warp_thread(); s < slots; s += 32) {
        float score = score_of(s);
        float dlogit = softmax ? score * (dscore(s) - mean) : dscore(s) * (score * (1.0f - score));
        r.dlogits.put(dlogit, token, in_range(ids[s], experts));
    }
}

/*
 * Like route_tokens_backward, with Lanes threads for a token, each of which has one slot or none.
 * Sums over slots must be in order, so several tokens are summed at once.
 */
template <typename T, int Lanes>
static __global__ void __launch_bounds__(32 * WARPS, 8) route_few_backward(route_backward_args r)
{
    constexpr int width = 4;
    int64_t token = ((int64_t)blockIdx.x * 32 * WARPS + threadIdx.x) / Lanes;
    int experts = (int)r.scores.cols, slots = (int)r.ids.cols, thread = (int)threadIdx.x % Lanes;
    bool there = token < r.scores.rows, live = there && thread < slots;
    bool softmax = r.router.scoring == INVAR_MOE_SOFTMAX;
    float share = 0.0f, mean = 0.0f, total = 1.0f;

    invar_grid_begin();
    if (!there)
        token = 0;
    const float *scores = r.scores.row(token);
    int32_t id = live ? r.ids.row(token)[thread] : -1 - warp_thread();
    float scaled = live ? r.dweights.row(token)[thread] * r.router.scale : 0.0f;
    auto slot = [](float x, int s) { return __shfl_sync(0xFFFFFFFFu, x, s, Lanes); };
    invar_run<float, width> first;
    if (thread * width < experts)
        first.load(scores + thread * width, experts - thread * width, r.aligned);
    if (live)
        (void)invar_guard(r.fault, INVAR_OP_MOE_ROUTE_BWD, id, experts);
    for (int s = 1; s < slots; s++) {
        int32_t earlier = __shfl_up_sync(0xFFFFFFFFu, id, s, Lanes);
        if (live && thread >= s && earlier == id)
            invar_report(r.fault, INVAR_OP_MOE_ROUTE_BWD, INVAR_CUDA_REPEATED, id);
    }
    int chosen = (int)in_range(id, experts);
    float own = live ? scores[chosen] : 0.0f, dscore = scaled;
    if (r.router.normalise) {
        total = 0.0f;
        for (int s = 0; s < slots; s++)
            total = total + slot(own, s);
        total = total + r.router.normalise_eps;
        float part = own / total;
        for (int s = 0; s < slots; s++)
            share = invar_fmaf(slot(scaled, s), slot(part, s), share);
        dscore = (scaled - share) / total;
    }
    for (int s = 0; softmax && s < slots; s++)
        mean = invar_fmaf(slot(own, s), slot(dscore, s), mean);
    T *out = (T *)r.dlogits.data + token * r.dlogits.stride;
    for (int at = thread * width; there && at < experts; at += Lanes * width) {
        invar_run<float, width> run = first;
        invar_run<T, width> rest;
        float x[width];
        if (at >= Lanes * width)
            run.load(scores + at, experts - at, r.aligned);
#pragma unroll
        for (int i = 0; i < width; i++)
            x[i] = softmax ? run.get(i) * (0.0f - mean) : 0.0f;
        rest.set(x);
        rest.store(out + at, experts - at, r.aligned);
    }
    __syncwarp();
    if (live)
        invar_store(out + chosen, softmax ? own * (dscore - mean) : dscore * (own * (1.0f - own)));
}

size_t invar_cuda_moe_route_bwd_workspace(const invar_device *dev,
                                          const invar_moe_route_bwd_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cuda_moe_route_bwd(const invar_device *dev, const invar_moe_route_bwd_args *a,
                                      void *workspace)
{
    route_backward_args rows = {invar_any_float_rows_of(&a->dlogits),
                                invar_view_of<float>(&a->dweights),
                                invar_view_of<float>(&a->scores),
                                invar_view_of<int32_t>(&a->ids),
                                a->router,
                                invar_aligned({&a->dlogits, &a->scores}),
                                invar_cuda_of(dev)->fault};
    dim3 grid((unsigned)invar_ceil_div(a->scores.shape[0], WARPS));
    auto by_lanes = [&](auto count) {
        constexpr int lanes = decltype(count)::value;
        return invar_by_storage(a->dlogits.dtype, [&](auto *type) {
            using T = std::remove_pointer_t<decltype(type)>;
            dim3 few((unsigned)invar_ceil_div(a->scores.shape[0], 32 / lanes * WARPS));
            return invar_launch_early(dev, INVAR_OP_MOE_ROUTE_BWD, route_few_backward<T, lanes>,
                                      few, dim3(32 * WARPS), 0)(rows);
        });
    };

    (void)workspace;
    if (has_few(a->scores.shape[1], a->ids.shape[1]))
        return a->ids.shape[1] <= 8    ? by_lanes(std::integral_constant<int, 8>{})
               : a->ids.shape[1] <= 16 ? by_lanes(std::integral_constant<int, 16>{})
                                       : by_lanes(std::integral_constant<int, 32>{});
    return invar_launch(dev, INVAR_OP_MOE_ROUTE_BWD, route_tokens_backward, grid, dim3(32 * WARPS),
                        0)(rows);
}

#endif
