/*
 * shell_scanner.h - scanner state of a bash script: position, open blocks, current word. Private to
 * engine/config/miles_import/.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_CONFIG_MILES_IMPORT_SHELL_SCANNER_H
#define INVAR_ENGINE_CONFIG_MILES_IMPORT_SHELL_SCANNER_H

#include "engine/config/miles_import/shell_vars.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_SHELL_NESTING 64
#define INVAR_SHELL_DELIMITER 64

typedef struct invar_shell_scanner {
    invar_shell_state *shell;
    const char *position, *end;
    const char *folder;
    int file;
    int32_t line;
    bool conditional;               /* the complete file may be skipped by the script */
    bool chained;                   /* the command follows &&, || or | */
    char open[INVAR_SHELL_NESTING]; /* open constructs: first letter of a keyword, or ( or { */
    int nesting;
    invar_shell_token_list command;
    invar_shell_token_list *list; /* destination of words: `command`, or an array */
    /* end of the here-document after this line; empty if there is no document */
    char delimiter[INVAR_SHELL_DELIMITER + 1];
    // state of the word that is being read
    const char *word_begin; /* its first byte in the file */
    uint32_t start;         /* its offset in shell->texts */
    int32_t from_line;
    /* active: there is a word, which may be empty (""); bare and name as in invar_shell_token */
    bool active, bare;
    invar_launch_word_state state;
    int32_t name;
} invar_shell_scanner;

/* Fails with file, line and `why`. */
invar_status invar_shell_fail(const invar_shell_scanner *r, const char *why) INVAR_MUST_USE;

bool invar_shell_is_blank(char c);

/* Length of the name at `at`; 0 if there is no name. */
size_t invar_shell_name_length(const char *at, const char *end);

/* Returns the next byte of the file, and counts lines. */
char invar_shell_next(invar_shell_scanner *r);

/*
 * Reads one word to the list, up to a blank or an operator; an array, NAME=( ... ), is assigned and
 * adds no word. The file must not be at its end.
 */
invar_status invar_shell_read_word(invar_shell_scanner *r) INVAR_MUST_USE;

/* Skips to the newline, which stays. */
void invar_shell_skip_comment(invar_shell_scanner *r);

/* Returns true if `word` is one of the blank-separated `words`. */
bool invar_shell_is_one_of(const char *word, const char *words);

const char *invar_shell_text_of(const invar_shell_scanner *r, int32_t word);

/* Returns true inside of { ... }, such as the commands of a function. */
bool invar_shell_in_block(const invar_shell_scanner *r);

/* Returns true for a keyword that may be followed by a command. */
bool invar_shell_opens_block(const invar_shell_scanner *r, int32_t word);

#ifdef __cplusplus
}
#endif
#endif
