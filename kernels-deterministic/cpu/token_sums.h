/*
 * token_sums.h - sums over tokens in the order of the arithmetic contract.
 *
 * Per unit, tokens form blocks of 128, counted from the start of the unit. A block's sum starts at
 * +0 and adds its tokens in ascending order; the unit's sum starts at +0 and adds its blocks; the
 * running f32 value adds the units. So the result does not depend on how complete units are
 * distributed over calls, and any rank can sum a unit alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CPU_TOKEN_SUMS_H
#define INVAR_KERNELS_CPU_TOKEN_SUMS_H

#include "kernels-deterministic/ops.h"

/* Maximum of columns per task: long runs of memory, and arrays that fit on the stack. */
#define INVAR_TOKEN_COLUMNS 512

/* Adds the term of `token` in one shard to sum[0..count), the columns [first, first + count). */
typedef void (*invar_token_term_fn)(float *sum, const void *payload, int32_t shard, int64_t token,
                                    int64_t first, int64_t count);

/*
 * out (N) f32 += the terms of all tokens, with one sum per block and shard, which the tree of
 * shards adds. Columns are distributed over threads.
 */
invar_status invar_token_accumulate(const invar_device *dev, const invar_tensor *out,
                                    const invar_row_offsets *units, int32_t shards,
                                    invar_token_term_fn term, const void *payload) INVAR_MUST_USE;

/*
 * Stores the sum of each block to out (blocks, N) instead, and +0 to the rows after the last block.
 */
invar_status invar_token_block_sums(const invar_device *dev, const invar_tensor *out,
                                    const invar_row_offsets *units, int32_t shards,
                                    invar_token_term_fn term, const void *payload) INVAR_MUST_USE;

#endif
