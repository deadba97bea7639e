/*
 * embedded_script.c - starts embedded Python scripts and exchanges JSON with them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/embedded_script.h"

#include <string.h>

#include "base/alloc.h"
#include "base/embedded.h"
#include "base/json/json.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define COMMAND "python3 -I -X utf8 -c '"
#define ERROR_SIZE 200 /* longest part of the script's message */

extern const invar_embedded invar_engine_scripts[]; /* ends with an entry without a name */

static const invar_embedded *find_script(const char *file, size_t bytes)
{
    const invar_embedded *script = invar_engine_scripts;

    while (script->name &&
           (strlen(script->name) != bytes || memcmp(script->name, file, bytes) != 0))
        script++;
    INVAR_CHECK(script->name && !memchr(script->text, '\'', script->bytes));
    return script;
}

invar_status invar_embedded_script_command(char **out, const char *files)
{
    size_t bytes = sizeof COMMAND "'", used = sizeof COMMAND - 1, length;
    const char *cursor, *file;

    *out = NULL;
    for (cursor = files; invar_text_item(&file, &length, &cursor, ' ');)
        bytes += find_script(file, length)->bytes;
    INVAR_TRY(INVAR_ALLOC(*out, bytes, "a command"));
    memcpy(*out, COMMAND, used);
    for (cursor = files; invar_text_item(&file, &length, &cursor, ' ');) {
        const invar_embedded *script = find_script(file, length);
        memcpy(*out + used, script->text, script->bytes);
        used += script->bytes;
    }
    memcpy(*out + used, "'", 2);
    return INVAR_OK;
}

invar_status invar_embedded_script_open(invar_line_process **out, const char *name,
                                        const char *files, double seconds)
{
    invar_status status;
    char *command;

    *out = NULL;
    INVAR_TRY(invar_embedded_script_command(&command, files));
    status = invar_line_process_open(out, name, command, seconds, -1);
    invar_free(command);
    return status;
}

invar_status invar_embedded_script_ask(json_t **out, invar_line_process *program, const char *name,
                                       invar_json_text *line, bool raw)
{
    const char *answer, *error;
    size_t bytes;

    *out = NULL;
    invar_json_text_newline(line);
    INVAR_TRY(line->status);
    INVAR_TRY(invar_line_process_exchange(&answer, &bytes, program, line->data, line->bytes));
    invar_json_text_reset(line);
    INVAR_TRY((raw ? invar_json_parse_raw : invar_json_parse)(out, name, answer, bytes));
    error = json_string_value(json_object_get(*out, "error"));
    if (error) {
        char quote[ERROR_SIZE];
        invar_text_quote(quote, sizeof quote, error, strlen(error));
        json_decref(*out);
        *out = NULL;
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%.*s: %s", INVAR_ERROR_MESSAGE_SIZE / 2, name,
                          quote);
    }
    return INVAR_OK;
}
