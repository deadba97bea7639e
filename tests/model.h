/*
 * model.h - tiny models for tests: one spec per kind of block.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_MODEL_H
#define INVAR_TESTS_MODEL_H

#include "engine/model/forward.h"
#include "engine/rl/sample.h"
#include "tests/ops.h"

/* Kinds of tiny models. */
typedef enum invar_test_model {
    INVAR_TEST_MODEL_DENSE,   /* Qwen3: QK-norm, tied */
    INVAR_TEST_MODEL_BIAS,    /* Qwen2: QKV bias, untied */
    INVAR_TEST_MODEL_LLAMA,   /* llama3 rotation, untied */
    INVAR_TEST_MODEL_WINDOW,  /* Qwen2 with a sliding window in its second layer */
    INVAR_TEST_MODEL_EXPERTS, /* Qwen3-MoE, its first layer dense */
    INVAR_TEST_MODEL_COUNT
} invar_test_model;

const char *invar_test_model_name(invar_test_model kind);

/* Returns a spec of two layers, 48 wide, or 128 wide with extents that every format accepts. */
invar_model_spec invar_test_spec(invar_test_model kind, bool wide);

/* Returns a model with weights from `seed`, larger than usual so that logits differ well. */
invar_model *invar_test_model_new(invar_test_model kind, invar_format format, uint32_t seed,
                                  const invar_device *dev);

/*
 * Like invar_test_model_new, as a frozen base with adapters of `rank` on all linear layers; B is
 * zero or random.
 */
invar_model *invar_test_model_adapted(invar_test_model kind, invar_format format, uint32_t seed,
                                      int64_t rank, bool zero, const invar_device *dev);

/*
 * Copies a rank's partition of a complete model in host memory. Both return a status instead of
 * asserting, so that threads may call them. `fill` writes to an existing model, whose spec may
 * differ but whose parameters have the same extents.
 */
invar_status invar_test_model_fill(invar_model *model, const invar_model *whole,
                                   const invar_device *dev);
invar_status invar_test_model_part(invar_model **out, const invar_model *whole,
                                   const invar_layout *layout, const invar_device *dev);

/* Makes samples with random tokens: prompts of 1 to 9 and responses of 1 to `longest` tokens. */
void invar_test_samples(invar_rl_samples *out, int64_t count, int64_t longest, int64_t vocab,
                        uint64_t seed);

#endif
