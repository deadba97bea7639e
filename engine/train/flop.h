/*
 * flop.h - counts the floating-point operations of training, for throughput and MFU.
 *
 * Matrix products and attention count, with a multiplication and an addition as two operations.
 * Norms, activations, softmax and AdamW do not count, as is usual for MFU. A row is a token that
 * goes through the layers: every token of a sample except the last.
 *
 *     forward   2 per row and weight of a linear layer (experts: those of the token);
 *               2 per response token and weight of the head;
 *               4 per query, visible key, head and element of a head
 *     backward  twice the forward; once for frozen weights (LoRA), which have no gradient
 *
 * Activation recomputation (recompute) is not work of the model and does not count.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_FLOP_H
#define INVAR_ENGINE_TRAIN_FLOP_H

#include "engine/model/model.h"
#include "engine/rl/sample.h"

/*
 * Returns the operations of a forward and a backward over the samples, for the complete model,
 * whatever part of it this rank holds.
 */
double invar_flop_train(const invar_model *model, const invar_rl_sample *samples, int64_t count);

#endif
