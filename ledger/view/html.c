/*
 * html.c - writes HTML pages without scripts: escaped text, tables, and a frame with named
 * sections.
 *
 * Values from ledgers pass through invar_html_text, which escapes all markup. Templates and class
 * names come from the build and are trusted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/html.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "base/invar_banned.h"

enum { NAME_SIZE = 64 }; // bytes of a name in braces; the embedded templates have no longer ones

void invar_html_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        case '\'': fputs("&#39;", out); break;
        default: fputc(*text, out);
        }
    }
}

void invar_html_cell(FILE *out, const char *class_name, const char *text)
{
    fprintf(out, "<td class=\"%s%s\">", class_name, text ? "" : " none");
    invar_html_text(out, text ? text : "absent");
    fputs("</td>", out);
}

void invar_html_cell_format(FILE *out, const char *class_name, const char *format, ...)
{
    char text[128];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    invar_html_cell(out, class_name, text);
}

void invar_html_item(FILE *out, const char *term, const char *value)
{
    fprintf(out, "<div><dt>%s</dt><dd>", term);
    invar_html_text(out, value);
    fputs("</dd></div>", out);
}

void invar_html_item_number(FILE *out, const char *term, int64_t value)
{
    fprintf(out, "<div><dt>%s</dt><dd>%" PRId64 "</dd></div>", term, value);
}

void invar_html_table_open(FILE *out, const char *const *heads)
{
    fputs("<div class=\"scroll\"><table><thead><tr>", out);
    for (; *heads; heads++)
        fprintf(out, "<th>%s</th>", *heads);
    fputs("</tr></thead><tbody>", out);
}

void invar_html_table_close(FILE *out, size_t more)
{
    fputs("</tbody></table></div>", out);
    if (more)
        fprintf(out, "<p class=\"note\">... and %zu more; <code>--json</code> has all.</p>", more);
}

static void put_file(FILE *out, const invar_embedded *files, const char *name)
{
    while (files->name && strcmp(files->name, name) != 0)
        files++;
    INVAR_CHECK(files->name); // an embedded template names only embedded files
    fwrite(files->text, 1, files->bytes, out);
}

static void put_named(FILE *out, const invar_embedded *files, const invar_html_section *sections,
                      const void *data, const char *name)
{
    while (sections->name && strcmp(sections->name, name) != 0)
        sections++;
    if (sections->name)
        sections->put(out, data);
    else
        put_file(out, files, name);
}

invar_status invar_html_write(FILE *out, const invar_embedded *files,
                              const invar_html_section *sections, const void *data)
{
    const char *at = files->text, *open, *close;
    char name[NAME_SIZE];

    while ((open = strstr(at, "{{")) != NULL && (close = strstr(open, "}}")) != NULL) {
        fwrite(at, 1, (size_t)(open - at), out);
        snprintf(name, sizeof name, "%.*s", (int)(close - open - 2), open + 2);
        put_named(out, files, sections, data, name);
        at = close + 2;
    }
    fputs(at, out);
    if (fflush(out) != 0 || ferror(out))
        return INVAR_FAIL(INVAR_E_IO, errno, "cannot write the page: %s", strerror(errno));
    return INVAR_OK;
}
