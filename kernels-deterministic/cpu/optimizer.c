/*
 * optimizer.c - the global gradient norm and AdamW.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 7; in f32:
 *   grad.norm  norm = sqrt(REDUCE over tensors of REDUCE(g * g)),
 *              clip = min(1, max_norm / (norm + 1e-6)); 1 if max_norm is 0
 *   adamw      g = grad * clip
 *              m = fma(beta1, m, (1 - beta1) * g)
 *              v = fma(beta2, v, (1 - beta2) * (g * g))
 *              u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 *              p = fma(-lr, fma(weight_decay, p, u), p), weight = p rounded to storage
 * An element of AdamW depends on its own values and the scalars only. Digests equal those of
 * hash.tree.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/elementwise.h"
#include "kernels-deterministic/cpu/row_parallel.h"
#include "kernels-deterministic/math/clip.h"
#include "kernels-deterministic/math/portable.h"
#include "kernels-deterministic/math/reduce.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

/* ---- norm ------------------------------------------------------------------------------------ */

#define CHUNKS_PER_TASK 4

static int64_t element_count(const invar_tensor *t)
{
    return t->shape[0] * invar_tensor_row_elements(t);
}

static int64_t chunk_count(const invar_tensor *t)
{
    return (element_count(t) + INVAR_REDUCE_CHUNK - 1) / INVAR_REDUCE_CHUNK;
}

typedef struct norm_job {
    const invar_tensor *grad;
    float *sums; /* (chunks) sums of squares */
} norm_job;

static void sum_squares(const void *payload, int64_t chunk, void *scratch)
{
    const norm_job *job = payload;
    int64_t first = chunk * INVAR_REDUCE_CHUNK, left = element_count(job->grad) - first;
    int64_t count = left < INVAR_REDUCE_CHUNK ? left : INVAR_REDUCE_CHUNK;
    int64_t stride = job->grad->row_stride, cols = invar_tensor_row_elements(job->grad);
    const float *g = (const float *)job->grad->data;
    float squares[INVAR_REDUCE_CHUNK];

    (void)scratch;
    if (cols == stride) // no gaps between rows: treat the tensor as one row
        cols = stride = element_count(job->grad);
    for (int64_t i = 0, col = first % cols; i < count; col = 0) { // row by row
        const float *row = g + (first + i) / cols * stride;
        for (; col < cols && i < count; col++, i++)
            squares[i] = row[col] * row[col];
    }
    job->sums[chunk] = invar_reduce_f32(squares, count);
}

static bool is_finite(float x)
{
    return (invar_f32_bits(x) & ~INVAR_SIGN_BIT) < INVAR_INF_BITS;
}

/* Returns the hash.tree call that computes the digests of the gradients. */
static invar_hash_tree_args hash_args(const invar_grad_norm_args *a)
{
    return (invar_hash_tree_args){
        .digest = a->digest, .x = a->grads, .count = a->digest ? a->count : 0, .shards = 1};
}

/* The sums and the hashes need the workspace one after the other. */
size_t invar_cpu_grad_norm_workspace(const invar_device *dev, const invar_grad_norm_args *a)
{
    invar_hash_tree_args trees = hash_args(a);
    size_t hashing = invar_cpu_hash_tree_workspace(dev, &trees), summing;
    int64_t most = 0;

    for (int64_t i = 0; i < a->count; i++)
        most = chunk_count(&a->grads[i]) > most ? chunk_count(&a->grads[i]) : most;
    summing = (size_t)(a->count + most) * sizeof(float);
    return summing > hashing ? summing : hashing;
}

/*
 * Writes the sums of squares to sums (count), after which the workspace holds the sums of chunks.
 */
static invar_status sum_all(const invar_device *dev, const invar_grad_norm_args *a, float *sums)
{
    for (int64_t i = 0; i < a->count; i++) {
        norm_job job = {&a->grads[i], sums + a->count};
        invar_row_parallel_job rows = {chunk_count(job.grad), CHUNKS_PER_TASK, 0, sum_squares,
                                       &job};

        INVAR_TRY(invar_row_parallel_run(dev, &rows, NULL));
        // also if there is one chunk: REDUCE of a single value is that value
        sums[i] = invar_reduce_f32(job.sums, rows.rows);
    }
    if (a->squares && a->count > 0)
        memcpy(a->squares, sums, (size_t)a->count * sizeof *sums);
    return INVAR_OK;
}

invar_status invar_cpu_grad_norm(const invar_device *dev, const invar_grad_norm_args *a,
                                 void *workspace)
{
    invar_hash_tree_args trees = hash_args(a);
    float *sums = workspace, norm;

    INVAR_TRY(sum_all(dev, a, sums));
    for (int64_t i = 0; i < a->count; i++)
        if (!is_finite(sums[i]))
            return INVAR_FAIL(INVAR_E_STATE, 0,
                              "%s: grads: tensor %" PRId64 ": the sum of squares is not finite",
                              invar_op_name(INVAR_OP_GRAD_NORM), i);
    norm = invar_sqrtf(invar_reduce_f32(sums, a->count));
    if (!is_finite(norm))
        return INVAR_FAIL(INVAR_E_STATE, 0, "%s: grads: the sum of squares over tensors overflows",
                          invar_op_name(INVAR_OP_GRAD_NORM));
    INVAR_TRY(invar_cpu_hash_tree(dev, &trees, workspace));
    *a->norm = norm;
    *a->clip = invar_norm_clip(norm, a->max_norm);
    return INVAR_OK;
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

static void adamw_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_adamw_args *a = payload;
    float *restrict master = (float *)a->master.data + first;
    float *restrict m = (float *)a->m.data + first;
    float *restrict v = (float *)a->v.data + first;
    const float *restrict grad = (const float *)a->grad.data + first;
    const float clip = a->clip, lr = a->lr, eps = a->eps, decay = a->weight_decay;
    const float beta1 = a->beta1, rest1 = 1.0f - beta1, correction1 = 1.0f - a->beta1_power;
    const float beta2 = a->beta2, rest2 = 1.0f - beta2, correction2 = 1.0f - a->beta2_power;

    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * clip, update;
        m[i] = invar_fmaf(beta1, m[i], rest1 * g);
        v[i] = invar_fmaf(beta2, v[i], rest2 * (g * g));
        update = m[i] / correction1 / (invar_sqrtf(v[i] / correction2) + eps);
        master[i] = invar_fmaf(-lr, invar_fmaf(decay, master[i], update), master[i]);
    }
    if (invar_tensor_present(&a->weight))
        invar_tensor_row_store(&a->weight, row, first, count, master);
}

/* Returns hashed tensor i, a range of the elements. */
static invar_tensor hashed_tensor(const invar_adamw_args *a, int64_t i)
{
    int64_t begin = i > 0 ? a->end[i - 1] : 0;

    return invar_tensor_1d((float *)a->master.data + begin, INVAR_DTYPE_F32, a->end[i] - begin);
}

size_t invar_cpu_adamw_workspace(const invar_device *dev, const invar_adamw_args *a)
{
    size_t most = 0;

    for (int64_t i = 0; i < a->tensors; i++) {
        invar_tensor x = hashed_tensor(a, i);
        size_t bytes = invar_cpu_hash_tree_workspace(
            dev,
            &(invar_hash_tree_args){.digest = &a->digest[i], .x = &x, .count = 1, .shards = 1});
        most = bytes > most ? bytes : most;
    }
    return most;
}

invar_status invar_cpu_adamw(const invar_device *dev, const invar_adamw_args *a, void *workspace)
{
    INVAR_TRY(invar_elementwise_run(dev, 1, a->master.shape[0], adamw_piece, a));
    for (int64_t i = 0; i < a->tensors; i++) {
        invar_tensor x = hashed_tensor(a, i);
        INVAR_TRY(invar_cpu_hash_tree(
            dev, &(invar_hash_tree_args){.digest = &a->digest[i], .x = &x, .count = 1, .shards = 1},
            workspace));
    }
    return INVAR_OK;
}
