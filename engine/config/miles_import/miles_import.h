/*
 * miles_import.h - converts a launch script of Miles to a recipe.
 *
 * Every flag becomes a key, or a note that says why it does not. The recipe is checked like that of
 * a run; a key that would have no effect is left out, with the reason in a note.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_MILES_IMPORT_MILES_IMPORT_H
#define INVAR_ENGINE_CONFIG_MILES_IMPORT_MILES_IMPORT_H

#include <stdio.h>

#include "engine/config/config.h"

#define INVAR_IMPORT_FLAG_SIZE 160
#define INVAR_IMPORT_WHY_SIZE 400
#define INVAR_IMPORT_MAX_BYTES 1048576                     /* limit of the script */
#define INVAR_IMPORT_MARK "# made by invar import-miles\n" /* first line of such a recipe */

/* Kinds of notes, in the order of launch_flags.py. */
typedef enum invar_import_kind {
    INVAR_IMPORT_UNKNOWN, /* a value that the reader of the script could not follow */
    INVAR_IMPORT_LOST,    /* without it, or with another value, the run differs */
    INVAR_IMPORT_CHOSEN,  /* a key that the script does not have */
    INVAR_IMPORT_MOOT,    /* no effect here */
    INVAR_IMPORT_KINDS
} invar_import_kind;

typedef struct invar_import_note {
    invar_import_kind kind;
    char flag[INVAR_IMPORT_FLAG_SIZE]; /* "--lr 1e-6", one printable line */
    const char *file;                  /* file of the script; NULL if the note has no position */
    int line;
    char why[INVAR_IMPORT_WHY_SIZE];
} invar_import_note;

typedef struct invar_import {
    struct json_t *answer; /* answer of launch_flags.py, owner of the names of files */
    invar_recipe *recipe;
    invar_import_note *notes; /* (count) notes about flags and keys */
    int count;
    /* reason why the recipe cannot be run as it is; empty if it can */
    char error[INVAR_IMPORT_WHY_SIZE];
} invar_import;

/* Converts the script at `path`. Release with invar_import_release. */
invar_status invar_import_read(invar_import *out, const char *path) INVAR_MUST_USE;

/* Releases an import; a zeroed one is allowed. */
void invar_import_release(invar_import *import);

/* Returns true if the recipe can be run and no note is INVAR_IMPORT_UNKNOWN or _LOST. */
bool invar_import_is_complete(const invar_import *import);

/* Number of keys that the recipe sets. */
int invar_import_keys(const invar_import *import);

/* Title of a kind of notes: "not taken over". */
const char *invar_import_title(invar_import_kind kind);

/* Writes the recipe as a file: the mark, the notes as comments, the keys. */
void invar_import_write(FILE *out, const invar_import *import);

#endif
