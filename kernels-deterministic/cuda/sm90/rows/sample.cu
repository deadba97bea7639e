/*
 * sample.cu - the next token of each row.
 *
 * Numerics contract (rev 2), docs/arithmetic.md section 9: z = logit * (1/T); of the tokens that
 * pass top-k, then top-p, then min-p, the one with the largest z + Gumbel(Philox word of the
 * token's coordinates), the lower id on ties. There is no state: a row depends on its own logits
 * and coordinates alone.
 *
 * Top-k and top-p result in a single key, the last one kept (sample_filter.cuh). One pass over the
 * vocabulary then does the rest. The best candidate is the smallest of 64-bit keys, so the order in
 * which they are compared does not matter. Most Gumbel values are not computed, and most Philox
 * words neither if a model is sure of its choice, because a bound shows that they cannot win.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/rows/sample_filter.cuh"

/* ---- the choice ------------------------------------------------------------------------------ */

#define THREADS 256
#define ROUNDS 10 // rounds of Philox
#define PHILOX_0 0xD2511F53u
#define PHILOX_1 0xCD9E8D57u

enum pass_kind {
    PASS_HIGHEST, /* the first token by (z, id) */
    PASS_DRAW     /* the first of the kept tokens by (z + Gumbel, id) */
};

struct pass_rows {
    logit_rows rows;
    const invar_sample_coords *coords;
    uint32_t key[ROUNDS][2]; /* key of each round */
    float min_p;
    const uint64_t *last; /* (rows) last key kept; NULL if all tokens are kept */
    const uint64_t *top;  /* (rows) key of the largest z; NULL without min-p */
    uint64_t *best;       /* (rows, pieces) */
    row_split pieces;
};

/* State of a thread in its row, and the best key that it has found. */
struct draw_state {
    uint32_t word0, word1, word2, word3; /* values of Philox that all groups share; set by open() */
    uint64_t last;
    float lowest;  /* z of the last kept token; NaN if all are kept */
    float largest; /* largest z of the row */
    uint64_t best;

    __device__ __forceinline__ void open(const invar_sample_coords &c, const uint32_t key[][2])
    {
        uint64_t first = (uint64_t)c.sample * PHILOX_1;
        uint64_t second = (uint64_t)((uint32_t)(first >> 32) ^ c.position ^ key[0][0]) * PHILOX_0;
        word0 = (uint32_t)first ^ key[1][0];
        word1 = (uint32_t)second;
        word2 = c.rollout ^ key[0][1];
        word3 = (uint32_t)(second >> 32) ^ key[1][1];
    }
};

/*
 * Computes invar_philox4x32 of Count groups that are `step` apart, from the keys of all rounds. In
 * the first two rounds, the groups of a row have a product in common each, which is computed once.
 */
template <int Count>
__device__ __forceinline__ void draw_words(uint32_t words[Count][4], uint32_t group, uint32_t step,
                                           const draw_state &d, const pass_rows &p)
{
#pragma unroll
    for (int j = 0; j < Count; j++) {
        uint64_t product0 = (uint64_t)(group + (uint32_t)j * step) * PHILOX_0;
        uint64_t product1 = (uint64_t)((uint32_t)(product0 >> 32) ^ d.word2) * PHILOX_1;
        words[j][0] = (uint32_t)(product1 >> 32) ^ d.word0;
        words[j][1] = (uint32_t)product1;
        words[j][2] = (uint32_t)product0 ^ d.word3;
        words[j][3] = d.word1;
    }
#pragma unroll
    for (int round = 2; round < ROUNDS; round++)
#pragma unroll
        for (int j = 0; j < Count; j++) {
            uint32_t *c = words[j];
            uint64_t product0 = (uint64_t)c[0] * PHILOX_0, product1 = (uint64_t)c[2] * PHILOX_1;
            c[0] = (uint32_t)(product1 >> 32) ^ c[1] ^ p.key[round][0];
            c[1] = (uint32_t)product1;
            c[2] = (uint32_t)(product0 >> 32) ^ c[3] ^ p.key[round][1];
            c[3] = (uint32_t)product0;
        }
}

__device__ __forceinline__ bool filter_keeps(const pass_rows &p, const draw_state &d, float z,
                                             uint32_t id)
{
    if (id >= p.rows.logits.cols || invar_order_key(z, id) > d.last)
        return false;
    // not "e >= min_p", because a NaN must not leave a row without tokens
    return !p.top || !(invar_exp(z - d.largest) < p.min_p);
}

/*
 * Returns a mask: bit j is set if one of the four tokens of the j-th group, in this or another
 * thread of the warp, may be better than the rank *limit, the best that the block of threads has
 * found. Its value is NaN at first, which bounds nothing. Usually no group may, which one
 * comparison for all shows.
 */
__device__ __forceinline__ unsigned may_win(const draw_state &d, const pass_rows &p,
                                            const float z[GROUPS][4], uint32_t group,
                                            const uint32_t *limit)
{
    float least = value_of(*(const volatile uint32_t *)limit), most[GROUPS], most_of_all;
    uint32_t words[GROUPS][4], word[GROUPS], word_of_all = 0;
    unsigned close = 0;

#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        most[j] = largest_of(z[j]);
        most_of_all = j == 0 ? most[0] : invar_max_nan(most_of_all, most[j]);
    }
    if (!__any_sync(0xFFFFFFFFu,
                    !(most_of_all + INVAR_GUMBEL_MAX < least || most_of_all < d.lowest)))
        return 0;
    draw_words<GROUPS>(words, group, THREADS, d, p);
    // the bound never falls with the word, so that of the largest word bounds all four
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        word[j] = max(max(words[j][0], words[j][1]), max(words[j][2], words[j][3]));
        word_of_all = max(word_of_all, word[j]);
    }
    if (!__any_sync(0xFFFFFFFFu, !(most_of_all + invar_gumbel_bound(word_of_all) < least)))
        return 0;
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
        if (__any_sync(0xFFFFFFFFu,
                       !(most[j] + invar_gumbel_bound(word[j]) < least || most[j] < d.lowest)))
            close |= 1u << j;
    return close;
}

/* Draws four tokens of this thread. All threads of the warp must call it. */
__device__ __forceinline__ void draw_group(draw_state &d, const pass_rows &p, int64_t row,
                                           const banned_token_filter &hidden, uint32_t group,
                                           uint32_t *limit)
{
    const int64_t first = INT64_C(4) * group, left = p.rows.logits.cols - first;
    uint32_t rank = *(volatile uint32_t *)limit, words[1][4];
    invar_run<float, 4> run;
    float z[4];

    run.load_some(p.rows.logits.row(row) + first, left);
    scale_group(z, run, left, p.rows.inverse, hidden, group);
    draw_words<1>(words, group, 0, d, p);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t id = (uint32_t)first + (uint32_t)i;
        bool live = !(z[i] + invar_gumbel_bound(words[0][i]) < value_of(rank)) &&
                    filter_keeps(p, d, z[i], id);
        if (!__any_sync(0xFFFFFFFFu, live))
            continue;
        if (live) {
            uint64_t key = invar_order_key(z[i] + invar_gumbel_normal(words[0][i]), id);
            d.best = key < d.best ? key : d.best;
        }
        rank = min(rank, __reduce_min_sync(0xFFFFFFFFu, (uint32_t)(d.best >> 32)));
    }
    if (warp_thread() == 0)
        atomicMin(limit, rank);
}

__device__ __forceinline__ uint64_t least_of_warp(uint64_t key)
{
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
        uint64_t other = __shfl_xor_sync(0xFFFFFFFFu, key, half);
        key = other < key ? other : key;
    }
    return key;
}

/*
 * Finds the best key of a piece of a row, by a block of threads; the row is blockIdx.y. `Hides`
 * means that some rows may ban tokens.
 */
template <pass_kind Kind, bool Hides>
static __global__ void __launch_bounds__(THREADS, 4) find_best(pass_rows p)
{
    __shared__ uint32_t limit, marks[MARKS];
    __shared__ uint64_t best[THREADS / 32];
    int64_t row = blockIdx.y, begin = (int64_t)blockIdx.x * p.pieces.groups;
    draw_state d = {0, 0, 0, 0, INVAR_ORDER_LAST, 0.0f, 0.0f, INVAR_ORDER_LAST};
    banned_token_filter hidden = {p.rows.hidden, marks, false};

    invar_grid_begin();
    if (threadIdx.x == 0)
        limit = UINT32_MAX;
    if (Hides)
        hidden.open(row);
    __syncthreads();
    if (Kind == PASS_DRAW) {
        d.open(p.coords[row], p.key);
        d.last = p.last ? p.last[row] : INVAR_ORDER_LAST;
        d.lowest = invar_order_value(d.last);
        if (p.top)
            d.largest = invar_order_value(p.top[row]);
    }
    auto look = [&](const float z[GROUPS][4], uint32_t group, auto left) {
        unsigned close = 0;
#pragma unroll
        for (int i = 0; Kind == PASS_HIGHEST && i < 4 * GROUPS; i++) {
            uint32_t id = 4 * (group + (uint32_t)(i / 4 * THREADS)) + (uint32_t)i % 4;
            uint64_t key = invar_order_key(z[i / 4][i % 4], id);
            d.best = i % 4 < left(i / 4) && key < d.best ? key : d.best;
        }
        if (Kind == PASS_DRAW)
            close = may_win(d, p, z, group, &limit);
        return close;
    };
    for_groups<THREADS>(p.rows, row, hidden, begin, begin + p.pieces.groups, look,
                        [&](uint32_t group) { draw_group(d, p, row, hidden, group, &limit); });
    d.best = least_of_warp(d.best);
    if (warp_thread() == 0)
        best[threadIdx.x / 32] = d.best;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int w = 1; w < THREADS / 32; w++)
        d.best = best[w] < d.best ? best[w] : d.best;
    p.best[row * p.pieces.count + blockIdx.x] = d.best;
}

/* Finds the best of all pieces, with a warp for a row: its key, or its token if `keys` is NULL. */
static __global__ void __launch_bounds__(THREADS)
    join_pieces(uint64_t *keys, int32_t *tokens, const uint64_t *best, int64_t rows, int64_t pieces)
{
    int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    uint64_t key = INVAR_ORDER_LAST;

    invar_grid_begin();
    if (row >= rows)
        return;
    for (int64_t i = warp_thread(); i < pieces; i += 32)
        key = best[row * pieces + i] < key ? best[row * pieces + i] : key;
    key = least_of_warp(key);
    if (warp_thread() != 0)
        return;
    if (keys)
        keys[row] = key;
    else
        tokens[row] = (int32_t)invar_order_id(key);
}

/* ---- launches -------------------------------------------------------------------------------- */

static banned_tokens banned_tokens_of(const invar_device *dev, const invar_sample_args *a)
{
    if (!invar_tensor_present(&a->hidden))
        return {};
    return {(const int32_t *)a->hidden.data, a->hidden.shape[0], (const int32_t *)a->hides.data,
            a->logits.shape[1], invar_cuda_of(dev)->fault};
}

static row_split pieces_of_pass(const invar_device *dev, const invar_sample_args *a)
{
    return pieces_of(dev, a->logits.shape[0], a->logits.shape[1], THREADS);
}

/*
 * Returns the bytes of one number for each row: the last key kept, the largest z, or whether top-p
 * is done.
 */
static size_t keys_bytes(const invar_sample_args *a)
{
    return (size_t)a->logits.shape[0] * sizeof(uint64_t);
}

/* Three arrays of keys_bytes, then the best key of each piece, then the memory of top-p. */
size_t invar_cuda_sample_workspace(const invar_device *dev, const invar_sample_args *a)
{
    if (a->logits.shape[0] == 0)
        return 0;
    return keys_bytes(a) * (size_t)(3 + pieces_of_pass(dev, a).count) + filter_bytes(a);
}

/* Finds the best of each row: its key, into `keys`, or its token if that is NULL. */
template <pass_kind Kind>
static invar_status launch_pass(const invar_device *dev, const pass_rows *p, uint64_t *keys,
                                int32_t *tokens)
{
    invar_op op = INVAR_OP_SAMPLE;
    int64_t rows = p->rows.logits.rows;

    for (int64_t row = 0; row < rows; row += 65535) { // limit of a grid
        pass_rows part = *p;
        int64_t count = rows - row < 65535 ? rows - row : 65535;
        part.rows = rows_from(&p->rows, row, count);
        part.coords = Kind == PASS_DRAW ? part.coords + row : nullptr;
        part.last = part.last ? part.last + row : nullptr;
        part.top = part.top ? part.top + row : nullptr;
        part.best += row * p->pieces.count;
        dim3 grid((unsigned)p->pieces.count, (unsigned)count);
        INVAR_TRY(invar_by_flag(part.rows.hidden.rows, [&](auto hides) {
            return invar_launch_early(dev, op, find_best<Kind, hides.value>, grid, dim3(THREADS),
                                      0)(part);
        }));
    }
    return invar_launch_early(dev, op, join_pieces,
                              dim3((unsigned)invar_ceil_div(rows, THREADS / 32)), dim3(THREADS),
                              0)(keys, tokens, p->best, rows, p->pieces.count);
}

static void set_keys(uint32_t key[ROUNDS][2], const invar_sample_args *a)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        key[round][0] = a->seed + round * 0x9E3779B9u;
        key[round][1] = a->purpose + round * 0xBB67AE85u;
    }
}

invar_status invar_cuda_sample(const invar_device *dev, const invar_sample_args *a, void *workspace)
{
    bool greedy = a->temperature == 0.0f;
    uint64_t *last = (uint64_t *)workspace, *top = last + a->logits.shape[0];
    uint64_t *done = top + a->logits.shape[0];
    int32_t *tokens = (int32_t *)a->tokens.data;
    pass_rows pass = {};

    if (a->logits.shape[0] == 0)
        return INVAR_OK;
    pass.rows = {invar_view_of<float>(&a->logits), banned_tokens_of(dev, a),
                 greedy ? 1.0f : 1.0f / a->temperature, invar_aligned({&a->logits})};
    pass.pieces = pieces_of_pass(dev, a);
    pass.best = done + a->logits.shape[0];
    if (greedy)
        return launch_pass<PASS_HIGHEST>(dev, &pass, nullptr, tokens);
    if (a->min_p > 0.0f) {
        INVAR_TRY(launch_pass<PASS_HIGHEST>(dev, &pass, top, nullptr));
        pass.top = top;
        pass.min_p = a->min_p;
    }
    if (has_top_k(a))
        INVAR_TRY(launch_top_k(dev, a, &pass.rows, last, (unsigned *)done));
    if (has_top_p(a))
        INVAR_TRY(launch_top_p(dev, a, &pass.rows, last, (unsigned *)done,
                               pass.best + a->logits.shape[0] * pass.pieces.count));
    if (has_top_k(a) || has_top_p(a))
        pass.last = last;
    pass.coords = a->coords;
    set_keys(pass.key, a);
    return launch_pass<PASS_DRAW>(dev, &pass, nullptr, tokens);
}
