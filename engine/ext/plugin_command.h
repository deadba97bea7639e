/*
 * plugin_command.h - splits, locates and hashes the command line of a plug-in key.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_PLUGIN_COMMAND_H
#define INVAR_ENGINE_EXT_PLUGIN_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

#include "base/hash.h"
#include "base/status.h"

/* Words of a command. Zero-initialize before use; release with invar_plugin_argv_release. */
typedef struct invar_plugin_argv {
    char **words; /* (count) and a NULL, as exec takes them */
    size_t count; /* at least 1 */
    char *text;
} invar_plugin_argv;

/* Splits `text` at blanks; '...' and "..." keep them. `name` is used in error messages only. */
invar_status invar_plugin_argv_split(invar_plugin_argv *out, const char *name,
                                     const char *text) INVAR_MUST_USE;
void invar_plugin_argv_release(invar_plugin_argv *command);

/* Returns INVAR_E_IO if the program does not exist; searches PATH as a shell does. */
invar_status invar_plugin_argv_find(const invar_plugin_argv *command,
                                    const char *name) INVAR_MUST_USE;

/* Returns true if `spec` is a shared object, not a command. */
bool invar_plugin_argv_is_shared_object(const char *spec);

/*
 * Returns INVAR_E_IO if the shared object, or the program of the command, does not exist. Nothing
 * is loaded or started.
 */
invar_status invar_plugin_argv_locate(const char *name, const char *spec) INVAR_MUST_USE;

/*
 * Hashes a plug-in's own files: the shared object; or the program, if it is named with its path,
 * and the first argument that is a file (the script of an interpreter). If that finds no file,
 * hashes the program that PATH has. *found_out is false if no file can be read.
 */
invar_status invar_plugin_argv_hash(bool *found_out, invar_digest *out, const char *name,
                                    const char *spec) INVAR_MUST_USE;

#endif
