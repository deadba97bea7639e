/*
 * ci_services.c - writes CI results for services: JUnit XML, GitHub annotations and job summaries.
 *
 * Names and headlines may contain any bytes. Each form escapes its special characters through
 * print_escaped; bytes that are not UTF-8 text become \xNN.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "base/text.h"
#include "bisect/view/ci.h"

#include "base/invar_banned.h"

#define MAX_ANNOTATIONS 10

/*
 * Prints a text with `escape` applied to each character in `special`, and bytes that are not text
 * as \xNN.
 */
static void print_escaped(FILE *out, const char *text, const char *special,
                          void (*escape)(FILE *out, char c))
{
    size_t length = strlen(text), step;

    for (size_t i = 0; i < length; i += step) {
        bool line = text[i] == '\n';
        step = line ? 1 : invar_text_char(text + i, length - i);
        if (step == 0) {
            fprintf(out, "\\x%02x", (unsigned char)text[i]);
            step = 1;
        } else if (step == 1 && strchr(special, text[i])) {
            escape(out, text[i]);
        } else {
            fwrite(text + i, 1, step, out);
        }
    }
}

/* ---- JUnit ----------------------------------------------------------------------------------- */

static void escape_xml(FILE *out, char c)
{
    fprintf(out, "&#%d;", (unsigned char)c);
}

static void print_xml(FILE *out, const char *text)
{
    print_escaped(out, text, "&<>\"'\n", escape_xml);
}

static void print_attribute(FILE *out, const char *name, const char *value)
{
    fprintf(out, " %s=\"", name);
    print_xml(out, value);
    fputc('"', out);
}

static void print_property(FILE *out, const char *name, const char *value)
{
    fputs("      <property", out);
    print_attribute(out, "name", name);
    print_attribute(out, "value", value);
    fputs("/>\n", out);
}

static void print_properties(FILE *out, const invar_ci_result *r)
{
    char hex[INVAR_DIGEST_HEX_SIZE], number[32];

    fputs("    <properties>\n", out);
    print_property(out, "verdict", invar_ci_verdict_name(r->verdict));
    if (r->compared) {
        invar_digest_format(hex, &r->chain_was);
        print_property(out, "chain golden", hex);
        invar_digest_format(hex, &r->chain_is);
        print_property(out, "chain", hex);
    }
    if (r->first >= 0) {
        (void)snprintf(number, sizeof number, "%" PRId64, r->first);
        print_property(out, "first divergent step", number);
    }
    if (r->divergence.known) {
        print_property(out, "point", r->divergence.point);
        print_property(out, "op", r->divergence.op);
    }
    fputs("    </properties>\n", out);
}

/* Details are formatted as plain text first, so that all of them are escaped the same way. */
static void print_system_out(FILE *out, const invar_ci_result *r)
{
    char text[16384] = "";
    FILE *memory = fmemopen(text, sizeof text - 1, "w");

    if (!memory)
        return;
    invar_ci_details(memory, r, "");
    (void)fclose(memory);
    if (text[0] == '\0')
        return;
    fputs("    <system-out>", out);
    print_escaped(out, text, "&<>\"'", escape_xml);
    fputs("</system-out>\n", out);
}

static bool is_error(const invar_ci_result *r)
{
    return r->verdict == INVAR_CI_TROUBLE || r->verdict == INVAR_CI_STOPPED;
}

static void print_testcase(FILE *out, const invar_ci_result *r)
{
    char headline[INVAR_CI_LINE];

    fputs("  <testcase classname=\"invar.ci\"", out);
    print_attribute(out, "name", r->item->name);
    print_attribute(out, "file", r->item->golden);
    fprintf(out, " time=\"%.3f\">\n", r->seconds);
    print_properties(out, r);
    if (r->verdict != INVAR_CI_SAME) {
        invar_ci_headline(headline, r);
        fprintf(out, "    <%s", is_error(r) ? "error" : "failure");
        print_attribute(out, "message", headline);
        print_attribute(out, "type", invar_ci_verdict_name(r->verdict));
        fputs("/>\n", out);
    }
    print_system_out(out, r);
    fputs("  </testcase>\n", out);
}

void invar_ci_junit(FILE *out, const invar_ci_result *results, size_t count)
{
    size_t failures = 0, errors = 0;
    double seconds = 0;

    for (size_t i = 0; i < count; i++) {
        errors += is_error(&results[i]);
        failures += results[i].verdict != INVAR_CI_SAME && !is_error(&results[i]);
        seconds += results[i].seconds;
    }
    fprintf(out,
            INVAR_CI_JUNIT_MARK
            "tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" skipped=\"0\" time=\"%.3f\">\n",
            count, failures, errors, seconds);
    for (size_t i = 0; i < count; i++)
        print_testcase(out, &results[i]);
    fputs("</testsuite>\n</testsuites>\n", out);
}

/* ---- GitHub ---------------------------------------------------------------------------------- */

static void escape_percent(FILE *out, char c)
{
    fprintf(out, "%%%02X", (unsigned char)c);
}

void invar_ci_annotations(FILE *out, const invar_ci_result *results, size_t count)
{
    char headline[INVAR_CI_LINE];
    int printed = 0;

    for (size_t i = 0; i < count && printed < MAX_ANNOTATIONS; i++) {
        const invar_ci_result *r = &results[i];
        if (r->verdict == INVAR_CI_SAME)
            continue;
        invar_ci_headline(headline, r);
        fputs("::error file=", out);
        print_escaped(out, r->item->golden, "%\n:,", escape_percent);
        fprintf(out, ",line=%" PRId64 ",title=", r->line);
        print_escaped(out, r->item->name, "%\n:,", escape_percent);
        fprintf(out, " %s::", invar_ci_verdict_name(r->verdict));
        print_escaped(out, headline, "%\n", escape_percent);
        fputc('\n', out);
        printed++;
    }
}

static void escape_markdown(FILE *out, char c)
{
    fprintf(out, c == '\n' ? " " : "&#%d;", (unsigned char)c);
}

void invar_ci_markdown(FILE *out, const invar_ci_result *results, size_t count)
{
    char headline[INVAR_CI_LINE];

    fputs("### invar ci\n\n| case | verdict | |\n| --- | --- | --- |\n", out);
    for (size_t i = 0; i < count; i++) {
        invar_ci_headline(headline, &results[i]);
        fputs("| ", out);
        print_escaped(out, results[i].item->name, "|<>&`*_[]\n", escape_markdown);
        fprintf(out, " | %s | ", invar_ci_verdict_name(results[i].verdict));
        print_escaped(out, headline, "|<>&`*_[]\n", escape_markdown);
        fputs(" |\n", out);
    }
    fputc('\n', out);
}
