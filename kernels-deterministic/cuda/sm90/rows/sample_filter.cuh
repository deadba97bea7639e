/*
 * sample_filter.cuh - top-k and top-p: finds the last token that they keep.
 *
 * Both keep a token while the tokens before it in the order weigh less than a limit: k tokens, or a
 * sum of probabilities as integers. Sums of integers are the same in every order, so only a few
 * candidates are sorted.
 *
 * Top-k of few tokens: each thread knows the best rank of its tokens. The first k tokens rank at
 * most as the k-th of these ranks, so the tokens up to that rank are collected and sorted; top-p of
 * these reads no other token.
 *
 * Top-p: the chunks of the softmax; then the weights of tokens in bins by their distance from the
 * largest z; then the tokens of the bin in which the limit is reached, which are sorted. If too
 * many would have to be sorted, the key is found digit by digit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_SM90_ROWS_SAMPLE_FILTER_CUH
#define INVAR_KERNELS_CUDA_SM90_ROWS_SAMPLE_FILTER_CUH

#include "kernels-deterministic/cuda/sm90/rows/sample.cuh"

#define FILTER_THREADS 256
#define LAST_THREADS 1024 // threads of the kernels that find the last token of a row
#define LISTED 4096       // largest number of tokens of a row that are sorted
#define BINS 2048
// bins for a difference of 1 in z; a weight at a difference of 32 is far below 2^-40
#define BINS_OF_ONE 64.0f

/* ---- weights --------------------------------------------------------------------------------- */

/* Returns a probability as a fixed-point number; sums of these are exact in every order. */
static __host__ __device__ __forceinline__ uint64_t fixed_point(float p)
{
    return (uint64_t)((p > 0.0f ? p : 0.0f) * 0x1p40f); // 0 for NaN
}

/* M and L of a row. */
struct softmax {
    float max_z, total;

    __device__ __forceinline__ uint64_t weight(float z) const
    {
        return fixed_point(invar_exp_nonpositive(z - max_z) / total);
    }

    /* Returns the bin of z, which is never lower for a lower z. */
    __device__ __forceinline__ int bin(float z) const
    {
        uint32_t below = __float2uint_rz((max_z - z) * BINS_OF_ONE);

        return (int)min(below, (uint32_t)(BINS - 1));
    }
};

/* Sums of weights below 2^41 in two words, to which threads add concurrently. */
template <int Count> struct weight_sums {
    uint32_t low[Count], high[Count]; /* low + high * 2^20 */

    /*
     * Clears the sums. Called by all threads of the block, which synchronize before one of them
     * adds.
     */
    __device__ __forceinline__ void clear()
    {
        for (int i = (int)threadIdx.x; i < Count; i += (int)blockDim.x)
            low[i] = high[i] = 0;
    }

    __device__ __forceinline__ void add(int i, uint64_t weight)
    {
        uint32_t rest = (uint32_t)weight & 0xFFFFFu, more = (uint32_t)(weight >> 20);

        if (weight == 0)
            return;
        if (atomicAdd(&low[i], rest) + rest < rest)
            more += 1u << 12; // carry of the low word
        if (more > 0)
            atomicAdd(&high[i], more);
    }

    __device__ __forceinline__ uint64_t get(int i) const
    {
        return low[i] + ((uint64_t)high[i] << 20);
    }
};

/* Index at which running sums first reach a limit, and what is left of the limit before it. */
struct threshold_hit {
    int index; /* -1 if the sums do not reach the limit */
    uint64_t rest;
};

/*
 * Finds the index at which the sums reach a limit, by a block of `Threads` threads; thread t has
 * the Each sums from Each * t on, which value(i) returns. `found` is in shared memory.
 */
template <int Threads, int Each, typename F>
__device__ __forceinline__ threshold_hit find_sum(threshold_hit *found, uint64_t limit, F value)
{
    uint64_t own = 0, total;

    for (int i = 0; i < Each; i++)
        own += value((int)threadIdx.x * Each + i);
    uint64_t before = invar_sum_before<Threads>(own, &total);
    if (threadIdx.x == 0 && total < limit)
        *found = {-1, limit};
    if (before < limit && before + own >= limit) {
        int i = (int)threadIdx.x * Each;
        for (uint64_t here; (here = value(i)) < limit - before; i++)
            before += here;
        *found = {i, limit - before};
    }
    __syncthreads();
    return *found;
}

/* ---- rows ------------------------------------------------------------------------------------ */

struct filter_rows {
    logit_rows rows;
    const uint64_t *before; /* (rows) last token that an earlier filter keeps; NULL if all are
                               kept */
    uint64_t *last;         /* (rows) last token kept */
    int32_t top_k;
    uint64_t limit; /* limit of top-p */
    int64_t chunks;
    row_split pieces;
    float *largest, *sums;    /* (rows, chunks) maxima and sums of the softmax */
    softmax *found;           /* (rows) */
    unsigned long long *bins; /* (rows, BINS) */
    unsigned *listed;         /* (rows) tokens of the list, including those for which it is too
                                 short */
    unsigned *done;           /* (rows) not 0 if top-k was of few tokens, and top-p is done with
                                 it */
    uint64_t *list;           /* (rows, LISTED) */

    __device__ __forceinline__ bool is_done(int64_t row) const
    {
        return done && done[row] != 0;
    }

    __device__ __forceinline__ uint64_t last_before(int64_t row) const
    {
        return before ? before[row] : INVAR_ORDER_LAST;
    }
};

/* Calls take(z, key) for the tokens of some groups that `before` keeps. */
template <int Threads, typename F>
__device__ __forceinline__ void for_tokens(const filter_rows &f, int64_t row,
                                           const banned_token_filter &hidden, uint64_t before,
                                           int64_t begin, int64_t end, F take)
{
    auto look = [&](const float z[GROUPS][4], uint32_t group, auto left) {
#pragma unroll
        for (int i = 0; i < 4 * GROUPS; i++) {
            uint32_t id = 4 * (group + (uint32_t)(i / 4 * Threads)) + (uint32_t)i % 4;
            uint64_t key = invar_order_key(z[i / 4][i % 4], id);
            if (i % 4 < left(i / 4) && key <= before)
                take(z[i / 4][i % 4], key);
        }
        return 0u;
    };
    for_groups<Threads>(f.rows, row, hidden, begin, end, look, [](uint32_t) {});
}

/*
 * Calls take(z, key) for the tokens of a piece of row blockIdx.y. for_row does so for all of a row.
 */
template <typename F>
__device__ __forceinline__ void for_piece(const filter_rows &f, const banned_token_filter &hidden,
                                          F take)
{
    int64_t begin = (int64_t)blockIdx.x * f.pieces.groups;

    for_tokens<FILTER_THREADS>(f, blockIdx.y, hidden, f.last_before(blockIdx.y), begin,
                               begin + f.pieces.groups, take);
}

template <typename F>
__device__ __forceinline__ void for_row(const filter_rows &f, int64_t row,
                                        const banned_token_filter &hidden, F take)
{
    for_tokens<LAST_THREADS>(f, row, hidden, f.last_before(row), 0,
                             invar_ceil_div(f.rows.logits.cols, 4), take);
}

/* ---- digits and sorting ---------------------------------------------------------------------- */

#define DIGIT_BITS 8
#define DIGITS (1 << DIGIT_BITS)

struct last_token_shared {
    union {
        uint64_t keys[LISTED];
        weight_sums<DIGITS> digits;
    };
    uint32_t ranks[LAST_THREADS];
    float sums[INVAR_REDUCE_CHUNK]; /* sums of the chunks of a softmax */
    unsigned count;
    threshold_hit found;
    uint32_t marks[MARKS];
};

/*
 * Returns the key up to which the weights of the row sum to `limit` or more, which they must do. It
 * is found digit by digit, the highest first.
 */
template <typename F>
__device__ __forceinline__ uint64_t last_by_digits(last_token_shared &shared, const filter_rows &f,
                                                   int64_t row, const banned_token_filter &hidden,
                                                   uint64_t limit, F weight)
{
    uint64_t prefix = 0;

    for (int shift = 64 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        __syncthreads(); // the sums of the previous digit are not needed any more
        shared.digits.clear();
        __syncthreads();
        for_row(f, row, hidden, [&](float z, uint64_t key) {
            if (key >> shift >> DIGIT_BITS == prefix)
                shared.digits.add((int)(key >> shift) & (DIGITS - 1), weight(z));
        });
        __syncthreads();
        threshold_hit found = find_sum<LAST_THREADS, 1>(&shared.found, limit, [&](int i) {
            return i < DIGITS ? shared.digits.get(i) : UINT64_C(0);
        });
        prefix = prefix << DIGIT_BITS | (uint64_t)found.index;
        limit = found.rest;
    }
    return prefix;
}

/* Sorts `count` values, a power of two, by all threads. */
template <typename Integer> __device__ __forceinline__ void sort_few(Integer *values, int count)
{
    for (int run = 2; run <= count; run *= 2)
        for (int apart = run / 2; apart > 0; apart /= 2) {
            for (int i = (int)threadIdx.x; i < count / 2; i += LAST_THREADS) {
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

/* Sorts `count` keys; INVAR_ORDER_LAST follows them, up to LISTED. */
__device__ __forceinline__ void sort_keys(last_token_shared &shared, int count)
{
    int padded = 2;

    for (int i = count + (int)threadIdx.x; i < LISTED; i += LAST_THREADS)
        shared.keys[i] = INVAR_ORDER_LAST;
    __syncthreads();
    while (padded < count)
        padded *= 2;
    sort_few(shared.keys, padded);
}

/* ---- top-k ----------------------------------------------------------------------------------- */

#define FEW_MOST 512 // largest k for which tokens are collected

static_assert(FEW_MOST < LAST_THREADS, "that many threads have tokens");

/*
 * Collects the tokens that rank at most as the k-th of the threads' best ones in `keys`. Returns
 * their number.
 */
__device__ __forceinline__ unsigned collect_few(last_token_shared &shared, const filter_rows &f,
                                                int64_t row, const banned_token_filter &hidden)
{
    uint32_t best = UINT32_MAX;

    for_row(f, row, hidden, [&](float, uint64_t key) { best = min(best, (uint32_t)(key >> 32)); });
    shared.ranks[threadIdx.x] = best;
    if (threadIdx.x == 0)
        shared.count = 0;
    __syncthreads();
    sort_few(shared.ranks, LAST_THREADS);
    uint32_t most = shared.ranks[f.top_k - 1];
    for_row(f, row, hidden, [&](float, uint64_t key) {
        if (key >> 32 > most)
            return;
        unsigned at = atomicAdd(&shared.count, 1u);
        if (at < LISTED)
            shared.keys[at] = key;
    });
    __syncthreads();
    return shared.count;
}

#define CHUNK 256
#define LANES (CHUNK / 32)

/*
 * Computes l_c * exp(m_c - M) of a key's chunk, from `count` sorted keys, if the key is the chunk's
 * first.
 */
__device__ __forceinline__ void sum_few(last_token_shared &shared, int first, int count)
{
    uint32_t chunk = invar_order_id(shared.keys[first]) / CHUNK;
    float largest = invar_order_value(shared.keys[first]), lane[LANES] = {};

    for (int base = 0; base < count; base += 32) {
        uint64_t own = shared.keys[base + warp_thread()]; // keys after the last one exist
        bool here = base + warp_thread() < count && invar_order_id(own) / CHUNK == chunk;
        unsigned same = __ballot_sync(0xFFFFFFFFu, here);
        if (base <= first && same != 0 && base + __ffs(same) - 1 < first)
            return;
        for (; same != 0; same &= same - 1) {
            uint64_t key = __shfl_sync(0xFFFFFFFFu, own, __ffs(same) - 1);
            float e = invar_exp_nonpositive(invar_order_value(key) - largest);
#pragma unroll
            for (int k = 0; k < LANES; k++)
                if ((int)(invar_order_id(key) % CHUNK) == warp_thread() + 32 * k)
                    lane[k] = e;
        }
    }
    float sum = invar_fold_warp(lane), most = invar_order_value(shared.keys[0]);
    if (warp_thread() == 0)
        shared.sums[chunk] = sum * invar_exp_nonpositive(largest - most);
}

/* Returns the last of `count` sorted keys that top-p keeps. */
__device__ __forceinline__ uint64_t last_of_few(last_token_shared &shared, const filter_rows &f,
                                                int count)
{
    for (int64_t c = threadIdx.x; c < f.chunks; c += LAST_THREADS)
        shared.sums[c] = 0.0f;
    __syncthreads();
    for (int i = (int)threadIdx.x / 32; i < count; i += LAST_THREADS / 32)
        sum_few(shared, i, count);
    __syncthreads();
    softmax s = {invar_order_value(shared.keys[0]),
                 invar_reduce_warp(f.chunks, [&](int64_t c) { return shared.sums[c]; })};
    threshold_hit token = find_sum<LAST_THREADS, 1>(&shared.found, f.limit, [&](int i) {
        return i < count ? s.weight(invar_order_value(shared.keys[i])) : UINT64_C(0);
    });
    return shared.keys[token.index >= 0 ? token.index : count - 1];
}

/* Finds the last token that top-k keeps of each row, with a block of threads for a row. */
static __global__ void __launch_bounds__(LAST_THREADS, 1) find_top_k(filter_rows f)
{
    extern __shared__ __align__(16) char memory[];
    last_token_shared &shared = *(last_token_shared *)memory;
    int64_t row = blockIdx.x;
    banned_token_filter hidden = {f.rows.hidden, shared.marks, false};
    unsigned count = LISTED + 1;
    bool top_p = f.done && f.chunks <= INVAR_REDUCE_CHUNK;
    uint64_t last;

    invar_grid_begin();
    hidden.open(row);
    if (f.top_k <= FEW_MOST)
        count = collect_few(shared, f, row, hidden);
    if (count <= LISTED) {
        sort_keys(shared, (int)count);
        last = top_p ? last_of_few(shared, f, f.top_k) : shared.keys[f.top_k - 1];
    } else {
        top_p = false;
        last = last_by_digits(shared, f, row, hidden, (uint64_t)f.top_k,
                              [](float) { return UINT64_C(1); });
    }
    if (threadIdx.x == 0)
        f.last[row] = last;
    if (threadIdx.x == 0 && f.done)
        f.done[row] = top_p;
}

/* ---- top-p ----------------------------------------------------------------------------------- */

/* Computes the chunks of the softmax, with a warp for a chunk; the row is blockIdx.y. */
static __global__ void __launch_bounds__(FILTER_THREADS) sum_left(filter_rows f)
{
    __shared__ uint32_t marks[MARKS];
    int64_t row = blockIdx.y, cols = f.rows.logits.cols;
    int64_t warp = (int64_t)blockIdx.x * (FILTER_THREADS / 32) + threadIdx.x / 32;
    banned_token_filter hidden = {f.rows.hidden, marks, false};

    invar_grid_begin();
    if (f.is_done(row))
        return;
    hidden.open(row);
    uint64_t before = f.last_before(row);
    const float *logits = f.rows.logits.row(row);
    // clear the memory that the other kernels add to
    for (int64_t i = (int64_t)blockIdx.x * FILTER_THREADS + threadIdx.x; i < BINS;
         i += (int64_t)gridDim.x * FILTER_THREADS)
        f.bins[row * BINS + i] = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        f.listed[row] = 0;
    for (int64_t c = warp; c < f.chunks; c += (int64_t)gridDim.x * (FILTER_THREADS / 32)) {
        int64_t first = c * CHUNK + warp_thread();
        float z[LANES], largest = -INFINITY;
#pragma unroll
        for (int k = 0; k < LANES; k++)
            z[k] = first + 32 * k < cols ? logits[first + 32 * k] : -INFINITY;
#pragma unroll
        for (int k = 0; k < LANES; k++) {
            uint32_t id = (uint32_t)(first + 32 * k);
            if (hidden.may_hide(id / 4) && hidden.hides(id))
                z[k] = INVAR_SAMPLE_HIDDEN;
            z[k] = z[k] * f.rows.inverse;
            if (first + 32 * k >= cols || invar_order_key(z[k], id) > before)
                z[k] = -INFINITY;
            largest = invar_max_nan(largest, z[k]);
        }
        largest = invar_largest_of_warp(largest);
#pragma unroll
        for (int k = 0; k < LANES; k++)
            z[k] = largest == -INFINITY ? 0.0f : invar_exp_nonpositive(z[k] - largest);
        float sum = invar_fold_warp(z);
        if (warp_thread() == 0) {
            f.largest[row * f.chunks + c] = largest;
            f.sums[row * f.chunks + c] = sum;
        }
    }
}

/* Returns M and L of a row from its chunks. */
__device__ __forceinline__ softmax join_chunks(const filter_rows &f, int64_t row)
{
    __shared__ float shared[FILTER_THREADS / 32];
    const float *largest = f.largest + row * f.chunks, *sums = f.sums + row * f.chunks;
    float most = -INFINITY;

    for (int64_t c = threadIdx.x; c < f.chunks; c += FILTER_THREADS)
        most = invar_max_nan(most, largest[c]);
    most = invar_largest_of_block<FILTER_THREADS>(most, shared);
    return {most, invar_reduce_block(f.chunks, shared, [&](int64_t c) {
                return sums[c] * invar_exp_nonpositive(largest[c] - most);
            })};
}

/* Adds up the weights of the bins. */
static __global__ void __launch_bounds__(FILTER_THREADS, 4) weigh_bins(filter_rows f)
{
    __shared__ weight_sums<BINS> bins;
    __shared__ uint32_t marks[MARKS];
    int64_t row = blockIdx.y;
    banned_token_filter hidden = {f.rows.hidden, marks, false};

    invar_grid_begin();
    if (f.is_done(row))
        return;
    hidden.open(row);
    bins.clear();
    softmax s = join_chunks(f, row);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        f.found[row] = s;
    __syncthreads();
    for_piece(f, hidden, [&](float z, uint64_t) { bins.add(s.bin(z), s.weight(z)); });
    __syncthreads();
    for (int i = (int)threadIdx.x; i < BINS; i += FILTER_THREADS)
        if (uint64_t sum = bins.get(i))
            atomicAdd(&f.bins[row * BINS + i], (unsigned long long)sum);
}

template <int Threads>
__device__ __forceinline__ threshold_hit find_bin(threshold_hit *found, const filter_rows &f,
                                                  int64_t row)
{
    const unsigned long long *bins = f.bins + row * BINS;

    return find_sum<Threads, BINS / Threads>(found, f.limit,
                                             [&](int i) { return (uint64_t)bins[i]; });
}

/* Lists the tokens of the bin in which the limit is reached. */
static __global__ void __launch_bounds__(FILTER_THREADS, 4) list_bin(filter_rows f)
{
    __shared__ threshold_hit found;
    __shared__ uint32_t marks[MARKS];
    int64_t row = blockIdx.y;
    banned_token_filter hidden = {f.rows.hidden, marks, false};

    invar_grid_begin();
    if (f.is_done(row))
        return;
    hidden.open(row);
    int bin = find_bin<FILTER_THREADS>(&found, f, row).index;
    softmax s = f.found[row];
    for_piece(f, hidden, [&](float z, uint64_t key) {
        if (s.bin(z) != bin)
            return;
        unsigned at = atomicAdd(&f.listed[row], 1u);
        if (at < LISTED)
            f.list[row * LISTED + at] = key;
    });
}

/* Finds the last token that top-p keeps of each row, with a block of threads for a row. */
static __global__ void __launch_bounds__(LAST_THREADS, 1) find_top_p(filter_rows f)
{
    extern __shared__ __align__(16) char memory[];
    last_token_shared &shared = *(last_token_shared *)memory;
    int64_t row = blockIdx.x;
    banned_token_filter hidden = {f.rows.hidden, shared.marks, false};

    invar_grid_begin();
    if (f.is_done(row))
        return;
    hidden.open(row);
    threshold_hit bin = find_bin<LAST_THREADS>(&shared.found, f, row);
    softmax s = f.found[row];
    unsigned count = f.listed[row];
    uint64_t last = f.last_before(row); // all stay if the limit is not reached
    if (bin.index >= 0 && count <= LISTED) {
        for (int i = (int)threadIdx.x; i < (int)count; i += LAST_THREADS)
            shared.keys[i] = f.list[row * LISTED + i];
        sort_keys(shared, (int)count);
        threshold_hit token =
            find_sum<LAST_THREADS, LISTED / LAST_THREADS>(&shared.found, bin.rest, [&](int i) {
                return i < (int)count ? s.weight(invar_order_value(shared.keys[i])) : UINT64_C(0);
            });
        last = shared.keys[token.index];
    } else if (bin.index >= 0) {
        last = last_by_digits(shared, f, row, hidden, bin.rest, [&](float z) {
            return s.bin(z) == bin.index ? s.weight(z) : UINT64_C(0);
        });
    }
    if (threadIdx.x == 0)
        f.last[row] = last;
}

/* ---- launches -------------------------------------------------------------------------------- */

#define FILTER_ROWS 512 // rows whose bins and lists are in memory at once

static bool has_top_k(const invar_sample_args *a)
{
    return a->temperature > 0.0f && a->top_k > 0 && a->top_k < a->logits.shape[1];
}

static bool has_top_p(const invar_sample_args *a)
{
    return a->temperature > 0.0f && a->top_p < 1.0f;
}

static int64_t chunks_of(const invar_sample_args *a)
{
    return invar_ceil_div(a->logits.shape[1], CHUNK);
}

/*
 * Returns the bytes that top-p needs: keys, bins, M and L, the chunks, and the number of listed
 * tokens of each row.
 */
static size_t filter_bytes(const invar_sample_args *a)
{
    int64_t rows = a->logits.shape[0] < FILTER_ROWS ? a->logits.shape[0] : FILTER_ROWS;
    size_t row = LISTED * sizeof(uint64_t) + BINS * sizeof(uint64_t) + sizeof(softmax) +
                 2 * (size_t)chunks_of(a) * sizeof(float) + sizeof(unsigned);

    return has_top_p(a) ? (size_t)rows * row : 0;
}

/* Returns `count` rows from `first` on. */
static logit_rows rows_from(const logit_rows *all, int64_t first, int64_t count)
{
    logit_rows rows = *all;

    rows.logits.data += first * rows.logits.stride;
    rows.logits.rows = count;
    rows.hidden.rows = rows.hidden.rows ? rows.hidden.rows + first : nullptr;
    return rows;
}

/* Launches top-k. `done` has a number for each row; with it, top-p may be done as well. */
static invar_status launch_top_k(const invar_device *dev, const invar_sample_args *a,
                                 const logit_rows *rows, uint64_t *last, unsigned *done)
{
    filter_rows f = {};

    f.rows = *rows;
    f.last = last;
    f.done = has_top_p(a) ? done : nullptr;
    f.top_k = a->top_k;
    f.limit = fixed_point(a->top_p);
    f.chunks = chunks_of(a);
    return invar_launch_early(dev, INVAR_OP_SAMPLE, find_top_k, dim3((unsigned)rows->logits.rows),
                              dim3(LAST_THREADS), sizeof(last_token_shared))(f);
}

/* Launches top-p, of the tokens that `last` keeps if top-k has run. */
static invar_status launch_top_p(const invar_device *dev, const invar_sample_args *a,
                                 const logit_rows *rows, uint64_t *last, unsigned *done,
                                 void *scratch)
{
    invar_op op = INVAR_OP_SAMPLE;
    int64_t all = rows->logits.rows;

    for (int64_t first = 0; first < all; first += FILTER_ROWS) {
        int64_t count = all - first < FILTER_ROWS ? all - first : FILTER_ROWS;
        filter_rows f = {};

        f.rows = rows_from(rows, first, count);
        f.last = last + first;
        f.before = has_top_k(a) ? f.last : nullptr;
        f.done = has_top_k(a) ? done + first : nullptr;
        f.limit = fixed_point(a->top_p);
        f.chunks = chunks_of(a);
        f.pieces = pieces_of(dev, count, a->logits.shape[1], FILTER_THREADS);
        f.list = (uint64_t *)scratch;
        f.bins = (unsigned long long *)(f.list + count * LISTED);
        f.found = (softmax *)(f.bins + count * BINS);
        f.largest = (float *)(f.found + count);
        f.sums = f.largest + count * f.chunks;
        f.listed = (unsigned *)(f.sums + count * f.chunks);
        dim3 pieces((unsigned)f.pieces.count, (unsigned)count), threads(FILTER_THREADS);
        INVAR_TRY(invar_launch_early(dev, op, sum_left, pieces, threads, 0)(f));
        INVAR_TRY(invar_launch_early(dev, op, weigh_bins, pieces, threads, 0)(f));
        INVAR_TRY(invar_launch_early(dev, op, list_bin, pieces, threads, 0)(f));
        INVAR_TRY(invar_launch_early(dev, op, find_top_p, dim3((unsigned)count), dim3(LAST_THREADS),
                                     sizeof(last_token_shared))(f));
    }
    return INVAR_OK;
}

#endif
