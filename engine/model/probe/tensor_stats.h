/*
 * tensor_stats.h - how many numbers of a tensor are not finite, and how large the others are.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_TENSOR_STATS_H
#define INVAR_ENGINE_MODEL_PROBE_TENSOR_STATS_H

#include "kernels-deterministic/ops.h"
#include "ledger/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* f32 and bf16. Quantized tensors are left out: what they are made from is a point, too. */
bool invar_tensor_stats_counts(invar_dtype dtype);

/*
 * Adds rows [0, rows) of a tensor in the host's memory: NaN and infinities, and of the finite
 * numbers the largest magnitude and, in l2, the sum of squares, in double and index order.
 */
void invar_tensor_stats_add(invar_ledger_stat *stat, const invar_tensor *tensor, int64_t rows);

/* The sum of both. Samples are joined in their order: what comes out depends on nothing else. */
void invar_tensor_stats_join(invar_ledger_stat *sum, const invar_ledger_stat *more);

#ifdef __cplusplus
}
#endif
#endif
