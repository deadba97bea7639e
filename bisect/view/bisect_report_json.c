/*
 * bisect_report_json.c - converts the complete result of a bisect to one JSON object.
 *
 * Names of members are a documented format: they keep older words than the fields of the structs.
 * The texts list all members with their types, for the functions below and for the JSON Schema.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "base/json/result.h"
#include "bisect/view/bisect_report.h"
#include "bisect/view/json.h"

#include "base/invar_banned.h"

#define CHANGED_FILE "{path line, status line, added int?, removed int?}"
#define COMMIT_MEMBERS                                                                             \
    "commit line, tree line, parents [line], author line, subject line, time int, date text,"      \
    " files_changed int, added int, removed int, files [" CHANGED_FILE "]"
#define COMMIT "{" COMMIT_MEMBERS "}"
#define CHANGE_MEMBERS                                                                             \
    "parent line?, before line, after line, depth int, merge bool, between int,"                   \
    " place " INVAR_VIEW_DIVERGENCE
#define CHANGE "{" COMMIT_MEMBERS ", " CHANGE_MEMBERS "}"
#define TRIAL                                                                                      \
    "{commit line, subject line?, role line, verdict line, value line?, via line, parted int?,"    \
    " position int?, exit_code int, build_s real?, run_s real?, ledger line?, story line?}"
#define COST                                                                                       \
    "{trials int, search_trials int, built int, from_tree int, ran int, from_program int,"         \
    " skipped int, build_s real?, run_s real?, wall_s real?}"
#define WORK "{id line, folder line}"

const char invar_bisect_report_members[] =
    "{verdict text, headline text, advice line?, culprit " CHANGE "?,"
    " patch text? (what the commit changes, lines as git show has them), patch_cut bool,"
    " changes [" CHANGE "], suspects [" COMMIT "], all_suspects int,"
    " place " INVAR_VIEW_DIVERGENCE ", trials [" TRIAL "], search_trials int, confirmed bool,"
    " third bool, question line, good line, bad line, base line?, who line?, story line?,"
    " range int, first_parted int?, cost " COST ", work " WORK "}"
    " (also of blame and of bisect view)";

/* ---- members --------------------------------------------------------------------------------- */

static json_t *file_json(const void *item)
{
    const invar_repo_file *f = item;
    char status[] = {f->status, 0};

    return INVAR_RESULT(CHANGED_FILE, f->path, status, f->added, f->removed);
}

static json_t *parent(const void *item)
{
    return invar_result_line(item);
}

static json_t *commit(const void *item)
{
    const invar_repo_commit *c = item;
    size_t parents = c->n_parents < INVAR_REPO_PARENTS ? c->n_parents : INVAR_REPO_PARENTS;
    char when[INVAR_BISECT_REPORT_TIME];

    invar_bisect_report_time(when, c->when);
    return INVAR_RESULT(COMMIT, c->id, c->tree,
                        invar_result_list(c->parents, parents, sizeof *c->parents, parent),
                        c->author, c->subject, c->when, when, c->files, c->added, c->removed,
                        invar_result_list(c->shown, c->n_shown, sizeof *c->shown, file_json));
}

/* Converts a change: the commit, extended by what it changed. */
static json_t *change_json(const void *item)
{
    const invar_bisect_change *c = item;
    json_t *object = commit(&c->commit);
    json_t *more =
        INVAR_RESULT("{" CHANGE_MEMBERS "}", c->parent, c->before, c->after, c->depth, c->merge,
                     c->n_untested_before, invar_view_divergence(&c->divergence));
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

    return INVAR_RESULT(TRIAL, t->commit, t->subject, t->role, t->verdict, t->value, t->source,
                        t->diverged_at, t->position > 0 ? t->position : -1, t->exit_code,
                        t->build_s, t->run_s, t->ledger, t->failure_reason);
}

/* ---- the object ------------------------------------------------------------------------------ */

json_t *invar_bisect_report_object(const invar_bisect_result *a)
{
    const invar_bisect_cost *c = &a->cost;
    bool found = a->verdict == INVAR_BISECT_FOUND && a->n_changes > 0;
    char headline[INVAR_BISECT_REPORT_LINE], advice[INVAR_BISECT_REPORT_LINE];

    invar_bisect_report_headline(headline, a);
    invar_bisect_report_advice(advice, a);
    return INVAR_RESULT(
        invar_bisect_report_members, invar_bisect_report_verdict(a->verdict), headline, advice,
        found ? change_json(a->changes) : json_null(), a->patch && a->patch[0] ? a->patch : NULL,
        a->patch_cut, invar_result_list(a->changes, a->n_changes, sizeof *a->changes, change_json),
        invar_result_list(a->suspects, a->n_suspects, sizeof *a->suspects, commit), a->all_suspects,
        invar_view_divergence(&a->divergence),
        invar_result_list(a->trials, a->n_trials, sizeof *a->trials, trial_json), c->search_trials,
        a->confirmed, a->has_third_value, a->question, a->good, a->bad, a->base, a->commit,
        a->reason, a->range, a->first_diverging_step,
        INVAR_RESULT(COST, a->n_trials, c->search_trials, c->built, c->from_tree, c->ran,
                     c->from_program, c->skipped, c->build_s, c->run_s, c->wall_s),
        INVAR_RESULT(WORK, a->id, a->folder));
}

invar_status invar_bisect_report_json(FILE *out, const invar_bisect_result *result)
{
    return invar_view_write(out, invar_bisect_report_object(result));
}
