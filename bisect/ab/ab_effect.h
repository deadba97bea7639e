/*
 * ab_effect.h - what a change does to metrics, seed by seed.
 *
 * For each seed that both sides have: d = b - a. The effect is the mean of the d, and how sure it
 * is their standard error, sqrt(sum (d - mean)^2 / (n (n - 1))). Sums go by seed, then by step, in
 * binary64, so that the same ledgers give the same bits everywhere. A value that is not finite has
 * no difference: it is counted and left out.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_AB_AB_EFFECT_H
#define INVAR_BISECT_AB_AB_EFFECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_AB_SEEDS 1000
#define INVAR_AB_NAME (2 * INVAR_LEDGER_NAME_BYTES + 8)
#define INVAR_AB_NO_STEP INT64_MIN
#define INVAR_AB_METRICS 65536 /* of an experiment, at most */

/* Paired differences of one quantity. */
typedef struct invar_ab_sum {
    int64_t pairs;         /* seeds that both sides have a finite value for */
    double mean_a, mean_b; /* of them; NaN: no pair */
    double mean;           /* of b - a; NaN: no pair */
    double error;          /* its standard error; NaN: less than two pairs */
    int64_t higher, lower; /* seeds in which b is higher, lower */
    int64_t equal;
} invar_ab_sum;

/* Of `count` pairs, those with a value that is not finite left out. */
void invar_ab_sum_pairs(invar_ab_sum *out, const double *a, const double *b, size_t count);

typedef struct invar_ab_effect {
    char name[INVAR_AB_NAME]; /* printable; an evaluation is "eval/DATASET/NAME" */
    bool same;                /* all values of all steps and seeds are the same bits */
    bool pinned;              /* a reward or an evaluation: shown whatever it is */
    int64_t step;             /* the last one at which a seed has it on both sides */
    invar_ab_sum last;        /* at that step */
    invar_ab_sum tail;        /* of the means over the steps from `tail_first` on */
    int64_t n_unusable;       /* values not finite, or missing on one side, of all steps */
} invar_ab_effect;

typedef struct invar_ab_effects {
    invar_ab_effect *items; /* equal ones last; pinned ones first, rewards before evaluations; then
                               by |mean| / error at the last step, then by name */
    size_t count, n_same;   /* of them `same` */
    int64_t first, last;    /* steps that all runs have */
    int64_t tail_first;     /* of the last tenth of them, at least one */
} invar_ab_effects;

/*
 * From one ledger with all runs: run a[i] against run b[i], `count` of them, 1 to INVAR_AB_SEEDS.
 */
invar_status invar_ab_effects_read(invar_ab_effects *out, invar_ledger *ledger, const int64_t *a,
                                   const int64_t *b, size_t count) INVAR_MUST_USE;
void invar_ab_effects_release(invar_ab_effects *effects);

#ifdef __cplusplus
}
#endif
#endif
