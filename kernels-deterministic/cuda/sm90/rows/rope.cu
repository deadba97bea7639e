/*
 * rope.cu - rotary position embedding: tables, rotation and its inverse.
 *
 * Numerics contract (rev 1), docs/arithmetic.md, section 7:
 *   table  in double: frequency = theta^(-2i/D), llama3 bands as Hugging Face defines them, angle =
 *          position * frequency; cos and sin rounded to f32
 *   fwd    in f32, pairs (i, i + D/2):  y1 = fma(x1, c, -(x2 * s)),  y2 = fma(x2, c, x1 * s)
 *   bwd    dx1 = fma(dy1, c, dy2 * s),  dx2 = fma(dy2, c, -(dy1 * s));  one rounding each
 * A row depends on its own values and its position.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/vector.cuh"
#include "kernels-deterministic/math/elementary_f64.h"

#define THREADS 128

/* ---- tables ---------------------------------------------------------------------------------- */

#define TWO_PI 0x1.921fb54442d18p2

/*
 * Returns a frequency as llama3 scales it: long waves are stretched by `factor`, short ones stay,
 * those between are interpolated.
 */
__device__ __forceinline__ double scale_llama3(const invar_rope_table_args &a, double frequency)
{
    double wavelength = TWO_PI / frequency;

    if (wavelength < a.original_context / a.high_freq_factor)
        return frequency;
    if (wavelength > a.original_context / a.low_freq_factor)
        return frequency / a.factor;
    double smooth = (a.original_context / wavelength - a.low_freq_factor) /
                    (a.high_freq_factor - a.low_freq_factor);
    return (1.0 - smooth) * frequency / a.factor + smooth * frequency;
}

static __global__ void __launch_bounds__(THREADS)
    make_frequencies(double *frequencies, invar_rope_table_args a)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, half = a.cosine.shape[1];

    if (i >= half)
        return;
    double frequency = invar_pow_f64(a.theta, -(double)i / (double)half);
    frequencies[i] = a.scaling == INVAR_ROPE_LLAMA3 ? scale_llama3(a, frequency) : frequency;
}

struct table_entries {
    static constexpr int width = 1;
    invar_view<float> cosine, sine;
    const double *frequencies;

    __device__ __forceinline__ void operator()(int64_t position, int64_t i, int64_t) const
    {
        double angle = (double)position * frequencies[i];

        cosine.row(position)[i] = (float)invar_cos_f64(angle);
        sine.row(position)[i] = (float)invar_sin_f64(angle);
    }
};

size_t invar_cuda_rope_table_workspace(const invar_device *dev, const invar_rope_table_args *a)
{
    (void)dev;
    return (size_t)a->cosine.shape[1] * sizeof(double);
}

invar_status invar_cuda_rope_table(const invar_device *dev, const invar_rope_table_args *a,
                                   void *workspace)
{
    invar_op op = INVAR_OP_ROPE_TABLE;
    double *frequencies = (double *)workspace;
    dim3 grid((unsigned)invar_ceil_div(a->cosine.shape[1], THREADS));
    table_entries entries = {invar_view_of<float>(&a->cosine), invar_view_of<float>(&a->sine),
                             frequencies};

    INVAR_TRY(invar_launch(dev, op, make_frequencies, grid, dim3(THREADS), 0)(frequencies, *a));
    return invar_map(dev, op, a->cosine.shape[0], a->cosine.shape[1], false, entries);
}

/* ---- rotation -------------------------------------------------------------------------------- */

#define HEADS 4 // heads of a thread, which uses its cosines and sines for all of them

template <typename T> struct rotation {
    invar_view<T> y, x;
    invar_view<float> cosine, sine;
    const int32_t *positions;
    int64_t heads, half;
    int64_t parts, runs; /* threads side by side over heads, and over pairs */
    float sign;          /* sign of the angle: +1 forward, -1 backward */
    invar_op op;
    invar_cuda_fault *fault;
};

/* Rotates rows. A thread reads everything before it writes, so y may be x. */
template <typename T, bool Whole>
static __global__ void __launch_bounds__(THREADS, 6) rotate_rows(rotation<T> r)
{
    int64_t number = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t group = invar_divide(number, r.runs), token = invar_divide(group, r.parts);
    int64_t first = (number - group * r.runs) * INVAR_RUN, part = group - token * r.parts;
    invar_run<float> cosine, sine;
    invar_run<T> low[HEADS], high[HEADS];

    invar_grid_begin();
    if (token >= r.x.rows)
        return;
    int64_t position = invar_guard(r.fault, r.op, r.positions[token], r.cosine.rows);
    auto head_of = [&](const invar_view<T> &rows, int i) {
        return rows.row(token) + (part + i * r.parts) * 2 * r.half;
    };
    auto left = [&](int i) { return part + i * r.parts < r.heads ? r.half : 0; };
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        low[i].template load<Whole>(head_of(r.x, i), first, left(i));
        high[i].template load<Whole>(head_of(r.x, i) + r.half, first, left(i));
    }
    cosine.template load<Whole>(r.cosine.row(position), first, r.half);
    sine.template load<Whole>(r.sine.row(position), first, r.half);
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        float y1[INVAR_RUN], y2[INVAR_RUN];
#pragma unroll
        for (int j = 0; j < INVAR_RUN; j++) {
            float x1 = low[i].get(j), x2 = high[i].get(j);
            float c = cosine.get(j), s = r.sign * sine.get(j);
            y1[j] = invar_fmaf(x1, c, -(x2 * s));
            y2[j] = invar_fmaf(x2, c, x1 * s);
        }
        low[i].set(y1);
        high[i].set(y2);
        low[i].template store<Whole>(head_of(r.y, i), first, left(i));
        high[i].template store<Whole>(head_of(r.y, i) + r.half, first, left(i));
    }
}

static invar_status launch_rotation(const invar_device *dev, invar_op op,
                                    const invar_rope_fwd_args *a, float sign)
{
    int64_t half = a->cosine.shape[1], heads = a->x.shape[1];
    int64_t parts = invar_ceil_div(heads, HEADS), runs = invar_ceil_div(half, INVAR_RUN);
    bool whole = invar_aligned({&a->y, &a->x, &a->cosine, &a->sine}) && half % INVAR_RUN == 0;
    dim3 grid((unsigned)invar_ceil_div(a->x.shape[0] * parts * runs, THREADS));

    INVAR_TRY(invar_indexable(op, a->x.shape[0] * heads * half, a->cosine.shape[0]));
    return invar_by_storage(a->x.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        rotation<T> r = {invar_view_of<T>(&a->y),
                         invar_view_of<T>(&a->x),
                         invar_view_of<float>(&a->cosine),
                         invar_view_of<float>(&a->sine),
                         (const int32_t *)a->positions.data,
                         heads,
                         half,
                         parts,
                         runs,
                         sign,
                         op,
                         invar_cuda_of(dev)->fault};
        return invar_by_flag(whole, [&](auto flag) {
            return invar_launch_early(dev, op, rotate_rows<T, flag.value>, grid, dim3(THREADS),
                                      0)(r);
        });
    });
}

INVAR_NO_WORKSPACE(cuda, rope_fwd)

invar_status invar_cuda_rope_fwd(const invar_device *dev, const invar_rope_fwd_args *a,
                                 void *workspace)
{
    (void)workspace;
    return launch_rotation(dev, INVAR_OP_ROPE_FWD, a, 1.0f);
}

INVAR_NO_WORKSPACE(cuda, rope_bwd)

invar_status invar_cuda_rope_bwd(const invar_device *dev, const invar_rope_bwd_args *a,
                                 void *workspace)
{
    (void)workspace;
    return launch_rotation(dev, INVAR_OP_ROPE_BWD, a, -1.0f);
}
