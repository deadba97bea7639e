/*
 * text_pipeline.h - the parts of tokenizer.json around its model: known, without effect, or
 * refused.
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

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_prepend {
    INVAR_PREPEND_NEVER,
    INVAR_PREPEND_FIRST, /* where the text begins */
    INVAR_PREPEND_ALWAYS
} invar_prepend;

/* One step of the way of a text to its words. */
typedef struct invar_pre_step {
    enum {
        INVAR_PRE_STEP_PREFIX,    /* a piece that does not begin with the literal gets it */
        INVAR_PRE_STEP_METASPACE, /* the literal for every space, and as a prefix */
        INVAR_PRE_STEP_SPLIT
    } kind;
    invar_literal literal;
    invar_prepend prepend;
    invar_splitter splitter;
} invar_pre_step;

#define INVAR_PRE_STEPS_MAX 16

/* What happens to a text before its words go to the model, and to tokens on their way back. */
typedef struct invar_text_pipeline {
    invar_normalizer normalizer;
    invar_pre_step steps[INVAR_PRE_STEPS_MAX];
    size_t n_steps;
    bool byte_level; /* the model sees the bytes of words */
    invar_text_decoder decoder;
} invar_text_pipeline;

/* `root` is the whole file; a part that would change tokens and is not known is refused. */
invar_status invar_text_pipeline_read(invar_text_pipeline *out, const json_t *root,
                                      const char *where) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
