/*
 * ab_json.c - converts the complete result of an A/B experiment to one JSON object.
 *
 * Names of members are a documented format (cli/schema/ab.json): they keep older words than the
 * fields of the structs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "bisect/view/ab.h"
#include "bisect/view/json.h"

#include "base/invar_banned.h"

static json_t *ratio_json(double b, double a)
{
    return invar_view_real(a > 0 ? b / a : NAN);
}

/* ---- members --------------------------------------------------------------------------------- */

static json_t *side_json(const invar_ab_side *s)
{
    char binary[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(binary, &s->built.binary);
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:o, s:I, s:I}", "kind",
        invar_ab_kind_name(s->kind), "given", invar_view_text_or_null(s->given), "commit",
        invar_view_text_or_null(s->commit.id), "author", invar_view_text_or_null(s->commit.author),
        "subject", invar_view_text_or_null(s->commit.subject), "program",
        invar_view_text_or_null(s->built.path), "binary",
        invar_view_text_or_null(s->built.path[0] ? binary : ""), "build_s",
        invar_view_real(s->built.seconds), "build_cached", s->built.cached, "recipe",
        invar_view_text_or_null(s->recipe), "recipe_named", invar_view_text_or_null(s->recipe_path),
        "run_s", invar_view_real(s->seconds), "peak_bytes", (json_int_t)s->peak_bytes,
        "runs_cached", (json_int_t)s->cached);
}

static json_t *aa_check_json(const invar_aa_check *g)
{
    if (!g->ran)
        return json_null();
    return json_pack(
        "{s:b, s:b, s:o, s:I, s:I, s:o, s:o, s:o}", "same", g->same, "varied", g->varied, "with",
        invar_view_text_or_null(g->varied_keys), "seed", (json_int_t)g->seed, "steps",
        (json_int_t)g->steps, "headline", invar_view_text_or_null(g->headline), "ledger",
        invar_view_text_or_null(g->ledger), "again", invar_view_text_or_null(g->second_ledger));
}

static json_t *run_json(const invar_run_result *r)
{
    return json_pack("{s:o, s:o, s:I, s:b, s:i}", "ledger", invar_view_text_or_null(r->ledger),
                     "seconds", invar_view_real(r->seconds), "peak_bytes",
                     (json_int_t)r->peak_bytes, "cached", r->cached, "exit_code", r->exit_code);
}

static json_t *pair_json(const void *item)
{
    const invar_ab_pair *p = item;

    return json_pack("{s:I, s:I, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "seed",
                     (json_int_t)p->seed, "rollout_seed", (json_int_t)p->rollout_seed, "same",
                     p->compared ? json_boolean(p->same) : json_null(), "steps",
                     (json_int_t)p->steps, "only_a", (json_int_t)p->only[INVAR_AB_A], "only_b",
                     (json_int_t)p->only[INVAR_AB_B], "first",
                     p->diverged ? json_integer(p->first) : json_null(), "headline",
                     invar_view_text_or_null(p->headline), "a", run_json(&p->ran[INVAR_AB_A]), "b",
                     run_json(&p->ran[INVAR_AB_B]));
}

static json_t *fact_json(const void *item)
{
    const invar_ab_fact *f = item;

    return json_pack("{s:o, s:o, s:b, s:o, s:o}", "scope", invar_view_text_or_null(f->scope), "key",
                     invar_view_text_or_null(f->key), "is_key", f->is_key, "a",
                     invar_view_text_or_null(f->values[INVAR_AB_A]), "b",
                     invar_view_text_or_null(f->values[INVAR_AB_B]));
}

static json_t *sum_json(const invar_ab_sum *s)
{
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:I, s:I, s:I}", "pairs", (json_int_t)s->pairs,
                     "mean_a", invar_view_real(s->mean_a), "mean_b", invar_view_real(s->mean_b),
                     "mean", invar_view_real(s->mean), "error", invar_view_real(s->error), "higher",
                     (json_int_t)s->higher, "lower", (json_int_t)s->lower, "equal",
                     (json_int_t)s->equal);
}

static json_t *effect_json(const void *item)
{
    const invar_ab_effect *e = item;

    return json_pack(
        "{s:o, s:b, s:o, s:I, s:o, s:o}", "name", invar_view_text_or_null(e->name), "pinned",
        e->pinned, "step", e->step == INVAR_AB_NO_STEP ? json_null() : json_integer(e->step), "odd",
        (json_int_t)e->n_unusable, "last", sum_json(&e->last), "tail", sum_json(&e->tail));
}

static json_t *effect_name_json(const void *item)
{
    return invar_view_text_or_null(((const invar_ab_effect *)item)->name);
}

static json_t *steps_json(const invar_ab_effects *e)
{
    if (e->count == 0)
        return json_null();
    return json_pack("{s:I, s:I, s:I}", "first", (json_int_t)e->first, "last", (json_int_t)e->last,
                     "tail_first", (json_int_t)e->tail_first);
}

/* ---- the object ------------------------------------------------------------------------------ */

json_t *invar_ab_object(const invar_ab_result *a)
{
    const invar_ab_side *x = &a->sides[INVAR_AB_A], *y = &a->sides[INVAR_AB_B];
    const invar_ab_effects *e = &a->effects;
    size_t apart = e->count - e->n_same, pinned = 0;
    bool blamed = a->verdict == INVAR_AB_NONDETERMINISTIC || a->verdict == INVAR_AB_UNTESTABLE;
    char headline[INVAR_AB_LINE];

    invar_ab_headline(headline, a);
    while (apart + pinned < e->count && e->items[apart + pinned].pinned)
        pinned++;
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:{s:o, s:o}, s:{s:o, s:o}, s:o, s:I, s:o, s:o, "
        "s:I, s:o, s:o, s:o, s:o, s:{s:o, s:o}}",
        "verdict", invar_ab_verdict_name(a->verdict), "headline", invar_view_text_or_null(headline),
        "experiment", invar_view_text_or_null(a->id), "folder", invar_view_text_or_null(a->folder),
        "ledger", invar_view_text_or_null(a->ledger), "who",
        invar_view_text_or_null(blamed ? (a->side == INVAR_AB_A ? "a" : "b") : ""), "story",
        invar_view_text_or_null(a->failure_reason), "log", invar_view_text_or_null(a->log), "sides",
        "a", side_json(x), "b", side_json(y), "gates", "a",
        aa_check_json(&a->aa_checks[INVAR_AB_A]), "b", aa_check_json(&a->aa_checks[INVAR_AB_B]),
        "seeds", invar_view_list(a->pairs, a->n_pairs, sizeof *a->pairs, pair_json), "different",
        (json_int_t)a->n_different, "place", invar_view_divergence(&a->divergence), "facts",
        invar_view_list(a->facts, a->n_facts, sizeof *a->facts, fact_json), "facts_different",
        (json_int_t)a->all_facts, "steps", steps_json(e), "effects",
        invar_view_list(e->items, apart, sizeof *e->items, effect_json), "pinned_equal",
        invar_view_list(e->items + apart, pinned, sizeof *e->items, effect_json), "equal_metrics",
        invar_view_list(e->items + apart, e->n_same, sizeof *e->items, effect_name_json), "ratios",
        "time", ratio_json(y->seconds, x->seconds), "memory",
        ratio_json((double)y->peak_bytes, (double)x->peak_bytes));
}

invar_status invar_ab_json(FILE *out, const invar_ab_result *result)
{
    return invar_view_write(out, invar_ab_object(result));
}
