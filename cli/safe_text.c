/*
 * safe_text.c - escapes untrusted text for terminals, wraps help texts, formats times.
 *
 * Printable UTF-8 passes unchanged; every other byte becomes \xNN, so that text from files cannot
 * control a terminal. Wrapping applies only on a terminal; otherwise each paragraph or line stays
 * as it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/safe_text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/console/term.h"
#include "base/text.h"

#include "base/invar_banned.h"

size_t invar_safe_text_width(const char *text, size_t bytes)
{
    size_t width = 0;

    for (size_t i = 0; i < bytes; i++)
        width += ((unsigned char)text[i] & 0xc0) != 0x80;
    return width;
}

void invar_safe_text_print_bytes(FILE *out, const char *text, size_t bytes)
{
    char shown[INVAR_TEXT_ESCAPED_SIZE];

    for (size_t i = 0; i < bytes;) {
        i += invar_text_escape_char(shown, text + i, bytes - i);
        fputs(shown, out);
    }
}

void invar_safe_text_print(FILE *out, const char *text)
{
    invar_safe_text_print_bytes(out, text, strlen(text));
}

/* Prints words from column `indent` on. Lines that do not fit are wrapped and indented. */
static void put_words(FILE *out, const char *text, size_t bytes, int indent, int width)
{
    const char *end = text + bytes;
    bool gap = false; // a blank precedes the next word
    int at = indent;

    while (text < end) {
        const char *word = text;
        int columns;
        // a "|" between choices (a|b|c) allows a line break after it
        while (text < end && !strchr(" \n", *text) && *text++ != '|')
            ;
        columns = (int)invar_safe_text_width(word, (size_t)(text - word));
        if (width > 0 && at > indent && at + gap + columns > width) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
            gap = false;
        }
        fprintf(out, "%s%.*s", gap ? " " : "", (int)(text - word), word);
        at += gap + columns;
        for (gap = false; text < end && strchr(" \n", *text); text++)
            gap = true;
    }
}

void invar_safe_text_wrap_to(FILE *out, const char *text, int indent, int width)
{
    put_words(out, text, strlen(text), indent, width);
    fputc('\n', out);
}

void invar_safe_text_fill_to(FILE *out, const char *text, int width)
{
    while (width > 0 && *text) {
        int indent = (int)strspn(text, " ");
        const char *end = text + indent;
        while (*end && *text != '\n' && !(*end == '\n' && (indent > 0 || strchr("\n ", end[1]))))
            end++;
        fprintf(out, "%*s", indent, "");
        put_words(out, text + indent, (size_t)(end - text) - (size_t)indent, indent, width);
        if (*end == '\n')
            fputc(*end++, out);
        text = end;
    }
    fputs(text, out);
    fputc('\n', out);
}

/* Returns the width of the terminal, at most 100 columns; 0 if the stream is not a terminal. */
static int text_width(FILE *out)
{
    int width = invar_term_live(out) ? invar_term_width(out) : 0;

    return width < 100 ? width : 100;
}

void invar_safe_text_wrap(FILE *out, const char *text, int indent)
{
    invar_safe_text_wrap_to(out, text, indent, text_width(out));
}

void invar_safe_text_fill(FILE *out, const char *text)
{
    invar_safe_text_fill_to(out, text, text_width(out));
}

#define SECOND_NS INT64_C(1000000000)

void invar_safe_text_time(char out[INVAR_SAFE_TEXT_TIME_SIZE], int64_t ns)
{
    time_t seconds = (time_t)(ns / SECOND_NS - (ns % SECOND_NS < 0));
    struct tm parts;

    if (!gmtime_r(&seconds, &parts) ||
        strftime(out, INVAR_SAFE_TEXT_TIME_SIZE, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        snprintf(out, INVAR_SAFE_TEXT_TIME_SIZE, "?");
}

void invar_safe_text_span(char out[INVAR_SAFE_TEXT_TIME_SIZE], int64_t ns)
{
    static const struct {
        int64_t seconds;
        const char *unit;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "m"}, {1, "s"}};
    int64_t s = ns > 0 ? ns / SECOND_NS : 0;
    int i = 0;

    while (i < 3 && s < 2 * units[i].seconds) // "119m" is more precise than "1h"
        i++;
    snprintf(out, INVAR_SAFE_TEXT_TIME_SIZE, "%" PRId64 "%s", s / units[i].seconds, units[i].unit);
}
