/*
 * foreign.h - flags of Miles, Megatron-LM and SGLang: which key each is, or what to use instead.
 *
 * The table is foreign.def, and the column of Miles' flags in keys.def.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_FOREIGN_H
#define INVAR_ENGINE_CONFIG_FOREIGN_H

#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What foreign.def says about a flag; the words are explained there. */
typedef enum invar_foreign_how {
    INVAR_FOREIGN_KEY,
    INVAR_FOREIGN_PLUGIN,
    INVAR_FOREIGN_WORDS,
    INVAR_FOREIGN_COMMAS,
    INVAR_FOREIGN_STRINGS,
    INVAR_FOREIGN_WEIGHTS,
    INVAR_FOREIGN_ONLY,
    INVAR_FOREIGN_MOOT,
    INVAR_FOREIGN_LOST
} invar_foreign_how;

typedef struct invar_foreign {
    invar_foreign_how how;
    invar_key key;        /* INVAR_KEY_NONE: it is no key */
    const char *only;     /* ONLY: the value */
    const char *sentence; /* "" where a key takes all that the flag may say */
} invar_foreign;

/* What a flag without its dashes means in a script of Miles. False: nobody knows it. */
bool invar_foreign_find(invar_foreign *out, const char *name, size_t length);

/* A row of the table as it stands, for tests; false behind the last. */
bool invar_foreign_row(invar_foreign *out, const char **flags_out, int index);

#ifdef __cplusplus
}
#endif
#endif
