/*
 * hash_tree.c - checks the arguments of hash.tree and hash.leaves, and counts leaves.
 *
 * A 128x128 scale block must not belong to two shards. The number of leaves decides how many
 * digests hash.leaves writes; if the offsets are unreadable, it is checked against the possible
 * range only.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels-deterministic/check/check.h"

#include "base/invar_banned.h"

#define MAX_SHARDS 1024

#define TYPES (INVAR_TYPES_STORAGE | INVAR_TYPES_QUANTIZED | INVAR_TYPE(I32) | INVAR_TYPE(I64))

/* A split counts values, not bytes, so a tensor with scales cannot be split. */
static invar_status check_cut(const invar_tensor *x, const invar_logical_split *split)
{
    invar_op op = INVAR_OP_HASH_TREE;

    INVAR_TRY(invar_check_shards(op, "cuts", split->shards, INVAR_LINEAR_MAX_SHARDS));
    if (split->shards > 1 &&
        (split->atom < 1 || split->experts < 1 || x->shape[0] % split->experts != 0 ||
         (split->columns && x->rank != 2) || invar_dtype_scale_block(x->dtype)))
        return INVAR_REJECT(
            op,
            "cuts: %d pieces of %" PRId64 " %s in each of %" PRId64 " parts do not fit the tensor",
            split->shards, split->atom, split->columns ? "columns" : "rows", split->experts);
    return INVAR_OK;
}

static invar_status check_one(const invar_hash_tree_args *a, int64_t i)
{
    invar_op op = INVAR_OP_HASH_TREE;
    const invar_tensor *x = &a->x[i];
    int64_t unit; // rows of a scale block stay together

    INVAR_TRY(invar_check_tensor(op, "x", x, TYPES, INVAR_ANY, NULL));
    if (a->cuts)
        INVAR_TRY(check_cut(x, &a->cuts[i]));
    unit = x->dtype == INVAR_DTYPE_FP8 ? x->scale_rows : 1;
    if (unit > 1 && a->shards > 1 &&
        (x->shape[0] % (a->shards * unit) != 0 || x->scale_period % unit != 0))
        return INVAR_REJECT(
            op, "shards: %" PRId64 " rows do not cut into %d shards of whole %" PRId64 "s",
            x->shape[0], a->shards, unit);
    return INVAR_OK;
}

invar_status invar_check_hash_tree(const invar_device *dev, invar_op op,
                                   const invar_hash_tree_args *a)
{
    (void)dev;
    if (a->count < 0 || (a->count > 0 && !a->x))
        return INVAR_REJECT(op, "x: %" PRId64 " tensors", a->count);
    if (a->count > 0 && !a->digest)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: digest: missing", invar_op_name(op));
    INVAR_TRY(invar_check_shards(op, "shards", a->shards, a->cuts ? 1 : MAX_SHARDS));
    for (int64_t i = 0; i < a->count; i++)
        INVAR_TRY(check_one(a, i));
    return INVAR_OK;
}

/* ---- leaves ---------------------------------------------------------------------------------- */

static int64_t leaves_of(size_t bytes)
{
    return (int64_t)(bytes / INVAR_TREE_LEAF_BYTES + (bytes % INVAR_TREE_LEAF_BYTES != 0));
}

static size_t bytes_of(const invar_tensor *x)
{
    return (size_t)(x->shape[0] * invar_tensor_row_elements(x)) *
           (size_t)invar_dtype_bits(x->dtype) / 8;
}

int64_t invar_hash_leaf_count(const invar_tensor *x, const invar_row_offsets *samples)
{
    invar_tensor rows = *x;
    int64_t count = 0;

    for (int64_t i = 0; i < samples->count; i++) {
        rows.shape[0] = samples->offsets[i + 1] - samples->offsets[i];
        count += leaves_of(bytes_of(&rows)) + leaves_of(invar_tensor_scale_bytes(&rows));
    }
    return count;
}

/* Checks the number of leaves, or only its range if the offsets are unreadable. */
static invar_status check_leaves(const invar_device *dev, const invar_hash_leaves_args *a)
{
    int64_t least = leaves_of(bytes_of(&a->x) + invar_tensor_scale_bytes(&a->x));
    int64_t most = least + 2 * a->samples.count;

    if (!invar_device_unreadable(dev))
        least = most = invar_hash_leaf_count(&a->x, &a->samples);
    if (a->leaves < least || a->leaves > most)
        return INVAR_REJECT(INVAR_OP_HASH_LEAVES,
                            "leaves: %" PRId64 "; expected %" PRId64 " to %" PRId64, a->leaves,
                            least, most);
    return INVAR_OK;
}

invar_status invar_check_hash_leaves(const invar_device *dev, invar_op op,
                                     const invar_hash_leaves_args *a)
{
    INVAR_TRY(invar_check_tensor(op, "x", &a->x, TYPES, INVAR_ANY, NULL));
    if (invar_dtype_scale_block(a->x.dtype) && a->x.scale_rows > 1)
        return INVAR_REJECT(op, "x: %d rows share a scale; expected 1", (int)a->x.scale_rows);
    INVAR_TRY(invar_check_segments(dev, op, "samples", &a->samples, a->x.shape[0]));
    INVAR_TRY(check_leaves(dev, a));
    if (a->leaves > 0 && !a->digest)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: digest: missing", invar_op_name(op));
    return INVAR_OK;
}
