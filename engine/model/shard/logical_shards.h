/*
 * logical_shards.h - logical shards of parameters: views, tree-hash leaves, gathering over ranks.
 *
 * A logical shard is hashed and squared by itself (docs/arithmetic.md, section 14): one shard of
 * the split of one expert, or all of a parameter that is not split. Shards have a canonical order:
 * by parameter, expert, shard. A rank holds complete logical shards; if several ranks hold the same
 * one, the first of them contributes it.
 *
 * The ranks that hold one copy of a model together differ on the tensor, expert and pipeline axes
 * only. Each copy gathers its own shards, so that data-parallel copies can be compared.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_LOGICAL_SHARDS_H
#define INVAR_ENGINE_MODEL_SHARD_LOGICAL_SHARDS_H

#include "engine/model/model.h"

/* f32 elements per leaf of a shard's tree hash. */
#define INVAR_LOGICAL_SHARD_LEAF_ELEMENTS ((int64_t)(INVAR_TREE_LEAF_BYTES / sizeof(float)))

/* Returns true if the logical shards of the parameter are ranges of columns. */
static inline bool invar_logical_shards_by_columns(const invar_param *param)
{
    return param->split.shards > 1 && param->split.columns;
}

/* Number of tree-hash leaves of a shard with this number of f32 elements. */
static inline int64_t invar_logical_shard_leaf_count(int64_t elements)
{
    return (elements + INVAR_LOGICAL_SHARD_LEAF_ELEMENTS - 1) / INVAR_LOGICAL_SHARD_LEAF_ELEMENTS;
}

/* Number of logical shards of the full parameter, and of those on this rank. */
int64_t invar_logical_shards_of(const invar_param *param);
int64_t invar_logical_shards_here(const invar_param *param);

/* View of local shard number `shard` in a tensor with the extents of the weight. */
invar_tensor invar_logical_shard_of(const invar_param *param, const invar_tensor *tensor,
                                    int64_t shard);

/*
 * Rows of local shard number `shard` in a tensor with the extents of the weight, of which it has
 * all columns or some; and the number of the first local shard that has a row.
 */
invar_index_range invar_logical_shard_rows(const invar_param *param, int64_t shard);
int64_t invar_logical_shard_at(const invar_param *param, int64_t row);

/*
 * Tensors whose squares are summed separately for some rows of a shard: the shard itself if the
 * rows include all of it, else its leaves in these rows, in order. Returns their number, which is 0
 * if no row is in the shard, and writes them to `out` unless it is NULL. REDUCE over the sums of
 * all row ranges is the sum of the shard.
 */
int64_t invar_logical_shard_parts(invar_tensor *out, const invar_param *param,
                                  const invar_tensor *tensor, int64_t shard,
                                  const invar_index_range *rows);

/* Range of the local shards that have some of the rows. */
invar_index_range invar_logical_shards_among(const invar_param *param,
                                             const invar_index_range *rows);

/*
 * Number of tree-hash leaves of a shard in some rows, which must begin and end at leaf boundaries.
 */
int64_t invar_logical_shard_leaves(const invar_param *param, int64_t shard,
                                   const invar_index_range *rows);

/* Range of rows or columns, along the split, of logical shard v of an expert. */
invar_index_range invar_logical_shard_share(const invar_param *param, int32_t v);

/*
 * Number of the rank, among those that hold the model together, that contributes a logical shard of
 * an expert.
 */
int invar_logical_shards_contributor(const invar_model *model, const invar_param *param,
                                     int64_t expert, int32_t logical_shard);

/* Returns true if this rank contributes the logical shards of the parameter that it holds. */
bool invar_logical_shards_is_contributor(const invar_model *model, const invar_param *param);

/*
 * Gathers data of all logical shards in canonical order: counts[i] elements (1 if `counts` is NULL)
 * of `size` bytes for shard i. `own` has those of the shards that this rank contributes. Host
 * memory. On a dry-run device `out` gets zeros; it may be NULL then. Collective: all ranks that
 * hold the model together must call it.
 */
invar_status invar_logical_shards_gather(void *out, const invar_model *model, const char *phase,
                                         const void *own, size_t size,
                                         const int64_t *counts) INVAR_MUST_USE;

#endif
