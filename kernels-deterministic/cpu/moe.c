/*
 * moe.c - mixture of experts: router, plan, gather, combine, and their backward.
 *
 * Numerics contract (rev 1), docs/arithmetic.md section 9:
 *   route    scores in f32; experts by (score + bias descending, id ascending); weights divided by
 *            their sum over slots in ascending order
 *   plan     rows by (expert, token): integers only
 *   gather   a copy; its backward adds slots ascending from +0, one rounding
 *   combine  acc = fma(w_s, y_s, acc) over slots ascending from +0, then the shared expert, one
 *            rounding; the gradient of a weight is REDUCE over rounded products
 * A token's results depend on its own row only. The grouped linear layers are in linear.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "kernels-deterministic/check/check.h"
#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/cpu/elementwise.h"
#include "kernels-deterministic/cpu/row_parallel.h"
#include "kernels-deterministic/math/candidate_order.h"
#include "kernels-deterministic/math/elementary.h"
#include "kernels-deterministic/math/reduce.h"
#include "kernels-deterministic/tensor_row.h"

#include "base/invar_banned.h"

#define TOKENS_PER_TASK 16

static float *f32_row(const invar_tensor *t, int64_t row)
{
    return (float *)t->data + row * t->row_stride;
}

static int32_t *i32_row(const invar_tensor *t, int64_t row)
{
    return (int32_t *)t->data + row * t->row_stride;
}

/* ---- route ----------------------------------------------------------------------------------- */

static void score_experts(float *scores, const float *logits, int64_t experts,
                          invar_moe_scoring scoring)
{
    float largest, sum;

    if (scoring == INVAR_MOE_SIGMOID) {
        for (int64_t j = 0; j < experts; j++)
            scores[j] = invar_sigmoid(logits[j]);
        return;
    }
    largest = logits[0];
    for (int64_t j = 1; j < experts; j++)
        largest = invar_max_f32(largest, logits[j]);
    for (int64_t j = 0; j < experts; j++)
        scores[j] = invar_exp(logits[j] - largest);
    sum = invar_reduce_f32(scores, experts);
    for (int64_t j = 0; j < experts; j++)
        scores[j] /= sum;
}

/* Removes the best candidate from keys and returns its id. */
static uint32_t take_best(uint64_t *keys, int64_t count)
{
    int64_t best = 0;
    uint32_t id;

    for (int64_t i = 1; i < count; i++)
        if (keys[i] < keys[best])
            best = i;
    id = invar_order_id(keys[best]);
    keys[best] = INVAR_ORDER_LAST;
    return id;
}

/* Returns the best value of a group, or the sum of its best two, the better one first. */
static float group_score(const uint64_t *keys, int64_t count, int32_t top)
{
    uint64_t first = INVAR_ORDER_LAST, second = INVAR_ORDER_LAST;

    for (int64_t i = 0; i < count; i++) {
        if (keys[i] < first) {
            second = first;
            first = keys[i];
        } else if (keys[i] < second) {
            second = keys[i];
        }
    }
    return top == 1 ? invar_order_value(first)
                    : invar_order_value(first) + invar_order_value(second);
}

/* Removes the experts of all groups except the best from keys. */
static void limit_groups(uint64_t *keys, uint64_t *group_keys, int64_t experts,
                         const invar_moe_router *router)
{
    int64_t size = experts / router->groups;

    for (int32_t g = 0; g < router->groups; g++) {
        float score = group_score(keys + g * size, size, router->group_score_top);
        group_keys[g] = invar_order_key(score, (uint32_t)g);
    }
    for (int32_t i = 0; i < router->groups_kept; i++)
        take_best(group_keys, router->groups);
    for (int32_t g = 0; g < router->groups; g++)
        for (int64_t j = 0; group_keys[g] != INVAR_ORDER_LAST && j < size; j++)
            keys[g * size + j] = INVAR_ORDER_LAST;
}

/*
 * Returns the divisor of the weights: 1, or the sum of the chosen scores in slot order, plus eps.
 */
static float weight_divisor(const float *scores, const int32_t *ids, int64_t slots,
                            const invar_moe_router *router)
{
    float sum = 0.0f;

    if (!router->normalise)
        return 1.0f;
    for (int64_t s = 0; s < slots; s++)
        sum += scores[ids[s]];
    return sum + router->normalise_eps;
}

static void route_token(const void *payload, int64_t token, void *scratch)
{
    const invar_moe_route_fwd_args *a = payload;
    int64_t experts = a->logits.shape[1], slots = a->ids.shape[1];
    uint64_t *keys = scratch, *group_keys = keys + experts;
    const float *bias = invar_tensor_present(&a->bias) ? a->bias.data : NULL;
    float *scores = f32_row(&a->scores, token), *weights = f32_row(&a->weights, token);
    int32_t *chosen = i32_row(&a->ids, token);
    const int32_t *used = invar_tensor_present(&a->replay) ? i32_row(&a->replay, token) : chosen;
    float total;

    score_experts(scores, f32_row(&a->logits, token), experts, a->router.scoring);
    for (int64_t j = 0; j < experts; j++)
        keys[j] = invar_order_key(bias ? scores[j] + bias[j] : scores[j], (uint32_t)j);
    if (a->router.groups_kept < a->router.groups)
        limit_groups(keys, group_keys, experts, &a->router);
    for (int64_t s = 0; s < slots; s++)
        chosen[s] = (int32_t)take_best(keys, experts);

    total = weight_divisor(scores, used, slots, &a->router);
    for (int64_t s = 0; s < slots; s++)
        weights[s] = scores[used[s]] / total * a->router.scale;
}

static size_t route_scratch(const invar_moe_route_fwd_args *a)
{
    return (size_t)(a->logits.shape[1] + a->router.groups) * sizeof(uint64_t);
}

INVAR_ROW_PARALLEL_OP(moe_route_fwd, a->logits.shape[0], TOKENS_PER_TASK, route_scratch(a),
                      route_token)

/* Computes dscores[s], the gradient of the score of slot s. */
static void route_slots_back(float *dscores, const invar_moe_route_bwd_args *a, int64_t token)
{
    const float *dweights = f32_row(&a->dweights, token), *scores = f32_row(&a->scores, token);
    const int32_t *ids = i32_row(&a->ids, token);
    int64_t slots = a->ids.shape[1];
    float total = weight_divisor(scores, ids, slots, &a->router), mean = 0.0f;

    for (int64_t s = 0; s < slots; s++)
        dscores[s] = dweights[s] * a->router.scale;
    if (!a->router.normalise)
        return;
    for (int64_t s = 0; s < slots; s++)
        mean = fmaf(dscores[s], scores[ids[s]] / total, mean);
    for (int64_t s = 0; s < slots; s++)
        dscores[s] = (dscores[s] - mean) / total;
}

static void route_token_back(const void *payload, int64_t token, void *scratch)
{
    const invar_moe_route_bwd_args *a = payload;
    int64_t experts = a->scores.shape[1], slots = a->ids.shape[1];
    float *dlogits = scratch, *dscores = dlogits + experts;
    const float *scores = f32_row(&a->scores, token);
    const int32_t *ids = i32_row(&a->ids, token);
    float mean = 0.0f;

    route_slots_back(dscores, a, token);
    if (a->router.scoring == INVAR_MOE_SIGMOID) {
        memset(dlogits, 0, (size_t)experts * sizeof *dlogits);
        for (int64_t s = 0; s < slots; s++) {
            float score = scores[ids[s]];
            dlogits[ids[s]] = dscores[s] * (score * (1.0f - score));
        }
    } else {
        for (int64_t s = 0; s < slots; s++)
            mean = fmaf(scores[ids[s]], dscores[s], mean);
        for (int64_t j = 0; j < experts; j++)
            dlogits[j] = scores[j] * (0.0f - mean);
        for (int64_t s = 0; s < slots; s++)
            dlogits[ids[s]] = scores[ids[s]] * (dscores[s] - mean);
    }
    invar_tensor_row_store(&a->dlogits, token, 0, experts, dlogits);
}

static size_t route_back_scratch(const invar_moe_route_bwd_args *a)
{
    return (size_t)(a->scores.shape[1] + a->ids.shape[1]) * sizeof(float);
}

INVAR_ROW_PARALLEL_OP(moe_route_bwd, a->scores.shape[0], TOKENS_PER_TASK, route_back_scratch(a),
                      route_token_back)

/* ---- plan ------------------------------------------------------------------------------------ */

INVAR_NO_WORKSPACE(cpu, moe_plan)

/* Counting sort: expert_start holds counts first, then the next free row of each expert. */
invar_status invar_cpu_moe_plan(const invar_device *dev, const invar_moe_plan_args *a,
                                void *workspace)
{
    int64_t tokens = a->ids.shape[0], slots = a->ids.shape[1], *start = a->expert_start;
    int32_t *row_token = a->row_token.data;

    (void)dev, (void)workspace;
    memset(start, 0, (size_t)(a->experts + 1) * sizeof *start);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t s = 0; s < slots; s++)
            start[i32_row(&a->ids, t)[s] + 1]++;
    for (int64_t e = 0; e < a->experts; e++)
        start[e + 1] += start[e];
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t s = 0; s < slots; s++) {
            int64_t row = start[i32_row(&a->ids, t)[s]]++;
            row_token[row] = (int32_t)t;
            i32_row(&a->slot_row, t)[s] = (int32_t)row;
        }
    }
    // each entry has reached the start of the next expert
    memmove(start + 1, start, (size_t)a->experts * sizeof *start);
    start[0] = 0;
    return INVAR_OK;
}

/* ---- gather ---------------------------------------------------------------------------------- */

static void gather_piece(const void *payload, int64_t row, int64_t first, int64_t count)
{
    const invar_moe_gather_fwd_args *a = payload;
    int64_t token = ((const int32_t *)a->row_token.data)[row];
    int64_t size = invar_dtype_bits(a->x.dtype) / 8;

    memcpy((char *)a->out.data + (row * a->out.row_stride + first) * size,
           (const char *)a->x.data + (token * a->x.row_stride + first) * size,
           (size_t)(count * size));
}

INVAR_ELEMENTWISE_OP(moe_gather_fwd, out, gather_piece)

/* ---- combine, and the backward of gather ----------------------------------------------------- */

/* Scratch to check that slot_row names each row once: two writers of a row of dy would race. */
static size_t seen_bytes(const invar_tensor *slot_row)
{
    return (size_t)(slot_row->shape[0] * slot_row->shape[1]);
}

/* Without weights each weight is 1, and fma(1, y, acc) is acc + y: the backward of gather. */
static void combine_piece(const void *payload, int64_t token, int64_t first, int64_t count)
{
    const invar_moe_combine_fwd_args *a = payload;
    const float *weights = invar_tensor_present(&a->weights) ? f32_row(&a->weights, token) : NULL;
    const int32_t *rows = i32_row(&a->slot_row, token);
    float acc[INVAR_PIECE] = {0}, line[INVAR_PIECE];

    for (int64_t s = 0; s < a->slot_row.shape[1]; s++) {
        float weight = weights ? weights[s] : 1.0f;
        invar_tensor_row_load(line, &a->y, rows[s], first, count);
        for (int64_t i = 0; i < count; i++)
            acc[i] = fmaf(weight, line[i], acc[i]);
    }
    if (invar_tensor_present(&a->shared)) {
        invar_tensor_row_load(line, &a->shared, token, first, count);
        for (int64_t i = 0; i < count; i++)
            acc[i] += line[i];
    }
    invar_tensor_row_store(&a->out, token, first, count, acc);
}

static invar_status run_combine(const invar_device *dev, const invar_moe_combine_fwd_args *a)
{
    return invar_elementwise_run(dev, a->out.shape[0], a->out.shape[1], combine_piece, a);
}

size_t invar_cpu_moe_combine_fwd_workspace(const invar_device *dev,
                                           const invar_moe_combine_fwd_args *a)
{
    (void)dev;
    return seen_bytes(&a->slot_row);
}

invar_status invar_cpu_moe_combine_fwd(const invar_device *dev, const invar_moe_combine_fwd_args *a,
                                       void *workspace)
{
    INVAR_TRY(invar_check_permutation(dev, INVAR_OP_MOE_COMBINE_FWD, "slot_row", &a->slot_row,
                                      workspace));
    return run_combine(dev, a);
}

size_t invar_cpu_moe_gather_bwd_workspace(const invar_device *dev,
                                          const invar_moe_gather_bwd_args *a)
{
    (void)dev;
    return seen_bytes(&a->slot_row);
}

invar_status invar_cpu_moe_gather_bwd(const invar_device *dev, const invar_moe_gather_bwd_args *a,
                                      void *workspace)
{
    invar_moe_combine_fwd_args sum = {.out = a->dx, .y = a->dout, .slot_row = a->slot_row};

    INVAR_TRY(
        invar_check_permutation(dev, INVAR_OP_MOE_GATHER_BWD, "slot_row", &a->slot_row, workspace));
    return run_combine(dev, &sum);
}

static void combine_token_back(const void *payload, int64_t token, void *scratch)
{
    const invar_moe_combine_bwd_args *a = payload;
    int64_t columns = a->dout.shape[1], slots = a->slot_row.shape[1];
    const float *weights = f32_row(&a->weights, token);
    const int32_t *rows = i32_row(&a->slot_row, token);
    float *dweights = f32_row(&a->dweights, token), *dout = scratch, *line = dout + columns;

    invar_tensor_row_load(dout, &a->dout, token, 0, columns);
    for (int64_t s = 0; s < slots; s++) {
        invar_tensor_row_load(line, &a->y, rows[s], 0, columns);
        for (int64_t i = 0; i < columns; i++)
            line[i] *= dout[i];
        dweights[s] = invar_reduce_f32(line, columns);
        for (int64_t i = 0; i < columns; i++)
            line[i] = weights[s] * dout[i];
        invar_tensor_row_store(&a->dy, rows[s], 0, columns, line);
    }
}

static size_t combine_back_scratch(const invar_moe_combine_bwd_args *a)
{
    return 2 * (size_t)a->dout.shape[1] * sizeof(float);
}

size_t invar_cpu_moe_combine_bwd_workspace(const invar_device *dev,
                                           const invar_moe_combine_bwd_args *a)
{
    return invar_row_parallel_workspace(dev, combine_back_scratch(a)) + seen_bytes(&a->slot_row);
}

invar_status invar_cpu_moe_combine_bwd(const invar_device *dev, const invar_moe_combine_bwd_args *a,
                                       void *workspace)
{
    invar_row_parallel_job job = {a->dout.shape[0], TOKENS_PER_TASK, combine_back_scratch(a),
                                  combine_token_back, a};
    uint8_t *seen =
        (uint8_t *)workspace + invar_row_parallel_workspace(dev, combine_back_scratch(a));

    INVAR_TRY(
        invar_check_permutation(dev, INVAR_OP_MOE_COMBINE_BWD, "slot_row", &a->slot_row, seen));
    return invar_row_parallel_run(dev, &job, workspace);
}
