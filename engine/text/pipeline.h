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

/* What happens to a text before its words go to the model. */
typedef struct invar_pipeline {
    bool compose;      /* normalization form C */
    bool prefix_space; /* a piece of text that does not begin with a space gets one */
    invar_pattern pattern;
} invar_pipeline;

/* `root` is the whole file; a part that would change tokens and is not known is refused. */
invar_status invar_pipeline_read(invar_pipeline *out, const json_t *root,
                                 const char *where) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
