/*
 * text.h - writes JSON text into a growing buffer.
 *
 *     invar_json_text text = {0};
 *     invar_json_text_open(&text, '{');
 *     invar_json_text_key(&text, "tokens");
 *     invar_json_text_int(&text, 7);
 *     invar_json_text_close(&text, '}');
 *     status = text.status;                   the first failure; later calls change nothing
 *     invar_json_text_release(&text);
 *
 * Commas are added automatically. Numbers are the shortest decimals that read back to the same
 * bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_JSON_TEXT_H
#define INVAR_BASE_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"

/* Zero-initialize before use. Release with invar_json_text_release, also after a failure. */
typedef struct invar_json_text {
    char *data; /* (bytes) text without a NUL; NULL before the first call */
    size_t bytes;
    int64_t capacity;
    invar_status status; /* first failure of a call */
} invar_json_text;

void invar_json_text_release(invar_json_text *text);

/* Makes the text empty, keeps its memory and clears a failure. */
void invar_json_text_reset(invar_json_text *text);

void invar_json_text_open(invar_json_text *text, char bracket);
void invar_json_text_close(invar_json_text *text, char bracket);
void invar_json_text_key(invar_json_text *text, const char *key);

/* Writes a string of UTF-8, which may contain NULs; other bytes are a failure. */
void invar_json_text_string(invar_json_text *text, const char *string, size_t bytes);
void invar_json_text_int(invar_json_text *text, int64_t value);

/* Writes a number of thousandths, which is not negative: 1234567 as 1234.567. */
void invar_json_text_thousandths(invar_json_text *text, int64_t value);
void invar_json_text_bool(invar_json_text *text, bool value);
void invar_json_text_null(invar_json_text *text);
void invar_json_text_digest(invar_json_text *text, const invar_digest *digest);

/* Write a number, which must be finite; NaN and infinities are a failure. */
void invar_json_text_f64(invar_json_text *text, double value);
void invar_json_text_f32(invar_json_text *text, float value);

/* Write a key and its value. A string ends with a NUL; NULL is written as null. */
void invar_json_text_put_open(invar_json_text *text, const char *key, char bracket);
void invar_json_text_put_string(invar_json_text *text, const char *key, const char *string);
void invar_json_text_put_int(invar_json_text *text, const char *key, int64_t value);
void invar_json_text_put_bool(invar_json_text *text, const char *key, bool value);
void invar_json_text_put_f64(invar_json_text *text, const char *key, double value);
void invar_json_text_put_digest(invar_json_text *text, const char *key, const invar_digest *digest);
void invar_json_text_put_ints(invar_json_text *text, const char *key, const int32_t *values,
                              int64_t count);
void invar_json_text_put_bytes(invar_json_text *text, const char *key, const uint8_t *values,
                               int64_t count);

/* Writes a text that is JSON already as one value. */
void invar_json_text_value(invar_json_text *text, const char *json, size_t bytes);

/* Appends more bytes to the previous value. */
void invar_json_text_append(invar_json_text *text, const char *piece, size_t bytes);

/* Ends a line of JSON lines. */
void invar_json_text_newline(invar_json_text *text);

/* Write a list (count), or null if `values` is NULL. */
void invar_json_text_ints(invar_json_text *text, const int32_t *values, int64_t count);
void invar_json_text_bytes(invar_json_text *text, const uint8_t *values, int64_t count);
void invar_json_text_f32s(invar_json_text *text, const float *values, int64_t count);

#endif
