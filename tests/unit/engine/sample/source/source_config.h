/*
 * source_config.h - configuration of a sample source for tests: no plug-ins, no files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_SAMPLE_SOURCE_SOURCE_CONFIG_H
#define INVAR_TESTS_UNIT_ENGINE_SAMPLE_SOURCE_SOURCE_CONFIG_H

#include "engine/config/config.h"

/* Returns the keys that a sample source reads, for rollouts of `prompts` prompts. */
static inline invar_config source_config(int64_t prompts)
{
    return (invar_config){.rollout_batch_size = prompts,
                          .load_debug_rollout_data = "",
                          .dynamic_sampling_filter_path = "",
                          .rollout_sample_filter_path = "",
                          .buffer_filter_path = "",
                          .data_source_path = ""};
}

#endif
