/*
 * tensor_stats.c - counts NaN and infinities, and measures magnitude and norm of finite values.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/tensor_stats.h"

#include "kernels-deterministic/math/bf16.h"
#include "kernels-deterministic/math/elementary.h"

#include "base/invar_banned.h"

bool invar_tensor_stats_counts(invar_dtype dtype)
{
    return dtype == INVAR_DTYPE_F32 || dtype == INVAR_DTYPE_BF16;
}

static void add_value(invar_ledger_stat *stat, float x)
{
    const uint32_t infinity = 0x7f800000u, size = invar_f32_bits(x) & 0x7fffffffu;
    double magnitude = x < 0.0f ? -(double)x : (double)x;

    if (size >= infinity) {
        stat->nans += size > infinity;
        stat->infs += size == infinity;
        return;
    }
    if (magnitude > stat->absmax)
        stat->absmax = magnitude;
    stat->l2 += magnitude * magnitude;
}

void invar_tensor_stats_add(invar_ledger_stat *stat, const invar_tensor *x, int64_t rows)
{
    int64_t width = invar_tensor_row_elements(x);

    for (int64_t row = 0; row < rows; row++) {
        const float *f32 = (const float *)x->data + row * x->row_stride;
        const uint16_t *bf16 = (const uint16_t *)x->data + row * x->row_stride;
        for (int64_t i = 0; i < width; i++)
            add_value(stat, x->dtype == INVAR_DTYPE_F32 ? f32[i] : invar_f32_from_bf16(bf16[i]));
    }
}

void invar_tensor_stats_join(invar_ledger_stat *sum, const invar_ledger_stat *more)
{
    sum->nans += more->nans;
    sum->infs += more->infs;
    sum->absmax = more->absmax > sum->absmax ? more->absmax : sum->absmax;
    sum->l2 += more->l2;
}
