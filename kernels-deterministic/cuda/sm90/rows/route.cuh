/*
 * route.cuh - moe.route.fwd: the router of a mixture of experts.
 *
 * moe.cu states the contract; the backward is in route_backward.cuh. A warp has a token. Up to 256
 * experts and 32 slots are held in its registers: thread t has the experts t, t + 32, ... and slot
 * t. Others, and routers that limit groups, use shared or global memory. Experts are chosen by
 * 64-bit keys (math/candidate_order.h), and sums over slots are in ascending order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ROWS_ROUTE_CUH
#define INVAR_KERNELS_CUDA_SM90_ROWS_ROUTE_CUH

#include "kernels-deterministic/cuda/sm90/sfu.cuh"
#include "kernels-deterministic/cuda/sm90/vector.cuh"
#include "kernels-deterministic/math/candidate_order.h"
#include "kernels-deterministic/math/restricted_domain.h"

#define WARPS 4 // warps of a block of threads; a warp has a token

__device__ __forceinline__ int warp_thread()
{
    return (int)threadIdx.x % 32;
}

/* Returns the token of this warp. */
__device__ __forceinline__ int64_t warp_number()
{
    return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
}

/* Records a fault if an expert of a token is out of range or occurs twice. Called by one warp. */
__device__ __forceinline__ void check_choice(invar_cuda_fault *fault, invar_op op,
                                             const int32_t *ids, int64_t slots, int64_t experts)
{
    for (int64_t s = warp_thread(); s < slots; s += 32) {
        int32_t id = ids[s];
        (void)invar_guard(fault, op, id, experts);
        for (int64_t earlier = 0; earlier < s; earlier++)
            if (ids[earlier] == id)
                invar_report(fault, op, INVAR_CUDA_REPEATED, id);
    }
}

/* Returns an expert's number, or 0 if it is out of range, which check_choice has reported. */
__device__ __forceinline__ int64_t in_range(int32_t id, int64_t experts)
{
    return id >= 0 && id < experts ? id : 0;
}

/* Calls f(value(s)) for slots s in ascending order; each value is computed by one thread. */
template <typename V, typename F>
__device__ __forceinline__ void for_slots(int64_t slots, V value, F f)
{
    for (int64_t base = 0; base < slots; base += 32) {
        int64_t left = slots - base;
        float own = warp_thread() < left ? value(base + warp_thread()) : 0.0f;
        for (int i = 0; i < 32 && i < left; i++)
            f(__shfl_sync(0xFFFFFFFFu, own, i));
    }
}

/* ---- a token in the registers of a warp ------------------------------------------------------ */

#define FEW_EXPERTS 256
#define FEW_SLOTS 32 // one thread for each slot

/* Calls f(number of registers) for a token whose experts and slots fit into registers. */
template <typename F> static invar_status by_registers(int64_t experts, F f)
{
    if (experts <= 32)
        return f(std::integral_constant<int, 1>{});
    if (experts <= 64)
        return f(std::integral_constant<int, 2>{});
    if (experts <= 128)
        return f(std::integral_constant<int, 4>{});
    return f(std::integral_constant<int, 8>{});
}

/* x[k] = the value of expert 32 k + t; +0 after the last one. */
template <int Count>
__device__ __forceinline__ void load_experts(float x[Count], const float *row, int experts)
{
    const float *own = row + warp_thread();

#pragma unroll
    for (int k = 0; k < Count; k++)
        x[k] = warp_thread() + 32 * k < experts ? own[32 * k] : 0.0f;
}

/* Returns the value of an expert; each thread may pass another one. */
template <int Count> __device__ __forceinline__ float value_of(const float x[Count], int id)
{
    float value = 0.0f;

#pragma unroll
    for (int k = 0; k < Count; k++) {
        float here = __shfl_sync(0xFFFFFFFFu, x[k], id % 32);
        value = id / 32 == k ? here : value;
    }
    return value;
}

/* Like check_choice, for ids of which each thread loads one. Returns this thread's, in range. */
__device__ __forceinline__ int own_choice(invar_cuda_fault *fault, invar_op op, const int32_t *ids,
                                          int slots, int64_t experts)
{
    bool live = warp_thread() < slots;
    int32_t id = live ? ids[warp_thread()] : 0;
    // threads without a slot have different numbers that no expert has
    unsigned same = __match_any_sync(0xFFFFFFFFu, live ? id : -1 - warp_thread());

    if (live)
        (void)invar_guard(fault, op, id, experts);
    if (live && __popc(same) > 1)
        invar_report(fault, op, INVAR_CUDA_REPEATED, id);
    return (int)in_range(id, experts);
}

/* Like `divisor`, for scores that the threads of the slots hold. */
__device__ __forceinline__ float divisor_of(float score, int slots, const invar_moe_router &router)
{
    float sum = 0.0f;

    if (!router.normalise)
        return 1.0f;
    for (int s = 0; s < slots; s++)
        sum = sum + __shfl_sync(0xFFFFFFFFu, score, s);
    return sum + router.normalise_eps;
}

/* ---- route ----------------------------------------------------------------------------------- */

struct route_rows {
    invar_view<int32_t> ids, replay; /* replay.data is NULL if there is none */
    invar_view<float> weights, scores, logits;
    const float *bias; /* NULL if there is none */
    invar_moe_router router;
    int64_t experts, slots;
    uint64_t *keys; /* (warps, experts + groups) if shared memory is too small, else NULL */
    invar_cuda_fault *fault;
};

/* Computes the scores of a row; thread t writes those of experts t, t + 32, ... */
__device__ __forceinline__ void score_experts(float *scores, const float *logits, int64_t experts,
                                              invar_moe_scoring scoring)
{
    float largest = -INFINITY;

    if (scoring == INVAR_MOE_SIGMOID) {
        for (int64_t j = warp_thread(); j < experts; j += 32)
            scores[j] = invar_sigmoid(logits[j]);
        return;
    }
    for (int64_t j = warp_thread(); j < experts; j += 32)
        largest = invar_max_nan(largest, logits[j]);
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        largest = invar_max_nan(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, half));
    float sum = invar_reduce_warp_long(experts, [&](int64_t j) {
        float e = invar_exp_nonpositive(logits[j] - largest);
        scores[j] = e;
        return e;
    });
    for (int64_t j = warp_thread(); j < experts; j += 32)
        scores[j] = scores[j] / sum;
}

/* Returns the smallest key of the warp. */
__device__ __forceinline__ uint64_t least_of_warp(uint64_t key)
{
    uint32_t high = __reduce_min_sync(0xFFFFFFFFu, (uint32_t)(key >> 32));
    uint32_t low = (uint32_t)(key >> 32) == high ? (uint32_t)key : UINT32_MAX;

    return (uint64_t)high << 32 | __reduce_min_sync(0xFFFFFFFFu, low);
}

/*
 * Removes the best `times` candidates from keys, in which ids are positions; calls f(i, id) for
 * each.
 */
template <typename F>
__device__ __forceinline__ void take_best(uint64_t *keys, int64_t count, int64_t times, F f)
{
    uint64_t own = INVAR_ORDER_LAST;
    auto look = [&] {
        own = INVAR_ORDER_LAST;
        for (int64_t i = warp_thread(); i < count; i += 32)
            own = keys[i] < own ? keys[i] : own;
    };

    look();
    for (int64_t i = 0; i < times; i++) {
        uint64_t best = least_of_warp(own);
        f(i, invar_order_id(best));
        if (own == best) {
            keys[invar_order_id(best)] = INVAR_ORDER_LAST;
            look();
        }
    }
    __syncwarp();
}

/* Returns the best value of a group, or the sum of its best two, the better one first. */
__device__ __forceinline__ float group_score(const uint64_t *keys, int64_t count, int32_t top)
{
    uint64_t first = INVAR_ORDER_LAST, second = INVAR_ORDER_LAST;

    for (int64_t i = 0; i < count; i++) {
        uint64_t key = keys[i], worse = key < first ? first : key;
        first = key < first ? key : first;
        second = worse < second ? worse : second;
    }
    return top == 1 ? invar_order_value(first)
                    : invar_order_value(first) + invar_order_value(second);
}

/* Removes the experts of all but the best groups from keys. */
__device__ __forceinline__ void limit_groups(uint64_t *keys, uint64_t *group_keys, int64_t experts,
                                             const invar_moe_router &router)
{
    int64_t size = experts / router.groups;

    for (int32_t g = warp_thread(); g < router.groups; g += 32) {
        float score = group_score(keys + g * size, size, router.group_score_top);
        group_keys[g] = invar_order_key(score, (uint32_t)g);
    }
    __syncwarp();
    take_best(group_keys, router.groups, router.groups_kept, [](int64_t, uint32_t) {});
    for (int64_t j = warp_thread(); j < experts; j += 32)
        if (group_keys[invar_divide(j, size)] != INVAR_ORDER_LAST)
            keys[j] = INVAR_ORDER_LAST;
    __syncwarp();
}

/*
 * Returns the divisor of the weights: 1, or the sum of the chosen scores in slot order, plus eps.
 */
__device__ __forceinline__ float divisor(const float *scores, const int32_t *ids, int64_t slots,
                                         int64_t experts, const invar_moe_router &router)
{
    float sum = 0.0f;

    if (!router.normalise)
        return 1.0f;
    for_slots(
        slots, [&](int64_t s) { return scores[in_range(ids[s], experts)]; },
        [&](float score) { sum = sum + score; });
    return sum + router.normalise_eps;
}

static __global__ void __launch_bounds__(32 * WARPS) route_tokens(route_rows r)
{
    extern __shared__ uint64_t shared_keys[];
    int64_t each = r.experts + r.router.groups;
    uint64_t *keys = r.keys ? r.keys + warp_number() * each : shared_keys + threadIdx.x / 32 * each;

    for (int64_t token = warp_number(); token < r.logits.rows;
         token += (int64_t)gridDim.x * WARPS) {
        float *scores = r.scores.row(token), *weights = r.weights.row(token);
        int32_t *chosen = r.ids.row(token);
        const int32_t *used = chosen;
        if (r.replay.data) {
            used = r.replay.row(token);
            check_choice(r.fault, INVAR_OP_MOE_ROUTE_FWD, used, r.slots, r.experts);
        }
        score_experts(scores, r.logits.row(token), r.experts, r.router.scoring);
        for (int64_t j = warp_thread(); j < r.experts; j += 32)
            keys[j] = invar_order_key(r.bias ? scores[j] + r.bias[j] : scores[j], (uint32_t)j);
        __syncwarp();
        if (r.router.groups_kept < r.router.groups)
            limit_groups(keys, keys + r.experts, r.experts, r.router);
        take_best(keys, r.experts, r.slots, [&](int64_t s, uint32_t id) {
            if (warp_thread() == 0)
                chosen[s] = (int32_t)id;
        });
        float total = divisor(scores, used, r.slots, r.experts, r.router);
        for (int64_t s = warp_thread(); s < r.slots; s += 32)
            weights[s] = scores[in_range(used[s], r.experts)] / total * r.router.scale;
        __syncwarp();
    }
}

/*
 * Computes x[k] / sum, for x in [0, 1] and sum >= 1 or NaN. A division checks its arguments each
 * time. Here they are checked together, and the same steps follow with one inverse for all: from
 * 2^-90 on, no remainder leaves the range of f32.
 */
template <int Count> __device__ __forceinline__ void divide_few(float x[Count], float sum)
{
    float least = x[0];

#pragma unroll
    for (int k = 1; k < Count; k++)
        least = fminf(least, x[k]);
    if (__all_sync(0xFFFFFFFFu, least >= 0x1p-90f)) {
        float inverse = invar_unit_rcp(sum);
        inverse = invar_fmaf(inverse, invar_fmaf(-sum, inverse, 1.0f), inverse);
#pragma unroll
        for (int k = 0; k < Count; k++) {
            float q = x[k] * inverse;
            q = invar_fmaf(inverse, invar_fmaf(-sum, q, x[k]), q);
            x[k] = invar_fmaf(inverse, invar_fmaf(-sum, q, x[k]), q);
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < Count; k++)
        x[k] = x[k] / sum;
}

/* Like score_experts, for a row in registers. */
template <int Count>
__device__ __forceinline__ void score_few(float x[Count], int experts, invar_moe_scoring scoring)
{
    float lane[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}, largest = -INFINITY;

    if (scoring == INVAR_MOE_SIGMOID) {
#pragma unroll
        for (int k = 0; k < Count; k++)
            x[k] = invar_sigmoid(x[k]);
        return;
    }
#pragma unroll
    for (int k = 0; k < Count; k++)
        if (warp_thread() + 32 * k < experts)
            largest = invar_max_nan(largest, x[k]);
    largest = invar_largest_of_warp(largest);
#pragma unroll
    // missing experts too, without branches, so that the exponentials overlap
    for (int k = 0; k < Count; k++)
        x[k] = invar_exp_nonpositive(x[k] - largest);
#pragma unroll
    for (int k = 0; k < Count; k++)
        lane[k] = x[k] = warp_thread() + 32 * k < experts ? x[k] : 0.0f;
    divide_few<Count>(x, invar_fold_warp(lane));
}

/*
 * Candidates of a thread, the best first: their ranks, and in `which` their index among the
 * thread's experts, four bits for each. Equal ones keep their order.
 */
template <int Count> struct own_order {
    uint32_t rank[Count], which;

    __device__ __forceinline__ void sort()
    {
        uint32_t at[Count];

#pragma unroll
        for (int k = 0; k < Count; k++)
            at[k] = (uint32_t)k;
#pragma unroll
        for (int round = 0; round < Count; round++)
#pragma unroll
            for (int k = round % 2; k + 1 < Count; k += 2) {
                bool swap = rank[k + 1] < rank[k];
                uint32_t lower = min(rank[k], rank[k + 1]), first = swap ? at[k + 1] : at[k];
                rank[k + 1] = max(rank[k], rank[k + 1]);
                at[k + 1] = swap ? at[k] : at[k + 1];
                rank[k] = lower;
                at[k] = first;
            }
        which = 0;
#pragma unroll
        for (int k = 0; k < Count; k++)
            which |= at[k] << 4 * k;
    }

    /* Returns the expert of the best candidate. */
    __device__ __forceinline__ uint32_t first() const
    {
        return (uint32_t)warp_thread() + 32 * (which & 15);
    }

    __device__ __forceinline__ void drop(bool it)
    {
#pragma unroll
        for (int k = 0; k + 1 < Count; k++)
            rank[k] = it ? rank[k + 1] : rank[k];
        rank[Count - 1] = it ? UINT32_MAX : rank[Count - 1];
        which = it ? which >> 4 : which;
    }
};

/* Routes a token for each warp, all of it in registers; groups are not limited. */
template <int Count>
static __global__ void __launch_bounds__(32 * WARPS, 12) route_few(route_rows r)
{
    int64_t token = warp_number();
    int experts = (int)r.experts, slots = (int)r.slots, thread = warp_thread(), chosen = 0;
    float score[Count], own = 0.0f, total = 0.0f;
    own_order<Count> order;

    invar_grid_begin();
    if (token >= r.logits.rows)
        return;
    load_experts<Count>(score, r.logits.row(token), experts);
    score_few<Count>(score, experts, r.router.scoring);
    float *scores = r.scores.row(token) + thread;
#pragma unroll
    for (int k = 0; k < Count; k++) {
        bool there = thread + 32 * k < experts;
        float v = r.bias && there ? score[k] + r.bias[thread + 32 * k] : score[k];
        // missing experts come last: a NaN has the rank of the canonical one, which is lower
        order.rank[k] = there ? (uint32_t)(invar_order_key(v, 0) >> 32) : UINT32_MAX;
        if (there)
            scores[32 * k] = score[k];
    }
    order.sort();
    for (int s = 0; s < slots; s++) {
        uint32_t best = __reduce_min_sync(0xFFFFFFFFu, order.rank[0]), id = order.first();
        uint32_t winner = __reduce_min_sync(0xFFFFFFFFu, order.rank[0] == best ? id : UINT32_MAX);
        // the winner's score, which is not negative
        float value = __uint_as_float(best ^ ~INVAR_SIGN_BIT);
        total = total + value;
        chosen = s == thread ? (int)winner : chosen;
        own = s == thread ? value : own;
        order.drop(id == winner);
    }
    if (thread < slots)
        r.ids.row(token)[thread] = chosen;
    if (r.replay.data)
        chosen = own_choice(r.fault, INVAR_OP_MOE_ROUTE_FWD, r.replay.row(token), slots, experts);
    if (r.replay.data || r.bias) {
        own = value_of<Count>(score, chosen);
        total = divisor_of(own, slots, r.router);
    } else {
        total = r.router.normalise ? total + r.router.normalise_eps : 1.0f;
    }
    if (thread < slots)
        r.weights.row(token)[thread] = own / total * r.router.scale;
}

#define ROUTE_BLOCKS 8 // blocks on a multiprocessor
#define SHARED_MOST (24 * 1024)

static int64_t route_blocks(const invar_device *dev, const invar_moe_route_fwd_args *a)
{
    int64_t most = (int64_t)invar_cuda_of(dev)->multiprocessors * ROUTE_BLOCKS;
    int64_t blocks = invar_ceil_div(a->logits.shape[0], WARPS);

    return blocks < most ? blocks : most;
}

/* Returns the bytes of the keys of a block's warps. */
static size_t keys_bytes(const invar_moe_route_fwd_args *a)
{
    return WARPS * (size_t)(a->logits.shape[1] + a->router.groups) * sizeof(uint64_t);
}

static bool has_few(int64_t experts, int64_t slots)
{
    return experts <= FEW_EXPERTS && slots <= FEW_SLOTS;
}

size_t invar_cuda_moe_route_fwd_workspace(const invar_device *dev,
                                          const invar_moe_route_fwd_args *a)
{
    return keys_bytes(a) > SHARED_MOST ? keys_bytes(a) * (size_t)route_blocks(dev, a) : 0;
}

static invar_status check_experts(invar_op op, int64_t experts)
{
    if (experts > INVAR_WARP_SUM_MAX)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: more than 2^24 experts", invar_op_name(op));
    return INVAR_OK;
}

invar_status invar_cuda_moe_route_fwd(const invar_device *dev, const invar_moe_route_fwd_args *a,
                                      void *workspace)
{
    invar_op op = INVAR_OP_MOE_ROUTE_FWD;
    bool shared = keys_bytes(a) <= SHARED_MOST;
    route_rows rows = {invar_view_of<int32_t>(&a->ids),
                       {},
                       invar_view_of<float>(&a->weights),
                       invar_view_of<float>(&a->scores),
                       invar_view_of<float>(&a->logits),
                       invar_tensor_present(&a->bias) ? (const float *)a->bias.data : nullptr,
                       a->router,
                       a->logits.shape[1],
                       a->ids.shape[1],
                       shared ? nullptr : (uint64_t *)workspace,
                       invar_cuda_of(dev)->fault};

    INVAR_TRY(check_experts(op, a->logits.shape[1]));
    if (invar_tensor_present(&a->replay))
        rows.replay = invar_view_of<int32_t>(&a->replay);
    if (has_few(rows.experts, rows.slots) && a->router.groups_kept == a->router.groups)
        return by_registers(rows.experts, [&](auto count) {
            dim3 grid((unsigned)invar_ceil_div(a->logits.shape[0], WARPS));
            return invar_launch_early(dev, op, route_few<decltype(count)::value>, grid,
                                      dim3(32 * WARPS), 0)(rows);
        });
    return invar_launch(dev, op, route_tokens, dim3((unsigned)route_blocks(dev, a)),
                        dim3(32 * WARPS), shared ? keys_bytes(a) : 0)(rows);
}

#endif
