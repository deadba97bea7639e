/*
 * recipe_flags.h - reads a recipe from a file and from command-line flags, one per key.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_RECIPE_FLAGS_H
#define INVAR_CLI_RECIPE_FLAGS_H

#include "cli/command.h"
#include "engine/config/config.h"

/*
 * Takes `--key value`, `--key=value` and, for a boolean key, `--key` out of argv and sets the keys.
 * Words that are not recipe keys stay in argv, in order, for invar_options_parse, and *argc is
 * their number. Names of Miles, Megatron-LM and SGLang are accepted (flag_aliases.h).
 */
invar_status invar_recipe_flags_keys(invar_config *out, int *argc, char **argv) INVAR_MUST_USE;

/*
 * Like invar_recipe_flags_keys, for commands with a recipe file: the first word that is neither a
 * flag nor the value of one. The command's own `options` are parsed, too. *path_out is borrowed
 * from argv; NULL if there is no file, and keys without a flag have their defaults.
 */
invar_status invar_recipe_flags_recipe(invar_config *out, const char **path_out,
                                       const invar_option *options, int *argc,
                                       char **argv) INVAR_MUST_USE;

/*
 * Like invar_recipe_flags_recipe, for commands that need only a model: numerics defaults to ieee.
 */
invar_status invar_recipe_flags_model(invar_config *out, const char **path_out,
                                      const invar_option *options, int *argc,
                                      char **argv) INVAR_MUST_USE;

/*
 * Moves recipe keys with their values from argv to *out, as NULL-terminated words for another
 * program. Aliases are not accepted. Names in `options`, some of which are also keys, stay in argv.
 * Values are checked as far as possible without a recipe. The caller frees *out with invar_free;
 * the words are borrowed from argv.
 */
invar_status invar_recipe_flags_to_argv(const char ***out, const invar_option *options, int *argc,
                                        char **argv) INVAR_MUST_USE;

/* End of the options of commands that read recipe keys, so that misspelt keys are recognized. */
#define INVAR_RECIPE_FLAGS_END                                                                     \
    {                                                                                              \
        .value = &invar_recipe_flags_names                                                         \
    }
extern invar_option_names invar_recipe_flags_names;

#define INVAR_RECIPE_FLAGS_TEXT_SIZE 1224

/* Formats values, default and effect of a key: "fp32|bf16 (default bf16), semantic". */
void invar_recipe_flags_describe(char out[INVAR_RECIPE_FLAGS_TEXT_SIZE],
                                 const invar_recipe_key *key);

/* Prints all keys with values and defaults to stdout, by section. */
void invar_recipe_flags_help(void);

/* Returns true if `name` is a key, with or without leading dashes. */
bool invar_recipe_flags_is_key(const char *name);

/* Prints the help of one key, which must exist. */
void invar_recipe_flags_help_key(const char *name);

#endif
