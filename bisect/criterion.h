/*
 * criterion.h - what a trial is asked: the chain of a run, a metric against a bound, some points of
 * it, or the exit code of a command.
 *
 * The answer to a question is a value, a short text: equal texts mean equal behaviour. With a
 * metric it is "no" or "yes"; with a command "good" or "bad"; with the chain the chain itself, so
 * that more than two behaviours can be told apart.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_CRITERION_H
#define INVAR_BISECT_CRITERION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_criterion_kind {
    INVAR_CRITERION_CHAIN,
    INVAR_CRITERION_METRIC,
    INVAR_CRITERION_POINTS,
    INVAR_CRITERION_EXIT
} invar_criterion_kind;

#define INVAR_CRITERION_WORD 128
#define INVAR_VALUE_SIZE 48

typedef struct invar_criterion {
    invar_criterion_kind kind;
    int64_t until; /* the last step that counts; -1: the last of the recipe */
    /* of a metric: NAME OP BOUND holds at a step */
    char metric[INVAR_CRITERION_WORD];
    char op[3]; /* < <= > >= == != */
    double bound;
    /* of points: those that match all that is given; "" and -1: any */
    int64_t layer;
    char point_kind[INVAR_CRITERION_WORD], point_op[INVAR_CRITERION_WORD];
    char phase[INVAR_CRITERION_WORD],
        point[INVAR_CRITERION_WORD]; /* SQL LIKE pattern of the name */
} invar_criterion;

/* True when the value is a hash, so that there can be more than two. */
bool invar_criterion_has_bits(const invar_criterion *question);

/* "grad_norm > 5", "train/logp_diff_max != 0"; NaN satisfies != only, unless the bound is nan. */
invar_status invar_criterion_parse(invar_criterion *out, const char *text) INVAR_MUST_USE;

/* The value that a ledger gives. INVAR_E_NOTFOUND: it has no step, no such metric or no point. */
invar_status invar_criterion_evaluate(char out[INVAR_VALUE_SIZE], const invar_criterion *question,
                                      const char *ledger) INVAR_MUST_USE;

/*
 * True as soon as nothing that follows in the run at `ledger` can change the value: the metric has
 * crossed its bound. A ledger that is not there yet settles nothing.
 */
invar_status invar_criterion_is_decided(bool *out, const invar_criterion *question,
                                        const char *ledger) INVAR_MUST_USE;

/* The first step at which two runs have different chains; -1: equal as far as both go. */
invar_status invar_criterion_first_divergence(int64_t *out, const char *a,
                                              const char *b) INVAR_MUST_USE;

/* The last step of the run at `ledger`; -1: none. */
invar_status invar_criterion_last_step(int64_t *out, const char *ledger) INVAR_MUST_USE;

/* The question in words, "chain at step 7", "train/grad_norm > 5". */
#define INVAR_CRITERION_TEXT 256
void invar_criterion_describe(char out[INVAR_CRITERION_TEXT], const invar_criterion *question);

#ifdef __cplusplus
}
#endif
#endif
