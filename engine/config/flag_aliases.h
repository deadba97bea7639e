/*
 * flag_aliases.h - maps flags of Miles, Megatron-LM and SGLang to recipe keys, or to advice.
 *
 * The tables are flag_aliases.def and the column of Miles' flags in keys.def.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_FLAG_ALIASES_H
#define INVAR_ENGINE_CONFIG_FLAG_ALIASES_H

#include "engine/config/config.h"

/* Kind of mapping; flag_aliases.def explains the words. */
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
    invar_key key;        /* INVAR_KEY_NONE if the flag does not map to a key */
    const char *only;     /* ONLY: the supported value */
    const char *sentence; /* advice; empty if the key accepts every value of the flag */
} invar_flag_alias;

/*
 * Finds the meaning of a flag (without its dashes) in a script of Miles. Returns false if it is
 * unknown.
 */
bool invar_flag_alias_find(invar_flag_alias *out, const char *name, size_t length);

/* Returns row `index` of the table, for tests; false after the last row. */
bool invar_flag_alias_row(invar_flag_alias *out, const char **flags_out, int index);

#endif
