/*
 * family.h - traits of model families: blocks, switches, and defaults of config.json keys.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_FAMILY_H
#define INVAR_ENGINE_MODEL_FAMILY_H

#include "engine/model/blocks.h"

typedef struct invar_family_traits {
    const char *class_name; /* prefix of the transformers class, before "ForCausalLM" */
    bool qkv_bias;
    bool qk_norm;
    bool windows;                 /* upper layers may have sliding-window attention */
    bool kv_heads_optional;       /* config.json may omit num_key_value_heads: it then equals the
                                     number of heads */
    invar_family keys;            /* family whose config.json keys apply */
    invar_block attention, dense; /* blocks of a layer */
    invar_block sparse;           /* replaces `dense` in sparse layers; NULL if the family has no
                                     experts */
    int64_t head_dim;             /* default of head_dim in config.json; 0 for hidden / heads */
} invar_family_traits;

/* Returns the traits; `family` must be in range. */
const invar_family_traits *invar_family_traits_of(invar_family family);

#endif
