/*
 * logical_shards.h - the pieces of a model's parameters, and what the ranks that hold them know
 * together.
 *
 * A piece is hashed and squared by itself (docs/arithmetic.md, section 14): one of the cut's
 * pieces of an expert, or all of a parameter that is not cut. Pieces stand in canonical order. A
 * rank has whole pieces; one that several ranks have is given by the first of them.
 *
 * The ranks that hold one copy of a model together differ in the tensor and the pipeline axis
 * alone. Each copy puts together its own, so that copies of the data axis can be compared.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_LOGICAL_SHARDS_H
#define INVAR_ENGINE_MODEL_LOGICAL_SHARDS_H

#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of f32 in a leaf of a piece's tree hash. */
#define INVAR_LOGICAL_SHARD_LEAF_ELEMENTS ((int64_t)(INVAR_TREE_LEAF_BYTES / sizeof(float)))

/* Of a whole parameter, and of what this rank has of it. */
int64_t invar_logical_shards_of(const invar_param *param);
int64_t invar_logical_shards_here(const invar_param *param);

/* Piece number `piece` of those here, of a tensor with the weight's extents. */
invar_tensor invar_logical_shard_of(const invar_param *param, const invar_tensor *tensor,
                                    int64_t piece);

/*
 * The rows of a tensor with the weight's extents that piece number `piece` of those here has, all
 * columns of them or some, and the first piece that has a row.
 */
invar_index_range invar_logical_shard_rows(const invar_param *param, int64_t piece);
int64_t invar_logical_shard_at(const invar_param *param, int64_t row);

/*
 * Tensors whose squares are summed by themselves for what some rows have of it: the piece, where
 * they have all of it, and else its leaves, in order. `out` NULL: only their number. REDUCE over
 * the sums of all rows' is the sum of the piece.
 */
int64_t invar_logical_shard_parts(invar_tensor *out, const invar_param *param,
                                  const invar_tensor *tensor, int64_t piece,
                                  const invar_index_range *rows);

/* Those that have some of the rows. */
invar_index_range invar_logical_shards_among(const invar_param *param,
                                             const invar_index_range *rows);

/* Leaves of its tree hash among some rows, which begin and end where leaves do. */
int64_t invar_logical_shard_leaves(const invar_param *param, int64_t piece,
                                   const invar_index_range *rows);

/* What piece v of an expert has of the rows or columns that the cut divides. */
invar_index_range invar_logical_shard_share(const invar_param *param, int32_t v);

/* Who gives a piece of the cut's, of an expert: its number among those that hold the model. */
int invar_logical_shards_contributor(const invar_model *model, const invar_param *param,
                                     int64_t expert, int32_t piece);

/* Does this rank give what it has of the parameter? */
bool invar_logical_shards_is_contributor(const invar_model *model, const invar_param *param);

/*
 * `out` is what the ranks have of all pieces in canonical order: counts[i] elements (NULL: one) of
 * `size` bytes of piece i. `own` is that of the pieces that this rank gives. The host's memory; a
 * call of all ranks that hold the model together. A device that is dry gets zeros; NULL: nothing.
 */
invar_status invar_logical_shards_gather(void *out, const invar_model *model, const char *phase,
                                         const void *own, size_t size,
                                         const int64_t *counts) INVAR_MUST_USE;

/* invar_model_digests of a model that ranks divide, or whose rows they own. */
invar_status invar_logical_shards_digests(invar_digest *out, const invar_model *model,
                                          const invar_tensor *of,
                                          const invar_device *dev) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
