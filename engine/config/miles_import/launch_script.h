/*
 * launch_script.h - the words that a launch script of Miles hands to train.py, without executing
 * it.
 *
 * A script is bash. Read are assignments (NAME=value, NAME=( ... ), +=), quotes, comments,
 * continued lines, here-documents, ${NAME}, ${NAME:-value}, ${NAME[@]}, and `source` of a file
 * beside the script. Nothing is executed and no variable of the environment is read: a value that
 * only a shell could know is marked as such, and so is what an if, a loop, a function or && may
 * leave out. The text may be hostile: all that it can take is bounded.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_MILES_IMPORT_LAUNCH_SCRIPT_H
#define INVAR_ENGINE_CONFIG_MILES_IMPORT_LAUNCH_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_LAUNCH_SCRIPT_MAX_BYTES 1048576 /* of a file */

typedef enum invar_launch_word_state {
    INVAR_LAUNCH_SCRIPT_PLAIN,
    INVAR_LAUNCH_SCRIPT_COMPUTED,   /* by a command, or in a way that is not read */
    INVAR_LAUNCH_SCRIPT_BRACES,     /* {a,b} or {1..3}, of which a shell makes several words */
    INVAR_LAUNCH_SCRIPT_UNSET,      /* a variable that the script does not set */
    INVAR_LAUNCH_SCRIPT_CONDITIONAL /* set by what may not be executed */
} invar_launch_word_state;

typedef struct invar_launch_word {
    const char *text; /* not PLAIN: as it stands in the script, or an excerpt */
    const char *file; /* as messages show it */
    int line;
    invar_launch_word_state state;
} invar_launch_word;

typedef struct invar_launch_script {
    invar_launch_word *words; /* (count) behind train.py, else of all arrays NAME_ARGS */
    int count;
    invar_launch_word *unread; /* (n_unread) files of `source` that were not read */
    int n_unread;
    bool async;  /* it starts train_async.py */
    void *store; /* of the texts */
} invar_launch_script;

/* Reads a script, and files that it sources. The caller releases what was read. */
invar_status invar_launch_script_read(invar_launch_script *out, const char *path) INVAR_MUST_USE;

/* The same from memory; `file` names it. No other file is read. */
invar_status invar_launch_script_parse(invar_launch_script *out, const char *file, const char *text,
                                       size_t bytes) INVAR_MUST_USE;

/* Zeroed is fine. */
void invar_launch_script_release(invar_launch_script *script);

#ifdef __cplusplus
}
#endif
#endif
