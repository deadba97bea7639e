/*
 * pipeline.h - the parts of tokenizer.json around its model: known, without effect, or refused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_IO_PIPELINE_H
#define INVAR_ENGINE_IO_PIPELINE_H

#include <stdbool.h>

#include "base/status.h"
#include "engine/io/json.h"
#include "engine/text/pretokenize.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One step of the way of a text to its words. */
typedef struct invar_pre_step {
    enum {
        INVAR_PRE_STEP_SPACE, /* a piece that does not begin with a space gets one */
        INVAR_PRE_STEP_SPLIT
    } kind;
    invar_splitter splitter;
} invar_pre_step;

#define INVAR_PRE_STEPS_MAX 16

/* What happens to a text before its words go to the model. */
typedef struct invar_pipeline {
    bool compose; /* normalization form C */
    invar_pre_step steps[INVAR_PRE_STEPS_MAX];
    size_t n_steps;
} invar_pipeline;

/* `root` is the whole file; a part that would change tokens and is not known is refused. */
invar_status invar_pipeline_read(invar_pipeline *out, const json_t *root,
                                 const char *where) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
