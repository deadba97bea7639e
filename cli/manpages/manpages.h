/*
 * manpages.h - generates man pages, the key reference and completions from the tables of `invar
 * help`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_MANPAGES_MANPAGES_H
#define INVAR_CLI_MANPAGES_MANPAGES_H

#include <stdbool.h>
#include <stdio.h>

#include "base/embedded.h"
#include "cli/command.h"

/* A command, with the words that name it and the name of its man page. */
typedef struct invar_manpage {
    const invar_cli_command *command, *group; /* `group` is NULL for a command at the top level */
    char words[64];                           /* words such as "ledger show" */
    char name[72];                            /* name such as "invar-ledger-show" */
} invar_manpage;

/*
 * Advances to the next command; subcommands follow their group. A zeroed page starts the iteration.
 * Returns false at the end.
 */
bool invar_manpage_next(invar_manpage *page);

/* Returns true if a command with these options also accepts recipe keys. */
bool invar_pages_has_keys(const invar_option *options);

/* Write man pages in roff: of the program, of one command, and of the recipe keys (section 5). */
void invar_man_program(FILE *out);
void invar_man_verb(FILE *out, const invar_manpage *page);
void invar_man_recipe(FILE *out);

/* Writes the key reference in Markdown: docs/keys.md. */
void invar_keys_page_write(FILE *out);

/* Write completions for a shell: the script, and after it the tables that it reads. */
void invar_bash_write(FILE *out, const invar_embedded *script);
void invar_zsh_write(FILE *out, const invar_embedded *script);

#endif
