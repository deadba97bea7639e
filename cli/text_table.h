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

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_text_table invar_text_table;

invar_status invar_text_table_new(invar_text_table **out, int columns) INVAR_MUST_USE;
void invar_text_table_free(invar_text_table *table); /* `table` may be NULL */

/*
 * Adds the next cell; the text is escaped for terminals (cli/safe_text.h). An empty cell may be in
 * a column of numbers.
 */
invar_status invar_text_table_text(invar_text_table *table, const char *text,
                                   size_t bytes) INVAR_MUST_USE;
invar_status invar_text_table_number(invar_text_table *table, const char *digits) INVAR_MUST_USE;

/*
 * Add strings, integers and reals. Reals have 4 significant digits, or all digits if `exact` is
 * set.
 */
invar_status invar_text_table_string(invar_text_table *table, const char *text) INVAR_MUST_USE;
invar_status invar_text_table_int(invar_text_table *table, int64_t value) INVAR_MUST_USE;
invar_status invar_text_table_real(invar_text_table *table, double value,
                                   bool exact) INVAR_MUST_USE;

/* Prints the table. `width` is the maximal line width; 0 for no limit. */
invar_status invar_text_table_print(const invar_text_table *table, FILE *out, int width,
                                    bool color) INVAR_MUST_USE;

/* Prints the table with the width and colors of the stream's terminal. */
invar_status invar_text_table_show(const invar_text_table *table, FILE *out) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
