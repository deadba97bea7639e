/*
 * linear.c - linear layers, dense and grouped by expert: y, dx and dw.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 3:
 *   y   one chain over input features per element (k_shards: one per shard, added by the tree),
 *       then the bias in f32, one rounding; a residual and the gated activation come after that
 *       rounding and round again
 *   dx  one chain over the concatenated output features of the parts
 *   dw  per unit one chain over its tokens from +0, added to the running f32 gradient in unit
 *       order; with `fresh` the gradient is +0 before the first unit
 * An element depends on its row and its column only, not on other rows or the tiling. An expert is
 * a dense layer on its own rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/shards.h"
#include "kernels-deterministic/step/chain.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

/* Rows [row0, row0 + rows) for the weights of one expert; a dense layer is expert 0 of 1. */
typedef struct slice {
    int64_t row0;
    int64_t rows;
    int64_t expert;
} slice;

/* ---- y --------------------------------------------------------------------------------------- */

typedef struct forward_job {
    const invar_linear_fwd_args *args;
    slice at;
    int64_t cols; /* outputs N of the expert */
} forward_job;

static void add_bias(float *acc, const invar_chain_range *r, const invar_tensor *bias)
{
    float values[INVAR_CHAIN_TILE_N];

    invar_tensor_row_load(values, bias, 0, r->col0, r->cols);
    for (int64_t i = 0; i < r->rows; i++)
        for (int64_t j = 0; j < r->cols; j++)
            acc[i * r->cols + j] += values[j];
}

static void store_tile(const invar_tensor *t, int64_t row0, const invar_chain_range *r,
                       const float *acc)
{
    for (int64_t i = 0; i < r->rows; i++)
        invar_tensor_row_store(t, row0 + r->row0 + i, r->col0, r->cols, acc + i * r->cols);
}

/* Adds the residual to the tile that store_tile has stored, as the op add does. */
static void add_tile_residual(const invar_tensor *t, const invar_tensor *residual, int64_t row0,
                              const invar_chain_range *r)
{
    float sum[INVAR_CHAIN_TILE_N], y[INVAR_CHAIN_TILE_N];

    for (int64_t i = 0; i < r->rows; i++) {
        int64_t row = row0 + r->row0 + i;
        invar_tensor_row_load(sum, residual, row, r->col0, r->cols);
        invar_tensor_row_load(y, t, row, r->col0, r->cols);
        for (int64_t j = 0; j < r->cols; j++)
            sum[j] += y[j];
        invar_tensor_row_store(t, row, r->col0, r->cols, sum);
    }
}

/*
 * Computes swiglu of a tile. gate and up are rounded to the type of act first, as if they had been
 * stored.
 */
static void gate_tile(const invar_tensor *act, int64_t row0, const invar_chain_range *r,
                      const float *gate, const float *up)
{
    float g[INVAR_CHAIN_TILE_N], u[INVAR_CHAIN_TILE_N];
    uint16_t room[INVAR_CHAIN_TILE_N];
    bool bf16 = act->dtype == INVAR_DTYPE_BF16;
    invar_tensor line = invar_tensor_2d(room, INVAR_DTYPE_BF16, 1, INVAR_CHAIN_TILE_N);

    for (int64_t i = 0; i < r->rows; i++) {
        const float *from[2] = {gate + i * r->cols, up + i * r->cols};
        float *to[2] = {g, u};
        for (int side = 0; side < 2; side++) {
            memcpy(to[side], from[side], (size_t)r->cols * sizeof **to);
            if (!bf16)
                continue;
            invar_tensor_row_store(&line, 0, 0, r->cols, from[side]);
            invar_tensor_row_load(to[side], &line, 0, 0, r->cols);
        }
        for (int64_t j = 0; j < r->cols; j++)
            u[j] = invar_silu(g[j]) * u[j];
        invar_tensor_row_store(act, row0 + r->row0 + i, r->col0, r->cols, u);
    }
}

/*
 * Computes a tile of one output in f32: chains, tree, bias. `acc` has the accumulators of k_shards.
 */
static void output_tile(float *acc, const forward_job *job, const invar_tensor *w,
                        const invar_tensor *bias, const invar_device *dev,
                        const invar_chain_range *r, void *workspace)
{
    const invar_linear_fwd_args *a = job->args;
    int64_t k = a->x.shape[1], count = r->rows * r->cols;
    int64_t w_row0 = job->at.expert * job->cols + r->col0;

    for (int32_t s = 0; s < a->k_shards; s++) {
        float *chain = invar_chain_shard(acc, s);
        int64_t k0 = invar_shard_start(k, a->k_atom, a->k_shards, s);
        invar_chain_tile tile = {{&a->x, INVAR_CHAIN_ROWS, job->at.row0 + r->row0, k0},
                                 {w, INVAR_CHAIN_ROWS, w_row0, k0},
                                 r->rows,
                                 r->cols,
                                 invar_shard_start(k, a->k_atom, a->k_shards, s + 1) - k0};
        memset(chain, 0, (size_t)count * sizeof *chain);
        invar_chain_run(chain, r->cols, dev, &tile, workspace);
        invar_chain_fold(acc, s, count);
    }
    invar_chain_finish(acc, count);
    if (invar_tensor_present(bias))
        add_bias(acc, r, bias);
}

static void forward_tile(const void *payload, const invar_device *dev, const invar_chain_range *r,
                         float *acc, void *workspace)
{
    const forward_job *job = payload;
    const invar_linear_fwd_args *a = job->args;
    float *up = acc + invar_chain_tiles(a->k_shards) * INVAR_CHAIN_TILE_FLOATS;

    output_tile(acc, job, &a->w, &a->bias, dev, r, workspace);
    if (invar_tensor_present(&a->y))
        store_tile(&a->y, job->at.row0, r, acc);
    if (invar_tensor_present(&a->residual))
        add_tile_residual(&a->y, &a->residual, job->at.row0, r);
    if (!invar_tensor_present(&a->act))
        return;
    output_tile(up, job, &a->more[0].w, &a->more[0].bias, dev, r, workspace);
    if (invar_tensor_present(&a->more[0].y))
        store_tile(&a->more[0].y, job->at.row0, r, up);
    gate_tile(&a->act, job->at.row0, r, acc, up);
}

static int32_t forward_accumulators(const invar_linear_fwd_args *a)
{
    return (invar_tensor_present(&a->act) ? 2 : 1) * invar_chain_tiles(a->k_shards);
}

/* Computes the first output and, with an activation, the second. `cols` is N of the expert. */
static invar_status run_forward(const invar_device *dev, const invar_linear_fwd_args *a, slice at,
                                int64_t cols, void *workspace)
{
    forward_job job = {a, at, cols};
    invar_chain_grid grid = {at.rows, cols, forward_accumulators(a), forward_tile, &job};

    return invar_chain_grid_run(dev, &grid, workspace);
}

size_t invar_cpu_linear_fwd_workspace(const invar_device *dev, const invar_linear_fwd_args *a)
{
    return invar_chain_grid_workspace(dev, forward_accumulators(a));
}

invar_status invar_cpu_linear_fwd(const invar_device *dev, const invar_linear_fwd_args *a,
                                  void *workspace)
{
    slice all = {0, a->x.shape[0], 0};

    INVAR_TRY(run_forward(dev, a, all, a->w.shape[0], workspace));
    for (int32_t i = 0; i < a->n_more && !invar_tensor_present(&a->act); i++) {
        const invar_linear_output *out = &a->more[i];
        invar_linear_fwd_args one = {.y = out->y,
                                     .x = a->x,
                                     .w = out->w,
                                     .bias = out->bias,
                                     .k_shards = a->k_shards,
                                     .k_atom = a->k_atom};
        INVAR_TRY(run_forward(dev, &one, all, out->w.shape[0], workspace));
    }
    return INVAR_OK;
}

size_t invar_cpu_moe_linear_fwd_workspace(const invar_device *dev,
                                          const invar_moe_linear_fwd_args *a)
{
    return invar_chain_grid_workspace(dev, invar_chain_tiles(a->k_shards));
}

invar_status invar_cpu_moe_linear_fwd(const invar_device *dev, const invar_moe_linear_fwd_args *a,
                                      void *workspace)
{
    invar_linear_fwd_args dense = {
        .y = a->y, .x = a->x, .w = a->w, .k_shards = a->k_shards, .k_atom = a->k_atom};

    for (int64_t e = 0; e < a->experts.count; e++) {
        int64_t row0 = a->experts.offsets[e], rows = a->experts.offsets[e + 1] - row0;
        INVAR_TRY(run_forward(dev, &dense, (slice){row0, rows, e}, a->y.shape[1], workspace));
    }
    return INVAR_OK;
}

/* ---- dx -------------------------------------------------------------------------------------- */

typedef struct input_grad_job {
    const invar_linear_dx_args *args;
    slice at;
} input_grad_job;

static void input_grad_tile(const void *payload, const invar_device *dev,
                            const invar_chain_range *r, float *acc, void *workspace)
{
    const input_grad_job *job = payload;
    const invar_linear_dx_args *a = job->args;
    int64_t count = r->rows * r->cols;

    for (int32_t s = 0; s < a->k_shards; s++) {
        float *chain = invar_chain_shard(acc, s);
        memset(chain, 0, (size_t)count * sizeof *chain);
        for (int32_t p = 0; p < a->n_parts; p++) {
            const invar_linear_part *part = &a->parts[p];
            int64_t width = part->dy.shape[1];
            int64_t k0 = invar_shard_start(width, a->k_atom[p], a->k_shards, s);
            invar_chain_tile tile = {
                {&part->dy, INVAR_CHAIN_ROWS, job->at.row0 + r->row0, k0},
                {&part->w, INVAR_CHAIN_COLUMNS, r->col0, job->at.expert * width + k0},
                r->rows,
                r->cols,
                invar_shard_start(width, a->k_atom[p], a->k_shards, s + 1) - k0};
            invar_chain_run(chain, r->cols, dev, &tile, workspace);
        }
        invar_chain_fold(acc, s, count);
    }
    invar_chain_finish(acc, count);
    store_tile(&a->dx, job->at.row0, r, acc);
}

static invar_status input_grad(const invar_device *dev, const invar_linear_dx_args *a, slice at,
                               void *workspace)
{
    input_grad_job job = {a, at};
    invar_chain_grid grid = {at.rows, a->dx.shape[1], invar_chain_tiles(a->k_shards),
                             input_grad_tile, &job};

    return invar_chain_grid_run(dev, &grid, workspace);
}

size_t invar_cpu_linear_dx_workspace(const invar_device *dev, const invar_linear_dx_args *a)
{
    return invar_chain_grid_workspace(dev, invar_chain_tiles(a->k_shards));
}

invar_status invar_cpu_linear_dx(const invar_device *dev, const invar_linear_dx_args *a,
                                 void *workspace)
{
    return input_grad(dev, a, (slice){0, a->dx.shape[0], 0}, workspace);
}

size_t invar_cpu_moe_linear_dx_workspace(const invar_device *dev, const invar_moe_linear_dx_args *a)
{
    return invar_chain_grid_workspace(dev, invar_chain_tiles(a->k_shards));
}

invar_status invar_cpu_moe_linear_dx(const invar_device *dev, const invar_moe_linear_dx_args *a,
                                     void *workspace)
{
    invar_linear_dx_args dense = {.dx = a->dx, .n_parts = a->n_parts, .k_shards = a->k_shards};

    memcpy(dense.parts, a->parts, sizeof dense.parts);
    memcpy(dense.k_atom, a->k_atom, sizeof dense.k_atom);
    for (int64_t e = 0; e < a->experts.count; e++) {
        int64_t row0 = a->experts.offsets[e], rows = a->experts.offsets[e + 1] - row0;
        INVAR_TRY(input_grad(dev, &dense, (slice){row0, rows, e}, workspace));
    }
    return INVAR_OK;
}

/* ---- dw -------------------------------------------------------------------------------------- */

typedef struct weight_grad_job {
    const invar_tensor *dw;
    const invar_tensor *dy;
    const invar_tensor *x;
    int64_t dw_row0; /* first row of the expert in dw */
    /* Returns the first row after the unit of `row`; rows [row0, end) belong to units. */
    int64_t (*unit_end)(const void *rule, int64_t row);
    const void *rule;
    int64_t row0;
    int64_t end;
    bool fresh;
} weight_grad_job;

static float *running_row(const weight_grad_job *job, const invar_chain_range *r, int64_t row)
{
    return (float *)job->dw->data + (job->dw_row0 + r->row0 + row) * job->dw->row_stride + r->col0;
}

static void weight_grad_tile(const void *payload, const invar_device *dev,
                             const invar_chain_range *r, float *acc, void *workspace)
{
    const weight_grad_job *job = payload;
    int64_t count = r->rows * r->cols;

    for (int64_t i = 0; i < r->rows && job->fresh; i++)
        memset(running_row(job, r, i), 0, (size_t)r->cols * sizeof(float));
    for (int64_t row = job->row0; row < job->end;) {
        int64_t end = job->unit_end(job->rule, row);
        invar_chain_tile tile = {{job->dy, INVAR_CHAIN_COLUMNS, r->row0, row},
                                 {job->x, INVAR_CHAIN_COLUMNS, r->col0, row},
                                 r->rows,
                                 r->cols,
                                 end - row};
        memset(acc, 0, (size_t)count * sizeof *acc);
        invar_chain_run(acc, r->cols, dev, &tile, workspace);
        invar_chain_finish(acc, count);
        for (int64_t i = 0; i < r->rows; i++) {
            float *running = running_row(job, r, i);
            for (int64_t j = 0; j < r->cols; j++)
                running[j] += acc[i * r->cols + j];
        }
        row = end;
    }
}

static invar_status weight_grad(const invar_device *dev, const weight_grad_job *job,
                                void *workspace)
{
    invar_chain_grid grid = {job->dy->shape[1], job->x->shape[1], 1, weight_grad_tile, job};

    return invar_chain_grid_run(dev, &grid, workspace);
}

/* Returns the first token after the unit of a token; the rule is the offsets of the units. */
static int64_t unit_end(const void *rule, int64_t token)
{
    const invar_row_offsets *units = rule;
    int64_t low = 0, high = units->count - 1;

    // the last unit that starts at or before the token; empty units contain no token
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (units->offsets[middle] <= token)
            low = middle;
        else
            high = middle - 1;
    }
    return units->offsets[low + 1];
}

size_t invar_cpu_linear_dw_workspace(const invar_device *dev, const invar_linear_dw_args *a)
{
    (void)a;
    return invar_chain_grid_workspace(dev, 1);
}

invar_status invar_cpu_linear_dw(const invar_device *dev, const invar_linear_dw_args *a,
                                 void *workspace)
{
    weight_grad_job job = {&a->dw,    &a->dy, &a->x,          0,       unit_end,
                           &a->units, 0,      a->dy.shape[0], a->fresh};

    return weight_grad(dev, &job, workspace);
}

/* The units of an expert: one ends before the first row whose token is outside of it. */
typedef struct expert_rule {
    const invar_row_offsets *units;
    const int32_t *row_token;
    int64_t end;
} expert_rule;

static int64_t expert_unit_end(const void *rule, int64_t row)
{
    const expert_rule *r = rule;
    int64_t last_token = unit_end(r->units, r->row_token[row]);

    while (row < r->end && r->row_token[row] < last_token)
        row++;
    return row;
}

size_t invar_cpu_moe_linear_dw_workspace(const invar_device *dev, const invar_moe_linear_dw_args *a)
{
    (void)a;
    return invar_chain_grid_workspace(dev, 1);
}

invar_status invar_cpu_moe_linear_dw(const invar_device *dev, const invar_moe_linear_dw_args *a,
                                     void *workspace)
{
    for (int64_t e = 0; e < a->experts.count; e++) {
        expert_rule rule = {&a->units, a->row_token.data, a->experts.offsets[e + 1]};
        weight_grad_job job = {&a->dw,
                               &a->dy,
                               &a->x,
                               e * a->dy.shape[1],
                               expert_unit_end,
                               &rule,
                               a->experts.offsets[e],
                               rule.end,
                               a->fresh};
        INVAR_TRY(weight_grad(dev, &job, workspace));
    }
    return INVAR_OK;
}
