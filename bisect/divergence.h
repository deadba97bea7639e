/*
 * divergence.h - where two programs part when they run the same recipe: step, point, layer, op,
 * tensor.
 *
 * First the runs that exist are compared (ledger/view/diff/diff.h); then both programs run the
 * recipe again up to that step with every point recorded (debug-determinism full), which names the
 * op. Where the first difference is in what was sampled, the program after runs once more with the
 * samples of the one before (samples/ in the workshop): the op behind the tokens shows then. A
 * program that does not know these keys leaves the answer as fine as it was.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_DIVERGENCE_H
#define INVAR_BISECT_DIVERGENCE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "bisect/workspace/workspace.h"
#include "ledger/view/diff/diff.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_DIVERGENCE_NAME 256

typedef struct invar_divergence {
    bool known;    /* there is a first difference */
    bool op_level; /* from runs that record every point */
    int64_t step;  /* -1: before the first */
    char point[INVAR_DIVERGENCE_NAME], phase[INVAR_DIVERGENCE_NAME], op[INVAR_DIVERGENCE_NAME];
    char kind[INVAR_DIVERGENCE_NAME], dtype[INVAR_DIVERGENCE_NAME], shape[INVAR_DIVERGENCE_NAME];
    int64_t layer;                                                    /* -1: of no layer */
    char before[INVAR_DIGEST_HEX_SIZE], after[INVAR_DIGEST_HEX_SIZE]; /* of the point */
    /* whether the fused call or its parts changed; "": unknown */
    char fused[INVAR_DIFF_FUSED_SIZE];
    int64_t points_different, points_equal; /* at that step */
    char headline[INVAR_DIFF_HEADLINE_SIZE];
    char ledger_before[INVAR_PATH_SIZE], ledger_after[INVAR_PATH_SIZE]; /* for invar diff */
} invar_divergence;

/* From two ledgers that exist. *out is not `known` when they are equal. */
invar_status invar_divergence_compare(invar_divergence *out, const char *before,
                                      const char *after) INVAR_MUST_USE;

/* Improves a known place: both requests run up to its step, with every point recorded. */
invar_status invar_divergence_refine(invar_divergence *place, invar_workspace *workshop, int lock,
                                     const invar_run_request *before,
                                     const invar_run_request *after) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
