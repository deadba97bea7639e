/*
 * man.c - writes man pages in roff from the help of each command.
 *
 * Paragraphs become text, "  WORD  meaning" becomes an item of a list, other indented lines become
 * examples. The lines below "Exit codes:" become a section of their own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "cli/manpages/manpages.h"
#include "cli/recipe_flags.h"
#include "engine/config/config.h"

#include "base/invar_banned.h"

/* Returns the roff escape of a character, or NULL if it needs none. */
static const char *escape_of(char c)
{
    switch (c) {
    case '\\': return "\\e";
    case '-': return "\\-";
    case '\'': return "\\(aq";
    case '`': return "\\(ga";
    case '^': return "\\(ha";
    case '~': return "\\(ti";
    case '|': return "|\\:"; // allows a line break after each choice
    default: return NULL;
    }
}

static void put_escaped(FILE *out, const char *text, size_t bytes)
{
    if (bytes > 0 && *text == '.')
        fputs("\\&", out);
    for (; bytes > 0; text++, bytes--) {
        const char *instead = escape_of(*text);
        if (instead)
            fputs(instead, out);
        else
            fputc(*text, out);
    }
}

static void put_text(FILE *out, const char *before, const char *text, const char *after)
{
    fputs(before, out);
    put_escaped(out, text, strlen(text));
    fputs(after, out);
}

/* ---- paragraphs ------------------------------------------------------------------------------ */

#define EXIT_CODES "Exit codes:"

typedef enum text_state { IN_TEXT, IN_ITEM, IN_GAP } text_state;

/* Reads help texts line by line and writes either the exit codes or everything else. */
typedef struct help_reader {
    FILE *out;
    const char *title; /* title of the section that begins with the next line; NULL if the section
                          has begun */
    bool codes;        /* write the exit codes instead of the rest */
    bool at_codes;     /* the current line is below "Exit codes:" */
    text_state where;
} help_reader;

static void begin_paragraph(help_reader *r)
{
    if (r->title)
        fprintf(r->out, ".SH %s\n", r->title);
    else if (r->where == IN_GAP)
        fputs(".PP\n", r->out);
    r->title = NULL;
    r->where = IN_TEXT;
}

/*
 * Writes an indented line: "WORD meaning", the continuation of an item, or an example. `bytes`
 * excludes the indent.
 */
static void put_indented(help_reader *r, const char *line, size_t bytes, size_t indent)
{
    size_t word = 0;

    while (word + 1 < bytes && (line[word] != ' ' || line[word + 1] != ' '))
        word++;
    if (r->where == IN_ITEM && indent > 4) {
        put_escaped(r->out, line, bytes);
        fputc('\n', r->out);
        return;
    }
    begin_paragraph(r);
    if (word + 1 >= bytes) {
        fputs(".PP\n.RS 4\n.nf\n", r->out);
        put_escaped(r->out, line, bytes);
        fputs("\n.fi\n.RE\n", r->out);
        return;
    }
    fputs(".TP\n.B ", r->out);
    put_escaped(r->out, line, word);
    while (line[word] == ' ')
        word++;
    fputc('\n', r->out);
    put_escaped(r->out, line + word, bytes - word);
    fputc('\n', r->out);
    r->where = IN_ITEM;
}

static void read_line(help_reader *r, const char *line, size_t bytes)
{
    const size_t indent = strspn(line, " ");

    if (bytes == strlen(EXIT_CODES) && memcmp(line, EXIT_CODES, bytes) == 0) {
        r->at_codes = true;
        return;
    }
    if (indent == 0)
        r->at_codes = false;
    if (r->at_codes != r->codes)
        return;
    if (bytes == 0) {
        r->where = IN_GAP;
    } else if (indent > 0) {
        put_indented(r, line + indent, bytes - indent, indent);
    } else {
        if (r->title || r->where != IN_TEXT)
            begin_paragraph(r);
        put_escaped(r->out, line, bytes);
        fputc('\n', r->out);
    }
}

static void read_text(void *payload, const char *text)
{
    help_reader *r = payload;

    while (*text) {
        const size_t bytes = strcspn(text, "\n");
        read_line(r, text, bytes);
        text += bytes + (text[bytes] == '\n');
    }
    if (!r->title)
        r->where = IN_GAP; // the next text begins another paragraph
    r->at_codes = false;
}

static void skip_options(void *payload, const invar_option *options)
{
    (void)payload;
    (void)options;
}

static void put_paragraphs(FILE *out, const invar_cli_command *verb, const char *title, bool codes)
{
    help_reader r = {.out = out, .title = title, .codes = codes};

    invar_help_send(verb, &(invar_help_sink){&r, read_text, skip_options});
}

/* ---- options --------------------------------------------------------------------------------- */

static void put_options(void *payload, const invar_option *options)
{
    char text[INVAR_OPTION_TEXT_SIZE];
    FILE *out = payload;
    bool keys = invar_pages_has_keys(options);

    fputs(".SH OPTIONS\n", out);
    for (; options->name; options++) {
        put_text(out, ".TP\n\\fB\\-\\-", options->name, "\\fR");
        if (options->metavar)
            put_text(out, " \\fI", options->metavar, "\\fR");
        invar_option_describe(text, options);
        put_text(out, "\n", text, "\n");
    }
    if (keys)
        fputs(".PP\nRecipe keys, \\fB\\-\\-\\fIKEY\\fR \\fIVALUE\\fR: see\n"
              ".BR invar\\-recipe (5).\n",
              out);
}

/* ---- pages ----------------------------------------------------------------------------------- */

/*
 * Writes the heading. It has no date, so that equal sources give equal pages, and turns off
 * adjustment, because long option names leave too much space.
 */
static void put_head(FILE *out, const char *page, int section)
{
    put_text(out, ".TH ", page, "");
    fprintf(out, " %d \"\" \"Invar " INVAR_VERSION "\" \"Invar\"\n.ad l\n.nh\n", section);
}

static void put_commands(FILE *out, const char *group, const invar_cli_command *const *list)
{
    fputs(".SH COMMANDS\n", out);
    for (; *list; list++) {
        put_text(out, ".TP\n.BR invar\\-", group, *group ? "\\-" : "");
        put_text(out, "", (*list)->name, " (1)\n");
        put_text(out, "", (*list)->summary, "\n");
    }
}

static void put_end(FILE *out, const char *more)
{
    fprintf(out,
            ".SH SEE ALSO\n%s"
            "The documents of Invar, in the folder share/doc/invar below the prefix of the\n"
            "installation: docs/commands.md about commands, docs/keys.md about keys.\n",
            more);
}

void invar_man_program(FILE *out)
{
    put_head(out, "invar", 1);
    fputs(".SH NAME\ninvar \\- reproducible post\\-training of language models\n"
          ".SH SYNOPSIS\n\\fBinvar\\fR \\fIVERB\\fR [\\fB\\-\\-option\\fR \\fIvalue\\fR ...]\n",
          out);
    put_commands(out, "", invar_cmds);
    fputs(".TP\n.B invar help \\fIVERB\\fR\nexplain a verb and its options\n", out);
    fputs(".SH EXIT STATUS\n", out);
    for (const invar_exit_meaning *e = invar_exit_codes; e->meaning; e++) {
        fprintf(out, ".TP\n.B %d\n", e->code);
        put_text(out, "", e->meaning, "\n");
    }
    put_end(out, ".BR invar\\-recipe (5)\n.PP\n");
}

void invar_man_verb(FILE *out, const invar_manpage *page)
{
    put_head(out, page->name, 1);
    put_text(out, ".SH NAME\n", page->name, " \\- ");
    put_text(out, "", page->command->summary, "\n");
    put_text(out, ".SH SYNOPSIS\n\\fBinvar ", page->words, "\\fR ");
    put_text(out, "", page->command->arguments ? page->command->arguments : "[--option value ...]",
             "\n");
    if (page->command->subcommands)
        put_commands(out, page->command->name, page->command->subcommands);
    put_paragraphs(out, page->command, "DESCRIPTION", false);
    put_paragraphs(out, page->command, "EXIT STATUS", true);
    invar_help_send(page->command, &(invar_help_sink){out, NULL, put_options});
    put_end(out, ".BR invar (1)\n.PP\n");
}

void invar_man_recipe(FILE *out)
{
    const invar_recipe_schema *schema = invar_config_schema();
    char head[INVAR_RECIPE_FLAGS_TEXT_SIZE];

    put_head(out, "invar-recipe", 5);
    fputs(".SH NAME\ninvar\\-recipe \\- the keys of a recipe, which describes a run of Invar\n"
          ".SH DESCRIPTION\n"
          "A recipe is a file of sections and of lines \\fIKEY\\fR = \\fIVALUE\\fR. Every key is\n"
          "also an option of the verbs that read recipes. A semantic key may change the bits of a\n"
          "run, a free one must not; one that is semantic if set counts only where it differs\n"
          "from its default.\n",
          out);
    for (int i = 0; i < schema->count; i++) {
        const invar_recipe_key *k = &schema->keys[i];
        if (i == 0 || strcmp(k->section, schema->keys[i - 1].section) != 0)
            put_text(out, ".SH \"[", k->section, "]\"\n");
        invar_recipe_flags_describe(head, k);
        put_text(out, ".TP\n.B ", k->name, "\n");
        put_text(out, "", head, "\n.br\n");
        put_text(out, "", k->doc, "\n");
    }
    put_end(out, ".BR invar (1),\n.BR invar\\-train (1)\n.PP\n");
}
