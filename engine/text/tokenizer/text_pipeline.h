/*
 * text_pipeline.h - normalizer, pre-tokenizer, post-processor and decoder of tokenizer.json.
 *
 * A component that is not known and may change tokens is rejected. Components without effect, such
 * as post-processors that only add special tokens, are accepted and ignored.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_TEXT_PIPELINE_H
#define INVAR_ENGINE_TEXT_TOKENIZER_TEXT_PIPELINE_H

#include <stdbool.h>

#include "base/json/json.h"
#include "base/status.h"
#include "engine/text/normalize.h"
#include "engine/text/pretokenize.h"
#include "engine/text/tokenizer/decoder.h"

typedef enum invar_prepend {
    INVAR_PREPEND_NEVER,
    INVAR_PREPEND_FIRST, /* only at the beginning of the text */
    INVAR_PREPEND_ALWAYS
} invar_prepend;

/* One step of the pre-tokenizer. */
typedef struct invar_pre_step {
    enum {
        INVAR_PRE_STEP_PREFIX,    /* puts the literal before a piece that does not begin with it */
        INVAR_PRE_STEP_METASPACE, /* replaces every space by the literal, and adds it as a prefix */
        INVAR_PRE_STEP_SPLIT
    } kind;
    invar_literal literal;
    invar_prepend prepend;
    invar_splitter splitter;
} invar_pre_step;

#define INVAR_PRE_STEPS_MAX 16

/* Steps of a text around the model, for encoding and decoding. */
typedef struct invar_text_pipeline {
    invar_normalizer normalizer;
    invar_pre_step steps[INVAR_PRE_STEPS_MAX];
    size_t n_steps;
    bool byte_level; /* the model encodes the bytes of words */
    invar_text_decoder decoder;
} invar_text_pipeline;

/*
 * Reads the components. `root` is the complete file. Returns INVAR_E_UNSUPPORTED for a component
 * that is not known and may change tokens.
 */
invar_status invar_text_pipeline_read(invar_text_pipeline *out, const json_t *root,
                                      const char *where) INVAR_MUST_USE;

#endif
