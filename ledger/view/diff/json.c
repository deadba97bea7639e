/*
 * json.c - writes a complete diff as one JSON object, for programs.
 *
 * Doubles are accompanied by their bits, because JSON has no NaN and readers round. Digests and
 * bits are hexadecimal text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json/result.h"
#include "ledger/view/diff/internal.h"

#include "base/invar_banned.h"

#define SIDE                                                                                       \
    "{ledger text, run int, uuid text, name text, kind text, segments int, first_step int,"        \
    " last_step int, segment int, root hex32, chain hex32, digests bool}"
#define COMPARED                                                                                   \
    "{first_step int, last_step int, steps int, only_a int, only_b int, lookups int, points int,"  \
    " metrics int, samples int}"
#define FACT "{scope text, key text, a text?, b text?}"
#define CHANGE "{point text, what text, a text?, b text?}"
#define FUSED "{a_differs bool, b_differs bool, parts_equal bool}?"
#define POINT                                                                                      \
    "{name text, phase text, layer int?, op text, kind text, level int, dtype text, shape text,"   \
    " ord int, inputs int, born bool, bridged bool, fused " FUSED ", a hex32, b hex32}"
#define GROUP "{phase text, layer int?, equal int, different int}"
#define METRIC                                                                                     \
    "{name text, a real?, b real?, a_bits hex16?, b_bits hex16?,"                                  \
    " ulp text? (distance as a decimal number; null: not comparable),"                             \
    " ulp_of fp32|fp64? (the format whose numbers are counted: fp32 if both values are fp32"       \
    " numbers)}"
#define SAMPLE "{index int, in_a bool, in_b bool, prompt_a int?, prompt_b int?, differ [text]}"

const char invar_diff_members[] =
    "{verdict text, headline text, self text?, twins bool, a " SIDE ", b " SIDE
    ", compared " COMPARED ", step int, roots_differ bool, evaluations bool, same_batch bool?,"
    " same_rng bool?, same_weights bool?, facts [" FACT "], facts_equal int, changes [" CHANGE "],"
    " points_a int, points_b int, culprit " POINT "?, points [" POINT "], points_equal int,"
    " groups [" GROUP "], metrics [" METRIC "], metrics_equal int, samples [" SAMPLE "],"
    " samples_equal int, replies_different int, replies_equal int}";

static json_t *bits_json(bool present, double value)
{
    uint64_t word;
    char hex[17];

    memcpy(&word, &value, sizeof word);
    snprintf(hex, sizeof hex, "%016" PRIx64, word);
    return present ? json_string(hex) : json_null();
}

static json_t *side_json(const invar_diff_side *s)
{
    return INVAR_RESULT(SIDE, s->ledger, s->run, s->uuid, s->name, s->kind, s->segments,
                        s->first_step, s->last_step, s->seg, &s->root, &s->chain, s->digests);
}

json_t *invar_tristate_json(invar_tristate answer)
{
    return answer == INVAR_TRISTATE_UNKNOWN ? json_null()
                                            : json_boolean(answer == INVAR_TRISTATE_YES);
}

static json_t *fact_json(const void *item)
{
    const invar_diff_fact *f = item;

    return INVAR_RESULT(FACT, f->scope, f->key, f->a, f->b);
}

static json_t *change_json(const void *item)
{
    const invar_diff_manifest_change *c = item;

    return INVAR_RESULT(CHANGE, c->point, c->what, c->a, c->b);
}

static json_t *point_json(const void *item)
{
    const invar_diff_point *p = item;
    json_t *fused =
        p->fused ? INVAR_RESULT(FUSED, p->fused_mismatch_a, p->fused_mismatch_b, p->parts_equal)
                 : json_null();

    return INVAR_RESULT(POINT, p->name, p->phase, p->layer, p->op, p->kind, p->level, p->dtype,
                        p->shape, p->ord, p->inputs, p->is_origin, p->inputs_differ, fused, &p->a,
                        &p->b);
}

static json_t *group_json(const void *item)
{
    const invar_diff_group *g = item;

    return INVAR_RESULT(GROUP, g->phase, g->layer, g->equal, g->different);
}

static json_t *metric_json(const void *item)
{
    const invar_diff_metric *m = item;
    char ulp[24];

    snprintf(ulp, sizeof ulp, "%" PRIu64, m->ulp); // text, because readers may have only doubles
    return INVAR_RESULT(METRIC, m->name, m->in_a ? m->a : NAN, m->in_b ? m->b : NAN,
                        bits_json(m->in_a, m->a), bits_json(m->in_b, m->b), m->ulp ? ulp : NULL,
                        m->ulp ? invar_diff_ulp_format(m) : NULL);
}

static json_t *sample_json(const void *item)
{
    const invar_diff_sample *s = item;
    json_t *fields = json_array();

    for (int bit = 0; fields && bit < INVAR_DIFF_SAMPLE_FIELDS; bit++)
        if (s->fields & 1U << bit)
            (void)json_array_append_new(fields, json_string(invar_diff_sample_field(bit)));
    return INVAR_RESULT(SAMPLE, s->idx, s->in_a, s->in_b,
                        s->in_a ? json_integer(s->prompt_a) : json_null(),
                        s->in_b ? json_integer(s->prompt_b) : json_null(), fields);
}

json_t *invar_diff_object(const invar_diff *d)
{
    char headline[INVAR_DIFF_HEADLINE_SIZE], self[] = {d->self_contradicting_side, 0};

    json_t *compared = INVAR_RESULT(
        COMPARED, d->steps.first, d->steps.last, d->steps.compared, d->steps.only_a,
        d->steps.only_b, d->steps.lookups, d->points.equal + (int64_t)d->points.count,
        d->metrics.equal + (int64_t)d->metrics.count, d->samples.equal + (int64_t)d->samples.count);

    invar_diff_headline(headline, d);
    return INVAR_RESULT(
        invar_diff_members, invar_diff_verdict_name(d->verdict), headline, self[0] ? self : NULL,
        d->same_inputs, side_json(&d->a), side_json(&d->b), compared, d->step, d->roots_differ,
        d->evaluations, invar_tristate_json(d->same_batch), invar_tristate_json(d->same_rng),
        invar_tristate_json(d->same_weights),
        invar_result_list(d->facts.items, d->facts.count, sizeof *d->facts.items, fact_json),
        d->facts.equal,
        invar_result_list(d->changes.items, d->changes.count, sizeof *d->changes.items,
                          change_json),
        d->a.points, d->b.points, d->culprit ? point_json(d->culprit) : json_null(),
        invar_result_list(d->points.items, d->points.count, sizeof *d->points.items, point_json),
        d->points.equal,
        invar_result_list(d->groups.items, d->groups.count, sizeof *d->groups.items, group_json),
        invar_result_list(d->metrics.items, d->metrics.count, sizeof *d->metrics.items,
                          metric_json),
        d->metrics.equal,
        invar_result_list(d->samples.items, d->samples.count, sizeof *d->samples.items,
                          sample_json),
        d->samples.equal, d->replies.different, d->replies.equal);
}

invar_status invar_diff_json(FILE *stream, const invar_diff *diff)
{
    json_t *object = invar_diff_object(diff);
    int failed;

    if (!object)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the diff as JSON");
    failed = json_dumpf(object, stream, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(object);
    if (failed || fputc('\n', stream) == EOF || fflush(stream) != 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "cannot write the diff: %s", strerror(errno));
    return INVAR_OK;
}
