/*
 * text_table.c - prints aligned text tables that fit the terminal.
 *
 * Cells are escaped when they are added, and all texts share one growing buffer. Widths count
 * characters, not bytes. If the rows do not fit even with the widest texts cut, every row is
 * printed as a list of "column  value" lines.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/text_table.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "base/number.h"
#include "base/text.h"
#include "cli/safe_text.h"

#include "base/invar_banned.h"

typedef struct invar_text_table_cell {
    size_t offset; /* offset in the text of all cells */
    size_t bytes;
    size_t width;
    bool number;
} cell;

enum { GAP = 2, LEAST = 12 }; // columns between cells; smallest width to which a text is cut

void invar_text_table_free(invar_text_table *table)
{
    invar_free(table->cells);
    invar_free(table->text);
    *table = (invar_text_table){.columns = table->columns};
}

static void add_cell(invar_text_table *t, const char *text, size_t bytes, bool number)
{
    cell *c;

    if (t->status == INVAR_OK)
        t->status =
            INVAR_GROW(t->cells, t->room, (int64_t)t->count, (int64_t)t->count + 1, "table");
    if (t->status == INVAR_OK)
        t->status = INVAR_GROW(t->text, t->text_room, (int64_t)t->used,
                               (int64_t)(t->used + 4 * bytes + 1), "table");
    if (t->status != INVAR_OK)
        return;
    c = &t->cells[t->count++];
    *c = (cell){.offset = t->used, .number = number};
    c->bytes = invar_text_escape(t->text + t->used, 4 * bytes + 1, text, bytes);
    c->width = invar_safe_text_width(t->text + t->used, c->bytes);
    t->used += c->bytes;
}

void invar_text_table_text(invar_text_table *table, const char *text, size_t bytes)
{
    add_cell(table, text, bytes, bytes == 0);
}

void invar_text_table_add(invar_text_table *table, const char *kinds, ...)
{
    va_list args;

    va_start(args, kinds);
    for (; *kinds; kinds++) {
        char digits[32];
        const char *text = digits;
        if (*kinds == 'i')
            snprintf(digits, sizeof digits, "%" PRId64, va_arg(args, int64_t));
        else
            text = va_arg(args, const char *);
        add_cell(table, text, strlen(text), *kinds != 's' || !*text);
    }
    va_end(args);
}

void invar_text_table_real(invar_text_table *table, double value, bool exact)
{
    char digits[INVAR_NUMBER_SIZE];

    if (!exact)
        invar_number_round(digits, value, 4);
    else if (table->status == INVAR_OK)
        table->status = invar_number_format_plain(digits, value);
    if (table->status == INVAR_OK)
        invar_text_table_add(table, "n", digits);
}

/* ---- printing -------------------------------------------------------------------------------- */

typedef struct column_layout {
    size_t width;
    bool right;
} column_layout;

static void measure_columns(column_layout *columns, const invar_text_table *t)
{
    for (size_t c = 0; c < t->columns; c++)
        columns[c] = (column_layout){.right = t->count > t->columns};
    for (size_t i = 0; i < t->count; i++) {
        column_layout *c = &columns[i % t->columns];
        if (t->cells[i].width > c->width)
            c->width = t->cells[i].width;
        if (i >= t->columns && !t->cells[i].number)
            c->right = false;
    }
}

/*
 * Returns the widest text column that may be cut, which is never the first one; NULL if none may.
 */
static column_layout *find_widest_text(column_layout *columns, size_t count)
{
    column_layout *widest = NULL;

    for (size_t c = 1; c < count; c++)
        if (!columns[c].right && columns[c].width > (widest ? widest->width : LEAST))
            widest = &columns[c];
    return widest;
}

/* Reduces the widest text columns until a row fits. Returns false if that is not possible. */
static bool fit_columns(column_layout *columns, size_t count, size_t width)
{
    size_t total = GAP * (count - 1);
    column_layout *widest;

    for (size_t c = 0; c < count; c++)
        total += columns[c].width;
    for (; total > width && (widest = find_widest_text(columns, count)); total--)
        widest->width--;
    return total <= width;
}

#define ELLIPSIS "\xe2\x80\xa6"

/* Prints the first `width` characters, with an ellipsis as the last one if more follow. */
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

static void print_row(FILE *out, const invar_text_table *t, const column_layout *columns,
                      const cell *row)
{
    size_t pending = 0; // spaces, printed only if something follows

    for (size_t c = 0; c < t->columns; c++) {
        size_t width = row[c].width < columns[c].width ? row[c].width : columns[c].width;
        size_t fill = columns[c].width - width;
        if (columns[c].right)
            pending += fill;
        if (width > 0) {
            fprintf(out, "%*s", (int)pending, "");
            print_cut(out, t->text + row[c].offset, &row[c], columns[c].width);
            pending = 0;
        }
        pending += GAP + (columns[c].right ? 0 : fill);
    }
}

/*
 * Prints a row as lines "column  value" without empty cells. Rows are separated by an empty line.
 */
static void print_record(FILE *out, const invar_text_table *t, size_t row, bool color)
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
        fputs(invar_term_escape(color, INVAR_TERM_STYLE_BOLD), out);
        fwrite(t->text + heads[c].offset, 1, heads[c].bytes, out);
        fputs(invar_term_escape(color, INVAR_TERM_STYLE_PLAIN), out);
        fprintf(out, "%*s", (int)(widest - heads[c].width + GAP), "");
        fwrite(t->text + cells[c].offset, 1, cells[c].bytes, out);
        fputc('\n', out);
    }
}

invar_status invar_text_table_print(const invar_text_table *t, FILE *out, int width, bool color)
{
    size_t rows = t->count / t->columns;
    column_layout *columns;
    bool fits;

    INVAR_TRY(INVAR_ALLOC(columns, t->columns, "table"));
    measure_columns(columns, t);
    fits = width <= 0 || fit_columns(columns, t->columns, (size_t)width);
    for (size_t i = fits ? 0 : 1; i < rows; i++) {
        if (!fits) {
            print_record(out, t, i, color);
            continue;
        }
        fputs(invar_term_escape(color && i == 0, INVAR_TERM_STYLE_BOLD), out);
        print_row(out, t, columns, &t->cells[i * t->columns]);
        fputs(invar_term_escape(color && i == 0, INVAR_TERM_STYLE_PLAIN), out);
        fputc('\n', out);
    }
    invar_free(columns);
    return INVAR_OK;
}

invar_status invar_text_table_show(invar_text_table *t, FILE *out, invar_status status)
{
    if (status == INVAR_OK)
        status = t->status;
    if (status == INVAR_OK)
        status = invar_text_table_print(t, out, invar_term_live(out) ? invar_term_width(out) : 0,
                                        invar_term_has_color(out));
    invar_text_table_free(t);
    return status;
}
