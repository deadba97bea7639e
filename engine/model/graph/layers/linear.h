/*
 * linear.h - linear layers from the inside: what their forward and their backward share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_LAYERS_LINEAR_H
#define INVAR_ENGINE_MODEL_GRAPH_LAYERS_LINEAR_H

#include "engine/model/graph/builder.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Layers of one input. */
typedef struct invar_linear_group {
    invar_tensor x;
    int32_t count;
    bool of_experts;
    const char *name[INVAR_MAX_OUTPUTS];
    invar_tensor y[INVAR_MAX_OUTPUTS];
    invar_tensor u[INVAR_MAX_OUTPUTS]; /* of adapters; absent: none */
    invar_weight w[INVAR_MAX_OUTPUTS], bias[INVAR_MAX_OUTPUTS];
    invar_row_offsets experts;
    invar_tensor row_token;
} invar_linear_group;

/* Whether a product with w takes codes for what it is given. */
static inline bool invar_linear_quantizes(const invar_weight *w)
{
    return w->w.dtype == INVAR_DTYPE_FP8 || w->w.dtype == INVAR_DTYPE_MXFP8;
}

/* Room for what a product with w takes for x; absent: x itself. */
invar_tensor invar_linear_codes(invar_builder *b, const invar_tensor *x, const invar_weight *w);

/* What it takes. Rows of slots have no point: their codes are in an order that is no sample's. */
invar_tensor invar_linear_quantize(invar_builder *b, const invar_tensor *x, const invar_weight *w,
                                   const char *name, bool gradient);

/* `codes` of the gradients d, where the op before has made them; absent: made here. */
void invar_linear_group_back(invar_builder *b, const invar_linear_group *l, const invar_tensor *d,
                             const invar_tensor *codes);

#ifdef __cplusplus
}
#endif
#endif
