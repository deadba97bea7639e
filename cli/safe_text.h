/*
 * safe_text.h - escapes untrusted text for terminals; formats times and durations.
 *
 * Text from files is untrusted. Only printable UTF-8 reaches a terminal: control characters and
 * invalid bytes are shown as \xNN.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_SAFE_TEXT_H
#define INVAR_CLI_SAFE_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

/* Returns the number of columns of an escaped string, which is its number of characters. */
size_t invar_safe_text_width(const char *text, size_t bytes);

/* Print an escaped string, or `bytes` bytes. */
void invar_safe_text_print(FILE *out, const char *text);
void invar_safe_text_print_bytes(FILE *out, const char *text, size_t bytes);

/*
 * Prints a trusted text and a newline after a prefix of `indent` columns. On a terminal, lines are
 * wrapped at words and indented; otherwise it is one line.
 */
void invar_safe_text_wrap(FILE *out, const char *text, int indent);

/*
 * Prints trusted paragraphs and a newline. On a terminal, paragraphs are filled; empty and indented
 * lines stay as they are. Otherwise all lines stay as they are.
 */
void invar_safe_text_fill(FILE *out, const char *text);

/*
 * Like invar_safe_text_wrap and invar_safe_text_fill, for a terminal of `width` columns; 0 if there
 * is no terminal.
 */
void invar_safe_text_wrap_to(FILE *out, const char *text, int indent, int width);
void invar_safe_text_fill_to(FILE *out, const char *text, int width);

#define INVAR_SAFE_TEXT_TIME_SIZE 32

/* Formats a Unix time in ns as "2026-01-31T12:34:56Z". */
void invar_safe_text_time(char out[INVAR_SAFE_TEXT_TIME_SIZE], int64_t ns);

/* Formats a duration in ns as "12s", "3m", "5h" or "8d". */
void invar_safe_text_span(char out[INVAR_SAFE_TEXT_TIME_SIZE], int64_t ns);

#endif
