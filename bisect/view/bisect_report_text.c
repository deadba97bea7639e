/*
 * bisect_report_text.c - sentences of a bisect result, shared by the text, HTML and JSON forms.
 *
 * Every function writes one bounded, printable line. Texts from repositories and ledgers are
 * escaped. Commands that the user may copy are quoted for the shell, and left out if a word has
 * characters that cannot be shown.
 *
 * SPDX-License-Identifier: Apache-2.0
 */

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/process/argv0.h"
#include "base/text.h"
#include "bisect/view/bisect_report.h"

#include "base/invar_banned.h"

/* ---- building lines -------------------------------------------------------------------------- */

const char *invar_bisect_report_safe(char *out, size_t size, const char *text)
{
    invar_text_quote(out, size, text, strlen(text));
    return out;
}

void invar_bisect_report_print_safe(FILE *out, const char *text)
{
    char safe[INVAR_PATH_SIZE + 4];

    fputs(invar_bisect_report_safe(safe, sizeof safe, text), out);
}

/* Text buffer of fixed size; a longer text is truncated. */
typedef struct text_line {
    char *text;
    size_t used, size;
} text_line;

static text_line begin_line(char *text, size_t size)
{
    *text = '\0';
    return (text_line){text, 0, size};
}

static void add_format(text_line *l, const char *format, ...) INVAR_PRINTF(2, 3);

static void add_format(text_line *l, const char *format, ...)
{
    size_t room = l->size - l->used;
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(l->text + l->used, room, format, args);
    va_end(args);
    l->used += (size_t)length < room ? (size_t)length : room - 1;
}

static void add_safe(text_line *l, const char *text)
{
    char safe[INVAR_REPO_TEXT + 4];

    add_format(l, "%s", invar_bisect_report_safe(safe, sizeof safe, text));
}

static void add_commit(text_line *l, const char *id)
{
    char safe[INVAR_BISECT_REPORT_SHORT + 4];

    invar_text_quote(safe, sizeof safe, id, strnlen(id, INVAR_BISECT_REPORT_SHORT));
    add_format(l, "%s", safe);
}

/* Adds "1 commit" or "2 commits". */
static void add_count(text_line *l, int64_t count, const char *what)
{
    add_format(l, "%" PRId64 " %s%s", count, what, invar_text_plural(count));
}

void invar_bisect_report_time(char out[INVAR_BISECT_REPORT_TIME], int64_t seconds)
{
    time_t when = (time_t)seconds;
    struct tm parts;

    if (!gmtime_r(&when, &parts) ||
        strftime(out, INVAR_BISECT_REPORT_TIME, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        snprintf(out, INVAR_BISECT_REPORT_TIME, "?");
}

/* Formats a duration as "0.42 s", "3 min 5 s" or "2 h 7 min". */
static void format_span(char out[INVAR_BISECT_REPORT_TIME], double seconds)
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

/*
 * Sentences of a verdict. @g, @b and @m stand for the good end, the bad end and the merge base, @w
 * for the commit that the verdict is about, @f for the culprit, and @c, @s and @t for the numbers
 * of changes, suspects and trials.
 */
typedef struct verdict_sentences {
    const char *name, *headline, *advice;
} verdict_sentences;

static const verdict_sentences sentences[] = {
    [INVAR_BISECT_FOUND] = {"found", "@f", ""},
    [INVAR_BISECT_CHANGES] = {"changes", "@c of the value between @g and @b", ""},
    [INVAR_BISECT_SUSPECTS] =
        {"suspects", "it is one of @s; those between cannot be tested",
         "their builds or runs fail: see build.log and run.log below the folder of the workshop, "
         "or give a --build that works for them, and run the same command again"},
    [INVAR_BISECT_NONDETERMINISTIC] =
        {"nondeterministic", "@w gave two answers to the same question",
         "a commit whose answers vary has no culprit; compare its two runs with invar diff, and "
         "remove the cause first"},
    [INVAR_BISECT_SAME_ENDS] =
        {"same-ends", "the ends @g and @b give the same value",
         "nothing changed between them for this question; ask for more steps (--until), another "
         "recipe or another --metric"},
    [INVAR_BISECT_WRONG_END] =
        {"wrong-end", "@w is not what it was said to be",
         "check that --good and --bad are not the wrong way round and that the question is the "
         "right one"},
    [INVAR_BISECT_FIXED] =
        {"fixed", "the good end @g has a fix that the bad end @b lacks",
         "the good end is no ancestor of the bad one, and their merge base @m is bad already: swap "
         "--good and --bad to look for the fix"},
    [INVAR_BISECT_UNTESTABLE] =
        {"untestable", "@w cannot be built or run",
         "choose an end that builds and runs, or give a --build that works for it; --run is for "
         "what is not built as Invar is"},
    [INVAR_BISECT_STOPPED] = {
        "stopped", "after @t",
        "what was found out is kept: run the same command again to continue"}};

static const verdict_sentences without_changes = {
    "changes", "@c of the value between @g and @b",
    "every commit that could be tested gave the same value as its parents"};

/* The run succeeded, but its ledger does not decide the criterion. */
static const verdict_sentences undecided = {
    "untestable", "@w ran, but its ledger does not answer the question",
    "check the names in the question; with --run, that the command writes its ledger to "
    "$INVAR_RUN/ledger.db"};

static const verdict_sentences *sentences_of(const invar_bisect_result *a)
{
    if (a->verdict == INVAR_BISECT_CHANGES && a->n_changes == 0)
        return &without_changes;
    return a->verdict == INVAR_BISECT_UNTESTABLE && strncmp(a->reason, "ledger:", 7) == 0
               ? &undecided
               : &sentences[a->verdict];
}

const char *invar_bisect_report_verdict(invar_bisect_verdict verdict)
{
    return sentences[verdict].name;
}

/* Adds the commit that the verdict is about: "the good end 0123456789ab". */
static void add_verdict_commit(text_line *l, const invar_bisect_result *a)
{
    const char *id = a->commit;

    if (*id == '\0')
        add_format(l, "an end");
    else if (strcmp(id, a->good) == 0)
        add_format(l, "the good end ");
    else if (strcmp(id, a->bad) == 0)
        add_format(l, "the bad end ");
    else if (strcmp(id, a->base) == 0)
        add_format(l, "the merge base ");
    else
        add_format(l, "commit ");
    add_commit(l, id);
}

static void add_found(text_line *l, const invar_bisect_result *a)
{
    if (a->n_changes == 0)
        return;
    add_commit(l, a->changes->commit.id);
    add_format(l, " ");
    add_safe(l, a->changes->commit.subject);
}

static void add_sentence(text_line *l, const char *text, const invar_bisect_result *a)
{
    for (size_t bytes; *text; text += bytes) {
        bytes = *text == '@' ? 2 : strcspn(text, "@");
        switch (*text == '@' ? text[1] : 0) {
        case 'g': add_commit(l, a->good); break;
        case 'b': add_commit(l, a->bad); break;
        case 'm': add_commit(l, a->base); break;
        case 'w': add_verdict_commit(l, a); break;
        case 'f': add_found(l, a); break;
        case 'c': add_count(l, (int64_t)a->n_changes, "change"); break;
        case 's': add_count(l, a->all_suspects, "commit"); break;
        case 't': add_count(l, (int64_t)a->n_trials, "trial"); break;
        default: add_format(l, "%.*s", (int)bytes, text);
        }
    }
}

void invar_bisect_report_headline(char out[INVAR_BISECT_REPORT_LINE], const invar_bisect_result *a)
{
    text_line l = begin_line(out, INVAR_BISECT_REPORT_LINE);

    add_format(&l, "%s: ", invar_bisect_report_verdict(a->verdict));
    add_sentence(&l, sentences_of(a)->headline, a);
}

void invar_bisect_report_advice(char out[INVAR_BISECT_REPORT_LINE], const invar_bisect_result *a)
{
    text_line l = begin_line(out, INVAR_BISECT_REPORT_LINE);

    add_sentence(&l, sentences_of(a)->advice, a);
}

/* ---- divergence and changes ------------------------------------------------------------------ */

void invar_bisect_report_divergence(char out[INVAR_BISECT_REPORT_LINE], const invar_divergence *p)
{
    bool tensor = *p->before != '\0';
    text_line l = begin_line(out, INVAR_BISECT_REPORT_LINE);

    if (!p->known)
        return;
    if (p->step < 0)
        add_format(&l, "before the first step");
    else
        add_format(&l, "step %" PRId64, p->step);
    if (*p->point) {
        add_format(&l, tensor ? ", point " : ", ");
        add_safe(&l, p->point);
    }
    if (*p->phase) {
        add_format(&l, " (");
        add_safe(&l, p->phase);
        if (p->layer >= 0)
            add_format(&l, ", layer %" PRId64, p->layer);
        add_format(&l, ")");
    }
    if (*p->op) {
        add_format(&l, tensor ? ", op " : ": ");
        add_safe(&l, p->op);
    }
    if (!tensor && *p->kind) {
        add_format(&l, ", not a tensor but ");
        add_safe(&l, p->kind);
    }
}

void invar_bisect_report_points(char out[INVAR_BISECT_REPORT_LINE], const invar_divergence *p)
{
    text_line l = begin_line(out, INVAR_BISECT_REPORT_LINE);

    add_count(&l, p->points_different, "point");
    add_format(&l, " differ%s, %" PRId64 " equal at that step; %s",
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
    text_line l = begin_line(out, INVAR_BISECT_REPORT_LINE);

    if (change->merge)
        add_format(&l, "a merge whose value none of its parents has");
    if (change->depth > 0)
        add_format(&l, "%sinside a merge", l.used ? ", " : "");
    if (change->n_untested_before > 0) {
        add_format(&l, "%sor one of ", l.used ? ", " : "");
        add_count(&l, change->n_untested_before, "commit");
        add_format(&l, " before it that cannot be tested");
    }
}

void invar_bisect_report_cost(char out[INVAR_BISECT_REPORT_LINE], const invar_bisect_result *a)
{
    const invar_bisect_cost *c = &a->cost;
    char build[INVAR_BISECT_REPORT_TIME], run[INVAR_BISECT_REPORT_TIME],
        wall[INVAR_BISECT_REPORT_TIME];
    text_line l = begin_line(out, INVAR_BISECT_REPORT_LINE);

    format_span(build, c->build_s);
    format_span(run, c->run_s);
    format_span(wall, c->wall_s);
    add_count(&l, (int64_t)a->n_trials, "trial");
    add_format(&l, ", %" PRId64 " of the search", c->search_trials);
    if (c->built) {
        add_format(&l, "; ");
        add_count(&l, c->built, "build");
        add_format(&l, " in %s", build);
    }
    if (c->ran) {
        add_format(&l, "; ");
        add_count(&l, c->ran, "run");
        add_format(&l, " in %s", run);
    }
    if (c->from_tree)
        add_format(&l, "; %" PRId64 " from the cache", c->from_tree);
    if (c->from_program)
        add_format(&l, "; %" PRId64 " whose program was equal", c->from_program);
    if (c->skipped)
        add_format(&l, "; %" PRId64 " not testable", c->skipped);
    add_format(&l, "; %s in all", wall);
}

/* ---- next commands --------------------------------------------------------------------------- */

/*
 * Adds a word quoted for a shell. Returns false if it has characters that a message must not
 * contain.
 */
static bool add_word(text_line *l, const char *word)
{
    static const char usual[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@:=,";
    bool bare = *word && word[strspn(word, usual)] == '\0';

    for (size_t i = 0, left = strlen(word), bytes; i < left; i += bytes)
        if ((bytes = invar_text_char(word + i, left - i)) == 0)
            return false;
    add_format(l, bare ? " " : " '");
    for (; *word; word++)
        add_format(l, *word == '\'' ? "'\\''" : "%c", *word);
    add_format(l, bare ? "" : "'");
    return true;
}

/* Adds the command "build/invar diff A B". */
static bool add_diff_command(text_line *l, const invar_divergence *p)
{
    if (!p->known || *p->ledger_before == '\0' || *p->ledger_after == '\0')
        return false;
    add_format(l, "%s diff", invar_argv0());
    return add_word(l, p->ledger_before) && add_word(l, p->ledger_after);
}

static bool add_show_command(text_line *l, const invar_bisect_result *a)
{
    const char *id = a->n_changes ? a->changes->commit.id : "";

    if (a->verdict == INVAR_BISECT_SUSPECTS && a->n_suspects)
        id = a->suspects[a->n_suspects - 1].id;
    if (*id == '\0')
        return false;
    add_format(l, *a->repo ? "git -C" : "git"); // the user may be in any folder
    if (*a->repo && !add_word(l, a->repo))
        return false;
    add_format(l, " show");
    return add_word(l, id);
}

bool invar_bisect_report_next(char out[INVAR_BISECT_REPORT_COMMAND], const invar_bisect_result *a,
                              int index)
{
    text_line l = begin_line(out, INVAR_BISECT_REPORT_COMMAND);
    const bool shown = add_show_command(&l, a);

    if (shown && index == 0)
        return true;
    l = begin_line(out, INVAR_BISECT_REPORT_COMMAND);
    if (index != (int)shown || a->verdict != INVAR_BISECT_CHANGES)
        return index == (int)shown && add_diff_command(&l, &a->divergence);
    return a->n_changes > 0 && add_diff_command(&l, &a->changes->divergence);
}
