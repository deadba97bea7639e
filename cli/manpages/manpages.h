/*
 * manpages.h - manual pages and completions, made of the tables that `invar help` prints.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_MANPAGES_MANPAGES_H
#define INVAR_CLI_MANPAGES_MANPAGES_H

#include <stdbool.h>
#include <stdio.h>

#include "base/embedded.h"
#include "cli/command.h"

/* A verb, with the words that name it and the name of its page. */
typedef struct invar_manpage {
    const invar_cli_command *verb, *group; /* group NULL: it is a verb of the program itself */
    char words[64];                        /* "ledger show" */
    char name[72];                         /* "invar-ledger-show" */
} invar_manpage;

/* The next verb, each behind its group; all NULL begins, false ends. */
bool invar_manpage_next(invar_manpage *page);

/* Is the verb one whose options are recipe keys, too? `options` are all that it has. */
bool invar_pages_has_keys(const invar_option *options);

/* Pages in roff: of the program, of one verb, and of the keys of a recipe (section 5). */
void invar_man_program(FILE *out);
void invar_man_verb(FILE *out, const invar_manpage *page);
void invar_man_recipe(FILE *out);

/* Completions for two shells: the tables, and below them the script that reads them. */
void invar_bash_write(FILE *out, const invar_embedded *script);
void invar_zsh_write(FILE *out, const invar_embedded *script);

#endif
