/*
 * hash_tree.c - tree hashes of tensors, and leaf digests of packed samples.
 *
 * Contract (rev 1), base/hash.h and docs/arithmetic.md section 10: canonical bytes are the rows of
 * index 0 without the gaps between them. Row i of n is in logical shard floor(i V / n); with cuts,
 * a shard is a range of rows or of columns. A quantized tensor has two shards of the tree for each
 * logical one: data, then scales.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cpu/cpu.h"
#include "kernels-deterministic/math/shards.h"

#include "base/invar_banned.h"

static bool has_scales(const invar_tensor *t)
{
    return invar_dtype_scale_block(t->dtype) != 0;
}

static int64_t tree_shards(const invar_tensor *x, int64_t shards)
{
    return has_scales(x) ? 2 * shards : shards;
}

/*
 * Returns the split of tensor i: its own if it has one, else the shards of the call, of rows. A
 * tensor that is not split is one shard, even if it is a stack of experts.
 */
static invar_logical_split split_of(const invar_hash_tree_args *a, int64_t i)
{
    if (a->cuts && a->cuts[i].shards > 1)
        return a->cuts[i];
    return (invar_logical_split){.shards = a->shards, .atom = 1, .experts = 1};
}

static int64_t logical_shards(const invar_logical_split *split)
{
    return split->shards * split->experts;
}

/* Returns the shard of the rows [first, end). */
static invar_tree_shard data_shard(const invar_tensor *x, int64_t first, int64_t end)
{
    int64_t bits = invar_dtype_bits(x->dtype);

    return (invar_tree_shard){invar_tensor_rows(x, first, end - first).data, end - first,
                              (size_t)(invar_tensor_row_elements(x) * bits / 8),
                              (size_t)(x->row_stride * bits / 8)};
}

/* Returns the shard of the scales of these rows, which are contiguous. */
static invar_tree_shard scale_shard(const invar_tensor *x, int64_t first, int64_t end)
{
    invar_tensor rows = invar_tensor_rows(x, first, end - first);
    size_t bytes = invar_tensor_scale_bytes(&rows);

    return (invar_tree_shard){rows.scale, 1, bytes, bytes};
}

/* Appends one logical shard of rows. The caller has allocated tree_shards() elements. */
static void add_rows(invar_tree_input *in, invar_tree_shard *shards, const invar_tensor *x,
                     int64_t first, int64_t end)
{
    shards[in->n_shards++] = data_shard(x, first, end);
    if (has_scales(x))
        shards[in->n_shards++] = scale_shard(x, first, end);
}

/* Appends the columns [first, end) of these rows; the tensor has no scales. */
static void add_columns(invar_tree_input *in, invar_tree_shard *shards, const invar_tensor *x,
                        int64_t row, int64_t rows, int64_t first, int64_t end)
{
    invar_tensor part = invar_tensor_rows(x, row, rows);

    part = invar_tensor_columns(&part, first, end - first);
    shards[in->n_shards++] = data_shard(&part, 0, rows);
}

/* Fills `shards`, which has tree_shards() elements, and returns the input of the tree. */
static invar_tree_input tree_input(const invar_tensor *x, const invar_logical_split *split,
                                   invar_tree_shard *shards)
{
    invar_tree_input in = {shards, 0};
    int64_t rows = x->shape[0] / split->experts;

    for (int64_t v = 0; v < logical_shards(split); v++) {
        int64_t row = v / split->shards * rows, n = split->columns ? x->shape[1] : rows;
        int32_t piece = (int32_t)(v % split->shards);
        int64_t first = invar_shard_start(n, split->atom, split->shards, piece);
        int64_t end = invar_shard_start(n, split->atom, split->shards, piece + 1);
        if (split->columns)
            add_columns(&in, shards, x, row, rows, first, end);
        else
            add_rows(&in, shards, x, row + first, row + end);
    }
    return in;
}

/* Upper bound of the leaves of all shards: the last leaf of each shard may be short. */
static size_t max_leaves(const invar_tensor *x, int64_t shards)
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
        invar_logical_split split = split_of(a, i);
        size_t shards = (size_t)tree_shards(&a->x[i], logical_shards(&split));
        size_t bytes = shards * (sizeof(invar_tree_shard) + sizeof(int64_t)) +
                       max_leaves(&a->x[i], logical_shards(&split)) * sizeof(invar_digest);
        most = bytes > most ? bytes : most;
    }
    return most;
}

invar_status invar_cpu_hash_tree(const invar_device *dev, const invar_hash_tree_args *a,
                                 void *workspace)
{
    for (int64_t i = 0; i < a->count; i++) {
        invar_logical_split split = split_of(a, i);
        invar_tree_input in = tree_input(&a->x[i], &split, workspace);
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
        add_rows(&in, shards, &a->x, a->samples.offsets[i], a->samples.offsets[i + 1]);
    return invar_tree_leaves_with(a->digest, a->leaves, dev->pool, &in, shards + in.n_shards);
}
