/*
 * shell_vars.h - what the words of a script are made of: texts, variables, arrays. Private to
 * import.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_MILES_IMPORT_SHELL_VARS_H
#define INVAR_ENGINE_CONFIG_MILES_IMPORT_SHELL_VARS_H

#include <stdint.h>

#include "engine/config/miles_import/launch_script.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    INVAR_SHELL_STATE_TEXTS = 4194304, /* bytes of all words and values together */
    INVAR_SHELL_STATE_WORDS = 32768,
    INVAR_SHELL_STATE_NAMES = 512,
    INVAR_SHELL_STATE_FILES = 16,
    INVAR_SHELL_STATE_EXCERPT = 200 /* bytes shown of a word that cannot be known */
};

typedef struct invar_shell_token {
    uint32_t text; /* where it begins in texts, with a NUL at its end */
    int32_t next;  /* of its list; -1: none */
    int32_t line;
    int16_t file;
    uint8_t state; /* invar_launch_word_state */
    bool bare;     /* nothing in it was quoted or expanded: it may be a keyword */
    int32_t name;  /* bytes of NAME where it is NAME=value or NAME+=value; 0: it is neither */
} invar_shell_token;

/* Words one behind the other; both -1: none. */
typedef struct invar_shell_token_list {
    int32_t first, last;
} invar_shell_token_list;

typedef struct invar_shell_var {
    uint32_t name;
    uint8_t state;
    bool array;
    bool inner;    /* a block, as that of a function, assigns it: nobody knows when */
    uint32_t text; /* of a variable */
    invar_shell_token_list words; /* of an array */
} invar_shell_var;

typedef struct invar_shell_state {
    uint32_t used; /* of texts */
    int32_t n_words, n_names, n_files;
    uint32_t files[INVAR_SHELL_STATE_FILES]; /* names as messages show them */
    invar_shell_token_list unread;
    invar_shell_token_list train; /* behind train.py */
    int32_t train_line;           /* 0: no such command */
    bool async;
    bool follow; /* files of `source` are read */
    invar_shell_var names[INVAR_SHELL_STATE_NAMES];
    invar_shell_token words[INVAR_SHELL_STATE_WORDS];
    char texts[INVAR_SHELL_STATE_TEXTS];
} invar_shell_state;

/* One byte behind the texts; `where` is for the message about too many. */
invar_status invar_shell_state_put(invar_shell_state *shell, char byte) INVAR_MUST_USE;

/* A text of its own. */
invar_status invar_shell_state_text(uint32_t *out, invar_shell_state *shell, const char *text,
                                    size_t bytes) INVAR_MUST_USE;

/* A copy of a word at the end of a list. */
invar_status invar_shell_state_add(invar_shell_token_list *list, invar_shell_state *shell,
                                   invar_shell_token word) INVAR_MUST_USE;

/* The variable or array of this name; NULL: there is none. */
invar_shell_var *invar_shell_state_find(invar_shell_state *shell, const char *name, size_t bytes);

/* The same; where there is none, it is made. */
invar_status invar_shell_state_define(invar_shell_var **out, invar_shell_state *shell,
                                      const char *name, size_t bytes) INVAR_MUST_USE;

/* Reads a text of the script's file `file`; `folder` has the files that it sources. */
invar_status invar_shell_state_run(invar_shell_state *shell, int file, const char *folder,
                                   bool conditional, const char *text, size_t bytes) INVAR_MUST_USE;

/* Reads a file; INVAR_E_INVALID also when there are too many. */
invar_status invar_shell_state_source(invar_shell_state *shell, const char *path,
                                      bool conditional) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
