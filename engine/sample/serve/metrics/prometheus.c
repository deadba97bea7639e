/*
 * prometheus.c - numbers in Prometheus' text format 0.0.4.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/metrics/prometheus.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"

#include "base/invar_banned.h"

static void put(invar_json_text *out, const char *text)
{
    invar_json_text_append(out, text, strlen(text));
}

/* A backslash and the end of a line would end the text, and so does a quote within quotes. */
static void put_escaped(invar_json_text *out, const char *text, bool quoted)
{
    for (; *text; text++) {
        if (*text == '\n')
            put(out, "\\n");
        else if (*text == '\\' || (quoted && *text == '"'))
            invar_json_text_append(out, (const char[]){'\\', *text}, 2);
        else
            invar_json_text_append(out, text, 1);
    }
}

void invar_prometheus_family(invar_json_text *out, const char *name, const char *type,
                             const char *help)
{
    put(out, "# HELP ");
    put(out, name);
    put(out, " ");
    put_escaped(out, help, false);
    put(out, "\n# TYPE ");
    put(out, name);
    put(out, " ");
    put(out, type);
    put(out, "\n");
}

static void put_number(invar_json_text *out, double value)
{
    char text[INVAR_NUMBER_SIZE];

    if (isnan(value))
        put(out, "NaN");
    else if (isinf(value))
        put(out, value > 0.0 ? "+Inf" : "-Inf");
    else if (invar_number_format_plain(text, value) == INVAR_OK)
        put(out, text);
    else if (out->status == INVAR_OK)
        out->status = invar_error_last()->status;
}

void invar_prometheus_value(invar_json_text *out, const char *name,
                            const invar_prometheus_label *labels, size_t n_labels, double value)
{
    put(out, name);
    for (size_t i = 0; i < n_labels; i++) {
        put(out, i ? "," : "{");
        put(out, labels[i].name);
        put(out, "=\"");
        put_escaped(out, labels[i].value, true);
        put(out, "\"");
    }
    put(out, n_labels ? "} " : " ");
    put_number(out, value);
    put(out, "\n");
}
