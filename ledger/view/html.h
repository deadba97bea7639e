/*
 * html.h - pages without scripts: text that stays text, and a frame that is filled in.
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

/* Text, none of which becomes markup. */
void invar_html_text(FILE *out, const char *text);

/* A cell of a table; NULL: nothing is there. */
void invar_html_cell(FILE *out, const char *class_name, const char *text);
void invar_html_cell_format(FILE *out, const char *class_name, const char *format, ...)
    INVAR_PRINTF(3, 4);

/* A term and its value, inside a <dl>. */
void invar_html_item(FILE *out, const char *term, const char *value);
void invar_html_item_number(FILE *out, const char *term, int64_t value);

/*
 * A table that scrolls, with these heads (NULL after the last), up to its rows; and after them,
 * with a line about `more` rows that were left out.
 */
void invar_html_table_open(FILE *out, const char *const *heads);
void invar_html_table_close(FILE *out, size_t more);

typedef struct invar_html_section {
    const char *name;
    void (*put)(FILE *out, const void *data);
} invar_html_section;

/*
 * The first file is the frame. A name in double braces stands for the section of that name, or,
 * where there is none, for the text of the file of that name. Both lists end with one without a
 * name. Does not close `out`.
 */
invar_status invar_html_write(FILE *out, const invar_embedded *files,
                              const invar_html_section *sections, const void *data) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
