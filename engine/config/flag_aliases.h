/*
 * flag_aliases.h - flags of Miles, Megatron-LM and SGLang: which key each is, or what to use
 * instead.
 *
 * The table is flag_aliases.def, and the column of Miles' flags in keys.def.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_FLAG_ALIASES_H
#define INVAR_ENGINE_CONFIG_FLAG_ALIASES_H

#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What flag_aliases.def says about a flag; the words are explained there. */
typedef enum invar_flag_alias_kind {
    INVAR_FLAG_ALIAS_KEY,
    INVAR_FLAG_ALIAS_PLUGIN,
    INVAR_FLAG_ALIAS_WORDS,
    INVAR_FLAG_ALIAS_COMMAS,
    INVAR_FLAG_ALIAS_STRINGS,
    INVAR_FLAG_ALIAS_WEIGHTS,
    INVAR_FLAG_ALIAS_ONLY,
    INVAR_FLAG_ALIAS_MOOT,
    INVAR_FLAG_ALIAS_LOST
} invar_flag_alias_kind;

typedef struct invar_flag_alias {
    invar_flag_alias_kind how;
    invar_key key;        /* INVAR_KEY_NONE: it is no key */
    const char *only;     /* ONLY: the value */
    const char *sentence; /* "" where a key takes all that the flag may say */
} invar_flag_alias;

/* What a flag without its dashes means in a script of Miles. False: nobody knows it. */
bool invar_flag_alias_find(invar_flag_alias *out, const char *name, size_t length);

/* A row of the table as it stands, for tests; false behind the last. */
bool invar_flag_alias_row(invar_flag_alias *out, const char **flags_out, int index);

#ifdef __cplusplus
}
#endif
#endif
