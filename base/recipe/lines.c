/*
 * lines.c - parser for the lines of a recipe's files.
 *
 * A file is in memory while its lines are parsed, and so are the files that include it. Memory is
 * bounded by the limits of depth and size. Time is bounded by the limit on the number of files:
 * without it, two includes in each file would double the work with every level.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/recipe/lines.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"

#include "base/invar_banned.h"

typedef invar_recipe_span span;

/* State that all files of a recipe share. */
typedef struct visit {
    const invar_recipe_line_callbacks *visitor;
    int files; /* number of files opened so far */
} visit;

/* A file that is being parsed. */
typedef struct reader {
    visit *visit;
    const struct reader *from; /* including file; NULL for the recipe itself */
    const char *path;
    invar_recipe_location at;
    int depth;
    bool in_section;
    char shown[INVAR_PATH_SHOWN_SIZE];
} reader;

/* ---- words ----------------------------------------------------------------------------------- */

bool invar_recipe_is_name(span s)
{
    for (size_t i = 0; i < s.length; i++) {
        char c = s.start[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '-' || c == '_'))
            return false;
    }
    return s.length > 0 && s.length <= INVAR_RECIPE_MAX_NAME;
}

bool invar_recipe_span_is(span s, const char *text)
{
    return strlen(text) == s.length && memcmp(text, s.start, s.length) == 0;
}

static span trim_spaces(span s)
{
    while (s.length > 0 && s.start[0] == ' ') {
        s.start++;
        s.length--;
    }
    while (s.length > 0 && s.start[s.length - 1] == ' ')
        s.length--;
    return s;
}

bool invar_recipe_is_text(span s)
{
    for (size_t i = 0, step; i < s.length; i += step) {
        step = invar_text_char(s.start + i, s.length - i);
        if (step == 0)
            return false;
    }
    return true;
}

/* Fails with the location, the complaint and an excerpt of the text. */
static invar_status fail_at(const reader *r, const char *complaint, span text)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:%d: %s: '%s'", r->shown, r->at.line, complaint,
                      INVAR_QUOTED_BYTES(INVAR_TEXT_QUOTE_SIZE, text.start, text.length));
}

/*
 * Fails for a malformed line. The line may contain a secret, so only its first word is quoted, up
 * to a blank, = or :, and only if it has the form of a key or a section.
 */
static invar_status fail_line(const reader *r, const char *complaint, span line)
{
    span word = trim_spaces(line);
    size_t length = 0;

    while (length < word.length && !strchr("=: \t", word.start[length]))
        length++;
    if (length == 0 || (length == word.length && word.start[0] != '['))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:%d: %s", r->shown, r->at.line, complaint);
    return fail_at(r, complaint, (span){word.start, length});
}

/* ---- included files -------------------------------------------------------------------------- */

static invar_status read_file(visit *v, const reader *from, const char *path, const char *text,
                              size_t bytes);

/* Writes the path of an included file, which is relative to the folder of the including file. */
static invar_status included_path(char out[INVAR_PATH_SIZE], const reader *r, span value)
{
    char name[INVAR_PATH_SIZE], folder[INVAR_PATH_SIZE];

    if (value.length == 0 || value.length >= sizeof name || !invar_recipe_is_text(value))
        return fail_at(r, "include: expected the path of a recipe", value);
    memcpy(name, value.start, value.length);
    name[value.length] = '\0';
    if (name[0] == '/' || !strchr(r->path, '/')) {
        memcpy(out, name, value.length + 1);
        return INVAR_OK;
    }
    INVAR_TRY(invar_path_folder(folder, r->path));
    if (invar_path_join(out, INVAR_PATH_SIZE, folder, name) != INVAR_OK)
        return fail_at(r, "include: the path is too long", value);
    return INVAR_OK;
}

static invar_status check_limits(const reader *r, const char *path, span value)
{
    if (r->depth >= INVAR_RECIPE_MAX_DEPTH)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s:%d: include: files include each other more than "
                          "%d deep",
                          r->shown, r->at.line, INVAR_RECIPE_MAX_DEPTH);
    if (r->visit->files >= INVAR_RECIPE_MAX_FILES)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:%d: include: more than %d files in all", r->shown,
                          r->at.line, INVAR_RECIPE_MAX_FILES);
    for (const reader *above = r; above; above = above->from)
        if (invar_path_same(above->path, path))
            return fail_at(r, "include: a file cannot include itself, also by way of others",
                           value);
    return INVAR_OK;
}

/* Opens an included file; a failure's message begins with the location of the include. */
static invar_status open_included(char **out, size_t *bytes_out, const reader *r, const char *path)
{
    const invar_recipe_line_callbacks *visitor = r->visit->visitor;
    char message[INVAR_ERROR_MESSAGE_SIZE];
    invar_status status = visitor->open(out, bytes_out, visitor->files, path);

    if (status == INVAR_OK || status == INVAR_E_NOMEM)
        return status;
    memcpy(message, invar_error_last()->message, sizeof message);
    return INVAR_FAIL(status, invar_error_last()->native, "%s:%d: include: %.2500s", r->shown,
                      r->at.line, message);
}

static invar_status reader_include(const reader *r, span value)
{
    INVAR_AUTO_FREE char *text = NULL;
    char path[INVAR_PATH_SIZE];
    size_t bytes;

    if (!r->visit->visitor->open)
        return fail_at(r, "this file has to stand alone, include is for recipes", value);
    if (r->in_section)
        return fail_at(r, "include stands before the first [section]", value);
    INVAR_TRY(included_path(path, r, value));
    INVAR_TRY(check_limits(r, path, value));
    INVAR_TRY(open_included(&text, &bytes, r, path));
    return read_file(r->visit, r, path, text, bytes);
}

invar_status invar_recipe_open_file(char **out, size_t *bytes_out, void *payload, const char *path)
{
    (void)payload;
    return invar_file_read(out, bytes_out, path, INVAR_RECIPE_MAX_BYTES);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static invar_status read_section(reader *r, span line)
{
    const invar_recipe_line_callbacks *visitor = r->visit->visitor;
    span name = trim_spaces(line);

    if (name.start[name.length - 1] != ']')
        return fail_line(r, "a section is [name], with nothing after it", line);
    name.start++;
    name.length -= 2;
    if (!invar_recipe_is_name(name))
        return fail_line(r, "a section's name is made of letters, digits, - and _", line);
    r->in_section = true;
    return visitor->section(visitor->payload, &r->at, name);
}

static invar_status read_key(reader *r, span line)
{
    const invar_recipe_line_callbacks *visitor = r->visit->visitor;
    const char *sign = memchr(line.start, '=', line.length);
    span name, value;

    if (!sign)
        return fail_line(r, "neither [section] nor key = value nor a comment (# or ;)", line);
    name = trim_spaces((span){line.start, (size_t)(sign - line.start)});
    value = trim_spaces((span){sign + 1, line.length - (size_t)(sign + 1 - line.start)});
    if (name.length == 0)
        return fail_line(r, "no key before the =", line);
    if (!invar_recipe_is_name(name))
        return fail_line(r, "a key is made of letters, digits, - and _, at most 63", line);
    if (invar_recipe_span_is(name, "include"))
        return reader_include(r, value);
    if (!r->in_section)
        return fail_at(r, "a key needs a [section] before it", name);
    return visitor->key(visitor->payload, &r->at, name, value);
}

static invar_status read_line(reader *r, span line)
{
    if (line.length > INVAR_RECIPE_MAX_LINE)
        return fail_line(r, "the line is longer than 65536 bytes", line);
    if (trim_spaces(line).length == 0)
        return INVAR_OK;
    switch (line.start[0]) {
    case '#':
    case ';':
        return invar_recipe_is_text(line)
                   ? INVAR_OK
                   : fail_line(r, "the comment has a control character or is not UTF-8", line);
    case ' ':
    case '\t': return fail_line(r, "the line is indented; start in the first column", line);
    case '[': return read_section(r, line);
    default: return read_key(r, line);
    }
}

static invar_status read_file(visit *v, const reader *from, const char *path, const char *text,
                              size_t bytes)
{
    reader r = {.visit = v, .from = from, .path = path, .depth = from ? from->depth + 1 : 0};
    const char *end = text + bytes;

    invar_path_show(r.shown, path);
    r.at = (invar_recipe_location){.file = r.shown, .number = ++v->files};
    if (bytes > INVAR_RECIPE_MAX_BYTES)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s:1: the file is larger than %d bytes", r.shown,
                          INVAR_RECIPE_MAX_BYTES);
    if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s:1: the file begins with a byte order mark; save it without", r.shown);
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        span line = {text, (size_t)((newline ? newline : end) - text)};

        r.at.line++;
        text = newline ? newline + 1 : end;
        if (newline && line.length > 0 && line.start[line.length - 1] == '\r')
            line.length--;
        INVAR_TRY(read_line(&r, line));
    }
    return INVAR_OK;
}

invar_status invar_recipe_read_lines(const invar_recipe_line_callbacks *visitor, const char *path,
                                     const char *text, size_t bytes)
{
    visit v = {.visitor = visitor};

    return read_file(&v, NULL, path, text, bytes);
}
