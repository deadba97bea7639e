/*
 * shell_scanner.h - a script on its way through: where it is, and the word at hand. Private to
 * import.
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
    const char *at, *end;
    const char *folder;
    int file;
    int32_t line;
    bool conditional;               /* the file as a whole */
    bool chained;                   /* the command stands behind && or || or in a pipe */
    char open[INVAR_SHELL_NESTING]; /* what is open: the first letter of a keyword, or ( or { */
    int nesting;
    invar_shell_token_list command;
    invar_shell_token_list *list;              /* where words go: the command, or an array */
    char delimiter[INVAR_SHELL_DELIMITER + 1]; /* of the here-document behind this line; "": none */
    // the word that is being read
    const char *from; /* in the file */
    uint32_t start;   /* in the texts */
    int32_t from_line;
    bool active, bare;
    invar_launch_word_state state;
    int32_t name;
} invar_shell_scanner;

/* Fails with the place and the complaint. */
invar_status invar_shell_refuse(const invar_shell_scanner *r, const char *why) INVAR_MUST_USE;

bool invar_shell_is_blank(char c);

/* Bytes of the name at `at`; 0: none. */
size_t invar_shell_name_length(const char *at, const char *end);

/* Takes a byte of the file and counts lines. */
char invar_shell_next(invar_shell_scanner *r);

/* One word into the list, up to a blank or an operator; the file is not at its end. */
invar_status invar_shell_read_word(invar_shell_scanner *r) INVAR_MUST_USE;

/* Up to the end of the line. */
void invar_shell_skip_comment(invar_shell_scanner *r);

/* Is the word one of several, which have blanks between? */
bool invar_shell_is_one_of(const char *word, const char *words);

const char *invar_shell_text_of(const invar_shell_scanner *r, int32_t word);

/* Inside of { ... }, as the commands of a function are. */
bool invar_shell_in_block(const invar_shell_scanner *r);

/* A keyword that something else of the same command may follow. */
bool invar_shell_opens_block(const invar_shell_scanner *r, int32_t word);

#ifdef __cplusplus
}
#endif
#endif
