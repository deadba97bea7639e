/*
 * valid_recipe.h - small recipe that passes all checks, which the tests of keys modify.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_CONFIG_VALID_RECIPE_H
#define INVAR_TESTS_UNIT_ENGINE_CONFIG_VALID_RECIPE_H

#define INVAR_TEST_GOOD_RECIPE                                                                     \
    "[model]\n"                                                                                    \
    "num-layers = 2\n"                                                                             \
    "hidden-size = 64\n"                                                                           \
    "ffn-hidden-size = 128\n"                                                                      \
    "num-attention-heads = 4\n"                                                                    \
    "[rollout]\n"                                                                                  \
    "prompt-data = task:max\n"                                                                     \
    "num-rollout = 3\n"                                                                            \
    "rollout-batch-size = 16\n"                                                                    \
    "n-samples-per-prompt = 8\n"                                                                   \
    "rollout-max-response-len = 4\n"                                                               \
    "rm-type = exact\n"                                                                            \
    "[engine]\n"                                                                                   \
    "numerics = ieee\n"

#endif
