/*
 * lines.h - the lines of a recipe's files, one after another. Private to the recipe.
 *
 * Knows how a recipe is written, not which keys there are: of every line it finds out what it is,
 * refuses what could be read in two ways, and follows "include" where it is told to. Whoever visits
 * the lines decides what they mean.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_RECIPE_LINES_H
#define INVAR_BASE_RECIPE_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/recipe/recipe.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A piece of a file. Not NUL-terminated. */
typedef struct invar_recipe_span {
    const char *start;
    size_t length;
} invar_recipe_span;

/* True of 1 to 63 letters, digits, '-' and '_'. */
bool invar_recipe_is_name(invar_recipe_span name);

/* True of UTF-8 without control characters. */
bool invar_recipe_is_text(invar_recipe_span text);
bool invar_recipe_span_is(invar_recipe_span span, const char *text);

/* Where a line stands. */
typedef struct invar_recipe_location {
    const char *file; /* its path in messages */
    int number;       /* of the file, from 1 on: one that is included twice has two */
    int line;
} invar_recipe_location;

typedef struct invar_recipe_visitor {
    /* The names are valid ones; a key has a section before it in its own file. */
    invar_status (*section)(void *payload, const invar_recipe_location *at, invar_recipe_span name);
    invar_status (*key)(void *payload, const invar_recipe_location *at, invar_recipe_span name,
                        invar_recipe_span value);
    void *payload;
    invar_recipe_open_fn open; /* of included files; NULL: an include is refused */
    void *files;               /* payload of `open` */
} invar_recipe_visitor;

/* `text` is that of the file `path`; the lines of an included file come in place of the include. */
invar_status invar_recipe_visit(const invar_recipe_visitor *visitor, const char *path,
                                const char *text, size_t bytes) INVAR_MUST_USE;

/* invar_recipe_open_fn of files on the disk. */
invar_status invar_recipe_open_file(char **out, size_t *bytes_out, void *payload,
                                    const char *path) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
