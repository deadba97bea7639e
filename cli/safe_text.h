/*
 * safe_text.h - text that is safe to show, and times for people.
 *
 * What comes out of a file may be hostile. Nothing reaches a terminal but printable UTF-8: control
 * characters and bytes that are no UTF-8 are shown as \xNN.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_SAFE_TEXT_H
#define INVAR_CLI_SAFE_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * `bytes` bytes, made safe, as a string; yields its length. What does not fit is left out, so
 * `size` of 4 * bytes + 1 is always enough.
 */
size_t invar_safe_text_escape(char *out, size_t size, const char *text, size_t bytes);

/* Columns that a safe string takes: its characters. */
size_t invar_safe_text_width(const char *text, size_t bytes);

/* A string, or `bytes` bytes, made safe. */
void invar_safe_text_print(FILE *out, const char *text);
void invar_safe_text_print_bytes(FILE *out, const char *text, size_t bytes);

/* A string, made safe, in quotes as JSON has it. */
void invar_safe_text_print_json(FILE *out, const char *text);

/*
 * The end of a list that is a document's last member, and of the document. Where `status` is a
 * failure, the list has what there was until then, and "error" says why.
 */
void invar_safe_text_end_json(FILE *out, invar_status status);

/*
 * Our own text behind what takes `indent` columns of a line, and the line's end. On a terminal it
 * goes on in lines that begin with as many spaces, whole words each; elsewhere it is one line.
 */
void invar_safe_text_wrap(FILE *out, const char *text, int indent);

/*
 * Our own paragraphs, and a line's end. On a terminal their lines become as long as fit. A line
 * that is empty or indented belongs to no paragraph. Elsewhere all lines are as they stand.
 */
void invar_safe_text_fill(FILE *out, const char *text);

/* The same for a terminal of `width` columns; 0: no terminal. */
void invar_safe_text_wrap_to(FILE *out, const char *text, int indent, int width);
void invar_safe_text_fill_to(FILE *out, const char *text, int width);

#define INVAR_SAFE_TEXT_TIME_SIZE 32

/* Unix time as "2026-01-31T12:34:56Z". */
void invar_safe_text_time(char out[INVAR_SAFE_TEXT_TIME_SIZE], int64_t ns);

/* A span as "12s", "3m", "5h" or "8d". */
void invar_safe_text_span(char out[INVAR_SAFE_TEXT_TIME_SIZE], int64_t ns);

#ifdef __cplusplus
}
#endif
#endif
