/*
 * records.c - compares metrics, evaluations, samples and replies of two executions of a step.
 *
 * Numbers are equal if their bits are. The results of an evaluation at a step are listed among its
 * metrics, as "eval/DATASET/NAME", as the newest segment recorded them. That segment need not have
 * executed the step: a run that was resumed may have evaluated before its next step.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "ledger/view/diff/internal.h"

#include "base/invar_banned.h"

/* SQL: the newest segment, up to ?4, that recorded the evaluation `e`. */
#define NEWEST                                                                                     \
    "(SELECT max(x.seg) FROM evaluation x WHERE x.run = e.run AND x.step = e.step "                \
    "AND x.dataset = e.dataset AND x.series = e.series AND x.seg <= ?4) "

/* ---- metrics --------------------------------------------------------------------------------- */

/* Maps doubles to integers in the same order: negative ones mirrored, -0 just below +0. */
static uint64_t rank_of(int64_t bits)
{
    uint64_t word = (uint64_t)bits;

    return word >> 63 ? ~word : word | UINT64_C(1) << 63;
}

static double double_of(int64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Like rank_of, for floats. */
static uint64_t rank_of_f32(float value)
{
    uint32_t word;

    memcpy(&word, &value, sizeof word);
    return word >> 31 ? (uint32_t)~word : word | UINT32_C(1) << 31;
}

static bool is_f32(double value)
{
    return isinf(value) || (fabs(value) <= (double)FLT_MAX && (double)(float)value == value);
}

/* Sets the distance of two values, in fp32 if both are fp32 numbers, else in fp64. */
static void set_distance(invar_diff_metric *metric, int64_t a, int64_t b)
{
    uint64_t x = rank_of(a), y = rank_of(b);

    if (isnan(metric->a) || isnan(metric->b))
        return;
    metric->f32 = is_f32(metric->a) && is_f32(metric->b);
    if (metric->f32) {
        x = rank_of_f32((float)metric->a);
        y = rank_of_f32((float)metric->b);
    }
    metric->ulp = x > y ? x - y : y - x;
}

/* Column of the bits, after the keys. A name alone is not unique, so two more keys precede it. */
enum { METRIC_BITS = 3 };

static invar_status add_metric(invar_diff *diff, const invar_diff_join *join)
{
    int64_t a = join->in_a ? invar_sql_int(join->a, METRIC_BITS) : 0;
    int64_t b = join->in_b ? invar_sql_int(join->b, METRIC_BITS) : 0;
    invar_diff_metric metric = {
        .in_a = join->in_a, .in_b = join->in_b, .a = double_of(a), .b = double_of(b)};

    if (join->in_a && join->in_b)
        set_distance(&metric, a, b);
    INVAR_TRY(invar_diff_column(&metric.name, diff, join->in_a ? join->a : join->b, 0));
    return INVAR_DIFF_ADD(diff->metrics, diff, metric);
}

static invar_status compare_metrics(invar_diff *diff, const invar_diff_source *a,
                                    const invar_diff_source *b)
{
    static const char text[] =
        "SELECT n.name, 0, '', m.value_bits FROM metric m JOIN series n USING(series) "
        "WHERE m.run = ?1 AND m.step = ?2 AND m.seg = ?3 "
        "UNION ALL SELECT " INVAR_LEDGER_EVALUATION(
            "e", "n") ", 1, e.dataset, e.value_bits "
                      "FROM evaluation e JOIN series n USING(series) "
                      "WHERE e.run = ?1 AND e.step = ?2 AND e.seg = " NEWEST "ORDER BY 1, 2, 3";
    invar_diff_join join;
    invar_status status = invar_diff_join_open(&join, a, b, text, METRIC_BITS);

    while (invar_diff_join_next(&status, &join)) {
        bool both = join.in_a && join.in_b;
        if (both && invar_diff_join_same(&join, METRIC_BITS))
            diff->metrics.equal++;
        else if (both || !diff->self_contradicting_side ||
                 invar_sql_int(join.in_a ? join.a : join.b, 1) ==
                     0) // a segment need not evaluate, so this is no contradiction
            status = add_metric(diff, &join);
    }
    return invar_diff_join_end(&join, status);
}

/* ---- samples --------------------------------------------------------------------------------- */

/* The fields in the order of their bits: name, and the columns of the statement. */
static const struct {
    const char *name;
    int first, count;
} fields[INVAR_DIFF_SAMPLE_FIELDS] = {
    {"prompt", 1, 3},
    {"random numbers", 4, 1},
    {"weights", 5, 3},
    {"tokens", 8, 2},
    {"rollout log-probs", 10, 1},
    {"training log-probs", 11, 1},
    {"log-prob difference", 12, 2},
    {"reward", 14, 1},
    {"advantage", 15, 1},
    {"finish", 16, 1},
};

const char *invar_diff_sample_field(int bit)
{
    return bit >= 0 && bit < INVAR_DIFF_SAMPLE_FIELDS ? fields[bit].name : "";
}

static invar_status take_sample(invar_diff *diff, const invar_diff_join *join)
{
    bool both = join->in_a && join->in_b;
    unsigned differing = 0;

    for (int i = 0; both && i < INVAR_DIFF_SAMPLE_FIELDS; i++)
        for (int k = 0; k < fields[i].count; k++)
            if (!invar_diff_join_same(join, fields[i].first + k))
                differing |= 1U << i;
    if (both && differing == 0) {
        diff->samples.equal++;
        return INVAR_OK;
    }
    return INVAR_DIFF_ADD(diff->samples, diff,
                          (invar_diff_sample){
                              .idx = invar_sql_int(join->in_a ? join->a : join->b, 0),
                              .in_a = join->in_a,
                              .in_b = join->in_b,
                              .prompt_a = join->in_a ? invar_sql_int(join->a, 1) : -1,
                              .prompt_b = join->in_b ? invar_sql_int(join->b, 1) : -1,
                              .fields = differing,
                          });
}

static invar_status compare_samples(invar_diff *diff, const invar_diff_source *a,
                                    const invar_diff_source *b)
{
    static const char text[] =
        "SELECT idx, prompt, prompt_hash, prompt_tokens, rng, weights_first, weights_last, "
        "weights_hash, tokens, token_hash, rollout_logp, train_logp, diff_bits, diff_at, "
        "reward_bits, advantage_bits, finish FROM sample "
        "WHERE run = ?1 AND step = ?2 AND seg = ?3 ORDER BY idx";
    invar_diff_join join;
    invar_status status = invar_diff_join_open(&join, a, b, text, 1);

    while (invar_diff_join_next(&status, &join))
        status = take_sample(diff, &join);
    return invar_diff_join_end(&join, status);
}

/* ---- replies --------------------------------------------------------------------------------- */

static invar_status compare_replies(invar_diff *diff, const invar_diff_source *a,
                                    const invar_diff_source *b)
{
    static const char text[] = "SELECT plugin, call, request, data FROM reply "
                               "WHERE run = ?1 AND step = ?2 AND seg = ?3 ORDER BY plugin, call";
    invar_diff_join join;
    invar_status status = invar_diff_join_open(&join, a, b, text, 2);

    while (invar_diff_join_next(&status, &join)) {
        bool same = join.in_a && join.in_b && invar_diff_join_same(&join, 2) &&
                    invar_diff_join_same(&join, 3);
        diff->replies.equal += same;
        diff->replies.different += !same;
    }
    return invar_diff_join_end(&join, status);
}

invar_status invar_diff_compare_records(invar_diff *diff, const invar_diff_source *a,
                                        const invar_diff_source *b)
{
    INVAR_TRY(compare_metrics(diff, a, b));
    INVAR_TRY(compare_samples(diff, a, b));
    return compare_replies(diff, a, b);
}

/* ---- evaluations ----------------------------------------------------------------------------- */

invar_status invar_diff_compare_evaluations(bool *found_out, int64_t *step_out,
                                            const invar_diff_source *a, const invar_diff_source *b,
                                            bool alone)
{
    static const char text[] =
        "SELECT e.step, e.dataset, n.name, e.value_bits "
        "FROM evaluation e JOIN series n USING(series) "
        "WHERE e.run = ?1 AND e.step BETWEEN ?3 AND ?2 AND e.seg = " NEWEST "ORDER BY 1, 2, 3";
    invar_diff_join join;
    invar_status status = invar_diff_join_open(&join, a, b, text, 3);

    *found_out = false;
    while (!*found_out && invar_diff_join_next(&status, &join)) {
        bool both = join.in_a && join.in_b;
        *found_out = alone ? !both : both && !invar_diff_join_same(&join, 3);
        *step_out = invar_sql_int(join.in_a ? join.a : join.b, 0);
    }
    return invar_diff_join_end(&join, status);
}
