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
#include "kernels-deterministic/cuda/sm90/vector.cuh"
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

/* ---- hidden tokens --------------------------------------------------------------------------- */

struct hidden_tokens {
    const int32_t *ids; /* (count) */
    int64_t count;
    const int32_t *rows; /* which rows hide them; NULL: none */
    int64_t vocabulary;
    invar_cuda_fault *fault;
};

#define MARKS 32

/*
 * What a row hides. Few tokens are hidden and all are looked at: a bit for each group of four ids,
 * modulo 1024, says whether it is worth comparing.
 */
struct hidden_row {
    const hidden_tokens &tokens;
    uint32_t *marks; /* (MARKS) in shared memory */
    bool any;

    /* The whole block of threads calls. */
    __device__ __forceinline__ void open(int64_t row)
    {
        __syncthreads(); // nobody needs the marks of an earlier row any more
        any = tokens.rows && tokens.rows[row] != 0;
        if (!any)
            return;
        if (threadIdx.x < MARKS)
            marks[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < tokens.count; i += blockDim.x) {
            uint32_t group = (uint32_t)tokens.ids[i] / 4;
            if (tokens.ids[i] < 0 || tokens.ids[i] >= tokens.vocabulary)
                invar_report(tokens.fault, INVAR_OP_SAMPLE, INVAR_CUDA_INDEX, tokens.ids[i]);
            atomicOr(&marks[group / 32 % MARKS], 1u << group % 32);
        }
        __syncthreads();
    }

    __device__ __forceinline__ bool may_hide(uint32_t group) const
    {
        return any && (marks[group / 32 % MARKS] >> group % 32 & 1);
    }

    __device__ __forceinline__ bool hides(uint32_t id) const
    {
        for (int64_t i = 0; i < tokens.count; i++)
            if ((uint32_t)tokens.ids[i] == id)
                return true;
        return false;
    }
};

/* A row's logits as the draw sees them. */
struct seen_logits {
    const float *logits;
    const hidden_row &hidden;

    __device__ __forceinline__ float operator()(int64_t v) const
    {
        uint32_t id = (uint32_t)v;

        return hidden.may_hide(id / 4) && hidden.hides(id) ? INVAR_SAMPLE_HIDDEN : logits[v];
    }
};

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
    uint32_t marks[MARKS];
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
__device__ __forceinline__ void begin_sort(sort_shared &shared, uint32_t *keys,
                                           const seen_logits &logits, int64_t n, float inverse)
{
    uint32_t *counts = &shared.start[0][0], total;

    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t base = 0; base < n; base += SORT_THREADS) {
        int64_t v = base + threadIdx.x;
        bool live = v < n;
        uint32_t key = live ? rank_of(logits(v) * inverse) : 0;
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
                                         const seen_logits &logits, int64_t n, float inverse)
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
__device__ __forceinline__ uint32_t find_id(sort_shared &shared, const seen_logits &logits,
                                            int64_t n, float inverse, uint32_t rank, int64_t wanted)
{
    for (int64_t base = 0; base < n; base += SORT_THREADS) {
        int64_t v = base + threadIdx.x;
        int same = v < n && rank_of(logits(v) * inverse) == rank, total;
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
    hidden_tokens hidden;
    float inverse; /* of the temperature */
    int32_t top_k;
    float top_p;
    uint32_t *scratch; /* (blocks, 2, vocabulary) */
    uint64_t *last;    /* (rows): the key of the last token kept */
    uint64_t *unknown; /* (rows): 0 where `last` is known without a sort; NULL: nowhere */
};

static __global__ void __launch_bounds__(SORT_THREADS, 1) find_last_kept(filter_rows f)
{
    extern __shared__ __align__(16) char memory[];
    sort_shared &shared = *(sort_shared *)memory;
    int64_t n = f.logits.cols;
    uint32_t *keys = f.scratch + (int64_t)blockIdx.x * 2 * n;

    hidden_row hidden = {f.hidden, shared.marks, false};

    for (int64_t row = blockIdx.x; row < f.logits.rows; row += gridDim.x) {
        seen_logits logits = {f.logits.row(row), hidden};
        if (f.unknown && f.unknown[row] == 0)
            continue;
        hidden.open(row);
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

/* ---- top-k of few tokens --------------------------------------------------------------------- */

/*
 * The first k tokens of a row without a sort of the row. Each thread knows the best rank of its
 * tokens; k of these ranks are at most the k-th of them, and so are the first k tokens. What is at
 * most that is collected and sorted; where it is too much, the row is left to the sort.
 */
#define FEW_MOST 512 // tokens that top-k keeps
#define FEW_COLLECTED 4096
#define FEW_AHEAD 8 // logits of a thread that are under way at once

static_assert(FEW_COLLECTED * sizeof(uint64_t) <= sizeof(sort_shared::taken), "they lie there");
static_assert(FEW_MOST <= PASSES * DIGITS && FEW_MOST < SORT_THREADS, "and their ranks in `start`");

/* f(rank, id) for the tokens of this thread, at least one if there are SORT_THREADS. */
template <typename F>
__device__ __forceinline__ void for_own_ranks(const seen_logits &logits, int n, float inverse, F f)
{
    for (int base = (int)threadIdx.x; base < n; base += FEW_AHEAD * SORT_THREADS) {
        float x[FEW_AHEAD];
#pragma unroll
        for (int i = 0; i < FEW_AHEAD; i++)
            x[i] = base + i * SORT_THREADS < n ? logits(base + i * SORT_THREADS) : 0.0f;
#pragma unroll
        for (int i = 0; i < FEW_AHEAD; i++)
            if (base + i * SORT_THREADS < n)
                f(rank_of(x[i] * inverse), (uint32_t)(base + i * SORT_THREADS));
    }
}

/* Sorts `count` values, a power of two, by all threads. */
template <typename Integer> __device__ __forceinline__ void sort_few(Integer *values, int count)
{
    for (int run = 2; run <= count; run *= 2)
        for (int apart = run / 2; apart > 0; apart /= 2) {
            for (int i = (int)threadIdx.x; i < count / 2; i += SORT_THREADS) {
                int low = i / apart * 2 * apart + i % apart;
                Integer a = values[low], b = values[low + apart];
                if ((a > b) == ((low & run) == 0)) {
                    values[low] = b;
                    values[low + apart] = a;
                }
            }
            __syncthreads();
        }
}

/* Tokens that rank at most as the k-th of the threads' best ones, into `keys`; yields how many. */
__device__ __forceinline__ int collect_few(sort_shared &shared, uint64_t *keys,
                                           const seen_logits &logits, int n, const filter_rows &f)
{
    uint32_t best = UINT32_MAX, *ranks = shared.tile;

    for_own_ranks(logits, n, f.inverse, [&](uint32_t rank, uint32_t) { best = min(best, rank); });
    ranks[threadIdx.x] = best;
    if (threadIdx.x == 0)
        shared.last_id = 0;
    __syncthreads();
    sort_few(ranks, SORT_THREADS);
    uint32_t most = ranks[f.top_k - 1];
    for_own_ranks(logits, n, f.inverse, [&](uint32_t rank, uint32_t id) {
        if (rank > most)
            return;
        unsigned long long at = atomicAdd(&shared.last_id, 1ull);
        if (at < FEW_COLLECTED)
            keys[at] = (uint64_t)rank << 32 | id;
    });
    __syncthreads();
    unsigned long long count = shared.last_id;
    return count <= FEW_COLLECTED ? (int)count : FEW_COLLECTED + 1;
}

/* The last token kept of each row, a block of threads for a row. */
static __global__ void __launch_bounds__(SORT_THREADS, 1) find_last_of_few(filter_rows f)
{
    extern __shared__ __align__(16) char memory[];
    sort_shared &shared = *(sort_shared *)memory;
    uint64_t *keys = (uint64_t *)shared.taken;
    uint32_t *ranks = shared.start[0];
    int64_t row = blockIdx.x, kept = f.top_k;
    hidden_row hidden = {f.hidden, shared.marks, false};
    int padded = 2;

    invar_grid_begin();
    hidden.open(row);
    int count = collect_few(shared, keys, {f.logits.row(row), hidden}, (int)f.logits.cols, f);
    if (count > FEW_COLLECTED) {
        if (threadIdx.x == 0)
            f.unknown[row] = 1;
        return;
    }
    while (padded < count)
        padded *= 2;
    for (int i = count + (int)threadIdx.x; i < padded; i += SORT_THREADS)
        keys[i] = INVAR_ORDER_LAST;
    __syncthreads();
    sort_few(keys, padded);
    if ((int)threadIdx.x < f.top_k)
        ranks[threadIdx.x] = (uint32_t)(keys[threadIdx.x] >> 32);
    __syncthreads();
    if (f.top_p < 1.0f)
        kept = count_top_p(shared, ranks, kept, f.top_p);
    if (threadIdx.x == 0) {
        f.last[row] = keys[kept - 1];
        f.unknown[row] = 0;
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
    hidden_tokens hidden;
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
                                            int64_t left, float inverse, const hidden_row &hidden,
                                            uint32_t group)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        z[i] = i < left ? run.get(i) * inverse : -INFINITY;
    if (hidden.may_hide(group)) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < left && hidden.hides(4 * group + (uint32_t)i))
                z[i] = INVAR_SAMPLE_HIDDEN * inverse;
    }
}

/* A block of threads has a piece of a row; rows are blockIdx.y. */
template <pass_kind Kind> static __global__ void __launch_bounds__(THREADS, 5) choose(pass_rows p)
{
    __shared__ uint32_t limit, marks[MARKS];
    int64_t row = blockIdx.y, begin = (int64_t)blockIdx.x * p.piece, end = begin + p.piece;
    const float *logits = p.logits.row(row);
    drawing d = {0, 0, 0, p.last ? p.last[row] : INVAR_ORDER_LAST, 0.0f, INVAR_ORDER_LAST};
    hidden_row hidden = {p.hidden, marks, false};

    if (threadIdx.x == 0)
        limit = UINT32_MAX;
    hidden.open(row); // and all threads see the limit
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
            scale_group(z, run[j], left - 4 * j * THREADS, p.inverse, hidden,
                        (uint32_t)(group + j * THREADS));
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

static hidden_tokens hidden_of(const invar_device *dev, const invar_sample_args *a)
{
    if (!invar_tensor_present(&a->hidden))
        return {};
    return {(const int32_t *)a->hidden.data, a->hidden.shape[0], (const int32_t *)a->hides.data,
            a->logits.shape[1], invar_cuda_of(dev)->fault};
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
        part.hidden.rows = part.hidden.rows ? part.hidden.rows + row : nullptr;
        part.last = part.last ? part.last + row : nullptr;
        part.top = part.top ? part.top + row : nullptr;
        part.best += row;
        dim3 grid((unsigned)invar_ceil_div(groups, p->piece), (unsigned)count);
        INVAR_TRY(invar_launch(dev, op, choose<Kind>, grid, dim3(THREADS), 0)(part));
    }
    return INVAR_OK;
}

/* `unknown` is free memory for a number a row. */
static invar_status launch_sort(const invar_device *dev, const invar_sample_args *a, float inverse,
                                uint64_t *last, uint64_t *unknown, uint32_t *scratch)
{
    bool few = a->top_k > 0 && a->top_k <= FEW_MOST && a->logits.shape[1] >= SORT_THREADS;
    filter_rows filter = {invar_view_of<float>(&a->logits),
                          hidden_of(dev, a),
                          inverse,
                          a->top_k,
                          a->top_p,
                          scratch,
                          last,
                          unknown};

    if (a->logits.shape[1] > (int64_t)MOST_CHUNKS * INVAR_REDUCE_CHUNK)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: top_k or top_p over more than 2^24 tokens",
                          invar_op_name(INVAR_OP_SAMPLE));
    if (few)
        INVAR_TRY(invar_launch_early(dev, INVAR_OP_SAMPLE, find_last_of_few,
                                     dim3((unsigned)a->logits.shape[0]), dim3(SORT_THREADS),
                                     sizeof(sort_shared))(filter));
    else
        filter.unknown = nullptr;
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
    pass.hidden = hidden_of(dev, a);
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
            INVAR_TRY(launch_sort(dev, a, pass.inverse, last, best,
                                  (uint32_t *)((char *)top + keys_bytes(a))));
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
