/*
 * token_sums.h - sums over tokens, in the one order that the contract knows.
 *
 * Per unit, blocks of 128 tokens counted from the unit's start; a block's sum starts at +0 and
 * takes its tokens in ascending order; the unit's sum starts at +0 and takes its blocks in
 * ascending order; then it is added to the running f32 value, units ascending. So the value is the
 * same whether whole units come in one call or in many, and whoever has a unit can sum it alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CPU_TOKEN_SUMS_H
#define INVAR_KERNELS_CPU_TOKEN_SUMS_H

#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Columns that one task sums at most: long enough runs of memory, arrays that fit on the stack. */
#define INVAR_TOKEN_COLUMNS 512

/* Adds what `token` has in a shard to sum[0..count), the columns [first, first + count). */
typedef void (*invar_token_term_fn)(float *sum, const void *payload, int32_t shard, int64_t token,
                                    int64_t first, int64_t count);

/*
 * out (N) f32 += the terms of all tokens. A token's terms are in `shards` shards: a block has a sum
 * of each, which the tree of shards adds. Columns are divided among threads.
 */
invar_status invar_token_accumulate(const invar_device *dev, const invar_tensor *out,
                                    const invar_row_offsets *units, int32_t shards,
                                    invar_token_term_fn term, const void *payload) INVAR_MUST_USE;

/* The same, but for the last addition: out (blocks, N) is the sum of each block, +0 behind them. */
invar_status invar_token_block_sums(const invar_device *dev, const invar_tensor *out,
                                    const invar_row_offsets *units, int32_t shards,
                                    invar_token_term_fn term, const void *payload) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
