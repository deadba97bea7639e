/*
 * row_output.c - writes rows of a ledger as a table, JSON or CSV.
 *
 * CSV is written row by row. A table needs the widths of all rows and a JSON document is written
 * completely or not at all, so both are held in memory up to a limit. On a terminal all texts are
 * escaped; in a file CSV is exact.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/ledger/row_output.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/console/term.h"
#include "base/number.h"
#include "base/text.h"
#include "cli/safe_text.h"
#include "cli/text_table.h"
#include "ledger/view/export/export.h"

#include "base/invar_banned.h"

enum {
    CELL_BYTES = 64,        /* memory per table cell in addition to its text */
    TABLE_BYTES = 64 << 20, /* limit of a table; longer ones are not readable anyway */
    DOCUMENT_BYTES = 128 << 20,
};

struct invar_row_writer {
    FILE *stream;
    invar_row_writer_format format;
    invar_text_table table;
    char *document;        /* (used) JSON document; owned */
    size_t used, capacity; /* bytes of the document, and what is allocated for it */
    size_t bytes;          /* bytes in memory */
    int64_t count;
};

/* Counts bytes that are held in memory. Fails above `most`. */
static invar_status count_held_bytes(invar_row_writer *rows, size_t bytes, size_t most)
{
    rows->bytes += bytes;
    if (rows->bytes <= most)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_NOMEM, 0,
                      "the answer has more than %zu MiB; ask for less (LIMIT N), or take --csv, "
                      "which is written row by row",
                      most >> 20);
}

/* ---- document buffer ------------------------------------------------------------------------- */

static invar_status put_text(invar_row_writer *rows, const char *text, size_t bytes)
{
    INVAR_TRY(count_held_bytes(rows, bytes, DOCUMENT_BYTES));
    return invar_alloc_append(&rows->document, &rows->used, &rows->capacity, text, bytes, "JSON");
}

static invar_status put_string(invar_row_writer *rows, const char *text)
{
    return put_text(rows, text, strlen(text));
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *json_of_value(const invar_ledger_value *value)
{
    switch (value->type) {
    case INVAR_LEDGER_TYPE_NULL: return json_null();
    case INVAR_LEDGER_TYPE_INT: return json_integer(value->integer);
    case INVAR_LEDGER_TYPE_REAL:
        return isfinite(value->real) ? json_real(value->real)
                                     : json_string(isnan(value->real) ? "nan"
                                                   : value->real > 0  ? "inf"
                                                                      : "-inf");
    case INVAR_LEDGER_TYPE_TEXT: return invar_result_text(value->data, value->bytes);
    case INVAR_LEDGER_TYPE_BLOB: return invar_export_hex(value->data, value->bytes);
    }
    return NULL;
}

static invar_status fail_no_memory(void)
{
    return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for a JSON value");
}

invar_status invar_json_row(json_t **out, const char *const *columns,
                            const invar_ledger_value *values, int count)
{
    json_t *row = json_object();

    *out = NULL;
    for (int c = 0; c < count; c++)
        if (json_object_set_new(row, columns[c], json_of_value(&values[c])) != 0) {
            json_decref(row);
            return fail_no_memory();
        }
    *out = row;
    return row ? INVAR_OK : fail_no_memory();
}

static int dump_callback(const char *text, size_t bytes, void *rows)
{
    return put_text(rows, text, bytes) == INVAR_OK ? 0 : -1;
}

/* Rejects duplicate column names, which would lose values, and names that are not UTF-8. */
static invar_status check_names(const char *const *columns, int count)
{
    json_t *names = json_object();
    invar_status status = names ? INVAR_OK : fail_no_memory();

    for (int c = 0; c < count && status == INVAR_OK; c++) {
        if (json_object_get(names, columns[c]))
            status = INVAR_FAIL(INVAR_E_INVALID, 0,
                                "--json: two columns are called '%.100s'; name them with AS",
                                columns[c]);
        else if (json_object_set_new(names, columns[c], json_true()) != 0)
            status = INVAR_FAIL(INVAR_E_INVALID, 0, "--json: column %d has a name that is no UTF-8",
                                c + 1);
    }
    json_decref(names);
    return status;
}

static invar_status add_json_row(invar_row_writer *rows, const char *const *columns,
                                 const invar_ledger_value *values, int count)
{
    invar_status status;
    json_t *row;

    if (!values) {
        INVAR_TRY(check_names(columns, count));
        return put_string(rows, "[");
    }
    INVAR_TRY(invar_json_row(&row, columns, values, count));
    status = put_string(rows, rows->count > 1 ? ",\n " : "\n ");
    if (status == INVAR_OK && json_dump_callback(row, dump_callback, rows, INVAR_JSON_FLAGS) != 0)
        status = rows->bytes > DOCUMENT_BYTES ? INVAR_E_NOMEM : fail_no_memory();
    json_decref(row);
    return status;
}

/* Ends the document and writes all of it. */
static invar_status end_json(invar_row_writer *rows)
{
    INVAR_TRY(put_string(rows, rows->count > 0 ? "\n]\n" : "]\n"));
    fwrite(rows->document, 1, rows->used, rows->stream);
    return INVAR_OK; // main checks whether stdout could be written
}

/* ---- CSV ------------------------------------------------------------------------------------- */

/* Writes a text exactly, or escaped on a terminal. */
static invar_status write_csv_text(FILE *out, const char *text, size_t bytes)
{
    char *safe;

    if (!invar_term_live(out)) {
        invar_export_csv_field(out, text, bytes);
        return INVAR_OK;
    }
    INVAR_TRY(INVAR_ALLOC(safe, 4 * bytes + 1, "CSV"));
    invar_export_csv_field(out, safe, invar_text_escape(safe, 4 * bytes + 1, text, bytes));
    invar_free(safe);
    return INVAR_OK;
}

static invar_status write_csv_value(FILE *out, const invar_ledger_value *value)
{
    char number[INVAR_NUMBER_SIZE];
    const unsigned char *data = value->data;

    switch (value->type) {
    case INVAR_LEDGER_TYPE_NULL: break;
    case INVAR_LEDGER_TYPE_INT: fprintf(out, "%" PRId64, value->integer); break;
    case INVAR_LEDGER_TYPE_REAL:
        INVAR_TRY(invar_number_format(number, value->real));
        fputs(number, out);
        break;
    case INVAR_LEDGER_TYPE_TEXT: return write_csv_text(out, value->data, value->bytes);
    case INVAR_LEDGER_TYPE_BLOB:
        for (size_t i = 0; i < value->bytes; i++)
            fprintf(out, "%02x", data[i]);
        break;
    }
    return INVAR_OK;
}

static invar_status write_csv_row(invar_row_writer *rows, const char *const *columns,
                                  const invar_ledger_value *values, int count)
{
    for (int c = 0; c < count; c++) {
        if (c > 0)
            fputc(',', rows->stream);
        INVAR_TRY(values ? write_csv_value(rows->stream, &values[c])
                         : write_csv_text(rows->stream, columns[c], strlen(columns[c])));
    }
    fputs("\r\n", rows->stream);
    return INVAR_OK;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static invar_status add_blob(invar_text_table *table, const invar_ledger_value *value)
{
    json_t *hex = invar_export_hex(value->data, value->bytes);

    if (!hex)
        return fail_no_memory();
    invar_text_table_text(table, json_string_value(hex), 2 * value->bytes);
    json_decref(hex);
    return INVAR_OK;
}

static invar_status add_cell(invar_text_table *table, const invar_ledger_value *value, bool exact)
{
    switch (value->type) {
    case INVAR_LEDGER_TYPE_NULL: invar_text_table_text(table, "", 0); break;
    case INVAR_LEDGER_TYPE_INT: invar_text_table_add(table, "i", value->integer); break;
    case INVAR_LEDGER_TYPE_REAL: invar_text_table_real(table, value->real, exact); break;
    case INVAR_LEDGER_TYPE_TEXT: invar_text_table_text(table, value->data, value->bytes); break;
    case INVAR_LEDGER_TYPE_BLOB: return add_blob(table, value);
    default:
        return INVAR_FAIL(INVAR_E_INVALID, 0, "a value of type %d does not exist",
                          (int)value->type);
    }
    return INVAR_OK;
}

static invar_status add_table_row(invar_row_writer *rows, const char *const *columns,
                                  const invar_ledger_value *values, int count)
{
    rows->table.columns = (size_t)count;
    for (int c = 0; c < count; c++) {
        INVAR_TRY(count_held_bytes(rows, CELL_BYTES + (values ? values[c].bytes : 0), TABLE_BYTES));
        if (values)
            INVAR_TRY(
                add_cell(&rows->table, &values[c], rows->format == INVAR_ROW_WRITER_FORMAT_EXACT));
        else
            invar_text_table_add(&rows->table, "s", columns[c]);
    }
    return rows->table.status;
}

/* ---- interface ------------------------------------------------------------------------------- */

invar_status invar_row_writer_new(invar_row_writer **out, FILE *stream,
                                  invar_row_writer_format format)
{
    INVAR_TRY(INVAR_ALLOC(*out, 1, "rows"));
    **out = (invar_row_writer){.stream = stream, .format = format};
    return INVAR_OK;
}

invar_status invar_row_writer_take(void *payload, const char *const *columns,
                                   const invar_ledger_value *values, int count)
{
    invar_row_writer *rows = payload;

    rows->count += values != NULL;
    switch (rows->format) {
    case INVAR_ROW_WRITER_FORMAT_TABLE:
    case INVAR_ROW_WRITER_FORMAT_EXACT: return add_table_row(rows, columns, values, count);
    case INVAR_ROW_WRITER_FORMAT_JSON: return add_json_row(rows, columns, values, count);
    case INVAR_ROW_WRITER_FORMAT_CSV: return write_csv_row(rows, columns, values, count);
    }
    return INVAR_FAIL(INVAR_E_INVALID, 0, "format %d does not exist", (int)rows->format);
}

invar_status invar_row_writer_end(invar_row_writer *rows)
{
    switch (rows->format) {
    case INVAR_ROW_WRITER_FORMAT_JSON: return end_json(rows);
    case INVAR_ROW_WRITER_FORMAT_CSV: return INVAR_OK;
    default: break;
    }
    if (rows->count > 0)
        return invar_text_table_show(&rows->table, rows->stream, INVAR_OK);
    fputs("none found\n", rows->stream);
    return INVAR_OK;
}

int64_t invar_row_writer_count(const invar_row_writer *rows)
{
    return rows->count;
}

void invar_row_writer_free(invar_row_writer *rows)
{
    if (!rows)
        return;
    invar_text_table_free(&rows->table);
    invar_free(rows->document);
    invar_free(rows);
}
