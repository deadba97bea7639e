/*
 * parquet.c - reads Parquet files through the embedded script parquet_rows.py.
 *
 * The script answers each request with a group of rows as JSON lines, which are joined to one text.
 * A text that is larger than the limit is an error.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/data/parquet.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/ext/embedded_script.h"

#include "base/invar_banned.h"

#define SECONDS 600.0 /* time limit of the start and of each group of rows */

typedef struct parquet_state {
    invar_line_process *program;
    char name[INVAR_PATH_SHOWN_SIZE];
    invar_json_text line; /* request */
    invar_json_text rows;
    size_t max;
} parquet_state;

bool invar_parquet_is(const char *data, size_t bytes)
{
    return bytes >= 4 && memcmp(data, "PAR1", 4) == 0;
}

static invar_status open_file(parquet_state *r, const char *path, const char *const *columns)
{
    json_t *answer;

    INVAR_TRY(invar_embedded_script_open(&r->program, r->name, "script_loop.py parquet_rows.py",
                                         SECONDS));
    invar_json_text_open(&r->line, '{');
    invar_json_text_key(&r->line, "path");
    invar_json_text_string(&r->line, path, strlen(path));
    invar_json_text_key(&r->line, "columns");
    invar_json_text_open(&r->line, '[');
    for (; *columns; columns++)
        if ((*columns)[0])
            invar_json_text_string(&r->line, *columns, strlen(*columns));
    invar_json_text_close(&r->line, ']');
    invar_json_text_close(&r->line, '}');
    INVAR_TRY(invar_embedded_script_ask(&answer, r->program, r->name, &r->line, false));
    json_decref(answer);
    return INVAR_OK;
}

/* Appends the next rows; *end_out is true if there are no more. */
static invar_status read_rows(parquet_state *r, bool *end_out)
{
    const json_t *lines;
    json_t *answer;
    bool said_end;
    invar_status status;

    invar_json_text_open(&r->line, '{');
    invar_json_text_close(&r->line, '}');
    INVAR_TRY(invar_embedded_script_ask(&answer, r->program, r->name, &r->line, false));
    lines = json_object_get(answer, "lines");
    said_end = json_is_true(json_object_get(answer, "end"));
    *end_out = !json_is_string(lines);
    if (!*end_out)
        invar_json_text_append(&r->rows, json_string_value(lines), json_string_length(lines));
    json_decref(answer);
    status = r->rows.status;
    if (status == INVAR_OK && *end_out && !said_end)
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: its reader answered neither rows nor an end",
                            r->name);
    if (status == INVAR_OK && r->rows.bytes > r->max)
        status = INVAR_FAIL(INVAR_E_INVALID, 0, "%s: its rows have more than the %zu bytes allowed",
                            r->name, r->max);
    return status;
}

invar_status invar_parquet_read(char **out, size_t *bytes_out, const char *path,
                                const char *const *columns, size_t max_bytes)
{
    parquet_state r = {.max = max_bytes};
    bool end = false;
    invar_status status;

    *out = NULL;
    *bytes_out = 0;
    invar_path_show(r.name, path);
    status = open_file(&r, path, columns);
    while (status == INVAR_OK && !end)
        status = read_rows(&r, &end);
    invar_line_process_close(r.program);
    invar_json_text_release(&r.line);
    if (status == INVAR_OK) {
        *bytes_out = r.rows.bytes;
        invar_json_text_append(&r.rows, "", 1);
        status = r.rows.status;
    }
    if (status != INVAR_OK) {
        invar_json_text_release(&r.rows);
        *bytes_out = 0;
        return status;
    }
    *out = r.rows.data;
    return INVAR_OK;
}
