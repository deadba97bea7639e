/*
 * grid.h - aligned tables.
 *
 * Cells are added from left to right; the first row is the head. Columns that hold only numbers are
 * aligned at the right. On a terminal the head is bold and rows are made to fit: texts are cut, the
 * widest first, with an ellipsis; never the first column, which names the row. Where that is not
 * enough every row is shown as lines of its own, "column  value", whole. Elsewhere all is shown.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_GRID_H
#define INVAR_CLI_GRID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_grid invar_grid;

invar_status invar_grid_new(invar_grid **out, int columns) INVAR_MUST_USE;
void invar_grid_free(invar_grid *table); /* NULL is allowed */

/* The next cell; made safe for a terminal (cli/plain.h). An empty one fits among numbers. */
invar_status invar_grid_text(invar_grid *table, const char *text, size_t bytes) INVAR_MUST_USE;
invar_status invar_grid_number(invar_grid *table, const char *digits) INVAR_MUST_USE;

/* The same for strings, integers and reals: of these 4 digits that count, or `exact`, all. */
invar_status invar_grid_string(invar_grid *table, const char *text) INVAR_MUST_USE;
invar_status invar_grid_int(invar_grid *table, int64_t value) INVAR_MUST_USE;
invar_status invar_grid_real(invar_grid *table, double value, bool exact) INVAR_MUST_USE;

/* `width`: of the lines, 0: as wide as they are. */
invar_status invar_grid_print(const invar_grid *table, FILE *out, int width,
                              bool colour) INVAR_MUST_USE;

/* As the stream's terminal wants it. */
invar_status invar_grid_show(const invar_grid *table, FILE *out) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
