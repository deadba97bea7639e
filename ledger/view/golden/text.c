/*
 * text.c - writes and strictly reads the text of goldens and their points.
 *
 * A text is accepted only if writing its parsed value gives the same bytes, so a file has one form,
 * and every change of a byte is found.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "ledger/view/golden/internal.h"

#include "base/invar_banned.h"

/* ---- writing --------------------------------------------------------------------------------- */

/* Reserves bytes, and one more for the NUL. */
static invar_status reserve_bytes(invar_golden_buffer *out, size_t bytes)
{
    return INVAR_GROW(out->data, out->room, out->used, out->used + (int64_t)bytes + 1,
                      "the text of a golden");
}

invar_status invar_golden_put(invar_golden_buffer *out, const char *text, size_t bytes)
{
    INVAR_TRY(reserve_bytes(out, bytes));
    memcpy(out->data + out->used, text, bytes);
    out->used += (int64_t)bytes;
    out->data[out->used] = '\0';
    return INVAR_OK;
}

invar_status invar_golden_putf(invar_golden_buffer *out, const char *format, ...)
{
    va_list list;
    int length;

    va_start(list, format);
    length = vsnprintf(NULL, 0, format, list);
    va_end(list);
    INVAR_CHECK(length >= 0);
    INVAR_TRY(reserve_bytes(out, (size_t)length));
    va_start(list, format);
    (void)vsnprintf(out->data + out->used, (size_t)length + 1, format, list);
    va_end(list);
    out->used += length;
    return INVAR_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* --force, because `record` does not replace a file that it cannot read. */
#define RECORD "record it again ('invar ci record --force')"

static invar_status fail_line(const char *where, int64_t line, const char *expected)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, where);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%s:%" PRId64 ": not a line of a golden, expected %s: " RECORD, shown, line,
                      expected);
}

/* Checks that the text is printable lines and ends with a line end. */
static invar_status check_bytes(const char *where, const char *text, size_t bytes)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    int64_t line = 1;
    size_t step;

    if (bytes == 0) {
        invar_path_show(shown, where);
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s is empty, no golden: " RECORD, shown);
    }
    for (size_t i = 0; i < bytes; i += step) {
        step = text[i] == '\n' || text[i] == '\t' ? 1 : invar_text_char(text + i, bytes - i);
        if (step == 0)
            return fail_line(where, line, "printable text");
        line += text[i] == '\n';
    }
    return text[bytes - 1] == '\n' ? INVAR_OK : fail_line(where, line, "an end of the line");
}

static invar_status check_version(const invar_golden_lines *lines,
                                  const invar_golden_format *format)
{
    char shown[INVAR_PATH_SHOWN_SIZE];
    char *rest = invar_golden_after(lines, format->magic);
    int64_t found;

    if (!rest || !invar_golden_parse_int(&found, &rest) || *rest)
        return invar_golden_damaged(lines, format->magic);
    invar_path_show(shown, lines->where);
    if (found != format->version)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s is a golden of version %" PRId64
                          ", this invar has version %d: " RECORD,
                          shown, found, format->version);
    return INVAR_OK;
}

invar_status invar_golden_lines_open(invar_golden_lines *out, char **memory_out,
                                     const invar_golden_format *format, const char *where,
                                     const char *text, size_t bytes)
{
    *memory_out = NULL;
    INVAR_TRY(check_bytes(where, text, bytes));
    INVAR_TRY(INVAR_ALLOC(*memory_out, bytes + 1, "a golden"));
    memcpy(*memory_out, text, bytes);
    (*memory_out)[bytes] = '\0';
    *out = (invar_golden_lines){.where = where, .next = *memory_out};
    (void)invar_golden_lines_next(out);
    INVAR_TRY(check_version(out, format));
    if (!invar_golden_lines_next(out) || strcmp(out->line, format->legend) != 0)
        return invar_golden_damaged(out, format->legend);
    return INVAR_OK;
}

bool invar_golden_lines_next(invar_golden_lines *lines)
{
    char *end;

    if (*lines->next == '\0')
        return false;
    lines->line = lines->next;
    end = strchr(lines->line, '\n'); // not NULL, because the text ends with one
    *end = '\0';
    lines->next = end + 1;
    lines->number++;
    return true;
}

char *invar_golden_after(const invar_golden_lines *lines, const char *key)
{
    size_t length = strlen(key);

    if (strncmp(lines->line, key, length) != 0 || lines->line[length] != ' ')
        return NULL;
    return lines->line + length + 1;
}

invar_status invar_golden_damaged(const invar_golden_lines *lines, const char *expected)
{
    return fail_line(lines->where, lines->number, expected);
}

invar_status invar_golden_read_text(const char **out, invar_golden_lines *lines, const char *key)
{
    if (!invar_golden_lines_next(lines))
        return invar_golden_damaged(lines, key);
    *out = invar_golden_after(lines, key);
    if (!*out || **out == '\0' || strlen(*out) > INVAR_LEDGER_NAME_BYTES || strchr(*out, '\t'))
        return invar_golden_damaged(lines, key);
    return INVAR_OK;
}

invar_status invar_golden_read_digest(invar_digest *out, invar_golden_lines *lines, const char *key)
{
    const char *text = NULL;

    INVAR_TRY(invar_golden_read_text(&text, lines, key));
    if (invar_digest_parse(out, text) == INVAR_OK)
        return INVAR_OK;
    invar_error_clear();
    return invar_golden_damaged(lines, key);
}

bool invar_golden_parse_int(int64_t *out, char **at)
{
    char *from = *at;

    *out = 0;
    for (; **at >= '0' && **at <= '9' && *at - from < 18; (*at)++)
        *out = *out * 10 + (**at - '0');
    return *at > from && (**at < '0' || **at > '9');
}

/* ---- a format -------------------------------------------------------------------------------- */

invar_status invar_golden_put_begin(invar_golden_buffer *out, const invar_golden_format *format,
                                    const char *name, const invar_digest *identity,
                                    const invar_digest *manifest)
{
    char of_run[INVAR_DIGEST_HEX_SIZE], of_points[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(of_run, identity);
    invar_digest_format(of_points, manifest);
    return invar_golden_putf(out, "%s %d\n%s\nname %s\nidentity %s\nmanifest %s\n", format->magic,
                             format->version, format->legend, name, of_run, of_points);
}

invar_status invar_golden_format_print(char **out, size_t *bytes_out,
                                       const invar_golden_format *format, const void *value)
{
    invar_golden_buffer text = {0};
    invar_status status = format->put(&text, value);

    if (status != INVAR_OK) {
        invar_free(text.data);
        return status;
    }
    *out = text.data;
    *bytes_out = (size_t)text.used;
    return INVAR_OK;
}

invar_status invar_golden_format_write(const char *path, const invar_golden_format *format,
                                       const void *value)
{
    invar_status status;
    char *text;
    size_t bytes;

    INVAR_TRY(invar_golden_format_print(&text, &bytes, format, value));
    status = invar_path_check_output(path, format->magic, 0);
    if (status == INVAR_OK)
        status = invar_file_write(path, text, bytes);
    invar_free(text);
    return status;
}

/* Checks that writing the value gives the text; a failure names the first line that differs. */
static invar_status check_same(const invar_golden_format *format, const void *value,
                               const char *where, const char *text, size_t bytes)
{
    int64_t line = 1;
    size_t used, same = 0;
    char *printed;

    INVAR_TRY(invar_golden_format_print(&printed, &used, format, value));
    for (; same < bytes && same < used && text[same] == printed[same]; same++)
        line += text[same] == '\n';
    invar_free(printed);
    return same == bytes && same == used ? INVAR_OK
                                         : fail_line(where, line, "it as invar writes it");
}

invar_status invar_golden_format_parse(void **out, const invar_golden_format *format,
                                       const char *where, const char *text, size_t bytes)
{
    invar_status status;
    void *value;

    INVAR_TRY(invar_alloc(&value, 1, format->size, format->what));
    memset(value, 0, format->size);
    status = format->parse(value, where, text, bytes);
    if (status == INVAR_OK)
        status = check_same(format, value, where, text, bytes);
    if (status == INVAR_OK)
        *out = value;
    else
        format->free(value);
    return status;
}

invar_status invar_golden_format_read(void **out, const invar_golden_format *format,
                                      const char *path)
{
    invar_status status;
    char *text;
    size_t bytes;

    INVAR_TRY(invar_file_read(&text, &bytes, path, format->max_bytes));
    status = invar_golden_format_parse(out, format, path, text, bytes);
    invar_free(text);
    return status;
}

/* ---- the ledger ------------------------------------------------------------------------------ */

invar_status invar_golden_blob(invar_digest *out, invar_sql_stmt *row, int column)
{
    if (invar_sql_digest(out, row, column))
        return INVAR_OK;
    INVAR_TRY(invar_sql_row(row));
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "golden: a digest of the ledger is damaged");
}

invar_status invar_golden_manifest(int64_t *number_out, invar_digest *hash_out,
                                   invar_ledger *ledger, int64_t run)
{
    invar_sql_stmt *row;
    invar_status status = INVAR_SQL_QUERY(&row, ledger->sql,
                                          "SELECT d.manifest, m.hash FROM digest d JOIN manifest m "
                                          "USING(manifest) WHERE d.run = ?1 AND d.rank = 0 "
                                          "ORDER BY d.step, d.seg DESC LIMIT 1",
                                          run);

    *number_out = 0;
    *hash_out = (invar_digest){{0}};
    if (invar_sql_next(&status, row)) {
        *number_out = invar_sql_int(row, 0);
        status = invar_golden_blob(hash_out, row, 1);
    }
    return invar_sql_end(row, status);
}
