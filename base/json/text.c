/*
 * text.c - writes JSON text into a growing buffer.
 *
 * A failure is kept in the text, and all later calls do nothing, so callers check the status once,
 * at the end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/json/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/number.h"
#include "base/text.h"

#include "base/invar_banned.h"

void invar_json_text_release(invar_json_text *text)
{
    invar_free(text->data);
    memset(text, 0, sizeof *text);
}

void invar_json_text_reset(invar_json_text *text)
{
    text->bytes = 0;
    text->status = INVAR_OK;
}

void invar_json_text_append(invar_json_text *text, const char *piece, size_t bytes)
{
    if (text->status == INVAR_OK)
        text->status = INVAR_GROW(text->data, text->capacity, (int64_t)text->bytes,
                                  (int64_t)(text->bytes + bytes), "JSON text");
    if (text->status != INVAR_OK || bytes == 0)
        return;
    memcpy(text->data + text->bytes, piece, bytes);
    text->bytes += bytes;
}

/* Writes the comma before a value or key, unless it is the first of its list. */
static void write_separator(invar_json_text *text)
{
    char last = text->bytes ? text->data[text->bytes - 1] : '\n';

    if (last != '{' && last != '[' && last != ':' && last != '\n')
        invar_json_text_append(text, ",", 1);
}

void invar_json_text_value(invar_json_text *text, const char *json, size_t bytes)
{
    write_separator(text);
    invar_json_text_append(text, json, bytes);
}

void invar_json_text_open(invar_json_text *text, char bracket)
{
    invar_json_text_value(text, &bracket, 1);
}

void invar_json_text_close(invar_json_text *text, char bracket)
{
    invar_json_text_append(text, &bracket, 1);
}

void invar_json_text_newline(invar_json_text *text)
{
    invar_json_text_append(text, "\n", 1);
}

void invar_json_text_key(invar_json_text *text, const char *key)
{
    invar_json_text_string(text, key, strlen(key));
    invar_json_text_append(text, ":", 1);
}

static void put_escaped(invar_json_text *text, char c)
{
    char escape[8];
    int bytes;

    if (c == '"' || c == '\\')
        bytes = snprintf(escape, sizeof escape, "\\%c", c);
    else if (c == '\n')
        bytes = snprintf(escape, sizeof escape, "\\n");
    else
        bytes = snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)c);
    invar_json_text_append(text, escape, (size_t)bytes);
}

/*
 * Returns the number of bytes, from `at` on, that need no escape: 0 if the first one needs it, -1
 * if it is not UTF-8.
 */
static int64_t plain_run(const char *string, size_t at, size_t bytes)
{
    size_t i = at;

    while (i < bytes) {
        unsigned char c = (unsigned char)string[i];
        uint32_t point;
        size_t length;
        if (c < 0x20 || c == '"' || c == '\\' || c == 0x7F)
            break;
        length = invar_text_utf8(&point, string + i, bytes - i);
        if (length == 0)
            return -1;
        i += length;
    }
    return (int64_t)(i - at);
}

void invar_json_text_string(invar_json_text *text, const char *string, size_t bytes)
{
    size_t at = 0;

    write_separator(text);
    invar_json_text_append(text, "\"", 1);
    while (at < bytes && text->status == INVAR_OK) {
        int64_t run = plain_run(string, at, bytes);
        if (run < 0) {
            text->status =
                INVAR_FAIL(INVAR_E_INVALID, 0, "text for JSON is not UTF-8 after byte %zu", at);
        } else if (run == 0) {
            put_escaped(text, string[at++]);
        } else {
            invar_json_text_append(text, string + at, (size_t)run);
            at += (size_t)run;
        }
    }
    invar_json_text_append(text, "\"", 1);
}

void invar_json_text_int(invar_json_text *text, int64_t value)
{
    char digits[24];
    int bytes = snprintf(digits, sizeof digits, "%" PRId64, value);

    invar_json_text_value(text, digits, (size_t)bytes);
}

void invar_json_text_thousandths(invar_json_text *text, int64_t value)
{
    char number[32];
    int bytes =
        snprintf(number, sizeof number, "%" PRId64 ".%03d", value / 1000, (int)(value % 1000));

    invar_json_text_value(text, number, (size_t)bytes);
}

void invar_json_text_bool(invar_json_text *text, bool value)
{
    if (value)
        invar_json_text_value(text, "true", 4);
    else
        invar_json_text_value(text, "false", 5);
}

void invar_json_text_null(invar_json_text *text)
{
    invar_json_text_value(text, "null", 4);
}

void invar_json_text_digest(invar_json_text *text, const invar_digest *digest)
{
    invar_json_text_string(text, INVAR_DIGEST_HEX(digest), INVAR_DIGEST_HEX_SIZE - 1);
}

static void put_number(invar_json_text *text, const char *digits)
{
    // readers would parse "-0" as the integer 0
    const char *shown = strcmp(digits, "-0") == 0 ? "-0.0" : digits;

    invar_json_text_value(text, shown, strlen(shown));
}

static bool finite_or_fail(invar_json_text *text, double value)
{
    if (text->status == INVAR_OK && !isfinite(value))
        text->status = INVAR_FAIL(INVAR_E_INVALID, 0,
                                  "a number for JSON is not finite, and JSON has no such number");
    return text->status == INVAR_OK;
}

void invar_json_text_f64(invar_json_text *text, double value)
{
    char digits[INVAR_NUMBER_SIZE];

    if (!finite_or_fail(text, value))
        return;
    text->status = invar_number_format(digits, value);
    if (text->status == INVAR_OK)
        put_number(text, digits);
}

void invar_json_text_f32(invar_json_text *text, float value)
{
    char digits[INVAR_NUMBER_SIZE];

    if (!finite_or_fail(text, (double)value))
        return;
    text->status = invar_number_format_f32(digits, value);
    if (text->status == INVAR_OK)
        put_number(text, digits);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Begins a list; writes null and returns false if `values` is NULL. */
static bool open_list(invar_json_text *text, const void *values)
{
    if (values)
        invar_json_text_open(text, '[');
    else
        invar_json_text_null(text);
    return values != NULL;
}

void invar_json_text_ints(invar_json_text *text, const int32_t *values, int64_t count)
{
    if (!open_list(text, values))
        return;
    for (int64_t i = 0; i < count; i++)
        invar_json_text_int(text, values[i]);
    invar_json_text_close(text, ']');
}

void invar_json_text_bytes(invar_json_text *text, const uint8_t *values, int64_t count)
{
    if (!open_list(text, values))
        return;
    for (int64_t i = 0; i < count; i++)
        invar_json_text_int(text, values[i]);
    invar_json_text_close(text, ']');
}

void invar_json_text_f32s(invar_json_text *text, const float *values, int64_t count)
{
    if (!open_list(text, values))
        return;
    for (int64_t i = 0; i < count; i++)
        invar_json_text_f32(text, values[i]);
    invar_json_text_close(text, ']');
}

/* ---- members --------------------------------------------------------------------------------- */

/* Defines the function that writes a key and a value of one type. */
#define DEFINE_PUT(kind, type)                                                                     \
    void invar_json_text_put_##kind(invar_json_text *text, const char *key, type value)            \
    {                                                                                              \
        invar_json_text_key(text, key);                                                            \
        invar_json_text_##kind(text, value);                                                       \
    }

DEFINE_PUT(open, char)
DEFINE_PUT(int, int64_t)
DEFINE_PUT(bool, bool)
DEFINE_PUT(f64, double)
DEFINE_PUT(digest, const invar_digest *)

void invar_json_text_put_string(invar_json_text *text, const char *key, const char *string)
{
    invar_json_text_key(text, key);
    if (string)
        invar_json_text_string(text, string, strlen(string));
    else
        invar_json_text_null(text);
}

void invar_json_text_put_ints(invar_json_text *text, const char *key, const int32_t *values,
                              int64_t count)
{
    invar_json_text_key(text, key);
    invar_json_text_ints(text, values, count);
}

void invar_json_text_put_bytes(invar_json_text *text, const char *key, const uint8_t *values,
                               int64_t count)
{
    invar_json_text_key(text, key);
    invar_json_text_bytes(text, values, count);
}
