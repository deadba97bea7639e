/*
 * ab_json.c - converts the complete result of an A/B experiment to one JSON object.
 *
 * Names of members are a documented format: they keep older words than the fields of the structs.
 * The texts list all members with their types, for the functions below and for the JSON Schema.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "base/json/result.h"
#include "bisect/view/ab.h"
#include "bisect/view/json.h"

#include "base/invar_banned.h"

#define SIDE                                                                                       \
    "{kind commit|folder|file, given line?, commit line?, author line?, subject line?,"            \
    " program line?, binary line?, build_s real?, build_cached bool, recipe line?,"                \
    " recipe_named line? (with two recipes: its own), run_s real?, peak_bytes int, runs_cached "   \
    "int}"
#define GATE                                                                                       \
    "{same bool, varied bool, with line?, seed int, steps int, headline line?, ledger line?,"      \
    " again line?}?"
#define RAN "{ledger line?, seconds real?, peak_bytes int, cached bool, exit_code int}"
#define PAIR                                                                                       \
    "{seed int, rollout_seed int, same bool?, steps int, only_a int, only_b int, first int?,"      \
    " headline line?, a " RAN ", b " RAN "}"
#define FACT "{scope line?, key line?, is_key bool (of a recipe), a line?, b line?}"
#define SUM                                                                                        \
    "{pairs int, mean_a real?, mean_b real?, mean real?, error real?, higher int, lower int,"      \
    " equal int}"
#define EFFECT                                                                                     \
    "{name line?, pinned bool (a reward or an evaluation), step int?, odd int, last " SUM          \
    ", tail " SUM "}"
#define STEPS "{first int, last int, tail_first int}?"
#define SIDES "{a " SIDE ", b " SIDE "}"
#define GATES "{a " GATE ", b " GATE "}"
#define RATIOS "{time real?, memory real?}"

const char invar_ab_members[] =
    "{verdict identical|different|nondeterministic|untestable|stopped, headline line?,"
    " experiment line?, folder line?, ledger line?, who a|b?, story line?, log line?,"
    " sides " SIDES ", gates " GATES ", seeds [" PAIR "], different int,"
    " place " INVAR_VIEW_DIVERGENCE ", facts [" FACT "], facts_different int, steps " STEPS
    ", effects [" EFFECT "], pinned_equal [" EFFECT "], equal_metrics [line?], ratios " RATIOS "}";

/* ---- members --------------------------------------------------------------------------------- */

static json_t *side_json(const invar_ab_side *s)
{
    char binary[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(binary, &s->built.binary);
    return INVAR_RESULT(SIDE, invar_ab_kind_name(s->kind), s->given, s->commit.id, s->commit.author,
                        s->commit.subject, s->built.path, s->built.path[0] ? binary : "",
                        s->built.seconds, s->built.cached, s->recipe, s->recipe_path, s->seconds,
                        s->peak_bytes, s->cached);
}

static json_t *aa_check_json(const invar_aa_check *g)
{
    if (!g->ran)
        return json_null();
    return INVAR_RESULT(GATE, g->same, g->varied, g->varied_keys, g->seed, g->steps, g->headline,
                        g->ledger, g->second_ledger);
}

static json_t *run_json(const invar_run_result *r)
{
    return INVAR_RESULT(RAN, r->ledger, r->seconds, r->peak_bytes, r->cached, r->exit_code);
}

static json_t *pair_json(const void *item)
{
    const invar_ab_pair *p = item;

    return INVAR_RESULT(PAIR, p->seed, p->rollout_seed,
                        p->compared ? json_boolean(p->same) : json_null(), p->steps,
                        p->only[INVAR_AB_A], p->only[INVAR_AB_B],
                        p->diverged ? json_integer(p->first) : json_null(), p->headline,
                        run_json(&p->ran[INVAR_AB_A]), run_json(&p->ran[INVAR_AB_B]));
}

static json_t *fact_json(const void *item)
{
    const invar_ab_fact *f = item;

    return INVAR_RESULT(FACT, f->scope, f->key, f->is_key, f->values[INVAR_AB_A],
                        f->values[INVAR_AB_B]);
}

static json_t *sum_json(const invar_ab_sum *s)
{
    return INVAR_RESULT(SUM, s->pairs, s->mean_a, s->mean_b, s->mean, s->error, s->higher, s->lower,
                        s->equal);
}

static json_t *effect_json(const void *item)
{
    const invar_ab_effect *e = item;

    return INVAR_RESULT(EFFECT, e->name, e->pinned,
                        e->step == INVAR_AB_NO_STEP ? json_null() : json_integer(e->step),
                        e->n_unusable, sum_json(&e->last), sum_json(&e->tail));
}

static json_t *effect_name_json(const void *item)
{
    const invar_ab_effect *e = item;

    return e->name[0] ? invar_result_line(e->name) : json_null();
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
    return INVAR_RESULT(
        invar_ab_members, invar_ab_verdict_name(a->verdict), headline, a->id, a->folder, a->ledger,
        blamed ? (a->side == INVAR_AB_A ? "a" : "b") : NULL, a->failure_reason, a->log,
        INVAR_RESULT(SIDES, side_json(x), side_json(y)),
        INVAR_RESULT(GATES, aa_check_json(&a->aa_checks[INVAR_AB_A]),
                     aa_check_json(&a->aa_checks[INVAR_AB_B])),
        invar_result_list(a->pairs, a->n_pairs, sizeof *a->pairs, pair_json), a->n_different,
        invar_view_divergence(&a->divergence),
        invar_result_list(a->facts, a->n_facts, sizeof *a->facts, fact_json), a->all_facts,
        e->count ? INVAR_RESULT(STEPS, e->first, e->last, e->tail_first) : json_null(),
        invar_result_list(e->items, apart, sizeof *e->items, effect_json),
        invar_result_list(e->items + apart, pinned, sizeof *e->items, effect_json),
        invar_result_list(e->items + apart, e->n_same, sizeof *e->items, effect_name_json),
        INVAR_RESULT(RATIOS, x->seconds > 0 ? y->seconds / x->seconds : NAN,
                     x->peak_bytes > 0 ? (double)y->peak_bytes / (double)x->peak_bytes : NAN));
}
