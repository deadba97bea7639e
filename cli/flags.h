/*
 * flags.h - recipes on the command line: a file, and every key as a flag.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_FLAGS_H
#define INVAR_CLI_FLAGS_H

#include "base/recipe.h"
#include "cli/verb.h"

/*
 * Takes `--key value`, `--key=value` and, for a key that is true or false, `--key` alone out of
 * argv; what is no key of a recipe stays, in order, for invar_options_parse. *argc is what is left.
 * `path` is the recipe file, and no other word may stay then; NULL: none, defaults and flags only.
 */
invar_status invar_flags_recipe(invar_recipe **out, const char *path, int *argc,
                                char **argv) INVAR_MUST_USE;

/*
 * The same for verbs that need a model only: the first word, if it is no flag, is the recipe, and
 * numerics is ieee where nobody says otherwise. What is left of argv are options.
 */
invar_status invar_flags_model(invar_recipe **out, int *argc, char **argv) INVAR_MUST_USE;

/*
 * Takes the keys of a recipe out of argv, as words for another program, ended by NULL;
 * what `options` names (of which some are keys, too) and its values stay. The values are checked,
 * as far as flags alone allow it. The caller owns *out (invar_free), not the words.
 */
invar_status invar_flags_words(const char ***out, const invar_option *options, int *argc,
                               char **argv) INVAR_MUST_USE;

/* The keys of a recipe with their defaults, by group, on stdout. */
void invar_flags_help(void);

#endif
