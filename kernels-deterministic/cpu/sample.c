/*
 * sample.c - the next token of each row.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 9: z = logit * (1/T); of the tokens that
 * pass top-k, then top-p, then min-p, the one with the largest z + Gumbel(Philox word of the
 * token's coordinates), the lower id on ties. No state: a row depends on its own logits and
 * coordinates alone.
 *
 * Tokens that top-k and top-p keep are the head of one sorted list, so these filters end in a
 * single key, the last one kept; one pass over the vocabulary then does the rest in order of ids.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/rows.h"
#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/order.h"
#include "kernels-deterministic/math/philox.h"
#include "kernels-deterministic/math/reduce.h"

#include "base/invar_banned.h"

#define CHUNK 256 // tokens at a time; a multiple of the four words of a Philox block

/* ---- top-k and top-p ------------------------------------------------------------------------- */

#define DIGIT_BITS 11
#define DIGITS 3 // 11 + 11 + 10 bits of the value; ids ascend at the start and the sort is stable

/* Sorts `keys`; the sorted list is `spare` at the end, and `keys` is free for other use. */
static void sort_keys(uint64_t *keys, uint64_t *spare, int64_t count)
{
    const uint64_t mask = (1u << DIGIT_BITS) - 1;
    int32_t start[DIGITS][1 << DIGIT_BITS];

    memset(start, 0, sizeof start);
    for (int64_t i = 0; i < count; i++)
        for (int d = 0; d < DIGITS; d++)
            start[d][keys[i] >> (32 + d * DIGIT_BITS) & mask]++;
    for (int d = 0; d < DIGITS; d++) {
        uint64_t *swap = keys;
        int32_t next = 0;

        for (uint64_t value = 0; value <= mask; value++) {
            int32_t here = start[d][value];
            start[d][value] = next;
            next += here;
        }
        for (int64_t i = 0; i < count; i++)
            spare[start[d][keys[i] >> (32 + d * DIGIT_BITS) & mask]++] = keys[i];
        keys = spare;
        spare = swap;
    }
}

/* A probability as a fixed-point number: sums of these are exact in every order. */
static uint64_t fixed_point(float p)
{
    // the bound is no part of the arithmetic: it keeps a NaN from the conversion
    return (uint64_t)((p < 1.0f ? p : 1.0f) * 0x1p40f);
}

/* The tokens of the sorted list, of which `count` are left, that top-p keeps. */
static int64_t count_top_p(const uint64_t *sorted, float *e, int64_t count, float top_p)
{
    uint64_t before = 0, limit = fixed_point(top_p);
    float total;
    int64_t kept = 0;

    for (int64_t i = 0; i < count; i++)
        e[i] = invar_exp(invar_order_value(sorted[i]) - invar_order_value(sorted[0]));
    total = invar_reduce_f32(e, count);
    while (kept < count && before < limit)
        before += fixed_point(e[kept++] / total);
    return kept;
}

/* The key of the last token that top-k and top-p keep. */
static uint64_t last_kept(const invar_sample_args *a, const float *logits, float inverse,
                          void *scratch)
{
    int64_t vocabulary = a->logits.shape[1], kept = vocabulary;
    uint64_t *keys = scratch, *sorted = keys + vocabulary;

    for (int64_t v = 0; v < vocabulary; v++)
        keys[v] = invar_order_key(logits[v] * inverse, (uint32_t)v);
    sort_keys(keys, sorted, vocabulary);
    if (a->top_k > 0 && a->top_k < kept)
        kept = a->top_k;
    if (a->top_p < 1.0f)
        kept = count_top_p(sorted, scratch, kept, a->top_p);
    return sorted[kept - 1];
}

/* ---- the choice ------------------------------------------------------------------------------ */

static bool needs_sort(const invar_sample_args *a)
{
    bool top_k = a->top_k > 0 && a->top_k < a->logits.shape[1];

    return a->temperature > 0.0f && (top_k || a->top_p < 1.0f);
}

static uint64_t better(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t best_of_all(const float *logits, int64_t vocabulary)
{
    uint64_t best = INVAR_ORDER_LAST;

    for (int64_t v = 0; v < vocabulary; v++)
        best = better(best, invar_order_key(logits[v], (uint32_t)v));
    return best;
}

static float largest_of(const float *logits, float inverse, int64_t vocabulary)
{
    float largest = logits[0] * inverse;

    for (int64_t v = 1; v < vocabulary; v++)
        largest = invar_max_f32(largest, logits[v] * inverse);
    return largest;
}

/* What decides whether a token of a row is kept. */
typedef struct filter {
    uint64_t last; /* key of the last token that top-k and top-p keep */
    float largest; /* of all z */
    float min_p;
} filter;

static filter make_filter(const invar_sample_args *a, const float *logits, float inverse,
                          void *scratch)
{
    filter f = {INVAR_ORDER_LAST, 0.0f, a->min_p};

    if (needs_sort(a))
        f.last = last_kept(a, logits, inverse, scratch);
    if (f.min_p > 0.0f)
        f.largest = largest_of(logits, inverse, a->logits.shape[1]);
    return f;
}

/* keep[i]: whether token first + i is kept; returns whether any is. */
static bool filter_chunk(bool *keep, const filter *f, const float *z, int64_t first, int64_t count)
{
    bool any = false;

    for (int64_t i = 0; i < count; i++)
        keep[i] = invar_order_key(z[i], (uint32_t)(first + i)) <= f->last;
    // not "e >= min_p": a NaN must not leave a row without tokens
    for (int64_t i = 0; f->min_p > 0.0f && i < count; i++)
        keep[i] = keep[i] && !(invar_exp(z[i] - f->largest) < f->min_p);
    for (int64_t i = 0; i < count; i++)
        any = any || keep[i];
    return any;
}

static void gumbel_chunk(float *gumbel, const invar_sample_args *a, int64_t row, int64_t first,
                         int64_t count)
{
    const invar_sample_coords *at = &a->coords[row];
    const uint32_t key[2] = {a->seed, a->purpose};
    uint32_t words[CHUNK];

    for (int64_t i = 0; i < count; i += 4) {
        const uint32_t block = (uint32_t)((first + i) >> 2);
        const uint32_t counter[4] = {block, at->position, at->sample, at->rollout};
        invar_philox4x32(words + i, counter, key);
    }
    for (int64_t i = 0; i < count; i++)
        gumbel[i] = invar_gumbel_f32(words[i]);
}

static uint64_t best_of_kept(const invar_sample_args *a, int64_t row, const float *logits,
                             void *scratch)
{
    int64_t vocabulary = a->logits.shape[1];
    float inverse = 1.0f / a->temperature;
    filter f = make_filter(a, logits, inverse, scratch);
    uint64_t best = INVAR_ORDER_LAST;

    for (int64_t first = 0; first < vocabulary; first += CHUNK) {
        int64_t count = vocabulary - first < CHUNK ? vocabulary - first : CHUNK;
        float z[CHUNK], gumbel[CHUNK];
        bool keep[CHUNK];

        for (int64_t i = 0; i < count; i++)
            z[i] = logits[first + i] * inverse;
        if (!filter_chunk(keep, &f, z, first, count))
            continue;
        gumbel_chunk(gumbel, a, row, first, count);
        for (int64_t i = 0; i < count; i++)
            if (keep[i])
                best = better(best, invar_order_key(z[i] + gumbel[i], (uint32_t)(first + i)));
    }
    return best;
}

static size_t sort_scratch(const invar_sample_args *a)
{
    return needs_sort(a) ? 2 * (size_t)a->logits.shape[1] * sizeof(uint64_t) : 0;
}

/* The row's logits as the draw sees them: where some are hidden, a copy behind the sort's keys. */
static const float *seen_logits(const invar_sample_args *a, int64_t row, void *scratch)
{
    const float *logits = (const float *)a->logits.data + row * a->logits.row_stride;
    const int32_t *hidden = a->hidden.data;
    float *copy;

    if (!invar_tensor_present(&a->hides) || ((const int32_t *)a->hides.data)[row] == 0)
        return logits;
    copy = (float *)((char *)scratch + sort_scratch(a));
    memcpy(copy, logits, (size_t)a->logits.shape[1] * sizeof *copy);
    for (int64_t i = 0; i < a->hidden.shape[0]; i++)
        copy[hidden[i]] = INVAR_SAMPLE_HIDDEN;
    return copy;
}

static void sample_row(const void *payload, int64_t row, void *scratch)
{
    const invar_sample_args *a = payload;
    const float *logits = seen_logits(a, row, scratch);
    uint64_t best = a->temperature == 0.0f ? best_of_all(logits, a->logits.shape[1])
                                           : best_of_kept(a, row, logits, scratch);

    ((int32_t *)a->tokens.data)[row] = (int32_t)invar_order_id(best);
}

static size_t sample_scratch(const invar_sample_args *a)
{
    size_t copy = (size_t)a->logits.shape[1] * sizeof(float);

    return sort_scratch(a) + (invar_tensor_present(&a->hides) ? copy : 0);
}

size_t invar_cpu_sample_workspace(const invar_device *dev, const invar_sample_args *a)
{
    return invar_rows_workspace(dev, sample_scratch(a));
}

invar_status invar_cpu_sample(const invar_device *dev, const invar_sample_args *a, void *workspace)
{
    invar_row_job job = {a->logits.shape[0], 1, sample_scratch(a), sample_row, a};

    return invar_rows_run(dev, &job, workspace);
}
