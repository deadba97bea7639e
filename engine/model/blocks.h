/*
 * blocks.h - the kinds of blocks that layers are made of, and the walk through a whole model.
 *
 * A block is one file: what it computes, as verbs of engine/model/graph/builder.h, and with them
 * which parameters it has. Everything else follows: the backward, memory, points, checkpoints.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_BLOCKS_H
#define INVAR_ENGINE_MODEL_BLOCKS_H

#include "engine/model/graph/builder.h"
#include "engine/model/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What logical tensor parallelism keeps together: vocabulary ids, features of an MLP. */
#define INVAR_ATOM_IDS 256
#define INVAR_ATOM_FEATURES 128

/* Along the rows. `pieces` is the spec's. */
static inline invar_logical_split invar_logical_split_rows(int64_t pieces, int64_t atom)
{
    invar_logical_split cut = {1, 0, 0, 1};

    if (pieces > 1) {
        cut.shards = (int32_t)pieces;
        cut.atom = atom;
    }
    return cut;
}

static inline invar_logical_split invar_logical_split_columns(int64_t pieces, int64_t atom)
{
    invar_logical_split cut = invar_logical_split_rows(pieces, atom);

    cut.columns = cut.shards > 1;
    return cut;
}

/* The residual stream after the block, in layer b->layer. */
typedef invar_tensor (*invar_block)(invar_builder *b, const invar_model_spec *spec, invar_tensor x);

invar_tensor invar_block_attention(invar_builder *b, const invar_model_spec *spec, invar_tensor x);
invar_tensor invar_block_mlp(invar_builder *b, const invar_model_spec *spec, invar_tensor x);
invar_tensor invar_block_experts(invar_builder *b, const invar_model_spec *spec, invar_tensor x);

#ifdef __cplusplus
}
#endif
#endif
