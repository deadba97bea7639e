/*
 * divergence.h - first divergence of two programs on the same recipe: step, point, layer, op,
 * tensor.
 *
 * The recorded runs are compared first (ledger/view/diff/diff.h). Then both programs run the recipe
 * up to the diverging step with every point recorded (debug-determinism full), which names the op.
 * If the first difference is in the sampled tokens, the changed program runs once more with the
 * samples of the other program (samples/ in the workspace), which exposes the op that caused the
 * different tokens. A program that does not support these keys leaves the divergence as it was.
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

#define INVAR_DIVERGENCE_NAME 256

/*
 * A first divergence. If no common point differs, `point` is the name of a metric, an evaluation or
 * a point of the manifest, or "sample N", and `kind` is "metric", "evaluation", "structure",
 * "sample" or "plug-in reply"; the digests are empty then.
 */
typedef struct invar_divergence {
    bool known;    /* a first difference exists */
    bool op_level; /* found in runs that recorded every point */
    int64_t step;  /* diverging step; -1 if before the first step */
    char point[INVAR_DIVERGENCE_NAME], phase[INVAR_DIVERGENCE_NAME], op[INVAR_DIVERGENCE_NAME];
    char kind[INVAR_DIVERGENCE_NAME], dtype[INVAR_DIVERGENCE_NAME], shape[INVAR_DIVERGENCE_NAME];
    int64_t layer; /* -1 if the point belongs to no layer */
    char before[INVAR_DIGEST_HEX_SIZE], after[INVAR_DIGEST_HEX_SIZE]; /* digests of the point, or
                                                                         empty */
    /* describes whether the fused call or a part of it changed; empty if unknown */
    char fused[INVAR_DIFF_FUSED_SIZE];
    int64_t points_different, points_equal; /* number of points at that step */
    char headline[INVAR_DIFF_HEADLINE_SIZE];
    char ledger_before[INVAR_PATH_SIZE], ledger_after[INVAR_PATH_SIZE]; /* paths for `invar diff` */
} invar_divergence;

/*
 * Compares the runs of two ledgers at one step, or at all steps if `step` is negative. The caller
 * frees *out with invar_diff_free.
 */
invar_status invar_divergence_diff(invar_diff **out, const char *before, const char *after,
                                   int64_t step) INVAR_MUST_USE;

/* Like invar_divergence_diff. out->known is false if the runs are equal. */
invar_status invar_divergence_compare(invar_divergence *out, const char *before, const char *after,
                                      int64_t step) INVAR_MUST_USE;

/*
 * Refines a known divergence: both requests run up to its step with every point recorded. Leaves
 * *divergence unchanged if a run fails or the runs do not diverge again. `lock` is the descriptor
 * of the caller's worktree.
 */
invar_status invar_divergence_refine(invar_divergence *divergence, invar_workspace *workspace,
                                     int lock, const invar_run_request *before,
                                     const invar_run_request *after) INVAR_MUST_USE;

#endif
