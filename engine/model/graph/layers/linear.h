/*
 * linear.h - declarations that the forward and backward of linear layers share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_LAYERS_LINEAR_H
#define INVAR_ENGINE_MODEL_GRAPH_LAYERS_LINEAR_H

#include "engine/model/graph/builder.h"

/* Linear layers of one input, as recorded for the backward. */
typedef struct invar_linear_group {
    invar_tensor x;
    int32_t count;
    bool of_experts;
    const char *name[INVAR_MAX_OUTPUTS];
    invar_tensor y[INVAR_MAX_OUTPUTS];
    invar_tensor u[INVAR_MAX_OUTPUTS]; /* low-rank intermediates of adapters; may be absent */
    invar_weight w[INVAR_MAX_OUTPUTS], bias[INVAR_MAX_OUTPUTS];
    invar_row_offsets experts;
    invar_tensor row_token;
} invar_linear_group;

/* Returns true if a product with w takes its other operand quantized. */
static inline bool invar_linear_quantizes(const invar_weight *w)
{
    return w->w.dtype == INVAR_DTYPE_FP8 || w->w.dtype == INVAR_DTYPE_MXFP8;
}

/* Declares the quantized form of x for a product with w; absent if the product takes x itself. */
invar_tensor invar_linear_codes(invar_builder *b, const invar_tensor *x, const invar_weight *w);

/*
 * Quantizes x for a product with w. The codes get a point if `name` is not NULL; codes of expert
 * rows have none, because their order is not that of a sample.
 */
invar_tensor invar_linear_quantize(invar_builder *b, const invar_tensor *x, const invar_weight *w,
                                   const char *name, bool gradient);

/*
 * Appends the backward of the layers. `codes` are the quantized gradients `d` if the op before has
 * computed them; else NULL or absent, and they are computed here.
 */
void invar_linear_group_back(invar_builder *b, const invar_linear_group *l, const invar_tensor *d,
                             const invar_tensor *codes);

#endif
