/*
 * diff.c - compares two runs: finds the first divergent step and compares it.
 *
 * A chain that differs at one step differs at every later one, so the first divergent step is found
 * by binary search. This holds only for a run whose repeated steps repeated their bits, which is
 * checked first and by the same search: the steps that a segment repeats are the first ones of the
 * segment, and their chains are compared with those of the earlier segments. Records other than
 * tensors are in no chain. If the chains are equal, they are compared step by step, by their
 * content hashes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/diff/diff.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/minmax.h"
#include "ledger/internal.h"
#include "ledger/view/diff/internal.h"

#include "base/invar_banned.h"

/* A run as it was when a segment ended: of each step the newest execution up to that segment. */
typedef struct view {
    invar_ledger *ledger;
    int64_t run;
    int64_t newest; /* last segment to read */
    invar_diff_side *side;
    invar_sql_stmt *at; /* selects the execution of a step; owned */
} view;

/* The hashes of one execution of a step. */
typedef struct moment {
    int64_t seg, weights; /* segment, and version of the weights */
    invar_digest batch, rng, root, chain;
} moment;

static invar_diff_source source_of(const view *v, int64_t step, int64_t seg)
{
    return (invar_diff_source){v->ledger->sql, v->run, step, seg, v->newest, v->side};
}

invar_status invar_diff_corrupt(const invar_diff_source *source, const char *what)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "ledger %.1000s, run %" PRId64 ": %s; see `invar ledger verify`",
                      invar_sql_path(source->sql), source->run, what);
}

static invar_status fail_view_corrupt(const view *v, const char *what)
{
    invar_diff_source source = source_of(v, -1, -1);

    return invar_diff_corrupt(&source, what);
}

invar_status invar_diff_prepare(invar_sql_stmt **out, const invar_diff_source *source,
                                const char *text)
{
    return INVAR_SQL_QUERY(out, source->sql, text, source->run, source->step, source->seg,
                           source->newest);
}

/* ---- reading steps --------------------------------------------------------------------------- */

/* Reads a step. *found_out is false if the view does not have it. */
static invar_status read_step(bool *found_out, moment *out, view *v, int64_t step)
{
    invar_status status = INVAR_SQL_BIND(v->at, v->run, step, v->newest);
    bool whole = true;

    *found_out = invar_sql_next(&status, v->at);
    if (*found_out) {
        out->seg = invar_sql_int(v->at, 0);
        out->weights = invar_sql_int(v->at, 1);
        whole = invar_sql_digest(&out->batch, v->at, 2) && invar_sql_digest(&out->rng, v->at, 3) &&
                invar_sql_digest(&out->root, v->at, 4) && invar_sql_digest(&out->chain, v->at, 5);
    }
    return whole ? status : fail_view_corrupt(v, "a digest of a step has not 16 bytes");
}

/* Reads a step of both sides, which both must have. */
static invar_status read_step_of_both(moment out[2], invar_diff *diff, view sides[2], int64_t step)
{
    diff->steps.lookups++;
    for (int i = 0; i < 2; i++) {
        bool found;
        INVAR_TRY(read_step(&found, &out[i], &sides[i], step));
        if (!found)
            return fail_view_corrupt(&sides[i], "the steps have a gap");
    }
    return INVAR_OK;
}

static invar_status read_side(invar_diff *diff, view *v, invar_sql_stmt *row)
{
    invar_diff_side *side = v->side;
    int64_t fork;
    bool found, begins;

    INVAR_TRY(invar_sql_step(&found, row));
    if (!found)
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "ledger %.1000s has no run %" PRId64,
                          invar_sql_path(v->ledger->sql), v->run);
    INVAR_TRY(invar_diff_text(&side->ledger, diff, invar_sql_path(v->ledger->sql),
                              strlen(invar_sql_path(v->ledger->sql))));
    INVAR_TRY(invar_diff_column(&side->uuid, diff, row, 0));
    INVAR_TRY(invar_diff_column(&side->name, diff, row, 1));
    INVAR_TRY(invar_diff_column(&side->kind, diff, row, 2));
    side->segments = invar_sql_int(row, 3);
    side->first_step = invar_sql_int(row, 4);
    side->last_step = invar_sql_int(row, 5);
    side->run = v->run;
    side->seg = -1;
    fork = invar_sql_int(row, 6);
    side->replayable = invar_sql_int(row, 7) != 0;
    begins = side->last_step == -1
                 ? side->first_step == -1
                 : side->first_step == 0 || (side->first_step > 0 && side->first_step - 1 == fork);
    if (!begins || side->last_step == INT64_MAX)
        return fail_view_corrupt(v, "the steps do not count from 0, nor from where a fork begins");
    return INVAR_OK;
}

static invar_status open_side(invar_diff *diff, view *v)
{
    invar_diff_source source = source_of(v, 0, 0);
    invar_sql_stmt *row = NULL;
    invar_status status =
        invar_diff_prepare(&v->at, &source,
                           "SELECT seg, weights, batch, rng, root, chain FROM step "
                           "WHERE run = ?1 AND step = ?2 AND seg <= ?3 ORDER BY seg DESC LIMIT 1");

    if (status == INVAR_OK)
        status = invar_diff_prepare(
            &row, &source,
            "SELECT uuid, name, kind, (SELECT count(*) FROM segment s WHERE s.run = r.run), "
            "coalesce((SELECT min(step) FROM step s WHERE s.run = r.run), -1), "
            "coalesce((SELECT max(step) FROM step s WHERE s.run = r.run), -1), "
            "coalesce(r.fork_step, -1), "
            "EXISTS(SELECT 1 FROM fact f WHERE f.run = r.run AND f.scope = 'free') "
            "FROM run r WHERE run = ?1");
    if (status == INVAR_OK)
        status = read_side(diff, v, row);
    invar_sql_free(row);
    return status;
}

/* ---- searching ------------------------------------------------------------------------------- */

/* Finds the first step of [first, last] whose chains differ; -1 if all are equal. */
static invar_status search_chains(int64_t *out, invar_diff *diff, view sides[2], int64_t first,
                                  int64_t last)
{
    int64_t begin = first;
    moment now[2];

    *out = -1;
    INVAR_TRY(read_step_of_both(now, diff, sides, last));
    if (invar_digest_equal(&now[0].chain, &now[1].chain))
        return INVAR_OK;
    while (first < last) {
        int64_t middle = first + (last - first) / 2;
        INVAR_TRY(read_step_of_both(now, diff, sides, middle));
        if (invar_digest_equal(&now[0].chain, &now[1].chain))
            first = middle + 1;
        else
            last = middle;
    }
    INVAR_TRY(read_step_of_both(now, diff, sides, first));
    // at the first step of a fork equal roots are possible, because the parents may differ
    if ((first > begin || begin == 0) && invar_digest_equal(&now[0].root, &now[1].root))
        return fail_view_corrupt(&sides[1],
                                 "it or the other run has a chain that its roots do not make");
    *out = first;
    return INVAR_OK;
}

/*
 * Finds the first step of [first, last] whose contents differ; -1 if all are equal. Reads all steps
 * up to it.
 */
static invar_status search_content(int64_t *out, const view sides[2], int64_t first, int64_t last)
{
    // with max(), SQLite takes the other columns from the row of the maximum
    static const char text[] = "SELECT step, content, max(seg) FROM step "
                               "WHERE run = ?1 AND step BETWEEN ?2 AND ?3 AND seg <= ?4 "
                               "GROUP BY step ORDER BY step";
    invar_diff_source a = source_of(&sides[0], first, last), b = source_of(&sides[1], first, last);
    invar_diff_join join;
    invar_status status = invar_diff_join_open(&join, &a, &b, text, 1);

    *out = -1;
    while (*out < 0 && invar_diff_join_next(&status, &join))
        if (!join.in_a || !join.in_b || !invar_diff_join_same(&join, 1))
            *out = invar_sql_int(join.in_a ? join.a : join.b, 0);
    return invar_diff_join_end(&join, status);
}

/*
 * Finds the first step of [first, last] whose chains differ, or, if all are equal, whose contents
 * differ; -1 if there is no difference.
 */
static invar_status search_divergence(int64_t *out, invar_diff *diff, view sides[2], int64_t first,
                                      int64_t last)
{
    INVAR_TRY(search_chains(out, diff, sides, first, last));
    return *out < 0 ? search_content(out, sides, first, last) : INVAR_OK;
}

static void set_divergence(invar_diff *diff, int64_t step, bool evaluations)
{
    diff->diverged = true;
    diff->step = step;
    diff->evaluations = evaluations;
}

/* ---- a run and itself ------------------------------------------------------------------------ */

/*
 * *out = whether the last segment of sides[1] executed the step, and an earlier segment did, too.
 */
static invar_status is_repeated(bool *out, invar_diff *diff, view sides[2], int64_t step)
{
    moment old, new;
    bool found;

    diff->steps.lookups++;
    *out = false;
    INVAR_TRY(read_step(&found, &new, &sides[1], step));
    if (!found || new.seg != sides[1].newest)
        return INVAR_OK;
    return read_step(out, &old, &sides[0], step);
}

/* Finds the first step that the last segment of sides[1] repeated with another result; else -1. */
static invar_status search_segment(int64_t *out, invar_diff *diff, view sides[2], int64_t after)
{
    const invar_diff_side *side = sides[0].side;
    int64_t first, low, high = side->last_step;
    bool twice = false;

    *out = -1;
    if (side->first_step < 0 || after >= high)
        return INVAR_OK;
    low = first = after < side->first_step ? side->first_step : after + 1;
    INVAR_TRY(is_repeated(&twice, diff, sides, first));
    if (!twice)
        return INVAR_OK;
    while (low < high) { // the repeated steps are the first ones of the segment: find their end
        int64_t middle = high - (high - low) / 2;
        INVAR_TRY(is_repeated(&twice, diff, sides, middle));
        if (twice)
            low = middle;
        else
            high = middle - 1;
    }
    return search_divergence(out, diff, sides, first, low);
}

/*
 * Finds a step that a segment of the run repeated with another result, and sets the divergence.
 * `twice` become the views of its executions.
 */
static invar_status search_segments(invar_diff *diff, view twice[2], const invar_diff_source *run)
{
    invar_sql_stmt *segments;
    invar_status status = invar_diff_prepare(
        &segments, run,
        "SELECT seg, after_step FROM segment WHERE run = ?1 AND seg > 0 ORDER BY seg");
    int64_t step = -1;

    while (step < 0 && invar_sql_next(&status, segments)) {
        twice[1].newest = invar_sql_int(segments, 0);
        twice[0].newest = twice[1].newest - 1;
        status = search_segment(&step, diff, twice, invar_sql_int(segments, 1));
    }
    invar_sql_free(segments);
    if (status == INVAR_OK && step >= 0)
        set_divergence(diff, step, false);
    return status;
}

/* Like search_segments, for evaluations. */
static invar_status search_repeated(invar_diff *diff, view twice[2], const invar_diff_source *run)
{
    invar_sql_stmt *rows;
    invar_status status = invar_diff_prepare(
        &rows, run,
        "SELECT e.step, e.seg, f.seg FROM evaluation e JOIN evaluation f "
        "USING(run, step, dataset, series) WHERE e.run = ?1 AND e.step >= -1 AND e.seg < f.seg "
        "AND e.value_bits <> f.value_bits ORDER BY 1, 3, 2 LIMIT 1");

    if (invar_sql_next(&status, rows)) {
        set_divergence(diff, invar_sql_int(rows, 0), true);
        twice[0].newest = invar_sql_int(rows, 1);
        twice[1].newest = invar_sql_int(rows, 2);
    }
    return invar_sql_end(rows, status);
}

/*
 * Checks whether the run `v` has two results of one step. If so, sets the divergence, and `sides`
 * become the views that have the two results. `name` is 'A' or 'B'.
 */
static invar_status search_self(invar_diff *diff, view sides[2], const view *v, char name)
{
    invar_diff_source run = source_of(v, 0, 0);
    view twice[2] = {*v, *v};

    INVAR_TRY(search_segments(diff, twice, &run));
    if (!diff->diverged)
        INVAR_TRY(search_repeated(diff, twice, &run));
    if (!diff->diverged)
        return INVAR_OK;
    diff->self_contradicting_side = name;
    diff->a = diff->b = *v->side;
    if (diff->evaluations) { // the segments that evaluated need not have executed the step
        diff->a.seg = twice[0].newest;
        diff->b.seg = twice[1].newest;
    }
    twice[0].side = &diff->a;
    twice[1].side = &diff->b;
    memcpy(sides, twice, sizeof twice);
    diff->steps.first = diff->steps.last = diff->step;
    diff->steps.compared = diff->step >= 0;
    return INVAR_OK;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/*
 * Compares the evaluations of the common steps. A step with different values takes precedence over
 * one with an evaluation that one side does not have.
 */
static invar_status compare_evaluations(invar_diff *diff, const view sides[2])
{
    // runs that begin at step 0 may evaluate their initial weights, at step -1; a fork does not
    int64_t first = diff->steps.first == 0 ? -1 : diff->steps.first;
    invar_diff_source a = source_of(&sides[0], diff->steps.last, first);
    invar_diff_source b = source_of(&sides[1], diff->steps.last, first);
    int64_t step;
    bool found;

    INVAR_TRY(invar_diff_compare_evaluations(&found, &step, &a, &b, false));
    if (found && (!diff->diverged || step < diff->step))
        set_divergence(diff, step, true);
    if (diff->diverged)
        return INVAR_OK;
    INVAR_TRY(invar_diff_compare_evaluations(&found, &step, &a, &b, true));
    if (found)
        set_divergence(diff, step, true);
    return INVAR_OK;
}

static int64_t steps_of(const invar_diff_side *side)
{
    return side->first_step < 0 ? 0 : side->last_step - side->first_step + 1;
}

/* Finds the common steps and the first of them that differs. */
static invar_status compare_steps(invar_diff *diff, view sides[2])
{
    int64_t a = diff->a.last_step, b = diff->b.last_step, last = a < b ? a : b, step;
    int64_t first = invar_max_i64(diff->a.first_step, diff->b.first_step);
    bool beside;

    diff->steps.only_a = steps_of(&diff->a);
    diff->steps.only_b = steps_of(&diff->b);
    if (last < 0 || last < first)
        return INVAR_OK;
    diff->steps.first = first;
    diff->steps.last = last;
    diff->steps.only_a -= last - first + 1;
    diff->steps.only_b -= last - first + 1;
    INVAR_TRY(search_chains(&step, diff, sides, first, last));
    beside = step < 0;
    if (beside)
        INVAR_TRY(search_content(&step, sides, first, last));
    if (step >= 0)
        set_divergence(diff, step, false);
    if (beside)
        INVAR_TRY(compare_evaluations(diff, sides));
    diff->steps.compared = (diff->diverged && !diff->evaluations ? diff->step : last) - first + 1;
    return INVAR_OK;
}

int64_t invar_diff_compared_step(const invar_diff *diff)
{
    return diff->diverged ? diff->step : diff->steps.last;
}

/*
 * Compares the weights before the step. Other versions mean other weights. If the versions are
 * equal, the chains before the step are equal, too, so the weights are the same; at the first step
 * the hashes of the initial weights decide.
 */
static invar_status compare_weights(invar_tristate *out, const moment now[2],
                                    const invar_diff_source of[2])
{
    invar_diff_join join;
    invar_status status;

    *out = now[0].weights == now[1].weights ? INVAR_TRISTATE_YES : INVAR_TRISTATE_NO;
    if (*out == INVAR_TRISTATE_NO || of[0].step > 0)
        return INVAR_OK;
    status = invar_diff_join_open(&join, &of[0], &of[1],
                                  "SELECT value FROM identity WHERE run = ?1 AND key = "
                                  "'" INVAR_LEDGER_WEIGHTS "'",
                                  0);
    if (!invar_diff_join_next(&status, &join) || !join.in_a || !join.in_b)
        *out = INVAR_TRISTATE_UNKNOWN;
    else if (!invar_diff_join_same(&join, 0))
        *out = INVAR_TRISTATE_NO;
    return invar_diff_join_end(&join, status);
}

/* Compares two digests; unknown if one of them is zeros, which means that it was not recorded. */
static invar_tristate compare_digests(const invar_digest *a, const invar_digest *b)
{
    static const invar_digest none;

    if (invar_digest_equal(a, &none) || invar_digest_equal(b, &none))
        return INVAR_TRISTATE_UNKNOWN;
    return invar_digest_equal(a, b) ? INVAR_TRISTATE_YES : INVAR_TRISTATE_NO;
}

/* Compares inputs and tensors of a step. */
static invar_status compare_step_inputs(invar_diff *diff, view sides[2], invar_diff_source of[2])
{
    moment now[2];

    INVAR_TRY(read_step_of_both(now, diff, sides, of[0].step));
    for (int i = 0; i < 2; i++) {
        invar_diff_side *side = sides[i].side;
        of[i].seg = now[i].seg;
        side->seg = side->seg < 0 ? now[i].seg : side->seg;
        side->root = now[i].root;
        side->chain = now[i].chain;
    }
    diff->roots_differ = diff->diverged && !invar_digest_equal(&now[0].root, &now[1].root);
    diff->same_batch = compare_digests(&now[0].batch, &now[1].batch);
    diff->same_rng = compare_digests(&now[0].rng, &now[1].rng);
    INVAR_TRY(compare_weights(&diff->same_weights, now, of));
    return invar_diff_compare_points(diff, &of[0], &of[1]);
}

/* Compares the records of one step: the divergent one, or for identical runs the last. */
static invar_status compare_step(invar_diff *diff, view sides[2])
{
    int64_t step = invar_diff_compared_step(diff);
    invar_diff_source of[2] = {source_of(&sides[0], step, -1), source_of(&sides[1], step, -1)};

    if (step < 0 && !diff->diverged)
        return INVAR_OK;
    // nothing is recorded about the time before step 0
    diff->same_batch = diff->same_rng = diff->same_weights = INVAR_TRISTATE_UNKNOWN;
    if (step >= 0)
        INVAR_TRY(compare_step_inputs(diff, sides, of));
    return invar_diff_compare_records(diff, &of[0], &of[1]);
}

/* Compares the facts of all segments, or of two segments if a run is compared with itself. */
static invar_status compare_facts(invar_diff *diff, const view sides[2])
{
    invar_diff_source of[2];

    for (int i = 0; i < 2; i++) {
        int64_t seg = sides[i].side->seg;
        of[i] = source_of(&sides[i], diff->self_contradicting_side ? seg : 0,
                          diff->self_contradicting_side ? seg : INT64_MAX);
    }
    return invar_diff_compare_facts(diff, &of[0], &of[1]);
}

/* True if values differ, false if one side merely has evaluations that the other does not have. */
static bool has_contradiction(const invar_diff *diff)
{
    if (!diff->evaluations)
        return diff->diverged;
    for (const invar_diff_metric *m = diff->metrics.items;
         m < diff->metrics.items + diff->metrics.count; m++)
        if (m->in_a && m->in_b)
            return true;
    return false;
}

static void compute_verdict(invar_diff *diff)
{
    diff->same_inputs =
        diff->same_inputs && !diff->self_contradicting_side && has_contradiction(diff);
    if (diff->same_inputs || (diff->self_contradicting_side && !invar_diff_program_change(diff)))
        diff->verdict = INVAR_DIFF_VERDICT_NONDETERMINISTIC;
    else if (diff->diverged)
        diff->verdict = INVAR_DIFF_VERDICT_DIFFERENT;
    else if (diff->steps.first < 0)
        diff->verdict = INVAR_DIFF_VERDICT_NOTHING;
    else
        diff->verdict = INVAR_DIFF_VERDICT_IDENTICAL;
}

static invar_status compare_one_step(invar_diff *diff, view sides[2], int64_t step)
{
    moment now[2];

    INVAR_TRY(open_side(diff, &sides[0]));
    INVAR_TRY(open_side(diff, &sides[1]));
    INVAR_TRY(read_step_of_both(now, diff, sides, step));
    diff->steps.first = diff->steps.last = step;
    diff->steps.compared = 1;
    if (!invar_digest_equal(&now[0].root, &now[1].root))
        set_divergence(diff, step, false);
    INVAR_TRY(compare_step(diff, sides));
    if (diff->points.count && !diff->diverged)
        set_divergence(diff, step, false);
    INVAR_TRY(compare_facts(diff, sides));
    compute_verdict(diff);
    return INVAR_OK;
}

static invar_status compare_all_steps(invar_diff *diff, view runs[2], int64_t step)
{
    bool same = runs[0].ledger == runs[1].ledger && runs[0].run == runs[1].run;
    view sides[2];

    (void)step;
    INVAR_TRY(open_side(diff, &runs[0]));
    INVAR_TRY(open_side(diff, &runs[1]));
    memcpy(sides, runs, sizeof sides);
    INVAR_TRY(search_self(diff, sides, &runs[0], 'A'));
    if (!diff->self_contradicting_side && !same)
        INVAR_TRY(search_self(diff, sides, &runs[1], 'B'));
    if (!diff->self_contradicting_side)
        INVAR_TRY(compare_steps(diff, sides));
    INVAR_TRY(compare_step(diff, sides));
    INVAR_TRY(compare_facts(diff, sides));
    compute_verdict(diff);
    return INVAR_OK;
}

static invar_status diff_new(invar_diff **out, invar_ledger *a, int64_t run_a, invar_ledger *b,
                             int64_t run_b, int64_t step,
                             invar_status (*compare)(invar_diff *diff, view runs[2], int64_t step))
{
    bool began[2] = {false, false};
    invar_diff *diff;
    invar_status status;

    INVAR_TRY(INVAR_ALLOC(diff, 1, "a diff"));
    *diff = (invar_diff){.step = -1, .steps.first = -1, .steps.last = -1};
    view runs[2] = {{a, run_a, INT64_MAX, &diff->a, NULL}, {b, run_b, INT64_MAX, &diff->b, NULL}};
    status = invar_ledger_snapshot(&began[0], a);
    if (status == INVAR_OK)
        status = invar_ledger_snapshot(&began[1], b);
    if (status == INVAR_OK)
        status = compare(diff, runs, step);
    for (int i = 0; i < 2; i++) {
        invar_sql_free(runs[i].at);
        invar_ledger_snapshot_end(i ? b : a, began[i]);
    }
    if (status == INVAR_OK)
        *out = diff;
    else
        invar_diff_free(diff);
    return status;
}

invar_status invar_diff_runs(invar_diff **out, invar_ledger *a, int64_t run_a, invar_ledger *b,
                             int64_t run_b)
{
    return diff_new(out, a, run_a, b, run_b, -1, compare_all_steps);
}

invar_status invar_diff_step(invar_diff **out, invar_ledger *a, int64_t run_a, invar_ledger *b,
                             int64_t run_b, int64_t step)
{
    return diff_new(out, a, run_a, b, run_b, step, compare_one_step);
}
