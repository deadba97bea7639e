/*
 * launch_script.h - extracts the arguments that a Miles launch script passes to train.py.
 *
 * A script is bash. Supported are assignments (NAME=value, NAME=( ... ), +=), quotes, comments,
 * continued lines, here-documents, ${NAME}, ${NAME:-value}, ${NAME[@]}, and `source` of a file next
 * to the script. Nothing is executed and no environment variable is read: a value that only a shell
 * could know is marked as such, and so is a value that an if, a loop, a function or && may skip.
 * The text may be hostile: its use of memory and time is bounded.
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

#define INVAR_LAUNCH_SCRIPT_MAX_BYTES 1048576 /* limit of one file */

typedef enum invar_launch_word_state {
    INVAR_LAUNCH_SCRIPT_PLAIN,
    INVAR_LAUNCH_SCRIPT_COMPUTED,   /* set by a command, or in a way that is not supported */
    INVAR_LAUNCH_SCRIPT_BRACES,     /* {a,b} or {1..3}, which a shell expands to several words */
    INVAR_LAUNCH_SCRIPT_UNSET,      /* a variable that the script does not set */
    INVAR_LAUNCH_SCRIPT_CONDITIONAL /* set by a command that may not be executed */
} invar_launch_word_state;

typedef struct invar_launch_word {
    const char *text; /* value; if not PLAIN, the text in the script or an excerpt */
    const char *file; /* name for messages */
    int line;
    invar_launch_word_state state;
} invar_launch_word;

typedef struct invar_launch_script {
    /* (count) arguments of train.py; without such a command, the words of all arrays NAME_ARGS */
    invar_launch_word *words;
    int count;
    invar_launch_word *unread; /* (n_unread) files of `source` that were not read */
    int n_unread;
    bool async;  /* the script starts train_async.py */
    void *store; /* owns the texts */
} invar_launch_script;

/* Reads a script and the files that it sources. Release with invar_launch_script_release. */
invar_status invar_launch_script_read(invar_launch_script *out, const char *path) INVAR_MUST_USE;

/* Like invar_launch_script_read, from memory; `file` is used in messages. No other file is read. */
invar_status invar_launch_script_parse(invar_launch_script *out, const char *file, const char *text,
                                       size_t bytes) INVAR_MUST_USE;

/* Releases a script; a zeroed one is allowed. */
void invar_launch_script_release(invar_launch_script *script);

#ifdef __cplusplus
}
#endif
#endif
