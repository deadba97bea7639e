/*
 * shell.h - what the words of a script are made of: texts, variables, arrays. Private to import.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_IMPORT_SHELL_H
#define INVAR_ENGINE_IMPORT_SHELL_H

#include <stdint.h>

#include "engine/import/script.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    INVAR_SHELL_TEXTS = 4194304, /* bytes of all words and values together */
    INVAR_SHELL_WORDS = 32768,
    INVAR_SHELL_NAMES = 512,
    INVAR_SHELL_FILES = 16,
    INVAR_SHELL_EXCERPT = 200 /* bytes shown of a word that cannot be known */
};

typedef struct invar_shell_word {
    uint32_t text; /* where it begins in texts, with a NUL at its end */
    int32_t next;  /* of its list; -1: none */
    int32_t line;
    int16_t file;
    uint8_t state; /* invar_script_state */
    bool bare;     /* nothing in it was quoted or expanded: it may be a keyword */
    int32_t name;  /* bytes of NAME where it is NAME=value or NAME+=value; 0: it is neither */
} invar_shell_word;

/* Words one behind the other; both -1: none. */
typedef struct invar_shell_list {
    int32_t first, last;
} invar_shell_list;

typedef struct invar_shell_name {
    uint32_t name;
    uint8_t state;
    bool array;
    bool inner;             /* a block, as that of a function, assigns it: nobody knows when */
    uint32_t text;          /* of a variable */
    invar_shell_list words; /* of an array */
} invar_shell_name;

typedef struct invar_shell {
    uint32_t used; /* of texts */
    int32_t n_words, n_names, n_files;
    uint32_t files[INVAR_SHELL_FILES]; /* names as messages show them */
    invar_shell_list unread;
    invar_shell_list train; /* behind train.py */
    int32_t train_line;     /* 0: no such command */
    bool async;
    bool follow; /* files of `source` are read */
    invar_shell_name names[INVAR_SHELL_NAMES];
    invar_shell_word words[INVAR_SHELL_WORDS];
    char texts[INVAR_SHELL_TEXTS];
} invar_shell;

/* One byte behind the texts; `where` is for the message about too many. */
invar_status invar_shell_put(invar_shell *shell, char byte) INVAR_MUST_USE;

/* A text of its own. */
invar_status invar_shell_text(uint32_t *out, invar_shell *shell, const char *text,
                              size_t bytes) INVAR_MUST_USE;

/* A copy of a word at the end of a list. */
invar_status invar_shell_add(invar_shell_list *list, invar_shell *shell,
                             invar_shell_word word) INVAR_MUST_USE;

/* The variable or array of this name; NULL: there is none. */
invar_shell_name *invar_shell_find(invar_shell *shell, const char *name, size_t bytes);

/* The same; where there is none, it is made. */
invar_status invar_shell_define(invar_shell_name **out, invar_shell *shell, const char *name,
                                size_t bytes) INVAR_MUST_USE;

/* Reads a text of the script's file `file`; `folder` has the files that it sources. */
invar_status invar_shell_run(invar_shell *shell, int file, const char *folder, bool conditional,
                             const char *text, size_t bytes) INVAR_MUST_USE;

/* Reads a file; INVAR_E_INVALID also when there are too many. */
invar_status invar_shell_source(invar_shell *shell, const char *path,
                                bool conditional) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
