/*
 * options.h - options of a data set for tests: common keys, no chat template.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_FILES_DATA_OPTIONS_H
#define INVAR_TESTS_UNIT_ENGINE_FILES_DATA_OPTIONS_H

#include "engine/files/data/dataset.h"

/* Returns options for a file with the prompt in "input". `label_key` is empty for no label. */
static inline invar_dataset_options dataset_options(const char *path, const char *label_key)
{
    return (invar_dataset_options){.path = path,
                                   .input_key = "input",
                                   .label_key = label_key,
                                   .metadata_key = "metadata",
                                   .tool_key = "tools",
                                   .chat_template_path = "",
                                   .chat_template_kwargs = "",
                                   .hf_dir = ""};
}

#endif
