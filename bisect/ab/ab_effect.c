/*
 * ab_effect.c - computes the paired effect of a change on every metric of an A/B experiment.
 *
 * One SQL query returns the values of all runs, sorted by metric and step, and one pass over it
 * accumulates per-seed sums, so memory does not grow with the number of steps. Sums are over seeds,
 * then steps, in binary64, so that equal ledgers give equal bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/ab/ab_effect.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "base/text.h"
#include "bisect/workspace/workspace.h"

#include "base/invar_banned.h"

/* ---- sums ------------------------------------------------------------------------------------ */

static bool pair_is_finite(double a, double b)
{
    return isfinite(a) && isfinite(b) && isfinite(b - a);
}

void invar_ab_sum_pairs(invar_ab_sum *out, const double *a, const double *b, size_t count)
{
    double sum_a = 0, sum_b = 0, sum = 0, squares = 0, n;

    *out = (invar_ab_sum){.mean_a = NAN, .mean_b = NAN, .mean = NAN, .error = NAN};
    for (size_t i = 0; i < count; i++) {
        double d = b[i] - a[i];
        if (!pair_is_finite(a[i], b[i]))
            continue;
        out->pairs++;
        out->higher += d > 0;
        out->lower += d < 0;
        out->equal += d == 0;
        sum_a += a[i];
        sum_b += b[i];
        sum += d;
    }
    if (out->pairs == 0)
        return;
    n = (double)out->pairs;
    out->mean_a = sum_a / n;
    out->mean_b = sum_b / n;
    out->mean = sum / n;
    for (size_t i = 0; i < count; i++) {
        double off = b[i] - a[i] - out->mean;
        if (pair_is_finite(a[i], b[i]))
            squares += off * off;
    }
    if (out->pairs > 1)
        out->error = sqrt(squares / (n * (n - 1)));
}

/* ---- pinned metrics -------------------------------------------------------------------------- */

#define PINNED 3

/* Returns the rank in the report: 0 the reward, 1 its parts, 2 evaluations, 3 everything else. */
static int pinned_rank(const char *name)
{
    static const char *const pinned[PINNED] = {"rollout/raw_reward", "rollout/reward/", "eval/"};
    int i = 0;

    while (i < PINNED && strncmp(name, pinned[i], strlen(pinned[i])) != 0)
        i++;
    return i;
}

/* ---- one pass over the ledger ---------------------------------------------------------------- */

/*
 * State of one seed: its values of the current metric at the current step, and sums over the tail.
 */
typedef struct seed_state {
    int64_t run[2]; /* run numbers of side a and side b */
    bool has_value[2];
    uint64_t bits[2];
    double sums[2]; /* sums of side a and side b over the tail */
    int64_t summed;
} seed_state;

typedef struct metrics_pass {
    invar_ab_effects *out;
    seed_state *seeds; /* (count) */
    double *last;      /* (2, count) last values of side a and side b; NaN if absent */
    size_t count;
    int64_t capacity;         /* capacity of out->items */
    char name[INVAR_AB_NAME]; /* current metric as stored in the ledger; `bytes` is 0 before the
                                 first one */
    size_t bytes;
    int64_t step;
    invar_ab_effect now;
} metrics_pass;

static double double_of_bits(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Processes the values of one step, when those of all seeds were read. */
static void end_step(metrics_pass *p)
{
    bool any = false;

    for (size_t i = 0; i < p->count; i++) {
        seed_state *s = &p->seeds[i];
        double a = double_of_bits(s->bits[0]), b = double_of_bits(s->bits[1]);
        any = any || (s->has_value[0] && s->has_value[1]);
        if (!s->has_value[0] && !s->has_value[1])
            continue;
        p->now.same = p->now.same && s->has_value[0] && s->has_value[1] && s->bits[0] == s->bits[1];
        if (!s->has_value[0] || !s->has_value[1] || !pair_is_finite(a, b)) {
            p->now.n_unusable++;
        } else if (p->step >= p->out->tail_first) {
            s->sums[0] += a;
            s->sums[1] += b;
            s->summed++;
        }
    }
    for (size_t i = 0; i < p->count; i++) {
        seed_state *s = &p->seeds[i];
        if (any) {
            p->now.step = p->step;
            p->last[i] = s->has_value[0] ? double_of_bits(s->bits[0]) : NAN;
            p->last[p->count + i] = s->has_value[1] ? double_of_bits(s->bits[1]) : NAN;
        }
        s->has_value[0] = s->has_value[1] = false;
    }
}

static invar_status end_metric(metrics_pass *p)
{
    double *a = p->last, *b = p->last + p->count;
    const int64_t count = (int64_t)p->out->count;

    if (p->bytes == 0)
        return INVAR_OK;
    end_step(p);
    invar_ab_sum_pairs(&p->now.last, a, b, p->count);
    for (size_t i = 0; i < p->count; i++) {
        const seed_state *s = &p->seeds[i];
        a[i] = s->summed ? s->sums[0] / (double)s->summed : NAN;
        b[i] = s->summed ? s->sums[1] / (double)s->summed : NAN;
    }
    invar_ab_sum_pairs(&p->now.tail, a, b, p->count);
    invar_text_quote(p->now.name, sizeof p->now.name, p->name, p->bytes);
    p->now.pinned = pinned_rank(p->now.name) < PINNED;
    if (count >= INVAR_AB_METRICS)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "the runs have more than %d metrics",
                          INVAR_AB_METRICS);
    INVAR_TRY(INVAR_GROW(p->out->items, p->capacity, count, count + 1, "effects"));
    p->out->items[p->out->count++] = p->now;
    p->out->n_same += p->now.same;
    return INVAR_OK;
}

static void begin_metric(metrics_pass *p, const invar_ledger_value *name, int64_t step)
{
    p->bytes = name->bytes;
    memcpy(p->name, name->data, name->bytes);
    p->step = step;
    p->now = (invar_ab_effect){.same = true, .step = INVAR_AB_NO_STEP};
    for (size_t i = 0; i < p->count; i++) {
        p->last[i] = p->last[p->count + i] = NAN;
        p->seeds[i].sums[0] = p->seeds[i].sums[1] = 0;
        p->seeds[i].summed = 0;
    }
}

/* Columns: name, step, run, bits. */
static invar_status read_value_row(void *payload, const invar_ledger_value *values)
{
    metrics_pass *p = payload;

    if (values[0].type != INVAR_LEDGER_TYPE_TEXT || values[0].bytes == 0 ||
        values[0].bytes >= sizeof p->name)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the runs have a metric whose name is no name");
    if (p->bytes != values[0].bytes || memcmp(p->name, values[0].data, p->bytes) != 0) {
        INVAR_TRY(end_metric(p));
        begin_metric(p, &values[0], values[1].integer);
    } else if (p->step != values[1].integer) {
        end_step(p);
        p->step = values[1].integer;
    }
    for (size_t i = 0; i < p->count; i++) {
        for (int side = 0; side < 2; side++) {
            if (p->seeds[i].run[side] == values[2].integer) {
                p->seeds[i].has_value[side] = true;
                p->seeds[i].bits[side] = (uint64_t)values[3].integer;
            }
        }
    }
    return INVAR_OK;
}

static const char all_values[] =
    "SELECT name, step, run, bits FROM metrics WHERE step <= :last UNION ALL"
    " SELECT " INVAR_LEDGER_EVALUATION(
        "e", "n") ", e.step, e.run, e.value_bits"
                  " FROM evaluation e JOIN series n USING(series) WHERE e.step <= :last AND e.seg ="
                  " (SELECT max(x.seg) FROM evaluation x WHERE x.run = e.run AND x.step = e.step"
                  "  AND x.dataset = e.dataset AND x.series = e.series)"
                  " ORDER BY 1, 2, 3";

/* ---- common steps ---------------------------------------------------------------------------- */

/* Columns: run, first step, last step. */
static invar_status read_steps_row(void *payload, const invar_ledger_value *values)
{
    metrics_pass *p = payload;

    for (size_t i = 0; i < p->count; i++) {
        if (p->seeds[i].run[0] != values[0].integer && p->seeds[i].run[1] != values[0].integer)
            continue;
        if (values[1].integer > p->out->first)
            p->out->first = values[1].integer;
        if (values[2].integer < p->out->last)
            p->out->last = values[2].integer;
    }
    return INVAR_OK;
}

static invar_status find_steps(metrics_pass *p, invar_ledger *ledger)
{
    static const char sql[] = "SELECT run, min(step), max(step) FROM step GROUP BY run";
    uint64_t steps;

    p->out->first = INT64_MIN;
    p->out->last = INT64_MAX;
    INVAR_TRY(invar_workspace_ledger_select(ledger, sql, NULL, 0, read_steps_row, p));
    if (p->out->first > p->out->last || p->out->first == INT64_MIN)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "the runs have no step in common");
    steps = (uint64_t)p->out->last - (uint64_t)p->out->first + 1;
    p->out->tail_first = (int64_t)((uint64_t)p->out->last + 1 - (steps / 10 + (steps % 10 != 0)));
    return INVAR_OK;
}

/* ---- order ----------------------------------------------------------------------------------- */

/*
 * Returns how clearly the effect stands out: |mean| / standard error; infinite if all seeds agree,
 * -1 without an effect.
 */
static double effect_weight(const invar_ab_effect *effect)
{
    const invar_ab_sum *sum = &effect->last;

    if (effect->same || sum->pairs == 0)
        return -1;
    if (sum->mean == 0 || isnan(sum->error)) // a single seed has no standard error
        return 0;
    return sum->error > 0 ? fabs(sum->mean) / sum->error : INFINITY;
}

static int compare_effects(const void *x, const void *y)
{
    const invar_ab_effect *a = x, *b = y;
    double wa = effect_weight(a), wb = effect_weight(b);
    int ra = pinned_rank(a->name), rb = pinned_rank(b->name);

    if (a->same != b->same)
        return a->same ? 1 : -1;
    if (ra != rb)
        return ra - rb;
    return wa != wb ? (wa > wb ? -1 : 1) : strcmp(a->name, b->name);
}

/* ---- entry point ----------------------------------------------------------------------------- */

static invar_status read_effects(metrics_pass *p, invar_ledger *ledger)
{
    invar_ledger_argument last = {"last", {.type = INVAR_LEDGER_TYPE_INT}};

    INVAR_TRY(find_steps(p, ledger));
    last.value.integer = p->out->last;
    INVAR_TRY(invar_workspace_ledger_select(ledger, all_values, &last, 1, read_value_row, p));
    INVAR_TRY(end_metric(p));
    return invar_sort_items(p->out->items, p->out->count, sizeof *p->out->items, compare_effects);
}

invar_status invar_ab_effects_read(invar_ab_effects *out, invar_ledger *ledger, const int64_t *a,
                                   const int64_t *b, size_t count)
{
    metrics_pass p = {.out = out, .count = count};
    invar_status status;

    *out = (invar_ab_effects){.items = NULL};
    INVAR_CHECK(count > 0 && count <= INVAR_AB_SEEDS);
    status = INVAR_ALLOC(p.seeds, count, "seeds");
    if (status == INVAR_OK)
        status = INVAR_ALLOC(p.last, 2 * count, "seeds");
    for (size_t i = 0; status == INVAR_OK && i < count; i++)
        p.seeds[i] = (seed_state){.run = {a[i], b[i]}};
    if (status == INVAR_OK)
        status = read_effects(&p, ledger);
    invar_free(p.seeds);
    invar_free(p.last);
    if (status != INVAR_OK)
        invar_ab_effects_release(out);
    return status;
}

void invar_ab_effects_release(invar_ab_effects *effects)
{
    invar_free(effects->items);
    *effects = (invar_ab_effects){.items = NULL};
}
