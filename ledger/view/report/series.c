/*
 * series.c - collects the curves of a report: every series, thinned without losing an extreme.
 *
 * A long run is divided into stretches of equally many steps. Of each stretch the smallest and
 * largest value remain, and the first that is not finite; of the series also the first and the last
 * value. So one pass suffices for any length, and a spike of one step keeps its height.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "ledger/internal.h"
#include "ledger/view/measured.h"
#include "ledger/view/report/internal.h"

#include "base/invar_banned.h"

enum { OF_A_STRETCH = 3 }; // maximum number of points that remain of a stretch

typedef struct point {
    int64_t step;
    uint64_t bits;
    double value; /* value with these bits */
} point;

/* A series that is being read. Zero-initialized before its first value. */
typedef struct curve {
    int64_t series;     /* number of the series in the ledger */
    json_t *name;       /* owned */
    int64_t count, odd; /* number of values so far, and of those that are not finite */

    uint64_t stretch;    /* index of the current stretch */
    int64_t finite, bad; /* number of finite and other values in the current stretch */
    point low, high;     /* smallest and largest finite value of the current stretch */
    point strange;       /* first value of the current stretch that is not finite */
    point first, last;   /* first and last value of the series so far */

    json_t *at;        /* step differences of the kept points; owned; NULL before the first */
    int64_t kept_step; /* step of the last kept point */
    char *bits;        /* (room) patterns of the kept points; owned */
    int64_t used, room;
} curve;

/* All series of one kind of a run. */
typedef struct sheet {
    const invar_report_run *run;
    json_t *out;
    const char *kind;
    uint64_t first_step, width; /* first step, and steps per stretch; unsigned against overflow */
    curve *curves;              /* (count) ascending by number of the series */
    int64_t count, room;
} sheet;

static void curve_release(curve *c)
{
    json_decref(c->name);
    json_decref(c->at);
    invar_free(c->bits);
    memset(c, 0, sizeof *c);
}

/* ---- thinning -------------------------------------------------------------------------------- */

static invar_status curve_add_point(curve *c, const point *p)
{
    uint64_t before = c->at ? (uint64_t)c->kept_step : 0;

    if (c->at && p->step <= c->kept_step)
        return INVAR_OK; // one point may be both extreme and first or last
    if (!c->at)
        c->at = json_array();
    INVAR_TRY(invar_report_append(c->at, json_integer((json_int_t)((uint64_t)p->step - before))));
    INVAR_TRY(
        INVAR_GROW(c->bits, c->room, c->used, c->used + INVAR_REPORT_BITS_DIGITS + 1, "a series"));
    invar_report_bits(c->bits + c->used, p->bits);
    c->used += INVAR_REPORT_BITS_DIGITS;
    c->kept_step = p->step;
    return INVAR_OK;
}

/* Keeps the remaining points of the current stretch, in order of steps. */
static invar_status finish_stretch(curve *c, bool ends_series)
{
    const point *left[OF_A_STRETCH + 2];
    int n = 0;

    if (!c->at)
        left[n++] = &c->first;
    if (c->finite > 0) {
        left[n++] = &c->low;
        left[n++] = &c->high;
    }
    if (c->bad > 0)
        left[n++] = &c->strange;
    if (ends_series)
        left[n++] = &c->last;
    for (int i = 1; i < n; i++) {
        for (int k = i; k > 0 && left[k]->step < left[k - 1]->step; k--) {
            const point *swap = left[k];
            left[k] = left[k - 1];
            left[k - 1] = swap;
        }
    }
    for (int i = 0; i < n; i++)
        INVAR_TRY(curve_add_point(c, left[i]));
    c->finite = c->bad = 0;
    return INVAR_OK;
}

static invar_status curve_add(curve *c, const sheet *s, int64_t step, uint64_t bits)
{
    point p = {.step = step, .bits = bits};
    uint64_t stretch = ((uint64_t)step - s->first_step) / s->width;

    memcpy(&p.value, &bits, sizeof p.value);
    if (c->count > 0 && stretch != c->stretch)
        INVAR_TRY(finish_stretch(c, false));
    c->stretch = stretch;
    if (c->count++ == 0)
        c->first = p;
    c->last = p;
    if (!isfinite(p.value)) {
        c->odd++;
        if (c->bad++ == 0)
            c->strange = p;
        return INVAR_OK;
    }
    if (c->finite == 0 || p.value < c->low.value)
        c->low = p;
    if (c->finite == 0 || p.value > c->high.value)
        c->high = p;
    c->finite++;
    return INVAR_OK;
}

/* Appends the series to the data and releases it. */
static invar_status curve_finish(curve *c, const sheet *s)
{
    invar_status status = INVAR_OK;

    if (c->count > 0) {
        status = finish_stretch(c, true);
        if (status == INVAR_OK)
            status = invar_report_append(
                s->out, json_pack("{s:O, s:s, s:I, s:I, s:O, s:s%}", "name", c->name, "kind",
                                  s->kind, "count", (json_int_t)c->count, "odd", (json_int_t)c->odd,
                                  "at", c->at, "bits", c->bits, (size_t)c->used));
    }
    curve_release(c);
    return status;
}

invar_status invar_report_series_count(int64_t *out, const invar_report_run *run)
{
    return invar_sql_query_int(out, run->ledger->sql, "SELECT count(*) FROM series WHERE ?1 = ?1",
                               run->run);
}

/* ---- series that come side by side, step after step ------------------------------------------ */

#define OF_STEPS(table)                                                                            \
    "SELECT x.series, s.step, x.value_bits FROM step s JOIN " table " x USING(run, step, seg)"     \
    " WHERE s.run = ?1 AND s.seg ="                                                                \
    " (SELECT max(t.seg) FROM step t WHERE t.run = s.run AND t.step = s.step)"                     \
    " AND " INVAR_MEASURED_METRIC " ORDER BY s.step"

static invar_status take_name(void *payload, invar_sql_stmt *row)
{
    sheet *s = payload;

    if (s->count == s->room) { // the snapshot has no more series than were counted
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "ledger %.1000s: the table series contradicts itself",
                          invar_sql_path(s->run->ledger->sql));
    }
    curve *c = &s->curves[s->count++];
    c->series = invar_sql_int(row, 0);
    c->name = invar_report_column(row, 1);
    return c->name ? INVAR_OK : INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for a series");
}

static invar_status take_value(void *payload, invar_sql_stmt *row)
{
    sheet *s = payload;
    int64_t series = invar_sql_int(row, 0);
    int64_t i = invar_binary_search(s->curves, s->count, sizeof *s->curves, offsetof(curve, series),
                                    series);

    if (i < 0)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "ledger %.1000s: series %" PRId64
                          " has no name; invar ledger verify says more",
                          invar_sql_path(s->run->ledger->sql), series);
    return curve_add(&s->curves[i], s, invar_sql_int(row, 1), (uint64_t)invar_sql_int(row, 2));
}

static invar_status read_side_by_side(sheet *s, const char *text)
{
    INVAR_TRY(invar_report_each(s->run,
                                "SELECT series, name FROM series"
                                " ORDER BY series",
                                take_name, s));
    INVAR_TRY(invar_report_each(s->run, text, take_value, s));
    for (int64_t i = 0; i < s->count; i++)
        INVAR_TRY(curve_finish(&s->curves[i], s));
    return INVAR_OK;
}

static invar_status add_side_by_side(sheet *s, const char *kind, const char *text)
{
    INVAR_TRY(invar_report_series_count(&s->room, s->run));
    INVAR_TRY(INVAR_ALLOC_ZEROED(s->curves, (size_t)s->room, "series"));
    s->count = 0;
    s->kind = kind;
    invar_status status = read_side_by_side(s, text);
    for (int64_t i = 0; i < s->count; i++)
        curve_release(&s->curves[i]);
    invar_free(s->curves);
    return status;
}

/* ---- series that come one after the other ---------------------------------------------------- */

static const char evaluations[] = "SELECT " INVAR_LEDGER_EVALUATION(
    "x", "n") " AS name, x.step, x.value_bits"
              " FROM evaluation x JOIN series n USING(series) WHERE x.run = ?1 AND x.seg ="
              " (SELECT max(y.seg) FROM evaluation y WHERE y.run = x.run AND y.step = x.step"
              "  AND y.dataset = x.dataset AND y.series = x.series) ORDER BY 1, 2";

static const char timings[] =
    "SELECT 'time/' || x.phase AS name, s.step, x.duration_ns / 1e9"
    " FROM step s JOIN timing x USING(run, step, seg) WHERE s.run = ?1 AND s.seg ="
    " (SELECT max(t.seg) FROM step t WHERE t.run = s.run AND t.step = s.step) ORDER BY 1, 2";

static invar_status take_named(void *payload, invar_sql_stmt *row)
{
    sheet *s = payload;
    curve *c = s->curves;
    uint64_t bits = (uint64_t)invar_sql_int(row, 2);
    json_t *name = invar_report_column(row, 0);

    if (!name)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for a series");
    if (c->name && json_equal(c->name, name)) {
        json_decref(name);
    } else {
        invar_status status = curve_finish(c, s);
        c->name = name;
        INVAR_TRY(status);
    }
    if (invar_sql_type(row, 2) == INVAR_LEDGER_TYPE_REAL) {
        double value = invar_sql_real(row, 2);
        memcpy(&bits, &value, sizeof bits);
    }
    return curve_add(c, s, invar_sql_int(row, 1), bits);
}

static invar_status add_one_by_one(sheet *s, const char *kind, const char *text)
{
    curve present = {0};

    s->kind = kind;
    s->curves = &present;
    invar_status status = invar_report_each(s->run, text, take_named, s);
    if (status == INVAR_OK)
        status = curve_finish(&present, s);
    curve_release(&present);
    return status;
}

invar_status invar_report_add_series(json_t *series, const invar_report_run *run, int64_t first,
                                     int64_t last, int64_t limit)
{
    uint64_t span = (uint64_t)last - (uint64_t)first; // number of steps - 1
    uint64_t stretches = (uint64_t)(limit - 2) / OF_A_STRETCH;
    sheet s = {.run = run, .out = series, .first_step = (uint64_t)first, .width = 1};

    if (span >= (uint64_t)limit)
        s.width = span / stretches + 1;
    INVAR_TRY(add_side_by_side(&s, "metric", OF_STEPS("metric")));
    INVAR_TRY(add_side_by_side(&s, "gauge", OF_STEPS("gauge")));
    INVAR_TRY(add_one_by_one(&s, "evaluation", evaluations));
    return add_one_by_one(&s, "time", timings);
}
