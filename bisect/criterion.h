/*
 * criterion.h - criterion of a bisect: the chain of a run, a metric with a bound, some points of
 * the run, or the exit code of a command.
 *
 * Evaluating a criterion gives a value, a short text; equal texts mean equal behavior. A metric
 * gives "no" or "yes" and a command "good" or "bad". The chain and points give a digest, so that
 * more than two behaviors can be distinguished.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_CRITERION_H
#define INVAR_BISECT_CRITERION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "ledger/ledger.h"

typedef enum invar_criterion_kind {
    INVAR_CRITERION_CHAIN,
    INVAR_CRITERION_METRIC,
    INVAR_CRITERION_POINTS,
    INVAR_CRITERION_EXIT
} invar_criterion_kind;

#define INVAR_CRITERION_WORD 128
/*
 * Bytes of a value, with the NUL. A value is the chain (CHAIN), a digest of the points of level 0
 * that the filters select (POINTS), "yes" or "no" (METRIC), or "good" or "bad" (EXIT, set by
 * trial.c).
 */
#define INVAR_VALUE_SIZE 48

typedef struct invar_criterion {
    invar_criterion_kind kind;
    int64_t until; /* last step that is compared; -1 for the last step of the recipe */
    /* METRIC: the value is "yes" if NAME OP BOUND holds at a step */
    char metric[INVAR_CRITERION_WORD];
    char op[3]; /* one of < <= > >= == != */
    double bound;
    /* POINTS: filters, combined with AND; an empty string or -1 matches any */
    int64_t layer;
    char point_kind[INVAR_CRITERION_WORD], point_op[INVAR_CRITERION_WORD];
    char phase[INVAR_CRITERION_WORD],
        point[INVAR_CRITERION_WORD]; /* SQL LIKE pattern of the name */
} invar_criterion;

/* Returns true if the value is a digest, so that more than two values are possible. */
bool invar_criterion_has_bits(const invar_criterion *criterion);

/*
 * Parses a metric criterion such as "grad_norm > 5" or "train/logp_diff_max != 0". A NaN value
 * satisfies only !=, unless the bound is nan. Returns INVAR_E_INVALID for other texts.
 */
invar_status invar_criterion_parse(invar_criterion *out, const char *text) INVAR_MUST_USE;

/*
 * Evaluates the criterion, which is not EXIT, on a ledger. Returns INVAR_E_NOTFOUND if the run has
 * no step, no such metric or no matching point, INVAR_E_INVALID if several metrics match.
 */
invar_status invar_criterion_evaluate(char out[INVAR_VALUE_SIZE], const invar_criterion *criterion,
                                      const char *ledger) INVAR_MUST_USE;

/*
 * Returns true if no later step of the run at `ledger` can change the value, because the metric has
 * crossed its bound. Returns false if the ledger does not exist yet or cannot be read.
 */
bool invar_criterion_is_decided(const invar_criterion *criterion, const char *ledger);

/*
 * *out is the first step at which two runs have different chains; -1 if all common steps are equal.
 * last_out has the last step of each run; -1 if it has no step.
 */
invar_status invar_criterion_first_divergence(int64_t *out, int64_t last_out[2], const char *a,
                                              const char *b) INVAR_MUST_USE;

/* Writes the criterion as text, for example "chain up to step 7" or "train/grad_norm > 5". */
#define INVAR_CRITERION_TEXT 256
void invar_criterion_describe(char out[INVAR_CRITERION_TEXT], const invar_criterion *criterion);

#endif
