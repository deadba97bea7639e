/*
 * recipe_flags.h - recipes on the command line: a file, and every key as a flag.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RECIPE_FLAGS_H
#define INVAR_CLI_RECIPE_FLAGS_H

#include "base/recipe/recipe.h"
#include "cli/command.h"

/*
 * Takes `--key value`, `--key=value` and, for a key that is true or false, `--key` alone out of
 * argv; what is no key of a recipe stays, in order, for invar_options_parse. *argc is what is left.
 * Other names that Miles, Megatron-LM and SGLang have for a key are understood (flag_aliases.h).
 */
invar_status invar_recipe_flags_keys(invar_recipe **out, int *argc, char **argv) INVAR_MUST_USE;

/*
 * The same for a verb with a recipe: the first word that is neither a flag nor the value of one,
 * before or behind them. `options` are the verb's own. *path_out is borrowed from argv; NULL: there
 * was no such word, and all is as by default.
 */
invar_status invar_recipe_flags_recipe(invar_recipe **out, const char **path_out,
                                       const invar_option *options, int *argc,
                                       char **argv) INVAR_MUST_USE;

/* The same for verbs that need a model only: numerics is ieee where nobody says otherwise. */
invar_status invar_recipe_flags_model(invar_recipe **out, const char **path_out,
                                      const invar_option *options, int *argc,
                                      char **argv) INVAR_MUST_USE;

/*
 * Takes the keys of a recipe, by their own names, out of argv, as words for another program, ended
 * by NULL; what `options` names (of which some are keys, too) and its values stay. The values are
 * checked, as far as flags alone allow it. The caller owns *out (invar_free), not the words.
 */
invar_status invar_recipe_flags_to_argv(const char ***out, const invar_option *options, int *argc,
                                        char **argv) INVAR_MUST_USE;

/* Ends the options of a verb that reads keys, too, so that a misspelt one is recognised. */
invar_option invar_recipe_flags_end(void);

#define INVAR_RECIPE_FLAGS_TEXT_SIZE 1224

/* What a key's value may be, its default and its effect: "fp32|bf16 (default bf16), semantic". */
void invar_recipe_flags_describe(char out[INVAR_RECIPE_FLAGS_TEXT_SIZE],
                                 const invar_recipe_key *key);

/* The keys of a recipe with their values and defaults, by group, on stdout. */
void invar_recipe_flags_help(void);

/* The name of a key, with or without its dashes. */
bool invar_recipe_flags_is_key(const char *name);

/* The help of one key, which exists. */
void invar_recipe_flags_help_key(const char *name);

#endif
