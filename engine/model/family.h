/*
 * family.h - what sets the families of models apart.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_FAMILY_H
#define INVAR_ENGINE_MODEL_FAMILY_H

#include "engine/model/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_family_traits {
    const char *class_name; /* of transformers, before "ForCausalLM" */
    bool qkv_bias;
    bool qk_norm;
    bool windows;                 /* of attention, in the upper layers */
    bool kv_heads_optional;       /* where config.json has none, there are as many as heads */
    invar_family keys;            /* whose keys of config.json it has */
    invar_block attention, dense; /* the two halves of a layer */
    invar_block sparse;           /* instead of the second; NULL: it has no experts */
    int64_t head_dim;             /* where config.json has none; 0: hidden / heads */
} invar_family_traits;

/* `family` is in range. */
const invar_family_traits *invar_family_traits_of(invar_family family);

#ifdef __cplusplus
}
#endif
#endif
