/*
 * lora.h - low-rank adapters (LoRA) of linear layers, for layer functions.
 *
 * docs/arithmetic.md, section 15: u = round(s * x A^T), y = round((x w^T + bias) + u B^T). The
 * products are kept as f32 and folded with one rounding.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_LAYERS_LORA_H
#define INVAR_ENGINE_MODEL_GRAPH_LAYERS_LORA_H

#include "engine/model/graph/builder.h"

static inline bool invar_adapter_present(const invar_weight *w)
{
    return invar_tensor_present(&w->adapter.a);
}

/* A linear layer with an adapter. */
typedef struct invar_lora_linear {
    const char *name;
    const invar_weight *w;
    invar_tensor x; /* input in the storage type */
    invar_tensor u;
    const invar_row_offsets *experts; /* row offsets of experts; NULL for a dense layer */
    invar_tensor row_token;           /* token of each row; experts only */
} invar_lora_linear;

/* Declares u for `rows` rows; absent if the layer has no adapter. */
invar_tensor invar_adapter_buffer(invar_builder *b, const invar_weight *w, int64_t rows);

/*
 * Return A and B as layers of their own. A is divided over ranks if the layer's inputs are, B if
 * its outputs are.
 */
invar_weight invar_adapter_a(const invar_weight *w);
invar_weight invar_adapter_b(const invar_weight *w);

/*
 * Appends u = round(s * low), or du of the backward; `low` is the f32 product of x and A, or of dy
 * and B.
 */
void invar_adapter_scale(invar_builder *b, const invar_lora_linear *l, const invar_tensor *u,
                         const invar_tensor *low, bool gradient);

/*
 * Appends the gradient of A or B. `x` has all rows; `dy` has the rows of this context-parallel
 * rank, or all rows by expert if the layer has experts.
 */
void invar_adapter_gradient(invar_builder *b, const invar_lora_linear *l, const invar_tensor *dw,
                            const invar_tensor *dy, const invar_tensor *x);

/* y = the sum of both products in `sums`, plus `residual` if present, rounded once. */
void invar_adapter_fold(invar_builder *b, const invar_tensor *y, const invar_tensor *sums,
                        const invar_tensor *residual);

#endif
