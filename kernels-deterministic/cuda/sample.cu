/*
 * sample.cu - the next token of each row.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 9: z = logit * (1/T); of the tokens that
 * pass top-k, then top-p, then min-p, the one with the largest z + Gumbel(Philox word of the
 * token's coordinates), the lower id on ties. No state: a row depends on its own logits and
 * coordinates alone.
 *
 * The best candidate is the least of 64-bit keys, so the order in which they are compared does not
 * matter. Tokens that top-k and top-p keep are the head of one sorted list: these filters end in a
 * single key, the last one kept. One pass over the vocabulary then does the rest; most Gumbel
 * values are not computed, because a bound says that they cannot win.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/vector.cuh"
#include "kernels-deterministic/math/narrow.h"
#include "kernels-deterministic/math/order.h"

__device__ __forceinline__ int warp_thread()
{
    return (int)threadIdx.x % 32;
}

__device__ __forceinline__ uint32_t rank_of(float z)
{
    return (uint32_t)(invar_order_key(z, 0) >> 32);
}

__device__ __forceinline__ float value_of(uint32_t rank)
{
    return invar_order_value((uint64_t)rank << 32);
}

/* ---- the sorted vocabulary ------------------------------------------------------------------- */

/*
 * One block of threads sorts a row's ranks, by digits of 8 bits, the lowest first. A tile of the
 * list is ordered in shared memory first, so that equal digits leave it side by side.
 */
#define SORT_THREADS 1024
#define SORT_WARPS (SORT_THREADS / 32)
#define DIGIT_BITS 8
#define DIGITS (1 << DIGIT_BITS)
#define PASSES (32 / DIGIT_BITS)
#define ITEMS 8 // keys of a thread in a tile
#define TILE (SORT_THREADS * ITEMS)
#define MOST_CHUNKS INVAR_REDUCE_CHUNK

static_assert(PASSES * DIGITS == SORT_THREADS, "a thread for each digit of each pass");

struct sort_shared {
    uint32_t start[PASSES][DIGITS];     /* where the next key of a digit goes */
    uint32_t taken[SORT_WARPS][DIGITS]; /* of a tile: keys of each warp, then where they begin */
    uint32_t local[DIGITS];             /* where a digit begins in the tile */
    union {
        uint32_t tile[TILE];
        struct {
            float sums[MOST_CHUNKS];     /* of e, of each chunk of 4096 */
            uint64_t parts[MOST_CHUNKS]; /* of the probabilities as fixed-point numbers */
        };
    };
    float total;
    int64_t kept;
    unsigned long long last_id;
};

/* Threads of the warp whose digit is this thread's; only those that are `live` count. */
__device__ __forceinline__ unsigned peers_of(uint32_t digit, bool live)
{
    unsigned peers = __ballot_sync(0xFFFFFFFFu, live);

#pragma unroll
    for (int bit = 0; bit < DIGIT_BITS; bit++) {
        unsigned votes = __ballot_sync(0xFFFFFFFFu, digit >> bit & 1);
        peers &= digit >> bit & 1 ? votes : ~votes;
    }
    return peers;
}

/* The last of its peers. */
__device__ __forceinline__ bool is_last(unsigned peers)
{
    return peers >> warp_thread() == 1;
}

__device__ __forceinline__ uint32_t digit_of(uint32_t key, int pass)
{
    return key >> pass * DIGIT_BITS & (DIGITS - 1);
}

/* The ranks of a row into `keys`; start[pass][digit] for all passes. */
__device__ __forceinline__ void begin_sort(sort_shared &shared, uint32_t *keys, const float *logits,
                                           int64_t n, float inverse)
{
    uint32_t *counts = &shared.start[0][0], total;

    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t base = 0; base < n; base += SORT_THREADS) {
        int64_t v = base + threadIdx.x;
        bool live = v < n;
        uint32_t key = live ? rank_of(logits[v] * inverse) : 0;
        if (live)
            keys[v] = key;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            unsigned peers = peers_of(digit_of(key, pass), live);
            if (live && is_last(peers))
                atomicAdd(&shared.start[pass][digit_of(key, pass)], (uint32_t)__popc(peers));
        }
    }
    __syncthreads();
    // each pass counts n keys: what is before the pass does not belong to it
    uint32_t before = invar_sum_before<SORT_THREADS>(counts[threadIdx.x], &total);
    counts[threadIdx.x] = before - threadIdx.x / DIGITS * (uint32_t)n;
    __syncthreads();
}

/* Counts of a tile's warps and digits become places in the tile; yields the digit's count. */
__device__ __forceinline__ uint32_t place_digits(sort_shared &shared)
{
    int digit = (int)threadIdx.x;
    uint32_t count = 0, total;

    for (int w = 0; digit < DIGITS && w < SORT_WARPS; w++)
        count += shared.taken[w][digit];
    uint32_t place = invar_sum_before<SORT_THREADS>(count, &total);
    if (digit < DIGITS)
        shared.local[digit] = place;
    for (int w = 0; digit < DIGITS && w < SORT_WARPS; w++) {
        uint32_t here = shared.taken[w][digit];
        shared.taken[w][digit] = place;
        place += here;
    }
    __syncthreads();
    return count;
}

/* One digit of one tile: keys[first ..], `count` of them, to where they belong in `to`. */
__device__ __forceinline__ void sort_tile(sort_shared &shared, uint32_t *to, const uint32_t *keys,
                                          int count, int pass)
{
    uint32_t *taken = shared.taken[threadIdx.x / 32];
    int own = (int)threadIdx.x / 32 * ITEMS * 32 + warp_thread();
    uint32_t key[ITEMS], rank[ITEMS];

#pragma unroll
    for (int i = 0; i < ITEMS; i++)
        key[i] = own + 32 * i < count ? keys[own + 32 * i] : 0;
    for (int digit = warp_thread(); digit < DIGITS; digit += 32)
        taken[digit] = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        bool live = own + 32 * i < count;
        uint32_t digit = digit_of(key[i], pass);
        unsigned peers = peers_of(digit, live);
        rank[i] = taken[digit] + (uint32_t)__popc(peers & ((1u << warp_thread()) - 1));
        __syncwarp();
        if (live && is_last(peers))
            taken[digit] = rank[i] + 1;
        __syncwarp();
    }
    __syncthreads();
    uint32_t of_digit = place_digits(shared);
#pragma unroll
    for (int i = 0; i < ITEMS; i++)
        if (own + 32 * i < count)
            shared.tile[taken[digit_of(key[i], pass)] + rank[i]] = key[i];
    __syncthreads();
    for (int at = (int)threadIdx.x; at < count; at += SORT_THREADS) {
        uint32_t out = shared.tile[at], digit = digit_of(out, pass);
        to[shared.start[pass][digit] + (uint32_t)at - shared.local[digit]] = out;
    }
    __syncthreads();
    if (threadIdx.x < DIGITS)
        shared.start[pass][threadIdx.x] += of_digit;
    __syncthreads();
}

/* The ranks of a row in ascending order, into `keys`; `spare` is as long. */
__device__ __forceinline__ void sort_row(sort_shared &shared, uint32_t *keys, uint32_t *spare,
                                         const float *logits, int64_t n, float inverse)
{
    begin_sort(shared, keys, logits, n, inverse);
    for (int pass = 0; pass < PASSES; pass++) {
        for (int64_t first = 0; first < n; first += TILE)
            sort_tile(shared, spare, keys + first, (int)(n - first < TILE ? n - first : TILE),
                      pass);
        uint32_t *swap = keys;
        keys = spare;
        spare = swap;
    }
}

/* ---- top-k and top-p ------------------------------------------------------------------------- */

/* A probability as a fixed-point number: sums of these are exact in every order. */
__device__ __forceinline__ uint64_t fixed_point(float p)
{
    // the bound is no part of the arithmetic: it keeps a NaN from the conversion
    return (uint64_t)((p < 1.0f ? p : 1.0f) * 0x1p40f);
}

__device__ __forceinline__ uint64_t sum_of_warp(uint64_t x)
{
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, half);
    return x;
}

/* f(chunk, first, count), by one warp, for each chunk of 4096 of n. */
template <typename F> __device__ __forceinline__ void for_chunks(int64_t n, F f)
{
    for (int64_t c = threadIdx.x / 32; c * INVAR_REDUCE_CHUNK < n; c += SORT_WARPS) {
        int64_t first = c * INVAR_REDUCE_CHUNK, left = n - first;
        f(c, first, left < INVAR_REDUCE_CHUNK ? left : INVAR_REDUCE_CHUNK);
    }
    __syncthreads();
}

/* In the chunk where the sum passes `limit`: tokens of it that stay. One warp. */
template <typename F>
__device__ __forceinline__ int64_t count_within(uint64_t sum, uint64_t limit, int64_t count, F part)
{
    for (int64_t base = 0; base < count; base += 32) {
        uint64_t own = base + warp_thread() < count ? part(base + warp_thread()) : 0, up_to = own;
        for (int step = 1; step < 32; step *= 2) {
            uint64_t left = __shfl_up_sync(0xFFFFFFFFu, up_to, step);
            if (warp_thread() >= step)
                up_to += left;
        }
        // a token stays while the sum before it is below the limit
        bool stays = sum + up_to - own < limit && base + warp_thread() < count;
        unsigned stay = __ballot_sync(0xFFFFFFFFu, stays);
        if (stay != 0xFFFFFFFFu)
            return base + __popc(stay);
        sum += __shfl_sync(0xFFFFFFFFu, up_to, 31);
    }
    return count;
}

/* The tokens of the sorted list, of which n are left, that top-p keeps. */
__device__ __forceinline__ int64_t count_top_p(sort_shared &shared, const uint32_t *sorted,
                                               int64_t n, float top_p)
{
    float largest = value_of(sorted[0]);
    auto e = [&](int64_t i) { return invar_exp_not_above_0(value_of(sorted[i]) - largest); };
    int64_t chunks = invar_ceil_div(n, INVAR_REDUCE_CHUNK);
    uint64_t limit = fixed_point(top_p);

    for_chunks(n, [&](int64_t c, int64_t first, int64_t count) {
        shared.sums[c] = invar_reduce_warp(count, [&](int64_t i) { return e(first + i); });
    });
    if (threadIdx.x < 32)
        // for one chunk as well: REDUCE of a single value is that value
        shared.total = invar_reduce_warp(chunks, [&](int64_t c) { return shared.sums[c]; });
    __syncthreads();
    float total = shared.total;
    auto part = [&](int64_t i) { return fixed_point(e(i) / total); };
    for_chunks(n, [&](int64_t c, int64_t first, int64_t count) {
        uint64_t sum = 0;
        for (int64_t i = warp_thread(); i < count; i += 32)
            sum += part(first + i);
        shared.parts[c] = sum_of_warp(sum);
    });
    if (threadIdx.x < 32) {
        uint64_t sum = 0;
        int64_t c = 0;
        for (; c < chunks - 1 && sum + shared.parts[c] < limit; c++)
            sum += shared.parts[c];
        int64_t first = c * INVAR_REDUCE_CHUNK, left = n - first;
        shared.kept =
            first + count_within(sum, limit, left < INVAR_REDUCE_CHUNK ? left : INVAR_REDUCE_CHUNK,
                                 [&](int64_t i) { return part(first + i); });
    }
    __syncthreads();
    return shared.kept;
}

/* The first entry of the sorted list that is not below `rank`. */
__device__ __forceinline__ int64_t lower_bound(const uint32_t *sorted, int64_t n, uint64_t rank)
{
    int64_t low = 0, high = n;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (sorted[middle] < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The `wanted`-th id, in ascending order, of this rank: all threads look at 1024 ids at a time. */
__device__ __forceinline__ uint32_t find_id(sort_shared &shared, const float *logits, int64_t n,
                                            float inverse, uint32_t rank, int64_t wanted)
{
    for (int64_t base = 0; base < n; base += SORT_THREADS) {
        int64_t v = base + threadIdx.x;
        int same = v < n && rank_of(logits[v] * inverse) == rank, total;
        int before = invar_sum_before<SORT_THREADS>(same, &total);
        if (same && before + 1 == wanted)
            shared.last_id = (unsigned long long)v;
        if (total >= wanted)
            break;
        wanted -= total;
    }
    __syncthreads();
    return (uint32_t)shared.last_id;
}

struct filter_rows {
    invar_view<float> logits;
    float inverse; /* of the temperature */
    int32_t top_k;
    float top_p;
    uint32_t *scratch; /* (blocks, 2, vocabulary) */
    uint64_t *last;    /* (rows): the key of the last token kept */
};

static __global__ void __launch_bounds__(SORT_THREADS, 1) find_last_kept(filter_rows f)
{
    extern __shared__ __align__(16) char memory[];
    sort_shared &shared = *(sort_shared *)memory;
    int64_t n = f.logits.cols;
    uint32_t *keys = f.scratch + (int64_t)blockIdx.x * 2 * n;

    for (int64_t row = blockIdx.x; row < f.logits.rows; row += gridDim.x) {
        const float *logits = f.logits.row(row);
        sort_row(shared, keys, keys + n, logits, n, f.inverse);
        int64_t kept = f.top_k > 0 && f.top_k < n ? f.top_k : n;
        if (f.top_p < 1.0f)
            kept = count_top_p(shared, keys, kept, f.top_p);
        uint32_t rank = keys[kept - 1], id = UINT32_MAX;
        int64_t first = lower_bound(keys, n, rank);
        if (lower_bound(keys, n, (uint64_t)rank + 1) > kept) // not all of this rank stay
            id = find_id(shared, logits, n, f.inverse, rank, kept - first);
        if (threadIdx.x == 0)
            f.last[row] = (uint64_t)rank << 32 | id;
        __syncthreads();
    }
}

/* ---- the choice ------------------------------------------------------------------------------ */

#define THREADS 256
#define GROUPS 2 // of four tokens, whose loads are under way at once

enum pass_kind {
    PASS_HIGHEST, /* the first token by (z, id) */
    PASS_DRAW     /* the first of what stays by (z + Gumbel, id) */
};

struct pass_rows {
    invar_view<float> logits;
    const invar_sample_coords *coords;
    uint32_t key[2];      /* seed, purpose */
    float inverse, min_p; /* inverse 1 where the temperature is 0 */
    const uint64_t *last; /* (rows); NULL: all stay */
    const uint64_t *top;  /* (rows): the key of the largest z; NULL without min-p */
    uint64_t *best;       /* (rows), all ones at the start */
    int64_t piece;        /* groups of four tokens that a block of threads has */
    bool aligned;
};

/* What a thread knows of its row, and the best that it has found. */
struct drawing {
    uint32_t position, sample, rollout;
    uint64_t last;
    float largest;
    uint64_t best;
};

__device__ __forceinline__ bool stays(const pass_rows &p, const drawing &d, float z, uint32_t id)
{
    if (id >= p.logits.cols || invar_order_key(z, id) > d.last)
        return false;
    // not "e >= min_p": a NaN must not leave a row without tokens
    return !p.top || !(invar_exp(z - d.largest) < p.min_p);
}

__device__ __forceinline__ float largest_of(const float x[4])
{
    return invar_max_nan(invar_max_nan(x[0], x[1]), invar_max_nan(x[2], x[3]));
}

/*
 * Four tokens of this thread; the whole warp calls. *limit is the rank of the best that the block
 * of threads has found: where a bound says that a token ranks behind it, no more is computed.
 */
__device__ __forceinline__ void draw_group(drawing &d, const pass_rows &p, const float z[4],
                                           int64_t group, uint32_t *limit)
{
    float least = value_of(*(volatile uint32_t *)limit); // a NaN, which bounds nothing, at first
    const uint32_t counter[4] = {(uint32_t)group, d.position, d.sample, d.rollout};
    uint32_t words[4];
    float bound[4];

    if (!__any_sync(0xFFFFFFFFu, !(largest_of(z) + INVAR_GUMBEL_MOST < least)))
        return;
    invar_philox4x32(words, counter, p.key);
#pragma unroll
    for (int i = 0; i < 4; i++)
        bound[i] = z[i] + invar_gumbel_bound(words[i]);
    if (!__any_sync(0xFFFFFFFFu, !(largest_of(bound) < least)))
        return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t id = (uint32_t)(4 * group + i);
        if (!(bound[i] < least) && stays(p, d, z[i], id)) {
            uint64_t key = invar_order_key(z[i] + invar_gumbel_normal(words[i]), id);
            d.best = key < d.best ? key : d.best;
        }
    }
    uint32_t rank = __reduce_min_sync(0xFFFFFFFFu, (uint32_t)(d.best >> 32));
    if (warp_thread() == 0)
        atomicMin(limit, rank);
}

/* z of a group of four logits, of which `left` are there; -inf for the others. */
__device__ __forceinline__ void scale_group(float z[4], const invar_run<float, 4> &run,
                                            int64_t left, float inverse)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        z[i] = i < left ? run.get(i) * inverse : -INFINITY;
}

/* A block of threads has a piece of a row; rows are blockIdx.y. */
template <pass_kind Kind> static __global__ void __launch_bounds__(THREADS, 5) choose(pass_rows p)
{
    __shared__ uint32_t limit;
    int64_t row = blockIdx.y, begin = (int64_t)blockIdx.x * p.piece, end = begin + p.piece;
    const float *logits = p.logits.row(row);
    drawing d = {0, 0, 0, p.last ? p.last[row] : INVAR_ORDER_LAST, 0.0f, INVAR_ORDER_LAST};

    if (threadIdx.x == 0)
        limit = UINT32_MAX;
    __syncthreads();
    if (Kind == PASS_DRAW) {
        d.position = p.coords[row].position;
        d.sample = p.coords[row].sample;
        d.rollout = p.coords[row].rollout;
        if (p.top)
            d.largest = invar_order_value(p.top[row]);
    }
    // pieces are whole numbers of steps: the last groups may be behind the end of the row
    for (int64_t group = begin + threadIdx.x; group < end; group += GROUPS * THREADS) {
        invar_run<float, 4> run[GROUPS];
        int64_t first = 4 * group, left = p.logits.cols - first;
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
            run[j].load(logits + first + 4 * j * THREADS, left - 4 * j * THREADS, p.aligned);
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            float z[4];
            scale_group(z, run[j], left - 4 * j * THREADS, p.inverse);
            if (Kind == PASS_DRAW)
                draw_group(d, p, z, group + j * THREADS, &limit);
#pragma unroll
            for (int i = 0; Kind == PASS_HIGHEST && i < 4; i++) {
                int64_t id = first + 4 * j * THREADS + i;
                uint64_t key = invar_order_key(z[i], (uint32_t)id);
                d.best = id < p.logits.cols && key < d.best ? key : d.best;
            }
        }
    }
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
        uint64_t other = __shfl_xor_sync(0xFFFFFFFFu, d.best, half);
        d.best = other < d.best ? other : d.best;
    }
    if (warp_thread() == 0)
        atomicMin((unsigned long long *)&p.best[row], (unsigned long long)d.best);
}

static __global__ void __launch_bounds__(THREADS)
    write_tokens(int32_t *tokens, const uint64_t *best, int64_t rows)
{
    int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (row < rows)
        tokens[row] = (int32_t)invar_order_id(best[row]);
}

/* ---- launches -------------------------------------------------------------------------------- */

static bool needs_sort(const invar_sample_args *a)
{
    bool top_k = a->top_k > 0 && a->top_k < a->logits.shape[1];

    return a->temperature > 0.0f && (top_k || a->top_p < 1.0f);
}

static int64_t sort_blocks(const invar_device *dev, const invar_sample_args *a)
{
    int64_t most = invar_cuda_of(dev)->multiprocessors;

    return a->logits.shape[0] < most ? a->logits.shape[0] : most;
}

/* Keys of each row: the best, the last kept, the largest z; then the scratch of the sort. */
static size_t keys_bytes(const invar_sample_args *a)
{
    return ((size_t)a->logits.shape[0] * sizeof(uint64_t) + 255) / 256 * 256;
}

size_t invar_cuda_sample_workspace(const invar_device *dev, const invar_sample_args *a)
{
    size_t sort = 2 * (size_t)a->logits.shape[1] * sizeof(uint32_t);

    return 3 * keys_bytes(a) + (needs_sort(a) ? sort * (size_t)sort_blocks(dev, a) : 0);
}

template <pass_kind Kind>
static invar_status launch_pass(const invar_device *dev, pass_rows *p, uint64_t *best)
{
    invar_op op = INVAR_OP_SAMPLE;
    int64_t rows = p->logits.rows, groups = invar_ceil_div(p->logits.cols, 4);
    // blocks for all multiprocessors, but not more than there is work for
    int64_t pieces = invar_ceil_div((int64_t)invar_cuda_of(dev)->multiprocessors * 4, rows);
    int64_t most = invar_ceil_div(groups, GROUPS * THREADS);

    pieces = pieces < most ? pieces : most;
    p->best = best;
    p->piece = invar_ceil_div(groups, pieces * GROUPS * THREADS) * GROUPS * THREADS;
    INVAR_CUDA_TRY(invar_op_name(op), cudaMemsetAsync(best, 0xFF, (size_t)rows * sizeof *best,
                                                      invar_cuda_of(dev)->stream));
    for (int64_t row = 0; row < rows; row += 65535) { // of a grid at most
        pass_rows part = *p;
        int64_t count = rows - row < 65535 ? rows - row : 65535;
        part.logits.data += row * part.logits.stride;
        part.coords = Kind == PASS_DRAW ? part.coords + row : nullptr;
        part.last = part.last ? part.last + row : nullptr;
        part.top = part.top ? part.top + row : nullptr;
        part.best += row;
        dim3 grid((unsigned)invar_ceil_div(groups, p->piece), (unsigned)count);
        INVAR_TRY(invar_launch(dev, op, choose<Kind>, grid, dim3(THREADS), 0)(part));
    }
    return INVAR_OK;
}

static invar_status launch_sort(const invar_device *dev, const invar_sample_args *a, float inverse,
                                uint64_t *last, uint32_t *scratch)
{
    filter_rows filter = {
        invar_view_of<float>(&a->logits), inverse, a->top_k, a->top_p, scratch, last};

    if (a->logits.shape[1] > (int64_t)MOST_CHUNKS * INVAR_REDUCE_CHUNK)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: top_k or top_p over more than 2^24 tokens",
                          invar_op_name(INVAR_OP_SAMPLE));
    return invar_launch(dev, INVAR_OP_SAMPLE, find_last_kept, dim3((unsigned)sort_blocks(dev, a)),
                        dim3(SORT_THREADS), sizeof(sort_shared))(filter);
}

invar_status invar_cuda_sample(const invar_device *dev, const invar_sample_args *a, void *workspace)
{
    bool greedy = a->temperature == 0.0f;
    uint64_t *best = (uint64_t *)workspace;
    uint64_t *last = (uint64_t *)((char *)best + keys_bytes(a));
    uint64_t *top = (uint64_t *)((char *)last + keys_bytes(a));
    int64_t rows = a->logits.shape[0];
    pass_rows pass = {};

    if (rows == 0)
        return INVAR_OK;
    pass.logits = invar_view_of<float>(&a->logits);
    pass.inverse = greedy ? 1.0f : 1.0f / a->temperature;
    pass.aligned = invar_aligned({&a->logits});
    if (greedy) {
        INVAR_TRY(launch_pass<PASS_HIGHEST>(dev, &pass, best));
    } else {
        if (a->min_p > 0.0f) {
            INVAR_TRY(launch_pass<PASS_HIGHEST>(dev, &pass, top));
            pass.top = top;
            pass.min_p = a->min_p;
        }
        if (needs_sort(a)) {
            INVAR_TRY(
                launch_sort(dev, a, pass.inverse, last, (uint32_t *)((char *)top + keys_bytes(a))));
            pass.last = last;
        }
        pass.coords = a->coords;
        pass.key[0] = a->seed;
        pass.key[1] = a->purpose;
        INVAR_TRY(launch_pass<PASS_DRAW>(dev, &pass, best));
    }
    return invar_launch(dev, INVAR_OP_SAMPLE, write_tokens,
                        dim3((unsigned)invar_ceil_div(rows, THREADS)), dim3(THREADS),
                        0)((int32_t *)a->tokens.data, best, rows);
}
