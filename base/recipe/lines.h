/*
 * lines.h - parser for the lines of a recipe's files. Private to base/recipe/.
 *
 * Knows the syntax of recipes and not their keys: classifies every line, rejects ambiguous ones,
 * and reads included files if the visitor allows them. The visitor interprets sections and keys.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_RECIPE_LINES_H
#define INVAR_BASE_RECIPE_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/recipe/recipe.h"
#include "base/status.h"

/* A part of a text, without a NUL. */
typedef struct invar_recipe_span {
    const char *start;
    size_t length;
} invar_recipe_span;

/* True for a name: 1 to 63 letters, digits, '-' and '_'. */
bool invar_recipe_is_name(invar_recipe_span name);

/* True for UTF-8 without control characters. */
bool invar_recipe_is_text(invar_recipe_span text);
bool invar_recipe_span_is(invar_recipe_span span, const char *text);

/* The location of a line. */
typedef struct invar_recipe_location {
    const char *file; /* path of the file, as shown in messages */
    int number;       /* number of the opened file, from 1; a file included twice has two numbers */
    int line;         /* number of the line, from 1 */
} invar_recipe_location;

/* Callbacks for the lines of a recipe. */
typedef struct invar_recipe_line_callbacks {
    /* Names are valid, and a section precedes each key in its file. A failure ends the parser. */
    invar_status (*section)(void *payload, const invar_recipe_location *at, invar_recipe_span name);
    invar_status (*key)(void *payload, const invar_recipe_location *at, invar_recipe_span name,
                        invar_recipe_span value);
    void *payload;
    invar_recipe_open_fn open; /* reads included files; NULL to reject includes */
    void *files;               /* payload of `open` */
} invar_recipe_line_callbacks;

/*
 * Parses `text`, the content of the file `path`, and calls the visitor for each section and key.
 * The lines of an included file replace the include.
 */
invar_status invar_recipe_read_lines(const invar_recipe_line_callbacks *visitor, const char *path,
                                     const char *text, size_t bytes) INVAR_MUST_USE;

/* invar_recipe_open_fn that reads files from the disk. */
invar_status invar_recipe_open_file(char **out, size_t *bytes_out, void *payload,
                                    const char *path) INVAR_MUST_USE;

#endif
