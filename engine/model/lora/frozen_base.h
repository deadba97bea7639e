/*
 * frozen_base.h - the weights of a frozen base, of which no master is kept.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_LORA_FROZEN_BASE_H
#define INVAR_ENGINE_MODEL_LORA_FROZEN_BASE_H

#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The hash of all weights of a frozen base, as ops of one rank read them. Where ranks divide the
 * model, a call of all ranks of its layout.
 */
invar_status invar_base_hash(invar_digest *out, const invar_model *model,
                             const invar_device *dev) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
