/*
 * print.c - prints a diff for people: the verdict first, then everything that differs.
 *
 * Equal elements are only counted. Lists are cut after 40 lines, and lines are fitted to the
 * terminal if there is one. The file also makes the headline and the commands that are recommended
 * next.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/console/term.h"
#include "base/process/argv0.h"
#include "base/text.h"
#include "ledger/view/diff/internal.h"

#include "base/invar_banned.h"

enum {
    LINES = 40,
    VALUE_COLUMNS = 160,
    NAME_COLUMNS = 40,
    POINT_COLUMNS = 160,
    PAIR_COLUMNS = 60,
    POINT_DETAIL = 80,   /* columns of a point's line without its name */
    METRIC_DETAIL = 102, /* columns of a metric's line without its name */
};

typedef struct printer {
    FILE *stream;
    bool color;
    bool listed; /* the last section had a list */
    int width;   /* columns of the terminal; 0 if the output is not a terminal */
} printer;

/* ---- the verdict ----------------------------------------------------------------------------- */

const char *invar_diff_verdict_name(invar_diff_verdict verdict)
{
    static const char *const names[] = {
        [INVAR_DIFF_VERDICT_IDENTICAL] = "identical",
        [INVAR_DIFF_VERDICT_DIFFERENT] = "different",
        [INVAR_DIFF_VERDICT_NONDETERMINISTIC] = "nondeterministic",
        [INVAR_DIFF_VERDICT_NOTHING] = "nothing",
    };

    return names[verdict];
}

/* Text in a buffer of fixed size; what does not fit is cut off. */
typedef struct line {
    char *text;
    size_t used, size;
} line;

static void line_add(line *l, const char *format, ...) INVAR_PRINTF(2, 3);

static void line_add(line *l, const char *format, ...)
{
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(l->text + l->used, l->size - l->used, format, args);
    va_end(args);
    l->used += (size_t)length < l->size - l->used ? (size_t)length : l->size - l->used - 1;
}

/* Returns the number of bytes to show: at most `most`, without splitting a character. */
static int clipped_bytes(const char *text, size_t most)
{
    size_t bytes = strlen(text);

    if (bytes > most)
        for (bytes = most; bytes > 0 && ((unsigned char)text[bytes] & 0xc0) == 0x80;)
            bytes--;
    return (int)bytes;
}

void invar_diff_fused(char out[INVAR_DIFF_FUSED_SIZE], const invar_diff_point *point,
                      const char *in_a, const char *in_b)
{
    line l = {out, 0, INVAR_DIFF_FUSED_SIZE};

    out[0] = '\0';
    if (!point->fused)
        return;
    line_add(&l, "fused %.*s ", clipped_bytes(point->op, 64), point->op);
    if (!point->fused_mismatch_a && !point->fused_mismatch_b)
        line_add(&l, "equals its parts %s and %s", in_a, in_b);
    else
        line_add(&l, "differs from its parts %s%s%s", point->fused_mismatch_a ? in_a : "",
                 point->fused_mismatch_a && point->fused_mismatch_b ? " and " : "",
                 point->fused_mismatch_b ? in_b : "");
    line_add(&l, ", the parts %s", point->parts_equal ? "are equal" : "differ as well");
}

static void add_point_name(line *l, const invar_diff_point *p)
{
    line_add(l, ", point %.*s (%.*s", clipped_bytes(p->name, 256), p->name,
             clipped_bytes(p->phase, 64), p->phase);
    if (p->layer >= 0)
        line_add(l, ", layer %" PRId64, p->layer);
    line_add(l, ")");
}

/* Adds the first point that differs, and how its inputs compare. */
static void add_tensors(line *l, const invar_diff *diff)
{
    const invar_diff_point *p = diff->culprit;
    char fused[INVAR_DIFF_FUSED_SIZE];

    if (p) {
        add_point_name(l, p);
        line_add(l, p->inputs == 0     ? ", the first that differs"
                    : p->inputs_differ ? ", whose inputs are equal where both have them"
                                       : ", its inputs are equal");
        if (p->inputs > 0 && diff->same_weights == INVAR_TRISTATE_NO)
            line_add(l, ", but not the weights");
        invar_diff_fused(fused, p, "in A", "in B");
        line_add(l, "%s%s", *fused ? "; " : "", fused);
    } else if (diff->points.count) {
        add_point_name(l, diff->points.items);
        line_add(l, ", where it begins is not known");
    } else if (!diff->a.digests || !diff->b.digests) {
        line_add(l, "; its points are not in this copy of %s",
                 diff->b.digests   ? "A"
                 : diff->a.digests ? "B"
                                   : "A and B");
    } else {
        line_add(l, ", in structure only: %zu change%s of what is computed", diff->changes.count,
                 invar_text_plural((int64_t)diff->changes.count));
    }
}

/* Adds the numbers of records that differ although all tensors are equal. */
static void add_records(line *l, const invar_diff *diff)
{
    if (diff->evaluations)
        line_add(l, ", in %zu result%s of evaluations", diff->metrics.count,
                 invar_text_plural((int64_t)diff->metrics.count));
    else if (diff->metrics.count + diff->samples.count == 0 && diff->replies.different == 0)
        line_add(l, ", not in tensors but in what the step was given");
    else
        line_add(l,
                 ", not in tensors but in %zu metric%s, %zu sample%s, %" PRId64 " plug-in repl%s",
                 diff->metrics.count, invar_text_plural((int64_t)diff->metrics.count),
                 diff->samples.count, invar_text_plural((int64_t)diff->samples.count),
                 diff->replies.different, diff->replies.different == 1 ? "y" : "ies");
}

static void add_identical(line *l, const invar_diff *diff)
{
    line_add(l, "%" PRId64 " step%s, %" PRId64 " points a step", diff->steps.compared,
             invar_text_plural(diff->steps.compared),
             diff->points.equal + (int64_t)diff->points.count);
    if (diff->steps.only_a)
        line_add(l, "; %" PRId64 " more only in A", diff->steps.only_a);
    if (diff->steps.only_b)
        line_add(l, "; %" PRId64 " more only in B", diff->steps.only_b);
    if (diff->changes.count)
        line_add(l, "; %zu change%s of structure", diff->changes.count,
                 invar_text_plural((int64_t)diff->changes.count));
    if (diff->points.count)
        line_add(l, "; %zu point%s outside the root differ%s", diff->points.count,
                 invar_text_plural((int64_t)diff->points.count),
                 diff->points.count == 1 ? "s" : "");
}

/* Adds "step 7", or `start` for evaluations before the first step. */
static void add_step(line *l, const invar_diff *diff, const char *start)
{
    if (diff->step >= 0)
        line_add(l, "step %" PRId64, diff->step);
    else
        line_add(l, "%s", start);
}

void invar_diff_headline(char out[INVAR_DIFF_HEADLINE_SIZE], const invar_diff *diff)
{
    const invar_diff_fact *makers = invar_diff_program_change(diff);
    bool plugins = makers && strcmp(makers->scope, "plugin") == 0;
    line l = {out, 0, INVAR_DIFF_HEADLINE_SIZE};

    line_add(&l, "%s: ", invar_diff_verdict_name(diff->verdict));
    if (diff->verdict == INVAR_DIFF_VERDICT_NOTHING) {
        line_add(&l, "the runs have no step in common");
        return;
    }
    if (diff->verdict == INVAR_DIFF_VERDICT_IDENTICAL) {
        add_identical(&l, diff);
        return;
    }
    if (diff->self_contradicting_side) {
        line_add(&l, "run %.*s (%.8s) %s ", clipped_bytes(diff->a.name, 64), diff->a.name,
                 diff->a.uuid, diff->evaluations ? "evaluated" : "did");
        add_step(&l, diff, "its start");
        line_add(&l, " twice%s with two results",
                 plugins  ? " by two plug-ins"
                 : makers ? " by two programs"
                          : "");
    } else {
        if (plugins)
            line_add(&l, "another plug-in (%.*s), ", clipped_bytes(makers->key, 64), makers->key);
        line_add(&l, "%sfirst at ", diff->same_inputs ? "same identity and program, " : "");
        add_step(&l, diff, "the start, before any step");
    }
    if (diff->roots_differ || diff->points.count)
        add_tensors(&l, diff);
    else
        add_records(&l, diff);
}

/* ---- the next command ------------------------------------------------------------------------ */

/* True if every shell reads the word as itself. */
static bool is_plain_word(const char *word)
{
    return *word && word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                      "0123456789._/-")] == '\0';
}

/* Adds the run as an argument of a command: PATH:UUID. */
static void add_run(line *l, const invar_diff_side *side)
{
    bool bare = is_plain_word(side->ledger);

    line_add(l, bare ? " %s:%.8s" : " '%s:%.8s'", side->ledger, side->uuid);
}

/* True if the path and uuid of a side, which may be hostile, can be part of a printed command. */
static bool is_side_printable(const invar_diff_side *side)
{
    return is_plain_word(side->uuid) && strlen(side->ledger) < INVAR_DIFF_NEXT_SIZE / 2 &&
           !strchr(side->ledger, '\'') && !strchr(side->ledger, '\\');
}

bool invar_diff_replay_would_help(const invar_diff *diff)
{
    const invar_diff_point *at = diff->culprit ? diff->culprit : diff->points.items;

    return diff->roots_differ && diff->points.count && at->inputs == 0 &&
           !diff->self_contradicting_side && !diff->replayed && diff->a.replayable &&
           diff->b.replayable && strcmp(diff->a.kind, "train") == 0 &&
           strcmp(diff->b.kind, "train") == 0;
}

int invar_diff_next(char out[INVAR_DIFF_NEXT_LINES][INVAR_DIFF_NEXT_SIZE], const invar_diff *diff)
{
    const invar_diff_side *sides[] = {&diff->a, &diff->b};
    int count = !diff->diverged ? 0 : diff->self_contradicting_side ? 1 : 2;

    if (!is_side_printable(&diff->a) || !is_side_printable(&diff->b))
        return 0;
    if (invar_diff_replay_would_help(diff)) {
        line l = {out[0], 0, INVAR_DIFF_NEXT_SIZE};
        line_add(&l, "%s diff", invar_argv0());
        add_run(&l, &diff->a);
        add_run(&l, &diff->b);
        line_add(&l, " --replay");
        return 1;
    }
    for (int i = 0; i < count; i++) {
        line l = {out[i], 0, INVAR_DIFF_NEXT_SIZE};
        line_add(&l, "%s ledger show", invar_argv0());
        add_run(&l, sides[i]);
        if (diff->step >= 0)
            line_add(&l, " --step %" PRId64, diff->step);
    }
    return count;
}

/* ---- lines and titles ------------------------------------------------------------------------ */

static const char *printer_style(const printer *p, invar_term_style s)
{
    return invar_term_escape(p->color, s);
}

static int count_columns(const char *text)
{
    int count = 0;

    for (; *text; text++)
        count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

/* Prints the text, cut after `most` columns and padded to `width`. */
static void print_padded(const printer *p, const char *text, int width, int most)
{
    const char *end = text;
    int count = 0;

    for (; *end; end++) {
        if (((unsigned char)*end & 0xc0) == 0x80)
            continue;
        if (count == most)
            break;
        count++;
    }
    fprintf(p->stream, "%.*s%s", (int)(end - text), text, *end ? "..." : "");
    if (count < width)
        fprintf(p->stream, "%*s", width - count, "");
}

/* Begins a section; empty lines separate a section with a list from the others. */
static void print_title(printer *p, const char *name, bool list)
{
    fprintf(p->stream, "%s%s%s%s: ", list || p->listed ? "\n" : "",
            printer_style(p, INVAR_TERM_STYLE_BOLD), name,
            printer_style(p, INVAR_TERM_STYLE_PLAIN));
    p->listed = list;
}

/* Begins a section with counts, such as "metrics: 3 differ, 57 equal". */
static void print_count_title(printer *p, const char *name, size_t different, int64_t equal)
{
    if (different == 0 && equal == 0)
        return;
    print_title(p, name, different > 0);
    if (different)
        fprintf(p->stream, "%zu differ, ", different);
    fprintf(p->stream, "%" PRId64 " equal\n", equal);
}

/* Prints how many elements of a list of `count` were left out. */
static void print_left_out(const printer *p, size_t count)
{
    if (count > LINES)
        fprintf(p->stream, "  %s... and %zu more; --json has all%s\n",
                printer_style(p, INVAR_TERM_STYLE_DIM), count - LINES,
                printer_style(p, INVAR_TERM_STYLE_PLAIN));
}

/* Prints "NAME  A | B", on three lines if the values are long. */
static void print_pair(const printer *p, const char *name, int width, const char *a, const char *b)
{
    a = a ? a : "-";
    b = b ? b : "-";
    if (count_columns(a) + count_columns(b) <= PAIR_COLUMNS) {
        print_padded(p, name, width, NAME_COLUMNS);
        fprintf(p->stream, "%s %s|%s %s\n", a, printer_style(p, INVAR_TERM_STYLE_DIM),
                printer_style(p, INVAR_TERM_STYLE_PLAIN), b);
        return;
    }
    print_padded(p, name, 0, NAME_COLUMNS);
    for (int i = 0; i < 2; i++) {
        fprintf(p->stream, "\n    %s%c%s ", printer_style(p, INVAR_TERM_STYLE_CYAN), "AB"[i],
                printer_style(p, INVAR_TERM_STYLE_PLAIN));
        print_padded(p, i ? b : a, 0, VALUE_COLUMNS);
    }
    fputc('\n', p->stream);
}

static int wider_of(int so_far, const char *text, int most)
{
    int width = count_columns(text);

    width = width < most ? width : most;
    return width > so_far ? width : so_far;
}

/* ---- sections -------------------------------------------------------------------------------- */

static void print_sides(const printer *p, const invar_diff *diff)
{
    const invar_diff_side *sides[] = {&diff->a, &diff->b};

    for (int i = 0; i < 2; i++) {
        const invar_diff_side *s = sides[i];
        fprintf(p->stream, "  %s%c%s  ", printer_style(p, INVAR_TERM_STYLE_CYAN), "AB"[i],
                printer_style(p, INVAR_TERM_STYLE_PLAIN));
        print_padded(p, s->name, wider_of(count_columns(diff->a.name), diff->b.name, NAME_COLUMNS),
                     NAME_COLUMNS);
        fprintf(p->stream, "  %.8s  ", s->uuid);
        if (s->first_step < 0)
            fprintf(p->stream, "no steps");
        else
            fprintf(p->stream, "steps %" PRId64 "-%" PRId64, s->first_step, s->last_step);
        if (diff->self_contradicting_side)
            fprintf(p->stream, "  segment %" PRId64, s->seg);
        else if (s->segments > 1)
            fprintf(p->stream, "  %" PRId64 " segments", s->segments);
        fprintf(p->stream, "  %s", printer_style(p, INVAR_TERM_STYLE_DIM));
        print_padded(p, s->ledger, 0, VALUE_COLUMNS);
        fprintf(p->stream, "%s\n", printer_style(p, INVAR_TERM_STYLE_PLAIN));
    }
}

static void print_facts(printer *p, const invar_diff *diff)
{
    int scope = 0, key = 0;

    print_count_title(p, "facts", diff->facts.count, diff->facts.equal);
    for (size_t i = 0; i < diff->facts.count && i < LINES; i++) {
        scope = wider_of(scope, diff->facts.items[i].scope, NAME_COLUMNS);
        key = wider_of(key, diff->facts.items[i].key, NAME_COLUMNS);
    }
    for (size_t i = 0; i < diff->facts.count && i < LINES; i++) {
        const invar_diff_fact *f = &diff->facts.items[i];
        fprintf(p->stream, "  ");
        print_padded(p, f->scope, scope + 2, NAME_COLUMNS);
        print_pair(p, f->key, key + 2, f->a, f->b);
    }
    print_left_out(p, diff->facts.count);
}

static void print_digests(const printer *p, const char *what, const invar_digest *a,
                          const invar_digest *b)
{
    char x[INVAR_DIGEST_HEX_SIZE], y[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(x, a);
    invar_digest_format(y, b);
    fprintf(p->stream, "  %-6s %s %s|%s %s\n", what, x, printer_style(p, INVAR_TERM_STYLE_DIM),
            printer_style(p, INVAR_TERM_STYLE_PLAIN), y);
}

const char *invar_tristate_name(invar_tristate answer)
{
    static const char *const names[] = {
        [INVAR_TRISTATE_NO] = "no",
        [INVAR_TRISTATE_YES] = "yes",
        [INVAR_TRISTATE_UNKNOWN] = "not recorded",
    };

    return names[answer];
}

static void print_step(printer *p, const invar_diff *diff)
{
    char name[32];

    snprintf(name, sizeof name, "step %" PRId64, diff->step);
    print_title(p, name, true);
    fprintf(p->stream, "same data: %s, same random numbers: %s, same weights before it: %s\n",
            invar_tristate_name(diff->same_batch), invar_tristate_name(diff->same_rng),
            invar_tristate_name(diff->same_weights));
    print_digests(p, "root", &diff->a.root, &diff->b.root);
    print_digests(p, "chain", &diff->a.chain, &diff->b.chain);
}

static void print_changes(printer *p, const invar_diff *diff)
{
    int name = 0;

    if (diff->changes.count == 0)
        return;
    print_title(p, "structure", true);
    fprintf(p->stream, "%zu change%s; A has %" PRId64 " points, B %" PRId64 "\n",
            diff->changes.count, invar_text_plural((int64_t)diff->changes.count), diff->a.points,
            diff->b.points);
    for (size_t i = 0; i < diff->changes.count && i < LINES; i++)
        name = wider_of(name, diff->changes.items[i].point, POINT_COLUMNS);
    for (size_t i = 0; i < diff->changes.count && i < LINES; i++) {
        const invar_diff_manifest_change *c = &diff->changes.items[i];
        fprintf(p->stream, "  ");
        print_padded(p, c->point, name + 2, POINT_COLUMNS);
        print_pair(p, c->what, 12, c->a, c->b);
    }
    print_left_out(p, diff->changes.count);
}

/* Prints the layers with differences as ranges, such as "layer 3-7, 9". */
static void print_layers(const printer *p, const invar_diff_group *groups, size_t count)
{
    const char *before = ", layer ";

    for (size_t i = 0; i < count;) {
        int64_t low = groups[i].layer, high = low;
        size_t k = i + 1;
        if (groups[i].different == 0 || low < 0) {
            i++;
            continue;
        }
        for (; k < count && groups[k].different && groups[k].layer == high + 1; k++)
            high++;
        fprintf(p->stream, "%s%" PRId64, before, low);
        if (high > low)
            fprintf(p->stream, "-%" PRId64, high);
        before = ", ";
        i = k;
    }
}

/* Prints one line per phase, with its layers. */
static void print_phases(const printer *p, const invar_diff *diff)
{
    size_t lines = 0;

    for (size_t i = 0; i < diff->groups.count && lines < LINES; lines++) {
        const invar_diff_group *first = &diff->groups.items[i];
        int64_t equal = 0, different = 0;
        size_t count = 0;
        for (; i < diff->groups.count && strcmp(diff->groups.items[i].phase, first->phase) == 0;
             i++) {
            equal += diff->groups.items[i].equal;
            different += diff->groups.items[i].different;
            count++;
        }
        fprintf(p->stream, "  ");
        print_padded(p, first->phase, 12, NAME_COLUMNS);
        if (different == 0) {
            fprintf(p->stream, "%s%" PRId64 " equal%s\n", printer_style(p, INVAR_TERM_STYLE_DIM),
                    equal, printer_style(p, INVAR_TERM_STYLE_PLAIN));
            continue;
        }
        fprintf(p->stream, "%" PRId64 " of %" PRId64 " differ", different, equal + different);
        print_layers(p, first, count);
        fputc('\n', p->stream);
    }
}

/* True if a line of this width fits the terminal; otherwise details of the line are left out. */
static bool has_room(const printer *p, int columns_needed)
{
    return p->width == 0 || columns_needed <= p->width;
}

static void print_point(const printer *p, const invar_diff *diff, const invar_diff_point *q,
                        int name)
{
    char a[INVAR_DIGEST_HEX_SIZE], b[INVAR_DIGEST_HEX_SIZE];
    bool culprit = q == diff->culprit;

    invar_digest_format(a, &q->a);
    invar_digest_format(b, &q->b);
    fprintf(p->stream, "%s%c ", culprit ? printer_style(p, INVAR_TERM_STYLE_RED) : "",
            culprit ? '>' : ' ');
    print_padded(p, q->name, name + 2, POINT_COLUMNS);
    if (has_room(p, name + POINT_DETAIL)) {
        print_padded(p, q->op, 16, NAME_COLUMNS);
        print_padded(p, q->kind, 7, NAME_COLUMNS);
        print_padded(p, q->dtype, 5, NAME_COLUMNS);
        print_padded(p, q->shape, 16, NAME_COLUMNS);
    }
    fprintf(p->stream, " %.8s | %.8s%s%s%s\n", a, b, q->level ? "  (not in the root)" : "",
            q->is_origin ? "  begins here" : "",
            culprit ? printer_style(p, INVAR_TERM_STYLE_PLAIN) : "");
}

static void print_points(printer *p, const invar_diff *diff)
{
    int name = 0;

    if (!diff->a.digests || !diff->b.digests) {
        print_title(p, "points", false);
        fprintf(p->stream, "not in the ledger of %s: only the root of the step is known\n",
                diff->b.digests   ? "A"
                : diff->a.digests ? "B"
                                  : "A and B");
        return;
    }
    print_count_title(p, "points", diff->points.count, diff->points.equal);
    if (diff->points.count == 0)
        return;
    print_phases(p, diff);
    for (size_t i = 0; i < diff->points.count && i < LINES; i++)
        name = wider_of(name, diff->points.items[i].name, POINT_COLUMNS);
    if (diff->culprit && diff->culprit >= diff->points.items + LINES)
        print_point(p, diff, diff->culprit, name);
    for (size_t i = 0; i < diff->points.count && i < LINES; i++)
        print_point(p, diff, &diff->points.items[i], name);
    print_left_out(p, diff->points.count);
}

void invar_diff_number(char out[INVAR_NUMBER_SIZE], double value)
{
    if (invar_number_format_plain(out, value) == INVAR_OK)
        return;
    invar_error_clear(); // the caller also shows the bits
    memcpy(out, "?", 2);
}

void invar_diff_distance(char out[INVAR_NUMBER_SIZE], const invar_diff_metric *metric)
{
    if (metric->ulp == 0)
        *out = '\0';
    else
        snprintf(out, INVAR_NUMBER_SIZE, metric->ulp < 1000000 ? "%.0f ulp (%s)" : "%.1e ulp (%s)",
                 (double)metric->ulp, invar_diff_ulp_format(metric));
}

const char *invar_diff_ulp_format(const invar_diff_metric *metric)
{
    return metric->f32 ? "fp32" : "fp64";
}

/* Prints both values of a metric, or their bits. */
static void print_values(const printer *p, const invar_diff_metric *m, bool as_bits)
{
    const bool present[] = {m->in_a, m->in_b};
    const double values[] = {m->a, m->b};

    for (int i = 0; i < 2; i++) {
        char text[INVAR_NUMBER_SIZE] = "-";
        uint64_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        if (present[i] && as_bits)
            snprintf(text, sizeof text, "%016" PRIx64, bits);
        else if (present[i])
            invar_diff_number(text, values[i]);
        fprintf(p->stream, as_bits ? " %-16s" : "%-26s", text);
    }
}

static void print_metrics(printer *p, const invar_diff *diff)
{
    char distance[INVAR_NUMBER_SIZE];
    int name = 0;

    print_count_title(p, "metrics", diff->metrics.count, diff->metrics.equal);
    for (size_t i = 0; i < diff->metrics.count && i < LINES; i++)
        name = wider_of(name, diff->metrics.items[i].name, POINT_COLUMNS);
    for (size_t i = 0; i < diff->metrics.count && i < LINES; i++) {
        const invar_diff_metric *m = &diff->metrics.items[i];
        fprintf(p->stream, "  ");
        print_padded(p, m->name, name + 2, POINT_COLUMNS);
        print_values(p, m, false);
        if (has_room(p, name + METRIC_DETAIL))
            print_values(p, m, true);
        invar_diff_distance(distance, m);
        fprintf(p->stream, "%s%s\n", *distance ? "  " : "", distance);
    }
    print_left_out(p, diff->metrics.count);
}

static void print_samples(printer *p, const invar_diff *diff)
{
    print_count_title(p, "samples", diff->samples.count, diff->samples.equal);
    for (size_t i = 0; i < diff->samples.count && i < LINES; i++) {
        const invar_diff_sample *s = &diff->samples.items[i];
        const char *comma = "";
        fprintf(p->stream, "  sample %-5" PRId64 " prompt %-8" PRId64 " ", s->idx,
                s->in_a ? s->prompt_a : s->prompt_b);
        if (!s->in_a || !s->in_b)
            fprintf(p->stream, "only in %c", s->in_a ? 'A' : 'B');
        for (int bit = 0; bit < INVAR_DIFF_SAMPLE_FIELDS; bit++) {
            if (!(s->fields & 1U << bit))
                continue;
            fprintf(p->stream, "%s%s", comma, invar_diff_sample_field(bit));
            comma = ", ";
        }
        fputc('\n', p->stream);
    }
    print_left_out(p, diff->samples.count);
    print_count_title(p, "plug-in replies", (size_t)diff->replies.different, diff->replies.equal);
}

static void print_compared(printer *p, const invar_diff *diff)
{
    print_title(p, "compared", true);
    if (diff->steps.first < 0) {
        fprintf(p->stream, "%s\n", diff->diverged ? "evaluations before any step" : "nothing");
        return;
    }
    fprintf(p->stream,
            "%" PRId64 " step%s (%" PRId64 "-%" PRId64 ", by chains), %" PRId64 " points, %" PRId64
            " metrics, %" PRId64 " samples at step %" PRId64 "\n",
            diff->steps.compared, invar_text_plural(diff->steps.compared), diff->steps.first,
            diff->steps.first + diff->steps.compared - 1,
            diff->points.equal + (int64_t)diff->points.count,
            diff->metrics.equal + (int64_t)diff->metrics.count,
            diff->samples.equal + (int64_t)diff->samples.count, invar_diff_compared_step(diff));
    if (diff->steps.only_a)
        fprintf(p->stream, "  only A has %" PRId64 " other steps\n", diff->steps.only_a);
    if (diff->steps.only_b)
        fprintf(p->stream, "  only B has %" PRId64 " other steps\n", diff->steps.only_b);
}

static void print_next(printer *p, const invar_diff *diff)
{
    char lines[INVAR_DIFF_NEXT_LINES][INVAR_DIFF_NEXT_SIZE];
    int count = invar_diff_next(lines, diff);

    if (count == 0)
        return;
    print_title(p, "next", true);
    fprintf(p->stream, "%s\n",
            invar_diff_replay_would_help(diff) ? "to find the op that differs"
                                               : "to see the numbers");
    for (int i = 0; i < count; i++)
        fprintf(p->stream, "  %s\n", lines[i]);
}

invar_status invar_diff_print(FILE *stream, const invar_diff *diff, bool color)
{
    static const invar_term_style styles[] = {INVAR_TERM_STYLE_GREEN, INVAR_TERM_STYLE_RED,
                                              INVAR_TERM_STYLE_RED, INVAR_TERM_STYLE_YELLOW};
    printer p = {stream, color, true, invar_term_live(stream) ? invar_term_width(stream) : 0};
    char headline[INVAR_DIFF_HEADLINE_SIZE];

    invar_diff_headline(headline, diff);
    fprintf(stream, "%s%s%s\n\n", printer_style(&p, styles[diff->verdict]), headline,
            printer_style(&p, INVAR_TERM_STYLE_PLAIN));
    print_sides(&p, diff);
    print_facts(&p, diff);
    if (diff->step >= 0)
        print_step(&p, diff);
    if (invar_diff_compared_step(diff) >= 0) {
        print_changes(&p, diff);
        print_points(&p, diff);
    }
    print_metrics(&p, diff);
    print_samples(&p, diff);
    print_compared(&p, diff);
    print_next(&p, diff);
    if (fflush(stream) != 0 || ferror(stream))
        return INVAR_FAIL(INVAR_E_IO, errno, "cannot write the diff: %s", strerror(errno));
    return INVAR_OK;
}
