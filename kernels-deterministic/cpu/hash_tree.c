/*
 * hash_tree.c - the tree hashes of tensors, and the leaves of rows in segments.
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

static int64_t tree_shards(const invar_tensor *x, int64_t shards)
{
    return has_scales(x) ? 2 * shards : shards;
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

/* One more logical shard of the tree, for whose shards there is room. */
static void add_rows(invar_tree_input *in, invar_tree_shard *shards, const invar_tensor *x,
                     int64_t first, int64_t end)
{
    shards[in->n_shards++] = data_shard(x, first, end);
    if (has_scales(x))
        shards[in->n_shards++] = scale_shard(x, first, end);
}

/* The shards of the tree, into room for tree_shards of them. */
static invar_tree_input tree_input(const invar_tensor *x, int32_t count, invar_tree_shard *shards)
{
    invar_tree_input in = {shards, 0};
    int64_t n = x->shape[0];

    for (int64_t v = 0; v < count; v++)
        add_rows(&in, shards, x, (v * n + count - 1) / count, ((v + 1) * n + count - 1) / count);
    return in;
}

/* Leaves of all shards: each shard's last one may be short. */
static size_t most_leaves(const invar_tensor *x, int32_t shards)
{
    size_t row = (size_t)(invar_tensor_row_elements(x) * invar_dtype_bits(x->dtype) / 8);
    size_t bytes = (size_t)x->shape[0] * row + invar_tensor_scale_bytes(x);

    return bytes / INVAR_TREE_LEAF_BYTES + (size_t)tree_shards(x, shards);
}

size_t invar_cpu_hash_tree_workspace(const invar_device *dev, const invar_hash_tree_args *a)
{
    size_t most = 0;

    (void)dev;
    for (int64_t i = 0; i < a->count; i++) {
        size_t shards = (size_t)tree_shards(&a->x[i], a->shards);
        size_t bytes = shards * (sizeof(invar_tree_shard) + sizeof(int64_t)) +
                       most_leaves(&a->x[i], a->shards) * sizeof(invar_digest);
        most = bytes > most ? bytes : most;
    }
    return most;
}

invar_status invar_cpu_hash_tree(const invar_device *dev, const invar_hash_tree_args *a,
                                 void *workspace)
{
    for (int64_t i = 0; i < a->count; i++) {
        invar_tree_input in = tree_input(&a->x[i], a->shards, workspace);
        INVAR_TRY(invar_tree_hash_with(&a->digest[i], dev->pool, &in,
                                       (invar_tree_shard *)workspace + in.n_shards));
    }
    return INVAR_OK;
}

size_t invar_cpu_hash_leaves_workspace(const invar_device *dev, const invar_hash_leaves_args *a)
{
    (void)dev;
    return (size_t)tree_shards(&a->x, a->samples.count) *
           (sizeof(invar_tree_shard) + sizeof(int64_t));
}

invar_status invar_cpu_hash_leaves(const invar_device *dev, const invar_hash_leaves_args *a,
                                   void *workspace)
{
    invar_tree_shard *shards = workspace;
    invar_tree_input in = {shards, 0};

    for (int64_t i = 0; i < a->samples.count; i++)
        add_rows(&in, shards, &a->x, a->samples.start[i], a->samples.start[i + 1]);
    return invar_tree_leaves_with(a->digest, a->leaves, dev->pool, &in, shards + in.n_shards);
}
