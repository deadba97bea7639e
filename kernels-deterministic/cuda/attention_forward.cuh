/*
 * attention_forward.cuh - the forward of attention as its three kernels take it, and the softmax of
 * a row in the layout of tensor-core accumulators.
 *
 * attention_forward.cu turns the arguments of attention.fwd and attention.paged into one problem
 * and hands it to the first kernel that takes it. A kernel never decides bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_ATTENTION_FORWARD_CUH
#define INVAR_KERNELS_CUDA_ATTENTION_FORWARD_CUH

#include "kernels-deterministic/cuda/attention.cuh"
#include "kernels-deterministic/cuda/hopper.cuh"

/*
 * Query rows of sequence s are [rows.start[s], rows.start[s + 1]), its last positions. Keys lie in
 * rows like the queries (a sequence has as many keys as queries), or in pages.
 */
typedef struct invar_attention_problem {
    invar_op op;
    invar_cuda_fault *fault;
    invar_attention_form form;
    invar_dtype dtype;
    void *o; /* (n_rows, HQ, D) */
    const void *q;
    float *lse2; /* (n_rows, HQ), NULL: not wanted */
    int64_t o_stride, q_stride, lse2_stride;
    const void *k, *v;          /* (n_rows, HKV, D) or (n_pages, page_size, HKV, D) */
    int64_t k_stride, v_stride; /* of rows or of pages */
    bool paged;                 /* what follows is for pages only, but for the rows */
    const int32_t *pages;       /* (S, max_pages) */
    int64_t pages_stride, page_size, n_pages, max_pages;
    invar_segments rows;
    int64_t n_rows;
    const int64_t *lengths; /* (S) */
} invar_attention_problem;

/*
 * ---- attention_forward_wgmma.cu: bf16 on the tensor cores, head dim 64 or 128, tiles of 128 rows
 */

bool invar_attention_wgmma_takes(const invar_device *dev, const invar_attention_problem *p);
size_t invar_attention_wgmma_workspace(const invar_device *dev, const invar_attention_problem *p);
invar_status invar_attention_wgmma(const invar_device *dev, const invar_attention_problem *p,
                                   void *workspace) INVAR_MUST_USE;

/* ---- attention_forward_mma.cu: bf16 on the tensor cores, any shape; heads that share keys share
 *      tiles, so it is also the kernel of decoding --------------------------------------------- */

bool invar_attention_mma_takes(const invar_device *dev, const invar_attention_problem *p);
invar_status invar_attention_mma(const invar_device *dev,
                                 const invar_attention_problem *p) INVAR_MUST_USE;

/* ---- attention_forward_fma.cu: chains of fused multiply-adds, any shape ---------------------- */

invar_status invar_attention_fma(const invar_device *dev,
                                 const invar_attention_problem *p) INVAR_MUST_USE;

/* ---- sequences ------------------------------------------------------------------------------- */

typedef struct invar_attention_sequence {
    int64_t number;
    int64_t row0;   /* of position 0 in q, o and packed keys; may lie before their start */
    int64_t before; /* positions whose queries came earlier */
    int64_t length; /* keys */
} invar_attention_sequence;

/* False, and a report, where the sequence is not what the check asks of it. */
__device__ __forceinline__ bool invar_attention_find(invar_attention_sequence *out,
                                                     const invar_attention_problem &p,
                                                     int64_t number)
{
    if (!invar_attention_segment(p.fault, p.op, p.rows, p.n_rows, number))
        return false;
    int64_t begin = p.rows.start[number], count = p.rows.start[number + 1] - begin;

    out->number = number;
    out->length = p.paged ? p.lengths[number] : count;
    out->before = out->length - count;
    out->row0 = begin - out->before;
    if (count == 0)
        return true;
    if (out->before < 0 || (p.paged && (out->length - 1) / p.page_size >= p.max_pages)) {
        invar_report(p.fault, p.op, INVAR_CUDA_INDEX, out->length);
        return false;
    }
    return true;
}

/* Where a page begins in the list of pages. */
__device__ __forceinline__ int64_t invar_attention_page(const invar_attention_problem &p,
                                                        const invar_attention_sequence &s,
                                                        int64_t index)
{
    return invar_guard(p.fault, p.op, p.pages[s.number * p.pages_stride + index], p.n_pages);
}

/*
 * Rows of a tile: row r is position (first + r) / group and query head (first + r) % group of the
 * kv head's group, counted from the sequence's first query.
 */
typedef struct invar_attention_tile {
    invar_attention_sequence sequence;
    int64_t kv_head;
    int64_t first;
    int64_t count;
} invar_attention_tile;

/* The tile of `size` rows that block `index` of the grid computes; the longest come first. */
__device__ __forceinline__ bool invar_attention_tile_of(invar_attention_tile *out,
                                                        const invar_attention_problem &p, int size,
                                                        int64_t index)
{
    int64_t slots = invar_attention_slots(p.n_rows, p.rows.count, p.form.group, size);
    int64_t slot = slots - 1 - index / p.form.kv_heads;
    int64_t number =
        invar_attention_slot(&out->first, p.rows.start, p.rows.count, p.form.group, size, slot);

    out->kv_head = index % p.form.kv_heads;
    if (!invar_attention_find(&out->sequence, p, number))
        return false;
    out->count = (out->sequence.length - out->sequence.before) * p.form.group - out->first;
    if (out->first < 0 || out->count <= 0)
        return false;
    out->count = out->count < size ? out->count : size;
    return true;
}

static inline int64_t invar_attention_tiles(const invar_attention_problem *p, int size)
{
    return invar_attention_slots(p->n_rows, p->rows.count, p->form.group, size) * p->form.kv_heads;
}

__device__ __forceinline__ int64_t invar_attention_position(const invar_attention_problem &p,
                                                            const invar_attention_tile &t,
                                                            int64_t r)
{
    return t.sequence.before + (t.first + r) / p.form.group;
}

__device__ __forceinline__ int64_t invar_attention_head(const invar_attention_problem &p,
                                                        const invar_attention_tile &t, int64_t r)
{
    return t.kv_head * p.form.group + (t.first + r) % p.form.group;
}

/* Offsets of one key of the tile's sequence and kv head in k and v. */
__device__ __forceinline__ void invar_attention_key(int64_t *k_at, int64_t *v_at,
                                                    const invar_attention_problem &p,
                                                    const invar_attention_tile &t, int64_t key)
{
    int64_t row = t.sequence.row0 + key, inside = t.kv_head * p.form.dim;

    if (p.paged) {
        row = invar_attention_page(p, t.sequence, key / p.page_size);
        inside += key % p.page_size * p.form.kv_heads * p.form.dim;
    }
    *k_at = row * p.k_stride + inside;
    *v_at = row * p.v_stride + inside;
}

/* The part of [begin, end) that lies in `count` places from `first` on, counted from there. */
__device__ __forceinline__ void invar_attention_clip(int *begin_out, int *end_out, int64_t begin,
                                                     int64_t end, int64_t first, int count)
{
    *begin_out = begin > first ? (begin - first < count ? (int)(begin - first) : count) : 0;
    *end_out = end < first + count ? (end > first ? (int)(end - first) : 0) : count;
}

/* ---- softmax --------------------------------------------------------------------------------- */

/*
 * Two rows of a warp's accumulators (hopper.cuh): s[4 i + 2 row + e] is column 8 i + 2 (t % 4) + e,
 * so a thread holds two lanes of each row's sum.
 */
typedef struct invar_attention_softmax {
    float m[2]; /* largest score so far, times c */
    float l[2][2];
} invar_attention_softmax;

__device__ __forceinline__ void invar_attention_start(invar_attention_softmax &x)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        x.m[row] = -INFINITY;
        x.l[row][0] = x.l[row][1] = 0.0f;
    }
}

/* Scores outside [begin, end) of their row become -inf: their p is +0. */
template <int COUNT>
__device__ __forceinline__ void invar_attention_mask(float (&s)[COUNT], const int (&begin)[2],
                                                     const int (&end)[2])
{
    int column = 2 * ((int)threadIdx.x % 4);

#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int row = i / 2 % 2, at = i / 4 * 8 + i % 2;
        if (at < begin[row] - column || at >= end[row] - column)
            s[i] = -INFINITY;
    }
}

/*
 * Takes the scores of a block: s becomes p, and what was summed before is to be multiplied by
 * alpha. A row that sees no key of the block (seen is false, all its scores are -inf) stays as it
 * is.
 */
template <int COUNT>
__device__ __forceinline__ void invar_attention_take(invar_attention_softmax &x, float (&alpha)[2],
                                                     float (&s)[COUNT], float c,
                                                     const bool (&seen)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float top = s[2 * row];
#pragma unroll
        for (int i = 2 * row; i < COUNT; i += 4)
            top = fmaxf(top, fmaxf(s[i], s[i + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));

        float m = seen[row] ? fmaxf(x.m[row], top * c) : x.m[row];
        float shift = seen[row] ? -m : 0.0f; // -inf - -inf would be NaN
        alpha[row] = seen[row] ? invar_attention_exp2s(x.m[row] - m) : 1.0f;
        x.m[row] = m;
        x.l[row][0] = x.l[row][0] * alpha[row];
        x.l[row][1] = x.l[row][1] * alpha[row];
#pragma unroll
        for (int i = 2 * row; i < COUNT; i += 4) {
            s[i] = invar_attention_exp2s(invar_fmaf(s[i], c, shift));
            s[i + 1] = invar_attention_exp2s(invar_fmaf(s[i + 1], c, shift));
            x.l[row][0] = x.l[row][0] + s[i];
            x.l[row][1] = x.l[row][1] + s[i + 1];
        }
    }
}

/* p rounded, as the A operands of the steps of 16 keys. */
template <int COUNT>
__device__ __forceinline__ void invar_attention_round(uint32_t (&a)[COUNT / 8][4],
                                                      const float (&p)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++)
        a[i / 4][i % 4] = invar_bf16x2_bits(p[2 * i], p[2 * i + 1]);
}

/* o[4 i + 2 row + e] *= alpha[row]. */
template <int COUNT>
__device__ __forceinline__ void invar_attention_rescale(float (&o)[COUNT], const float (&alpha)[2])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        o[i] = o[i] * alpha[i / 2 % 2];
}

/* The 8 lanes of a row, folded by 4, 2, 1; every thread of the row gets the sum. */
__device__ __forceinline__ float invar_attention_fold(const float (&l)[2])
{
    float even = l[0] + __shfl_xor_sync(0xFFFFFFFFu, l[0], 2);
    float odd = l[1] + __shfl_xor_sync(0xFFFFFFFFu, l[1], 2);

    even = even + __shfl_xor_sync(0xFFFFFFFFu, even, 1);
    odd = odd + __shfl_xor_sync(0xFFFFFFFFu, odd, 1);
    return even + odd;
}

/* The spans of a row that are closed. */
typedef struct invar_attention_total {
    float m[2];
    float l[2];
    bool started[2];
} invar_attention_total;

/*
 * Adds the span that just ended, for rows that see one of its keys. What its o is to become:
 * o = fma(o, beta, old * alpha) with the two factors of each row, old being the o of the spans
 * before.
 */
__device__ __forceinline__ void invar_attention_merge(invar_attention_total &total,
                                                      float (&alpha)[2], float (&beta)[2],
                                                      const invar_attention_softmax &x,
                                                      const bool (&sees)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float l = invar_attention_fold(x.l[row]); // by all threads of the warp
        float m = fmaxf(total.m[row], x.m[row]);

        alpha[row] = invar_attention_exp2s(total.m[row] - m);
        beta[row] = invar_attention_exp2s(x.m[row] - m);
        if (sees[row]) {
            total.l[row] =
                total.started[row] ? invar_fmaf(l, beta[row], total.l[row] * alpha[row]) : l;
            total.m[row] = total.started[row] ? m : x.m[row];
        }
    }
}

__device__ __forceinline__ float invar_attention_lse2(float l, float m)
{
    return invar_fmaf(invar_log(l), INVAR_ATTENTION_LOG2E, m);
}

/*
 * o[4 i + 2 row + e] = o / l[row] + 0. A correctly rounded reciprocal and two corrections by exact
 * remainders give the correctly rounded quotient wherever no remainder underflows; elsewhere, and
 * for zeros, it is a division.
 */
template <int COUNT>
__device__ __forceinline__ void invar_attention_divide(float (&o)[COUNT], const float (&l)[2])
{
    float least = fminf(l[0], l[1]), most = fmaxf(l[0], l[1]);

#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        least = fminf(least, fabsf(o[i]));
        most = fmaxf(most, fabsf(o[i]));
    }
    // a NaN may hide from both: it passes through either way
    if (least >= 0x1p-40f && most <= 0x1p40f) {
        float r[2] = {1.0f / l[0], 1.0f / l[1]};
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int row = i / 2 % 2;
            float y = o[i] * r[row];
            y = invar_fmaf(invar_fmaf(-y, l[row], o[i]), r[row], y);
            o[i] = invar_fmaf(invar_fmaf(-y, l[row], o[i]), r[row], y);
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            o[i] = o[i] / l[i / 2 % 2] + 0.0f;
    }
}

/*
 * o (16 x 8) continues its chain by one step of 16 keys, where values may be infinite or NaN and
 * rows see different keys: row by row, with the values that the row does not see replaced by +0.
 * b holds the values of the keys key + 2 (t % 4), + 1, + 8, + 9; begin and end are those of the
 * thread's two rows.
 */
__device__ __forceinline__ void invar_attention_step_exact(float (&o)[4], const uint32_t (&a)[4],
                                                           const uint32_t (&b)[2], int key,
                                                           const int (&begin)[2],
                                                           const int (&end)[2])
{
    int lane = (int)threadIdx.x % 32, at = key + 2 * (lane % 4);

#pragma unroll 1
    for (int r = 0; r < 16; r++) {
        int from = __shfl_sync(0xFFFFFFFFu, r < 8 ? begin[0] : begin[1], r % 8 * 4);
        int to = __shfl_sync(0xFFFFFFFFu, r < 8 ? end[0] : end[1], r % 8 * 4);
        float sum[4] = {o[0], o[1], o[2], o[3]};
        uint32_t seen[2];

#pragma unroll
        for (int half = 0; half < 2; half++) {
            int k = at + 8 * half;
            seen[half] = (k >= from && k < to ? b[half] & 0x0000FFFFu : 0) |
                         (k + 1 >= from && k + 1 < to ? b[half] & 0xFFFF0000u : 0);
        }
        invar_product_warp(sum, a, seen);
        if (lane / 4 == r % 8) {
            o[0] = r < 8 ? sum[0] : o[0];
            o[1] = r < 8 ? sum[1] : o[1];
            o[2] = r < 8 ? o[2] : sum[2];
            o[3] = r < 8 ? o[3] : sum[3];
        }
    }
}

#endif
