/*
 * keys_page.c - the key reference (docs/keys.md) in Markdown, of the table of recipe keys.
 *
 * An index in alphabetical order comes first, then a section for each section of a recipe, with a
 * heading for each key, so that other pages can link to it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdarg.h>
#include <string.h>

#include "cli/manpages/manpages.h"
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
    size_t column = 0;

    for (const char *text = p->text; *text;) {
        const size_t gap = strspn(text, " "), word = strcspn(text + gap, " ");

        if (column > 0 && column + gap + word > COLUMNS) {
            fputc('\n', out);
            column = 0;
            text += gap;
            continue;
        }
        fprintf(out, "%.*s", (int)(gap + word), text);
        column += gap + word;
        text += gap + word;
    }
    fputc('\n', out);
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

static void add_values(paragraph *p, const invar_recipe_key *key)
{
    static const char *const names[] = {"true or false", "integer", "number", "text", ""};
    char words[INVAR_CHOICES_TEXT_SIZE];

    if (key->choices) {
        invar_choices_text(words, sizeof words, key->choices, ", ", " or ");
        add_text(p, "%s", words);
    } else if (key->type == INVAR_RECIPE_TYPE_INT && (key->int_min || key->int_max)) {
        add_text(p, "%lld to %lld", (long long)key->int_min, (long long)key->int_max);
    } else if (key->type == INVAR_RECIPE_TYPE_FLOAT) {
        add_text(p, "number, %g to %.10g", key->float_min, key->float_max);
    } else {
        add_text(p, "%s", names[key->type]);
    }
}

/* "0 to 64; default `0`; semantic if set; Miles: `rollout-lag`", then the text. */
static void write_key(FILE *out, paragraph *p, const invar_recipe_key *key, const char *miles)
{
    fprintf(out, "\n### %s\n\n", key->name);
    add_values(p, key);
    if (!key->default_text)
        add_text(p, "; must be given");
    else if (key->default_text[0])
        add_text(p, "; default `%s`", key->default_text);
    else
        add_text(p, "; default empty");
    add_text(p, "; %s", invar_recipe_effect_name(key->effect));
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
