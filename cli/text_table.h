/*
 * text_table.h - aligned text tables that fit the terminal.
 *
 * Cells are added row by row; the first row is the heading. Columns with only numbers are
 * right-aligned. On a terminal the heading is bold, and texts are cut with an ellipsis, the widest
 * first, until rows fit; the first column, which names the row, is never cut. If that is not
 * enough, every row is printed as lines "column  value" with complete texts. Without a terminal
 * nothing is cut.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_TEXT_TABLE_H
#define INVAR_CLI_TEXT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

/* Initialize with the number of columns. Release with invar_text_table_show or _free. */
typedef struct invar_text_table {
    size_t columns;
    struct invar_text_table_cell *cells; /* row by row */
    size_t count;
    char *text; /* texts of all cells */
    size_t used;
    int64_t room, text_room; /* capacities */
    invar_status status;     /* first failure; later calls change nothing */
} invar_text_table;

void invar_text_table_free(invar_text_table *table);

/*
 * Adds the next cell; the text is escaped for terminals (cli/safe_text.h). An empty cell may be in
 * a column of numbers.
 */
void invar_text_table_text(invar_text_table *table, const char *text, size_t bytes);

/*
 * Adds a cell for each letter of `kinds`: s for a string, n for a number as a string, i for an
 * int64_t.
 */
void invar_text_table_add(invar_text_table *table, const char *kinds, ...);

/* Adds a real with 4 significant digits, or all digits if `exact` is set. */
void invar_text_table_real(invar_text_table *table, double value, bool exact);

/* Prints the table. `width` is the maximal line width; 0 for no limit. */
invar_status invar_text_table_print(const invar_text_table *table, FILE *out, int width,
                                    bool color) INVAR_MUST_USE;

/*
 * Prints the table with the width and colors of the stream's terminal, unless `status` or the
 * table's is a failure, which is returned. Releases the table.
 */
invar_status invar_text_table_show(invar_text_table *table, FILE *out,
                                   invar_status status) INVAR_MUST_USE;

#endif
