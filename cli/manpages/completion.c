/*
 * completion.c - writes the tables of bash and zsh completions for all commands.
 *
 * The scripts that read the tables are invar.bash and invar.zsh. A table has the options and
 * subcommands of each command, and the possible values of each option, taken from the same option
 * lists as the help.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "cli/manpages/manpages.h"
#include "cli/recipe_flags.h"
#include "engine/config/config.h"

#include "base/invar_banned.h"

/* Possible values of an option: one of several words, or a kind of value. */
typedef struct value {
    const char *kind; /* "none", "number", "words" or "file"; the last one allows any text */
    const invar_choices *words;
} value;

static value values_of_option(const invar_option *option)
{
    switch (option->type) {
    case INVAR_OPTION_FLAG:
    // the number may be omitted
    case INVAR_OPTION_OPTIONAL_INT: return (value){"none", NULL};
    case INVAR_OPTION_INT:
    case INVAR_OPTION_REAL: return (value){"number", NULL};
    case INVAR_OPTION_WORD:
        return (value){"words", ((const invar_option_choice *)option->value)->choices};
    default: return (value){"file", NULL};
    }
}

static value values_of_key(const invar_recipe_key *key)
{
    static const char *const answers[] = {"true", "false"};
    static const invar_choices truth = {answers, 2};

    if (key->type == INVAR_RECIPE_TYPE_BOOL)
        return (value){"words", &truth};
    if (key->choices)
        return (value){"words", key->choices};
    return (value){key->type == INVAR_RECIPE_TYPE_STRING ? "file" : "number", NULL};
}

static void put_choices(FILE *out, const invar_choices *choices)
{
    const char *between = "";

    for (int i = 0; i < choices->count; i++)
        if (choices->words[i]) {
            fprintf(out, "%s%s", between, choices->words[i]);
            between = " ";
        }
}

static void put_names(FILE *out, const invar_cli_command *const *list)
{
    for (const invar_cli_command *const *at = list; *at; at++)
        fprintf(out, "%s%s", at == list ? "" : " ", (*at)->name);
}

/* Payload of the help sinks below. */
typedef struct table_writer {
    FILE *out;
    const invar_manpage *page;
} table_writer;

static void write_options(FILE *out, const invar_manpage *page,
                          void (*options)(void *payload, const invar_option *options))
{
    table_writer w = {out, page};

    invar_help_send(page->command, &(invar_help_sink){&w, NULL, options});
}

/* ---- bash ------------------------------------------------------------------------------------ */

static void bash_list(void *payload, const invar_option *options)
{
    const table_writer *w = payload;

    fprintf(w->out, " keys=%d options='", invar_pages_has_keys(options));
    for (; options->name; options++)
        fprintf(w->out, "--%s ", options->name);
    fputs("--help'", w->out);
}

static void bash_value(FILE *out, const char *words, const char *name, value v)
{
    fprintf(out, "    '%s --%s') kind='%s'", words, name, v.kind);
    if (v.words) {
        fputs(" values='", out);
        put_choices(out, v.words);
        fputs("'", out);
    }
    fputs(" ;;\n", out);
}

static void bash_values(void *payload, const invar_option *options)
{
    const table_writer *w = payload;

    for (; options->name; options++)
        bash_value(w->out, w->page->words, options->name, values_of_option(options));
}

/*
 * Writes the tables. The entry '' has the commands themselves, 'key' the options of every recipe
 * key.
 */
void invar_bash_write(FILE *out, const invar_embedded *script)
{
    const invar_recipe_schema *schema = invar_config_schema();

    fprintf(out, "%s\n_invar_verb() {\n    case $1 in\n    '') subs='", script->text);
    put_names(out, invar_cmds);
    fputs(" help' ;;\n    key) options='", out);
    for (int i = 0; i < schema->count; i++)
        fprintf(out, "%s--%s", i ? " " : "", schema->keys[i].name);
    fputs("' ;;\n", out);
    for (invar_manpage page = {0}; invar_manpage_next(&page);) {
        fprintf(out, "    '%s') subs='", page.words);
        if (page.command->subcommands)
            put_names(out, page.command->subcommands);
        fputs("' words='", out);
        for (int i = 0; page.command->first_argument_word && page.command->first_argument_word(i);
             i++)
            fprintf(out, "%s%s", i ? " " : "", page.command->first_argument_word(i));
        fputs("'", out);
        write_options(out, &page, bash_list);
        fputs(" ;;\n", out);
    }
    fputs("    esac\n}\n\n_invar_value() {\n    case $1 in\n", out);
    for (invar_manpage page = {0}; invar_manpage_next(&page);)
        write_options(out, &page, bash_values);
    for (int i = 0; i < schema->count; i++)
        bash_value(out, "key", schema->keys[i].name, values_of_key(&schema->keys[i]));
    fputs("    esac\n}\n\ncomplete -o bashdefault -o default -F _invar invar\n", out);
}

/* ---- zsh ------------------------------------------------------------------------------------- */

/* Writes text in single quotes. _arguments interprets brackets and colons, so these are escaped. */
static void put_quoted(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\'", out);
        else if (strchr("[]:\\", *text))
            fputc('\\', out);
        fputc(*text, out);
    }
}

/* Writes "'--dtype=[number format]:FORMAT:(fp32 bf16)'". */
static void zsh_option(FILE *out, const char *name, const char *help, const char *metavar, value v)
{
    fprintf(out, "        '--%s%s[", name, strcmp(v.kind, "none") == 0 ? "" : "=");
    put_quoted(out, help);
    fputc(']', out);
    if (strcmp(v.kind, "none") != 0) {
        fputc(':', out);
        put_quoted(out, metavar);
        if (v.words) {
            fputs(":(", out);
            put_choices(out, v.words);
            fputc(')', out);
        } else {
            fputs(strcmp(v.kind, "file") == 0 ? ":_files" : ": ", out);
        }
    }
    fputs("'\n", out);
}

static void zsh_options(void *payload, const invar_option *options)
{
    const table_writer *w = payload;
    const bool keys = invar_pages_has_keys(options);
    char text[INVAR_OPTION_TEXT_SIZE];

    fputs(" specs=(\n", w->out);
    for (; options->name; options++) {
        invar_option_describe(text, options);
        zsh_option(w->out, options->name, text, options->metavar ? options->metavar : "",
                   values_of_option(options));
    }
    fprintf(w->out, "        '--help[explain the verb]'\n        ) keys=%d", keys);
}

static void zsh_commands(FILE *out, const invar_cli_command *const *list)
{
    fputs(" subs=(\n", out);
    for (; *list; list++) {
        fprintf(out, "        '%s:", (*list)->name);
        put_quoted(out, (*list)->summary);
        fputs("'\n", out);
    }
}

void invar_zsh_write(FILE *out, const invar_embedded *script)
{
    const invar_recipe_schema *schema = invar_config_schema();

    fprintf(out, "#compdef invar\n%s\n_invar_verb() {\n    case $1 in\n    '')", script->text);
    zsh_commands(out, invar_cmds);
    fputs("        'help:explain a verb or a recipe key'\n        ) ;;\n    key) specs=(\n", out);
    for (int i = 0; i < schema->count; i++)
        zsh_option(out, schema->keys[i].name, schema->keys[i].doc, "value",
                   values_of_key(&schema->keys[i]));
    fputs("        ) ;;\n", out);
    for (invar_manpage page = {0}; invar_manpage_next(&page);) {
        fprintf(out, "    '%s')", page.words);
        if (page.command->subcommands) {
            zsh_commands(out, page.command->subcommands);
            fputs("        )", out);
        }
        fputs(" words_=(", out);
        for (int i = 0; page.command->first_argument_word && page.command->first_argument_word(i);
             i++)
            fprintf(out, "%s%s", i ? " " : "", page.command->first_argument_word(i));
        fputs(")", out);
        write_options(out, &page, zsh_options);
        fputs(" ;;\n", out);
    }
    fputs("    esac\n}\n\n_invar \"$@\"\n", out);
}
