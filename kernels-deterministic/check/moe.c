/*
 * moe.c - checks the arguments of the mixture of experts, except its linear layers (linear.c).
 *
 * Numbers of tokens, slots, rows and experts must fit an i32, because they become indices. The
 * experts of a token must be distinct, so that each pair (token, slot) has its own row.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <float.h>
#include <inttypes.h>

#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

/* Rejects a count below 1 or above INT32_MAX. */
static invar_status check_count(invar_op op, const char *arg, int64_t count)
{
    return invar_check_range(op, arg, (double)count, 1, INT32_MAX);
}

static invar_status check_router(invar_op op, const invar_moe_router *r, int64_t experts,
                                 int64_t slots)
{
    int64_t group;

    INVAR_TRY(check_count(op, "experts", experts));
    if (r->scoring != INVAR_MOE_SOFTMAX && r->scoring != INVAR_MOE_SIGMOID)
        return INVAR_REJECT(op, "router.scoring: %d does not exist", (int)r->scoring);
    INVAR_TRY(invar_check_range(op, "router.groups", r->groups, 1, (double)experts));
    if (experts % r->groups != 0)
        return INVAR_REJECT(op, "router.groups: %" PRId64 " experts do not cut into %d groups",
                            experts, r->groups);
    group = experts / r->groups;
    INVAR_TRY(invar_check_range(op, "router.groups_kept", r->groups_kept, 1, r->groups));
    INVAR_TRY(
        invar_check_range(op, "router.group_score_top", r->group_score_top, 1, group < 2 ? 1 : 2));
    INVAR_TRY(invar_check_range(op, "slots", (double)slots, 1, (double)(r->groups_kept * group)));
    INVAR_TRY(invar_check_range(op, "router.normalise", r->normalise, 0, 1));
    INVAR_TRY(invar_check_range(op, "router.normalise_eps", r->normalise_eps, 0, FLT_MAX));
    return invar_check_range(op, "router.scale", r->scale, -FLT_MAX, FLT_MAX);
}

/* Rejects experts of a token that are out of range or not distinct. */
static invar_status check_choice(const invar_device *dev, invar_op op, const char *arg,
                                 const invar_tensor *ids, int64_t experts)
{
    INVAR_TRY(invar_check_indices(dev, op, arg, ids, experts));
    for (int64_t t = 0; t < ids->shape[0] && !invar_device_unreadable(dev); t++) {
        const int32_t *row = (const int32_t *)ids->data + t * ids->row_stride;
        for (int64_t s = 1; s < ids->shape[1]; s++)
            for (int64_t earlier = 0; earlier < s; earlier++)
                if (row[s] == row[earlier])
                    return INVAR_REJECT(op, "%s: row %" PRId64 " names expert %" PRId32 " twice",
                                        arg, t, row[s]);
    }
    return INVAR_OK;
}

invar_status invar_check_moe_route_fwd(const invar_device *dev, invar_op op,
                                       const invar_moe_route_fwd_args *a)
{
    int64_t tokens = a->logits.shape[0], experts = a->logits.shape[1], slots = a->ids.shape[1];

    INVAR_CHECK_2D(op, a, logits, INVAR_TYPE(F32), INVAR_ANY, INVAR_ANY);
    INVAR_CHECK_2D(op, a, ids, INVAR_TYPE(I32), tokens, INVAR_ANY);
    INVAR_TRY(check_router(op, &a->router, experts, slots));
    INVAR_CHECK_2D(op, a, weights, INVAR_TYPE(F32), tokens, slots);
    INVAR_CHECK_2D(op, a, scores, INVAR_TYPE(F32), tokens, experts);
    INVAR_TRY(
        invar_check_optional(op, "bias", &a->bias, INVAR_TYPE(F32), 1, (const int64_t[]){experts}));
    if (invar_tensor_present(&a->replay)) {
        INVAR_CHECK_2D(op, a, replay, INVAR_TYPE(I32), tokens, slots);
        INVAR_TRY(check_choice(dev, op, "replay", &a->replay, experts));
    }
    return INVAR_OK;
}

invar_status invar_check_moe_route_bwd(const invar_device *dev, invar_op op,
                                       const invar_moe_route_bwd_args *a)
{
    int64_t tokens = a->scores.shape[0], experts = a->scores.shape[1], slots = a->ids.shape[1];

    INVAR_CHECK_2D(op, a, scores, INVAR_TYPE(F32), INVAR_ANY, INVAR_ANY);
    INVAR_CHECK_2D(op, a, ids, INVAR_TYPE(I32), tokens, INVAR_ANY);
    INVAR_TRY(check_router(op, &a->router, experts, slots));
    INVAR_CHECK_2D(op, a, dweights, INVAR_TYPE(F32), tokens, slots);
    INVAR_CHECK_2D(op, a, dlogits, INVAR_TYPES_STORAGE, tokens, experts);
    return check_choice(dev, op, "ids", &a->ids, experts);
}

invar_status invar_check_moe_plan(const invar_device *dev, invar_op op,
                                  const invar_moe_plan_args *a)
{
    int64_t tokens = a->ids.shape[0], slots = a->ids.shape[1];

    INVAR_CHECK_2D(op, a, ids, INVAR_TYPE(I32), INVAR_ANY, INVAR_ANY);
    INVAR_TRY(check_count(op, "experts", a->experts));
    INVAR_TRY(check_count(op, "slots", slots));
    INVAR_TRY(invar_check_range(op, "rows", (double)tokens * (double)slots, 0, INT32_MAX));
    INVAR_CHECK_1D(op, a, row_token, INVAR_TYPE(I32), tokens * slots);
    INVAR_CHECK_2D(op, a, slot_row, INVAR_TYPE(I32), tokens, slots);
    if (!a->expert_start)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: expert_start: missing", invar_op_name(op));
    return check_choice(dev, op, "ids", &a->ids, a->experts);
}

invar_status invar_check_moe_gather_fwd(const invar_device *dev, invar_op op,
                                        const invar_moe_gather_fwd_args *a)
{
    INVAR_CHECK_2D(op, a, x, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_CHECK_2D(op, a, out, INVAR_TYPES_STORAGE, INVAR_ANY, a->x.shape[1]);
    INVAR_TRY(invar_check_same_type(op, "out", &a->out, "x", &a->x));
    INVAR_CHECK_1D(op, a, row_token, INVAR_TYPE(I32), a->out.shape[0]);
    return invar_check_indices(dev, op, "row_token", &a->row_token, a->x.shape[0]);
}

/* Checks shape and range of slot_row. That it names each row once is checked while the op runs. */
static invar_status check_slot_row(const invar_device *dev, invar_op op,
                                   const invar_tensor *slot_row, int64_t tokens)
{
    INVAR_TRY(invar_check_tensor(op, "slot_row", slot_row, INVAR_TYPE(I32), 2,
                                 (const int64_t[]){tokens, INVAR_ANY}));
    INVAR_TRY(check_count(op, "slots", slot_row->shape[1]));
    return invar_check_indices(dev, op, "slot_row", slot_row, tokens * slot_row->shape[1]);
}

invar_status invar_check_moe_gather_bwd(const invar_device *dev, invar_op op,
                                        const invar_moe_gather_bwd_args *a)
{
    int64_t tokens = a->dx.shape[0];

    INVAR_CHECK_2D(op, a, dx, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(check_slot_row(dev, op, &a->slot_row, tokens));
    INVAR_CHECK_2D(op, a, dout, INVAR_TYPES_STORAGE, tokens * a->slot_row.shape[1], a->dx.shape[1]);
    return INVAR_OK;
}

invar_status invar_check_moe_combine_fwd(const invar_device *dev, invar_op op,
                                         const invar_moe_combine_fwd_args *a)
{
    int64_t tokens = a->out.shape[0], slots = a->slot_row.shape[1], columns = a->out.shape[1];

    INVAR_CHECK_2D(op, a, out, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(check_slot_row(dev, op, &a->slot_row, tokens));
    INVAR_CHECK_2D(op, a, y, INVAR_TYPES_STORAGE, tokens * slots, columns);
    INVAR_CHECK_2D(op, a, weights, INVAR_TYPE(F32), tokens, slots);
    return invar_check_optional(op, "shared", &a->shared, INVAR_TYPES_STORAGE, 2, a->out.shape);
}

invar_status invar_check_moe_combine_bwd(const invar_device *dev, invar_op op,
                                         const invar_moe_combine_bwd_args *a)
{
    int64_t tokens = a->dout.shape[0], slots = a->slot_row.shape[1], columns = a->dout.shape[1];

    INVAR_CHECK_2D(op, a, dout, INVAR_TYPES_STORAGE, INVAR_ANY, INVAR_ANY);
    INVAR_TRY(check_count(op, "columns", columns));
    INVAR_TRY(check_slot_row(dev, op, &a->slot_row, tokens));
    INVAR_CHECK_2D(op, a, y, INVAR_TYPES_STORAGE, tokens * slots, columns);
    INVAR_CHECK_2D(op, a, dy, INVAR_TYPES_STORAGE, tokens * slots, columns);
    INVAR_CHECK_2D(op, a, weights, INVAR_TYPE(F32), tokens, slots);
    INVAR_CHECK_2D(op, a, dweights, INVAR_TYPE(F32), tokens, slots);
    return INVAR_OK;
}
