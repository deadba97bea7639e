/*
 * hash_tree.c - arguments of the tree hash.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

#define MAX_SHARDS 1024

static invar_status check_one(const invar_hash_tree_args *a, const invar_tensor *x)
{
    invar_op op = INVAR_OP_HASH_TREE;
    unsigned types =
        INVAR_TYPES_STORAGE | INVAR_TYPES_QUANTISED | INVAR_TYPE(I32) | INVAR_TYPE(I64);
    int64_t unit; // rows that share a scale stay together

    INVAR_TRY(invar_check_tensor(op, "x", x, types, INVAR_ANY, NULL));
    unit = x->dtype == INVAR_DTYPE_FP8 ? x->scale_rows : 1;
    if (unit > 1 && x->shape[0] % (a->shards * unit) != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: shards: %" PRId64 " rows do not cut into %d shards of whole %" PRId64
                          "s",
                          invar_op_name(op), x->shape[0], a->shards, unit);
    return INVAR_OK;
}

invar_status invar_check_hash_tree(const invar_device *dev, const invar_hash_tree_args *a)
{
    invar_op op = INVAR_OP_HASH_TREE;

    (void)dev;
    if (a->count < 0 || (a->count > 0 && !a->x))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: x: %" PRId64 " tensors", invar_op_name(op),
                          a->count);
    if (a->count > 0 && !a->digest)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: digest: missing", invar_op_name(op));
    INVAR_TRY(invar_check_shards(op, "shards", a->shards, MAX_SHARDS));
    for (int64_t i = 0; i < a->count; i++)
        INVAR_TRY(check_one(a, &a->x[i]));
    return INVAR_OK;
}
