/*
 * ab.c - prints the result of an A/B experiment as text.
 *
 * The headline is one line with the verdict. Sections follow: sides, A/A checks, facts that differ,
 * pairs, divergence, effects on metrics, time and memory. All texts from users, repositories and
 * ledgers are escaped before they are printed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/view/ab.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/console/term.h"
#include "base/text.h"
#include "bisect/view/bisect_report.h"

#include "base/invar_banned.h"

enum { SHOWN_EFFECTS = 20, SHOWN_FACTS = 12, SHOWN_SEEDS = 12 };

static const char capitals[INVAR_AB_SIDES] = {'A', 'B'};

const char *invar_ab_verdict_name(invar_ab_verdict verdict)
{
    static const char *const names[] = {
        [INVAR_AB_IDENTICAL] = "identical",
        [INVAR_AB_DIFFERENT] = "different",
        [INVAR_AB_NONDETERMINISTIC] = "nondeterministic",
        [INVAR_AB_UNTESTABLE] = "untestable",
        [INVAR_AB_STOPPED] = "stopped",
    };

    return names[verdict];
}

const char *invar_ab_kind_name(invar_ab_kind kind)
{
    static const char *const names[] = {
        [INVAR_AB_COMMIT] = "commit", [INVAR_AB_FOLDER] = "folder", [INVAR_AB_FILE] = "file"};

    return names[kind];
}

/* ---- the headline ---------------------------------------------------------------------------- */

static void describe_identical(char out[INVAR_AB_LINE], const invar_ab_result *a)
{
    int64_t steps = a->pairs->steps;
    size_t n = a->n_pairs;

    (void)snprintf(out, INVAR_AB_LINE, "identical: %zu seed%s, %" PRId64 " step%s%s", n,
                   invar_text_plural((int64_t)n), steps, invar_text_plural(steps),
                   n == 1 ? "" : " each");
}

static const char *value_of(const invar_ab_fact *fact, int side)
{
    return fact->values[side][0] ? fact->values[side] : "nothing";
}

/* Lists changed keys, "hidden-size 16 -> 32, lr 1e-06 -> 0.5", as far as they fit. */
static void list_keys(char *out, size_t size, const invar_ab_result *a, const char *scope)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < a->n_facts; i++) {
        const invar_ab_fact *fact = &a->facts[i];
        int bytes;

        if (!fact->is_key || strcmp(fact->scope, scope) != 0)
            continue;
        bytes = snprintf(out + used, size - used, "%s%s %s -> %s", used ? ", " : "", fact->key,
                         value_of(fact, INVAR_AB_A), value_of(fact, INVAR_AB_B));
        if (bytes < 0 || (size_t)bytes >= size - used) {
            out[used] = '\0';
            return;
        }
        used += (size_t)bytes;
    }
}

/*
 * A folder of weights is not an identity key (its hashes are), so free keys are listed if no
 * identity key differs.
 */
static void describe_models(char out[INVAR_AB_LINE], const invar_ab_result *a)
{
    char keys[INVAR_AB_LINE / 2];

    list_keys(keys, sizeof keys, a, "identity");
    if (!keys[0])
        list_keys(keys, sizeof keys, a, "free");
    (void)snprintf(out, INVAR_AB_LINE,
                   "different: the models have other shapes, so no tensors are compared; keys that "
                   "differ: %s",
                   keys[0] ? keys : "none");
}

static void describe_different(char out[INVAR_AB_LINE], const invar_ab_result *a)
{
    char place[INVAR_BISECT_REPORT_LINE];
    const invar_ab_pair *p = a->pairs;

    invar_bisect_report_divergence(place, &a->divergence);
    if (place[0])
        (void)snprintf(out, INVAR_AB_LINE,
                       "different: from %.1900s on, in %" PRId64 " of %zu seed%s", place,
                       a->n_different, a->n_pairs, invar_text_plural((int64_t)a->n_pairs));
    else // the common steps are equal
        (void)snprintf(out, INVAR_AB_LINE,
                       "different: equal in the %" PRId64
                       " step%s that both have, but A has %" PRId64 " more and B %" PRId64,
                       p->steps, invar_text_plural(p->steps), p->only[INVAR_AB_A],
                       p->only[INVAR_AB_B]);
}

static void describe_nondeterministic(char out[INVAR_AB_LINE], const invar_ab_result *a)
{
    const invar_aa_check *gate = &a->aa_checks[a->side];
    const invar_ab_pair *p = a->pairs;

    if (gate->ran && !gate->same) {
        (void)snprintf(out, INVAR_AB_LINE,
                       "nondeterministic: %c against itself, seed %" PRId64 ", again with %s: %s",
                       capitals[a->side], gate->seed, gate->varied_keys, gate->headline);
        return;
    }
    while (p < a->pairs + a->n_pairs - 1 && p->same)
        p++;
    (void)snprintf(out, INVAR_AB_LINE,
                   "nondeterministic: A and B are the same program, seed %" PRId64 ": %s", p->seed,
                   p->headline);
}

void invar_ab_headline(char out[INVAR_AB_LINE], const invar_ab_result *a)
{
    switch (a->verdict) {
    case INVAR_AB_IDENTICAL: describe_identical(out, a); return;
    case INVAR_AB_DIFFERENT:
        if (a->two_models)
            describe_models(out, a);
        else
            describe_different(out, a);
        return;
    case INVAR_AB_NONDETERMINISTIC: describe_nondeterministic(out, a); return;
    case INVAR_AB_UNTESTABLE:
        (void)snprintf(out, INVAR_AB_LINE, "untestable: %c: %s", capitals[a->side],
                       a->failure_reason);
        return;
    case INVAR_AB_STOPPED: break;
    }
    (void)snprintf(
        out, INVAR_AB_LINE,
        "stopped: what was built and run is kept: run the same command again to continue");
}

/* ---- sections -------------------------------------------------------------------------------- */

static void print_side(FILE *f, const invar_ab_side *s, char letter)
{
    fprintf(f, "%c         %s ", letter, invar_ab_kind_name(s->kind));
    invar_bisect_report_print_safe(f, s->given);
    if (s->kind == INVAR_AB_COMMIT) {
        fprintf(f, " = %.12s ", s->commit.id);
        invar_bisect_report_print_safe(f, s->commit.subject);
    }
    if (s->recipe_path[0]) {
        fputs(", recipe ", f);
        invar_bisect_report_print_safe(f, s->recipe_path);
    }
    fputc('\n', f);
}

static void print_gate(FILE *f, const invar_aa_check *g, char letter)
{
    if (!g->ran)
        return;
    fprintf(f, "%c again   seed %" PRId64 ", with %s: ", letter, g->seed, g->varied_keys);
    invar_bisect_report_print_safe(f, g->headline);
    fputc('\n', f);
}

/*
 * Prints differing facts. With two recipes their keys are what the user asked about: all of them
 * are printed, before the other facts.
 */
static void print_facts_of(FILE *f, const invar_ab_result *a, bool keys, size_t limit)
{
    const bool two = a->sides[INVAR_AB_A].recipe_path[0] != '\0';
    size_t shown = 0;
    int64_t all = 0;

    for (size_t i = 0; i < a->n_facts; i++)
        all += (two && a->facts[i].is_key) == keys;
    if (all == 0 && !(keys && two))
        return;
    if (!keys) // facts beyond the capacity of the result count as not shown
        all += a->all_facts - (int64_t)a->n_facts;
    fprintf(f, "\n%s that differ%s\n", keys ? "keys" : "facts", all == 0 ? ": none" : "");
    for (size_t i = 0; i < a->n_facts && shown < limit; i++) {
        const invar_ab_fact *fact = &a->facts[i];
        if ((two && fact->is_key) != keys)
            continue;
        shown++;
        fprintf(f, "  %s %s: ", fact->scope, fact->key);
        invar_bisect_report_print_safe(f, value_of(fact, INVAR_AB_A));
        fputs(" -> ", f);
        invar_bisect_report_print_safe(f, value_of(fact, INVAR_AB_B));
        fputc('\n', f);
    }
    if (all > (int64_t)shown)
        fprintf(f, "  and %" PRId64 " more\n", all - (int64_t)shown);
}

static void print_facts(FILE *f, const invar_ab_result *a)
{
    if (a->n_pairs == 0 || !a->pairs[0].compared)
        return;
    print_facts_of(f, a, true, INVAR_AB_FACTS);
    print_facts_of(f, a, false, SHOWN_FACTS);
}

static void print_pairs(FILE *f, const invar_ab_result *a)
{
    fputs("\nseed by seed\n", f);
    for (size_t i = 0; i < a->n_pairs && i < SHOWN_SEEDS; i++) {
        fprintf(f, "  %-10" PRId64 " ", a->pairs[i].seed);
        invar_bisect_report_print_safe(f, a->pairs[i].headline);
        fputc('\n', f);
    }
    if (a->n_pairs > SHOWN_SEEDS)
        fprintf(f, "  and %zu more, %" PRId64 " of all differ\n", a->n_pairs - SHOWN_SEEDS,
                a->n_different);
}

static void print_place(FILE *f, const invar_ab_result *a)
{
    char line[INVAR_BISECT_REPORT_LINE];
    const invar_divergence *p = &a->divergence;

    if (!p->known)
        return;
    invar_bisect_report_divergence(line, p);
    fprintf(f, "\nfirst     %s\n", line);
    if (p->dtype[0])
        fprintf(f, "tensor    %s %s %s\n", p->kind, p->dtype, p->shape);
    invar_bisect_report_points(line, p);
    fprintf(f, "there     %s\n", line);
}

static void print_sum(FILE *f, const invar_ab_sum *s)
{
    if (s->pairs == 0)
        fprintf(f, " %12s %10s %11s", "-", "", "");
    else if (isnan(s->error))
        fprintf(f, " %+12.5g %10s %3" PRId64 " %3" PRId64 " %3" PRId64, s->mean, "-", s->higher,
                s->lower, s->equal);
    else
        fprintf(f, " %+12.5g %10.3g %3" PRId64 " %3" PRId64 " %3" PRId64, s->mean, s->error,
                s->higher, s->lower, s->equal);
}

static int name_width(const invar_ab_effects *e, size_t shown)
{
    size_t width = strlen("metric");

    for (size_t i = 0; i < shown; i++)
        if (strlen(e->items[i].name) > width)
            width = strlen(e->items[i].name);
    return width > 48 ? 48 : (int)width;
}

/* Counts pinned items from `first` on; pinned items come first. */
static size_t count_pinned(const invar_ab_effects *e, size_t first, size_t end)
{
    size_t i = first;

    while (i < end && e->items[i].pinned)
        i++;
    return i - first;
}

/* Rewards and evaluations that are equal in every bit are printed by name. */
static void print_equal(FILE *f, const invar_ab_effects *e)
{
    size_t apart = e->count - e->n_same, pinned = count_pinned(e, apart, e->count);

    for (size_t i = apart; i < apart + pinned; i++)
        fprintf(f, "  %s: equal in every bit\n", e->items[i].name);
    fprintf(f, "  %zu metric%s equal in every bit\n", e->n_same,
            invar_text_plural((int64_t)e->n_same));
}

static void print_effects(FILE *f, const invar_ab_result *a)
{
    const invar_ab_effects *e = &a->effects;
    size_t apart = e->count - e->n_same, shown = count_pinned(e, 0, apart) + SHOWN_EFFECTS;
    int width;

    shown = shown < apart ? shown : apart;
    width = name_width(e, shown);

    if (e->count == 0)
        return;
    fprintf(f,
            "\neffect of B against A, %zu seed%s: mean of b - a, its standard error, seeds in "
            "which b is higher, lower, equal\n",
            a->n_pairs, invar_text_plural((int64_t)a->n_pairs));
    if (shown) {
        fprintf(f, "  %-*s  at step %-" PRId64 "%*s  mean of steps %" PRId64 " to %" PRId64 "\n",
                width, "metric", e->last, 16, "", e->tail_first, e->last);
        for (size_t i = 0; i < shown; i++) {
            fprintf(f, "  %-*.*s", width, width, e->items[i].name);
            print_sum(f, &e->items[i].last);
            fputs("  ", f);
            print_sum(f, &e->items[i].tail);
            if (e->items[i].step != e->last && e->items[i].step != INVAR_AB_NO_STEP)
                fprintf(f, "  (last at step %" PRId64 ")", e->items[i].step);
            if (e->items[i].n_unusable)
                fprintf(f, "  (%" PRId64 " value%s left out)", e->items[i].n_unusable,
                        invar_text_plural(e->items[i].n_unusable));
            fputc('\n', f);
        }
        if (apart > shown)
            fprintf(f, "  and %zu more\n", apart - shown);
    }
    print_equal(f, e);
}

static void print_cost(FILE *f, const invar_ab_result *a)
{
    const invar_ab_side *x = &a->sides[INVAR_AB_A], *y = &a->sides[INVAR_AB_B];
    double mib = 1048576;

    if (!(x->seconds > 0) || x->peak_bytes <= 0)
        return;
    fprintf(f, "\ntime      B/A %.3f (%.2f s, %.2f s; one run a seed and side%s)\n",
            y->seconds / x->seconds, x->seconds, y->seconds,
            x->cached || y->cached ? ", some of an earlier call" : "");
    fprintf(f, "memory    B/A %.3f (%.1f MiB, %.1f MiB at most)\n",
            (double)y->peak_bytes / (double)x->peak_bytes, (double)x->peak_bytes / mib,
            (double)y->peak_bytes / mib);
}

static invar_term_style style_of(invar_ab_verdict verdict)
{
    return verdict == INVAR_AB_IDENTICAL ? INVAR_TERM_STYLE_GREEN
           : verdict == INVAR_AB_STOPPED ? INVAR_TERM_STYLE_YELLOW
                                         : INVAR_TERM_STYLE_RED;
}

invar_status invar_ab_print(FILE *out, const invar_ab_result *a, bool color)
{
    char headline[INVAR_AB_LINE];

    invar_ab_headline(headline, a);
    fputs(invar_term_escape(color, style_of(a->verdict)), out);
    invar_bisect_report_print_safe(out, headline);
    fprintf(out, "%s\n\n", invar_term_escape(color, INVAR_TERM_STYLE_PLAIN));
    for (int i = 0; i < INVAR_AB_SIDES; i++)
        print_side(out, &a->sides[i], capitals[i]);
    for (int i = 0; i < INVAR_AB_SIDES; i++)
        print_gate(out, &a->aa_checks[i], capitals[i]);
    if (a->log[0]) {
        fputs("log       ", out);
        invar_bisect_report_print_safe(out, a->log);
        fputc('\n', out);
    }
    print_facts(out, a);
    if (a->n_pairs > 0 && a->pairs[a->n_pairs - 1].compared)
        print_pairs(out, a);
    print_place(out, a);
    print_effects(out, a);
    print_cost(out, a);
    if (ferror(out))
        return INVAR_FAIL(INVAR_E_IO, errno, "cannot write the answer: %s", strerror(errno));
    return INVAR_OK;
}
