/*
 * flop.h - how many floating-point operations training on samples needs, counted from the sizes of
 * the model.
 *
 * Products of matrices and attention count, a multiplication and an addition as two; norms,
 * activations, softmax and AdamW are left out, as everybody leaves them out who states an MFU. A
 * row is a token that goes through the layers: all but the last of a sequence.
 *
 *     forward   2 for each row and weight of a linear layer, of experts those that a token has;
 *               2 for each row of the head, one a token of the response, and weight of the head;
 *               4 for each query, key that it may see, head and element of a head
 *     backward  the same twice; weights that are frozen (LoRA) have no gradient: once
 *
 * What is computed again to save memory (recompute) is no work of the model and does not count.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_FLOP_H
#define INVAR_ENGINE_TRAIN_FLOP_H

#include "engine/model/model.h"
#include "engine/rl/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a forward and a backward, by the whole model, whatever part of it this rank holds. */
double invar_flop_train(const invar_model *model, const invar_rl_sample *samples, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
