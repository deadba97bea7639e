/*
 * shell_vars.h - texts, words, variables and arrays of a bash script that is read. Private to
 * engine/config/miles_import/.
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
    INVAR_SHELL_STATE_EXCERPT = 200 /* largest number of bytes shown of a word with unknown value */
};

typedef struct invar_shell_token {
    uint32_t text; /* offset in texts, NUL-terminated */
    int32_t next;  /* index of the next word of its list; -1 if it is the last */
    int32_t line;
    int16_t file;
    uint8_t state; /* invar_launch_word_state */
    bool bare;     /* nothing in it was quoted or expanded: it may be a keyword */
    int32_t name;  /* length of NAME if it is NAME=value or NAME+=value; else 0 */
} invar_shell_token;

/* List of words; both are -1 if it is empty. */
typedef struct invar_shell_token_list {
    int32_t first, last;
} invar_shell_token_list;

typedef struct invar_shell_var {
    uint32_t name; /* offset in texts */
    uint8_t state; /* invar_launch_word_state of a variable; words of an array have their own */
    bool array;
    bool inner;    /* assigned in a block, such as a function, which may run at any time */
    uint32_t text; /* value of a variable: offset in texts */
    invar_shell_token_list words; /* words of an array */
} invar_shell_var;

typedef struct invar_shell_state {
    uint32_t used; /* bytes of texts in use */
    int32_t n_words, n_names, n_files;
    uint32_t files[INVAR_SHELL_STATE_FILES]; /* names for messages: offsets in texts */
    invar_shell_token_list unread;
    invar_shell_token_list train; /* arguments of train.py */
    int32_t train_line;           /* line of that command; 0 if there is no such command */
    bool async;
    bool follow; /* read files of `source` */
    invar_shell_var names[INVAR_SHELL_STATE_NAMES];
    invar_shell_token words[INVAR_SHELL_STATE_WORDS];
    char texts[INVAR_SHELL_STATE_TEXTS];
} invar_shell_state;

/* Appends one byte to the texts; fails if they are full. */
invar_status invar_shell_state_put(invar_shell_state *shell, char byte) INVAR_MUST_USE;

/* Copies a string to the texts; *out is its offset. */
invar_status invar_shell_state_text(uint32_t *out, invar_shell_state *shell, const char *text,
                                    size_t bytes) INVAR_MUST_USE;

/* Appends a copy of a word to a list. */
invar_status invar_shell_state_add(invar_shell_token_list *list, invar_shell_state *shell,
                                   invar_shell_token word) INVAR_MUST_USE;

/* Returns the variable or array with this name; NULL if it does not exist. */
invar_shell_var *invar_shell_state_find(invar_shell_state *shell, const char *name, size_t bytes);

/* Like invar_shell_state_find, but creates the variable if it does not exist. */
invar_status invar_shell_state_define(invar_shell_var **out, invar_shell_state *shell,
                                      const char *name, size_t bytes) INVAR_MUST_USE;

/* Reads the text of file number `file`; sourced files are searched in `folder`. */
invar_status invar_shell_state_run(invar_shell_state *shell, int file, const char *folder,
                                   bool conditional, const char *text, size_t bytes) INVAR_MUST_USE;

/* Reads a file. Returns INVAR_E_INVALID also if there are too many files. */
invar_status invar_shell_state_source(invar_shell_state *shell, const char *path,
                                      bool conditional) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
