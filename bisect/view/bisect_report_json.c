/*
 * bisect_report_json.c - converts the complete result of a bisect to one JSON object.
 *
 * Names of members are a documented format (cli/schema/bisect.json): they keep older words than the
 * fields of the structs. json_pack passes a NULL of any member on to the result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <jansson.h>
#include <stdio.h>

#include "bisect/view/bisect_report.h"
#include "bisect/view/bisect_report_text.h"
#include "bisect/view/json.h"

#include "base/invar_banned.h"

static json_t *integer_or_null(int64_t value)
{
    return value < 0 ? json_null() : json_integer(value);
}

/* ---- members --------------------------------------------------------------------------------- */

static json_t *file_json(const void *item)
{
    const invar_repo_file *f = item;
    char status[] = {f->status, 0};

    return json_pack("{s:o, s:o, s:o, s:o}", "path", invar_view_text(f->path), "status",
                     invar_view_text(status), "added", integer_or_null(f->added), "removed",
                     integer_or_null(f->removed));
}

static json_t *parent(const void *item)
{
    return invar_view_text(item);
}

static json_t *commit(const void *item)
{
    const invar_repo_commit *c = item;
    size_t parents = c->n_parents < INVAR_REPO_PARENTS ? c->n_parents : INVAR_REPO_PARENTS;
    char when[INVAR_BISECT_REPORT_TIME];

    invar_bisect_report_time(when, c->when);
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:I, s:s, s:I, s:I, s:I, s:o}", "commit",
                     invar_view_text(c->id), "tree", invar_view_text(c->tree), "parents",
                     invar_view_list(c->parents, parents, sizeof *c->parents, parent), "author",
                     invar_view_text(c->author), "subject", invar_view_text(c->subject), "time",
                     (json_int_t)c->when, "date", when, "files_changed", (json_int_t)c->files,
                     "added", (json_int_t)c->added, "removed", (json_int_t)c->removed, "files",
                     invar_view_list(c->shown, c->n_shown, sizeof *c->shown, file_json));
}

/* Converts a change: the commit, extended by what it changed. */
static json_t *change_json(const void *item)
{
    const invar_bisect_change *c = item;
    json_t *object = commit(&c->commit);
    json_t *more =
        json_pack("{s:o, s:o, s:o, s:i, s:b, s:I, s:o}", "parent",
                  invar_view_text_or_null(c->parent), "before", invar_view_text(c->before), "after",
                  invar_view_text(c->after), "depth", c->depth, "merge", c->merge, "between",
                  (json_int_t)c->n_untested_before, "place", invar_view_divergence(&c->divergence));
    int failed = !object || !more || json_object_update(object, more) != 0;

    json_decref(more);
    if (!failed)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *trial_json(const void *item)
{
    const invar_bisect_trial *t = item;

    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o}", "commit",
                     invar_view_text(t->commit), "subject", invar_view_text_or_null(t->subject),
                     "role", invar_view_text(t->role), "verdict", invar_view_text(t->verdict),
                     "value", invar_view_text_or_null(t->value), "via", invar_view_text(t->source),
                     "parted", integer_or_null(t->diverged_at), "position",
                     integer_or_null(t->position > 0 ? t->position : -1), "exit_code", t->exit_code,
                     "build_s", invar_view_real(t->build_s), "run_s", invar_view_real(t->run_s),
                     "ledger", invar_view_text_or_null(t->ledger), "story",
                     invar_view_text_or_null(t->failure_reason));
}

static json_t *cost_json(const invar_bisect_result *a)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "trials",
                     (json_int_t)a->n_trials, "search_trials", (json_int_t)a->search_trials,
                     "built", (json_int_t)a->built, "from_tree", (json_int_t)a->from_tree, "ran",
                     (json_int_t)a->ran, "from_program", (json_int_t)a->from_program, "skipped",
                     (json_int_t)a->skipped, "build_s", invar_view_real(a->build_s), "run_s",
                     invar_view_real(a->run_s), "wall_s", invar_view_real(a->wall_s));
}

/* ---- the object ------------------------------------------------------------------------------ */

json_t *invar_bisect_report_object(const invar_bisect_result *a)
{
    bool found = a->verdict == INVAR_BISECT_FOUND && a->n_changes > 0;
    char headline[INVAR_BISECT_REPORT_LINE], advice[INVAR_BISECT_REPORT_LINE];

    invar_bisect_report_headline(headline, a);
    invar_bisect_report_advice(advice, a);
    return json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:b, s:o, s:o, s:I, s:o, s:o, s:I, s:b, s:b, s:o, s:o, s:o, s:o,"
        " s:o, s:o, s:I, s:o, s:o, s:o}",
        "verdict", invar_bisect_report_verdict(a->verdict), "headline", headline, "advice",
        invar_view_text_or_null(advice), "culprit", found ? change_json(a->changes) : json_null(),
        "patch", a->patch && a->patch[0] ? json_string(a->patch) : json_null(), "patch_cut",
        a->patch_cut, "changes",
        invar_view_list(a->changes, a->n_changes, sizeof *a->changes, change_json), "suspects",
        invar_view_list(a->suspects, a->n_suspects, sizeof *a->suspects, commit), "all_suspects",
        (json_int_t)a->all_suspects, "place", invar_view_divergence(&a->divergence), "trials",
        invar_view_list(a->trials, a->n_trials, sizeof *a->trials, trial_json), "search_trials",
        (json_int_t)a->search_trials, "confirmed", a->confirmed, "third", a->has_third_value,
        "question", invar_view_text(a->question), "good", invar_view_text(a->good), "bad",
        invar_view_text(a->bad), "base", invar_view_text_or_null(a->base), "who",
        invar_view_text_or_null(a->commit), "story", invar_view_text_or_null(a->reason), "range",
        (json_int_t)a->range, "first_parted", integer_or_null(a->first_diverging_step), "cost",
        cost_json(a), "work",
        json_pack("{s:o, s:o}", "id", invar_view_text(a->id), "folder",
                  invar_view_text(a->folder)));
}

invar_status invar_bisect_report_json(FILE *out, const invar_bisect_result *result)
{
    return invar_view_write(out, invar_bisect_report_object(result));
}
