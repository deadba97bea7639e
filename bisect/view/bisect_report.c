/*
 * bisect_report.c - prints the result of a bisect as text: verdict, commit, divergence, cost.
 *
 * Sentences come from bisect_report_text.c, which the HTML and JSON forms use too. All texts from
 * repositories, ledgers and commands are escaped before they are printed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/view/bisect_report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/console/term.h"
#include "base/text.h"

#include "base/invar_banned.h"

typedef struct report_printer {
    FILE *stream;
    bool color;
} report_printer;

/* ---- items ----------------------------------------------------------------------------------- */

static const char *style_escape(const report_printer *p, invar_term_style s)
{
    return invar_term_escape(p->color, s);
}

static void print_label(const report_printer *p, const char *what)
{
    fprintf(p->stream, "%s%-10s%s ", style_escape(p, INVAR_TERM_STYLE_BOLD), what,
            style_escape(p, INVAR_TERM_STYLE_PLAIN));
}

/* Prints "NAME TEXT"; nothing if the text is empty. */
static void print_item(const report_printer *p, const char *what, const char *text)
{
    if (*text == '\0')
        return;
    print_label(p, what);
    invar_bisect_report_print_safe(p->stream, text);
    fputc('\n', p->stream);
}

static void print_item_format(const report_printer *p, const char *what, const char *format, ...)
    INVAR_PRINTF(3, 4);

static void print_item_format(const report_printer *p, const char *what, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    print_label(p, what);
    vfprintf(p->stream, format, args);
    fputc('\n', p->stream);
    va_end(args);
}

/* ---- sections -------------------------------------------------------------------------------- */

static void print_verdict(const report_printer *p, const invar_bisect_result *a)
{
    static const invar_term_style styles[] = {
        [INVAR_BISECT_FOUND] = INVAR_TERM_STYLE_GREEN,
        [INVAR_BISECT_CHANGES] = INVAR_TERM_STYLE_GREEN,
        [INVAR_BISECT_SUSPECTS] = INVAR_TERM_STYLE_YELLOW,
        [INVAR_BISECT_NONDETERMINISTIC] = INVAR_TERM_STYLE_RED,
        [INVAR_BISECT_SAME_ENDS] = INVAR_TERM_STYLE_YELLOW,
        [INVAR_BISECT_WRONG_END] = INVAR_TERM_STYLE_RED,
        [INVAR_BISECT_FIXED] = INVAR_TERM_STYLE_YELLOW,
        [INVAR_BISECT_UNTESTABLE] = INVAR_TERM_STYLE_RED,
        [INVAR_BISECT_STOPPED] = INVAR_TERM_STYLE_YELLOW,
    };
    char text[INVAR_BISECT_REPORT_LINE];

    invar_bisect_report_headline(text, a);
    fprintf(p->stream, "%s%s%s\n", style_escape(p, styles[a->verdict]), text,
            style_escape(p, INVAR_TERM_STYLE_PLAIN));
    if (*a->reason) {
        invar_bisect_report_print_safe(p->stream, a->reason);
        fputc('\n', p->stream);
    }
    invar_bisect_report_advice(text, a);
    if (*text)
        fprintf(p->stream, "%s\n", text);
    fputc('\n', p->stream);
}

static void print_file(const report_printer *p, const invar_repo_file *file)
{
    fprintf(p->stream, "  %c ", file->status > ' ' && file->status < 0x7f ? file->status : '?');
    invar_bisect_report_print_safe(p->stream, file->path);
    if (file->added < 0)
        fprintf(p->stream, "  binary\n");
    else
        fprintf(p->stream, "  %s+%" PRId64 "%s %s-%" PRId64 "%s\n",
                style_escape(p, INVAR_TERM_STYLE_GREEN), file->added,
                style_escape(p, INVAR_TERM_STYLE_PLAIN), style_escape(p, INVAR_TERM_STYLE_RED),
                file->removed, style_escape(p, INVAR_TERM_STYLE_PLAIN));
}

static void print_commit(const report_printer *p, const invar_repo_commit *c)
{
    char when[INVAR_BISECT_REPORT_TIME];

    invar_bisect_report_time(when, c->when);
    print_item(p, "commit", c->id);
    print_item(p, "author", c->author);
    print_item(p, "date", when);
    print_item_format(p, "files",
                      "%" PRId64 " changed, %" PRId64 " line%s added, %" PRId64 " removed",
                      c->files, c->added, invar_text_plural(c->added), c->removed);
    for (size_t i = 0; i < c->n_shown; i++)
        print_file(p, &c->shown[i]);
    if (c->files > (int64_t)c->n_shown)
        fprintf(p->stream, "  ... and %" PRId64 " more; git show has all\n",
                c->files - (int64_t)c->n_shown);
}

static void print_place(const report_printer *p, const invar_divergence *place)
{
    char text[INVAR_BISECT_REPORT_LINE];

    if (!place->known)
        return;
    invar_bisect_report_divergence(text, place);
    print_item(p, "place", text);
    if (*place->before == '\0') {
        print_item(p, "", place->headline);
        return;
    }
    print_item(p, "", place->fused);
    snprintf(text, sizeof text, "%s %s %s", place->kind, place->dtype, place->shape);
    print_item(p, "tensor", text);
    print_item(p, "  before", place->before);
    print_item(p, "  after", place->after);
    invar_bisect_report_points(text, place);
    print_item(p, "points", text);
}

static void print_found(const report_printer *p, const invar_bisect_result *a)
{
    const invar_bisect_change *c = a->changes;
    char text[INVAR_BISECT_REPORT_LINE], remark[INVAR_BISECT_REPORT_LINE];

    if (a->verdict != INVAR_BISECT_FOUND || a->n_changes == 0)
        return;
    print_commit(p, &c->commit);
    print_item(p, "parent", c->parent);
    snprintf(text, sizeof text, "%s -> %s", c->before, c->after);
    print_item(p, "value", *c->before || *c->after ? text : "");
    invar_bisect_report_remark(remark, c);
    print_item(p, "remark", remark);
    print_place(p, &a->divergence);
    print_item(p, "confirmed", invar_bisect_report_confirmed(a));
}

/* Prints a commit as one line of a list: id, date, author, subject. */
static void print_line(const report_printer *p, const invar_repo_commit *c, int depth)
{
    char when[INVAR_BISECT_REPORT_TIME], author[40], id[INVAR_BISECT_REPORT_SHORT + 1];

    invar_bisect_report_time(when, c->when);
    snprintf(id, sizeof id, "%.*s", INVAR_BISECT_REPORT_SHORT, c->id);
    invar_bisect_report_safe(author, sizeof author, c->author);
    author[strcspn(author, "<")] = '\0'; // prints the name without the mail address
    fprintf(p->stream, "%*s%s", 2 * depth, "", style_escape(p, INVAR_TERM_STYLE_YELLOW));
    invar_bisect_report_print_safe(p->stream, id);
    fprintf(p->stream, "%s  %.10s  %s", style_escape(p, INVAR_TERM_STYLE_PLAIN), when, author);
    fprintf(p->stream, "%s ", *author && author[strlen(author) - 1] == ' ' ? "" : " ");
    invar_bisect_report_print_safe(p->stream, c->subject);
    fputc('\n', p->stream);
}

static void print_change(const report_printer *p, const invar_bisect_change *c)
{
    char text[INVAR_BISECT_REPORT_LINE], before[16], after[16];
    int depth = c->depth > 0 && c->depth < 16 ? c->depth : 0;

    print_line(p, &c->commit, depth);
    snprintf(before, sizeof before, "%.*s", INVAR_BISECT_REPORT_VALUE_DIGITS, c->before);
    snprintf(after, sizeof after, "%.*s", INVAR_BISECT_REPORT_VALUE_DIGITS, c->after);
    fprintf(p->stream, "%*s", 2 * depth + 4, "");
    invar_bisect_report_print_safe(p->stream, before);
    fprintf(p->stream, " -> ");
    invar_bisect_report_print_safe(p->stream, after);
    invar_bisect_report_divergence(text, &c->divergence);
    fprintf(p->stream, "%s%s", *text ? "  " : "", text);
    invar_bisect_report_remark(text, c);
    fprintf(p->stream, "%s%s%s\n", *text ? "  (" : "", text, *text ? ")" : "");
}

static void print_lists(const report_printer *p, const invar_bisect_result *a)
{
    if (a->verdict == INVAR_BISECT_CHANGES)
        for (size_t i = 0; i < a->n_changes; i++)
            print_change(p, &a->changes[i]);
    if (a->verdict != INVAR_BISECT_SUSPECTS)
        return;
    for (size_t i = 0; i < a->n_suspects; i++)
        print_line(p, &a->suspects[i], 0);
    if (a->all_suspects > (int64_t)a->n_suspects)
        fprintf(p->stream, "... and %" PRId64 " more\n", a->all_suspects - (int64_t)a->n_suspects);
}

/* Prints the path of the log that a command or its build left at the commit of the verdict. */
static void print_log(const report_printer *p, const invar_bisect_result *a)
{
    static const char *const names[] = {"build.log", "run.log"};
    char name[INVAR_OID_SIZE + 32], path[INVAR_PATH_SIZE];

    if (a->verdict != INVAR_BISECT_WRONG_END && a->verdict != INVAR_BISECT_UNTESTABLE)
        return;
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "trials/%s-0/%s", a->commit, names[i]);
        if (invar_path_join(path, sizeof path, a->folder, name) == INVAR_OK &&
            invar_path_exists(path)) {
            print_item(p, "log", path);
            return;
        }
    }
}

static void print_search(const report_printer *p, const invar_bisect_result *a)
{
    char cost[INVAR_BISECT_REPORT_LINE], page[INVAR_PATH_SIZE];

    print_item(p, "note", invar_bisect_report_third(a));
    print_item(p, "question", a->question);
    print_label(p, "range");
    if (a->range > 0) // otherwise the range was not read
        fprintf(p->stream, "%" PRId64 " commit%s, ", a->range, invar_text_plural(a->range));
    fprintf(p->stream, "%.*s to %.*s\n", INVAR_BISECT_REPORT_SHORT, a->good,
            INVAR_BISECT_REPORT_SHORT, a->bad);
    if (*a->base)
        print_item_format(p, "base",
                          "%.*s, tested because the good end is no ancestor of the bad one",
                          INVAR_BISECT_REPORT_SHORT, a->base);
    if (a->first_diverging_step >= 0)
        print_item_format(p, "ends", "they part at step %" PRId64, a->first_diverging_step);
    invar_bisect_report_cost(cost, a);
    print_item(p, "cost", cost);
    print_log(p, a);
    if (*a->folder && invar_path_join(page, sizeof page, a->folder, "answer.html") == INVAR_OK)
        print_item(p, "page", page);
}

static void print_next(const report_printer *p, const invar_bisect_result *a)
{
    char command[INVAR_BISECT_REPORT_COMMAND];

    for (int i = 0; invar_bisect_report_next(command, a, i); i++) {
        if (i == 0)
            fprintf(p->stream, "\n%snext%s\n", style_escape(p, INVAR_TERM_STYLE_BOLD),
                    style_escape(p, INVAR_TERM_STYLE_PLAIN));
        fprintf(p->stream, "  %s\n", command);
    }
}

invar_status invar_bisect_report_print(FILE *out, const invar_bisect_result *result, bool color)
{
    report_printer p = {out, color};

    print_verdict(&p, result);
    print_found(&p, result);
    print_lists(&p, result);
    if (result->verdict == INVAR_BISECT_CHANGES || result->verdict == INVAR_BISECT_SUSPECTS)
        fputc('\n', out);
    print_search(&p, result);
    print_next(&p, result);
    if (fflush(out) != 0 || ferror(out))
        return INVAR_FAIL(INVAR_E_IO, errno, "cannot write the answer: %s", strerror(errno));
    return INVAR_OK;
}
