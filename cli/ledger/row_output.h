/*
 * row_output.h - writes rows of a ledger as a table, JSON or CSV.
 *
 * NULL is an empty cell, or null in JSON. Integers are exact; reals have the fewest digits that
 * read back to the same bits, or 4 in a plain table; blobs are lowercase hexadecimal. Values that
 * JSON lacks are strings: "nan", "inf", "-inf", and text that is not UTF-8, with \xNN for invalid
 * bytes. CSV is written row by row. Tables and JSON documents are held in memory up to a limit and
 * written completely or not at all.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_LEDGER_ROW_OUTPUT_H
#define INVAR_CLI_LEDGER_ROW_OUTPUT_H

#include <jansson.h>
#include <stdio.h>

#include "base/json/result.h"
#include "base/status.h"
#include "ledger/ledger.h"

typedef enum invar_row_writer_format {
    INVAR_ROW_WRITER_FORMAT_TABLE, /* table for people, "none found" if there is no row */
    INVAR_ROW_WRITER_FORMAT_EXACT, /* table with all digits */
    INVAR_ROW_WRITER_FORMAT_JSON,  /* array of objects; two columns with the same name are
                                      rejected */
    INVAR_ROW_WRITER_FORMAT_CSV    /* RFC 4180 with a heading */
} invar_row_writer_format;

typedef struct invar_row_writer invar_row_writer;

invar_status invar_row_writer_new(invar_row_writer **out, FILE *stream,
                                  invar_row_writer_format format) INVAR_MUST_USE;

/*
 * Adds a row; an invar_ledger_row_fn whose payload is the invar_row_writer. Returns INVAR_E_NOMEM
 * if the limit of held memory is exceeded.
 */
invar_status invar_row_writer_take(void *rows, const char *const *columns,
                                   const invar_ledger_value *values, int count) INVAR_MUST_USE;

/* Writes everything that is not written yet. */
invar_status invar_row_writer_end(invar_row_writer *rows) INVAR_MUST_USE;

/* Returns the number of rows. */
int64_t invar_row_writer_count(const invar_row_writer *rows);

void invar_row_writer_free(invar_row_writer *rows); /* `rows` may be NULL */

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Converts a row to an object. */
invar_status invar_json_row(json_t **out, const char *const *columns,
                            const invar_ledger_value *values, int count) INVAR_MUST_USE;

#endif
