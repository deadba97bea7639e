/*
 * lora.h - adapters of linear layers, within verbs.
 *
 * docs/arithmetic.md, section 15: u = round(s * x A^T), y = round((x w^T + bias) + u B^T). The
 * products are kept as f32 and folded with one rounding.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_LAYERS_LORA_H
#define INVAR_ENGINE_MODEL_GRAPH_LAYERS_LORA_H

#include "engine/model/graph/builder.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline bool invar_adapter_is(const invar_weight *w)
{
    return invar_tensor_present(&w->adapter.a);
}

/* A layer with an adapter. */
typedef struct invar_lora_linear {
    const char *name;
    const invar_weight *w;
    invar_tensor x; /* as stored */
    invar_tensor u;
    const invar_row_offsets *experts; /* NULL: dense */
    invar_tensor row_token;           /* of experts */
} invar_lora_linear;

/* Room for u of as many rows; absent: the layer has no adapter. */
invar_tensor invar_adapter_room(invar_builder *b, const invar_weight *w, int64_t rows);

/*
 * A and B as layers of their own: the narrow sum over inputs, and over outputs in the backward, is
 * divided as the layer's is.
 */
invar_weight invar_adapter_a(const invar_weight *w);
invar_weight invar_adapter_b(const invar_weight *w);

/* u or du = round(s * low). */
void invar_adapter_scale(invar_builder *b, const invar_lora_linear *l, const invar_tensor *u,
                         const invar_tensor *low, bool gradient);

/* The gradient of A or B: of x all rows are given; of dy those that context-parallel ranks have. */
void invar_adapter_gradient(invar_builder *b, const invar_lora_linear *l, const invar_tensor *dw,
                            const invar_tensor *dy, const invar_tensor *x);

/* y = the sum of the two that lie in `sums`, rounded once. */
void invar_adapter_fold(invar_builder *b, const invar_tensor *y, const invar_tensor *sums,
                        const invar_tensor *residual);

#ifdef __cplusplus
}
#endif
#endif
