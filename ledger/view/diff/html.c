/*
 * html.c - writes a diff as one HTML page: no script, nothing to load, light and dark.
 *
 * templates/diff.html is the frame; a name in double braces stands for a section below or for an
 * embedded style sheet. All text of a ledger is written with html.h, so none of it becomes markup.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ledger/view/diff/internal.h"
#include "ledger/view/html.h"

#include "base/invar_banned.h"

enum { ROWS = 2000, OPEN_ROWS = 200, PHASES = 16, LAYERS = 160 };

/* The embedded files: first the frame, then the files that it names. */
extern const invar_embedded invar_diff_files[];

/* ---- tables and items ------------------------------------------------------------------------ */

static void cell_digest(FILE *f, const invar_digest *d)
{
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, d);
    fprintf(f, "<td class=\"digest\" title=\"%s\">%.16s</td>", hex, hex);
}

/* Begins a section with a table, which is unfolded if it has at most OPEN_ROWS rows. */
static void open_table(FILE *f, const char *title, size_t rows, const char *note,
                       const char *const *heads)
{
    fprintf(f,
            "<section><h2>%s</h2><details%s><summary>%zu differ <span class=\"note\">&middot; "
            "%s</span></summary>",
            title, rows <= OPEN_ROWS ? " open" : "", rows, note);
    invar_html_table_open(f, heads);
}

static void close_table(FILE *f, size_t rows)
{
    invar_html_table_close(f, rows > ROWS ? rows - ROWS : 0);
    fputs("</details></section>\n", f);
}

/*
 * Like open_table, with a note about the number of equal elements. Returns false, and writes only
 * the note, if no row differs.
 */
static bool open_list(FILE *f, const char *title, size_t rows, int64_t equal,
                      const char *const *heads)
{
    char note[40];

    snprintf(note, sizeof note, "%" PRId64 " equal", equal);
    if (rows)
        open_table(f, title, rows, note, heads);
    else if (equal)
        fprintf(f, "<section class=\"slim\"><h2>%s</h2><span class=\"note\">%s</span></section>\n",
                title, note);
    return rows > 0;
}

static void item_digest(FILE *f, const char *term, const invar_digest *d)
{
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, d);
    fprintf(f, "<div><dt>%s</dt><dd><code class=\"hash\">%s</code></dd></div>", term, hex);
}

/* ---- sections -------------------------------------------------------------------------------- */

static void put_verdict(FILE *f, const void *data)
{
    const invar_diff *diff = data;

    fputs(invar_diff_verdict_name(diff->verdict), f);
}

static void put_tag(FILE *f, const void *data)
{
    const invar_diff *diff = data;
    static const char *const classes[] = {
        [INVAR_DIFF_VERDICT_IDENTICAL] = "good",
        [INVAR_DIFF_VERDICT_DIFFERENT] = "bad",
        [INVAR_DIFF_VERDICT_NONDETERMINISTIC] = "bad",
        [INVAR_DIFF_VERDICT_NOTHING] = "warn",
    };

    fprintf(f, "<span class=\"tag big %s\">%s</span>", classes[diff->verdict],
            invar_diff_verdict_name(diff->verdict));
}

static void put_headline(FILE *f, const void *data)
{
    const invar_diff *diff = data;
    char headline[INVAR_DIFF_HEADLINE_SIZE];
    const char *rest;

    invar_diff_headline(headline, diff);
    rest = strstr(headline, ": "); // the tag above shows the verdict already
    invar_html_text(f, rest ? rest + 2 : headline);
}

static void put_side(FILE *f, const invar_diff *diff, const invar_diff_side *s, char letter)
{
    fprintf(f, "<div class=\"card side-%c\"><h3><span class=\"letter\">%c</span> ", letter | 0x20,
            letter);
    invar_html_text(f, s->name);
    fputs("</h3><dl>", f);
    invar_html_item(f, "run", s->uuid);
    invar_html_item(f, "kind", s->kind);
    if (s->first_step < 0)
        invar_html_item(f, "steps", "none");
    else
        fprintf(f, "<div><dt>steps</dt><dd>%" PRId64 " to %" PRId64 "</dd></div>", s->first_step,
                s->last_step);
    invar_html_item_number(f, diff->self_contradicting_side ? "segment" : "segments",
                           diff->self_contradicting_side ? s->seg : s->segments);
    invar_html_item(f, "ledger", s->ledger);
    if (diff->step >= 0) {
        item_digest(f, "root", &s->root);
        item_digest(f, "chain", &s->chain);
    }
    fputs("</dl></div>", f);
}

static void put_sides(FILE *f, const void *data)
{
    const invar_diff *diff = data;

    put_side(f, diff, &diff->a, 'A');
    put_side(f, diff, &diff->b, 'B');
}

static double percent_of(int64_t part, int64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

/* Draws the common steps as a band: equal up to the divergent one, different from there. */
static void put_steps(FILE *f, const void *data)
{
    const invar_diff *diff = data;
    int64_t steps = diff->common_last - diff->common_first + 1;
    double at = percent_of(diff->step - diff->common_first, steps);

    if (diff->step < 0 || diff->self_contradicting_side)
        return;
    fprintf(f,
            "<section><h2>Step %" PRId64 "</h2><div class=\"strip\">"
            "<svg role=\"img\" aria-label=\"equal before step %" PRId64 "\">"
            "<rect class=\"equal\" width=\"%.3f%%\" height=\"22\"/>"
            "<rect class=\"%s\" x=\"%.3f%%\" width=\"%.3f%%\" height=\"22\"/></svg>"
            "<div class=\"flag%s\" style=\"--at:%.3f%%\"><span>step %" PRId64 "</span></div></div>"
            "<p class=\"note\">Steps %" PRId64 " to %" PRId64
            " are in both runs. %s</p><dl class=\"wide\">",
            diff->step, diff->step, at, diff->roots_differ ? "different" : "mixed", at, 100 - at,
            at > 60 ? " left" : "", at, diff->step, diff->common_first, diff->common_last,
            diff->roots_differ ? "Found by binary search over the chains."
                               : "Their tensors are equal.");
    invar_html_item(f, "same data", invar_tristate_name(diff->same_batch));
    invar_html_item(f, "same rng", invar_tristate_name(diff->same_rng));
    invar_html_item(f, "same weights before it", invar_tristate_name(diff->same_weights));
    fputs("</dl></section>\n", f);
}

static void put_culprit(FILE *f, const void *data)
{
    const invar_diff *diff = data;
    const invar_diff_point *p = diff->culprit;
    char fused[INVAR_DIFF_FUSED_SIZE];

    if (!p)
        return;
    fprintf(f,
            "<section><h2>Where it begins</h2><p class=\"note\">The first point in order of "
            "execution whose %s</p><div class=\"culprit\"><h3>",
            p->inputs == 0 ? "value differs; what it is made of is not on record."
            : diff->same_weights == INVAR_TRISTATE_NO
                ? "inputs are equal and whose value is not; the weights differ, too."
                : "inputs are equal and whose value is not.");
    invar_html_text(f, p->name);
    fputs("</h3>", f);
    if (p->inputs)
        fprintf(f, "<span class=\"tag good\">%" PRId64 " input%s equal%s</span>", p->inputs,
                p->inputs == 1 ? "" : "s", p->inputs_differ ? " where both have them" : "");
    fputs("<span class=\"tag bad\">value differs</span><dl class=\"wide\">", f);
    invar_html_item(f, "phase", p->phase);
    if (p->layer >= 0)
        invar_html_item_number(f, "layer", p->layer);
    invar_html_item(f, "op", p->op);
    invar_diff_fused(fused, p, "in A", "in B");
    if (*fused)
        invar_html_item(f, "parts", fused);
    invar_html_item(f, "kind", p->kind);
    invar_html_item(f, "dtype", p->dtype);
    invar_html_item(f, "shape", p->shape);
    item_digest(f, "A", &p->a);
    item_digest(f, "B", &p->b);
    fputs("</dl></div></section>\n", f);
}

/* ---- the map of phases and layers ------------------------------------------------------------ */

typedef struct tally {
    int64_t equal, different;
    bool begins;
} tally;

/* Counts for the heat map: rows are phases, columns layers; column 0 is for points of no layer. */
typedef struct chart {
    const char *phases[PHASES];
    int n_phases, n_columns;
    tally cells[PHASES][LAYERS + 1];
} chart;

static tally *chart_cell(chart *c, const char *phase, int64_t layer)
{
    int row = 0;

    while (row < c->n_phases && strcmp(c->phases[row], phase) != 0)
        row++;
    if (row == PHASES || layer >= LAYERS)
        return NULL;
    if (row == c->n_phases)
        c->phases[c->n_phases++] = phase;
    layer = layer < 0 ? 0 : layer + 1;
    if (layer >= c->n_columns)
        c->n_columns = (int)layer + 1;
    return &c->cells[row][layer];
}

static void put_tally(FILE *f, const tally *t)
{
    int64_t points = t->equal + t->different;

    if (points == 0)
        fputs("<td></td>", f);
    else if (t->different == 0)
        fprintf(f, "<td class=\"equal\" title=\"%" PRId64 " equal\"></td>", points);
    else
        fprintf(f,
                "<td class=\"differ%s\" style=\"--share:%.0f%%\" title=\"%" PRId64 " of %" PRId64
                " differ\">%" PRId64 "</td>",
                t->begins ? " born" : "", 35 + 0.65 * percent_of(t->different, points),
                t->different, points, t->different);
}

static void put_chart(FILE *f, const void *data)
{
    const invar_diff *diff = data;
    chart c = {.n_phases = 0};
    tally *t;

    if (diff->n_points == 0)
        return;
    for (size_t i = 0; i < diff->n_groups; i++) {
        t = chart_cell(&c, diff->groups[i].phase, diff->groups[i].layer);
        if (!t)
            continue;
        t->equal += diff->groups[i].equal;
        t->different += diff->groups[i].different;
    }
    if (diff->culprit && (t = chart_cell(&c, diff->culprit->phase, diff->culprit->layer)))
        t->begins = true;
    fputs("<section><h2>How far it reaches</h2><p class=\"note\">Points that differ, by phase and "
          "layer. The frame marks where it begins.</p>"
          "<div class=\"scroll map\"><table class=\"heat\"><thead><tr><th></th>"
          "<th>&ndash;</th>",
          f);
    for (int k = 1; k < c.n_columns; k++)
        fprintf(f, "<th>%d</th>", k - 1);
    fputs("</tr></thead><tbody>", f);
    for (int i = 0; i < c.n_phases; i++) {
        fputs("<tr><th>", f);
        invar_html_text(f, c.phases[i]);
        fputs("</th>", f);
        for (int k = 0; k < c.n_columns; k++)
            put_tally(f, &c.cells[i][k]);
        fputs("</tr>", f);
    }
    fputs("</tbody></table></div></section>\n", f);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void put_points(FILE *f, const void *data)
{
    const invar_diff *diff = data;
    static const char *const heads[] = {"Point", "Phase", "Layer", "Op",   "Kind",
                                        "Type",  "A",     "B",     "Note", NULL};

    if (invar_diff_compared_step(diff) < 0)
        return;
    if (!diff->a.digests || !diff->b.digests) {
        fprintf(f,
                "<section><h2>Points</h2><p>The digests of points are not in the ledger of %s: "
                "only the root of the step is known.</p></section>\n",
                diff->b.digests   ? "A"
                : diff->a.digests ? "B"
                                  : "A and B");
        return;
    }
    if (!open_list(f, "Points", diff->n_points, diff->points_equal, heads))
        return;
    for (size_t i = 0; i < diff->n_points && i < ROWS; i++) {
        const invar_diff_point *p = &diff->points[i];
        fprintf(f, "<tr%s>", p == diff->culprit ? " class=\"first\"" : "");
        invar_html_cell(f, "name", p->name);
        invar_html_cell(f, "", p->phase);
        if (p->layer >= 0)
            invar_html_cell_format(f, "", "%" PRId64, p->layer);
        else
            invar_html_cell(f, "", "");
        invar_html_cell(f, "", p->op);
        invar_html_cell(f, "", p->kind);
        fputs("<td>", f);
        invar_html_text(f, p->dtype);
        fputs(" ", f);
        invar_html_text(f, p->shape);
        fputs("</td>", f);
        cell_digest(f, &p->a);
        cell_digest(f, &p->b);
        invar_html_cell_format(f, "", "%s%s%s", p->is_origin ? "begins here" : "",
                               p->is_origin && p->level ? ", " : "",
                               p->level ? "not in the root" : "");
        fputs("</tr>", f);
    }
    close_table(f, diff->n_points);
}

static void put_changes(FILE *f, const void *data)
{
    const invar_diff *diff = data;
    static const char *const heads[] = {"Point", "What", "A", "B", NULL};
    char note[80];

    if (diff->n_changes == 0)
        return;
    snprintf(note, sizeof note, "A has %" PRId64 " points, B %" PRId64, diff->points_a,
             diff->points_b);
    open_table(f, "Structure", diff->n_changes, note, heads);
    for (size_t i = 0; i < diff->n_changes && i < ROWS; i++) {
        fputs("<tr>", f);
        invar_html_cell(f, "name", diff->changes[i].point);
        invar_html_cell(f, "", diff->changes[i].what);
        invar_html_cell(f, "value", diff->changes[i].a);
        invar_html_cell(f, "value", diff->changes[i].b);
        fputs("</tr>", f);
    }
    close_table(f, diff->n_changes);
}

static void put_number(FILE *f, bool present, double value)
{
    char decimal[INVAR_NUMBER_SIZE];
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    invar_diff_number(decimal, value);
    if (present)
        fprintf(f, "<td class=\"num\">%s<br><small class=\"mono none\">%016" PRIx64 "</small></td>",
                decimal, bits);
    else
        invar_html_cell(f, "num", NULL);
}

static void put_metrics(FILE *f, const void *data)
{
    const invar_diff *diff = data;
    static const char *const heads[] = {"Metric", "A", "B", "Distance", NULL};
    char distance[INVAR_NUMBER_SIZE];

    if (!open_list(f, "Metrics", diff->n_metrics, diff->metrics_equal, heads))
        return;
    for (size_t i = 0; i < diff->n_metrics && i < ROWS; i++) {
        const invar_diff_metric *m = &diff->metrics[i];
        fputs("<tr>", f);
        invar_html_cell(f, "name", m->name);
        put_number(f, m->in_a, m->a);
        put_number(f, m->in_b, m->b);
        invar_diff_distance(distance, m);
        invar_html_cell(f, "num", distance);
        fputs("</tr>", f);
    }
    close_table(f, diff->n_metrics);
}

static void put_samples(FILE *f, const void *data)
{
    const invar_diff *diff = data;
    static const char *const heads[] = {"Sample", "Prompt", "What differs", NULL};

    if (!open_list(f, "Samples", diff->n_samples, diff->samples_equal, heads))
        return;
    for (size_t i = 0; i < diff->n_samples && i < ROWS; i++) {
        const invar_diff_sample *s = &diff->samples[i];
        const char *comma = "";
        fputs("<tr>", f);
        invar_html_cell_format(f, "", "%" PRId64, s->idx);
        invar_html_cell_format(f, "", "%" PRId64, s->in_a ? s->prompt_a : s->prompt_b);
        fputs("<td>", f);
        if (!s->in_a || !s->in_b)
            fprintf(f, "only in %c", s->in_a ? 'A' : 'B');
        for (int bit = 0; bit < INVAR_DIFF_SAMPLE_FIELDS; bit++) {
            if (!(s->fields & 1U << bit))
                continue;
            fprintf(f, "%s%s", comma, invar_diff_sample_field(bit));
            comma = ", ";
        }
        fputs("</td></tr>", f);
    }
    close_table(f, diff->n_samples);
}

static void put_facts(FILE *f, const void *data)
{
    const invar_diff *diff = data;
    static const char *const heads[] = {"Scope", "Fact", "A", "B", NULL};

    if (!open_list(f, "Facts", diff->n_facts, diff->facts_equal, heads))
        return;
    for (size_t i = 0; i < diff->n_facts && i < ROWS; i++) {
        fputs("<tr>", f);
        invar_html_cell(f, "none", diff->facts[i].scope);
        invar_html_cell(f, "", diff->facts[i].key);
        invar_html_cell(f, "value", diff->facts[i].a);
        invar_html_cell(f, "value", diff->facts[i].b);
        fputs("</tr>", f);
    }
    close_table(f, diff->n_facts);
}

static void put_compared(FILE *f, const void *data)
{
    const invar_diff *diff = data;

    fputs("<section><h2>What was compared</h2><dl class=\"wide counts\">", f);
    invar_html_item_number(f, "steps", diff->steps_compared);
    invar_html_item_number(f, "points", diff->points_equal + (int64_t)diff->n_points);
    invar_html_item_number(f, "metrics", diff->metrics_equal + (int64_t)diff->n_metrics);
    invar_html_item_number(f, "samples", diff->samples_equal + (int64_t)diff->n_samples);
    invar_html_item_number(f, "replies", diff->replies_equal + diff->replies_different);
    invar_html_item_number(f, "replies that differ", diff->replies_different);
    invar_html_item_number(f, "steps only in A", diff->only_a);
    invar_html_item_number(f, "steps only in B", diff->only_b);
    fputs("</dl></section>\n", f);
}

static void put_next(FILE *f, const void *data)
{
    const invar_diff *diff = data;
    char lines[INVAR_DIFF_NEXT_LINES][INVAR_DIFF_NEXT_SIZE];
    int count = invar_diff_next(lines, diff);

    if (count == 0)
        return;
    fprintf(f, "<section><h2>Next</h2><p class=\"note\">%s</p><pre>",
            invar_diff_replay_would_help(diff)
                ? "To find the op that differs, execute the step again."
                : "To see the numbers of the step.");
    for (int i = 0; i < count; i++) {
        invar_html_text(f, lines[i]);
        fputc('\n', f);
    }
    fputs("</pre></section>\n", f);
}

/* ---- the page -------------------------------------------------------------------------------- */

static const invar_html_section sections[] = {
    {"verdict", put_verdict},   {"tag", put_tag},         {"headline", put_headline},
    {"sides", put_sides},       {"steps", put_steps},     {"culprit", put_culprit},
    {"chart", put_chart},       {"points", put_points},   {"changes", put_changes},
    {"metrics", put_metrics},   {"samples", put_samples}, {"facts", put_facts},
    {"compared", put_compared}, {"next", put_next},       {NULL, NULL},
};

invar_status invar_diff_html(FILE *stream, const invar_diff *diff)
{
    return invar_html_write(stream, invar_diff_files, sections, diff);
}
