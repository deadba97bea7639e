/*
 * rmsnorm.c - root mean square norm over the last index, forward and backward.
 *
 * Numerics contract (rev 2), docs/arithmetic.md section 7; in f32 per token and head, D = last
 * extent:
 *   rstd    = 1 / sqrt(REDUCE(x*x) / D + eps), NaN if the mean of squares is not finite
 *   y       = (x * rstd) * w                                              rounded to storage
 *   xhat    = x * rstd,  g = dy * w,  mean = REDUCE(g * xhat) / D
 *   dx      = rstd * fma(-xhat, mean, g)                                  rounded to storage
 *   dweight = sum over tokens in the order of token_sums.h; a token adds sum = fma(dy, xhat, sum),
 *             heads ascending; with shards of heads, a block has one sum per shard, added by the
 *             tree
 * With a rotation: rope.fwd of the stored y; rope.bwd of dy before anything else. With a residual:
 * dx = residual + dx of the rounded dx, rounded again. A head's y and dx depend on its own row
 * only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/row_parallel.h"
#include "kernels-deterministic/cpu/token_sums.h"
#include "kernels-deterministic/math/portable.h"
#include "kernels-deterministic/math/reduce.h"
#include "kernels-deterministic/math/shards.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

#define HEADS_PER_TASK 16

/* Returns 1 / rms of x; `buffer` holds n floats. */
static float inverse_rms(float *buffer, const float *x, int64_t n, float eps)
{
    for (int64_t i = 0; i < n; i++)
        buffer[i] = x[i] * x[i];
    return invar_inverse_rms(invar_reduce_f32(buffer, n) / (float)n, eps);
}

/* Scratch of a thread: `buffers` arrays of n floats. */
static size_t scratch_bytes(int64_t n, int buffers)
{
    return (size_t)n * (size_t)buffers * sizeof(float);
}

/* ---- forward --------------------------------------------------------------------------------- */

#define FORWARD_BUFFERS 3

static void forward_head(const void *payload, int64_t head, void *scratch)
{
    const invar_rmsnorm_fwd_args *a = payload;
    int64_t heads = a->x.shape[1], n = a->x.shape[2];
    int64_t token = head / heads, first = head % heads * n;
    float *x = scratch, *y = x + n, *weight = y + n, rstd;

    invar_tensor_row_load(x, &a->x, token, first, n);
    invar_tensor_row_load(weight, &a->weight, 0, 0, n);
    rstd = inverse_rms(y, x, n, a->eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * rstd * weight[i];
    invar_tensor_row_store(&a->y, token, first, n, y);
}

size_t invar_cpu_rmsnorm_fwd_workspace(const invar_device *dev, const invar_rmsnorm_fwd_args *a)
{
    return invar_row_parallel_workspace(dev, scratch_bytes(a->x.shape[2], FORWARD_BUFFERS));
}

invar_status invar_cpu_rmsnorm_fwd(const invar_device *dev, const invar_rmsnorm_fwd_args *a,
                                   void *workspace)
{
    const invar_rope_args *r = &a->rotation;
    invar_rope_fwd_args rope = {a->y, a->y, r->positions, r->cosine, r->sine};
    invar_row_parallel_job job = {a->x.shape[0] * a->x.shape[1], HEADS_PER_TASK,
                                  scratch_bytes(a->x.shape[2], FORWARD_BUFFERS), forward_head, a};

    INVAR_TRY(invar_row_parallel_run(dev, &job, workspace));
    return invar_tensor_present(&r->positions) ? invar_cpu_rope_fwd(dev, &rope, NULL) : INVAR_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

#define BACKWARD_BUFFERS 4

typedef struct backward_job {
    const invar_rmsnorm_bwd_args *args;
    float *rstd; /* (T * H) */
} backward_job;

/*
 * g = residual + g, with g rounded to storage first. dx may be the residual, so the residual is
 * read before g is stored.
 */
static void add_residual(float *g, const invar_rmsnorm_bwd_args *a, int64_t token, int64_t first,
                         int64_t n, float *buffer)
{
    invar_tensor_row_load(buffer, &a->residual, token, first, n);
    invar_tensor_row_store(&a->dx, token, first, n, g);
    invar_tensor_row_load(g, &a->dx, token, first, n);
    for (int64_t i = 0; i < n; i++)
        g[i] = buffer[i] + g[i];
}

static void backward_head(const void *payload, int64_t head, void *scratch)
{
    const backward_job *job = payload;
    const invar_rmsnorm_bwd_args *a = job->args;
    int64_t heads = a->x.shape[1], n = a->x.shape[2];
    int64_t token = head / heads, first = head % heads * n;
    float *xhat = scratch, *g = xhat + n, *weight = g + n, *buffer = weight + n, rstd, mean;

    invar_tensor_row_load(xhat, &a->x, token, first, n);
    invar_tensor_row_load(g, &a->dy, token, first, n);
    invar_tensor_row_load(weight, &a->weight, 0, 0, n);
    rstd = inverse_rms(buffer, xhat, n, a->eps);
    for (int64_t i = 0; i < n; i++) {
        xhat[i] *= rstd;
        g[i] *= weight[i];
        buffer[i] = g[i] * xhat[i];
    }
    mean = invar_reduce_f32(buffer, n) / (float)n;
    for (int64_t i = 0; i < n; i++)
        g[i] = rstd * invar_fmaf(-xhat[i], mean, g[i]);
    if (invar_tensor_present(&a->residual))
        add_residual(g, a, token, first, n, buffer);
    invar_tensor_row_store(&a->dx, token, first, n, g);
    job->rstd[head] = rstd;
}

static int32_t shards_of(const invar_rmsnorm_bwd_args *a)
{
    return a->head_shards > 1 ? a->head_shards : 1;
}

static void weight_term(float *sum, const void *payload, int32_t shard, int64_t token,
                        int64_t first, int64_t count)
{
    const backward_job *job = payload;
    const invar_rmsnorm_bwd_args *a = job->args;
    int64_t heads = a->x.shape[1], n = a->x.shape[2];
    int64_t end = invar_shard_start(heads, a->head_atom, shards_of(a), shard + 1);
    float x[INVAR_TOKEN_COLUMNS], dy[INVAR_TOKEN_COLUMNS];

    for (int64_t h = invar_shard_start(heads, a->head_atom, shards_of(a), shard); h < end; h++) {
        float rstd = job->rstd[token * heads + h];
        invar_tensor_row_load(x, &a->x, token, h * n + first, count);
        invar_tensor_row_load(dy, &a->dy, token, h * n + first, count);
        for (int64_t i = 0; i < count; i++)
            sum[i] = invar_fmaf(dy[i], x[i] * rstd, sum[i]);
    }
}

/*
 * Rounds a part of the workspace (rstd; dy rotated back; scratch of the rows) up to a multiple of
 * 64 bytes.
 */
static size_t round_up_to_line(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t rstd_bytes(const invar_rmsnorm_bwd_args *a)
{
    return round_up_to_line((size_t)(a->x.shape[0] * a->x.shape[1]) * sizeof(float));
}

static size_t rotated_bytes(const invar_rmsnorm_bwd_args *a)
{
    size_t values = (size_t)(a->x.shape[0] * a->x.shape[1] * a->x.shape[2]);

    if (!invar_tensor_present(&a->rotation.positions))
        return 0;
    return round_up_to_line(values * (size_t)invar_dtype_bits(a->dy.dtype) / 8);
}

size_t invar_cpu_rmsnorm_bwd_workspace(const invar_device *dev, const invar_rmsnorm_bwd_args *a)
{
    return rstd_bytes(a) + rotated_bytes(a) +
           invar_row_parallel_workspace(dev, scratch_bytes(a->x.shape[2], BACKWARD_BUFFERS));
}

/* *dy_out = rope.bwd of dy, stored in `memory`. */
static invar_status rotate_back(invar_tensor *dy_out, const invar_device *dev,
                                const invar_rmsnorm_bwd_args *a, void *memory)
{
    const invar_rope_args *r = &a->rotation;
    invar_rope_bwd_args rope = {
        .x = a->dy, .positions = r->positions, .cosine = r->cosine, .sine = r->sine};

    *dy_out = rope.y =
        invar_tensor_3d(memory, a->dy.dtype, a->dy.shape[0], a->dy.shape[1], a->dy.shape[2]);
    return invar_cpu_rope_bwd(dev, &rope, NULL);
}

invar_status invar_cpu_rmsnorm_bwd(const invar_device *dev, const invar_rmsnorm_bwd_args *given,
                                   void *workspace)
{
    invar_rmsnorm_bwd_args args = *given, *a = &args;
    backward_job job = {a, workspace};
    char *rotated = (char *)workspace + rstd_bytes(a);
    invar_row_parallel_job rows = {a->x.shape[0] * a->x.shape[1], HEADS_PER_TASK,
                                   scratch_bytes(a->x.shape[2], BACKWARD_BUFFERS), backward_head,
                                   &job};

    if (invar_tensor_present(&a->rotation.positions))
        INVAR_TRY(rotate_back(&args.dy, dev, given, rotated));
    INVAR_TRY(invar_row_parallel_run(dev, &rows, rotated + rotated_bytes(a)));
    if (invar_tensor_present(&a->block_sums))
        return invar_token_block_sums(dev, &a->block_sums, &a->units, shards_of(a), weight_term,
                                      &job);
    if (!invar_tensor_present(&a->dweight))
        return INVAR_OK;
    return invar_token_accumulate(dev, &a->dweight, &a->units, shards_of(a), weight_term, &job);
}
