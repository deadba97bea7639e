/*
 * inside.h - ledgers for tests from the inside: their points and faults.
 *
 * Only tests/ledger includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_LEDGER_INSIDE_H
#define INVAR_TESTS_LEDGER_INSIDE_H

#include "tests/ledger.h"

#define INVAR_TEST_POINTS 16 /* at most */
#define INVAR_TEST_RANKS 2

typedef struct invar_test_point {
    const char *name, *phase;
    int64_t layer;
    const char *op, *kind;
    int64_t level;
    const char *inputs[2];
} invar_test_point;

/* The points of a run: rows[i] is the row of the i-th, inputs as indices of points. */
typedef struct invar_test_points {
    size_t count;
    const invar_test_point *rows[INVAR_TEST_POINTS];
    int64_t inputs[INVAR_TEST_POINTS][2];
    size_t n_inputs[INVAR_TEST_POINTS];
} invar_test_points;

void invar_test_points_of(invar_test_points *out, const invar_test_ledger *spec);

/* The index of a point; points->count: there is none of this name. */
size_t invar_test_points_find(const invar_test_points *points, const char *name);

/* Weights, and gradients of weights, are the same on every rank. */
bool invar_test_point_replicated(const invar_test_point *row);

/* Defines the points of a run in its ledger. */
invar_status invar_test_points_define(invar_ledger *ledger,
                                      const invar_test_ledger *spec) INVAR_MUST_USE;

/* Two samples of a step with their text, which tries to be more than text. */
#define INVAR_TEST_KEPT 2

typedef struct invar_test_kept {
    invar_ledger_kept_sample items[INVAR_TEST_KEPT];
} invar_test_kept;

invar_status invar_test_kept_make(invar_test_kept *out, int64_t step) INVAR_MUST_USE;
void invar_test_kept_release(invar_test_kept *kept);

/* The first fault of this kind, or NULL. */
const invar_test_fault *invar_test_fault_of(const invar_test_ledger *spec,
                                            invar_test_fault_kind kind);

/* The fault of this kind if it strikes at this step. */
const invar_test_fault *invar_test_fault_at(const invar_test_ledger *spec,
                                            invar_test_fault_kind kind, int64_t step);

/* The same if it has struck by then. */
const invar_test_fault *invar_test_fault_since(const invar_test_ledger *spec,
                                               invar_test_fault_kind kind, int64_t step);

/* INVAR_E_INVALID: a fault names a point that is not there. */
invar_status invar_test_fault_check(const invar_test_ledger *spec) INVAR_MUST_USE;

#endif
