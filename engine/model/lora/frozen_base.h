/*
 * frozen_base.h - identity of a frozen base, whose weights have no masters.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_LORA_FROZEN_BASE_H
#define INVAR_ENGINE_MODEL_LORA_FROZEN_BASE_H

#include "engine/model/model.h"

/*
 * Computes the digest of all weights of a frozen base in the form that ops of a single rank read.
 * Collective over the layout if ranks divide the model.
 */
invar_status invar_base_hash(invar_digest *out, const invar_model *model,
                             const invar_device *dev) INVAR_MUST_USE;

#endif
