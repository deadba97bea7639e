/*
 * swiglu.cu - the gated activation and its backward.
 *
 * Numerics contract (rev 1), docs/arithmetic.md, section 7; in f32, each line rounded to storage
 * once:
 *   y     = silu(gate) * up
 *   dup   = dy * silu(gate)
 *   dgate = (dy * up) * silu'(gate)
 * A gate in bf16 has few values: for large tensors, functions of the gate alone come from a table.
 * Results can be quantized in the same pass, with the bits that quantize.cu gives from memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/gate.cuh"
#include "kernels-deterministic/cuda/sm90/rows/quantize.cuh"

/* Returns whether the short forms of math/restricted_domain.h suffice for all values of the run. */
template <typename T> __device__ __forceinline__ bool all_near(const invar_run<T> &run)
{
    bool near = true;

#pragma unroll
    for (int i = 0; i < INVAR_RUN; i++)
        near = near & (invar_abs_f32(run.get(i)) <= INVAR_SIGMOID_MODERATE_MAX);
    return near;
}

/* ---- by table -------------------------------------------------------------------------------- */

/* Every block of threads makes the table before memory is touched. */
#define TABLE_THREADS 512
#define TABLE_BLOCKS 2                 // blocks on a multiprocessor
#define TABLE_AHEAD 2                  // runs of a thread that are in flight at once
#define TABLE_LEAST (INT64_C(1) << 22) // elements; for fewer, the table costs more than it saves

/* Position of a run of a tensor, counted through all rows, `each` runs in a row. */
struct run_place {
    int64_t row;
    int column; /* in runs */

    __device__ __forceinline__ void advance(const run_place &by, int each)
    {
        row += by.row;
        column += by.column;
        if (column >= each) {
            column -= each;
            row++;
        }
    }
};

__device__ __forceinline__ run_place place_of(int64_t run, int each)
{
    int64_t row = invar_divide(run, each);

    return {row, (int)(run - row * each)};
}

template <typename F>
static __global__ void __launch_bounds__(TABLE_THREADS, TABLE_BLOCKS)
    map_by_table(F f, int64_t rows, int each)
{
    __shared__ typename F::entry table[INVAR_GATE_ENTRIES];
    run_place next = place_of((int64_t)blockIdx.x * TABLE_THREADS + threadIdx.x, each);
    run_place step = place_of((int64_t)gridDim.x * TABLE_THREADS, each);

    invar_grid_release();
    invar_make_gates(table, F::make, TABLE_THREADS);
    __syncthreads();
    invar_grid_wait();
    while (next.row < rows) {
        typename F::values v[TABLE_AHEAD];
        run_place at[TABLE_AHEAD];
#pragma unroll
        for (int j = 0; j < TABLE_AHEAD; j++) {
            at[j] = next;
            next.advance(step, each);
            if (at[j].row < rows)
                f.load(v[j], at[j].row, at[j].column * INVAR_RUN);
        }
#pragma unroll
        for (int j = 0; j < TABLE_AHEAD; j++)
            if (at[j].row < rows)
                f.finish(v[j], at[j].row, at[j].column * INVAR_RUN, table);
    }
}

/* Returns whether the table can be used: rows consist of complete runs. */
static bool can_use_table(std::initializer_list<const invar_tensor *> tensors)
{
    const invar_tensor *first = *tensors.begin();
    int64_t rows = first->shape[0], cols = first->shape[1];

    return first->dtype == INVAR_DTYPE_BF16 && cols % INVAR_RUN == 0 && cols <= INT32_MAX &&
           rows * cols >= TABLE_LEAST && invar_aligned(tensors);
}

template <typename F>
static invar_status launch_by_table(const invar_device *dev, invar_op op, const invar_tensor *y,
                                    F f)
{
    dim3 grid((unsigned)(invar_cuda_of(dev)->multiprocessors * TABLE_BLOCKS));

    return invar_launch_early(dev, op, map_by_table<F>, grid, dim3(TABLE_THREADS),
                              0)(f, y->shape[0], (int)(y->shape[1] / INVAR_RUN));
}

/* ---- codes of what is stored ----------------------------------------------------------------- */

struct no_codes {
    __device__ __forceinline__ void put(const invar_bf16_run &, int64_t, int64_t) const
    {
    }
};

/* Returns the larger of either half, as unsigned numbers. */
__device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b)
{
    uint32_t most;

    asm("max.u16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
    return most;
}

/*
 * Quantizes runs as they are stored. Neighboring threads of a warp have neighboring runs; those of
 * a scale block find its maximum together.
 */
template <typename F> struct stored_codes {
    codes_view<F> to;
    int64_t across; // scale blocks of a row

    __device__ __forceinline__ void put(const invar_bf16_run &run, int64_t row, int64_t first) const
    {
        constexpr uint32_t lanes = F::block / INVAR_RUN;
        uint32_t lane = threadIdx.x % 32, most = 0;
        uint32_t together = (uint32_t)((UINT64_C(1) << lanes) - 1) << (lane / lanes * lanes);
        float x[INVAR_RUN];

        // magnitudes of bf16 have the order of their bits, NaN above all
#pragma unroll
        for (int i = 0; i < run.words; i++)
            most = larger_halves(most, run.word[i] & 0x7FFF7FFFu);
#pragma unroll
        for (uint32_t half = lanes / 2; half > 0; half /= 2)
            most = larger_halves(most, __shfl_xor_sync(together, most, half));
        auto scale = F::scale(__uint_as_float(max(most & 0xFFFFu, most >> 16) << 16));
        if (lane % lanes == 0)
            to.scale[row * across + first / F::block] = scale;
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            x[i] = run.get(i);
        F::encode(scale, [&](auto four) { put_codes<F, true>(to.at(row, first), x, four); });
    }
};

template <typename F> static stored_codes<F> stored_codes_of(const invar_tensor *q)
{
    return {codes_of<F>(q), q->shape[1] / F::block}; // complete scale blocks
}

/* Returns whether stored_codes can be used, besides the table. */
static bool supports_codes(const invar_tensor *q)
{
    bool rows =
        q->dtype == INVAR_DTYPE_MXFP8 || (q->dtype == INVAR_DTYPE_FP8 && q->scale_rows == 1);

    return rows && q->shape[1] % invar_dtype_scale_block(q->dtype) == 0 &&
           (((uintptr_t)q->data | (uintptr_t)q->row_stride) & 7) == 0;
}

static invar_status quantize_stored(const invar_device *dev, const invar_tensor *q,
                                    const invar_tensor *x)
{
    invar_quantize_args args = {*q, *x};

    return invar_cuda_quantize(dev, &args, NULL); // quantize needs no workspace
}

/* ---- forward --------------------------------------------------------------------------------- */

template <typename Codes> struct forward_by_table {
    using entry = float;
    struct values {
        invar_bf16_run gate, up;
    };
    invar_view<__nv_bfloat16> y, gate, up;
    Codes codes;

    static __device__ __forceinline__ entry make(float g)
    {
        return invar_silu(g);
    }

    __device__ __forceinline__ void load(values &v, int64_t row, int64_t first) const
    {
        v.gate.load_whole(gate.row(row) + first);
        v.up.load_whole(up.row(row) + first);
    }

    __device__ __forceinline__ void finish(values &v, int64_t row, int64_t first,
                                           const entry *table) const
    {
        uint32_t at[INVAR_RUN];
        float out[INVAR_RUN];
        auto multiply = [&](auto of_gate) {
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++)
                out[i] = of_gate(i) * v.up.get(i);
        };

        if (invar_find_gates(at, v.gate))
            multiply([&](int i) { return table[at[i]]; });
        else
            multiply([&](int i) { return make(v.gate.get(i)); });
        v.gate.set(out);
        v.gate.store_whole(y.row(row) + first);
        codes.put(v.gate, row, first);
    }
};

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
                out[i] = invar_silu_near(g.get(i), invar_sigmoid_moderate(g.get(i))) * u.get(i);
        } else {
#pragma unroll
            for (int i = 0; i < width; i++)
                out[i] = invar_silu(g.get(i)) * u.get(i);
        }
        g.set(out);
        g.store(y.row(row) + first, count, aligned);
    }
};

INVAR_NO_WORKSPACE(cuda, swiglu_fwd)

template <typename Codes>
static invar_status forward_table(const invar_device *dev, const invar_swiglu_fwd_args *a,
                                  Codes codes)
{
    return launch_by_table(dev, INVAR_OP_SWIGLU_FWD, &a->y,
                           forward_by_table<Codes>{invar_view_of<__nv_bfloat16>(&a->y),
                                                   invar_view_of<__nv_bfloat16>(&a->gate),
                                                   invar_view_of<__nv_bfloat16>(&a->up), codes});
}

static invar_status swiglu_forward(const invar_device *dev, const invar_swiglu_fwd_args *a)
{
    return invar_by_storage(a->y.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        forward_runs<T> swiglu_forward = {invar_view_of<T>(&a->y), invar_view_of<T>(&a->gate),
                                          invar_view_of<T>(&a->up),
                                          invar_aligned({&a->y, &a->gate, &a->up})};
        return invar_map(dev, INVAR_OP_SWIGLU_FWD, a->y.shape[0], a->y.shape[1],
                         invar_joined({&a->y, &a->gate, &a->up}), swiglu_forward);
    });
}

invar_status invar_cuda_swiglu_fwd(const invar_device *dev, const invar_swiglu_fwd_args *a,
                                   void *workspace)
{
    bool table = can_use_table({&a->y, &a->gate, &a->up}), codes = invar_tensor_present(&a->y_q);

    (void)workspace;
    if (table && codes && supports_codes(&a->y_q))
        return a->y_q.dtype == INVAR_DTYPE_FP8
                   ? forward_table(dev, a, stored_codes_of<fp8_format>(&a->y_q))
                   : forward_table(dev, a, stored_codes_of<mxfp8_format>(&a->y_q));
    INVAR_TRY(table ? forward_table(dev, a, no_codes()) : swiglu_forward(dev, a));
    return codes ? quantize_stored(dev, &a->y_q, &a->y) : INVAR_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/*
 * Backward of runs by the table. Everything is read before the first result is written, because
 * results may share memory with the inputs.
 */
template <typename Codes> struct backward_by_table {
    using entry = float2; /* silu and its derivative */
    struct values {
        invar_bf16_run dy, gate, up;
    };
    invar_view<__nv_bfloat16> dgate, dup, dy, gate, up;
    Codes dgate_codes, dup_codes;

    static __device__ __forceinline__ entry make(float g)
    {
        return make_float2(invar_silu(g), invar_silu_grad(g));
    }

    __device__ __forceinline__ void load(values &v, int64_t row, int64_t first) const
    {
        v.dy.load_whole(dy.row(row) + first);
        v.gate.load_whole(gate.row(row) + first);
        v.up.load_whole(up.row(row) + first);
    }

    __device__ __forceinline__ void finish(values &v, int64_t row, int64_t first,
                                           const entry *table) const
    {
        uint32_t at[INVAR_RUN];
        float out_gate[INVAR_RUN], out_up[INVAR_RUN];
        auto multiply = [&](auto of_gate) {
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++) {
                entry silu = of_gate(i);
                out_gate[i] = v.dy.get(i) * v.up.get(i) * silu.y;
                out_up[i] = v.dy.get(i) * silu.x;
            }
        };

        if (invar_find_gates(at, v.gate))
            multiply([&](int i) { return table[at[i]]; });
        else
            multiply([&](int i) { return make(v.gate.get(i)); });
        v.gate.set(out_gate);
        v.up.set(out_up);
        v.gate.store_whole(dgate.row(row) + first);
        v.up.store_whole(dup.row(row) + first);
        dgate_codes.put(v.gate, row, first);
        dup_codes.put(v.up, row, first);
    }
};

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
                invar_sigmoid_parts parts = invar_sigmoid_moderate(g.get(i));
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

INVAR_NO_WORKSPACE(cuda, swiglu_bwd)

template <typename Codes>
static invar_status backward_table(const invar_device *dev, const invar_swiglu_bwd_args *a,
                                   Codes dgate, Codes dup)
{
    return launch_by_table(
        dev, INVAR_OP_SWIGLU_BWD, &a->dy,
        backward_by_table<Codes>{
            invar_view_of<__nv_bfloat16>(&a->dgate), invar_view_of<__nv_bfloat16>(&a->dup),
            invar_view_of<__nv_bfloat16>(&a->dy), invar_view_of<__nv_bfloat16>(&a->gate),
            invar_view_of<__nv_bfloat16>(&a->up), dgate, dup});
}

static invar_status swiglu_backward(const invar_device *dev, const invar_swiglu_bwd_args *a)
{
    return invar_by_storage(a->dy.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        backward_runs<T> swiglu_backward = {
            invar_view_of<T>(&a->dgate),
            invar_view_of<T>(&a->dup),
            invar_view_of<T>(&a->dy),
            invar_view_of<T>(&a->gate),
            invar_view_of<T>(&a->up),
            invar_aligned({&a->dgate, &a->dup, &a->dy, &a->gate, &a->up})};
        return invar_map(dev, INVAR_OP_SWIGLU_BWD, a->dy.shape[0], a->dy.shape[1],
                         invar_joined({&a->dgate, &a->dup, &a->dy, &a->gate, &a->up}),
                         swiglu_backward);
    });
}

invar_status invar_cuda_swiglu_bwd(const invar_device *dev, const invar_swiglu_bwd_args *a,
                                   void *workspace)
{
    bool table = can_use_table({&a->dgate, &a->dup, &a->dy, &a->gate, &a->up});
    bool codes = invar_tensor_present(&a->dgate_q);

    (void)workspace;
    if (table && codes && supports_codes(&a->dgate_q) && supports_codes(&a->dup_q))
        return a->dgate_q.dtype == INVAR_DTYPE_FP8
                   ? backward_table(dev, a, stored_codes_of<fp8_format>(&a->dgate_q),
                                    stored_codes_of<fp8_format>(&a->dup_q))
                   : backward_table(dev, a, stored_codes_of<mxfp8_format>(&a->dgate_q),
                                    stored_codes_of<mxfp8_format>(&a->dup_q));
    INVAR_TRY(table ? backward_table(dev, a, no_codes(), no_codes()) : swiglu_backward(dev, a));
    if (!codes)
        return INVAR_OK;
    INVAR_TRY(quantize_stored(dev, &a->dgate_q, &a->dgate));
    return quantize_stored(dev, &a->dup_q, &a->dup);
}
