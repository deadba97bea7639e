/*
 * points.h - compares the points of two passes: the first one that differs names the wrong op.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_PROPERTY_ENGINE_POINTS_H
#define INVAR_TESTS_PROPERTY_ENGINE_POINTS_H

#include <string.h>

#include "engine/model/probe/probe.h"
#include "tests/support.h"

enum { POINTS_MAX = 400 };

typedef struct points {
    invar_probe *probe; /* owns the texts of the points */
    const invar_ledger_point *defs;
    int64_t count;
    invar_digest digests[POINTS_MAX];
} points;

/* Takes the points of the probe. Release with points_release, which frees the probe. */
static inline void points_finish(points *out, invar_probe *probe)
{
    invar_probe_result result;

    assert_ok(invar_probe_finish(&result, probe));
    assert_in_range(result.count, 6, POINTS_MAX);
    out->probe = probe;
    out->defs = result.points;
    out->count = result.count;
    memcpy(out->digests, result.digests, (size_t)result.count * sizeof *out->digests);
}

static inline void points_release(points *p)
{
    invar_probe_free(p->probe);
}

static inline bool points_differ(const points *a, const points *b, int64_t point)
{
    return !invar_digest_equal(&a->digests[point], &b->digests[point]);
}

/* Returns the first point that differs; NULL if there is none. */
static inline const invar_ledger_point *points_first(const points *a, const points *b)
{
    assert_int_equal(a->count, b->count);
    for (int64_t i = 0; i < a->count; i++) {
        assert_string_equal(a->defs[i].name, b->defs[i].name);
        if (points_differ(a, b, i))
            return &a->defs[i];
    }
    return NULL;
}

static inline int64_t points_number(const points *p, const char *name)
{
    for (int64_t i = 0; i < p->count; i++)
        if (strcmp(p->defs[i].name, name) == 0)
            return i;
    fail_msg("there is no point %s", name);
    return -1;
}

/*
 * Returns the first point that differs. Asserts that it belongs to `op`, and that its inputs are
 * equal.
 */
static inline const invar_ledger_point *points_named(const points *right, const points *other,
                                                     const char *op, const char *what)
{
    const invar_ledger_point *p = points_first(right, other);

    if (!p)
        fail_msg("%s: no point differs with another %s", what, op);
    if (strcmp(p->op, op) != 0)
        fail_msg("%s: another %s shows first at %s, which is of %s", what, op, p->name, p->op);
    for (size_t i = 0; i < p->n_inputs; i++)
        assert_false(points_differ(right, other, p->inputs[i]));
    return p;
}

#endif
