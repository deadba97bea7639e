/*
 * tensor_stats.h - statistics of a tensor: NaN and Inf counts, largest magnitude, sum of squares.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_TENSOR_STATS_H
#define INVAR_ENGINE_MODEL_PROBE_TENSOR_STATS_H

#include "kernels-deterministic/ops.h"
#include "ledger/ledger.h"

/*
 * Returns true for f32 and bf16. Quantized tensors have no statistics; the tensor before
 * quantization is a point too.
 */
bool invar_tensor_stats_counts(invar_dtype dtype);

/*
 * Adds rows [0, rows) of a tensor in host memory: number of NaN and infinities and, of the finite
 * values, the largest magnitude and in l2 the sum of squares, in f64 and in index order.
 */
void invar_tensor_stats_add(invar_ledger_stat *stat, const invar_tensor *tensor, int64_t rows);

/*
 * Adds `more` to `sum`. Join samples in their order: the result then does not depend on
 * micro-batches.
 */
void invar_tensor_stats_join(invar_ledger_stat *sum, const invar_ledger_stat *more);

#endif
