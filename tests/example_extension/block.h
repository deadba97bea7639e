/*
 * block.h - a transformer block that only tests have.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_EXAMPLE_EXTENSION_BLOCK_H
#define INVAR_TESTS_EXAMPLE_EXTENSION_BLOCK_H

#include "engine/model/blocks.h"

invar_tensor invar_toy_block(invar_builder *b, const invar_model_spec *spec, invar_tensor x);

#endif
