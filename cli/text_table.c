/*
 * text_table.c - aligned tables.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/text_table.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "base/number.h"
#include "cli/safe_text.h"

#include "base/invar_banned.h"

typedef struct cell {
    size_t at; /* in the text of all cells */
    size_t bytes;
    size_t width;
    bool number;
} cell;

struct invar_text_table {
    size_t columns;
    cell *cells; /* row after row */
    size_t count, room;
    char *text;
    size_t used, text_room;
};

enum { GAP = 2, LEAST = 12 }; // between columns; what a text is not cut below

invar_status invar_text_table_new(invar_text_table **out, int columns)
{
    INVAR_TRY(invar_alloc((void **)out, 1, sizeof **out, "table"));
    **out = (invar_text_table){.columns = (size_t)columns};
    return INVAR_OK;
}

void invar_text_table_free(invar_text_table *table)
{
    if (!table)
        return;
    invar_free(table->cells);
    invar_free(table->text);
    invar_free(table);
}

/* Room for `need` items in *block, of which `used` are worth keeping. */
static invar_status grow(void **block, size_t *room, size_t used, size_t need, size_t size)
{
    void *larger;
    size_t more = *room < 64 ? 64 : *room;

    if (need <= *room)
        return INVAR_OK;
    while (more < need)
        more *= 2;
    INVAR_TRY(invar_alloc(&larger, more, size, "table"));
    if (used > 0)
        memcpy(larger, *block, used * size);
    invar_free(*block);
    *block = larger;
    *room = more;
    return INVAR_OK;
}

static invar_status text_table_add(invar_text_table *t, const char *text, size_t bytes, bool number)
{
    cell *c;

    INVAR_TRY(grow((void **)&t->cells, &t->room, t->count, t->count + 1, sizeof *t->cells));
    INVAR_TRY(
        grow((void **)&t->text, &t->text_room, t->used, t->used + 4 * bytes + 1, sizeof *t->text));
    c = &t->cells[t->count++];
    *c = (cell){.at = t->used, .number = number};
    c->bytes = invar_safe_text_escape(t->text + t->used, 4 * bytes + 1, text, bytes);
    c->width = invar_safe_text_width(t->text + t->used, c->bytes);
    t->used += c->bytes;
    return INVAR_OK;
}

invar_status invar_text_table_text(invar_text_table *table, const char *text, size_t bytes)
{
    return text_table_add(table, text, bytes, bytes == 0);
}

invar_status invar_text_table_number(invar_text_table *table, const char *digits)
{
    return text_table_add(table, digits, strlen(digits), true);
}

invar_status invar_text_table_string(invar_text_table *table, const char *text)
{
    return invar_text_table_text(table, text, strlen(text));
}

invar_status invar_text_table_int(invar_text_table *table, int64_t value)
{
    char digits[32];

    snprintf(digits, sizeof digits, "%" PRId64, value);
    return invar_text_table_number(table, digits);
}

invar_status invar_text_table_real(invar_text_table *table, double value, bool exact)
{
    char digits[INVAR_NUMBER_SIZE];

    if (exact)
        INVAR_TRY(invar_number_format_plain(digits, value));
    else
        invar_number_round(digits, value, 4);
    return invar_text_table_number(table, digits);
}

/* ---- printing -------------------------------------------------------------------------------- */

typedef struct column {
    size_t width;
    bool right;
} column;

static void column_measure(column *columns, const invar_text_table *t)
{
    for (size_t c = 0; c < t->columns; c++)
        columns[c] = (column){.right = t->count > t->columns};
    for (size_t i = 0; i < t->count; i++) {
        column *c = &columns[i % t->columns];
        if (t->cells[i].width > c->width)
            c->width = t->cells[i].width;
        if (i >= t->columns && !t->cells[i].number)
            c->right = false;
    }
}

/* The widest text that may be cut: not the first column. */
static column *widest_text(column *columns, size_t count)
{
    column *widest = NULL;

    for (size_t c = 1; c < count; c++)
        if (!columns[c].right && columns[c].width > (widest ? widest->width : LEAST))
            widest = &columns[c];
    return widest;
}

/* Takes from the widest text until a row fits; false: it cannot. */
static bool column_fit(column *columns, size_t count, size_t width)
{
    size_t total = GAP * (count - 1);
    column *widest;

    for (size_t c = 0; c < count; c++)
        total += columns[c].width;
    for (; total > width && (widest = widest_text(columns, count)); total--)
        widest->width--;
    return total <= width;
}

#define ELLIPSIS "\xe2\x80\xa6"

/* The first `width` characters, the last of them an ellipsis when more follow. */
static void print_cut(FILE *out, const char *text, const cell *c, size_t width)
{
    size_t bytes = 0;

    if (c->width <= width) {
        fwrite(text, 1, c->bytes, out);
        return;
    }
    for (size_t chars = 1; chars < width; chars += ((unsigned char)text[bytes] & 0xc0) != 0x80)
        bytes++; // ends at the first byte of the character that the ellipsis replaces
    fwrite(text, 1, bytes, out);
    fputs(ELLIPSIS, out);
}

static void print_row(FILE *out, const invar_text_table *t, const column *columns, const cell *row)
{
    size_t pending = 0; // spaces, written only when something follows

    for (size_t c = 0; c < t->columns; c++) {
        size_t width = row[c].width < columns[c].width ? row[c].width : columns[c].width;
        size_t fill = columns[c].width - width;
        if (columns[c].right)
            pending += fill;
        if (width > 0) {
            fprintf(out, "%*s", (int)pending, "");
            print_cut(out, t->text + row[c].at, &row[c], columns[c].width);
            pending = 0;
        }
        pending += GAP + (columns[c].right ? 0 : fill);
    }
}

/* A row as lines "column  value", without those that are empty; a blank line before all but one. */
static void print_record(FILE *out, const invar_text_table *t, size_t row, bool colour)
{
    const cell *heads = t->cells, *cells = t->cells + row * t->columns;
    size_t widest = 0;

    for (size_t c = 0; c < t->columns; c++)
        widest = heads[c].width > widest ? heads[c].width : widest;
    if (row > 1)
        fputc('\n', out);
    for (size_t c = 0; c < t->columns; c++) {
        if (cells[c].bytes == 0)
            continue;
        fputs(invar_term_escape(colour, INVAR_TERM_STYLE_BOLD), out);
        fwrite(t->text + heads[c].at, 1, heads[c].bytes, out);
        fputs(invar_term_escape(colour, INVAR_TERM_STYLE_PLAIN), out);
        fprintf(out, "%*s", (int)(widest - heads[c].width + GAP), "");
        fwrite(t->text + cells[c].at, 1, cells[c].bytes, out);
        fputc('\n', out);
    }
}

invar_status invar_text_table_print(const invar_text_table *t, FILE *out, int width, bool colour)
{
    size_t rows = t->count / t->columns;
    column *columns;
    bool fits;

    INVAR_TRY(invar_alloc((void **)&columns, t->columns, sizeof *columns, "table"));
    column_measure(columns, t);
    fits = width <= 0 || column_fit(columns, t->columns, (size_t)width);
    for (size_t i = fits ? 0 : 1; i < rows; i++) {
        if (!fits) {
            print_record(out, t, i, colour);
            continue;
        }
        fputs(invar_term_escape(colour && i == 0, INVAR_TERM_STYLE_BOLD), out);
        print_row(out, t, columns, &t->cells[i * t->columns]);
        fputs(invar_term_escape(colour && i == 0, INVAR_TERM_STYLE_PLAIN), out);
        fputc('\n', out);
    }
    invar_free(columns);
    return INVAR_OK;
}

invar_status invar_text_table_show(const invar_text_table *t, FILE *out)
{
    return invar_text_table_print(t, out, invar_term_live(out) ? invar_term_width(out) : 0,
                                  invar_term_colour(out));
}
