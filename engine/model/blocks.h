/*
 * blocks.h - blocks of a decoder layer: attention, MLP, mixture of experts.
 *
 * A block is one file: the computation in layer functions of engine/model/graph/builder.h, which
 * also declares its parameters. Backward, memory planning, points and checkpoints are derived.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_BLOCKS_H
#define INVAR_ENGINE_MODEL_BLOCKS_H

#include "engine/model/graph/builder.h"
#include "engine/model/spec/spec.h"

/*
 * Atoms of logical tensor parallelism, which a logical shard never splits: vocabulary ids, features
 * of an MLP.
 */
#define INVAR_ATOM_IDS 256
#define INVAR_ATOM_FEATURES 128

/* Logical split into `pieces` shards along rows (or columns); no split if pieces is 0 or 1. */
static inline invar_logical_split invar_logical_split_rows(int64_t pieces, int64_t atom)
{
    invar_logical_split split = {1, 0, 0, 1};

    if (pieces > 1) {
        split.shards = (int32_t)pieces;
        split.atom = atom;
    }
    return split;
}

static inline invar_logical_split invar_logical_split_columns(int64_t pieces, int64_t atom)
{
    invar_logical_split split = invar_logical_split_rows(pieces, atom);

    split.columns = split.shards > 1;
    return split;
}

/* Builds a block in layer b->layer and returns the residual stream after it. */
typedef invar_tensor (*invar_block)(invar_builder *b, const invar_model_spec *spec, invar_tensor x);

invar_tensor invar_block_attention(invar_builder *b, const invar_model_spec *spec, invar_tensor x);
invar_tensor invar_block_mlp(invar_builder *b, const invar_model_spec *spec, invar_tensor x);
invar_tensor invar_block_experts(invar_builder *b, const invar_model_spec *spec, invar_tensor x);

#endif
