/*
 * parsed.h - parses data sets from text with the tokenizer of the test program.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_FILES_DATA_PARSED_H
#define INVAR_TESTS_UNIT_ENGINE_FILES_DATA_PARSED_H

#include <string.h>

#include "engine/files/data/dataset.h"
#include "tests/support.h"

static invar_tokenizer *tokenizer; /* the test program creates and frees it */

/* Returns the data set; the caller closes it. */
static inline invar_dataset *parse_dataset(const invar_dataset_options *options, const char *text)
{
    invar_dataset *dataset;

    assert_ok(invar_dataset_parse(&dataset, options, tokenizer, text, strlen(text)));
    return dataset;
}

/* Asserts that the text is rejected with this message. */
static inline void assert_rejected(const invar_dataset_options *options, const char *text,
                                   const char *message)
{
    invar_dataset *dataset;

    assert_fails(invar_dataset_parse(&dataset, options, tokenizer, text, strlen(text)),
                 INVAR_E_INVALID, message);
    assert_null(dataset);
}

#endif
