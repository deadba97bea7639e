/*
 * html.h - writes HTML pages without scripts: escaped text, tables, and a frame with named
 * sections.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_HTML_H
#define INVAR_LEDGER_VIEW_HTML_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/embedded.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes text with all characters escaped that have a meaning in HTML. */
void invar_html_text(FILE *out, const char *text);

/* Writes a table cell; a `text` of NULL is shown as absent. `class_name` is not escaped. */
void invar_html_cell(FILE *out, const char *class_name, const char *text);
void invar_html_cell_format(FILE *out, const char *class_name, const char *format, ...)
    INVAR_PRINTF(3, 4);

/* Write a term and its value inside a <dl>. The term is not escaped. */
void invar_html_item(FILE *out, const char *term, const char *value);
void invar_html_item_number(FILE *out, const char *term, int64_t value);

/*
 * Write the beginning and the end of a table that scrolls; the caller writes the rows between them.
 * `heads` ends with NULL. `more` is the number of rows that were left out, of which a line informs.
 */
void invar_html_table_open(FILE *out, const char *const *heads);
void invar_html_table_close(FILE *out, size_t more);

/* A part of a page that a function writes. */
typedef struct invar_html_section {
    const char *name;
    void (*put)(FILE *out, const void *data);
} invar_html_section;

/*
 * Writes a page. The first file is the frame; a name in double braces in it stands for the section
 * of that name, or else for the text of the file of that name. Both lists end with an element
 * without a name. Each section receives `data`. Does not close `out`.
 */
invar_status invar_html_write(FILE *out, const invar_embedded *files,
                              const invar_html_section *sections, const void *data) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
