/*
 * hash_tree.c - the tree hash of a tensor.
 *
 * Contract (rev 1), base/hash.h and docs/arithmetic.md: canonical bytes are the rows of index 0
 * without what lies between them. Row i of n is in logical shard floor(i V / n). A quantised tensor
 * gives the tree two shards for each logical one: its data, then its scales.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/cpu.h"

#include "base/invar_banned.h"

static bool has_scales(const invar_tensor *t)
{
    return invar_dtype_scale_block(t->dtype) != 0;
}

static int64_t tree_shards(const invar_hash_tree_args *a)
{
    return has_scales(&a->x) ? 2 * (int64_t)a->shards : a->shards;
}

/* The rows [first, end). */
static invar_tree_shard data_shard(const invar_tensor *x, int64_t first, int64_t end)
{
    int64_t bits = invar_dtype_bits(x->dtype);

    return (invar_tree_shard){invar_tensor_rows(x, first, end - first).data, end - first,
                              (size_t)(invar_tensor_row_elements(x) * bits / 8),
                              (size_t)(x->row_stride * bits / 8)};
}

/* Their scales, which are contiguous. */
static invar_tree_shard scale_shard(const invar_tensor *x, int64_t first, int64_t end)
{
    invar_tensor rows = invar_tensor_rows(x, first, end - first);
    size_t bytes = invar_tensor_scale_bytes(&rows);

    return (invar_tree_shard){rows.scale, 1, bytes, bytes};
}

/* The shards of the tree, into room for tree_shards of them. */
static invar_tree_input tree_input(const invar_hash_tree_args *a, invar_tree_shard *shards)
{
    invar_tree_input in = {shards, 0};
    int64_t n = a->x.shape[0];

    for (int64_t v = 0; v < a->shards; v++) {
        int64_t first = (v * n + a->shards - 1) / a->shards;
        int64_t end = ((v + 1) * n + a->shards - 1) / a->shards;
        shards[in.n_shards++] = data_shard(&a->x, first, end);
        if (has_scales(&a->x))
            shards[in.n_shards++] = scale_shard(&a->x, first, end);
    }
    return in;
}

/* Leaves of all shards: each shard's last one may be short. */
static size_t most_leaves(const invar_hash_tree_args *a)
{
    const invar_tensor *x = &a->x;
    size_t row = (size_t)(invar_tensor_row_elements(x) * invar_dtype_bits(x->dtype) / 8);
    size_t bytes = (size_t)x->shape[0] * row + invar_tensor_scale_bytes(x);

    return bytes / INVAR_TREE_LEAF_BYTES + (size_t)tree_shards(a);
}

size_t invar_cpu_hash_tree_workspace(const invar_device *dev, const invar_hash_tree_args *a)
{
    (void)dev;
    return (size_t)tree_shards(a) * (sizeof(invar_tree_shard) + sizeof(int64_t)) +
           most_leaves(a) * sizeof(invar_digest);
}

invar_status invar_cpu_hash_tree(const invar_device *dev, const invar_hash_tree_args *a,
                                 void *workspace)
{
    invar_tree_input in = tree_input(a, workspace);

    return invar_tree_hash_with(a->digest, dev->pool, &in,
                                (invar_tree_shard *)workspace + tree_shards(a));
}
