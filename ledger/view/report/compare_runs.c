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

static json_t *layer_of(int64_t layer)
{
    return layer < 0 ? json_null() : json_integer(layer);
}

static json_t *bits_of(bool there, double value)
{
    char text[INVAR_REPORT_BITS_DIGITS + 1];
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    invar_report_bits(text, bits);
    return there ? json_string(text) : json_null();
}

static json_t *ulp_of(const invar_diff_metric *m)
{
    char text[32]; // text, because JSON numbers are not exact above 2^53

    snprintf(text, sizeof text, "%" PRIu64 " (%s)", m->ulp, invar_diff_ulp_format(m));
    return m->ulp > 0 ? json_string(text) : json_null();
}

static invar_status add_compared(json_t *pair, const invar_diff *diff)
{
    const struct {
        const char *key;
        int64_t value;
    } members[] = {
        {"steps", diff->steps.compared},
        {"only_a", diff->steps.only_a},
        {"only_b", diff->steps.only_b},
        {"facts_equal", diff->facts.equal},
        {"facts_different", (int64_t)diff->facts.count},
        {"points_equal", diff->points.equal},
        {"points_different", (int64_t)diff->points.count},
        {"metrics_equal", diff->metrics.equal},
        {"metrics_different", (int64_t)diff->metrics.count},
        {"samples_equal", diff->samples.equal},
        {"samples_different", (int64_t)diff->samples.count},
    };
    json_t *object;

    INVAR_TRY(invar_report_member(&object, pair, "compared", json_object()));
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        INVAR_TRY(invar_report_set(object, members[i].key, json_integer(members[i].value)));
    return INVAR_OK;
}

static invar_status add_point(json_t *pair, const invar_diff *diff)
{
    const invar_diff_point *p = diff->culprit ? diff->culprit : diff->points.items;

    if (diff->points.count == 0)
        return invar_report_set(pair, "point", json_null());
    return invar_report_set(pair, "point",
                            json_pack("{s:s, s:s, s:o, s:s, s:s, s:I, s:b, s:o, s:o}", "name",
                                      p->name, "phase", p->phase, "layer", layer_of(p->layer), "op",
                                      p->op, "kind", p->kind, "inputs", (json_int_t)p->inputs,
                                      "born", p->is_origin, "a", invar_report_digest(&p->a), "b",
                                      invar_report_digest(&p->b)));
}

static invar_status add_lists(json_t *pair, const invar_diff *diff)
{
    json_t *heat, *points, *metrics;

    INVAR_TRY(invar_report_member(&heat, pair, "heat", json_array()));
    INVAR_TRY(invar_report_member(&points, pair, "points", json_array()));
    INVAR_TRY(invar_report_member(&metrics, pair, "metrics", json_array()));
    for (size_t i = 0; i < diff->groups.count; i++) {
        const invar_diff_group *g = &diff->groups.items[i];
        INVAR_TRY(invar_report_append(
            heat, json_pack("{s:s, s:o, s:I, s:I}", "phase", g->phase, "layer", layer_of(g->layer),
                            "equal", (json_int_t)g->equal, "different", (json_int_t)g->different)));
    }
    for (size_t i = 0; i < diff->points.count && i < INVAR_REPORT_NAMES; i++)
        INVAR_TRY(invar_report_append(points, json_string(diff->points.items[i].name)));
    for (size_t i = 0; i < diff->metrics.count && i < INVAR_REPORT_NAMES; i++) {
        const invar_diff_metric *m = &diff->metrics.items[i];
        INVAR_TRY(invar_report_append(
            metrics, json_pack("{s:s, s:o, s:o, s:o}", "name", m->name, "a", bits_of(m->in_a, m->a),
                               "b", bits_of(m->in_b, m->b), "ulp", ulp_of(m))));
    }
    return INVAR_OK;
}

static invar_status add_comparison(json_t *pair, const invar_diff *diff)
{
    json_t *first = diff->diverged ? json_integer(diff->step) : json_null();
    const char *self = diff->self_contradicting_side == 'A'   ? "a"
                       : diff->self_contradicting_side == 'B' ? "b"
                                                              : NULL;

    INVAR_TRY(invar_report_set(pair, "first", first));
    INVAR_TRY(
        invar_report_set(pair, "verdict", json_string(invar_diff_verdict_name(diff->verdict))));
    INVAR_TRY(invar_report_set(pair, "self", self ? json_string(self) : json_null()));
    INVAR_TRY(invar_report_set(pair, "twins", json_boolean(diff->same_inputs)));
    INVAR_TRY(invar_report_set(pair, "same_weights", invar_tristate_json(diff->same_weights)));
    INVAR_TRY(invar_report_set(pair, "same_batch", invar_tristate_json(diff->same_batch)));
    INVAR_TRY(invar_report_set(pair, "same_rng", invar_tristate_json(diff->same_rng)));
    INVAR_TRY(invar_report_set(pair, "changes", json_integer((json_int_t)diff->changes.count)));
    INVAR_TRY(add_compared(pair, diff));
    INVAR_TRY(add_point(pair, diff));
    return add_lists(pair, diff);
}

invar_status invar_report_add_pair(json_t *pairs, const invar_report_run *runs, size_t index)
{
    const invar_report_run *a = &runs[0], *b = &runs[index];
    json_t *pair = json_pack("{s:I}", "b", (json_int_t)index);
    invar_diff *diff;

    INVAR_TRY(invar_report_append(pairs, pair));
    INVAR_TRY(invar_diff_runs(&diff, a->ledger, a->run, b->ledger, b->run));
    invar_status status = add_comparison(pair, diff);
    if (status == INVAR_OK)
        status = add_strip(pair, a, b, diff);
    invar_diff_free(diff);
    return status;
}
