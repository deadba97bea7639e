/*
 * prometheus.c - writes metrics in the text format 0.0.4 of Prometheus.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/metrics/prometheus.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"

#include "base/invar_banned.h"

static void append_text(invar_json_text *out, const char *text)
{
    invar_json_text_append(out, text, strlen(text));
}

/* Appends text and escapes backslashes and line feeds; quotes only if `quoted` is set. */
static void put_escaped(invar_json_text *out, const char *text, bool quoted)
{
    for (; *text; text++) {
        if (*text == '\n')
            append_text(out, "\\n");
        else if (*text == '\\' || (quoted && *text == '"'))
            invar_json_text_append(out, (const char[]){'\\', *text}, 2);
        else
            invar_json_text_append(out, text, 1);
    }
}

void invar_prometheus_family(invar_json_text *out, const char *name, const char *type,
                             const char *help)
{
    append_text(out, "# HELP ");
    append_text(out, name);
    append_text(out, " ");
    put_escaped(out, help, false);
    append_text(out, "\n# TYPE ");
    append_text(out, name);
    append_text(out, " ");
    append_text(out, type);
    append_text(out, "\n");
}

static void put_number(invar_json_text *out, double value)
{
    char text[INVAR_NUMBER_SIZE];

    if (isnan(value))
        append_text(out, "NaN");
    else if (isinf(value))
        append_text(out, value > 0.0 ? "+Inf" : "-Inf");
    else if (invar_number_format_plain(text, value) == INVAR_OK)
        append_text(out, text);
    else if (out->status == INVAR_OK)
        out->status = invar_error_last()->status;
}

void invar_prometheus_value(invar_json_text *out, const char *name,
                            const invar_prometheus_label *labels, size_t n_labels, double value)
{
    append_text(out, name);
    for (size_t i = 0; i < n_labels; i++) {
        append_text(out, i ? "," : "{");
        append_text(out, labels[i].name);
        append_text(out, "=\"");
        put_escaped(out, labels[i].value, true);
        append_text(out, "\"");
    }
    append_text(out, n_labels ? "} " : " ");
    put_number(out, value);
    append_text(out, "\n");
}
