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
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "ledger/view/diff/internal.h"

#include "base/invar_banned.h"

/* All constructors return NULL for lack of memory; json_pack passes it on, as it fails for NULL. */

static json_t *digest_json(const invar_digest *d)
{
    char hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, d);
    return json_string(hex);
}

static json_t *number_json(bool present, double value)
{
    // NaN and infinities are not JSON; the member with the bits has them
    return present && value - value == 0 ? json_real(value) : json_null();
}

static json_t *bits_json(bool present, double value)
{
    uint64_t word;
    char hex[17];

    memcpy(&word, &value, sizeof word);
    snprintf(hex, sizeof hex, "%016" PRIx64, word);
    return present ? json_string(hex) : json_null();
}

static json_t *layer(int64_t value)
{
    return value < 0 ? json_null() : json_integer(value);
}

static json_t *side_json(const invar_diff_side *s)
{
    return json_pack("{s:s, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:b}", "ledger",
                     s->ledger, "run", (json_int_t)s->run, "uuid", s->uuid, "name", s->name, "kind",
                     s->kind, "segments", (json_int_t)s->segments, "first_step",
                     (json_int_t)s->first_step, "last_step", (json_int_t)s->last_step, "segment",
                     (json_int_t)s->seg, "root", digest_json(&s->root), "chain",
                     digest_json(&s->chain), "digests", s->digests);
}

json_t *invar_tristate_json(invar_tristate answer)
{
    return answer == INVAR_TRISTATE_UNKNOWN ? json_null()
                                            : json_boolean(answer == INVAR_TRISTATE_YES);
}

static json_t *fact_json(const invar_diff *diff, size_t i)
{
    const invar_diff_fact *f = &diff->facts[i];

    return json_pack("{s:s, s:s, s:s?, s:s?}", "scope", f->scope, "key", f->key, "a", f->a, "b",
                     f->b);
}

static json_t *change_json(const invar_diff *diff, size_t i)
{
    const invar_diff_manifest_change *c = &diff->changes[i];

    return json_pack("{s:s, s:s, s:s?, s:s?}", "point", c->point, "what", c->what, "a", c->a, "b",
                     c->b);
}

static json_t *fused_json(const invar_diff_point *p)
{
    return p->fused ? json_pack("{s:b, s:b, s:b}", "a_differs", p->fused_mismatch_a, "b_differs",
                                p->fused_mismatch_b, "parts_equal", p->parts_equal)
                    : json_null();
}

static json_t *point_json(const invar_diff_point *p)
{
    return json_pack("{s:s, s:s, s:o, s:s, s:s, s:I, s:s, s:s, s:I, s:I, s:b, s:b, s:o, s:o, s:o}",
                     "name", p->name, "phase", p->phase, "layer", layer(p->layer), "op", p->op,
                     "kind", p->kind, "level", (json_int_t)p->level, "dtype", p->dtype, "shape",
                     p->shape, "ord", (json_int_t)p->ord, "inputs", (json_int_t)p->inputs, "born",
                     p->is_origin, "bridged", p->inputs_differ, "fused", fused_json(p), "a",
                     digest_json(&p->a), "b", digest_json(&p->b));
}

static json_t *point_json_at(const invar_diff *diff, size_t i)
{
    return point_json(&diff->points[i]);
}

static json_t *group_json(const invar_diff *diff, size_t i)
{
    const invar_diff_group *g = &diff->groups[i];

    return json_pack("{s:s, s:o, s:I, s:I}", "phase", g->phase, "layer", layer(g->layer), "equal",
                     (json_int_t)g->equal, "different", (json_int_t)g->different);
}

static json_t *metric_json(const invar_diff *diff, size_t i)
{
    const invar_diff_metric *m = &diff->metrics[i];
    char ulp[24];

    snprintf(ulp, sizeof ulp, "%" PRIu64, m->ulp); // text, because readers may have only doubles
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:s?, s:s?}", "name", m->name, "a",
                     number_json(m->in_a, m->a), "b", number_json(m->in_b, m->b), "a_bits",
                     bits_json(m->in_a, m->a), "b_bits", bits_json(m->in_b, m->b), "ulp",
                     m->ulp ? ulp : NULL, "ulp_of", m->ulp ? invar_diff_ulp_format(m) : NULL);
}

static json_t *sample_json(const invar_diff *diff, size_t i)
{
    const invar_diff_sample *s = &diff->samples[i];
    json_t *fields = json_array();

    for (int bit = 0; fields && bit < INVAR_DIFF_SAMPLE_FIELDS; bit++)
        if (s->fields & 1U << bit &&
            json_array_append_new(fields, json_string(invar_diff_sample_field(bit))) != 0) {
            json_decref(fields);
            fields = NULL;
        }
    return json_pack("{s:I, s:b, s:b, s:o, s:o, s:o}", "index", (json_int_t)s->idx, "in_a", s->in_a,
                     "in_b", s->in_b, "prompt_a", s->in_a ? json_integer(s->prompt_a) : json_null(),
                     "prompt_b", s->in_b ? json_integer(s->prompt_b) : json_null(), "differ",
                     fields);
}

static json_t *list_json(const invar_diff *diff, size_t count,
                         json_t *(*element)(const invar_diff *diff, size_t i))
{
    json_t *array = json_array();

    for (size_t i = 0; array && i < count; i++)
        if (json_array_append_new(array, element(diff, i)) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static json_t *diff_json(const invar_diff *diff)
{
    char headline[INVAR_DIFF_HEADLINE_SIZE], self[] = {diff->self_contradicting_side, 0};

    invar_diff_headline(headline, diff);
    return json_pack(
        "{s:s, s:s, s:s?, s:b, s:o, s:o, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I},"
        " s:I, s:b, s:b, s:o, s:o, s:o, s:o, s:I, s:o, s:I, s:I, s:o, s:o, s:I, s:o, s:o, s:I, "
        "s:o, s:I,"
        " s:I, s:I}",
        "verdict", invar_diff_verdict_name(diff->verdict), "headline", headline, "self",
        diff->self_contradicting_side ? self : NULL, "twins", diff->same_inputs, "a",
        side_json(&diff->a), "b", side_json(&diff->b), "compared", "first_step",
        (json_int_t)diff->common_first, "last_step", (json_int_t)diff->common_last, "steps",
        (json_int_t)diff->steps_compared, "only_a", (json_int_t)diff->only_a, "only_b",
        (json_int_t)diff->only_b, "lookups", (json_int_t)diff->lookups, "points",
        (json_int_t)(diff->points_equal + (int64_t)diff->n_points), "metrics",
        (json_int_t)(diff->metrics_equal + (int64_t)diff->n_metrics), "samples",
        (json_int_t)(diff->samples_equal + (int64_t)diff->n_samples), "step",
        (json_int_t)diff->step, "roots_differ", diff->roots_differ, "evaluations",
        diff->evaluations, "same_batch", invar_tristate_json(diff->same_batch), "same_rng",
        invar_tristate_json(diff->same_rng), "same_weights",
        invar_tristate_json(diff->same_weights), "facts", list_json(diff, diff->n_facts, fact_json),
        "facts_equal", (json_int_t)diff->facts_equal, "changes",
        list_json(diff, diff->n_changes, change_json), "points_a", (json_int_t)diff->points_a,
        "points_b", (json_int_t)diff->points_b, "culprit",
        diff->culprit ? point_json(diff->culprit) : json_null(), "points",
        list_json(diff, diff->n_points, point_json_at), "points_equal",
        (json_int_t)diff->points_equal, "groups", list_json(diff, diff->n_groups, group_json),
        "metrics", list_json(diff, diff->n_metrics, metric_json), "metrics_equal",
        (json_int_t)diff->metrics_equal, "samples", list_json(diff, diff->n_samples, sample_json),
        "samples_equal", (json_int_t)diff->samples_equal, "replies_different",
        (json_int_t)diff->replies_different, "replies_equal", (json_int_t)diff->replies_equal);
}

invar_status invar_diff_json(FILE *stream, const invar_diff *diff)
{
    json_t *object = diff_json(diff);
    int failed;

    if (!object)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the diff as JSON");
    failed = json_dumpf(object, stream, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(object);
    if (failed || fputc('\n', stream) == EOF || fflush(stream) != 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "cannot write the diff: %s", strerror(errno));
    return INVAR_OK;
}
