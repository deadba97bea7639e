/*
 * bisect_report_html.c - writes the result of a bisect as one HTML page without scripts.
 *
 * templates/bisect_report.html is the frame; a name in double braces stands for a section below or
 * for an embedded style sheet. Every text that is not a constant of this file must go through
 * put_text, which removes control characters and escapes markup.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bisect/view/bisect_report.h"
#include "bisect/view/bisect_report_text.h"
#include "ledger/view/html.h"

#include "base/invar_banned.h"

enum { ROWS = 2000, SHOWN_ROWS = 100 };

/* The frame, then the files that it names. */
extern const invar_embedded invar_bisect_report_files[];

/* ---- elements -------------------------------------------------------------------------------- */

static void put_text(FILE *f, const char *s)
{
    char safe[INVAR_PATH_SIZE + 4];

    invar_html_text(f, invar_bisect_report_safe(safe, sizeof safe, s));
}

static void put_item(FILE *f, const char *term, const char *value)
{
    if (*value == '\0')
        return;
    fprintf(f, "<div><dt>%s</dt><dd>", term);
    put_text(f, value);
    fputs("</dd></div>", f);
}

static void put_item_hash(FILE *f, const char *term, const char *value)
{
    if (*value == '\0')
        return;
    fprintf(f, "<div><dt>%s</dt><dd><code class=\"hash\">", term);
    put_text(f, value);
    fputs("</code></dd></div>", f);
}

static void put_item_span(FILE *f, const char *term, double seconds)
{
    char span[INVAR_BISECT_REPORT_TIME];

    invar_bisect_report_span(span, seconds);
    put_item(f, term, span);
}

static void put_cell(FILE *f, const char *class_name, const char *s)
{
    fprintf(f, "<td class=\"%s\">", class_name);
    put_text(f, s);
    fputs("</td>", f);
}

/* Writes the first digits of an id or a value; the full text is in the tooltip. */
static void put_short_cell(FILE *f, const char *class_name, const char *s, int digits)
{
    fprintf(f, "<td class=\"%s\" title=\"", class_name);
    put_text(f, s);
    fputs("\">", f);
    char head[INVAR_VALUE_SIZE];
    snprintf(head, sizeof head, "%.*s", digits, s);
    put_text(f, head);
    fputs("</td>", f);
}

static void open_card(FILE *f, const char *kind, const char *title)
{
    fprintf(f, "<div class=\"card %s-card\"><h3>%s</h3><dl>", kind, title);
}

static void open_table(FILE *f, const char *title, const char *note, const char *const *heads)
{
    fprintf(f, "<section><h2>%s</h2><p class=\"note\">%s</p>", title, note);
    invar_html_table_open(f, heads);
}

static void close_table(FILE *f, size_t rows)
{
    invar_html_table_close(f, rows > ROWS ? rows - ROWS : 0);
    fputs("</section>\n", f);
}

/* ---- the summary ----------------------------------------------------------------------------- */

static void put_verdict(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;

    fputs(invar_bisect_report_verdict(a->verdict), f);
}

static void put_tag(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;
    static const char *const classes[] = {
        [INVAR_BISECT_FOUND] = "good",     [INVAR_BISECT_CHANGES] = "good",
        [INVAR_BISECT_SUSPECTS] = "warn",  [INVAR_BISECT_NONDETERMINISTIC] = "bad",
        [INVAR_BISECT_SAME_ENDS] = "warn", [INVAR_BISECT_WRONG_END] = "bad",
        [INVAR_BISECT_FIXED] = "warn",     [INVAR_BISECT_UNTESTABLE] = "bad",
        [INVAR_BISECT_STOPPED] = "warn",
    };

    fprintf(f, "<span class=\"tag big %s\">%s</span>", classes[a->verdict],
            invar_bisect_report_verdict(a->verdict));
    if (a->verdict == INVAR_BISECT_FOUND)
        fprintf(f, " <span class=\"tag big %s\">%s</span>", a->confirmed ? "good" : "warn",
                a->confirmed ? "confirmed" : "not confirmed");
    if (a->has_third_value)
        fputs(" <span class=\"tag big warn\">more than one change</span>", f);
}

static void put_headline(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;
    char headline[INVAR_BISECT_REPORT_LINE], *rest, *blank;

    invar_bisect_report_headline(headline, a);
    rest = strstr(headline, ": ") + 2; // the tag above has the verdict
    blank = a->verdict == INVAR_BISECT_FOUND ? strchr(rest, ' ') : NULL;
    if (blank) { // the end of the commit id
        *blank = '\0';
        fputs("<code>", f);
        put_text(f, rest);
        fputs("</code> ", f);
        rest = blank + 1;
    }
    put_text(f, rest);
}

static void put_advice(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;
    char advice[INVAR_BISECT_REPORT_LINE];
    const char *lines[] = {a->reason, advice, invar_bisect_report_third(a)};

    invar_bisect_report_advice(advice, a);
    for (int i = 0; i < 3; i++) {
        if (*lines[i] == '\0')
            continue;
        fputs("<p class=\"advice\">", f);
        put_text(f, lines[i]);
        fputs("</p>", f);
    }
}

static void put_files(FILE *f, const invar_repo_commit *c)
{
    fputs("</dl><ul class=\"files\">", f);
    for (size_t i = 0; i < c->n_shown; i++) {
        const invar_repo_file *file = &c->shown[i];
        char status[] = {file->status, ' ', 0};
        fputs("<li>", f);
        put_text(f, status);
        put_text(f, file->path);
        if (file->added < 0)
            fputs(" binary</li>", f);
        else
            fprintf(f,
                    " <span class=\"plus\">+%" PRId64 "</span> <span class=\"minus\">-%" PRId64
                    "</span></li>",
                    file->added, file->removed);
    }
    if (c->files > (int64_t)c->n_shown)
        fprintf(f, "<li>... and %" PRId64 " more</li>", c->files - (int64_t)c->n_shown);
    fputs("</ul></div>", f);
}

static void put_commit(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;
    const invar_bisect_change *c = a->changes;
    char when[INVAR_BISECT_REPORT_TIME], line[INVAR_BISECT_REPORT_LINE];

    if (a->verdict != INVAR_BISECT_FOUND || a->n_changes == 0)
        return;
    invar_bisect_report_time(when, c->commit.when);
    open_card(f, "commit", "The commit");
    put_item_hash(f, "commit", c->commit.id);
    put_item(f, "author", c->commit.author);
    put_item(f, "date", when);
    put_item(f, "subject", c->commit.subject);
    put_item_hash(f, "parent", c->parent);
    put_item_hash(f, "before", c->before);
    put_item_hash(f, "after", c->after);
    invar_bisect_report_remark(line, c);
    put_item(f, "remark", line);
    put_item(f, "confirmed", invar_bisect_report_confirmed(a));
    snprintf(line, sizeof line, "%" PRId64 " changed, +%" PRId64 " -%" PRId64, c->commit.files,
             c->commit.added, c->commit.removed);
    put_item(f, "files", line);
    put_files(f, &c->commit);
}

static void put_place(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;
    const invar_divergence *p = &a->divergence;
    char line[INVAR_BISECT_REPORT_LINE];

    if (!p->known)
        return;
    open_card(f, "place", "Where it begins");
    if (p->step >= 0)
        invar_html_item_number(f, "step", p->step);
    else
        put_item(f, "step", "before the first");
    put_item(f, "point", p->point);
    put_item(f, "phase", p->phase);
    if (p->layer >= 0)
        invar_html_item_number(f, "layer", p->layer);
    put_item(f, "op", p->op);
    put_item(f, "parts", p->fused);
    snprintf(line, sizeof line, "%s %s %s", p->kind, p->dtype, p->shape);
    put_item(f, *p->before ? "tensor" : "kind", line);
    put_item_hash(f, "before", p->before);
    put_item_hash(f, "after", p->after);
    if (*p->before)
        invar_bisect_report_points(line, p);
    put_item(f, *p->before ? "points" : "in words", *p->before ? line : p->headline);
    fputs("</dl></div>", f);
}

static void put_cost(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;

    open_card(f, "cost", "The search");
    put_item(f, "question", a->question);
    put_item_hash(f, "good", a->good);
    put_item_hash(f, "bad", a->bad);
    put_item_hash(f, "base", a->base);
    if (a->range > 0)
        invar_html_item_number(f, "commits", a->range);
    if (a->first_diverging_step >= 0)
        invar_html_item_number(f, "ends part", a->first_diverging_step);
    invar_html_item_number(f, "trials", (int64_t)a->n_trials);
    invar_html_item_number(f, "of search", a->search_trials);
    invar_html_item_number(f, "built", a->built);
    invar_html_item_number(f, "from cache", a->from_tree);
    invar_html_item_number(f, "ran", a->ran);
    invar_html_item_number(f, "equal prog.", a->from_program);
    invar_html_item_number(f, "skipped", a->skipped);
    put_item_span(f, "building", a->build_s);
    put_item_span(f, "running", a->run_s);
    put_item_span(f, "in all", a->wall_s);
    put_item(f, "folder", a->folder);
    fputs("</dl></div>", f);
}

/* Writes the patch, with classes for added and removed lines. */
static void put_patch(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;

    if (!a->patch || !a->patch[0])
        return;
    fputs("<section><h2>What it changes</h2><p class=\"note\">Against its first parent.</p>"
          "<div class=\"scroll\"><pre class=\"patch\">",
          f);
    for (const char *line = a->patch; *line;) {
        size_t bytes = strcspn(line, "\n");
        const char *kind = line[0] == '+' ? "plus" : line[0] == '-' ? "minus" : "same";
        char shown[1024];

        (void)snprintf(shown, sizeof shown, "%.*s", (int)bytes, line);
        fprintf(f, "<span class=\"%s\">", kind);
        invar_html_text(f, shown);
        fputs("</span>\n", f);
        line += bytes + (line[bytes] == '\n');
    }
    fprintf(f, "</pre></div>%s</section>\n",
            a->patch_cut ? "<p class=\"note\">There is more: git show has all of it.</p>" : "");
}

/* ---- lists of commits ------------------------------------------------------------------------ */

/* Writes the cells commit, date, author and subject. */
static void put_commit_cells(FILE *f, const invar_repo_commit *c, bool inner)
{
    char when[INVAR_BISECT_REPORT_TIME];

    invar_bisect_report_time(when, c->when);
    put_short_cell(f, inner ? "commit-id inner" : "commit-id", c->id, INVAR_BISECT_REPORT_SHORT);
    when[strcspn(when, "T")] = '\0';
    put_cell(f, "num", when);
    put_cell(f, "value", c->author);
    put_cell(f, "value", c->subject);
}

static void put_changes(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;
    static const char *const heads[] = {"Commit", "Date",  "Author", "Subject", "Before",
                                        "After",  "Where", "Remark", NULL};
    char line[INVAR_BISECT_REPORT_LINE];

    if (a->verdict != INVAR_BISECT_CHANGES || a->n_changes == 0)
        return;
    open_table(f, "Changes", "Every commit whose value is another than its parent's, oldest first.",
               heads);
    for (size_t i = 0; i < a->n_changes && i < ROWS; i++) {
        const invar_bisect_change *c = &a->changes[i];
        fputs("<tr>", f);
        put_commit_cells(f, &c->commit, c->depth > 0);
        put_short_cell(f, "digest", c->before, INVAR_BISECT_REPORT_VALUE_DIGITS);
        put_short_cell(f, "digest", c->after, INVAR_BISECT_REPORT_VALUE_DIGITS);
        invar_bisect_report_divergence(line, &c->divergence);
        put_cell(f, "value", line);
        invar_bisect_report_remark(line, c);
        put_cell(f, "value", line);
        fputs("</tr>", f);
    }
    close_table(f, a->n_changes);
}

static void put_suspects(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;
    static const char *const heads[] = {"Commit", "Date", "Author", "Subject", NULL};
    char note[120];

    if (a->verdict != INVAR_BISECT_SUSPECTS || a->n_suspects == 0)
        return;
    snprintf(note, sizeof note, "One of %" PRId64 " is the first bad one; %zu are shown.",
             a->all_suspects, a->n_suspects);
    open_table(f, "Suspects", note, heads);
    for (size_t i = 0; i < a->n_suspects; i++) {
        fputs("<tr>", f);
        put_commit_cells(f, &a->suspects[i], false);
        fputs("</tr>", f);
    }
    close_table(f, a->n_suspects);
}

/* ---- the picture of the search --------------------------------------------------------------- */

enum { LEFT = 96, WIDTH = 1000, ROW = 20, TOP = 34, RADIUS = 5 };

/* Returns one of the known verdicts, whatever text the state file has; used as a CSS class. */
static const char *mark_of(const char *verdict)
{
    static const char *const known[] = {"good", "bad", "third"};

    for (int i = 0; i < 3; i++)
        if (strcmp(verdict, known[i]) == 0)
            return known[i];
    return "skip";
}

/* Draws a circle, square, diamond or cross; hollow for the second run of a commit. */
static void put_mark(FILE *f, const char *verdict, bool again, double x, double y)
{
    const char *mark = mark_of(verdict), *more = again ? " again" : "";

    if (strcmp(mark, "good") == 0)
        fprintf(f, "<circle class=\"mark good%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"/>", more, x, y,
                RADIUS);
    else if (strcmp(mark, "bad") == 0)
        fprintf(f, "<path class=\"mark bad%s\" d=\"M%.1f %.1fh10v10h-10z\"/>", more, x - RADIUS,
                y - RADIUS);
    else if (strcmp(mark, "third") == 0)
        fprintf(f, "<path class=\"mark third%s\" d=\"M%.1f %.1fl6 6l-6 6l-6 -6z\"/>", more, x,
                y - 6);
    else
        fprintf(f, "<path class=\"mark skip\" d=\"M%.1f %.1fl10 10m-10 0l10 -10\"/>", x - RADIUS,
                y - RADIUS);
}

static double x_of(const invar_bisect_result *a, int64_t position)
{
    double room = WIDTH - LEFT - 12;

    // the good end is outside the range and drawn at 0
    return LEFT + (a->range > 0 ? room * (double)position / (double)a->range : 0);
}

/*
 * Computes the x position of a trial. A good end is not in the range and is drawn before it; other
 * commits outside the range are not drawn.
 */
static bool position_of(double *x_out, const invar_bisect_result *a, const invar_bisect_trial *t)
{
    bool first = strcmp(t->commit, a->good) == 0 || strcmp(t->commit, a->base) == 0;

    if (t->position > a->range || (t->position <= 0 && !first))
        return false;
    *x_out = x_of(a, t->position > 0 ? t->position : 0);
    return true;
}

static void put_row(FILE *f, const invar_bisect_trial *t, double x, double y)
{
    char head[INVAR_BISECT_REPORT_SHORT + 1];

    snprintf(head, sizeof head, "%.*s", INVAR_BISECT_REPORT_SHORT, t->commit);
    fprintf(f, "<path class=\"row\" d=\"M%d %.1fH%d\"/><text x=\"0\" y=\"%.1f\" class=\"mono\">",
            LEFT, y, WIDTH - 12, y + 4);
    put_text(f, head);
    fputs("</text><g><title>", f);
    put_text(f, head);
    fputs(t->subject[0] ? " " : "", f);
    put_text(f, t->subject);
    fputs(": ", f);
    put_text(f, t->verdict);
    fputs(", ", f);
    put_text(f, t->role);
    fputs("</title>", f);
    put_mark(f, t->verdict, strcmp(t->role, "again") == 0, x, y);
    fputs("</g>", f);
}

/* Draws the range as a strip and the path of the search from trial to trial. */
static void put_search_path(FILE *f, const invar_bisect_result *a, size_t rows, int64_t goal)
{
    int height = TOP + ROW * (int)rows + 6;
    const char *verb = "M";
    double x, y = TOP;

    fprintf(f,
            "<div class=\"scroll walk\"><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"the "
            "trials in order, by the place of their commits in the range\">"
            "<rect class=\"range\" x=\"%d\" y=\"4\" width=\"%d\" height=\"14\" rx=\"4\"/>"
            "<text x=\"0\" y=\"15\">oldest first</text><path class=\"way\" d=\"",
            WIDTH, height, LEFT, WIDTH - LEFT - 12);
    for (size_t i = 0, row = 0; i < a->n_trials && row < rows; i++) {
        if (!position_of(&x, a, &a->trials[i]))
            continue;
        fprintf(f, "%s%.1f %.1f", verb, x, TOP + ROW * (double)row++);
        verb = "L";
    }
    fputs("\"/>", f);
    if (goal > 0)
        fprintf(f, "<path class=\"goal\" d=\"M%.1f 4V%d\"/>", x_of(a, goal), height);
    for (size_t i = 0, row = 0; i < a->n_trials && row < rows; i++) {
        if (!position_of(&x, a, &a->trials[i]))
            continue;
        put_mark(f, a->trials[i].verdict, false, x, 11);
        put_row(f, &a->trials[i], x, y);
        y += ROW;
        row++;
    }
    fputs("</svg></div>", f);
}

static void put_legend(FILE *f)
{
    static const char *const words[][2] = {{"good", "good"},
                                           {"bad", "bad"},
                                           {"third", "another value than both ends"},
                                           {"skip", "cannot be tested"}};

    fputs("<p class=\"key legend-row\">", f);
    for (int i = 0; i < 4; i++) {
        fputs("<span><svg viewBox=\"-7 -7 14 14\" aria-hidden=\"true\">", f);
        put_mark(f, words[i][0], false, 0, 0);
        fprintf(f, "</svg>%s</span>", words[i][1]);
    }
    fputs("<span><svg viewBox=\"-7 -7 14 14\" aria-hidden=\"true\">", f);
    put_mark(f, "bad", true, 0, 0);
    fputs("</svg>hollow: asked again</span></p>", f);
}

static void put_search(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;
    size_t rows = 0;
    int64_t goal = 0;
    double x;

    for (size_t i = 0; i < a->n_trials; i++) {
        rows += position_of(&x, a, &a->trials[i]);
        if (a->verdict == INVAR_BISECT_FOUND && a->n_changes &&
            strcmp(a->trials[i].commit, a->changes->commit.id) == 0)
            goal = a->trials[i].position;
    }
    if (rows == 0)
        return;
    rows = rows < SHOWN_ROWS ? rows : SHOWN_ROWS;
    fprintf(f,
            "<section><h2>How it was found</h2><p class=\"note\">%" PRId64
            " commits from the good end on the left to the bad end on the right, parents before "
            "children; one row a trial, in order%s.</p>",
            a->range, goal > 0 ? "; the dashed line is the commit that was found" : "");
    put_search_path(f, a, rows, goal);
    put_legend(f);
    fputs("</section>\n", f);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void put_trials(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;
    static const char *const heads[] = {"Trial", "Commit", "Subject", "Role", "Verdict",
                                        "Value", "How",    "Parts",   "Exit", "Build",
                                        "Run",   "Why",    NULL};
    char span[INVAR_BISECT_REPORT_TIME];

    if (a->n_trials == 0)
        return;
    open_table(f, "Trials", "In order; what took no time came from the cache.", heads);
    for (size_t i = 0; i < a->n_trials && i < ROWS; i++) {
        const invar_bisect_trial *t = &a->trials[i];
        fputs("<tr>", f);
        invar_html_cell_format(f, "num", "%zu", i + 1);
        put_short_cell(f, "commit-id", t->commit, INVAR_BISECT_REPORT_SHORT);
        put_cell(f, "value", t->subject);
        put_cell(f, "num", t->role);
        put_cell(f, "num", t->verdict);
        put_short_cell(f, "digest", t->value, INVAR_BISECT_REPORT_SHORT);
        put_cell(f, "", t->source);
        if (t->diverged_at >= 0)
            invar_html_cell_format(f, "num", "step %" PRId64, t->diverged_at);
        else
            put_cell(f, "", "");
        invar_html_cell_format(f, "num", "%d", t->exit_code);
        invar_bisect_report_span(span, t->build_s);
        put_cell(f, "num", t->build_s > 0 ? span : "");
        invar_bisect_report_span(span, t->run_s);
        put_cell(f, "num", t->run_s > 0 ? span : "");
        put_cell(f, "value", t->failure_reason);
        fputs("</tr>", f);
    }
    close_table(f, a->n_trials);
}

static void put_next(FILE *f, const void *data)
{
    const invar_bisect_result *a = data;
    char command[INVAR_BISECT_REPORT_COMMAND];
    int count = 0;

    for (; invar_bisect_report_next(command, a, count); count++) {
        fputs(count == 0 ? "<section><h2>Next</h2><pre>" : "", f);
        invar_html_text(f, command);
        fputc('\n', f);
    }
    fputs(count ? "</pre></section>\n" : "", f);
}

/* ---- the page -------------------------------------------------------------------------------- */

static const invar_html_section sections[] = {
    {"verdict", put_verdict},   {"tag", put_tag},
    {"headline", put_headline}, {"advice", put_advice},
    {"commit", put_commit},     {"place", put_place},
    {"cost", put_cost},         {"changes", put_changes},
    {"suspects", put_suspects}, {"patch", put_patch},
    {"search", put_search},     {"trials", put_trials},
    {"next", put_next},         {NULL, NULL},
};

invar_status invar_bisect_report_html(FILE *out, const invar_bisect_result *result)
{
    return invar_html_write(out, invar_bisect_report_files, sections, result);
}
