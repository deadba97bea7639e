/*
 * parsed.h - data sets from text, with the one tokenizer of a test program.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_FILES_DATA_PARSED_H
#define INVAR_TESTS_UNIT_ENGINE_FILES_DATA_PARSED_H

#include <string.h>

#include "engine/files/data/dataset.h"
#include "tests/support.h"

static invar_tokenizer *tokenizer; /* the program makes and frees it */

static inline invar_dataset *parsed(const invar_dataset_options *options, const char *text)
{
    invar_dataset *dataset;

    assert_ok(invar_dataset_parse(&dataset, options, tokenizer, text, strlen(text)));
    return dataset;
}

static inline void refuses(const invar_dataset_options *options, const char *text,
                           const char *message)
{
    invar_dataset *dataset;

    assert_fails(invar_dataset_parse(&dataset, options, tokenizer, text, strlen(text)),
                 INVAR_E_INVALID, message);
    assert_null(dataset);
}

#endif
