/*
 * logprob.cu - log-probability of a token, entropy of its distribution, and their backward.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 9: z = logit * (1/T); the vocabulary in
 * chunks of 256, each with its own maximum and REDUCE; the chunks joined by REDUCE under the
 * maximum M of all. The backward computes each probability again from M and log L; one rounding
 * into storage at the end. A token's results depend on its own row alone.
 *
 * Forward: a block of threads takes a row, each of its warps two chunks at a time; logits are read
 * once. If there are few rows, several blocks share a row, and another kernel joins their chunks.
 * If the vocabulary is divided (logprob.sum, logprob.join), each rank computes sums of its own
 * chunks, and all are joined.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/vector.cuh"
#include "kernels-deterministic/math/restricted_domain.h"

#define CHUNK 256
#define LANES (CHUNK / 32) // values of a thread, in the order of invar_fold_warp
#define THREADS 256
#define BLOCKS 4 // blocks of the forward on a multiprocessor
#define PAIR 2   // chunks that a warp takes at once

/* ---- forward --------------------------------------------------------------------------------- */

/* Sums of a vocabulary chunk, under its own maximum. */
struct chunk_sum {
    float largest;  /* m_c */
    float total;    /* l_c: sum of exp(z - m_c) */
    float weighted; /* a_c: sum of exp(z - m_c) * (z - m_c) */
};

/* Destinations of the results of tokens. */
struct results {
    float *logp, *entropy /* NULL if not wanted */, *max, *logsum;
};

struct logprob_row {
    results out;
    invar_view<float> logits;
    const int32_t *targets;
    float inverse;   /* inverse of the temperature */
    chunk_sum *sums; /* (blocks or rows, chunks); NULL if the sums are in shared memory */
    int64_t chunks;
    invar_cuda_fault *fault;
};

/* Loads `count` values of a chunk by one warp; 256 if Full. */
template <bool Full>
__device__ __forceinline__ void load_chunk(float x[LANES], const float *chunk, int count)
{
    int thread = (int)(threadIdx.x & 31u);
    const float *own = chunk + thread;

#pragma unroll
    for (int k = 0; k < LANES; k++)
        x[k] = Full || thread + 32 * k < count ? own[32 * k] : 0.0f;
}

/* Subtracts the maximum of a chunk from its values, and returns the maximum. */
template <bool Unit, bool Full>
__device__ __forceinline__ float lower_chunk(float x[LANES], int count, float inverse)
{
    int thread = (int)(threadIdx.x & 31u);
    float largest = -INFINITY;

#pragma unroll
    for (int k = 0; k < LANES; k++) {
        x[k] = Unit ? x[k] : x[k] * inverse;
        if (Full && k == 0)
            largest = x[0];
        else if (Full || thread + 32 * k < count)
            largest = invar_max_nan(largest, x[k]);
    }
    largest = invar_largest_of_warp(largest);
#pragma unroll
    for (int k = 0; k < LANES; k++)
        x[k] = x[k] - largest;
    return largest;
}

/* Returns whether invar_exp_nonpositive_normal suffices for all x, none of which is above 0. */
template <int Count> __device__ __forceinline__ bool all_near(const float *x)
{
    uint32_t bits = 0;

#pragma unroll
    for (int k = 0; k < Count; k += 2)
        bits = __vimax3_u32(bits, __float_as_uint(x[k]), __float_as_uint(x[k + 1]));
    return bits <= INVAR_EXP_NEAR_BITS;
}

/*
 * Sums one or two chunks by one warp, in the order of invar_fold_warp. Of two chunks, each half of
 * the threads gets the sum of one.
 */
template <int Chunks> __device__ __forceinline__ float fold_chunks(float lane[Chunks * LANES])
{
    bool upper = (threadIdx.x & 16) != 0;

#pragma unroll
    for (int half = LANES / 2; half > 0; half /= 2)
#pragma unroll
        for (int j = 0; j < half; j++)
#pragma unroll
            for (int c = 0; c < Chunks; c++)
                lane[c * LANES + j] = lane[c * LANES + j] + lane[c * LANES + j + half];
    float first = lane[0], last = lane[(Chunks - 1) * LANES];
    float sent = upper ? first : last, sum = upper ? last : first;
    sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sent, 16);
#pragma unroll
    for (int half = 8; half > 0; half /= 2)
        sum = sum + __shfl_xor_sync(0xFFFFFFFFu, sum, half);
    return sum;
}

/*
 * Computes the sums of one or two neighboring chunks by one warp. The last one has `count` values,
 * CHUNK if Full.
 */
template <bool Entropy, bool Unit, int Chunks, bool Full>
__device__ __forceinline__ void sum_chunk(chunk_sum *sums, float x[Chunks * LANES], int count,
                                          float inverse)
{
    int thread = (int)(threadIdx.x & 31u);
    bool last = Chunks > 1 && thread >= 16;
    float largest[Chunks], e[Chunks * LANES];

#pragma unroll
    for (int c = 0; c < Chunks; c++)
        largest[c] = lower_chunk<Unit, Full>(x + c * LANES, count, inverse);
    if (__all_sync(0xFFFFFFFFu, Full && all_near<Chunks * LANES>(x))) {
#pragma unroll
        for (int k = 0; k < Chunks * LANES; k++)
            e[k] = invar_exp_nonpositive_normal(x[k]);
    } else {
#pragma unroll
        for (int k = 0; k < Chunks * LANES; k++) {
            bool there = Full || thread + 32 * k < count;
            e[k] = there ? invar_exp_nonpositive(x[k]) : 0.0f;
            x[k] = there ? x[k] : 0.0f;
        }
    }
    if (Entropy)
#pragma unroll
        for (int k = 0; k < Chunks * LANES; k++)
            x[k] = e[k] * x[k];
    float total = fold_chunks<Chunks>(e), weighted = Entropy ? fold_chunks<Chunks>(x) : 0.0f;
    if (thread % (32 / Chunks) == 0) {
        chunk_sum *own = sums + last;
        own->largest = last ? largest[Chunks - 1] : largest[0];
        own->total = total;
        if (Entropy)
            own->weighted = weighted;
    }
}

/* Joins the sums of all chunks under the maximum of all. target() returns the target's z. */
template <bool Entropy, typename Target>
__device__ __forceinline__ void join_chunks(const results &out, int64_t token, chunk_sum *sums,
                                            int64_t chunks, Target target)
{
    __shared__ float shared[THREADS / 32];
    float largest = -INFINITY;

    for (int64_t c = threadIdx.x; c < chunks; c += THREADS)
        largest = invar_max_nan(largest, sums[c].largest);
    largest = invar_largest_of_block<THREADS>(largest, shared);
    for (int64_t c = threadIdx.x; c < chunks; c += THREADS) {
        float below = sums[c].largest - largest, factor = invar_exp_nonpositive(below);
        if (Entropy)
            sums[c].weighted = invar_fmaf(sums[c].total, below, sums[c].weighted) * factor;
        sums[c].total = sums[c].total * factor;
    }
    __syncthreads();
    float total = invar_reduce_block(chunks, shared, [&](int64_t c) { return sums[c].total; });
    float weighted = 0.0f;
    if (Entropy)
        weighted = invar_reduce_block(chunks, shared, [&](int64_t c) { return sums[c].weighted; });
    if (threadIdx.x != 0)
        return;
    float logsum = invar_log(total);
    out.max[token] = largest;
    out.logsum[token] = logsum;
    out.logp[token] = (target() - largest) - logsum;
    if (Entropy)
        out.entropy[token] = logsum - weighted / total;
}

/* Joins the chunks of a row whose logits are available. */
template <bool Entropy>
__device__ __forceinline__ void join_row(const logprob_row &row, chunk_sum *sums, int64_t token)
{
    join_chunks<Entropy>(row.out, token, sums, row.chunks, [&] {
        int64_t target =
            invar_guard(row.fault, INVAR_OP_LOGPROB_FWD, row.targets[token], row.logits.cols);
        return row.logits.row(token)[target] * row.inverse;
    });
}

/*
 * Computes the chunks of a row, of which `warps` warps take pairs in turn; the last chunk may be
 * shorter.
 */
template <bool Entropy, bool Unit>
__device__ __forceinline__ void sum_chunks(chunk_sum *sums, const float *logits, int64_t vocabulary,
                                           float inverse, int64_t warp, int64_t warps)
{
    constexpr int width = PAIR * CHUNK;
    int64_t full = vocabulary / CHUNK, pairs = full / PAIR, step = warps * width;
    int own = warp < pairs ? (int)invar_ceil_div(pairs - warp, warps) : 0;
    const float *from = logits + warp * width;
    chunk_sum *to = sums + warp * PAIR;
    float x[PAIR * LANES], next[PAIR * LANES];
    auto load = [&](float x[PAIR * LANES], const float *pair) {
#pragma unroll
        for (int c = 0; c < PAIR; c++)
            load_chunk<true>(x + c * LANES, pair + c * CHUNK, CHUNK);
    };

    if (own > 0)
        load(next, from);
#pragma unroll 2
    for (int i = 0; i < own; i++, to += warps * PAIR) {
#pragma unroll
        for (int k = 0; k < PAIR * LANES; k++)
            x[k] = next[k];
        from += i + 1 < own ? step : 0;
        load(next, from);
        sum_chunk<Entropy, Unit, PAIR, true>(to, x, CHUNK, inverse);
    }
    if (warp != pairs % warps)
        return;
    for (int64_t c = pairs * PAIR; c < full; c++) {
        load_chunk<true>(x, logits + c * CHUNK, CHUNK);
        sum_chunk<Entropy, Unit, 1, true>(sums + c, x, CHUNK, inverse);
    }
    if (full * CHUNK < vocabulary) {
        int count = (int)(vocabulary - full * CHUNK);
        load_chunk<false>(x, logits + full * CHUNK, count);
        sum_chunk<Entropy, Unit, 1, false>(sums + full, x, count, inverse);
    }
}

template <bool Entropy, bool Unit>
static __global__ void __launch_bounds__(THREADS, Entropy ? 3 : BLOCKS)
    forward_rows(logprob_row row)
{
    extern __shared__ chunk_sum shared_sums[];
    chunk_sum *sums = row.sums ? row.sums + (int64_t)blockIdx.x * row.chunks : shared_sums;

    invar_grid_begin();
    for (int64_t token = blockIdx.x; token < row.logits.rows; token += gridDim.x) {
        sum_chunks<Entropy, Unit>(sums, row.logits.row(token), row.logits.cols, row.inverse,
                                  threadIdx.x / 32, THREADS / 32);
        __syncthreads();
        join_row<Entropy>(row, sums, token);
        __syncthreads(); // the next row overwrites the sums
    }
}

/* Computes the chunks of row blockIdx.y, of which gridDim.x blocks have a share each. */
template <bool Entropy, bool Unit>
static __global__ void __launch_bounds__(THREADS, Entropy ? 3 : BLOCKS) sum_pieces(logprob_row row)
{
    int64_t token = blockIdx.y;

    invar_grid_begin();
    sum_chunks<Entropy, Unit>(row.sums + token * row.chunks, row.logits.row(token), row.logits.cols,
                              row.inverse, blockIdx.x * (THREADS / 32) + threadIdx.x / 32,
                              gridDim.x * (THREADS / 32));
}

template <bool Entropy>
static __global__ void __launch_bounds__(THREADS) join_pieces(logprob_row row)
{
    int64_t token = blockIdx.x;

    invar_grid_begin();
    join_row<Entropy>(row, row.sums + token * row.chunks, token);
}

static int64_t chunks_of(int64_t vocabulary)
{
    return invar_ceil_div(vocabulary, CHUNK);
}

static size_t sums_bytes(int64_t vocabulary)
{
    return (size_t)chunks_of(vocabulary) * sizeof(chunk_sum);
}

static bool sums_fit(int64_t vocabulary)
{
    return sums_bytes(vocabulary) <= 40 * 1024;
}

static int64_t blocks_most(const invar_device *dev)
{
    return (int64_t)invar_cuda_of(dev)->multiprocessors * BLOCKS;
}

/* Returns the number of blocks of threads that take rows in turn. */
static int64_t blocks_of(const invar_device *dev, int64_t rows)
{
    int64_t most = blocks_most(dev);

    return rows < most ? rows : most;
}

/* Returns the blocks of threads for each row, if there are too few rows for one block each. */
static int64_t pieces_of(const invar_device *dev, const invar_tensor *logits)
{
    int64_t pieces = blocks_most(dev) / (logits->shape[0] > 0 ? logits->shape[0] : 1);
    int64_t most = invar_ceil_div(chunks_of(logits->shape[1]), PAIR * (THREADS / 32));

    return pieces < most ? pieces : most;
}

template <typename Args> static results results_in(const Args *a)
{
    return {(float *)a->logp.data,
            invar_tensor_present(&a->entropy) ? (float *)a->entropy.data : nullptr,
            (float *)a->max.data, (float *)a->logsum.data};
}

size_t invar_cuda_logprob_fwd_workspace(const invar_device *dev, const invar_logprob_fwd_args *a)
{
    int64_t vocabulary = a->logits.shape[1];

    if (pieces_of(dev, &a->logits) <= 1 && sums_fit(vocabulary))
        return 0;
    return sums_bytes(vocabulary) * (size_t)blocks_of(dev, a->logits.shape[0]);
}

invar_status invar_cuda_logprob_fwd(const invar_device *dev, const invar_logprob_fwd_args *a,
                                    void *workspace)
{
    invar_op op = INVAR_OP_LOGPROB_FWD;
    int64_t rows = a->logits.shape[0], vocabulary = a->logits.shape[1];
    int64_t pieces = pieces_of(dev, &a->logits);
    bool entropy = invar_tensor_present(&a->entropy);
    bool shared = pieces <= 1 && sums_fit(vocabulary);
    logprob_row row = {results_in(a),
                       invar_view_of<float>(&a->logits),
                       (const int32_t *)a->targets.data,
                       1.0f / a->temperature,
                       shared ? nullptr : (chunk_sum *)workspace,
                       chunks_of(vocabulary),
                       invar_cuda_of(dev)->fault};

    return invar_by_flag(entropy, [&](auto flag) {
        return invar_by_flag(row.inverse == 1.0f, [&](auto unit) {
            if (pieces <= 1)
                return invar_launch_early(dev, op, forward_rows<flag.value, unit.value>,
                                          dim3((unsigned)blocks_of(dev, rows)), dim3(THREADS),
                                          shared ? sums_bytes(vocabulary) : 0)(row);
            INVAR_TRY(invar_launch_early(dev, op, sum_pieces<flag.value, unit.value>,
                                         dim3((unsigned)pieces, (unsigned)rows), dim3(THREADS),
                                         0)(row));
            return invar_launch_early(dev, op, join_pieces<flag.value>, dim3((unsigned)rows),
                                      dim3(THREADS), 0)(row);
        });
    });
}

/* ---- forward, by parts of the vocabulary ----------------------------------------------------- */

struct part_rows {
    invar_view<float> sums, logits;
    const int32_t *targets;
    float inverse;
    invar_cuda_fault *fault;
};

/*
 * Computes the chunks of this rank's part of the vocabulary, for row blockIdx.y; gridDim.x blocks
 * have a share each.
 */
template <bool Unit> static __global__ void __launch_bounds__(THREADS, 3) sum_part(part_rows part)
{
    int64_t vocabulary = part.logits.cols, last = part.sums.cols - 1;

    invar_grid_begin();
    for (int64_t token = blockIdx.y; token < part.logits.rows; token += gridDim.y) {
        const float *logits = part.logits.row(token);
        float *sums = part.sums.row(token);
        sum_chunks<true, Unit>((chunk_sum *)sums, logits, vocabulary, part.inverse,
                               blockIdx.x * (THREADS / 32) + threadIdx.x / 32,
                               gridDim.x * (THREADS / 32));
        if (blockIdx.x != 0)
            continue;
        for (int64_t i = 3 * invar_ceil_div(vocabulary, CHUNK) + threadIdx.x; i < last;
             i += THREADS)
            sums[i] = 0.0f;
        if (threadIdx.x == 0) {
            int64_t target =
                invar_guard(part.fault, INVAR_OP_LOGPROB_SUM, part.targets[token], vocabulary + 1);
            sums[last] = target < vocabulary ? logits[target] : 0.0f;
        }
    }
}

INVAR_NO_WORKSPACE(cuda, logprob_sum)

invar_status invar_cuda_logprob_sum(const invar_device *dev, const invar_logprob_sum_args *a,
                                    void *workspace)
{
    int64_t pieces = pieces_of(dev, &a->logits);
    dim3 grid((unsigned)(pieces > 1 ? pieces : 1), invar_grid_rows(a->logits.shape[0]));
    part_rows part = {invar_view_of<float>(&a->sums), invar_view_of<float>(&a->logits),
                      (const int32_t *)a->targets.data, 1.0f / a->temperature,
                      invar_cuda_of(dev)->fault};

    (void)workspace;
    return invar_by_flag(part.inverse == 1.0f, [&](auto unit) {
        return invar_launch_early(dev, INVAR_OP_LOGPROB_SUM, sum_part<unit.value>, grid,
                                  dim3(THREADS), 0)(part);
    });
}

struct parts_rows {
    results out;
    invar_view<float> sums;
    const int32_t *targets;
    int64_t rows, vocabulary, chunks;
    int32_t parts;
    float inverse;
    chunk_sum *joined; /* (blocks, chunks); NULL if the sums are in shared memory */
    invar_cuda_fault *fault;
};

/*
 * Returns a token's sums in the part of the vocabulary that has the chunk; *first_out = that part's
 * first chunk.
 */
__device__ __forceinline__ const float *sums_with(const parts_rows &p, int64_t token, int64_t chunk,
                                                  int64_t *first_out)
{
    int64_t part = chunk * p.parts / p.chunks; // the formula of invar_shard_start

    *first_out = invar_ceil_div(part * p.chunks, (int64_t)p.parts);
    return p.sums.row(part * p.rows + token);
}

template <bool Entropy> static __global__ void __launch_bounds__(THREADS) join_parts(parts_rows p)
{
    extern __shared__ chunk_sum shared_sums[];
    chunk_sum *joined = p.joined ? p.joined + (int64_t)blockIdx.x * p.chunks : shared_sums;
    int64_t first;

    invar_grid_begin();
    for (int64_t token = blockIdx.x; token < p.rows; token += gridDim.x) {
        for (int64_t c = threadIdx.x; c < p.chunks; c += THREADS) {
            const float *sums = sums_with(p, token, c, &first);
            joined[c] = ((const chunk_sum *)sums)[c - first];
        }
        __syncthreads();
        join_chunks<Entropy>(p.out, token, joined, p.chunks, [&] {
            int64_t target =
                invar_guard(p.fault, INVAR_OP_LOGPROB_JOIN, p.targets[token], p.vocabulary);
            return sums_with(p, token, target / CHUNK, &first)[p.sums.cols - 1] * p.inverse;
        });
        __syncthreads(); // the next row overwrites the sums
    }
}

size_t invar_cuda_logprob_join_workspace(const invar_device *dev, const invar_logprob_join_args *a)
{
    if (sums_fit(a->vocabulary))
        return 0;
    return sums_bytes(a->vocabulary) * (size_t)blocks_of(dev, a->targets.shape[0]);
}

invar_status invar_cuda_logprob_join(const invar_device *dev, const invar_logprob_join_args *a,
                                     void *workspace)
{
    int64_t rows = a->targets.shape[0];
    bool shared = sums_fit(a->vocabulary);
    parts_rows parts = {results_in(a),
                        invar_view_of<float>(&a->sums),
                        (const int32_t *)a->targets.data,
                        rows,
                        a->vocabulary,
                        chunks_of(a->vocabulary),
                        a->parts,
                        1.0f / a->temperature,
                        shared ? nullptr : (chunk_sum *)workspace,
                        invar_cuda_of(dev)->fault};

    return invar_by_flag(invar_tensor_present(&a->entropy), [&](auto entropy) {
        return invar_launch_early(dev, INVAR_OP_LOGPROB_JOIN, join_parts<entropy.value>,
                                  dim3((unsigned)blocks_of(dev, rows)), dim3(THREADS),
                                  shared ? sums_bytes(a->vocabulary) : 0)(parts);
    });
}

/* ---- backward -------------------------------------------------------------------------------- */

#define RUNS 4 // runs of a thread, all of one row

template <typename T> struct backward_rows {
    invar_view<T> dlogits;
    invar_view<float> logits;
    const float *dlogp, *dentropy, *entropy, *max, *logsum;
    const int32_t *targets;
    float inverse;
    bool aligned;
    invar_cuda_fault *fault;
};

/* Returns x[i] without an address, so that the array stays in registers. */
__device__ __forceinline__ float select_element(const float x[INVAR_RUN], int i)
{
    float y = x[0];

#pragma unroll
    for (int j = 1; j < INVAR_RUN; j++)
        y = j == i ? x[j] : y;
    return y;
}

/* Computes p = exp(logp), which is at most 1 unless max and logsum do not belong to the logits. */
__device__ __forceinline__ void exponentials(float p[INVAR_RUN], const float logp[INVAR_RUN])
{
    // read as signed numbers, the bits of the values from INVAR_EXP_NEAR to -0 are below all others
    int most = __float_as_int(logp[0]);
    bool usual = true;

#pragma unroll
    for (int i = 1; i < INVAR_RUN; i += 2)
        most = __vimax3_s32(most, __float_as_int(logp[i]),
                            __float_as_int(logp[i + 1 < INVAR_RUN ? i + 1 : i]));
    if (most <= (int)INVAR_EXP_NEAR_BITS) {
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            p[i] = invar_exp_nonpositive_normal(logp[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < INVAR_RUN; i++)
        usual = usual && !(logp[i] > 0.0f);
    if (usual) {
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            p[i] = invar_exp_nonpositive(logp[i]);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < INVAR_RUN; i++) {
        float e = invar_exp(select_element(logp, i));
#pragma unroll
        for (int j = 0; j < INVAR_RUN; j++)
            p[j] = j == i ? e : p[j];
    }
}

/* Computes the backward of row blockIdx.y; a thread has runs that are THREADS runs apart. */
template <typename T, bool Entropy, bool Unit>
static __global__ void __launch_bounds__(THREADS, 4) logprob_backward(backward_rows<T> b)
{
    int64_t first = ((int64_t)blockIdx.x * RUNS * THREADS + threadIdx.x) * INVAR_RUN;
    int64_t cols = b.logits.cols;

    invar_grid_begin();
    for (int64_t token = blockIdx.y; token < b.logits.rows; token += gridDim.y) {
        invar_run<float> x[RUNS];
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            int64_t at = first + r * THREADS * INVAR_RUN;
            x[r].load(b.logits.row(token) + at, cols - at, b.aligned);
        }
        int64_t target = invar_guard(b.fault, INVAR_OP_LOGPROB_BWD, b.targets[token], cols);
        float largest = b.max[token], log_total = b.logsum[token], d = b.dlogp[token];
        float h = Entropy ? b.entropy[token] : 0.0f, dh = Entropy ? b.dentropy[token] : 0.0f;
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            int64_t at = first + r * THREADS * INVAR_RUN;
            float logp[INVAR_RUN], p[INVAR_RUN], g[INVAR_RUN];
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++) {
                float z = Unit ? x[r].get(i) : x[r].get(i) * b.inverse;
                logp[i] = (z - largest) - log_total;
            }
            exponentials(p, logp);
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++)
                g[i] = invar_fmaf(-p[i], d, 0.0f);
            if (target >= at && target - at < INVAR_RUN)
#pragma unroll
                for (int i = 0; i < INVAR_RUN; i++)
                    g[i] = i == target - at ? invar_fmaf(-p[i], d, d) : g[i];
            invar_run<T> out;
#pragma unroll
            for (int i = 0; i < INVAR_RUN; i++) {
                if (Entropy)
                    g[i] = invar_fmaf(-dh, p[i] * (logp[i] + h), g[i]);
                g[i] = Unit ? g[i] : g[i] * b.inverse;
            }
            out.set(g);
            out.store(b.dlogits.row(token) + at, cols - at, b.aligned);
        }
    }
}

INVAR_NO_WORKSPACE(cuda, logprob_bwd)

invar_status invar_cuda_logprob_bwd(const invar_device *dev, const invar_logprob_bwd_args *a,
                                    void *workspace)
{
    float inverse = 1.0f / a->temperature;
    dim3 grid((unsigned)invar_ceil_div(a->logits.shape[1], RUNS * THREADS * INVAR_RUN),
              invar_grid_rows(a->logits.shape[0]));

    (void)workspace;
    return invar_by_storage(a->dlogits.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        backward_rows<T> rows = {invar_view_of<T>(&a->dlogits),
                                 invar_view_of<float>(&a->logits),
                                 (const float *)a->dlogp.data,
                                 (const float *)a->dentropy.data,
                                 (const float *)a->entropy.data,
                                 (const float *)a->max.data,
                                 (const float *)a->logsum.data,
                                 (const int32_t *)a->targets.data,
                                 inverse,
                                 invar_aligned({&a->dlogits, &a->logits}),
                                 invar_cuda_of(dev)->fault};
        return invar_by_flag(invar_tensor_present(&a->dentropy), [&](auto entropy) {
            return invar_by_flag(inverse == 1.0f, [&](auto unit) {
                return invar_launch_early(dev, INVAR_OP_LOGPROB_BWD,
                                          logprob_backward<T, entropy.value, unit.value>, grid,
                                          dim3(THREADS), 0)(rows);
            });
        });
    });
}
