/*
 * logprob.cu - log-probability of a token, entropy of its distribution, and their backward.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 9: z = logit * (1/T); the vocabulary in
 * chunks of 256, each with its own maximum and REDUCE; the chunks joined by REDUCE under the
 * maximum M of all. The backward recomputes each probability from M and log L; one rounding into
 * storage at the end. A token's results depend on its own row alone.
 *
 * Forward: a block of threads takes a row, each of its warps a chunk at a time; logits are read
 * once. Of few rows, more blocks take pieces, and another kernel joins their chunks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/vector.cuh"
#include "kernels-deterministic/math/narrow.h"

#define CHUNK 256
#define LANES (CHUNK / 32) // values of a thread, in the order of invar_fold_warp
#define THREADS 256
#define BLOCKS 5 // on a multiprocessor

/* ---- forward --------------------------------------------------------------------------------- */

struct logprob_row {
    float *logp, *entropy /* NULL: not wanted */, *max, *logsum;
    invar_view<float> logits;
    const int32_t *targets;
    float inverse; /* of the temperature */
    float *sums;   /* (blocks or rows, 3, chunks); NULL: in shared memory */
    int64_t chunks;
    invar_cuda_fault *fault;
};

/* What is known of each chunk, under its own maximum. */
struct chunk_sums {
    float *largest;  /* m_c */
    float *total;    /* l_c: sum of exp(z - m_c) */
    float *weighted; /* a_c: sum of exp(z - m_c) * (z - m_c) */
};

/* One warp: `count` values of a chunk, 256 if it is Full. */
template <bool Full>
__device__ __forceinline__ void load_chunk(float x[LANES], const float *chunk, int count)
{
    int thread = (int)threadIdx.x % 32;
    const float *own = chunk + thread;

#pragma unroll
    for (int k = 0; k < LANES; k++)
        x[k] = Full || thread + 32 * k < count ? own[32 * k] : 0.0f;
}

/* The maximum is the same in every order. */
__device__ __forceinline__ float largest_of_warp(float x)
{
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        x = invar_max_nan(x, __shfl_xor_sync(0xFFFFFFFFu, x, half));
    return x;
}

template <bool Entropy, bool Full>
__device__ __forceinline__ void sum_chunk(const chunk_sums &sums, int64_t chunk, float x[LANES],
                                          int count, float inverse)
{
    int thread = (int)threadIdx.x % 32;
    float largest = -INFINITY, e[LANES];

#pragma unroll
    for (int k = 0; k < LANES; k++) {
        x[k] = x[k] * inverse;
        if (Full || thread + 32 * k < count)
            largest = invar_max_nan(largest, x[k]);
    }
    largest = largest_of_warp(largest);
#pragma unroll
    for (int k = 0; k < LANES; k++) {
        bool there = Full || thread + 32 * k < count;
        float d = x[k] - largest;
        e[k] = there ? invar_exp_not_above_0(d) : 0.0f;
        x[k] = there ? e[k] * d : 0.0f;
    }
    float total = invar_fold_warp(e), weighted = Entropy ? invar_fold_warp(x) : 0.0f;
    if (thread == 0) {
        sums.largest[chunk] = largest;
        sums.total[chunk] = total;
        sums.weighted[chunk] = weighted;
    }
}

__device__ __forceinline__ float largest_of_block(float x, float *shared /* (THREADS / 32) */)
{
    x = largest_of_warp(x);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++)
        x = invar_max_nan(x, shared[w]);
    __syncthreads();
    return x;
}

/* The chunks' sums, all of them there, under the maximum of all. */
template <bool Entropy>
__device__ __forceinline__ void join_chunks(const logprob_row &row, const chunk_sums &sums,
                                            int64_t token)
{
    __shared__ float shared[THREADS / 32];
    float largest = -INFINITY;

    for (int64_t c = threadIdx.x; c < row.chunks; c += THREADS)
        largest = invar_max_nan(largest, sums.largest[c]);
    largest = largest_of_block(largest, shared);
    for (int64_t c = threadIdx.x; c < row.chunks; c += THREADS) {
        float below = sums.largest[c] - largest, factor = invar_exp_not_above_0(below);
        if (Entropy)
            sums.weighted[c] = invar_fmaf(sums.total[c], below, sums.weighted[c]) * factor;
        sums.total[c] = sums.total[c] * factor;
    }
    __syncthreads();
    float total = invar_reduce_block(row.chunks, shared, [&](int64_t c) { return sums.total[c]; });
    float weighted = 0.0f;
    if (Entropy)
        weighted =
            invar_reduce_block(row.chunks, shared, [&](int64_t c) { return sums.weighted[c]; });
    if (threadIdx.x != 0)
        return;
    int64_t target =
        invar_guard(row.fault, INVAR_OP_LOGPROB_FWD, row.targets[token], row.logits.cols);
    float logsum = invar_log(total);
    row.max[token] = largest;
    row.logsum[token] = logsum;
    row.logp[token] = (row.logits.row(token)[target] * row.inverse - largest) - logsum;
    if (Entropy)
        row.entropy[token] = logsum - weighted / total;
}

/* The chunks of a row, dealt out to `warps` warps; the last one may be shorter. */
template <bool Entropy>
__device__ __forceinline__ void sum_chunks(const chunk_sums &sums, const float *logits,
                                           int64_t vocabulary, float inverse, int64_t warp,
                                           int64_t warps)
{
    int64_t full = vocabulary / CHUNK, c = warp;
    float x[LANES], next[LANES];

    if (c < full)
        load_chunk<true>(next, logits + c * CHUNK, CHUNK);
    for (; c < full; c += warps) {
        int64_t following = c + warps < full ? c + warps : c;
#pragma unroll
        for (int k = 0; k < LANES; k++)
            x[k] = next[k];
        load_chunk<true>(next, logits + following * CHUNK, CHUNK);
        sum_chunk<Entropy, true>(sums, c, x, CHUNK, inverse);
    }
    if (c == full && full * CHUNK < vocabulary) {
        int count = (int)(vocabulary - full * CHUNK);
        load_chunk<false>(x, logits + full * CHUNK, count);
        sum_chunk<Entropy, false>(sums, full, x, count, inverse);
    }
}

__device__ __forceinline__ chunk_sums sums_at(float *at, int64_t chunks)
{
    return {at, at + chunks, at + 2 * chunks};
}

template <bool Entropy>
static __global__ void __launch_bounds__(THREADS, BLOCKS) forward_rows(logprob_row row)
{
    extern __shared__ float shared_sums[];
    float *block = row.sums ? row.sums + (int64_t)blockIdx.x * 3 * row.chunks : shared_sums;
    chunk_sums sums = sums_at(block, row.chunks);

    invar_grid_begin();
    for (int64_t token = blockIdx.x; token < row.logits.rows; token += gridDim.x) {
        sum_chunks<Entropy>(sums, row.logits.row(token), row.logits.cols, row.inverse,
                            threadIdx.x / 32, THREADS / 32);
        __syncthreads();
        join_chunks<Entropy>(row, sums, token);
        __syncthreads(); // before the next row's sums
    }
}

/* The row is blockIdx.y, of which gridDim.x blocks have the chunks. */
template <bool Entropy>
static __global__ void __launch_bounds__(THREADS, BLOCKS) sum_pieces(logprob_row row)
{
    int64_t token = blockIdx.y;

    invar_grid_begin();
    sum_chunks<Entropy>(sums_at(row.sums + token * 3 * row.chunks, row.chunks),
                        row.logits.row(token), row.logits.cols, row.inverse,
                        blockIdx.x * (THREADS / 32) + threadIdx.x / 32, gridDim.x * (THREADS / 32));
}

template <bool Entropy>
static __global__ void __launch_bounds__(THREADS) join_pieces(logprob_row row)
{
    int64_t token = blockIdx.x;

    invar_grid_begin();
    join_chunks<Entropy>(row, sums_at(row.sums + token * 3 * row.chunks, row.chunks), token);
}

static int64_t chunks_of(const invar_tensor *logits)
{
    return invar_ceil_div(logits->shape[1], CHUNK);
}

static size_t sums_bytes(const invar_tensor *logits)
{
    return 3 * (size_t)chunks_of(logits) * sizeof(float);
}

static bool sums_fit(const invar_tensor *logits)
{
    return sums_bytes(logits) <= 40 * 1024;
}

static int64_t blocks_most(const invar_device *dev)
{
    return (int64_t)invar_cuda_of(dev)->multiprocessors * BLOCKS;
}

/* Blocks of threads for each row, where there are too few rows to have one each. */
static int64_t pieces_of(const invar_device *dev, const invar_tensor *logits)
{
    int64_t pieces = blocks_most(dev) / (logits->shape[0] > 0 ? logits->shape[0] : 1);
    int64_t most = invar_ceil_div(chunks_of(logits), THREADS / 32);

    return pieces < most ? pieces : most;
}

size_t invar_cuda_logprob_fwd_workspace(const invar_device *dev, const invar_logprob_fwd_args *a)
{
    int64_t rows = a->logits.shape[0], most = blocks_most(dev);

    if (pieces_of(dev, &a->logits) <= 1 && sums_fit(&a->logits))
        return 0;
    return sums_bytes(&a->logits) * (size_t)(rows < most ? rows : most);
}

invar_status invar_cuda_logprob_fwd(const invar_device *dev, const invar_logprob_fwd_args *a,
                                    void *workspace)
{
    invar_op op = INVAR_OP_LOGPROB_FWD;
    int64_t rows = a->logits.shape[0], most = blocks_most(dev);
    int64_t pieces = pieces_of(dev, &a->logits);
    bool entropy = invar_tensor_present(&a->entropy);
    bool shared = pieces <= 1 && sums_fit(&a->logits);
    logprob_row row = {(float *)a->logp.data,
                       entropy ? (float *)a->entropy.data : nullptr,
                       (float *)a->max.data,
                       (float *)a->logsum.data,
                       invar_view_of<float>(&a->logits),
                       (const int32_t *)a->targets.data,
                       1.0f / a->temperature,
                       shared ? nullptr : (float *)workspace,
                       chunks_of(&a->logits),
                       invar_cuda_of(dev)->fault};

    return invar_by_flag(entropy, [&](auto flag) {
        if (pieces <= 1)
            return invar_launch_early(dev, op, forward_rows<flag.value>,
                                      dim3((unsigned)(rows < most ? rows : most)), dim3(THREADS),
                                      shared ? sums_bytes(&a->logits) : 0)(row);
        INVAR_TRY(invar_launch_early(dev, op, sum_pieces<flag.value>,
                                     dim3((unsigned)pieces, (unsigned)rows), dim3(THREADS),
                                     0)(row));
        return invar_launch_early(dev, op, join_pieces<flag.value>, dim3((unsigned)rows),
                                  dim3(THREADS), 0)(row);
    });
}

/* ---- backward -------------------------------------------------------------------------------- */

template <typename T, bool Entropy> struct backward_runs {
    static constexpr int width = INVAR_RUN;
    invar_view<T> dlogits;
    invar_view<float> logits;
    const float *dlogp, *dentropy, *entropy, *max, *logsum;
    const int32_t *targets;
    float inverse;
    bool aligned;
    invar_cuda_fault *fault;

    /* p = exp(logp), which is at most 1 unless max and logsum are not those of the logits. */
    __device__ __forceinline__ void exponentials(float p[width], const float logp[width]) const
    {
        bool usual = true;

#pragma unroll
        for (int i = 0; i < width; i++)
            usual = usual && !(logp[i] > 0.0f);
        if (usual) {
#pragma unroll
            for (int i = 0; i < width; i++)
                p[i] = invar_exp_not_above_0(logp[i]);
        } else {
#pragma unroll 1
            for (int i = 0; i < width; i++) {
                float e = invar_exp(pick(logp, i));
#pragma unroll
                for (int j = 0; j < width; j++)
                    p[j] = j == i ? e : p[j];
            }
        }
    }

    /* logp[i] without an address: the array stays in registers. */
    __device__ __forceinline__ float pick(const float logp[width], int i) const
    {
        float x = logp[0];

#pragma unroll
        for (int j = 1; j < width; j++)
            x = j == i ? logp[j] : x;
        return x;
    }

    __device__ __forceinline__ void operator()(int64_t token, int64_t first, int64_t count) const
    {
        invar_run<float> x;
        float logp[width], p[width], g[width];
        int64_t target =
            invar_guard(fault, INVAR_OP_LOGPROB_BWD, targets[token], logits.cols) - first;
        float largest = max[token], log_total = logsum[token], d = dlogp[token];

        x.load(logits.row(token) + first, count, aligned);
#pragma unroll
        for (int i = 0; i < width; i++)
            logp[i] = (x.get(i) * inverse - largest) - log_total;
        exponentials(p, logp);
#pragma unroll
        for (int i = 0; i < width; i++)
            g[i] = invar_fmaf(-p[i], d, i == target ? d : 0.0f);
        if (Entropy) {
            float h = entropy[token], dh = dentropy[token];
#pragma unroll
            for (int i = 0; i < width; i++)
                g[i] = invar_fmaf(-dh, p[i] * (logp[i] + h), g[i]);
        }
        invar_run<T> out;
#pragma unroll
        for (int i = 0; i < width; i++)
            g[i] = g[i] * inverse;
        out.set(g);
        out.store(dlogits.row(token) + first, count, aligned);
    }
};

size_t invar_cuda_logprob_bwd_workspace(const invar_device *dev, const invar_logprob_bwd_args *a)
{
    (void)dev, (void)a;
    return 0;
}

invar_status invar_cuda_logprob_bwd(const invar_device *dev, const invar_logprob_bwd_args *a,
                                    void *workspace)
{
    (void)workspace;
    return invar_by_storage(a->dlogits.dtype, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        return invar_by_flag(invar_tensor_present(&a->dentropy), [&](auto entropy) {
            backward_runs<T, entropy.value> backward = {
                invar_view_of<T>(&a->dlogits),  invar_view_of<float>(&a->logits),
                (const float *)a->dlogp.data,   (const float *)a->dentropy.data,
                (const float *)a->entropy.data, (const float *)a->max.data,
                (const float *)a->logsum.data,  (const int32_t *)a->targets.data,
                1.0f / a->temperature,          invar_aligned({&a->dlogits, &a->logits}),
                invar_cuda_of(dev)->fault};
            return invar_map(dev, INVAR_OP_LOGPROB_BWD, a->logits.shape[0], a->logits.shape[1],
                             false, backward);
        });
    });
}
