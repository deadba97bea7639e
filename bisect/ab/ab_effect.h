/*
 * ab_effect.h - paired effect of a change on the metrics of two sides, seed by seed.
 *
 * For each seed that both sides have, d = b - a. The effect is the mean of all d, and its
 * uncertainty is the standard error, sqrt(sum (d - mean)^2 / (n (n - 1))). Sums are over seeds,
 * then steps, in binary64, so that the same ledgers give the same bits on every machine. A value
 * that is not finite has no difference; it is counted and left out.
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

#define INVAR_AB_SEEDS 1000
#define INVAR_AB_NAME (2 * INVAR_LEDGER_NAME_BYTES + 8)
#define INVAR_AB_NO_STEP INT64_MIN
#define INVAR_AB_METRICS 65536 /* largest number of metrics of an experiment */

/* Paired differences of one quantity. */
typedef struct invar_ab_sum {
    int64_t pairs;         /* seeds for which both sides have a finite value */
    double mean_a, mean_b; /* means of these pairs; NaN without a pair */
    double mean;           /* mean of b - a; NaN without a pair */
    double error;          /* standard error of `mean`; NaN with fewer than two pairs */
    int64_t higher, lower; /* seeds for which b is higher or lower */
    int64_t equal;
} invar_ab_sum;

/* Computes the sums over `count` pairs. Pairs with a value that is not finite are left out. */
void invar_ab_sum_pairs(invar_ab_sum *out, const double *a, const double *b, size_t count);

typedef struct invar_ab_effect {
    char name[INVAR_AB_NAME]; /* printable; an evaluation is "eval/DATASET/NAME" */
    bool same;                /* all values of all steps and seeds have the same bits on both
                                 sides */
    bool pinned;              /* a reward or an evaluation, which reports always show */
    int64_t step;             /* last step at which a seed has the metric on both sides */
    invar_ab_sum last;        /* effect at that step */
    invar_ab_sum tail;        /* effect of the means over the steps from `tail_first` on */
    int64_t n_unusable;       /* number of pairs of values, over all seeds and steps, of which one
                                 is not finite or missing */
} invar_ab_effect;

typedef struct invar_ab_effects {
    invar_ab_effect *items; /* Order: unequal metrics first; among them pinned ones first, rewards
                               before evaluations; then by |mean| / error at the last step; then by
                               name. */
    size_t count, n_same;   /* n_same: number of items with `same` set */
    int64_t first, last;    /* steps that all runs have */
    int64_t tail_first;     /* first step of the last tenth of these steps, which has at least one
                               step */
} invar_ab_effects;

/*
 * Computes the effects from one ledger with all runs: run a[i] is compared with run b[i], for
 * `count` pairs, 1 to INVAR_AB_SEEDS. Returns INVAR_E_NOTFOUND if the runs have no common step.
 * Release *out with invar_ab_effects_release.
 */
invar_status invar_ab_effects_read(invar_ab_effects *out, invar_ledger *ledger, const int64_t *a,
                                   const int64_t *b, size_t count) INVAR_MUST_USE;
void invar_ab_effects_release(invar_ab_effects *effects);

#endif
