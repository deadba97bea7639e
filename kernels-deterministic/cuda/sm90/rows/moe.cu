/*
 * moe.cu - mixture of experts: routing, permutation, combination, and their backwards.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 9:
 *   route    scores in f32; experts by (score + bias descending, id ascending); weights normalised
 *            over slots in ascending order
 *   plan     rows by (expert, token): integers only
 *   gather   a copy; its backward adds slots ascending from +0, one rounding
 *   combine  acc = fma(w_s, y_s, acc) over slots ascending from +0, then the shared expert, one
 *            rounding; the gradient of a weight is REDUCE over rounded products
 * A token's results depend on its own row alone. (The grouped linear layers are in linear.cu.)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/rows/gather.cuh"
#include "kernels-deterministic/cuda/sm90/rows/sort.cuh"
#include "kernels-deterministic/math/narrow.h"
#include "kernels-deterministic/math/order.h"

#define WARPS 4 // of a block of threads; a warp has a token

__device__ __forceinline__ int warp_thread()
{
    return (int)threadIdx.x % 32;
}

/* The token of this warp. */
__device__ __forceinline__ int64_t warp_number()
{
    return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
}

/* Experts of a token: what is out of range or there twice is reported. One warp. */
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

/* An expert's number, whatever stands there: check_choice has reported it. */
__device__ __forceinline__ int64_t in_range(int32_t id, int64_t experts)
{
    return id >= 0 && id < experts ? id : 0;
}

/* f(s, value) for slots in ascending order, value(s) being computed by one thread each. */
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

/* ---- route ----------------------------------------------------------------------------------- */

struct route_rows {
    invar_view<int32_t> ids, replay; /* replay.data NULL: none */
    invar_view<float> weights, scores, logits;
    const float *bias; /* NULL: none */
    invar_moe_router router;
    int64_t experts, slots;
    uint64_t *keys; /* (warps, experts + groups) where shared memory is too small, else NULL */
    invar_cuda_fault *fault;
};

/* The scores of a row; thread t writes those of experts t, t + 32, ... */
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
        float e = invar_exp_not_above_0(logits[j] - largest);
        scores[j] = e;
        return e;
    });
    for (int64_t j = warp_thread(); j < experts; j += 32)
        scores[j] = scores[j] / sum;
}

/* The least key of the warp. */
__device__ __forceinline__ uint64_t least_of_warp(uint64_t key)
{
    uint32_t high = __reduce_min_sync(0xFFFFFFFFu, (uint32_t)(key >> 32));
    uint32_t low = (uint32_t)(key >> 32) == high ? (uint32_t)key : UINT32_MAX;

    return (uint64_t)high << 32 | __reduce_min_sync(0xFFFFFFFFu, low);
}

/* Takes the best `times` candidates out of keys, whose ids are their places; f(i, id) for each. */
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

/* The best value of a group, or the sum of its best two, the better one first. */
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

/* Takes the experts of all but the best groups out of keys. */
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

/* What weights are divided by: 1, or the chosen scores' sum in slot order, plus eps. */
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

#define ROUTE_BLOCKS 8 // on a multiprocessor
#define SHARED_MOST (24 * 1024)

static int64_t route_blocks(const invar_device *dev, const invar_moe_route_fwd_args *a)
{
    int64_t most = (int64_t)invar_cuda_of(dev)->multiprocessors * ROUTE_BLOCKS;
    int64_t blocks = invar_ceil_div(a->logits.shape[0], WARPS);

    return blocks < most ? blocks : most;
}

/* Of a block's warps. */
static size_t keys_bytes(const invar_moe_route_fwd_args *a)
{
    return WARPS * (size_t)(a->logits.shape[1] + a->router.groups) * sizeof(uint64_t);
}

size_t invar_cuda_moe_route_fwd_workspace(const invar_device *dev,
                                          const invar_moe_route_fwd_args *a)
{
    return keys_bytes(a) > SHARED_MOST ? keys_bytes(a) * (size_t)route_blocks(dev, a) : 0;
}

static invar_status check_experts(invar_op op, int64_t experts)
{
    if (experts > INVAR_WARP_SUM_MOST)
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
    return invar_launch(dev, op, route_tokens, dim3((unsigned)route_blocks(dev, a)),
                        dim3(32 * WARPS), shared ? keys_bytes(a) : 0)(rows);
}

/* ---- route, backward ------------------------------------------------------------------------- */

struct route_back_rows {
    invar_mixed dlogits;
    invar_view<float> dweights, scores;
    invar_view<int32_t> ids;
    invar_moe_router router;
    invar_cuda_fault *fault;
};

static __global__ void __launch_bounds__(32 * WARPS) route_tokens_back(route_back_rows r)
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
        for (int64_t s = 0; s < slots; s++) // the same in all threads
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

size_t invar_cuda_moe_route_bwd_workspace(const invar_device *dev,
                                          const invar_moe_route_bwd_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cuda_moe_route_bwd(const invar_device *dev, const invar_moe_route_bwd_args *a,
                                      void *workspace)
{
    route_back_rows rows = {invar_mixed_of(&a->dlogits),
                            invar_view_of<float>(&a->dweights),
                            invar_view_of<float>(&a->scores),
                            invar_view_of<int32_t>(&a->ids),
                            a->router,
                            invar_cuda_of(dev)->fault};
    dim3 grid((unsigned)invar_ceil_div(a->scores.shape[0], WARPS));

    (void)workspace;
    return invar_launch(dev, INVAR_OP_MOE_ROUTE_BWD, route_tokens_back, grid, dim3(32 * WARPS),
                        0)(rows);
}

/* ---- plan ------------------------------------------------------------------------------------ */

/* The pairs (token, slot) in order, with their experts as keys. */
struct slot_experts {
    invar_view<int32_t> ids;
    int64_t experts;
    invar_cuda_fault *fault;

    __device__ __forceinline__ invar_sort_entry operator()(int64_t i) const
    {
        int64_t token = invar_divide(i, ids.cols);
        int32_t id = ids.row(token)[i - token * ids.cols];
        return {(int32_t)invar_guard(fault, INVAR_OP_MOE_PLAN, id, experts), (int32_t)i};
    }
};

#define PLAN_THREADS 256

/* The first of the sorted entries whose key is not below `key`. */
__device__ __forceinline__ int64_t lower_bound(const invar_sort_entry *sorted, int64_t n,
                                               int64_t key)
{
    int64_t low = 0, high = n; // all before low are below, all from high on are not

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (sorted[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static __global__ void __launch_bounds__(PLAN_THREADS)
    write_plan(int32_t *row_token, invar_view<int32_t> slot_row, int64_t *expert_start,
               const invar_sort_entry *sorted, slot_experts pairs, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * PLAN_THREADS + threadIdx.x;

    if (i <= pairs.experts)
        expert_start[i] = lower_bound(sorted, n, i);
    if (i >= n)
        return;
    int64_t pair = sorted[i].position, token = invar_divide(pair, slot_row.cols);
    int64_t slot = pair - token * slot_row.cols;
    const int32_t *ids = pairs.ids.row(token);
    row_token[i] = (int32_t)token;
    slot_row.row(token)[slot] = (int32_t)i;
    for (int64_t earlier = 0; earlier < slot; earlier++)
        if (ids[earlier] == ids[slot])
            invar_report(pairs.fault, INVAR_OP_MOE_PLAN, INVAR_CUDA_REPEATED, ids[slot]);
}

size_t invar_cuda_moe_plan_workspace(const invar_device *dev, const invar_moe_plan_args *a)
{
    (void)dev;
    return invar_sort_bytes(a->ids.shape[0] * a->ids.shape[1]);
}

invar_status invar_cuda_moe_plan(const invar_device *dev, const invar_moe_plan_args *a,
                                 void *workspace)
{
    invar_op op = INVAR_OP_MOE_PLAN;
    int64_t n = a->ids.shape[0] * a->ids.shape[1], most = n > a->experts ? n : a->experts + 1;
    slot_experts pairs = {invar_view_of<int32_t>(&a->ids), a->experts, invar_cuda_of(dev)->fault};
    const invar_sort_entry *sorted;

    INVAR_TRY(invar_sort(&sorted, dev, op, pairs, n, a->experts, workspace));
    return invar_launch(dev, op, write_plan, dim3((unsigned)invar_ceil_div(most, PLAN_THREADS)),
                        dim3(PLAN_THREADS),
                        0)((int32_t *)a->row_token.data, invar_view_of<int32_t>(&a->slot_row),
                           a->expert_start, sorted, pairs, n);
}

/* ---- gather ---------------------------------------------------------------------------------- */

size_t invar_cuda_moe_gather_fwd_workspace(const invar_device *dev,
                                           const invar_moe_gather_fwd_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cuda_moe_gather_fwd(const invar_device *dev, const invar_moe_gather_fwd_args *a,
                                       void *workspace)
{
    (void)workspace;
    return invar_gather_rows(dev, INVAR_OP_MOE_GATHER_FWD, &a->out, &a->x, &a->row_token);
}

/* ---- combine, and the backward of gather ----------------------------------------------------- */

/* Whether slot_row names each row once: one bit a row, 0 at the start. */
struct row_marks {
    uint32_t *seen;
    int64_t rows;
    invar_op op;
    invar_cuda_fault *fault;

    __device__ __forceinline__ int64_t guard(int32_t row) const
    {
        return invar_guard(fault, op, row, rows);
    }

    /* Once for each slot. */
    __device__ __forceinline__ void mark(int32_t row) const
    {
        uint32_t bit = 1u << (row & 31);
        if (row >= 0 && row < rows && (atomicOr(&seen[row / 32], bit) & bit) != 0)
            invar_report(fault, op, INVAR_CUDA_REPEATED, row);
    }
};

static size_t marks_bytes(const invar_tensor *slot_row)
{
    return ((size_t)(slot_row->shape[0] * slot_row->shape[1]) + 31) / 32 * sizeof(uint32_t);
}

static invar_status clear_marks(row_marks *out, const invar_device *dev, invar_op op,
                                const invar_tensor *slot_row, void *scratch)
{
    *out = {(uint32_t *)scratch, slot_row->shape[0] * slot_row->shape[1], op,
            invar_cuda_of(dev)->fault};
    return invar_device_zero(dev, scratch, marks_bytes(slot_row));
}

/* Without weights every weight is 1, and fma(1, y, acc) is acc + y: the backward of gather. */
template <typename T> struct combine_runs {
    static constexpr int width = INVAR_RUN;
    invar_mixed out, shared;
    invar_view<T> y;
    invar_view<float> weights; /* data NULL: none */
    invar_view<int32_t> slot_row;
    row_marks marks;
    bool aligned;

    template <int Count>
    __device__ __forceinline__ void add_slots(float acc[width], int64_t token, int64_t s,
                                              int64_t first, int64_t count) const
    {
        const int32_t *rows = slot_row.row(token) + s;
        invar_run<T> run[Count];
        float weight[Count];
        int32_t row[Count];

        // in this order, so that nothing waits but for the rows' numbers
#pragma unroll
        for (int i = 0; i < Count; i++)
            row[i] = rows[i];
#pragma unroll
        for (int i = 0; i < Count; i++)
            weight[i] = weights.data ? weights.row(token)[s + i] : 1.0f;
#pragma unroll
        for (int i = 0; i < Count; i++)
            row[i] = (int32_t)marks.guard(row[i]);
#pragma unroll
        for (int i = 0; i < Count; i++)
            run[i].load(y.row(row[i]) + first, count, aligned);
#pragma unroll
        for (int i = 0; i < Count; i++) {
#pragma unroll
            for (int c = 0; c < width; c++)
                acc[c] = invar_fmaf(weight[i], run[i].get(c), acc[c]);
        }
    }

    __device__ __forceinline__ void operator()(int64_t token, int64_t first, int64_t count) const
    {
        constexpr int batch = 4; // slots under way at once
        float acc[width] = {}, line[width];
        int64_t s = 0;

        for (; s + batch <= slot_row.cols; s += batch)
            add_slots<batch>(acc, token, s, first, count);
        for (; s < slot_row.cols; s++)
            add_slots<1>(acc, token, s, first, count);
        if (shared.data) {
            shared.load<width>(line, token, first, count, aligned);
#pragma unroll
            for (int c = 0; c < width; c++)
                acc[c] = acc[c] + line[c];
        }
        out.store<width>(acc, token, first, count, aligned);
        for (s = 0; first == 0 && s < slot_row.cols; s++)
            marks.mark(slot_row.row(token)[s]);
    }
};

static invar_status combine(const invar_device *dev, invar_op op,
                            const invar_moe_combine_fwd_args *a, void *scratch)
{
    row_marks marks;

    INVAR_TRY(clear_marks(&marks, dev, op, &a->slot_row, scratch));
    return invar_by_storage(a->y.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        combine_runs<T> runs = {invar_mixed_of(&a->out),
                                invar_mixed_of(&a->shared),
                                invar_view_of<T>(&a->y),
                                {},
                                invar_view_of<int32_t>(&a->slot_row),
                                marks,
                                invar_aligned({&a->out, &a->y, &a->shared})};
        if (invar_tensor_present(&a->weights))
            runs.weights = invar_view_of<float>(&a->weights);
        return invar_map(dev, op, a->out.shape[0], a->out.shape[1], false, runs);
    });
}

size_t invar_cuda_moe_combine_fwd_workspace(const invar_device *dev,
                                            const invar_moe_combine_fwd_args *a)
{
    (void)dev;
    return marks_bytes(&a->slot_row);
}

invar_status invar_cuda_moe_combine_fwd(const invar_device *dev,
                                        const invar_moe_combine_fwd_args *a, void *workspace)
{
    return combine(dev, INVAR_OP_MOE_COMBINE_FWD, a, workspace);
}

size_t invar_cuda_moe_gather_bwd_workspace(const invar_device *dev,
                                           const invar_moe_gather_bwd_args *a)
{
    (void)dev;
    return marks_bytes(&a->slot_row);
}

invar_status invar_cuda_moe_gather_bwd(const invar_device *dev, const invar_moe_gather_bwd_args *a,
                                       void *workspace)
{
    invar_moe_combine_fwd_args sum = {};

    sum.out = a->dx;
    sum.y = a->dout;
    sum.slot_row = a->slot_row;
    return combine(dev, INVAR_OP_MOE_GATHER_BWD, &sum, workspace);
}

/* ---- combine, backward ----------------------------------------------------------------------- */

/* Rows: invar_typed or invar_mixed. */
template <typename Rows> struct combine_back_rows {
    Rows dy, dout, y;
    invar_view<float> dweights, weights;
    invar_view<int32_t> slot_row;
    int64_t cols;
    row_marks marks;
};

/* A warp for each slot. */
template <typename Rows, bool Whole>
static __global__ void __launch_bounds__(32 * WARPS, 6)
    combine_slots_back(combine_back_rows<Rows> r)
{
    int64_t number = warp_number(), token = invar_divide(number, r.slot_row.cols);
    int64_t slot = number - token * r.slot_row.cols;

    if (token >= r.slot_row.rows)
        return;
    int32_t named = r.slot_row.row(token)[slot];
    float weight = r.weights.row(token)[slot];
    int64_t row = r.marks.guard(named);
    float dout[INVAR_RUN], line[INVAR_RUN], next_dout[INVAR_RUN], next_line[INVAR_RUN];
    invar_warp_sum sum;
    auto load = [&](int64_t first) {
        r.dout.template load<INVAR_RUN, Whole>(next_dout, token, first, r.cols);
        r.y.template load<INVAR_RUN, Whole>(next_line, row, first, r.cols);
    };
    sum.start();
    load(warp_thread() * INVAR_RUN);
    for (int64_t base = 0; base < r.cols; base += INVAR_REDUCE_LANES) {
        int64_t first = base + warp_thread() * INVAR_RUN;
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++) {
            line[i] = next_line[i] * next_dout[i];
            dout[i] = weight * next_dout[i];
        }
        load(first + INVAR_REDUCE_LANES);
        sum.add(line);
        r.dy.template store<INVAR_RUN, Whole>(dout, row, first, r.cols);
    }
    float total = sum.sum();
    if (warp_thread() == 0) {
        r.dweights.row(token)[slot] = total;
        r.marks.mark(named);
    }
}

size_t invar_cuda_moe_combine_bwd_workspace(const invar_device *dev,
                                            const invar_moe_combine_bwd_args *a)
{
    (void)dev;
    return marks_bytes(&a->slot_row);
}

invar_status invar_cuda_moe_combine_bwd(const invar_device *dev,
                                        const invar_moe_combine_bwd_args *a, void *workspace)
{
    invar_op op = INVAR_OP_MOE_COMBINE_BWD;
    int64_t cols = a->dout.shape[1];
    bool whole = invar_aligned({&a->dy, &a->dout, &a->y}) && cols % INVAR_RUN == 0;
    dim3 grid((unsigned)invar_ceil_div(a->slot_row.shape[0] * a->slot_row.shape[1], WARPS));
    row_marks marks;
    auto launch = [&](auto dy, auto dout, auto y) {
        combine_back_rows<decltype(y)> rows = {dy,
                                               dout,
                                               y,
                                               invar_view_of<float>(&a->dweights),
                                               invar_view_of<float>(&a->weights),
                                               invar_view_of<int32_t>(&a->slot_row),
                                               cols,
                                               marks};
        return invar_by_flag(whole, [&](auto flag) {
            return invar_launch(dev, op, combine_slots_back<decltype(y), flag.value>, grid,
                                dim3(32 * WARPS), 0)(rows);
        });
    };

    if (cols > INVAR_WARP_SUM_MOST)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: rows of more than 2^24 values",
                          invar_op_name(op));
    INVAR_TRY(clear_marks(&marks, dev, op, &a->slot_row, workspace));
    if (a->dy.dtype != a->y.dtype || a->dout.dtype != a->y.dtype)
        return launch(invar_mixed_of(&a->dy), invar_mixed_of(&a->dout), invar_mixed_of(&a->y));
    return invar_by_storage(a->y.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        auto typed = [](const invar_tensor &t) {
            return invar_typed<T>{(T *)t.data, t.row_stride};
        };
        return launch(typed(a->dy), typed(a->dout), typed(a->y));
    });
}
