/*
 * optimizer.c - checks the arguments of grad.norm and adamw.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <float.h>
#include <inttypes.h>
#include <stdio.h>

#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

invar_status invar_check_grad_norm(const invar_device *dev, invar_op op,
                                   const invar_grad_norm_args *a)
{
    (void)dev;
    if (!a->norm || !a->clip)
        return INVAR_REJECT(op, "%s: missing", a->norm ? "clip" : "norm");
    if (a->count < 0 || (a->count > 0 && !a->grads))
        return INVAR_REJECT(op, "grads: %" PRId64 " tensors", a->count);
    INVAR_TRY(invar_check_range(op, "max_norm", a->max_norm, 0.0, FLT_MAX));
    for (int64_t i = 0; i < a->count; i++) {
        const invar_tensor *t = &a->grads[i];
        char arg[48];

        if (invar_check_tensor(op, "grads", t, INVAR_TYPE(F32), INVAR_ANY, NULL) == INVAR_OK)
            continue;
        snprintf(arg, sizeof arg, "grads: tensor %" PRId64, i); // only the message has the number
        return invar_check_tensor(op, arg, t, INVAR_TYPE(F32), INVAR_ANY, NULL);
    }
    return INVAR_OK;
}

/* Rejects ends of hashed tensors that do not ascend or do not cover all elements. */
static invar_status check_ends(const invar_adamw_args *a)
{
    invar_op op = INVAR_OP_ADAMW;
    int64_t n = a->master.shape[0], before = 0;

    if (a->tensors < 0 || (a->tensors > 0) != (a->digest != NULL) ||
        (a->tensors > 0) != (a->end != NULL))
        return INVAR_REJECT(op, "tensors: %" PRId64 "; digest and end come with them", a->tensors);
    for (int64_t i = 0; i < a->tensors; i++) {
        if (a->end[i] <= before || a->end[i] > n)
            return INVAR_REJECT(op,
                                "end: tensor %" PRId64 " ends at %" PRId64 " of %" PRId64
                                " elements, the one before at %" PRId64,
                                i, a->end[i], n, before);
        before = a->end[i];
    }
    if (a->tensors > 0 && before != n)
        return INVAR_REJECT(op, "end: the last tensor ends at %" PRId64 " of %" PRId64 " elements",
                            before, n);
    return INVAR_OK;
}

invar_status invar_check_adamw(const invar_device *dev, invar_op op, const invar_adamw_args *a)
{
    const double below_1 = 1.0 - FLT_EPSILON / 2.0;

    (void)dev;
    INVAR_CHECK_1D(op, a, master, INVAR_TYPE(F32), INVAR_ANY);
    INVAR_TRY(invar_check_like(op, "m", &a->m, "master", &a->master));
    INVAR_TRY(invar_check_like(op, "v", &a->v, "master", &a->master));
    INVAR_TRY(invar_check_like(op, "grad", &a->grad, "master", &a->master));
    INVAR_TRY(
        invar_check_optional(op, "weight", &a->weight, INVAR_TYPES_STORAGE, 1, a->master.shape));
    INVAR_TRY(invar_check_range(op, "clip", a->clip, 0.0, 1.0));
    INVAR_TRY(invar_check_range(op, "lr", a->lr, 0.0, FLT_MAX));
    INVAR_TRY(invar_check_range(op, "beta1", a->beta1, 0.0, below_1));
    INVAR_TRY(invar_check_range(op, "beta2", a->beta2, 0.0, below_1));
    INVAR_TRY(invar_check_range(op, "eps", a->eps, FLT_MIN, FLT_MAX));
    INVAR_TRY(invar_check_range(op, "weight_decay", a->weight_decay, 0.0, FLT_MAX));
    INVAR_TRY(invar_check_range(op, "beta1_power", a->beta1_power, 0.0, below_1));
    INVAR_TRY(invar_check_range(op, "beta2_power", a->beta2_power, 0.0, below_1));
    return check_ends(a);
}
