/*
 * cases.c - tensors and cases of invar bench: fills tensors with pseudo-random values and counts
 * work.
 *
 * Values come from a small generator without zeros and repeated rows. The work of a case is counted
 * in bytes, tokens or multiply-adds per call.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/bench/cases.h"

#include <string.h>

#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

const invar_dtype invar_case_types[INVAR_CASE_TYPES] = {INVAR_DTYPE_F32, INVAR_DTYPE_BF16};

static const int64_t whole_start[] = {0, INVAR_CASE_TOKENS};
const invar_row_offsets invar_case_whole = {whole_start, 1};

void invar_case_fill(const invar_tensor *t, float range)
{
    enum { BLOCK = 512 };
    int64_t cols = invar_tensor_row_elements(t);
    uint32_t state = 0x9E3779B9u + (uint32_t)cols;
    float values[BLOCK];

    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < cols; j += BLOCK) {
            int64_t count = cols - j < BLOCK ? cols - j : BLOCK;
            for (int64_t k = 0; k < count; k++) {
                state = state * 1664525u + 1013904223u;
                values[k] = ((float)(state >> 8) * 0x1p-23f - 1.0f) * range;
            }
            invar_tensor_row_store(t, i, j, count, values);
        }
}

invar_tensor invar_case_zero(invar_bench *b, invar_dtype dtype, int64_t rows, int64_t cols)
{
    size_t bytes = (size_t)(rows * cols * invar_dtype_bits(dtype) / 8);
    invar_tensor t = invar_tensor_2d(invar_bench_alloc(b, bytes), dtype, rows, cols);

    memset(t.data, 0, bytes);
    return t;
}

invar_tensor invar_case_make(invar_bench *b, invar_dtype dtype, int64_t rows, int64_t cols)
{
    invar_tensor t = invar_case_zero(b, dtype, rows, cols);

    invar_case_fill(&t, 1.0f);
    return t;
}

invar_tensor invar_case_1d(const invar_tensor *t)
{
    return invar_tensor_1d(t->data, t->dtype, t->shape[0] * t->shape[1]);
}

double invar_case_bytes(const invar_tensor *t)
{
    int64_t bits = t->shape[0] * invar_tensor_row_elements(t) * invar_dtype_bits(t->dtype);

    return (double)(bits / 8) + (double)invar_tensor_scale_bytes(t);
}

invar_bench_case invar_case_moves(const void *args, invar_dtype type, double bytes)
{
    return (invar_bench_case){.args = args,
                              .type = type,
                              .unit = INVAR_BENCH_UNIT_BYTE,
                              .work = bytes,
                              .peer = INVAR_BENCH_PEER_COPY};
}

invar_bench_case invar_case_decides(const void *args, invar_dtype type, int64_t tokens)
{
    return (invar_bench_case){
        .args = args, .type = type, .unit = INVAR_BENCH_UNIT_TOKEN, .work = (double)tokens};
}

invar_bench_case invar_case_multiplies(const void *args, invar_dtype type, double macs)
{
    return (invar_bench_case){
        .args = args, .type = type, .unit = INVAR_BENCH_UNIT_MAC, .work = macs};
}

invar_status invar_case_run(invar_bench *b, invar_bench_case c, int64_t n0, int64_t n1, int64_t n2)
{
    c.shape[0] = n0;
    c.shape[1] = n1;
    c.shape[2] = n2;
    return invar_bench_run(b, &c);
}

invar_status invar_case_products(invar_bench *b, const void *args, invar_dtype type,
                                 const int64_t shape[3], int64_t experts,
                                 const invar_bench_gemm *products)
{
    invar_bench_case c =
        invar_case_multiplies(args, type, (double)shape[0] * (double)shape[1] * (double)shape[2]);

    memcpy(c.shape, shape, 3 * sizeof *shape);
    if (experts > 1)
        c.shape[3] = experts;
    if (type == INVAR_DTYPE_F32) {
        c.peer = INVAR_BENCH_PEER_SGEMM;
        c.products = products;
        c.n_products = experts;
    }
    return invar_bench_run(b, &c);
}
