/*
 * bisect_report_text.c - how an answer says things, whatever the form it takes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/view/bisect_report_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/process/argv0.h"
#include "base/text.h"
#include "bisect/view/bisect_report.h"

#include "base/invar_banned.h"

/* ---- pieces ---------------------------------------------------------------------------------- */

const char *invar_bisect_report_safe(char *out, size_t size, const char *text)
{
    invar_text_quote(out, size, text, strlen(text));
    return out;
}

/* Text that ends where its buffer does. */
typedef struct line {
    char *text;
    size_t used, size;
} line;

static line begin(char *text, size_t size)
{
    *text = '\0';
    return (line){text, 0, size};
}

static void line_add(line *l, const char *format, ...) INVAR_PRINTF(2, 3);

static void line_add(line *l, const char *format, ...)
{
    size_t room = l->size - l->used;
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(l->text + l->used, room, format, args);
    va_end(args);
    l->used += (size_t)length < room ? (size_t)length : room - 1;
}

static void add_safe(line *l, const char *text)
{
    char safe[INVAR_REPO_TEXT + 4];

    line_add(l, "%s", invar_bisect_report_safe(safe, sizeof safe, text));
}

static void add_commit(line *l, const char *id)
{
    char safe[INVAR_BISECT_REPORT_SHORT + 4];

    invar_text_quote(safe, sizeof safe, id, strnlen(id, INVAR_BISECT_REPORT_SHORT));
    line_add(l, "%s", safe);
}

/* "1 commit", "2 commits" */
static void add_count(line *l, int64_t count, const char *what)
{
    line_add(l, "%" PRId64 " %s%s", count, what, invar_text_plural(count));
}

void invar_bisect_report_time(char out[INVAR_BISECT_REPORT_TIME], int64_t seconds)
{
    time_t when = (time_t)seconds;
    struct tm parts;

    if (!gmtime_r(&when, &parts) ||
        strftime(out, INVAR_BISECT_REPORT_TIME, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        snprintf(out, INVAR_BISECT_REPORT_TIME, "?");
}

void invar_bisect_report_span(char out[INVAR_BISECT_REPORT_TIME], double seconds)
{
    int64_t whole = seconds > 0 && seconds < 1e15 ? (int64_t)(seconds + 0.5) : 0;

    if (whole < 60)
        snprintf(out, INVAR_BISECT_REPORT_TIME, whole < 10 ? "%.2f s" : "%.0f s",
                 seconds > 0 && seconds < 60 ? seconds : 0.0);
    else if (whole < 3600)
        snprintf(out, INVAR_BISECT_REPORT_TIME, "%" PRId64 " min %" PRId64 " s", whole / 60,
                 whole % 60);
    else
        snprintf(out, INVAR_BISECT_REPORT_TIME, "%" PRId64 " h %" PRId64 " min", whole / 3600,
                 whole / 60 % 60);
}

/* ---- the verdict ----------------------------------------------------------------------------- */

const char *invar_bisect_report_verdict(invar_bisect_verdict verdict)
{
    static const char *const names[] = {
        [INVAR_BISECT_FOUND] = "found",
        [INVAR_BISECT_CHANGES] = "changes",
        [INVAR_BISECT_SUSPECTS] = "suspects",
        [INVAR_BISECT_NONDETERMINISTIC] = "nondeterministic",
        [INVAR_BISECT_SAME_ENDS] = "same-ends",
        [INVAR_BISECT_WRONG_END] = "wrong-end",
        [INVAR_BISECT_FIXED] = "fixed",
        [INVAR_BISECT_UNTESTABLE] = "untestable",
        [INVAR_BISECT_STOPPED] = "stopped",
    };

    return names[verdict];
}

/* Which of the named commits it is: "the good end 0123456789ab". */
static void add_who(line *l, const invar_bisect_result *a)
{
    const char *id = a->commit;

    if (*id == '\0')
        line_add(l, "an end");
    else if (strcmp(id, a->good) == 0)
        line_add(l, "the good end ");
    else if (strcmp(id, a->bad) == 0)
        line_add(l, "the bad end ");
    else if (strcmp(id, a->base) == 0)
        line_add(l, "the merge base ");
    else
        line_add(l, "commit ");
    add_commit(l, id);
}

static void add_ends(line *l, const invar_bisect_result *a)
{
    add_commit(l, a->good);
    line_add(l, " and ");
    add_commit(l, a->bad);
}

/* It ran, and there is nothing to ask, or not what was asked for. */
static bool ran_in_vain(const invar_bisect_result *a)
{
    return strncmp(a->reason, "ledger:", strlen("ledger:")) == 0;
}

static void add_found(line *l, const invar_bisect_result *a)
{
    if (a->n_changes == 0)
        return;
    add_commit(l, a->changes->commit.id);
    line_add(l, " ");
    add_safe(l, a->changes->commit.subject);
}

void invar_bisect_report_headline(char out[INVAR_BISECT_REPORT_LINE], const invar_bisect_result *a)
{
    line l = begin(out, INVAR_BISECT_REPORT_LINE);

    line_add(&l, "%s: ", invar_bisect_report_verdict(a->verdict));
    switch (a->verdict) {
    case INVAR_BISECT_FOUND: add_found(&l, a); break;
    case INVAR_BISECT_CHANGES:
        add_count(&l, (int64_t)a->n_changes, "change");
        line_add(&l, " of the value between ");
        add_ends(&l, a);
        break;
    case INVAR_BISECT_SUSPECTS:
        line_add(&l, "it is one of ");
        add_count(&l, a->all_suspects, "commit");
        line_add(&l, "; those between cannot be tested");
        break;
    case INVAR_BISECT_NONDETERMINISTIC:
        add_who(&l, a);
        line_add(&l, " gave two answers to the same question");
        break;
    case INVAR_BISECT_SAME_ENDS:
        line_add(&l, "the ends ");
        add_ends(&l, a);
        line_add(&l, " give the same value");
        break;
    case INVAR_BISECT_WRONG_END:
        add_who(&l, a);
        line_add(&l, " is not what it was said to be");
        break;
    case INVAR_BISECT_FIXED:
        line_add(&l, "the good end ");
        add_commit(&l, a->good);
        line_add(&l, " has a fix that the bad end ");
        add_commit(&l, a->bad);
        line_add(&l, " lacks");
        break;
    case INVAR_BISECT_UNTESTABLE:
        add_who(&l, a);
        line_add(&l, ran_in_vain(a) ? " ran, but its ledger does not answer the question"
                                    : " cannot be built or run");
        break;
    case INVAR_BISECT_STOPPED:
        line_add(&l, "after ");
        add_count(&l, (int64_t)a->n_trials, "trial");
        break;
    }
}

void invar_bisect_report_advice(char out[INVAR_BISECT_REPORT_LINE], const invar_bisect_result *a)
{
    line l = begin(out, INVAR_BISECT_REPORT_LINE);

    switch (a->verdict) {
    case INVAR_BISECT_FOUND: break;
    case INVAR_BISECT_CHANGES:
        if (a->n_changes == 0)
            line_add(&l, "every commit that could be tested gave the same value as its parents");
        break;
    case INVAR_BISECT_SUSPECTS:
        line_add(&l,
                 "their builds or runs fail: see build.log and run.log below the folder of the "
                 "workshop, or give a --build that works for them, and run the same command again");
        break;
    case INVAR_BISECT_NONDETERMINISTIC:
        line_add(
            &l, "a commit whose answers vary has no culprit; compare its two runs with invar diff, "
                "and remove the cause first");
        break;
    case INVAR_BISECT_SAME_ENDS:
        line_add(&l,
                 "nothing changed between them for this question; ask for more steps (--until), "
                 "another recipe or another --metric");
        break;
    case INVAR_BISECT_WRONG_END:
        line_add(&l,
                 "check that --good and --bad are not the wrong way round and that the question is "
                 "the right one");
        break;
    case INVAR_BISECT_FIXED:
        line_add(&l, "the good end is no ancestor of the bad one, and their merge base ");
        add_commit(&l, a->base);
        line_add(&l, " is bad already: swap --good and --bad to look for the fix");
        break;
    case INVAR_BISECT_UNTESTABLE:
        line_add(&l,
                 ran_in_vain(a)
                     ? "check the names in the question; with --run, that the command writes its "
                       "ledger to $INVAR_RUN/ledger.db"
                     : "choose an end that builds and runs, or give a --build that works for it; "
                       "--run is for what is not built as Invar is");
        break;
    case INVAR_BISECT_STOPPED:
        line_add(&l, "what was found out is kept: run the same command again to continue");
        break;
    }
}

/* ---- the place, the change ------------------------------------------------------------------- */

void invar_bisect_report_place(char out[INVAR_BISECT_REPORT_LINE], const invar_divergence *p)
{
    bool tensor = *p->before != '\0';
    line l = begin(out, INVAR_BISECT_REPORT_LINE);

    if (!p->known)
        return;
    if (p->step < 0)
        line_add(&l, "before the first step");
    else
        line_add(&l, "step %" PRId64, p->step);
    if (*p->point) {
        line_add(&l, tensor ? ", point " : ", ");
        add_safe(&l, p->point);
    }
    if (*p->phase) {
        line_add(&l, " (");
        add_safe(&l, p->phase);
        if (p->layer >= 0)
            line_add(&l, ", layer %" PRId64, p->layer);
        line_add(&l, ")");
    }
    if (*p->op) {
        line_add(&l, tensor ? ", op " : ": ");
        add_safe(&l, p->op);
    }
    if (!tensor && *p->kind) {
        line_add(&l, ", not a tensor but ");
        add_safe(&l, p->kind);
    }
}

void invar_bisect_report_points(char out[INVAR_BISECT_REPORT_LINE], const invar_divergence *p)
{
    line l = begin(out, INVAR_BISECT_REPORT_LINE);

    add_count(&l, p->points_different, "point");
    line_add(&l, " differ%s, %" PRId64 " equal at that step; %s",
             p->points_different == 1 ? "s" : "", p->points_equal,
             p->op_level ? "every op's output was recorded"
                         : "only the points of the runs were recorded");
}

const char *invar_bisect_report_confirmed(const invar_bisect_result *a)
{
    if (a->verdict != INVAR_BISECT_FOUND)
        return "";
    return a->confirmed ? "yes: the commit and its parent gave the same values again"
                        : "no: the commit and its parent were not run again";
}

const char *invar_bisect_report_third(const invar_bisect_result *a)
{
    return a->has_third_value && a->verdict != INVAR_BISECT_CHANGES
               ? "a value that is neither end's was seen, so more than one commit changes it; the "
                 "same command with --all-changes lists them all"
               : "";
}

void invar_bisect_report_remark(char out[INVAR_BISECT_REPORT_LINE],
                                const invar_bisect_change *change)
{
    line l = begin(out, INVAR_BISECT_REPORT_LINE);

    if (change->merge)
        line_add(&l, "a merge whose value none of its parents has");
    if (change->depth > 0)
        line_add(&l, "%sinside a merge", l.used ? ", " : "");
    if (change->n_untested_before > 0) {
        line_add(&l, "%sor one of ", l.used ? ", " : "");
        add_count(&l, change->n_untested_before, "commit");
        line_add(&l, " before it that cannot be tested");
    }
}

void invar_bisect_report_cost(char out[INVAR_BISECT_REPORT_LINE], const invar_bisect_result *a)
{
    char build[INVAR_BISECT_REPORT_TIME], run[INVAR_BISECT_REPORT_TIME],
        wall[INVAR_BISECT_REPORT_TIME];
    line l = begin(out, INVAR_BISECT_REPORT_LINE);

    invar_bisect_report_span(build, a->build_s);
    invar_bisect_report_span(run, a->run_s);
    invar_bisect_report_span(wall, a->wall_s);
    add_count(&l, (int64_t)a->n_trials, "trial");
    line_add(&l, ", %" PRId64 " of the search", a->search_trials);
    if (a->built) {
        line_add(&l, "; ");
        add_count(&l, a->built, "build");
        line_add(&l, " in %s", build);
    }
    if (a->ran) {
        line_add(&l, "; ");
        add_count(&l, a->ran, "run");
        line_add(&l, " in %s", run);
    }
    if (a->from_tree)
        line_add(&l, "; %" PRId64 " from the cache", a->from_tree);
    if (a->from_program)
        line_add(&l, "; %" PRId64 " whose program was equal", a->from_program);
    if (a->skipped)
        line_add(&l, "; %" PRId64 " not testable", a->skipped);
    line_add(&l, "; %s in all", wall);
}

/* ---- what to do next ------------------------------------------------------------------------- */

/* A word as a shell reads it; false: it has characters that no message shall have. */
static bool add_word(line *l, const char *word)
{
    static const char usual[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@:=,";
    bool bare = *word && word[strspn(word, usual)] == '\0';

    for (size_t i = 0, left = strlen(word), bytes; i < left; i += bytes)
        if ((bytes = invar_text_char(word + i, left - i)) == 0)
            return false;
    line_add(l, bare ? " " : " '");
    for (; *word; word++)
        line_add(l, *word == '\'' ? "'\\''" : "%c", *word);
    line_add(l, bare ? "" : "'");
    return true;
}

/* "build/invar diff A B" */
static bool add_diff(line *l, const invar_divergence *p)
{
    if (!p->known || *p->ledger_before == '\0' || *p->ledger_after == '\0')
        return false;
    line_add(l, "%s diff", invar_op_graph());
    return add_word(l, p->ledger_before) && add_word(l, p->ledger_after);
}

static bool add_show(line *l, const invar_bisect_result *a)
{
    const char *id = a->n_changes ? a->changes->commit.id : "";

    if (a->verdict == INVAR_BISECT_SUSPECTS && a->n_suspects)
        id = a->suspects[a->n_suspects - 1].id;
    if (*id == '\0')
        return false;
    line_add(l, *a->repo ? "git -C" : "git"); // the user may be anywhere
    if (*a->repo && !add_word(l, a->repo))
        return false;
    line_add(l, " show");
    return add_word(l, id);
}

bool invar_bisect_report_next(char out[INVAR_BISECT_REPORT_COMMAND], const invar_bisect_result *a,
                              int index)
{
    bool changes = a->verdict == INVAR_BISECT_CHANGES;
    int at = -1;

    for (int i = 0; i < INVAR_BISECT_REPORT_COMMANDS; i++) {
        line l = begin(out, INVAR_BISECT_REPORT_COMMAND);
        bool there = false;
        switch (i) {
        case 0: there = add_show(&l, a); break;
        case 1: there = !changes && add_diff(&l, &a->place); break;
        default: there = changes && a->n_changes && add_diff(&l, &a->changes->place);
        }
        at += there;
        if (there && at == index)
            return true;
    }
    return false;
}
