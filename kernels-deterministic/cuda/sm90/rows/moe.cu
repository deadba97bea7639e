/*
 * moe.cu - mixture of experts: plan, permutation, combination, and their backwards.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 9:
 *   route    scores in f32; experts by (score + bias descending, id ascending); weights normalized
 *            over slots in ascending order
 *   plan     rows by (expert, token): integers only
 *   gather   a copy; its backward adds slots ascending from +0, one rounding
 *   combine  acc = fma(w_s, y_s, acc) over slots ascending from +0, then the shared expert, one
 *            rounding; the gradient of a weight is REDUCE over rounded products
 * A token's results depend on its own row alone. The router is in route.cuh and route_backward.cuh,
 * the grouped linear layers are in gemm/linear.cu.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/rows/gather.cuh"
#include "kernels-deterministic/cuda/sm90/rows/route_backward.cuh"
#include "kernels-deterministic/cuda/sm90/rows/sort.cuh"

/* ---- plan ------------------------------------------------------------------------------------ */

/* Source of the pairs (token, slot) in order, with their experts as keys. */
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

/* Returns the first of the sorted entries whose key is not below `key`. */
__device__ __forceinline__ int64_t lower_bound(const invar_sort_entry *sorted, int64_t n,
                                               int64_t key)
{
    int64_t low = 0, high = n; // entries before low are below `key`, entries from high on are not

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

INVAR_NO_WORKSPACE(cuda, moe_gather_fwd)

invar_status invar_cuda_moe_gather_fwd(const invar_device *dev, const invar_moe_gather_fwd_args *a,
                                       void *workspace)
{
    (void)workspace;
    return invar_gather_rows(dev, INVAR_OP_MOE_GATHER_FWD, &a->out, &a->x, &a->row_token);
}

/* ---- combine, and the backward of gather ----------------------------------------------------- */

/* Check that slot_row names each row once: one bit for each row, 0 at the start. */
struct row_marks {
    uint32_t *seen;
    int64_t rows;
    invar_op op;
    invar_cuda_fault *fault;

    __device__ __forceinline__ int64_t guard(int32_t row) const
    {
        return invar_guard(fault, op, row, rows);
    }

    /* Marks the row of a slot; called once for each slot. */
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

/*
 * Combines the slots of tokens. Without weights every weight is 1, and fma(1, y, acc) is acc + y:
 * the backward of gather.
 */
template <typename T> struct combine_runs {
    static constexpr int width = INVAR_RUN;
    invar_any_float_rows out, shared;
    invar_view<T> y;
    invar_view<float> weights; /* data is NULL if there are none */
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

        // in this order, so that only the row numbers are waited for
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
        constexpr int batch = 4; // slots in flight at once
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

static invar_status combine_tokens(const invar_device *dev, invar_op op,
                                   const invar_moe_combine_fwd_args *a, void *scratch)
{
    row_marks marks;

    INVAR_TRY(clear_marks(&marks, dev, op, &a->slot_row, scratch));
    return invar_by_storage(a->y.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        combine_runs<T> runs = {invar_any_float_rows_of(&a->out),
                                invar_any_float_rows_of(&a->shared),
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
    return combine_tokens(dev, INVAR_OP_MOE_COMBINE_FWD, a, workspace);
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
    return combine_tokens(dev, INVAR_OP_MOE_GATHER_BWD, &sum, workspace);
}

/* ---- combine, backward ----------------------------------------------------------------------- */

/* Arguments of combine_slots_backward; Rows is invar_typed or invar_any_float_rows. */
template <typename Rows> struct combine_backward_rows {
    Rows dy, dout, y;
    invar_view<float> dweights, weights;
    invar_view<int32_t> slot_row;
    int64_t cols;
    row_marks marks;
};

/* Computes the gradients of one slot, by a warp. */
template <typename Rows, bool Whole>
static __global__ void __launch_bounds__(32 * WARPS, 6)
    combine_slots_backward(combine_backward_rows<Rows> r)
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
        combine_backward_rows<decltype(y)> rows = {dy,
                                                   dout,
                                                   y,
                                                   invar_view_of<float>(&a->dweights),
                                                   invar_view_of<float>(&a->weights),
                                                   invar_view_of<int32_t>(&a->slot_row),
                                                   cols,
                                                   marks};
        return invar_by_flag(whole, [&](auto flag) {
            return invar_launch(dev, op, combine_slots_backward<decltype(y), flag.value>, grid,
                                dim3(32 * WARPS), 0)(rows);
        });
    };

    if (cols > INVAR_WARP_SUM_MAX)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: rows of more than 2^24 values",
                          invar_op_name(op));
    INVAR_TRY(clear_marks(&marks, dev, op, &a->slot_row, workspace));
    if (a->dy.dtype != a->y.dtype || a->dout.dtype != a->y.dtype)
        return launch(invar_any_float_rows_of(&a->dy), invar_any_float_rows_of(&a->dout),
                      invar_any_float_rows_of(&a->y));
    return invar_by_storage(a->y.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        auto typed = [](const invar_tensor &t) {
            return invar_typed<T>{(T *)t.data, t.row_stride};
        };
        return launch(typed(a->dy), typed(a->dout), typed(a->y));
    });
}
