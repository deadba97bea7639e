/*
 * divergence.c - finds the first point at which a run differs from a golden.
 *
 * Points are paired by name. Values are compared at the first step that both sides have recorded,
 * from the divergent step on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ledger/view/golden/internal.h"

#include "base/invar_banned.h"

#define ALONE SIZE_MAX

/* The points of the golden paired with those of the run. */
typedef struct pairs {
    const invar_golden_points *was, *is;
    size_t *twin;   /* (was->n_points) index of the point in `is`; ALONE if it does not have it */
    size_t *origin; /* (is->n_points) index of the point in `was`; ALONE if it does not have it */
} pairs;

static invar_status pair_up(pairs *p)
{
    const invar_golden_point **a, **b;
    invar_status status;

    INVAR_TRY(invar_golden_sort_points(&a, p->was));
    status = invar_golden_sort_points(&b, p->is);
    for (size_t i = 0, k = 0; status == INVAR_OK && i < p->was->n_points && k < p->is->n_points;) {
        int order = strcmp(a[i]->name, b[k]->name);
        if (order == 0) {
            p->twin[a[i] - p->was->points] = (size_t)(b[k] - p->is->points);
            p->origin[b[k] - p->is->points] = (size_t)(a[i] - p->was->points);
        }
        i += order <= 0;
        k += order >= 0;
    }
    if (status == INVAR_OK)
        invar_free(b);
    invar_free(a);
    return status;
}

/* ---- what is computed ------------------------------------------------------------------------ */

static void add_change(invar_golden_divergence *out, const char *format, ...) INVAR_PRINTF(2, 3);
static void add_change(invar_golden_divergence *out, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    if (out->n_changes < INVAR_GOLDEN_SHOWN)
        (void)vsnprintf(out->changes[out->n_changes], INVAR_GOLDEN_CHANGE, format, list);
    va_end(list);
    out->n_changes++;
}

static void add_field_change(invar_golden_divergence *out, const char *point, const char *field,
                             const char *was, const char *is)
{
    if (strcmp(was, is) != 0)
        add_change(out, "%.90s: %s %.40s, was %.40s", point, field, is, was);
}

static void compare_structure(invar_golden_divergence *out, const pairs *p)
{
    size_t last = 0;

    for (size_t i = 0; i < p->was->n_points; i++) {
        const invar_golden_point *a = &p->was->points[i], *b;
        if (p->twin[i] == ALONE) {
            add_change(out, "%.120s: is not there any more", a->name);
            continue;
        }
        b = &p->is->points[p->twin[i]];
        add_field_change(out, a->name, "phase", a->phase, b->phase);
        add_field_change(out, a->name, "op", a->op, b->op);
        add_field_change(out, a->name, "kind", a->kind, b->kind);
        add_field_change(out, a->name, "dtype", a->dtype, b->dtype);
        add_field_change(out, a->name, "shape", a->shape, b->shape);
        if (a->layer != b->layer)
            add_change(out, "%.120s: another layer", a->name);
        if (p->twin[i] < last)
            add_change(out, "%.120s: comes earlier than before", a->name);
        last = p->twin[i] > last ? p->twin[i] : last;
    }
    for (size_t i = 0; i < p->is->n_points; i++)
        if (p->origin[i] == ALONE)
            add_change(out, "%.120s: is new", p->is->points[i].name);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Finds the first step, from `step` on, that both sides have recorded. */
static bool find_step(const invar_golden_values **a_out, const invar_golden_values **b_out,
                      const pairs *p, int64_t step)
{
    size_t i = 0, k = 0;

    while (i < p->was->n_values && k < p->is->n_values) {
        int64_t a = p->was->values[i].step, b = p->is->values[k].step;
        *a_out = &p->was->values[i];
        *b_out = &p->is->values[k];
        if (a == b && a >= step)
            return true;
        i += a <= b;
        k += b <= a;
    }
    return false;
}

static void name_point(invar_golden_divergence *out, const invar_golden_point *p, const char *was,
                       const char *is)
{
    out->known = true;
    (void)snprintf(out->point, sizeof out->point, "%s", p->name);
    (void)snprintf(out->phase, sizeof out->phase, "%s", p->phase);
    (void)snprintf(out->op, sizeof out->op, "%s", p->op);
    (void)snprintf(out->kind, sizeof out->kind, "%s", p->kind);
    (void)snprintf(out->dtype, sizeof out->dtype, "%s", p->dtype);
    (void)snprintf(out->shape, sizeof out->shape, "%s", p->shape);
    (void)snprintf(out->was, sizeof out->was, "%.*s", INVAR_GOLDEN_DIGITS, was);
    (void)snprintf(out->is, sizeof out->is, "%.*s", INVAR_GOLDEN_DIGITS, is);
    out->layer = p->layer;
}

static void compare_values(invar_golden_divergence *out, const pairs *p, const char *a,
                           const char *b)
{
    for (size_t i = 0; i < p->was->n_points; i++) {
        const char *was = a + INVAR_GOLDEN_DIGITS * i, *is;
        const invar_golden_point *old = &p->was->points[i], *now;
        if (p->twin[i] == ALONE)
            continue;
        now = &p->is->points[p->twin[i]];
        if (strcmp(old->dtype, now->dtype) != 0 || strcmp(old->shape, now->shape) != 0)
            continue;
        is = b + INVAR_GOLDEN_DIGITS * p->twin[i];
        if (memcmp(was, is, INVAR_GOLDEN_DIGITS) == 0) {
            out->equal++;
            continue;
        }
        if (out->different++ == 0)
            name_point(out, &p->was->points[i], was, is);
    }
}

invar_status invar_golden_localize(invar_golden_divergence *out, const invar_golden_points *was,
                                   const invar_golden_points *is, int64_t step)
{
    pairs p = {.was = was, .is = is};
    const invar_golden_values *a, *b;
    invar_status status;

    *out = (invar_golden_divergence){.step = -1, .layer = -1};
    INVAR_TRY(INVAR_ALLOC(p.twin, was->n_points + is->n_points, "pairs"));
    p.origin = p.twin + was->n_points;
    for (size_t i = 0; i < was->n_points + is->n_points; i++)
        p.twin[i] = ALONE;
    status = pair_up(&p);
    if (status == INVAR_OK) {
        compare_structure(out, &p);
        if (find_step(&a, &b, &p, step)) {
            out->step = a->step;
            out->exact = a->step == step;
            compare_values(out, &p, a->digits, b->digits);
        }
    }
    invar_free(p.twin);
    return status;
}

void invar_golden_divergence_describe(char out[INVAR_GOLDEN_HEADLINE],
                                      const invar_golden_divergence *divergence, int64_t first)
{
    char layer[32] = "";
    int at;

    if (!divergence->known) {
        (void)snprintf(out, INVAR_GOLDEN_HEADLINE, "step %" PRId64 "%s", first,
                       divergence->n_changes ? ", the points are others" : "");
        return;
    }
    if (divergence->layer >= 0)
        (void)snprintf(layer, sizeof layer, "layer %" PRId64 ", ", divergence->layer);
    at = snprintf(out, INVAR_GOLDEN_HEADLINE, "step %" PRId64 ", point %s (%s, %s%s)", first,
                  divergence->point, divergence->phase, layer, divergence->op);
    if (!divergence->exact && at > 0 && at < INVAR_GOLDEN_HEADLINE)
        (void)snprintf(out + at, (size_t)(INVAR_GOLDEN_HEADLINE - at),
                       "; as step %" PRId64 " shows, the first recorded one after it",
                       divergence->step);
}
