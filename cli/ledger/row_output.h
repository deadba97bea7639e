/*
 * row_output.h - rows of a ledger as a table, as JSON or as CSV.
 *
 * Table and CSV: NULL is empty; JSON: null. Integers are exact, reals have as few digits as read
 * back to the same bits, in a plain table 4 of them; blobs are lower-case hexadecimal. What JSON
 * cannot say are strings: "nan", "inf", "-inf", and text that is not UTF-8, with \xNN for what is
 * not. CSV is written row by row. Table and JSON are held in memory up to the end, and limited: a
 * document is written whole, or not at all.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_LEDGER_ROW_OUTPUT_H
#define INVAR_CLI_LEDGER_ROW_OUTPUT_H

#include <jansson.h>
#include <stdio.h>

#include "base/status.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_row_writer_format {
    INVAR_ROW_WRITER_FORMAT_TABLE, /* for people: "none found" where there is no row */
    INVAR_ROW_WRITER_FORMAT_EXACT, /* the same with all digits */
    INVAR_ROW_WRITER_FORMAT_JSON,  /* an array of objects; two columns of one name are refused */
    INVAR_ROW_WRITER_FORMAT_CSV    /* RFC 4180, with a head */
} invar_row_writer_format;

typedef struct invar_row_writer invar_row_writer;

invar_status invar_row_writer_new(invar_row_writer **out, FILE *stream,
                                  invar_row_writer_format format) INVAR_MUST_USE;

/* An invar_ledger_row_fn whose payload is the invar_row_writer. INVAR_E_NOMEM: more than is held.
 * */
invar_status invar_row_writer_take(void *rows, const char *const *columns,
                                   const invar_ledger_value *values, int count) INVAR_MUST_USE;

/* Writes what is still to be written. */
invar_status invar_row_writer_end(invar_row_writer *rows) INVAR_MUST_USE;

/* How many there were. */
int64_t invar_row_writer_count(const invar_row_writer *rows);

void invar_row_writer_free(invar_row_writer *rows); /* NULL is allowed */

/* ---- JSON ------------------------------------------------------------------------------------ */

/* A new reference each; NULL: no memory. */
json_t *invar_row_writer_json_text(const char *text, size_t bytes);
json_t *invar_row_writer_json_string(const char *text);
json_t *invar_json_digest(const invar_digest *digest);
json_t *invar_json_value(const invar_ledger_value *value);

/* One row as an object. */
invar_status invar_json_row(json_t **out, const char *const *columns,
                            const invar_ledger_value *values, int count) INVAR_MUST_USE;

/* Writes a value on a line of its own and gives up the reference. NULL: no memory. */
invar_status invar_json_write(FILE *out, json_t *value) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
