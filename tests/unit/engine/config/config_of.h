/*
 * config_of.h - configuration of a recipe, for tests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_CONFIG_CONFIG_OF_H
#define INVAR_TESTS_UNIT_ENGINE_CONFIG_CONFIG_OF_H

#include "engine/config/config.h"

/* Returns the values of a recipe; the last 16 returned configurations are valid. */
static inline const invar_config *config_of(invar_recipe *recipe)
{
    static invar_config configs[16];
    static int next;

    return invar_config_read(&configs[next++ % 16], recipe);
}

#endif
