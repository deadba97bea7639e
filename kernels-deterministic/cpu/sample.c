/*
 * sample.c - draws the next token of each row: Gumbel-max with top-k, top-p and min-p.
 *
 * Numerics contract (rev 2), docs/arithmetic.md section 9: z = logit * (1/T). Among the tokens that
 * pass top-k, then top-p, then min-p, the one with the largest z + Gumbel(Philox word of the
 * token's coordinates) is drawn, the lower id on ties. There is no state: a row depends only on its
 * own logits and coordinates.
 *
 * Top-k and top-p both keep a token if the weight of the tokens before it in the order is below a
 * limit: k tokens, or a sum of probabilities as integers. So each yields one key, that of the last
 * token kept, which is found without sorting; one pass over the vocabulary in order of ids does the
 * rest. Most Gumbel values are not computed, because a bound shows that they cannot win.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/row_parallel.h"
#include "kernels-deterministic/cpu/softmax_chunk.h"
#include "kernels-deterministic/math/candidate_order.h"
#include "kernels-deterministic/math/restricted_domain.h"

#include "base/invar_banned.h"

#define CHUNK INVAR_CHUNK // tokens at a time; a multiple of the four words of a Philox block

/* ---- the last token kept --------------------------------------------------------------------- */

/* A token that may be the last one kept. */
typedef struct candidate {
    uint64_t key;
    uint64_t weight;
} candidate;

#define DIGIT_BITS 11
#define DIGITS (1u << DIGIT_BITS)

/*
 * Returns the key of the first token, in order, up to which the weights of the list sum to `limit`
 * or more; INVAR_ORDER_LAST if all weights sum to less. Ids must ascend in the list, which is
 * overwritten.
 */
static uint64_t find_last_key(candidate *list, int64_t count, uint64_t limit)
{
    for (int shift = 64 - DIGIT_BITS; shift > 32 - DIGIT_BITS; shift -= DIGIT_BITS) {
        uint64_t sums[DIGITS] = {0}, digit = 0;
        int64_t left = 0;

        for (int64_t i = 0; i < count; i++)
            sums[list[i].key >> shift & (DIGITS - 1)] += list[i].weight;
        for (; digit < DIGITS && sums[digit] < limit; digit++)
            limit -= sums[digit];
        for (int64_t i = 0; i < count; i++)
            if ((list[i].key >> shift & (DIGITS - 1)) == digit)
                list[left++] = list[i];
        count = left;
    }
    // the remaining candidates differ in their ids only, which ascend
    for (int64_t i = 0; i < count; i++) {
        if (list[i].weight >= limit)
            return list[i].key;
        limit -= list[i].weight;
    }
    return INVAR_ORDER_LAST;
}

/* The logits of one row and the largest z of its chunks. */
typedef struct row {
    const float *logits;
    int64_t vocabulary;
    float inverse;  /* 1 / temperature */
    float *largest; /* (chunks) largest z of each chunk, over all tokens */
} row;

/*
 * Computes z of a chunk, with -inf for tokens after the key `last`, and their number. Returns false
 * if all tokens are after it; z is undefined then.
 */
static bool load_chunk(float *z, int64_t *count_out, const row *r, int64_t chunk, uint64_t last)
{
    int64_t first = chunk * CHUNK, left = r->vocabulary - first, kept = 0;
    int64_t count = left < CHUNK ? left : CHUNK;

    if (last != INVAR_ORDER_LAST && r->largest[chunk] < invar_order_value(last))
        return false;
    for (int64_t i = 0; i < count; i++)
        z[i] = r->logits[first + i] * r->inverse;
    *count_out = count;
    if (last == INVAR_ORDER_LAST)
        return true;
    for (int64_t i = 0; i < count; i++) {
        bool keep = invar_order_key(z[i], (uint32_t)(first + i)) <= last;
        z[i] = keep ? z[i] : -INFINITY;
        kept += keep;
    }
    return kept > 0;
}

static void find_chunk_maxima(row *r)
{
    for (int64_t c = 0; c < invar_softmax_chunk_count(r->vocabulary); c++) {
        float z[CHUNK];
        int64_t count;

        load_chunk(z, &count, r, c, INVAR_ORDER_LAST);
        r->largest[c] = invar_softmax_chunk_max(z, count);
    }
}

/*
 * Returns a key that at least top_k tokens do not exceed: at least top_k chunks have such a token.
 */
static uint64_t bound_of_top_k(const row *r, int32_t top_k, candidate *list)
{
    int64_t chunks = invar_softmax_chunk_count(r->vocabulary);

    for (int64_t c = 0; c < chunks; c++)
        list[c] = (candidate){invar_order_key(r->largest[c], UINT32_MAX), 1};
    return find_last_key(list, chunks, (uint64_t)top_k);
}

static uint64_t last_of_top_k(const row *r, int32_t top_k, candidate *list)
{
    uint64_t bound = bound_of_top_k(r, top_k, list);
    int64_t listed = 0, count;

    for (int64_t c = 0; c < invar_softmax_chunk_count(r->vocabulary); c++) {
        float z[CHUNK];

        if (!load_chunk(z, &count, r, c, bound))
            continue;
        for (int64_t i = 0; i < count; i++) {
            uint64_t key = invar_order_key(z[i], (uint32_t)(c * CHUNK + i));
            list[listed] = (candidate){key, 1};
            listed += key <= bound;
        }
    }
    return find_last_key(list, listed, (uint64_t)top_k);
}

/* Returns a probability as a fixed-point number. Sums of integers are exact in every order. */
static uint64_t fixed_point(float p)
{
    return (uint64_t)((p > 0.0f ? p : 0.0f) * 0x1p40f); // 0 for a NaN
}

#define NEGLIGIBLE (-28.0f) // exp of it is below 2^-40, so fixed_point gives 0

/* M and L of the tokens up to `last` (docs/arithmetic.md section 9). */
typedef struct softmax {
    float *largest;    /* (chunks) m_c; -inf if no token of the chunk is kept */
    float *sums;       /* (chunks) sums, then scaled to the common maximum */
    float most, total; /* the maximum M and the sum L */
} softmax;

static void sum_kept(softmax *s, const row *r, uint64_t last)
{
    int64_t chunks = invar_softmax_chunk_count(r->vocabulary);

    s->most = -INFINITY;
    for (int64_t c = 0; c < chunks; c++) {
        float z[CHUNK], e[CHUNK];
        int64_t count;

        s->largest[c] = -INFINITY;
        s->sums[c] = 0.0f;
        if (!load_chunk(z, &count, r, c, last))
            continue;
        s->largest[c] = invar_softmax_chunk_max(z, count);
        for (int64_t i = 0; i < count; i++)
            e[i] = invar_exp(z[i] - s->largest[c]);
        s->sums[c] = invar_reduce_f32(e, count);
        s->most = invar_max_f32(s->most, s->largest[c]);
    }
    for (int64_t c = 0; c < chunks; c++)
        s->sums[c] *= invar_exp(s->largest[c] - s->most);
    s->total = invar_reduce_f32(s->sums, chunks);
}

static uint64_t last_of_top_p(const row *r, float top_p, uint64_t last, candidate *list)
{
    int64_t chunks = invar_softmax_chunk_count(r->vocabulary), listed = 0;
    float *memory = (float *)(list + r->vocabulary);
    softmax s = {.largest = memory, .sums = memory + chunks};
    uint64_t found;

    sum_kept(&s, r, last);
    for (int64_t c = 0; c < chunks; c++) {
        float z[CHUNK], p[CHUNK];
        int64_t count;

        // a token of weight 0 is never the last one kept
        if (s.largest[c] - s.most < NEGLIGIBLE || !load_chunk(z, &count, r, c, last))
            continue;
        for (int64_t i = 0; i < count; i++)
            p[i] = invar_exp(z[i] - s.most) / s.total;
        for (int64_t i = 0; i < count; i++) {
            int64_t v = c * CHUNK + i;
            uint64_t key = invar_order_key(r->logits[v] * r->inverse, (uint32_t)v);
            list[listed] = (candidate){key, fixed_point(p[i])};
            listed += list[listed].weight > 0 && key <= last;
        }
    }
    found = find_last_key(list, listed, fixed_point(top_p));
    return found < last ? found : last;
}

/* ---- the choice ------------------------------------------------------------------------------ */

static bool has_top_k(const invar_sample_args *a)
{
    return a->temperature > 0.0f && a->top_k > 0 && a->top_k < a->logits.shape[1];
}

static bool has_top_p(const invar_sample_args *a)
{
    return a->temperature > 0.0f && a->top_p < 1.0f;
}

static uint64_t better_key(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t best_of_all(const float *logits, int64_t vocabulary)
{
    uint64_t best = INVAR_ORDER_LAST;

    for (int64_t v = 0; v < vocabulary; v++)
        best = better_key(best, invar_order_key(logits[v], (uint32_t)v));
    return best;
}

/* Returns the chunk with the largest z. */
static int64_t best_chunk(const row *r)
{
    int64_t best = 0;

    for (int64_t c = 1; c < invar_softmax_chunk_count(r->vocabulary); c++)
        best = r->largest[c] > r->largest[best] ? c : best;
    return best;
}

static float largest_z(const row *r)
{
    float largest = -INFINITY;

    for (int64_t c = 0; c < invar_softmax_chunk_count(r->vocabulary); c++)
        largest = invar_max_f32(largest, r->largest[c]);
    return largest;
}

/* The limits that decide whether a token of a row is kept. */
typedef struct filter {
    uint64_t last; /* key of the last token that top-k and top-p keep */
    float largest; /* largest z of the row */
    float min_p;
} filter;

static filter make_filter(const invar_sample_args *a, const row *r, void *scratch)
{
    filter f = {INVAR_ORDER_LAST, 0.0f, a->min_p};

    if (has_top_k(a))
        f.last = last_of_top_k(r, a->top_k, scratch);
    if (has_top_p(a))
        f.last = last_of_top_p(r, a->top_p, f.last, scratch);
    if (f.min_p > 0.0f)
        f.largest = largest_z(r);
    return f;
}

static bool filter_keeps(const filter *f, float z, int64_t id)
{
    // not "e >= min_p": a NaN must not leave a row without tokens
    return invar_order_key(z, (uint32_t)id) <= f->last &&
           !(f->min_p > 0.0f && invar_exp(z - f->largest) < f->min_p);
}

static void chunk_words(uint32_t *words, const invar_sample_args *a, int64_t index, int64_t first,
                        int64_t count)
{
    const invar_sample_coords *at = &a->coords[index];
    const uint32_t key[2] = {a->seed, a->purpose};

    for (int64_t i = 0; i < count; i += 4) {
        const uint32_t block = (uint32_t)((first + i) >> 2);
        const uint32_t counter[4] = {block, at->position, at->sample, at->rollout};
        invar_philox4x32(words + i, counter, key);
    }
}

/*
 * Returns the better of `best` and the best kept token of a chunk. Tokens whose noise is bounded
 * below `best` are skipped. Initially the value of `best` is a NaN, so that no token is skipped.
 */
static uint64_t draw_chunk(uint64_t best, const invar_sample_args *a, int64_t index, const row *r,
                           int64_t chunk, const filter *f)
{
    uint32_t words[CHUNK];
    float z[CHUNK], bound[CHUNK];
    int64_t count, first = chunk * CHUNK;

    if (r->largest[chunk] + INVAR_GUMBEL_MAX < invar_order_value(best) ||
        !load_chunk(z, &count, r, chunk, f->last))
        return best;
    chunk_words(words, a, index, first, count);
    for (int64_t i = 0; i < count; i++)
        bound[i] = z[i] + invar_gumbel_bound(words[i]);
    for (int64_t i = 0; i < count; i++)
        if (!(bound[i] < invar_order_value(best)) && filter_keeps(f, z[i], first + i))
            best = better_key(
                best, invar_order_key(z[i] + invar_gumbel_f32(words[i]), (uint32_t)(first + i)));
    return best;
}

/*
 * Draws from the chunk with the largest z first, so that more tokens can be skipped later. The
 * order of the chunks, and that this chunk is visited twice, does not change the result.
 */
static uint64_t best_of_kept(const invar_sample_args *a, int64_t index, row *r, void *scratch)
{
    uint64_t best;
    filter f;

    find_chunk_maxima(r);
    f = make_filter(a, r, scratch);
    best = draw_chunk(INVAR_ORDER_LAST, a, index, r, best_chunk(r), &f);
    for (int64_t c = 0; c < invar_softmax_chunk_count(r->vocabulary); c++)
        best = draw_chunk(best, a, index, r, c, &f);
    return best;
}

/*
 * Scratch of a thread in bytes: candidates, values of chunks, a copy of the logits if some rows
 * hide tokens.
 */
typedef struct scratch_bytes {
    size_t filter, chunks, logits;
} scratch_bytes;

static scratch_bytes scratch_bytes_of(const invar_sample_args *a)
{
    size_t vocabulary = (size_t)a->logits.shape[1];
    size_t chunk = (size_t)invar_softmax_chunk_count(a->logits.shape[1]) * sizeof(float);
    bool filters = has_top_k(a) || has_top_p(a);

    return (scratch_bytes){filters ? vocabulary * sizeof(candidate) + 2 * chunk : 0, chunk,
                           invar_tensor_present(&a->hides) ? vocabulary * sizeof(float) : 0};
}

/*
 * Returns the logits of a row, with those of hidden tokens replaced; `copy` is for rows that hide
 * some.
 */
static const float *seen_logits(const invar_sample_args *a, int64_t index, float *copy)
{
    const float *logits = (const float *)a->logits.data + index * a->logits.row_stride;
    const int32_t *hidden = a->hidden.data;

    if (!invar_tensor_present(&a->hides) || ((const int32_t *)a->hides.data)[index] == 0)
        return logits;
    memcpy(copy, logits, (size_t)a->logits.shape[1] * sizeof *copy);
    for (int64_t i = 0; i < a->hidden.shape[0]; i++)
        copy[hidden[i]] = INVAR_SAMPLE_HIDDEN;
    return copy;
}

static void sample_row(const void *payload, int64_t index, void *scratch)
{
    const invar_sample_args *a = payload;
    scratch_bytes parts = scratch_bytes_of(a);
    float *chunks = (float *)((char *)scratch + parts.filter);
    float *copy = (float *)((char *)chunks + parts.chunks);
    row r = {seen_logits(a, index, copy), a->logits.shape[1], 1.0f / a->temperature, chunks};
    uint64_t best = a->temperature == 0.0f ? best_of_all(r.logits, r.vocabulary)
                                           : best_of_kept(a, index, &r, scratch);

    ((int32_t *)a->tokens.data)[index] = (int32_t)invar_order_id(best);
}

static size_t sample_scratch(const invar_sample_args *a)
{
    scratch_bytes parts = scratch_bytes_of(a);

    return parts.filter + parts.chunks + parts.logits;
}

INVAR_ROW_PARALLEL_OP(sample, a->logits.shape[0], 1, sample_scratch(a), sample_row)
