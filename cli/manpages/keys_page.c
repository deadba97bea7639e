/*
 * keys_page.c - writes the key reference (docs/keys.md) in Markdown from the table of recipe keys.
 *
 * An index in alphabetical order comes first, then a section for each section of a recipe, with a
 * heading for each key, so that other pages can link to it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdarg.h>
#include <string.h>

#include "cli/manpages/manpages.h"
#include "cli/recipe_flags.h"
#include "cli/safe_text.h"
#include "engine/config/config.h"

#include "base/invar_banned.h"

#define COLUMNS 100
#define PARAGRAPH_SIZE 4096

/* ---- paragraphs ------------------------------------------------------------------------------ */

/* Text that is collected, then written in lines of at most COLUMNS. */
typedef struct paragraph {
    char text[PARAGRAPH_SIZE];
    size_t bytes;
} paragraph;

static void INVAR_PRINTF(2, 3) add_text(paragraph *p, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    p->bytes += (size_t)vsnprintf(p->text + p->bytes, sizeof p->text - p->bytes, format, arguments);
    va_end(arguments);
    INVAR_CHECK(p->bytes < sizeof p->text);
}

/* A '*' would begin emphasis. */
static void add_escaped(paragraph *p, const char *text)
{
    for (; *text; text++)
        add_text(p, *text == '*' ? "\\%c" : "%c", *text);
}

static void write_filled(FILE *out, paragraph *p)
{
    invar_safe_text_wrap_to(out, p->text, 0, COLUMNS);
    p->bytes = 0;
}

/* ---- the index ------------------------------------------------------------------------------- */

/* The first name after `previous` in alphabetical order; NULL if there is none. */
static const char *name_after(const char *previous)
{
    const invar_recipe_schema *schema = invar_config_schema();
    const char *next = NULL;

    for (int i = 0; i < schema->count; i++) {
        const char *name = schema->keys[i].name;
        if (strcmp(name, previous) > 0 && (!next || strcmp(name, next) < 0))
            next = name;
    }
    return next;
}

static void write_index(FILE *out, paragraph *p)
{
    char letter = '\0';

    for (const char *name = name_after(""); name; name = name_after(name)) {
        if (letter && letter != *name)
            write_filled(out, p);
        if (letter != *name)
            fputc('\n', out);
        add_text(p, "%s[%s](#%s)", letter == *name ? ", " : "", name, name);
        letter = *name;
    }
    write_filled(out, p);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The first line is that of `invar help KEY`, with the flag of Miles; then the text. */
static void write_key(FILE *out, paragraph *p, const invar_recipe_key *key, const char *miles)
{
    char head[INVAR_RECIPE_FLAGS_TEXT_SIZE];

    invar_recipe_flags_describe(head, key);
    fprintf(out, "\n### %s\n\n", key->name);
    add_text(p, "%s", head);
    if (miles[0])
        add_text(p, "; Miles: `%s`", miles);
    add_text(p, "\\");
    write_filled(out, p);
    add_escaped(p, key->doc);
    if (key->see)
        add_text(p, " ([%.*s](%s))", (int)strcspn(key->see, "#"), key->see, key->see);
    write_filled(out, p);
}

void invar_keys_page_write(FILE *out)
{
    const invar_recipe_schema *schema = invar_config_schema();
    paragraph p = {.bytes = 0};

    fputs("<!-- invar_pages wrote this page from engine/config/keys.def. To update it:\n"
          "     cmake --build build --target pages && cp build/pages/keys.md docs/keys.md -->\n\n"
          "# Recipe keys\n\n",
          out);
    add_text(&p,
             "The %d keys of a [recipe](recipes.md), by section. `invar help KEY` prints an "
             "entry, `invar help train` all of them. The first line of an entry has the values "
             "that the key may have, its default, whether it is [semantic or "
             "free](recipes.md#semantic-and-free-keys), and the flag of Miles, Megatron-LM or "
             "SGLang with this meaning, if there is one.",
             schema->count);
    write_filled(out, &p);
    write_index(out, &p);
    for (int i = 0; i < schema->count; i++) {
        const invar_recipe_key *key = &schema->keys[i];
        if (i == 0 || strcmp(key->section, schema->keys[i - 1].section) != 0)
            fprintf(out, "\n## [%s]\n", key->section);
        write_key(out, &p, key, invar_config_miles((invar_key)i));
    }
}
