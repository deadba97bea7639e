/*
 * unit_sum.h - sum over units of gradients that several data-parallel ranks compute.
 *
 * G = +0, then G = G + g_u for ascending units u (docs/arithmetic.md, section 5), whichever rank
 * computed g_u. In each round the ranks 0, 1, ... hold the gradients of that many consecutive
 * units, each in a block of its own. Every rank sums its ZeRO range of the block (zero_comm.h): it
 * adds what the other ranks send in the order of ranks, which is the order of units. No other rank
 * has that sum.
 *
 * Memory: the ZeRO range and two host buckets; a device with memory of its own also holds one piece
 * (bucket_plan.h). If bytes go from device to device, only the ZeRO range.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TRAIN_UNIT_SUM_H
#define INVAR_ENGINE_TRAIN_UNIT_SUM_H

#include "engine/model/shard/zero_comm.h"

typedef struct invar_unit_sum invar_unit_sum;

/*
 * Makes the sum of the ranges `ranges`, which it takes over from the caller, at +0. The layout is
 * borrowed. Collective: all ranks of the layout's data axis must call this and the functions below.
 * Free with invar_unit_sum_free.
 */
invar_status invar_unit_sum_new(invar_unit_sum **out, const invar_device *dev,
                                const invar_layout *layout,
                                invar_zero_ranges *ranges) INVAR_MUST_USE;
void invar_unit_sum_free(invar_unit_sum *sum);

/*
 * Adds one round: the ranks 0 to givers - 1 have the gradients of a unit in `block`; the blocks of
 * the other ranks are not read.
 */
invar_status invar_unit_sum_add(invar_unit_sum *sum, const void *block, int givers) INVAR_MUST_USE;

/*
 * Copies the sum into this rank's range of the block. The rest of the block still has the gradients
 * of the last unit.
 */
invar_status invar_unit_sum_end(invar_unit_sum *sum, void *block) INVAR_MUST_USE;

#endif
