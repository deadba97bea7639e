/*
 * plugin_command.h - what the key of a plug-in names: a shared object, or the words of a command.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_PLUGIN_COMMAND_H
#define INVAR_ENGINE_EXT_PLUGIN_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

#include "base/hash.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed at first; release. */
typedef struct invar_plugin_argv {
    char **words; /* (count), and a NULL: what exec takes */
    size_t count; /* at least 1 */
    char *text;
} invar_plugin_argv;

/* Cuts at blanks; '...' and "..." keep them. `name` is the plug-in's, for messages. */
invar_status invar_plugin_argv_cut(invar_plugin_argv *out, const char *name,
                                   const char *text) INVAR_MUST_USE;
void invar_plugin_argv_release(invar_plugin_argv *command);

/* Before it is started: INVAR_E_IO where there is no such program, as a shell looks for it. */
invar_status invar_plugin_argv_find(const invar_plugin_argv *command,
                                    const char *name) INVAR_MUST_USE;

/* True when `spec` is a shared object, not a command. */
bool invar_plugin_argv_object(const char *spec);

/*
 * Returns INVAR_E_IO if the shared object, or the program of the command, does not exist. Nothing
 * is loaded or started.
 */
invar_status invar_plugin_argv_locate(const char *name, const char *spec) INVAR_MUST_USE;

/*
 * The digest of a plug-in's own files: the shared object; or the program, if it is named with its
 * path, and the first argument that is a file, an interpreter's script. A program without either
 * is the file that PATH has for it. False: none of them can be read.
 */
invar_status invar_plugin_argv_hash(bool *found_out, invar_digest *out, const char *name,
                                    const char *spec) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
