/*
 * miles_import.h - a launch script of Miles as a recipe.
 *
 * Every flag becomes a key, or a note that says why it does not. The recipe is checked as those of
 * a run are; a key that nothing would read here is left out, with the reason as a note.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_MILES_IMPORT_MILES_IMPORT_H
#define INVAR_ENGINE_CONFIG_MILES_IMPORT_MILES_IMPORT_H

#include <stdio.h>

#include "engine/config/config.h"
#include "engine/config/miles_import/launch_script.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_IMPORT_FLAG_SIZE 160
#define INVAR_IMPORT_WHY_SIZE 400
#define INVAR_IMPORT_MARK "# made by invar import-miles\n" /* how such a recipe begins */

typedef enum invar_import_kind {
    INVAR_IMPORT_LOST,   /* without it, or with another value, the run is another one */
    INVAR_IMPORT_CHOSEN, /* a key that the script does not have */
    INVAR_IMPORT_MOOT,   /* it has no effect here */
    INVAR_IMPORT_KINDS
} invar_import_kind;

typedef struct invar_import_note {
    invar_import_kind kind;
    char flag[INVAR_IMPORT_FLAG_SIZE]; /* "--lr 1e-6", one harmless line */
    const char *file;                  /* of the script; NULL: it stands nowhere */
    int line;
    char why[INVAR_IMPORT_WHY_SIZE];
} invar_import_note;

typedef struct invar_import {
    invar_launch_script script;
    invar_recipe *recipe;
    invar_import_note *notes; /* (count) */
    int count, room;
    char refusal[INVAR_IMPORT_WHY_SIZE]; /* why the recipe cannot be run as it is; "": it can */
} invar_import;

/* Reads the script at `path`. The caller releases it. */
invar_status invar_import_read(invar_import *out, const char *path) INVAR_MUST_USE;

/* The same from memory; it sources no files. */
invar_status invar_import_parse(invar_import *out, const char *file, const char *text,
                                size_t bytes) INVAR_MUST_USE;

/* Zeroed is fine. */
void invar_import_release(invar_import *import);

/* True when the recipe says all that the script says, as far as bits depend on it. */
bool invar_import_is_whole(const invar_import *import);

/* How many keys the recipe sets. */
int invar_import_keys(const invar_import *import);

/* What a kind of notes is about: "not taken over". */
const char *invar_import_title(invar_import_kind kind);

/* The recipe as a file: the mark, the notes as comments, the keys. */
void invar_import_write(FILE *out, const invar_import *import);

#ifdef __cplusplus
}
#endif
#endif
