/*
 * rope.c - rotary position embedding: tables, rotation and its inverse.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 7:
 *   table  in double: frequency = theta^(-2i/D), llama3 bands as Hugging Face defines them, angle =
 *          position * frequency; cos and sin rounded to f32
 *   fwd    in f32, pairs (i, i + D/2):  y1 = fma(x1, c, -(x2 * s)),  y2 = fma(x2, c, x1 * s)
 *   bwd    dx1 = fma(dy1, c, dy2 * s),  dx2 = fma(dy2, c, -(dy1 * s));  one rounding each
 * A row depends only on its own values and its position.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/row_parallel.h"
#include "kernels-deterministic/math/elementary_f64.h"
#include "kernels-deterministic/math/portable.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

#define TOKENS_PER_TASK 16

/* ---- tables ---------------------------------------------------------------------------------- */

#define TWO_PI 0x1.921fb54442d18p2

/*
 * Divides the frequency of long waves by `factor`, keeps that of short ones, and interpolates
 * between them.
 */
static double scale_llama3(const invar_rope_table_args *a, double frequency)
{
    double wavelength = TWO_PI / frequency, smooth;

    if (wavelength < a->original_context / a->high_freq_factor)
        return frequency;
    if (wavelength > a->original_context / a->low_freq_factor)
        return frequency / a->factor;
    smooth = (a->original_context / wavelength - a->low_freq_factor) /
             (a->high_freq_factor - a->low_freq_factor);
    return (1.0 - smooth) * frequency / a->factor + smooth * frequency;
}

typedef struct table_job {
    const invar_rope_table_args *args;
    const double *frequencies; /* (D/2) */
} table_job;

static void table_row(const void *payload, int64_t position, void *scratch)
{
    const table_job *job = payload;
    const invar_rope_table_args *a = job->args;
    float *cosine = (float *)a->cosine.data + position * a->cosine.row_stride;
    float *sine = (float *)a->sine.data + position * a->sine.row_stride;

    (void)scratch;
    for (int64_t i = 0; i < a->cosine.shape[1]; i++) {
        double angle = (double)position * job->frequencies[i];
        cosine[i] = (float)invar_cos_f64(angle);
        sine[i] = (float)invar_sin_f64(angle);
    }
}

size_t invar_cpu_rope_table_workspace(const invar_device *dev, const invar_rope_table_args *a)
{
    (void)dev;
    return (size_t)a->cosine.shape[1] * sizeof(double);
}

invar_status invar_cpu_rope_table(const invar_device *dev, const invar_rope_table_args *a,
                                  void *workspace)
{
    double *frequencies = workspace;
    table_job job = {a, frequencies};
    int64_t half = a->cosine.shape[1];
    invar_row_parallel_job rows = {half > 0 ? a->cosine.shape[0] : 0, TOKENS_PER_TASK, 0, table_row,
                                   &job};

    for (int64_t i = 0; i < half; i++) {
        frequencies[i] = invar_pow_f64(a->theta, -(double)i / (double)half);
        if (a->scaling == INVAR_ROPE_LLAMA3)
            frequencies[i] = scale_llama3(a, frequencies[i]);
    }
    return invar_row_parallel_run(dev, &rows, NULL);
}

/* ---- rotation -------------------------------------------------------------------------------- */

#define COLUMNS 128 // pairs per step, on the stack

typedef struct rotation {
    const invar_rope_fwd_args *args;
    float sign; /* sign of the angle: +1 forward, -1 backward */
} rotation;

static void rotate_pairs(const rotation *r, int64_t token, int64_t column, const float *cosine,
                         const float *sine, int64_t count)
{
    const invar_rope_fwd_args *a = r->args;
    int64_t half = a->cosine.shape[1];
    float x1[COLUMNS], x2[COLUMNS];

    invar_tensor_row_load(x1, &a->x, token, column, count);
    invar_tensor_row_load(x2, &a->x, token, column + half, count);
    for (int64_t i = 0; i < count; i++) {
        float s = r->sign * sine[i]; // exact
        float y1 = invar_fmaf(x1[i], cosine[i], -(x2[i] * s));
        float y2 = invar_fmaf(x2[i], cosine[i], x1[i] * s);
        x1[i] = y1;
        x2[i] = y2;
    }
    invar_tensor_row_store(&a->y, token, column, count, x1);
    invar_tensor_row_store(&a->y, token, column + half, count, x2);
}

static void rotate_token(const void *payload, int64_t token, void *scratch)
{
    const rotation *r = payload;
    const invar_rope_fwd_args *a = r->args;
    int64_t half = a->cosine.shape[1], position = ((const int32_t *)a->positions.data)[token];
    const float *cosine = (const float *)a->cosine.data + position * a->cosine.row_stride;
    const float *sine = (const float *)a->sine.data + position * a->sine.row_stride;

    (void)scratch;
    for (int64_t head = 0; head < a->x.shape[1]; head++)
        for (int64_t i = 0; i < half; i += COLUMNS)
            rotate_pairs(r, token, head * 2 * half + i, cosine + i, sine + i,
                         half - i < COLUMNS ? half - i : COLUMNS);
}

static invar_status run_rotation(const invar_device *dev, const invar_rope_fwd_args *a, float sign)
{
    rotation r = {a, sign};
    // rows without elements have no address
    int64_t tokens = a->x.shape[2] > 0 ? a->x.shape[0] : 0;
    invar_row_parallel_job job = {tokens, TOKENS_PER_TASK, 0, rotate_token, &r};

    return invar_row_parallel_run(dev, &job, NULL);
}

INVAR_NO_WORKSPACE(cpu, rope_fwd)

invar_status invar_cpu_rope_fwd(const invar_device *dev, const invar_rope_fwd_args *a,
                                void *workspace)
{
    (void)workspace;
    return run_rotation(dev, a, 1.0f);
}

INVAR_NO_WORKSPACE(cpu, rope_bwd)

invar_status invar_cpu_rope_bwd(const invar_device *dev, const invar_rope_bwd_args *a,
                                void *workspace)
{
    (void)workspace;
    return run_rotation(dev, a, -1.0f);
}
