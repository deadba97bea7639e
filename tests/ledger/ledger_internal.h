/*
 * ledger_internal.h - points, kept samples and faults of the ledgers that tests/ledger.h writes.
 *
 * Private to tests/ledger/.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_LEDGER_LEDGER_INTERNAL_H
#define INVAR_TESTS_LEDGER_LEDGER_INTERNAL_H

#include "tests/ledger.h"

#define INVAR_TEST_POINTS 16 /* largest number of points of a run */
#define INVAR_TEST_RANKS 2

typedef struct invar_test_point {
    const char *name, *phase;
    int64_t layer; /* -1 if it belongs to no layer */
    const char *op, *kind;
    int64_t level;
    const char *inputs[2]; /* names of earlier points; NULL ends the list */
} invar_test_point;

/* The points of a run: rows[i] describes point i; inputs are indices of points. */
typedef struct invar_test_points {
    size_t count;
    const invar_test_point *rows[INVAR_TEST_POINTS];
    int64_t inputs[INVAR_TEST_POINTS][2];
    size_t n_inputs[INVAR_TEST_POINTS];
} invar_test_points;

void invar_test_points_of(invar_test_points *out, const invar_test_ledger *spec);

/* Returns the index of a point, or points->count if there is none of this name. */
size_t invar_test_points_find(const invar_test_points *points, const char *name);

/* Returns true if all ranks have equal values: weights, and gradients of weights. */
bool invar_test_point_replicated(const invar_test_point *row);

/* Defines the points of a run in its ledger. */
invar_status invar_test_points_define(invar_ledger *ledger,
                                      const invar_test_ledger *spec) INVAR_MUST_USE;

/* Number of kept samples per step. Their texts contain markup and control characters. */
#define INVAR_TEST_KEPT 2

typedef struct invar_test_kept {
    invar_ledger_kept_sample items[INVAR_TEST_KEPT];
} invar_test_kept;

invar_status invar_test_kept_make(invar_test_kept *out, int64_t step) INVAR_MUST_USE;
void invar_test_kept_release(invar_test_kept *kept);

/* Returns the first fault of this kind, or NULL if there is none. */
const invar_test_fault *invar_test_fault_of(const invar_test_ledger *spec,
                                            invar_test_fault_kind kind);

/* Returns the fault of this kind if its step is `step`, else NULL. */
const invar_test_fault *invar_test_fault_at(const invar_test_ledger *spec,
                                            invar_test_fault_kind kind, int64_t step);

/* Returns the fault of this kind if its step is `step` or earlier, else NULL. */
const invar_test_fault *invar_test_fault_since(const invar_test_ledger *spec,
                                               invar_test_fault_kind kind, int64_t step);

/* Returns INVAR_E_INVALID if a fault names a point that the run does not have. */
invar_status invar_test_fault_check(const invar_test_ledger *spec) INVAR_MUST_USE;

#endif
