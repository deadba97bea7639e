/*
 * recipe.h - recipes: strict INI files, read against a schema of typed keys.
 *
 *     # a comment is a whole line and starts in the first column, with # or ;
 *     [optimizer]
 *     lr = 1e-6
 *
 * A value is the text between the first = and the end of the line, without the spaces around it; #
 * and ; are ordinary characters in it. Files are UTF-8; line ends are LF or CR LF. Ambiguous text
 * is rejected: indented lines, tabs and other control characters, a byte order mark, unknown or
 * repeated sections and keys. Every error names the file, the line and the key, or the flag.
 *
 *     include = base/qwen3.ini
 *
 * before the first section reads another recipe at this point; its path is relative to the folder
 * of this file. Values of later lines replace earlier ones, so a file overrides what it includes; a
 * key that occurs twice in one file is still rejected. Only invar_recipe_read_with_includes and
 * invar_recipe_parse_with_includes follow includes; the other readers reject them, because a
 * recorded text must not depend on other files.
 *
 * Life cycle: new, read or parse once, set per flag, check, getters. The type of a value never
 * changes.
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

#define INVAR_RECIPE_MAX_BYTES 1048576 /* maximum bytes of a file */
#define INVAR_RECIPE_MAX_LINE 65536    /* maximum bytes of a line, and of a flag's value */
#define INVAR_RECIPE_MAX_NAME 63       /* maximum bytes of a section's or key's name */
#define INVAR_RECIPE_MAX_DEPTH 8       /* maximum depth of includes */
#define INVAR_RECIPE_MAX_FILES 64      /* maximum number of files of one recipe */

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
    INVAR_RECIPE_EFFECT_SEMANTIC_IF_SET, /* like SEMANTIC if the value differs from its default;
                                            otherwise not part of the identity */
    INVAR_RECIPE_EFFECT_FREE             /* must not change bits */
} invar_recipe_effect;

/* Returns "semantic", "semantic if set" or "free". */
const char *invar_recipe_effect_name(invar_recipe_effect effect);

/* A key of a schema. Names have letters, digits, '-' and '_'. */
typedef struct invar_recipe_key {
    const char *section; /* section of the key; keys of one section are adjacent in the schema */
    const char *name;    /* unique in the schema, because it is also the name of the flag */
    invar_recipe_type type;
    invar_recipe_effect effect;
    const char *default_text;     /* default value as text; NULL if the key is required */
    int64_t int_min, int_max;     /* INT: inclusive range; both 0 for no limit */
    double float_min, float_max;  /* FLOAT: inclusive range; both 0 for no limit */
    const invar_choices *choices; /* ENUM: its words; STRING: words for listings, may be NULL */
    const char *doc;              /* one line of documentation */
    const char *see;              /* page and anchor below docs/ that explain more, or NULL */
} invar_recipe_key;

/* A key of an earlier version, and the text to write instead. */
typedef struct invar_recipe_removed_key {
    const char *name, *instead;
} invar_recipe_removed_key;

typedef struct invar_recipe_schema {
    const invar_recipe_key *keys; /* (count) keys, grouped by section */
    int count;
    const invar_recipe_removed_key *removed_keys; /* (n_gone) keys of earlier versions */
    int n_gone;
} invar_recipe_schema;

/* Returns the index of the key with this name; -1 if it is unknown. */
int invar_recipe_find(const invar_recipe_schema *schema, const char *name);

/* Returns the replacement of a removed key; NULL if no removed key has this name. */
const char *invar_recipe_replacement(const invar_recipe_schema *schema, const char *name,
                                     size_t length);

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct invar_recipe invar_recipe;

/*
 * Creates a recipe with all keys at their defaults. Also checks the schema, which must outlive the
 * recipe. The caller frees *out with invar_recipe_free.
 */
invar_status invar_recipe_new(invar_recipe **out, const invar_recipe_schema *schema) INVAR_MUST_USE;
void invar_recipe_free(invar_recipe *recipe);

/* Reads a file; includes are rejected. After a failure the recipe can only be freed. */
invar_status invar_recipe_read(invar_recipe *recipe, const char *path) INVAR_MUST_USE;

/* Like invar_recipe_read, but also reads the files that the file includes. */
invar_status invar_recipe_read_with_includes(invar_recipe *recipe, const char *path) INVAR_MUST_USE;

/* Callback that reads an included file. The caller frees *out with invar_free. */
typedef invar_status (*invar_recipe_open_fn)(char **out, size_t *bytes_out, void *payload,
                                             const char *path);

/* Like invar_recipe_read, for a text in memory; `file` is its name in errors and origins. */
invar_status invar_recipe_parse(invar_recipe *recipe, const char *file, const char *text,
                                size_t bytes) INVAR_MUST_USE;

/*
 * Like invar_recipe_parse, with `open` to read included files; `files` is its payload. Includes are
 * rejected if `open` is NULL.
 */
invar_status invar_recipe_parse_with_includes(invar_recipe *recipe, const char *file,
                                              const char *text, size_t bytes,
                                              invar_recipe_open_fn open,
                                              void *files) INVAR_MUST_USE;

/*
 * Sets a key from a flag, which overrides the file and the default; a second flag for the same key
 * is rejected. `origin` is the flag as typed, such as "--lr", for errors and listings. A failure
 * leaves the recipe unchanged.
 */
invar_status invar_recipe_set(invar_recipe *recipe, const char *name, const char *value,
                              const char *origin) INVAR_MUST_USE;

/*
 * Sets all keys to their defaults again. Only for a recipe without a file; cheaper than a new
 * recipe, which checks the schema.
 */
invar_status invar_recipe_reset(invar_recipe *recipe) INVAR_MUST_USE;

/* Returns INVAR_E_INVALID if a required key has no value. */
invar_status invar_recipe_check(const invar_recipe *recipe) INVAR_MUST_USE;

/* ---- values ---------------------------------------------------------------------------------- */

/*
 * Return a value by the index of its key in the schema. Abort if the schema has another type for
 * the key, or if the key has neither a value nor a default.
 */
bool invar_recipe_bool(const invar_recipe *recipe, int key);
int64_t invar_recipe_int(const invar_recipe *recipe, int key);
double invar_recipe_float(const invar_recipe *recipe, int key);
const char *invar_recipe_string(const invar_recipe *recipe, int key); /* borrowed from the recipe */
int invar_recipe_enum(const invar_recipe *recipe, int key, const invar_choices *choices);

/*
 * INVAR_RECIPE_ENUM(invar_decay, recipe, key) is the value of a key with the words of invar_decay.
 */
#define INVAR_RECIPE_ENUM(TYPE, recipe, key)                                                       \
    ((TYPE)invar_recipe_enum((recipe), (key), &TYPE##_choices))

typedef enum invar_recipe_source {
    INVAR_RECIPE_SOURCE_NONE, /* the key has neither a value nor a default */
    INVAR_RECIPE_SOURCE_DEFAULT,
    INVAR_RECIPE_SOURCE_FILE,
    INVAR_RECIPE_SOURCE_FLAG
} invar_recipe_source;

/* An effective value, for listings. Pointers are borrowed from the recipe. */
typedef struct invar_recipe_entry {
    const invar_recipe_key *key;
    invar_recipe_source source;
    const char *origin; /* "default", "quickstart.ini:12" or "--lr"; empty without a value */
    const char *text;   /* value in canonical form; NULL without a value */
} invar_recipe_entry;

void invar_recipe_entry_get(invar_recipe_entry *out, const invar_recipe *recipe, int key);

/*
 * True if the value belongs to the identity of the run. A key that was added after identities had
 * been recorded is SEMANTIC_IF_SET: its default is the behavior before the key existed, and a value
 * equal to the default is left out, so that recorded identities stay valid. Such a default must
 * never change.
 */
bool invar_recipe_entry_identifies(const invar_recipe_entry *entry);

#endif
