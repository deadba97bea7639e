/*
 * text_table.h - aligned tables.
 *
 * Cells are added from left to right; the first row is the head. Columns that hold only numbers are
 * aligned at the right. On a terminal the head is bold and rows are made to fit: texts are cut, the
 * widest first, with an ellipsis; never the first column, which names the row. Where that is not
 * enough every row is shown as lines of its own, "column  value", whole. Elsewhere all is shown.
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
void invar_text_table_free(invar_text_table *table); /* NULL is allowed */

/* The next cell; made safe for a terminal (cli/safe_text.h). An empty one fits among numbers. */
invar_status invar_text_table_text(invar_text_table *table, const char *text,
                                   size_t bytes) INVAR_MUST_USE;
invar_status invar_text_table_number(invar_text_table *table, const char *digits) INVAR_MUST_USE;

/* The same for strings, integers and reals: of these 4 digits that count, or `exact`, all. */
invar_status invar_text_table_string(invar_text_table *table, const char *text) INVAR_MUST_USE;
invar_status invar_text_table_int(invar_text_table *table, int64_t value) INVAR_MUST_USE;
invar_status invar_text_table_real(invar_text_table *table, double value,
                                   bool exact) INVAR_MUST_USE;

/* `width`: of the lines, 0: as wide as they are. */
invar_status invar_text_table_print(const invar_text_table *table, FILE *out, int width,
                                    bool colour) INVAR_MUST_USE;

/* As the stream's terminal wants it. */
invar_status invar_text_table_show(const invar_text_table *table, FILE *out) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
