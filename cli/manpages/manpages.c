/*
 * manpages.c - invar_pages FOLDER: writes man pages, the key reference, completions and schemas.
 *
 * The build runs the program. FOLDER gets man/man1, man/man5, bash/invar, zsh/_invar and schema, as
 * they are installed, and keys.md, which a test compares with docs/keys.md. Everything is generated
 * from the tables that `invar help` prints, so the texts cannot differ.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/manpages/manpages.h"

#include <errno.h>
#include <string.h>

#include "base/file.h"
#include "cli/schema/schema.h"

#include "base/invar_banned.h"

extern const invar_embedded invar_pages_scripts[]; /* scripts for bash and zsh */

/* ---- iteration ------------------------------------------------------------------------------- */

/* Returns the element after `verb`, the first one if `verb` is NULL, or NULL after the last one. */
static const invar_cli_command *next_command(const invar_cli_command *const *list,
                                             const invar_cli_command *verb)
{
    if (!verb)
        return *list;
    while (*list != verb)
        list++;
    return list[1];
}

bool invar_manpage_next(invar_manpage *page)
{
    const invar_cli_command *group = page->group ? page->group : page->command;
    const invar_cli_command *sub = page->group ? page->command : NULL;

    sub = group && group->subcommands ? next_command(group->subcommands, sub) : NULL;
    if (!sub)
        *page = (invar_manpage){.command = next_command(invar_cmds, group)};
    else
        *page = (invar_manpage){.command = sub, .group = group};
    if (!page->command)
        return false;
    (void)snprintf(page->words, sizeof page->words, "%s%s%s", sub ? group->name : "",
                   sub ? " " : "", page->command->name);
    (void)snprintf(page->name, sizeof page->name, "invar-%s", page->words);
    if (sub)
        *strchr(page->name, ' ') = '-';
    return true;
}

bool invar_pages_has_keys(const invar_option *options)
{
    while (options->name)
        options++;
    return options->value;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* An output file FOLDER/SUBFOLDER/NAME. */
typedef struct output_file {
    char path[INVAR_PATH_SIZE];
    FILE *out;
} output_file;

static invar_status open_output_file(output_file *s, const char *folder, const char *room,
                                     const char *name)
{
    if (snprintf(s->path, sizeof s->path, "%s/%s", folder, room) >= (int)sizeof s->path)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%.200s ...: a path of this length", folder);
    INVAR_TRY(invar_held_folder_make(s->path));
    if (snprintf(s->path, sizeof s->path, "%s/%s/%s", folder, room, name) >= (int)sizeof s->path)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%.200s ...: a path of this length", folder);
    s->out = fopen(s->path, "w");
    return s->out ? INVAR_OK
                  : INVAR_FAIL(INVAR_E_IO, errno, "%s cannot be written: %s", s->path,
                               strerror(errno));
}

static invar_status close_output_file(output_file *s)
{
    bool bad = ferror(s->out);

    if (fclose(s->out) != 0 || bad)
        return INVAR_FAIL(INVAR_E_IO, errno, "%s could not be written", s->path);
    return INVAR_OK;
}

static invar_status write_manual(const char *folder)
{
    char name[sizeof((invar_manpage *)0)->name + 2];
    output_file s;

    INVAR_TRY(open_output_file(&s, folder, "man/man1", "invar.1"));
    invar_man_program(s.out);
    INVAR_TRY(close_output_file(&s));
    for (invar_manpage page = {0}; invar_manpage_next(&page);) {
        (void)snprintf(name, sizeof name, "%s.1", page.name);
        INVAR_TRY(open_output_file(&s, folder, "man/man1", name));
        invar_man_verb(s.out, &page);
        INVAR_TRY(close_output_file(&s));
    }
    INVAR_TRY(open_output_file(&s, folder, "man/man5", "invar-recipe.5"));
    invar_man_recipe(s.out);
    return close_output_file(&s);
}

static invar_status write_keys(const char *folder)
{
    output_file s;

    INVAR_TRY(open_output_file(&s, folder, ".", "keys.md"));
    invar_keys_page_write(s.out);
    return close_output_file(&s);
}

static invar_status write_completions(const char *folder)
{
    output_file s;

    INVAR_TRY(open_output_file(&s, folder, "bash", "invar"));
    invar_bash_write(s.out, &invar_pages_scripts[0]);
    INVAR_TRY(close_output_file(&s));
    INVAR_TRY(open_output_file(&s, folder, "zsh", "_invar"));
    invar_zsh_write(s.out, &invar_pages_scripts[1]);
    return close_output_file(&s);
}

static invar_status write_schemas(const char *folder)
{
    char file[80];
    const char *name;
    output_file s;

    for (int i = 0; (name = invar_schema_name(i)) != NULL; i++) {
        (void)snprintf(file, sizeof file, "%s.json", name);
        INVAR_TRY(open_output_file(&s, folder, "schema", file));
        INVAR_TRY(invar_schema_write(s.out, name));
        INVAR_TRY(close_output_file(&s));
    }
    return INVAR_OK;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fputs("usage: invar_pages FOLDER\n", stderr);
        return INVAR_EXIT_USAGE;
    }
    if (write_manual(argv[1]) != INVAR_OK || write_keys(argv[1]) != INVAR_OK ||
        write_completions(argv[1]) != INVAR_OK || write_schemas(argv[1]) != INVAR_OK)
        return invar_report_error();
    return INVAR_EXIT_OK;
}
