/*
 * optimizer.cu - the global gradient norm and AdamW.
 *
 * Numerics contract (rev 1), docs/arithmetic.md, section 7; in f32:
 *   grad.norm  norm = sqrt(REDUCE over tensors of REDUCE(g * g)),
 *              clip = min(1, max_norm / (norm + 1e-6)); 1 if max_norm is 0
 *   adamw      g = grad * clip
 *              m = fma(beta1, m, (1 - beta1) * g)
 *              v = fma(beta2, v, (1 - beta2) * (g * g))
 *              u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 *              p = fma(-lr, fma(weight_decay, p, u), p), weight = p rounded to storage
 * An element of AdamW depends on its own values and the scalars alone. Both ops can also compute
 * digests, which are those of hash.tree.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <cinttypes>
#include <cstddef>

#include "base/alloc.h"
#include "kernels-deterministic/cuda/common/tree.cuh"
#include "kernels-deterministic/cuda/sm90/vector.cuh"
#include "kernels-deterministic/math/clip.h"

/* ---- norm ------------------------------------------------------------------------------------ */

/*
 * REDUCE of a long tensor is REDUCE over the REDUCEs of its chunks of 4096. So the norm is computed
 * in levels: at each, all chunks of all tensors are summed, one warp for a chunk. Level 0 has the
 * gradients themselves; after the last level every tensor has one sum, or none if it is empty. A
 * chunk of gradients is a leaf of their tree hash, too, so one read serves both.
 */
#define SUM_WARPS 4
#define SUM_BLOCKS 4 // blocks of threads on a multiprocessor

static_assert(INVAR_REDUCE_CHUNK * sizeof(float) == INVAR_TREE_LEAF_BYTES, "a chunk is a leaf");

/* Values of a level: those of tensor i are at[begin[i]] .. at[begin[i + 1] - 1]. */
struct norm_level {
    float *at;
    const int64_t *begin; /* (count + 1) */
};

struct norm_result {
    int64_t faulty; /* lowest tensor whose sum is not finite; `count` if there is none */
    float norm;
};

__device__ __forceinline__ bool is_finite(float x)
{
    return (invar_f32_bits(x) & ~INVAR_SIGN_BIT) < INVAR_INF_BITS;
}

/* Returns the REDUCE of up to 4096 values, or of their squares, computed by one warp. */
template <bool Squares> __device__ __forceinline__ float sum_chunk(const float *x, int64_t count)
{
    constexpr int batch = 8; // runs in flight at once
    int first = (int)threadIdx.x % 32 * INVAR_RUN;
    float lane[INVAR_RUN] = {};
    auto add = [&](const invar_run<float> &run) {
#pragma unroll
        for (int i = 0; i < INVAR_RUN; i++)
            lane[i] = lane[i] + (Squares ? run.get(i) * run.get(i) : run.get(i));
    };

    if (count == INVAR_REDUCE_CHUNK && (uintptr_t)x % 16 == 0) {
#pragma unroll
        for (int part = 0; part < INVAR_REDUCE_CHUNK; part += batch * INVAR_REDUCE_LANES) {
            invar_run<float> run[batch];
#pragma unroll
            for (int r = 0; r < batch; r++)
                run[r].load_whole(x + part + r * INVAR_REDUCE_LANES + first);
#pragma unroll
            for (int r = 0; r < batch; r++)
                add(run[r]);
        }
    } else {
        for (int64_t at = first; at - first < count; at += INVAR_REDUCE_LANES) {
            invar_run<float> run;
            run.load_some(x + at, count - at);
            add(run);
        }
    }
    return invar_fold_runs<32>(lane);
}

/* Gradients in device memory; a row has `cols` numbers, and begins every `stride` numbers. */
struct norm_grads {
    const float *const *at;
    const int64_t *cols, *stride; /* (count) */
};

/*
 * Returns the sum of the squares of a chunk of a tensor with gaps between its rows, in the order of
 * sum_chunk.
 */
__device__ __forceinline__ float sum_rows(const norm_grads &grads, int64_t i, int64_t begin,
                                          int64_t count)
{
    int first = (int)threadIdx.x % 32 * INVAR_RUN;
    float lane[INVAR_RUN] = {};

    for (int64_t at = first; at < count; at += INVAR_REDUCE_LANES) {
#pragma unroll
        for (int k = 0; k < INVAR_RUN; k++) {
            if (at + k >= count)
                break;
            int64_t row = (begin + at + k) / grads.cols[i];
            float x = grads.at[i][row * grads.stride[i] + (begin + at + k - row * grads.cols[i])];
            lane[k] = lane[k] + x * x;
        }
    }
    return invar_fold_runs<32>(lane);
}

/*
 * Source of the bytes of invar_linear_bytes that also adds the squares of the numbers. Pieces of 16
 * bytes come in ascending order: of every row of 256 numbers thread t gets 4t .. 4t+3, then the
 * four that are 128 later.
 */
struct squared_bytes {
    const uint8_t *at;
    float (&lane)[2][4];
    int &pieces; /* pieces so far: a constant in unrolled loops */

    __device__ __forceinline__ uint4 operator()(uint32_t offset) const
    {
        uint4 data = *(const uint4 *)(at + offset);
        uint32_t word[4] = {data.x, data.y, data.z, data.w};
        float *sum = lane[pieces++ % 2];

#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i] = sum[i] + __uint_as_float(word[i]) * __uint_as_float(word[i]);
        return data;
    }
};

/*
 * Moves the lanes of REDUCE from the order of squared_bytes to the usual one, in which thread t has
 * 8t .. 8t+7.
 */
__device__ __forceinline__ void sort_lanes(float sorted[INVAR_RUN], const float lane[2][4])
{
    int thread = (int)threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < INVAR_RUN; i++) {
        int from = (2 * thread + i / 4) % 32;
        float lower = __shfl_sync(0xFFFFFFFFu, lane[0][i % 4], from);
        float upper = __shfl_sync(0xFFFFFFFFu, lane[1][i % 4], from);
        sorted[i] = thread < 16 ? lower : upper;
    }
}

/*
 * Returns the sum of the squares of up to 4096 numbers and stores the digest of their bytes; by one
 * warp.
 */
__device__ __forceinline__ float sum_and_hash(invar_digest *digest, const invar_xxh_lane &lane,
                                              const float *x, int64_t count, uint8_t *buffer)
{
    const uint8_t *bytes = (const uint8_t *)x;
    invar_xxh_hash hash;
    float sum;

    if (count == INVAR_REDUCE_CHUNK) {
        float squares[2][4] = {}, sorted[INVAR_RUN];
        uint32_t last = INVAR_TREE_LEAF_BYTES - INVAR_XXH_STRIPE + 16 * (uint32_t)lane.q;
        int pieces = 0;
        hash = invar_xxh_long<true>(lane, squared_bytes{bytes, squares, pieces},
                                    INVAR_TREE_LEAF_BYTES, *(const uint4 *)(bytes + last));
        sort_lanes(sorted, squares);
        sum = invar_fold_runs<32>(sorted);
    } else {
        hash = invar_tree_bytes(lane, bytes, (uint32_t)(count * sizeof *x), buffer);
        sum = sum_chunk<true>(x, count);
    }
    if (threadIdx.x % 32 == 0)
        invar_tree_store(digest, hash);
    __syncwarp(); // the buffer is filled again
    return sum;
}

/* Returns the tensor i with begin[i] <= number < begin[i + 1]. */
__device__ __forceinline__ int64_t find_tensor(const int64_t *begin, int64_t count, int64_t number)
{
    int64_t low = 0, high = count;

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (begin[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

enum sum_kind { OF_SUMS, OF_SQUARES, OF_SQUARES_AND_HASHES };

/* Sums the chunks of `from` into `to`; the first level takes squares of the gradients. */
template <sum_kind Kind>
static __global__ void __launch_bounds__(32 * SUM_WARPS, SUM_BLOCKS)
    sum_level(norm_level to, norm_level from, norm_grads grads, int64_t count, invar_digest *leaves)
{
    __shared__ uint8_t buffers[SUM_WARPS][INVAR_XXH_SHORT];
    int64_t stride = (int64_t)gridDim.x * SUM_WARPS;
    invar_xxh_lane lane;

    if (Kind == OF_SQUARES_AND_HASHES)
        lane.start();
    for (int64_t number = (int64_t)blockIdx.x * SUM_WARPS + threadIdx.x / 32;
         number < to.begin[count]; number += stride) {
        int64_t i = find_tensor(to.begin, count, number);
        int64_t first = (number - to.begin[i]) * INVAR_REDUCE_CHUNK;
        int64_t left = from.begin[i + 1] - from.begin[i] - first;
        int64_t here = left < INVAR_REDUCE_CHUNK ? left : INVAR_REDUCE_CHUNK;
        const float *x = (Kind == OF_SUMS ? from.at + from.begin[i] : grads.at[i]) + first;
        float sum;
        if (Kind == OF_SQUARES_AND_HASHES)
            sum = sum_and_hash(&leaves[number], lane, x, here, buffers[threadIdx.x / 32]);
        else if (Kind == OF_SQUARES && grads.stride[i] != grads.cols[i])
            sum = sum_rows(grads, i, first, here);
        else
            sum = sum_chunk<Kind != OF_SUMS>(x, here);
        if (threadIdx.x % 32 == 0)
            to.at[number] = sum;
    }
}

/*
 * Sums the tensors, by one block with a thread for each of REDUCE's lanes. `squares` is NULL if not
 * wanted.
 */
static __global__ void __launch_bounds__(INVAR_REDUCE_LANES)
    sum_tensors(norm_result *out, float *squares, norm_level from, int64_t count)
{
    __shared__ unsigned long long faulty;
    __shared__ float shared;
    auto sum_of = [&](int64_t i) {
        return from.begin[i + 1] > from.begin[i] ? from.at[from.begin[i]] : 0.0f;
    };

    if (threadIdx.x == 0)
        faulty = (unsigned long long)count;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < count; i += INVAR_REDUCE_LANES) {
        if (!is_finite(sum_of(i)))
            atomicMin(&faulty, (unsigned long long)i);
        if (squares)
            squares[i] = sum_of(i);
    }
    float sum = invar_reduce_block(count, &shared, sum_of);
    if (threadIdx.x == 0)
        *out = {(int64_t)faulty, invar_sqrtf(sum)};
}

static int64_t element_count(const invar_tensor *t)
{
    return t->shape[0] * invar_tensor_row_elements(t);
}

/* Returns the number of levels above the gradients, until the longest tensor has one sum. */
static int count_levels(const invar_grad_norm_args *a)
{
    int64_t most = 0;
    int levels = 1;

    for (int64_t i = 0; i < a->count; i++)
        most = element_count(&a->grads[i]) > most ? element_count(&a->grads[i]) : most;
    for (most = invar_ceil_div(most, INVAR_REDUCE_CHUNK); most > 1; levels++)
        most = invar_ceil_div(most, INVAR_REDUCE_CHUNK);
    return levels;
}

/*
 * Returns the bytes of the table that is uploaded: `begin` of every level, then address, cols and
 * stride of each gradient.
 */
static size_t table_bytes(const invar_grad_norm_args *a)
{
    size_t level = (size_t)(a->count + 1) * sizeof(int64_t);

    return (size_t)(count_levels(a) + 1) * level +
           (size_t)a->count * (sizeof(float *) + 2 * sizeof(int64_t));
}

static int64_t sums_of_levels(const invar_grad_norm_args *a)
{
    int64_t sums = 0;
    int levels = count_levels(a);

    for (int64_t i = 0; i < a->count; i++) {
        int64_t n = element_count(&a->grads[i]);
        for (int level = 0; level < levels; level++) {
            n = invar_ceil_div(n, INVAR_REDUCE_CHUNK);
            sums += n;
        }
    }
    return sums;
}

/*
 * Returns the arguments of hash.tree for the gradients, with memory for digests on the device; no
 * tensors if no digests are wanted.
 */
static invar_hash_tree_args trees_of(const invar_grad_norm_args *a, void *room)
{
    return {(invar_digest *)room, a->grads, a->digest ? a->count : 0, 1, nullptr};
}

/*
 * Returns whether one read serves norm and hash: every gradient is aligned, and none is empty or
 * has gaps.
 */
static bool norm_can_hash(const invar_grad_norm_args *a)
{
    bool fits = a->digest != nullptr;

    for (int64_t i = 0; i < a->count; i++)
        fits = fits && element_count(&a->grads[i]) > 0 && (uintptr_t)a->grads[i].data % 16 == 0 &&
               a->grads[i].row_stride == invar_tensor_row_elements(&a->grads[i]);
    return fits;
}

/* Offsets of what is in the workspace, in bytes; digests come first. */
struct norm_layout {
    size_t trees; /* workspace of hash.tree */
    size_t result, table, sums, squares, end;
};

static norm_layout layout_of(const invar_device *dev, const invar_grad_norm_args *a)
{
    invar_hash_tree_args trees = trees_of(a, nullptr);
    norm_layout at;

    at.trees = (size_t)trees.count * sizeof *trees.digest;
    at.result = at.trees + invar_cuda_hash_tree_workspace(dev, &trees);
    at.table = at.result + sizeof(norm_result);
    at.sums = at.table + table_bytes(a);
    at.squares = at.sums + (size_t)sums_of_levels(a) * sizeof(float);
    at.end = at.squares + (a->squares ? (size_t)a->count * sizeof(float) : 0);
    return at;
}

size_t invar_cuda_grad_norm_workspace(const invar_device *dev, const invar_grad_norm_args *a)
{
    return layout_of(dev, a).end;
}

/* Fills in the table on the host. */
static void fill_table(int64_t *table, const invar_grad_norm_args *a, int levels)
{
    const float **grads = (const float **)(table + (levels + 1) * (a->count + 1));
    int64_t *cols = (int64_t *)(grads + a->count), *stride = cols + a->count;

    for (int level = 0; level <= levels; level++)
        table[level * (a->count + 1)] = 0;
    for (int64_t i = 0; i < a->count; i++) {
        int64_t n = element_count(&a->grads[i]);
        for (int level = 0; level <= levels; level++) {
            int64_t *begin = table + level * (a->count + 1);
            begin[i + 1] = begin[i] + n;
            n = invar_ceil_div(n, INVAR_REDUCE_CHUNK);
        }
        grads[i] = (const float *)a->grads[i].data;
        cols[i] = invar_tensor_row_elements(&a->grads[i]);
        stride[i] = a->grads[i].row_stride;
    }
}

/* Launches one level of sums; the first one may hash, too. */
static invar_status launch_level(const invar_device *dev, const invar_grad_norm_args *a,
                                 norm_level to, norm_level from, int64_t chunks,
                                 const norm_grads &grads, invar_digest *leaves)
{
    bool first = !from.at;
    bool hashes = first && norm_can_hash(a);
    auto kernel = hashes  ? sum_level<OF_SQUARES_AND_HASHES>
                  : first ? sum_level<OF_SQUARES>
                          : sum_level<OF_SUMS>;
    int64_t blocks = invar_ceil_div(chunks, SUM_WARPS);
    int64_t most = (int64_t)invar_cuda_of(dev)->multiprocessors * SUM_BLOCKS;

    // a warp that hashes loads the secret first, so it continues with further chunks
    return invar_launch(dev, INVAR_OP_GRAD_NORM, kernel,
                        dim3((unsigned)(hashes && blocks > most ? most : blocks)),
                        dim3(32 * SUM_WARPS), 0)(to, from, grads, a->count, leaves);
}

static invar_status launch_norm(const invar_device *dev, const invar_grad_norm_args *a,
                                const int64_t *table, char *scratch)
{
    norm_layout at = layout_of(dev, a);
    int levels = count_levels(a);
    int64_t *begin = (int64_t *)(scratch + at.table);
    int64_t *behind = begin + (levels + 1) * (a->count + 1);
    norm_grads grads = {(const float *const *)behind, behind + a->count, behind + 2 * a->count};
    norm_level from = {nullptr, begin}; // the gradients are level 0
    float *sums = (float *)(scratch + at.sums);

    INVAR_TRY(invar_device_upload(dev, begin, table, table_bytes(a)));
    for (int level = 1; level <= levels; level++) {
        norm_level to = {sums, begin + level * (a->count + 1)};
        int64_t chunks = table[level * (a->count + 1) + a->count];
        INVAR_TRY(
            launch_level(dev, a, to, from, chunks, grads, (invar_digest *)(scratch + at.trees)));
        sums += chunks;
        from = to;
    }
    return invar_launch(dev, INVAR_OP_GRAD_NORM, sum_tensors, dim3(1), dim3(INVAR_REDUCE_LANES),
                        0)((norm_result *)(scratch + at.result),
                           a->squares ? (float *)(scratch + at.squares) : nullptr, from, a->count);
}

/* Hashes the gradients as far as the norm's first level has not hashed them. */
static invar_status launch_hashes(const invar_device *dev, const invar_grad_norm_args *a,
                                  char *scratch)
{
    invar_hash_tree_args trees = trees_of(a, scratch);
    char *workspace = scratch + layout_of(dev, a).trees;

    if (norm_can_hash(a))
        return invar_cuda_tree_rest(dev, INVAR_OP_GRAD_NORM, &trees, workspace);
    return invar_cuda_hash_tree(dev, &trees, workspace);
}

invar_status invar_cuda_grad_norm(const invar_device *dev, const invar_grad_norm_args *a,
                                  void *workspace)
{
    invar_op op = INVAR_OP_GRAD_NORM;
    char *scratch = (char *)workspace;
    norm_result result;
    int64_t *table;

    INVAR_TRY(INVAR_ALLOC_SIZED(table, 1, table_bytes(a), invar_op_name(op)));
    fill_table(table, a, count_levels(a));
    invar_status status = launch_norm(dev, a, table, scratch);
    invar_free(table);
    INVAR_TRY(status);
    INVAR_TRY(launch_hashes(dev, a, scratch));
    // without the padding of the struct, which is not initialized
    INVAR_TRY(invar_device_download(dev, &result, scratch + layout_of(dev, a).result,
                                    offsetof(norm_result, norm) + sizeof result.norm));
    if (a->squares && a->count > 0)
        INVAR_TRY(invar_device_download(dev, a->squares, scratch + layout_of(dev, a).squares,
                                        (size_t)a->count * sizeof *a->squares));
    if (result.faulty < a->count)
        return INVAR_FAIL(INVAR_E_STATE, 0,
                          "%s: grads: tensor %" PRId64 ": the sum of squares is not finite",
                          invar_op_name(op), result.faulty);
    if ((invar_f32_bits(result.norm) & ~INVAR_SIGN_BIT) >= INVAR_INF_BITS)
        return INVAR_FAIL(INVAR_E_STATE, 0, "%s: grads: the sum of squares over tensors overflows",
                          invar_op_name(op));
    if (a->digest)
        INVAR_TRY(
            invar_device_download(dev, a->digest, scratch, (size_t)a->count * sizeof *a->digest));
    *a->norm = result.norm;
    *a->clip = invar_norm_clip(result.norm, a->max_norm);
    return INVAR_OK;
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

/*
 * If digests of the masters are wanted, a warp updates a leaf of their tree hash, and hashes what
 * it writes.
 */

/* Four elements of each array. */
struct adamw_values {
    invar_run<float, 4> master, m, v, grad;
};

struct adamw_runs {
    static constexpr int width = 4;
    float *master, *m, *v;
    const float *grad;
    invar_any_float_rows weight;
    float clip, lr, eps, decay;
    float beta1, rest1, correction1;
    float beta2, rest2, correction2;
    bool aligned;

    __device__ __forceinline__ adamw_values load(int64_t first, int64_t count) const
    {
        adamw_values x;

        x.grad.load(grad + first, count, aligned);
        x.m.load(m + first, count, aligned);
        x.v.load(v + first, count, aligned);
        x.master.load(master + first, count, aligned);
        return x;
    }

    /* Computes a step on the elements that were loaded from `first` on, and stores them. */
    __device__ __forceinline__ void move(adamw_values &x, int64_t first, int64_t count) const
    {
        float p[width], m_new[width], v_new[width];

#pragma unroll
        for (int i = 0; i < width; i++) {
            float g = x.grad.get(i) * clip;
            m_new[i] = invar_fmaf(beta1, x.m.get(i), rest1 * g);
            v_new[i] = invar_fmaf(beta2, x.v.get(i), rest2 * (g * g));
            float update = m_new[i] / correction1 / (invar_sqrtf(v_new[i] / correction2) + eps);
            p[i] = x.master.get(i);
            p[i] = invar_fmaf(-lr, invar_fmaf(decay, p[i], update), p[i]);
        }
        x.m.set(m_new);
        x.v.set(v_new);
        x.master.set(p);
        x.m.store(m + first, count, aligned);
        x.v.store(v + first, count, aligned);
        x.master.store(master + first, count, aligned);
        if (weight.data)
            weight.store<width>(p, 0, first, count, aligned);
    }

    __device__ __forceinline__ void operator()(int64_t, int64_t first, int64_t count) const
    {
        adamw_values x = load(first, count);

        move(x, first, count);
    }
};

/*
 * Tensors that the elements belong to: offset of each, and number of its first leaf; then the end.
 */
struct adamw_tensors {
    int64_t count;
    const int64_t *begin, *leaf; /* (count + 1) */
};

#define LEAF_WARPS 4
#define LEAF_BLOCKS 5 // blocks of threads on a multiprocessor
#define LEAF_ELEMENTS INVAR_REDUCE_CHUNK

/* Computes a step on a full leaf by one warp, and hashes its bytes as they are computed. */
__device__ __forceinline__ invar_xxh_hash step_leaf(const adamw_runs &step, int64_t first)
{
    constexpr int row = INVAR_XXH_BLOCK / sizeof(float), width = adamw_runs::width;
    auto bytes_of = [](const invar_run<float, width> &run) {
        return make_uint4(run.word[0], run.word[1], run.word[2], run.word[3]);
    };
    invar_xxh_lane lane;

    lane.start();
    invar_xxh_stream stream(lane);
    first += (int)threadIdx.x % 32 * width;
#pragma unroll 1
    for (int at = 0; at < LEAF_ELEMENTS; at += row) {
        int64_t second = first + at + row / 2;
        adamw_values x = step.load(first + at, width), y = step.load(second, width);

        step.move(x, first + at, width);
        step.move(y, second, width);
        stream.take(lane, bytes_of(x.master), bytes_of(y.master), at + row == LEAF_ELEMENTS);
    }
    return stream.end(lane);
}

/*
 * Like step_leaf, for fewer elements, which are read again to be hashed. Not inlined, so that its
 * registers are not added to those of step_leaf.
 */
static __device__ __noinline__ invar_xxh_hash step_tail(const adamw_runs &step, int64_t first,
                                                        int64_t count, uint8_t *buffer)
{
    constexpr int width = adamw_runs::width;
    invar_xxh_lane lane;

    lane.start();
    for (int64_t i = (int)threadIdx.x % 32 * width; i < count; i += 32 * width)
        step(0, first + i, count - i);
    __syncwarp();
    return invar_tree_bytes<invar_any_bytes>(lane, (const uint8_t *)(step.master + first),
                                             (uint32_t)(count * sizeof *step.master), buffer);
}

static __global__ void __launch_bounds__(32 * LEAF_WARPS, LEAF_BLOCKS)
    adamw_and_hash(invar_digest *leaves, const __grid_constant__ adamw_runs step,
                   adamw_tensors tensors)
{
    __shared__ uint8_t buffers[LEAF_WARPS][INVAR_XXH_SHORT];
    int64_t number = (int64_t)blockIdx.x * LEAF_WARPS + threadIdx.x / 32;

    if (number >= tensors.leaf[tensors.count])
        return;
    int64_t i = find_tensor(tensors.leaf, tensors.count, number);
    int64_t first = tensors.begin[i] + (number - tensors.leaf[i]) * LEAF_ELEMENTS;
    int64_t left = tensors.begin[i + 1] - first;
    invar_xxh_hash hash = left >= LEAF_ELEMENTS
                              ? step_leaf(step, first)
                              : step_tail(step, first, left, buffers[threadIdx.x / 32]);
    if (threadIdx.x % 32 == 0)
        invar_tree_store(&leaves[number], hash);
}

/* Lists on the host: the tensors for hash.tree, and the table of adamw_tensors. */
struct adamw_lists {
    invar_tensor *x;
    int64_t *table;
};

static size_t table_bytes(const invar_adamw_args *a)
{
    return 2 * (size_t)(a->tensors + 1) * sizeof(int64_t);
}

static int64_t element_count(const invar_adamw_args *a, int64_t tensor)
{
    return a->end[tensor] - (tensor > 0 ? a->end[tensor - 1] : 0);
}

static invar_status make_lists(adamw_lists *out, const invar_adamw_args *a)
{
    const char *what = invar_op_name(INVAR_OP_ADAMW);

    INVAR_TRY(INVAR_ALLOC(out->x, (size_t)a->tensors, what));
    INVAR_TRY(INVAR_ALLOC_SIZED(out->table, 1, table_bytes(a), what));
    int64_t *begin = out->table, *leaf = begin + a->tensors + 1;
    begin[0] = leaf[0] = 0;
    for (int64_t i = 0; i < a->tensors; i++) {
        begin[i + 1] = a->end[i];
        leaf[i + 1] = leaf[i] + invar_ceil_div(element_count(a, i), LEAF_ELEMENTS);
        out->x[i] = invar_tensor_1d((float *)a->master.data + begin[i], INVAR_DTYPE_F32,
                                    element_count(a, i));
    }
    return INVAR_OK;
}

/* Returns the bytes of the trees, which precede the table. */
static size_t tree_bytes(const invar_adamw_args *a)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < a->tensors; i++)
        bytes += invar_tree_workspace_bytes(invar_ceil_div(element_count(a, i), LEAF_ELEMENTS));
    return bytes;
}

static invar_status launch_hashed(const invar_device *dev, const invar_adamw_args *a,
                                  const adamw_runs &step, const adamw_lists &lists, char *scratch)
{
    invar_op op = INVAR_OP_ADAMW;
    int64_t *table = (int64_t *)(scratch + tree_bytes(a));
    adamw_tensors tensors = {a->tensors, table, table + a->tensors + 1};
    int64_t leaves = lists.table[2 * a->tensors + 1];
    invar_hash_tree_args trees = {a->digest, lists.x, a->tensors, 1, nullptr};

    INVAR_TRY(invar_device_upload(dev, table, lists.table, table_bytes(a)));
    INVAR_TRY(invar_launch(dev, op, adamw_and_hash,
                           dim3((unsigned)invar_ceil_div(leaves, LEAF_WARPS)),
                           dim3(32 * LEAF_WARPS), 0)((invar_digest *)scratch, step, tensors));
    return invar_cuda_tree_rest(dev, op, &trees, scratch);
}

size_t invar_cuda_adamw_workspace(const invar_device *dev, const invar_adamw_args *a)
{
    (void)dev;
    return a->tensors > 0 ? tree_bytes(a) + table_bytes(a) : 0;
}

invar_status invar_cuda_adamw(const invar_device *dev, const invar_adamw_args *a, void *workspace)
{
    adamw_runs step = {(float *)a->master.data,
                       (float *)a->m.data,
                       (float *)a->v.data,
                       (const float *)a->grad.data,
                       invar_any_float_rows_of(&a->weight),
                       a->clip,
                       a->lr,
                       a->eps,
                       a->weight_decay,
                       a->beta1,
                       1.0f - a->beta1,
                       1.0f - a->beta1_power,
                       a->beta2,
                       1.0f - a->beta2,
                       1.0f - a->beta2_power,
                       invar_aligned({&a->weight, &a->master, &a->m, &a->v, &a->grad})};
    adamw_lists lists = {nullptr, nullptr};

    if (a->tensors == 0)
        return invar_map(dev, INVAR_OP_ADAMW, 1, a->master.shape[0], false, step);
    for (int64_t i = 0; i < a->tensors; i++)
        step.aligned = step.aligned && a->end[i] % adamw_runs::width == 0;
    invar_status status = make_lists(&lists, a);
    if (status == INVAR_OK)
        status = launch_hashed(dev, a, step, lists, (char *)workspace);
    invar_free(lists.x);
    invar_free(lists.table);
    return status;
}
