/*
 * hash_tree.c - arguments of the tree hash.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

#define MAX_SHARDS 1024

invar_status invar_check_hash_tree(const invar_device *dev, const invar_hash_tree_args *a)
{
    invar_op op = INVAR_OP_HASH_TREE;
    unsigned types =
        INVAR_TYPES_STORAGE | INVAR_TYPES_QUANTISED | INVAR_TYPE(I32) | INVAR_TYPE(I64);
    invar_tensor digest;
    int64_t unit; // rows that share a scale stay together

    (void)dev;
    if (!a->digest)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: digest: missing", invar_op_name(op));
    INVAR_TRY(invar_check_tensor(op, "x", &a->x, types, INVAR_ANY, NULL));
    INVAR_TRY(invar_check_shards(op, "shards", a->shards, MAX_SHARDS));
    unit = a->x.dtype == INVAR_DTYPE_FP8 ? a->x.scale_rows : 1;
    if (unit > 1 && a->x.shape[0] % (a->shards * unit) != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: shards: %" PRId64 " rows do not cut into %d shards of whole %" PRId64
                          "s",
                          invar_op_name(op), a->x.shape[0], a->shards, unit);
    digest = invar_tensor_1d(a->digest, INVAR_DTYPE_I32, sizeof *a->digest / sizeof(int32_t));
    return invar_check_apart(op, "digest", &digest, "x", &a->x);
}
