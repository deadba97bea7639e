/*
 * format.h - number formats of a model: their names, storage types and block sizes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_FORMAT_H
#define INVAR_ENGINE_MODEL_FORMAT_H

#include "base/recipe/choices.h"
#include "kernels-deterministic/ops.h"

/* Number format of the linear layers. Everything else is stored as f32 for fp32, else as bf16. */
typedef enum invar_format {
#define INVAR_FORMAT(ID, ...) INVAR_FORMAT_##ID,
#include "engine/model/formats.def"
#undef INVAR_FORMAT
    INVAR_FORMAT_COUNT
} invar_format;

extern const invar_choices invar_format_choices; /* words of recipes and of --dtype */

/* Returns the word of recipes and of --dtype, such as "mxfp8"; NULL if out of range. */
const char *invar_format_name(invar_format format);

/* Types and extents of a format. */
typedef struct invar_format_traits {
    invar_dtype storage; /* activations, norms, biases, embedding and head */
    invar_dtype linear;  /* weights of the linear layers */
    int32_t scale_rows;  /* rows per scale of a quantized weight */
    int64_t in_block;    /* columns of a linear layer are a multiple of it */
    int64_t out_block;   /* rows of a linear layer are a multiple of it */
} invar_format_traits;

/* Returns the traits of a valid format. */
const invar_format_traits *invar_format_traits_of(invar_format format);

/* Storage type of activations, norms, biases, embedding and head. */
invar_dtype invar_format_storage(invar_format format);

/* Width that groups of heads are a multiple of, so that no scale block is split. */
int64_t invar_format_head_block(invar_format format);

#endif
