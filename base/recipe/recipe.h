/*
 * recipe.h - recipes: strict INI files, read against a schema of typed keys.
 *
 *     # a comment is a whole line and starts in the first column, with # or ;
 *     [optimizer]
 *     lr = 1e-6
 *
 * A value is what stands between the first = and the end of the line, without the spaces around
 * it; # and ; in it are ordinary characters. Files are UTF-8; line ends are LF or CR LF. Whatever
 * could be read in two ways is refused: indented lines, tabs and other control characters, a byte
 * order mark, unknown or repeated sections and keys. Every error names the file, the line and the
 * key, or the flag.
 *
 *     include = base/qwen3.ini
 *
 * before the first section reads another recipe there, by its path from the folder of this one.
 * Values of later lines replace those of earlier ones, so a file overrides what it includes; twice
 * in one file a key is still refused. Only what people write may include:
 * invar_recipe_read_with_includes
 * follows it, the other readers refuse it, since what was recorded must not depend on other files.
 *
 * Life: new -> read or parse, once -> set, per flag -> check -> getters. A value never changes its
 * type: what does not fit the schema is refused where it stands.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_RECIPE_RECIPE_H
#define INVAR_BASE_RECIPE_RECIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/recipe/choices.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_RECIPE_MAX_BYTES 1048576 /* of a file */
#define INVAR_RECIPE_MAX_LINE 65536    /* bytes of a line, and of a flag's value */
#define INVAR_RECIPE_MAX_NAME 63       /* bytes of a section's or key's name */
#define INVAR_RECIPE_MAX_DEPTH 8       /* of files that include each other */
#define INVAR_RECIPE_MAX_FILES 64      /* that are read for one recipe */

/* ---- the schema ------------------------------------------------------------------------------ */

typedef enum invar_recipe_type {
    INVAR_RECIPE_TYPE_BOOL,   /* true or false, nothing else */
    INVAR_RECIPE_TYPE_INT,    /* decimal, 64 bits */
    INVAR_RECIPE_TYPE_FLOAT,  /* decimal, rounded once to the nearest double; finite */
    INVAR_RECIPE_TYPE_STRING, /* UTF-8, may be empty */
    INVAR_RECIPE_TYPE_ENUM    /* one word of a list */
} invar_recipe_type;

typedef enum invar_recipe_effect {
    INVAR_RECIPE_EFFECT_SEMANTIC,        /* may change bits: belongs to the identity of the run */
    INVAR_RECIPE_EFFECT_SEMANTIC_IF_SET, /* the same, but only where it differs from its default */
    INVAR_RECIPE_EFFECT_FREE             /* must not change bits */
} invar_recipe_effect;

/* "semantic", "semantic if set" or "free". */
const char *invar_recipe_effect_name(invar_recipe_effect effect);

/* Names consist of letters, digits, '-' and '_'. */
typedef struct invar_recipe_key {
    const char *section; /* keys of one section stand together */
    const char *name;    /* unique in the whole schema, because it is also the flag's name */
    invar_recipe_type type;
    invar_recipe_effect effect;
    const char *default_text;     /* the default as it would stand in a file; NULL: must be given */
    int64_t int_min, int_max;     /* INT: the range, ends included; both 0: no limit */
    double float_min, float_max;  /* FLOAT: the same */
    const invar_choices *choices; /* ENUM: its words; STRING: what listings show, or NULL */
    const char *doc;              /* one line */
} invar_recipe_key;

/* A key of an earlier version, and what to write in its place. */
typedef struct invar_recipe_removed_key {
    const char *name, *instead;
} invar_recipe_removed_key;

typedef struct invar_recipe_schema {
    const invar_recipe_key *keys; /* (count) */
    int count;
    const invar_recipe_removed_key *removed_keys; /* (n_gone) */
    int n_gone;
} invar_recipe_schema;

/* The index of the key with this name, -1 when there is none. */
int invar_recipe_find(const invar_recipe_schema *schema, const char *name);

/* What to use for a key that is gone; NULL: there never was one of this name. */
const char *invar_recipe_replacement(const invar_recipe_schema *schema, const char *name,
                                     size_t length);

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct invar_recipe invar_recipe;

/* All keys at their defaults. Checks the schema itself, too. The schema must outlive the recipe. */
invar_status invar_recipe_new(invar_recipe **out, const invar_recipe_schema *schema) INVAR_MUST_USE;
void invar_recipe_free(invar_recipe *recipe);

/* Reads the file. After a failure the recipe holds part of it and can only be freed. */
invar_status invar_recipe_read(invar_recipe *recipe, const char *path) INVAR_MUST_USE;

/* The same with the files that it includes. */
invar_status invar_recipe_read_with_includes(invar_recipe *recipe, const char *path) INVAR_MUST_USE;

/* The text of an included file; whoever calls it frees *out (invar_free). */
typedef invar_status (*invar_recipe_open_fn)(char **out, size_t *bytes_out, void *payload,
                                             const char *path);

/* The same from memory; `file` names it in errors and origins. */
invar_status invar_recipe_parse(invar_recipe *recipe, const char *file, const char *text,
                                size_t bytes) INVAR_MUST_USE;

/* The same where `open` reads the files that it includes, with `files`; NULL: none. */
invar_status invar_recipe_parse_with_includes(invar_recipe *recipe, const char *file,
                                              const char *text, size_t bytes,
                                              invar_recipe_open_fn open,
                                              void *files) INVAR_MUST_USE;

/*
 * A flag: overrides the file and the default; the same key twice is refused. `origin` is what
 * errors and listings show, the flag as typed: "--lr". A failure leaves the recipe as it was.
 */
invar_status invar_recipe_set(invar_recipe *recipe, const char *name, const char *value,
                              const char *origin) INVAR_MUST_USE;

/*
 * Sets all keys back to their defaults, for a recipe that was made of flags alone. It costs less
 * than a new recipe, which checks the schema.
 */
invar_status invar_recipe_reset(invar_recipe *recipe) INVAR_MUST_USE;

/* Fails when a key without a default was not given. */
invar_status invar_recipe_check(const invar_recipe *recipe) INVAR_MUST_USE;

/* ---- values ---------------------------------------------------------------------------------- */

/*
 * Typed access by index in the schema. To ask for another type than the schema's, or for a value
 * that neither exists nor has a default, is an error of the program and aborts.
 */
bool invar_recipe_bool(const invar_recipe *recipe, int key);
int64_t invar_recipe_int(const invar_recipe *recipe, int key);
double invar_recipe_float(const invar_recipe *recipe, int key);
const char *invar_recipe_string(const invar_recipe *recipe, int key); /* borrowed from the recipe */
int invar_recipe_enum(const invar_recipe *recipe, int key, const invar_choices *choices);

/* INVAR_RECIPE_ENUM(invar_decay, recipe, key): of a key that has the words of invar_decay. */
#define INVAR_RECIPE_ENUM(TYPE, recipe, key)                                                       \
    ((TYPE)invar_recipe_enum((recipe), (key), &TYPE##_choices))

typedef enum invar_recipe_source {
    INVAR_RECIPE_SOURCE_NONE, /* no default and not given */
    INVAR_RECIPE_SOURCE_DEFAULT,
    INVAR_RECIPE_SOURCE_FILE,
    INVAR_RECIPE_SOURCE_FLAG
} invar_recipe_source;

/* One effective value, for listings. The pointers are borrowed from the recipe. */
typedef struct invar_recipe_entry {
    const invar_recipe_key *key;
    invar_recipe_source source;
    const char *origin; /* "default", "quickstart.ini:12", "--lr"; "" when there is no value */
    const char *text;   /* the value in canonical form; NULL when there is none */
} invar_recipe_entry;

void invar_recipe_entry_get(invar_recipe_entry *out, const invar_recipe *recipe, int key);

/*
 * True if the value belongs to the identity of the run. A key that is added once identities are
 * recorded is SEMANTIC_IF_SET: its default means what was done before the key existed, and a value
 * equal to the default is left out, so that recorded identities stay what they are. Such a default
 * may never change.
 */
bool invar_recipe_entry_identifies(const invar_recipe_entry *entry);

/*
 * The values that belong to the identity, in schema order, as a recipe that reads back to the same
 * values. Equal values give equal bytes, however they were written and wherever they came
 * from: numbers are printed in their shortest exact form. The caller owns *out (invar_free).
 */
invar_status invar_recipe_canonical(char **out, size_t *bytes_out,
                                    const invar_recipe *recipe) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
