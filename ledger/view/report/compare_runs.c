/*
 * compare_runs.c - compares a run of the report with the first run.
 *
 * invar_diff_runs finds the first divergent step and its differences. In addition, the strip shows
 * the whole range of steps coarsely: for every stretch of steps whether all are equal, all differ,
 * or only one side has them. The data:
 *
 *   {b: index of the run, verdict, self: "a" | "b" | null, twins, first: step | null,
 *    strip: [[from, to, state]]   state: equal different records mixed a b
 *    compared: {steps, only_a, only_b, X_equal, X_different} for X = facts points metrics samples
 *    same_weights, same_batch, same_rng: true | false | null (not recorded)
 *    changes: differences between the manifests
 *    point: {name, phase, layer, op, kind, inputs, born, a, b} | null      the first that differs
 *    heat: [{phase, layer, equal, different}], points: [name],
 *    metrics: [{name, a: bits | null, b: bits | null, ulp: text | null}]}
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json/result.h"
#include "ledger/internal.h"
#include "ledger/view/diff/internal.h"
#include "ledger/view/report/internal.h"

#include "base/invar_banned.h"

enum { STRETCHES = 1000 };

/* ---- the strip ------------------------------------------------------------------------------- */

typedef struct strip {
    json_t *out;
    uint64_t first, width;      /* first step of the strip, and steps of a stretch */
    uint64_t stretch;           /* index of the current stretch */
    int64_t from, to;           /* steps of the current part: stretches of one state */
    const char *state;          /* state of the current part; NULL if there is none yet */
    const char *here;           /* state of the current stretch; NULL if there is none yet */
    int64_t here_from, here_to; /* steps of the current stretch */
} strip;

static invar_status finish_part(strip *s)
{
    if (!s->state)
        return INVAR_OK;
    return invar_report_append(
        s->out, json_pack("[I, I, s]", (json_int_t)s->from, (json_int_t)s->to, s->state));
}

/* Adds the current stretch to the current part, or begins a new part if their states differ. */
static invar_status finish_stretch(strip *s)
{
    if (!s->here)
        return INVAR_OK;
    if (!s->state || strcmp(s->state, s->here) != 0) {
        INVAR_TRY(finish_part(s));
        s->state = s->here;
        s->from = s->here_from;
    }
    s->to = s->here_to;
    return INVAR_OK;
}

static invar_status add_step(strip *s, int64_t step, const char *state)
{
    uint64_t stretch = ((uint64_t)step - s->first) / s->width;

    if (!s->here || stretch != s->stretch) {
        INVAR_TRY(finish_stretch(s));
        s->here = state;
        s->here_from = step;
    } else if (strcmp(s->here, state) != 0) {
        s->here = "mixed";
    }
    s->stretch = stretch;
    s->here_to = step;
    return INVAR_OK;
}

static const char *state_of(const invar_diff_join *join)
{
    if (!join->in_a || !join->in_b)
        return join->in_a ? "a" : "b";
    if (!invar_diff_join_same(join, 1))
        return "different";
    return invar_diff_join_same(join, 2) ? "equal" : "records";
}

static invar_status read_strip(strip *s, invar_diff_join *join)
{
    invar_status status = INVAR_OK;

    while (invar_diff_join_next(&status, join))
        status = add_step(s, invar_sql_int(join->in_a ? join->a : join->b, 0), state_of(join));
    INVAR_TRY(status);
    INVAR_TRY(finish_stretch(s));
    return finish_part(s);
}

static invar_status add_strip(json_t *pair, const invar_report_run *a, const invar_report_run *b,
                              const invar_diff *diff)
{
    static const char steps[] = "SELECT s.step, s.root, s.content FROM step s WHERE s.run = ?1 AND"
                                " s.seg = (SELECT max(t.seg) FROM step t WHERE t.run = s.run"
                                "          AND t.step = s.step) ORDER BY s.step";
    const invar_diff_source of_a = {.sql = a->ledger->sql, .run = a->run};
    const invar_diff_source of_b = {.sql = b->ledger->sql, .run = b->run};
    int64_t first = diff->a.first_step, last = diff->a.last_step;
    strip s = {.out = json_array()};
    invar_diff_join join;

    INVAR_TRY(invar_report_set(pair, "strip", s.out));
    if (first < 0 || (diff->b.first_step >= 0 && diff->b.first_step < first))
        first = diff->b.first_step;
    if (diff->b.last_step > last)
        last = diff->b.last_step;
    s.first = (uint64_t)first;
    s.width = ((uint64_t)last - s.first) / STRETCHES + 1;
    invar_status status = invar_diff_join_open(&join, &of_a, &of_b, steps, 1);
    if (status == INVAR_OK)
        status = read_strip(&s, &join);
    return invar_diff_join_end(&join, status);
}

/* ---- what the diff says ---------------------------------------------------------------------- */

#define COMPARED                                                                                   \
    "{steps int, only_a int, only_b int, facts_equal int, facts_different int, points_equal int,"  \
    " points_different int, metrics_equal int, metrics_different int, samples_equal int,"          \
    " samples_different int}"
#define POINT                                                                                      \
    "{name text, phase text, layer int?, op text, kind text, inputs int, born bool, a hex32,"      \
    " b hex32}"
#define GROUP "{phase text, layer int?, equal int, different int}"
#define METRIC "{name text, a hex16?, b hex16?, ulp text?}"
#define PAIR                                                                                       \
    "{b int, first int?, verdict text, self text?, twins bool, same_weights bool?,"                \
    " same_batch bool?, same_rng bool?, changes int, compared " COMPARED ", point " POINT          \
    "?, heat [" GROUP "], points [text], metrics [" METRIC "]}"

static json_t *bits_of(bool there, double value)
{
    char text[INVAR_REPORT_BITS_DIGITS + 1];
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    invar_report_bits(text, bits);
    return there ? json_string(text) : json_null();
}

static json_t *group_json(const void *item)
{
    const invar_diff_group *g = item;

    return INVAR_RESULT(GROUP, g->phase, g->layer, g->equal, g->different);
}

static json_t *name_json(const void *item)
{
    return json_string(((const invar_diff_point *)item)->name);
}

static json_t *metric_json(const void *item)
{
    const invar_diff_metric *m = item;
    char ulp[32]; // text, because JSON numbers are not exact above 2^53

    snprintf(ulp, sizeof ulp, "%" PRIu64 " (%s)", m->ulp, invar_diff_ulp_format(m));
    return INVAR_RESULT(METRIC, m->name, bits_of(m->in_a, m->a), bits_of(m->in_b, m->b),
                        m->ulp > 0 ? ulp : NULL);
}

static size_t shown(size_t count)
{
    return count < INVAR_REPORT_NAMES ? count : INVAR_REPORT_NAMES;
}

static json_t *pair_json(const invar_diff *d, size_t index)
{
    const invar_diff_point *p = d->culprit ? d->culprit : d->points.items;
    const char *self = d->self_contradicting_side == 'A'   ? "a"
                       : d->self_contradicting_side == 'B' ? "b"
                                                           : NULL;

    return INVAR_RESULT(
        PAIR, index, d->diverged ? json_integer(d->step) : json_null(),
        invar_diff_verdict_name(d->verdict), self, d->same_inputs,
        invar_tristate_json(d->same_weights), invar_tristate_json(d->same_batch),
        invar_tristate_json(d->same_rng), d->changes.count,
        INVAR_RESULT(COMPARED, d->steps.compared, d->steps.only_a, d->steps.only_b, d->facts.equal,
                     d->facts.count, d->points.equal, d->points.count, d->metrics.equal,
                     d->metrics.count, d->samples.equal, d->samples.count),
        d->points.count ? INVAR_RESULT(POINT, p->name, p->phase, p->layer, p->op, p->kind,
                                       p->inputs, p->is_origin, &p->a, &p->b)
                        : json_null(),
        invar_result_list(d->groups.items, d->groups.count, sizeof *d->groups.items, group_json),
        invar_result_list(d->points.items, shown(d->points.count), sizeof *d->points.items,
                          name_json),
        invar_result_list(d->metrics.items, shown(d->metrics.count), sizeof *d->metrics.items,
                          metric_json));
}

invar_status invar_report_add_pair(json_t *pairs, const invar_report_run *runs, size_t index)
{
    const invar_report_run *a = &runs[0], *b = &runs[index];
    invar_diff *diff;

    INVAR_TRY(invar_diff_runs(&diff, a->ledger, a->run, b->ledger, b->run));
    json_t *pair = pair_json(diff, index);
    invar_status status = invar_report_append(pairs, pair);
    if (status == INVAR_OK)
        status = add_strip(pair, a, b, diff);
    invar_diff_free(diff);
    return status;
}
