/*
 * forward.cuh - forward of attention: problem, sequences, tiles, and the softmax of a row.
 *
 * forward.cu turns the arguments of attention.fwd and attention.paged into an
 * invar_attention_problem and passes it to the first kernel that supports it. All kernels give the
 * same bits. The softmax works on rows in the layout of tensor-core accumulators (wgmma.cuh) and
 * keeps the order of docs/arithmetic.md, section 8: blocks of keys ascend, 8 lanes per row, spans
 * merge in ascending order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ATTENTION_FORWARD_CUH
#define INVAR_KERNELS_CUDA_SM90_ATTENTION_FORWARD_CUH

#include "kernels-deterministic/cuda/sm90/attention/attention.cuh"
#include "kernels-deterministic/cuda/sm90/hopper.cuh"
#include "kernels-deterministic/cuda/sm90/sfu.cuh"

/*
 * One call of the forward. The query rows of sequence s are [rows.offsets[s], rows.offsets[s + 1]);
 * they are its last positions. Keys lie in rows like the queries (a sequence then has as many keys
 * as queries), or in pages.
 */
typedef struct invar_attention_problem {
    invar_op op;
    invar_cuda_fault *fault;
    invar_cuda_attention_params form;
    invar_dtype dtype;
    void *o; /* (n_rows, HQ, D) */
    const void *q;
    float *lse2; /* (n_rows, HQ); NULL if it is not wanted */
    int64_t o_stride, q_stride, lse2_stride;
    const void *k, *v;          /* (n_rows, HKV, D) or (n_pages, page_size, HKV, D) */
    int64_t k_stride, v_stride; /* elements between rows, or between pages */
    bool paged;                 /* keys lie in pages; if not, the fields of pages are unused */
    const int32_t *pages;       /* (S, max_pages) page numbers of each sequence */
    int64_t pages_stride, page_size, n_pages, max_pages;
    invar_row_offsets rows; /* query rows of each sequence */
    int64_t n_rows;
    const int64_t *lengths; /* (S) keys of each sequence; used with pages only */
} invar_attention_problem;

/* ---- forward_wgmma.cu: bf16 on tensor cores, head dim 64 or 128, tiles of 128 rows ----------- */

bool invar_attention_wgmma_supports(const invar_device *dev, const invar_attention_problem *p);
size_t invar_attention_wgmma_workspace(const invar_device *dev, const invar_attention_problem *p);
invar_status invar_attention_wgmma(const invar_device *dev, const invar_attention_problem *p,
                                   void *workspace) INVAR_MUST_USE;

/* ---- forward_decode.cu: bf16, few rows of each sequence -------------------------------------- */

bool invar_attention_decode_supports(const invar_device *dev, const invar_attention_problem *p);
size_t invar_attention_decode_workspace(const invar_device *dev, const invar_attention_problem *p);
invar_status invar_attention_decode(const invar_device *dev, const invar_attention_problem *p,
                                    void *workspace) INVAR_MUST_USE;

/* ---- forward_mma.cu: bf16 on the tensor cores, any shape ------------------------------------- */

bool invar_attention_mma_supports(const invar_device *dev, const invar_attention_problem *p);
invar_status invar_attention_mma(const invar_device *dev,
                                 const invar_attention_problem *p) INVAR_MUST_USE;

/* ---- forward_fma.cu: chains of fused multiply-adds, any shape -------------------------------- */

invar_status invar_attention_fma(const invar_device *dev,
                                 const invar_attention_problem *p) INVAR_MUST_USE;

/* ---- sequences ------------------------------------------------------------------------------- */

#define INVAR_ATTENTION_MAX (INT32_MAX - 1024) /* largest number of positions of a sequence */

typedef struct invar_attention_sequence {
    int64_t number;
    int64_t row0; /* row that position 0 has in q, o and packed keys; may be before their start */
    int before;   /* positions before the first query row */
    int length;   /* number of keys */
} invar_attention_sequence;

/*
 * Finds sequence `number`. Returns false and records a fault if its offsets, its length or its
 * number of pages is invalid.
 */
__device__ __forceinline__ bool invar_attention_find(invar_attention_sequence *out,
                                                     const invar_attention_problem &p,
                                                     int64_t number)
{
    if (!invar_attention_segment(p.fault, p.op, p.rows, p.n_rows, number))
        return false;
    int64_t begin = p.rows.offsets[number], count = p.rows.offsets[number + 1] - begin;
    int64_t length = p.paged ? p.lengths[number] : count;

    out->number = number;
    out->row0 = begin - (length - count);
    out->before = (int)(length - count);
    out->length = (int)length;
    if (count == 0)
        return true;
    if (length < count || length > INVAR_ATTENTION_MAX ||
        (p.paged && (length - 1) / p.page_size >= p.max_pages)) {
        invar_report(p.fault, p.op, INVAR_CUDA_INDEX, length);
        return false;
    }
    return true;
}

/*
 * Returns the page at `index` in the page list of the sequence; records a fault if it is invalid.
 */
__device__ __forceinline__ int64_t invar_attention_page(const invar_attention_problem &p,
                                                        const invar_attention_sequence &s,
                                                        unsigned index)
{
    return invar_guard(p.fault, p.op, p.pages[s.number * p.pages_stride + index], p.n_pages);
}

/*
 * Rows of one sequence that share a kv head. Row r is query head (head + r) % group of that kv
 * head's group, at position + (head + r) / group.
 */
typedef struct invar_attention_tile {
    invar_attention_sequence sequence;
    int kv_head;
    int position;
    int head;
    int count;
} invar_attention_tile;

/*
 * Returns the sequence of a tile slot (invar_attention_slot). All threads of a warp search
 * together, in few steps, because each step waits for memory.
 */
__device__ __forceinline__ int64_t invar_attention_find_slot(const invar_attention_problem &p,
                                                             int size, int64_t slot)
{
    int64_t low = 0, high = p.rows.count - 1;

    while (low < high) {
        int64_t step = (high - low + 31) / 32, probe = low + ((int)threadIdx.x % 32 + 1) * step;
        bool before = probe <= high && p.rows.offsets[probe] * p.form.group / size + probe <= slot;
        low += __popc(__ballot_sync(0xFFFFFFFFu, before)) * step;
        high = min(high, low + step - 1);
    }
    return low;
}

/*
 * Finds tile `index`, of up to `size` rows. Later tiles, which see more keys of their sequence,
 * come first. Returns false if the slot is empty or the sequence is invalid. Called by whole warps.
 */
__device__ __forceinline__ bool invar_attention_tile_of(invar_attention_tile *out,
                                                        const invar_attention_problem &p, int size,
                                                        int64_t index)
{
    int64_t slots = invar_attention_slots(p.n_rows, p.rows.count, p.form.group, size);
    int64_t slot = slots - 1 - index / p.form.kv_heads;
    int64_t number = invar_attention_find_slot(p, size, slot);
    int64_t first = (slot - (p.rows.offsets[number] * p.form.group / size + number)) * size;

    if (!invar_attention_find(&out->sequence, p, number))
        return false;
    int64_t count = (out->sequence.length - out->sequence.before) * p.form.group - first;
    if (first < 0 || count <= 0)
        return false;
    out->kv_head = (int)(index % p.form.kv_heads);
    out->position = out->sequence.before + (int)(first / p.form.group);
    out->head = (int)(first % p.form.group);
    out->count = count < size ? (int)count : size;
    return true;
}

static inline int64_t invar_attention_tiles(const invar_attention_problem *p, int size)
{
    return invar_attention_slots(p->n_rows, p->rows.count, p->form.group, size) * p->form.kv_heads;
}

__device__ __forceinline__ int invar_attention_position(const invar_attention_problem &p,
                                                        const invar_attention_tile &t, int r)
{
    return t.position + (t.head + r) / (int)p.form.group;
}

__device__ __forceinline__ int invar_attention_head(const invar_attention_problem &p,
                                                    const invar_attention_tile &t, int r)
{
    int group = (int)p.form.group;

    return t.kv_head * group + (t.head + r) % group;
}

/* Returns the first key that a position of the tile sees. */
__device__ __forceinline__ int invar_attention_first(const invar_attention_problem &p, int position)
{
    return (int)invar_attention_first_key(p.form, position);
}

/* Returns the offsets of one key of the tile's sequence and kv head in k and v. */
__device__ __forceinline__ void invar_attention_key(int64_t *k_at, int64_t *v_at,
                                                    const invar_attention_problem &p,
                                                    const invar_attention_tile &t, int key)
{
    int64_t row = t.sequence.row0 + key, inside = t.kv_head * p.form.dim;

    if (p.paged) {
        unsigned size = (unsigned)p.page_size;
        row = invar_attention_page(p, t.sequence, (unsigned)key / size);
        inside += (unsigned)key % size * (p.form.kv_heads * p.form.dim);
    }
    *k_at = row * p.k_stride + inside;
    *v_at = row * p.v_stride + inside;
}

/* Clips [begin, end) to `count` positions from `first` on, and counts from `first`. */
__device__ __forceinline__ void invar_attention_clip(int *begin_out, int *end_out, int begin,
                                                     int end, int first, int count)
{
    *begin_out = min(max(begin - first, 0), count);
    *end_out = min(max(end - first, 0), count);
}

/* ---- softmax --------------------------------------------------------------------------------- */

/*
 * Softmax of two rows of a warp's accumulators (wgmma.cuh). s[4 i + 2 row + e] is column 8 i + 2 (t
 * % 4) + e, so a thread holds two lanes of each row's sum.
 */
typedef struct invar_attention_softmax {
    float m[2];    /* reference of each row */
    float l[2][2]; /* two lanes of each row's sum of p */
} invar_attention_softmax;

__device__ __forceinline__ void invar_attention_start(invar_attention_softmax &x)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        x.m[row] = -INFINITY;
        x.l[row][0] = x.l[row][1] = 0.0f;
    }
}

/* Sets scores outside of [begin, end) of their row to -inf: their p is +0. */
template <int COUNT>
__device__ __forceinline__ void invar_attention_mask(float (&s)[COUNT], const int (&begin)[2],
                                                     const int (&end)[2])
{
    int column = 2 * ((int)threadIdx.x % 4);
    int from = __reduce_max_sync(0xFFFFFFFFu, max(begin[0], begin[1]));
    int to = __reduce_min_sync(0xFFFFFFFFu, min(end[0], end[1]));

#pragma unroll
    for (int step = 0; step < COUNT; step += 8) {
        if (2 * step >= from && 2 * step + 16 <= to)
            continue; // all rows of the warp see these 16 keys
#pragma unroll
        for (int i = step; i < step + 8; i++) {
            int row = i / 2 % 2, at = i / 4 * 8 + i % 2;
            if (at < begin[row] - column || at >= end[row] - column)
                s[i] = -INFINITY;
        }
    }
}

/* Returns the largest score of a row, NaN if one is NaN, in every thread of the row. */
template <int COUNT>
__device__ __forceinline__ float invar_attention_largest(const float (&s)[COUNT], int row)
{
    float most = -INFINITY;

#pragma unroll
    for (int i = 2 * row; i < COUNT; i += 4)
        most = invar_max_nan(most, invar_max_nan(s[i], s[i + 1]));
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
        most = invar_max_nan(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    return most;
}

/*
 * Returns an upper bound of this thread's scores of a row, or NaN if one is NaN. Scores are
 * compared as integers: the maximum is the largest score, or 0 if no score is positive.
 */
template <int COUNT>
__device__ __forceinline__ float invar_attention_most(const float (&s)[COUNT], int row)
{
    int high = 0;

#pragma unroll
    for (int i = 2 * row; i < COUNT; i += 4)
        high = __vimax3_s32(high, __float_as_int(s[i]), __float_as_int(s[i + 1]));
    return __int_as_float(high);
}

/*
 * Returns true if the scores of a block raise no reference of the warp's rows; false is
 * inconclusive. most[row] = the bound of the thread's scores. Has no branches, because products may
 * be in flight.
 */
template <int COUNT>
__device__ __forceinline__ bool invar_attention_calm(float (&most)[2],
                                                     const invar_attention_softmax &x,
                                                     const float (&s)[COUNT], float c)
{
    bool calm = true;

#pragma unroll
    for (int row = 0; row < 2; row++) {
        most[row] = invar_attention_most(s, row);
        calm = calm & (most[row] * c <= x.m[row] + 8.0f);
    }
    return __all_sync(0xFFFFFFFFu, calm);
}

/*
 * Combines the bounds of the threads into those of the rows. Returns true if these are the largest
 * scores.
 */
__device__ __forceinline__ bool invar_attention_gather(float (&most)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2)
            most[row] = invar_max_nan(most[row], __shfl_xor_sync(0xFFFFFFFFu, most[row], step));
    }
    return __all_sync(0xFFFFFFFFu, most[0] > 0.0f && most[1] > 0.0f);
}

/*
 * Updates the references of rows for a block with these largest scores, and scales the earlier sums
 * of rows whose reference rises. A row that sees no key of the block keeps its state.
 */
template <int SUMS>
__device__ __forceinline__ void invar_attention_rise(invar_attention_softmax &x, float (&o)[SUMS],
                                                     const float (&most)[2], float c,
                                                     const bool (&seen)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float m = seen[row] ? invar_softmax_reference(x.m[row], most[row] * c) : x.m[row];

        // if m was -inf, the sums are zero or NaN and need no factor
        if (__any_sync(0xFFFFFFFFu, m != x.m[row] && x.m[row] != -INFINITY)) {
            float alpha = seen[row] ? invar_attention_factor(x.m[row], m) : 1.0f;
            x.l[row][0] = x.l[row][0] * alpha;
            x.l[row][1] = x.l[row][1] * alpha;
#pragma unroll
            for (int i = 2 * row; i < SUMS; i += 4) {
                o[i] = o[i] * alpha;
                o[i + 1] = o[i + 1] * alpha;
            }
        }
        x.m[row] = m;
    }
}

/* Returns what is subtracted from a row's scores: m, or 0 if the row sees no key of the block. */
__device__ __forceinline__ float invar_attention_base(float m, bool seen)
{
    return seen ? m : 0.0f; // all scores are -inf, and subtracting an m of -inf would give NaN
}

/* Returns p of a score: flushed to +0 if it is small, +0 for -inf, NaN for NaN. */
__device__ __forceinline__ float invar_attention_weight(float s, float c, float base)
{
    return invar_unit_ex2(invar_fmaf(s, c, -base));
}

/*
 * Turns the scores s[at .. at + 8) of 16 keys into p, adds them to the sums and rounds them to an A
 * operand. Each loop holds independent operations: the assembler keeps the order of the code, and
 * dependent operations side by side would wait for each other.
 */
template <int COUNT>
__device__ __forceinline__ void
invar_attention_weigh_step(invar_attention_softmax &x, uint32_t (&a)[4], const float (&s)[COUNT],
                           int at, float c, const float (&base)[2])
{
    float p[8];

#pragma unroll
    for (int j = 0; j < 8; j++)
        p[j] = invar_attention_weight(s[at + j], c, base[j / 2 % 2]);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x.l[j / 2 % 2][j % 2] = x.l[j / 2 % 2][j % 2] + p[j];
#pragma unroll
    for (int j = 0; j < 4; j++)
        a[j] = invar_bf16x2_bits(p[2 * j], p[2 * j + 1]);
}

/*
 * Turns the scores of a block into weights; with `halved`, only those of the first half of its
 * keys.
 */
template <int COUNT>
__device__ __forceinline__ void
invar_attention_weigh(invar_attention_softmax &x, uint32_t (&a)[COUNT / 8][4],
                      const float (&s)[COUNT], float c, const float (&base)[2], bool halved)
{
#pragma unroll
    for (int i = 0; i < COUNT / 2; i += 8)
        invar_attention_weigh_step(x, a[i / 8], s, i, c, base);
    if (halved)
        return;
#pragma unroll
    for (int i = COUNT / 2; i < COUNT; i += 8)
        invar_attention_weigh_step(x, a[i / 8], s, i, c, base);
}

/* Folds the 8 lanes of a row by 4, 2, 1; every thread of the row gets the sum. */
__device__ __forceinline__ float invar_attention_fold(const float (&l)[2])
{
    float even = l[0] + __shfl_xor_sync(0xFFFFFFFFu, l[0], 2);
    float odd = l[1] + __shfl_xor_sync(0xFFFFFFFFu, l[1], 2);

    even = even + __shfl_xor_sync(0xFFFFFFFFu, even, 1);
    odd = odd + __shfl_xor_sync(0xFFFFFFFFu, odd, 1);
    return even + odd;
}

/* Merged result of the closed spans of two rows. */
typedef struct invar_attention_total {
    float m[2];
    float l[2];
    bool started[2];
} invar_attention_total;

/*
 * Merges the span that just ended into `total`, for rows that see one of its keys. The caller then
 * merges o with the two factors of each row: o = fma(o, beta, old * alpha), old being the merged o
 * of the earlier spans.
 */
__device__ __forceinline__ void invar_attention_merge(invar_attention_total &total,
                                                      float (&alpha)[2], float (&beta)[2],
                                                      const invar_attention_softmax &x,
                                                      const bool (&sees)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float l = invar_attention_fold(x.l[row]); // all threads of the warp take part
        float m = fmaxf(total.m[row], x.m[row]);

        alpha[row] = invar_attention_factor(total.m[row], m);
        beta[row] = invar_attention_factor(x.m[row], m);
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
 * Computes o[4 i + 2 row + e] = o / l[row] + 0. A correctly rounded reciprocal and two corrections
 * by exact remainders give the correctly rounded quotient unless a remainder underflows; then, and
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
    // neither bound may show a NaN, which both branches keep
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
 * Computes w = o / l + 0, rounded to f32, then to bf16, in pairs. o times the rounded reciprocal is
 * at most two units in the last place off, which changes the bf16 only near the middle between two
 * of them. Returns false if a result is that close to a middle, tiny or zero, or if l is out of
 * range; then invar_attention_divide must be used.
 */
template <int COUNT>
__device__ __forceinline__ bool
invar_attention_quotients(uint32_t (&w)[COUNT / 2], const float (&o)[COUNT], const float (&l)[2])
{
    const float r[2] = {1.0f / l[0], 1.0f / l[1]};
    // low half: the smallest distance above (middle - 2); least: the smallest |w|, doubled
    uint32_t middle[2] = {0xFFFFFFFFu, 0xFFFFFFFFu}, least = 0xFFFFFFFFu;

#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        float y0 = o[i] * r[i / 2 % 2], y1 = o[i + 1] * r[i / 2 % 2];

        middle[0] = __viaddmin_u16x2(__float_as_uint(y0), 0x8002u, middle[0]);
        middle[1] = __viaddmin_u16x2(__float_as_uint(y1), 0x8002u, middle[1]);
        w[i / 2] = invar_bf16x2_bits(y0, y1);
        least = __viaddmin_u16x2(w[i / 2], w[i / 2], least);
    }
    return (min(middle[0] & 0xFFFFu, middle[1] & 0xFFFFu) > 4) &
           (min(least & 0xFFFFu, least >> 16) >= 0x1B00u) & // 2^-100
           (fminf(l[0], l[1]) >= 0.5f) & (fmaxf(l[0], l[1]) <= 0x1p60f);
}

/*
 * Continues the chain of o (16 x 8) by one step of 16 keys when values may be infinite or NaN and
 * rows see different keys. Works row by row, with +0 instead of values that the row does not see. b
 * holds the values of the keys key + 2 (t % 4), + 1, + 8, + 9; begin and end are those of the
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
